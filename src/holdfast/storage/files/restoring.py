"""Backups of a store with its blobs, and stores from backups.

A backup is what the database's own means write (`Upkeep.backup`), and beside it a folder `<file>.blobs` for the blobs that are
not in the database. Invariants:

- Every blob that the copy refers to is in the folder: blobs are copied before and after the database. One that is removed
  meanwhile was copied before; one that is new is too young to be removed.
- A store that was put back is no older self of the other: it has a new generation, nobody holds anything, and no fence is given
  out twice. It gets its name when that is true.
- Nothing is overwritten, and nothing that is whole is left out because something else is not.
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
    """Write a backup to a new file, while runs go on: how many blobs lie beside it."""
    target = Path(file).expanduser().absolute()
    copies.refuse_taken(target)
    folder = Path(f"{target}.blobs")  # one that a killed backup left is gone on with
    beside = not _in_database(store)
    damaged: set[str] = set()
    count = _copy_blobs(store.blobs, FileBlobs(folder), progress, damaged) if beside else 0
    store.upkeep.backup(str(target), lambda done, of: progress("database", done, of))
    count += _copy_blobs(store.blobs, FileBlobs(folder), progress, damaged) if beside else 0
    _tell(f"{target} was written", damaged)
    return count


def _in_database(store: Store) -> bool:
    """Whether the copy of the database holds the blobs."""
    return store.blobs.where == store.url


def _copy_blobs(source: Blobs, target: FileBlobs, progress: Progress, damaged: set[str]) -> int:
    """Copy what is not there yet: how many. Those that are damaged are left out and added to `damaged`."""
    known = set(target.digests()) | damaged
    wanted = [digest for digest in source.digests() if digest not in known]
    count = 0
    for number, digest in enumerate(wanted, 1):
        try:
            target.put(digest, source.get(digest))
            count += 1
        except BlobMissing:  # removed meanwhile: nothing refers to it any more, or it was copied before
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
    """One damaged blob must not prevent the copy of all others; but it is reported."""
    if damaged:
        raise StoreCorrupt(
            f"{done}, but not completely: {len(damaged)} of its blobs cannot be read and were left out, e.g. "
            f"{min(damaged)}. `holdfast verify` names the runs that refer to them; restore them from an older "
            "copy, or fork those runs."
        )


def restore(file: str, url: str, progress: Progress = lambda what, done, of: None) -> str:
    """Make a store from a backup where there is none: its URL. Raises `SettingError` where there is one already."""
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
        f"{source} is a backup of a {kind} store, and --store names another kind. Name one of that kind."
    )


# --- SQLite ------------------------------------------------------------------------------------------


def _restore_sqlite(source: Path, target: Path, progress: Progress) -> str:
    blobs = Path(f"{target}.blobs")  # those of a lost database are still good: their names say what they are
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
    """Invalidate leases and fences that were granted before the copy was made, before any process can open it."""
    try:
        store = SqliteStore(path)
    except (SchemaTooNew, StoreCorrupt) as fault:  # the reader knows the backup, and not our copy of it
        raise type(fault)(str(fault).replace(path, str(source))) from fault
    try:
        damage = store.check()
        if damage:
            raise StoreCorrupt(f"the backup is damaged: {damage[0]}. Take another copy of it.")
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
            f"{source} holds the schema {', '.join(held) or 'of no store'}, and --store names {address.schema!r}. "
            f"A backup is restored under the name that its schema had: add schema={held[0] if held else '…'} to "
            "the URL; if that schema is in use, as in a rehearsal, name another database as well."
        )
    there = is_there(url)  # asked first: it refuses a server on which no store could be opened
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
    open_store(url).close()  # migrates what an older version wrote
    return address.url


def _refuse_newer(source: Path, name: str) -> None:
    """Refuse a backup that a newer Holdfast made, before anything of it is in the database: the store could not be opened."""
    from holdfast.storage.postgres import setup
    from holdfast.storage.postgres import upkeep as postgres_upkeep

    one_table = ("--data-only", f"--schema={name}", "--table=meta", "--file=-")
    found = _VERSION.search(postgres_upkeep.call("pg_restore", None, *one_table, str(source)))
    known = setup.known_version()
    if found is not None and int(found[1]) > known:
        raise SchemaTooNew(
            f"{source} has schema version {found[1]}; this Holdfast knows versions up to {known}. "
            "Use the version that wrote it, or a newer one. Nothing was changed."
        )


def _renewal(name: str) -> bytes:
    """What `Queues.renew_generation` does, as a script: it has to be in the transaction that makes the tables."""
    sql = schema.queries("postgres", name)
    statements = (
        sql["new_generation"].replace("$1", f"'{uuid.uuid4().hex}'"),
        sql["renew_fences"].replace("$1", str(FENCE_STEP)),
        sql["drop_holders"],
    )
    return "".join(f"{statement};\n" for statement in statements).encode()
