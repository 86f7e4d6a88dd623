"""Find the lanes of loops: vertical lines at the right side of everything between the head of a loop and its tails, the shorter
loops inside the longer ones, each with room for a badge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.core.layout import geometry as g


class Reach(NamedTuple):
    """What a lane connects: the box at the head of a loop, and the rows and heights from its head to its lowest tail."""

    head: int
    first_row: int
    last_row: int
    top: int
    bottom: int


class Lane(NamedTuple):
    """The place of a lane, and the centre of its badge."""

    x: int
    badge: g.Point


def find_lanes(
    reaches: Iterable[Reach], rights: list[int], lines: Sequence[Sequence[int]]
) -> dict[int, Lane]:
    """Return the lane of each head. `rights` is the right end of each row, and is moved by the lanes; `lines` are the places at
    which vertical lines may enter each row, which no lane may cover.
    """
    lanes = {}
    badges: set[tuple[int, int]] = set()
    rights_of_boxes = list(rights)
    for reach in sorted(reaches, key=lambda reach: (reach.last_row - reach.first_row, reach.first_row)):
        rows = slice(reach.first_row, reach.last_row + 1)
        x = max(max(rights_of_boxes[rows]) + g.LANE_REACH, max(rights[rows]) + g.LANE_GAP)
        crossed = [line for row in _beside(reach, len(rights)) for line in lines[row]]
        while any(abs(line - x) < g.TRACK_GAP for line in crossed):
            x += g.LINE_GAP
        rights[rows] = [x] * (reach.last_row - reach.first_row + 1)
        lanes[reach.head] = Lane(x, (x, _badge_y(reach, x, badges)))
    return lanes


def _beside(reach: Reach, rows: int) -> list[int]:
    """Return the rows just above and just below a lane, whose lines share a gap with its ends."""
    return [row for row in (reach.first_row - 1, reach.last_row + 1) if 0 <= row < rows]


def _badge_y(reach: Reach, x: int, badges: set[tuple[int, int]]) -> int:
    """Return the place of a badge on its lane: in the middle, or as close to it as the badges beside it allow."""
    middle = (reach.top + reach.bottom) // 2
    step = g.BADGE_H + 4
    room = max(0, (reach.bottom - reach.top) // 2 - g.BADGE_H) // step
    shifts = [0, *(shift for number in range(1, room + 1) for shift in (-number * step, number * step))]
    place = next((middle + shift for shift in shifts if not _is_taken(x, middle + shift, badges)), middle)
    badges.add((x // g.BADGE_W, place // step))
    return place


def _is_taken(x: int, y: int, badges: set[tuple[int, int]]) -> bool:
    """Return whether a badge is too close. Badges are found by the cell of a grid that their centre is in."""
    column, line = x // g.BADGE_W, y // (g.BADGE_H + 4)
    return any((column + across, line + along) in badges for across in (-1, 0, 1) for along in (-1, 0, 1))
