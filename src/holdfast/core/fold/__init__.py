"""The fold applies an event to the state of a run: `fold(state, stored) -> state`.

Rules of this package
- Only this package changes a `RunState`, and it decides nothing: it applies what the events say.
- It calls no user code and reads no clock: times, routes and the results of reducers are in the events.
- An event that the state does not allow is refused with `IllegalEvent`, and the state is not changed. The table in `core/kinds`
  says what is allowed: the statuses that the run and the node may have, and the numbers that must match. So the late result of
  an attempt that was given up is never applied.
- It owns the state that it is given and changes it in place. A caller that needs an event's JSON must encode the event first.

There is one module per subject: `run` (the run, its state and its flow), `nodes`, `items`, `kept_steps`, `waits` (checkpoints,
waits and questions), `judged` (guards, policies, verification), `children` (the runs that a visit starts); `status` has the
functions that they share. A handler is called
after the event was found to be allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, assert_never

from holdfast.core import events
from holdfast.core.events import Event, NodeEvent, Stored
from holdfast.core.fold import children, items, judged, kept_steps, nodes, run, waits
from holdfast.core.kinds import TABLE, Kind
from holdfast.core.run_state import NodeState, RunState
from holdfast.errors import IllegalEvent

Handler: TypeAlias = Callable[[RunState, Any, Stored], None]
_Check: TypeAlias = Callable[[RunState, Any, int], None]

_RunRewound = events.RunRewound


def fold(state: RunState, stored: Stored) -> RunState:
    """Apply one event to the state, in place, and return the state. Raises `IllegalEvent` if the table in `core/kinds` does not
    allow the event.
    """
    event = stored.event
    cls = type(event)
    rule = _RULES.get(cls)
    if rule is None:
        raise IllegalEvent(f"run {state.run_id!r}: {cls.__name__} is not a known kind of event")
    handler, statuses, check = rule
    if state.status not in statuses:
        raise IllegalEvent(
            f"run {state.run_id!r} is {state.status}, so {cls.__name__} (event {stored.seq}) cannot happen"
        )
    seq = stored.seq
    if seq != state.seq + 1 and not (cls is _RunRewound and event.to == state.seq < seq):
        raise IllegalEvent(
            f"run {state.run_id!r}: event {stored.seq} ({cls.__name__}) cannot follow event {state.seq}"
        )
    if check is not None:
        check(state, event, seq)
    handler(state, event, stored)
    state.seq = seq
    state.at = stored.at
    return state


# --- checks of an event against its node -----------------------------------------------------------------


def _check_status(state: RunState, event: NodeEvent, seq: int) -> None:
    """Check that the node of an event has a status that allows the event."""
    node = state.nodes.get(event.node)
    if (node.status if node is not None else "") not in _NODE[type(event)]:
        raise _out_of_place(state, event, seq)


def _check_visit(state: RunState, event: NodeEvent, seq: int) -> None:
    """Check that an event of a fan-out item belongs to the visit that has listed the items."""
    node = state.nodes.get(event.node)
    if node is None or node.status not in _NODE[type(event)]:
        raise _out_of_place(state, event, seq)
    if node.items is None or event.iteration != node.iteration or event.execution != node.execution:
        raise IllegalEvent(
            f"run {state.run_id!r}: node {event.node!r} has listed no items in "
            f"iteration {event.iteration}, execution {event.execution}"
        )


def _check_attempt(state: RunState, event: NodeEvent, seq: int) -> None:
    """Check that an event that ends an attempt belongs to the open attempt of its node."""
    node = state.nodes.get(event.node)
    if node is None or node.status not in _NODE[type(event)]:
        raise _out_of_place(state, event, seq)
    if (
        event.attempt != node.attempt
        or event.execution != node.execution
        or event.iteration != node.iteration
    ):
        raise _late(state, event, node, node.attempt, seq)


def _check_open_attempt(state: RunState, event: NodeEvent, seq: int) -> None:
    """Check that an event inside an attempt belongs to the running attempt of its node, or of its item."""
    node = state.nodes.get(event.node)
    if node is None or node.status != "running":
        raise _out_of_place(state, event, seq)
    item = getattr(event, "item", None)
    running = node.items.running if node.items is not None else {}
    attempt = node.attempt if item is None else running.get(item, 0)
    if (event.iteration, event.execution, event.attempt) != (node.iteration, node.execution, attempt):
        raise _late(state, event, node, attempt, seq)


def _check_asked(state: RunState, event: events.QuestionAsked, seq: int) -> None:
    """Check a question: a node asks its own questions within an attempt; questions about a node are asked between attempts."""
    (_check_open_attempt if event.about == "ask" else _check_status)(state, event, seq)


def _out_of_place(state: RunState, event: NodeEvent, seq: int) -> IllegalEvent:
    status = state.nodes[event.node].status if event.node in state.nodes else "not reached"
    return IllegalEvent(
        f"run {state.run_id!r}: node {event.node!r} is {status}, so {type(event).__name__} (event {seq}) cannot happen"
    )


def _late(state: RunState, event: NodeEvent, node: NodeState, attempt: int, seq: int) -> IllegalEvent:
    return IllegalEvent(
        f"run {state.run_id!r}: {type(event).__name__} (event {seq}) belongs to attempt "
        f"{event.iteration}.{event.execution}.{event.attempt} (iteration.execution.attempt) of node {event.node!r}, "
        f"but attempt {node.iteration}.{node.execution}.{attempt} is open"
    )


# --- handlers and checks of each kind, from the table ----------------------------------------------------


def _check_of(kind: Kind) -> _Check | None:
    """Return the function that checks events of this kind against their node, or None if there is nothing to check."""
    match kind.counts:
        case "none":
            return _check_status if kind.node is not None else None
        case "visit":
            return _check_visit
        case "attempt":
            return _check_attempt
        case "open attempt":
            return _check_open_attempt
        case "asked":
            return _check_asked
        case _:
            assert_never(kind.counts)


def _handler_of(kind: Kind) -> Handler:
    module, _, name = kind.handler.partition(".")
    found: Handler | None = getattr(_MODULES[module], name, None)
    if found is None:
        raise AssertionError(
            f"{kind.event.__name__}: core/fold/{module}.py has no handler {name!r}, which core/kinds.py names"
        )
    return found


_MODULES = {
    "run": run,
    "nodes": nodes,
    "items": items,
    "judged": judged,
    "kept_steps": kept_steps,
    "waits": waits,
    "children": children,
}
_NODE: dict[type[Event], frozenset[str]] = {kind.event: kind.node for kind in TABLE if kind.node is not None}
_RULES = {kind.event: (_handler_of(kind), kind.run, _check_of(kind)) for kind in TABLE}
"""For each kind of event, its handler, the statuses that the run may have, and its check. One lookup per event is enough."""
