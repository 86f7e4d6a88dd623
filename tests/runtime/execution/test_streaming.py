"""Streams: chunks reach followers at once, outlive their process, and become one entry of the log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Stage, Work, turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry
from holdfast.errors import StoreFull
from holdfast.reading.chunks import Chunk
from holdfast.reading.views import Run
from holdfast.storage.memory.blobs import MemoryBlobs
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.clock import STARTS_AT

NOW = Retry(attempts=3, backoff=0.0)


@pytest.fixture(params=["memory", "sqlite"])
def quick(request: Any, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(request.param, tmp_path)
    yield found
    found.close()


@pytest.fixture(params=["memory", "sqlite"])
def still(request: Any, tmp_path: Path) -> Iterator[Stage]:
    """A clock that the test moves."""
    found = Stage(request.param, tmp_path, still=True)
    yield found
    found.close()


@pytest.fixture(
    params=[(kind, colour) for kind in ("memory", "sqlite") for colour in ("async", "def")], ids="-".join
)
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(request.param[0], tmp_path, request.param[1], still=True)
    yield found
    found.close()


def streaming(fn: Any, **options: Any) -> Flow[Any]:
    graph = Graph("stream", Work)
    graph.node(name="only", **options)(fn)
    return graph.chain(START, "only", END).compile()


def chunks(stage: Stage) -> list[list[Any]]:
    """What was streamed, attempt by attempt."""
    return [event.chunks for event in stage.told("NodeStreamed")]


class Halfway:
    """A node that streams, and stops in the middle until the test lets it go."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts or ("once ", "upon ")
        self.lives = 0
        self.flow = streaming(self.body)
        self.there: asyncio.Event
        self.go: asyncio.Event

    def open(self) -> None:
        self.there, self.go = asyncio.Event(), asyncio.Event()

    async def body(self, state: Work, ctx: hf.Context) -> dict[str, Any]:
        self.lives += 1
        for part in self.parts:
            ctx.emit(part)
        self.there.set()
        await self.go.wait()
        ctx.emit("a time")
        return {"total": 1}


# --- into the log -------------------------------------------------------------------------------------


def test_what_a_node_streams_becomes_one_entry_before_its_end(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        for word in ("once ", "upon ", {"a": [1, None]}):
            ctx.emit(word)
        yield ctx.checkpoint(1)
        return {"total": 1}

    run = stage.run(stage.one(body))
    assert chunks(stage) == [["once ", "upon ", {"a": [1, None]}]]
    kinds = stage.kinds()
    assert kinds.index("NodeStreamed") == kinds.index("NodeCompleted") - 1
    assert run.nodes["only"].chunks == 3
    assert stage.spilled() == {}
    assert stage.problems() == []


def test_a_node_that_streams_nothing_leaves_no_entry(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint(1)

    quick.run(quick.one(body))
    assert chunks(quick) == []


def test_each_attempt_has_its_own_entry(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        ctx.emit(f"try {ctx.attempt}")
        yield ctx.checkpoint(1)
        if ctx.attempt < 3:
            raise hf.Recoverable("again")

    stage.run(stage.one(body, retry=NOW))
    assert [(event.attempt, event.chunks) for event in stage.told("NodeStreamed")] == [
        (1, ["try 1"]),
        (2, ["try 2"]),
        (3, ["try 3"]),
    ]


def test_items_stream_each_for_itself(quick: Stage) -> None:
    def body(page: int, ctx: Any) -> Any:
        ctx.emit(page)
        yield ctx.checkpoint(1)
        ctx.emit(page * 10)

    graph = Graph("pages", Work)
    graph.node(name="only", each=lambda state: [1, 2, 3])(quick.node(body))
    quick.run(graph.chain(START, "only", END).compile())
    found = sorted((event.item, event.chunks) for event in quick.told("NodeStreamed"))
    assert found == [(0, [1, 10]), (1, [2, 20]), (2, [3, 30])]


def test_a_node_that_unwinds_leaves_what_it_streamed_until_then(quick: Stage) -> None:
    lives: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        lives.append(1)
        ctx.emit(f"life {len(lives)}")
        yield ctx.sleep(100)

    quick.run(quick.one(body))
    assert chunks(quick) == [["life 1"], ["life 2"]]
    assert quick.spilled() == {}


def test_what_a_chunk_holds_may_change_afterwards(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        part = {"words": ["once"]}
        ctx.emit(part)
        part["words"].append("spoiled")
        yield ctx.checkpoint(1)

    quick.run(quick.one(body))
    assert chunks(quick) == [[{"words": ["once"]}]]


def test_text_with_line_ends_of_every_kind_comes_back_whole(still: Stage) -> None:
    """Spills are lines: nothing in a chunk may break one."""
    words = ["a\nb", "c\r\nd", "e\u2028f", "g\x85h", "\x0b\x0c\x1c", "", "\u00e9\U0001f419", "\\n"]
    half = Halfway(*words)
    crash(still, half, spill=True)
    still.do(lambda engine: freely(half, engine), half.flow)
    assert chunks(still)[0] == words


# --- async generators ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("yielded", "streamed", "total"),
    [
        (["a", "b", {"total": 2}], ["a", "b"], 2),
        (["a", "b"], ["a", "b"], 0),
        ([{"total": 2}], [], 2),
        ([{"x": 1}, "a", {"total": 2}], [{"x": 1}, "a"], 2),
        ([{"x": 1}, {"total": 2}], [{"x": 1}], 2),
        (["a", Work(total=5)], ["a"], 5),
        ([], [], 0),
        (["a", None], ["a", None], 0),
    ],
    ids=["words", "no result", "only a result", "a dict before", "two dicts", "a state", "nothing", "none"],
)
def test_an_async_generator_streams_and_the_last_thing_is_its_result(
    quick: Stage, yielded: list[Any], streamed: list[Any], total: int
) -> None:
    async def node(state: Work) -> AsyncIterator[Any]:
        for value in yielded:
            yield value

    run = quick.run(streaming(node))
    assert (run.state.total, chunks(quick)) == (total, [streamed] if streamed else [])


def test_an_async_generator_has_a_context_and_its_steps(quick: Stage) -> None:
    calls: list[int] = []

    async def node(state: Work, ctx: hf.Context) -> AsyncIterator[Any]:
        found = await ctx.step("model", lambda: calls.append(1) or "answer")
        yield found
        if ctx.attempt == 1:
            raise hf.Recoverable("once")
        yield {"log": [found]}

    run = quick.run(streaming(node, retry=NOW))
    assert (run.state.log, calls) == (["answer"], [1])
    assert chunks(quick) == [["answer"], ["answer"]]


def test_an_async_generator_that_raises_leaves_what_it_streamed(quick: Stage) -> None:
    async def node(state: Work) -> AsyncIterator[Any]:
        yield "half "
        raise ValueError("way")

    failed = quick.fails(streaming(node))
    assert (failed.error.type, chunks(quick), failed.nodes["only"].chunks) == ("ValueError", [["half "]], 1)


# --- followers ----------------------------------------------------------------------------------------


def test_a_follower_sees_each_chunk_at_once(still: Stage) -> None:
    """Before anything of it is spilled, let alone in the log."""
    half = Halfway()

    async def use(engine: hf.Engine) -> list[Any]:
        half.open()
        await engine.start(half.flow, run_id="r")
        seen: list[Any] = []

        async def listen() -> None:
            async for told in engine.follow("r", chunks=True):
                seen.append(told)  # noqa: PERF401 - looked at while it grows

        listening = asyncio.create_task(listen())
        run = asyncio.create_task(engine.resume("r"))
        await until(lambda: any(isinstance(told, Chunk) for told in seen))
        await turns(3)
        early = [told.value for told in seen if isinstance(told, Chunk)]
        assert early == ["once ", "upon "]
        assert still.spilled() == {}
        assert "NodeStreamed" not in still.kinds()
        half.go.set()
        await run
        await listening
        return seen

    seen = still.do(use, half.flow)
    found = [told for told in seen if isinstance(told, Chunk)]
    assert [(told.node, told.attempt, told.number, told.value) for told in found] == [
        ("only", 1, 1, "once "),
        ("only", 1, 2, "upon "),
        ("only", 1, 3, "a time"),
    ]
    events = [told for told in seen if not isinstance(told, Chunk)]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


def test_a_follower_who_did_not_ask_for_chunks_gets_none(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        ctx.emit("x")
        yield ctx.checkpoint(1)

    flow = quick.one(body)

    async def use(engine: hf.Engine) -> list[str]:
        await engine.start(flow, run_id="r")
        run = asyncio.create_task(engine.resume("r"))
        kinds = [event.kind async for event in engine.follow("r")]
        await run
        return kinds

    assert quick.do(use, flow) == quick.kinds()


def test_a_follower_in_another_engine_sees_what_is_spilled(still: Stage) -> None:
    half = Halfway()

    async def use(engine: hf.Engine) -> list[Any]:
        half.open()
        run = asyncio.create_task(engine.run(half.flow, run_id="r"))
        await half.there.wait()
        seen: list[Any] = []
        async with still.engine() as other:

            async def listen() -> None:
                async for told in other.follow("r", chunks=True):
                    seen.extend([told.value] if isinstance(told, Chunk) else [])

            listening = asyncio.create_task(listen())
            await turns(10)
            assert seen == []
            still.clock.advance(1)
            await turns(10)
            still.clock.advance(0.2)
            await until(lambda: len(seen) == 2)
            half.go.set()
            await run
            while not listening.done():
                still.clock.advance(0.2)
                await turns(10)
        return seen

    assert still.do(use, half.flow)[:2] == ["once ", "upon "]


# --- spills -------------------------------------------------------------------------------------------


def test_chunks_are_spilled_every_second_and_gone_at_the_end(still: Stage) -> None:
    half = Halfway()

    async def use(engine: hf.Engine) -> Run[Any]:
        half.open()
        run = asyncio.create_task(engine.run(half.flow, run_id="r"))
        await half.there.wait()
        assert still.spilled() == {}
        still.clock.advance(0.9)
        assert still.spilled() == {}
        still.clock.advance(0.1)
        (data,) = still.spilled().values()
        assert data == b'"once "\n"upon "\n'
        half.go.set()
        return await run

    assert still.do(use, half.flow).status == "completed"
    assert still.spilled() == {}
    assert chunks(still) == [["once ", "upon ", "a time"]]


def test_chunks_are_spilled_at_64_kb_without_waiting(still: Stage) -> None:
    half = Halfway("x" * 40_000, "y" * 40_000, "z" * 10)

    async def use(engine: hf.Engine) -> None:
        half.open()
        run = asyncio.create_task(engine.run(half.flow, run_id="r"))
        await half.there.wait()
        assert still.clock.now() == STARTS_AT
        (data,) = still.spilled().values()
        assert len(data.splitlines()) == 2
        still.clock.advance(1)
        (data,) = still.spilled().values()
        assert len(data.splitlines()) == 3
        half.go.set()
        await run

    still.do(use, half.flow)
    assert still.spilled() == {}


def crash(stage: Stage, half: Halfway, *, spill: bool) -> None:
    """The process dies in the middle of the stream; `spill`: more than a second after it began."""

    async def use(engine: hf.Engine) -> None:
        half.open()
        known = await engine.runs()
        run = asyncio.create_task(engine.resume("r") if known else engine.run(half.flow, run_id="r"))
        await half.there.wait()
        if spill:
            stage.clock.advance(1)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    stage.do(use, half.flow)


async def freely(half: Halfway, engine: hf.Engine, **named: Any) -> Run[Any]:
    half.open()
    half.go.set()
    run: Run[Any] = await engine.resume("r", **named)
    return run


def test_what_was_spilled_outlives_the_process_and_is_recorded_by_whoever_takes_the_run_up(
    still: Stage,
) -> None:
    half = Halfway()
    crash(still, half, spill=True)
    assert len(still.spilled()) == 1
    assert chunks(still) == []
    run = still.do(lambda engine: freely(half, engine), half.flow)
    assert [(event.attempt, event.chunks) for event in still.told("NodeStreamed")] == [
        (1, ["once ", "upon "]),
        (2, ["once ", "upon ", "a time"]),
    ]
    assert (run.status, still.spilled(), half.lives) == ("completed", {}, 2)
    assert still.problems() == []


def test_crash_after_crash_each_partial_stream_is_recorded_once(still: Stage) -> None:
    half = Halfway()
    for _ in range(2):
        crash(still, half, spill=True)
    still.do(lambda engine: freely(half, engine), half.flow)
    assert [event.attempt for event in still.told("NodeStreamed")] == [1, 2, 3]


def test_what_was_not_spilled_is_lost_with_the_process_and_nothing_else(still: Stage) -> None:
    half = Halfway()
    crash(still, half, spill=False)
    run = still.do(lambda engine: freely(half, engine), half.flow)
    assert (run.status, chunks(still)) == ("completed", [["once ", "upon ", "a time"]])


def test_what_a_woken_attempt_streamed_before_its_process_died_is_recorded_too(still: Stage) -> None:
    """It has the number of the attempt that unwound, whose stream is in the log already."""
    lives: list[int] = []
    gates: dict[str, asyncio.Event] = {}

    async def node(state: Work, ctx: hf.Context) -> None:
        lives.append(1)
        ctx.emit(f"life {len(lives)}")
        await ctx.sleep(100)
        if len(lives) == 2:
            gates["there"].set()
            await asyncio.get_running_loop().create_future()

    flow = streaming(node)

    async def use(engine: hf.Engine) -> None:
        gates["there"] = asyncio.Event()
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        while not gates["there"].is_set():
            await turns(20)
            still.clock.advance(5)
        still.clock.advance(1)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    still.do(use, flow, lease_ttl=1000.0)
    still.resume(flow)
    assert chunks(still) == [["life 1"], ["life 2"], ["life 3"]]
    assert still.spilled() == {}


def test_a_rewind_past_a_cut_stream_drops_its_spill(still: Stage) -> None:
    half = Halfway()
    crash(still, half, spill=True)
    still.do(lambda engine: freely(half, engine, checkpoint=1), half.flow)
    assert still.spilled() == {}
    assert chunks(still)[-1] == ["once ", "upon ", "a time"]


def test_a_cancelled_run_that_was_cut_leaves_no_spill(still: Stage) -> None:
    half = Halfway()
    crash(still, half, spill=True)
    still.do(lambda engine: engine.cancel("r"))
    assert (still.spilled(), chunks(still)) == ({}, [["once ", "upon "]])


def stopped(stage: Stage, half: Halfway, *, spill: bool = True) -> Run[Any]:
    """Stopped by its engine in the middle of the stream."""

    async def use(engine: hf.Engine) -> Run[Any]:
        half.open()
        run = asyncio.create_task(engine.run(half.flow, run_id="r"))
        await half.there.wait()
        if spill:
            stage.clock.advance(1)
        engine.stop("deploy")
        return await run

    run: Run[Any] = stage.do(use, half.flow, grace=0.0)
    return run


@pytest.mark.parametrize("spill", [True, False])
def test_an_engine_that_stops_records_what_was_streamed_until_then(still: Stage, spill: bool) -> None:
    half = Halfway()
    run = stopped(still, half, spill=spill)
    assert (run.status, chunks(still), still.spilled()) == ("interrupted", [["once ", "upon "]], {})
    kinds = still.kinds()
    assert kinds.index("NodeStreamed") < kinds.index("NodeInterrupted")
    still.do(lambda engine: freely(half, engine), half.flow)
    assert chunks(still) == [["once ", "upon "], ["once ", "upon ", "a time"]]


def test_a_run_that_is_cancelled_keeps_what_was_streamed(still: Stage) -> None:
    half = Halfway()

    async def use(engine: hf.Engine) -> None:
        half.open()
        run = asyncio.create_task(engine.run(half.flow, run_id="r"))
        await half.there.wait()
        await engine.cancel("r")
        await asyncio.gather(run, return_exceptions=True)

    still.do(use, half.flow)
    assert chunks(still) == [["once ", "upon "]]
    assert still.spilled() == {}


class Forgetful(MemoryBlobs):
    """The process dies before it removes what it has recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = False

    def unspill(self, run_id: str, keys: Iterable[str]) -> None:
        if self.alive:
            super().unspill(run_id, keys)


def test_a_stream_that_is_in_the_log_and_still_spilled_is_not_recorded_twice(tmp_path: Path) -> None:
    """Stopped in order; the process ended between the append and the removal of the spill."""
    stage = Stage("memory", tmp_path, still=True)
    blobs, half = Forgetful(), Halfway()
    stage.url = MemoryStore(clock=stage.clock.now, blobs=blobs)  # type: ignore[assignment]
    stage.store = stage.url  # type: ignore[assignment]
    stopped(stage, half)
    assert len(stage.spilled()) == 1
    blobs.alive = True
    stage.do(lambda engine: freely(half, engine), half.flow)
    assert chunks(stage) == [["once ", "upon "], ["once ", "upon ", "a time"]]
    assert stage.spilled() == {}


class Full(MemoryBlobs):
    """There is no space left for partial streams."""

    def spill(self, run_id: str, key: str, data: bytes) -> None:
        raise StoreFull("no space left on the device")


@pytest.mark.parametrize("inline", [True, False])
def test_a_full_disk_costs_the_partial_stream_and_nothing_else(tmp_path: Path, inline: bool) -> None:
    stage = Stage("memory", tmp_path, still=True)
    half = Halfway("x" * 70_000)
    stage.url = MemoryStore(clock=stage.clock.now, blobs=Full())  # type: ignore[assignment]
    stage.store = stage.url  # type: ignore[assignment]

    async def use(engine: hf.Engine) -> Run[Any]:
        half.open()
        half.go.set()
        return await engine.run(half.flow, run_id="r")

    run = stage.do(use, half.flow, inline=inline)
    assert (run.status, [len(part) for part in chunks(stage)[0]]) == ("completed", [70_000, 6])


class Slow(MemoryBlobs):
    """A spill takes as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()
        self.ended = threading.Event()
        self.dropped = threading.Event()

    def unspill(self, run_id: str, keys: Iterable[str]) -> None:
        super().unspill(run_id, keys)
        self.dropped.set()

    def spill(self, run_id: str, key: str, data: bytes) -> None:
        self.begun.set()
        self.go.wait(20)
        super().spill(run_id, key, data)
        self.ended.set()


def test_a_spill_that_is_slower_than_the_node_leaves_nothing_behind(tmp_path: Path) -> None:
    stage = Stage("memory", tmp_path, still=True)
    blobs, half = Slow(), Halfway("x" * 70_000)
    stage.url = MemoryStore(clock=stage.clock.now, blobs=blobs)  # type: ignore[assignment]
    stage.store = stage.url  # type: ignore[assignment]

    async def use(engine: hf.Engine) -> None:
        half.open()
        run = asyncio.create_task(engine.run(half.flow, run_id="r"))
        await half.there.wait()
        await until(blobs.begun.is_set)
        half.go.set()
        await run
        for _ in range(20):  # whatever would be dropped by now has had its chance
            await asyncio.to_thread(int)
        blobs.go.set()
        await until(blobs.ended.is_set)
        await until(blobs.dropped.is_set)

    stage.do(use, half.flow, inline=False)
    assert stage.spilled() == {}


def test_a_spill_that_is_slower_than_a_second_is_followed_by_the_next(tmp_path: Path) -> None:
    """What came meanwhile is spilled as well, also if nothing more is streamed."""
    stage = Stage("memory", tmp_path, still=True)
    blobs = Slow()
    stage.url = MemoryStore(clock=stage.clock.now, blobs=blobs)  # type: ignore[assignment]
    stage.store = stage.url  # type: ignore[assignment]
    gates: dict[str, asyncio.Event] = {}

    async def node(state: Work, ctx: hf.Context) -> None:
        ctx.emit("x" * 70_000)
        await until(blobs.begun.is_set)
        ctx.emit("meanwhile")
        gates["there"].set()
        await gates["go"].wait()

    flow = streaming(node)

    async def use(engine: hf.Engine) -> None:
        gates.update({"there": asyncio.Event(), "go": asyncio.Event()})
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await gates["there"].wait()
        stage.clock.advance(1)  # the second spill is due while the first is under way
        blobs.go.set()
        await until(blobs.ended.is_set)
        await turns(100)
        stage.clock.advance(1)
        await until(lambda: b"meanwhile" in b"".join(stage.spilled().values()))
        gates["go"].set()
        await run

    stage.do(use, flow, inline=False, grace=0.0)


# --- what is no chunk ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chunk", ["x" * 1_000_001, b"x" * 1_000_001, ["x" * 600_000] * 2], ids=["text", "bytes", "list"]
)
def test_a_chunk_that_is_too_large_is_refused_with_the_way_out(stage: Stage, chunk: Any) -> None:
    def body(state: Work, ctx: Any) -> Any:
        ctx.emit("before")
        ctx.emit(chunk)
        yield ctx.checkpoint(1)

    error = stage.fails(stage.one(body)).error
    assert error.type == "ContextError"
    assert all(part in error.message for part in ("'only'", "1,", "smaller")), error.message
    assert len(error.message) < 1000
    assert chunks(stage) == [["before"]]


@pytest.mark.parametrize(
    "chunk", [object(), float("nan"), {1: 2}, "a\0b"], ids=["object", "nan", "key", "nul"]
)
def test_a_chunk_that_cannot_be_kept_is_refused(stage: Stage, chunk: Any) -> None:
    def body(state: Work, ctx: Any) -> Any:
        ctx.emit(chunk)
        yield ctx.checkpoint(1)

    error = stage.fails(stage.one(body)).error
    assert (error.type, "'only'" in error.message, "chunk" in error.message) == ("CodecError", True, True)


def test_a_stream_that_is_large_as_a_whole_becomes_a_blob(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        for number in range(50):
            ctx.emit(f"{number}" * 1000)
        yield ctx.checkpoint(1)

    quick.run(quick.one(body), blob_over=10_000)
    assert [len(part) for part in chunks(quick)[0]] == [1000] * 10 + [2000] * 40
    assert list(quick.store.blobs.digests()) != []
    assert quick.problems() == []
