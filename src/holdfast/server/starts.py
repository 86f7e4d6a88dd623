"""Routes that make runs: start and fork. A new run is only recorded; a worker executes it."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.errors import FlowNotFound, PreviewStale, RunExists, RunNotFound
from holdfast.reading import history
from holdfast.runtime.engine import Engine
from holdfast.server import verb_headers, verbs
from holdfast.server.backend import Backend, encode_hook
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.parameters import NoQuery
from holdfast.server.problems import Fault, refuse
from holdfast.server.runs import show_run
from holdfast.server.verb_inputs import ForkInput, StartInput
from holdfast.server.verbs import VerbQuery, key_reused

_encode = msgspec.json.Encoder(enc_hook=encode_hook).encode


async def start_run(call: HttpCall[NoQuery, StartInput]) -> Answer:
    """Start a run: it is recorded, and a worker executes it."""
    backend, body = call.backend, call.body
    flow = backend.engine.flows.get(body.flow)
    if flow is None:
        raise FlowNotFound(body.flow, backend.engine.flows)
    options: dict[str, Any] = {
        "labels": body.labels,
        "timeout": body.timeout,
        "queue": body.queue,
        "priority": body.priority,
        "begin_at": _time(body.begin_at),
        "by": call.who.by,
        "on_exists": body.on_exists,
        "trace_parent": verb_headers.trace_of(call),
    }
    run_id = body.run_id or verb_headers.new_run_id(call)
    key, asked = verb_headers.key_of(call), ("start", body)
    existed = False

    async def start(engine: Engine) -> str:
        nonlocal existed
        existed = run_id is not None and _exists(backend, run_id)
        return await engine.start(flow, body.input, run_id=run_id, **options)

    with backend.used_keys.use(call.who.token_id, key, asked):
        try:
            made = await backend.clerk.use_in_turn(run_id or "", start)
        except RunExists as other:
            raise (other if body.run_id is not None else key_reused(other)) from None
    return Answer(status=200 if existed else 201, body=await backend.read(_encoded, backend, made))


async def fork_run(call: HttpCall[VerbQuery, ForkInput]) -> Answer:
    """Make a new run that shares the history of another up to a checkpoint."""
    backend, body, parent = call.backend, call.body, call.values["id"]
    run_id = body.run_id or verb_headers.new_run_id(call)
    key, asked = verb_headers.key_of(call), (parent, "fork", body)
    options: dict[str, Any] = {
        "checkpoint": body.checkpoint,
        "edit": body.edit,
        "run_id": run_id,
        "repeat": body.repeat,
        "fresh": body.fresh,
        "labels": body.labels,
    }
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
            made = await backend.clerk.use_in_turn(run_id or "", fork)
        except PreviewStale as refused:
            raise await verbs.renew_preview(call, "fork", options, refused) from refused
        except RunExists as other:
            raise (other if body.run_id is not None else key_reused(other)) from None
    return Answer(status=201, body=await backend.read(_encoded, backend, made))


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


def _encoded(backend: Backend, run_id: str) -> bytes:
    return _encode(show_run(backend, backend.store.run(run_id)))
