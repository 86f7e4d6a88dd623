"""What follows from a record of `core.requests`: its options with their defaults, and plain values of them."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.core.budget import Budget, check_budget
from holdfast.errors import SettingError

LAST = ("by", "reason", "expects")
"""Options that are shown after those that only one verb has."""
AS_THE_FIELD: Any = ...
"""Stands for the default of the field."""


class Option(msgspec.Struct, frozen=True):
    """What is known of an option besides the name, the type and the default of its field. A field without it is no option."""

    says: str
    """A sentence about it, for every reader: of `help()`, of `--help`, of the OpenAPI document."""
    metavar: str = ""
    """What stands for its value in the help of a command; empty for a flag."""
    limit: Any = None
    """The type, with its limits, of what comes over HTTP; None if it is that of the field."""
    name: str = ""
    """Its name for callers; empty if that is the name of the field."""
    body_name: str = ""
    """Its name in the body of an HTTP request; empty if that is its name for callers."""
    default: Any = AS_THE_FIELD
    """The default that callers see."""
    is_required: bool = False
    """True if callers must give it although the field has a default."""
    is_header: bool = False
    """True if it is sent as a header of an HTTP request."""
    of_many: bool = False
    """True if it has a meaning in one request to many runs."""


class Given(NamedTuple):
    """An option of a record, as its callers see it."""

    name: str
    field: str
    type: Any
    default: Any
    """`msgspec.NODEFAULT` if callers must give it."""
    option: Option

    @property
    def body_name(self) -> str:
        """Its name in the body of an HTTP request."""
        return self.option.body_name or self.name

    def is_of(self, kind: type) -> bool:
        """Return whether its values are of this type, or None."""
        return kind in _kinds_of(self.type)


@functools.cache
def _kinds_of(hint: Any) -> frozenset[Any]:
    return frozenset(typing.get_origin(one) or one for one in (hint, *typing.get_args(hint)))


@functools.cache
def options_of(record: type[msgspec.Struct]) -> dict[str, Given]:
    """Return the options of a record by their names for callers, in the order of its fields. The fields of a struct in a field
    (`Answer.stated`) are options too.
    """
    found: dict[str, Given] = {}
    hints = {
        name: hint
        for kind in reversed(record.__mro__)
        for name, hint in inspect.get_annotations(kind).items()
    }
    for field in msgspec.structs.fields(record):
        hint = hints[field.name]
        option = option_in(hint)
        if option is not None:
            factory = field.default_factory
            default = field.default if factory is msgspec.NODEFAULT else factory()
            default = default if option.default is AS_THE_FIELD else option.default
            default = msgspec.NODEFAULT if option.is_required else default
            name = option.name or field.name
            found[name] = Given(name, field.name, typing.get_args(hint)[0], default, option)
        else:
            inner = [part for part in typing.get_args(hint) if isinstance(part, type)]
            for part in inner:
                if issubclass(part, msgspec.Struct):
                    found |= options_of(part)
    return found


def foreseen_options(record: type[msgspec.Struct]) -> list[str]:
    """Return the names of the options that a preview of a verb is about: those that the caller acts on come last."""
    own = [name for name in options_of(record) if name not in LAST]
    return [*own, *(name for name in LAST if name != "expects")]


def said_options(asked: msgspec.Struct, record: type[msgspec.Struct] | None = None) -> dict[str, Any]:
    """Return the options of a request that a preview is about and that differ from their defaults. `record` is the record of the
    verb, if the request is of a type that adds to it.
    """
    known = options_of(record or type(asked))
    given = {name: getattr(asked, name) for name in foreseen_options(record or type(asked))}
    empty: tuple[Any, ...] = (None, False, "", (), [], {})
    return {name: value for name, value in given.items() if value not in (*empty, known[name].default)}


def option_in(hint: Any) -> Option | None:
    """Return what an annotation says about an option; None if it says nothing."""
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Option)), None)


def read_options(record: type[msgspec.Struct], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a caller has given as values that the fields of the record can have. Raises `SettingError`."""
    known = options_of(record)
    return {name: _plain(known[name], value) if name in known else value for name, value in given.items()}


_READ = frozenset({Budget, list, dict})
"""The types of options whose values are checked or copied."""


def _plain(option: Given, value: Any) -> Any:
    if _kinds_of(option.type).isdisjoint(_READ):  # most options
        return value
    if option.is_of(Budget):
        return check_budget(value, option.name)
    if option.is_of(list):
        if value is None and option.default is None:
            return None
        names = check_names(option.name, value)
        return names if names or option.default is None or not option.is_of(type(None)) else None
    if option.is_of(dict):
        return _plain_mapping(option, value)
    return value


def _plain_mapping(option: Given, value: Any) -> Any:
    """Return a mapping as a dict. Another value that the option may have is returned as it is: a function, or one word for all
    nodes. The pairs of a mapping are accepted where only a mapping is.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if option.type != dict[str, str]:
        return value
    try:
        return dict(value or {})
    except (TypeError, ValueError):
        raise SettingError(f"{option.name}={value!r} is not valid: give a dict of names") from None


def check_names(option: str, given: Any) -> list[str]:
    """Return names of nodes as a list. Raises `SettingError` if the option has something else."""
    if isinstance(given, (str, Mapping)) or not isinstance(given, Collection):
        raise SettingError(f"{option}={given!r} is not valid: give a list of the names of nodes")
    if not all(isinstance(name, str) for name in given):
        raise SettingError(
            f"{option}={given!r} is not valid: give a list of the names of nodes, which are strings"
        )
    return list(given)
