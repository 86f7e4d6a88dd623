"""An engine calls a limited number of functions at the same time in threads, and in processes; further calls wait in order."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import place_nodes as nodes
import pytest
from harness import until

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.core.definition import ExecutorTraits
from holdfast.errors import SettingError
from holdfast.reading.cases import case_of
from holdfast.reading.diagnosis import diagnose
from holdfast.runtime import settings
from holdfast.runtime.calls.call_places import CallPlace, CallPlaces, count_cores
from holdfast.runtime.calls.executors import ThreadExecutor, Threads
from holdfast.storage.leases import CallsAtOnce
from holdfast.testing.clock import ManualClock

PATIENCE_S = 10
_numbers = itertools.count()


def one(fn: Callable[..., Any], **options: Any) -> Flow[Any]:
    graph = Graph(f"flow-{next(_numbers)}")
    graph.node(name="only", **options)(fn)
    return graph.chain(START, "only", END).compile()


def using(use: Callable[[hf.Engine], Awaitable[Any]], *flows: Flow[Any], **options: Any) -> Any:
    async def main() -> Any:
        async with hf.Engine(f"memory://places-{next(_numbers)}", flows=flows, **options) as engine:
            return await asyncio.wait_for(use(engine), PATIENCE_S)

    return asyncio.run(main())


async def together(engine: hf.Engine, flow: Flow[Any], count: int) -> list[Any]:
    return await asyncio.gather(*(engine.run(flow, {"number": number}) for number in range(count)))


async def kinds(engine: hf.Engine, run_id: str) -> list[str]:
    return [event.kind for event in await engine.events(run_id)]


def waits(engine: hf.Engine, run_id: str, count: int = 1) -> bool:
    """Return whether this run is stored, and so many calls wait for a thread."""
    try:
        engine.store.run(run_id)
    except hf.RunNotFound:
        return False
    return engine.places["thread"].waiting == count


class Gate:
    """A `def` node that says that it has begun, and waits until the test lets it go on."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self._open = threading.Event()

    def wait(self, state: dict[str, Any]) -> dict[str, Any]:
        self.begun.append(state.get("name"))
        assert self._open.wait(PATIENCE_S)
        return {}

    def open(self) -> None:
        self._open.set()

    def flow(self, **options: Any) -> Flow[Any]:
        graph = Graph(f"gate-{next(_numbers)}")
        graph.node(name="only", **options)(self.wait)
        return graph.chain(START, "only", END).compile()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


# --- the places themselves ----------------------------------------------------------------------------


def test_places_are_taken_in_the_order_in_which_they_were_asked_for() -> None:
    places, came = CallPlaces(2), list[int]()
    asked = [places.ask(lambda number=number: came.append(number)) for number in range(5)]
    assert [place.is_taken for place in asked] == [True, True, False, False, False]
    assert (places.taken, places.waiting) == (2, 3)
    asked[3].give_back()
    asked[0].give_back()
    asked[0].give_back()
    assert came == [2]
    asked[1].give_back()
    assert came == [2, 4]
    asked[2].give_back()
    asked[4].give_back()
    assert (places.taken, places.waiting) == (0, 0)


def test_a_lent_place_serves_the_calls_that_its_owner_waits_for_one_after_the_other() -> None:
    places = CallPlaces(1)
    owner = places.ask(lambda: None)
    stranger = places.ask(lambda: None)
    came = list[int]()
    calls = [CallPlace(places, owner) for _ in range(3)]
    for number, call in enumerate(calls):
        call.ask(lambda number=number: came.append(number))
    assert [call.is_taken for call in calls] == [True, False, False]
    calls[0].give_back()
    calls[1].give_back()
    assert came == [1, 2]
    assert not stranger.is_taken
    calls[2].give_back()
    owner.give_back()
    assert stranger.is_taken
    stranger.give_back()
    assert (places.taken, places.waiting) == (0, 0)


def test_a_place_that_is_awaited_and_not_wanted_any_more_goes_to_the_next() -> None:
    async def main() -> None:
        places = CallPlaces(1)
        first = places.ask(lambda: None)
        second, third = CallPlace(places), CallPlace(places)
        waiting = [asyncio.create_task(place.take()) for place in (second, third)]
        await asyncio.sleep(0)
        second.give_back()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        first.give_back()
        await waiting[1]
        assert third.is_taken
        assert not second.is_taken

    asyncio.run(main())


# --- limits -------------------------------------------------------------------------------------------


def test_five_thousand_blocking_nodes_stay_within_the_limit_of_threads() -> None:
    lock, inside, most = threading.Lock(), 0, 0
    full = threading.Barrier(20)
    names = set[int]()

    def node(state: dict[str, Any]) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            names.add(threading.get_ident())
        full.wait(PATIENCE_S)  # all places are used: 5,000 is a multiple of 20
        with lock:
            inside -= 1

    flow = one(node)
    runs = using(lambda engine: together(engine, flow, 5000), flow, threads=20, durability="exit")
    assert {run.status for run in runs} == {"completed"}
    assert most == 20
    assert len(names) <= 20


def test_two_hundred_runs_at_once_use_as_many_processes_as_there_are_places() -> None:
    flow = one(nodes.which, executor="process")
    runs = using(lambda engine: together(engine, flow, 200), flow, processes=2)
    assert {run.status for run in runs} == {"completed"}
    assert len({run.state["pid"] for run in runs}) <= 2


def test_the_items_of_one_fan_out_and_given_executors_have_a_limit_too() -> None:
    class Ours(ThreadExecutor):
        traits = ExecutorTraits(here=True, at_once=3)

    lock, inside, most = threading.Lock(), 0, 0
    full = threading.Barrier(3)

    def node(item: int) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        full.wait(PATIENCE_S)
        with lock:
            inside -= 1

    flow = one(node, each=lambda state: range(30), limit=16, executor="ours")
    run = using(lambda engine: engine.run(flow, {}), flow, executors={"ours": Ours(Threads())})
    assert run.status == "completed"
    assert most == 3


def test_by_default_there_are_as_many_processes_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = one(nodes.which, executor="process")

    async def use(engine: hf.Engine) -> int:
        return engine.places["process"].limit

    assert using(use, flow) == count_cores()
    monkeypatch.setenv("HOLDFAST_PROCESSES", "7")
    assert using(use, flow) == 7
    assert using(use, flow, processes=3) == 3
    assert settings.resolve({"processes": 0}).processes == 0
    for wrong in ("many", -1, 1.5, True):
        with pytest.raises(SettingError, match="whole number"):
            settings.resolve({"processes": wrong})
    with pytest.raises(SettingError, match="option 'threads' must be a whole number, at least 1, not 0"):
        settings.resolve({"threads": 0})


# --- waiting for a place ------------------------------------------------------------------------------


def test_a_call_that_waits_for_a_place_has_not_begun(gate: Gate) -> None:
    clock = ManualClock()
    first, second = gate.flow(), gate.flow(timeout=10, idempotent=False)

    async def use(engine: hf.Engine) -> None:
        going = [asyncio.create_task(engine.run(first, {"name": "first"}, run_id="first"))]
        await until(lambda: gate.begun == ["first"])
        going.append(asyncio.create_task(engine.run(second, {"name": "second"}, run_id="second")))
        await until(lambda: waits(engine, "second"))
        clock.advance(100)
        for _ in range(20):
            await asyncio.sleep(0)
        assert await kinds(engine, "second") == ["RunCreated"]
        gate.open()
        runs = await asyncio.gather(*going)
        assert [run.status for run in runs] == ["completed", "completed"]
        assert gate.begun == ["first", "second"]
        assert engine.places["thread"].taken == 0

    using(use, first, second, threads=1, clock=clock)


@pytest.mark.parametrize("how", ["cancel", "pause", "timeout", "stop"])
def test_a_run_that_waits_for_a_place_can_be_ended_at_once(gate: Gate, how: str) -> None:
    clock = ManualClock()
    options = {"clock": clock} if how == "timeout" else {}  # a request is looked for by the clock
    first, second = gate.flow(), gate.flow()

    async def use(engine: hf.Engine) -> None:
        one = asyncio.create_task(engine.run(first, {}, run_id="first"))
        await until(lambda: len(gate.begun) == 1)
        other = asyncio.create_task(engine.run(second, {}, run_id="second", timeout=50))
        await until(lambda: waits(engine, "second"))
        if how == "cancel":
            await engine.cancel("second")
        elif how == "pause":
            await engine.pause("second")
        elif how == "timeout":
            clock.advance(51)
        else:
            stopping = engine.stop(grace=60)
        await asyncio.wait([other])
        assert engine.places["thread"].waiting == 0
        status = (await engine.get("second")).status
        assert (
            status
            == {"cancel": "cancelled", "pause": "paused", "timeout": "failed", "stop": "interrupted"}[how]
        )
        assert not {"NodeStarted", "NodeInterrupted"} & set(await kinds(engine, "second"))
        other.cancelled() or other.exception()
        gate.open()
        await asyncio.wait([one])
        if how == "stop":
            await stopping
        assert len(gate.begun) == 1

    using(use, first, second, threads=1, **options)


def test_a_thread_that_the_engine_has_abandoned_gives_its_place_back(gate: Gate) -> None:
    clock = ManualClock()
    hangs, quick = gate.flow(timeout=10), one(lambda state: {"done": True})

    async def use(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.run(hangs, {}))
        await until(lambda: len(gate.begun) == 1)
        other = asyncio.create_task(engine.run(quick, {}))
        await until(lambda: engine.places["thread"].waiting == 1)
        clock.advance(11)
        assert (await other).status == "completed"
        going.cancel()

    using(use, hangs, quick, threads=1, clock=clock)


# --- calls that only wait -----------------------------------------------------------------------------


def test_six_callers_of_families_on_one_thread_complete() -> None:
    grandchild = one(lambda state: {"deep": True})

    def middle(state: dict[str, Any], ctx: hf.BlockingContext) -> dict[str, Any]:
        return {"deep": ctx.call(grandchild, {})["deep"]}

    child = one(middle)

    def caller(state: dict[str, Any], ctx: hf.BlockingContext) -> dict[str, Any]:
        return {"deep": ctx.call(child, {})["deep"]}

    flow = one(caller)
    runs = using(lambda engine: together(engine, flow, 6), flow, child, grandchild, threads=1)
    assert [run.state["deep"] for run in runs] == [True] * 6


@pytest.mark.parametrize("fn", [nodes.calls_by_name, nodes.calls_with_a_timer])
def test_six_callers_of_families_on_one_process_complete(fn: Callable[..., Any]) -> None:
    flow = one(fn, executor="process")
    runs = using(lambda engine: together(engine, flow, 6), flow, nodes.CHILD_FLOW, processes=1)
    assert [run.state["got"] for run in runs] == [True] * 6


def test_a_node_that_waits_in_its_process_gives_its_place_to_others(tmp_path: Path) -> None:
    waits, quick = one(nodes.waits_with_a_timer, executor="process"), one(nodes.which, executor="process")
    mark = tmp_path / "mark"

    async def use(engine: hf.Engine) -> None:
        places = engine.places["process"]
        going = asyncio.create_task(engine.run(waits, {"mark": str(mark)}, run_id="waits"))
        await until(lambda: places.taken == 1)
        await until(lambda: places.taken == 0)
        assert (await engine.run(quick, {})).status == "completed"
        taken = places.ask(lambda: None)  # another call has the place now
        await engine.signal("waits", "go", 5)
        await until(lambda: places.waiting == 1)
        assert not mark.exists()
        taken.give_back()
        assert (await going).state["got"] == 5
        assert places.taken == 0

    using(use, waits, quick, processes=1)


# --- steps in threads ---------------------------------------------------------------------------------


def test_a_step_in_a_thread_waits_for_a_place_and_its_time_does_not_run_yet(gate: Gate) -> None:
    clock = ManualClock()
    blocks = gate.flow()
    timed = hf.Step("timed", timeout=10, idempotent=False)

    async def node(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        return {"plain": await ctx.step("plain", int), "timed": await ctx.step(timed, int)}

    steps = one(node)

    async def use(engine: hf.Engine) -> None:
        first = asyncio.create_task(engine.run(blocks, {}))
        await until(lambda: len(gate.begun) == 1)
        going = asyncio.create_task(engine.run(steps, {}, run_id="steps"))
        await until(lambda: engine.places["thread"].waiting == 1)
        taken = engine.places["thread"].ask(lambda: None)
        gate.open()
        await first
        await until(lambda: taken.is_taken)
        await until(lambda: engine.places["thread"].waiting == 1)  # the second step
        clock.advance(100)
        for _ in range(20):
            await asyncio.sleep(0)
        assert "StepStarted" not in await kinds(engine, "steps")
        taken.give_back()
        assert (await going).state == {"plain": 0, "timed": 0}
        assert engine.places["thread"].taken == 0

    using(use, blocks, steps, threads=1, clock=clock)


def test_nodes_that_have_all_places_can_call_steps_in_other_threads() -> None:
    full = threading.Barrier(2)

    def double(item: int) -> int:
        return item * 2

    def node(state: dict[str, Any], ctx: hf.BlockingContext) -> dict[str, Any]:
        full.wait(PATIENCE_S)  # both places are taken by nodes
        timed = ctx.step(hf.Step("timed", timeout=60), int)
        return {"all": ctx.map("double", double, range(20)), "timed": timed}

    flow = one(node)
    runs = using(lambda engine: together(engine, flow, 2), flow, threads=2)
    assert [run.state["all"] for run in runs] == [[number * 2 for number in range(20)]] * 2


# --- what others can see ------------------------------------------------------------------------------


def test_how_many_calls_wait_is_stored_with_each_renewal_and_reported(gate: Gate) -> None:
    flow = gate.flow()

    async def use(engine: hf.Engine) -> None:
        going = [asyncio.create_task(engine.run(flow, {}, run_id=f"r{number}")) for number in range(4)]
        await until(lambda: waits(engine, "r3", 3))
        [before] = engine.store.queues.holders()
        assert before.holder.calls == ()
        renewal = engine._holdings.renewal
        assert renewal is not None
        renewal.renew()
        [live] = engine.store.queues.holders()
        assert live.holder.calls == (CallsAtOnce(executor="thread", limit=1, waiting=3),)
        row = engine.store.run("r3")
        found = diagnose(case_of(engine.store, row, holders=[live]), engine.store.now())
        assert "executes it; 3 calls wait for one of 1 places (executor 'thread') there" in found.reason
        gate.open()
        await asyncio.gather(*going)
        renewal.renew()
        assert engine.store.queues.holders()[0].holder.calls == ()

    using(use, flow, threads=1)
