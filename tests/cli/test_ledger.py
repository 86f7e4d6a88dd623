"""`holdfast ledger` prints, checks and exports the decisions of a run."""

from __future__ import annotations

import os
import pty
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import forked
import holdfast as hf
from command_line import Cli, caller, furnish
from holdfast.cli.exits import Exit
from holdfast.core import events
from holdfast.storage.urls import open_store
from holdfast.testing.builders import History, outline

FLOW = outline("START write check", "publish END", branches={"check": "write publish"},
               nodes={"publish": {"approve": "Publish it?"}})  # fmt: skip


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    furnish(tmp_path, monkeypatch)
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "runs.db"))
    with closing(open_store(str(tmp_path / "runs.db"))) as store:
        history = History("r1", FLOW).created().completed("write").completed("check", routes=["write"])
        history.taken_up().completed("write").completed("check").settled()
        history.record(events.RequestRefused(verb="answer", reason="no question is called 'ship'", by="bo"))
        history.answered("publish", "approve", by="agent:clerk", reason="well written")
        history.completed("publish").settled().write(store)
    return caller(capsys)


def alter(statement: str) -> None:
    with closing(apsw.Connection("runs.db")) as db:
        db.execute(statement)
        assert db.changes() == 1


def test_the_decisions_of_a_run_are_printed_as_a_table(cli: Cli) -> None:
    ended = cli("ledger", "r1")
    assert ended.code == Exit.OK
    lines = [line.split() for line in ended.out.splitlines()]
    assert [" ".join([line[0], *line[2:]]) for line in lines] == [
        "SEQ TYPE ACTOR BY DECISION",
        f"1 plan engine the run follows the flow 'outline' ({FLOW.fingerprint[:12]})",
        "5 branch engine check leads to write",
        "6 resume engine the run is resumed",
        "10 branch engine check leads to publish",
        "12 refusal human bo answer is refused: no question is called 'ship'",
        '13 decision agent agent:clerk publish: the answer is "approve": well written',
    ]


def test_a_terminal_gets_lines_that_fit(cli: Cli) -> None:
    try:
        main, other = pty.openpty()
    except OSError as fault:  # as in a chroot
        pytest.skip(
            f"no terminal can be opened here ({fault.strerror}): mount devpts at /dev/pts to run this test"
        )
    environment = os.environ | {"COLUMNS": "80", "TERM": "xterm"}
    words = [sys.executable, "-m", "holdfast.cli", "ledger", "r1"]
    with forked.Popen(words, stdout=other, env=environment) as child:
        os.close(other)
        assert child.wait(60) == 0
    shown = os.read(main, 100_000).decode()
    os.close(main)
    assert "agent:clerk" in shown
    assert "…" in shown


def test_verify_says_that_the_log_is_what_was_written_or_names_the_event(cli: Cli) -> None:
    ended = cli("ledger", "r1", "--verify")
    assert ended.code == Exit.OK
    digest = hf.ledger("r1", store="runs.db").digest
    assert ended.out.splitlines()[-1] == f"✓ run r1, up to event 16: exactly as written  {digest}"
    alter("update events set at = at + 60 where key & 4294967295 = 13")
    ended = cli("ledger", "r1", "--verify")
    assert ended.code == Exit.DAMAGED
    assert "✗ event 13 (QuestionAnswered) was altered after it was written" in ended.out
    assert ended.out.splitlines()[-1].endswith("[decision]")
    assert "✗ publish: the answer is" in ended.out, "the entry is marked too"
    found = cli("ledger", "r1", "--verify", "--json").json
    assert (found["verified"], found["damage"][0]["seq"], found["damage"][0]["type"]) == (
        False,
        13,
        "decision",
    )


def test_verify_names_an_event_that_was_removed_also_the_last_one(cli: Cli) -> None:
    alter("delete from events where key & 4294967295 = 16")
    ended = cli("ledger", "r1", "--verify")
    assert (ended.code, "✗ event 16 is missing" in ended.out) == (Exit.DAMAGED, True)


def test_json_has_the_entries_with_their_data(cli: Cli) -> None:
    found = cli("ledger", "r1", "--json").json
    assert (found["run_id"], found["verified"]) == ("r1", None)
    assert found["entries"][-1]["about"]["answer"] == "approve"


def test_an_export_is_checked_without_the_store(cli: Cli) -> None:
    ended = cli("ledger", "r1", "--export", "ledger.jsonl")
    assert ended.code == Exit.OK
    assert "6 decisions, 16 events: ledger.jsonl" in ended.out
    os.rename("runs.db", "away.db")
    ended = cli("ledger", "--file", "ledger.jsonl")
    assert ended.code == Exit.OK
    assert "✓ ledger.jsonl: run r1, up to event 16: exactly as written" in ended.out
    lines = Path("ledger.jsonl").read_text().splitlines()
    Path("cut.jsonl").write_text("\n".join(lines[:-1]))
    ended = cli("ledger", "--file", "cut.jsonl", "--verify")
    assert (ended.code, "the file is truncated" in ended.out) == (Exit.DAMAGED, True)
    Path("less.jsonl").write_text("\n".join(line for line in lines if '"QuestionAnswered"' not in line))
    ended = cli("ledger", "--file", "less.jsonl", "--json")
    assert (ended.code, ended.json["damage"][0]["seq"]) == (Exit.DAMAGED, 13)


def test_an_export_with_verify_is_one_document_in_json(cli: Cli) -> None:
    found = cli("ledger", "r1", "--export", "ledger.jsonl", "--verify", "--json").json
    assert (found["file"], found["events"], found["verified"]) == ("ledger.jsonl", 16, True)
    ended = cli("ledger", "r1", "--export", "ledger.jsonl")
    assert (ended.code, "overwrites nothing" in ended.err) == (Exit.USAGE, True)


def test_an_export_is_compared_with_the_run_in_the_store(cli: Cli) -> None:
    cli("ledger", "r1", "--export", "ledger.jsonl")
    assert cli("ledger", "r1", "--file", "ledger.jsonl").code == Exit.OK
    with closing(open_store("other.db")) as store:
        History("r1", FLOW).created({"n": 1}).completed("write").write(store)
    ended = cli("ledger", "r1", "--file", "ledger.jsonl", "--store", "other.db")
    assert ended.code == Exit.DAMAGED
    assert "event 1 (RunCreated) of the store is not the one that was exported" in ended.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name a run, as in `holdfast ledger RUN`"),
        (
            ("a/ledger.jsonl", "--verify"),
            "To check an exported ledger: holdfast ledger --file a/ledger.jsonl",
        ),
        (("r1", "--file", "a.jsonl", "--export", "b.jsonl"), "give only one of them"),
        (("--file", "pyproject.toml"), "is not a ledger that this version of Holdfast has exported"),
    ],
)
def test_wrong_options_are_told_with_the_right_ones(cli: Cli, words: tuple[str, ...], told: str) -> None:
    ended = cli("ledger", *words)
    assert (ended.code, told in ended.err) == (Exit.USAGE, True), ended.err


def test_an_export_of_another_run_is_refused(cli: Cli) -> None:
    cli("ledger", "r1", "--export", "ledger.jsonl")
    ended = cli("ledger", "r2", "--file", "ledger.jsonl")
    assert (ended.code, "is the ledger of run 'r1', not of 'r2'" in ended.err) == (Exit.USAGE, True)
    assert cli("ledger", "--file", "nowhere.jsonl").code == Exit.STORE
    assert cli("ledger", "r2").code == Exit.NOT_FOUND
