"""Lead the lines through the gap between two rows: down from a box, along a horizontal track, and down to the next box.

- Items that lead to the same items of the next row share one track: their lines meet, and nothing is lost by it. Other lines
  never share a piece of a track, so that no line seems to lead where it does not.
- Where one line comes down at the place at which another continues down, the first one gets the higher track. If such lines
  form a circle, one of them leaves or enters its box beside the middle. Two lines that pass the row cannot do that: only those
  may overlap for a few pixels.
- A line that closes a loop takes a track to the right end of the gap, where its lane begins, or comes from there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from holdfast.core.layout import geometry as g

_FAR = 1 << 40  # the right end of a gap, where lanes begin
_NEAR = 8  # two vertical lines that are closer than this seem to be one
_ASIDE = 10


class Pin(NamedTuple):
    """An end of a line at the border of a gap: an item (`lane` is False) or the lane of the loops to a box."""

    item: int
    lane: bool = False


Key = tuple[Pin, bool]
"""What enters a gap: at an item, and whether it is the branch of this item."""


class Departure(NamedTuple):
    """What enters a gap at one place from above, and where it leads to. A line that comes from a lane enters at the lane."""

    source: Pin
    x: int
    targets: tuple[tuple[Pin, int], ...]
    """The ends of its lines with their places; that of a lane is not yet known and counts as far right."""
    branch: bool = False


class Gap(NamedTuple):
    """A gap with its tracks. `tracks` has the track of every departure that needs one; all others are straight lines."""

    tracks: dict[Key, int]
    track_count: int
    diamonds: bool
    leaves: dict[Key, int]
    """Where a departure leaves its box, if that is not its usual place."""
    enters: dict[tuple[Key, int], int]
    """Where the lines of a departure enter a box, if that is not its middle."""

    def height(self, lead: int) -> int:
        if self.diamonds:
            below = g.BELOW_DIAMOND if self.track_count <= 1 else g.LEAD
            return lead + max(self.track_count - 1, 0) * g.TRACK_GAP + below
        return (
            lead + (self.track_count - 1) * g.TRACK_GAP + g.LEAD
            if self.track_count
            else lead + g.ROW_GAP - g.LEAD
        )


class _Net:
    """Departures that lead to the same items, and therefore share a track."""

    __slots__ = ("branch", "high", "keys", "low", "sources", "targets")

    def __init__(self, targets: tuple[tuple[Pin, int], ...], branch: bool) -> None:
        self.keys: list[Key] = []
        self.sources: list[int] = []
        self.targets = [(pin, _FAR if pin.lane else x) for pin, x in targets]
        self.branch = branch
        places = [x for _, x in self.targets]
        self.low, self.high = min(places), max(places)

    def add(self, departure: Departure) -> None:
        x = _FAR if departure.source.lane else departure.x
        self.keys.append((departure.source, departure.branch))
        self.sources.append(x)
        self.low, self.high = min(self.low, x), max(self.high, x)

    def aside(self, x: int) -> int:
        """Return a place beside this one, on the side to which the track leads."""
        return x - _ASIDE if x - self.low > self.high - x else x + _ASIDE


def route(departures: Iterable[Departure], boxes: int) -> Gap:
    """Give every departure in a gap its track, counted from the top. The first `boxes` items are boxes,
    all others are waypoints.
    """
    nets: dict[tuple[object, ...], _Net] = {}
    for departure in departures:
        key = (departure.branch, frozenset(departure.targets))
        if key not in nets:
            nets[key] = _Net(departure.targets, departure.branch)
        nets[key].add(departure)
    bent = [net for net in nets.values() if net.low != net.high]
    diamonds = sorted(x for net in nets.values() if net.branch for x in net.sources)
    tracks = _Tracks(diamonds)
    meetings = _meetings(bent)
    found = _assign(bent, meetings, tracks)
    gap = Gap({}, len(tracks.taken) if bent else 0, bool(diamonds), {}, {})
    for net, track in zip(bent, found, strict=True):
        gap.tracks.update(dict.fromkeys(net.keys, track))
    for meeting in meetings:
        if found[meeting.above] >= found[meeting.below]:
            _part(bent[meeting.above], bent[meeting.below], meeting, gap, boxes)
    return gap


class _Meeting(NamedTuple):
    """A place at which a source of one net is above a target of another: the one that comes down should have the higher track."""

    above: int
    source: int
    below: int
    target: int


def _meetings(nets: Sequence[_Net]) -> list[_Meeting]:
    entering = sorted(
        (x, number, index) for number, net in enumerate(nets) for index, x in enumerate(net.sources)
    )
    leaving = sorted(
        (x, number, index) for number, net in enumerate(nets) for index, (_, x) in enumerate(net.targets)
    )
    found = []
    start = 0
    for x, below, target in leaving:
        while start < len(entering) and entering[start][0] <= x - _NEAR:
            start += 1
        for place, above, source in entering[start : start + 2]:  # no three items of a row are that close
            if place < x + _NEAR and above != below and x != _FAR:
                found.append(_Meeting(above, source, below, target))
    return found


def _part(above: _Net, below: _Net, meeting: _Meeting, gap: Gap, boxes: int) -> None:
    """Let one of two lines leave or enter its box beside the middle, so that they do not overlap."""
    pin, x = below.targets[meeting.target]
    key = above.keys[meeting.source]
    if 0 < pin.item < boxes - 1:  # START and END are too small
        gap.enters.update({(other, pin.item): below.aside(x) for other in below.keys})
    elif 0 < key[0].item < boxes and not key[0].lane and not above.branch:
        gap.leaves[key] = above.aside(above.sources[meeting.source])


def _assign(nets: Sequence[_Net], meetings: Sequence[_Meeting], tracks: _Tracks) -> list[int]:
    """Return the track of each net: branches first, because their diamonds are on the first track, then from left to right."""
    below: list[list[int]] = [[] for _ in nets]
    for meeting in meetings:
        below[meeting.above].append(meeting.below)
    waiting = [0] * len(nets)
    for others in below:
        for other in others:
            waiting[other] += 1
    lowest, found = [0] * len(nets), [-1] * len(nets)
    order = sorted(range(len(nets)), key=lambda number: (not nets[number].branch, nets[number].low, number))
    rank = {number: place for place, number in enumerate(order)}
    ready = [rank[number] for number in order if not waiting[number]]
    heapify(ready)
    left = iter(order)
    for _ in nets:
        # If none is ready, they wait for each other in a circle, which is broken at the first of them.
        number = order[heappop(ready)] if ready else next(other for other in left if found[other] < 0)
        if found[number] >= 0:
            continue
        found[number] = tracks.take(nets[number], lowest[number])
        for other in below[number]:
            lowest[other] = max(lowest[other], found[number] + 1)
            waiting[other] -= 1
            if not waiting[other] and found[other] < 0:
                heappush(ready, rank[other])
    return found


class _Tracks:
    """The tracks of a gap, from top to bottom: which parts of them are taken."""

    def __init__(self, diamonds: list[int]) -> None:
        self.taken: list[list[tuple[int, int]]] = []
        self._diamonds = diamonds

    def take(self, net: _Net, lowest: int) -> int:
        """Return the first track from `lowest` on that has room for the net, and take it."""
        low, high = net.low - _NEAR, net.high + _NEAR
        track = lowest
        if not track and self._meets_a_diamond(net):
            track = 1
        while track < len(self.taken) and self._overlaps(self.taken[track], low, high):
            track += 1
        while track >= len(self.taken):
            self.taken.append([])
        taken = self.taken[track]
        taken.insert(bisect_left(taken, (net.low, net.high)), (net.low, net.high))
        return track

    def _meets_a_diamond(self, net: _Net) -> bool:
        own = net.sources if net.branch else ()
        start = bisect_left(self._diamonds, net.low - g.DIAMOND)
        for x in self._diamonds[start:]:
            if x > net.high + g.DIAMOND:
                return False
            if x not in own:
                return True
        return False

    @staticmethod
    def _overlaps(taken: list[tuple[int, int]], low: int, high: int) -> bool:
        index = bisect_left(taken, (low, low))
        if index and taken[index - 1][1] >= low:
            return True
        return index < len(taken) and taken[index][0] <= high
