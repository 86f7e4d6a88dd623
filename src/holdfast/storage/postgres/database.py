"""The connections of a PostgreSQL store, its transactions, and the errors that they raise. The only file that imports psycopg.

It owns one connection that writes, under one lock, one that renews leases, which must not wait for long appends, and a few
that read. It knows no verb of a store. Invariants:

- No session state: no search path, every transaction says its own bounds. So a pool in between (pgbouncer, by transaction)
  changes nothing. A statement is prepared only on a connection whose server process is seen to be its own.
- Every connection was looked at (`setup.require_fit`, and whether the store is still of the generation that was
  opened, and of a version that is known), and every transaction looks again, before it commits, whether its commit will be
  durable.
- A process stops writing to a store that a newer version of Holdfast has migrated.
- A connection that is lost while something is written leaves the outcome unknown: `StoreBusy`. One that
  was lost before is found out before anything is sent, and replaced. One on which the server falls silent is lost, too.
- Errors of PostgreSQL leave this file as our own; no password is in any of them.
"""

from __future__ import annotations

import logging
import os
import re
import select
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Literal, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import DiagnosticField, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from holdfast.errors import (
    CodecError,
    SchemaTooNew,
    SettingError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnusable,
)
from holdfast.storage import failpoints, process
from holdfast.storage.postgres.address import Address
from holdfast.storage.postgres.arrays import Bytes, Floats, Ints, Texts
from holdfast.storage.postgres.server_time import DatabaseTime
from holdfast.storage.postgres.setup import not_durable, require_fit, require_known

T = TypeVar("T")
Cells = tuple[Any, ...]
Verb = Literal["append", "claim", "post", "release", "renew", "prune", "compact", "delete", "sweep"]

_READERS_MAX = 8
"""Connections that read at a time; further threads wait. A server has few connections to give."""
_IDLE_IN_TRANSACTION_S = 10
"""How long a transaction may be idle: a stopped process must not keep others from a run for ever."""
SILENT_S = 15.0
"""How long a server may say nothing to what it was asked: something in between may keep a connection to a server that is gone,
and then no timeout of TCP ends the wait. Longer than any lock is waited for, and well within a lease."""
_TICK_S = 0.1
_TRIES = 3
Unfit = (UnicodeEncodeError, OverflowError, struct.error, psycopg.DataError, pg.ProgramLimitExceeded)
"""What is raised for values that PostgreSQL cannot keep."""
Lost = (psycopg.OperationalError, psycopg.InterfaceError)
"""What is raised where a connection is gone."""
Disagree = psycopg.IntegrityError
"""What is raised where rows are not as the run row says."""

# What a forked child inherits must never be finalised there: it is the parent's.
_open: weakref.WeakSet[PostgresDatabase] = weakref.WeakSet()
_inherited: list[PostgresDatabase] = []
os.register_at_fork(after_in_child=lambda: _inherited.extend(_open))


class Connection(psycopg.Connection[Cells]):
    """A connection that gives up a server which has fallen silent."""

    patient = False
    """Whether to wait as long as it takes: a schema is being migrated."""

    def wait(self, gen: Any, interval: float = _TICK_S, *args: Any, **options: Any) -> Any:
        return super().wait(self._heard(gen, SILENT_S / interval), interval, *args, **options)

    def _heard(self, gen: Any, ticks_max: float) -> Any:
        """The same steps; every interval in which nothing is heard comes by here, too."""
        ticks = 0
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                ticks = 0 if ready else ticks + 1
                if ticks > ticks_max and not self.patient:
                    self.close()
                    raise _fell_silent()
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


class PostgresDatabase:
    """The connections of one store. `sql` are its queries by name."""

    def __init__(
        self, address: Address, sql: dict[str, str], time: DatabaseTime, *, busy_timeout_s: float
    ) -> None:
        self.address = address
        self.sql = sql
        self.time = time
        self._bounds = (f"{round(busy_timeout_s * 1000)}ms", f"{_IDLE_IN_TRANSACTION_S}s")
        self._forks = process.count
        self._closed = False
        self.generation: str | None = None
        """Set when the store is open: a connection to another generation is refused from then on."""
        self._lifted: SchemaTooNew | None = None
        self._writer = _Line()
        self._renewer = _Line()
        self._pooling = threading.Lock()
        self._readers = threading.BoundedSemaphore(_READERS_MAX)
        self._idle: list[Connection] = []
        try:
            self._idle.append(self.connect())
        except StoreBusy as fault:
            if _PASSING.search(str(fault)):
                raise
            # The store has never been used: more likely the URL is wrong than the server down.
            raise StoreUnusable(str(fault)) from fault.__cause__
        _open.add(self)

    # --- reading -------------------------------------------------------------------------------------

    def read(self, query: str, *values: Any) -> list[Cells]:
        """The rows of a query. What no store can keep is not in this one."""
        try:
            return self._ask(query, values)
        except (UnicodeEncodeError, OverflowError, struct.error, psycopg.DataError):
            return []
        except psycopg.Error as fault:
            raise self.fault(fault) from fault

    def change(self, query: str, *values: Any) -> list[Cells]:
        """One statement that is a transaction of its own and may be sent again: nothing is lost or doubled by that."""
        try:
            return self._ask(query, values)
        except Unfit as fault:
            raise CodecError(f"cannot be stored: {message_of(fault)}", path=query) from fault
        except psycopg.Error as fault:
            raise self.fault(fault) from fault

    def _ask(self, query: str, values: Sequence[Any]) -> list[Cells]:
        """Ask again on another connection if one is lost: the server may have been restarted."""
        try:
            return self._ask_once(query, values)
        except (psycopg.OperationalError, psycopg.InterfaceError):
            return self._ask_once(query, values)

    def _ask_once(self, query: str, values: Sequence[Any]) -> list[Cells]:
        self.require_own()
        with self._readers:
            connection = self._borrow()
            try:
                cursor = connection.cursor(binary=True)
                cursor.execute(self.sql[query], values)
                return cursor.fetchall() if cursor.description else []
            finally:
                self._give_back(connection)

    def _borrow(self) -> Connection:
        while True:
            with self._pooling:
                self.require_usable()
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.connect()
            if not _is_stale(connection):
                return connection
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        with self._pooling:
            if _is_idle(connection) and not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    # --- writing -------------------------------------------------------------------------------------

    def write(self, verb: Verb, steps: Callable[[Session], T]) -> T:
        """Everything that `steps` does in transactions of the writing connection, or of the one that renews."""
        self.require_own()
        line = self._renewer if verb == "renew" else self._writer
        with line.lock:
            self.require_usable()
            if self._lifted is not None:
                raise SchemaTooNew(str(self._lifted))
            failpoints.reach(verb + ".before")
            try:
                result = self._try_steps(line, steps)
            except UnicodeEncodeError as fault:
                raise CodecError(f"cannot be stored: {fault}", path=verb) from fault
            except (psycopg.DataError, pg.ProgramLimitExceeded) as fault:
                raise CodecError(f"cannot be stored: {message_of(fault)}", path=verb) from fault
            except psycopg.Error as fault:
                if isinstance(fault, pg.LockNotAvailable):
                    self._end_stuck()
                raise self.fault(fault) from fault
            failpoints.reach(verb + ".committed")
            return result

    def _end_stuck(self) -> None:
        """A process that was stopped, or cut off, in the midst of what it sent keeps its locks: the server takes it for busy, and
        ends no transaction that only waits for more. So a process that waited for its locks too long ends it.
        """
        with suppress(psycopg.Error, StoreError):
            self._ask_once("end_stuck", (self._bounds[1],))

    def _try_steps(self, line: _Line, steps: Callable[[Session], T]) -> T:
        """Again where the server chose this transaction to give way to another: nothing of it was kept."""
        tries_left = _TRIES
        while True:
            if line.is_stale():
                line.drop()
                line.take(*self._connect())
            try:
                return steps(Session(self, line))
            except (pg.DeadlockDetected, pg.SerializationFailure):
                tries_left -= 1
                if not tries_left:
                    raise
            finally:
                if line.connection is not None and not _is_idle(line.connection):
                    line.drop()

    # --- connections ---------------------------------------------------------------------------------

    def connect(self) -> Connection:
        """A new connection, fit for use. It is the caller's to close."""
        return self._connect()[0]

    def _connect(self) -> tuple[Connection, int]:
        """The same, and the process of the server that answered on it."""
        try:
            connection = Connection.connect(
                self.address.conninfo,
                autocommit=True,
                prepare_threshold=None,
                cursor_factory=psycopg.RawCursor,
                context=_ADAPTERS,
            )
        except psycopg.ProgrammingError:
            refusal: StoreError | SettingError = SettingError(
                f"an option of the store URL {self.address.url} is unknown to PostgreSQL, or has an invalid "
                f"value{self.address.slip or '.'} See the parameter key words of libpq; `schema` and `unsafe` are "
                "options of Holdfast."
            )
        except psycopg.OperationalError as fault:
            refusal = _unreachable(self.address.url, message_of(fault))
        else:
            try:
                cursor = connection.cursor(binary=True).execute(self.sql["server"])
                *facts, process, now = cursor.fetchall()[0]
                self.time.hear(now)
                require_fit(self.address, facts)
                self._require_same_store(connection)
            except psycopg.Error as fault:
                connection.close()
                raise self.fault(fault) from fault
            except BaseException:
                connection.close()
                raise
            return connection, process
        raise refusal  # out here: no fault of the driver, which may quote the URL, hangs on it

    def close(self) -> None:
        if self._forks != process.count:
            return  # the connections are the parent's
        with self._writer.lock, self._renewer.lock, self._pooling:
            self._closed = True
            _open.discard(self)
            self._writer.drop()
            self._renewer.drop()
            while self._idle:
                self._idle.pop().close()

    def _require_same_store(self, connection: Connection) -> None:
        if self.generation is None:
            return
        found = connection.execute(self.sql["generation"]).fetchall()
        if found != [(self.generation,)]:
            raise StoreUnusable(
                f"{self.address.url} was restored from a backup since this process opened it, so this process may "
                "know events that are no longer in the store. Restart this process."
            )
        self.require_known(connection.execute(self.sql["version"]).fetchall())

    def require_known(self, versions: list[Cells]) -> None:
        """What the query `version` found must be known here; if it is not, nothing is written from then on."""
        try:
            require_known(self.address, versions)
        except SchemaTooNew as lifted:
            self._lifted = lifted
            raise

    def require_usable(self) -> None:
        self.require_own()
        if self._closed:
            raise StoreUnusable(f"the store {self.address.url} was closed. Open it again.")

    def require_own(self) -> None:
        """Asked before a lock is taken: one that was held at the fork stays held in the child for ever."""
        if self._forks != process.count:
            raise StoreUnusable(
                f"the store {self.address.url} was opened before this process was forked. Open it in the child."
            )

    def fault(self, fault: psycopg.Error) -> StoreError:
        """Our own error for one of PostgreSQL's, with the URL and the remedy."""
        for kinds, error, message in _FAULTS:
            if isinstance(fault, kinds):
                return error(f"{self.address.url}: " + message.format(fault=message_of(fault)))
        if isinstance(fault, (psycopg.OperationalError, psycopg.InterfaceError)):
            return StoreBusy(
                f"{self.address.url}: the server did not finish a statement ({message_of(fault)}). Whether it was saved "
                "is unknown; try again."
            )
        return StoreError(
            f"{self.address.url}: {type(fault).__name__}: {message_of(fault)}. This is a defect in Holdfast; please report it."
        )

    def set_up(self, steps: Callable[[Transaction], None]) -> None:
        """One transaction before the store is used."""
        with self._writer.lock:
            try:
                self._try_steps(self._writer, lambda session: _within(session, steps))
            except psycopg.Error as fault:
                raise self.fault(fault) from fault

    def write_alone(self, query: str, *values: Any) -> None:
        """One statement that is a transaction of its own, and must not be sent again where its outcome is unknown."""
        try:
            self._ask_once(query, values)
        except psycopg.Error as fault:
            raise self.fault(fault) from fault

    @property
    def bounds(self) -> tuple[str, str]:
        """How long a transaction waits for a lock, and how long it may be idle."""
        return self._bounds


class _Line:
    """A connection for transactions, one at a time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a failpoint's hook may play a second writer
        self.connection: Connection | None = None
        self._poll = select.poll()
        self._is_direct = False
        self._prepared: set[str] = set()

    def take(self, connection: Connection, process: int) -> None:
        """Use this one from now on; its statements are done by that process of the server."""
        self.connection = connection
        self._poll = select.poll()
        self._poll.register(connection.pgconn.socket, select.POLLIN)
        # A pool gives a number of its own, and the next statement to any process.
        self._is_direct = connection.pgconn.backend_pid == process
        self._prepared.clear()

    def is_stale(self) -> bool:
        """Whether there is no connection, or an idle one that should not be used."""
        connection = self.connection
        return connection is None or connection.closed or bool(self._poll.poll(0))

    def ask(self, name: str, sql: str, values: Sequence[bytes | None], types: Sequence[int]) -> PGresult:
        """The result of one statement, by way of libpq itself: for a lone append the driver's own way costs as much as the
        statement. Where it can be, it is prepared under its name: to parse it costs a fifth of it.
        """
        assert self.connection is not None
        pgconn, formats = self.connection.pgconn, [Format.BINARY] * len(values)
        if self._is_direct:
            known = b"holdfast_" + name.encode()
            try:
                if name not in self._prepared:
                    pgconn.send_prepare(known, sql.encode(), types)
                    self._answer(pgconn, ExecStatus.COMMAND_OK)
                    self._prepared.add(name)
                pgconn.send_query_prepared(known, values, formats, Format.BINARY)
                return self._answer(pgconn, ExecStatus.TUPLES_OK)
            except (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement):
                self._is_direct = False  # something in between changes sessions; nothing was done
        pgconn.send_query_params(sql.encode(), values, types, formats, Format.BINARY)
        return self._answer(pgconn, ExecStatus.TUPLES_OK)

    def _answer(self, pgconn: PGconn, wanted: ExecStatus) -> PGresult:
        """What waits here is Python's, so that signals are heard."""
        while pgconn.flush():
            _writable(pgconn).poll()
            pgconn.consume_input()
        result = None
        while True:
            while pgconn.is_busy():
                if not self._poll.poll(SILENT_S * 1000):
                    raise _fell_silent()
                pgconn.consume_input()
            found = pgconn.get_result()
            if found is None:
                break
            result = found
        if result is None or result.status != wanted:
            raise _refusal(pgconn, result)
        return result

    def drop(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Session:
    """The writing connection, as long as its lock is held."""

    def __init__(self, database: PostgresDatabase, line: _Line) -> None:
        assert line.connection is not None
        self._database = database
        self._line = line
        self._connection = line.connection

    def at_once(self, query: str, values: Sequence[bytes | None], types: Sequence[int]) -> bytes | None:
        """The one cell, as sent, of a statement that is a transaction of its own. Its values are of these types, and binary."""
        return self._line.ask(query, self._database.sql[query], values, types).get_value(0, 0)

    def alone(self, query: str, *values: Any) -> Cells:
        """The row of a statement that is a transaction of its own."""
        cursor = self._connection.cursor(binary=True)
        cursor.execute(self._database.sql[query], values)
        return cursor.fetchall()[0]

    @contextmanager
    def patience(self) -> Iterator[None]:
        """What is done in here may take as long as it takes."""
        self._connection.patient = True
        try:
            yield
        finally:
            self._connection.patient = False

    @contextmanager
    def transaction(self, *, pipelined: bool = True) -> Iterator[Transaction]:
        """What is done in here is kept when the block ends, and nothing of it if it raises."""
        connection = self._connection
        try:
            with connection.pipeline() if pipelined else nullcontext() as pipeline:
                transaction = Transaction(self._database, connection, pipeline)
                yield transaction
                committed = transaction.commit()
        except BaseException:
            with suppress(psycopg.Error):  # then the connection is lost, and the transaction with it
                if not _is_idle(connection):
                    connection.execute(self._database.sql["rollback"])
            raise
        if committed.statusmessage != "COMMIT":
            raise StoreError(
                f"{self._database.address.url}: a transaction was not committed. This is a defect in Holdfast; "
                "please report it."
            )


class Transaction:
    """Statements between a begin and a commit. They are sent without waiting; only `rows` waits for what it asked."""

    def __init__(
        self, database: PostgresDatabase, connection: Connection, pipeline: psycopg.Pipeline | None
    ) -> None:
        self._database = database
        self._connection = connection
        self._pipeline = pipeline
        self._guarded = False
        self._versions: psycopg.Cursor[Cells] | None = None
        self.do("begin")
        self._guard = self.do("guard", *database.bounds)

    def do(self, query: str, *values: Any) -> psycopg.Cursor[Cells]:
        cursor = self._connection.cursor(binary=True)
        cursor.execute(self._database.sql[query], values or None)
        return cursor

    def do_text(self, sql: str) -> None:
        """Several statements without values: not within a pipeline."""
        self._connection.execute(sql)

    def rows(self, query: str, *values: Any) -> list[Cells]:
        cursor = self.do(query, *values)
        self._wait()
        return cursor.fetchall()

    def look(self) -> None:
        """Do not commit if a newer version migrated the store. Costs nothing where a result is waited for afterwards."""
        if self._versions is None:
            self._versions = self.do("version")

    def _wait(self) -> None:
        """For what was sent so far. Only then the server knows that it waits for us, and ends a transaction that is idle."""
        self._guarded = True
        if self._pipeline is not None:
            self._pipeline.sync()

    def commit(self) -> psycopg.Cursor[Cells]:
        if not self._guarded:
            self._wait()
        if self._versions is not None:
            self._database.require_known(self._versions.fetchall())
        *_, fsync, synchronous_commit, now = self._guard.fetchall()[0]
        self._database.time.hear(now)
        if not self._database.address.unsafe and "off" in {fsync, synchronous_commit}:
            raise not_durable(self._database.address, fsync=fsync)
        return self.do("commit")


def _within(session: Session, steps: Callable[[Transaction], None]) -> None:
    with session.patience(), session.transaction(pipelined=False) as transaction:
        steps(transaction)


# --- values ----------------------------------------------------------------------------------------


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    for kind in (Texts, Bytes, Ints, Floats):
        dump = {"oid": kind.oid, "format": Format.BINARY, "dump": lambda self, array: array.binary()}
        adapters.register_dumper(kind, type(f"{kind.__name__}Dumper", (Dumper,), dump))
    return adapters


_ADAPTERS = _adapters()

# Our own errors report what the driver would log there; without a handler its words would go to the terminal.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


# --- faults ------------------------------------------------------------------------------------------


def _fell_silent() -> StoreBusy:
    """Not one of the driver's, after which a query is asked again on another connection: there is no time for that."""
    return StoreBusy(
        f"the PostgreSQL server has not answered for {SILENT_S:.0f} s on an open connection. Whether it saved the last statement "
        "is unknown. Check what is between this process and the server (a pool, a proxy), or try again."
    )


def _is_idle(connection: Connection) -> bool:
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def _writable(pgconn: PGconn) -> select.poll:
    """What waits until more can be sent, or something is said meanwhile."""
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
    return poll


def _refusal(pgconn: PGconn, result: PGresult | None) -> psycopg.Error:
    """Why a statement has no result. Where the server gave no reason it is gone."""
    if result is None or result.error_field(DiagnosticField.SQLSTATE) is None:
        return psycopg.OperationalError(pgconn.get_error_message())
    return pg.error_from_result(result)


def _is_stale(connection: Connection) -> bool:
    """Whether an idle connection should not be used: one that has something to say says that it ends."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def message_of(fault: BaseException) -> str:
    """What the server said, on one line. The driver puts addresses into some of its messages, never a password."""
    primary = getattr(getattr(fault, "diag", None), "message_primary", None)
    return " ".join(str(primary or fault).split()) or type(fault).__name__


def _unreachable(url: str, said: str) -> StoreError:
    for pattern, message in _REFUSALS:
        if re.search(pattern, said):
            return StoreUnusable(f"{url}: " + message)
    return StoreBusy(
        f"{url} cannot be reached ({said}). Check host, port and whether the server runs, or try again."
    )


_PASSING = re.compile("starting up|shutting down|recovery mode|too many clients|connection slots")
"""What a server says that is there and has no time."""

_REFUSALS: tuple[tuple[str, str], ...] = (
    ("authentication failed|no password supplied|role .* does not exist",
     ("the server does not accept this user and password. Check both; a password may also come from PGPASSWORD or "
     "~/.pgpass.")),
    ("database .* does not exist",
     "there is no such database on this server. Check its name, or create it: createdb NAME"),
    ("pg_hba.conf",
     "the server does not let this user connect from this host (pg_hba.conf). Ask an administrator to allow it."),
    ("permission denied for database",
     "this user may not connect to this database. Have its owner run: grant connect, create on database NAME to USER"),
    ("not permitted to log in", ("this role may not log in. Use another user, or have an administrator run: alter "
                                "role NAME login")),
)  # fmt: skip
# By words, because a refused connection carries no code; of a server that speaks another language all are "cannot be reached".

_FAULTS: tuple[tuple[tuple[type[psycopg.Error], ...], type[StoreError], str], ...] = (
    ((pg.InsufficientPrivilege,), StoreUnusable,
     ("this user lacks a permission ({fault}). The owner of the store's schema must grant it, or open the store "
     "once first.")),
    ((pg.UndefinedTable, pg.UndefinedFunction, pg.UndefinedColumn, pg.InvalidSchemaName), StoreUnusable,
     ("the store's tables have changed ({fault}): they were dropped, restored, or migrated by a newer Holdfast. "
     "Restart this process.")),
    ((pg.ReadOnlySqlTransaction,), StoreReadOnly,
     "the server accepts no writes ({fault}): it is a replica, or was made read-only. Use the URL of the primary."),
    ((pg.DiskFull,), StoreFull,
     "no space left on the server ({fault}). Everything acknowledged is kept; free some space and resume."),
    ((pg.LockNotAvailable,), StoreBusy,
     ("another process kept a run locked for too long ({fault}). Try again, or find that process in "
     "pg_stat_activity.")),
    ((pg.DeadlockDetected, pg.SerializationFailure), StoreBusy,
     ("this transaction was rolled back several times in favour of others ({fault}). Nothing of it was saved; try "
     "again.")),
    ((pg.DataCorrupted, pg.IndexCorrupted), StoreCorrupt,
     "the database is damaged ({fault}). Restore it from a backup."),
)  # fmt: skip
