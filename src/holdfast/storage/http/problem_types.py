"""Problems (RFC 9457): how a server reports an error, and how a client turns the report into the same error again.

`holdfast.server.problems` makes problems; this module has what both sides must agree on. A problem that reports an error of
Holdfast names its class (`error`) and its fields (`about`). A problem that the server found itself becomes the error that
`OF_SERVER` says: wrong tokens and wrong requests are the caller's fault, the rest is the server's.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast import errors
from holdfast.errors import HoldfastError, SettingError, StoreBusy, StoreUnusable, end_sentence

MEDIA_TYPE = "application/problem+json"
PREFIX = "urn:holdfast:problem:"
_PLAIN = (str, int, float, bool, type(None))


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with one parameter or field."""

    path: str
    message: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of an answer that reports a problem."""

    type: str
    """Which problem this is: `urn:holdfast:problem:` and a name that never changes."""
    title: str
    status: int
    detail: str
    remedy: str
    """What to do about it."""
    errors: tuple[Fault, ...] = ()
    error: str = ""
    """The class of the error in `holdfast.errors`, if it is one of those."""
    about: dict[str, Any] = {}
    """The fields of that error, such as `run_id`."""


ERRORS: dict[str, type[HoldfastError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, HoldfastError)
}
"""Name of a class -> the error."""

OF_SERVER: dict[str, type[HoldfastError]] = {
    "too-slow": StoreBusy,
    "too-many-failures": StoreBusy,
    "too-many-requests": StoreBusy,
    "closed": StoreBusy,
    "defect": StoreUnusable,
}
"""Name of a problem that the server found itself -> the error that a client raises. A problem that is not listed is the caller's
fault (`SettingError`).
"""


def name_of(kind: type[HoldfastError]) -> str:
    """Return the name of the problem for a class of errors: `run-not-found` for `RunNotFound`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


def about(error: HoldfastError) -> dict[str, Any]:
    """Return the fields of an error that can be sent."""
    return {
        name: value for name, value in vars(error).items() if not name.startswith("_") and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (
        isinstance(value, tuple) and all(isinstance(one, _PLAIN) for one in value)
    )


def error_of(problem: Problem, server: str) -> HoldfastError:
    """Return the error that a problem of this server reports."""
    kind = ERRORS.get(problem.error)
    if kind is not None:
        error = kind.__new__(kind)
        error.args = (problem.detail,)
        fields = {
            name: tuple(value) if isinstance(value, list) else value for name, value in problem.about.items()
        }
        vars(error).update({name: value for name, value in fields.items() if not name.startswith("_")})
        return error
    name = problem.type.removeprefix(PREFIX)
    told = f"{server}: {end_sentence(problem.detail)} {problem.remedy}"
    if name == "unauthorized":
        told = (
            f"{server} does not accept the token: {end_sentence(problem.detail)} Set HOLDFAST_TOKEN to a token of this server; "
            "`holdfast token create NAME --role operate` makes one on the machine of the server."
        )
    elif name == "not-found":
        told = (
            f"{server} does not offer this: {end_sentence(problem.detail)} It may run another version of Holdfast; install the "
            "same version here and there."
        )
    return OF_SERVER.get(name, SettingError)(told)
