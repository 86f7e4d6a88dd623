"""Blobs in a folder on a local disk or a network share.

A blob is written to a temporary file, synced, and renamed; a partial stream is a file of records with lengths and checksums.
Invariant: a file gets the name of a blob only when its content is durable, and `put` returns only when its name and folders are.
"""

from __future__ import annotations

import os
import secrets
import struct
import tempfile
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from holdfast.core.validate import RUN_ID
from holdfast.errors import BlobCorrupt, BlobMissing, StoreFull, StorePoisoned, StoreUnusable
from holdfast.storage.blobs import DIGEST, Piece, pack, require_digest, require_run_id, unpack
from holdfast.storage.files import disk
from holdfast.storage.files.disk import NO_SPACE

_FRAME = struct.Struct(">QI")  # bytes of the record, crc32 of that length and the record
_LENGTH = struct.Struct(">Q")
_EXPIRED = "-expired"


class FileBlobs:
    """Blobs in a folder, which is created with the first blob: a blob is `ab/cd/abcd…`, the partial streams of a run are in
    `spills/<run id>/`. Files have mode 0600, folders 0700.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        self.where = str(self.folder)
        self._lock = threading.Lock()  # for spills: two threads must not repair the same stream at once
        self._settled: set[Path] = set()
        """Folders whose own names are known to be durable."""
        self._mended: set[Path] = set()
        """Files of streams that are known to end with a complete record."""
        self._poison: str | None = None

    def put(self, digest: str, body: bytes) -> None:
        path = self._path(require_digest(digest))
        with self._writing():
            # The time is renewed first: either a sweep that deletes old blobs sees it and keeps the blob, or the blob is already
            # gone and is written below.
            with suppress(FileNotFoundError, NotADirectoryError):
                os.utime(path)
            if not self._is_intact(digest):
                disk.make_folder(path.parent)
                self._write(path, pack(body))
            # Do this even if the blob existed already: the process that put it may have been killed before this point.
            self._settle(path.parent)

    def get(self, digest: str) -> bytes:
        if not DIGEST.fullmatch(digest):
            raise BlobMissing(digest, self.where)
        try:
            return self._read(digest)
        except BlobMissing:
            # A sweep renames a blob before it deletes it. If it was killed in between, the blob may still be needed.
            for aside in self._put_aside(digest):
                with suppress(OSError):
                    return unpack(digest, aside.read_bytes(), self.where)
            return self._read(digest)  # the sweep may have given the blob its name back meanwhile

    def _put_aside(self, digest: str) -> list[Path]:
        folder, mark = self._path(digest).parent, f".{digest}{_EXPIRED}"
        with suppress(OSError):
            return [folder / name for name in os.listdir(folder) if name.startswith(mark)]
        return []

    def _read(self, digest: str) -> bytes:
        try:
            return unpack(digest, self._path(digest).read_bytes(), self.where)
        except (FileNotFoundError, NotADirectoryError):
            raise BlobMissing(digest, self.where) from None
        except IsADirectoryError:
            raise BlobCorrupt(digest, self.where) from None
        except OSError as fault:
            raise self._unusable(fault) from fault

    def digests(self) -> Iterator[str]:
        for first in self._names(self.folder, 2):
            for second in self._names(self.folder / first, 2):
                yield from self._names(self.folder / first / second, 64)

    def delete(self, digest: str) -> None:
        if DIGEST.fullmatch(digest):
            with self._writing():
                self._path(digest).unlink(missing_ok=True)

    def now(self) -> float:
        # A share uses the clock of its server, so the time is read from a file, as `put` writes it.
        with self._writing(), suppress(FileNotFoundError, NotADirectoryError):
            os.utime(self.folder)
            return self.folder.stat().st_mtime
        return 0.0

    def expire(self, digest: str, before: float) -> bool:
        if not DIGEST.fullmatch(digest):
            return False
        path = self._path(digest)
        aside = _aside(path)
        with self._writing(), suppress(FileNotFoundError, NotADirectoryError):
            if path.stat().st_mtime >= before:
                return False
            os.replace(path, aside)  # a `put` after this writes the blob again
            if aside.stat().st_mtime >= before:  # a `put` just before this has renewed the time
                os.replace(aside, path)
                return False
            aside.unlink()
            return True
        return False

    def tidy(self, before: float) -> int:
        removed = 0
        for first in self._names(self.folder, 2):
            for second in self._names(self.folder / first, 2):
                folder = self.folder / first / second
                with self._writing(), suppress(FileNotFoundError):
                    for name in os.listdir(folder):
                        if name.startswith(".") and (folder / name).stat().st_mtime < before:
                            removed += not _give_name_back(folder / name)
                            (folder / name).unlink()
        return removed

    def spilling(self) -> list[str]:
        try:
            found = sorted(os.listdir(self.folder / "spills"))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as fault:
            raise self._unusable(fault) from fault
        return [run_id for run_id in found if RUN_ID.fullmatch(run_id) and self.spilled(run_id)]

    def spill(self, run_id: str, key: str, data: bytes) -> None:
        folder = self._spills(run_id)
        path = folder / _stream_name(run_id, key)
        with self._lock, self._writing():
            while True:
                disk.make_folder(folder)
                try:
                    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    break
                except FileNotFoundError:  # another process has removed the folder with its last stream
                    continue
            try:
                self._extend(handle, path, _stream_head(run_id, key), data)
            finally:
                os.close(handle)

    def spilled(self, run_id: str) -> dict[str, bytes]:
        folder = self._spills(run_id)
        mine = run_id.encode() + b"\n"
        found: dict[str, bytes] = {}
        try:
            for name in self._names(folder, 64):
                records, _ = _whole_records((folder / name).read_bytes())
                if records and records[0].startswith(mine):
                    found[_text(records[0][len(mine) :])] = b"".join(records[1:])
        except FileNotFoundError:  # removed meanwhile
            return self.spilled(run_id)
        except OSError as fault:
            raise self._unusable(fault) from fault
        return dict(sorted(found.items()))

    def spilled_after(self, marks: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Piece]]:
        found: dict[str, dict[str, Piece]] = {}
        for run_id, known in marks.items():
            folder = self._spills(run_id)
            names = self._names(folder, 64)
            keys = {_stream_name(run_id, key): (key, mark) for key, mark in known.items()} if names else {}
            for name in names:
                key, mark = keys.get(name, (None, 0))
                with suppress(FileNotFoundError):  # removed meanwhile
                    read = self._read_stream(folder / name, run_id, key, mark)
                    if read is not None:
                        found.setdefault(run_id, {})[read[0]] = read[1]
        return {run_id: dict(sorted(streams.items())) for run_id, streams in found.items()}

    def _read_stream(self, path: Path, run_id: str, key: str | None, mark: int) -> tuple[str, Piece] | None:
        """Return the key of a stream, and its records after a position in its file; None if it has no complete head."""
        try:
            with path.open("rb") as file:
                anew = mark > os.fstat(file.fileno()).st_size
                begin = 0 if anew or key is None else mark
                file.seek(begin)
                records, read = _whole_records(file.read())
        except FileNotFoundError:
            raise
        except OSError as fault:
            raise self._unusable(fault) from fault
        if begin == 0:
            mine = run_id.encode() + b"\n"
            if not records or not records[0].startswith(mine):
                return None
            key = _text(records.pop(0)[len(mine) :])
        assert key is not None
        return key, Piece(b"".join(records), begin + read, anew)

    def unspill(self, run_id: str, keys: Iterable[str]) -> None:
        folder = self._spills(run_id)
        with self._lock, self._writing():
            for key in keys:
                path = folder / _stream_name(run_id, key)
                path.unlink(missing_ok=True)
                self._mended.discard(path)
            with suppress(OSError):  # the folder has other streams, or does not exist
                folder.rmdir()

    # --- inside ---------------------------------------------------------------------------------------

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest[2:4] / digest

    def _spills(self, run_id: str) -> Path:
        require_run_id(run_id)
        return self.folder / "spills" / run_id

    def _names(self, folder: Path, length: int) -> list[str]:
        """Return the names in a folder that consist of this many hex digits, in order; temporary files have other names."""
        try:
            return sorted(name for name in os.listdir(folder) if len(name) == length and _is_hex(name))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as fault:
            raise self._unusable(fault) from fault

    def _is_intact(self, digest: str) -> bool:
        try:
            self._read(digest)  # not `get`: a blob that a sweep has renamed may be deleted at any time
        except (BlobMissing, BlobCorrupt):
            return False
        return True

    def _write(self, path: Path, content: bytes) -> None:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:8]}-", dir=path.parent)  # 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                self._sync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def _extend(self, handle: int, path: Path, head: bytes, data: bytes) -> None:
        """Append a record to a stream. Before the first write of this process, an incomplete record at the end is removed."""
        end = os.fstat(handle).st_size
        if path not in self._mended:
            _, whole = _whole_records(path.read_bytes())
            if whole != end:
                os.ftruncate(handle, whole)
                end = whole
        record = _frame(data) if end else _frame(head) + _frame(data)
        try:
            left = memoryview(record)
            while left:
                left = left[os.write(handle, left) :]
            self._sync(handle)
        except BaseException:
            self._mended.discard(path)  # the file may now end with an incomplete record
            raise
        self._mended.add(path)
        if not end:
            self._settle(path.parent)

    def _sync(self, handle: int) -> None:
        with self._syncing():
            disk.sync_file(handle)

    def _settle(self, folder: Path) -> None:
        """Make the names in a folder, and the names of the folders above it, survive power loss."""
        with self._syncing():
            disk.sync_folder(folder)
            if folder not in self._settled:
                for place in folder.parents:
                    disk.sync_folder(place)
                    if place == self.folder.parent:
                        break
        self._settled.add(folder)

    @contextmanager
    def _syncing(self) -> Iterator[None]:
        """Poison this object if a sync inside the block fails: data may be lost, and the next sync would not report it."""
        try:
            yield
        except OSError as fault:
            if fault.errno not in NO_SPACE:
                self._poison = (
                    f"{self.folder}: writing to disk failed ({fault.strerror}). Whether the last write was saved "
                    "is unknown, so this process writes nothing more. Check the disk, restart the process and "
                    "resume the run."
                )
                raise StorePoisoned(self._poison) from fault
            raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self._poison is not None:
            raise StorePoisoned(self._poison)
        try:
            yield
        except OSError as fault:
            if fault.errno in NO_SPACE:
                raise StoreFull(
                    f"no space left for {self.folder}. Nothing was recorded this time; everything acknowledged "
                    "before is kept. Free some space and resume the run."
                ) from fault
            raise self._unusable(fault) from fault

    def _unusable(self, fault: OSError) -> StoreUnusable:
        return StoreUnusable(
            f"{self.folder} cannot be used for blobs: {fault.strerror or fault}. Check the permissions of the "
            "folder and its content, or choose another place with the setting `blobs`."
        )


def _aside(path: Path) -> Path:
    """Return a temporary name for a blob that is about to be deleted. No other process uses that name, so that a `put` in the
    meantime is not lost.
    """
    return path.with_name(f".{path.name}{_EXPIRED}-{secrets.token_hex(8)}")


def _give_name_back(aside: Path) -> bool:
    """Give a blob that a sweep had renamed its name back, unless it was put again meanwhile. Returns False if the file is not
    such a blob.
    """
    name, was_set_aside, _ = aside.name.removeprefix(".").partition(_EXPIRED)
    if not was_set_aside:
        return False
    with suppress(FileExistsError):
        os.link(aside, aside.with_name(name))
    return True


def _is_hex(name: str) -> bool:
    return all(letter in "0123456789abcdef" for letter in name)


# --- streams -----------------------------------------------------------------------------------------


def _stream_head(run_id: str, key: str) -> bytes:
    """Return the first record of a stream: its run id and key. They cannot be the file name, because a file system may treat `R`
    and `r` as the same name.
    """
    return f"{run_id}\n{key}".encode("utf-8", "surrogatepass")


def _stream_name(run_id: str, key: str) -> str:
    return sha256(_stream_head(run_id, key)).hexdigest()


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")


def _frame(record: bytes) -> bytes:
    length = _LENGTH.pack(len(record))
    return _FRAME.pack(len(record), zlib.crc32(record, zlib.crc32(length))) + record


def _whole_records(stream: bytes) -> tuple[list[bytes], int]:
    """Return the complete records of a stream up to the first damaged one, and the position at which they end."""
    records: list[bytes] = []
    end = 0
    while end + _FRAME.size <= len(stream):
        length, check = _FRAME.unpack_from(stream, end)
        start = end + _FRAME.size
        record = stream[start : start + length]
        if len(record) != length or zlib.crc32(record, zlib.crc32(_LENGTH.pack(length))) != check:
            break
        records.append(record)
        end = start + length
    return records, end
