"""The declared type of a flow's state, and updates of the state as changes.

Inside the core, a state is plain data with one entry per field (`Values`). A `StateType` converts plain data to new typed
objects, and turns what a node returned into `Changes` relative to the input that the node was given. `apply` is its counterpart
in the fold: it needs no types and calls no user code.

The invariant that connects the two: `apply(values, changes(returned, values))` gives what the node returned. Sums are exact: of
ints and Decimals (stored as str) whatever their size; a float difference that no float can express is refused. Nothing here
calls a custom reducer: its operand is recorded under `reduce`, and the runtime computes the result.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import decimal
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

import msgspec

from holdfast.core.codec import Codec, article, is_pydantic, key_path, same, type_name
from holdfast.core.events import Changes, Values, require_all_fields
from holdfast.errors import CodecError, StateError, did_you_mean

S = TypeVar("S")
Kind: TypeAlias = Literal["set", "append", "merge", "add", "custom"]
ReducerFn: TypeAlias = Callable[[Any, Any], Any]

_ANY: Codec[Any] = Codec.of(Any)
_MISSING: Any = msgspec.UNSET
_NONE_KNOWN: Mapping[str, int] = types.MappingProxyType({})
_EXACT = decimal.Context(prec=5_000)
_DIGITS_MAX = 1_000
"""How many digits a number in a sum may have before and after the decimal point, so that sums of them stay exact in `_EXACT`."""


class Reducer:
    """Says how updates of a field are merged. Put it beside the field's type: `Annotated[list[str], append]`."""

    def __init__(self, name: Literal["append", "merge", "add"]) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


append = Reducer("append")
"""A reducer for lists: the items of an update are added after the existing ones."""
merge = Reducer("merge")
"""A reducer for dicts: the keys of an update are added or replaced, the others stay."""
add = Reducer("add")
"""A reducer for numbers (int, float, Decimal): an update is added to the current value."""


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A declared field of a state: its type and how its updates are merged."""

    name: str
    reducer: Kind
    codec: Codec[Any]
    operand: Codec[Any]
    required: bool
    function: ReducerFn | None
    path: str

    def encode(self, value: Any, node: str | None) -> Any:
        """Convert a whole value of the field to plain data."""
        plain = self.codec.encode(value, path=self.path, node=node)
        return _summable(plain, self.path, node) if self.reducer == "add" else plain

    def accept(self, value: Any, node: str | None) -> Any:
        """Like `encode`, but the value may already be plain data."""
        plain = self.codec.accept(value, path=self.path, node=node)
        return _summable(plain, self.path, node) if self.reducer == "add" else plain

    def encode_operand(self, value: Any, node: str | None, *, by_hand: bool = False) -> Any:
        """Convert the value that a partial update gives for this field to plain data. With `by_hand`, it may already be plain."""
        encode = self.operand.accept if by_hand else self.operand.encode
        plain = encode(value, path=self.path, node=node)
        return _summable(plain, self.path, node) if self.reducer == "add" else plain


class StateType(Generic[S]):
    """The declared type of a flow's state: a dataclass, pydantic model, TypedDict, msgspec.Struct, or dict (no fields
    declared).
    """

    __slots__ = (
        "_codec",
        "_defaults",
        "_keys",
        "_tag",
        "fields",
        "grows",
        "is_assembled",
        "is_dict",
        "open",
        "type",
        "validates",
    )

    def __init__(
        self, declared: Any, fields: dict[str, Field], keys: dict[str, str], tag: dict[str, str]
    ) -> None:
        self.type = declared
        self.fields = fields
        self.open = declared is dict
        # If the state is a dict, a dict that a node returns is a partial update.
        self.is_dict = self.open or typing.is_typeddict(declared)
        self.validates = is_pydantic(declared) or hasattr(declared, "__post_init__")
        """True if the type validates whole states with code of its own (pydantic, `__post_init__`)."""
        self.is_assembled = not self.validates or (is_pydantic(declared) and not _has_validators(declared))
        """True if a state is its fields and nothing more, so that it may be assembled from their values (`assemble`)."""
        self.grows = any(field.reducer in ("append", "merge") for field in fields.values())
        """True if values of the state may grow step by step."""
        self._codec: Codec[S] = Codec.of(declared)
        self._keys = keys  # field -> its key in the type's own JSON, where one is renamed
        self._tag = tag
        self._defaults: Values | None = None

    @classmethod
    def of(cls, declared: Any) -> StateType[Any]:
        """Create the state type for a class that a graph declares as its state. Raises `StateError`, which names the field and
        what is wrong with it.
        """
        if _is_open(declared):
            return cls(dict, {}, {}, {})
        try:
            declarations = list(_declarations(declared))
            fields = {found.name: _field(found) for found in declarations}
            keys = {found.name: found.key for found in declarations}
            renamed = keys if any(name != key for name, key in keys.items()) else {}
            return cls(declared, fields, renamed, _tag(declared))
        except StateError as fault:
            raise StateError(f"state type {type_name(declared)}: {fault}", field=fault.field) from fault

    @property
    def name(self) -> str:
        return type_name(self.type)

    def describe(self) -> dict[str, str]:
        """Return how updates of each field are merged: `set`, `append`, `merge`, `add`, or the name of a custom reducer."""
        return {name: field.reducer if field.function is None else _function_name(field.function)
                for name, field in self.fields.items()}  # fmt: skip

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of a dict of the fields, as `dump` accepts it: an object with the names of the fields, whatever they
        are called in the type's own JSON. Raises `StateError` for a type without a schema.
        """
        if self.open:
            return {"type": "object"}
        try:
            schema, parts = _schemas(self.type)
        except (TypeError, ValueError) as fault:
            reason = str(fault).splitlines()[-1]
            raise StateError(f"state type {self.name} has no JSON Schema: {reason}") from fault
        names = {key: name for name, key in self._keys.items()}
        schema["properties"] = {
            names.get(key, key): part
            for key, part in schema.get("properties", {}).items()
            if key not in self._tag
        }
        schema["required"] = [name for name, field in self.fields.items() if field.required]
        schema["additionalProperties"] = False
        if parts:
            schema["$defs"] = parts
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
        return plain

    # --- whole states ---------------------------------------------------------------------------------

    def dump(self, value: Any, *, node: str | None = None) -> Values:
        """Convert a whole state, given as the typed object or as a dict of its fields, to plain data with defaults filled in."""
        if type(value) is self.type and not self.is_dict:
            return self._dump_object(value, node)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise StateError(
                f"expected a {self.name} or a dict of its fields, not {_article(value)}", node=node
            )
        if self.open:
            return {name: self._encode_open(name, inner, node) for name, inner in value.items()}
        given = {name: self._require_field(name, node).accept(inner, node) for name, inner in value.items()}
        missing = [name for name, field in self.fields.items() if field.required and name not in given]
        if missing:
            raise StateError(f"the state lacks {', '.join(map(repr, missing))}, and {self.name} has no default; give a value",
                             node=node, field=missing[0])  # fmt: skip
        if self.is_dict:
            return given
        return self._dump_object(self.load(given), node)  # the type fills in its defaults and validates

    def load(self, values: Values) -> S:
        """Convert plain data to a new typed object, which shares nothing mutable with `values`. Raises `StateError` if `values`
        do not fit the type.
        """
        if self.open:
            return self._codec.decode(values, path="state")
        if not values.keys() <= self.fields.keys():
            name = next(name for name in values if name not in self.fields)
            raise StateError(
                f"the stored state has a field {name!r} that {self.name} does not declare; "
                "declare it, or give the graph a new version and an upgrade that drops it",
                field=name,
            )
        keys = self._keys
        plain = (
            values
            if not keys and not self._tag
            else self._tag | {keys.get(name, name): values[name] for name in values}
        )
        try:
            return self._codec.decode(plain, path="state")
        except CodecError as fault:
            raise StateError(
                f"the state does not fit {self.name}: {fault}. Give values of the declared types; for a stored state, edit it, "
                "or give the graph a new version and an upgrade",
                field=self._field_at(fault.path),
            ) from fault

    def assemble(self, values: Values, typed: Mapping[str, Any]) -> S:
        """Like `load`, but with these typed values, in place of the plain ones, in the fields that have lists or dicts."""
        whole = self.load({**values, **{name: type(values[name])() for name in typed}})
        put = self._put
        for name, value in typed.items():
            put(whole, name, value)
        return whole

    def untouched(self, given: Any, values: Values, known: Mapping[str, int] = _NONE_KNOWN) -> list[str]:
        """Return the names of the fields that a node changed in the object it was given, compared with its input `values`. For
        `known` see `changes`.
        """
        if self.open:
            kept = {
                name
                for name in values
                if name in given
                and (_is_known(known, name, given[name]) or _ANY.matches(given[name], values[name]))
            }
            return [name for name in {**values, **given} if name not in kept]
        changed = []
        for name, field in self.fields.items():
            value = self.value_of(given, name)
            if _is_known(known, name, value):
                continue
            old = values.get(name, _MISSING)
            if old is _MISSING:
                old = self._default(name)
            if value is not old and (
                value is _MISSING or old is _MISSING or not field.codec.matches(value, old)
            ):
                changed.append(name)
        return changed

    # --- updates --------------------------------------------------------------------------------------

    def changes(
        self,
        returned: Any,
        values: Values,
        *,
        node: str,
        given: Any = None,
        known: Mapping[str, int] = _NONE_KNOWN,
    ) -> Changes:
        """Turn what a node returned into changes relative to `values`, the plain input that the node was given.

        A dict is a partial update, an object of the state's type a whole state, and None no change. `given` is the object that
        was passed to the node: if it is a dict and the node returns that same dict, it counts as a whole state, not as an
        update of every field. `known` maps a field with a list or dict to the number of its first members that are known to be
        all that `values` has there, unchanged.
        """
        if returned is None:
            return Changes()
        if isinstance(returned, dict) and not (self.is_dict and returned is given):
            return self._partial(returned, node)
        if self.open and returned is given:
            return diff(
                values,
                {
                    name: values[name]
                    if _is_known(known, name, value)
                    else self._encode_open(name, value, node)
                    for name, value in returned.items()
                },
            )
        if type(returned) is self.type or returned is given:
            return self._whole(returned, values, node, known)
        whole = "" if self.is_dict else f", a whole {self.name}"
        raise StateError(
            f"the node returned {_article(returned)}; expected a partial update (dict){whole}, or None",
            node=node,
        )

    def by_hand(self, update: Mapping[str, Any] | None, *, node: str) -> Changes:
        """Turn a partial update, which an operator gives in place of a node's result, into changes. The values of the update may
        be plain data.
        """
        if update is not None and not isinstance(update, Mapping):
            raise StateError(
                f"the update is {_article(update)}; expected fields and their values (a dict)", node=node
            )
        return self._partial(dict(update or {}), node, by_hand=True)

    def _partial(self, update: dict[str, Any], node: str, *, by_hand: bool = False) -> Changes:
        if self.open:
            return Changes(set={name: self._encode_open(name, value, node) for name, value in update.items()})
        parts: dict[str, Any] = {}
        for name, value in update.items():
            field = self.fields.get(name) or self._require_field(name, node)
            part = "reduce" if field.reducer == "custom" else field.reducer
            parts.setdefault(part, {})[name] = field.encode_operand(value, node, by_hand=by_hand)
        return Changes(**parts)

    def is_whole(self, returned: Any, given: Any) -> bool:
        """Return whether a node that was given this state has returned a whole state, or nothing."""
        if returned is None or returned is given:
            return True
        return type(returned) is self.type and not self.is_dict

    def _whole(self, returned: Any, values: Values, node: str, known: Mapping[str, int]) -> Changes:
        if not values and self.fields:
            raise StateError(
                "an item of a fan-out returns a partial update (dict) or None, not a whole state", node=node
            )
        self._refuse_extras(returned, node)
        parts: dict[str, Any] = {}
        unset = []
        for name, field in self.fields.items():
            value = self.value_of(returned, name)
            if _is_known(known, name, value):
                continue
            if name in known and field.reducer == "append":
                with suppress(CodecError):  # raised again below, with the place in the whole list
                    parts.setdefault("append", {})[name] = field.encode_operand(value[known[name] :], node)
                    continue
            old = values.get(name, _MISSING)
            if value is _MISSING:
                if old is not _MISSING:
                    unset.append(self._removable(field, node))
                continue
            plain = field.encode(value, node)
            base = self._default(name) if old is _MISSING else old
            reordered = (
                not field.codec.is_ordered and base is not _MISSING and field.codec.matches(value, base)
            )
            if same(plain, base) or reordered:
                continue
            parts.setdefault(field.reducer, {})[name] = _operand(field, old, plain, node)
        return Changes(**parts, unset=unset)

    # --- single fields, for the runtime, which calls custom reducers ------------------------------------

    def reducer(self, field: str) -> ReducerFn:
        """Return the custom reducer of a field."""
        function = self._require_field(field, None).function
        assert function is not None, f"{field!r} has no custom reducer"
        return function

    def value_of(self, whole: Any, name: str) -> Any:
        """Return the value of a field in a typed state; `msgspec.UNSET` if it has none."""
        return whole.get(name, _MISSING) if self.is_dict else getattr(whole, name, _MISSING)

    def codec_of(self, field: str) -> Codec[Any]:
        """Return the codec of the values of a field."""
        return _ANY if self.open else self._require_field(field, None).codec

    def converts_members(self, field: str) -> bool:
        """Return whether a list or a dict in this field is converted member by member, and nothing is declared about it as a
        whole, such as its length.
        """
        return self.open or (field in self.fields and _converts_members(self.fields[field].codec))

    def decode_field(self, field: str, plain: Any) -> Any:
        """Convert the plain value of a field to its type; None stays None."""
        return None if plain is None else self.codec_of(field).decode(plain, path=f"state.{field}")

    def decode_operand(self, field: str, plain: Any) -> Any:
        """Convert the plain value that an update gave for a field to its type."""
        codec = _ANY if self.open else self._require_field(field, None).operand
        return codec.decode(plain, path=f"state.{field}")

    def encode_field(self, field: str, value: Any, node: str | None = None) -> Any:
        """Convert a whole value of a field to plain data."""
        return (
            self._encode_open(field, value, node)
            if self.open
            else self._require_field(field, node).encode(value, node)
        )

    def accept_field(self, field: str, value: Any) -> Any:
        """Like `encode_field`, for a value that an operator gives, which may already be plain data."""
        return (
            self._encode_open(field, value, None)
            if self.open
            else self._require_field(field, None).accept(value, None)
        )

    def accept_fields(self, given: Mapping[str, Any]) -> Values:
        """Call `accept_field` for each field. If several do not fit, the error of the first has those of the others."""
        accepted: Values = {}
        misfits: list[StateError] = []
        for field, value in given.items():
            try:
                accepted[field] = self.accept_field(field, value)
            except StateError as misfit:
                misfits.append(misfit)
        if misfits:
            misfits[0].others = tuple(misfits[1:])
            raise misfits[0]
        return accepted

    # --- inside ---------------------------------------------------------------------------------------

    def _require_field(self, name: Any, node: str | None) -> Field:
        field = self.fields.get(name)
        if field is None:
            near = did_you_mean(name, self.fields) if isinstance(name, str) else ""
            raise StateError(f"{self.name} has no field {name!r}{near or '; its fields are ' + ', '.join(self.fields)}",
                             node=node, field=str(name))  # fmt: skip
        return field

    def _encode_open(self, name: Any, value: Any, node: str | None) -> Any:
        if not isinstance(name, str):
            raise StateError(
                f"the state's keys are strings, and {name!r:.40} is {_article(name)}",
                node=node,
                field=str(name),
            )
        _ANY.encode(name, path=f"state[{name!r:.40}]", node=node)
        return _ANY.encode(value, path=key_path("state", name), node=node)

    def _dump_object(self, value: Any, node: str | None) -> Values:
        self._refuse_extras(value, node)
        values: Values = {}
        for name, field in self.fields.items():
            inner = getattr(value, name, _MISSING)
            if inner is _MISSING:
                raise StateError(
                    f"the field {name!r} of the {self.name} is not set; set it before you return or pass the state",
                    node=node,
                    field=name,
                )
            values[name] = field.encode(inner, node)
        return values

    def _refuse_extras(self, value: Any, node: str | None) -> None:
        """Refuse fields that are not declared, because they would be lost: extra attributes of a model, unknown keys of a
        TypedDict.
        """
        extras = (
            value.keys() - self.fields.keys() if self.is_dict else getattr(value, "__pydantic_extra__", None)
        )
        for name in extras or ():
            self._require_field(name, node)

    def _put(self, whole: Any, name: str, value: Any) -> None:
        if self.is_dict:
            whole[name] = value
        elif issubclass(self.type, msgspec.Struct):
            msgspec.structs.force_setattr(whole, name, value)
        elif is_pydantic(self.type):
            whole.__dict__[name] = value
        else:
            object.__setattr__(whole, name, value)

    def _removable(self, field: Field, node: str) -> str:
        if field.required or field.reducer != "set":
            raise StateError(f"the node removed {field.name!r} from the state; only a plain field that is NotRequired "
                             "can be removed",
                             node=node, field=field.name)  # fmt: skip
        return field.name

    def _default(self, name: str) -> Any:
        """Return the default of a field that a stored state does not have yet."""
        if self._defaults is None:
            self._defaults = {} if self.is_dict else dict(_defaults(self.type, self.fields))
        return self._defaults.get(name, _MISSING)

    def _field_at(self, path: str) -> str | None:
        names = {key: name for name, key in self._keys.items()} or {name: name for name in self.fields}
        return next(
            (
                name
                for key, name in names.items()
                if f"{path}.".startswith((f"state.{key}.", f"state.{key}["))
            ),
            None,
        )

    def __repr__(self) -> str:
        return f"<StateType {self.name}>"


# --- applying changes, for the fold ---------------------------------------------------------------------


def always(field: str, value: Any) -> bool:
    """Tell `apply`, as its argument `shared`, that every container is shared and must be copied before it is changed."""
    return True


def never(field: str, value: Any) -> bool:
    """Tell `apply`, as its argument `shared`, that no container is shared, so that all may be changed in place."""
    return False


require_all_fields(Changes, "set", "append", "merge", "add", "reduce", "unset")


def apply(values: Values, changes: Changes, shared: Callable[[str, Any], bool] = never) -> None:
    """Apply changes to `values`, in place. A container for which `shared` returns True is copied before it is changed.

    A `set` stores the same object that the event contains, so a later `append` may extend a list of the event; this is why events
    are encoded before they are folded. `reduce` is not applied; its result comes as `set`.
    """
    if changes.set:
        values.update(changes.set)
    if changes.append:
        for field, items in changes.append.items():
            current = values.get(field)
            if current is None or shared(field, current):
                values[field] = [*(current or ()), *items]
            else:
                current.extend(items)
    if changes.merge:
        for field, entries in changes.merge.items():
            current = values.get(field)
            if current is None or shared(field, current):
                values[field] = {**(current or {}), **entries}
            else:
                current.update(entries)
    if changes.add:
        for field, amount in changes.add.items():
            values[field] = _sum(field, values.get(field, 0), amount)
    if changes.unset:
        for field in changes.unset:
            values.pop(field, None)


def item_conflict(results: Sequence[Changes]) -> tuple[str, int, int] | None:
    """Return a field without a reducer that two items of one fan-out have set, and the indexes of these items; None if there is
    none.
    """
    writers: dict[str, int] = {}
    for item, changes in enumerate(results):
        for field in (*changes.set, *changes.unset):
            if field in writers:
                return field, writers[field], item
            writers[field] = item
    return None


def diff(before: Values, after: Values) -> Changes:
    """Return the changes from `before` to `after`, as new values and removed keys only. Used for edits, which replace values."""
    return Changes(
        set={
            name: value
            for name, value in after.items()
            if name not in before or not same(value, before[name])
        },
        unset=[name for name in before if name not in after],
    )


# --- reducers: the operand that a whole state implies -----------------------------------------------------


def _operand(field: Field, old: Any, new: Any, node: str) -> Any:
    """Return the operand with which the field's reducer turns `old` into `new` (both plain and different)."""
    match field.reducer:
        case "set":
            return new
        case "append":
            return _suffix(field, [] if old is _MISSING else old, new, node)
        case "merge":
            return _entries(field, {} if old is _MISSING else old, new, node)
        case "add":
            return _amount(field, 0 if old is _MISSING else old, new, node)
        case "custom":
            raise _ambiguous(field, node, "the custom reducer of this field cannot be reversed")
        case _:
            typing.assert_never(field.reducer)


def _suffix(field: Field, old: list[Any], new: list[Any], node: str) -> list[Any]:
    if not same(new[: len(old)], old):
        raise _ambiguous(
            field, node, f"the {len(old)} items that this `append` field had were moved or removed"
        )
    return new[len(old) :]


def _entries(field: Field, old: dict[str, Any], new: dict[str, Any], node: str) -> dict[str, Any]:
    gone = next((key for key in old if key not in new), _MISSING)
    if gone is not _MISSING:
        raise _ambiguous(field, node, f"the key {gone!r} of this `merge` field was removed")
    return {key: value for key, value in new.items() if key not in old or not same(value, old[key])}


def _amount(field: Field, old: Any, new: Any, node: str) -> Any:
    """Return the amount that, added to `old`, gives exactly `new`."""
    if isinstance(old, str) or isinstance(new, str):
        return str(_EXACT.subtract(_decimal(new), _decimal(old)))
    try:
        amount = new - old
        # A float difference is rounded; if adding it does not give `new`, adding one of its neighbours may.
        near = (
            ()
            if isinstance(amount, int)
            else (math.nextafter(amount, math.inf), math.nextafter(amount, -math.inf))
        )
        for candidate in (amount, *near):
            if old + candidate == new:
                return candidate
    except OverflowError:
        pass
    raise _ambiguous(field, node, f"no float added to {old!r} gives {new!r}")


def _ambiguous(field: Field, node: str, why: str) -> StateError:
    return StateError(f"the node returned a whole state in which {field.name!r} cannot be expressed as an update: "
                      f"{why}; return a partial update instead: {{{field.name!r}: …}}", node=node, field=field.name)  # fmt: skip


def _sum(field: str, old: Any, amount: Any) -> Any:
    if isinstance(old, str) or isinstance(amount, str):
        return str(_EXACT.add(_decimal(old), _decimal(amount)))
    try:
        total = old + amount
    except OverflowError:
        total = math.inf
    if isinstance(total, float) and not math.isfinite(total):
        raise StateError(
            f"the sum in {field!r} is too large for a float; declare the field as Decimal", field=field
        )
    return total


def _decimal(plain: Any) -> decimal.Decimal:
    return decimal.Decimal(plain)  # the constructor is exact, whatever the decimal context


def _summable(plain: Any, path: str, node: str | None) -> Any:
    """Refuse numbers that have too many digits for an exact sum."""
    if isinstance(plain, str):
        number = decimal.Decimal(plain)
        exponent = number.as_tuple().exponent
        if not isinstance(exponent, int):
            raise CodecError(
                f"{plain} cannot be added to anything; use a finite number", path=path, node=node
            )
        fits = (
            exponent >= -_DIGITS_MAX
            and number.adjusted() <= _DIGITS_MAX
            and len(number.as_tuple().digits) <= _DIGITS_MAX
        )
    else:
        fits = not isinstance(plain, int) or plain.bit_length() <= 3.3 * _DIGITS_MAX
    if not fits:
        raise CodecError(
            f"a number in an `add` field may have {_DIGITS_MAX} digits at most", path=path, node=node
        )
    return plain


def _is_known(known: Mapping[str, int], name: str, value: Any) -> bool:
    """Return whether all members of a list or dict are known to be those that the input of the node had."""
    return name in known and len(value) == known[name]


def _schemas(declared: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON Schema of a type with fields, and the schemas that it refers to, by name. Of a pydantic model, the fields of the
    state have their names, and those of the models inside it their aliases: so they are accepted.
    """
    if is_pydantic(declared):
        schema = declared.model_json_schema(by_alias=False)
        named, parts = schema.pop("$defs", {}), declared.model_json_schema().get("$defs", {})
        name = schema.pop("$ref", "").rpartition("/")[2]  # a model that contains itself
    else:
        (schema,), parts = msgspec.json.schema_components([declared], ref_template="#/$defs/{name}")
        named, name = parts, schema["$ref"].rpartition("/")[2]
    if name:
        schema = dict(named[name])
        if b'"#/$defs/%s"' % name.encode() not in msgspec.json.encode([*parts.values()]):
            del parts[name]
    return schema, parts


# --- declarations of fields in a class ----------------------------------------------------------------------


class _Declared(typing.NamedTuple):
    """A field of the state as its class declares it."""

    name: str
    key: str
    type: Any
    metadata: tuple[Any, ...]
    required: bool
    codec: Callable[[Any], Codec[Any]]


def _is_open(declared: Any) -> bool:
    return declared is dict or (
        typing.get_origin(declared) is dict and typing.get_args(declared) == (str, Any)
    )


def _declarations(declared: Any) -> Iterator[_Declared]:
    if is_pydantic(declared):
        yield from _pydantic_declarations(declared)
        return
    known = isinstance(declared, type) and (
        dataclasses.is_dataclass(declared)
        or issubclass(declared, msgspec.Struct)
        or typing.is_typeddict(declared)
    )
    if not known:
        raise StateError(
            "the state must be a dataclass, a pydantic model, a TypedDict, a msgspec.Struct, or dict"
        )
    try:
        Codec.of(declared)  # before the fields are looked at: a type may be recursive
    except CodecError as fault:
        _name_the_field(declared, fault)
        raise
    info = msgspec.inspect.type_info(declared)
    if getattr(info, "array_like", False):
        raise StateError("array_like=True stores the fields without names; remove it")
    hints = typing.get_type_hints(declared, include_extras=True)
    order = list(hints).index  # msgspec sorts the fields of a TypedDict by name
    for field in sorted(cast("Any", info).fields, key=lambda field: order(field.name)):
        hint, metadata = _unwrap(hints[field.name])
        yield _Declared(field.name, field.encode_name, hint, metadata, field.required, Codec.of)


def _name_the_field(declared: Any, fault: CodecError) -> None:
    """Raise the error about a state type, naming the field that causes it if there is one."""
    try:
        hints = typing.get_type_hints(declared, include_extras=True)
    except (NameError, TypeError):
        return
    for name, hint in hints.items():
        try:
            Codec.of(_unwrap(hint)[0])
        except CodecError as misfit:
            told = str(misfit).removeprefix(f"{misfit.path}: ")
            raise StateError(f"field {name!r}: {told}", field=name) from fault


def _has_validators(model: Any) -> bool:
    """Return whether a pydantic model has code of its own that sees, or makes, a whole model."""
    own = model.__pydantic_decorators__
    validators = (own.validators, own.field_validators, own.root_validators, own.model_validators)
    return any(validators) or bool(model.__pydantic_custom_init__) or model.__pydantic_post_init__ is not None


def _converts_members(codec: Codec[Any]) -> bool:
    """Return whether the codec of a field converts a list or a dict member by member, without looking at the whole."""
    declared = codec.type
    if typing.get_origin(declared) is typing.Annotated:
        if not all(isinstance(found, Reducer) or _is_reducer_fn(found) for found in declared.__metadata__):
            return False
        declared = declared.__origin__
    if declared is Any:
        return True
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        others = [part for part in typing.get_args(declared) if part is not type(None)]
        declared = (
            others[0] if len(others) == 1 else None
        )  # of several, the whole value may decide which one it is
    if (typing.get_origin(declared) or declared) not in (list, dict):
        return False
    try:
        codec.decode([] if (typing.get_origin(declared) or declared) is list else {})
    except CodecError:
        return False
    return True


def _pydantic_declarations(model: Any) -> Iterator[_Declared]:
    model.model_rebuild()
    if model.__pydantic_root_model__:
        raise StateError("a RootModel has no fields; give the state as a model with a field for that value")
    by_name = model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name")
    config = {key: value for key, value in model.model_config.items() if key not in ("title", "extra")}

    def codec(annotation: Any) -> Codec[Any]:
        return Codec.of_pydantic_field(annotation, config or None)

    for name, field in model.model_fields.items():
        alias = field.validation_alias
        key = name if by_name or alias is None else alias
        if not isinstance(key, str):
            raise StateError(
                f"field {name!r} has an alias that is not a plain name; set populate_by_name=True", field=name
            )
        hint = typing.Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        yield _Declared(name, key, hint, tuple(field.metadata), field.is_required(), codec)


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without `Required`, `NotRequired` and `Final`, and its metadata from `Annotated`."""
    metadata: tuple[Any, ...] = ()
    while True:
        origin = typing.get_origin(hint)
        if origin in (typing.Required, typing.NotRequired, typing.Final):
            hint = typing.get_args(hint)[0]
        elif origin is typing.Annotated and typing.get_origin(hint.__origin__) in (
            typing.Required,
            typing.NotRequired,
        ):
            metadata += hint.__metadata__
            hint = typing.get_args(hint.__origin__)[0]
        else:
            return hint, metadata + (tuple(hint.__metadata__) if origin is typing.Annotated else ())


def _field(declared: _Declared) -> Field:
    reducers = [found for found in declared.metadata if isinstance(found, Reducer) or _is_reducer_fn(found)]
    if len(reducers) > 1:
        raise StateError(f"field {declared.name!r} has two reducers ({', '.join(map(_function_name, reducers))}); keep one",
                         field=declared.name)  # fmt: skip
    _refuse_buried_reducer(declared.name, declared.type)
    try:
        codec = declared.codec(declared.type)
        reducer = reducers[0] if reducers else None
        if isinstance(reducer, Reducer):
            kind: Kind = reducer.name
            operand = declared.codec(_operand_type(declared, kind))
            return Field(
                declared.name, kind, codec, operand, declared.required, None, f"state.{declared.name}"
            )
    except CodecError as fault:
        raise StateError(f"field {declared.name!r}: {fault}", field=declared.name) from fault
    kind = "set" if reducer is None else "custom"
    return Field(declared.name, kind, codec, codec, declared.required, reducer, f"state.{declared.name}")


def _is_reducer_fn(found: Any) -> bool:
    return (
        callable(found) and not isinstance(found, type) and not hasattr(found, "__get_pydantic_core_schema__")
    )


def _operand_type(declared: _Declared, kind: Kind) -> Any:
    """Return the type of an update, without the constraints that apply only to the whole value (a maximum length, a minimum)."""
    bare = declared.type.__origin__ if typing.get_origin(declared.type) is typing.Annotated else declared.type
    origin = typing.get_origin(bare) or bare
    match kind:
        case "append" if origin in (list, collections.abc.Sequence, collections.abc.MutableSequence):
            return bare
        case "merge" if origin in (dict, collections.abc.Mapping, collections.abc.MutableMapping):
            return bare
        case "add" if origin in (int, float, decimal.Decimal) or (
            origin in (typing.Union, types.UnionType) and set(typing.get_args(bare)) == {int, float}
        ):
            return bare
        case _:
            fits = {"append": "a list", "merge": "a dict", "add": "an int, float or Decimal"}[kind]
            raise StateError(
                f"field {declared.name!r} is declared as {type_name(bare)}, and its reducer {kind!r} needs {fits}",
                field=declared.name,
            )


def _refuse_buried_reducer(name: str, hint: Any) -> None:
    """Refuse a reducer inside a type, as in `Annotated[list, append] | None`, which would be silently ignored."""
    bare = hint.__origin__ if typing.get_origin(hint) is typing.Annotated else hint
    for part in typing.get_args(bare):
        if any(isinstance(found, Reducer) for found in getattr(part, "__metadata__", ())):
            raise StateError(f"field {name!r} has its reducer inside its type; put it outermost: Annotated[…, append]",
                             field=name)  # fmt: skip


def _tag(declared: Any) -> dict[str, str]:
    """Return the tag that the JSON of a tagged msgspec.Struct must contain; empty for all other types."""
    config = getattr(declared, "__struct_config__", None)
    return {config.tag_field: config.tag} if config is not None and config.tag is not None else {}


def _defaults(declared: Any, fields: Mapping[str, Field]) -> Iterator[tuple[str, Any]]:
    for name, field in fields.items():
        if field.required:
            continue
        if is_pydantic(declared):
            value = declared.model_fields[name].get_default(call_default_factory=True)
        else:
            found = next(
                found
                for found in cast("Any", msgspec.inspect.type_info(declared)).fields
                if found.name == name
            )
            value = found.default if found.default_factory is msgspec.NODEFAULT else found.default_factory()
        yield name, field.encode(value, None)


def _function_name(found: Any) -> str:
    return (
        repr(found)
        if isinstance(found, Reducer)
        else getattr(found, "__qualname__", type(found).__qualname__)
    )


def _article(value: Any) -> str:
    """Return a value as error messages name it: `a str ('abc')`, `an int (3)`."""
    shown = f" ({value!r:.60})" if isinstance(value, (str, int, float)) else ""
    return f"{article(type_name(type(value)))}{shown}"
