"""Every durable operation of Holdfast, each in its own process, which reports what it is about to do and the result.

`OPERATIONS` is the table: `prepare` makes the disk before the operation, `perform` is the operation. To add one, add a row; the
harness finds its crash points by itself. Everything is the same every time: ids, salts, clock, and the bytes on the disk.

A child reports with lines of JSON on a pipe (`Teller`): before a verb is called, the facts that it would make true; afterwards,
how it ended. The facts of one verb are written together or not at all; `inspection` compares the disk with them.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import os
import random
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import apsw
import msgspec

import holdfast as hf
from holdfast import END, START, Graph, append
from holdfast.core import run_state
from holdfast.documents import files, scribe
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.reading import history
from holdfast.runtime import engine as engines
from holdfast.storage import schema
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Append, Holder, Request, Snapshot
from holdfast.storage.files import disk
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.queues import Wanted
from holdfast.storage.rows import pack
from holdfast.storage.sqlite import batches
from holdfast.storage.sqlite.database import APPLICATION_ID
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.clock import STARTS_AT, ManualClock
from holdfast.upkeep import archive, retention

DAY_S = 86_400.0
AUTHOR = "author"
"""The holder that wrote the disk before an operation; its process is dead when the operation begins."""
STORE, RUNS = Path("store") / "runs.db", Path("runs")
COPY = Path("copy.db")
ARCHIVES = Path("archives")
SNAPSHOT_AT = 4
LARGE = 2_000
"""The number of bytes above which a value becomes a blob in these operations."""
BULKY = ("large", "early", "kept")
"""Runs whose values are blobs."""

Fact = list[Any]
_archive = archive.archive


def shrink() -> None:
    """Lower the limits of Holdfast in this process, so that small data takes the code paths of large data; silence its log."""
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    logging.getLogger("holdfast").propagate = False
    batches.MANY = 4
    archive._PIECE_ROWS = 3
    retention.YOUNG_S = -DAY_S  # even a blob that was just stored is old enough to be removed


# --- a flow and its logs -----------------------------------------------------------------------------


@dataclass
class Paper:
    title: str
    pages: Annotated[list[str], append] = field(default_factory=list)
    approved: bool = False


def text_of(title: str, length: int) -> str:
    """Return text that is the same every time, and that cannot be compressed much."""
    return hashlib.shake_256(title.encode()).hexdigest(length // 2)


def paper_flow() -> hf.Flow[Paper]:
    graph = Graph("paper", Paper)

    @graph.node
    async def write(state: Paper) -> dict[str, Any]:
        return {"pages": [text_of(state.title, 3_000)]}

    @graph.node
    async def check(state: Paper) -> dict[str, Any]:
        return {"pages": [text_of(state.pages[0], 500)]}

    @graph.node
    async def publish(state: Paper) -> dict[str, Any]:
        return {"approved": True}

    return graph.chain(START, "write", "check", "publish", END).compile()


FLOW = paper_flow()


class _Recorded:
    """A memory store that also keeps a list of all appends."""

    def __init__(self, name: str) -> None:
        self._store = MemoryStore(name, clock=lambda: STARTS_AT)
        self.appends: list[Append] = []

    def append(self, batch: Sequence[Append]) -> list[Any]:
        self.appends += batch
        return self._store.append(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@cache
def values_of(run_id: str) -> dict[str, Any]:
    """Return the final state of a completed run."""
    return history.load(_recorded(run_id)._store, run_id).values


@cache
def _recorded(run_id: str, blob_over: int | None = None) -> _Recorded:
    store = _Recorded(f"story-{run_id}-{blob_over}")
    options: dict[str, Any] = {"clock": ManualClock(auto=True), "luck": random.Random(run_id), "inline": True}

    async def execute() -> None:
        async with hf.Engine(store, flows=[FLOW], blob_over=blob_over, **options) as engine:
            await engine.run(FLOW, Paper(f"about {run_id}"), run_id=run_id)

    asyncio.run(execute())
    return store


def remember() -> None:
    """Record all runs now, so that forked children find them in the caches."""
    for run_id in ("r1", "e1", *BULKY, *(f"{kind}{number}" for kind in "bn" for number in range(5))):
        story(run_id)
        values_of(run_id)
    for run_id in BULKY:
        archive_of(run_id)


def story(run_id: str, blob_over: int | None = None) -> list[Append]:
    """Return the appends of a whole run, as an engine makes them, with the author as holder."""
    return [
        msgspec.structs.replace(part, holder=AUTHOR, fence=0 if part.create else 1, release=False)
        for part in _recorded(run_id, blob_over).appends
    ]


@cache
def archive_of(run_id: str) -> tuple[str, bytes]:
    """Return the name and the content of the archive of a completed run whose values are blobs."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(_archive(_recorded(run_id, LARGE)._store, run_id, f"{folder}/").place)
        return made.name, made.read_bytes()


def digests_of(run_id: str) -> list[str]:
    """Return the digests of the blobs of a run."""
    return [blob.digest for part in story(run_id, LARGE) for blob in part.blobs]


def digest_at(run_id: str, seq: int) -> bytes:
    return next(row.digest for part in story(run_id) for row in part.rows if row.seq == seq)


@cache
def snapshot_of(run_id: str, seq: int) -> Snapshot:
    """Return the snapshot after this event, as an engine stores it."""
    store = _recorded(run_id)._store
    state = history.load(
        store, run_id, seq, row=msgspec.structs.replace(store.run(run_id), seq=seq), cold=True
    )
    return Snapshot(seq, pack(run_state.dump(state)))


# --- telling -----------------------------------------------------------------------------------------


class Teller:
    """Reports what a process is about to do, and how that ended, to a process that outlives it."""

    def __init__(self, say: Callable[[str], None], *, early: bool = False) -> None:
        """`early`: report everything as done before it is done; the harness must find that out."""
        self._say = say
        self._early = early
        self._numbers = itertools.count()

    @contextmanager
    def verb(self, name: str, facts: Sequence[Fact] = (), also: Sequence[Fact] = ()) -> Iterator[list[Any]]:
        """Report a verb, around the block that calls it. The verb makes `facts` true together; those of `also` may become true on
        the way. A verb that returns its refusals puts them into the list.
        """
        number = next(self._numbers)
        self._tell(verb=number, name=name, facts=list(facts), also=list(also))
        verdicts: list[Any] = []
        if self._early:
            self._tell(done=number)
        try:
            yield verdicts
        except (HoldfastError, OSError) as error:
            self._tell(refused=number, error=type(error).__name__, message=str(error))
            raise
        refused = [verdict for verdict in verdicts if verdict is not None]
        if not refused:
            self._tell(done=number)
        elif len(refused) == len(verdicts):
            self._tell(refused=number, error=type(refused[0]).__name__, message=str(refused[0]))
        else:
            self.defect(f"only some appends of a batch were refused: {refused[0]}")

    def defect(self, said: str) -> None:
        self._tell(defect=said)

    def _tell(self, **words: Any) -> None:
        self._say(json.dumps(words))


class ToldStore:
    """A store that reports every write before and after it."""

    def __init__(self, store: SqliteStore, tell: Teller) -> None:
        self._store = store
        self._tell = tell
        store.blobs = ToldBlobs(store.blobs, tell)

    def append(self, batch: Sequence[Append]) -> list[Any]:
        facts = [["row", one.run_id, row.seq, row.salt.hex()] for one in batch for row in one.rows]
        facts += [["snapshot", one.run_id, snapshot.seq] for one in batch for snapshot in one.snapshots]
        facts += [["taken", one.run_id, request] for one in batch for request in one.taken]
        facts += [
            ["unmet", one.run_id, request.id]
            for one in batch
            if one.view.status in run_state.FINAL and one.create is None
            for request in self._store.inbox(run_id=one.run_id)
            if not request.taken and request.id not in one.taken
        ]
        facts += [
            ["definition", one.view.fingerprint]
            for one in batch
            if one.definition is not None and one.create is None
        ]
        blobs = [["blob", blob.digest] for one in batch for blob in one.blobs]
        with self._tell.verb("append", facts, blobs) as verdicts:
            verdicts.extend(self._store.append(batch))
        return verdicts

    def claim(self, run_id: str, holder: Holder) -> Any:
        fence = self._store.run(run_id).fence + 1
        with self._tell.verb("claim", [["fence", run_id, fence]]):
            return self._store.claim(run_id, holder)

    def renew(self, holder: Holder) -> None:
        facts = (
            [["until", holder.id, self._store.now() + holder.ttl_s]]
            if holder.ttl_s
            else [["gone", holder.id]]
        )
        with self._tell.verb("renew", facts):
            self._store.renew(holder)

    def release(self, run_id: str, holder: str, fence: int) -> None:
        with self._tell.verb("release", [["free", run_id, holder, fence]]):
            self._store.release(run_id, holder, fence)

    def post(self, run_id: str, request: Request, *, only_look: bool = False) -> bool:
        with self._tell.verb("post", [] if only_look else [["request", run_id, request.id]]):
            return self._store.post(run_id, request, only_look=only_look)

    def close(self) -> None:
        with self._tell.verb("close"):
            self._store.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class ToldBlobs:
    """A blob store that reports every write before and after it."""

    def __init__(self, blobs: Any, tell: Teller) -> None:
        self._blobs = blobs
        self._tell = tell

    def put(self, digest: str, body: bytes) -> None:
        with self._tell.verb("put", also=[["blob", digest]]):
            self._blobs.put(digest, body)

    def spill(self, run_id: str, key: str, data: bytes) -> None:
        grown = len(self._blobs.spilled(run_id).get(key, b"")) + len(data)
        with self._tell.verb("spill", [["spill", run_id, key, grown]]):
            self._blobs.spill(run_id, key, data)

    def unspill(self, run_id: str, keys: Iterable[str]) -> None:
        with self._tell.verb("unspill"):
            self._blobs.unspill(run_id, keys)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)


# --- hands -------------------------------------------------------------------------------------------


@dataclass
class Hands:
    """Everything that an operation works with: a disk, the date, and the teller for its reports."""

    disk: Path
    tell: Teller
    day: int = 1
    """The clock of each process is a day ahead of the one before it, so that the leases of dead processes have expired."""
    pragmas: dict[str, Any] = field(default_factory=dict)
    """SQLite pragmas that make the store unsafe; the harness must find that out."""

    @property
    def path(self) -> Path:
        return self.disk / STORE

    @property
    def now(self) -> float:
        return STARTS_AT + self.day * DAY_S

    def me(self, ttl_s: float = 30.0) -> Holder:
        return Holder(id=f"engine-{self.day}", ttl_s=ttl_s)

    def open(self, clock: Callable[[], float] | None = None) -> ToldStore:
        with self.tell.verb("open", [["version", len(schema.migrations("sqlite"))]]):
            store = SqliteStore(self.path, clock=clock or (lambda: self.now))
        for name, value in self.pragmas.items():
            store._database._writer.pragma(name, value)
        return ToldStore(store, self.tell)

    def use(self, call: Callable[[hf.Engine], Awaitable[Any]], *, receipts: bool = False) -> None:
        """Call a function with an engine on the store, as a program does."""
        clock = ManualClock(self.now, auto=True)
        engines.this_process = self.me
        if receipts:
            scribe.put_all = self._put_all

        async def work() -> None:
            options: dict[str, Any] = {"clock": clock, "luck": random.Random(self.day), "inline": True}
            run_base = self.disk / RUNS if receipts else None
            async with hf.Engine(store, flows=[FLOW], run_base=run_base, **options) as engine:
                await call(engine)

        store = self.open(clock.now)
        try:
            asyncio.run(work())
        finally:
            store.close()

    def _put_all(self, folder: Path, contents: dict[str, bytes]) -> None:
        facts = [
            ["file", str((folder / name).relative_to(self.disk)), hashlib.sha256(content).hexdigest()]
            for name, content in contents.items()
        ]
        with self.tell.verb("files", also=facts):
            files.put_all(folder, contents)

    def archived(self, store: Any, run_id: str, place: str) -> archive.Archived:
        """Archive a run, and report it: the deletion of the run relies on the archive from here on."""
        with self.tell.verb("archive", [["archive", archive_of(run_id)[0]]]):
            return _archive(store, run_id, place)


# --- what the disk holds before -----------------------------------------------------------------------

_never_closed: list[Any] = []
"""Stores that are kept open until the process dies."""


def nothing(hands: Hands) -> None:
    """Prepare an empty disk."""


def begun(hands: Hands, *, length: int = 2, close: bool = False) -> ToldStore:
    """Prepare a run with some of its events, left by a process that was killed, or that closed its store (`close`)."""
    store = hands.open()
    store.renew(Holder(id=AUTHOR, ttl_s=30.0))
    for part in story("r1")[:length]:
        assert store.append([part]) == [None]
    if close:
        store.close()
    return store


def closed(hands: Hands) -> None:
    begun(hands, close=True)


def several(hands: Hands) -> None:
    store = begun(hands)
    assert store.append([story(f"b{number}")[0] for number in range(5)]) == [None] * 5


def requested(hands: Hands) -> None:
    begun(hands).post("r1", Request(id="early", verb="signal", body={"name": "early", "value": 1}))


def nearly_over(hands: Hands) -> None:
    """Prepare a run that lacks only its last append, and two requests to it."""
    store = begun(hands, length=len(story("r1")) - 1)
    for request in ("one", "two"):
        store.post("r1", Request(id=request, verb="signal", body={"name": request, "value": 1}))


def old(hands: Hands) -> None:
    """Prepare a run with snapshots, and a new run."""
    store = begun(hands)
    part = story("r1")[2]
    kept = tuple(snapshot_of("r1", seq) for seq in (SNAPSHOT_AT - 2, SNAPSHOT_AT))
    assert store.append([msgspec.structs.replace(part, snapshots=kept)]) == [None]
    for number in range(2):
        assert store.append([story(f"n{number}")[0]]) == [None]
    store.release("n0", AUTHOR, 1)


def completed(hands: Hands) -> None:
    begun(hands, length=len(story("r1")), close=True)


def bulky(hands: Hands) -> None:
    """Prepare two runs that have ended and one that has not, all with blobs."""
    store = hands.open()
    store.renew(Holder(id=AUTHOR, ttl_s=30.0))
    for run_id in BULKY:
        for part in story(run_id, LARGE)[: 2 if run_id == "kept" else None]:
            assert store.append([part]) == [None]
    store.close()


def away(hands: Hands) -> None:
    """Prepare the archive of a run, and a store that does not have the run."""
    hands.open().close()
    name, content = archive_of("large")
    disk.make_folder(hands.disk / ARCHIVES)
    (hands.disk / ARCHIVES / name).write_bytes(content)


def first_version(hands: Hands) -> None:
    """Prepare a store with the first version of the schema, and a run in it."""
    disk.prepare(hands.path)
    parts = story("r1")[:2]
    new, view, last = parts[0].create, parts[-1].view, parts[-1].rows[-1]
    assert new is not None
    with hands.tell.verb(
        "append", [["row", "r1", row.seq, row.salt.hex()] for part in parts for row in part.rows]
    ):
        connection = apsw.Connection(str(hands.path))
        connection.pragma("journal_mode", "wal")
        connection.execute(schema.migrations("sqlite")[0])
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", 1)
        connection.execute(
            "insert into runs (run_id, flow, input_digest, labels, created_at, status, seq, digest, updated_at, fingerprint, "
            "state_version, active, fence) values (?, ?, ?, '{}', ?, ?, ?, ?, ?, ?, ?, ?, 1)",
            ("r1", new.flow, new.input_digest, new.created_at, view.status, last.seq, last.digest, last.at, view.fingerprint,
             view.state_version, json.dumps(view.active)),
        )  # fmt: skip
        connection.executemany(
            "insert into events (key, at, kind, node, iteration, execution, attempt, salt, body, digest) "
            "values (1 << 32 | ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [msgspec.structs.astuple(row) for part in parts for row in part.rows],
        )
        connection.execute(
            "insert into definitions (fingerprint, body) values (?, ?)",
            (view.fingerprint, parts[0].definition),
        )
    _never_closed.append(connection)


# --- what is done ------------------------------------------------------------------------------------


def make_store(hands: Hands) -> None:
    hands.open().close()


def append_one(hands: Hands) -> None:
    store = hands.open()
    for part in story("r1")[2:4]:
        with suppress(HoldfastError):
            store.append([part])
    store.close()


def append_batch(hands: Hands) -> None:
    """Create several runs in one batch, then append to several runs in one batch: the two ways in which a batch is written."""
    store = hands.open()
    with suppress(HoldfastError):
        store.append([story(f"n{number}")[0] for number in range(3)])
    with suppress(HoldfastError):
        store.append([story(f"b{number}")[1] for number in range(5)])
    store.close()


def append_snapshot(hands: Hands) -> None:
    part = story("r1")[2]
    snapshot = snapshot_of("r1", part.rows[-1].seq)
    store = hands.open()
    with suppress(HoldfastError):
        store.append([msgspec.structs.replace(part, snapshots=(snapshot,))])
    store.close()


def lease(hands: Hands) -> None:
    store = hands.open()
    fence = 2
    with suppress(HoldfastError):
        store.renew(hands.me())
    with suppress(HoldfastError):
        fence = store.claim("r1", hands.me()).fence
    with suppress(HoldfastError):
        store.release("r1", hands.me().id, fence)
    with suppress(HoldfastError):
        store.renew(hands.me(0.0))
    store.close()


def post(hands: Hands) -> None:
    """Post a request to the inbox, and record one that was posted before."""
    store = hands.open()
    with suppress(HoldfastError):
        store.post("r1", Request(id="late", verb="signal", body={"name": "late", "value": "x" * 200}))
    with suppress(HoldfastError):
        store.append([msgspec.structs.replace(story("r1")[2], taken=("early",))])
    store.close()


def end(hands: Hands) -> None:
    """Complete a run in whose inbox requests wait, and record one of them."""
    store = hands.open()
    with suppress(HoldfastError):
        store.append([msgspec.structs.replace(story("r1")[-1], taken=("one",))])
    store.close()


def put_blobs(hands: Hands) -> None:
    """Append a run whose values are blobs, one of them put twice; remove a blob; and spill a stream."""
    store = hands.open()
    with suppress(HoldfastError):
        store.renew(Holder(id=AUTHOR, ttl_s=30.0))
    for part in story("large", LARGE)[:2]:
        with suppress(HoldfastError):
            store.append([part])
    spare = Blob.of(text_of("spare", 4_000).encode())
    for _ in range(2):
        with suppress(HoldfastError):
            store.blobs.put(spare.digest, spare.body)
    for data in (b"one " * 300, b"two " * 300):
        with suppress(HoldfastError):
            store.blobs.spill("s1", "stream", data)
    with suppress(HoldfastError):
        store.blobs.unspill("s1", ["stream"])
    store.close()


def receipts(hands: Hands) -> None:
    """Make all files of a run from its log."""
    scribe.put_all = hands._put_all
    store = hands.open()
    with suppress(OSError):
        scribe.rebuild(hands.disk / RUNS, store, "r1")
    store.close()


def checkpoint(hands: Hands) -> None:
    """Fold the WAL into the database while the store is in use, and start a new WAL."""
    store = hands.open()
    store._store._database._writer.wal_autocheckpoint(12)
    for part in story("r1")[2:]:
        with suppress(HoldfastError):
            store.append([part])
    for number in range(2):
        with suppress(HoldfastError):
            store.append([story(f"n{number}")[0]])
    store.close()


def take(hands: Hands) -> None:
    """Set a limit of a queue, and claim runs from the queues, as a worker does."""
    store = hands.open()
    with suppress(HoldfastError), hands.tell.verb("limit", [["limit", "default", 9]]):
        store.queues.limit("default", 9)
    facts = [["fence", run_id, 2] for run_id in ("r1", *(f"b{number}" for number in range(5)))]
    with suppress(HoldfastError), hands.tell.verb("take", facts):
        store.queues.take(hands.me(), Wanted(flows=(FLOW.name,), limit=9))
    store.close()


def prune(hands: Hands) -> None:
    """Retire checkpoints and drop a snapshot; delete a whole run; sweep its remaining events."""
    store = hands.open()
    with suppress(HoldfastError), hands.tell.verb("retire", [["retired", "r1", SNAPSHOT_AT]]):
        store.upkeep.retire("r1", SNAPSHOT_AT, [SNAPSHOT_AT - 2])
    with suppress(HoldfastError), hands.tell.verb("delete", [["deleted", "n0"]]):
        store.upkeep.delete("n0", story("n0")[0].rows[-1].seq)
    with suppress(HoldfastError), hands.tell.verb("sweep"):
        store.upkeep.sweep(3)
    store.close()


def compact(hands: Hands) -> None:
    """Replace the older half of a log by a base."""
    store = hands.open()
    with suppress(HoldfastError):
        store.renew(hands.me())
    with suppress(HoldfastError):
        fence = store.claim("r1", hands.me()).fence
        base = snapshot_of("r1", SNAPSHOT_AT)
        with hands.tell.verb("compact", [["base", "r1", SNAPSHOT_AT]]):
            store.upkeep.compact(
                "r1",
                SNAPSHOT_AT,
                body=base.body,
                digest=digest_at("r1", SNAPSHOT_AT),
                holder=hands.me().id,
                fence=fence,
            )
    for _ in range(2):
        with suppress(HoldfastError), hands.tell.verb("sweep"):
            store.upkeep.sweep(3)
    store.close()


def back_up(hands: Hands) -> None:
    store = hands.open()
    with suppress(HoldfastError), hands.tell.verb("backup", [["copy", COPY.name]]):
        store.upkeep.backup(str(hands.disk / COPY))
    store.close()


def give_back(hands: Hands) -> None:
    """Give back all leases of a dead holder, as a recovery does."""
    store = hands.open()
    facts = [["free", run_id, AUTHOR, 1] for run_id in ("r1", *(f"b{number}" for number in range(5)))]
    with suppress(HoldfastError), hands.tell.verb("give back", [*facts, ["gone", AUTHOR]]):
        store.queues.give_back([AUTHOR])
    store.close()


def send_away(hands: Hands) -> None:
    """Archive the two runs that have ended, delete them, and remove the blobs that only they used. One of the archives exists
    already: its process was killed before the name of the file was durable.
    """
    archive.archive = hands.archived
    store = hands.open()
    for run_id in ("large", "early"):
        with suppress(HoldfastError, OSError):
            if run_id == "early":
                _name_and_die(hands.disk / ARCHIVES, *archive_of(run_id))
            row = store.run(run_id)
            choice = retention.Choice(
                run_id=run_id, flow=row.flow, status=row.status, updated_at=row.updated_at, seq=row.seq, goes=True, why=""
            )  # fmt: skip
            with hands.tell.verb("delete", [["deleted", run_id]]):
                done = retention.delete(store, choice, f"{hands.disk / ARCHIVES}/")
                if not done.goes:
                    hands.tell.defect(f"run {run_id} was not deleted: {done.why}")
    with suppress(HoldfastError):
        gone = [
            ["unwanted", digest]
            for run_id in BULKY
            if _is_gone(store, run_id)
            for digest in digests_of(run_id)
        ]
        with hands.tell.verb("sweep", also=gone):
            retention.sweep(store)
    store.close()


def _name_and_die(folder: Path, name: str, content: bytes) -> None:
    disk.make_folder(folder)
    beside = folder / f".{name}"
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, folder / name)


def _is_gone(store: ToldStore, run_id: str) -> bool:
    try:
        store.run(run_id)
    except RunNotFound:
        return True
    return False


def put_back(hands: Hands) -> None:
    """Put a run back from its archive, piece by piece."""
    archive.this_process = hands.me
    store = hands.open()
    rows = [["row", "large", row.seq, row.salt.hex()] for part in story("large", LARGE) for row in part.rows]
    blobs = [["blob", digest] for digest in digests_of("large")]
    with suppress(HoldfastError), hands.tell.verb("put back", also=[*rows, *blobs]):
        archive.put_back(store, hands.disk / ARCHIVES / archive_of("large")[0])
    store.close()


def run_flow(hands: Hands) -> None:
    hands.use(lambda engine: engine.run(FLOW, Paper("about e1"), run_id="e1"), receipts=True)


def resume_flow(hands: Hands) -> None:
    hands.use(lambda engine: engine.resume("r1"))


def fork_run(hands: Hands) -> None:
    hands.use(lambda engine: engine.fork("r1", run_id="f1"))


@dataclass(frozen=True)
class Operation:
    prepare: Callable[[Hands], Any]
    perform: Callable[[Hands], Any]
    files: bool = False
    """Whether engines that resume the runs write receipts, which must then be complete."""
    again: bool = False
    """Whether the operation must be repeated after a crash, because resuming the runs does not complete it."""


OPERATIONS: dict[str, Operation] = {
    "create": Operation(nothing, make_store),
    "append": Operation(begun, append_one),
    "append batch": Operation(several, append_batch),
    "snapshot": Operation(closed, append_snapshot),
    "lease": Operation(closed, lease),
    "post": Operation(requested, post),
    "end": Operation(nearly_over, end),
    "blob": Operation(begun, put_blobs),
    "receipt": Operation(completed, receipts),
    "migrate": Operation(first_version, make_store),
    "checkpoint": Operation(begun, checkpoint),
    "take": Operation(several, take),
    "prune": Operation(old, prune),
    "compact": Operation(old, compact),
    "backup": Operation(old, back_up),
    "give back": Operation(several, give_back),
    "archive": Operation(bulky, send_away, again=True),
    "put back": Operation(away, put_back, again=True),
    "run": Operation(nothing, run_flow, files=True),
    "resume": Operation(begun, resume_flow),
    "fork": Operation(closed, fork_run),
}


def finish(hands: Hands, operation: Operation) -> None:
    """Resume runs that have not ended (only a few if there are many), as a program does that is started after a crash."""
    if operation.again:
        operation.perform(hands)

    async def go_on(engine: hf.Engine) -> None:
        open_runs = [
            run for run in await engine.runs() if run.status not in ("completed", "cancelled", "failed")
        ]
        for run in open_runs[:2]:
            await engine.resume(run.id)

    hands.use(go_on, receipts=operation.files)
