from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time

import hostile_expressions as hostile
import pytest

from holdfast.plan import expressions
from holdfast.plan.expressions import TEXT, check, evaluate

COUNT = int(os.environ.get("HOLDFAST_EXPRESSIONS", "500"))
SECRET = "4711-secret-0815"


def paths(text: str) -> list[str]:
    found = check(text, wants=("BOOL", "DYN", "STRING", "INT"))
    assert not found.problem, found.problem
    return [str(path) for path in found.paths]


# --- paths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("context.facts.country in policy.countries", ["context.facts.country", "policy.countries"]),
        ("outputs['charge-1'].id == 'outputs.x'", ["outputs['charge-1'].id"]),
        ("has(context.vip) && context.vip.since > 3", ["has(context.vip)", "context.vip.since"]),
        ("context.items.all(item, item.cents > policy.least)", ["context.items", "policy.least"]),
        ("context.items.exists(context, context > 1)", ["context.items"]),
        ("context.items.exists(goal, .goal.x > goal)", ["context.items", "goal.x"]),
        ("context.items[0].cents > 1", ["context.items"]),
        ("context[policy.key] == 1", ["context", "policy.key"]),
        ("context.a == 1 && context.a.b == 2", ["context.a"]),
        ("has(context.a) && context.a == 2", ["has(context.a)", "context.a"]),
        ("now > timestamp('2026-01-01T00:00:00Z')", ["now"]),
        ("context.`a-b` == 1", ["context['a-b']"]),
        ("'context.x' == \"it's outputs.y\"", []),
    ],
)
def test_an_expression_names_the_places_that_it_reads(text: str, read: list[str]) -> None:
    assert paths(text) == read


def test_only_the_places_that_are_named_are_handed_over_and_recorded() -> None:
    found = evaluate(
        "context.facts.country == 'DE' && !has(outputs.ship.tracking)",
        {
            "context": {"facts": {"country": "DE", "huge": "x" * 1_000_000}},
            "outputs": {"ship": {}, "other": [0] * 9_999},
        },
    )
    assert (found.value, found.problem) == (True, "")
    assert found.reads == {"context.facts.country": "DE", "has(outputs.ship.tracking)": False}


def test_the_values_of_the_run_are_never_changed() -> None:
    context = {"a": {"b": {"c": 1}}, "d": [1]}
    evaluate(
        "has(context.a) && context.a.b.c == 1 && context.d == [1] && !has(context.a.x)", {"context": context}
    )
    assert context == {"a": {"b": {"c": 1}}, "d": [1]}


def test_an_expression_that_asks_first_may_read_what_is_not_there() -> None:
    text = "has(context.vip) && context.vip.since > 3"
    assert evaluate(text, {"context": {}}).value is False
    assert evaluate(text, {"context": {"vip": {"since": 4}}}).value is True


def test_now_is_an_instant() -> None:
    found = evaluate(
        "now.getHours() == 13 && now < timestamp('2030-01-01T00:00:00Z')", {"now": 1_700_055_000.5}
    )
    assert (found.value, found.reads) == (True, {"now": 1_700_055_000.5})


def test_whole_and_broken_numbers_compare() -> None:
    assert evaluate("context.a < 1.5 && context.b == 2", {"context": {"a": 1, "b": 2.0}}).value is True


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x" * 501, "501 characters; at most 500"),
        ("context.l.all(x, context.l.exists(y, x == y))", "a macro inside a macro"),
        ("context.l.map(x, x).all(y, y > 1)", "a macro inside a macro"),
        ("1 + 1", "gives an integer; write an expression that gives true or false"),
        ("context.n + 1", "gives an integer"),
        ("__class__", "the name '__class__' at character 1 is unknown"),
        ("conteXt.a == 1", "did you mean 'context'?"),
        ("context.a ==", "does not parse at character"),
        ("2**70 > 1", "does not parse at character 3"),
        ("1180591620717411303424 > 1", "the integer at character 1 is beyond 64 bits"),
        ("'x' + 1 == 'x1'", "does not accept values of these types"),
        ("outputs == {}", "name the task: outputs.TASK"),
        ("outputs[context.x].ok", "name the task: outputs.TASK"),
        ("has(context['x'])", "has(context.facts.vip)"),
        ("context.s.matches(policy.pattern)", "as a short literal"),
        ("google.protobuf.Int32Value{value: 1} == 1", "protocol buffers"),
        ("", "it is empty"),
    ],
)
def test_an_expression_is_refused_with_the_fault_and_the_place(text: str, told: str) -> None:
    assert told in check(text).problem


def test_a_root_that_is_not_available_is_refused() -> None:
    assert (
        "reads error, which is not available here"
        in check("error.kind == 'fatal'", roots=("context",)).problem
    )


def test_usual_expressions_are_within_the_bounds() -> None:
    for text in (
        "context.items.all(item, item.sku.matches('^[A-Z]{2}-[0-9]{4}$') && item.cents > 0 && item.cents < policy.max)",
        "context.items.map(item, item.kind) == policy.kinds || context.items.exists_one(item, item.kind in policy.kinds)",
        "context.mail.matches('^[^@]+@[^@]+[.][a-z]{2,20}$') && context.mail.endsWith(policy.domain)",
        " && ".join(f"context.facts.field{number} != 'x'" for number in range(14)),
    ):
        assert not check(text).problem, text


def test_an_idempotency_key_is_a_text() -> None:
    assert not check("'charge-' + context.order", wants=TEXT).problem
    assert "write an expression that gives a text" in check("1 + 1", wants=TEXT).problem


@pytest.mark.parametrize(
    ("text", "context", "told"),
    [
        ("context.a / context.b > 1", {"a": 1, "b": 0}, "it divides by zero"),
        ("context.a % context.b > 1", {"a": 1, "b": 0}, "it divides by zero"),
        ("context.a > 1", {"a": 2**70}, "context.a holds an integer beyond 64 bits"),
        ("context.a + 1 > 1", {"a": 2**63 - 1}, "beyond its range"),
        ("context.a > 1", {"a": SECRET}, "does not accept values of these types"),
        ("context.a.b > 1", {"a": SECRET}, "reads context.a.b, which does not exist"),
        ("context.a == 1", {}, "reads context.a, which does not exist; ask first: has(context.a)"),
        ("context.l[7] == 1", {"l": [SECRET]}, "an item of a list that is not there"),
        ("context.a == ''", {"a": SECRET * 400}, "larger than 4096 bytes"),
        ("context.a == context.b", {"a": "é" * 1_100, "b": "é" * 1_100}, "context.b makes"),
        ("context.l.all(x, x > 1)", {"l": list(range(101))}, "more than 100 items"),
        ("context.l.all(x, x > 'a')", {"l": {str(key): 1 for key in range(101)}}, "more than 100 items"),
        ("int(context.a) > 1", {"a": SECRET}, "cannot be evaluated"),
        ("timestamp(context.a) > now", {"a": SECRET}, "cannot be evaluated"),
        ("context[context.a] == 1", {"a": SECRET}, "a key that does not exist"),
        ("context.a.matches('(')", {"a": SECRET}, "regular expression is not valid"),
    ],
)
def test_a_fault_of_an_evaluation_names_places_and_never_quotes_data(
    text: str, context: dict, told: str
) -> None:
    found = evaluate(text, {"context": context, "now": 0.0})
    assert told in found.problem
    assert SECRET not in found.problem
    assert found.value is None


def test_without_the_library_the_message_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['cel_expr_python'] = None\n"
        "from holdfast.plan import expressions\n"
        "try: expressions.check('true')\n"
        "except Exception as fault: print(type(fault).__name__, fault)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "SettingError" in ended.stdout
    assert "pip install 'holdfast[plans]'" in ended.stdout


# --- bounds -----------------------------------------------------------------------------------------------


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1024 if sys.platform != "darwin" else 1024 * 1024
    )


def measured(text: str, roots: dict) -> tuple[float, float]:
    """Seconds of processor time, and megabytes by which the most memory that the process has ever used has grown."""
    expressions._compiled.cache_clear()
    memory, began = peak_mb(), time.thread_time()
    check(text)
    evaluate(text, roots)
    return time.thread_time() - began, peak_mb() - memory


@pytest.mark.parametrize("index", range(len(hostile.BY_HAND)))
def test_a_hostile_expression_is_refused_or_ends_at_once(index: int) -> None:
    measured("context.a == 1", {"context": {"a": 1}})  # the library is loaded
    seconds, megabytes = measured(*hostile.BY_HAND[index])
    assert seconds < 0.1
    assert megabytes < 50


def test_no_generated_expression_takes_long_or_much_memory() -> None:
    """500 expressions; HOLDFAST_EXPRESSIONS=10000 for more."""
    seed = int(os.environ.get("HOLDFAST_SEED", "21"))
    print(f"HOLDFAST_SEED={seed}")
    luck = random.Random(seed)
    measured("context.a == 1", {"context": {"a": 1}})
    evaluated = 0
    for _ in range(COUNT):
        text, roots = hostile.generate(luck)
        seconds, megabytes = measured(text, roots)
        assert seconds < 0.1, (text, seconds)
        assert megabytes < 50, (text, megabytes)
        evaluated += not evaluate(text, roots).problem
    assert evaluated > COUNT / 4, "most of the generated expressions are refused before they are evaluated"
