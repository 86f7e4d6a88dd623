"""One run as one file: everything a store keeps of it, and back.

An archive is JSON, a part a line, compressed with zstd. The first line says what it is; then come the run, the definitions of its
flow, the blobs it refers to, its snapshots and its events, all as stored; the last line counts them and holds the digest of all
lines before. Bytes are in base64. It needs nothing beside it, and no store to be read: `zstdcat FILE`.

Invariant: a run that was put back equals the one that was archived: the same rows, chain and blobs, so `verify` holds it to the
same digest. It is then held by nobody, and its first lease has a new fence.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import msgspec

from holdfast.core import run_state
from holdfast.errors import RunExists, RunNotFound, SettingError, StoreCorrupt, StoreError
from holdfast.storage import archives, copies, disk, oversize, remote
from holdfast.storage.contract import Append, NewRun, Row, RunRow, Snapshot, Store, View
from holdfast.storage.rows import broken_at, open_body, open_row, unpack
from holdfast.storage.upkeep import Trimmed

VERSION = 1
ENDING = ".holdfast.zst"
_PAGE = 500
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_ZSTD = b"\x28\xb5\x2f\xfd"


class _Part(msgspec.Struct, frozen=True, kw_only=True, tag_field="part"):
    """A line."""


class Head(_Part, frozen=True, kw_only=True, tag="archive"):
    """What the file is."""

    version: int = VERSION
    run_id: str
    flow: str
    status: str
    store: str
    archived_at: float


class RunPart(_Part, frozen=True, kw_only=True, tag="run"):
    """The run row."""

    new: NewRun
    view: View
    seq: int
    digest: bytes
    trimmed: Trimmed


class DefinitionPart(_Part, frozen=True, kw_only=True, tag="definition"):
    """A definition that the log refers to."""

    fingerprint: str
    body: bytes


class BlobPart(_Part, frozen=True, kw_only=True, tag="blob"):
    """A value too large for the log."""

    digest: str
    body: bytes


class SnapshotPart(_Part, frozen=True, kw_only=True, tag="snapshot"):
    """A stored fold."""

    seq: int
    base: bool
    digest: bytes
    body: bytes


class EventPart(_Part, frozen=True, kw_only=True, tag="event", omit_defaults=True):
    """An event. Its body is text, or compressed and then bytes."""

    seq: int
    at: float
    kind: str
    node: str | None
    iteration: int
    execution: int
    attempt: int
    salt: bytes
    digest: bytes
    body: str = ""
    packed: bytes = b""

    def row(self) -> Row:
        stored = self.packed or self.body.encode()
        return Row(self.seq, self.at, self.kind, self.node, self.iteration, self.execution, self.attempt, self.salt, stored,
                   self.digest)  # fmt: skip


class End(_Part, frozen=True, kw_only=True, tag="end"):
    """Everything is there."""

    events: int
    digest: str
    """sha256 of all lines before."""


Part: TypeAlias = Head | RunPart | DefinitionPart | BlobPart | SnapshotPart | EventPart | End
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Part).decode


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run was archived."""

    run_id: str
    place: str
    events: int
    blobs: int
    bytes: int


# --- writing -----------------------------------------------------------------------------------------


def archive(store: Store, run_id: str, place: str | os.PathLike[str]) -> Archived:
    """Write a run to a new file: a path or a URL of fsspec, or a folder of either (ending in `/`), where it is named for the
    run. Returns when it is durable there. Raises `SettingError` where something is there already.
    """
    row = store.run(run_id)
    target, own = _named(os.fspath(place), row)
    if own and (there := _already(target, row)) is not None:
        return there
    if not own and not _URL.match(target):
        copies.refuse_taken(Path(target))
    with _temporary(target) as file:
        counted = _Count()
        archives.write_lines(file, counted.through(_parts(store, row)))
        size = os.stat(file).st_size
        if _URL.match(target):
            told = remote.upload(target, file, replace=own)
        else:
            copies.name_file(file, Path(target))
            told = target
    return Archived(run_id=run_id, place=told, events=counted.events, blobs=counted.blobs, bytes=size)


def _already(target: str, row: RunRow) -> Archived | None:
    """An archive of the very same log that is there already: whoever wrote it was killed before it could go on."""
    try:
        with _local(target) as file:
            parts = list(read(file))
            run = parts[1]
            size = os.stat(file).st_size
    except (StoreError, SettingError):
        return None
    if not isinstance(run, RunPart) or (run.seq, run.digest) != (row.seq, row.digest):
        return None
    events, blobs = (sum(isinstance(part, kind) for part in parts) for kind in (EventPart, BlobPart))
    return Archived(run_id=row.run_id, place=remote.shown(target), events=events, blobs=blobs, bytes=size)


class _Count:
    """Counts what passes, and seals it with the last line."""

    def __init__(self) -> None:
        self.events = self.blobs = 0

    def through(self, parts: Iterable[Part]) -> Iterator[bytes]:
        digest = sha256()
        for part in parts:
            self.events += isinstance(part, EventPart)
            self.blobs += isinstance(part, BlobPart)
            line = _encode(part)
            digest.update(line + b"\n")
            yield line
        yield _encode(End(events=self.events, digest=digest.hexdigest()))


def _parts(store: Store, row: RunRow) -> Iterator[Part]:
    run_id = row.run_id
    yield Head(run_id=run_id, flow=row.flow, status=row.status, store=store.url, archived_at=store.now())
    yield _run_part(store, row)
    snapshots = [_snapshot(store, run_id, kept.seq) for kept in store.upkeep.snapshots(run_id)]
    snapshots = [snapshot for snapshot in snapshots if snapshot.seq <= row.seq]
    for fingerprint in sorted(fingerprints(store, row)):
        definition = store.definition(fingerprint)
        if definition is not None:
            yield DefinitionPart(fingerprint=fingerprint, body=definition)
    for digest in sorted(references(store, row)):
        yield BlobPart(digest=digest, body=store.blobs.get(digest))
    for snapshot in snapshots:
        yield SnapshotPart(**msgspec.structs.asdict(snapshot))
    for found in rows_of(store, row):
        packed = found.body if found.body.startswith(_ZSTD) else b""
        body = "" if packed else found.body.decode()
        fields = msgspec.structs.asdict(found) | {"body": body, "packed": packed}
        yield EventPart(**fields)


def _run_part(store: Store, row: RunRow) -> RunPart:
    new = NewRun(**{name: getattr(row, name) for name in NewRun.__struct_fields__})
    view = View(**{name: getattr(row, name) for name in View.__struct_fields__})
    trimmed = store.upkeep.trimmed(row.run_id)
    return RunPart(new=new, view=view, seq=row.seq, digest=row.digest, trimmed=trimmed)


def _snapshot(store: Store, run_id: str, seq: int) -> Snapshot:
    found = store.snapshot(run_id, [(seq, seq)])
    return found if found is not None else Snapshot(1 << 62, b"")  # dropped meanwhile


def rows_of(store: Store, row: RunRow) -> Iterator[Row]:
    """The rows of a run as its row says, a page at a time."""
    after = 0
    while after < row.seq and (page := store.events(row.run_id, after, row.seq, limit=_PAGE)):
        yield from page
        after = page[-1].seq


def references(store: Store, row: RunRow) -> set[str]:
    """The blobs that the events and snapshots of a run refer to."""
    found: set[str] = set()
    for event in rows_of(store, row):
        found.update(oversize.references(unpack(event.body)).values())
    for kept in store.upkeep.snapshots(row.run_id):
        found.update(oversize.references(unpack(_snapshot(store, row.run_id, kept.seq).body)).values())
    return found


def fingerprints(store: Store, row: RunRow) -> set[str]:
    """The definitions that a run refers to: its own, those it began with, and those it changed to."""
    found = {row.fingerprint}
    for event in store.events(row.run_id, kinds=("RunCreated", "FlowChanged")):
        found.add(open_row(event, store.blobs).event.fingerprint)
    for kept in store.upkeep.snapshots(row.run_id):
        if kept.base:
            body = open_body(_snapshot(store, row.run_id, kept.seq).body, store.blobs)
            found.add(run_state.load(body).fingerprint)
    return found


# --- reading -----------------------------------------------------------------------------------------


def read(file: str | os.PathLike[str]) -> Iterator[Part]:
    """The parts of an archive. Raises `StoreCorrupt` for one that is damaged, cut or of a newer version; only when the last part
    has come, all of it is known to be whole.
    """
    digest, events, last = sha256(), 0, None
    for number, line in enumerate(archives.read_lines(file)):
        try:
            last = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
            raise StoreCorrupt(
                f"{file}: line {number + 1} is not of an archive of Holdfast ({fault})."
            ) from None
        if (number == 0) != isinstance(last, Head):
            raise StoreCorrupt(f"{file} is no archive of one run. `holdfast archive` makes them.")
        if isinstance(last, Head) and last.version > VERSION:
            raise StoreCorrupt(
                f"{file} has version {last.version}; this Holdfast knows {VERSION}. Use a newer one."
            )
        if isinstance(last, End) and (last.events, last.digest) != (events, digest.hexdigest()):
            raise StoreCorrupt(f"{file} is not what was written. Take another copy of it.")
        events += isinstance(last, EventPart)
        digest.update(line + b"\n")
        yield last
    if not isinstance(last, End):
        raise StoreCorrupt(f"{file} is cut off. Take another copy of it.")


def put_back(store: Store, place: str | os.PathLike[str]) -> str:
    """Put an archived run into a store: its id. Again does nothing. Raises `RunExists` where the id is taken by another run,
    `StoreCorrupt` for an archive that is not whole.
    """
    with _local(os.fspath(place)) as file:
        for _ in read(file):
            pass  # nothing is written before all of it is known to be whole
        head, run = _first_two(file)
        row = _known(store, head.run_id)
        if row is not None and (row.seq, row.digest) != (run.seq, run.digest):
            raise RunExists(head.run_id, "log")
        definitions: dict[str, bytes] = {}
        rows: list[Row] = []
        snapshots: list[Snapshot] = []
        for part in read(file):
            match part:
                case DefinitionPart():
                    definitions[part.fingerprint] = part.body
                case BlobPart():
                    store.blobs.put(part.digest, part.body)
                case SnapshotPart():
                    snapshots.append(Snapshot(part.seq, part.body, part.base, part.digest))
                case EventPart():
                    rows.append(part.row())
                case _:
                    pass
        _require_chain(file, head.run_id, run, rows, snapshots)
        store.upkeep.adopt(head.run_id, run.trimmed, definitions)
        if row is None:
            _append(store, head.run_id, run, rows, snapshots)
            store.upkeep.adopt(head.run_id, run.trimmed, definitions)
    return head.run_id


def _first_two(file: str) -> tuple[Head, RunPart]:
    parts = read(file)
    head, run = next(parts), next(parts)
    if not isinstance(head, Head) or not isinstance(run, RunPart):
        raise StoreCorrupt(f"{file} is no archive of one run. `holdfast archive` makes them.")
    return head, run


def _known(store: Store, run_id: str) -> RunRow | None:
    try:
        return store.run(run_id)
    except RunNotFound:
        return None


def _require_chain(file: str, run_id: str, run: RunPart, rows: list[Row], snapshots: list[Snapshot]) -> None:
    """What is put back must be a log: the digests of an archive could be made by anybody, those of its events not."""
    base = next((snapshot for snapshot in snapshots if snapshot.base), None)
    after, digest = (base.seq, base.digest) if base is not None else (0, b"")
    broken = broken_at(run_id, rows, after=after, digest=digest)
    if broken is not None or not rows or (rows[-1].seq, rows[-1].digest) != (run.seq, run.digest):
        told = broken[1] if broken is not None else "its log does not end where its run row says"
        raise StoreCorrupt(f"{file}: run {run_id!r} is not what was written: {told}.")


def _append(store: Store, run_id: str, run: RunPart, rows: list[Row], snapshots: list[Snapshot]) -> None:
    append = Append(
        run_id=run_id,
        expected_seq=rows[0].seq - 1,
        rows=tuple(rows),
        view=run.view,
        create=run.new,
        snapshots=tuple(snapshots),
    )
    (verdict,) = store.append([append])
    if verdict is not None:
        raise verdict


# --- places ------------------------------------------------------------------------------------------


def _named(place: str, row: RunRow) -> tuple[str, bool]:
    """Where the archive of a run goes, and whether it is named for the run, in a folder."""
    name = f"{row.run_id}-{row.digest.hex()[:12]}{ENDING}"
    if _URL.match(place) and not place.startswith("file://"):
        return (f"{place}{name}", True) if place.endswith("/") else (place, False)
    path = Path(place.removeprefix("file://")).expanduser().absolute()
    in_folder = place.endswith("/") or path.is_dir()
    return str(path / name if in_folder else path), in_folder


@contextmanager
def _temporary(target: str) -> Iterator[str]:
    """A file to write to: beside the target, or anywhere where that is far away."""
    folder = None if _URL.match(target) else Path(target).parent
    if folder is not None:
        try:
            disk.make_folder(folder)
        except OSError as fault:
            raise StoreError(f"{folder} cannot be made: {fault.strerror}. Choose another place.") from fault
    handle, file = tempfile.mkstemp(prefix=".holdfast-", suffix=ENDING, dir=folder)  # 0600
    os.close(handle)
    try:
        yield file
    finally:
        with suppress(FileNotFoundError):
            os.unlink(file)


@contextmanager
def _local(place: str) -> Iterator[str]:
    """A file on this machine that holds what is at a place."""
    if not _URL.match(place) or place.startswith("file://"):
        yield str(Path(place.removeprefix("file://")).expanduser())
        return
    with _temporary(place) as file:
        remote.download(place, file)
        yield file
