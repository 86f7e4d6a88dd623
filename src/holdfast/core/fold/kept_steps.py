"""Fold the events of the steps inside a visit: results and exceptions that are kept, failed tries, and steps that have begun.

The outcome of a step is kept in one of two slots (`core/slots`): its result, or the exception that is its outcome. Between two
tries of a step, its visit waits for a timer, whose slot has the number of the next try: so the tries are counted in the log, and
a crash does not begin to count again. The count begins again when the node (or item) fails, and in a new execution.

A step with `idempotent=False` has begun (`begun:…`) until it has an outcome. A visit that is interrupted meanwhile does not run
again without a decision; a decision to run it again clears the mark.
"""

from __future__ import annotations

from holdfast.core import events
from holdfast.core.events import Stored
from holdfast.core.fold.status import keep
from holdfast.core.run_state import NODE_LEVEL, NodeState, RunState, Wait
from holdfast.core.slots import TRY, begun_text, raised_text, step_text, try_text


def step_completed(state: RunState, event: events.StepCompleted, stored: Stored) -> None:
    """Keep the result of a step."""
    keep(state, event.node, event.item, step_text(event.step), event.value)
    if state.waits:
        _end_wait(state, event)


def step_started(state: RunState, event: events.StepStarted, stored: Stored) -> None:
    """Note that a step is about to be called."""
    kept = state.nodes[event.node].kept.setdefault(NODE_LEVEL if event.item is None else event.item, {})
    schema = event.result_schema
    kept[begun_text(event.step)] = {"attempt": event.attempt, "result": schema} if schema else event.attempt
    _end_wait(state, event)


def step_failed(state: RunState, event: events.StepFailed, stored: Stored) -> None:
    """Keep the exception that is the outcome of a step; or count a failed try, and wait until the next one."""
    node, level = state.nodes[event.node], NODE_LEVEL if event.item is None else event.item
    _end_wait(state, event)
    if event.retry_at is None:
        failure = event.failure
        value = {"type": failure.type, "message": failure.message, "arguments": event.arguments}
        keep(state, event.node, event.item, raised_text(event.step), value)
        return
    node.kept.setdefault(level, {}).pop(begun_text(event.step), None)
    key, slot = _next_try(state, event)
    if event.retry_at <= stored.at:
        node.kept[level][slot] = [None]
        return
    wait = Wait(event.node, event.iteration, event.execution, slot, event.item, until=event.retry_at)
    state.waits[key] = wait


def _next_try(
    state: RunState, event: events.StepStarted | events.StepCompleted | events.StepFailed
) -> tuple[str, str]:
    """Return the key and the slot of the wait before the next try of a step."""
    kept = state.nodes[event.node].kept.get(NODE_LEVEL if event.item is None else event.item, {})
    number = 2
    while (slot := try_text(event.step, number)) in kept:
        number += 1
    return state.wait_key(event.node, event.iteration, event.execution, event.item, slot), slot


def _end_wait(state: RunState, event: events.StepStarted | events.StepCompleted | events.StepFailed) -> None:
    """End the wait before a try that was made: the process that executes the run may call the step a moment before it records
    that the time has come.
    """
    key, slot = _next_try(state, event)
    if state.waits.pop(key, None) is not None:
        level = NODE_LEVEL if event.item is None else event.item
        state.nodes[event.node].kept.setdefault(level, {})[slot] = [None]


def forget_tries(node: NodeState, level: int) -> None:
    """Begin to count the tries of all steps again, because the node or item has failed."""
    kept = node.kept.get(level)
    if kept:
        for slot in [slot for slot in kept if slot.startswith(TRY)]:
            del kept[slot]


def make_tries_due(state: RunState, name: str) -> None:
    """End the waits before the next tries of a node's steps, because a caller asked to retry the node now. The tries count."""
    node = state.nodes[name]
    for key, wait in list(state.waits.items()):
        if wait.node == name and wait.slot.startswith(TRY):
            del state.waits[key]
            level = NODE_LEVEL if wait.item is None else wait.item
            node.kept.setdefault(level, {})[wait.slot] = [None]
