"""The last lines that the nodes of a run stream, in bounded memory: for a person who watches, not for a program that needs all.

Chunks are read from the spills of the process that executes the run, each from where the last look ended, and from the log once
they are there. Of each stream only its end is kept, and only the latest few streams are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.reading import history, words
from holdfast.reading.chunks import Spill, Streamer, read_key, streamer_of
from holdfast.reading.following import STREAMED
from holdfast.reading.views import EventView, event_view
from holdfast.storage.contract import Store

TEXT_MAX = 8000
"""How many characters of a stream are kept."""
TAILS_MAX = 16
"""Of how many streams the end is kept."""
_PAGE = 20
"""How many events with chunks are read at a time."""


class StreamingVisit(NamedTuple):
    """Identifies a visit of a node."""

    node: str
    iteration: int
    execution: int


class StreamTail(msgspec.Struct):
    """The end of one stream."""

    streamer: Streamer
    chunks: int = 0
    """The number of the last chunk that was added."""
    recorded: int = 0
    """How many chunks of the stream are in the log."""
    text: str = ""

    def add(self, first: int, values: Sequence[Any]) -> bool:
        """Add chunks, of which the first one has the number `first`, without those that were added before. Returns whether there
        were others.
        """
        new = values[max(0, self.chunks + 1 - first) :]
        if new:
            self.text = (self.text + "".join(_as_text(new)))[-TEXT_MAX:]
            self.chunks = first + len(values) - 1
        return bool(new)

    def lines(self, most: int) -> list[str]:
        """Return the last lines, without empty ones."""
        return [line for line in self.text.splitlines() if line.strip()][-most:]


def _as_text(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        yield value[-TEXT_MAX:] if isinstance(value, str) else f"\n{words.value(value)}\n"


class StreamTails:
    """The ends of the latest streams of a run."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._tails: dict[Streamer, StreamTail] = {}
        """The stream that has grown last is the last one."""
        self._marks: dict[str, int] = {}
        self._spills: dict[str, tuple[Spill, int]] = {}
        """Key of a spill -> what the next line of it depends on, and how many of its chunks were read."""

    @property
    def latest(self) -> list[StreamTail]:
        """The streams, of which the last one has grown last."""
        return list(self._tails.values())

    def recall(self, visits: Iterable[StreamingVisit], upto: int) -> None:
        """Read what these visits have streamed from the log."""
        for visit in visits:
            after = 0
            while rows := self._store.events(
                self._run_id, after, upto, kinds=(STREAMED,), node=visit.node, limit=_PAGE
            ):
                after = rows[-1].seq
                mine = [row for row in rows if (row.iteration, row.execution) == visit[1:]]
                for stored in history.opened(self._store, self._run_id, mine):
                    self.record(event_view(stored))

    def record(self, event: EventView) -> None:
        """Take the chunks of a `NodeStreamed`."""
        values = event.body.get("chunks", [])
        tail = self._tail(streamer_of(event))
        self._grow(tail, tail.recorded + 1, values)
        tail.recorded += len(values)

    def look(self) -> bool:
        """Read what was spilled since the last look. Returns whether a stream has grown."""
        pieces = self._store.blobs.spilled_after({self._run_id: self._marks}).get(self._run_id, {})
        self._marks = {key: piece.mark for key, piece in pieces.items()}
        self._spills = {key: known for key, known in self._spills.items() if key in pieces}
        has_grown = False
        for (streamer, first), key in sorted((read_key(key), key) for key in pieces):
            piece = pieces[key]
            fresh = (Spill(), 0)
            spill, count = fresh if piece.anew else self._spills.get(key, fresh)
            spill.add(piece.data)
            if spill.values:
                has_grown |= self._grow(self._tail(streamer), first + count, spill.values)
            self._spills[key] = (spill, count + len(spill.values))
            spill.values, spill.steps = [], []
        return has_grown

    def keep(self, visits: set[StreamingVisit]) -> None:
        """Forget the streams of other visits: they are over."""
        self._tails = {
            streamer: tail
            for streamer, tail in self._tails.items()
            if StreamingVisit(*streamer[:3]) in visits
        }

    def _tail(self, streamer: Streamer) -> StreamTail:
        return self._tails.setdefault(streamer, StreamTail(streamer))

    def _grow(self, tail: StreamTail, first: int, values: Sequence[Any]) -> bool:
        has_grown = tail.add(first, values)
        if has_grown:
            self._tails[tail.streamer] = self._tails.pop(tail.streamer)
        while len(self._tails) > TAILS_MAX:
            del self._tails[next(iter(self._tails))]
        return has_grown
