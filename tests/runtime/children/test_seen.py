"""What people see of a family: a run names its caller and its children, and says for which child it waits, and why."""

from __future__ import annotations

from typing import Any

import pytest
from families import Order, Pay, Till, caller, children
from harness import Stage

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.reading.cases import case_of
from holdfast.reading.diagnosis import Diagnosis, diagnose
from holdfast.reading.reader import Reader
from holdfast.reading.relatives import family_of
from holdfast.reading.views import Cost
from holdfast.reading.words import words
from holdfast.storage.contract import Query
from holdfast.upkeep import doctor


def why(stage: Stage, run_id: str = "r") -> Diagnosis:
    store = stage.store
    return diagnose(case_of(store, store.run(run_id), holders=store.queues.holders()), store.now())


def caller_of_caller(order: Flow[Order]) -> Flow[Order]:
    graph = Graph("shop", Order)

    @graph.node
    async def sell(state: Order, ctx: hf.Context) -> dict[str, Any]:
        sold = await ctx.call(order, state)
        return {"log": sold.log}

    return graph.chain(START, "sell", END).compile()


def test_a_run_lists_its_children_and_a_child_names_its_caller(stage: Stage) -> None:
    run = stage.run(caller(Till().pay()), Order(total=7))
    (child,) = run.children
    assert (child.flow, child.status, child.key, child.node, child.iteration, child.item) == (
        "pay", "completed", "pay", "settle", 1, None,
    )  # fmt: skip
    assert (run.cost, run.children_cost) == (Cost(), Cost(0.5, 10))
    again = Reader(stage.store).get("r")
    assert (again.children, again.children_cost, again.caller) == (run.children, run.children_cost, None)
    assert Reader(stage.store).get(child.id).caller == "r"


def test_runs_are_listed_by_their_origin(stage: Stage) -> None:
    stage.run(caller(Till().pay()), Order(total=7))

    async def use(engine: hf.Engine) -> list[hf.RunSummary]:
        return await engine.runs(origin="r")

    (child,) = stage.do(use)
    assert (child.id, child.caller) == (children(stage.store)[0], "r")


def test_more_children_than_are_listed_leave_the_open_ones_in(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay = Till().pay()
    graph = Graph("order", Order)

    @graph.node
    async def settle(state: Order, ctx: hf.Context) -> None:
        asking = await ctx.start(pay, Pay(how="ask"), key="first")
        for number in range(4):
            await ctx.call(pay, Pay(amount=number), key=f"more{number}")
        await ctx.wait_for(asking)

    stage.run(graph.chain(START, "settle", END).compile())
    monkeypatch.setattr("holdfast.reading.relatives.CHILDREN_MAX", 2)
    (top, *below) = family_of(stage.store, "r").members
    assert top.more
    assert [(one.key, one.status) for one in below] == [("first", "waiting"), ("more3", "completed")]


def test_the_reason_of_a_caller_says_what_its_child_waits_for(stage: Stage) -> None:
    flow = caller_of_caller(caller(Till().pay()))
    assert stage.run(flow, Order(total=7, how="ask")).status == "waiting"
    (middle,) = children(stage.store)
    (leaf,) = children(stage.store, middle)
    found = why(stage)
    assert found.reason == (
        f"sell waits for the child run {middle}, in which settle waits for the child run {leaf}, in which charge asks: Charge?"
    )
    assert found.kind == "waiting"
    assert [(remedy.verb, remedy.arguments["run_id"]) for remedy in found.remedies[:2]] == [
        ("answer", leaf)
    ] * 2


def test_the_questions_of_a_child_are_those_of_its_caller(stage: Stage) -> None:
    pay = Till().pay()
    order = caller(pay)
    flow = caller_of_caller(order)
    stage.run(flow, Order(total=7, how="ask"))

    async def use(engine: hf.Engine) -> hf.Run[Any]:
        (asked,) = await engine.questions("r")
        assert asked.run_id not in ("r", children(stage.store)[0])
        await engine.answer(asked.run_id, asked.question.key, "yes")
        return await engine.resume("r")

    assert stage.do(use, flow, order, pay).state.log == [True, 7]


def test_doctor_names_a_caller_whose_child_no_worker_executes(stage: Stage) -> None:
    pay, graph = Till().pay(), Graph("order", Order)

    @graph.node
    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.call(pay, queue="elsewhere")

    stage.run(graph.chain(START, "settle", END).compile())
    (child,) = children(stage.store)
    found = {one.run_id: one for one in doctor.examine(stage.store, None, stage.store.now())}
    assert (found["r"].kind, found[child].kind) == ("child", "no worker")
    assert found["r"].reason == (
        f"settle waits for the child run {child} of flow 'pay': recorded, but not started, and no live worker takes flow 'pay'"
    )
    page = Reader(stage.store).page(Query(), attention=True)
    assert [one.row.run_id for one in page.runs] == [child]


def test_a_caller_of_a_failed_child_is_mended_with_its_remedies(stage: Stage) -> None:
    till = Till()
    till.is_broken = True
    pay = till.pay()
    flow = caller(pay)
    stage.fails(flow, Order(total=7))
    (child,) = children(stage.store)
    both, skip = why(stage).remedies
    assert (both.command, skip.verb) == ("holdfast resume r FILE.py", "skip")
    assert both.words == f"fix the cause, then resume it and the child run {child}"
    till.is_broken = False
    assert stage.do(lambda engine: engine.resume(**both.arguments), flow, pay).state.log == [True, 7]


def test_a_failed_caller_whose_child_has_been_mended_is_resumed_and_not_left_to_a_worker(
    stage: Stage,
) -> None:
    till = Till()
    till.is_broken = True
    pay = till.pay()
    flow = caller(pay)
    stage.fails(flow, Order(total=7))
    (child,) = children(stage.store)
    till.is_broken = False
    stage.do(lambda engine: engine.resume(child), pay)
    assert {one.verb for one in stage.store.inbox(run_id="r")} == {"child-ended"}
    found = why(stage)
    assert [one.verb for one in found.remedies] == ["resume", "skip"]
    assert "has waited since" not in found.reason


def test_a_caller_of_a_cancelled_child_starts_another_one(stage: Stage) -> None:
    till = Till()
    flow = caller(till.pay())
    stage.run(flow, Order(total=7, how="ask"))

    async def cancel(engine: hf.Engine) -> None:
        await engine.cancel(children(stage.store)[0])
        with pytest.raises(hf.RunFailed):
            await engine.resume("r")

    stage.do(cancel, flow)
    (again, *_) = why(stage).remedies
    assert (again.verb, again.command) == ("retry", "holdfast retry r settle FILE.py --fresh")


def test_the_family_is_listed_with_the_reasons_of_its_members(stage: Stage) -> None:
    stage.run(caller_of_caller(caller(Till().pay())), Order(total=7, how="ask"))
    (middle,) = children(stage.store)
    (leaf,) = children(stage.store, middle)
    whole = family_of(stage.store, "r")
    assert [(one.id, one.depth, one.node, one.caller) for one in whole.members] == [
        ("r", 0, None, None),
        (middle, 1, "sell", "r"),
        (leaf, 2, "settle", middle),
    ]
    assert (whole.members[2].asks, whole.members[2].reason) == (1, "charge asks: Charge?")
    assert [(one.id, one.depth, one.node, one.more) for one in family_of(stage.store, leaf).callers] == [
        (middle, -1, "sell", False),
        ("r", -2, None, False),
    ]
    cut = family_of(stage.store, "r", limit=2).members
    assert [(one.id, one.more) for one in cut] == [("r", False), (middle, True)]


def test_the_events_of_a_child_are_told_in_words(stage: Stage) -> None:
    stage.run(caller(Till().pay()), Order(total=7))
    (child,) = children(stage.store)
    told = {one.kind: words(one) for one in Reader(stage.store).events("r") if one.kind.startswith("Child")}
    assert told == {
        "ChildStarted": f"starts the child run {child} of flow 'pay'",
        "ChildAwaited": f"waits for the child run {child}",
        "ChildEnded": f"the child run {child} completed ($0.5, 10 tokens)",
    }


def test_a_rewound_caller_still_lists_the_children_that_it_left_alone(stage: Stage) -> None:
    flow = caller(Till().pay())
    stage.run(flow, Order(total=7, how="ask"))

    async def use(engine: hf.Engine) -> hf.Run[Any]:
        return await engine.resume("r@1", edit={"total": 8})

    with pytest.raises(hf.RunFailed) as failed:
        stage.do(use, flow)
    assert [one.status for one in failed.value.run.children] == ["waiting"]


def test_a_caller_that_fails_names_the_children_that_it_leaves_alone(stage: Stage) -> None:
    pay, graph = Till().pay(), Graph("order", Order)

    @graph.node
    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.start(pay, Pay(how="ask"))
        raise ValueError("no luck")

    flow = graph.chain(START, "settle", END).compile()

    async def use(engine: hf.Engine) -> None:
        await engine.run(flow, Order(), run_id="r")

    with pytest.raises(hf.RunFailed) as failed:
        stage.do(use, flow)
    assert f"It has left child runs alone, which go on: {children(stage.store)[0]}." in str(failed.value)


def test_the_preview_of_a_rewind_names_the_children_that_it_leaves_alone(stage: Stage) -> None:
    flow = caller(Till().pay())
    stage.run(flow, Order(total=7, how="ask"))

    async def use(engine: hf.Engine) -> Any:
        return await engine.preview("r@1", "resume")

    assert list(stage.do(use, flow).leaves) == children(stage.store)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_fork_asks_before_it_repeats_a_call_whose_child_had_an_effect(
    stage: Stage, idempotent: bool
) -> None:
    graph = Graph("pay", Pay)
    graph.node(name="charge", idempotent=idempotent)(lambda state: {"paid": True})
    flow = caller(graph.chain(START, "charge", END).compile())
    stage.run(flow, Order(total=7))
    assert Reader(stage.store).plan_fork("r@1").asks_about == (() if idempotent else ("settle",))
