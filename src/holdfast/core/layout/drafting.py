"""Draw up the geometry: from boxes, rows and horizontal places to heights, lines and lanes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

from holdfast.core.layout import geometry as g
from holdfast.core.layout.boxes import Arrow, BoxGraph
from holdfast.core.layout.lanes import Lane, Reach, find_lanes
from holdfast.core.layout.layers import Rows, Trunk
from holdfast.core.layout.routing import Departure, Pin, route

_PLAIN_PORT = 32  # how far from the middle plain edges leave a box that also has a branch
_LOOP_PORT = 20  # how far from the right corner a loop enters a box from above


def draft(graph: BoxGraph, rows: Rows, x: list[int]) -> g.Geometry:
    """Return the finished geometry."""
    places = _Places(graph, rows, x)
    lanes = places.lanes()
    lines = [*places.lines(lanes)]
    boxes = sorted(places.boxes(), key=lambda box: (box.y, box.x))
    reach = max(box.x + box.w for box in boxes)
    reach = max([reach, *(x for line in lines for x, _ in line.points)])
    reach = max([reach, *(lane.badge[0] + g.BADGE_W // 2 for lane in lanes.values())])
    height = max(box.y + box.h for box in boxes) + g.MARGIN
    return g.Geometry(reach + g.MARGIN, height, tuple(boxes), tuple(lines))


class _Places:
    """All places that are known before the lanes of the loops are."""

    def __init__(self, graph: BoxGraph, rows: Rows, x: list[int]) -> None:
        self._boxes, self._rows = graph.boxes, rows
        self._forward = list(rows.ways)
        self._back = [arrow for arrow in graph.arrows if arrow.back]
        self._plain = {arrow.source for arrow in graph.arrows if not arrow.branch}
        self._branching = {arrow.source for arrow in graph.arrows if arrow.branch}
        left = min([x[box] - sized.w // 2 for box, sized in enumerate(graph.boxes)])
        left = min([left, *(x[item] for item in rows.trunk_of), *self._ports(x)])
        self._x = [place - left + g.MARGIN for place in x]
        self._entered_above = self._heads_with_neighbours()
        self._gaps = [route(departures, len(graph.boxes)) for departures in self._departures()]
        self._tops, self._bottoms = self._heights()
        # Found once for all lines of a trunk: thousands of lines may pass thousands of rows together.
        self._bends = {trunk.items[0]: self._find_bends(trunk) for trunk in rows.trunks}

    def _ports(self, x: list[int]) -> Iterator[int]:
        return (x[box] - _PLAIN_PORT for box in self._plain & self._branching)

    def _heads_with_neighbours(self) -> set[int]:
        """Return the heads of loops that have a box at their right side. Their loops enter from above."""
        last = {
            number: max(
                (item for item in row if item < len(self._boxes)), key=self._x.__getitem__, default=-1
            )
            for number, row in enumerate(self._rows.rows)
        }
        return {arrow.target for arrow in self._back if last[self._rows.row_of[arrow.target]] != arrow.target}

    def _departures(self) -> list[list[Departure]]:
        """Return what enters each gap. The gap of a row is the one below it."""
        row_of = self._rows.row_of
        targets: list[dict[tuple[int, bool], dict[tuple[Pin, int], None]]] = [{} for _ in self._rows.rows]
        for hop in self._rows.hops:
            pins = targets[row_of[hop.source]].setdefault((hop.source, hop.branch), {})
            pins[Pin(hop.target), self._x[hop.target]] = None
        for arrow in self._back:
            pins = targets[row_of[arrow.source]].setdefault((arrow.source, arrow.branch), {})
            pins[Pin(arrow.target, lane=True), 0] = None
        departures = [
            [
                Departure(Pin(item), self._port(item, branch), tuple(pins), branch)
                for (item, branch), pins in gap.items()
            ]
            for gap in targets
        ]
        for head in sorted(self._entered_above):
            way = ((Pin(head), self._loop_port(head)),)
            departures[row_of[head] - 1].append(Departure(Pin(head, lane=True), 0, way))
        return departures

    def _port(self, item: int, branch: bool) -> int:
        """Return the place at which lines leave an item. A box with a branch keeps its middle for the diamond."""
        aside = not branch and item in self._branching
        return self._x[item] - (_PLAIN_PORT if aside else 0)

    def _loop_port(self, head: int) -> int:
        return self._x[head] + self._boxes[head].w // 2 - _LOOP_PORT

    def _lead(self, row: int) -> int:
        return g.START_LEAD if not row and not self._gaps[0].diamonds else g.LEAD

    def _heights(self) -> tuple[list[int], list[int]]:
        """Return the upper and the lower end of each row."""
        heights = [
            max((self._boxes[item].h for item in row if item < len(self._boxes)), default=0)
            for row in self._rows.rows
        ]
        steps = [
            height + gap.height(self._lead(row))
            for row, (height, gap) in enumerate(zip(heights, self._gaps, strict=True))
        ]
        tops = list(accumulate(steps[:-1], initial=g.MARGIN))
        return tops, [top + height for top, height in zip(tops, heights, strict=True)]

    def _track_y(self, row: int, source: Pin, branch: bool) -> int | None:
        """Return the height of the track in the gap below a row, or None if the line is straight."""
        track = self._gaps[row].tracks.get((source, branch))
        return None if track is None else self._bottoms[row] + self._lead(row) + track * g.TRACK_GAP

    # --- boxes and lines ------------------------------------------------------------------------------

    def boxes(self) -> Iterator[g.Box]:
        for number, box in enumerate(self._boxes):
            row = self._rows.row_of[number]
            x, y = self._x[number] - box.w // 2, self._tops[row]
            diamond = (self._x[number], self._bottoms[row] + g.LEAD) if number in self._branching else None
            yield g.Box(box.name, box.kind, x, y, box.w, box.h, diamond, box.members)
            for cell in box.cells:
                yield g.Box(cell.name, cell.kind, x + cell.x, y + cell.y, cell.w, cell.h, stack=cell.stack)

    def lines(self, lanes: dict[int, Lane]) -> Iterator[g.EdgeLine]:
        for arrow in self._forward:
            yield self._line(arrow, "branch" if arrow.branch else "forward", self._way_down(arrow))
        badges = {head: lane.badge for head, lane in lanes.items()}
        for arrow in self._back:
            points = self._way_back(arrow, lanes[arrow.target].x)
            yield self._line(arrow, "loop", points, badges.pop(arrow.target, None))

    def _line(
        self, arrow: Arrow, kind: g.LineKind, points: Iterable[g.Point], badge: g.Point | None = None
    ) -> g.EdgeLine:
        source, target = self._boxes[arrow.source].name, self._boxes[arrow.target].name
        return g.EdgeLine(source, target, kind, _corners(points), arrow.branch, badge)

    def _leave(self, arrow: Arrow) -> Iterator[g.Point]:
        """Yield the first points of a line: the lower border of its box, or the left side of START if that has a diamond."""
        box, port = self._boxes[arrow.source], self._leaves(arrow.source, arrow.branch)
        top = self._tops[self._rows.row_of[arrow.source]]
        if box.kind == "start" and port != self._x[arrow.source]:
            yield self._x[arrow.source] - box.w // 2, top + box.h // 2
            yield port, top + box.h // 2
        else:
            yield port, top + box.h

    def _way_down(self, arrow: Arrow) -> Iterator[g.Point]:
        yield from self._leave(arrow)
        way = self._rows.ways[arrow]
        last, branch = arrow.source, arrow.branch
        if way is not None:
            items = way.trunk.items
            yield from self._step(arrow.source, items[way.start], branch=arrow.branch)
            bends = self._bends[items[0]]
            for index in range(bisect_left(bends, (way.start,)), bisect_left(bends, (way.stop - 1,))):
                yield from bends[index][1]
            last, branch = items[way.stop - 1], False
        yield from self._step(last, arrow.target, branch=branch)
        yield self._enters(last, arrow.target, branch), self._tops[self._rows.row_of[arrow.target]]

    def _step(self, source: int, target: int, *, branch: bool = False) -> Iterator[g.Point]:
        """Yield the corners of a line in the gap below its source, if it has any."""
        y = self._track_y(self._rows.row_of[source], Pin(source), branch)
        if y is not None:
            yield self._leaves(source, branch), y
            yield self._enters(source, target, branch), y

    def _leaves(self, source: int, branch: bool) -> int:
        gap = self._gaps[self._rows.row_of[source]]
        return gap.leaves.get((Pin(source), branch), self._port(source, branch))

    def _enters(self, source: int, target: int, branch: bool) -> int:
        gap = self._gaps[self._rows.row_of[source]]
        return gap.enters.get(((Pin(source), branch), target), self._x[target])

    def _find_bends(self, trunk: Trunk) -> list[tuple[int, tuple[g.Point, ...]]]:
        """Return the corners of a trunk, each pair with the index of the waypoint above it."""
        return [
            (index, tuple(self._step(source, target)))
            for index, (source, target) in enumerate(pairwise(trunk.items))
            if self._x[source] != self._x[target]
        ]

    def _way_back(self, arrow: Arrow, lane_x: int) -> Iterator[g.Point]:
        y = self._track_y(self._rows.row_of[arrow.source], Pin(arrow.source), arrow.branch)
        assert y is not None, "a line to a lane is never straight"
        yield from self._leave(arrow)
        yield self._leaves(arrow.source, arrow.branch), y
        yield lane_x, y
        entry = self._entry_y(arrow.target)
        yield lane_x, entry
        if arrow.target in self._entered_above:
            row = self._rows.row_of[arrow.target]
            lane = (Pin(arrow.target, lane=True), False)
            port = self._gaps[row - 1].enters.get((lane, arrow.target), self._loop_port(arrow.target))
            yield port, entry
            yield port, self._tops[row]
        else:
            yield self._x[arrow.target] + self._boxes[arrow.target].w // 2, entry

    # --- loops ----------------------------------------------------------------------------------------

    def _entry_y(self, head: int) -> int:
        """Return the height at which a lane ends: beside the head, or in the gap above it."""
        row = self._rows.row_of[head]
        above = self._track_y(row - 1, Pin(head, lane=True), branch=False)
        return self._tops[row] + self._boxes[head].h // 2 if above is None else above

    def lanes(self) -> dict[int, Lane]:
        row_of = self._rows.row_of
        tails: dict[int, list[Arrow]] = {}
        for arrow in self._back:
            tails.setdefault(arrow.target, []).append(arrow)
        reaches = []
        for head, arrows in tails.items():
            ends = [
                self._track_y(row_of[arrow.source], Pin(arrow.source), arrow.branch) or 0 for arrow in arrows
            ]
            last = max(row_of[arrow.source] for arrow in arrows)
            reaches.append(Reach(head, row_of[head], last, self._entry_y(head), max(ends)))
        rights = [
            max(self._x[item] + (self._boxes[item].w // 2 if item < len(self._boxes) else 0) for item in row)
            for row in self._rows.rows
        ]
        return find_lanes(reaches, rights, [[self._x[item] for item in row] for row in self._rows.rows])


def _corners(points: Iterable[g.Point]) -> tuple[g.Point, ...]:
    """Return the points without those on a straight piece between two others."""
    kept: list[g.Point] = []
    for point in points:
        if kept and point == kept[-1]:
            continue
        if len(kept) > 1 and (
            kept[-2][0] == kept[-1][0] == point[0] or kept[-2][1] == kept[-1][1] == point[1]
        ):
            kept.pop()
        kept.append(point)
    return tuple(kept)
