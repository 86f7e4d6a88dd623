"""Fold the events of the items of a fan-out."""

from __future__ import annotations

from holdfast.core import events
from holdfast.core.events import Stored
from holdfast.core.fold.children import forget_children
from holdfast.core.fold.kept_steps import forget_tries
from holdfast.core.fold.status import close_waits, end_item, set_status
from holdfast.core.fold.waits import rest
from holdfast.core.run_state import Items, RunState


def items_listed(state: RunState, event: events.ItemsListed, stored: Stored) -> None:
    """Record the list of items of a fan-out, once per execution. In a fork, items may have the results that they had in the
    parent.
    """
    items = state.nodes[event.node].items = Items(values=event.items, labels=event.labels)
    visit = state.begun_visit(event.node, event.iteration)
    if visit is not None:
        items.done = {item: done for item, done in visit.reused().items() if item < len(event.items)}
        _pass_done(items)


def item_started(state: RunState, event: events.ItemStarted, stored: Stored) -> None:
    """Start an attempt of one item, or continue it after a wait."""
    node = state.nodes[event.node]
    items = node.items
    assert items is not None  # events of this kind are allowed only if items are listed
    if node.status == "waiting":
        node.started_at = stored.at
        set_status(state, node, "running")
        state.status = "running"
    node.parked.pop(event.item, None)
    items.again.pop(event.item, None)
    items.running[event.item] = event.attempt
    items.begun = max(items.begun, event.item + 1)
    if items.begun in items.done:
        _pass_done(items)
    if event.attempt > 1:
        items.attempts[event.item] = event.attempt


def item_completed(state: RunState, event: events.ItemCompleted, stored: Stored) -> None:
    """Keep the result of one item."""
    node = state.nodes[event.node]
    items = node.items
    assert items is not None  # as above
    end_item(state, items, event, stored.seq)
    items.done[event.item] = event.changes
    node.crashes = 0
    node.kept.pop(event.item, None)
    node.filled.pop(event.item, None)
    node.withdrawn.pop(event.item, None)
    close_waits(state, event.node, event.item)
    if state.children:
        forget_children(state, event.node, event.item)
    rest(state, event.node, stored.at)


def item_failed(state: RunState, event: events.ItemFailed, stored: Stored) -> None:
    """Record that an attempt of one item failed: the item has failed for good, or waits for its retry."""
    items = state.nodes[event.node].items
    assert items is not None  # as above
    end_item(state, items, event, stored.seq)
    items.failures[event.item] = items.failures.get(event.item, 0) + 1
    if event.retry_at is None:
        items.failed[event.item] = event.failure
    else:
        items.again[event.item] = event.retry_at
    close_waits(state, event.node, event.item)
    forget_tries(state.nodes[event.node], event.item)
    rest(state, event.node, stored.at)


def _pass_done(items: Items) -> None:
    """Move `begun` past the items that are done although they were not started here."""
    while items.begun in items.done:
        items.begun += 1


def cut_items(items: Items) -> None:
    """Mark the items that were running when their node was interrupted: they are tried again as soon as the limit allows."""
    for item, attempt in items.running.items():
        items.again[item] = 0.0
        items.attempts[item] = attempt
    items.running.clear()
