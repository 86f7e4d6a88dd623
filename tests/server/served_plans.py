"""Capabilities of a shop, and plans over them, for the tests of the server and of the page."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import holdfast as hf
from holdfast import plan

shop = plan.Capabilities("shop", description="Delivers orders.")


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


@shop.capability("charge@2", idempotent=False, description="Charges a card.")
async def charge(given: Charge, ctx: hf.Context) -> Charged:
    ctx.cost(usd=0.25, tokens=1200)
    if given.cents == 13:
        raise hf.Fatal("card declined")
    return Charged(f"c-{given.order}", given.cents + (1 if given.cents == 777 else 0))


@shop.capability("ship@1")
async def ship(given: Parcel) -> Sent:
    return Sent(f"T{given.order}")


@shop.capability("hold@1")
async def hold(given: Parcel) -> None: ...


@shop.capability("mail@1")
async def mail(given: Mail) -> None: ...


@shop.policy("large", stage="pre", capability="charge@*")
def large(asked: plan.Asked) -> plan.Verdict:
    return plan.allow("a small amount") if asked.input["cents"] < 10_000 else plan.ask("Charge that much?")


@shop.policy("insured", stage="post", capability="ship@*")
def insured(asked: plan.Asked) -> plan.Verdict:
    return plan.ask("Insure this parcel?") if asked.output["tracking"] == "T4712" else plan.allow()


_ORDER = {"$ref": "context.facts.order"}
ORDER: dict[str, Any] = {
    "holdfast": "plan/1",
    "title": "Deliver order 4711",
    "rationale": "cheapest carrier first",
    "goal": {"text": "the customer has the goods"},
    "context": {"facts": {"order": "4711", "cents": 4200, "country": "DE"}},
    "policy": {"countries": ["DE", "FR"]},
    "budget": {"usd": 5.0, "tokens": 10_000},
    "tasks": [
        {
            "id": "charge",
            "capability": "charge@2",
            "input": {"order": _ORDER, "cents": {"$ref": "context.facts.cents"}},
            "verification": [{"id": "amount", "rule": "output.cents == input.cents"}],
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
        {"from": "charge", "to": "apologise", "on_error": True},
        {"from": "ship", "to": "tell"},
        {"from": "pickup", "to": "tell"},
    ],
    "policies": [
        {"id": "known", "capability": "ship@1", "rule": "context.facts.country != ''", "reason": "where to?"}
    ],
}


def order(**facts: Any) -> dict[str, Any]:
    """Return the plan of an order with these facts."""
    made = deepcopy(ORDER)
    made["context"]["facts"] |= facts
    return made


BROKEN: dict[str, Any] = {
    "holdfast": "plan/1",
    "tasks": [
        {"id": "charge", "capability": "charge@3", "input": {}},
        {"id": "ship", "capability": "ship@1", "input": {"order": 7}},
        {"id": "tell", "capability": "mail@1", "input": {"tracking": {"$ref": "outputs.ship.trakking"}}},
    ],
    "edges": [{"from": "ship", "to": "tell", "guard": "1 +"}, {"from": "ship", "to": "nowhere"}],
}
"""A plan with five problems."""
