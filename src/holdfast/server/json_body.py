"""Reads the JSON body of a request into the struct that its route declares, and writes the JSON of answers.

A JSON parser that recurses can be made to fail by deep nesting, and one that keeps the last of two equal keys lets two readers
of the same body see different values. So depth is counted before the body is parsed, without recursion and in one pass, and
equal keys are refused.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from holdfast.plan.texts import find_equal_keys
from holdfast.server.problems import Fault, refuse

T = TypeVar("T")

DEPTH_MAX = 64
# A text that does not end is matched up to the end of the body, so that no part of the body is scanned twice.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_AT = re.compile(r" - at `\$\.?([^`]*)`$")

encode = msgspec.json.Encoder(enc_hook=str).encode
"""Encodes an answer. A value that msgspec does not know becomes text."""


def decode(data: bytes, kind: type[T]) -> T:
    """Decode a body. Raises `Refused`."""
    if depth(data) > DEPTH_MAX:
        raise refuse("bad-json", f"The body is nested deeper than {DEPTH_MAX} levels.")
    _refuse_equal_keys(data)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as fault:
        path, why = split_fault(fault)
        where = f"at `{path}`: " if path else ""
        raise refuse(
            "bad-body",
            f"The body does not fit: {where}{why}.{_fields(kind, path)}",
            faults=(Fault(path, why),),
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise refuse("bad-json", f"The body is not JSON: {fault}.") from None


def split_fault(fault: msgspec.ValidationError) -> tuple[str, str]:
    """Return which part of a value does not fit, and why. The path is empty if the value as a whole does not fit."""
    found = _AT.search(str(fault))
    return (found[1], _AT.sub("", str(fault))) if found is not None else ("", str(fault))


def depth(data: bytes) -> int:
    """Return how deep the arrays and objects of a JSON text are nested."""
    deepest = level = 0
    for sign in _TEXT.sub(b"", data).translate(None, _NOT_BRACKETS):
        if sign in b"[{":
            level += 1
            deepest = max(deepest, level)
        else:
            level -= 1
    return deepest


def _fields(kind: Any, path: str) -> str:
    """Return a sentence that names the fields of a body, for a fault that is not inside one of them."""
    if path or not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return ""
    return f" Its fields are: {', '.join(field.encode_name for field in msgspec.structs.fields(kind))}."


def _refuse_equal_keys(data: bytes) -> None:
    found = find_equal_keys(data)
    if found is not None:
        raise refuse(
            "bad-json",
            f"An object in the body has the key {found.key[:100]!r} twice, on lines {found.first} and {found.second}.",
            faults=(Fault(found.path, f"twice, on lines {found.first} and {found.second}"),),
        )
