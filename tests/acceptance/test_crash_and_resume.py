"""Processes that die, stop, are stopped and compete: each story once, with real processes, signals and files.

A node waits at a gate, which is a FIFO: to open it for writing waits until the node is there, and to close it lets
the node go on. So the tests and their children meet at places, and nobody sleeps.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import forked
from holdfast.reading import verification
from holdfast.storage.contract import RunRow
from holdfast.storage.sqlite.store import SqliteStore

PROGRAM = Path(__file__).parent / "programs" / "steps.py"
RUN_ID = "steps"
HELD, FENCED, FAILED, CANCELLED = 75, 76, 77, 78
WHOLE = ["first 1", "turn 1", "turn 2", "turn 3", "last 1"]
PATIENCE_S = 60

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


class Stage:
    """A store, a witness and a gate; and the processes that play on it."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "runs.db"
        self.witness = folder / "witness"
        self.fifo = folder / "gate"
        os.mkfifo(self.fifo)
        self.processes: list[subprocess.Popen[str]] = []

    def begin(self, verb: str, *options: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            str(PROGRAM),
            verb,
            str(self.store),
            str(self.witness),
            "--fifo",
            str(self.fifo),
            *options,
        ]
        process = forked.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
        )
        self.processes.append(process)
        return process

    def call(self, verb: str, *options: str) -> tuple[int, Any]:
        """Exit code, and what was printed."""
        return end(self.begin(verb, *options))

    def at_the_gate(self) -> Any:
        """Wait until a node is there. What is returned lets it go on when it is closed."""
        return open(self.fifo, "w", encoding="utf-8")

    def seen(self) -> list[tuple[str, int]]:
        """Node and iteration of every body that began, in order."""
        return [
            (node, iteration)
            for node, iteration, _, _ in map(json.loads, self.witness.read_text().splitlines())
        ]

    def kinds(self) -> list[str]:
        store = SqliteStore(self.store)
        try:
            return [row.kind for row in store.events(RUN_ID)]
        finally:
            store.close()

    def row(self) -> RunRow:
        store = SqliteStore(self.store)
        try:
            return store.run(RUN_ID)
        finally:
            store.close()

    def assert_sound(self) -> None:
        store = SqliteStore(self.store)
        try:
            assert verification.verify(store, RUN_ID).problems == []
        finally:
            store.close()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def end(process: subprocess.Popen[str]) -> tuple[int, Any]:
    out, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, json.loads(out) if out else None


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def completed(**more: Any) -> tuple[int, Any]:
    return 0, {"status": "completed", "log": WHOLE, "questions": 0, **more}


# --- death --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kill", "exit"])
@pytest.mark.parametrize("place", ["first:1", "turn:2", "last:1"])
def test_a_node_that_takes_its_process_with_it_runs_again_and_nothing_else_does(
    stage: Stage, place: str, how: str
) -> None:
    code, _ = stage.call("run", "--die", place, "--how", how)
    assert code == (-signal.SIGKILL if how == "kill" else 5)
    assert stage.call("resume") == completed()
    node, _, iteration = place.partition(":")
    again = [visit for visit, times in Counter(stage.seen()).items() if times > 1]
    assert again == [(node, int(iteration))]
    stage.assert_sound()


def test_run_itself_carries_on_what_a_dead_process_left(stage: Stage) -> None:
    stage.call("run", "--die", "turn:2")
    assert stage.call("run") == completed()
    assert Counter(stage.seen())["first", 1] == 1


def test_a_loop_that_kills_its_process_each_time_round_comes_to_its_end(stage: Stage) -> None:
    stage.call("run", "--die", "turn:1")
    for place in ("turn:1", "turn:2", "turn:3"):
        code, _ = stage.call("resume", "--die", place)
        assert code == -signal.SIGKILL
    assert stage.call("resume") == completed()
    assert stage.kinds().count("NodeCompleted") == 5
    stage.assert_sound()


def test_sys_exit_in_a_node_fails_the_run_and_not_the_process(stage: Stage) -> None:
    code, _ = stage.call("run", "--die", "turn:2", "--how", "sys.exit")
    assert (code, stage.row().status) == (FAILED, "failed")
    assert stage.call("resume") == completed()


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_run_of_less_durability_is_carried_on_from_what_was_kept(stage: Stage, durability: str) -> None:
    code, _ = stage.call("run", "--die", "turn:3", "--durability", durability)
    assert code == -signal.SIGKILL
    assert stage.call("run", "--durability", durability) == completed()
    stage.assert_sound()


@pytest.mark.parametrize(
    ("verb", "code", "log"),
    [
        ("retry", 0, WHOLE),
        ("skip", 0, ["first 1", "turn 1", "skipped", "turn 3", "last 1"]),
        ("cancel", 0, ["first 1", "turn 1"]),
    ],
)
def test_a_process_that_dies_in_a_node_that_is_not_idempotent_leaves_a_question(
    stage: Stage, verb: str, code: int, log: list[str]
) -> None:
    stage.call("run", "--once", "--die", "turn:2")
    for _ in range(2):
        assert stage.call("resume", "--once") == (
            0,
            {"status": "waiting", "log": ["first 1", "turn 1"], "questions": 1},
        )
    assert Counter(stage.seen())["turn", 2] == 1, "not silently run twice"
    ended, told = stage.call(verb, "--once")
    assert (ended, told["log"]) == (code, log)
    stage.assert_sound()


def test_a_dead_holder_is_taken_over_at_once(stage: Stage) -> None:
    stage.call("run", "--die", "turn:2", "--lease-ttl", "3600")
    began = time.perf_counter()
    assert stage.call("resume") == completed()
    assert time.perf_counter() - began < 20.0, "the start of the process and the rest of the run included"


# --- competition --------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [2, 8])
def test_of_many_processes_that_resume_a_run_one_executes_it_and_the_others_are_told(
    stage: Stage, many: int
) -> None:
    stage.call("run", "--die", "turn:2")
    rivals = [stage.begin("resume", "--gate", "turn:2") for _ in range(many)]
    with stage.at_the_gate():
        for _ in range(many - 1):
            assert one_that_ended(rivals).returncode == HELD
    (winner,) = rivals
    assert end(winner) == completed()
    assert Counter(stage.seen()) == Counter(
        {("first", 1): 1, ("turn", 1): 1, ("turn", 2): 2, ("turn", 3): 1, ("last", 1): 1}
    )
    stage.assert_sound()


def one_that_ended(processes: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Wait for whichever ends first, and take it from the list."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        for process in processes:
            if process.poll() is not None:
                processes.remove(process)
                return process
        os.sched_yield()
    raise AssertionError("none of them ended")


def test_a_live_holder_is_named(stage: Stage) -> None:
    holder = stage.begin("run", "--gate", "turn:2")
    with stage.at_the_gate():
        other = stage.begin("resume")
        _, said = other.communicate(timeout=PATIENCE_S)
        assert (other.returncode, f"process {holder.pid}" in said) == (HELD, True)
    assert end(holder) == completed()


def test_a_holder_that_was_stopped_loses_the_run_and_cannot_write_when_it_wakes(stage: Stage) -> None:
    zombie = stage.begin("run", "--gate", "turn:2", "--lease-ttl", "1")
    gate = stage.at_the_gate()
    zombie.send_signal(signal.SIGSTOP)
    until = time.monotonic() + PATIENCE_S
    code, told = stage.call("resume", "--lease-ttl", "1")
    while code == HELD and time.monotonic() < until:
        code, told = stage.call("resume", "--lease-ttl", "1")
    assert (code, told) == completed()
    before = stage.kinds()
    zombie.send_signal(signal.SIGCONT)
    gate.close()
    _, said = zombie.communicate(timeout=PATIENCE_S)
    assert (zombie.returncode, said.startswith("FenceLost")) == (FENCED, True)
    assert stage.kinds() == before
    stage.assert_sound()


def test_a_run_is_cancelled_from_another_process(stage: Stage) -> None:
    holder = stage.begin("run", "--gate", "turn:2")
    with stage.at_the_gate():
        assert stage.call("cancel")[0] == 0
        code, _ = end(holder)
    assert (code, stage.row().status) == (CANCELLED, "cancelled")
    assert stage.kinds()[-2:] == ["NodeInterrupted", "RunCancelled"]


def test_a_run_is_paused_from_another_process_and_resumed(stage: Stage) -> None:
    holder = stage.begin("run", "--gate", "turn:2")
    gate = stage.at_the_gate()
    assert stage.call("pause")[0] == 0
    wait_for(stage, "RunPaused")
    gate.close()
    assert end(holder) == (0, {"status": "paused", "log": ["first 1", "turn 1", "turn 2"], "questions": 0})
    assert stage.call("resume") == completed()
    assert set(Counter(stage.seen()).values()) == {1}
    stage.assert_sound()


def wait_for(stage: Stage, kind: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while kind not in stage.kinds():
        assert time.monotonic() < until, f"no {kind} came"


# --- signals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["thread", "loop"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_lets_the_running_node_end_and_the_run_is_interrupted(
    stage: Stage, colour: str, number: signal.Signals, code: int
) -> None:
    process = stage.begin("run", "--gate", "turn:2", "--colour", colour)
    gate = stage.at_the_gate()
    process.send_signal(number)
    gate.close()
    assert end(process)[0] == code
    row = stage.row()
    assert (row.status, row.held) == ("interrupted", False)
    assert stage.kinds()[-1] == "RunInterrupted"
    assert stage.call("resume") == completed()
    assert set(Counter(stage.seen()).values()) == {1}, "the node had its grace"
    stage.assert_sound()


@pytest.mark.parametrize("colour", ["thread", "loop"])
def test_a_node_that_outlives_its_grace_is_cut_and_recorded(stage: Stage, colour: str) -> None:
    process = stage.begin("run", "--gate", "turn:2", "--grace", "0.1", "--colour", colour)
    with stage.at_the_gate():
        process.send_signal(signal.SIGTERM)
        assert end(process)[0] == 143
    assert stage.kinds()[-2:] == ["NodeInterrupted", "RunInterrupted"]
    assert stage.call("resume", "--colour", colour) == completed()
    assert Counter(stage.seen())["turn", 2] == 2


@pytest.mark.parametrize("colour", ["thread", "loop", "stubborn", "hog"])
def test_a_second_signal_leaves_at_once(stage: Stage, colour: str) -> None:
    process = stage.begin("run", "--gate", "turn:2", "--grace", "3600", "--colour", colour)
    with stage.at_the_gate():
        process.send_signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < until:  # two signals at once may arrive as one
            process.send_signal(signal.SIGTERM)
            os.sched_yield()
        assert process.poll() is not None, "it did not leave"
    assert stage.call("resume") == completed()
    stage.assert_sound()


def test_a_node_that_hogs_the_event_loop_does_not_cost_the_lease(stage: Stage) -> None:
    process = stage.begin("run", "--gate", "turn:2", "--colour", "hog", "--lease-ttl", "2")
    with stage.at_the_gate():
        first_ends_at = lease_ends_at(stage)
        until = time.monotonic() + PATIENCE_S
        while lease_ends_at(stage) <= first_ends_at + 2:  # not yet renewed beyond the end of that
            assert time.monotonic() < until, "it is not renewed"
            os.sched_yield()
        assert stage.call("resume", "--colour", "hog")[0] == HELD
    assert end(process) == completed()


def lease_ends_at(stage: Stage) -> float:
    database = apsw.Connection(str(stage.store), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return max(ends_at for (ends_at,) in database.execute("select expires_at from holders"))
    finally:
        database.close()
