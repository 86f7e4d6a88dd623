"""The capabilities and the plans of the golden histories of plans. Their logs are kept for ever, so this file is not changed
together with the plans of other tests.
"""

from __future__ import annotations

from typing import Any

import holdfast as hf
from holdfast import Flow, plan

desk = plan.Capabilities("desk", description="orders")


@desk.capability("note@1")
async def note(given: dict[str, Any]) -> dict[str, Any]:
    return dict(given)


@desk.capability("charge@2", idempotent=False)
async def charge(given: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    ctx.cost(usd=0.5, tokens=10)
    return {"cents": given["cents"], "id": "c-1"}


@desk.capability("ship@1")
async def ship(given: dict[str, Any]) -> dict[str, Any]:
    raise ConnectionRefusedError("no carrier")


@desk.capability("draft@1", retry=hf.Retry(attempts=3, backoff=60.0, factor=1.0, jitter=0.0))
async def draft(given: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    return {"words": 40 * ctx.attempt}


@desk.policy("large", stage="pre", capability="charge@*")
def large(asked: plan.Asked) -> plan.Verdict:
    cents = asked.input["cents"]
    if cents >= 100_000:
        return plan.deny("more than this desk may charge", reads={"cents": cents})
    return plan.allow() if cents < 1_000 else plan.ask(f"Charge {cents}?", reads={"cents": cents})


@desk.verifier("known", capability="charge@*")
def known(asked: plan.Asked) -> bool | str:
    return True if asked.output["id"].startswith("c-") else "not an id of ours"


def _plan(tasks: list[dict[str, Any]], edges: list[dict[str, Any]], **more: Any) -> Flow[Any]:
    return desk.plan({"holdfast": "plan/1", "tasks": tasks, "edges": edges, **more})


def _task(name: str, capability: str = "note@1", **more: Any) -> dict[str, Any]:
    return {"id": name, "capability": capability, **more}


def _edge(source: str, target: str, **more: Any) -> dict[str, Any]:
    return {"from": source, "to": target, **more}


def order_plan() -> Flow[Any]:
    """Guards of which one cannot be evaluated at first, tasks that are skipped, and a join of what is left."""
    return _plan(
        [
            _task("reserve", input={"order": {"$ref": "context.facts.order"}}),
            _task("send"),
            _task("hold"),
            _task("keep"),
            _task("tell", join="some", input={"kept": {"$ref": "outputs.keep", "default": None}}),
        ],
        [
            _edge("reserve", "send", guard="context.facts.country in policy.countries"),
            _edge("reserve", "hold", guard="!(context.facts.country in policy.countries)"),
            _edge("hold", "keep"),
            _edge("send", "tell", guard="100 / context.facts.parts > 3"),
            _edge("keep", "tell"),
        ],
        title="Deliver order 4711",
        goal={"text": "the customer has the goods"},
        context={"facts": {"order": "4711", "country": "DE", "parts": 0}},
        policy={"countries": ["DE", "FR"]},
    )


def payment_plan(cents: int) -> Flow[Any]:
    """A policy that asks before the charge, a verification, and a policy of the plan that asks about what it returned."""
    return _plan(
        [
            _task(
                "charge",
                "charge@2",
                input={"cents": {"$ref": "context.facts.cents"}},
                title="Charge the customer",
            ),
            _task("tell", input={"id": {"$ref": "outputs.charge.id"}}),
        ],
        [_edge("charge", "tell")],
        policies=[
            {
                "id": "look again",
                "stage": "post",
                "capability": "charge@2",
                "rule": "output.cents < 2000",
                "otherwise": "ask",
                "reason": "Is the charge right?",
            }
        ],
        context={"facts": {"cents": cents}},
        budget={"usd": 5.0},
    )


def draft_plan() -> Flow[Any]:
    """A verification that fails and is retried."""
    rule = {"id": "long", "rule": "output.words >= 80", "reason": "too short"}
    return _plan([_task("draft", "draft@1", verification=[rule], retry={"on": ["VerificationFailed"]})], [])


def carrier_plan() -> Flow[Any]:
    """A failure that an error edge takes, and one whose guard says no."""
    return _plan(
        [
            _task("ship", "ship@1"),
            _task("mail"),
            _task("call", input={"why": {"$ref": "error.type"}}),
            _task("alarm"),
        ],
        [
            _edge("ship", "mail"),
            _edge("ship", "call", on_error=["ConnectionRefusedError", "partial"]),
            _edge("ship", "alarm", on_error=True, guard="context.facts.loud"),
        ],
        context={"facts": {"loud": False}},
    )
