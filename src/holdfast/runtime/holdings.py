"""`Holdings`: the runs that an engine holds, and until when their leases are certain. `Renewal` renews the leases.

A run is held from the claim of its lease until the lease is released. While this engine executes the run, its runner is here; a
run that only waits, and for long, has left memory, and `Asleep` is in its place.

The store decides which engine may append; `Renewal` decides whether this engine may still start anything. A lease is certain
until the time before the last successful renewal plus its TTL, by a clock that also counts while the machine sleeps, less a
margin in which nodes are stopped. Neither the store's clock nor the wall clock is trusted for this.

Invariants
- `idle` is set exactly while no run is executed here.
- After the leases have become uncertain, nothing starts before the store has been asked again: while this process was paused,
  another engine may have claimed its runs.
- When leases cannot be renewed, every node is stopped while they are still valid, before another engine may start it.
- A lease that could not be released is released by the next renewal. A lease that may have been granted although no reply came is
  released by the second: a live holder keeps no other engine out of a run that it does not execute. It takes two looks because a
  run does not seem to be executed between its claim and its first step. Renewals look for a while longer, because a database
  may commit a claim long after its connection was lost.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Literal, Protocol, TypeAlias

import msgspec

from holdfast.errors import FenceLost, StoreBusy, StoreError, StoreFull
from holdfast.reading.inbox import AnyRequest
from holdfast.storage.contract import Holder, Lease, Store

Aside: TypeAlias = Callable[[Callable[[], None], Callable[[BaseException | None], None]], None]
"""Calls something that may block off the event loop, then the other function on it, with the error if there was one."""

_GIVEN_UP_MAX = 10_000
"""Lost runs to remember, in case no other engine claims them before this one does."""
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


class Halt(msgspec.Struct, frozen=True):
    """Why the nodes of a run are being stopped, and what is recorded when they have ended."""

    kind: Literal["interrupt", "cancel", "timeout"]
    by: str | None = None
    reason: str | None = None


class HeldRun(Protocol):
    """A run that this engine executes: a `Runner`, or `Asleep`."""

    done: asyncio.Future[None]

    @property
    def fence(self) -> int: ...

    def wake(self) -> None:
        """Look again: something that the run waited for may have changed."""

    def request(self, request: AnyRequest) -> None:
        """Carry out a request, once."""

    def halt(self, halt: Halt, *, grace_s: float = 0.0) -> None:
        """Start nothing new, and stop the nodes that run after `grace_s` seconds."""

    def lose(self, error: BaseException) -> None:
        """Stop without recording anything: the lease is lost, or soon will be."""


class Taker(Protocol):
    """Takes runs from queues: a run that it has taken is held before it is executed."""

    def has(self, run_id: str) -> bool | None:
        """Whether it has taken this run; None: a take is under way that may bring it. May be called from any thread."""


class Asleep:
    """In place of the runner of a run that only waits, and for long. The run is in the store, and is loaded when it is due or
    when a request comes.
    """

    def __init__(self, fence: int) -> None:
        self.fence = fence
        self.error: BaseException | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """Have the run loaded."""
        if not self.done.done():
            self.done.set_result(None)

    def request(self, request: AnyRequest) -> None:
        """Have the run loaded: the request is in the inbox, where the runner will find it."""
        self.wake()

    def halt(self, halt: Halt, *, grace_s: float = 0.0) -> None:
        """Have the run loaded, so that the interruption can be recorded."""
        self.wake()

    def lose(self, error: BaseException) -> None:
        """The lease is lost, or soon will be."""
        self.error = error
        self.wake()


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


class Holdings:
    """The runs that this engine holds."""

    stopping: str | None = None
    """Why the engine is stopping, from the time that it is: nothing new is claimed then."""
    renewal: Renewal | None = None
    """Keeps the leases; None until the first is claimed that may last."""
    taker: Taker | None = None
    """The worker of this engine, if it works."""

    def __init__(self, *, now: Callable[[], float] = elapsed, quiet: bool = False) -> None:
        """`now`: a clock that is never set, for leases. `quiet`: use no thread and no timer; `hold` is called often enough."""
        self.now = now
        self._quiet = quiet
        self._held: dict[str, HeldRun] = {}
        self._asleep = 0
        self.moving = 0
        """How many runs are executed here and do not sleep."""
        self._given_up: dict[str, int] = {}
        """Runs that were given up because the store did not answer -> the fence they were held with."""
        self._store: Store | None = None
        self._holder = Holder(id="")
        self._is_known = False
        """Whether the store may know this holder."""
        self._owed: list[tuple[str, int]] = []
        """Leases that could not be given back while nothing renewed them."""
        self._unanswered = False
        """Whether a claim got no reply while nothing renewed leases."""
        self._aside: Aside | None = None
        self.idle = asyncio.Event()
        self.idle.set()

    def open(self, store: Store, holder: Holder, aside: Aside) -> None:
        """Hold runs of this store, in the name of this holder, from now on."""
        self._store, self._holder, self._aside = store, holder, aside

    def close(self) -> None:
        """Hold nothing any more: give back every lease that is left in this engine's name."""
        store, self._store = self._store, None
        if self.renewal is not None:
            self.renewal.stop()
        if self._is_known and store is not None:
            with suppress(StoreError):
                store.renew(msgspec.structs.replace(self._holder, ttl_s=0.0))

    # --- what is executed here ------------------------------------------------------------------------

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._held

    def __len__(self) -> int:
        return len(self._held)

    def get(self, run_id: str) -> HeldRun | None:
        """The runner of a run, or what is in its place; None where this engine does not execute it."""
        return self._held.get(run_id)

    def add(self, run_id: str, held: HeldRun) -> None:
        """A run is executed here from now on, by this runner."""
        self._held[run_id] = held
        self.moving = len(self._held) - self._asleep
        self.idle.clear()

    def remove(self, run_id: str) -> HeldRun:
        """A run is not executed here any more."""
        held = self._held.pop(run_id)
        self.moving = len(self._held) - self._asleep
        if not self._held:
            self.idle.set()
        return held

    @contextmanager
    def sleeping(self, run_id: str, asleep: Asleep) -> Iterator[None]:
        """A run is out of memory, and still held, as long as this lasts."""
        self._held[run_id] = asleep
        self._asleep += 1
        self.moving -= 1
        try:
            yield
        finally:
            self._asleep -= 1
            self.moving += 1

    def wake(self, run_id: str) -> None:
        """Have the runner of a run, if it is executed here, look again."""
        held = self._held.get(run_id)
        if held is not None:
            held.wake()

    def stop(self, reason: str, grace_s: float) -> None:
        """Claim nothing more. Nodes get `grace_s` seconds to end, or none at a second call."""
        grace_s = grace_s if self.stopping is None else 0.0
        self.stopping = reason
        for held in self._held.values():
            held.halt(Halt("interrupt", reason=reason), grace_s=grace_s)

    # --- leases ---------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Register this engine with the store as a holder, and keep it registered."""
        if self.renewal is None:
            self._is_known = True
            self.renewal = Renewal(
                self._opened(),
                self._holder,
                lost=self.lose,
                executes=self._executes,
                now=self.now,
                quiet=self._quiet,
            )
            for run_id, fence in self._owed:
                self.renewal.owe(run_id, fence)
            if self._unanswered:
                self.renewal.doubt()
        elif self._quiet:
            self.renewal.keep()

    def keep(self) -> None:
        """Renew the leases if it is time: for an engine without threads."""
        if self._quiet and self.renewal is not None:
            self.renewal.keep()

    def claim(self, run_id: str, *, briefly: bool = False) -> Lease:
        """Claim the lease of a run. Where the store does not reply, the lease may have been granted all the same.

        `briefly`: for one append that also gives the lease back. Nothing is executed, so nothing must be stopped when the lease
        runs out, and the fence of the append is enough: no renewal is started for it.
        """
        store = self._opened()
        if self.renewal is not None or not briefly:
            self.hold()
        self._is_known = True
        try:
            return store.claim(run_id, self._holder)
        except StoreBusy:
            if self.renewal is None:
                self._unanswered = True
                with suppress(StoreError):
                    self.hold()  # it looks for the lease, and gives it back
            else:
                self.doubt()
            raise

    def claim_for(self, run_id: str, request: AnyRequest, *, briefly: bool = False) -> Lease | None:
        """Claim a run for a request in its inbox; None where the request has left the inbox: a holder has carried it out."""
        store = self._opened()
        lease = self.claim(run_id, briefly=briefly)
        waits = False
        try:
            waits = any(waiting.id == request.id for waiting in store.inbox(self._holder.id))
        finally:
            if not waits:
                self.release(run_id, lease.fence)
        return lease if waits else None

    def release(self, run_id: str, fence: int) -> None:
        """Give a lease back, now or as soon as the store answers again."""
        store, renewal = self._store, self.renewal
        if store is None:
            return
        try:
            if renewal is None or renewal.sure:
                store.release(run_id, self._holder.id, fence)
                return
        except StoreError:
            pass
        if renewal is None:  # then nothing renews the lease, and it runs out
            self._owed.append((run_id, fence))
        else:
            renewal.owe(run_id, fence)

    def doubt(self) -> None:
        """A claim got no reply: renewals look for a lease that was granted without this engine's knowledge."""
        if self.renewal is not None:
            self.renewal.doubt()

    def stands(self, run_id: str, fence: int) -> bool:
        """Whether a run is still held here with this fence: ask before anything of it starts."""
        return self.renewal is None or self.renewal.stands(run_id, fence)

    def _executes(self, run_id: str) -> bool | None:
        return run_id in self._held or (self.taker is not None and self.taker.has(run_id))

    # --- losing them ----------------------------------------------------------------------------------

    def give_up(self, run_id: str, fence: int) -> None:
        """A run was stopped here because the store did not answer."""
        self._given_up[run_id] = fence
        if len(self._given_up) > _GIVEN_UP_MAX:  # another engine has claimed the oldest by now
            del self._given_up[next(iter(self._given_up))]

    def has_outlived(self, lease: Lease) -> bool:
        """Whether this engine gave the run up and no other has claimed it since: then no process has died in its nodes."""
        return self._given_up.pop(lease.run_id, -1) == lease.fence - 1

    def lose(self) -> None:
        """The leases cannot be renewed: stop every node before another engine may start it. Where that time has passed already,
        because this process stood still, the store says which runs are still held here.
        """
        store, renewal = self._opened(), self.renewal
        if renewal is None or not renewal.stood_still or self._quiet or self._aside is None:
            self._lose_all()
            return
        ours: set[tuple[str, int]] = set()

        def ask() -> None:
            renewal.renew()
            ours.update((lease.run_id, lease.fence) for lease in store.queues.held_by(self._holder.id))

        def on_reply(error: BaseException | None) -> None:
            if error is not None:
                self._lose_all()
                return
            for run_id, held in list(self._held.items()):
                if (run_id, held.fence) not in ours and not held.done.done():
                    held.lose(FenceLost(f"run {run_id!r} was taken over while this process stood still"))

        self._aside(ask, on_reply)

    def _lose_all(self) -> None:
        fault = self.renewal.fault if self.renewal is not None else None
        kind = StoreFull if isinstance(fault, StoreFull) else StoreBusy
        why = f" ({fault})" if fault is not None else ""
        for run_id, held in list(self._held.items()):
            held.lose(
                kind(
                    f"run {run_id!r}: its lease could not be renewed{why}, so its nodes were stopped before another process may "
                    "take it over, and nothing more is started. What was acknowledged is safe; resume when the store works again."
                )
            )

    def _opened(self) -> Store:
        if self._store is None:
            raise StoreError("the engine that held this run is closed")
        return self._store
