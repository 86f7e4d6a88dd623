"""Places that list the fields of a class by hand: a field that is added to the class must not be missing from any of them.

What is written for every step is listed by hand because that is fast, and the columns of a row because SQL has names of its own.
An encoder checks its list when it is imported; the other lists are read here.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import forked
import holdfast
from holdfast.core import budget, events, requests
from holdfast.core.budget import Budget
from holdfast.core.child_place import ChildOptions
from holdfast.core.commands import StartNode
from holdfast.core.definition import QuestionOptions
from holdfast.core.event_encoding import Encoded, require_all_fields
from holdfast.core.run_state import DoubtfulStep, Question
from holdfast.core.verb_options import options_of
from holdfast.reading.inbox import ChildEnd
from holdfast.reading.ledger import Ledger
from holdfast.reading.ledger_entries import LedgerEntry
from holdfast.reading.previews import Preview
from holdfast.runtime.calls.process.wire import Told
from holdfast.runtime.mending import FamilyOrders
from holdfast.server import openapi, table
from holdfast.server.runs import RunsQuery
from holdfast.storage.contract import (
    STATUSES,
    Along,
    Holder,
    NewRun,
    Query,
    Request,
    Row,
    RunRow,
    Snapshot,
    View,
)
from holdfast.storage.queues import Refusal

SOURCE = Path(holdfast.__file__).parent

LISTS: tuple[tuple[str, str, type[msgspec.Struct]], ...] = (
    ("core/event_encoding.py", "decode", Encoded),
    ("core/fold/waits.py", "question_asked", Question),
    ("documents/ledger_file.py", "", Ledger),
    ("documents/ledger_file.py", "", LedgerEntry),
    ("reading/ends.py", "report", events.Reported),
    ("reading/history.py", "view_of", View),
    ("runtime/calls/process/work.py", "told", Told),
    ("runtime/creation.py", "child_append", ChildOptions),
    ("runtime/mending.py", "_request", FamilyOrders),
    ("runtime/perform.py", "_start", StartNode),
    ("runtime/questions.py", "ask_first", QuestionOptions),
    ("server/runs.py", "list_runs", RunsQuery),
    ("server/page/pure/budgets.js", "", Budget),
    ("storage/memory/store.py", "", Along),
    ("storage/memory/store.py", "_fits", Query),
    ("storage/memory/store.py", "_row", NewRun),
    ("storage/memory/store.py", "_row", View),
    ("storage/offers.py", "list_refusals", Refusal),
    ("storage/postgres/append.py", "", Along),
    ("storage/postgres/append.py", "_advance_runs", View),
    ("storage/postgres/append.py", "_create_runs", NewRun),
    ("storage/postgres/append.py", "_create_runs", View),
    ("storage/postgres/append.py", "_plain", Row),
    ("storage/postgres/append.py", "_post_along", Request),
    ("storage/postgres/append.py", "_write_extras", Snapshot),
    ("storage/postgres/queues.py", "refuse", Refusal),
    ("storage/rows.py", "open_row", Encoded),
    ("storage/rows.py", "seal_row", Encoded),
    ("storage/sql_rows.py", "holder_cells", Holder),
    ("storage/sql_rows.py", "read_holder", Holder),
    ("storage/sql_rows.py", "run_row", RunRow),
    ("storage/sqlite/append.py", "", Along),
    ("storage/sqlite/append.py", "_advance", View),
    ("storage/sqlite/append.py", "_create", NewRun),
    ("storage/sqlite/append.py", "_create", View),
    ("storage/sqlite/append.py", "_post_along", Request),
    ("storage/sqlite/append.py", "_write_extras", Snapshot),
    ("storage/sqlite/batches.py", "", NewRun),
    ("storage/sqlite/batches.py", "", View),
    ("storage/sqlite/batches.py", "write", Row),
    ("storage/sqlite/queues.py", "refuse", Refusal),
    ("storage/walks.py", "", Query),
    ("upkeep/archive.py", "row", Row),
)
"""File, function (empty: the whole file) and the class whose fields it lists."""
ELSEWHERE: dict[type[msgspec.Struct], set[str]] = {
    ChildOptions: {"key", "cancel_with_caller"},
    Query: {"after", "limit", "offered"},
    Question: {"asked_at"},
    Refusal: {"at"},
    Request: {"taken", "unmet"},
    Row: {"seq"},
}
"""Fields that such places leave to others: what a store itself counts, finds out or uses for paging, or the time of an
event."""


def missing(path: str, function: str, fields: tuple[str, ...]) -> list[str]:
    """Return the fields that a place does not name."""
    text = (SOURCE / path).read_text("utf-8")
    if function:
        (node,) = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.name == function
        ]
        text = "\n".join(ast.unparse(line) for line in node.body)
    return [field for field in fields if not re.search(rf"\b{field}\b", text)]


@pytest.mark.parametrize(("path", "function", "listed"), LISTS)
def test_a_list_of_fields_is_complete(path: str, function: str, listed: type[msgspec.Struct]) -> None:
    assert set(missing(path, function, listed.__struct_fields__)) <= ELSEWHERE.get(listed, set())


@pytest.mark.parametrize(("path", "function", "listed"), LISTS)
def test_a_field_that_is_added_to_the_class_is_missed(
    path: str, function: str, listed: type[msgspec.Struct]
) -> None:
    class Longer(listed, frozen=True, kw_only=True):  # type: ignore[misc, valid-type]
        added_to_the_class: int = 0

    assert "added_to_the_class" in missing(path, function, Longer.__struct_fields__)


def test_a_budget_what_is_spent_of_it_and_what_is_left_have_the_same_limits() -> None:
    for kind in (Budget, budget.Spent, budget.BudgetLeft):
        assert kind.__struct_fields__ == budget.LIMITS


def test_the_page_and_the_command_line_show_every_list_of_a_preview() -> None:
    lists = [
        field.name
        for field in msgspec.structs.fields(Preview)
        if field.default == () and field.name != "remedies"
    ]
    shown = (SOURCE / "server/page/pure/previews.js").read_text("utf-8").partition("const CONSEQUENCES")[2]
    assert set(lists) == set(re.findall(r"^  \[\"(\w+)\"", shown, re.MULTILINE))
    assert missing("cli/dry_run.py", "", tuple(lists)) == []


def page(file: str) -> str:
    """Return the text of a file of the page."""
    return (SOURCE / "server/page" / file).read_text("utf-8")


def quoted(file: str, before: str, after: str) -> list[str]:
    """Return the words in double quotes between two texts of a file of the page."""
    return re.findall(r'"(\w+)"', page(file).partition(before)[2].partition(after)[0])


def test_the_page_reads_no_field_that_the_server_does_not_send() -> None:
    sent = msgspec.json.decode(openapi.document(table.ROUTES))["components"]["schemas"].values()
    known = [set(kind.get("properties", ())) for kind in sent] + [set(DoubtfulStep.__struct_fields__)]
    text = re.sub(r"\n  /\*\* Of the page: .*\n.*", "", page("shapes.d.ts"))
    types = re.findall(
        r"^export interface (\w+) (?:extends \w+ )?\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL
    )
    read = {name: set(re.findall(r"^  (\w+)\??:", body, re.MULTILINE)) for name, body in types}
    assert len(read) > 50
    assert [name for name, fields in read.items() if not any(fields <= kind for kind in known)] == []


def test_the_page_knows_every_status_role_and_choice_that_a_record_has() -> None:
    assert quoted("shapes.d.ts", "RunStatus =", ";") == list(STATUSES)
    assert quoted("shapes.d.ts", "type Role =", ";") == list(get_args(requests.Role))
    assert quoted("pure/actions.js", "RANKS =", ";") == list(get_args(requests.Role))
    choices = re.findall(
        r'const: "(\w+)"', page("pure/previews.js").partition("REPEATS =")[2].partition("];")[0]
    )
    assert choices == list(get_args(requests.Repeat))


def test_the_page_asks_for_verbs_and_options_that_their_records_have() -> None:
    records: dict[str, type[requests.AnyRequest | requests.Fork | requests.Start]] = {
        **requests.RECORDS,
        **requests.MAKING,
    }
    verbs = set(
        re.findall(
            r"^  (\w+): ", page("pure/actions.js").partition("VERBS =")[2].partition("};")[0], re.MULTILINE
        )
    )
    plain = set(
        re.findall(
            r"^  (\w+): ", page("pure/previews.js").partition("PLAIN =")[2].partition("};")[0], re.MULTILINE
        )
    )
    assert plain == {verb for verb in verbs - {"answer"} if not records[verb].traits.previewed}
    edits = page("pure/previews.js").partition("EDITS =")[2].partition(";")[0]
    for verb, field in re.findall(r'(\w+): "(\w+)"', edits):
        assert field in {given.body_name for given in options_of(records[verb]).values()}, verb


_WITH_A_FIELD = """
import importlib
from holdfast.core import events
class {name}(events.{name}, frozen=True, kw_only=True):
    added_to_the_class: int = 0
events.{name} = {name}
importlib.reload(importlib.import_module("holdfast.core.{importer}"))
"""


@pytest.mark.parametrize(
    ("name", "importer"),
    [("NodeStarted", "event_encoding"), ("NodeCompleted", "event_encoding"), ("Changes", "state")],
)
def test_the_import_fails_if_an_event_has_a_field_that_is_not_written(name: str, importer: str) -> None:
    done = forked.run(
        [sys.executable, "-c", _WITH_A_FIELD.format(name=name, importer=importer)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the list differs in: added_to_the_class" in done.stderr, done.stderr


def test_a_list_with_a_field_that_the_class_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="gone"):
        require_all_fields(events.Failure, *events.Failure.__struct_fields__, "gone")


def test_the_end_of_a_child_is_recorded_whole() -> None:
    shared = {"id", "run_id", "at", "by", "reason"}
    assert set(ChildEnd.__struct_fields__) - shared == set(events.ChildEnded.__struct_fields__)
