"""A node is renamed while its visit is open: its child run, its keys, its questions and its signals stay those of the visit."""

from __future__ import annotations

from typing import Any

import pytest
from families import Order, Pay, Till, children
from harness import Stage

import holdfast as hf
from holdfast import END, START, Flow, Graph


def of(*nodes: tuple[str, Any], **options: Any) -> Flow[Order]:
    """Make a flow of these nodes, one after the other."""
    graph = Graph("order", Order)
    for name, fn in nodes:
        graph.node(name=name, **options)(fn)
    return graph.chain(START, *(name for name, _ in nodes), END).compile()


def calling_by_context(pay: Flow[Pay], *names: str) -> Flow[Order]:
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [(await ctx.call(pay, Pay(state.total, state.how))).paid]}

    return of(*((name, settle) for name in names))


def calling_by_node(pay: Flow[Pay], *names: str) -> Flow[Order]:
    graph = Graph("order", Order)
    for name in names:
        graph.call(
            name, pay, input=lambda state: Pay(state.total, state.how), output=lambda end: {"log": [end.paid]}
        )
    return graph.chain(START, *names, END).compile()


@pytest.mark.parametrize("calling", [calling_by_context, calling_by_node])
def test_a_renamed_caller_waits_for_the_child_that_it_has(stage: Stage, calling: Any) -> None:
    till = Till()
    pay = till.pay()
    assert stage.run(calling(pay, "sub"), Order(7, "ask")).status == "waiting"
    (child,) = children(stage.store)
    newer = calling(pay, "sub2")
    run = stage.do(lambda engine: engine.resume("r", rename={"sub": "sub2"}), newer, pay)
    assert (run.status, children(stage.store)) == ("waiting", [child])
    newest = calling(pay, "sub3")
    stage.do(lambda engine: engine.answer(child, "charge", "yes"), newest, pay)
    run = stage.do(lambda engine: engine.resume("r", rename={"sub2": "sub3"}), newest, pay)
    assert (run.status, run.state.log, children(stage.store)) == ("completed", [True], [child])
    assert len(till.charged) == 1
    assert stage.problems() == []


def test_a_new_node_with_the_old_name_starts_a_child_of_its_own(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    stage.run(calling_by_context(pay, "sub"), Order(7, "ask"))
    (child,) = children(stage.store)
    longer = calling_by_context(pay, "sub2", "sub")
    options: dict[str, Any] = {"rename": {"sub": "sub2"}, "on_change": "compatible"}
    stage.do(lambda engine: engine.resume("r", **options), longer, pay)
    stage.do(lambda engine: engine.answer(child, "charge", "yes"), longer, pay)
    stage.do(lambda engine: engine.resume("r"), longer, pay)
    first, second = children(stage.store)
    assert (first, stage.store.run(second).status) == (child, "waiting")
    stage.do(lambda engine: engine.answer(second, "charge", "yes"), longer, pay)
    assert stage.do(lambda engine: engine.resume("r"), longer, pay).state.log == [True, True]
    assert len({key for key, _ in till.charged}) == 2
    assert stage.problems() == []


class Payments:
    """Nodes that take the key of their visit, and crash in a step while `dies` is set."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.dies, self.keys = stage, True, list[str]()

    async def settle(self, state: Order, ctx: hf.Context) -> dict[str, Any]:
        async def charge() -> None:
            self.keys.append(ctx.idempotency_key("charge"))
            if self.dies:
                await self.stage.dies(ctx)

        await ctx.step("charge", charge)
        return {"log": [ctx.idempotency_key()]}


def test_a_step_that_was_cut_is_called_with_the_same_key_under_the_new_name(stage: Stage) -> None:
    payments = Payments(stage)
    stage.crash(of(("sub", payments.settle)), Order(7))
    payments.dies = False
    run = stage.resume(of(("sub2", payments.settle)), rename={"sub": "sub2"})
    first, again = payments.keys
    assert (run.status, first) == ("completed", again)


def test_two_nodes_that_swap_their_names_keep_their_keys(stage: Stage) -> None:
    payments = Payments(stage)
    payments.dies = False
    plain = stage.run(of(("a", payments.settle), ("b", payments.settle)), run_id="plain").state.log
    assert len(set(plain)) == 2
    payments.dies = True
    stage.crash(of(("a", payments.settle), ("b", payments.settle)), Order(7))
    payments.dies = False
    swapped = of(("b", payments.settle), ("a", payments.settle))
    run = stage.resume(swapped, rename={"a": "b", "b": "a"})
    assert payments.keys[2] == payments.keys[3]
    assert len(set(run.state.log)) == 2


def test_a_rewind_before_the_rename_and_a_fork_keep_the_key(stage: Stage) -> None:
    payments = Payments(stage)
    stage.crash(of(("sub", payments.settle)), Order(7))
    payments.dies = False
    renamed = of(("sub2", payments.settle), ("sub", payments.settle))
    options: dict[str, Any] = {"rename": {"sub": "sub2"}, "on_change": "compatible"}
    keys = stage.resume(renamed, **options).state.log
    assert len(set(keys)) == 2
    stage.do(lambda engine: engine.fork("r", checkpoint=1, run_id="f"), renamed)
    assert stage.do(lambda engine: engine.resume("f", **options), renamed).state.log == keys
    assert stage.problems() == []


def test_a_run_that_goes_back_to_before_the_rename_counts_its_executions_on(stage: Stage) -> None:
    places: list[tuple[str, int, str]] = []

    async def note(state: Order, ctx: hf.Context) -> None:
        places.append((ctx.node, ctx.execution, ctx.idempotency_key()))
        await ctx.wait_for("go")

    flow = of(("first", note), ("sub", note))
    stage.run(flow)
    stage.do(lambda engine: engine.signal("r", "go"), flow)
    stage.resume(flow)
    renamed = of(("first", note), ("sub2", note), ("sub", note))
    options: dict[str, Any] = {"rename": {"sub": "sub2"}, "on_change": "compatible"}
    stage.resume(renamed, **options)
    stage.do(lambda engine: engine.signal("r", "go"), renamed)
    stage.resume(renamed)
    done = {place for place in places if place[0] != "first"}
    places.clear()
    stage.resume(renamed, checkpoint=1, **options)
    stage.do(lambda engine: engine.signal("r", "go"), renamed)
    stage.resume(renamed)
    again = {place for place in places if place[0] != "first"}
    assert {(name, key) for name, _, key in again} <= {(name, key) for name, _, key in done}
    assert not again & done
    assert {execution for _, execution, _ in again} == {2}
    assert stage.problems() == []


def test_an_open_question_of_a_renamed_node_keeps_its_key(stage: Stage) -> None:
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [await ctx.ask("Pay?", options=["yes", "no"])]}

    (question,) = stage.run(of(("sub", settle))).questions
    renamed = of(("sub2", settle), ("sub", settle))
    (asked,) = stage.resume(renamed, rename={"sub": "sub2"}, on_change="compatible").questions
    assert (asked.key, asked.node) == (question.key, "sub2")
    stage.do(lambda engine: engine.answer("r", question.key, "yes"), renamed)
    (second,) = stage.resume(renamed).questions
    assert (second.node, second.key != question.key) == ("sub", True)
    stage.do(lambda engine: engine.answer("r", second.key, "no"), renamed)
    assert stage.resume(renamed).state.log == ["yes", "no"]


def test_a_rewind_gives_a_signal_back_that_the_node_received_under_its_old_name(stage: Stage) -> None:
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        first = await ctx.wait_for("first")
        return {"log": [first, await ctx.wait_for("second")]}

    flow, renamed = of(("sub", settle)), of(("sub2", settle))
    stage.run(flow)
    stage.do(lambda engine: engine.signal("r", "first", 1), flow)
    stage.resume(flow)
    stage.resume(renamed, rename={"sub": "sub2"})
    stage.do(lambda engine: engine.signal("r", "second", 2), renamed)
    assert stage.resume(renamed, restart_at="sub2").state.log == [1, 2]


def test_what_a_killed_attempt_had_streamed_stays_with_the_renamed_node(stage: Stage) -> None:
    lives: list[int] = []

    async def settle(state: Order, ctx: hf.Context) -> None:
        lives.append(1)
        if len(lives) == 1:
            ctx.emit("x" * 70_000)  # so much is spilled at once
            await stage.dies(ctx)

    stage.crash(of(("sub", settle)))
    assert len(stage.spilled()) == 1
    stage.resume(of(("sub2", settle)), rename={"sub": "sub2"})
    (streamed,) = stage.told("NodeStreamed")
    assert (streamed.node, streamed.attempt, len(streamed.chunks[0])) == ("sub2", 1, 70_000)
    assert stage.spilled() == {}
