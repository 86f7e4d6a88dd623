"""What a living process had to give up has killed nobody, and what only waits keeps nobody from working."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import StoreBusy
from holdfast.storage import holder as holders
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.clock import ManualClock


class Patient:
    """A node that waits until it may go on."""

    def __init__(self) -> None:
        self.began = 0
        self.may_go_on = asyncio.Event()

    def flow(self) -> hf.Flow[Any]:
        graph: Graph[Any] = Graph("patient", dict)

        async def work(state: dict[str, Any]) -> dict[str, Any]:
            self.began += 1
            await self.may_go_on.wait()
            return {"tries": self.began}

        graph.node(name="work")(work)
        return graph.chain(START, "work", END).compile()

    async def has_begun(self, times: int) -> None:
        for _ in range(1000):
            if self.began == times:
                return
            await asyncio.sleep(0)
        raise AssertionError("it did not begin")


def test_a_store_that_does_not_answer_again_and_again_does_not_quarantine_a_healthy_node() -> None:
    store = MemoryStore()

    async def main() -> None:
        node = Patient()
        flow = node.flow()
        async with hf.Engine(store, flows=[flow], inline=True) as engine:
            going = asyncio.ensure_future(engine.run(flow, run_id="r"))
            for outage in range(1, 6):
                await node.has_begun(outage)
                engine._holdings.lose()
                with pytest.raises(StoreBusy):
                    await going
                going = asyncio.ensure_future(engine.resume("r"))
            await node.has_begun(6)
            node.may_go_on.set()
            assert (await going).state == {"tries": 6}

    asyncio.run(main())
    taken_up = [msgspec.json.decode(row.body) for row in store.events("r", kinds=["RunResumed"])]
    assert [event["outlived"] for event in taken_up] == [True] * 5


def test_what_another_engine_left_behind_still_counts_as_a_crash() -> None:
    store = MemoryStore()

    async def main() -> None:
        for _ in range(3):
            node = Patient()
            flow = node.flow()
            engine = await hf.Engine(store, flows=[flow], inline=True).__aenter__()
            going = asyncio.ensure_future(
                engine.resume("r") if store._data.runs else engine.run(flow, run_id="r")
            )
            await node.has_begun(1)
            engine._holdings.get("r").lose(StoreBusy("gone"))
            with pytest.raises(StoreBusy):
                await going
        node = Patient()
        async with hf.Engine(store, flows=[node.flow()], inline=True) as last:
            with pytest.raises(hf.RunFailed, match="Quarantined"):
                await last.resume("r")

    asyncio.run(main())


def test_runs_that_wait_for_somebody_do_not_keep_a_worker_from_the_others() -> None:
    clock = ManualClock(auto=True)
    store = MemoryStore(clock=clock.now)
    graph: Graph[Any] = Graph("ask", dict)

    async def ask(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        return {"said": await ctx.ask("Well?") if state["asks"] else "nothing"}

    graph.node(name="ask")(ask)
    flow = graph.chain(START, "ask", END).compile()

    async def main() -> float:
        async with hf.Engine(store, flows=[flow], clock=clock, inline=True) as engine:
            for number in range(5):
                await engine.start(flow, {"asks": True}, run_id=f"asks-{number}")
            await engine.start(flow, {"asks": False}, run_id="works", priority=-1)
            began = clock.now()
            await engine.work(concurrency=1, until=lambda: store.run("works").status == "completed")
            return clock.now() - began

    assert asyncio.run(main()) < 15.0
    assert [store.run(f"asks-{number}").status for number in range(5)] == ["waiting"] * 5


def test_a_machine_of_the_same_name_that_was_started_at_another_time_may_be_another_one() -> None:
    here = holders.this_process()
    there = msgspec.structs.replace(here, boot="another boot", pid=here.pid + 1)
    assert holders.alive(there) is False
    assert holders.alive_elsewhere(there) is None
    assert holders.alive_elsewhere(here) is True
