"""Plans that are crashed, simulated, killed and recorded: one for each way in which a plan decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import holdfast as hf
from holdfast import plan
from holdfast.core.graph import Flow
from holdfast.testing.clock import STARTS_AT

works = plan.Capabilities("works")


@works.capability("make@1")
async def make(given: dict[str, Any]) -> dict[str, Any]:
    """Return what it is given."""
    return dict(given)


@works.capability("pay@1", idempotent=False)
async def pay(given: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    """Pay once: the receiver knows the key of a payment that it has made."""
    bank = ctx.resources.get("bank")
    if bank is not None:
        bank.send(given["cents"], key=ctx.idempotency_key())
    return {"paid": given["cents"]}


@works.capability("break@1")
async def break_(given: dict[str, Any]) -> dict[str, Any]:
    """Fail for good."""
    raise ValueError("as planned")


@works.capability("draft@1", retry=hf.Retry(attempts=5, backoff=30.0, factor=1.0, jitter=0.0))
async def draft(given: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    """Return a good draft from a certain time on."""
    return {"quality": 3 if ctx.now().timestamp() >= given["from"] else 1}


@works.capability("spend@1")
async def spend(given: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    """Report a cost."""
    ctx.cost(usd=given["usd"])
    return {"usd": given["usd"]}


@works.policy("large", stage="pre", capability="pay@*")
def large(asked: plan.Asked) -> plan.Verdict:
    """Ask about large payments, and deny huge ones."""
    cents = asked.input["cents"]
    if cents > 100_000:
        return plan.deny("too much", reads={"cents": cents})
    return plan.ask(f"Pay {cents}?", reads={"cents": cents}) if cents > 1_000 else plan.allow()


def document(
    tasks: dict[str, Any], edges: list[tuple[str, str] | tuple[str, str, dict[str, Any]]], **more: Any
) -> dict[str, Any]:
    """Return a plan document: `tasks` are capability and other fields by id, `edges` pairs with optional fields."""
    listed = [
        {"id": name, **({"capability": told} if isinstance(told, str) else told)}
        for name, told in tasks.items()
    ]
    arrows = [{"from": edge[0], "to": edge[1], **(edge[2] if len(edge) > 2 else {})} for edge in edges]
    return {"holdfast": "plan/1", "tasks": listed, "edges": arrows, **more}


def guarded() -> dict[str, Any]:
    """Two branches, of which one is taken, and tasks after the other one, which are skipped."""
    here = "context.facts.country in policy.countries"
    return document(
        {
            "look": {"capability": "make@1", "input": {"n": {"$ref": "context.facts.n"}}},
            "ship": "make@1",
            "hold": "make@1",
            "store": "make@1",
            "label": "make@1",
            "mail": {"capability": "make@1", "join": "some"},
        },
        [
            ("look", "ship", {"guard": here}),
            ("look", "hold", {"guard": f"!({here})"}),
            ("hold", "store"),
            ("store", "mail"),
            ("ship", "label", {"guard": "outputs.look.n > 3"}),
            ("label", "mail"),
        ],
        context={"facts": {"country": "DE", "n": 5}},
        policy={"countries": ["DE", "FR"]},
    )


def joined() -> dict[str, Any]:
    """Four branches that meet: by `some` where one of them was not taken, by `every` where all were."""
    return document(
        {
            "start": "make@1",
            "a": {"capability": "make@1", "input": {"n": 1}},
            "b": "make@1",
            "c": "make@1",
            "some": {
                "capability": "make@1",
                "join": "some",
                "input": {"n": {"$ref": "outputs.a.n", "default": 0}},
            },
            "every": "make@1",
            "never": "make@1",
        },
        [
            ("start", "a"),
            ("start", "b", {"guard": "context.facts.n > 9"}),
            ("start", "c"),
            ("a", "some"),
            ("b", "some"),
            ("a", "every"),
            ("c", "every"),
            ("b", "never"),
            ("c", "never"),
        ],
        context={"facts": {"n": 5}},
    )


def caught() -> dict[str, Any]:
    """A failure that an error edge takes, with a guard on another error edge; the ordinary way is skipped."""
    return document(
        {
            "try": "break@1",
            "after": "make@1",
            "repair": {"capability": "make@1", "input": {"why": {"$ref": "error.message"}}},
            "alarm": "make@1",
            "end": {"capability": "make@1", "join": "some"},
        },
        [
            ("try", "after"),
            ("try", "repair", {"on_error": ["ValueError"]}),
            ("try", "alarm", {"on_error": True, "guard": "context.facts.loud"}),
            ("after", "end"),
            ("repair", "end"),
        ],
        context={"facts": {"loud": False}},
    )


def asked() -> dict[str, Any]:
    """A policy that asks before a payment, and one of the plan that asks about what it returned."""
    return document(
        {
            "pay": {"capability": "pay@1", "input": {"cents": {"$ref": "context.facts.cents"}}},
            "mail": {"capability": "make@1", "input": {"paid": {"$ref": "outputs.pay.paid"}}},
        },
        [("pay", "mail", {"guard": "outputs.pay.paid > 0"})],
        policies=[
            {
                "id": "look again",
                "stage": "post",
                "capability": "pay@1",
                "rule": "output.paid < policy.max",
                "otherwise": "ask",
                "reason": "Is this payment right?",
            }
        ],
        context={"facts": {"cents": 5_000}},
        policy={"max": 2_000},
    )


def verified() -> dict[str, Any]:
    """A verification that fails twice and is retried, and one that fails for good and is handled."""
    return document(
        {
            "draft": {
                "capability": "draft@1",
                "input": {"from": STARTS_AT + 50},
                "retry": {"on": ["VerificationFailed"]},
                "verification": [{"id": "good", "rule": "output.quality >= 3", "reason": "too poor"}],
            },
            "check": {
                "capability": "make@1",
                "input": {"n": 1},
                "verification": [{"id": "two", "rule": "output.n == 2"}],
            },
            "use": "make@1",
            "mend": "make@1",
        },
        [
            ("draft", "check"),
            ("check", "use"),
            ("check", "mend", {"on_error": ["VerificationFailed"]}),
        ],
    )


def layered() -> dict[str, Any]:
    """Three layers with a guard and an error edge, within a budget."""
    return document(
        {
            "one": {"capability": "spend@1", "input": {"usd": 0.5}},
            "two": {"capability": "spend@1", "input": {"usd": 0.25}},
            "bad": "break@1",
            "three": {"capability": "make@1", "join": "some"},
            "four": "make@1",
            "five": "make@1",
        },
        [
            ("one", "three", {"guard": "outputs.one.usd < 1.0"}),
            ("two", "three"),
            ("two", "four", {"guard": "outputs.two.usd > 1.0"}),
            ("bad", "four"),
            ("bad", "five", {"on_error": True}),
        ],
        budget={"usd": 5.0},
    )


def spent() -> dict[str, Any]:
    """Three tasks in a row, for the last of which no budget is left."""
    task = {"capability": "spend@1", "input": {"usd": 0.5}}
    return document(
        {"one": task, "two": task, "three": task}, [("one", "two"), ("two", "three")], budget={"usd": 1.0}
    )


def denied() -> dict[str, Any]:
    """A payment that a policy denies: an edge that names denials takes it, one for all failures does not."""
    return document(
        {
            "pay": {"capability": "pay@1", "input": {"cents": 500_000}},
            "mail": "make@1",
            "tell": {"capability": "make@1", "input": {"why": {"$ref": "error.type"}}},
            "other": "make@1",
        },
        [
            ("pay", "mail"),
            ("pay", "tell", {"on_error": ["PolicyDenied"]}),
            ("pay", "other", {"on_error": True}),
        ],
    )


class Proved(NamedTuple):
    """A plan, and what its run needs."""

    document: Callable[[], dict[str, Any]]
    answers: dict[str, Any] | None = None
    limits: dict[str, Any] = {}  # noqa: RUF012 - not changed
    """`schedule` and `budget` of the run."""
    ends: str = "completed"


PLANS = {
    "guarded": Proved(guarded),
    "joined": Proved(joined),
    "caught": Proved(caught),
    "asked": Proved(asked, {"pay": ["approve", "approve"]}),
    "verified": Proved(verified),
    "layered": Proved(layered, limits={"schedule": "layered"}),
    "spent": Proved(spent, ends="failed"),
    "denied": Proved(denied),
}


def flow(made: dict[str, Any]) -> Flow[Any]:
    """Return a plan as a flow."""
    return works.plan(made)
