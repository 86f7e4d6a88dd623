"""The scribe writes receipts, handoffs and run.json into the folder of a run, after the commits that they describe.

It works on a thread of its own and reads what is new from the log, so it neither slows a run nor holds more of it in memory than
it needs; what a commit costs follows from what it changed, however long the log is. It never fails a run: what cannot be
written (a full disk, a folder that is read-only) is owed. A warning says so once, and it is tried again with the next
write, at the end, and when the next engine is opened.

- A file appears whole or not at all, and its bytes are those that `receipts` makes of the log: making it again changes nothing.
- run.json is written last and lists every file with its size and digest, and where the log stood then. Whoever opens an engine
  looks at it: a place behind the log's, or a file that is missing or of another size, and the folder is made again. While a run
  is executed the list is written when it has grown by a part of itself, since it is as long as the run.
- One process at a time writes in a folder (a lock, which ends with its process), and reads the log once it may: what it puts
  there is never older than what stood there.
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
from holdfast.documents import files, run_folder
from holdfast.documents.receipts import Book, Listed, instant
from holdfast.documents.run_folder import HANDOFFS, RECEIPTS, RUN_FILE
from holdfast.errors import RunNotFound, StoreBusy, StoreError
from holdfast.reading import history
from holdfast.storage.contract import Query, RunRow, Store
from holdfast.storage.files.disk import make_folder
from holdfast.storage.rows import open_body, open_row

_log = logging.getLogger("holdfast")
_LOCK = ".lock"
_PAGE_EVENTS = 500
_TOGETHER = 500
"""Documents that are put on the disk together."""
_DESKS_MAX = 64
_SEEN_MAX = 10_000
_NEWEST_RUNS = 100
_LOOK_ROUND_S = 2.0
"""How long closing waits for a look at the folders of all runs. What is not reached is looked at the next time."""


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """How the files of a run compared with its log. All of them are as it says now."""

    run_id: str
    folder: str
    files: int
    missing: list[str] = []
    torn: list[str] = []
    """What stood there was no whole document."""
    different: list[str] = []


class _Written(msgspec.Struct):
    """What a run.json says of itself."""

    run_id: str
    flow: str
    created_at: str | None
    seq: int
    files: dict[str, Listed]


class _Desk:
    """The documents of one run, on their way into its folder."""

    def __init__(self, store: Store, row: RunRow, folder: Path) -> None:
        self.folder = folder
        self.book = _book(store, row)
        self._store = store
        self._pending: dict[str, bytes] = {}
        """What could not be written yet, apart from plain names."""
        self._plain: set[str] = set()
        """Plain names whose content has changed."""
        self._listed = -1
        """How many files the existing run.json lists; -1: unknown."""
        self._run_file = b""

    def load(self, row: RunRow, stands: Callable[[str, Listed], bool]) -> None:
        """Read the log to where the row says, and write what is not in the folder.

        The log is read twice where something is to be written: only at its end is known which documents are the last word.
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
        """Write what has come to the log since."""
        self._write()  # what is owed comes first, and while it cannot be written, no more of the log is read
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
        """Write run.json, if no engine executes the run or the list has grown by a part of itself."""
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
    """The log of a run after a place, to where its row says."""
    while after < row.seq:
        rows = store.events(row.run_id, after, row.seq, limit=_PAGE_EVENTS)
        if not rows:
            return
        for found in rows:
            yield open_row(found, store.blobs)
        after = rows[-1].seq


def put_all(folder: Path, contents: dict[str, bytes]) -> None:
    """The one way of a document to the disk."""
    files.put_all(folder, contents)


class Scribe:
    """A listener that writes the files of every run which its engine appends to."""

    def __init__(self, run_base: str | os.PathLike[str], store: Store, *, inline: bool = False) -> None:
        self._base = Path(os.path.abspath(run_base))
        self._store = store
        self._desks: dict[str, _Desk] = {}
        self._owed: dict[str, None] = {}
        """Runs of which something could not be written."""
        self._warned = False
        self._seen: set[str] = set()
        self._whole: dict[str, int] = {}
        """Runs that stood still when everything up to this place was written."""
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
        """New events of a run are durable, or the engine has stopped executing it."""
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
        """Write what is left. Returns when that is done, or could not be."""
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
        """A run with news; None: there is none (and, after a wait, there will be none)."""
        with self._changed:
            while wait and not self._news and not self._closing:
                self._changed.wait()
            run_id = next(iter(self._news), None)
            if run_id is not None:
                del self._news[run_id]
            return run_id

    def _try(self, run_id: str | None) -> None:
        """Write what a run is owed; if that works, what others are owed, too."""
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
        except Exception as fault:  # noqa: BLE001 - whatever it is, the run goes on without
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
                "receipts of run %r cannot be written to %s (%s). The run goes on, and they are made from its log "
                "when that works again; `holdfast receipts %s` makes them now.",
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
            self._desks[run_id] = desk  # the latest is last
            desk.write_run(row)
        if not row.held:
            self._leave(run_id, row.seq)
        elif len(self._desks) > _DESKS_MAX:
            del self._desks[next(iter(self._desks))]

    def _leave(self, run_id: str, seq: int) -> None:
        """A run has stopped, and all of it is written: another notice of that is not a reason to read its log again."""
        del self._desks[run_id]
        if len(self._whole) >= _SEEN_MAX:
            self._whole.clear()
        self._whole[run_id] = seq

    def _folder(self, row: RunRow) -> Path:
        return run_folder.run_folder(self._base, row.run_id, row.flow)

    # --- looking round --------------------------------------------------------------------------------

    def _make_way(self, run_id: str) -> None:
        """Move the folder of another run of the same id (of another store) aside, before anything of this one is put there."""
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
        """The runs whose files are not what their log says, as far as can be seen quickly. None: one that is in order."""
        try:
            for folder in _latest_first(self._base):
                yield self._stale(folder)
            yield from self._without_folder()
        except Exception as fault:  # noqa: BLE001 - nothing that is found there may keep runs from being executed
            self._warn("*", fault)

    def _stale(self, folder: Path) -> str | None:
        """The run of a folder, if no engine executes it and the folder is older than its log or damaged."""
        written = _read_run_file(folder)
        try:
            row = self._store.run(written.run_id if written is not None else unquote(folder.parent.name))
        except RunNotFound:
            return None  # of another store
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
        """Runs that were made with a RUN_BASE and have no folder in it: first the newest, and on while there are some."""
        before: str | None = None
        while page := self._store.runs(Query(before=before, limit=_NEWEST_RUNS)):
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
            before = page[-1].run_id

    def _is_wanted(self, row: RunRow) -> bool:
        first = open_row(self._store.events(row.run_id, limit=1)[0], self._store.blobs).event
        if row.parent is not None:
            return run_folder.run_folder(self._base, row.parent, row.flow).exists()
        return bool(getattr(first, "options", {}).get(history.RUN_BASE_WANTED))


def rebuild(run_base: str | os.PathLike[str], store: Store, run_id: str) -> Rebuilt:
    """Make every file of a run from its log, byte for byte, and say which ones were not as they should have been."""
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
    """What is wrong with a file that should be this."""
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
    """Be the only one who writes into this folder, which is made if need be."""
    make_folder(folder)
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _as_listed(folder: Path, row: RunRow) -> Callable[[str, Listed], bool]:
    """Whether a document is in a folder already, by its run.json and the size of the file."""
    for place in (folder, folder / RECEIPTS, folder / HANDOFFS):
        files.sweep(place)
    written = _read_run_file(folder)
    known = written.files if written is not None and _is_of(written, row) else {}
    return lambda name, listed: known.get(name) == listed and _size(folder / name) == listed.bytes


def _read_run_file(folder: Path) -> _Written | None:
    """What the run.json of a folder says; None where there is none or it is torn."""
    try:
        return _decode_run_file((folder / RUN_FILE).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


_decode_run_file = msgspec.json.Decoder(_Written).decode


def _is_of(written: _Written, row: RunRow) -> bool:
    """Whether a run.json is about this very run, not one of the same id in another store."""
    return (written.run_id, written.flow, written.created_at) == (
        row.run_id,
        row.flow,
        instant(row.created_at),
    )


def _latest_first(base: Path) -> list[Path]:
    """The folders of all runs, those that changed last first. One that was moved aside has an @ in its name."""
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
        return None if stored is None else msgspec.json.decode(stored, type=Definition)

    return lookup


def _began_with(store: Store, row: RunRow) -> str:
    """The fingerprint of the flow where the log of a fork, or a compacted one, begins; any other log says it itself."""
    base_seq = history.began_after(store, row)
    if not base_seq:
        return ""
    base = store.snapshot(row.run_id, [(base_seq, base_seq)])
    return (
        run_state.load(open_body(base.body, store.blobs)).fingerprint if base is not None else row.fingerprint
    )
