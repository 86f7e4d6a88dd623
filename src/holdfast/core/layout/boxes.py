"""Which boxes a picture has, and which arrows lead from box to box: nodes with the same neighbours are stacked into one.

The order of boxes and arrows follows from a walk from START that takes the targets of each node in the order of declaration. It
does not depend on the order in which the nodes were declared, because flows that differ only in that have the same fingerprint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from holdfast.core.conditions import conditions_of
from holdfast.core.definition import END, START, Definition
from holdfast.core.layout import geometry as g
from holdfast.core.topology import find_back_edges


class Arrow(NamedTuple):
    """An edge between two boxes, which are given by their numbers."""

    source: int
    target: int
    branch: bool
    back: bool


class Sized(NamedTuple):
    """A box that has its size but not yet its place. `cells` are the members of an open stack, each with its place inside."""

    name: str
    kind: g.Kind
    w: int
    h: int
    members: tuple[str, ...] = ()
    cells: tuple[g.Box, ...] = ()


class BoxGraph(NamedTuple):
    """The boxes of a picture and their arrows. START is the first box and END is the last."""

    boxes: list[Sized]
    arrows: list[Arrow]


_Edge = tuple[str, str, bool, bool]  # source, target, and whether it belongs to a branch and closes a loop


def group_nodes(definition: Definition, open: Collection[str], alone: Collection[str]) -> BoxGraph:
    """Return the boxes of a flow: a box for each node, except for those in stacks."""
    edges = _edges(definition)
    order = _walk(edges, definition)
    stacks = _stacks(edges, order)
    stack_of = {name: stack for stack in stacks for name in stack}
    members_of = {stack[0]: tuple(name for name in stack if name not in alone) for stack in stacks}
    boxes = [Sized(START, "start", g.END_SIZE, g.END_SIZE)]
    number_of = {START: 0}
    for name in order:
        first = stack_of[name][0] if name in stack_of else ""
        members = members_of.get(first, ())
        if name in alone or len(members) < 2:
            number_of[name] = len(boxes)
            boxes.append(_node(name, definition))
        elif name == members[0]:
            number_of |= dict.fromkeys(members, len(boxes))
            title = f"stack:{first}"
            boxes.append((_open if title in open else _closed)(title, members, definition))
    number_of[END] = len(boxes)
    boxes.append(Sized(END, "end", g.END_SIZE, g.END_SIZE))
    arrows = (
        Arrow(number_of[source], number_of[target], branch, back) for source, target, branch, back in edges
    )
    return BoxGraph(boxes, list(dict.fromkeys(arrows)))


def _edges(definition: Definition) -> list[_Edge]:
    """Return all edges, those of one source in the order of declaration. An edge of a plan that has a condition belongs to a
    branch: the run may take it or not.
    """
    plain = frozenset(definition.edges) - conditions_of(definition).keys()
    pairs = [(arrow.source, arrow.target) for arrow in definition.arrows()]
    back = find_back_edges([pair for pair in pairs if pair[1] != END])
    return [
        (arrow.source, arrow.target, arrow not in plain, (arrow.source, arrow.target) in back)
        for arrow in definition.arrows()
    ]


def _walk(edges: list[_Edge], definition: Definition) -> list[str]:
    """Return the nodes in the order in which a depth-first walk from START meets them, and put the edges in that order. Nodes
    that lead only back come last among the targets of a node: they are then at the right side, as are the lanes of loops.
    """
    targets: dict[str, list[str]] = {}
    sources: dict[str, list[str]] = {}
    for source, target, _, back in edges:
        targets.setdefault(source, []).append(target)
        if not back:
            sources.setdefault(target, []).append(source)
    ends = _meet(END, sources)
    met = _meet(START, {name: sorted(to, key=lambda name: name not in ends) for name, to in targets.items()})
    met.pop(END, None)
    place = {
        name: number for number, name in enumerate([*met, *sorted(definition.nodes.keys() - met.keys())])
    }
    edges.sort(key=lambda edge: place[edge[0]])
    return list(place)[1:]


def _meet(start: str, following: Mapping[str, list[str]]) -> dict[str, None]:
    """Return all names that a depth-first walk meets, in that order."""
    met: dict[str, None] = {}
    ahead = [start]
    while ahead:
        name = ahead.pop()
        if name not in met:
            met[name] = None
            ahead += reversed(following.get(name, ()))
    return met


def _stacks(edges: list[_Edge], order: list[str]) -> list[list[str]]:
    """Return the stacks: six or more nodes that have edges of the same kinds to the same neighbours."""
    neighbours: dict[str, list[tuple[object, ...]]] = {name: [] for name in (START, *order, END)}
    for source, target, *flags in edges:
        neighbours[source].append((1, target, *flags))
        neighbours[target].append((0, source, *flags))
    alike: dict[frozenset[tuple[object, ...]], list[str]] = {}
    for name in order:
        alike.setdefault(frozenset(neighbours[name]), []).append(name)
    return [stack for stack in alike.values() if len(stack) >= g.STACK_LEAST]


def _height(name: str, definition: Definition) -> int:
    return g.FAN_H if definition.nodes[name].each else g.NODE_H


def _node(name: str, definition: Definition) -> Sized:
    return Sized(name, "node", g.NODE_W, _height(name, definition))


def _closed(title: str, members: tuple[str, ...], definition: Definition) -> Sized:
    return Sized(title, "stack", g.STACK_W, g.STACK_H, members)


def _open(title: str, members: tuple[str, ...], definition: Definition) -> Sized:
    cells = []
    y = g.STACK_HEAD
    for start in range(0, len(members), g.STACK_COLUMNS):
        row = members[start : start + g.STACK_COLUMNS]
        for column, name in enumerate(row):
            x = g.STACK_PAD + column * (g.NODE_W + g.SIBLING_GAP)
            cells.append(g.Box(name, "node", x, y, g.NODE_W, _height(name, definition), stack=title))
        y += max(_height(name, definition) for name in row) + g.SIBLING_GAP
    columns = min(len(members), g.STACK_COLUMNS)
    w = 2 * g.STACK_PAD + columns * (g.NODE_W + g.SIBLING_GAP) - g.SIBLING_GAP
    return Sized(title, "stack", max(w, g.STACK_W), y - g.SIBLING_GAP + g.STACK_PAD, members, tuple(cells))
