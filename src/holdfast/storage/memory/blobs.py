"""Blobs in memory, which end with the process: the reference implementation of `Blobs`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from holdfast.errors import BlobMissing
from holdfast.storage.blobs import Piece, pack, require_digest, require_run_id, unpack


class MemoryBlobs:
    """A place for blobs in memory, which ends with the process."""

    def __init__(self, where: str = "memory://", *, clock: Callable[[], float] = time.time) -> None:
        self.where = where
        self._clock = clock
        self._kept: dict[str, bytes] = {}
        self._put_at: dict[str, float] = {}
        self._spilled: dict[str, dict[str, list[bytes]]] = {}
        self._lock = threading.Lock()

    def put(self, digest: str, body: bytes) -> None:
        stored = pack(body)
        with self._lock:
            self._kept[require_digest(digest)] = stored
            self._put_at[digest] = self._clock()

    def get(self, digest: str) -> bytes:
        found = self._kept.get(digest)
        if found is None:
            raise BlobMissing(digest, self.where)
        return unpack(digest, found, self.where)

    def digests(self) -> Iterator[str]:
        return iter(sorted(self._kept))

    def delete(self, digest: str) -> None:
        self._kept.pop(digest, None)

    def now(self) -> float:
        return self._clock()

    def expire(self, digest: str, before: float) -> bool:
        with self._lock:
            if digest not in self._kept or self._put_at[digest] >= before:
                return False
            del self._kept[digest]
            return True

    def tidy(self, before: float) -> int:
        return 0

    def spilling(self) -> list[str]:
        with self._lock:
            return sorted(self._spilled)

    def spill(self, run_id: str, key: str, data: bytes) -> None:
        require_run_id(run_id)
        with self._lock:
            self._spilled.setdefault(run_id, {}).setdefault(key, []).append(data)

    def spilled(self, run_id: str) -> dict[str, bytes]:
        require_run_id(run_id)
        with self._lock:
            streams = self._spilled.get(run_id, {})
            return {key: b"".join(streams[key]) for key in sorted(streams)}

    def spilled_after(self, marks: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Piece]]:
        found: dict[str, dict[str, Piece]] = {}
        with self._lock:
            for run_id, known in marks.items():
                require_run_id(run_id)
                for key, parts in sorted(self._spilled.get(run_id, {}).items()):
                    mark = known.get(key, 0)
                    anew = mark > len(parts)
                    piece = Piece(b"".join(parts[0 if anew else mark :]), len(parts), anew)
                    found.setdefault(run_id, {})[key] = piece
        return found

    def unspill(self, run_id: str, keys: Iterable[str]) -> None:
        require_run_id(run_id)
        with self._lock:
            streams = self._spilled.get(run_id, {})
            for key in keys:
                streams.pop(key, None)
            if not streams:
                self._spilled.pop(run_id, None)
