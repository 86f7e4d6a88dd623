"""Requests to a run that an engine executes: what is carried out when, and what stays in the inbox for the next engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asking import leave, refused, requests, waiting, works
from engines import gated, has
from harness import Stage, Work, turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph


def opened(gate: dict[str, Any]) -> None:
    gate.update({"in": asyncio.Event(), "open": asyncio.Event()})


def test_a_cancellation_that_comes_while_the_engine_stops_is_carried_out_by_the_next_one(
    stage: Stage,
) -> None:
    flow, gate = gated()

    async def use(engine: hf.Engine) -> Any:
        opened(gate)
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await gate["in"].wait()
        engine.stop(grace=60)
        async with stage.engine(flow) as other:
            cancelled = await other.cancel("r", by="ann")
        await run
        return cancelled

    assert stage.do(use, flow).status == "cancelled"
    assert stage.kinds()[-2:] == ["RunInterrupted", "RunCancelled"]
    assert waiting(stage) == []


def test_a_resume_of_a_run_that_is_being_paused_waits_until_it_is_released(stage: Stage) -> None:
    flow, gate = gated()

    async def use(engine: hf.Engine) -> Any:
        opened(gate)
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await gate["in"].wait()
        await engine.pause("r")
        await engine.resume("r", execute=False, by="ann")
        gate["open"].set()
        return await run

    assert stage.do(use, flow).status == "paused"
    assert [one.verb for one in waiting(stage)] == ["resume"]
    (ended,) = works(stage, flow)
    assert (ended.status, refused(stage)) == ("completed", [])


def test_a_repeated_request_is_not_passed_to_a_runner_that_does_not_know_it(stage: Stage) -> None:
    graph, broken = Graph("two", Work), {"a", "b"}
    gate: dict[str, asyncio.Event] = {}

    async def body(state: Work, ctx: hf.Context) -> None:
        if ctx.node in broken:
            raise ValueError("broken")
        gate["in"].set()
        await gate["open"].wait()

    graph.node(name="a")(body)
    graph.node(name="b")(body)
    flow = graph.chain(START, "a", "b", END).compile()
    stage.fails(flow)
    leave(stage, "skip", "a", execute=False, id="1")
    works(stage, flow)
    assert stage.kinds().count("NodeSkipped") == 1
    broken.clear()

    async def again(engine: hf.Engine) -> bool:
        opened(gate)
        run = asyncio.create_task(engine.resume("r"))
        await gate["in"].wait()
        repeated = (await engine.skip("r", "a", execute=False, id="1")).repeated
        gate["open"].set()
        await run
        return repeated

    assert stage.do(again, flow)
    assert (refused(stage), requests(stage)) == ([], [])


def test_a_run_that_a_worker_resumed_on_request_is_released_while_it_waits(stage: Stage) -> None:
    broken = [True]

    def body(state: Work, ctx: Any) -> Any:
        if broken:
            raise ValueError("broken")
        yield ctx.sleep(3600)
        return {"log": ["slept"]}

    flow = stage.one(body)
    stage.fails(flow)
    broken.clear()
    leave(stage, "resume", execute=False)
    works(stage, flow)
    row = stage.store.run("r")
    assert (row.status, row.holder) == ("waiting", None)


def listens() -> Flow[Work]:
    graph = Graph("listens", Work)

    @graph.node
    async def listen(state: Work, ctx: hf.Context) -> None:
        await ctx.wait_for("go")

    return graph.chain(START, "listen", END).compile()


def test_a_function_may_edit_a_run_that_waits_in_memory(stage: Stage) -> None:
    """The wait is unwound for the edit, which is recorded after what the function saw, and does not count as a move."""
    flow = listens()

    async def use(engine: hf.Engine) -> Any:
        run = asyncio.create_task(engine.run(flow, {"plain": "tea"}, run_id="r"))
        await until(lambda: has(stage.store, "SignalAwaited"))
        await turns(5)
        async with stage.engine(flow) as other:
            edited = await other.edit("r", lambda state: {"plain": state.plain.upper()})
        await run
        return edited.state.plain

    assert stage.do(use, flow, park_after=3600.0) == "TEA"


@pytest.mark.parametrize("verb", ["pause", "cancel"])
def test_a_node_may_make_a_request_to_its_own_run(stage: Stage, verb: str) -> None:
    """The call must not wait until the request is carried out: that may need the node to end."""
    graph = Graph("own", Work)
    engines: list[hf.Engine] = []

    @graph.node
    async def ask(state: Work) -> dict[str, Any]:
        await getattr(engines[0], verb)("r")
        return {"log": ["asked"]}

    graph.node(name="after")(lambda state: None)
    flow = graph.chain(START, "ask", "after", END).compile()

    async def use(engine: hf.Engine) -> str:
        engines.append(engine)
        try:
            return (await engine.run(flow, run_id="r")).status
        except hf.RunCancelled as cancelled:
            return str(cancelled.run.status)

    before = stage.clock.now()
    assert stage.do(use, flow) == {"pause": "paused", "cancel": "cancelled"}[verb]
    assert stage.clock.now() - before < 5
