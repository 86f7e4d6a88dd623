"""Prepare a batch of many appends for a few SQL statements: its rows as one JSON text, its salts, digests and bodies as bytes.

Every call into SQLite releases the interpreter lock and must then compete for it with a busy event loop. A batch that is
committed on the writer's thread therefore makes a handful of calls (begin, heads, new runs, run rows, events, commit), however
many appends it has; while SQLite is at work, the event loop has the interpreter to itself. With a call or two per append, a fleet
of a thousand runs made 20 % fewer steps a second (`make bench`).

An append that JSON could not represent exactly is written like a lone append: one with an error text, or with a time that is not
a multiple of 2**-22 seconds. (A float for any time in this century is such a multiple. A decimal number in JSON might differ from
it in the last bit, and times are part of the hash chain.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.run_state import FINAL
from holdfast.storage.contract import Append
from holdfast.storage.rows import SALT_BYTES

MANY = 32
"""The smallest batch, in appends, that is written with a few statements for all its rows instead of a few for each append."""
SCALE = 4194304.0
_encode = msgspec.json.Encoder().encode
_decode_heads = msgspec.json.Decoder(
    list[tuple[int | None, int | None, int | None, str | None, int | None, str | None]]
).decode


def are_separate(batch: Sequence[Append]) -> bool:
    """Return whether all appends of a batch are to different runs. Two appends to the same run must be checked one after the
    other.
    """
    return len({append.run_id for append in batch}) == len(batch)


def fits(append: Append) -> bool:
    """Return whether an append can be passed to SQLite as JSON and bytes without losing precision."""
    view = append.view
    if view.error is not None or not append.rows or append.along is not None:
        return False
    if view.active_s is not None and not (view.active_s * SCALE).is_integer():
        return False
    new = append.create
    if new is not None and (
        new.parent is not None or new.origin is not None or not (new.created_at * SCALE).is_integer()
    ):
        return False
    for row in append.rows:  # noqa: SIM110 - every step runs this loop, and a generator would cost more than the rest
        if not (row.at * SCALE).is_integer() or len(row.salt) != SALT_BYTES:
            return False
    return True


def ids(appends: Sequence[Append]) -> str:
    """Return the run ids of a batch as a JSON list, the parameter of the query `heads`."""
    return as_json([append.run_id for append in appends])


def heads(told: str) -> list[tuple[Any, ...]]:
    """Decode the result of the query `heads`: key, seq, fence, status, questions and holder of each run."""
    return list(_decode_heads(told))


class Gathered:
    """Collects the rows of all appends of a batch, for the statements that write many rows at once."""

    def __init__(self) -> None:
        self.creations: dict[str, tuple[Append, int | None]] = {}
        """Run id -> the run's first append, and the key of its holder."""
        self.advances: list[tuple[Any, ...]] = []
        self.turns: list[tuple[Any, ...]] = []
        self.ends: list[tuple[int, int]] = []
        """The key of each run that is over now, and the seq at which it ended."""
        self.events: list[tuple[Any, ...]] = []
        self.marks: list[bytes] = []
        """The salt and the digest of each event row, in the order of `events`."""
        self.bodies: list[bytes] = []
        self._body_at = 1

    def create(self, append: Append, holder: int | None) -> None:
        self.creations[append.run_id] = append, holder

    def created(self) -> str:
        """Return the run rows of the new runs, as JSON."""
        return as_json([_creation_cells(append, holder) for append, holder in self.creations.values()])

    def advance(self, run: int, status: str | None, asks: int | None, append: Append) -> None:
        """Collect the changes of an existing run row, which has this status and number of questions. A new status, a change of
        the questions and the release of the lease are collected in `turns`, because they are rare.
        """
        view, last = append.view, append.rows[-1]
        self.advances.append((
            run, last.seq, last.digest.hex(), int(last.at * SCALE), view.fingerprint, view.state_version,
            _json(view.active), _json(view.rewinds), view.due_at, _scaled(view.active_s), view.situation,
        ))  # fmt: skip
        if append.release or status != view.status or asks != view.asks:
            self.turns.append((run, view.status, int(append.release), view.asks, int(last.at * SCALE)))
            if view.status in FINAL:
                self.ends.append((run, last.seq))

    def write(self, run: int, append: Append) -> None:
        """Collect the event rows of an append."""
        body_at = self._body_at
        for row in append.rows:
            body = row.body
            length = len(body)
            self.events.append((
                run << 32 | row.seq, int(row.at * SCALE), row.kind, row.node, row.iteration, row.execution, row.attempt,
                body_at, length,
            ))  # fmt: skip
            self.marks += row.salt, row.digest
            if length:
                self.bodies.append(body)
                body_at += length
        self._body_at = body_at

    def written(self) -> tuple[str, bytes, bytes]:
        return as_json(self.events), b"".join(self.marks), b"".join(self.bodies)


def _creation_cells(append: Append, holder: int | None) -> tuple[Any, ...]:
    new, view, last = append.create, append.view, append.rows[-1]
    assert new is not None
    return (
        append.run_id, new.flow, new.input_digest.hex(), _encode(new.labels).decode(), int(new.created_at * SCALE), view.status,
        last.seq, last.digest.hex(), int(last.at * SCALE), view.fingerprint, view.state_version, _json(view.active),
        _json(view.rewinds), view.due_at, int(holder is not None), None if append.release else holder, new.queue,
        new.priority, view.asks, _scaled(view.active_s), view.situation,
    )  # fmt: skip


def _scaled(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * SCALE)


def _json(values: tuple[Any, ...]) -> str | None:
    return _encode(values).decode() if values else None


def as_json(cells: Sequence[Any]) -> str:
    """Encode rows as the JSON parameter of a statement that writes many rows."""
    return _encode(cells).decode()
