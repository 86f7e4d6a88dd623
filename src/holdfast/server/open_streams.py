"""Open streams of server-sent events: how many there may be, that they end when they must, and what is sent if nothing happens.

A stream keeps no buffer of its own: it sends from what all streams of a run share (`Ring`), or from the log if it is too slow for
that, and waits while its client does not read. One coroutine looks after all streams, because a timer for each would cost more
than their events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.clock import Clock, sleep
from holdfast.server.access import Identity
from holdfast.server.json_body import encode
from holdfast.server.problems import refuse

STREAMS_MAX = 2000
"""How many streams may be open at the same time, unless an option says otherwise."""
HEARTBEAT_S = 15.0
STUCK_S = 30.0
"""How many seconds a client may take to read what was sent."""
PIECE_BYTES = 64 * 1024
"""About how much is given to a connection at a time. It holds as much again, so a client costs less than 256 KB."""
_SWEEP_S = 1.0
_CHECK_S = 2.0
"""How often the tokens of open streams are checked."""
RETRY_S = 5

HEARTBEAT = b":\n\n"

Push = Callable[[bytes], Awaitable[None]]
"""Sends a part of a stream, and returns when the client may be sent more."""


def frame(name: str, data: Any, *, seq: int | None = None) -> bytes:
    """Return an event of a stream. With `seq` it has an id, with which a client that returns says up to where it has read."""
    body = data if isinstance(data, bytes) else encode(data)
    head = b"" if seq is None else b"id: %d\n" % seq
    return b"%sevent: %s\ndata: %s\n\n" % (head, name.encode("ascii"), body)


class ClientStuck(Exception):
    """The client does not read what it is sent. The HTTP server closes the connection."""


class OpenStream:
    """An open stream of one client."""

    def __init__(self, who: Identity, now: float) -> None:
        self.who = who
        self.is_over = False
        """True if the stream must end: the client is gone, its token is not valid any more, or the server stops."""
        self.news = asyncio.Event()
        self.sent_at = now
        self._since: float | None = None
        self._owner = asyncio.current_task()
        self._is_stuck = False

    def end(self) -> None:
        """End the stream soon."""
        self.is_over = True
        self.news.set()

    async def send(self, push: Push, data: bytes, now: float) -> None:
        """Send a part of the stream, and wait until the client can be sent more."""
        self._since = self.sent_at = now
        try:
            await push(data)
        except asyncio.CancelledError:
            if not self._is_stuck or self._owner is None or self._owner.uncancel():
                raise
            raise ClientStuck from None
        self._since = None

    def is_silent(self, now: float) -> bool:
        """Return whether nothing was sent for so long that the client may think the connection is lost."""
        return now - self.sent_at >= HEARTBEAT_S

    def look_after(self, now: float) -> None:
        """End the stream of a client that does not read, and wake one that has had nothing to send for long."""
        if self._since is not None:
            if now - self._since >= STUCK_S and not self._is_stuck and self._owner is not None:
                self._is_stuck = self.is_over = True
                self._owner.cancel()
        elif self.is_silent(now):
            self.news.set()


class OpenStreams:
    """The open streams of a server. `is_valid` says whether the token of a stream is still valid."""

    def __init__(
        self,
        clock: Clock,
        is_valid: Callable[[Identity], Awaitable[bool]],
        limit: int = STREAMS_MAX,
    ) -> None:
        self._clock = clock
        self._is_valid = is_valid
        self.limit = limit
        self._open: set[OpenStream] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self.is_stopping = False

    def __len__(self) -> int:
        return len(self._open)

    def require_room(self) -> None:
        """Raise `Refused` if there are too many streams, or the server stops."""
        retry = {"Retry-After": str(RETRY_S)}
        if self.is_stopping:
            raise refuse("closed", "The server is stopping.", headers=retry)
        if len(self._open) >= self.limit:
            raise refuse("too-many-streams", f"There are {self.limit:,} open streams.", headers=retry)

    def open(self, who: Identity) -> OpenStream:
        """Return a new stream, for the calling coroutine."""
        stream = OpenStream(who, self._clock.now())
        stream.is_over = self.is_stopping
        self._open.add(stream)
        if self._sweeping is None:
            self._sweeping = asyncio.ensure_future(self._sweep())
        return stream

    def close(self, stream: OpenStream) -> None:
        """Forget a stream that has ended."""
        self._open.discard(stream)
        if not self._open and self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    def stop(self) -> None:
        """End all streams, and open no more."""
        self.is_stopping = True
        for stream in self._open:
            stream.end()

    async def _sweep(self) -> None:
        checked_at = self._clock.now()
        while True:
            await sleep(self._clock, _SWEEP_S)
            now = self._clock.now()
            for stream in self._open:
                stream.look_after(now)
            if now - checked_at >= _CHECK_S:
                checked_at = now
                await self._end_invalid(now)

    async def _end_invalid(self, now: float) -> None:
        """End the streams whose token has expired or was revoked."""
        for who in {stream.who.token_id: stream.who for stream in self._open}.values():
            is_valid = who.expires_at is None or now < who.expires_at
            with suppress(HoldfastError):  # a store that cannot be read ends no stream
                is_valid = is_valid and await self._is_valid(who)
            if not is_valid:
                for stream in self._open:
                    if stream.who.token_id == who.token_id:
                        stream.end()


class Ring:
    """The latest frames of a run: those of its events after `base`, without a gap, and of the chunks between them."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.reached = base
        """The seq of the last event."""
        self._entries: list[tuple[int, bool, bytes]] = []
        """For each frame: the seq of its event, or of the last event before its chunk; whether it is an event; the frame."""
        self.begin = 0
        """The number of the first frame; frames are numbered from 0."""
        self._size = 0
        self._joined: tuple[int, int, bytes] = (0, 0, b"")

    @property
    def end(self) -> int:
        """The number that the next frame will have."""
        return self.begin + len(self._entries)

    def add(self, data: bytes, seq: int | None) -> None:
        """Add the frame of an event, or of a chunk if `seq` is None. Above `PIECE_BYTES` in all, the oldest are dropped."""
        if seq is not None:
            self.reached = seq
        self._entries.append((self.reached, seq is not None, data))
        self._size += len(data)
        dropped = 0
        while self._size > PIECE_BYTES:
            base, _, oldest = self._entries[dropped]
            self.base = base
            self._size -= len(oldest)
            dropped += 1
        if dropped:
            del self._entries[:dropped]
            self.begin += dropped

    def number_after(self, seq: int, least: int = 0) -> int | None:
        """Return the number of the first frame after an event, but at least `least`; None if it is not here any more."""
        if seq < self.base:
            return None
        index = len(self._entries)
        while index:
            at, is_event, _ = self._entries[index - 1]
            if at <= seq if is_event else at < seq:
                break
            index -= 1
        return max(self.begin + index, least)

    def since(self, number: int) -> bytes:
        """Return all frames from this one on, as one part."""
        begin, end, joined = self._joined
        if (begin, end) != (number, self.end):  # most clients are at the same place
            joined = b"".join(data for _, _, data in self._entries[number - self.begin :])
            self._joined = (number, self.end, joined)
        return joined
