"""Chunks of steps: durable with the step that streamed them, and named after it; and where a follower continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import Stage, Work, turns

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.reading.chunks import Chunk
from holdfast.reading.following import Cursor, InOrder
from holdfast.reading.views import EventView

WORDS = [f"word {number}" for number in range(12)]


@pytest.fixture(
    params=[(kind, colour) for kind in ("memory", "sqlite") for colour in ("async", "def")], ids="-".join
)
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(request.param[0], tmp_path, request.param[1], still=True)
    yield found
    found.close()


@pytest.fixture(params=["memory", "sqlite"])
def still(request: Any, tmp_path: Path) -> Iterator[Stage]:
    """A clock that the test moves."""
    found = Stage(request.param, tmp_path, still=True)
    yield found
    found.close()


def one(fn: Any, **options: Any) -> Flow[Any]:
    graph = Graph("stream", Work)
    graph.node(name="only", **options)(fn)
    return graph.chain(START, "only", END).compile()


def recorded(stage: Stage) -> list[list[Any]]:
    return [event.chunks for event in stage.told("NodeStreamed")]


def follow(stage: Stage, **named: Any) -> list[Any]:
    """Everything a follower of the run `r` gets that comes when the run has stopped."""

    async def use(engine: hf.Engine) -> list[Any]:
        return [news async for news in engine.follow("r", chunks=True, **named)]

    found: list[Any] = stage.do(use)
    return found


def chunks_in(news: list[Any]) -> list[Chunk]:
    return [one for one in news if isinstance(one, Chunk)]


# --- durable with the step ----------------------------------------------------------------------------


def speaking(ctx: Any, words: list[str], result: str = "spoken") -> Any:
    def speak() -> str:
        for word in words:
            ctx.emit(word)
        return result

    return speak


def test_the_chunks_of_a_kept_step_are_durable_with_it(stage: Stage) -> None:
    """The process dies right after the step was kept, before anything was spilled."""

    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step("speak", speaking(ctx, WORDS))
        if ctx.attempt == 1:
            yield stage.dies(ctx)
        return {"total": 1}

    flow = stage.one(body)
    stage.crash(flow)
    assert recorded(stage) == [WORDS]
    assert stage.spilled() == {}
    run = stage.resume(flow)
    assert (run.status, recorded(stage)) == ("completed", [WORDS])
    assert [chunk.value for chunk in chunks_in(follow(stage))] == WORDS
    kinds = stage.kinds()
    assert kinds.index("NodeStreamed") == kinds.index("StepCompleted") - 1
    assert stage.problems() == []


def test_chunks_of_a_step_and_those_around_it_keep_their_order(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        ctx.emit("before")
        yield ctx.step("speak", speaking(ctx, ["a", "b"]))
        ctx.emit("after")
        return {"total": 1}

    stage.run(stage.one(body))
    assert recorded(stage) == [["before", "a", "b"], ["after"]]
    assert named(chunks_in(follow(stage))) == [
        (1, "before", None, None),
        (2, "a", "speak", 1),
        (3, "b", "speak", 1),
        (4, "after", None, None),
    ]


def test_a_step_that_streams_nothing_leaves_the_stream_alone(stage: Stage) -> None:
    """One entry at the end of the attempt, as ever, and nothing in it about steps."""

    def body(state: Work, ctx: Any) -> Any:
        for word in WORDS[:3]:
            ctx.emit(word)
            yield ctx.step(word, lambda: "kept")
        return {"total": 1}

    stage.run(stage.one(body))
    (event,) = stage.told("NodeStreamed")
    assert (event.chunks, event.spans) == (WORDS[:3], [])
    (row,) = stage.store.events("r", kinds=("NodeStreamed",))
    assert row.body == b'{"chunks":["word 0","word 1","word 2"]}'


def test_each_item_records_the_chunks_of_its_own_steps(still: Stage) -> None:
    async def page(item: int, ctx: hf.Context) -> dict[str, Any]:
        await ctx.step("speak", speaking(ctx, [f"page {item}"]))
        return {"log": [item]}

    still.run(one(page, each=lambda state: [1, 2, 3]))
    found = sorted((chunk.item, chunk.value, chunk.step) for chunk in chunks_in(follow(still)))
    assert found == [(0, "page 1", "speak"), (1, "page 2", "speak"), (2, "page 3", "speak")]


def test_parallel_steps_have_chunks_of_their_own(still: Stage) -> None:
    async def speak(ctx: hf.Context, word: str) -> str:
        for number in range(3):
            ctx.emit(f"{word} {number}")
            await asyncio.sleep(0)
        return word

    async def node(state: Work, ctx: hf.Context) -> dict[str, Any]:
        return {"log": await ctx.map("speak", lambda word: speak(ctx, word), ["a", "b"])}

    still.run(one(node))
    found = chunks_in(follow(still))
    assert [chunk.number for chunk in found] == [1, 2, 3, 4, 5, 6]
    for number, word in enumerate("ab"):
        own = [chunk for chunk in found if chunk.value.startswith(word)]
        assert [chunk.value for chunk in own] == [f"{word} {part}" for part in range(3)]
        assert len({chunk.step for chunk in own}) == 1
        assert (own[0].step or "").startswith(f"speak[{number}]")


def test_tasks_and_threads_that_a_step_starts_stream_for_the_step(still: Stage) -> None:
    async def speak(ctx: hf.Context) -> None:
        await asyncio.gather(asyncio.to_thread(ctx.emit, "thread"), asyncio.create_task(say(ctx)))

    async def say(ctx: hf.Context) -> None:
        ctx.emit("task")

    async def node(state: Work, ctx: hf.Context) -> None:
        await ctx.step("speak", speak, ctx)

    still.run(one(node), inline=False)
    assert {(chunk.value, chunk.step) for chunk in chunks_in(follow(still))} == {
        ("thread", "speak"),
        ("task", "speak"),
    }


def test_a_run_that_a_step_starts_has_steps_of_its_own(still: Stage) -> None:
    async def inner(state: Work, ctx: hf.Context) -> None:
        ctx.emit("inner")

    within = one(inner)

    async def node(state: Work, ctx: hf.Context) -> None:
        async def nested() -> None:
            async with hf.Engine("memory://") as engine:
                await engine.run(within, run_id="inner")
                (event,) = await engine.events("inner", kind="NodeStreamed")
                assert "spans" not in event.body

        await ctx.step("nested", nested)

    assert still.run(one(node)).status == "completed"


# --- the try that counted -----------------------------------------------------------------------------


def named(chunks: list[Chunk]) -> list[tuple[Any, ...]]:
    return [(chunk.number, chunk.value, chunk.step, chunk.step_try) for chunk in chunks]


def test_chunks_of_an_interrupted_try_differ_from_those_of_the_try_that_counted(still: Stage) -> None:
    lives: list[int] = []

    async def node(state: Work, ctx: hf.Context) -> dict[str, Any]:
        async def draft() -> str:
            lives.append(1)
            ctx.emit(f"life {len(lives)}")
            if len(lives) == 1:
                still.clock.advance(1)  # spilled
                await still.dies(ctx)
            return "drafted"

        return {"log": [await ctx.step("draft", draft, key="intro")]}

    flow = one(node)
    still.crash(flow)
    still.resume(flow)
    news = follow(still)
    assert [(chunk.attempt, chunk.step, chunk.value) for chunk in chunks_in(news)] == [
        (1, "draft:intro", "life 1"),
        (2, "draft:intro", "life 2"),
    ]
    (kept,) = [event for event in news if not isinstance(event, Chunk) and event.kind == "StepCompleted"]
    assert (kept.attempt, kept.body["step"]) == (2, "draft:intro")
    assert still.spilled() == {}


def test_a_step_that_is_called_again_after_it_raised_counts_its_tries(still: Stage) -> None:
    async def node(state: Work, ctx: hf.Context) -> None:
        def speak(number: int) -> str:
            ctx.emit(f"try {number}")
            if number == 1:
                raise ValueError("not yet")
            return "spoken"

        with suppress(ValueError):
            await ctx.step("speak", speak, 1)
        await ctx.step("speak", speak, 2)

    still.run(one(node))
    assert named(chunks_in(follow(still))) == [(1, "try 1", "speak", 1), (2, "try 2", "speak", 2)]
    assert recorded(still) == [["try 1", "try 2"]]


def test_every_spill_of_a_stream_is_recorded_after_a_crash(still: Stage) -> None:
    """The process dies after a kept step whose spill it could not delete, in the middle of the next one."""

    async def node(state: Work, ctx: hf.Context) -> dict[str, Any]:
        await ctx.step("first", speaking(ctx, ["a", "b"]))
        if ctx.attempt == 1:
            ctx.emit("outside")

            async def second() -> None:
                ctx.emit("c")
                still.clock.advance(1)
                await still.dies(ctx)

            await ctx.step("second", second)
        return {"total": 1}

    flow = one(node)
    still.crash(flow)
    (key,) = still.spilled()
    assert key == '["only",1,1,1,null,3]'
    still.store.blobs.spill("r", '["only",1,1,1,null]', b'>["first",1]\n"a"\n')
    still.resume(flow)
    assert recorded(still) == [["a", "b"], ["outside", "c"]]
    assert named(chunks_in(follow(still))) == [
        (1, "a", "first", 1),
        (2, "b", "first", 1),
        (3, "outside", None, None),
        (4, "c", "second", 1),
    ]
    assert still.spilled() == {}
    assert still.problems() == []


def test_spills_that_were_never_recorded_are_recorded_in_order(still: Stage) -> None:
    """With durability="exit", a process may die when several segments are spilled, and none is saved."""

    async def node(state: Work, ctx: hf.Context) -> None:
        if ctx.attempt == 1:
            await still.dies(ctx)

    flow = one(node)
    still.crash(flow)
    still.store.blobs.spill("r", '["only",1,1,1,null]', b'"a"\n"b"\n')
    still.store.blobs.spill("r", '["only",1,1,1,null,3]', b'>["speak",1]\n"c"\n')
    still.store.blobs.spill("r", '["only",1,1,1,null,10]', b'"d"\n')
    still.resume(flow)
    assert recorded(still) == [["a", "b"], ["c"], ["d"]]
    assert [chunk.step for chunk in chunks_in(follow(still))] == [None, None, "speak", None]


# --- a value that an async generator has yielded last -----------------------------------------------


def test_a_dict_that_was_yielded_before_a_crash_is_not_lost(still: Stage) -> None:
    """It might have been the result; now it can only be a chunk."""

    async def node(state: Work, ctx: hf.Context) -> AsyncIterator[Any]:
        yield "once"
        yield {"found": 1}
        if ctx.attempt == 1:
            still.clock.advance(1)
            await still.dies(ctx)
        yield {"total": 2}

    flow = one(node)
    still.crash(flow)
    assert list(still.spilled().values()) == [b'"once"\n?{"found":1}\n']
    run = still.resume(flow)
    assert (run.state.total, recorded(still)) == (2, [["once", {"found": 1}], ["once", {"found": 1}]])


def test_a_dict_that_was_yielded_before_a_kept_step_and_a_crash_is_not_lost(still: Stage) -> None:
    async def node(state: Work, ctx: hf.Context) -> AsyncIterator[Any]:
        yield {"total": 2}
        if ctx.attempt == 1:
            await ctx.step("speak", speaking(ctx, ["spoken"]))
            still.clock.advance(1)
            await still.dies(ctx)

    flow = one(node)
    still.crash(flow)
    still.resume(flow)
    assert recorded(still) == [["spoken"], [{"total": 2}]]


@pytest.mark.parametrize("later", ["nothing", "a chunk", "a step that streams", "a crash"])
def test_a_dict_that_was_yielded_last_is_the_result_whatever_was_spilled(still: Stage, later: str) -> None:
    async def node(state: Work, ctx: hf.Context) -> AsyncIterator[Any]:
        yield {"total": 2}
        still.clock.advance(1)
        if later == "a chunk":
            ctx.emit("bye")
        elif later == "a step that streams":
            await ctx.step("speak", speaking(ctx, ["bye"]))
            still.clock.advance(1)
        elif later == "a crash" and ctx.attempt == 1:
            await still.dies(ctx)

    flow = one(node)
    if later == "a crash":
        still.crash(flow)
        run = still.resume(flow)
    else:
        run = still.run(flow)
    expected = {"nothing": [], "a crash": [[{"total": 2}]]}.get(later, [["bye"]])
    assert (run.state.total, recorded(still), still.spilled()) == (2, expected, {})


def test_a_dict_that_turns_out_to_be_a_chunk_keeps_its_place_in_the_spill(still: Stage) -> None:
    async def node(state: Work, ctx: hf.Context) -> AsyncIterator[Any]:
        yield {"found": 1}
        still.clock.advance(1)
        ctx.emit("meanwhile")
        yield "next"
        still.clock.advance(1)
        if ctx.attempt == 1:
            await still.dies(ctx)

    flow = one(node)
    still.crash(flow)
    still.resume(flow)
    assert recorded(still) == [["meanwhile", {"found": 1}, "next"]] * 2


def test_a_generator_that_raises_after_a_dict_leaves_it_in_the_stream(still: Stage) -> None:
    async def node(state: Work) -> AsyncIterator[Any]:
        yield {"found": 1}
        raise ValueError("way")

    assert (still.fails(one(node)).error.type, recorded(still)) == ("ValueError", [[{"found": 1}]])


def test_a_result_that_would_be_too_large_for_a_chunk_is_a_result(still: Stage) -> None:
    async def node(state: Work) -> AsyncIterator[Any]:
        yield "once"
        yield {"plain": "x" * 1_000_001}

    assert len(still.run(one(node)).state.plain) == 1_000_001


# --- attempts that are woken ------------------------------------------------------------------------


@pytest.mark.parametrize("lives", ["in one call", "in one engine", "in two engines"])
def test_a_follower_sees_what_a_woken_attempt_streams(tmp_path: Path, lives: str) -> None:
    """It runs again from its top as the same attempt, and its chunks are counted on."""
    stage = Stage("sqlite", tmp_path)
    called: list[int] = []

    async def node(state: Work, ctx: hf.Context) -> None:
        called.append(1)
        ctx.emit(f"life {len(called)}")
        await (ctx.sleep(3) if lives == "in one call" else ctx.wait_for("go"))
        ctx.emit("gone")

    flow = one(node)

    async def begin(engine: hf.Engine) -> None:
        await (engine.start if lives == "in one call" else engine.run)(flow, run_id="r")

    async def end(engine: hf.Engine) -> list[Any]:
        seen: list[Any] = []

        async def listen() -> None:
            async for news in engine.follow("r", chunks=True):
                seen.append(news)  # noqa: PERF401 - looked at while it grows

        if lives != "in one call":
            await engine.signal("r", "go")
        listening = asyncio.create_task(listen())
        await asyncio.sleep(0)
        await engine.resume("r")
        await listening
        return seen

    async def both(engine: hf.Engine) -> list[Any]:
        await begin(engine)
        return await end(engine)

    if lives == "in two engines":
        stage.do(begin, flow, park_after=1.0)
    seen = chunks_in(stage.do(end if lives == "in two engines" else both, flow, park_after=1.0))
    assert [(chunk.number, chunk.value) for chunk in seen] == [(1, "life 1"), (2, "life 2"), (3, "gone")]
    assert {chunk.attempt for chunk in seen} == {1}
    assert named(seen) == named(chunks_in(follow(stage)))
    stage.close()


# --- the cursor -------------------------------------------------------------------------------------


def talkative() -> Flow[Any]:
    """Two nodes that stream at the same time, in steps and outside of them."""
    graph = Graph("talk", Work)

    @graph.node
    async def left(state: Work, ctx: hf.Context) -> dict[str, Any]:
        ctx.emit("l1")
        await ctx.step("speak", speaking(ctx, ["l2", "l3"]))
        ctx.emit("l4")
        await ctx.step("silent", lambda: None)
        ctx.emit("l5")
        return {"log": ["left"]}

    @graph.node
    async def right(state: Work, ctx: hf.Context) -> AsyncIterator[Any]:
        for word in ("r1", "r2", "r3"):
            yield word
            await ctx.step(word, lambda: None)
        yield {"log": ["right"]}

    return graph.chain(START, "left", END).chain(START, "right", END).compile()


def key(news: Any) -> tuple[Any, ...]:
    return (*news.streamer, news.number, news.value) if isinstance(news, Chunk) else (news.seq, news.kind)


@pytest.mark.parametrize("where", ["the same engine", "another engine", "the log"])
def test_a_follower_continues_where_another_one_left_off(tmp_path: Path, where: str) -> None:
    """It is replaced after every single thing that it gets."""
    stage = Stage("sqlite", tmp_path)
    flow = talkative()

    async def use(engine: hf.Engine) -> tuple[list[Any], list[Any]]:
        await engine.start(flow, run_id="r")
        whole: list[Any] = []
        parts: list[Any] = []

        async def listen() -> None:
            async for news in engine.follow("r", chunks=True):
                whole.append(key(news))  # noqa: PERF401 - as a follower does

        async def relay(followed: hf.Engine) -> None:
            cursor: int | str = 0
            while True:
                following = followed.follow("r", cursor, chunks=True)
                try:
                    parts.append(key(await anext(following)))
                except StopAsyncIteration:
                    return
                cursor = following.cursor
                await following.aclose()

        listening = asyncio.create_task(listen())
        async with stage.engine() as other:
            relaying = asyncio.create_task(relay(other if where == "another engine" else engine))
            if where == "the log":
                relaying.cancel()
            await asyncio.sleep(0)
            await engine.resume("r")
            if where == "the log":
                relaying = asyncio.create_task(relay(engine))
            await relaying
        await listening
        return whole, parts

    whole, parts = stage.do(use, flow)
    assert len(parts) == len(set(parts)), "something came twice"
    assert sorted(map(repr, parts)) == sorted(map(repr, whole)), "something is missing"
    for speaker in ("left", "right"):
        own = [news for news in parts if news[0] == speaker]
        assert [news[-2] for news in own] == list(range(1, len(own) + 1))
    assert len([news for news in parts if news[0] in ("left", "right")]) == 8
    stage.close()


def test_a_follower_that_comes_late_gets_what_was_streamed_before(still: Stage) -> None:
    """In the engine that executes the run, where nothing may be spilled yet."""
    gates: dict[str, asyncio.Event] = {}

    async def node(state: Work, ctx: hf.Context) -> None:
        await ctx.step("speak", speaking(ctx, ["a", "b"]))
        ctx.emit("c")
        gates["there"].set()
        await gates["go"].wait()
        ctx.emit("d")

    flow = one(node)

    async def use(engine: hf.Engine) -> list[Any]:
        gates.update({"there": asyncio.Event(), "go": asyncio.Event()})
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await gates["there"].wait()
        seen: list[Any] = []
        following = engine.follow("r", chunks=True)
        async for news in following:
            seen.append(news)
            if isinstance(news, Chunk) and news.value == "c":
                break
        cursor = following.cursor
        await following.aclose()
        since = engine.follow(
            "r", after=len(still.kinds()), chunks=True
        )  # a number of an event does not say which chunks
        assert (await anext(since)).value == "c"
        await since.aclose()
        gates["go"].set()
        later = [news async for news in engine.follow("r", cursor, chunks=True)]
        await run
        return [chunk.value for chunk in chunks_in(seen)], [chunk.value for chunk in chunks_in(later)]

    assert still.do(use, flow) == (["a", "b", "c"], ["d"])


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_late_follower_sees_chunks_that_are_recorded_and_not_saved(still: Stage, durability: Any) -> None:
    gates: dict[str, asyncio.Event] = {}

    async def node(state: Work, ctx: hf.Context) -> None:
        await ctx.step("speak", speaking(ctx, ["a", "b"]))
        ctx.emit("c")
        gates["there"].set()
        await gates["go"].wait()

    flow = one(node)

    async def use(engine: hf.Engine) -> list[Any]:
        gates.update({"there": asyncio.Event(), "go": asyncio.Event()})
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await gates["there"].wait()
        seen: list[Any] = []

        async def listen() -> None:
            async for news in engine.follow("r", chunks=True):
                seen.extend([news.value] if isinstance(news, Chunk) else [])

        listening = asyncio.create_task(listen())
        while len(seen) < 3:
            await turns(5)
            still.clock.advance(0.2)
        gates["go"].set()
        await run
        await listening
        return seen

    assert still.do(use, flow, durability=durability) == ["a", "b", "c"]
    assert recorded(still) == [["a", "b"], ["c"]]
    assert still.spilled() == {}


@pytest.mark.parametrize("after", ["x", "-1", -1, "3.!", "3.e30", "", "1.5", "³", "9" * 20, "9" * 5000])
def test_what_is_not_a_cursor_is_refused(still: Stage, after: Any) -> None:
    async def use(engine: hf.Engine) -> None:
        with pytest.raises(hf.SettingError, match="give the number of an event, or the cursor"):
            engine.follow("r", after, chunks=True)

    still.do(use)


def test_the_cursor_of_a_follower_of_events_is_the_number_of_an_event(still: Stage) -> None:
    still.run(talkative())

    async def use(engine: hf.Engine) -> str:
        following = engine.follow("r")
        async for _ in following:
            pass
        return following.cursor

    assert still.do(use) == str(len(still.kinds()))


# --- what arrives early -----------------------------------------------------------------------------


def piece(number: int, **named: Any) -> Chunk:
    where: dict[str, Any] = {
        "run_id": "r",
        "node": "a",
        "iteration": 1,
        "execution": 1,
        "attempt": 1,
        "item": None,
    }
    return Chunk(**{**where, **named}, number=number, value=number)


def event_of(kind: str, seq: int, **body: Any) -> EventView:
    return EventView(
        seq=seq, at=0.0, kind=kind, node="a", iteration=1, execution=1, attempt=1, by=None, body=body
    )


def test_a_chunk_waits_for_an_earlier_one_that_is_on_its_way_into_the_log() -> None:
    """Another process has recorded a part of its stream and spilled the next; the spill is read first."""
    follower = InOrder("r", Cursor())
    follower.before(event_of("NodeStarted", 2))
    follower.take([piece(1), piece(4), piece(3)])
    assert [chunk.number for chunk in follower.rest(0.0, over=False)] == [1]
    come = follower.before(event_of("NodeStreamed", 3, chunks=[1, 2]))
    assert [chunk.number for chunk in come] == [2, 3, 4]
    assert follower.rest(9.9, over=True) == []


def test_a_chunk_whose_earlier_one_is_lost_comes_when_the_run_is_over() -> None:
    follower = InOrder("r", Cursor())
    follower.take([piece(1), piece(3)])
    assert [chunk.number for chunk in follower.rest(0.0, over=True)] == [1, 3]


def test_a_cursor_is_a_short_text_without_what_the_log_holds() -> None:
    cursor, recorded_so_far = Cursor(), {}
    for news in (event_of("NodeStarted", 2), piece(1), piece(2), piece(1, item=0)):
        cursor.move(news, recorded_so_far)
    read = Cursor.parse(str(cursor))
    assert (read.seq, read.chunks) == (2, {piece(1).streamer: 2, piece(1, item=0).streamer: 1})
    assert str(cursor).replace(".", "").replace("-", "").replace("_", "").isalnum()
    recorded_so_far[piece(1).streamer] = 1  # the second one is not recorded yet
    cursor.move(event_of("NodeStreamed", 3, chunks=[1]), recorded_so_far)
    assert cursor.chunks[piece(1).streamer] == 2
    recorded_so_far[piece(1).streamer] = 2
    cursor.move(event_of("NodeStreamed", 4, chunks=[2]), recorded_so_far)
    assert cursor.chunks == {piece(1, item=0).streamer: 1}
    cursor.move(
        msgspec.structs.replace(event_of("NodeStarted", 5), iteration=2), recorded_so_far
    )  # its last chunk was lost
    assert str(cursor) == "5"
