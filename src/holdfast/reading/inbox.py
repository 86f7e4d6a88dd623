"""The requests that callers can send to a run: one type for each verb, and their stored form.

The inbox of a run has requests from callers that do not execute the run themselves. A store knows a request only as a verb and
plain data (`contract.Request`); all other code uses the types below, which form a closed union. The engine decides how each
request is carried out.

A request that is damaged, or that a newer version of Holdfast stored, becomes `Unknown`: it is refused and removed from the
inbox.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias, assert_never

import msgspec
from msgspec import UNSET

from holdfast.core.budget import Budget
from holdfast.core.events import Changes, Failure
from holdfast.errors import SettingError
from holdfast.storage.contract import Request


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every request: its id, the run, who asks and why."""

    verb: ClassVar[str]
    id: str = ""
    """The id of the request: sending a request again with the same id has no effect. If it is empty, the request gets an id
    when it is carried out.
    """
    run_id: str = ""
    at: float = 0.0
    """When the request was put into the inbox; 0 if it was not."""
    by: str | None = None
    reason: str | None = None


_GIVEN = ("request:", "signal:")
"""What the stored id of a request begins with if its caller has given the id."""


def stored_id(given: str, verb: str) -> str:
    """Return the id under which a request is stored whose caller has given it an id. Signals had ids before other requests, and
    keep a mark of their own.
    """
    return f"{_GIVEN[1] if verb == 'signal' else _GIVEN[0]}{given}"


def given_id(stored: str) -> str:
    """Return the id of a request as its caller gave it; the stored id if the caller gave none."""
    return next((stored.removeprefix(mark) for mark in _GIVEN if stored.startswith(mark)), stored)


class Pause(_Asked, frozen=True, kw_only=True):
    """A request to start no more nodes until the run is resumed."""

    verb: ClassVar[str] = "pause"


class Cancel(_Asked, frozen=True, kw_only=True):
    """A request to cancel the run for good."""

    verb: ClassVar[str] = "cancel"
    expects: str | None = None
    """The digest of the preview that the caller acts on: the request is refused if it would now do something else."""


class Stated(msgspec.Struct, frozen=True, omit_defaults=True):
    """The step that has happened, according to an answer, and its result."""

    result: Any
    step: str | None = None
    """Its name, and its key if it has one; None if only one step is in doubt."""
    item: int | None = None


def stated_of(step: str | None, item: int | None, result: Any) -> Stated | None:
    """Return what an answer states about a step; None if it states nothing. Raises `SettingError` if the result is missing."""
    if result is not UNSET:
        return Stated(result, step, item)
    if step is not None or item is not None:
        raise SettingError(
            "an answer about a step needs the result of the step: give result=… (--result JSON; null for None)"
        )
    return None


class Answer(_Asked, frozen=True, kw_only=True):
    """A request to record the answer to an open question."""

    verb: ClassVar[str] = "answer"
    key: str
    value: Any = None
    update: Any = None
    """The result to record for an interrupted node, if the answer is `skip`."""
    confidence: int | float | None = None
    stated: Stated | None = None
    """The step that has happened, if the answer is `happened`."""


class Signal(_Asked, frozen=True, kw_only=True):
    """A request to deliver a signal to the node that waits for it, or to the next one that will."""

    verb: ClassVar[str] = "signal"
    name: str
    payload: Any = None


class Retry(_Asked, frozen=True, kw_only=True):
    """A request to retry a node that failed, was interrupted or waits. If `node` is None, all such nodes are retried."""

    verb: ClassVar[str] = "retry"
    node: str | None = None
    fresh: bool = False
    confirm: list[str] | None = None
    """The nodes of descendants, named `RUN/node`, that may run again although they are not idempotent."""
    expects: str | None = None
    """As in `Cancel`."""


class Skip(_Asked, frozen=True, kw_only=True):
    """A request to skip a node, and to record `update` as its result."""

    verb: ClassVar[str] = "skip"
    node: str
    update: Any = None
    expects: str | None = None
    """As in `Cancel`."""


class Edit(_Asked, frozen=True, kw_only=True):
    """A request to change fields of the state. The run must not be running."""

    verb: ClassVar[str] = "edit"
    fields: dict[str, Any] = {}
    """Field -> its new value, as the caller gave it."""
    changes: dict[str, Any] | None = None
    """What a function of the caller changed, in the stored form of `events.Changes`, in place of `fields`."""
    seen: int | None = None
    """The seq of the last event that the function saw: the request is refused if the run has moved since. None if the caller
    gave fields, which do not depend on the state.
    """


class Resume(_Asked, frozen=True, kw_only=True):
    """A request to resume the run, with the options of `Engine.resume` except functions."""

    verb: ClassVar[str] = "resume"
    checkpoint: int | None = None
    after: str | None = None
    restart_at: str | None = None
    replay: bool = False
    edit: dict[str, Any] | None = None
    """Field -> its new value, as the caller gave it."""
    changes: dict[str, Any] | None = None
    seen: int | None = None
    """`changes` and `seen` are what a function of the caller changed, as in `Edit`."""
    force: bool = False
    confirm: list[str] = []
    on_change: Literal["refuse", "compatible"] = "refuse"
    rename: dict[str, str] = {}
    budget: Budget | None = None
    scope: list[str] | None = None
    expects: str | None = None
    """As in `Cancel`."""


class ChildEnd(_Asked, frozen=True, kw_only=True):
    """A request to record that a child run of the run has ended. The engine of the child leaves it, in the append with which the
    child ends.
    """

    verb: ClassVar[str] = "child-ended"
    run: str
    seq: int
    status: Literal["completed", "failed", "cancelled"]
    values: dict[str, Any] | None = None
    """The final state of a child that completed; None if it is large: then it is read from the log of the child."""
    failure: Failure | None = None
    usd: float = 0.0
    tokens: int = 0
    state_version: int | None = None
    """The version of the final state of a child that completed; None if an older version of Holdfast has executed the child."""


class Unknown(_Asked, frozen=True, kw_only=True):
    """A request that this version of Holdfast cannot read."""

    verb: ClassVar[str] = ""
    stored_verb: str


AnyRequest: TypeAlias = Pause | Cancel | Answer | Signal | Retry | Skip | Edit | Resume | ChildEnd | Unknown

_TYPES: dict[str, type[AnyRequest]] = {
    kind.verb: kind for kind in (Pause, Cancel, Answer, Signal, Retry, Skip, Edit, Resume, ChildEnd)
}
EXECUTING = frozenset({Resume.verb, Retry.verb, Skip.verb})
"""The verbs that make a run continue which no engine executes."""
_SHARED = frozenset(_Asked.__struct_fields__)
_LEFT_OUT = {
    "answer": ("update", "confidence", "stated"),
    **dict.fromkeys(("cancel", "skip"), ("expects",)),
    "retry": ("confirm", "expects"),
    "resume": ("expects", "budget", "scope"),
    "child-ended": ("state_version",),
}
"""Verb of a request -> fields that are stored only if they have a value."""
_LIMITS = ("budget", "scope")
"""The fields of a request to resume a run that older versions must not ignore: they are stored inside the field `on_change`, so
that an older version cannot read the request, and refuses it."""


def own_fields(request: AnyRequest) -> dict[str, Any]:
    """Return the fields of a request that only its verb has, with their values."""
    return {name: getattr(request, name) for name in request.__struct_fields__ if name not in _SHARED}


def about(request: AnyRequest) -> str | None:
    """Return in a few words what a request is about: the node, the question, the signal, the fields, or the place to resume
    from. None if its verb says everything.
    """
    match request:
        case Answer():
            return request.key
        case Signal():
            return request.name
        case Retry() | Skip():
            return request.node
        case Edit():
            return ", ".join(_edited_fields(request.fields, request.changes)) or None
        case Resume():
            place = {
                "checkpoint": request.checkpoint,
                "after": request.after,
                "restart at": request.restart_at,
            }
            said = [f"{name} {where}" for name, where in place.items() if where is not None]
            said += ["replay"] * request.replay
            said += [f"budget {request.budget}"] if request.budget is not None else []
            said += [f"scope {', '.join(request.scope)}"] if request.scope is not None else []
            fields = _edited_fields(request.edit or {}, request.changes)
            return "; ".join([*said, *([f"edit {', '.join(fields)}"] if fields else [])]) or None
        case ChildEnd():
            return request.run
        case Pause() | Cancel() | Unknown():
            return None
        case _:
            assert_never(request)


def _edited_fields(fields: dict[str, Any], changes: dict[str, Any] | None) -> list[str]:
    """Return the names of the fields that an edit changes, as far as the request can be read."""
    parts = [part for part in (changes or {}).values() if isinstance(part, (dict, list))]
    return list(dict.fromkeys([*fields, *(str(name) for part in parts for name in part)]))


def expects_of(request: AnyRequest) -> str | None:
    """Return the digest of the preview that a request was made for; None if it was made for none."""
    return request.expects if isinstance(request, (Cancel, Retry, Skip, Resume)) else None


def checked(request: AnyRequest) -> AnyRequest:
    """Return a request without the digest of its preview, because that was compared already."""
    if isinstance(request, (Cancel, Retry, Skip, Resume)) and request.expects is not None:
        return msgspec.structs.replace(request, expects=None)
    return request


def stored_form(request: AnyRequest) -> Request:
    """Convert a request to its stored form."""
    left_out = _LEFT_OUT.get(request.verb, ())
    body = {
        name: value
        for name, value in own_fields(request).items()
        if value is not None or name not in left_out
    }
    body = msgspec.to_builtins(body) if isinstance(request, (ChildEnd, Answer)) else body
    limits = {name: msgspec.to_builtins(body.pop(name)) for name in _LIMITS if name in body}
    if limits:
        body["on_change"] = {"on_change": body["on_change"], **limits}
    return Request(id=request.id, verb=request.verb, body=body, by=request.by, reason=request.reason)


def _unfold(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request from its stored form."""
    inner = body.get("on_change")
    return {**body, **inner} if isinstance(inner, Mapping) else dict(body)


def check(request: AnyRequest) -> None:
    """Refuse a request whose options have the wrong type: no engine could read it. Raises `SettingError`."""
    try:
        msgspec.convert(_unfold(stored_form(request).body), type(request))
    except (msgspec.ValidationError, TypeError) as fault:
        raise SettingError(
            f"this {request.verb} cannot be requested: {fault}. Correct the option."
        ) from fault


def read(stored: Request) -> AnyRequest:
    """Convert the stored form of a request to its type."""
    shared = {
        "id": stored.id,
        "run_id": stored.run_id,
        "at": stored.at,
        "by": stored.by,
        "reason": stored.reason,
    }
    kind = _TYPES.get(stored.verb)
    if kind is not None:
        try:
            return msgspec.convert({**_unfold(stored.body), **shared}, kind)
        except (msgspec.ValidationError, SettingError):
            pass
    return Unknown(**shared, stored_verb=stored.verb)  # type: ignore[arg-type]


def read_changes(stored: dict[str, Any]) -> Changes:
    """Read what a function of the caller changed. Raises `SettingError` if it is damaged."""
    try:
        return msgspec.convert(stored, Changes)
    except msgspec.ValidationError as fault:
        raise SettingError(f"the changes of this request cannot be read: {fault}") from fault
