"""The route that asks many runs at once: one request in the inbox of each run that matches. Workers carry them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.requests import RECORDS, Labels, Resume, Text
from holdfast.core.verb_options import options_of, read_options
from holdfast.reading import inbox
from holdfast.server import verb_headers
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.json_body import encode
from holdfast.server.keys import digest_of
from holdfast.server.problems import Fault, refuse
from holdfast.server.runs import Name, RunId
from holdfast.server.verb_inputs import body_field
from holdfast.server.verbs import VerbQuery
from holdfast.storage.contract import Query, RunStatus, Store
from holdfast.upkeep import mass_requests
from holdfast.upkeep.mass_requests import BatchVerb, Tally

SHOWN_MAX = 100


class Where(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which runs to ask: those that meet every condition. At least one is needed."""

    status: tuple[RunStatus, ...] = ()
    """Default: the statuses in which the verb has a meaning."""
    flow: Name | None = None
    labels: Labels = {}
    parent: RunId | None = None
    """Only forks of this run."""
    origin: RunId | None = None
    """Only child runs that this run started."""
    queue: Name | None = None


class _BatchBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to ask many runs for."""

    verb: BatchVerb
    where: Where
    reason: Text | None = None


_OPTIONS = [
    (verb, given)
    for verb, record in RECORDS.items()
    for given in options_of(record).values()
    if given.option.of_many
]
"""The options that have a meaning in a request to many runs, each with its verb."""
BatchInput = msgspec.defstruct(
    "BatchInput",
    [body_field(given, f" Only for `{verb}`.") for verb, given in _OPTIONS],
    bases=(_BatchBody,),
    namespace={"__doc__": _BatchBody.__doc__},
    frozen=True,
    kw_only=True,
)


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs match, and how many of them were asked. In a preview, none was."""

    request: str
    """The id of the requests; empty if each has an id of its own, or in a preview."""
    verb: BatchVerb
    matched: int
    asked: int
    repeated: int
    """Runs that had been asked before."""
    executing: int
    """Runs that are not asked to continue, because a process executes them."""
    over: int
    gone: int
    refused: dict[str, str]
    runs: tuple[str, ...]
    """The ids of the first of the runs that match."""


def ask_runs(call: HttpCall[VerbQuery, _BatchBody]) -> Answer:
    """Ask every run that matches to be resumed, retried or cancelled."""
    store, body = call.backend.store, call.body
    if body.where == Where():
        raise _unfit("where", "it names no condition, and would choose all runs")
    query = mass_requests.meant(Query(**msgspec.structs.asdict(body.where)), body.verb)
    if call.query.preview:
        found = mass_requests.find(store, query)
        return _answer(200, "", body.verb, Tally(matched=len(found)), found)
    request = _request(body, call.who.by)
    return _answer_once(call, lambda id: _leave(store, query, request, body.verb, id))


def _answer_once(call: HttpCall[VerbQuery, _BatchBody], leave: Callable[[str | None], Answer]) -> Answer:
    """Leave the requests. The same key again is answered as before, and does not reach runs that match only since then: the inbox
    of a run knows only what that run was asked.
    """
    key, asked = verb_headers.key_of(call), ("requests", call.body)
    if key is None:
        return leave(None)
    answers, name, version = call.backend.kept, ("requests", call.who.token_id, key), digest_of(asked)
    with call.backend.used_keys.use(call.who.token_id, key, asked):
        known = answers.get(name, version)
        if known is not None:
            return Answer(status=202, body=known)
        made = leave(verb_headers.request_id(call))
        answers.put(name, version, made.body or b"")
    return made


def _leave(store: Store, query: Query, request: inbox.AnyRequest, verb: BatchVerb, id: str | None) -> Answer:
    found = mass_requests.find(store, query)
    tally = Tally(matched=len(found))
    mass_requests.leave_all(store, request, found, tally, id=id)
    return _answer(202, id or "", verb, tally, found)


def _request(body: _BatchBody, by: str) -> inbox.AnyRequest:
    record, said = RECORDS[body.verb], dict[str, Any]()
    unsaid = BatchInput(verb=body.verb, where=body.where)
    for verb, given in _OPTIONS:
        value = getattr(body, given.body_name)
        if body.verb == verb:
            said[given.field] = value
        elif value != getattr(unsaid, given.body_name):
            raise _unfit(given.body_name, f"it has a meaning only with the verb {verb!r}")
    request = record(**read_options(record, said), by=by, reason=body.reason)
    if isinstance(request, Resume) and len(request.places) > 1:
        raise _unfit(next(iter(request.places)), "only one place to resume from can be given")
    return request


def _unfit(field: str, why: str) -> Exception:
    return refuse("bad-body", f"The body does not fit: at `{field}`: {why}.", faults=(Fault(field, why),))


def _answer(status: int, id: str, verb: BatchVerb, tally: Tally, found: list[mass_requests.Match]) -> Answer:
    shown = BatchAnswer(
        request=id,
        verb=verb,
        **msgspec.structs.asdict(tally),
        runs=tuple(one.run_id for one in found[:SHOWN_MAX]),
    )
    return Answer(status=status, body=encode(shown))
