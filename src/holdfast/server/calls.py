"""What a handler gets (`HttpCall`) and returns (`Answer`), and what a route is (`ApiRoute`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from holdfast.server.access import Identity
from holdfast.server.backend import Backend
from holdfast.server.open_streams import Push
from holdfast.server.parameters import NoQuery
from holdfast.storage.tokens import Role

Q = TypeVar("Q")
B = TypeVar("B")

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall(Generic[Q, B]):
    """A request that the guard let through: from whom, for which route, with which values."""

    backend: Backend
    who: Identity
    values: Mapping[str, str]
    """The variable parts of the path, by name."""
    query: Q
    body: B
    headers: Mapping[str, str]
    """The headers of the request, by lower-case name. Headers that occur twice are left out."""
    gone: Callable[[], Awaitable[None]]
    """Returns when the client has closed the connection. Call it at most once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer that is more than data with status 200: give its `body`, or a `file`, or a `stream`."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    file: BinaryIO | None = None
    """An open file whose content is the body. It is read off the event loop, and closed when the answer was sent."""
    stream: Callable[[Push], Awaitable[None]] | None = None
    """Sends the body in parts, for as long as it likes."""
    media_type: str = JSON


class ApiRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: who may call which path, with what, and what answers."""

    method: str
    path: str
    role: Role | None
    """The role that is needed; None if no token is needed, which is possible only for a path without variable parts."""
    handler: Callable[[Any], Any]
    """A plain function, which is called in a thread, or a coroutine function, which must not block."""
    query: type[msgspec.Struct] = NoQuery
    body: Any = None
    """The type of the JSON body; None if the route takes no body."""
    output: Any = None
    """The type of the JSON answer."""
    preview: Any = None
    """The type of the JSON answer with `?preview=1`, with status 200; None if that is `output`, or if there is no preview."""
    headers: tuple[str, ...] = ()
    """The headers of the request that the route reads, besides those that every route reads."""
    media_type: str = JSON
    """The type of the answer; only JSON has an `output`."""
    statuses: tuple[int, ...] = (200,)
    """The statuses of a success. They all have the same output, except 304, which has none."""

    @property
    def summary(self) -> str:
        """What the route does: the first line of its handler's docstring."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]
