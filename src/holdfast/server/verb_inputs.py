"""The bodies of the routes that ask for something: one type for each verb, with the fields of its request (`reading.inbox`).

A body that has a field which is not listed here is refused; nothing is ignored. Who asks is never in a body: it is the name of
the token. The id of a request is in the header `Idempotency-Key`, and the digest of its preview in `If-Match`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core.budget import Budget
from holdfast.core.validate import NODE_ID, PRIORITY_MAX, RUN_ID
from holdfast.runtime.creation import OnExists, Repeat, Schedule
from holdfast.server.runs import Name, RunId, Seq

TEXT_MAX = 10_000

Node = Annotated[str, Meta(pattern=f"^{NODE_ID.pattern}$")]
Confirmed = Annotated[str, Meta(pattern=f"^({RUN_ID.pattern}/)?{NODE_ID.pattern}$")]
"""A node, or `RUN/node` for a node of a child run."""
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Fields = dict[str, Any]
"""Field of the state -> its new value."""
Scope = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...], Meta(min_length=1, max_length=10_000)
]
"""Names of nodes."""
Labels = Annotated[dict[str, Annotated[str, Meta(max_length=1024)]], Meta(max_length=100)]


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every body may say."""

    reason: Text | None = None
    """Why the caller asks for this. It is recorded in the log."""


class _VerbBody(_Body, frozen=True, kw_only=True):
    """What the body of every verb may say."""

    run_id: RunId | UnsetType = UNSET
    """The id of the run in the path, once more. Another id is refused."""


class StartInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run to start."""

    flow: Name
    input: Any = None
    plan: dict[str, Any] | None = None
    """The plan to execute, if `flow` names capabilities. It brings its own input."""
    run_id: RunId | None = None
    """The id of the new run. Default: an id that follows from the header `Idempotency-Key`, or a random one."""
    labels: Labels | None = None
    queue: RunId | None = None
    priority: Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] = 0
    timeout: Annotated[float, Meta(gt=0, lt=1e10)] | None = None
    """Seconds."""
    begin_at: Annotated[float, Meta(ge=0, lt=1e11)] | datetime | None = None
    """The time at which workers may begin: seconds since the epoch, or a date and time with a time zone (RFC 3339)."""
    on_exists: OnExists = "refuse"
    budget: Budget | None = None
    """What the run may cost in total. Once it is spent, nothing more begins in the run."""
    schedule: Schedule | None = None
    """Default: the schedule of the flow."""
    scope: Scope | None = None
    """The only nodes that may run. Then the run is paused."""


class ResumeInput(_VerbBody, frozen=True, kw_only=True):
    """How to resume a run."""

    checkpoint: Seq | None = None
    after: Node | None = None
    restart_at: Node | None = None
    replay: bool = False
    edit: Fields | None = None
    force: bool = False
    confirm: Annotated[tuple[Confirmed, ...], Meta(max_length=10_000)] = ()
    """The nodes that may run again although they are not idempotent: those that the preview lists in `confirm`."""
    on_change: Literal["refuse", "compatible"] = "refuse"
    rename: dict[Node, Node] = {}
    budget: Budget | None = None
    """The new budget of the run, above what it has spent. Default: the one that it has."""
    scope: Scope | None = None
    """Nodes that may run too; `*` for all."""


class RetryInput(_VerbBody, frozen=True, kw_only=True):
    """What to retry. Default: every node that failed, was interrupted or waits."""

    node: Node | None = None
    fresh: bool = False
    confirm: Annotated[tuple[Confirmed, ...], Meta(max_length=10_000)] = ()
    """The nodes of child runs, as `RUN/node`, that may run again although they are not idempotent: those that the preview lists
    in `confirm`."""


class SkipInput(_VerbBody, frozen=True, kw_only=True):
    """What to skip, and the result to record for it."""

    node: Node
    update: Fields | None = None


class CancelInput(_VerbBody, frozen=True, kw_only=True):
    """Why to cancel a run."""


class PauseInput(_VerbBody, frozen=True, kw_only=True):
    """Why to pause a run."""


class EditInput(_VerbBody, frozen=True, kw_only=True):
    """The fields of the state to change."""

    fields: Annotated[Fields, Meta(min_length=1)]


class AnswerInput(_VerbBody, frozen=True, kw_only=True):
    """An answer to a question."""

    question: Annotated[str, Meta(min_length=1, max_length=1000)]
    """The key of the question, or its node if that has only one open question."""
    answer: Any
    update: Any = None
    """The result to record for an interrupted node, if the answer is `skip`."""
    confidence: Annotated[float, Meta(ge=0, le=1)] | None = None
    step: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    """The step that has happened, if the answer is `happened` and it is not known of several whether they have."""
    item: Annotated[int, Meta(ge=0)] | None = None
    """The item of a fan-out to which the step belongs."""
    result: Any = UNSET
    """The result of the step, if the answer is `happened`."""


class SignalInput(_VerbBody, frozen=True, kw_only=True):
    """A signal."""

    name: Annotated[str, Meta(min_length=1, max_length=1000)]
    payload: Any = None


class ForkInput(_Body, frozen=True, kw_only=True):
    """How to fork a run."""

    checkpoint: Seq | None = None
    """The event to fork from. Default: the latest checkpoint."""
    edit: Fields | None = None
    run_id: RunId | None = None
    """The id of the new run. Default: an id that follows from the header `Idempotency-Key`, or a random one."""
    repeat: Repeat | dict[Node, Repeat] = "ask"
    """What the fork does with visits of nodes that are not idempotent and that the run has begun: for all nodes, or by node."""
    fresh: bool = False
    labels: Labels | None = None
