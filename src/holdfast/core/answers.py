"""Check answers to questions, and payloads of signals, against the type that a question or a wait asks for.

A question may be asked by one process and answered by another that does not have the type, so the type is stored as JSON Schema.
`schema_of` creates the schema, `misfit` checks an answer against it. Invariant: no answer is accepted that the asking node could
not decode. So both functions know the same keywords, and a type is refused if its schema would allow more values than the type.
Checks that only a type's own code can make (`__post_init__`, validators) are not done here, but when the node decodes the answer.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import reprlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import inspect as shapes

from holdfast.core.codec import (
    Codec,
    Problem,
    article,
    is_pydantic,
    key_path,
    plain_problem,
    same,
    type_name,
)
from holdfast.errors import CodecError, GraphError, did_you_mean

Schema: TypeAlias = Mapping[str, Any]
_AWARE = msgspec.Meta(tz=True)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60

# --- the form of an answer ---------------------------------------------------------------------------


def schema_of(declared: Any, *, graph: str = "?") -> dict[str, Any]:
    """Return the JSON Schema of a type. Raises `GraphError` for a type that a schema cannot express completely."""
    name = type_name(declared)
    try:
        if is_pydantic(declared):
            schema = declared.model_json_schema()
        else:
            _refuse_what_says_more(Codec.of(declared).type, name)
            schema = msgspec.json.schema(declared)
        _refuse_unknown_keywords(schema, name)
    except CodecError as fault:
        raise GraphError(graph, [f"an answer cannot be a {name}: {fault}"]) from fault
    except (TypeError, ValueError, re.error) as fault:
        reason = str(fault).splitlines()[-1]
        raise GraphError(
            graph,
            [
                f"an answer cannot be a {name}: {reason}; declare a dataclass, TypedDict or msgspec.Struct of plain data"
            ],
        ) from fault
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    return plain


def payload_schema_of(declared: Any) -> dict[str, Any]:
    """Return the JSON Schema of the payload that a node waits for; empty if it declares none. For a type that a schema cannot
    express, it has only a title: every payload fits it, and only the node's own decoding rejects a wrong one. It is made once for
    each type, because a node may wait in a loop.
    """
    if declared is None:
        return {}
    try:
        return _cached_payload_schema(declared)
    except TypeError:  # the type is not hashable
        return _make_payload_schema(declared)


def _make_payload_schema(declared: Any) -> dict[str, Any]:
    try:
        return schema_of(declared)
    except GraphError:
        return {"title": type_name(declared)}


_cached_payload_schema = lru_cache(maxsize=256)(_make_payload_schema)


def _refuse_what_says_more(declared: Any, name: str) -> None:
    for part in _parts(shapes.type_info(declared)):
        match part:
            case shapes.DateTimeType(tz=zone) | shapes.TimeType(tz=zone) if zone is not True:
                kind = "datetime" if isinstance(part, shapes.DateTimeType) else "time"
                told = (
                    f"a schema accepts any text as a {kind}; declare it as Annotated[{kind}, "
                    "msgspec.Meta(tz=True)]"
                )
            case shapes.DictType(key_type=key) if not isinstance(key, (shapes.StrType, shapes.AnyType)):
                told = "a schema accepts any text as a key; declare the dict with str keys"
            case shapes.BytesType() | shapes.ByteArrayType() if (
                part.min_length or part.max_length is not None
            ):
                told = "a schema cannot count bytes; leave their length to the node that asks"
            case _:
                continue
        raise CodecError(told, path=name)


def _parts(shape: shapes.Type) -> Iterator[shapes.Type]:
    """Yield the type itself and every type that it consists of, each once, even if the type is recursive."""
    todo: list[Any] = [shape]
    seen: set[int] = set()
    while todo:
        part = todo.pop()
        if isinstance(part, tuple):
            todo.extend(part)
        elif isinstance(part, (shapes.Type, shapes.Field)) and id(part) not in seen:
            seen.add(id(part))
            if isinstance(part, shapes.Type):
                yield part
            todo.extend(getattr(part, field) for field in part.__struct_fields__)


def _refuse_unknown_keywords(schema: Any, name: str) -> None:
    for part in _subschemas(schema):
        for keyword in part:
            if keyword not in _CHECKS and keyword not in _NOTES:
                raise CodecError(
                    f"the schema of this type uses {keyword!r}, which Holdfast does not check; use a type without it",
                    path=name,
                )
        re.compile(part.get("pattern", ""))
        if part.get("type", "null") not in _WORDS:
            raise CodecError(
                f"the schema of this type has the type {part['type']!r}, which Holdfast does not check; use another type",
                path=name,
            )
        form = part.get("format", "date")
        if form not in _FORMATS:
            raise CodecError(
                f"the schema of this type has the format {form!r}, which Holdfast does not check; use another type",
                path=name,
            )


def _subschemas(schema: Any) -> Iterator[Schema]:
    """Yield a schema and all schemas within it, except `True` and `False`, which have no keywords."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for keyword in ("items", "additionalProperties", "propertyNames"):
        yield from _subschemas(schema.get(keyword))
    for keyword in ("anyOf", "oneOf", "prefixItems"):
        for inner in schema.get(keyword, ()):
            yield from _subschemas(inner)
    for keyword in ("properties", "$defs"):
        for inner in schema.get(keyword, {}).values():
            yield from _subschemas(inner)


# --- checking an answer ------------------------------------------------------------------------------


def misfit(value: Any, options: Sequence[str], schema: Schema | None, what: str = "answer") -> str | None:
    """Return, in one sentence, why an answer does not fit a question and what would fit. Returns None if the answer fits. `value`
    is plain data, and is called `what` in that sentence.
    """
    if options and value not in options:
        near = did_you_mean(value, options) if isinstance(value, str) else ""
        return f"{_show(value)} is not one of the options {', '.join(map(repr, options))}{near}"
    if not schema:
        return None
    try:
        problem = plain_problem(value, what) or _problem(value, schema, what, schema.get("$defs", {}))
    except RecursionError:
        problem = what, f"the {what} is nested too deeply to be checked; give it as a flat list with ids"
    except KeyError as unknown:
        told = f"its schema uses {unknown}, which this Holdfast does not know; send it with a newer version of Holdfast"
        problem = what, told
    return f"{problem[0]}: {problem[1]}" if problem else None


def _problem(value: Any, schema: Any, path: str, defs: Schema) -> Problem | None:
    """Return the path to the first part of a value that the schema does not allow, and why. Raises `KeyError` for an unknown
    keyword of the schema.
    """
    if not isinstance(schema, Mapping):
        return None if schema else (path, "no value is allowed here")
    for keyword in schema:
        if keyword not in _CHECKS and keyword not in _NOTES:
            raise KeyError(keyword)
    for keyword, check in _CHECKS.items():
        if keyword in schema:
            problem = check(value, schema, path, defs)
            if problem:
                return problem
    return None


def _reference(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    return _problem(value, defs[schema["$ref"].rpartition("/")[2]], path, defs)


def _kind(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    if _is(value, schema["type"]):
        return None
    return path, f"{_show(value)} is not {_WORDS[schema['type']]}"


def _is(value: Any, kind: str) -> bool:
    """Return whether a plain value has this type of JSON Schema. As in the codec, a bool is not a number, and 1.0 is not an
    integer.
    """
    match kind:
        case "integer":
            return type(value) is int
        case "number":
            return type(value) is float or (type(value) is int and _fits_a_float(value))
        case _:
            return isinstance(value, _TYPES[kind])


def _fits_a_float(value: int) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _choice(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    allowed = schema["enum"] if "enum" in schema else [schema["const"]]
    if any(same(value, one) for one in allowed):
        return None
    names = [one for one in allowed if isinstance(one, str)]
    near = did_you_mean(value, names) if isinstance(value, str) else ""
    listed = ", ".join(map(_show, allowed))
    return path, f"{_show(value)} is not {'one of ' if len(allowed) > 1 else ''}{listed}{near}"


def _alternatives(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    if "discriminator" in schema and isinstance(value, dict):
        return _check_tagged(value, schema["discriminator"], path, defs)
    inner = schema["anyOf"] if "anyOf" in schema else schema["oneOf"]
    problems = [_problem(value, one, path, defs) for one in inner]
    fitting = problems.count(None)
    if fitting == 1 or (fitting and "anyOf" in schema):
        return None
    if fitting:
        return path, f"{_show(value)} fits {fitting} of the alternatives, and must fit exactly one"
    # The alternative that was probably meant is the one whose problem is nested deepest in the value.
    deepest = max((problem for problem in problems if problem), key=lambda problem: len(problem[0]))
    if deepest[0] != path:
        return deepest
    meant = [
        problem
        for one, problem in zip(inner, problems, strict=True)
        if problem and isinstance(value, dict) and _resolve(one, defs).get("type") == "object"
    ]
    if len(meant) == 1:
        return meant[0]
    return path, f"{_show(value)} is not {' or '.join(_describe(one, defs) for one in inner)}"


def _check_tagged(value: dict[str, Any], tags: Schema, path: str, defs: Schema) -> Problem | None:
    """Check a value whose tag field says which alternative of a union is meant. The tags in the schema are texts, even if the tag
    in the value is a number.
    """
    field, meant = tags["propertyName"], tags["mapping"]
    if field not in value:
        return path, f"{field!r} is missing; it says which of {', '.join(meant)} this is"
    tag = str(value[field])
    if tag not in meant:
        return key_path(
            path, field
        ), f"{_show(value[field])} is not one of {', '.join(meant)}{did_you_mean(tag, meant)}"
    return _problem(value, {"$ref": meant[tag]}, path, defs)


def _resolve(schema: Any, defs: Schema) -> Schema:
    if not isinstance(schema, Mapping):
        return {}
    return defs[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _describe(schema: Any, defs: Schema) -> str:
    """Return a short description of the values that fit a schema, such as "a list"."""
    found = _resolve(schema, defs)
    if "enum" in found or "const" in found:
        return " or ".join(map(_show, found.get("enum") or [found.get("const")]))
    if "type" not in found:
        return "something else"
    title = found.get("title")
    return f"{_WORDS[found['type']]} ({title})" if title else _WORDS[found["type"]]


# --- objects and lists -------------------------------------------------------------------------------


def _fields(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    if not isinstance(value, dict):
        return None
    for name, inner in schema["properties"].items():
        if name in value and (problem := _problem(value[name], inner, key_path(path, name), defs)):
            return problem
    return None


def _check_required(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    missing = [name for name in schema["required"] if isinstance(value, dict) and name not in value]
    if not missing:
        return None
    known = schema.get("properties", {})
    others = ((name, did_you_mean(name, missing)) for name in value if name not in known)
    near = next((f", and the object has {_show(name)}{meant}" for name, meant in others if meant), "")
    return path, f"{', '.join(map(repr, missing))} {'is' if len(missing) == 1 else 'are'} missing{near}"


def _other_fields(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    known, inner = schema.get("properties", {}), schema["additionalProperties"]
    for name in value if isinstance(value, dict) else ():
        if name in known:
            continue
        if inner is False:
            takes = ", ".join(map(repr, known)) or "nothing"
            return path, f"the object may have {takes}, and not {_show(name)}{did_you_mean(name, known)}"
        if problem := _problem(value[name], inner, key_path(path, name), defs):
            return problem
    return None


def _names(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    for name in value if isinstance(value, dict) else ():
        if problem := _problem(name, schema["propertyNames"], path, defs):
            return path, f"the key {problem[1]}"
    return None


def _places(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    if not isinstance(value, list):
        return None
    for index, (item, inner) in enumerate(zip(value, schema["prefixItems"], strict=False)):
        if problem := _problem(item, inner, f"{path}[{index}]", defs):
            return problem
    return None


def _items(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    first = len(schema.get("prefixItems", ()))
    for index, item in enumerate(value[first:] if isinstance(value, list) else (), first):
        if problem := _problem(item, schema["items"], f"{path}[{index}]", defs):
            return problem
    return None


def _unique(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    if not schema["uniqueItems"] or not isinstance(value, list):
        return None
    for index, item in enumerate(value):
        if any(same(item, earlier) for earlier in value[:index]):
            return f"{path}[{index}]", f"{_show(item)} is in the list twice"
    return None


# --- numbers and text --------------------------------------------------------------------------------


def _limit(keyword: str, words: str, allows: Callable[[Any, Any], bool]) -> _Check:
    def check(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
        limit = schema[keyword]
        if type(value) not in (int, float) or allows(value, limit):
            return None
        return path, f"{_show(value)} is not {words} {limit}"

    return check


def _is_multiple(value: float, unit: float) -> bool:
    if isinstance(value, int) and isinstance(unit, int):
        return value % unit == 0
    return math.fmod(value, unit) == 0


def _size(keyword: str, kind: type[Sized], words: str, allows: Callable[[int, int], bool]) -> _Check:
    def check(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
        limit = schema[keyword]
        if not isinstance(value, kind) or allows(len(value), limit):
            return None
        few, least = _LIMITS[keyword[:3]]
        return path, f"{_show(value)} has too {few} {words}: {len(value)} instead of at {least} {limit}"

    return check


def _pattern(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    if not isinstance(value, str) or re.search(schema["pattern"], value):
        return None
    return path, f"{_show(value)} does not match {schema['pattern']!r}"


def _format(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    declared, example = _FORMATS[schema["format"]]
    return _unreadable(value, declared, path, f"{schema['format']} like {example!r}")


def example_of(schema: Schema) -> str | None:
    """An example of the texts that a schema with a format or an encoding accepts; None for any other schema."""
    if "contentEncoding" in schema:
        return _BASE64
    return _FORMATS[schema["format"]][1] if schema.get("format") in _FORMATS else None


def _check_encoding(value: Any, schema: Schema, path: str, defs: Schema) -> Problem | None:
    return _unreadable(value, bytes, path, f"{schema['contentEncoding']} like {_BASE64!r}")


def _unreadable(value: Any, declared: Any, path: str, wanted: str) -> Problem | None:
    if not isinstance(value, str):
        return None
    try:
        msgspec.convert(value, declared)
    except msgspec.ValidationError:
        return path, f"{_show(value)} is not {article(wanted)}"
    return None


def _show(value: Any) -> str:
    """Return a value as it is written in an answer (`null`, not None), shortened if it is long."""
    if value is None or isinstance(value, bool):
        return msgspec.json.encode(value).decode()
    if type(value) is int and abs(value) > 10**40:
        return "a number of more than 40 digits"
    return _SHORT.repr(value)


# --- the keywords ------------------------------------------------------------------------------------

_Check: TypeAlias = Callable[[Any, Schema, str, Schema], Problem | None]

_TYPES = {"string": str, "boolean": bool, "null": type(None), "array": list, "object": dict}
_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_LIMITS = {"min": ("few", "least"), "max": ("many", "most")}
_FORMATS: dict[str, tuple[Any, str]] = {
    "date": (dt.date, "2024-02-29"),
    "date-time": (Annotated[dt.datetime, _AWARE], "2024-02-29T12:00:00Z"),
    "time": (Annotated[dt.time, _AWARE], "12:00:00Z"),
    "duration": (dt.timedelta, "PT90S"),
    "uuid": (uuid.UUID, "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    "decimal": (decimal.Decimal, "1.50"),
}
_BASE64 = "aGVsbG8="
_NOTES = frozenset({"$defs", "title", "description", "default", "examples", "discriminator"})
"""Keywords of JSON Schema that are not checked: they are for people or, like `discriminator`, repeat the alternatives."""

_CHECKS: dict[str, _Check] = {
    "$ref": _reference,
    "type": _kind,
    "enum": _choice,
    "const": _choice,
    "anyOf": _alternatives,
    "oneOf": _alternatives,
    "required": _check_required,
    "properties": _fields,
    "additionalProperties": _other_fields,
    "propertyNames": _names,
    "minProperties": _size("minProperties", dict, "keys", int.__ge__),
    "maxProperties": _size("maxProperties", dict, "keys", int.__le__),
    "minItems": _size("minItems", list, "items", int.__ge__),
    "maxItems": _size("maxItems", list, "items", int.__le__),
    "prefixItems": _places,
    "items": _items,
    "uniqueItems": _unique,
    "minimum": _limit("minimum", "at least", lambda value, limit: value >= limit),
    "maximum": _limit("maximum", "at most", lambda value, limit: value <= limit),
    "exclusiveMinimum": _limit("exclusiveMinimum", "more than", lambda value, limit: value > limit),
    "exclusiveMaximum": _limit("exclusiveMaximum", "less than", lambda value, limit: value < limit),
    "multipleOf": _limit("multipleOf", "a multiple of", _is_multiple),
    "minLength": _size("minLength", str, "characters", int.__ge__),
    "maxLength": _size("maxLength", str, "characters", int.__le__),
    "pattern": _pattern,
    "format": _format,
    "contentEncoding": _check_encoding,
}
"""Every keyword that `msgspec.json.schema` writes, and the function that checks a value against it. The functions are called in
this order, and the first problem is reported.
"""
