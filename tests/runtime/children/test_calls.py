"""A node that calls another flow: one child, whatever happens, and its result or its failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apsw
import pytest
from families import Order, Pay, Till, caller, children, kinds
from harness import Stage

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.reading import verification


def test_a_call_returns_the_final_state_of_the_child(stage: Stage) -> None:
    till = Till()
    run = stage.run(caller(till.pay()), Order(total=7))
    assert (run.status, run.state.log, [amount for _, amount in till.charged]) == (
        "completed",
        [True, 7],
        [7],
    )
    assert stage.kinds() == [
        "RunCreated", "NodeStarted", "ChildStarted", "ChildAwaited", "ChildEnded", "NodeCompleted", "RunCompleted",
    ]  # fmt: skip
    (child,) = children(stage.store)
    row = stage.store.run(child)
    assert (row.origin, row.status, row.flow) == ("r", "completed", "pay")


def test_a_worker_executes_caller_and_child(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    flow = caller(pay)

    async def use(engine: hf.Engine) -> hf.Run[Any]:
        await engine.start(flow, Order(total=7), run_id="r")
        await engine.work(until="idle", concurrency=1)
        return await engine.get("r")

    assert stage.do(use, flow, pay).state.log == [True, 7]


def test_six_callers_complete_on_one_slot(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    flow = caller(pay)

    async def use(engine: hf.Engine) -> list[str]:
        for number in range(6):
            await engine.start(flow, Order(total=number), run_id=f"r{number}")
        await engine.work(until="idle", concurrency=1)
        return [(await engine.get(f"r{number}")).status for number in range(6)]

    assert stage.do(use, flow, pay) == ["completed"] * 6
    assert sorted(amount for _, amount in till.charged) == [0, 1, 2, 3, 4, 5]


def test_a_started_child_goes_on_while_its_caller_works(stage: Stage) -> None:
    till, order = Till(), Graph("order", Order)
    pay = till.pay()

    @order.node
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        child = await ctx.start(pay, {"amount": 3})
        step = await ctx.step("pack", lambda: "packed")
        result = await ctx.wait_for(child)
        other = await ctx.call(pay, {"amount": 4}, key="tip", type=dict)
        return {"log": [step, result.amount, other["amount"], child.id]}

    run = stage.run(order.chain(START, "settle", END).compile())
    assert run.state.log[:3] == ["packed", 3, 4]
    assert run.state.log[3] == children(stage.store)[0]


def test_a_child_that_fails_fails_its_caller_and_names_the_way_out(stage: Stage) -> None:
    till = Till()
    till.is_broken = True
    run = stage.fails(caller(till.pay(), retry=hf.Retry(attempts=5, on=(Exception,))), Order(total=7))
    (child,) = children(stage.store)
    assert run.error is not None
    assert (run.error.type, run.error.kind, run.error.child) == ("ChildFailed", "partial", child)
    way_out = f"See `holdfast show {child}`, mend the cause, and resume r: that resumes the child run too."
    assert way_out in run.error.message
    assert "the till is broken" in run.error.message
    assert kinds(stage.store, "r").count("NodeStarted") == 1


def test_resume_of_a_caller_finds_its_child_mended(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    flow = caller(pay)
    till.is_broken = True
    stage.fails(flow, Order(total=7))
    (child,) = children(stage.store)
    with pytest.raises(hf.RunFailed):  # the child was resumed too, and failed again
        stage.resume(flow)
    till.is_broken = False
    stage.do(lambda engine: engine.resume(child), flow, pay)
    run = stage.resume(flow)
    assert (run.status, run.state.log, len(till.charged)) == ("completed", [True, 7], 1)
    assert kinds(stage.store, "r").count("ChildEnded") == 3
    assert children(stage.store) == [child]


def test_an_end_of_a_failed_caller_is_recorded_and_executes_nothing(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    flow = caller(pay)
    till.is_broken = True
    stage.fails(flow, Order(total=7))
    (child,) = children(stage.store)
    till.is_broken = False

    async def use(engine: hf.Engine) -> None:
        await engine.resume(child, execute=False)
        await engine.work(until="idle")

    stage.do(use, flow, pay)
    assert stage.store.run(child).status == "completed"
    assert stage.store.run("r").status == "failed"
    assert kinds(stage.store, "r")[-1] == "ChildEnded"
    assert stage.resume(flow).state.log == [True, 7]


def test_a_fresh_retry_starts_another_child_and_cancels_the_one_it_abandons(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    flow = caller(pay)
    run = stage.run(flow, Order(total=7, how="ask"))
    assert run.status == "waiting"
    (child,) = children(stage.store)

    async def use(engine: hf.Engine) -> hf.Run[Any]:
        return await engine.retry("r", "settle", fresh=True)

    assert stage.do(use, flow, pay).status == "waiting"
    first, second = children(stage.store)
    assert first == child
    assert stage.store.run(first).status == "cancelled"
    assert stage.store.run(second).status == "waiting"


def test_a_replay_adopts_the_child_and_its_end(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    flow = caller(pay)
    stage.run(flow, Order(total=7))
    order, is_early = Graph("later", Order), list[bool]()

    @order.node
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        paid = await ctx.call(pay, Pay(amount=state.total))
        return {"log": [paid.amount]}

    @order.node
    def check(state: Order) -> dict[str, Any]:
        if is_early:
            raise ValueError("not yet")
        return {}

    later = order.chain(START, "settle", "check", END).compile()
    is_early.append(True)
    with pytest.raises(hf.RunFailed):
        stage.run(later, Order(total=8), run_id="s")
    is_early.clear()
    before = len(till.charged)
    run = stage.do(lambda engine: engine.resume("s", restart_at="settle"), later, pay)
    assert (run.status, run.state.log) == ("completed", [8])
    assert len(till.charged) == before
    assert len(children(stage.store, "s")) == 1
    assert kinds(stage.store, "s").count("ChildEnded") == 2


def test_a_rewind_with_another_input_is_refused_and_names_fresh(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    flow = caller(pay)
    stage.run(flow, Order(total=7, how="ask"))
    with pytest.raises(hf.RunFailed) as failed:
        stage.resume(flow, restart_at="settle", edit={"total": 9})
    assert "exists, and is a child with another input" in str(failed.value)
    assert "holdfast retry r settle --fresh" in str(failed.value)


def test_cancelling_a_caller_cancels_three_generations(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    middle = caller(pay, "middle")
    top = Graph("top", Order)

    @top.node
    async def begin(state: Order, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [(await ctx.call(middle, Order(total=1, how="ask"))).total]}

    flow = top.chain(START, "begin", END).compile()
    assert stage.run(flow).status == "waiting"
    (child,) = children(stage.store)
    (grandchild,) = children(stage.store, child)
    stage.do(lambda engine: engine.cancel("r", "no more"), flow, middle, pay)
    assert [stage.store.run(one).status for one in ("r", child, grandchild)] == ["cancelled"] * 3


def test_a_child_that_was_only_started_outlives_the_cancel_of_its_caller(stage: Stage) -> None:
    till, order = Till(), Graph("order", Order)
    pay = till.pay()

    @order.node
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        await ctx.start(pay, {"how": "ask"})
        await ctx.start(pay, {"how": "ask"}, key="bound", cancel_with_caller=True)
        await ctx.wait_for("never")
        return {}

    flow = order.chain(START, "settle", END).compile()
    stage.run(flow)
    free, bound = children(stage.store)
    stage.do(lambda engine: engine.cancel("r"), flow, pay)
    assert (stage.store.run(free).status, stage.store.run(bound).status) == ("waiting", "cancelled")


def test_skipping_a_call_cancels_its_child(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    flow = caller(pay)
    stage.run(flow, Order(how="ask"))
    (child,) = children(stage.store)
    run = stage.verb(flow, "skip", "settle", {"log": ["by hand"]})
    assert (run.status, run.state.log) == ("completed", ["by hand"])
    assert stage.store.run(child).status == "cancelled"


def test_a_cancelled_child_fails_its_caller(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    flow = caller(pay)
    stage.run(flow, Order(how="ask"))
    (child,) = children(stage.store)
    stage.do(lambda engine: engine.cancel(child), flow, pay)
    with pytest.raises(hf.RunFailed) as failed:
        stage.resume(flow)
    assert "was cancelled" in str(failed.value)
    assert "holdfast retry r settle --fresh" in str(failed.value)


def test_a_wait_with_a_timeout_leaves_the_child_alone_and_can_be_repeated(stage: Stage) -> None:
    till, order = Till(), Graph("order", Order)
    pay = till.pay()

    @order.node
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        child = await ctx.start(pay, {"amount": 3, "how": "sleep"})
        try:
            await ctx.wait_for(child, timeout=60)
        except hf.WaitTimeout:
            late = await ctx.wait_for(child)
            return {"log": ["late", late.amount]}
        return {"log": ["in time"]}

    assert stage.run(order.chain(START, "settle", END).compile()).state.log == ["late", 3]


def test_a_call_with_a_timeout_cancels_the_child(stage: Stage) -> None:
    till, order = Till(), Graph("order", Order)
    pay = till.pay()

    @order.node
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        try:
            await ctx.call(pay, {"how": "sleep"}, timeout=60)
        except hf.WaitTimeout:
            return {"log": ["too late"]}
        return {}

    assert stage.run(order.chain(START, "settle", END).compile()).state.log == ["too late"]
    (child,) = children(stage.store)
    assert stage.store.run(child).status == "cancelled"


def test_the_cost_of_children_is_counted_once_beside_the_own_cost(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    middle = caller(pay, "middle")
    top = Graph("top", Order)

    @top.node
    async def begin(state: Order, ctx: hf.Context) -> dict[str, Any]:
        ctx.cost(usd=1.0)
        await ctx.call(middle, Order(total=1))
        return {}

    flow = top.chain(START, "begin", END).compile()
    stage.run(flow)
    (ended,) = stage.told("ChildEnded")
    assert (ended.usd, ended.tokens) == (0.5, 10)


def test_a_fork_has_children_of_its_own_with_the_same_keys(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    flow = caller(pay)
    stage.run(flow, Order(total=7))

    async def use(engine: hf.Engine) -> hf.Run[Any]:
        return await engine.resume(await engine.fork("r", checkpoint=1, run_id="f"))

    assert stage.do(use, flow, pay).state.log == [True, 7]
    (mine,), (other,) = children(stage.store), children(stage.store, "f")
    assert mine != other
    assert stage.store.run(other).origin == "f"
    (first, _), (second, _) = till.charged
    assert first == second


def test_a_row_whose_origin_differs_from_the_log_is_found(tmp_path: Path) -> None:
    stage = Stage("sqlite", tmp_path)
    pay = Till().pay()
    stage.run(caller(pay))
    (child,) = children(stage.store)
    assert verification.verify(stage.store, child).problems == []
    stage.close()
    with apsw.Connection(stage.url) as database:
        database.execute("update runs set origin = 'other' where run_id = ?", (child,))
    stage.store = stage.open(stage.url)
    (problem,) = verification.verify(stage.store, child).problems
    assert "origin" in problem
    stage.close()


def test_the_receipt_of_a_caller_names_its_child_and_what_it_cost(tmp_path: Path) -> None:
    stage = Stage("sqlite", tmp_path)
    flow = caller(Till().pay())
    stage.do(lambda engine: engine.run(flow, run_id="r"), run_base=str(tmp_path / "base"))
    (child,) = children(stage.store)
    stage.close()
    receipts = [json.loads(path.read_text()) for path in (tmp_path / "base").rglob("*.json")]
    found = [one["children"] for one in receipts if "children" in one and one.get("status") == "succeeded"]
    assert found[0] == {child: {"flow": "pay", "status": "completed", "usd": 0.5, "tokens": 10}}
