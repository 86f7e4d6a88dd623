"""The verbs that read, as an engine has them: each awaits a `Reader` on a thread of its own, so that none stops a running node.

No verb here needs the run's flow; where it is known, states are typed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, ParamSpec, TypeVar, overload

from holdfast.core.graph import Flow
from holdfast.core.run_state import GOING
from holdfast.errors import RunCancelled, RunFailed, ended, named
from holdfast.reading.chunks import Chunk
from holdfast.reading.history import Checkpoint
from holdfast.reading.reader import Reader, in_asking_order
from holdfast.reading.views import AskedQuestion, EventView, Run, RunSummary
from holdfast.runtime.clock import Clock, sleep
from holdfast.runtime.followers import POLL_S, Followers
from holdfast.runtime.runner import Asleep, Runner
from holdfast.runtime.services import Services
from holdfast.storage.contract import RunStatus, Store

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class ReadingThread:
    """One thread for everything that an engine reads and that no step waits for. With `inline` the event loop does it itself.

    It is not one of the threads that call nodes: those may all be busy for hours.
    """

    def __init__(self, *, inline: bool = False) -> None:
        self._inline = inline
        self._thread: ThreadPoolExecutor | None = None

    async def call(self, read: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Await a call on the thread. Calls are made in the order they were asked for."""
        if self._inline:
            return read(*args, **options)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-reader")
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: read(*args, **options))

    def close(self) -> None:
        """Let the thread end. A call that is still to be made then meets a closed store, and says so."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None


class Reading:
    """What an engine can tell."""

    flows: dict[str, Flow[Any]]
    _clock: Clock
    _followers: Followers
    _reading: ReadingThread
    _runners: dict[str, Runner | Asleep]

    @property
    def store(self) -> Store:
        """The open store."""
        return self._open().store

    @property
    def reader(self) -> Reader:
        """What reads the open store, without an event loop."""
        return Reader(self._open().store, self.flows)

    def _open(self) -> Services:
        raise NotImplementedError

    async def get(self, run_id: str) -> Run[Any]:
        """One run as it is now; its state is typed where the flow is known."""
        return await self._reading.call(self.reader.get, run_id)

    async def runs(
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
        return await self._reading.call(
            self.reader.runs,
            status=status,
            flow=flow,
            labels=labels,
            parent=parent,
            before=before,
            limit=limit,
        )

    async def state(self, run: str, checkpoint: str | int | None = None) -> Any:
        """The state at a checkpoint (default: at the end): typed where the flow is known."""
        return await self._reading.call(self.reader.state, run, checkpoint)

    async def events(
        self, run_id: str, after: int = 0, node: str | None = None, kind: str | None = None
    ) -> list[EventView]:
        """Stored events, oldest first."""
        return await self._reading.call(self.reader.events, run_id, after, node, kind)

    async def checkpoints(self, run_id: str) -> list[Checkpoint]:
        """Every place the run can be resumed or forked from, oldest first."""
        return await self._reading.call(self.reader.checkpoints, run_id)

    @overload
    def follow(
        self, run_id: str, after: int = 0, *, chunks: Literal[False] = False
    ) -> AsyncIterator[EventView]: ...

    @overload
    def follow(
        self, run_id: str, after: int = 0, *, chunks: Literal[True]
    ) -> AsyncIterator[EventView | Chunk]: ...

    def follow(self, run_id: str, after: int = 0, *, chunks: bool = False) -> AsyncIterator[Any]:
        """Events as they become durable, without gap or repeat, until the run has stopped. With `chunks` also what its nodes
        stream, as it comes.
        """
        return self._followers.follow(
            self._open().store,
            self._clock,
            run_id,
            after,
            chunks=chunks,
            is_here=self._runners.__contains__,
            read=self._reading.call,
        )

    async def questions(self, run_id: str | None = None) -> list[AskedQuestion]:
        """The open questions of one run, or of all runs, oldest first."""
        rest = self.reader.question_pages(run_id)
        pages: list[list[AskedQuestion]] = []
        # One page at a time: between two of them the event loop and shorter reads get their turn.
        while (page := await self._reading.call(next, rest, None)) is not None:
            pages.append(page)
        return in_asking_order(pages)

    async def wait(self, run_id: str, timeout: float | None = None) -> Run[Any]:
        """Wait until a run has stopped, in whichever process it is executed. Raises `TimeoutError` when that takes too long."""
        services = self._open()
        deadline = None if timeout is None else services.clock.now() + timeout
        while True:
            runner = self._runners.get(run_id)
            row = await self._reading.call(services.store.run, run_id)
            stopped = row.status not in GOING or (row.status == "waiting" and not row.held)
            if runner is None and stopped:
                return self._result(await self.get(run_id))
            if deadline is not None and services.clock.now() >= deadline:
                raise TimeoutError(f"run {run_id!r} is still {row.status} after {timeout:g} s")
            left = POLL_S if deadline is None else min(POLL_S, deadline - services.clock.now())
            await sleep(services.clock, left)

    def _view(self, run_id: str, flow: Flow[Any] | None = None) -> Run[Any]:
        return self.reader.get(run_id, flow)

    def _result(self, run: Run[S]) -> Run[S]:
        """A run, or the exception that says how it ended."""
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
