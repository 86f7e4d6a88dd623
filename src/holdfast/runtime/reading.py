"""The verbs that read: what a run is, what it was at a checkpoint, what happened, what is asked. None needs the run's flow; where
it is known, states are typed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Literal, TypeVar, overload

from holdfast.core.graph import Flow
from holdfast.core.run_state import FINAL, GOING, OPEN
from holdfast.errors import RunCancelled, RunFailed, StoreError, ended, named
from holdfast.reading import history
from holdfast.reading.chunks import Chunk
from holdfast.reading.views import AskedQuestion, EventView, Run, event_view, run_view
from holdfast.runtime.clock import Clock, sleep
from holdfast.runtime.followers import POLL_S, Followers
from holdfast.runtime.holdings import Holdings
from holdfast.runtime.resume import split
from holdfast.runtime.services import Services
from holdfast.storage.contract import Query, RunRow, RunStatus, Store, in_order

S = TypeVar("S")
_log = logging.getLogger("holdfast")

_RUNS_ASKED_MAX = 10_000


class Reading:
    """What an engine can tell."""

    flows: dict[str, Flow[Any]]
    _clock: Clock
    _followers: Followers
    _holdings: Holdings

    @property
    def store(self) -> Store:
        """The open store."""
        return self._open().store

    def _open(self) -> Services:
        raise NotImplementedError

    async def get(self, run_id: str) -> Run[Any]:
        """One run as it stands; its state is typed where the flow is known."""
        return self._view(run_id)

    async def runs(
        self,
        *,
        status: RunStatus | Collection[RunStatus] = (),
        flow: str | None = None,
        labels: Mapping[str, str] | None = None,
        parent: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[RunRow]:
        """The runs that fit every condition, newest first."""
        wanted: tuple[Any, ...] = (status,) if isinstance(status, str) else tuple(status)
        query = Query(
            status=wanted, flow=flow, labels=dict(labels or {}), parent=parent, before=before, limit=limit
        )
        return self.store.runs(query)

    async def state(self, run: str, checkpoint: str | int | None = None) -> Any:
        """The state at a checkpoint (default: at the end): typed where the flow is known."""
        run_id, seq = split(run, checkpoint)
        row = self.store.run(run_id)
        found = history.load(self.store, run_id, seq, row=row)
        flow = self.flows.get(row.flow)
        if flow is None or found.state_version != flow.definition.state_version:
            return found.values
        return flow.state.load(found.values)

    async def events(
        self, run_id: str, after: int = 0, node: str | None = None, kind: str | None = None
    ) -> list[EventView]:
        """Stored events, oldest first."""
        rows = self.store.events(run_id, after, kinds=(kind,) if kind else (), node=node)
        return [event_view(stored) for stored in history.opened(self.store, run_id, rows)]

    async def checkpoints(self, run_id: str) -> list[history.Checkpoint]:
        """Every place the run can be resumed or forked from, oldest first."""
        return history.checkpoints(self.store, run_id)

    @overload
    def follow(
        self, run_id: str, after: int = 0, *, chunks: Literal[False] = False
    ) -> AsyncIterator[EventView]: ...

    @overload
    def follow(
        self, run_id: str, after: int = 0, *, chunks: Literal[True]
    ) -> AsyncIterator[EventView | Chunk]: ...

    def follow(self, run_id: str, after: int = 0, *, chunks: bool = False) -> AsyncIterator[Any]:
        """Events as they become durable, without gap or repeat, until the run has stopped and all are told. With `chunks`
        also what its nodes stream, as it comes.
        """
        services = self._open()
        return self._followers.follow(
            services.store, self._clock, run_id, after, chunks=chunks, is_here=self._holdings.__contains__
        )

    async def questions(self, run_id: str | None = None) -> list[AskedQuestion]:
        """What is asked, oldest first: by one run, or by all that wait."""
        every = Query(status=in_order(OPEN), limit=_RUNS_ASKED_MAX)
        rows = self.store.runs(every) if run_id is None else [self.store.run(run_id)]
        asked: list[AskedQuestion] = []
        for row in rows:
            if row.status in FINAL:
                continue
            try:
                pending = history.load(self.store, row.run_id, row=row).questions.values()
            except StoreError as fault:
                if run_id is not None:
                    raise
                _log.warning("run %r cannot be read, so what it asks is not listed: %s", row.run_id, fault)
                continue
            asked += [
                AskedQuestion(run_id=row.run_id, flow=row.flow, question=question) for question in pending
            ]
        return sorted(asked, key=lambda one: one.question.asked_at)

    async def wait(self, run_id: str, timeout: float | None = None) -> Run[Any]:
        """Wait until a run has stopped, whoever executes it. Raises `TimeoutError` when that takes too long."""
        services = self._open()
        deadline = None if timeout is None else services.clock.now() + timeout
        while True:
            runner = self._holdings.get(run_id)
            row = services.store.run(run_id)
            stopped = row.status not in GOING or (row.status == "waiting" and not row.held)
            if runner is None and stopped:
                return result_of(self._view(run_id))
            if deadline is not None and services.clock.now() >= deadline:
                raise TimeoutError(f"run {run_id!r} is still {row.status} after {timeout:g} s")
            left = POLL_S if deadline is None else min(POLL_S, deadline - services.clock.now())
            await sleep(services.clock, left)

    def _view(self, run_id: str, flow: Flow[Any] | None = None) -> Run[Any]:
        row = self.store.run(run_id)
        state = history.load(self.store, run_id, row=row)
        flow = flow or self.flows.get(row.flow)
        if flow is not None and state.state_version != flow.definition.state_version:
            flow = None
        return run_view(state, row, flow)


def result_of(run: Run[S]) -> Run[S]:
    """A run, or the exception that its end stands for."""
    if run.status == "failed":
        error = run.error
        where = f" in node {run.failed_node!r}" if run.failed_node else ""
        what = named(error.type, error.message) if error is not None else "unknown"
        raise RunFailed(
            run,
            f"run {run.id!r} failed{where}: {ended(what)} Nothing that completed is lost: fix the cause and resume "
            f"{run.id!r}, or skip the node.",
        )
    if run.status == "cancelled":
        raise RunCancelled(run, f"run {run.id!r} was cancelled")
    return run
