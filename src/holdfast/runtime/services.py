"""What the runs of one engine share. Time, luck and threads come from here, so that a test can drive
everything from one thread.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.errors import StoreError
from holdfast.runtime.bodies import Body, Threads
from holdfast.runtime.clock import Clock
from holdfast.runtime.commits import Commits
from holdfast.storage.contract import Holder, Store


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's means."""

    store: Store
    commits: Commits
    clock: Clock
    luck: random.Random
    salts: Callable[[int], bytes]
    """That many random bytes."""
    holder: Holder
    resources: Mapping[str, Any]
    threads: Threads | None
    """None: plain functions are called on the event loop."""
    haunted: dict[str, dict[tuple[str, int | None], Body]]
    """Run -> the threads that were given up and still live: no new attempt starts beside one, also after a resume."""
    wake: Callable[[str], None]
    """Have the runner of this run, if there is one, look again."""
    saved: Callable[[str], None]
    """Called with a run id when something new is durable in its log."""


class Salts:
    """Random bytes, fetched from the system in larger pieces: every call for them gives up the GIL, which
    others then hold on to.
    """

    def __init__(self) -> None:
        self._kept = b""
        self._used = 0

    def take(self, count: int) -> bytes:
        used, self._used = self._used, self._used + count
        if self._used > len(self._kept):
            self._kept = os.urandom(max(count, 4096))
            used, self._used = 0, count
        return self._kept[used : self._used]


class Renewal:
    """Says to the store that this engine lives, from a thread of its own: a node that blocks the event loop
    must not lose the lease.
    """

    def __init__(self, services: Services, *, quiet: bool) -> None:
        self._services = services
        self._stop = threading.Event()
        if not quiet:
            threading.Thread(target=self._renew, name="holdfast-lease", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _renew(self) -> None:
        holder = self._services.holder
        while not self._stop.wait(holder.ttl_s / 3):
            with suppress(StoreError):  # asked again soon; the fence makes a lost lease harmless
                self._services.store.renew(holder)
