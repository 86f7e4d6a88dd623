"""Reads streamed output that is not in the log yet: the spills that attempts write beside the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.storage.contract import Store

_decode = msgspec.json.Decoder().decode
read_key = msgspec.json.Decoder(tuple[str, int, int, int, int | None]).decode
"""Decodes the key of a spill: the node, iteration, execution, attempt and item that it belongs to."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of streamed output of a running attempt, as followers receive it."""

    run_id: str
    node: str
    iteration: int
    execution: int
    attempt: int
    item: int | None
    number: int
    """The number of the chunk, counted from 1 within the attempt."""
    value: Any


def spilled_chunks(store: Store, run_id: str) -> Iterator[Chunk]:
    """Yield the chunks that running or crashed attempts have spilled so far."""
    for key, data in store.blobs.spilled(run_id).items():
        node, iteration, execution, attempt, item = read_key(key)
        for number, line in enumerate(data.splitlines(), 1):
            yield Chunk(
                run_id=run_id, node=node, iteration=iteration, execution=execution, attempt=attempt, item=item,
                number=number, value=_decode(line),
            )  # fmt: skip
