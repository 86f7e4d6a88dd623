"""The exit codes of all commands. docs/cli.md lists them too, and a test compares the two lists."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from holdfast import errors

if TYPE_CHECKING:
    from holdfast.storage.contract import RunStatus


class Exit(IntEnum):
    """The exit code of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    HELD = 5
    STORE = 6
    WAITS = 7
    CANCELLED = 8
    DAMAGED = 9
    STUCK = 10
    DEFECT = 70
    INTERRUPTED = 130
    TERMINATED = 143


OF_ERRORS: tuple[tuple[type[errors.HoldfastError], Exit], ...] = (
    (errors.RunFailed, Exit.FAILED),
    (errors.RunCancelled, Exit.CANCELLED),
    (errors.RunNotFound, Exit.NOT_FOUND),
    (errors.RunExists, Exit.REFUSED),
    (errors.RequestExists, Exit.REFUSED),
    (errors.ResumeRefused, Exit.REFUSED),
    (errors.AnswerRefused, Exit.REFUSED),
    (errors.SignalRefused, Exit.REFUSED),
    (errors.RunHeld, Exit.HELD),
    (errors.StoreError, Exit.STORE),
    (errors.IllegalEvent, Exit.DEFECT),
    (errors.HoldfastError, Exit.USAGE),
)
"""Error class -> exit code; the first class that matches counts. An error that is not listed by name is the caller's fault: a
wrong graph, state or setting, or a flow that was not named.
"""

OF_STATUSES: dict[RunStatus, Exit] = {
    "pending": Exit.OK,
    "running": Exit.OK,
    "waiting": Exit.WAITS,
    "paused": Exit.WAITS,
    "interrupted": Exit.INTERRUPTED,
    "completed": Exit.OK,
    "failed": Exit.FAILED,
    "cancelled": Exit.CANCELLED,
}
"""Status of a run -> the exit code of the command that executed it."""


def code_of(error: errors.HoldfastError) -> Exit:
    """Return the exit code for an error."""
    return next(code for kind, code in OF_ERRORS if isinstance(error, kind))


def code_named(error: str) -> Exit:
    """Return the exit code for an error of which only the name of its class is known."""
    named = getattr(errors, error)
    return next(code for kind, code in OF_ERRORS if issubclass(named, kind))
