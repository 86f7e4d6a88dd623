"""Fold the events of child runs: runs that a visit starts, and for whose end it may wait.

The end of a child comes through the inbox, as a signal does, at any time and in any status of the run. It fills the slot of the
wait for it; if no visit waits yet, it is kept for the next wait. Within one execution, a slot that is filled stays filled: every
attempt gets the same end. Only when an operator retries a node that failed because its child did is that slot emptied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from msgspec import to_builtins

from holdfast.core import events
from holdfast.core.events import Reported, Stored
from holdfast.core.fold.status import keep
from holdfast.core.fold.waits import key_of, open_again, resolve
from holdfast.core.run_state import NODE_LEVEL, Child, NodeState, RunState, Wait
from holdfast.core.slots import parse
from holdfast.errors import IllegalEvent


def child_started(state: RunState, event: events.ChildStarted, stored: Stored) -> None:
    """Record a child run that a visit has started. Raises `IllegalEvent` if the same execution has started it before."""
    known = state.children.get(event.run)
    if known is not None and (known.node, known.iteration, known.execution) == (
        event.node,
        event.iteration,
        event.execution,
    ):
        raise IllegalEvent(f"run {state.run_id!r}: event {stored.seq} starts the child {event.run!r} again")
    state.called = True
    state.children[event.run] = Child(
        event.node, event.iteration, event.execution, event.slot, event.flow, event.item, event.cancels,
        in_doubt=event.adopted,
    )  # fmt: skip
    state.nodes[event.node].crashes = 0


def child_awaited(state: RunState, event: events.ChildAwaited, stored: Stored) -> None:
    """Record that a visit waits for the end of a child, or give it the end that has come before."""
    child = state.children.get(event.run)
    if child is None:
        raise IllegalEvent(
            f"run {state.run_id!r}: event {stored.seq} waits for {event.run!r}, which is not its child"
        )
    open_again(state, event.node, event.item, event.slot)
    if event.anew:
        child.end = None
    child.in_doubt = False
    if child.end is not None:
        keep(state, event.node, event.item, event.slot, [_take(child)])
        return
    wait = Wait(
        event.node, event.iteration, event.execution, event.slot, event.item, until=event.until, child=event.run,
        abandons=event.abandons,
    )  # fmt: skip
    state.waits[key_of(state, wait)] = wait


def child_ended(state: RunState, event: events.ChildEnded, stored: Stored) -> None:
    """Give the end of a child to the visit that waits for it, or keep it for the next wait. Its cost counts in any case."""
    child = state.children.get(event.run)
    if child is not None and event.seq == child.ended:
        raise IllegalEvent(
            f"run {state.run_id!r}: event {stored.seq} is the end of the child {event.run!r} at its event {event.seq}, which is "
            "recorded already"
        )
    state.children_usd += event.usd
    state.children_tokens += event.tokens
    if child is None or event.seq < child.ended:  # reports may arrive in another order
        return
    child.ended, child.is_final = event.seq, event.status != "failed"
    child.end = _as_kept(event)
    waits = [key for key, wait in state.waits.items() if wait.child == event.run]
    for key in waits:
        wait = state.waits.pop(key)
        resolve(state, wait.node, wait.item, wait.slot, [_take(child)])
    if child.is_final and not _is_open(state, child):
        del state.children[event.run]


def _as_kept(event: events.ChildEnded) -> dict[str, Any]:
    end: dict[str, Any] = {"run": event.run, "status": event.status}
    if event.values is not None:
        end["values"] = event.values
    if event.state_version is not None:
        end["state_version"] = event.state_version
    if event.failure is not None:
        end["failure"] = to_builtins(event.failure)
    return end


def _take(child: Child) -> dict[str, Any]:
    """Return the end of a child for a wait. A failure stays with the child, because the node may be retried."""
    end = child.end
    assert end is not None
    if child.is_final:
        child.end = None
    return end


def _is_open(state: RunState, child: Child) -> bool:
    """Return whether the visit, or the item, that started a child has not ended."""
    node = state.nodes.get(child.node)
    if child.node not in state.open or node is None:
        return False
    if (node.iteration, node.execution) != (child.iteration, child.execution):
        return False
    return child.item is None or node.items is None or child.item not in node.items.done


def forget_children(state: RunState, name: str, item: int | None = None) -> None:
    """Forget the children of a visit, or of an item, that has ended: those that cannot end again, and those that this run does
    not cancel.
    """
    for run, child in list(state.children.items()):
        if (
            child.node == name
            and (item is None or child.item == item)
            and (child.is_final or not child.cancels)
        ):
            del state.children[run]


def doubt_children(state: RunState, name: str) -> None:
    """Empty the slots of the children for which a visit, or an item, failed, because an operator retries it: these children may
    have been resumed since.
    """
    node = state.nodes[name]
    for level, run in _failed_for(node):
        child = state.children.get(run)
        if child is None or (child.is_final and child.end is None):
            continue  # a child that was cancelled: every look would find the same end
        _doubt(node, level, run, child)


def await_anew(state: RunState, name: str, runs: Collection[str]) -> None:
    """Empty the slots of children that failed while the attempt of a visit waited for them, and that are resumed since."""
    for run in runs:
        child = state.children.get(run)
        if child is not None:
            _doubt(state.nodes[name], NODE_LEVEL if child.item is None else child.item, run, child)


def _doubt(node: NodeState, level: int, run: str, child: Child) -> None:
    child.in_doubt = True
    kept = node.kept.get(level, {})
    for text in [text for text, value in kept.items() if _is_end_of(text, value, run)]:
        del kept[text]


def _failed_for(node: NodeState) -> Iterator[tuple[int, str]]:
    """Yield the child runs for whose failures a visit failed, each with the item that failed, or with `NODE_LEVEL`."""
    failures = {NODE_LEVEL: node.failure} if node.items is None else dict(node.items.failed)
    for level, failure in failures.items():
        for run in failure.child.split() if failure is not None else ():
            yield level, run


def find_blocking(state: RunState, names: Collection[str], *, unseen: bool) -> list[str]:
    """Return the child runs whose failures keep these nodes from ending: the children for which they failed, and those that
    failed before and for whose next ends they wait. With `unseen`, also those whose failures they have not received yet: a node
    that has received a failure and goes on has handled it.
    """
    found = {run: None for name in state.failed if name in names for _, run in _failed_for(state.nodes[name])}
    awaited = {wait.child for wait in state.waits.values()}
    for run, child in state.children.items():
        if child.node in names and child.ended:
            is_due = child.in_doubt or run in awaited
            if is_due or (unseen and has_unseen_failure(state, run)):
                found[run] = None
    return [run for run in found if run in state.children]


def has_unseen_failure(state: RunState, run: str) -> bool:
    """Return whether a child has failed, and the open visit that started it has not received that end."""
    child = state.children[run]
    if child.end is None or child.is_final or not _is_open(state, child):
        return False
    node, level = state.nodes[child.node], NODE_LEVEL if child.item is None else child.item
    parked = node.parked.get(level, ())  # an attempt that has unwound is not given what has come since
    return not any(_is_end_of(text, value, run) and text not in parked for text, value in _kept(node, level))


def has_come_while_parked(state: RunState, run: str) -> bool:
    """Return whether the failure of a child has come for an attempt that has unwound and does not know of it yet."""
    child = state.children[run]
    node, level = state.nodes[child.node], NODE_LEVEL if child.item is None else child.item
    came = any(_is_end_of(text, value, run) for text, value in _kept(node, level))
    return came and has_unseen_failure(state, run)


def _kept(node: NodeState, level: int) -> Collection[tuple[str, Any]]:
    return node.kept.get(level, {}).items()


def _is_end_of(text: str, value: Any, run: str) -> bool:
    slot = parse(text)
    return slot is not None and slot.kind == "child" and bool(value) and value[0]["run"] == run


def report_end(state: RunState, seq: int) -> None:
    """Note what a child reports to its caller with an end at event `seq`."""
    before = state.reported or Reported()
    usd, tokens = state.usd + state.children_usd, state.tokens + state.children_tokens
    state.reported = Reported(seq, usd, tokens, before.usd, before.tokens)
