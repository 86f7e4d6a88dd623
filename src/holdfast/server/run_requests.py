"""The route that lists the requests to a run: those that wait for an engine, and those that were refused."""

from __future__ import annotations

import msgspec

from holdfast.reading.views import RequestView
from holdfast.server.calls import HttpCall
from holdfast.server.parameters import NoQuery


class RequestsOfRun(msgspec.Struct, frozen=True, kw_only=True):
    """The requests to a run that wait, and those that were refused, oldest first. One that was carried out is in the log."""

    run_id: str
    requests: list[RequestView]


def list_requests(call: HttpCall[NoQuery, None]) -> RequestsOfRun:
    """List the requests to a run that no engine has carried out yet, and those that were refused, with the reason."""
    run_id = call.values["id"]
    return RequestsOfRun(run_id=run_id, requests=call.backend.reader.requests(run_id))
