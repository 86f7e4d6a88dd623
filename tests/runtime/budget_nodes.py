"""Functions of nodes that run in processes of their own, which import this file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import holdfast as hf
from holdfast import append


@dataclass
class Work:
    log: Annotated[list[str], append] = field(default_factory=list)


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
