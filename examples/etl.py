"""A batch job: it reads the sales of six shops in parallel over connections that sometimes drop, adds them up, and pays once.

    holdfast run examples/etl.py --run-id etl
    holdfast show etl

Kill the process while it reads, and resume the run: shops that were read are not read again, and failed attempts still count.
Kill it while it pays, in the second after `paying ...` is printed: Holdfast cannot know whether the money was sent. So the
resumed run asks what to do. Look at the transfers of the bank (batch/transfers.jsonl), and answer:

    holdfast resume etl examples/etl.py
    holdfast answer etl pay retry                            # or skip, or abort
    holdfast resume etl examples/etl.py

`retry` is harmless here, because the bank recognises the payment by its key.
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
BAD_LINES = {"Bergen": 1, "Essen": 2}  # how often the connection to each shop drops before it works


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
    folder: str = "batch"  # a folder that stands in for the real shops and the bank


# --- simulated shops and bank -------------------------------------------------------------------------


def note(folder: str, book: str, entry: Any) -> None:
    """Append a line to a file of a simulated shop or bank."""
    Path(folder).mkdir(exist_ok=True)
    with Path(folder, book).open("a") as file:
        file.write(json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())


def book(folder: str, name: str) -> list[Any]:
    file = Path(folder, name)
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def call_shop(folder: str, shop: str) -> list[dict[str, Any]]:
    """Read the sales of a shop. The first calls of some shops fail: calls.jsonl counts the calls, also across restarts."""
    calls = sum(call == shop for call in book(folder, "calls.jsonl"))
    note(folder, "calls.jsonl", shop)
    time.sleep(0.1)
    if calls < BAD_LINES.get(shop, 0):
        raise ConnectionError(f"the connection to {shop} dropped")
    return [{"item": item, "cents": 100 * len(shop) + number} for number, item in enumerate(("tea", "salt"))]


def tell_bank(folder: str, cents: int, key: str) -> str:
    """Ask the bank for a transfer. A second call with the same key transfers nothing. The bank confirms after a second."""
    if not any(transfer["key"] == key for transfer in book(folder, "transfers.jsonl")):
        note(folder, "transfers.jsonl", {"key": key, "cents": cents})
    time.sleep(1.0)
    return f"{cents / 100:.2f} euros, {key}"


# --- the flow -----------------------------------------------------------------------------------------

graph = Graph("etl", Batch)


@graph.node(
    each=lambda batch: [{"shop": shop, "folder": batch.folder} for shop in batch.shops],
    limit=2,
    retry=Retry(attempts=4, backoff=0.05),  # ConnectionError is retried by default
)
def extract(item: dict[str, str]) -> dict[str, Any]:
    """Read one shop. The node runs once for each shop, two at a time; results are merged in the order of the shops."""
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
    """Write the totals. Writing the same file again does no harm, so this node may run twice."""
    Path(batch.folder, "totals.json").write_text(json.dumps(batch.totals, indent=2) + "\n")


@graph.node(idempotent=False)  # after a crash in this node, the run asks the operator
def pay(batch: Batch, ctx: hf.BlockingContext) -> dict[str, Any]:
    cents = sum(batch.totals.values())
    print(f"paying {cents / 100:.2f} euros ...")
    return {"transfer": tell_bank(batch.folder, cents, ctx.idempotency_key("pay"))}


graph.chain(START, "extract", "transform", "load", "pay", END)
flow = graph.compile()

if __name__ == "__main__":
    run = hf.run(flow, Batch(), run_id="etl")
    print(run.status, run.state.totals, run.state.transfer)
