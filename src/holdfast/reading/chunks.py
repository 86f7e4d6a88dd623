"""Chunks: the pieces of output that attempts stream. They are in the log (`NodeStreamed`), and before that in spills, which are
temporary buffers beside the log.

A chunk is identified by its stream (the attempt of a node or of an item) and its number in that stream. The log does not store
numbers: they follow from the order of the chunks. A spill holds the chunks of a stream since its last `NodeStreamed`, in lines:

    "once "                     a chunk, as JSON
    >["draft",1]                the next chunks are from the first try of step `draft`; `>` alone: from outside of steps
    ?{"title":"A tale"}         a value that an async generator has yielded last: its result, or a chunk
    !                           that value is a chunk

After a crash, it is not known whether the last value was a chunk or the result; then it counts as a chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import msgspec

from holdfast.core.events import Span
from holdfast.reading.views import EventView
from holdfast.storage.blobs import Piece
from holdfast.storage.contract import Store

Step: TypeAlias = tuple[str, int]
"""A step that streams: its name, as in `StepCompleted`, and the number of this call of the step in its attempt, counted from 1.
"""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_step = msgspec.json.Decoder(tuple[str, int]).decode
_decode_key = msgspec.json.Decoder(list[str | int | None]).decode
HELD = b"?"
RELEASED = b"!"
_STEP = b">"

COUNTED_BYTES = 100_000
"""Bytes of chunks from which a `NodeStreamed` always has spans, so that the chunks can be counted without being read."""


class Streamer(NamedTuple):
    """Identifies a stream: the attempt of a node, or of an item of a fan-out, that streams the chunks."""

    node: str
    iteration: int
    execution: int
    attempt: int
    item: int | None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the output that a running attempt streams, as followers get it."""

    run_id: str
    node: str
    iteration: int
    execution: int
    attempt: int
    item: int | None
    number: int
    """The number of the chunk in its attempt, counted from 1."""
    value: Any
    step: str | None = None
    """The name of the step that streamed the chunk, as in `StepCompleted`; None if the node streamed it outside of steps."""
    step_try: int | None = None
    """The number of the step's call, in this attempt, that streamed the chunk, counted from 1: a step that raised may be called
    again.
    """

    @property
    def streamer(self) -> Streamer:
        """The attempt that streamed the chunk."""
        return Streamer(self.node, self.iteration, self.execution, self.attempt, self.item)


def make_chunks(
    run_id: str, streamer: Streamer, first: int, values: Sequence[Any], steps: Iterable[Step | None]
) -> Iterator[Chunk]:
    """Yield the chunks of a part of a stream that begins with number `first`."""
    node, iteration, execution, attempt, item = streamer
    for number, (value, step) in enumerate(zip(values, steps, strict=True), first):
        name, call = step or (None, None)
        yield Chunk(
            run_id=run_id, node=node, iteration=iteration, execution=execution, attempt=attempt, item=item,
            number=number, value=value, step=name, step_try=call,
        )  # fmt: skip


# --- in the log --------------------------------------------------------------------------------------------


def make_spans(steps: Sequence[Step | None], size: int) -> list[Span]:
    """Return the spans of a `NodeStreamed` event: for each series of chunks from one step, the step and the number of chunks. An
    empty list if no step streamed any of them and they are small; `size` is that of all chunks in bytes.
    """
    if size < COUNTED_BYTES and not any(steps):
        return []
    spans = [(step or ("", 1), len(list(same))) for step, same in groupby(steps)]
    return [Span(chunks=chunks, step=name, step_try=call) for (name, call), chunks in spans]


def recorded_chunks(run_id: str, event: EventView, first: int) -> Iterator[Chunk]:
    """Yield the chunks of a `NodeStreamed` event; `first` is the number of its first chunk."""
    values = event.body.get("chunks", [])
    spans = msgspec.convert(event.body.get("spans", []), list[Span])
    steps: list[Step | None] = []
    for span in spans or [Span(chunks=len(values))]:
        steps += [(span.step, span.step_try) if span.step else None] * span.chunks
    return make_chunks(run_id, streamer_of(event), first, values, steps)


def streamer_of(event: EventView) -> Streamer:
    """Return the attempt that an event is about."""
    return Streamer(event.node or "", event.iteration, event.execution, event.attempt, event.body.get("item"))


# --- in a spill --------------------------------------------------------------------------------------------


def spill_key(streamer: Streamer, first: int) -> str:
    """Return the key of the spill that has the chunks of a stream from number `first` on."""
    return _encode([*streamer, first] if first > 1 else streamer).decode()


def read_key(key: str) -> tuple[Streamer, int]:
    """Return, from the key of a spill, the stream whose chunks the spill has, and the number of its first chunk."""
    parts: list[Any] = _decode_key(key)
    return Streamer(*parts[:5]), parts[5] if len(parts) > 5 else 1


def step_line(step: Step | None) -> bytes:
    """Return the line of a spill that names the step which streams the next chunks."""
    return _STEP + _encode(step) if step else _STEP


class Spill(msgspec.Struct):
    """The content of a spill: the values of its chunks, and for each chunk the step that streamed it."""

    values: list[Any] = msgspec.field(default_factory=list)
    steps: list[Step | None] = msgspec.field(default_factory=list)
    held: list[Any] = msgspec.field(default_factory=list)
    """`[value]` if it is not known whether the last value is a chunk or the result of the node; otherwise empty."""
    step: Step | None = None
    """The step that streams the next chunks."""
    size: int = 0
    """The size of the values, in bytes."""

    def add(self, data: bytes) -> None:
        """Read more lines of the spill."""
        for line in data.splitlines():
            match line[:1]:
                case b">":
                    self.step = _decode_step(line[1:]) if line[1:] else None
                case b"?":
                    self.held = [_decode(line[1:])]
                case b"!":
                    self.release()
                case _:
                    self.values.append(_decode(line))
                    self.size += len(line)
                    self.steps.append(self.step)

    def release(self) -> None:
        """Add the held value to the chunks."""
        self.values += self.held
        self.steps += [None] * len(self.held)
        self.held = []


def read_spill(data: bytes) -> Spill:
    """Read the lines of a spill."""
    found = Spill()
    found.add(data)
    return found


def read_spills(spilled: Mapping[str, bytes]) -> list[tuple[str, Streamer, int, Spill]]:
    """Return key, stream, number of the first chunk, and content of every spill of a run (`Blobs.spilled`). The spills of one
    stream are in the order of its chunks.
    """
    found = [(key, *read_key(key), read_spill(data)) for key, data in spilled.items()]
    return sorted(found, key=lambda spill: spill[2])


class GrowingSpills:
    """The spills of a run that another process executes, read from where the last look ended."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._spills: dict[str, tuple[Streamer, int, Spill]] = {}
        self.marks: dict[str, int] = {}
        """Key of a spill -> up to where it was read (`Blobs.spilled_after`)."""

    def add(self, pieces: Mapping[str, Piece]) -> list[Chunk]:
        """Take what a look has found, and return the chunks that are new. Spills that are gone are forgotten: their chunks are in
        the log.
        """
        self.marks = {key: piece.mark for key, piece in pieces.items()}
        self._spills = {key: spill for key, spill in self._spills.items() if key in pieces}
        found: list[tuple[int, list[Chunk]]] = []
        for key, piece in pieces.items():
            if piece.anew or key not in self._spills:
                self._spills[key] = (*read_key(key), Spill())
            _, first, spill = self._spills[key]
            known = len(spill.values)
            spill.add(piece.data)
            found.append((first, self._chunks(key, known)))
        return [chunk for _, chunks in sorted(found, key=lambda part: part[0]) for chunk in chunks]

    def chunks(self) -> list[Chunk]:
        """Return all chunks that the spills contain now, without a last value that may be the result of its node."""
        keys = sorted(self._spills, key=lambda key: self._spills[key][1])
        return [chunk for key in keys for chunk in self._chunks(key, 0)]

    def _chunks(self, key: str, begin: int) -> list[Chunk]:
        streamer, first, spill = self._spills[key]
        values, steps = spill.values[begin:], spill.steps[begin:]
        return list(make_chunks(self._run_id, streamer, first + begin, values, steps))


def spilled_chunks(store: Store, run_id: str) -> Iterator[Chunk]:
    """Yield the chunks in the spills of a run, from attempts that are running or crashed, without a last value that may be the
    result of its node.
    """
    for _, streamer, first, spill in read_spills(store.blobs.spilled(run_id)):
        yield from make_chunks(run_id, streamer, first, spill.values, spill.steps)
