"""Time, as the engine sees it. Everything that waits goes through a clock, so that tests can own it
(`holdfast.testing.ManualClock`).
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Something that will be called, unless cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall-clock time in seconds since the epoch, and calls at a time of it."""

    def now(self) -> float: ...

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        """Call this on the running event loop, at that time or right away if it has passed."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        # A timer that was cancelled stays with its loop until its time: it must not keep a node's context alive.
        plain = contextvars.Context()
        return asyncio.get_running_loop().call_later(max(0.0, at - time.time()), call, context=plain)


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait for that long, by this clock."""
    woken = asyncio.Event()
    timer = clock.call_at(clock.now() + seconds, woken.set)
    try:
        await woken.wait()
    finally:
        timer.cancel()
