"""Put the boxes into rows, and lead every forward arrow from row to row.

- A box is below all boxes that lead to it. A layer that is too wide is wrapped into several rows.
- An arrow that passes rows gets a waypoint in each of them, so that room is kept for its line. Arrows that share a way share its
  waypoints: those of one source where it has more long arrows than the target, otherwise those of one target. So the number of
  waypoints follows from the number of boxes and rows, not from the number of arrows.
- A way that passes very many rows does not wind between the boxes: its waypoints are the first of their rows, at the left side.

Boxes and waypoints are both called items. They are numbered: first the boxes, then the waypoints.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

from holdfast.core.layout import geometry as g
from holdfast.core.layout.boxes import Arrow, BoxGraph, Sized

_SIDE_LEAST = 24  # a way that passes as many rows runs at the left side
_ITEMS_MAX = 100_000


class Hop(NamedTuple):
    """A piece of a line from an item to an item in the next row. `branch` is True if it begins at a diamond."""

    source: int
    target: int
    branch: bool


class Trunk(NamedTuple):
    """The waypoints that the arrows of one source or of one target share, one in each row from `first` on."""

    first: int
    items: list[int]


class Way(NamedTuple):
    """The way of an arrow: its source, the items of a trunk from `start` to `stop`, and its target."""

    trunk: Trunk
    start: int
    stop: int


class Rows(NamedTuple):
    """The items of a picture, in rows from top to bottom. The order inside the rows may still change."""

    rows: list[list[int]]
    row_of: list[int]
    upper: list[list[int]]
    """For each item, the items of the row above that lead to it."""
    lower: list[list[int]]
    hops: list[Hop]
    """All pieces of lines, each once."""
    ways: dict[Arrow, Way | None]
    """Forward arrow -> its way; None if it leads to the next row."""
    trunks: list[Trunk]
    trunk_of: dict[int, Trunk]
    sides: list[Trunk]
    """The trunks at the left side."""
    fixed: list[int]
    """For each row, how many waypoints at its beginning belong to trunks at the left side. Their order does not change."""


def arrange(graph: BoxGraph) -> Rows:
    """Return the rows of a picture, each in the order of the boxes."""
    forward = [arrow for arrow in graph.arrows if not arrow.back]
    rows, row_of, ways = _rows_and_ways(_layers(len(graph.boxes), forward), graph.boxes, forward)
    trunks = list({id(way.trunk): way.trunk for way in ways.values() if way}.values())
    sides = [trunk for trunk in trunks if len(trunk.items) >= _SIDE_LEAST]
    sides.sort(key=lambda trunk: -len(trunk.items))
    before: list[list[int]] = [[] for _ in rows]
    for trunk in sides:  # the longest comes first, and is outside of all others
        for row, item in enumerate(trunk.items, trunk.first):
            before[row].append(item)
    for trunk in trunks:
        if len(trunk.items) < _SIDE_LEAST:
            for row, item in enumerate(trunk.items, trunk.first):
                rows[row].append(item)
    rows = [side + others for side, others in zip(before, rows, strict=True)]
    hops = _hops(ways, trunks)
    upper: list[list[int]] = [[] for _ in row_of]
    lower: list[list[int]] = [[] for _ in row_of]
    for hop in hops:
        lower[hop.source].append(hop.target)
        upper[hop.target].append(hop.source)
    trunk_of = {item: trunk for trunk in trunks for item in trunk.items}
    return Rows(rows, row_of, upper, lower, hops, ways, trunks, trunk_of, sides[::-1], [*map(len, before)])


def _rows_and_ways(
    layers: list[list[int]], boxes: list[Sized], forward: list[Arrow]
) -> tuple[list[list[int]], list[int], dict[Arrow, Way | None]]:
    """Return the rows of boxes, the row of every item, and the way of every arrow. Rows are longer than usual if very many lines
    would have to pass very many rows, because the time for a picture follows from the number of its waypoints.
    """
    columns = g.COLUMNS
    while True:
        rows = _wrapped(layers, boxes, columns)
        row_of = [0] * len(boxes)
        for number, row in enumerate(rows):
            for box in row:
                row_of[box] = number
        ways = _ways(forward, row_of)
        if len(row_of) < _ITEMS_MAX or len(rows) == len(layers):
            return rows, row_of, ways
        columns *= 2


def _layers(boxes: int, forward: list[Arrow]) -> list[list[int]]:
    """Return the boxes by the length of the longest way from START to them. END is in a layer of its own below all others."""
    targets: list[list[int]] = [[] for _ in range(boxes)]
    waiting = [0] * boxes
    for arrow in forward:
        targets[arrow.source].append(arrow.target)
        waiting[arrow.target] += 1
    depth = [0] + [1] * (boxes - 1)
    ready = [box for box in range(boxes) if not waiting[box]]
    for box in ready:  # the list grows during the loop
        for target in targets[box]:
            depth[target] = max(depth[target], depth[box] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    depth[-1] = max(depth[:-1]) + 1
    layers: list[list[int]] = [[] for _ in range(depth[-1] + 1)]
    for box in range(boxes):
        layers[depth[box]].append(box)
    return layers


def _wrapped(layers: list[list[int]], boxes: list[Sized], columns: int) -> list[list[int]]:
    """Return the layers as rows: a layer with more nodes than fit becomes several rows of about the same length."""
    rows = []
    for layer in layers:
        width = sum(boxes[box].w + g.SIBLING_GAP for box in layer)
        count = min(len(layer), -(-width // (columns * (g.NODE_W + g.SIBLING_GAP))))
        cuts = [len(layer) * cut // count for cut in range(count + 1)]
        rows += [layer[start:end] for start, end in pairwise(cuts)]
    return rows


def _ways(forward: list[Arrow], row_of: list[int]) -> dict[Arrow, Way | None]:
    """Return the way of every arrow, and number the waypoints."""
    long = [arrow for arrow in forward if row_of[arrow.target] - row_of[arrow.source] > 1]
    leaving = Counter((arrow.source, arrow.branch) for arrow in long)
    arriving = Counter(arrow.target for arrow in long)
    shared: dict[tuple[int, bool | None], list[Arrow]] = {}
    for arrow in long:
        to_target = arriving[arrow.target] > leaving[arrow.source, arrow.branch]
        key = (arrow.target, None) if to_target else (arrow.source, arrow.branch)
        shared.setdefault(key, []).append(arrow)
    ways: dict[Arrow, Way | None] = dict.fromkeys(forward)
    for arrows in shared.values():
        first = min(row_of[arrow.source] for arrow in arrows) + 1
        last = max(row_of[arrow.target] for arrow in arrows)
        trunk = Trunk(first, list(range(len(row_of), len(row_of) + last - first)))
        row_of += range(first, last)
        for arrow in arrows:
            ways[arrow] = Way(trunk, row_of[arrow.source] + 1 - first, row_of[arrow.target] - first)
    return ways


def _hops(ways: dict[Arrow, Way | None], trunks: list[Trunk]) -> list[Hop]:
    """Return all pieces of lines. Lines that belong to one source meet in their trunk, so only the first may be of a branch."""
    hops: dict[Hop, None] = {}
    for arrow, way in ways.items():
        if way is None:
            hops[Hop(arrow.source, arrow.target, arrow.branch)] = None
        else:
            hops[Hop(arrow.source, way.trunk.items[way.start], arrow.branch)] = None
            hops[Hop(way.trunk.items[way.stop - 1], arrow.target, branch=False)] = None
    for trunk in trunks:
        for pair in pairwise(trunk.items):
            hops[Hop(*pair, branch=False)] = None
    return list(hops)
