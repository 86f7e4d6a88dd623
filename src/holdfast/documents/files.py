"""Writes files atomically: a reader sees either the complete new file or the file that was there before.

`write_new` makes the content durable; `put_all` makes content and names durable.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from holdfast.documents.run_folder import TEMPORARY
from holdfast.storage.files.disk import make_folder, sync_file, sync_folder

_ALONE = 4
_HANDS = 8
_count = itertools.count()


def temporary(folder: Path) -> Path:
    """Return a path for a file that is still being written, which no other process and no other thread uses."""
    return folder / f"{TEMPORARY}{os.getpid()}-{next(_count)}"


def write_new(file: Path, data: bytes) -> None:
    """Create a file with this content, and sync it to disk. Raises `FileExistsError` if it exists."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        sync_file(handle)
    finally:
        os.close(handle)


def put(file: Path, data: bytes) -> None:
    """Write a file and move it to its place in one step. The name is durable only when its folder is synced."""
    begun = temporary(file.parent)
    try:
        write_new(begun, data)
        os.replace(begun, file)
    except BaseException:
        with suppress(OSError):
            begun.unlink()
        raise


def put_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write several files below a folder. All are written before the first is moved to its place. If moving one of them fails,
    those that were moved before stay.
    """
    for place in dict.fromkeys((folder / name).parent for name in contents):
        make_folder(place)
    written = {folder / name: content for name, content in contents.items()}
    begun = {file: temporary(file.parent) for file in written}
    try:
        if len(begun) <= _ALONE:
            for file, content in written.items():
                write_new(begun[file], content)
        else:  # a disk syncs many files together as fast as one
            with ThreadPoolExecutor(_HANDS, "holdfast-files") as hands:
                list(hands.map(write_new, begun.values(), written.values()))
        for file, name in begun.items():
            os.replace(name, file)
        for place in {file.parent: None for file in begun}:
            sync_folder(place)
    except BaseException:
        for name in begun.values():
            with suppress(OSError):
                name.unlink()
        raise


def probe(folder: Path) -> None:
    """Raise `OSError` if the folder cannot be written to."""
    begun = temporary(folder)
    try:
        begun.write_bytes(bytes(4096))
    finally:
        begun.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the temporary files that a dead process left in a folder."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(folder):
            if name.startswith(TEMPORARY):
                with suppress(OSError):
                    (folder / name).unlink()
