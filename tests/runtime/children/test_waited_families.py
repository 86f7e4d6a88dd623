"""A caller that only waits for its children has not stopped: `wait` returns it when something is needed from outside."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from families import Order, Till, caller, children
from harness import Stage, until

import holdfast as hf
from holdfast import END, START, Graph


@pytest.mark.parametrize("until", ["stopped", "ended"])
def test_wait_does_not_return_a_caller_whose_child_waits_for_a_worker(stage: Stage, until: Any) -> None:
    pay = Till().pay()
    flow = caller_in_queue(pay)

    async def use(engine: hf.Engine) -> list[str]:
        await engine.start(flow, Order(total=7), run_id="r")
        await engine.work(until="idle", queues=["default"])
        assert (stage.store.run("r").status, stage.store.run("r").held) == ("waiting", False)
        with pytest.raises(TimeoutError):  # no worker is there
            await engine.wait("r", timeout=5, until=until)
        waiting = asyncio.create_task(engine.wait("r", until=until))
        await engine.work(until="idle", queues=["elsewhere"])
        (child,) = children(stage.store)
        seen = [
            stage.store.run(child).status,
            stage.store.run("r").status,
        ]  # the end of the child is in its inbox
        assert not waiting.done()
        await engine.work(until="idle")
        return [*seen, (await waiting).status]

    assert stage.do(use, flow, pay) == ["completed", "waiting", "completed"]


def test_wait_returns_a_caller_whose_child_asks_and_until_ended_does_not(stage: Stage) -> None:
    pay = Till().pay()
    flow = caller(pay)

    async def use(engine: hf.Engine) -> tuple[str, str]:
        await engine.start(flow, Order(total=7, how="ask"), run_id="r")
        await engine.work(until="idle")
        asks = await engine.wait("r")
        with pytest.raises(TimeoutError):
            await engine.wait("r", timeout=5, until="ended")
        waiting = asyncio.create_task(engine.wait("r", until="ended"))
        (asked,) = await engine.questions("r")
        await engine.answer(asked.run_id, asked.question.key, "yes")
        await engine.work(until="idle")
        return asks.status, (await waiting).status

    assert stage.do(use, flow, pay) == ("waiting", "completed")


def test_until_ended_waits_through_a_pause(stage: Stage) -> None:
    pay = Till().pay()

    async def use(engine: hf.Engine) -> tuple[str, str]:
        await engine.start(pay, {"amount": 1}, run_id="r")
        await engine.pause("r")
        paused = await engine.wait("r")
        waiting = asyncio.create_task(engine.wait("r", until="ended"))
        await engine.resume("r")
        return paused.status, (await waiting).status

    assert stage.do(use, pay) == ("paused", "completed")


def test_wait_does_not_return_a_caller_whose_failed_child_was_asked_to_resume(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    flow = caller_in_queue(pay)
    till.is_broken = True

    async def use(engine: hf.Engine) -> tuple[str, str]:
        await engine.start(flow, Order(total=7), run_id="r")
        await engine.work(until="idle")
        (child,) = children(stage.store)
        await engine.resume("r", execute=False)
        await engine.work(until="idle", queues=["default"])
        with pytest.raises(TimeoutError):  # its child has been asked to resume
            await engine.wait("r", timeout=5)
        with pytest.raises(hf.RunFailed):
            await engine.resume(
                child
            )  # it fails again, and refuses the request of its caller, because it was executed
        await engine.work(until="idle")
        return stage.store.run(child).status, stage.store.run("r").status

    assert stage.do(use, flow, pay) == ("failed", "failed")


def test_what_cannot_be_waited_for_is_refused(stage: Stage) -> None:
    with pytest.raises(hf.SettingError, match='until=\'over\' is not known: give "stopped" or "ended"'):
        stage.do(lambda engine: engine.wait("r", until="over"))


def caller_in_queue(pay: hf.Flow[Any]) -> hf.Flow[Order]:
    """Make a caller whose child is in a queue of its own."""
    graph = hf.Graph("order", Order)

    @graph.node
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [(await ctx.call(pay, {"how": state.how}, queue="elsewhere")).paid]}

    return graph.chain(hf.START, "settle", hf.END).compile()


def test_a_signal_reaches_a_child_that_also_sleeps_while_its_caller_is_executed(tmp_path: Path) -> None:
    async def listen(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        told, slept = asyncio.ensure_future(ctx.wait_for("x")), asyncio.ensure_future(ctx.sleep(3600))
        _, (loser,) = await asyncio.wait({told, slept}, return_when=asyncio.FIRST_COMPLETED)
        loser.cancel()
        return {"told": told.result()}

    async def ask(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        return await ctx.call(child, {})  # type: ignore[no-any-return]

    child, flow = one_node("child", listen), one_node("caller", ask)
    url = str(tmp_path / "runs.db")

    async def main() -> Any:
        async with (
            hf.Engine(url, flows=[flow, child], park_after=0.05) as engine,
            hf.Engine(url) as sender,
        ):
            await engine.start(flow, {}, run_id="r")
            going = asyncio.create_task(engine.resume("r"))
            await until(lambda: any(is_left(engine, run_id) for run_id in children(sender.store)))
            await sender.signal(children(sender.store)[0], "x", 7)
            return await asyncio.wait_for(going, 60)

    assert asyncio.run(main()).state == {"told": 7}


def is_left(engine: hf.Engine, run_id: str) -> bool:
    """Return whether the engine has left a member of a family until its time."""
    family = engine._services.families.members.get(run_id)
    return family is not None and family.is_timed(run_id)


def one_node(name: str, fn: Any) -> hf.Flow[Any]:
    graph = Graph(name, dict)
    graph.node(name="only")(fn)
    return graph.chain(START, "only", END).compile()


def _asking_child() -> hf.Flow[Any]:
    graph: Graph[Order] = Graph("asks", Order)
    return graph.ask("question", "Go on?").chain(START, "question", END).compile()


def _calling(child: hf.Flow[Any], how: str, name: str = "top") -> hf.Flow[Any]:
    """A flow that calls another one: by a node for it, or in a coroutine."""
    graph: Graph[Order] = Graph(name, Order)
    if how == "node":
        graph.call("sub", child, input=lambda order: Order())
    else:

        @graph.node(name="sub")
        async def sub(order: Order, ctx: hf.Context) -> None:
            await ctx.call(child, Order())

    return graph.chain(START, "sub", END).compile()


@pytest.mark.parametrize("how", ["node", "coroutine"])
@pytest.mark.parametrize("levels", [1, 3])
def test_run_returns_at_once_when_its_whole_family_only_waits(tmp_path: Path, how: str, levels: int) -> None:
    stage = Stage("memory", tmp_path)
    began = stage.clock.now()
    flow = _asking_child()
    for level in range(levels):
        flow = _calling(flow, how, f"level-{level}")
    run = stage.run(flow, Order())
    assert (run.status, stage.clock.now() - began) == ("waiting", 0.0)
    assert stage.problems() == []


def test_a_caller_stays_in_memory_while_its_child_continues_by_itself(tmp_path: Path) -> None:
    graph: Graph[Order] = Graph("rests", Order)

    @graph.node
    async def rest(order: Order, ctx: hf.Context) -> None:
        await ctx.sleep(0.5)

    stage = Stage("memory", tmp_path)
    run = stage.run(_calling(graph.chain(START, "rest", END).compile(), "node"), Order())
    assert run.status == "completed"
    assert stage.told("NodeWaiting") == []


def test_a_caller_that_limits_its_wait_with_asyncio_is_not_unwound_at_once(tmp_path: Path) -> None:
    graph: Graph[Order] = Graph("limits", Order)
    child, gave_up = _asking_child(), []

    @graph.node
    async def sub(order: Order, ctx: hf.Context) -> None:
        try:
            async with asyncio.timeout(0.02):
                await ctx.call(child, Order())
        except TimeoutError:
            gave_up.append(ctx.attempt)

    stage = Stage("memory", tmp_path, still=True)
    run = stage.run(graph.chain(START, "sub", END).compile(), Order())
    assert (run.status, gave_up) == ("completed", [1])
