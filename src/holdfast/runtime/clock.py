"""The clock of an engine. Every wait goes through it, so that tests can control time (`holdfast.testing.ManualClock`)."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is scheduled, and can be cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall-clock time in seconds since the epoch, and calls scheduled by it."""

    def now(self) -> float: ...

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        """Schedule `call` on the running event loop: at the time `at`, or right away if that has passed."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        # The event loop holds a cancelled timer until its time: the timer must not keep a node's context alive.
        plain = contextvars.Context()
        return asyncio.get_running_loop().call_later(max(0.0, at - time.time()), call, context=plain)


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait for this many seconds by the given clock."""
    woken = asyncio.Event()
    timer = clock.call_at(clock.now() + seconds, woken.set)
    try:
        await woken.wait()
    finally:
        timer.cancel()
