"""What goes wrong in a simulated world, and where: a store that every process reaches through faults of its own.

Owns the plan of faults and the spy on the store. A `FaultyStore` is one process's way to the disk that all share: any verb may
fail before it was done, lose its reply, take its time, or be the last thing the process ever does. What was really
committed, by whom and with which fence, is noted in a `Ledger` that shares nothing with the store's own judgement.

Invariant: faults are drawn from the luck of the schedule, in the order of calls; when the budget is spent there are no
more, so that whatever is not over by itself then is stuck.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import FenceLost, StoreBusy
from holdfast.storage.contract import Append, Holder, Lease, Request, Row, RunRow, Store, Verdict
from holdfast.storage.queues import Queues, Taken, Wanted
from holdfast.storage.upkeep import Upkeep
from holdfast.storage.writer import Done
from holdfast.testing.simulator_loop import ProcessDied, SimulatedLoop, World

LEASE_TTL_S = 2.0
STALLS_S = (0.005, 0.3, 1.5 * LEASE_TTL_S, 1.5 * LEASE_TTL_S, 3 * LEASE_TTL_S)
_BEFORE = ("crash before", "busy", "stall before")
_AFTER = ("crash after", "lost reply", "stall after")
_OF_WRITES = _BEFORE + _AFTER
_OF_APPENDS = (*_OF_WRITES, "stall before", "stall before", "lost reply")
"""A writer that stands still before it writes, and comes back when the run is another's, is what fences are for."""
_WRITES = frozenset({"claim", "release", "post", "take", "compact", "retire"})
_RARE = frozenset({"appended", "claim", "post", "release", "compact", "retire"})
_WANTING = frozenset({"pending", "running", "interrupted"})
_SELDOM = 5
"""How much more often what is seldom called goes wrong."""


class Faults:
    """How many faults a schedule has, and at which calls. The first one comes for certain."""

    def __init__(self, luck: random.Random, *, most: int = 5) -> None:
        self.luck = luck
        self.left = luck.randrange(1, most + 1)
        self.rate = luck.choice((0.01, 0.03, 0.08))
        self.first_at = luck.randrange(2, 20)
        self.calls = 0
        self.happened: Counter[str] = Counter()

    def at(self, verb: str) -> str:
        """The fault of this call, or nothing."""
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
        """Whether there is a fault left for something that happens to a whole process."""
        if not self.left:
            return False
        self.left -= 1
        self.happened[kind] += 1
        return True


class Ledger:
    """What the disk has really taken, written down by a spy in front of it."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self._now = now
        self._sure_until: dict[str, float] = {}
        """Holder -> until when nobody may take its runs, by the disk's clock."""
        self._dead: set[str] = set()
        self.leases: dict[str, tuple[str | None, int]] = {}
        """Run -> who holds it by what was granted, with which fence."""
        self.accepted: dict[tuple[str, int], bytes] = {}
        """(run, seq) -> the salt of the row that was written there."""
        self.acknowledged: dict[tuple[str, int], bytes] = {}
        """The same, for what an engine was told to be durable."""
        self.wrong: list[str] = []
        self.tick = itertools.count(1).__next__
        """Counts everything that happens, so that it can be said what came first."""
        self.when: dict[tuple[str, int], int] = {}
        """(run, seq) -> the turn at which it became durable."""
        self.writers: dict[tuple[str, int], str | None] = {}
        """(run, seq) -> who wrote it."""
        self.rows: dict[str, list[Row]] = {}
        """Run -> every row that was ever written: a compaction takes rows away, and what they said was said."""
        self.limits: dict[str, int] = {}
        """Queue -> how many of its runs may be held."""
        self.places: dict[str, tuple[str, int]] = {}
        """Run -> its queue and its priority."""

    def lives(self, holder: Holder) -> None:
        """It has said so: its leases stand for as long as it asks."""
        self._sure_until[holder.id] = self._now() + holder.ttl_s

    def died(self, holder: str) -> None:
        self._dead.add(holder)

    def refused(self, append: Append, verdict: BaseException) -> None:
        """An append was refused: not one of the run's holder."""
        if isinstance(verdict, FenceLost) and self.leases.get(append.run_id) == (append.holder, append.fence):
            self.wrong.append(f"{append.run_id}: {append.holder} holds it and was refused: {verdict}")

    def granted(self, run_id: str, holder: Holder, fence: int) -> None:
        before, known = self.leases.get(run_id, (None, 0))
        if fence <= known:
            self.wrong.append(f"{run_id}: fence {fence} was granted to {holder.id} behind fence {known}")
        if before != holder.id and self._stands(before):
            self.wrong.append(f"{run_id}: {holder.id} took it from {before}, whose lease stands")
        self.lives(holder)
        self.leases[run_id] = (holder.id, fence)

    def _stands(self, holder: str | None) -> bool:
        return (
            holder is not None
            and holder not in self._dead
            and self._sure_until.get(holder, 0.0) > self._now()
        )

    def offered(self, wanted: Wanted, row: Callable[[str], RunRow]) -> list[str]:
        """Runs that nobody holds and that want somebody: whoever takes, takes those of the highest priority first."""
        if len(self.places) < 2 or len({priority for _, priority in self.places.values()}) < 2:
            return []
        free = [
            run_id
            for run_id in self.places
            if self.leases[run_id][0] is None and run_id not in wanted.without
        ]
        rows = [row(run_id) for run_id in free]
        return [one.run_id for one in rows if one.flow in wanted.flows and one.status in _WANTING]

    def standing(self, asking: str) -> set[str]:
        """The runs whose leases stand, those of whoever asks included: what it takes revives one that has run out. Nobody counts
        them where no queue has a limit.
        """
        if not self.limits:
            return set()
        return {
            run_id
            for run_id, (holder, _) in self.leases.items()
            if self._stands(holder) or (holder == asking and holder not in self._dead)
        }

    def chosen(self, taken: list[str], offered: list[str], standing: set[str]) -> None:
        """So much was taken of what was on offer: no queue over its limit, no run before a more important one."""
        for run_id in taken:
            queue, priority = self.places[run_id]
            held = sorted(other for other in {*standing, *taken} if self.places[other][0] == queue)
            if len(held) > self.limits.get(queue, len(held)):
                self.wrong.append(f"{run_id} was taken, and of queue {queue!r} are held: {held}")
            for other in set(offered) - set(taken):
                same, more = self.places[other]
                if more > priority and (same == queue or same not in self.limits):
                    self.wrong.append(f"{run_id} was taken, and {other} is more important")

    def took(self, append: Append) -> None:
        """An append was accepted: was its writer the one that holds the run?"""
        at = self.tick()
        run_id = append.run_id
        if append.create is not None:
            self.leases[run_id] = (append.holder, int(append.holder is not None))
            self.places[run_id] = (append.create.queue, append.create.priority)
        elif self.leases.get(run_id) != (append.holder, append.fence):
            self.wrong.append(
                f"{run_id}@{append.rows[0].seq}: {append.holder} wrote with fence {append.fence}, and "
                f"{self.leases.get(run_id)} holds it"
            )
        accepted, when, writers, holder = self.accepted, self.when, self.writers, append.holder
        for row in append.rows:
            place = (run_id, row.seq)
            if place in accepted:
                self.wrong.append(f"{run_id}@{row.seq}: written twice")
            accepted[place] = row.salt
            when[place] = at
            writers[place] = holder
        self.rows.setdefault(run_id, []).extend(append.rows)
        if append.release:
            self.released(run_id, append.holder, append.fence)

    def released(self, run_id: str, holder: str | None, fence: int) -> None:
        if self.leases.get(run_id) == (holder, fence):
            self.leases[run_id] = (None, fence)

    def given_back(self, holder: str) -> None:
        """Somebody gave back what a holder had: only of one whose time is over."""
        if self._stands(holder):
            self.wrong.append(f"the leases of {holder} were given back, and they stand")
        self.gone(holder)

    def gone(self, holder: str) -> None:
        for run_id, (who, fence) in self.leases.items():
            if who == holder:
                self.leases[run_id] = (None, fence)

    def told(self, append: Append) -> None:
        run_id, acknowledged = append.run_id, self.acknowledged
        for row in append.rows:
            acknowledged[run_id, row.seq] = row.salt


@cache
def _verbs(contract: type, faulty: type) -> tuple[str, ...]:
    """Every verb of a contract that has nothing of its own in what stands before it."""
    verbs = (name for name, verb in vars(contract).items() if callable(verb) and not name.startswith("_"))
    return tuple(name for name in verbs if not hasattr(faulty, name))


class FaultyStore:
    """The way of one process to the disk."""

    if TYPE_CHECKING:  # only there: with it, every look at an attribute is slow

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
        for name in _verbs(Store, FaultyStore):
            setattr(self, name, partial(self.call, name, getattr(disk, name)))

    def call(self, verb: str, do: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Do what a verb does, with the fault that belongs to this call."""
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

    # --- verbs that are spied on ----------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        verdicts: list[Verdict] = self.call("append", self._append, batch)
        for append, verdict in zip(batch, verdicts, strict=True):
            if verdict is None:
                self.ledger.told(append)
        return verdicts

    def _append(self, batch: Sequence[Append]) -> list[Verdict]:
        verdicts = self.disk.append(batch)
        for append, verdict in zip(batch, verdicts, strict=True):
            if verdict is None:
                self.ledger.took(append)
            else:
                self.ledger.refused(append, verdict)
        return verdicts

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
            self.ledger.lives(holder)

    def post(self, run_id: str, request: Request) -> bool:
        return bool(self.call("post", self.disk.post, run_id, request))

    def now(self) -> float:
        if self._loop.dead:
            raise ProcessDied
        return self.disk.now()

    def close(self) -> None:
        """The disk outlives its processes."""


class _FaultyPart:
    """A part of a store, through the same faults."""

    def __init__(self, store: FaultyStore, part: Any, contract: type) -> None:
        self._store = store
        self._part = part
        for name in _verbs(contract, type(self)):  # type: ignore[arg-type]
            setattr(self, name, partial(store.call, name, getattr(part, name)))


class _FaultyQueues(_FaultyPart):
    """The queues of a store, and what is taken from them."""

    def take(self, holder: Holder, wanted: Wanted) -> list[Taken]:
        found: list[Taken] = self._store.call("take", self._take, holder, wanted)
        return found

    def _take(self, holder: Holder, wanted: Wanted) -> list[Taken]:
        ledger = self._store.ledger
        offered, standing = ledger.offered(wanted, self._store.disk.run), ledger.standing(holder.id)
        taken: list[Taken] = self._part.take(holder, wanted)
        if taken:
            for got in taken:
                ledger.granted(got.lease.run_id, holder, got.lease.fence)
            ledger.chosen([got.lease.run_id for got in taken], offered, standing)
        return taken

    def give_back(self, holders: Collection[str]) -> list[str]:
        found: list[str] = self._store.call("give_back", self._give_back, holders)
        return found

    def _give_back(self, holders: Collection[str]) -> list[str]:
        gone: list[str] = self._part.give_back(holders)
        for engine in gone:
            self._store.ledger.given_back(engine)
        return gone


class LateWriter:
    """A writer whose commits take a while, and whose callers hear of them another while later: as on a thread of its own.

    Appends are committed in the order they were handed in, one batch at a time.
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
        """Not here: see `submit_all`."""

    def close(self) -> None:
        self._closing = True

    def _next(self) -> None:
        if self._waiting and not self._busy:
            self._busy = True
            self._soon(self._commit)

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        """At once, or when so much time has passed that others have got on."""
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
        except Exception as fault:  # noqa: BLE001 - told to those who wait
            outcomes = [fault] * len(batch)
        self._soon(self._tell, batch, outcomes)

    def _tell(self, batch: Sequence[tuple[Append, Done]], outcomes: Sequence[BaseException | None]) -> None:
        self._busy = False
        for (_, done), outcome in zip(batch, outcomes, strict=True):
            done(outcome)
        self._next()


class SteppedClock:
    """The wall clock of one process: it may be set, forward or back, and what waits is not moved by that."""

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
