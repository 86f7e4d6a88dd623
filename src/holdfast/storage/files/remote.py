"""Blobs in any place that fsspec can reach: a bucket, a share, a server. The only module that imports fsspec.

Partial streams stay on this host (`spills`): they are small, synced every second, and not needed on other hosts. Invariant:
only the scheme, host and path of a URL are ever printed, because the rest may contain secrets.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import (
    BlobMissing,
    HoldfastError,
    SettingError,
    StoreBusy,
    StoreFull,
    StoreUnusable,
    did_you_mean,
)
from holdfast.storage.blobs import Blobs, Piece, pack, require_digest, unpack
from holdfast.storage.files.disk import NO_SPACE

WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "r2", "memory"})
"""Schemes of places where an object becomes visible only when it is complete. In other places, a blob is written to a temporary
file and renamed."""

REFRESH_S = 1800.0
"""If a blob that is put exists already, but was written more than this many seconds ago, it is written again: sweeps delete blobs
by the time at which they were written."""


class FsspecBlobs:
    """Blobs at a URL of fsspec, e.g. `s3://bucket/holdfast`; `spills` keeps the partial streams."""

    def __init__(self, url: str, *, spills: Blobs, clock: Callable[[], float] = time.time) -> None:
        self.where = _without_secrets(url)
        self._spills = spills
        self._clock = clock
        self._ahead: float | None = None
        """How many seconds the clock of the place is ahead of ours; None if that is not known yet."""
        self._files, root = _open(url, self.where)
        self._root = root.rstrip("/")
        self._whole = urlsplit(url).scheme in WHOLE

    def put(self, digest: str, body: bytes) -> None:
        path, content = self._path(require_digest(digest)), pack(body)
        with self._translate_errors():
            if self._size(path) == len(content) and not self._is_old(path, self._about_now() - REFRESH_S):
                return
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            if self._whole:
                self._files.pipe_file(path, content)
                return
            temporary = f"{path.rpartition('/')[0]}/.{uuid.uuid4().hex}"
            try:
                self._files.pipe_file(temporary, content)
                self._files.mv(temporary, path)
            except BaseException:
                with suppress(Exception):
                    self._files.rm_file(temporary)
                raise

    def get(self, digest: str) -> bytes:
        with self._translate_errors():
            try:
                stored: bytes = self._files.cat_file(self._path(require_digest(digest)))
            except (SettingError, FileNotFoundError):
                raise BlobMissing(digest, self.where) from None
        return unpack(digest, stored, self.where)

    def digests(self) -> Iterator[str]:
        with self._translate_errors():
            self._files.invalidate_cache()
            try:
                paths: list[str] = self._files.find(self._root)
            except FileNotFoundError:
                return
        names = {path.rpartition("/")[2] for path in paths}
        yield from sorted(name for name in names if len(name) == 64)

    def delete(self, digest: str) -> None:
        with self._translate_errors(), suppress(SettingError, FileNotFoundError):
            self._files.rm_file(self._path(require_digest(digest)))

    def now(self) -> float:
        path = f"{self._root}/.{uuid.uuid4().hex}"
        with self._translate_errors():
            if not self._files.exists(self._root):
                return 0.0
            self._files.pipe_file(path, b"now")
            try:
                now = self._written_at(path) or 0.0
            finally:
                self._files.rm_file(path)
        self._ahead = now - self._clock() if now else 0.0
        return now

    def _about_now(self) -> float:
        """Estimate the time of the place's clock from our clock and the known difference."""
        if self._ahead is None:
            self.now()
        return self._clock() + (self._ahead or 0.0)

    def expire(self, digest: str, before: float) -> bool:
        with self._translate_errors(), suppress(SettingError, FileNotFoundError):
            path = self._path(require_digest(digest))
            if self._is_old(path, before):
                self._files.rm_file(path)
                return True
        return False

    def tidy(self, before: float) -> int:
        removed = 0
        with self._translate_errors(), suppress(FileNotFoundError):
            for path in [] if self._whole else self._files.find(self._root):
                if path.rpartition("/")[2].startswith(".") and self._is_old(path, before):
                    self._files.rm_file(path)
                    removed += 1
        return removed

    def spilling(self) -> list[str]:
        return self._spills.spilling()

    def spill(self, run_id: str, key: str, data: bytes) -> None:
        self._spills.spill(run_id, key, data)

    def spilled(self, run_id: str) -> dict[str, bytes]:
        return self._spills.spilled(run_id)

    def spilled_after(self, marks: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Piece]]:
        return self._spills.spilled_after(marks)

    def unspill(self, run_id: str, keys: Iterable[str]) -> None:
        self._spills.unspill(run_id, keys)

    def _path(self, digest: str) -> str:
        return f"{self._root}/{digest[:2]}/{digest[2:4]}/{digest}"

    def _is_old(self, path: str, before: float) -> bool:
        """Return whether a file was written before this time. Returns False if that is not known."""
        at = self._written_at(path)
        return at is not None and at < before

    def _written_at(self, path: str) -> float | None:
        try:
            written: datetime = self._files.modified(path)
        except NotImplementedError:
            return None
        return (written if written.tzinfo else written.replace(tzinfo=UTC)).timestamp()

    def _size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None if there is no file. If a file has the size of a blob, `put` assumes that
        it is that blob: comparing the content would cost more than writing it again.
        """
        try:
            size: int | None = self._files.info(path, refresh=True).get("size")
        except FileNotFoundError:
            return None
        return size

    def _translate_errors(self) -> AbstractContextManager[None]:
        return _translate_errors(self.where)


@contextmanager
def _translate_errors(where: str) -> Iterator[None]:
    """Translate any error that an implementation of fsspec raises into an error of Holdfast."""
    try:
        yield
    except HoldfastError:
        raise
    except PermissionError as fault:
        raise StoreUnusable(
            f"{where} denies access ({_short(fault)}). Check the permissions of this process there."
        ) from fault
    except Exception as fault:
        if isinstance(fault, OSError) and fault.errno in NO_SPACE:
            raise StoreFull(f"no space left at {where}. Free some space and resume the run.") from fault
        raise StoreBusy(
            f"{where} cannot be reached ({_short(fault)}). Nothing was recorded; try again."
        ) from fault


def shown(place: str) -> str:
    """Return a path or URL without secrets, so that it may be printed."""
    return _without_secrets(place) if "://" in place else place


def upload(url: str, file: str, *, replace: bool = False) -> str:
    """Copy a file to a URL, and return that URL without secrets. Overwrites an existing file only with `replace`."""
    where = _without_secrets(url)
    files, path = _open(url, where)
    with _translate_errors(where):
        if not replace and files.exists(path):
            raise SettingError(f"{where} exists already, and nothing is overwritten. Choose another name.")
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        files.put_file(file, path)
    return where


def download(url: str, file: str) -> None:
    """Copy the file at a URL into a local file."""
    where = _without_secrets(url)
    files, path = _open(url, where)
    with _translate_errors(where):
        if not files.exists(path):
            raise SettingError(f"there is nothing at {where}. Check the URL.")
        files.get_file(path, file)


def _open(url: str, where: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it."""
    try:
        import fsspec  # type: ignore[import-untyped]  # it comes without types
    except ImportError:
        raise SettingError(f"{where} needs the package fsspec: pip install 'holdfast[blobs]'") from None
    try:
        files, root = fsspec.core.url_to_fs(url)
    except ImportError as fault:
        raise SettingError(
            f"blobs at {where} need a package that is not installed: {_short(fault)}"
        ) from None
    except ValueError:
        scheme = urlsplit(url).scheme
        known = did_you_mean(scheme, fsspec.available_protocols())
        raise SettingError(
            f"blobs cannot be kept at {where}: fsspec does not know the scheme {scheme!r}{known}"
        ) from None
    return files, root


def _without_secrets(url: str) -> str:
    """Return the scheme, host and path of a URL, because a user, a password or a query may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _short(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}".splitlines()[0][:200]
