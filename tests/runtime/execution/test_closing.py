"""Closing an engine, in every order: what is in its hands is over when `close` returns."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.storage.memory.store import MemoryStore


def waiting_flow(name: str, begun: asyncio.Event) -> hf.Flow:
    graph = Graph(name)

    @graph.node
    async def hold(state: dict) -> None:
        begun.set()
        await asyncio.Event().wait()

    return graph.chain(START, hold, END).compile()


def test_a_run_that_begins_as_the_last_one_leaves_is_waited_for() -> None:
    async def scene() -> None:
        begun = asyncio.Event()
        flow = waiting_flow("holds", begun)
        store, loop = MemoryStore(), asyncio.get_running_loop()
        passed, append = threading.Event(), store.append

        def append_late(
            *args: Any, **named: Any
        ) -> Any:  # the event loop goes round before the first append of b is durable
            if engine._holdings.stopping is not None:
                loop.call_soon_threadsafe(loop.call_soon, passed.set)
                passed.wait(1)
            return append(*args, **named)

        store.append = append_late
        engine = hf.Engine(store, grace=0)
        await engine.__aenter__()

        async def one_after_the_other() -> list[str]:
            return [(await engine.run(flow, {}, run_id=run_id)).status for run_id in ("a", "b")]

        going = asyncio.ensure_future(one_after_the_other())
        await begun.wait()
        await engine.close()
        assert not len(engine._holdings)
        assert await going == ["interrupted", "interrupted"]
        assert not store.run("b").held

    asyncio.run(scene())


def test_closing_twice_at_a_time_closes_once() -> None:
    async def scene() -> None:
        begun = asyncio.Event()
        flow = waiting_flow("holds", begun)
        engine = hf.Engine("memory://t", grace=0)
        await engine.__aenter__()
        going = asyncio.ensure_future(engine.run(flow, {}))
        await begun.wait()
        await asyncio.gather(engine.close(), engine.close())
        await engine.close()
        assert (await going).status == "interrupted"

    asyncio.run(scene())


def test_closing_ends_although_the_worker_is_cancelled_again_and_again() -> None:
    async def scene() -> None:
        begun = asyncio.Event()
        graph = Graph("leaves-slowly")

        @graph.node
        async def leave_slowly(state: dict) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)

        flow = graph.chain(START, leave_slowly, END).compile()
        engine = hf.Engine("memory://t", flows=[flow], grace=30)
        await engine.__aenter__()
        await engine.start(flow, {})
        working = asyncio.ensure_future(engine.work())
        await begun.wait()
        closing = asyncio.ensure_future(engine.close())
        for _ in range(3):
            await asyncio.sleep(0)
            working.cancel()
        async with asyncio.timeout(10):
            await closing
        await asyncio.gather(working, return_exceptions=True)
        assert not len(engine._holdings)

    asyncio.run(scene())
