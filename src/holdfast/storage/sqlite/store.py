"""The store in one SQLite file.

It owns two connections: one that writes, under one lock, and one that reads, under its own; so a reader never waits
for a sync. The writing of appends is in `sqlite_append`. Invariants:

- Acknowledged is durable: WAL with `synchronous=FULL`, and nobody is told before the commit has returned.
- A store knows its kind by `application_id` and its version by `user_version` (how many migrations it has seen). All missing
  migrations run in one transaction, so a store is never between two versions, however many processes open it at once.
- A store that was lifted by a newer version while it was in use is written to no more: looked at within each transaction that
  renews or takes a lease, and every `_LOOK_S` within any other.
- Every transaction that writes takes the write lock at its begin and holds all it checks and all it writes.
- A commit that fails with an I/O error has an unknown outcome. The store is poisoned: it writes nothing more, also not on close.
- Errors of SQLite leave this file as our own, with the path and the way out.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar, cast

import apsw
import msgspec

from holdfast.errors import (
    CodecError,
    RunHeld,
    RunNotFound,
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StorePoisoned,
    StoreUnusable,
)
from holdfast.storage import failpoints, process, schema
from holdfast.storage import holder as holders
from holdfast.storage.blobs import Blobs, FileBlobs
from holdfast.storage.columns import generation_of, holder_of, run_row
from holdfast.storage.contract import Append, Holder, Lease, Query, Request, Row, RunRow, Snapshot, Verdict
from holdfast.storage.files import disk
from holdfast.storage.oversize import keep_blobs
from holdfast.storage.queues import Queues
from holdfast.storage.sqlite.append import Appends
from holdfast.storage.sqlite.append import Lent as LentToAppends
from holdfast.storage.sqlite.queues import Lent, SqliteQueues
from holdfast.storage.sqlite.upkeep import Means, SqliteUpkeep
from holdfast.storage.upkeep import Upkeep

T = TypeVar("T")
Cells = tuple[Any, ...]
_Verb = Literal["append", "claim", "post", "release", "renew", "prune", "compact", "delete", "sweep"]

APPLICATION_ID = 0x48_46_53_54  # "HFST"

_SQL = schema.queries("sqlite")
_LAST_SEQ = 2**32 - 1
_LOOK_S = 0.1
"""How often a store looks whether its file is still there, and of its version. What was in a removed file is lost anyway; this
tells soon."""
_LOOKING = ("renew", "claim")
_ROOM_FOR_LOG_BYTES = 64 * 1024 * 1024

_encode = msgspec.json.Encoder().encode
_object = msgspec.json.Decoder(dict[str, Any]).decode

# What a forked child inherits must never be finalised there: closing a connection would touch the parent's files.
_open: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_inherited: list[SqliteStore] = []
os.register_at_fork(after_in_child=lambda: _inherited.extend(_open))


class SqliteStore:
    """A store in the file at `path`, which is made if it is missing; its blobs are in the folder `<path>.blobs` unless given.
    `clock`, `alive` and `vfs` (a registered apsw VFS) let tests own time, the fate of other processes and the disk.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = time.time,
        alive: holders.Alive = holders.alive,
        busy_timeout_s: float = 5.0,
        vfs: str | None = None,
        blobs: Blobs | None = None,
    ) -> None:
        self.path = disk.prepare(path)
        self.url = f"sqlite:///{self.path}"
        self.blobs: Blobs = blobs or FileBlobs(f"{self.path}.blobs")
        self._clock = clock
        self._alive = alive
        self._busy_timeout_s = busy_timeout_s
        self._vfs = vfs
        self._forks = process.count
        self._closed = False
        self._poison: str | None = None
        self._writing = threading.RLock()  # a failpoint's hook may play a second writer
        self._reading = threading.Lock()
        try:
            self._writer = self._connect(first=True)
            try:
                self._reader = self._connect()
            except BaseException:
                self._writer.close(force=True)
                raise
        except apsw.Error as fault:
            raise self._fault(fault) from fault
        self._reader.pragma("query_only", True)
        self._cursor = self._writer.cursor()
        lent_to_appends = LentToAppends(self._commit, self._cursor, apsw.TooBigError, apsw.ConstraintError)
        self._appends = Appends(self.path, self.url, lent_to_appends)
        self._file = disk.identity(self.path)
        means = Means(self._commit, self._do, self._read, self._connect, self._guarded)
        self.upkeep: Upkeep = SqliteUpkeep(self.path, means, self.now, alive)
        self._looked_at = 0.0
        self._forgot_at = math.inf
        lent = Lent(self._commit, self._do, self._read, self._renew, self.now, self._version_of_others)
        self._queues = SqliteQueues(self.path, lent, alive)
        self.queues: Queues = self._queues
        _open.add(self)
        try:
            self.generation: str = generation_of(self.url, self._read("generation", ()))
        except BaseException:
            self.close()
            raise

    # --- logs ----------------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        if not batch:
            return []
        self._require_usable()
        judged = self._appends.append(batch, keep_blobs(self.blobs, batch))
        if self._appends.offers:
            self._appends.offers = False
            self._queues.tell()
        return judged

    def appended(self, run_id: str, seq: int, append_id: bytes) -> bool:
        # What a failed sync left behind is only seen by a process that starts anew.
        if self._poison is not None:
            raise StorePoisoned(self._poison)
        return bool(self._read("appended", (run_id, seq, append_id)))

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
        # A seq that no log has would be a place in the log of another run.
        piece = (
            run_id,
            min(after, _LAST_SEQ),
            _LAST_SEQ if upto is None else min(upto, _LAST_SEQ),
            _LAST_SEQ if limit is None else min(max(limit, 0), _LAST_SEQ),
        )
        if kinds or node is not None:
            cells = self._read("events_of", (*piece, _encode(list(kinds)).decode() if kinds else None, node))
        else:
            cells = self._read("events", piece)
        if not cells:
            self._require(run_id)
        return [Row(*row) for row in cells]

    def snapshot(self, run_id: str, within: Sequence[tuple[int, int]]) -> Snapshot | None:
        found = [row for first, last in within for row in self._read("snapshot", (run_id, first, last))]
        if not found:
            self._require(run_id)
            return None
        seq, body, base, digest = max(found)
        return Snapshot(seq, body, bool(base), digest)

    def definition(self, fingerprint: str) -> bytes | None:
        found = self._read("definition", (fingerprint,))
        return cast(bytes, found[0][0]) if found else None

    # --- runs ----------------------------------------------------------------------------------------

    def run(self, run_id: str) -> RunRow:
        rows = self._list(["runs_of_id"], [run_id])
        if not rows:
            raise RunNotFound(run_id, self.url)
        return rows[0]

    def runs(self, query: Query) -> list[RunRow]:
        parts: list[str] = []
        values: list[Any] = []
        if query.status:
            parts.append("runs_of_status")
            values.append(_encode(query.status).decode())
        if query.flow is not None:
            parts.append("runs_of_flow")
            values.append(query.flow)
        if query.parent is not None:
            parts.append("runs_of_parent")
            values.append(query.parent)
        if query.queue is not None:
            parts.append("runs_of_queue")
            values.append(query.queue)
        for label in query.labels.items():
            parts.append("runs_of_label")
            values.extend(label)
        if query.before is not None:
            self._require(query.before)
            parts.append("runs_behind")
            values.append(query.before)
        return self._list([*parts, "runs_newest"], [*values, max(query.limit, 0)])

    def _list(self, parts: Sequence[str], values: Sequence[Any]) -> list[RunRow]:
        now = self.now()
        known: dict[str, bool] = {}  # one look at each process, however many runs it holds
        listed = []
        for cells in self._select("\n".join(_SQL[part] for part in ("runs", *parts)), tuple(values)):
            holder = holder_of(cells[20:])
            if holder is not None and holder.id not in known:
                known[holder.id] = holders.is_held(holder, cells[19], now, self._alive)
            listed.append(run_row(cells, holder, holder is not None and known[holder.id]))
        return listed

    # --- leases --------------------------------------------------------------------------------------

    def claim(self, run_id: str, holder: Holder) -> Lease:
        return self._commit("claim", lambda: self._take_lease(run_id, holder))

    def _take_lease(self, run_id: str, holder: Holder) -> Lease:
        found: Cells = self._find("lease", run_id)
        run, seq, fence, old_key, expires_at = found[:5]
        old, now = holder_of(found[5:]), self.now()
        if old is not None and old.id != holder.id and holders.is_held(old, expires_at, now, self._alive):
            raise RunHeld(run_id, old.describe())
        self._cursor.execute(_SQL["take_lease"], (run, self._renew(holder, now), fence + 1))
        if old is not None and old.id != holder.id and self._alive(old) is False:
            self._cursor.execute(_SQL["drop_idle_holder"], (old_key,))
        return Lease(run_id, fence + 1, seq)

    def renew(self, holder: Holder) -> None:
        now = self.now()
        forgets = not self._forgot_at <= now < self._forgot_at + holders.FORGETS_S
        if holder.ttl_s > 0 and not forgets:
            self._commit_alone("renew", "renew_alone", (*_cells(holder, now), self._known))
            return

        def write() -> None:
            if holder.ttl_s > 0:
                self._renew(holder, now)
            else:
                self._cursor.execute(_SQL["release_all"], (holder.id,))
                self._cursor.execute(_SQL["drop_holder"], (holder.id,))
            self._cursor.execute(_SQL["drop_old_holders"], (now - holders.KEPT_S,))

        self._commit("renew", write)
        if forgets:
            self._forgot_at = now
        if holder.ttl_s <= 0:
            self._queues.tell()

    def _renew(self, holder: Holder, now: float) -> int:
        return cast(int, self._cursor.execute(_SQL["renew_holder"], _cells(holder, now)).get)

    def release(self, run_id: str, holder: str, fence: int) -> None:
        self._commit("release", lambda: self._cursor.execute(_SQL["release_lease"], (run_id, holder, fence)))
        self._queues.tell()

    # --- the inbox -----------------------------------------------------------------------------------

    def post(self, run_id: str, request: Request) -> bool:
        def write() -> bool:
            run: int = self._find("run_key", run_id)
            return self._cursor.execute(_SQL["post"], (
                run, request.id, request.verb, _encode(request.body).decode(), request.by, request.reason,
                request.at or self.now())).get is not None  # fmt: skip

        posted = self._commit("post", write)
        self._queues.tell()
        return posted

    def inbox(self, holder: str) -> list[Request]:
        return [
            Request(id=request, verb=verb, body=_object(body), by=by, reason=reason, run_id=run_id, at=at)
            for request, verb, body, by, reason, run_id, at in self._read("inbox", (holder,))
        ]

    # --- the store as a whole ------------------------------------------------------------------------

    def now(self) -> float:
        self._require_usable()
        return float(self._clock())

    def check(self) -> list[str]:
        self._require_usable()
        try:
            connection = self._connect()  # its own: a check of a large file keeps nobody waiting
            try:
                found = [str(line) for (line,) in connection.execute(_SQL["integrity"])]
            finally:
                connection.close()
        except apsw.CorruptError as fault:
            return [str(self._fault(fault))]
        except apsw.Error as fault:
            raise self._fault(fault) from fault
        return [] if found == ["ok"] else found

    def close(self) -> None:
        if self._forks != process.count:
            return  # the connections are the parent's
        self._queues.hush()
        with self._writing, self._reading:
            if self._closed:
                return
            self._closed = True
            _open.discard(self)
            if self._poison is not None:
                self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._cursor.close(force=True)
            self._reader.close(force=True)
            self._writer.close(force=True)  # the last one to leave folds the WAL into the database

    # --- connections ---------------------------------------------------------------------------------

    def _connect(self, *, first: bool = False) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
        connection = apsw.Connection(self.path, flags=flags, vfs=self._vfs, statementcachesize=200)
        try:
            connection.set_busy_timeout(round(self._busy_timeout_s * 1000))
            if first:
                self._refuse_foreign(connection)
                self._use_wal(connection)
            connection.pragma("synchronous", "full")
            connection.pragma("trusted_schema", False)
            # Otherwise a statement that might use a partial index is compiled anew for every value bound to it.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            connection.pragma("journal_size_limit", _ROOM_FOR_LOG_BYTES)
            if sys.platform == "darwin":
                connection.pragma("fullfsync", True)
                connection.pragma("checkpoint_fullfsync", True)
            if first:
                self._migrate(connection)
        except BaseException:
            connection.close(force=True)
            raise
        return connection

    def _use_wal(self, connection: apsw.Connection) -> None:
        """Several processes may turn a new file to WAL at once; SQLite then may say busy without having waited."""
        tries_left = 100
        while True:
            try:
                mode = connection.pragma("journal_mode", "wal")
                break
            except apsw.BusyError:
                tries_left -= 1
                if not tries_left:
                    raise
                connection.execute(_SQL["begin"])  # waits its turn, up to the busy timeout
                connection.execute(_SQL["rollback"])
        if mode != "wal":
            raise StoreUnusable(
                f"{self.path}: this file system cannot keep a write-ahead log (SQLite stays in mode {mode!r}). "
                "Choose a path on a local disk."
            )

    def _refuse_foreign(self, connection: apsw.Connection) -> None:
        """Refuse a database that another program made, before anything of it is changed.

        Read as of one moment: half of it from before another process made the store, half from after, would look foreign.
        """
        connection.execute(_SQL["begin_reading"])
        try:
            application = connection.pragma("application_id")
            used = connection.pragma("user_version") or connection.execute(_SQL["any_table"]).get
        finally:
            with suppress(apsw.Error):  # a disk that fails has ended it, and that fault is what must be told
                connection.execute(_SQL["rollback"])
        if application != APPLICATION_ID and (application or used):
            raise StoreUnusable(
                f"{self.path} is a SQLite database of another program. Choose another path for the store."
            )

    def _migrate(self, connection: apsw.Connection) -> None:
        """Lift the store to the version this code knows. Refuses one that is newer."""
        known = schema.migrations("sqlite")
        self._known = len(known)
        if self._version(connection, len(known)) == len(known):
            return
        connection.execute(_SQL["begin"])
        try:
            # Another process may have lifted it while this one waited for the lock.
            for migration in known[self._version(connection, len(known)) :]:
                connection.execute(migration)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", len(known))
            connection.execute(_SQL["commit"])
        except BaseException:
            with suppress(apsw.Error):  # as above
                connection.execute(_SQL["rollback"])
            raise

    def _version(self, connection: apsw.Connection, known: int) -> int:
        version = int(connection.pragma("user_version"))
        if version > known:
            raise SchemaTooNew(
                f"{self.path} has schema version {version}; this Holdfast knows versions up to {known}. "
                "Use the version that wrote it, or a newer one. Nothing was changed."
            )
        return version

    def _require_usable(self) -> None:
        self._require_own()
        if self._closed:
            raise StoreUnusable(f"the store {self.path} was closed. Open it again.")

    def _require_own(self) -> None:
        """Asked before a lock is taken: one that was held at the fork stays held in the child for ever."""
        if self._forks != process.count:
            raise StoreUnusable(
                f"the store {self.path} was opened before this process was forked. Open it in the child."
            )

    def _commit(self, verb: _Verb, write: Callable[[], T]) -> T:
        """One transaction: everything that `write` does, or nothing."""
        self._require_own()
        with self._writing:
            self._require_usable()
            if self._poison is not None:
                raise StorePoisoned(self._poison)
            now = self._clock()
            look = verb in _LOOKING or not self._looked_at <= now < self._looked_at + _LOOK_S
            if look:
                self._looked_at = math.inf  # until nothing is found, everyone looks
                self._require_same_file()
            failpoints.reach(verb + ".before")
            committing = False
            try:
                self._cursor.execute(_SQL["begin"])
                try:
                    if look:
                        self._require_same_version()
                        self._looked_at = now
                    result = write()
                    committing = True
                    self._cursor.execute(_SQL["commit"])
                except BaseException:
                    self._roll_back()
                    raise
            except apsw.Error as fault:
                raise self._fault(fault, committing=committing) from fault
            except UnicodeEncodeError as fault:
                raise CodecError(f"cannot be stored: {fault}", path=verb) from fault
            failpoints.reach(verb + ".committed")
            return result

    def _commit_alone(self, verb: _Verb, query: str, values: Cells) -> None:
        """One statement that is a transaction of its own, and that does nothing where the store was lifted."""
        self._require_own()
        with self._writing:
            self._require_usable()
            if self._poison is not None:
                raise StorePoisoned(self._poison)
            self._require_same_file()
            failpoints.reach(verb + ".before")
            try:
                if self._cursor.execute(_SQL[query], values).get is None:
                    self._require_same_version()
            except apsw.Error as fault:
                raise self._fault(fault, committing=True) from fault
            except UnicodeEncodeError as fault:
                raise CodecError(f"cannot be stored: {fault}", path=verb) from fault
            failpoints.reach(verb + ".committed")

    def _require_same_file(self) -> None:
        if disk.identity(self.path) != self._file:
            raise StoreUnusable(
                f"{self.path} was removed or replaced while it was in use; what is written now would be "
                "lost. Put the file back and start this process again."
            )

    def _require_same_version(self) -> None:
        """Within a transaction: nobody can lift the store until it ends."""
        version = int(self._writer.pragma("user_version"))
        if version > self._known:
            raise schema.lifted(self.path, version, self._known)

    def _find(self, query: str, run_id: str) -> Any:
        """What a query says of a run, within a transaction."""
        try:
            found = self._cursor.execute(_SQL[query], (run_id,)).get
        except UnicodeEncodeError:
            found = None
        if found is None:
            raise RunNotFound(run_id, self.url)
        return found

    def _roll_back(self) -> None:
        try:
            if self._writer.in_transaction:
                self._cursor.execute(_SQL["rollback"])
        except apsw.Error as fault:
            self._poison = (
                f"{self.path}: a transaction could not be rolled back ({fault}). Start this process again."
            )

    def _guarded(self, call: Callable[[], T]) -> T:
        """Call something that uses a connection of its own."""
        self._require_usable()
        try:
            return call()
        except apsw.Error as fault:
            raise self._fault(fault) from fault

    def _version_of_others(self) -> int:
        """A number that changes when another connection than the writing one has written."""
        self._require_own()
        with self._writing:
            self._require_usable()
            try:
                return cast(int, self._cursor.execute(_SQL["data_version"]).get)
            except apsw.Error as fault:
                raise self._fault(fault) from fault

    def _do(self, query: str, *values: Any) -> apsw.Cursor:
        """A query by its name, within a transaction."""
        return self._cursor.execute(_SQL[query], values)

    def _read(self, query: str, values: Cells) -> list[Cells]:
        return self._select(_SQL[query], values)

    def _select(self, sql: str, values: Cells) -> list[Cells]:
        self._require_own()
        with self._reading:
            self._require_usable()
            try:
                return self._reader.execute(sql, values).fetchall()
            except UnicodeEncodeError:
                return []  # text that no store can hold is not in this one
            except apsw.Error as fault:
                raise self._fault(fault) from fault

    def _require(self, run_id: str) -> None:
        if not self._read("run_key", (run_id,)):
            raise RunNotFound(run_id, self.url)

    def _fault(self, fault: apsw.Error, *, committing: bool = False) -> StoreError:
        """Our own error for one of SQLite's: the fault, the path and the way out."""
        full = getattr(fault, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE or isinstance(
            fault, apsw.FullError
        )
        if committing and isinstance(fault, apsw.IOError) and not full:
            self._poison = (
                f"{self.path}: writing to disk failed ({fault}). Whether the last step was kept is unknown, so this "
                "process writes nothing more. Check the disk, start again and resume."
            )
            return StorePoisoned(self._poison)
        if full:
            return StoreFull(
                f"no space left for {self.path}. Nothing of this step was written, what was acknowledged is kept; "
                "free some space and resume."
            )
        for kinds, error, message in _FAULTS:
            if isinstance(fault, kinds):
                return error(message.format(path=self.path, fault=fault, wait=self._busy_timeout_s))
        return StoreError(
            f"{self.path}: {type(fault).__name__}: {fault}. This is a defect in Holdfast; please report it."
        )


_FAULTS: tuple[tuple[tuple[type[apsw.Error], ...], type[StoreError], str], ...] = (
    ((apsw.BusyError, apsw.LockedError, apsw.ProtocolError), StoreBusy,
     "{path} was locked by another process for over {wait:g} s. Try again, or look who uses it."),
    ((apsw.NotADBError,), StoreCorrupt,
     "{path} is not a SQLite database. Choose another path for the store, or move that file away."),
    ((apsw.CorruptError, apsw.FormatError), StoreCorrupt,
     "{path} is damaged ({fault}). Put a copy back, or rescue what can be read with SQLite's `.recover` into a new file."),
    ((apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError, apsw.CantOpenError), StoreUnusable,
     "{path} cannot be opened for writing ({fault}). Check the permissions of the file and its folder, or choose another path."),
    ((apsw.IOError,), StoreUnusable,
     "{path} cannot be read or written ({fault}). Nothing of this step was kept; check the disk and try again."),
)  # fmt: skip


def _cells(holder: Holder, now: float) -> Cells:
    return (holder.id, holder.host, holder.boot, holder.pid_namespace, holder.pid, holder.process_started, holder.ttl_s,
            now + holder.ttl_s)  # fmt: skip
