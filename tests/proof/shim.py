"""The Python side of shim.c: build it, arm it in a process that has it preloaded, and read its record.

This module owns the names of fault modes and kinds of calls; their order is that of the enums in shim.c. Without Linux or a C
compiler there is no shim, and `why_not` says so: a caller that needs the shim must then report that nothing was proved.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).with_name("shim.c")

COUNT = "count"
KILLS = ("kill before", "kill after", "tear")
FAILURES = ("EIO once", "EIO for ever", "ENOSPC once", "ENOSPC for ever")
MODES = (*KILLS, *FAILURES)
_NUMBERS = {name: number for number, name in enumerate((COUNT, *MODES))}

KINDS = ("mark", "create", "write", "sync", "truncate", "unlink", "rename", "mkdir", "rmdir", "link")
_HEAD = struct.Struct("=IIIIqq")


class Call(NamedTuple):
    """One recorded call that took effect. `point` is its number; a mark has the number of the call before it."""

    kind: str
    path: str
    other: str
    point: int
    offset: int
    data: bytes


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")


def why_not() -> str | None:
    """Return why the shim cannot be used on this machine; None if it can."""
    if not sys.platform.startswith("linux"):
        return "the shim that simulates disk faults needs Linux; crash points and power loss were NOT tested"
    if compiler() is None:
        return (
            "no C compiler (cc) to build the shim for disk faults; crash points and power loss were NOT tested. "
            "Install one (on Debian and Ubuntu: apt install gcc libc6-dev) and try again."
        )
    return None


def build(folder: Path) -> Path:
    """Compile the shim, and return the path of the library."""
    library = folder / "shim.so"
    command = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-o", library]
    subprocess.run([*command, SOURCE, "-lpthread"], check=True, capture_output=True, text=True)
    return library


# --- in a process that has it preloaded ---------------------------------------------------------------


@cache
def library() -> Any:
    """Return the symbols of this process, among them those of the shim. Each `CDLL` defines a class: one is enough."""
    symbols = ctypes.CDLL(None)
    if hasattr(symbols, "holdfast_shim_count"):
        symbols.holdfast_shim_count.restype = ctypes.c_long
    return symbols


def is_loaded() -> bool:
    return hasattr(library(), "holdfast_shim_arm")


def arm(
    folder: str,
    *,
    point: int = 0,
    mode: str = COUNT,
    record: int = -1,
    randomness: str = "",
    played: bool = False,
) -> None:
    """Watch the files below a folder from now on, and fail at `point` in this mode. `record`: a file descriptor to write all
    calls to. `randomness`: a file that SQLite reads instead of /dev/urandom. `played`: simulate a kill: the process continues,
    but its calls do not change the disk any more.
    """
    library().holdfast_shim_randomness(os.fsencode(randomness))
    library().holdfast_shim_arm(
        os.fsencode(folder), ctypes.c_long(point), _NUMBERS[mode], ctypes.c_int(record), ctypes.c_int(played)
    )


def disarm() -> None:
    """Stop watching: every call passes through again."""
    arm("")


def count() -> int:
    """Return how many points were reached since `arm`."""
    return int(library().holdfast_shim_count())


def is_dead() -> bool:
    """Return whether a simulated kill has happened in this process."""
    return bool(library().holdfast_shim_is_dead())


def mark(text: str) -> None:
    """Write a text into the record, between the calls before and after it."""
    library().holdfast_shim_mark(text.encode())


# --- afterwards ---------------------------------------------------------------------------------------


def calls(record: bytes) -> Iterator[Call]:
    """Yield the calls of a record, in order."""
    at = 0
    while at < len(record):
        kind, path_bytes, other_bytes, point, offset, data_bytes = _HEAD.unpack_from(record, at)
        at += _HEAD.size
        path = os.fsdecode(record[at : at + path_bytes])
        at += path_bytes
        other = os.fsdecode(record[at : at + other_bytes])
        at += other_bytes
        yield Call(KINDS[kind], path, other, point, offset, record[at : at + data_bytes])
        at += data_bytes
