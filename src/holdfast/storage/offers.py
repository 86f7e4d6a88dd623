"""Decide which of the runs on offer a worker gets. The stores on SQLite and PostgreSQL share these functions, which take rows and
run no queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.storage import leases
from holdfast.storage.leases import Holder, Lease
from holdfast.storage.queues import GONE_KEPT, LiveHolder, OnOffer, Queue, Refusal, Taken, Wanted, Why
from holdfast.storage.sql_rows import read_holder

K = TypeVar("K", int, str)
Cells = tuple[Any, ...]


class Offer(msgspec.Struct, frozen=True):
    """A run that a worker may claim, as the query `offers` selects it."""

    key: int
    run_id: str
    flow: str
    queue: str
    priority: int
    seq: int
    fence: int
    why: Why
    since: float

    def taken(self) -> Taken:
        return Taken(Lease(self.run_id, self.fence + 1, self.seq), self.flow, self.why)


class Fates(Generic[K]):
    """Sorts holders into live, lost and dead ones. `told` are the rows of the query `holders`: the key of each holder, the time
    at which its leases expire, when it was last and first seen, and the fields of `Holder`. `asking` is the id of the holder that
    claims runs now: its process is alive, so its runs count as held even if its leases have expired.
    """

    def __init__(self, told: Iterable[Cells], now: float, alive: leases.Alive, asking: str = "") -> None:
        self.live: dict[K, Holder] = {}
        self._seen: dict[K, tuple[float, float | None]] = {}
        self._asking: set[K] = set()
        self.lost: list[K] = []
        """Keys of the holders whose leases do not protect their runs: the leases have expired or the process is dead."""
        self.dead: list[K] = []
        """Keys of the lost holders whose process is known to be dead, so that they will never renew their leases."""
        self.gone: dict[K, Holder] = {}
        """The lost holders that were workers: they have not ended in order."""
        for key, expires_at, seen_at, registered_at, *cells, calls in told:
            holder = read_holder(cells, calls)
            state = alive(holder)
            if holder.id == asking:
                self._asking.add(key)
            if expires_at > now and state is not False:
                self.live[key] = holder
                self._seen[key] = seen_at, registered_at
                continue
            self.lost.append(key)
            if holder.flows:
                self.gone[key] = holder
                self._seen[key] = seen_at, registered_at
            if state is False:
                self.dead.append(key)

    def held(self, told: Iterable[Cells]) -> Counter[str]:
        """Return how many runs of each queue live holders hold. `told` are the rows of the query `held_runs`."""
        held: Counter[str] = Counter()
        for queue, holder, count in told:
            if holder in self.live or holder in self._asking:
                held[queue] += count
        return held

    def list_live(self, told: Iterable[Cells]) -> list[LiveHolder]:
        """Return the live holders, ordered by id. `told` are the rows of the query `held_runs`."""
        return self._listed(self.live, told)

    def list_gone(self, told: Iterable[Cells]) -> list[LiveHolder]:
        """Return the workers that are not alive and have not ended in order, ordered by id."""
        return self._listed(self.gone, told)

    def superfluous(self) -> list[K]:
        """Return the keys of dead holders whose rows tell nothing: all but the workers that were last seen."""
        workers = sorted((key for key in self.dead if key in self.gone), key=lambda key: -self._seen[key][0])
        kept = frozenset(workers[:GONE_KEPT])
        return [key for key in self.dead if key not in kept]

    def _listed(self, holders: Mapping[K, Holder], told: Iterable[Cells]) -> list[LiveHolder]:
        held: Counter[K] = Counter()
        for _, holder, count in told:
            held[holder] += count
        found = []
        for key, holder in holders.items():
            seen_at, registered_at = self._seen[key]
            found.append(
                LiveHolder(holder=holder, held=held[key], registered_at=registered_at, seen_at=seen_at)
            )
        return sorted(found, key=lambda one: one.holder.id)


def room(limits: Iterable[Cells], held: Counter[str]) -> dict[str, int]:
    """Return, for each queue that has a limit, how many more of its runs may be held."""
    return {queue: held_max - held[queue] for queue, held_max in limits}


def choose(offers: Sequence[Offer], room: Mapping[str, int], limit: int) -> list[Offer]:
    """Return the first `limit` offers, in their order, without those whose queue has no room left."""
    chosen: list[Offer] = []
    left = dict(room)
    for offer in offers:
        if len(chosen) >= limit:
            break
        if offer.queue in left:
            if left[offer.queue] <= 0:
                continue
            left[offer.queue] -= 1
        chosen.append(offer)
    return chosen


def leave_out(offers: Iterable[Offer], wanted: Wanted) -> list[Offer]:
    """Return the offers without the runs that the worker does not want."""
    without = frozenset(wanted.without)
    return [
        offer
        for offer in offers
        if offer.run_id not in without and wanted.refused.get(offer.run_id) != offer.seq
    ]


def full(room: Mapping[str, int]) -> list[str]:
    """Return the names of the queues that have no room left."""
    return [queue for queue, left in room.items() if left <= 0]


def list_queues(
    names: Iterable[Cells], limits: Iterable[Cells], held: Counter[str], offered: Iterable[Cells]
) -> list[Queue]:
    """Return one `Queue` per name, from the rows of the queries about names, limits, held and offered runs."""
    limit: dict[str, int] = dict(limits)
    on_offer: dict[str, int] = dict(offered)
    return [
        Queue(name=name, limit=limit.get(name), held=held[name], offered=on_offer.get(name, 0))
        for (name,) in names
    ]


def list_full(limits: Iterable[Cells], held: Counter[str]) -> list[Queue]:
    """Return the queues whose limit lets no worker claim another run, from their limits and how many of their runs are held."""
    found = [Queue(name=name, limit=limit, held=held[name]) for name, limit in sorted(limits)]
    return [queue for queue in found if queue.is_full]


def list_offered(told: Iterable[Cells]) -> tuple[OnOffer, ...]:
    """Return what is on offer by flow and queue, from the rows of the query `count_offers`."""
    found: dict[tuple[str, str], OnOffer] = {}
    for flow, queue, runs, asking, waiting in told:
        one = found.get((flow, queue), OnOffer(flow, queue, 0))
        found[flow, queue] = OnOffer(flow, queue, one.runs + runs, one.asking + asking, one.waiting + waiting)
    return tuple(found[place] for place in sorted(found))


def list_refusals(told: Iterable[Cells], fates: Fates[K]) -> list[Refusal]:
    """Return the refusals by live holders, from the rows of the query `refusals`."""
    found = []
    for key, run_id, holder, seq, fingerprint, too_new, reason, at in told:
        if key in fates.live:
            found.append(
                Refusal(
                    run_id=run_id, holder=holder, seq=seq, fingerprint=fingerprint, too_new=bool(too_new), reason=reason, at=at
                )
            )  # fmt: skip
    return found
