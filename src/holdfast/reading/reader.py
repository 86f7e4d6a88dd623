"""`Reader`: reads everything about the runs of a store that can be known without a lease.

Its methods are plain functions over a store: they use no event loop and no lease, and write nothing. The command line calls them
directly; an engine calls them on a separate thread, so that a long read never stops a running node.

A method that reads many runs also exists in pages (`question_pages`). The engine fetches one page at a time, so that its event
loop can do other work between two pages, and a short read does not wait for a long one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec

from holdfast.core.definition import Definition
from holdfast.core.graph import Flow
from holdfast.core.run_state import ENDED, FINAL, OPEN, RunState
from holdfast.errors import RunNotFound, StoreCorrupt, StoreError
from holdfast.reading import history, inbox
from holdfast.reading.cases import Case, later_state
from holdfast.reading.changes import case_now
from holdfast.reading.diagnosis import Diagnosis, diagnose, resume_remedy
from holdfast.reading.forks import ForkPlan, fork_place, plan_fork
from holdfast.reading.history import Checkpoint
from holdfast.reading.known_flows import Flows, find_flow, find_flow_or_lacks
from holdfast.reading.ledger import Ledger, read_ledger
from holdfast.reading.pages import Definitions, ListedRun, Page, list_page, look_at
from holdfast.reading.relatives import (
    FAMILY_MAX,
    FamilyTree,
    children_of,
    children_then,
    family_of,
    open_family,
)
from holdfast.reading.remedies import CommandLine, Remedy
from holdfast.reading.verification import LogVerdict, verify
from holdfast.reading.views import (
    AskedQuestion,
    EventView,
    RequestView,
    Run,
    RunSummary,
    event_view,
    load_state,
    run_summary,
    run_view,
)
from holdfast.storage.contract import Query, Request, RunRow, RunStatus, Store, in_order

_log = logging.getLogger("holdfast")

_ASKING_RUNS_MAX = 10_000
_LOGS_PER_PAGE = 8
"""How many runs `question_pages` loads from their logs for one page. This takes about half a millisecond on SQLite."""
_ROWS_PER_PAGE = 100
_DEFINITIONS_MAX = 100
"""Of how many flows the options of the nodes are kept in memory, for listings."""


class Reader:
    """Reads the runs of a store. A state is typed if the flow is known, otherwise it is plain data."""

    def __init__(self, store: Store, flows: Flows | None = None) -> None:
        self.store = store
        self.flows: Flows = flows if flows is not None else {}
        self._definitions: Definitions = {}

    # --- one run --------------------------------------------------------------------------------------

    def get(self, run: str, flow: Flow[Any] | None = None) -> Run[Any]:
        """Return one run as it is now or, by `"r1@17"`, as it was at that event. `flow` is used to type its state, instead of the
        known flow of that name.
        """
        run_id, seq = history.split(run, None)
        row = self.store.run(run_id)
        state = history.load(self.store, run_id, seq, row=row)
        if seq is None:
            return self.view(row, state, flow)
        children = children_then(self.store, state)
        return run_view(state, None, flow or self._flow(row), children, is_past=True)

    def view(self, row: RunRow, state: RunState, flow: Flow[Any] | None = None) -> Run[Any]:
        """Return the view of a run whose row and state were read already."""
        return run_view(state, row, flow or self._flow(row), children_of(self.store, state))

    def _flow(self, row: RunRow) -> Flow[Any] | None:
        return find_flow(self.store, self.flows, row)

    def state(self, run: str, checkpoint: str | int | None = None) -> Any:
        """Return the state of a run at a checkpoint (default: at the end of its log). Raises `StateError` if it does not fit the
        flow that is known, because newer code has upgraded it.
        """
        run_id, seq = history.split(run, checkpoint)
        row = self.store.run(run_id)
        found = history.load(self.store, run_id, seq, row=row)
        return load_state(run_id, found.values, found.state_version, self._flow(row))

    def events(
        self, run_id: str, after: int = 0, node: str | None = None, kind: str | None = None
    ) -> list[EventView]:
        """Return the stored events of a run, oldest first."""
        rows = self.store.events(run_id, after, kinds=(kind,) if kind else (), node=node)
        return [event_view(stored) for stored in history.opened(self.store, run_id, rows)]

    def checkpoints(self, run_id: str) -> list[Checkpoint]:
        """Return every checkpoint that the run can be resumed or forked from, oldest first."""
        return history.checkpoints(self.store, run_id)

    def requests(self, run_id: str) -> list[RequestView]:
        """Return the requests to a run that wait for an engine, and those that were refused, oldest first."""
        row = self.store.run(run_id)
        known = {request.id: request for request in self.store.inbox(run_id=run_id)}
        found = [
            _request_view(request, row) for request in known.values() if request.unmet or not request.taken
        ]
        rows = self.store.events(run_id, kinds=("RequestRefused",))
        for stored in history.opened(self.store, run_id, rows):
            event, sent = stored.event, known.get(stored.event.request)
            found.append(
                RequestView(
                    id=event.request,
                    verb=event.verb,
                    about=event.about if event.error != "RunHeld" else None,  # then it names the holder
                    status="refused",
                    by=event.by,
                    reason=sent.reason if sent is not None else None,
                    at=event.asked_at or stored.at,
                    refused=event.reason,
                    refused_at=stored.at,
                )
            )
        order = list(known)
        found.sort(key=lambda one: (one.at, order.index(one.id) if one.id in known else len(order)))
        return [msgspec.structs.replace(one, id=inbox.given_id(one.id)) for one in found]

    def plan_fork(self, run: str, checkpoint: str | int | None = None) -> ForkPlan:
        """Return what a fork from a checkpoint (default: the latest) would begin with, and what it must not repeat without a
        decision. Raises `ResumeRefused` if the run cannot be forked from there.
        """
        run_id, seq = history.split(run, checkpoint)
        row = self.store.run(run_id)
        return plan_fork(
            self.store, row, fork_place(self.store, row, seq), find_flow(self.store, self.flows, row)
        )

    def definition(self, row: RunRow, fingerprint: str | None = None) -> Definition:
        """Return the stored definition of a run's flow, or of the flow with this fingerprint that the run had earlier."""
        stored = self.store.definition(fingerprint or row.fingerprint)
        if stored is None:
            raise StoreCorrupt(
                f"run {row.run_id!r}: the definition of its flow is missing from the store. Restore the store from a backup."
            )
        return history.defined(stored, row.run_id)

    def diagnose(
        self, run_id: str, commands: CommandLine | None = None, *, before: Case | None = None
    ) -> Diagnosis:
        """Find out why a run is in its current status, and what can be done about it. `before` is an earlier case of the run:
        then only events that are newer are read.
        """
        return diagnose(self._case(run_id, before), self.store.now(), commands)

    def resume_remedy(self, run_id: str, commands: CommandLine | None = None) -> Remedy | None:
        """Return the remedy that resumes a run when no process executes it; None if it cannot be resumed."""
        return resume_remedy(self._case(run_id), self.store.now(), commands)

    def is_only_claimed(self, run_id: str) -> bool:
        """Return whether the process that holds a run has not begun to execute it: it may be about to refuse the run."""
        row = self.store.run(run_id)
        if row.holder is None:
            return False
        taken = self.store.events(run_id, kinds=("RunClaimed", "RunResumed", "RunRewound"))
        last = next(history.opened(self.store, run_id, taken[-1:]), None)
        holder = getattr(last.event, "holder", None) if last is not None else None
        return holder not in (None, "", row.holder.describe())

    def _case(self, run_id: str, before: Case | None = None) -> Case:
        row = self.store.run(run_id)
        flow, lacks = find_flow_or_lacks(self.store, self.flows, row)
        known = later_state(self.store, before, row) if before is not None else None
        case = case_now(self.store, row, flow, self.flows, known=known)
        return msgspec.structs.replace(case, lacks=lacks)

    def family(self, run_id: str, commands: CommandLine | None = None, limit: int = FAMILY_MAX) -> FamilyTree:
        """Return the runs that called a run, and its children with theirs, each with the reason for its status."""
        return family_of(self.store, run_id, limit=limit, commands=commands, flows=self.flows)

    def verify(self, run_id: str) -> LogVerdict:
        """Check whether a run is exactly what was written."""
        return verify(self.store, run_id)

    def ledger(self, run_id: str, *, verify: bool = False) -> Ledger:
        """Return every decision in the log of a run; with `verify`, also whether the log is exactly what was written."""
        return read_ledger(self.store, run_id, check=verify)

    # --- many runs ------------------------------------------------------------------------------------

    def runs(
        self,
        *,
        status: RunStatus | Collection[RunStatus] = (),
        flow: str | None = None,
        labels: Mapping[str, str] | None = None,
        parent: str | None = None,
        origin: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[RunSummary]:
        """Return the runs that meet all conditions, newest first. Raises `RunNotFound` if `before` names an unknown run."""
        wanted: tuple[Any, ...] = (status,) if isinstance(status, str) else tuple(status)
        after = self.store.run(before).position if before is not None else None
        query = Query(
            status=wanted,
            flow=flow,
            labels=dict(labels or {}),
            parent=parent,
            origin=origin,
            after=after,
            limit=limit,
        )
        return [run_summary(row) for row in self.store.runs(query)]

    def page(
        self,
        query: Query,
        cursor: str | None = None,
        commands: CommandLine | None = None,
        *,
        attention: bool = False,
    ) -> Page:
        """Return a page of the runs that meet the conditions, newest first, each with the reason for its status; with
        `attention`, only those that need it.
        """
        if len(self._definitions) > _DEFINITIONS_MAX:
            self._definitions.clear()
        return list_page(
            self.store,
            query,
            attention=attention,
            cursor=cursor,
            commands=commands,
            definitions=self._definitions,
            flows=self.flows,
        )

    def list_runs(
        self, query: Query, commands: CommandLine | None = None, *, attention: bool = False
    ) -> tuple[list[ListedRun], bool]:
        """Return as many runs as the query wants, from one page or more, and whether there are others."""
        found: list[ListedRun] = []
        cursor: str | None = None
        while True:
            part = msgspec.structs.replace(query, limit=query.limit - len(found))
            page = self.page(part, cursor, commands, attention=attention)
            found, cursor = found + page.runs, page.next
            if cursor is None or len(found) >= query.limit:
                return found, cursor is not None

    def questions(self, run_id: str | None = None) -> list[AskedQuestion]:
        """Return the open questions of one run and of its child runs, or of all runs, oldest first."""
        return in_asking_order(self.question_pages(run_id))

    def question_pages(self, run_id: str | None = None) -> Iterator[list[AskedQuestion]]:
        """Yield the open questions in pages, unordered. Reading a page takes about the same time, however many runs there are."""
        if run_id is not None:
            row = self.store.run(run_id)
            yield self._asked_by(row)
            asking = (one for one in open_family(self.store, run_id, _ASKING_RUNS_MAX) if one.asks != 0)
            while page := list(islice(asking, _LOGS_PER_PAGE)):
                yield self._asked_by_all(page)
            return
        rows = islice(rows_of(self.store, Query(asks=True, limit=_ROWS_PER_PAGE)), _ASKING_RUNS_MAX)
        while page := list(islice(rows, _LOGS_PER_PAGE)):
            yield self._asked_by_all(page)

    def questions_to_come(
        self, run_id: str | None = None, commands: CommandLine | None = None
    ) -> list[Diagnosis]:
        """Return the diagnoses of runs that crashed in a node which may have had its effect: a resume of such a run asks a
        question first (`asks_before`).
        """
        rows = (
            [self.store.run(run_id)]
            if run_id is not None
            else islice(
                rows_of(self.store, Query(status=in_order(OPEN), limit=_ROWS_PER_PAGE)), _ASKING_RUNS_MAX
            )
        )
        now, found = self.store.now(), list[Diagnosis]()
        for row in rows:
            if row.held or row.status in ENDED:
                continue
            with suppress(
                RunNotFound, StoreError
            ):  # deleted meanwhile, or reported as unreadable with its questions
                one = look_at(self.store, row, now, commands=commands, definitions=self._definitions)
                found += [one.found] if one.found.asks_before else []
        return found

    def _asked_by_all(self, rows: Sequence[RunRow]) -> list[AskedQuestion]:
        asked: list[AskedQuestion] = []
        for row in rows:
            try:
                asked += self._asked_by(row)
            except RunNotFound:  # deleted meanwhile
                continue
            except StoreError as fault:
                _log.warning("run %r cannot be read, so its questions are not listed: %s", row.run_id, fault)
        return asked

    def _asked_by(self, row: RunRow) -> list[AskedQuestion]:
        if row.status in FINAL:
            return []
        state = history.load(self.store, row.run_id, row=row)
        return [
            AskedQuestion(run_id=row.run_id, flow=row.flow, question=question)
            for question in state.questions.values()
        ]


def _request_view(request: Request, row: RunRow) -> RequestView:
    """Return the view of a request that waits, or that still waited when its run ended."""
    return RequestView(
        id=request.id,
        verb=request.verb,
        about=inbox.about(inbox.read(request)) if request.body else None,
        status="refused" if request.unmet else "waiting",
        by=request.by,
        reason=request.reason,
        at=request.at,
        refused=f"the run was {row.status} before the request was carried out" if request.unmet else None,
        refused_at=row.updated_at if request.unmet else None,
    )


def in_asking_order(pages: Iterable[list[AskedQuestion]]) -> list[AskedQuestion]:
    """Return the questions of all pages, oldest first."""
    return sorted((one for page in pages for one in page), key=lambda one: one.question.asked_at)


def rows_of(store: Store, query: Query) -> Iterator[RunRow]:
    """Yield every run that meets the conditions, newest first, reading `query.limit` rows at a time."""
    while page := store.runs(query):
        yield from page
        query = msgspec.structs.replace(query, after=page[-1].position)
