"""A client of the live events of the server, on a raw socket: it reads HTTP chunks and server-sent events itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

import msgspec

PATIENCE_S = 30.0


class Cut(Exception):
    """The connection was closed before the stream had ended."""


@dataclass(frozen=True)
class Frame:
    """An event of a stream; `event` is empty for a comment, such as a heartbeat."""

    event: str = ""
    id: int | None = None
    data: Any = None


class LiveClient:
    """Follows `GET /api/v1/live`. `last_id` is what it has read so far."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        """What was answered in place of a stream."""

    @classmethod
    async def open(
        cls,
        port: int,
        query: str,
        token: str,
        *,
        host: str = "127.0.0.1",
        name: str = "",
        last_id: int | str | None = None,
        path: str = "/api/v1/live",
        receive_bytes: int = 0,
    ) -> Self:
        """Connect, and read the head of the answer. With `receive_bytes`, the system receives no more than about that."""
        plain = socket.socket()
        if receive_bytes:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        plain.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(plain, (host, port))
        except BaseException:
            plain.close()
            raise
        reader, writer = await asyncio.open_connection(sock=plain, limit=receive_bytes or 2**16)
        lines = [
            f"GET {path}{query} HTTP/1.1",
            f"Host: {name or f'{host}:{port}'}",
            f"Authorization: Bearer {token}",
        ]
        lines += [f"Last-Event-ID: {last_id}"] if last_id is not None else []
        writer.write("\r\n".join([*lines, "", ""]).encode())
        client = cls(reader, writer)
        try:
            await client._read_head()
        except (asyncio.IncompleteReadError, OSError) as fault:
            writer.close()
            raise Cut from fault
        return client

    async def _read_head(self) -> None:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(head[0].split(" ")[1])
        self.headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        if "content-length" in self.headers:
            self.body = await self.reader.readexactly(int(self.headers["content-length"]))

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, until it has ended. Raises `Cut`."""
        try:
            while left := int(await self.reader.readuntil(b"\r\n"), 16):
                while left:
                    part = await self.reader.read(left)
                    if not part:
                        raise Cut
                    left -= len(part)
                    yield part
                await self.reader.readexactly(2)
        except (asyncio.IncompleteReadError, OSError) as fault:
            raise Cut from fault

    async def frames(self) -> AsyncIterator[Frame]:
        """Yield the events of the stream until it has ended. Raises `Cut`."""
        rest = b""
        async for part in self.parts():
            *texts, rest = (rest + part).split(b"\n\n")
            for text in texts:
                yield read_frame(text)

    async def next(self, *kinds: str) -> Frame:
        """Return the next event, of one of these kinds if any are given; comments are passed over."""
        if not hasattr(self, "_frames"):
            self._frames = self.frames()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await anext(self._frames)
                if found.event and (not kinds or found.event in kinds):
                    return found

    async def next_comment(self) -> None:
        if not hasattr(self, "_frames"):
            self._frames = self.frames()
        async with asyncio.timeout(PATIENCE_S):
            while (await anext(self._frames)).event:
                pass

    async def rest(self) -> list[Frame]:
        """Return all events until the stream has ended."""
        if not hasattr(self, "_frames"):
            self._frames = self.frames()
        async with asyncio.timeout(PATIENCE_S):
            return [found async for found in self._frames if found.event]

    def close(self) -> None:
        self.writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def read_frame(text: bytes) -> Frame:
    """Read the lines of an event."""
    found: dict[str, Any] = {}
    for line in text.split(b"\n"):
        name, _, value = line.partition(b": ")
        match name:
            case b"id":
                found["id"] = int(value)
            case b"event":
                found["event"] = value.decode()
            case b"data":
                found["data"] = msgspec.json.decode(value)
    return Frame(**found)
