"""`run` of a run that another call executes waits for it, and takes it over if its holder disappears."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from engines import Work, gated, has, in_engine, kinds, one_node, running
from harness import PATIENCE_S, turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry
from holdfast.errors import FenceLost, StoreBusy
from holdfast.runtime import failures
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.clock import ManualClock


class Gate:
    """A flow whose first node waits until it is opened."""

    def __init__(self) -> None:
        self.flow, events = gated()
        self.entered, self.open = asyncio.Event(), asyncio.Event()
        events.update({"in": self.entered, "open": self.open})


async def joining(engine: hf.Engine, flow: Flow[Any], given: Any = None) -> asyncio.Task[hf.Run[Any]]:
    """A second call of `run` for the run `r`, while the first executes it."""
    before = len(engine._holdings._joins)
    call = asyncio.create_task(engine.run(flow, given, run_id="r"))
    await until(lambda: len(engine._holdings._joins) > before)
    await engine.get("r")  # read on the same thread, so the call has read it, too
    await turns(5)
    assert not call.done()
    return call


def test_a_second_call_waits_for_the_run_and_returns_it() -> None:
    store = MemoryStore()

    async def use(engine: hf.Engine) -> None:
        gate = Gate()
        async with running(engine, gate.flow) as run:
            await gate.entered.wait()
            joined = await joining(engine, gate.flow)
            gate.open.set()
            assert (await joined).state == (await run).state
            assert (await joined).status == "completed"

    in_engine(use, store)
    assert kinds(store).count("NodeStarted") == 2
    assert "RunResumed" not in kinds(store)


def test_another_engine_waits_for_the_run_and_returns_it() -> None:
    store = MemoryStore()

    async def use(engine: hf.Engine) -> None:
        gate = Gate()
        async with running(engine, gate.flow), hf.Engine(store) as other:
            await gate.entered.wait()
            joined = await joining(other, gate.flow)
            gate.open.set()
            assert (await joined).state.log == ["first", "second"]
            assert not other.is_executing

    in_engine(use, store)
    assert "RunResumed" not in kinds(store)


def test_two_calls_at_the_same_time_are_one_run() -> None:
    store = MemoryStore()

    async def use(engine: hf.Engine) -> None:
        gate = Gate()
        gate.open.set()
        runs = await asyncio.gather(*(engine.run(gate.flow, run_id="r") for _ in range(5)))
        assert {run.status for run in runs} == {"completed"}

    in_engine(use, store)
    assert kinds(store).count("NodeStarted") == 2


class Held:
    """A store whose appends wait until they are let through; those of `refused` then fail."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.waiting, self.open = threading.Event(), threading.Event()
        self.refused: list[Exception] = []
        self._append, self.store.append = self.store.append, self._hold  # type: ignore[method-assign]

    def _hold(self, batch: Any) -> Any:
        self.waiting.set()
        assert self.open.wait(PATIENCE_S)
        if self.refused:
            return [self.refused.pop() for _ in batch]
        return self._append(batch)

    def use(self, use: Any) -> None:
        """Call this with a new engine; at its end, all appends are let through."""

        async def call(engine: hf.Engine) -> None:
            engine._services.commits._writer.try_commit = lambda appends: (
                None
            )  # commits are slow: in the writer's thread
            try:
                await use(engine)
            finally:
                self.open.set()

        in_engine(call, self.store)


def test_a_call_joins_a_run_that_another_call_is_about_to_record() -> None:
    held = Held()

    async def use(engine: hf.Engine) -> None:
        gate = Gate()
        gate.open.set()
        calls = [asyncio.create_task(engine.run(gate.flow, run_id="r")) for _ in range(3)]
        await until(held.waiting.is_set)
        await turns(20)
        assert not any(call.done() for call in calls)
        held.open.set()
        assert {run.status for run in await asyncio.gather(*calls)} == {"completed"}

    held.use(use)
    assert kinds(held.store).count("NodeStarted") == 2


def test_a_call_records_the_run_itself_if_the_call_before_it_cannot() -> None:
    held = Held()
    held.refused.append(hf.StoreError("the disk is gone"))

    async def use(engine: hf.Engine) -> None:
        gate = Gate()
        gate.open.set()
        first, second = (asyncio.create_task(engine.run(gate.flow, run_id="r")) for _ in range(2))
        await until(held.waiting.is_set)
        await turns(20)
        held.open.set()
        with pytest.raises(hf.StoreError, match="the disk is gone"):
            await first
        assert (await second).status == "completed"

    held.use(use)
    assert kinds(held.store).count("RunCreated") == 1


@pytest.mark.parametrize("joins", [True, False])
def test_a_run_is_not_held_by_a_call_that_was_cancelled_while_it_recorded_the_run(joins: bool) -> None:
    held = Held()

    async def use(engine: hf.Engine) -> None:
        gate = Gate()
        gate.open.set()
        first, second = (asyncio.create_task(engine.run(gate.flow, run_id="r")) for _ in range(2))
        await until(held.waiting.is_set)
        await turns(20)
        first.cancel()
        if not joins:
            second.cancel()
        await asyncio.wait([first, *([] if joins else [second])])
        held.open.set()
        if joins:
            assert (await second).status == "completed"
        else:
            await until(lambda: has(held.store, "RunCreated") and not held.store.run("r").held)

    held.use(use)


def test_a_start_returns_when_its_run_is_recorded_although_a_call_is_about_to_record_it() -> None:
    held = Held()

    async def use(engine: hf.Engine) -> None:
        gate = Gate()
        gate.open.set()
        run = asyncio.create_task(engine.run(gate.flow, run_id="r"))
        await until(held.waiting.is_set)
        start = asyncio.create_task(engine.start(gate.flow, run_id="r"))
        await turns(20)
        assert not start.done()
        held.open.set()
        assert await start == "r"
        assert has(held.store, "RunCreated")
        assert (await run).status == "completed"

    held.use(use)


def test_a_joined_run_that_fails_fails_in_every_call() -> None:
    async def body(state: Work) -> None:
        entered.set()
        await opened.wait()
        raise ValueError("no luck")

    entered, opened = asyncio.Event(), asyncio.Event()
    flow = one_node(body)

    async def use(engine: hf.Engine) -> None:
        async with running(engine, flow) as run:
            await entered.wait()
            joined = await joining(engine, flow)
            opened.set()
            for call in (run, joined):
                with pytest.raises(hf.RunFailed, match="no luck") as failed:
                    await call
                assert type(failed.value.__cause__) is ValueError

    in_engine(use)


def test_a_joined_run_with_another_input_is_refused() -> None:
    async def use(engine: hf.Engine) -> None:
        gate = Gate()
        async with running(engine, gate.flow), hf.Engine(engine.store) as other:
            await gate.entered.wait()
            for one in (engine, other):
                with pytest.raises(hf.RunExists, match="another input"):
                    await one.run(gate.flow, {"plain": "other"}, run_id="r")

    in_engine(use)


def test_a_run_that_its_holder_leaves_to_a_person_is_returned_as_it_is() -> None:
    graph = Graph("asks", Work)
    graph.ask("which", "Which one?", options=["a", "b"], into="plain")
    store = MemoryStore()

    async def use(engine: hf.Engine) -> None:
        gate = Gate()
        first = gate.flow.nodes["first"].fn
        graph.node(name="first")(first)
        flow = graph.chain(START, "first", "which", END).compile()
        async with running(engine, flow) as run, hf.Engine(store) as other:
            await gate.entered.wait()
            calls = [await joining(one, flow) for one in (engine, other)]
            gate.open.set()
            for call in (run, *calls):
                found = await call
                assert (found.status, len(found.questions)) == ("waiting", 1)

    in_engine(use, store)
    assert "RunResumed" not in kinds(store)


def test_a_run_is_taken_over_when_its_holder_stops() -> None:
    store = MemoryStore()

    async def main() -> None:
        gate = Gate()
        async with hf.Engine(store) as other:
            async with hf.Engine(store, grace=0) as engine:
                run = asyncio.create_task(engine.run(gate.flow, run_id="r"))
                await gate.entered.wait()
                joined = await joining(other, gate.flow)
            assert (await run).status == "interrupted"
            gate.open.set()
            assert (await joined).status == "completed"

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert kinds(store).count("RunResumed") == 1


def test_a_run_is_taken_over_when_the_lease_of_its_holder_has_run_out() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock.now)

    async def main() -> None:
        gate = Gate()
        dead = hf.Engine(store, clock=clock, inline=True, lease_ttl=5)
        await dead.__aenter__()
        run = asyncio.create_task(dead.run(gate.flow, run_id="r"))
        await gate.entered.wait()
        async with hf.Engine(store, clock=clock, inline=True, lease_ttl=5) as other:
            joined = await joining(other, gate.flow)
            gate.open.set()
            dead._holdings.renewal.renew = lambda: None  # its process stands still
            store.append, append = refuse_of(dead, store.append), store.append
            while not joined.done():
                clock.advance(1.0)
                await turns(20)
            assert (await joined).status == "completed"
            store.append = append
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert kinds(store).count("RunResumed") == 1


def refuse_of(dead: hf.Engine, append: Any) -> Any:
    """The process of this engine stands still: nothing that it appends arrives."""

    def refuse(batch: Any) -> Any:
        if batch[0].holder == dead._services.holder.id:
            return [FenceLost("it stands still")]
        return append(batch)

    return refuse


def test_a_joining_call_that_is_cancelled_leaves_the_run_alone() -> None:
    store = MemoryStore()

    async def use(engine: hf.Engine) -> None:
        gate = Gate()
        async with running(engine, gate.flow) as run, hf.Engine(store) as other:
            await gate.entered.wait()
            for one in (engine, other):
                joined = await joining(one, gate.flow)
                joined.cancel()
                await asyncio.gather(joined, return_exceptions=True)
            gate.open.set()
            assert (await run).status == "completed"

    in_engine(use, store)
    assert not has(store, "NodeInterrupted")


def test_a_joining_call_of_an_engine_that_stops_returns_the_run_as_it_is() -> None:
    store = MemoryStore()

    async def use(engine: hf.Engine) -> None:
        gate = Gate()
        async with running(engine, gate.flow) as run:
            await gate.entered.wait()
            async with hf.Engine(
                store, clock=ManualClock()
            ) as other:  # a clock that stands still: it need not poll
                joined = await joining(other, gate.flow)
            found = joined.result()  # it has ended before the engine was closed
            assert (found.status, found.held_by is not None) == ("running", True)
            gate.open.set()
            assert (await run).status == "completed"

    in_engine(use, store)


def test_a_call_that_joined_a_run_of_its_own_engine_is_there_until_the_grace_period_is_over() -> None:
    async def use(engine: hf.Engine) -> None:
        gate = Gate()
        async with running(engine, gate.flow) as run:
            await gate.entered.wait()
            joined = await joining(engine, gate.flow)
            stopping = engine.stop()
            await turns(20)
            assert not joined.done()
            gate.open.set()
            await stopping
            assert joined.done()
            assert (await joined).status == (await run).status == "interrupted"

    in_engine(use)


# --- runs that would wait for each other -------------------------------------------------------------


def test_a_node_cannot_join_its_own_run() -> None:
    flows: list[Flow[Any]] = []

    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        with pytest.raises(hf.RunHeld, match="neither would ever end"):
            await ctx.resources["engines"][0].run(flows[0], run_id="r")
        async with hf.Engine(ctx.resources["engines"][0].store) as other:
            with pytest.raises(hf.RunHeld):
                await other.run(flows[0], run_id="r")
            with pytest.raises(hf.RunHeld, match=r"Give wait\(\) a timeout"):
                await other.wait("r")
        with pytest.raises(hf.RunHeld, match="neither would ever end"):
            await ctx.resources["engines"][0].wait("r")
        with pytest.raises(TimeoutError):
            await ctx.resources["engines"][0].wait("r", timeout=0)
        return {"log": ["refused"]}

    flows.append(one_node(body))
    engines: list[hf.Engine] = []

    async def use(engine: hf.Engine) -> None:
        engines.append(engine)
        assert (await engine.run(flows[0], run_id="r")).state.log == ["refused"]

    in_engine(use, resources={"engines": engines})


@pytest.mark.parametrize("colour", ["def", "async def"])
def test_a_node_cannot_join_its_own_run_by_a_blocking_function(colour: str) -> None:
    store = MemoryStore()
    flows: list[Flow[Any]] = []
    refused: list[str] = []

    def join() -> None:
        try:
            hf.run(flows[0], run_id="r", store=store)
        except hf.RunHeld as held:
            refused.append(held.run_id)

    def body(state: Work) -> None:
        join()

    async def async_body(state: Work) -> None:
        join()

    flows.append(one_node(body if colour == "def" else async_body))
    assert hf.run(flows[0], run_id="r", store=store).status == "completed"
    assert refused == ["r"]


@pytest.mark.parametrize("how", ["inside", "joined", "waited for"])
def test_a_run_cannot_join_one_that_waits_for_it(how: str) -> None:
    """`a` waits for `b`, and a node of `b` calls `run` for `a`."""
    engines: list[hf.Engine] = []
    flows: dict[str, Flow[Any]] = {}
    refused: list[str] = []
    at_a, at_b = asyncio.Event(), asyncio.Event()

    async def of_a(state: Work) -> None:
        at_a.set()
        if how != "inside":
            await at_b.wait()
        if how == "waited for":
            await engines[0].wait("b")
        else:
            await engines[0].run(flows["b"], run_id="b")

    async def of_b(state: Work) -> None:
        at_b.set()
        await at_a.wait()
        await turns(20)
        try:
            await engines[0].run(flows["a"], run_id="a")
        except hf.RunHeld as held:
            refused.append(held.run_id)

    flows["a"], flows["b"] = (one_node_named(name, body) for name, body in (("a", of_a), ("b", of_b)))

    async def use(engine: hf.Engine) -> None:
        engines.append(engine)
        calls = [engine.run(flows["a"], run_id="a")]
        if how != "inside":
            calls.append(engine.run(flows["b"], run_id="b"))
        assert [run.status for run in await asyncio.gather(*calls)] == ["completed"] * len(calls)

    in_engine(use)
    assert refused == ["a"]


def one_node_named(name: str, body: Any) -> Flow[Any]:
    graph = Graph(name, Work)
    graph.node(name="only")(body)
    return graph.chain(START, "only", END).compile()


def test_a_node_may_join_a_run_that_does_not_wait_for_it() -> None:
    engines: list[hf.Engine] = []

    async def use(engine: hf.Engine) -> None:
        engines.append(engine)
        gate = Gate()

        async def body(state: Work) -> dict[str, Any]:
            joined = await engines[0].run(gate.flow, run_id="other")
            return {"log": joined.state.log}

        other = asyncio.create_task(engine.run(gate.flow, run_id="other"))
        await gate.entered.wait()
        async with running(engine, one_node(body)) as run:
            await turns(20)
            gate.open.set()
            assert (await run).state.log == (await other).state.log == ["first", "second"]

    in_engine(use)


# --- failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        hf.RunHeld("r", "process 7 on host"),
        StoreBusy("locked"),
        FenceLost("taken over"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_run_or_a_store_that_is_busy_is_a_recoverable_failure(error: Exception) -> None:
    assert failures.classify(error) == "recoverable"
    raised: list[Exception] = []

    async def body(state: Work) -> dict[str, Any]:
        if not raised:
            raised.append(error)
            raise error
        return {"total": 1}

    async def use(engine: hf.Engine) -> None:
        run = await engine.run(one_node(body, retry=Retry(attempts=2, backoff=0.0)), run_id="r")
        assert (run.status, run.nodes["only"].attempt) == ("completed", 2)

    in_engine(use)


def test_a_blocking_call_joins_from_another_thread(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    entered, leave = threading.Event(), threading.Event()

    def body(state: Work) -> dict[str, Any]:
        entered.set()
        leave.wait(PATIENCE_S)
        return {"total": 1}

    flow = one_node(body)
    found: list[hf.Run[Any]] = []

    def call() -> None:
        found.append(hf.run(flow, run_id="r", store=store))

    threads = [threading.Thread(target=call)]
    threads[0].start()
    assert entered.wait(PATIENCE_S)
    threads.append(threading.Thread(target=call))
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [run.state.total for run in found] == [1, 1]
