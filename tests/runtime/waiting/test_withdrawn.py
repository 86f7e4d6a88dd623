"""A wait that the node itself cancels is withdrawn: no signal is lost in it. One that the engine cancels goes on."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from harness import Stage, Work, turns, until
from impatient_nodes import FORMS, by_timeout
from waits import Going, told

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.runtime.blocking import BlockingEngine
from holdfast.testing import check

SHORT_S, LONG_S = 0.01, 3600.0


@pytest.fixture(params=["memory", "sqlite"])
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    """A clock that a test moves. The timers of asyncio run by themselves."""
    found = Stage(request.param, tmp_path, still=True)
    yield found
    found.close()


every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


def impatient(
    stage: Stage, form: Any, seconds: float = SHORT_S, lives: list[int] | None = None
) -> hf.Flow[Any]:
    """Waits for `x` for a while, and then again. A second life, if there are any, begins with the second wait."""

    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        if not lives:
            try:
                return {"log": ["first", await form(lambda: ctx.wait_for("x"), seconds)]}
            except TimeoutError:
                if lives is not None:
                    lives.append(1)
                    await until(lambda: "WaitWithdrawn" in stage.kinds())
                    await stage.dies(ctx)
        return {"log": ["second", await ctx.wait_for("x", key="second")]}

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    return graph.chain(START, "only", END).compile()


def sound(stage: Stage) -> bool:
    return stage.problems() == [] and check(stage.store) == []


def slots(stage: Stage, kind: str) -> list[str]:
    return [event.slot for event in stage.told(kind)]


# --- no signal is lost -------------------------------------------------------------------------------


@every_form
def test_after_a_wait_was_given_up_the_next_signal_goes_to_the_next_wait(stage: Stage, form: Any) -> None:
    flow = impatient(stage, form)

    async def use(engine: hf.Engine) -> Any:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.until("SignalAwaited", 2)
        assert (await engine.get("r")).waits == ("only.1.1:signal:x:second",)
        await engine.signal("r", "x", 7)
        return await going.task

    assert stage.do(use, flow).state.log == ["second", 7]
    assert slots(stage, "WaitWithdrawn") == ["signal:x:1"]
    assert sound(stage)


@every_form
def test_a_signal_that_comes_in_time_ends_the_wait_and_nothing_is_withdrawn(stage: Stage, form: Any) -> None:
    flow = impatient(stage, form, LONG_S)

    async def use(engine: hf.Engine) -> Any:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        await engine.signal("r", "x", 7)
        return await going.task

    assert stage.do(use, flow).state.log == ["first", 7]
    assert stage.told("WaitWithdrawn") == []


@every_form
def test_a_crash_between_the_cancellation_and_the_next_wait_loses_no_signal(stage: Stage, form: Any) -> None:
    lives: list[int] = []
    flow = impatient(stage, form, lives=lives)
    stage.crash(flow)
    assert stage.kinds()[-1] == "WaitWithdrawn"
    told(stage, "x", 7)
    assert stage.resume(flow).state.log == ["second", 7]
    assert sound(stage)


@every_form
def test_a_withdrawal_is_recorded_before_anything_that_the_node_keeps_afterwards(
    stage: Stage, form: Any
) -> None:
    async def body(state: Work, ctx: hf.Context) -> None:
        with pytest.raises(TimeoutError):
            await form(lambda: ctx.wait_for("x"), SHORT_S)
        await ctx.checkpoint("late")

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    stage.run(graph.chain(START, "only", END).compile())
    kinds = stage.kinds()
    assert kinds.index("WaitWithdrawn") < kinds.index("NodeCheckpointed")


@every_form
@pytest.mark.parametrize("step", ["undo", hf.Step("undo", raises=(ValueError,))], ids=["named", "declared"])
def test_a_withdrawal_is_durable_before_the_next_step_is_called(stage: Stage, form: Any, step: Any) -> None:
    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        with pytest.raises(TimeoutError):
            await form(lambda: ctx.wait_for("x"), SHORT_S)
        return {"log": await ctx.step(step, stage.kinds)}

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    assert "WaitWithdrawn" in stage.run(graph.chain(START, "only", END).compile()).state.log


def test_the_loser_of_a_race_gets_no_signal_after_a_crash_in_the_step_that_follows(stage: Stage) -> None:
    undone: list[int] = []

    async def undo(ctx: hf.Context) -> None:
        undone.append(ctx.attempt)
        if len(undone) == 1:
            await stage.dies(ctx)

    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        paid, expired = asyncio.create_task(ctx.wait_for("x")), asyncio.create_task(ctx.sleep(0))
        done, losers = await asyncio.wait({paid, expired}, return_when=asyncio.FIRST_COMPLETED)
        for loser in losers:
            loser.cancel()
        if paid in done:
            return {"log": ["paid"]}
        await ctx.step("undo", undo, ctx)
        return {"log": ["expired"]}

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    flow = graph.chain(START, "only", END).compile()
    stage.crash(flow)
    told(stage, "x", 7)
    assert stage.resume(flow).state.log == ["expired"]
    assert undone == [1, 2]
    assert sound(stage)


def test_a_signal_that_came_as_the_wait_was_cancelled_goes_to_the_next_wait(stage: Stage) -> None:
    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        task = asyncio.create_task(ctx.wait_for("x"))
        await until(lambda: "signal:x:1" in ctx._work.kept())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        return {"log": [await ctx.wait_for("x"), await ctx.wait_for("x")]}

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    flow = graph.chain(START, "only", END).compile()
    stage.do(lambda engine: engine.start(flow, run_id="r"))
    for number in (1, 2):
        told(stage, "x", number)
    assert stage.resume(flow).state.log == [1, 2]
    (withdrawn,) = stage.told("WaitWithdrawn")
    assert (withdrawn.slot, withdrawn.returned) == ("signal:x:1", "x")
    assert sound(stage)


def test_a_question_and_a_timer_that_were_given_up_are_gone(stage: Stage) -> None:
    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        for wait in (lambda: ctx.ask("Sure?", options=["yes", "no"]), lambda: ctx.sleep(LONG_S)):
            with pytest.raises(TimeoutError):
                await by_timeout(wait, SHORT_S)
        return {"log": [await ctx.wait_for("x")]}

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    flow = graph.chain(START, "only", END).compile()

    async def use(engine: hf.Engine) -> Any:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.until("SignalAwaited")
        run = await engine.get("r")
        assert (run.questions, run.waits, run.due_at) == ((), ("only.1.1:signal:x:1",), None)
        await engine.signal("r", "x", 7)
        return await going.task

    assert stage.do(use, flow).state.log == [7]
    assert slots(stage, "WaitWithdrawn") == ["ask:Sure?", "sleep:1"]
    assert sound(stage)


def test_items_withdraw_their_own_waits(stage: Stage) -> None:
    async def body(item: int, ctx: hf.Context) -> dict[str, Any]:
        with pytest.raises(TimeoutError):
            await by_timeout(lambda: ctx.wait_for("x"), SHORT_S)
        return {"log": [[item, await ctx.wait_for("x")]]}

    graph = Graph("one", Work)
    graph.node(name="only", each=lambda state: [0, 1])(body)
    flow = graph.chain(START, "only", END).compile()

    async def use(engine: hf.Engine) -> Any:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.until("SignalAwaited", 4)
        for number in (5, 6):
            await engine.signal("r", "x", number)
        return await going.task

    run = stage.do(use, flow)
    assert sorted(one for _, one in run.state.log) == [5, 6]
    assert sorted(event.item for event in stage.told("WaitWithdrawn")) == [0, 1]
    assert sound(stage)


# --- what the engine cancels is no withdrawal --------------------------------------------------------


@every_form
@pytest.mark.parametrize("how", ["unwound", "stopped", "left", "paused", "lease lost"])
def test_a_wait_that_the_engine_cancels_goes_on(stage: Stage, form: Any, how: str) -> None:
    flow = impatient(stage, form, LONG_S)

    async def use(engine: hf.Engine) -> None:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        if how == "unwound":
            stage.clock.advance(30)
            assert (await going.task).status == "waiting"
        elif how == "stopped":
            engine.stop("deploy")
            assert (await going.task).status == "interrupted"
        elif how == "paused":
            await engine.pause("r")
            assert (await going.task).status == "paused"
        elif how == "lease lost":
            engine._holdings.get("r").lose(hf.StoreError("gone"))
            await asyncio.gather(going.task, return_exceptions=True)
        else:
            await going.crash()

    stage.do(use, flow, grace=0.0)
    assert stage.told("WaitWithdrawn") == []
    told(stage, "x", 7)
    assert stage.resume(flow).state.log == ["first", 7]
    assert sound(stage)


def test_what_a_node_leaves_running_when_it_returns_is_no_withdrawal(stage: Stage) -> None:
    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        task = asyncio.create_task(ctx.wait_for("x"))
        await turns(5)
        return {"log": [task.done()]}

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    assert stage.run(graph.chain(START, "only", END).compile()).state.log == [False]
    assert stage.told("WaitWithdrawn") == []


# --- later attempts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("turns_before", range(1, 4))
def test_a_wait_that_is_left_while_it_is_recorded_ends_with_its_node(
    stage: Stage, caplog: pytest.LogCaptureFixture, turns_before: int
) -> None:
    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        left.append(asyncio.create_task(ctx.wait_for("x")))
        await turns(turns_before)
        return {"log": [1]}

    left: list[asyncio.Task[Any]] = []
    graph = Graph("one", Work)
    graph.node(name="only")(body)
    assert stage.run(graph.chain(START, "only", END).compile()).state.log == [1]
    assert left.pop().cancelled()
    gc.collect()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


@every_form
def test_a_wait_that_was_given_up_gets_no_signal_in_a_later_attempt_either(stage: Stage, form: Any) -> None:
    flow = impatient(stage, form)

    async def first(engine: hf.Engine) -> None:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.until("SignalAwaited", 2)
        await turns(5)
        stage.clock.advance(30)
        assert (await going.task).status == "waiting"

    stage.do(first, flow)
    for number in (7, 8):
        told(stage, "x", number)
    run = stage.resume(flow)
    assert (run.state.log, run.signals) == (["second", 7], {"x": 1})
    assert slots(stage, "WaitWithdrawn") == ["signal:x:1"]
    assert sound(stage)


@pytest.mark.parametrize("what", ["signal", "sleep", "ask"])
def test_an_attempt_that_awaits_only_what_was_given_up_begins_it_again_at_once(
    stage: Stage, what: str
) -> None:
    lives: list[int] = []

    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        def wait() -> Awaitable[Any]:
            if what == "signal":
                return ctx.wait_for("x")
            return ctx.sleep(60) if what == "sleep" else ctx.ask("Sure?", options=["yes", "no"])

        if not lives:
            lives.append(1)
            with pytest.raises(TimeoutError):
                await by_timeout(wait, SHORT_S)
            await turns(20)
            await stage.dies(ctx)
        return {"log": [await wait()]}

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    flow = graph.chain(START, "only", END).compile()
    stage.crash(flow)
    assert stage.kinds()[-1] == "WaitWithdrawn"

    async def use(engine: hf.Engine) -> Any:
        going = Going(stage, engine, engine.resume("r"))
        await going.until({"signal": "SignalAwaited", "sleep": "TimerSet", "ask": "QuestionAsked"}[what], 2)
        await turns(5)
        if what == "signal":
            await engine.signal("r", "x", "yes")
        elif what == "ask":
            await engine.answer("r", "only", "yes")
        else:
            stage.clock.advance(60)
        return await going.task

    run = stage.do(use, flow, park_after=1e6)
    assert run.state.log == [None if what == "sleep" else "yes"]
    assert sound(stage)


def test_an_attempt_that_is_unwound_in_a_wait_that_was_given_up_begins_it_again(stage: Stage) -> None:
    """Its timer is lost: without that, nothing could ever wake it."""
    seconds = [SHORT_S, LONG_S]

    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        try:
            return {"log": [await by_timeout(lambda: ctx.wait_for("x"), seconds.pop(0))]}
        except TimeoutError:
            await turns(20)
            return await stage.dies(ctx)  # type: ignore[no-any-return]

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    flow = graph.chain(START, "only", END).compile()
    stage.crash(flow)

    async def second(engine: hf.Engine) -> None:
        going = Going(stage, engine, engine.resume("r"))
        await going.until("NodeStarted", 2)
        await turns(20)
        assert going.count("SignalAwaited") == 1, "its timer may still cancel it"
        stage.clock.advance(30)
        assert (await going.task).waits == ("only.1.1:signal:x:1",)

    stage.do(second, flow)
    seconds.append(LONG_S)
    told(stage, "x", 7)
    assert stage.resume(flow).state.log == [7]
    assert sound(stage)


@pytest.mark.parametrize("how", ["paused", "stopped", "unwound"])
def test_an_attempt_that_is_about_to_give_up_again_is_not_unwound_into_that_wait(
    stage: Stage, how: str
) -> None:
    """The signal that it waits for next has come: it would wait for another one, for ever."""
    seconds = [SHORT_S, LONG_S, SHORT_S]

    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        timer = seconds.pop(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(timer) as limit:
                limits.append(limit)
                return {"log": ["first", await ctx.wait_for("x")]}
        return {"log": ["second", await ctx.wait_for("x", key="second")]}

    limits: list[asyncio.Timeout] = []
    graph = Graph("one", Work)
    graph.node(name="only")(body)
    flow = graph.chain(START, "only", END).compile()

    async def first(engine: hf.Engine) -> None:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.until("SignalAwaited", 2)
        await turns(5)
        stage.clock.advance(30)
        assert (await going.task).status == "waiting"

    async def second(engine: hf.Engine) -> None:
        going = Going(stage, engine, engine.resume("r"))
        await going.until("NodeStarted", 2)
        await turns(20)
        if how == "paused":
            await engine.pause("r")
        elif how == "stopped":
            engine.stop("deploy")
        else:
            stage.clock.advance(30)
        await turns(20)
        if not going.task.done():
            limits[-1].reschedule(asyncio.get_running_loop().time())
        await going.task

    stage.do(first, flow)
    told(stage, "x", 7)
    stage.do(second, flow, grace=0.0)
    run = stage.do(lambda engine: engine.get("r"), flow)
    if run.status != "completed":
        run = stage.resume(flow)
    assert (run.status, run.state.log) == ("completed", ["second", 7])
    assert len(stage.told("SignalAwaited")) == 2, "the wait that was given up did not begin again"
    assert sound(stage)


def test_a_plain_function_begins_again_what_a_coroutine_of_the_same_name_gave_up(stage: Stage) -> None:
    lives: list[int] = []
    stage.crash(impatient(stage, by_timeout, lives=lives))
    graph = Graph("one", Work)
    graph.node(name="only")(lambda state, ctx: {"log": [ctx.wait_for("x")]})
    flow = graph.chain(START, "only", END).compile()
    run = stage.do(lambda engine: engine.resume("r", on_change="compatible"), flow, inline=False)
    assert run.waits == ("only.1.1:signal:x:1",)
    told(stage, "x", 7)
    assert stage.do(lambda engine: engine.resume("r"), flow, inline=False).state.log == [7]


# --- how long such a wait is kept in memory ----------------------------------------------------------


def parked_at(stage: Stage, flow: hf.Flow[Any]) -> list[float]:
    """When a caller that blocks has unwound the node, in seconds: it looks after 1 s, and after 30 s."""

    async def main() -> None:
        options = {"flows": [flow], "clock": stage.clock, "inline": True}
        async with BlockingEngine(stage.url, **options) as engine:
            going = Going(stage, engine, engine.run(flow, run_id="r"))
            await going.asleep()
            for seconds in (1, 29):
                stage.clock.advance(seconds)
                await turns(30)
            assert (await asyncio.wait_for(going.task, 60)).status == "waiting"

    began = stage.clock.now()
    asyncio.run(main())
    return [row.at - began for row in stage.store.events("r", kinds=("NodeWaiting",))]


@every_form
def test_a_wait_that_asyncio_may_cancel_is_not_unwound_before_park_after_and_then_there_is_a_warning(
    stage: Stage, form: Any, caplog: pytest.LogCaptureFixture
) -> None:
    flow = impatient(stage, form, LONG_S)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert parked_at(stage, flow) == [30]
    (warning,) = [record.getMessage() for record in caplog.records if "timeout=" in record.getMessage()]
    assert "run 'r', node 'only'" in warning


def test_the_warning_comes_once_for_a_node_however_many_runs_it_has(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    flow = impatient(stage, by_timeout, LONG_S)

    async def use(engine: hf.Engine) -> None:
        for run_id in ("r", "s"):
            await engine.start(flow, run_id=run_id)
            task = asyncio.ensure_future(engine.resume(run_id))
            await until(lambda: bool(list(stage.store.events(run_id, kinds=("SignalAwaited",)))))  # noqa: B023
            await turns(30)
            stage.clock.advance(30)
            assert (await task).status == "waiting"

    with caplog.at_level(logging.WARNING, "holdfast"):
        stage.do(use, flow)
    assert len([record for record in caplog.records if "timeout=" in record.getMessage()]) == 1


@pytest.mark.parametrize("how", ["alone", "gather", "group", "task"])
def test_a_wait_that_nothing_cancels_is_unwound_soon_and_without_a_warning(
    stage: Stage, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(state: Work, ctx: hf.Context) -> None:
        if how == "gather":
            await asyncio.gather(ctx.wait_for("x"), ctx.wait_for("y"))
        elif how == "task":
            await asyncio.create_task(ctx.wait_for("x"))
        elif how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.wait_for("x"))
                group.create_task(ctx.wait_for("y"))
        else:
            await ctx.wait_for("x")

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert parked_at(stage, graph.chain(START, "only", END).compile()) == [1]
    assert caplog.records == []
