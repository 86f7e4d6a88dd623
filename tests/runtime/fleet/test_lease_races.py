"""A holder that lives keeps what it holds, whoever sweeps, takes or tidies up at the same moment; and a sweep ends nobody."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import PATIENCE_S, Stage, until

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.core.definition import Definition
from holdfast.reading import history
from holdfast.reading.remedies import CommandLine
from holdfast.runtime import worker
from holdfast.runtime.holdings import Renewal, lease_lost
from holdfast.runtime.news import Ear
from holdfast.storage.contract import Holder
from holdfast.storage.leases import this_process
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.queues import Wanted
from holdfast.upkeep import doctor, recovery
from holdfast.upkeep.recovery import Recovery

TTL_S = 30.0
LATE = Holder(id="late", host="elsewhere", ttl_s=TTL_S)


@pytest.fixture(params=["memory", "sqlite"])
def stage(request: Any, tmp_path: Path) -> Any:
    stage = Stage(request.param, tmp_path)
    yield stage
    stage.close()


async def nothing(state: dict[str, Any]) -> dict[str, Any]:
    return {"done": True}


async def naps(state: dict[str, Any], ctx: hf.Context) -> None:
    await ctx.sleep(3600)


def flow_of(body: Any, name: str = "one") -> Flow[Any]:
    graph = Graph(name, dict)
    graph.node(name="only")(body)
    return graph.chain(START, "only", END).compile()


PLAIN = flow_of(nothing)
WANTED = Wanted(flows=("one",))


def starts(stage: Stage, *ids: str, flow: Flow[Any] = PLAIN) -> None:
    async def use(engine: hf.Engine) -> None:
        for run_id in ids:
            await engine.start(flow, {}, run_id=run_id)

    stage.do(use)


# --- what a live holder keeps ------------------------------------------------------------------------


def test_a_holder_that_renews_while_a_sweep_looks_keeps_its_leases(stage: Stage, monkeypatch: Any) -> None:
    starts(stage, "r")
    stage.store.claim("r", LATE)
    stage.clock.advance(TTL_S + 1)
    load = history.load

    def renews_meanwhile(*asked: Any, **named: Any) -> Any:
        stage.store.renew(LATE)
        return load(*asked, **named)

    monkeypatch.setattr(history, "load", renews_meanwhile)
    report = Recovery(stage.store).sweep()
    assert report.given_back == ()
    assert stage.store.run("r").held


def test_a_run_that_is_just_being_taken_is_no_stray(stage: Stage) -> None:
    starts(stage, "r")
    me = this_process(TTL_S, "me")
    under_way: list[bool] = [True]
    going: set[str] = set()

    def executes(run_id: str) -> bool | None:
        return True if run_id in going else None if under_way else False

    renewal = Renewal(stage.store, me, lost=lambda: None, executes=executes, now=stage.clock.now, quiet=True)
    renewal.doubt()
    (taken,) = stage.store.queues.take(me, WANTED)
    renewal.renew()
    renewal.renew()
    assert stage.store.run("r").holder == me
    under_way.clear()
    going.add("r")
    renewal.renew()
    assert stage.store.run("r").fence == taken.lease.fence
    assert stage.store.run("r").held


def test_a_worker_cannot_tell_what_it_has_until_its_take_is_over(tmp_path: Path) -> None:
    """With threads, and a take whose reply is slow: the renewing thread looks for strays meanwhile, twice."""
    stage = Stage("sqlite", tmp_path, "def")
    starts(stage, "r")
    replied = threading.Event()

    async def use(engine: hf.Engine) -> None:
        queues = engine.store.queues
        take = queues.take

        def slow(*asked: Any) -> Any:
            taken = take(*asked)
            if taken:
                replied.wait(PATIENCE_S)
            return taken

        queues.take = slow  # type: ignore[method-assign]
        ended: list[str] = []
        working = asyncio.create_task(
            engine.work(until=lambda: bool(ended), on_end=lambda run: ended.append(run.status))
        )
        await until(lambda: stage.store.run("r").holder is not None)
        fence = stage.store.run("r").fence
        renewal: Any = engine._holdings.renewal
        renewal.doubt()
        renewal.renew()
        renewal.renew()
        assert stage.store.run("r").holder is not None
        replied.set()
        await working
        assert ended == ["completed"]
        assert stage.store.run("r").fence == fence

    stage.do(use, PLAIN)
    stage.close()


# --- what a sweep goes on from -----------------------------------------------------------------------


def newer_definition(stage: Stage) -> None:
    """Every definition of the store says something that this version does not know."""
    definition = stage.store.definition

    def newer(fingerprint: str) -> bytes | None:
        stored = definition(fingerprint)
        assert stored is not None
        known: dict[str, Any] = msgspec.json.decode(stored)
        for options in known["nodes"].values():
            options["on_interrupt"] = "undo"
        return msgspec.json.encode(known)

    stage.store.definition = newer  # type: ignore[method-assign]
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(newer(stage.store.run("r").fingerprint) or b"", type=Definition)


def test_a_run_of_a_newer_version_is_told_of_and_the_others_too(stage: Stage) -> None:
    starts(stage, "r")
    newer_definition(stage)
    stage.clock.advance(60)
    report = Recovery(stage.store).sweep()
    (unreadable,) = (found for found in report.findings if found.kind == "unreadable")
    assert "undo" in unreadable.reason
    assert "newer version" in unreadable.reason + unreadable.remedies[0].words
    assert report.error is None


def test_a_doctor_goes_on_from_a_run_of_a_newer_version(stage: Stage) -> None:
    starts(stage, "r")
    newer_definition(stage)
    graph = Graph("one", dict)
    graph.node(name="other")(nothing)
    changed = graph.chain(START, "other", END).compile()
    examined = doctor._Examination(stage.store, {"one": changed}, CommandLine())
    found = examined.judge(stage.store.run("r"), stage.clock.now() + 3600)
    assert found is not None
    assert "undo" in found.reason


def test_a_sweep_goes_on_where_runs_are_deleted_meanwhile(stage: Stage, monkeypatch: Any) -> None:
    starts(stage, *(f"r{number}" for number in range(5)))
    stage.clock.advance(60)
    monkeypatch.setattr(recovery, "_PAGE", 2)
    runs, pages = stage.store.runs, []

    def deletes_the_last(query: Any) -> Any:
        page = runs(query)
        pages.append(page)
        if len(pages) == 1:
            row = page[-1]
            assert not stage.store.upkeep.delete({row.run_id: row.seq})
        return page

    stage.store.runs = deletes_the_last  # type: ignore[method-assign]
    report = Recovery(stage.store, inside=False).sweep()
    assert report.error is None
    assert len({found.run_id for found in report.findings}) == 5
    assert len(runs(recovery.Query())) == 4


def test_a_sweep_that_fails_is_told_of_and_the_worker_goes_on(stage: Stage, monkeypatch: Any) -> None:
    def fails(self: Any) -> Any:
        raise TypeError("not like this")

    monkeypatch.setattr(recovery.Recovery, "sweep", fails)
    told: list[str] = []

    async def use(engine: hf.Engine) -> None:
        await engine.work(until=lambda: bool(told), on_report=lambda trouble: told.append(trouble.message))
        await engine.start(PLAIN, {}, run_id="r")
        await engine.work(until="idle")

    stage.do(use, PLAIN)
    assert "TypeError: not like this" in told[0]
    assert stage.store.run("r").status == "completed"


# --- what an idle worker asks ------------------------------------------------------------------------


def test_the_sweep_of_a_worker_looks_into_no_log(stage: Stage, monkeypatch: Any) -> None:
    flow = flow_of(naps, "naps")
    starts(stage, "r", flow=flow)
    looked: list[str] = []
    load = history.load
    swept: list[Any] = []
    sweep = recovery.Recovery.sweep
    monkeypatch.setattr(
        history,
        "load",
        lambda store, run_id, **named: looked.append(run_id) or load(store, run_id, **named),
    )

    def counted(self: Any) -> Any:
        looked.clear()
        swept.append((sweep(self), list(looked)))
        return swept[-1][0]

    monkeypatch.setattr(recovery.Recovery, "sweep", counted)

    async def use(engine: hf.Engine) -> None:
        await engine.work(until=lambda: len(swept) >= 2)

    stage.do(use, flow, park_after=0)
    assert [logs for _, logs in swept] == [[], []]


def test_a_worker_waits_for_no_run_that_it_passes_over(stage: Stage) -> None:
    old = flow_of(naps)
    graph = Graph("one", dict)
    graph.node(name="before")(nothing)
    graph.node(name="only")(naps)
    changed = graph.chain(START, "before", "only", END).compile()
    starts(stage, "r", flow=old)
    stage.do(lambda engine: engine.work(until="idle"), old, park_after=0)
    stage.clock.advance(3601)
    asked: list[Any] = []
    told: list[str] = []
    next_due = stage.store.queues.next_due

    async def use(engine: hf.Engine) -> None:
        def noted(wanted: Any) -> Any:
            found = next_due(wanted)
            asked.append(({*wanted.without, *wanted.refused}, found))
            return found

        engine.store.queues.next_due = noted  # type: ignore[method-assign]
        over = stage.clock.now() + 4
        await engine.work(
            until=lambda: stage.clock.now() > over, on_report=lambda trouble: told.append(trouble.message)
        )

    stage.do(use, changed)
    assert len(told) == 1
    assert [found for left_out, found in asked if "r" in left_out] == [None] * len(asked)


def test_a_worker_forgets_the_oldest_of_what_it_has_told(monkeypatch: Any) -> None:
    monkeypatch.setattr(worker, "_REMEMBERED_MAX", 2)
    remembered: dict[str, Any] = {"a": 1, "b": 2, "c": 3}
    worker._forget_oldest(remembered)
    assert remembered == {"b": 2, "c": 3}


# --- hearing -----------------------------------------------------------------------------------------


class Silent:
    """Queues that tell nothing, and let a test see each time they are asked."""

    def __init__(self) -> None:
        self.heard = 0

    def hear(self, timeout_s: float) -> bool:
        self.heard += 1
        return False

    def hush(self) -> None: ...


class Gate:
    """A lock that lets somebody in right before the thread that hears takes it to leave."""

    def __init__(self, comes: Any, queues: Silent) -> None:
        self._lock = threading.Lock()
        self._comes = comes
        self._queues = queues

    def __enter__(self) -> None:
        if threading.current_thread().name == "holdfast-ear" and self._queues.heard == 2:
            comes, self._comes = self._comes, lambda: None
            comes()
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()


def test_a_listener_that_comes_as_the_thread_leaves_is_heard_for() -> None:
    async def main() -> None:
        queues = Silent()
        ear: Any = Ear(queues)  # type: ignore[arg-type]
        late, first = asyncio.Event(), asyncio.Event()
        ear._lock = Gate(lambda: ear.listen(late), queues)
        ear._listeners[id(first)] = first
        ear.leave(first)
        ear._thread = threading.Thread(target=ear._hear, name="holdfast-ear", daemon=True)
        ear._thread.start()
        await until(lambda: queues.heard > 4 or ear._thread is None)
        assert ear._thread is not None
        ear.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize(
    ("other", "by"),
    [
        ({"engine_id": "other"}, "another engine of this process"),
        ({"engine_id": "other", "pid": 4711, "host": "mill"}, "process 4711 on mill"),
    ],
)
def test_a_lost_lease_says_which_engine_has_claimed_the_run(other: dict[str, Any], by: str) -> None:
    store, ours = MemoryStore(), this_process()
    graph: Graph[dict[str, Any]] = Graph("asking", dict)
    hf.run(graph.ask("may", "Go on?").chain(START, "may", END).compile(), {}, run_id="r", store=store)
    claimed_by = this_process(engine_id=other["engine_id"])
    fields = {name: value for name, value in other.items() if name != "engine_id"}
    store.claim("r", msgspec.structs.replace(claimed_by, **fields))
    told = str(lease_lost(store, "r", ours))
    assert told.startswith(f"run 'r' was claimed by {by}, because the lease of this engine had ended")
    assert "was not renewed for more than 30 s" in told
