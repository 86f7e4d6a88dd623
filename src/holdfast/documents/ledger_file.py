"""Writes the ledger of a run into a file, and verifies such a file without the store.

A file has one JSON document on each line. The first says what it is: the run, where its log begins and ends, and the digests
there. Then come the definitions of its flow, the blobs that its decisions refer to, and every event of the log in order. An event
that a decision is read from has its body and salt; of any other event the file has the header and sha256(salt ‖ body), which is
all that the hash chain needs. The last line has the number of events and the sha256 of all lines before it.

Invariants: exporting the same log again gives the same bytes. A file that was truncated, or of which a line was removed or
altered, is not verified, and the event is named. A file in which everything was computed again describes another log: compare it
with the store (`compare`), or its last digest with the one that was noted when it was exported.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from holdfast.core import run_state
from holdfast.core.definition import Definition
from holdfast.core.difference import fingerprint as fingerprint_of
from holdfast.errors import BlobMissing, HoldfastError, SettingError, StoreCorrupt, StoreUnusable
from holdfast.reading import history
from holdfast.reading.damage import LogDamage, find_damage, rows_damage
from holdfast.reading.ledger import Ledger, add_verdict
from holdfast.reading.ledger_entries import LedgerBook, LedgerEntry
from holdfast.reading.verification import LogVerdict, find_base
from holdfast.storage import oversize
from holdfast.storage.blobs import Blobs
from holdfast.storage.contract import Row, RunRow, Store
from holdfast.storage.files import copies, disk
from holdfast.storage.rows import content_of, open_body, open_row, unpack

VERSION = 1
_SAME = ("type", "actor", "by", "reason", "about", "text")
"""The fields of an entry that a file repeats for its readers: they are computed again from the body, and compared."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, tag_field="part", omit_defaults=True):
    """One line of an exported ledger."""


class LedgerHead(_Part, frozen=True, kw_only=True, tag="ledger"):
    """The first line: which log it is, and between which digests."""

    version: int
    run_id: str
    flow: str
    seq: int
    """The last event."""
    digest: str
    """The digest of the last event, in hex."""
    after: int = 0
    """The event after which the log begins: 0, or that of its base."""
    after_digest: str = ""
    fingerprint: str = ""
    """The flow with which a log with a base begins."""
    beginning: str = ""


class LedgerDefinition(_Part, frozen=True, kw_only=True, tag="definition"):
    """The definition of a flow that the log names, as stored; empty if the store does not have it."""

    fingerprint: str
    body: str = ""
    packed: bytes = b""


class LedgerBlob(_Part, frozen=True, kw_only=True, tag="blob"):
    """A value of a decision that is too large for the log."""

    digest: str
    body: bytes


class LedgerLine(_Part, frozen=True, kw_only=True, tag="event"):
    """An event: its header and digest, and either its salt and body or the salted hash of its body."""

    seq: int
    at: float
    kind: str
    node: str | None = None
    iteration: int = 0
    execution: int = 0
    attempt: int = 0
    chained: str = msgspec.field(name="digest")
    """The digest of the row, in hex."""
    entry: dict[str, Any] | None = None
    """What was decided, for readers."""
    hashed: str = msgspec.field(default="", name="sha256")
    """sha256(salt ‖ body), in hex, if the body is not in the file."""
    salt: str = ""
    body: str | None = None
    packed: bytes | None = None
    """The body, if it is stored compressed."""

    @property
    def digest(self) -> bytes:
        return _bytes(self.chained)

    def row(self) -> Row | None:
        """Return the row of the event; None if the file does not have its body."""
        stored = (
            self.packed if self.packed is not None else self.body.encode() if self.body is not None else None
        )
        if stored is None:
            return None
        return Row(self.seq, self.at, self.kind, self.node, self.iteration, self.execution, self.attempt, _bytes(self.salt),
                   stored, self.digest)  # fmt: skip

    def content(self) -> bytes | None:
        """Return the salted hash of the body; None if it cannot have been written like this."""
        row = self.row()
        found = content_of(row) if row is not None and len(row.salt) == 16 else _bytes(self.hashed)
        return found if len(found) == 32 and self.node != "" else None


class LedgerEnd(_Part, frozen=True, kw_only=True, tag="end"):
    """The last line, without which the file is not complete."""

    events: int
    sha256: str
    """SHA-256 of all lines before this one, in hex."""


Part: TypeAlias = LedgerHead | LedgerDefinition | LedgerBlob | LedgerLine | LedgerEnd
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Part).decode


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """An exported ledger: its place, and what it covers."""

    run_id: str
    file: str
    entries: int
    events: int
    digest: str
    """The digest of the last event, in hex. Who keeps it can tell later that the log is still the same."""


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


# --- writing -----------------------------------------------------------------------------------------


def export(store: Store, run_id: str, file: str | os.PathLike[str]) -> Exported:
    """Write the ledger of a run to a new file (mode 0600), which exists only when it is complete. Raises `SettingError` if there
    is a file of that name, `StoreCorrupt` if the log is damaged.
    """
    target = Path(file).expanduser()
    copies.refuse_taken(target, "an export", "ledger.jsonl")
    row, rows, parts = _read(store, run_id)
    lines, entries = _lines(parts)
    way_out = "The run is unchanged; choose another place for the file, or free some space there."
    with copies.report_failure(f"the ledger of run {run_id!r} was not exported to {target}", way_out):
        disk.make_folder(target.absolute().parent)
        handle, temporary = tempfile.mkstemp(prefix=".holdfast-", dir=target.absolute().parent)  # 0600
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.writelines(line + b"\n" for line in lines)
            copies.name_file(temporary, target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
    return Exported(
        run_id=run_id, file=str(target), entries=entries, events=len(rows), digest=row.digest.hex()
    )


def _read(store: Store, run_id: str) -> tuple[RunRow, list[Row], Iterator[Part]]:
    """Read a log that is as it was written. It is read twice if it seems damaged, because it may be compacted meanwhile."""
    damage: list[LogDamage] = []
    for _ in range(2):
        row, base = store.run(run_id), None
        base = find_base(store, row)
        rows = store.events(run_id, upto=row.seq)
        after, digest = (base.seq, base.digest) if base is not None else (0, b"")
        damage = rows_damage(run_id, rows, after=after, digest=digest, end=row.seq, end_digest=row.digest)
        if not damage:
            began_with = (
                run_state.load(open_body(base.body, store.blobs)).fingerprint if base is not None else ""
            )
            head = LedgerHead(
                version=VERSION,
                run_id=run_id,
                flow=row.flow,
                seq=row.seq,
                digest=row.digest.hex(),
                after=after,
                after_digest=digest.hex(),
                fingerprint=began_with,
                beginning=history.beginning(store, row),
            )
            return row, rows, _parts(store, head, rows)
    raise StoreCorrupt(
        f"the ledger of run {run_id!r} was not exported, because its log is damaged: {damage[0].text}. "
        f"`holdfast ledger {run_id} --verify` says more."
    )


def _parts(store: Store, head: LedgerHead, rows: list[Row]) -> Iterator[Part]:
    named: dict[str, Definition | None] = {}
    lines: list[Part] = []

    def lookup(fingerprint: str) -> Definition | None:
        if fingerprint not in named:
            stored = store.definition(fingerprint)
            named[fingerprint] = history.defined(stored, head.run_id) if stored is not None else None
            lines.append(LedgerDefinition(fingerprint=fingerprint, **_text_or_bytes(stored or b"")))
        return named[fingerprint]

    def open_event(row: Row) -> Any:
        lines.extend(
            LedgerBlob(digest=digest, body=store.blobs.get(digest))
            for digest in oversize.references(unpack(row.body)).values()
        )
        return next(history.opened(store, head.run_id, (row,))).event

    yield head
    book = LedgerBook(lookup, open_event, head.fingerprint)
    for row in rows:
        wanted = book.wants(row.kind, row.node)
        entry = book.read(row) if wanted else None
        yield from lines
        lines.clear()
        yield _event_part(row, entry, wanted=wanted)


def _event_part(row: Row, entry: LedgerEntry | None, *, wanted: bool) -> LedgerLine:
    header = {
        name: getattr(row, name)
        for name in ("seq", "at", "kind", "node", "iteration", "execution", "attempt")
    }
    if not wanted:
        return LedgerLine(**header, chained=row.digest.hex(), hashed=content_of(row).hex())
    stored = _text_or_bytes(row.body)
    shown = _shown(entry) if entry is not None else None
    return LedgerLine(**header, chained=row.digest.hex(), salt=row.salt.hex(), entry=shown, **stored)


def _shown(entry: LedgerEntry) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins({name: getattr(entry, name) for name in _SAME}, str_keys=True)
    return found


def _text_or_bytes(stored: bytes) -> dict[str, Any]:
    """Return stored bytes as the fields of a part: as text if they are, so that people can read them."""
    with suppress(UnicodeDecodeError):
        return {"body": stored.decode()}
    return {"packed": stored}


def _lines(parts: Iterable[Part]) -> tuple[list[bytes], int]:
    """Return the lines of a file, with the last line that completes it, and the number of entries."""
    digest, events, entries = sha256(), 0, 0
    lines: list[bytes] = []
    for part in parts:
        events += isinstance(part, LedgerLine)
        entries += isinstance(part, LedgerLine) and part.entry is not None
        lines.append(_encode(part))
        digest.update(lines[-1] + b"\n")
    lines.append(_encode(LedgerEnd(events=events, sha256=digest.hexdigest())))
    return lines, entries


# --- verifying ---------------------------------------------------------------------------------------


class _FileBlobs(dict[str, bytes]):
    """The blobs in a file, by their digests, for the functions that open rows."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = file

    def get(self, digest: str) -> bytes:  # type: ignore[override]  # the method of `Blobs`
        body = super().get(digest)
        if body is None or sha256(body).hexdigest() != digest:
            raise BlobMissing(digest, self._file)
        return body


class LedgerFile:
    """An exported ledger that was read back, with everything that is wrong with it."""

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self.file = str(file)
        self.problems: list[str] = []
        self.events: list[LedgerLine] = []
        self._definitions: dict[str, bytes] = {}
        self._blobs = _FileBlobs(self.file)
        self._is_whole = False
        self.head = self._read_lines()
        self.damage = self._find_damage()
        self._misread: list[LogDamage] = []
        self.entries = self._read_entries()
        self.damage = (
            self.damage or self._misread
        )  # an event that is missing changes how the later ones are read
        self.problems = [*(one.text for one in self.damage), *self.problems]
        if not (self.problems or self._is_whole):
            self.problems.append("the lines are not those that were exported")

    @property
    def ledger(self) -> Ledger:
        """The ledger, with the result of its verification."""
        head = self.head
        made = Ledger(
            run_id=head.run_id,
            flow=head.flow,
            seq=head.seq,
            digest=head.digest,
            entries=self.entries,
            beginning=head.beginning,
        )
        verdict = LogVerdict(
            run_id=head.run_id, events=len(self.events), problems=self.problems, damage=self.damage
        )
        return add_verdict(made, verdict)

    def _read_lines(self) -> LedgerHead:
        head, end, digest = None, None, sha256()
        for number, line in enumerate(_lines_of(self.file), 1):
            try:
                part = _decode(line)
            except (msgspec.MsgspecError, ValueError):
                if number == 1:
                    break
                self.problems.append(f"line {number} cannot be read")
                part = None
            if end is not None:
                self.problems.append(f"line {number} was added after the last line")
            match part:
                case LedgerHead() if number == 1:
                    head = part
                case LedgerDefinition():
                    self._definitions[part.fingerprint] = part.packed or part.body.encode()
                case LedgerBlob():
                    self._blobs[part.digest] = part.body
                case LedgerLine():
                    self.events.append(part)
                case LedgerEnd():
                    end = part
                    self._is_whole = (part.sha256, part.events) == (digest.hexdigest(), len(self.events))
                case None:
                    pass
                case _:
                    self.problems.append(f"line {number} is not in its place")
            digest.update(line + b"\n")
        if head is None or head.version != VERSION:
            raise SettingError(
                f"{self.file} is not a ledger that this version of Holdfast has exported. "
                "`holdfast ledger RUN --export FILE` writes one."
            )
        if end is None:
            self.problems.append("the file is truncated: its last line is missing")
        return head

    def _find_damage(self) -> list[LogDamage]:
        head = self.head
        return find_damage(
            head.run_id,
            self.events,
            LedgerLine.content,
            after=head.after,
            digest=_bytes(head.after_digest),
            end=head.seq,
            end_digest=_bytes(head.digest),
        )

    def _read_entries(self) -> list[LedgerEntry]:
        """Return the entries, computed from the bodies. An event whose entry says something else, or whose body was left out, was
        altered.
        """
        book, found = LedgerBook(self._lookup, self._open, self.head.fingerprint), list[LedgerEntry]()
        for event in self.events:
            row = event.row()
            place = f"event {event.seq} ({event.kind})"
            if row is None:
                if book.wants(event.kind, event.node):
                    self._note(event, f"{place} is a decision, but its body was removed from the file")
                continue
            try:
                entry = book.read(row)
            except HoldfastError as fault:
                self._note(event, f"{place} cannot be read: {fault}")
                continue
            if (_shown(entry) if entry is not None else None) != event.entry:
                self._note(event, f"what the file says about {place} is not what the event says")
            found += [entry] if entry is not None else []
        return found

    def _note(self, event: LedgerLine, text: str) -> None:
        self._misread.append(
            LogDamage(what="altered", seq=event.seq, upto=event.seq, kind=event.kind, text=text)
        )

    def _lookup(self, fingerprint: str) -> Definition | None:
        stored = self._definitions.get(fingerprint)
        if stored == b"":  # nor did the store have it
            return None
        try:
            found = history.defined(stored, self.head.run_id) if stored is not None else None
            if found is not None and fingerprint_of(found) == fingerprint:
                return found
        except (HoldfastError, ValueError):
            pass
        self.problems.append(f"the definition of its flow ({fingerprint[:12]}) is not what was written")
        return None

    def _open(self, row: Row) -> Any:
        return open_row(row, cast("Blobs", self._blobs)).event


def _lines_of(file: str) -> Iterator[bytes]:
    try:
        with open(file, "rb") as opened:
            for line in opened:
                yield line.removesuffix(b"\n")
    except OSError as fault:
        raise StoreUnusable(f"{file} cannot be read: {fault.strerror or fault}. Check the path.") from fault


def compare(store: Store, exported: LedgerFile) -> LogDamage | None:
    """Return the first event at which the log of the store is not the one that was exported; None if it begins with the same
    events. Events that were compacted since are covered by the digest of the base.
    """
    head = exported.head
    row = store.run(head.run_id)
    base = find_base(store, row)
    digests = {one.seq: one.digest for one in store.events(head.run_id, upto=min(row.seq, head.seq))}
    if base is not None:
        digests[base.seq] = base.digest
    for event in exported.events:
        if event.seq in digests and digests[event.seq] != event.digest:
            text = f"event {event.seq} ({event.kind}) of the store is not the one that was exported"
            return LogDamage(what="altered", seq=event.seq, upto=event.seq, kind=event.kind, text=text)
    if row.seq < head.seq:
        text = f"the log of the store ends at event {row.seq}, but event {head.seq} was exported"
        return LogDamage(what="missing", seq=row.seq + 1, upto=head.seq, text=text)
    return None
