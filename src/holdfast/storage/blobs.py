"""Blobs: large values beside the log, named by their content; and the partial output of nodes that still stream.

`Blobs` is the contract; its implementations are in `memory/`, `files/` and `postgres/`, and each passes `holdfast.testing.blobs`.
`oversize` decides which value becomes a blob. `Store.append` puts it before the row that refers to it, so a crash leaves at most
a blob to which no row refers, never a reference to a missing blob. Nothing here knows events.

Invariants:
- The name of a blob is the sha256 of its content. A blob is stored compressed, and its content is checked against its name when
  it is read.
- A blob appears whole or not at all, and is durable when `put` returns. Equal content is stored once.
- A spill is appended and durable when `spill` returns. A record that was torn by a crash is dropped; the records before it stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Protocol

import msgspec
import zstandard

from holdfast.core.validate import RUN_ID
from holdfast.errors import BlobCorrupt, SettingError

DIGEST = re.compile(r"[0-9a-f]{64}")


class Blob(msgspec.Struct, frozen=True, gc=False):
    """A value that is to be kept beside the log."""

    digest: str
    """sha256 of the body, in hex."""
    body: bytes

    @classmethod
    def of(cls, body: bytes) -> Blob:
        """The blob with this content."""
        return cls(sha256(body).hexdigest(), body)


class Blobs(Protocol):
    """A place for blobs. Its methods are synchronous and may be called from any thread. Each may raise `StoreUnusable`, and
    `StoreBusy` if the place is on another machine; a method that writes also `StoreFull` and `StorePoisoned`, and one that
    takes a run id `SettingError`.
    """

    where: str
    """The place, as errors name it: without any secret."""

    def put(self, digest: str, body: bytes) -> None:
        """Keep a blob; durable when this returns. One that is there already stays, unless it is found damaged."""

    def get(self, digest: str) -> bytes:
        """The content of a blob. Raises `BlobMissing`, `BlobCorrupt`."""

    def digests(self) -> Iterator[str]:
        """Every blob that is kept, by name, in order."""

    def delete(self, digest: str) -> None:
        """Remove a blob. Does nothing where there is none."""

    def now(self) -> float:
        """The time by the clock of the place, which says when a blob was put; 0.0 where nothing was ever put, or the place
        cannot tell.
        """

    def expire(self, digest: str, before: float) -> bool:
        """Remove a blob that was last put before this time, by the clock of the place: whether it went. One that is put again
        just then stays. A place that cannot tell when a blob was put keeps it.
        """

    def tidy(self, before: float) -> int:
        """Remove what puts have left that were killed before this time: how many pieces."""

    def spilling(self) -> list[str]:
        """The runs that have partial streams, in order."""

    def spill(self, run_id: str, key: str, data: bytes) -> None:
        """Add to the partial stream `key` of a run; durable when this returns. One process at a time writes to a stream."""

    def spilled(self, run_id: str) -> dict[str, bytes]:
        """The partial streams of a run, as far as they are whole, ordered by key."""

    def unspill(self, run_id: str, keys: Iterable[str]) -> None:
        """Remove partial streams; unknown ones are none. After power loss one may be there again: remove it again."""


# --- what every implementation does the same way ------------------------------------------------------


def pack(body: bytes) -> bytes:
    """A blob as stored."""
    stored: bytes = zstandard.ZstdCompressor(level=3).compress(body)
    return stored


def unpack(digest: str, stored: bytes, where: str) -> bytes:
    """A blob as put. Raises `BlobCorrupt` where it is not that."""
    try:
        # Piece by piece: the size that a damaged head claims must not be believed.
        body: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(stored)
    except zstandard.ZstdError as fault:
        raise BlobCorrupt(digest, where) from fault
    if sha256(body).hexdigest() != digest:
        raise BlobCorrupt(digest, where)
    return body


def require_digest(digest: str) -> str:
    """A name that a blob can have, and that leads nowhere else."""
    if not DIGEST.fullmatch(digest):
        raise SettingError(f"{digest!r} is not the name of a blob: give the sha256 of its content, in hex")
    return digest


def require_run_id(run_id: str) -> None:
    """An id that a run can have, and that leads nowhere else."""
    if not RUN_ID.fullmatch(run_id):
        raise SettingError(
            f"{run_id!r} is not a valid run id: use up to 128 letters, digits, '.', '_' and '-', starting with a letter "
            "or digit"
        )
