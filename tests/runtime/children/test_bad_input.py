"""Child runs that cannot be: clear errors, and the caller stays resumable."""

from __future__ import annotations

from typing import Any

import pytest
from families import Order, Pay, Till, caller, children
from harness import Stage

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.core.child_place import place_of
from holdfast.core.run_state import RunState


def calling(body: Any, **options: Any) -> Any:
    graph = Graph("order", Order)
    graph.node(name="settle", **options)(body)
    return graph.chain(START, "settle", END).compile()


def failure(stage: Stage, body: Any, **options: Any) -> str:
    """Execute a run whose node has this body, which must fail, and return why."""
    run = stage.fails(calling(body, **options))
    assert run.error is not None
    return f"{run.error.type}: {run.error.message}"


def test_input_that_does_not_fit_fails_the_node_and_starts_nothing(stage: Stage) -> None:
    pay = Till().pay()

    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.call(pay, {"amount": "many"})

    said = failure(stage, settle)
    assert said.startswith("StateError")
    assert "the input of the child 'pay' does not fit flow 'pay': state.amount" in said
    assert children(stage.store) == []


def test_a_key_used_twice_in_one_visit_is_refused(stage: Stage) -> None:
    pay = Till().pay()

    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.call(pay, {"amount": 1})
        await ctx.call(pay, {"amount": 2})

    said = failure(stage, settle)
    assert "uses the child 'pay' twice" in said
    assert "key=" in said
    assert len(children(stage.store)) == 1


def test_a_handle_awaited_twice_is_refused(stage: Stage) -> None:
    pay = Till().pay()

    async def settle(state: Order, ctx: hf.Context) -> None:
        child = await ctx.start(pay)
        await ctx.wait_for(child)
        await ctx.wait_for(child)

    assert "waits for the child 'pay' twice" in failure(stage, settle)


@pytest.mark.parametrize("given", ["pay", None, 3])
def test_what_is_not_a_flow_is_refused(stage: Stage, given: Any) -> None:
    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.call(given)

    assert "is not a flow; give what graph.compile() returns" in failure(stage, settle)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": "no queue"}, "is not a valid queue name"),
        ({"priority": "high"}, "is not a valid priority"),
        ({"labels": {"a": 1}}, "is not valid"),
        ({"run_timeout": -1}, "run_timeout=-1 is not a valid time"),
        ({"timeout": -1}, "no valid time to wait"),
        ({"quue": "fast"}, "quue"),
    ],
)
def test_options_that_do_not_fit_are_named(stage: Stage, options: Any, said: str) -> None:
    pay = Till().pay()

    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.call(pay, **options)

    assert said in failure(stage, settle)
    assert children(stage.store) == []


def test_an_id_that_another_run_has_fails_the_node_and_costs_no_parallel_completion(stage: Stage) -> None:
    till = Till()
    pay = till.pay()
    graph = Graph("order", Order)

    @graph.node
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [(await ctx.call(pay, {"amount": 1})).amount]}

    @graph.node
    async def pack(state: Order) -> dict[str, Any]:
        return {"log": ["packed"]}

    graph.edge(START, "settle").edge(START, "pack").edge("settle", END).edge("pack", END)
    flow = graph.compile()
    stage.run(flow, run_id="probe")
    (child,) = children(stage.store, "probe")
    stage.do(lambda engine: engine.start(pay, run_id=_same_place(flow, "r")), pay)
    run = stage.fails(flow)
    assert run.error is not None
    assert "exists, and is a run that another run or a person has started" in run.error.message
    assert run.nodes["pack"].status == "completed"
    assert child != _same_place(flow, "r")


def _same_place(flow: Any, run_id: str) -> str:
    """Return the id that the child of node `settle` has in a run."""
    return place_of(RunState(run_id), "settle", 1, None, "pay", 0).run_id


def test_a_flow_that_calls_itself_without_end_stops_at_a_depth_of_fifty(stage: Stage) -> None:
    graph = Graph("deeper", Order)
    flows: list[Any] = []

    @graph.node
    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.call(flows[0], Order(total=state.total + 1))

    flows.append(graph.chain(START, "settle", END).compile())
    with pytest.raises(hf.RunFailed) as failed:
        stage.run(flows[0])
    rows = stage.do(lambda engine: engine.runs(limit=100))
    assert len(rows) == 51
    assert all(len(row.id) <= 128 for row in rows)
    assert "ChildFailed" in str(failed.value)
    assert sum("more than 50 deep" in str(row.error) for row in rows) >= 1


def test_a_wait_for_something_that_is_no_child_of_the_attempt_is_refused(stage: Stage) -> None:
    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.wait_for(42)  # type: ignore[call-overload]

    assert "give its name as text, or the child run that ctx.start returned" in failure(stage, settle)


def test_a_node_that_is_not_idempotent_may_start_a_child_but_not_wait_for_it(stage: Stage) -> None:
    pay = Till().pay()

    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.start(pay, {"how": "ask"})
        await ctx.call(pay, key="other")

    said = failure(stage, settle, idempotent=False)
    assert "is not idempotent, and ctx.call" in said
    assert len(children(stage.store)) == 1


def test_a_child_of_a_flow_that_the_engine_does_not_know_is_an_error_that_says_what_to_give(
    stage: Stage,
) -> None:
    pay = Till().pay("unknown_here")
    flow = caller(pay)
    run = stage.run(flow, Order(how="ask"))
    assert run.status == "waiting"
    (child,) = children(stage.store)
    stage.do(lambda engine: engine.answer(child, "charge", "yes"))
    with pytest.raises(hf.FlowNotFound) as unknown:
        stage.resume(flow)
    assert str(unknown.value) == (
        f"run {child!r} belongs to flow 'unknown_here', which was not given to this engine (this engine knows 'order'). "
        "Pass flows=[…], name the file that defines it, or list it in [tool.holdfast] flows."
    )
    assert (stage.store.run("r").status, stage.store.run("r").held) == ("waiting", False)
    assert stage.do(lambda engine: engine.resume("r"), flow, pay).status == "completed"


def test_a_child_in_a_queue_is_left_to_its_workers(stage: Stage) -> None:
    till = Till()
    pay = till.pay()

    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        return {
            "log": [(await ctx.call(pay, Pay(amount=3), queue="till", priority=5, labels={"a": "b"})).paid]
        }

    flow = calling(settle)
    assert stage.run(flow).status == "waiting"
    (child,) = children(stage.store)
    row = stage.store.run(child)
    assert (row.queue, row.priority, row.labels, row.status) == ("till", 5, {"a": "b"}, "pending")

    async def use(engine: hf.Engine) -> hf.Run[Any]:
        await engine.work(queues=["till"], until="idle")
        return await engine.resume("r")

    assert stage.do(use, flow, pay).state.log == [True]
