"""In which order a follower of a run gets events and chunks, and the cursor with which it continues.

A chunk is given after the start of its attempt, as soon as that start is durable, and before the attempt's end. If the start
takes long to become durable (`durability="exit"`), the chunk does not wait for it.

A chunk is identified by its attempt and its number. The chunks of an attempt are given in the order of their numbers, without a
gap: a chunk that arrives before an earlier one, which is still on its way into the log, waits for it. A number is skipped only if
the log shows that its chunk is lost, because the process that had streamed it died.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable

import msgspec

from holdfast.core.kinds import ENDS_STREAM
from holdfast.errors import SettingError
from holdfast.reading.chunks import Chunk, Streamer, recorded_chunks, streamer_of
from holdfast.reading.views import EventView

PATIENCE_S = 0.2
"""How many seconds a chunk waits for the start of its attempt to become durable."""
_DIGITS_MAX = 18
"""The number of an event has at most this many digits: the stores count in 64 bits."""
START = "NodeStarted"
STREAMED = "NodeStreamed"


class Cursor(msgspec.Struct):
    """Where a follower continues: after this event and, in each stream that the log does not have by then, after this chunk."""

    seq: int = 0
    chunks: dict[Streamer, int] = {}

    @classmethod
    def parse(cls, after: int | str) -> Cursor:
        """Read the number of an event, or the text of a cursor. Raises `SettingError`."""
        seq, _, rest = str(after).partition(".")
        try:
            packed = urlsafe_b64decode(rest + "=" * (-len(rest) % 4)) if rest else b"[]"
            pairs = msgspec.json.decode(packed, type=list[tuple[Streamer, int]])
            if not (seq.isascii() and seq.isdigit() and len(seq) <= _DIGITS_MAX):
                raise ValueError(seq)
        except (ValueError, msgspec.MsgspecError):
            raise SettingError(
                f"after={after!r} is not a place in a log: give the number of an event, or the cursor of an earlier follow"
            ) from None
        return cls(int(seq), dict(pairs))

    def __str__(self) -> str:
        if not self.chunks:
            return str(self.seq)
        packed = msgspec.json.encode(sorted(self.chunks.items(), key=repr))
        return f"{self.seq}.{urlsafe_b64encode(packed).decode().rstrip('=')}"

    def move(self, news: EventView | Chunk, recorded: dict[Streamer, int]) -> None:
        """Move past an event or a chunk. `recorded` says how many chunks of each stream the events so far contain."""
        if isinstance(news, Chunk):
            self.chunks[news.streamer] = news.number
            return
        self.seq = news.seq
        if self.chunks and news.kind == STREAMED:
            streamer = streamer_of(news)
            if self.chunks.get(streamer, 0) <= recorded[streamer]:
                self.chunks.pop(streamer, None)
        elif self.chunks and news.kind == START:
            self.chunks = {at: number for at, number in self.chunks.items() if not _is_past(at, news)}


def _is_past(streamer: Streamer, start: EventView) -> bool:
    """Return whether an attempt is over because a later attempt of its visit, or a later visit, has started."""
    if streamer.node != start.node:
        return False
    started = (start.iteration, start.execution, start.attempt)
    return streamer[1:4] < started if streamer.item is None else streamer[1:3] < started[:2]


class InOrder:
    """The order of events and chunks for one follower of a run: the chunks that it has got, and those that wait."""

    def __init__(self, run_id: str, cursor: Cursor) -> None:
        self.run_id = run_id
        self.cursor = cursor
        self.seen: dict[Streamer, int] = dict(cursor.chunks)
        """Stream -> the number of its latest chunk that is pending or was yielded."""
        self.recorded: dict[Streamer, int] = {}
        """Stream -> how many of its chunks are in the events so far, including events before the place where this follower
        began.
        """
        self.early: dict[Streamer, dict[int, Chunk]] = {}
        """Chunks that have arrived before an earlier chunk of their stream."""
        self.pending: list[Chunk] = []
        """Chunks that have arrived and have not been yielded."""
        self.begun: set[tuple[str | None, int, int, int]] = set()
        """Node, iteration, execution and attempt of each attempt whose start was yielded; attempt 0 stands for all attempts of
        items.
        """
        self.patient_until: float | None = None
        """The time from which pending chunks are yielded even if the start of their attempt is not durable; None if none is
        pending.
        """

    def recall(self, event: EventView) -> None:
        """Note a start or a stream that is before the place where this follower began."""
        if event.kind == START:
            self._begin(event)
        else:
            streamer = streamer_of(event)
            count = self.recorded.get(streamer, 0) + len(event.body.get("chunks", []))
            self.recorded[streamer] = count
            self.seen[streamer] = max(self.seen.get(streamer, 0), count)

    def can_number(self, event: EventView) -> bool:
        """Return whether the numbers of the chunks in this event are known, if it has any: the start of its attempt was seen."""
        return event.kind != STREAMED or _attempt(streamer_of(event)) in self.begun

    def take(self, chunks: Iterable[Chunk]) -> None:
        """Add the chunks that have not been seen to those that are pending."""
        for chunk in chunks:
            streamer = chunk.streamer
            if chunk.number > self.seen.get(streamer, 0):
                self.early.setdefault(streamer, {})[chunk.number] = chunk
                self._settle(streamer)

    def _settle(self, streamer: Streamer) -> None:
        """Make early chunks of a stream pending if no chunk before them is missing any more."""
        early, number = self.early.get(streamer, {}), self.seen.get(streamer, 0)
        while (chunk := early.pop(number + 1, None)) is not None:
            number += 1
            self.pending.append(chunk)
        self.seen[streamer] = number
        if not early:
            self.early.pop(streamer, None)

    def _take_recorded(self, event: EventView) -> None:
        """Add the chunks of a `NodeStreamed` that have not been seen."""
        streamer = streamer_of(event)
        first = self.recorded.get(streamer, 0) + 1
        for chunk in recorded_chunks(self.run_id, event, first):
            self.recorded[streamer] = chunk.number
            if chunk.number > self.seen.get(streamer, 0):
                self.seen[streamer] = chunk.number
                self.early.get(streamer, {}).pop(chunk.number, None)
                self.pending.append(chunk)
        self._settle(streamer)

    def before(self, event: EventView) -> list[Chunk]:
        """Return the pending chunks to yield before this event. For a `NodeStreamed`, these include chunks that a poll has
        missed.
        """
        if event.kind == STREAMED:
            self._take_recorded(event)
        elif event.kind == START:
            self._begin(event)
        if not self.pending or event.kind not in ENDS_STREAM:
            return []
        return self._out(lambda chunk: _is_before(chunk, event))

    def _begin(self, start: EventView) -> None:
        self.begun.update((start.node, start.iteration, start.execution, at) for at in (0, start.attempt))

    def rest(self, now: float, *, over: bool) -> list[Chunk]:
        """Return the pending chunks of attempts whose start was yielded; all pending chunks if the run is over or the wait for
        the start was too long.
        """
        if over:
            self.pending += [early[number] for early in self.early.values() for number in sorted(early)]
            self.early = {}
        all_are_due = over or (self.patient_until is not None and now >= self.patient_until)
        due = self._out(lambda chunk: all_are_due or _attempt(chunk) in self.begun)
        if not self.pending:
            self.patient_until = None
        elif self.patient_until is None:
            self.patient_until = now + PATIENCE_S
        return due

    def _out(self, is_due: Callable[[Chunk], bool]) -> list[Chunk]:
        due = [chunk for chunk in self.pending if is_due(chunk)]
        self.pending = [chunk for chunk in self.pending if not is_due(chunk)] if due else self.pending
        return due

    def give(self, news: EventView | Chunk) -> EventView | Chunk:
        """Move the cursor past this event or chunk, which is yielded now, and return it."""
        self.cursor.move(news, self.recorded)
        return news


def _attempt(stream: Chunk | Streamer) -> tuple[str, int, int, int]:
    return stream.node, stream.iteration, stream.execution, stream.attempt if stream.item is None else 0


def _is_before(chunk: Chunk, event: EventView) -> bool:
    if (chunk.node, chunk.iteration, chunk.execution) != (event.node, event.iteration, event.execution):
        return False
    item = event.body.get("item")
    if chunk.item is None or item is not None:
        return chunk.item == item and chunk.attempt <= event.attempt
    # The event is about the node itself: its items may continue after these kinds.
    return event.kind not in ("StepCompleted", "StepStarted", "StepFailed", "NodeCheckpointed")
