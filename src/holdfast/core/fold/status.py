"""What several handlers of the fold do: a node's status, what the run's status follows from, time spent, waits that close."""

from __future__ import annotations

from typing import Any

from holdfast.core.run_state import LIVE, UNDER_WAY, Items, NodeState, NodeStatus, RunState
from holdfast.errors import IllegalEvent


def set_status(state: RunState, node: NodeState, status: NodeStatus) -> None:
    """Set the status of a node, and count the running and the waiting ones."""
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
    """Running, waiting and paused follow from the nodes."""
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
    """Something can continue: the next holder of the run finds something to do."""
    settle(state)
    if state.status in UNDER_WAY and not state.running:
        state.status = "pending"


def spend(state: RunState, node: NodeState, at: float) -> None:
    """The time of an attempt that ended counts, for the node and for the run."""
    spent = max(0.0, at - node.started_at)
    node.seconds += spent
    node.ended_at = at
    state.active_s += spent


def end_item(state: RunState, items: Items, event: Any, seq: int) -> None:
    """An attempt at an item is over."""
    if items.running.get(event.item) != event.attempt:
        raise IllegalEvent(
            f"run {state.run_id!r}: event {seq} ends item {event.item} of {event.node!r}, attempt {event.attempt}, "
            "which is not running"
        )
    del items.running[event.item]


def close_waits(state: RunState, name: str, item: int | None = None) -> None:
    """The visit, or this item of it, no longer waits: it has ended, or begins again."""
    waiting: list[dict[str, Any]] = [state.waits, state.questions]
    for pending in waiting:
        for key, wait in list(pending.items()):
            if wait.node == name and wait.slot and (item is None or wait.item == item):
                del pending[key]
