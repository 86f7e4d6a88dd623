"""Fold the events of the run as a whole, of its state and of its flow."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core import events
from holdfast.core.budget import Budget
from holdfast.core.events import Stored
from holdfast.core.fold.children import report_end
from holdfast.core.fold.items import cut_items
from holdfast.core.fold.nodes import route_again, try_again
from holdfast.core.fold.status import arrive, set_status, settle, spend
from holdfast.core.run_state import BegunVisit, RunState
from holdfast.core.scope import EVERY
from holdfast.core.state import always, apply
from holdfast.errors import IllegalEvent


def run_created(state: RunState, event: events.RunCreated, stored: Stored) -> None:
    """Create the run: its input becomes the state, and the nodes after START are reached."""
    state.status = "pending"
    state.flow = event.flow
    state.fingerprint = event.fingerprint
    state.state_version = event.state_version
    state.schedule = event.schedule
    state.created_at = stored.at
    state.asked_at = event.options.get("begin_at", stored.at)
    state.labels = event.labels
    state.options = event.options
    if "budget" in event.options:
        state.budget = Budget(**event.options["budget"])
    if "scope" in event.options:
        state.scope = dict.fromkeys(event.options["scope"])
    state.values = dict(event.input)
    state.plan = event.plan
    if event.caller is not None:
        caller = event.caller
        state.origin, state.lineage, state.depth = caller.run, caller.lineage, caller.depth
    arrive(state, event.starts)


def run_forked(state: RunState, event: events.RunForked, stored: Stored) -> None:
    """Begin a fork as a pending run of its own. Visits that were open at the event it was forked from are due again."""
    state.parent = event.parent
    state.created_at = state.asked_at = stored.at
    state.labels = event.labels if event.labels is not None else state.labels
    state.path = [*state.path, (state.since, event.to)] if event.to >= state.since else state.path
    state.since = stored.seq
    state.lineage = event.lineage or ""
    # A fork has no caller, and children of its own.
    state.origin, state.children, state.reported, state.called = None, {}, None, False
    _reopen(state)
    _renew(state, event.renewed)
    state.begun = {}
    for one in event.visits:
        visits = state.begun.setdefault(one.node, {})
        visit = visits.setdefault(one.iteration, BegunVisit(choice=event.repeat.get(one.node)))
        if one.item is None:
            visit.whole = one
        else:
            visit.items[one.item] = one
    state.status = "pending"


def run_claimed(state: RunState, event: events.RunClaimed, stored: Stored) -> None:
    """Record that an engine claimed the run. Nodes that were running count as interrupted, and as crashed if the previous holder
    died.
    """
    _cut(state, outlived=event.outlived)
    state.status = "running"
    settle(state)


def run_resumed(state: RunState, event: events.RunResumed, stored: Stored) -> None:
    """Record that the run was resumed: running nodes count as interrupted, as after a claim, and failed nodes are due again."""
    _cut(state, outlived=event.outlived)
    state.paused = False
    state.failure = state.failure_node = None
    state.asked_at = stored.at
    _limit(state, event)
    for name in list(state.failed) if event.nodes is None else event.nodes:
        if event.force and name in state.nodes:
            state.nodes[name].crashes = 0
        try_again(state, name, fresh=event.fresh)
    state.status = "running"
    settle(state)


def run_rewound(state: RunState, event: events.RunRewound, stored: Stored) -> None:
    """Continue from the state at an earlier event, and restore what a rewind never undoes: counts, costs and signals."""
    state.path = [*state.path, (state.since, event.to)] if event.to >= state.since else state.path
    state.since = stored.seq
    for name, visits in event.executions.items():
        state.executions.setdefault(name, {}).update(visits)
    for name, crashes in event.crashes.items():
        if name in state.nodes:
            state.nodes[name].crashes = crashes
    state.active_s = max(state.active_s, event.active_s)
    state.usd, state.tokens = max(state.usd, event.usd), max(state.tokens, event.tokens)
    state.called = state.called or event.called
    state.children_usd = max(state.children_usd, event.children_usd)
    state.children_tokens = max(state.children_tokens, event.children_tokens)
    state.reported = event.reported
    state.asked_at = stored.at
    _limit(state, event)
    _reopen(state)
    state.signals.update(event.signals)
    _renew(state, event.fresh)
    state.status = "running"


def _limit(state: RunState, event: events.RunResumed | events.RunRewound) -> None:
    """Set the budget and the scope that the run has from here on, if they change."""
    if event.budget is not None:
        state.budget = event.budget
    if event.scope is not None:
        state.scope = None if EVERY in event.scope else dict.fromkeys(event.scope)


def run_paused(state: RunState, event: events.RunPaused, stored: Stored) -> None:
    """Pause the run: no node starts any more, and the status becomes paused when the running nodes have ended."""
    state.paused = True
    settle(state)


def run_interrupted(state: RunState, event: events.RunInterrupted, stored: Stored) -> None:
    """Record that the process that held the run was stopped."""
    state.status = "interrupted"


def run_completed(state: RunState, event: events.RunCompleted, stored: Stored) -> None:
    """Complete the run. Raises `IllegalEvent` if a visit is open or a node that was reached has not begun."""
    if state.open or state.arrivals or state.held:
        raise IllegalEvent(
            f"run {state.run_id!r} cannot be completed: {[*state.open, *state.arrivals, *state.held]} is not done"
        )
    state.status = "completed"
    if state.origin is not None:
        report_end(state, stored.seq)


def run_failed(state: RunState, event: events.RunFailed, stored: Stored) -> None:
    """Fail the run, and keep the failure of the node, with its traceback, as the failure of the run."""
    state.status = "failed"
    node = state.nodes.get(event.node) if event.node is not None else None
    state.failure = node.failure if node is not None and node.failure is not None else event.failure
    state.failure_node = event.node
    if state.origin is not None:
        report_end(state, stored.seq)


def run_cancelled(state: RunState, event: events.RunCancelled, stored: Stored) -> None:
    """Cancel the run, and drop its open questions and waits."""
    state.status = "cancelled"
    state.uncleaned = event.uncleaned
    state.questions.clear()
    state.waits.clear()
    if state.origin is not None:
        report_end(state, stored.seq)


def request_refused(state: RunState, event: events.RequestRefused, stored: Stored) -> None:
    """Change nothing: a refused request is only recorded in the log."""


def resume_refused(state: RunState, event: events.ResumeRefused, stored: Stored) -> None:
    """Change nothing: a refused resume is only recorded in the log."""


def state_edited(state: RunState, event: events.StateEdited, stored: Stored) -> None:
    """Apply an edit to the state, and to the inputs of visits that have not ended. After an edit, a fan-out may list other items:
    a fork asks before it uses results of items that its parent completed.
    """
    apply(state.values, event.changes, state.shared)
    for name in state.open:
        given = state.nodes[name].input
        if given is not None and not state.plan:
            apply(given, event.changes, always)
    for visits in state.begun.values():
        for visit in visits.values():
            visit.items = {item: replace(one, kept=False) for item, one in visit.items.items()}


def state_upgraded(state: RunState, event: events.StateUpgraded, stored: Stored) -> None:
    """Replace the state, and the inputs of visits that have not ended, by their upgraded versions."""
    state.state_version = event.state_version
    state.values = dict(event.values)
    for name, given in event.inputs.items():
        state.nodes[name].input = dict(given)


def flow_changed(state: RunState, event: events.FlowChanged, stored: Stored) -> None:
    """Continue with a changed flow: everything that is recorded about a renamed node moves to its new name, except its keys."""
    state.fingerprint = event.fingerprint
    rename = {old: new for old, new in event.rename.items() if old != new}
    if rename:
        state.nodes = _rename(state.nodes, rename)
        state.open = _rename(state.open, rename)
        state.failed = _rename(state.failed, rename)
        state.arrivals = _rename(state.arrivals, rename)
        state.held = _rename(state.held, rename)
        if event.keeps_keys:
            came = _keep_keys(state, rename)
        else:
            came = {}
            _rename_keys(state, rename)
        state.executions = _rename(state.executions, rename | came)
        state.fresh = _rename(state.fresh, rename | came)
        state.begun = _rename(state.begun, rename)
        state.scope = _rename(state.scope, rename) if state.scope is not None else None
        state.writers = {field: _rename(by, rename) for field, by in state.writers.items()}
        state.failure_node = rename.get(state.failure_node or "", state.failure_node)
        for child in state.children.values():
            child.node = rename.get(child.node, child.node)
        for signal in state.aside:
            signal.node = rename.get(signal.node, signal.node)
        for wait in state.waits.values():
            wait.node = rename.get(wait.node, wait.node)
        for question in state.questions.values():
            question.node = rename.get(question.node, question.node)


def _keep_keys(state: RunState, rename: dict[str, str]) -> dict[str, str]:
    """Let renamed nodes keep their key names, and give each name that becomes free a key name for the node that may get it.
    Returns these key names -> the names: a rewind has recorded by them what it knew of such a node.
    """
    known = state.key_names
    moved = {new: state.key_name(old) for old, new in rename.items()}
    used = {*known.values(), *moved.values()}
    freed: dict[str, str] = {}
    for old in rename:
        if old not in moved:
            number = 2
            while f"{old}~{number}" in used:
                number += 1
            freed[old] = f"{old}~{number}"
    named = {**known, **moved, **freed}
    state.key_names = {name: key_name for name, key_name in named.items() if name != key_name}
    return {key_name: name for name, key_name in freed.items()}


def _rename_keys(state: RunState, rename: dict[str, str]) -> None:
    """Make the keys of renamed nodes from their new names, as versions did that did not keep them."""
    waits, questions = list(state.waits.values()), list(state.questions.values())
    state.key_names = {
        name: key_name
        for name, key_name in state.key_names.items()
        if name not in rename and name not in rename.values()
    }
    for question in questions:
        if question.about == "ask" and question.node in rename:
            question.key = rename[question.node] + question.key.removeprefix(question.node)
    state.waits = {
        state.wait_key(rename.get(w.node, w.node), w.iteration, w.execution, w.item, w.slot): w for w in waits
    }
    state.questions = {question.key: question for question in questions}


def _rename(named: dict[str, Any], rename: dict[str, str]) -> dict[str, Any]:
    return {rename.get(name, name): value for name, value in named.items()}


def _renew(state: RunState, fresh: dict[str, dict[int, int]]) -> None:
    """Keep how often visits got new idempotency keys, for the visits that are repeated."""
    for name, visits in fresh.items():
        state.fresh.setdefault(name, {}).update(visits)
        visit = state.nodes.get(name)
        if visit is not None:
            visit.fresh = max(visit.fresh, visits.get(visit.iteration, 0))


def _cut(state: RunState, *, outlived: bool) -> None:
    """Mark all running visits as interrupted, because their holder crashed or lost the run."""
    for name in state.open:
        node = state.nodes[name]
        if node.status == "running":
            spend(state, node, state.at)  # until the last event, because the log knows nothing later
            node.crashes += not outlived
            if node.items is not None:
                cut_items(node.items)
            set_status(state, node, "interrupted")


def _reopen(state: RunState) -> None:
    """Make each open visit due again, as a new execution with the same input. Used for a rewind and for a fork."""
    for name in tuple(state.open):
        node = state.nodes[name]
        if not node.routed:
            route_again(state, name)
            continue
        done = state.executions.setdefault(name, {})
        done[node.iteration] = max(done.get(node.iteration, 0), node.execution)
        node.attempt = 0
        node.items = node.retry_at = node.failure = node.question = node.returned = None
        node.failures, node.unhandled = 0, False
        node.kept, node.parked, node.filled, node.withdrawn = {}, {}, {}, {}
        node.approved, node.asked = False, 0
        set_status(state, node, "pending")
        state.children = {run: child for run, child in state.children.items() if child.node != name}
    for name in state.arrivals:  # questions that were asked before these nodes began are asked again
        gate = state.nodes.get(name)
        if gate is not None and name not in state.open and gate.status in ("waiting", "failed"):
            gate.question = gate.failure = None
            set_status(state, gate, "pending")
    state.failed.clear()
    state.questions.clear()
    state.waits.clear()
    state.failure = state.failure_node = None
    state.paused = False
