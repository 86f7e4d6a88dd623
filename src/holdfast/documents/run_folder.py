"""Says where the files of a run are (`RUN_BASE/<run id>/<flow>/`), and turns names into safe parts of paths.

It touches no file. Invariant: two names never become the same part of a path, and no part leads out of its folder. (If a file
system ignores case, the code that makes a file adds a mark to the second name.)
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

RECEIPTS, HANDOFFS, ARTIFACTS, RUN_FILE = "receipts", "handoffs", "artifacts", "run.json"
TEMPORARY = ".tmp-"
"""The prefix of a file that is still being written."""

_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10))}
)
_PART_BYTES_MAX = 100
RUN_BYTES_MAX = 128


def part(name: str, bytes_max: int = _PART_BYTES_MAX) -> str:
    """Turn a name into one part of a path. Unsafe characters are written as %XX; a long name is shortened and gets `~` and its
    digest. `%` and `~` themselves are unsafe and therefore escaped, so no other name can look the same.
    """
    safe = "".join(sign if sign in _SAFE else _escape(sign) for sign in name)
    if safe[:1] in (".", "-") or safe.partition(".")[0].lower() in _DEVICES:
        safe = _escape(safe[0]) + safe[1:]
    if safe.endswith("."):
        safe = safe[:-1] + _escape(".")
    if not safe or len(safe) > bytes_max:
        return f"{safe[: bytes_max - 17]}~{mark(name, 16)}"
    return safe


def mark(name: str, digits: int = 8) -> str:
    """Return the first digits of the name's digest, which distinguish it from other names that would look the same."""
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def _escape(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))


def run_folder(run_base: str | os.PathLike[str], run_id: str, flow: str) -> Path:
    """Return the folder for the files of a run."""
    return Path(os.path.abspath(run_base)) / part(run_id, RUN_BYTES_MAX) / part(flow)
