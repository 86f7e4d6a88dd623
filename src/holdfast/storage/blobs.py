"""Blobs: large values stored beside the log, named by the hash of their content; and spills, the partial output of nodes that are
still streaming.

`Blobs` is the contract; its implementations are in `memory/`, `files/` and `postgres/`, and each passes `holdfast.testing.blobs`.
`oversize` decides which value becomes a blob. `Store.append` stores a blob before the row that refers to it, so a crash leaves at
most a blob to which no row refers, never a reference to a missing blob. This module knows nothing about events.

Invariants:
- The name of a blob is the sha256 of its content. A blob is stored compressed, and its content is checked against its name when
  it is read.
- A blob appears whole or not at all, and is durable when `put` returns. Equal content is stored once.
- Data that is added to a spill is durable when `spill` returns. A record that a crash left incomplete is dropped; the records
  before it stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple, Protocol

import msgspec
import zstandard

from holdfast.core.validate import RUN_ID
from holdfast.errors import BlobCorrupt, SettingError

DIGEST = re.compile(r"[0-9a-f]{64}")


class Blob(msgspec.Struct, frozen=True, gc=False):
    """A large value that is stored beside the log, and its digest."""

    digest: str
    """The sha256 of the content (`body`), in hex."""
    body: bytes

    @classmethod
    def of(cls, body: bytes) -> Blob:
        """Create the blob with this content."""
        return cls(sha256(body).hexdigest(), body)


class Piece(NamedTuple):
    """A part of a partial stream: its data, and the mark from which the next part begins."""

    data: bytes
    mark: int
    anew: bool = False
    """True if the stream was deleted and has begun again: `data` is its beginning."""


class Blobs(Protocol):
    """A place where blobs are stored. Its methods are synchronous and may be called from any thread. Every method may raise
    `StoreUnusable`, and also `StoreBusy` if the place is on another machine. A method that writes may also raise `StoreFull` and
    `StorePoisoned`; a method that takes a run id may raise `SettingError`.
    """

    where: str
    """The name of this place in error messages, without secrets."""

    def put(self, digest: str, body: bytes) -> None:
        """Store a blob; it is durable when this returns. A blob that exists already is replaced only if it is damaged."""

    def get(self, digest: str) -> bytes:
        """Return the content of a blob. Raises `BlobMissing`, `BlobCorrupt`."""

    def digests(self) -> Iterator[str]:
        """Return the digests of all stored blobs, in order."""

    def delete(self, digest: str) -> None:
        """Delete a blob. Does nothing if it does not exist."""

    def now(self) -> float:
        """Return the current time of the clock by which the place records when a blob was put. Returns 0.0 if no blob was ever
        put, or if the place does not record times.
        """

    def expire(self, digest: str, before: float) -> bool:
        """Delete a blob if it was last put before this time (see `now`), and return whether it was deleted. A blob that is put
        again at the same moment stays. A place that does not record when a blob was put keeps it.
        """

    def tidy(self, before: float) -> int:
        """Delete the temporary files of `put` calls that were killed before this time, and return how many were deleted."""

    def spilling(self) -> list[str]:
        """Return the ids, in order, of the runs that have partial streams (saved output of nodes that have not ended)."""

    def spill(self, run_id: str, key: str, data: bytes) -> None:
        """Append data to the partial stream `key` of a run (saved output of a node that has not ended). The data is durable when
        this returns. Only one process at a time may write to a stream.
        """

    def spilled(self, run_id: str) -> dict[str, bytes]:
        """Return the partial streams of a run, ordered by key, each up to its last complete record."""

    def spilled_after(self, marks: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Piece]]:
        """Return all partial streams of these runs, each from the mark that an earlier call has returned for it (0: from its
        beginning) up to its last complete record. What is before the marks is not read again. Runs without partial streams are
        left out.
        """

    def unspill(self, run_id: str, keys: Iterable[str]) -> None:
        """Delete partial streams of a run; unknown keys are ignored. After a power loss, a deleted stream may reappear; the
        caller must then delete it again.
        """


# --- shared by all implementations ---------------------------------------------------------------------


def pack(body: bytes) -> bytes:
    """Compress the content of a blob for storage."""
    stored: bytes = zstandard.ZstdCompressor(level=3).compress(body)
    return stored


def unpack(digest: str, stored: bytes, where: str) -> bytes:
    """Decompress a stored blob. Raises `BlobCorrupt` if its content does not match its digest."""
    try:
        # Decompress as a stream, because the size in the header of a damaged blob cannot be trusted.
        body: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(stored)
    except zstandard.ZstdError as fault:
        raise BlobCorrupt(digest, where) from fault
    if sha256(body).hexdigest() != digest:
        raise BlobCorrupt(digest, where)
    return body


def require_digest(digest: str) -> str:
    """Refuse a name that is not a digest, so that it can never be used as a path to another file."""
    if not DIGEST.fullmatch(digest):
        raise SettingError(f"{digest!r} is not the name of a blob: give the sha256 of its content, in hex")
    return digest


def require_run_id(run_id: str) -> None:
    """Refuse an invalid run id, so that it can never be used as a path to another file."""
    if not RUN_ID.fullmatch(run_id):
        raise SettingError(
            f"{run_id!r} is not a valid run id: use up to 128 letters, digits, '.', '_' and '-', starting with a letter "
            "or digit"
        )
