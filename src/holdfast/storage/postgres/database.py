"""The connections of a PostgreSQL store, its transactions, and the errors that they raise. The only module that imports psycopg.

It owns one connection for writing, under one lock; one for renewing leases, which must not wait for long appends; and a few for
reading. It does not implement the methods of a store. Invariants:

- Connections have no session state: no search path, and every transaction sets its own timeouts. So a connection pool between
  this process and the server (pgbouncer, in transaction mode) makes no difference. A statement is prepared only on a connection
  that reaches its server process directly.
- Every new connection is checked: the server (`setup.require_fit`), the generation of the store, which must be the one that was
  opened, and its schema version, which must be known. Every transaction checks again, before it commits, that its commit will be
  durable.
- A process stops writing to a store that a newer version of Holdfast has migrated.
- A connection that is lost during a write leaves the outcome unknown: `StoreBusy`. A connection that was lost before is detected
  before anything is sent, and replaced. A connection on which the server stops answering counts as lost.
- Errors of PostgreSQL are translated here into errors of Holdfast; none of them contains a password.
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
from psycopg.waiting import Ready, Wait

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
Verb = Literal["append", "claim", "post", "release", "renew", "prune", "compact", "delete", "sweep", "token"]

_READERS_MAX = 8
"""How many connections may read at the same time; further threads wait, because a server allows few connections."""
_IDLE_IN_TRANSACTION_S = 10
"""How long, in seconds, a transaction may be idle, so that a suspended process cannot keep a run locked for ever."""
SILENT_S = 15.0
"""How long, in seconds, a server may take to answer. A proxy may keep a connection open although the server behind it is down,
and then no TCP timeout ends the wait. Longer than the timeout for locks, and well within the duration of a lease."""
_TICK_S = 0.1
_TRIES = 3
Unfit = (UnicodeEncodeError, OverflowError, struct.error, psycopg.DataError, pg.ProgramLimitExceeded)
"""The exceptions that are raised for values that PostgreSQL cannot store."""
Lost = (psycopg.OperationalError, psycopg.InterfaceError)
"""The exceptions that are raised if a connection is lost."""
Disagree = psycopg.IntegrityError
"""The exception that is raised if the rows of a log do not agree with the run row."""

# A forked child must never finalise the connections that it inherits: they belong to the parent process.
_open: weakref.WeakSet[PostgresDatabase] = weakref.WeakSet()
_inherited: list[PostgresDatabase] = []
os.register_at_fork(after_in_child=lambda: _inherited.extend(_open))


class PostgresConnection(psycopg.Connection[Cells]):
    """A connection that raises `StoreBusy` if the server does not answer for `SILENT_S`."""

    patient = False
    """True while a schema is being migrated: the connection then waits for the server without a time limit."""

    def wait(self, gen: Any, interval: float = _TICK_S, *args: Any, **options: Any) -> Any:
        return super().wait(self._heard(gen, SILENT_S / interval), interval, *args, **options)

    def _heard(self, gen: Any, ticks_max: float) -> Any:
        """Wrap the generator `gen` of psycopg, and count the intervals in which the server sends nothing. A pipeline of psycopg
        may wait for the reply to a large statement of which it has sent only a part: the rest is sent here.
        """
        ticks, is_unsent = 0, False
        try:
            wanted = next(gen)
            while True:
                ready = yield Wait.RW if is_unsent else wanted
                ticks = 0 if ready else ticks + 1
                if ticks > ticks_max and not self.patient:
                    self.close()
                    raise _fell_silent()
                if is_unsent or not ready:
                    is_unsent = bool(self.pgconn.flush())
                    if is_unsent and not ready & Ready.R:
                        continue
                    ready &= wanted
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


class PostgresDatabase:
    """The connections of one store. `sql` has its queries by name."""

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
        """The generation of the store, set once the store is open. From then on, a connection to a store of another generation is
        refused."""
        self._lifted: SchemaTooNew | None = None
        self._writer = _Line()
        self._renewer = _Line()
        self._pooling = threading.Lock()
        self._readers = threading.BoundedSemaphore(_READERS_MAX)
        self._idle: list[PostgresConnection] = []
        try:
            self._idle.append(self.connect())
        except StoreBusy as fault:
            if _PASSING.search(str(fault)):
                raise
            # The first connection of this process failed: it is more likely that the URL is wrong than that the server is down.
            raise StoreUnusable(str(fault)) from fault.__cause__
        _open.add(self)

    # --- reading -------------------------------------------------------------------------------------

    def read(self, query: str, *values: Any) -> list[Cells]:
        """Return the rows that a named query selects. Returns no rows if one of the values cannot be stored in PostgreSQL,
        because no row can contain it.
        """
        return self._select(self.sql[query], values)

    def read_joined(self, parts: Sequence[str], values: Sequence[Any]) -> list[Cells]:
        """Return the rows that a query selects which consists of named parts. Each `?` in it stands for the next value."""
        first, *rest = " ".join(self.sql[part] for part in parts).split("?")
        numbered = "".join(f"${number}{text}" for number, text in enumerate(rest, 1))
        return self._select(first + numbered, values)

    def _select(self, sql: str, values: Sequence[Any]) -> list[Cells]:
        try:
            return self._ask(sql, values)
        except (UnicodeEncodeError, OverflowError, struct.error, psycopg.DataError):
            return []
        except psycopg.Error as fault:
            raise self.fault(fault) from fault

    def change(self, query: str, *values: Any) -> list[Cells]:
        """Execute one statement as its own transaction. It may be sent twice if a connection is lost, so it must have the same
        effect when it is repeated.
        """
        try:
            return self._ask(self.sql[query], values)
        except Unfit as fault:
            raise CodecError(f"a value cannot be stored: {message_of(fault)}", path=query) from fault
        except psycopg.Error as fault:
            raise self.fault(fault) from fault

    def _ask(self, sql: str, values: Sequence[Any]) -> list[Cells]:
        """Execute a statement, and once more on another connection if the first is lost: the server may have been restarted."""
        try:
            return self._ask_once(sql, values)
        except (psycopg.OperationalError, psycopg.InterfaceError):
            return self._ask_once(sql, values)

    def _ask_once(self, sql: str, values: Sequence[Any]) -> list[Cells]:
        self.require_own()
        with self._readers:
            connection = self._borrow()
            try:
                cursor = connection.cursor(binary=True)
                cursor.execute(sql, values)
                return cursor.fetchall() if cursor.description else []
            finally:
                self._give_back(connection)

    def _borrow(self) -> PostgresConnection:
        while True:
            with self._pooling:
                self.require_usable()
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.connect()
            if not _is_stale(connection):
                return connection
            connection.close()

    def _give_back(self, connection: PostgresConnection) -> None:
        with self._pooling:
            if _is_idle(connection) and not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    # --- writing -------------------------------------------------------------------------------------

    def write(self, verb: Verb, steps: Callable[[Session], T]) -> T:
        """Call `steps` with a session on the writing connection (for `renew`, on the connection that renews leases). `steps` is
        called again after a deadlock.
        """
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
                raise CodecError(f"a value cannot be stored: {fault}", path=verb) from fault
            except (psycopg.DataError, pg.ProgramLimitExceeded) as fault:
                raise CodecError(f"a value cannot be stored: {message_of(fault)}", path=verb) from fault
            except psycopg.Error as fault:
                if isinstance(fault, pg.LockNotAvailable):
                    self.end_stuck()
                raise self.fault(fault) from fault
            failpoints.reach(verb + ".committed")
            return result

    def end_stuck(self) -> None:
        """End transactions of other processes that were suspended or disconnected in the middle of a pipeline. Such a transaction
        keeps its locks: the server considers it active, not idle, and never ends it. So it is ended by a process that has waited
        too long for a lock, or that finds all runs on offer locked.
        """
        with suppress(psycopg.Error, StoreError):
            self._ask_once(self.sql["end_stuck"], (self._bounds[1],))

    def _try_steps(self, line: _Line, steps: Callable[[Session], T]) -> T:
        """Call `steps`, and repeat it if the server rolled the transaction back because of a deadlock."""
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

    def connect(self) -> PostgresConnection:
        """Open and check a new connection, which the caller must close."""
        return self._connect()[0]

    def _connect(self) -> tuple[PostgresConnection, int]:
        """Open and check a new connection; also returns the process id of the server backend that answered."""
        try:
            connection = PostgresConnection.connect(
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
        raise refusal  # outside of `except`, so that the driver's error, which may quote the URL, is not attached to it

    def close(self) -> None:
        if self._forks != process.count:
            return  # after a fork, the connections belong to the parent process
        with self._writer.lock, self._renewer.lock, self._pooling:
            self._closed = True
            _open.discard(self)
            self._writer.drop()
            self._renewer.drop()
            while self._idle:
                self._idle.pop().close()

    def _require_same_store(self, connection: PostgresConnection) -> None:
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
        """Refuse a store whose schema version (the rows of the query `version`) is newer than this code knows; nothing is written
        to it from then on.
        """
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
        """Refuse to work in a forked child. Call this before taking a lock: a lock that was held at the moment of the fork is
        never released in the child.
        """
        if self._forks != process.count:
            raise StoreUnusable(
                f"the store {self.address.url} was opened before this process was forked. Open it again in this process."
            )

    def fault(self, fault: psycopg.Error) -> StoreError:
        """Translate an error of PostgreSQL into an error of Holdfast, with the URL and the remedy."""
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
        """Call `steps` in one transaction, without a time limit, before the store is used."""
        with self._writer.lock:
            try:
                self._try_steps(self._writer, lambda session: _within(session, steps))
            except psycopg.Error as fault:
                raise self.fault(fault) from fault

    def write_alone(self, query: str, *values: Any) -> None:
        """Execute one statement as its own transaction. It is never sent twice, even if its outcome is unknown."""
        try:
            self._ask_once(self.sql[query], values)
        except psycopg.Error as fault:
            raise self.fault(fault) from fault

    @property
    def bounds(self) -> tuple[str, str]:
        """Two time limits of a transaction, as values of PostgreSQL settings: how long it waits for a lock, and how long it may
        be idle.
        """
        return self._bounds


class _Line:
    """A connection that executes one transaction at a time, and the lock that ensures this."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # reentrant: a failpoint's hook may act as a second writer
        self.connection: PostgresConnection | None = None
        self._poll = select.poll()
        self._is_direct = False
        self._prepared: set[str] = set()

    def take(self, connection: PostgresConnection, process: int) -> None:
        """Use this connection from now on. `process` is the id of the server backend that answered on it."""
        self.connection = connection
        self._poll = select.poll()
        self._poll.register(connection.pgconn.socket, select.POLLIN)
        # A connection pool reports a process id of its own, and may send the next statement to any backend.
        self._is_direct = connection.pgconn.backend_pid == process
        self._prepared.clear()

    def is_stale(self) -> bool:
        """Return whether a new connection is needed: there is none, it is closed, or the server has sent data without being
        asked, which means that it is closing the connection.
        """
        connection = self.connection
        return connection is None or connection.closed or bool(self._poll.poll(0))

    def ask(self, name: str, sql: str, values: Sequence[bytes | None], types: Sequence[int]) -> PGresult:
        """Execute one statement directly with libpq, because for a lone append the driver's own code takes as long as the
        statement. If the connection is direct (without a pool), the statement is prepared, because parsing would take a fifth of
        its time.
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
                self._is_direct = (
                    False  # a pool in between has switched sessions; the statement was not executed
                )
        pgconn.send_query_params(sql.encode(), values, types, formats, Format.BINARY)
        return self._answer(pgconn, ExecStatus.TUPLES_OK)

    def _answer(self, pgconn: PGconn, wanted: ExecStatus) -> PGresult:
        """Send the statement and wait for its result. The wait is in Python, not in libpq, so that the process can handle signals
        such as SIGINT meanwhile.
        """
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
    """Executes statements on the writing connection, while its lock is held."""

    def __init__(self, database: PostgresDatabase, line: _Line) -> None:
        assert line.connection is not None
        self._database = database
        self._line = line
        self._connection = line.connection

    def at_once(self, query: str, values: Sequence[bytes | None], types: Sequence[int]) -> bytes | None:
        """Execute a statement with one result value as its own transaction, and return that value in the server's binary format.
        `values` are in binary format too, and have these `types`.
        """
        return self._line.ask(query, self._database.sql[query], values, types).get_value(0, 0)

    def alone(self, query: str, *values: Any) -> Cells:
        """Execute a statement as its own transaction, and return its row."""
        cursor = self._connection.cursor(binary=True)
        cursor.execute(self._database.sql[query], values)
        return cursor.fetchall()[0]

    @contextmanager
    def patience(self) -> Iterator[None]:
        """Let statements within this block take as long as they need."""
        self._connection.patient = True
        try:
            yield
        finally:
            self._connection.patient = False

    @contextmanager
    def transaction(self, *, pipelined: bool = True) -> Iterator[Transaction]:
        """Run a block in a transaction, which is committed when the block ends, and rolled back if the block raises."""
        connection = self._connection
        try:
            with connection.pipeline() if pipelined else nullcontext() as pipeline:
                transaction = Transaction(self._database, connection, pipeline)
                yield transaction
                committed = transaction.commit()
        except BaseException:
            with suppress(
                psycopg.Error
            ):  # if this fails, the connection is lost, and the transaction with it
                if not _is_idle(connection):
                    connection.execute(self._database.sql["rollback"])
            raise
        if committed.statusmessage != "COMMIT":
            raise StoreError(
                f"{self._database.address.url}: a transaction was not committed. This is a defect in Holdfast; "
                "please report it."
            )


class Transaction:
    """Statements between a begin and a commit. They are sent without waiting for their results; only `rows` waits."""

    def __init__(
        self, database: PostgresDatabase, connection: PostgresConnection, pipeline: psycopg.Pipeline | None
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
        """Execute several statements without parameters. Not possible within a pipeline."""
        self._connection.execute(sql)

    def rows(self, query: str, *values: Any) -> list[Cells]:
        cursor = self.do(query, *values)
        self._wait()
        return cursor.fetchall()

    def look(self) -> None:
        """Make `commit` fail if a newer version of Holdfast has migrated the store. Costs no round trip if `rows` is called
        afterwards.
        """
        if self._versions is None:
            self._versions = self.do("version")

    def _wait(self) -> None:
        """Wait for the results of the statements sent so far. Only then does the server count this transaction as idle, so that
        its idle timeout applies.
        """
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

# Our own errors contain what the driver would log; without a handler, its messages would be printed to the terminal.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


# --- faults ------------------------------------------------------------------------------------------


def _fell_silent() -> StoreBusy:
    """Return the error for a server that does not answer. It is not one of the driver's errors, because a query that raises one
    of those is repeated, which would take too long here.
    """
    return StoreBusy(
        f"the PostgreSQL server has not answered for {SILENT_S:.0f} s on an open connection. Whether it saved the last statement "
        "is unknown. Check what is between this process and the server (a pool, a proxy), or try again."
    )


def _is_idle(connection: PostgresConnection) -> bool:
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def _writable(pgconn: PGconn) -> select.poll:
    """Return a poll object that waits until more can be sent, or until the server sends something."""
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
    return poll


def _refusal(pgconn: PGconn, result: PGresult | None) -> psycopg.Error:
    """Return the error for a statement that has no result. If the server gave no reason, the connection is lost."""
    if result is None or result.error_field(DiagnosticField.SQLSTATE) is None:
        return psycopg.OperationalError(pgconn.get_error_message())
    return pg.error_from_result(result)


def _is_stale(connection: PostgresConnection) -> bool:
    """Return whether an idle connection should not be used: it is closed, or the server has sent data without being asked, which
    means that it is closing the connection.
    """
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def message_of(fault: BaseException) -> str:
    """Return the message of an error on one line. The driver puts addresses into some of its messages, but never a password."""
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
"""Messages of a server that exists but cannot accept a connection at the moment."""

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
# Matched by words, because a refused connection has no error code. If the server's messages are in another language, every
# refusal is reported as "cannot be reached".

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
     "no space left on the server ({fault}). Everything acknowledged is kept; free some space and resume the run."),
    ((pg.LockNotAvailable,), StoreBusy,
     ("another process kept a run locked for too long ({fault}). Try again, or find that process in "
     "pg_stat_activity.")),
    ((pg.DeadlockDetected, pg.SerializationFailure), StoreBusy,
     ("this transaction was rolled back several times in favour of others ({fault}). Nothing of it was saved; try "
     "again.")),
    ((pg.DataCorrupted, pg.IndexCorrupted), StoreCorrupt,
     "the database is damaged ({fault}). Restore it from a backup."),
)  # fmt: skip
