"""Detect parallel writers: two nodes that set the same plain field (one without a reducer), although the graph does not say which
of them comes last.

It is a conflict if neither node comes before the other in the graph (loops aside), and both have set the field since the nodes
that come before both last completed. This depends on the graph, not on timing: the result is the same whichever of the two nodes
ended first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from holdfast.core.events import NodeCompleted
from holdfast.core.kinds import WRITES
from holdfast.core.run_state import RunState
from holdfast.core.topology import Topology


class Writers:
    """Keeps, for every plain field, a bit mask of the nodes that have set it and that may run in parallel with other nodes. The
    masks are derived from the state and updated with every event.
    """

    __slots__ = ("_masks", "_topology")

    def __init__(self, topology: Topology, state: RunState) -> None:
        self._topology = topology
        self.rebuild(state)

    def rebuild(self, state: RunState) -> None:
        """Compute all masks from the state of the run."""
        self._masks: dict[str, int] = {}
        if len(self._topology.alone) == len(self._topology.names):
            return
        for field, by in state.writers.items():
            for name in by:
                self._add(name, (field,))

    def observe(self, state: RunState, event: Any) -> None:
        """Update the masks after an event was folded into the state."""
        match WRITES[type(event)]:
            case "fields":
                if event.node not in self._topology.alone and state.schedule == "eager":
                    self._follow(state, event)
            case "everything":
                self.rebuild(state)
            case "nothing":
                pass
            case writes:
                assert_never(writes)

    def _follow(self, state: RunState, event: Any) -> None:
        """Add the fields that were set by a node that may run in parallel with others."""
        if type(event) is NodeCompleted and event.items:
            self._add(event.node, [field for field, by in state.writers.items() if event.node in by])
        changes = event.changes
        self._add(event.node, (*changes.set, *changes.unset) if changes.unset else changes.set)

    def conflict(self, state: RunState, name: str, fields: Iterable[str]) -> tuple[str, str] | None:
        """Return the first of these fields that a node parallel to `name` has set, and that node, or None if there is no
        conflict.
        """
        topology = self._topology
        if name in topology.alone:
            return None
        number = topology.index[name]
        beside = ~(topology.ancestors[number] | topology.descendants[number] | 1 << number)
        for field in fields:
            parallel = self._masks.get(field, 0) & beside
            for other in topology.members(parallel) if parallel else ():
                before = topology.common_ancestors(name, other)
                latest = max(
                    (state.nodes[node].completed_seq for node in before if node in state.nodes), default=0
                )
                if state.writers[field].get(other, 0) > latest:
                    return field, other
        return None

    def _add(self, name: str, fields: Iterable[str]) -> None:
        number = self._topology.index.get(name)
        if number is not None and name not in self._topology.alone:
            for field in fields:
                self._masks[field] = self._masks.get(field, 0) | 1 << number
