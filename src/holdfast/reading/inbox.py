"""The requests that callers can send to a run: one type for each verb, and their stored form.

The inbox of a run has requests from callers that do not execute the run themselves. A store knows a request only as a verb and
plain data (`contract.Request`); all other code uses the types below, which form a closed union. The engine decides how each
request is carried out.

A request that is damaged, or that a newer version of Holdfast stored, becomes `Unknown`: it is refused and removed from the
inbox.
"""

from __future__ import annotations

import functools
from typing import Any, assert_never

import msgspec

from holdfast.core.events import Changes
from holdfast.core.requests import (
    EXECUTING,
    RECORDS,
    Answer,
    AnyRequest,
    Cancel,
    ChildEnd,
    Edit,
    Pause,
    Resume,
    Retry,
    Signal,
    Skip,
    Stated,
    Unknown,
    own_fields,
    stated_of,
    unfold,
)
from holdfast.errors import SettingError
from holdfast.storage.contract import Request

__all__ = [
    "EXECUTING", "Answer", "AnyRequest", "Cancel", "ChildEnd", "Edit", "Pause", "Resume", "Retry", "Signal", "Skip", "Stated",
    "Unknown", "own_fields", "stated_of",
]  # fmt: skip

_MARKS = frozenset(record.traits.id_mark for record in RECORDS.values())


def stored_id(given: str, verb: str) -> str:
    """Return the id under which a request is stored whose caller has given it an id. Signals had ids before other requests, and
    keep a mark of their own.
    """
    return f"{RECORDS[verb].traits.id_mark}{given}"


def given_id(stored: str) -> str:
    """Return the id of a request as its caller gave it; the stored id if the caller gave none."""
    return next((stored.removeprefix(mark) for mark in _MARKS if stored.startswith(mark)), stored)


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
            said = [
                name if where is True else f"{name.replace('_', ' ')} {where}"
                for name, where in request.places.items()
            ]
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
    return getattr(request, "expects", None)


def checked(request: AnyRequest) -> AnyRequest:
    """Return a request without the digest of its preview, because that was compared already."""
    return msgspec.structs.replace(request, expects=None) if expects_of(request) is not None else request


@functools.cache
def _left_out(kind: type[AnyRequest]) -> dict[str, Any]:
    """Return the fields that are left out of the stored form of such a request if they have these values: their defaults."""
    return {
        one.name: one.default_factory() if one.default is msgspec.NODEFAULT else one.default
        for one in msgspec.structs.fields(kind)
        if one.name in kind.left_out
    }


def stored_form(request: AnyRequest) -> Request:
    """Convert a request to its stored form."""
    left_out = _left_out(type(request))
    body = {
        name: value
        for name, value in own_fields(request).items()
        if name not in left_out or value != left_out[name]
    }
    body = msgspec.to_builtins(body) if isinstance(request, (ChildEnd, Answer)) else body
    limits = {name: msgspec.to_builtins(body.pop(name)) for name in request.not_ignored if name in body}
    if limits:
        body["on_change"] = {"on_change": body["on_change"], **limits}
    return Request(id=request.id, verb=request.verb, body=body, by=request.by, reason=request.reason)


def check(request: AnyRequest) -> Request:
    """Return the stored form of a request. Refuses one whose options have the wrong type, because no engine could read it. Raises
    `SettingError`.
    """
    stored = stored_form(request)
    try:
        msgspec.convert(unfold(stored.body), type(request))
    except (msgspec.ValidationError, TypeError) as fault:
        raise SettingError(
            f"this {request.verb} cannot be requested: {fault}. Correct the option."
        ) from fault
    return stored


def read(stored: Request) -> AnyRequest:
    """Convert the stored form of a request to its type."""
    shared = {
        "id": stored.id,
        "run_id": stored.run_id,
        "at": stored.at,
        "by": stored.by,
        "reason": stored.reason,
    }
    kind = RECORDS.get(stored.verb)
    if kind is not None:
        try:
            return msgspec.convert({**unfold(stored.body), **shared}, kind)
        except (msgspec.ValidationError, SettingError):
            pass
    return Unknown(**shared, stored_verb=stored.verb)  # type: ignore[arg-type]


def read_changes(stored: dict[str, Any]) -> Changes:
    """Read what a function of the caller changed. Raises `SettingError` if it is damaged."""
    try:
        return msgspec.convert(stored, Changes)
    except msgspec.ValidationError as fault:
        raise SettingError(f"the changes of this request cannot be read: {fault}") from fault
