"""A store knows which flows and queues each live worker takes: while `work()` is in progress, and no longer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import Stage, turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.storage.leases import Holder


@pytest.fixture(params=["memory", "sqlite"])
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(request.param, tmp_path)
    yield stage
    stage.close()


def flow_named(name: str, body: Any = lambda state: None) -> Flow[Any]:
    graph = Graph(name, dict)
    graph.node(name="only")(body)
    return graph.chain(START, "only", END).compile()


ONE, TWO = flow_named("one"), flow_named("two")


def taken(stage: Stage) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The flows and queues of each live holder."""
    return [(one.holder.flows, one.holder.queues) for one in stage.store.queues.holders()]


def test_a_worker_is_registered_with_its_flows_queues_and_version(stage: Stage) -> None:
    async def use(engine: hf.Engine) -> None:
        working = asyncio.create_task(engine.work(queues=["mail", "calls"]))
        await until(lambda: taken(stage))
        (found,) = stage.store.queues.holders()
        assert (found.holder.flows, found.holder.queues) == (("one", "two"), ("mail", "calls"))
        assert (found.holder.version, found.held) == (hf.__version__, 0)
        assert found.holder.takes("two", "mail")
        assert not found.holder.takes("two", "default")
        working.cancel()
        await asyncio.wait([working])

    stage.do(use, ONE, TWO)
    assert taken(stage) == []


def test_an_engine_that_only_executes_a_run_is_a_live_holder_and_not_a_worker(stage: Stage) -> None:
    async def use(engine: hf.Engine) -> None:
        await engine.run(ONE, {})
        assert taken(stage) == [((), ())]

    stage.do(use, ONE)


def test_a_flow_that_is_added_to_a_worker_is_registered_when_it_looks_again(stage: Stage) -> None:
    async def use(engine: hf.Engine) -> None:
        working = asyncio.create_task(engine.work())
        await until(lambda: taken(stage) == [(("one",), ())])
        engine.add(TWO)
        await turns(20)
        stage.clock.advance(1)
        await until(lambda: taken(stage) == [(("one", "two"), ())])
        engine.stop("enough")
        await working

    stage.do(use, ONE)


@pytest.mark.parametrize("ends", ["idle", "cancelled"])
def test_an_engine_whose_work_has_ended_is_no_longer_a_worker(stage: Stage, ends: str) -> None:
    async def use(engine: hf.Engine) -> None:
        await engine.start(ONE, {}, run_id="r")
        if ends == "idle":
            await engine.work(until="idle")
        else:
            working = asyncio.create_task(engine.work())
            await until(lambda: taken(stage) == [(("one",), ())])
            working.cancel()
            await asyncio.wait([working])
        assert taken(stage) == [((), ())]
        await engine.run(ONE, {}, run_id="s")
        assert taken(stage) == [((), ())]

    stage.do(use, ONE)


def test_a_worker_that_drains_takes_nothing_any_more(stage: Stage) -> None:
    may_end = asyncio.Event()
    began: list[str] = []

    async def slow(state: dict[str, Any]) -> None:
        began.append("r")
        await may_end.wait()

    flow = flow_named("slow", slow)

    async def use(engine: hf.Engine) -> None:
        await engine.start(flow, {}, run_id="r")
        working = asyncio.create_task(engine.work())
        await until(lambda: began)
        assert taken(stage) == [(("slow",), ())]
        engine.stop("drain", grace=1000)
        await until(lambda: taken(stage) == [((), ())])
        await turns(20)
        assert stage.store.run("r").held
        assert not working.done()
        may_end.set()
        assert await working == "drain"
        assert stage.store.run("r").status == "completed"

    stage.do(use, flow)


# --- renewals in a thread ----------------------------------------------------------------------------


def in_threads(url: str, use: Any, *flows: Flow[Any]) -> None:
    async def main() -> None:
        async with hf.Engine(url, flows=flows, lease_ttl=1) as engine:
            await asyncio.wait_for(use(engine), 60)

    asyncio.run(main())


class Renewals:
    """Counts the renewals of a store, and can hold one back."""

    def __init__(self, store: Any) -> None:
        self.made: list[Holder] = []
        self.holds_back = threading.Event()
        self.may_go_on = threading.Event()
        self._renew = store.renew
        store.renew = self.renew

    def renew(self, holder: Holder) -> None:
        if self.holds_back.is_set() and not self.may_go_on.is_set():
            self.may_go_on.wait(60)
        self._renew(holder)
        self.made.append(holder)


def test_the_renewals_of_a_working_engine_say_every_time_what_it_takes(tmp_path: Path) -> None:
    async def use(engine: hf.Engine) -> None:
        await engine.run(ONE, {})  # it is a holder before it is a worker
        renewals = Renewals(engine.store)
        working = asyncio.create_task(engine.work())
        await until(lambda: len(renewals.made) > 3)
        assert {one.flows for one in renewals.made} == {("one",)}
        assert [one.holder.flows for one in engine.store.queues.holders()] == [("one",)]
        working.cancel()
        await asyncio.wait([working])
        renewals.made.clear()
        await until(lambda: len(renewals.made) > 2)
        assert {one.flows for one in renewals.made} == {()}
        assert [one.holder.flows for one in engine.store.queues.holders()] == [()]

    in_threads(str(tmp_path / "runs.db"), use, ONE)


def test_a_renewal_under_way_when_the_work_begins_does_not_undo_what_the_worker_says(tmp_path: Path) -> None:
    async def use(engine: hf.Engine) -> None:
        await engine.run(ONE, {})
        renewals = Renewals(engine.store)
        renewals.holds_back.set()
        working = asyncio.create_task(engine.work())
        await until(lambda: engine._holdings.holder.flows)
        renewals.may_go_on.set()
        await until(lambda: renewals.made and renewals.made[-1].flows)
        worker = msgspec.structs.replace(renewals.made[-1])
        assert [one.holder for one in engine.store.queues.holders()] == [worker]
        later = renewals.made[renewals.made.index(worker) :]
        assert {one.flows for one in later} == {("one",)}
        working.cancel()
        await asyncio.wait([working])

    in_threads(str(tmp_path / "runs.db"), use, ONE)
