"""What happens inside a node outlives its process: steps, waits, questions, streams; each story with real processes,
signals and a SQLite file.

What really happened is told by a witness file that the nodes write beside Holdfast. Where a process is to be met at a
place, the test waits for a line there, for an event in the log, or at a gate (a FIFO that the node reads from), and nobody
sleeps.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import forked
import holdfast as hf
from holdfast.core.events import Stored
from holdfast.errors import RunNotFound
from holdfast.reading import verification
from holdfast.reading.chunks import spilled_chunks
from holdfast.storage.rows import open_row
from holdfast.storage.sqlite.store import SqliteStore

PROGRAM = Path(__file__).parent / "programs" / "inside.py"
KILLED = -signal.SIGKILL
REFUSED, FAILED, CANCELLED = 74, 77, 78
ITEMS, LIMIT, KILLS = 1000, 8, 10
WORDS = [f"word {number}" for number in range(12)]
HALF = WORDS[: len(WORDS) // 2]
HOUR_S = 3600.0
PATIENCE_S = 60
SEED = int(os.environ.get("HOLDFAST_SEED", "0")) or random.randrange(1, 2**32)

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


class Stage:
    """A store, a witness and a gate, for one flow; and the processes that play on it."""

    def __init__(self, folder: Path, flow: str) -> None:
        self.flow = flow
        self.folder = folder
        self.store = folder / "runs.db"
        self.fifo = folder / "gate"
        os.mkfifo(self.fifo)
        self.processes: list[subprocess.Popen[str]] = []

    def begin(self, verb: str, *options: object) -> subprocess.Popen[str]:
        words = [self.flow, verb, self.store, self.folder, *options]
        process = forked.Popen(
            [sys.executable, str(PROGRAM), *map(str, words)],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        self.processes.append(process)
        return process

    def call(self, verb: str, *options: object) -> tuple[int, Any]:
        """Exit code, and what was printed: of a failure, what it said."""
        return end(self.begin(verb, *options))

    def at_the_gate(self) -> Any:
        """Wait until a node is there. What is returned lets it go on when it is closed."""
        return open(self.fifo, "w", encoding="utf-8")

    def seen(self) -> list[list[Any]]:
        """What the witness tells, in order, without who told it."""
        witness = self.folder / "witness"
        lines = witness.read_text().splitlines() if witness.exists() else []
        return [json.loads(line)[1:] for line in lines]

    def times(self, *words: Any) -> int:
        return self.seen().count(list(words))

    def until_seen(self, *words: Any) -> None:
        until(lambda: list(words) in self.seen(), f"the witness tells of {words}")

    def until_recorded(self, kind: str, times: int = 1) -> None:
        until(lambda: self.kinds().count(kind) >= times, f"the log has {times} {kind}")

    @contextmanager
    def opened(self) -> Iterator[SqliteStore]:
        store = SqliteStore(self.store)
        try:
            yield store
        finally:
            store.close()

    def log(self) -> list[Stored]:
        with self.opened() as store, suppress(RunNotFound):
            return [open_row(row, store.blobs) for row in store.events(self.flow)]
        return []

    def kinds(self) -> list[str]:
        return [stored.kind for stored in self.log()]

    def of_kind(self, kind: str) -> list[Any]:
        return [stored.event for stored in self.log() if stored.kind == kind]

    def status(self) -> str:
        with self.opened() as store:
            return store.run(self.flow).status

    def questions(self) -> list[str]:
        return [asked.question.key for asked in hf.questions(self.flow, store=self.store)]

    def answer(self, question: str, value: Any, **more: Any) -> None:
        hf.answer(self.flow, question, value, store=self.store, by="ada", **more)

    def spilled(self) -> list[Any]:
        with self.opened() as store:
            return [chunk.value for chunk in spilled_chunks(store, self.flow)]

    def shown(self) -> str:
        """What a person sees who asks the command line."""
        command = [sys.executable, "-m", "holdfast.cli", "show", self.flow, "--store", str(self.store)]
        return forked.run(command, text=True, capture_output=True, env=ENVIRONMENT, check=True).stdout

    def assert_sound(self) -> None:
        with self.opened() as store:
            assert verification.verify(store, self.flow).problems == []

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def end(process: subprocess.Popen[str]) -> tuple[int, Any]:
    out, said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, json.loads(out) if out else said


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    assert end(process)[0] == KILLED


def until(came: Callable[[], bool], what: str) -> None:
    """Wait until something is so, and look as often as possible."""
    latest = time.monotonic() + PATIENCE_S
    while not came():
        assert time.monotonic() < latest, f"it did not come: {what}"
        os.sched_yield()


def completed(*log: str) -> tuple[int, Any]:
    return 0, {"status": "completed", "done": [], "log": list(log), "questions": []}


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[Callable[[str], Stage]]:
    made: list[Stage] = []

    def make(flow: str) -> Stage:
        made.append(Stage(tmp_path, flow))
        return made[-1]

    yield make
    for stage in made:
        stage.close()


# --- steps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("colour", "kills"), [("loop", KILLS), ("plain", 3), ("thread", 3)])
def test_of_a_thousand_items_none_that_was_recorded_runs_again_however_often_the_process_is_killed(
    stages, colour: str, kills: int
) -> None:
    print(f"HOLDFAST_SEED={SEED}")
    luck = random.Random(SEED)
    stage: Stage = stages("mapping")
    done: set[int] = set()
    for life in range(kills):
        seen = len(stage.seen())
        options = ("--kill-at", luck.randrange(20, 70), "--seed", luck.randrange(2**32))
        code, said = stage.call("resume" if life else "run", "--colour", colour, "--limit", LIMIT, *options)
        assert code == KILLED, said
        assert done.isdisjoint(number for _, number in stage.seen()[seen:])
        done = {
            int(step.step.removeprefix("square[").partition("]")[0])
            for step in stage.of_kind("StepCompleted")
        }
        assert done, "each life keeps something, or it would be quarantined"
    seen = len(stage.seen())
    squares = [number * number for number in range(ITEMS)]
    assert stage.call("resume", "--colour", colour, "--limit", LIMIT) == (
        0,
        {"status": "completed", "done": squares, "log": [], "questions": []},
    )
    assert done.isdisjoint(number for _, number in stage.seen()[seen:])
    calls = Counter(number for _, number in stage.seen())
    assert set(calls) == set(range(ITEMS))
    assert calls.total() <= ITEMS + kills * LIMIT
    assert Counter(step.step for step in stage.of_kind("StepCompleted")).most_common(1)[0][1] == 1
    assert [start.attempt for start in stage.of_kind("NodeStarted")] == list(range(1, kills + 2))
    stage.assert_sound()


# --- questions ----------------------------------------------------------------------------------------


def killed_while_it_asks(stage: Stage) -> list[str]:
    """A process is killed that has asked and still runs. Returns what is asked."""
    asker = stage.begin("run", "--gate")
    with stage.at_the_gate():
        stage.until_recorded("QuestionAsked")
        asked = stage.questions()
        kill(asker)
    return asked


def test_a_question_outlives_the_process_that_asked_it(stages) -> None:
    stage: Stage = stages("gated")
    asked = killed_while_it_asks(stage)
    assert len(asked) == 1
    assert stage.questions() == asked
    waiting = (0, {"status": "waiting", "done": [], "log": ["written"], "questions": asked})
    for _ in range(2):
        assert stage.call("resume") == waiting
    assert stage.kinds().count("QuestionAsked") == 1
    assert (stage.times("publish"), stage.times("write"), stage.times("beside")) == (0, 1, 2)
    stage.assert_sound()


def test_what_was_approved_after_a_crash_runs_once(stages) -> None:
    stage: Stage = stages("gated")
    (key,) = killed_while_it_asks(stage)
    stage.answer(key, "approve")
    assert stage.times("publish") == 0, "an answer only records"
    assert stage.call("resume") == completed("written", "published")
    assert stage.call("resume") == completed("written", "published")
    assert (stage.times("publish"), stage.times("write")) == (1, 1)
    stage.assert_sound()


def test_what_was_rejected_never_runs(stages) -> None:
    stage: Stage = stages("gated")
    (key,) = killed_while_it_asks(stage)
    stage.answer(key, "reject")
    code, said = stage.call("resume")
    assert (code, "QuestionRefused" in said or "reject" in said) == (FAILED, True)
    code, said = stage.call("resume")
    assert (code, "force" in said) == (REFUSED, True)
    code, asked_again = stage.call("resume", "--force")
    assert (code, asked_again["status"]) == (0, "waiting")
    assert len(asked_again["questions"]) == 1
    assert asked_again["questions"] != [key]
    assert stage.times("publish") == 0, "not even when it was forced"
    with pytest.raises(hf.AnswerRefused, match="reject"):
        stage.answer(key, "approve")
    stage.assert_sound()


def test_an_answer_reaches_the_process_that_still_runs(stages) -> None:
    stage: Stage = stages("gated")
    asker = stage.begin("run", "--gate")
    with stage.at_the_gate():
        stage.until_recorded("QuestionAsked")
        assert stage.times("publish") == 0
        stage.answer("publish", "approve")
        stage.until_seen("publish")
    assert end(asker) == completed("written", "published")
    assert stage.times("publish") == 1


def test_a_question_inside_a_node_keeps_its_key_and_the_steps_before_it(stages) -> None:
    stage: Stage = stages("asking")
    asker = stage.begin("run")
    stage.until_recorded("QuestionAsked")
    (key,) = stage.questions()
    kill(asker)
    again = stage.begin("resume")
    stage.until_recorded("NodeStarted", 2)
    assert stage.questions() == [key]
    with pytest.raises(hf.AnswerRefused):
        stage.answer(key, "much")
    stage.answer(key, 7)
    assert end(again) == completed("offered 7")
    assert stage.seen() == [["draft"], ["send", 7]]
    assert stage.kinds().count("QuestionAsked") == 1
    stage.assert_sound()


# --- streams ------------------------------------------------------------------------------------------


def test_what_was_streamed_outlives_a_kill(stages) -> None:
    stage: Stage = stages("streaming")
    speaker = stage.begin("run", "--gate")
    with stage.at_the_gate():
        until(lambda: stage.spilled() == HALF, "the chunks are spilled")
        kill(speaker)
    assert stage.spilled() == HALF
    shown = stage.shown()
    assert ("6 chunks" in shown, HALF[-1] in shown, WORDS[-1] in shown) == (True, True, False)
    assert stage.call("resume") == completed("spoken in attempt 2")
    streamed = [(event.attempt, event.chunks) for event in stage.of_kind("NodeStreamed")]
    assert streamed == [(1, HALF), (2, WORDS)]
    until(lambda: not stage.spilled(), "the spills are dropped")
    stage.assert_sound()


@pytest.mark.parametrize("colour", ["loop", "thread"])
def test_what_a_kept_step_has_streamed_outlives_a_kill_right_after_it(stages, colour: str) -> None:
    """Not one word is lost, although less than a second has passed and nothing was spilled."""
    stage: Stage = stages("spoken")
    assert stage.call("run", "--colour", colour, "--die")[0] == KILLED
    (event,) = stage.of_kind("NodeStreamed")
    assert (event.attempt, event.chunks, [span.step for span in event.spans]) == (1, WORDS, ["say"])
    assert stage.kinds()[-2:] == ["NodeStreamed", "StepCompleted"]
    assert stage.spilled() == []
    assert stage.call("resume", "--colour", colour) == completed("spoken")
    assert [event.chunks for event in stage.of_kind("NodeStreamed")] == [WORDS]
    stage.assert_sound()


def test_what_was_streamed_is_recorded_when_the_process_is_asked_to_stop(stages) -> None:
    stage: Stage = stages("streaming")
    speaker = stage.begin("run", "--gate", "--grace", 0.1)
    with stage.at_the_gate():
        began = time.monotonic()
        speaker.send_signal(signal.SIGTERM)
        assert end(speaker)[0] == 143
        assert time.monotonic() - began < 20, (
            "it takes the grace that it was given, not the 30 s of the default"
        )
    assert stage.kinds()[-3:] == ["NodeStreamed", "NodeInterrupted", "RunInterrupted"]
    assert (stage.status(), stage.of_kind("NodeStreamed")[0].chunks) == ("interrupted", HALF)
    assert stage.call("resume") == completed("spoken in attempt 2")
    assert [event.chunks for event in stage.of_kind("NodeStreamed")] == [HALF, WORDS]
    stage.assert_sound()


def test_a_second_signal_leaves_a_streaming_node_at_once(stages) -> None:
    stage: Stage = stages("streaming")
    speaker = stage.begin("run", "--gate", "--grace", 3600)
    with stage.at_the_gate():
        latest = time.monotonic() + PATIENCE_S
        while speaker.poll() is None:  # two signals at once may arrive as one
            assert time.monotonic() < latest, "it did not leave"
            speaker.send_signal(signal.SIGTERM)
            os.sched_yield()
    assert "RunFailed" not in stage.kinds()
    assert stage.call("resume") == completed("spoken in attempt 2")
    stage.assert_sound()


def test_a_last_node_that_ends_within_grace_completes_the_run(stages) -> None:
    stage: Stage = stages("streaming")
    speaker = stage.begin("run", "--gate", "--grace", PATIENCE_S)
    gate = stage.at_the_gate()
    speaker.send_signal(signal.SIGTERM)
    gate.close()
    assert end(speaker)[0] == 143, "a signal is never swallowed"
    assert (stage.status(), stage.of_kind("NodeStreamed")[0].chunks) == ("completed", WORDS)
    assert stage.call("resume") == completed("spoken in attempt 1")


# --- quarantine ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("colour", "limit"), [("loop", 3), ("thread", 3), ("loop", 1)])
def test_a_node_that_kills_its_process_is_not_tried_for_ever(stages, colour: str, limit: int) -> None:
    stage: Stage = stages("deadly")
    options = ("--colour", colour, "--crash-limit", limit, "--die")
    for life in range(1, limit + 1):
        assert stage.call("resume" if life > 1 else "run", *options)[0] == KILLED
        attempts = [start.attempt for start in stage.of_kind("NodeStarted")]
        assert attempts == list(range(1, life + 1)), "counted before it ran"
        assert stage.times("deadly", life) == 1
    code, said = stage.call("resume", *options)
    assert (code, "Quarantined" in said or "in a row" in said) == (FAILED, True)
    (failed,) = stage.of_kind("RunFailed")
    assert (failed.failure.kind, failed.failure.type, failed.node) == ("fatal", "Quarantined", "deadly")
    code, said = stage.call("resume", *options)
    assert (code, "force" in said) == (REFUSED, True)
    assert len(stage.seen()) == limit
    assert stage.call("resume", "--force", *options[:-1]) == completed("survived")
    stage.assert_sound()


# --- waiting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["loop", "thread"])
def test_a_sleep_goes_on_where_it_was_when_its_process_is_killed(stages, colour: str) -> None:
    stage: Stage = stages("sleeping")
    first = stage.begin("run", "--colour", colour)
    stage.until_recorded("TimerSet")
    kill(first)
    second = stage.begin("resume", "--colour", colour, "--later", HOUR_S / 2)
    stage.until_recorded("RunResumed")
    kill(second)
    code, told = stage.call("resume", "--colour", colour, "--later", HOUR_S + 60)
    assert (code, told["status"], stage.kinds().count("TimerSet")) == (0, "completed", 1)
    assert stage.seen() == [["before"], ["behind"]]
    (fired,) = [stored for stored in stage.log() if stored.kind == "TimerFired"]
    assert fired.at >= stage.of_kind("TimerSet")[0].until
    stage.assert_sound()


def test_a_signal_of_another_process_reaches_a_node_that_waits(stages) -> None:
    stage: Stage = stages("told")
    waiting = stage.begin("run")
    stage.until_recorded("SignalAwaited")
    assert waiting.poll() is None
    hf.signal("told", "paid", 12, store=stage.store)
    assert end(waiting) == completed("paid 12")
    assert stage.seen() == [["before"]]


def test_a_signal_that_came_while_nobody_ran_is_there_when_the_run_is_resumed(stages) -> None:
    stage: Stage = stages("told")
    waiting = stage.begin("run")
    stage.until_recorded("SignalAwaited")
    kill(waiting)
    for _ in range(2):
        hf.signal("told", "paid", 12, store=stage.store, id="invoice-7")
    with pytest.raises(hf.RequestExists, match="invoice-7"):
        hf.signal("told", "paid", 13, store=stage.store, id="invoice-7")
    assert stage.call("resume") == completed("paid 12")
    assert stage.seen() == [["before"]]
    stage.assert_sound()


def test_a_wait_in_a_thread_holds_no_process(stages) -> None:
    stage: Stage = stages("told")
    for verb in ("run", "resume"):
        code, told = stage.call(verb, "--colour", "thread")
        assert (code, told["status"]) == (0, "waiting")
    hf.signal("told", "paid", 12, store=stage.store)
    assert stage.call("resume", "--colour", "thread") == completed("paid 12")
    assert stage.seen() == [["before"]]
    stage.assert_sound()


# --- what must not run twice --------------------------------------------------------------------------


def killed_while_it_pays(stage: Stage) -> str:
    """A process died in a node that is not idempotent; returns the question about it."""
    assert stage.call("run", "--die")[0] == KILLED
    (key,) = stage.call("resume")[1]["questions"]
    assert [words[0] for words in stage.seen()] == ["reserve", "pay"], "not run again unasked"
    (asked,) = hf.questions("paying", store=stage.store)
    assert asked.question.options == ["retry", "skip", "abort"]
    assert asked.question.partial["steps"] == ["reserve"]
    return key


def test_a_payment_that_was_cut_is_tried_again_if_somebody_says_so(stages) -> None:
    stage: Stage = stages("paying")
    stage.answer(killed_while_it_pays(stage), "retry")
    assert stage.call("resume") == completed("paid", "booked")
    assert [words[0] for words in stage.seen()] == ["reserve", "pay", "pay"], "the step before it is kept"
    first, second = (words[1] for words in stage.seen() if words[0] == "pay")
    assert first == second, "whoever is paid can tell that it is the same payment"
    stage.assert_sound()


def test_a_payment_that_was_cut_is_skipped_if_somebody_says_so(stages) -> None:
    stage: Stage = stages("paying")
    key = killed_while_it_pays(stage)
    with pytest.raises(hf.FlowNotFound):  # only the flow knows where the run goes from there
        stage.answer(key, "skip")
    assert stage.questions() == [key]
    assert stage.call("skip", "--question", key)[0] == 0
    assert stage.call("resume") == completed("by hand", "booked")
    assert [words[0] for words in stage.seen()] == ["reserve", "pay"]
    stage.assert_sound()


def test_a_run_whose_payment_was_cut_is_called_off_if_somebody_says_so(stages) -> None:
    stage: Stage = stages("paying")
    stage.answer(killed_while_it_pays(stage), "abort", reason="the bank is closed")
    assert (stage.status(), stage.call("resume")[0]) == ("cancelled", REFUSED)
    assert [words[0] for words in stage.seen()] == ["reserve", "pay"]
    stage.assert_sound()


# --- cancel and pause ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("colour", "told"), [("loop", "CancelledError"), ("thread", "ctx.cancelled")])
def test_a_cancelled_run_tells_the_node_that_runs(stages, colour: str, told: str) -> None:
    stage: Stage = stages("stopping")
    holder = stage.begin("run", "--gate", "--until-cancelled", "--colour", colour)
    stage.until_seen("long")
    hf.cancel("stopping", "not needed", store=stage.store, by="ada")
    assert end(holder)[0] == CANCELLED
    assert stage.seen() == [["long"], [told]]
    assert stage.kinds()[-2:] == ["NodeInterrupted", "RunCancelled"]
    assert stage.of_kind("RunCancelled")[0].by == "ada"
    stage.assert_sound()


@pytest.mark.parametrize("colour", ["loop", "thread"])
def test_a_paused_run_lets_the_node_that_runs_end(stages, colour: str) -> None:
    stage: Stage = stages("stopping")
    holder = stage.begin("run", "--gate", "--colour", colour)
    with stage.at_the_gate():
        hf.pause("stopping", store=stage.store)
        stage.until_recorded("RunPaused")
        assert holder.poll() is None
    code, told = end(holder)
    assert (code, told["status"], told["log"]) == (0, "paused", ["long"])
    assert stage.call("resume") == completed("long", "behind")
    assert stage.seen() == [["long"], ["behind"]]
    stage.assert_sound()
