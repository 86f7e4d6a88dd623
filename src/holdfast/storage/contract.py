"""The contract of a store: fifteen methods (verbs), their types and their errors. Every store passes
`holdfast.testing.conformance`.

A store keeps, per run: a log of rows without gaps, one run row that summarises the log, snapshots that make loading fast, a lease
(which engine may append) and an inbox (requests from all other processes). Beside the runs it keeps blobs, which are values too
large for a log (`holdfast.storage.blobs`), queues of runs that wait for a worker (`holdfast.storage.queues`), and tokens, which
say who may use the server of the store (`holdfast.storage.tokens`). Followers of runs read its feed (`Feed`). It never interprets
the body of an event.

The most important write is `append`. It is conditional: the log must end at `expected_seq`, and the writer must still hold the
lease with `fence`. Both are checked in the transaction that writes, so a writer that has lost the lease cannot write, whatever
the clocks say. A batch of appends is one transaction, and each append has a verdict of its own: if one is refused, the others are
still written. An append may also create other runs and post requests to them (`Append.along`): all of that is written with it,
or nothing of it is.

All verbs are plain functions and may be called from any thread. A store that was closed, or that was opened before a fork and is
used in the child, raises `StoreUnusable` from every verb. Every verb may raise `StoreBusy`, `StoreUnusable`, `StoreCorrupt` and
`StorePoisoned`; the others are listed with the verb.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from holdfast.errors import HoldfastError
from holdfast.storage import leases, queues
from holdfast.storage.blobs import Blob, Blobs
from holdfast.storage.queues import DEFAULT_QUEUE, Queues
from holdfast.storage.tokens import Tokens
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
Request: TypeAlias = queues.Request


def in_order(statuses: Collection[str]) -> tuple[RunStatus, ...]:
    """Sort a set of statuses in the order of `STATUSES`, for use in a `Query`."""
    return tuple(status for status in STATUSES if status in statuses)


class Row(msgspec.Struct, frozen=True, gc=False):
    """An event as stored. `body` is JSON, compressed with zstd if that is shorter; `digest` is computed from this row and the
    digest of the row before it.
    """

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
    """A stored state of a run at `seq`. If `base` is true, it is a compaction base: it replaces the events up to `seq`, which are
    no longer in the log, and `digest` is the digest of event `seq`, from which the hash chain continues.
    """

    seq: int
    body: bytes
    base: bool = False
    digest: bytes = b""


class View(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The part of a run row that every append rewrites. It is derived from the log, and `verify` compares the two."""

    status: RunStatus
    fingerprint: str
    state_version: int
    active: tuple[str, ...] = ()
    """Names of the nodes that have started and not ended (the first few), for listings."""
    error: str | None = None
    rewinds: tuple[tuple[int, int], ...] = ()
    """Pairs (seq of a `RunRewound` event, seq that the run went back to), oldest first."""
    due_at: float | None = None
    """The time of the run's next retry or timer, at which the run becomes due without a request; None if it waits for neither. Of
    a pending run, the time at which it is to begin; None: at once."""
    asks: int | None = None
    """The number of its open questions; None if `asks`, `active_s` and `situation` are unknown, because the row was last written
    by a version of Holdfast that did not compute them."""
    active_s: float | None = None
    """For how many seconds its nodes have run in total."""
    situation: str | None = None
    """The facts that explain the status, as JSON (`holdfast.core.situation`); None if it is unknown, or empty."""


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a run row that is written once, when the run is created."""

    flow: str
    input_digest: bytes
    created_at: float
    labels: dict[str, str] = {}
    parent: str | None = None
    """The run from which it was forked."""
    origin: str | None = None
    """The run that started it."""
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    """Workers take the runs with the highest priority first."""


class Append(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that an engine writes to a run in one step; the store writes it in one transaction."""

    run_id: str
    expected_seq: int
    rows: tuple[Row, ...]
    """The new events, at least one; their seqs follow `expected_seq` without a gap. The salt of the first row is the id of the
    append."""
    view: View
    holder: str | None = None
    """Id of the holder whose lease this append uses; None only to create a run that no engine holds yet."""
    fence: int = 0
    create: NewRun | None = None
    """The data of the new run; None unless this append creates the run. If `holder` is also given, that holder has the lease at
    once, with fence 1."""
    snapshots: tuple[Snapshot, ...] = ()
    definition: bytes | None = None
    """The flow's definition, stored once per `view.fingerprint`."""
    taken: tuple[str, ...] = ()
    """Ids of the inbox requests that these rows handle; they are removed from the inbox."""
    release: bool = False
    """True if the append also releases the lease."""
    blobs: tuple[Blob, ...] = ()
    """The blobs that the rows and snapshots refer to. They become durable before the rows."""
    along: Along | None = None
    """What it changes in other runs; None for nearly every step."""

    @property
    def has_extras(self) -> bool:
        """True if the append writes more than its rows and the run row. Each store has one function that writes these extras; a
        new kind of extra needs a field here, a term in this expression, and a line in each of these functions.
        """
        return bool(self.snapshots or self.definition is not None or self.taken or self.along is not None)

    @property
    def all_blobs(self) -> tuple[Blob, ...]:
        """Its blobs, and those of the runs that it starts."""
        if self.along is None:
            return self.blobs
        return self.blobs + tuple(blob for start in self.along.starts for blob in start.blobs)


class Along(msgspec.Struct, frozen=True, kw_only=True):
    """What an append changes in other runs. It is written in the transaction of the append, or the append is refused."""

    starts: tuple[Append, ...] = ()
    """The first appends of runs that it creates. Each has `create`, no holder and no `along`. If a run with one of these ids
    exists, or two of them have the same id, the whole append is refused with `RunExists`."""
    posts: tuple[tuple[str, Request], ...] = ()
    """Requests for the inboxes of other runs, which are posted when all appends of the batch are written. A request that was
    posted before is not posted again; one to a run that does not exist, or is completed or cancelled, is dropped, or counts as
    unmet if that run ends at the same time. The time of a request with `at=0` is that of the append's last row."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a store lists it: its run row and its lease."""

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
    origin: str | None = None
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    active: tuple[str, ...]
    error: str | None
    rewinds: tuple[tuple[int, int], ...]
    due_at: float | None
    asks: int | None = None
    active_s: float | None = None
    situation: str | None = None
    fence: int
    holder: Holder | None
    """The engine that has the lease, whether its process is alive or dead."""
    held: bool
    """True if the lease keeps other engines out: it has not expired, and its holder is not known to be dead."""
    fault: str = ""
    """Only in a listing: why the row cannot be read; then labels, active nodes and rewinds are left out. Empty if it can."""

    @property
    def position(self) -> Position:
        return Position(self.created_at, self.run_id)


class Position(msgspec.Struct, frozen=True, order=True):
    """The place of a run in every listing. It stays a place even if the run is deleted."""

    created_at: float
    run_id: str


class Query(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which runs to list: those that meet every condition, newest first (by `created_at`, then by run id)."""

    status: tuple[RunStatus, ...] = ()
    flow: str | None = None
    labels: dict[str, str] = {}
    parent: str | None = None
    origin: str | None = None
    """Only runs that this run started."""
    queue: str | None = None
    without_fingerprint: str | None = None
    """Only runs of flows that have another fingerprint: another shape."""
    ids: tuple[str, ...] | None = None
    """Only runs with one of these ids; unknown ids are left out."""
    prefix: str = ""
    """Only runs whose id begins with this text."""
    asks: bool = False
    """True: only runs with open questions. Runs that are not over and whose row does not tell (`RunRow.asks` is None) are listed
    too."""
    offered: bool = False
    """True: only runs that a worker may claim now because of their status or their time (see `storage.queues`), and not only
    because of a request."""
    created: tuple[float | None, float | None] = (None, None)
    """Only runs that were created at the first time or later, and before the second time."""
    after: Position | None = None
    """Only runs that come after this position in the listing (for paging)."""
    limit: int = 100

    @property
    def begins_after(self) -> Position | None:
        """The position after which the listing begins, by `after` and `created`; None if it begins with the newest run."""
        until = self.created[1]
        if until is None:
            return self.after
        begin = Position(
            until, ""
        )  # no id comes before the empty one, so no run of that very time is after it
        return begin if self.after is None else min(begin, self.after)


Verdict: TypeAlias = HoldfastError | None


# --- the ends of many logs ---------------------------------------------------------------------------

NO_EVENTS = 2**32 - 1
"""The `after` of a run of which only the end is wanted: no log has an event after it."""


class Tail(msgspec.Struct, gc=False):
    """The end of a log: where it ends, the status of its run, and the events after some place."""

    seq: int
    """The seq of the last event."""
    status: RunStatus
    held: bool
    """True if an engine that is not known to be dead holds the run, as in `RunRow.held`."""
    rows: list[Row]
    """Events after the place that was asked for, oldest first; there may be more of them."""


class Feed(Protocol):
    """The method of a store that followers use. It is synchronous, may be called from any thread, and raises the errors that
    every method of a store may raise.
    """

    def look(self, after: Mapping[str, int], limit: int) -> dict[str, Tail]:
        """Return the ends of these logs, each with up to `limit` of its events after the given seq, all as of one moment and in
        one query. Runs that do not exist are left out. Events that a compaction has removed are left out, too: the first event
        may then be more than one after the given seq.
        """


# --- the store ---------------------------------------------------------------------------------------


class Store(Protocol):
    """The methods that a store must implement. The docstring of this module says what applies to all of them."""

    url: str
    """The URL to open this store again, without a password."""
    blobs: Blobs
    """The place for values that are too large for the log."""
    generation: str
    """A random id of this store, chosen when it is created, and again when it is restored from a copy
    (`Queues.renew_generation`)."""

    @property
    def upkeep(self) -> Upkeep:
        """The methods that keep the store small and intact: retire, compact, delete, sweep, back up."""

    @property
    def queues(self) -> Queues:
        """The methods that offer waiting runs to workers."""

    @property
    def tokens(self) -> Tokens:
        """The methods that keep the tokens of the server."""

    @property
    def feed(self) -> Feed:
        """The method that looks at the ends of many logs."""

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        """Write a batch of appends in one transaction; when this returns, they are durable. Returns a verdict for each append, in
        order: None (written), `RunExists` (also for a run that it would start), `RunNotFound`, `FenceLost` (also for a holder
        that the store does not know), `SeqConflict`, `CodecError` (text that cannot be stored), `StoreCorrupt` (this run's log
        is damaged), or the reason why a blob of the append could not be stored (`StoreFull`, `StoreBusy`, …). Blobs are durable
        before the transaction begins; if the append is refused, or a crash prevents it, its blobs stay and do no harm. What an
        append changes in other runs (`along`) is written with it, or not at all. Raises `StoreFull` if nothing of the batch was
        written for lack of space.
        """

    def appended(self, run_id: str, seq: int, append_id: bytes) -> bool:
        """Return whether the row at `seq` was written by the append with this id, and with it all that the append changed. A
        writer calls this after a commit whose outcome is unknown. Returns False if there is no such run. A poisoned store (a
        commit of this process failed with an I/O error) cannot know this and raises `StorePoisoned`: ask again from a new
        process.
        """

    def run(self, run_id: str) -> RunRow:
        """Return the run row of one run. Raises `RunNotFound`."""

    def runs(self, query: Query) -> list[RunRow]:
        """Return the runs that match the query, newest first. However many runs there are, a page by one condition, or by a flow
        and a status, reads little more than its own rows.
        """

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
        """Return the events of a run with `after < seq <= upto`, in order, optionally only of some kinds or of one node. Raises
        `RunNotFound`.
        """

    def snapshot(self, run_id: str, within: Sequence[tuple[int, int]]) -> Snapshot | None:
        """Return the latest snapshot of a run whose seq is in one of these ranges (both ends included). Raises `RunNotFound`."""

    def definition(self, fingerprint: str) -> bytes | None:
        """Return the definition of the flow with this fingerprint, or None if no run of this store was created with it."""

    def claim(self, run_id: str, holder: Holder) -> Lease:
        """Claim the lease of a run; its fence grows by one. The same holder may claim it again. Raises `RunNotFound`,
        `RunHeld`.
        """

    def renew(self, holder: Holder) -> None:
        """Renew all leases of a holder by writing one row: they expire `ttl_s` seconds from now. An engine must do this before it
        first appends as this holder. The row also stores the flows, queues and version of the holder, replacing those of an
        earlier renewal; `claim` and `Queues.take` do the same. With `ttl_s=0` the holder is deleted, and all its leases are
        released at once.
        """

    def release(self, run_id: str, holder: str, fence: int) -> None:
        """Release the lease of a run. Does nothing if another engine has claimed it since."""

    def post(self, run_id: str, request: Request, *, only_look: bool = False) -> bool:
        """Put a request into the inbox of a run; it is durable when this returns. Returns False if a request with this id was
        posted before, whether or not that request has been handled since, and True otherwise. The store fills in `run_id`, and
        `at` if it is 0. With `only_look`, the answer is the same, but nothing is posted. Raises `RunNotFound`; `RequestExists`
        if the request with this id has another verb or body; `RunOver` if the run is completed or cancelled, which is checked in
        the transaction that would write; `CodecError`, `StoreFull`.
        """

    def inbox(self, holder: str | None = None, *, run_id: str | None = None) -> list[Request]:
        """Return the requests that wait for the runs of this holder, oldest first. A request waits until an append lists it in
        `taken`, or until its run is completed or cancelled: the append that does this marks the requests that still wait as
        handled and `unmet`. With `run_id` as well, return those that wait for this run, at a cost that does not grow with those
        for other runs. With `run_id` in place of a holder, return all requests that this run ever got, the handled ones too.
        Raises `RunNotFound` if no holder is given.
        """

    def now(self) -> float:
        """Return the store's time, in seconds since the epoch; leases and timers use it."""

    def check(self) -> list[str]:
        """Return descriptions of damage to the store as a whole (pages, indexes); empty if it is intact."""

    def close(self) -> None:
        """Close the store; it may be closed more than once. Everything that was acknowledged is durable already."""
