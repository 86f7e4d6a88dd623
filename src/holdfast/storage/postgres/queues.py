"""The queues of a PostgreSQL store. This module owns one connection: the one on which its `PostgresListener` listens.

Invariants:

- Offers are read without locks. A transaction then takes them: it skips runs that other workers are taking, and checks that a run
  has not changed since it was read. So no worker waits for the rows of another, and two workers never get the same run.
- To take runs from a queue with a limit, a worker locks the queue's row first and then counts its held runs; so workers do this
  one after another.
- To take over an expired lease, a worker locks its holder's row and reads it again: a holder that has renewed before keeps the
  run, and a holder that renews now waits until the run is taken. Run rows are locked before holder rows whenever a transaction
  may wait for a lock.
- If no run is on offer, no transaction begins.
- The database's clock decides whether a lease has expired; a dead process on this host is recognised at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec

from holdfast.errors import CodecError, RequestExists, RunNotFound, RunOver
from holdfast.storage import leases
from holdfast.storage.leases import Holder, Lease
from holdfast.storage.offers import (
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
from holdfast.storage.postgres.arrays import Array, Bytes, Floats, Ints, Texts
from holdfast.storage.postgres.database import PostgresDatabase, Session, Transaction
from holdfast.storage.postgres.listener import PostgresListener
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
from holdfast.storage.verdicts import digest_request, is_new_request

_encode = msgspec.json.Encoder().encode
_TRIES = 6
_AT_LEAST = 32
"""How many more runs of each queue are read than are wanted, because other workers may be taking the first ones."""


class _Inboxes:
    """The inboxes of runs that a transaction has locked. `runs` has the key and status of each run."""

    def __init__(self, url: str, runs: Mapping[str, tuple[int, str]]) -> None:
        self._url = url
        self._runs = runs
        self.known: dict[tuple[int, str], tuple[str, bytes | None]] = {}
        """Run and id of a request -> its verb and digest."""

    def add(self, transaction: Transaction, keys: Sequence[tuple[int, str]]) -> None:
        """Read which of these requests are there."""
        runs, ids = Ints([run for run, _ in keys]), Texts([request for _, request in keys])
        for run, request, verb, digest in transaction.rows("posted_all", runs, ids):
            self.known[run, request] = verb, digest

    def judge(self, request: Request, digest: bytes) -> Posted:
        """Return what comes of a request."""
        if request.run_id not in self._runs:
            return RunNotFound(request.run_id, self._url)
        run, status = self._runs[request.run_id]
        posted = self.known.get((run, request.id), (None, None))
        try:
            return is_new_request(request.run_id, request, digest, status, *posted)
        except (RunOver, RequestExists) as refused:
            return refused


class PostgresQueues:
    """The queues of one store. `given_now` and `renew` are methods of the store."""

    def __init__(
        self,
        database: PostgresDatabase,
        given_now: Callable[[], float | None],
        renew: Callable[[Transaction, Holder], None],
        alive: leases.Alive,
    ) -> None:
        self._database = database
        self._given_now = given_now
        self._renew = renew
        self._alive = alive
        self._listener = PostgresListener(database)
        self._buried: frozenset[str] = frozenset()
        """The dead holders whose runs were released. Workers among them are kept to be seen."""

    def take(self, holder: Holder, wanted: Wanted) -> list[Taken]:
        fates = self._fates()
        if self._buried.symmetric_difference(fates.dead):
            self._bury(fates)
        taken: list[Taken] = []
        width, missed = wanted.limit + _AT_LEAST, False
        for _ in range(_TRIES):
            left = wanted.limit - len(taken)
            offers = self._offers(wanted, fates, width) if left > 0 else []
            if not offers:
                break
            asked = partial(self._take, holder=holder, offers=offers, fates=fates, limit=left)
            got, missed = self._database.write("claim", asked)
            taken.extend(offer.taken() for offer in got)
            if not missed:
                break
            width *= 4
        if missed and not taken:  # runs are on offer, and another process keeps all of them locked
            self._database.end_stuck()
        return taken

    def _take(
        self, session: Session, holder: Holder, offers: Sequence[Offer], fates: Fates[str], limit: int
    ) -> tuple[list[Offer], bool]:
        """Claim up to `limit` of these offers in one transaction. Returns those that were claimed, and whether other workers
        claimed some first.
        """
        with session.transaction() as transaction:
            eligible = choose(offers, self._room(transaction, holder, offers), len(offers))
            if not eligible:
                return [], False
            self._renew(transaction, holder)
            lost = self._still_lost(transaction, holder, eligible, fates)
            found = transaction.rows(
                "take_offers", Ints([offer.key for offer in eligible]), Ints([offer.seq for offer in eligible]),
                Ints([offer.fence for offer in eligible]), Texts(lost), holder.id, limit,
            )  # fmt: skip
        keys = {key for (key,) in found}
        return [offer for offer in eligible if offer.key in keys], len(keys) < min(limit, len(eligible))

    def _still_lost(
        self, transaction: Transaction, holder: Holder, offers: Sequence[Offer], fates: Fates[str]
    ) -> list[str]:
        """Return the ids of those holders of the offered runs that are lost (expired or dead) and have not renewed since. They
        cannot renew until the transaction ends.
        """
        if not fates.lost:
            return []
        keys = Ints([offer.key for offer in offers])
        found = transaction.rows("lock_lost", Texts(fates.lost), self._given_now(), keys)
        itself = (
            [holder.id] if holder.id in fates.lost else []
        )  # this holder has just renewed in this transaction
        return [*fates.dead, *itself, *(engine for (engine,) in found)]

    def _room(self, transaction: Transaction, holder: Holder, offers: Sequence[Offer]) -> dict[str, int]:
        """Return, for each queue that has a limit, how many more of its runs may be held. The numbers cannot change until the
        transaction ends.
        """
        limits = transaction.rows("lock_limits", Texts(sorted({offer.queue for offer in offers})))
        if not limits:
            return {}
        told = transaction.rows("holders", self._given_now())  # read again, because there may be new holders
        fates = Fates[str](told, 0.0, self._alive, holder.id)
        return room(limits, fates.held(transaction.rows("held_runs")))

    def _bury(self, fates: Fates[str]) -> None:
        """Release the runs of dead processes, so that they are on offer like all others."""
        fresh, superfluous = [one for one in fates.dead if one not in self._buried], fates.superfluous()

        def write(session: Session) -> None:
            with session.transaction() as transaction:
                for engine in fresh:
                    transaction.do("release_all", engine)
                for engine in superfluous:
                    transaction.do("drop_idle_holder", engine)

        if fresh or superfluous:
            self._database.write("claim", write)
        self._buried = frozenset(fates.dead)

    def next_due(self, wanted: Wanted) -> float | None:
        fates = self._fates()
        due_at, limited = self._next_due(wanted, fates, [])
        if due_at is not None and limited:
            limits, held = self._database.read("limits"), self._database.read("held_runs")
            due_at, _ = self._next_due(wanted, fates, full(room(limits, fates.held(held))))
        return due_at

    def _next_due(self, wanted: Wanted, fates: Fates[str], stopped: list[str]) -> tuple[float | None, bool]:
        """Return when the next wanted run is due (None if no wanted run waits for a time), and whether any queue has a limit."""
        told = Texts(fates.lost), Texts(stopped), Texts([*wanted.without, *wanted.refused])
        found = self._database.read("next_due", *_values_of(wanted), *told)
        return found[0] if found else (None, False)

    def post_all(self, batch: Sequence[Request]) -> list[Posted]:
        digests = [digest_request(request) for request in batch]
        if any("\0" in request.id for request in batch):
            raise CodecError("a value cannot be stored: the id of a request contains a NUL", path="post")

        def write(session: Session) -> list[Posted]:
            with session.transaction() as transaction:
                return self._post_all(transaction, batch, digests)

        return self._database.write("post", write) if batch else []

    def _post_all(
        self, transaction: Transaction, batch: Sequence[Request], digests: Sequence[bytes]
    ) -> list[Posted]:
        """Put requests into inboxes. None of their runs can end before the transaction does."""
        wanted = sorted({request.run_id for request in batch if "\0" not in request.run_id})
        runs = {run_id: (key, status) for run_id, key, status in transaction.rows("lock_runs", Texts(wanted))}
        inboxes = _Inboxes(self._database.address.url, runs)
        inboxes.add(transaction, [(runs[one.run_id][0], one.id) for one in batch if one.run_id in runs])
        posted: list[Posted] = []
        new: dict[tuple[int, str], int] = {}  # run and id of a new request -> its place in the batch
        for place, (request, digest) in enumerate(zip(batch, digests, strict=True)):
            posted.append(inboxes.judge(request, digest))
            if posted[-1] is True:
                new[runs[request.run_id][0], request.id] = place
                inboxes.known[runs[request.run_id][0], request.id] = request.verb, digest
        made = set(transaction.rows("post_all", *self._columns(batch, digests, new))) if new else set()
        raced = [key for key in new if key not in made]
        if raced:  # another process has just posted requests with these ids
            inboxes.add(transaction, raced)
            for key in raced:
                posted[new[key]] = inboxes.judge(batch[new[key]], digests[new[key]])
        if made:
            transaction.do("notify")
        return posted

    def _columns(
        self, batch: Sequence[Request], digests: Sequence[bytes], new: Mapping[tuple[int, str], int]
    ) -> list[Array]:
        """Return the new rows of the inbox as columns."""
        requests, now = [batch[place] for place in new.values()], self._given_now()
        return [
            Ints([run for run, _ in new]),
            Texts([one.id for one in requests]),
            Texts([one.verb for one in requests]),
            Texts([_encode(one.body).decode() for one in requests]),
            Texts([one.by for one in requests]),
            Texts([one.reason for one in requests]),
            Floats([one.at or now for one in requests]),
            Bytes([digests[place] for place in new.values()]),
        ]

    def held_by(self, holder: str) -> list[Lease]:
        return [Lease(*cells) for cells in self._database.read("held_by", holder)]

    def holders(self) -> list[LiveHolder]:
        return self._fates().list_live(self._database.read("held_runs"))

    def gone(self) -> list[LiveHolder]:
        return self._fates().list_gone(self._database.read("held_runs"))

    def waiting(self, run_ids: Collection[str]) -> list[Request]:
        asked = Texts(list(dict.fromkeys(run_ids)))
        return [request_of(cells) for cells in self._database.read("inbox_of_many", asked)] if run_ids else []

    def offered(self) -> tuple[OnOffer, ...]:
        return list_offered(self._database.read("count_offers", Texts(self._fates().lost), self._given_now()))

    def board(self) -> Board:
        read = self._database.read
        ends = read("count_ends", self._given_now(), BOARD_MINUTES - 1)
        now = ends[0][0]
        ((asks, asking),) = read("count_questions")
        return Board(
            at=now,
            counts=dict(read("count_statuses")),
            asks=asks,
            asking=asking,
            minutes=minutes_until(now, (end[1:] for end in ends if end[1] is not None)),
            holders=tuple(self.holders()),
        )

    def refuse(self, refusal: Refusal, definition: bytes | None = None) -> None:
        one = refusal
        row = one.run_id, one.holder, one.seq, one.fingerprint, one.too_new, one.reason

        def write(session: Session) -> None:
            with session.transaction() as transaction:
                transaction.do("refuse", *row, self._given_now())
                if definition is not None:
                    transaction.do("write_definition", one.fingerprint, definition)

        self._database.write("claim", write)

    def refusals(self, run_ids: Collection[str] | None = None) -> list[Refusal]:
        read = self._database.read
        if run_ids is None:
            found = read("refusals", REFUSALS_MAX)
        else:
            found = read("refusals_of", Texts(list(dict.fromkeys(run_ids)))) if run_ids else []
        return list_refusals(found, self._fates()) if found else []

    def give_back(self, holders: Collection[str]) -> list[str]:
        fates = self._fates()
        return [
            engine
            for engine in sorted(holders)
            if engine in fates.lost
            and self._database.write("claim", partial(self._give_back, engine=engine, fates=fates))
        ]

    def _give_back(self, session: Session, engine: str, fates: Fates[str]) -> bool:
        """Release the leases of a holder if it is still lost (expired or dead), and return whether it was. Each holder has a
        transaction of its own, which waits only for the rows of that holder.
        """
        with session.transaction() as transaction:
            transaction.do("lock_held", engine)
            gone = transaction.rows("lock_gone", engine, engine in fates.dead, self._given_now())
            if gone:
                transaction.do("release_all", engine)
                if engine not in fates.gone:
                    transaction.do("drop_idle_holder", engine)
                transaction.do("notify")
        return bool(gone)

    def limit(self, queue: str, limit: int | None) -> None:
        def write(session: Session) -> None:
            with session.transaction() as transaction:
                if limit is None:
                    transaction.do("drop_limit", queue)
                else:
                    transaction.do("set_limit", queue, limit)
                transaction.do("notify")

        self._database.write("claim", write)

    def queues(self) -> list[Queue]:
        read = self._database.read
        fates = self._fates()
        offered = read("offered_runs", Texts(fates.lost), self._given_now())
        return list_queues(read("queue_names"), read("limits"), fates.held(read("held_runs")), offered)

    def full(self) -> list[Queue]:
        limits = self._database.read("limits")
        return list_full(limits, self._fates().held(self._database.read("held_runs"))) if limits else []

    def hear(self, timeout_s: float) -> bool:
        return self._listener.hear(timeout_s)

    def hush(self) -> None:
        self._listener.ring()

    def renew_generation(self) -> str:
        generation = uuid.uuid4().hex

        def write(session: Session) -> None:
            with session.patience(), session.transaction() as transaction:
                transaction.do("new_generation", generation)
                transaction.do("renew_fences", FENCE_STEP)
                transaction.do("drop_holders")
                transaction.do("notify")

        self._database.write("claim", write)
        self._database.generation = generation
        return generation

    def close(self) -> None:
        self._listener.close()

    def _fates(self) -> Fates[str]:
        return Fates(self._database.read("holders", self._given_now()), 0.0, self._alive)

    def _offers(self, wanted: Wanted, fates: Fates[str], width: int) -> list[Offer]:
        width += len(wanted.without) + len(
            wanted.refused
        )  # that many of the selected offers may be left out below
        found = self._database.read(
            "offers", *_values_of(wanted), Texts(fates.lost), self._given_now(), width
        )
        return leave_out([Offer(*cells) for cells in found], wanted)


def _values_of(wanted: Wanted) -> tuple[Texts, Texts | None]:
    return Texts(wanted.flows), Texts(wanted.queues) if wanted.queues else None
