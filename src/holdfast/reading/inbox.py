"""What can be asked of a run: one type for each verb, and the form in which a store keeps it.

An inbox holds requests for a run that another engine executes, or none. A store knows only verb and body (`contract.Request`);
everything in this room uses the types below, which form a closed union. `operator` has the table of how each is carried out.

A request that was stored by a newer version, or is damaged, becomes `Unknown`: it is refused, and leaves the inbox.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, TypeAlias

import msgspec

from holdfast.storage.contract import Request


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What every request has: who asks, and why."""

    verb: ClassVar[str]
    id: str = ""
    """Posting a request twice under one id posts it once. Empty: it gets an id when it is carried out."""
    run_id: str = ""
    by: str | None = None
    reason: str | None = None


class Pause(_Asked, frozen=True, kw_only=True):
    """Start nothing new until the run is resumed."""

    verb: ClassVar[str] = "pause"


class Cancel(_Asked, frozen=True, kw_only=True):
    """End the run for good."""

    verb: ClassVar[str] = "cancel"


class Answer(_Asked, frozen=True, kw_only=True):
    """Answer an open question."""

    verb: ClassVar[str] = "answer"
    key: str
    value: Any = None
    update: Any = None
    """With the answer `skip` to a node that was interrupted: what takes the place of its result."""
    confidence: int | float | None = None


class Signal(_Asked, frozen=True, kw_only=True):
    """Send a signal that a node waits for, or will."""

    verb: ClassVar[str] = "signal"
    name: str
    payload: Any = None


class Retry(_Asked, frozen=True, kw_only=True):
    """Try a node again that failed, was interrupted or waits; None: all of them."""

    verb: ClassVar[str] = "retry"
    node: str | None = None
    fresh: bool = False


class Skip(_Asked, frozen=True, kw_only=True):
    """Put an update in place of a node's result."""

    verb: ClassVar[str] = "skip"
    node: str
    update: Any = None


class Unknown(_Asked, frozen=True, kw_only=True):
    """A request that this version cannot read."""

    verb: ClassVar[str] = ""
    stored_verb: str


AnyRequest: TypeAlias = Pause | Cancel | Answer | Signal | Retry | Skip | Unknown

_TYPES: dict[str, type[AnyRequest]] = {
    kind.verb: kind for kind in (Pause, Cancel, Answer, Signal, Retry, Skip)
}
_SHARED = frozenset(_Asked.__struct_fields__)
_LEFT_OUT = {"answer": ("update", "confidence")}
"""Verb -> fields that are stored only where they are given."""


def stored_form(request: AnyRequest) -> Request:
    """A request as a store keeps it."""
    left_out = _LEFT_OUT.get(request.verb, ())
    body = {
        name: value
        for name in request.__struct_fields__
        if name not in _SHARED and ((value := getattr(request, name)) is not None or name not in left_out)
    }
    return Request(id=request.id, verb=request.verb, body=body, by=request.by, reason=request.reason)


def read(stored: Request) -> AnyRequest:
    """A request from a store."""
    shared = {"id": stored.id, "run_id": stored.run_id, "by": stored.by, "reason": stored.reason}
    kind = _TYPES.get(stored.verb)
    if kind is not None:
        try:
            return msgspec.convert({**stored.body, **shared}, kind)
        except msgspec.ValidationError:
            pass
    return Unknown(**shared, stored_verb=stored.verb)  # type: ignore[arg-type]


def requests_to(run_id: str, stored: Iterable[Request]) -> list[AnyRequest]:
    """The requests among `stored` that are for one run, oldest first."""
    return [read(request) for request in stored if request.run_id == run_id]
