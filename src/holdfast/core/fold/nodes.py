"""Fold the events of nodes: visits that are due, start, end and are routed to the next nodes; and layers that complete."""

from __future__ import annotations

from holdfast.core import events
from holdfast.core.events import Changes, Stored
from holdfast.core.fold.children import await_anew, doubt_children, forget_children
from holdfast.core.fold.items import cut_items
from holdfast.core.fold.kept_steps import forget_tries, make_tries_due
from holdfast.core.fold.status import arrive, close_waits, forget_begun, lead, set_status, settle, spend
from holdfast.core.run_state import NODE_LEVEL, Held, NodeState, NodeStatus, RunState, Warned
from holdfast.core.state import apply
from holdfast.errors import IllegalEvent


def node_scheduled(state: RunState, event: events.NodeScheduled, stored: Stored) -> None:
    """Mark a node as due: its open visit will be tried again or, if it has none, a new visit will begin."""
    node = state.visit(event.node)
    if event.node in state.open and (node.input is not None or not node.routed):
        try_again(state, event.node, fresh=event.fresh)
        if event.anew:
            await_anew(state, event.node, event.anew)
    else:  # the run has reached the node, and its visit has not begun
        set_status(state, node, "pending")
    settle(state)


def node_started(state: RunState, event: events.NodeStarted, stored: Stored) -> None:
    """Start a visit, an execution or an attempt of a node, or continue an attempt that waited."""
    if event.woken:
        _wake_up(state, event, stored)
        return
    if event.took:
        _take_arrivals(state, event)
    name = event.node
    node = state.nodes.get(name)
    if node is None:
        given = {} if state.plan else dict(state.values)
        node = state.nodes[name] = NodeState(input=given, iteration=event.iteration)
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
    """Reset the state of a node that starts again: a new visit or execution drops the data of the previous one, a new attempt
    drops the reason why the previous attempt ended.
    """
    if event.attempt == 1 or event.iteration != node.iteration or event.execution != node.execution:
        if event.iteration != node.iteration or node.input is None:
            node.input = {} if state.plan else dict(state.values)
        if node.failures or node.items is not None:
            node.failures, node.items = 0, None
        if node.kept or node.asked or node.streamed or node.parked or node.withdrawn or node.approved:
            node.kept, node.streamed, node.approved, node.parked = {}, 0, False, {}
            node.filled, node.withdrawn = {}, {}
        if event.iteration != node.iteration:
            node.crashes = (
                0  # only for a new visit: a repeated one keeps the count of processes that died in it
            )
            node.fresh = state.fresh.get(event.node, {}).get(event.iteration, 0) if state.fresh else 0
    elif node.parked:  # the items of the node keep waiting
        node.parked.pop(NODE_LEVEL, None)
    node.cut = ""
    node.retry_at = node.failure = node.question = node.returned = None
    node.unhandled = False


def _wake_up(state: RunState, event: events.NodeStarted, stored: Stored) -> None:
    """Continue the same attempt of a node after a wait."""
    node = state.visit(event.node) if event.node in state.open else NodeState()
    same = (event.iteration, event.execution, event.attempt) == (node.iteration, node.execution, node.attempt)
    if not same or (NODE_LEVEL not in node.parked and node.returned is None):
        raise IllegalEvent(
            f"run {state.run_id!r}: node {event.node!r} does not wait, so event {stored.seq} cannot wake it"
        )
    node.parked.pop(NODE_LEVEL, None)
    node.started_at = stored.at
    set_status(state, node, "running")
    state.status = "running"


def node_completed(state: RunState, event: events.NodeCompleted, stored: Stored) -> None:
    """End a visit with the node's result."""
    node = state.nodes[event.node]
    node.completed_seq = stored.seq
    items = node.items.results() if event.items and node.items is not None else []
    _close(state, event.node, "completed", stored.at)
    if node.failures or node.crashes:
        node.failures = node.crashes = 0
    _finish(state, event, items, stored.seq)


def node_skipped(state: RunState, event: events.NodeSkipped, stored: Stored) -> None:
    """End a visit with a given value in place of the node's result."""
    if event.took:
        _take_arrivals(state, event)
    node = state.nodes[event.node]
    # Greater by one if the visit was due and had not begun: the skip then counts as that visit.
    node.iteration, node.execution = event.iteration, event.execution
    node.completed_seq = stored.seq
    if event.warning is not None:
        state.warnings.append(Warned(event.node, event.iteration, event.warning))
    _close(state, event.node, "skipped", stored.at)
    _finish(state, event, [], stored.seq)


def node_failed(state: RunState, event: events.NodeFailed, stored: Stored) -> None:
    """End an attempt with a failure: the node has failed for good, or waits for its retry."""
    node = state.nodes[event.node]
    if node.status == "running":
        spend(state, node, stored.at)
        node.crashes = 0
    node.failures += 1
    node.failure = event.failure
    close_waits(state, event.node)
    forget_tries(node, NODE_LEVEL)
    node.retry_at = event.retry_at
    if event.retry_at is None:
        state.failed[event.node] = None
    else:  # the next attempt calls the node again
        node.returned = None
    set_status(state, node, "failed" if event.retry_at is None else "waiting")
    settle(state)


def node_interrupted(state: RunState, event: events.NodeInterrupted, stored: Stored) -> None:
    """Record that an attempt was stopped. An attempt whose process died counts as a crash."""
    node = state.nodes[event.node]
    node.cut = event.reason
    if event.lost:
        node.crashes += 1
    spend(state, node, state.at if event.lost else stored.at)
    if node.items is not None:
        cut_items(node.items)
    set_status(state, node, "interrupted")
    settle(state)


def node_routed(state: RunState, event: events.NodeRouted, stored: Stored) -> None:
    """Record where a completed node leads, now that its router, which had failed, has decided."""
    node = state.nodes[event.node]
    node.routed = True
    node.failure = None
    state.open.pop(event.node, None)
    state.failed.pop(event.node, None)
    lead(state, event.node, event.routes)
    settle(state)


def routing_failed(state: RunState, event: events.RoutingFailed, stored: Stored) -> None:
    """Record that a completed node's router failed. The node keeps its result; only its route is missing."""
    node = state.nodes[event.node]
    node.routed = False
    node.failure = event.failure
    state.open[event.node] = None
    state.failed[event.node] = None


def layer_completed(state: RunState, event: events.LayerCompleted, stored: Stored) -> None:
    """Apply, in node order, the changes that the nodes of a layer held back until the layer was complete."""
    if state.held.keys() != set(event.nodes):
        raise IllegalEvent(
            f"run {state.run_id!r}: layer {event.layer} has the nodes {event.nodes}, but {list(state.held)} have completed"
        )
    for name in event.nodes:
        held = state.held.pop(name)
        for changes in (*held.items, held.changes):
            _apply(state, name, changes, stored.seq)
    apply(state.values, event.changes, state.shared)
    for name, routes in event.routes.items():
        lead(state, name, routes)
    state.layer = event.layer
    settle(state)


# --- shared by the handlers --------------------------------------------------------------------------


def _take_arrivals(state: RunState, event: events.NodeStarted | events.NodeSkipped) -> None:
    """Subtract the arrivals that a new visit of a node uses up. Raises `IllegalEvent` if the run has reached the node fewer
    times.
    """
    left = state.arrivals.get(event.node, 0) - event.took
    if left < 0:
        raise IllegalEvent(
            f"run {state.run_id!r}: a visit of node {event.node!r} uses up {event.took} arrivals, "
            "but the run has reached the node fewer times"
        )
    del state.arrivals[event.node]
    if left:
        state.arrivals[event.node] = left


def _close(state: RunState, name: str, status: NodeStatus, at: float) -> None:
    """End a visit, and drop the data that a node's state has only while a visit is open: input, items, waits, kept results."""
    node = state.nodes[name]
    if node.status == "running":
        spend(state, node, at)
    else:
        node.ended_at = at
    if node.question is not None:
        state.questions.pop(node.question, None)
    if state.waits or state.questions:
        close_waits(state, name)
    if node.kept or node.parked or node.asked or node.withdrawn:
        node.kept, node.parked, node.filled, node.withdrawn = {}, {}, {}, {}
        node.approved, node.answer, node.asked = False, None, 0
    if state.children:
        forget_children(state, name)
    node.input = None
    if (
        node.items is not None
        or node.retry_at is not None
        or node.failure is not None
        or node.question is not None
        or node.returned is not None
    ):
        node.items = node.retry_at = node.failure = node.question = node.returned = None
        node.unhandled = False
    state.open.pop(name, None)
    if state.failed:
        state.failed.pop(name, None)
    set_status(state, node, status)


def _finish(
    state: RunState, event: events.NodeCompleted | events.NodeSkipped, items: list[Changes], seq: int
) -> None:
    """Apply the changes of a completion and follow its routes. In a layered flow both wait until the layer is complete."""
    if state.schedule == "layered":
        state.held[event.node] = Held(event.changes, items, event.routes)
    else:
        for changes in items:
            _apply(state, event.node, changes, seq)
        _apply(state, event.node, event.changes, seq)
        if event.routes is None:
            state.nodes[event.node].routed = False
            state.open[event.node] = None
        else:
            arrive(state, event.routes)
            if state.plan:
                state.nodes[event.node].routes = event.routes
    settle(state)


def _apply(state: RunState, name: str, changes: Changes, seq: int) -> None:
    apply(state.values, changes, state.shared)
    for field in changes.set:
        state.writers.setdefault(field, {})[name] = seq
    for field in changes.unset:
        state.writers.setdefault(field, {})[name] = seq


def try_again(state: RunState, name: str, *, fresh: bool) -> None:
    """Make a failed, interrupted or waiting visit due again. A completed visit whose router failed is routed again instead."""
    node = state.nodes.get(name)
    if node is None or (name not in state.open and name not in state.failed):
        return
    state.failed.pop(name, None)
    if not node.routed:
        route_again(state, name)
        return
    if node.question is not None:
        state.questions.pop(node.question, None)
    node.question = node.retry_at = None
    node.unhandled = False
    waited, node.parked = node.parked, {}
    make_tries_due(state, name)
    close_waits(state, name)
    forget_begun(node)
    if (
        name not in state.open
    ):  # the visit was refused before it began: it is due, and its question is asked again
        set_status(state, node, "pending")
        return
    if fresh:
        state.executions.setdefault(name, {})[node.iteration] = node.execution
        node.attempt = 0
        node.fresh += 1
    elif state.children:
        doubt_children(state, name)
    if not fresh and node.items is not None:
        node.items.again.update(dict.fromkeys((*node.items.failed, *waited), 0.0))
        node.items.failed.clear()
    set_status(state, node, "pending")


def route_again(state: RunState, name: str) -> None:
    """Let the router of a completed node be called again: alone or, in a layered flow, together with the other routers of its
    layer.
    """
    if name in state.held:
        state.nodes[name].routed = True
        state.open.pop(name, None)
