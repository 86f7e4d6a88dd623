"""Functions of nodes that run in processes of their own, which import this file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import holdfast as hf
from holdfast import append


@dataclass
class Work:
    log: Annotated[list[str], append] = field(default_factory=list)
    folder: str = ""


def spends(state: Work, ctx: hf.BlockingContext) -> dict[str, Any]:
    log = [ctx.step("first", lambda: "first")]
    try:
        ctx.cost(usd=5)
    except hf.BudgetExceeded:
        log.append("spent")
    try:
        log.append(ctx.step("second", lambda: "second"))
    except hf.BudgetExceeded:
        log.append("refused")
    return {"log": log}


async def spends_async(state: Work, ctx: hf.Context) -> dict[str, Any]:
    log = [await ctx.step("first", lambda: "first")]
    try:
        ctx.cost(usd=5)
    except hf.BudgetExceeded:
        log.append("spent")
    try:
        log.append(await ctx.step("second", lambda: "second"))
    except hf.BudgetExceeded:
        log.append("refused")
    return {"log": log}


def _called(folder: str, name: str) -> None:
    with (Path(folder) / "calls").open("a") as calls:
        calls.write(f"{name}\n")


def pays_in_steps(state: Work, ctx: hf.BlockingContext) -> dict[str, Any]:
    def ask() -> str:
        _called(state.folder, "ask")
        ctx.cost(usd=2)
        return "42"

    answer = ctx.step("ask", ask)
    ctx.step("use", _called, state.folder, "use")
    return {"log": [answer]}


async def pays_in_steps_async(state: Work, ctx: hf.Context) -> dict[str, Any]:
    def ask() -> str:
        _called(state.folder, "ask")
        ctx.cost(usd=2)
        return "42"

    answer = await ctx.step("ask", ask)
    await ctx.step("use", _called, state.folder, "use")
    return {"log": [answer]}
