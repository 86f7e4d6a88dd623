"""Driving one run to its end in this engine, also through long waits.

A run that only waits, and long, leaves memory: it stays held, and is loaded from its log when its time comes or somebody
speaks. What waits costs its caller's coroutine and a timer; so ten thousand waiting runs fit into a small process.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.errors import FenceLost, StoreError
from holdfast.reading import history
from holdfast.reading.views import Run, run_view
from holdfast.runtime import settings
from holdfast.runtime.journal import Journal
from holdfast.runtime.keeping import Keeping
from holdfast.runtime.renewal import Renewal
from holdfast.runtime.runner import Asleep, Halt, Runner
from holdfast.runtime.services import Services
from holdfast.storage.contract import Request

_NAP_S = 1.0
"""A run that waits for less than this stays in memory: loading it again costs milliseconds."""
_GIVEN_UP_MAX = 10_000
"""Runs that were lost here and are kept in mind, in case nobody else takes them up."""


class Driving(Keeping):
    """What an engine does with a run that it holds."""

    settings: settings.Settings
    _runners: dict[str, Runner | Asleep]
    _asleep: int
    """How many of them are asleep."""
    _idle: asyncio.Event
    """Set exactly while there are none."""
    _given_up: dict[str, int]
    """Runs that had to be given up because the store did not answer -> the fence they were held with."""
    _renewal: Renewal | None
    _services: Services | None
    _stopping: str | None

    async def _drive(
        self, journal: Journal, runner: Runner | None = None, *, raises: bool = True
    ) -> Run[Any]:
        """Drive a run in this engine until it stops."""
        run_id, fence = journal.state.run_id, journal.fence
        runner = runner or self._runner(journal)
        self._runners[run_id] = runner
        self._idle.clear()
        self._poll()
        try:
            while True:
                if self._stopping is not None:
                    runner.halt(Halt("interrupt", reason=self._stopping))
                await runner.drive(self._waiting_requests(journal))
                until = runner.asleep_until
                if until is None:
                    break
                if runner.spoken_to or self._stopping is not None:  # since it fell asleep
                    until = 0.0
                del runner, journal
                journal = await self._sleep_on(run_id, fence, until)
                runner = self._runners[run_id] = self._runner(journal)
        except BaseException as fault:
            if isinstance(fault, StoreError):
                self._given_up[run_id] = fence
                if len(self._given_up) > _GIVEN_UP_MAX:  # somebody else has had the oldest by now
                    del self._given_up[next(iter(self._given_up))]
            self._release(run_id, fence)
            raise
        finally:
            last = self._runners.pop(run_id)
            if not self._runners:
                self._idle.set()
            self._saved(run_id)  # followers look again: nothing more comes from here
            if not last.done.done():
                last.done.set_result(None)
        run = run_view(journal.state, None, journal.flow)
        return self._result(run) if raises else run

    def _runner(self, journal: Journal) -> Runner:
        runner = Runner(journal)
        runner.patience_s = max(self.settings.park_after, _NAP_S)
        return runner

    async def _sleep_on(self, run_id: str, fence: int, until: float) -> Journal:
        """A run that only waits leaves memory, still held, until then or until somebody speaks."""
        services = self._open()
        asleep = self._runners[run_id] = Asleep(fence)
        clock = services.clock
        timer = clock.call_at(clock.now() + max(0.0, until - services.store.now()), asleep.wake)
        self._asleep += 1
        try:
            await asleep.done
        finally:
            self._asleep -= 1
            timer.cancel()
        if asleep.error is not None:
            raise asleep.error
        row = services.store.run(run_id)
        if row.fence != fence or row.holder is None or row.holder.id != services.holder.id:
            raise FenceLost(
                f"run {run_id!r} was taken over while it waited; nothing more of it is started here"
            )
        state = history.load(services.store, run_id, row=row)
        return Journal(services, self.flows[row.flow], state, row=row, fence=fence)

    def _waiting_requests(self, journal: Journal) -> list[Request]:
        """What was left for a run that is taken up again, before anything of it runs."""
        if not journal.saved_seq:
            return []
        services = self._open()
        return [
            request
            for request in services.store.inbox(services.holder.id)
            if request.run_id == journal.state.run_id
        ]

    def _release(self, run_id: str, fence: int) -> None:
        """Give a lease back, now or as soon as the store answers again."""
        services, renewal = self._services, self._renewal
        if services is None or renewal is None:
            return
        try:
            if renewal.sure:
                services.store.release(run_id, services.holder.id, fence)
                return
        except StoreError:
            pass
        renewal.owe(run_id, fence)

    # --- what the engine has for this -----------------------------------------------------------------

    def _poll(self) -> None:
        raise NotImplementedError

    def _saved(self, run_id: str) -> None:
        raise NotImplementedError
