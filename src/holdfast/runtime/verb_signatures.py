"""The signatures and the help of the public functions that take the options of a verb: both follow from its record.

Such a function is a few lines: it takes its options as `**options`. For a reader and for `inspect.signature` it has every option,
with its default and a sentence; type checkers get the names and the types from the `TypedDict` beside the record.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.core.requests import AnyRequest, stated_of
from holdfast.core.verb_options import AS_THE_FIELD, LAST, option_in, options_of, read_options
from holdfast.errors import RunCancelled, RunFailed, SettingError, did_you_mean

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R", bound=AnyRequest)
_OUTCOMES = (RunFailed, RunCancelled)
"""Exceptions that say how a run has ended. The frames of Holdfast and asyncio in which they were raised say nothing: a traceback
shows the line of the caller, and the cause.
"""


def asked(record: type[R], options: Mapping[str, Any], **positional: Any) -> tuple[R, str | None, bool]:
    """Return the request that the options of a public function make, its id, and whether it may execute the run here. Raises
    `SettingError`.
    """
    kind: type[msgspec.Struct] = record
    known, given = options_of(kind), read_options(kind, {**positional, **options})
    id, execute = given.pop("id", None), given.pop("execute", True)
    if "stated" in record.__struct_fields__:
        given["stated"] = stated_of(
            given.pop("step", None), given.pop("item", None), given.pop("result", UNSET)
        )
    fields = {known[name].field if name in known else name: value for name, value in given.items()}
    return record(**fields), id, execute


def takes_run(function: F) -> F:
    """Decorate a function whose first parameter is `run`: callers may also give the run as `run_id`."""

    def read(given: dict[str, Any]) -> dict[str, Any]:
        if "run_id" in given:
            given["run"] = given.pop("run_id")
        return given

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **given: Any) -> Any:
            return await function(*args, **read(given))
    else:

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            return function(*args, **read(given))

    return call  # type: ignore[return-value]


def takes(record: type[msgspec.Struct], options: type, *, others: Collection[str] = ()) -> Callable[[F], F]:
    """Decorate a function of the form `f(run, …, **options: Unpack[…])`: its signature and its help show every option, and the
    run may be given as `run_id`. `others` are options that the function also takes, and whose signature is in another place.
    """

    def decorate(function: F) -> F:
        known = _parameters(record, options)
        own = inspect.signature(function)
        named = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        rest = [
            one for one in own.parameters.values() if one.kind is inspect.Parameter.VAR_KEYWORD and others
        ]
        shown = own.replace(parameters=[*named, *known.values(), *rest])
        allowed = {*known, *(one.name for one in named), *others}

        def read(given: dict[str, Any]) -> dict[str, Any]:
            if "run_id" in given and "run_id" not in allowed:
                given["run"] = given.pop("run_id")
            for name in given:
                if name not in allowed:
                    near = did_you_mean(name, allowed)
                    if others:
                        raise SettingError(
                            f"neither this function nor the engine has an option {name!r}{near}"
                        )
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}{near}"
                    )
            return given

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call(*args: Any, **given: Any) -> Any:
                called = function(*args, **read(given))
                del args, given  # very many calls may wait here
                try:
                    return await called
                except _OUTCOMES as ended:
                    raise ended.with_traceback(None)  # noqa: B904 - see _OUTCOMES
        else:

            @functools.wraps(function)
            def call(*args: Any, **given: Any) -> Any:
                try:
                    return function(*args, **read(given))
                except _OUTCOMES as ended:
                    raise ended.with_traceback(None)  # noqa: B904 - see _OUTCOMES

        call.__signature__ = shown  # type: ignore[attr-defined]
        call.__doc__ = _help(function.__doc__ or "", record, options, [*(one.name for one in named), *known])
        return call  # type: ignore[return-value]

    return decorate


def _parameters(record: type[msgspec.Struct], options: type) -> dict[str, inspect.Parameter]:
    """Return the parameters for the options, those of the record first, in the order of its fields."""
    hints, known = options.__annotations__, options_of(record)
    ordered = [name for name in known if name in hints and known[name].field not in LAST]
    ordered += [name for name in hints if name not in ordered]
    found = {}
    for name in ordered:
        option = option_in(hints[name])
        default = known[name].default if option is None else option.default
        default = None if default is AS_THE_FIELD else default
        plain = typing.get_args(hints[name])[0] if option is not None else hints[name]
        found[name] = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=plain
        )
    return found


def _help(doc: str, record: type[msgspec.Struct], options: type, names: Collection[str]) -> str:
    """Return a docstring with a sentence about each option."""
    known = {name: given.option for name, given in options_of(record).items()}
    for name, hint in options.__annotations__.items():
        known |= {name: option} if (option := option_in(hint)) is not None else {}
    lines = [f"    {name}: {known[name].says}" for name in names if name in known]
    return "\n".join([inspect.cleandoc(doc), "", "Options:", *lines])
