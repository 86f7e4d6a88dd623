"""Writes receipts, handoffs and run.json into the folder of a run, after the commits that they describe.

The scribe works on a separate thread and reads new events from the log, so it neither slows a run nor keeps more of it in memory
than it needs; the work after a commit depends on what the commit changed, not on the length of the log. It never fails a run: a
file that cannot be written (full disk, read-only folder) is reported in one warning and tried again with the next write, when the
engine closes, and when the next engine opens.

- A file appears complete or not at all. Its bytes are those that `receipts` makes from the log: making it again changes nothing.
- run.json is written last. It lists every file with its size and digest, and the last event that was written. An engine checks
  it when it opens: if run.json is older than the log, or a file is missing or has another size, the folder is made again. While a
  run is executed, run.json is written only when its list has grown by an eighth, because the list is as long as the run.
- Only one process at a time writes to a folder. It holds a lock, which ends with the process, and reads the log after it has the
  lock, so it never replaces a file with an older one.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

import msgspec

from holdfast.core import run_state
from holdfast.core.definition import Definition
from holdfast.core.events import Stored
from holdfast.core.situation import RUN_BASE_WANTED
from holdfast.documents import files, run_folder
from holdfast.documents.receipts import Book, Listed, instant
from holdfast.documents.run_folder import HANDOFFS, RECEIPTS, RUN_FILE
from holdfast.errors import RunNotFound, StoreBusy, StoreError
from holdfast.reading import history
from holdfast.storage import definitions
from holdfast.storage.contract import Position, Query, RunRow, Store
from holdfast.storage.files.disk import make_folder
from holdfast.storage.rows import open_body, open_row

_log = logging.getLogger("holdfast")
_LOCK = ".lock"
_PAGE_EVENTS = 500
_TOGETHER = 500
"""How many documents are written to disk together."""
_DESKS_MAX = 64
_SEEN_MAX = 10_000
_NEWEST_RUNS = 100
_LOOK_ROUND_S = 2.0
"""How many seconds `close` waits for the check of all runs' folders. The next engine checks the folders that are left."""


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a run that did not match its log, and were written again."""

    run_id: str
    folder: str
    files: int
    missing: list[str] = []
    torn: list[str] = []
    """Files that were not complete documents."""
    different: list[str] = []


class _Written(msgspec.Struct):
    """The content of a run.json: which run it is about, up to which event, and its files."""

    run_id: str
    flow: str
    created_at: str | None
    seq: int
    files: dict[str, Listed]


class _Desk:
    """Makes the documents of one run and writes them into its folder."""

    def __init__(self, store: Store, row: RunRow, folder: Path) -> None:
        self.folder = folder
        self.book = _book(store, row)
        self._store = store
        self._pending: dict[str, bytes] = {}
        """Documents that are not written yet, by full name."""
        self._plain: set[str] = set()
        """Documents changed since they were last written, by file name without the attempt (`pay.md`, not `pay.2.md`)."""
        self._listed = -1
        """How many files the existing run.json lists; -1 if unknown."""
        self._run_file = b""

    def load(self, row: RunRow, stands: Callable[[str, Listed], bool]) -> None:
        """Read the log up to the row's last event, and write each document for which `stands` returns False, because the folder
        does not have it.

        If a document has to be written, the log is read a second time, because only its end shows which version of a document
        is the final one.
        """
        for stored in _events(self._store, row, 0):
            self.book.observe(stored)
        wrong = {name: listed for name, listed in self.book.files.items() if not stands(name, listed)}
        again = _book(self._store, row)
        if any(name not in self.book.latest for name in wrong):
            for stored in _events(self._store, row, 0):
                for name, content in again.observe(stored).items():
                    if name in wrong and Listed.of(content) == wrong[name]:
                        self._pending[name] = content
                if len(self._pending) >= _TOGETHER:
                    self._write()
        self._plain.update(name for name in wrong if name in self.book.latest)
        self._write()

    def go_on(self, row: RunRow) -> None:
        """Write the documents of new events."""
        self._write()  # earlier documents come first; while they cannot be written, no more of the log is read
        for stored in _events(self._store, row, self.book.seq):
            for name, content in self.book.observe(stored).items():
                self._pending[name] = content
                self._plain.add(self.book.plain_of(name))
            if len(self._pending) >= _TOGETHER:
                self._write()
        self._write()

    def _write(self) -> None:
        wanted = self._pending | {name: self.book.latest[name] for name in self._plain}
        if wanted:
            put_all(self.folder, wanted)
        self._pending.clear()
        self._plain.clear()

    def write_run(self, row: RunRow) -> None:
        """Write run.json if no engine executes the run, or if the list of files has grown by about an eighth."""
        grown = len(self.book.files) - self._listed
        if self._listed >= 0 and row.held and grown * 8 < self._listed + 8:
            return
        content = self.book.run_document(row)
        if content != self._run_file:
            put_all(self.folder, {RUN_FILE: content})
        self._run_file = content
        self._listed = len(self.book.files)


def _book(store: Store, row: RunRow) -> Book:
    return Book(row.run_id, row.flow, _definitions(store), _began_with(store, row))


def _events(store: Store, row: RunRow, after: int) -> Iterator[Stored]:
    """Yield the events of a run after this one, up to the last event that its row names."""
    while after < row.seq:
        rows = store.events(row.run_id, after, row.seq, limit=_PAGE_EVENTS)
        if not rows:
            return
        for found in rows:
            yield open_row(found, store.blobs)
        after = rows[-1].seq


def put_all(folder: Path, contents: dict[str, bytes]) -> None:
    """Write documents to disk. Every document is written through this function."""
    files.put_all(folder, contents)


class Scribe:
    """A listener that writes the files of every run to which its engine appends events."""

    def __init__(self, run_base: str | os.PathLike[str], store: Store, *, inline: bool = False) -> None:
        self._base = Path(os.path.abspath(run_base))
        self._store = store
        self._desks: dict[str, _Desk] = {}
        self._owed: dict[str, None] = {}
        """Ids of runs whose documents could not be written yet."""
        self._warned = False
        self._seen: set[str] = set()
        self._whole: dict[str, int] = {}
        """Id of a stopped run -> the seq of the event up to which all its documents are written."""
        self._news: dict[str, None] = {}
        self._changed = threading.Condition()
        self._closing = self._leaving = False
        self._done = threading.Event()
        self._inline = inline
        if inline:
            for run_id in self._unwritten():
                self._try(run_id)
        else:
            threading.Thread(target=self._work, name="holdfast-scribe", daemon=True).start()

    def saved(self, run_id: str) -> None:
        """Note that new events of a run are durable, or that the engine has stopped executing the run."""
        if run_id not in self._seen:
            if len(self._seen) >= _SEEN_MAX:
                self._seen.clear()
            self._seen.add(run_id)
            self._make_way(run_id)
        if self._inline:
            self._try(run_id)
            return
        with self._changed:
            self._news[run_id] = None
            self._changed.notify()

    def close(self) -> None:
        """Write the remaining documents. Returns when they are written or could not be."""
        if self._inline:
            self._try_owed()
            return
        with self._changed:
            self._closing = True
            self._changed.notify()
        if not self._done.wait(_LOOK_ROUND_S):
            self._leaving = True
            self._done.wait()

    # --- the thread -----------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            look_round: Iterator[str | None] | None = self._unwritten()
            while (run_id := self._next(wait=look_round is None)) is not None or look_round is not None:
                if run_id is None and look_round is not None:
                    if self._leaving:
                        break
                    try:
                        run_id = next(look_round)
                    except StopIteration:
                        look_round = None
                if run_id is not None:
                    self._try(run_id)
            self._try_owed()
        finally:
            self._done.set()

    def _next(self, *, wait: bool) -> str | None:
        """Return the id of a run with new events, or None if there is none. If `wait` is true, wait for one; None then means
        that the scribe is closing.
        """
        with self._changed:
            while wait and not self._news and not self._closing:
                self._changed.wait()
            run_id = next(iter(self._news), None)
            if run_id is not None:
                del self._news[run_id]
            return run_id

    def _try(self, run_id: str | None) -> None:
        """Write the documents of a run. If that succeeds, also try again those of other runs that could not be written before."""
        if run_id is not None and self._wrote(run_id):
            self._try_owed()

    def _try_owed(self) -> None:
        for run_id in list(self._owed):
            if not self._wrote(run_id):
                return

    def _wrote(self, run_id: str) -> bool:
        try:
            self._write(run_id)
        except RunNotFound:
            self._owed.pop(run_id, None)
            return True
        except (OSError, StoreBusy) as fault:
            self._owed[run_id] = None
            self._warn(run_id, fault)
            return False
        except Exception as fault:  # noqa: BLE001 - no error here may stop the run
            self._desks.pop(run_id, None)
            self._owed.pop(run_id, None)
            self._warn(run_id, fault)
            return False
        self._owed.pop(run_id, None)
        self._warned = self._warned and bool(self._owed)
        return True

    def _warn(self, run_id: str, fault: Exception) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "receipts of run %r cannot be written to %s (%s). The run continues; the receipts are made from its log when "
                "the folder can be written again, or by `holdfast receipts %s`.",
                run_id,
                self._base,
                fault,
                run_id,
            )

    def _write(self, run_id: str) -> None:
        desk = self._desks.get(run_id)
        folder = desk.folder if desk is not None else self._folder(self._store.run(run_id))
        with _alone_in(folder):
            row = self._store.run(run_id)
            if desk is not None:
                desk.go_on(row)
            elif self._whole.get(run_id) != row.seq:
                files.probe(folder)
                desk = _Desk(self._store, row, folder)
                desk.load(row, _as_listed(folder, row))
            else:
                return
            self._desks.pop(run_id, None)
            self._desks[run_id] = desk  # the most recently used desk comes last
            desk.write_run(row)
        if not row.held:
            self._leave(run_id, row.seq)
        elif len(self._desks) > _DESKS_MAX:
            del self._desks[next(iter(self._desks))]

    def _leave(self, run_id: str, seq: int) -> None:
        """Remember that a stopped run is completely written, so that another call of `saved` does not read its log again."""
        del self._desks[run_id]
        if len(self._whole) >= _SEEN_MAX:
            self._whole.clear()
        self._whole[run_id] = seq

    def _folder(self, row: RunRow) -> Path:
        return run_folder.run_folder(self._base, row.run_id, row.flow)

    # --- checking the folders of all runs -------------------------------------------------------------

    def _make_way(self, run_id: str) -> None:
        """Move the folder of another run with the same id (from another store) aside, before this run writes into it."""
        if not (self._base / run_folder.part(run_id, run_folder.RUN_BYTES_MAX)).is_dir():
            return
        with suppress(OSError, StoreError):
            row = self._store.run(run_id)
            folder = self._folder(row)
            written = _read_run_file(folder)
            if written is not None and not _is_of(written, row):
                count = 1
                while os.path.lexists(aside := folder.with_name(f"{folder.name}@{count}")):
                    count += 1
                os.rename(folder, aside)

    def _unwritten(self) -> Iterator[str | None]:
        """Check all runs quickly, and yield for each run its id if its files do not match its log, otherwise None."""
        try:
            for folder in _latest_first(self._base):
                yield self._stale(folder)
            yield from self._without_folder()
        except Exception as fault:  # noqa: BLE001 - a broken folder must not stop the execution of runs
            self._warn("*", fault)

    def _stale(self, folder: Path) -> str | None:
        """Return the run of a folder if no engine executes it and the folder is older than its log or damaged; otherwise None."""
        written = _read_run_file(folder)
        try:
            row = self._store.run(written.run_id if written is not None else unquote(folder.parent.name))
        except RunNotFound:
            return None  # a run of another store
        if row.held or self._folder(row) != folder:
            return None
        if written is None:
            return row.run_id
        if not _is_of(written, row):
            return None
        well = written.seq == row.seq and all(
            _size(folder / name) == listed.bytes for name, listed in written.files.items()
        )
        return None if well else row.run_id

    def _without_folder(self) -> Iterator[str | None]:
        """Check the newest runs, and yield for each run its id if it should have a folder with documents but has none,
        otherwise None.

        Stops after the first page of runs on which no folder is missing.
        """
        after: Position | None = None
        while page := self._store.runs(Query(after=after, limit=_NEWEST_RUNS)):
            owed = 0
            for row in page:
                lacks = not self._folder(row).exists()
                if lacks and not row.held and self._is_wanted(row):
                    owed += 1
                    yield row.run_id
                else:
                    yield None
            if not owed:
                return
            after = page[-1].position

    def _is_wanted(self, row: RunRow) -> bool:
        first = open_row(self._store.events(row.run_id, limit=1)[0], self._store.blobs).event
        if row.parent is not None:
            return run_folder.run_folder(self._base, row.parent, row.flow).exists()
        return bool(getattr(first, "options", {}).get(RUN_BASE_WANTED))


def rebuild(run_base: str | os.PathLike[str], store: Store, run_id: str) -> Rebuilt:
    """Write every file of a run again that does not match its log byte for byte. Returns which files those were."""
    row = store.run(run_id)
    folder = run_folder.run_folder(run_base, run_id, row.flow)
    found: dict[str, list[str]] = {"missing": [], "torn": [], "different": []}

    def stands(name: str, listed: Listed) -> bool:
        fault = _fault(folder / name, listed)
        if fault is not None:
            found[fault].append(name)
        return fault is None

    with _alone_in(folder):
        row = msgspec.structs.replace(store.run(run_id), held=False)
        desk = _Desk(store, row, folder)
        desk.load(row, stands)
        if not stands(RUN_FILE, Listed.of(desk.book.run_document(row))):
            desk.write_run(row)
    return Rebuilt(run_id=run_id, folder=str(folder), files=len(desk.book.files) + 1, **found)


def _fault(file: Path, listed: Listed) -> str | None:
    """Return whether a file is "missing", "torn" or "different" from the document it should be; None if it matches."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "different"
    if Listed.of(content) == listed:
        return None
    try:
        msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "torn"
    return "different"


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder during the block, so that no other process writes into it. A missing folder is made."""
    make_folder(folder)
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _as_listed(folder: Path, row: RunRow) -> Callable[[str, Listed], bool]:
    """Return a function that says whether a document is already in the folder, judged by run.json and the size of the file."""
    for place in (folder, folder / RECEIPTS, folder / HANDOFFS):
        files.sweep(place)
    written = _read_run_file(folder)
    known = written.files if written is not None and _is_of(written, row) else {}
    return lambda name, listed: known.get(name) == listed and _size(folder / name) == listed.bytes


def _read_run_file(folder: Path) -> _Written | None:
    """Read the run.json of a folder; None if it is missing or not a complete document."""
    try:
        return _decode_run_file((folder / RUN_FILE).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


_decode_run_file = msgspec.json.Decoder(_Written).decode


def _is_of(written: _Written, row: RunRow) -> bool:
    """Return whether a run.json is about this run, not about a run with the same id in another store."""
    return (written.run_id, written.flow, written.created_at) == (
        row.run_id,
        row.flow,
        instant(row.created_at),
    )


def _latest_first(base: Path) -> list[Path]:
    """Return the folders of all runs, last changed first. Folders that were moved aside (with an @ in the name) are left out."""
    found: list[tuple[float, str]] = []
    with suppress(FileNotFoundError):
        for outer in os.scandir(base):
            if outer.is_dir(follow_symlinks=False):
                found += [
                    (inner.stat().st_mtime, inner.path)
                    for inner in os.scandir(outer)
                    if inner.is_dir(follow_symlinks=False) and "@" not in inner.name
                ]
    return [Path(path) for _, path in sorted(found, reverse=True)]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _definitions(store: Store) -> Callable[[str], Definition | None]:
    def lookup(fingerprint: str) -> Definition | None:
        stored = store.definition(fingerprint)
        return None if stored is None else definitions.decode(stored)

    return lookup


def _began_with(store: Store, row: RunRow) -> str:
    """Return the fingerprint of the flow with which a forked or compacted log begins; empty for other logs, which contain it."""
    base_seq = history.began_after(store, row)
    if not base_seq:
        return ""
    base = store.snapshot(row.run_id, [(base_seq, base_seq)])
    return (
        run_state.load(open_body(base.body, store.blobs)).fingerprint if base is not None else row.fingerprint
    )
