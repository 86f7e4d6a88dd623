"""Problems: how the server reports that it did not do what was asked (RFC 9457), made in this place only.

Every problem says what happened (`detail`) and what to do (`remedy`). Errors of Holdfast become problems by the table
`OF_ERRORS`, by whose fault they are: a fault of the caller, and a run that is damaged or held, is never answered with a 5xx. An
exception that is not an error of Holdfast is a defect: it is logged, and its text is not sent.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import NamedTuple

from holdfast import errors
from holdfast.errors import HoldfastError
from holdfast.reading.previews import Preview
from holdfast.storage.http.problem_types import (
    ERRORS,
    MEDIA_TYPE,
    PREFIX,
    Fault,
    ReportedProblem,
    about,
    name_of,
)

__all__ = [
    "KINDS",
    "MEDIA_TYPE",
    "OF_ERRORS",
    "Fault",
    "Problem",
    "Refused",
    "headers_of",
    "problem_of",
    "refuse",
]

_log = logging.getLogger("holdfast")


class Problem(ReportedProblem, frozen=True, kw_only=True, omit_defaults=True):
    """The body of an answer that reports a problem."""

    preview: Preview | None = None
    """What the request would do now, if it would do something else than the preview that it names."""


class Refused(Exception):
    """Raised by the server's own code to answer with a problem."""

    def __init__(self, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        self.problem = problem
        self.headers = dict(headers or {})
        super().__init__(problem.detail)


class ProblemKind(NamedTuple):
    """A kind of problem: its status, its title, and a remedy for problems that have no better one."""

    status: int
    title: str
    remedy: str


KINDS: dict[str, ProblemKind] = {
    "bad-request": ProblemKind(400, "The request is not valid", "Correct the request."),
    "bad-parameter": ProblemKind(
        400, "A parameter is not valid", "Correct the parameter; /api/v1/openapi.json describes all of them."
    ),
    "bad-cursor": ProblemKind(
        400, "The cursor is not valid", "Leave out `cursor` to begin with the first page."
    ),
    "bad-json": ProblemKind(400, "The body is not valid JSON", "Send one JSON document in UTF-8."),
    "bad-event-id": ProblemKind(
        400,
        "The stream cannot continue there",
        "Get the run again, and follow it without `Last-Event-ID`, or with the seq of that answer.",
    ),
    "unauthorized": ProblemKind(
        401,
        "A valid token is needed",
        "Send the header `Authorization: Bearer TOKEN`. `holdfast token create NAME --role ROLE` makes a token.",
    ),
    "forbidden": ProblemKind(403, "The token may not do this", "Use a token with the role that is needed."),
    "wrong-origin": ProblemKind(
        403,
        "The request comes from another site",
        "Call the server under its own address. Behind a proxy, give the server that address: --public-url URL.",
    ),
    "not-found": ProblemKind(
        404,
        "There is nothing at this path",
        "See /api/v1/openapi.json for all paths; none of them ends in /.",
    ),
    "wrong-method": ProblemKind(
        405, "The path has no such method", "Use one of the methods in the header `Allow`."
    ),
    "too-slow": ProblemKind(408, "The request took too long to arrive", "Send the request again."),
    "too-large": ProblemKind(413, "The body is too large", "Send a smaller body."),
    "wrong-type": ProblemKind(
        415, "The body has the wrong type", "Send JSON, with the header `Content-Type: application/json`."
    ),
    "wrong-host": ProblemKind(
        421,
        "The server does not have this name",
        "Call the server under its own address. Behind a proxy, give the server that address: --public-url URL.",
    ),
    "bad-body": ProblemKind(
        422, "The body does not fit", "Correct the body; /api/v1/openapi.json has the schema of every body."
    ),
    "key-reused": ProblemKind(
        422,
        "The key was used for something else",
        "Send a new `Idempotency-Key` for a new request, and the same one only for the same request.",
    ),
    "token-made": ProblemKind(
        409,
        "The token was made before",
        "Use the secret that the first request was answered with, or revoke the token and make another one with another key.",
    ),
    "too-many-requests": ProblemKind(
        429, "Too many requests", "Wait as long as the header `Retry-After` says."
    ),
    "too-many-failures": ProblemKind(
        429, "Too many requests with a wrong token", "Wait as long as the header `Retry-After` says."
    ),
    "too-many-bodies": ProblemKind(
        503, "Too many large bodies at the same time", "Wait as long as the header `Retry-After` says."
    ),
    "too-many-streams": ProblemKind(
        503,
        "Too many clients follow events",
        "Wait as long as the header `Retry-After` says, or allow more: holdfast serve --streams N.",
    ),
    "defect": ProblemKind(500, "A defect in Holdfast", "Please report it, with the log of the server."),
    "closed": ProblemKind(503, "The server has no open store", "Send the request again in a few seconds."),
}
"""Name -> the kind of a problem that the server finds itself."""

_LOOK = "GET /api/v1/runs/{id} shows the run as it is now, with the ways to continue it."
_STORE = "Look at GET /api/v1/doctor, and at the log of the server."
OF_ERRORS: tuple[tuple[type[HoldfastError], ProblemKind], ...] = (
    (
        errors.PlanError,
        ProblemKind(
            422,
            "The plan cannot be executed",
            "Correct the plan: `errors` has every problem with its path in the plan. Nothing of it was recorded.",
        ),
    ),
    (errors.StateError, ProblemKind(422, "A value does not fit the state of the flow", "Correct the value.")),
    (errors.RouterError, ProblemKind(422, "The router of the flow refused the input", "Correct the input.")),
    (
        errors.FlowNotFound,
        ProblemKind(
            409, "This server does not know the flow", "Name the file that defines it: holdfast serve FILE.py"
        ),
    ),
    (
        errors.RunNotFound,
        ProblemKind(404, "There is no such run", "GET /api/v1/runs lists the runs of the store."),
    ),
    (
        errors.RunExists,
        ProblemKind(409, "The run id is in use", "Choose another `run_id`, or resume that run."),
    ),
    (
        errors.RunOver,
        ProblemKind(409, "The run is over", "Fork the run to continue from one of its checkpoints."),
    ),
    (
        errors.PreviewStale,
        ProblemKind(
            412,
            "The request would do something else than its preview said",
            "Look at `preview`, and send the request again with its digest in `If-Match`.",
        ),
    ),
    (
        errors.RequestSuperseded,
        ProblemKind(
            409,
            "A later request has superseded this one",
            "GET /api/v1/runs/{id} shows the run as it is now; send a new request if it is to continue.",
        ),
    ),
    (errors.ResumeRefused, ProblemKind(409, "The run may not continue as requested", _LOOK)),
    (
        errors.AnswerRefused,
        ProblemKind(422, "The answer was not accepted", "GET /api/v1/questions lists open questions."),
    ),
    (errors.SignalRefused, ProblemKind(422, "The signal was not accepted", _LOOK)),
    (errors.RunFailed, ProblemKind(409, "The run failed", _LOOK)),
    (errors.RunCancelled, ProblemKind(409, "The run was cancelled", "Fork the run to continue it.")),
    (
        errors.RunHeld,
        ProblemKind(409, "Another process executes the run", "Wait until it stops, or pause it."),
    ),
    (errors.ProcessEnded, ProblemKind(409, "The process of a node died", _LOOK)),
    (errors.StoreBusy, ProblemKind(503, "The store is busy", "Send the request again in a second.")),
    (
        errors.StoreFull,
        ProblemKind(507, "The disk of the store is full", "Free some space, then send the request again."),
    ),
    (
        errors.StoreCorrupt,
        ProblemKind(
            409,
            "Stored data is damaged",
            "`holdfast verify` says what is damaged; restore it from a backup, or continue with the other runs.",
        ),
    ),
    (
        errors.SchemaTooNew,
        ProblemKind(
            409, "A newer Holdfast has written this", "Install that version, and start the server again."
        ),
    ),
    (errors.FenceLost, ProblemKind(409, "Another process took over the run", "Send the request again.")),
    (errors.SeqConflict, ProblemKind(409, "The run has changed meanwhile", "Send the request again.")),
    (errors.StoreError, ProblemKind(503, "The store cannot be used", _STORE)),
    (errors.IllegalEvent, KINDS["defect"]),
    (HoldfastError, ProblemKind(400, "The request cannot be carried out", "Correct the request.")),
)
"""Error class -> the kind of its problem; the first class that fits counts. A class that is not listed by name is the caller's
fault.
"""


def refuse(
    name: str,
    detail: str,
    *,
    remedy: str = "",
    headers: Mapping[str, str] | None = None,
    faults: tuple[Fault, ...] = (),
) -> Refused:
    """Return the exception that answers with a problem of this kind."""
    kind = KINDS[name]
    problem = Problem(
        type=PREFIX + name,
        title=kind.title,
        status=kind.status,
        detail=detail,
        remedy=remedy or kind.remedy,
        errors=faults,
    )
    return Refused(problem, headers)


def problem_of(error: Exception) -> Problem:
    """Return the problem for an exception that a handler raised."""
    if isinstance(error, Refused):
        return error.problem
    if not isinstance(error, HoldfastError):
        _log.error("a handler of the server failed", exc_info=error)
        return refuse("defect", "The server could not answer because of a defect in Holdfast.").problem
    found, kind = next((kind, row) for kind, row in OF_ERRORS if isinstance(error, kind))
    if kind is KINDS["defect"]:
        _log.error("a handler of the server failed", exc_info=error)
    named = type(error) if type(error) in dict(OF_ERRORS) else found
    return Problem(
        type=PREFIX + name_of(named),
        title=kind.title,
        status=kind.status,
        detail=_detail(error),
        remedy=kind.remedy.replace("{id}", str(getattr(error, "run_id", None) or "ID")),
        error=type(error).__name__ if type(error).__name__ in ERRORS else found.__name__,
        about=about(error),
        errors=_faults(error),
    )


FAULTS_MAX = 1000
"""How many problems of a plan are listed."""
_TOLD_MAX = 20


def _detail(error: HoldfastError) -> str:
    """Return the text of an error. That of a plan with thousands of problems would repeat all of `errors`."""
    if isinstance(error, errors.PlanError) and len(error.problems) > _TOLD_MAX:
        told = errors.PlanError(error.plan, error.problems[:_TOLD_MAX])
        listed = str(told).partition("\n")[2]
        return f"{error.plan} has {len(error.problems)} problems. The first {_TOLD_MAX}:\n{listed}"
    return str(error)


_MISFIT = re.compile(r"((?:answer|payload|result)(?:[.\[]\S*)?): (.+)", re.DOTALL)
"""How the engine says which part of an answer, of a stated result or of a payload does not fit (`core.answers.misfit`)."""


def _faults(error: HoldfastError) -> tuple[Fault, ...]:
    """Return which part of a value does not fit, if the error says it."""
    match error:
        case errors.PlanError():
            return tuple(Fault(one.path, one.message) for one in error.problems[:FAULTS_MAX])
        case errors.StateError():
            return tuple(fault for one in (error, *error.others) for fault in _misfit(one))
        case errors.AnswerRefused() | errors.SignalRefused():
            found = _MISFIT.match(error.reason)
            if found is not None:
                return (Fault(found[1], found[2]),)
            return (Fault("answer", error.reason),) if "is not one of the options" in error.reason else ()
        case _:
            return ()


def _misfit(error: errors.StateError) -> tuple[Fault, ...]:
    place = error.path.removeprefix("state.") if isinstance(error, errors.CodecError) else error.field
    return (Fault(place, str(error)),) if place else ()


def headers_of(error: Exception) -> dict[str, str]:
    """Return the headers that belong to the answer for an exception."""
    if isinstance(error, Refused):
        return error.headers
    return {"Retry-After": "1"} if isinstance(error, errors.StoreBusy) else {}
