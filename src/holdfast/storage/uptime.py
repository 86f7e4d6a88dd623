"""The uptime of this machine: a clock that all its processes share, that counts while it sleeps, and that is never set.

The wall clock is not such a clock: a program can step it, and a process can run with another one than its neighbours (a test, a
library such as libfaketime). Such a library replaces the calls that read the clocks, and a container may show another
`/proc/uptime`; but the kernel itself notes when it starts a thread, in ticks since the boot. So the clock that this process
reads is compared once with the start of a new thread, and is corrected if the two differ.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import lru_cache

from holdfast.storage.leases import boot_id, read_start

_READ_CLOCK: Callable[[int], float] | None = getattr(time, "clock_gettime", None)  # Windows has none
_TRIES = 5
_SOON_S = 0.5
_TICK_S = 0.02
_FIRST_TIME_NAMESPACE = "time:[4026531834]"
"""What Linux calls the time namespace of the machine itself. In another one, the uptime may differ from that of the machine."""


class Uptime:
    """Reads the uptime of the machine whose kernel has the boot id `boot`; it is empty if no uptime can be read here."""

    def __init__(self, *, read_clock: Callable[[int], float] | None = _READ_CLOCK) -> None:
        self._read_clock = read_clock
        self._clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)
        self._ahead_s = 0.0
        self.boot = ""
        if read_clock is None or self._clock is None or not _is_of_the_machine():
            return
        ahead_s = self._measure()
        if ahead_s is not None:
            self.boot, self._ahead_s = boot_id(), ahead_s

    def now(self) -> float | None:
        """Return the seconds since the machine was started, or None if they are not known."""
        return self._elapsed() - self._ahead_s if self.boot else None

    def _elapsed(self) -> float:
        assert self._read_clock is not None
        assert self._clock is not None
        return self._read_clock(self._clock)

    def _measure(self) -> float | None:
        """Return by how many seconds the clock that this process reads is ahead of that of the kernel. It is not corrected if
        the kernel's time is between two readings of it.
        """
        found = None
        for _ in range(_TRIES):  # a busy machine may start the thread late
            before = self._elapsed()
            started = _start_of_a_thread()
            after = self._elapsed()
            if started is None:
                return None
            if before - _TICK_S <= started <= after + _TICK_S:
                return 0.0
            found = before - started
            if after - before < _SOON_S:
                break
        return found


@lru_cache(maxsize=1)
def of_machine() -> Uptime:
    """Return the uptime of this machine. A process compares its clock with that of the kernel only once."""
    return Uptime()


def _start_of_a_thread() -> float | None:
    """Return when the kernel started a thread that this function makes, in seconds since the boot; None if it does not say."""
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(read_start("thread-self")))
    thread.start()
    thread.join()
    ticks = found[0] if found else None
    return int(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def _is_of_the_machine() -> bool:
    try:
        return os.readlink("/proc/self/ns/time") == _FIRST_TIME_NAMESPACE
    except FileNotFoundError:
        return True  # a kernel without time namespaces
    except OSError:
        return False
