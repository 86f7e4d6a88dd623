"""Reads what a diagnosis of a run needs: its row, its situation, the requests that wait, and the child runs that it waits for.

A case is read from the row of the run where that tells enough, otherwise from the log; the diagnosis is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core import situation
from holdfast.core.definition import NodeOptions
from holdfast.core.difference import difference
from holdfast.core.fold.children import find_blocking
from holdfast.core.run_state import FEW, FINAL, TAKEABLE, RunState
from holdfast.core.situation import Situation, situate
from holdfast.errors import RunNotFound, SchemaTooNew, StoreCorrupt
from holdfast.reading import history
from holdfast.storage import definitions
from holdfast.storage.contract import Query, Request, RunRow, Store
from holdfast.storage.queues import LiveHolder, Queue, Refusal

_AT_ONCE = 500
"""For how many runs refusals are read in one query."""
_FAILED_MAX = 20
"""How many of the child runs because of which a run failed are looked at."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `diagnose` needs to know about a run."""

    row: RunRow
    state: RunState | None = None
    """The state of the run; None if its log was not read."""
    fault: str = ""
    """Why the log of the run cannot be read; empty if it can."""
    situation: Situation | None = None
    """The facts that explain its status, from its log or from its row; None if neither tells them."""
    nodes: Mapping[str, NodeOptions] = {}
    """The options of the nodes; empty if the diagnosis does not depend on them."""
    flow_known: bool = True
    lacks: tuple[str, ...] = ()
    """The capabilities that its plan needs, and that those which are known here do not have."""
    changes: tuple[str, ...] = ()
    """How the shape of the known flow differs from the flow that the run was created with."""
    takes: tuple[str, ...] | None = ()
    """The options with which `resume` accepts the changed flow; None if no options make it accept the flow."""
    misfit: str | None = None
    """The field of its state that does not fit the type which the state has in the code now: `FIELD` if it is not known which,
    empty if another value would not help, None if the state fits or is not compared."""
    changed_to: str = ""
    """The fingerprint of the changed flow; empty if it has not changed in shape."""
    fork_from: int | None = None
    """The last checkpoint from which a fork can continue with the changed flow, if the run itself cannot."""
    queue: Queue | None = None
    """The queue of the run if it is full, or stopped; None if it has room, or if that was not read."""
    requests: tuple[Request, ...] = ()
    """The requests that wait for an engine, oldest first; not read while an engine executes the run."""
    holders: tuple[LiveHolder, ...] | None = None
    """The engines that are alive, of which the workers may claim the run; None if they were not read."""
    refusals: tuple[Refusal, ...] = ()
    """Why live workers cannot continue the run as it is now."""
    too_new: bool = False
    """True if the run cannot be read because a newer version of Holdfast has written it."""
    children: Mapping[str, Case | None] = {}
    """The first few child runs that it waits for, or because of which it failed; None for one that was deleted."""
    children_left: int = 0
    """Because of how many more child runs it failed."""

    @property
    def takers(self) -> list[LiveHolder]:
        """The live workers that take the flow of the run from its queue, and have not refused the run."""
        refused = {one.holder for one in self.refusals}
        return [one for one in list_takers(self.row, self.holders or ()) if one.holder.id not in refused]

    @property
    def refusers(self) -> list[tuple[LiveHolder, Refusal]]:
        """The live workers that take the flow of the run from its queue, but refuse the run, each with its refusal."""
        takers = {one.holder.id: one for one in list_takers(self.row, self.holders or ())}
        return [(takers[one.holder], one) for one in self.refusals if one.holder in takers]

    @property
    def is_refused(self) -> bool:
        """True if live workers take the flow of the run from its queue, and all of them refuse the run."""
        return self.has_no_taker and bool(self.refusers)

    @property
    def is_left_to_change(self) -> bool:
        """True if a live worker has the changed flow, and only waits for the request to continue the run with it."""
        return self.is_refused and self.changed_to in {one.fingerprint for _, one in self.refusers} - {""}

    @property
    def is_queue_stopped(self) -> bool:
        """True if the limit of its queue is 0, so that no worker claims a run of it until the limit is raised."""
        return self.queue is not None and self.queue.limit == 0

    @property
    def has_no_taker(self) -> bool:
        """True if it is known that no live worker can take the run."""
        return self.holders is not None and not self.takers


def list_takers(row: RunRow, holders: Iterable[LiveHolder]) -> list[LiveHolder]:
    """Return the live workers that take the flow of a run from its queue."""
    return [one for one in holders if one.holder.takes(row.flow, row.queue)]


def unreadable_case(
    store: Store, row: RunRow, fault: Exception, holders: Iterable[LiveHolder] | None = None
) -> Case:
    """Return the case of a run that cannot be read."""
    holders = None if holders is None else tuple(holders)
    return Case(
        row=row,
        fault=str(fault),
        too_new=isinstance(fault, SchemaTooNew),
        holders=holders,
        refusals=refusals_of(store, row, holders),
    )


# --- reading a case ----------------------------------------------------------------------------------


def case_of(
    store: Store,
    row: RunRow,
    *,
    definitions: dict[str, Mapping[str, NodeOptions]] | None = None,
    holders: Iterable[LiveHolder] | None = None,
    requests: Iterable[Request] | None = None,
    refusals: Iterable[Refusal] | None = None,
    queues: Mapping[str, Queue] | None = None,
    known: RunState | None = None,
) -> Case:
    """Read everything that a diagnosis of this run needs. `definitions` caches the nodes of flows by fingerprint. With `holders`
    (`Queues.holders`), the diagnosis also says whether a live worker takes the run. `requests` are those that wait, `refusals`
    those of the run, and `queues` the full queues by name, if they are known. `known` is a state of the run that was read
    before: the log is not read if it ends there.
    """
    is_known = known is not None and known.seq == row.seq
    state = known if known is not None and is_known else history.load(store, row.run_id, row=row)
    return _case(store, row, state, definitions, holders, requests, refusals, queues)


def later_case(store: Store, case: Case) -> Case:
    """Return a new case for the same run as it is now. Only events that are newer than the earlier case are read."""
    row = store.run(case.row.run_id)
    return case_of(store, row, known=later_state(store, case, row))


def later_state(store: Store, case: Case, row: RunRow) -> RunState | None:
    """Return the state of an earlier case, brought up to the row of the same run as it is now: only events that are newer are
    read. None if the whole log must be read.
    """
    state = case.state
    is_later = state is not None and row.rewinds == case.row.rewinds and history.extend(store, state, row)
    return state if is_later else None


def _case(
    store: Store,
    row: RunRow,
    state: RunState,
    definitions: dict[str, Mapping[str, NodeOptions]] | None = None,
    holders: Iterable[LiveHolder] | None = None,
    requests: Iterable[Request] | None = None,
    refusals: Iterable[Refusal] | None = None,
    queues: Mapping[str, Queue] | None = None,
) -> Case:
    known = situate(state, history.find_said(store, row, state))
    definitions = definitions if definitions is not None else {}
    holders = None if holders is None else tuple(holders)
    children, left = _children(store, row, known, state)
    return Case(
        row=row,
        state=state,
        situation=known,
        nodes=_nodes(store, row, known, definitions),
        requests=waiting_requests(store, row, requests),
        holders=holders,
        refusals=refusals_of(store, row, holders, refusals),
        queue=queue_of(store, row, holders, queues),
        children=_child_cases(store, children, definitions, holders, queues),
        children_left=left,
    )


def _children(store: Store, row: RunRow, known: Situation, state: RunState | None) -> tuple[list[str], int]:
    """Return the first few child runs that a run waits for, or because of which it failed, and how many more there are of these.
    Of a child that itself waits for children, only the first is looked at, so that the work does not multiply from generation to
    generation.
    """
    is_root = row.origin is None
    if row.status == "failed" and known.failure is not None:
        names = _failed_children(store, row, known.failure.child.split(), state)
        most = _FAILED_MAX if is_root else FEW
        if names:
            return names[:most], len(names[most:])
    return [wait.child for wait in known.waits if wait.child is not None][: FEW if is_root else 1], 0


def _failed_children(store: Store, row: RunRow, named: list[str], state: RunState | None) -> list[str]:
    """Return the child runs that a resume of a failed run resumes: those that its failure names, and those of its other items and
    nodes. The log is read only if other children have failed too: the nodes may have handled that.
    """
    failed = store.runs(Query(origin=row.run_id, status=("failed",), limit=len(named) + 1))
    if all(one.run_id in named for one in failed):
        return named
    try:
        state = state if state is not None else history.load(store, row.run_id, row=row)
    except (RunNotFound, StoreCorrupt, SchemaTooNew):  # a list of runs says of it what its row says
        return named
    return list(dict.fromkeys([*named, *find_blocking(state, {*state.failed, *state.open}, unseen=True)]))


def _child_cases(
    store: Store,
    names: Iterable[str],
    definitions: dict[str, Mapping[str, NodeOptions]],
    holders: tuple[LiveHolder, ...] | None,
    queues: Mapping[str, Queue] | None,
) -> dict[str, Case | None]:
    found: dict[str, Case | None] = {}
    for name in names:
        try:
            child = store.run(name)
            known: dict[str, Any] = {"definitions": definitions, "holders": holders, "queues": queues}
            found[name] = case_of_row(store, child, **known) or case_of(store, child, **known)
        except RunNotFound:
            found[name] = None
        except (StoreCorrupt, SchemaTooNew) as fault:
            found[name] = unreadable_case(store, child, fault, holders)
    return found


def case_of_row(
    store: Store,
    row: RunRow,
    *,
    definitions: dict[str, Mapping[str, NodeOptions]] | None = None,
    holders: Iterable[LiveHolder] | None = None,
    requests: Iterable[Request] | None = None,
    refusals: Iterable[Refusal] | None = None,
    queues: Mapping[str, Queue] | None = None,
) -> Case | None:
    """Return a case for a diagnosis from the row of a run, without its log; None if the row does not tell enough. The reason and
    the remedies are the same as those of `case_of`.
    """
    if row.asks is None:
        return None
    try:
        known = situation.load(row.situation, row.active)
    except StoreCorrupt:  # `verify` reports it; the log tells the same
        return None
    if known.cut:
        return None
    definitions = definitions if definitions is not None else {}
    holders = None if holders is None else tuple(holders)
    nodes = _nodes(store, row, known, definitions)
    unnamed = known.running_count > len(known.running or ())
    if unnamed and not row.held and any(node.on_interrupt == "ask" for node in nodes.values()):
        return None
    children, left = _children(store, row, known, None)
    return Case(
        row=row,
        situation=known,
        nodes=nodes,
        requests=waiting_requests(store, row, requests),
        holders=holders,
        refusals=refusals_of(store, row, holders, refusals),
        queue=queue_of(store, row, holders, queues),
        children=_child_cases(store, children, definitions, holders, queues),
        children_left=left,
    )


def refusals_of(
    store: Store,
    row: RunRow,
    holders: Iterable[LiveHolder] | None,
    known: Iterable[Refusal] | None = None,
) -> tuple[Refusal, ...]:
    """Return why live workers cannot continue a run; read unless it is known. If no live worker takes the flow of the run, or the
    run needs none, nothing is read.
    """
    if known is not None:
        return tuple(known) if not row.held and row.status not in FINAL else ()
    return tuple(group_refusals(store, [row], holders or ()).get(row.run_id, ()))


def full_queues(store: Store) -> dict[str, Queue]:
    """Return the queues by name from which no worker claims another run now."""
    return {queue.name: queue for queue in store.queues.full()}


def queue_of(
    store: Store,
    row: RunRow,
    holders: Iterable[LiveHolder] | None,
    known: Mapping[str, Queue] | None = None,
) -> Queue | None:
    """Return the queue of a run that waits for a worker, if it is full; read unless the full queues are known, and only where the
    live workers were read.
    """
    if row.held or row.status not in TAKEABLE or (known is None and holders is None):
        return None
    return (full_queues(store) if known is None else known).get(row.queue)


def without_refusers(store: Store, rows: Iterable[RunRow]) -> list[RunRow]:
    """Return these rows, of which those count as released whose holder has refused the run as it is now: that worker has claimed
    the run again only to find out that it still cannot continue it.
    """
    rows = list(rows)
    ids = [row.run_id for row in rows if row.held]
    found = {
        (one.run_id, one.holder)
        for begin in range(0, len(ids), _AT_ONCE)
        for one in store.queues.refusals(ids[begin : begin + _AT_ONCE])
    }
    return [
        msgspec.structs.replace(row, held=False, holder=None)
        if row.holder is not None and (row.run_id, row.holder.id) in found
        else row
        for row in rows
    ]


def group_refusals(
    store: Store, rows: Iterable[RunRow], holders: Iterable[LiveHolder]
) -> dict[str, list[Refusal]]:
    """Return why live workers cannot continue these runs, by run, in few queries; runs that none refuses are left out. A worker
    that has refused one run because its flow has another shape refuses all runs of that shape, also those that wait and that it
    has not met yet.
    """
    holders = tuple(holders)
    asked = {
        row.run_id: row
        for row in rows
        if not row.held and row.status not in FINAL and list_takers(row, holders)
    }
    found: dict[str, list[Refusal]] = {}
    ids = list(asked)
    for begin in range(0, len(ids), _AT_ONCE):
        for refusal in store.queues.refusals(ids[begin : begin + _AT_ONCE]):
            found.setdefault(refusal.run_id, []).append(refusal)
    known = known_shapes(store, holders) if asked else {}
    differ: dict[tuple[str, str], bool] = {}
    for run_id, row in asked.items() if known else ():
        met = {one.holder for one in found.get(run_id, ())}
        for taker in list_takers(row, holders):
            shape = known.get((taker.holder.id, row.flow))
            if shape is None or taker.holder.id in met:
                continue
            pair = (row.fingerprint, shape.fingerprint)
            if pair not in differ:
                differ[pair] = _have_other_shapes(store, *pair)
            if differ[pair]:
                alike = msgspec.structs.replace(shape, run_id=run_id, seq=row.seq)
                found.setdefault(run_id, []).append(alike)
    return found


def known_shapes(store: Store, holders: Iterable[LiveHolder]) -> dict[tuple[str, str], Refusal]:
    """Return for worker and flow the latest refusal of a run because of the shape of that flow: it names the fingerprint of the
    flow as the worker knows it.
    """
    alive = {one.holder.id for one in holders if one.holder.flows}
    refusals = (
        [one for one in store.queues.refusals() if one.fingerprint and one.holder in alive] if alive else []
    )
    if not refusals:
        return {}
    ids = tuple({one.run_id for one in refusals})
    rows = {row.run_id: row for row in store.runs(Query(ids=ids, limit=len(ids)))}
    return {
        (one.holder, rows[one.run_id].flow): one
        for one in sorted(refusals, key=lambda one: one.at)
        if one.run_id in rows
    }


def _have_other_shapes(store: Store, fingerprint: str, other: str) -> bool:
    """Return whether two flows are known to have different shapes."""
    if fingerprint == other:
        return False
    old, new = store.definition(fingerprint), store.definition(other)
    if old is None or new is None:
        return False
    return not difference(definitions.decode(old), definitions.decode(new)).only_options


def waiting_requests(
    store: Store, row: RunRow, known: Iterable[Request] | None = None
) -> tuple[Request, ...]:
    """Return the requests to a run that wait for an engine, oldest first; they are read unless they are known. While an engine
    executes the run, there are none: it takes them.
    """
    if row.held or row.status in FINAL:
        return ()
    if known is not None:
        return tuple(known)
    return tuple(one for one in store.inbox(run_id=row.run_id) if not one.taken)


def _nodes(
    store: Store, row: RunRow, known: Situation, definitions: dict[str, Mapping[str, NodeOptions]]
) -> Mapping[str, NodeOptions]:
    """Return the options of the nodes if the diagnosis depends on them, otherwise an empty mapping."""
    if not known.failed and not known.refused and (row.held or not (known.running or known.interrupted)):
        return {}
    if row.fingerprint not in definitions:
        stored = store.definition(row.fingerprint)
        definitions[row.fingerprint] = history.defined(stored, row.run_id).nodes if stored is not None else {}
    return definitions[row.fingerprint]
