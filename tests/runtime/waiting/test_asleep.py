"""A run that only waits, and long, leaves memory: it stays held, and goes on when its time comes or somebody speaks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import FenceLost, RunCancelled
from holdfast.reading import verification
from holdfast.runtime.holdings import Asleep
from holdfast.runtime.journal import Journal
from holdfast.storage.contract import Holder, Query, Store
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock


@dataclass
class Nap:
    naps: int = 0
    told: str = ""


def sleeper(seconds: float = 3600.0, **options: Any) -> hf.Flow[Nap]:
    graph = Graph("nap", Nap)

    async def nap(state: Nap, ctx: hf.Context) -> dict[str, Any]:
        await ctx.sleep(seconds)
        return {"naps": state.naps + 1}

    graph.node(name="nap", **options)(nap)
    graph.node(name="after")(lambda state: {"told": f"slept {state.naps}"})
    return graph.chain(START, "nap", "after", END).compile()


class Room:
    """A store with a clock that only the test moves."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock

    def engine(self, flow: hf.Flow[Any]) -> hf.Engine:
        return hf.Engine(self.store, flows=[flow], clock=self.clock, inline=True, park_after=0)

    def kinds(self, run_id: str = "r") -> list[str]:
        return [row.kind for row in self.store.events(run_id)]


@pytest.fixture(params=["memory", "sqlite"])
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    clock = ManualClock()
    store: Store = (
        MemoryStore(clock=clock.now)
        if request.param == "memory"
        else SqliteStore(tmp_path / "runs.db", clock=clock.now)
    )
    yield Room(store, clock)
    store.close()


async def asleep(engine: hf.Engine, run_id: str = "r") -> Asleep:
    for _ in range(1000):
        found = engine._holdings.get(run_id)
        if isinstance(found, Asleep):
            return found
        await asyncio.sleep(0)
    raise AssertionError("it did not fall asleep")


def while_asleep(
    room: Room, flow: hf.Flow[Any], do: Callable[[hf.Engine], Awaitable[Any]], **options: Any
) -> Any:
    """Start a run, wait until it is asleep, do something, and return what became of the run."""

    async def main() -> Any:
        async with room.engine(flow) as engine:
            run = asyncio.ensure_future(engine.run(flow, run_id="r", **options))
            await asleep(engine)
            await do(engine)
            return await asyncio.wait_for(run, 10)

    return asyncio.run(main())


async def nothing(engine: hf.Engine) -> None: ...


def test_it_goes_on_when_its_time_comes_with_the_same_lease(room: Room) -> None:
    async def pass_the_hour(engine: hf.Engine) -> None:
        assert room.store.run("r").held
        room.clock.advance(3600)

    run = while_asleep(room, sleeper(), pass_the_hour)
    assert (run.status, run.state) == ("completed", Nap(1, "slept 1"))
    assert room.store.run("r").fence == 1, "nobody took it over, also not itself"
    assert "RunClaimed" not in room.kinds()
    assert "RunResumed" not in room.kinds()
    assert verification.verify(room.store, "r").problems == []


def test_nothing_of_its_log_is_in_memory_meanwhile(room: Room) -> None:
    flow = sleeper()

    async def main() -> None:
        async with room.engine(flow) as engine:
            run = asyncio.ensure_future(engine.run(flow, run_id="slept-on"))
            await asleep(engine, "slept-on")
            gc.collect()
            journals = [found for found in gc.get_objects() if isinstance(found, Journal)]
            assert [journal for journal in journals if journal.state.run_id == "slept-on"] == []
            room.clock.advance(3600)
            assert (await run).status == "completed"

    asyncio.run(main())


@pytest.mark.parametrize("verb", ["resume", "retry", "skip"])
def test_it_leaves_memory_whichever_verb_executes_it(room: Room, verb: str) -> None:
    graph, is_broken = Graph("nap", Nap), True

    @graph.node
    def first(state: Nap) -> dict[str, Any]:
        if is_broken:
            raise ValueError("not yet")
        return {}

    @graph.node
    async def nap(state: Nap, ctx: hf.Context) -> dict[str, Any]:
        await ctx.sleep(3600)
        return {"naps": 1}

    flow = graph.chain(START, first, nap, END).compile()
    given = () if verb == "resume" else ("first",)

    async def main() -> None:
        nonlocal is_broken
        async with room.engine(flow) as engine:
            with pytest.raises(hf.RunFailed):
                await engine.run(flow, run_id="slept-on")
            is_broken = False
            run = asyncio.ensure_future(getattr(engine, verb)("slept-on", *given))
            await asleep(engine, "slept-on")
            gc.collect()
            journals = [found for found in gc.get_objects() if isinstance(found, Journal)]
            assert [journal for journal in journals if journal.state.run_id == "slept-on"] == []
            room.clock.advance(3600)
            assert (await run).status == "completed"

    asyncio.run(main())


def test_one_that_waits_for_a_moment_only_stays(room: Room) -> None:
    async def main() -> None:
        flow = sleeper(seconds=0.5)
        async with room.engine(flow) as engine:
            run = asyncio.ensure_future(engine.run(flow, run_id="r"))
            for _ in range(200):
                await asyncio.sleep(0)
            assert not isinstance(engine._holdings.get("r"), Asleep)
            room.clock.advance(1)
            assert (await run).status == "completed"

    asyncio.run(main())


def test_somebody_who_cancels_it_need_not_wait(room: Room) -> None:
    async def cancel(engine: hf.Engine) -> None:
        await engine.cancel("r", reason="enough")

    with pytest.raises(RunCancelled):
        while_asleep(room, sleeper(), cancel)
    assert room.kinds()[-1] == "RunCancelled"


def test_a_request_that_comes_as_it_falls_asleep_is_heard(room: Room) -> None:
    flow = sleeper()

    async def main() -> Any:
        async with room.engine(flow) as engine:
            run = asyncio.ensure_future(engine.run(flow, run_id="r"))
            for _ in range(1000):
                if room.store.runs(Query()) and "NodeWaiting" in room.kinds():
                    break
                await asyncio.sleep(0)
            await engine.cancel("r")
            return await asyncio.wait_for(run, 10)

    with pytest.raises(RunCancelled):
        asyncio.run(main())


def test_a_timeout_of_the_run_wakes_it(room: Room) -> None:
    async def pass_a_minute(engine: hf.Engine) -> None:
        room.clock.advance(60)

    with pytest.raises(hf.RunFailed, match="took longer than 60 s"):
        while_asleep(room, sleeper(), pass_a_minute, timeout=60)


def test_an_engine_that_closes_interrupts_it_and_gives_the_lease_back(room: Room) -> None:
    flow = sleeper()

    async def main() -> None:
        async with room.engine(flow) as engine:
            run = asyncio.ensure_future(engine.run(flow, run_id="r"))
            await asleep(engine)
        assert (await run).status == "interrupted"

    asyncio.run(main())
    assert not room.store.run("r").held
    room.clock.advance(3600)

    async def again() -> None:
        async with room.engine(flow) as engine:
            assert (await engine.resume("r")).state.told == "slept 1"

    asyncio.run(again())


def test_one_that_was_taken_over_meanwhile_starts_nothing(room: Room) -> None:
    async def rob(engine: hf.Engine) -> None:
        room.clock.advance(3500)  # its lease has run out: nobody renews it on this clock
        thief = Holder(id="thief", ttl_s=1e6)
        room.store.claim("r", thief)
        room.clock.advance(100)

    with pytest.raises(FenceLost):
        while_asleep(room, sleeper(), rob)
    assert "NodeCompleted" not in room.kinds()


def test_a_retry_that_is_far_away_is_waited_for_asleep(room: Room) -> None:
    graph = Graph("retry", Nap)

    async def busy(state: Nap, ctx: hf.Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            raise hf.Recoverable("busy")
        return {"naps": ctx.attempt}

    graph.node(name="busy", retry=hf.Retry(attempts=2, backoff=600.0, jitter=0.0))(busy)
    flow = graph.chain(START, "busy", END).compile()

    async def pass_ten_minutes(engine: hf.Engine) -> None:
        room.clock.advance(600)

    assert while_asleep(room, flow, pass_ten_minutes).state.naps == 2
