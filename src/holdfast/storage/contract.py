"""What a store is: fifteen verbs, their words and their errors. Every store passes `holdfast.testing.conformance`.

A store keeps, per run, a log of rows without gaps, one run row that is a view of that log, the snapshots that make
loading fast, a lease (who may append) and an inbox (what everyone else wants); and beside them blobs, values too large for
a log (`holdfast.storage.blobs`), and queues of runs that want a holder (`holdfast.storage.queues`). It never looks into a body.

The one write that matters is `append`. It is conditional: the log must end at `expected_seq`, and the writer must still hold
the lease with `fence`. Both are checked in the transaction that writes, so a late writer is harmless whatever the clocks say.
A batch of appends is one transaction, and each append has a verdict of its own: a refused one leaves its neighbours alone.

All verbs are plain functions and may be called from any thread. A store that was closed, or that was opened before a fork and
is used in the child, raises `StoreUnusable` from every verb. Every verb may raise `StoreBusy`, `StoreUnusable`, `StoreCorrupt`
and `StorePoisoned`; the others are listed with the verb.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from holdfast.errors import HoldfastError
from holdfast.storage import leases
from holdfast.storage.blobs import Blob, Blobs
from holdfast.storage.queues import DEFAULT_QUEUE, Queues
from holdfast.storage.upkeep import Upkeep

RunStatus: TypeAlias = Literal[
    "pending", "running", "waiting", "paused", "interrupted", "completed", "failed", "cancelled"
]
STATUSES: tuple[RunStatus, ...] = (
    "pending",
    "running",
    "waiting",
    "paused",
    "interrupted",
    "completed",
    "failed",
    "cancelled",
)

Holder: TypeAlias = leases.Holder
Lease: TypeAlias = leases.Lease


def in_order(statuses: Collection[str]) -> tuple[RunStatus, ...]:
    """A set of statuses in the order of `STATUSES`, as a `Query` takes them."""
    return tuple(status for status in STATUSES if status in statuses)


class Row(msgspec.Struct, frozen=True, gc=False):
    """An event as stored. `body` is JSON or, where that is shorter, zstd of JSON; `digest` chains it to its predecessor."""

    seq: int
    at: float
    kind: str
    node: str | None
    iteration: int
    execution: int
    attempt: int
    salt: bytes
    body: bytes
    digest: bytes


class Snapshot(msgspec.Struct, frozen=True):
    """A stored fold. A `base` replaces the events up to `seq`, which this log does not hold; `digest` is the chain there."""

    seq: int
    body: bytes
    base: bool = False
    digest: bytes = b""


class View(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The part of a run row that every append rewrites: a view of the log, checked by `verify`."""

    status: RunStatus
    fingerprint: str
    state_version: int
    active: tuple[str, ...] = ()
    """Names of the nodes that have started and not ended (the first few), for listings."""
    error: str | None = None
    rewinds: tuple[tuple[int, int], ...] = ()
    """(seq of a RunRewound, where it went back to), oldest first."""
    due_at: float | None = None
    """When the run wants attention by itself (a retry, a timer)."""


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a run row that is written once."""

    flow: str
    input_digest: bytes
    created_at: float
    labels: dict[str, str] = {}
    parent: str | None = None
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    """Of the runs on offer, those with the highest are taken first."""


class Append(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that one step writes, in one transaction."""

    run_id: str
    expected_seq: int
    rows: tuple[Row, ...]
    """At least one; seqs follow `expected_seq` without gap. The salt of the first is the id of the append."""
    view: View
    holder: str | None = None
    """Id of the holder whose lease this append uses; None only to create a run that no engine holds yet."""
    fence: int = 0
    create: NewRun | None = None
    """This append makes the run. With `holder` it is leased at once, with fence 1."""
    snapshots: tuple[Snapshot, ...] = ()
    definition: bytes | None = None
    """The flow's definition, stored once per `view.fingerprint`."""
    taken: tuple[str, ...] = ()
    """Ids of inbox requests that these rows answer; they leave the inbox."""
    release: bool = False
    """Give the lease back with this append."""
    blobs: tuple[Blob, ...] = ()
    """What rows and snapshots refer to: durable before they are."""

    @property
    def has_extras(self) -> bool:
        """Whether it writes more than its rows and the run row. Every store writes that in one function of its own, so a
        new extra is a field, a line here, and a line in each of those.
        """
        return bool(self.snapshots or self.definition is not None or self.taken)


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the store lists it."""

    run_id: str
    flow: str
    status: RunStatus
    seq: int
    digest: bytes
    fingerprint: str
    state_version: int
    created_at: float
    updated_at: float
    input_digest: bytes
    labels: dict[str, str]
    parent: str | None
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    active: tuple[str, ...]
    error: str | None
    rewinds: tuple[tuple[int, int], ...]
    due_at: float | None
    fence: int
    holder: Holder | None
    """Who holds the lease, dead or alive."""
    held: bool
    """Whether that keeps others out: the lease has not run out, and its holder is not known to be dead."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list. Every condition must hold; the newest come first."""

    status: tuple[RunStatus, ...] = ()
    flow: str | None = None
    labels: dict[str, str] = {}
    parent: str | None = None
    queue: str | None = None
    before: str | None = None
    """Only runs that come after this run id in the listing (paging)."""
    limit: int = 100


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller that does not hold the lease wants of a run. `id` makes posting it twice harmless."""

    id: str
    verb: str
    body: dict[str, Any] = {}
    by: str | None = None
    reason: str | None = None
    run_id: str = ""
    at: float = 0.0


Verdict: TypeAlias = HoldfastError | None


class Store(Protocol):
    """What a store has to implement. The head of this file says what holds for all its methods."""

    url: str
    """How to open this store again, without any secret."""
    blobs: Blobs
    """Where the values that are too large for the log are kept."""
    upkeep: Upkeep
    """How it is kept small and whole."""
    queues: Queues
    """Which runs wait for a worker to execute them."""
    generation: str
    """Chosen at random when the store was made, and again when it was put back from a copy (`Queues.renew_generation`)."""

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        """Write a batch in one transaction; acknowledged means durable. Verdicts, in order: None (written), `RunExists`,
        `RunNotFound`, `FenceLost` (also for a holder that the store does not know), `SeqConflict`, `CodecError` (text that no
        store can keep), `StoreCorrupt` (this run's log is damaged), or why a blob of the append could not be kept
        (`StoreFull`, `StoreBusy`, …). Blobs are durable before the transaction begins; those of an append that is refused, or
        that a crash forestalls, stay without harm. Raises `StoreFull`: nothing of the batch is written.
        """

    def appended(self, run_id: str, seq: int, append_id: bytes) -> bool:
        """Whether the row at `seq` was written by the append with this id: resolves an unknown outcome. False for no
        such run. A poisoned store cannot tell and raises `StorePoisoned`: ask again from a new process.
        """

    def run(self, run_id: str) -> RunRow:
        """One run. Raises `RunNotFound`."""

    def runs(self, query: Query) -> list[RunRow]:
        """The runs that fit, newest first. Raises `RunNotFound` for an unknown `before`."""

    def events(
        self,
        run_id: str,
        after: int = 0,
        upto: int | None = None,
        *,
        kinds: Collection[str] = (),
        node: str | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        """Rows with `after < seq <= upto`, in order. Raises `RunNotFound`."""

    def snapshot(self, run_id: str, within: Sequence[tuple[int, int]]) -> Snapshot | None:
        """The latest snapshot whose seq lies in one of these ranges (both ends included). Raises `RunNotFound`."""

    def definition(self, fingerprint: str) -> bytes | None:
        """A flow's definition, if any run of this store was made with it."""

    def claim(self, run_id: str, holder: Holder) -> Lease:
        """Take the lease: the fence grows by one. The same holder may claim again. Raises `RunNotFound`, `RunHeld`."""

    def renew(self, holder: Holder) -> None:
        """Say that this holder lives: one row, for all its leases, `ttl_s` from now. An engine says so before it first appends
        in its name. With `ttl_s=0` it is gone: all its leases are released at once.
        """

    def release(self, run_id: str, holder: str, fence: int) -> None:
        """Give a lease back. Does nothing where it is already another's."""

    def post(self, run_id: str, request: Request, *, only_look: bool = False) -> bool:
        """Leave a request; durable when this returns. False: it was left before, whether or not it has been taken since. The
        store fills in `run_id`, and `at` where it is 0. `only_look` answers the same, and leaves nothing. Raises `RunNotFound`,
        `CodecError`, `StoreFull`.
        """

    def inbox(self, holder: str) -> list[Request]:
        """Requests for the runs of this holder, oldest first; they stay until an append takes them."""

    def now(self) -> float:
        """The store's time, in seconds since the epoch: leases and timers go by it."""

    def check(self) -> list[str]:
        """What is damaged in the store as a whole (pages, indexes); empty where it is intact."""

    def close(self) -> None:
        """Idempotent. What was acknowledged is durable already."""
