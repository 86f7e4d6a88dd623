"""Writes a run, with everything that the store has about it, into one file (an archive), and puts an archived run back into a
store.

An archive is a file of JSON lines, compressed with zstd. The first line says what it is; then come the run, the definitions of
its flow, the blobs it refers to, its snapshots and its events, all as stored; the last line has the number of events and the
digest of all lines before. Bytes are in base64. An archive is complete in itself and can be read without a store: `zstdcat FILE`.

Invariant: a run that was put back equals the run that was archived: the same rows, digests and blobs, so `verify` gives the
same result for both. No engine holds it, and its first lease has a new fence, higher than those in its log. Another process may
compact a run while it is archived: so `archive` reads the file back before it returns, and an incomplete file never gets the
name of an archive.

An archive may come from anywhere, so it is put into a store of its own first, where its row and its log are compared, as `verify`
does; only then something is written to the store that it is meant for. That is done in a process of its own, with a limit on its
memory, unless the archive is small: a few kilobytes of zstd can be a value that takes gigabytes as Python objects.

Only a piece of an archive is in memory at a time. A long log is put back in several appends. Until the last append the status
of the run is `cancelled`, so that no engine resumes an incomplete run; its error says why. If the process dies in between,
putting the run back again continues where that process stopped.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import msgspec

from holdfast.core import run_state
from holdfast.core.events import KINDS
from holdfast.core.kinds import TAKES_OVER
from holdfast.errors import (
    RunExists,
    RunNotFound,
    SchemaTooNew,
    SettingError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnusable,
)
from holdfast.reading.verification import LogVerdict, is_definition, verify
from holdfast.storage import oversize
from holdfast.storage.contract import Append, NewRun, Row, RunRow, Snapshot, Store, View
from holdfast.storage.files import archives, copies, disk, remote
from holdfast.storage.files.disk import NO_SPACE
from holdfast.storage.leases import this_process
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import broken_at, open_body, open_row, unpack, unpacked_size
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.upkeep import WHOLE, Trimmed

VERSION = 1
ENDING = ".holdfast.zst"
_PAGE = 500
_PIECE_ROWS, _PIECE_BYTES = 5_000, 16 * 1024 * 1024
"""The most rows and bytes that are put back in one append."""
_TRIAL_BYTES = 32 * 1024 * 1024
"""The largest archive that is put into a store in memory to be checked."""
_TRIAL_HERE_BYTES = 2 * 1024 * 1024
"""How long the definitions, snapshots and events of an archive are together at most, decompressed, if this process checks them.
As Python objects they take up to thirty times as much, and a few copies of them are made."""
_TRIAL_MEMORY_MIN = 512 * 1024 * 1024
_TRIAL = (
    "import json, sys; given = json.loads(sys.argv[1]); sys.path[:] = given['path']; "
    "from holdfast.upkeep.archive import check_apart; check_apart(given['file'], given['memory'])"
)
_OUT_OF_MEMORY = 3
"""The exit code of a process that could not check an archive within its limit."""
_NAMED_MAX = 3
_UNFINISHED = "It is being put back from an archive. If nobody does so any more, put it back again."
_TRIES = 5
_NAME_A_DEFINITION = tuple(name for name, cls in KINDS.items() if "fingerprint" in cls.__struct_fields__)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_ZSTD = b"\x28\xb5\x2f\xfd"


class _Part(msgspec.Struct, frozen=True, kw_only=True, tag_field="part"):
    """One line of an archive."""


class Head(_Part, frozen=True, kw_only=True, tag="archive"):
    """The first line of an archive: which run it contains, and when and from which store it was made."""

    version: int = VERSION
    run_id: str
    flow: str
    status: str
    store: str
    archived_at: float


class RunPart(_Part, frozen=True, kw_only=True, tag="run"):
    """The line of an archive with the row of the run."""

    new: NewRun
    view: View
    seq: int
    digest: bytes
    trimmed: Trimmed


class DefinitionPart(_Part, frozen=True, kw_only=True, tag="definition"):
    """A line of an archive with a flow definition that the log refers to."""

    fingerprint: str
    body: bytes


class BlobPart(_Part, frozen=True, kw_only=True, tag="blob"):
    """A line of an archive with a blob: a value that was too large for the log."""

    digest: str
    body: bytes


class SnapshotPart(_Part, frozen=True, kw_only=True, tag="snapshot"):
    """A line of an archive with a snapshot, or with the base of the log."""

    seq: int
    base: bool
    digest: bytes
    body: bytes


class EventPart(_Part, frozen=True, kw_only=True, tag="event", omit_defaults=True):
    """A line of an archive with an event. The event's data are in `body` as text, or in `packed` as compressed bytes."""

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
    """The last line of an archive, which proves that the archive is complete."""

    events: int
    digest: str
    """SHA-256 of all lines before this one."""


Part: TypeAlias = Head | RunPart | DefinitionPart | BlobPart | SnapshotPart | EventPart | End
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Part).decode


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """The place and the size of a run's archive."""

    run_id: str
    place: str
    events: int
    blobs: int
    bytes: int


# --- writing -----------------------------------------------------------------------------------------


def archive(store: Store, run_id: str, place: str | os.PathLike[str]) -> Archived:
    """Write a run to a new file. `place` is a path or an fsspec URL, or a folder of either kind (ending in `/`), in which the
    file is named for the run. Returns when the file is durable and was read back. Raises `SettingError` if the file exists.
    """
    for _ in range(_TRIES):
        row, base = store.run(run_id), store.upkeep.trimmed(run_id).base
        target, own = _choose_target(os.fspath(place), row)
        if own and (there := _already(target, row, base)) is not None:
            return there
        if not own and not _URL.match(target):
            copies.refuse_taken(Path(target), "an archive", f"{run_id}.holdfast.zst")
        with _report_failure(run_id, target), _temporary(target) as file:
            content = _write(store, row, base, file)
            if content is None:
                continue
            # Another process may have archived the run meanwhile, and may rely on its file.
            there = _already(target, row, base) if own else None
            written = _describe_archive(run_id, file, content)
            return there or msgspec.structs.replace(written, place=_place(file, target, replace=own))
    raise StoreBusy(
        f"run {run_id!r} was not archived, because it was compacted several times during the attempt. Nothing was changed; "
        "try again."
    )


def _write(store: Store, row: RunRow, base: int, file: str) -> _Content | None:
    """Write a run to a file, and read it back. Returns None if the run was compacted meanwhile, because the file may then mix old
    and new parts. Raises `RunNotFound` if the run was deleted meanwhile.
    """
    try:
        archives.write_lines(file, _seal(_parts(store, row)))
        content = _whole(file)
        _refuse_contradiction(file, content)
    except StoreError as fault:
        store.run(row.run_id)
        if store.upkeep.trimmed(row.run_id).base != base:
            return None
        if isinstance(fault, _TooLarge):
            raise StoreError(
                f"run {row.run_id!r} was not archived, because the check of its archive needs more than "
                f"{fault.memory // 1_000_000} MB of memory, half of what is free here. Archive it on a machine with more free "
                "memory; `holdfast backup FILE` keeps the whole store."
            ) from None
        if isinstance(
            fault, _NotALog
        ):  # the log in the store is damaged; the caller does not know this temporary file
            raise StoreCorrupt(
                f"run {row.run_id!r} was not archived, because its log is damaged: {fault.why}. `holdfast verify {row.run_id}` "
                "says more."
            ) from None
        raise
    store.run(row.run_id)
    return content if store.upkeep.trimmed(row.run_id).base == base else None


def _place(file: str, target: str, *, replace: bool) -> str:
    """Move or upload a finished archive to its target. Returns the target as it may be printed, without secrets."""
    if not _URL.match(target):
        copies.name_file(file, Path(target), replace=replace)
        return target
    told = remote.upload(target, file, replace=replace)
    with _local(target) as copy:
        _whole(copy)  # an incomplete upload must be noticed before the run is deleted
    return told


@contextmanager
def _report_failure(run_id: str, target: str) -> Iterator[None]:
    """Turn an `OSError` of the archive's place into a `StoreError` that says that the run is unchanged."""
    try:
        yield
    except OSError as fault:
        kind = StoreFull if fault.errno in NO_SPACE else StoreUnusable
        raise kind(
            f"run {run_id!r} was not archived to {remote.shown(target)}: {fault.strerror or fault}. The run is "
            "unchanged; choose another place for the archive, or free some space there."
        ) from fault


def _already(target: str, row: RunRow, base: int) -> Archived | None:
    """Return the archive of the same log that already exists at the target, or None. It counts only if it is complete and has
    at least the events that the store still has. Such an archive was left by a process that was killed right after writing it.
    """
    try:
        with _local(target) as file:
            there = _whole(file)
            if (there.run.seq, there.run.digest) != (row.seq, row.digest) or there.base > base:
                return None
            if not _URL.match(target):
                copies.keep(Path(file))
            return msgspec.structs.replace(
                _describe_archive(row.run_id, file, there), place=remote.shown(target)
            )
    except (StoreError, SettingError, OSError):
        return None


def _describe_archive(run_id: str, file: str, content: _Content) -> Archived:
    size = os.stat(file).st_size
    return Archived(run_id=run_id, place=file, events=content.events, blobs=content.blobs, bytes=size)


def _seal(parts: Iterable[Part]) -> Iterator[bytes]:
    """Encode the parts of an archive as lines, and add the last line with the number of events and the digest of all lines
    before.
    """
    digest, events = sha256(), 0
    for part in parts:
        events += isinstance(part, EventPart)
        line = _encode(part)
        digest.update(line + b"\n")
        yield line
    yield _encode(End(events=events, digest=digest.hexdigest()))


def _parts(store: Store, row: RunRow) -> Iterator[Part]:
    run_id = row.run_id
    yield Head(run_id=run_id, flow=row.flow, status=row.status, store=store.url, archived_at=store.now())
    yield _run_part(store, row)
    found = [_snapshot(store, run_id, kept.seq) for kept in store.upkeep.snapshots(run_id)]
    snapshots = [snapshot for snapshot in found if snapshot is not None and snapshot.seq <= row.seq]
    for fingerprint in sorted(fingerprints(store, row)):
        definition = store.definition(fingerprint)
        if definition is not None:
            yield DefinitionPart(fingerprint=fingerprint, body=definition)
    # Another process may drop one of these snapshots now, and then nothing that is read later names its blobs.
    named = {digest for snapshot in snapshots for digest in _find_references(snapshot.body)}
    for digest in sorted(references(store, row) | named):
        yield BlobPart(digest=digest, body=store.blobs.get(digest))
    for snapshot in snapshots:
        yield SnapshotPart(**msgspec.structs.asdict(snapshot))
    for event in rows_of(store, row):
        packed = event.body if event.body.startswith(_ZSTD) else b""
        body = "" if packed else event.body.decode()
        fields = msgspec.structs.asdict(event) | {"body": body, "packed": packed}
        yield EventPart(**fields)


def _run_part(store: Store, row: RunRow) -> RunPart:
    new = NewRun(**{name: getattr(row, name) for name in NewRun.__struct_fields__})
    view = View(**{name: getattr(row, name) for name in View.__struct_fields__})
    trimmed = store.upkeep.trimmed(row.run_id)
    return RunPart(new=new, view=view, seq=row.seq, digest=row.digest, trimmed=trimmed)


def _snapshot(store: Store, run_id: str, seq: int) -> Snapshot | None:
    """Return the snapshot of this event, or None if it was deleted after it was listed."""
    return store.snapshot(run_id, [(seq, seq)])


def rows_of(store: Store, row: RunRow) -> Iterator[Row]:
    """Yield the event rows of a run, up to the end that its run row names, reading a page at a time."""
    after = 0
    while after < row.seq and (page := store.events(row.run_id, after, row.seq, limit=_PAGE)):
        yield from page
        after = page[-1].seq


def references(store: Store, row: RunRow) -> set[str]:
    """Return the digests of the blobs that the events and snapshots of a run refer to."""
    found: set[str] = set()
    after = 0
    while page := store.upkeep.referring(row.run_id, after, _PAGE):
        found |= {digest for seq, body in page if seq <= row.seq for digest in _find_references(body)}
        after = page[-1][0]
    for kept in store.upkeep.snapshots(row.run_id):
        snapshot = _snapshot(store, row.run_id, kept.seq)
        if snapshot is not None:
            found |= _find_references(snapshot.body)
        elif kept.base:  # a later base has replaced it, which is not in this list
            return found | references(store, row)
    return found


def _find_references(body: bytes) -> set[str]:
    return set(oversize.references(unpack(body)).values())


def fingerprints(store: Store, row: RunRow) -> set[str]:
    """Return the fingerprints of the flow definitions that a run refers to: its current one and all earlier ones."""
    found = {row.fingerprint}
    for event in store.events(row.run_id, kinds=_NAME_A_DEFINITION):
        found.add(open_row(event, store.blobs).event.fingerprint)
    for kept in store.upkeep.snapshots(row.run_id):
        if kept.base:
            base = _snapshot(store, row.run_id, kept.seq)
            if base is None:  # a later base has replaced it, which is not in this list
                return found | fingerprints(store, row)
            found.add(run_state.load(open_body(base.body, store.blobs)).fingerprint)
    return found


# --- reading -----------------------------------------------------------------------------------------


def read(file: str | os.PathLike[str]) -> Iterator[Part]:
    """Yield the parts of an archive. Raises `StoreCorrupt` if it is damaged, truncated or of a newer version. Only when the last
    part has been read is the archive known to be complete.
    """
    digest, events, last = sha256(), 0, None
    for number, line in enumerate(archives.read_lines(file)):
        try:
            last = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
            raise StoreCorrupt(
                f"{file} is not an archive of Holdfast: line {number + 1} cannot be read ({fault}). Use another copy of it."
            ) from None
        if (number == 0) != isinstance(last, Head):
            raise StoreCorrupt(
                f"{file} is not the archive of one run. `holdfast archive RUN --to FILE` makes one."
            )
        if isinstance(last, Head) and last.version > VERSION:
            raise StoreCorrupt(
                f"{file} is an archive of version {last.version}, but this Holdfast knows versions up to {VERSION}. Use "
                "the version of Holdfast that wrote the archive, or a newer one."
            )
        if isinstance(last, End) and (last.events, last.digest) != (events, digest.hexdigest()):
            raise StoreCorrupt(f"the archive {file} is damaged. Use another copy of it.")
        events += isinstance(last, EventPart)
        digest.update(line + b"\n")
        yield last
    if not isinstance(last, End):
        raise StoreCorrupt(f"the archive {file} is truncated. Use another copy of it.")


def put_back(
    store: Store, place: str | os.PathLike[str], *, on_known: Callable[[], None] = lambda: None
) -> str:
    """Put an archived run back into a store. Returns its id. If the store has the same run already, only `on_known` is called.
    Raises `RunExists` if another run has that id, and `StoreCorrupt` if the archive is not complete.
    """
    with _local(os.fspath(place)) as file:
        found = _whole(file)  # nothing is written before the whole archive has been checked
        row = _find_row(store, found.run_id)
        unfinished = row is not None and (row.status, row.error) == ("cancelled", _UNFINISHED)
        if row is not None and not unfinished:
            _require_same(store, row, found.run)
        _refuse_contradiction(file, found)
        _refuse_other_definitions(file, found)
        _put(store, file, found, None if unfinished else row, row)
        if row is not None and not unfinished:
            on_known()
    return found.run_id


def _put(store: Store, file: str, found: _Content, known: RunRow | None, row: RunRow | None) -> None:
    """Write an archive that was checked to a store. `known` is the row of the same run that is already complete there, and `row`
    is the one that is there in any state.
    """
    run_id, trimmed = found.run_id, found.run.trimmed
    for part in read(file):
        if isinstance(part, BlobPart):
            store.blobs.put(part.digest, part.body)
    if known is None or _is_begun(store, known, found.first):
        store.upkeep.adopt(run_id, trimmed, found.definitions, fence=found.take_ups)
    if known is None:
        _append(store, file, found, row)
        store.upkeep.adopt(run_id, trimmed, found.definitions, fence=found.take_ups)


def _refuse_contradiction(file: str, found: _Content) -> None:
    """Raise `StoreCorrupt` if the row of an archived run is not what its log says. A blob may be read for any number of events,
    so an archive with blobs is never small.
    """
    is_small = found.unpacked <= _TRIAL_HERE_BYTES and not found.blobs
    verdict = _check(file, found) if is_small else _check_in_process(file, found.run_id)
    if verdict.too_new:
        raise SchemaTooNew(f"run {found.run_id!r}: {verdict.problems[0]}")
    if verdict.problems:
        raise _NotALog(file, found.run_id, "; ".join(verdict.problems[:_NAMED_MAX]))


def _check(file: str, found: _Content) -> LogVerdict:
    """Put an archive into a store of its own, in memory or in a temporary file if it is large, and verify it there."""
    with ExitStack() as opened:
        if found.bytes <= _TRIAL_BYTES:
            store: Store = MemoryStore()
        else:
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-"))
            store = SqliteStore(Path(folder) / "archived.db")
        opened.callback(store.close)
        _put(store, file, found, None, None)
        # A store may lack the definition of a flow, and then its archives lack it too.
        row = store.run(found.run_id)
        return verify(store, found.run_id, row=row, definitions={row.fingerprint: []})


def _check_in_process(file: str, run_id: str) -> LogVerdict:
    """Check an archive in a process of its own, which may take half of the memory that is free."""
    memory = max(_free_memory() // 2, _TRIAL_MEMORY_MIN)
    given = json.dumps({"path": [os.path.abspath(path) for path in sys.path], "file": file, "memory": memory})
    ended = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", _TRIAL, given], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if ended.returncode == 0:
        return msgspec.json.decode(ended.stdout, type=LogVerdict)
    if ended.returncode in (_OUT_OF_MEMORY, -signal.SIGKILL):  # the system may have killed it
        raise _TooLarge(file, run_id, memory)
    said = ended.stderr.decode(errors="replace").strip().splitlines()
    raise StoreError(
        f"the archive {file} of run {run_id!r} was not checked, because the process for it ended with exit code "
        f"{ended.returncode}{': ' + said[-1] if said else ''}. Nothing was changed; try again."
    )


def check_apart(file: str, memory: int) -> None:
    """Check an archive that is complete, in the process that was started for it, with at most this many bytes of memory. Prints
    the verdict.
    """
    limit = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    _, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))
    with suppress(
        OSError
    ):  # if the system runs out of memory all the same, it kills this process and not its parent
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        verdict = _check(file, _whole(file))
    except StoreCorrupt as fault:
        verdict = LogVerdict(run_id="", events=0, problems=[str(fault)])
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    sys.stdout.buffer.write(msgspec.json.encode(verdict))


def _free_memory() -> int:
    """Return how many bytes of memory processes can still get; all memory of the machine if the system does not say it."""
    with suppress(OSError, ValueError, IndexError):
        for told in Path("/proc/meminfo").read_text().splitlines():
            if told.startswith("MemAvailable:"):
                return int(told.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _refuse_other_definitions(file: str, found: _Content) -> None:
    """Raise `StoreCorrupt` if a definition is not the one that its fingerprint names: all runs of that flow would share it."""
    for named, body in found.definitions.items():
        if not is_definition(body, named):
            raise _NotALog(
                file, found.run_id, f"the definition of its flow ({named[:12]}) is not what was written"
            )


class _Content(msgspec.Struct, kw_only=True):
    """A summary of an archive: the run and its definitions, the number of its events and blobs, and where its log begins."""

    run_id: str
    run: RunPart
    definitions: dict[str, bytes] = {}
    base: int = 0
    """The number of the event after which the log begins; 0 if the log is complete."""
    first: int = 0
    """The seq of the first event."""
    events: int = 0
    take_ups: int = 0
    """How often the run was claimed according to its log, each time with a new fence."""
    blobs: int = 0
    bytes: int = 0
    """How many bytes its definitions, blobs, snapshots and events have, as far as they are stored."""
    unpacked: int = 0
    """How many bytes its definitions, snapshots and events have when they are decompressed."""


def _whole(file: str) -> _Content:
    """Read an archive to its end, and return a summary of its content. Raises `StoreCorrupt` if its log is not what was
    written.
    """
    parts = read(file)
    head, run = next(parts, None), next(parts, None)
    if not isinstance(head, Head) or not isinstance(run, RunPart):
        raise StoreCorrupt(
            f"{file} is not the archive of one run. `holdfast archive RUN --to FILE` makes one."
        )
    found = _Content(run_id=head.run_id, run=run)
    seq, digest, defined = 0, b"", 0
    for part in parts:
        match part:
            case DefinitionPart():
                found.definitions[part.fingerprint] = part.body
                found.bytes += len(part.body)
                found.unpacked += max(len(part.body), unpacked_size(part.body))
                defined += len(part.body)
                if defined > archives.LINE_BYTES_MAX:  # they are all in memory
                    raise _NotALog(file, found.run_id, "its flow definitions are too large")
            case BlobPart():
                if sha256(part.body).hexdigest() != part.digest:
                    raise _NotALog(file, found.run_id, f"the blob {part.digest[:12]} has another content")
                found.blobs += 1
                found.bytes += len(part.body)
            case SnapshotPart():
                _refuse_bomb(file, found.run_id, part.body)
                found.bytes += len(part.body)
                found.unpacked += max(len(part.body), unpacked_size(part.body))
                if part.base and not found.events:
                    found.base = seq = part.seq
                    digest = part.digest
            case EventPart():
                _refuse_bomb(file, found.run_id, part.packed)
                found.bytes += len(part.packed) + len(part.body)
                found.unpacked += len(part.body) + max(len(part.packed), unpacked_size(part.packed))
                # The digest of an archive is easy to forge, but the digests of its events are not.
                broken = broken_at(found.run_id, [part.row()], after=seq, digest=digest)
                if broken is not None:
                    raise _NotALog(file, found.run_id, broken[1])
                found.first = found.first or part.seq
                found.events += 1
                found.take_ups += part.kind in TAKES_OVER
                seq, digest = part.seq, part.digest
            case _:
                pass
    if not found.events or (seq, digest) != (run.seq, run.digest):
        raise _NotALog(file, found.run_id, "the log does not end at the event that the run row names")
    if run.trimmed.base not in (0, found.base):  # a store would not show the events up to there
        raise _NotALog(file, found.run_id, f"its log does not begin after event {run.trimmed.base}")
    return found


def _refuse_bomb(file: str, run_id: str, packed: bytes) -> None:
    """Raise `StoreCorrupt` if compressed data would be longer than any that an archive may have."""
    if packed.startswith(_ZSTD) and unpacked_size(packed) > archives.LINE_BYTES_MAX:
        raise _NotALog(file, run_id, "the data of an event or snapshot are too large when decompressed")


class _NotALog(StoreCorrupt):
    """An archive is complete, but its events are not a valid log."""

    def __init__(self, file: str, run_id: str, why: str) -> None:
        super().__init__(
            f"the archive {file} is damaged: run {run_id!r} is not what was written: {why}. Use another copy of it."
        )
        self.why = why


class _TooLarge(StoreError):
    """An archive could not be checked within the memory that its process may take."""

    def __init__(self, file: str, run_id: str, memory: int) -> None:
        super().__init__(
            f"the archive {file} was not put back, because the check of run {run_id!r} needs more than {memory // 1_000_000} "
            "MB of memory, half of what is free here. Nothing was written. Put an archive that you trust back on a machine with "
            "more free memory; one from elsewhere may have been made to fill it."
        )
        self.memory = memory


def _find_row(store: Store, run_id: str) -> RunRow | None:
    try:
        return store.run(run_id)
    except RunNotFound:
        return None


def _require_same(store: Store, row: RunRow, run: RunPart) -> None:
    """Raise `RunExists` if the store already has a run with this id that has another log, or fewer events than the archive."""
    base = store.upkeep.trimmed(row.run_id).base
    if (row.seq, row.digest) != (run.seq, run.digest):
        differs = "with another log"
    elif base > run.trimmed.base:
        differs = f"compacted, without its events up to {base}"
    else:
        return
    told = (
        f"run {row.run_id!r} is already in {store.url}, {differs}, and was not replaced. Put the archive into "
        "another store, named with --store."
    )
    error = RunExists(row.run_id, "log")
    error.args = (told,)
    raise error


def _is_begun(store: Store, row: RunRow, seq: int) -> bool:
    """Return whether the run may come from a `put_back` that was killed before it recorded at which event the log begins."""
    first = store.events(row.run_id, limit=1)
    return store.upkeep.trimmed(row.run_id) == WHOLE and [one.seq for one in first] == [seq]


class _Piece(msgspec.Struct):
    """Consecutive event rows and the snapshots among them, to be put back in one append."""

    rows: list[Row] = []
    snapshots: list[Snapshot] = []
    size: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= _PIECE_ROWS or self.size >= _PIECE_BYTES


def _pieces(file: str, row: RunRow | None) -> Iterator[_Piece]:
    """Yield the log of an archive in pieces, after the events that the store already has. In an archive all snapshots come before
    the events, in the same order, so a second reader of the file delivers them alongside the events.
    """
    after = 0 if row is None else row.seq
    snapshots = (part for part in read(file) if isinstance(part, SnapshotPart) and part.seq > after)
    snapshot = next(snapshots, None)
    piece = _Piece()
    for part in read(file):
        if not isinstance(part, EventPart):
            continue
        if row is not None and part.seq == after and part.digest != row.digest:
            raise _other_log(row.run_id, file)
        if part.seq <= after:
            continue
        piece.rows.append(part.row())
        piece.size += len(piece.rows[-1].body)
        while snapshot is not None and snapshot.seq <= part.seq:
            piece.snapshots.append(Snapshot(snapshot.seq, snapshot.body, snapshot.base, snapshot.digest))
            piece.size += len(snapshot.body)
            snapshot = next(snapshots, None)
        if piece.is_full:
            yield piece
            piece = _Piece()
    if piece.rows:
        yield piece


def _other_log(run_id: str, file: str) -> RunExists:
    told = (
        f"run {run_id!r} is being put back from another archive, not from {file}; nothing was written. Use that "
        "other archive, or another store, named with --store."
    )
    error = RunExists(run_id, "log")
    error.args = (told,)
    return error


def _append(store: Store, file: str, found: _Content, row: RunRow | None) -> None:
    """Append the log, or the missing rest of it: in one append if it is one piece, otherwise in several under a lease."""
    pieces = _pieces(file, row)
    piece, following = next(pieces, None), next(pieces, None)
    new = Append(run_id=found.run_id, expected_seq=0, rows=(), view=found.run.view, create=found.run.new)
    if row is None and following is None and piece is not None:
        _write_piece(store, new, piece)
        return
    holder = this_process()
    store.renew(holder)
    try:
        lease = None if row is None else store.claim(found.run_id, holder)
        fence = 1 if lease is None else lease.fence
        append = msgspec.structs.replace(new, holder=holder.id, fence=fence)
        if lease is not None:
            append = msgspec.structs.replace(append, create=None)
        while piece is not None:
            store.renew(holder)
            last = following is None
            view = found.run.view if last else _unfinished_view(found.run.view, piece.rows[-1].seq)
            _write_piece(store, msgspec.structs.replace(append, view=view, release=last), piece)
            append = msgspec.structs.replace(append, create=None)
            piece, following = following, next(pieces, None)
    finally:
        with suppress(StoreError):  # then the lease expires by itself
            store.renew(msgspec.structs.replace(holder, ttl_s=0.0))


def _unfinished_view(view: View, seq: int) -> View:
    """Return the fields of the run's row while its log has been put back only up to this event: the run is shown as cancelled."""
    rewinds = tuple(rewind for rewind in view.rewinds if max(rewind) <= seq)
    return msgspec.structs.replace(
        view, status="cancelled", error=_UNFINISHED, active=(), rewinds=rewinds, due_at=None
    )


def _write_piece(store: Store, append: Append, piece: _Piece) -> None:
    rows, snapshots = tuple(piece.rows), tuple(piece.snapshots)
    seq = rows[0].seq - 1
    (verdict,) = store.append(
        [msgspec.structs.replace(append, expected_seq=seq, rows=rows, snapshots=snapshots)]
    )
    if verdict is not None:
        raise verdict


# --- places ------------------------------------------------------------------------------------------


def _choose_target(place: str, row: RunRow) -> tuple[str, bool]:
    """Return the path or URL of a run's archive, and True if `place` is a folder, so that the file is named after the run."""
    name = f"{row.run_id}-{row.digest.hex()[:12]}{ENDING}"
    if _URL.match(place) and not place.startswith("file://"):
        return (f"{place}{name}", True) if place.endswith("/") else (place, False)
    path = Path(place.removeprefix("file://")).expanduser().absolute()
    in_folder = place.endswith("/") or path.is_dir()
    return str(path / name if in_folder else path), in_folder


@contextmanager
def _temporary(target: str) -> Iterator[str]:
    """Yield a temporary file: in the folder of the target, or in the system's temporary folder if the target is a URL."""
    folder = None if _URL.match(target) else Path(target).parent
    if folder is not None:
        disk.make_folder(folder)
    try:
        handle, file = tempfile.mkstemp(prefix=".holdfast-", suffix=ENDING, dir=folder)  # 0600
    except OSError as fault:
        if folder is not None:
            raise  # `_report_failure` adds the place
        raise StoreUnusable(
            f"a temporary file cannot be created: {fault.strerror or fault}. Set TMPDIR to a folder with free space."
        ) from fault
    os.close(handle)
    try:
        yield file
    finally:
        with suppress(FileNotFoundError):
            os.unlink(file)


@contextmanager
def _local(place: str) -> Iterator[str]:
    """Yield a local file with the content of a place: the file itself, or a download of the URL."""
    if not _URL.match(place) or place.startswith("file://"):
        yield str(Path(place.removeprefix("file://")).expanduser())
        return
    with _temporary(place) as file:
        remote.download(place, file)
        yield file
