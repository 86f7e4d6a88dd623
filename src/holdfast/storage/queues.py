"""Queues: which runs wait for a worker, and which worker gets them. This is the part of a store that workers use.

A run belongs to one named queue and has a priority, both fixed when it is created. It is *on offer* when no live engine holds it
(it has no lease, or its lease has expired, or its holder is dead) and it can be executed, for one of these reasons:

- `pending`: the run is recorded and has not begun, and the time at which it is to begin (`View.due_at`) has come, if it has one;
- `running` or `interrupted`: its holder died or released it;
- `due`: the run waits, and the time that it waits for (`View.due_at`) has come;
- `asked`: the run waits, is paused or has failed, or its time to begin has not come, and a request is in its inbox.

`completed` and `cancelled` runs are never on offer. A queue may have a limit: how many of its runs may be held at the same time
by all workers of the store together. Offers are computed from run rows, leases and inbox when a worker asks for runs: there is
no second record of them that could be lost or wrong. Every store passes `holdfast.testing.queues`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from holdfast.errors import HoldfastError
from holdfast.storage.leases import Holder, Lease

DEFAULT_QUEUE = "default"

FENCE_STEP = 1_000_000
"""How much every fence grows when a store is restored from a copy. This is far more than the number of times that a run can have
been claimed since the copy was made, so all fences that were granted in between are invalid."""

GONE_KEPT = 20
"""How many workers whose process is dead a store keeps, so that people see what has happened to them."""

Why: TypeAlias = Literal["pending", "running", "interrupted", "due", "asked"]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs a worker is ready to execute."""

    flows: tuple[str, ...]
    """Names of the flows that the worker knows; it takes no runs of other flows."""
    queues: tuple[str, ...] = ()
    """Names of the queues from which to take runs; if empty, from all queues."""
    limit: int = 1
    """Take at most this many runs."""
    without: Collection[str] = ()
    """Ids of runs not to take."""
    refused: Mapping[str, int] = {}
    """Runs not to take as long as their logs end at this seq: this worker recently failed to resume them, and another worker may
    succeed.
    """


class Taken(msgspec.Struct, frozen=True):
    """A run that a worker has claimed, and why it was on offer."""

    lease: Lease
    flow: str
    why: Why


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a queue: its limit, and how many of its runs are held and on offer."""

    name: str
    limit: int | None = None
    """How many runs of the queue may be held at the same time; None means no limit."""
    held: int = 0
    offered: int = 0
    """How many runs of the queue are on offer, whether or not the limit lets a worker claim them."""

    @property
    def is_full(self) -> bool:
        """True if the limit lets no worker claim another run. If the limit is 0, the queue is stopped."""
        return self.limit is not None and self.held >= self.limit


class LiveHolder(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that is registered with the store, whose leases have not expired and whose process is not known to be dead. Its
    `holder` says whether it is a worker, and for which flows and queues.
    """

    holder: Holder
    held: int = 0
    """How many runs it holds."""
    registered_at: float | None = None
    """When it was first seen; None if a version of Holdfast registered it that did not record this."""
    seen_at: float = 0.0
    """When it last renewed its leases."""


class OnOffer(msgspec.Struct, frozen=True, gc=False):
    """How many runs of a flow in a queue a worker may claim now, because of their status or their time."""

    flow: str
    queue: str
    runs: int
    asking: int = 0
    """How many of these runs also ask a question."""
    waiting: int = 0
    """How many of these runs wait, and are due."""


class Minute(msgspec.Struct, frozen=True, gc=False):
    """How many runs ended within one minute of the clock, each by the status that it has now."""

    at: float
    """The beginning of the minute."""
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


BOARD_MINUTES = 60


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """The store at a glance."""

    at: float
    """The store's time."""
    counts: dict[str, int]
    """Status -> how many runs have it; statuses without a run are left out."""
    asks: int
    """How many questions are open. Runs whose row does not tell (`RunRow.asks` is None) are not counted."""
    asking: int
    """How many runs ask a question and have not failed. Runs whose row does not tell are not counted."""
    minutes: tuple[Minute, ...]
    """The last 60 minutes, oldest first; the last one has not ended. A run that was resumed since is not counted."""
    holders: tuple[LiveHolder, ...]
    """The live engines, with their flows, queues and version (see `Queues.holders`)."""


def minutes_until(now: float, ends: Iterable[tuple[int, str, int]]) -> tuple[Minute, ...]:
    """Return the last minutes for a board. `ends` has the number of each minute since the epoch, a status, and a count."""
    last = int(now // 60)
    counted: dict[int, dict[str, int]] = {}
    for minute, status, count in ends:
        if status in Minute.__struct_fields__:  # a damaged run may have another
            counted.setdefault(minute, {})[status] = count
    return tuple(
        Minute(minute * 60.0, **counted.get(minute, {}))
        for minute in range(last - BOARD_MINUTES + 1, last + 1)
    )


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a run from a caller that does not hold its lease. Posting a request with the same `id` again has no effect."""

    id: str
    verb: str
    body: dict[str, Any] = {}
    """What the verb needs. It is empty once the request has been handled."""
    by: str | None = None
    reason: str | None = None
    run_id: str = ""
    at: float = 0.0
    taken: int = 0
    """The seq of the last event of the append that handled the request; 0 if the request still waits."""
    unmet: bool = False
    """True if the request still waited when the run was completed or cancelled: nothing can come of it any more."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A worker cannot continue a run as it is, and why. It counts until an event is added to the log of the run: then the worker
    looks at the run again.
    """

    run_id: str
    holder: str
    """The id of the worker's engine."""
    seq: int
    """The seq of the last event of the log when the worker refused the run."""
    reason: str
    fingerprint: str = ""
    """The fingerprint of the run's flow as the worker knows it; empty if it does not know the flow."""
    too_new: bool = False
    """True if a newer version of Holdfast has written what the worker cannot read."""
    at: float = 0.0


REFUSALS_MAX = 500
"""How many refusals `Queues.refusals` returns if no runs are named."""

Posted: TypeAlias = bool | HoldfastError
"""The outcome of one request of a batch: True if it was stored, False if it had been posted before, or why it was refused."""


class Queues(Protocol):
    """The methods of a store that offer runs to workers. They are synchronous, may be called from any thread, and raise
    the errors that every method of a store may raise.
    """

    def take(self, holder: Holder, wanted: Wanted) -> list[Taken]:
        """Claim runs that are on offer, in one transaction: those with the highest priority first, then those that have waited
        longest (`due` runs and runs that begin at a time: since that time; `asked` runs: since the request; other runs: since
        their creation). Two workers that call this at the same time never get the same run, and neither waits for the other's
        rows. If any run is taken, the holder is also renewed (as by `Store.renew`). The fence of each run grows by one. A holder
        whose leases had expired, but that renewed them before this transaction, keeps its runs.
        """

    def post_all(self, batch: Sequence[Request]) -> list[Posted]:
        """Put requests into the inboxes of many runs, each into that of its `run_id`, in one transaction; they are durable when
        this returns. Returns for each request, in order, what `Store.post` would return, or the `RunNotFound`, `RunOver` or
        `RequestExists` that it would raise: if one is refused, the others are still stored. Raises `CodecError` and `StoreFull`
        if nothing was stored.
        """

    def held_by(self, holder: str) -> list[Lease]:
        """Return the leases of a holder, ordered by run id."""

    def holders(self) -> list[LiveHolder]:
        """Return the live holders, whether or not they are workers, ordered by id. A holder's flows, queues and version are those
        of its last renewal or claim.
        """

    def gone(self) -> list[LiveHolder]:
        """Return workers that are not alive any more and have not ended in order, ordered by id: at least the `GONE_KEPT` that
        were last seen, for a day. `held` is the number of runs that they left, which are on offer.
        """
        ...

    def waiting(self, run_ids: Collection[str]) -> list[Request]:
        """Return the requests that wait for these runs, oldest first. Unknown runs have none."""
        ...

    def offered(self) -> tuple[OnOffer, ...]:
        """Return how many runs of each flow and queue are on offer, in this order, without those that are on offer only because
        of a request.
        """
        ...

    def board(self) -> Board:
        """Return how many runs have each status, how many ended in each of the last 60 minutes, and the live holders."""

    def refuse(self, refusal: Refusal, definition: bytes | None = None) -> None:
        """Record that a worker cannot continue a run, in place of its earlier refusal of that run; `definition` is that of the
        flow which the worker knows, so that others can say how it differs. The row has the store's time. It is deleted with the
        holder or the run. Nothing is recorded if the run was deleted or has moved since, or if the holder is not registered.
        """

    def refusals(self, run_ids: Collection[str] | None = None) -> list[Refusal]:
        """Return the refusals of these runs by live holders, without those of runs that have moved since. If None, those of any
        run are returned, at most `REFUSALS_MAX`.
        """
        ...

    def give_back(self, holders: Collection[str]) -> list[str]:
        """Find the given holders whose leases have expired or whose process is dead, release their leases, and return their ids.
        This is checked in the transaction that releases: a holder that has renewed meanwhile keeps its leases.
        """

    def next_due(self, wanted: Wanted) -> float | None:
        """Return when the next wanted run is due or begins, in the store's time; this may be in the past. Returns None if no
        wanted run waits for a time. Runs in queues at their limit are left out, because `hear` returns when a lease is released.
        Expiring leases are not considered.
        """

    def limit(self, queue: str, limit: int | None) -> None:
        """From now on, let at most `limit` runs of a queue be held at the same time; None removes the limit. Holders keep the
        runs that they hold.
        """

    def queues(self) -> list[Queue]:
        """Return the state of every queue that has a limit, or a run that is not completed or cancelled, ordered by name."""

    def full(self) -> list[Queue]:
        """Return the queues whose limit lets no worker claim another run, ordered by name. It is not counted what they offer, so
        that this takes no time if no queue has a limit.
        """

    def hear(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds for news since the last `hear`: a new run, a request or a released lease. Returns True
        if the worker should look for runs again. Returns False if there was no news, which does not prove that no run is on
        offer. If the database can send notifications, waiting runs no query. If the connection is lost, no error is raised:
        `hear` waits and returns False. Only one worker may use it at a time: if two workers share a store object, each may miss
        news that the other one gets.
        """

    def hush(self) -> None:
        """Make every waiting `hear` of this store return at once, or the next `hear` if none is waiting. A worker that stops
        calls this. Never raises.
        """

    def renew_generation(self) -> str:
        """Give a store that was restored from a copy a new generation, and return it. All leases are released, and every fence
        grows by `FENCE_STEP`, so that engines which used the original store after the copy was made can no longer write. Close
        the store afterwards: `Store.generation` is read only when a store is opened.
        """
