"""Give a backup or an archive its final name: only when the file is complete and durable, and without overwriting another file
unless asked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import SettingError, StoreFull, StoreUnusable
from holdfast.storage.files import disk
from holdfast.storage.files.disk import NO_SPACE

NOT_COPIED = "The store itself is intact; choose another place for the backup, or free some space there."
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})


@contextmanager
def report_failure(failed: str, way_out: str) -> Iterator[None]:
    """Report an `OSError` inside the block as a `StoreUnusable` or `StoreFull` that says what failed and what to do."""
    try:
        yield
    except OSError as fault:
        kind = StoreFull if fault.errno in NO_SPACE else StoreUnusable
        raise kind(f"{failed}: {fault.strerror or fault}. {way_out}") from fault
    except (
        StoreFull
    ) as fault:  # the error names the temporary copy, because only that is written; name the backup instead
        raise StoreFull(f"{failed}: {os.strerror(errno.ENOSPC)}. {way_out}") from fault


def refuse_taken(target: Path, what: str = "a backup", example: str = "runs.backup") -> None:
    """Refuse to write a backup, or what else is to be written, to a path that exists."""
    if target.is_dir():
        raise SettingError(f"{target} is a folder. Name a file in it, e.g. {target}/{example}.")
    if target.exists():
        raise SettingError(f"{target} exists already, and {what} overwrites nothing. Choose another name.")


def name_file(temporary: str, target: Path, *, replace: bool = False) -> None:
    """Rename a complete temporary file to its final name, durably. Refuses if another file got that name meanwhile; with
    `replace`, replaces that file atomically.
    """
    _sync(temporary)
    try:
        if replace:
            os.replace(temporary, target)
        else:
            _name_new(temporary, target)
    except FileExistsError:
        raise SettingError(
            f"another process created {target} in the meantime. Choose another name."
        ) from None
    disk.sync_folder(target.parent)


def keep(file: Path) -> None:
    """Make an existing file and its name durable, because the process that wrote it may have been killed before it did so."""
    _sync(str(file))
    disk.sync_folder(file.parent)


def _sync(file: str) -> None:
    handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        disk.sync_file(handle)
    finally:
        os.close(handle)


def _name_new(temporary: str, target: Path) -> None:
    try:
        os.link(temporary, target)
    except OSError as fault:
        if fault.errno not in _NO_LINKS:
            raise
        # On a file system without hard links, the process that creates the empty target file owns its name. An empty
        # file is not mistaken for a backup.
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.replace(temporary, target)
