"""Exit codes: one for every way a command can end. docs/cli.md lists them, and a test compares the two."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from holdfast import errors

if TYPE_CHECKING:
    from holdfast.storage.contract import RunStatus


class Exit(IntEnum):
    """How a command ended."""

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
    (errors.ResumeRefused, Exit.REFUSED),
    (errors.AnswerRefused, Exit.REFUSED),
    (errors.SignalRefused, Exit.REFUSED),
    (errors.RunHeld, Exit.HELD),
    (errors.StoreError, Exit.STORE),
    (errors.IllegalEvent, Exit.DEFECT),
    (errors.HoldfastError, Exit.USAGE),
)
"""The first that fits. What is not listed by name is the caller's: a graph, a state, a setting, a flow that was not named."""

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
"""What a command that executes a run returns, by the status of the run afterwards."""


def code_of(error: errors.HoldfastError) -> Exit:
    """The exit code for an error."""
    return next(code for kind, code in OF_ERRORS if isinstance(error, kind))
