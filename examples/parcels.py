"""An order that calls a payment: each is a run of its own, and the payment is waited for without a process.

    holdfast run examples/parcels.py --run-id parcels
    holdfast show parcels

The order reserves its goods, calls the flow `payment`, packs each parcel in a run of its own, two at a time, and says thank you.
Kill the process at any moment, and resume the order: the payment and the parcels that were begun are found again, and none is
made twice. A worker that knows this file could execute them as well, on another machine.

    holdfast resume parcels examples/parcels.py

The connection to the bank drops now and then. Retrying is the business of the payment, not of the order. If the card is declined
(`--input '{"card": "declined"}'`), the payment fails for good, and the order fails because of it. Choose another card, resume the
payment, and then the order:

    holdfast run examples/parcels.py --run-id declined --input '{"card": "declined"}'
    holdfast show declined                                    # names the run of the payment
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import holdfast as hf
from holdfast import END, START, Graph, Retry, append


@dataclass
class Payment:
    cents: int
    card: str = "valid"
    folder: str = "parcels"
    receipt: str = ""


@dataclass
class Parcel:
    article: str
    folder: str = "parcels"
    label: str = ""


@dataclass
class Order:
    articles: list[str] = field(default_factory=lambda: ["tea", "salt", "rice", "soap"])
    card: str = "valid"
    receipt: str = ""
    labels: Annotated[list[str], append] = field(default_factory=list)
    folder: str = "parcels"  # a folder that stands in for the real bank and the carrier


# --- simulated bank and carrier -----------------------------------------------------------------------


def note(folder: str, book: str, entry: Any) -> None:
    """Append a line to a file of the simulated bank or carrier."""
    Path(folder).mkdir(exist_ok=True)
    with Path(folder, book).open("a") as file:
        file.write(json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(folder: str, book: str) -> list[Any]:
    file = Path(folder, book)
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class CardDeclined(Exception):
    """The bank does not accept the card."""


def charge_card(payment: Payment, key: str) -> str:
    """Ask the bank for the money. A second call with the same key takes nothing. The first call of all loses the connection."""
    is_first = not read(payment.folder, "calls.jsonl")
    note(payment.folder, "calls.jsonl", key)
    time.sleep(0.3)
    if is_first:
        raise ConnectionError("the connection to the bank dropped")
    if payment.card != "valid":
        raise CardDeclined(f"the card is {payment.card}")
    if not any(charge["key"] == key for charge in read(payment.folder, "charges.jsonl")):
        note(payment.folder, "charges.jsonl", {"key": key, "cents": payment.cents})
    time.sleep(0.3)
    return f"{payment.cents / 100:.2f} euros"


# --- the payment --------------------------------------------------------------------------------------

payment_graph = Graph("payment", Payment)


@payment_graph.node(retry=Retry(attempts=5, backoff=0.05))
def charge(payment: Payment, ctx: hf.BlockingContext) -> dict[str, Any]:
    return {"receipt": charge_card(payment, ctx.idempotency_key())}


payment = payment_graph.chain(START, "charge", END).compile()

# --- one parcel ---------------------------------------------------------------------------------------

parcel_graph = Graph("parcel", Parcel)


@parcel_graph.node
def pack(parcel: Parcel, ctx: hf.BlockingContext) -> dict[str, Any]:
    key = ctx.idempotency_key()
    if not any(packed["key"] == key for packed in read(parcel.folder, "parcels.jsonl")):
        note(parcel.folder, "parcels.jsonl", {"key": key, "article": parcel.article})
    time.sleep(0.2)
    return {"label": f"parcel with {parcel.article}"}


parcel = parcel_graph.chain(START, "pack", END).compile()

# --- the order ----------------------------------------------------------------------------------------

graph = Graph("order", Order)


@graph.node
def reserve(order: Order) -> None:
    print(f"reserving {', '.join(order.articles)}")


graph.call(
    "pay",
    payment,
    input=lambda order: Payment(cents=100 * len(order.articles), card=order.card, folder=order.folder),
    output=lambda paid: {"receipt": paid.receipt},
)
graph.call(
    "ship",
    parcel,
    each=lambda order: [{"article": article, "folder": order.folder} for article in order.articles],
    input=lambda item: Parcel(**item),
    output=lambda packed: {"labels": [packed.label]},
    limit=2,
)


@graph.node
def thank(order: Order) -> None:
    print(f"thank you for {order.receipt}; {len(order.labels)} parcels are on their way")


graph.chain(START, "reserve", "pay", "ship", "thank", END)
flow = graph.compile()

if __name__ == "__main__":
    run = hf.run(flow, Order(), run_id="parcels")
    print(run.status, run.state.receipt, run.state.labels)
