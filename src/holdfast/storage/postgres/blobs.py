"""Blobs and partial streams in tables of the store's own schema, so that every host can read them and one backup has everything.

This module owns no connection. It keeps the invariants of `holdfast.storage.blobs`: a blob is one row, so it appears whole or not
at all; it is committed before the rows that refer to it, and the write-ahead log of the database is flushed in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256

from holdfast.errors import BlobMissing
from holdfast.storage.blobs import Piece, pack, require_digest, require_run_id, unpack
from holdfast.storage.postgres.arrays import Bytes, Ints, Texts
from holdfast.storage.postgres.database import PostgresDatabase


class PostgresBlobs:
    """The blobs of one store."""

    def __init__(self, database: PostgresDatabase) -> None:
        self.where = database.address.url
        self._database = database

    def put(self, digest: str, body: bytes) -> None:
        content = pack(body)
        # The blob is often stored already, so its digest is sent first, and its content only if that is needed.
        if not self._database.change("keep_blob", require_digest(digest), sha256(content).digest()):
            self._database.change("put_blob", digest, content)

    def get(self, digest: str) -> bytes:
        found = self._database.read("get_blob", digest)
        if not found:
            raise BlobMissing(digest, self.where)
        return unpack(digest, found[0][0], self.where)

    def digests(self) -> Iterator[str]:
        last = ""
        while page := self._database.read("digests", last):
            yield from (digest for (digest,) in page)
            last = page[-1][0]

    def delete(self, digest: str) -> None:
        self._database.read("delete_blob", digest)

    def now(self) -> float:
        now: float = self._database.read("time")[0][0]
        return now

    def expire(self, digest: str, before: float) -> bool:
        return bool(self._database.read("expire_blob", digest, before))

    def tidy(self, before: float) -> int:
        return 0  # `put` is one statement, which leaves nothing when it is killed

    def spilling(self) -> list[str]:
        return [run_id for (run_id,) in self._database.read("spilling")]

    def spill(self, run_id: str, key: str, data: bytes) -> None:
        require_run_id(run_id)
        self._database.write_alone("spill", run_id, _stream(key), data)

    def spilled(self, run_id: str) -> dict[str, bytes]:
        require_run_id(run_id)
        found = {
            stream.decode("utf-8", "surrogatepass"): data
            for stream, data in self._database.read("spilled", run_id)
        }
        return dict(sorted(found.items()))

    def spilled_after(self, marks: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Piece]]:
        for run_id in marks:
            require_run_id(run_id)
        known = [(run_id, key, mark) for run_id, keys in marks.items() for key, mark in keys.items()]
        found: dict[str, dict[str, Piece]] = {}
        for run_id, stream, mark, data, continued in self._database.read(
            "spilled_after",
            Texts(list(marks)),
            Texts([run_id for run_id, _, _ in known]),
            Bytes([_stream(key) for _, key, _ in known]),
            Ints([mark for _, _, mark in known]),
        ):
            key = stream.decode("utf-8", "surrogatepass")
            anew = not continued and marks[run_id].get(key, 0) > 0
            found.setdefault(run_id, {})[key] = Piece(data or b"", mark, anew)
        return {run_id: dict(sorted(streams.items())) for run_id, streams in found.items()}

    def unspill(self, run_id: str, keys: Iterable[str]) -> None:
        require_run_id(run_id)
        self._database.change("unspill", run_id, Bytes([_stream(key) for key in keys]))


def _stream(key: str) -> bytes:
    """Return the key of a stream as bytes, because a key may contain characters that the database cannot store as text."""
    return key.encode("utf-8", "surrogatepass")
