"""Followers share one look at the store: what they get, and how seldom the store is asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from harness import PATIENCE_S

import holdfast as hf
from holdfast.reading.chunks import Chunk, GrowingSpills, Streamer, spill_key, step_line
from holdfast.runtime import followers
from holdfast.runtime.followers import PAGE, POLL_S
from holdfast.storage.blobs import Piece
from holdfast.storage.leases import Holder
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.appends import Log
from holdfast.testing.clock import ManualClock

OTHER = Holder(id="other", ttl_s=1e9)
STREAM = Streamer("node", 1, 1, 1, None)


class WatchedStore(MemoryStore):
    """A store that counts how it is asked, and a process that is simulated: it appends to runs that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.rows_read = 0
        self.logs: dict[str, Log] = {}
        look, events, run, spilled = self.feed.look, self.events, self.run, self.blobs.spilled_after
        self.spilled_bytes = 0

        def counted_look(after: Any, limit: int) -> Any:
            self.asked["look"] += 1
            found = look(after, limit)
            self.rows_read += sum(len(tail.rows) for tail in found.values())
            assert all(len(tail.rows) <= PAGE for tail in found.values())
            return found

        def counted_events(*args: Any, **options: Any) -> Any:
            self.asked["events"] += 1
            found = events(*args, **options)
            assert len(found) <= PAGE
            self.rows_read += len(found)
            return found

        def counted_run(run_id: str) -> Any:
            self.asked["run"] += 1
            return run(run_id)

        def counted_spills(marks: Any) -> Any:
            self.asked["spills"] += 1
            found = spilled(marks)
            self.spilled_bytes += sum(len(piece.data) for each in found.values() for piece in each.values())
            return found

        self.feed.look, self.events, self.run = counted_look, counted_events, counted_run  # type: ignore[method-assign]
        self.blobs.spilled_after = counted_spills  # type: ignore[method-assign]
        self.renew(OTHER)

    def create(self, run_id: str, events: int = 1) -> None:
        log = self.logs[run_id] = Log(run_id, holder=OTHER.id, fence=1)
        self._write(log.create(*[b"{}"] * events, kind="NodeStarted"))

    def move(
        self, run_id: str, events: int = 1, *, kind: str = "NodeStarted", status: str = "running"
    ) -> None:
        body = b'{"chunks":[1]}' if kind == "NodeStreamed" else b"{}"
        self._write(self.logs[run_id].next(*[body] * events, kind=kind, status=status))

    def _write(self, append: Any) -> None:
        assert self.append([append]) == [None]
        self.logs[append.run_id].wrote(append)


class Reader:
    """A follower in a task of its own, and what it has got."""

    def __init__(self, engine: hf.Engine, run_id: str, after: int | str = 0, **options: Any) -> None:
        self.following = engine.follow(run_id, after, **options)
        self.got: list[Any] = []
        self.task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for news in self.following:
            self.got.append(news)

    @property
    def seqs(self) -> list[int]:
        return [news.seq for news in self.got if not isinstance(news, Chunk)]

    @property
    def values(self) -> list[Any]:
        return [news.value for news in self.got if isinstance(news, Chunk)]


class Scene:
    def __init__(self, engine: hf.Engine, store: WatchedStore, clock: ManualClock) -> None:
        self.engine, self.store, self.clock = engine, store, clock
        self.readers: list[Reader] = []

    def follow(self, run_id: str, after: int | str = 0, **options: Any) -> Reader:
        self.readers.append(Reader(self.engine, run_id, after, **options))
        return self.readers[-1]

    async def turn(self) -> None:
        """Let everything happen that can happen at this time."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def tick(self, times: int = 1) -> None:
        for _ in range(times):
            await self.turn()
            self.clock.advance(POLL_S)
            await self.turn()


def played(scene: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        clock, store = ManualClock(), WatchedStore()
        async with hf.Engine(store, clock=clock, inline=True) as engine:
            it = Scene(engine, store, clock)
            await asyncio.wait_for(scene(it), PATIENCE_S)
            for reader in it.readers:
                reader.task.cancel()
            await asyncio.gather(*(reader.task for reader in it.readers), return_exceptions=True)

    asyncio.run(main())


def test_one_look_serves_all_followers_of_all_runs() -> None:
    async def scene(it: Scene) -> None:
        for number in range(100):
            it.store.create(f"r{number}")
        readers = [it.follow(f"r{number % 100}", after=1, chunks=number % 2 == 0) for number in range(200)]
        await it.tick()
        it.store.asked.clear()
        it.store.rows_read = 0
        for number in range(100):
            it.store.move(f"r{number}", 2)
        await it.tick(10)
        assert it.store.asked["look"] <= 11
        assert it.store.asked["spills"] <= 11
        assert it.store.asked["run"] == it.store.asked["events"] == 0
        assert it.store.rows_read == 200  # each event once, whatever the number of its followers
        assert all(reader.seqs == [2, 3] for reader in readers)

    played(scene)


def test_a_follower_that_comes_later_and_one_that_leaves_disturb_no_other() -> None:
    async def scene(it: Scene) -> None:
        it.store.create("r", 3)
        first = it.follow("r")
        await it.tick()
        it.store.move("r", 2)
        second = it.follow("r", after=1)
        await it.tick()
        first.task.cancel()
        await it.tick()
        it.store.move("r", 1)
        third = it.follow("r", after=6)
        await it.tick()
        it.store.move("r", 1, kind="RunCompleted", status="completed")
        await it.tick()
        assert (first.seqs, second.seqs, third.seqs) == ([1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7], [7])
        assert second.task.done()
        assert third.task.done()
        it.store.asked.clear()
        await it.tick(5)
        assert not it.store.asked  # nobody follows: the store is left alone

    played(scene)


def test_a_long_log_is_read_in_pages() -> None:
    async def scene(it: Scene) -> None:
        it.store.create("r", 3 * PAGE + 7)
        reader = it.follow("r", chunks=True)
        await it.tick(8)
        it.store.move("r", 2 * PAGE + 1)
        await it.tick()  # all of them, not one page per tick
        assert len(reader.seqs) == 5 * PAGE + 8
        late = it.follow("r", after=5 * PAGE, chunks=True)
        await it.tick(8)
        assert reader.seqs == list(range(1, 5 * PAGE + 9))
        assert late.seqs == list(range(5 * PAGE + 1, 5 * PAGE + 9))

    played(scene)


def test_a_slow_follower_reads_from_the_log_what_is_kept_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "_KEPT", 4)

    async def scene(it: Scene) -> None:
        it.store.create("r")
        slow = it.engine.follow("r")
        assert (await anext(slow)).seq == 1
        quick = it.follow("r")
        for _ in range(10):
            it.store.move("r", 3)
            await it.tick()
        it.store.move("r", 1, kind="RunCompleted", status="completed")
        await it.tick()
        rest = [event.seq async for event in slow]
        assert quick.seqs == [1, *rest] == list(range(1, 33))

    played(scene)


def test_staying_lasts_over_pauses_failures_and_crashes_until_the_run_is_over() -> None:
    async def scene(it: Scene) -> None:
        it.store.create("r")
        leaves, stays = it.follow("r"), it.follow("r", stay=True)
        await it.tick()
        it.store.move("r", kind="RunPaused", status="paused")
        await it.tick()
        assert leaves.task.done()
        it.store.move("r", status="failed")
        await it.tick(3)
        it.store.move("r", status="running")
        it.store.release("r", OTHER.id, 1)  # its process has crashed
        await it.tick(3)
        assert not stays.task.done()
        it.store.claim("r", OTHER)
        it.store.logs["r"].fence = 2
        it.store.move("r", kind="RunCompleted", status="completed")
        await it.tick()
        assert stays.task.done()
        assert (leaves.seqs, stays.seqs) == ([1, 2], [1, 2, 3, 4, 5])

    played(scene)


def test_a_run_that_is_deleted_or_unknown_ends_its_followers_only() -> None:
    async def scene(it: Scene) -> None:
        it.store.create("r1")
        it.store.create("r2", 2)
        gone, stays, never = it.follow("r1"), it.follow("r2"), it.follow("r3")
        await it.tick()
        it.store.release("r1", OTHER.id, 1)
        assert not it.store.upkeep.delete({"r1": 1})
        it.store.move("r2")
        await it.tick()
        assert (gone.seqs, stays.seqs, never.seqs) == ([1], [1, 2, 3], [])
        for reader, run_id in ((gone, "r1"), (never, "r3")):
            with pytest.raises(hf.RunNotFound, match=run_id):
                await reader.task
        again = it.follow("r1")
        it.store.create("r1")
        await it.tick()
        assert again.seqs == [1]

    played(scene)


def test_a_log_that_is_compacted_meanwhile_is_followed_from_its_base() -> None:
    async def scene(it: Scene) -> None:
        it.store.create("r", 9)
        slow = it.engine.follow("r")
        assert (await anext(slow)).seq == 1
        quick = it.follow("r", after=8)
        await it.tick()
        it.store.move("r", 5)
        digest = it.store.events("r", 11, 12)[0].digest
        it.store.upkeep.compact("r", 12, body=b"{}", digest=digest, holder=OTHER.id, fence=1)
        await it.tick()
        it.store.move("r", 1, kind="RunCompleted", status="completed")
        await it.tick()
        assert quick.seqs == [9, 13, 14, 15]
        assert [event.seq async for event in slow][-3:] == [13, 14, 15]

    played(scene)


def test_spilled_chunks_are_read_from_where_the_last_look_ended() -> None:
    async def scene(it: Scene) -> None:
        it.store.create("r")
        reader = it.follow("r", chunks=True)
        await it.tick()
        key, written = spill_key(STREAM, 1), 0
        for number in range(1, 11):
            line = msgspec.json.encode(f"chunk {number}") + b"\n"
            it.store.blobs.spill("r", key, line)
            written += len(line)
            await it.tick()
        late = it.follow("r", chunks=True)
        await it.tick(2)
        assert reader.values == late.values == [f"chunk {number}" for number in range(1, 11)]
        assert it.store.spilled_bytes == written

    played(scene)


def test_a_spill_is_read_in_any_pieces() -> None:
    lines = [
        b'"a"\n',
        step_line(("draft", 1)) + b"\n",
        b'"b"\n',
        b'?{"t":1}\n',
        b"!\n",
        b'"c"\n',
        b'?"result"\n',
    ]
    key = spill_key(STREAM, 4)
    whole = GrowingSpills("r").add({key: Piece(b"".join(lines), 9)})
    spills, found = GrowingSpills("r"), []
    for number, line in enumerate(lines, 1):
        found += spills.add({key: Piece(line, number)})
    assert found == whole == spills.chunks()
    assert [(chunk.number, chunk.value, chunk.step) for chunk in found] == [
        (4, "a", None), (5, "b", "draft"), (6, {"t": 1}, None), (7, "c", "draft"),
    ]  # fmt: skip
    assert spills.marks == {key: 7}
    assert spills.add({}) == spills.chunks() == []
    assert spills.marks == {}
