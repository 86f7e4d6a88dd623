"""What an engine makes of what a node raises, and of a node that takes too long: which tries it has, and when."""

from __future__ import annotations

import asyncio
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from engines import Work, failure_of, has, in_engine, kinds, one_node, quickly, running, started
from harness import turns, until

import holdfast as hf
from holdfast import END, START, Graph, Retry
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.appends import dead_process
from holdfast.testing.builders import History
from holdfast.testing.clock import ManualClock

# --- what a node raises ------------------------------------------------------------------------------


class Http(Exception):
    def __init__(self, status: int) -> None:
        self.status_code = status
        super().__init__(f"HTTP {status}")


@pytest.mark.parametrize(
    ("error", "tries", "kind"),
    [
        (hf.Recoverable("busy"), 3, "partial"),
        (TimeoutError("slow"), 3, "partial"),
        (ConnectionResetError("gone"), 3, "partial"),
        (Http(503), 3, "partial"),
        (Http(429), 3, "partial"),
        (Http(404), 1, "partial"),
        (ValueError("wrong"), 1, "partial"),
        (hf.Fatal("never"), 1, "fatal"),
        (SystemExit(3), 1, "partial"),
        (KeyboardInterrupt(), 1, "partial"),
        (asyncio.CancelledError(), 1, "partial"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
@pytest.mark.parametrize("colour", ["def", "async"])
def test_the_class_of_a_failure_decides_how_often_it_is_tried(
    error: BaseException, tries: int, kind: str, colour: str
) -> None:
    def plain(state: Work) -> None:
        raise error

    async def coroutine(state: Work) -> None:
        raise error

    run = failure_of(one_node(plain if colour == "def" else coroutine))
    assert (run.nodes["only"].attempt, run.error.kind, run.failed_node) == (tries, kind, "only")


def test_a_node_without_a_limit_of_tries_is_tried_until_it_returns() -> None:
    tries = 0

    def body(state: Work) -> dict[str, Any]:
        nonlocal tries
        tries += 1
        if tries <= 1100:  # by then `factor ** failures` is more than a float can hold
            raise hf.Recoverable("busy")
        return {"total": 1}

    flow = one_node(body, retry=Retry(attempts=None, max_delay=5))
    run = quickly(flow)
    assert (run.status, run.nodes["only"].tries) == ("completed", 1101)
    assert flow.definition.nodes["only"].retry["attempts"] is None


def test_without_a_limit_of_tries_a_failure_that_no_retry_helps_is_still_the_end() -> None:
    def body(state: Work) -> None:
        raise ValueError("wrong")

    run = failure_of(one_node(body, retry=Retry(attempts=None)))
    assert (run.nodes["only"].attempt, run.error.kind) == (1, "partial")


def test_sys_exit_in_a_node_is_told_as_what_it_was() -> None:
    run = failure_of(one_node(lambda state: sys.exit(3)))
    assert "sys.exit(3)" in run.error.message


def test_sys_exit_in_a_thread_leaves_engine_and_process_alone(tmp_path: Path) -> None:
    async def use(engine: hf.Engine) -> str:
        with pytest.raises(hf.RunFailed, match=r"sys\.exit\(3\)"):
            await engine.run(one_node(lambda state: sys.exit(3)))
        return "still here"

    assert in_engine(use, tmp_path / "runs.db") == "still here"


def test_the_failure_keeps_the_users_part_of_the_traceback() -> None:
    def body(state: Work) -> None:
        raise ValueError("right here")

    trace = failure_of(one_node(body)).error.traceback
    assert "right here" in trace
    assert "in body" in trace
    assert "holdfast/runtime" not in trace


def test_waits_between_tries_grow_and_are_exact_without_jitter() -> None:
    clock, times = ManualClock(auto=True), []

    def body(state: Work) -> None:
        times.append(clock.now())
        raise hf.Recoverable("busy")

    failure_of(
        one_node(body, retry=Retry(attempts=5, backoff=2.0, factor=3.0, max_delay=20.0, jitter=0.0)),
        clock=clock,
    )
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits == [2.0, 6.0, 18.0, 20.0]


def test_with_on_exactly_those_exceptions_are_tried_again() -> None:
    tried = []

    def body(state: Work) -> None:
        tried.append(1)
        raise KeyError("x") if len(tried) < 3 else hf.Recoverable("not in the list")

    run = failure_of(one_node(body, retry=Retry(attempts=9, on=(KeyError,))))
    assert (len(tried), run.error.type) == (3, "Recoverable")


def test_every_attempt_gets_the_same_input_and_its_own_number() -> None:
    seen = []

    def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        state.pages.append("mine")
        seen.append((ctx.attempt, len(state.pages)))
        if ctx.attempt < 3:
            raise hf.Recoverable("busy")
        return {"total": 1}

    run = quickly(one_node(body))
    assert seen == [(1, 1), (2, 1), (3, 1)]
    assert (run.nodes["only"].tries, run.state.total) == (3, 1)


def test_a_resume_gives_no_new_tries() -> None:
    tried = []

    def body(state: Work) -> None:
        tried.append(1)
        raise hf.Recoverable("busy")

    flow, clock = one_node(body, retry=Retry(attempts=3)), ManualClock(auto=True)
    store = MemoryStore(clock=clock.now)
    failure_of(flow, store=store, clock=clock)
    for _ in range(2):
        with pytest.raises(hf.RunFailed):
            in_engine(lambda engine: engine.resume("r"), store, flows=[flow], clock=clock, inline=True)
    assert len(tried) == 3 + 2, "one for each resume"


def test_a_crash_gives_no_new_tries_and_shortens_no_wait() -> None:
    times = []

    def body(state: Work) -> None:
        times.append(clock.now())
        raise hf.Recoverable("busy")

    flow = one_node(body, retry=Retry(attempts=3, backoff=100.0, factor=1.0, max_delay=100.0, jitter=0.0))
    history = History("r", flow).created(Work()).failed("only", hf.Recoverable("busy"), retry_in=100.0)
    due_at = history.state.nodes["only"].retry_at
    assert due_at is not None
    clock = ManualClock(history.at, auto=True)
    store = MemoryStore(clock=clock.now)
    history.write(store, holder=dead_process())
    with pytest.raises(hf.RunFailed):
        in_engine(lambda engine: engine.resume("r"), store, flows=[flow], clock=clock, inline=True)
    assert times == [due_at, due_at + 100.0]


def test_a_resume_waits_out_the_wait_of_the_failure_before() -> None:
    clock = ManualClock()
    flow = one_node(lambda state: {"total": 1}, retry=Retry(attempts=3, backoff=100.0, jitter=0.0))
    history = History("r", flow).created(Work()).failed("only", hf.Recoverable("busy"), retry_in=100.0)
    clock = ManualClock(history.at)
    store = MemoryStore(clock=clock.now)
    history.write(store)

    async def use(engine: hf.Engine) -> None:
        run = asyncio.create_task(engine.resume("r"))
        await turns(50)
        assert not run.done()
        clock.advance(98.0)
        assert (await engine.get("r")).status == "waiting"
        clock.advance(2.0)
        assert (await run).status == "completed"

    in_engine(use, store, flows=[flow], clock=clock, inline=True)


def test_a_crash_is_a_new_attempt_and_no_failure() -> None:
    seen = []

    def body(state: Work, ctx: hf.Context) -> None:
        seen.append(ctx.attempt)
        raise hf.Recoverable("busy")

    flow, clock, store = one_node(body, retry=Retry(attempts=2)), ManualClock(auto=True), MemoryStore()
    History("r", flow).created(Work()).crashed_in("only").write(store, holder=dead_process())
    with pytest.raises(hf.RunFailed):
        in_engine(lambda engine: engine.resume("r"), store, flows=[flow], clock=clock, inline=True)
    assert seen == [2, 3], "two failures, after the attempt that was cut"


def test_when_a_node_fails_for_good_what_runs_ends_and_is_recorded_and_nothing_new_starts() -> None:
    graph = Graph("side", Work)
    ran = []

    @graph.node
    async def bad(state: Work) -> None:
        raise ValueError("broken")

    @graph.node
    async def good(state: Work) -> dict[str, Any]:
        await turns(20)
        return {"log": ["good"]}

    @graph.node
    def later(state: Work) -> None:
        ran.append("later")

    graph.edge(START, "bad").edge(START, "good").edge("bad", END).chain("good", "later", END)
    run = failure_of(graph.compile())
    assert (run.state.log, ran, run.nodes["good"].status) == (["good"], [], "completed")


# --- timeouts ----------------------------------------------------------------------------------------


def test_an_async_node_that_takes_too_long_is_cancelled_and_fails_by_name() -> None:
    unwound = []

    async def body(state: Work) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            unwound.append(True)

    run = failure_of(one_node(body, timeout=5, retry=Retry(attempts=1)))
    assert "'only' took longer than 5 s" in run.error.message
    assert (run.error.type, unwound) == ("TimeoutError", [True])


def test_a_timeout_is_recoverable_and_tried_again() -> None:
    async def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return {"total": ctx.attempt}

    assert quickly(one_node(body, timeout=5)).state.total == 2


def test_a_thread_that_takes_too_long_is_abandoned_and_no_new_attempt_starts_while_it_lives() -> None:
    entered, leave, attempts = threading.Event(), threading.Event(), []

    def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            entered.set()
            leave.wait()
            assert ctx.cancelled
            return {"log": ["late"]}
        return {"log": ["in time"]}

    clock = ManualClock()
    flow = one_node(body, timeout=5, retry=Retry(attempts=2, backoff=0.0))

    async def use(engine: hf.Engine) -> hf.Run[Any]:
        async with running(engine, flow) as run:
            await started(engine, "only")
            await asyncio.to_thread(entered.wait)
            clock.advance(6.0)
            await until(lambda: has(engine.store, "NodeFailed"))
            await turns(20)
            assert attempts == [1], "the old thread lives"
            leave.set()
            return await run

    run = in_engine(use, MemoryStore(clock=clock.now), clock=clock)
    assert (attempts, run.state.log) == ([1, 2], ["in time"])


def test_no_new_attempt_starts_on_resume_either_while_the_old_thread_lives() -> None:
    entered, leave, alive = threading.Event(), threading.Event(), []
    inside = threading.Semaphore(1)

    def body(state: Work, ctx: hf.Context) -> None:
        alone = inside.acquire(blocking=False)
        alive.append(alone)
        if ctx.attempt == 1:
            entered.set()
            leave.wait()
        if alone:
            inside.release()

    clock = ManualClock()
    flow = one_node(body, timeout=5, retry=Retry(attempts=1))

    async def use(engine: hf.Engine) -> None:
        async with running(engine, flow) as run:
            await started(engine, "only")
            await asyncio.to_thread(entered.wait)
            clock.advance(6.0)
            with pytest.raises(hf.RunFailed, match="took longer"):
                await run
        again = asyncio.create_task(engine.resume("r"))
        await turns(200)
        leave.set()
        await again

    in_engine(use, MemoryStore(clock=clock.now), clock=clock)
    assert alive == [True, True], "never two of them at a time"


def test_a_run_that_takes_too_long_fails_and_gets_as_long_again_on_resume() -> None:
    clock = ManualClock(auto=True)
    store = MemoryStore(clock=clock.now)
    slow = [True]

    async def body(state: Work) -> dict[str, Any]:
        if slow:
            await asyncio.Event().wait()
        return {"total": 1}

    flow = one_node(body)
    with pytest.raises(hf.RunFailed, match=r"longer than 60 s\. Resume it to give it the same time again\.$"):
        in_engine(lambda engine: engine.run(flow, run_id="r", timeout=60), store, clock=clock, inline=True)
    assert kinds(store)[-2:] == ["NodeInterrupted", "RunFailed"]
    with pytest.raises(hf.RunFailed, match="longer than 60 s"):
        in_engine(lambda engine: engine.resume("r"), store, flows=[flow], clock=clock, inline=True)
    slow.clear()
    assert (
        in_engine(
            lambda engine: engine.resume("r"), store, flows=[flow], clock=clock, inline=True
        ).state.total
        == 1
    )
