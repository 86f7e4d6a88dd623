"""`Requests` carries out requests to a run (pause, retry, answer, …), whichever engine executes the run.

- A run that is executed here: its runner carries the request out.
- A run that another engine executes: the request goes into its inbox, where that engine finds it.
- A run that no engine executes: this engine claims it. `pause cancel answer signal` are recorded and the lease is released;
  `retry` and `skip` resume the run.

`operator.VERBS` is the table of how each verb is carried out. An answer is checked twice: here, for a clear error at
once, and again by the engine that appends it, because another answer may have come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.core import answers, events
from holdfast.core.graph import Flow
from holdfast.core.run_state import RunState
from holdfast.errors import AnswerRefused, ResumeRefused, RunHeld, SettingError, SignalRefused, end_sentence
from holdfast.reading import history, inbox
from holdfast.reading.inbox import AnyRequest
from holdfast.reading.views import Run, run_view
from holdfast.runtime import operator, questions
from holdfast.runtime.clock import sleep
from holdfast.runtime.creation import UNKNOWN
from holdfast.runtime.driver import Driver
from holdfast.runtime.followers import POLL_S
from holdfast.runtime.journal import Journal
from holdfast.runtime.operator import VERBS, check_by_and_reason
from holdfast.runtime.resume import TakeUp
from holdfast.runtime.runner import Runner
from holdfast.runtime.services import Services
from holdfast.storage.contract import Lease, RunRow
from holdfast.storage.rows import open_row
from holdfast.storage.verdicts import refuse_final

_ANSWER_POLLS = 100


class Requests:
    """Carries out requests to runs."""

    def __init__(self, services: Services, flows: Mapping[str, Flow[Any]], driver: Driver) -> None:
        self._services = services
        self._flows = flows
        self._driver = driver
        self._holdings = services.holdings

    # --- from a caller --------------------------------------------------------------------------------

    async def ask(self, run_id: str, request: AnyRequest) -> Run[Any]:
        """Carry a request out, or leave it to the engine that executes the run."""
        run, _ = await self._ask(run_id, request)
        return run

    async def _ask(
        self, run_id: str, request: AnyRequest, *, posted: bool = False, known: Journal | None = None
    ) -> tuple[Run[Any], bool]:
        """Carry a request out, or leave it in the inbox for the engine that executes the run. Returns the run, and True if the
        request was carried out here because no engine executes the run. `posted` is True if the request is in the inbox
        already. `known` is the journal of the run, read a moment ago; it saves reading the log again.
        """
        store, asked = self._services.store, VERBS[request.verb].asked
        if not request.id:
            request = msgspec.structs.replace(request, id=f"{self._services.luck.getrandbits(96):024x}")
        check_by_and_reason(request.by, request.reason)
        row = store.run(run_id)
        refuse_final(run_id, row.status, asked)
        held = self._holdings.get(run_id)
        if held is None and not row.held:
            with suppress(RunHeld):
                return await self._ask_idle(run_id, request, posted=posted, known=known)
        store.post(run_id, inbox.stored_form(request))
        if held is not None:
            held.request(request)
        elif not store.run(run_id).held:  # its holder has released it before it could find the request
            with suppress(RunHeld):
                return await self._ask_idle(run_id, request, posted=True, known=known)
        return self.view(run_id), False

    async def _ask_idle(
        self, run_id: str, request: AnyRequest, *, posted: bool, known: Journal | None
    ) -> tuple[Run[Any], bool]:
        """Carry out a request to a run that no engine executes. `posted` is True if the request is in the inbox, where another
        engine may have found it. Returns what `_ask` returns.
        """
        lease, executes = None, VERBS[request.verb].executes
        if posted:
            lease = self._holdings.claim_for(run_id, request, briefly=not executes)
            if lease is None:
                return self.view(run_id), False
        run = await self.carry_out(run_id, request, lease, known)
        return self._driver.result(run) if executes else run, True

    async def answer(self, run_id: str, request: inbox.Answer) -> Run[Any]:
        """Answer a question, by its key or by the name of its node, and wait until the answer is in the log."""
        known = self._look_at(run_id, VERBS["answer"].asked)
        value = questions.plain(request.value, "answer")
        key = questions.check(known, request.key, value, update=request.update)
        request = msgspec.structs.replace(request, key=key, value=value)
        run, is_recorded = await self._ask(run_id, request, known=known)
        if is_recorded:
            return run
        await self._until_answered(run_id, request)
        return run if run.questions == () else self.view(run_id)

    async def _until_answered(self, run_id: str, request: inbox.Answer) -> None:
        """Wait, a few seconds at most, until the answer is in the log. Raises `AnswerRefused` if another answer came first."""
        store, key = self._services.store, request.key
        for _ in range(_ANSWER_POLLS):
            for row in store.events(run_id, kinds=("QuestionAnswered",)):
                answered = open_row(row, store.blobs).event
                if answered.key == key:
                    if (answered.answer, answered.by) != (request.value, request.by):
                        raise AnswerRefused(run_id, key, questions.said_already(answered))
                    return
            if key not in history.load(store, run_id).questions:
                raise AnswerRefused(run_id, key, "the question was closed before the answer was recorded")
            await sleep(self._services.clock, POLL_S / 4)

    async def signal(self, run_id: str, request: inbox.Signal, *, has_id: bool) -> Run[Any]:
        """Send a signal. `has_id` is True if the sender gave the signal its id: a second signal with that id then changes
        nothing, because the inbox remembers ids. Raises `SignalRefused` if the payload does not fit the wait that would receive
        it. A wait that begins after this check sets a payload that does not fit aside.
        """
        store, known = self._services.store, self._look_at(run_id, VERBS["signal"].asked)
        request = msgspec.structs.replace(request, payload=questions.plain(request.payload, "payload"))
        left = inbox.stored_form(request)
        wrong = _misfit(known.state, request)
        if wrong is not None and (count := self._on_their_way(run_id, request.name)):
            # Read the log again: one that has arrived meanwhile must not be counted in neither place.
            wrong = _misfit(self._look_at(run_id, VERBS["signal"].asked).state, request, count)
        if wrong is not None and (not has_id or store.post(run_id, left, only_look=True)):
            raise SignalRefused(run_id, request.name, wrong)
        if has_id and not store.post(run_id, left):
            return msgspec.structs.replace(self.view(run_id), repeated=True)
        run, _ = await self._ask(run_id, request, posted=has_id, known=known)
        return run

    def _on_their_way(self, run_id: str, name: str) -> int:
        """How many signals of that name were sent to the run, and are not in its log yet because another engine holds it."""
        store = self._services.store
        holder = store.run(run_id).holder
        left = inbox.requests_to(run_id, store.inbox(holder.id)) if holder is not None else []
        return sum(isinstance(request, inbox.Signal) and request.name == name for request in left)

    # --- for a run that no engine executes ------------------------------------------------------------

    async def carry_out(
        self, run_id: str, request: AnyRequest, lease: Lease | None = None, known: Journal | None = None
    ) -> Run[Any]:
        """Carry out a request to a run that no engine executes: claim the run, unless its lease is given, and release it."""
        if not VERBS[request.verb].executes:
            return await self._record(run_id, request, lease, known)
        take_up = TakeUp(nodes=[], named=True, by=request.by, reason=request.reason)
        journal = await self._driver.take_up(run_id, take_up, lease)
        runner = Runner(journal)
        try:
            runner.obey(request)
        except BaseException:
            self._holdings.release(run_id, journal.fence)
            raise
        return await self._driver.drive(journal, runner)

    async def _record(
        self, run_id: str, request: AnyRequest, lease: Lease | None, known: Journal | None
    ) -> Run[Any]:
        """Record a request without executing anything, which needs no flow. The append releases the lease. The log is not read
        again if it is still the log of `known`.
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
            refuse_final(run_id, state.status, VERBS[request.verb].asked)
            flow = self._flows.get(row.flow)
            journal = Journal(services, flow or UNKNOWN, state, row=row, fence=lease.fence)
            journal.tick()
            operator.record_unexecuted(journal, request)
            if journal.unsaved:
                await journal.save_and_wait(release=True)
                released = True
            if journal.spills:  # of a cancelled run, which no engine executes again
                services.store.blobs.unspill(run_id, journal.spills)
        finally:
            if not released:
                holdings.release(run_id, lease.fence)
        fits = flow is not None and state.state_version == flow.definition.state_version
        return run_view(state, services.store.run(run_id), flow if fits else None)

    # --- from an inbox, with a lease ------------------------------------------------------------------

    async def carry_out_waiting(self, lease: Lease) -> Run[Any]:
        """Carry out the oldest request in the inbox of a run whose last holder stopped before it found the request."""
        services, run_id = self._services, lease.run_id
        waiting = next(iter(inbox.requests_to(run_id, services.store.inbox(services.holder.id))), None)
        if waiting is None:  # another engine has carried it out
            self._holdings.release(run_id, lease.fence)
            return self.view(run_id)
        try:
            return await self.carry_out(run_id, waiting, lease)
        except (ResumeRefused, AnswerRefused, SettingError) as refused:
            await self._record_refused(run_id, waiting, str(refused))
            return self.view(run_id)

    async def _record_refused(self, run_id: str, request: AnyRequest, refused: str) -> None:
        """Record that a request cannot be carried out, and remove it from the inbox."""
        lease = self._holdings.claim(run_id)
        journal = self._journal(self._services.store.run(run_id), lease.fence)
        journal.tick()
        journal.taken.append(request.id)
        journal.record(events.ResumeRefused(reason=refused, by=request.by))
        await journal.save_and_wait(release=True)

    # --- looking --------------------------------------------------------------------------------------

    def view(self, run_id: str) -> Run[Any]:
        """Get a run as it is now."""
        store = self._services.store
        row = store.run(run_id)
        state = history.load(store, run_id, row=row)
        flow = self._flows.get(row.flow)
        fits = flow is not None and state.state_version == flow.definition.state_version
        return run_view(state, row, flow if fits else None)

    def _look_at(self, run_id: str, asked: str) -> Journal:
        """Create a journal from which a run is only read: it has no lease."""
        row = self._services.store.run(run_id)
        refuse_final(run_id, row.status, asked)
        return self._journal(row, 0)

    def _journal(self, row: RunRow, fence: int) -> Journal:
        services = self._services
        state = history.load(services.store, row.run_id, row=row)
        return Journal(services, self._flows.get(row.flow) or UNKNOWN, state, row=row, fence=fence)


def _misfit(state: RunState, request: inbox.Signal, on_their_way: int = 0) -> str | None:
    """Why a signal does not fit the wait that would receive it; None if it does, or if nothing waits for it. The oldest waits get
    the signals that are `on_their_way`.
    """
    waits = [wait for wait in state.waits.values() if wait.signal == request.name][on_their_way:]
    if not waits:
        return None
    wrong = answers.misfit(request.payload, (), waits[0].payload_schema, what="payload")
    return f"{end_sentence(wrong)} Node {waits[0].node!r} waits for it; send what fits." if wrong else None
