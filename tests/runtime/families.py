"""Shared by the tests of child runs: a child `pay` that succeeds, fails or waits as its input says, and callers of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any

import holdfast as hf
from holdfast import END, START, Flow, Graph, append
from holdfast.storage.contract import Store


@dataclass
class Pay:
    amount: int = 0
    how: str = "pay"
    paid: bool = False


@dataclass
class Order:
    total: int = 0
    how: str = "pay"
    log: Annotated[list[Any], append] = field(default_factory=list)


class Till:
    """What the children of a test have done, and whether the till is broken."""

    def __init__(self) -> None:
        self.charged: list[tuple[str, int]] = []
        self.is_broken = False
        self.gate: asyncio.Event | None = None

    def pay(self, name: str = "pay", **options: Any) -> Flow[Pay]:
        """Make the flow `pay`: it charges the amount, or asks or waits first, as `how` says."""
        graph = Graph(name, Pay)

        @graph.node(**options)
        async def charge(state: Pay, ctx: hf.Context) -> dict[str, Any]:
            if state.how == "ask":
                await ctx.ask("Charge?", options=["yes", "no"])
            if state.how == "sleep":
                await ctx.sleep(3600)
            if state.how == "hang":
                await asyncio.get_running_loop().create_future()
            if self.is_broken or state.how == "fail":
                raise ValueError("the till is broken")
            ctx.cost(usd=0.5, tokens=10)
            self.charged.append((ctx.idempotency_key(), state.amount))
            return {"paid": True}

        return graph.chain(START, "charge", END).compile()


def caller(pay: Flow[Pay], name: str = "order", **options: Any) -> Flow[Order]:
    """Make a flow whose only node calls `pay`."""
    graph = Graph(name, Order)

    @graph.node(**options)
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        paid = await ctx.call(pay, Pay(amount=state.total, how=state.how))
        return {"log": [paid.paid, paid.amount]}

    return graph.chain(START, "settle", END).compile()


def kinds(store: Store, run_id: str) -> list[str]:
    return [row.kind for row in store.events(run_id)]


def children(store: Store, run_id: str = "r") -> list[str]:
    """Return the ids of the children of a run, in the order of its log."""
    from holdfast.storage.rows import open_row

    rows = store.events(run_id, kinds=("ChildStarted",))
    return list(dict.fromkeys(open_row(row, store.blobs).event.run for row in rows))
