"""The attempts at a visit of a node, or at one of its items: how each began and ended, the lines of its traceback, and what an
attempt that died with its process has left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.events import Failure
from holdfast.reading import words
from holdfast.reading.places import frames_of, is_foreign
from holdfast.reading.spans import AttemptStatus
from holdfast.reading.visits import AttemptReason, AttemptRecord

LINES_MAX = 200
_LEFT_LINES = 5


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a traceback, the line that raised last."""

    file: str
    line: int
    function: str
    source: str
    """The text of the line; empty if it was not recorded."""
    own: bool
    """True if the file belongs neither to Python nor to an installed package."""


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt failed."""

    kind: str
    """`recoverable`, `partial` or `fatal`."""
    type: str
    message: str
    frames: list[Frame]
    traceback: str = ""
    """The traceback as Python prints it."""
    advice: str = ""
    """What to do about it, besides what the message says."""
    item: int | None = None
    """The item for which a fan-out failed; None for any other failure."""
    label: str = ""
    """The label of that item, if it has one."""


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt that did not end in order has left behind."""

    steps: list[str]
    """Names of the steps whose results it recorded; no later attempt calls them again."""
    chunks: int
    """How many chunks it streamed."""
    last_lines: list[str]
    files: list[str]
    """Files in the node's folder; only for the latest attempt, and only if this server has such files."""
    checkout: dict[str, Any]
    """The git checkout as it was when the crash was noticed, if that was recorded."""


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a visit, or at an item of it."""

    attempt: int
    status: AttemptStatus
    """`crashed` if its process died; `waiting` if it was suspended and continues later."""
    started_at: float | None
    ended_at: float | None
    failure: FailureView | None = None
    retry_at: float | None = None
    reason: str | None = None
    """Why it was interrupted or skipped; `routing failed` if it completed, but its router raised the exception."""
    by: str | None = None
    """Who skipped it."""
    because: AttemptReason | None = None
    left: Left | None = None


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known beside the log about a visit whose process has died."""

    crashed: bool
    """True if no live process executes the run now, so that an attempt without an end has crashed."""
    files: Sequence[str] = ()
    checkout: Mapping[str, Any] = {}


def attempts_of(
    records: Iterable[AttemptRecord],
    steps: Mapping[int, list[str]],
    chunks: Mapping[tuple[int, int | None], Sequence[Any]],
    known: Known,
) -> list[AttemptView]:
    """Return the attempts at a visit, or at an item of it. `steps` has the names of the steps that each attempt completed, and
    `chunks` what each attempt of the node or of an item streamed.
    """
    found = sorted(records, key=lambda record: record.number)
    return [
        _view(
            record,
            _left(record, steps, chunks, known if record is found[-1] else Known(crashed=known.crashed))
            if record.status in ("crashed", "interrupted")
            else None,
        )
        for record in found
    ]


def _left(
    record: AttemptRecord,
    steps: Mapping[int, list[str]],
    chunks: Mapping[tuple[int, int | None], Sequence[Any]],
    known: Known,
) -> Left:
    streamed = chunks.get((record.number, record.item), ())
    return Left(
        steps=steps.get(record.number, []),
        chunks=len(streamed),
        last_lines=words.lines(streamed, _LEFT_LINES),
        files=list(known.files),
        checkout=dict(known.checkout),
    )


def _view(record: AttemptRecord, left: Left | None) -> AttemptView:
    return AttemptView(
        attempt=record.number,
        status=record.status,
        started_at=record.started_at,
        ended_at=record.ended_at,
        failure=failure_of(record.failure),
        retry_at=record.retry_at,
        reason=record.reason,
        by=record.by,
        because=record.motive,
        left=left,
    )


def failure_of(failure: Failure | None) -> FailureView | None:
    """Return a recorded failure with the lines of its traceback."""
    if failure is None:
        return None
    return FailureView(
        kind=failure.kind,
        type=failure.type,
        message=failure.message,
        advice=failure.advice,
        item=failure.item,
        label=failure.label,
        frames=[
            Frame(
                file=line.file,
                line=line.line,
                function=line.function,
                source=line.source,
                own=not is_foreign(line.file),
            )
            for line in frames_of(failure.traceback)
        ],
        traceback=failure.traceback,
    )
