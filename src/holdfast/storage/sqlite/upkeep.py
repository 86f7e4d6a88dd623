"""The upkeep of a store in a SQLite file.

This module owns no connection except those that it opens for a backup or for `facts`. Invariants:

- Every change is one transaction of the store's writing connection, under its lock.
- SQLite reuses the numeric key of a deleted run if it was the highest. So the leftover events of a deleted run may be swept later
  only as long as a run with a higher key exists; otherwise they are deleted together with the run row.
- A backup is a copy of the database at one moment: it reads inside one transaction, which blocks no writer in WAL mode. The file
  is renamed to its final name last.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec.structs import astuple

from holdfast.errors import HoldfastError, ResumeRefused, RunHeld, RunNotFound, SeqConflict
from holdfast.storage import failpoints, leases, schema
from holdfast.storage.files import disk
from holdfast.storage.files.copies import NOT_COPIED, name_file, refuse_taken, report_failure
from holdfast.storage.sql_rows import read_holder
from holdfast.storage.sqlite.database import Cells, SqliteDatabase
from holdfast.storage.upkeep import PIECE, WHOLE, Facts, Kept, Trimmed, refuse_compaction, refuse_deletion

_SQL = schema.queries("sqlite")
_LAST_SEQ = 2**32 - 1
_PAGES = 500
"""How many pages a backup copies between two calls of `progress`."""
_OF_RUN = (
    "delete_labels",
    "delete_inbox",
    "delete_snapshots",
    "delete_trimmed",
    "delete_refusals",
    "delete_run",
)
_encode = msgspec.json.Encoder().encode


class SqliteUpkeep:
    """The upkeep of one store."""

    def __init__(self, database: SqliteDatabase, alive: leases.Alive = leases.alive) -> None:
        self._database = database
        self._path = database.path
        self._alive = alive

    def trimmed(self, run_id: str) -> Trimmed:
        found = self._database.read("trimmed", run_id)
        if not found:
            return WHOLE
        return Trimmed(**dict(zip(Trimmed.__struct_fields__, found[0], strict=True)))

    def snapshots(self, run_id: str) -> list[Kept]:
        found = self._database.read("snapshot_heads", run_id)
        if not found:
            self._database.require_run(run_id)
        return [Kept(seq, bool(base), size) for seq, base, size in found]

    def referring(self, run_id: str, after: int = 0, limit: int = PIECE) -> list[tuple[int, bytes]]:
        return [(seq, body) for seq, body in self._database.read("referring", run_id, after, limit)]

    def retire(self, run_id: str, before: int, drop: Collection[int] = ()) -> None:
        def write() -> None:
            run: int = self._database.find("run_key", run_id)
            for seq in drop:
                self._database.do("drop_snapshot", run, seq)
            self._database.do("retire", run, before, self._database.now())

        self._database.commit("prune", write)

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
        def write() -> None:
            run, end, known_fence, known_holder, base = self._database.find("compactable", run_id)
            held = (known_holder, known_fence)
            refuse_compaction(run_id, seq, base=base, end=end, held=held, by=(holder, fence))
            self._database.do("drop_snapshots_upto", run, seq)
            self._database.do("write_snapshot", run, seq, 1, digest, body)
            self._database.do("rebase", run, seq, self._database.now(), sha256(body).digest(), place)
            self._database.do("leave", run, seq)

        self._database.commit("compact", write)

    def delete(self, ends: Mapping[str, int]) -> dict[str, HoldfastError]:
        refused: dict[str, HoldfastError] = {}

        def write() -> None:
            refused.clear()
            for run_id, seq in ends.items():
                try:
                    run = self._find_deletable(run_id, seq)
                except (RunNotFound, RunHeld, SeqConflict, ResumeRefused) as refusal:
                    refused[run_id] = refusal
                    continue
                for query in _OF_RUN:
                    self._database.do(query, run)
                self._database.do("leave", run, _LAST_SEQ)
            self._sweep_highest()

        self._database.commit("delete", write)
        return refused

    def _find_deletable(self, run_id: str, seq: int) -> int:
        """Return the key of a run that may be deleted; raise what refuses it otherwise."""
        run: int
        run, end, _, _, expires_at, *cells = self._database.find("lease", run_id)
        if cells[0] is not None:
            holder = read_holder(cells)
            if leases.is_held(holder, expires_at, self._database.now(), self._alive):
                raise RunHeld(run_id, holder.describe())
        fork = self._database.do("fork_of", run_id).get
        caller = self._database.do("caller_of", run).get
        asked = self._database.do("asked_of", run).get
        refuse_deletion(run_id, seq=seq, end=end, fork=fork, caller=caller, asked=asked)
        return run

    def _sweep_highest(self) -> None:
        """Delete the leftover events of deleted runs whose key the next new run would get."""
        highest = self._database.do("highest_run").get
        for (run,) in self._database.do("remains_above", highest).fetchall():
            self._database.do("sweep_events", run, _LAST_SEQ, _LAST_SEQ)
            self._database.do("swept", run)

    def sweep(self, limit: int = PIECE) -> int:
        if not self._database.read("remains"):
            return 0

        def write() -> int:
            left = limit
            while left and (found := self._database.do("remains").get) is not None:
                run, upto = found
                count = len(self._database.do("sweep_events", run, upto, left).fetchall())
                if count < left:
                    self._database.do("swept", run)
                left -= count
            return limit - left

        swept: int = self._database.commit("sweep", write)
        return swept

    def fingerprints(self) -> list[str]:
        return [fingerprint for (fingerprint,) in self._database.read("fingerprints")]

    def drop_definitions(self, fingerprints: Collection[str]) -> int:
        if not fingerprints:
            return 0
        listed = _encode(list(fingerprints)).decode()
        dropped: list[Cells] = self._database.commit(
            "sweep", lambda: self._database.do("drop_definitions", listed).fetchall()
        )
        return len(dropped)

    def adopt(
        self, run_id: str, trimmed: Trimmed, definitions: Mapping[str, bytes], *, fence: int = 0
    ) -> None:
        def write() -> None:
            for fingerprint, body in definitions.items():
                self._database.do("write_definition", fingerprint, body)
            if trimmed != WHOLE:
                self._database.do("adopt", run_id, *astuple(trimmed))
            self._database.do("adopt_fence", run_id, fence)

        self._database.commit("prune", write)

    def facts(self) -> Facts:
        found: Facts = self._database.guard(self._look)
        return found

    def _look(self) -> Facts:
        connection = self._database.connect()
        try:
            settings = {
                "journal_mode": self._database.journal_mode(connection),
                "synchronous": str(connection.pragma("synchronous")),
            }
            version = int(connection.pragma("user_version"))
        finally:
            connection.close()
        room = os.statvfs(Path(self._path).parent)
        return Facts(
            kind="sqlite",
            now=self._database.now(),
            schema_version=version,
            schema_known=len(schema.migrations("sqlite")),
            size_bytes=_size(self._path),
            log_bytes=_size(f"{self._path}-wal"),
            free_bytes=room.f_bavail * room.f_frsize,
            settings=settings,
            unswept=int(self._database.read("unswept")[0][0]),
        )

    # --- backup --------------------------------------------------------------------------------------

    def backup(self, file: str, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        target = Path(file).expanduser().absolute()
        refuse_taken(target)
        with report_failure(f"{self._path} was not copied to {target}", NOT_COPIED):
            self._write_copy(target, progress)
        failpoints.reach("backup.named")

    def _write_copy(self, target: Path, progress: Callable[[int, int], None]) -> None:
        disk.make_folder(target.parent)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)  # 0600
        os.close(handle)
        try:
            self._database.guard(lambda: self._copy(temporary, progress))
            name_file(temporary, target)
        finally:
            with suppress(OSError):  # an earlier error is the one to report
                os.unlink(temporary)

    def _copy(self, temporary: str, progress: Callable[[int, int], None]) -> None:
        source = self._database.connect()
        try:
            source.execute(_SQL["begin_reading"])
            source.execute(
                _SQL["any_table"]
            ).fetchall()  # the first read fixes the moment that the transaction sees
            copy = type(source)(temporary)
            try:
                with copy.backup("main", source, "main") as pages:
                    while not pages.done:
                        pages.step(_PAGES)
                        progress(pages.page_count - pages.remaining, pages.page_count)
                copy.pragma(
                    "journal_mode", "delete"
                )  # so that the copy is one file, without a WAL file beside it
            finally:
                copy.close()
        finally:
            source.close(force=True)
        failpoints.reach("backup.copied")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
