"""`Reader`: what can be known about the runs of a store without holding one.

It is plain functions over a store and flows: no event loop, no lease, nothing written. The command line uses it as it is; an
engine calls it on a thread of its own, so that a long read never stops a running node.

A verb that reads many runs also exists in pages (`question_pages`). The engine fetches one page at a time, so that its event
loop gets its turn between two of them, and so that a short read need not wait for a long one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from holdfast.core.definition import Definition
from holdfast.core.graph import Flow
from holdfast.core.run_state import FINAL, OPEN, RunState
from holdfast.errors import RunNotFound, StoreCorrupt, StoreError
from holdfast.reading import history
from holdfast.reading.diagnosis import Diagnosis, case_of, diagnose
from holdfast.reading.history import Checkpoint
from holdfast.reading.remedies import CommandLine
from holdfast.reading.verification import Verdict, verify
from holdfast.reading.views import (
    AskedQuestion,
    EventView,
    Run,
    RunSummary,
    event_view,
    run_summary,
    run_view,
)
from holdfast.storage.contract import Query, RunRow, RunStatus, Store, in_order

_log = logging.getLogger("holdfast")

_ASKING_RUNS_MAX = 10_000
_LOGS_PER_PAGE = 8
"""Logs that `question_pages` folds for one page: about half a millisecond of work on SQLite."""
_ROWS_PER_PAGE = 100


class Reader:
    """Reads the runs of a store. States are typed where the flow is known, plain data otherwise."""

    def __init__(self, store: Store, flows: Mapping[str, Flow[Any]] | None = None) -> None:
        self.store = store
        self.flows: Mapping[str, Flow[Any]] = flows if flows is not None else {}

    # --- one run --------------------------------------------------------------------------------------

    def get(self, run_id: str, flow: Flow[Any] | None = None) -> Run[Any]:
        """One run as it is now. `flow` types its state in place of the flow that is known under its name."""
        row = self.store.run(run_id)
        return self.view(row, history.load(self.store, run_id, row=row), flow)

    def view(self, row: RunRow, state: RunState, flow: Flow[Any] | None = None) -> Run[Any]:
        """The view of a run whose row and state were read already."""
        flow = flow or self.flows.get(row.flow)
        fits = flow is not None and state.state_version == flow.definition.state_version
        return run_view(state, row, flow if fits else None)

    def state(self, run: str, checkpoint: str | int | None = None) -> Any:
        """The state at a checkpoint (default: at the end)."""
        run_id, seq = history.split(run, checkpoint)
        row = self.store.run(run_id)
        found = history.load(self.store, run_id, seq, row=row)
        flow = self.flows.get(row.flow)
        if flow is None or found.state_version != flow.definition.state_version:
            return found.values
        return flow.state.load(found.values)

    def events(
        self, run_id: str, after: int = 0, node: str | None = None, kind: str | None = None
    ) -> list[EventView]:
        """Stored events, oldest first."""
        rows = self.store.events(run_id, after, kinds=(kind,) if kind else (), node=node)
        return [event_view(stored) for stored in history.opened(self.store, run_id, rows)]

    def checkpoints(self, run_id: str) -> list[Checkpoint]:
        """Every place the run can be resumed or forked from, oldest first."""
        return history.checkpoints(self.store, run_id)

    def definition(self, row: RunRow) -> Definition:
        """The definition of a run's flow, as the store has it."""
        stored = self.store.definition(row.fingerprint)
        if stored is None:
            raise StoreCorrupt(
                f"run {row.run_id!r}: the definition of its flow is not in the store. `holdfast verify {row.run_id}` says more."
            )
        return history.defined(stored, row.run_id)

    def diagnose(self, run_id: str, commands: CommandLine | None = None) -> Diagnosis:
        """Why a run is where it is, and what can be done about it."""
        row = self.store.run(run_id)
        return diagnose(case_of(self.store, row), self.store.now(), commands)

    def verify(self, run_id: str) -> Verdict:
        """Whether a run is exactly what was written."""
        return verify(self.store, run_id)

    # --- many runs ------------------------------------------------------------------------------------

    def runs(
        self,
        *,
        status: RunStatus | Collection[RunStatus] = (),
        flow: str | None = None,
        labels: Mapping[str, str] | None = None,
        parent: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[RunSummary]:
        """The runs that meet every condition, newest first."""
        wanted: tuple[Any, ...] = (status,) if isinstance(status, str) else tuple(status)
        query = Query(
            status=wanted, flow=flow, labels=dict(labels or {}), parent=parent, before=before, limit=limit
        )
        return [run_summary(row) for row in self.store.runs(query)]

    def questions(self, run_id: str | None = None) -> list[AskedQuestion]:
        """The open questions of one run, or of all runs, oldest first."""
        return in_asking_order(self.question_pages(run_id))

    def question_pages(self, run_id: str | None = None) -> Iterator[list[AskedQuestion]]:
        """The open questions in pages, in no order. Each page takes about as long as the next, however many runs there are."""
        if run_id is not None:
            row = self.store.run(run_id)
            yield self._asked_by(row)
            return
        rows = islice(
            rows_of(self.store, Query(status=in_order(OPEN), limit=_ROWS_PER_PAGE)), _ASKING_RUNS_MAX
        )
        while page := list(islice(rows, _LOGS_PER_PAGE)):
            yield self._asked_by_all(page)

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


def in_asking_order(pages: Iterable[list[AskedQuestion]]) -> list[AskedQuestion]:
    """The questions of all pages, oldest first."""
    return sorted((one for page in pages for one in page), key=lambda one: one.question.asked_at)


def rows_of(store: Store, query: Query) -> Iterator[RunRow]:
    """Every run that meets the conditions, newest first, read a page (`query.limit`) at a time."""
    passed = [query.before] if query.before is not None else []
    while True:
        query = msgspec.structs.replace(query, before=passed[-1] if passed else None)
        try:
            page = store.runs(query)
        except RunNotFound:  # deleted meanwhile: the runs after it come after the one before it
            passed.pop()
            continue
        if not page:
            return
        yield from page
        passed += [row.run_id for row in page]
