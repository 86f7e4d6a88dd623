"""Routes that show the store at a glance: how many runs there are of each kind, and which engines are alive."""

from __future__ import annotations

import msgspec

from holdfast.reading import attention
from holdfast.reading.diagnosis import Diagnosis
from holdfast.server.backend import Backend
from holdfast.server.calls import HttpCall
from holdfast.server.parameters import NoQuery
from holdfast.storage.contract import STATUSES
from holdfast.storage.queues import LiveHolder, Minute

GONE_S = 3600.0
"""For how many seconds a worker that is gone is listed."""


class BoardView(msgspec.Struct, frozen=True, kw_only=True):
    """The store at a glance."""

    at: float
    """The store's time."""
    counts: dict[str, int]
    """Every status -> how many runs have it."""
    attention: int
    """How many runs need attention: they ask a question, failed, or should continue and do not."""
    asks: int
    """How many questions are open."""
    problems: int | None
    """How many problems the last examination of the store found (see the route `doctor`); null before the first one."""
    minutes: tuple[Minute, ...]
    """How many runs ended in each of the last 60 minutes, oldest first; the last minute has not ended."""


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A live engine: a worker, a server, or a program that executes its own runs."""

    id: str
    name: str
    """The process and its host, as in reasons."""
    host: str
    pid: int
    is_worker: bool
    """True if it claims runs of other processes; then `flows` are the flows that it takes."""
    flows: tuple[str, ...]
    queues: tuple[str, ...]
    """The queues from which it claims runs; empty: all queues."""
    version: str
    held: int
    """How many runs it holds; of one that is gone: how many it left, which are on offer."""
    gone: bool
    """True if it is not alive any more, and has not ended in order."""
    since: float | None
    """When it was first seen; null if an older version of Holdfast registered it."""
    seen_at: float
    """When it last renewed its leases."""
    expires_at: float
    """When its runs are taken over, unless it renews its leases before; if its process dies on this host, at
    once."""


class WorkerList(msgspec.Struct, frozen=True):
    """The live engines, those that hold most runs first; then the workers that are gone since less than an hour, latest first."""

    workers: list[WorkerView]


async def get_board(call: HttpCall[NoQuery, None]) -> BoardView:
    """Show the store at a glance: runs by status, how many need attention, open questions, and ends by the minute."""
    call.backend.examine_soon()
    return await call.backend.read(read_board, call.backend)


def read_board(backend: Backend) -> BoardView:
    """Read the board, for its route and for live events. The store is not examined: `problems` is what was found last."""
    board = backend.store.queues.board()
    examined = backend.examined
    return BoardView(
        at=board.at,
        counts={status: board.counts.get(status, 0) for status in STATUSES},
        attention=attention.count(backend.store, board, backend.engine.flows),
        asks=board.asks,
        problems=None if examined is None else sum(map(_is_bad, examined)),
        minutes=board.minutes,
    )


def list_workers(call: HttpCall[NoQuery, None]) -> WorkerList:
    """List the live engines: what they execute, what they hold, and when they were last seen; and workers that are gone."""
    queues, since = call.backend.store.queues, call.backend.store.now() - GONE_S
    live = sorted(queues.holders(), key=lambda one: (-one.held, one.holder.id))
    gone = sorted((one for one in queues.gone() if one.seen_at > since), key=lambda one: -one.seen_at)
    return WorkerList([*(_worker(one) for one in live), *(_worker(one, gone=True) for one in gone)])


def _is_bad(found: Diagnosis) -> bool:
    return not found.waits


def _worker(one: LiveHolder, *, gone: bool = False) -> WorkerView:
    holder = one.holder
    return WorkerView(
        id=holder.id,
        name=holder.describe(),
        host=holder.host,
        pid=holder.pid,
        is_worker=bool(holder.flows),
        flows=holder.flows,
        queues=holder.queues,
        version=holder.version,
        held=one.held,
        gone=gone,
        since=one.registered_at,
        seen_at=one.seen_at,
        expires_at=one.seen_at + holder.ttl_s,
    )
