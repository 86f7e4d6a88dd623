"""Sleeping and waiting for signals inside a node: durable, without holding anything, and never begun anew."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Stage, Work, turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry
from holdfast.reading.views import Run
from holdfast.testing.clock import STARTS_AT

NOW = Retry(attempts=3, backoff=0.0)


@pytest.fixture(
    params=[(kind, colour) for kind in ("memory", "sqlite") for colour in ("async", "def")], ids="-".join
)
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    """A clock that a test moves: a coroutine and a thread see the same time."""
    found = Stage(request.param[0], tmp_path, request.param[1], still=True)
    yield found
    found.close()


@pytest.fixture(params=["memory", "sqlite"])
def quick(request: Any, tmp_path: Path) -> Iterator[Stage]:
    """A clock that jumps over every wait."""
    found = Stage(request.param, tmp_path)
    yield found
    found.close()


class Going:
    """The run `r` on its way in an engine, with the clock in the test's hands."""

    def __init__(self, stage: Stage, engine: hf.Engine, coroutine: Any) -> None:
        self.stage = stage
        self.engine = engine
        self.task: asyncio.Task[Run[Any]] = asyncio.create_task(coroutine)

    async def until(self, kind: str, times: int = 1) -> None:
        await until(lambda: self.task.done() or self.count(kind) >= times)
        assert self.count(kind) >= times, self.task

    def count(self, kind: str) -> int:
        try:
            return self.stage.kinds().count(kind)
        except hf.RunNotFound:
            return 0

    async def parked(self, times: int = 1) -> None:
        """Wait until the node has unwound, after the time that a coroutine takes for it."""
        if self.stage.colour != "def":
            await self.until("NodeStarted", times)
            await self.asleep()
            self.stage.clock.advance(30)
        await self.until("NodeWaiting", times)

    async def asleep(self) -> None:
        """Wait until the node waits: what it waits for is in the log, and it has been told so."""
        await until(lambda: any(self.count(kind) for kind in ("TimerSet", "SignalAwaited", "QuestionAsked")))
        for _ in range(10):
            await asyncio.sleep(0)

    async def crash(self) -> None:
        """Leave it where it is, with nothing recorded."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Boom(Exception):
    """Something that is not tried again by itself."""


# --- sleeping -----------------------------------------------------------------------------------------


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


# --- unwinding ----------------------------------------------------------------------------------------


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


# --- what waits holds nothing -------------------------------------------------------------------------


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


def waiting(stage: Stage, flow: Flow[Any], *, resume: bool = False) -> Run[Any]:
    """Carry `r` on until it has unwound and nobody is left to wait for but others."""

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(stage, engine, engine.resume("r") if resume else engine.run(flow, run_id="r"))
        if stage.colour != "def":
            await turns(60)  # everything happens on the loop, so that is long enough for it to wait
            stage.clock.advance(30)
        return await going.task

    run: Run[Any] = stage.do(use, flow)
    assert run.status == "waiting"
    return run


def told(stage: Stage, name: str, payload: Any = None, run_id: str = "r", **named: Any) -> Run[Any]:
    """Signal a run from an engine that knows no flow."""
    run: Run[Any] = stage.do(lambda engine: engine.signal(run_id, name, payload, **named))
    return run


# --- signals ------------------------------------------------------------------------------------------


def paid(stage: Stage, seen: list[Any] | None = None, **named: Any) -> Flow[Any]:
    """Waits for `paid`."""

    def body(state: Work, ctx: Any) -> Any:
        try:
            found = yield ctx.wait_for("paid", **named)
        except hf.HoldfastError as late:
            if seen is None:
                raise
            seen.append((type(late).__name__, str(late)))
            found = "late"
        return {"log": [found]}

    return stage.one(body)


def test_a_signal_that_came_before_the_wait_is_taken_at_once(stage: Stage) -> None:
    flow = paid(stage)
    stage.do(lambda engine: engine.start(flow, run_id="r"))
    told(stage, "paid", {"usd": 5})
    assert stage.resume(flow).state.log == [{"usd": 5}]
    assert "NodeWaiting" not in stage.kinds()


def test_a_signal_reaches_a_node_that_waits_in_place(quick: Stage) -> None:
    entered: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        entered.append(1)
        return {"log": [(yield ctx.wait_for("paid"))]}

    flow = quick.one(body)

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(quick, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        await engine.signal("r", "paid", 7, by="bank", reason="invoice 3")
        return await going.task

    run = quick.do(use, flow)
    assert (run.state.log, entered) == ([7], [1])
    (received,) = quick.told("SignalReceived")
    assert (received.name, received.payload, received.by, received.reason) == ("paid", 7, "bank", "invoice 3")


def test_a_signal_from_another_engine_reaches_the_run_through_the_inbox(quick: Stage) -> None:
    flow = paid(quick)

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(quick, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        async with quick.engine() as other:
            await other.signal("r", "paid", 7)
        return await going.task

    run = quick.do(use, flow)
    assert run.state.log == [7]
    assert run.updated_at - STARTS_AT == pytest.approx(0.2)


def test_a_signal_wakes_a_node_that_has_unwound(stage: Stage) -> None:
    flow = paid(stage)
    waiting(stage, flow)
    told(stage, "paid", 7)
    run = stage.resume(flow)
    assert (run.state.log, run.nodes["only"].attempt) == ([7], 1)


def test_each_signal_is_taken_once_and_in_the_order_they_came(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        one = yield ctx.wait_for("paid")
        two = yield ctx.wait_for("paid")
        return {"log": [one, two]}

    flow = stage.one(body)
    stage.do(lambda engine: engine.start(flow, run_id="r"))
    told(stage, "paid", 1)
    assert waiting(stage, flow, resume=True).waits == ("only.1.1:signal:paid:2",)
    told(stage, "paid", 2)
    assert stage.resume(flow).state.log == [1, 2]


def test_a_signal_goes_to_the_wait_that_is_oldest(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        return {"log": [[ctx.node, (yield ctx.wait_for("paid"))]]}

    graph = Graph("two", Work)
    graph.node(name="a")(quick.node(body))
    graph.node(name="b")(quick.node(body))
    for name in ("a", "b"):
        graph.chain(START, name, END)
    flow = graph.compile()
    quick.run(flow)
    order = [wait.node for wait in quick.told("SignalAwaited")]
    told(quick, "paid", 1)
    told(quick, "paid", 2)
    assert sorted(quick.resume(flow).state.log) == sorted([[order[0], 1], [order[1], 2]])


def test_signals_of_other_names_and_of_other_runs_do_not_reach_a_wait(stage: Stage) -> None:
    flow = paid(stage)
    stage.do(lambda engine: engine.start(flow, run_id="other"))
    waiting(stage, flow)
    told(stage, "paid", "wrong", run_id="other")
    told(stage, "paid later", "wrong")
    assert waiting(stage, flow, resume=True).waits == ("only.1.1:signal:paid:1",)
    told(stage, "paid", "right")
    assert stage.resume(flow).state.log == ["right"]


def test_a_signal_with_an_id_is_taken_once_however_often_it_is_told(stage: Stage) -> None:
    flow = paid(stage)
    stage.do(lambda engine: engine.start(flow, run_id="r"))
    for payload in (1, 1, 2):
        told(stage, "paid", payload, id="invoice-3")
    assert [signal.payload for signal in stage.told("SignalReceived")] == [1]


def test_a_payload_has_the_type_that_was_asked_for(stage: Stage) -> None:
    seen: list[Any] = []

    def body(state: Work, ctx: Any) -> Any:
        found = yield ctx.wait_for("job", type=Work)
        seen.append(found)

    flow = stage.one(body)
    stage.do(lambda engine: engine.start(flow, run_id="r"))
    told(stage, "job", {"plain": "text"})
    stage.resume(flow)
    assert seen == [Work(plain="text")]


def test_a_signal_to_a_run_that_is_over_is_refused(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint(1)

    flow = stage.one(body)
    stage.run(flow)
    before = stage.kinds()
    with pytest.raises(hf.ResumeRefused, match="'r' was not told anything: it is completed"):
        told(stage, "paid")
    stage.do(lambda engine: engine.start(flow, run_id="c"))
    stage.do(lambda engine: engine.cancel("c"))
    with pytest.raises(hf.ResumeRefused, match="'c' was not told anything: it is cancelled"):
        told(stage, "paid", run_id="c")
    assert stage.kinds() == before


def test_a_signal_that_cannot_be_kept_is_refused_and_nothing_is_recorded(quick: Stage) -> None:
    flow = paid(quick)
    quick.run(flow)
    before = quick.kinds()
    with pytest.raises(hf.CodecError, match="payload"):
        told(quick, "paid", object())
    for name in ("", None):
        with pytest.raises(hf.SettingError, match="signal"):
            told(quick, name)  # type: ignore[arg-type]
    with pytest.raises(hf.RunNotFound):
        told(quick, "paid", run_id="nobody")
    assert quick.kinds() == before


def test_a_signal_to_a_failed_run_waits_for_its_resume(stage: Stage) -> None:
    broken = [True]

    def body(state: Work, ctx: Any) -> Any:
        if broken:
            raise Boom("first")
        return {"log": [(yield ctx.wait_for("paid"))]}

    flow = stage.one(body)
    stage.fails(flow)
    told(stage, "paid", 7)
    broken.clear()
    assert stage.resume(flow).state.log == [7]


@pytest.mark.parametrize(
    "how",
    [{"replay": True}, {"checkpoint": 1}, {"restart_at": "behind"}],
    ids=["replay", "checkpoint", "restart_at"],
)
def test_a_rewind_gives_back_the_signals_that_were_taken_behind_that_place(quick: Stage, how: Any) -> None:
    """What others told the run is not undone by doing its work over."""
    taken: list[Any] = []

    def body(state: Work, ctx: Any) -> Any:
        taken.append((ctx.node, (yield ctx.wait_for("paid"))))

    def behind(state: Work, ctx: Any) -> Any:
        taken.append((ctx.node, (yield ctx.wait_for("shipped"))))
        if len(taken) == 2:
            raise Boom("for good")

    graph = Graph("two", Work)
    graph.node(name="only")(quick.node(body))
    graph.node(name="behind")(quick.node(behind))
    flow = graph.chain(START, "only", "behind", END).compile()
    assert quick.run(flow).status == "waiting"
    told(quick, "paid", 1)
    assert quick.resume(flow).status == "waiting"
    told(quick, "shipped", 2)
    with pytest.raises(hf.RunFailed):
        quick.resume(flow)
    taken.clear()
    taken.extend([("before", 0), ("before", 0)])
    assert quick.resume(flow, **how).status == "completed"
    redone = [("behind", 2)] if "restart_at" in how else [("only", 1), ("behind", 2)]
    assert taken[2:] == redone


# --- timeouts -----------------------------------------------------------------------------------------


def test_a_signal_that_does_not_come_in_time_raises_in_the_node(quick: Stage) -> None:
    seen: list[Any] = []
    flow = paid(quick, seen, timeout=20)
    run = quick.run(flow)
    assert (run.state.log, run.updated_at) == (["late"], STARTS_AT + 20)
    ((kind, text),) = seen
    assert kind == "WaitTimeout"
    assert all(part in text for part in ("'only'", "'paid'", "20 s"))


def test_a_timeout_that_nobody_catches_fails_the_node_for_good(quick: Stage) -> None:
    failed = quick.fails(paid(quick, timeout=20))
    assert (failed.error.type, failed.error.kind, failed.nodes["only"].attempt) == (
        "WaitTimeout",
        "partial",
        1,
    )


def test_a_timeout_is_durable_too(stage: Stage) -> None:
    """The run is left alone with it; whoever takes it up later finds that the time has come."""
    seen: list[Any] = []
    flow = paid(stage, seen, timeout=50)
    waiting(stage, flow)
    assert stage.store.run("r").due_at == STARTS_AT + 50
    stage.clock.advance(STARTS_AT + 49 - stage.clock.now())
    assert stage.resume(flow).status == "waiting"
    stage.clock.advance(1)
    assert stage.resume(flow).state.log == ["late"]
    assert [kind for kind, _ in seen] == ["WaitTimeout"]


def test_a_signal_that_comes_after_its_timeout_is_kept_for_the_next_wait(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        try:
            yield ctx.wait_for("paid", timeout=50)
        except TimeoutError:
            return {"log": ["late", (yield ctx.wait_for("paid"))]}

    flow = stage.one(body)
    waiting(stage, flow)
    stage.clock.advance(STARTS_AT + 60 - stage.clock.now())
    assert waiting(stage, flow, resume=True).waits == ("only.1.1:signal:paid:2",)
    told(stage, "paid", 7)
    assert stage.resume(flow).state.log == ["late", 7]


def test_what_came_of_a_wait_is_the_same_for_every_later_attempt(stage: Stage) -> None:
    """A crash behind the timeout, and then the signal comes: the first answer stands."""
    seen: list[Any] = []
    lives: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        try:
            found = yield ctx.wait_for("paid", timeout=0)
        except TimeoutError:
            found = "late"
        seen.append(found)
        lives.append(1)
        if len(lives) == 1:
            yield stage.dies(ctx)
        return {"log": [found]}

    flow = stage.one(body)
    stage.crash(flow)
    told(stage, "paid", 7)
    assert stage.resume(flow).state.log == ["late"]
    assert seen == ["late", "late"]


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5", True, 1e12])
@pytest.mark.parametrize("verb", ["wait_for", "ask"])
def test_what_is_no_time_to_wait_is_refused(quick: Stage, verb: str, timeout: Any) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield getattr(ctx, verb)("paid", timeout=timeout)

    error = quick.fails(quick.one(body)).error
    assert (error.type, "'only'" in error.message) == ("ContextError", True)


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_wait_for_no_signal_is_refused(quick: Stage, name: Any) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.wait_for(name)

    assert quick.fails(quick.one(body)).error.type == "ContextError"


# --- beside others ------------------------------------------------------------------------------------


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


# --- stopping what waits ------------------------------------------------------------------------------


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
