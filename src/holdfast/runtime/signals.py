"""SIGINT and SIGTERM while an engine is open in the main thread: stop gracefully, then pass the signal on.

An engine that executes nothing (it holds no run, and no `work()` is in progress) leaves signals alone: the handler from before
gets them. If an engine executes something, the first signal stops every open engine: no node starts any more, running nodes get
`grace` seconds, and the engine records which nodes it interrupted. When all have stopped, `KeyboardInterrupt` or
`SystemExit(143)` is raised in the task that opened the engine, whatever that task waits for: a library never swallows a signal.
A second signal ends the grace period, and raises that exception at once.

A handler that another part of the program has installed (a web server's) stays in place, unless `always` is set: the caller of
a blocking function waits for nothing else. For the same reason such a function returns at the first signal if it executes
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import Context
from functools import partial
from types import FrameType
from typing import Any, Protocol

from holdfast.errors import ContextError
from holdfast.runtime import nesting
from holdfast.runtime.holdings import Holdings
from holdfast.runtime.settings import Settings

_log = logging.getLogger("holdfast")


class Stopping:
    """The object that `Engine.stop` returns. The engine stops whether or not this object is awaited; `await` waits until the
    engine executes no run any more.

    Raises `ContextError` if it is awaited inside a node of that engine: the node would wait for itself.
    """

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings

    def __await__(self) -> Generator[Any, None, None]:
        if (run_id := nesting.run_of(self._holdings)) is not None:
            raise ContextError(
                f"a node of run {run_id!r} waits until its own engine has stopped, but the engine waits until that node has "
                "ended. Inside a node, call engine.stop() without `await`."
            )
        return self._holdings.stopped().__await__()


class Stoppable(Protocol):
    """The part of an engine that the signal handler uses."""

    @property
    def is_executing(self) -> bool: ...

    settings: Settings

    def stop(self, reason: str = "stopped", *, grace: float | None = None) -> Stopping: ...


class Signals:
    """Handles SIGINT and SIGTERM for one engine, from `open` to `close`."""

    always = False
    """True if handlers that another part of the program has installed are replaced, too."""
    announces = True
    """True if the first signal is logged, with the grace period; False if the program reports the signal itself."""
    received: int | None = None
    """The number of the first signal that this object has handled; None if there was none."""
    is_closing = False
    """True if the task that opened the engine is closing it now, and will pass the signal on by itself."""
    _has_left = False

    def __init__(self, engine: Stoppable) -> None:
        self.engine = engine
        self.loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None
        self.before: dict[int, Any] = {}
        self._draining: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Handle signals from now on, for the task that calls this."""
        self.loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        _open.add(self)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if self._may_replace(signal.getsignal(number)):
                    self.before[number] = signal.signal(number, self._handle)

    def close(self) -> None:
        """Stop handling signals. A handler that was installed after this one stays."""
        _open.discard(self)
        for number in self.before:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, self._below(number))

    def pass_on(self) -> None:
        """Raise the exception for the signal that arrived, if one did. Call it after the engine has stopped."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            raise SystemExit(128 + self.received)

    def stop_from_outside(self) -> None:
        """Stop the engine; if it executes nothing, end the call that uses it. May be called from any thread."""
        self.soon(lambda: self.engine.stop("interrupted") if self.engine.is_executing else self._cancel())

    # --- in the signal handler ------------------------------------------------------------------------

    def _may_replace(self, handler: Any) -> bool:
        if isinstance(getattr(handler, "__self__", None), Signals):
            return True
        if self.always:
            return handler not in (None, signal.SIG_IGN)
        of_asyncio = getattr(getattr(handler, "func", None), "__qualname__", "") == "Runner._on_sigint"
        return handler in (signal.SIG_DFL, signal.default_int_handler) or of_asyncio

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            # A node may block the event loop, so that leaving has no effect: give the next signal to the program's own handler.
            signal.signal(number, self._below(number, engines=True))
            self.soon(self._leave)
        elif any(other.engine.is_executing for other in _open if other.loop is self.loop):
            self.received = number
            self.soon(self._stop)
        elif self.always:
            self.received = number
            self.soon(self._leave)
        else:
            self._leave_alone(number, frame)

    def _leave_alone(self, number: int, frame: FrameType | None) -> None:
        handler = self._below(number)
        if callable(handler):
            handler(number, frame)
        elif handler is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _below(self, number: int, *, engines: bool = False) -> Any:
        """Return the handler that was installed before this one. Handlers of closed engines are passed over; if `engines` is
        true, those of open engines too.
        """
        handler = self.before[number]
        while isinstance(other := getattr(handler, "__self__", None), Signals):
            if other in _open and not engines:
                break
            handler = other.before[number]
        return handler

    def soon(self, call: Callable[[], object]) -> None:
        """Call a function on the event loop soon, in an empty context: the signal may have interrupted the code of a node,
        which must not wait for its own engine.
        """
        if self.loop is not None:
            with suppress(RuntimeError):  # the loop is closed: no engine is left that could be stopped
                self.loop.call_soon_threadsafe(call, context=Context())

    # --- on the event loop ----------------------------------------------------------------------------

    def _stop(self) -> None:
        if self.announces:
            _log.warning(
                "%s: no node starts any more, and running nodes have %g s to end. A second signal stops them at once.",
                signal.Signals(self.received or signal.SIGTERM).name,
                self.engine.settings.grace,
            )
        stops = self._stop_all()
        if not self.always:  # a blocking function returns by itself
            self._draining = asyncio.get_running_loop().create_task(self._drain(stops))

    def _stop_all(self, *, grace: float | None = None) -> list[Stopping]:
        """Stop every open engine. Returns the objects to await for the engines of this event loop."""
        name = signal.Signals(self.received or signal.SIGTERM).name
        stops = []
        for other in list(_open):
            if other.loop is self.loop:
                stops.append(other.engine.stop(name, grace=grace))
            else:
                other.soon(partial(other.engine.stop, name, grace=grace))
        return stops

    async def _drain(self, stops: list[Stopping]) -> None:
        """Wait until the engines have stopped; then cancel the task that opened this engine, unless it ends already."""
        for stopping in stops:
            await stopping
        if not self.is_closing and not self._has_left:
            self._cancel()

    def _leave(self) -> None:
        self._has_left = True
        self._stop_all(grace=0)
        if not self.is_closing:
            self._cancel()

    def _cancel(self) -> None:
        """Cancel the task that opened the engine: it closes the engine, and passes the signal on. If that task has ended, the
        exception is raised in the event loop, which then ends all its tasks.
        """
        if self._main is None or self._main.done():
            asyncio.get_running_loop().call_soon(self.pass_on)
        else:
            self._main.cancel()


_open: weakref.WeakSet[Signals] = weakref.WeakSet()
