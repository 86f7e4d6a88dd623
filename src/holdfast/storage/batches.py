"""Many appends in few statements: what a batch needs to be handed to SQLite as JSON, in one piece each.

Every call into SQLite gives up the interpreter lock and has to win it back from a busy event loop. A batch that is committed on
the writer's thread therefore makes five calls (begin, heads, run rows, events, commit), however many appends it has; while
SQLite is at work, the event loop has the interpreter to itself. With a call or two per append, a fleet of a thousand
runs made 20 % fewer steps a second (`make bench`).

What JSON would not hand over exactly is written the ordinary way: a new run, an error text, a time that is no multiple of 2**-22
seconds (every time of our century is one; JSON's decimal numbers might differ in the last bit, and times are hashed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.storage.contract import Append, Row

MANY = 32
"""Appends from which on a batch is written this way."""
SCALE = 4194304.0
_encode = msgspec.json.Encoder().encode
_decode_heads = msgspec.json.Decoder(
    list[tuple[int | None, int | None, int | None, str | None, str | None]]
).decode
_ZSTD = b"\x28\xb5\x2f\xfd"


def are_many(batch: Sequence[Append]) -> bool:
    """Whether a batch is worth it. Two appends to one run are judged one behind the other."""
    return len(batch) >= MANY and len({append.run_id for append in batch}) == len(batch)


def fits(append: Append) -> bool:
    """Whether an append can be handed over as JSON."""
    if append.create is not None or append.view.error is not None or not append.rows:
        return False
    return all((row.at * SCALE).is_integer() for row in append.rows)


def ids(appends: Sequence[Append]) -> str:
    """The runs of a batch, as the query for their heads takes them."""
    return _encode([append.run_id for append in appends]).decode()


def heads(told: str) -> list[tuple[Any, ...]]:
    """Key, seq, fence, status and holder of each run, as that query tells them."""
    return list(_decode_heads(told))


def advanced(run: int, append: Append) -> tuple[Any, ...]:
    """The new view of a run row."""
    view, last = append.view, append.rows[-1]
    return (
        run, last.seq, last.digest.hex(), int(last.at * SCALE), view.fingerprint, view.state_version,
        _encode(view.active).decode() if view.active else None, _encode(view.rewinds).decode() if view.rewinds else None,
        view.due_at,
    )  # fmt: skip


def event(run: int, row: Row) -> tuple[Any, ...]:
    """One row of a log. A compressed body is no text."""
    text, packed = (None, row.body.hex()) if row.body.startswith(_ZSTD) else (row.body.decode(), None)
    return (
        run << 32 | row.seq, int(row.at * SCALE), row.kind, row.node, row.iteration, row.execution, row.attempt, row.salt.hex(),
        text, packed, row.digest.hex(),
    )  # fmt: skip


def as_json(cells: list[tuple[Any, ...]]) -> str:
    """What a statement for many rows takes."""
    return _encode(cells).decode()
