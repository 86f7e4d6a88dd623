"""Functions that several handlers of the fold share: reach nodes, set a node's status, derive the run's status, close waits."""

from __future__ import annotations

from typing import Any

from holdfast.core.run_state import LIVE, NODE_LEVEL, UNDER_WAY, Items, NodeState, NodeStatus, RunState
from holdfast.errors import IllegalEvent


def arrive(state: RunState, routes: list[str]) -> None:
    """Record that the run has reached these nodes."""
    for name in routes:
        if name != "END":
            state.arrivals[name] = state.arrivals.get(name, 0) + 1


def lead(state: RunState, name: str, routes: list[str]) -> None:
    """Record that the run goes from this node to these nodes. Each edge of a plan is decided once, so there it is kept."""
    arrive(state, routes)
    if state.plan:
        state.nodes[name].routes = routes


def set_status(state: RunState, node: NodeState, status: NodeStatus) -> None:
    """Set the status of a node, and update the run's counts of running and waiting nodes."""
    before = node.status
    if before == "running":
        state.running -= 1
    elif before == "waiting":
        state.waiting -= 1
    if status == "running":
        state.running += 1
    elif status == "waiting":
        state.waiting += 1
    node.status = status


def settle(state: RunState) -> None:
    """Derive the run's status from its nodes: whether the run is running, waiting or paused."""
    if state.status in LIVE:
        if state.running:
            state.status = "running"
        elif state.paused:
            state.status = "paused"
        else:
            state.status = "waiting" if state.waiting else "running"
    elif state.status == "pending" and (state.paused or state.waiting):
        state.status = "paused" if state.paused else "waiting"


def awaken(state: RunState) -> None:
    """Set the run to pending if no node is running, so that the next engine that claims the run continues it."""
    settle(state)
    if state.status in UNDER_WAY and not state.running:
        state.status = "pending"


def spend(state: RunState, node: NodeState, at: float) -> None:
    """Add the time that an ended attempt took to the totals of the node and of the run."""
    spent = max(0.0, at - node.started_at)
    node.seconds += spent
    node.ended_at = at
    state.active_s += spent


def keep(state: RunState, name: str, item: int | None, slot: str, value: Any) -> None:
    """Keep a result for the next attempt. The node has made progress, so its count of crashes in a row starts again at 0."""
    node = state.nodes[name]
    node.crashes = 0
    node.kept.setdefault(NODE_LEVEL if item is None else item, {})[slot] = value


def forget_begun(node: NodeState) -> None:
    """Forget which steps had begun, because a caller has decided that the visit runs again."""
    for kept in node.kept.values():
        for slot in [slot for slot in kept if slot.startswith("begun:")]:
            del kept[slot]


def end_item(state: RunState, items: Items, event: Any, seq: int) -> None:
    """Record that an attempt of a fan-out item has ended. Raises `IllegalEvent` if that attempt is not running."""
    if items.running.get(event.item) != event.attempt:
        raise IllegalEvent(
            f"run {state.run_id!r}: event {seq} ends attempt {event.attempt} of item {event.item} of node {event.node!r}, "
            "which is not running"
        )
    del items.running[event.item]


def close_waits(state: RunState, name: str, item: int | None = None) -> None:
    """Remove the open waits and questions of a node's visit, or of one of its items, because the visit or item has ended or
    starts again.
    """
    waiting: list[dict[str, Any]] = [state.waits, state.questions]
    for pending in waiting:
        for key, wait in list(pending.items()):
            if wait.node == name and wait.slot and (item is None or wait.item == item):
                del pending[key]
