"""What a function takes and returns, read from its signature and annotations. No function is called here."""

from __future__ import annotations

import dis
import inspect
import operator
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

Function: TypeAlias = Callable[..., Any]


def is_a(kind: Callable[[Any], bool], fn: Function) -> bool:
    """Return whether a function, or the call of an object, is of a kind, such as a coroutine function."""
    return kind(inspect.unwrap(fn)) or kind(type(fn).__call__)


def is_typed_in(found: Any) -> bool:
    """Return whether a function was defined at a prompt or in a notebook. Returns False for a class, where this is unknown."""
    around = getattr(inspect.unwrap(found), "__globals__", {}) if callable(found) else {}
    return around.get("__name__") == "__main__" and not (around.get("__file__") or around.get("__spec__"))


def takes_one(fn: Function) -> bool:
    """Return whether a function can be called with one argument."""
    return _takes(fn, (None,))


def takes_one_or_two(fn: Function) -> bool:
    """Return whether a function can be called with one argument, or with two."""
    return _takes(fn, (None,), (None, None))


def _takes(fn: Function, *ways: tuple[None, ...]) -> bool:
    """Return whether a function can be called with as many arguments as in one of these ways."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return True  # a builtin whose signature is unknown
    for arguments in ways:
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return True
    return False


def argument_type(fn: Function) -> Any:
    """Return the annotated type of a function's first argument, such as the item of a fan-out; `Any` without an annotation."""
    try:
        hints = typing.get_type_hints(fn, include_extras=True)
        first = next(iter(inspect.signature(fn).parameters))
    except (NameError, TypeError, ValueError, StopIteration):
        return Any
    return hints.get(first, Any)


def returned_field(fn: Function) -> str:
    """Return the name of the field if a function only returns one field of its argument, such as `lambda state: state.parts` or
    `operator.attrgetter("parts")`; otherwise an empty text.
    """
    if isinstance(fn, operator.attrgetter):
        names: Any = fn.__reduce__()[1]
        return str(names[0]) if len(names) == 1 and "." not in names[0] else ""
    code = getattr(fn, "__code__", None)
    if code is None or code.co_argcount != 1:
        return ""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("RESUME", "CACHE")]
    if not steps[0].opname.startswith("LOAD_FAST") or steps[-1].opname != "RETURN_VALUE":
        return ""
    between = [step.opname + ("[]" if step.argrepr == "[]" else "") for step in steps[1:-1]]
    reads_field = between in (["LOAD_ATTR"], ["LOAD_CONST", "BINARY_SUBSCR"], ["LOAD_CONST", "BINARY_OP[]"])
    return steps[1].argval if reads_field and isinstance(steps[1].argval, str) else ""


def element_type(declared: Any) -> Any:
    """Return the type of the elements of a list, tuple or set type; `Any` if it is none of these, or does not say."""
    while typing.get_origin(declared) is typing.Annotated:
        declared = typing.get_args(declared)[0]
    origin, types = typing.get_origin(declared), typing.get_args(declared)
    if not isinstance(origin, type) or not issubclass(origin, Iterable) or issubclass(origin, Mapping):
        return Any
    if origin is tuple and types[1:] != (...,):
        return Any
    element = types[0]
    return Any if isinstance(element, typing.TypeVar) else element


def result_type(fn: Function) -> Any:
    """Return the annotated type of what a function returns; `Any` if there is no annotation."""
    try:
        return typing.get_type_hints(fn, include_extras=True).get("return", Any)
    except (NameError, TypeError):
        return Any


def takes_context(fn: Function) -> bool:
    """Return whether the function takes a second positional argument, the context."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 2 and (
        positional[1].default is inspect.Parameter.empty or positional[1].name == "ctx"
    )
