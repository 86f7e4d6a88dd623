"""The database's time, computed from a local clock so that reading it needs no query.

Every reply of the database that contains its time corrects the known difference between the two clocks. A reply takes a moment to
arrive, so the time in it is always a little behind: of the differences measured in the last seconds, the largest is the most
accurate. Invariant: `now` never goes back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LOOK_S = 5.0
"""How old, in seconds, the last reply may be before the server is asked for its time again."""


class DatabaseTime:
    """Computes the database's time. `local` is a clock that runs evenly and is never set, such as `time.monotonic`; its starting
    point does not matter.
    """

    def __init__(self, local: Callable[[], float] = time.monotonic) -> None:
        self._local = local
        self._lock = threading.Lock()
        self._distance = 0.0
        self._heard_at: float | None = None
        self._looked_at: float | None = None
        self._last = 0.0

    def hear(self, at: float) -> None:
        """Correct the clock with the time `at` from a reply of the database."""
        with self._lock:
            local = self._local()
            fresh = self._heard_at is not None and local - self._heard_at < LOOK_S
            if not fresh or at - local > self._distance:
                self._distance = at - local
                self._heard_at = self._looked_at = local

    def is_stale(self) -> bool:
        """Return whether to ask the server for its time again. Returns True at most once per `LOOK_S` seconds, so that an
        unreachable server is not asked at every reading.
        """
        with self._lock:
            local = self._local()
            if self._looked_at is not None and local - self._looked_at < LOOK_S:
                return False
            self._looked_at = local
            return True

    def now(self) -> float:
        with self._lock:
            self._last = max(self._last, self._local() + self._distance)
            return self._last
