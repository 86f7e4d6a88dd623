"""Commands that execute, as processes that get a signal: what they print, and with which exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
        self.process = subprocess.Popen(
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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return furnish(tmp_path, monkeypatch, last=LAST)


@pytest.mark.parametrize(
    ("number", "name", "code"),
    [(signal.SIGINT, "Ctrl-C", Exit.INTERRUPTED), (signal.SIGTERM, "SIGTERM", Exit.TERMINATED)],
)
def test_a_run_that_completes_within_the_grace_period_is_told_so_and_the_script_stops_all_the_same(
    number: int, name: str, code: int
) -> None:
    command = Command("run", "last.py", "--run-id", "r1")
    command.until("▶ only")
    command.process.send_signal(number)
    command.until("nothing new starts")
    command.let_the_node_end()
    left, out, err = command.ended()
    assert left == code
    assert out.startswith("completed  r1")
    assert f"it completed within the grace period after {name}, and the exit code is {int(code)}" in out
    assert "resume" not in err
