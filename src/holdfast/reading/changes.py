"""Compares the flow that is known here with the flow that a run was created with, and finds the options with which `resume`
accepts the new one.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core.definition import Definition
from holdfast.core.difference import compatible, difference
from holdfast.core.graph import Flow
from holdfast.core.run_state import FINAL, OFFERED, RunState
from holdfast.errors import RunNotFound, SchemaTooNew, StateError, StoreCorrupt
from holdfast.reading import history
from holdfast.reading.cases import Case, case_of, full_queues, group_refusals
from holdfast.reading.known_flows import Flows, find_flow
from holdfast.storage import definitions
from holdfast.storage.contract import RunRow, Store
from holdfast.storage.queues import Refusal

_COMPATIBLE = ("--on-change", "compatible")
MISFIT = "the run's state does not fit"
"""How the reason begins for which a run is refused whose state has another type in the code now."""
_FIELD = re.compile(r"\bstate\.(\w+)|missing required field `(\w+)`")
_UNDECLARED = "the stored state has a field"


def may_have_changed(row: RunRow, flow: Flow[Any] | None, refusals: Iterable[Refusal] = ()) -> bool:
    """Return whether the flow that is known here may have another shape than the one of a run that is not over, or a worker that
    refuses the run knows another one. Then a diagnosis depends on the state of the run.
    """
    known = [flow.fingerprint] if flow is not None else [one.fingerprint for one in refusals]
    return any(one and one != row.fingerprint for one in known) and row.status not in FINAL


def case_now(
    store: Store,
    row: RunRow,
    flow: Flow[Any] | None,
    flows: Flows | None = None,
    *,
    known: RunState | None = None,
) -> Case:
    """Read a run for a caller who has just asked something of it, with what live workers do with it, and with its change, if the
    shape of its flow has changed. A worker that holds the run although it knows a flow of another shape is about to refuse the
    run, which counts as released. `known` is a state of the run that was read before: see `case_of`.
    """
    free = msgspec.structs.replace(row, held=False, holder=None)
    holders = store.queues.holders()
    refusals = group_refusals(store, [free], holders).get(row.run_id, [])
    if row.holder is not None and row.holder.id in {one.holder for one in refusals}:
        row = free
    queues = full_queues(store)
    case = case_of(store, row, holders=holders, refusals=refusals, queues=queues, known=known)
    return compare(store, case, flow, flows)


def compare(store: Store, case: Case, flow: Flow[Any] | None, flows: Flows | None = None) -> Case:
    """Return the case with the fields `changes` and `takes` set, if the shape of the run's flow has changed. `flow` is None if
    the flow is not known here: then it is compared as the workers know it that refuse the run, if all of them do. Its child
    runs are compared with `flows`, those that are known here.
    """
    case = compare_children(store, case, flows)
    case = msgspec.structs.replace(case, misfit=_find_misfit(case, flow))
    row, state = case.row, case.state
    if state is None or (flow is not None and flow.fingerprint == row.fingerprint):
        return case
    new = flow.definition if flow is not None else _refusing_definition(store, case)
    if new is None:
        return case
    stored = store.definition(row.fingerprint)
    if stored is None:
        missing = ("the definition that the run was created with is not in the store",)
        return msgspec.structs.replace(case, changes=missing, takes=None)
    old = definitions.decode(stored)
    found = difference(old, new)
    if found.only_options:
        return case
    takes = _takes(old, new, state)
    fork_from = _fork_place(store, row, new) if takes is None else None
    changed_to = flow.fingerprint if flow is not None else _refusing_fingerprint(store, case)
    return msgspec.structs.replace(
        case, changes=tuple(found.words()), takes=takes, fork_from=fork_from, changed_to=changed_to
    )


def _find_misfit(case: Case, flow: Flow[Any] | None) -> str | None:
    """Return which field of the state does not fit its type any more, as `Case.misfit` has it: its type in the flow that is known
    here, otherwise in the flows of the live workers, if all of them refuse the run for that reason.
    """
    row, state = case.row, case.state
    if row.held or row.status in FINAL:
        return None
    if flow is None or state is None:
        reasons = [one.reason for _, one in case.refusers] if case.is_refused else []
        told = reasons[-1] if all(one.startswith(MISFIT) for one in reasons) and reasons else None
    elif state.state_version != flow.definition.state_version:
        return None  # it is upgraded, or refused because newer code has upgraded it
    else:
        told = _why_misfit(flow, state)
    if told is None or _UNDECLARED in told:
        return None if told is None else ""
    found = _FIELD.search(told)
    return next(filter(None, found.groups())) if found is not None else "FIELD"


def _why_misfit(flow: Flow[Any], state: RunState) -> str | None:
    try:
        flow.state.load(state.values)
    except StateError as misfit:
        return str(misfit)
    except Exception:  # noqa: BLE001 - the code of the type raised it, and a resume says so
        return None
    return None


def compare_children(store: Store, case: Case, flows: Flows | None = None) -> Case:
    """Return the case with those of its child runs compared that all live workers refuse, or that would be executed here if their
    flow, among those that are known here (`flows`), had not changed: the remedies of their caller contain the command with which
    they continue.
    """
    found = {
        name: _compare_child(store, child, flows)
        for name, child in case.children.items()
        if child is not None
    }
    return msgspec.structs.replace(case, children={**case.children, **found}) if found else case


def _compare_child(store: Store, child: Case, flows: Flows | None) -> Case:
    is_offered = child.row.status in OFFERED and not child.row.held
    flow = find_flow(store, flows, child.row) if flows and is_offered else None
    if child.fault or (flow is None and not child.is_refused):
        return compare_children(store, child, flows)
    try:
        if child.state is None:
            queues = {child.row.queue: child.queue} if child.queue is not None else {}
            child = case_of(store, child.row, holders=child.holders, refusals=child.refusals, queues=queues)
        return compare(store, child, flow, flows)
    except (RunNotFound, StoreCorrupt, SchemaTooNew):  # deleted or damaged since it was looked at
        return child


def _refusing_definition(store: Store, case: Case) -> Definition | None:
    """Return the flow of a run as a worker knows it that refuses the run, if its shape may be the reason; None if a live worker
    can take the run.
    """
    found = _refusing_fingerprint(store, case)
    stored = store.definition(found) if found else None
    return definitions.decode(stored) if stored is not None else None


def _refusing_fingerprint(store: Store, case: Case) -> str:
    """Return the fingerprint of that flow; empty if there is none."""
    if not case.is_refused:
        return ""
    for _, refusal in reversed(case.refusers):  # the latest deploy
        if refusal.fingerprint not in ("", case.row.fingerprint) and store.definition(refusal.fingerprint):
            return refusal.fingerprint
    return ""


def _fork_place(store: Store, row: RunRow, new: Definition) -> int | None:
    """Return the last checkpoint from which a fork can continue with the changed flow; None if there is none. A run that has done
    more fits fewer flows, so the place is found by halving.
    """
    places = [point.seq for point in history.checkpoints(store, row.run_id, row) if point.current]

    def is_too_late(seq: int) -> bool:
        state = history.load(store, row.run_id, seq, row=row)
        stored = store.definition(state.fingerprint)
        return stored is None or _takes(history.defined(stored, row.run_id), new, state) is None

    first = bisect(places, False, key=is_too_late)
    return places[first - 1] if first else None


def _takes(old: Definition, new: Definition, state: RunState) -> tuple[str, ...] | None:
    """Return the options of `resume` with which a run continues with a flow of another shape; None if no options allow it. If
    several nodes are new, only the user knows which of them replaces a removed node: then the options contain the placeholder
    NEW.
    """
    completed = {name for name, node in state.nodes.items() if node.completed_seq}
    pending = {*state.open, *state.arrivals, *state.held}
    found = difference(old, new)
    paired = len(found.nodes_added) == len(found.nodes_removed)
    rename = dict(zip(found.nodes_removed, found.nodes_added, strict=True)) if paired else {}
    again = difference(old, new, rename=rename)
    if rename and msgspec.structs.replace(again, renamed=[]).only_options:
        return _renames(rename)
    reasons = compatible(old, new, completed=completed, pending=pending)
    if not reasons:
        return _COMPATIBLE
    if rename and not compatible(old, new, completed=completed, pending=pending, rename=rename):
        return (*_renames(rename), *_COMPATIBLE)
    gone = [name for name in found.nodes_removed if name in completed | pending]
    if len(found.nodes_added) > len(gone) == len(reasons):  # the removed nodes are the only reasons
        return (*_renames(dict.fromkeys(gone, "NEW")), *_COMPATIBLE)
    return None


def _renames(rename: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(word for pair in rename.items() for word in ("--rename", "=".join(pair)))
