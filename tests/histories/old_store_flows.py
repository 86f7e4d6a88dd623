"""The flows whose runs are in `old_stores/`, for the script that wrote the stores and the test that reads them.

A node dies or fails where `record_old_stores.py` has planted a mishap. No mishap is planted when a run is resumed, so every run
can then reach its end. Nodes, edges and states must not change: the stores contain the fingerprints of these flows.
Only public names are used.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import holdfast as hf
from holdfast import END, START, Graph, Retry, add, append, merge

YEARS_S = 1e9
"""The backoff of retries: so long that a failed node is not retried by itself, only on request."""

MISHAPS: dict[str, str] = {}
"""Place in a flow -> the mishap that happens there. Only the script that writes the stores fills this dict."""


def meet(place: str) -> None:
    """Die or raise here, if a mishap is planted at this place."""
    match MISHAPS.get(place):
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        case "pass":
            raise hf.Recoverable("the line is busy")
        case "fail":
            raise ValueError("the page is torn")
        case "fatal":
            raise hf.Fatal("not worth it")


@dataclass
class Report:
    topic: str
    pages: list[str] = field(default_factory=list)
    facts: Annotated[list[str], append] = field(default_factory=list)
    seen: Annotated[dict[str, int], merge] = field(default_factory=dict)
    drafts: Annotated[int, add] = 0
    draft: str = ""


report_graph = Graph("report", Report)


@report_graph.node
def plan(state: Report) -> dict[str, Any]:
    return {"pages": [f"{state.topic} {number}" for number in (1, 2, 3)]}


@report_graph.node(each=lambda state: state.pages, limit=1)
def read(page: str, ctx: hf.BlockingContext) -> dict[str, Any]:
    meet(f"read {ctx.item}")
    return {"facts": [f"fact of {page}"], "seen": {page: ctx.attempt}}


@report_graph.node(retry=Retry(attempts=3, backoff=10, jitter=0.0))
async def write(state: Report, ctx: hf.Context) -> dict[str, Any]:
    meet("write")
    if MISHAPS.get("write") == "terminate":
        await asyncio.Event().wait()
    return {"drafts": 1, "draft": f"{len(state.facts)} facts of {state.topic}, visit {ctx.iteration}"}


@report_graph.node
def check(state: Report, ctx: hf.BlockingContext) -> None:
    meet(f"check {ctx.iteration}")


@report_graph.node(idempotent=False)
def publish(state: Report) -> dict[str, Any]:
    meet("publish")
    return {"draft": f"published: {state.draft}"}


report_graph.chain(START, plan, read, write, check)
report_graph.branch(
    check, lambda state: "write" if state.drafts < 2 else "publish", to=["write", "publish"]
).edge(publish, END)
report = report_graph.compile()


@dataclass
class Order:
    number: str
    parcels: list[str] = field(default_factory=list)
    log: Annotated[list[Any], append] = field(default_factory=list)
    price: int = 0


order_graph = Graph("order", Order)


@order_graph.node
async def charge(state: Order, ctx: hf.Context) -> dict[str, Any]:
    """Record everything that a node can record: steps, a map, a checkpoint and a cost."""
    paid = await ctx.step("pay", lambda: {"receipt": f"for {state.number}, attempt {ctx.attempt}"})
    weights = await ctx.map("weigh", len, state.parcels, limit=1)
    await ctx.checkpoint({"weighed": len(weights)})
    ctx.cost(usd=0.25, tokens=40)
    meet("charge")
    return {"log": [paid, weights, ctx.attempt]}


@order_graph.node(safe_to_fail=True)
def hint(state: Order) -> None:
    raise ValueError("no idea")


order_graph.ask("price", lambda state: f"What does {state.number} cost?", into="price")


@order_graph.node(approve="Send it?", agent="courier")
def send(state: Order) -> dict[str, Any]:
    return {"log": [f"sent for {state.price}"]}


order = order_graph.chain(START, charge, hint, "price", send, END).compile()


waits_graph = Graph("waits")


@waits_graph.node
def begin(state: dict[str, Any]) -> dict[str, Any]:
    return {"begun": True}


@waits_graph.node
async def rest(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    await ctx.sleep(state["seconds"])
    return {"rested": True}


@waits_graph.node
def listen(state: dict[str, Any], ctx: hf.BlockingContext) -> dict[str, Any]:
    meet("listen")
    return {"paid": ctx.wait_for("paid")}


@waits_graph.node
async def confirm(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    return {"sure": await ctx.ask("Sure?", options=["yes", "no"])}


waits_graph.edge(START, begin).branch(begin, lambda state: state["on"], to=["rest", "listen", "confirm"])
waits_graph.edge(rest, END).edge(listen, END).edge(confirm, END)
waits = waits_graph.compile()


@dataclass
class Parcel:
    price: int = 0
    called: str = ""
    packed: bool = False
    sent: str = ""


parcel_graph = Graph("parcel", Parcel)
parcel_graph.ask("worth", "What is it worth?", into="price")


@parcel_graph.node(retry=Retry(attempts=3, backoff=YEARS_S, max_delay=YEARS_S, jitter=0.0))
def call(state: Parcel, ctx: hf.BlockingContext) -> dict[str, Any]:
    meet("call")
    return {"called": f"in attempt {ctx.attempt}"}


@parcel_graph.node
def pack(state: Parcel) -> dict[str, Any]:
    meet("pack")
    return {"packed": True}


@parcel_graph.node
def ship(state: Parcel) -> dict[str, Any]:
    return {"sent": f"called {state.called}, packed {state.packed}, worth {state.price}"}


parcel_graph.chain(START, "worth", ship, END).chain(START, call, ship).chain(START, pack, ship)
parcel = parcel_graph.compile(max_parallel=1)
"""The flow runs one node at a time, so that the end of `call` is durable before `pack` starts."""


def longest(current: str | None, update: str) -> str:
    return max(current or "", update, key=len)


@dataclass
class Words:
    word: Annotated[str, longest] = ""
    words: Annotated[list[str], append] = field(default_factory=list)


layers_graph = Graph("layers", Words)


def say(state: Words, ctx: hf.BlockingContext) -> dict[str, Any]:
    meet(ctx.node)
    return {"word": ctx.node, "words": [ctx.node]}


for name in ("one", "three", "eleven", "end"):
    layers_graph.node(name=name)(say)
layers_graph.chain(START, "one", "end", END).chain(START, "three", "end").chain(START, "eleven", "end")
layers = layers_graph.compile(schedule="layered", max_parallel=1)


tale_graph = Graph("tale")


@tale_graph.node
async def tell(state: dict[str, Any], ctx: hf.Context) -> AsyncIterator[Any]:
    for word in ("once", {"a": "time"}, "there"):
        yield word
    if "tell" in MISHAPS:
        await asyncio.Event().wait()
    yield {"told": ctx.attempt}


tale = tale_graph.chain(START, tell, END).compile()


scan_graph = Graph("scan")


@scan_graph.node
def load(state: dict[str, Any]) -> dict[str, Any]:
    """Return one value that becomes a blob (over 1,000 bytes when it was recorded), and two that are compressed in the log."""
    return {"scan": "long " * 250, "left": "left " * 150, "right": "right " * 150}


@scan_graph.node(approve="Keep it?")
def keep(state: dict[str, Any]) -> dict[str, Any]:
    return {"kept": len(state["scan"])}


scan = scan_graph.chain(START, load, keep, END).compile()

FLOWS = (report, order, waits, parcel, layers, tale, scan)
