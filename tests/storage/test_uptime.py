"""The uptime of the machine, which leases of a SQLite store are judged by."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.storage.leases import boot_id, this_process
from holdfast.storage.queues import Refusal
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.uptime import Uptime

graph = hf.Graph("one", dict)


@graph.node
def only(state: dict[str, Any]) -> None:
    pass


flow = graph.chain(hf.START, "only", hf.END).compile()

pytestmark = pytest.mark.skipif(not boot_id(), reason="this system has no /proc")


def read(clock: int) -> float:
    return time.clock_gettime(clock)


def test_the_uptime_is_that_of_the_kernel() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    found = Uptime().now()
    assert found is not None
    assert before <= found <= time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize("skew_s", [18_000.0, -18_000.0, 1e9])
def test_a_clock_that_a_library_falsifies_is_corrected(skew_s: float) -> None:
    found = Uptime(read_clock=lambda clock: read(clock) + skew_s).now()
    assert found is not None
    assert abs(found - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5.0


def test_all_processes_have_the_same_uptime() -> None:
    program = "from holdfast.storage.uptime import Uptime; print(Uptime().boot, Uptime().now())"
    before = Uptime().now()
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    boot, seen = told.split()
    after = Uptime().now()
    assert boot == boot_id()
    assert before is not None
    assert after is not None
    assert before <= float(seen) <= after


def test_where_no_uptime_can_be_read_the_wall_clock_decides(tmp_path: Path) -> None:
    unknown = Uptime(read_clock=None)
    assert (unknown.boot, unknown.now()) == ("", None)
    now = [1000.0]
    store = SqliteStore(tmp_path / "runs.db", machine=lambda: now[0])
    store._database._uptime = unknown
    store.renew(this_process(30.0, "me"))
    assert [one.holder.id for one in store.queues.holders()] == ["me"]
    now[0] += 31
    assert store.queues.holders() == []
    store.close()


def test_a_step_of_the_wall_clock_ends_no_lease(tmp_path: Path) -> None:
    now = [1_000_000.0]
    store = SqliteStore(tmp_path / "runs.db", machine=lambda: now[0])
    store.renew(this_process(30.0, "me"))
    for step_s in (36_000.0, -72_000.0):
        now[0] += step_s
        (seen,) = store.queues.holders()
        assert seen.seen_at is not None
        assert abs(seen.seen_at - now[0]) < 30.0  # by the clock of the process that asks
    store.close()


def test_a_worker_whose_clock_is_days_ahead_deletes_no_live_worker_and_no_refusal_of_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    hf.start(flow, run_id="r", store=str(path))
    store.renew(this_process(30.0, "me"))
    store.queues.refuse(Refusal(run_id="r", holder="me", seq=store.run("r").seq, reason="why"))
    ahead = SqliteStore(path, machine=lambda: time.time() + 200_000.0)
    ahead.renew(this_process(30.0, "ahead"))
    assert [one.holder.id for one in store.queues.holders()] == ["ahead", "me"]
    assert [one.holder for one in store.queues.refusals(["r"])] == ["me"]
    ahead.close()
    store.close()


def test_a_lease_of_another_boot_is_judged_by_the_wall_clock(tmp_path: Path) -> None:
    now = [1_000_000.0]
    store = SqliteStore(tmp_path / "runs.db", machine=lambda: now[0], alive=lambda holder: None)
    store.renew(this_process(30.0, "me"))
    store._database._writer.execute("update holders set boot = 'another'")
    assert len(store.queues.holders()) == 1
    now[0] += 31
    assert store.queues.holders() == []
    store.close()
