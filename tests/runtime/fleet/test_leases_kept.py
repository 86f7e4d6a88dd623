"""An engine knows by itself until when its leases surely stand, and starts nothing behind that without asking."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import LeftRuns, Stage, until

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.errors import FenceLost, StoreBusy, StoreError
from holdfast.runtime.holdings import MARGIN, Renewal, elapsed
from holdfast.storage import leases
from holdfast.storage.contract import Store
from holdfast.storage.leases import alive, this_process
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.appends import Log
from holdfast.testing.clock import ManualClock

TTL_S = 30.0
SURE_S = TTL_S * (1 - MARGIN)


class Unreachable:
    """A store that can be cut off: then nothing is written or renewed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.cut_off = False

    def _refuse(self) -> None:
        if self.cut_off:
            raise StoreBusy("the database does not answer")

    def renew(self, holder: Any) -> None:
        self._refuse()
        self._store.renew(holder)

    def release(self, *asked: Any) -> None:
        self._refuse()
        self._store.release(*asked)

    def append(self, batch: Any) -> Any:
        self._refuse()
        return self._store.append(batch)

    def appended(self, *asked: Any) -> bool:
        self._refuse()
        return self._store.appended(*asked)

    def inbox(self, *asked: Any, **named: Any) -> Any:
        self._refuse()
        return self._store.inbox(*asked, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Kept:
    """The leases of an engine on a memory store, with a clock that a test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Unreachable(MemoryStore(clock=self.clock.now))
        self.holder = this_process(TTL_S)
        self.lost = 0
        self.renewal = Renewal(
            self.store,  # type: ignore[arg-type]
            self.holder,
            lost=self._lose,
            now=self.clock.now,
            quiet=True,
        )

    def _lose(self) -> None:
        self.lost += 1

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.renewal.keep()


def test_leases_surely_stand_for_a_ttl_less_a_margin() -> None:
    kept = Kept()
    kept.clock.advance(SURE_S - 0.1)
    assert kept.renewal.sure
    kept.clock.advance(0.2)
    assert not kept.renewal.sure


def test_a_renewal_counts_from_before_it_was_asked() -> None:
    kept = Kept()
    slow = kept.store.renew

    def renew(holder: Any) -> None:
        kept.clock.advance(10)  # the answer took that long
        slow(holder)

    kept.store.renew = renew  # type: ignore[method-assign]
    kept.renewal.renew()
    kept.clock.advance(SURE_S - 10)
    assert not kept.renewal.sure


def test_whoever_cannot_renew_is_told_once_before_the_lease_ends() -> None:
    kept = Kept()
    kept.store.cut_off = True
    kept.pass_time(SURE_S - 0.1)
    assert kept.lost == 0
    kept.pass_time(0.1)
    kept.pass_time(0.1)
    assert kept.lost == 1
    assert kept.clock.now() < 1_700_000_000 + TTL_S


def test_a_lease_stands_again_when_the_store_answers() -> None:
    kept = Kept()
    kept.store.cut_off = True
    kept.pass_time(TTL_S)
    kept.store.cut_off = False
    kept.pass_time(0.1)
    assert kept.renewal.sure


async def nothing(state: dict[str, Any]) -> dict[str, Any]:
    return {"done": True}


def flow_of(body: Any) -> Flow[Any]:
    graph = Graph("one", dict)
    graph.node(name="only")(body)
    graph.node(name="behind")(nothing)
    return graph.chain(START, "only", "behind", END).compile()


def test_a_lease_that_could_not_be_given_back_is_given_back_later(tmp_path: Path) -> None:
    stage = Stage("memory", tmp_path)
    flow = flow_of(nothing)
    stage.do(lambda engine: engine.start(flow, {}, run_id="r"))
    store = Unreachable(stage.store)
    holder = this_process(TTL_S)
    renewal = Renewal(store, holder, lost=lambda: None, now=stage.clock.now, quiet=True)  # type: ignore[arg-type]
    lease = stage.store.claim("r", holder)
    store.cut_off = True
    renewal.owe("r", lease.fence)
    stage.clock.advance(TTL_S / 2)
    renewal.keep()
    assert stage.store.run("r").held
    store.cut_off = False
    renewal.keep()
    assert not stage.store.run("r").held


# --- what an engine does with it ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_nodes_are_stopped_before_the_lease_of_their_run_ends(kind: str, tmp_path: Path) -> None:
    stage = Stage(kind, tmp_path)
    cut: list[float] = []

    async def for_ever(state: dict[str, Any]) -> None:
        store.cut_off = True
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cut.append(stage.clock.now() - began)
            raise

    store, began = Unreachable(stage.store), stage.clock.now()

    async def main() -> None:
        options = {"clock": stage.clock, "inline": True}
        async with hf.Engine(store, **options) as engine:
            with pytest.raises(StoreError, match="lease could not be renewed"):
                await asyncio.wait_for(engine.run(flow_of(for_ever), {}, run_id="r"), 20)
            store.cut_off = False

    asyncio.run(main())
    assert len(cut) == 1
    assert SURE_S <= cut[0] < TTL_S
    assert stage.kinds() == ["RunCreated", "NodeStarted"]
    stage.close()


def asleep(stage: Stage, run_id: str, seconds: float, *, taken_over: bool) -> Any:
    """While nobody looks, this process stands still that long, and meanwhile another may take the run over."""

    def sleeps(append_kind: str) -> None:
        stage.clock.advance(seconds)
        if taken_over:
            another = msgspec.structs.replace(this_process(TTL_S), id="another", pid=0)
            stage.store.claim(run_id, another)

    return sleeps


class Sleepy(Unreachable):
    """A store whose answer finds the process paused: it was written, and the world has gone on when that is heard."""

    def __init__(self, store: Store, sleeps: Any) -> None:
        super().__init__(store)
        self._sleeps = sleeps

    def append(self, batch: Any) -> Any:
        verdicts = super().append(batch)
        if any(row.node == "behind" and row.kind == "NodeStarted" for one in batch for row in one.rows):
            self._sleeps("NodeStarted")
        return verdicts


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("taken_over", [True, False])
def test_a_process_that_stood_still_starts_nothing_of_a_run_that_is_anothers(
    kind: str, taken_over: bool, tmp_path: Path
) -> None:
    stage = Stage(kind, tmp_path)
    started: list[str] = []

    async def behind(state: dict[str, Any]) -> None:
        started.append("behind")

    graph = Graph("one", dict)
    graph.node(name="only")(nothing)
    graph.node(behind)
    flow = graph.chain(START, "only", "behind", END).compile()
    store = Sleepy(stage.store, asleep(stage, "r", TTL_S + 1, taken_over=taken_over))

    async def main() -> None:
        async with hf.Engine(store, clock=stage.clock, inline=True) as engine:
            await engine.run(flow, {}, run_id="r")

    if taken_over:
        with pytest.raises(FenceLost, match="was claimed by"):
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert started == ([] if taken_over else ["behind"])
    stage.close()


@pytest.mark.parametrize("after_s", [SURE_S + 1, 100.0], ids=["before the lease ends", "long after"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_worker_goes_on_when_the_store_answers_again(kind: str, after_s: float, tmp_path: Path) -> None:
    stage = Stage(kind, tmp_path)
    tries: list[float] = []

    async def cut_the_first_time(state: dict[str, Any]) -> None:
        tries.append(stage.clock.now())
        if len(tries) == 1:
            store.cut_off = True
            stage.clock.call_at(stage.clock.now() + after_s, mend)
            await asyncio.get_running_loop().create_future()

    def mend() -> None:
        store.cut_off = False

    store, flow = Unreachable(stage.store), flow_of(cut_the_first_time)

    async def main() -> None:
        async with hf.Engine(store, flows=[flow], clock=stage.clock, inline=True) as engine:
            await engine.start(flow, {}, run_id="r")
            over = engine.work(until=lambda: stage.store.run("r").status == "completed")
            await asyncio.wait_for(over, 20)

    asyncio.run(main())
    assert len(tries) == 2
    assert stage.problems() == []
    stage.close()


def test_leases_are_renewed_by_a_thread_while_a_node_runs(tmp_path: Path) -> None:
    """With threads: the holder's row moves on although the event loop has nothing to do with it."""
    store = MemoryStore()
    renewed: list[Any] = []
    renew = store.renew

    def counted(holder: Any) -> None:
        renewed.append(holder)
        renew(holder)

    store.renew = counted  # type: ignore[method-assign]

    async def waits(state: dict[str, Any]) -> None:
        await until(lambda: len(renewed) >= 3)

    async def main() -> None:
        async with hf.Engine(store, lease_ttl=1) as engine:
            run = await asyncio.wait_for(engine.run(flow_of(waits), {}, run_id="r"), 20)
            assert run.status == "completed"

    asyncio.run(main())


# --- claims without a reply --------------------------------------------------------------------------


def renewal_of(kept: LeftRuns, **options: Any) -> Renewal:
    return Renewal(
        kept.store,
        this_process(TTL_S, "me"),
        now=kept.clock.now,
        quiet=True,
        **{"lost": lambda: None, **options},
    )


def test_a_lease_that_was_perhaps_got_is_found_and_given_back() -> None:
    kept = LeftRuns("r0", "r1", "r2")
    renewal = renewal_of(kept, executes=lambda run_id: run_id == "r1")
    for run_id in ("r0", "r1"):
        kept.store.claim(run_id, this_process(TTL_S, "me"))
    renewal.doubt()
    renewal.renew()
    assert kept.store.run("r0").held  # perhaps it was only just got
    renewal.renew()
    assert [kept.store.run(run_id).held for run_id in ("r0", "r1", "r2")] == [False, True, False]


def test_a_look_for_strays_that_fails_is_made_again() -> None:
    kept = LeftRuns("r0")
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
    found = leases._state_and_start(os.getppid())
    assert found is not None
    parent = msgspec.structs.replace(this_process(), pid=os.getppid(), process_started=found[1])
    assert alive(parent) is True
    monkeypatch.setattr(leases, "_state_and_start", lambda pid: None)
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
    leases._own.cache_clear()
    me = this_process()
    try:
        assert (me.boot, me.pid_namespace) == ("", "")
        assert alive(me) is None
    finally:
        leases._own.cache_clear()


def test_a_log_is_not_needed_to_hold_a_run() -> None:
    kept = LeftRuns()
    kept.store.append([Log("r0").create()])
    assert kept.store.claim("r0", this_process(TTL_S, "me")).fence == 1
