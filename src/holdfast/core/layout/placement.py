"""Find the horizontal place of every item: boxes side by side in their row, parents above the middle of their children, and the
longest way from START to END in one straight line.

Sweeps down and up place one row after the other. Every item would like to be at the average of its neighbours in the row before;
items that would overlap are pooled and placed side by side around the average of their wishes. Only the neighbours on the
longest ways count: a short way that joins a long one does not bend it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from holdfast.core.layout import geometry as g
from holdfast.core.layout.boxes import Sized
from holdfast.core.layout.layers import Rows, Trunk

_SWEEPS = 4
_MAIN, _FIRM, _LOOSE = (
    1e8,
    1e4,
    1.0,
)  # how much a wish counts: one that counts less moves the others by less than a pixel
_SLACK = 70  # percent: how far a picture may reach to each side, compared with its widest row
_REACH_LEAST = 2 * (g.NODE_W + g.SIBLING_GAP)
_CLOSER = 3  # pixels; at most twice as many if both lines move


def place_items(picture: Rows, boxes: Sequence[Sized]) -> list[int]:
    """Return the centre of every item. The rows keep their order."""
    widths = [box.w for box in boxes] + [0] * (len(picture.row_of) - len(boxes))
    rows = [row[fixed:] for row, fixed in zip(picture.rows, picture.fixed, strict=True)]
    spaced = [(row, _offsets(row, widths, len(boxes))) for row in rows]
    upper, lower = (_without(picture.sides, near) for near in (picture.upper, picture.lower))
    main, above, below = _firm(picture, upper, lower, len(boxes))
    reach = max(_REACH_LEAST, max(apart[-1] for _, apart in spaced) * _SLACK // 100)
    x = [0] * len(widths)
    for row, apart in spaced:
        for item, offset in zip(row, apart, strict=True):
            x[item] = offset - apart[-1] // 2
    for sweep in range(_SWEEPS):
        firm, near = (below, lower) if sweep % 2 else (above, upper)
        for row, apart in reversed(spaced) if sweep % 2 else spaced:
            wishes = [_wish(item, firm[item], near[item], item in main, x) for item in row]
            _place(row, apart, wishes, _limits(row, apart, widths, reach), x)
    for row, apart in spaced:
        _straighten(row, apart, above, len(boxes), x)
    lefts = [min(x[item] - widths[item] // 2 for item in row) for row in rows]
    for trunk in picture.sides:
        passed = slice(trunk.first, trunk.first + len(trunk.items))
        place = min(lefts[passed]) - g.LINE_GAP
        lefts[passed] = [place] * len(trunk.items)
        for item in trunk.items:
            x[item] = place
    return x


def _without(sides: list[Trunk], near: list[list[int]]) -> list[list[int]]:
    """Return the neighbours of every item without those at the left side, which are placed after all others."""
    beside = {item for trunk in sides for item in trunk.items}
    return [[other for other in others if other not in beside] for others in near] if beside else near


def _offsets(row: list[int], widths: list[int], boxes: int) -> list[int]:
    """Return how far the centre of each item is at least from that of the first item in its row."""
    offsets = [0]
    for left, right in pairwise(row):
        gap = g.SIBLING_GAP if left < boxes and right < boxes else g.LINE_GAP
        offsets.append(offsets[-1] + (widths[left] + widths[right]) // 2 + gap)
    return offsets


def _firm(
    picture: Rows, upper: list[list[int]], lower: list[list[int]], boxes: int
) -> tuple[frozenset[int], list[list[int]], list[list[int]]]:
    """Return the boxes on the longest ways from START to END; and, for every item, the neighbours above and below on the longest
    ways through both. A line that passes several rows stays straight, whatever leaves it or joins it.
    """
    depth, height = [0] * len(picture.row_of), [0] * len(picture.row_of)
    for row in picture.rows:
        for item in row:
            depth[item] = max((depth[other] for other in picture.upper[item]), default=0) + (item < boxes)
    for row in reversed(picture.rows):
        for item in row:
            height[item] = max((height[other] for other in picture.lower[item]), default=0) + (item < boxes)
    best_above = [_best(item, near, depth, picture) for item, near in enumerate(upper)]
    best_below = [_best(item, near, height, picture) for item, near in enumerate(lower)]
    agreed = {(other, item) for item, near in enumerate(best_above) for other in near}
    agreed &= {(item, other) for item, near in enumerate(best_below) for other in near}
    longest = max(height[item] for item in picture.rows[0])
    return (
        frozenset(box for box in range(boxes) if depth[box] + height[box] > longest),
        [[other for other in near if (other, item) in agreed] for item, near in enumerate(best_above)],
        [[other for other in near if (item, other) in agreed] for item, near in enumerate(best_below)],
    )


def _best(item: int, near: list[int], length: list[int], picture: Rows) -> list[int]:
    if len(near) < 2:
        return near
    trunk = picture.trunk_of.get(item)
    if trunk is not None:
        for other in near:
            if picture.trunk_of.get(other) is trunk:
                return [other]
    longest = max([length[other] for other in near])
    return [other for other in near if length[other] == longest]


def _wish(item: int, firm: list[int], near: list[int], main: bool, x: list[int]) -> tuple[float, float]:
    """Return how much the wish of an item counts, and the place: in the middle of its neighbours in the row before."""
    if firm:
        return _MAIN if main else _FIRM, sum([x[other] for other in firm]) / len(firm)
    return _LOOSE, sum([x[other] for other in near]) / len(near) if near else x[item]


def _limits(row: list[int], offsets: list[int], widths: list[int], reach: int) -> tuple[int, int]:
    """Return the first and the last place that the first item of a row may have, so that the picture stays around its middle. A
    long picture would otherwise drift to one side, row by row.
    """
    reach = max(reach, offsets[-1] // 2 + widths[row[0]] + widths[row[-1]])
    return widths[row[0]] // 2 - reach, reach - offsets[-1] - widths[row[-1]] // 2


def _place(
    row: list[int],
    offsets: list[int],
    wishes: list[tuple[float, float]],
    limits: tuple[int, int],
    x: list[int],
) -> None:
    """Place the items of a row as close to their wishes as their order and their widths allow (weighted least squares)."""
    pools: list[tuple[float, float, int]] = []  # weight, weighted sum of wishes, number of items
    for offset, (weight, wish) in zip(offsets, wishes, strict=True):
        total, count = weight * (wish - offset), 1
        while pools and pools[-1][1] * weight >= total * pools[-1][0]:
            before = pools.pop()
            weight += before[0]  # noqa: PLW2901 - the pool grows
            total += before[1]
            count += before[2]
        pools.append((weight, total, count))
    index = 0
    for weight, total, count in pools:
        base = min(max(round(total / weight), limits[0]), limits[1])
        for item, offset in zip(row[index : index + count], offsets[index : index + count], strict=True):
            x[item] = base + offset
        index += count


def _straighten(row: list[int], offsets: list[int], above: list[list[int]], boxes: int, x: list[int]) -> None:
    """Move the waypoints of a row below the items that they continue, where there is room. Lines may come closer to each other
    for that, because a bend of a few pixels looks like a mistake.
    """
    for index, item in enumerate(row):
        if item < boxes or len(above[item]) != 1:
            continue
        place = x[above[item][0]] - offsets[index]
        if index and place + _CLOSER < x[row[index - 1]] - offsets[index - 1]:
            continue
        if index + 1 < len(row) and place - _CLOSER > x[row[index + 1]] - offsets[index + 1]:
            continue
        x[item] = place + offsets[index]
