"""What is known about a checkout at this moment, for the operator who must decide about an interrupted node.

Owns one call of git, and nothing else: it changes nothing, takes no lock, never prompts and never raises. Where git does not
answer in time, nothing is known. It blocks for as long as that takes; call it off the event loop where that matters.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

CHANGED_MAX = 50
_TIMEOUT_S = 2.0
_STATUS = (
    # A file-system monitor is a program that the checkout names; looking must not start it.
    *("git", "-c", "core.fsmonitor=false"),
    *("status", "--porcelain=v2", "--branch", "--untracked-files=normal", "-z"),
)
_MISLEADING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX")
"""Set inside a git hook: they would make git look elsewhere than in the folder."""


def checkout(folder: str | os.PathLike[str] = ".") -> dict[str, Any] | None:
    """`{"head", "branch", "changed", "more"}` of the git checkout that a folder belongs to; None where there is none.

    `head` is None before the first commit, `branch` where HEAD is detached. `changed` names the first 50 files that
    differ from HEAD, from the top of the checkout; `more` says how many follow.
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
    # A name that is not valid text is shown as well as it can be: what is kept must be text.
    return asked.stdout.decode("utf-8", "replace") if asked.returncode == 0 else None


def _lines(told: str) -> Iterator[str]:
    """The entries of a status; a renamed file's former name, which follows it, is none of its own."""
    entries = iter(told.split("\0"))
    for entry in entries:
        if entry.startswith("2 "):
            next(entries, None)
        if entry:
            yield entry


def _path(entry: str) -> str:
    """The path is the last field, and the only one that may hold spaces."""
    before = {"1": 8, "2": 9, "u": 10}.get(entry[0], 1)
    return entry.split(" ", before)[-1]
