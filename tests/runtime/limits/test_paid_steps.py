"""A step that spends the budget of its run is kept, and so are the steps beside it: what was paid for is not paid again."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import budget_nodes
import pytest
from harness import Stage, Work

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.testing import check


@pytest.fixture(params=["memory-def", "memory-async", "sqlite-def", "sqlite-async"])
def coloured_stage(request: Any, tmp_path: Path) -> Any:
    kind, colour = request.param.split("-")
    stage = Stage(kind, tmp_path, colour)
    yield stage
    stage.close()


def over(stage: Stage, flow: Flow[Any], usd: float = 1) -> hf.Run[Any]:
    """Execute the run `r`, which must fail because its budget is spent."""
    with pytest.raises(hf.RunFailed, match="BudgetExceeded") as failed:
        stage.do(lambda engine: engine.run(flow, run_id="r", budget=hf.Budget(usd=usd)))
    run: hf.Run[Any] = failed.value.run
    return run


@pytest.mark.parametrize(
    "declared",
    ["ask", hf.Step("ask"), hf.Step("ask", idempotent=False), hf.Step("ask", timeout=60)],
    ids=["plain", "declared", "once", "timed"],
)
def test_a_step_that_exceeds_the_budget_is_kept_and_is_not_paid_again(
    coloured_stage: Stage, declared: Any
) -> None:
    stage, calls = coloured_stage, []

    def body(state: Any, ctx: Any) -> Any:
        def ask() -> str:
            calls.append("ask")
            ctx.cost(usd=2)
            return "42"

        answer = yield ctx.step(declared, ask)
        yield ctx.step("use", lambda: calls.append("use"))
        return {"log": [answer]}

    flow = stage.one(body)
    run = over(stage, flow)
    assert (calls, run.cost.usd, run.failed_node) == (["ask"], 2.0, "only")
    done = stage.resume(flow, budget=hf.Budget(usd=10))
    assert (done.status, done.state.log, calls, done.cost.usd) == ("completed", ["42"], ["ask", "use"], 2.0)
    assert not check(stage.store)


def test_a_node_whose_last_step_spends_the_budget_completes_and_the_next_node_does_not_begin(
    stage: Stage,
) -> None:
    graph, calls = Graph("paid", Work), []

    @graph.node
    async def ask(state: Work, ctx: hf.Context) -> dict[str, Any]:
        async def pay() -> str:
            ctx.cost(usd=2)
            return "42"

        return {"log": [await ctx.step("pay", pay)]}

    @graph.node
    async def use(state: Work) -> None:
        calls.append("use")

    flow = graph.chain(START, ask, use, END).compile()
    run = over(stage, flow)
    assert (run.state.log, calls) == (["42"], [])
    done = stage.resume(flow, budget=hf.Budget(usd=10))
    assert (done.status, done.cost.usd, calls) == ("completed", 2.0, ["use"])
    assert not check(stage.store)


def test_a_map_keeps_the_calls_that_run_when_the_budget_is_spent_and_begins_no_other(stage: Stage) -> None:
    calls: list[int] = []
    graph = Graph("mapped", Work)

    @graph.node
    async def only(state: Work, ctx: hf.Context) -> dict[str, Any]:
        gate = asyncio.Event()

        async def ask(number: int) -> int:
            calls.append(number)
            if number % 2:
                gate.set()
            await gate.wait()
            ctx.cost(usd=2)
            return number

        return {"log": await ctx.map("ask", ask, range(4), limit=2)}

    flow = graph.chain(START, only, END).compile()
    run = over(stage, flow)
    assert (sorted(calls), run.cost.usd) == ([0, 1], 4.0)
    assert len(stage.told("StepCompleted")) == 2
    done = stage.resume(flow, budget=hf.Budget(usd=20))
    assert (done.state.log, sorted(calls), done.cost.usd) == ([0, 1, 2, 3], [0, 1, 2, 3], 8.0)


@pytest.mark.parametrize("spends", ["inside", "outside"])
@pytest.mark.parametrize("way", ["gather", "group"])
def test_a_step_that_runs_beside_a_refused_one_is_kept(stage: Stage, way: str, spends: str) -> None:
    if (way, spends) == ("group", "outside"):
        pytest.skip("ctx.cost raises at once outside of a step, and then asyncio itself cancels the group")
    calls: list[str] = []
    graph = Graph("beside", Work)

    @graph.node
    async def only(state: Work, ctx: hf.Context) -> dict[str, Any]:
        begun = asyncio.Event()

        async def slow() -> str:
            calls.append("slow")
            begun.set()
            for _ in range(50):
                await asyncio.sleep(0)
            return "slow"

        async def fast() -> str:
            await begun.wait()
            calls.append("fast")
            if spends == "inside":
                ctx.cost(usd=2)
            return "fast"

        async def chain() -> str:
            got = await ctx.step("fast", fast)
            if spends == "outside" and len(calls) == 2:
                ctx.cost(usd=2)
            await ctx.step("next", lambda: calls.append("next"))
            return got

        if way == "gather":
            return {"log": list(await asyncio.gather(chain(), ctx.step("slow", slow)))}
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(chain()), group.create_task(ctx.step("slow", slow))]
        return {"log": [one.result() for one in both]}

    flow = graph.chain(START, only, END).compile()
    over(stage, flow)
    assert {step.step for step in stage.told("StepCompleted")} == {"fast", "slow"}
    done = stage.resume(flow, budget=hf.Budget(usd=20))
    assert (done.state.log, sorted(calls)) == (["fast", "slow"], ["fast", "next", "slow"])
    assert not check(stage.store)


def test_a_cost_from_a_thread_that_a_step_has_started_does_not_stop_the_step(stage: Stage) -> None:
    graph = Graph("threaded", Work)

    @graph.node
    async def only(state: Work, ctx: hf.Context) -> dict[str, Any]:
        def ask() -> str:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(ctx.cost, usd=2).result()
            return "42"

        return {"log": [await ctx.step("ask", ask)]}

    flow = graph.chain(START, only, END).compile()
    run = stage.do(lambda engine: engine.run(flow, run_id="r", budget=hf.Budget(usd=1)), inline=False)
    assert (run.status, run.state.log, run.cost.usd) == ("completed", ["42"], 2.0)


def test_outside_of_a_step_a_cost_still_raises(coloured_stage: Stage) -> None:
    stage = coloured_stage

    def body(state: Any, ctx: Any) -> Any:
        yield ctx.step("first", lambda: None)
        with pytest.raises(hf.BudgetExceeded):
            ctx.cost(usd=2)
        return {"log": ["raised"]}

    run = stage.do(lambda engine: engine.run(stage.one(body), run_id="r", budget=hf.Budget(usd=1)))
    assert run.state.log == ["raised"]


def test_a_crash_between_the_cost_and_the_result_counts_the_cost_and_begins_nothing(stage: Stage) -> None:
    if stage.kind == "postgres":
        pytest.skip("a store on a server is not copied")
    calls: list[str] = []
    graph = Graph("crashed", Work)

    @graph.node
    async def only(state: Work, ctx: hf.Context) -> dict[str, Any]:
        async def ask() -> str:
            calls.append("ask")
            ctx.cost(usd=2)
            return "42"

        return {"log": [await ctx.step("ask", ask)]}

    flow = graph.chain(START, only, END).compile()
    stage.do(lambda engine: engine.run(flow, run_id="r", budget=hf.Budget(usd=1)))
    seq = 1 + stage.kinds().index("CostIncurred")
    url = stage.crashed_at(seq)
    with contextlib.suppress(hf.RunFailed):
        stage.verb(flow, "resume", url=url)
    assert calls == ["ask"]  # the log has the cost, so nothing begins
    done = stage.verb(flow, "resume", url=url, budget=hf.Budget(usd=9))
    assert (done.status, done.cost.usd, calls) == ("completed", 4.0, ["ask", "ask"])  # as it was really paid


@pytest.mark.parametrize(
    "body", [budget_nodes.pays_in_steps, budget_nodes.pays_in_steps_async], ids=["def", "async"]
)
def test_a_step_in_a_process_that_exceeds_the_budget_is_kept(tmp_path: Path, body: Any) -> None:
    graph = Graph("process", budget_nodes.Work)
    graph.node(name="only", executor="process")(body)
    flow = graph.chain(START, "only", END).compile()
    where = {"store": tmp_path / "runs.db"}
    with pytest.raises(hf.RunFailed, match="BudgetExceeded"):
        hf.run(flow, budget_nodes.Work(folder=str(tmp_path)), run_id="r", budget=hf.Budget(usd=1), **where)
    done = hf.resume("r", budget=hf.Budget(usd=9), flows=[flow], **where)
    assert (done.status, done.cost.usd) == ("completed", 2.0)
    assert (tmp_path / "calls").read_text().split() == ["ask", "use"]
