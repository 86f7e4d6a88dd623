"""Reads the headers of a request that asks for something: its key, how long to wait, and the preview that the caller has seen."""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from typing import Any

from holdfast.core.validate import TRACE_PARENT
from holdfast.server.calls import HttpCall
from holdfast.server.problems import refuse
from holdfast.server.waiting import WAIT_S_MAX

KEY = "Idempotency-Key"
PREFER = "Prefer"
IF_MATCH = "If-Match"
TRACE = "traceparent"
LAST_EVENT = "Last-Event-ID"
KEY_MAX = 255
SCHEMAS: dict[str, dict[str, Any]] = {
    KEY: {"type": "string", "pattern": rf"^[\x21-\x7e]{{1,{KEY_MAX}}}$"},
    PREFER: {"type": "string", "pattern": "^wait=[0-9]{1,3}$"},
    IF_MATCH: {"type": "string", "pattern": r'^"[\x21\x23-\x7e]{1,200}"$'},
    TRACE: {"type": "string", "maxLength": 512},
    LAST_EVENT: {"type": "string", "pattern": "^[0-9]{1,15}$"},
}
"""Header -> the JSON Schema of its value, for the description of the API."""

_KEY = re.compile(rf"[\x21-\x7e]{{1,{KEY_MAX}}}")
_WAIT = re.compile(r'(?:^|[,;])\s*wait\s*=\s*"?([0-9]{1,6})"?\s*(?=[,;]|$)', re.IGNORECASE)
_TAG = re.compile(r'"([\x21\x23-\x7e]{1,200})"')


def key_of(call: HttpCall[Any, Any]) -> str | None:
    """Return the key of a request; None if it has none. Raises `Refused`."""
    given = call.headers.get(KEY.lower())
    if given is None:
        return None
    key = given[1:-1] if len(given) >= 2 and given[0] == given[-1] == '"' else given
    if not _KEY.fullmatch(key):
        raise refuse(
            "bad-request",
            f"The header `{KEY}` is not a key: use 1 to {KEY_MAX} ASCII characters without spaces.",
        )
    return key


def request_id(call: HttpCall[Any, Any]) -> str:
    """Return the id of the request: the same for the same token and key, and a random one without a key."""
    return f"http:{call.who.token_id}:{key_of(call) or secrets.token_hex(12)}"


def new_run_id(call: HttpCall[Any, Any]) -> str | None:
    """Return the id of the run that a request with this key makes; None without a key."""
    key = key_of(call)
    return None if key is None else f"http-{sha256(f'{call.who.token_id}:{key}'.encode()).hexdigest()[:24]}"


def wait_of(call: HttpCall[Any, Any]) -> float | None:
    """Return for how many seconds the caller prefers to wait; None if it does not. A preference that cannot be read is ignored,
    as RFC 7240 says.
    """
    found = _WAIT.search(call.headers.get(PREFER.lower(), ""))
    return None if found is None else min(float(found[1]), WAIT_S_MAX)


def preview_of(call: HttpCall[Any, Any]) -> str | None:
    """Return the digest of the preview that the caller has seen; None if the request does not say. Raises `Refused`."""
    given = call.headers.get(IF_MATCH.lower())
    if given is None:
        return None
    found = _TAG.fullmatch(given.strip())
    if found is None:
        raise refuse(
            "bad-request",
            f"The header `{IF_MATCH}` is not the entity tag of a preview.",
            remedy="Send the header `ETag` of the preview as it is, with its quotation marks.",
        )
    return found[1]


def trace_of(call: HttpCall[Any, Any]) -> str | None:
    """Return the header `traceparent`. One that is malformed is ignored, as W3C Trace Context says: a new trace begins."""
    given = call.headers.get(TRACE, "").strip()
    return given if TRACE_PARENT.fullmatch(given) else None
