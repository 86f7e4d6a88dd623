"""The store in one SQLite file: it implements the verbs of `storage/contract`.

Connections, transactions and the errors of SQLite are in `database`, the writing of appends is in `append`. Invariant: a write
that is acknowledged is durable. SQLite runs in WAL mode with `synchronous=FULL`, and no verb returns before its commit has
returned.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from typing import Any, cast

import msgspec

from holdfast.errors import RunHeld, RunNotFound, StorePoisoned
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
from holdfast.storage.files import disk
from holdfast.storage.files.blobs import FileBlobs
from holdfast.storage.offers import Fates
from holdfast.storage.oversize import keep_blobs
from holdfast.storage.queues import Queues
from holdfast.storage.sql_rows import (
    generation_of,
    holder_of,
    request_of,
    require_whole,
    run_row,
)
from holdfast.storage.sqlite.append import Appends, UnfitAppend
from holdfast.storage.sqlite.database import Cells, SqliteDatabase
from holdfast.storage.sqlite.feed import SqliteFeed
from holdfast.storage.sqlite.queues import SqliteQueues
from holdfast.storage.sqlite.tokens import SqliteTokens
from holdfast.storage.sqlite.upkeep import SqliteUpkeep
from holdfast.storage.tokens import Tokens
from holdfast.storage.upkeep import Upkeep
from holdfast.storage.verdicts import digest_request, is_new_request

_SQL = schema.queries("sqlite")
_LAST_SEQ = 2**32 - 1

_encode = msgspec.json.Encoder().encode


class SqliteStore:
    """A store in the SQLite file at `path`, which is created if it is missing. Its blobs are in the folder `<path>.blobs` unless
    `blobs` is given. With `clock`, `alive` and `vfs` (a registered apsw VFS) tests control the time, which other processes
    count as alive, and the disk. With `reads`, a store that this process may not write is opened all the same: then every
    verb that writes raises `StoreUnusable`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], float] | None = None,
        alive: leases.Alive = leases.alive,
        busy_timeout_s: float = 5.0,
        vfs: str | None = None,
        blobs: Blobs | None = None,
        machine: Callable[[], float] = time.time,
        reads: bool = False,
    ) -> None:
        self.path = disk.prepare(path)
        self._database = SqliteDatabase(
            self.path,
            clock=clock or machine,
            own_clock=clock is not None,
            busy_timeout_s=busy_timeout_s,
            vfs=vfs,
            reads=reads,
        )
        self.url = self._database.url
        self.now = self._database.now
        self.blobs: Blobs = blobs or FileBlobs(f"{self.path}.blobs")
        self._alive = alive
        self._forgot_at = math.inf
        self._appends = Appends(self._database)
        try:
            self.generation: str = generation_of(self.url, self._database.read("generation"))
        except BaseException:
            self.close()
            raise

    @cached_property
    def upkeep(self) -> Upkeep:
        return SqliteUpkeep(self._database, self._alive)

    @cached_property
    def queues(self) -> Queues:
        return SqliteQueues(self._database, self._post, self._alive)

    @cached_property
    def tokens(self) -> Tokens:
        return SqliteTokens(self._database)

    @cached_property
    def feed(self) -> Feed:
        return SqliteFeed(self._database, self._alive)

    # --- logs ----------------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        if not batch:
            return []
        appends = self._appends
        refused: dict[int, Verdict] = {}
        for append in batch:  # a loop, because few appends have blobs and every step runs this
            if append.blobs or append.along is not None:
                refused = keep_blobs(self.blobs, batch)
                break
        try:
            judged = self._database.commit("append", partial(appends.write_batch, batch, refused))
        except UnfitAppend:
            judged = appends.append_singly(batch, refused)
        if appends.offers:
            appends.offers = False
            self._database.news.tell()
        return judged

    def appended(self, run_id: str, seq: int, append_id: bytes) -> bool:
        # After a failed sync, only a new process can read what is really on the disk.
        if self._database.poison is not None:
            raise StorePoisoned(self._database.poison)
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
        # Rows are keyed by run << 32 | seq, so a larger seq would select rows of another run.
        piece = (
            run_id,
            min(after, _LAST_SEQ),
            _LAST_SEQ if upto is None else min(upto, _LAST_SEQ),
            _LAST_SEQ if limit is None else min(max(limit, 0), _LAST_SEQ),
        )
        if kinds or node is not None:
            cells = self._database.read(
                "events_of", *piece, _encode(list(kinds)).decode() if kinds else None, node
            )
        else:
            cells = self._database.read("events", *piece)
        if not cells:
            self._database.require_run(run_id)
        return [Row(*row) for row in cells]

    def snapshot(self, run_id: str, within: Sequence[tuple[int, int]]) -> Snapshot | None:
        found = [
            row for first, last in within for row in self._database.read("snapshot", run_id, first, last)
        ]
        if not found:
            self._database.require_run(run_id)
            return None
        seq, body, base, digest = max(found)
        return Snapshot(seq, body, bool(base), digest)

    def definition(self, fingerprint: str) -> bytes | None:
        found = self._database.read("definition", fingerprint)
        return cast(bytes, found[0][0]) if found else None

    # --- runs ----------------------------------------------------------------------------------------

    def run(self, run_id: str) -> RunRow:
        rows = self._list([_SQL["runs"], _SQL["run_of_id"]], [run_id])
        if not rows:
            raise RunNotFound(run_id, self.url)
        return require_whole(rows[0])

    def runs(self, query: Query) -> list[RunRow]:
        parts, values = walks.plan(query, count=self._count, as_list=_json, offer=self._offer)
        return self._list([_SQL[part] for part in parts], values)

    def _count(self, query: str, *values: str) -> int:
        found = self._database.read(query, *values, walks.FEW)
        return int(found[0][0]) if found else 0

    def _offer(self) -> tuple[str, float]:
        now = self.now()
        return _json(Fates[int](self._database.read("holders"), now, self._alive).lost), now

    def _list(self, parts: Sequence[str], values: Sequence[Any]) -> list[RunRow]:
        now = self.now()
        known: dict[str, bool] = {}  # each holder is checked once, however many runs it holds
        listed = []
        for cells in self._database.select("\n".join(parts), tuple(values)):
            holder = holder_of(cells[24:])
            if holder is not None and holder.id not in known:
                known[holder.id] = leases.is_held(holder, cells[23], now, self._alive)
            listed.append(run_row(cells, holder, holder is not None and known[holder.id]))
        return listed

    # --- leases --------------------------------------------------------------------------------------

    def claim(self, run_id: str, holder: Holder) -> Lease:
        return self._database.commit("claim", lambda: self._take_lease(run_id, holder))

    def _take_lease(self, run_id: str, holder: Holder) -> Lease:
        found: Cells = self._database.find("lease", run_id)
        run, seq, fence, old_key, expires_at = found[:5]
        old, now = holder_of(found[5:]), self.now()
        if old is not None and old.id != holder.id and leases.is_held(old, expires_at, now, self._alive):
            raise RunHeld(run_id, old.describe())
        key = self._database.do("renew_holder", *self._database.renewed(holder)).get
        self._database.do("take_lease", run, key, fence + 1)
        if old is not None and old.id != holder.id and not old.flows and self._alive(old) is False:
            self._database.do("drop_idle_holder", old_key)
        return Lease(run_id, fence + 1, seq)

    def renew(self, holder: Holder) -> None:
        now = self.now()
        forgets = not self._forgot_at <= now < self._forgot_at + leases.FORGETS_S
        alive = self._database.renewed(holder)
        if holder.ttl_s > 0 and not forgets:
            self._database.commit_alone("renew", "renew_alone", *alive, self._database.known_version)
            return

        def write() -> None:
            if holder.ttl_s > 0:
                self._database.do("renew_holder", *alive)
            else:
                self._database.do("release_all", holder.id)
                self._database.do("drop_holder", holder.id)
            self._database.do("drop_old_holders", now - leases.KEPT_S)
            if forgets:
                self._database.do("drop_old_refusals", now - leases.FORGETS_S)

        self._database.commit("renew", write)
        if forgets:
            self._forgot_at = now
        if holder.ttl_s <= 0:
            self._database.news.tell()

    def release(self, run_id: str, holder: str, fence: int) -> None:
        self._database.commit("release", lambda: self._database.do("release_lease", run_id, holder, fence))
        self._database.news.tell()

    # --- the inbox -----------------------------------------------------------------------------------

    def post(self, run_id: str, request: Request, *, only_look: bool = False) -> bool:
        digest = digest_request(request)
        if only_look:
            found = self._database.read("posted", run_id, request.id)
            if not found:
                raise RunNotFound(run_id, self.url)
            return is_new_request(run_id, request, digest, *found[0][1:])

        posted = self._database.commit("post", lambda: self._post(run_id, request, digest))
        self._database.news.tell()
        return posted

    def _post(self, run_id: str, request: Request, digest: bytes) -> bool:
        """Put a request into an inbox within a transaction, and return whether it is new."""
        run, *known = self._database.find("posted", run_id, request.id)
        new = is_new_request(run_id, request, digest, *known)
        if new:
            self._database.do("post",
                run, request.id, request.verb, _encode(request.body).decode(), request.by, request.reason,
                request.at or self.now(), digest)  # fmt: skip
        return new

    def inbox(self, holder: str | None = None, *, run_id: str | None = None) -> list[Request]:
        if run_id is None:
            return [request_of(cells) for cells in self._database.read("inbox", holder)]
        if holder is not None:
            return [request_of(cells) for cells in self._database.read("inbox_of_held", holder, run_id)]
        found = self._database.read("inbox_of", run_id)
        if not found:
            self._database.require_run(run_id)
        return [request_of(cells) for cells in found]

    # --- the store as a whole ------------------------------------------------------------------------

    def check(self) -> list[str]:
        return self._database.check()

    def close(self) -> None:
        if self._database.is_own():
            self._database.news.hush()
            self._database.close()


def _json(texts: Sequence[str | int]) -> str:
    return _encode(texts).decode()
