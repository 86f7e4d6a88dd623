"""Blobs in a folder on disk, or on a share.

A blob is written to a temporary file, synced, and renamed to its name; a partial stream is a file of framed records with
checksums. Invariant: no file has the name of a blob before its content and the folders that lead to it are durable.
"""

from __future__ import annotations

import os
import secrets
import struct
import tempfile
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from holdfast.core.validate import RUN_ID
from holdfast.errors import BlobCorrupt, BlobMissing, StoreFull, StorePoisoned, StoreUnusable
from holdfast.storage.blobs import DIGEST, pack, require_digest, require_run_id, unpack
from holdfast.storage.files import disk
from holdfast.storage.files.disk import NO_SPACE

_FRAME = struct.Struct(">QI")  # bytes of the record, crc32 of that length and the record
_LENGTH = struct.Struct(">Q")
_EXPIRED = "-expired"


class FileBlobs:
    """Blobs in a folder, which is made with the first of them: `ab/cd/abcd…` for a blob, `spills/<run id>/…` for the partial
    streams of a run. Files are 0600, folders 0700.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        self.where = str(self.folder)
        self._lock = threading.Lock()  # of spills: two threads must not mend one stream at once
        self._settled: set[Path] = set()
        """Folders whose own names are known to survive power loss."""
        self._mended: set[Path] = set()
        """Streams that are known to end with a whole record."""
        self._poison: str | None = None

    def put(self, digest: str, body: bytes) -> None:
        path = self._path(require_digest(digest))
        with self._writing():
            # First: a sweep that removes old blobs then sees that this one is needed; otherwise it is missing here, and written.
            with suppress(FileNotFoundError, NotADirectoryError):
                os.utime(path)
            if not self._is_intact(digest):
                disk.make_folder(path.parent)
                self._write(path, pack(body))
            # Also where it was there already: who put it may not have come this far.
            self._settle(path.parent)

    def get(self, digest: str) -> bytes:
        if not DIGEST.fullmatch(digest):
            raise BlobMissing(digest, self.where)
        try:
            return self._read(digest)
        except BlobMissing:
            # A blob that was set aside may be needed: the sweep that would have noticed may have been killed.
            for aside in self._put_aside(digest):
                with suppress(OSError):
                    return unpack(digest, aside.read_bytes(), self.where)
            return self._read(digest)  # it may have its name back

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
        # A share has the clock of its server, which is asked in the same way as by `put`.
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
            os.replace(path, aside)  # from here on a put writes it again
            if aside.stat().st_mtime >= before:  # a put just before has renewed its time
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
                except FileNotFoundError:  # the folder went away with the last stream of another process
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

    def unspill(self, run_id: str, keys: Iterable[str]) -> None:
        folder = self._spills(run_id)
        with self._lock, self._writing():
            for key in keys:
                path = folder / _stream_name(run_id, key)
                path.unlink(missing_ok=True)
                self._mended.discard(path)
            with suppress(OSError):  # other streams are in there, or none ever was
                folder.rmdir()

    # --- inside ---------------------------------------------------------------------------------------

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest[2:4] / digest

    def _spills(self, run_id: str) -> Path:
        require_run_id(run_id)
        return self.folder / "spills" / run_id

    def _names(self, folder: Path, length: int) -> list[str]:
        """Names of this many hex digits in a folder, in order; temporary files have others."""
        try:
            return sorted(name for name in os.listdir(folder) if len(name) == length and _is_hex(name))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as fault:
            raise self._unusable(fault) from fault

    def _is_intact(self, digest: str) -> bool:
        try:
            self._read(digest)  # one that was set aside may be removed
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
        """Add a record to a stream, after its last whole one. The first write of this process finds out where that is."""
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
            self._mended.discard(path)  # it may end with half a record now
            raise
        self._mended.add(path)
        if not end:
            self._settle(path.parent)

    def _sync(self, handle: int) -> None:
        with self._syncing():
            disk.sync_file(handle)

    def _settle(self, folder: Path) -> None:
        """Make the names in a folder, and those that lead to it, survive power loss."""
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
        """A sync that failed may have lost what was written, and the next one would not say so."""
        try:
            yield
        except OSError as fault:
            if fault.errno not in NO_SPACE:
                self._poison = (
                    f"{self.folder}: writing to disk failed ({fault.strerror}). Whether the last step was saved "
                    "is unknown, so this process writes nothing more. Check the disk, restart the process and "
                    "resume."
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
                    f"no space left for {self.folder}. This step was not written; everything acknowledged before "
                    "it is kept. Free some space and resume."
                ) from fault
            raise self._unusable(fault) from fault

    def _unusable(self, fault: OSError) -> StoreUnusable:
        return StoreUnusable(
            f"{self.folder} cannot be used for blobs: {fault.strerror or fault}. Check the permissions of the "
            "folder and its content, or choose another place with the setting `blobs`."
        )


def _aside(path: Path) -> Path:
    """A new name for a blob that is about to be removed. No other process uses that name, so that a put meanwhile is not lost."""
    return path.with_name(f".{path.name}{_EXPIRED}-{secrets.token_hex(8)}")


def _give_name_back(aside: Path) -> bool:
    """Give a blob that was set aside its name again, unless it was put again meanwhile. False: the file is not such a blob."""
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
    """The first record of a stream names its run and key: the file name cannot, as a file system may treat `R` and `r` alike."""
    return f"{run_id}\n{key}".encode("utf-8", "surrogatepass")


def _stream_name(run_id: str, key: str) -> str:
    return sha256(_stream_head(run_id, key)).hexdigest()


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")


def _frame(record: bytes) -> bytes:
    length = _LENGTH.pack(len(record))
    return _FRAME.pack(len(record), zlib.crc32(record, zlib.crc32(length))) + record


def _whole_records(stream: bytes) -> tuple[list[bytes], int]:
    """The records of a stream up to the first that is not what was written, and where they end."""
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
