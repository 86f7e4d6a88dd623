"""Nodes that the tests of places call in processes of their own, which import this file."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import holdfast as hf


def which(state: dict[str, Any]) -> dict[str, Any]:
    """Say which process this is."""
    return {"pid": os.getpid()}


def child(state: dict[str, Any]) -> dict[str, Any]:
    return {"child": os.getpid()}


CHILD = hf.Graph("child")
CHILD.node(name="child", executor="process")(child)
CHILD_FLOW = CHILD.chain(hf.START, "child", hf.END).compile()


def calls_by_name(state: dict[str, Any], ctx: hf.BlockingContext) -> dict[str, Any]:
    return {"got": ctx.call(CHILD_FLOW, {}) is not None}


async def waits_with_a_timer(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    """Wait for a signal in a way in which the node stays in its process, and make a file when it has come."""
    async with asyncio.timeout(600):
        got = await ctx.wait_for("go")
    os.close(os.open(state["mark"], os.O_CREAT))
    return {"got": got}


async def calls_with_a_timer(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    async with asyncio.timeout(600):
        await ctx.call(CHILD_FLOW, {})
    return {"got": True}
