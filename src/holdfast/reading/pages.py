"""Lists runs page by page, each with the reason for its status and its remedies, from the rows of the runs alone.

The row of a run tells what a listing shows (`core/situation`). The log of a run is read only if its row does not tell enough: it
was last written by a version that did not compute this, or there is too much to keep in a row.

A page ends with a cursor, a text from which the next page begins. It names a place in the listing and not a run, because the run
may be deleted meanwhile; and it is valid only for the conditions that it was made for.
"""

from __future__ import annotations

import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgspec

from holdfast.core import situation
from holdfast.core.definition import NodeOptions
from holdfast.core.run_state import FINAL, Question, RunState
from holdfast.errors import RunNotFound, SchemaTooNew, SettingError, StoreCorrupt, StoreError
from holdfast.reading import attention as attend
from holdfast.reading import history
from holdfast.reading.cases import (
    case_of,
    case_of_row,
    full_queues,
    group_refusals,
    known_shapes,
    refusals_of,
    unreadable_case,
    without_refusers,
)
from holdfast.reading.changes import compare, compare_children, may_have_changed
from holdfast.reading.diagnosis import Diagnosis, diagnose
from holdfast.reading.known_flows import Flows, find_flow
from holdfast.reading.remedies import CommandLine
from holdfast.reading.views import AskedQuestion
from holdfast.storage.contract import Position, Query, Request, RunRow, Store
from holdfast.storage.queues import LiveHolder, Queue, Refusal

Definitions = dict[str, Mapping[str, NodeOptions]]

_LOOKS_MAX = 4
"""How often runs are read for one page, if some of those that were read do not belong to it."""
_log = logging.getLogger("holdfast")


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a listing."""

    row: RunRow
    found: Diagnosis
    asks: int
    """How many questions are open."""
    active_s: float
    """For how many seconds its nodes have run in total."""
    retry_at: float | None = None
    """When a node that failed is retried next; None if none is."""
    requested: tuple[str, ...] = ()
    """The verbs of the requests that wait, oldest first, if they were read."""
    needs_attention: bool = False
    """True if it asks a question or has a problem; always False if the live workers were not given."""


class Page(msgspec.Struct, frozen=True):
    """A page of a listing, and the cursor of the next page; None if there is none."""

    runs: list[ListedRun]
    next: str | None


class _Glance:
    """What is read once for all runs of a page."""

    def __init__(
        self,
        store: Store,
        holders: Iterable[LiveHolder],
        commands: CommandLine | None,
        definitions: Definitions,
        flows: Flows,
    ) -> None:
        self._store = store
        self._now = store.now()
        self._holders = tuple(holders)
        self._commands = commands or CommandLine()
        self._definitions = definitions
        self._flows = flows

    def look_at_all(self, rows: Sequence[RunRow]) -> Iterator[ListedRun]:
        """Diagnose the runs. Those that were deleted meanwhile are left out."""
        asked: dict[str, list[Request]] = {}
        for request in self._store.queues.waiting([row.run_id for row in rows if row.status not in FINAL]):
            asked.setdefault(request.run_id, []).append(request)
        rows = without_refusers(self._store, rows)
        refused = group_refusals(self._store, rows, self._holders)
        queues = full_queues(self._store)
        for row in rows:
            with suppress(RunNotFound):
                yield look_at(
                    self._store,
                    row,
                    self._now,
                    commands=self._commands.for_one_of(self._flows, row.flow),
                    definitions=self._definitions,
                    holders=self._holders,
                    flows=self._flows,
                    requests=asked.get(row.run_id, ()),
                    refusals=refused.get(row.run_id, ()),
                    queues=queues,
                )


def list_page(
    store: Store,
    query: Query,
    *,
    attention: bool = False,
    cursor: str | None = None,
    commands: CommandLine | None = None,
    definitions: Definitions | None = None,
    flows: Flows | None = None,
) -> Page:
    """Return the runs that meet the conditions, from the cursor on; with `attention`, only those that need it. The page may have
    fewer runs than `query.limit` although there is a next one, if many runs had to be looked at to find them. `definitions`
    caches the nodes of flows by fingerprint; a run whose flow is among `flows`, with another shape, is read from its log. Raises
    `SettingError` for a cursor that was not made for these conditions.
    """
    place = read_cursor(query, cursor, attention=attention) if cursor is not None else query.after
    holders = store.queues.holders()
    wanted = [query]
    if attention:
        shapes = known_shapes(store, holders)
        wanted = attend.parts(query, store.queues.offered(), holders, flows, store.queues.refusals(), shapes)
    glance = _Glance(store, holders, commands, definitions if definitions is not None else {}, flows or {})
    listed: list[ListedRun] = []
    for _ in range(_LOOKS_MAX):
        rows = _newest(store, wanted, place, query.limit - len(listed) + 1)
        shown, is_last = rows[: query.limit - len(listed)], len(rows) <= query.limit - len(listed)
        place = shown[-1].position if shown else place
        looked = glance.look_at_all(shown)
        listed += [
            one for one in looked if (one.needs_attention if attention else one.asks or not query.asks)
        ]
        if is_last or place is None or len(listed) >= query.limit:
            break
    return Page(listed, None if is_last or place is None else make_cursor(query, place, attention=attention))


def _newest(store: Store, wanted: list[Query], after: Position | None, limit: int) -> list[RunRow]:
    """Return the newest runs that one of the queries selects, each once."""
    found = {
        row.run_id: row
        for query in wanted
        for row in store.runs(msgspec.structs.replace(query, after=after, limit=limit))
    }
    return sorted(found.values(), key=lambda row: row.position, reverse=True)[:limit]


def look_at(
    store: Store,
    row: RunRow,
    now: float,
    *,
    commands: CommandLine | None = None,
    definitions: Definitions | None = None,
    holders: Iterable[LiveHolder] | None = None,
    flows: Flows | None = None,
    requests: Iterable[Request] | None = None,
    refusals: Iterable[Refusal] | None = None,
    queues: Mapping[str, Queue] | None = None,
) -> ListedRun:
    """Diagnose a run from its row, or from its log if the row does not tell enough, or if its flow, as it is known here
    (`flows`) or to the workers that refuse the run, may have changed in shape. If the log cannot be
    read, the diagnosis says why. Raises `RunNotFound`.
    """
    state: RunState | None = None
    try:
        if row.fault:
            raise StoreCorrupt(row.fault)
        case, flow = None, find_flow(store, flows, row)
        refusals = refusals_of(store, row, holders, refusals)
        known: dict[str, Any] = {
            "definitions": definitions,
            "holders": holders,
            "requests": requests,
            "refusals": refusals,
            "queues": queues,
        }
        if not may_have_changed(row, flow, refusals):
            case = case_of_row(store, row, **known)
        if case is not None:
            case = compare_children(store, case)
        else:
            case = compare(store, case_of(store, row, **known), flow)
            state = case.state
    except (StoreCorrupt, SchemaTooNew) as fault:
        case = unreadable_case(store, row, fault, holders)
    asks = len(state.questions) if state is not None else row.asks or 0
    found = diagnose(case, now, commands)
    retries = case.situation.retries.values() if case.situation is not None else ()
    return ListedRun(
        row=row,
        found=found,
        asks=asks,
        active_s=state.active_s if state is not None else row.active_s or 0.0,
        retry_at=min(retries, default=None),
        requested=tuple(request.verb for request in requests or ()),
        needs_attention=case.holders is not None and attend.needs_attention(case, found, asks, now),
    )


# --- questions ---------------------------------------------------------------------------------------


class ListedQuestion(AskedQuestion, frozen=True, kw_only=True):
    """An open question in a listing."""

    whole: bool
    """False if only the first line of its text is given, and not what a crashed node had done: the log has the rest."""


class QuestionPage(msgspec.Struct, frozen=True):
    """Open questions of some runs, and the cursor of the next page; None if there is none."""

    questions: list[ListedQuestion]
    next: str | None


def list_questions(
    store: Store, query: Query, *, cursor: str | None = None, whole: bool = False
) -> QuestionPage:
    """Return the open questions of the runs that meet the conditions, newest run first, from their rows: those of `query.limit`
    runs. With `whole`, and if a run has more questions than a row, they are read from its log; a run that cannot be read is left
    out. Raises `SettingError` for a cursor that was not made for these conditions.
    """
    query = msgspec.structs.replace(query, asks=True)
    place = read_cursor(query, cursor) if cursor is not None else query.after
    rows = store.runs(msgspec.structs.replace(query, after=place, limit=query.limit + 1))
    shown = rows[: query.limit]
    questions = [question for row in shown for question in _questions_of(store, row, whole=whole)]
    is_last = len(rows) <= query.limit
    return QuestionPage(questions, None if is_last or not shown else make_cursor(query, shown[-1].position))


def _questions_of(store: Store, row: RunRow, *, whole: bool) -> list[ListedQuestion]:
    known: tuple[Question, ...] = ()
    with suppress(StoreCorrupt):  # the log tells the same
        known = situation.load(row.situation, row.active).questions if row.asks is not None else ()
    whole = whole or len(known) != row.asks
    if whole:
        try:
            known = tuple(history.load(store, row.run_id, row=row).questions.values())
        except (RunNotFound, StoreError) as fault:
            _log.warning("run %r cannot be read, so its questions are not listed: %s", row.run_id, fault)
            return []
    return [
        ListedQuestion(run_id=row.run_id, flow=row.flow, question=question, whole=whole) for question in known
    ]


# --- cursors -----------------------------------------------------------------------------------------

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, float, str]).decode


def make_cursor(query: Query, place: Position, *, attention: bool = False) -> str:
    """Return the cursor from which a listing by these conditions continues after a place."""
    body = _encode((_digest(query, attention), place.created_at, place.run_id))
    return urlsafe_b64encode(body).decode().rstrip("=")


def read_cursor(query: Query, cursor: str, *, attention: bool = False) -> Position:
    """Return the place that a cursor names. Raises `SettingError` if the cursor was not made for these conditions."""
    try:
        digest, created_at, run_id = _decode(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, msgspec.MsgspecError):
        raise SettingError("this is not a cursor of a listing. Begin with the first page.") from None
    if digest != _digest(query, attention):
        raise SettingError(
            "this cursor was made for a listing by other conditions. Repeat the conditions, or begin with the first page."
        )
    return Position(created_at, run_id)


def _digest(query: Query, attention: bool) -> bytes:
    """Return a digest of the conditions of a query. The length of the pages may change from one page to the next."""
    bare = msgspec.structs.replace(query, after=None, limit=0)
    return sha256(msgspec.json.encode((bare, attention), order="deterministic")).digest()[:6]
