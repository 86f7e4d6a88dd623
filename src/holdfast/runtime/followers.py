"""Lets callers follow runs: they get events as these become durable and chunks as nodes stream them, each once, even if a
follower is interrupted and continues with its cursor. `reading.following` says in which order.

All followers of an engine share one look at the store. A look is one query for the ends of all followed logs and for the events
that are new in them; each new event is read once, however many followers it has. Events that were there before a follower came,
or that it was too slow for, it reads itself from the log, in pages.

The engine looks at once when it has saved an event of a run that it executes. For runs in other processes it looks a few times a
second: at events in the store, and at chunks in the spill of that process, from where the last look has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, NamedTuple, TypeVar

from holdfast.core.run_state import FINAL, GOING, UNDER_WAY
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.reading.chunks import Chunk, GrowingSpills
from holdfast.reading.following import START, STREAMED, Cursor, InOrder
from holdfast.reading.views import EventView, event_view
from holdfast.runtime.services import Services
from holdfast.storage.blobs import Piece
from holdfast.storage.contract import NO_EVENTS, Store, Tail
from holdfast.storage.rows import open_row

POLL_S = 0.2
PAGE = 200
"""How many events are read from a log at a time."""
_KEPT = 500
"""How many new events of a run are kept for followers that have not got them; those that are slower read the log."""
T_co = TypeVar("T_co", covariant=True)


class Following(AsyncIterator[T_co]):
    """The async iterator that `Engine.follow` returns: the events of a run, and its chunks if the caller asked for them.
    `cursor` is the place after the last event or chunk that was yielded: pass it as `after` to continue there, also in another
    process.
    """

    def __init__(self, news: AsyncGenerator[T_co, None], cursor: Cursor) -> None:
        self._news = news
        self._cursor = cursor

    @property
    def cursor(self) -> str:
        return str(self._cursor)

    async def __anext__(self) -> T_co:
        return await anext(self._news)

    async def aclose(self) -> None:
        """Stop following."""
        await self._news.aclose()


class _Follower:
    """One caller that follows a run."""

    def __init__(self, run_id: str, cursor: Cursor, *, chunks: bool, stay: bool) -> None:
        self.run_id = run_id
        self.order = InOrder(run_id, cursor)
        self.chunks = chunks
        self.stay = stay
        self.at = cursor.seq
        """The seq of the last event that was yielded."""
        self.news = asyncio.Event()
        self.streamed: list[Chunk] = []
        """Chunks that have arrived and that the follower has not processed yet."""
        self.is_current = False
        """True if the engine has looked at the run since this follower came."""


class _End(NamedTuple):
    """The end of a followed log at the last look."""

    seq: int
    has_stopped: bool
    """True if the run does not continue by itself."""
    is_final: bool
    """True if no event can follow."""


class _FollowedRun:
    """A run that somebody follows, as it was at the last look, and its latest events."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.followers: set[_Follower] = set()
        self.end: _End | None = None
        """None if the run has not been looked at."""
        self.base = NO_EVENTS
        """The seq after which `events` begin, without a gap."""
        self.events: list[EventView] = []
        self.spills = GrowingSpills(run_id)
        self.is_stale = True
        """True if the engine has saved an event of the run since the last look."""
        self.fault: Exception | None = None
        """Why the run cannot be followed."""

    @property
    def place(self) -> int:
        """The seq after which the next look wants events. The first look wants none: each follower reads the log up to there."""
        return NO_EVENTS if self.end is None else self.base + len(self.events)

    @property
    def has_new_follower(self) -> bool:
        """True if a follower has come since the last look."""
        return not all(follower.is_current for follower in self.followers)

    def extend(self, tail: Tail, events: list[EventView], *, here: bool) -> None:
        """Take what a look has found. `here` says whether this engine executes the run."""
        reached = events[-1].seq if events else tail.seq
        begin = events[0].seq - 1 if events else tail.seq
        if begin != self.place:  # this is the first look, or the log was compacted since the last
            self.base, self.events = begin, []
        self.events += events
        crashed = tail.status in UNDER_WAY and not tail.held and not here
        # If there are more events than one look returns, the run has not stopped before they are read.
        stopped = (tail.status not in GOING or crashed) and reached == tail.seq
        self.end = _End(reached, stopped, tail.status in FINAL and reached == tail.seq)

    def trim(self) -> None:
        """Forget the events that all followers have got, and the oldest if there are too many."""
        got = min((follower.at for follower in self.followers), default=NO_EVENTS)
        dropped = max(min(got - self.base, len(self.events)), len(self.events) - _KEPT)
        if dropped > 0:
            self.base, self.events = self.base + dropped, self.events[dropped:]


class Followers:
    """Gives events and chunks to the followers of this engine. It listens to the engine, and looks at the store, only while there
    are followers.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._runs: dict[str, _FollowedRun] = {}
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._listens = False
        self._looks = 0

    def saved(self, run_id: str) -> None:
        """Look at a run again: an event is durable, or the run has stopped."""
        run = self._runs.get(run_id)
        if run is not None:
            run.is_stale = True
            self._news.set()

    def streamed(self, chunk: Chunk) -> None:
        """Give a chunk that a node of this engine streamed to the followers of its run."""
        run = self._runs.get(chunk.run_id)
        if run is not None:
            _give_chunks(run, [chunk])

    def follow(self, run_id: str, after: int | str, *, chunks: bool, stay: bool) -> Following[Any]:
        """Follow a run from this place on, with `chunks` also its chunks, until it has stopped; with `stay`, until no event can
        follow. Raises `SettingError`.
        """
        cursor = Cursor.parse(after)
        if not chunks:
            cursor.chunks = {}
        return Following(self._follow(_Follower(run_id, cursor, chunks=chunks, stay=stay)), cursor)

    # --- one follower ---------------------------------------------------------------------------------

    async def _follow(self, follower: _Follower) -> AsyncGenerator[EventView | Chunk, None]:
        clock, order = self._services.clock, follower.order
        run = self._add(follower)
        try:
            await self._recall(follower)
            while True:
                follower.news.clear()
                if run.fault is not None:
                    raise run.fault
                # Take the chunks before the events: then an event recorded after a chunk is never yielded before it.
                streamed, follower.streamed = follower.streamed, []
                order.take(streamed)
                end = run.end
                if end is not None and follower.is_current:
                    while follower.at < end.seq:
                        events, reached = await self._next_events(run, follower.at, end.seq)
                        for event in events:
                            follower.at = event.seq
                            for chunk in order.before(event) if follower.chunks else ():
                                yield order.give(chunk)
                            yield order.give(event)
                        follower.at = reached
                    over = end.is_final if follower.stay else end.has_stopped
                    for chunk in order.rest(clock.now(), over=over):
                        yield order.give(chunk)
                    if over:
                        return
                    if order.pending:
                        clock.call_at(clock.now() + POLL_S, follower.news.set)
                await follower.news.wait()
        finally:
            self._remove(follower)

    async def _recall(self, follower: _Follower) -> None:
        """Note the starts and streams before the place where a follower begins: chunks that it gets may belong to them."""
        after, upto = 0, follower.at if follower.chunks else 0
        while after < upto:
            page = await self._read(follower.run_id, after, upto, (START, STREAMED))
            for event in page:
                follower.order.recall(event)
            after = page[-1].seq if len(page) == PAGE else upto

    async def _next_events(self, run: _FollowedRun, after: int, upto: int) -> tuple[list[EventView], int]:
        """Return events after a place, and up to where these are all: the latest ones, which are kept, or a page of the log."""
        base = run.base
        if after >= base:
            return run.events[after - base : upto - base], upto
        page = await self._read(run.run_id, after, min(upto, base))
        return page, page[-1].seq if len(page) == PAGE else min(upto, base)

    async def _read(self, run_id: str, after: int, upto: int, kinds: tuple[str, ...] = ()) -> list[EventView]:
        return await self._services.reading.call(_views, self._services.store, run_id, after, upto, kinds)

    def _add(self, follower: _Follower) -> _FollowedRun:
        if not self._listens:
            self._services.listeners.add(self)
            self._listens = True
        run = self._runs.get(follower.run_id)
        if run is None or run.fault is not None:
            run = self._runs[follower.run_id] = _FollowedRun(follower.run_id)
        run.followers.add(follower)
        run.is_stale = True
        executed = self._services.holdings.get(follower.run_id)
        if follower.chunks:  # streamed before there was this follower; from now on it is notified
            follower.streamed = executed.unsaved_chunks() if executed is not None else run.spills.chunks()
        self._news.set()
        if self._looking is None:
            # Not in the context of the caller, which may be a node: the task lives as long as there are followers.
            self._looking = asyncio.get_running_loop().create_task(
                self._look_on(), context=contextvars.Context()
            )
        return run

    def _remove(self, follower: _Follower) -> None:
        run = self._runs.get(follower.run_id)
        if run is not None:
            run.followers.discard(follower)
            if not run.followers:
                del self._runs[follower.run_id]
        if not self._runs and self._listens:
            self._services.listeners.remove(self)
            self._listens = False
            if self._looking is not None:
                self._looking.cancel()
                self._looking = None

    # --- the look that all share ----------------------------------------------------------------------

    async def _look_on(self) -> None:
        """Look at the followed runs, until there are none: at each that has news, and a few times a second at those that other
        processes execute.
        """
        clock, held = self._services.clock, self._services.holdings
        while any(run.fault is None for run in self._runs.values()):
            self._news.clear()
            await self._look()
            if not all(run_id in held for run_id in self._runs):
                timer = clock.call_at(clock.now() + POLL_S, self._news.set)
                await self._news.wait()
                timer.cancel()
            else:
                await self._news.wait()
        self._looking = None

    async def _look(self) -> None:
        """Look once: read the ends and new events of runs in one query, and wake their followers."""
        held = self._services.holdings
        here = {
            run_id for run_id in self._runs if run_id in held
        }  # before they are read: one that leaves has not crashed
        runs = [
            run
            for run in self._runs.values()
            if run.fault is None and (run.is_stale or run.run_id not in here)
        ]
        if not runs:
            return
        followers = [(run, list(run.followers)) for run in runs]
        places = {run.run_id: run.place for run in runs}
        marks = self._marks([run for run in runs if run.run_id not in here])
        for run in runs:
            run.is_stale = False
        try:
            found = await self._services.reading.call(_look_at, self._services.store, places, marks)
        except Exception as fault:  # noqa: BLE001 - raised by each follower
            found = _Seen({run.run_id: fault for run in runs}, {})
        for run, those in followers:
            self._tell(run, found.tails[run.run_id], here=run.run_id in here)
            if run.run_id in marks:
                _give_chunks(run, run.spills.add(found.spills.get(run.run_id, {})))
            for follower in those:
                if not follower.is_current or run.fault is not None:
                    follower.is_current = True
                    follower.news.set()

    def _marks(self, runs: list[_FollowedRun]) -> dict[str, Mapping[str, int]]:
        """Return, for each run whose spills to look at, up to where they were read. Spills are looked at every other time, unless
        there are some, or a follower is new.
        """
        self._looks += 1
        found: dict[str, Mapping[str, int]] = {}
        is_turn = self._looks % 2 == 0
        for run in runs:
            if any(follower.chunks for follower in run.followers):
                found[run.run_id] = run.spills.marks
                is_turn = is_turn or bool(run.spills.marks) or run.has_new_follower
        return found if is_turn else {}

    def _tell(
        self, run: _FollowedRun, found: tuple[Tail, list[EventView]] | Exception, *, here: bool
    ) -> None:
        """Note what a look has found, and wake the followers if it is new."""
        if isinstance(found, Exception):
            run.fault = found
            return
        before = run.end
        run.trim()
        run.extend(*found, here=here)
        if run.end != before:
            for follower in run.followers:
                follower.news.set()
        if len(found[1]) == PAGE:  # there may be more
            run.is_stale = True
            self._news.set()


def _give_chunks(run: _FollowedRun, chunks: list[Chunk]) -> None:
    for follower in run.followers if chunks else ():
        if follower.chunks:
            follower.streamed += chunks
            follower.news.set()


# --- in the reading thread ---------------------------------------------------------------------------


class _Seen(NamedTuple):
    """What a look has found: for each run its end and new events, or why it cannot be read; and its spills."""

    tails: dict[str, tuple[Tail, list[EventView]] | Exception]
    spills: dict[str, dict[str, Piece]]


def _look_at(store: Store, places: dict[str, int], marks: Mapping[str, Mapping[str, int]]) -> _Seen:
    spills = store.blobs.spilled_after(marks) if marks else {}  # before the log: it may be recorded meanwhile
    found = store.feed.look(places, PAGE)
    seen = _Seen({}, spills)
    for run_id in places:
        tail = found.get(run_id)
        try:
            if tail is None:
                raise RunNotFound(run_id, store.url)
            seen.tails[run_id] = (tail, [event_view(open_row(row, store.blobs)) for row in tail.rows])
        except HoldfastError as fault:  # the other runs are followed on
            seen.tails[run_id] = fault
    return seen


def _views(store: Store, run_id: str, after: int, upto: int, kinds: tuple[str, ...]) -> list[EventView]:
    rows = store.events(run_id, after, upto, kinds=kinds, limit=PAGE)
    return [event_view(open_row(row, store.blobs)) for row in rows]
