"""What a reader sees of a run that waits: at once, until when, and how soon a caller that blocks gets it back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness import Stage, Work, turns
from waits import Going, paid, told

import holdfast as hf
from holdfast import END, START, Graph, Retry
from holdfast.reading.views import Run
from holdfast.testing.clock import STARTS_AT, ManualClock


def test_a_coroutine_that_waits_is_seen_as_waiting_at_once(quick: Stage) -> None:
    flow = paid(quick)

    async def use(engine: hf.Engine) -> tuple[Run[Any], str]:
        going = Going(quick, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        seen = await engine.get("r")
        reason = engine.reader.diagnose("r").kind
        await engine.signal("r", "paid", 7)
        assert (await going.task).status == "completed"
        return seen, reason

    seen, reason = quick.do(use, flow)
    assert (seen.status, seen.nodes["only"].status) == ("waiting", "waiting")
    assert seen.held_by is not None
    assert reason == "signal"


def test_a_coroutine_that_was_answered_or_waits_no_longer_is_seen_as_running(quick: Stage) -> None:
    statuses: list[str] = []

    def body(state: Work, ctx: Any) -> Any:
        yield ctx.wait_for("paid")
        statuses.append((yield seen()))

    async def seen() -> str:
        return (await engines[0].get("r")).nodes["only"].status

    engines: list[hf.Engine] = []
    flow = quick.one(body)

    async def use(engine: hf.Engine) -> None:
        engines.append(engine)
        going = Going(quick, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        await engine.signal("r", "paid")
        await going.task

    quick.do(use, flow)
    assert statuses == ["running"]


def test_a_run_of_which_another_node_works_is_running_while_one_waits(quick: Stage) -> None:
    graph = Graph("two", Work)

    async def works(state: Work, ctx: hf.Context) -> None:
        done = asyncio.Event()
        quick.clock.call_at(quick.clock.now() + 5, done.set)
        await done.wait()

    async def waits(state: Work, ctx: hf.Context) -> None:
        await ctx.wait_for("paid")

    graph.node(name="works")(works)
    graph.node(name="waits")(waits)
    for name in ("works", "waits"):
        graph.chain(START, name, END)
    flow = graph.compile()

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(quick, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        seen = await engine.get("r")
        await engine.signal("r", "paid")
        await going.task
        return seen

    seen = quick.do(use, flow)
    assert (seen.status, seen.nodes["works"].status, seen.nodes["waits"].status) == (
        "running",
        "running",
        "waiting",
    )


@pytest.mark.parametrize(("count", "status"), [(2, "waiting"), (3, "running")])
def test_a_fan_out_is_seen_as_waiting_when_all_its_running_items_wait(
    quick: Stage, count: int, status: str
) -> None:
    async def body(item: int, ctx: hf.Context) -> dict[str, Any]:
        if item == 2:
            await stop.wait()
        else:
            await ctx.wait_for(f"page {item}")
        return {"log": [item]}

    graph = Graph("pages", Work)
    graph.node(name="only", each=lambda state: list(range(count)))(body)
    flow = graph.chain(START, "only", END).compile()
    stop = asyncio.Event()

    async def use(engine: hf.Engine) -> str:
        going = Going(quick, engine, engine.run(flow, run_id="r"))
        await going.until("SignalAwaited", 2)
        await turns(10)
        seen: str = (await engine.get("r")).nodes["only"].status
        stop.set()
        for item in range(2):
            await engine.signal("r", f"page {item}")
        await going.task
        return seen

    assert quick.do(use, flow) == status


def test_a_run_whose_process_died_while_it_waited_in_memory_counts_as_running(stage: Stage) -> None:
    """It must be resumed: what it did beside the wait is lost."""
    if stage.colour == "def":
        pytest.skip("a plain function does not wait in memory")
    flow = paid(stage)

    async def use(engine: hf.Engine) -> None:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        await going.crash()

    stage.do(use, flow)
    seen = stage.do(lambda engine: engine.get("r"))
    assert (seen.status, seen.nodes["only"].status, seen.held_by) == ("running", "running", None)


# --- until when --------------------------------------------------------------------------------------


def test_a_run_says_until_when_it_waits(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.wait_for("paid", timeout=50)

    run = quick.run(quick.one(body))
    assert (run.status, run.due_at) == ("waiting", STARTS_AT + 50)
    (listed,) = quick.do(lambda engine: engine.runs())
    assert listed.due_at == STARTS_AT + 50


def test_a_run_that_waits_for_others_only_and_one_that_is_over_are_not_due(quick: Stage) -> None:
    flow = paid(quick)
    assert quick.run(flow).due_at is None
    told(quick, "paid", 7)
    assert quick.resume(flow).due_at is None


def test_a_retry_is_due_too(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        if ctx.attempt == 1:
            raise hf.Recoverable("busy")
        yield ctx.checkpoint(1)

    flow = quick.one(body, retry=Retry(attempts=2, backoff=40.0, jitter=0.0))

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(quick, engine, engine.run(flow, run_id="r"))
        await going.until("NodeFailed")
        seen: Run[Any] = await engine.get("r")
        await going.task
        return seen

    assert quick.do(use, flow).due_at == STARTS_AT + 40


# --- callers that block ------------------------------------------------------------------------------


def wait_times(store: Any) -> list[float]:
    return [row.at - STARTS_AT for row in store.events("r", kinds=("NodeWaiting",))]


@pytest.mark.parametrize(("park_after", "seconds"), [(30.0, 1.0), (0.25, 0.25)])
def test_a_caller_that_blocks_gets_a_waiting_run_back_after_a_second(
    quick: Stage, park_after: float, seconds: float
) -> None:
    run = hf.run(
        paid(quick), run_id="r", store=quick.store, clock=quick.clock, inline=True, park_after=park_after
    )
    assert (run.status, quick.clock.now() - STARTS_AT) == ("waiting", seconds)
    assert wait_times(quick.store) == [seconds]


def test_a_sleep_is_slept_to_its_end_by_a_caller_that_blocks() -> None:
    clock = ManualClock(auto=True)

    async def nap(state: Work, ctx: hf.Context) -> dict[str, Any]:
        await ctx.sleep(100)
        return {"total": 1}

    graph = Graph("nap", Work)
    graph.node(name="only")(nap)
    flow = graph.chain(START, "only", END).compile()
    run = hf.run(flow, run_id="r", store="memory://slept", clock=clock, inline=True)
    assert (run.state.total, clock.now()) == (1, STARTS_AT + 100)
