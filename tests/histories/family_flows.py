"""The flows of a caller and its children, for `record`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import holdfast as hf
from holdfast import END, START, Flow, Graph, append


@dataclass
class Bill:
    amount: int = 0
    paid: Annotated[list[int], append] = field(default_factory=list)
    told: Annotated[list[str], append] = field(default_factory=list)


def pay_flow(broken: set[str]) -> Flow[Bill]:
    """A child: one node, which has a cost and may fail."""
    graph = Graph("pay", Bill)

    @graph.node
    def charge(state: Bill, ctx: hf.Context) -> dict[str, Any]:
        ctx.cost(usd=0.25, tokens=10)
        if "charge" in broken and state.amount == 5:
            raise ValueError("the card is stuck")
        return {"paid": [state.amount]}

    graph.chain(START, "charge", END)
    return graph.compile()


def caller_flow(broken: set[str]) -> Flow[Bill]:
    """quote (which calls a child) -> bill (which starts two, and waits for one of them) -> ask."""
    pay, graph = pay_flow(broken), Graph("caller", Bill)

    @graph.node
    async def quote(state: Bill, ctx: hf.Context) -> dict[str, Any]:
        done = await ctx.call(pay, {"amount": 1}, key="quote")
        return {"paid": done.paid}

    @graph.node
    async def bill(state: Bill, ctx: hf.Context) -> dict[str, Any]:
        child = await ctx.start(pay, {"amount": state.amount}, cancel_with_caller=True)
        await ctx.start(pay, {"amount": 7}, key="later", queue="night")
        done = await ctx.wait_for(child, timeout=3600.0)
        return {"paid": done.paid}

    graph.node(name="close")(_wait_for_close)
    graph.chain(START, "quote", "bill", "close", END)
    return graph.compile()


async def _wait_for_close(state: Bill, ctx: hf.Context) -> dict[str, Any]:
    return {"told": [await ctx.wait_for("close")]}


def slow_flow(broken: set[str]) -> Flow[Bill]:
    """A child that asks before it does what `pay_flow` does."""
    graph = Graph("slow", Bill)

    @graph.node
    async def charge(state: Bill, ctx: hf.Context) -> dict[str, Any]:
        await ctx.ask("Charge?", options=["yes", "no"])
        if "charge" in broken:
            raise ValueError("the card is stuck")
        return {"paid": [state.amount]}

    return graph.chain(START, "charge", END).compile()


def pair_flow(pay: Flow[Bill], slow: Flow[Bill]) -> Flow[Bill]:
    """bill and wait, side by side, each of which calls a child -> close."""
    graph = Graph("pair", Bill)

    @graph.node
    async def bill(state: Bill, ctx: hf.Context) -> dict[str, Any]:
        return {"paid": (await ctx.call(pay, {"amount": state.amount})).paid}

    @graph.node
    async def wait(state: Bill, ctx: hf.Context) -> dict[str, Any]:
        return {"paid": (await ctx.call(slow, {"amount": 3})).paid}

    graph.node(name="close")(_wait_for_close)
    return graph.chain(START, "bill", "close", END).chain(START, "wait", "close").compile()
