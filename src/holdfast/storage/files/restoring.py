"""Back up a store with its blobs, and restore a store from a backup.

A backup consists of the file that the database's own tool writes (`Upkeep.backup`), and beside it a folder `<file>.blobs` with
the blobs that are not in the database. Invariants:

- Every blob that the copied database refers to is in the folder, because blobs are copied before and after the database. A blob
  that is removed in between was copied before; a new blob is too recent to be removed.
- A restored store is distinct from the original: it has a new generation, no run is held, and no fence is granted twice. The
  store gets its final name only when all this is done.
- Nothing is overwritten, and a damaged blob does not prevent the copy of the intact ones.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.errors import BlobCorrupt, BlobMissing, SchemaTooNew, SettingError, StoreCorrupt, StoreUnusable
from holdfast.storage import schema
from holdfast.storage.blobs import Blobs
from holdfast.storage.contract import Store
from holdfast.storage.files import copies, disk
from holdfast.storage.files.blobs import FileBlobs
from holdfast.storage.queues import FENCE_STEP
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.urls import is_there, open_store, sqlite_path

Progress = Callable[[str, int, int], None]

_SQLITE, _POSTGRES = b"SQLite format 3\0", b"PGDMP"
_SCHEMA = re.compile(r"^\d+; \d+ \d+ SCHEMA - (\S+) ", re.MULTILINE)
_VERSION = re.compile(r"^schema_version\t(\d+)$", re.MULTILINE)


def back_up(store: Store, file: str, progress: Progress = lambda what, done, of: None) -> int:
    """Write a backup to a new file, while runs continue, and return how many blobs were copied beside it."""
    target = Path(file).expanduser().absolute()
    copies.refuse_taken(target)
    folder = Path(f"{target}.blobs")  # the folder of an earlier backup that was killed is reused
    beside = not _in_database(store)
    damaged: set[str] = set()
    count = _copy_blobs(store.blobs, FileBlobs(folder), progress, damaged) if beside else 0
    store.upkeep.backup(str(target), lambda done, of: progress("database", done, of))
    count += _copy_blobs(store.blobs, FileBlobs(folder), progress, damaged) if beside else 0
    _tell(f"{target} was written", damaged)
    return count


def _in_database(store: Store) -> bool:
    """Return whether the blobs are in the database, so that its copy contains them."""
    return store.blobs.where == store.url


def _copy_blobs(source: Blobs, target: FileBlobs, progress: Progress, damaged: set[str]) -> int:
    """Copy the blobs that `target` does not have yet, and the partial streams; return how many blobs were copied. Damaged blobs
    are left out and added to `damaged`.
    """
    known = set(target.digests()) | damaged
    wanted = [digest for digest in source.digests() if digest not in known]
    count = 0
    for number, digest in enumerate(wanted, 1):
        try:
            target.put(digest, source.get(digest))
            count += 1
        except BlobMissing:  # removed meanwhile: no run refers to it any more, or it was copied before
            continue
        except BlobCorrupt:
            damaged.add(digest)
        progress("blobs", number, len(wanted))
    for run_id in source.spilling():
        there = target.spilled(run_id)
        for key, data in source.spilled(run_id).items():
            if there.get(key) != data:
                target.unspill(run_id, [key])
                target.spill(run_id, key, data)
    return count


def _tell(done: str, damaged: set[str]) -> None:
    """Raise `StoreCorrupt` if damaged blobs were left out. They do not prevent the copy of the others, but must be reported."""
    if damaged:
        raise StoreCorrupt(
            f"{done}, but not completely: {len(damaged)} of its blobs cannot be read and were left out, e.g. "
            f"{min(damaged)}. `holdfast verify` names the runs that refer to them; restore them from an older "
            "copy, or fork those runs."
        )


def restore(file: str, url: str, progress: Progress = lambda what, done, of: None) -> str:
    """Create a new store from a backup, and return its URL. Raises `SettingError` if a store exists there already."""
    source = Path(file).expanduser().absolute()
    try:
        with source.open("rb") as handle:
            head = handle.read(len(_SQLITE))
    except OSError as fault:
        raise StoreUnusable(f"{source} cannot be read: {fault.strerror}. Check the path.") from fault
    path = sqlite_path(url)
    if head == _SQLITE and path is not None:
        return _restore_sqlite(source, Path(path).expanduser().absolute(), progress)
    if head.startswith(_POSTGRES) and url.startswith(("postgres://", "postgresql://")):
        return _restore_postgres(source, url)
    kind = "SQLite" if head == _SQLITE else "PostgreSQL" if head.startswith(_POSTGRES) else None
    if kind is None:
        raise StoreCorrupt(f"{source} is not a backup of Holdfast. `holdfast backup FILE` makes one.")
    raise SettingError(
        f"{source} is a backup of a {kind} store, and --store names another kind. Name a {kind} store."
    )


# --- SQLite ------------------------------------------------------------------------------------------


def _restore_sqlite(source: Path, target: Path, progress: Progress) -> str:
    blobs = Path(f"{target}.blobs")  # blobs of a lost database can be reused: they are named by their content
    for taken in (target, Path(f"{target}-wal")):
        if taken.exists():
            raise SettingError(
                f"{taken} exists already, and nothing is overwritten. Choose another path, or move it away."
            )
    way_out = "The backup is unchanged; choose another place for the store, or free some space there."
    damaged: set[str] = set()
    with copies.report_failure(f"{source} was not restored to {target}", way_out):
        _write_store(source, target, blobs, progress, damaged)
    _tell(f"{target} was made", damaged)
    return f"sqlite:///{target}"


def _write_store(source: Path, target: Path, blobs: Path, progress: Progress, damaged: set[str]) -> None:
    disk.make_folder(target.parent)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)  # 0600
    try:
        with os.fdopen(handle, "wb") as copy, source.open("rb") as original:
            shutil.copyfileobj(original, copy)
        beside = Path(f"{source}.blobs")
        if beside.is_dir():
            _copy_blobs(FileBlobs(beside), FileBlobs(blobs), progress, damaged)
        _make_new(temporary, source)
        copies.name_file(temporary, target)
    finally:
        for left in (temporary, f"{temporary}-wal", f"{temporary}-shm"):
            with suppress(FileNotFoundError):
                os.unlink(left)


def _make_new(path: str, source: Path) -> None:
    """Check the copied database, and invalidate its leases and fences before any other process can open it."""
    try:
        store = SqliteStore(path)
    except (
        SchemaTooNew,
        StoreCorrupt,
    ) as fault:  # name the backup, because the user does not know our temporary copy
        raise type(fault)(str(fault).replace(path, str(source))) from fault
    try:
        damage = store.check()
        if damage:
            raise StoreCorrupt(f"the backup {source} is damaged: {damage[0]}. Use another copy of it.")
        store.queues.renew_generation()
    finally:
        store.close()


# --- PostgreSQL --------------------------------------------------------------------------------------


def _restore_postgres(source: Path, url: str) -> str:
    from holdfast.storage.postgres import upkeep as postgres_upkeep
    from holdfast.storage.postgres.address import Address

    address = Address(url)
    held = _SCHEMA.findall(postgres_upkeep.call("pg_restore", None, "--list", str(source)))
    if held != [address.schema]:
        raise SettingError(
            f"{source} contains the schema {', '.join(held) or 'of no store'}, and --store names {address.schema!r}. "
            f"A backup is restored under the name that its schema had: add schema={held[0] if held else '…'} to "
            "the URL; if that schema is in use, as in a rehearsal, name another database as well."
        )
    there = is_there(url)  # checked first, because it refuses a server on which no store could be opened
    listed = postgres_upkeep.call(
        "psql", address, "--tuples-only", "--no-align", f"--command=\\dn {address.schema}"
    )
    if there or listed.strip():
        raise SettingError(
            f"{address.url} has the schema {address.schema!r} already, and nothing is overwritten. A backup is "
            "restored under the name that its schema had: to rehearse a restore, name another database (create "
            "database … makes one); to replace this store, rename its schema first (alter schema "
            f"{address.schema} rename to …)."
        )
    _refuse_newer(source, address.schema)
    with postgres_upkeep.script(address) as script:
        postgres_upkeep.call("pg_restore", None, "--no-owner", "--file=-", str(source), into=script)
        script.write(_renewal(address.schema))
    open_store(url).close()  # migrates a store that an older version wrote
    return address.url


def _refuse_newer(source: Path, name: str) -> None:
    """Refuse a backup of a newer Holdfast before anything is written to the database, because its store could not be opened."""
    from holdfast.storage.postgres import setup
    from holdfast.storage.postgres import upkeep as postgres_upkeep

    one_table = ("--data-only", f"--schema={name}", "--table=meta", "--file=-")
    found = _VERSION.search(postgres_upkeep.call("pg_restore", None, *one_table, str(source)))
    known = setup.known_version()
    if found is not None and int(found[1]) > known:
        raise SchemaTooNew(
            f"{source} has schema version {found[1]}; this Holdfast knows versions up to {known}. "
            "Use the version of Holdfast that wrote the backup, or a newer one. Nothing was changed."
        )


def _renewal(name: str) -> bytes:
    """Return the statements of `Queues.renew_generation` as a script, because they must run in the transaction that creates the
    tables.
    """
    sql = schema.queries("postgres", name)
    statements = (
        sql["new_generation"].replace("$1", f"'{uuid.uuid4().hex}'"),
        sql["renew_fences"].replace("$1", str(FENCE_STEP)),
        sql["drop_holders"],
    )
    return "".join(f"{statement};\n" for statement in statements).encode()
