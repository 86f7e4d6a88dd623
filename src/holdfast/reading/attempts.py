"""The attempts at a visit of a node, or at one of its items: how each began and ended, the lines of its traceback, and what an
attempt that died with its process has left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.core.slots import Slot
from holdfast.reading import words
from holdfast.reading.places import frames_of, is_foreign
from holdfast.reading.views import EventView

AttemptStatus: TypeAlias = Literal[
    "running", "completed", "failed", "interrupted", "skipped", "waiting", "crashed"
]
ReasonKind: TypeAlias = Literal["resumed", "claimed", "rewound", "retried", "answered", "retry"]

LINES_MAX = 200
_LEFT_LINES = 5
NODE_ENDS: dict[str, AttemptStatus] = {
    "NodeCompleted": "completed",
    "NodeFailed": "failed",
    "NodeInterrupted": "interrupted",
    "NodeSkipped": "skipped",
    "NodeWaiting": "waiting",
}
ITEM_ENDS: dict[str, AttemptStatus] = {
    "ItemCompleted": "completed",
    "ItemFailed": "failed",
    "NodeWaiting": "waiting",
}
"""Kind of event -> how an attempt ended which that event ends: of a node, or of an item of a fan-out."""
_REASONS: dict[str, ReasonKind] = {
    "RunResumed": "resumed",
    "RunClaimed": "claimed",
    "RunRewound": "rewound",
    "NodeScheduled": "retried",
    "QuestionAnswered": "answered",
}
REASON_KINDS = tuple(_REASONS)
"""The kinds of events that can be the reason why an attempt began."""
MISROUTED = "routing failed"
"""What is said about an attempt that completed, but whose router raised an exception."""


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


class AttemptReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an attempt began, if it is not the first one or had to be allowed."""

    kind: ReasonKind
    """`retry`: the node's own retry policy; `retried`: a caller asked for it."""
    seq: int
    at: float
    by: str | None = None
    reason: str | None = None
    holder: str | None = None
    """The process that claimed the run."""


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
    visit: Iterable[EventView],
    reasons: Iterable[EventView],
    chunks: Mapping[tuple[int, int | None], Sequence[Any]],
    known: Known,
    item: int | None = None,
) -> list[AttemptView]:
    """Return the attempts at a visit, or at an item of it. `visit` has the events of the visit, `reasons` events of the run that
    can be the reason for an attempt, and `chunks` what each attempt of the node or of an item streamed.
    """
    ends = NODE_ENDS if item is None else ITEM_ENDS
    begins = "NodeStarted" if item is None else "ItemStarted"
    found: dict[int, dict[str, Any]] = {}
    starts: dict[int, int] = {}
    steps: dict[int, list[str]] = {}
    for event in visit:
        if event.body.get("item") != item:
            continue
        if event.kind == begins:
            known_here = found.setdefault(event.attempt, {"started_at": event.at})
            known_here |= {"status": "running", "ended_at": None}
            starts.setdefault(event.attempt, event.seq)
        elif event.kind in ends:
            found.setdefault(event.attempt, {"started_at": None}).update(_end(event, ends[event.kind]))
        elif event.kind == "RoutingFailed" and event.attempt in found:
            failure = failure_view(event.body["failure"])
            found[event.attempt] |= {"status": "failed", "failure": failure, "reason": MISROUTED}
        elif event.kind == "NodeRouted" and event.attempt in found:
            found[event.attempt] |= {"status": "completed", "failure": None, "reason": None}
        elif has_outcome(event):
            steps.setdefault(event.attempt, []).append(step_of(event).label)
    last = max(found, default=0)
    reasons = list(reasons)
    for number, attempt in found.items():
        if attempt["status"] == "running" and (number < last or known.crashed):
            attempt["status"] = "crashed"
        attempt["because"] = _because(number, starts, found, reasons)
        if attempt["status"] in ("crashed", "interrupted"):
            streamed = chunks.get((number, item), ())
            attempt["left"] = Left(
                steps=steps.get(number, []),
                chunks=len(streamed),
                last_lines=words.lines(streamed, _LEFT_LINES),
                files=list(known.files) if number == last else [],
                checkout=dict(known.checkout) if number == last else {},
            )
    return [AttemptView(attempt=number, **attempt) for number, attempt in sorted(found.items())]


def _end(event: EventView, status: AttemptStatus) -> dict[str, Any]:
    body = event.body
    failure = body.get("failure") or body.get("warning")
    return {
        "status": "crashed" if body.get("lost") else status,
        "ended_at": event.at if event.kind != "NodeWaiting" else None,
        "failure": failure_view(failure) if failure else None,
        "retry_at": body.get("retry_at"),
        "reason": body.get("reason"),
        "by": event.by,
        "seq": event.seq,
    }


def _because(
    number: int, starts: Mapping[int, int], found: Mapping[int, dict[str, Any]], reasons: Sequence[EventView]
) -> AttemptReason | None:
    """Return why an attempt began: the last reason between its beginning and that of the attempt before it."""
    before = found.get(number - 1)
    if number in found:
        found[number].pop("seq", None)
    if number not in starts:
        return None
    earliest = starts.get(number - 1, 0)
    between = [event for event in reasons if earliest < event.seq < starts[number]]
    if number == 1:
        between = [event for event in between if event.kind == "QuestionAnswered"]
    if between:
        event = between[-1]
        return AttemptReason(
            kind=_REASONS[event.kind],
            seq=event.seq,
            at=event.at,
            by=event.by,
            reason=event.body.get("reason"),
            holder=event.body.get("holder") or None,
        )
    if before is not None and before.get("retry_at") is not None:
        return AttemptReason(kind="retry", seq=starts[number], at=before["retry_at"])
    return None


def failure_view(failure: Mapping[str, Any]) -> FailureView:
    """Return a recorded failure with the lines of its traceback."""
    trace = failure.get("traceback", "")
    return FailureView(
        kind=failure.get("kind", ""),
        type=failure.get("type", ""),
        message=failure.get("message", ""),
        advice=failure.get("advice", ""),
        frames=[
            Frame(
                file=line.file,
                line=line.line,
                function=line.function,
                source=line.source,
                own=not is_foreign(line.file),
            )
            for line in frames_of(trace)
        ],
        traceback=trace,
    )


def step_of(event: EventView) -> Slot:
    """Return the step that an event about a step names."""
    return Slot("step", event.body["step"])


def has_outcome(event: EventView) -> bool:
    """Return whether an event is the outcome of a step: its result, or an exception that is kept."""
    if event.kind == "StepFailed":
        return event.body.get("retry_at") is None
    return event.kind == "StepCompleted"
