"""Sleeping and waiting inside a node: durable, without holding anything, and never begun again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from harness import Stage, Work, turns
from waits import Boom, Going, paid, told, waiting

import holdfast as hf
from holdfast import END, START, Graph, Retry
from holdfast.reading.views import Run
from holdfast.testing.clock import STARTS_AT

NOW = Retry(attempts=3, backoff=0.0)


# --- sleeping ----------------------------------------------------------------------------------------


def test_a_short_sleep_takes_its_time_and_does_not_unwind_the_node(quick: Stage) -> None:
    entered: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        entered.append(ctx.attempt)
        yield ctx.sleep(20)
        return {"total": 1}

    run = quick.run(quick.one(body))
    assert (run.status, entered, run.updated_at) == ("completed", [1], STARTS_AT + 20)
    assert "NodeWaiting" not in quick.kinds()
    assert run.nodes["only"].seconds == 20


def test_a_long_sleep_unwinds_the_node_and_the_same_attempt_goes_on_from_its_top(quick: Stage) -> None:
    entered: list[tuple[int, int, float]] = []
    done: list[str] = []

    def body(state: Work, ctx: Any) -> Any:
        entered.append((ctx.execution, ctx.attempt, quick.clock.now() - STARTS_AT))
        yield ctx.step("before", done.append, "before")
        yield ctx.sleep(100)
        yield ctx.step("after", done.append, "after")
        return {"total": 1}

    run = quick.run(quick.one(body))
    assert entered == [(1, 1, 0), (1, 1, 100)]
    assert done == ["before", "after"]
    assert (run.updated_at, run.nodes["only"].attempt, run.nodes["only"].tries) == (STARTS_AT + 100, 1, 1)
    assert [(start.attempt, start.woken) for start in quick.told("NodeStarted")] == [(1, False), (1, True)]
    assert run.nodes["only"].seconds == run.active_s == 30, "what it waited for unwound is not its own time"
    assert quick.problems() == []


@pytest.mark.parametrize("park_after", [0.0, 5.0, 200.0])
def test_how_long_a_coroutine_waits_before_it_unwinds_is_a_setting(quick: Stage, park_after: float) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.sleep(100)

    run = quick.run(quick.one(body), park_after=park_after)
    assert run.updated_at == STARTS_AT + 100
    waits = [event.at for event in quick.do(lambda engine: engine.events("r", kind="NodeWaiting"))]
    assert waits == ([STARTS_AT + park_after] if park_after < 100 else [])


def test_a_plain_function_unwinds_at_once(stage: Stage) -> None:
    if stage.colour != "def":
        pytest.skip("of threads only")

    def body(state: Work, ctx: Any) -> Any:
        yield ctx.sleep(10)
        return {"total": 1}

    flow = stage.one(body)

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.until("NodeWaiting")
        assert stage.clock.now() == STARTS_AT
        stage.clock.advance(10)
        return await going.task

    run = stage.do(use, flow)
    assert (run.state.total, run.nodes["only"].attempt) == (1, 1)


@pytest.mark.parametrize("unwound", [False, True], ids=["in place", "unwound"])
def test_a_sleep_that_a_crash_cut_is_not_begun_anew(stage: Stage, unwound: bool) -> None:
    done: list[str] = []
    entered: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        entered.append(ctx.attempt)
        yield ctx.step("before", done.append, "before")
        yield ctx.sleep(100)
        return {"total": 1}

    flow = stage.one(body)

    async def first(engine: hf.Engine) -> None:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        if unwound:
            await going.parked()
        await going.crash()

    async def second(engine: hf.Engine) -> Run[Any]:
        going = Going(stage, engine, engine.resume("r"))
        await going.until("RunResumed")
        stage.clock.advance(STARTS_AT + 99 - stage.clock.now())
        await asyncio.sleep(0)
        assert not going.task.done()
        stage.clock.advance(1)
        return await going.task

    stage.do(first, flow)
    stage.clock.advance(STARTS_AT + 60 - stage.clock.now())
    run = stage.do(second, flow)
    assert (run.updated_at, run.state.total, done) == (STARTS_AT + 100, 1, ["before"])
    assert len(stage.told("TimerSet")) == 1
    if unwound:
        assert (run.nodes["only"].attempt, set(entered)) == (1, {1}), "waking is the same attempt"


def test_a_sleep_whose_time_came_while_nobody_was_there_is_over_at_once(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.sleep(100)
        return {"total": 1}

    flow = stage.one(body)

    async def first(engine: hf.Engine) -> None:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.parked()
        await going.crash()

    stage.do(first, flow)
    stage.clock.advance(1000)
    assert stage.resume(flow).state.total == 1


def test_sleeps_are_counted_unless_they_have_a_key(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.sleep(1)
        yield ctx.sleep(2)
        yield ctx.sleep(3, key="long")

    run = quick.run(quick.one(body))
    assert run.updated_at == STARTS_AT + 6
    assert [timer.slot for timer in quick.told("TimerSet")] == ["sleep:1", "sleep:2", "sleep:long"]


def test_two_sleeps_of_one_key_are_refused(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.sleep(1, key="a")
        yield ctx.sleep(1, key="a")

    assert quick.fails(quick.one(body)).error.type == "ContextError"


def test_a_sleep_that_is_over_is_not_slept_again_by_a_retry(quick: Stage) -> None:
    tries: list[float] = []

    def body(state: Work, ctx: Any) -> Any:
        yield ctx.sleep(100)
        tries.append(quick.clock.now())
        if len(tries) == 1:
            raise hf.Recoverable("once")

    run = quick.run(quick.one(body, retry=NOW))
    assert (tries, run.nodes["only"].attempt) == ([STARTS_AT + 100] * 2, 2)


def test_an_execution_asked_for_anew_sleeps_again(quick: Stage) -> None:
    tries: list[float] = []

    def body(state: Work, ctx: Any) -> Any:
        yield ctx.sleep(100)
        tries.append(quick.clock.now() - STARTS_AT)
        if len(tries) == 1:
            raise Boom("for good")

    flow = quick.one(body)
    quick.fails(flow)
    quick.verb(flow, "retry", fresh=True)
    assert tries == [100, 200]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", True, None, 1e12])
def test_what_is_no_time_to_sleep_is_refused(quick: Stage, seconds: Any) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.sleep(seconds)

    error = quick.fails(quick.one(body)).error
    assert (error.type, "'only'" in error.message) == ("ContextError", True)
    assert quick.told("TimerSet") == []


def test_a_sleep_of_no_time_is_over_at_once(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.sleep(0)
        return {"total": 1}

    assert stage.run(stage.one(body)).state.total == 1


def test_many_long_sleeps_and_steps_end_in_the_same_state_wherever_the_process_died(quick: Stage) -> None:
    """The log of a whole run, cut behind each of its events."""
    did: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        found = []
        for number in range(3):
            yield ctx.sleep(50)
            found.append((yield ctx.step(f"part {number}", lambda n=number: did.append(n) or n)))
        return {"log": found}

    flow = quick.one(body)
    whole = quick.run(flow)
    until_at = [timer.until for timer in quick.told("TimerSet")]
    for seq in range(1, whole.seq):
        kept = quick.kinds()[:seq].count("StepCompleted")
        did.clear()
        url = quick.crashed_at(seq)
        run = quick.verb(flow, "resume", url=url)
        assert run.state.log == [0, 1, 2]
        assert did == ([] if "NodeCompleted" in quick.kinds()[:seq] else list(range(kept, 3)))
        assert quick.problems(url) == []
    assert until_at == [STARTS_AT + 50, STARTS_AT + 100, STARTS_AT + 150]


# --- unwinding ---------------------------------------------------------------------------------------


def test_a_wait_does_not_unwind_a_node_while_a_step_of_it_is_under_way(quick: Stage) -> None:
    """Gathered with a sleep: the step would have to be done again."""
    calls: list[str] = []

    async def slowly() -> str:
        calls.append("begun")
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        del loop
        quick.clock.call_at(quick.clock.now() + 50, ended.set)
        await ended.wait()
        calls.append("ended")
        return "slow"

    def body(state: Work, ctx: Any) -> Any:
        async def both() -> list[Any]:
            return list(await asyncio.gather(ctx.step("slow", slowly), ctx.sleep(100)))

        return {"log": [(yield both())[0]]}

    run = quick.run(quick.one(body))
    assert (calls, run.state.log, run.updated_at) == (["begun", "ended"], ["slow"], STARTS_AT + 100)
    (waiting,) = quick.do(lambda engine: engine.events("r", kind="NodeWaiting"))
    assert waiting.at == STARTS_AT + 50


def test_a_node_that_waits_for_two_things_unwinds_and_goes_on_when_one_has_come(quick: Stage) -> None:
    entered: list[float] = []

    def body(state: Work, ctx: Any) -> Any:
        entered.append(quick.clock.now() - STARTS_AT)

        async def both() -> None:
            await asyncio.gather(ctx.sleep(100, key="a"), ctx.sleep(200, key="b"))

        yield both()
        return {"total": 1}

    run = quick.run(quick.one(body))
    assert (run.updated_at, run.state.total) == (STARTS_AT + 200, 1)
    assert entered == [0, 100, 200]
    assert run.nodes["only"].attempt == 1


def test_a_task_that_never_uses_the_context_is_left_alone_when_its_node_unwinds(quick: Stage) -> None:
    """It may be the reader of a connection pool that was first used inside the node."""
    begun: list[asyncio.Task[Any]] = []

    def body(state: Work, ctx: Any) -> Any:
        async def both() -> None:
            begun.append(asyncio.create_task(asyncio.Event().wait()))
            await ctx.sleep(100)

        if begun:
            assert not begun[0].done()
            begun[0].cancel()
        else:
            yield both()
        return {"total": 1}

    assert quick.run(quick.one(body)).state.total == 1


@pytest.mark.parametrize(
    ("how", "inside"),
    [("group", False), ("gather", False), ("group", True), ("gather", True), ("task", True)],
)
def test_when_a_node_unwinds_its_other_coroutines_are_cancelled_and_awaited(
    quick: Stage, how: str, inside: bool
) -> None:
    heard: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def beside(ctx: Any) -> None:
        heard.append("begun")
        try:
            await (ctx.wait_for("other") if inside else asyncio.get_running_loop().create_future())
        finally:
            await turns(20)  # it takes its time to clean up
            heard.append("too late" if "NodeWaiting" in quick.kinds() else "cleaned up")

    def body(state: Work, ctx: Any) -> Any:
        heard.append("entered")

        async def both() -> None:
            if how == "gather":
                await asyncio.gather(beside(ctx), ctx.sleep(100))
            elif how == "task":
                tasks.append(asyncio.create_task(beside(ctx)))
                await ctx.sleep(100)
            else:
                async with asyncio.TaskGroup() as group:
                    group.create_task(beside(ctx))
                    group.create_task(ctx.sleep(100))

        if heard.count("entered") == 1:
            yield both()
        return {"total": 1}

    assert quick.run(quick.one(body)).state.total == 1
    assert heard == ["entered", "begun", "cleaned up", "entered"]


def test_a_node_that_catches_everything_cannot_keep_itself_from_unwinding(stage: Stage) -> None:
    caught: list[str] = []

    def body(state: Work, ctx: Any) -> Any:
        try:
            yield ctx.sleep(100)
        except Exception as raised:
            caught.append(type(raised).__name__)
            raise
        return {"total": 1}

    flow = stage.one(body)

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.parked()
        stage.clock.advance(100)
        return await going.task

    assert stage.do(use, flow).state.total == 1
    assert caught == []


@pytest.mark.parametrize("verb", ["sleep", "wait_for", "ask"])
def test_a_node_that_is_not_idempotent_may_not_wait_and_is_told_the_way_out(stage: Stage, verb: str) -> None:
    ran: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        ran.append(1)
        yield getattr(ctx, verb)(1 if verb == "sleep" else "paid?")

    error = stage.fails(stage.one(body, idempotent=False)).error
    assert error.type == "ContextError"
    assert all(part in error.message for part in ("'only'", f"ctx.{verb}", "graph.ask")), error.message
    assert ran == [1]
    assert not {"TimerSet", "SignalAwaited", "QuestionAsked"} & set(stage.kinds())


# --- what waits holds nothing ------------------------------------------------------------------------


def test_a_waiting_run_holds_no_thread(tmp_path: Path) -> None:
    stage = Stage("memory", tmp_path, "def")

    def body(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.wait_for("go"))]}

    flow = stage.one(body)

    def threads() -> int:
        return sum(thread.name == "holdfast-node" for thread in threading.enumerate())

    async def use(engine: hf.Engine) -> None:
        await engine.run(flow, run_id="first")
        before = threads()
        for number in range(20):
            run = await engine.run(flow, run_id=f"w{number}")
            assert (run.status, run.held_by) == ("waiting", None)
        assert threads() <= before + 1, "the one thread that served the first may still have been leaving"

    stage.do(use, flow)


def test_a_waiting_run_survives_its_engines(stage: Stage) -> None:
    entered: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        entered.append(ctx.attempt)
        one = yield ctx.wait_for("one")
        two = yield ctx.wait_for("two")
        return {"log": [one, two]}

    flow = stage.one(body)
    assert waiting(stage, flow).waits == ("only.1.1:signal:one:1",)
    assert told(stage, "one", 1).status == "pending"
    assert waiting(stage, flow, resume=True).waits == ("only.1.1:signal:two:1",)
    told(stage, "two", 2)
    run = stage.resume(flow)
    assert (run.status, run.state.log, set(entered)) == ("completed", [1, 2], {1})
    assert stage.problems() == []


# --- beside others -----------------------------------------------------------------------------------


def test_parallel_branches_go_on_while_one_waits(quick: Stage) -> None:
    def wait(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.wait_for("paid"))]}

    def work(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint(1)
        return {"log": [ctx.node]}

    graph = Graph("branches", Work)
    graph.node(name="wait")(quick.node(wait))
    for name in ("b", "c", "d"):
        graph.node(name=name)(quick.node(work))
    graph.chain(START, "wait", END).chain(START, "b", "c", "d", END)
    flow = graph.compile()
    run = quick.run(flow)
    assert (run.status, run.state.log) == ("waiting", ["b", "c", "d"])
    assert {name: node.status for name, node in run.nodes.items()} == {
        "wait": "waiting",
        "b": "completed",
        "c": "completed",
        "d": "completed",
    }
    told(quick, "paid", 7)
    assert quick.resume(flow).state.log == ["b", "c", "d", 7]


def test_a_node_that_waits_holds_its_layer(quick: Stage) -> None:
    def wait(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.wait_for("paid"))]}

    def work(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint(1)
        return {"log": [ctx.node]}

    graph = Graph("layers", Work)
    graph.node(name="wait")(quick.node(wait))
    for name in ("b", "c"):
        graph.node(name=name)(quick.node(work))
    graph.chain(START, "wait", END).chain(START, "b", "c", END)
    flow = graph.compile(schedule="layered")
    run = quick.run(flow)
    assert (run.status, run.state.log, "c" in run.nodes) == ("waiting", [], False)
    told(quick, "paid", 7)
    assert quick.resume(flow).state.log == [7, "b", "c"]


def test_items_wait_each_for_itself_and_hold_no_place_while_they_do(quick: Stage) -> None:
    entered: list[int] = []

    def body(page: int, ctx: Any) -> Any:
        entered.append(page)
        yield ctx.sleep(100)
        return {"log": [page]}

    graph = Graph("pages", Work)
    graph.node(name="only", each=lambda state: [1, 2, 3], limit=1)(quick.node(body))
    flow = graph.chain(START, "only", END).compile()
    run = quick.run(flow, park_after=0.0)
    assert run.state.log == [1, 2, 3]
    assert run.updated_at == STARTS_AT + 100, "they slept beside each other"
    assert [start.attempt for start in quick.told("ItemStarted")] == [1] * 6
    assert quick.problems() == []


def test_items_that_wait_for_signals_leave_the_run_waiting(quick: Stage) -> None:
    def body(page: int, ctx: Any) -> Any:
        return {"log": [[page, (yield ctx.wait_for(f"page {page}"))]]}

    graph = Graph("pages", Work)
    graph.node(name="only", each=lambda state: [1, 2])(quick.node(body))
    flow = graph.chain(START, "only", END).compile()
    assert quick.run(flow).status == "waiting"
    told(quick, "page 2", "b")
    assert quick.resume(flow).waits == ("only.1.1[0]:signal:page 1:1",)
    told(quick, "page 1", "a")
    assert quick.resume(flow).state.log == [[1, "a"], [2, "b"]]
    assert quick.problems() == []


# --- stopping what waits -----------------------------------------------------------------------------


def test_a_waiting_run_can_be_cancelled_and_waits_for_nothing_any_more(stage: Stage) -> None:
    flow = paid(stage)
    waiting(stage, flow)
    run = stage.do(lambda engine: engine.cancel("r"))
    assert (run.status, run.waits) == ("cancelled", ())
    with pytest.raises(hf.ResumeRefused):
        told(stage, "paid")


def test_an_engine_that_stops_interrupts_a_sleep_which_then_goes_on(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.sleep(20)
        return {"total": 1}

    flow = stage.one(body)

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(stage, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        engine.stop("deploy")
        return await going.task

    assert stage.do(use, flow, grace=0.0).status == "interrupted"
    stage.clock.advance(STARTS_AT + 20 - stage.clock.now())
    run = stage.resume(flow)
    assert (run.state.total, len(stage.told("TimerSet"))) == (1, 1)


def test_a_paused_run_is_not_woken_before_it_is_resumed(stage: Stage) -> None:
    flow = paid(stage)
    waiting(stage, flow)
    stage.do(lambda engine: engine.pause("r"))
    assert told(stage, "paid", 7).status == "paused"
    run = stage.resume(flow)
    assert (run.status, run.state.log) == ("completed", [7])


def test_taking_up_a_run_that_waits_again_and_again_is_no_crash(stage: Stage) -> None:
    """Many more times than a node may crash its process."""
    flow = paid(stage)
    waiting(stage, flow)
    for _ in range(6):
        assert stage.resume(flow).status == "waiting"
    told(stage, "paid", 7)
    run = stage.resume(flow)
    assert (run.state.log, run.nodes["only"].attempt) == ([7], 1)


def test_a_waiting_node_can_be_skipped(stage: Stage) -> None:
    flow = paid(stage)
    waiting(stage, flow)
    run = stage.verb(flow, "skip", "only", {"log": ["by hand"]})
    assert (run.status, run.state.log, run.waits) == ("completed", ["by hand"], ())


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_run_of_less_durability_waits_all_the_same(quick: Stage, durability: str) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.sleep(20)
        yield ctx.sleep(100)
        return {"log": [(yield ctx.wait_for("paid", timeout=None))]}

    flow = quick.one(body)
    assert quick.run(flow, durability=durability).status == "waiting"
    told(quick, "paid", 7)
    assert quick.do(lambda engine: engine.resume("r"), flow, durability=durability).state.log == [7]
    assert quick.problems() == []
