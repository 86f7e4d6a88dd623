"""Routes that ask for something about a run: resume, retry, skip, cancel, pause, edit, answer, signal.

A handler executes no node. It leaves a request in the inbox of the run, under the id `http:TOKEN_ID:KEY`, and the engine that
executes the run, or a worker, carries it out. Requests that need no flow (cancel, pause, answer, signal, and edit if the flow is
known here) are recorded at once if no engine executes the run. The same key again changes nothing, and is answered as before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from holdfast.core import requests
from holdfast.core.requests import MAKING, RECORDS
from holdfast.core.run_state import GOING, RunState
from holdfast.core.verb_options import options_of
from holdfast.errors import HoldfastError, PreviewStale, RequestExists, RunNotFound, StoreError
from holdfast.reading import inbox
from holdfast.reading.previews import Preview, refuse_stale
from holdfast.runtime.door import is_handled
from holdfast.runtime.verb_signatures import asked
from holdfast.server import problems, verb_headers
from holdfast.server.backend import Backend
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.json_body import encode
from holdfast.server.problems import Refused, refuse
from holdfast.server.runs import ShownRun, show_run
from holdfast.server.waiting import until
from holdfast.storage.contract import Request

VerbCall: TypeAlias = HttpCall[Any, Any]
"""A call of a verb; the type of its body follows from the record of the verb (`verb_inputs`)."""


class VerbQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether to act, or only to say what would happen."""

    preview: bool = False
    """Change nothing, and answer with what the request would do."""


class SentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The id of a request, and the run that it was sent to."""

    request: str
    run: ShownRun


async def resume_run(call: VerbCall) -> Answer:
    """Ask for a run to be resumed, from its end or from an earlier event."""
    return await _ask(call, requests.Resume)


async def retry_run(call: VerbCall) -> Answer:
    """Ask for nodes that failed, were interrupted or wait to be retried."""
    return await _ask(call, requests.Retry)


async def skip_node(call: VerbCall) -> Answer:
    """Ask for a node to be skipped, with a result in place of its own."""
    return await _ask(call, requests.Skip)


async def cancel_run(call: VerbCall) -> Answer:
    """Ask for a run to be cancelled for good."""
    return await _ask(call, requests.Cancel)


async def pause_run(call: VerbCall) -> Answer:
    """Ask for a run to be paused: no node of it starts until it is resumed."""
    return await _ask(call, requests.Pause)


async def edit_run(call: VerbCall) -> Answer:
    """Ask for fields of the state to be changed, of a run that is not running."""
    return await _ask(call, requests.Edit)


async def answer_question(call: VerbCall) -> Answer:
    """Answer a question of a run."""
    return await _ask(call, requests.Answer)


async def send_signal(call: VerbCall) -> Answer:
    """Send a signal to a run."""
    return await _ask(call, requests.Signal)


def options_in(call: VerbCall, record: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the options of a verb in the body of a call. The reason, which every verb has, is not one of them."""
    known = [given for given in options_of(record).values() if not given.option.is_header]
    return {given.name: getattr(call.body, given.body_name) for given in known if given.name != "reason"}


# --- asking ------------------------------------------------------------------------------------------


def _run_id(call: HttpCall[Any, Any]) -> str:
    return call.values["id"]


async def _ask(call: VerbCall, record: type[requests.AnyRequest]) -> Answer:
    backend, run_id, verb = call.backend, _run_id(call), record.verb
    options = options_in(call, record)
    _check_run_id(call)
    if isinstance(call.query, VerbQuery) and call.query.preview:
        return show_preview(await look_ahead(call, verb, options))
    key, id, wait = verb_headers.key_of(call), verb_headers.request_id(call), verb_headers.wait_of(call)
    stored_id = inbox.stored_id(id, verb)
    refused: HoldfastError | None = None
    with backend.used_keys.use(call.who.token_id, key, (run_id, verb, call.body)):
        await backend.read(_refuse_other_verb, backend, run_id, id, verb)
        expects = verb_headers.preview_of(call)
        if expects is not None and not await backend.read(_was_posted, backend, run_id, stored_id):
            await require_preview(call, verb, options, expects)
        try:
            said = {"by": call.who.by, "reason": call.body.reason}
            said |= {"expects": expects} if expects is not None else {}
            request, _, _ = asked(record, {**options, **said})
            outcome = await backend.clerk.use(
                lambda engine: engine.door.ask(run_id, request, id=id, execute=False)
            )
        except RequestExists as other:
            raise key_reused(other) from other
        except HoldfastError as fault:
            if not await backend.read(_was_posted, backend, run_id, stored_id):
                raise
            refused = fault
    if refused is not None:
        raise await _conflict(call, verb, options, refused) from refused
    if wait is None:
        state = outcome.journal.state if outcome.journal is not None else None
        shown = await backend.read(_show, backend, run_id, state)
        return _answer(202, id, shown, repeated=outcome.repeated, headers={})
    try:
        stopped, shown = await until(call, wait, _look(backend, run_id, stored_id, verb))
    except _RequestRefused as found:
        raise await _conflict(call, verb, options, found.error) from found.error
    headers = {"Preference-Applied": f"wait={wait:g}"}
    return _answer(200 if stopped else 202, id, shown, repeated=outcome.repeated, headers=headers)


def _check_run_id(call: HttpCall[Any, Any]) -> None:
    named = call.body.run_id
    if named not in (UNSET, _run_id(call)):
        raise refuse(
            "bad-body",
            f"The body names the run {named!r}, and the path names {_run_id(call)!r}.",
            faults=(problems.Fault("run_id", "it differs from the id in the path"),),
        )


# --- previews ----------------------------------------------------------------------------------------


async def look_ahead(call: HttpCall[Any, Any], verb: str, options: dict[str, Any]) -> Preview:
    """Return what a verb would do to the run of the path now."""
    said = {**options, "reason": call.body.reason, "commands": call.backend.commands}
    return await call.backend.clerk.use(lambda engine: engine.preview(_run_id(call), verb, **said))


def show_preview(preview: Preview) -> Answer:
    """Return the answer with a preview. Its entity tag is the digest of what it lists."""
    return Answer(body=encode(preview), headers={"ETag": f'"{preview.digest}"'})


async def require_preview(call: HttpCall[Any, Any], verb: str, options: dict[str, Any], expects: str) -> None:
    """Raise `Refused` if a verb would do something else than the preview that the caller has seen."""
    now = await look_ahead(call, verb, options)
    try:
        refuse_stale(now, expects, (RECORDS | MAKING)[verb].traits.asked)
    except PreviewStale as stale:
        raise _stale(stale, now) from None


async def renew_preview(
    call: HttpCall[Any, Any], verb: str, options: dict[str, Any], refused: PreviewStale
) -> Exception:
    """Return the exception for a verb that an engine refused because its preview is stale, with a new preview."""
    try:
        return _stale(refused, await look_ahead(call, verb, options))
    except HoldfastError:
        return refused


def _stale(refused: PreviewStale, now: Preview) -> Refused:
    problem = msgspec.structs.replace(problems.problem_of(refused), preview=now)
    return Refused(problem, {"ETag": f'"{now.digest}"'})


# --- what became of it -------------------------------------------------------------------------------


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


def _was_posted(backend: Backend, run_id: str, stored_id: str) -> bool:
    with suppress(HoldfastError):  # the run was deleted, or cannot be read: the engine says so
        return any(one.id == stored_id for one in backend.store.inbox(run_id=run_id))
    return False


def key_reused(refused: HoldfastError) -> Refused:
    """Return the exception for a key that was used for something else."""
    return refuse("key-reused", f"The key of this request was used for something else: {refused}")


class _RequestRefused(Exception):
    """A request was carried out by refusing it; `error` says why."""

    def __init__(self, error: HoldfastError) -> None:
        self.error = error
        super().__init__(str(error))


async def _conflict(
    call: HttpCall[Any, Any], verb: str, options: dict[str, Any], refused: HoldfastError
) -> Exception:
    """Return the exception for a request that was recorded and refused: it conflicts with what the run is now, whatever it was
    refused for. If its preview was stale, the problem has a new one.
    """
    found = problems.problem_of(refused)
    if isinstance(refused, PreviewStale):
        return await renew_preview(call, verb, options, refused)
    return refused if found.status >= 500 else Refused(msgspec.structs.replace(found, status=409))


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
        if shown is None or place != known or shown.family_moves:
            if not handled:
                try:
                    handled = is_handled(backend.store, run_id, stored_id, verb)
                except (RunNotFound, StoreError):
                    raise
                except HoldfastError as refused:
                    raise _RequestRefused(refused) from refused
            known, shown = (*place[:3], handled), show_run(backend, row)
        return handled and has_stopped(shown), shown

    return look


def has_stopped(run: ShownRun) -> bool:
    """Return whether a run asks something, or does not continue without a request, an answer or a signal."""
    if run.questions or run.status not in GOING:
        return True
    return run.status == "waiting" and run.due_at is None and not run.answered and not run.family_moves


def _show(backend: Backend, run_id: str, state: RunState | None) -> ShownRun:
    return show_run(backend, backend.store.run(run_id), state=state)


def _answer(status: int, id: str, shown: ShownRun, *, repeated: bool, headers: dict[str, str]) -> Answer:
    run = msgspec.structs.replace(shown, repeated=repeated)
    return Answer(status=status, headers=headers, body=encode(SentRequest(request=id, run=run)))
