"""A clock that the test controls. `ManualClock` does not move until the test advances it, so that no test sleeps and
every run of a test sees the same times.

    clock = ManualClock(auto=True)
    async with Engine("memory://t", clock=clock, luck=random.Random(1), inline=True) as engine: ...

With `inline=True` the engine does everything on the event loop. With `auto` the clock jumps to the next timer whenever the
loop has nothing else to do: retries, timeouts and polls happen without delay, in order, and at their exact time. Invariant:
time never goes back, and no timer is called before its time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from holdfast.testing.event_loops import is_idle

STARTS_AT = 1_700_000_000.0


def _nothing() -> None: ...


class ManualTimer:
    """A call that is scheduled for a time of a `ManualClock`."""

    __slots__ = ("at", "call", "cancelled", "loop")

    def __init__(self, at: float, call: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self.at = at
        self.call = call
        self.loop = loop
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        self.call = _nothing  # the timer stays in the queue until its time, and must not keep objects alive

    @property
    def waits(self) -> bool:
        """True while the timer is pending: it was not cancelled, and its event loop is not closed."""
        return not self.cancelled and not self.loop.is_closed()


class ManualClock:
    """A clock for `Engine(clock=…)` and, as `clock.now`, for a store. If `auto` is true, it advances itself when the event loop
    is idle.

    `auto` sees only the timers of this clock and the event loop's queue. A node that waits for anything else (a thread, a
    socket, `asyncio.sleep`) looks idle to the clock: timers may then be called before that wait ends.
    """

    def __init__(self, at: float = STARTS_AT, *, auto: bool = False) -> None:
        self._at = at
        self._auto = auto
        self._order = itertools.count()
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._watched: asyncio.AbstractEventLoop | None = None

    def now(self) -> float:
        return self._at

    def call_at(self, at: float, call: Callable[[], None]) -> ManualTimer:
        """Call `call` on the running loop when the clock reaches `at`; if that time has passed, in the loop's next round."""
        loop = asyncio.get_running_loop()
        timer = ManualTimer(at, call, loop)
        if at <= self._at:
            loop.call_soon(_ring, timer)
        else:
            heapq.heappush(self._timers, (at, next(self._order), timer))
            self._watch(loop)
        return timer

    @property
    def next_at(self) -> float | None:
        """The time of the next timer, or None if no timer is pending."""
        while self._timers and not self._timers[0][2].waits:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Every timer that becomes due on the way is called at its own time, in order."""
        if seconds < 0:
            raise ValueError(f"advance({seconds}): a clock cannot go back. Give 0 seconds or more.")
        until = self._at + seconds
        while (at := self.next_at) is not None and at <= until:
            self._ring_next()
        self._at = until

    def advance_to_next(self) -> bool:
        """Jump to the next timer and call it, with all others of the same time. Return False if no timer is pending."""
        at = self.next_at
        if at is None:
            return False
        while self.next_at == at:
            self._ring_next()
        return True

    def _ring_next(self) -> None:
        at, _, timer = heapq.heappop(self._timers)
        self._at = max(self._at, at)
        _ring(timer)

    # --- auto -----------------------------------------------------------------------------------------

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._auto and self._watched is not loop:
            self._watched = loop
            loop.call_soon(self._jump_when_idle, loop)

    def _jump_when_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run in every round of the loop while timers are pending, and advance the clock when the loop is otherwise idle."""
        if is_idle(loop):
            self.advance_to_next()
        if self.next_at is None:
            self._watched = None  # the next `call_at` starts this check again
        else:
            loop.call_soon(self._jump_when_idle, loop)


def _ring(timer: ManualTimer) -> None:
    if timer.waits:
        timer.call()
