"""Routes that read the log of a run: events, checkpoints, the ledger, states and how they differ."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core.events import KINDS
from holdfast.errors import did_you_mean, end_sentence
from holdfast.reading import history
from holdfast.reading.comparison import Comparison, compare_runs
from holdfast.reading.damage import LogDamage
from holdfast.reading.history import Checkpoint
from holdfast.reading.ledger import Ledger
from holdfast.reading.ledger_entries import TYPES, EntryType, LedgerEntry
from holdfast.reading.state_changes import Change, changes, describe
from holdfast.reading.views import EventView, event_view
from holdfast.server.backend import Backend
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.entity_tags import answer_tagged, tag_of_event, tag_of_run
from holdfast.server.json_body import encode
from holdfast.server.problems import Fault, refuse
from holdfast.server.runs import Limit, Name, RunId, Seq
from holdfast.storage.contract import Row, RunRow, Store

_CHECKPOINTS_MAX = 1000
_ENTRIES_MAX = 1000


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the events of a run. To read on, pass `older` as `before`, or `newer` as `after`."""

    events: list[EventView]
    older: int | None
    """The seq before which there are older events; None if there are none."""
    newer: int | None
    """The seq after which there are newer events now; None if there are none."""
    end: int
    """The seq of the last event of the log."""
    beginning: str
    """Where the earlier events are, if the log was compacted or belongs to a fork; else empty."""
    kinds: tuple[str, ...] = tuple(sorted(KINDS))
    """Every kind that an event can have."""


class CheckpointPage(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoints that the run can be resumed or forked from, oldest first. Pass `next` as `after` to read on."""

    checkpoints: list[Checkpoint]
    next: int | None


class LedgerPage(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions in the log of a run, oldest first. Pass `next` as `after` to read on."""

    run_id: str
    flow: str
    seq: int
    """The seq of the last event of the log."""
    digest: str
    """The digest of that event, in hex. It covers the whole log."""
    entries: list[LedgerEntry]
    next: int | None
    beginning: str
    """Where the earlier events are, if the log was compacted or belongs to a fork; else empty."""
    verified: bool | None
    """Whether the whole log is exactly what was written; None if `verify` was not asked for."""
    problems: list[str]
    damage: list[LogDamage]
    """The events that were removed, altered or added."""


class StateAt(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run after the event `seq`."""

    run_id: str
    seq: int
    state: dict[str, Any]
    """Field -> value; with `brief`, a value or the size and digest of a large one, as in a difference."""


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in the state of a run between two events."""

    run_id: str
    from_: int = msgspec.field(name="from")
    to: int
    changes: list[Change]


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events to list."""

    after: Seq = 0
    before: Seq | UnsetType = UNSET
    newest: bool = False
    """List the newest events first."""
    node: Name | UnsetType = UNSET
    kind: Annotated[str, Meta(extra_json_schema={"enum": sorted(KINDS)})] | UnsetType = UNSET
    limit: Limit = 100


class CheckpointsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which checkpoints to list."""

    after: Seq = 0
    limit: Annotated[int, Meta(ge=1, le=_CHECKPOINTS_MAX)] = 200


class LedgerQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which decisions to list."""

    after: Seq = 0
    type: tuple[EntryType, ...] = ()
    """Only decisions of these types; repeatable."""
    verify: bool = False
    """Also check that the whole log is exactly what was written."""
    limit: Annotated[int, Meta(ge=1, le=_ENTRIES_MAX)] = 200


class StateQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At which event."""

    at: Seq | UnsetType = UNSET
    """The seq of an event; default: the end of the log."""
    field: tuple[Name, ...] = ()
    """Only these fields of the state; repeatable. Other routes give the size and digest of a large value; its field is here."""
    brief: bool = False
    """Replace large values by their size and digest."""


class DiffQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Between which events."""

    from_: Seq = msgspec.field(name="from")
    to: Seq | UnsetType = UNSET
    """Default: the end of the log."""


class CompareQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runs to compare."""

    a: RunId
    b: RunId


# --- events ------------------------------------------------------------------------------------------


def list_events(call: HttpCall[EventsQuery, None]) -> Answer:
    """List events of a run, in pages, from either end."""
    store, run_id, query = call.backend.store, call.values["id"], call.query
    if query.kind is not UNSET and query.kind not in KINDS:
        raise refuse(
            "bad-parameter",
            end_sentence(f"There is no kind of event {query.kind!r}{did_you_mean(query.kind, KINDS)}"),
        )
    row = store.run(run_id)
    return answer_tagged(call, tag_of_run(row), lambda: _page(store, row, query))


def _page(store: Store, row: RunRow, query: EventsQuery) -> EventPage:
    run_id = row.run_id
    upto = row.seq if query.before is UNSET else min(row.seq, query.before - 1)
    read = _newest if query.newest else _oldest
    found = read(store, run_id, upto, query)
    views = [event_view(stored) for stored in history.opened(store, run_id, found)]
    seqs = [view.seq for view in views]
    first = history.began_after(store, row) + 1
    lowest, highest = (min(seqs), max(seqs)) if seqs else (query.after + 1, upto)
    return EventPage(
        events=views,
        older=lowest if lowest > first else None,
        newer=highest if highest < row.seq else None,
        end=row.seq,
        beginning=history.beginning(store, row),
    )


def _filter(query: EventsQuery) -> dict[str, Any]:
    return {"kinds": (query.kind,) if query.kind else (), "node": query.node or None}


def _oldest(store: Store, run_id: str, upto: int, query: EventsQuery) -> list[Row]:
    return store.events(run_id, query.after, upto, limit=query.limit, **_filter(query))


def _newest(store: Store, run_id: str, upto: int, query: EventsQuery) -> list[Row]:
    """Read backwards, in parts that grow, because events that do not match leave gaps."""
    found: list[Row] = []
    size = query.limit
    while upto > query.after and len(found) < query.limit:
        after = max(query.after, upto - size)
        found = [*store.events(run_id, after, upto, **_filter(query)), *found]
        upto, size = after, size * 4
    return found[: -query.limit - 1 : -1]


def list_checkpoints(call: HttpCall[CheckpointsQuery, None]) -> CheckpointPage:
    """List the checkpoints that a run can be resumed or forked from, oldest first."""
    query = call.query
    found = [one for one in call.backend.reader.checkpoints(call.values["id"]) if one.seq > query.after]
    shown = found[: query.limit]
    return CheckpointPage(checkpoints=shown, next=shown[-1].seq if len(found) > len(shown) else None)


# --- the ledger --------------------------------------------------------------------------------------


def get_ledger(call: HttpCall[LedgerQuery, None]) -> Answer:
    """List the decisions of a run: who made each, and why; with `verify`, also whether the log is what was written."""
    backend, query = call.backend, call.query
    row = backend.store.run(call.values["id"])

    def make() -> LedgerPage:
        return _ledger_page(backend.reader.ledger(row.run_id, verify=query.verify), query)

    if query.verify:  # the tag would not tell that the log was altered
        return Answer(body=encode(make()))
    return answer_tagged(call, tag_of_run(row), make)


def _ledger_page(ledger: Ledger, query: LedgerQuery) -> LedgerPage:
    wanted = query.type or TYPES
    found = [one for one in ledger.entries if one.seq > query.after and one.type in wanted]
    shown = found[: query.limit]
    whole = {name: getattr(ledger, name) for name in Ledger.__struct_fields__ if name != "entries"}
    return LedgerPage(**whole, entries=shown, next=shown[-1].seq if len(found) > len(shown) else None)


# --- states ------------------------------------------------------------------------------------------


def get_state(call: HttpCall[StateQuery, None]) -> Answer:
    """Get the state of a run after an event."""
    store, run_id, at = call.backend.store, call.values["id"], call.query.at
    row = store.run(run_id)
    seq = row.seq if at is UNSET else at

    def make() -> StateAt:
        values = _chosen(history.load(store, run_id, seq, row=row).values, call.query.field)
        shown = {name: describe(value) for name, value in values.items()} if call.query.brief else values
        return StateAt(run_id=run_id, seq=seq, state=shown)

    return answer_tagged(call, tag_of_event(store, row, seq), make)


def _chosen(values: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Return these fields of a state; all of them if none is named. Raises `Refused`."""
    for name in fields:
        if name not in values:
            told = end_sentence(f"The state has no field {name!r} there{did_you_mean(name, values)}")
            raise refuse("bad-parameter", told, faults=(Fault("field", f"{name!r} is not in the state"),))
    return {name: values[name] for name in fields} if fields else values


def get_diff(call: HttpCall[DiffQuery, None]) -> Answer:
    """Say what changed in the state of a run between two events."""
    backend, run_id, query = call.backend, call.values["id"], call.query
    store = backend.store
    row = store.run(run_id)
    to = row.seq if query.to is UNSET else query.to

    def make() -> Diff:
        before = history.load(store, run_id, query.from_, row=row)
        after = history.load(store, run_id, to, row=row)
        found = list(changes(before.values, after.values, _reducers(backend, row)))
        return Diff(run_id=run_id, from_=query.from_, to=to, changes=found)

    return answer_tagged(call, tag_of_event(store, row, max(query.from_, to)), make)


def _reducers(backend: Backend, row: RunRow) -> dict[str, str]:
    return backend.reader.definition(row).state


# --- two runs ----------------------------------------------------------------------------------------


def get_comparison(call: HttpCall[CompareQuery, None]) -> Comparison:
    """Say where the shared history of two runs ends, and how they differ now."""
    backend, store = call.backend, call.backend.store
    one, other = store.run(call.query.a), store.run(call.query.b)
    return compare_runs(store, one, other, _reducers(backend, other))
