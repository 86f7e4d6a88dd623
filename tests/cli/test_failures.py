"""A run that failed is shown with the line of code that failed, by every command that reports it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import msgspec
import pytest

import forked
from command_line import Cli, caller, furnish
from holdfast.cli.exits import Exit
from holdfast.cli.worker import _Voice
from holdfast.reading.reader import Reader
from holdfast.reading.remedies import CommandLine
from holdfast.storage.urls import open_store

WORK = """
from holdfast import END, START, Graph

graph = Graph("work", dict)

def reckon():
    return 1 / 0

@graph.node
def first(state):
    reckon()

flow = graph.chain(START, first, END).compile()
"""
AT = "  at work.py:7, in reckon: return 1 / 0"
SCRIPT = """
import holdfast as hf
from work import flow

hf.run(flow, run_id="r")
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    furnish(tmp_path, monkeypatch, work=WORK, script=SCRIPT)
    return caller(capsys)


@pytest.mark.parametrize("words", [("resume", "r", "work.py"), ("retry", "r", "work.py")], ids=" ".join)
def test_a_command_that_executes_prints_the_line_that_failed(cli: Cli, words: tuple[str, ...]) -> None:
    assert AT in cli("run", "work.py", "--run-id", "r").err.splitlines()
    assert AT in cli(*words).err.splitlines()


def test_show_and_the_worker_print_the_line_that_failed(cli: Cli) -> None:
    cli("start", "work.py", "--run-id", "r")
    assert AT in cli("worker", "work.py", "--until-idle").out.splitlines()
    assert AT in cli("show", "r").out.splitlines()
    cli("start", "work.py", "--run-id", "s")
    told = [json.loads(line) for line in cli("worker", "work.py", "--until-idle", "--json").out.splitlines()]
    assert [one["where"] for one in told if one["event"] == "run"] == [AT.removeprefix("  at ")]


def test_debug_prints_the_whole_traceback(cli: Cli) -> None:
    caller_of_reckon = 'work.py", line 11, in first'
    for words in (
        ("run", "work.py", "--run-id", "r"),
        ("resume", "r", "work.py"),
        ("show", "r"),
        ("run", "work.py", "--run-id", "r"),
    ):
        told, plain = cli(*words, "--debug"), cli(*words)
        assert caller_of_reckon in told.out + told.err
        assert "ZeroDivisionError: division by zero" in told.out + told.err
        assert caller_of_reckon not in plain.out + plain.err


def test_running_a_flow_whose_run_failed_before_says_so_and_how_to_continue(cli: Cli) -> None:
    typed = ("run", "work.py", "--input", '{"n": 1}', "--run-id", "r")
    cli(*typed)
    seq = cli("show", "r", "--json").json["seq"]
    again = cli(*typed)
    assert again.code == Exit.FAILED
    assert "; the run failed before, at 2" in again.err
    assert ", so nothing was executed" in again.err
    assert AT in again.err.splitlines()
    for command in (
        "holdfast resume r work.py",
        "holdfast retry r first work.py",
        """holdfast run work.py --input '{"n": 1}'""",
    ):
        assert f"  $ {command}" in [line.partition("   #")[0] for line in again.err.splitlines()]
    assert cli("show", "r", "--json").json["seq"] == seq


def test_a_script_whose_run_failed_before_ends_with_what_to_do_and_where_it_was(cli: Cli) -> None:
    first, again = (
        forked.run([sys.executable, "script.py"], capture_output=True, text=True, check=False)
        for _ in range(2)
    )
    assert "ZeroDivisionError: division by zero\n\nThe above exception was the direct cause" in first.stderr
    *_, told, place = again.stderr.splitlines()
    assert "run 'r' failed before, at 2" in told
    assert "Nothing was executed now." in told
    assert "hf.resume('r', flows=[…]) or hf.retry('r', 'first', flows=[…])" in told
    assert place.endswith("work.py:7, in reckon: return 1 / 0")


def test_a_worker_counts_runs_and_not_how_often_it_claimed_them(cli: Cli) -> None:
    cli("start", "work.py", "--run-id", "r")
    store = open_store(".holdfast/runs.db")
    run = Reader(store).get("r")
    store.close()
    said = io.StringIO()
    voice = _Voice(said, CommandLine(), as_json=True, debug=False)
    for status in ("waiting", "waiting", "completed"):
        voice.ended(msgspec.structs.replace(run, status=status))
    voice.ended(msgspec.structs.replace(run, id="s", status="failed"))
    voice.left(in_order=True)
    assert json.loads(said.getvalue().splitlines()[-1])["runs"] == 2
