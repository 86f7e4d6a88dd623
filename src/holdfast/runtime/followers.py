"""Following runs: events as they become durable, without gap or repeat, and chunks as nodes stream them.

A follower gets the news of its own engine at once. For runs in another process it polls a few times a second: events in the
store, chunks in the spill of that process. A chunk is yielded after the start of its attempt, as soon as that start is durable,
and before the attempt's end. If the start takes long to become durable (`durability="exit"`), the chunk does not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from holdfast.core.kinds import ENDS_STREAM
from holdfast.core.run_state import GOING, UNDER_WAY
from holdfast.reading.chunks import Chunk, spilled_chunks
from holdfast.reading.views import EventView, event_view
from holdfast.runtime.services import Services
from holdfast.storage.contract import Store
from holdfast.storage.rows import open_row

POLL_S = 0.2
_START = "NodeStarted"


class _Follower:
    """One caller that follows a run: the chunks it has been given, and those that it still waits for."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.news = asyncio.Event()
        self.chunks: list[Chunk] = []
        self.seen: dict[tuple[str, int, int, int, int | None], int] = {}
        """Attempt -> number of its latest chunk that has arrived."""
        self.pending: list[Chunk] = []
        """Chunks that have arrived and have not been yielded."""
        self.begun: set[tuple[str | None, int, int, int]] = set()
        """Attempts of nodes whose start was yielded; attempt 0 is any attempt of an item."""
        self.patient_until: float | None = None
        """From this time on, pending chunks are yielded even if the start of their attempt is not durable."""

    def take(self, chunks: Iterable[Chunk]) -> None:
        """Add the chunks that have not been seen to those that are pending."""
        for chunk in chunks:
            attempt = (chunk.node, chunk.iteration, chunk.execution, chunk.attempt, chunk.item)
            if chunk.number > self.seen.get(attempt, 0):
                self.seen[attempt] = chunk.number
                self.pending.append(chunk)

    def before(self, event: EventView) -> list[Chunk]:
        """The pending chunks to yield before this event. `NodeStreamed` also adds the chunks that a poll has missed."""
        if event.kind == "NodeStreamed":
            self.take(_read_chunks(self.run_id, event))
        if event.kind == _START:
            self.begun.update((event.node, event.iteration, event.execution, at) for at in (0, event.attempt))
        if not self.pending or event.kind not in ENDS_STREAM:
            return []
        return self._out(lambda chunk: _is_before(chunk, event))

    def rest(self, now: float, *, over: bool) -> list[Chunk]:
        """The pending chunks of attempts whose start was yielded; all of them if the run is over or the wait was too long."""
        all_are_due = over or (self.patient_until is not None and now >= self.patient_until)
        due = self._out(lambda chunk: all_are_due or _attempt(chunk) in self.begun)
        if not self.pending:
            self.patient_until = None
        elif self.patient_until is None:
            self.patient_until = now + POLL_S
        return due

    def _out(self, is_due: Callable[[Chunk], bool]) -> list[Chunk]:
        due = [chunk for chunk in self.pending if is_due(chunk)]
        self.pending = [chunk for chunk in self.pending if not is_due(chunk)] if due else self.pending
        return due


def _read_chunks(run_id: str, event: EventView) -> Iterator[Chunk]:
    for number, value in enumerate(event.body.get("chunks", []), 1):
        yield Chunk(
            run_id=run_id,
            node=event.node or "",
            iteration=event.iteration,
            execution=event.execution,
            attempt=event.attempt,
            item=event.body.get("item"),
            number=number,
            value=value,
        )


def _attempt(chunk: Chunk) -> tuple[str, int, int, int]:
    return chunk.node, chunk.iteration, chunk.execution, chunk.attempt if chunk.item is None else 0


def _is_before(chunk: Chunk, event: EventView) -> bool:
    if (chunk.node, chunk.iteration, chunk.execution) != (event.node, event.iteration, event.execution):
        return False
    item = event.body.get("item")
    if chunk.item is None or item is not None:
        return chunk.item == item and chunk.attempt <= event.attempt
    # The event is about the node itself: its items may continue after these two kinds.
    return event.kind not in ("StepCompleted", "NodeCheckpointed")


def _views(store: Store, run_id: str, after: int, upto: int, kinds: tuple[str, ...] = ()) -> list[EventView]:
    return [event_view(open_row(row, store.blobs)) for row in store.events(run_id, after, upto, kinds=kinds)]


def _spilled(store: Store, run_id: str) -> list[Chunk]:
    return list(spilled_chunks(store, run_id))


class Followers:
    """The followers of runs in this engine's store. They listen to the engine only while there are any."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._by_run: dict[str, set[_Follower]] = {}

    def saved(self, run_id: str) -> None:
        """Wake the followers of a run: an event is durable, or the run has stopped."""
        for follower in self._by_run.get(run_id, ()):
            follower.news.set()

    def streamed(self, chunk: Chunk) -> None:
        """Give a chunk that a node of this engine streamed to the followers of its run."""
        for follower in self._by_run.get(chunk.run_id, ()):
            follower.chunks.append(chunk)
            follower.news.set()

    async def follow(self, run_id: str, after: int, *, chunks: bool) -> AsyncIterator[EventView | Chunk]:
        """Yield the events after `after` and those to come (with `chunks`, also chunks), until the run has stopped."""
        store, clock, held, read = (
            self._services.store, self._services.clock, self._services.holdings, self._services.reading.call,
        )  # fmt: skip
        follower = _Follower(run_id)
        self._add(follower)
        if chunks and after:  # the caller does not get these starts again, but its chunks may belong to them
            for event in await read(_views, store, run_id, 0, after, (_START,)):
                follower.before(event)
        try:
            while True:
                follower.news.clear()
                # Take the chunks before reading the log: then an event recorded after a chunk is never yielded before it.
                streamed, follower.chunks = follower.chunks, []
                if chunks:
                    follower.take(streamed)
                    follower.take(() if run_id in held else await read(_spilled, store, run_id))
                here = run_id in held  # before the row is read: a run that leaves meanwhile has not crashed
                row = await read(store.run, run_id)
                for event in await read(_views, store, run_id, after, row.seq):
                    after = event.seq
                    for chunk in follower.before(event) if chunks else ():
                        yield chunk
                    yield event
                crashed = row.status in UNDER_WAY and not row.held and not here
                over = row.status not in GOING or crashed
                for chunk in follower.rest(clock.now(), over=over):
                    yield chunk
                if over:
                    return
                if run_id not in held or follower.pending:
                    clock.call_at(clock.now() + POLL_S, follower.news.set)
                await follower.news.wait()
        finally:
            self._remove(follower)

    def _add(self, follower: _Follower) -> None:
        if not self._by_run:
            self._services.listeners.add(self)
        self._by_run.setdefault(follower.run_id, set()).add(follower)

    def _remove(self, follower: _Follower) -> None:
        self._by_run[follower.run_id].discard(follower)
        if not self._by_run[follower.run_id]:
            del self._by_run[follower.run_id]
        if not self._by_run:
            self._services.listeners.remove(self)
