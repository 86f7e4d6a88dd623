"""The queues of a SQLite store. This module owns no connection; it uses the store's `database`.

SQLite has only one writer at a time, so workers that take runs or renew leases wait for each other and for appends. Invariants:
if no run is on offer, nothing is written and the write lock is not taken; and a waiting worker runs no query. It checks the
database's WAL file with `os.stat`, and only if that file has changed it asks SQLite whether another connection has written.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import msgspec

from holdfast.errors import RequestExists, RunNotFound, RunOver
from holdfast.storage import leases
from holdfast.storage.leases import Holder, Lease
from holdfast.storage.offers import (
    Cells,
    Fates,
    Offer,
    choose,
    full,
    leave_out,
    list_full,
    list_offered,
    list_queues,
    list_refusals,
    room,
)
from holdfast.storage.queues import (
    BOARD_MINUTES,
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
    minutes_until,
)
from holdfast.storage.sql_rows import request_of
from holdfast.storage.sqlite.database import SqliteDatabase
from holdfast.storage.verdicts import digest_request

_Rows: TypeAlias = Callable[..., list[Cells]]

LOOK_S = 0.05
"""How often, in seconds, the database's WAL file is checked while a worker waits."""
_encode = msgspec.json.Encoder().encode


class SqliteQueues:
    """The queues of one store. `post` is a method of the store, to be called within a transaction. `timer` only measures
    intervals: it need not be the time of day.
    """

    def __init__(
        self,
        database: SqliteDatabase,
        post: Callable[[str, Request, bytes], bool],
        alive: leases.Alive,
        *,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._post = post
        self._log = database.path + "-wal"
        self._alive = alive
        self._timer = timer
        self._heard = database.news
        self._told_seen, self._hushes_seen = self._heard.told, self._heard.hushes
        self._seen = self._look()
        self._version: int | None = None
        self._unsure = True  # a write within the same tick of the file system's clock would not be seen

    def take(self, holder: Holder, wanted: Wanted) -> list[Taken]:
        if wanted.limit <= 0 or not self._offers(
            self._database.read, wanted, self._fates(self._database.read), 1
        ):
            return []
        taken: list[Taken] = self._database.commit("claim", lambda: self._take(holder, wanted))
        return taken

    def _take(self, holder: Holder, wanted: Wanted) -> list[Taken]:
        before = self._fates(self._within)
        for dead in before.dead:
            self._database.do("release_dead", dead)
        for dead in before.superfluous():
            self._database.do("drop_idle_holder", dead)
        fates = self._fates(self._within, holder.id)
        offers = self._offers(self._within, wanted, fates, wanted.limit)
        chosen = choose(offers, self._room(self._within, fates), wanted.limit)
        if chosen:
            key = self._database.do("renew_holder", *self._database.renewed(holder)).get
            for offer in chosen:
                self._database.do("take_lease", offer.key, key, offer.fence + 1)
        return [offer.taken() for offer in chosen]

    def next_due(self, wanted: Wanted) -> float | None:
        fates = self._fates(self._database.read)
        due_at, limited = self._next_due(wanted, fates, [])
        if due_at is not None and limited:
            due_at, _ = self._next_due(wanted, fates, full(self._room(self._database.read, fates)))
        return None if due_at is None else float(due_at)

    def _next_due(self, wanted: Wanted, fates: Fates[int], stopped: list[str]) -> Cells:
        """Return when the next wanted run is due (None if no wanted run waits for a time), and whether any queue has a limit."""
        told = _json(fates.lost), _json(stopped), _json([*wanted.without, *wanted.refused])
        return self._database.read("next_due", *_values_of(wanted), *told)[0]

    def post_all(self, batch: Sequence[Request]) -> list[Posted]:
        digests = [digest_request(request) for request in batch]

        def write() -> list[Posted]:
            return [self._posted(request, digest) for request, digest in zip(batch, digests, strict=True)]

        posted: list[Posted] = self._database.commit("post", write) if batch else []
        self._heard.tell()
        return posted

    def _posted(self, request: Request, digest: bytes) -> Posted:
        try:
            return self._post(request.run_id, request, digest)
        except (RunNotFound, RunOver, RequestExists) as refused:  # nothing of this request was written
            return refused

    def held_by(self, holder: str) -> list[Lease]:
        return [Lease(*cells) for cells in self._database.read("held_by", holder)]

    def holders(self) -> list[LiveHolder]:
        return self._fates(self._database.read).list_live(self._database.read("held_runs"))

    def gone(self) -> list[LiveHolder]:
        return self._fates(self._database.read).list_gone(self._database.read("held_runs"))

    def waiting(self, run_ids: Collection[str]) -> list[Request]:
        asked = _json(list(dict.fromkeys(run_ids)))
        return [request_of(cells) for cells in self._database.read("inbox_of_many", asked)] if run_ids else []

    def offered(self) -> tuple[OnOffer, ...]:
        read = self._database.read
        return list_offered(read("count_offers", _json(self._fates(read).lost), self._database.now()))

    def board(self) -> Board:
        read, now = self._database.read, self._database.now()
        since = (now // 60 - BOARD_MINUTES + 1) * 60
        ((asks, asking),) = read("count_questions")
        return Board(
            at=now,
            counts=dict(read("count_statuses")),
            asks=asks,
            asking=asking,
            minutes=minutes_until(now, read("count_ends", since)),
            holders=tuple(self.holders()),
        )

    def refuse(self, refusal: Refusal, definition: bytes | None = None) -> None:
        one = refusal
        row = one.run_id, one.holder, one.seq, one.fingerprint, int(one.too_new), one.reason

        def write() -> None:
            self._database.do("refuse", *row, self._database.now())
            if definition is not None:
                self._database.do("write_definition", one.fingerprint, definition)

        self._database.commit("claim", write)

    def refusals(self, run_ids: Collection[str] | None = None) -> list[Refusal]:
        read = self._database.read
        if run_ids is None:
            found = read("refusals", REFUSALS_MAX)
        else:
            found = read("refusals_of", _json(list(dict.fromkeys(run_ids)))) if run_ids else []
        return list_refusals(found, self._fates(read)) if found else []

    def give_back(self, holders: Collection[str]) -> list[str]:
        def write() -> list[str]:
            told = self._within("holders")
            fates = Fates[int](told, self._database.now(), self._alive)
            lost = frozenset(fates.lost)
            gone = {engine: key for key, _, _, _, engine, *_ in told if key in lost and engine in holders}
            for key in gone.values():
                self._database.do("release_dead", key)
                if key not in fates.gone:
                    self._database.do("drop_idle_holder", key)
            return sorted(gone)

        gone: list[str] = self._database.commit("claim", write)
        if gone:
            self._heard.tell()
        return gone

    def limit(self, queue: str, limit: int | None) -> None:
        def write() -> None:
            if limit is None:
                self._database.do("drop_limit", queue)
            else:
                self._database.do("set_limit", queue, limit)

        self._database.commit("claim", write)
        self._heard.tell()

    def queues(self) -> list[Queue]:
        fates = self._fates(self._database.read)
        offered = self._database.read("offered_runs", _json(fates.lost), self._database.now())
        held = fates.held(self._database.read("held_runs"))
        return list_queues(self._database.read("queue_names"), self._database.read("limits"), held, offered)

    def full(self) -> list[Queue]:
        limits = self._database.read("limits")
        return (
            list_full(limits, self._fates(self._database.read).held(self._database.read("held_runs")))
            if limits
            else []
        )

    def renew_generation(self) -> str:
        generation = uuid.uuid4().hex

        def write() -> None:
            self._database.do("new_generation", generation)
            self._database.do("renew_fences", FENCE_STEP)
            self._database.do("drop_holders")

        self._database.commit("claim", write)
        self._heard.tell()
        return generation

    def _fates(self, rows: _Rows, asking: str = "") -> Fates[int]:
        return Fates(rows("holders"), self._database.now(), self._alive, asking)

    def _room(self, rows: _Rows, fates: Fates[int]) -> dict[str, int]:
        limits = rows("limits")
        return room(limits, fates.held(rows("held_runs"))) if limits else {}

    def _offers(self, rows: _Rows, wanted: Wanted, fates: Fates[int], limit: int) -> list[Offer]:
        limit += len(wanted.without) + len(
            wanted.refused
        )  # that many of the selected offers may be left out below
        found = rows("offers", *_values_of(wanted), _json(fates.lost), self._database.now(), limit)
        return leave_out([Offer(*cells) for cells in found], wanted)

    def _within(self, query: str, *values: Any) -> list[Cells]:
        found: list[Cells] = self._database.do(query, *values).fetchall()
        return found

    # --- waiting for news ----------------------------------------------------------------------------

    def hear(self, timeout_s: float) -> bool:
        self._database.now()  # refuses a store that was closed
        until = self._timer() + timeout_s
        while True:
            if self._others_wrote():
                return True
            left = until - self._timer()
            with self._heard.changed:
                if self._wait(min(left, LOOK_S)):
                    news, self._told_seen = self._heard.told != self._told_seen, self._heard.told
                    self._hushes_seen = self._heard.hushes
                    return news
            if left <= 0:
                return False

    def _wait(self, timeout_s: float) -> bool:
        news = self._heard
        return news.changed.wait_for(
            lambda: news.told != self._told_seen or news.hushes != self._hushes_seen, max(timeout_s, 0.0)
        )

    def hush(self) -> None:
        self._heard.hush()

    def _others_wrote(self) -> bool:
        """Return whether another connection has written to the database since the last call."""
        found = self._look()
        if found == self._seen and not self._unsure:
            return False
        self._unsure = found != self._seen
        self._seen = found
        version, self._version = self._version, self._database.version_of_others()
        return version != self._version

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._log)
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns


def _values_of(wanted: Wanted) -> tuple[str, str | None]:
    return _json(wanted.flows), _json(wanted.queues) if wanted.queues else None


def _json(values: object) -> str:
    return _encode(values).decode()
