"""A client that sends requests as fast as a server answers them, over connections that are kept.

It understands only what it needs of HTTP: the status and the length of an answer. So it takes a small part of the time that the
server takes, and the two fit on two cores.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvloop

from bench.raw import percentile

_ETAG = re.compile(rb"\r\netag: *([^\r]+)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass
class Load:
    """What a load has measured."""

    wall_s: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    took_ms: list[float] = field(default_factory=list)
    """The time of every answer, sorted."""
    size: int = 0
    """The bytes of the largest body."""
    etag: str = ""
    """The entity tag of the last answer."""

    @property
    def count(self) -> int:
        return sum(self.statuses.values())

    @property
    def rate(self) -> float:
        return self.count / self.wall_s

    def ms_at(self, part: float) -> float:
        return percentile(self.took_ms, part)


class _Client(asyncio.Protocol):
    """A connection that sends the next request when the last was answered."""

    def __init__(
        self, load: Load, next_request: Callable[[], bytes | None], ended: asyncio.Future[None]
    ) -> None:
        self._load = load
        self._next = next_request
        self._ended = ended
        self._seen = bytearray()
        self._need = 0
        self._status = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_exception(exc or ConnectionError("the server has closed a connection"))

    def _send(self) -> None:
        request = self._next()
        if request is None:
            if not self._ended.done():
                self._ended.set_result(None)
            self._transport.close()
            return
        self._began = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if not self._status:
            end = self._seen.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._seen[: end + 2])
            found, tag = _LENGTH.search(head), _ETAG.search(head)
            self._load.etag = tag[1].decode() if tag else ""
            self._status, body = int(head[9:12]), int(found[1]) if found else 0
            self._need = end + 4 + body
            self._load.size = max(self._load.size, body)
        if len(self._seen) < self._need:
            return
        self._load.took_ms.append((time.perf_counter() - self._began) * 1e3)
        self._load.statuses[self._status] += 1
        del self._seen[: self._need]
        self._status = 0
        self._send()


def get(port: int, path: str, *headers: str, token: str = "") -> bytes:
    """Return a GET request."""
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", *headers]
    lines += [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([*lines, "", ""]).encode()


def send(port: int, requests: list[bytes], *, count: int, connections: int = 16) -> Load:
    """Send this many requests, from the given ones in turn, and measure the answers."""
    load = Load()
    left = count

    def next_request() -> bytes | None:
        nonlocal left
        left -= 1
        return requests[left % len(requests)] if left >= 0 else None

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        waiting = []
        for _ in range(connections):
            ended = loop.create_future()
            waiting.append(ended)
            await loop.create_connection(
                lambda ended=ended: _Client(load, next_request, ended), "127.0.0.1", port
            )
        await asyncio.gather(*waiting)
        load.wall_s = time.perf_counter() - began

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    load.took_ms.sort()
    return load
