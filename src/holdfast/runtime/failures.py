"""Failures: the one place that classifies an exception and decides when the engine retries its node.

recoverable  the cause may go away by itself (timeouts, connections, HTTP 408/425/429/5xx, `Recoverable`), or it is
             unknown how far the node came (`ProcessEnded`), or a run or a store that the node uses is busy (`RunHeld`,
             `StoreBusy`, `FenceLost`): the engine retries, as the node's `Retry` says
partial      any other exception, and a recoverable one whose retries are used up: the operator fixes the cause and
             resumes the run, or skips the node
fatal        `Fatal`: a retry is pointless; the run is resumed only with `force`

This module recognizes the exceptions of other packages by the names of their classes and by their attributes. Invariant:
it imports no package to inspect an exception, and an exception that raises while it is inspected is partial, never an
error here.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import email.utils
import errno
import math
import os
import random
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.core.events import Failure, FailureClass
from holdfast.core.graph import Retry
from holdfast.errors import (
    BudgetExceeded,
    ChildFailed,
    Fatal,
    FenceLost,
    HoldfastError,
    ProcessEnded,
    Recoverable,
    RunHeld,
    StoreBusy,
    end_sentence,
)
from holdfast.reading.places import is_foreign

_TRACEBACK_CHARS_MAX = 8_000
_FRAMES_MAX = 20
_CHAIN_MAX = 20
_OURS = os.path.dirname(os.path.dirname(__file__))
_ASYNCIO = os.path.dirname(asyncio.__file__)

# --- the table ---------------------------------------------------------------------------------------

Verdict: TypeAlias = Literal["passing", "lasting", "inside"]
"""What the table below says about an exception. passing: the cause may go away by itself. lasting: it does not, even if a
parent class is passing. inside: the exception wraps another one, which decides.
"""

_KNOWN: tuple[tuple[str, Verdict, str], ...] = (
    ("builtins", "passing", "ConnectionError TimeoutError InterruptedError"),
    ("asyncio", "passing", "IncompleteReadError"),
    ("subprocess", "passing", "TimeoutExpired"),
    ("socket", "passing", "gaierror herror"),
    ("ssl", "passing", "SSLEOFError SSLSyscallError SSLZeroReturnError"),
    ("ssl", "lasting", "SSLError SSLCertVerificationError"),
    ("http", "passing", "IncompleteRead"),
    ("urllib", "passing", "ContentTooShortError"),
    ("urllib", "inside", "URLError"),
    ("urllib3", "passing", "ClosedPoolError EmptyPoolError IncompleteRead ProtocolError"),
    ("urllib3", "passing", "ProxyError ResponseError TimeoutError"),
    ("urllib3", "inside", "MaxRetryError SSLError"),
    ("requests", "passing", "ChunkedEncodingError ConnectionError RetryError Timeout"),
    ("requests", "inside", "SSLError"),
    ("httpx httpx2", "passing", "TransportError"),
    ("httpx httpx2", "lasting", "LocalProtocolError UnsupportedProtocol"),
    ("httpx2", "lasting", "SSEError"),
    ("httpcore httpcore2", "passing", "NetworkError ProxyError RemoteProtocolError TimeoutException"),
    ("aiohttp", "passing", "ClientConnectionError ClientPayloadError"),
    ("aiohttp", "lasting", "ClientConnectorCertificateError ServerFingerprintMismatch"),
    ("aiohttp", "inside", "ClientSSLError"),
    ("openai anthropic", "passing", "APIConnectionError InternalServerError RateLimitError"),
    ("openai anthropic", "lasting", "AuthenticationError BadRequestError NotFoundError"),
    ("openai anthropic", "lasting", "PermissionDeniedError UnprocessableEntityError"),
    ("openai", "passing", "WebSocketConnectionClosedError"),
    ("anthropic", "passing", "RequestTimeoutError RetryableError"),
    ("anthropic", "lasting", "EnforcedSpendLimitReachedError"),
    ("grpc", "passing", "FutureTimeoutError"),
    ("botocore", "passing", "ConnectionError HTTPClientError IncompleteReadError"),
    ("botocore", "lasting", "SSLError"),
    ("redis", "passing", "ClusterDownError ConnectionError ReadOnlyError TimeoutError"),
    ("redis", "passing", "TryAgainError WatchError"),
    ("redis", "lasting", "AuthenticationError AuthorizationError"),
    ("anyio", "passing", "BrokenResourceError ClosedResourceError"),
    ("pydantic_ai", "passing", "ModelConnectionError ModelRateLimitError ModelRequestTimeout"),
    ("pydantic_ai", "passing", "ModelServerError ModelUnavailableError"),
    ("pydantic_ai", "lasting", "ModelQuotaExceededError ModelRequestRejectedError"),
    ("pydantic_ai", "inside", "ModelAPIError"),
    ("agents", "passing", "ModelTimeoutError"),
    ("sqlalchemy", "passing", "TimeoutError"),
    ("sqlalchemy", "inside", "DBAPIError"),
)
"""Package (the first word of a class's module, so that a class may move within it), verdict, classes. The nearest class in
the hierarchy counts: a subclass may be lasting although its parent is passing. Classes whose HTTP status decides
(`httpx.HTTPStatusError`, `aiohttp.ClientResponseError`, …) need no row.
"""

_VERDICTS: dict[str, Verdict] = {
    f"{package}.{name}": verdict
    for packages, verdict, names in _KNOWN
    for package in packages.split()
    for name in names.split()
}
_SPOILING = frozenset(
    {"ssl.SSLCertVerificationError", "httpx.UnsupportedProtocol", "httpx2.UnsupportedProtocol"}
)
"""Exceptions that, as the cause of a connection error, make it lasting: a new connection would fail in the same way."""

_PASSING_OURS = (Recoverable, ProcessEnded, RunHeld, StoreBusy, FenceLost)
_PASSING_HTTP = frozenset({408, 425, 429}) | frozenset(range(500, 600))
_PASSING_ERRNO = frozenset(
    {errno.EAGAIN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH}
)


class _Codes(NamedTuple):
    """How to read the error codes of one family of exceptions, and which codes are passing or lasting."""

    read: Callable[[BaseException], Iterator[object]]
    passing: frozenset[str]
    lasting: frozenset[str] = frozenset()


def _model_codes(error: BaseException) -> Iterator[object]:
    """Yield the codes of an openai or anthropic error. (An error inside a stream has no HTTP status, or that of the stream:
    200.)
    """
    yield from (_attribute(error, name) for name in ("code", "type", "error_code"))
    body = _attribute(error, "body")
    for holder in (body, _item(body, "error")):
        yield from (_item(holder, name) for name in ("code", "type"))


def _rpc_codes(error: BaseException) -> Iterator[object]:
    code = _attribute(error, "code")
    try:
        yield _attribute(code() if callable(code) else code, "name")
    except Exception:  # noqa: BLE001 - see _attribute
        return


def _cloud_codes(error: BaseException) -> Iterator[object]:
    yield _item(_item(_attribute(error, "response"), "Error"), "Code")


def _sql_states(error: BaseException) -> Iterator[object]:
    """Yield the SQLSTATE of a database error and its class (the first two characters). An error without a SQLSTATE never
    reached the server: it counts as class 08 (connection).
    """
    state = _attribute(error, "sqlstate") or _attribute(error, "pgcode") or "08"
    yield state
    if isinstance(state, str):
        yield state[:2]


def _mcp_codes(error: BaseException) -> Iterator[object]:
    """Yield the code of an error of the Model Context Protocol, and the code with the message: servers may use some codes for
    anything.
    """
    told = _attribute(error, "error")
    code = str(_attribute(told, "code"))
    yield code
    yield f"{code} {_attribute(told, 'message')}"


def _sqlite_codes(error: BaseException) -> Iterator[object]:
    yield _attribute(error, "sqlite_errorname")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SQL_PASSING = _words("08 40001 40P01 53300 55P03 57014 57P01 57P02 57P03 57P05")
_FAMILIES: dict[str, _Codes] = {
    "openai.APIError": _Codes(
        _model_codes, _words("rate_limit_exceeded server_error"), _words("insufficient_quota")
    ),
    "anthropic.APIError": _Codes(
        _model_codes,
        _words("api_error overloaded_error rate_limit_error timeout_error"),
        _words("billing_error enforced_spend_limit_reached"),
    ),
    "grpc.RpcError": _Codes(_rpc_codes, _words("ABORTED DEADLINE_EXCEEDED RESOURCE_EXHAUSTED UNAVAILABLE")),
    "botocore.ClientError": _Codes(
        _cloud_codes,
        _words(
            "BandwidthLimitExceeded EC2ThrottledException PriorRequestNotComplete "
            "ProvisionedThroughputExceededException RequestLimitExceeded RequestThrottled RequestThrottledException "
            "RequestTimeout RequestTimeoutException SlowDown ThrottledException Throttling ThrottlingException "
            "TooManyRequestsException TransactionInProgressException"
        ),
    ),
    "mcp.MCPError": _Codes(_mcp_codes, frozenset({"-32000 Connection closed", "-32001", "408"})),
    "mcp.McpError": _Codes(_mcp_codes, frozenset({"-32000 Connection closed", "-32001", "408"})),
    "psycopg.OperationalError": _Codes(_sql_states, _SQL_PASSING),
    "psycopg2.OperationalError": _Codes(_sql_states, _SQL_PASSING),
    "asyncpg.PostgresError": _Codes(_sql_states, _SQL_PASSING),
    "sqlite3.OperationalError": _Codes(
        _sqlite_codes,
        _words(
            "SQLITE_BUSY SQLITE_BUSY_RECOVERY SQLITE_BUSY_SNAPSHOT SQLITE_BUSY_TIMEOUT SQLITE_LOCKED "
            "SQLITE_LOCKED_SHAREDCACHE"
        ),
    ),
}

# --- the class of a failure --------------------------------------------------------------------------


def classify(error: BaseException) -> FailureClass:
    """Return the failure class of an exception that a node raised. An exception group has the class of the worst exception in
    it.
    """
    if kept_steps(error):
        return "partial"
    if isinstance(error, BaseExceptionGroup):
        kinds = {classify(inner) for inner in error.exceptions}
        return "fatal" if "fatal" in kinds else "partial" if "partial" in kinds else "recoverable"
    if isinstance(error, RemoteError):
        return error.failure.kind
    if isinstance(error, Fatal):
        return "fatal"
    if isinstance(error, HoldfastError):
        return "recoverable" if isinstance(error, _PASSING_OURS) else "partial"
    return "recoverable" if _may_pass(error) else "partial"


def describe(error: BaseException, *, kind: FailureClass | None = None) -> Failure:
    """Return the record of an exception: failure class, type, message, and the traceback without the frames of Holdfast."""
    kind = kind or classify(error)
    if isinstance(error, RemoteError):
        return msgspec.structs.replace(error.failure, kind=kind)
    if isinstance(error, BaseExceptionGroup) and (spent := find_spent_budget(error)) is not None:
        return Failure(kind, BudgetExceeded.__name__, message(spent), _trace(error))
    failed = failed_children(error)
    text = message(error)
    if failed and isinstance(error, BaseExceptionGroup):
        text = f"{text}: {' '.join(end_sentence(str(one)) for one in failed)}"[:4000]
    runs = dict.fromkeys(run for one in failed for run in (one.id, *one.beside))
    advice = "Return from the node, or raise an exception, instead." if isinstance(error, SystemExit) else ""
    return Failure(kind, type(error).__name__, text, _trace(error), " ".join(runs), advice)


def failed_children(error: BaseException) -> list[ChildFailed]:
    """Return the failures of child runs that an exception is, or that a group of exceptions has."""
    if isinstance(error, BaseExceptionGroup):
        return [one for inner in error.exceptions for one in failed_children(inner)]
    return [error] if isinstance(error, ChildFailed) else []


class NodeFaults(dict[str, BaseException]):
    """Maps a node to the exception for which it failed for good in this process. The log has only its record."""

    def describe(self, node: str, error: BaseException) -> Failure:
        """Keep an exception that fails a node for good, and return its record."""
        self[node] = error
        return describe(error, kind="partial")


def message(error: BaseException) -> str:
    """Return the message of an exception: never empty, and at most 4,000 characters."""
    if isinstance(error, SystemExit):
        return f"the node called sys.exit({error.code!r})"
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception whose own __str__ raises must still be recorded
        text = "<the message of this exception cannot be printed>"
    text = text.encode("utf-8", "replace").decode().replace("\0", "\\0")
    return text[:4000] or type(error).__name__


def _may_pass(error: BaseException) -> bool:
    """Return whether the call that raised this exception may succeed later."""
    chain = list(_chain(error))
    if any(not _SPOILING.isdisjoint(_names(inner)) for inner in chain):
        return False
    verdict = _verdict(error)
    if verdict == "inside":
        return any(_verdict(inner) == "passing" for inner in chain)
    return verdict == "passing"


def _verdict(error: BaseException) -> Verdict:
    """Return the verdict on one exception: by its class and its error codes, else by its HTTP status, else by its errno."""
    if not isinstance(error, Exception):
        return "lasting"  # the code of a SystemExit is not an HTTP status
    names = _names(error)
    named = next((_VERDICTS[name] for name in names if name in _VERDICTS), None)
    coded = _code_verdict(error, names)
    if "lasting" in (named, coded):
        return "lasting"
    if "passing" in (named, coded):
        return "passing"
    status = _http_status(error)
    if status is not None:
        return "passing" if status in _PASSING_HTTP else "lasting"
    if named == "inside":
        return "inside"
    return "passing" if isinstance(error, OSError) and error.errno in _PASSING_ERRNO else "lasting"


def _names(error: BaseException) -> list[str]:
    """Return `package.name` of the exception's class and of every parent class, the nearest first."""
    return [f"{str(kind.__module__).partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__]


def _code_verdict(error: BaseException, names: list[str]) -> Verdict | None:
    """Return the verdict by the exception's error codes; None if exceptions of this family have no codes, or if these codes
    decide nothing.
    """
    family = next((_FAMILIES[name] for name in names if name in _FAMILIES), None)
    if family is None:
        return None
    codes = {code for code in family.read(error) if isinstance(code, str)}
    if codes & family.lasting:
        return "lasting"
    return "passing" if codes & family.passing else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and those inside it: its cause, and the exceptions that client libraries keep in arguments and
    attributes.
    """
    todo, seen = [error], set[int]()
    while todo and len(seen) < _CHAIN_MAX:
        found = todo.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        args = _attribute(found, "args")
        inner = [found.__cause__, *(_attribute(found, name) for name in ("reason", "orig"))]
        inner.extend(args if isinstance(args, tuple) else ())
        todo.extend(part for part in inner if isinstance(part, BaseException))


def _http_status(error: BaseException) -> int | None:
    """Return the HTTP status in an exception of any client library, read from its attributes without importing the library;
    None if there is none.
    """
    response = _attribute(error, "response")
    statuses = [
        _attribute(holder, name) for holder in (error, response) for name in ("status_code", "status", "code")
    ]
    for status in (*statuses, _item(_item(response, "ResponseMetadata"), "HTTPStatusCode")):
        if isinstance(status, int) and 100 <= status < 600:
            return status
    return None


# --- outcomes of steps -------------------------------------------------------------------------------

_KEPT = "_holdfast_kept"


class KeptBy(NamedTuple):
    """The step whose outcome an exception is."""

    run_id: str
    step: str


def mark_kept(error: BaseException, by: KeptBy) -> None:
    """Mark an exception as the outcome of a step, which every attempt of the execution gets."""
    BaseException.__setattr__(error, _KEPT, by)  # its class may have another method of this name


def kept_steps(error: BaseException) -> list[KeptBy]:
    """Return the steps whose outcome this exception is; several, if it is a group. Empty for any other exception."""
    if isinstance(error, BaseExceptionGroup):
        return [by for inner in error.exceptions for by in kept_steps(inner)]
    by = vars(error).get(_KEPT)
    return [by] if by is not None else []


# --- raised in another process -----------------------------------------------------------------------


class RemoteError(Exception):
    """An exception that a node raised in another process, rebuilt in this one. It was classified in the other process."""

    failure: Failure
    names: frozenset[str]
    """Module and name of the original class and of every parent class."""
    retry_after: float | None


def rebuild_error(
    failure: Failure, names: Iterable[str], retry_after: float | None, kept: Iterable[KeptBy] = ()
) -> RemoteError:
    """Rebuild an exception that was raised in another process: it has the name of the original class, and is a
    `Recoverable` or `Fatal` if that was one. The original class exists only in the other process.
    """
    names = frozenset(names)
    ours = tuple(kind for kind in (Recoverable, Fatal) if name_of(kind) in names)
    error: RemoteError = type(failure.type, (RemoteError, *ours), {})(failure.message)
    error.failure, error.names, error.retry_after = failure, names, retry_after
    for by in kept:
        mark_kept(error, by)
    return error


def name_of(kind: type) -> str:
    """Return the full name of a class: its module and qualified name."""
    return f"{kind.__module__}.{kind.__qualname__}"


# --- when the engine retries -------------------------------------------------------------------------


def retry_delay(
    retry: Retry, error: BaseException, kind: FailureClass, failures: int, luck: random.Random, *, now: float
) -> float | None:
    """Return the seconds until the next attempt, after `failures` failures including this one; None if the engine does not
    retry.

    The delay is at least what the server asked for (`retry_after`), up to `max_delay`. The failure of a child run is never
    retried: every attempt gets the same end of the child. Neither is a budget that is spent.
    """
    if kept_steps(error):
        return None  # every attempt would get it again
    wanted = _is_one_of(error, retry.on) if retry.on else not retry.named and kind == "recoverable"
    if retry.named and not wanted:
        wanted = kind in retry.named or not _class_names(error).isdisjoint(retry.named)
    is_last = retry.attempts is not None and failures >= retry.attempts
    if (
        not wanted
        or kind == "fatal"
        or is_last
        or _failed_for_child(error)
        or find_spent_budget(error) is not None
    ):
        return None
    delay = _backoff(retry, failures)
    asked = min(retry_after(error, now=now) or 0.0, retry.max_delay)
    return max(asked, delay * (1 + retry.jitter * (2 * luck.random() - 1)))


def find_spent_budget(error: BaseException) -> BaseException | None:
    """Return the exception that says that the budget of the run is spent: this one, or one in a group; None if there is none."""
    if isinstance(error, BaseExceptionGroup):
        return next(
            (found for one in error.exceptions if (found := find_spent_budget(one)) is not None), None
        )
    is_remote = isinstance(error, RemoteError) and error.failure.type == BudgetExceeded.__name__
    return error if is_remote or isinstance(error, BudgetExceeded) else None


def _failed_for_child(error: BaseException) -> bool:
    return bool(error.failure.child if isinstance(error, RemoteError) else failed_children(error))


def _is_one_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    if isinstance(error, RemoteError):
        return any(name_of(kind) in error.names for kind in kinds)
    return isinstance(error, kinds)


def _class_names(error: BaseException) -> frozenset[str]:
    """Return the names of the classes of an exception, without their modules."""
    names = error.names if isinstance(error, RemoteError) else _names(error)
    return frozenset(name.rpartition(".")[2] for name in names)


def _backoff(retry: Retry, failures: int) -> float:
    try:
        return min(retry.backoff * retry.factor ** (failures - 1), retry.max_delay)
    except OverflowError:  # after about a thousand failures in a row
        return retry.max_delay if retry.backoff else 0.0


def retry_after(error: BaseException, *, now: float) -> float | None:
    """Return the seconds that the server asks the client to wait, from the `Retry-After` header or an attribute of that name;
    None if there is neither.

    `raise Recoverable(…) from error` keeps the wait that `error` asks for. An exception group asks for the longest of its waits.
    """
    if isinstance(error, BaseExceptionGroup):
        waits = [wait for inner in error.exceptions if (wait := retry_after(inner, now=now)) is not None]
        return max(waits, default=None)
    for holder in _chain(error):
        for value, unit in _find_delays(holder):
            seconds = _seconds(value, now)
            if seconds is not None:
                return seconds * unit
    return None


def _find_delays(error: BaseException) -> Iterator[tuple[object, float]]:
    """Yield the values of an exception that may say how long to wait, each with its unit in seconds, the most exact first."""
    yield _attribute(error, "retry_after"), 1.0
    holders = [_attribute(error, "headers")]
    response = _attribute(error, "response")
    if response is not None:
        cloud = _item(_item(response, "ResponseMetadata"), "HTTPHeaders")
        holders = [_attribute(response, "headers"), *holders, cloud]
    for headers in holders:
        found = _headers(headers) if headers is not None else {}
        yield found.get("retry-after-ms"), 0.001
        yield found.get("retry-after"), 1.0


def _headers(headers: object) -> dict[str, object]:
    """Return the headers by their names in lower case, from whichever kind of mapping the client library uses."""
    try:
        return {str(name).lower(): value for name, value in headers.items()}  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - see _attribute
        return {}


def _seconds(value: object, now: float) -> float | None:
    """Convert a number, a number as text, or an HTTP date to seconds from now. None if the value is none of these."""
    if isinstance(value, dt.timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    except ValueError:
        return _until(str(value), now)
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _until(date: str, now: float) -> float | None:
    parts = email.utils.parsedate_tz(date)
    if parts is None:
        return None
    try:
        return max(0.0, email.utils.mktime_tz(parts) - now)
    except (ValueError, OverflowError):
        return None


# --- reading exceptions of other packages ------------------------------------------------------------


def _attribute(holder: object, name: str) -> object:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - a property that raises counts as missing
        return None


def _item(holder: object, name: str) -> object:
    try:
        return holder.get(name) if isinstance(holder, Mapping) else None
    except Exception:  # noqa: BLE001 - see _attribute
        return None


def without_our_frames(error: BaseException) -> BaseException:
    """Return the exception with the frames of user code only, and its causes too: no frame of Holdfast, or of asyncio, which
    called it. It then keeps nothing of the engine in memory.
    """
    todo, seen = [error], set[int]()
    while todo and len(seen) < _CHAIN_MAX:
        found = todo.pop()
        if id(found) not in seen:
            seen.add(id(found))
            # the class of the exception may have another method of this name
            BaseException.with_traceback(found, _frames_of_user(found.__traceback__))
            todo += [inner for inner in (found.__cause__, found.__context__) if inner is not None]
            todo += found.exceptions if isinstance(found, BaseExceptionGroup) else ()
    return error


def _frames_of_user(trace: TracebackType | None) -> TracebackType | None:
    theirs = list[TracebackType]()
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith((_OURS, _ASYNCIO)):
            theirs.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for frame in reversed(theirs):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def _first_of_user(error: BaseException) -> TracebackType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


def _trace(error: BaseException) -> str:
    """Return the traceback from the first frame of user code; empty for an exception that Holdfast itself raised."""
    if isinstance(error, ProcessEnded):
        return error.trace
    trace = _first_of_user(error)
    if trace is None:
        return ""
    frames = traceback.TracebackException(type(error), error, trace)
    theirs = [frame for frame in frames.stack if not frame.filename.startswith(_OURS)]
    own = [frame for frame in theirs[:-_FRAMES_MAX] if not is_foreign(frame.filename)]
    kept = theirs[-_FRAMES_MAX:]
    if all(
        is_foreign(frame.filename) for frame in kept
    ):  # deep inside a client library: the frames of the caller matter most
        kept = own[-1:] + kept
    frames.stack = traceback.StackSummary.from_list(kept)
    parts = list(frames.format())
    if parts and len(parts[-1]) > _TRACEBACK_CHARS_MAX // 2:  # a long message must not push the frames out
        parts[-1] = parts[-1][: _TRACEBACK_CHARS_MAX // 2] + "…\n"
    text = "".join(parts).encode("utf-8", "replace").decode().replace("\0", "\\0")
    return text if len(text) <= _TRACEBACK_CHARS_MAX else "…" + text[-_TRACEBACK_CHARS_MAX:]
