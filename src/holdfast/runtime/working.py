"""The verb `work`: an engine as a worker, and how it carries on one run that it has got.

The claim was made when it was taken from its queue; from there on it is what `resume` does, but for one thing: nobody asked. So
the run is claimed (`RunClaimed`), not resumed: what failed stays failed, what is paused stays paused, and the time that a run
may take goes on. A run that only waits, and long, is left to whichever worker is there when its time comes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from holdfast.core import events
from holdfast.errors import AnswerRefused, ResumeRefused, SettingError, StoreBusy
from holdfast.reading import history
from holdfast.reading.views import Run
from holdfast.runtime.creation import UNKNOWN, check_queue
from holdfast.runtime.driving import Driving
from holdfast.runtime.journal import Journal
from holdfast.runtime.news import Ear
from holdfast.runtime.resume import Wish
from holdfast.runtime.runner import Runner
from holdfast.runtime.worker import Trouble, Until, Worker
from holdfast.storage.contract import Lease, Request
from holdfast.storage.queues import Taken

_SOON_S = 1.0
"""How long a worker keeps a run that only waits, at most."""


class Working(Driving):
    """What an engine does as a worker."""

    _ear: Ear | None
    _worker: Worker | None

    async def work(
        self,
        *,
        concurrency: int | None = None,
        queues: Collection[str] = (),
        until: Until | None = None,
        on_end: Callable[[Run[Any]], None] | None = None,
        on_report: Callable[[Trouble], None] | None = None,
        on_drain: Callable[[int], None] | None = None,
    ) -> None:
        """Be a worker: carry on whatever is on offer of the flows that this engine knows, at most `concurrency` runs at a
        time, of these `queues` or of all. Returns when the engine is stopped, or when `until` says so: a function that
        returns true, or "idle" for when nothing is left to do now. What runs then is waited for.

        `on_end` is called with every run that has stopped here, `on_report` with every trouble (default: it is logged), and
        `on_drain` with the number of runs that still go when nothing more is taken.
        """
        if self._worker is not None:
            raise SettingError("this engine works already; give it a higher concurrency, or open another")
        services = self._open()
        self._worker = Worker(
            services,
            self.flows,
            carry=self._carry,
            hold=self._hold,
            release=self._release,
            doubt=self._doubt,
            stopping=lambda: self._stopping is not None,
            ear=self._ear,
            concurrency=_checked(self.settings.concurrency if concurrency is None else concurrency),
            queues=tuple(check_queue(queue) for queue in _several(queues)),
            until=until,
            on_end=on_end,
            on_report=on_report,
            on_drain=on_drain,
        )
        try:
            await self._worker.work()
        finally:
            self._worker = None

    async def _carry(self, taken: Taken) -> Run[Any]:
        """Carry on a run that was taken from a queue, as far as it goes now."""
        run_id = taken.lease.run_id
        if taken.why == "asked" and self.store.run(run_id).status == "failed":
            return await self._do_as_asked(taken.lease)
        journal = await self._take_up(run_id, Wish(claims=True), taken.lease)
        runner = Runner(journal)
        # What waits has a slot and a place in its queue that others could use.
        runner.park_after_s = runner.patience_s = min(self.settings.park_after, _SOON_S)
        runner.leaves = True
        return await self._drive(journal, runner, raises=False)

    async def _do_as_asked(self, lease: Lease) -> Run[Any]:
        """Somebody left a request for a run that has failed, and its holder was gone before it could see it."""
        services = self._open()
        waiting = [wish for wish in services.store.inbox(services.holder.id) if wish.run_id == lease.run_id]
        if not waiting:  # somebody else has seen to it
            self._release(lease.run_id, lease.fence)
            return self._view(lease.run_id)
        try:
            return await self._operate_on_idle(lease.run_id, waiting[0], lease, raises=False)
        except (ResumeRefused, AnswerRefused, SettingError) as refused:
            await self._record_refused(lease.run_id, waiting[0], str(refused))
            return self._view(lease.run_id)

    async def _record_refused(self, run_id: str, request: Request, refused: str) -> None:
        """Nothing can be done with a request: the log says so, and it leaves the inbox."""
        services = self._open()
        lease = self._claim(run_id)
        row = services.store.run(run_id)
        state = history.load(services.store, run_id, row=row)
        flow = self.flows.get(row.flow) or UNKNOWN
        journal = Journal(services, flow, state, row=row, fence=lease.fence)
        journal.tick()
        journal.taken.append(request.id)
        journal.record(events.ResumeRefused(reason=refused, by=request.by))
        await journal.saved(release=True)

    def _claim_with(self, run_id: str, request: Request) -> Lease | None:
        """Claim a run for a request in its inbox; None where that has left it: whoever held the run has seen to it."""
        services = self._open()
        lease = self._claim(run_id)
        waits = False
        try:
            waits = any(wish.id == request.id for wish in services.store.inbox(services.holder.id))
        finally:
            if not waits:
                self._release(run_id, lease.fence)
        return lease if waits else None

    def _claim(self, run_id: str) -> Lease:
        """Take the lease of a run. Where no reply comes it may be ours all the same."""
        services = self._open()
        self._hold()
        try:
            return services.store.claim(run_id, services.holder)
        except StoreBusy:
            self._doubt()
            raise

    def _doubt(self) -> None:
        if self._renewal is not None:
            self._renewal.doubt()

    def _executes(self, run_id: str) -> bool | None:
        return run_id in self._runners or (self._worker is not None and self._worker.has(run_id))

    # --- what the engine has for this -----------------------------------------------------------------

    async def _take_up(self, run_id: str, wish: Wish, lease: Lease | None = None) -> Journal:
        raise NotImplementedError

    async def _operate_on_idle(
        self,
        run_id: str,
        request: Request,
        lease: Lease | None = None,
        *,
        raises: bool = True,
        posted: bool = False,
    ) -> Run[Any]:
        raise NotImplementedError


def _checked(concurrency: Any) -> int:
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise SettingError(f"concurrency={concurrency!r}: give a whole number, at least 1")
    return concurrency


def _several(queues: Any) -> Collection[str]:
    if isinstance(queues, str):
        raise SettingError(f"queues={queues!r}: give a list of names, as in [{queues!r}]")
    return queues  # type: ignore[no-any-return]
