"""Closing an engine, in every order: what is in its hands is over when `close` returns."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

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


def quick_flow() -> hf.Flow[Any]:
    graph: Graph[Any] = Graph("quick")
    graph.node(name="only")(lambda state: None)
    return graph.chain(START, "only", END).compile()


def test_an_engine_is_opened_once_and_a_second_time_is_refused() -> None:
    async def scene() -> None:
        engine = hf.Engine(MemoryStore())
        async with engine:
            with pytest.raises(hf.SettingError, match="opened only once; make another one"):
                await engine.__aenter__()
            assert (await engine.run(quick_flow(), {})).status == "completed"
        with pytest.raises(hf.SettingError, match="opened only once"):
            async with engine:
                pass

    asyncio.run(scene())


def test_an_engine_whose_store_could_not_be_opened_can_be_opened_later(tmp_path: Path) -> None:
    async def scene() -> None:
        (tmp_path / "folder").write_text("not a folder")
        engine = hf.Engine(str(tmp_path / "folder" / "runs.db"))
        with pytest.raises(hf.HoldfastError):
            await engine.__aenter__()
        (tmp_path / "folder").unlink()
        async with engine:
            assert (await engine.run(quick_flow(), {})).status == "completed"

    asyncio.run(scene())


def test_stopping_an_engine_that_is_not_open_changes_nothing() -> None:
    async def scene() -> None:
        engine = hf.Engine(MemoryStore())
        await engine.stop("too early")
        async with engine:
            assert (await engine.run(quick_flow(), {})).status == "completed"
            assert await engine.work(until="idle") is None
        await engine.stop("too late")

    asyncio.run(scene())
