"""Parallel writers: two nodes that set the same plain field, where the graph does not say who comes last.

It is a conflict when neither node is a forward ancestor of the other and both wrote since their common ancestors last completed. The graph
decides, not the timing: the answer is the same whichever of the two ended first.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.events import Changes
from holdfast.core.run_state import RunState
from holdfast.core.topology import Topology


class Writers:
    """For every plain field the mask of the nodes that have set it: derived from the state, kept up to date."""

    __slots__ = ("_masks", "_topology")

    def __init__(self, topology: Topology, state: RunState) -> None:
        self._topology = topology
        self._masks: dict[str, int] = {}
        for field, by in state.writers.items():
            for name in by:
                self._add(name, (field,))

    def observe(self, name: str, changes: Iterable[Changes]) -> None:
        """A completion of this node with these changes has been folded."""
        for part in changes:
            self._add(name, part.set)
            self._add(name, part.unset)

    def conflict(self, state: RunState, name: str, fields: Iterable[str]) -> tuple[str, str] | None:
        """The first of these fields that a parallel node has set, and that node."""
        for field in fields:
            mask = self._masks.get(field, 0)
            for other in self._topology.parallel(name, mask) if mask else ():
                latest = max((state.nodes[a].completed_seq for a in self._topology.common_ancestors(name, other) if a in state.nodes), default=0)
                if state.writers[field].get(other, 0) > latest:
                    return field, other
        return None

    def _add(self, name: str, fields: Iterable[str]) -> None:
        number = self._topology.index.get(name)
        if number is not None:
            for field in fields:
                self._masks[field] = self._masks.get(field, 0) | 1 << number
