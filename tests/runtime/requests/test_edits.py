"""`edit` changes fields of a run that does not move: recorded here if the flow is known, otherwise left for a worker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import pytest
from asking import Order, error_of, leave, refused, waiting, works
from engines import has
from harness import Stage, Work, turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.reading import inbox


@pytest.fixture
def order(stage: Stage) -> Order:
    return Order().fail(stage)


def started(stage: Stage) -> Order:
    order = Order()
    order.broken = False
    stage.do(lambda engine: engine.start(order.flow, {"plain": "tea"}, run_id="r"))
    return order


def edited(stage: Stage) -> Any:
    return stage.do(lambda engine: engine.state("r"))["plain"]


def test_an_edit_of_a_failed_run_is_recorded_and_executes_nothing(stage: Stage, order: Order) -> None:
    run = leave(stage, "edit", {"plain": "cocoa"}, by="ann", reason="no tea", flows=(order.flow,))
    assert (run.status, run.state.plain, order.ran) == ("failed", "cocoa", [])
    assert stage.kinds()[-1] == "StateEdited"
    assert [(one.by, one.reason) for one in stage.told("StateEdited")] == [("ann", "no tea")]
    assert stage.store.run("r").holder is None
    assert stage.resume(order.flow).state.log == ["charged for tea", "sent cocoa"]
    assert stage.problems() == []


def test_an_edit_without_the_flow_is_left_for_a_worker(stage: Stage, order: Order) -> None:
    run = leave(stage, "edit", {"plain": "cocoa"})
    assert (run.status, run.state["plain"]) == ("failed", "tea")
    assert [one.verb for one in waiting(stage)] == ["edit"]
    works(stage, order.flow)
    assert (edited(stage), stage.store.run("r").status, waiting(stage)) == ("cocoa", "failed", [])
    assert order.ran == []


def test_a_pending_run_is_edited_before_it_begins(stage: Stage) -> None:
    order = started(stage)
    leave(stage, "edit", {"plain": "cocoa"}, flows=(order.flow,))
    assert stage.store.run("r").status == "pending"
    works(stage, order.flow)
    assert stage.do(lambda engine: engine.state("r"))["log"] == ["charged for cocoa", "sent cocoa"]


def test_a_paused_run_stays_paused(stage: Stage) -> None:
    order = started(stage)
    leave(stage, "pause")
    leave(stage, "edit", {"plain": "cocoa"})
    works(stage, order.flow)
    assert (edited(stage), stage.store.run("r").status) == ("cocoa", "paused")


def test_a_crashed_run_is_edited_and_its_node_runs_again_with_the_new_state(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        if ctx.attempt == 1:
            yield stage.dies(ctx)
        return {"log": [state.plain]}

    flow = stage.one(body)
    stage.crash(flow, {"plain": "tea"})
    leave(stage, "edit", {"plain": "cocoa"}, flows=(flow,))
    assert stage.resume(flow).state.log == ["cocoa"]


def test_a_function_is_called_with_the_state_as_it_is(stage: Stage, order: Order) -> None:
    leave(stage, "edit", lambda state: {"plain": state.plain.upper()}, flows=(order.flow,))
    assert edited(stage) == "TEA"

    def change(state: Work) -> None:
        state.plain += "!"

    leave(stage, "edit", change, flows=(order.flow,))
    assert edited(stage) == "TEA!"


def test_a_function_needs_the_flow_and_takes_no_id(stage: Stage, order: Order) -> None:
    assert isinstance(error_of(stage, "edit", lambda state: None), hf.FlowNotFound)
    error = error_of(stage, "edit", lambda state: None, id="7", flows=(order.flow,))
    assert isinstance(error, hf.SettingError)
    assert "id='7' cannot be given with a function" in str(error)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"plain": 5}, "Expected `str`"), ({"plian": "x"}, "plian"), ({"log": {"a": 1}}, "log")],
)
def test_an_edit_that_does_not_fit_the_state_type_is_refused_at_once_by_a_caller_with_the_flow(
    stage: Stage, order: Order, given: Any, said: str
) -> None:
    before = stage.kinds()
    error = error_of(stage, "edit", given, flows=(order.flow,))
    assert isinstance(error, hf.StateError)
    assert said in str(error)
    assert (stage.kinds(), waiting(stage)) == (before, [])


@pytest.mark.parametrize("given", [{"plain": 5}, {"plian": "x"}])
def test_and_by_the_worker_if_the_caller_has_not(stage: Stage, order: Order, given: Any) -> None:
    leave(stage, "edit", given)
    works(stage, order.flow)
    assert [(verb, error) for verb, error, _ in refused(stage)] == [("edit", "StateError")]
    assert (edited(stage), waiting(stage)) == ("tea", [])


def test_a_value_that_cannot_be_stored_is_refused(stage: Stage, order: Order) -> None:
    assert isinstance(error_of(stage, "edit", {"plain": object()}), hf.CodecError)


def test_an_edit_of_an_older_version_of_the_state_says_how_to_upgrade_it(stage: Stage, order: Order) -> None:
    graph = Graph("order", Work, version=2, upgrades={1: lambda values: values})
    graph.node(name="charge", idempotent=False)(order.charge)
    graph.node(name="send")(order.send)
    newer = graph.chain(START, "charge", "send", END).compile()
    for edit in ({"plain": "x"}, lambda state: {"plain": "x"}):
        error = error_of(stage, "edit", edit, flows=(newer,))
        assert isinstance(error, hf.ResumeRefused)
        assert "its state has version 1, and the flow has version 2" in str(error)


def test_a_run_that_is_over_is_not_edited(stage: Stage, order: Order) -> None:
    stage.resume(order.flow)
    assert "run 'r' was not edited: it is completed" in str(error_of(stage, "edit", {"plain": "x"}))


# --- while it is executed ----------------------------------------------------------------------------


def listens() -> Flow[Work]:
    """One node, which waits in memory for the signal `go`."""
    graph = Graph("listens", Work)

    @graph.node
    async def listen(state: Work, ctx: hf.Context) -> dict[str, Any]:
        await ctx.wait_for("go")
        return {"log": [state.plain]}

    return graph.chain(START, "listen", END).compile()


async def listening(stage: Stage) -> None:
    await until(lambda: has(stage.store, "SignalAwaited"))
    await turns(5)


@pytest.mark.parametrize("whose", ["this engine", "another engine"])
def test_nodes_that_wait_in_memory_unwind_first(stage: Stage, whose: str) -> None:
    flow = listens()

    async def use(engine: hf.Engine) -> Any:
        run = asyncio.create_task(engine.run(flow, {"plain": "tea"}, run_id="r"))
        await listening(stage)
        async with stage.engine(flow) as other:
            asker = engine if whose == "this engine" else other
            edited = await asker.edit("r", {"plain": "cocoa"})
            assert edited.state.plain == "cocoa"
        assert (await run).status == "waiting"
        await engine.signal("r", "go")
        return (await engine.resume("r")).state.log

    assert stage.do(use, flow, park_after=3600.0) == ["cocoa"]
    kinds = stage.kinds()
    assert kinds.index("NodeWaiting") < kinds.index("StateEdited")
    assert stage.problems() == []


@pytest.mark.parametrize("whose", ["this engine", "another engine"])
def test_a_run_whose_nodes_are_running_refuses_an_edit(stage: Stage, whose: str) -> None:
    graph = Graph("busy", Work)
    gate: dict[str, asyncio.Event] = {}

    @graph.node
    async def busy(state: Work) -> dict[str, Any]:
        gate["in"].set()
        await gate["open"].wait()
        return {"log": [state.plain]}

    flow = graph.chain(START, "busy", END).compile()

    async def use(engine: hf.Engine) -> Any:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        run = asyncio.create_task(engine.run(flow, {"plain": "tea"}, run_id="r"))
        await gate["in"].wait()
        async with stage.engine(flow) as other:
            with pytest.raises(
                hf.ResumeRefused, match=r"run 'r' was not edited: busy is running\. Pause the run first"
            ):
                await (engine if whose == "this engine" else other).edit("r", {"plain": "cocoa"})
        gate["open"].set()
        return (await run).state.log

    assert stage.do(use, flow) == ["tea"]
    assert [verb for verb, _, _ in refused(stage)] == ["edit"]


def test_a_function_that_saw_an_older_state_is_refused_by_the_engine_that_executes_the_run(
    stage: Stage,
) -> None:
    flow = listens()

    async def use(engine: hf.Engine) -> Any:
        run = asyncio.create_task(engine.run(flow, {"plain": "tea"}, run_id="r"))
        await listening(stage)
        seen = stage.store.run("r").seq
        await engine.signal("r", "other")
        stale = inbox.Edit(id="stale", changes={"set": {"plain": "x"}}, seen=seen)
        async with stage.engine(flow) as other:
            with pytest.raises(hf.ResumeRefused, match=r"the run has moved since \(SignalReceived\)"):
                await other.door._hand_in("r", stale)
        await engine.signal("r", "go")
        return (await run).state.log

    assert stage.do(use, flow, park_after=3600.0) == ["tea"]


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Typed:
    when: str = ""
    tags: Annotated[list[str], hf.append] = field(default_factory=list)
    points: dict[str, Point] = field(default_factory=dict)


def test_typed_values_are_stored_as_plain_data_with_and_without_the_flow(stage: Stage) -> None:
    graph = Graph("typed", Typed)
    graph.node(name="only")(lambda state: {"when": f"{state.points['a'].x}"})
    flow = graph.chain(START, "only", END).compile()
    for run_id, flows in (("r1", (flow,)), ("r0", ())):
        stage.do(partial(hf.Engine.start, flow=flow, input=Typed(), run_id=run_id))
        given = {"points": {"a": Point(3)}, "tags": ["t"]}
        stage.do(partial(hf.Engine.edit, run_id=run_id, edit=given), *flows)
    works(stage, flow)
    for run_id in ("r0", "r1"):
        state = stage.do(partial(hf.Engine.state, run=run_id), flow)
        assert (state.when, state.tags, state.points) == ("3", ["t"], {"a": Point(3)})


@pytest.mark.parametrize("edit", [None, 5, ["plain"]])
def test_an_edit_that_is_neither_fields_nor_a_function_is_refused(
    stage: Stage, order: Order, edit: Any
) -> None:
    error = error_of(stage, "edit", edit, flows=(order.flow,))
    assert isinstance(error, hf.SettingError)
    assert "give a dict of fields and values, or a function of the state" in str(error)
