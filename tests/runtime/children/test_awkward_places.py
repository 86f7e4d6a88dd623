"""Child runs in awkward places: groups of failures, keys with colons, skips, timeouts and attempts that were abandoned."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from families import Order, Pay, Till, caller, children, kinds
from harness import Stage, turns, until

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.storage.contract import Query


def calling(body: Any, **options: Any) -> Any:
    graph = Graph("order", Order)
    graph.node(name="settle", **options)(body)
    return graph.chain(START, "settle", END).compile()


def test_a_caller_that_failed_with_a_group_of_children_is_mended_with_them(stage: Stage) -> None:
    till = Till()
    pay = till.pay()

    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        async with asyncio.TaskGroup() as group:
            paid = [
                group.create_task(ctx.call(pay, Pay(amount=number), key=f"{number}")) for number in (1, 2)
            ]
        return {"log": [one.result().amount for one in paid]}

    flow = calling(settle, retry=hf.Retry(attempts=4, on=(Exception,)))
    till.is_broken = True
    run = stage.fails(flow)
    assert run.error is not None
    assert set(run.error.child.split()) <= set(children(stage.store))
    assert "the till is broken" in run.error.message
    till.is_broken = False
    for child in children(stage.store):
        if stage.store.run(child).status == "failed":
            stage.do(lambda engine, child=child: engine.resume(child), flow, pay)
    assert stage.do(lambda engine: engine.resume("r"), flow, pay).state.log == [1, 2]


def test_keys_with_colons_are_told_apart(stage: Stage) -> None:
    pay = Till().pay()

    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        handles = [
            await ctx.start(pay, Pay(amount=number), key=key)
            for number, key in enumerate(("a", "a:1", "a:b"))
        ]
        results = await asyncio.gather(*map(ctx.wait_for, reversed(handles)))
        return {"log": [one.amount for one in results]}

    assert stage.run(calling(settle)).state.log == [2, 1, 0]


def test_a_visit_that_is_safe_to_fail_cancels_the_child_that_it_leaves(stage: Stage) -> None:
    pay = Till().pay()

    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.start(pay, Pay(how="ask"), cancel_with_caller=True)
        raise ValueError("no")

    assert stage.run(calling(settle, safe_to_fail=True)).status == "completed"
    (child,) = children(stage.store)
    assert stage.store.run(child).status == "cancelled"


def test_an_attempt_that_was_abandoned_starts_no_child(tmp_path: Path) -> None:
    stage = Stage("sqlite", tmp_path)
    till = Till()
    pay = till.pay()
    looked, abandoned = asyncio.Event(), asyncio.Event()
    refused: list[BaseException] = []

    async def late(ctx: hf.Context) -> None:
        looked.set()
        await abandoned.wait()
        try:
            await ctx.start(pay)
        except BaseException as raised:
            refused.append(raised)
            raise

    async def settle(state: Order, ctx: hf.Context) -> None:
        await asyncio.shield(asyncio.ensure_future(late(ctx)))

    async def use(engine: hf.Engine) -> None:
        run = asyncio.create_task(engine.run(calling(settle), run_id="r"))
        await looked.wait()
        await engine.cancel("r")
        abandoned.set()
        await asyncio.gather(run, return_exceptions=True)
        await until(lambda: refused)

    stage.do(use)
    assert kinds(stage.store, "r")[-1] == "RunCancelled"
    assert children(stage.store) == []
    assert [row.run_id for row in stage.store.runs(Query())] == ["r"]
    stage.close()


def test_a_call_that_took_too_long_names_the_way_out(stage: Stage) -> None:
    pay = Till().pay()

    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.call(pay, Pay(how="sleep"), timeout=5)

    run = stage.fails(calling(settle))
    assert run.error is not None
    assert (
        "It is cancelled. To start over with a new child run: `holdfast retry r settle --fresh`"
        in run.error.message
    )


def test_a_declared_step_is_refused_as_the_name_of_a_map(stage: Stage) -> None:
    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.map(hf.Step("one"), str, [1])  # type: ignore[arg-type]

    run = stage.fails(calling(settle))
    assert run.error is not None
    assert "needs a name as text" in run.error.message


def asking() -> Any:
    """Make a flow that asks a question, and gives up after a day."""
    graph = Graph("asks", Pay)

    @graph.node
    async def charge(state: Pay, ctx: hf.Context) -> None:
        await ctx.ask("Charge?", options=["yes", "no"], timeout=86_400)

    return graph.chain(START, "charge", END).compile()


def test_run_does_not_wait_until_the_question_of_a_child_times_out(stage: Stage) -> None:
    """The clock of this stage jumps over every wait: if `run` waited for the time limit, the run would fail."""
    assert stage.run(caller(asking())).status == "waiting"


def test_run_does_not_wait_until_the_question_of_a_child_on_a_worker_times_out(stage: Stage) -> None:
    asks = asking()

    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.call(asks, queue="desk")

    flow = calling(settle)

    async def use(engine: hf.Engine) -> str:
        async with stage.engine(asks) as other:
            work = asyncio.create_task(other.work(queues=["desk"]))
            run = await engine.run(flow, run_id="r")
            other.stop()
            await work
            return run.status

    assert stage.do(use, flow, asks) == "waiting"


def test_run_of_a_caller_that_is_completed_does_not_wait_for_a_child_that_sleeps(stage: Stage) -> None:
    pay = Till().pay()

    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.start(pay, Pay(how="sleep"))

    began = stage.clock.now()
    assert stage.run(calling(settle)).status == "completed"
    assert stage.clock.now() - began < 3600


def test_a_child_that_runs_when_the_engine_stops_has_the_grace_of_its_caller(tmp_path: Path) -> None:
    stage = Stage("sqlite", tmp_path)
    graph, entered, may_end = Graph("pay", Pay), asyncio.Event(), asyncio.Event()

    @graph.node
    async def charge(state: Pay) -> dict[str, Any]:
        entered.set()
        await may_end.wait()
        return {"paid": True}

    pay = graph.chain(START, "charge", END).compile()

    async def use(engine: hf.Engine) -> None:
        run = asyncio.create_task(engine.run(caller(pay), run_id="r"))
        await entered.wait()
        engine.stop(grace=60)
        await turns(50)
        may_end.set()
        await asyncio.gather(run, return_exceptions=True)

    stage.do(use)
    (child,) = children(stage.store)
    assert stage.store.run(child).status == "completed"
    stage.close()


def test_a_call_that_the_node_cancels_is_abandoned_and_its_child_cancelled(stage: Stage) -> None:
    pay = Till().pay()

    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        slow = asyncio.ensure_future(ctx.call(pay, Pay(how="ask"), key="slow"))
        quick = await ctx.call(pay, Pay(amount=3), key="quick")
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        return {"log": [quick.amount]}

    assert stage.run(calling(settle)).state.log == [3]
    statuses = {stage.store.run(child).status for child in children(stage.store)}
    assert statuses == {"completed", "cancelled"}


def test_a_call_inside_a_step_is_refused_before_it_starts_a_child(stage: Stage) -> None:
    pay = Till().pay()

    async def settle(state: Order, ctx: hf.Context) -> None:
        async def inside() -> None:
            await ctx.call(pay)

        await ctx.step("pay", inside)

    run = stage.fails(calling(settle))
    assert run.error is not None
    assert "inside the step 'pay'" in run.error.message
    assert children(stage.store) == []


def test_a_step_in_doubt_is_not_called_again_by_the_node_itself(stage: Stage) -> None:
    calls: list[int] = []

    def charge() -> None:
        calls.append(1)
        raise ConnectionError("no reply")

    async def settle(state: Order, ctx: hf.Context) -> None:
        for _ in range(3):
            try:
                await ctx.step(hf.Step("charge", idempotent=False), charge)
            except ConnectionError:
                continue

    run = stage.run(calling(settle))
    assert (run.status, calls) == ("waiting", [1])
    assert "not known whether the first call had an effect" in run.questions[0].text


def test_a_child_that_is_quarantined_fails_its_caller_which_names_it(tmp_path: Path) -> None:
    stage = Stage("sqlite", tmp_path)
    graph = Graph("pay", Pay)

    @graph.node(crash_limit=1)
    async def charge(state: Pay, ctx: hf.Context) -> None:
        await stage.dies(ctx)

    pay = graph.chain(START, "charge", END).compile()
    flow = caller(pay)
    stage.crash(flow)
    with pytest.raises(hf.RunFailed) as failed:
        stage.do(lambda engine: engine.resume("r"), flow, pay)
    (child,) = children(stage.store)
    assert stage.store.run(child).status == "failed"
    assert "Quarantined" in str(failed.value)
    assert child in str(failed.value)
    stage.close()


def test_a_fork_of_a_child_leaves_the_child_and_its_caller_alone(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    flow = caller(pay)
    stage.run(flow, Order(total=7, how="ask"))
    (child,) = children(stage.store)

    async def use(engine: hf.Engine) -> tuple[str, str]:
        fork = await engine.fork(child, run_id="f")
        await engine.resume(fork)
        await engine.answer(fork, "charge", "yes")
        ended = await engine.resume(fork)
        return ended.status, (await engine.get("r")).status

    assert stage.do(use, flow, pay) == ("completed", "waiting")
    assert stage.store.run("f").origin is None
    stage.do(lambda engine: engine.answer(child, "charge", "yes"), flow, pay)
    assert stage.do(lambda engine: engine.resume("r"), flow, pay).state.log == [True, 7]
    assert kinds(stage.store, "r").count("ChildEnded") == 1
