"""Capabilities that the tests of plans use, and the plan of `shared/plans.md`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import holdfast as hf
from holdfast import plan


@dataclass
class Order:
    order: str


@dataclass
class Reserved:
    id: str


@dataclass
class Charge:
    order: str
    cents: int


@dataclass
class Charged:
    id: str
    cents: int


@dataclass
class Ship:
    order: str
    paid: str
    to: list[str] = field(default_factory=list)


@dataclass
class Shipped:
    tracking: str


@dataclass
class Why:
    why: str


@dataclass
class Mail:
    tracking: str | None


def make_shop(name: str = "shop") -> plan.Capabilities:
    shop = plan.Capabilities(name)

    @shop.capability("reserve@1")
    def reserve(given: Order) -> Reserved:
        return Reserved(f"r-{given.order}")

    @shop.capability("charge@2", idempotent=False)
    def charge(given: Charge, ctx: hf.BlockingContext) -> Charged:
        return Charged(ctx.idempotency_key(), given.cents)

    @shop.capability("ship@1")
    async def ship(given: Ship) -> Shipped:
        return Shipped(f"t-{given.paid}")

    @shop.capability("hold@1")
    def hold(given: Order) -> None: ...

    @shop.capability("call@1")
    def call(given: Why) -> None: ...

    @shop.capability("mail@1")
    def mail(given: Mail) -> None: ...

    @shop.capability("guess@1", safe_to_fail=True)
    def guess(given: Any) -> dict[str, Any]:
        return {"given": given}

    return shop


ORDER: dict[str, Any] = {
    "holdfast": "plan/1",
    "title": "Deliver order 4711",
    "rationale": "cheapest carrier first",
    "alternatives": ["pick it up"],
    "goal": {"text": "the customer has the goods", "acceptance": ["shipped or refunded"]},
    "context": {
        "facts": {"order": "4711", "cents": 4200, "country": "DE", "hour": 12},
        "sources": [{"uri": "crm:4711"}],
    },
    "policy": {"countries": ["DE", "FR"], "max_cents": 500_000},
    "budget": {"usd": 5.0, "tokens": 100_000, "active_s": 600},
    "tasks": [
        {"id": "reserve", "capability": "reserve@1", "input": {"order": {"$ref": "context.facts.order"}}},
        {
            "id": "charge",
            "capability": "charge@2",
            "input": {"order": {"$ref": "context.facts.order"}, "cents": {"$ref": "context.facts.cents"}},
            "idempotency_key": "'charge-' + context.facts.order",
            "retry": {"attempts": 5, "backoff": 2, "on": ["ConnectionError", "recoverable"]},
            "timeout_s": 30,
            "verification": [{"id": "amount", "rule": "output.cents == input.cents"}],
        },
        {
            "id": "ship",
            "capability": "ship@1",
            "input": {"order": {"$ref": "context.facts.order"}, "paid": {"$ref": "outputs.charge.id"}},
        },
        {"id": "pickup", "capability": "hold@1", "input": {"order": {"$ref": "context.facts.order"}}},
        {"id": "call", "capability": "call@1", "input": {"why": {"$ref": "error.message"}}},
        {
            "id": "tell",
            "capability": "mail@1",
            "join": "some",
            "input": {"tracking": {"$ref": "outputs.ship.tracking", "default": None}},
        },
    ],
    "edges": [
        {"from": "reserve", "to": "charge"},
        {"from": "charge", "to": "ship", "guard": "context.facts.country in policy.countries"},
        {"from": "charge", "to": "pickup", "guard": "!(context.facts.country in policy.countries)"},
        {"from": "charge", "to": "call", "on_error": ["VerificationFailed", "partial"]},
        {"from": "ship", "to": "tell"},
        {"from": "pickup", "to": "tell"},
    ],
    "policies": [
        {
            "id": "nights",
            "stage": "pre",
            "capability": "ship@1",
            "rule": "context.facts.hour < 20",
            "otherwise": "deny",
            "reason": "no shipping at night",
        }
    ],
}


def order(**changes: Any) -> dict[str, Any]:
    """A copy of the order, with other values for fields of the document."""
    return {**copy.deepcopy(ORDER), **changes}


def tasks(*given: dict[str, Any] | str, edges: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    """A small plan: tasks are given as fields, or as an id alone (of a task with any input and output)."""
    listed = [{"id": one} if isinstance(one, str) else one for one in given]
    return {
        "holdfast": "plan/1",
        "tasks": [{"capability": "any@1", **one} for one in listed],
        "edges": [
            {"from": one[0], "to": one[1], **(one[2] if len(one) > 2 else {})}
            if isinstance(one, tuple)
            else one
            for one in edges or []
        ],
        **more,
    }


def anything() -> plan.Capabilities:
    """Capabilities for plans whose structure is what matters: `any@1` takes and returns anything."""
    shop = plan.Capabilities("any")

    @shop.capability("any@1")
    def run(given: Any) -> Any:
        return given

    @shop.capability("safe@1", safe_to_fail=True)
    def safe(given: Any) -> Any:
        return given

    return shop
