"""Serves the application over HTTP/1.1, with limits that uvicorn does not have. Only this module imports uvicorn.

A client that sends its head one byte at a time, or never reads its answer, would keep a connection for ever. `ClientConnection`
closes it: a head must be complete within `HEAD_S` seconds and `HEAD_BYTES_MAX` bytes, however slowly it comes, and a client that
does not take what is sent for `WRITE_S` seconds is dropped. It also refuses what the application cannot see: a target that is not
a path (`GET http://other/ HTTP/1.1`, `GET /runs#part HTTP/1.1`), and headers that come after the body.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from holdfast.errors import SettingError
from holdfast.server import MISSING_PACKAGES
from holdfast.server.addresses import join_host

try:
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError:
    raise SettingError(MISSING_PACKAGES) from None

T = TypeVar("T")

HEAD_S = 10.0
HEAD_BYTES_MAX = 32 * 1024
HEADERS_MAX = 100
WRITE_S = 30.0
KEEP_ALIVE_S = 20
_UNSENT_BYTES = 128 * 1024
"""How much the system keeps for a client that does not read, beside what is on the way to it."""
_FILES = 512
"""How many other files the process may have open beside its streams."""
_STOP_S = 2
"""How many seconds answers that are being sent get to end, when the server stops."""


class ClientConnection(HttpToolsProtocol):
    """A connection of a client. The deadline of a head begins with the connection, and then with the first byte of each head."""

    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._end_wait()
        super().connection_lost(exc)

    def _begin_head(self) -> None:
        self._in_head, self._head_bytes = True, 0
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_S, self._refuse, 408, "The head took too long.")

    def _end_head(self) -> None:
        self._in_head = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: int, why: str) -> None:
        """Close the connection, with a short answer if no other answer is being sent."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            body = why.encode("ascii")
            self.transport.write(
                b"HTTP/1.1 %d Refused\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
                % (status, len(body), body)
            )
        self.transport.close()

    # --- heads ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(431, "The head is too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # not a trailer
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._end_head()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > HEAD_BYTES_MAX or len(self.headers) > HEADERS_MAX:
            self._refuse(431, "The head is too large.")
        elif not self.url.startswith(b"/") or b"#" in self.url:
            self._refuse(400, "The target of the request must be a path.")
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None and not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.cycle is not None and not self.transport.is_closing():
            super().on_message_complete()

    # --- answers --------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_wait()
        super().resume_writing()

    def _end_wait(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class Host(uvicorn.Server):
    """Serves an application on an open socket until `stop` is called. It leaves signals to its caller."""

    def __init__(self, app: Any, listening: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=ClientConnection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=_STOP_S,
            )
        )
        self._listening = listening

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def host(self) -> None:
        """Serve until `stop` is called."""
        await self.serve(sockets=[self._listening])

    def stop(self) -> None:
        """Accept no more connections, and let `host` return soon."""
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Open a socket that listens at an address. Raises `SettingError`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as fault:
        raise SettingError(f"--host {host}: {fault.strerror}. Give an address of this machine.") from fault
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # the connections inherit it
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        listening.bind(address)
        listening.listen(2048)
        listening.setblocking(False)
    except OSError as fault:
        listening.close()
        raise SettingError(
            f"the server cannot listen at {join_host(host, port)}: {fault.strerror}. Choose another port with --port; 0 picks a "
            "free one."
        ) from fault
    return listening


def allow_connections(count: int) -> None:
    """Let this process have this many connections, and some files, as far as the system allows that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on the event loop that serves fastest."""
    factory = uvicorn.Config("", loop="uvloop", log_config=None).get_loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())
