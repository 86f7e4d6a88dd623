"""What somebody who meets the command line for the first time is told: what a command will do, with what, and the way out."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forked
import holdfast as hf
from command_line import Cli, caller, furnish
from holdfast import END, START, Graph
from holdfast.cli import screen
from holdfast.cli.exits import Exit
from holdfast.core.run_state import Question
from holdfast.reading import words as words_of_events
from holdfast.reading.chunks import Chunk
from holdfast.reading.remedies import choices

ROOT = Path(__file__).resolve().parents[2]

FLOWS = """
import os
from holdfast import END, START, Fatal, Graph

payout = Graph("payout")

@payout.node(idempotent=False)
def pay(state, ctx):
    match state.get("mode"):
        case "die":
            os._exit(77)
        case "fail":
            raise ValueError("no money")
    return {"paid": True}

payout.chain(START, pay, END)
paying = payout.compile()

report = Graph("report")

@report.node
def write(state, ctx):
    match state.get("mode"):
        case "assert":
            raise AssertionError
        case "fatal":
            raise Fatal("the account is closed")
        case "wait":
            ctx.wait_for("go")
    return {"text": "so it goes " * state.get("times", 1)}

report.chain(START, write, END)
reporting = report.compile()
again = reporting

talk = Graph("talk")

@talk.node
async def speak(state, ctx):
    for number in range(60):
        ctx.emit(f"word{number} ")
    if ctx.attempt == 1:
        os._exit(77)

talk.chain(START, speak, END)
talking = talk.compile()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return furnish(tmp_path, monkeypatch, flows=FLOWS)


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return caller(capsys)


def dies(*words: str) -> None:
    """Leaves a run behind whose process died in the middle."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    child = forked.run(
        [sys.executable, "-m", "holdfast.cli", "run", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 77


# --- what must not run twice -------------------------------------------------------------------------

ASKS = "resume it; pay is not idempotent: resume asks a question and does not run it"


def test_a_cut_node_that_is_not_idempotent_is_said_to_be_asked_about(cli: Cli) -> None:
    dies("flows.py:paying", "--run-id", "r1", "--input", '{"mode": "die"}')
    for listed in (cli("show", "r1").out, cli("runs").out):
        assert ASKS in listed
        assert "does not run again" not in listed
    assert cli("resume", "r1", "flows.py").code == Exit.WAITS
    assert ASKS not in cli("show", "r1").out


def test_a_failed_node_that_is_not_idempotent_is_said_to_run_again(cli: Cli) -> None:
    cli("run", "flows.py:paying", "--run-id", "r1", "--input", '{"mode": "fail"}')
    shown = cli("show", "r1").out
    assert "fix the cause, then resume it; it runs pay AGAIN, which is not idempotent" in shown
    assert "continue without pay; choose it if its effect did happen" in shown


# --- a run base --------------------------------------------------------------------------------------


def test_a_run_that_was_made_with_a_run_base_is_carried_on_with_one(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", "flows.py:reporting", "--run-id", "r1", "--input", '{"mode": "wait"}')
    assert "holdfast resume r1 flows.py:reporting --run-base base" in cli(*words, "--run-base", "base").err
    assert "holdfast resume r1 flows.py:reporting --run-base DIR" in cli("show", "r1").out
    bare = cli("resume", "r1", "flows.py")
    assert bare.err.startswith(
        "note: the run was created with a run base (a folder for receipts and artifacts), but none"
    )
    assert "note:" not in cli("resume", "r1", "flows.py", "--run-base", "base").err
    monkeypatch.setenv("HOLDFAST_RUN_BASE", "base")
    assert "--run-base" not in cli("show", "r1").out
    assert "note:" not in cli("resume", "r1", "flows.py").err


# --- several flows in one file -----------------------------------------------------------------------


def test_a_file_with_several_flows_lists_each_once(cli: Cli) -> None:
    asked = cli("run", "flows.py").err
    assert "defines 3 flows: 'paying', 'reporting', 'talking'. Choose one, as in flows.py:paying" in asked


def test_a_name_that_is_no_flow_is_refused_with_the_flows_of_the_file(cli: Cli) -> None:
    asked = cli("run", "flows.py:zz").err
    assert "flows.py has no flow 'zz'; its flows are 'paying', 'reporting', 'talking'\n" in asked


def test_a_run_id_that_is_taken_is_refused_with_a_command_that_works(cli: Cli) -> None:
    cli("run", "flows.py:reporting", "--run-id", "r1")
    for words in (["flows.py:reporting", "--input", '{"times": 2}'], ["flows.py:paying"]):
        refused = cli("run", *words, "--run-id", "r1")
        assert (refused.code, "`holdfast show r1` says how to resume" in refused.err) == (Exit.REFUSED, True)
    assert cli("show", "r1").code == 0


@pytest.mark.parametrize("listed", [False, True], ids=["by its file", "by the project"])
def test_the_flow_of_a_run_is_chosen_among_several(cli: Cli, place: Path, listed: bool) -> None:
    cli("run", "flows.py:reporting", "--run-id", "r1", "--input", '{"mode": "wait"}')
    cli("signal", "r1", "go")
    if listed:
        (place / "pyproject.toml").write_text('[tool.holdfast]\nflows = ["flows.py"]\n')
    assert cli("resume", "r1", *([] if listed else ["flows.py"])).code == Exit.OK


def test_a_cut_node_is_skipped_with_the_flow_of_its_run(cli: Cli) -> None:
    dies("flows.py:paying", "--run-id", "r1", "--input", '{"mode": "die"}')
    cli("resume", "r1", "flows.py")
    assert cli("answer", "r1", "pay", "skip", "flows.py", "--update", '{"paid": true}').code == Exit.OK


# --- signals -----------------------------------------------------------------------------------------


def test_a_signal_that_was_told_already_is_said_to_be(cli: Cli) -> None:
    cli("run", "flows.py:reporting", "--run-id", "r1", "--input", '{"mode": "wait"}')
    assert cli("signal", "r1", "later", "1", "--id", "b").out.startswith("sent")
    second = cli("signal", "r1", "later", "1", "--id", "b")
    assert (second.code, second.out) == (Exit.OK, "r1: a signal with id b was sent before; nothing changed\n")
    assert cli("signal", "r1", "later", "1", "--id", "b", "--json").json["repeated"]
    cli("signal", "r1", "later", "2")
    assert "Signals that no node has received yet:  'later' (2 times)" in cli("show", "r1").out
    assert cli("show", "r1", "--json").json["signals"] == {"later": 2}


# --- streams -----------------------------------------------------------------------------------------


def test_who_follows_a_cut_run_is_told_so_and_what_carries_it_on(cli: Cli) -> None:
    dies("flows.py:talking", "--run-id", "r1")
    followed = cli("events", "r1", "--follow", "--chunks")
    assert "running, crashed  r1  process " in followed.err
    assert ", which executed it, crashed in speak, and no live worker takes flow 'talk'" in followed.err
    assert followed.err.splitlines()[-1].strip().startswith("$ holdfast resume r1 flows.py:talking")
    assert cli("resume", "r1", "flows.py").code == Exit.OK
    assert cli("events", "r1", "--follow").err == ""


def test_chunks_are_told_between_the_start_and_the_end_of_their_attempt() -> None:
    """Also to one who comes when all is over, or in the middle."""
    graph = Graph("talk")

    @graph.node
    async def speak(state: dict[str, Any], ctx: hf.Context) -> None:
        ctx.emit("a")
        await ctx.step("breathe", lambda: None)
        ctx.emit("b")

    @graph.node
    def listen(state: dict[str, Any], ctx: hf.BlockingContext) -> None:
        ctx.emit("c")

    flow = graph.chain(START, speak, listen, END).compile()

    async def use() -> list[list[str]]:
        async with hf.Engine("memory://", flows=[flow]) as engine:
            await engine.start(flow, {}, run_id="r")
            going = asyncio.ensure_future(engine.resume("r"))
            live = [_named(one) async for one in engine.follow("r", chunks=True)]
            await going
            late = [_named(one) async for one in engine.follow("r", chunks=True)]
            after = [_named(one) async for one in engine.follow("r", 3, chunks=True)]
            return [live, late, after]

    for seen in asyncio.run(use()):
        assert [one for one in seen if len(one) == 1] == ["a", "b", "c"]
        assert seen.index("b") < seen.index("speak NodeCompleted") < seen.index("listen NodeStarted")
        assert seen.index("listen NodeStarted") < seen.index("c") < seen.index("listen NodeStreamed")
        if "speak NodeStarted" in seen:
            assert seen.index("speak NodeStarted") < seen.index("a")


def _named(one: Any) -> str:
    return str(one.value) if isinstance(one, Chunk) else f"{one.node} {one.kind}"


def test_of_a_stream_without_lines_the_end_is_shown(cli: Cli) -> None:
    assert screen.last_of_line("hold fast", 5) == "…fast"
    assert screen.last_of_line("fast", 5) == "fast"
    words = [f"word{number} " for number in range(60)]
    streamed = words_of_events._streamed({"chunks": words})
    assert re.search(r"the last line: ….* word58 word59 $", streamed)


# --- messages ----------------------------------------------------------------------------------------


def test_a_refusal_names_force_once(cli: Cli) -> None:
    cli("run", "flows.py:reporting", "--run-id", "r1", "--input", '{"mode": "fatal"}')
    refused = cli("resume", "r1", "flows.py").err
    assert (
        "run 'r1' was not resumed: the failure of the run is fatal. Fatal: the account is closed. Trying again is pointless "
        "unless the cause is gone; then use force=True (--force).\n" in refused
    )


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["answer", "r1", "q", "1"], "answered"),
        (["signal", "r1", "s"], "sent a signal"),
        (["cancel", "r1"], "cancelled"),
        (["pause", "r1"], "paused"),
        (["retry", "r1", "write", "flows.py"], "tried again"),
    ],
)
def test_what_is_final_is_forked(cli: Cli, words: list[str], asked: str) -> None:
    cli("run", "flows.py:reporting", "--run-id", "r1")
    refused = cli(*words)
    assert refused.code == Exit.REFUSED
    assert f"run 'r1' was not {asked}: it is completed, which is final. Fork it" in refused.err
    assert "which `holdfast checkpoints r1` lists: `holdfast fork r1@SEQ`.\n" in refused.err


def test_a_node_that_is_not_there_is_told_with_those_that_are(cli: Cli) -> None:
    cli("run", "flows.py:paying", "--run-id", "r1", "--input", '{"mode": "fail"}')
    refused = cli("retry", "r1", "zz", "flows.py").err
    assert "run 'r1' was not tried again: flow 'payout' has no node 'zz'; it has pay" in refused
    unknown = cli("events", "r1", "--node", "zz")
    assert (unknown.code, "has no node 'zz'; its nodes are pay" in unknown.err) == (Exit.USAGE, True)


def test_an_exception_without_a_text_is_named_once(cli: Cli) -> None:
    cli("run", "flows.py:reporting", "--run-id", "r1", "--input", '{"mode": "assert"}')
    for words in (["show", "r1"], ["runs"], ["events", "r1"]):
        seen = cli(*words).out
        assert "AssertionError" in seen
        assert "AssertionError: AssertionError" not in seen


def test_a_negative_number_is_told_how_to_be_given(cli: Cli) -> None:
    wrong = cli("answer", "r1", "a", "-3")
    assert (wrong.code, "If -3 is a value, put -- before it." in wrong.err) == (Exit.USAGE, True)
    assert "put -- before it" not in cli("answer", "r1", "a", "--frce").err


def test_a_large_state_is_shortened_and_json_is_whole(cli: Cli) -> None:
    words = ("run", "flows.py:reporting", "--run-id", "r1", "--input", '{"times": 1000}')
    first = cli(*words)
    assert "… shortened; the whole state (4 lines, 11.0 KB): holdfast state r1" in first.out
    assert len(first.out) < 1000
    second = cli(*words)
    assert "the run was completed already, so nothing was executed" in second.out
    assert len(cli(*words, "--json").json["state"]["text"]) == 11_000


# --- the blocking verbs ------------------------------------------------------------------------------


def test_a_graph_that_was_not_compiled_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        hf.SettingError, match=r"graph 'g' is not a flow; give what graph.compile\(\) returns"
    ):
        hf.resume("r1", flows=Graph("g"), store="memory://")  # type: ignore[arg-type]


def test_an_option_that_is_not_there_is_told_with_the_one_that_was_meant() -> None:
    with pytest.raises(hf.SettingError, match="has an option 'stor'; did you mean 'store'"):
        hf.get("r1", stor="memory://")  # type: ignore[call-arg]


# --- after a crash -----------------------------------------------------------------------------------


def test_a_crashed_node_that_is_not_idempotent_is_a_question_to_come(cli: Cli) -> None:
    dies("flows.py:paying", "--run-id", "r1", "--input", '{"mode": "die"}')
    for words in (("questions",), ("questions", "r1")):
        told = cli(*words).out
        assert told.splitlines()[0].endswith(" open question yet.")
        assert (
            "A resume will ask what to do about node pay of r1, which crashed and may have had its effect."
            in told
        )
        assert "$ holdfast resume r1 flows.py:paying" in told
        assert ASKS.removeprefix("# ") in told
    (to_come,) = cli("questions", "--json").json
    assert (to_come["run_id"], to_come["node"], to_come["about"], to_come["to_come"]) == (
        "r1", "pay", "interrupt", True,
    )  # fmt: skip
    assert [remedy["verb"] for remedy in to_come["remedies"]] == ["resume"]
    assert cli("resume", "r1", "flows.py").code == Exit.WAITS
    (asked,) = cli("questions", "--json").json
    assert (asked["key"], "to_come" in asked) == ("pay.1.1.1", False)
    assert "To come" not in cli("questions").out


def test_doctor_names_a_run_that_recover_has_offered_and_no_worker_can_take(cli: Cli) -> None:
    dies("flows.py:paying", "--run-id", "r1", "--input", '{"mode": "die"}')
    assert "crashed" in cli("recover").out
    told = cli("doctor")
    assert told.code == Exit.STUCK
    assert "no worker  r1: its process crashed in pay, and no live worker takes flow 'payout'" in told.out
    assert "$ holdfast worker flows.py:paying" in told.out
    assert "$ holdfast resume r1 flows.py:paying" in told.out


def test_an_interrupted_node_that_may_have_had_its_effect_is_named(cli: Cli, place: Path) -> None:
    waits = FLOWS.replace('raise ValueError("no money")', "ctx.run_id and __import__('time').sleep(60)")
    (place / "flows.py").write_text(waits, "utf-8")
    child = forked.Popen(
        [sys.executable, "-m", "holdfast.cli", "run", "flows.py:paying", "--run-id", "r1", "--input", '{"mode": "fail"}',
         "--grace", "0"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert child.stderr is not None
    next(line for line in child.stderr if "pay" in line)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    told = cli("show", "r1").out
    assert "its process was asked to stop" in told
    assert "pay was stopped before it ended, and may have had its effect" in told


# --- small things ------------------------------------------------------------------------------------


def test_show_has_the_cost_of_each_node(cli: Cli, place: Path) -> None:
    costs = FLOWS.replace('    match state.get("mode"):\n        case "assert"', '    ctx.cost(usd=0.02, tokens=120)\n'
                          '    match state.get("mode"):\n        case "assert"')  # fmt: skip
    (place / "flows.py").write_text(costs, "utf-8")
    cli("run", "flows.py:reporting", "--run-id", "r1")
    (drawn,) = [line for line in cli("show", "r1").out.splitlines() if "write" in line and "✓" in line]
    assert drawn.endswith("$0.02, 120 tokens")


def test_a_router_that_chose_nothing_yet_is_not_said_to_lead_on(cli: Cli, place: Path) -> None:
    routed = FLOWS.replace("report.chain(START, write, END)", "report.edge(START, write)\n"
                           "report.branch(write, lambda state: {}['x'], [END])")  # fmt: skip
    (place / "flows.py").write_text(routed, "utf-8")
    told = cli("run", "flows.py:reporting", "--run-id", "r1").err
    assert "completed, but its router" in told
    assert not [line for line in told.splitlines() if line.rstrip().endswith("next:")]


def test_two_answers_are_never_described_by_one_comment() -> None:
    asked = {"options": ["approve", "reject", "later"], "approving": ["approve"]}
    for question in (
        Question(key="a.1.1", node="a", text="?", asked_at=0.0, about="gate", **asked),
        Question(key="a.1.1", node="a", text="?", asked_at=0.0, about="gate", options=["red", "blue"]),
        Question(key="a.1.1", node="a", text="?", asked_at=0.0, options=[]),
    ):
        described = [does for _, does in choices(question)]
        assert len(set(described)) == len(described)
