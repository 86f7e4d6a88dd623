"""Listeners: objects that an engine notifies about the runs it executes.

The engine's own followers, receipts and pruning are listeners; `Engine(listeners=…)` takes more, a tracer for example. All
methods are called on the event loop and must return quickly: hand long work to a thread.

Invariants
- A listener that raises harms nothing: the error is logged once for each listener, and the run continues.
- A method that no listener has costs nothing: the engine does not even make its argument.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

import msgspec

from holdfast.errors import SettingError
from holdfast.reading.chunks import Chunk

_log = logging.getLogger("holdfast")


class NodeCall(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies one call of a node's function: an attempt of a visit, or of one item of a fan-out."""

    run_id: str
    flow: str
    node: str
    iteration: int
    execution: int
    attempt: int
    item: int | None = None


class Listener(Protocol):
    """The methods that an engine calls on its listeners. A class that derives from this one needs only the methods it uses."""

    def saved(self, run_id: str) -> None:
        """Called when new events of a run are durable, or the engine has stopped executing the run."""

    def streamed(self, chunk: Chunk) -> None:
        """Called when a node has streamed a chunk."""

    def called(self, call: NodeCall) -> None:
        """Called before a node's function is called. The start of the node is durable, unless the run has another durability
        than "sync".
        """

    def returned(self, call: NodeCall, error: BaseException | None) -> None:
        """Called when a call of a node's function has ended. `error` is None if the function returned, or the exception that
        ended it. If the node was unwound for a wait, or stopped, that is a `BaseException` of the engine and not an
        `Exception`.
        """


_Notified: TypeAlias = "tuple[tuple[object, Callable[..., None]], ...]"
_METHODS = ("saved", "streamed", "called", "returned")


class Listeners:
    """The listeners of one engine, sorted by the methods that they have."""

    def __init__(self, listeners: Iterable[object] = ()) -> None:
        """Notify these listeners. A listener may have only some of the methods of `Listener`."""
        self._listeners: list[object] = list(listeners)
        self._reported: set[int] = set()
        self._sort()

    def add(self, listener: object) -> None:
        """Notify one more listener from now on."""
        self._listeners.append(listener)
        self._sort()

    def remove(self, listener: object) -> None:
        """Stop notifying a listener."""
        self._listeners.remove(listener)
        self._sort()

    def _sort(self) -> None:
        self._saved = _having(self._listeners, "saved")
        self._streamed = _having(self._listeners, "streamed")
        self._called = _having(self._listeners, "called")
        self._returned = _having(self._listeners, "returned")
        self.hear_saves = bool(self._saved)
        """True if any listener has the method `saved`. Checked before `saved` is called, because that happens at every step."""
        self.hear_calls = bool(self._called or self._returned)
        """True if any listener has the method `called` or `returned`. Check this before making a `NodeCall`."""

    def saved(self, run_id: str) -> None:
        """Called when new events of a run are durable, or the engine has stopped executing the run."""
        for listener, notify in self._saved:
            try:
                notify(run_id)
            except Exception:  # noqa: BLE001 - a listener never harms a run
                self._report(listener, "saved")

    def streamed(self, chunk: Chunk) -> None:
        """Called when a node has streamed a chunk."""
        self._notify("streamed", self._streamed, chunk)

    def called(self, call: NodeCall) -> None:
        """Called before a node's function is called."""
        self._notify("called", self._called, call)

    def returned(self, call: NodeCall, error: BaseException | None) -> None:
        """Called when a call of a node's function has ended."""
        self._notify("returned", self._returned, call, error)

    def _notify(self, method: str, notified: _Notified, *about: Any) -> None:
        for listener, notify in notified:
            try:
                notify(*about)
            except Exception:  # noqa: BLE001 - a listener never harms a run
                self._report(listener, method)

    def _report(self, listener: object, method: str) -> None:
        if id(listener) not in self._reported:
            self._reported.add(id(listener))
            _log.warning(
                "the listener %r raised an error in %s(). No run is affected; further errors of this listener are not logged.",
                listener,
                method,
                exc_info=True,
            )


def check_listeners(given: Iterable[Listener]) -> tuple[Listener, ...]:
    """Return the listeners that a caller gives to an engine. Raises `SettingError` for an object that is not a listener."""
    if not isinstance(given, Iterable):
        raise SettingError(f"listeners={given!r}: give a list of listeners")
    found = tuple(given)
    for listener in found:
        if not any(callable(getattr(listener, method, None)) for method in _METHODS):
            raise SettingError(
                f"listeners=[{listener!r}]: it is not a listener, because it has none of the methods {', '.join(_METHODS)}"
            )
    return found


def _having(listeners: Iterable[object], method: str) -> _Notified:
    """Return the listeners that define this method (and do not only inherit the empty method of `Listener`), each with its
    method.
    """
    found = []
    for listener in listeners:
        own = getattr(listener, method, None)
        if own is not None and getattr(type(listener), method, None) is not getattr(Listener, method):
            found.append((listener, own))
    return tuple(found)
