"""What the engine does with nodes that return, raise, hang and are cut: retries, timeouts, cancellation, pauses,
fan-outs, layers, durability.

Time belongs to the tests: a manual clock that jumps to the next timer when nothing else is to do, or that stands
still. Where threads take part, they meet the test at events, and nothing sleeps.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry, add, append, merge
from holdfast.errors import StoreBusy
from holdfast.reading import verification
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import dead_process, hooked
from holdfast.testing.builders import History
from holdfast.testing.clock import STARTS_AT, ManualClock

PATIENCE_S = 60


@dataclass
class Work:
    log: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    seen: Annotated[dict[str, int], merge] = field(default_factory=dict)
    plain: str = ""
    number: float = 0.0
    pages: list[str] = field(default_factory=list)


def one_node(body: Callable[..., Any], state: type[Any] = Work, **options: Any) -> Flow[Any]:
    graph = Graph("one", state)
    graph.node(name="only", **options)(body)
    return graph.chain(START, "only", END).compile()


def in_engine(use: Callable[[hf.Engine], Awaitable[Any]], store: Any = None, **options: Any) -> Any:
    """Use an engine on the event loop; whoever waits longer than anything here can take has found a hang."""

    async def main() -> Any:
        async with hf.Engine(store or MemoryStore(), **options) as engine:
            return await asyncio.wait_for(use(engine), PATIENCE_S)

    return asyncio.run(main())


def quickly(
    flow: Flow[Any], given: Any = None, *, store: Any = None, clock: ManualClock | None = None, **options: Any
) -> Any:
    """Run `r` on one thread, with a clock that jumps over every wait."""
    clock = clock or ManualClock(auto=True)
    store = store or MemoryStore(clock=clock.now)
    options = {"clock": clock, "inline": True, "luck": random.Random(7), **options}
    return in_engine(lambda engine: engine.run(flow, given, run_id="r"), store, **options)


def failure_of(flow: Flow[Any], given: Any = None, **options: Any) -> hf.Run[Any]:
    with pytest.raises(hf.RunFailed) as failed:
        quickly(flow, given, **options)
    run: hf.Run[Any] = failed.value.run
    return run


def kinds(store: Any, after: int = 0) -> list[str]:
    return [row.kind for row in store.events("r", after)]


async def until(condition: Callable[[], Any]) -> None:
    """Let the event loop go round until this holds; `in_engine` bounds how long."""
    for _ in iter(int, 1):  # for ever
        if condition():
            return
        await asyncio.sleep(0)


async def turns(count: int) -> None:
    """Let the event loop go round so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


def has(store: Any, kind: str, node: str | None = None) -> bool:
    """Whether the run `r` has recorded this."""
    try:
        return bool(store.events("r", kinds=(kind,), node=node))
    except hf.RunNotFound:
        return False


async def started(engine: hf.Engine, node: str) -> None:
    """Wait until the start of a node is durable and its body has had its first step."""
    await until(lambda: has(engine.store, "NodeStarted", node))
    await turns(3)


@asynccontextmanager
async def running(
    engine: hf.Engine, flow: Flow[Any], given: Any = None, **options: Any
) -> AsyncIterator[asyncio.Task[hf.Run[Any]]]:
    """The run `r`, on its way."""
    run = asyncio.create_task(engine.run(flow, given, run_id="r", **options))
    try:
        yield run
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


# --- what a node returns ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("text", "it returned a str"),
        (["list"], "it returned a list"),
        ({"plian": "x"}, "did you mean 'plain'"),
        ({"plain": 3}, "plain"),
        ({"number": float("nan")}, "number"),
        ({"log": "not a list"}, "log"),
        ({"plain": "a\0b"}, "plain"),
        ({"plain": "\ud800"}, "plain"),
        ({"seen": {1: 1}}, "seen"),
        ({"plain": object()}, "plain"),
    ],
)
def test_what_does_not_fit_the_state_fails_the_node_and_says_where(returned: Any, said: str) -> None:
    run = failure_of(one_node(lambda state: returned))
    assert run.error.kind == "partial"
    assert said in run.error.message
    assert "'only'" in run.error.message
    assert run.state == Work()


def test_a_node_that_changed_its_input_and_returned_nothing_is_told_to_return_it() -> None:
    def body(state: Work) -> None:
        state.log.append("lost")

    run = failure_of(one_node(body))
    assert "'log'" in run.error.message
    assert "Return the state" in run.error.message


def test_what_a_node_does_to_its_input_changes_nothing_that_another_node_sees() -> None:
    graph = Graph("two", Work)

    @graph.node
    def spoil(state: Work) -> dict[str, Any]:
        state.pages.append("spoiled")
        return {"log": ["spoil"]}

    @graph.node
    def look(state: Work) -> dict[str, Any]:
        return {"log": [f"saw {state.pages}"]}

    run = quickly(graph.chain(START, "spoil", "look", END).compile(), Work(pages=["clean"]))
    assert run.state.log == ["spoil", "saw ['clean']"]


class Notes(TypedDict):
    notes: Annotated[list[str], append]
    total: Annotated[int, add]


def test_a_dict_state_that_comes_back_itself_is_a_whole_state() -> None:
    def body(state: Notes) -> Notes:
        state["notes"].append("new")
        state["total"] += 1
        return state

    run = quickly(one_node(body, Notes), {"notes": ["old"], "total": 5})
    assert run.state == {"notes": ["old", "new"], "total": 6}


def test_a_key_taken_from_an_open_dict_state_is_gone() -> None:
    def body(state: dict[str, Any]) -> dict[str, Any]:
        del state["gone"]
        return state

    assert quickly(one_node(body, dict), {"gone": 1, "kept": 2}).state == {"kept": 2}


def test_a_node_is_told_who_it_is() -> None:
    seen = []

    def body(state: Work, ctx: hf.Context) -> None:
        seen.append(
            (
                ctx.run_id,
                ctx.flow,
                ctx.node,
                ctx.iteration,
                ctx.execution,
                ctx.attempt,
                ctx.item,
                ctx.resources["db"],
                ctx.cancelled,
            )
        )

    quickly(one_node(body), resources={"db": "pool"})
    assert seen == [("r", "one", "only", 1, 1, 1, None, "pool", False)]


# --- what a node raises -------------------------------------------------------------------------------


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


# --- timeouts -----------------------------------------------------------------------------------------


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
    with pytest.raises(hf.RunFailed, match=r"longer than 60 s.*resume"):
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


# --- cancel, pause and other requests to a run that moves ------------------------------------------------


def test_a_run_is_cancelled_where_it_runs_and_its_async_node_unwinds() -> None:
    unwound, store = [], MemoryStore()

    async def body(state: Work) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            unwound.append(True)

    async def use(engine: hf.Engine) -> None:
        async with running(engine, one_node(body)) as run:
            await started(engine, "only")
            await engine.cancel("r", "not needed", by="ann")
            with pytest.raises(hf.RunCancelled):
                await run

    in_engine(use, store)
    assert (unwound, kinds(store)[-2:]) == ([True], ["NodeInterrupted", "RunCancelled"])
    assert not store.run("r").held


def test_a_run_cancelled_before_its_node_had_its_first_step_ends_all_the_same() -> None:
    async def body(state: Work) -> None:
        await asyncio.Event().wait()

    async def use(engine: hf.Engine) -> None:
        async with running(engine, one_node(body)) as run:
            await until(lambda: "r" in engine._runners)
            await engine.cancel("r")
            with pytest.raises(hf.RunCancelled):
                await asyncio.wait_for(run, 5)

    in_engine(use)


def test_a_cancelled_thread_is_told_and_its_late_result_is_refused() -> None:
    entered, leave, told, store = threading.Event(), threading.Event(), [], MemoryStore()

    def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        entered.set()
        leave.wait()
        told.append(ctx.cancelled)
        return {"log": ["late"]}

    async def use(engine: hf.Engine) -> None:
        async with running(engine, one_node(body)) as run:
            await asyncio.to_thread(entered.wait)
            await engine.cancel("r")
            with pytest.raises(hf.RunCancelled):
                await run
            leave.set()
            await until(lambda: told)
            await turns(10)
            assert (await engine.get("r")).state.log == []

    in_engine(use, store)
    assert (told, kinds(store)[-1]) == ([True], "RunCancelled")


def gated() -> tuple[Flow[Work], dict[str, Any]]:
    """first -> second; `first` goes on when the gate is opened."""
    graph, gate = Graph("gated", Work), {}

    @graph.node
    async def first(state: Work) -> dict[str, Any]:
        gate["in"].set()
        await gate["open"].wait()
        return {"log": ["first"]}

    @graph.node
    async def second(state: Work) -> dict[str, Any]:
        return {"log": ["second"]}

    return graph.chain(START, "first", "second", END).compile(), gate


def test_a_pause_lets_running_nodes_end_and_starts_nothing_new() -> None:
    flow, gate = gated()
    store = MemoryStore()

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run:
            await gate["in"].wait()
            await engine.pause("r", "lunch", by="ann")
            gate["open"].set()
            paused = await run
            assert (paused.status, paused.state.log) == ("paused", ["first"])
        assert not store.run("r").held
        assert (await engine.resume("r")).state.log == ["first", "second"]

    in_engine(use, store)
    assert verification.verify(store, "r").problems == []


def test_a_request_from_another_engine_reaches_the_run_through_the_inbox() -> None:
    flow, gate = gated()
    store = MemoryStore()

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run:
            await gate["in"].wait()
            async with hf.Engine(store, flows=[flow]) as other:
                assert (await other.cancel("r", "not needed", by="ann")).status == "running"
            with pytest.raises(hf.RunCancelled):
                await run

    in_engine(use, store)
    last = store.events("r")[-1]
    assert last.kind == "RunCancelled"
    assert store.inbox("anyone") == []


def test_a_request_that_was_answered_is_not_answered_again() -> None:
    """With `durability="exit"` an answer is not durable for long; the inbox must not be believed over what the runner knows."""
    tried: list[int] = []
    clock = ManualClock()
    store = MemoryStore(clock=clock.now)

    async def body(state: Work) -> None:
        tried.append(1)
        raise hf.Recoverable("busy")

    flow = one_node(body, retry=Retry(attempts=9, backoff=1000.0, factor=1.0, max_delay=1000.0, jitter=0.0))

    async def use(engine: hf.Engine) -> None:
        await engine.start(flow, run_id="r")
        async with running(engine, flow):
            await until(lambda: tried)
            async with hf.Engine(store, flows=[flow], clock=clock) as other:
                await other.retry("r")
            for _ in range(20):  # the inbox is looked at every 0.2 s
                clock.advance(0.25)
                await turns(20)

    in_engine(use, store, clock=clock, inline=True, durability="exit")
    assert len(tried) == 2, "once by itself, once because it was asked"


@pytest.mark.parametrize(
    ("verb", "args", "total"),
    [("retry", ("r",), 2), ("skip", ("r", "only", {"total": 7}), 7)],
    ids=["retry", "skip"],
)
def test_a_waiting_retry_can_be_tried_at_once_or_skipped(verb: str, args: Any, total: int) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock.now)

    def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            raise hf.Recoverable("busy")
        return {"total": ctx.attempt}

    flow = one_node(body, retry=Retry(attempts=3, backoff=1000.0))

    async def use(engine: hf.Engine) -> hf.Run[Any]:
        async with running(engine, flow) as run:
            await until(lambda: has(store, "NodeFailed"))
            await getattr(engine, verb)(*args)
            return await run

    assert in_engine(use, store, clock=clock, inline=True).state.total == total


def test_a_paused_run_that_waits_for_a_retry_waits_for_somebody() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock.now)

    def body(state: Work, ctx: hf.Context) -> None:
        if ctx.attempt == 1:
            raise hf.Recoverable("busy")

    flow = one_node(body, retry=Retry(attempts=3, backoff=10.0, jitter=0.0))

    async def use(engine: hf.Engine) -> None:
        async with running(engine, flow) as run:
            await until(lambda: has(store, "NodeFailed"))
            await engine.pause("r")
            assert (await run).status == "paused"
        clock.advance(60.0)
        assert (await engine.resume("r")).status == "completed"

    in_engine(use, store, clock=clock, inline=True)


# --- shutdown -----------------------------------------------------------------------------------------


def test_a_stopped_engine_gives_nodes_their_grace_and_starts_nothing_new() -> None:
    flow, gate = gated()
    store = MemoryStore()

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run:
            await gate["in"].wait()
            engine.stop("SIGTERM")
            assert not run.done()
            gate["open"].set()
            stopped = await run
            assert (stopped.status, stopped.state.log) == ("interrupted", ["first"])
        with pytest.raises(hf.ResumeRefused, match="stopping"):
            await engine.resume("r")

    in_engine(use, store)
    assert in_engine(lambda engine: engine.resume("r"), store, flows=[flow]).state.log == ["first", "second"]


def test_a_node_that_outlives_its_grace_is_cut_and_runs_again() -> None:
    clock = ManualClock()
    flow, gate = gated()
    store = MemoryStore(clock=clock.now)

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run:
            await gate["in"].wait()
            engine.stop("SIGTERM")
            clock.advance(6.0)
            assert (await run).status == "interrupted"

    in_engine(use, store, clock=clock, grace=5.0)
    assert kinds(store)[-2:] == ["NodeInterrupted", "RunInterrupted"]

    async def again(engine: hf.Engine) -> hf.Run[Any]:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        gate["open"].set()
        return await engine.resume("r")

    run = in_engine(again, store, flows=[flow])
    assert (run.state.log, run.nodes["first"].attempt) == (["first", "second"], 2)


def test_a_run_whose_last_node_ends_in_time_is_completed_not_interrupted() -> None:
    gate: dict[str, asyncio.Event] = {}

    async def body(state: Work) -> dict[str, Any]:
        gate["in"].set()
        await gate["open"].wait()
        return {"total": 1}

    async def use(engine: hf.Engine) -> str:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, one_node(body)) as run:
            await gate["in"].wait()
            engine.stop()
            gate["open"].set()
            return (await run).status

    assert in_engine(use) == "completed"


def test_closing_an_engine_interrupts_what_runs_and_gives_the_leases_back() -> None:
    flow, gate = gated()
    store = MemoryStore()

    async def main() -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with hf.Engine(store, grace=0.0) as engine:
            run = asyncio.create_task(engine.run(flow, run_id="r"))
            await gate["in"].wait()
        assert (await run).status == "interrupted"

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    row = store.run("r")
    assert (row.status, row.held) == ("interrupted", False)


# --- loops --------------------------------------------------------------------------------------------


def looping(ran: list[int], **options: Any) -> Flow[Work]:
    graph = Graph("loop", Work)

    @graph.node
    def turn(state: Work, ctx: hf.Context) -> dict[str, Any]:
        ran.append(ctx.iteration)
        return {"total": 1}

    graph.edge(START, "turn").branch("turn", lambda s: "turn" if s.total < 10 else END, to=["turn", END])
    return graph.compile(**options)


def test_a_loop_ends_at_its_limit_and_goes_on_with_a_higher_one() -> None:
    ran: list[int] = []
    store = MemoryStore()
    run = failure_of(looping(ran, max_iterations=4), store=store)
    assert (run.error.type, run.failed_node, ran) == ("IterationLimit", "turn", [1, 2, 3, 4])
    assert "max_iterations" in run.error.message
    flow = looping(ran, max_iterations=20)
    assert in_engine(lambda engine: engine.resume("r"), store, flows=[flow]).state.total == 10


def test_a_crash_does_not_reset_the_limit_of_a_loop() -> None:
    ran: list[int] = []
    flow, store = looping(ran, max_iterations=4), MemoryStore()
    history = History("r", flow).created(Work())
    for _ in range(3):
        history.completed("turn", {"total": 1})
    history.crashed_before("turn").write(store, holder=dead_process())
    with pytest.raises(hf.RunFailed, match="IterationLimit"):
        in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert ran == [4]


# --- parallel writers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["eager", "layered"])
def test_two_parallel_nodes_that_set_one_plain_field_are_refused_by_name(schedule: str) -> None:
    graph = Graph("two", Work)

    @graph.node
    def left(state: Work) -> dict[str, Any]:
        return {"plain": "left"}

    @graph.node
    def right(state: Work) -> dict[str, Any]:
        return {"plain": "right"}

    graph.chain(START, "left", END).chain(START, "right", END)
    run = failure_of(graph.compile(schedule=schedule))
    for name in ("'left'", "'right'", "'plain'"):
        assert name in run.error.message


@pytest.mark.parametrize("schedule", ["eager", "layered"])
def test_parallel_nodes_may_share_a_field_with_a_reducer(schedule: str) -> None:
    graph = Graph("two", Work)
    for name in ("left", "right"):
        graph.node(name=name)(lambda state, ctx: {"log": [ctx.node], "total": 1, "seen": {ctx.node: 1}})
        graph.chain(START, name, END)
    run = quickly(graph.compile(schedule=schedule))
    assert (run.state.log, run.state.total, run.state.seen) == (["left", "right"], 2, {"left": 1, "right": 1})


def test_nodes_one_behind_the_other_may_set_one_field() -> None:
    graph = Graph("two", Work)
    for name in ("a", "b"):
        graph.node(name=name)(lambda state, ctx: {"plain": ctx.node})
    assert quickly(graph.chain(START, "a", "b", END).compile()).state.plain == "b"


# --- fan-outs -----------------------------------------------------------------------------------------


def fanned(body: Callable[..., Any], **options: Any) -> Flow[Work]:
    graph = Graph("fan", Work)
    graph.node(name="read", each=lambda state: state.pages, **options)(body)
    graph.node(name="after")(lambda state: {"plain": f"{len(state.log)} read"})
    return graph.chain(START, "read", "after", END).compile()


def test_results_of_items_merge_in_item_order_whatever_order_they_end_in() -> None:
    async def body(page: str, ctx: hf.Context) -> dict[str, Any]:
        for _ in range(30 - 10 * ctx.item):
            await asyncio.sleep(0)
        return {"log": [page], "total": 1}

    run = quickly(fanned(body), Work(pages=["one", "two", "three"]))
    assert (run.state.log, run.state.total, run.state.plain) == (["one", "two", "three"], 3, "3 read")


def test_a_fan_out_over_nothing_completes() -> None:
    assert quickly(fanned(lambda page: {"log": [page]}), Work()).state.plain == "0 read"


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_items_run_at_once_than_the_limit_says(limit: int) -> None:
    now, most = [0], [0]

    async def body(page: str) -> None:
        now[0] += 1
        most[0] = max(most[0], now[0])
        await turns(5)
        now[0] -= 1

    quickly(fanned(body, limit=limit), Work(pages=list("abcdefg")))
    assert most[0] == limit


def test_when_an_item_fails_the_others_finish_and_only_what_is_missing_runs_again() -> None:
    ran, store, broken = [], MemoryStore(), [True]

    async def body(page: str, ctx: hf.Context) -> dict[str, Any]:
        ran.append(page)
        if page == "two" and broken:
            raise ValueError("torn")
        await asyncio.sleep(0)
        return {"log": [f"{page} {ctx.attempt}"]}

    flow = fanned(body)
    with pytest.raises(hf.RunFailed, match="item 1: torn"):
        quickly(flow, Work(pages=["one", "two", "three"]), store=store)
    assert sorted(ran) == ["one", "three", "two"]
    broken.clear()
    ran.clear()
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (ran, run.state.log) == (["two"], ["one 1", "two 2", "three 1"])
    assert verification.verify(store, "r").problems == []


def test_an_item_has_retries_of_its_own() -> None:
    tried: dict[str, int] = {}

    def body(page: str, ctx: hf.Context) -> dict[str, Any]:
        tried[page] = ctx.attempt
        if page == "two" and ctx.attempt < 3:
            raise hf.Recoverable("busy")
        return {"log": [page]}

    run = quickly(fanned(body), Work(pages=["one", "two"]))
    assert (tried, run.state.log) == ({"one": 1, "two": 3}, ["one", "two"])


def test_an_item_that_takes_too_long_fails_by_itself() -> None:
    async def body(page: str, ctx: hf.Context) -> dict[str, Any]:
        if page == "two" and ctx.attempt == 1:
            await asyncio.Event().wait()
        return {"log": [f"{page} {ctx.attempt}"]}

    run = quickly(fanned(body, timeout=5), Work(pages=["one", "two"]))
    assert run.state.log == ["one 1", "two 2"]


def test_items_that_were_done_before_a_crash_do_not_run_again() -> None:
    ran, store = [], MemoryStore()
    flow = fanned(lambda page: ran.append(page) or {"log": [page]})
    history = History("r", flow).created(Work(pages=["one", "two", "three"])).started("read")
    history.item_completed("read", 1, {"log": ["two"]}).write(store, holder=dead_process())
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (sorted(ran), run.state.log) == (["one", "three"], ["one", "two", "three"])


def test_two_items_that_set_one_plain_field_are_refused_by_number() -> None:
    run = failure_of(fanned(lambda page: {"plain": page}), Work(pages=["one", "two"]))
    assert "items 0 and 1 both set 'plain'" in run.error.message


def test_one_item_alone_may_set_a_plain_field() -> None:
    graph = Graph("fan", Work)
    graph.node(name="read", each=lambda state: state.pages)(
        lambda page: {"number": 1.0} if page == "two" else None
    )
    flow = graph.chain(START, "read", END).compile()
    assert quickly(flow, Work(pages=["one", "two"])).state.number == 1.0


@pytest.mark.parametrize(
    ("each", "said"),
    [(lambda s: 3, "not iterable"), (lambda s: [object()], "item 0"), (lambda s: s.nothing, "nothing")],
)
def test_items_that_cannot_be_listed_fail_the_node(each: Any, said: str) -> None:
    graph = Graph("fan", Work)
    graph.node(name="read", each=each)(lambda page: None)
    run = failure_of(graph.chain(START, "read", END).compile())
    assert (run.failed_node, said in run.error.message) == ("read", True)


def test_a_fresh_retry_of_a_fan_out_keeps_nothing() -> None:
    ran, store, broken = [], MemoryStore(), [True]

    def body(page: str) -> dict[str, Any]:
        ran.append(page)
        if page == "two" and broken:
            raise ValueError("torn")
        return {"log": [page]}

    flow = fanned(body)
    failure_of(flow, Work(pages=["one", "two"]), store=store)
    broken.clear()
    ran.clear()
    run = in_engine(lambda engine: engine.retry("r", fresh=True), store, flows=[flow])
    assert (sorted(ran), run.state.log) == (["one", "two"], ["one", "two"])


# --- layers -------------------------------------------------------------------------------------------


def longest(old: str | None, new: str) -> str:
    return max((old or "", new), key=len)


@dataclass
class Best:
    best: Annotated[str, longest] = ""
    order: Annotated[list[str], append] = field(default_factory=list)


def layered(ran: list[str], broken: set[str] = frozenset()) -> Flow[Best]:  # type: ignore[assignment]
    graph = Graph("layers", Best)
    for name in ("short", "longest_word", "middle"):

        async def body(state: Best, ctx: hf.Context) -> dict[str, Any]:
            ran.append(ctx.node)
            for _ in range(30 if ctx.node == "short" else 0):
                await asyncio.sleep(0)
            if ctx.node in broken:
                raise ValueError("broken")
            assert state.order == [], "nothing of a layer is seen before it is complete"
            return {"best": ctx.node, "order": [ctx.node]}

        graph.node(name=name)(body)
        graph.chain(START, name, "end")
    graph.node(name="end")(lambda state, ctx: ran.append(ctx.node) or {"best": "end", "order": ["end"]})
    return graph.edge("end", END).compile(schedule="layered")


def test_a_layer_is_merged_in_node_order_by_reducers_of_the_users_own() -> None:
    run = quickly(layered([]))
    assert run.state == Best("longest_word", ["short", "longest_word", "middle", "end"])
    assert run.layer == 2


def test_a_layer_that_was_cut_runs_only_what_is_missing_and_merges_the_same() -> None:
    ran: list[str] = []
    flow, store = layered(ran), MemoryStore()
    history = History("r", flow).created(Best()).started("short", "longest_word", "middle")
    history.completed("middle", {"best": "middle", "order": ["middle"]})
    history.write(store, holder=dead_process())
    assert in_engine(lambda engine: engine.get("r"), store, flows=[flow]).state == Best()
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert sorted(ran) == ["end", "longest_word", "short"]
    assert run.state == Best("longest_word", ["short", "longest_word", "middle", "end"])
    assert verification.verify(store, "r").problems == []


def test_a_node_that_fails_holds_its_layer_and_the_others_stay_done() -> None:
    ran: list[str] = []
    broken, store = {"middle"}, MemoryStore()
    flow = layered(ran, broken)
    failure_of(flow, store=store)
    assert sorted(ran) == ["longest_word", "middle", "short"]
    broken.clear()
    ran.clear()
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (ran, run.state.best) == (["middle", "end"], "longest_word")


def test_a_skipped_node_takes_its_place_in_the_layer() -> None:
    ran: list[str] = []
    store = MemoryStore()
    flow = layered(ran, {"middle"})
    failure_of(flow, store=store)
    run = in_engine(lambda engine: engine.skip("r", "middle", {"order": ["put"]}), store, flows=[flow])
    assert run.state.order == ["short", "longest_word", "put", "end"]


moody: list[bool] = []


def joined(old: str, new: str) -> str:
    if moody:
        raise RuntimeError("not today")
    return old + new


@dataclass
class Moody:
    text: Annotated[str, joined] = ""


@pytest.mark.parametrize("schedule", ["eager", "layered"])
def test_a_reducer_that_raises_fails_its_node_and_can_be_resumed(schedule: str) -> None:
    moody.append(True)
    ran: list[int] = []
    graph = Graph("moody", Moody)
    graph.node(name="only")(lambda state: ran.append(1) or {"text": "x"})
    flow, store = graph.chain(START, "only", END).compile(schedule=schedule), MemoryStore()
    assert "not today" in failure_of(flow, store=store).error.message
    moody.clear()
    assert in_engine(lambda engine: engine.resume("r"), store, flows=[flow]).state.text == "x"


# --- durability ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "durable"), [("sync", True), ("exit", False)])
def test_the_next_node_starts_when_the_completion_before_it_is_as_durable_as_asked(
    tmp_path: Path, durability: str, durable: bool
) -> None:
    seen = chain_that_looks(tmp_path, durability, idempotent=True)
    assert seen == [durable]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_node_that_is_not_idempotent_is_always_durable_before_the_next(
    tmp_path: Path, durability: str
) -> None:
    assert chain_that_looks(tmp_path, durability, idempotent=False) == [True]


def chain_that_looks(folder: Path, durability: str, *, idempotent: bool) -> list[bool]:
    """a -> b on a file; what b finds there of the completion of a."""
    seen = []
    graph = Graph("two", Work)
    graph.node(name="a", idempotent=idempotent)(lambda state: {"total": 1})

    @graph.node
    async def b(state: Work) -> None:
        other = SqliteStore(folder / "runs.db")
        try:
            seen.append(bool(other.events("r", kinds=("NodeCompleted",), node="a")))
        except hf.RunNotFound:
            seen.append(False)
        finally:
            other.close()

    flow = graph.chain(START, "a", "b", END).compile()
    in_engine(lambda engine: engine.run(flow, run_id="r"), folder / "runs.db", durability=durability)
    return seen


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_run_of_less_durability_ends_in_the_same_log(tmp_path: Path, durability: str) -> None:
    ran: list[int] = []
    flow = looping(ran)
    run = in_engine(lambda engine: engine.run(flow, run_id="r"), tmp_path / "runs.db", durability=durability)
    assert (run.status, ran) == ("completed", list(range(1, 11)))
    store = SqliteStore(tmp_path / "runs.db")
    assert verification.verify(store, "r").problems == []
    assert len(store.events("r", kinds=("NodeCompleted",))) == 10
    assert not store.run("r").held
    store.close()


class Busy:
    """A hook for failpoints: these appends (by number, from 1) find the store busy, so often."""

    def __init__(self, numbers: range, times: int) -> None:
        self.left = dict.fromkeys(numbers, times)
        self.number = 1

    def __call__(self, name: str) -> None:
        if name == "append.before" and self.left.get(self.number, 0) > 0:
            self.left[self.number] -= 1
            raise StoreBusy("somebody else is at it")
        if name == "append.committed":
            self.number += 1


def looking(store: Any, seen: list[bool]) -> Flow[Work]:
    """a -> b; b notes whether the store knows that a is completed."""
    graph = Graph("two", Work)
    graph.node(name="a")(lambda state: {"total": 1})
    graph.node(name="b")(lambda state: seen.append(has(store, "NodeCompleted", "a")) or {"total": 1})
    return graph.chain(START, "a", "b", END).compile()


@pytest.mark.parametrize(("durability", "durable"), [("sync", True), ("async", False)])
def test_a_busy_store_is_asked_again_and_the_next_node_waits_for_it(durability: str, durable: bool) -> None:
    clock, seen = ManualClock(auto=True), []
    store = MemoryStore(clock=clock.now)
    with hooked(Busy(range(2, 3), times=4)):
        run = quickly(looking(store, seen), store=store, clock=clock, durability=durability)
    assert (run.status, run.state.total, seen) == ("completed", 2, [durable])
    assert verification.verify(store, "r").problems == []


def test_an_append_that_cannot_be_made_stops_the_run_and_calls_nothing_failed() -> None:
    clock, seen = ManualClock(auto=True), []
    store = MemoryStore(clock=clock.now)
    flow = looking(store, seen)
    with (
        hooked(Busy(range(2, 3), times=10_000)),
        pytest.raises(StoreBusy, match=r"could not be recorded.*resume"),
    ):
        quickly(flow, store=store, clock=clock)
    assert clock.now() - STARTS_AT >= 30, "as long as the lease lasts"
    assert (kinds(store), seen) == (["RunCreated", "NodeStarted"], [])
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (run.status, run.state.total, run.nodes["a"].attempt) == ("completed", 2, 2)


# --- nodes that must not run twice ----------------------------------------------------------------------


def paying(ran: list[int]) -> Flow[Work]:
    graph = Graph("pay", Work)
    graph.node(name="pay", idempotent=False)(lambda state, ctx: ran.append(ctx.attempt) or {"log": ["paid"]})
    graph.node(name="after")(lambda state: {"log": ["after"]})
    return graph.chain(START, "pay", "after", END).compile()


@pytest.mark.parametrize(
    ("verb", "args", "status", "ran", "log"),
    [
        ("retry", ("r",), "completed", [2], ["paid", "after"]),
        ("skip", ("r", "pay", {"log": ["found paid"]}), "completed", [], ["found paid", "after"]),
        ("cancel", ("r",), "cancelled", [], []),
    ],
)
def test_a_crash_inside_a_node_that_is_not_idempotent_parks_the_run_with_a_question(
    verb: str, args: Any, status: str, ran: list[int], log: list[str]
) -> None:
    tried: list[int] = []
    flow, store = paying(tried), MemoryStore()
    History("r", flow).created(Work()).crashed_in("pay").write(store, holder=dead_process())
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (run.status, tried, run.nodes["pay"].status) == ("waiting", [], "waiting")
    (question,) = run.questions
    assert (question.node, question.options) == ("pay", ["retry", "skip", "abort"])
    again = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (again.status, tried, len(again.questions)) == ("waiting", [], 1)
    ended = in_engine(lambda engine: getattr(engine, verb)(*args), store, flows=[flow])
    assert (ended.status, tried, ended.state.log, ended.questions) == (status, ran, log, ())
    assert verification.verify(store, "r").problems == []


def test_a_node_that_may_be_left_out_is_skipped_when_it_was_cut() -> None:
    ran: list[str] = []
    graph = Graph("skip", Work)
    for name in ("hint", "after"):
        graph.node(name=name, on_interrupt="skip")(lambda state, ctx: ran.append(ctx.node) or None)
    flow, store = graph.chain(START, "hint", "after", END).compile(), MemoryStore()
    History("r", flow).created(Work()).crashed_in("hint").write(store, holder=dead_process())
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (run.nodes["hint"].status, ran) == ("skipped", ["after"])


def test_a_node_that_is_not_idempotent_is_not_retried_by_itself() -> None:
    tried = []

    def body(state: Work) -> None:
        tried.append(1)
        raise hf.Recoverable("busy")

    failure_of(one_node(body, idempotent=False))
    assert tried == [1]


# --- following and reading ------------------------------------------------------------------------------


def test_follow_tells_every_event_once_and_ends_with_the_run() -> None:
    flow = looping([])

    async def use(engine: hf.Engine) -> tuple[list[int], list[int]]:
        await engine.start(flow, run_id="r")

        async def listen(after: int) -> list[int]:
            return [event.seq async for event in engine.follow("r", after)]

        early = asyncio.create_task(listen(0))
        await asyncio.sleep(0)
        await engine.resume("r")
        return await early, await listen(5)

    early, late = in_engine(use)
    assert early == list(range(1, len(early) + 1))
    assert len(early) > 20
    assert late == early[5:]


def test_follow_from_another_engine_sees_the_same(tmp_path: Path) -> None:
    flow, gate = gated()

    async def use(engine: hf.Engine) -> list[str]:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run, hf.Engine(tmp_path / "runs.db") as other:
            await gate["in"].wait()
            seen = []
            async for event in other.follow("r"):
                seen.append(event.kind)
                gate["open"].set()
            await run
            return seen

    seen = in_engine(use, tmp_path / "runs.db")
    assert seen[0] == "RunCreated"
    assert seen[-1] == "RunCompleted"
    assert seen.count("NodeCompleted") == 2


def test_events_can_be_chosen_by_place_node_and_kind() -> None:
    async def use(engine: hf.Engine) -> None:
        await engine.run(looping([]), run_id="r")
        everything = await engine.events("r")
        assert [event.seq for event in everything] == list(range(1, len(everything) + 1))
        assert await engine.events("r", after=3) == everything[3:]
        ends = await engine.events("r", node="turn", kind="NodeCompleted")
        assert [event.iteration for event in ends] == list(range(1, 11))
        assert ends[-1].body["routes"] == ["END"]

    in_engine(use)


@pytest.mark.parametrize(
    "verb", ["get", "state", "events", "checkpoints", "wait", "resume", "retry", "cancel", "pause", "fork"]
)
def test_an_unknown_run_is_said_to_be_unknown(verb: str) -> None:
    with pytest.raises(hf.RunNotFound, match="no run 'nobody'"):
        in_engine(lambda engine: getattr(engine, verb)("nobody"))


def test_following_or_skipping_in_an_unknown_run_says_so_too() -> None:
    async def use(engine: hf.Engine) -> None:
        with pytest.raises(hf.RunNotFound):
            await engine.skip("nobody", "a")
        with pytest.raises(hf.RunNotFound):
            async for _ in engine.follow("nobody"):
                pass

    in_engine(use)


def test_wait_waits_for_the_end_and_no_longer_than_asked() -> None:
    flow, gate = gated()

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow):
            await gate["in"].wait()
            with pytest.raises(TimeoutError, match=r"still running after 0\.01 s"):
                await engine.wait("r", timeout=0.01)
            gate["open"].set()
            assert (await engine.wait("r")).state.log == ["first", "second"]

    in_engine(use)


def test_get_works_without_the_flow_and_gives_plain_data() -> None:
    store = MemoryStore()
    quickly(looping([]), store=store)
    run = in_engine(lambda engine: engine.get("r"), store)
    assert run.state["total"] == 10
    assert (run.flow, run.nodes["turn"].tries, run.held_by) == ("loop", 10, None)


def test_runs_are_found_by_status_flow_and_label() -> None:
    async def use(engine: hf.Engine) -> None:
        flow = looping([])
        await engine.run(flow, run_id="one", labels={"team": "red"})
        await engine.start(flow, run_id="two", labels={"team": "blue"})
        assert [row.run_id for row in await engine.runs(status="completed")] == ["one"]
        assert [row.run_id for row in await engine.runs(labels={"team": "blue"})] == ["two"]
        assert {row.run_id for row in await engine.runs(flow="loop")} == {"one", "two"}
        assert await engine.runs(flow="other") == []

    in_engine(use)


def test_many_runs_move_at_once(tmp_path: Path) -> None:
    async def use(engine: hf.Engine) -> list[str]:
        flow = looping([])
        ended = await asyncio.gather(*(engine.run(flow, run_id=f"r{number}") for number in range(30)))
        return [run.status for run in ended]

    assert set(in_engine(use, tmp_path / "runs.db")) == {"completed"}
    store = SqliteStore(tmp_path / "runs.db")
    assert all(verification.verify(store, f"r{number}").problems == [] for number in range(30))
    store.close()


def test_a_run_whose_lease_was_taken_over_may_not_write() -> None:
    flow, gate = gated()
    clock = ManualClock()
    store = MemoryStore(clock=clock.now, alive=lambda holder: None)

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run:
            await gate["in"].wait()
            clock.advance(31.0)
            gate["open"].set()
            async with hf.Engine(store, flows=[flow], clock=clock, inline=True) as other:
                assert (await other.resume("r")).status == "completed"
            with pytest.raises(hf.StoreError, match="holds it with fence 2"):
                await run

    in_engine(use, store, clock=clock, inline=True)
    assert verification.verify(store, "r").problems == []
