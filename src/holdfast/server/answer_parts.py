"""What `Client` reads of the answers of a server: one struct for each, with the fields that it needs."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.reading.history import Checkpoint
from holdfast.reading.ledger import Ledger
from holdfast.reading.views import EventView, RequestView, Run, RunSummary
from holdfast.storage.http.problem_types import Fault


class SentVerb(msgspec.Struct):
    """The answer to a verb."""

    request: str
    run: Run[Any]


class StatePart(msgspec.Struct):
    """The state of a run."""

    state: dict[str, Any]


class EventsPart(msgspec.Struct):
    """A page of events."""

    events: list[EventView]
    newer: int | None


class CheckpointsPart(msgspec.Struct):
    """A page of checkpoints."""

    checkpoints: list[Checkpoint]
    next: int | None


class LedgerPart(Ledger, frozen=True, kw_only=True):
    """A page of a ledger."""

    next: int | None = None


class PlanProblems(msgspec.Struct):
    """What is wrong with a plan."""

    problems: list[Fault]


class PlanPart(msgspec.Struct):
    """The plan of a run."""

    plan: dict[str, Any]


class Asking(msgspec.Struct):
    """A run that asks something."""

    run_id: str


class QuestionsPart(msgspec.Struct):
    """A page of open questions."""

    questions: list[Asking]
    next: str | None


class RunsPart(msgspec.Struct):
    """A page of runs."""

    runs: list[RunSummary]
    next: str | None


class RequestsPart(msgspec.Struct):
    """The requests to a run."""

    requests: list[RequestView]


class NewRunId(msgspec.Struct):
    """A run that was made."""

    id: str


class MovedTo(msgspec.Struct):
    """Where a stream continues after a compaction."""

    seq: int


class StreamedEvent(EventView, frozen=True, kw_only=True):
    """An event in a stream; `omitted` is its size if it is too large for a stream."""

    omitted: int = 0
