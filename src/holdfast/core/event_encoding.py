"""Turns events into the form in which they are stored, and back.

The header of an event (kind, node, iteration, execution, attempt) is stored in columns; the body is the JSON of all other fields
that differ from their defaults. A body may say of which version of its kind it is (`v`): an older body is upgraded by
`UPCASTERS`, and a log with a newer one is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from holdfast.core.events import (
    KINDS,
    Changes,
    Event,
    NodeCompleted,
    NodeEvent,
    NodeStarted,
    require_all_fields,
)
from holdfast.errors import SchemaTooNew, SettingError, StoreCorrupt

T = TypeVar("T")

UPCASTERS: dict[tuple[str, int], Any] = {}
"""(kind, version) -> a function that upgrades a body (a dict) of that version to the next version. Without one, the body stays as
it is: the next version only has more fields, with defaults."""


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """An event in the form in which it is stored: the header as columns, the other fields as JSON (empty if all have their
    defaults).
    """

    kind: str
    node: str | None
    iteration: int
    execution: int
    attempt: int
    body: bytes


_HEADER = ("node", "iteration", "execution", "attempt")
_json_encode = msgspec.json.Encoder().encode
_UNCHANGED = Changes()


def _body_fields(cls: type[Event]) -> tuple[tuple[str, Any], ...]:
    fields = []
    for field in msgspec.structs.fields(cls):
        if field.name not in _HEADER or not issubclass(cls, NodeEvent):
            factory = field.default_factory
            default = field.default if factory is msgspec.NODEFAULT else factory()
            fields.append((field.name, default))
    return tuple(fields)


class _Header(msgspec.Struct):
    node: str | None
    iteration: int
    execution: int
    attempt: int


class _Made(dict[type[Event], T]):
    """A dict with one value per kind of event. Each value is computed when it is first needed: computing all of them would take a
    fifth of the time of `import holdfast`.
    """

    def __init__(self, make: Callable[[type[Event]], T]) -> None:
        self._make = make

    def __missing__(self, cls: type[Event]) -> T:
        made = self[cls] = self._make(cls)
        return made


_DECODERS = _Made(lambda cls: msgspec.json.Decoder(cls).decode)
_BODY_FIELDS = _Made(_body_fields)


require_all_fields(NodeStarted, *_HEADER, "took", "woken")
require_all_fields(NodeCompleted, *_HEADER, "changes", "routes", "items", "artifacts")


def _completion(event: NodeCompleted) -> dict[str, Any]:
    """Return the fields of a completion that differ from their defaults. Written out field by field, because it is fast."""
    body: dict[str, Any] = {}
    changes = event.changes
    if changes.set or changes != _UNCHANGED:
        body["changes"] = changes
    if event.routes is not None:
        body["routes"] = event.routes
    if event.items:
        body["items"] = True
    if event.artifacts:
        body["artifacts"] = event.artifacts
    return body


def encode(event: Event) -> Encoded:
    """Turn an event into its stored form. Call this before the event is folded, because the fold may extend a list that the event
    still contains.
    """
    cls = type(event)
    if cls is NodeStarted and event.took == 1 and not event.woken:  # type: ignore[attr-defined]  # half of all events: nothing is left to say
        return Encoded("NodeStarted", event.node, event.iteration, event.execution, event.attempt, b"")  # type: ignore[attr-defined]
    if cls is NodeCompleted:  # and half of what is left
        body = _completion(event)  # type: ignore[arg-type]
    else:
        body = {
            name: value for name, default in _BODY_FIELDS[cls] if (value := getattr(event, name)) != default
        }
    if cls.VERSION > 1 and (version := event.lowest_version()) > 1:
        body["v"] = version
    encoded = _json_encode(body) if body else b""
    if isinstance(event, NodeEvent):
        return Encoded(cls.__name__, event.node, event.iteration, event.execution, event.attempt, encoded)
    return Encoded(cls.__name__, None, 0, 0, 0, encoded)


def _current(cls: type[Event], body: bytes) -> bytes:
    """Upgrade the body of an event to the current version. A body without a version is of version 1."""
    fields: dict[str, Any] = msgspec.json.decode(body)
    version = fields.pop("v", 1)
    if version > cls.VERSION:
        raise SchemaTooNew(
            f"the log has version {version} of the event {cls.__name__!r}; this Holdfast knows versions up to {cls.VERSION}. "
            "Use the version of Holdfast that wrote the log, or a newer one."
        )
    while version < cls.VERSION:
        upgrade = UPCASTERS.get((cls.__name__, version))
        fields = upgrade(fields) if upgrade is not None else fields
        version += 1
    return _json_encode(fields)


def decode(encoded: Encoded) -> Event:
    """Turn the stored form of an event back into the event."""
    cls = KINDS.get(encoded.kind)
    if cls is None:
        raise SchemaTooNew(
            f"the log has an event of kind {encoded.kind!r}, which this version of Holdfast does not know. "
            "Use the version of Holdfast that wrote the log, or a newer one."
        )
    if cls is NodeStarted and not encoded.body and encoded.node:  # the short form that `encode` writes
        return NodeStarted(
            node=encoded.node,
            iteration=encoded.iteration,
            execution=encoded.execution,
            attempt=encoded.attempt,
        )
    try:
        body = encoded.body or b"{}"
        if b'"v":' in body or (cls.VERSION != 1 and (cls.__name__, 1) in UPCASTERS):
            body = _current(cls, body)
        if issubclass(cls, NodeEvent):
            header = _json_encode(
                _Header(encoded.node, encoded.iteration, encoded.execution, encoded.attempt)
            )
            body = header[:-1] + (b"}" if body == b"{}" else b"," + body[1:])
        return _DECODERS[cls](body)
    except (
        msgspec.MsgspecError,
        UnicodeDecodeError,
        AttributeError,
        TypeError,
        KeyError,
        SettingError,
    ) as fault:
        raise StoreCorrupt(f"an event of kind {encoded.kind!r} cannot be read: {fault}") from fault
