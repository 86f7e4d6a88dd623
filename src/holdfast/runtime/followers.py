"""Those who watch runs: events as they become durable, without gap or repeat, and chunks as they are streamed.

What happens in this engine is told at once. What happens elsewhere is looked for a few times a second: events in the store,
chunks in what the other process has spilled. A chunk is told behind the start of its attempt, as soon as that is durable, and
before its end; where the start takes long to become durable (`durability="exit"`) it does not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import ParamSpec, Protocol, TypeVar

from holdfast.core.kinds import ENDS_STREAM
from holdfast.core.run_state import GOING, UNDER_WAY
from holdfast.reading.chunks import Chunk, spilled_chunks
from holdfast.reading.views import EventView, event_view
from holdfast.runtime.clock import Clock
from holdfast.storage.contract import Store
from holdfast.storage.rows import open_row

P = ParamSpec("P")
T = TypeVar("T")

POLL_S = 0.2
_START = "NodeStarted"


class _Follower:
    """One who watches a run."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.news = asyncio.Event()
        self.chunks: list[Chunk] = []
        self.seen: dict[tuple[str, int, int, int, int | None], int] = {}
        """Attempt -> how many of its chunks have come."""
        self.pending: list[Chunk] = []
        """Chunks whose place has not been told yet."""
        self.begun: set[tuple[str | None, int, int, int]] = set()
        """Attempts of nodes whose start was told; with 0 for any attempt of an item."""
        self.patient_until: float | None = None
        """When chunks are told whose start is not durable even then."""

    def take(self, chunks: Iterable[Chunk]) -> None:
        """Take up those of the chunks that are new."""
        for chunk in chunks:
            attempt = (chunk.node, chunk.iteration, chunk.execution, chunk.attempt, chunk.item)
            if chunk.number > self.seen.get(attempt, 0):
                self.seen[attempt] = chunk.number
                self.pending.append(chunk)

    def before(self, event: EventView) -> list[Chunk]:
        """The chunks that belong before this event. Those that came too fast to be seen are in it."""
        if event.kind == "NodeStreamed":
            self.take(_recorded(self.run_id, event))
        if event.kind == _START:
            self.begun.update((event.node, event.iteration, event.execution, at) for at in (0, event.attempt))
        if not self.pending or event.kind not in ENDS_STREAM:
            return []
        return self._out(lambda chunk: _belongs_before(chunk, event))

    def rest(self, now: float, *, over: bool) -> list[Chunk]:
        """The chunks of attempts that have begun; all of them where nothing more comes, or where it takes too long."""
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
    return event.kind not in ("StepCompleted", "NodeCheckpointed")  # of the node itself: its items may go on


def _views(store: Store, run_id: str, after: int, upto: int, kinds: tuple[str, ...] = ()) -> list[EventView]:
    return [event_view(open_row(row, store.blobs)) for row in store.events(run_id, after, upto, kinds=kinds)]


def _spilled(store: Store, run_id: str) -> list[Chunk]:
    return list(spilled_chunks(store, run_id))


class Read(Protocol):
    """Awaits a call that reads the store, off the event loop."""

    def __call__(self, read: Callable[P, T], *args: P.args, **options: P.kwargs) -> Awaitable[T]: ...


class Followers:
    """Everybody who watches a run of this engine's store."""

    def __init__(self) -> None:
        self._by_run: dict[str, set[_Follower]] = {}

    def saved(self, run_id: str) -> None:
        """Something new is durable in the log of a run, or it has stopped."""
        for follower in self._by_run.get(run_id, ()):
            follower.news.set()

    def streamed(self, chunk: Chunk) -> None:
        """A node of this engine has streamed something."""
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
        read: Read,
    ) -> AsyncIterator[EventView | Chunk]:
        """Tell what is there and what comes, until the run has stopped and all is told."""
        follower = _Follower(run_id)
        self._by_run.setdefault(run_id, set()).add(follower)
        if chunks and after:  # who comes late is not told of these starts
            for event in await read(_views, store, run_id, 0, after, (_START,)):
                follower.before(event)
        try:
            while True:
                follower.news.clear()
                # Before the log is looked at: what is recorded behind a chunk cannot be found without it.
                streamed, follower.chunks = follower.chunks, []
                if chunks:
                    follower.take(streamed)
                    follower.take(() if is_here(run_id) else await read(_spilled, store, run_id))
                here = is_here(
                    run_id
                )  # as of before the row is read: a run that leaves meanwhile is not crashed
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
                if not is_here(run_id) or follower.pending:
                    clock.call_at(clock.now() + POLL_S, follower.news.set)
                await follower.news.wait()
        finally:
            self._by_run[run_id].discard(follower)
            if not self._by_run[run_id]:
                del self._by_run[run_id]
