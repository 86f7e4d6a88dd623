from __future__ import annotations

import itertools
import time
from typing import Any

import plan_shop as shop
import pytest

from holdfast import plan

SHOP = shop.make_shop()
ANY = shop.anything()
SECRET = "4711-secret-0815"


def problems(given: dict[str, Any], of: plan.Capabilities = ANY) -> dict[str, str]:
    found = of.check(given)
    assert len({problem.path for problem in found}) == len(found), found
    return {problem.path: problem.message for problem in found}


def only(given: dict[str, Any], of: plan.Capabilities = ANY) -> tuple[str, str]:
    found = problems(given, of)
    assert len(found) == 1, found
    return next(iter(found.items()))


def test_the_worked_plan_has_no_problems() -> None:
    assert SHOP.check(shop.ORDER) == []


def test_twelve_mistakes_are_twelve_problems_with_twelve_paths() -> None:
    given = shop.order()
    given["tasks"][0]["capability"] = "reserve@7"
    given["tasks"][1]["input"]["cents"] = "much"
    given["tasks"][1]["retry"] = {"attempts": 0}
    given["tasks"][1]["verification"][0]["rule"] = "output.cent == input.cents"
    given["tasks"][2]["input"]["order"] = {"$ref": "context.facts.ordr"}
    given["tasks"][2]["input"]["paid"] = {"$ref": "outputs.charge.receipt"}
    given["tasks"][5]["input"]["tracking"] = {"$ref": "outputs.ship.tracking"}
    given["edges"][1]["guard"] = "context.facts.country in"
    given["edges"][2]["guard"] = "size(policy.countries)"
    given["edges"][4]["to"] = "tel"
    given["edges"].append({"from": "reserve", "to": "charge"})
    given["policies"][0]["capability"] = "shp@1"
    assert set(problems(given, SHOP)) == {
        "tasks[0].capability",
        "tasks[1].input.cents",
        "tasks[1].retry.attempts",
        "tasks[1].verification[0].rule",
        "tasks[2].input.order",
        "tasks[2].input.paid",
        "tasks[5].input.tracking",
        "edges[1].guard",
        "edges[2].guard",
        "edges[4].to",
        "edges[6]",
        "policies[0].capability",
    }
    with pytest.raises(plan.PlanError) as raised:
        SHOP.plan(given)
    assert len(raised.value.problems) == 12
    assert "tasks[2].input.order: it refers to context.facts.ordr" in str(raised.value)


# --- names ------------------------------------------------------------------------------------------------


def test_a_task_that_has_a_problem_of_its_own_is_still_known_to_edges() -> None:
    path, _ = only(shop.tasks("a", {"id": "b", "timeout": 3}, edges=[("a", "b")]))
    assert path == "tasks[1].timeout"


@pytest.mark.parametrize(
    ("capability", "told"),
    [
        ("charge@1", "has no 'charge@1', but 'charge@2'; name one of these versions"),
        ("chrge@2", "did you mean 'charge@2'?"),
        ("nothing", "register it, or name another one"),
    ],
)
def test_an_unknown_capability_is_reported_with_what_is_near(capability: str, told: str) -> None:
    path, message = only(shop.tasks({"id": "a", "capability": capability}), SHOP)
    assert path == "tasks[0].capability"
    assert told in message


@pytest.mark.parametrize("name", ["", "a.b", "-a", "a b", "START", "END", "x" * 129, "~a"])
def test_an_id_that_cannot_name_a_task_is_reported(name: str) -> None:
    assert only(shop.tasks(name))[0] == "tasks[0].id"


def test_an_id_that_is_taken_is_reported() -> None:
    path, message = only(shop.tasks("a", "b", "a"))
    assert (path, "also the id of tasks[0]" in message) == ("tasks[2].id", True)


# --- edges ------------------------------------------------------------------------------------------------


def test_a_cycle_is_one_problem() -> None:
    path, message = only(
        shop.tasks("a", "b", "c", "d", edges=[("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")])
    )
    assert path == "edges[2]"
    assert "closes the circle b -> c -> b" in message


def test_an_edge_to_itself_and_a_second_edge_between_one_pair_are_reported() -> None:
    found = problems(shop.tasks("a", "b", edges=[("a", "a"), ("a", "b"), ("a", "b", {"on_error": True})]))
    assert set(found) == {"edges[0]", "edges[2]"}
    assert "edges[1] leads from 'a' to 'b' too" in found["edges[2]"]


def test_ten_thousand_tasks_in_a_row_do_not_exhaust_the_stack() -> None:
    names = [f"t{number}" for number in range(10_000)]
    edges = [*itertools.pairwise(names), (names[-1], names[0])]
    path, message = only(shop.tasks(*names, edges=edges))
    assert path == "edges[9999]"
    assert "t0 -> t1 -> t2 -> t3 -> t4 -> t5 -> … -> t0" in message


@pytest.mark.parametrize(
    ("on_error", "path"),
    [
        ([], "edges[0].on_error"),
        (["2x"], "edges[0].on_error[0]"),
        (["fatal", "http.Gone"], "edges[0].on_error[1]"),
    ],
)
def test_an_error_edge_names_failures(on_error: list[str], path: str) -> None:
    assert path in problems(shop.tasks("a", "b", edges=[("a", "b", {"on_error": on_error})]))


# --- tasks that can never run --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("yes", "no"),
    [
        ("context.a", "!context.a"),
        ("context.a in policy.b", "!(context.a in policy.b)"),
        ("context.a == 1", "context.a != 1"),
        ("context.a < 1", "context.a >= 1"),
        ("context.a > 1", "!(!(context.a <= 1))"),
    ],
)
def test_a_task_behind_a_guard_and_its_negation_can_never_run(yes: str, no: str) -> None:
    data = {"context": {"a": True}, "policy": {"b": []}}
    edges = [("a", "b", {"guard": yes}), ("a", "c", {"guard": no}), ("b", "d"), ("c", "d"), ("d", "e")]
    path, message = only(shop.tasks("a", "b", "c", "d", "e", edges=edges, **data))
    assert path == "tasks[3]"
    assert "it can never run: the edges to it exclude each other (from 'b' and 'c')" in message
    some = shop.tasks("a", "b", "c", {"id": "d", "join": "some"}, "e", edges=edges, **data)
    assert problems(some) == {}


def test_the_same_guards_on_two_sources_may_both_be_true() -> None:
    edges = [("a", "c", {"guard": "context.x"}), ("b", "c", {"guard": "!context.x"})]
    assert problems(shop.tasks("a", "b", "c", edges=edges, context={"x": True})) == {}


def test_a_task_behind_the_success_and_the_failure_of_another_can_never_run() -> None:
    edges = [("a", "b"), ("a", "c", {"on_error": True}), ("b", "d"), ("c", "d")]
    assert only(shop.tasks("a", "b", "c", "d", edges=edges))[0] == "tasks[3]"


def test_a_guard_that_is_always_false_is_reported_once() -> None:
    path, message = only(shop.tasks("a", "b", "c", edges=[("a", "b", {"guard": "false"}), ("b", "c")]))
    assert (path, "never taken" in message) == ("edges[0].guard", True)


# --- references -------------------------------------------------------------------------------------------


def reads(reference: Any, *before: Any, edges: list[Any], join: str = "every", **more: Any) -> dict[str, str]:
    return problems(
        shop.tasks(*before, {"id": "z", "join": join, "input": {"x": reference}}, edges=edges, **more)
    )


def test_every_source_is_certain_for_a_task_that_joins_every() -> None:
    edges = [("a", "b"), ("b", "z"), ("c", "z")]
    for name in ("a", "b", "c"):
        assert reads({"$ref": f"outputs.{name}.v"}, "a", "b", "c", edges=edges) == {}


def test_only_what_all_sources_share_is_certain_for_a_task_that_joins_some() -> None:
    edges = [("a", "b"), ("a", "c"), ("b", "z"), ("c", "z")]
    assert reads({"$ref": "outputs.a"}, "a", "b", "c", edges=edges, join="some") == {}
    told = reads({"$ref": "outputs.b"}, "a", "b", "c", edges=edges, join="some")
    assert "'b' is not certain to succeed before; give a default" in told["tasks[3].input.x"]
    assert reads({"$ref": "outputs.b", "default": 0}, "a", "b", "c", edges=edges, join="some") == {}


def test_the_source_of_an_error_edge_is_not_certain() -> None:
    edges = [("a", "b"), ("b", "z", {"on_error": True})]
    assert reads({"$ref": "outputs.a"}, "a", "b", edges=edges) == {}
    assert "tasks[2].input.x" in reads({"$ref": "outputs.b"}, "a", "b", edges=edges)


def test_a_task_that_may_fail_without_harm_is_not_certain() -> None:
    safe = {"id": "a", "capability": "safe@1"}
    assert "tasks[1].input.x" in reads({"$ref": "outputs.a"}, safe, edges=[("a", "z")])
    assert reads({"$ref": "outputs.a", "default": 1}, safe, edges=[("a", "z")]) == {}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("z", "that is the output of this task itself; refer to a task that ends before it"),
        ("later", "it is not decided before 'z' begins"),
        ("beside", "it is not decided before 'z' begins"),
        ("latr", "there is no task 'latr'; did you mean 'later'?"),
    ],
)
def test_a_default_does_not_help_where_the_time_would_decide(name: str, told: str) -> None:
    edges = [("z", "later")]
    found = reads({"$ref": f"outputs.{name}", "default": 1}, "later", "beside", edges=edges)
    assert told in found["tasks[2].input.x"]


def test_a_reference_to_data_of_the_plan_is_looked_up_there() -> None:
    data = {"context": {"facts": {"a": [1]}}, "policy": {}, "goal": "x"}
    for good in ("context.facts.a", "context.facts.a.0", "goal", "policy"):
        assert reads({"$ref": good}, edges=[], **data) == {}
    for bad in ("context.facts.b", "context.facts.a.1", "policy.x", "goal.x"):
        assert "has no such value" in reads({"$ref": bad}, edges=[], **data)["tasks[0].input.x"]
        assert reads({"$ref": bad, "default": None}, edges=[], **data) == {}


@pytest.mark.parametrize(
    "reference", [3, "", "outputs", "input.x", "context..a", "now", "outputs.a.", ["context"]]
)
def test_a_reference_that_is_not_a_path_is_reported(reference: Any) -> None:
    assert "it is not a path" in reads({"$ref": reference}, edges=[])["tasks[0].input.x"]


def test_a_reference_has_nothing_beside_its_default() -> None:
    assert "only default is allowed" in reads({"$ref": "goal", "else": 1}, edges=[])["tasks[0].input.x"]


def test_an_error_is_certain_only_behind_error_edges() -> None:
    caught = ("a", "z", {"on_error": True})
    message = {"$ref": "error.message"}
    assert reads(message, "a", edges=[caught]) == {}
    assert reads(message, "a", "b", edges=[caught, ("b", "z")]) == {}
    assert (
        "without a failure"
        in reads(message, "a", "b", edges=[caught, ("b", "z")], join="some")["tasks[2].input.x"]
    )
    assert "without a failure" in reads(message, "a", edges=[("a", "z")])["tasks[1].input.x"]
    assert (
        "only type, kind, message" in reads({"$ref": "error.trace"}, "a", edges=[caught])["tasks[1].input.x"]
    )


# --- types ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("input", "path", "told"),
    [
        ({"order": "1", "cents": "much"}, "tasks[0].input.cents", "expected int, got str"),
        ({"order": "1"}, "tasks[0].input.cents", "it is missing, and Charge has no default"),
        (
            {"order": "1", "cent": 3},
            "tasks[0].input.cent",
            "Charge has no field 'cent'; did you mean 'cents'?",
        ),
        (
            {"order": "1", "cents": {"$ref": "context.x", "default": "?"}},
            "tasks[0].input.cents.default",
            "got str",
        ),
        ([1], "tasks[0].input", "expected object, got array"),
    ],
)
def test_a_literal_that_does_not_fit_the_input_type_is_reported(input: Any, path: str, told: str) -> None:
    found = only(shop.tasks({"id": "a", "capability": "charge@2", "input": input}), SHOP)
    assert found[0] == path
    assert told in found[1]


def test_items_of_lists_are_looked_at_one_by_one() -> None:
    input = {"order": "1", "paid": "2", "to": ["a", {"$ref": "context.x"}, 3]}
    found = problems(
        shop.tasks({"id": "a", "capability": "ship@1", "input": input}, context={"x": "b"}), SHOP
    )
    assert set(found) == {"tasks[0].input.to[2]"}


def test_a_field_that_the_output_of_the_producer_lacks_is_reported() -> None:
    given = shop.order()
    given["tasks"][2]["input"]["paid"] = {"$ref": "outputs.charge.idd"}
    path, message = only(given, SHOP)
    assert path == "tasks[2].input.paid"
    assert "the output of 'charge@2' has no 'idd'; did you mean 'id'?" in message


# --- expressions ------------------------------------------------------------------------------------------


def guarded(guard: str, **more: Any) -> dict[str, Any]:
    return shop.tasks("a", "b", "c", edges=[("a", "b", {"guard": guard, **more})], context={"x": 1})


@pytest.mark.parametrize(
    ("guard", "told"),
    [
        ("x" * 501, "501 characters"),
        ("context.x +", "does not parse"),
        ("1", "gives an integer"),
        ("outputs.c.v > 1", "it is not decided when 'a' ends"),
        ("outputs.d.v > 1", "there is no task 'd'"),
        ("has(outputs.c.v)", "it is not decided when 'a' ends"),
        ("context.y > 1", "the context of the plan has no such value"),
        ("error.kind == 'fatal'", "reads error, which is not available here"),
        ("input.x == 1", "reads input, which is not available here"),
        ("__class__ == 1", "the name '__class__' at character 1 is unknown"),
    ],
)
def test_a_guard_is_checked(guard: str, told: str) -> None:
    path, message = only(guarded(guard))
    assert path == "edges[0].guard"
    assert told in message


@pytest.mark.parametrize(
    "guard", ["outputs.a.v > 1", "has(context.y) && context.y > 1", "now > timestamp('2030-01-01T00:00:00Z')"]
)
def test_a_guard_reads_what_is_certain_when_its_source_ends(guard: str) -> None:
    assert problems(guarded(guard)) == {}


def test_the_guard_of_an_error_edge_reads_the_error_and_not_the_output() -> None:
    assert problems(guarded("error.type == 'Timeout'", on_error=True)) == {}
    assert "'a' is not certain to succeed before" in only(guarded("outputs.a.v == 1", on_error=True))[1]


def test_an_earlier_task_that_may_be_skipped_is_read_after_asking() -> None:
    edges = [
        ("a", "b", {"guard": "context.x == 1"}),
        ("a", "c"),
        ("b", "d"),
        ("c", "d"),
        ("d", "e", {"guard": ""}),
    ]
    given = shop.tasks("a", "b", "c", {"id": "d", "join": "some"}, "e", edges=edges, context={"x": 1})
    given["edges"][4]["guard"] = "outputs.b.ok"
    assert "ask first: has(…)" in only(given)[1]
    given["edges"][4]["guard"] = "has(outputs.b) && outputs.b.ok"
    assert problems(given) == {}


def test_rules_of_a_task_are_checked() -> None:
    given = shop.order()
    given["tasks"][1]["idempotency_key"] = "string(now)"
    given["tasks"][1]["verification"] = [{"id": "a", "rule": "1 + 1"}, {"id": "a", "rule": "output.x == 1"}]
    given["tasks"][2]["idempotency_key"] = "outputs.pickup.id"
    found = problems(given, SHOP)
    assert set(found) == {
        "tasks[1].idempotency_key", "tasks[1].verification[0].rule", "tasks[1].verification[1].id",
        "tasks[1].verification[1].rule", "tasks[2].idempotency_key",
    }  # fmt: skip
    assert "reads now, which is not available here" in found["tasks[1].idempotency_key"]


def test_policies_are_checked() -> None:
    rule = {"id": "p", "capability": "charge@*", "rule": "input.cents < 5"}
    assert problems(shop.order(policies=[rule]), SHOP) == {}
    found = problems(
        shop.order(
            policies=[
                rule,
                rule,
                {**rule, "id": "q", "rule": "output.cents < 5"},
                {**rule, "id": "r", "rule": "input.x"},
            ]
        ),
        SHOP,
    )
    assert set(found) == {"policies[1].id", "policies[2].rule", "policies[3].rule"}
    assert "the input of 'charge@2' has no 'x'" in found["policies[3].rule"]


@pytest.mark.parametrize(("name", "value"), [("usd", 1e15), ("usd", 0), ("tokens", -1), ("active_s", 0.0)])
def test_a_budget_is_above_zero(name: str, value: float) -> None:
    assert only(shop.order(budget={name: value}), SHOP)[0] == f"budget.{name}"
    assert only(shop.order(budget={}), SHOP)[0] == "budget"


@pytest.mark.parametrize(("field", "value"), [("timeout_s", 0), ("timeout_s", -1)])
def test_limits_of_a_task_are_checked(field: str, value: Any) -> None:
    assert only(shop.tasks({"id": "a", field: value}))[0] == f"tasks[0].{field}"


def test_no_message_quotes_data_of_the_plan() -> None:
    given = shop.order()
    given["context"]["facts"] = {"order": SECRET, "cents": SECRET, "country": SECRET, "hour": 3}
    given["policy"] = {"x": SECRET}
    found = problems(given, SHOP)
    assert found
    assert all(SECRET not in message for message in found.values())


def test_a_thousand_tasks_with_three_hundred_guards_are_checked_in_time() -> None:
    given = shop.order(policies=[])
    given["tasks"] = [
        {"id": f"t{number}", "capability": "charge@2",
         "input": {"order": {"$ref": "context.facts.order"}, "cents": {"$ref": f"outputs.t{number - 1}.cents"} if number else 1}}
        for number in range(1_000)
    ]  # fmt: skip
    given["edges"] = [
        {"from": f"t{number}", "to": f"t{number + 1}",
         **({"guard": f"outputs.t{number}.cents > {number}"} if number < 300 else {})}
        for number in range(999)
    ]  # fmt: skip
    took = []
    for _ in range(3):  # the quickest counts, because a busy machine makes any of them slower
        began = time.thread_time()
        assert SHOP.check(given) == []
        took.append(time.thread_time() - began)
    assert min(took) < 0.3


def test_a_plan_full_of_mistakes_is_refused_in_time() -> None:
    names = [f"task{number}" for number in range(3_000)]
    given = shop.tasks(*names, edges=[(f"tsk{number}", f"taks{number}") for number in range(3_000)])
    for task in given["tasks"]:
        task |= {"capability": "an@1", "inptu": {}, "tmieout_s": 3}
    began = time.thread_time()
    assert len(ANY.check(given)) == 5 * 3_000
    assert time.thread_time() - began < 3


def test_a_plan_has_a_limited_number_of_expressions() -> None:
    given = shop.tasks(
        {"id": "a", "verification": [{"id": str(number), "rule": "true"} for number in range(10_001)]}
    )
    assert "the plan has 10,001 expressions" in only(given)[1]
