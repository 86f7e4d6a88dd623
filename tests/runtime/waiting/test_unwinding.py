"""A node that unwinds from a long wait has not been cancelled: nothing that its cleaning code does takes effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import pytest
from harness import Stage, Work, turns
from waits import Going, told, waiting

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.reading import text
from holdfast.testing import check

LONG_S = 3600.0


def child() -> Flow[Any]:
    graph = Graph("child", Work)

    async def only(state: Work, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [await ctx.wait_for("paid")]}

    graph.node(name="only")(only)
    return graph.chain(START, "only", END).compile()


CHILD = child()
WAITS: dict[str, Callable[[Any], Any]] = {
    "wait_for": lambda ctx: ctx.wait_for("paid"),
    "ask": lambda ctx: ctx.ask("Sure?"),
    "sleep": lambda ctx: ctx.sleep(LONG_S),
    "call": lambda ctx: ctx.call(CHILD),
}


def sound(stage: Stage) -> bool:
    return stage.problems() == [] and check(stage.store) == []


class Cleaning:
    """A flow of one node that books, waits, and cleans up if it is stopped: it believes that it was cancelled."""

    def __init__(
        self,
        stage: Stage,
        wait: Callable[[Any], Any] = WAITS["wait_for"],
        clean_up: Callable[[Any, Callable[..., Any]], Any] | None = None,
    ) -> None:
        self.effects: list[str] = []
        self.errors: list[BaseException] = []
        clean_up = clean_up or (lambda ctx, do: ctx.step("release", do, "released"))

        def body(state: Work, ctx: Any) -> Any:
            yield ctx.step("book", self.effects.append, "booked")
            is_over = False
            try:
                found = yield wait(ctx)
                is_over = True
            finally:
                if not is_over:
                    try:
                        cleaned = clean_up(ctx, self.effects.append)
                        if cleaned is not None:
                            yield cleaned
                    except BaseException as raised:
                        self.errors.append(raised)
                        raise
            return {"log": [found]}

        self.flow = stage.one(body)


# --- nothing takes effect ----------------------------------------------------------------------------


@pytest.mark.parametrize("wait", WAITS)
def test_a_step_in_the_cleanup_of_a_node_that_only_waits_is_neither_called_nor_recorded(
    stage: Stage, wait: str
) -> None:
    cleaning = Cleaning(stage, WAITS[wait])

    async def use(engine: hf.Engine) -> None:
        going = Going(stage, engine, engine.run(cleaning.flow, run_id="r"))
        await going.until("StepCompleted")
        await turns(40)
        stage.clock.advance(30)
        await going.until("NodeWaiting")
        await going.crash()

    stage.do(use, cleaning.flow, CHILD)
    assert cleaning.effects == ["booked"]
    assert [event.step for event in stage.told("StepCompleted")] == ["book"]
    assert [type(error).__name__ for error in cleaning.errors] == ["Stopped"]
    assert sound(stage)


OPERATIONS: dict[str, Callable[[Any, Callable[..., Any]], Any]] = {
    "step": lambda ctx, do: ctx.step("release", do, "released"),
    "declared step": lambda ctx, do: ctx.step(hf.Step("release", idempotent=False), do, "released"),
    "map": lambda ctx, do: ctx.map("release", do, ["released"]),
    "checkpoint": lambda ctx, do: ctx.checkpoint("released"),
    "sleep": lambda ctx, do: ctx.sleep(1.0),
    "wait_for": lambda ctx, do: ctx.wait_for("other"),
    "ask": lambda ctx, do: ctx.ask("Other?"),
    "start": lambda ctx, do: ctx.start(CHILD),
    "call": lambda ctx, do: ctx.call(CHILD),
    "emit": lambda ctx, do: ctx.emit("released"),
    "cost": lambda ctx, do: ctx.cost(usd=1.0),
    "artifacts": lambda ctx, do: ctx.artifacts.write("released.txt", "released"),
    "current": lambda ctx, do: hf.current().step("release", do, "released"),
}


@pytest.mark.parametrize("what", OPERATIONS)
def test_nothing_that_a_node_does_through_its_context_while_it_unwinds_takes_effect(
    stage: Stage, what: str
) -> None:
    cleaning = Cleaning(stage, clean_up=OPERATIONS[what])
    waiting(stage, cleaning.flow)
    assert cleaning.effects == ["booked"]
    assert [type(error).__name__ for error in cleaning.errors] == ["Stopped"]
    began = stage.kinds().index("SignalAwaited")
    assert stage.kinds()[began + 1 :] == ["NodeWaiting"]
    told(stage, "paid", 7)
    assert stage.resume(cleaning.flow).state.log == [7]
    assert cleaning.effects == ["booked"]
    assert sound(stage)


def test_an_exception_in_the_cleanup_does_not_end_the_attempt(stage: Stage) -> None:
    def fail(ctx: Any, do: Any) -> None:
        raise ValueError("the cleanup fails")

    cleaning = Cleaning(stage, clean_up=fail)
    waiting(stage, cleaning.flow)
    told(stage, "paid", 7)
    assert stage.resume(cleaning.flow).state.log == [7]


@pytest.mark.parametrize("how", ["stopped", "paused", "left"])
def test_a_node_that_waits_when_its_engine_stops_cleans_nothing_up(stage: Stage, how: str) -> None:
    cleaning = Cleaning(stage)

    async def use(engine: hf.Engine) -> None:
        going = Going(stage, engine, engine.run(cleaning.flow, run_id="r"))
        await going.asleep()
        if how == "stopped":
            engine.stop("deploy")
        elif how == "paused":
            await engine.pause("r")
        else:
            stage.clock.advance(30)
        await going.task

    stage.do(use, cleaning.flow)
    assert cleaning.effects == ["booked"]
    told(stage, "paid", 7)
    assert stage.resume(cleaning.flow).state.log == [7]
    assert cleaning.effects == ["booked"]
    assert sound(stage)


def test_tasks_and_generators_of_a_node_that_unwinds_clean_nothing_up(stage: Stage) -> None:
    if stage.colour == "def":
        pytest.skip("a plain function has no tasks")
    effects: list[str] = []

    async def listen(ctx: hf.Context, name: str) -> Any:
        try:
            return await ctx.wait_for(name)
        except asyncio.CancelledError:
            await ctx.step(f"release {name}", effects.append, name)
            raise

    async def body(state: Work, ctx: hf.Context) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(listen(ctx, name)) for name in ("x", "y")]
        yield {"log": [task.result() for task in tasks]}

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    flow = graph.chain(START, "only", END).compile()
    assert waiting(stage, flow).status == "waiting"
    assert (effects, stage.told("StepCompleted")) == ([], [])
    for name in ("x", "y"):
        told(stage, name, name)
    assert stage.resume(flow).state.log == ["x", "y"]
    assert sound(stage)


def test_a_chunk_that_a_generator_yields_while_it_unwinds_is_not_streamed(stage: Stage) -> None:
    if stage.colour == "def":
        pytest.skip("only an async def can be an async generator")

    async def body(state: Work, ctx: hf.Context) -> Any:
        yield "before"
        try:
            found = await ctx.wait_for("paid")
        except asyncio.CancelledError:
            yield "released"
            raise
        yield {"log": [found]}

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    flow = graph.chain(START, "only", END).compile()
    waiting(stage, flow)
    assert [event.chunks for event in stage.told("NodeStreamed")] == [["before"]]


def test_a_step_that_runs_in_another_thread_when_its_def_node_begins_to_unwind_is_kept(
    tmp_path: Any,
) -> None:
    stage = Stage("sqlite", tmp_path, "def")
    calls: list[str] = []

    def slow(loop: asyncio.AbstractEventLoop, ctx: Any) -> str:
        while ctx._work.body.parking is None:
            pass
        calls.append("called")
        return "kept"

    def body(state: Work, ctx: Any) -> dict[str, Any]:
        with ThreadPoolExecutor(1) as pool:
            begun = pool.submit(copy_context().run, ctx.step, "slow", slow, ctx._loop, ctx)
            while not (ctx._work.running.has_called("slow") or ctx.kept("slow")):
                pass
            return {"log": [ctx.wait_for("paid"), begun.result()]}

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    flow = graph.chain(START, "only", END).compile()
    waiting(stage, flow)
    told(stage, "paid", 7)
    assert stage.resume(flow).state.log == [7, "kept"]
    assert calls == ["called"]
    stage.close()


# --- a cancel ----------------------------------------------------------------------------------------


def test_a_cancel_that_arrives_while_the_node_unwinds_runs_no_cleanup(stage: Stage) -> None:
    if stage.colour == "def":
        pytest.skip("a plain function unwinds in its thread at once")
    effects: list[str] = []
    unwinds = asyncio.Event()
    goes_on = asyncio.Event()

    async def body(state: Work, ctx: hf.Context) -> None:
        try:
            await ctx.wait_for("paid")
        finally:
            unwinds.set()
            try:
                await goes_on.wait()
            except asyncio.CancelledError:
                await ctx.step("release", effects.append, "released")

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    flow = graph.chain(START, "only", END).compile()

    async def use(engine: hf.Engine) -> Any:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        stage.clock.advance(30)
        await unwinds.wait()
        await engine.cancel("r", by="ann")
        await asyncio.gather(going.task, return_exceptions=True)
        return await engine.get("r")

    run = stage.do(use, flow)
    assert run.status == "cancelled"
    assert [(one.node, one.why) for one in run.uncleaned] == [("only", "unwound")]
    assert (effects, stage.told("StepCompleted")) == ([], [])
    assert sound(stage)


def test_after_a_real_cancel_the_cleanup_of_a_node_that_waits_in_memory_runs(stage: Stage) -> None:
    if stage.colour == "def":
        pytest.skip("a plain function unwinds at once, so it never waits in memory")
    cleaning = Cleaning(stage)

    async def use(engine: hf.Engine) -> Any:
        going = Going(stage, engine, engine.run(cleaning.flow, run_id="r"))
        await going.asleep()
        await engine.cancel("r", by="ann")
        await asyncio.gather(going.task, return_exceptions=True)
        return await engine.get("r")

    assert stage.do(use, cleaning.flow).status == "cancelled"
    assert cleaning.effects == ["booked", "released"]
    assert [event.step for event in stage.told("StepCompleted")] == ["book", "release"]
    assert sound(stage)


def test_the_preview_of_a_cancel_names_the_visits_whose_cleanup_will_not_run(stage: Stage) -> None:
    cleaning = Cleaning(stage)
    waiting(stage, cleaning.flow)
    (seen,) = stage.do(lambda engine: engine.preview("r", "cancel"), cleaning.flow).uncleaned
    assert (seen.node, seen.why, seen.steps) == ("only", "unwound", ["book"])
    assert text.will_not_clean_up(seen) == (
        "only waits and is not in memory, so its cleanup will not run; its kept steps: book"
    )
    assert stage.do(lambda engine: engine.preview("r", "resume"), cleaning.flow).uncleaned == ()
    stage.do(lambda engine: engine.cancel("r"), cleaning.flow)
    assert stage.do(lambda engine: engine.get("r"), cleaning.flow).uncleaned == (seen,)


def test_the_preview_of_a_cancel_does_not_name_a_node_that_waits_in_memory_and_will_clean_up(
    stage: Stage,
) -> None:
    if stage.colour == "def":
        pytest.skip("a plain function unwinds at once, so it never waits in memory")
    cleaning = Cleaning(stage)

    async def use(engine: hf.Engine) -> Any:
        going = Going(stage, engine, engine.run(cleaning.flow, run_id="r"))
        await going.asleep()
        seen = await engine.preview("r", "cancel")
        await engine.cancel("r", by="ann")
        await asyncio.gather(going.task, return_exceptions=True)
        return seen

    assert stage.do(use, cleaning.flow).uncleaned == ()
    assert "released" in cleaning.effects


def test_a_node_that_does_not_stop_in_time_is_named_with_the_steps_that_it_has_kept(stage: Stage) -> None:
    if stage.colour == "def":
        pytest.skip("a plain function is abandoned at once")
    ends = asyncio.Event()

    async def body(state: Work, ctx: hf.Context) -> None:
        try:
            await ctx.wait_for("paid")
        finally:
            await ctx.step("release", lambda: None)
            while not ends.is_set():
                with suppress(asyncio.CancelledError):
                    await ends.wait()

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    flow = graph.chain(START, "only", END).compile()

    async def use(engine: hf.Engine) -> Any:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        cancelling = asyncio.ensure_future(engine.cancel("r", by="ann"))
        await going.until("StepCompleted")
        await turns(10)
        stage.clock.advance(6)
        await cancelling
        await asyncio.gather(going.task, return_exceptions=True)
        ends.set()
        return await engine.get("r")

    (left,) = stage.do(use, flow).uncleaned
    assert (left.node, left.why, left.steps) == ("only", "abandoned", ["release"])
    assert sound(stage)
