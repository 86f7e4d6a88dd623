"""Routes that make runs: start and fork. A new run is only recorded; a worker executes it."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from holdfast.core import requests as records
from holdfast.errors import PreviewStale, RunExists, RunNotFound
from holdfast.reading import history
from holdfast.runtime.engine import Engine
from holdfast.server import verb_headers, verbs
from holdfast.server.backend import Backend
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.json_body import encode
from holdfast.server.parameters import NoQuery
from holdfast.server.problems import Fault, refuse
from holdfast.server.run_plans import flow_to_start
from holdfast.server.runs import ShownRun, show_run
from holdfast.server.verbs import VerbQuery, key_reused, options_in
from holdfast.server.waiting import until


async def start_run(call: HttpCall[NoQuery, Any]) -> Answer:
    """Start a run of a flow or of a plan: it is recorded, and a worker executes it."""
    backend, body = call.backend, call.body
    flow = await flow_to_start(backend, body.flow, body.input, body.plan)
    options = {
        **options_in(call, records.Start),
        "begin_at": _time(body.begin_at),
        "by": call.who.by,
        "trace_parent": verb_headers.trace_of(call),
    }
    run_id = body.run_id or verb_headers.new_run_id(call)
    key, asked = verb_headers.key_of(call), ("start", body)
    existed = False

    async def start(engine: Engine) -> str:
        nonlocal existed
        existed = run_id is not None and _exists(backend, run_id)
        return await engine.start(flow, body.input, **options | {"run_id": run_id})

    with backend.used_keys.use(call.who.token_id, key, asked):
        try:
            made = await backend.clerk.use_in_turn(run_id, start)
        except RunExists as other:
            raise (other if body.run_id is not None else key_reused(other)) from None
    return await _answer(call, made, 200 if existed else 201)


async def fork_run(call: HttpCall[VerbQuery, Any]) -> Answer:
    """Make a new run that shares the history of another up to a checkpoint."""
    backend, body, parent = call.backend, call.body, call.values["id"]
    run_id = body.run_id or verb_headers.new_run_id(call)
    key, asked = verb_headers.key_of(call), (parent, "fork", body)
    options = options_in(call, records.Fork) | {"run_id": run_id}
    if call.query.preview:
        return verbs.show_preview(await verbs.look_ahead(call, "fork", options))
    expects = verb_headers.preview_of(call)

    async def fork(engine: Engine) -> str:
        said = {**options, "by": call.who.by, "reason": body.reason, "expects": expects}
        # If the same request was sent before, the parent may have moved on since.
        if (made_at := _place(backend, parent, run_id)) is not None:
            said |= {"checkpoint": made_at if body.checkpoint is None else body.checkpoint, "expects": None}
        return await engine.fork(parent, **said)

    with backend.used_keys.use(call.who.token_id, key, asked):
        if expects is not None and await backend.read(_place, backend, parent, run_id) is None:
            await verbs.require_preview(call, "fork", options, expects)
        try:
            made = await backend.clerk.use_in_turn(run_id, fork)
        except PreviewStale as refused:
            raise await verbs.renew_preview(call, "fork", options, refused) from refused
        except RunExists as other:
            raise (other if body.run_id is not None else key_reused(other)) from None
    return await _answer(call, made, 201)


def _time(given: float | datetime | None) -> datetime | None:
    if given is None or isinstance(given, datetime):
        return given
    try:
        return datetime.fromtimestamp(given, UTC)
    except (OverflowError, OSError, ValueError):
        raise refuse(
            "bad-body",
            "`begin_at` is not a possible time.",
            faults=(Fault("begin_at", "not a possible time"),),
        ) from None


def _exists(backend: Backend, run_id: str) -> bool:
    try:
        backend.store.run(run_id)
    except RunNotFound:
        return False
    return True


def _place(backend: Backend, parent: str, run_id: str | None) -> int | None:
    """Return the event from which a fork with this id was made; None if there is no such fork."""
    if run_id is not None:
        with suppress(RunNotFound):
            row = backend.store.run(run_id)
            rows = backend.store.events(run_id, kinds=("RunForked",), limit=1) if row.parent == parent else []
            for stored in history.opened(backend.store, run_id, rows):
                return int(stored.event.to)
    return None


async def _answer(call: HttpCall[Any, Any], run_id: str, status: int) -> Answer:
    """Return the answer with a new run; if the caller prefers to wait, as soon as the run has stopped or asks something."""
    backend, wait = call.backend, verb_headers.wait_of(call)
    if wait is None:
        _, shown = await backend.read(_look, backend, run_id)
        return Answer(status=status, body=encode(shown))
    _, shown = await until(call, wait, partial(_look, backend, run_id))
    return Answer(status=status, body=encode(shown), headers={"Preference-Applied": f"wait={wait:g}"})


def _look(backend: Backend, run_id: str) -> tuple[bool, ShownRun]:
    shown = show_run(backend, backend.store.run(run_id))
    return verbs.has_stopped(shown), shown
