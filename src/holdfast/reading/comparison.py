"""Compares two runs: where their shared history ends, which nodes did something else since then, and how their states differ.

A fork keeps the numbering of its parent: its own log begins with the event after the one from which it was forked. So the events
of either run that are not shared are those after the last shared event.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.events import VALUE_PARTS
from holdfast.core.run_state import NodeState, RunState
from holdfast.errors import RunNotFound
from holdfast.reading import history
from holdfast.reading.state_changes import Change, changes
from holdfast.reading.views import Cost, EventView, RunSummary, event_view, run_summary
from holdfast.storage.contract import RunRow, Store
from holdfast.storage.rows import open_row

_ANCESTORS_MAX = 100
_RESULTS = ("NodeCompleted", "NodeSkipped", "ItemCompleted")


class EventPlace(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a run."""

    run_id: str
    seq: int


class NodeSide(msgspec.Struct, frozen=True, kw_only=True):
    """A node in one of the runs that are compared."""

    status: str
    iteration: int
    tries: int
    """How many attempts were started."""
    seconds: float
    cost: Cost


class ComparedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node in both runs."""

    node: str
    a: NodeSide | None
    """None if run `a` has not reached the node."""
    b: NodeSide | None
    shared: bool
    """True if its latest visit is part of the shared history."""
    differs: list[str]
    """The fields of the state to which the node's latest results since then differ."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How two runs differ."""

    a: RunSummary
    b: RunSummary
    shared: EventPlace | None
    """The last event that both runs have in common; None if neither was forked from the other or from the same run."""
    forked: EventView | None
    """How run `b` was forked (`RunForked`: from where, by whom and why); None if it was not, or if that event was compacted."""
    edits: list[EventView]
    """The edits of the state in run `b` since then."""
    nodes: list[ComparedNode]
    """All nodes that either run has reached, in the order in which run `a`, then run `b`, reached them."""
    changes: list[Change]
    """What is different in the state of run `b`."""
    equal: int
    """How many fields of the state are equal."""


def compare_runs(store: Store, a: RunRow, b: RunRow, reducers: dict[str, str]) -> Comparison:
    """Compare two runs as they are now. `reducers` says how updates of each field of run `b` are merged."""
    shared = _shared(_ancestry(store, a), _ancestry(store, b))
    since = shared.seq if shared is not None else 0
    state_a, state_b = (history.load(store, row.run_id, row=row) for row in (a, b))
    forked = store.events(b.run_id, kinds=("RunForked",), limit=1) if b.parent is not None else []
    edited = store.events(b.run_id, since, kinds=("StateEdited",))
    found = list(changes(state_a.values, state_b.values, reducers))
    fields = state_a.values.keys() | state_b.values.keys()
    return Comparison(
        a=run_summary(a),
        b=run_summary(b),
        shared=shared,
        forked=next((event_view(one) for one in history.opened(store, b.run_id, forked)), None),
        edits=[event_view(one) for one in history.opened(store, b.run_id, edited)],
        nodes=_nodes(state_a, state_b, _results(store, a, since), _results(store, b, since), shared),
        changes=found,
        equal=len(fields) - len({change.path[0] for change in found}),
    )


def _ancestry(store: Store, row: RunRow) -> dict[str, int]:
    """Return the run and the runs that it was forked from, each with the last event that belongs to its history."""
    found = {row.run_id: row.seq}
    while row.parent is not None and len(found) < _ANCESTORS_MAX:
        first = store.events(row.run_id, kinds=("RunForked",), limit=1)
        if not first:  # compacted
            break
        event = open_row(first[0], store.blobs).event
        found[event.parent] = event.to
        try:
            row = store.run(event.parent)
        except RunNotFound:
            break
    return found


def _shared(one: dict[str, int], other: dict[str, int]) -> EventPlace | None:
    run_id = next((name for name in one if name in other), None)
    return None if run_id is None else EventPlace(run_id=run_id, seq=min(one[run_id], other[run_id]))


def _results(store: Store, row: RunRow, since: int) -> dict[str, dict[str, Any]]:
    """Return, for each node, what its latest visit since an event did to each field of the state."""
    found: dict[str, dict[str, Any]] = {}
    places: dict[str, tuple[int, int]] = {}
    for stored in history.opened(store, row.run_id, store.events(row.run_id, since, kinds=_RESULTS)):
        event = stored.event
        place = (event.iteration, event.execution)
        if places.get(event.node) != place:
            places[event.node], found[event.node] = place, {}
        item = getattr(event, "item", None)
        for operation in VALUE_PARTS:
            for field, value in getattr(event.changes, operation).items():
                found[event.node].setdefault(field, {})[operation, item] = value
        for field in event.changes.unset:
            found[event.node].setdefault(field, {})["unset", item] = True
    return found


def _nodes(
    a: RunState,
    b: RunState,
    did_a: dict[str, dict[str, Any]],
    did_b: dict[str, dict[str, Any]],
    shared: EventPlace | None,
) -> list[ComparedNode]:
    found = []
    for name in dict.fromkeys([*a.nodes, *b.nodes]):
        one, other = did_a.get(name, {}), did_b.get(name, {})
        fields = dict.fromkeys([*one, *other])
        found.append(
            ComparedNode(
                node=name,
                a=_side(a.nodes.get(name)),
                b=_side(b.nodes.get(name)),
                shared=_is_shared(a.nodes.get(name), b.nodes.get(name), shared),
                differs=[field for field in fields if one.get(field) != other.get(field)],
            )
        )
    return found


def _side(node: NodeState | None) -> NodeSide | None:
    if node is None:
        return None
    return NodeSide(
        status=node.status,
        iteration=node.iteration,
        tries=node.tries,
        seconds=node.seconds,
        cost=Cost(node.usd, node.tokens),
    )


def _is_shared(a: NodeState | None, b: NodeState | None, shared: EventPlace | None) -> bool:
    return (
        a is not None
        and b is not None
        and shared is not None
        and 0 < a.completed_seq == b.completed_seq <= shared.seq
        and a.status == b.status
    )
