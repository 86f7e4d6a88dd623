"""SIGINT and SIGTERM while engines are open in the main thread: stop in order, then pass the signal on.

The first signal stops every open engine: no node starts any more, running nodes get `grace` seconds, and the engine records
which nodes it interrupted. A second signal makes the engine leave at once. Afterwards the signal is raised as
`KeyboardInterrupt` or `SystemExit(143)`: a library never swallows a signal. A handler that another part of the program has
installed (a web server's) stays in place, unless `always` is set: the caller of a blocking verb waits for nothing else.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import weakref
from contextlib import suppress
from types import FrameType
from typing import Any, Protocol, Self


class Stoppable(Protocol):
    """An engine, as far as a signal needs it."""

    def stop(self, reason: str = "stopped", *, grace: float | None = None) -> object: ...


_engines: weakref.WeakSet[Any] = weakref.WeakSet()


class Signals:
    """Handles SIGINT and SIGTERM for one open engine, from `__enter__` to `__exit__`."""

    def __init__(self, *, always: bool = False) -> None:
        self.received: int | None = None
        self.left = False
        self._always = always
        self._engine: Stoppable | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None
        self._before: dict[int, Any] = {}

    def watch(self, engine: Stoppable) -> Self:
        """Stop this engine, and every other open engine, when a signal arrives."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        _engines.add(engine)
        return self

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if self._is_ours(signal.getsignal(number)):
                    self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        if self._engine is not None:  # an engine that handles no signals was never watched
            _engines.discard(self._engine)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _is_ours(self, handler: Any) -> bool:
        """Whether a handler may be replaced: the system's, Python's, or the one by which asyncio cancels its main task."""
        if self._always:
            return handler is not signal.SIG_IGN
        of_asyncio = getattr(getattr(handler, "func", None), "__qualname__", "") == "Runner._on_sigint"
        return handler in (signal.SIG_DFL, signal.default_int_handler) or of_asyncio

    def _handle(self, number: int, frame: FrameType | None) -> None:
        assert self._loop is not None
        again = self.received is not None
        if again:  # a node may block the event loop, so that this has no effect: give the next signal to the old handler
            signal.signal(number, self._before[number])
        self.received = self.received or number
        with suppress(RuntimeError):  # the loop is closed: no engine is left to stop
            self._loop.call_soon_threadsafe(self._leave if again else self._stop, number)

    def stop_from_outside(self) -> None:
        """Stop the engine; callable from any thread."""
        if self._loop is not None and self._engine is not None:
            with suppress(RuntimeError):  # the loop is closed: the engine has ended by itself
                self._loop.call_soon_threadsafe(self._engine.stop, "interrupted")

    def _stop(self, number: int) -> None:
        for engine in list(_engines):
            engine.stop(signal.Signals(number).name)

    def _leave(self, number: int) -> None:
        self.left = True
        for engine in list(_engines):
            engine.stop(signal.Signals(number).name, grace=0)
        if self._main is not None:
            self._main.cancel()

    def pass_on(self) -> None:
        """Raise the exception for the signal that arrived, if one did. Call it after the engine has stopped in order."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            raise SystemExit(128 + self.received)
