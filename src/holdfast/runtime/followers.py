"""Followers: callers of `follow`, who get the events of a run as they become durable, without gap or repeat, and chunks as they
are streamed.

Followers hear at once of a run that this engine executes (`Followers` is a listener). For a run that another process executes
they poll a few times a second: events in the store, chunks in the spills of that process. A chunk comes after the start of its
attempt, as soon as that is durable, and before its end; where the start takes long to become durable (`durability="exit"`), the
chunk does not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from holdfast.core.kinds import ENDS_STREAM
from holdfast.core.run_state import GOING, UNDER_WAY
from holdfast.reading.chunks import Chunk, spilled_chunks
from holdfast.reading.views import EventView, event_view
from holdfast.runtime.clock import Clock
from holdfast.storage.contract import Store
from holdfast.storage.rows import open_row

POLL_S = 0.2
_START = "NodeStarted"


class _Follower:
    """One caller that follows a run."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.news = asyncio.Event()
        self.chunks: list[Chunk] = []
        self.seen: dict[tuple[str, int, int, int, int | None], int] = {}
        """Attempt -> how many of its chunks were received."""
        self.pending: list[Chunk] = []
        """Chunks that were not passed on yet, because their place among the events has not come."""
        self.begun: set[tuple[str | None, int, int, int]] = set()
        """Attempts of nodes whose start was passed on; with 0 for any attempt of an item."""
        self.patient_until: float | None = None
        """When to pass chunks on although their start is not durable yet."""

    def take(self, chunks: Iterable[Chunk]) -> None:
        """Keep the chunks that are new."""
        for chunk in chunks:
            attempt = (chunk.node, chunk.iteration, chunk.execution, chunk.attempt, chunk.item)
            if chunk.number > self.seen.get(attempt, 0):
                self.seen[attempt] = chunk.number
                self.pending.append(chunk)

    def before(self, event: EventView) -> list[Chunk]:
        """The chunks that belong before this event. Chunks that were not received in time are in the event itself."""
        if event.kind == "NodeStreamed":
            self.take(_recorded(self.run_id, event))
        if event.kind == _START:
            self.begun.update((event.node, event.iteration, event.execution, at) for at in (0, event.attempt))
        if not self.pending or event.kind not in ENDS_STREAM:
            return []
        return self._out(lambda chunk: _belongs_before(chunk, event))

    def rest(self, now: float, *, over: bool) -> list[Chunk]:
        """The chunks of attempts that have begun; all chunks where no more events come, or where the start takes too long."""
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


def _recorded(run_id: str, event: EventView) -> Iterator[Chunk]:
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


def _belongs_before(chunk: Chunk, event: EventView) -> bool:
    if (chunk.node, chunk.iteration, chunk.execution) != (event.node, event.iteration, event.execution):
        return False
    item = event.body.get("item")
    if chunk.item is None or item is not None:
        return chunk.item == item and chunk.attempt <= event.attempt
    return event.kind not in (
        "StepCompleted",
        "NodeCheckpointed",
    )  # of the node itself: its items may continue


class Followers:
    """A listener that passes events and chunks on to the followers of this engine."""

    def __init__(self) -> None:
        self._by_run: dict[str, set[_Follower]] = {}

    def saved(self, run_id: str) -> None:
        """New events of a run are durable, or the engine has stopped executing it."""
        for follower in self._by_run.get(run_id, ()):
            follower.news.set()

    def streamed(self, chunk: Chunk) -> None:
        """A node has emitted a chunk."""
        for follower in self._by_run.get(chunk.run_id, ()):
            follower.chunks.append(chunk)
            follower.news.set()

    async def follow(
        self,
        store: Store,
        clock: Clock,
        run_id: str,
        after: int,
        *,
        chunks: bool,
        is_here: Callable[[str], bool],
    ) -> AsyncIterator[EventView | Chunk]:
        """Yield the events that are stored and those that come, until the run has stopped."""
        follower = _Follower(run_id)
        self._by_run.setdefault(run_id, set()).add(follower)
        if chunks and after:  # these starts are not passed on to a late follower
            for found in store.events(run_id, 0, after, kinds=(_START,)):
                follower.before(event_view(open_row(found, store.blobs)))
        try:
            while True:
                follower.news.clear()
                # Before the log is read: an event that was recorded after a chunk is never found without the chunk.
                streamed, follower.chunks = follower.chunks, []
                if chunks:
                    follower.take(streamed)
                    follower.take(() if is_here(run_id) else spilled_chunks(store, run_id))
                row = store.run(run_id)
                for found in store.events(run_id, after, row.seq):
                    after = found.seq
                    event = event_view(open_row(found, store.blobs))
                    for chunk in follower.before(event) if chunks else ():
                        yield chunk
                    yield event
                cut = row.status in UNDER_WAY and not row.held and not is_here(run_id)
                over = row.status not in GOING or cut
                for chunk in follower.rest(clock.now(), over=over):
                    yield chunk
                if over:
                    return
                if not is_here(run_id) or follower.pending:
                    clock.call_at(clock.now() + POLL_S, follower.news.set)
                await follower.news.wait()
        finally:
            self._by_run[run_id].discard(follower)
            if not self._by_run[run_id]:
                del self._by_run[run_id]
