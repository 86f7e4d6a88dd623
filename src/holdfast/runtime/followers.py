"""Those who watch runs: events as they become durable, without gap or repeat, and chunks as they are streamed.

What happens in this engine is told at once. What happens elsewhere is looked for a few times a second: events in the store,
chunks in what the other process has spilled.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from holdfast.runtime.clock import Clock
from holdfast.runtime.streams import Chunk, spilled_chunks
from holdfast.runtime.views import EventView, event_view
from holdfast.storage.contract import Store
from holdfast.storage.rows import open_row

POLL_S = 0.2
_GOING = frozenset({"pending", "running", "waiting"})


class _Follower:
    """One who watches a run."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.chunks: list[Chunk] = []
        self.seen: dict[tuple[str, int, int, int, int | None], int] = {}
        """Attempt -> how many of its chunks were told."""

    def fresh(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Those of the chunks that were not told yet."""
        for chunk in chunks:
            attempt = (chunk.node, chunk.iteration, chunk.execution, chunk.attempt, chunk.item)
            if chunk.number > self.seen.get(attempt, 0):
                self.seen[attempt] = chunk.number
                yield chunk


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
    ) -> AsyncIterator[EventView | Chunk]:
        """Tell what is there and what comes, until the run has stopped and all is told."""
        follower = _Follower()
        self._by_run.setdefault(run_id, set()).add(follower)
        try:
            while True:
                follower.news.clear()
                row = store.run(run_id)
                if chunks:
                    streamed, follower.chunks = follower.chunks, []
                    elsewhere = () if is_here(run_id) else spilled_chunks(store, run_id)
                    for chunk in follower.fresh(itertools.chain(streamed, elsewhere)):
                        yield chunk
                for found in store.events(run_id, after, row.seq):
                    after = found.seq
                    yield event_view(open_row(found, store.blobs))
                cut = row.status in ("running", "waiting") and not row.held and not is_here(run_id)
                if row.status not in _GOING or cut:
                    return
                if not is_here(run_id):
                    clock.call_at(clock.now() + POLL_S, follower.news.set)
                await follower.news.wait()
        finally:
            self._by_run[run_id].discard(follower)
            if not self._by_run[run_id]:
                del self._by_run[run_id]
