"""The states of a run's nodes after an event, for a picture of its flow.

The geometry of the picture is the same for all runs of a flow (`core/layout`). Here is what differs: the status of each node that
the run has reached, the counts of its items, and the edges that the run has taken.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Literal

import msgspec

from holdfast.core import events
from holdfast.core.conditions import conditions_of
from holdfast.core.definition import START, Definition, Edge
from holdfast.core.run_state import (
    ITEM_STATUSES,
    VISIT_DONE,
    Items,
    ItemStatus,
    NodeState,
    RunState,
    Status,
    stretches,
)
from holdfast.reading import history, text
from holdfast.storage.contract import RunRow, Store

MARKS_MAX = 200
_ERROR_WIDTH = 300
_ROUTED = ("RunCreated", "NodeCompleted", "NodeSkipped", "NodeRouted", "LayerCompleted")


class ItemMarks(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a fan-out: how many there are in each status, and marks to draw."""

    all: int
    completed: int
    failed: int
    running: int
    waiting: int
    """Items that wait for a retry, a time, a signal or an answer."""
    marks: list[ItemStatus]
    """At most 200 marks, in item order. Each stands for an equal share of the items and has the worst status among them."""


class NodeMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a node that the run has reached."""

    status: str
    """As in a run: `pending`, `running`, `waiting`, `interrupted`, `completed`, `failed` or `skipped`."""
    crashed: bool = False
    """True if an attempt counts as running, but no live process executes the run now."""
    iteration: int
    execution: int
    attempt: int
    """0 if the visit has not begun, because it asks first or may not start yet."""
    tries: int = 0
    """How many attempts were started, over all visits."""
    seconds: float = 0.0
    """The time of all attempts that ended."""
    started_at: float | None = None
    ended_at: float | None = None
    waits_for: Literal["question", "signal", "timer", "child", "retry"] | None = None
    until: float | None = None
    """When the wait ends at the latest."""
    error: str | None = None
    misrouted: bool = False
    """True if the node is `failed` although it completed: its router raised an exception, so that no node follows."""
    handled_by: list[str] | None = None
    """The nodes to which error edges led, if the node is `skipped` because it failed and the run continues. Empty if it continues
    without the result (`safe_to_fail`); None if the node did not fail."""
    items: ItemMarks | None = None


class PictureStates(msgspec.Struct, frozen=True, kw_only=True):
    """The states of the nodes of a run after the event `seq`. A node that is not in `nodes` was not reached."""

    run_id: str
    seq: int
    end: int
    """The last event of the log."""
    at: float
    status: Status
    flow: str
    fingerprint: str
    """Which geometry to use: `GET /api/v1/pictures/{fingerprint}`."""
    nodes: dict[str, NodeMark]
    taken: list[tuple[str, str]]
    """The edges that the run has taken, as source and target."""
    chosen: dict[str, list[str]]
    """Source of a branch, or in a plan of an edge that has a condition -> the targets that its latest visit chose."""
    verdicts: list[tuple[str, str, bool]] = []
    """The edges of a plan whose guards were evaluated, as source and target, and what the guards said."""
    not_taken: list[tuple[str, str]] = []
    """The edges of a plan that were decided against, as source and target: nothing can take them any more."""


def picture_states(store: Store, row: RunRow, definition: Definition, state: RunState) -> PictureStates:
    """Return the states of the nodes of a run. `state` is the state of the run at the wanted event."""
    asleep = _asleep(row, state)
    chosen, taken = _planned(definition, state) if state.plan else _choices(store, row, definition, state)
    return PictureStates(
        run_id=row.run_id,
        seq=state.seq,
        end=row.seq,
        at=state.at,
        status="waiting" if asleep and state.running == len(asleep) else state.status,
        flow=state.flow,
        fingerprint=state.fingerprint,
        nodes=node_marks(row, state, _sizes(store, row, definition, state), catching_edges(definition)),
        taken=taken if state.plan else list(dict.fromkeys([*_plain_edges(definition, state), *taken])),
        chosen=chosen,
        verdicts=list(_verdicts(store, row, state)) if state.plan else [],
        not_taken=list(_not_taken(definition, state)) if state.plan else [],
    )


def catching_edges(definition: Definition) -> frozenset[Edge]:
    """Return the edges of a plan that take failures."""
    return frozenset(edge for edge, condition in conditions_of(definition).items() if condition.errors)


def node_marks(
    row: RunRow, state: RunState, sizes: Mapping[str, int] | None = None, catching: Container[Edge] = ()
) -> dict[str, NodeMark]:
    """Return the state of each node that the run has reached, after the event at which `state` is. `sizes` says how many items
    the fan-outs had that have completed; without it, the items of these are left out. `catching` are the edges that take
    failures.
    """
    waits, asleep = _awaited(state), _asleep(row, state)
    dead = state.seq == row.seq and not row.held
    return {
        name: _mark(
            state, name, node, waits, asleep=name in asleep, dead=dead, size=(sizes or {}).get(name), catching=catching
        )
        for name, node in state.nodes.items()
    }  # fmt: skip


def _asleep(row: RunRow, state: RunState) -> frozenset[str]:
    """Return the nodes that wait, and that their process keeps in memory; none if that process is dead now."""
    is_dead = state.seq == row.seq and not row.held
    return frozenset() if is_dead else frozenset(state.waiting_in_memory())


def _awaited(
    state: RunState,
) -> dict[str, tuple[Literal["question", "signal", "timer", "child"], float | None]]:
    """Return, for each node that waits, what for and until when: a question first, because a person has to answer it."""
    found: dict[str, tuple[Literal["question", "signal", "timer", "child"], float | None]] = {}
    for question in state.questions.values():
        found.setdefault(question.node, ("question", question.until))
    for wait in state.waits.values():
        found.setdefault(wait.node, (wait.kind, wait.until))
    return found


def _mark(
    state: RunState,
    name: str,
    node: NodeState,
    waits: dict[str, tuple[Literal["question", "signal", "timer", "child"], float | None]],
    *,
    asleep: bool,
    dead: bool,
    size: int | None,
    catching: Container[Edge],
) -> NodeMark:
    """Return the state of a node. `asleep`: it waits, and its process keeps it in memory; `dead`: no process executes the run;
    `size`: how many items it had, if it is a fan-out that completed.
    """
    iteration, execution, attempt = state.place(name)
    waits_for: Literal["question", "signal", "timer", "child", "retry"] | None
    waits_for, until = waits.get(name, (None, None))
    if waits_for is None and node.retry_at is not None and name in state.open:
        waits_for, until = "retry", node.retry_at
    failure, misrouted = node.failure, state.is_misrouted(name)
    return NodeMark(
        status="waiting" if asleep else "failed" if misrouted else node.status,
        crashed=dead and node.status == "running",
        iteration=iteration,
        execution=execution,
        attempt=attempt,
        tries=node.tries,
        seconds=node.seconds,
        started_at=node.started_at if attempt else None,
        ended_at=(node.ended_at or None) if attempt and node.status != "running" else None,
        waits_for=waits_for,
        until=until,
        error=text.one_line(failure.describe(), _ERROR_WIDTH) if failure else None,
        misrouted=misrouted,
        handled_by=_handled_by(state, name, node, catching),
        items=_item_marks(node, node.items, is_cancelled=state.status == "cancelled")
        if node.items is not None
        else _all_completed(size),
    )


def _handled_by(state: RunState, name: str, node: NodeState, catching: Container[Edge]) -> list[str] | None:
    if node.status != "skipped" or not any(
        (one.node, one.iteration) == (name, node.iteration) for one in state.warnings
    ):
        return None
    return [target for target in node.routes or () if Edge(name, target) in catching]


def _sizes(store: Store, row: RunRow, definition: Definition, state: RunState) -> dict[str, int]:
    """Return how many items each fan-out had that has completed: its state keeps the items only until then. (A fan-out that
    completed before the log of a fork begins is left out.)
    """
    done = {
        name
        for name, node in state.nodes.items()
        if node.status == "completed" and (options := definition.nodes.get(name)) and options.each
    }
    if not done:
        return {}
    parts = stretches(row.rewinds, state.seq)
    latest = {
        one.node: one
        for one in store.events(row.run_id, 0, state.seq, kinds=("ItemsListed",))
        if one.node in done and any(first <= one.seq <= last for first, last in parts)
    }
    listed = (stored.event for stored in history.opened(store, row.run_id, latest.values()))
    return {event.node: len(event.items) for event in listed if isinstance(event, events.ItemsListed)}


def _all_completed(size: int | None) -> ItemMarks | None:
    if size is None:
        return None
    marks = _shares(["completed"] * size)
    return ItemMarks(all=size, completed=size, failed=0, running=0, waiting=0, marks=list(marks))


def _item_marks(node: NodeState, items: Items, *, is_cancelled: bool) -> ItemMarks:
    number = len(items.values)
    statuses: list[ItemStatus] = ["pending"] * number
    for waiting in (*items.again, *(item for item in node.parked if item >= 0)):
        statuses[waiting] = "cancelled" if is_cancelled else "waiting"
    running: ItemStatus = "cancelled" if is_cancelled else "running"
    for group, status in ((items.done, "completed"), (items.running, running), (items.failed, "failed")):
        for item in group:
            statuses[item] = status  # type: ignore[call-overload]
    return ItemMarks(
        all=number,
        completed=len(items.done),
        failed=len(items.failed),
        running=0 if is_cancelled else len(items.running),
        waiting=statuses.count("waiting"),
        marks=list(_shares(statuses)),
    )


def _shares(statuses: list[ItemStatus]) -> Iterator[ItemStatus]:
    share = -(-len(statuses) // MARKS_MAX) or 1
    for first in range(0, len(statuses), share):
        yield max(statuses[first : first + share], key=ITEM_STATUSES.index)


# --- edges ---------------------------------------------------------------------------------------------


def _plain_edges(definition: Definition, state: RunState) -> Iterator[tuple[str, str]]:
    """Yield the edges that are not part of a branch and whose source has completed."""
    for edge in definition.edges:
        source = state.nodes.get(edge.source)
        if edge.source == START or (source is not None and source.completed_seq):
            yield edge.source, edge.target


def _not_taken(definition: Definition, state: RunState) -> Iterator[tuple[str, str]]:
    """Yield the edges of a plan whose source has ended, and that do not lead on."""
    for edge in definition.edges:
        source = state.nodes.get(edge.source)
        routes = source.routes if source is not None and source.status in VISIT_DONE else None
        if routes is not None and edge.target not in routes:
            yield edge.source, edge.target


def _choices(
    store: Store, row: RunRow, definition: Definition, state: RunState
) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """Return what the latest visit of each source of a branch chose, and all edges of branches that were taken."""
    chosen: dict[str, list[str]] = {}
    taken: list[tuple[str, str]] = []
    if not definition.branches:
        return chosen, taken
    parts = stretches(row.rewinds, state.seq)
    rows = [
        one
        for one in store.events(row.run_id, 0, state.seq, kinds=_ROUTED)
        if (one.node is None or one.node in definition.branches)
        and any(first <= one.seq <= last for first, last in parts)
    ]
    for stored in history.opened(store, row.run_id, rows):
        for source, routes in _routes(stored.event):
            if routes is not None and source in definition.branches:
                chosen[source] = [target for target in routes if target in definition.branches[source]]
                taken += [(source, target) for target in chosen[source]]
    for source, targets in definition.branches.items():  # completed before the log of a fork begins
        done = state.nodes.get(source)
        if source not in chosen and (source == START or (done is not None and done.completed_seq)):
            taken += [(source, target) for target in targets if target in state.nodes]
    return chosen, taken


def _planned(definition: Definition, state: RunState) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """Return the edges of a plan that were taken, and those that each node with conditions chose. The state has them."""
    deciding = {edge.source for edge in conditions_of(definition)}
    chosen: dict[str, list[str]] = {}
    taken: list[tuple[str, str]] = []
    for edge in definition.edges:
        source = state.nodes.get(edge.source)
        routes = source.routes if source is not None else None
        if edge.source == START or (routes is not None and edge.target in routes):
            taken.append((edge.source, edge.target))
            if edge.source in deciding:
                chosen.setdefault(edge.source, []).append(edge.target)
    return chosen, taken


def _verdicts(store: Store, row: RunRow, state: RunState) -> Iterator[tuple[str, str, bool]]:
    """Yield the verdicts of guards, without those of events that the run was rewound over."""
    parts = stretches(row.rewinds, state.seq)
    rows = [
        one
        for one in store.events(row.run_id, 0, state.seq, kinds=("GuardEvaluated",))
        if any(first <= one.seq <= last for first, last in parts)
    ]
    for stored in history.opened(store, row.run_id, rows):
        for target, verdict in stored.event.verdicts.items():
            yield stored.event.node, target, verdict


def _routes(event: object) -> Iterator[tuple[str, list[str] | None]]:
    match event:
        case events.RunCreated():
            yield START, event.starts
        case events.LayerCompleted():
            yield from event.routes.items()
        case events.NodeCompleted() | events.NodeSkipped() | events.NodeRouted():
            yield event.node, event.routes
        case _:
            return
