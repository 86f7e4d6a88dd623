"""When `holdfast watch` looks and shows: soon after a change, later if nothing changes, seldom if a look takes long or fails.

Looks are made in a thread of their own, so that a store that does not answer stops neither the screen nor Ctrl-C.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import NamedTuple

import msgspec

from holdfast.cli import screen
from holdfast.cli.watch_outputs import FRAME_S, Output, Watched
from holdfast.errors import StoreBusy, StoreUnusable
from holdfast.runtime.clock import Clock

_QUIET_S = 1.0
"""How many seconds are between two looks if nothing changes."""
_SHARE = 9
"""After a look, the store is left alone for at least this many times as long as the look took."""
_AWAY_S = (1.0, 30.0)
"""How many seconds are between two tries if the store does not answer: at first, and at most."""
_SLOW_S = 5.0
"""After how many seconds without an answer what is shown counts as old."""
_LEAVE_S = 0.5
"""How many seconds a look that is going on gets to end when the command ends."""


class Pace(msgspec.Struct):
    """When to look again."""

    shortest_s: float
    interval_s: float = 0.0
    away_s: float = 0.0
    """How many seconds are between two tries; 0 if the store answers."""

    def after_look(self, took_s: float, *, has_changed: bool, is_behind: bool) -> float:
        """Return how many seconds to wait after a look: longer if nothing changes, and if the look has taken long."""
        self.away_s = 0.0
        doubled = min(2 * self.interval_s, max(_QUIET_S, self.shortest_s))
        self.interval_s = max(self.shortest_s, 0.0 if has_changed else doubled)
        return 0.0 if is_behind else max(self.interval_s, _SHARE * took_s)

    def after_fault(self) -> float:
        """Return how many seconds to wait after a look that failed."""
        self.away_s = min(max(2 * self.away_s, _AWAY_S[0]), _AWAY_S[1])
        return self.away_s


class Looked(NamedTuple):
    """How a look has ended."""

    has_changed: bool = False
    fault: BaseException | None = None


class Looker:
    """Looks in a thread of its own: a store that does not answer stops neither the screen nor Ctrl-C."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._wanted: queue.SimpleQueue[tuple[float, tuple[int, int]] | None] = queue.SimpleQueue()
        self._looked: queue.SimpleQueue[Looked] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._look_on, name="holdfast-watch", daemon=True)
        self._thread.start()

    def ask(self, now: float, size: tuple[int, int]) -> None:
        """Begin a look."""
        self._wanted.put((now, size))

    def wait(self, seconds: float) -> Looked | None:
        """Wait until the look has ended, and return how; None if it has not ended in time."""
        with suppress(queue.Empty):
            return self._looked.get(timeout=max(0.0, seconds))
        return None

    def close(self) -> None:
        """End the thread, unless the store does not answer: then the thread ends with the process."""
        self._wanted.put(None)
        self._thread.join(_LEAVE_S)

    def _look_on(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            try:
                self._looked.put(Looked(self._watched.look(*wanted)))
            except BaseException as fault:  # noqa: BLE001 - raised in the main thread
                self._looked.put(Looked(fault=fault))


class WatchSession:
    """Looks at what is watched and shows it, until it is over."""

    def __init__(self, watched: Watched, output: Output, clock: Clock) -> None:
        self._watched, self._output, self._clock = watched, output, clock
        self._looker = Looker(watched)
        self._pace = Pace(watched.shortest_s)
        self._asked_at: float | None = None
        """When the look began that has not ended; None if none is going on."""
        self._look_at = 0.0
        self._answered_at = clock.now()
        self._ahead_s = 0.0
        """How far the store's time is ahead of the clock here."""
        self._fault = ""
        """Why the last look failed; empty if it has not."""

    def run(self) -> int:
        """Return the exit code. A store that does not answer at first is an error; later, it is tried again."""
        try:
            while True:
                now = self._clock.now()
                if self._asked_at is None and now >= self._look_at:
                    self._asked_at = now
                    self._looker.ask(now, self._output.size)
                looked = self._looker.wait(FRAME_S if self._asked_at is not None else self._look_at - now)
                if looked is not None:
                    self._take(looked)
                if self._watched.at:
                    self._show()
                if looked is not None and self._watched.code is not None and not self._fault:
                    self._output.end(self._watched)
                    return self._watched.code
        finally:
            self._output.close()
            self._looker.close()

    def _take(self, looked: Looked) -> None:
        now, began = self._clock.now(), self._asked_at or 0.0
        self._asked_at = None
        if looked.fault is None:
            self._fault, self._answered_at, self._ahead_s = "", now, self._watched.at - now
            self._output.tell(self._watched)
            wait_s = self._pace.after_look(
                now - began, has_changed=looked.has_changed, is_behind=self._watched.is_behind
            )
        elif self._watched.at and isinstance(looked.fault, (StoreBusy, StoreUnusable)):
            self._fault = str(looked.fault).partition(". ")[0]
            wait_s = self._pace.after_fault()
        else:
            raise looked.fault
        self._look_at = now + wait_s

    def _show(self) -> None:
        now = self._clock.now()
        trouble = self._trouble(now)
        shown_at = self._watched.at if trouble else float(int(now + self._ahead_s))
        self._output.show(self._watched, shown_at, trouble)

    def _trouble(self, now: float) -> str:
        """Return why what is shown may be old; empty if it is not."""
        since = f"No answer since {screen.time_of_day(self._answered_at)[:8]}"
        if self._fault:
            left = max(0, round(self._look_at - now)) if self._asked_at is None else 0
            return f"{since}, next try in {left} s: {self._fault}"
        if self._asked_at is not None and now - self._asked_at >= _SLOW_S:
            return f"{since}: waiting for the store"
        return ""
