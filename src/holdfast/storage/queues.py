"""Which runs wait for a worker, and which worker gets them: what a worker asks of a store.

A run belongs to one named queue and has a priority, both from its creation. It is *on offer* when no live engine holds it (it has
no lease, or one whose holder is dead or that has expired) and something can be done with it:

- `pending`: recorded, and not begun;
- `running` or `interrupted`: its holder left it, or died;
- `due`: it waits, and the time it waits for (`View.due_at`) has come;
- `asked`: it waits, is paused or has failed, and a request is in its inbox.

`completed` and `cancelled` runs are never on offer. A queue may have a limit: no more of its runs than that are held at a time,
over all workers of the store. Offers are worked out from run rows, leases and inbox when a worker asks: there is no second
record of them that could be lost or be wrong. Every store passes `holdfast.testing.queues`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Protocol, TypeAlias

import msgspec

from holdfast.storage.leases import Holder, Lease

DEFAULT_QUEUE = "default"

FENCE_STEP = 1_000_000
"""By how much every fence grows when a store is restored from a copy: more than were granted since the copy was made."""

Why: TypeAlias = Literal["pending", "running", "interrupted", "due", "asked"]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs a worker is ready to execute."""

    flows: tuple[str, ...]
    """Names of the flows it knows; runs of others are left alone."""
    queues: tuple[str, ...] = ()
    """Only these queues; empty: all."""
    limit: int = 1
    """How many runs at most."""
    without: Collection[str] = ()
    """Ids of runs to pass over: this worker failed to resume them lately, and another may succeed."""


class Taken(msgspec.Struct, frozen=True):
    """A run that a worker has claimed, and why it was on offer."""

    lease: Lease
    flow: str
    why: Why


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as the store sees it."""

    name: str
    limit: int | None = None
    """Runs of it that may be held at a time; None: no limit."""
    held: int = 0
    offered: int = 0
    """Runs of it that are on offer, whether or not the limit lets a worker claim them."""


class Queues(Protocol):
    """The methods of a store that offer runs to workers. They are synchronous, may be called from any thread, and raise
    the errors that every method of a store may raise.
    """

    def take(self, holder: Holder, wanted: Wanted) -> list[Taken]:
        """Claim runs that are on offer, in one transaction: those with the highest priority first, then those that wait
        longest (due: since then; asked: since the request; others: since their creation). Two workers that ask at once
        never get the same run, and neither waits for the other's rows. A take that gets something says that the
        holder lives (as `Store.renew` does). The fence of each run grows by one. A holder that was late and has renewed
        before that transaction keeps its runs.
        """

    def held_by(self, holder: str) -> list[Lease]:
        """The leases in a holder's name, by run id."""

    def give_back(self, holders: Collection[str]) -> list[str]:
        """Release the leases of those of these holders that are gone: their time has run out or their process is dead, as
        it is in the transaction that does it. Returns the ids of those; one that has renewed meanwhile keeps everything.
        """

    def next_due(self, wanted: Wanted) -> float | None:
        """When the next run that is wanted falls due by itself, in the store's time, which may be past; None: no time is
        known. Queues at their limit do not count: a released lease is heard. When a lease expires is not reported.
        """

    def limit(self, queue: str, limit: int | None) -> None:
        """Let no more than `limit` runs of a queue be held at a time, from now on; None: as many as there are. Holders keep
        what they have.
        """

    def queues(self) -> list[Queue]:
        """Every queue that has a limit or a run that has not ended, by name."""

    def hear(self, timeout_s: float) -> bool:
        """Wait until something may have come on offer or into an inbox (a new run, a request, a released lease), also since
        the last `hear`, at most this long. True: look again; False: nothing was heard, which is no proof that there is
        nothing. Costs no query while nothing happens where the database can tell; never raises for a lost connection: it
        waits, and returns False. One worker hears at a time: of two on one store object each may miss what woke the other.
        """

    def hush(self) -> None:
        """Have every `hear` of this store return at once, or the next one if there is none: for who stops. Never raises."""

    def renew_generation(self) -> str:
        """Mark a store that was restored from a copy: a new generation, which is returned, no run is held, and every
        fence grows by `FENCE_STEP`. Engines that used the store after the copy was made are refused from then on. Close the
        store afterwards: `Store.generation` is read when it is opened.
        """
