"""Commands that execute, as processes that get a signal: what they print, and with which exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

import forked
from command_line import furnish
from holdfast.cli.exits import Exit

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60

LAST = """
import sys
from holdfast import END, START, Graph

graph = Graph("last", dict)

@graph.node
def only(state):
    sys.stdin.readline()
    return {"only": 1}

flow = graph.chain(START, "only", END).compile()
"""


class Command:
    """`holdfast`, as a process."""

    def __init__(self, *words: str) -> None:
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self.process = forked.Popen(
            [sys.executable, "-m", "holdfast.cli", *words],
            env={**os.environ, "PYTHONPATH": path},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def until(self, said: str) -> None:
        """Read stderr on until a line has this in it."""
        assert self.process.stderr is not None
        lines = []
        while said not in (line := self.process.stderr.readline()):
            lines.append(line)
            assert line, "".join(lines)

    def let_the_node_end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


Start: TypeAlias = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts commands in a folder with `last.py`, and ends those that are left."""
    furnish(tmp_path, monkeypatch, last=LAST)
    started: list[Command] = []

    def begin(*words: str) -> Command:
        started.append(Command(*words))
        return started[-1]

    yield begin
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
        command.process.communicate()


@pytest.mark.parametrize(
    ("number", "name", "code"),
    [(signal.SIGINT, "Ctrl-C", Exit.INTERRUPTED), (signal.SIGTERM, "SIGTERM", Exit.TERMINATED)],
)
def test_a_run_that_completes_within_the_grace_period_is_told_so_and_the_script_stops_all_the_same(
    start: Start, number: int, name: str, code: int
) -> None:
    command = start("run", "last.py", "--run-id", "r1")
    command.until("▶ only")
    command.process.send_signal(number)
    command.until("no new node starts")
    command.let_the_node_end()
    left, out, err = command.ended()
    assert left == code
    assert out.startswith("completed  r1")
    assert f"the run completed within the grace period after {name}, and the exit code is {int(code)}" in out
    assert "resume" not in err


def test_a_command_waits_for_the_process_that_executes_the_run(start: Start) -> None:
    holder = start("run", "last.py", "--run-id", "r1")
    holder.until("▶ only")
    command = start("run", "last.py", "--run-id", "r1")
    command.until(f"note: process {holder.process.pid} on")
    holder.let_the_node_end()
    code, out, err = command.ended()
    assert (code, out.startswith("completed  r1")) == (0, True)
    assert "✓ only" in err
    holder_code, _, holder_err = holder.ended()
    # The command that joined counts the time of a node from its start, not from the moment at which it joined.
    assert err.rpartition("✓ only")[2].strip() == holder_err.rpartition("✓ only")[2].strip() != "0.00 s"
    assert holder_code == 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.TERMINATED)]
)
def test_a_signal_in_a_command_that_waits_for_another_process_leaves_the_run_alone(
    start: Start, number: int, code: int
) -> None:
    holder = start("run", "last.py", "--run-id", "r1")
    holder.until("▶ only")
    command = start("run", "last.py", "--run-id", "r1")
    command.until("note: ")
    command.process.send_signal(number)
    left, out, err = command.ended()
    assert (left, out) == (code, "")
    assert err.startswith(f"stopped waiting. process {holder.process.pid} on")
    assert err.splitlines()[1] == "  holdfast show r1"
    holder.let_the_node_end()
    assert holder.ended()[0] == 0
