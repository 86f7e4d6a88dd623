"""Routes that ask for something about a run: resume, retry, skip, cancel, pause, edit, answer, signal.

A handler executes no node. It leaves a request in the inbox of the run, under the id `http:TOKEN_ID:KEY`, and the engine that
executes the run, or a worker, carries it out. Requests that need no flow (cancel, pause, answer, signal, and edit if the flow is
known here) are recorded at once if no engine executes the run. The same key again changes nothing, and is answered as before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.core.run_state import GOING
from holdfast.errors import HoldfastError, RequestExists
from holdfast.reading import inbox
from holdfast.reading.views import Run
from holdfast.runtime.engine import Engine
from holdfast.runtime.requests import is_handled
from holdfast.server import problems, verb_headers
from holdfast.server.backend import Backend, encode_hook
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.parameters import NoQuery
from holdfast.server.problems import Refused, refuse
from holdfast.server.runs import ShownRun, show_run
from holdfast.server.verb_inputs import (
    AnswerInput,
    CancelInput,
    EditInput,
    PauseInput,
    ResumeInput,
    RetryInput,
    SignalInput,
    SkipInput,
)
from holdfast.server.waiting import until
from holdfast.storage.contract import Request

_encode = msgspec.json.Encoder(enc_hook=encode_hook).encode

Ask = Callable[[Engine, dict[str, Any]], Awaitable[Run[Any]]]
"""Asks an engine for something, with the options that every verb has: id, by, reason."""


class VerbQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether to act, or only to say what would happen."""

    preview: bool = False
    """Change nothing, and answer with what the request would do."""


class SentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The id of a request, and the run that it was sent to."""

    request: str
    run: ShownRun


async def resume_run(call: HttpCall[VerbQuery, ResumeInput]) -> Answer:
    """Ask for a run to be resumed, from its end or from an earlier event."""
    body = call.body
    options: dict[str, Any] = {
        "checkpoint": body.checkpoint,
        "after": body.after,
        "restart_at": body.restart_at,
        "replay": body.replay,
        "edit": body.edit,
        "force": body.force,
        "confirm": body.confirm,
        "on_change": body.on_change,
        "rename": body.rename,
    }
    return await _ask(
        call, "resume", lambda e, said: e.resume(_run_id(call), **options, execute=False, **said)
    )


async def retry_run(call: HttpCall[VerbQuery, RetryInput]) -> Answer:
    """Ask for nodes that failed, were interrupted or wait to be retried."""
    options: dict[str, Any] = {"node": call.body.node, "fresh": call.body.fresh}
    return await _ask(call, "retry", lambda e, said: e.retry(_run_id(call), **options, execute=False, **said))


async def skip_node(call: HttpCall[VerbQuery, SkipInput]) -> Answer:
    """Ask for a node to be skipped, with a result in place of its own."""
    options: dict[str, Any] = {"node": call.body.node, "update": call.body.update}
    return await _ask(call, "skip", lambda e, said: e.skip(_run_id(call), **options, execute=False, **said))


async def cancel_run(call: HttpCall[VerbQuery, CancelInput]) -> Answer:
    """Ask for a run to be cancelled for good."""
    return await _ask(call, "cancel", lambda e, said: e.cancel(_run_id(call), **said))


async def pause_run(call: HttpCall[NoQuery, PauseInput]) -> Answer:
    """Ask for a run to be paused: no node of it starts until it is resumed."""
    return await _ask(call, "pause", lambda e, said: e.pause(_run_id(call), **said))


async def edit_run(call: HttpCall[NoQuery, EditInput]) -> Answer:
    """Ask for fields of the state to be changed, of a run that is not running."""
    return await _ask(call, "edit", lambda e, said: e.edit(_run_id(call), call.body.fields, **said))


async def answer_question(call: HttpCall[NoQuery, AnswerInput]) -> Answer:
    """Answer a question of a run."""
    body = call.body
    options = {"update": body.update, "confidence": body.confidence}
    return await _ask(
        call, "answer", lambda e, said: e.answer(_run_id(call), body.question, body.answer, **options, **said)
    )


async def send_signal(call: HttpCall[NoQuery, SignalInput]) -> Answer:
    """Send a signal to a run."""
    name, payload = call.body.name, call.body.payload
    return await _ask(call, "signal", lambda e, said: e.signal(_run_id(call), name, payload, **said))


# --- asking ------------------------------------------------------------------------------------------


def _run_id(call: HttpCall[Any, Any]) -> str:
    return call.values["id"]


async def _ask(call: HttpCall[Any, Any], verb: str, ask: Ask) -> Answer:
    backend, run_id = call.backend, _run_id(call)
    if call.body.run_id not in (UNSET, run_id):
        raise refuse(
            "bad-body",
            f"The body names the run {call.body.run_id!r}, and the path names {run_id!r}.",
            faults=(problems.Fault("run_id", "it differs from the id in the path"),),
        )
    key, id, wait = verb_headers.key_of(call), verb_headers.request_id(call), verb_headers.wait_of(call)
    asked = (run_id, verb, call.body)
    backend.used_keys.check(call.who.token_id, key, asked)
    await backend.read(_refuse_other_verb, backend, run_id, id, verb)
    said = {"id": id, "by": call.who.by, "reason": call.body.reason}
    try:
        run = await backend.clerk.use(lambda engine: ask(engine, said))
    except HoldfastError as refused:
        raise await backend.read(_recorded, backend, run_id, inbox.stored_id(id, verb), refused) from refused
    backend.used_keys.add(call.who.token_id, key, asked)
    if wait is None:
        shown = await backend.read(_show, backend, run_id)
        return _answer(202, id, shown, repeated=run.repeated, headers={})
    headers = {"Preference-Applied": f"wait={wait:g}"}
    stopped, shown = await until(call, wait, _look(backend, run_id, inbox.stored_id(id, verb), verb))
    return _answer(200 if stopped else 202, id, shown, repeated=run.repeated, headers=headers)


def _refuse_other_verb(backend: Backend, run_id: str, id: str, verb: str) -> None:
    """Refuse a key that the run knows for another verb. The ids of signals have a mark of their own, so the store alone does not
    see that.
    """
    other = "resume" if verb == "signal" else "signal"
    try:
        backend.store.post(run_id, Request(id=inbox.stored_id(id, other), verb=verb), only_look=True)
    except RequestExists as reused:
        raise key_reused(reused) from None
    except HoldfastError:  # the engine says it
        return


def _recorded(backend: Backend, run_id: str, stored_id: str, refused: HoldfastError) -> Exception:
    """Return the exception for a refusal: if the request is in the log as refused, it conflicts with what the run is now."""
    if isinstance(refused, RequestExists):
        return key_reused(refused)
    was_posted = False
    with suppress(HoldfastError):  # the run was deleted, or cannot be read: the refusal says so
        was_posted = any(one.id == stored_id for one in backend.store.inbox(run_id=run_id))
    return conflict(refused) if was_posted else refused


def key_reused(refused: HoldfastError) -> Refused:
    """Return the exception for a key that was used for something else."""
    return refuse("key-reused", f"The key of this request was used for something else: {refused}")


def conflict(refused: HoldfastError) -> Exception:
    """Return the exception for a request that was recorded and refused: 409, whatever it was refused for."""
    found = problems.problem_of(refused)
    if found.status >= 500:
        return refused
    return Refused(msgspec.structs.replace(found, status=409))


def _look(backend: Backend, run_id: str, stored_id: str, verb: str) -> Callable[[], tuple[bool, ShownRun]]:
    """Return a function that says whether the request was carried out and the run has stopped since or asks something. It raises
    what the request was refused with.
    """
    known: tuple[Any, ...] = ()
    shown: ShownRun | None = None
    handled = False

    def look() -> tuple[bool, ShownRun]:
        nonlocal known, shown, handled
        row = backend.store.run(run_id)
        place = (row.seq, row.digest, row.held, handled)
        if shown is None or place != known:
            if not handled:
                try:
                    handled = is_handled(backend.store, run_id, stored_id, verb)
                except HoldfastError as refused:
                    raise conflict(refused) from refused
            known, shown = (*place[:3], handled), show_run(backend, row)
        return handled and has_stopped(shown), shown

    return look


def has_stopped(run: ShownRun) -> bool:
    """Return whether a run asks something, or does not continue without a request, an answer or a signal."""
    if run.questions or run.status not in GOING:
        return True
    return run.status == "waiting" and run.due_at is None and not run.answered


def _show(backend: Backend, run_id: str) -> ShownRun:
    return show_run(backend, backend.store.run(run_id))


def _answer(status: int, id: str, shown: ShownRun, *, repeated: bool, headers: dict[str, str]) -> Answer:
    run = msgspec.structs.replace(shown, repeated=repeated)
    return Answer(status=status, headers=headers, body=_encode(SentRequest(request=id, run=run)))
