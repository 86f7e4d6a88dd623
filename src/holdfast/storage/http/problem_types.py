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
from holdfast.core import VERSION
from holdfast.errors import HoldfastError, RequestExists, SettingError, StoreBusy, StoreUnusable, end_sentence

MEDIA_TYPE = "application/problem+json"
PREFIX = "urn:holdfast:problem:"
_PLAIN = (str, int, float, bool, type(None))


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with one parameter or field."""

    path: str
    message: str


class ReportedProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    "too-many-bodies": StoreBusy,
    "too-many-streams": StoreBusy,
    "closed": StoreBusy,
    "key-reused": RequestExists,
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


def error_of(problem: ReportedProblem, server: str) -> HoldfastError:
    """Return the error that a problem of this server reports."""
    kind = ERRORS.get(problem.error)
    if kind is errors.PlanError:
        found = tuple(errors.Problem(one.path, one.message) for one in problem.errors)
        return _rebuilt(kind, problem.detail, {**problem.about, "problems": found})
    if kind is not None:
        return _rebuilt(kind, problem.detail, problem.about)
    name = problem.type.removeprefix(PREFIX)
    told = f"{server}: {end_sentence(problem.detail)} {problem.remedy}"
    if name == "unauthorized":
        told = (
            f"{server} refuses the request: {end_sentence(problem.detail)} Set HOLDFAST_TOKEN to a token of this server; "
            "`holdfast token create NAME --role operate` makes one on the machine of the server."
        )
    elif name == "not-found":
        told = (
            f"{server} does not offer this: {end_sentence(problem.detail)} It may run another version of Holdfast; install the "
            "same version here and there."
        )
    return _rebuilt(OF_SERVER.get(name, SettingError), told, {})


def _rebuilt(kind: type[HoldfastError], message: str, fields: dict[str, Any]) -> HoldfastError:
    """Return an error with this message and these fields, as the server has raised it."""
    error = kind.__new__(kind)
    error.args = (message,)
    for name, value in fields.items():
        if not name.startswith("_"):
            vars(error)[name] = tuple(value) if isinstance(value, list) else value
    return error


# --- answers that are no problem, and no answer ------------------------------------------------------


def refusal_of(server: str, status: int, media_type: str, place: str, body: bytes) -> HoldfastError:
    """Return the error for an answer that is not a success: the error that it reports, if it is a problem. `place` is where it
    redirects to.
    """
    if media_type.partition(";")[0].strip().lower() == MEDIA_TYPE:
        try:
            return error_of(msgspec.json.decode(body, type=ReportedProblem), server)
        except (msgspec.MsgspecError, RecursionError):
            pass
    if 300 <= status < 400:
        return StoreUnusable(
            f"{server} redirects to {place[:200]!r}, and redirects are not followed, because the token would be sent there. Give "
            "that address if it is your server."
        )
    return StoreUnusable(
        f"{server} answered with status {status}, which is not an answer of Holdfast. Check the address, and what is between "
        "here and the server."
    )


def unreadable(server: str, fault: Exception) -> StoreUnusable:
    """Return the error for an answer that is not what this version expects."""
    return StoreUnusable(
        f"the answer of {server} cannot be read: {fault}. It may run another version of Holdfast, or not be a Holdfast server; "
        f"install the same version here and there (here: {VERSION})."
    )


def unreachable(server: str, fault: Exception) -> StoreUnusable:
    """Return the error for a server that cannot be reached, or that has closed the connection."""
    why = getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
    return StoreUnusable(
        f"no Holdfast server answers at {server}: {why}. Check the address, and that `holdfast serve` runs there."
    )


def wrong_certificate(server: str, why: str) -> StoreUnusable:
    """Return the error for a server whose certificate is not valid."""
    return StoreUnusable(
        f"the certificate of {server} is not valid: {why}. Nothing was sent. Check the address; if the server has a certificate "
        "of your own authority, name its file in SSL_CERT_FILE."
    )


def too_slow(server: str, seconds: float) -> StoreBusy:
    """Return the error for a server that does not answer in time."""
    return StoreBusy(f"{server} did not answer within {seconds:g} s. Try again, or look at the server.")


def too_large(server: str, bytes_max: int) -> StoreUnusable:
    """Return the error for an answer that is larger than is read."""
    return StoreUnusable(
        f"an answer of {server} is larger than {bytes_max >> 20} MB, so it was not read. Read that run on the machine of the "
        "server."
    )
