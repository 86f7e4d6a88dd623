"""The database's time, kept beside a clock of this process so that reading it costs no query.

Every answer that carries the database's time corrects the distance between the two. An answer takes a moment to arrive, so
what it says is never ahead: the largest distance of the last seconds is the best. Invariant: `now` never goes back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LOOK_S = 5.0
"""How old the last answer may be before the server is asked again."""


class DatabaseTime:
    """`local` only has to run evenly; where it begins does not matter, and setting this machine's clock changes nothing."""

    def __init__(self, local: Callable[[], float] = time.monotonic) -> None:
        self._local = local
        self._lock = threading.Lock()
        self._distance = 0.0
        self._heard_at: float | None = None
        self._looked_at: float | None = None
        self._last = 0.0

    def hear(self, at: float) -> None:
        """The database has just said that it is `at`."""
        with self._lock:
            local = self._local()
            fresh = self._heard_at is not None and local - self._heard_at < LOOK_S
            if not fresh or at - local > self._distance:
                self._distance = at - local
                self._heard_at = self._looked_at = local

    def is_stale(self) -> bool:
        """Whether to look again. Says so once per `LOOK_S`, so that an unreachable server is not asked for every reading."""
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
