"""A service as a process (`acceptance/programs/service.py`), for tests that send it signals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import forked
import holdfast as hf

PROGRAM = Path(__file__).parent / "acceptance" / "programs" / "service.py"
RUN_ID = "r1"
PATIENCE_S = 60


class Service:
    """A process that runs one form of the service."""

    def __init__(self, form: str, folder: Path, *arguments: str) -> None:
        self.store = str(folder / "runs.db")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self.process = forked.Popen(
            [sys.executable, str(PROGRAM), form, self.store, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def line(self) -> str:
        """The next line that it prints; empty when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def until(self, said: str) -> None:
        """Read on until it has printed this line."""
        lines = []
        while (line := self.line()) != said:
            lines.append(line)
            assert line, (lines, self.ended())

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def let_first_end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ended(self) -> tuple[int, list[str], str]:
        """Its exit code, and what it printed since, on stdout and on stderr."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out.splitlines(), err

    def kinds(self) -> list[str]:
        return [event.kind for event in hf.events(RUN_ID, store=self.store)]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


Start: TypeAlias = Callable[..., Service]
"""Starts a service in a form, with arguments; the fixture `start_service`."""
