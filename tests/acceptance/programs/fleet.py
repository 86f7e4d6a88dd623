"""A flow for a fleet: four nodes in a row. All but the third note their execution and their process in a witness file."""

from __future__ import annotations

import os
from typing import Any

from holdfast import END, START, Context, Graph

graph = Graph("fleet", dict)


def witness(ctx: Any) -> None:
    """Write a line to the witness file, with a single write, because several processes append to it."""
    line = f"{ctx.run_id} {ctx.node} {ctx.attempt} {os.getpid()}\n"
    file = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@graph.node
async def first(state: dict[str, Any], ctx: Context) -> dict[str, Any]:
    witness(ctx)
    return {"first": 1}


@graph.node
async def second(state: dict[str, Any], ctx: Context) -> dict[str, Any]:
    witness(ctx)
    await ctx.sleep(0.05)
    return {"second": state["first"] + 1}


@graph.node
def third(state: dict[str, Any]) -> dict[str, Any]:
    return {"third": state["second"] + 1}


@graph.node
async def fourth(state: dict[str, Any], ctx: Context) -> dict[str, Any]:
    witness(ctx)
    return {"fourth": state["third"] + 1}


flow = graph.chain(START, "first", "second", "third", "fourth", END).compile()
