"""Capabilities that a process of its own can import by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import holdfast as hf
from holdfast import plan

far = plan.Capabilities("far")


@dataclass
class Number:
    value: int


@dataclass
class Square:
    value: int
    process: int


@far.capability("square@1", executor="process")
def square(given: Number) -> Square:
    return Square(given.value**2, os.getpid())


@far.capability("key@1", executor="process")
def key(given: dict[str, Any], ctx: hf.BlockingContext) -> str:
    return ctx.idempotency_key()


@far.capability("wrong@1", executor="process")
def wrong(given: Number) -> Square:
    return "not a square"  # type: ignore[return-value]
