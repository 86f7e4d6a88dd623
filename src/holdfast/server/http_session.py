"""Sends the requests of `Client` and reads the answers. Only this module imports aiohttp.

A request whose connection was cut is sent again, with the same key if it changes something, so that the server acts once.
Redirects are not followed, certificates are verified, and an answer that is too large or too slow is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from holdfast.core import VERSION
from holdfast.errors import SettingError
from holdfast.storage.http.connections import ANSWER_S, API, CONNECT_S, JSON_BYTES_MAX, WHOLE_S
from holdfast.storage.http.problem_types import (
    refusal_of,
    too_large,
    too_slow,
    unreachable,
    unreadable,
    wrong_certificate,
)
from holdfast.storage.http.server_url import ServerUrl

try:
    import aiohttp
except ImportError:
    raise SettingError(
        "hf.Client, and requests over HTTP, need the package aiohttp: pip install 'holdfast[http]', or '.[http]' in a clone"
    ) from None

T = TypeVar("T")
Words = Mapping[str, Any]

AGAIN_S = (0.1, 0.4, 1.6)
"""For how many seconds to wait before a request is sent again whose connection was cut."""
_PIECE = 256 * 1024
_FRAME_BYTES_MAX = 4 * 1024 * 1024
_FRAMES_MAX = 100
Frames = asyncio.Queue[tuple[str, bytes] | Exception | None]
_CUT = (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, aiohttp.ClientOSError)


class HttpSession:
    """Sends requests to one server, over connections that are kept."""

    def __init__(self, url: ServerUrl, token: str | None) -> None:
        self.url = url
        headers = {"User-Agent": f"holdfast/{VERSION}", "Accept-Encoding": "identity"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=ANSWER_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def get(self, path: str, kind: type[T], words: Words | None = None) -> T:
        """Get the JSON answer of a path, with these parameters. Raises the error that the server reports."""
        return await self.send("GET", path, kind, words=words)

    async def send(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        words: Words | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Send a request, and return its JSON answer. A request with a body needs an `Idempotency-Key` among its headers."""
        return self.decode(await self._send(method, path, words, body, headers or {}), kind)

    def decode(self, data: bytes, kind: type[T]) -> T:
        """Decode JSON that the server has sent. Raises `StoreUnusable`."""
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, RecursionError) as fault:
            raise unreadable(self.url.text, fault) from None

    async def _send(
        self, method: str, path: str, words: Words | None, body: Any, headers: Mapping[str, str]
    ) -> bytes:
        was_cut = False
        for again_s in (*AGAIN_S, None):
            try:
                async with self.open(method, path, words=words, body=body, headers=headers) as answer:
                    return await self._read(answer)
            except (
                aiohttp.ClientConnectorError
            ) as fault:  # nobody listens: after a cut, the server may be starting again
                if not was_cut or again_s is None:
                    raise unreachable(self.url.text, fault.os_error) from None
            except _CUT as fault:
                was_cut = True
                if again_s is None:
                    raise unreachable(self.url.text, fault) from None
            await asyncio.sleep(again_s)
        raise AssertionError

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        words: Words | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and open its answer, which must be a success. Connection errors of aiohttp are left to the caller."""
        sent = dict(headers or {})
        if body is not None:
            sent["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method,
                f"{self.url.text}{API}{path}",
                params=_params(words or {}),
                data=msgspec.json.encode(body) if body is not None else None,
                headers=sent,
                allow_redirects=False,
            ) as answer:
                if not 200 <= answer.status < 300:
                    media_type, place = (
                        answer.headers.get("Content-Type", ""),
                        answer.headers.get("Location", ""),
                    )
                    raise refusal_of(
                        self.url.text, answer.status, media_type, place, await self._read(answer)
                    )
                yield answer
        except aiohttp.ClientConnectorCertificateError as fault:
            reason = fault.certificate_error
            raise wrong_certificate(
                self.url.text, getattr(reason, "verify_message", "") or str(reason)
            ) from None
        except TimeoutError:
            raise too_slow(self.url.text, ANSWER_S) from None
        except aiohttp.ClientConnectionError:
            raise
        except (aiohttp.ClientResponseError, aiohttp.InvalidURL) as fault:
            raise unreachable(self.url.text, fault) from None

    @asynccontextmanager
    async def stream(self, path: str, words: Words) -> AsyncIterator[Frames]:
        """Open a stream of server-sent events: a queue of frames, each a name and its data. Then follows None if the stream was
        cut, or the error that ended it.
        """
        frames: Frames = asyncio.Queue(_FRAMES_MAX)
        reading = asyncio.create_task(self._fill(frames, path, words))
        try:
            yield frames
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _fill(self, frames: Frames, path: str, words: Words) -> None:
        end: Exception | None = None
        try:
            async with self.open("GET", path, words=words) as answer:
                await self._read_frames(answer, frames)
        except aiohttp.ClientConnectorError as fault:
            end = unreachable(self.url.text, fault.os_error)
        except _CUT:
            pass
        except Exception as fault:  # noqa: BLE001 - the follower raises it; it would wait for ever otherwise
            end = fault
        await frames.put(end)

    async def _read_frames(self, answer: aiohttp.ClientResponse, frames: Frames) -> None:
        name, data, size, rest = "", b"", 0, b""
        async for piece in answer.content.iter_any():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                size += len(line)
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode("ascii", "replace")
                elif line.startswith(b"data: "):
                    data += line[6:].rstrip(b"\r")
                elif not line.strip():
                    if name:
                        await frames.put((name, data))
                    name, data, size = "", b"", 0
            if size + len(rest) > _FRAME_BYTES_MAX:
                raise too_large(self.url.text, _FRAME_BYTES_MAX)

    async def _read(self, answer: aiohttp.ClientResponse) -> bytes:
        data = bytearray()
        async with asyncio.timeout(WHOLE_S):
            async for piece in answer.content.iter_chunked(_PIECE):
                data += piece
                if len(data) > JSON_BYTES_MAX:
                    raise too_large(self.url.text, JSON_BYTES_MAX)
        return bytes(data)


def _params(words: Words) -> list[tuple[str, str]]:
    """Return the parameters of a query. One that is None is left out; one that is a list is given several times."""
    given = {name: value if isinstance(value, (list, tuple)) else (value,) for name, value in words.items()}
    return [
        (name, str(one).lower() if isinstance(one, bool) else str(one))
        for name, values in given.items()
        for one in values
        if one is not None
    ]
