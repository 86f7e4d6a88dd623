"""Workers whose clocks are ten hours apart, as processes of their own, on one SQLite file and on PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import runpy
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
import holdfast as hf
from holdfast.core.kinds import TAKES_OVER
from holdfast.storage.urls import open_store
from postgres_server import drop_schema, schema_for, shared_url

PROGRAM = Path(__file__).parent / "programs" / "held.py"
flow = runpy.run_path(str(PROGRAM))["flow"]
FIVE_HOURS = 5 * 3600.0
TTL_S = 1.0
PATIENCE_S = 60

SKEWED = """
import sys, time
real, skew = time.time, float(sys.argv.pop(1))
time.time = lambda: real() + skew  # before anything of Holdfast is imported
from holdfast.cli.app import main
sys.exit(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: Any, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "runs.db")
        return
    schema = schema_for(tmp_path)
    server = shared_url()
    yield f"{server}{'&' if '?' in server else '?'}schema={schema}"
    drop_schema(server, schema)


class Fleet:
    """Workers with clocks of their own, and what they have done."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.workers: list[subprocess.Popen[str]] = []

    def add(self, skew_s: float) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        environment |= {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "WITNESS": str(self.folder / "witness"),
            "GO": str(self.folder / "go"),
            "HOLDFAST_LEASE_TTL": str(TTL_S),
        }
        words = [sys.executable, "-c", SKEWED, str(skew_s), "worker", str(PROGRAM), "--store", self.url]
        worker = forked.Popen(words, cwd=self.folder, env=environment, stderr=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, text=True)  # fmt: skip
        self.workers.append(worker)
        return worker

    def witnessed(self) -> list[tuple[str, str, int]]:
        file = self.folder / "witness"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(run_id, what, int(pid)) for run_id, what, pid in map(str.split, lines)]

    def until(self, found: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not found():
            assert time.monotonic() < end, self.witnessed()
            time.sleep(0.02)

    def start(self, *run_ids: str, short: bool = False) -> None:
        async def main() -> None:
            async with hf.Engine(self.url) as engine:
                for run_id in run_ids:
                    await engine.start(flow, {"short": short}, run_id=run_id)

        asyncio.run(main())

    def complete(self, *run_ids: str) -> None:
        store = open_store(self.url)
        try:
            self.until(lambda: all(store.run(run_id).status == "completed" for run_id in run_ids))
        finally:
            store.close()

    def let_leases_pass(self) -> None:
        """Let workers take one short run after another, until every lease would have ended several times."""
        began, number = time.monotonic(), 0
        while time.monotonic() < began + 5 * TTL_S:
            self.start(f"short{number}", short=True)
            self.complete(f"short{number}")
            number += 1

    def takeovers(self, run_id: str) -> int:
        store = open_store(self.url)
        try:
            return len(store.events(run_id, kinds=tuple(TAKES_OVER)))
        finally:
            store.close()


@pytest.fixture
def fleet(tmp_path: Path, url: str) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, url)
    yield fleet
    for worker in fleet.workers:
        if worker.poll() is None:
            worker.kill()
        worker.wait()


def hold(fleet: Fleet, worker: subprocess.Popen[str], *run_ids: str) -> None:
    fleet.start(*run_ids)
    fleet.until(lambda: {run_id for run_id, what, pid in fleet.witnessed() if what == "hold"} >= set(run_ids))
    assert worker.poll() is None


def test_no_live_run_is_taken_over_by_a_worker_whose_clock_is_ten_hours_ahead(fleet: Fleet) -> None:
    behind = fleet.add(-FIVE_HOURS)
    hold(fleet, behind, "a", "b")
    ahead = fleet.add(+FIVE_HOURS)
    fleet.let_leases_pass()
    hold(fleet, ahead, "c", "d")
    (fleet.folder / "go").touch()
    fleet.complete("a", "b", "c", "d")
    done = Counter((run_id, what) for run_id, what, _ in fleet.witnessed() if len(run_id) == 1)
    assert done == {(run_id, what): 1 for run_id in "abcd" for what in ("pay", "hold")}
    assert [fleet.takeovers(run_id) for run_id in "abcd"] == [1, 1, 1, 1]


@pytest.mark.parametrize("killed", [-FIVE_HOURS, +FIVE_HOURS], ids=["behind", "ahead"])
def test_the_run_of_a_killed_worker_is_recovered_by_one_whose_clock_is_ten_hours_off(
    fleet: Fleet, killed: float
) -> None:
    first = fleet.add(killed)
    hold(fleet, first, "a")
    second = fleet.add(-killed)
    first.kill()
    first.wait()
    fleet.until(lambda: ("a", "hold", second.pid) in fleet.witnessed())
    (fleet.folder / "go").touch()
    fleet.complete("a")
    assert Counter(what for _, what, _ in fleet.witnessed()) == {"pay": 1, "hold": 2}
