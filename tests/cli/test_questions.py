"""Questions, answers and signals as a person meets them: real processes, what they print and what they return."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import forked
from command_line import Cli, Ended, caller, furnish
from holdfast.cli.exits import Exit
from holdfast.cli.progress import Display, _status
from holdfast.core import answers
from holdfast.core.events import KINDS
from holdfast.core.run_state import Question
from holdfast.reading import words as words_of_events
from holdfast.reading.chunks import Chunk
from holdfast.reading.remedies import choices, form
from holdfast.reading.story import Story
from holdfast.reading.views import EventView

ROOT = Path(__file__).resolve().parents[2]
WHEN = r"(?:\d{1,2} [A-Z][a-z]{2}, )?\d\d:\d\d(?::\d\d)?"
"""A time as a reason has it: without the date, if it is today."""

FLOW = """
import asyncio, os
from dataclasses import dataclass, field
from typing import Annotated
import holdfast as hf
from holdfast import END, START, Graph, append

@dataclass
class Post:
    mode: str = ""
    price: int = 0
    log: Annotated[list[str], append] = field(default_factory=list)

def witness(word):
    with open("witness", "a") as file:
        file.write(word + "\\n")
    return word

async def held():  # keeps its node in memory while a test wants it there
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)

# --- a gate and a question node

gated = Graph("gated", Post)

@gated.node
async def write(state, ctx):
    ctx.cost(usd=0.25, tokens=1200)

@gated.node(approve="Publish it?")
def publish(state):
    return {"log": [witness("published")]}

gated.ask("price", "What does it cost?", schema=int, into="price", timeout=3600)
gated.chain(START, write, publish, "price", END)
gate = gated.compile()

# --- signals and asks inside nodes

inside = Graph("inside", Post)

@inside.node
def collect(state, ctx):
    paid = ctx.wait_for("paid")
    return {"log": [f"paid {paid}"]}

@inside.node(safe_to_fail=True)
def note(state):
    raise ValueError("no pen")

@inside.node
async def ship(state, ctx):
    if state.mode == "two":
        how, when, _ = await asyncio.gather(
            ctx.ask("How?", options=["post", "courier"]), ctx.ask("When?", schema=str), ctx.step("held", held)
        )
        return {"log": [f"{how} {when}"]}
    if state.mode == "sleep":
        await ctx.sleep(3600)
    if state.mode == "signal":
        await ctx.wait_for("shipped")
    if state.mode == "typed":
        return {"price": await ctx.wait_for("price", type=int)}
    if state.mode == "word":
        word = await ctx.wait_for("word", type=str)
        post = await ctx.wait_for("post", type=Post)
        return {"log": [word, post.mode]}
    return {}

inside.chain(START, collect, note, ship, END)
waits = inside.compile()

# --- a node that must not run twice

once = Graph("once", Post)

@once.node(idempotent=False)
async def charge(state, ctx):
    witness("charged")
    await ctx.step("quote", lambda: 3)
    await ctx.checkpoint({"page": 7})
    ctx.emit("x" * 70_000 + "\\nthe last line\\n")   # enough to be spilled at once
    while not ctx._work.stream.segment.spilled or ctx._work.stream.segment._spilling:
        await asyncio.sleep(0.001)
    os._exit(77)

@once.node
def ship_it(state):
    return {"log": ["shipped"]}

once.chain(START, charge, ship_it, END)
pay = once.compile()

# --- a node that streams until it is told to stop

stream = Graph("stream", Post)

@stream.node
async def talk(state, ctx):
    for number in range(3):
        yield f"word {number}\\n"
    await asyncio.gather(ctx.ask("Enough?", options=["yes", "no"]), ctx.step("held", held))

stream.chain(START, talk, END)
talks = stream.compile()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "120")
    return furnish(tmp_path, monkeypatch, post=FLOW)


def started(*words: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return forked.Popen(
        [sys.executable, "-m", "holdfast.cli", *words],
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def cli(place: Path) -> Cli:
    """Calls a command in a process of its own."""

    def call(*words: str) -> Ended:
        child = started(*words)
        out, err = child.communicate(timeout=60)
        assert "Traceback" not in err
        return Ended(child.returncode, out, err)

    return call


@pytest.fixture
def quick(place: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Calls a command in this process, where no process is the point."""
    return caller(capsys)


@pytest.fixture
def live(place: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command that goes on, and returns when it has said a word on stderr."""
    children = []

    def begin(word: str, *words: str) -> subprocess.Popen[str]:
        child = started(*words)
        children.append(child)
        assert child.stderr is not None
        for line in child.stderr:
            if word in line:
                return child
        raise AssertionError(f"{words} ended without {word!r}")

    yield begin
    for child in children:
        child.kill()
        child.communicate()


def witnessed(place: Path) -> list[str]:
    file = place / "witness"
    return file.read_text().splitlines() if file.exists() else []


# --- gates -------------------------------------------------------------------------------------------


def test_a_gate_is_asked_rejected_forced_and_approved(cli: Cli, place: Path) -> None:
    ended = cli("run", "post.py:gate", "--run-id", "r1")
    assert ended.code == Exit.WAITS
    assert ended.err.splitlines()[-4:] == [
        "  publish asks: Publish it?",
        "  $ holdfast answer r1 publish approve   # either continue with publish",
        "  $ holdfast answer r1 publish reject   # or refuse: the run fails, and publish never runs",
        "  $ holdfast resume r1 post.py:gate   # then resume it; completed work does not run again",
    ]
    assert "$0.25, 1200 tokens" in ended.err
    listed = cli("questions")
    assert listed.code == Exit.OK
    assert "publish.1.1  publish has not started  Publish it?  approve / reject" in listed.out
    assert "$ holdfast answer r1 publish approve" in listed.out
    assert "publish asks: Publish it?" in cli("runs").out

    wrong = cli("answer", "r1", "publish", "yes")
    assert (wrong.code, "'yes' is not one of the options 'approve', 'reject'" in wrong.err) == (
        Exit.REFUSED,
        True,
    )
    assert len(cli("questions", "--json").json) == 1

    rejected = cli("answer", "r1", "publish", "reject", "post.py:gate", "--reason", "too dull")
    assert rejected.code == Exit.OK
    assert (
        "$ holdfast resume r1 post.py:gate   # or let the run end: it fails, because publish was refused and never ran"
        in rejected.out
    )
    failed = cli("resume", "r1", "post.py:gate")
    assert failed.code == Exit.FAILED
    assert "QuestionRefused" in failed.err
    assert (
        "$ holdfast resume r1 post.py:gate --force   # either ask again; publish starts only if it is approved this time"
        in failed.err
    )
    assert cli("resume", "r1", "post.py:gate").code == Exit.REFUSED
    assert witnessed(place) == []

    assert cli("resume", "r1", "post.py:gate", "--force").code == Exit.WAITS
    assert witnessed(place) == []
    approved = cli("answer", "r1", "publish", "approve", "--by", "agent:x", "--confidence", "0.9")
    assert approved.code == Exit.OK
    assert approved.out.splitlines()[:2] == [
        'answered  r1 publish.1.1#2: "approve"',
        "  answered by agent:x, and no live worker takes flow 'gated'",
    ]
    assert "$ holdfast resume r1 post.py:gate" in approved.out
    assert "Why:  answered by agent:x, and no live worker takes flow 'gated'" in cli("show", "r1").out
    assert "pending, answered" in cli("runs").out
    twice = cli("answer", "r1", "publish", "reject")
    assert (twice.code, "the question was answered 'approve' by agent:x already" in twice.err) == (
        Exit.REFUSED,
        True,
    )

    assert cli("resume", "r1", "post.py:gate").code == Exit.WAITS
    assert witnessed(place) == ["published"]
    assert cli("answer", "r1", "price", "--", "-5").code == Exit.OK
    ended = cli("resume", "r1", "post.py:gate")
    assert (ended.code, json.loads(ended.out.partition("\n")[2])["price"]) == (Exit.OK, -5)


def test_a_question_that_lapses_waits_for_somebody_and_was_not_cut(quick: Cli) -> None:
    quick("run", "post.py:gate", "--run-id", "r1")
    quick("answer", "r1", "publish", "approve")
    quick("resume", "r1", "post.py:gate")
    (row,) = quick("runs", "--json").json
    assert (row["status"], row["crashed"], row["asks"]) == ("waiting", False, ["price.1.1"])
    shown = quick("show", "r1").out
    assert re.search(rf"price asks: What does it cost\? \(until {WHEN}\)", shown)
    assert "$ holdfast answer r1 price NUMBER   # answer price with a whole number" in shown
    told_so = quick("answer", "r1", "price", "five")
    assert (told_so.code, "is not a whole number" in told_so.err) == (Exit.REFUSED, True)


# --- signals and asks --------------------------------------------------------------------------------


def test_a_signal_is_taken_before_and_after_the_wait(cli: Cli) -> None:
    ended = cli("run", "post.py:waits", "--run-id", "after")
    assert ended.code == Exit.WAITS
    assert ended.err.splitlines()[-3] == "  collect waits for the signal 'paid'"
    assert "  $ holdfast signal after paid   # send the signal" in ended.err
    sent = cli("signal", "after", "paid", '{"usd": 3}', "--by", "bank")
    assert sent.out.splitlines()[:2] == [
        'sent  after paid: {"usd": 3}',
        "  the signal 'paid' was sent by bank, and no live worker takes flow 'inside'",
    ]
    assert (
        "the signal 'paid' was sent by bank, and no live worker takes flow 'inside'"
        in cli("show", "after").out
    )
    ended = cli("resume", "after", "post.py:waits")
    assert (ended.code, "paid {'usd': 3}" in ended.out) == (Exit.OK, True)
    assert "warning: node note failed, which is ignored (safe_to_fail): ValueError: no pen" in ended.err
    assert (
        "Warning:  node note failed, which is ignored (safe_to_fail): ValueError: no pen"
        in cli("show", "after").out
    )

    cli("run", "post.py:waits", "--run-id", "before")
    kept = cli("signal", "before", "early", "--id", "once")
    assert "no node waits for this signal yet; it is kept for the next node that does" in kept.out
    assert cli("signal", "before", "early", "--id", "once", "--json").json["kept"] is True
    assert len(cli("events", "before", "--kind", "SignalReceived", "--json").json) == 1
    fork = cli("fork", "before@1", "--json").json["id"]
    assert cli("signal", fork, "paid", "7").code == Exit.OK
    ended = cli("resume", fork, "post.py:waits")
    assert (ended.code, "paid 7" in ended.out) == (Exit.OK, True)

    late = cli("signal", "after", "paid")
    assert (late.code, "it is completed, which is final" in late.err) == (Exit.REFUSED, True)


def test_a_payload_stands_in_a_file_and_must_be_json(quick: Cli, place: Path) -> None:
    quick("run", "post.py:waits", "--run-id", "r1")
    wrong = quick("signal", "r1", "paid", "{usd")
    assert (wrong.code, "PAYLOAD is not JSON" in wrong.err) == (Exit.USAGE, True)
    (place / "payload.json").write_text('{"usd": 9}')
    assert quick("signal", "r1", "paid", "@payload.json", "--json").json["payload"] == {"usd": 9}
    assert quick("signal", "r1", "").code == Exit.USAGE


def test_the_process_that_executes_the_run_goes_on_with_the_answer(
    cli: Cli, live: Callable[..., subprocess.Popen[str]], place: Path
) -> None:
    given = ("run", "post.py:waits", "--run-id", "r1", "--input", '{"mode": "two"}')
    assert cli(*given).code == Exit.WAITS
    cli("signal", "r1", "paid")
    child = live("asks: When?", *given)
    shown = cli("show", "r1").out
    assert "executes it, now in ship; ship asks: How?; ship asks: When?" in shown
    assert "holdfast answer r1 'ship.1.1:ask:How?' post   # either answer ship" in shown
    both = cli("answer", "r1", "ship", "post")
    assert (both.code, "node 'ship' has 2 open questions; choose one by its key" in both.err) == (
        Exit.REFUSED,
        True,
    )
    assert (
        "executes the run, and continues with the answer"
        in cli("answer", "r1", "ship.1.1:ask:How?", "post").out
    )
    assert cli("answer", "r1", "ship", "7").code == Exit.OK
    (place / "go").touch()
    out, _ = child.communicate(timeout=60)
    assert (child.returncode, '"post 7"' in out) == (Exit.OK, True)


def test_a_signal_that_does_not_fit_is_refused_or_shown_as_set_aside(quick: Cli) -> None:
    given = ("run", "post.py:waits", "--run-id", "r1", "--input", '{"mode": "typed"}')
    quick(*given)
    assert quick("signal", "r1", "price", '"early"').code == Exit.OK, "nothing waits for it yet"
    quick("signal", "r1", "paid")
    quick(*given)
    shown = quick("show", "r1").out
    assert "Set aside:  the signal 'price' = \"early\" did not fit ship: payload" in shown
    assert "holdfast signal r1 price NUMBER   # send the signal with a whole number" in shown
    assert "SignalSetAside    ship  sets the signal 'price' aside, which does not fit: payload" in re.sub(
        r" +ship +", "    ship  ", quick("events", "r1").out
    )
    wrong = quick("signal", "r1", "price", '"much"', "--id", "i1")
    assert (wrong.code, "'much' is not a whole number. Node 'ship' waits for it" in wrong.err) == (
        Exit.REFUSED,
        True,
    )
    assert quick("signal", "r1", "price", "7", "--id", "i1").code == Exit.OK
    assert quick(*given, "--json").json["state"]["price"] == 7


def test_the_suggested_signal_can_be_pasted_and_fits_the_wait(quick: Cli) -> None:
    given = ("run", "post.py:waits", "--run-id", "r1", "--input", '{"mode": "word"}')
    quick(*given)
    quick("signal", "r1", "paid")
    assert """$ holdfast signal r1 word '"TEXT"'   # send the signal with a text""" in quick(*given).err
    assert quick("signal", "r1", "word", '"TEXT"').code == Exit.OK
    quick(*given)
    typed = '{"mode": "", "price": 0, "log": […]}'
    assert f"$ holdfast signal r1 post '{typed}'" in quick("show", "r1").out
    assert quick("signal", "r1", "post", typed.replace("…", "")).code == Exit.OK
    assert quick(*given, "--json").json["state"]["log"] == ["paid None", "TEXT", ""]


def test_a_command_returns_a_second_after_a_coroutine_has_begun_to_wait(quick: Cli) -> None:
    given = ("run", "post.py:waits", "--run-id", "r1", "--input", '{"mode": "signal"}')
    quick(*given)
    quick("signal", "r1", "paid")
    assert quick(*given).code == Exit.WAITS
    found = quick("events", "r1", "--json").json
    at = {one["kind"]: one["at"] for one in found if one["node"] == "ship"}
    assert 1.0 <= at["NodeWaiting"] - at["SignalAwaited"] < 20.0


def test_a_timer_whose_process_died_was_cut(cli: Cli, live: Callable[..., subprocess.Popen[str]]) -> None:
    given = ("run", "post.py:waits", "--run-id", "r1", "--input", '{"mode": "sleep"}')
    cli(*given)
    cli("signal", "r1", "paid")
    child = live("sleeps until", *given)
    assert re.search(rf"ship sleeps until {WHEN}\b", cli("show", "r1").out)
    child.kill()
    child.wait()
    shown = cli("show", "r1").out
    assert re.search(
        r"Why:  process \d+ on \S+, which executed it, crashed( in \w+)?, and no live worker takes flow 'inside'",
        shown,
    )
    assert "$ holdfast resume r1 post.py:waits" in shown


HOLD = """
from holdfast import END, START, Graph

graph = Graph("seats")


@graph.node
def hold(state, ctx):
    ctx.step("reserve", lambda: "12 A")
    ctx.wait_for("paid")


flow = graph.chain(START, hold, END).compile()
"""


def test_a_node_that_waited_when_its_run_was_cancelled_is_not_shown_as_waiting(cli: Cli, place: Path) -> None:
    (place / "seats.py").write_text(HOLD, "utf-8")
    cli("run", "seats.py", "--run-id", "r1")
    cli("cancel", "r1", "--reason", "sold out")
    shown = cli("show", "r1").out
    assert "hold had not ended when the run was cancelled. What is known about it:" in shown
    left = "hold waited and was not in memory, so its cleanup did not run; its kept steps: reserve"
    assert f"Not cleaned up:  {left}" in shown
    assert f"the run is cancelled ({left}): sold out" in cli("ledger", "r1").out


# --- nodes that were cut -----------------------------------------------------------------------------


def test_a_cut_node_is_shown_with_what_is_known_and_skipped_with_an_update(cli: Cli, place: Path) -> None:
    git = ("git", "-c", "user.name=n", "-c", "user.email=n@example.org")
    forked.run([*git, "init", "-q", "-b", "trunk"], check=True)
    forked.run([*git, "add", "post.py"], check=True)
    forked.run([*git, "commit", "-q", "-m", "first"], check=True)
    assert cli("run", "post.py:pay", "--run-id", "r1").code == 77
    before = cli("show", "r1").out
    assert cli("resume", "r1", "post.py:pay").code == Exit.WAITS
    shown = cli("questions", "r1").out
    for known in (before, shown):
        assert "crashed. What is known about it:" in known
        assert "steps kept  quote" in known
        assert 'checkpoint  {"page": 7}' in known
        assert "streamed    1 chunk, the last lines:" in known
        assert "  | the last line" in known
    assert "answer r1 charge skip post.py:pay --update" in shown
    assert "on trunk" in shown
    assert "pyproject.toml" in shown
    assert "charge crashed" in shown
    update = ("--update", '{"log": ["by hand"]}')
    asked = cli("answer", "r1", "charge", "skip", *update)
    assert (
        asked.code,
        '`holdfast answer r1 charge skip --update \'{"log": ["by hand"]}\' post.py:pay`' in asked.err,
    ) == (Exit.USAGE, True)
    misfit = cli("answer", "r1", "charge", "skip", "post.py:pay", "--update", '{"lgo": 1}')
    assert (misfit.code, "did you mean 'log'?" in misfit.err) == (Exit.REFUSED, True)
    assert cli("answer", "r1", "charge", "retry", *update).code == Exit.REFUSED
    assert cli("answer", "r1", "charge", "skip", "post.py:pay", *update).code == Exit.OK
    assert cli("resume", "r1", "post.py:pay").code == Exit.OK
    assert cli("state", "r1").json["log"] == ["by hand", "shipped"]
    assert witnessed(place) == ["charged"]


def test_a_cut_node_is_aborted(cli: Cli, place: Path) -> None:
    assert cli("run", "post.py:pay", "--run-id", "r1").code == 77
    assert cli("resume", "r1", "post.py:pay").code == Exit.WAITS
    ended = cli("answer", "r1", "charge", "abort", "--reason", "never mind")
    assert (ended.code, "cancelled" in ended.out) == (Exit.OK, True)
    assert cli("resume", "r1", "post.py:pay").code == Exit.REFUSED
    assert witnessed(place) == ["charged"]


# --- bad input ---------------------------------------------------------------------------------------


def test_what_nobody_asks_is_told_with_what_was_meant(quick: Cli) -> None:
    quick("run", "post.py:gate", "--run-id", "r1")
    near = quick("answer", "r1", "publsh", "approve")
    assert (near.code, "the run has no such open question; did you mean 'publish'?" in near.err) == (
        Exit.REFUSED,
        True,
    )
    far = quick("answer", "r1", "weather", "approve")
    assert (far.code, "its open questions are: publish.1.1" in far.err) == (Exit.REFUSED, True)
    assert quick("answer", "r1", "publish", "approve", "--confidence", "7").code == Exit.USAGE
    assert quick("answer", "r1", "publish", "approve", "--update", "{}").code == Exit.REFUSED
    assert quick("answer", "r1", "publish").code == Exit.USAGE
    assert len(quick("questions", "--json").json) == 1
    quick("cancel", "r1")
    late = quick("answer", "r1", "publish", "approve")
    assert (late.code, "it is cancelled, which is final" in late.err) == (Exit.REFUSED, True)
    assert quick("questions").out == "No run has an open question.\n"
    assert quick("questions", "r1").out == "Run r1 has no open question.\n"


def test_a_program_gets_json_of_all(quick: Cli) -> None:
    ran = quick("run", "post.py:gate", "--run-id", "r1", "--json")
    assert (ran.code, ran.json["questions"][0]["key"]) == (Exit.WAITS, "publish.1.1")
    (asked,) = quick("questions", "r1", "--json").json
    assert (asked["run_id"], asked["flow"], asked["about"], asked["options"]) == (
        "r1",
        "gated",
        "gate",
        ["approve", "reject"],
    )
    assert asked["remedies"][0]["command"] == "holdfast answer r1 publish approve"
    error = json.loads(quick("answer", "r1", "publish", "no", "--json").err)["error"]
    assert (error["type"], error["exit_code"]) == ("AnswerRefused", Exit.REFUSED)
    answered = quick("answer", "r1", "publish", "approve", "--json").json
    assert (answered["question"], answered["answer"], answered["status"], answered["held_by"]) == (
        "publish.1.1", "approve", "pending", None,
    )  # fmt: skip
    assert "holdfast resume r1 post.py:gate" in [one["command"] for one in answered["remedies"]]
    shown = quick("show", "r1", "--json").json
    assert (shown["answered"], shown["awaited"], shown["partial"]) == (True, [], [])
    sent = quick("signal", "r1", "x", "1", "--json").json
    assert (sent["signal"], sent["payload"], sent["kept"]) == ("x", 1, True)


# --- events, chunks and progress ---------------------------------------------------------------------


def test_chunks_are_followed_as_they_come(
    cli: Cli, live: Callable[..., subprocess.Popen[str]], place: Path
) -> None:
    child = live("asks: Enough?", "run", "post.py:talks", "--run-id", "r1")
    follower = started("events", "r1", "--follow", "--chunks", "--json")
    assert follower.stdout is not None
    seen: list[Any] = []
    while len([one for one in seen if one["kind"] == "Chunk"]) < 3:  # a child that lives has spilled them
        seen.append(json.loads(follower.stdout.readline()))
    assert [one["value"] for one in seen if one["kind"] == "Chunk"] == ["word 0\n", "word 1\n", "word 2\n"]
    assert "talk waits. So far:" in cli("show", "r1").out
    cli("answer", "r1", "talk", "yes")
    (place / "go").touch()
    child.communicate(timeout=60)
    rest, _ = follower.communicate(timeout=60)
    assert json.loads(rest.splitlines()[-1])["kind"] == "RunCompleted"
    assert "streamed 3 chunks, the last line: word 2" in cli("events", "r1").out
    (later,) = [one for one in seen if one["kind"] == "Chunk" and one["number"] == 2]
    again = cli("events", "r1", "--follow", "--chunks", "--json", "--after", later["cursor"])
    words = [json.loads(line) for line in again.out.splitlines()]
    assert [(one["value"], one["step"]) for one in words if one["kind"] == "Chunk"] == [("word 2\n", None)]
    assert json.loads(again.out.splitlines()[-1])["cursor"] == str(len(cli("events", "r1", "--json").json))
    assert cli("events", "r1", "--after", later["cursor"], "--json").code == Exit.OK
    wrong = cli("events", "r1", "--after", "soon")
    assert (wrong.code, "give the number of an event, or the cursor" in wrong.err) == (Exit.USAGE, True)
    alone = cli("events", "r1", "--chunks")
    assert (alone.code, "--chunks needs --follow" in alone.err) == (Exit.USAGE, True)


def test_every_new_kind_of_event_has_a_short_line(quick: Cli) -> None:
    assert set(words_of_events._WORDS) <= set(KINDS)
    quick("run", "post.py:waits", "--run-id", "r1", "--input", '{"mode": "two"}')
    quick("signal", "r1", "paid", '{"usd": 1}')
    lines = quick("events", "r1").out
    assert "SignalAwaited     collect  waits for the signal 'paid'" in lines
    assert (
        "NodeWaiting       collect  suspended: uses no memory while it waits for the signal 'paid'" in lines
    )
    assert "SignalReceived    received the signal 'paid' = {\"usd\": 1} by " in lines


def event(kind: str, seq: int = 1, **body: Any) -> EventView:
    by = body.pop("by", None)
    return EventView(
        seq=seq, at=float(seq), kind=kind, node="a", iteration=1, execution=1, attempt=1, by=by, body=body
    )


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("StepCompleted", {"step": "quote", "value": 3, "item": 2}, "step quote (item 2) is kept = 3"),
        ("StepCompleted", {"step": "none"}, "step none is kept"),
        ("StepStarted", {"step": "ship"}, "calls the step ship, which must not be called twice"),
        (
            "StepFailed",
            {"step": "pay", "item": 2, "failure": {"type": "Declined", "message": "no"}},
            "step pay (item 2) is kept, and raises Declined: no",
        ),
        ("TimerFired", {"slot": "try:pay:2"}, "tries the step pay again"),
        (
            "NodeWaiting",
            {"on": ["try:pay:2"]},
            "suspended: uses no memory while it waits for the next try of the step pay",
        ),
        ("NodeCheckpointed", {"value": [1]}, "checkpoint [1]"),
        ("NodeStreamed", {"chunks": ["a\nb", {"c": 1}]}, 'streamed 2 chunks, the last line: {"c": 1}'),
        ("CostIncurred", {"usd": 0.5, "tokens": 1}, "spent $0.5, 1 token"),
        ("CostIncurred", {}, "spent nothing"),
        ("TimerFired", {"slot": "sleep:1"}, "woke from its sleep"),
        ("TimerFired", {"slot": "signal:paid:1"}, "the signal 'paid' did not come in time"),
        ("TimerFired", {"slot": ""}, "no answer came in time"),
        ("QuestionAsked", {"text": "Go?", "options": ["y", "n"]}, "asks: Go? (y / n)"),
        (
            "QuestionAnswered",
            {"answer": "n", "refused": True, "confidence": 0.5, "reason": "dull", "by": "me"},
            'answered "n" (a refusal) by me, confidence 0.5: dull',
        ),
    ],
)
def test_an_event_is_told_in_a_few_words(kind: str, body: dict[str, Any], words: str) -> None:
    assert words_of_events.words(event(kind, **body)) == words


def test_a_story_is_pausing_while_a_node_still_runs_after_a_pause() -> None:
    story = Story()
    story.tell(event("NodeStarted"))
    story.tell(msgspec.structs.replace(event("RunPaused", by="ann"), iteration=0))
    assert _status(story) == "pausing"
    story.tell(event("NodeCompleted"))
    assert _status(story) == "paused"


def test_a_story_tells_waiting_nodes_and_not_every_one_of_a_thousand_steps() -> None:
    story = Story()
    story.tell(event("NodeStarted"))
    lines = [story.tell(event("StepCompleted", step=f"m[{number}]")) for number in range(1000)]
    assert sum(line is not None for line in lines) == 24 + 10
    assert story.nodes["a"].steps == 1000
    for number, value in enumerate(["one ", "two\nthr", "ee", "\n", {"four": 4}], 1):
        story.stream(
            Chunk(
                run_id="r",
                node="a",
                iteration=1,
                execution=1,
                attempt=1,
                item=None,
                number=number,
                value=value,
            )
        )
        assert story.nodes["a"].last_line == ["one ", "thr", "three", "three", '{"four": 4}'][number - 1]
    story.tell(event("SignalAwaited", name="paid"))
    story.status = "running"
    assert (story.nodes["a"].status, story.nodes["a"].note, _status(story)) == (
        "waiting", "waits for the signal 'paid'", "waiting",
    )  # fmt: skip
    story.tell(event("SignalReceived", name="paid"))
    assert _status(story) == "running"
    story.tell(event("CostIncurred", usd=0.5, tokens=10))
    assert "$0.5, 10 tokens" in Display("r1", quiet=True)._frame(story, 2.0, 1.0).plain


# --- what is offered ---------------------------------------------------------------------------------


def asked(**said: Any) -> Question:
    return Question(
        **({"key": "k", "node": "a", "text": "?", "options": [], "asked_at": 0.0, "about": "ask"} | said)
    )


def test_what_may_be_answered_is_offered_as_it_is_typed() -> None:
    assert [typed for typed, _ in choices(asked(about="interrupt"))] == ["retry", "skip", "abort"]
    assert [typed for typed, _ in choices(asked(options=["x", "y"]))] == ["x", "y"]
    refused = choices(asked(options=["yes", "no"], approving=["yes"], about="gate"))[1]
    assert refused == ("no", "refuse: the run fails, and a never runs")
    assert choices(asked()) == [("VALUE", "answer a with JSON or a text")]
    assert form({"type": "boolean"}) == ("true", "true or false")
    assert form({"enum": ["b", 1]}) == ('"b"', "one of b, 1")
    schema = {
        "$ref": "#/$defs/Who",
        "$defs": {"Who": {"type": "object", "properties": {"name": {}, "age": {}}}},
    }
    assert form(schema) == ('{"name": VALUE, "age": VALUE}', "an object, as JSON")


class Place(msgspec.Struct):
    town: str
    near: Place | None = None


class Sent(msgspec.Struct, tag="sent"):
    count: int
    to: Place
    by: Literal["post", "hand"]
    items: list[str]


class Kept(msgspec.Struct, tag="kept"):
    until: dt.date


@pytest.mark.parametrize(
    ("type", "typed", "words"),
    [
        (int | None, "NUMBER", "a whole number or null"),
        (str | int, "TEXT", "a text or a whole number"),
        (Place | None, '{"town": "TEXT", "near": null}', "an object, as JSON, or null"),
        (
            Sent | Kept,
            '{"type": "sent", "count": NUMBER, "to": {"town": "TEXT", "near": null}, "by": "hand", "items": […]}',
            "an object, as JSON",
        ),
        (dt.date, "TEXT", "a text like '2024-02-29'"),
        (bytes, "TEXT", "a text like 'aGVsbG8='"),
        (Literal[3], "3", "3"),
        (type(None), "null", "null"),
        (dt.datetime, "VALUE", "JSON or a text for datetime"),
    ],
)
def test_a_placeholder_fits_what_a_wait_or_a_question_takes(type: Any, typed: str, words: str) -> None:
    assert form(answers.payload_schema_of(type)) == (typed, words)


@pytest.mark.parametrize(
    ("type", "typed", "words"),
    [
        (str, '"TEXT"', "a text"),
        (str | None, '"TEXT"', "a text or null"),
        (Literal["a", "b"], '"a"', "one of a, b"),
        (dt.datetime, "VALUE", "JSON for datetime"),
    ],
)
def test_a_placeholder_for_the_payload_of_a_signal_is_json(type: Any, typed: str, words: str) -> None:
    assert form(answers.payload_schema_of(type), as_json=True) == (typed, words)


def test_a_schema_that_contains_itself_has_a_short_placeholder() -> None:
    again = {"type": "object", "properties": {"inner": {"$ref": "#/$defs/Again"}}}
    typed, _ = form({"$ref": "#/$defs/Again", "$defs": {"Again": again}})
    assert typed == '{"inner": {"inner": {"inner": {"inner": …}}}}'
    endless = {"anyOf": [{"$ref": "#/$defs/Endless"}]}
    assert form(
        {"type": "object", "properties": {"a": True, "b": endless}, "$defs": {"Endless": endless}}
    ) == (
        '{"a": VALUE, "b": …}',
        "an object, as JSON",
    )


def test_a_value_is_json_where_it_is_json_and_fits_and_a_text_otherwise() -> None:
    from holdfast.cli.questions import _read

    assert _read("5", asked()) == 5
    assert _read("five", asked()) == "five"
    assert _read("5", asked(answer_schema={"type": "string"})) == "5"
    assert _read('"5"', asked(answer_schema={"type": "string"})) == "5"
    assert _read("5", asked(options=["5", "6"])) == "5"
    assert _read("NaN", asked()) == "NaN"
    assert _read("[" * 100_000, asked()) == "[" * 100_000
    assert _read("5", None) == "5"
