"""Which nodes of a run are due, derived from the state and updated with every event.

This is only a cache: `Readiness(topology, state)` can be computed at any time, and a test proves that it equals the one that was
updated. It exists so that a step in a graph of ten thousand nodes costs as little as in a graph of ten.

A node is *live* while its visit is open, the run has reached it, or its completion waits for its layer. A join is blocked as long
as a live node can still reach it. Each blocked join watches one such node, its *witness*; only when the witness is no longer live
is another one searched for. In a flow without joins it does not matter which nodes are live, so that is not tracked.

In a plan, every edge is decided once. `_CountedReadiness` counts, for each node, the edges to it that are not decided yet. At 0,
the node is either due or *doomed*: too few of these edges were taken, so that it can never run. No edge out of a doomed node is
taken, so its successors are counted down at once, and `decide` skips all doomed nodes together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, assert_never, cast

from holdfast.core.events import NodeStarted
from holdfast.core.kinds import LOOKS
from holdfast.core.run_state import RunState
from holdfast.core.topology import Topology


class Readiness:
    """Keeps track of the nodes for which `decide` must decide something. `due` has the nodes that may start a new visit now, in
    order of arrival; `unscheduled` has the nodes that have no `NodeScheduled` event yet; `open` has the nodes with an open
    visit that needs a decision; `doomed` has the nodes of a plan that can never run any more, with the source of an edge that was
    not taken.
    """

    doomed: dict[str, str] = {}  # noqa: RUF012 - only a plan has such nodes; `_CountedReadiness` has its own

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

    def __new__(cls, topology: Topology | None = None, state: RunState | None = None) -> Self:
        """Choose how edges are followed: those of a plan are counted. (A copy is made without arguments.)"""
        kind = cls if topology is None or topology.sources is None else _CountedReadiness
        return cast("Self", object.__new__(kind))

    def __init__(self, topology: Topology, state: RunState) -> None:
        self.index = topology.index
        self.joins = topology.joins
        self.gated = topology.gated
        self._back_edges = topology.back_edges
        self.rebuild(state)

    def rebuild(self, state: RunState) -> None:
        """Compute everything from the state of the run, without the earlier values."""
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
            case "nodes":
                pass  # only in plans
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

    def undecided(self) -> list[str]:
        """Return the nodes of a plan that were not considered, when nothing more can happen. This must be none."""
        return []

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


class _CountedReadiness(Readiness):
    """The nodes of a plan that are due or doomed. Each node is visited at most once, when all edges to it are decided."""

    __slots__ = ("_sources", "_targets", "_undecided", "_every", "doomed")  # noqa: RUF023

    def __init__(self, topology: Topology, state: RunState) -> None:
        assert topology.sources is not None
        self._sources, self._targets, self._every = topology.sources, topology.targets, topology.every
        super().__init__(topology, state)

    def rebuild(self, state: RunState) -> None:
        """Compute everything from the beginning: an edge is decided if its source has ended and has a route."""
        self.live = 0
        self.due, self.unscheduled, self.open, self.doomed = {}, {}, {}, {}
        self._blocked, self._witnessed = {}, {}
        ended = {name for name, node in state.nodes.items() if node.routes is not None}
        self._undecided = {
            name: sum(source not in ended for source in sources) for name, sources in self._sources.items()
        }
        for name in state.open:
            self._attend(state, name)
        for name in state.arrivals:
            self._consider(state, name)
        for name, undecided in tuple(self._undecided.items()):
            if not undecided:
                self._judge(state, name)

    def observe(self, state: RunState, event: Any) -> None:
        """Update everything after an event was folded into the state."""
        cls = type(event)
        if cls is NodeStarted:
            self.due.pop(event.node, None)
            self.unscheduled.pop(event.node, None)
            if self.open:
                self._attend(state, event.node)
            return
        match LOOKS[cls]:
            case "routes":
                if (
                    state.nodes[event.node].routes is not None
                ):  # in a layer, edges are decided with all others of the layer
                    self._settle(state, event.node)
                self._touch(state, event.node)
            case "node":
                self._touch(state, event.node)
            case "nodes":
                for name in event.nodes:
                    self.doomed.pop(name, None)
                    self._consider(state, name)
            case "everything":
                self.rebuild(state)
            case "layer":
                for name in event.routes:
                    self._settle(state, name)
                for name in event.nodes:
                    self._touch(state, name)
            case "nothing":
                pass
            case look:
                assert_never(look)

    def undecided(self) -> list[str]:
        """Return the nodes to which an edge is still undecided."""
        return [name for name, undecided in self._undecided.items() if undecided]

    def _settle(self, state: RunState, name: str) -> None:
        """Count the edges out of a node as decided, and judge the nodes to which no other edge is undecided."""
        for target in self._targets[name]:
            self._undecided[target] -= 1
            if not self._undecided[target]:
                self._judge(state, target)

    def _judge(self, state: RunState, name: str) -> None:
        """Find out whether a node, all edges to which are decided, is due or doomed. The walk over doomed nodes is iterative,
        because a plan may be ten thousand nodes deep.
        """
        waiting = [name]
        while waiting:
            name = waiting.pop()
            if not self._is_doomed(state, name):
                self._consider(state, name)
                continue
            self.doomed[name] = next(
                source for source in self._sources[name] if not self._leads(state, source, name)
            )
            self._consider(state, name)
            for target in reversed(self._targets[name]):
                self._undecided[target] -= 1
                if not self._undecided[target]:
                    waiting.append(target)

    def _is_doomed(self, state: RunState, name: str) -> bool:
        node = state.nodes.get(name)
        if node is not None and (node.iteration or name in state.open):
            return False  # it has begun, or is skipped
        sources = self._sources[name]
        return state.arrivals.get(name, 0) < (len(sources) if name in self._every else min(1, len(sources)))

    def _leads(self, state: RunState, source: str, target: str) -> bool:
        node = state.nodes.get(source)
        return node is not None and node.routes is not None and target in node.routes

    def _consider(self, state: RunState, name: str) -> None:
        """Update whether this node is due."""
        wanted = (
            name in state.arrivals
            and not self._undecided[name]
            and name not in state.open
            and name not in state.held
            and name not in self.doomed
        )
        node = state.nodes.get(name)
        if wanted and node is not None:
            wanted = node.question is None and node.status != "failed"
        if not wanted:
            self.due.pop(name, None)
            self.unscheduled.pop(name, None)
            return
        self.due.setdefault(name)
        if node is not None and node.status == "pending":
            self.unscheduled.pop(name, None)
        else:
            self.unscheduled[name] = None

    def _touch(self, state: RunState, name: str) -> None:
        if name in state.open or name in self.open:
            self._attend(state, name)
        if name in state.arrivals or name in self.due:
            self._consider(state, name)
