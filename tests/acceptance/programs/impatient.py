"""A node that waits for the signal `x` for a while, in a form that the input names, then notes that, and waits for `x` again.

It is killed after it has given up the first wait. The next process begins with the second one: the note is there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from holdfast import END, START, Context, Graph

graph = Graph("impatient", dict)


async def give_up(form: str, wait: Coroutine[Any, Any, Any], seconds: float) -> Any:
    if form == "wait_for":
        return await asyncio.wait_for(wait, seconds)
    if form == "timeout":
        async with asyncio.timeout(seconds):
            return await wait
    task = asyncio.create_task(wait)
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        task.cancel()
        raise TimeoutError
    return task.result()


def has_noted() -> bool:
    return Path(os.environ["NOTE"]).exists()


def note() -> None:
    Path(os.environ["NOTE"]).write_text("gave up", "utf-8")


@graph.node
async def listen(state: dict[str, Any], ctx: Context) -> dict[str, Any]:
    if not has_noted():
        try:
            return {"first": await give_up(state["form"], ctx.wait_for("x"), state["seconds"])}
        except TimeoutError:
            while state["dies"]:
                await asyncio.sleep(0.05)
                note()
    return {"second": await ctx.wait_for("x", key="second")}


flow = graph.chain(START, "listen", END).compile()

elsewhere = Graph("elsewhere", dict)
elsewhere.node(executor="process")(listen)
flow_in_a_process = elsewhere.chain(START, "listen", END).compile()
