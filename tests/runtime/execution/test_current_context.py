"""`hf.current()`: code that a node calls finds the node's context, wherever it runs, without being handed it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from current_nodes import COLOURS, flow_of
from engines import Work, in_engine, kinds, one_node, quickly
from harness import turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing import crash_everywhere
from holdfast.testing.clock import STARTS_AT, ManualClock


@pytest.mark.parametrize("colour", COLOURS)
def test_code_that_a_node_calls_keeps_steps_without_being_handed_a_context(
    colour: str, tmp_path: Path
) -> None:
    """The node fails after its step; a second attempt finds what the first has kept."""
    calls = tmp_path / "calls"
    run = hf.run(flow_of(colour), {"calls": str(calls)}, run_id="r", store=tmp_path / "runs.db")
    assert (run.status, run.state["kept"]) == ("completed", ["kept by only"])
    assert calls.read_text() == "called\n"
    assert run.nodes["only"].attempt == 2


def test_parallel_nodes_and_items_find_their_own_context() -> None:
    graph, seen = Graph("many", Work), []

    async def note() -> None:
        await asyncio.sleep(0)
        ctx = hf.current()
        seen.append((ctx.node, ctx.item))

    @graph.node
    async def left(state: Work) -> None:
        await note()

    @graph.node
    async def right(state: Work) -> None:
        await asyncio.create_task(note())

    @graph.node(each=lambda state: [1, 2])
    async def items(item: int) -> None:
        await note()

    for node in (left, right, items):
        graph.chain(START, node, END)
    in_engine(lambda engine: engine.run(graph.compile()))
    assert sorted(seen, key=repr) == [("items", 0), ("items", 1), ("left", None), ("right", None)]


def test_a_step_in_a_thread_finds_a_context_that_blocks_and_keeps_its_own_steps() -> None:
    inner: list[str] = []

    def fetch() -> str:
        ctx = hf.current()
        assert isinstance(ctx, hf.BlockingContext)
        return str(ctx.step("inner", lambda: inner.append("called") or "page"))

    async def body(state: Work) -> dict[str, Any]:
        ctx = hf.current()
        assert isinstance(ctx, hf.Context)
        page = await ctx.step("outer", fetch)
        if ctx.attempt == 1:
            raise hf.Recoverable("once more")
        return {"plain": page}

    store = MemoryStore()
    flow = one_node(body, retry=hf.Retry(attempts=2, backoff=0))
    run = in_engine(lambda engine: engine.run(flow, run_id="r"), store)
    assert (run.state.plain, kinds(store).count("StepCompleted"), inner) == ("page", 2, ["called"])


def test_a_coroutine_that_a_plain_node_has_as_a_step_finds_a_context_to_await() -> None:
    async def fetch() -> str:
        return str(await hf.current().step("inner", lambda: "page"))

    def body(state: Work) -> dict[str, Any]:
        ctx = hf.current()
        assert isinstance(ctx, hf.BlockingContext)
        return {"plain": ctx.step("outer", fetch)}

    store = MemoryStore()
    run = in_engine(lambda engine: engine.run(one_node(body), run_id="r"), store)
    assert (run.state.plain, kinds(store).count("StepCompleted")) == ("page", 2)


def test_a_plain_node_with_an_event_loop_of_its_own_finds_a_context_that_blocks() -> None:
    async def fetch() -> str:
        ctx = hf.current()
        assert isinstance(ctx, hf.BlockingContext)
        return str(ctx.step("inner", lambda: "page"))

    run = in_engine(lambda engine: engine.run(one_node(lambda state: {"plain": asyncio.run(fetch())})))
    assert run.state.plain == "page"


@pytest.mark.parametrize("wait", ["sleep", "wait_for", "ask"])
def test_code_in_a_thread_of_a_coroutine_cannot_wait(wait: str) -> None:
    def waits() -> None:
        given = 1 if wait == "sleep" else "word"
        getattr(hf.current(), wait)(given)

    async def body(state: Work) -> None:
        await asyncio.to_thread(waits)

    with pytest.raises(
        hf.RunFailed, match="'only' is an async def, and this code waits in one of its threads"
    ):
        in_engine(lambda engine: engine.run(one_node(body)))


@pytest.mark.parametrize("colour", ["def", "async"])
def test_a_node_waits_by_the_context_that_it_found(colour: str, tmp_path: Path) -> None:
    def plain(state: Work) -> dict[str, Any]:
        return {"plain": hf.current().wait_for("word")}

    async def coroutine(state: Work) -> dict[str, Any]:
        ctx = hf.current()
        assert isinstance(ctx, hf.Context)
        return {"plain": await ctx.wait_for("word")}

    flow = one_node(plain if colour == "def" else coroutine)
    options: Any = {"store": tmp_path / "runs.db", "flows": [flow], "park_after": 0}
    assert hf.run(flow, run_id="r", **options).status == "waiting"
    hf.signal("r", "word", "hello", **options)
    assert hf.resume("r", **options).state.plain == "hello"


def test_tasks_that_are_cancelled_when_such_a_node_unwinds_are_awaited() -> None:
    heard: list[str] = []
    clock = ManualClock(auto=True)
    store = MemoryStore(clock=clock.now)

    async def beside() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await turns(20)  # it takes its time to clean up
            heard.append("too late" if "NodeWaiting" in kinds(store) else "cleaned up")

    async def body(state: Work) -> None:
        ctx = hf.current()
        assert isinstance(ctx, hf.Context)
        other = asyncio.create_task(beside())
        try:
            await ctx.sleep(100)
        finally:
            other.cancel()

    assert quickly(one_node(body), clock=clock, store=store, park_after=1).status == "completed"
    assert heard[0] == "cleaned up"


def test_files_that_a_node_writes_by_the_context_that_it_found_are_recorded(tmp_path: Path) -> None:
    def body(state: Work) -> None:
        hf.current().artifacts.write("note.txt", b"hello")

    options: Any = {"store": tmp_path / "runs.db", "run_base": tmp_path / "base"}
    hf.run(one_node(body), run_id="r", **options)
    (completed,) = hf.events("r", kind="NodeCompleted", **options)
    assert "note.txt" in completed.body["artifacts"]


def test_a_coroutine_that_is_found_and_not_awaited_is_reported() -> None:
    async def body(state: Work) -> None:
        hf.current().step("forgotten", len, [])

    with pytest.raises(hf.RunFailed, match="did not await it"):
        in_engine(lambda engine: engine.run(one_node(body)))


# --- outside of a node -------------------------------------------------------------------------------


def test_outside_of_a_node_there_is_no_current_context() -> None:
    with pytest.raises(hf.ContextError, match="outside of a node"):
        hf.current()


def test_a_router_is_outside_of_a_node() -> None:
    graph = Graph("routed", Work)
    graph.node(name="only")(_nothing)

    def router(state: Work) -> str:
        hf.current()
        return END

    flow = graph.edge(START, "only").branch("only", router, to=[END]).compile()
    with pytest.raises(hf.RunFailed, match="outside of a node"):
        in_engine(lambda engine: engine.run(flow))


async def _nothing(state: Work) -> None:
    await asyncio.sleep(0)


def test_code_that_outlives_its_node_finds_no_context() -> None:
    found: list[BaseException] = []
    ended = threading.Event()

    def late() -> None:
        ended.wait(60)
        try:
            hf.current()
        except hf.ContextError as error:
            found.append(error)

    def body(state: Work) -> None:
        around = contextvars.copy_context()
        threading.Thread(target=around.run, args=(late,), daemon=True).start()

    async def use(engine: hf.Engine) -> None:
        await engine.run(one_node(body))
        ended.set()
        await until(lambda: bool(found))

    in_engine(use)


def test_a_thread_that_is_given_up_finds_no_context_and_ends() -> None:
    found: list[BaseException] = []
    given_up = threading.Event()

    def body(state: Work) -> None:
        given_up.wait(60)
        try:
            hf.current()
        except BaseException as error:
            found.append(error)
            raise

    async def use(engine: hf.Engine) -> None:
        with pytest.raises(hf.RunFailed, match="took longer than"):
            await engine.run(one_node(body, timeout=0.01, retry=1))
        given_up.set()
        await until(lambda: bool(found))

    in_engine(use)
    assert "the engine has abandoned this attempt" in str(found[0])
    assert not isinstance(found[0], Exception), "a node that catches every exception ends all the same"


def test_a_task_that_a_node_leaves_running_does_not_keep_its_run_in_memory() -> None:
    import gc

    from holdfast.runtime.runner import Runner

    left: list[asyncio.Task[None]] = []

    async def forever() -> None:
        await asyncio.Event().wait()

    async def body(state: Work) -> None:
        left.append(asyncio.create_task(forever()))

    def runners() -> list[Runner]:
        gc.collect()
        return [found for found in gc.get_objects() if isinstance(found, Runner)]

    async def use(engine: hf.Engine) -> None:
        before = runners()  # of other tests, whose threads may still be ending
        await engine.run(one_node(body))
        assert len(runners()) <= len(before)
        left[0].cancel()

    in_engine(use)


# --- in tests of users -------------------------------------------------------------------------------


def lending() -> Flow[Any]:
    graph = Graph("lending", Work)

    @graph.node
    def plain(state: Work) -> dict[str, Any]:
        return {"plain": hf.current().step("word", lambda: "plain")}

    @graph.node
    async def coroutine(state: Work) -> dict[str, Any]:
        return {"log": [await hf.current().step("word", str, "coroutine")]}

    return graph.chain(START, plain, coroutine, END).compile()


def test_crash_everywhere_crashes_a_flow_that_finds_its_context() -> None:
    report = crash_everywhere(lending(), Work())
    assert not report.findings


# --- the time ----------------------------------------------------------------------------------------


def test_the_time_of_a_node_is_the_time_of_the_engines_clock() -> None:
    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        before = ctx.now()
        await ctx.sleep(90)
        return {"log": [before.isoformat(), (await ctx.step("then", ctx.now)).isoformat()]}

    clock = ManualClock(auto=True)
    run = quickly(one_node(body), clock=clock, store=MemoryStore(clock=clock.now), park_after=1000)
    begun, then = (datetime.fromisoformat(told) for told in run.state.log)
    assert begun == datetime.fromtimestamp(STARTS_AT, UTC)
    assert begun.tzinfo is UTC
    assert (then - begun).total_seconds() >= 90
