"""The upkeep of a store in PostgreSQL.

This module owns no connection. Invariants:

- Every change is one transaction, which locks the run row before it checks the row.
- A backup is made with PostgreSQL's own `pg_dump`: the schema at one moment, including the blobs in its tables, while runs
  continue. No password is among the arguments of a command, where other users of the machine could read it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO
from urllib.parse import unquote

from msgspec.structs import astuple

from holdfast.errors import (
    HoldfastError,
    ResumeRefused,
    RunHeld,
    RunNotFound,
    SeqConflict,
    SettingError,
    StoreError,
)
from holdfast.storage import failpoints, leases, schema
from holdfast.storage.files import disk
from holdfast.storage.files.copies import NOT_COPIED, name_file, refuse_taken, report_failure
from holdfast.storage.postgres.address import Address
from holdfast.storage.postgres.arrays import Ints, Texts
from holdfast.storage.postgres.database import Cells, PostgresDatabase, Session, Transaction
from holdfast.storage.sql_rows import read_holder
from holdfast.storage.upkeep import PIECE, WHOLE, Facts, Kept, Trimmed, refuse_compaction, refuse_deletion

_LAST_SEQ = 2**62
_PASSWORD = re.compile(r"(?<=//)([^:@/]*):([^@/]*)@")
_NO_ROLE = re.compile(r'ERROR: role ("[^"]+") does not exist')
_OF_RUN = (
    "delete_labels",
    "delete_inbox",
    "delete_snapshots",
    "delete_trimmed",
    "delete_refusals",
    "delete_run",
)


class PostgresUpkeep:
    """The upkeep of one store. `now` gives the time of a clock for tests; if it returns None, the database's clock is used."""

    def __init__(
        self,
        database: PostgresDatabase,
        now: Callable[[], float | None],
        alive: leases.Alive = leases.alive_elsewhere,
    ) -> None:
        self._database = database
        self._now = now
        self._alive = alive

    def trimmed(self, run_id: str) -> Trimmed:
        found = self._database.read("trimmed", run_id)
        if not found:
            return WHOLE
        return Trimmed(**dict(zip(Trimmed.__struct_fields__, found[0], strict=True)))

    def snapshots(self, run_id: str) -> list[Kept]:
        found = self._database.read("snapshot_heads", run_id)
        if not found and not self._database.read("run_key", run_id):
            raise RunNotFound(run_id, self._database.address.url)
        return [Kept(seq, base, size) for seq, base, size in found]

    def referring(self, run_id: str, after: int = 0, limit: int = PIECE) -> list[tuple[int, bytes]]:
        return [(seq, body) for seq, body in self._database.read("referring", run_id, after, limit)]

    def retire(self, run_id: str, before: int, drop: Collection[int] = ()) -> None:
        def write(session: Session) -> None:
            with session.transaction() as transaction:
                (run,) = self._find(transaction, "lock_run", run_id)
                transaction.do("drop_snapshots", run, Ints(list(drop)))
                transaction.do("retire", run, before, self._now())

        self._database.write("prune", write)

    def compact(
        self,
        run_id: str,
        seq: int,
        *,
        body: bytes,
        digest: bytes,
        holder: str,
        fence: int,
        place: str = "",
    ) -> None:
        def write(session: Session) -> None:
            with session.transaction() as transaction:
                run, end, known_fence, known_holder, base = self._find(transaction, "compactable", run_id)
                held = (known_holder, known_fence)
                refuse_compaction(run_id, seq, base=base, end=end, held=held, by=(holder, fence))
                transaction.do("drop_snapshots_upto", run, seq)
                transaction.do("write_base", run, seq, digest, body)
                transaction.do("rebase", run, seq, self._now(), sha256(body).digest(), place)
                transaction.do("leave", run, seq)

        self._database.write("compact", write)

    def delete(self, ends: Mapping[str, int]) -> dict[str, HoldfastError]:
        refused: dict[str, HoldfastError] = {}

        def write(session: Session) -> None:
            refused.clear()
            with session.transaction() as transaction:
                # The rows are locked in one order, as an append locks them, so that two transactions never wait for each other.
                transaction.rows("head", Texts([run_id for run_id in ends if _is_text(run_id)]))
                for run_id, seq in ends.items():
                    try:
                        run = self._find_deletable(transaction, run_id, seq)
                    except (RunNotFound, RunHeld, SeqConflict, ResumeRefused) as refusal:
                        refused[run_id] = refusal
                        continue
                    for query in _OF_RUN:
                        transaction.do(query, run)
                    transaction.do("leave", run, _LAST_SEQ)

        self._database.write("delete", write)
        return refused

    def _find_deletable(self, transaction: Transaction, run_id: str, seq: int) -> int:
        """Return the key of a run that may be deleted; raise what refuses it otherwise."""
        run: int
        run, end, _, now, held_by = self._find(transaction, "lease", run_id, self._now())
        self._refuse_held(transaction, run_id, held_by, now)
        fork = transaction.rows("fork_of", run_id)
        caller = transaction.rows("caller_of", run)
        asked = transaction.rows("asked_of", run)
        refuse_deletion(
            run_id,
            seq=seq,
            end=end,
            fork=fork[0][0] if fork else None,
            caller=(caller[0][0], caller[0][1]) if caller else None,
            asked=asked[0][0] if asked else None,
        )
        return run

    def _refuse_held(self, transaction: Transaction, run_id: str, held_by: str | None, now: float) -> None:
        # The holder's row is locked: a renewal that comes now waits until the run is deleted; an earlier one is seen.
        found = transaction.rows("claim_holders", Texts([held_by])) if held_by is not None else []
        if found:
            expires_at, *cells = found[0]
            holder = read_holder(cells)
            if leases.is_held(holder, expires_at, now, self._alive):
                raise RunHeld(run_id, holder.describe())

    def sweep(self, limit: int = PIECE) -> int:
        if not self._database.read("any_remains"):
            return 0

        def write(session: Session) -> int:
            with session.transaction() as transaction:
                left = limit
                # A run that another process is sweeping is skipped.
                while left and (found := transaction.rows("remains")):
                    run, upto = found[0]
                    count: int = transaction.rows("sweep_events", run, upto, left)[0][0]
                    if count < left:
                        transaction.do("swept", run)
                    left -= count
                return limit - left

        return self._database.write("sweep", write)

    def fingerprints(self) -> list[str]:
        return [fingerprint for (fingerprint,) in self._database.read("fingerprints")]

    def drop_definitions(self, fingerprints: Collection[str]) -> int:
        if not fingerprints:
            return 0

        def write(session: Session) -> int:
            with session.transaction() as transaction:
                return len(transaction.rows("drop_definitions", Texts(list(fingerprints))))

        return self._database.write("sweep", write)

    def adopt(
        self, run_id: str, trimmed: Trimmed, definitions: Mapping[str, bytes], *, fence: int = 0
    ) -> None:
        def write(session: Session) -> None:
            with session.transaction() as transaction:
                for fingerprint, body in sorted(definitions.items()):
                    transaction.do("keep_definition", fingerprint, body)
                if trimmed != WHOLE:
                    transaction.do("adopt", run_id, *astuple(trimmed))
                transaction.do("adopt_fence", run_id, fence)

        self._database.write("prune", write)

    def facts(self) -> Facts:
        now, version, size, unswept, log, *settings = self._database.read("facts")[0]
        names = (
            "server_version",
            "fsync",
            "synchronous_commit",
            "full_page_writes",
            "default_transaction_read_only",
        )
        given = self._now()
        return Facts(
            kind="postgresql",
            now=now if given is None else given,
            schema_version=version,
            schema_known=len(schema.migrations("postgres")),
            size_bytes=size,
            log_bytes=log,
            settings=dict(zip(names, settings, strict=True)),
            unswept=unswept,
        )

    def backup(self, file: str, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        target = Path(file).expanduser().absolute()
        refuse_taken(target)
        with report_failure(f"{self._database.address.url} was not copied to {target}", NOT_COPIED):
            self._write_copy(target)
        failpoints.reach("backup.named")

    def _write_copy(self, target: Path) -> None:
        disk.make_folder(target.parent)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)  # 0600
        os.close(handle)
        try:
            address = self._database.address
            call("pg_dump", address, "--format=custom", f"--schema={address.schema}", f"--file={temporary}")
            failpoints.reach("backup.copied")
            name_file(temporary, target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def _find(self, transaction: Transaction, query: str, run_id: str, *values: object) -> Cells:
        found = transaction.rows(query, run_id, *values) if _is_text(run_id) else []
        if not found:
            raise RunNotFound(run_id, self._database.address.url)
        return found[0]


def call(program: str, address: Address | None, *options: str, into: IO[bytes] | None = None) -> str:
    """Run a client program of PostgreSQL, connected to this database if `address` is given. Returns what the program printed,
    unless its output goes to the file `into`.
    """
    words, environment = _command(program, address, options)
    done = subprocess.run(  # noqa: S603 - the command is our own
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if into is None else into,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise _failure(program, address, done.stderr, done.returncode)
    return done.stdout or ""


@contextmanager
def script(address: Address) -> Iterator[IO[bytes]]:
    """Run the SQL that is written to the file within this block with psql, in one transaction. Nothing is kept if the block
    raises, or if this process dies in it, because then the script ends before its `commit`.
    """
    options = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file=-")
    words, environment = _command("psql", address, options)
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(  # noqa: S603 - the command is our own
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said
        ) as psql,
    ):
        assert psql.stdin is not None
        try:
            with psql.stdin as text:
                text.write(b"begin;\n")
                text.flush()
                yield text
                text.write(b"commit;\n")
        except (StoreError, BrokenPipeError):
            if not psql.wait():
                raise
        if psql.wait():  # if psql failed first, the error of the block is only a consequence
            said.seek(0)
            raise _failure("psql", address, said.read().decode(errors="replace"), psql.returncode)


def _command(
    program: str, address: Address | None, options: tuple[str, ...]
) -> tuple[list[str], dict[str, str]]:
    """Return the command line of a client program, and its environment, which contains the password."""
    where = address.url if address is not None else "PostgreSQL"
    found = shutil.which(program)
    if found is None:
        raise SettingError(
            f"{where}: there is no {program} on this machine. Install the client programs of PostgreSQL, in the "
            "version of the server or newer, or run them on a machine that has them: `pg_dump --format=custom "
            "--schema=…` makes a backup, `pg_restore` restores one."
        )
    plain, password = _apart(address.conninfo) if address is not None else ("", "")
    secret = {"PGPASSWORD": password} if password else {}
    place = ["--no-password", f"--dbname={plain}"] if plain else []
    return [found, *place, *options], {**os.environ, **secret}


def _failure(program: str, address: Address | None, stderr: str, code: int) -> StoreError:
    said = " ".join(stderr.split()) or f"exit code {code}"
    if address is None:
        return StoreError(f"PostgreSQL: {program} failed: {said[:500]}{_way_out(program, said)}")
    told = said.replace(_apart(address.conninfo)[0], address.url)[:500]
    return StoreError(f"{address.url}: {program} failed: {told}{_way_out(program, said)}")


def _way_out(program: str, said: str) -> str:
    if match := _NO_ROLE.search(said):
        return (
            f". The backup grants a permission to that role: create it first (create role {match[1]}), and "
            "restore again."
        )
    if "version mismatch" not in said and "unsupported version" not in said:
        return ""
    return (
        f". Put the {program} of a PostgreSQL at least as new as the server and the backup first on PATH, or run "
        "it on the machine of the server."
    )


def _apart(conninfo: str) -> tuple[str, str]:
    """Split an address into the address without its password, and the password."""
    password = ""
    if match := _PASSWORD.search(conninfo):
        password = unquote(match[2])
        conninfo = _PASSWORD.sub(r"\1@", conninfo, count=1)
    if match := re.search(r"[?&]password=([^&]*)", conninfo):
        password = unquote(match[1])
        conninfo = conninfo.replace(match[0], match[0][0] + "application_name=holdfast")
    return conninfo, password


def _is_text(value: str) -> bool:
    """Return whether PostgreSQL can store a text: it has no lone surrogate and no NUL."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False
