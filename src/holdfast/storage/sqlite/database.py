"""The database file of a SQLite store: its connections, its transactions, and the errors that they raise.

A `SqliteDatabase` owns one connection for writing, with a lock, and a few for reading (`Readers`); so a reader never waits for a
sync, nor for another reader. The store, its appends, queues and upkeep use it; it knows none of their verbs. Invariants:

- `application_id` marks the file as a Holdfast store, and `user_version` is its version (how many migrations were applied). All
  missing migrations run in one transaction, so a store is never between two versions, however many processes open it at once.
- A process stops writing to a store that a newer version of Holdfast has migrated meanwhile. Each transaction that renews or
  claims a lease checks the version; any other does so every `_LOOK_S`.
- Every transaction that writes takes the write lock when it begins, and contains everything it checks and everything it writes.
- A commit that fails with an I/O error has an unknown outcome. The database is then poisoned: it writes nothing more, not even
  when it is closed.
- SQLite restarts its log (WAL) only at a moment at which nothing reads from it. Many readers at once may never leave such a
  moment, so a log that has outgrown its room is folded into the database in a pause of the readers that this module waits for.
- A file that this process may not write can be read, if its opener wants no more than that (`reads`). Then nothing is created
  beside it: a log or index of another user would lock its owner out. Without a log (`-wal`), no process writes to it, and it is
  read as a file that does not change (`immutable`), until a log appears or the file changes: then reading stops. With a log, it
  is read through the index (`-shm`) that is there.
- Errors of SQLite are translated here into errors of Holdfast, with the path and the remedy. No other module of the store
  imports apsw.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar, cast
from urllib.parse import quote

import apsw

from holdfast.errors import (
    CodecError,
    RunNotFound,
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StorePoisoned,
    StoreUnusable,
)
from holdfast.storage import failpoints, process, schema, uptime
from holdfast.storage.leases import Holder
from holdfast.storage.sql_rows import holder_cells

T = TypeVar("T")
Cells = tuple[Any, ...]
Verb = Literal["append", "claim", "post", "release", "renew", "prune", "compact", "delete", "sweep", "token"]

APPLICATION_ID = 0x48_46_53_54  # "HFST"
Unfit = (UnicodeEncodeError, OverflowError, apsw.TooBigError)
"""The exceptions that are raised for values that SQLite cannot store."""
Disagree = apsw.ConstraintError
"""The exception that is raised if the rows of a log do not agree with the run row."""

_SQL = schema.queries("sqlite")
_LOOK_S = 0.1
"""How often, in seconds, a store checks that its file still exists, and which schema version it has. Writes to a removed file are
lost in any case; the check makes sure that the loss is reported soon."""
_LOOKING = ("renew", "claim")
_ROOM_FOR_LOG_BYTES = 64 * 1024 * 1024
"""The size at which SQLite's log is folded into the database although there are readers, and to which its file is then cut."""
_FOLD_S = 1.0
"""How often, in seconds, folding a log that is too large is tried at most, because it may wait for `_FOLD_WAIT_S`."""
_FOLD_WAIT_S = 0.1
"""For how long readers that began earlier are waited for. A longer read, such as a backup, must not delay writing."""
READERS_MAX = 10
"""How many connections a store opens for reading: enough for the threads of a server, of an engine and of its worker. Each has
two open files, and up to 2 MB of pages in memory."""
_READS_END_S = 30.0
"""For how long, in seconds, a store that is closed waits for reads in other threads to end."""

# A forked child must never finalise the connections that it inherits: closing one would touch the parent's files.
_open: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()
_inherited: list[SqliteDatabase] = []
os.register_at_fork(after_in_child=lambda: _inherited.extend(_open))


_locked_since: dict[str, float] = {}
"""Path -> when this process began to wait for the lock of another one, by the store's clock; removed by a commit. A
command may open a store more than once, and says for how long it has waited in all."""


class News:
    """Wakes the worker of this process that waits for news of a database. (News from other processes is seen in the database.)"""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.told = self.hushes = 0
        """How often `tell` and `hush` were called."""

    def tell(self) -> None:
        """Wake the worker that waits in `hear`: this process has put a run on offer, or a request into an inbox."""
        with self.changed:
            self.told += 1
            self.changed.notify_all()

    def hush(self) -> None:
        """Wake the worker that waits in `hear`, although there is no news."""
        with self.changed:
            self.hushes += 1
            self.changed.notify_all()


class Readers:
    """Lends the connections with which the store reads, each to one thread at a time. `connect` opens another one; it raises a
    `StoreError` if that is not possible.

    Another connection is opened only when all others are in use, so that a long read delays no other. The one that was given back
    last is borrowed first, so a program that reads in one thread uses one connection, whose prepared statements and pages stay
    warm.
    """

    def __init__(self, first: apsw.Connection, connect: Callable[[], apsw.Connection]) -> None:
        self.idle = [first]
        self._connect = connect
        self._count = 1
        self._changed = threading.Condition(threading.Lock())

    def borrow(self) -> apsw.Connection:
        """Return a connection that no other thread uses. The caller must give it back."""
        with self._changed:
            while not self.idle:
                if self._count < READERS_MAX:
                    self._count += 1
                    break
                self._changed.wait()
            else:
                return self.idle.pop()
        try:
            return self._connect()
        except BaseException as fault:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()
                if not isinstance(fault, StoreError):
                    raise
                while not self.idle:  # such as when this process has too many open files
                    if not self._count:
                        raise
                    self._changed.wait()
                return self.idle.pop()

    def give_back(self, reader: apsw.Connection) -> None:
        with self._changed:
            self.idle.append(reader)
            self._changed.notify()

    def take_all(self, wait_s: float) -> list[apsw.Connection]:
        """Wait until all connections were given back, and return them. One that is not given back in time is left out."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.idle) == self._count, wait_s)
            taken, self.idle, self._count = self.idle, [], 0
            self._changed.notify_all()
            return taken


class SqliteDatabase:
    """The database in the file at `path`, which must exist. `clock` gives the time of the store, and `own_clock` is true if that
    is not the clock of this machine: a test controls it. With `reads`, a file that this process may not write is opened to read.
    """

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], float],
        own_clock: bool,
        busy_timeout_s: float,
        vfs: str | None,
        reads: bool = False,
    ) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self._clock = clock
        self._own_clock = own_clock
        self._busy_timeout_s = busy_timeout_s
        self._vfs = vfs
        self._uptime = uptime.of_machine()
        self._forks = process.count
        self._closed = False
        self.poison: str | None = None
        """Why nothing more may be written to the database; None if writing is allowed."""
        self.unwritable: str | None = None
        """Why this process can only read the database; None if it can write."""
        self._unchanging: tuple[int, ...] | None = None
        """Identity, size and time of the file, if it is read as one that does not change."""
        self.news = News()
        self._writing = threading.RLock()  # reentrant: a failpoint's hook may act as a second writer
        try:
            try:
                self._writer = self.connect(first=True)
            except _UNWRITABLE as fault:
                if not reads:
                    raise
                self._only_read(fault)
                self._writer = self.connect(first=True)
            self._file = _identity(path)
            try:
                self._readers = Readers(self._connect_reader(), self._connect_reader)
            except BaseException:
                self._writer.close(force=True)
                raise
        except apsw.Error as fault:
            raise self._fault(fault) from fault
        self.cursor = self._writer.cursor()
        """The cursor of the writing connection. Use it only within `commit`."""
        self._looked_at = self._folded_at = 0.0
        _open.add(self)

    def now(self) -> float:
        self.require_usable()
        return float(self._clock())

    def renewed(self, holder: Holder) -> Cells:
        """Return a holder as parameters of the query `renew_holder`, which renews its leases from now on."""
        return *holder_cells(holder, self.now() + holder.ttl_s), self._uptime.now()

    def _lease_end(self, *cells: Any) -> float | None:
        """Return when the leases of a holder end, by the clock of this store; SQL knows it as `lease_end`.

        The holder wrote `expires_at` by its own clock. If that is not the clock of this process, every lease of a live holder
        might seem to have expired. So the leases of a holder on this machine are judged by the uptime, which both share. Only
        within one process, a clock that a test controls is the clock of both.
        """
        expires_at, renewed, ttl_s, boot, pid = cells
        now = self._uptime.now()
        is_shared = renewed is not None and now is not None and boot == self._uptime.boot
        if not is_shared or (self._own_clock and pid == os.getpid()):
            return cast(float | None, expires_at)
        return float(self._clock() + renewed + ttl_s - now)

    def is_own(self) -> bool:
        """Return whether this process opened the database. After a fork, the connections belong to the parent process."""
        return self._forks == process.count

    def close(self) -> None:
        if not self.is_own():
            return
        with self._writing:
            if self._closed:
                return
            self._closed = True  # no read begins from now on
            readers = self._readers.take_all(_READS_END_S)
            _open.discard(self)
            if self.poison is not None:
                self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.cursor.close(force=True)
            for reader in readers:
                reader.close(force=True)
            self._writer.close(force=True)  # the last connection to close folds the WAL into the database

    # --- reading ---------------------------------------------------------------------------------------

    def read(self, query: str, *values: Any) -> list[Cells]:
        """Return the rows that a named query selects."""
        return self.select(_SQL[query], values)

    def select(self, sql: str, values: Cells) -> list[Cells]:
        """Return the rows that an SQL statement selects."""
        self.require_usable()
        reader = self._readers.borrow()
        try:
            found = reader.execute(sql, values).fetchall()
        except UnicodeEncodeError:
            return []  # text that cannot be encoded cannot be in the store
        except apsw.Error as fault:
            raise self._fault(fault) from fault
        finally:
            self._readers.give_back(reader)
        self._require_unchanged()
        return found

    def require_run(self, run_id: str) -> None:
        """Raise `RunNotFound` if the run is not in this store."""
        if not self.read("run_key", run_id):
            raise RunNotFound(run_id, self.url)

    def guard(self, call: Callable[[], T]) -> T:
        """Call a function that uses a connection of its own, and translate the SQLite errors that it raises into ours."""
        self.require_usable()
        try:
            return call()
        except apsw.Error as fault:
            raise self._fault(fault) from fault

    def check(self) -> list[str]:
        """Return the problems that SQLite's integrity check finds in the file; an empty list means that the file is intact."""
        self.require_usable()
        try:
            connection = (
                self.connect()
            )  # a separate one, so that checking a large file blocks no other reader
            try:
                found = [str(line) for (line,) in connection.execute(_SQL["integrity"])]
            finally:
                connection.close()
        except apsw.CorruptError as fault:
            return [str(self._fault(fault))]
        except apsw.Error as fault:
            raise self._fault(fault) from fault
        return [] if found == ["ok"] else found

    def version_of_others(self) -> int:
        """Return a number that changes when any connection other than this database's writing connection has written."""
        self.require_own()
        with self._writing:
            self.require_usable()
            try:
                return cast(int, self.cursor.execute(_SQL["data_version"]).get)
            except apsw.Error as fault:
                raise self._fault(fault) from fault

    # --- writing ---------------------------------------------------------------------------------------

    def commit(self, verb: Verb, write: Callable[[], T]) -> T:
        """Call `write` in one transaction: either everything that it does is committed, or nothing."""
        self.require_own()
        with self._writing:
            self._require_writable()
            now = self._clock()
            look = verb in _LOOKING or not self._looked_at <= now < self._looked_at + _LOOK_S
            if look:
                self._looked_at = math.inf  # until a check succeeds, every transaction checks
                self._require_same_file()
            if failpoints.hook is not None:
                failpoints.reach(verb + ".before")
            committing = False
            try:
                self.cursor.execute(_SQL["begin"])
                try:
                    if look:
                        self._require_same_version()
                        self._looked_at = now
                    result = write()
                    committing = True
                    self.cursor.execute(_SQL["commit"])
                    _locked_since.pop(self.path, None)
                except BaseException:
                    self._roll_back()
                    raise
            except apsw.Error as fault:
                raise self._fault(fault, committing=committing) from fault
            except UnicodeEncodeError as fault:
                raise CodecError(f"a value cannot be stored: {fault}", path=verb) from fault
            if look and not self._folded_at <= now < self._folded_at + _FOLD_S:
                self._folded_at = now
                self._fold_large_log()
            if failpoints.hook is not None:
                failpoints.reach(verb + ".committed")
            return result

    def commit_alone(self, verb: Verb, query: str, *values: Any) -> None:
        """Execute one statement as its own transaction. The statement must do nothing if a newer version of Holdfast has
        migrated the store.
        """
        self.require_own()
        with self._writing:
            self._require_writable()
            self._require_same_file()
            if failpoints.hook is not None:
                failpoints.reach(verb + ".before")
            try:
                if self.cursor.execute(_SQL[query], values).get is None:
                    self._require_same_version()
            except apsw.Error as fault:
                raise self._fault(fault, committing=True) from fault
            except UnicodeEncodeError as fault:
                raise CodecError(f"a value cannot be stored: {fault}", path=verb) from fault
            if failpoints.hook is not None:
                failpoints.reach(verb + ".committed")

    def _fold_large_log(self) -> None:
        """Fold SQLite's log into the database if it has outgrown its room, so that the log restarts.

        While this waits for the readers of this moment, new readers need no log any more, because all of it is in the database.
        What was committed is not touched, so an error here, as in the folding that SQLite does by itself, is not an error of a
        commit.
        """
        try:
            if os.stat(f"{self.path}-wal").st_size <= _ROOM_FOR_LOG_BYTES:
                return
            self._writer.set_busy_timeout(round(_FOLD_WAIT_S * 1000))
            try:
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            finally:
                self._writer.set_busy_timeout(round(self._busy_timeout_s * 1000))
        except (OSError, apsw.Error):
            return

    def _require_writable(self) -> None:
        self.require_usable()
        if self.unwritable is not None:
            raise StoreUnusable(self.unwritable)
        if self.poison is not None:
            raise StorePoisoned(self.poison)

    def _require_same_file(self) -> None:
        if _identity(self.path) != self._file:
            raise StoreUnusable(
                f"{self.path} was removed or replaced while it was in use; anything written now would be lost. Put "
                "the file back and restart this process."
            )

    def _require_same_version(self) -> None:
        """Raise `SchemaTooNew` if a newer Holdfast has migrated the store. Call it within a transaction: no process can migrate
        the store until that transaction ends.
        """
        version = int(self._writer.pragma("user_version"))
        if version > self.known_version:
            raise schema.newer_schema_error(self.path, version, self.known_version)

    def do(self, query: str, *values: Any) -> apsw.Cursor:
        """Execute a named query. Call it within a transaction."""
        return self.cursor.execute(_SQL[query], values)

    def find(self, query: str, run_id: str, *values: Any) -> Any:
        """Return the row that a named query selects for a run (its value, if it has one column). Call it within a transaction.
        Raises `RunNotFound`.
        """
        try:
            found = self.cursor.execute(_SQL[query], (run_id, *values)).get
        except UnicodeEncodeError:
            found = None
        if found is None:
            raise RunNotFound(run_id, self.url)
        return found

    def _roll_back(self) -> None:
        try:
            if self._writer.in_transaction:
                self.cursor.execute(_SQL["rollback"])
        except apsw.Error as fault:
            self.poison = (
                f"{self.path}: a transaction could not be rolled back ({fault}). Restart this process."
            )

    # --- connections ---------------------------------------------------------------------------------

    def connect(self, *, first: bool = False) -> apsw.Connection:
        """Open a new connection, which the caller must close. With `first`, this also prepares and migrates the file."""
        may_write, name = self.unwritable is None, self.path
        flags = apsw.SQLITE_OPEN_READWRITE if may_write else apsw.SQLITE_OPEN_READONLY
        if self._unchanging is not None:
            name, flags = f"file:{quote(self.path)}?immutable=1", flags | apsw.SQLITE_OPEN_URI
        flags |= apsw.SQLITE_OPEN_NOFOLLOW
        connection = apsw.Connection(name, flags=flags, vfs=self._vfs, statementcachesize=200)
        try:
            if may_write and connection.readonly(
                "main"
            ):  # nothing was read yet, and no file was created beside it
                raise apsw.ReadOnlyError("attempt to write a readonly database")
            connection.set_busy_timeout(round(self._busy_timeout_s * 1000))
            connection.create_scalar_function("lease_end", self._lease_end, 5)
            if first:
                self._refuse_foreign(connection)
                if may_write:
                    self._use_wal(connection)
            connection.pragma("synchronous", "full")
            connection.pragma("trusted_schema", False)
            # Otherwise SQLite compiles a statement that might use a partial index again for every value bound to it.
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

    def _connect_reader(self) -> apsw.Connection:
        """Open another connection for reading. Raises `StoreUnusable` if the file is not the one that was opened first: a file
        that was put in its place must not be opened, because the log beside it belongs to the first.
        """
        self._require_same_file()
        connection = self.guard(self.connect)
        connection.pragma("query_only", True)
        return connection

    def _only_read(self, fault: apsw.Error) -> None:
        """Open only connections that read from now on. Raises `StoreUnusable` if that is not possible safely."""
        log, index, folder = f"{self.path}-wal", f"{self.path}-shm", os.path.dirname(self.path)
        files = [self.path, *(file for file in (log, index) if os.path.exists(file))]
        locked = next((one for one in (*files, folder) if not _may(one, os.W_OK)), self.path)
        self.unwritable = (
            f"the store {self.path} can only be read here, because {locked} cannot be written ({fault}). Nothing was written. "
            "Run the command as a user who may write to it."
        )
        if log not in files:
            self._unchanging = _signature(self.path)
        elif index not in files or not all(_may(file, os.R_OK) for file in files):
            needed = index if index in files else folder
            raise StoreUnusable(
                f"{self.path} cannot be read: its latest changes are in {log}, and to read them this user must be able to write "
                f"to {needed}. Run the command as the user that owns the store, or allow this user to write to {needed}."
            )

    def _require_unchanged(self) -> None:
        """Raise `StoreBusy` if a process has begun to write to a file that is read as one that does not change."""
        if self._unchanging is None:
            return
        if os.path.exists(f"{self.path}-wal") or _signature(self.path) != self._unchanging:
            raise StoreBusy(
                f"{self.path} was changed by another process while it was read. Try again: its log is then read, too."
            )

    def journal_mode(self, connection: apsw.Connection) -> str:
        """Return the journal mode of the file. Of a file that is read as one that does not change, SQLite says `delete`."""
        if self._unchanging is None:
            return str(connection.pragma("journal_mode"))
        with open(self.path, "rb") as file:
            return "wal" if file.read(20)[18:] == b"\2\2" else "delete"

    def _use_wal(self, connection: apsw.Connection) -> None:
        """Switch the file to WAL mode. If several processes do this at once, SQLite may report "busy" without waiting for the
        busy timeout, so this waits for the write lock and tries again.
        """
        tries_left = 100
        while True:
            try:
                mode = connection.pragma("journal_mode", "wal")
                break
            except apsw.BusyError:
                tries_left -= 1
                if not tries_left:
                    raise
                connection.execute(_SQL["begin"])  # waits for the write lock, up to the busy timeout
                connection.execute(_SQL["rollback"])
        if mode != "wal":
            raise StoreUnusable(
                f"{self.path}: this file system cannot keep a write-ahead log (SQLite stays in mode {mode!r}). "
                "Choose a path on a local disk."
            )

    def _refuse_foreign(self, connection: apsw.Connection) -> None:
        """Refuse a database that another program created, before anything in it is changed.

        The check reads one consistent snapshot: while another process creates the store, a mix of values from before and after
        would look like a foreign database.
        """
        connection.execute(_SQL["begin_reading"])
        try:
            application = connection.pragma("application_id")
            used = connection.pragma("user_version") or connection.execute(_SQL["any_table"]).get
        finally:
            # If the disk failed, SQLite has already ended the transaction, and the disk's error is the one to report.
            with suppress(apsw.Error):
                connection.execute(_SQL["rollback"])
        if application != APPLICATION_ID and (application or used):
            raise StoreUnusable(
                f"{self.path} is a SQLite database of another program. Choose another path for the store."
            )

    def _migrate(self, connection: apsw.Connection) -> None:
        """Migrate the store to the schema version of this code. Refuses a store with a newer version."""
        known = schema.migrations("sqlite")
        self.known_version = len(known)
        version = self._version(connection, len(known))
        if version == len(known):
            return
        if self.unwritable is not None:
            raise StoreUnusable(
                f"{self.path} has schema version {version}, and this Holdfast reads version {len(known)}. It is migrated when a "
                "user who may write to it opens it with this Holdfast, for example with `holdfast runs`."
            )
        connection.execute(_SQL["begin"])
        try:
            # Another process may have migrated it while this one waited for the lock.
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
                "Use the version of Holdfast that wrote the store, or a newer one. Nothing was changed."
            )
        return version

    def require_usable(self) -> None:
        self.require_own()
        if self._closed:
            raise StoreUnusable(f"the store {self.path} was closed. Open it again.")
        self._require_unchanged()

    def require_own(self) -> None:
        """Refuse to work in a forked child. Call this before taking a lock: a lock that was held at the moment of the fork is
        never released in the child.
        """
        if self._forks != process.count:
            raise StoreUnusable(
                f"the store {self.path} was opened before this process was forked. Open it again in this process."
            )

    def _fault(self, fault: apsw.Error, *, committing: bool = False) -> StoreError:
        """Translate an error of SQLite into an error of Holdfast, with the path and the remedy."""
        full = getattr(fault, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE or isinstance(
            fault, apsw.FullError
        )
        if committing and isinstance(fault, apsw.IOError) and not full:
            self.poison = (
                f"{self.path}: writing to disk failed ({fault}). Whether the last write was saved is unknown, so "
                "this process writes nothing more. Check the disk, restart the process and resume."
            )
            return StorePoisoned(self.poison)
        if full:
            return StoreFull(
                f"no space left for {self.path}. Nothing was written this time; everything acknowledged before is "
                "kept. Free some space and resume the run."
            )
        for kinds, error, message in _FAULTS:
            if isinstance(fault, kinds):
                return error(message.format(path=self.path, fault=fault, wait=self._waited_s()))
        return StoreError(
            f"{self.path}: {type(fault).__name__}: {fault}. This is a defect in Holdfast; please report it."
        )

    def _waited_s(self) -> float:
        """Return for how long this process has waited for the lock, with the tries before this one."""
        now = float(self._clock())
        return max(
            self._busy_timeout_s, now - _locked_since.setdefault(self.path, now - self._busy_timeout_s)
        )


def _identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode of the file at a path, which identify it, or None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _signature(path: str) -> tuple[int, ...]:
    """Return what changes if a file is written or replaced."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _may(path: str, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


_UNWRITABLE = (apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError, apsw.CantOpenError)
_FAULTS: tuple[tuple[tuple[type[apsw.Error], ...], type[StoreError], str], ...] = (
    ((apsw.BusyError, apsw.LockedError, apsw.ProtocolError), StoreBusy,
     "{path} was locked by another process for {wait:.1f} s. Try again, or find the process that uses it."),
    ((apsw.NotADBError,), StoreCorrupt,
     "{path} is not a SQLite database. Choose another path for the store, or move that file away."),
    ((apsw.CorruptError, apsw.FormatError), StoreCorrupt,
     ("{path} is damaged ({fault}). Restore it from a backup, or recover what is readable into a new file with "
     "SQLite's `.recover`.")),
    (_UNWRITABLE, StoreUnusable,
     "{path} cannot be opened for writing ({fault}). Check the permissions of the file and its folder, or choose another path."),
    ((apsw.IOError,), StoreUnusable,
     "{path} cannot be read or written ({fault}). Nothing was written; check the disk and try again."),
)  # fmt: skip
