"""Convert values to plain data and back, exactly or not at all.

Plain data is what JSON can represent: dict with str keys, list, str, int, float, bool, None. A `Codec` belongs to one declared
type and keeps this invariant: the result of `encode` decodes to a value equal to the one given, and shares no mutable object
with it. A value that JSON would change (NaN, NUL, a tuple where no type is declared, …) is refused when it is written, with its
path, because it is too late to do anything about it when it is read.

What counts as equal, where Python and JSON differ:
- A value is converted to its declared type: an int in a `float` field comes back as a float, a frozenset in a `set` field as a
  set. Without a declared type, a member of a `StrEnum` or `IntEnum` comes back as its str or int. bool, int and float are never
  mixed up.
- An aware datetime keeps its instant and offset, not the name of its zone. A naive datetime with fold=1 is refused.
- The members of a declared set are sorted, so that equal sets are equal data in every process (except in pydantic models).
- Subclasses of str, int and float (NumPy's, for example) are refused; those of dict and list become plain dicts and lists.

Built on msgspec. Pydantic models are converted by pydantic, which is never imported here: a program that has a model has
imported it. The fast path is implemented in C; a value is walked in Python only to find the path of a problem.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import math
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
from msgspec import inspect as shapes

from holdfast.errors import CodecError

T = TypeVar("T")
Problem: TypeAlias = tuple[str, str]
"""The path to a value, and what is wrong with the value."""

DEPTH_MAX = 100
"""How deeply values may be nested. Far below the interpreter's recursion limit, so that a value can also be read when the call
stack is already deep."""

_TOO_DEEP = f"nested deeper than {DEPTH_MAX} levels; keep deep structures as a flat list with ids"
_SCALARS: frozenset[type] = frozenset({str, int, float, bool, type(None)})
_SETS = (shapes.SetType, shapes.FrozenSetType)
_STR_LIKE = (dt.date, dt.time, dt.timedelta, uuid.UUID, decimal.Decimal)
_INT_QUICK_MAX = (
    2**63 - 1
)  # a larger int takes the slow path, which checks Python's limit for converting it to text
_NUL_IN_JSON = b"\\u0000"
_dumps = msgspec.json.Encoder().encode
_dumps_sorted = msgspec.json.Encoder(order="deterministic").encode
_loads = msgspec.json.Decoder().decode


class Codec(Generic[T]):
    """Converts values of one declared type to plain data and back."""

    __slots__ = ("_form", "_scalars", "type")

    def __init__(self, declared: Any, form: _Form) -> None:
        self.type = declared
        self._form = form
        self._scalars = form.scalars

    @classmethod
    def of(cls, declared: type[T] | Any) -> Codec[T]:
        """Return the codec of a type. Raises `CodecError`, which names the type (or the part of it) that cannot be stored as
        JSON.
        """
        try:
            return _codec_of(cast("Any", declared))
        except (
            TypeError
        ):  # the type is not hashable (such as an `Annotated` with a list in it), so it cannot be cached
            return cls(declared, _form_of(declared))

    @classmethod
    def of_pydantic_field(cls, annotation: Any, config: Any) -> Codec[Any]:
        """Return a codec that lets pydantic convert a field of a model, because pydantic supports types that msgspec does not."""
        return cls(annotation, _pydantic_form(annotation, config))

    def encode(self, value: Any, *, path: str = "value", node: str | None = None) -> Any:
        """Convert a value to plain data, which shares nothing with the value. Raises `CodecError` if the plain data would not
        decode to an equal value.
        """
        kind = type(value)
        if kind in self._scalars:
            if kind is str:
                if value.isascii() and "\0" not in value:
                    return value
            elif kind is float:
                if math.isfinite(value):
                    return value
            elif kind is not int or -_INT_QUICK_MAX <= value <= _INT_QUICK_MAX:
                return value
        return self._encode(value, path, node)

    def accept(self, value: Any, *, path: str = "value", node: str | None = None) -> Any:
        """Like `encode`, but also accepts a value that is already plain data, as input from a command line is."""
        try:
            return self.encode(value, path=path, node=node)
        except CodecError:
            if plain_problem(value, path):
                raise
            typed = self.decode(
                value, path=path, node=node
            )  # its error says which part of the plain data does not fit, and why
            return self.encode(typed, path=path, node=node)

    def decode(self, plain: Any, *, path: str = "value", node: str | None = None) -> T:
        """Convert plain data to a new value, which shares nothing mutable with the plain data. Raises `CodecError` if the plain
        data does not fit the type.
        """
        if type(plain) in self._scalars:
            return cast(T, plain)
        try:
            return self._form.from_plain(plain)  # type: ignore[no-any-return]
        except Exception as fault:  # a validator or `__post_init__` of the user's type may raise anything
            where, message = _fault(fault, path)
            raise CodecError(message, path=where, node=node) from fault

    def matches(self, value: Any, plain: Any) -> bool:
        """Return whether `value` is equal to the value that `plain` decodes to."""
        if type(value) in _SCALARS and type(value) is type(plain):
            return bool(value == plain)
        try:
            if self._form.plain:
                return same(value, plain)
            decoded = self.decode(plain)
            if decoded == value and not self._form.walks:
                return True
            return self._problem(value, "") is None and difference(value, decoded, "", exact=True) is None
        except Exception:  # noqa: BLE001 - if an `==` of a user's type raises, the value counts as changed
            return False

    @property
    def is_ordered(self) -> bool:
        """Whether equal values always have the same plain data. This is not the case for sets in pydantic models."""
        return self._form.ordered

    def _problem(self, value: Any, path: str) -> Problem | None:
        return plain_problem(value, path) if self._form.plain else value_problem(value, path)

    def _encode(self, value: Any, path: str, node: str | None) -> Any:
        form = self._form
        try:
            data = form.to_json(value)
            decoded = form.from_json(data)
            same = bool(decoded == value)
        except Exception as fault:  # msgspec, pydantic and types of users may raise anything
            where, message = self._problem(value, path) or _fault(fault, path)
            raise CodecError(message, path=where, node=node) from fault
        if not same or form.walks:
            # If `==` is False, it may only be undefined (`eq=False`); if it is True, it may ignore a field.
            problem = self._problem(value, path) or difference(value, decoded, path)
            if problem:
                raise CodecError(problem[1], path=problem[0], node=node)
        plain = decoded if form.plain else _loads(form.to_json(decoded) if form.recodes else data)
        if form.sort is not None:
            form.sort(plain)
        if _NUL_IN_JSON in data or (data.count(b"[") + data.count(b"{") > DEPTH_MAX and _too_deep(plain)):
            problem = plain_problem(plain, path)
            if problem:
                raise CodecError(problem[1], path=problem[0], node=node)
        return plain

    def __repr__(self) -> str:
        return f"<Codec of {type_name(self.type)}>"


# --- forms: how a type is converted to JSON -----------------------------------------------------------


class _Form(NamedTuple):
    """The functions that convert a declared type to JSON and back, and the steps that its codec may skip or must add."""

    to_json: Callable[[Any], bytes]
    from_json: Callable[[bytes], Any]
    from_plain: Callable[[Any], Any]
    """A function that decodes plain data instead of JSON. The result shares nothing mutable with the plain data."""
    scalars: frozenset[type] = frozenset()
    """Types whose values are plain data already. Subclasses of these types do not count."""
    plain: bool = False
    """True if the type consists only of JSON's own types, so that the decoded value is already plain data."""
    recodes: bool = False
    """True if encoding the decoded value may give other JSON than encoding the given value, as for 1 in a float field. The JSON
    of the decoded value is then stored."""
    walks: bool = False
    """True if `==` ignores a part of the value (fold, fields with compare=False), so values must be compared part by part."""
    sort: Callable[[Any], None] | None = None
    """A function that sorts the members of sets within plain data, in place; None if the type has no sets."""
    ordered: bool = True


@functools.lru_cache(maxsize=1024)
def _codec_of(declared: Any) -> Codec[Any]:
    return Codec(declared, _form_of(declared))


def _form_of(declared: Any) -> _Form:
    if is_pydantic(declared):
        return _pydantic_form(declared, None)
    name = type_name(declared)
    try:
        decoder = msgspec.json.Decoder(declared, dec_hook=_from_pydantic)
        shape = shapes.type_info(declared)
    except NameError as fault:
        way_out = "define the types that they name at the top of the module"
        raise CodecError(
            f"the annotations of this type cannot be resolved ({fault}); {way_out}", path=name
        ) from fault
    except (TypeError, ValueError, RecursionError) as fault:
        raise CodecError(f"the type cannot be kept as JSON: {fault}", path=name) from fault
    parts = list(_parts(shape))
    for part in parts:
        _refuse_unknown(part, name)
    plain = all(_is_plain(part) for part in parts)
    return _Form(
        to_json=msgspec.json.Encoder(enc_hook=_to_pydantic).encode,
        from_json=decoder.decode,
        from_plain=_from_plain(declared, decoder.decode, parts),
        scalars=_scalars(shape),
        plain=plain,
        recodes=not plain and any(isinstance(part, (shapes.FloatType, shapes.DecimalType)) for part in parts),
        walks=any(_overlooks(part) for part in parts),
        sort=_set_sorter(shape, parts),
        ordered=not any(isinstance(part, shapes.CustomType) for part in parts),
    )


def _from_plain(
    declared: Any, from_json: Callable[[bytes], Any], parts: list[shapes.Type]
) -> Callable[[Any], Any]:
    """Return a function that converts plain data to a value which shares nothing mutable with it. Decoding JSON takes time in
    proportion to its length in bytes; this function takes time in proportion to the number of members, because texts are shared
    and only containers are copied.
    """
    if any(isinstance(part, shapes.CustomType) for part in parts):
        return lambda plain: from_json(_dumps(plain))
    if declared is Any or declared is dict:
        return msgspec.to_builtins
    convert = functools.partial(msgspec.convert, type=declared, str_keys=True)
    # msgspec passes parts without a declared type through as they are, so they are copied first.
    if any(isinstance(part, shapes.AnyType) for part in parts):
        return lambda plain: convert(msgspec.to_builtins(plain))
    return convert


def _set_sorter(shape: shapes.Type, parts: list[shapes.Type]) -> Callable[[Any], None] | None:
    """Return a function that sorts the members of sets within plain data of this type, because sets iterate in a different order
    in every process; None if the type has no sets.
    """
    holding = {id(part) for part in parts if any(isinstance(inner, _SETS) for inner in _parts(part))}

    def sort(shape: shapes.Type, plain: Any) -> None:
        if id(shape) not in holding or not isinstance(plain, (list, dict)):
            return
        if isinstance(shape, shapes.UnionType):
            for part in shape.types:
                sort(part, plain)
            return
        for inner, value in _typed_children(shape, plain):
            sort(inner, value)
        if isinstance(shape, _SETS) and isinstance(plain, list):
            kinds = set(map(type, plain))
            plain.sort(key=None if kinds == {str} or kinds <= {int, float} else _dumps)

    return functools.partial(sort, shape) if holding else None


def _typed_children(shape: shapes.Type, plain: Any) -> Iterable[tuple[shapes.Type, Any]]:
    """Return the members of a plain container, each with its declared type. Returns none if the data belongs to another type of a
    union.
    """
    match shape, plain:
        case shapes.DictType(), dict():
            return [(shape.value_type, value) for value in plain.values()]
        case (shapes.TupleType(), list()):
            return zip(shape.item_types, plain, strict=False)
        case (shapes.CollectionType(), list()):
            return [(shape.item_type, value) for value in plain]
        case shapes.StructType(tag_field=str()), dict() if plain.get(shape.tag_field) != shape.tag:
            return []
        case (shapes.StructType(array_like=True) | shapes.NamedTupleType(), list()):
            untagged = plain[1:] if getattr(shape, "tag", None) is not None else plain
            return [(field.type, value) for field, value in zip(shape.fields, untagged, strict=False)]
        case (shapes.StructType() | shapes.DataclassType() | shapes.TypedDictType(), dict()):
            return [
                (field.type, plain[field.encode_name]) for field in shape.fields if field.encode_name in plain
            ]
        case _:
            return []


def _parts(shape: shapes.Type) -> Iterator[shapes.Type]:
    """Yield the type itself and every type that it consists of, each once, even if the type is recursive."""
    todo, seen = [shape], set()
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        todo.extend(getattr(part, "types", ()))
        todo.extend(getattr(part, "item_types", ()))
        todo.extend(field.type for field in getattr(part, "fields", ()))
        inner = (getattr(part, name, None) for name in ("item_type", "key_type", "value_type", "type"))
        todo.extend(part for part in inner if isinstance(part, shapes.Type))


_PLAIN_FORMS = {
    "pathlib.PurePath": "str",
    "re.Pattern": "str",
    "builtins.BaseException": "str",
    "builtins.range": "list[int]",
    "builtins.complex": "tuple[float, float]",
    "numpy.ndarray": "list[float]",
    "pandas.DataFrame": "list[dict[str, Any]]",
}
"""Class that cannot be stored but is often put into a state, as `package.name` -> the type to use in its place."""


def _plain_form_of(cls: type) -> str | None:
    """Return the type to declare in place of a class that cannot be stored as JSON; None if no such type is known."""
    names = (f"{str(kind.__module__).partition('.')[0]}.{kind.__name__}" for kind in cls.__mro__)
    return next((_PLAIN_FORMS[name] for name in names if name in _PLAIN_FORMS), None)


def _refuse_unknown(part: shapes.Type, name: str) -> None:
    if isinstance(part, shapes.CustomType) and part.cls is not object and not is_pydantic(part.cls):
        instead = _plain_form_of(part.cls)
        way_out = (
            f"declare {instead} in its place"
            if instead
            else "declare a dataclass, TypedDict, msgspec.Struct or pydantic model that holds its data"
        )
        raise CodecError(f"{type_name(part.cls)} cannot be kept as JSON; {way_out}", path=name)
    if isinstance(part, (shapes.RawType, shapes.ExtType)):
        raise CodecError("msgspec's Raw and Ext cannot be kept as JSON; use bytes", path=name)
    if isinstance(part, shapes.DictType) and isinstance(
        part.key_type,
        (
            shapes.BoolType,
            shapes.CollectionType,
            shapes.TupleType,
            shapes.NamedTupleType,
            shapes.DictType,
            shapes.DataclassType,
            shapes.StructType,
            shapes.TypedDictType,
            shapes.CustomType,
        ),
    ):
        raise CodecError(
            "JSON keys are strings: a dict may only have str, int, float, Enum, UUID, Decimal or date keys; "
            "use a list of pairs",
            path=name,
        )


def _is_plain(part: shapes.Type) -> bool:
    if isinstance(part, shapes.DictType):
        return isinstance(part.key_type, (shapes.StrType, shapes.AnyType))
    return isinstance(
        part,
        (
            shapes.AnyType,
            shapes.NoneType,
            shapes.BoolType,
            shapes.IntType,
            shapes.FloatType,
            shapes.StrType,
            shapes.ListType,
            shapes.UnionType,
        ),
    )


def _overlooks(part: shapes.Type) -> bool:
    if isinstance(part, shapes.DataclassType):
        return any(not field.compare for field in dataclasses.fields(part.cls))
    return isinstance(part, (shapes.DateTimeType, shapes.TimeType))


_IMMUTABLE_SHAPES = (
    shapes.NoneType, shapes.BoolType, shapes.IntType, shapes.FloatType, shapes.StrType, shapes.BytesType, shapes.DateTimeType,
    shapes.DateType, shapes.TimeType, shapes.TimeDeltaType, shapes.UUIDType, shapes.DecimalType, shapes.EnumType,
    shapes.LiteralType, shapes.UnionType, shapes.TupleType, shapes.VarTupleType, shapes.FrozenSetType,
)  # fmt: skip
_IMMUTABLE = frozenset({type(None), bool, int, float, str, bytes, dt.datetime, dt.date, dt.time, dt.timedelta, uuid.UUID,
                        decimal.Decimal, dt.timezone})  # fmt: skip


def is_immutable(kind: type) -> bool:
    """Return whether no object of this class can be changed, nor anything inside it: texts, numbers, dates, members of enums, and
    frozen structs and dataclasses with only such fields and without a `__dict__` (dataclasses: `slots=True`).
    """
    if kind in _IMMUTABLE or issubclass(kind, enum.Enum):
        return True
    if not is_record(kind) or is_pydantic(kind):
        return False
    try:
        return all(map(_is_frozen, _parts(shapes.type_info(kind))))
    except (TypeError, NameError, RecursionError):
        return False


def _is_frozen(part: shapes.Type) -> bool:
    if isinstance(part, (shapes.StructType, shapes.DataclassType)):
        if part.cls.__dictoffset__:  # a `cached_property` may keep a list there, which anybody can change
            return False
        if isinstance(part, shapes.StructType):
            return bool(part.cls.__struct_config__.frozen)
        return bool(part.cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    return isinstance(part, _IMMUTABLE_SHAPES)


def is_record(kind: type) -> bool:
    """Return whether the objects of a class are values with fields: structs, dataclasses and pydantic models."""
    return issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or is_pydantic(kind)


def _scalars(shape: shapes.Type) -> frozenset[type]:
    """Return the scalar types (such as str) that a declared type allows without constraints. Their values need no conversion."""
    if isinstance(shape, shapes.AnyType):
        return _SCALARS
    if isinstance(shape, shapes.UnionType):
        return frozenset().union(*(_scalars(part) for part in shape.types))
    for kind, python in (
        (shapes.StrType, str),
        (shapes.IntType, int),
        (shapes.FloatType, float),
        (shapes.BoolType, bool),
        (shapes.NoneType, type(None)),
    ):
        if isinstance(shape, kind) and shape == kind():
            return frozenset({python})
    return frozenset()


# --- pydantic, without importing it ---------------------------------------------------------------------


def is_pydantic(declared: Any) -> bool:
    """Return whether a type is a pydantic model. Does not import pydantic."""
    return (
        isinstance(declared, type)
        and hasattr(declared, "model_validate_json")
        and hasattr(declared, "model_dump_json")
    )


def _pydantic_form(annotation: Any, config: Any) -> _Form:
    pydantic = sys.modules["pydantic"]
    try:
        adapter = pydantic.TypeAdapter(annotation, config=config)
    except pydantic.errors.PydanticSchemaGenerationError as fault:
        raise CodecError(f"the type cannot be kept as JSON: {fault}", path=type_name(annotation)) from fault
    except pydantic.errors.PydanticUserError:  # a model, dataclass or TypedDict has a config of its own
        adapter = pydantic.TypeAdapter(annotation)
    return _Form(
        to_json=functools.partial(adapter.dump_json, by_alias=True, round_trip=True, warnings="error"),
        from_json=adapter.validate_json,
        from_plain=lambda plain: adapter.validate_json(_dumps(plain)),
        scalars=frozenset({annotation})
        if not config and annotation in (str, int, float, bool)
        else frozenset(),
        recodes=True,
        walks=True,
        ordered=False,
    )


def _to_pydantic(value: Any) -> Any:
    """Encode a pydantic model inside another type; msgspec calls this for types that it does not know."""
    if is_pydantic(type(value)):
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True, warnings="error").encode())
    raise TypeError(f"{article(type_name(type(value)))} cannot be kept as JSON")


def _from_pydantic(declared: Any, plain: Any) -> Any:
    return declared.model_validate_json(_dumps(plain)) if is_pydantic(declared) else plain


# --- finding problems and their paths ---------------------------------------------------------------------


def plain_problem(value: Any, path: str) -> Problem | None:
    """Return the first part of `value` that is not plain data, or None."""
    return _walk(value, path, (), declared=False)


def value_problem(value: Any, path: str) -> Problem | None:
    """Return the first part of `value` that JSON cannot represent whatever type is declared (NaN, NUL, a cycle, …), or None."""
    return _walk(value, path, (), declared=True)


def _walk(value: Any, path: str, above: tuple[int, ...], *, declared: bool) -> Problem | None:
    problem = _leaf_problem(value, declared=declared)
    if problem:
        return path, problem
    children = _children(value, path)
    if children is None:
        return None
    if id(value) in above:
        return path, "the value contains itself; JSON has no references, keep an id instead"
    if len(above) >= DEPTH_MAX:
        return path, _TOO_DEEP
    for child_path, child in children:
        found = _walk(child, child_path, (*above, id(value)), declared=declared)
        if found:
            return found
    return None


def _leaf_problem(value: Any, *, declared: bool) -> str | None:
    """Return what is wrong with a value itself, apart from its children, or None if nothing is."""
    match value:
        case None | bool() | int() | float() | str() if type(value) in _SCALARS:
            return _scalar_problem(value)
        case dict():
            return next(filter(None, (_key_problem(key, declared=declared) for key in value)), None)
        case enum.Enum() if isinstance(value, (str, int)):
            return _scalar_problem(value.value)
        case list():
            return None
        case _ if declared and is_declarable(value):
            return None
        case _:
            return _explain_undeclared(value)


def _scalar_problem(value: Any) -> str | None:
    if isinstance(value, str):
        if "\0" in value:
            return "the text contains a NUL character, which not every store can keep; remove it, or declare the field as bytes"
        try:
            value.encode()
        except UnicodeEncodeError:
            return (
                "the text contains half of a surrogate pair, which is not a character; decode it again with "
                "errors='replace'"
            )
    elif isinstance(value, float) and not math.isfinite(value):
        return f"JSON has no {value}; use None, or a str"
    elif type(value) is int and abs(value) > _INT_QUICK_MAX:
        try:
            str(value)
        except ValueError:
            return "the int has more digits than Python converts; keep it as hex(…) in a str"
    return None


def _key_problem(key: Any, *, declared: bool) -> str | None:
    if isinstance(key, str):
        problem = _leaf_problem(key, declared=declared)
        return f"the key {key!r:.40}: {problem}" if problem else None
    if declared and not isinstance(key, bool) and isinstance(key, (int, float, bytes, enum.Enum, *_STR_LIKE)):
        return None
    return (
        f"the key {key!r:.40} is {article(type_name(type(key)))}, and JSON keys are strings; "
        f"declare the field as dict[{type_name(type(key))}, …], or use str keys"
    )


def is_declarable(value: Any) -> bool:
    """Return whether values of this type can be stored as JSON if their type is declared."""
    if isinstance(value, (str, int, float)):
        return isinstance(value, enum.Enum)
    known = (tuple, set, frozenset, bytes, bytearray, memoryview, enum.Enum, msgspec.Struct, *_STR_LIKE)
    return isinstance(value, known) or (_field_names(value) is not None)


def _explain_undeclared(value: Any) -> str:
    """Return why a value cannot be stored where no type is declared, and the remedy."""
    name = type_name(type(value))
    what = article(name)
    match value:
        case str() | int() | float():
            plain = next(kind.__name__ for kind in (str, int, float) if isinstance(value, kind))
            return f"{what} is a subclass of {plain}, which JSON cannot represent; use {plain}(…)"
        case set() | frozenset() | tuple():
            kind = next(kind.__name__ for kind in (set, frozenset, tuple) if isinstance(value, kind))
            return f"{what} cannot be kept as JSON here; declare the field as {kind}[…] or use a list"
        case _ if (instead := _plain_form_of(type(value))) is not None:
            return f"{what} cannot be kept as JSON; keep it as {instead}"
        case _ if not is_declarable(value):
            return f"{what} cannot be kept as JSON; keep its data (str, numbers, lists, dicts, a dataclass) instead"
        case _ if _field_names(value) is not None:
            return f"{what} cannot be kept as JSON here; declare the field as {name} or use a dict"
        case _:
            return f"{what} cannot be kept as JSON here; declare the field as {name} or use a str"


def difference(value: Any, decoded: Any, path: str, *, exact: bool = False) -> Problem | None:
    """Return the first part in which a value and the decoded value differ, or None. Both are free of cycles.

    Unless `exact`, a number may come back as the type that its field declares.
    """
    if isinstance(value, (dt.datetime, dt.time)) and value.fold and value.tzinfo is None:
        return path, "fold=1 of a time without zone would be lost; make it aware: .astimezone(timezone.utc)"
    if type(value) is not type(decoded) and (isinstance(value, bool) or isinstance(decoded, bool) or exact):
        return path, _describe_change(value, decoded)
    if isinstance(value, (list, tuple)) and type(decoded) is type(value) and len(value) == len(decoded):
        pairs = ((f"{path}[{index}]", *pair) for index, pair in enumerate(zip(value, decoded, strict=True)))
    elif isinstance(value, dict) and isinstance(decoded, dict) and value.keys() == decoded.keys():
        pairs = ((key_path(path, key), inner, decoded[key]) for key, inner in value.items())
    elif type(value) is type(decoded) and (names := _field_names(value)) is not None:
        pairs = (
            (f"{path}.{name}", getattr(value, name, None), getattr(decoded, name, None)) for name in names
        )
    else:
        return None if value is decoded or value == decoded else (path, _describe_change(value, decoded))
    return next(
        filter(
            None, (difference(inner, other, inner_path, exact=exact) for inner_path, inner, other in pairs)
        ),
        None,
    )


def _describe_change(value: Any, decoded: Any) -> str:
    if type(value) is not type(decoded):
        if (
            type(decoded) in (str, list, dict)
            and type(value) not in _SCALARS
            and not isinstance(value, (list, dict))
        ):
            return _explain_undeclared(value)
        came_back = article(type_name(type(decoded)))
        return (
            f"{article(type_name(type(value)))} would come back as {came_back}; "
            f"give {came_back}, or declare the type that the field really has"
        )
    if isinstance(value, dict):
        keys = [key for key in value if key not in decoded]
        if keys and not isinstance(keys[0], str):
            return _key_problem(keys[0], declared=False) or "the keys of the dict would change"
        return (
            f"the keys of the dict would come back as {sorted(map(str, decoded))!r:.80}; declare all of them"
        )
    return f"{value!r:.60} would come back as {decoded!r:.60}; store it in a form that JSON keeps exactly, such as a str"


def _children(value: Any, path: str) -> Iterable[tuple[str, Any]] | None:
    """Return the members of a container or the fields of an object, each with its path; None if the value is neither."""
    if isinstance(value, dict):
        return ((key_path(path, key), inner) for key, inner in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return ((f"{path}[{index}]", inner) for index, inner in enumerate(value))
    names = _field_names(value)
    return None if names is None else ((f"{path}.{name}", getattr(value, name, None)) for name in names)


def _field_names(value: Any) -> list[str] | None:
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    return list(value.__dict__) if is_pydantic(type(value)) else None


_QUOTES_DATA = ("Invalid enum value", "Invalid value")


def _fault(fault: BaseException, path: str) -> Problem:
    """Return the path and the message of an error that msgspec, pydantic or a user's type raised."""
    if isinstance(fault, RecursionError):
        return path, _TOO_DEEP
    if isinstance(fault, msgspec.ValidationError):
        message, _, where = str(fault).rpartition(" - at `$")
        if not message:
            message, where = where, ""
        if message.startswith(_QUOTES_DATA):  # the values of a run are not quoted
            message = "the value is none of those that its type allows"
        return path + where.rstrip("`"), message
    if type(fault).__name__ == "ValidationError" and (listed := cast("Any", fault).errors()):  # pydantic's
        for step in listed[0]["loc"]:
            path = key_path(path, step)
        return path, listed[0]["msg"]
    if type(fault).__name__.startswith("PydanticSerialization"):
        return path, "the value does not have the declared type"
    return path, f"{type(fault).__name__}: {fault}"


def _too_deep(plain: Any) -> bool:
    """Return whether plain data is nested too deeply. Checked level by level, without recursion, so that the check itself cannot
    overflow the stack.
    """
    level = [plain]
    for _ in range(DEPTH_MAX):
        level = [inner for outer in level for inner in (outer.values() if type(outer) is dict else outer)
                 if type(inner) is dict or type(inner) is list]  # fmt: skip
        if not level:
            return False
    return True


def same(one: Any, other: Any) -> bool:
    """Return whether two plain values are the same in JSON, where 1, 1.0 and true are different."""
    if one is other:
        return True
    if type(one) is not type(other) or one != other:
        return False
    return type(one) not in (list, dict) or not one or _dumps_sorted(one) == _dumps_sorted(other)


def key_path(path: str, key: Any) -> str:
    """Return the path to the value of a key: `state.pages`, `state['two words']`."""
    return (
        f"{path}.{key}"
        if isinstance(key, str) and re.fullmatch(r"[^\W\d]\w*", key)
        else f"{path}[{key!r:.40}]"
    )


def article(name: str) -> str:
    """Return a name with its article: `a str`, `an int`."""
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def type_name(declared: Any) -> str:
    """Return a type as a person would write it."""
    if isinstance(declared, type) and not hasattr(declared, "__args__"):
        return declared.__qualname__
    return str(declared).replace("typing.", "")
