"""The chunks that a running attempt streams: they go to followers at once, to a spill soon, to the log when the attempt ends.

The engine spills chunks next to the log every second or 64 KB, so that they outlive their process. The end of the attempt
records all of them as one event (`NodeStreamed`), and then the spill is deleted. A process that claims a run whose holder died
finds the spill and records it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core import events
from holdfast.core.codec import Codec
from holdfast.errors import ContextError, StoreError
from holdfast.reading.chunks import Chunk, read_key
from holdfast.runtime.clock import Timer
from holdfast.runtime.journal import Journal
from holdfast.runtime.services import Services
from holdfast.storage.rows import open_row

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
    """The chunks of one attempt, on the event loop."""

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


def recover(journal: Journal) -> Journal:
    """Record the streams of attempts whose process died. Their spills are deleted when the record is saved."""
    state = journal.state
    spills = journal.services.store.blobs.spilled(state.run_id)
    for key, data in spills.items():
        node, iteration, execution, attempt, item = read_key(key)
        visit = state.nodes.get(node)
        if visit is None or visit.status != "interrupted":
            continue
        known = visit.attempt if item is None or visit.items is None else visit.items.attempts.get(item, 1)
        is_open = (visit.iteration, visit.execution, known) == (iteration, execution, attempt)
        if is_open and not _is_recorded(journal, key):
            journal.record(
                events.NodeStreamed(
                    node=node, iteration=iteration, execution=execution, attempt=attempt, item=item,
                    chunks=[_decode(line) for line in data.splitlines()],
                )
            )  # fmt: skip
    journal.spills.extend(spills)
    return journal


def _is_recorded(journal: Journal, key: str) -> bool:
    """Whether the log holds this stream already: the process died after the append and before it deleted the spill. An
    attempt that was woken after that starts its stream again.
    """
    node, *attempt = read_key(key)
    store, recorded = journal.services.store, False
    kinds = ("NodeStarted", "ItemStarted", "NodeStreamed")
    for row in store.events(journal.state.run_id, kinds=kinds, node=node):
        event = open_row(row, store.blobs).event
        if [event.iteration, event.execution, event.attempt, getattr(event, "item", None)] == attempt:
            recorded = row.kind == "NodeStreamed"
    return recorded
