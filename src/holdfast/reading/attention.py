"""Which runs need attention: this module alone decides it, for listings, for the board and for the doctor.

A run needs attention if it asks a question, or if it has a problem: it failed, or it should continue and does not. A run that is
expected to be claimed by a live worker has no problem, nor has a run that was paused or that waits for a signal.

A listing must not look at every run to find them. `parts` returns the queries that together select every run that may need
attention, and each of which walks an index. `needs_attention` then decides for each run. A run that a busy worker is expected to
claim is not even selected, so a long queue costs nothing; unless a worker has refused it, or its flow has another shape here, so
that all workers may have refused it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from holdfast.core.graph import Flow
from holdfast.core.run_state import TAKEABLE
from holdfast.errors import RunNotFound, SchemaTooNew, StoreCorrupt
from holdfast.reading.cases import (
    Case,
    case_of,
    full_queues,
    group_refusals,
    known_shapes,
    queue_of,
    unreadable_case,
)
from holdfast.reading.changes import compare, may_have_changed
from holdfast.reading.diagnosis import WAITS, Diagnosis, diagnose, is_problem
from holdfast.reading.known_flows import Flows, find_flow
from holdfast.storage.contract import Query, RunRow, Store
from holdfast.storage.queues import Board, LiveHolder, OnOffer, Queue, Refusal

_FLOWS_FEW = 4
"""Up to this many flows, runs are searched one flow at a time."""
_COUNTED_MAX = 1000
"""How many runs are looked at, one by one, to count them."""


def needs_attention(case: Case, found: Diagnosis, asks: int, now: float) -> bool:
    """Return whether a run needs attention; `asks` is the number of its open questions. A run whose queue is full does not: it
    only waits until others have ended.
    """
    return asks > 0 or (found.kind not in WAITS | {"queue full"} and is_problem(case, found, now))


def parts(
    query: Query,
    offered: Iterable[OnOffer],
    holders: Iterable[LiveHolder],
    flows: Flows | None = None,
    refusals: Iterable[Refusal] = (),
    shapes: Mapping[tuple[str, str], Refusal] = MappingProxyType({}),
) -> list[Query]:
    """Return the queries that together select every run that meets the conditions and may need attention. `flows` are the known
    flows: all workers may refuse a run of another shape, even if they are busy. `refusals` are some of those in the store,
    and `shapes` those by which workers are known to refuse all runs of another shape, also while they wait (`known_shapes`).
    """
    offered, holders = tuple(offered), tuple(holders)
    refused = {one.run_id for one in refusals}
    found = [msgspec.structs.replace(query, asks=True)]
    if not query.status or "failed" in query.status:
        found.append(msgspec.structs.replace(query, status=("failed",)))
    asked = [one for one in offered if query.flow in (None, one.flow)]
    left = [one for one in asked if not _has_busy_taker(one, holders)]
    is_due = any(one.waiting for one in asked)  # if none is, the many runs that wait are not passed
    wanted = [
        status
        for status in query.status or TAKEABLE
        if status in TAKEABLE and (is_due or status != "waiting")
    ]
    busy = {one.flow for one in asked if one not in left}
    if wanted:
        found += [
            msgspec.structs.replace(
                query, offered=True, status=tuple(wanted), flow=name, without_fingerprint=flow.fingerprint
            )
            for name, flow in (flows or {}).items()
            if name in busy and isinstance(flow, Flow)
        ]
    if wanted and busy and refused:
        ids = tuple(sorted(refused.intersection(query.ids) if query.ids is not None else refused))
        found.append(msgspec.structs.replace(query, offered=True, status=tuple(wanted), ids=ids))
    if "waiting" in (query.status or TAKEABLE):
        found += [
            msgspec.structs.replace(
                query, status=("waiting",), flow=flow, without_fingerprint=shape.fingerprint
            )
            for (_, flow), shape in shapes.items()
            if query.flow in (None, flow)
        ]
    if left and wanted:
        names = sorted({one.flow for one in left})
        found += [
            msgspec.structs.replace(query, offered=True, status=tuple(wanted), flow=flow)
            for flow in (names if len(names) <= _FLOWS_FEW else [query.flow])
        ]
    return found


def count(store: Store, board: Board, flows: Flows) -> int:
    """Return how many runs need attention. A run whose row does not tell whether it asks is counted only if it has a problem.
    `flows` are the known flows, as for `parts`.
    """
    found = board.counts.get("failed", 0) + board.asking
    offered = store.queues.offered()
    refused = tuple({one.run_id for one in store.queues.refusals()}) if offered and board.holders else ()
    for one in offered:
        if not _takers(one, board.holders):
            found += one.runs - one.asking
            continue
        flow = flows.get(one.flow)
        query = Query(offered=True, flow=one.flow, queue=one.queue, limit=_COUNTED_MAX)
        queries = [query]
        if _has_busy_taker(one, board.holders):
            queries = [msgspec.structs.replace(query, ids=refused)] if refused else []
            if isinstance(flow, Flow):  # capabilities execute every plan
                queries.append(msgspec.structs.replace(query, without_fingerprint=flow.fingerprint))
        rows = {row.run_id: row for some in queries for row in store.runs(some) if not row.asks}
        found += _count_problems(store, rows.values(), board, flows)
    return found + _count_refused(store, board, flows)


def _count_refused(store: Store, board: Board, flows: Flows) -> int:
    """Return how many runs wait for a signal or a time that is not due, and cannot continue then."""
    rows = {
        row.run_id: row
        for (_, flow), shape in known_shapes(store, board.holders).items()
        for row in store.runs(
            Query(flow=flow, status=("waiting",), without_fingerprint=shape.fingerprint, limit=_COUNTED_MAX)
        )
        if not row.asks and (row.due_at is None or row.due_at > board.at)
    }
    return _count_problems(store, rows.values(), board, flows)


def _count_problems(store: Store, rows: Collection[RunRow], board: Board, flows: Flows) -> int:
    """Return how many of these runs, which ask nothing, have a problem."""
    why, queues = group_refusals(store, rows, board.holders), full_queues(store)
    return sum(_has_problem(store, row, board, flows, why.get(row.run_id, ()), queues) for row in rows)


def _has_problem(
    store: Store,
    row: RunRow,
    board: Board,
    flows: Flows,
    refusals: Iterable[Refusal],
    queues: Mapping[str, Queue],
) -> bool:
    known: dict[str, Any] = {"holders": board.holders, "refusals": refusals, "queues": queues}
    case = Case(
        row=row, holders=board.holders, refusals=tuple(refusals), queue=queue_of(store, row, None, queues)
    )
    try:
        flow = find_flow(store, flows, row)
        if not case.is_refused and may_have_changed(row, flow):
            case = compare(store, case_of(store, row, **known), flow)
    except RunNotFound:  # deleted meanwhile
        return False
    except (StoreCorrupt, SchemaTooNew) as fault:
        case = unreadable_case(store, row, fault, board.holders)
    return needs_attention(case, diagnose(case, board.at), 0, board.at)


def _takers(offered: OnOffer, holders: Iterable[LiveHolder]) -> list[LiveHolder]:
    return [one for one in holders if one.holder.takes(offered.flow, offered.queue)]


def _has_busy_taker(offered: OnOffer, holders: Iterable[LiveHolder]) -> bool:
    """Return whether runs on offer only wait until a live worker has finished others."""
    return any(one.held for one in _takers(offered, holders))
