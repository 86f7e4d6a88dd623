"""Decide which of the runs on offer a worker gets. The queues of all databases share these functions, which read no database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.storage import leases
from holdfast.storage.leases import Holder, Lease
from holdfast.storage.queues import Queue, Taken, Why

K = TypeVar("K", int, str)
Cells = tuple[Any, ...]


class Offer(msgspec.Struct, frozen=True):
    """A run on offer, as the query `offers` selects it."""

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
    """Which holders are live, lost or dead, from the rows of the query `holders`: key, when their leases expire, and the holder.
    `asking` is the id of the holder that takes runs now: its process is alive, so its runs count as held even if it was late
    with its renewal.
    """

    def __init__(self, told: Iterable[Cells], now: float, alive: leases.Alive, asking: str = "") -> None:
        self.live: set[K] = set()
        self._asking: set[K] = set()
        self.lost: list[K] = []
        """Holders whose leases no longer protect their runs: they have expired or are dead."""
        self.dead: list[K] = []
        """The lost holders whose process is known to be dead, so that they will never come back."""
        for key, expires_at, *cells in told:
            holder = Holder(**dict(zip(Holder.__struct_fields__, cells, strict=True)))
            state = alive(holder)
            if holder.id == asking:
                self._asking.add(key)
            if expires_at > now and state is not False:
                self.live.add(key)
                continue
            self.lost.append(key)
            if state is False:
                self.dead.append(key)

    def held(self, told: Iterable[Cells]) -> Counter[str]:
        """How many runs of each queue are held, from the rows of the query `held_runs`."""
        held: Counter[str] = Counter()
        for queue, holder, count in told:
            if holder in self.live or holder in self._asking:
                held[queue] += count
        return held


def room(limits: Iterable[Cells], held: Counter[str]) -> dict[str, int]:
    """How many more runs of each queue that has a limit may be held."""
    return {queue: held_max - held[queue] for queue, held_max in limits}


def choose(offers: Sequence[Offer], room: Mapping[str, int], limit: int) -> list[Offer]:
    """The first `limit` offers, in their order, leaving out those whose queue has no room."""
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


def full(room: Mapping[str, int]) -> list[str]:
    """The queues that have no room."""
    return [queue for queue, left in room.items() if left <= 0]


def list_queues(
    names: Iterable[Cells], limits: Iterable[Cells], held: Counter[str], offered: Iterable[Cells]
) -> list[Queue]:
    """One `Queue` per name, from the rows of the queries about names, limits, held and offered runs."""
    limit: dict[str, int] = dict(limits)
    on_offer: dict[str, int] = dict(offered)
    return [
        Queue(name=name, limit=limit.get(name), held=held[name], offered=on_offer.get(name, 0))
        for (name,) in names
    ]
