from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import plan_shop as shop
import pytest

from holdfast import plan
from holdfast.plan import document


def refused(source: Any) -> list[str]:
    with pytest.raises(plan.PlanError) as raised:
        plan.read(source)
    return [str(problem) for problem in raised.value.problems]


def parsed(source: Any) -> tuple[document.Document, list[str]]:
    problems: list[plan.Problem] = []
    found = document.parse(plan.read(source), problems)
    return found, [str(problem) for problem in problems]


def test_a_plan_is_read_from_a_file_a_text_bytes_and_a_dict(tmp_path: Path) -> None:
    text = json.dumps(shop.ORDER)
    file = tmp_path / "order.json"
    file.write_text(text, "utf-8")
    (tmp_path / "order.yaml").write_bytes(msgspec.yaml.encode(shop.ORDER))
    sources = (
        file,
        str(file),
        text,
        text.encode(),
        shop.ORDER,
        tmp_path / "order.yaml",
        msgspec.yaml.encode(shop.ORDER),
    )
    assert all(plan.read(source) == shop.ORDER for source in sources)


def test_the_worked_plan_has_no_problem_of_structure() -> None:
    found, problems = parsed(shop.ORDER)
    assert problems == []
    assert found.edges[3].catches == ("VerificationFailed", "partial")
    assert (found.tasks[5].join, found.tasks[0].join) == ("some", "every")


def test_storing_and_reading_a_document_changes_nothing() -> None:
    found, _ = parsed(shop.ORDER)
    assert msgspec.convert(json.loads(msgspec.json.encode(found)), document.Document) == found


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (b" " * 5_000_000, "larger than 4,000,000 bytes"),
        ({"goal": "x" * 5_000_000}, "larger than 4,000,000 bytes"),
        ('{"goal":' * 1_000 + "1" + "}" * 1_000, "nested deeper than 100 levels"),
        (b"goal: " + b"[" * 1_000 + b"]" * 1_000, "nested deeper than 100 levels"),
        (b"context: &x {secret: 1}\npolicy: *x\n", "policy: it is a YAML alias"),
        (b"a: &a [1,1]\nb: &b [*a,*a]\nc: &c [*b,*b]\n", "it is a YAML alias"),
        ('{"secret": 12,,}', "it is not valid JSON at byte 14"),
        ("a: b: secret\nc: [", "at line 1, column 5: mapping values are not allowed in this context"),
        (
            "a:\n  b: 1\n  c: 2\n d: secret\n",
            "at line 4, column 2: did not find expected key, while parsing a block mapping that begins on line 1",
        ),
        (
            "a: [1, 2\nb: 3\n",
            "at line 2, column 2: did not find expected ',' or ']', while parsing a flow sequence that begins on",
        ),
        (
            "a:\n  - 'secret\n",
            "found unexpected end of stream, while scanning a quoted scalar that begins on line 2",
        ),
        ("a: @b\n", "at line 1, column 4: found character that cannot start any token"),
        ("a: *secret\n", "a: the YAML alias on line 1 repeats a value that is not above it; write the value"),
        (
            "a: 2020-13-45\n",
            "a: the value on line 1 has the form of a number or date and is none; write it as a text",
        ),
        (b"[1]", "it is not an object"),
        (b"", "it is not an object"),
        ("nowhere/plan.json", "the file nowhere/plan.json cannot be read"),
    ],
)
def test_what_must_not_be_looked_at_is_refused(source: Any, told: str) -> None:
    problems = refused(source)
    assert len(problems) == 1
    assert told in problems[0]
    assert "secret" not in problems[0]


def test_a_value_that_is_in_two_places_of_a_dict_is_not_an_alias() -> None:
    shared = {"a": 1}
    assert plan.read({"context": shared, "policy": shared}) == {"context": shared, "policy": shared}


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("on_failure", "compensate", "on_failure"),
        ("decide", {"when": "on_error"}, "decide"),
        ("limits", {"usd": 1}, "limits"),
        ("limits", {"replans": 3}, "limits.replans"),
    ],
)
def test_fields_of_later_issues_are_refused_by_name(field: str, value: Any, path: str) -> None:
    _, problems = parsed(shop.order(**{field: value}))
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}: ")
    assert "not part of the document yet" in problems[0]


def test_undoing_a_task_is_refused_by_name() -> None:
    given = shop.order()
    given["tasks"][0]["compensation"] = {"capability": "release@1"}
    assert parsed(given)[1] == [
        "tasks[0].compensation: undoing tasks is not part of the document yet; remove it"
    ]


def test_every_problem_of_structure_is_reported_with_its_path() -> None:
    _, problems = parsed(
        {
            "holdfast": "plan/2",
            "titel": "x",
            "tasks": [
                {"id": "a"},
                3,
                {"id": 1, "capability": "x@1", "retry": {"on": 3}, "join": "all", "timout_s": 3},
                {"id": "b", "capability": "x@1", "verification": [{"id": "v", "rule": "true", "else": 1}]},
            ],
            "edges": [{"from": "a", "too": "b"}, "a -> b"],
            "budget": {"usd": "much"},
            "context": {"when": {1, 2}},
            "policies": [{"id": "x", "stage": "mid", "rule": "true", "otherwise": "maybe"}],
        }
    )
    assert {problem.partition(": ")[0] for problem in problems} == {
        "holdfast", "titel", "tasks[0]", "tasks[1]", "tasks[2].id", "tasks[2].retry.on", "tasks[2].join", "tasks[2].timout_s",
        "tasks[3].verification[0].else", "edges[0].too", "edges[1]", "budget.usd", "context.when", "policies[0].stage",
        "policies[0].otherwise",
    }  # fmt: skip
    assert "tasks[2].join: it must be one of 'every', 'some'" in problems
    assert "titel: there is no such field; did you mean 'title'?" in problems


def test_too_many_tasks_are_one_problem() -> None:
    _, problems = parsed({"holdfast": "plan/1", "tasks": [{"id": "a", "capability": "x@1"}] * 20_000})
    assert problems == [
        "tasks: there are 20,000 tasks; a plan has at most 10,000. Split it into several plans"
    ]


def test_a_plan_without_tasks_is_refused() -> None:
    assert parsed({"holdfast": "plan/1"})[1][0].startswith("tasks: the plan has no tasks")


def test_a_text_that_no_store_could_keep_is_reported() -> None:
    given = shop.order()
    given["tasks"][2]["title"] = "a\0b"
    assert parsed(given)[1][0].startswith("tasks[2].title: the text contains a NUL character")


def test_a_value_that_contains_itself_is_refused() -> None:
    given = shop.order()
    given["context"]["self"] = given["context"]
    assert any("contains itself" in problem for problem in parsed(given)[1])


def test_dates_of_yaml_are_not_plain_data() -> None:
    _, problems = parsed(b"holdfast: plan/1\ntasks: [{id: a, capability: x@1}]\ncontext: {day: 2026-01-01}\n")
    assert problems[0].startswith("context.day: a date cannot be kept as JSON here")


def test_the_schema_in_the_docs_is_that_of_the_code() -> None:
    file = Path(__file__).parents[2] / "docs" / "plan.schema.json"
    assert json.loads(file.read_text("utf-8")) == document.json_schema(), "run python docs/schema.py"


def test_the_schema_describes_every_field() -> None:
    schema = document.json_schema()
    assert schema["properties"].keys() == {
        field.encode_name for field in msgspec.structs.fields(document.Document)
    }
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Edge"]["required"] == ["from", "to"]
    assert schema["$defs"]["Task"]["properties"]["join"]["enum"] == ["every", "some"]


def test_a_long_text_that_a_yaml_alias_repeats_is_refused() -> None:
    text = "holdfast: plan/1\ncontext:\n  a: &x '" + "q" * 100_000 + "'\n  b: [" + "*x, " * 50 + "]\n"
    with pytest.raises(plan.PlanError, match="A YAML alias repeats what it stands for"):
        plan.read(f"{text}tasks:\n- {{id: a, capability: any@1}}\n")


def test_the_field_on_of_a_retry_may_be_written_in_yaml() -> None:
    text = "holdfast: plan/1\ntasks:\n- id: a\n  capability: any@1\n  retry:\n    attempts: 3\n    on: [ConnectionError]\n"
    assert shop.anything().check(text) == []
    assert plan.read(text)["tasks"][0]["retry"] == {"attempts": 3, "on": ["ConnectionError"]}


def test_a_name_that_is_not_a_path_is_a_problem() -> None:
    with pytest.raises(plan.PlanError, match="cannot be read"):
        plan.read("a\0b")
