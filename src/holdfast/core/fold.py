"""The fold: what an event does to the state of a run. `fold(state, stored) -> state`.

Rules of this file
- Everything that changes a `RunState` is here, and nothing here decides: the events say what happened, the
  fold believes them.
- It calls no user code and reads no clock: time, routes and the results of reducers are inside the events.
- An event that the state does not allow is refused with `IllegalEvent`, and the state stays as it was. What
  is allowed are three tables: the statuses a run may have (`RUN`), the statuses a node may have (`NODE`),
  and, for what belongs to an attempt, that it is the attempt that is open: the late result of an abandoned
  one never counts.
- It owns the state it is given and changes it in place. Whoever wants to keep an event's JSON encodes it
  first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core import events, inside
from holdfast.core.events import Changes, NodeEvent, Stored
from holdfast.core.run_state import (
    ACTIVE,
    CLAIMABLE,
    GOING,
    LIVE,
    NODE_LEVEL,
    OPEN,
    VISIT_DONE,
    VISIT_STUCK,
    Held,
    Items,
    NodeState,
    NodeStatus,
    RunState,
    Status,
    Warned,
    wait_key,
)
from holdfast.core.standing import close_waits, end_item, set_status, settle, spend
from holdfast.core.state import always, apply
from holdfast.errors import IllegalEvent

RUN: dict[type[events.Event], frozenset[Status]] = {
    events.RunCreated: frozenset({"new"}),
    events.RunForked: OPEN,
    events.RunClaimed: CLAIMABLE,
    events.RunResumed: OPEN,
    events.RunRewound: OPEN,
    events.RunPaused: GOING,
    events.RunInterrupted: ACTIVE,
    events.RunCompleted: ACTIVE,
    events.RunFailed: ACTIVE,
    events.RunCancelled: OPEN,
    events.ResumeRefused: OPEN,
    events.StateEdited: OPEN,
    events.StateUpgraded: OPEN,
    events.FlowChanged: OPEN,
    events.NodeScheduled: ACTIVE,
    events.NodeStarted: GOING,
    events.NodeCompleted: LIVE,
    events.NodeFailed: ACTIVE,
    events.NodeInterrupted: LIVE,
    events.NodeSkipped: ACTIVE,
    events.NodeRouted: ACTIVE,
    events.RoutingFailed: ACTIVE,
    events.ItemsListed: LIVE,
    events.ItemStarted: ACTIVE,
    events.ItemCompleted: LIVE,
    events.ItemFailed: LIVE,
    events.LayerCompleted: ACTIVE,
    events.QuestionAsked: ACTIVE,
    events.QuestionAnswered: OPEN,
    events.NodeWaiting: LIVE,
    events.NodeCheckpointed: LIVE,
    events.NodeStreamed: ACTIVE,
    events.StepCompleted: LIVE,
    events.CostIncurred: LIVE,
    events.TimerSet: LIVE,
    events.TimerFired: ACTIVE,
    events.SignalAwaited: LIVE,
    events.SignalReceived: OPEN,
}
"""Event -> the statuses a run may have when it happens."""

_IDLE = VISIT_DONE | {""}
NODE: dict[type[events.Event], tuple[frozenset[str], NodeStatus | None]] = {
    events.NodeScheduled: (_IDLE | VISIT_STUCK, "pending"),
    events.NodeStarted: (_IDLE | {"pending", "waiting", "interrupted"}, "running"),
    events.NodeCompleted: (frozenset({"running"}), "completed"),
    events.NodeFailed: (frozenset({"running", "interrupted"}), None),
    events.NodeInterrupted: (frozenset({"running"}), "interrupted"),
    events.NodeSkipped: (VISIT_STUCK, "skipped"),
    events.NodeRouted: (VISIT_DONE, None),
    events.RoutingFailed: (VISIT_DONE, None),
    events.ItemsListed: (frozenset({"running"}), None),
    events.ItemStarted: (frozenset({"running", "waiting"}), None),
    events.ItemCompleted: (frozenset({"running"}), None),
    events.ItemFailed: (frozenset({"running"}), None),
    events.QuestionAsked: (_IDLE | {"pending", "interrupted", "running"}, None),
    events.QuestionAnswered: (frozenset({"waiting", "running", "interrupted", "pending"}), None),
    events.NodeWaiting: (frozenset({"running"}), None),
    events.NodeCheckpointed: (frozenset({"running"}), None),
    events.NodeStreamed: (frozenset({"running", "interrupted"}), None),
    events.StepCompleted: (frozenset({"running"}), None),
    events.CostIncurred: (frozenset({"running"}), None),
    events.TimerSet: (frozenset({"running"}), None),
    events.SignalAwaited: (frozenset({"running"}), None),
}
"""Event -> the statuses its node may have (empty: not reached yet), and the one it has afterwards, where that is
always the same.
"""

_ENDS = frozenset({events.NodeCompleted, events.NodeFailed, events.NodeInterrupted})
_INSIDE = frozenset(
    {events.StepCompleted, events.NodeCheckpointed, events.TimerSet, events.SignalAwaited, events.NodeWaiting}
)


def fold(state: RunState, stored: Stored) -> RunState:
    """Apply one event. Refuses what the tables do not allow; otherwise changes the state in place and returns it."""
    event = stored.event
    cls = type(event)
    rule = _RULES.get(cls)
    if rule is None:
        raise IllegalEvent(f"run {state.run_id!r}: {cls.__name__} is no event of a run")
    handler, statuses, check = rule
    if state.status not in statuses:
        raise IllegalEvent(
            f"run {state.run_id!r} is {state.status}: {cls.__name__} (event {stored.seq}) cannot happen then"
        )
    seq = stored.seq
    if seq != state.seq + 1 and not (cls is events.RunRewound and event.to == state.seq < seq):
        raise IllegalEvent(
            f"run {state.run_id!r}: event {stored.seq} ({cls.__name__}) cannot follow event {state.seq}"
        )
    if check is not None:
        check(state, event, seq)
    handler(state, event, stored)
    state.seq = seq
    state.at = stored.at
    return state


def _check_status(state: RunState, event: NodeEvent, seq: int) -> None:
    """The node of an event must have a status that allows it."""
    node = state.nodes.get(event.node)
    if (node.status if node is not None else "") not in NODE[type(event)][0]:
        raise _out_of_place(state, event, seq)


def _check_end(state: RunState, event: NodeEvent, seq: int) -> None:
    """What ends an attempt must be of the attempt that is open."""
    node = state.nodes.get(event.node)
    if node is None or node.status not in NODE[type(event)][0]:
        raise _out_of_place(state, event, seq)
    if (
        event.attempt != node.attempt
        or event.execution != node.execution
        or event.iteration != node.iteration
    ):
        raise _late(state, event, node, node.attempt, seq)


def _check_inside(state: RunState, event: NodeEvent, seq: int) -> None:
    """What happens inside an attempt must be of the attempt that runs: the node's, or that of an item."""
    node = state.nodes.get(event.node)
    if node is None or node.status != "running":
        raise _out_of_place(state, event, seq)
    item = getattr(event, "item", None)
    running = node.items.running if node.items is not None else {}
    attempt = node.attempt if item is None else running.get(item, 0)
    if (event.iteration, event.execution, event.attempt) != (node.iteration, node.execution, attempt):
        raise _late(state, event, node, attempt, seq)


def _check_asked(state: RunState, event: events.QuestionAsked, seq: int) -> None:
    """A question of a node's own is asked inside an attempt; those about a node, between them."""
    (_check_inside if event.about == "ask" else _check_status)(state, event, seq)


def _out_of_place(state: RunState, event: NodeEvent, seq: int) -> IllegalEvent:
    status = state.nodes[event.node].status if event.node in state.nodes else "not reached"
    return IllegalEvent(
        f"run {state.run_id!r}: node {event.node!r} is {status}: "
        f"{type(event).__name__} (event {seq}) cannot happen then"
    )


def _late(state: RunState, event: NodeEvent, node: NodeState, attempt: int, seq: int) -> IllegalEvent:
    return IllegalEvent(
        f"run {state.run_id!r}: {type(event).__name__} (event {seq}) is of {event.node!r} "
        f"{event.iteration}.{event.execution}.{event.attempt}, but "
        f"{node.iteration}.{node.execution}.{attempt} is open"
    )


# --- run ---------------------------------------------------------------------------------------------


def _created(state: RunState, event: events.RunCreated, stored: Stored) -> None:
    state.status = "pending"
    state.flow = event.flow
    state.fingerprint = event.fingerprint
    state.state_version = event.state_version
    state.schedule = event.schedule
    state.created_at = state.asked_at = stored.at
    state.labels = event.labels
    state.options = event.options
    state.values = dict(event.input)
    _arrive(state, event.starts)


def _forked(state: RunState, event: events.RunForked, stored: Stored) -> None:
    """A fork starts as a pending run of its own: what was open at that place is due again."""
    state.parent = event.parent
    state.created_at = state.asked_at = stored.at
    state.labels = event.labels if event.labels is not None else state.labels
    state.path = [*state.path, (state.since, event.to)] if event.to >= state.since else state.path
    state.since = stored.seq
    _reopen(state)
    state.status = "pending"


def _claimed(state: RunState, event: events.RunClaimed, stored: Stored) -> None:
    _cut(state, outlived=event.outlived)
    state.status = "running"
    settle(state)


def _resumed(state: RunState, event: events.RunResumed, stored: Stored) -> None:
    _cut(state, outlived=event.outlived)
    state.paused = False
    state.failure = state.failure_node = None
    state.asked_at = stored.at
    for name in list(state.failed) if event.nodes is None else event.nodes:
        if event.force and name in state.nodes:
            state.nodes[name].crashes = 0
        _try_again(state, name, fresh=event.fresh)
    state.status = "running"
    settle(state)


def _rewound(state: RunState, event: events.RunRewound, stored: Stored) -> None:
    state.path = [*state.path, (state.since, event.to)] if event.to >= state.since else state.path
    state.since = stored.seq
    for name, visits in event.executions.items():
        state.executions.setdefault(name, {}).update(visits)
    for name, crashes in event.crashes.items():
        if name in state.nodes:
            state.nodes[name].crashes = crashes
    state.active_s = max(state.active_s, event.active_s)
    state.usd, state.tokens = max(state.usd, event.usd), max(state.tokens, event.tokens)
    state.asked_at = stored.at
    _reopen(state)
    state.signals.update(event.signals)
    for name, fresh in event.fresh.items():
        state.fresh.setdefault(name, {}).update(fresh)
        visit = state.nodes.get(name)
        if visit is not None:
            visit.fresh = max(visit.fresh, fresh.get(visit.iteration, 0))
    state.status = "running"


def _paused(state: RunState, event: events.RunPaused, stored: Stored) -> None:
    state.paused = True
    settle(state)


def _interrupted(state: RunState, event: events.RunInterrupted, stored: Stored) -> None:
    state.status = "interrupted"


def _completed(state: RunState, event: events.RunCompleted, stored: Stored) -> None:
    if state.open or state.arrivals or state.held:
        raise IllegalEvent(
            f"run {state.run_id!r} cannot be completed while {[*state.open, *state.arrivals, *state.held]} is not done"
        )
    state.status = "completed"


def _failed(state: RunState, event: events.RunFailed, stored: Stored) -> None:
    state.status = "failed"
    node = state.nodes.get(event.node) if event.node is not None else None
    state.failure = node.failure if node is not None and node.failure is not None else event.failure
    state.failure_node = event.node


def _cancelled(state: RunState, event: events.RunCancelled, stored: Stored) -> None:
    state.status = "cancelled"
    state.questions.clear()
    state.waits.clear()


def _refused(state: RunState, event: events.ResumeRefused, stored: Stored) -> None:
    """Only a fact for the record."""


# --- state and flow ----------------------------------------------------------------------------------


def _edited(state: RunState, event: events.StateEdited, stored: Stored) -> None:
    apply(state.values, event.changes, state.shared)
    for name in state.open:
        given = state.nodes[name].input
        if given is not None:
            apply(given, event.changes, always)


def _upgraded(state: RunState, event: events.StateUpgraded, stored: Stored) -> None:
    state.state_version = event.state_version
    state.values = dict(event.values)
    for name, given in event.inputs.items():
        state.nodes[name].input = dict(given)


def _flow_changed(state: RunState, event: events.FlowChanged, stored: Stored) -> None:
    state.fingerprint = event.fingerprint
    rename = event.rename
    if rename:
        state.nodes = _renamed(state.nodes, rename)
        state.open = _renamed(state.open, rename)
        state.failed = _renamed(state.failed, rename)
        state.arrivals = _renamed(state.arrivals, rename)
        state.held = _renamed(state.held, rename)
        state.executions = _renamed(state.executions, rename)
        state.fresh = _renamed(state.fresh, rename)
        state.writers = {field: _renamed(by, rename) for field, by in state.writers.items()}
        state.failure_node = rename.get(state.failure_node or "", state.failure_node)
        _rename_waits(state, rename)


def _rename_waits(state: RunState, rename: dict[str, str]) -> None:
    """What is waited for is called after its node, and found by that."""
    waits, questions = list(state.waits.values()), list(state.questions.values())
    for wait in waits:
        wait.node = rename.get(wait.node, wait.node)
    for question in questions:
        before, question.node = question.node, rename.get(question.node, question.node)
        if question.about == "ask":
            question.key = question.node + question.key.removeprefix(before)
    state.waits = {wait_key(w.node, w.iteration, w.execution, w.item, w.slot): w for w in waits}
    state.questions = {question.key: question for question in questions}


def _renamed(named: dict[str, Any], rename: dict[str, str]) -> dict[str, Any]:
    return {rename.get(name, name): value for name, value in named.items()}


# --- nodes -------------------------------------------------------------------------------------------


def _node_scheduled(state: RunState, event: events.NodeScheduled, stored: Stored) -> None:
    node = state.visit(event.node)
    if event.node in state.open and (node.input is not None or not node.routed):
        _try_again(state, event.node, fresh=event.fresh)
    else:  # it has arrived and not begun: that is all there is to know
        set_status(state, node, "pending")
    settle(state)


def _node_started(state: RunState, event: events.NodeStarted, stored: Stored) -> None:
    if event.woken:
        _wake_up(state, event, stored)
        return
    if event.took:
        _take_up(state, event)
    name = event.node
    node = state.nodes.get(name)
    if node is None:
        node = state.nodes[name] = NodeState(input=dict(state.values), iteration=event.iteration)
        if state.fresh:
            node.fresh = state.fresh.get(name, {}).get(event.iteration, 0)
    else:
        _start_again(state, node, event)
    node.iteration, node.execution, node.attempt = event.iteration, event.execution, event.attempt
    node.tries += 1
    node.started_at = stored.at
    set_status(state, node, "running")
    state.open[name] = None
    state.status = "running"


def _start_again(state: RunState, node: NodeState, event: events.NodeStarted) -> None:
    """A node that was reached before: a new visit forgets the last one, a new attempt why the last one ended."""
    if event.attempt == 1 or event.iteration != node.iteration or event.execution != node.execution:
        if event.iteration != node.iteration or node.input is None:
            node.input = dict(state.values)
        if node.failures or node.items is not None:
            node.failures, node.items = 0, None
        if node.kept or node.asked or node.streamed or node.parked:
            node.kept, node.streamed, node.approved, node.parked = {}, 0, False, {}
        if event.iteration != node.iteration:
            node.crashes = 0  # doing a visit over is no reason to forget whom it killed
            node.fresh = state.fresh.get(event.node, {}).get(event.iteration, 0) if state.fresh else 0
    elif node.parked:  # its items go on waiting
        node.parked.pop(NODE_LEVEL, None)
    node.cut = ""
    node.retry_at = node.failure = node.question = None


def _wake_up(state: RunState, event: events.NodeStarted, stored: Stored) -> None:
    """The same attempt goes on behind a wait."""
    node = state.visit(event.node) if event.node in state.open else NodeState()
    same = (event.iteration, event.execution, event.attempt) == (node.iteration, node.execution, node.attempt)
    if not same or NODE_LEVEL not in node.parked:
        raise IllegalEvent(
            f"run {state.run_id!r}: node {event.node!r} does not wait, so event {stored.seq} cannot wake it"
        )
    del node.parked[NODE_LEVEL]
    node.started_at = stored.at
    set_status(state, node, "running")
    state.status = "running"


def _node_completed(state: RunState, event: events.NodeCompleted, stored: Stored) -> None:
    node = state.nodes[event.node]
    node.completed_seq = stored.seq
    items = node.items.results() if event.items and node.items is not None else []
    _close(state, event.node, "completed", stored.at)
    if node.failures or node.crashes:
        node.failures = node.crashes = 0
    _finish(state, event, items, stored.seq)


def _node_skipped(state: RunState, event: events.NodeSkipped, stored: Stored) -> None:
    if event.took:
        _take_up(state, event)
    node = state.nodes[event.node]
    node.iteration = event.iteration  # one more, where it was due and never began: the skip is that visit
    node.completed_seq = stored.seq
    if event.warning is not None:
        state.warnings.append(Warned(event.node, event.iteration, event.warning))
    _close(state, event.node, "skipped", stored.at)
    _finish(state, event, [], stored.seq)


def _node_failed(state: RunState, event: events.NodeFailed, stored: Stored) -> None:
    node = state.nodes[event.node]
    if node.status == "running":
        spend(state, node, stored.at)
        node.crashes = 0
    node.failures += 1
    node.failure = event.failure
    close_waits(state, event.node)
    node.retry_at = event.retry_at
    if event.retry_at is None:
        state.failed[event.node] = None
    set_status(state, node, "failed" if event.retry_at is None else "waiting")
    settle(state)


def _node_interrupted(state: RunState, event: events.NodeInterrupted, stored: Stored) -> None:
    node = state.nodes[event.node]
    node.cut = event.reason
    if event.lost:
        node.crashes += 1
    spend(state, node, state.at if event.lost else stored.at)
    if node.items is not None:
        _cut_items(node.items)
    set_status(state, node, "interrupted")
    settle(state)


def _node_routed(state: RunState, event: events.NodeRouted, stored: Stored) -> None:
    node = state.nodes[event.node]
    node.routed = True
    node.failure = None
    state.open.pop(event.node, None)
    state.failed.pop(event.node, None)
    _arrive(state, event.routes)
    settle(state)


def _routing_failed(state: RunState, event: events.RoutingFailed, stored: Stored) -> None:
    node = state.nodes[event.node]
    node.routed = False
    node.failure = event.failure
    state.open[event.node] = None
    state.failed[event.node] = None


def _layer_completed(state: RunState, event: events.LayerCompleted, stored: Stored) -> None:
    if state.held.keys() != set(event.nodes):
        raise IllegalEvent(
            f"run {state.run_id!r}: layer {event.layer} is {event.nodes}, but {list(state.held)} have completed"
        )
    for name in event.nodes:
        held = state.held.pop(name)
        for changes in (*held.items, held.changes):
            _apply(state, name, changes, stored.seq)
    apply(state.values, event.changes, state.shared)
    for routes in event.routes.values():
        _arrive(state, routes)
    state.layer = event.layer
    settle(state)


# --- items -------------------------------------------------------------------------------------------


def _items_listed(state: RunState, event: events.ItemsListed, stored: Stored) -> None:
    state.nodes[event.node].items = Items(values=event.items)


def _item_started(state: RunState, event: events.ItemStarted, stored: Stored) -> None:
    items = _items(state, event)
    node = state.nodes[event.node]
    if node.status == "waiting":
        node.started_at = stored.at
        set_status(state, node, "running")
        state.status = "running"
    node.parked.pop(event.item, None)
    items.again.pop(event.item, None)
    items.running[event.item] = event.attempt
    items.begun = max(items.begun, event.item + 1)
    if event.attempt > 1:
        items.attempts[event.item] = event.attempt


def _item_completed(state: RunState, event: events.ItemCompleted, stored: Stored) -> None:
    items = _items(state, event)
    end_item(state, items, event, stored.seq)
    items.done[event.item] = event.changes
    node = state.nodes[event.node]
    node.crashes = 0
    node.kept.pop(event.item, None)
    close_waits(state, event.node, event.item)
    inside.rest(state, event.node, stored.at)


def _item_failed(state: RunState, event: events.ItemFailed, stored: Stored) -> None:
    items = _items(state, event)
    end_item(state, items, event, stored.seq)
    items.failures[event.item] = items.failures.get(event.item, 0) + 1
    if event.retry_at is None:
        items.failed[event.item] = event.failure
    else:
        items.again[event.item] = event.retry_at
    close_waits(state, event.node, event.item)
    inside.rest(state, event.node, stored.at)


def _items(state: RunState, event: NodeEvent) -> Items:
    node = state.nodes[event.node]
    if node.items is None or (event.iteration, event.execution) != (node.iteration, node.execution):
        raise IllegalEvent(
            f"run {state.run_id!r}: node {event.node!r} has listed no items in visit {event.iteration}.{event.execution}"
        )
    return node.items


# --- what several of them do -------------------------------------------------------------------------


def _arrive(state: RunState, routes: list[str]) -> None:
    for name in routes:
        if name != "END":
            state.arrivals[name] = state.arrivals.get(name, 0) + 1


def _take_up(state: RunState, event: events.NodeStarted | events.NodeSkipped) -> None:
    """A visit takes up arrivals."""
    left = state.arrivals.get(event.node, 0) - event.took
    if left < 0:
        raise IllegalEvent(
            f"run {state.run_id!r}: node {event.node!r} took {event.took} arrivals, which are not there"
        )
    del state.arrivals[event.node]
    if left:
        state.arrivals[event.node] = left


def _close(state: RunState, name: str, status: NodeStatus, at: float) -> None:
    """A visit ended: it holds nothing any more."""
    node = state.nodes[name]
    if node.status == "running":
        spend(state, node, at)
    else:
        node.ended_at = at
    if node.question is not None:
        state.questions.pop(node.question, None)
    if state.waits or state.questions:
        close_waits(state, name)
    if node.kept or node.parked or node.asked:
        node.kept, node.parked, node.approved, node.answer, node.asked = {}, {}, False, None, 0
    node.input = None
    if (
        node.items is not None
        or node.retry_at is not None
        or node.failure is not None
        or node.question is not None
    ):
        node.items = node.retry_at = node.failure = node.question = None
    state.open.pop(name, None)
    if state.failed:
        state.failed.pop(name, None)
    set_status(state, node, status)


def _finish(
    state: RunState, event: events.NodeCompleted | events.NodeSkipped, items: list[Changes], seq: int
) -> None:
    """Apply what a completion changed and go where it leads, or keep both until the layer is complete."""
    if state.schedule == "layered":
        state.held[event.node] = Held(event.changes, items)
    else:
        for changes in items:
            _apply(state, event.node, changes, seq)
        _apply(state, event.node, event.changes, seq)
        if event.routes is None:
            state.nodes[event.node].routed = False
            state.open[event.node] = None
        else:
            _arrive(state, event.routes)
    settle(state)


def _apply(state: RunState, name: str, changes: Changes, seq: int) -> None:
    apply(state.values, changes, state.shared)
    for field in changes.set:
        state.writers.setdefault(field, {})[name] = seq
    for field in changes.unset:
        state.writers.setdefault(field, {})[name] = seq


def _cut(state: RunState, *, outlived: bool) -> None:
    """Whoever ran this is gone, or had to let it go: what was running has been cut in the middle."""
    for name in state.open:
        node = state.nodes[name]
        if node.status == "running":
            spend(state, node, state.at)  # as far as the log knows
            node.crashes += not outlived
            if node.items is not None:
                _cut_items(node.items)
            set_status(state, node, "interrupted")


def _cut_items(items: Items) -> None:
    for item, attempt in items.running.items():
        items.again[item] = 0.0
        items.attempts[item] = attempt
    items.running.clear()


def _try_again(state: RunState, name: str, *, fresh: bool) -> None:
    """A failed, interrupted or waiting visit is due again; a completed one whose router failed is routed again."""
    node = state.nodes.get(name)
    if node is None or (name not in state.open and name not in state.failed):
        return
    state.failed.pop(name, None)
    if not node.routed:
        _route_again(state, name)
        return
    if node.question is not None:
        state.questions.pop(node.question, None)
    node.question = node.retry_at = None
    waited, node.parked = node.parked, {}
    close_waits(state, name)
    if name not in state.open:  # it was refused before it began: it is due, and will be asked about again
        set_status(state, node, "pending")
        return
    if fresh:
        state.executions.setdefault(name, {})[node.iteration] = node.execution
        node.attempt = 0
        node.fresh += 1
    elif node.items is not None:
        node.items.again.update(dict.fromkeys((*node.items.failed, *waited), 0.0))
        node.items.failed.clear()
    set_status(state, node, "pending")


def _reopen(state: RunState) -> None:
    """After a rewind or in a fork: what was open is due again, as a new execution with the input it had."""
    for name in tuple(state.open):
        node = state.nodes[name]
        if not node.routed:
            _route_again(state, name)
            continue
        done = state.executions.setdefault(name, {})
        done[node.iteration] = max(done.get(node.iteration, 0), node.execution)
        node.attempt = 0
        node.items = node.retry_at = node.failure = node.question = None
        node.failures = 0
        node.kept, node.parked, node.approved, node.asked = {}, {}, False, 0
        set_status(state, node, "pending")
    for name in state.arrivals:  # what was asked before they begin is asked again
        gate = state.nodes.get(name)
        if gate is not None and name not in state.open and gate.status in ("waiting", "failed"):
            gate.question = gate.failure = None
            set_status(state, gate, "pending")
    state.failed.clear()
    state.questions.clear()
    state.waits.clear()
    state.failure = state.failure_node = None
    state.paused = False


def _route_again(state: RunState, name: str) -> None:
    """The router of a completed node is asked again: by itself, or with its whole layer."""
    if name in state.held:
        state.nodes[name].routed = True
        state.open.pop(name, None)


HANDLERS: dict[type[events.Event], Callable[[RunState, Any, Stored], None]] = {
    events.RunCreated: _created,
    events.RunForked: _forked,
    events.RunClaimed: _claimed,
    events.RunResumed: _resumed,
    events.RunRewound: _rewound,
    events.RunPaused: _paused,
    events.RunInterrupted: _interrupted,
    events.RunCompleted: _completed,
    events.RunFailed: _failed,
    events.RunCancelled: _cancelled,
    events.ResumeRefused: _refused,
    events.StateEdited: _edited,
    events.StateUpgraded: _upgraded,
    events.FlowChanged: _flow_changed,
    events.NodeScheduled: _node_scheduled,
    events.NodeStarted: _node_started,
    events.NodeCompleted: _node_completed,
    events.NodeFailed: _node_failed,
    events.NodeInterrupted: _node_interrupted,
    events.NodeSkipped: _node_skipped,
    events.NodeRouted: _node_routed,
    events.RoutingFailed: _routing_failed,
    events.ItemsListed: _items_listed,
    events.ItemStarted: _item_started,
    events.ItemCompleted: _item_completed,
    events.ItemFailed: _item_failed,
    events.LayerCompleted: _layer_completed,
    events.QuestionAsked: inside.question_asked,
    events.QuestionAnswered: inside.question_answered,
    events.NodeWaiting: inside.node_waiting,
    events.NodeCheckpointed: inside.node_checkpointed,
    events.NodeStreamed: inside.node_streamed,
    events.StepCompleted: inside.step_completed,
    events.CostIncurred: inside.cost_incurred,
    events.TimerSet: inside.timer_set,
    events.TimerFired: inside.timer_fired,
    events.SignalAwaited: inside.signal_awaited,
    events.SignalReceived: inside.signal_received,
}
"""One handler a kind; a test holds that the closed union is covered."""


def _check_of(cls: type[events.Event]) -> Callable[[RunState, Any, int], None] | None:
    """What must hold of the node of an event."""
    if cls is events.QuestionAsked:
        return _check_asked
    if cls in _ENDS:
        return _check_end
    if cls in _INSIDE:
        return _check_inside
    return _check_status if cls in NODE else None


_RULES = {cls: (handler, RUN[cls], _check_of(cls)) for cls, handler in HANDLERS.items()}
"""The tables side by side: one look for each event."""
