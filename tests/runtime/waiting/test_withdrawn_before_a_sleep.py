"""A node takes the first of two outcomes and cancels the wait for the other one. When it runs from its top again, it takes the
same path, and the next signal goes to its next wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import OnServer, Stage, Work, turns, until
from waits import Going, told

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.testing import check


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    found = (
        OnServer(tmp_path, still=True)
        if request.param == "postgres"
        else Stage(request.param, tmp_path, still=True)
    )
    yield found
    found.close()


def waits_for_x() -> Flow[Any]:
    graph = Graph("child", Work)

    async def only(state: Work, ctx: hf.Context) -> None:
        await ctx.wait_for("end")

    graph.node(name="only")(only)
    return graph.chain(START, "only", END).compile()


CHILD = waits_for_x()
Wait = Callable[[], Awaitable[Any]]


async def by_wait(first: Wait, other: Wait) -> Any:
    tasks = [asyncio.ensure_future(first()), asyncio.ensure_future(other())]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return done.pop().result()


async def by_group(first: Wait, other: Wait) -> Any:
    async with asyncio.TaskGroup() as group:
        loser = group.create_task(other())
        found = await first()
        loser.cancel()
    return found


async def by_nested_gathers(first: Wait, other: Wait) -> Any:
    winner = asyncio.gather(asyncio.gather(asyncio.shield(asyncio.ensure_future(first()))))
    loser = asyncio.ensure_future(other())
    done, _ = await asyncio.wait([winner, loser], return_when=asyncio.FIRST_COMPLETED)
    loser.cancel()
    return done.pop().result()[0][0]


async def by_as_completed(first: Wait, other: Wait) -> Any:
    tasks = [asyncio.ensure_future(first()), asyncio.ensure_future(other())]
    found = await next(iter(asyncio.as_completed(tasks)))
    tasks[1].cancel()
    return found


async def by_queue(first: Wait, other: Wait) -> Any:
    came: asyncio.Queue[Any] = asyncio.Queue()

    async def listen(wait: Wait) -> None:
        await came.put(await wait())

    tasks = [asyncio.ensure_future(listen(wait)) for wait in (first, other)]
    found = await came.get()
    for task in tasks:
        task.cancel()
    return found


RACES = [by_wait, by_group, by_nested_gathers, by_as_completed, by_queue]
every_race = pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
OTHERS: dict[str, Callable[[hf.Context], Wait]] = {
    "signal": lambda ctx: lambda: ctx.wait_for("rejected"),
    "ask": lambda ctx: lambda: ctx.ask("Rejected?"),
    "child": lambda ctx: lambda: ctx.call(CHILD),
    "sleep": lambda ctx: lambda: ctx.sleep(7200.0),
}


def race_of(race: Any, other: str, between: Callable[[hf.Context], Awaitable[Any]]) -> Flow[Any]:
    """Takes the first of two outcomes, does something `between` that lets the node run again, and waits for another signal."""

    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        first = await race(lambda: ctx.wait_for("approved"), OTHERS[other](ctx))
        await between(ctx)
        return {"log": [first, await ctx.wait_for("rejected", key="later")]}

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    return graph.chain(START, "only", END).compile()


def sound(stage: Stage) -> bool:
    return stage.problems() == [] and check(stage.store) == []


def began(stage: Stage) -> list[str]:
    return [event.slot for event in stage.told("SignalAwaited")]


@every_race
@pytest.mark.parametrize("other", OTHERS)
def test_a_withdrawn_wait_gets_no_signal_when_the_node_runs_again_after_a_sleep(
    stage: Stage, race: Any, other: str
) -> None:
    flow = race_of(race, other, lambda ctx: ctx.sleep(3600.0, key="between"))

    async def use(engine: hf.Engine) -> Any:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.until("SignalAwaited")
        await engine.signal("r", "approved", 1)
        await going.until("TimerSet", 2 if other == "sleep" else 1)
        await turns(30)
        stage.clock.advance(31.0)
        await going.until("NodeWaiting")
        await engine.signal("r", "rejected", 2)
        stage.clock.advance(3600.0)
        return await going.task

    run = stage.do(use, flow, CHILD)
    assert (run.status, run.state.log) == ("completed", [1, 2])
    assert [slot for slot in began(stage) if slot != "signal:rejected:1"] == [
        "signal:approved:1",
        "signal:rejected:later",
    ]
    assert len(stage.told("WaitWithdrawn")) == 1
    assert sound(stage)


@every_race
def test_a_withdrawn_wait_gets_no_signal_when_the_node_runs_again_after_a_crash(
    stage: Stage, race: Any
) -> None:
    async def die(ctx: hf.Context) -> None:
        if not lives:
            lives.append(1)
            await turns(30)
            await stage.dies(ctx)

    lives: list[int] = []
    flow = race_of(race, "signal", die)
    stage.do(lambda engine: engine.start(flow, run_id="r"))
    told(stage, "approved", 1)
    stage.crash(flow)
    told(stage, "rejected", 2)
    run = stage.resume(flow)
    assert (run.status, run.state.log) == ("completed", [1, 2])
    assert sound(stage)


@pytest.mark.rotating
@pytest.mark.parametrize("stage", ["memory"], indirect=True)
@every_race
@pytest.mark.parametrize("how", ["paused", "stopped", "crowded"])
@pytest.mark.parametrize("passes", range(12))
def test_an_attempt_is_not_unwound_while_one_of_its_tasks_is_about_to_continue(
    stage: Stage, race: Any, how: str, passes: int
) -> None:
    """The signal has come, and the node has not seen it: it would be unwound into the other wait, for ever."""
    flow = race_of(race, "signal", lambda ctx: ctx.sleep(3600.0, key="between"))

    async def use(engine: hf.Engine) -> None:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.until("SignalAwaited", 2)
        await turns(30)
        await engine.signal("r", "approved", 1)
        await turns(passes)
        if how == "paused":
            await engine.pause("r")
        elif how == "stopped":
            engine.stop("deploy", grace=30.0)
        else:
            engine._holdings.get("r")._park_all()
        await turns(60)
        if not going.task.done():
            stage.clock.advance(31.0)
        await until(lambda: going.task.done() or "NodeWaiting" in stage.kinds())
        if not going.task.done():
            await going.crash()

    stage.do(use, flow)
    told(stage, "rejected", 2)

    async def again(engine: hf.Engine) -> Any:
        going = Going(stage, engine, engine.resume("r"))
        for _ in range(4):
            await turns(60)
            stage.clock.advance(3600.0)
        return await going.task

    run = stage.do(again, flow)
    assert (run.status, run.state.log) == ("completed", [1, 2])
    assert sound(stage)


async def by_the_winner(first: Wait, other: Wait) -> Any:
    """The winner cancels the loser itself, in the same pass of the event loop in which its own wait is over."""
    found = []

    async def win() -> None:
        found.append(await first())
        loser.cancel()

    async with asyncio.TaskGroup() as group:
        group.create_task(win())
        loser = group.create_task(other())
    return found[0]


async def by_the_node(first: Wait, other: Wait) -> Any:
    """The node watches for the loser in a task, while it awaits the winner itself."""
    watching = asyncio.create_task(other())
    found = await first()
    watching.cancel()
    return found


@pytest.mark.parametrize("race", [by_the_winner, by_the_node], ids=lambda race: race.__name__)
@pytest.mark.parametrize("winner", ["signal", "step", "declared", "start", "sleep"])
def test_a_wait_keeps_its_number_if_the_node_cancels_it_at_once_when_it_runs_again(
    stage: Stage, race: Any, winner: str
) -> None:
    """The outcome of the winner is in the log then, and the loser must nevertheless begin its wait before it is cancelled."""

    async def slow() -> int:
        await turns(20)
        return 1

    winners: dict[str, Callable[[hf.Context], Wait]] = {
        "signal": lambda ctx: lambda: ctx.wait_for("approved"),
        "step": lambda ctx: lambda: ctx.step("work", slow),
        "declared": lambda ctx: lambda: ctx.step(hf.Step("work"), slow),
        "start": lambda ctx: lambda: ctx.start(CHILD),
        "sleep": lambda ctx: lambda: ctx.sleep(0.0),
    }

    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        await race(winners[winner](ctx), lambda: ctx.wait_for("rejected"))
        return {"log": [await ctx.wait_for("rejected"), await ctx.wait_for("rejected")]}

    graph = Graph("one", Work)
    graph.node(name="only")(body)
    flow = graph.chain(START, "only", END).compile()

    async def use(engine: hf.Engine) -> Any:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.until("SignalAwaited")
        await turns(30)
        await engine.signal("r", "approved", 1)
        await until(lambda: "signal:rejected:2" in began(stage))
        await turns(30)
        stage.clock.advance(31.0)
        await going.task
        await engine.signal("r", "rejected", 2)
        await engine.signal("r", "rejected", 3)
        return await engine.resume("r")

    run = stage.do(use, flow, CHILD)
    assert (run.status, run.state.log) == ("completed", [2, 3])
    assert len(stage.told("WaitWithdrawn")) == 1
    assert sound(stage)
