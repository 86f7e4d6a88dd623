"""Entity tags of answers: a client that sends the tag of the answer it has is told with 304 that nothing has changed.

What a run was after an event never changes, so such an answer is tagged with the digest of that event; an answer about a run as
it is now, with the digest of its last event. Encoded answers are kept by their tag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import RunNotFound
from holdfast.reading import history
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.json_body import encode
from holdfast.storage.contract import RunRow, Store

REVALIDATE = "private, no-cache"
"""A client may keep the answer, and asks with its tag before it uses the answer again."""
FOR_EVER = "private, max-age=31536000, immutable"


def tag_of_run(row: RunRow, more: str = "") -> str:
    """Return the tag of an answer about a run as it is now. That a process holds the run, or has died, is not an event, so it is
    added; `more` is what else the answer depends on.
    """
    return f'"{row.digest.hex()[:32]}{".held" if row.held else ""}{more}"'


def tag_of_event(store: Store, row: RunRow, seq: int) -> str:
    """Return the tag of an answer about a run after an event. Raises `RunNotFound` if the log does not have the event."""
    try:
        digest = history.digest_at(store, row, seq)
    except RunNotFound:
        raise history.outside(store, row, seq) from None
    return f'"{digest.hex()[:32]}"'


def has_tag(call: HttpCall[Any, Any], tag: str) -> bool:
    """Return whether the client has the answer with this tag (`If-None-Match`)."""
    known = call.headers.get("if-none-match", "").split(",")
    return tag in (one.strip().removeprefix("W/") for one in known)


def answer_tagged(
    call: HttpCall[Any, Any], tag: str, make: Callable[[], Any], *, cache: str = REVALIDATE
) -> Answer:
    """Return 304 if the client has the answer with this tag, otherwise what `make` returns, encoded."""
    headers = {"ETag": tag, "Cache-Control": cache}
    if has_tag(call, tag):
        return Answer(status=304, headers=headers)
    name = (*call.values.values(), call.query)  # each route that has tags has a type of query of its own
    body = call.backend.kept.get(name, tag)
    if body is None:
        body = encode(make())
        call.backend.kept.put(name, tag, body)
    return Answer(body=body, headers=headers)
