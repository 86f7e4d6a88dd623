"""Where coroutines of nodes are called that want nothing but the state: one behind the other, in one task.

Most such coroutines never wait, and a task of its own costs more than the call. So a task takes up everything that is queued,
as long as nothing waits. A coroutine that waits keeps the task it is in, for itself alone, and what is queued behind it goes on
in another one: whoever asks for the current task inside a node, or waits there, sees what he would see anyway. What is
queued while others are called is called with them, but the event loop is not held up for longer than a moment: then it waits
for the next pass.

Each coroutine runs in the context that it is given: what one sets is not there for the next.
"""

from __future__ import annotations

import asyncio
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any

HOLD_S = 0.002
"""How long what follows from each other is called without a pass of the event loop in between: a few steps of a run."""


class Stage:
    """The coroutines of one event loop that are to be called. They must not raise."""

    def __init__(self, hold_s: float = HOLD_S, timer: Callable[[], float] = time.perf_counter) -> None:
        self._hold_s = hold_s
        self._timer = timer
        self._queued: deque[tuple[Coroutine[Any, Any, None], Context]] = deque()
        self._task: asyncio.Task[None] | None = None

    def call(self, coroutine: Coroutine[Any, Any, None], context: Context) -> None:
        """Have a coroutine begin in the next pass of the event loop."""
        self._queued.append((coroutine, context))
        # A task that somebody has cancelled before it began is done, and has left everything as it was.
        if self._task is None or self._task.done():
            self._begin()

    async def _take_up(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        left, until = len(self._queued), self._timer() + self._hold_s
        try:
            # What cancels a task is meant for what has just ended in it, not for what comes behind that.
            while self._queued and self._task is task and not task.cancelling():
                if left <= 0 and self._timer() >= until:  # others want the event loop, too
                    await _next_pass()
                    left, until = len(self._queued), self._timer() + self._hold_s
                left -= 1
                coroutine, context = self._queued.popleft()
                await _within(context, coroutine, self._leave)
        finally:
            if self._task is task:
                self._leave()

    def _leave(self) -> None:
        """Have another task go on with what is still queued."""
        self._task = None
        if self._queued:
            self._begin()

    def _begin(self) -> None:
        # Not by the loop's factory: one that starts tasks at once (Python 3.12) would start it inside whoever calls.
        self._task = asyncio.Task(self._take_up(), loop=asyncio.get_running_loop())


@types.coroutine
def _next_pass() -> Generator[None, None, None]:
    yield


@types.coroutine
def _within(
    context: Context, coroutine: Coroutine[Any, Any, None], waits: Callable[[], None]
) -> Generator[Any, Any, None]:
    """Await a coroutine in a context of its own. `waits()` is called when it has to wait for the first time."""
    step: Callable[[Any], Any] = coroutine.send
    given: Any = None
    told = False
    while True:
        try:
            awaited = context.run(step, given)
        except StopIteration:
            return
        if not told:
            told = True
            waits()
        try:
            step, given = coroutine.send, (yield awaited)
        except GeneratorExit:  # the task is dropped where it stands
            coroutine.close()
            raise
        except BaseException as raised:  # noqa: BLE001 - it is for the coroutine
            step, given = coroutine.throw, raised
