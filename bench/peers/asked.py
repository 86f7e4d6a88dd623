"""The code that the programs of all peers share: the questions they get, the clock, and the answers they print.

A peer runs in two modes, at the same durability: "shipped", with the library's own settings of its database, and "wal", with the
journal mode of our own store set on the file first. Both are checked on the connection that the library uses: `synchronous` must
be FULL (2) or more, otherwise its steps would not be durable, and the program refuses. In the mode "postgres" it gets the URL of
an empty database, and checks the settings of the server. LangGraph has a third mode at SQLite, "sync": large states are measured
with `durability="sync"` and, "shipped", with the default of the library.
"""

import gc
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

WARM_UP_STEPS = 5
"""The first steps of a loop beside a large state, which do not count: they prepare statements and caches."""

_LEVELS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


@dataclass(frozen=True)
class Asked:
    """One measurement: a workload and how large it is."""

    workload: str
    steps: int
    runs: int
    size: int
    """How large the state is, of the workloads with a large state: bytes of rows, or messages before the first step."""
    mode: str
    path: Path
    """The path for the database."""
    url: str = ""
    """The URL of an empty PostgreSQL database, in that mode."""

    def prepare(self) -> None:
        """Create the file in the wanted journal mode, which SQLite stores in the file."""
        if self.mode == "wal":
            connection = sqlite3.connect(self.path)
            assert connection.execute("pragma journal_mode=wal").fetchone() == ("wal",)
            connection.close()


@dataclass(frozen=True)
class Answer:
    """The time that a workload took, and its settings."""

    wall_s: float
    steps: int
    synchronous: int
    journal: str
    note: str = ""
    cpu_s: float = 0.0
    """CPU time of all threads, of the workloads with a large state."""


class Laps:
    """Notes when each step of a loop beside a large state began, and when the loop ended."""

    def __init__(self) -> None:
        self._at: list[tuple[float, float]] = []

    def note(self) -> None:
        self._at.append((time.perf_counter(), time.process_time()))

    def taken(self) -> dict[str, Any]:
        """Return the steps after the warm-up, and the time that they took."""
        (began_s, cpu_began_s), (ended_s, cpu_ended_s) = self._at[WARM_UP_STEPS], self._at[-1]
        steps = len(self._at) - 1 - WARM_UP_STEPS
        return {"wall_s": ended_s - began_s, "cpu_s": cpu_ended_s - cpu_began_s, "steps": steps}


class Clock:
    """Measures a block."""

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.perf_counter() - self._began


def settings(execute: Callable[[str], Any]) -> dict[str, Any]:
    """The durability of a connection, as SQLite reports it."""
    return {
        "synchronous": execute("pragma synchronous").fetchone()[0],
        "journal": f"journal mode {execute('pragma journal_mode').fetchone()[0]}",
    }


def server_settings(execute: Callable[[str], Any]) -> dict[str, Any]:
    """The durability of a connection, as PostgreSQL reports it, in the terms of SQLite."""
    told = [execute(f"show {name}").fetchone() for name in ("fsync", "synchronous_commit")]
    on = all("on" in (row.values() if isinstance(row, dict) else row) for row in told)
    return {"synchronous": 2 if on else 0, "journal": "WAL of PostgreSQL"}


def answer(workloads: dict[str, Callable[[Asked], Answer]], *packages: str) -> None:
    """Answer every question with a line of JSON, until there are no more. The output of the library goes to stderr."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            gc.collect()
            print(json.dumps(_answered(json.loads(line), workloads, packages)), file=answers, flush=True)


def _answered(
    asked: dict[str, Any], workloads: dict[str, Callable[[Asked], Answer]], packages: tuple[str, ...]
) -> dict[str, Any]:
    work = workloads.get(asked["workload"])
    if work is None:
        return {"cannot": f"it has no {asked['workload']}"}
    with tempfile.TemporaryDirectory(dir=asked.pop("folder")) as folder:
        question = Asked(**asked, path=Path(folder) / "peer.db")
        question.prepare()
        found = work(question)
        stored = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    if found.synchronous < 2:
        sys.exit(f"synchronous is {_LEVELS[found.synchronous]}: these steps are not durable")
    return {
        "wall_s": found.wall_s,
        "cpu_s": found.cpu_s,
        "steps": found.steps,
        "stored_bytes": stored,
        "settings": f"{found.journal}, synchronous={_LEVELS[found.synchronous]}{found.note}",
        "versions": {package: version(package) for package in packages},
    }
