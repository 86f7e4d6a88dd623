"""Live events by SSE: the events and chunks of one run, or the rows of a page of runs and the board as they change.

`GET live?run=ID` sends every event of a run once, with its seq as `id`: a client that was cut off sends the last id that it got
as `Last-Event-ID`, and continues there, whichever server it reaches. All clients of a run share one follower, and each event is
encoded once. A client that is too slow reads the log, in pages.

`GET live` sends values that replace each other. They have no `id`: a client that returns gets the present values.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.errors import HoldfastError
from holdfast.reading.chunks import Chunk
from holdfast.reading.views import EventView, event_view
from holdfast.runtime.clock import sleep
from holdfast.server import board, problems, runs
from holdfast.server.backend import Backend
from holdfast.server.calls import EVENTS, Answer, HttpCall
from holdfast.server.json_body import encode
from holdfast.server.open_streams import HEARTBEAT, PIECE_BYTES, RETRY_S, OpenStream, Push, Ring, frame
from holdfast.server.problems import Refused, refuse
from holdfast.server.verb_headers import LAST_EVENT
from holdfast.storage.contract import RunRow, Store
from holdfast.storage.rows import open_row

PAGE = 100
"""How many events are read from a log at a time, at most."""
FRAME_BYTES_MAX = 64 * 1024
"""The size of the JSON above which an event is sent without its body, and a chunk without its value."""
LOOK_S = 1.0
"""How often the rows and the board are read, as long as there are clients for them."""
PAGES_MAX = 200
"""How many pages of runs that differ in their parameters may be followed at the same time."""
_HELLO = b"retry: 2000\n\n"
_HEADERS = {"X-Accel-Buffering": "no"}
_SEQ = re.compile(r"[0-9]{1,15}")


class LiveQuery(runs.RunsQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to follow: one run, or the page of runs that `GET runs` answers with the same parameters."""

    run: runs.RunId | UnsetType = UNSET
    """The id of the run whose events to follow."""
    after: Annotated[int, Meta(ge=0, le=2**53)] | UnsetType = UNSET
    """With `run`: send the events after this one; default: all. The header `Last-Event-ID` comes before it."""


class ShortEvent(EventView, frozen=True, kw_only=True):
    """An event that is too large for a stream: it has no body."""

    omitted: int
    """How many bytes of JSON the event has. `GET runs/{id}/events` answers all of it."""


class ShortChunk(Chunk, frozen=True, kw_only=True):
    """A chunk that is too large for a stream: it has no value."""

    omitted: int


async def get_live(call: HttpCall[LiveQuery, None]) -> Answer:
    """Follow the events of a run, or the rows of runs and the board, as server-sent events."""
    backend, query = call.backend, call.query
    backend.streams.require_room()
    page = runs.RunsQuery(**{name: getattr(query, name) for name in runs.RunsQuery.__struct_fields__})
    if query.run is UNSET:
        if query.after is not UNSET:
            raise refuse("bad-parameter", "The parameter 'after' needs 'run', the id of the run to follow.")
        listing: HttpCall[runs.RunsQuery, None] = replace(call, query=page)  # type: ignore[arg-type, assignment]
        read = partial(_read_page, listing)
        backend.examine_soon()
        values = await backend.read(read)  # before the answer begins: it may be refused
        backend.streams.require_room()  # others may have come meanwhile
        _require_page(backend, page)
        return _answer(
            call, lambda: PagePlace(backend.channels.get(page) or PageChannel(backend, page, read, values))
        )
    if page != runs.RunsQuery():
        raise refuse("bad-parameter", "With 'run', which follows one run, only 'after' can be given.")
    row = await backend.read(backend.store.run, query.run)
    after = _place(call, row)
    backend.streams.require_room()  # others may have come meanwhile
    return _answer(
        call, lambda: RunPlace(backend.channels.get(row.run_id) or RunChannel(backend, row), after)
    )


def _answer(call: HttpCall[Any, None], begin: Callable[[], ClientPlace]) -> Answer:
    return Answer(stream=partial(_serve, call, begin), media_type=EVENTS, headers=_HEADERS)


def _require_page(backend: Backend, page: runs.RunsQuery) -> None:
    """Raise `Refused` if too many other pages are followed: each is read every second, and kept in memory."""
    others = sum(isinstance(one, PageChannel) for one in backend.channels.values())
    if page not in backend.channels and others >= PAGES_MAX:
        raise refuse(
            "too-many-streams",
            f"Clients follow {PAGES_MAX} pages of runs with other parameters.",
            remedy="Use the same parameters as other clients, follow one run (`run=ID`), or try again later.",
            headers={"Retry-After": str(RETRY_S)},
        )


def _place(call: HttpCall[LiveQuery, None], row: RunRow) -> int:
    """Return the seq after which to send events. Raises `Refused` if the log does not have it."""
    given = call.headers.get(LAST_EVENT.lower())
    if given is None:
        seq = call.query.after or 0
    elif _SEQ.fullmatch(given):
        seq = int(given)
    else:
        raise refuse("bad-event-id", f"The header `{LAST_EVENT}` is not the id of an event.")
    if seq > row.seq:
        raise refuse("bad-event-id", f"Run {row.run_id!r} has no event {seq}: its log ends with {row.seq}.")
    return seq


async def _serve(call: HttpCall[Any, None], begin: Callable[[], ClientPlace], push: Push) -> None:
    """Send a stream to one client, until there is nothing more to send, or it must end."""
    backend = call.backend
    clock, place = backend.clock, begin()
    stream = backend.streams.open(call.who)
    place.channel.streams.add(stream)
    gone = asyncio.ensure_future(call.gone())
    gone.add_done_callback(lambda _: stream.end())
    try:
        part: bytes | None = _HELLO
        while part is not None and not stream.is_over:
            if part:
                await stream.send(push, part, clock.now())
            else:
                await stream.news.wait()
            stream.news.clear()
            part = await place.next_part()
            if not part and stream.is_silent(clock.now()):
                part = HEARTBEAT if part is not None else None
    except (HoldfastError, Refused) as fault:
        await stream.send(push, frame("problem", problems.problem_of(fault)), clock.now())
    finally:
        gone.cancel()
        place.channel.leave(stream)
        backend.streams.close(stream)


class Channel(ABC):
    """What the streams of several clients share: one coroutine that reads news for all of them."""

    def __init__(self, backend: Backend, key: Hashable) -> None:
        self.backend = backend
        self.streams: set[OpenStream] = set()
        self.last: bytes | None = None
        """The last part of every stream, if there is no more news."""
        self._key = key
        self._wakes = False
        backend.channels[key] = self
        self._reading = asyncio.ensure_future(self._read_on())

    def leave(self, stream: OpenStream) -> None:
        """Forget a stream that has ended, and end the channel if there is no other."""
        self.streams.discard(stream)
        if not self.streams:
            self._close()
            self._reading.cancel()

    def _close(self) -> None:
        if self.backend.channels.get(self._key) is self:
            del self.backend.channels[self._key]

    def wake(self) -> None:
        """Wake all streams, once for all news of this moment."""
        if not self._wakes:
            self._wakes = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._wakes = False
        for stream in self.streams:
            stream.news.set()

    async def _read_on(self) -> None:
        """Read news until there is no more, and then let the streams end."""
        try:
            self.last = await self.read_news()
        except Exception as fault:  # noqa: BLE001 - every exception becomes a problem
            self.last = frame("problem", problems.problem_of(fault))
        self._close()  # a client that comes from now on tries again
        self.wake()

    @abstractmethod
    async def read_news(self) -> bytes:
        """Read news, and return the last part of every stream when there is no more."""


class ClientPlace(ABC):
    """Up to where one client of a channel has been sent its news."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._is_last = False

    async def next_part(self) -> bytes | None:
        """Return what to send next; empty if there is nothing now, None if there is nothing more."""
        part = await self.next_news()
        if part or self.channel.last is None:
            return part
        if self._is_last:
            return None
        self._is_last = True
        return self.channel.last

    @abstractmethod
    async def next_news(self) -> bytes:
        """Return the news that the client has not been sent, or some of them; empty if there are none now."""


# --- the events of a run -----------------------------------------------------------------------------


class RunChannel(Channel):
    """The news of one run."""

    def __init__(self, backend: Backend, row: RunRow) -> None:
        self.run_id = row.run_id
        self.ring = Ring(row.seq)
        super().__init__(backend, row.run_id)

    async def read_news(self) -> bytes:
        """Follow the run until it is over."""
        following = self.backend.engine.follow(self.run_id, self.ring.base, chunks=True, stay=True)
        try:
            async for news in following:
                if isinstance(news, Chunk):
                    self.ring.add(chunk_frame(news), None)
                else:
                    self.ring.add(event_frame(news), news.seq)
                self.wake()
        finally:
            await following.aclose()
        row = await self.backend.read(self.backend.store.run, self.run_id)
        return frame("over", {"seq": row.seq, "status": row.status})


class RunPlace(ClientPlace):
    """Up to where a client has been sent the events of a run."""

    channel: RunChannel

    def __init__(self, channel: RunChannel, after: int) -> None:
        super().__init__(channel)
        self._after = after
        self._number: int | None = None
        """The number of the next frame in the ring; None if the client reads the log."""

    async def next_news(self) -> bytes:
        ring = self.channel.ring
        if self._after > ring.reached:  # the client has read the log in another server, which is ahead
            return b""
        if self._number is None or self._number < ring.begin:
            self._number = ring.number_after(self._after, self._number or 0)
        if self._number is None:
            backend = self.channel.backend
            part, self._after = await backend.read(
                _read_log, backend.store, self.channel.run_id, self._after, ring.reached
            )
            return part
        part = ring.since(self._number)
        self._number, self._after = ring.end, ring.reached
        return part


def _read_log(store: Store, run_id: str, after: int, upto: int) -> tuple[bytes, int]:
    """Return some of the frames after an event, and the seq of the last of them. A part of the log that is missing is replaced by
    the frame `reset`.
    """
    rows = store.events(run_id, after, upto, limit=PAGE)
    frames: list[bytes] = []
    begin = rows[0].seq - 1 if rows else upto
    if begin != after:
        frames.append(frame("reset", {"seq": begin}, seq=begin))
    size, reached = 0, begin
    for row in rows:
        frames.append(event_frame(event_view(open_row(row, store.blobs))))
        size, reached = size + len(frames[-1]), row.seq
        if size >= PIECE_BYTES:
            break
    return b"".join(frames), reached


def event_frame(event: EventView) -> bytes:
    """Return the frame of an event, without its body if it is too large."""
    data = encode(event)
    if len(data) > FRAME_BYTES_MAX:
        given = msgspec.structs.asdict(event) | {"body": {}}
        data = encode(ShortEvent(**given, omitted=len(data)))
    return frame("event", data, seq=event.seq)


def chunk_frame(chunk: Chunk) -> bytes:
    """Return the frame of a chunk, without its value if it is too large."""
    data = encode(chunk)
    if len(data) > FRAME_BYTES_MAX:
        given = msgspec.structs.asdict(chunk) | {"value": None}
        data = encode(ShortChunk(**given, omitted=len(data)))
    return frame("chunk", data)


# --- rows and the board ------------------------------------------------------------------------------

Values = dict[str, bytes]
"""Name of a value -> the frame that sends it."""


class PageChannel(Channel):
    """The present rows of a page of runs, and the board."""

    def __init__(
        self, backend: Backend, page: runs.RunsQuery, read: Callable[[], Values], values: Values
    ) -> None:
        self._read = read
        self.count = 0
        """How many values have changed so far."""
        self.values: dict[str, tuple[int, bytes]] = {}
        """Name of a value -> the number of its last change, and its frame."""
        self._take(values)
        super().__init__(backend, page)

    def _take(self, values: Values) -> None:
        known, self.values = self.values, {}
        for name, data in values.items():
            before = known.get(name)
            if before is None or before[1] != data:
                self.count += 1
                before = (self.count, data)
            self.values[name] = before

    async def read_news(self) -> bytes:
        """Read the page again and again."""
        while True:
            await sleep(self.backend.clock, LOOK_S)
            before = self.count
            self.backend.examine_soon()
            async with self.backend.looks:  # they leave threads for requests, however many pages are followed
                self._take(await self.backend.read(self._read))
            if self.count != before:
                self.wake()


class PagePlace(ClientPlace):
    """Which values a client has been sent."""

    channel: PageChannel

    def __init__(self, channel: PageChannel) -> None:
        super().__init__(channel)
        self._seen = 0

    async def next_news(self) -> bytes:
        if self._seen == self.channel.count:
            return b""
        parts: list[bytes] = []
        size = 0
        for number, data in sorted(self.channel.values.values()):
            if number > self._seen and size < PIECE_BYTES:
                parts.append(data)
                size, self._seen = size + len(data), number
        return b"".join(parts)


def _read_page(call: HttpCall[runs.RunsQuery, None]) -> Values:
    found = runs.list_runs(call).runs
    values = {
        "board": frame("board", _board_values(call.backend)),
        "runs": frame("runs", {"ids": [row.id for row in found]}),
    }
    return values | {f"row {row.id}": frame("row", row) for row in found}


def _board_values(backend: Backend) -> dict[str, Any]:
    """Return the board without its time, so that it is sent only when something else has changed."""
    found = msgspec.structs.asdict(board.read_board(backend))
    return {name: value for name, value in found.items() if name != "at"}
