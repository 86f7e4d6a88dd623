"""One task that runs the coroutines of nodes without a context, one after the other.

Most such coroutines never wait, and a task of its own costs more than the call. So one task runs every queued coroutine, as long
as none of them waits. A coroutine that waits keeps the task for itself, and another task continues with the rest of the queue:
code in a node that asks for the current task, or waits, sees what it would see in a task of its own. Coroutines that are queued
meanwhile run in the same pass of the event loop, but only for a moment (`HOLD_S`): then they wait for the next pass.

Each coroutine runs in the `contextvars` context that it is given: a variable that one node sets is not visible to the next.
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
"""Seconds for which newly queued coroutines run without a pass of the event loop in between: a few steps of a run."""


class Stage:
    """A queue of coroutines that run on one event loop. They must not raise exceptions."""

    def __init__(self, hold_s: float = HOLD_S, timer: Callable[[], float] = time.perf_counter) -> None:
        self._hold_s = hold_s
        self._timer = timer
        self._queued: deque[tuple[Coroutine[Any, Any, None], Context]] = deque()
        self._task: asyncio.Task[None] | None = None

    def call(self, coroutine: Coroutine[Any, Any, None], context: Context) -> None:
        """Queue a coroutine; it begins in the next pass of the event loop."""
        self._queued.append((coroutine, context))
        # A task that was cancelled before it began is done, and has taken nothing from the queue.
        if self._task is None or self._task.done():
            self._begin()

    async def _run_queue(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        left, until = len(self._queued), self._timer() + self._hold_s
        try:
            # A cancellation is meant for the coroutine that has just ended in this task, not for the next one.
            while self._queued and self._task is task and not task.cancelling():
                if left <= 0 and self._timer() >= until:  # other tasks need the event loop, too
                    await _next_pass()
                    left, until = len(self._queued), self._timer() + self._hold_s
                left -= 1
                coroutine, context = self._queued.popleft()
                await _within(context, coroutine, self._leave)
        finally:
            if self._task is task:
                self._leave()

    def _leave(self) -> None:
        """Start another task for the rest of the queue."""
        self._task = None
        if self._queued:
            self._begin()

    def _begin(self) -> None:
        # Not by the loop's factory: an eager one (Python 3.12) would start the task inside the caller.
        self._task = asyncio.Task(self._run_queue(), loop=asyncio.get_running_loop())


@types.coroutine
def _next_pass() -> Generator[None, None, None]:
    yield


@types.coroutine
def _within(
    context: Context, coroutine: Coroutine[Any, Any, None], waits: Callable[[], None]
) -> Generator[Any, Any, None]:
    """Await a coroutine in its own context. `waits()` is called when the coroutine waits for the first time."""
    step: Callable[[Any], Any] = coroutine.send
    given: Any = None
    has_waited = False
    while True:
        try:
            awaited = context.run(step, given)
        except StopIteration:
            return
        if not has_waited:
            has_waited = True
            waits()
        try:
            step, given = coroutine.send, (yield awaited)
        except GeneratorExit:  # the task is destroyed before it has ended
            coroutine.close()
            raise
        except BaseException as raised:  # noqa: BLE001 - passed on to the coroutine
            step, given = coroutine.throw, raised
