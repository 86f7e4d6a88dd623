"""Runs that are cancelled, paused or asked for something while they move, and engines that stop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from engines import Work, gated, has, in_engine, kinds, one_node, running, started
from harness import PATIENCE_S, turns, until

import holdfast as hf
from holdfast import END, START, Graph, Retry
from holdfast.reading import verification
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import open_row
from holdfast.testing.clock import ManualClock

# --- cancel, pause and other requests to a run that moves --------------------------------------------


def test_a_run_is_cancelled_where_it_runs_and_its_async_node_unwinds() -> None:
    unwound, store = [], MemoryStore()

    async def body(state: Work) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            unwound.append(True)

    async def use(engine: hf.Engine) -> None:
        async with running(engine, one_node(body)) as run:
            await started(engine, "only")
            await engine.cancel("r", "not needed", by="ann")
            with pytest.raises(hf.RunCancelled):
                await run

    in_engine(use, store)
    assert (unwound, kinds(store)[-2:]) == ([True], ["NodeInterrupted", "RunCancelled"])
    assert not store.run("r").held


def test_a_run_cancelled_before_its_node_had_its_first_step_ends_all_the_same() -> None:
    async def body(state: Work) -> None:
        await asyncio.Event().wait()

    async def use(engine: hf.Engine) -> None:
        async with running(engine, one_node(body)) as run:
            await until(lambda: "r" in engine._holdings)
            await engine.cancel("r")
            with pytest.raises(hf.RunCancelled):
                await asyncio.wait_for(run, 5)

    in_engine(use)


def test_a_cancelled_thread_is_told_and_its_late_result_is_refused() -> None:
    entered, leave, told, store = threading.Event(), threading.Event(), [], MemoryStore()

    def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        entered.set()
        leave.wait()
        told.append(ctx.cancelled)
        return {"log": ["late"]}

    async def use(engine: hf.Engine) -> None:
        async with running(engine, one_node(body)) as run:
            await asyncio.to_thread(entered.wait)
            await engine.cancel("r")
            with pytest.raises(hf.RunCancelled):
                await run
            leave.set()
            await until(lambda: told)
            await turns(10)
            assert (await engine.get("r")).state.log == []

    in_engine(use, store)
    assert (told, kinds(store)[-1]) == ([True], "RunCancelled")


def test_a_thread_that_ends_while_another_node_still_unwinds_is_named_as_abandoned() -> None:
    entered, leave, left = threading.Event(), threading.Event(), asyncio.Event()
    graph = Graph("two", Work)

    @graph.node
    def blocks(state: Work) -> None:
        entered.set()
        leave.wait()

    @graph.node
    async def unwinds(state: Work) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await left.wait()

    for name in ("blocks", "unwinds"):
        graph.edge(START, name)
        graph.edge(name, END)
    flow = graph.compile()

    async def use(engine: hf.Engine) -> None:
        async with running(engine, flow) as run:
            await asyncio.to_thread(entered.wait)
            await started(engine, "unwinds")
            cancelling = asyncio.create_task(engine.cancel("r"))
            await until(lambda: engine._services.haunted)
            leave.set()
            await until(lambda: not engine._services.haunted)
            left.set()
            await cancelling
            with pytest.raises(hf.RunCancelled):
                await run
            found = (await engine.get("r")).uncleaned
            assert [(one.node, one.why) for one in found] == [("blocks", "abandoned")]

    in_engine(use)


def test_a_pause_lets_running_nodes_end_and_starts_nothing_new() -> None:
    flow, gate = gated()
    store = MemoryStore()

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run:
            await gate["in"].wait()
            await engine.pause("r", "lunch", by="ann")
            gate["open"].set()
            paused = await run
            assert (paused.status, paused.state.log) == ("paused", ["first"])
        assert not store.run("r").held
        assert (await engine.resume("r")).state.log == ["first", "second"]

    in_engine(use, store)
    assert verification.verify(store, "r").problems == []


def test_a_request_from_another_engine_reaches_the_run_through_the_inbox() -> None:
    flow, gate = gated()
    store = MemoryStore()

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run:
            await gate["in"].wait()
            async with hf.Engine(store, flows=[flow]) as other:
                assert (await other.cancel("r", "not needed", by="ann")).status == "cancelled"
            with pytest.raises(hf.RunCancelled):
                await run

    in_engine(use, store)
    last = store.events("r")[-1]
    assert last.kind == "RunCancelled"
    assert store.inbox("anyone") == []


def test_a_request_that_was_answered_is_not_answered_again() -> None:
    """With `durability="exit"` an answer is not durable for long; the inbox must not be believed over what the runner knows."""
    tried: list[int] = []
    clock = ManualClock()
    store = MemoryStore(clock=clock.now)

    async def body(state: Work) -> None:
        tried.append(1)
        raise hf.Recoverable("busy")

    flow = one_node(body, retry=Retry(attempts=9, backoff=1000.0, factor=1.0, max_delay=1000.0, jitter=0.0))

    async def use(engine: hf.Engine) -> None:
        await engine.start(flow, run_id="r")
        async with running(engine, flow):
            await until(lambda: tried)
            async with hf.Engine(store, flows=[flow], clock=clock) as other:
                await other.retry("r", execute=False)
            for _ in range(20):  # the inbox is looked at every 0.2 s
                clock.advance(0.25)
                await turns(20)

    in_engine(use, store, clock=clock, inline=True, durability="exit")
    assert len(tried) == 2, "once by itself, once because it was asked"


@pytest.mark.parametrize(
    ("verb", "args", "total"),
    [("retry", ("r",), 2), ("skip", ("r", "only", {"total": 7}), 7)],
    ids=["retry", "skip"],
)
def test_a_waiting_retry_can_be_tried_at_once_or_skipped(verb: str, args: Any, total: int) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock.now)

    def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            raise hf.Recoverable("busy")
        return {"total": ctx.attempt}

    flow = one_node(body, retry=Retry(attempts=3, backoff=1000.0))

    async def use(engine: hf.Engine) -> hf.Run[Any]:
        async with running(engine, flow) as run:
            await until(lambda: has(store, "NodeFailed"))
            await getattr(engine, verb)(*args)
            return await run

    assert in_engine(use, store, clock=clock, inline=True).state.total == total


def test_a_paused_run_that_waits_for_a_retry_waits_for_somebody() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock.now)

    def body(state: Work, ctx: hf.Context) -> None:
        if ctx.attempt == 1:
            raise hf.Recoverable("busy")

    flow = one_node(body, retry=Retry(attempts=3, backoff=10.0, jitter=0.0))

    async def use(engine: hf.Engine) -> None:
        async with running(engine, flow) as run:
            await until(lambda: has(store, "NodeFailed"))
            await engine.pause("r")
            assert (await run).status == "paused"
        clock.advance(60.0)
        assert (await engine.resume("r")).status == "completed"

    in_engine(use, store, clock=clock, inline=True)


# --- shutdown ----------------------------------------------------------------------------------------


def test_a_stopped_engine_gives_nodes_their_grace_and_starts_nothing_new() -> None:
    flow, gate = gated()
    store = MemoryStore()

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run:
            await gate["in"].wait()
            engine.stop("SIGTERM")
            assert not run.done()
            gate["open"].set()
            stopped = await run
            assert (stopped.status, stopped.state.log) == ("interrupted", ["first"])
        with pytest.raises(hf.ResumeRefused, match="stopping"):
            await engine.resume("r")

    in_engine(use, store)
    assert in_engine(lambda engine: engine.resume("r"), store, flows=[flow]).state.log == ["first", "second"]


def test_a_node_that_outlives_its_grace_is_cut_and_runs_again() -> None:
    clock = ManualClock()
    flow, gate = gated()
    store = MemoryStore(clock=clock.now)

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run:
            await gate["in"].wait()
            engine.stop("SIGTERM")
            clock.advance(6.0)
            assert (await run).status == "interrupted"

    in_engine(use, store, clock=clock, grace=5.0)
    assert kinds(store)[-2:] == ["NodeInterrupted", "RunInterrupted"]

    async def again(engine: hf.Engine) -> hf.Run[Any]:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        gate["open"].set()
        return await engine.resume("r")

    run = in_engine(again, store, flows=[flow])
    assert (run.state.log, run.nodes["first"].attempt) == (["first", "second"], 2)


def test_a_run_whose_last_node_ends_in_time_is_completed_not_interrupted() -> None:
    gate: dict[str, asyncio.Event] = {}

    async def body(state: Work) -> dict[str, Any]:
        gate["in"].set()
        await gate["open"].wait()
        return {"total": 1}

    async def use(engine: hf.Engine) -> str:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, one_node(body)) as run:
            await gate["in"].wait()
            engine.stop()
            gate["open"].set()
            return (await run).status

    assert in_engine(use) == "completed"


def test_closing_an_engine_interrupts_what_runs_and_gives_the_leases_back() -> None:
    flow, gate = gated()
    store = MemoryStore()

    async def main() -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with hf.Engine(store, grace=0.0) as engine:
            run = asyncio.create_task(engine.run(flow, run_id="r"))
            await gate["in"].wait()
        assert (await run).status == "interrupted"

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    row = store.run("r")
    assert (row.status, row.held) == ("interrupted", False)


def test_only_a_stop_without_grace_shortens_the_time_that_nodes_have_left() -> None:
    clock = ManualClock()
    flow, gate = gated()
    store = MemoryStore(clock=clock.now)

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run:
            await gate["in"].wait()
            engine.stop("SIGTERM")
            for again in ({}, {"grace": 1}):
                engine.stop("again", **again)
                clock.advance(2.0)
                await turns(20)
            assert not has(store, "NodeInterrupted")
            await engine.stop("now", grace=0)
            assert (await run).status == "interrupted"

    in_engine(use, store, clock=clock, grace=10.0)
    assert kinds(store)[-2:] == ["NodeInterrupted", "RunInterrupted"]
    assert (
        open_row(store.events("r")[-1], store.blobs).event.reason == "SIGTERM"
    )  # why it stopped, not why it hurried


def test_a_second_stop_does_not_lengthen_the_time_that_nodes_have_left() -> None:
    clock = ManualClock()
    flow, gate = gated()

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run:
            await gate["in"].wait()
            stopping = engine.stop()
            clock.advance(6.0)
            engine.stop(grace=3600)
            clock.advance(6.0)
            await stopping
            assert (await run).status == "interrupted"

    in_engine(use, MemoryStore(clock=clock.now), clock=clock, grace=10.0)


def test_a_stop_may_have_a_grace_period_of_its_own() -> None:
    clock = ManualClock()
    flow, gate = gated()
    store = MemoryStore(clock=clock.now)

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run:
            await gate["in"].wait()
            stopping = engine.stop(grace=3)
            clock.advance(4.0)
            await stopping
            assert (await run).status == "interrupted"

    in_engine(use, store, clock=clock, grace=3600.0)


@pytest.mark.parametrize("grace", [-1, "soon", float("nan")])
def test_a_grace_period_that_makes_no_sense_is_refused_and_stops_nothing(grace: Any) -> None:
    async def use(engine: hf.Engine) -> None:
        with pytest.raises(hf.SettingError, match="option 'grace'"):
            engine.stop(grace=grace)
        assert (await engine.run(one_node(lambda state: {"total": 1}))).status == "completed"

    in_engine(use)


def test_a_stopped_engine_is_awaited_as_often_as_one_likes() -> None:
    async def use(engine: hf.Engine) -> None:
        await engine.stop()
        stopping = engine.stop()
        await stopping
        await stopping

    in_engine(use)


def test_a_worker_is_waited_for_by_whoever_awaits_the_stop() -> None:
    ended: list[str] = []

    async def body(state: Work) -> dict[str, Any]:
        asyncio.get_running_loop().call_soon(lambda: stops.append(engines[0].stop()))
        await until(lambda: stops)
        await turns(10)
        return {"total": 1}

    flow, engines, stops = one_node(body), [], []

    async def use(engine: hf.Engine) -> None:
        engines.append(engine)
        await engine.start(flow, run_id="r")
        working = asyncio.create_task(engine.work(on_end=lambda run: ended.append(run.status)))
        await until(lambda: stops)
        await stops[0]
        assert ended == ["completed"]
        await working

    in_engine(use, flows=[flow])


@pytest.mark.parametrize("verb", ["stop", "close"])
@pytest.mark.parametrize("depth", ["in the node", "in a task of the node", "in a run inside the node"])
def test_a_node_cannot_wait_until_its_own_engine_has_stopped(verb: str, depth: str) -> None:
    async def wait_for_it() -> None:
        with pytest.raises(hf.ContextError, match="run 'r' waits until its own engine has stopped"):
            await getattr(engines[0], verb)()
        refused.append(1)

    async def body(state: Work) -> None:
        if depth == "in the node":
            await wait_for_it()
        elif depth == "in a task of the node":
            await asyncio.create_task(wait_for_it())
        else:
            async with hf.Engine(MemoryStore()) as inner:
                await inner.run(inside, run_id="inside")

    async def body_inside(state: Work) -> None:
        await wait_for_it()

    engines: list[hf.Engine] = []
    refused: list[int] = []
    inside = one_node(body_inside)

    async def use(engine: hf.Engine) -> None:
        engines.append(engine)
        assert (await engine.run(one_node(body), run_id="r")).status == "completed"
        assert refused

    in_engine(use)


def test_a_node_may_stop_its_engine_without_waiting() -> None:
    engines: list[hf.Engine] = []
    graph = Graph("stops", Work)

    @graph.node
    async def first(state: Work) -> dict[str, Any]:
        engines[0].stop("enough")
        return {"log": ["first"]}

    graph.node(name="second")(lambda state: {"log": ["second"]})
    flow = graph.chain(START, "first", "second", END).compile()

    async def use(engine: hf.Engine) -> None:
        engines.append(engine)
        run = await engine.run(flow, run_id="r")
        assert (run.status, run.state.log) == ("interrupted", ["first"])
        await engine.stop()

    in_engine(use)
