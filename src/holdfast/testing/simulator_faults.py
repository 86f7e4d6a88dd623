"""The faults of a simulated world: each process reaches the shared store through a wrapper that injects faults.

This module owns the plan of faults and the record of what the store really did. A `FaultyStore` is the access of one process to
the shared store: any call may fail before it has an effect, lose its reply, stall, or be the last call of its process. A `Ledger`
notes what was really committed, by which engine and with which fence; it shares no code with the store.

Invariant: faults are drawn from the random generator of the schedule, in the order of calls. Their number is limited: after the
last one, a run that does not end by itself is stuck.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import FenceLost, RunNotFound, StoreBusy
from holdfast.storage.contract import Along, Append, Feed, Holder, Lease, Request, Row, RunRow, Store, Verdict
from holdfast.storage.queues import Posted, Queues, Taken, Wanted
from holdfast.storage.tokens import Tokens
from holdfast.storage.upkeep import Upkeep
from holdfast.storage.writer import Done
from holdfast.testing.simulator_loop import ProcessDied, SimulatedLoop, World

LEASE_TTL_S = 2.0
STALLS_S = (0.005, 0.3, 1.5 * LEASE_TTL_S, 1.5 * LEASE_TTL_S, 3 * LEASE_TTL_S)
_BEFORE = ("crash before", "busy", "stall before")
_AFTER = ("crash after", "lost reply", "stall after")
_OF_WRITES = _BEFORE + _AFTER
_OF_APPENDS = (*_OF_WRITES, "stall before", "stall before", "lost reply")
"""The faults of an append. A stall before the write is drawn often, because that is the case for which fences exist: the writer
continues when another engine has already claimed the run.
"""
_WRITES = frozenset({"claim", "release", "post", "post_all", "take", "compact", "retire"})
_RARE = frozenset({"appended", "claim", "post", "post_all", "release", "compact", "retire"})
_WANTING = frozenset({"pending", "running", "interrupted"})
_SELDOM = 5
"""A method of the store that is rarely called gets faults this many times more often."""


class Faults:
    """Decides how many faults a schedule has, and at which calls they happen. The number is at least one."""

    def __init__(self, luck: random.Random, *, most: int = 5) -> None:
        self.luck = luck
        self.left = luck.randrange(1, most + 1)
        self.rate = luck.choice((0.01, 0.03, 0.08))
        self.first_at = luck.randrange(2, 20)
        self.calls = 0
        self.happened: Counter[str] = Counter()

    def at(self, verb: str) -> str:
        """Return the fault that happens at this call of a store method, or an empty string if none happens."""
        if not self.left:
            return ""
        self.calls += 1
        if self.happened:
            if self.luck.random() >= (self.rate * _SELDOM if verb in _RARE else self.rate):
                return ""
        elif self.calls < self.first_at:
            return ""
        fault = self.luck.choice(
            _OF_APPENDS if verb == "append" else _OF_WRITES if verb in _WRITES else _BEFORE
        )
        self.left -= 1
        self.happened[fault] += 1
        return fault

    def strike(self, kind: str) -> bool:
        """Count a fault of a whole process or a clock. Return False if the schedule has already had all its faults."""
        if not self.left:
            return False
        self.left -= 1
        self.happened[kind] += 1
        return True


class Ledger:
    """A record of what the store really did, kept independently of the store. `wrong` lists everything that the store did
    against its rules.
    """

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self._now = now
        self._sure_until: dict[str, float] = {}
        """Holder -> the time, by the store's clock, until which no other engine may claim its runs."""
        self._dead: set[str] = set()
        self.leases: dict[str, tuple[str | None, int]] = {}
        """Run -> its holder and its fence, according to the leases that were granted."""
        self.accepted: dict[tuple[str, int], bytes] = {}
        """(run, seq) -> the salt of the row that was written there."""
        self.acknowledged: dict[tuple[str, int], bytes] = {}
        """(run, seq) -> the salt of the row, for rows whose write was acknowledged to an engine."""
        self.wrong: list[str] = []
        self.tick = itertools.count(1).__next__
        """A function that returns the next number. Each write and each noted call gets a number, which shows which of two
        happened first.
        """
        self.when: dict[tuple[str, int], int] = {}
        """(run, seq) -> the number (`tick`) of the moment at which the row became durable."""
        self.commits: dict[tuple[str, int], int] = {}
        """(run, seq) -> the number of the transaction that wrote the row."""
        self.transactions = 0
        self.writers: dict[tuple[str, int], str | None] = {}
        """(run, seq) -> the engine that wrote the row."""
        self.rows: dict[str, list[Row]] = {}
        """Run -> every row that was ever written, also those that a compaction has removed."""
        self.limits: dict[str, int] = {}
        """Queue -> how many of its runs may be held at once."""
        self.places: dict[str, tuple[str, int]] = {}
        """Run -> its queue and its priority."""
        self.posted: dict[tuple[str, str], Request] = {}
        """(run, id) -> a request that was put into the inbox of the run."""
        self.handled: dict[tuple[str, str], int] = {}
        """(run, id) -> the last event of the append that handled the request."""

    def renewed(self, holder: Holder) -> None:
        """Note that a holder renewed its leases: they are valid again for `holder.ttl_s` seconds."""
        self._sure_until[holder.id] = self._now() + holder.ttl_s

    def died(self, holder: str) -> None:
        self._dead.add(holder)

    def refused(self, append: Append, verdict: BaseException) -> None:
        """Note that an append was refused. Report it as wrong if the refused engine holds the run with the current fence."""
        if isinstance(verdict, FenceLost) and self.leases.get(append.run_id) == (append.holder, append.fence):
            self.wrong.append(
                f"{append.run_id}: {append.holder} holds the run, but its append was refused: {verdict}"
            )

    def granted(self, run_id: str, holder: Holder, fence: int) -> None:
        before, known = self.leases.get(run_id, (None, 0))
        if fence <= known:
            self.wrong.append(f"{run_id}: fence {fence} was granted to {holder.id} after fence {known}")
        if before != holder.id and self._is_live(before):
            self.wrong.append(
                f"{run_id}: {holder.id} claimed the run from {before}, whose lease has not expired"
            )
        self.renewed(holder)
        self.leases[run_id] = (holder.id, fence)

    def _is_live(self, holder: str | None) -> bool:
        return (
            holder is not None
            and holder not in self._dead
            and self._sure_until.get(holder, 0.0) > self._now()
        )

    def offered(self, wanted: Wanted, row: Callable[[str], RunRow]) -> list[str]:
        """Return the runs that an engine may claim now, because they can continue and no engine holds them. The list is used to
        check that runs with a higher priority are claimed first, so it is empty if all runs have the same priority.
        """
        if len(self.places) < 2 or len({priority for _, priority in self.places.values()}) < 2:
            return []
        free = [
            run_id
            for run_id in self.places
            if self.leases[run_id][0] is None and run_id not in {*wanted.without, *wanted.refused}
        ]
        rows = [row(run_id) for run_id in free]
        return [
            one.run_id
            for one in rows
            if one.flow in wanted.flows and one.status in _WANTING and not self._is_early(one)
        ]

    def _is_early(self, run: RunRow) -> bool:
        """Return whether a run begins at a time that has not come."""
        return run.status == "pending" and run.due_at is not None and run.due_at > self._now()

    def held_runs(self, asking: str) -> set[str]:
        """Return the runs whose lease has not expired, and all runs of the engine that asks, because claiming runs renews its
        expired leases. The set is used to check the limits of queues, so it is empty if no queue has a limit.
        """
        if not self.limits:
            return set()
        return {
            run_id
            for run_id, (holder, _) in self.leases.items()
            if self._is_live(holder) or (holder == asking and holder not in self._dead)
        }

    def begun(self, taken: Taken, run: RunRow) -> None:
        """Check that a worker claims a run that begins at a time only from then on, or for a request."""
        if self._is_early(run) and taken.why != "asked":
            self.wrong.append(f"{run.run_id} was taken, but it begins at {run.due_at}")

    def chosen(self, taken: list[str], offered: list[str], held_before: set[str]) -> None:
        """Note that an engine claimed these runs. Check that no queue exceeds its limit, and that no run with a higher priority
        was left unclaimed.
        """
        for run_id in taken:
            queue, priority = self.places[run_id]
            held = sorted(other for other in {*held_before, *taken} if self.places[other][0] == queue)
            if len(held) > self.limits.get(queue, len(held)):
                self.wrong.append(
                    f"{run_id} was taken, and now more runs of queue {queue!r} are held than its limit allows: {held}"
                )
            for other in set(offered) - set(taken):
                same, more = self.places[other]
                if more > priority and (same == queue or same not in self.limits):
                    self.wrong.append(f"{run_id} was taken, but {other} has a higher priority")

    def took(self, append: Append) -> None:
        """Note that an append was accepted. Its writer must be the holder of the run."""
        at = self.tick()
        run_id = append.run_id
        if append.create is not None:
            self.leases[run_id] = (append.holder, int(append.holder is not None))
            self.places[run_id] = (append.create.queue, append.create.priority)
        elif self.leases.get(run_id) != (append.holder, append.fence):
            self.wrong.append(
                f"{run_id}@{append.rows[0].seq}: {append.holder} wrote with fence {append.fence}, but "
                f"{self.leases.get(run_id)} holds the run"
            )
        accepted, when, writers, holder = self.accepted, self.when, self.writers, append.holder
        for row in append.rows:
            place = (run_id, row.seq)
            if place in accepted:
                self.wrong.append(f"{run_id}@{row.seq}: the event was written twice")
            accepted[place] = row.salt
            when[place] = at
            self.commits[place] = self.transactions
            writers[place] = holder
        self.rows.setdefault(run_id, []).extend(append.rows)
        for request in append.taken:
            first = self.handled.setdefault((run_id, request), append.rows[-1].seq)
            # The end of a child may be heard of twice: from the engine that recorded it in the child, and from the inbox.
            is_end = request.startswith("child:")
            if first != append.rows[-1].seq and (run_id, request) in self.posted and not is_end:
                self.wrong.append(
                    f"{run_id}: the request {request} was handled at event {first}, and again later"
                )
        if append.release:
            self.released(run_id, append.holder, append.fence)
        for start in append.along.starts if append.along is not None else ():
            self.took(start)

    def released(self, run_id: str, holder: str | None, fence: int) -> None:
        if self.leases.get(run_id) == (holder, fence):
            self.leases[run_id] = (None, fence)

    def given_back(self, holder: str) -> None:
        """Note that the leases of a holder were released by another engine. This is allowed only after they have expired."""
        if self._is_live(holder):
            self.wrong.append(f"the leases of {holder} were given back, but they have not expired")
        self.gone(holder)

    def gone(self, holder: str) -> None:
        for run_id, (who, fence) in self.leases.items():
            if who == holder:
                self.leases[run_id] = (None, fence)

    def acknowledge(self, append: Append) -> None:
        run_id, acknowledged = append.run_id, self.acknowledged
        for row in append.rows:
            acknowledged[run_id, row.seq] = row.salt
        for start in append.along.starts if append.along is not None else ():
            self.acknowledge(start)


@cache
def _verbs(contract: type, faulty: type) -> tuple[str, ...]:
    """Return the names of all methods of the store's contract that the faulty class does not define itself."""
    verbs = (name for name, verb in vars(contract).items() if callable(verb) and not name.startswith("_"))
    return tuple(name for name in verbs if not hasattr(faulty, name))


class FaultyStore:
    """The shared store as one process sees it: every method calls the store, with simulated faults."""

    if TYPE_CHECKING:  # not at run time: it would make every attribute access slow

        def __getattr__(self, name: str) -> Any: ...

    def __init__(
        self,
        disk: Store,
        world: World,
        loop: SimulatedLoop,
        faults: Faults,
        ledger: Ledger,
        crash: Callable[[], None],
    ) -> None:
        self.url = disk.url
        self.blobs = disk.blobs
        self.generation = disk.generation
        self.disk = disk
        self._world = world
        self._loop = loop
        self._faults = faults
        self.ledger = ledger
        self._crash = crash
        self.queues: Any = _FaultyQueues(self, disk.queues, Queues)
        self.upkeep: Any = _FaultyPart(self, disk.upkeep, Upkeep)
        self.tokens: Any = _FaultyPart(self, disk.tokens, Tokens)
        self.feed: Any = _FaultyPart(self, disk.feed, Feed)
        for name in _verbs(Store, FaultyStore):
            setattr(self, name, partial(self.call, name, getattr(disk, name)))

    def call(self, verb: str, do: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call a method of the store, with the fault that is drawn for this call, if any."""
        if self._loop.dead:
            raise ProcessDied
        faults = self._faults
        fault = faults.at(verb) if faults.left else ""
        return do(*args, **named) if not fault else self._go_wrong(fault, partial(do, *args, **named))

    def _go_wrong(self, fault: str, do: Callable[[], Any]) -> Any:
        self._world.luck.random()
        if fault == "busy":
            raise StoreBusy("simulated: the store did not answer, and nothing was done")
        if fault == "crash before":
            self.die()
        if fault == "stall before":
            self._stall()
        done = do()
        if fault == "crash after":
            self.die()
        if fault == "stall after":
            self._stall()
        if fault == "lost reply":
            raise StoreBusy("simulated: the reply was lost")
        return done

    def die(self) -> None:
        self._crash()
        raise ProcessDied

    def _stall(self) -> None:
        self._world.elsewhere(self._loop, self._faults.luck.choice(STALLS_S))

    # --- verbs that the ledger notes ------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        verdicts: list[Verdict] = self.call("append", self._append, batch)
        for append, verdict in zip(batch, verdicts, strict=True):
            if verdict is None:
                self.ledger.acknowledge(append)
        return verdicts

    def _append(self, batch: Sequence[Append]) -> list[Verdict]:
        verdicts = self.disk.append(batch)
        self.ledger.transactions += 1
        for append, verdict in zip(batch, verdicts, strict=True):
            if verdict is None:
                self.ledger.took(append)
            else:
                self.ledger.refused(append, verdict)
        for append, verdict in zip(batch, verdicts, strict=True):
            if append.along is not None and verdict is None:
                self._note_posts(append.along)
        return verdicts

    def _note_posts(self, along: Along) -> None:
        """Note the requests that an append has posted, except those that were dropped."""
        for run_id, request in along.posts:
            with suppress(RunNotFound):
                if any(one.id == request.id for one in self.disk.inbox(run_id=run_id)):
                    self.ledger.posted.setdefault((run_id, request.id), request)

    def appended(self, run_id: str, seq: int, append_id: bytes) -> bool:
        return bool(self.call("appended", self.disk.appended, run_id, seq, append_id))

    def claim(self, run_id: str, holder: Holder) -> Lease:
        lease: Lease = self.call("claim", self._claim, run_id, holder)
        return lease

    def _claim(self, run_id: str, holder: Holder) -> Lease:
        lease = self.disk.claim(run_id, holder)
        self.ledger.granted(run_id, holder, lease.fence)
        return lease

    def release(self, run_id: str, holder: str, fence: int) -> None:
        self.call("release", self._release, run_id, holder, fence)

    def _release(self, run_id: str, holder: str, fence: int) -> None:
        self.disk.release(run_id, holder, fence)
        self.ledger.released(run_id, holder, fence)

    def renew(self, holder: Holder) -> None:
        self.call("renew", self._renew, holder)

    def _renew(self, holder: Holder) -> None:
        self.disk.renew(holder)
        if holder.ttl_s <= 0:
            self.ledger.gone(holder.id)
        else:
            self.ledger.renewed(holder)

    def post(self, run_id: str, request: Request, *, only_look: bool = False) -> bool:
        return bool(self.call("post", self._post, run_id, request, only_look=only_look))

    def _post(self, run_id: str, request: Request, *, only_look: bool) -> bool:
        is_new = self.disk.post(run_id, request, only_look=only_look)
        if is_new and not only_look:
            self.ledger.posted[run_id, request.id] = request
        return is_new

    def now(self) -> float:
        if self._loop.dead:
            raise ProcessDied
        return self.disk.now()

    def close(self) -> None:
        """Do nothing: the store outlives its processes."""


class _FaultyPart:
    """A part of a store (its queues or its upkeep), with the same faults as the store."""

    def __init__(self, store: FaultyStore, part: Any, contract: type) -> None:
        self._store = store
        self._part = part
        for name in _verbs(contract, type(self)):  # type: ignore[arg-type]
            setattr(self, name, partial(store.call, name, getattr(part, name)))


class _FaultyQueues(_FaultyPart):
    """The queues of a store, with simulated faults. The ledger notes which runs are claimed and released."""

    def take(self, holder: Holder, wanted: Wanted) -> list[Taken]:
        found: list[Taken] = self._store.call("take", self._take, holder, wanted)
        return found

    def _take(self, holder: Holder, wanted: Wanted) -> list[Taken]:
        ledger = self._store.ledger
        offered, held_before = ledger.offered(wanted, self._store.disk.run), ledger.held_runs(holder.id)
        taken: list[Taken] = self._part.take(holder, wanted)
        if taken:
            for got in taken:
                ledger.granted(got.lease.run_id, holder, got.lease.fence)
                ledger.begun(got, self._store.disk.run(got.lease.run_id))
            ledger.chosen([got.lease.run_id for got in taken], offered, held_before)
        return taken

    def post_all(self, batch: Sequence[Request]) -> list[Posted]:
        found: list[Posted] = self._store.call("post_all", self._post_all, batch)
        return found

    def _post_all(self, batch: Sequence[Request]) -> list[Posted]:
        posted: list[Posted] = self._part.post_all(batch)
        for request, is_new in zip(batch, posted, strict=True):
            if is_new is True:
                self._store.ledger.posted[request.run_id, request.id] = request
        return posted

    def give_back(self, holders: Collection[str]) -> list[str]:
        found: list[str] = self._store.call("give_back", self._give_back, holders)
        return found

    def _give_back(self, holders: Collection[str]) -> list[str]:
        gone: list[str] = self._part.give_back(holders)
        for engine in gone:
            self._store.ledger.given_back(engine)
        return gone


class LateWriter:
    """A writer that commits with a delay and calls back with another delay, as a writer on its own thread does.

    Appends are committed in the order in which they were submitted, one batch at a time.
    """

    quick = False

    def __init__(self, store: Any, loop: SimulatedLoop, luck: random.Random) -> None:
        self._store = store
        self._loop = loop
        self._luck = luck
        self._waiting: list[tuple[Append, Done]] = []
        self._busy = False
        self._closing = False

    def submit(self, append: Append, done: Done) -> None:
        self.submit_all([(append, done)])

    def submit_all(self, appends: Sequence[tuple[Append, Done]]) -> None:
        self._waiting.extend(appends)
        self._next()

    def try_commit(self, appends: Sequence[Append]) -> None:
        """Commit nothing: every append goes through `submit_all`."""

    def close(self) -> None:
        self._closing = True

    def _next(self) -> None:
        if self._waiting and not self._busy:
            self._busy = True
            self._soon(self._commit)

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        """Call this function soon, or after a delay in which other processes continue."""
        wait = self._luck.choice((0.0, 0.0, 0.001, 0.02))
        if wait:
            self._loop.call_later(wait, call, *args)
        else:
            self._loop.call_soon(call, *args)

    def _commit(self) -> None:
        batch, self._waiting = self._waiting, []
        outcomes: Sequence[BaseException | None]
        try:
            outcomes = self._store.append([append for append, _ in batch])
        except ProcessDied:
            raise
        except Exception as fault:  # noqa: BLE001 - passed to the callers
            outcomes = [fault] * len(batch)
        self._soon(self._call_back, batch, outcomes)

    def _call_back(
        self, batch: Sequence[tuple[Append, Done]], outcomes: Sequence[BaseException | None]
    ) -> None:
        self._busy = False
        for (_, done), outcome in zip(batch, outcomes, strict=True):
            done(outcome)
        self._next()


class SteppedClock:
    """The wall clock of one process. It may be set forward or back; timers that are already set do not move."""

    def __init__(self, world: World, loop: SimulatedLoop) -> None:
        self._world = world
        self._loop = loop
        self.offset = 0.0

    def now(self) -> float:
        return self._world.now + self.offset

    def call_at(self, at: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        now = self._world.now
        handle: asyncio.TimerHandle = self._loop.call_at(now + max(0.0, at - (now + self.offset)), call)
        return handle
