"""A flow with a branch, a fan-out, a question and a node that fails, and runs of it for the tests of the server."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated

from app_client import TOKENS, Caller

import holdfast as hf
from holdfast.server.asgi import asgi
from holdfast.storage.memory.store import MemoryStore


@dataclass
class Order:
    item: str = "lamp"
    quantity: Annotated[int, hf.add] = 1
    notes: Annotated[list[str], hf.append] = field(default_factory=list)
    prices: Annotated[dict[str, float], hf.merge] = field(default_factory=dict)
    parts: list[int] = field(default_factory=list)
    fails: bool = False
    asks: bool = False


graph = hf.Graph("order", Order, description="Orders things.")


@graph.node
def reserve(state: Order) -> dict:
    return {"notes": ["reserved"], "quantity": 2, "prices": {"lamp": 4.5}}


@graph.node(each=lambda state: state.parts)
def weigh(part: int) -> dict:
    if part == 13:
        raise ValueError("no such part")
    return {"notes": [f"part {part}"]}


@graph.node
def charge(state: Order, ctx: hf.BlockingContext) -> dict:
    ctx.emit("charging…")
    paid = ctx.step("pay", lambda: 42)
    if state.fails:
        raise hf.Fatal("card declined")
    return {"notes": [f"paid {paid}"]}


@graph.node(approve="Ship it?")
def ship(state: Order) -> dict:
    return {"notes": ["shipped"]}


graph.edge(hf.START, "reserve")
graph.edge("reserve", "weigh")
graph.edge("weigh", "charge")
graph.branch("charge", lambda state: "ship" if state.asks else hf.END, ["ship", hf.END])
graph.edge("ship", hf.END)
flow = graph.compile()


@asynccontextmanager
async def opened(store=None, *, role: str = "admin", run_base=None, flows=(flow,), **options):
    """An engine with the application over it, and a caller with a token of this role."""
    async with hf.Engine(store or MemoryStore(), flows=list(flows), run_base=run_base) as engine:
        app = asgi(engine, tokens=TOKENS, **options)
        try:
            yield engine, Caller(app, role=role)
        finally:
            app.stop()


async def run_order(engine: hf.Engine, run_id: str, **input) -> None:
    with suppress(hf.RunFailed):
        await engine.run(flow, input, run_id=run_id)
