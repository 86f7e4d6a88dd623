"""Routes for those who watch the server: whether it lives, whether it can use its store, and its metrics."""

from __future__ import annotations

import platform

from holdfast.core import VERSION
from holdfast.errors import HoldfastError
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.parameters import NoQuery
from holdfast.server.problems import Refused
from holdfast.storage.contract import STATUSES, Query

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
_READY_S = 1.0
"""For how many seconds an answer of `/readyz` holds, because everybody may ask."""


async def get_health(call: HttpCall[NoQuery, None]) -> Answer:
    """Say that the server lives."""
    return Answer(body=b"ok\n", media_type=TEXT)


async def get_readiness(call: HttpCall[NoQuery, None]) -> Answer:
    """Say whether the server can use its store, and is not stopping."""
    backend = call.backend
    now = backend.clock.now()
    asked_at, is_ready = backend.ready
    if not 0 <= now - asked_at < _READY_S:
        try:
            await backend.read(lambda: backend.store.runs(Query(limit=1)))
            is_ready = True
        except (HoldfastError, Refused):
            is_ready = False
        backend.ready = (now, is_ready)
    if is_ready and not backend.is_stopping:
        return Answer(body=b"ready\n", media_type=TEXT)
    return Answer(status=503, body=b"not ready\n", media_type=TEXT)


def get_metrics(call: HttpCall[NoQuery, None]) -> Answer:
    """Get metrics in the text format of Prometheus."""
    backend = call.backend
    lines: list[str] = []

    def metric(name: str, kind: str, text: str, samples: list[tuple[dict[str, str], float]]) -> None:
        lines.extend([f"# HELP holdfast_{name} {text}", f"# TYPE holdfast_{name} {kind}"])
        lines.extend(f"holdfast_{name}{_labels(labels)} {value:g}" for labels, value in samples)

    build = {"version": VERSION, "python": platform.python_version()}
    metric("build_info", "gauge", "The version of the server.", [(build, 1)])
    board = backend.store.queues.board()
    by_status = [({"status": str(name)}, float(board.counts.get(name, 0))) for name in STATUSES]
    metric("runs", "gauge", "Runs by status.", by_status)
    metric("open_questions", "gauge", "Questions that wait for an answer.", [({}, board.asks)])
    queues = backend.store.queues.queues()
    metric(
        "queue_offered",
        "gauge",
        "Runs on offer to workers.",
        [({"queue": q.name}, q.offered) for q in queues],
    )
    metric("queue_held", "gauge", "Runs that are executed.", [({"queue": q.name}, q.held) for q in queues])
    limited = [({"queue": q.name}, float(q.limit)) for q in queues if q.limit is not None]
    metric("queue_limit", "gauge", "How many runs of a queue may be executed at a time.", limited)
    calls = [
        (
            {"worker": one.holder.id, "process": one.holder.describe(), "executor": at.executor},
            float(at.waiting),
        )
        for one in backend.store.queues.holders()
        for at in one.holder.calls
    ]
    metric(
        "calls_waiting",
        "gauge",
        "Calls of nodes that wait for a place in a thread or process of a worker.",
        calls,
    )
    open_streams: list[tuple[dict[str, str], float]] = [({}, len(backend.streams))]
    metric("streams", "gauge", "Clients that follow events.", open_streams)
    counts = backend.counts
    metric(
        "http_requests_total",
        "counter",
        "Answers of the server.",
        [
            ({"method": method, "path": path, "status": str(status)}, count)
            for (method, path, status), count in sorted(counts.answers.items())
        ],
    )
    metric(
        "http_request_seconds_total",
        "counter",
        "Time from the head of a request to the end of its answer.",
        [
            ({"method": method, "path": path}, spent)
            for (method, path), spent in sorted(counts.seconds.items())
        ],
    )
    return Answer(body=("\n".join(lines) + "\n").encode(), media_type=METRICS_TYPE)


def _labels(labels: dict[str, str]) -> str:
    told = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{told}}}" if told else ""


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
