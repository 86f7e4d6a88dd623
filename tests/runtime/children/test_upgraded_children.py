"""A caller whose code has an older or a newer version of its child's state than the code that has executed the child."""

from __future__ import annotations

from typing import Any

import pytest
from families import Order, Pay, children
from harness import Stage

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.reading.ends import VALUES_BYTES_MAX


def in_cents(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "amount": values["amount"] * 100}


def pay(**version: Any) -> Flow[Pay]:
    """Make the flow of the child, which asks before it pays: newer code may answer."""
    graph = Graph("pay", Pay, **version)

    @graph.node
    async def charge(state: Pay, ctx: hf.Context) -> dict[str, Any]:
        await ctx.ask("Charge?", options=["yes", "no"])
        return {"paid": True}

    return graph.chain(START, "charge", END).compile()


OLD = pay()
NEW = pay(version=2, upgrades={1: in_cents})


def calls(child: Flow[Pay]) -> Flow[Order]:
    graph = Graph("order", Order)

    @graph.node
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        paid = await ctx.call(child, Pay(state.total, state.how))
        return {"log": [paid.amount]}

    return graph.chain(START, "settle", END).compile()


def waits_for_plain_data(child: Flow[Pay]) -> Flow[Order]:
    graph = Graph("order", Order)

    @graph.node(retry=hf.Retry(attempts=3))
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        started = await ctx.start(child, Pay(state.total, state.how))
        paid: dict[str, Any] = await ctx.wait_for(started, type=dict[str, Any])
        return {"log": [paid["amount"]]}

    return graph.chain(START, "settle", END).compile()


def is_a_call(child: Flow[Pay]) -> Flow[Order]:
    graph = Graph("order", Order)
    graph.call(
        "settle",
        child,
        input=lambda order: Pay(order.total, order.how),
        output=lambda paid: {"log": [paid.amount]},
    )
    return graph.chain(START, "settle", END).compile()


every_way = pytest.mark.parametrize("caller", [calls, waits_for_plain_data, is_a_call])


def child_ends(stage: Stage, executed_by: Flow[Pay]) -> str:
    """Let this code execute the child of the run `r`, which waits for an answer, to its end, and return the id of the child."""
    (child,) = children(stage.store)

    async def use(engine: hf.Engine) -> None:
        await engine.answer(child, "charge", "yes")
        assert (await engine.resume(child)).status == "completed"

    stage.do(use, executed_by)
    return child


@every_way
def test_old_code_is_refused_the_result_of_a_child_that_newer_code_has_upgraded(
    stage: Stage, caller: Any
) -> None:
    old = caller(OLD)
    assert stage.run(old, Order(total=7)).status == "waiting"
    child = child_ends(stage, NEW)
    with pytest.raises(hf.RunFailed) as failed:
        stage.do(lambda engine: engine.resume("r"), old, OLD)
    error = failed.value.run.error
    assert (error.type, error.kind) == ("StateError", "partial")
    assert (
        f"child run {child!r} has a state of version 2, and flow 'pay' has version 1 here: newer code has upgraded the child. "
        f"Resume r with the newer code; `holdfast state {child}` prints the state of the child as plain data."
    ) in error.message
    assert [event.retry_at for event in stage.told("NodeFailed")] == [None]
    assert stage.do(lambda engine: engine.resume("r"), caller(NEW), NEW).state.log == [700]
    assert stage.problems() == []


def test_the_result_of_a_child_of_the_same_version_is_used_as_before(stage: Stage) -> None:
    flow = calls(NEW)
    assert stage.run(flow, Order(total=7)).status == "waiting"
    child_ends(stage, NEW)
    assert stage.do(lambda engine: engine.resume("r"), flow, NEW).state.log == [7]
    assert stage.told("ChildEnded")[-1].state_version == 2


def test_a_large_result_is_refused_too(stage: Stage) -> None:
    old = calls(OLD)
    stage.run(old, Order(total=7, how="x" * VALUES_BYTES_MAX))
    child_ends(stage, NEW)
    with pytest.raises(hf.RunFailed, match="newer code has upgraded the child"):
        stage.do(lambda engine: engine.resume("r"), old, OLD)


@every_way
def test_newer_code_upgrades_the_result_of_a_child_that_older_code_has_executed(
    stage: Stage, caller: Any
) -> None:
    assert stage.run(caller(OLD), Order(total=7)).status == "waiting"
    child_ends(stage, OLD)
    assert stage.do(lambda engine: engine.resume("r"), caller(NEW), NEW).state.log == [700]
    assert stage.problems() == []


def test_a_result_that_cannot_be_upgraded_is_refused_until_the_code_is_corrected(stage: Stage) -> None:
    def broken(values: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("amount")

    stage.run(calls(OLD), Order(total=7))
    child = child_ends(stage, OLD)
    wrong = pay(version=2, upgrades={1: broken})
    why = f"the state of child run {child!r} could not be upgraded from version 1 to version 2 of flow 'pay'.*KeyError.*resume r"
    with pytest.raises(hf.RunFailed, match=why):
        stage.do(lambda engine: engine.resume("r"), calls(wrong), wrong)
    assert stage.do(lambda engine: engine.resume("r"), calls(NEW), NEW).state.log == [700]
