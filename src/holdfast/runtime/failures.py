"""Failures: the one place that says which class an exception has, and when it is tried again.

recoverable  may pass by itself (timeouts, connections, HTTP 408/425/429/5xx, `Recoverable`): tried again by
the node's `Retry`
partial      any other exception, and a recoverable one out of tries: fix the cause and resume, or skip the node
fatal        `Fatal`: trying again is pointless; resumed only with `force`
"""

from __future__ import annotations

import asyncio
import os
import random
import traceback

from holdfast.core.events import Failure, FailureClass
from holdfast.core.graph import Retry
from holdfast.errors import Fatal, Recoverable

_PASSING_HTTP = frozenset({408, 425, 429}) | frozenset(range(500, 600))
_PASSING = (Recoverable, TimeoutError, asyncio.TimeoutError, ConnectionError, InterruptedError)
_TRACEBACK_CHARS_MAX = 8_000
_OURS = os.path.dirname(os.path.dirname(__file__))


def classify(error: BaseException) -> FailureClass:
    """The class of an exception that a node raised."""
    if isinstance(error, Fatal):
        return "fatal"
    if isinstance(error, _PASSING) or _http_status(error) in _PASSING_HTTP:
        return "recoverable"
    return "partial"


def describe(error: BaseException, *, kind: FailureClass | None = None) -> Failure:
    """The record of an exception: class, type, message and the traceback without our own frames."""
    return Failure(kind or classify(error), type(error).__name__, message(error), _trace(error))


def message(error: BaseException) -> str:
    """What the exception says; never empty, and never more of it than somebody will read."""
    if isinstance(error, SystemExit):
        return f"the node called sys.exit({error.code!r}); return from it, or raise an exception, instead"
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception whose own __str__ raises must still be recorded
        text = "<its message cannot be printed>"
    text = text.encode("utf-8", "replace").decode().replace("\0", "\\0")
    return text[:4000] or type(error).__name__


def retry_delay(
    retry: Retry, error: BaseException, kind: FailureClass, failures: int, luck: random.Random
) -> float | None:
    """Seconds until the next try after `failures` failures, this one included; None: that was the last."""
    wanted = isinstance(error, retry.on) if retry.on else kind == "recoverable"
    if not wanted or kind == "fatal" or failures >= retry.attempts:
        return None
    delay = min(retry.backoff * retry.factor ** (failures - 1), retry.max_delay)
    return max(0.0, delay * (1 + retry.jitter * (2 * luck.random() - 1)))


def _http_status(error: BaseException) -> int | None:
    """The HTTP status that an exception of any client library carries: by attribute, without importing one."""
    if not isinstance(error, Exception):
        return None  # the code of a SystemExit is no HTTP status
    for holder in (error, _attribute(error, "response")):
        for name in ("status_code", "status", "code"):
            status = _attribute(holder, name)
            if isinstance(status, int) and not isinstance(status, bool):
                return status
    return None


def _attribute(holder: object, name: str) -> object:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - a property of the user's exception that raises itself says nothing
        return None


def _trace(error: BaseException) -> str:
    """The traceback from where user code begins; nothing for an exception that was raised here."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    if trace is None:
        return ""
    frames = traceback.TracebackException(type(error), error, trace, limit=-20)
    text = "".join(frames.format()).encode("utf-8", "replace").decode().replace("\0", "\\0")
    return text if len(text) <= _TRACEBACK_CHARS_MAX else "…" + text[-_TRACEBACK_CHARS_MAX:]
