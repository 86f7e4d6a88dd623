"""Plans of deliveries: a guard, a policy that asks before a card is charged, one that asks about a parcel that was handed over,
a verification that fails, and an error edge that takes this.

`python delivery.py STORE` makes a run for each of them.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import holdfast as hf
from holdfast import plan

delivery = plan.Capabilities("delivery", description="Delivers orders by plans.")


@dataclass
class Charge:
    order: str
    cents: int


@dataclass
class Charged:
    id: str
    cents: int


@dataclass
class Parcel:
    order: str
    paid: str | None = None


@dataclass
class Sent:
    tracking: str


@dataclass
class Mail:
    tracking: str | None = None
    why: str | None = None


@delivery.capability("charge@2", idempotent=False)
async def charge(given: Charge, ctx: hf.Context) -> Charged:
    """Charges a card."""
    ctx.cost(usd=0.31, tokens=2400)
    return Charged(f"ch-{given.order}", given.cents + (100 if given.order == "4904" else 0))


@delivery.capability("ship@1", idempotent=False)
async def ship(given: Parcel) -> Sent:
    """Hands a parcel over to a carrier."""
    return Sent(f"T-{given.order}")


@delivery.capability("hold@1")
async def hold(given: Parcel) -> None:
    """Keeps a parcel for the customer."""


@delivery.capability("mail@1")
async def mail(given: Mail) -> None:
    """Writes to the customer."""


@delivery.policy("large-amounts", stage="pre", capability="charge@*")
def judge_amount(asked: plan.Asked) -> plan.Verdict:
    cents = asked.input["cents"]
    if cents < 50_000:
        return plan.allow("below 500 euros")
    return plan.ask(f"Charge {cents / 100:.2f} euros?")


@delivery.policy("insurance", stage="post", capability="ship@*")
def judge_parcel(asked: plan.Asked) -> plan.Verdict:
    return (
        plan.ask("Send this parcel without insurance?")
        if asked.output["tracking"] == "T-4902"
        else plan.allow()
    )


_ORDER = {"$ref": "context.facts.order"}
ORDER: dict[str, Any] = {
    "holdfast": "plan/1",
    "title": "Deliver an order",
    "goal": {"text": "the customer has the goods"},
    "context": {"facts": {"order": "4901", "cents": 4200, "country": "DE"}},
    "policy": {"countries": ["DE", "FR"]},
    "budget": {"usd": 2.0, "tokens": 3000},
    "tasks": [
        {
            "id": "charge",
            "title": "Charge the card",
            "capability": "charge@2",
            "input": {"order": _ORDER, "cents": {"$ref": "context.facts.cents"}},
            "verification": [
                {
                    "id": "amount",
                    "rule": "output.cents == input.cents",
                    "reason": "another amount was charged",
                }
            ],
        },
        {
            "id": "ship",
            "capability": "ship@1",
            "input": {"order": _ORDER, "paid": {"$ref": "outputs.charge.id"}},
        },
        {"id": "pickup", "capability": "hold@1", "input": {"order": _ORDER}},
        {"id": "apologise", "capability": "mail@1", "input": {"why": {"$ref": "error.message"}}},
        {
            "id": "tell",
            "capability": "mail@1",
            "join": "some",
            "input": {"tracking": {"$ref": "outputs.ship.tracking", "default": None}},
        },
    ],
    "edges": [
        {"from": "charge", "to": "ship", "guard": "context.facts.country in policy.countries"},
        {"from": "charge", "to": "pickup", "guard": "!(context.facts.country in policy.countries)"},
        {"from": "charge", "to": "apologise", "on_error": ["VerificationFailed"]},
        {"from": "ship", "to": "tell"},
        {"from": "pickup", "to": "tell"},
    ],
    "policies": [
        {
            "id": "address",
            "capability": "ship@1",
            "rule": "context.facts.country != ''",
            "reason": "the country is not known",
        }
    ],
}


def order(**facts: Any) -> hf.Flow[Any]:
    """Return the plan of an order with these facts, as a flow."""
    made = deepcopy(ORDER)
    made["context"]["facts"] |= facts
    made["title"] = f"Deliver order {made['context']['facts']['order']}"
    return delivery.plan(made)


def make_runs(store: str) -> None:
    """Make a run for each thing that can happen."""
    for facts in (
        {"order": "4904"},
        {"order": "4903", "cents": 89_000},
        {"order": "4902"},
        {"order": "4901"},
    ):
        with suppress(hf.RunFailed):
            hf.run(order(**facts), run_id=f"order-{facts['order']}", store=store)


if __name__ == "__main__":
    make_runs(sys.argv[1])
