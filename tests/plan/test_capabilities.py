from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from dataclasses import dataclass
from typing import Any

import jsonschema
import plan_shop as shop
import pytest

import holdfast as hf
from holdfast import plan
from holdfast.core.rules import Asked
from holdfast.errors import CapabilityMissing, GraphError, PolicyError
from holdfast.plan import judges
from holdfast.testing import ManualClock

SHOP = shop.make_shop()
STORES = itertools.count()


@dataclass
class Numbers:
    values: list[int]


# --- registering ------------------------------------------------------------------------------------------


def total(given: Numbers) -> int:
    return sum(given.values)


def untyped(given) -> int:
    return 1


def unreturned(given: Numbers):
    return 1


def unstorable(given: Numbers) -> threading.Lock: ...


def alone() -> int:
    return 1


async def chunks(given: Numbers) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("name", "fn", "options", "told"),
    [
        ("total", total, {}, "must be named as name@version, as in 'refund@2'"),
        ("", total, {}, "must be named as name@version"),
        ("a b@1", total, {}, "must be named as name@version"),
        ("x@1", untyped, {}, "does not declare the type of its input; annotate it: given: …"),
        ("x@1", unreturned, {}, "does not declare the type of what it returns; annotate it: -> …"),
        ("x@1", unstorable, {}, "cannot be kept as JSON"),
        ("x@1", alone, {}, "is called as fn(input) or fn(input, ctx)"),
        ("x@1", chunks, {}, "yields; pass the chunks to ctx.emit(…)"),
        ("x@1", total, {"timeout": -1}, "capability 'x@1'"),
        ("x@1", total, {"approve": lambda given: "?"}, "has a function as approve"),
        ("x@1", lambda given: 1, {"executor": "process"}, "another process cannot find its function"),
    ],
)
def test_a_capability_that_cannot_be_called_is_refused_where_it_is_registered(
    name: str, fn: Any, options: dict[str, Any], told: str
) -> None:
    source = plan.Capabilities("s")
    with pytest.raises(GraphError) as raised:
        source.capability(name, **options)(fn)
    assert told in str(raised.value)
    assert source.nodes == {}


def test_a_capability_is_registered_once() -> None:
    source = plan.Capabilities("s")
    source.capability("total@1")(total)
    source.capability("total@2")(total)
    with pytest.raises(
        GraphError, match="'total@1' is registered twice; give the second one another version"
    ):
        source.capability("total@1")(total)


def test_a_source_has_a_name_like_a_flow() -> None:
    with pytest.raises(GraphError):
        plan.Capabilities("no name")


async def slow(asked: Asked) -> plan.Verdict:
    return plan.allow()


def test_a_policy_and_a_verifier_are_plain_functions() -> None:
    source = plan.Capabilities("s")
    for register in (source.policy, source.verifier):
        with pytest.raises(GraphError, match="is an async def; write a plain, quick def"):
            register("slow")(slow)
        for wrong in (lambda: True, lambda asked, ctx: True, "large"):
            with pytest.raises(GraphError, match="is not a function of one argument"):
                register("wrong")(wrong)
        register("one")(lambda asked: plan.allow())
        with pytest.raises(GraphError, match="'one' is registered twice"):
            register("one")(lambda asked: plan.allow())
    with pytest.raises(GraphError, match="use 'pre' or 'post'"):
        source.policy("two", stage="mid")(lambda asked: plan.allow())


# --- flows ------------------------------------------------------------------------------------------------


def test_a_plan_becomes_a_flow_that_brings_its_input_and_budget() -> None:
    flow = SHOP.plan(shop.ORDER)
    assert flow.name == "shop"
    assert flow.input == {
        "goal": shop.ORDER["goal"],
        "context": shop.ORDER["context"],
        "policy": shop.ORDER["policy"],
        "outputs": {},
        "messages": [],
        "about": {name: shop.ORDER[name] for name in ("title", "rationale", "alternatives")},
    }
    assert flow.options == {"budget": {"usd": 5.0, "tokens": 100_000, "active_s": 600.0}}
    assert flow.source is SHOP


def test_the_definition_holds_the_plan_and_nothing_of_one_run() -> None:
    definition = SHOP.plan(shop.ORDER).definition
    assert set(definition.plan) == {"holdfast", "tasks", "edges", "policies"}
    other = shop.order(
        context={"facts": {"order": "1", "cents": 2, "country": "FR", "hour": 1}}, goal="other", title="t"
    )
    assert SHOP.plan(other).fingerprint == SHOP.plan(shop.ORDER).fingerprint
    pairs = [(edge.source, edge.target) for edge in definition.edges]
    assert pairs[0] == ("START", "reserve")
    assert pairs[-2:] == [("call", "END"), ("tell", "END")]
    charge = definition.nodes["charge"]
    assert (charge.join, charge.timeout_s, charge.judged) == ("every", 30.0, ["verify"])
    assert charge.on_error == ["VerificationFailed", "partial"]
    assert charge.retry["on"] == ["ConnectionError", "recoverable"]
    assert (definition.nodes["tell"].join, definition.nodes["ship"].judged) == ("all", ["pre"])


def test_a_stored_plan_makes_the_same_flow_without_the_document() -> None:
    flow = SHOP.plan(shop.ORDER)
    again = shop.make_shop().flow(flow.definition, flow.fingerprint)
    assert again.fingerprint == flow.fingerprint
    assert again.definition == flow.definition
    assert (again.input, again.options) == (None, {})
    assert again.nodes["charge"].retry == flow.nodes["charge"].retry
    assert again.nodes["charge"].retry.named == ("ConnectionError", "recoverable")


def test_a_flow_of_a_stored_plan_is_remembered_until_something_is_registered() -> None:
    source = shop.make_shop()
    flow = source.plan(shop.ORDER)
    made = source.flow(flow.definition, flow.fingerprint)
    assert source.made(flow.fingerprint) is made
    assert source.flow(flow.definition, flow.fingerprint) is made
    source.policy("new", capability="ship@1", stage="post")(lambda asked: plan.allow())
    assert source.made(flow.fingerprint) is None
    assert source.flow(flow.definition, flow.fingerprint).definition.nodes["ship"].judged == ["pre", "post"]


def test_every_capability_that_is_missing_is_named() -> None:
    definition = SHOP.plan(shop.ORDER).definition
    source = plan.Capabilities("shop")
    source.capability("charge@1")(total)
    with pytest.raises(CapabilityMissing) as raised:
        source.flow(definition, "f")
    assert raised.value.missing == ("call@1", "charge@2", "hold@1", "mail@1", "reserve@1", "ship@1")
    assert "'charge@2'" in str(raised.value)


def test_a_stored_plan_of_a_thousand_tasks_becomes_a_flow_in_time() -> None:
    source = shop.anything()
    names = [f"t{number}" for number in range(1_000)]
    edges = [(one, other, {"guard": f"outputs.{one}.v > 1"}) for one, other in itertools.pairwise(names)]
    flow = source.plan(shop.tasks(*names, edges=edges))
    spent = []
    for number in range(5):
        began = time.thread_time()
        source.flow(flow.definition, f"f{number}")
        spent.append(time.thread_time() - began)
    assert min(spent) < 0.05  # 25 ms on a machine of its own


def test_the_schema_has_the_inputs_of_the_capabilities() -> None:
    schema = SHOP.schema()
    json.dumps(schema)
    charge = schema["$defs"]["Task:charge@2"]["properties"]
    assert charge["capability"] == {"const": "charge@2"}
    fields = charge["input"]["anyOf"][0]["properties"]
    assert fields["cents"] == {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Reference"}]}
    assert {"$ref": "#/$defs/Task:charge@2"} in schema["properties"]["tasks"]["items"]["anyOf"]


def test_the_schema_accepts_the_worked_plan_and_not_one_with_other_inputs() -> None:
    validator = jsonschema.Draft202012Validator(SHOP.schema())
    assert list(validator.iter_errors(shop.ORDER)) == []
    for path, wrong in (("cents", "much"), ("cent", 1)):
        given = shop.order()
        given["tasks"][1]["input"][path] = wrong
        assert list(validator.iter_errors(given))


# --- runs -------------------------------------------------------------------------------------------------


def run(flow: hf.Flow[Any], **options: Any) -> hf.Run[Any]:
    async def executed() -> hf.Run[Any]:
        async with hf.Engine(f"memory://capabilities-{next(STORES)}", inline=True) as engine:
            return await engine.run(flow, run_id="r1", **options)

    return asyncio.run(executed())


def test_a_plan_runs_along_the_edges_that_its_guards_open() -> None:
    ended = run(SHOP.plan(shop.ORDER))
    assert ended.status == "completed"
    assert ended.state.outputs == {
        "reserve": {"id": "r-4711"},
        "charge": {"id": "charge-4711", "cents": 4200},
        "ship": {"tracking": "t-charge-4711"},
        "tell": None,
    }
    assert {name: node.status for name, node in ended.nodes.items() if node.status != "completed"} == {
        "pickup": "skipped",
        "call": "skipped",
    }


def test_a_capability_may_run_in_a_process_of_its_own() -> None:
    source = plan.Capabilities("s")
    source.capability("total@1", executor="process")(total)
    flow = source.plan(shop.tasks({"id": "a", "capability": "total@1", "input": {"values": [1, 2, 3]}}))

    async def executed() -> Any:
        async with hf.Engine(f"memory://capabilities-{next(STORES)}") as engine:
            return await engine.run(flow, run_id="r1")

    assert asyncio.run(executed()).state.outputs == {"a": 6}


# --- rules in Python --------------------------------------------------------------------------------------


def test_a_rule_applies_to_the_capabilities_that_its_pattern_matches() -> None:
    source = shop.make_shop()
    source.policy("first", capability="charge@*")(lambda asked: plan.allow())
    source.policy("after", stage="post", capability="*")(lambda asked: plan.allow())
    source.verifier("seen", capability="ship@1")(lambda asked: True)
    nodes = source.plan(shop.ORDER).nodes
    assert [policy.id for policy in nodes["charge"].pre] == ["first"]
    assert [policy.id for policy in nodes["ship"].pre] == ["nights"]
    assert [check.id for check in nodes["ship"].checks] == ["seen"]
    assert all([policy.id for policy in node.post] == ["after"] for node in nodes.values())
    assert nodes["charge"].options.judged == ["pre", "verify", "post"]


@pytest.mark.parametrize(
    ("told", "ok", "reason"), [(True, True, ""), (False, False, ""), ("too late", False, "too late")]
)
def test_a_verifier_accepts_or_says_why_not(told: Any, ok: bool, reason: str) -> None:
    check = judges.make_verifier("v", lambda asked: told)
    found = check.check(Asked(run_id="r", node="a"), None)
    assert (found.id, found.ok, found.reason) == ("v", ok, reason)


@pytest.mark.parametrize("told", [None, "", 1, plan.allow()])
def test_a_verifier_that_says_something_else_fails_closed(told: Any) -> None:
    check = judges.make_verifier("v", lambda asked: told)
    with pytest.raises(PolicyError, match="return True, or False, or the reason why not"):
        check.check(Asked(run_id="r", node="a"), None)


def raising(asked: Asked) -> Any:
    raise RuntimeError("4711-secret-0815")


def test_a_rule_that_raises_or_returns_nothing_denies_and_its_data_is_not_quoted() -> None:
    for fn in (raising, lambda asked: None):
        source = shop.anything()
        source.policy("p")(fn)
        with pytest.raises(hf.RunFailed) as raised:
            run(source.plan(shop.tasks("a")))
        assert "policy 'p'" in str(raised.value)
        assert "4711-secret" not in str(raised.value)
        assert raised.value.run.nodes["a"].status == "failed"


def test_a_rule_that_takes_a_second_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(judges, "_clock", clock)

    def slow_one(asked: Asked) -> plan.Verdict:
        clock.advance(1.5)
        return plan.allow()

    policy = judges.make_python_policy("slow", "pre", slow_one)
    assert policy.judge(Asked(run_id="r", node="charge")).verdict == "allow"
    assert "policy 'slow' took 1.5 s for 'charge'" in caplog.text
