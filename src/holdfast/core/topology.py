"""The shape of a flow, computed once when it is compiled: its loops, its joins, and which nodes come before others.

- Edges that close a loop are *back* edges; they are found by a walk from START in the order of declaration. All other edges are
  *forward* edges, which form no cycle. All back edges to the same node, the head, form one loop; its body is all nodes between
  the head and the sources of these back edges, the tails.
- A *join* is a node with several incoming forward edges (unless it is declared with `join="any"`). It starts when the run has
  reached it at least once, and no node that is running or due can still reach it by forward edges or around a loop that the
  join is not part of. So it waits for every branch that is on its way, including one that is still looping, and never for a
  branch that was not chosen; and two joins never wait for each other.

Sets of nodes are bit masks (`int`), so that one `&` answers "can any of these nodes still reach it?", whatever the size of the
graph.

A plan has no loops, and each of its nodes is visited at most once. So its shape is only which edges lead to each node and from
it: a node is due, or can never run, when the last edge to it is decided (`sources`, `targets`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce

import msgspec

from holdfast.core.definition import END, START, Definition


class Loop(msgspec.Struct, frozen=True):
    """A loop: all back edges to one node, its head. `body` is the mask of all nodes in the loop."""

    head: int
    tails: tuple[int, ...]
    body: int


class Topology(msgspec.Struct, frozen=True):
    """The shape of a flow. Nodes are numbered in the order of declaration; a mask has the bit `index[name]` for each of its
    nodes.
    """

    names: tuple[str, ...]
    index: dict[str, int]
    back_edges: frozenset[tuple[str, str]]
    """The edges that close a loop, as pairs of source and target. `Readiness` looks them up at every completion."""
    loops: tuple[Loop, ...]
    ancestors: tuple[int, ...]
    """For each node, the mask of the nodes that come before it by forward edges, without the node itself."""
    descendants: tuple[int, ...]
    joins: dict[str, int]
    """For each join, the mask of the nodes that can still reach it."""
    gated: frozenset[str] = frozenset()
    """Nodes with a question that must be answered before they begin."""
    alone: frozenset[str] = frozenset()
    """Nodes that never run in parallel with another: every other node comes before or after them. In a plan, all nodes: they set
    no field that another one sets."""
    sources: dict[str, tuple[str, ...]] | None = None
    """In a plan: for each node, the nodes that have an edge to it. None for a graph in code."""
    targets: dict[str, tuple[str, ...]] = {}
    """In a plan: for each node, the nodes that it has an edge to."""
    every: frozenset[str] = frozenset()
    """In a plan: the nodes that run only if every edge to them is taken; of the edges to any other node, one is enough."""

    @classmethod
    def of(cls, definition: Definition) -> Topology:
        """Compute the shape of a valid definition."""
        if definition.plan:
            return cls._of_plan(definition)
        names = tuple(definition.nodes)
        index = {name: number for number, name in enumerate(names)}
        arrows = [(arrow.source, arrow.target) for arrow in definition.arrows() if arrow.target != END]
        back = find_back_edges(arrows)
        forward = [arrow for arrow in arrows if arrow not in back]
        order = _topological(forward)
        ancestors = _closure(order, [(index[s], index[t]) for s, t in forward if s != START], index)
        descendants = _closure(order[::-1], [(index[t], index[s]) for s, t in forward if s != START], index)
        loops = _loops(back, index, ancestors, descendants)
        joins = {
            name: _reach(index[name], loops, ancestors)
            for name, sources in _sources(forward).items()
            if len(sources) > 1 and definition.nodes[name].join == "all"
        }
        gated = frozenset(name for name, options in definition.nodes.items() if options.gated)
        everyone = (1 << len(names)) - 1
        alone = frozenset(
            name
            for name, number in index.items()
            if ancestors[number] | descendants[number] | 1 << number == everyone
        )
        return cls(names, index, back, loops, ancestors, descendants, joins, gated, alone)

    @classmethod
    def _of_plan(cls, definition: Definition) -> Topology:
        sources: dict[str, list[str]] = {name: [] for name in definition.nodes}
        targets: dict[str, list[str]] = {name: [] for name in definition.nodes}
        for edge in definition.edges:
            if edge.source != START and edge.target != END:
                sources[edge.target].append(edge.source)
                targets[edge.source].append(edge.target)
        options = definition.nodes.items()
        return cls(
            names=tuple(definition.nodes),
            index={name: number for number, name in enumerate(definition.nodes)},
            back_edges=frozenset(),
            loops=(),
            ancestors=(),
            descendants=(),
            joins={name: 0 for name, before in sources.items() if len(before) > 1},
            gated=frozenset(name for name, option in options if option.gated),
            alone=frozenset(definition.nodes),
            sources={name: tuple(before) for name, before in sources.items()},
            targets={name: tuple(after) for name, after in targets.items()},
            every=frozenset(name for name, option in options if option.join == "every"),
        )

    def parallel(self, node: str, mask: int) -> Iterator[str]:
        """Return the nodes of a mask that come neither before nor after this node."""
        number = self.index[node]
        return self.members(mask & ~self.ancestors[number] & ~self.descendants[number] & ~(1 << number))

    def common_ancestors(self, one: str, other: str) -> Iterator[str]:
        return self.members(self.ancestors[self.index[one]] & self.ancestors[self.index[other]])

    def members(self, mask: int) -> Iterator[str]:
        """Yield the names in a mask, in the order of declaration."""
        while mask:
            lowest = mask & -mask
            yield self.names[lowest.bit_length() - 1]
            mask ^= lowest


def find_back_edges(arrows: list[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Return the edges that lead back to a node on the current path of a depth-first walk from START. The walk is iterative,
    because flows may be ten thousand nodes deep.
    """
    successors: dict[str, list[str]] = {}
    for source, target in arrows:
        successors.setdefault(source, []).append(target)
    back = set()
    inside, done = {START}, set()
    stack = [(START, iter(successors.get(START, ())))]
    while stack:
        name, targets = stack[-1]
        for target in targets:
            if target in inside:
                back.add((name, target))
            elif target not in done:
                inside.add(target)
                stack.append((target, iter(successors.get(target, ()))))
                break
        else:
            stack.pop()
            inside.remove(name)
            done.add(name)
    return frozenset(back)


def _sources(forward: list[tuple[str, str]]) -> dict[str, set[str]]:
    sources: dict[str, set[str]] = {}
    for source, target in forward:
        sources.setdefault(target, set()).add(source)
    return sources


def _topological(forward: list[tuple[str, str]]) -> list[str]:
    """Return the nodes in topological order: each comes after all nodes that have forward edges to it."""
    successors: dict[str, list[str]] = {}
    waiting: dict[str, int] = {}
    for source, target in forward:
        successors.setdefault(source, []).append(target)
        waiting[target] = waiting.get(target, 0) + 1
    order, ready = [], [START]
    while ready:
        name = ready.pop()
        if name != START:
            order.append(name)
        for target in successors.get(name, ()):
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return order


def _closure(order: list[str], edges: list[tuple[int, int]], index: dict[str, int]) -> tuple[int, ...]:
    """Return, for every node, the mask of all nodes from which a path of edges leads to it. In `order`, sources come first."""
    incoming: dict[int, list[int]] = {}
    for source, target in edges:
        incoming.setdefault(target, []).append(source)
    masks = [0] * len(index)
    for name in order:
        mask = 0
        for source in incoming.get(index[name], ()):
            mask |= masks[source] | 1 << source
        masks[index[name]] = mask
    return tuple(masks)


def _loops(
    back: frozenset[tuple[str, str]],
    index: dict[str, int],
    ancestors: tuple[int, ...],
    descendants: tuple[int, ...],
) -> tuple[Loop, ...]:
    tails: dict[int, list[int]] = {}
    for source, target in back:
        tails.setdefault(index[target], []).append(index[source])
    leads_back = {head: _or(ancestors[tail] | 1 << tail for tail in ends) for head, ends in tails.items()}
    return tuple(
        Loop(head, tuple(sorted(ends)), _body(head, leads_back, descendants[head] | 1 << head))
        for head, ends in sorted(tails.items())
    )


def _or(masks: Iterable[int]) -> int:
    return reduce(int.__or__, masks, 0)


def _body(head: int, leads_back: dict[int, int], below: int) -> int:
    """Return the mask of the nodes in a loop: those between its head and its tails. If the last node of an inner loop has only
    the edge back to the inner head, that node is part of the outer loop through the inner head.
    """
    body = leads_back[head] & below
    inner = {other for other in leads_back if other != head and below >> other & 1}
    while joined := {other for other in inner if body >> other & 1}:
        body |= _or(leads_back[other] for other in joined) & below
        inner -= joined
    return body


def _reach(join: int, loops: tuple[Loop, ...], ancestors: tuple[int, ...]) -> int:
    """Return the mask of the nodes that can still reach a join: by forward edges, or around a loop without the join."""
    reach = ancestors[join]
    around = [loop for loop in loops if not loop.body >> join & 1]
    while entered := [loop for loop in around if reach >> loop.head & 1]:
        reach |= _or(ancestors[tail] | 1 << tail for loop in entered for tail in loop.tails)
        around = [loop for loop in around if loop not in entered]
    return reach  # never contains the join itself, because loops through it are left out
