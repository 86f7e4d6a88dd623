"""The chunks that a running attempt streams: they go to followers at once, to a spill soon, to the log when the attempt ends.

The engine spills chunks next to the log every second or 64 KB, so that they outlive their process. The end of the attempt
records all of them as one event (`NodeStreamed`), and then the spill is deleted. A process that claims a run whose holder died
finds the spill and records it (`resume.recover_streams`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.codec import Codec
from holdfast.errors import ContextError, StoreError
from holdfast.reading.chunks import Chunk
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
        f"node {node!r} emits a chunk of {size:,} bytes, but a chunk has at most {CHUNK_BYTES_MAX:,}. Emit smaller chunks, or "
        "write the output as an artifact (ctx.artifacts)."
    )


class Stream:
    """The chunks of one attempt. All methods are called on the event loop."""

    def __init__(self, services: Services, run_id: str, header: dict[str, Any], item: int | None) -> None:
        self.chunks: list[Any] = []
        self._services = services
        self._run_id = run_id
        self._header = header
        self._item = item
        self.key = _encode([*header.values(), item]).decode()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._timer: Timer | None = None
        self._spilling = False
        self._drop_due = False
        self.spilled = False

    def add(self, line: bytes, value: Any) -> None:
        """Give a chunk to the followers, and have it spilled soon."""
        self.chunks.append(_decode(line))
        self._pending.append(line)
        self._pending_bytes += len(line)
        self._services.listeners.streamed(
            Chunk(run_id=self._run_id, **self._header, item=self._item, number=len(self.chunks), value=value)
        )
        if self._pending_bytes >= SPILL_BYTES:
            self.spill()
        else:
            self._spill_later()

    def _spill_later(self) -> None:
        if self._timer is None:
            clock = self._services.clock
            self._timer = clock.call_at(clock.now() + SPILL_S, self.spill)

    def spill(self) -> None:
        """Write the pending chunks to the spill: one write at a time, off the event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._pending or self._spilling:
            return
        data = b"\n".join(self._pending) + b"\n"
        self._pending, self._pending_bytes = [], 0
        self._spilling = self.spilled = True
        blobs, run_id, key = self._services.store.blobs, self._run_id, self.key
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

    def drop(self) -> None:
        """Delete the spill, because the log holds the stream: now, or when the write that is under way has ended."""
        self._drop_due = self._spilling
        if self.spilled and not self._spilling:
            blobs, run_id, key = self._services.store.blobs, self._run_id, self.key
            self._services.aside(lambda: blobs.unspill(run_id, [key]), lambda error: None)

    def close(self) -> None:
        """End the stream of an attempt that is over: spill nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pending, self._pending_bytes = [], 0
