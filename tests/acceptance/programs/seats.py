"""A node that books a seat, waits for the payment, and releases the seat if it is cancelled. It notes each effect in a file.

If the file `hold` exists, the second step of its cleanup never ends, so that the process can be killed inside it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from holdfast import END, START, Context, Graph

graph = Graph("seats", dict)
FOLDER = Path(os.environ["FOLDER"])


def note(what: str) -> str:
    with (FOLDER / "effects").open("a", encoding="utf-8") as file:
        file.write(what + "\n")
    return what


async def apologise() -> None:
    note("apologising")
    if (FOLDER / "hold").exists():
        await asyncio.sleep(3600)


@graph.node
async def sell(state: dict[str, Any], ctx: Context) -> dict[str, Any]:
    await ctx.step("book", note, "booked")
    try:
        if state.get("works"):
            note("working")
            await asyncio.sleep(3600)
        paid = await ctx.wait_for("paid")
    except asyncio.CancelledError:
        await ctx.step("release", note, "released")
        await ctx.step("apologise", apologise)
        raise
    return {"paid": paid}


flow = graph.chain(START, "sell", END).compile()

working = Graph("working", dict)


@working.node
def choose(state: dict[str, Any]) -> dict[str, Any]:
    return {"works": True}


working.node(sell)
working_flow = working.chain(START, "choose", "sell", END).compile()

plain = Graph("plain", dict)


@plain.node
def sell_plainly(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
    ctx.step("book", note, "booked")
    is_paid = False
    try:
        paid = ctx.wait_for("paid")
        is_paid = True
    finally:
        if not is_paid:
            ctx.step("release", note, "released")
    return {"paid": paid}


plain_flow = plain.chain(START, "sell_plainly", END).compile()

elsewhere = Graph("elsewhere", dict)
elsewhere.node(executor="process")(sell)
process_flow = elsewhere.chain(START, "sell", END).compile()

plain_elsewhere = Graph("plain_elsewhere", dict)
plain_elsewhere.node(executor="process")(sell_plainly)
plain_process_flow = plain_elsewhere.chain(START, "sell_plainly", END).compile()

listening = Graph("listening", dict)


@listening.node
async def listen(state: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Take one signal after the other. Between two of them, its process can be killed."""
    heard = []
    for number in range(4):
        heard.append(await ctx.wait_for("said"))
        note(f"heard {number}")
        if (FOLDER / f"hold {number}").exists():
            await asyncio.sleep(3600)
    return {"heard": heard}


listening_flow = listening.chain(START, "listen", END).compile()
