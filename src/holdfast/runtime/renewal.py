"""`Renewal` keeps the leases of one engine: it renews them from a thread of its own, and knows until when they are certain.

The store decides who may append; this decides who may still start anything. A lease is certain until the time before the last
successful renewal plus its TTL, by a clock that also counts while the machine sleeps, less a margin to stop nodes in.
Nothing here trusts the store's clock or the wall clock.

Invariants
- Nothing starts after that time before the store has been asked again: while a process was paused, another engine may have
  claimed its runs.
- An engine that cannot renew hears of it (`lost`) while the leases are still valid, so that its nodes are stopped before another
  engine may start them.
- A lease that could not be given back is given back by the next renewal. One that was perhaps granted, because no reply came to
  the claim, is given back by the second: a live holder keeps no other engine out of a run that it does not execute. Two looks,
  because between a claim and the first step of a run there is a time in which the run does not seem to be executed. Renewals
  look for a while longer, because a database may commit a claim long after its connection was lost.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from holdfast.errors import StoreError
from holdfast.storage.contract import Holder, Store

MARGIN = 1 / 6
"""The part of a TTL at its end in which nodes are stopped."""
_OFTEN = 1 / 3
_AGAIN_S = 1.0
DOUBT_S = 900.0
"""How long a claim without a reply may still be granted: a commit may wait for a disk, or for a replica that is away."""


elapsed: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds that have passed on this machine, including while it slept. Unlike the wall clock, it is never set."""


class Renewal:
    """Renews the leases of an engine as long as it lives; the first time while this object is made."""

    def __init__(
        self,
        store: Store,
        holder: Holder,
        *,
        lost: Callable[[], None],
        executes: Callable[[str], bool | None] = lambda run_id: True,
        now: Callable[[], float] = elapsed,
        quiet: bool = False,
    ) -> None:
        """`lost` is called on the event loop when the leases cannot be kept; `executes` says whether this engine executes a run
        (None: that is not known now). `quiet`: use no thread and no timer; the owner calls `keep` often enough.
        """
        self._store = store
        self._holder = holder
        self._lost = lost
        self._now = now
        self._stop = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._executes = executes
        self._owed: dict[tuple[str, int], None] = {}
        self._doubts = False
        self._doubts_until = 0.0
        self._suspects: set[tuple[str, int]] = set()
        self._told = False
        self.fault: StoreError | None = None
        """Why the leases could not be renewed the last time."""
        self._sure_until = 0.0
        self._renewed_at = 0.0
        self.renew()
        if not quiet:
            self._watch(asyncio.get_running_loop())
            threading.Thread(target=self._renew_on, name="holdfast-lease", daemon=True).start()

    @property
    def sure(self) -> bool:
        """Whether the leases are certain: no other engine can have claimed them."""
        return self._now() < self._sure_until

    @property
    def stood_still(self) -> bool:
        """Whether this process was stopped, or the machine asleep, beyond the end of the leases: then only the store knows."""
        return self._now() >= self._sure_until + self._holder.ttl_s * MARGIN

    def stands(self, run_id: str, fence: int) -> bool:
        """Whether a run is still held with this fence, so that its nodes may start. Asks the store only after the time until
        which that is certain, and raises what the store raises then.
        """
        if self._now() < self._sure_until:
            return True
        self.renew()  # before the look: a lease that is ours after it, is ours for a whole TTL
        row = self._store.run(run_id)
        return row.fence == fence and row.holder is not None and row.holder.id == self._holder.id

    def renew(self) -> None:
        """Renew the leases once. Raises what the store raises."""
        before = self._now()
        try:
            self._store.renew(self._holder)
        except StoreError as fault:
            self.fault = fault
            raise
        self.fault = None
        self._renewed_at = before
        self._sure_until = max(self._sure_until, before + self._holder.ttl_s * (1 - MARGIN))
        self._told = False
        self._give_back()

    def keep(self) -> None:
        """Renew if it is time, and call `lost` where the leases cannot be kept. For an engine without threads."""
        if self._now() >= self._renewed_at + self._holder.ttl_s * _OFTEN:
            with suppress(StoreError):
                self.renew()
        self._look()

    def owe(self, run_id: str, fence: int) -> None:
        """A lease could not be given back: the next renewal does it."""
        self._owed[run_id, fence] = None

    def doubt(self) -> None:
        """A claim got no reply: the lease may have been granted, or may still be. Renewals look for it."""
        self._doubts = True
        self._doubts_until = self._now() + DOUBT_S

    def stop(self) -> None:
        """Renew no more."""
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()

    def _find_strays(self) -> None:
        """Owe the leases of runs that are held in this engine's name and were not executed by it at two looks in a row."""
        suspects: set[tuple[str, int]] = set()
        untold = False
        for lease in self._store.queues.held_by(self._holder.id):
            executes, one = self._executes(lease.run_id), (lease.run_id, lease.fence)
            untold = untold or executes is None
            if executes is False and one in self._suspects:
                self.owe(*one)
            elif executes is False:
                suspects.add(one)
        self._suspects = suspects
        self._doubts = untold or bool(suspects) or self._now() < self._doubts_until

    def _give_back(self) -> None:
        if self._doubts:
            with suppress(StoreError):  # looked for again
                self._find_strays()
        for run_id, fence in list(self._owed):
            with suppress(StoreError):  # still owed
                self._store.release(run_id, self._holder.id, fence)
                self._owed.pop((run_id, fence), None)

    def _renew_on(self) -> None:
        often = self._holder.ttl_s * _OFTEN
        wait = often
        while not self._stop.wait(wait):
            try:
                self.renew()
                wait = often
            except StoreError:  # tried again soon; `_look` reacts where that takes too long
                wait = min(often, _AGAIN_S)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the event loop, because the call that renews may hang."""
        self._look()
        left = max(self._sure_until - self._now(), min(_AGAIN_S, self._holder.ttl_s * MARGIN))
        self._timer = loop.call_later(left, self._watch, loop)

    def _look(self) -> None:
        if not self._told and not self.sure:
            self._told = True
            self._lost()
