"""Look into the declared types of capabilities: which fields they have, and whether a literal of a plan fits them.

Types are those that `core/codec` can store: dataclasses, msgspec structs, TypedDicts, pydantic models, and JSON's own types.
Where a type says nothing about its parts (`Any`, `dict`), nothing is a problem here.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.core.codec import Codec, is_pydantic, key_path, type_name
from holdfast.errors import CodecError, Problem, did_you_mean


class DeclaredField(typing.NamedTuple):
    """A field of a declared type."""

    type: Any
    required: bool


def fields_of(declared: Any) -> Mapping[str, DeclaredField] | None:
    """Return the fields of a type by their names in JSON; None if the type has no declared fields."""
    try:
        return _fields_of(_bare(declared))
    except TypeError:  # not hashable
        return None


@lru_cache(maxsize=1024)
def _fields_of(declared: Any) -> Mapping[str, DeclaredField] | None:
    if is_pydantic(declared):
        return {
            str(field.alias or name): DeclaredField(field.annotation, field.is_required())
            for name, field in declared.model_fields.items()
        }
    is_struct = isinstance(declared, type) and (
        dataclasses.is_dataclass(declared)
        or issubclass(declared, msgspec.Struct)
        or typing.is_typeddict(declared)
    )
    if not is_struct:
        return None
    hints = typing.get_type_hints(declared, include_extras=True)
    info: Any = msgspec.inspect.type_info(declared)
    return {
        field.encode_name: DeclaredField(_unwrapped(hints[field.name]), field.required)
        for field in info.fields
    }


def _unwrapped(declared: Any) -> Any:
    """Return a type without `Required`, `NotRequired` and `Final`, which say something about its field."""
    while typing.get_origin(declared) in (typing.Required, typing.NotRequired, typing.Final):
        declared = typing.get_args(declared)[0]
    return declared


def _bare(declared: Any) -> Any:
    """Return a type without `Annotated`, and without the None of an optional type."""
    while typing.get_origin(declared) is typing.Annotated:
        declared = typing.get_args(declared)[0]
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(declared) if kind is not type(None)]
        return _bare(kinds[0]) if len(kinds) == 1 else declared
    return declared


def missing_key(declared: Any, keys: tuple[str, ...]) -> tuple[str, Mapping[str, DeclaredField]] | None:
    """Return the first of the keys that values of a type never have, and the fields beside it; None if all may exist."""
    for key in keys:
        declared = _bare(declared)
        fields = fields_of(declared)
        origin = typing.get_origin(declared) or declared
        arguments = typing.get_args(declared)
        if fields is not None:
            if key not in fields:
                return key, fields
            declared = fields[key].type
        elif origin in (dict, Mapping):
            declared = arguments[1] if len(arguments) == 2 else Any
        elif origin is list:
            if not key.isdigit():
                return key, {}
            declared = arguments[0] if arguments else Any
        elif declared in (str, int, float, bool, type(None), None):
            return key, {}
        else:
            return None
    return None


def fit(template: Any, declared: Any, path: str, is_reference: Callable[[Any], bool]) -> Iterator[Problem]:
    """Yield why an input of a plan does not fit the type of a capability. References are left out: their values are not
    known.
    """
    if is_reference(template):
        if "default" in template:
            yield from fit(template["default"], declared, f"{path}.default", is_reference)
        return
    fields = fields_of(declared)
    bare = _bare(declared)
    if fields is not None and isinstance(template, dict):
        yield from _fit_fields(template, fields, bare, path, is_reference)
    elif isinstance(template, list) and (typing.get_origin(bare) or bare) is list:
        kind = (*typing.get_args(bare), Any)[0]
        for index, item in enumerate(template):
            yield from fit(item, kind, f"{path}[{index}]", is_reference)
    elif isinstance(template, dict) and (typing.get_origin(bare) or bare) is dict:
        kind = (*typing.get_args(bare), Any, Any)[1]
        for key, item in template.items():
            yield from fit(item, kind, key_path(path, key), is_reference)
    elif not has_references(template, is_reference):
        try:
            Codec.of(declared).decode(template, path=path)
        except CodecError as fault:
            told = str(fault).removeprefix(f"{fault.path}: ").replace("`", "")
            yield Problem(
                fault.path, f"it does not fit the type {type_name(bare)}: {told[:1].lower()}{told[1:]}"
            )


def _fit_fields(
    template: dict[str, Any],
    fields: Mapping[str, DeclaredField],
    declared: Any,
    path: str,
    is_reference: Callable[[Any], bool],
) -> Iterator[Problem]:
    name = type_name(declared)
    for key, value in template.items():
        if key in fields:
            yield from fit(value, fields[key].type, key_path(path, key), is_reference)
        else:
            yield Problem(key_path(path, key), f"{name} has no field {key!r:.60}{did_you_mean(key, fields)}")
    for key, field in fields.items():
        if field.required and key not in template:
            near = any(other not in fields and did_you_mean(other, [key]) for other in template)
            if not near:
                yield Problem(
                    f"{path}.{key}",
                    f"it is missing, and {name} has no default for it; give a value or a $ref",
                )


def has_references(template: Any, is_reference: Callable[[Any], bool]) -> bool:
    """Return whether a part of an input is a reference."""
    if is_reference(template):
        return True
    if isinstance(template, dict):
        return any(has_references(inner, is_reference) for inner in template.values())
    return isinstance(template, list) and any(has_references(inner, is_reference) for inner in template)
