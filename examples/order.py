"""A plan as data: `order.json` says what is to be done, and this file has the capabilities that plans may call.

    python examples/order.py                 # reserves the goods, and waits: a policy asks before it charges 125.00
    holdfast answer order charge approve
    python examples/order.py                 # charges, verifies the amount, ships, and sends a mail

Kill the process at any moment and run the last command again. The plan is stored with the run: each guard and policy that was
decided stays decided, and `holdfast resume order examples/order.py` needs only this file. Nothing is charged twice: the plan
chooses the key by which the bank recognises a repetition.

    holdfast show order                      # what ran, what was skipped, and why
    holdfast ledger order --verify           # every decision with its reason, and whether the record was altered

Change the country in `order.json` to "US" and start another run (`run_id`): the goods are then kept for pickup.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast import plan

FOLDER = Path("order")  # a folder that stands in for the warehouse, the bank and the carrier
PLAN = Path(__file__).with_name("order.json")


@dataclass
class Order:
    order: str


@dataclass
class Charge:
    order: str
    cents: int


@dataclass
class Charged:
    receipt: str
    cents: int


@dataclass
class Shipment:
    order: str
    receipt: str


@dataclass
class Shipped:
    tracking: str


@dataclass
class Mail:
    order: str
    tracking: str | None


def note(book: str, entry: Any) -> None:
    """Append a line to a file of the simulated world."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / book).open("a") as file:
        file.write(json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())
    time.sleep(0.3)


def read(book: str) -> list[Any]:
    file = FOLDER / book
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# --- what plans may call ------------------------------------------------------------------------------

shop = plan.Capabilities("shop", description="reserve, charge and ship orders")


@shop.capability("reserve@1")
def reserve(given: Order) -> None:
    """Put the goods of an order aside."""
    note("reservations.jsonl", given.order)


@shop.capability("charge@2")
def charge(given: Charge, ctx: hf.BlockingContext) -> Charged:
    """Charge the card of the customer. The bank charges once per key."""
    key = ctx.idempotency_key()
    if not any(charged["key"] == key for charged in read("charges.jsonl")):
        note("charges.jsonl", {"key": key, "cents": given.cents})
    charged = next(charged for charged in read("charges.jsonl") if charged["key"] == key)
    return Charged(receipt=f"receipt for {given.order}", cents=charged["cents"])


@shop.capability("ship@1")
def ship(given: Shipment) -> Shipped:
    """Hand the parcel to the carrier."""
    note("parcels.jsonl", given.order)
    return Shipped(tracking=f"parcel-{given.order}")


@shop.capability("hold@1")
def hold(given: Order) -> None:
    """Keep the goods for pickup."""
    note("pickups.jsonl", given.order)


@shop.capability("mail@1")
def mail(given: Mail) -> None:
    """Tell the customer."""
    print(
        f"order {given.order} is "
        + (f"on its way: {given.tracking}" if given.tracking else "ready for pickup")
    )


# --- what holds for every plan, whoever wrote it ------------------------------------------------------


@shop.policy("large", stage="pre", capability="charge@*")
def large(asked: plan.Asked) -> plan.Verdict:
    cents = asked.input["cents"]
    return plan.allow() if cents < 10_000 else plan.ask(f"Charge {cents / 100:.2f}?")


if __name__ == "__main__":
    run = hf.run(shop.plan(plan.read(PLAN)), run_id="order")
    if run.status == "waiting":
        print("waiting for: holdfast answer order charge approve")
    else:
        print(run.status, run.state.outputs["charge"])
