"""What every operation works with: its disk and its engines, the flows and their recorded runs, and the reports of a process.

A child reports with lines of JSON on a pipe (`Teller`): before a verb is called, the facts that it would make true; afterwards,
how it ended. The facts of one verb are written together or not at all; `inspection` compares the disk with them. Everything is
the same every time: ids, salts, clock, and the bytes on the disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import random
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

import holdfast as hf
from holdfast import END, START, Graph, append
from holdfast.core import run_state
from holdfast.documents import files, scribe
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.reading import history
from holdfast.runtime import engine as engines
from holdfast.storage import schema
from holdfast.storage.contract import Append, Holder, Request, Snapshot
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import pack
from holdfast.storage.sqlite import batches
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.uptime import Uptime
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
CRASHES_MAX = 10
"""How often the process may die in a node: more often than these operations and their recoveries make it die."""
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

    @graph.node(crash_limit=CRASHES_MAX)
    async def write(state: Paper) -> dict[str, Any]:
        return {"pages": [text_of(state.title, 3_000)]}

    @graph.node(crash_limit=CRASHES_MAX)
    async def check(state: Paper) -> dict[str, Any]:
        return {"pages": [text_of(state.pages[0], 500)]}

    @graph.node(crash_limit=CRASHES_MAX)
    async def publish(state: Paper) -> dict[str, Any]:
        return {"approved": True}

    return graph.chain(START, "write", "check", "publish", END).compile()


FLOW = paper_flow()


@dataclass
class Order:
    title: str
    charged: str = ""
    sent: str = ""


def order_flow() -> hf.Flow[Order]:
    graph = Graph("order", Order)

    @graph.node(idempotent=False, crash_limit=CRASHES_MAX)
    async def charge(state: Order) -> dict[str, Any]:
        return {"charged": text_of(state.title, 100)}

    @graph.node(crash_limit=CRASHES_MAX)
    async def send(state: Order) -> dict[str, Any]:
        return {"sent": text_of(state.charged, 100)}

    return graph.chain(START, "charge", "send", END).compile()


ORDER = order_flow()
ORDERED = "o1"
"""The run of the flow `order`: its first node must not run twice."""
FORKS = {"f1": "r1", "g1": ORDERED, "h1": ORDERED}
"""Fork -> the run that it is forked from, and ends like."""


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
            if run_id == ORDERED:
                await engine.run(ORDER, Order(f"about {run_id}"), run_id=run_id)
            else:
                await engine.run(FLOW, Paper(f"about {run_id}"), run_id=run_id)

    asyncio.run(execute())
    return store


def remember() -> None:
    """Record all runs now, so that forked children find them in the caches."""
    for run_id in ("r1", "e1", ORDERED, *BULKY, *(f"{kind}{number}" for kind in "bn" for number in range(5))):
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
        self._say(msgspec.json.encode(words).decode())


class ToldStore:
    """A store that reports every write before and after it."""

    def __init__(self, store: SqliteStore, tell: Teller) -> None:
        self._store = store
        self._tell = tell
        self.queues = ToldQueues(store, tell)
        store.blobs = ToldBlobs(store.blobs, tell)

    def _is_posted(self, run_id: str, request: str) -> bool:
        """Return whether the inbox has a request. One whose post failed may be carried out all the same."""
        return any(one.id == request for one in self._store.inbox(run_id=run_id))

    def _takes_requests(self, run_id: str, written: Sequence[Append]) -> bool:
        """Return whether a run exists and is not over once these appends are written; a request to another run is dropped."""
        statuses = [one.view.status for one in written if one.run_id == run_id]
        try:
            return (statuses[-1] if statuses else self._store.run(run_id).status) not in run_state.FINAL
        except RunNotFound:
            return False

    def append(self, batch: Sequence[Append]) -> list[Any]:
        written = [one for given in batch for one in (given, *(given.along.starts if given.along else ()))]
        facts = [["row", one.run_id, row.seq, row.salt.hex()] for one in written for row in one.rows]
        facts += [["snapshot", one.run_id, snapshot.seq] for one in written for snapshot in one.snapshots]
        facts += [
            ["request", run_id, request.id]
            for one in batch
            for run_id, request in (one.along.posts if one.along else ())
            if self._takes_requests(run_id, written)
        ]
        facts += [
            ["taken", one.run_id, request]
            for one in batch
            for request in one.taken
            if self._is_posted(one.run_id, request)
        ]
        facts += [
            ["unmet", one.run_id, request.id]
            for one in batch
            if one.create is None and one.view.status in run_state.FINAL
            for request in self._store.inbox(run_id=one.run_id)
            if not request.taken and request.id not in one.taken
        ]
        facts += [
            ["definition", one.view.fingerprint]
            for one in batch
            if one.definition is not None and one.create is None
        ]
        blobs = [["blob", blob.digest] for one in batch for blob in one.all_blobs]
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
        with self._tell.verb("post", [["request", run_id, request.id]] if not only_look else []):
            return self._store.post(run_id, request, only_look=only_look)

    def close(self) -> None:
        with self._tell.verb("close"):
            self._store.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class ToldQueues:
    """The queues of a store, which report when runs are taken and requests are posted. Which runs are taken is known only
    afterwards.
    """

    def __init__(self, store: Any, tell: Teller) -> None:
        self._store = store
        self._queues = store.queues
        self._tell = tell

    def take(self, holder: Holder, wanted: Any) -> Any:
        with self._tell.verb("take"):
            return self._queues.take(holder, wanted)

    def post_all(self, batch: Sequence[Request]) -> Any:
        open_runs = [
            one for one in batch if self._store.run(one.run_id).status not in run_state.FINAL
        ]  # others refuse
        with self._tell.verb("post all", [["request", one.run_id, one.id] for one in open_runs]):
            return self._queues.post_all(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queues, name)


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
        store._database._uptime = Uptime(
            read_clock=None
        )  # the real one would put other bytes on the disk each time
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
            async with hf.Engine(store, flows=[FLOW, ORDER], run_base=run_base, **options) as engine:
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


@dataclass(frozen=True)
class Operation:
    prepare: Callable[[Hands], Any]
    perform: Callable[[Hands], Any]
    files: bool = False
    """Whether engines that resume the runs write receipts, which must then be complete."""
    again: bool = False
    """Whether the operation must be repeated after a crash, because resuming the runs does not complete it."""
    asks: bool = False
    """Whether it is about requests: in the end, none of them may be lost."""


def begun(hands: Hands, run_id: str = "r1", *, length: int = 2, close: bool = False) -> ToldStore:
    """Prepare a run with some of its events, left by a process that was killed, or that closed its store (`close`)."""
    store = hands.open()
    store.renew(Holder(id=AUTHOR, ttl_s=30.0))
    for part in story(run_id)[:length]:
        assert store.append([part]) == [None]
    if close:
        store.close()
    return store
