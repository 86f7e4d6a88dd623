"""A batch of sales from six shops: read side by side, from a line that drops now and then, added up, and paid out once.

    holdfast run examples/etl.py --run-id etl
    holdfast show etl

Kill it while it reads: shops that were read are not read again, and tries that a bad line has used up stay used up. Kill it
while it pays, in the second after `paying …` is printed: nobody can know whether the money left, so Holdfast does not guess.
Resume it, and it asks; look at the bank's book (batch/transfers.jsonl), and say what is to be done:

    holdfast resume etl examples/etl.py
    holdfast answer etl pay retry                            # or skip, or abort
    holdfast resume etl examples/etl.py

`retry` is harmless here, because the bank knows the payment by its key.
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

SHOPS = ["Aachen", "Bergen", "Cork", "Delft", "Essen", "Faro"]
BAD_LINES = {"Bergen": 1, "Essen": 2}  # how often each of them drops before it holds


@dataclass
class Sale:
    shop: str
    item: str
    cents: int


@dataclass
class Batch:
    shops: list[str] = field(default_factory=lambda: list(SHOPS))
    sales: Annotated[list[Sale], append] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    transfer: str = ""
    folder: str = "batch"  # stands for the world outside


# --- the world outside --------------------------------------------------------------------------------


def note(folder: str, book: str, entry: Any) -> None:
    """One more line in a book of the world outside."""
    Path(folder).mkdir(exist_ok=True)
    with Path(folder, book).open("a") as file:
        file.write(json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())


def book(folder: str, name: str) -> list[Any]:
    file = Path(folder, name)
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def call_shop(folder: str, shop: str) -> list[dict[str, Any]]:
    """A shop's answer. How often its line has dropped is in calls.jsonl, so that it behaves the same every time."""
    calls = sum(call == shop for call in book(folder, "calls.jsonl"))
    note(folder, "calls.jsonl", shop)
    time.sleep(0.1)
    if calls < BAD_LINES.get(shop, 0):
        raise ConnectionError(f"the line to {shop} dropped")
    return [{"item": item, "cents": 100 * len(shop) + number} for number, item in enumerate(("tea", "salt"))]


def tell_bank(folder: str, cents: int, key: str) -> str:
    """A transfer. The bank knows it by its key, and takes its time to confirm."""
    if not any(transfer["key"] == key for transfer in book(folder, "transfers.jsonl")):
        note(folder, "transfers.jsonl", {"key": key, "cents": cents})
    time.sleep(1.0)
    return f"{cents / 100:.2f} euros, {key}"


# --- the flow -----------------------------------------------------------------------------------------

graph = Graph("etl", Batch)


@graph.node(
    each=lambda batch: [{"shop": shop, "folder": batch.folder} for shop in batch.shops],
    limit=2,
    retry=Retry(attempts=4, backoff=0.05),  # ConnectionError is known to be worth another try
)
def extract(item: dict[str, str]) -> dict[str, Any]:
    """Runs once for each shop, two at a time; what they return is merged in the order of the shops."""
    sold = call_shop(item["folder"], item["shop"])
    return {"sales": [Sale(item["shop"], **sale) for sale in sold]}


@graph.node
def transform(batch: Batch) -> dict[str, Any]:
    totals: dict[str, int] = {}
    for sale in batch.sales:
        totals[sale.shop] = totals.get(sale.shop, 0) + sale.cents
    return {"totals": totals}


@graph.node
def load(batch: Batch) -> None:
    """To write the same file again does no harm: a node like this may run twice."""
    Path(batch.folder, "totals.json").write_text(json.dumps(batch.totals, indent=2) + "\n")


@graph.node(idempotent=False)  # never run twice unless somebody says so
def pay(batch: Batch, ctx: hf.BlockingContext) -> dict[str, Any]:
    cents = sum(batch.totals.values())
    print(f"paying {cents / 100:.2f} euros ...")
    return {"transfer": tell_bank(batch.folder, cents, ctx.idempotency_key("pay"))}


graph.chain(START, "extract", "transform", "load", "pay", END)
flow = graph.compile()

if __name__ == "__main__":
    run = hf.run(flow, Batch(), run_id="etl")
    print(run.status, run.state.totals, run.state.transfer)
