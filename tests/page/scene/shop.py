"""A shop: it takes orders, pays refunds, sends parcels, indexes its goods and writes about them."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
import payments

import holdfast as hf
from holdfast import END, START, Graph, Retry, add, append

PACE = float(os.environ.get("SHOP_PACE", "1"))


async def sleep(seconds: float) -> None:
    """What stands for work here. `scenes.py` lets hours of it pass at once."""
    await asyncio.sleep(seconds * PACE)


# --- order ----------------------------------------------------------------------------------------------


@dataclass
class Order:
    order: str
    cents: int = 4200
    card: str = "tok_9ac401"
    in_stock: bool = True
    reserved: str = ""
    risk: float = 0.0
    receipt: str = ""
    tracking: str = ""
    mailed: bool = False


graph = Graph("order", Order)


@graph.node
async def validate(state: Order) -> None:
    await sleep(0.3)


@graph.node
async def reserve(state: Order) -> dict[str, Any]:
    await sleep(1.2)
    return {"reserved": f"res-8{state.order[-4:]}"}


@graph.node
async def fraud_check(state: Order) -> dict[str, Any]:
    await sleep(2.1)
    return {"risk": 0.08}


async def quote_price(cents: int) -> dict[str, Any]:
    await sleep(0.9)
    return {"cents": cents, "currency": "EUR"}


@graph.node(retry=Retry(attempts=3, backoff=5.0, factor=240, max_delay=1200, jitter=0))
async def charge(state: Order, ctx: hf.Context) -> dict[str, Any]:
    quote = await ctx.step("quote", quote_price, state.cents)
    await sleep(1.4)
    receipt = await ctx.step("charge", payments.charge_card, quote["cents"], state.card)
    return {"receipt": receipt}


@graph.node(idempotent=False)
async def ship(state: Order) -> dict[str, Any]:
    await sleep(0.9)
    return {"tracking": f"NL-{state.order}"}


@graph.node
async def backorder(state: Order) -> None:
    await sleep(0.2)


@graph.node
async def notify(state: Order) -> dict[str, Any]:
    await sleep(0.2)
    return {"mailed": True}


graph.edge(START, "validate").edge("validate", "reserve").edge("validate", "fraud_check")
graph.edge("reserve", "charge").edge("fraud_check", "charge")
graph.branch("charge", lambda state: "ship" if state.in_stock else "backorder", ["ship", "backorder"])
graph.edge("ship", "notify").edge("backorder", "notify").edge("notify", END)
order = graph.compile()


# --- brief ----------------------------------------------------------------------------------------------

TEXT = """Spring tides arrive when sun and moon pull along one line. In harbours along the coast the range then exceeds three
metres, and a draught that was safe in the morning strands a barge by noon. The almanac gives the hour; the gauge at the harbour
mouth gives the truth. Where the two disagree by more than twenty minutes, trust the gauge."""
HEARD = 58  # words


@dataclass
class Brief:
    subject: str
    title: str = ""
    topics: list[str] = field(default_factory=list)
    photos: list[str] = field(default_factory=list)
    notes: Annotated[list[str], append] = field(default_factory=list)
    outline: list[str] = field(default_factory=list)
    draft: str = ""
    budget_left: Annotated[float, add] = 41.0
    published: bool = False


async def call_model(iteration: int) -> dict[str, Any]:
    await sleep(2.7)
    return {"id": f"msg_01{iteration}", "stop": None}


def build_brief(*, checks_facts: bool = False) -> hf.Flow[Brief]:
    graph = Graph("brief", Brief)

    @graph.node
    async def plan(state: Brief, ctx: hf.Context) -> dict[str, Any]:
        await sleep(2.4)
        ctx.cost(usd=0.012, tokens=2_710)
        return {"topics": ["moon", "sun", "harbours", "currents", "almanacs"]}

    @graph.node(idempotent=False)
    async def photos(state: Brief) -> dict[str, Any]:
        await sleep(2.9)
        return {"photos": ["harbour.jpg"]}

    @graph.node(each=lambda state: state.topics, limit=3)
    async def research(topic: str, ctx: hf.Context) -> dict[str, Any]:
        await sleep(4.5 + 1.3 * (ctx.item or 0))
        ctx.cost(usd=0.021, tokens=4_200)
        return {"notes": [f"{topic}: what is known about it"]}

    @graph.node
    async def outline(state: Brief, ctx: hf.Context) -> dict[str, Any]:
        await sleep(3.1)
        heads = [f"Why {state.subject} turn", "Reading the glass", "Harbours and draught"]
        return {
            "outline": heads,
            "notes": ["currents: the ebb runs longer than the flood"],
            "budget_left": -3.1,
        }

    @graph.node(retry=Retry(attempts=4, backoff=1.0), timeout=4000)
    async def write(state: Brief, ctx: hf.Context) -> dict[str, Any]:
        await ctx.step("model", call_model, ctx.iteration)
        draft = ctx.artifacts.write("draft.md", f"# {state.subject}\n\n{TEXT[:240]}\n")
        for word in TEXT.split()[:HEARD]:
            ctx.emit(f"{word} ")
        await sleep(6.2)
        ctx.cost(usd=0.041, tokens=9_210)
        return {"draft": str(draft), "title": f"When {state.subject} turn", "budget_left": -4.0}

    @graph.node
    async def check(state: Brief) -> None:
        await sleep(1.9)

    @graph.node(idempotent=False, approve=lambda state: f"Publish “{state.title}” to the blog?")
    async def publish(state: Brief) -> dict[str, Any]:
        await sleep(0.5)
        return {"published": True}

    graph.edge(START, "plan").edge(START, "photos").edge("photos", "write")
    graph.chain("plan", "research", "outline")
    if checks_facts:
        graph.node(name="fact_check")(lambda state: None)
        graph.chain("outline", "fact_check", "write", "check")
    else:
        graph.chain("outline", "write", "check")
    graph.branch(
        "check", lambda state: "publish" if state.budget_left < 31 else "write", ["publish", "write"]
    )
    graph.edge("publish", END)
    return graph.compile(max_iterations=5)


brief = build_brief()


# --- refund, parcel and reindex -------------------------------------------------------------------------


class Refund(msgspec.Struct, kw_only=True):
    decision: Annotated[Literal["refund", "partial", "reject"], msgspec.Meta(title="Decision")]
    cents: Annotated[int, msgspec.Meta(title="Amount in cents", ge=1, le=4200)]
    reason_code: Annotated[
        Literal["damaged in transit", "wrong item", "late", "lost", "other"],
        msgspec.Meta(title="Reason code"),
    ] = "other"
    note: Annotated[str, msgspec.Meta(title="Note to the customer", max_length=500)] = ""
    notify: Annotated[bool, msgspec.Meta(title="Notify the customer by mail")] = True


graph = Graph("refund")


@graph.node
async def load_order(state: dict) -> dict[str, Any]:
    await sleep(0.4)
    return {"charged": 4200, "claim": "arrived broken"}


@graph.node
async def assess(state: dict) -> dict[str, Any]:
    await sleep(6.1)
    return {"customer_since": 2021}


graph.ask(
    "decide",
    lambda state: f"Refund order {state['order']} in full?",
    schema=Refund,
    into="decision",
    timeout=7200,
)


@graph.node(idempotent=False)
async def pay_out(state: dict) -> dict[str, Any]:
    await sleep(1.0)
    return {"paid": True}


graph.chain(START, "load_order", "assess")
graph.branch("assess", lambda state: "decide" if state["cents"] > 2000 else "pay_out", ["decide", "pay_out"])
graph.branch(
    "decide", lambda state: END if state["decision"].decision == "reject" else "pay_out", ["pay_out", END]
)
graph.edge("pay_out", END)
refund = graph.compile()

graph = Graph("parcel")


@graph.node
async def pack(state: dict) -> None:
    await sleep(0.6)


graph.ask(
    "carrier", lambda state: f"Which carrier for {state['pallets']} pallets to Oslo?",
    options=["road", "sea", "air"], into="carrier", timeout=86_400,
)  # fmt: skip


@graph.node
async def send(state: dict, ctx: hf.Context) -> dict[str, Any]:
    return {"paid": await ctx.wait_for("paid", timeout=5 * 86_400)}


graph.edge(START, "pack")
graph.branch("pack", lambda state: "carrier" if "pallets" in state else "send", ["carrier", "send"])
graph.chain("carrier", "send", END)
parcel = graph.compile()

graph = Graph("reindex")


@graph.node
async def collect(state: dict) -> None:
    await sleep(360)


@graph.node
async def index(state: dict) -> None:
    await sleep(1800)


reindex = graph.chain(START, collect, index, END).compile()
