"""`UnheldRuns` carries out requests to runs that no engine executes: it claims such a run, for one append or to drive it.

- A request that executes nothing (`pause cancel answer signal edit`) is recorded together with what waits in the inbox before it,
  in the append that also releases the lease. This needs no flow, except for an edit.
- A request that lets the run continue (`resume retry skip`) comes after what was asked before, each in an append of its own. Then
  the run is driven.

The request of a caller in this process need not be in the inbox: it goes into the append with its effect. A worker finds
requests there. It carries out the oldest, or a later one that supersedes it, before it continues the run; if its code does not
fit the run, it leaves the request to the other live workers, as long as one of them has not refused the run too: during a
rolling deploy, their code differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from holdfast.core.graph import Flow
from holdfast.core.run_state import FINAL, TAKEABLE
from holdfast.errors import HoldfastError, ResumeRefused, RunHeld
from holdfast.reading import history, inbox
from holdfast.reading.cases import list_takers
from holdfast.reading.inbox import AnyRequest
from holdfast.reading.known_flows import find_flow, require_flow
from holdfast.reading.relatives import children_of
from holdfast.reading.views import Run, run_view
from holdfast.runtime import recorders
from holdfast.runtime.creation import UNKNOWN
from holdfast.runtime.driver import Driver
from holdfast.runtime.holdings import lease_lost
from holdfast.runtime.journal import Journal
from holdfast.runtime.preparation import (
    NO_FUNCTIONS,
    Executing,
    Functions,
    Invalid,
    OtherCode,
    changes_nothing,
    prepare,
    recover_streams,
)
from holdfast.runtime.recorders import REFUSALS
from holdfast.runtime.rehearsals import refuse_stale
from holdfast.runtime.runner import Runner
from holdfast.storage.contract import Lease, RunRow
from holdfast.storage.verdicts import refuse_final


class UnheldRuns:
    """Carries out requests to runs that no engine executes."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._services = driver.services
        self._flows = driver.flows
        self._holdings = driver.services.holdings

    # --- a request ------------------------------------------------------------------------------------

    async def carry_out(
        self,
        run_id: str,
        request: AnyRequest,
        lease: Lease | None = None,
        known: Journal | None = None,
        *,
        functions: Functions = NO_FUNCTIONS,
        row: RunRow | None = None,
        leaves: bool = False,
    ) -> Journal | Runner:
        """Carry out a request to a run that no engine executes: claim the run, unless its lease is given. Returns the journal of
        the run, whose lease is released, or the runner with which the run is to be driven. If the lease is given, the request is
        in the inbox, and a refusal is recorded: with `leaves`, not if only the code of this engine does not fit (`OtherCode`).
        """
        try:
            if isinstance(request, Executing):
                return await self._begin(run_id, request, lease, functions, row)
            return await self._record(run_id, request, lease, known)
        except REFUSALS as refused:
            if lease is not None and not (leaves and isinstance(refused, OtherCode)):
                await self._record_refused(run_id, request, refused)
            raise

    def older(self, run_id: str, request: AnyRequest | None) -> list[AnyRequest]:
        """Return the requests in the inbox of a run that come before this one, oldest first: all of them if it is not there."""
        waiting = [inbox.read(one) for one in self._services.store.queues.waiting([run_id])]
        ids = [one.id for one in waiting]
        return waiting[: ids.index(request.id)] if request is not None and request.id in ids else waiting

    async def _claim_in_turn(
        self, run_id: str, request: AnyRequest | None, lease: Lease | None, row: RunRow | None = None
    ) -> tuple[Lease, bool]:
        """Claim a run for a request that executes it, when everything that was asked before is recorded. Returns the lease, and
        whether an older request lets the run continue already. `request` is None if it is not in the inbox. `row` is the row of
        the run, if it was read a moment ago.
        """
        continues = False
        while True:
            lease, row = lease or self.claim(run_id, row), None
            done: Journal | Runner | None = None
            try:
                older = [one for one in self.older(run_id, request) if not isinstance(one, inbox.ChildEnd)]
                if not older:
                    return lease, continues
                with suppress(*REFUSALS):  # recorded: its sender finds the refusal
                    done = await self.carry_out(run_id, recorders.first_of(older), lease)
                if isinstance(done, Journal) and done.state.status in FINAL:
                    self.driver.result(self.view(run_id, done))
                if isinstance(done, Runner):
                    await done.journal.save_and_wait()
                    lease, continues = self._holdings.claim(run_id), True  # each resume has its own fence
                else:
                    lease = None
            except BaseException:
                if lease is not None:
                    self._holdings.release(run_id, lease.fence)  # releasing a lease twice does no harm
                raise
            await asyncio.sleep(0)  # other coroutines get their turn, however many requests wait

    async def _begin(
        self,
        run_id: str,
        request: Executing,
        lease: Lease | None,
        functions: Functions,
        row: RunRow | None,
    ) -> Runner:
        """Let a run continue as a request says. Returns the runner with which it is to be driven."""
        is_posted = lease is not None
        lease, continues = await self._claim_in_turn(run_id, request, lease, row)
        journal = await self._prepare(lease, request, functions, is_posted=is_posted)
        if isinstance(request, inbox.Resume):
            journal.taken += [request.id] if is_posted else []
            return self.driver.runner(journal)
        runner = self.driver.runner(journal)
        try:
            runner.carry_out(inbox.checked(request))
        except BaseException as refused:
            # After an older retry, nothing is left to retry: the run continues all the same.
            if continues and isinstance(request, inbox.Retry) and isinstance(refused, ResumeRefused):
                if is_posted:
                    recorders.refuse(journal, request, refused)
                return runner
            self._holdings.release(run_id, journal.fence)
            raise
        return runner

    async def _record(
        self, run_id: str, request: AnyRequest, lease: Lease | None, known: Journal | None
    ) -> Journal:
        """Record a request without executing anything, which needs no flow (except an edit), and with it what becomes of the
        requests that wait since before. The append releases the lease. The log is not read again if it is still the log of
        `known`.
        """
        services, holdings = self._services, self._holdings
        lease = lease or holdings.claim(run_id, briefly=True)
        released = False
        try:
            row = services.store.run(run_id)
            is_known = known is not None and (known.saved_seq, known.digest) == (row.seq, row.digest)
            state = (
                known.state
                if known is not None and is_known
                else history.load(services.store, run_id, row=row)
            )
            refuse_final(run_id, state.status, request.traits.asked)
            flow = find_flow(self._services.store, self._flows, row)
            refuse_stale(services, flow, row, state, request, executed=False)
            journal = Journal(services, flow or UNKNOWN, state, row=row, fence=lease.fence)
            journal.tick()
            settle(journal, request, self.older(run_id, request), row, flow)
            is_over = state.status in FINAL  # an older request has cancelled it
            if not is_over:
                recorders.record_unexecuted(journal, request)
            if journal.unsaved:
                await journal.save_and_wait(release=True)
                released = True
            if journal.spills:  # of a cancelled run, which no engine executes again
                services.store.blobs.unspill(run_id, journal.spills)
        finally:
            if not released:
                holdings.release(run_id, lease.fence)
        if is_over:
            refuse_final(run_id, state.status, request.traits.asked)
        return journal

    # --- claiming -------------------------------------------------------------------------------------

    def claim(self, run_id: str, row: RunRow | None = None) -> Lease:
        """Claim a run that is to be executed here. `row` is its row, if it was read a moment ago. Raises `RunHeld`,
        `FlowNotFound`, and `ResumeRefused` if this engine stops.
        """
        self._may_execute(run_id, row)
        return self._holdings.claim(run_id)

    def _may_execute(self, run_id: str, row: RunRow | None = None) -> tuple[RunRow, Flow[Any]]:
        """Return the row of a run, and its flow, if this engine may execute it."""
        if run_id in self._holdings:
            raise RunHeld(run_id, "this engine")
        row = row or self._services.store.run(run_id)
        flow = require_flow(self._services.store, self._flows, row, run_id)
        if (stopping := self._holdings.stopping) is not None:
            raise ResumeRefused(
                run_id, f"this engine is stopping ({stopping}). Resume the run with another engine."
            )
        return row, flow

    async def _prepare(
        self,
        lease: Lease,
        asked: Executing | None,
        functions: Functions = NO_FUNCTIONS,
        *,
        is_posted: bool = False,
    ) -> Journal:
        """Record how a run that was claimed continues as `asked`. Returns its journal, which is not saved yet. If a validation
        refuses the state of the run, this is recorded as a refusal: of the request, if that is in the inbox (`is_posted`). The
        lease is released if this raises.
        """
        services, holdings, run_id = self._services, self._holdings, lease.run_id
        try:
            row, flow = self._may_execute(run_id)
            holdings.hold()
            if row.fence != lease.fence:
                raise lease_lost(services.store, run_id, services.holder)
            if asked is not None and inbox.expects_of(asked) is not None:
                head = history.load(services.store, run_id, row=row)
                refuse_stale(services, flow, row, head, asked, functions, executed=False)
            outlived = holdings.has_outlived(lease)
            journal = prepare(services, flow, row, lease.fence, asked, functions, outlived=outlived)
            return recover_streams(journal)
        except Invalid as refused:
            made = asked if is_posted and asked is not None else inbox.Resume(by=asked.by if asked else None)
            await self._save_refusal(run_id, lease.fence, made, refused)
            raise ResumeRefused(run_id, refused.reason) from refused.__cause__
        except BaseException:
            holdings.release(run_id, lease.fence)
            raise

    def is_done_already(self, row: RunRow, request: inbox.Resume, functions: Functions) -> bool:
        """Return whether a resume changes nothing, because the run is completed. Raises `PreviewStale` if it was not when the
        caller looked at the preview.
        """
        store = self._services.store
        if row.status != "completed" or not changes_nothing(request, functions):
            return False
        if request.expects is not None:
            head = history.load(store, row.run_id, row=row)
            flow = find_flow(store, self._flows, row)
            refuse_stale(self._services, flow, row, head, request, functions, executed=False)
        return True

    async def _save_refusal(
        self, run_id: str, fence: int, request: AnyRequest, refused: HoldfastError
    ) -> None:
        """Record in the log of a run that no engine executes that a request was refused, and release the lease, whatever
        happens.
        """
        store = self._services.store
        try:
            row = store.run(run_id)
            journal = Journal(
                self._services,
                find_flow(store, self._flows, row) or UNKNOWN,
                history.load(store, run_id, row=row),
                row=row,
                fence=fence,
            )
            journal.tick()
            recorders.refuse(journal, request, refused)
            await journal.save_and_wait(release=True)
        except BaseException:
            self._holdings.release(run_id, fence)
            raise

    # --- as a worker does -----------------------------------------------------------------------------

    async def drive(self, run_id: str, is_crowded: Callable[[], bool]) -> Run[Any] | None:
        """Claim a run, and drive it as a worker does: until it ends or only waits. Returns what `drive_claimed` returns."""
        lease = self._holdings.claim(run_id)
        try:
            # Another engine may have carried out the request for which a failed or paused run was to be driven.
            only_asked = self._services.store.run(run_id).status not in TAKEABLE
            return await self.drive_claimed(lease, is_crowded, only_asked=only_asked)
        except BaseException:
            self._holdings.release(run_id, lease.fence)  # releasing a lease twice does no harm
            raise

    async def drive_claimed(
        self, lease: Lease, is_crowded: Callable[[], bool], *, only_asked: bool = False
    ) -> Run[Any] | None:
        """Drive a run that was claimed, until it ends or only waits: then it is released. Returns None if there was only a
        request to record or to refuse. `only_asked` is true if the run was claimed only because it has a request. `is_crowded`
        returns whether the children of waiting runs need its place: then it leaves as soon as it only waits.
        """
        run_id = lease.run_id
        waiting = self.driver.waiting_requests(run_id)
        if not waiting and only_asked:  # another engine has carried the request out
            self._holdings.release(run_id, lease.fence)
            return None
        if waiting and self._come_first(run_id, waiting):
            return await self._carry_out_posted(lease, recorders.first_of(waiting))
        try:
            journal = await self._prepare(lease, None)
        except ResumeRefused:  # such as: the flow has changed
            if not waiting:
                raise
            return await self.record_posted(run_id, waiting[0])
        runner = Runner(journal)
        runner.leave_long_waits(is_crowded)
        return await self.driver.drive(journal, runner, waiting)

    def _come_first(self, run_id: str, waiting: list[AnyRequest]) -> bool:
        """Return whether the requests to a run that a worker has taken are carried out before it claims the run: because one of
        them resumes it, or because only a request may move it.
        """
        row = self._services.store.run(run_id)
        is_early = (
            row.status == "pending" and row.due_at is not None and row.due_at > self._services.store.now()
        )
        return is_early or row.status == "failed" or any(one.traits.executes for one in waiting)

    async def _carry_out_posted(self, lease: Lease, request: AnyRequest) -> Run[Any] | None:
        """Carry out a request in the inbox of a run that a worker has taken: the oldest, or one that supersedes it. Returns the
        run if it was executed or has ended, and None if there was only something to record. Raises `OtherCode` if the request
        is left to another worker.
        """
        if self._holdings.stopping is not None:  # it waits for another engine
            self._holdings.release(lease.run_id, lease.fence)
            return None
        try:
            done = await self.carry_out(lease.run_id, request, lease, leaves=True)
        except OtherCode as misfit:
            if self._another_may_take(lease.run_id):
                misfit.request = request.id
                raise
            await self._record_refused(lease.run_id, request, misfit)
            return None
        except REFUSALS:
            return None
        if isinstance(done, Journal):
            return self.view(lease.run_id, done) if done.state.status in FINAL else None
        done.leave_long_waits()
        return await self.driver.drive(done.journal, done)

    def _another_may_take(self, run_id: str) -> bool:
        """Return whether another live worker takes the flow of a run from its queue, and has not refused the run."""
        store = self._services.store
        out = {self._services.holder.id, *(one.holder for one in store.queues.refusals([run_id]))}
        takers = list_takers(store.run(run_id), store.queues.holders())
        return any(one.holder.id not in out for one in takers)

    async def record_posted(self, run_id: str, request: AnyRequest) -> Run[Any] | None:
        """Carry out the oldest request in the inbox of a run that this worker may not continue: recording it does not need the
        flow of the run. Returns what `_carry_out_posted` returns.
        """
        with suppress(RunHeld):
            lease = self._holdings.claim_for(run_id, request, briefly=True)
            return await self._carry_out_posted(lease, request) if lease is not None else None
        return None

    async def _record_refused(self, run_id: str, request: AnyRequest, refused: HoldfastError) -> None:
        """Record that a request cannot be carried out, and remove it from the inbox. If another engine has claimed the run
        meanwhile, that engine does so; if the run has ended, the store has marked the request as unmet.
        """
        with suppress(RunHeld):
            lease = self._holdings.claim_for(run_id, request, briefly=True)
            if lease is not None:
                await self._save_refusal(run_id, lease.fence, request, refused)

    # --- looking --------------------------------------------------------------------------------------

    def view(self, run_id: str, journal: Journal | None = None) -> Run[Any]:
        """Get a run as it is now. The log is not read again if it ends where `journal` does, in which a request was recorded."""
        store = self._services.store
        row = store.run(run_id)
        if journal is not None and journal.state.seq == row.seq:
            state, flow = journal.state, journal.flow if journal.flow is not UNKNOWN else None
        else:
            state, flow = history.load(store, run_id, row=row), find_flow(store, self._flows, row)
        return run_view(state, row, flow, children_of(store, state))


def settle(
    journal: Journal,
    request: inbox.AnyRequest,
    older: Iterable[inbox.AnyRequest],
    row: RunRow,
    flow: Flow[Any] | None,
) -> None:
    """Record what becomes of the requests that wait for a run which no engine executes, before `request` is recorded in the same
    append. Those that need not execute the run are carried out or refused, in their order; a pause or a cancel supersedes the
    others. What this engine cannot record without the flow stays in the inbox, and so does the end of a child.
    """
    for one in older:
        if journal.state.status in FINAL:
            return
        if one.traits.executes and not recorders.supersedes(request):
            return  # it came while this request was made: what is after it waits for it
        if one.traits.executes:
            recorders.supersede(journal, one, request)
        elif not isinstance(one, inbox.ChildEnd) and (flow is not None or not recorders.needs_flow(one)):
            _record_or_refuse(journal, one, row, flow)


def _record_or_refuse(
    journal: Journal, request: inbox.AnyRequest, row: RunRow, flow: Flow[Any] | None
) -> None:
    before = journal.state.seq
    try:
        refuse_stale(journal.services, flow, row, journal.state, request, executed=False)
        recorders.record_unexecuted(journal, request)
    except REFUSALS as refused:
        if journal.state.seq != before:  # never save a part of what a refused request recorded
            raise
        recorders.refuse(journal, request, refused)
