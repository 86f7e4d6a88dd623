"""`Holdings`: the runs that an engine holds, and until when their leases are certain. `Renewal` renews the leases.

A run is held from the claim of its lease until the lease is released. While this engine executes the run, its runner is here; a
run that only waits, and for long, has left memory, and `Asleep` is in its place.

The store decides which engine may append; `Renewal` decides whether this engine may still start anything. A lease is certain
for its TTL from the start of the last successful renewal, by a clock that also counts while the machine sleeps, less a
margin in which nodes are stopped. Neither the store's clock nor the wall clock is trusted for this.

Invariants
- `idle` is set exactly while no run is executed here, and no call waits for one to join it.
- After the leases have become uncertain, nothing starts before the store has been asked again: while this process was paused,
  another engine may have claimed its runs.
- When leases cannot be renewed, every node is stopped while they are still valid, before another engine may start it.
- A lease that could not be released is released by the next renewal. If a claim got no reply, the lease may have been granted;
  the second renewal after it then releases the lease, so that a live holder keeps no other engine out of a run that it does not
  execute. It takes two renewals because a run does not seem to be executed between its claim and its first step. Later renewals
  look for such leases too, because a database may commit a claim long after its connection was lost.
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
from holdfast.reading.chunks import Chunk
from holdfast.reading.inbox import AnyRequest
from holdfast.runtime.calls.loop_watch import LOOK_S
from holdfast.storage.contract import Holder, Lease, Store
from holdfast.storage.leases import CallsAtOnce

Aside: TypeAlias = Callable[[Callable[[], None], Callable[[BaseException | None], None]], None]
"""The type of a function that takes two functions. It calls the first, which may block, off the event loop, and then the second
on the event loop, with the error of the first or None.
"""

_GIVEN_UP_MAX = 10_000
"""How many runs to remember whose lease was lost, in case this engine claims one again before another engine does."""
MARGIN = 1 / 6
"""The part of a lease's TTL, at its end, in which nodes are stopped."""
_OFTEN = 1 / 3
_AGAIN_S = 1.0
DOUBT_S = 900.0
"""Seconds for which a claim that got no reply may still be granted: its commit may wait for a disk, or for an unreachable
replica.
"""


elapsed: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds that have passed on this machine, including while it slept. Unlike the wall clock, it is never set."""


def lease_lost(store: Store, run_id: str, ours: Holder) -> FenceLost:
    """Return the error for a run whose lease this engine has lost: it says which engine has claimed the run, as far as that is
    known.
    """
    holder: Holder | None = None
    with suppress(StoreError):
        holder = store.run(run_id).holder
    if holder is None or holder.id == ours.id:
        by = "another engine"
    elif (holder.host, holder.boot, holder.pid_namespace, holder.pid) == (
        ours.host, ours.boot, ours.pid_namespace, ours.pid
    ):  # fmt: skip
        by = "another engine of this process"
    else:
        by = holder.describe()
    return FenceLost(
        f"run {run_id!r} was claimed by {by}, because the lease of this engine had ended: it was not renewed for more than "
        f"{ours.ttl_s:g} s, as in a process that is suspended or whose event loop is blocked. This engine starts no more of its "
        "nodes"
    )


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
        """Look at the run again: something that it waited for may have changed."""

    def request(self, request: AnyRequest) -> None:
        """Carry out a request, once."""

    def halt(self, halt: Halt, *, grace_s: float = 0.0) -> None:
        """Start no more nodes, and stop the running ones after `grace_s` seconds."""

    def lose(self, error: BaseException) -> None:
        """Stop without recording anything: the lease is lost, or soon will be."""

    def unsaved_chunks(self) -> list[Chunk]:
        """Return the chunks that nodes have streamed and that are not durable in the log yet."""


class Taker(Protocol):
    """A worker, which takes runs from queues: a run that it has taken is held before it is executed."""

    left: asyncio.Event
    """Set when the worker has ended, and every run that it drove has stopped."""

    def look(self) -> None:
        """Make the worker look for runs now."""

    def has(self, run_id: str) -> bool | None:
        """Return whether the worker has taken this run; None if it is taking runs now, perhaps this one. May be called from any
        thread.
        """


class Asleep:
    """Takes the place of the runner while a run waits for a long time: the run is only in the store then, and is loaded when it
    is due or when a request arrives.
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
        """End the wait with this error, because the lease is lost or soon will be."""
        self.error = error
        self.wake()

    def unsaved_chunks(self) -> list[Chunk]:
        """Return an empty list: the log has everything that a sleeping run has streamed."""
        return []


class Renewal:
    """Renews the leases of an engine until `stop` is called, and for the first time when this object is created."""

    def __init__(
        self,
        store: Store,
        holder: Holder,
        *,
        lost: Callable[[], None],
        executes: Callable[[str], bool | None] = lambda run_id: True,
        now: Callable[[], float] = elapsed,
        quiet: bool = False,
        calls: Callable[[], tuple[CallsAtOnce, ...]] = tuple,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """`lost` is called on the event loop when the leases cannot be kept; `executes` returns whether this engine executes a
        run (None if that is not known now); `calls` returns the calls that wait for a place, which each renewal stores; `look` is
        called every `LOOK_S` seconds, in the thread of the renewals. If `quiet` is true, no thread and no timer is used: the
        owner must call `keep` often enough.
        """
        self._store = store
        self._holder = holder
        self._lost = lost
        self._now = now
        self._stop = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._executes = executes
        self._calls = calls
        self._watch_loop = look
        self._owed: dict[tuple[str, int], None] = {}
        self._doubts = False
        self._doubts_until = 0.0
        self._suspects: set[tuple[str, int]] = set()
        self._told = False
        self.fault: StoreError | None = None
        """The error of the last renewal; None if it succeeded."""
        self._sure_until = 0.0
        self._renewed_at = 0.0
        self._renewing = threading.Lock()
        self.renew()
        if not quiet:
            self._watch(asyncio.get_running_loop())
            threading.Thread(target=self._renew_on, name="holdfast-lease", daemon=True).start()

    @property
    def sure(self) -> bool:
        """True if the leases are certain: no other engine can have claimed their runs."""
        return self._now() < self._sure_until

    @property
    def stood_still(self) -> bool:
        """True if the leases have run out, because this process was suspended or the machine was asleep: only the store knows
        then whether another engine has claimed a run.
        """
        return self._now() >= self._sure_until + self._holder.ttl_s * MARGIN

    def stands(self, run_id: str, fence: int) -> bool:
        """Return whether this engine still holds a run with this fence, so that nodes of the run may start. The store is asked
        only if that is no longer certain; then its errors are raised.
        """
        if self._now() < self._sure_until:
            return True
        self.renew()  # before the row is read: a lease that we then still have is ours for a whole TTL
        row = self._store.run(run_id)
        return row.fence == fence and row.holder is not None and row.holder.id == self._holder.id

    def renew(self) -> None:
        """Renew the leases once. Errors of the store are raised."""
        before = self._now()
        try:
            with self._renewing:  # of two renewals, the later one writes what the holder says last
                self._store.renew(msgspec.structs.replace(self._holder, calls=self._calls()))
        except StoreError as fault:
            self.fault = fault
            raise
        self.fault = None
        self._renewed_at = before
        self._sure_until = max(self._sure_until, before + self._holder.ttl_s * (1 - MARGIN))
        self._told = False
        self._give_back()

    def describe_as(self, holder: Holder) -> None:
        """Let the next renewal store what the holder says about itself now."""
        self._holder = holder

    def keep(self) -> None:
        """Renew the leases if it is time, and call `lost` if they cannot be kept. For an engine without threads."""
        if self._now() >= self._renewed_at + self._holder.ttl_s * _OFTEN:
            with suppress(StoreError):
                self.renew()
        self._look()

    def owe(self, run_id: str, fence: int) -> None:
        """Note a lease that could not be released: the next renewal releases it."""
        self._owed[run_id, fence] = None

    def doubt(self) -> None:
        """Note that a claim got no reply: its lease may have been granted, or may be granted later. Renewals look for that
        lease.
        """
        self._doubts = True
        self._doubts_until = self._now() + DOUBT_S

    def stop(self) -> None:
        """Stop renewing the leases."""
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()

    def _find_strays(self) -> None:
        """Find leases of this engine whose runs it did not execute at this check and at the one before, and mark them for
        release.
        """
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
            with suppress(StoreError):  # the next renewal looks for them again
                self._find_strays()
        for run_id, fence in list(self._owed):
            with suppress(StoreError):  # the next renewal tries again
                self._store.release(run_id, self._holder.id, fence)
                self._owed.pop((run_id, fence), None)

    def _renew_on(self) -> None:
        often = self._holder.ttl_s * _OFTEN
        due_at = time.monotonic() + often
        while not self._stop.wait(max(0.0, min(LOOK_S, due_at - time.monotonic()))):
            self._watch_loop()
            if time.monotonic() < due_at:
                continue
            try:
                self.renew()
                wait = often
            except StoreError:  # tried again soon; `_look` stops the nodes if that takes too long
                wait = min(often, _AGAIN_S)
            due_at = time.monotonic() + wait

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check the leases again and again: on the event loop, because the call that renews them may hang."""
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
    """Why the engine is stopping, so that it claims no more runs; None if it is not stopping."""
    renewal: Renewal | None = None
    """Renews the leases; None until a lease is claimed that must be kept."""
    taker: Taker | None = None
    """The worker of this engine, if it has one."""

    calls: Callable[[], tuple[CallsAtOnce, ...]] = tuple
    """Returns the calls of this engine that wait for a place. May be called from any thread."""

    look: Callable[[], None] = staticmethod(lambda: None)
    """Watches the event loop. It is called in another thread."""

    def __init__(self, *, now: Callable[[], float] = elapsed, quiet: bool = False) -> None:
        """`now` is the clock for leases, which is never set back or forward. If `quiet` is true, no thread and no timer is
        used: the owner must call `hold` often enough.
        """
        self.now = now
        self._quiet = quiet
        self._held: dict[str, HeldRun] = {}
        self._asleep = 0
        self.moving = 0
        """How many runs are executed here and do not sleep."""
        self._given_up: dict[str, int] = {}
        """Run that was given up because the store did not answer -> the fence with which this engine held it."""
        self._store: Store | None = None
        self.holder = Holder(id="")
        """This engine, as it is registered with the store: it says which flows and queues its worker takes now."""
        self._is_known = False
        """True if this engine may be registered with the store as a holder."""
        self._owed: list[tuple[str, int]] = []
        """Run and fence of each lease that could not be released before this engine had a `renewal`, which then releases it."""
        self._unanswered = False
        """True if a claim got no reply before this engine had a `renewal`, which then looks for the lease."""
        self._aside: Aside | None = None
        self._joins: set[asyncio.Event] = set()
        """One event for each call that waits for a run which another call or engine executes; set when this engine stops."""
        self.idle = asyncio.Event()
        self.idle.set()

    def open(self, store: Store, holder: Holder, aside: Aside) -> None:
        """Set the store whose runs are held here, the holder that claims them, and how to call functions that may block."""
        self._store, self.holder, self._aside = store, holder, aside

    def close(self) -> None:
        """Stop holding runs, and release every lease that this engine still has."""
        store, self._store = self._store, None
        if self.renewal is not None:
            self.renewal.stop()
        if self._is_known and store is not None:
            with suppress(StoreError):
                store.renew(msgspec.structs.replace(self.holder, ttl_s=0.0))

    # --- what is executed here ------------------------------------------------------------------------

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._held

    def __len__(self) -> int:
        return len(self._held)

    def get(self, run_id: str) -> HeldRun | None:
        """Return the runner of a run, or the `Asleep` in its place; None if this engine does not execute the run."""
        return self._held.get(run_id)

    def add(self, run_id: str, held: HeldRun) -> None:
        """Note that this runner executes a run from now on."""
        self._held[run_id] = held
        self.moving = len(self._held) - self._asleep
        self.idle.clear()

    def remove(self, run_id: str) -> HeldRun:
        """Note that a run is not executed here any more. Returns its runner."""
        held = self._held.pop(run_id)
        self.moving = len(self._held) - self._asleep
        self._set_idle()
        return held

    @contextmanager
    def joining(self) -> Iterator[asyncio.Event]:
        """Mark a call, inside this context, as waiting for a run that it does not execute. Yields an event that is set when the
        engine stops.
        """
        news = asyncio.Event()
        self._joins.add(news)
        self.idle.clear()
        try:
            yield news
        finally:
            self._joins.discard(news)
            self._set_idle()

    @property
    def has_joins(self) -> bool:
        """True if a call of this engine waits for a run that it does not execute."""
        return bool(self._joins)

    def _set_idle(self) -> None:
        if not self._held and not self._joins:
            self.idle.set()

    @contextmanager
    def sleeping(self, run_id: str, asleep: Asleep) -> Iterator[None]:
        """Inside this context, the run is held but is not in memory."""
        self._held[run_id] = asleep
        self._asleep += 1
        self.moving -= 1
        try:
            yield
        finally:
            self._asleep -= 1
            self.moving += 1

    def wake(self, run_id: str) -> None:
        """Make the runner of a run look at the run again, if the run is executed here."""
        held = self._held.get(run_id)
        if held is not None:
            held.wake()

    def stop(self, reason: str, grace_s: float, *, at_once: bool = False) -> None:
        """Claim nothing more, and give nodes `grace_s` seconds to end. A second call changes nothing, unless `at_once` is true:
        then the nodes are stopped at once.
        """
        if self.stopping is not None and not at_once:
            return
        self.stopping = self.stopping or reason
        for held in self._held.values():
            held.halt(Halt("interrupt", reason=self.stopping), grace_s=0.0 if at_once else grace_s)
        for news in self._joins:
            news.set()

    async def stopped(self) -> None:
        """Wait until nothing is executed here any more."""
        if self.taker is not None:
            await self.taker.left.wait()
        while self._held or self._joins:  # a run may have begun since the event was set
            await self.idle.wait()

    # --- leases ---------------------------------------------------------------------------------------

    def serve(self, flows: tuple[str, ...], queues: tuple[str, ...] = ()) -> Renewal | None:
        """Note which flows and queues the worker of this engine takes from now on; without flows, it claims no more runs. If that
        is new, and the store knows the holder already, return the renewal that tells the store.
        """
        if (flows, queues) == (self.holder.flows, self.holder.queues):
            return None
        self.holder = msgspec.structs.replace(self.holder, flows=flows, queues=queues)
        if self.renewal is not None:
            self.renewal.describe_as(self.holder)
        return self.renewal

    def hold(self) -> None:
        """Register this engine with the store as a holder, and keep it registered."""
        if self.renewal is None:
            self._is_known = True
            self.renewal = Renewal(
                self._opened(),
                self.holder,
                lost=self.lose,
                executes=self._executes,
                now=self.now,
                quiet=self._quiet,
                calls=self.calls,
                look=self.look,
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
        """Claim the lease of a run. If the store does not reply, the lease may have been granted nevertheless.

        Set `briefly` if the lease is for one append that also releases it. The lease is then not renewed: no node has to be
        stopped when it runs out, and the fence is enough to protect the append.
        """
        store = self._opened()
        if self.renewal is not None or not briefly:
            self.hold()
        self._is_known = True
        try:
            return store.claim(run_id, self.holder)
        except StoreBusy:
            if self.renewal is None:
                self._unanswered = True
                with suppress(StoreError):
                    self.hold()  # the renewal looks for the lease, and releases it
            else:
                self.doubt()
            raise

    def claim_for(self, run_id: str, request: AnyRequest, *, briefly: bool = False) -> Lease | None:
        """Claim a run for a request in its inbox; None if a holder has already carried the request out."""
        store = self._opened()
        lease = self.claim(run_id, briefly=briefly)
        waits = False
        try:
            waits = any(waiting.id == request.id for waiting in store.inbox(self.holder.id, run_id=run_id))
        finally:
            if not waits:
                self.release(run_id, lease.fence)
        return lease if waits else None

    def release(self, run_id: str, fence: int) -> None:
        """Release a lease, now or as soon as the store answers again."""
        store, renewal = self._store, self.renewal
        if store is None:
            return
        try:
            if renewal is None or renewal.sure:
                store.release(run_id, self.holder.id, fence)
                return
        except StoreError:
            pass
        if renewal is None:  # then nothing renews the lease, and it runs out
            self._owed.append((run_id, fence))
        else:
            renewal.owe(run_id, fence)

    def doubt(self) -> None:
        """Note that a claim got no reply: renewals look for a lease that was granted without this engine's knowledge."""
        if self.renewal is not None:
            self.renewal.doubt()

    def stands(self, run_id: str, fence: int) -> bool:
        """Return whether this engine still holds a run with this fence. This must be checked before a node of the run starts."""
        return self.renewal is None or self.renewal.stands(run_id, fence)

    def _executes(self, run_id: str) -> bool | None:
        return run_id in self._held or (self.taker is not None and self.taker.has(run_id))

    # --- losing them ----------------------------------------------------------------------------------

    def give_up(self, run_id: str, fence: int) -> None:
        """Note that a run was stopped here because the store did not answer."""
        self._given_up[run_id] = fence
        if len(self._given_up) > _GIVEN_UP_MAX:  # another engine has claimed the oldest of these runs by now
            del self._given_up[next(iter(self._given_up))]

    def has_outlived(self, lease: Lease) -> bool:
        """Return whether this engine gave the run up and no other engine has claimed it since: then no crash has interrupted
        its nodes.
        """
        return self._given_up.pop(lease.run_id, -1) == lease.fence - 1

    def lose(self) -> None:
        """Stop every node before another engine may start it, because the leases cannot be renewed. If they have run out already,
        because this process was suspended, the store is asked which runs are still held here, and only the others are stopped.
        """
        store, renewal = self._opened(), self.renewal
        if renewal is None or not renewal.stood_still or self._quiet or self._aside is None:
            self._lose_all()
            return
        ours: set[tuple[str, int]] = set()
        faults: dict[str, FenceLost] = {}

        def ask() -> None:
            renewal.renew()
            ours.update((lease.run_id, lease.fence) for lease in store.queues.held_by(self.holder.id))
            lost = [run_id for run_id, held in list(self._held.items()) if (run_id, held.fence) not in ours]
            faults.update((run_id, lease_lost(store, run_id, self.holder)) for run_id in lost)

        def on_reply(error: BaseException | None) -> None:
            if error is not None:
                self._lose_all()
                return
            for run_id, held in list(self._held.items()):
                if run_id in faults and (run_id, held.fence) not in ours and not held.done.done():
                    held.lose(faults[run_id])

        self._aside(ask, on_reply)

    def _lose_all(self) -> None:
        fault = self.renewal.fault if self.renewal is not None else None
        kind = StoreFull if isinstance(fault, StoreFull) else StoreBusy
        why = f" ({fault})" if fault is not None else ""
        for run_id, held in list(self._held.items()):
            held.lose(
                kind(
                    f"run {run_id!r}: its lease could not be renewed{why}, so its nodes were stopped before another process may "
                    "claim it, and nothing more is started. All acknowledged events are safe; resume the run when the store "
                    "works again."
                )
            )

    def _opened(self) -> Store:
        if self._store is None:
            raise StoreError(
                "the engine that held this run is closed. Open another engine, and resume the run there."
            )
        return self._store
