"""`Driver` drives runs that were claimed until they stop, also through long waits. It waits for runs of other engines, too.

A run that waits for a long time leaves memory: it stays held, and is loaded from its log when it is due or when a request
arrives. Until then it costs only its caller's coroutine and a timer, so ten thousand waiting runs fit into a small process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

from holdfast.core.run_state import ENDED
from holdfast.errors import (
    FenceLost,
    RunNotFound,
    StoreError,
)
from holdfast.reading import history, inbox
from holdfast.reading.inbox import AnyRequest
from holdfast.reading.known_flows import Flows, require_flow
from holdfast.reading.relatives import WaitedFor, check_waited_for, children_of, has_stopped
from holdfast.reading.views import Run, result_of, run_view
from holdfast.runtime import failures, nesting
from holdfast.runtime.clock import sleep
from holdfast.runtime.followers import POLL_S
from holdfast.runtime.holdings import Asleep, Halt, HeldRun
from holdfast.runtime.journal import Journal
from holdfast.runtime.news import Ear
from holdfast.runtime.preparation import (
    recall_streams,
)
from holdfast.runtime.runner import LongWait, Runner
from holdfast.runtime.services import Services
from holdfast.storage.contract import RunRow

S = TypeVar("S")

_NAP_S = 1.0
"""A run that waits for fewer seconds than this stays in memory, because loading it again costs milliseconds."""
_SOON_OVER = 10
"""How many times the inbox is polled before a thread listens for news of it."""
_UNHEARD_S = 5.0
"""Seconds without news after which the inbox is read anyway."""


class Driver:
    """Drives runs."""

    def __init__(self, services: Services, flows: Flows) -> None:
        self.services = services
        self.flows = flows
        self._holdings = services.holdings
        self._ear: Ear | None = None
        self._watching: asyncio.Task[None] | None = None

    # --- joining --------------------------------------------------------------------------------------

    async def join(self, run_id: str, faults: list[BaseException]) -> bool:
        """Wait for a run that another call or engine executes, until it has stopped or its holder has disappeared. Returns
        whether the caller should resume it: not if it has ended, if its holder has left it to an operator, or if this engine
        stops. If it fails in this engine meanwhile, the exception of its node is put into `faults`.
        """
        holdings, has_waited = self._holdings, False
        with holdings.joining() as news:
            while True:
                held = holdings.get(
                    run_id
                )  # before the row is read: a run that leaves meanwhile has not crashed
                row = await self._find_row(run_id, is_here=held is not None)
                if held is None and row is not None:
                    if row.status in ENDED:
                        return False
                    is_stopping = holdings.stopping is not None
                    if not row.held:
                        return not has_waited or not (is_stopping or _waits_for_an_operator(row))
                    if is_stopping:
                        return False
                has_waited = True
                await self._hear(news, held)
                if isinstance(held, Runner) and (fault := held.journal.fault) is not None:
                    faults[:] = [failures.without_our_frames(fault)]

    async def until_stopped(self, run_id: str, timeout: float | None, until: WaitedFor = "stopped") -> None:
        """Wait until a run has stopped or ended, in whichever process it is executed. Raises `TimeoutError`, `RunHeld` and
        `SettingError`: see `Engine.wait`.
        """
        check_waited_for(until)
        services = self.services
        deadline = None if timeout is None else services.clock.now() + timeout
        way_out = "Give wait() a timeout, or wait for the run outside of its nodes."
        with nesting.waiting_for(services.store.generation, run_id, way_out, refuse=timeout is None):
            while True:
                runner = self._holdings.get(run_id)
                row = await services.reading.call(services.store.run, run_id)
                if runner is None and await services.reading.call(has_stopped, services.store, row, until):
                    return
                if deadline is not None and services.clock.now() >= deadline:
                    raise TimeoutError(
                        f"run {run_id!r} is still {row.status} after {timeout:g} s. The run is not affected; "
                        "you can wait for it again."
                    )
                left = POLL_S if deadline is None else min(POLL_S, deadline - services.clock.now())
                await sleep(services.clock, left)

    async def _find_row(self, run_id: str, *, is_here: bool) -> RunRow | None:
        try:
            return await self.services.reading.call(self.services.store.run, run_id)
        except RunNotFound:
            if not is_here:
                raise
            return None  # the first append of the run is under way here

    async def _hear(self, news: asyncio.Event, held: HeldRun | None) -> None:
        """Wait until it is time to look at the run again, or until it has stopped if it is executed here."""
        clock = self.services.clock
        news.clear()
        timer = clock.call_at(clock.now() + POLL_S, news.set)

        def wake(_: object) -> None:
            news.set()

        if held is not None:
            held.done.add_done_callback(wake)
        try:
            await news.wait()
        finally:
            timer.cancel()
            if held is not None:
                held.done.remove_done_callback(wake)

    # --- driving --------------------------------------------------------------------------------------

    async def drive(
        self, journal: Journal, runner: Runner | None = None, requests: list[AnyRequest] | None = None
    ) -> Run[Any]:
        """Drive a run until it stops. Returns the run as it is then, even if it has failed or was cancelled. `requests` are those
        in its inbox, if they were read already.
        """
        run_id, fence, holdings = journal.state.run_id, journal.fence, self._holdings
        runner = runner or self.runner(journal)
        holdings.add(run_id, runner)
        self._watch()
        try:
            while True:
                if holdings.stopping is not None:
                    runner.halt(Halt("interrupt", reason=holdings.stopping))
                if requests is None:
                    requests = self.waiting_requests(run_id) if journal.saved_seq else []
                await runner.drive(requests)
                requests = None
                until = runner.asleep_until
                if until is None:
                    break
                if runner.has_requests or holdings.stopping is not None:  # since it fell asleep
                    until = 0.0
                del runner, journal  # nothing keeps a sleeping run in memory
                journal = await self._sleep_on(run_id, fence, until)
                runner = self.runner(journal)
                holdings.add(run_id, runner)
        except BaseException as fault:
            if isinstance(fault, StoreError):
                holdings.give_up(run_id, fence)
            holdings.release(run_id, fence)
            raise
        finally:
            last = holdings.remove(run_id)
            self.services.listeners.saved(run_id)  # followers look again: no more events come from here
            if not last.done.done():
                last.done.set_result(None)
        if journal.fault is not None:
            self.services.faults[run_id] = journal.fault
        state = journal.state
        children = children_of(self.services.store, state) if state.called else ()
        return run_view(state, None, journal.flow, children, load=journal.load)

    async def drive_family(
        self, run_id: str, drive: Awaitable[Run[Any]], *, is_new: bool = False
    ) -> Run[Any]:
        """Drive a run with `drive`, and execute its family with it, until all of it has ended or can only wait. Returns the run
        as it is then. `is_new` is true if the run had no children before: then nothing more is done for a run that starts none.
        """
        services = self.services
        try:
            run = await drive
        except BaseException:
            if services.made_families is not None:
                await services.made_families.abandon(run_id)
            raise
        if is_new and services.made_families is None:
            return run
        return await services.families.finish(run_id, run, is_new=is_new)

    async def settle_families(self) -> None:
        """Wait until the children of runs that were cancelled here are cancelled, if no engine executes them."""
        if self.services.made_families is not None:
            await self.services.made_families.settle()

    def result(self, run: Run[S]) -> Run[S]:
        """Return a run that was driven and has completed or waits. Raises `RunFailed`, from the exception of its node where that
        was raised here, or `RunCancelled`.
        """
        fault = self.services.faults.pop(run.id, None)
        return result_of(run, fault=failures.without_our_frames(fault) if fault is not None else None)

    def runner(self, journal: Journal) -> Runner:
        """Return the runner with which a caller drives a run: one that waits for a long time leaves memory."""
        runner = Runner(journal)
        runner.on_long_wait, runner.patience_s = LongWait.SLEEP, max(self.services.park_soon, _NAP_S)
        return runner

    async def _sleep_on(self, run_id: str, fence: int, until: float) -> Journal:
        """Hold a waiting run, but not in memory, until it is due or a request arrives. Returns its new journal."""
        services, clock = self.services, self.services.clock
        asleep = Asleep(fence)
        with self._holdings.sleeping(run_id, asleep):
            timer = clock.call_at(clock.now() + max(0.0, until - services.store.now()), asleep.wake)
            try:
                await asleep.done
            finally:
                timer.cancel()
        if asleep.error is not None:
            raise asleep.error
        row = services.store.run(run_id)
        if row.fence != fence or row.holder is None or row.holder.id != services.holder.id:
            raise FenceLost(
                f"run {run_id!r} was taken over by another process while it waited; it is not continued here"
            )
        state = history.load(services.store, run_id, row=row)
        flow = require_flow(services.store, self.flows, state, run_id)
        return recall_streams(Journal(services, flow, state, row=row, fence=fence))

    # --- requests to the runs that are driven here ----------------------------------------------------

    def waiting_requests(self, run_id: str) -> list[AnyRequest]:
        """Return the requests that are in the inbox of a run which this engine holds, oldest first."""
        services = self.services
        return [inbox.read(one) for one in services.store.inbox(services.holder.id, run_id=run_id)]

    def _watch(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch_inbox())

    async def _watch_inbox(self) -> None:
        """Pass requests on to the runs that are driven here, as long as there are any."""
        services, holdings, looks = self.services, self._holdings, 0
        while len(holdings):
            await sleep(services.clock, POLL_S)
            looks += 1
            if looks > _SOON_OVER and (ear := self.ear) is not None:
                await ear.wait(services.clock, _UNHEARD_S)
            else:
                holdings.keep()
            with suppress(StoreError):  # read again in the next round; only an append that fails stops a run
                for stored in await services.reading.call(services.store.inbox, services.holder.id):
                    held = holdings.get(stored.run_id)
                    if held is not None:
                        held.request(inbox.read(stored))

    @property
    def ear(self) -> Ear | None:
        """The object that listens for news of the store, created at its first use; None in an engine without threads."""
        if self._ear is None and not self.services.inline:
            self._ear = Ear(self.services.store.queues)
        return self._ear

    def close(self) -> None:
        """Stop reading the inbox."""
        if self._watching is not None:
            self._watching.cancel()
        if self._ear is not None:
            self._ear.close()


def _waits_for_an_operator(row: RunRow) -> bool:
    """Return whether a run that no engine executes continues only after an answer, a signal or a resume."""
    return row.status == "paused" or (row.status == "waiting" and row.due_at is None)
