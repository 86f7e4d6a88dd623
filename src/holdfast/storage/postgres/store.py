"""The store in a schema of a PostgreSQL database, for many processes on many machines.

This module implements the verbs of `storage/contract`; connections and errors are in `database`, the writing of appends in
`append`. Invariants:

- A write that is acknowledged is durable: no verb returns before its commit, and a server that acknowledges commits before they
  are on disk is refused.
- Every transaction locks rows before it checks them, run rows in the order of their ids.
- Leases and times use the database's clock, whatever the clocks of its clients say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import msgspec

from holdfast.errors import CodecError, RunHeld, RunNotFound, StoreError
from holdfast.storage import leases, schema, walks
from holdfast.storage.blobs import Blobs
from holdfast.storage.contract import (
    Append,
    Feed,
    Holder,
    Lease,
    Query,
    Request,
    Row,
    RunRow,
    Snapshot,
    Verdict,
)
from holdfast.storage.offers import Fates
from holdfast.storage.oversize import keep_blobs
from holdfast.storage.postgres import append as postgres_append
from holdfast.storage.postgres import setup
from holdfast.storage.postgres.address import Address
from holdfast.storage.postgres.arrays import Ints, Texts
from holdfast.storage.postgres.blobs import PostgresBlobs
from holdfast.storage.postgres.database import Cells, PostgresDatabase, Session, Transaction
from holdfast.storage.postgres.feed import PostgresFeed
from holdfast.storage.postgres.queues import PostgresQueues
from holdfast.storage.postgres.server_time import DatabaseTime
from holdfast.storage.postgres.tokens import PostgresTokens
from holdfast.storage.postgres.upkeep import PostgresUpkeep
from holdfast.storage.queues import Queues
from holdfast.storage.sql_rows import (
    generation_of,
    holder_cells,
    holder_of,
    request_of,
    require_whole,
    run_row,
)
from holdfast.storage.tokens import Tokens
from holdfast.storage.upkeep import Upkeep
from holdfast.storage.verdicts import digest_request, is_new_request

_LAST_SEQ = 2**62

_encode = msgspec.json.Encoder().encode


class PostgresStore:
    """A store at `postgresql://user:password@host/database`, in `schema` (or `?schema=` in the URL), which is created if it is
    missing. Its blobs are in a table there unless `blobs` is given. `unsafe` (or `?unsafe=1`) also accepts a server that may lose
    acknowledged writes. With `clock` and `alive` tests control the time and which other processes count as alive; without
    `clock`, the database's clock is used.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        unsafe: bool | None = None,
        clock: Callable[[], float] | None = None,
        local: Callable[[], float] = time.monotonic,
        alive: leases.Alive = leases.alive_elsewhere,
        busy_timeout_s: float = 5.0,
        blobs: Blobs | None = None,
    ) -> None:
        address = Address(url, schema=schema, unsafe=unsafe)
        self.url = address.url
        self._clock = clock
        self._alive = alive
        self._time = DatabaseTime(local)
        self._forgot_at: float | None = None
        self._database = PostgresDatabase(
            address, _queries(address.schema), self._time, busy_timeout_s=busy_timeout_s
        )
        self.blobs: Blobs = blobs or PostgresBlobs(self._database)
        self.upkeep: Upkeep = PostgresUpkeep(self._database, self._given_now, alive)
        self._queues = PostgresQueues(self._database, self._given_now, self._renew, alive)
        self.queues: Queues = self._queues
        self.tokens: Tokens = PostgresTokens(self._database)
        self.feed: Feed = PostgresFeed(self._database, self._given_now, alive)
        try:
            self._migrate()
            self.generation: str = generation_of(self.url, self._database.read("generation"))
        except BaseException:
            self.close()
            raise
        self._database.generation = self.generation

    def __repr__(self) -> str:
        return f"PostgresStore({self.url!r})"

    def _migrate(self) -> None:
        read = self._database.read
        found = read("meta_table")
        if found == [(None,)] or not setup.is_current(read("version")):
            self._database.set_up(lambda transaction: setup.migrate(self._database.address, transaction))

    # --- logs ----------------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        if not batch:
            return []
        refused = keep_blobs(self.blobs, batch)
        return self._database.write(
            "append", lambda session: postgres_append.append(self._database, session, batch, refused)
        )

    def appended(self, run_id: str, seq: int, append_id: bytes) -> bool:
        return bool(self._database.read("appended", run_id, seq, append_id))

    def events(
        self,
        run_id: str,
        after: int = 0,
        upto: int | None = None,
        *,
        kinds: Collection[str] = (),
        node: str | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        piece = (
            run_id,
            after,
            _LAST_SEQ if upto is None else upto,
            _LAST_SEQ if limit is None else max(limit, 0),
        )
        if kinds or node is not None:
            cells = self._database.read("events_of", *piece, Texts(list(kinds)) if kinds else None, node)
        else:
            cells = self._database.read("events", *piece)
        if not cells:
            self._require(run_id)
        return [Row(*row) for row in cells]

    def snapshot(self, run_id: str, within: Sequence[tuple[int, int]]) -> Snapshot | None:
        firsts, lasts = [first for first, _ in within], [last for _, last in within]
        found = self._database.read("snapshot", run_id, Ints(firsts), Ints(lasts))
        if not found:
            self._require(run_id)
            return None
        return Snapshot(*found[0])

    def definition(self, fingerprint: str) -> bytes | None:
        found = self._database.read("definition", fingerprint)
        return cast(bytes, found[0][0]) if found else None

    # --- runs ----------------------------------------------------------------------------------------

    def run(self, run_id: str) -> RunRow:
        rows = self._list(["runs", "run_of_id"], [run_id])
        if not rows:
            raise RunNotFound(run_id, self.url)
        return require_whole(rows[0])

    def runs(self, query: Query) -> list[RunRow]:
        return self._list(*walks.plan(query, count=self._count, as_list=Texts, offer=self._offer))

    def _count(self, query: str, *values: str) -> int:
        found = self._database.read(query, *values, walks.FEW)
        return int(found[0][0]) if found else 0

    def _offer(self) -> tuple[Texts, float | None]:
        now = self._given_now()
        return Texts(Fates[str](self._database.read("holders", now), 0.0, self._alive).lost), now

    def _list(self, parts: Sequence[str], values: Sequence[Any]) -> list[RunRow]:
        given = self._given_now()
        known: dict[str, bool] = {}  # each holder is checked once, however many runs it holds
        listed = []
        for cells in self._database.read_joined(parts, values):
            holder, now = holder_of(cells[25:]), cells[23]
            if holder is not None and holder.id not in known:
                known[holder.id] = leases.is_held(
                    holder, cells[24], now if given is None else given, self._alive
                )
            listed.append(run_row(cells, holder, holder is not None and known[holder.id]))
        if listed:
            self._time.hear(now)
        return listed

    # --- leases --------------------------------------------------------------------------------------

    def claim(self, run_id: str, holder: Holder) -> Lease:
        def write(session: Session) -> Lease:
            with session.transaction() as transaction:
                return self._take_lease(transaction, run_id, holder)

        return self._database.write("claim", write)

    def _take_lease(self, transaction: Transaction, run_id: str, holder: Holder) -> Lease:
        transaction.look()
        run, seq, fence, now, old_id = self._find(transaction, "lease", run_id, self._given_now())
        old = None
        if old_id is not None and old_id != holder.id:
            both = transaction.rows("claim_holders", Texts([old_id, holder.id]))
            expires_at, old = next(
                ((cells[0], holder_of(cells[1:])) for cells in both if cells[1] == old_id), (0.0, None)
            )
            if old is not None and leases.is_held(old, expires_at, now, self._alive):
                raise RunHeld(run_id, old.describe())
        self._renew(transaction, holder)
        transaction.do("take_lease", run, holder.id, fence + 1)
        if old is not None and not old.flows and self._alive(old) is False:
            transaction.do("drop_idle_holder", old.id)
        return Lease(run_id, fence + 1, seq)

    def renew(self, holder: Holder) -> None:
        now = self._time.now() if self._clock is None else float(self._clock())
        forgets = self._forgot_at is None or now >= self._forgot_at + leases.FORGETS_S

        def write(session: Session) -> None:
            if holder.ttl_s > 0 and not forgets:
                self._renew_alone(session, holder)
                return
            with session.transaction() as transaction:
                transaction.look()
                if holder.ttl_s > 0:
                    self._renew(transaction, holder)
                else:
                    transaction.do("release_all", holder.id)
                    transaction.do("drop_holder", holder.id)
                    transaction.do("notify")
                transaction.do("drop_old_holders", self._given_now(), leases.KEPT_S)
                if forgets:
                    transaction.do("close_strays")
                    transaction.do("drop_old_refusals", self._given_now(), leases.FORGETS_S)

        self._database.write("renew", write)
        if forgets:
            self._forgot_at = now

    def _renew_alone(self, session: Session, holder: Holder) -> None:
        """Renew a holder in one statement, which also checks the schema version and durability, because an idle engine does
        little else.
        """
        address = self._database.address
        version, fsync, synchronous_commit, now = session.alone(
            "renew_alone",
            *holder_cells(holder, self._given_now()),
            self._database.bounds[0],
            setup.known_version(),
            address.unsafe,
        )
        self._time.hear(now)
        self._database.require_known([(version,)])
        if not address.unsafe and "off" in {fsync, synchronous_commit}:
            raise setup.not_durable(address, fsync=fsync)

    def _renew(self, transaction: Transaction, holder: Holder) -> None:
        transaction.look()
        transaction.do("renew_holder", *holder_cells(holder, self._given_now()))

    def release(self, run_id: str, holder: str, fence: int) -> None:
        def write(session: Session) -> None:
            with session.transaction() as transaction:
                transaction.do("release_lease", run_id, holder, fence)

        self._database.write("release", write)

    # --- the inbox -----------------------------------------------------------------------------------

    def post(self, run_id: str, request: Request, *, only_look: bool = False) -> bool:
        digest = digest_request(request)
        if not _is_text(request.id):
            raise CodecError("a value cannot be stored: the id of the request contains a NUL", path="post")
        if only_look:
            found = self._database.read("posted", run_id, request.id)
            if not found:
                raise RunNotFound(run_id, self.url)
            return is_new_request(run_id, request, digest, *found[0][1:])

        def write(session: Session) -> bool:
            with session.transaction() as transaction:
                return self._post(transaction, run_id, request, digest)

        return self._database.write("post", write)

    def _post(self, transaction: Transaction, run_id: str, request: Request, digest: bytes) -> bool:
        """Put a request into an inbox, and return whether it is new. The run cannot end before the transaction does."""
        if _is_text(run_id):
            transaction.do("lock_run", run_id)
        run, *known = self._find(transaction, "posted", run_id, request.id)
        if not is_new_request(run_id, request, digest, *known):
            return False
        made = transaction.rows(
            "post", run, request.id, request.verb, _encode(request.body).decode(), request.by, request.reason,
            request.at or self._given_now(), digest)  # fmt: skip
        if not made:  # another process has just posted a request with this id
            return is_new_request(
                run_id, request, digest, *self._find(transaction, "posted", run_id, request.id)[1:]
            )
        transaction.do("notify")
        return True

    def inbox(self, holder: str | None = None, *, run_id: str | None = None) -> list[Request]:
        if run_id is None:
            return [request_of(cells) for cells in self._database.read("inbox", holder)]
        if holder is not None:
            return [request_of(cells) for cells in self._database.read("inbox_of_held", holder, run_id)]
        found = self._database.read("inbox_of", run_id)
        if not found:
            self._require(run_id)
        return [request_of(cells) for cells in found]

    # --- the store as a whole ------------------------------------------------------------------------

    def now(self) -> float:
        self._database.require_usable()
        if self._clock is not None:
            return float(self._clock())
        if self._time.is_stale():
            try:
                self._time.hear(self._database.read("time")[0][0])
            except (
                StoreError
            ):  # the computed time drifts by a few microseconds per second until the server is back
                self._database.require_usable()
        return self._time.now()

    def _given_now(self) -> float | None:
        """Return the time of the clock that was given to the store, or None if the database's own clock is used."""
        return None if self._clock is None else float(self._clock())

    def check(self) -> list[str]:
        return [str(fault) for (fault,) in self._database.read("faults")]

    def close(self) -> None:
        self._queues.close()
        self._database.close()

    def _find(self, transaction: Transaction, query: str, run_id: str, *values: Any) -> Cells:
        """Return the row that a named query selects for a run, within a transaction. Raises `RunNotFound`."""
        found = transaction.rows(query, run_id, *values) if _is_text(run_id) else []
        if not found:
            raise RunNotFound(run_id, self.url)
        return found[0]

    def _require(self, run_id: str) -> None:
        if not self._database.read("run_key", run_id):
            raise RunNotFound(run_id, self.url)


def is_there(url: str, *, busy_timeout_s: float = 5.0) -> bool:
    """Return whether a store exists at this URL. The check creates no schema and changes nothing in an existing one."""
    address = Address(url)
    database = PostgresDatabase(
        address, _queries(address.schema), DatabaseTime(), busy_timeout_s=busy_timeout_s
    )
    try:
        return database.read("meta_table") != [(None,)]
    finally:
        database.close()


def _queries(name: str) -> dict[str, str]:
    return schema.queries("postgres", name)


def _is_text(value: str) -> bool:
    """Return whether PostgreSQL can store a text: it has no lone surrogate and no NUL."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False
