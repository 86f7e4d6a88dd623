"""Reads the query of a request into the struct that its route declares. Nothing is ignored: a parameter that is unknown, is given
twice, or does not fit its type is refused.
"""

from __future__ import annotations

import functools
import re
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
import msgspec.inspect

from holdfast.errors import did_you_mean, end_sentence
from holdfast.server.json_body import split_fault
from holdfast.server.problems import Fault, refuse

T = TypeVar("T", bound=msgspec.Struct)

_PARAMETERS_MAX = 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class NoQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The query of a route that takes no parameter."""


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, bool]:
    """Return the names of the parameters, and whether each may be given more than once."""
    return {
        field.encode_name: isinstance(msgspec.inspect.type_info(field.type), msgspec.inspect.VarTupleType)
        for field in msgspec.structs.fields(kind)
    }


def read_query(raw: bytes, kind: type[T]) -> T:
    """Read the query of a request. Raises `Refused`."""
    given: dict[str, Any] = {}
    fields = _fields(kind)
    for name, value in _pairs(raw):
        if name not in fields:
            known = (
                f"The parameters are: {', '.join(fields)}." if fields else "This path takes no parameters."
            )
            told = end_sentence(f"There is no parameter {name!r}{did_you_mean(name, fields)}")
            raise refuse("bad-parameter", f"{told} {known}")
        if _CONTROL.search(value):
            raise _unfit(name, "it contains a control character")
        if fields[name]:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise _unfit(name, "it is given twice")
        else:
            given[name] = value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as fault:
        name, why = split_fault(fault)
        if not name:  # a parameter that is missing
            raise refuse("bad-parameter", f"{why}.") from None
        raise _unfit(name, why) from None


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_PARAMETERS_MAX
        )
    except UnicodeDecodeError:
        raise refuse("bad-parameter", "The query is not UTF-8 text, percent-encoded.") from None
    except ValueError:
        raise refuse("bad-parameter", f"The query has more than {_PARAMETERS_MAX} parameters.") from None


def _unfit(name: str, why: str) -> Exception:
    return refuse("bad-parameter", f"The parameter {name!r} is not valid: {why}.", faults=(Fault(name, why),))
