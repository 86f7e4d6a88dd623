"""The queues of the memory store: the reference implementation of `Queues`. `take` looks at all runs that have not ended, so it
takes longer the more there are; the databases use indexes instead.
"""

from __future__ import annotations

import copy
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress

import msgspec

from holdfast.core.run_state import OFFERED
from holdfast.errors import RequestExists, RunNotFound, RunOver, StoreUnusable
from holdfast.storage import leases
from holdfast.storage.leases import Holder, Lease
from holdfast.storage.memory.data import Data, StoredRun
from holdfast.storage.offers import list_full, list_offered
from holdfast.storage.queues import (
    FENCE_STEP,
    REFUSALS_MAX,
    Board,
    LiveHolder,
    OnOffer,
    Posted,
    Queue,
    Refusal,
    Request,
    Taken,
    Wanted,
    Why,
    minutes_until,
)
from holdfast.storage.verdicts import digest_request


class _Offer(msgspec.Struct, frozen=True):
    run_id: str
    run: StoredRun
    why: Why
    since: float

    @property
    def rank(self) -> tuple[int, float, str]:
        return (-self.run.new.priority, self.since, self.run_id)


class MemoryQueues:
    """The queues of a memory store. `use` gives access to its data; `now`, `renew` and `post` are methods of the store."""

    def __init__(
        self,
        use: Callable[[], AbstractContextManager[Data]],
        now: Callable[[], float],
        renew: Callable[[Data, Holder], None],
        post: Callable[[str, Request], bool],
        alive: leases.Alive,
    ) -> None:
        self._use = use
        self._now = now
        self._renew = renew
        self._post = post
        self._alive = alive
        with use() as data:
            self._news = data.news
        self._hushes = self._hushes_seen = 0

    def take(self, holder: Holder, wanted: Wanted) -> list[Taken]:
        with self._use() as data:
            room = self._room(data, holder.id)
            taken: list[Taken] = []
            for offer in sorted(self._offers(data, wanted), key=lambda offer: offer.rank):
                queue, run = offer.run.new.queue, offer.run
                if len(taken) >= wanted.limit:
                    break
                if room.get(queue, 1) <= 0:
                    continue
                if queue in room:
                    room[queue] -= 1
                run.head = msgspec.structs.replace(run.head, fence=run.head.fence + 1, holder=holder.id)
                taken.append(
                    Taken(Lease(offer.run_id, run.head.fence, run.head.seq), run.new.flow, offer.why)
                )
            if taken:
                self._renew(data, holder)
            return taken

    def next_due(self, wanted: Wanted) -> float | None:
        with self._use() as data:
            room, live = self._room(data), self._live(data)
            without = frozenset((*wanted.without, *wanted.refused))
            times = [
                run.view.due_at
                for run_id, run in data.unended.items()
                if run.view.status in {"pending", "waiting"}
                and run_id not in without
                and run.view.due_at is not None
                and _is_wanted(run, wanted)
                and run.head.holder not in live
                and room.get(run.new.queue, 1) > 0
            ]
            return min(times, default=None)

    def post_all(self, batch: Sequence[Request]) -> list[Posted]:
        for request in batch:  # all of them can be stored, or none is
            digest_request(request)
        posted: list[Posted] = []
        for request in batch:
            try:
                posted.append(self._post(request.run_id, request))
            except (RunNotFound, RunOver, RequestExists) as refused:
                posted.append(refused)
        return posted

    def held_by(self, holder: str) -> list[Lease]:
        with self._use() as data:
            return [
                Lease(run_id, run.head.fence, run.head.seq)
                for run_id, run in sorted(data.runs.items())
                if run.head.holder == holder
            ]

    def holders(self) -> list[LiveHolder]:
        with self._use() as data:
            return self._listed(data, (engine for engine in self._live(data) if engine is not None))

    def gone(self) -> list[LiveHolder]:
        with self._use() as data:
            live = self._live(data)
            workers = (engine for engine, (holder, _) in data.holders.items() if holder.flows)
            return self._listed(data, (engine for engine in workers if engine not in live))

    @staticmethod
    def _listed(data: Data, engines: Iterable[str]) -> list[LiveHolder]:
        held = Counter(run.head.holder for run in data.runs.values())
        found = []
        for engine in sorted(engines):
            holder, expires_at = data.holders[engine]
            found.append(
                LiveHolder(
                    holder=holder,
                    held=held[engine],
                    registered_at=data.registered[engine],
                    seen_at=expires_at - holder.ttl_s,
                )
            )
        return found

    def waiting(self, run_ids: Collection[str]) -> list[Request]:
        with self._use() as data:
            asked = set(run_ids)
            found = [request for request in data.waiting.values() if request.run_id in asked]
            return [msgspec.structs.replace(request, body=copy.deepcopy(request.body)) for request in found]

    def offered(self) -> tuple[OnOffer, ...]:
        with self._use() as data:
            live, now = self._live(data), self._now()
            told = (
                (
                    run.new.flow,
                    run.new.queue,
                    1,
                    int((run.view.asks or 0) > 0),
                    int(run.view.status == "waiting"),
                )
                for run_id, run in data.runs.items()
                if run.head.holder not in live and is_offered(run_id, run, now)
            )
            return list_offered(told)

    def board(self) -> Board:
        with self._use() as data:
            now, runs = self._now(), data.runs.values()
            ends = Counter(
                (int(run.ended_at // 60), run.view.status) for run in runs if run.ended_at is not None
            )
            return Board(
                at=now,
                counts=dict(Counter(run.view.status for run in runs)),
                asks=sum(run.view.asks or 0 for run in runs),
                asking=sum((run.view.asks or 0) > 0 and run.view.status != "failed" for run in runs),
                minutes=minutes_until(now, ((*end, count) for end, count in ends.items())),
                holders=tuple(self.holders()),
            )

    def refuse(self, refusal: Refusal, definition: bytes | None = None) -> None:
        with self._use() as data:
            run = data.runs.get(refusal.run_id)
            if run is None or run.head.seq != refusal.seq or refusal.holder not in data.holders:
                return
            key = (refusal.holder, refusal.run_id)
            data.refusals[key] = msgspec.structs.replace(refusal, at=self._now())
            if definition is not None:
                data.definitions.setdefault(refusal.fingerprint, definition)

    def refusals(self, run_ids: Collection[str] | None = None) -> list[Refusal]:
        with self._use() as data:
            asked, live = None if run_ids is None else frozenset(run_ids), self._live(data)
            found = [
                one
                for one in data.refusals.values()
                if (asked is None or one.run_id in asked)
                and one.holder in live
                and one.run_id in data.runs
                and data.runs[one.run_id].head.seq == one.seq
            ]
            found.sort(key=lambda one: (one.at, one.holder))
            return found[:REFUSALS_MAX] if asked is None else found

    def give_back(self, holders: Collection[str]) -> list[str]:
        with self._use() as data:
            live = self._live(data)
            gone = [engine for engine in sorted(holders) if engine in data.holders and engine not in live]
            for run in data.runs.values():
                if run.head.holder in gone:
                    run.head = msgspec.structs.replace(run.head, holder=None)
            for engine in gone:
                if not data.holders[engine][0].flows:
                    data.drop_holder(engine)
            if gone:
                data.tell()
            return gone

    def limit(self, queue: str, limit: int | None) -> None:
        with self._use() as data:
            if limit is None:
                data.limits.pop(queue, None)
            else:
                data.limits[queue] = limit
            data.tell()

    def queues(self) -> list[Queue]:
        with self._use() as data:
            held = self._count_held(data)
            offered = Counter(offer.run.new.queue for offer in self._offers(data, None))
            names = data.limits.keys() | {run.new.queue for run in data.unended.values()}
            return [
                Queue(name=name, limit=data.limits.get(name), held=held[name], offered=offered[name])
                for name in sorted(names)
            ]

    def full(self) -> list[Queue]:
        with self._use() as data:
            return list_full(data.limits.items(), self._count_held(data))

    def hear(self, timeout_s: float) -> bool:
        with self._use() as data:
            data.heard.wait_for(
                lambda: data.news != self._news or self._hushes != self._hushes_seen, max(timeout_s, 0.0)
            )
            heard = data.news != self._news
            self._news, self._hushes_seen = data.news, self._hushes
            return heard

    def hush(self) -> None:
        with suppress(StoreUnusable), self._use() as data:
            self._hushes += 1
            data.heard.notify_all()

    def renew_generation(self) -> str:
        with self._use() as data:
            data.generation = uuid.uuid4().hex
            data.holders.clear()
            data.registered.clear()
            data.refusals.clear()
            for run in data.runs.values():
                run.head = msgspec.structs.replace(run.head, fence=run.head.fence + FENCE_STEP, holder=None)
            data.tell()
            return data.generation

    def _offers(self, data: Data, wanted: Wanted | None) -> Iterator[_Offer]:
        now, live = self._now(), self._live(data)
        without = frozenset(wanted.without if wanted is not None else ())
        refused = wanted.refused if wanted is not None else {}
        asked: dict[str, float] = {}
        for request in data.waiting.values():
            asked.setdefault(request.run_id, request.at)
        for run_id, run in data.unended.items():
            if wanted is not None and (run_id in without or not _is_wanted(run, wanted)):
                continue
            if refused.get(run_id) == run.head.seq:
                continue
            if run.head.holder not in live:
                offer = _offer(run_id, run, now, asked.get(run_id))
                if offer is not None:
                    yield offer

    def _room(self, data: Data, asking: str = "") -> dict[str, int]:
        """Return, for each queue that has a limit, how many more of its runs may be held. The runs of the holder `asking` count
        as held even if its lease has expired.
        """
        if not data.limits:
            return {}
        held = self._count_held(data, asking)
        return {queue: limit - held[queue] for queue, limit in data.limits.items()}

    def _count_held(self, data: Data, asking: str = "") -> Counter[str]:
        live = self._live(data) | {asking}
        return Counter(run.new.queue for run in data.runs.values() if run.head.holder in live)

    def _live(self, data: Data) -> set[str | None]:
        """Return the ids of the holders whose leases keep other engines out."""
        now = self._now()
        return {
            engine
            for engine, (holder, expires_at) in data.holders.items()
            if leases.is_held(holder, expires_at, now, self._alive)
        }


def is_offered(run_id: str, run: StoredRun, now: float) -> bool:
    """Return whether a run that no live engine holds is on offer because of its status or its time."""
    return _offer(run_id, run, now, None) is not None


def _is_wanted(run: StoredRun, wanted: Wanted) -> bool:
    return run.new.flow in wanted.flows and (not wanted.queues or run.new.queue in wanted.queues)


def _offer(run_id: str, run: StoredRun, now: float, asked_at: float | None) -> _Offer | None:
    status, due_at = run.view.status, run.view.due_at
    if status in {"pending", "waiting"} and due_at is not None:
        if due_at <= now:
            return _Offer(run_id, run, "pending" if status == "pending" else "due", due_at)
    elif status in OFFERED:
        return _Offer(run_id, run, status, run.new.created_at)
    if asked_at is not None:
        return _Offer(run_id, run, "asked", asked_at)
    return None
