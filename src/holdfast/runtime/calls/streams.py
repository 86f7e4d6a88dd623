"""The chunks that a running attempt streams. They go to followers at once, soon after to a spill (a buffer beside the log), and
to the log when the step that streamed them is kept, or when the attempt ends.

The engine spills chunks next to the log every second or 64 KB, so that they outlive their process. When the log holds them (one
`NodeStreamed` for each segment of a stream), the spill of that segment is deleted. A process that claims a run whose holder died
finds the spills and records them (`resume.recover_streams`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from holdfast.core.codec import Codec
from holdfast.core.events import NodeStreamed
from holdfast.errors import CodecError, ContextError, StoreError
from holdfast.reading.chunks import (
    HELD,
    RELEASED,
    Chunk,
    Step,
    Streamer,
    make_chunks,
    make_spans,
    spill_key,
    step_line,
)
from holdfast.runtime.clock import Timer
from holdfast.runtime.services import Services

SPILL_BYTES = 64 * 1024
SPILL_S = 1.0
CHUNK_BYTES_MAX = 1_000_000
_ANY: Codec[Any] = Codec.of(Any)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def encode_chunk(value: Any, node: str) -> bytes:
    """Encode a chunk as JSON. Raises `CodecError` for a value that JSON cannot hold, `ContextError` for one that is too large."""
    if isinstance(value, (str, bytes)) and len(value) > CHUNK_BYTES_MAX:
        size = len(value)
    else:
        line = _encode(_ANY.encode(value, path="chunk", node=node))
        size = len(line)
        if size <= CHUNK_BYTES_MAX:
            return line
    raise ContextError(
        f"node {node!r} emits a chunk of {size:,} bytes, but a chunk may have at most {CHUNK_BYTES_MAX:,}. Emit smaller "
        "chunks, or write the output as an artifact (ctx.artifacts)."
    )


class Segment:
    """The chunks of an attempt that become one `NodeStreamed`, and the spill that holds them until then."""

    def __init__(self, services: Services, run_id: str, streamer: Streamer, first: int) -> None:
        self.chunks: list[Any] = []
        self.steps: list[Step | None] = []
        """For each chunk, the step that streamed it, or None."""
        self.has_steps = False
        self.spilled = False
        self._services = services
        self._run_id = run_id
        self._streamer = streamer
        self._first = first
        self._size = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._step: Step | None = None
        """The step that streamed the latest line, or None."""
        self._timer: Timer | None = None
        self._spilling = False
        self._drop_due = False

    def as_chunks(self) -> list[Chunk]:
        """Return the chunks of the segment, as followers see them."""
        return list(make_chunks(self._run_id, self._streamer, self._first, self.chunks, self.steps))

    def as_event(self) -> NodeStreamed:
        """Return the event with which the segment is recorded."""
        return NodeStreamed(
            **self._streamer._asdict(), chunks=self.chunks, spans=make_spans(self.steps, self._size)
        )

    def add(self, line: bytes, step: Step | None) -> None:
        """Add a chunk, and write it to the spill (the buffer beside the log) soon."""
        self.chunks.append(_decode(line))
        self._size += len(line)
        self.steps.append(step)
        self.has_steps = self.has_steps or step is not None
        if step != self._step:
            self._step = step
            self._pend(step_line(step))
        self._pend(line)
        if self._pending_bytes >= SPILL_BYTES:
            self.spill()
        else:
            self._spill_later()

    def hold(self, line: bytes) -> None:
        """Write a value, which may be a chunk or the result of the node, to the spill soon."""
        self._pend(HELD + line)
        self._spill_later()

    def release(self, line: bytes) -> None:
        """Add the value that was held, as a chunk from outside of steps."""
        if self._pending and self._pending[-1] == HELD + line:
            self._pending.pop()
            self._pending_bytes -= len(HELD + line)
            self.add(line, None)
            return
        self.chunks.append(_decode(line))
        self._size += len(line)
        self.steps.append(None)
        self._pend(RELEASED)
        self._spill_later()

    def _pend(self, line: bytes) -> None:
        self._pending.append(line)
        self._pending_bytes += len(line)

    def _spill_later(self) -> None:
        if self._timer is None:
            clock = self._services.clock
            self._timer = clock.call_at(clock.now() + SPILL_S, self.spill)

    def spill(self) -> None:
        """Write the pending lines to the spill: one write at a time, off the event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._pending or self._spilling:
            return
        data = b"\n".join(self._pending) + b"\n"
        self._pending, self._pending_bytes = [], 0
        self._spilling = self.spilled = True
        blobs, run_id, key = self._services.store.blobs, self._run_id, spill_key(self._streamer, self._first)
        self._services.aside(lambda: blobs.spill(run_id, key, data), self._spill_over)

    def _spill_over(self, error: BaseException | None) -> None:
        self._spilling = False
        if error is not None and not isinstance(error, StoreError):
            raise error  # but ignore a StoreError: a full disk loses partial output only, and fails the next append to the log
        if self._drop_due:
            self.drop()
        elif self._pending_bytes >= SPILL_BYTES:
            self.spill()
        elif self._pending:
            self._spill_later()

    def close(self) -> None:
        """Write nothing more to the spill: the chunks are recorded, and are saved with the log."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pending, self._pending_bytes = [], 0

    def drop(self) -> None:
        """Delete the spill, because the log has its chunks: now, or when the write to the spill that is under way has ended."""
        self._drop_due = self._spilling
        if self.spilled and not self._spilling:
            blobs, run_id = self._services.store.blobs, self._run_id
            key = spill_key(self._streamer, self._first)
            self._services.aside(lambda: blobs.unspill(run_id, [key]), lambda error: None)


def drop_saved(recorded: list[tuple[int, Segment]], saved_seq: int) -> list[tuple[int, Segment]]:
    """Delete the spills of the segments that are in the log up to this event, and return the others. Each segment is given with
    the seq of its event.
    """
    left = []
    for seq, segment in recorded:
        if seq <= saved_seq:
            segment.drop()
        else:
            left.append((seq, segment))
    return left


class Stream:
    """The chunks that one attempt streams. It is used only on the event loop. `count` is the number of the latest chunk."""

    def __init__(self, services: Services, run_id: str, streamer: Streamer, count: int) -> None:
        """`count` is the number of chunks that the attempt had streamed before it was unwound and woken."""
        self.streamer = streamer
        self.count = count
        self._services = services
        self._run_id = run_id
        self._held: tuple[Any, bytes | None] | None = None
        self.segment = self._begin_segment()

    def _begin_segment(self) -> Segment:
        return Segment(self._services, self._run_id, self.streamer, self.count + 1)

    def add(self, line: bytes, value: Any, step: Step | None) -> None:
        """Give a chunk to the followers, and write it to the spill soon."""
        self.segment.add(line, step)
        self._notify(value, step)

    def hold(self, value: Any) -> None:
        """Hold a value that an async generator has yielded until it is known whether it is a chunk or the result of the node. It
        is spilled like a chunk, so that a crash does not lose it.
        """
        line = None
        with suppress(
            CodecError, ContextError
        ):  # a result may be larger than a chunk, and is encoded with the codec of the state
            line = encode_chunk(value, self.streamer.node)
            self.segment.hold(line)
        self._held = (value, line)

    def release(self) -> None:
        """Stream the value that is held, if there is one, as a chunk. Raises the errors of `encode_chunk`."""
        if self._held is not None:
            (value, line), self._held = self._held, None
            self.segment.release(line or encode_chunk(value, self.streamer.node))
            self._notify(value, None)

    def end_without_result(self) -> None:
        """Stream the value that is held as the last chunk, because the attempt has failed. It is lost if it cannot be a chunk."""
        with suppress(CodecError, ContextError):
            self.release()

    def take_result(self) -> Any:
        """Return the value that is held, which is the result of the node; None if no value is held."""
        held, self._held = self._held, None
        return None if held is None else held[0]

    def cut(self) -> Segment:
        """End the segment, which is to be recorded now, and begin the next one."""
        segment, self.segment = self.segment, self._begin_segment()
        segment.close()
        if self._held is not None and self._held[1] is not None:
            self.segment.hold(self._held[1])
        return segment

    def _notify(self, value: Any, step: Step | None) -> None:
        self.count += 1
        for chunk in make_chunks(self._run_id, self.streamer, self.count, [value], [step]):
            self._services.listeners.streamed(chunk)
