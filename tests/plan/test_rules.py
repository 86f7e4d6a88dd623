from __future__ import annotations

from typing import Any

import msgspec
import plan_shop as shop
import pytest

from holdfast import plan
from holdfast.core.decide import catches
from holdfast.core.events import Failure
from holdfast.core.rules import Asked, RuleFacts
from holdfast.errors import CodecError, GuardError, PolicyError, StateError

SHOP = shop.make_shop()
ANY = shop.anything()
SECRET = "4711-secret-0815"
FLOW = SHOP.plan(shop.ORDER)


def facts(outputs: dict[str, Any] | None = None, **more: Any) -> RuleFacts:
    values = {"goal": None, "context": {}, "policy": {}, "messages": [], "about": {}, **(FLOW.input or {})}
    values |= more.pop("values", {})
    return RuleFacts(values={**values, "outputs": outputs or {}}, now=1_700_000_000.0, **more)


def failure(kind: str = "fatal", type: str = "ValueError") -> Failure:
    return Failure(kind, type, SECRET)  # type: ignore[arg-type]


# --- edges ------------------------------------------------------------------------------------------------


def test_a_guard_opens_its_edge_and_says_what_it_was_based_on() -> None:
    chosen = FLOW.guards["charge"].choose(facts(), None)
    assert chosen.to == ["ship"]
    assert chosen.verdicts == {"ship": True, "pickup": False}
    assert chosen.reads == {"context.facts.country": "DE", "policy.countries": ["DE", "FR"]}


def test_an_edge_without_a_guard_is_taken_and_has_no_verdict() -> None:
    chosen = FLOW.guards["reserve"].choose(facts(), None)
    assert (chosen.to, chosen.verdicts, chosen.reads) == (["charge"], {}, {})


def test_the_last_task_has_edges_too_though_none_leads_on() -> None:
    assert FLOW.guards["tell"].choose(facts(), None).to == []


def test_a_fresh_output_is_read_before_the_recorded_ones() -> None:
    flow = ANY.plan(
        shop.tasks(
            "a", "b", "c", edges=[("a", "b"), ("b", "c", {"guard": "outputs.b.v == 2 && outputs.a.v == 1"})]
        )
    )
    assert flow.guards["b"].choose(facts({"a": {"v": 1}}, fresh={"b": {"v": 2}}), None).to == ["c"]


def test_after_a_failure_only_the_edges_that_take_it_are_taken() -> None:
    guards = FLOW.guards["charge"]
    assert guards.choose(facts(), failure("partial")).to == ["call"]
    assert guards.choose(facts(), failure("partial", "VerificationFailed")).to == ["call"]
    assert guards.choose(facts(), failure("fatal")).to == []


def test_the_guard_of_an_error_edge_reads_the_error() -> None:
    edges = [("a", "b", {"on_error": True, "guard": "error.type == 'Timeout'"})]
    guards = ANY.plan(shop.tasks("a", "b", edges=edges)).guards["a"]
    chosen = guards.choose(facts(), failure("recoverable", "Timeout"))
    assert (chosen.to, chosen.verdicts, chosen.reads) == (["b"], {"b": True}, {"error.type": "Timeout"})
    assert guards.choose(facts(), failure("recoverable", "Other")).to == []


@pytest.mark.parametrize(
    ("caught", "kind", "type", "is_taken"),
    [
        (("*",), "fatal", "ValueError", True),
        (("*",), "fatal", "PolicyDenied", False),
        (("*",), "fatal", "QuestionRefused", False),
        (("PolicyDenied",), "fatal", "PolicyDenied", True),
        (("*", "PolicyDenied"), "fatal", "PolicyDenied", True),
        (("partial",), "fatal", "ValueError", False),
        (("fatal",), "fatal", "ValueError", True),
        (("fatal",), "fatal", "PolicyDenied", False),
        (("partial", "*"), "partial", "BudgetExceeded", False),
        (("Declined",), "fatal", "Shop.Declined", True),
        (("Shop.Declined",), "fatal", "Shop.Declined", True),
    ],
)
def test_a_denial_must_be_named(caught: tuple[str, ...], kind: str, type: str, is_taken: bool) -> None:
    assert catches(caught, failure(kind, type)) is is_taken


def test_a_guard_that_errs_names_its_edge_and_never_the_data() -> None:
    flow = ANY.plan(shop.tasks("a", "b", edges=[("a", "b", {"guard": "outputs.a.v / outputs.a.w > 1"})]))
    with pytest.raises(GuardError, match="from 'a' to 'b' cannot be evaluated: it divides by zero"):
        flow.guards["a"].choose(facts({"a": {"v": 1, "w": 0}}), None)
    with pytest.raises(GuardError) as raised:
        flow.guards["a"].choose(facts({"a": {"v": SECRET, "w": SECRET}}), None)
    assert SECRET not in str(raised.value)


def test_a_guard_that_gives_neither_true_nor_false_errs() -> None:
    flow = ANY.plan(shop.tasks("a", "b", edges=[("a", "b", {"guard": "outputs.a.v"})]))
    with pytest.raises(GuardError, match="it does not give true or false"):
        flow.guards["a"].choose(facts({"a": {"v": "yes"}}), None)


# --- tasks ------------------------------------------------------------------------------------------------


def wiring(input: Any, *before: str, **task: Any) -> Any:
    edges = [(name, "z") for name in before]
    return (
        ANY.plan(
            shop.tasks(
                *before,
                {"id": "z", "input": input, **task},
                edges=edges,
                context={"a": {"b": [1, 2]}},
                goal="g",
            )
        )
        .nodes["z"]
        .wiring
    )


def test_an_input_is_filled_in_from_the_places_that_it_names() -> None:
    found = wiring(
        {
            "x": [{"$ref": "outputs.a.v"}, {"y": {"$ref": "context.a.b.1"}}],
            "goal": {"$ref": "goal"},
            "same": {"k": [1]},
        },
        "a",
    )
    values = {"context": {"a": {"b": [1, 2]}}, "goal": "g"}
    assert found.resolve(facts({"a": {"v": None}}, values=values)) == {
        "x": [None, {"y": 2}],
        "goal": "g",
        "same": {"k": [1]},
    }


def test_an_input_reads_what_has_just_ended() -> None:
    found = wiring({"x": {"$ref": "outputs.a.v"}}, "a")
    assert found.resolve(facts(fresh={"a": {"v": 1}})) == {"x": 1}


def test_a_whole_input_may_be_a_reference() -> None:
    assert wiring({"$ref": "outputs.a"}, "a").resolve(facts({"a": [1]})) == [1]


def test_a_default_takes_the_place_of_what_is_missing_and_not_of_null() -> None:
    found = wiring({"x": {"$ref": "outputs.a.v", "default": 7}}, "a")
    assert found.resolve(facts({"a": {"v": None}})) == {"x": None}
    assert found.resolve(facts({"a": {}})) == {"x": 7}
    assert found.resolve(facts({})) == {"x": 7}


def test_what_is_missing_without_a_default_is_named_with_its_path() -> None:
    with pytest.raises(
        StateError, match=r"node 'z': input\.x\[0\] refers to outputs\.a\.v, which does not exist"
    ) as raised:
        wiring({"x": [{"$ref": "outputs.a.v"}]}, "a").resolve(facts({"a": SECRET}))
    assert SECRET not in str(raised.value)


def test_a_task_gets_its_typed_input_and_gives_plain_output() -> None:
    charge = FLOW.nodes["charge"].wiring
    given = charge.decode(charge.resolve(facts()))
    assert given == shop.Charge("4711", 4200)
    assert charge.encode(shop.Charged("c", 1)) == {"id": "c", "cents": 1}
    assert charge.accept({"id": "c", "cents": 1}) == shop.Charged("c", 1)
    for wrong in (None, {"id": "c"}, shop.Charged("c", "1"), shop.Shipped("t")):  # type: ignore[arg-type]
        with pytest.raises(CodecError):
            charge.encode(wrong)
    assert (charge.capability, charge.title, charge.catches) == ("charge@2", "", ())
    assert FLOW.nodes["call"].wiring.catches == ("charge",)


def test_an_output_that_is_not_json_is_refused() -> None:
    with pytest.raises(CodecError, match=r"output\.x: JSON has no nan"):
        ANY.plan(shop.tasks("a")).nodes["a"].wiring.encode({"x": float("nan")})


def test_the_failure_that_led_to_a_task_is_part_of_its_input() -> None:
    given = FLOW.nodes["call"].wiring.resolve(facts(error=failure()))
    assert given == {"why": SECRET}


def test_a_plan_chooses_the_key_of_a_task() -> None:
    assert FLOW.nodes["charge"].wiring.key(facts()) == "charge-4711"
    assert FLOW.nodes["ship"].wiring.key(facts()) is None
    assert wiring({"n": 3}, idempotency_key="'k-' + string(input.n)").key(facts()) == "k-3"


@pytest.mark.parametrize("value", ["", 3, None, "x" * 201])
def test_a_key_is_a_text_of_some_length(value: Any) -> None:
    found = wiring({}, "a", idempotency_key="outputs.a.key")
    with pytest.raises(StateError, match="idempotency_key"):
        found.key(facts({"a": {"key": value}}))


# --- policies and verification ----------------------------------------------------------------------------


def test_a_policy_of_a_plan_allows_what_its_rule_is_true_for() -> None:
    rule = FLOW.nodes["ship"].pre[0].rule
    assert rule is not None
    allowed = rule(facts())
    assert (allowed.verdict, allowed.reads) == ("allow", {"context.facts.hour": 12})
    denied = rule(facts(values={"context": {"facts": {"hour": 21}}}))
    assert (denied.verdict, denied.reason) == ("deny", "no shipping at night")


def test_a_policy_of_a_plan_may_ask() -> None:
    given = shop.tasks(
        "a", policies=[{"id": "p", "stage": "post", "rule": "output.v < input.v", "otherwise": "ask"}]
    )
    flow = ANY.plan(given)
    rule = flow.nodes["a"].post[0].rule
    assert rule is not None
    assert rule(facts(input={"v": 3}, output={"v": 2})).verdict == "allow"
    asked = rule(facts(input={"v": 3}, output={"v": 4}))
    assert (asked.verdict, asked.reason) == ("ask", "p: output.v < input.v")


def test_a_rule_that_cannot_be_evaluated_fails_closed() -> None:
    rule = FLOW.nodes["ship"].pre[0].rule
    assert rule is not None
    for hour in (SECRET, [SECRET], None):
        with pytest.raises(PolicyError) as raised:
            rule(facts(values={"context": {"facts": {"hour": hour}}}))
        assert SECRET not in str(raised.value)


def test_a_verification_compares_output_and_input() -> None:
    check = FLOW.nodes["charge"].checks[0]
    asked = Asked(run_id="r", node="charge")
    found = check.check(asked, facts(input={"cents": 1}, output={"cents": 1}))
    assert (found.id, found.ok, found.reads) == ("amount", True, {"output.cents": 1, "input.cents": 1})
    found = check.check(asked, facts(input={"cents": 1}, output={"cents": 2}))
    assert (found.ok, found.reason) == (False, "output.cents == input.cents")
    with pytest.raises(PolicyError):
        check.check(asked, facts(input={}, output={}))


def test_only_what_a_rule_names_is_looked_at() -> None:
    class Untouchable(dict[str, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("the whole state was looked at")

        values = items = keys = __iter__  # type: ignore[assignment]

    values = {**(FLOW.input or {}), "outputs": Untouchable({"charge": {"id": "c", "cents": 1}})}
    seen = msgspec.structs.replace(facts(), values=values)
    assert FLOW.guards["charge"].choose(seen, None).to == ["ship"]
    assert FLOW.nodes["ship"].wiring.resolve(seen) == {"order": "4711", "paid": "c"}


def test_the_names_that_plans_need_are_public() -> None:
    assert plan.allow().verdict == "allow"
    assert plan.ask("?").verdict == "ask"
    assert plan.deny("no").verdict == "deny"
