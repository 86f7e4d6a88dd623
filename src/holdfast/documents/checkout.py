"""Reads the state of a git checkout, for the operator who must decide about an interrupted node.

It makes one call of git, which changes nothing, takes no lock, never prompts and never raises. If git does not answer within two
seconds, the result is None. The call blocks for that long; call it off the event loop where that matters.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

CHANGED_MAX = 50
_TIMEOUT_S = 2.0
_STATUS = (
    # A file-system monitor is a program that the checkout names; reading the status must not start it.
    *("git", "-c", "core.fsmonitor=false"),
    *("status", "--porcelain=v2", "--branch", "--untracked-files=normal", "-z"),
)
_MISLEADING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX")
"""Environment variables that git hooks set: they would make git read another folder than the given one."""


def checkout(folder: str | os.PathLike[str] = ".") -> dict[str, Any] | None:
    """Return `{"head", "branch", "changed", "more"}` of the git checkout that a folder belongs to; None if there is none.

    `head` is None before the first commit; `branch` is None if HEAD is detached. `changed` has the first 50 files that differ
    from HEAD, relative to the top of the checkout; `more` is the number of further files.
    """
    told = _status(folder)
    if told is None:
        return None
    head, branch = None, None
    changed: list[str] = []
    for line in _lines(told):
        if line.startswith("# branch.oid "):
            head = line.removeprefix("# branch.oid ")
        elif line.startswith("# branch.head "):
            branch = line.removeprefix("# branch.head ")
        elif not line.startswith("#"):
            changed.append(_path(line))
    return {
        "head": None if head == "(initial)" else head,
        "branch": None if branch == "(detached)" else branch,
        "changed": changed[:CHANGED_MAX],
        "more": max(0, len(changed) - CHANGED_MAX),
    }


def _status(folder: str | os.PathLike[str]) -> str | None:
    environment = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        asked = subprocess.run(  # noqa: S603 - a fixed command, found where the user's own git is
            _STATUS,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    # Bytes of a file name that are not valid UTF-8 are replaced: the log can store only text.
    return asked.stdout.decode("utf-8", "replace") if asked.returncode == 0 else None


def _lines(told: str) -> Iterator[str]:
    """Yield the entries of a git status. The old name of a renamed file, which follows its entry, is left out."""
    entries = iter(told.split("\0"))
    for entry in entries:
        if entry.startswith("2 "):
            next(entries, None)
        if entry:
            yield entry


def _path(entry: str) -> str:
    """Return the path of a status entry: its last field, and the only one that may contain spaces."""
    before = {"1": 8, "2": 9, "u": 10}.get(entry[0], 1)
    return entry.split(" ", before)[-1]
