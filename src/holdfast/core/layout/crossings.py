"""Order the items of each row so that few lines cross: sweeps down and up, in which every item moves to the median of its
neighbours in the row before. The best order of all sweeps is kept, so no sweep can make a picture worse.
"""

from __future__ import annotations

from bisect import bisect_right

from holdfast.core.layout.layers import Rows

_SWEEPS_MAX = 8
_WORK_MAX = 40_000  # items times sweeps: very large pictures get fewer sweeps
_EXCHANGE_MAX = 400  # items: only smaller pictures are improved by exchanging neighbours
_EXCHANGES = 2  # more of them find little more


def reduce_crossings(picture: Rows) -> None:
    """Put the items of every row into the best order that was found."""
    rows, upper, lower = picture.rows, picture.upper, picture.lower
    place = [0] * len(picture.row_of)
    for row in rows:
        _number(row, place)
    best, fewest = [list(row) for row in rows], count_crossings(picture)
    for sweep in range(max(2, min(_SWEEPS_MAX, _WORK_MAX // len(place)))):
        if not fewest:
            break
        down = sweep % 2 == 0
        order = range(1, len(rows)) if down else range(len(rows) - 2, -1, -1)
        for number in order:
            _sort(rows[number], picture.fixed[number], upper if down else lower, place)
        if len(place) <= _EXCHANGE_MAX:
            _exchange(picture, place)
        count = count_crossings(picture)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    for row, found in zip(rows, best, strict=True):
        row[:] = found


def count_crossings(picture: Rows) -> int:
    """Count the pairs of hops that cross. Two hops between the same rows cross if their ends are in opposite order."""
    count = 0
    place = [0] * len(picture.row_of)
    for row in picture.rows:
        _number(row, place)
    for row in picture.rows:
        seen: list[int] = []
        for item in row:
            for target in sorted([place[target] for target in picture.lower[item]]):
                index = bisect_right(seen, target)
                count += len(seen) - index
                seen.insert(index, target)
    return count


def _number(row: list[int], place: list[int]) -> None:
    for number, item in enumerate(row):
        place[item] = number


def _sort(row: list[int], fixed: int, neighbours: list[list[int]], place: list[int]) -> None:
    """Sort a row by the medians of its neighbours, except for the first items, which are fixed. An item without neighbours keeps
    its place as well as it can.
    """
    if len(row) - fixed < 2:
        return
    key = {}
    for item in row[fixed:]:
        near = neighbours[item]
        if not near:
            key[item] = float(place[item])
        elif len(near) == 1:
            key[item] = float(place[near[0]])
        else:
            key[item] = _median(sorted([place[other] for other in near]))
    row[fixed:] = sorted(row[fixed:], key=key.__getitem__)
    _number(row, place)


def _median(places: list[int]) -> float:
    """Return the median. Of an even number of places, it is nearer to the side on which the places are closer together."""
    middle = len(places) // 2
    if len(places) % 2:
        return float(places[middle])
    if len(places) == 2:
        return (places[0] + places[1]) / 2
    left, right = places[middle - 1] - places[0], places[-1] - places[middle]
    if not left + right:
        return (places[middle - 1] + places[middle]) / 2
    return (places[middle - 1] * right + places[middle] * left) / (left + right)


def _exchange(picture: Rows, place: list[int]) -> None:
    """Exchange items that are side by side where that removes crossings."""
    for _ in range(_EXCHANGES):
        improved = False
        for row, fixed in zip(picture.rows, picture.fixed, strict=True):
            for left in range(fixed, len(row) - 1):
                one, other = row[left], row[left + 1]
                gain = sum(
                    _inverted(near[one], near[other], place) - _inverted(near[other], near[one], place)
                    for near in (picture.upper, picture.lower)
                )
                if gain > 0:
                    row[left], row[left + 1] = other, one
                    place[one], place[other] = left + 1, left
                    improved = True
        if not improved:
            return


def _inverted(left: list[int], right: list[int], place: list[int]) -> int:
    """Count the crossings of the hops of two items side by side, given their neighbours in another row."""
    return sum(place[one] > place[other] for one in left for other in right)
