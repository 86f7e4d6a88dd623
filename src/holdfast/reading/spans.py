"""The pieces that a timeline consists of: spans of holders, attempts, waits, items of large fan-outs, and acts of people.

`seq` is the event with which a piece began. Times are those of the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.core import events
from holdfast.core.events import Stored

AttemptStatus: TypeAlias = Literal[
    "running", "completed", "failed", "interrupted", "skipped", "waiting", "crashed"
]
HolderEnd: TypeAlias = Literal["released", "drained", "died", "replaced"]
WaitedFor: TypeAlias = Literal["retry", "timer", "signal", "question", "child", "holder"]
ActVerb: TypeAlias = Literal[
    "start",
    "fork",
    "resume",
    "rewind",
    "pause",
    "cancel",
    "retry",
    "skip",
    "edit",
    "answer",
    "signal",
    "refused",
]

ITEMS_DRAWN = 8
"""A fan-out with more items is one `ItemSpan`."""
PARTS_MAX = 50
"""Into how many parts the time of a large fan-out is divided at most."""


class HolderSpan(msgspec.Struct, kw_only=True):
    """A time in which one process held the run."""

    seq: int
    holder: str | None
    """The process; None if the log does not name it, as for the process that created the run and executed it at once."""
    started_at: float
    ended_at: float | None = None
    """When the process stopped or, if it died, recorded its last event; None if it holds the run now."""
    end: HolderEnd | None = None
    """`released`: the run had ended, or only waited. `drained`: the process was asked to stop. `died`: the process ended before
    it could release the run. `replaced`: it lives, but lost the run to another process. None: it holds the run now."""
    noticed_at: float | None = None
    """When another process noticed that this one had died."""


class AttemptSpan(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An attempt of a node, or of an item of a fan-out. An attempt that waited in between has one span for each part."""

    seq: int
    node: str
    iteration: int
    execution: int
    attempt: int
    item: int | None = None
    status: AttemptStatus
    """How it ended: `waiting` if it was suspended and continues later, `crashed` if its process died."""
    started_at: float
    ended_at: float | None = None
    """None if it is running. For an attempt that crashed, the last sign of life of its process."""
    noticed_at: float | None = None
    """When another process noticed that the attempt had crashed."""
    woken: bool = False
    """True if this continues an attempt that waited."""
    error: str | None = None
    """Type and message of the exception, in one line; after `routing failed: ` if the attempt itself completed."""
    retry_at: float | None = None
    handled: bool = False
    """True if the attempt failed for good, and an error edge took the failure, so that the run continued."""
    current: bool = True
    """False if a rewind has undone it."""


class WaitSpan(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A time in which a visit, or the whole run, waited."""

    seq: int
    kind: WaitedFor
    """What it waited for; `holder`: that a process claims the run."""
    node: str | None = None
    """None if the whole run waited."""
    iteration: int = 0
    execution: int = 0
    item: int | None = None
    started_at: float
    ended_at: float | None = None
    """None if it still waits."""
    until: float | None = None
    """When the wait ends at the latest: the time of a timer or a retry, or the deadline of a question or a signal."""
    reason: str
    """What it waited for, in a few words."""
    key: str | None = None
    """The key of the question."""
    child: str | None = None
    """The id of the child run that it waited for."""
    ended_by: str | None = None
    """`answered`, `received`, `ended`, `time came` or `withdrawn`; None if something else ended the wait."""
    current: bool = True


class ItemSpan(msgspec.Struct, kw_only=True):
    """The items that one attempt of a large fan-out has called, together. A process that dies ends the attempt: the next span
    begins when another process has claimed the run.
    """

    seq: int
    node: str
    iteration: int
    execution: int
    items: int
    """How many items the fan-out has."""
    started_at: float
    ended_at: float | None
    """When the last of them ended; None if one is running."""
    attempts: int
    counts: dict[str, int]
    """Status -> how many items, by their latest attempt here; those that the first attempt did not begin are `pending`."""
    running: list[int]
    """The time from `started_at` to `ended_at` (or to the end of the log) in equal parts: how many attempts ran in each."""
    failed: list[int]
    """For the same parts: how many attempts failed or crashed."""
    crashed: list[int]
    """How many of these crashed."""
    current: bool = True


class Act(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller did to the run."""

    seq: int
    at: float
    verb: ActVerb
    """`refused` is a request that was not carried out; `about` then has its verb."""
    by: str | None = None
    reason: str | None = None
    node: str | None = None
    about: str | None = None
    """The key of a question, the name of a signal, the fields of an edit, the event that the run went back to."""
    answer: Any = None


class ForkMade(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was forked from this one."""

    run_id: str
    to: int | None
    """The event of this run from which it was forked; None if its log does not say so any more."""
    at: float
    by: str | None
    reason: str | None


Piece: TypeAlias = HolderSpan | AttemptSpan | WaitSpan | ItemSpan | Act

_BY_ITSELF = frozenset({"on_interrupt", "safe_to_fail", "repeat"})
"""The reasons with which the engine itself skips a node."""


def act_of(stored: Stored) -> Act | None:
    """Return what a caller did, if an event records that."""
    event = stored.event
    act = _described(event)
    if act is None:
        return None
    verb, more = act
    said = {"by": getattr(event, "by", None), "reason": getattr(event, "reason", None)}
    return Act(seq=stored.seq, at=stored.at, verb=verb, **{**said, **more})


def _described(event: Any) -> tuple[ActVerb, dict[str, Any]] | None:
    match event:
        case events.RunCreated():
            return "start", {}
        case events.RunForked():
            return "fork", {"about": f"{event.parent}@{event.to}"}
        case events.RunResumed():
            return "resume", {"about": ", ".join(event.nodes or ()) or None}
        case events.RunRewound():
            return "rewind", {"about": f"@{event.to}"}
        case events.RunPaused():
            return "pause", {}
        case events.RunCancelled():
            return "cancel", {}
        case events.StateEdited():
            return "edit", {"about": ", ".join(_fields(event.changes))}
        case events.SignalReceived():
            return "signal", {"about": event.name}
        case events.QuestionAnswered():
            return "answer", {"node": event.node, "about": event.key, "answer": event.answer}
        case events.NodeScheduled() if event.why == "retry":
            return "retry", {"node": event.node}
        case events.NodeSkipped() if event.warning is None and event.reason not in _BY_ITSELF:
            return "skip", {"node": event.node}
        case events.RequestRefused():
            return "refused", {"about": event.verb}
        case events.ResumeRefused():
            return "refused", {"about": "resume"}
        case _:
            return None


def _fields(changes: events.Changes) -> list[str]:
    return list(dict.fromkeys(name for part in msgspec.structs.astuple(changes) for name in part))


def item_span(bars: Sequence[AttemptSpan], items: int, attempt: AttemptSpan, end_at: float) -> ItemSpan:
    """Return the items that an attempt of a fan-out has called as one span. `end_at` is the time of the last event of the log."""
    first = bars[0]
    latest = {bar.item: bar.status for bar in bars}
    counts = dict[str, int]()
    for status in latest.values():
        counts[status] = counts.get(status, 0) + 1
    if items > len(latest) and attempt.attempt == 1 and not attempt.woken:
        counts["pending"] = items - len(latest)
    over = all(bar.ended_at is not None for bar in bars)
    until = max((end_at if bar.ended_at is None else bar.ended_at) for bar in bars)
    running, failed, crashed = _density(bars, first.started_at, until)
    return ItemSpan(
        seq=first.seq,
        node=first.node,
        iteration=first.iteration,
        execution=first.execution,
        items=items,
        started_at=first.started_at,
        ended_at=until if over else None,
        attempts=len({(bar.item, bar.attempt) for bar in bars}),
        counts=counts,
        running=running,
        failed=failed,
        crashed=crashed,
        current=any(bar.current for bar in bars),
    )


def _density(
    bars: Sequence[AttemptSpan], started_at: float, until: float
) -> tuple[list[int], list[int], list[int]]:
    """Return how many attempts ran, how many failed or crashed, and how many of these crashed, in each part of a time."""
    parts = min(PARTS_MAX, len(bars)) if until > started_at else 1
    width = (until - started_at) / parts or 1.0
    change, failed, crashed = [0] * (parts + 1), [0] * parts, [0] * parts
    for bar in bars:
        last = min(parts - 1, int(((until if bar.ended_at is None else bar.ended_at) - started_at) / width))
        change[min(parts - 1, int((bar.started_at - started_at) / width))] += 1
        change[last + 1] -= 1
        failed[last] += bar.status in ("failed", "crashed")
        crashed[last] += bar.status == "crashed"
    running, now = list[int](), 0
    for step in change[:-1]:
        now += step
        running.append(now)
    return running, failed, crashed
