"""Compares two states field by field, in the words of the flow: what was set, appended, merged or added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

Operation: TypeAlias = Literal["set", "unset", "append", "merge", "add"]

LARGE_BYTES = 4096
"""A value whose JSON is larger is replaced by its size and digest; `state` has the value itself."""
_ABSENT = object()


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A value, or the size and digest of a large one."""

    value: Any | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    """The size of a large value, as JSON."""
    sha256: str | UnsetType = UNSET


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a state. `path` has the name of the field and the keys inside it."""

    operation: Operation
    path: tuple[str, ...]
    now: Value | None = None
    """The new value; for `append`, the items that were appended, and for `add`, the amount."""
    was: Value | None = None


def changes(
    before: Mapping[str, Any], after: Mapping[str, Any], reducers: Mapping[str, str]
) -> Iterator[Change]:
    """Yield each change from one state to the other. `reducers` says how updates of each field are merged."""
    for name in [*before, *(name for name in after if name not in before)]:
        was, now = before.get(name, _ABSENT), after.get(name, _ABSENT)
        if not _same(was, now):
            yield from _change((name,), was, now, reducers.get(name, "set"))


def _change(path: tuple[str, ...], was: Any, now: Any, reducer: str) -> Iterator[Change]:
    if now is _ABSENT:
        yield Change(operation="unset", path=path, was=describe(was))
    elif reducer == "append" and isinstance(was, list) and isinstance(now, list) and now[: len(was)] == was:
        yield Change(operation="append", path=path, now=describe(now[len(was) :]))
    elif reducer == "add" and _is_number(was) and _is_number(now):
        yield Change(operation="add", path=path, now=describe(now - was), was=describe(was))
    elif isinstance(was, dict) and isinstance(now, dict):
        operation: Operation = "merge" if reducer == "merge" else "set"
        for key in [*was, *(key for key in now if key not in was)]:
            inner = was.get(key, _ABSENT), now.get(key, _ABSENT)
            if _same(*inner):
                continue
            if operation == "merge" and inner[1] is not _ABSENT:
                yield _set("merge", (*path, key), *inner)
            else:
                yield from _change((*path, key), *inner, "set")
    else:
        yield _set("set", path, was, now)


def _set(operation: Operation, path: tuple[str, ...], was: Any, now: Any) -> Change:
    earlier = None if was is _ABSENT else describe(was)
    return Change(operation=operation, path=path, now=describe(now), was=earlier)


def describe(value: Any) -> Value:
    """Return a value, or the size and digest of a large one."""
    written = msgspec.json.encode(value, order="sorted")
    if len(written) <= LARGE_BYTES:
        return Value(value=value)
    return Value(bytes=len(written), sha256=sha256(written).hexdigest())


def _same(was: Any, now: Any) -> bool:
    return type(was) is type(now) and bool(was == now)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
