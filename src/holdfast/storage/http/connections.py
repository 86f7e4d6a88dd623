"""Sends requests to a server and reads its answers, with plain blocking calls: one kept connection per thread.

A connection that was kept may have been closed by the server meanwhile: then the request is sent once more, over a new one.
That is safe, because a request that changes something carries an `Idempotency-Key`. Redirects are not
followed, the certificate of the server is verified, and an answer that takes too long or is too large is refused.
"""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.core import VERSION
from holdfast.storage.http.problem_types import (
    refusal_of,
    too_large,
    too_slow,
    unreachable,
    unreadable,
    wrong_certificate,
)
from holdfast.storage.http.row_format import HEADER, ROWS
from holdfast.storage.http.server_url import ServerUrl

T = TypeVar("T")

API = "/api/v1"
CONNECT_S = 10.0
ANSWER_S = 60.0
"""For how many seconds the server may send nothing."""
WHOLE_S = 300.0
"""How many seconds a whole answer may take."""
JSON_BYTES_MAX = 64 * 1024 * 1024
BLOB_BYTES_MAX = 1024 * 1024 * 1024
_PIECE = 256 * 1024
_CUT = (http.client.BadStatusLine, ConnectionError)
"""What a connection raises that the server has closed."""


class ServerAnswer(msgspec.Struct, frozen=True):
    """An answer of the server that is not a problem."""

    status: int
    body: bytes


class Connections:
    """Sends requests to one server. It may be used from several threads."""

    def __init__(
        self,
        url: ServerUrl,
        token: str | None,
        *,
        answer_s: float = ANSWER_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self._headers = {
            "User-Agent": f"holdfast/{VERSION}",
            HEADER: str(ROWS),
            "Accept-Encoding": "identity",
        }
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._answer_s = answer_s
        self._monotonic = monotonic
        self._tls: ssl.SSLContext | None = None
        self._threads = threading.local()
        self._opened: dict[int, http.client.HTTPConnection] = {}

    def get(self, path: str, kind: type[T]) -> T:
        """Get the JSON answer of a path. Raises the error that the server reports, `StoreUnusable` and `StoreBusy`."""
        return self._decode(self.send("GET", path).body, kind)

    def get_bytes(self, path: str) -> bytes:
        """Get the answer of a path as it is."""
        return self.send("GET", path, bytes_max=BLOB_BYTES_MAX).body

    def post(self, path: str, body: Any, kind: type[T], *, key: str, expects: str | None = None) -> T:
        """Post a JSON document. If the same request was sent before with this key, the server answers as it did then. `expects`
        is the digest of a preview that must still be true.
        """
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        if expects is not None:
            headers["If-Match"] = f'"{expects}"'
        return self._decode(self.send("POST", path, headers, msgspec.json.encode(body)).body, kind)

    def _decode(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, RecursionError) as fault:
            raise unreadable(self.url.text, fault) from None

    def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        bytes_max: int = JSON_BYTES_MAX,
    ) -> ServerAnswer:
        """Send a request, and return its answer. Raises the error that the server reports, `StoreUnusable` and `StoreBusy`."""
        target, sent = f"{self.url.prefix}{API}{path}", {**self._headers, **(headers or {})}
        kept = getattr(self._threads, "connection", None)
        try:
            if kept is not None and kept.sock is not None:
                try:
                    return self._exchange(kept, method, target, sent, body, bytes_max)
                except _CUT:
                    self.drop()
            return self._exchange(self._connect(), method, target, sent, body, bytes_max)
        except ssl.SSLCertVerificationError as fault:
            raise wrong_certificate(self.url.text, fault.verify_message) from None
        except TimeoutError:
            raise too_slow(self.url.text, self._answer_s) from None
        except (OSError, http.client.HTTPException) as fault:
            raise unreachable(self.url.text, fault) from None

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        bytes_max: int,
    ) -> ServerAnswer:
        finished = False
        try:
            connection.request(method, target, body, dict(headers))
            answer = connection.getresponse()
            data = self._read(answer, bytes_max)
            finished = True
        finally:
            if not finished:
                self.drop()
        if 200 <= answer.status < 300:
            return ServerAnswer(answer.status, data)
        media_type, place = answer.headers.get("Content-Type", ""), answer.headers.get("Location", "")
        raise refusal_of(self.url.text, answer.status, media_type, place, data)

    def _read(self, answer: http.client.HTTPResponse, bytes_max: int) -> bytes:
        data, until = bytearray(), self._monotonic() + WHOLE_S
        while piece := answer.read1(_PIECE):
            data += piece
            if len(data) > bytes_max:
                raise too_large(self.url.text, bytes_max)
            if self._monotonic() > until:
                raise TimeoutError
        if answer.length:  # the connection ended before the answer
            raise ConnectionResetError("the connection was closed in the middle of an answer")
        answer.close()  # or the connection would not be used again
        return bytes(data)

    # --- connections ---------------------------------------------------------------------------------

    def _connect(self) -> http.client.HTTPConnection:
        url = self.url
        made: http.client.HTTPConnection
        if url.scheme == "https":
            if self._tls is None:
                self._tls = ssl.create_default_context()
            made = http.client.HTTPSConnection(url.host, url.port, timeout=CONNECT_S, context=self._tls)
        else:
            made = http.client.HTTPConnection(url.host, url.port, timeout=CONNECT_S)
        made.connect()
        made.sock.settimeout(self._answer_s)
        self._threads.connection = made
        self._opened[threading.get_ident()] = made
        return made

    def drop(self) -> None:
        """Close the connection of this thread."""
        kept = getattr(self._threads, "connection", None)
        if kept is not None:
            kept.close()
            self._threads.connection = None

    def close(self) -> None:
        """Close all connections."""
        for connection in self._opened.values():
            connection.close()
        self._opened.clear()
        self._threads = threading.local()
