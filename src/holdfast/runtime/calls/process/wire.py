"""The messages between an engine and the process of a node: JSON in frames, over a socket that only these two have.

This module defines the messages and their frames; `executor` and `child` send them and act on them. Invariant: nothing in a
message becomes code. The names by which a process finds the function come from the engine's own flow, never from a store.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.core.events import Changes, Failure
from holdfast.runtime.failures import KeptBy

_LENGTH_BYTES = 8
_PIECE_BYTES = 1 << 20

T = TypeVar("T")


class Place(msgspec.Struct, frozen=True):
    """Where a function or class is defined."""

    module: str
    file: str | None
    name: str
    loaded_as: str | None = None
    """The name under which `__main__` can be imported, if it was run by its name (`python -m`)."""


class Told(msgspec.Struct, frozen=True):
    """The facts that the context of a node gives, and the values that the execution has kept so far."""

    run_id: str
    flow: str
    iteration: int
    execution: int
    attempt: int
    fresh: int
    key_root: str
    key_name: str
    chosen_key: str | None
    """The idempotency key that a plan has chosen for the visit."""
    idempotent: bool
    kept: dict[str, Any]
    withdrawn: list[str]
    """The slots of the waits that the execution has withdrawn."""
    park_after: float
    """Seconds after which a wait that an asyncio timer may end is unwound."""
    has_budget: bool = False
    """True if the run has a budget, so that the engine is asked before each step begins."""


class Order(msgspec.Struct, frozen=True, tag="order"):
    """The message with which the engine asks the process to call a function."""

    node: str
    function: Place
    state: Place
    plain: Any
    item: int | None
    items_of: str
    """The field that `each` returns, if it only returns a field: its declared type is that of the items."""
    is_wired: bool
    """True if the node belongs to a plan: its function gets the input that `plain` is, and not the state."""
    told: Told | None
    """The facts for the context of the node; None if its function takes no context."""
    memory_limit: int | None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True, tag="answer"):
    """The engine's reply to a request of the node's context."""

    value: Any = None
    refused: str | None = None
    refused_as: str = ""
    """The class of the exception with this message."""
    parked: list[str] | None = None
    """The slots that the node waits for, if it must unwind; otherwise None."""


class AskedByNode(msgspec.Struct, frozen=True, tag="asked"):
    """A request that the node's context sends to the engine."""

    verb: str
    given: dict[str, Any]


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """The message that the function has returned."""

    changes: Changes
    spent: bool
    """True if a thread that the function started still runs: then this process serves no other call."""


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """The message that the function has raised an exception, or could not be found."""

    failure: Failure
    names: list[str]
    """Module and name of the exception's class and of every parent class."""
    retry_after: float | None
    parked: list[str] | None
    """The slots that the node waits for, if it was unwound; otherwise None."""
    spent: bool
    kept: list[KeptBy] = []
    """The steps whose outcome the exception is."""


class Wire(Generic[T]):
    """One end of the socket; `T` is the type of the messages from the other end."""

    def __init__(self, end: socket.socket, comes: Any, *, is_over: Callable[[], bool] | None = None) -> None:
        self._end = end
        self._decode = msgspec.json.Decoder(comes).decode
        self._is_over = is_over
        """A function that is called once a second, and returns whether the other process has died: its end of the socket may
        stay open, because a third process holds it.
        """
        end.settimeout(None if is_over is None else 1.0)

    def send(self, message: Any) -> None:
        """Send a message. Raises `OSError` if the other process has died or closed the socket."""
        self.send_framed(encode_frame(message))

    def send_framed(self, frame: bytes) -> None:
        left = memoryview(frame)
        while left:
            try:
                left = left[self._end.send(left[:_PIECE_BYTES]) :]
            except TimeoutError:
                if self._is_over is not None and self._is_over():
                    raise BrokenPipeError from None

    def receive(self) -> T | None:
        """Return the next message; None if the other process has died or closed the socket."""
        head = self._read(_LENGTH_BYTES)
        if head is None:
            return None
        body = self._read(int.from_bytes(head, "big"))
        return None if body is None else self._decode(body)

    def close(self) -> None:
        self._end.close()

    def _read(self, count: int) -> bytearray | None:
        found = bytearray()
        while len(found) < count:
            try:
                piece = self._end.recv(min(count - len(found), _PIECE_BYTES))
            except TimeoutError:
                if self._is_over is not None and self._is_over():
                    return None
                continue
            except OSError:
                return None
            if not piece:
                return None
            found += piece
        return found


def encode_frame(message: Any) -> bytes:
    """Encode a message for the socket: its length, then JSON."""
    body = msgspec.json.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body
