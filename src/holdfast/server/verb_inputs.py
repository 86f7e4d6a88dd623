"""The bodies of the routes that ask for something: one type for each verb, with the options of its record (`core.requests`).

A body that has a field which is not listed here is refused; nothing is ignored. Who asks is never in a body: it is the name of
the token. The id of a request is in the header `Idempotency-Key`, and the digest of its preview in `If-Match`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, get_origin

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core.budget import Budget
from holdfast.core.requests import RECORDS, Asked, Fields, Node, Scope, Text
from holdfast.core.validate import PRIORITY_MAX
from holdfast.core.verb_options import Given, options_of
from holdfast.runtime.creation import OnExists, Repeat, Schedule
from holdfast.server.runs import Name, RunId, Seq

Labels = Annotated[dict[str, Annotated[str, Meta(max_length=1024)]], Meta(max_length=100)]


class _VerbBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


def body_of(record: type[Asked]) -> type[msgspec.Struct]:
    """Return the type of the body with which a verb is asked for: the options of its record, with their limits."""
    fields = []
    for given in options_of(record).values():
        if not given.option.is_header:
            limit = given.type if given.option.limit is None else given.option.limit
            described = Annotated[limit, Meta(description=given.option.says)]  # type: ignore[valid-type]
            fields.append((given.body_name, described, _default(given, limit)))
    return msgspec.defstruct(
        f"{record.__name__}Input",
        fields,
        bases=(_VerbBody,),
        namespace={"__doc__": record.__doc__},
        frozen=True,
        kw_only=True,
    )


def _default(given: Given, limit: Any) -> Any:
    """Return the default of a field of a body, which is of the type of the field."""
    if given.default is None and dict in (limit, get_origin(limit)):
        return msgspec.field(default_factory=dict)
    return given.default


BODIES: dict[str, type[msgspec.Struct]] = {
    verb: body_of(record) for verb, record in RECORDS.items() if record.traits.role is not None
}
"""Verb -> the type of the body with which it is asked for."""


class ForkInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    reason: Text | None = None
    """Why the caller asks for this. It is recorded in the log."""
