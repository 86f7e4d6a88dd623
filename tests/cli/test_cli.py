"""The command line as a person meets it: what it prints, what it returns, and that nobody is shown a traceback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
import typer.main

import forked
from command_line import Cli, caller, furnish
from holdfast import errors
from holdfast.cli import log, program, screen
from holdfast.cli.app import FAMILIES, app
from holdfast.cli.exits import OF_STATUSES, Exit, code_of
from holdfast.cli.progress import Display, Stop, _Watch
from holdfast.reading.views import EventView
from holdfast.runtime import settings
from holdfast.runtime.engine import Engine
from holdfast.storage.contract import STATUSES
from holdfast.storage.leases import this_process

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "cli.md"

FLOW = """
import os, sys
from dataclasses import dataclass, field
from typing import Annotated
import holdfast as hf
from holdfast import END, START, Graph, append

@dataclass
class Work:
    name: str
    mode: str = "ok"
    log: Annotated[list[str], append] = field(default_factory=list)

graph = Graph("work", Work)

@graph.node
async def first(state):
    print("printed by a node")
    return {"log": ["first"]}

@graph.node
async def second(state, ctx):
    match state.mode:
        case "fail":
            raise ValueError("no \\x1b[31mluck [bold]here[/bold]")
        case "exit":
            sys.exit(3)
        case "fatal":
            raise hf.Fatal("never")
        case "misfit":
            return {"nme": 1}
        case "die" if ctx.attempt == 1:
            os._exit(77)
        case "hang":
            import asyncio
            await asyncio.sleep(600)
    return {"log": ["second"]}

@graph.node(idempotent=False)
async def third(state):
    if state.mode == "die in third":
        os._exit(77)
    return {"log": ["third"]}

graph.chain(START, first, second, third, END)
flow = graph.compile()

def refuse(state):
    return "not today"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return furnish(tmp_path, monkeypatch, work=FLOW)


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return caller(capsys)


def process(*words: str, **options: object) -> subprocess.Popen[str]:
    """Starts a command in a process of its own."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return forked.Popen(
        [sys.executable, "-m", "holdfast.cli", *words],
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    )


def unread(child: subprocess.Popen[str]) -> int:
    """Goes away before the child has said a word, as `| true` does. Returns its exit code."""
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    child.stderr.close()
    return child.wait(timeout=60)


def given(mode: str) -> str:
    return json.dumps({"name": "x", "mode": mode})


def cut(run_id: str, mode: str = "die") -> None:
    """Leaves a run behind whose process died in the middle."""
    child = process("run", "work.py", "--input", given(mode), "--run-id", run_id)
    child.communicate(timeout=60)
    assert child.returncode == 77


# --- running -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_run_prints_its_progress_on_stderr_and_its_state_on_stdout(cli: Cli, durability: str) -> None:
    ended = cli("run", "work.py", "--input", given("ok"), "--run-id", "r1", "--durability", durability)
    assert ended.code == Exit.OK
    assert '"first",\n    "second",\n    "third"' in ended.out
    told = [re.sub(r"^\S+  ", "", line) for line in ended.err.splitlines()]
    assert [line.split()[:2] for line in told] == [
        ["▶", "first"],
        ["✓", "first"],
        ["▶", "second"],
        ["✓", "second"],
        ["▶", "third"],
        ["✓", "third"],
        ["✓", "run"],
    ]


def test_with_json_stdout_holds_one_document_whatever_the_nodes_print(cli: Cli) -> None:
    ended = cli("run", "work.py", "--input", given("ok"), "--run-id", "r1", "--json")
    assert ended.json["status"] == "completed"
    assert ended.json["state"]["log"] == ["first", "second", "third"]
    assert "printed by a node" in ended.err


def test_an_input_can_stand_in_a_file(cli: Cli, place: Path) -> None:
    (place / "input.json").write_text(given("ok"), "utf-8")
    assert cli("run", "work.py", "--input", "@input.json").code == Exit.OK


def test_the_same_id_with_another_input_is_refused(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("ok"), "--run-id", "r1")
    assert cli("run", "work.py", "--input", given("ok"), "--run-id", "r1").code == Exit.OK
    ended = cli("run", "work.py", "--input", '{"name": "y"}', "--run-id", "r1")
    assert (ended.code, ended.out) == (Exit.REFUSED, "")
    assert "another input" in ended.err


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("fail", "node second failed: ValueError: no \\x1b[31mluck [bold]here[/bold]"),
        ("exit", "the node called sys.exit(3)"),
        ("misfit", "has no field 'nme'; did you mean 'name'?"),
    ],
)
def test_a_failed_run_says_why_and_how_to_carry_it_on(cli: Cli, mode: str, told: str) -> None:
    ended = cli("run", "work.py", "--input", given(mode), "--run-id", "r1")
    assert ended.code == Exit.FAILED
    assert told in ended.err
    assert "$ holdfast resume r1 work.py" in ended.err
    assert "$ holdfast skip r1 second work.py" in ended.err
    assert "\x1b" not in ended.out + ended.err


def test_a_run_that_hangs_fails_at_its_timeout(cli: Cli) -> None:
    ended = cli("run", "work.py", "--input", given("hang"), "--timeout", "0.2")
    assert ended.code == Exit.FAILED
    assert "longer than 0.2 s" in ended.err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.TERMINATED)]
)
def test_a_signal_stops_the_run_in_order_and_the_last_line_carries_it_on(
    cli: Cli, number: int, code: int
) -> None:
    child = process("run", "work.py", "--input", given("hang"), "--run-id", "r1", "--grace", "0")
    assert child.stderr is not None
    for line in child.stderr:
        if "▶ second" in line:
            break
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == code
    assert "no new node starts; waiting up to 0.00 s for second; " in err
    assert err.splitlines()[-1].lstrip().startswith("$ holdfast resume r1 work.py")
    assert "Traceback" not in err
    assert cli("show", "r1", "--json").json["status"] == "interrupted"


def test_a_reader_who_went_away_does_not_disturb_the_run(cli: Cli) -> None:
    child = process("run", "work.py", "--input", given("ok"), "--run-id", "r1")
    assert unread(child) == Exit.OK
    assert cli("show", "r1", "--json").json["status"] == "completed"


def test_a_reader_who_stands_still_does_not_hold_the_run_up(cli: Cli, place: Path) -> None:
    nodes = "\n".join(
        f"@graph.node(name='a_node_with_a_long_name_{number:04d}')\nasync def f(state): return None"
        for number in range(700)
    )
    chain = "graph.chain(START, *graph._nodes, END)"
    (place / "long.py").write_text(
        f"from holdfast import *\nfrom holdfast import END, START, Graph\ngraph = Graph('long')\n{nodes}\n{chain}\n"
    )
    child = process(
        "run", "long.py", "--run-id", "r1"
    )  # its lines are more than a pipe holds, and nobody reads them yet
    try:
        seen = process("events", "r1", "--kind", "RunCompleted", "--follow")
        while "RunCompleted" not in seen.communicate(timeout=60)[0]:  # the run may not have been made yet
            assert child.poll() is None
            seen = process("events", "r1", "--kind", "RunCompleted", "--follow")
        assert child.poll() is None
    finally:
        _, err = child.communicate(timeout=60)
    assert child.returncode == Exit.OK
    assert len(err) > 65536
    assert err.count("✓ a_node") == 700


def test_a_display_that_cannot_write_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        encoding = "utf-8"

        def isatty(self) -> bool:
            return False

        def write(self, words: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    display = Display("r1")
    display.open(None, None)
    body = {"node": "a", "iteration": 1, "execution": 1, "attempt": 1, "by": None, "body": {}}
    for seq in range(3):
        display.tell(EventView(seq=seq, at=0.0, kind="NodeStarted", **body))  # type: ignore[arg-type]
    display.close()


def test_a_live_display_says_for_what_it_waits_after_ctrl_c() -> None:
    display = Display("r1", quiet=True)
    node = {"iteration": 1, "execution": 1, "attempt": 1, "by": None, "body": {}}
    display._story.status = "running"
    display._story.tell(EventView(seq=2, at=0.0, kind="NodeStarted", node="a", **node))  # type: ignore[arg-type]
    display._stops.append(Stop("Ctrl-C", 30.0))
    frame = display._frame(display._story, 1.0, 0.0).plain
    assert "stopping (Ctrl-C): no new node starts" in frame
    assert "waiting up to 30.0 s for a" in frame
    assert "Ctrl-C again stops at once" in frame
    display._stops.append(Stop("Ctrl-C", 30.0))
    assert "stopping at once" in display._frame(display._story, 1.0, 0.0).plain


# --- carrying on -------------------------------------------------------------------------------------


def test_a_run_that_was_cut_is_told_and_carried_on(cli: Cli) -> None:
    cut("r1")
    listed = cli("runs")
    assert "running, crashed" in listed.out
    assert "1 run crashed with its process" in listed.out
    assert "$ holdfast resume r1 work.py" in listed.out
    assert "$ holdfast resume r1 work.py" in cli("show", "r1").out
    assert cli("runs", "--json").json[0]["crashed"] is True
    ended = cli("resume", "r1", "work.py")
    assert ended.code == Exit.OK
    assert "✓ first" not in ended.err
    assert "▶ second  attempt 2" in ended.err


def test_a_cut_node_that_is_not_idempotent_is_asked_about(cli: Cli) -> None:
    cut("r1", "die in third")
    ended = cli("resume", "r1", "work.py")
    assert ended.code == Exit.WAITS
    ways = (
        "answer r1 third retry",
        "answer r1 third skip work.py --update '",
        "answer r1 third abort",
        "resume r1 work.py",
    )
    for way in ways:
        assert f"$ holdfast {way}" in ended.err
        assert f"$ holdfast {way}" in cli("show", "r1").out
    assert "a payment went through" in ended.err
    assert cli("skip", "r1", "third", "work.py", "--update", '{"log": ["by hand"]}').code == Exit.OK
    assert cli("state", "r1").json["log"] == ["first", "second", "by hand"]


def test_a_failed_run_goes_on_with_an_edit_that_is_recorded(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("fail"), "--run-id", "r1")
    ended = cli("resume", "r1", "work.py", "--edit", '{"mode": "ok"}', "--by", "ann", "--reason", "mended")
    assert ended.code == Exit.OK
    (edited,) = cli("events", "r1", "--kind", "StateEdited", "--json").json
    assert (edited["by"], edited["body"]["reason"]) == ("ann", "mended")


def test_a_fatal_failure_needs_force(cli: Cli) -> None:
    ended = cli("run", "work.py", "--input", given("fatal"), "--run-id", "r1")
    assert "$ holdfast resume r1 work.py --force" in ended.err
    assert cli("resume", "r1", "work.py").code == Exit.REFUSED
    assert cli("resume", "r1", "work.py", "--force").code == Exit.FAILED


def test_a_validation_refuses_with_its_message(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("fail"), "--run-id", "r1")
    ended = cli("resume", "r1", "work.py", "--validate", "work.py:refuse")
    assert (ended.code, "not today" in ended.err) == (Exit.REFUSED, True)


def test_a_run_is_rewound_to_a_checkpoint_a_node_or_its_last_step(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("fail"), "--run-id", "r1")
    assert [point["id"] for point in cli("checkpoints", "r1", "--json").json] == ["r1@1", "r1@3"]
    for place in (
        ["r1@1"],
        ["r1", "--checkpoint", "3"],
        ["r1", "--after", "first"],
        ["r1", "--restart-at", "first"],
        ["r1", "--replay"],
    ):
        assert cli("resume", *place, "work.py").code == Exit.FAILED, place
    assert len(cli("events", "r1", "--kind", "RunRewound", "--json").json) == 5
    assert "not current since a rewind" in cli("checkpoints", "r1").out


def test_a_changed_flow_is_refused_with_the_difference(cli: Cli, place: Path) -> None:
    cli("run", "work.py", "--input", given("fail"), "--run-id", "r1")
    changed = FLOW.replace(
        "graph.chain(START, first, second, third, END)", "graph.chain(START, first, second, END)"
    )
    changed = changed.replace("@graph.node(idempotent=False)\n", "")
    (place / "newer.py").write_text(changed, "utf-8")
    ended = cli("resume", "r1", "newer.py")
    assert (ended.code, "third" in ended.err) == (Exit.REFUSED, True)
    assert "--on-change compatible" in ended.err
    assert (
        cli("resume", "r1", "newer.py", "--on-change", "compatible", "--edit", '{"mode": "ok"}').code
        == Exit.OK
    )


def test_retry_takes_a_file_with_or_without_a_node(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("fail"), "--run-id", "r1")
    assert cli("retry", "r1", "work.py").code == Exit.FAILED
    assert cli("retry", "r1", "second", "work.py", "--fresh").code == Exit.FAILED
    ended = cli("retry", "r1", "secnd", "work.py")
    assert (ended.code, "no node 'secnd'" in ended.err) == (Exit.REFUSED, True)


def test_a_fork_prints_its_id_and_the_command_that_carries_it_on(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("ok"), "--run-id", "r1")
    ended = cli("fork", "r1@3", "work.py", "--edit", '{"name": "other"}', "--run-id", "r2")
    assert "holdfast resume r2 work.py" in ended.out
    assert cli("resume", "r2", "work.py", "--json").json["state"]["name"] == "other"
    assert cli("fork", "r1", "--json").json["parent"] == "r1"


def test_a_run_is_cancelled_for_good(cli: Cli) -> None:
    cut("r1")
    assert cli("cancel", "r1", "work.py", "--reason", "enough").out.startswith("cancelled")
    assert "enough" in cli("show", "r1").out
    assert cli("resume", "r1", "work.py").code == Exit.REFUSED
    assert cli("cancel", "r1", "work.py").code == Exit.REFUSED


def test_a_run_that_a_process_executes_is_held_and_takes_requests(cli: Cli) -> None:
    child = process("run", "work.py", "--input", given("hang"), "--run-id", "r1")
    assert child.stderr is not None
    for line in child.stderr:
        if "▶ second" in line:
            break
    held = cli("resume", "r1", "work.py")
    assert (held.code, f"process {child.pid}" in held.err) == (Exit.HELD, True)
    assert held.err.startswith("error: ")
    assert f"process {child.pid}" in cli("show", "r1").out
    assert cli("cancel", "r1").out == "cancelled  r1\n"
    child.communicate(timeout=60)
    assert child.returncode == Exit.CANCELLED


def test_a_process_tells_no_progress_of_another() -> None:
    told: list[int] = []

    class Listener(Display):
        def tell(self, event: EventView) -> None:
            told.append(event.seq)

    def event(seq: int, kind: str, **body: str) -> EventView:
        visit = {"node": None, "iteration": 0, "execution": 0, "attempt": 0, "by": None}
        return EventView(seq=seq, at=0.0, kind=kind, body=body, **visit)  # type: ignore[arg-type]

    watch = _Watch(Engine("memory://"), "r1", 0, Listener("r1", quiet=True))
    watch._tell(event(1, "RunResumed", holder="process 1 on another"))
    watch._tell(event(2, "NodeStarted"))
    assert (told, watch.after) == ([], 2)
    watch._tell(event(3, "RunResumed", holder=this_process().describe()))
    watch._tell(event(4, "NodeStarted"))
    assert told == [3, 4]


def test_pausing_a_run_whose_process_died_records_that_at_once(cli: Cli) -> None:
    cut("r1")
    ended = cli("pause", "r1")
    assert ended.out.splitlines()[:2] == [
        "paused  r1",
        "  the process of the run had crashed in node second; this is now in the log",
    ]
    assert cli("show", "r1", "--json").json["status"] == "paused"


def test_pausing_a_run_that_failed_is_refused(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("fail"), "--run-id", "r1")
    assert cli("pause", "r1", "work.py").code == Exit.REFUSED


def test_a_run_whose_code_is_gone_can_be_cancelled(cli: Cli) -> None:
    cut("r1")
    assert cli("cancel", "r1").code == Exit.OK


def test_the_traceback_of_a_failure_begins_in_the_users_code(cli: Cli) -> None:
    ended = cli("run", "work.py", "--input", given("fail"), "--run-id", "r1", "--json")
    assert "no running event loop" not in ended.json["error"]["traceback"]


# --- flows -------------------------------------------------------------------------------------------


def test_a_project_lists_the_flows_that_commands_find_by_themselves(cli: Cli, place: Path) -> None:
    (place / "pyproject.toml").write_text('[tool.holdfast]\nflows = ["work.py:flow"]\n', "utf-8")
    ended = cli("run", "work.py", "--input", given("fail"), "--run-id", "r1")
    assert "holdfast resume r1 work.py" in ended.err
    assert "$ holdfast resume r1   #" in cli("show", "r1").out
    assert cli("resume", "r1").code == Exit.FAILED


@pytest.mark.parametrize(
    "words", [("resume", "r1"), ("show", "r1"), ("pause", "r1"), ("doctor",)], ids=" ".join
)
def test_a_command_looks_for_the_file_of_the_project_and_reads_it_once(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    cli = caller(capsys, tries_suggestions=False)
    (place / "pyproject.toml").write_text('[tool.holdfast]\nflows = ["work.py:flow"]\n', "utf-8")
    cli("run", "work.py", "--input", given("fail"), "--run-id", "r1")
    looked: list[str] = []
    for name in ("_nearest", "_read_table"):
        monkeypatch.setattr(settings, name, _noting(looked, name, getattr(settings, name)))
    cli(*words)
    assert sorted(looked) == ["_nearest", "_read_table"]
    cli(*words)  # the next command looks again: the file may have changed
    assert len(looked) == 4


def _noting(looked: list[str], name: str, look: Callable[[Path], Any]) -> Callable[[Path], Any]:
    def noted(place: Path) -> Any:
        looked.append(name)
        return look(place)

    return noted


def test_a_command_resolves_the_same_options_once(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = caller(capsys, tries_suggestions=False)
    cli("run", "work.py", "--input", given("fail"), "--run-id", "r1")
    resolved: list[tuple[Any, ...]] = []
    real = settings._resolve

    def resolve(chosen: Any, *rest: Any) -> settings.Settings:
        resolved.append(tuple(one for one in chosen.items() if one[1] is not None))
        return real(chosen, *rest)

    monkeypatch.setattr(settings, "_resolve", resolve)
    cli("resume", "r1", "work.py", "--grace", "3")
    assert len(resolved) == len(set(resolved)) <= 2  # the store of the command, and its engine


def test_a_flow_that_was_not_named_is_asked_for(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("fail"), "--run-id", "r1")
    ended = cli("resume", "r1")
    assert ended.code == Exit.USAGE
    assert "belongs to flow 'work'" in ended.err
    assert "holdfast resume r1 work.py" in ended.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(:\n", r"broken\.py:1: "),
        ("\nimport nothing_of_the_kind\n", r"broken\.py:2: ModuleNotFoundError"),
        ("raise SystemExit(4)\n", r"broken\.py:1: the file exits"),
        ("x = 1\n", "defines no flow"),
        (
            "from holdfast import Graph\na = Graph('a')\nb = Graph('b')\n",
            r"'a', 'b'\. Choose one, as in broken\.py:a",
        ),
        ("from holdfast import Graph\ngraph = Graph('empty')\n", "graph 'empty of broken.py' has"),
        ("from holdfast import Graph\nGraph('empty').compile()\n", r"broken\.py:2: graph 'empty' has"),
    ],
)
def test_a_flow_file_that_cannot_be_used_is_told_with_its_line(
    cli: Cli, place: Path, text: str, told: str
) -> None:
    (place / "broken.py").write_text(text, "utf-8")
    ended = cli("run", "broken.py")
    assert ended.code == Exit.USAGE
    assert re.search(told, ended.err)
    assert not (place / ".holdfast").exists()


@pytest.mark.parametrize(("named", "near"), [("wrok.py", "work.py"), ("work.py:flwo", "flow")])
def test_a_name_that_is_nearly_right_is_guessed(cli: Cli, named: str, near: str) -> None:
    ended = cli("run", named)
    assert (ended.code, f"did you mean {near!r}?" in ended.err) == (Exit.USAGE, True)


def test_a_flow_file_finds_the_modules_beside_it(cli: Cli, place: Path) -> None:
    folder = place / "deep"
    folder.mkdir()
    (folder / "beside_it.py").write_text("NAME = 'deep'\n", "utf-8")
    (folder / "uses.py").write_text(
        "import beside_it\nfrom holdfast import END, START, Graph\ngraph = Graph(beside_it.NAME)\n"
        "@graph.node\ndef a(state): return {'x': 1}\ngraph.chain(START, a, END)\n",
        "utf-8",
    )
    assert cli("run", "deep/uses.py", "--json").json["flow"] == "deep"


# --- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--input", "{name: x}"], "is not JSON"),
        (["--input", '{"name": NaN}'], "NaN is not a JSON value"),
        (["--input", "[1]"], "takes a JSON object"),
        (["--input", "@nowhere.json"], "cannot be read"),
        ([], "the state lacks 'name'"),
        (["--input", '{"nam": 1}'], "did you mean 'name'?"),
        (["--input", '{"name": 1}'], "name"),
        (["--input", '{"name": "x"}', "--run-id", "../x"], "is not a valid run id"),
        (["--input", '{"name": "x"}', "--label", "a"], "--label name=value"),
        (["--input", '{"name": "x"}', "--timeout", "-1"], "above 0"),
        (["--input", '{"name": "x"}', "--durability", "never"], "never"),
        (["--input", '{"name": "x"}', "--store", "mysql://x"], "no store has the scheme"),
        (["--inptu", "1"], "--input"),
    ],
)
def test_bad_input_is_told_and_starts_no_run(cli: Cli, words: list[str], told: str) -> None:
    ended = cli("run", "work.py", *words)
    assert (ended.code, ended.out) == (Exit.USAGE, "")
    assert told in ended.err
    assert cli("runs").code in (Exit.STORE, Exit.OK)
    assert "work-" not in cli("runs").out


READING = [
    ["runs"],
    ["show", "r1"],
    ["graph", "r1"],
    ["events", "r1"],
    ["state", "r1"],
    ["checkpoints", "r1"],
    ["questions"],
    ["questions", "r1"],
    ["answer", "r1", "a", "approve"],
    ["signal", "r1", "paid"],
    ["verify"],
    ["resume", "r1", "work.py"],
    ["retry", "r1", "work.py"],
    ["skip", "r1", "a", "work.py"],
    ["cancel", "r1", "work.py"],
    ["pause", "r1", "work.py"],
    ["fork", "r1"],
]


@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
def test_a_store_that_is_not_there_is_not_made(cli: Cli, place: Path, words: list[str]) -> None:
    ended = cli(*words)
    assert ended.code == Exit.STORE
    assert "there is no store at" in ended.err
    assert not (place / ".holdfast").exists()


@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
def test_an_empty_file_is_no_store_and_stays_empty(cli: Cli, place: Path, words: list[str]) -> None:
    (place / "empty.db").touch()
    ended = cli(*words, "--store", "empty.db")
    assert (ended.code, "empty.db: the file is empty" in ended.err) == (Exit.STORE, True)
    assert (place / "empty.db").stat().st_size == 0


@pytest.mark.parametrize("words", [words for words in READING if len(words) > 1], ids=lambda words: words[0])
def test_an_unknown_run_is_told_with_the_one_that_was_meant(cli: Cli, words: list[str]) -> None:
    cli("run", "work.py", "--input", given("ok"), "--run-id", "r10")
    ended = cli(*words)
    assert ended.code == Exit.NOT_FOUND
    assert "no run 'r1'" in ended.err
    assert "Did you mean 'r10'?" in ended.err


def test_a_place_that_is_not_in_the_log_is_told(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("fail"), "--run-id", "r1")
    assert "has events 1 to" in cli("state", "r1@99").err
    assert cli("state", "r1@99").code == Exit.NOT_FOUND
    assert "which is not a checkpoint" in cli("resume", "r1@2", "work.py").err
    assert cli("state", "r1@99").err.startswith("error: run 'r1' has no event 99.")
    assert cli("fork", "r1@2").code == Exit.REFUSED


@pytest.mark.parametrize("words", [["state"], ["resume"], ["fork"]])
def test_a_place_is_a_number_behind_the_run(cli: Cli, words: list[str]) -> None:
    ended = cli(*words, "r1@x")
    assert (ended.code, "the number of an event after the @, as in r1@3" in ended.err) == (Exit.USAGE, True)


@pytest.mark.parametrize(
    "words",
    [["events"], ["checkpoints"], ["verify"], ["graph"], ["pause"], ["questions"], ["plan", "show"]],
)
def test_a_command_that_takes_a_run_says_which_take_a_place(cli: Cli, words: list[str]) -> None:
    ended = cli(*words, "r1@3")
    assert (ended.code, "The commands show, state, resume and fork take RUN@SEQ" in ended.err) == (
        Exit.USAGE,
        True,
    )


def test_a_flow_file_without_a_name_is_asked_for(cli: Cli) -> None:
    assert "the name of the flow file is empty" in cli("run", "").err


def test_a_store_that_cannot_be_used_is_told_with_its_path(cli: Cli, place: Path) -> None:
    cli("run", "work.py", "--input", given("ok"), "--run-id", "r1", "--store", "good.db")
    whole = (place / "good.db").read_bytes()
    (place / "text.db").write_text("this is a text, and no database at all\n" * 200)
    (place / "short.db").write_bytes(whole[: len(whole) // 2])
    (place / "newer.db").write_bytes(whole)
    newer = apsw.Connection(str(place / "newer.db"))
    newer.pragma("user_version", 9999)
    newer.close()
    (place / "folder.db").mkdir()
    for name, told in (
        ("text", "not a SQLite database"),
        ("newer", "schema version 9999"),
        ("folder", "is a folder"),
        ("short", "short.db"),
    ):
        for words in (["runs"], ["show", "r1"], ["run", "work.py", "--input", given("ok")]):
            ended = cli(*words, "--store", f"{name}.db")
            assert (ended.code, ended.out) == (Exit.STORE, ""), (name, words, ended)
            assert told in ended.err
    ended = cli("run", "work.py", "--input", given("ok"), "--store", "text.db/runs.db")
    assert (ended.code, "Choose a path" in ended.err) == (Exit.STORE, True)


def test_verify_finds_an_altered_event(cli: Cli, place: Path) -> None:
    cli("run", "work.py", "--input", given("ok"), "--run-id", "r1")
    cli("run", "work.py", "--input", given("ok"), "--run-id", "r2")
    assert cli("verify").code == Exit.OK
    file = apsw.Connection(str(place / ".holdfast" / "runs.db"))
    file.execute("update events set attempt = 2 where seq = 2 and run = (select min(run) from events)")
    file.close()
    ended = cli("verify")
    assert ended.code == Exit.DAMAGED
    assert "✗ r1" in ended.out
    assert "r2" not in ended.out
    assert cli("verify", "r2").code == Exit.OK
    assert cli("verify", "--json").json["ok"] is False
    for words in (["verify"], ["verify", "--json"]):
        assert unread(process(*words)) == Exit.DAMAGED


def test_an_error_that_nobody_reads_keeps_its_exit_code(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("ok"), "--run-id", "r1")
    assert unread(process("show", "r2")) == Exit.NOT_FOUND


def test_an_error_in_json_is_one_line_for_a_program(cli: Cli) -> None:
    ended = cli("show", "r1", "--json")
    told = json.loads(ended.err)["error"]
    assert (told["type"], told["exit_code"], ended.code) == ("StoreUnusable", Exit.STORE, Exit.STORE)


@pytest.mark.parametrize(
    "words", [["show", "--nope"], ["show"], ["no-such-command"], ["runs", "--limit", "x"], ["events", "r1@3"]]
)
def test_a_wrong_option_in_json_is_one_line_for_a_program(cli: Cli, words: list[str]) -> None:
    ended = cli(*words, "--json")
    told = json.loads(ended.err)["error"]
    assert (told["exit_code"], ended.code, ended.out) == (Exit.USAGE, Exit.USAGE, "")


def test_debug_shows_the_traceback(place: Path) -> None:
    child = process("run", "nowhere.py", "--debug")
    _, err = child.communicate(timeout=60)
    assert (child.returncode, "Traceback" in err) == (Exit.USAGE, True)


# --- looking -----------------------------------------------------------------------------------------


def test_runs_are_filtered(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("ok"), "--run-id", "r1", "--label", "team=a")
    cli("run", "work.py", "--input", given("fail"), "--run-id", "r2")

    def ids(*words: str) -> list[str]:
        return [run["id"] for run in cli("runs", "--json", *words).json]

    assert ids() == ["r2", "r1"]
    assert ids("--status", "failed") == ["r2"]
    assert ids("--label", "team=a") == ["r1"]
    assert ids("--flow", "other") == []
    assert ids("--limit", "1") == ["r2"]
    assert "--limit 4" in cli("runs", "--limit", "1").out
    assert "did you mean 'failed'?" in cli("runs", "--status", "faild").err


def test_a_state_is_shown_at_any_place_and_as_what_changed(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("ok"), "--run-id", "r1")
    assert cli("state", "r1@1").json["log"] == []
    assert '+ log[1]: "second"' in cli("state", "r1@5", "--diff").out
    assert cli("state", "r1", "--against", "1", "--json").json["changes"][0]["path"] == "log[0]"


def test_changes_tell_new_gone_and_changed_values_apart() -> None:
    found = list(
        log.changes({"a": None, "b": [1, 2], "c": {"d": 1}}, {"b": [1, 3], "c": {"d": True, "e": None}})
    )
    assert found == [
        ("-", "a", None, None),
        ("~", "b[1]", 2, 3),
        ("~", "c.d", 1, True),
        ("+", "c.e", None, None),
    ]


def test_events_are_filtered_and_followed(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("ok"), "--run-id", "r1")
    followed = [
        json.loads(line)
        for line in cli("events", "r1", "--follow", "--json", "--after", "2").out.splitlines()
    ]
    assert followed == [event for event in cli("events", "r1", "--json").json if event["seq"] > 2]
    assert {event["node"] for event in cli("events", "r1", "--node", "first", "--json").json} == {"first"}
    assert "did you mean 'NodeStarted'?" in cli("events", "r1", "--kind", "NodeStartd").err


def test_how_long_a_cut_node_took_is_not_made_up(cli: Cli) -> None:
    cut("r1")
    assert re.search(r"second +—, crashed$", cli("show", "r1").out, re.MULTILINE)


def test_show_ends_with_commands_that_can_be_pasted(cli: Cli) -> None:
    cli("run", "work.py", "--input", given("ok"), "--run-id", "r1")
    told = cli("show", "r1").out.partition("More:\n")[2]
    commands = re.findall(r"^  \$ holdfast (\S+ r1)   #", told, re.MULTILINE)
    assert commands == ["events r1", "state r1", "checkpoints r1"]
    assert all(cli(*words.split()).code == Exit.OK for words in commands)


def test_a_retry_is_told_by_the_time_it_is_due_and_items_by_their_number(cli: Cli, place: Path) -> None:
    (place / "items.py").write_text(
        "from holdfast import END, START, Graph, Recoverable, Retry\ngraph = Graph('items')\n"
        "@graph.node(each=lambda state: [7, 8], label=lambda item: f'part {item}', retry=Retry(attempts=2, backoff=0.01))\n"
        "def each(item, ctx):\n    if item == 7 and ctx.attempt == 1: raise Recoverable('no')\n"
        "graph.chain(START, each, END)\n",
        "utf-8",
    )
    ended = cli("run", "items.py", "--run-id", "r1")
    assert ended.code == Exit.OK
    assert "item 0 (part 7) failed" in ended.err
    assert "item 1 (part 8): 1 of 2 done" in ended.err
    shown = cli("events", "r1", "--kind", "ItemFailed").out
    assert '"item": 0' in shown
    assert re.search(r'"retry_at": "\d{4}-\d\d-\d\d ', shown)


def test_a_flow_is_drawn_from_its_file_and_from_a_run(cli: Cli) -> None:
    assert "●  second" in cli("graph", "work.py").out
    cli("run", "work.py", "--input", given("fail"), "--run-id", "r1")
    assert "✗  second" in cli("graph", "r1").out
    assert cli("graph", "r1", "--mermaid").out.startswith("flowchart TD")
    assert "<title>Flow work</title>" in cli("graph", "work.py", "--svg").out
    assert "<title>Run r1 of flow work: failed</title>" in cli("graph", "r1", "--svg").out


def test_a_flow_is_described_above_its_graph(cli: Cli, place: Path) -> None:
    text = (place / "work.py").read_text("utf-8")
    assert 'Graph("work", ' in text
    (place / "work.py").write_text(
        text.replace('Graph("work", ', 'Graph("work", description="Does the work.", state='), "utf-8"
    )
    assert cli("graph", "work.py").out.startswith("Does the work.\n")
    told = json.loads(cli("graph", "work.py", "--json").out)
    assert (told["description"], told["input_schema"]["type"]) == ("Does the work.", "object")


def test_nothing_that_a_user_supplied_steers_the_terminal(cli: Cli) -> None:
    cli(
        "run",
        "work.py",
        "--input",
        json.dumps({"name": "\x1b]0;x\x07\u202e\x9b31m", "mode": "fail"}),
        "--run-id",
        "r1",
        "--label",
        "a=\x1b[2J",
    )
    for words in (
        ["runs"],
        ["show", "r1"],
        ["events", "r1"],
        ["state", "r1"],
        ["state", "r1@3", "--diff"],
        ["show", "r1", "--json"],
    ):
        ended = cli(*words)
        assert ended.code == Exit.OK
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", ended.out), words
    assert cli("state", "r1").json["name"] == "\x1b]0;x\x07\u202e\x9b31m"


@pytest.mark.parametrize("text", ["[bold]x[/bold]", "[link=http://x]y[/link]", ":smile:", "[/]"])
def test_no_text_is_read_as_markup(text: str) -> None:
    assert screen.text((text, "red")).plain == text


def test_a_terminal_gets_the_same_words_with_colours(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("run", "work.py", "--input", given("fail"), "--run-id", "r1")
    plain = cli("show", "r1").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = cli("show", "r1").out
    assert "\x1b[" in coloured
    without = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    same = re.compile(r"\d+ s ago| +$", re.MULTILINE)
    assert same.sub("", without) == same.sub("", plain)


# --- what to type ------------------------------------------------------------------------------------


def test_commands_are_suggested_as_they_can_be_typed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a project" / ".venv" / "bin"
    folder.mkdir(parents=True)
    python, executable = folder / "python", folder / "holdfast"
    here, path = str(tmp_path / "a project"), str(folder)
    assert program._name(here, path, "cli/__main__.py", str(python)) == ".venv/bin/python -m holdfast.cli"
    executable.touch(mode=0o755)
    program._name.cache_clear()
    for called in (str(executable), "cli/__main__.py"):
        assert program._name(here, "/nowhere", called, str(python)) == ".venv/bin/holdfast"
        assert program._name(here, path, called, str(python)) == "holdfast"
        assert program._name(str(tmp_path / "other"), "/nowhere", called, str(python)) == f"'{executable}'"
        assert program._name(str(folder), "/nowhere", called, str(python)) == "./holdfast"
    monkeypatch.setattr(program, "name", lambda: ".venv/bin/holdfast")
    told = program.spell("`holdfast runs` lists them; holdfast is here; ./holdfast show r1")
    assert told == "`.venv/bin/holdfast runs` lists them; holdfast is here; ./holdfast show r1"


def test_every_command_is_known_where_messages_are_spelled() -> None:
    assert set(program._COMMANDS.split("|")) == {name for names in FAMILIES.values() for name in names}


# --- promises ----------------------------------------------------------------------------------------


def sections() -> dict[str, str]:
    """Command -> what docs/cli.md says under its head."""
    parts = re.split(
        r"^### `holdfast ((?:plan )?[a-z]+)[^\n]*\n", DOCUMENT.read_text("utf-8"), flags=re.MULTILINE
    )
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_command_is_documented_with_every_option_and_no_other() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(sections()) == set(commands) == {name for names in FAMILIES.values() for name in names}
    for name, text in sections().items():
        documented = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text.split("\n## ")[0]))
        offered = {
            option for param in commands[name].params for option in param.opts if option.startswith("-")
        }
        assert documented - {"-f", "-i"} == {option for option in offered if option.startswith("--")}, name


def test_every_exit_code_is_documented() -> None:
    listed = re.findall(r"^\| (\d+) \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert [int(code) for code in listed] == [int(code) for code in Exit]


def test_every_error_and_every_status_has_an_exit_code() -> None:
    assert set(OF_STATUSES) == set(STATUSES)
    assert code_of(errors.StoreFull("")) is Exit.STORE
    assert code_of(errors.RunHeld("r", "h")) is Exit.HELD
    assert code_of(errors.AnswerRefused("r", "q", "no")) is Exit.REFUSED
    assert code_of(errors.FlowNotFound("f", ())) is Exit.USAGE
    assert code_of(errors.IllegalEvent("")) is Exit.DEFECT


def test_help_does_not_wait_for_rich() -> None:
    code = """
import sys
from holdfast.cli.app import app
try:
    app(["--help"])
except SystemExit:
    assert "rich" not in sys.modules
"""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = forked.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Execute a run" in done.stdout
