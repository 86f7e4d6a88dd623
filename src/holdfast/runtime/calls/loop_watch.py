"""`LoopWatch` notices that an async node blocks the event loop, and logs a warning that names the node and the line.

Nothing else can run meanwhile: no other node, no answer, no timer. The event loop cannot notice that itself, so the thread that
renews the leases looks, twice a second. A look costs the event loop one callback, and a step of a run nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType
from typing import NamedTuple

from holdfast.runtime.calls.body import Body

LOOK_S = 0.5
"""Seconds between two looks. After two looks at the same call, the loop has been blocked for longer than a second."""
_WARNED_MAX = 1000
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
_log = logging.getLogger("holdfast")


class _Blocking(NamedTuple):
    """The call of a node that the event loop executes now."""

    body: weakref.ref[Body]
    """Weak, because the call would keep alive what the node was given."""
    node: str
    code: CodeType
    line: int


class LoopWatch:
    """Watches the event loop of the thread that creates it. `executes` returns whether the engine executes runs now."""

    def __init__(self, thread: int, executes: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = thread
        self._executes = executes
        self._is_heard = True
        self._seen: _Blocking | None = None
        self._looked_at = 0.0
        self._warned: set[CodeType] = set()

    def look(self) -> None:
        """Look whether the event loop has moved since the last look. Called in another thread, every `LOOK_S` seconds."""
        now, before = time.monotonic(), self._looked_at
        self._looked_at = now
        if self._is_heard:
            self._seen = None
            if self._executes():
                self._is_heard = False
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._hear)
            return
        found = _find_blocking(self._thread)
        if (
            now - before > 2 * LOOK_S
        ):  # this process was suspended, or this thread was busy: the loop may not have had its turn
            found = None
        seen, self._seen = self._seen, found
        if found is not None and seen is not None and found.body() is seen.body():
            self._warn(found)

    def _hear(self) -> None:
        self._is_heard = True

    def _warn(self, found: _Blocking) -> None:
        if found.code in self._warned or len(self._warned) >= _WARNED_MAX:
            return
        self._warned.add(found.code)
        _log.warning(
            "node %r blocks the event loop for more than a second, at %s:%s, in %s. Nothing else is executed in this process "
            "meanwhile. Await what takes long, call it with `await asyncio.to_thread(…)`, or write the node as `def`, which is "
            "called in a thread.",
            found.node,
            os.path.relpath(found.code.co_filename),
            found.line,
            found.code.co_name,
        )


def _find_blocking(thread: int) -> _Blocking | None:
    """Return the call of a node that a thread executes at this moment; None if it executes something else. Of the frames of the
    node, the outermost one counts that is not ours: the function of the node itself.
    """
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001
    of_node: FrameType | None = None
    while frame is not None and frame.f_code is not _CALLS:
        if frame.f_code is _ENDS:
            return None
        if not frame.f_code.co_filename.startswith(_OURS):
            of_node = frame
        frame = frame.f_back
    if frame is None or of_node is None:
        return None
    body: Body = frame.f_locals["self"]
    return _Blocking(weakref.ref(body), body.start.node, of_node.f_code, of_node.f_lineno)


_CALLS = Body._await.__code__  # noqa: SLF001
"""The code that awaits the coroutine of a node."""
_ENDS = Body._leave.__code__  # noqa: SLF001
"""The code that reports the end of a call, after which the runner may call a router."""
