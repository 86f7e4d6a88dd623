"""Routes that list runs and show one run.

A run is answered with the fields of `hf.Run`, a row of the list with those of `hf.RunSummary`; both also say why the run is where
it is, and what can be done. A run that cannot be read is listed with that reason, and the other runs stay visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core.run_state import FINAL, UNDER_WAY, RunState
from holdfast.errors import SettingError
from holdfast.reading import pages
from holdfast.reading.cases import (
    case_of,
    list_takers,
    queue_of,
    refusals_of,
    waiting_requests,
    without_refusers,
)
from holdfast.reading.changes import compare
from holdfast.reading.diagnosis import diagnose
from holdfast.reading.known_flows import find_flow
from holdfast.reading.reader import Reader
from holdfast.reading.relatives import FamilyTree, moves_with_family
from holdfast.reading.remedies import Remedy
from holdfast.reading.views import RequestView, Run, RunSummary, run_summary
from holdfast.server.backend import Backend
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.entity_tags import REVALIDATE, has_tag
from holdfast.server.json_body import encode
from holdfast.server.parameters import NoQuery
from holdfast.server.problems import refuse
from holdfast.server.waiting import WAIT_S_MAX, until
from holdfast.storage.contract import Query, RunRow, RunStatus
from holdfast.storage.queues import LiveHolder, Queue, Refusal

PAGE_MAX = 200

RunId = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern="^[^\\x00-\\x1f\\x7f]*$")]
Time = Annotated[float, Meta(ge=0, le=1e12)]
"""Seconds since the epoch."""
Seq = Annotated[int, Meta(ge=0, le=2**53)]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]


class RunEntry(RunSummary, frozen=True, kw_only=True):
    """An entry of the list of runs."""

    queue: str
    active: tuple[str, ...]
    """The nodes that have started and not ended (the first few)."""
    needs_attention: bool
    """True if the run asks a question, failed, or should continue and does not."""
    crashed: bool
    """True if the run is under way, but no live process executes it."""
    asks: int
    """How many questions are open."""
    retry_at: float | None
    """When a node that failed is retried next; null if none is."""
    requested: tuple[str, ...]
    """The verbs of the requests that wait for an engine, oldest first."""
    active_s: float
    """For how many seconds its nodes have run in total."""
    reason: str
    """Why the run is where it is, in one sentence."""
    remedy: Remedy | None
    """What to do about it, if anything needs to be done."""


class RunPage(msgspec.Struct, frozen=True):
    """A page of runs, newest first. `next` is the cursor of the next page; None on the last page."""

    runs: list[RunEntry]
    next: str | None


class ShownRun(Run[Any], frozen=True, kw_only=True):
    """A run with the reason for its status and the ways to continue it."""

    queue: str
    priority: int
    crashed: bool
    answered: bool
    """True if an answer or a signal has come, but no process executes the run."""
    reason: str
    remedies: tuple[Remedy, ...]
    title: str = ""
    """The title of its plan; empty if it has none."""
    goal: str = ""
    """The goal of its plan in words; empty if it has none."""
    family_moves: bool = False
    """True if the run waits, and goes on as soon as its family has moved: it has not stopped."""


class RunsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runs to list: those that meet every condition."""

    status: tuple[RunStatus, ...] = ()
    flow: Name | UnsetType = UNSET
    label: tuple[Annotated[str, Meta(pattern="^[^=\\x00-\\x1f\\x7f]+=[^\\x00-\\x1f\\x7f]*$")], ...] = ()
    """`name=value`; repeatable."""
    parent: RunId | UnsetType = UNSET
    """Only forks of this run."""
    origin: RunId | UnsetType = UNSET
    """Only child runs that this run started."""
    queue: Name | UnsetType = UNSET
    id: Annotated[tuple[RunId, ...], Meta(max_length=PAGE_MAX)] = ()
    """List these runs only; repeatable. Ids of runs that do not exist are left out."""
    prefix: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")] | UnsetType = UNSET
    """Only runs whose id begins with this text."""
    asks: bool = False
    """Only runs with open questions."""
    attention: bool = False
    """Only runs that need attention: they ask a question, failed, or should continue and do not. Such a page may have fewer runs
    than `limit` although there is a next one."""
    since: Time | UnsetType = UNSET
    """Only runs that were created at this time or later."""
    until: Time | UnsetType = UNSET
    """Only runs that were created before this time."""
    cursor: Annotated[str, Meta(max_length=1000)] | UnsetType = UNSET
    limit: Limit = 50


class RunQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether to wait until the run has moved."""

    wait: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] | UnsetType = UNSET
    """Seconds to wait until the run has an event after `after`, or is over."""
    after: Seq | UnsetType = UNSET
    """The seq of an event; default: the last event that the run has now."""
    at: Seq | UnsetType = UNSET
    """Get the run as it was at this event."""
    brief: bool = False
    """Leave out the state, which may be large: it is null."""


# --- the list ----------------------------------------------------------------------------------------


def list_runs(call: HttpCall[RunsQuery, None]) -> RunPage:
    """List runs, newest first."""
    backend, query = call.backend, call.query
    wanted = Query(
        status=query.status,
        flow=query.flow or None,
        labels=dict(_pair(text) for text in query.label),
        parent=query.parent or None,
        origin=query.origin or None,
        queue=query.queue or None,
        ids=query.id or None,
        prefix=query.prefix or "",
        asks=query.asks,
        created=(
            None if query.since is UNSET else query.since,
            None if query.until is UNSET else query.until,
        ),
        limit=query.limit,
    )
    cursor = None if query.cursor is UNSET else query.cursor
    try:
        page = Reader(backend.store, backend.engine.flows).page(
            wanted, cursor, backend.commands, attention=query.attention
        )
    except SettingError as fault:
        raise refuse("bad-cursor", str(fault)) from None
    return RunPage([_entry(one) for one in page.runs], page.next)


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _entry(one: pages.ListedRun) -> RunEntry:
    row, found = one.row, one.found
    return RunEntry(
        **msgspec.structs.asdict(run_summary(row)) | {"pausing": found.pausing},
        queue=row.queue,
        active=row.active,
        needs_attention=one.needs_attention,
        crashed=found.crashed,
        asks=one.asks,
        retry_at=one.retry_at,
        requested=one.requested,
        active_s=one.active_s,
        reason=found.reason,
        remedy=found.remedies[0] if found.remedies else None,
    )


class FamilyQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many runs of a family to list."""

    limit: Limit = 100
    """The maximum number of runs, generation by generation. `more` of a run says that it has others:
    `GET /api/v1/runs?origin=` lists its children page by page."""


def get_family(call: HttpCall[FamilyQuery, None]) -> FamilyTree:
    """Get the family of a run: the runs that called it, its child runs and theirs, each with the reason for its status."""
    backend = call.backend
    reader = Reader(backend.store, backend.engine.flows)
    return reader.family(call.values["id"], backend.commands, call.query.limit)


# --- one run -----------------------------------------------------------------------------------------


async def get_run(call: HttpCall[RunQuery, None]) -> Answer:
    """Get a run as it is now, or as it was at the event `at`; with `wait` and `after`, as soon as it has moved past `after`."""
    if call.query.at is not UNSET:
        return await call.backend.read(_answer_run_at, call, call.query.at)
    if call.query.wait is UNSET:
        return await call.backend.read(_answer_run, call)
    row = await _wait(call)
    return await call.backend.read(_answer_run, call, row)


def _answer_run(call: HttpCall[RunQuery, None], row: RunRow | None = None) -> Answer:
    """Answer with a run, in as few reads as possible: for a client that knows its last event, its row is enough. A run with child
    runs is read again, because they move without it.
    """
    backend = call.backend
    (row,) = without_refusers(backend.store, [row or backend.store.run(call.values["id"])])
    holders = _holders(backend, row)
    refusals = refusals_of(backend.store, row, holders)
    queue = queue_of(backend.store, row, holders)
    tag = etag(row, refusals, holders or (), queue)
    headers = {"ETag": tag, "Cache-Control": REVALIDATE}
    if has_tag(call, tag) and not backend.store.runs(Query(origin=row.run_id, limit=1)):
        return Answer(status=304, headers=headers)
    if waiting_requests(backend.store, row):  # the reason says for how long they have waited
        return Answer(body=_encode_run(call, show_run(backend, row, holders)), headers=headers)
    is_due = row.due_at is not None and row.due_at <= backend.clock.now()
    version = (row.seq, row.digest, row.held, is_due, tuple(one.holder for one in holders or ()), tag)
    kept_as = (row.run_id, call.query.brief)
    body = backend.kept.get(kept_as, version)
    if body is None:
        run = show_run(backend, row, holders)
        body = _encode_run(call, run)
        if not run.children:
            backend.kept.put(kept_as, version, body)
    return Answer(body=body, headers=headers)


def _answer_run_at(call: HttpCall[RunQuery, None], at: int) -> Answer:
    """Answer with a run as it was at an event. What could be done about it then is not said: it has moved since."""
    backend = call.backend
    row = backend.store.run(call.values["id"])
    run = ShownRun(
        **msgspec.structs.asdict(backend.reader.get(f"{row.run_id}@{at}")),
        queue=row.queue,
        priority=row.priority,
        crashed=False,
        answered=False,
        reason=f"the run as it was at event {at} of {row.seq}",
        remedies=(),
    )
    return Answer(body=_encode_run(call, run))


def _encode_run(call: HttpCall[RunQuery, None], run: ShownRun) -> bytes:
    return encode(msgspec.structs.replace(run, state=None) if call.query.brief else run)


def etag(
    row: RunRow,
    refusals: tuple[Refusal, ...] = (),
    holders: Iterable[LiveHolder] = (),
    queue: Queue | None = None,
) -> str:
    """Return the entity tag of a run: the seq of its last event. What else the answer says of a run is not an event, so it is
    added: a crash, which workers refuse the run and which can take it, and the limit of a full queue.
    """
    crashed = ".crashed" if row.status in UNDER_WAY and row.holder is not None and not row.held else ""
    workers = sorted(one.holder.id for one in list_takers(row, holders)) if refusals else []
    told = repr((sorted((one.holder, one.at) for one in refusals), workers))
    refused = f".refused.{sha256(told.encode()).hexdigest()[:16]}" if refusals else ""
    limit = f".limit.{queue.limit}" if queue is not None else ""
    return f'"{row.seq}{crashed}{refused}{limit}"'


async def _wait(call: HttpCall[RunQuery, None]) -> RunRow:
    backend, query = call.backend, call.query
    assert query.wait is not UNSET
    after = query.after

    def look() -> tuple[bool, RunRow]:
        nonlocal after
        row = backend.store.run(call.values["id"])
        after = row.seq if after is UNSET else after
        return row.seq > after or row.status in FINAL, row

    return (await until(call, query.wait, look))[1]


def _holders(backend: Backend, row: RunRow) -> list[LiveHolder] | None:
    """Return the live engines, one of which may claim the run; None if none has to."""
    return None if row.held or row.status in FINAL else backend.store.queues.holders()


def show_run(
    backend: Backend,
    row: RunRow,
    holders: list[LiveHolder] | None = None,
    *,
    state: RunState | None = None,
) -> ShownRun:
    """Return a run with the reason for its status and its remedies: those that a list of runs and `holdfast show` give, too. The
    log is not read if it ends where `state` does, which was read before.
    """
    store = backend.store
    (row,) = without_refusers(store, [row])
    holders = _holders(backend, row) if holders is None else holders
    case = case_of(store, row, holders=holders, known=state)
    flow = find_flow(store, backend.engine.flows, row)
    case = compare(store, case, flow)
    assert case.state is not None
    commands = backend.commands.for_one_of(backend.engine.flows, row.flow)
    found = diagnose(case, backend.clock.now(), commands)
    return ShownRun(
        **msgspec.structs.asdict(backend.reader.view(row, case.state)),
        queue=row.queue,
        priority=row.priority,
        crashed=found.crashed,
        answered=found.answered,
        reason=found.reason,
        remedies=found.remedies,
        family_moves=row.status == "waiting" and not row.held and moves_with_family(store, row),
        **_about_plan(case.state),
    )


def _about_plan(state: RunState) -> dict[str, Any]:
    """Return the title and the goal of a plan, as far as they are text."""
    if not state.plan:
        return {}
    goal, about = state.values.get("goal"), state.values.get("about")
    told = {
        "title": about.get("title") if isinstance(about, dict) else None,
        "goal": goal.get("text") if isinstance(goal, dict) else goal,
    }
    return {name: value for name, value in told.items() if isinstance(value, str)}


# --- its requests ------------------------------------------------------------------------------------


class RequestsOfRun(msgspec.Struct, frozen=True, kw_only=True):
    """The requests to a run that wait, and those that were refused, oldest first. One that was carried out is in the log."""

    run_id: str
    requests: list[RequestView]


def list_requests(call: HttpCall[NoQuery, None]) -> RequestsOfRun:
    """List the requests to a run that no engine has carried out yet, and those that were refused, with the reason."""
    run_id = call.values["id"]
    return RequestsOfRun(run_id=run_id, requests=call.backend.reader.requests(run_id))
