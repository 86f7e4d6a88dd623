"""Lists runs page by page, each with the reason for its status and its remedies, from the rows of the runs alone.

The row of a run tells what a listing shows (`core/situation`). The log of a run is read only if its row does not tell enough: it
was last written by a version that did not compute this, or there is too much to keep in a row.

A page ends with a cursor, a text from which the next page begins. It names a place in the listing and not a run, because the run
may be deleted meanwhile; and it is valid only for the conditions that it was made for.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from holdfast.core.definition import NodeOptions
from holdfast.core.graph import Flow
from holdfast.core.run_state import RunState
from holdfast.errors import RunNotFound, SchemaTooNew, SettingError, StoreCorrupt
from holdfast.reading.changes import compare, may_have_changed
from holdfast.reading.diagnosis import Case, Diagnosis, case_of, case_of_row, diagnose
from holdfast.reading.remedies import CommandLine
from holdfast.storage.contract import Position, Query, RunRow, Store
from holdfast.storage.queues import LiveHolder

Definitions = dict[str, Mapping[str, NodeOptions]]


class ListedRun(msgspec.Struct, frozen=True):
    """A run in a listing."""

    row: RunRow
    found: Diagnosis
    asks: int
    """How many questions are open."""
    active_s: float
    """For how many seconds its nodes have run in total."""


class Page(msgspec.Struct, frozen=True):
    """A page of a listing, and the cursor of the next page; None if there is none."""

    runs: list[ListedRun]
    next: str | None


def list_page(
    store: Store,
    query: Query,
    *,
    cursor: str | None = None,
    commands: CommandLine | None = None,
    definitions: Definitions | None = None,
    flows: Mapping[str, Flow[Any]] | None = None,
) -> Page:
    """Return the runs that meet the conditions, from the cursor on. The page may have fewer runs than `query.limit` although
    there is a next one: a run whose row does not tell whether it asks is left out if it does not. `definitions` caches the nodes
    of flows by fingerprint; a run whose flow is among `flows`, with another shape, is read from its log. Raises
    `SettingError` for a cursor that was not made for these conditions.
    """
    if cursor is not None:
        query = msgspec.structs.replace(query, after=read_cursor(query, cursor))
    rows = store.runs(msgspec.structs.replace(query, limit=query.limit + 1))
    shown, is_last = rows[: query.limit], len(rows) <= query.limit
    now, holders = store.now(), tuple(store.queues.holders())
    known = definitions if definitions is not None else {}
    listed = []
    for row in shown:
        try:
            one = look_at(
                store,
                row,
                now,
                commands=commands,
                definitions=known,
                holders=holders,
                flow=(flows or {}).get(row.flow),
            )
        except RunNotFound:  # deleted meanwhile
            continue
        if one.asks or not query.asks:
            listed.append(one)
    return Page(listed, None if is_last or not shown else make_cursor(query, shown[-1].position))


def look_at(
    store: Store,
    row: RunRow,
    now: float,
    *,
    commands: CommandLine | None = None,
    definitions: Definitions | None = None,
    holders: Iterable[LiveHolder] | None = None,
    flow: Flow[Any] | None = None,
) -> ListedRun:
    """Diagnose a run from its row, or from its log if the row does not tell enough, or if its flow, as it is known here
    (`flow`), may have changed in shape. If the log cannot be read, the diagnosis says why. Raises `RunNotFound`.
    """
    state: RunState | None = None
    try:
        case = None
        if not may_have_changed(row, flow):
            case = case_of_row(store, row, definitions=definitions, holders=holders)
        if case is None:
            case = compare(store, case_of(store, row, definitions=definitions, holders=holders), flow)
            state = case.state
    except (StoreCorrupt, SchemaTooNew) as fault:
        case = Case(row=row, fault=str(fault))
    asks = len(state.questions) if state is not None else row.asks or 0
    active_s = state.active_s if state is not None else row.active_s or 0.0
    return ListedRun(row, diagnose(case, now, commands), asks, active_s)


# --- cursors -----------------------------------------------------------------------------------------

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, float, str]).decode


def make_cursor(query: Query, place: Position) -> str:
    """Return the cursor from which a listing by these conditions continues after a place."""
    body = _encode((_digest(query), place.created_at, place.run_id))
    return urlsafe_b64encode(body).decode().rstrip("=")


def read_cursor(query: Query, cursor: str) -> Position:
    """Return the place that a cursor names. Raises `SettingError` if the cursor was not made for these conditions."""
    try:
        digest, created_at, run_id = _decode(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, msgspec.MsgspecError):
        raise SettingError("this is not a cursor of a listing. Begin with the first page.") from None
    if digest != _digest(query):
        raise SettingError(
            "this cursor was made for a listing by other conditions. Repeat the conditions, or begin with the first page."
        )
    return Position(created_at, run_id)


def _digest(query: Query) -> bytes:
    """Return a digest of the conditions of a query. The length of the pages may change from one page to the next."""
    bare = msgspec.structs.replace(query, after=None, limit=0)
    return sha256(msgspec.json.encode(bare, order="deterministic")).digest()[:6]
