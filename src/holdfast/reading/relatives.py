"""The family of a run: the child runs that its nodes have started, their children, and the runs that called it.

The row of a run names its caller (`RunRow.origin`). Which node of the caller started a child, and under which key, is in the log
of the caller. Everything here is bounded: a caller may have 100,000 children. Those that have not ended are listed first, and
`runs(origin=…)` lists all of them, page by page.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.core import events, situation
from holdfast.core.run_state import ENDED, GOING, OFFERED, OPEN, RunState
from holdfast.errors import RunNotFound, SchemaTooNew, SettingError, StoreCorrupt
from holdfast.reading import history
from holdfast.reading.cases import full_queues, without_refusers
from holdfast.reading.known_flows import Flows
from holdfast.reading.pages import look_at
from holdfast.reading.remedies import CommandLine, Remedy
from holdfast.reading.views import ChildView, is_row_pausing
from holdfast.storage.contract import Query, RunRow, Store, in_order
from holdfast.storage.queues import LiveHolder

CHILDREN_MAX = 100
"""How many children of a run are listed with it."""
FAMILY_MAX = 200
"""How many runs of a family are shown together, at most."""
_PAGE = 500
_CALLERS_MAX = 50
_EVENTS_SEARCHED = 20_000
"""How many of the last events of a caller are searched for the nodes that started its children."""
_OPEN = in_order(OPEN)


class FamilyMember(ChildView, frozen=True, kw_only=True):
    """A run in a family, with the reason for its status."""

    caller: str | None
    depth: int
    """How many generations below the run that was asked for; 0 for this run itself, -1 for its caller."""
    created_at: float
    updated_at: float
    asks: int
    """How many of its questions are open."""
    needs_attention: bool
    reason: str
    """Why the run is where it is, in one sentence."""
    remedy: Remedy | None
    """What to do about it, if anything needs to be done."""
    more: bool
    """True if it has children that are not listed here: `runs(origin=…)` lists them."""


class FamilyTree(msgspec.Struct, frozen=True, kw_only=True):
    """A run, the runs that called it, and its children with theirs."""

    callers: tuple[FamilyMember, ...]
    """Its caller, the caller of that run, and so on. A caller that was deleted is not listed; `caller` of the run names it."""
    members: tuple[FamilyMember, ...]
    """The run itself and the runs below it: each caller is followed by its children, oldest first."""


def children_of(store: Store, state: RunState, limit: int = CHILDREN_MAX) -> tuple[ChildView, ...]:
    """Return the children of a run, oldest first: at most `limit`, first of all those that have not ended. A run that has called
    none is not looked for in the store.
    """
    if not state.called:
        return ()
    rows = _child_rows(store, state.run_id, state, limit)
    places = _places(store, state.run_id, state, rows)
    return tuple(
        ChildView(
            id=row.run_id,
            flow=row.flow,
            status=row.status,
            pausing=is_row_pausing(row),
            **places.get(row.run_id, _UNKNOWN),
        )
        for row in rows
    )


def children_then(store: Store, state: RunState, limit: int = CHILDREN_MAX) -> tuple[ChildView, ...]:
    """Return the children that a run had started up to an older event, oldest first: at most the newest `limit`. A child counts
    as running until the log of its caller has its end.
    """
    if not state.called:
        return ()
    rows = store.events(state.run_id, upto=state.seq, kinds=("ChildStarted", "ChildEnded"))
    found: dict[str, ChildView] = {}
    for stored in history.opened(store, state.run_id, rows):
        event = stored.event
        if isinstance(event, events.ChildStarted):
            place = _place(event.slot, event.node, event.iteration, event.item)
            found.setdefault(event.run, ChildView(id=event.run, flow=event.flow, status="running", **place))
        elif event.run in found:
            found[event.run] = msgspec.structs.replace(found[event.run], status=event.status)
    return tuple(found.values())[-limit:]


def family_of(
    store: Store,
    run_id: str,
    *,
    limit: int = FAMILY_MAX,
    commands: CommandLine | None = None,
    flows: Flows | None = None,
) -> FamilyTree:
    """Return the family of a run, at most `limit` of its members: generation by generation. Raises `RunNotFound`."""
    top = store.run(run_id)
    found: dict[str, tuple[RunRow, int, dict[str, Any]]] = {run_id: (top, 0, _place_in_caller(store, top))}
    below: dict[str, list[str]] = {}
    cut: set[str] = set()
    generation, depth = [top], 0
    while generation:
        depth += 1
        following: list[RunRow] = []
        for row in generation:
            shown, has_more = _children_below(store, row, limit - len(found))
            cut |= {row.run_id} if has_more else set()
            places = _places(store, row.run_id, None, shown) if shown else {}
            for child in shown:
                found[child.run_id] = (child, depth, places.get(child.run_id, _UNKNOWN))
            below[row.run_id] = [child.run_id for child in shown]
            following += shown
        generation = following
    looking = _Looking(store, commands or CommandLine(), flows or {})
    members = [looking.member(*found[one], more=one in cut) for one in _in_order(run_id, below)]
    callers = [
        looking.member(row, -above, _place_in_caller(store, row), more=_has_several_children(store, row))
        for above, row in enumerate(_callers_of(store, top), start=1)
    ]
    return FamilyTree(callers=tuple(callers), members=tuple(members))


def _callers_of(store: Store, row: RunRow) -> Iterator[RunRow]:
    """Yield the caller of a run, the caller of that run, and so on, up to one that was deleted."""
    with suppress(RunNotFound):
        for _ in range(_CALLERS_MAX):
            if row.origin is None:
                return
            row = store.run(row.origin)
            yield row


def _has_several_children(store: Store, row: RunRow) -> bool:
    return len(store.runs(Query(origin=row.run_id, limit=2))) > 1


def open_family(store: Store, run_id: str, most: int = sys.maxsize) -> Iterator[RunRow]:
    """Yield the rows of the children of a run that have not ended for good, and of theirs: at most `most`."""
    callers = [run_id]
    while callers and most > 0:
        query = Query(origin=callers.pop(0), status=_OPEN, limit=min(most, _PAGE))
        while page := store.runs(query):
            for row in page:
                callers.append(row.run_id)
                yield row
            most -= len(page)
            if len(page) < query.limit or most <= 0:
                break
            query = msgspec.structs.replace(query, after=page[-1].position, limit=min(most, _PAGE))


# --- whether a family moves ----------------------------------------------------------------------------


WaitedFor: TypeAlias = Literal["stopped", "ended"]
"""What a caller waits for: that a run does not go on by itself, or that it has ended."""


def check_waited_for(until: Any) -> None:
    """Raise `SettingError` if this is nothing that a caller can wait for."""
    if until not in get_args(WaitedFor):
        raise SettingError(f'until={until!r} is not known: give "stopped" or "ended"')


def has_stopped(store: Store, row: RunRow, until: WaitedFor = "stopped") -> bool:
    """Return whether a caller that waits for a run gets it now, as far as this row says."""
    if until == "ended" or row.status not in GOING:
        return row.status in ENDED or until == "stopped"
    return row.status == "waiting" and not row.held and not moves_with_family(store, row)


def moves_with_family(store: Store, row: RunRow) -> bool:
    """Return whether a run that waits, and that no engine holds, goes on as soon as its family has moved: then it has not
    stopped. A run that waits for nothing but its children goes on as long as one of them needs only a worker, whether or not
    there is one. One that also waits for an answer or a signal goes on only if a live worker takes what moves.
    """
    holders = None if _waits_for_children_only(row) else store.queues.holders()
    rows = [row, *open_family(store, row.run_id)]
    asked = {one.run_id for one in store.queues.waiting([one.run_id for one in rows])}
    if row.run_id in asked and may_move(row, is_asked=True, holders=holders):
        return True
    if any(may_move(one, is_asked=one.run_id in asked, holders=holders) for one in rows[1:]):
        return True
    # A request that was carried out meanwhile is in neither of the two looks: then the run that got it has changed.
    later = [store.run(row.run_id), *open_family(store, row.run_id)]
    return [_place_now(one) for one in rows] != [_place_now(one) for one in later]


def _place_now(row: RunRow) -> tuple[str, int, int, bool]:
    return row.run_id, row.seq, row.fence, row.held


def _waits_for_children_only(row: RunRow) -> bool:
    if row.status != "waiting" or row.asks != 0:
        return False
    known = situation.load(row.situation, row.active)
    if known.needs_signal or known.is_timed or known.retries_count:
        return False
    return bool(known.waits) and all(wait.kind == "child" for wait in known.waits)


def may_move(
    row: RunRow,
    *,
    is_asked: bool,
    holders: Sequence[LiveHolder] | None,
    refusals: Collection[tuple[str, str]] = (),
) -> bool:
    """Return whether a run is executed, or will be by a worker: by one of these live holders, or by any if None is given.
    `is_asked` is true if it has a request. A holder that refuses the run will not execute it (`refusals`: pairs of a run and a
    holder).
    """
    if row.held:
        return row.status in GOING
    if row.status not in OFFERED and not is_asked and not goes_on_by_itself(row):
        return False
    return holders is None or any(
        one.holder.takes(row.flow, row.queue) and (row.run_id, one.holder.id) not in refusals
        for one in holders
    )


def goes_on_by_itself(row: RunRow) -> bool:
    """Return whether a run that waits continues at its time, because of a timer or a retry: not if it only gives up waiting for
    an answer, a signal or a child then.
    """
    if row.status != "waiting" or row.due_at is None:
        return row.status == "pending"
    known = situation.load(row.situation, row.active)
    return known.is_timed or known.retries_count > 0


class _Looking:
    """What is read once for all members of a family."""

    def __init__(self, store: Store, commands: CommandLine, flows: Flows) -> None:
        self._store = store
        self._now = store.now()
        self._holders = store.queues.holders()
        self._commands = commands
        self._flows = flows
        self._definitions: dict[str, Any] = {}
        self._queues = full_queues(store)

    def member(self, row: RunRow, depth: int, place: dict[str, Any], *, more: bool) -> FamilyMember:
        (row,) = without_refusers(self._store, [row])
        one = look_at(
            self._store,
            row,
            self._now,
            commands=self._commands.for_one_of(self._flows, row.flow),
            definitions=self._definitions,
            holders=self._holders,
            flows=self._flows,
            queues=self._queues,
        )
        return FamilyMember(
            id=row.run_id,
            flow=row.flow,
            status=row.status,
            pausing=one.found.pausing,
            **place,
            caller=row.origin,
            depth=depth,
            created_at=row.created_at,
            updated_at=row.updated_at,
            asks=one.asks,
            needs_attention=one.needs_attention,
            reason=one.found.reason,
            remedy=one.found.remedies[0] if one.found.remedies else None,
            more=more,
        )


# --- the children of one run ---------------------------------------------------------------------------


def _children_below(store: Store, row: RunRow, room: int) -> tuple[list[RunRow], bool]:
    """Return at most `room` children of a run, oldest first, and whether there are others."""
    limit = min(room, CHILDREN_MAX)
    newest = store.runs(Query(origin=row.run_id, limit=limit + 1))
    if len(newest) <= limit:
        return newest[::-1], False
    with suppress(StoreCorrupt, SchemaTooNew, RunNotFound):
        if limit:
            return _child_rows(store, row.run_id, history.load(store, row.run_id, row=row), limit), True
    return newest[:limit][::-1], True


def _child_rows(store: Store, run_id: str, state: RunState, limit: int) -> list[RunRow]:
    """Return the rows of at most `limit` children, oldest first. If there are more, those come first that have not ended as far
    as the caller knows, because the newest may all have completed.
    """
    rows = {row.run_id: row for row in store.runs(Query(origin=run_id, limit=limit))}
    if len(rows) == limit:
        missing = [run for run, child in state.children.items() if not child.is_final and run not in rows]
        older = store.runs(Query(ids=tuple(missing[:limit]), limit=limit)) if missing else []
        kept = [row for row in rows.values() if row.status in OPEN]
        kept += [row for row in rows.values() if row.status not in OPEN]
        rows = {row.run_id: row for row in (older + kept)[:limit]}
    return sorted(rows.values(), key=lambda row: row.position)


_UNKNOWN: dict[str, Any] = {"key": None, "node": None}


def _places(
    store: Store, run_id: str, state: RunState | None, rows: list[RunRow]
) -> dict[str, dict[str, Any]]:
    """Return, for each of these children of a run, the node that started it, and under which key."""
    known = state.children if state is not None else {}
    found = {run: _place(child.slot, child.node, child.iteration, child.item) for run, child in known.items()}
    missing = {row.run_id for row in rows} - found.keys()
    if missing:
        end = store.run(run_id).seq if state is None else state.seq
        started = store.events(run_id, max(0, end - _EVENTS_SEARCHED), kinds=("ChildStarted",))
        for stored in history.opened(store, run_id, started):
            event = stored.event
            if event.run in missing:
                found[event.run] = _place(event.slot, event.node, event.iteration, event.item)
    return found


def _place(slot: str, node: str, iteration: int, item: int | None) -> dict[str, Any]:
    return {"key": slot.removeprefix("child:"), "node": node, "iteration": iteration, "item": item}


def _place_in_caller(store: Store, row: RunRow) -> dict[str, Any]:
    if row.origin is None:
        return _UNKNOWN
    with suppress(RunNotFound, StoreCorrupt, SchemaTooNew):
        return _places(store, row.origin, None, [row]).get(row.run_id, _UNKNOWN)
    return _UNKNOWN


def _in_order(run_id: str, below: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield a run, then each of its children with all that is below it."""
    waiting = [run_id]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += reversed(below.get(one, []))
