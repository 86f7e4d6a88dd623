"""Which nodes of a run are due, derived from the state and updated with every event.

This is only a cache: `Readiness(topology, state)` can be computed at any time, and a test proves that it equals the one that was
updated. It exists so that a step in a graph of ten thousand nodes costs as little as in a graph of ten.

A node is *live* while its visit is open, the run has reached it, or its completion waits for its layer. A join is blocked as long
as a live node can still reach it. Each blocked join watches one such node, its *witness*; only when the witness is no longer live
is another one searched for. In a flow without joins it does not matter which nodes are live, so that is not tracked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from holdfast.core.events import NodeStarted
from holdfast.core.kinds import LOOKS
from holdfast.core.run_state import RunState
from holdfast.core.topology import Topology


class Readiness:
    """Keeps track of the nodes for which `decide` must decide something. `due` has the nodes that may start a new visit now, in
    order of arrival; `unscheduled` has those of them that have no `NodeScheduled` event yet; `open` has the nodes with an open
    visit that needs a decision.
    """

    __slots__ = (
        "_back_edges",
        "_blocked",
        "_witnessed",
        "due",
        "gated",
        "index",
        "joins",
        "live",
        "open",
        "unscheduled",
    )

    def __init__(self, topology: Topology, state: RunState) -> None:
        self.index = topology.index
        self.joins = topology.joins
        self.gated = topology.gated
        self._back_edges = topology.back_edges
        self.rebuild(state)

    def rebuild(self, state: RunState) -> None:
        """Compute everything anew from the state of the run, without the earlier values."""
        self.live = 0
        self.due: dict[str, None] = {}
        self.unscheduled: dict[str, None] = {}
        self.open: dict[str, None] = {}
        self._blocked: dict[str, int] = {}
        self._witnessed: dict[int, set[str]] = {}
        if self.joins:
            self._arrive((*state.open, *state.arrivals, *state.held))
        for name in state.open:
            self._attend(state, name)
        for name in state.arrivals:
            self._consider(state, name)

    def observe(self, state: RunState, event: Any) -> None:
        """Update everything after an event was folded into the state."""
        cls = type(event)
        # Half of all events are starts. A node that starts was live and stays live, so nothing else changes.
        if cls is NodeStarted:
            name = event.node
            if name in self.due:
                del self.due[name]
                self.unscheduled.pop(name, None)
            if self.open or state.nodes[name].items is not None:
                self._attend(state, name)
            return
        match LOOKS[cls]:
            case "routes":
                if event.routes:
                    self._move(state, event.node, event.routes)
                self._touch(state, event.node)
            case "node":
                self._touch(state, event.node)
            case "everything":
                self.rebuild(state)
            case "layer":
                for source, routes in event.routes.items():
                    self._move(state, source, routes)
                for name in event.nodes:
                    self._touch(state, name)
            case "nothing":
                pass
            case look:
                assert_never(look)

    def _move(self, state: RunState, source: str, routes: Sequence[str]) -> None:
        """Record that the run goes from `source` to these nodes. All of them are marked as live before any is checked for being
        due, because a branch may lead both to a join and to a node before that join.
        """
        if self.joins:
            self._arrive(routes)
        for name in routes:
            if name in self.index:  # not END
                self._consider(state, name)
            # A new round of a loop may still reach a join that was due but has not started, because too many nodes were
            # running.
            if self._back_edges and (source, name) in self._back_edges:
                for join in [due for due in self.due if due in self.joins]:
                    self._consider(state, join)

    def _arrive(self, names: Sequence[str]) -> None:
        for name in names:
            number = self.index.get(name)
            if (
                number is not None
            ):  # not END, nor the old name of a renamed node as long as `FlowChanged` is not folded
                self.live |= 1 << number

    def _touch(self, state: RunState, name: str) -> None:
        number = self.index.get(name)
        if number is None:  # END
            return
        if name in state.open or name in self.open:
            self._attend(state, name)
        if name in state.arrivals or name in self.due or name in self.joins:
            self._consider(state, name)
        if self.joins:
            self._enliven(state, name, number)

    def _enliven(self, state: RunState, name: str, number: int) -> None:
        """Update whether this node is live. If it is no longer live, check the joins that it blocked again."""
        bit = 1 << number
        if name in state.open or name in state.arrivals or name in state.held:
            self.live |= bit
        elif self.live & bit:
            self.live ^= bit
            for join in tuple(self._witnessed.pop(number, ())):
                self._blocked.pop(join, None)
                self._consider(state, join)

    def _attend(self, state: RunState, name: str) -> None:
        """Update whether the visit of this node needs a decision: it is open and interrupted, waiting, due again, a fan-out, or
        completed without a route.
        """
        if name in state.open:
            node = state.nodes[name]
            if node.status != "running" or node.items is not None:
                self.open[name] = None
                return
        if name in self.open:
            del self.open[name]

    def _consider(self, state: RunState, name: str) -> None:
        """Update whether this node is due, is a join that a live node still blocks, or neither."""
        wanted = name in state.arrivals and name not in state.open and name not in state.held
        node = state.nodes.get(name)
        if wanted and node is not None:
            wanted = node.question is None and node.status != "failed"
        blockers = 0
        if name in self.joins:
            if wanted:
                blockers = self.live & self.joins[name]
            self._watch(name, blockers)
        if not wanted or blockers:
            if name in self.due:
                del self.due[name]
                self.unscheduled.pop(name, None)
            return
        self.due.setdefault(name)
        if node is not None and node.status == "pending":
            self.unscheduled.pop(name, None)
        else:
            self.unscheduled[name] = None

    def _watch(self, name: str, blockers: int) -> None:
        """Remember one of the nodes that block a join, its witness. As long as the witness is live, the join need not be checked
        again.
        """
        witness = self._blocked.get(name)
        if witness is not None and not blockers >> witness & 1:
            del self._blocked[name]
            self._witnessed.get(witness, set()).discard(name)
            witness = None
        if blockers and witness is None:
            witness = (blockers & -blockers).bit_length() - 1
            self._blocked[name] = witness
            self._witnessed.setdefault(witness, set()).add(name)
