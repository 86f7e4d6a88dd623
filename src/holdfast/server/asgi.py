"""The server as an ASGI application: the guard, then the table, then a handler. Only this module imports starlette.

The application needs no lifespan and works below a prefix (`Mount("/holdfast", hf.asgi(engine))`). It redirects nothing, sets no
cookie and allows no other site to read its answers.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from holdfast.errors import SettingError
from holdfast.reading.remedies import CommandLine
from holdfast.runtime.clock import Clock
from holdfast.runtime.engine import Engine
from holdfast.server import MISSING_PACKAGES, compression, guard, openapi, problems
from holdfast.server.access import Access, Identity
from holdfast.server.addresses import Addresses
from holdfast.server.backend import Backend
from holdfast.server.calls import Answer, ApiRoute, HttpCall
from holdfast.server.guard import Guard, RequestHead
from holdfast.server.json_body import decode, encode
from holdfast.server.open_streams import STREAMS_MAX, Push
from holdfast.server.parameters import read_query
from holdfast.server.problems import refuse
from holdfast.server.rates import Rates
from holdfast.server.table import Table
from holdfast.server.verb_headers import IF_MATCH
from holdfast.storage.tokens import Token

try:
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response, StreamingResponse
    from starlette.types import Receive, Scope, Send
except ImportError:
    raise SettingError(MISSING_PACKAGES) from None

_BODY_METHODS = ("POST", "PUT", "PATCH", "DELETE")
_PIECE = 256 * 1024
BODIES_BYTES_MAX = 64 * 1024 * 1024
"""How many bytes the bodies of all requests that are not answered yet may have together."""


def asgi(
    engine: Engine,
    *,
    public_urls: Iterable[str] = (),
    tokens: Iterable[Token] = (),
    anonymous: Identity | None = None,
    commands: CommandLine | None = None,
    clock: Clock | None = None,
    features: tuple[str, ...] = (),
    rate: float | None = None,
    streams: int = STREAMS_MAX,
    table: Table | None = None,
) -> Application:
    """Make an ASGI application that offers what this engine can do. The engine must be open while requests are answered.

    `public_urls` are the addresses under which the application is called, such as `https://holdfast.example.com`; on loopback
    it needs none. `tokens` are valid besides those in the store. With `anonymous`, requests without a token are accepted. With
    `rate`, each token may send that many requests per second. At most `streams` clients may follow events at the same time.
    """
    backend = Backend(engine, commands=commands, clock=clock)
    addresses = Addresses(public_urls)
    backend.public_urls, backend.features = addresses.public_urls, features
    backend.streams.limit = streams

    def find(token_id: str) -> Token | None:
        return backend.store.tokens.get(token_id)  # the store of this moment: the engine may be opened later

    backend.access = Access(
        given=tokens,
        find=find,
        read=backend.read,
        clock=backend.clock,
        anonymous=anonymous,
    )
    table = table or Table()
    checks = Guard(backend.access, addresses, table.open_paths, Rates(rate), backend.clock)
    return Application(backend, table, checks)


class Application:
    """The ASGI application. `stop` ends everything that waits."""

    def __init__(self, backend: Backend, table: Table, checks: Guard) -> None:
        self.backend = backend
        self.table = table
        self._guard = checks
        self._body_bytes = 0
        self._on_loop = {
            route.handler for route in table.routes if inspect.iscoroutinefunction(route.handler)
        }
        backend.document = openapi.document(table.routes, backend.public_urls)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._serve(Request(scope, receive), send)
            case "lifespan":
                await _live(receive, send)
            case _:  # a websocket: the server has none
                await send({"type": "websocket.close", "code": 1008})

    def stop(self) -> None:
        """End all requests that wait, because the server stops."""
        self.backend.close()

    async def _serve(self, request: Request, send: Send) -> None:
        began = asyncio.get_running_loop().time()
        route: ApiRoute | None = None
        with ExitStack() as opened:
            try:
                head = head_of(request.scope)
                who = await self._guard.admit(head)
                route, values = self.table.match(head.method, head.path)
                with self._holding() as hold:
                    answer = await self._answer(request, head, route, values, who, hold)
                if answer.file is not None:
                    opened.callback(answer.file.close)
                response = self._respond(answer, is_head=head.method == "HEAD")
            except ClientDisconnect:
                return
            except Exception as error:  # noqa: BLE001 - every exception becomes a problem
                response = _problem(error, request.scope)
            began_to_send = asyncio.get_running_loop().time()
            await response(request.scope, request.receive, send)
        is_stream = isinstance(response, _EventStream)  # it takes as long as the client likes
        spent = (began_to_send if is_stream else asyncio.get_running_loop().time()) - began
        method, path = (route.method, route.path) if route is not None else ("none", "none")
        self.backend.counts.add(method, path, response.status_code, spent)

    async def _answer(
        self,
        request: Request,
        head: RequestHead,
        route: ApiRoute,
        values: dict[str, str],
        who: Identity | None,
        hold: Callable[[int], None],
    ) -> Answer:
        if route.role is not None:
            assert who is not None
            guard.check_role(who, route.role)
        if (
            head.method not in guard.SAFE_METHODS
            and "if-match" in head.headers
            and IF_MATCH not in route.headers
        ):
            raise refuse("bad-request", f"This path has no preview, so it takes no header `{IF_MATCH}`.")
        query = read_query(request.scope["query_string"], route.query)
        body: Any = None
        if head.method in _BODY_METHODS:
            data = await _read_body(request, hold)
            if route.body is not None:
                body = await self.backend.read(decode, data or b"{}", route.body)
            elif data:
                raise refuse("bad-request", "This path takes no body.")
        call: HttpCall[Any, Any] = HttpCall(
            backend=self.backend,
            who=who or _NOBODY,
            values=values,
            query=query,
            body=body,
            headers={name: found[0] for name, found in head.headers.items() if len(found) == 1},
            gone=_Gone(request.receive),
        )
        if route.handler in self._on_loop:
            found = await route.handler(call)
        else:
            found = await self.backend.read(_call, route.handler, call)
        answer = found if isinstance(found, Answer) else Answer(body=encode(found))
        if route.method == "GET" and compression.is_compressible(answer, call.headers):
            return await self.backend.read(compression.compress, answer)
        return answer

    @contextmanager
    def _holding(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts bytes of a body, for as long as the request is not answered. It raises `Refused` if the
        bodies of all requests are too large together: clients that send theirs slowly would fill the memory.
        """
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if self._body_bytes + size > BODIES_BYTES_MAX:
                raise refuse(
                    "too-many-bodies",
                    "Other requests with large bodies are being received.",
                    headers={"Retry-After": "1"},
                )
            self._body_bytes += size
            held += size

        try:
            yield hold
        finally:
            self._body_bytes -= held

    def _respond(self, answer: Answer, *, is_head: bool) -> Response:
        headers = {**guard.HEADERS, **answer.headers}
        if answer.status == 304:
            return Response(None, 304, headers)
        headers["Content-Type"] = answer.media_type
        if is_head and (answer.file or answer.stream):
            return Response(None, answer.status, headers)
        if answer.stream is not None:
            return _EventStream(answer.stream, answer.status, headers)
        if answer.file is None:
            return Response(answer.body, answer.status, headers)
        return StreamingResponse(self._stream(answer.file), answer.status, headers)

    async def _stream(self, file: BinaryIO) -> AsyncIterator[bytes]:
        while True:
            piece = await self.backend.read(file.read, _PIECE)
            if not piece:
                return
            yield piece


def _call(handler: Any, call: HttpCall[Any, Any]) -> Answer:
    """Call a handler, and encode what it returns, in the thread in which this is called."""
    found = handler(call)
    return found if isinstance(found, Answer) else Answer(body=encode(found))


_NOBODY = Identity(token_id="", name="", role="read", by="")
"""Who calls a path that needs no token."""


class _EventStream(StreamingResponse):
    """A response whose parts are sent one by one, each when the client can be sent more."""

    def __init__(
        self, stream: Callable[[Push], Awaitable[None]], status: int, headers: dict[str, str]
    ) -> None:
        super().__init__((), status, headers)
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def push(part: bytes) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": True})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._stream(push)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Gone:
    """Waits until the client has closed the connection."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    async def __call__(self) -> None:
        message = await self._receive()
        while message["type"] != "http.disconnect":
            message = await self._receive()


def head_of(scope: Scope) -> RequestHead:
    """Return the head of a request, with the raw path below the prefix under which the application is mounted."""
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    client, server = scope.get("client"), scope.get("server")
    return RequestHead(
        method=scope["method"],
        path=_raw_path(scope),
        headers=headers,
        client=client[0] if client else "",
        server=(server[0], server[1]) if server else None,
    )


def _raw_path(scope: Scope) -> str:
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(scope["path"])
    prefix = scope.get("root_path", "").rstrip("/")
    if not prefix:
        return path
    parts = path.split("/")
    depth = prefix.count("/") + 1
    below = "/".join(parts[:depth])
    return "/" + "/".join(parts[depth:]) if unquote(below) == prefix else path


async def _read_body(request: Request, hold: Callable[[int], None]) -> bytes:
    """Read the body of a request; `hold` is called with the size of each piece. Raises `Refused` if it is too large or slow."""
    data = bytearray()
    try:
        async with asyncio.timeout(guard.BODY_SECONDS_MAX):
            async for piece in request.stream():
                hold(len(piece))
                data += piece
                if len(data) > guard.BODY_BYTES_MAX:
                    raise guard.too_large()
    except TimeoutError:
        raise refuse("too-slow", f"The body took longer than {guard.BODY_SECONDS_MAX:g} s.") from None
    return bytes(data)


def _problem(error: Exception, scope: Scope) -> Response:
    problem = problems.problem_of(error)
    headers = {**guard.HEADERS, **problems.headers_of(error)}
    if scope["method"] in _BODY_METHODS:
        headers["Connection"] = "close"  # the rest of the body is not read
    headers["Content-Type"] = problems.MEDIA_TYPE
    return Response(encode(problem), problem.status, headers)


async def _live(receive: Receive, send: Send) -> None:
    """Answer the messages of a server that calls the lifespan. The application needs none."""
    for _ in ("startup", "shutdown"):
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
