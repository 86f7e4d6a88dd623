"""The rows of a store as they are sent: what the routes `store/…` of a server answer, and a store on a server reads.

`ROWS` is the version of this format. A client sends the version that it reads; a server that cannot give rows in that version
refuses (`SchemaTooNew`), and a client refuses the rows of a server that is older than it can read.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.storage.contract import Request, Row, RunRow, Snapshot, Tail
from holdfast.storage.queues import LiveHolder, OnOffer, Queue, Refusal
from holdfast.storage.upkeep import Kept, Trimmed

ROWS = 1
"""The version of the format. It grows when a client that reads the earlier version would misread the new one."""
HEADER = "Holdfast-Rows"
"""The header with which a client says which version it reads."""
RUNS_MAX = 500
"""How many runs one answer has at most."""
EVENTS_MAX = 1000
EVENTS_BYTES_MAX = 4 * 1024 * 1024
"""How many events one answer has at most, and about how many bytes their bodies have together: a larger one comes alone."""


class StoreAbout(msgspec.Struct, frozen=True, kw_only=True):
    """The store of a server."""

    rows: int
    """The version of the format in which the server gives rows."""
    version: str
    """The version of Holdfast of the server."""
    url: str
    """The URL of the store on the machine of the server, without its password."""
    generation: str
    now: float
    """The time of the store."""
    refusals: bool = False
    """Whether the server gives refusals. Earlier versions do not know them."""


Seq = Annotated[int, Meta(ge=-(2**53), le=2**53)]


class WantedEvents(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which events of a run to give: see `Store.events`."""

    after: Seq = 0
    upto: Seq | None = None
    kinds: tuple[str, ...] = ()
    node: str | None = None
    limit: Seq = EVENTS_MAX


class StoredRuns(msgspec.Struct, frozen=True):
    """Some of the runs that match a query, newest first. `more` says whether there may be more."""

    runs: list[RunRow]
    more: bool


class StoredEvents(msgspec.Struct, frozen=True):
    """Some of the events of a run, in order. `more` says whether there may be more of those that were requested."""

    events: list[Row]
    more: bool


class WantedTails(msgspec.Struct, frozen=True, kw_only=True):
    """Of which runs to give the ends of their logs: see `Feed.look`."""

    after: dict[str, Seq] = {}
    """Run -> the seq after which its events are given."""
    limit: Seq = EVENTS_MAX


class WantedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """The runs whose waiting requests to give."""

    run_ids: tuple[str, ...] = ()


class StoredTails(msgspec.Struct, frozen=True):
    """The ends of some logs, by run."""

    tails: dict[str, Tail]


class StoredSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of a run; None if it has none in the requested ranges."""

    snapshot: Snapshot | None


class StoredRequests(msgspec.Struct, frozen=True):
    """All requests that a run ever got, oldest first."""

    requests: list[Request]


class StoredUpkeep(msgspec.Struct, frozen=True):
    """What upkeep has removed from the log of a run, and which snapshots it has."""

    trimmed: Trimmed
    snapshots: list[Kept]


class StoredStreams(msgspec.Struct, frozen=True):
    """The partial streams of a run: what its nodes have streamed that is not in the log yet."""

    streams: dict[str, bytes]


class StoredDefinition(msgspec.Struct, frozen=True):
    """The definition of a flow; None if no run of the store was created with it."""

    definition: bytes | None


class StoredHolders(msgspec.Struct, frozen=True):
    """The live engines that use the store."""

    holders: list[LiveHolder]


class WantedRefusals(msgspec.Struct, frozen=True, kw_only=True):
    """The runs whose refusals to give; None: any runs."""

    run_ids: tuple[str, ...] | None = None


class StoredRefusals(msgspec.Struct, frozen=True):
    """Why live workers cannot continue some runs."""

    refusals: list[Refusal]


class StoredOffers(msgspec.Struct, frozen=True):
    """How many runs of each flow and queue are on offer."""

    offered: tuple[OnOffer, ...]


class StoredQueues(msgspec.Struct, frozen=True):
    """The queues of the store."""

    queues: list[Queue]


class Damage(msgspec.Struct, frozen=True):
    """Descriptions of damage to the store as a whole; empty if it is intact."""

    damage: list[str]
