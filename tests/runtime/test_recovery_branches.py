"""The rarer turns of recovery and of leases: many runs, damaged logs, claims without a reply, machines that tell nothing."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import StoreBusy, StoreCorrupt
from holdfast.runtime.renewal import Renewal, elapsed
from holdfast.storage import holder as holders
from holdfast.storage.holder import alive, this_process
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.appends import Log
from holdfast.testing.builders import History, outline
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import recovery
from holdfast.upkeep.recovery import Recovery

TTL_S = 30.0


class Kept:
    """A store with runs on it that nobody carries on."""

    def __init__(self, *ids: str) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock.now)
        for run_id in ids:
            self.write(run_id)

    def write(self, run_id: str) -> None:
        story = History(run_id, outline("START a b END"), starts_at=self.clock.now()).created()
        story.completed("a").started("b").write(self.store)


# --- recovery ----------------------------------------------------------------------------------------


def test_a_sweep_reads_page_after_page_and_says_where_it_stopped(monkeypatch: Any) -> None:
    kept = Kept(*(f"r{number}" for number in range(5)))
    kept.clock.advance(60)
    monkeypatch.setattr(recovery, "_PAGE", 2)
    report = Recovery(kept.store).sweep()
    assert {found.run_id for found in report.findings} == {f"r{number}" for number in range(5)}
    assert report.complete
    monkeypatch.setattr(recovery, "ROWS_MAX", 4)
    report = Recovery(kept.store).sweep()
    assert len({found.run_id for found in report.findings}) == 4
    assert not report.complete


def test_a_sweep_looks_into_so_many_logs_and_no_more(monkeypatch: Any) -> None:
    kept = Kept("r0", "r1")
    kept.clock.advance(60)
    monkeypatch.setattr(recovery, "LOADS_MAX", 1)
    report = Recovery(kept.store).sweep()
    assert sum(found.why == "cut" for found in report.findings) == 1
    assert not report.complete


def test_a_run_whose_log_cannot_be_read_is_told_of_with_the_way_out(monkeypatch: Any) -> None:
    kept = Kept("r0")
    kept.clock.advance(60)

    def damaged(*asked: Any, **named: Any) -> Any:
        raise StoreCorrupt("event 2 is not what was written")

    monkeypatch.setattr(recovery.history, "load", damaged)
    (found,) = (one for one in Recovery(kept.store).sweep().findings if one.why == "unreadable")
    assert found.told == "event 2 is not what was written"
    assert "holdfast verify r0" in found.next


def test_a_run_that_waits_for_somebody_is_no_finding() -> None:
    kept = Kept()
    flow = outline("START a END", nodes={"a": {"approve": "Go on?"}})
    History("r0", flow, starts_at=kept.clock.now()).created().settled().write(kept.store)
    kept.clock.advance(60)
    assert kept.store.run("r0").status == "waiting"
    assert Recovery(kept.store).sweep().findings == ()


# --- leases ------------------------------------------------------------------------------------------


def renewal_of(kept: Kept, **options: Any) -> Renewal:
    return Renewal(
        kept.store,
        this_process(TTL_S, "me"),
        now=kept.clock.now,
        quiet=True,
        **{"lost": lambda: None, **options},
    )


def test_a_lease_that_was_perhaps_got_is_found_and_given_back() -> None:
    kept = Kept("r0", "r1", "r2")
    renewal = renewal_of(kept, executes=lambda run_id: run_id == "r1")
    for run_id in ("r0", "r1"):
        kept.store.claim(run_id, this_process(TTL_S, "me"))
    renewal.doubt()
    renewal.renew()
    assert kept.store.run("r0").held  # perhaps it was only just got
    renewal.renew()
    assert [kept.store.run(run_id).held for run_id in ("r0", "r1", "r2")] == [False, True, False]


def test_a_look_for_strays_that_fails_is_made_again() -> None:
    kept = Kept("r0")
    renewal = renewal_of(kept, executes=lambda run_id: False)
    kept.store.claim("r0", this_process(TTL_S, "me"))
    listed = kept.store.queues.held_by

    def fails(holder: str) -> Any:
        raise StoreBusy("later")

    kept.store.queues.held_by = fails  # type: ignore[method-assign]
    renewal.doubt()
    renewal.renew()
    assert kept.store.run("r0").held
    kept.store.queues.held_by = listed  # type: ignore[method-assign]
    renewal.renew()
    renewal.renew()
    assert not kept.store.run("r0").held


def test_the_thread_that_renews_asks_again_soon_when_the_store_does_not_answer() -> None:
    store = MemoryStore()
    asked, again = threading.Semaphore(0), store.renew

    def fails_twice(holder: Any) -> None:
        asked.release()
        if calls.pop():
            raise StoreBusy("later")
        again(holder)

    calls = [False, False, False, True, True, False]
    store.renew = fails_twice  # type: ignore[method-assign]

    async def main() -> None:
        renewal = Renewal(store, this_process(0.03), lost=lambda: None)
        await asyncio.to_thread(lambda: [asked.acquire(timeout=20) for _ in range(5)])
        renewal.stop()

    asyncio.run(main())
    assert len(calls) <= 1


def test_time_passes_also_where_the_machine_does_not_count_its_sleep(monkeypatch: Any) -> None:
    before = elapsed()
    assert elapsed() >= before
    monkeypatch.delattr("time.CLOCK_BOOTTIME", raising=False)
    before = elapsed()
    assert elapsed() >= before


# --- whether a holder lives --------------------------------------------------------------------------


def test_a_process_that_proc_hides_is_dead_only_when_its_pid_is_free(monkeypatch: Any) -> None:
    found = holders._state_and_start(os.getppid())
    assert found is not None
    parent = msgspec.structs.replace(this_process(), pid=os.getppid(), process_started=found[1])
    assert alive(parent) is True
    monkeypatch.setattr(holders, "_state_and_start", lambda pid: None)
    assert alive(parent) is None

    def refused(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert alive(parent) is None


def test_a_machine_that_tells_nothing_leaves_it_to_the_lease(monkeypatch: Any) -> None:
    def missing(self: Path) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(Path, "readlink", missing)
    holders._own.cache_clear()
    me = this_process()
    try:
        assert (me.boot, me.pid_namespace) == ("", "")
        assert alive(me) is None
    finally:
        holders._own.cache_clear()


def test_a_log_is_not_needed_to_hold_a_run() -> None:
    kept = Kept()
    kept.store.append([Log("r0").create()])
    assert kept.store.claim("r0", this_process(TTL_S, "me")).fence == 1
