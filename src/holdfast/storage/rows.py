"""Turn events into the rows of a log and back, with compression and a hash chain.

digest(n) = sha256(digest(n-1) ‖ header(n) ‖ sha256(salt(n) ‖ body(n))), over the bytes as stored (‖ concatenates). So a missing
or altered row is detected. A body can be removed without breaking the chain if its salted hash is kept.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Protocol

import zstandard

from holdfast.core.event_encoding import Encoded, decode
from holdfast.core.events import Stored
from holdfast.errors import StoreCorrupt
from holdfast.storage.blobs import Blobs
from holdfast.storage.contract import Row
from holdfast.storage.oversize import put_back

SALT_BYTES = 16
_SALTS = struct.Struct(f"{SALT_BYTES}s" * 1024)
COMPRESS_OVER_BYTES = 1024
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # no JSON text starts with these bytes
_local = threading.local()  # zstd contexts must not be shared between threads


class Salts:
    """Random salts for events. They are read from the system many at a time, because each read releases the interpreter lock
    (GIL), and another thread may then take it.
    """

    def __init__(self) -> None:
        self._kept: list[bytes] = []

    def take(self) -> bytes:
        if not self._kept:
            self._kept = list(_SALTS.unpack(os.urandom(_SALTS.size)))
        return self._kept.pop()


def pack(body: bytes) -> bytes:
    """Return the body of an event (its JSON) as it is stored: compressed if it is long and compression makes it shorter."""
    if len(body) <= COMPRESS_OVER_BYTES:
        return body
    packer = getattr(_local, "packer", None)
    if packer is None:
        packer = _local.packer = zstandard.ZstdCompressor(level=3)
    packed: bytes = packer.compress(body)
    return packed if len(packed) < len(body) else body


def unpacked_size(packed: bytes) -> int:
    """Return how many bytes compressed data say that they have when they are decompressed."""
    try:
        return int(zstandard.frame_content_size(packed))
    except zstandard.ZstdError:
        return 0  # `unpack` refuses them


def unpack(body: bytes) -> bytes:
    """Undo `pack`: return the body of an event as it was before it was compressed."""
    if not body.startswith(_ZSTD_MAGIC):
        return body
    unpacker = getattr(_local, "unpacker", None)
    if unpacker is None:
        unpacker = _local.unpacker = zstandard.ZstdDecompressor()
    try:
        unpacked: bytes = unpacker.decompress(body)
    except zstandard.ZstdError as fault:
        raise StoreCorrupt(
            f"the compressed data of an event or snapshot cannot be read: {fault}. `holdfast verify` lists the damage"
        ) from fault
    return unpacked


class Header(Protocol):
    """The columns of a row that its digest covers as they are."""

    @property
    def seq(self) -> int: ...
    @property
    def at(self) -> float: ...
    @property
    def kind(self) -> str: ...
    @property
    def node(self) -> str | None: ...
    @property
    def iteration(self) -> int: ...
    @property
    def execution(self) -> int: ...
    @property
    def attempt(self) -> int: ...


def content_of(row: Row) -> bytes:
    """Return the salted hash of a row's body, which stands for the body in the chain."""
    return sha256(row.salt + row.body).digest()


def link(previous: bytes, run_id: str, row: Header, content: bytes) -> bytes:
    """Return the digest of a row, given its header, the salted hash of its body and the digest of the row before it."""
    header = f"{run_id}\n{row.seq}\n{row.at!r}\n{row.kind}\n{row.node or ''}\n{row.iteration}\n{row.execution}\n{row.attempt}\n"
    return sha256(previous + header.encode() + content).digest()


def chain(previous: bytes, run_id: str, row: Row) -> bytes:
    """Return the digest of a row, given the digest of the row before it (`previous`)."""
    return link(previous, run_id, row, content_of(row))


def seal_row(
    previous: bytes, run_id: str, seq: int, at: float, stamp: str, event: Encoded, salt: bytes
) -> Row:
    """Return the row of an event, chained to the digest `previous`. The digest is computed inline, not by `chain`, because every
    step calls this function. `stamp` is `repr(at)`: computing it takes longest, so events with the same time share it.
    """
    body, kind, node = event.body, event.kind, event.node
    iteration, execution, attempt = event.iteration, event.execution, event.attempt
    if len(body) > COMPRESS_OVER_BYTES:
        body = pack(body)
    header = f"{run_id}\n{seq}\n{stamp}\n{kind}\n{node or ''}\n{iteration}\n{execution}\n{attempt}\n"
    digest = sha256(previous + header.encode() + sha256(salt + body).digest()).digest()
    return Row(seq, at, kind, node, iteration, execution, attempt, salt, body, digest)


def seal(
    previous: bytes, run_id: str, seq: int, at: float, encoded: Iterable[Encoded], salts: bytes
) -> tuple[Row, ...]:
    """Return rows for the events that follow `seq`, all of time `at`, chained to the digest `previous`. `salts` contains 16
    random bytes for each event.
    """
    rows: list[Row] = []
    for number, event in enumerate(encoded):
        salt = salts[number * SALT_BYTES : (number + 1) * SALT_BYTES]
        row = seal_row(previous, run_id, seq + number + 1, at, repr(at), event, salt)
        previous = row.digest
        rows.append(row)
    return tuple(rows)


def open_body(body: bytes, blobs: Blobs) -> bytes:
    """Return the body of a row or a snapshot, decompressed, with the large values that were moved to blobs put back into it.
    Raises `BlobMissing`, `BlobCorrupt`.
    """
    return put_back(unpack(body), blobs)


def open_row(row: Row, blobs: Blobs, *, chunks: bool = True) -> Stored:
    """Return the event that a row contains. Raises `BlobMissing`, `BlobCorrupt`. Without `chunks`, the chunks of a `NodeStreamed`
    that are in blobs are not read if the event counts them, because there may be very many.
    """
    body = row.body
    if body and (body[:1] != b"{" or body[2:3] == b"$"):  # few bodies are compressed or refer to blobs
        body = unpack(body)
        is_counted = row.kind == "NodeStreamed" and b'"spans":[{' in body
        body = put_back(body, blobs, without=None if chunks or not is_counted else "chunks")
    encoded = Encoded(row.kind, row.node, row.iteration, row.execution, row.attempt, body)
    return Stored(row.seq, row.at, decode(encoded))


def broken_at(run_id: str, rows: Sequence[Row], *, after: int, digest: bytes) -> tuple[int, str] | None:
    """Return the first seq after `after` at which a row is missing or altered, and a description of the damage. Returns None if
    all rows are intact. `digest` is the digest of row `after`.
    """
    for row in rows:
        after += 1
        if row.seq != after:
            return after, f"event {after} is missing (the next one is {row.seq})"
        digest = chain(digest, run_id, row)
        if digest != row.digest:
            return (
                after,
                f"event {after} ({row.kind}) was altered after it was written, or an event before it was",
            )
    return None
