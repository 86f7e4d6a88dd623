"""Writing files so that a reader sees the whole of one, or the file that was there before. Used for what is made beside a log.

Owns nothing. What is durable when: `write_new` the content, `put_all` content and names.
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
    """A name for something that is still being written, which no other process and no other thread has."""
    return folder / f"{TEMPORARY}{os.getpid()}-{next(_count)}"


def write_new(file: Path, data: bytes) -> None:
    """Make a file with this content."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        sync_file(handle)
    finally:
        os.close(handle)


def put(file: Path, data: bytes) -> None:
    """Put a file into its place in one step. The name is durable when its folder is synced."""
    begun = temporary(file.parent)
    try:
        write_new(begun, data)
        os.replace(begun, file)
    except BaseException:
        with suppress(OSError):
            begun.unlink()
        raise


def put_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Put several files into their places below a folder: all are written before the first gets its name, so that the disk
    has them together. Those that have their name when one fails keep it.
    """
    for place in dict.fromkeys((folder / name).parent for name in contents):
        make_folder(place)
    written = {folder / name: content for name, content in contents.items()}
    begun = {file: temporary(file.parent) for file in written}
    try:
        if len(begun) <= _ALONE:
            for file, content in written.items():
                write_new(begun[file], content)
        else:  # a disk syncs many files at once as quickly as one
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
    """Raise `OSError` where nothing can be written."""
    begun = temporary(folder)
    try:
        begun.write_bytes(bytes(4096))
    finally:
        begun.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what a process that died had begun to write here."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(folder):
            if name.startswith(TEMPORARY):
                with suppress(OSError):
                    (folder / name).unlink()
