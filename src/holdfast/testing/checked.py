"""Read the rows of a store as plain bytes, for the checker. A SQLite file is read with the queries of `checked.sql`; any other
store, open or given by its URL, through its methods (`runs`, `events`, `snapshot`).

This module decodes the data of events by itself (JSON, zstd, references to blobs) and shares no code with `storage.rows` or
`storage.oversize`: a mistake there must not be hidden by the same mistake here. It only reads; `checker` decides what is wrong.
Invariant: the store is not changed, and its file is only opened through SQLite.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import apsw
import zstandard

from holdfast.errors import StoreBusy, StoreCorrupt, StoreError, StoreUnusable
from holdfast.storage.contract import Position, Query, Store

Event: TypeAlias = tuple[int, float, str, str | None, int, int, int, bytes, bytes, bytes]
"""One row of a log: seq, time, kind, node, iteration, execution, attempt, salt (random bytes), body (the encoded event),
digest.
"""

_PAGE = 5000
_ZSTD = b"\x28\xb5\x2f\xfd"
_BLOBS = b'{"$blobs":'


class RunFacts(NamedTuple):
    """The row of one run, as the store has it."""

    key: int
    run_id: str
    flow: str
    parent: str | None
    origin: str | None
    """The run that started it."""
    labels: dict[str, str]
    created_at: float
    status: str
    seq: int
    digest: bytes
    updated_at: float
    fingerprint: str
    state_version: int
    active: list[str]
    error: str | None
    rewinds: list[tuple[int, int]]
    due_at: float | None
    fence: int
    holder: str | None
    expires_at: float
    asks: int | None
    """How many questions are open; None if the row has neither this nor `active_s` and `situation`."""
    active_s: float | None
    situation: dict[str, Any]


class SnapshotFacts(NamedTuple):
    """A snapshot, as the store has it. If `base` is true, it replaces the events up to `seq`. `digest` is the digest of event
    `seq`; each digest also covers the events before it.
    """

    seq: int
    base: bool
    digest: bytes
    body: bytes


class StoredRequest(NamedTuple):
    """A request in the inbox. `taken` is the seq of the last event of the append that handled it, or 0 while it waits."""

    run_id: str | None
    id: str
    verb: str
    body: bytes
    taken: int
    unmet: bool
    """True if the request still waited when its run was over."""
    is_complete: bool
    """False if the request may be of an older version of Holdfast, which did not record what became of every request."""


class Source(Protocol):
    """Read-only access to everything in a store that the checker compares."""

    def runs(self) -> Iterator[RunFacts]: ...

    def events(self, run: RunFacts) -> Iterator[Event]: ...

    def rewinds(self, run: RunFacts) -> list[tuple[int, bytes]]:
        """Return the seq and the stored data of every RunRewound event of the run."""

    def snapshots(self, run: RunFacts) -> list[SnapshotFacts]: ...

    def base(self, run: RunFacts) -> bytes | None:
        """Return the sha256 of the base of a compacted log; None if the log was not compacted."""

    def strangers(self) -> list[tuple[int, int, int]]:
        """Find events whose run does not exist. Return a tuple for each such run: its key in the database, the seq of the first
        event, and the number of events.
        """

    def definitions(self, fingerprints: set[str]) -> dict[str, bytes]: ...

    def inbox(self) -> list[StoredRequest]:
        """Return all requests of all runs, oldest first for each run."""

    def blob(self, digest: str) -> bytes | None:
        """Return the content of a blob, or None if it is missing or does not match its digest."""

    def close(self) -> None: ...


def source_of(store: Store | str | os.PathLike[str]) -> Source:
    """Open a store for reading: a SQLite file (given as a path or an open store) directly, any other store through its methods.
    Raises `StoreError` if the store does not exist, and `SettingError` for a URL with an unknown scheme.
    """
    if not isinstance(store, (str, os.PathLike)):
        path = getattr(store, "path", None)
        return FileSource(str(path)) if path is not None else StoreSource(store)
    text = os.fspath(store)
    if "://" in text and not text.startswith("sqlite:///"):
        return _source_at(text)
    return FileSource(os.path.expanduser(text.removeprefix("sqlite:///")))


def _source_at(url: str) -> Source:
    """Open the store at a URL. A missing store is not created, because a check must not change anything."""
    from holdfast.storage import urls  # imports every store; a file is read without them

    if not urls.is_there(url):
        raise StoreUnusable(
            f"there is no store at {urls.shown(url)}. Check the name of the database and the schema."
        )
    return StoreSource(urls.open_store(url), owned=True)


class FileSource:
    """Reads a SQLite store in one transaction."""

    def __init__(self, path: str) -> None:
        text = Path(__file__).with_name("checked.sql").read_text("utf-8")
        self._sql = dict(re.findall(r"^-- (\w+): .*\n((?:[^-\n].*\n)+)", text, re.MULTILINE))
        self._path = os.path.abspath(path)
        self._blobs = Path(f"{path}.blobs")
        try:
            self._connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
            self._connection.set_busy_timeout(5000)
            self._read_once()
        except apsw.Error as fault:
            raise self._unusable(fault) from fault

    def _read_once(self) -> None:
        """Read what is needed about all runs: which logs were compacted, which runs still have obsolete rows that a sweep will
        delete, and all rewinds.
        """
        for _ in self._select("begin"):
            pass
        ((tables,),) = self._select("upkeep")
        bases = self._select("trimmed") if tables == 2 else ()
        self._bases = {run: (base, digest) for run, base, digest in bases}
        self._remains = {run for (run,) in self._select("remains")} if tables == 2 else set()
        self._rewinds: dict[int, list[tuple[int, bytes]]] = {}
        for run, seq, body in self._select("rewinds"):
            self._rewinds.setdefault(run, []).append((seq, body))

    def _select(self, query: str, *values: Any) -> Iterator[Any]:
        try:
            yield from self._connection.execute(self._sql[query], values)
        except apsw.Error as fault:
            raise self._unusable(fault) from fault

    def _unusable(self, fault: apsw.Error) -> StoreError:
        """Return the exception that says why the file cannot be checked."""
        path, advice = self._path, "Give the path of a store, or its URL."
        if not os.path.exists(path):
            return StoreUnusable(f"there is no store at {path}. {advice}")
        if os.path.isdir(path):
            return StoreUnusable(f"{path} is a folder, not a store. {advice}")
        if not os.path.getsize(path):
            return StoreUnusable(f"there is no store at {path}: the file is empty. {advice}")
        if isinstance(fault, apsw.NotADBError):
            return StoreUnusable(f"{path} is not a SQLite database. {advice}")
        if isinstance(fault, apsw.SQLError):  # the database has other tables
            return StoreUnusable(f"{path} is a SQLite database, but not a Holdfast store ({fault}). {advice}")
        if isinstance(fault, apsw.BusyError):
            return StoreBusy(f"{path}: another process has locked the database for too long. Try again.")
        if isinstance(fault, apsw.CorruptError):
            return StoreCorrupt(f"{path} is damaged: {fault}. Copy the file, then run `holdfast doctor`.")
        return StoreUnusable(f"{path} cannot be read: {fault}. Check that this user may read it.")

    def runs(self) -> Iterator[RunFacts]:
        ((columns,),) = self._select("columns")
        for cells in self._select(("old_runs", "runs_without_origin", "runs")[columns]):
            facts = RunFacts(*cells)
            yield facts._replace(
                labels=json.loads(str(facts.labels)),
                active=json.loads(str(facts.active)) if facts.active else [],
                rewinds=[tuple(pair) for pair in json.loads(str(facts.rewinds))] if facts.rewinds else [],
                situation=json.loads(str(facts.situation)) if facts.situation else {},
            )

    def events(self, run: RunFacts) -> Iterator[Event]:
        after, _ = self._bases.get(run.key, (0, b""))
        return self._select("events", run.key, after)

    def rewinds(self, run: RunFacts) -> list[tuple[int, bytes]]:
        return self._rewinds.get(run.key, [])

    def snapshots(self, run: RunFacts) -> list[SnapshotFacts]:
        found = self._select("snapshots", run.key)
        return [SnapshotFacts(seq, bool(base), digest, body) for seq, base, digest, body in found]

    def base(self, run: RunFacts) -> bytes | None:
        base = self._bases.get(run.key)
        return base[1] if base is not None else None

    def strangers(self) -> list[tuple[int, int, int]]:
        return [found for found in self._select("strangers") if found[0] not in self._remains]

    def definitions(self, fingerprints: set[str]) -> dict[str, bytes]:
        return dict(self._select("definitions"))

    def inbox(self) -> list[StoredRequest]:
        ((columns,),) = self._select("inbox_columns")
        return [
            StoredRequest(run, name, verb, body.encode(), taken, bool(unmet), bool(complete))
            for run, name, verb, body, taken, unmet, complete in self._select(
                "inbox" if columns == 2 else "old_inbox"
            )
        ]

    def blob(self, digest: str) -> bytes | None:
        try:
            body = unpack((self._blobs / digest[:2] / digest[2:4] / digest).read_bytes())
        except (OSError, ValueError):
            return None
        return body if sha256(body).hexdigest() == digest else None

    def close(self) -> None:
        self._connection.close()


class StoreSource:
    """Reads any open store through its methods."""

    def __init__(self, store: Store, *, owned: bool = False) -> None:
        self._store = store
        self._owned = owned
        """True if the store was opened for this check, so that `close` must close it."""

    def runs(self) -> Iterator[RunFacts]:
        after: Position | None = None
        while rows := self._store.runs(Query(after=after, limit=_PAGE)):
            for row in rows:
                yield RunFacts(
                    key=0, run_id=row.run_id, flow=row.flow, parent=row.parent, origin=row.origin, labels=row.labels,
                    created_at=row.created_at, status=row.status, seq=row.seq, digest=row.digest, updated_at=row.updated_at,
                    fingerprint=row.fingerprint, state_version=row.state_version, active=list(row.active), error=row.error,
                    rewinds=list(row.rewinds), due_at=row.due_at, fence=row.fence,
                    holder=row.holder.id if row.holder is not None else None,
                    expires_at=float("inf") if row.held else 0.0, asks=row.asks, active_s=row.active_s,
                    situation=json.loads(row.situation) if row.situation else {},
                )  # fmt: skip
            after = rows[-1].position

    def events(self, run: RunFacts) -> Iterator[Event]:
        after = 0
        # A damaged store that has a row twice may return rows at or before `after`: without the filter this loop would not end.
        while rows := [row for row in self._store.events(run.run_id, after, limit=_PAGE) if row.seq > after]:
            for row in rows:
                yield (
                    row.seq, row.at, row.kind, row.node, row.iteration, row.execution, row.attempt, row.salt, row.body,
                    row.digest,
                )  # fmt: skip
            after = max(row.seq for row in rows)

    def rewinds(self, run: RunFacts) -> list[tuple[int, bytes]]:
        return [(row.seq, row.body) for row in self._store.events(run.run_id, kinds=("RunRewound",))]

    def snapshots(self, run: RunFacts) -> list[SnapshotFacts]:
        found: list[SnapshotFacts] = []
        upto = 1 << 32
        while (one := self._store.snapshot(run.run_id, [(0, upto)])) is not None:
            found.append(SnapshotFacts(one.seq, one.base, one.digest, one.body))
            upto = one.seq - 1
        return found[::-1]

    def base(self, run: RunFacts) -> bytes | None:
        trimmed = self._store.upkeep.trimmed(run.run_id)
        return trimmed.base_digest if trimmed.base else None

    def strangers(self) -> list[tuple[int, int, int]]:
        return []

    def definitions(self, fingerprints: set[str]) -> dict[str, bytes]:
        found = {name: self._store.definition(name) for name in fingerprints}
        return {name: body for name, body in found.items() if body is not None}

    def inbox(self) -> list[StoredRequest]:
        is_complete = self._store.url.startswith(
            "memory:"
        )  # other stores may have been written by an older version
        return [
            StoredRequest(
                run.run_id, one.id, one.verb, json.dumps(one.body).encode(), one.taken, one.unmet, is_complete
            )
            for run in self.runs()
            for one in self._store.inbox(run_id=run.run_id)
        ]

    def blob(self, digest: str) -> bytes | None:
        try:
            return self._store.blobs.get(digest)
        except Exception:  # noqa: BLE001 - whatever the reason, the blob cannot be read
            return None

    def close(self) -> None:
        if self._owned:
            self._store.close()


def unpack(body: bytes) -> bytes:
    """Return the stored data of an event or a snapshot, decompressed if it is compressed. Raises `ValueError` if that fails."""
    if not body.startswith(_ZSTD):
        return body
    try:
        return zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as fault:
        raise ValueError(f"the stored data cannot be decompressed: {fault}") from fault


def open_body(body: bytes, source: Source) -> tuple[dict[str, Any], list[str]]:
    """Decode the stored data of an event or a snapshot, with the values of its blobs. Also return the digests of the blobs that
    are missing. Raises `ValueError` for data that cannot be decoded.
    """
    if not body:
        return {}, []
    plain = unpack(body)
    told = json.loads(plain)
    if not isinstance(told, dict):
        raise ValueError("the stored data is not a JSON object")  # noqa: TRY004 - the stored value is at fault
    if not plain.startswith(_BLOBS):
        return told, []
    missing = []
    for pointer, digest in sorted(told.pop("$blobs").items()):
        value = source.blob(digest)
        if value is None:
            missing.append(digest)
        else:
            told = _replace_at(told, pointer.split("/")[1:], json.loads(value))
    return told, missing


def _replace_at(tree: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    key: Any = path[0].replace("~1", "/").replace("~0", "~") if isinstance(tree, dict) else int(path[0])
    tree[key] = _replace_at(tree[key], path[1:], value)
    return tree
