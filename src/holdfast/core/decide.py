"""What happens next. `decide(flow, state, now) -> commands`: a pure function of the flow's definition, the
state and the time.

It is asked after every append until it has nothing more to say. The order of its thoughts:

1. Open visits that want something: one that was cut is run again, asked about or skipped, as its node says;
   one whose retry is due is tried again; a fan-out starts, completes or fails its items; a completed node
   whose router had failed is routed.
2. Nodes that are due begin a new visit, as long as there is room and the loop limit is not reached.
3. With nothing running and nothing to start: the layer is complete, the run has failed, or it is completed.

Once a node has failed for good, or while the run is paused, nothing new starts; what runs, ends. (The items
of a fan-out that runs belong to it and go on.) A run never ends with arrivals that nobody takes up: that
would be a defect here, and is raised as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from holdfast.core.commands import (
    AnyCommand,
    AskAboutNode,
    CompleteItems,
    CompleteLayer,
    CompleteRun,
    FailItems,
    FailRun,
    RouteNode,
    ScheduleNode,
    SkipNode,
    StartItem,
    StartNode,
    WakeAt,
)
from holdfast.core.definition import Definition
from holdfast.core.events import Failure
from holdfast.core.readiness import Readiness
from holdfast.core.run_state import NodeState, RunState
from holdfast.core.topology import Topology
from holdfast.errors import IllegalEvent

_MOVING = frozenset({"pending", "running", "waiting", "paused"})


class Shape(Protocol):
    """What `decide` needs of a flow: data, no functions."""

    @property
    def definition(self) -> Definition: ...

    @property
    def topology(self) -> Topology: ...


def decide(flow: Shape, state: RunState, now: float, ready: Readiness | None = None) -> list[AnyCommand]:
    """The next commands, or none where the run waits for something to end, for somebody, or is over."""
    if state.status not in _MOVING:
        return []
    ready = ready or Readiness(flow.topology, state)
    commands: list[AnyCommand] = []
    wakes: list[float] = []
    room = flow.definition.max_parallel - state.running
    for name in tuple(ready.open):
        for command in _open_visit(flow.definition, state, name, now, wakes):
            if isinstance(command, StartNode):
                room -= 1
                if room < 0:
                    continue  # it is due and stays so; what ends makes room
            commands.append(command)
    starts, limit = _begin(flow.definition, state, ready, room)
    if state.running or commands or starts:
        return commands + starts + _wake(wakes)
    return [limit] if limit is not None else _end(state, ready, wakes)


def _open_visit(
    definition: Definition, state: RunState, name: str, now: float, wakes: list[float]
) -> Iterator[AnyCommand]:
    """What an open visit that is not simply running wants."""
    node = state.nodes[name]
    held_back = bool(state.failed) or state.paused
    if not node.routed:
        if name not in state.failed and not state.paused:
            yield RouteNode(name)
    elif node.status == "running":
        yield from _items(definition.nodes[name].limit, node, name, now, wakes)
    elif node.status == "interrupted":
        choice = definition.nodes[name].on_interrupt
        if choice == "ask":
            yield AskAboutNode(name)
        elif choice == "skip" and not held_back:
            yield SkipNode(name)
        elif not held_back:
            yield _again(state, node, name)
    elif node.status == "waiting" and node.retry_at is not None:
        if now < node.retry_at:
            wakes.append(node.retry_at)
        elif not held_back:
            yield _again(state, node, name)
    elif node.status == "pending" and node.input is not None and not held_back:
        yield _again(state, node, name)


def _again(state: RunState, node: NodeState, name: str) -> StartNode:
    """The next attempt of the same visit; the first of a new execution where the visit is done over."""
    execution = node.execution if node.attempt else state.next_execution(name, node.iteration)
    return StartNode(name, node.iteration, execution, node.attempt + 1, 0)


def _items(limit: int, node: NodeState, name: str, now: float, wakes: list[float]) -> Iterator[AnyCommand]:
    """Start items as long as there is room; retries and cut ones first. When none is left the node ends."""
    items = node.items
    if items is None:
        return
    room = limit - len(items.running)
    for item, at in items.again.items():
        if at > now:
            wakes.append(at)
        elif room > 0:
            room -= 1
            yield StartItem(name, item, items.attempts.get(item, 1) + 1)
    count = len(items.values)
    for item in range(items.begun, min(count, items.begun + max(0, room))):
        yield StartItem(name, item, 1)
    if items.running or items.again or items.begun < count:
        return
    if items.failed:
        item = min(items.failed)
        yield FailItems(name, item, items.failed[item])
    else:
        yield CompleteItems(name)


def _begin(
    definition: Definition, state: RunState, ready: Readiness, room: int
) -> tuple[list[AnyCommand], FailRun | None]:
    """Begin a visit of every node that is due, or say why not now. A node at the loop limit stops all that is new."""
    if state.failed:
        return [], None
    starts: dict[str, AnyCommand] = {}
    for name in ready.due:
        if room <= 0 or state.paused:
            break
        room -= 1
        node = state.nodes.get(name)
        iteration = (node.iteration if node is not None else 0) + 1
        if iteration > definition.max_iterations:
            return [], FailRun(_limit(name, definition.max_iterations), name)
        took = state.arrivals[name] if name in ready.joins else 1
        starts[name] = StartNode(name, iteration, state.next_execution(name, iteration), 1, took)
    why = "paused" if state.paused else "no free slot"
    for name in ready.unscheduled:
        if name not in starts:
            node = state.nodes.get(name)
            iteration = (node.iteration if node is not None else 0) + 1
            starts[name] = ScheduleNode(name, iteration, state.next_execution(name, iteration), why)
    return list(starts.values()), None


def _limit(name: str, most: int) -> Failure:
    return Failure(
        "partial",
        "IterationLimit",
        f"node {name!r} was reached {most} times, which is its limit. If that is right, raise it with "
        "compile(max_iterations=…) and resume.",
    )


def _end(state: RunState, ready: Readiness, wakes: list[float]) -> list[AnyCommand]:
    """Nothing runs and nothing can start."""
    if state.failed:
        name = next(iter(state.failed))
        failure = state.nodes[name].failure
        assert failure is not None
        return [FailRun(failure, name)]
    if state.paused and (state.open or state.arrivals or state.held):
        return []
    if state.held and not state.open:
        return [CompleteLayer(state.layer + 1, tuple(sorted(state.held, key=ready.index.__getitem__)))]
    if wakes:
        return _wake(wakes)
    if state.open:
        return []  # waits for an answer
    if state.arrivals:
        raise IllegalEvent(
            f"run {state.run_id!r} is stuck: {list(state.arrivals)} were reached and cannot start. "
            "This is a defect in Holdfast; please report it with the graph."
        )
    return [CompleteRun()]


def _wake(wakes: list[float]) -> list[AnyCommand]:
    return [WakeAt(min(wakes))] if wakes else []
