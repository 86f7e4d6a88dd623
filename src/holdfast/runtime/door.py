"""`Door`: where every request to a run is handed in, as a record of `core.requests`, whichever process executes the run.

`ask` does the same for every verb: it makes the request storable and checks it, leaves it for the engine that executes the run,
lets that engine know, and waits for what comes of it. Who holds the run decides only who carries the request out:

- This engine: its runner, which hears of the request at once.
- Another engine, which finds the request in the inbox of the run. The caller waits a few seconds for it, and gets the exception
  that it would have got from this engine.
- None: this engine claims the run and carries out what waits in its inbox, as a worker does, and then the request
  (`UnheldRuns`). A request that was not put into the inbox goes into the append with its effect.

An answer is checked twice: here, for a clear error at once, and again by the engine that appends it, because another answer may
have come first. Only a local resume is not left for an engine that executes the run: the run moves already.

Every request that was put into an inbox ends in one of three ways, each in one append: it is carried out, it is recorded as
refused (`RequestRefused`), or its run ends first, and the store marks it as unmet. Until then it waits, and any engine that
holds the run may carry it out, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from holdfast.core import answers
from holdfast.core.events import VALUE_PARTS
from holdfast.core.graph import Flow
from holdfast.core.requests import MAKING, RECORDS
from holdfast.core.run_state import FINAL, HALTED, RunState
from holdfast.core.situation import FLOW_FILE, RUN_BASE_WANTED
from holdfast.core.verb_options import foreseen_options
from holdfast.errors import (
    AnswerRefused,
    RequestExists,
    ResumeRefused,
    RunHeld,
    RunOver,
    SettingError,
    SignalRefused,
    did_you_mean,
    end_sentence,
    rebuild_refusal,
)
from holdfast.reading import history, inbox, previews
from holdfast.reading.inbox import AnyRequest
from holdfast.reading.known_flows import find_flow, require_flow
from holdfast.reading.previews import Preview
from holdfast.reading.reader import Reader
from holdfast.reading.remedies import CommandLine
from holdfast.reading.views import Run, mark_repeated
from holdfast.runtime import nesting, questions, recorders
from holdfast.runtime.clock import sleep
from holdfast.runtime.creation import UNKNOWN, Forking, preview_fork, read_fork
from holdfast.runtime.followers import POLL_S
from holdfast.runtime.journal import Journal
from holdfast.runtime.preparation import (
    NO_FUNCTIONS,
    Functions,
    changes_nothing,
    edited,
    naming_misfit,
    prepare_unchecked,
    read_resume,
)
from holdfast.runtime.recorders import check_by_and_reason
from holdfast.runtime.rehearsals import rehearse
from holdfast.runtime.runner import Runner
from holdfast.runtime.unheld_runs import UnheldRuns
from holdfast.storage.contract import RunRow, Store
from holdfast.storage.rows import open_row
from holdfast.storage.verdicts import refuse_final

R = TypeVar("R", bound=AnyRequest)

_OPTIONS: Mapping[str, tuple[str, ...]] = {
    **{
        verb: tuple(foreseen_options(kind))
        for verb, kind in (RECORDS | MAKING).items()
        if kind.traits.previewed
    },
    "resume": tuple(dict.fromkeys((*foreseen_options(inbox.Resume), *Functions.__struct_fields__))),
}
"""Verb that has a preview -> the options that may be given to the preview."""

_ID_MAX = 512
"""How many characters the id of a request may have: PostgreSQL cannot index much longer ones."""
_LOOK_S = POLL_S / 4
_LOOKS = 100
"""How often a caller looks whether its request was carried out, every `_LOOK_S` seconds, before it returns the run as it is."""


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a request, as far as it was read: `Door.view` makes a view of the run from it."""

    run: Run[Any] | None = None
    """The run as it stopped, if it was executed here."""
    journal: Journal | None = None
    """The journal in which the request was recorded, if nothing was executed: the run as the request has left it."""
    repeated: bool = False
    """True if the same request had been made before."""


class Door:
    """Takes requests to runs."""

    def __init__(self, unheld: UnheldRuns) -> None:
        self.unheld = unheld
        self._driver = unheld.driver
        self._services = unheld.driver.services
        self._flows = unheld.driver.flows
        self._holdings = unheld.driver.services.holdings

    # --- from a caller --------------------------------------------------------------------------------

    async def ask(
        self,
        run_id: str,
        request: AnyRequest,
        *,
        id: str | None = None,
        execute: bool = True,
        functions: Functions = NO_FUNCTIONS,
    ) -> RequestOutcome:
        """Hand a request in, and return its outcome. With an `id`, the same request may be made twice: the second time
        nothing changes. If `execute` is false, nothing is executed in this process: a request that lets the run continue is only
        left.
        """
        is_left = request.traits.executes and not execute
        if id is not None and request.traits.executes and not is_left:
            raise refuse_id_here(id)
        request = self._with_id(request, id)
        request, known = self._made_storable(
            run_id, request, functions, has_id=id is not None, is_left=is_left
        )
        if is_left:
            return self._leave(run_id, request)
        if isinstance(request, inbox.Resume):
            return await self._resume(run_id, request, functions)
        is_posted = id is not None
        is_new = not is_posted or self._post(run_id, request)
        if not is_new and not request.traits.awaited:
            return RequestOutcome(repeated=True)
        outcome = await self._hand_in(run_id, request, is_posted=is_posted, is_new=is_new, known=known)
        if isinstance(request, inbox.Cancel):
            await self._driver.settle_families()
        return outcome if is_new else msgspec.structs.replace(outcome, repeated=True)

    def _made_storable(
        self, run_id: str, request: AnyRequest, functions: Functions, *, has_id: bool, is_left: bool
    ) -> tuple[AnyRequest, Journal | None]:
        """Return a request with values that can be stored, checked as far as a clear error can be given at once, and the journal
        that was read for this, if any.
        """
        match request:
            case inbox.Resume():
                if is_left or request.expects is not None:
                    row = self._services.store.run(run_id)
                    request = self._without_functions(row, request, functions, has_id=has_id, is_left=is_left)
                return request, None
            case inbox.Skip():
                return self._with_plain_update(run_id, request), None
            case inbox.Edit():
                return self._with_plain_changes(run_id, request, functions, has_id=has_id), None
            case inbox.Answer():
                return self._checked_answer(run_id, request, has_id=has_id)
            case inbox.Signal():
                return self._checked_signal(run_id, request, has_id=has_id)
            case _:
                return request, None

    def _leave(self, run_id: str, request: AnyRequest) -> RequestOutcome:
        """Put a request into the inbox of a run, for the engine that executes the run, or for a worker."""
        try:
            is_new = self._post(run_id, request)
        except RunOver:
            is_nothing = isinstance(request, inbox.Resume) and changes_nothing(request, NO_FUNCTIONS)
            if is_nothing and self._services.store.run(run_id).status == "completed":
                return RequestOutcome()
            raise
        if is_new:
            self._ring(run_id, request)
        return RequestOutcome(repeated=not is_new)

    def _ring(self, run_id: str, request: AnyRequest) -> bool:
        """Let the run know of a request in its inbox, if this engine executes it. Returns whether it does."""
        held = self._holdings.get(run_id)
        if held is not None:
            held.request(msgspec.structs.replace(request, at=self._services.store.now()))
        return held is not None

    def _without_functions(
        self, row: RunRow, request: inbox.Resume, functions: Functions, *, has_id: bool, is_left: bool
    ) -> inbox.Resume:
        """Return a request to resume a run as it can be stored. For one that is left, a function that edits the state is called
        here, with the state that the run would continue with now.
        """
        if is_left and functions.validate is not None:
            raise SettingError(
                "validate= is a function of this process, and execute=False leaves the run to another one. Give the validation "
                "to the flow (Graph(…, validate_resume=…)), or leave execute=False out."
            )
        if is_left and functions.edit is not None:
            flow = self._flow_for(row, request, has_id=has_id)
            ahead = prepare_unchecked(self._services, flow, row, 0, request)
            changes = msgspec.to_builtins(edited(flow, ahead.state, functions.edit))
            return msgspec.structs.replace(request, changes=changes, seen=row.seq)
        if request.edit is None:
            return request
        return msgspec.structs.replace(request, edit=self._plain_fields(row, request.edit))

    def _with_plain_changes(
        self, run_id: str, request: inbox.Edit, functions: Functions, *, has_id: bool
    ) -> inbox.Edit:
        """Return an edit as it can be stored. A function is called here, with the state as it is now."""
        row = self._services.store.run(run_id)
        if functions.edit is None:
            return msgspec.structs.replace(request, fields=self._plain_fields(row, request.fields))
        flow = self._flow_for(row, request, has_id=has_id)
        known = self._look_at(run_id, inbox.Edit.traits.asked)
        recorders.check_edit(known, inbox.Edit())
        changes = msgspec.to_builtins(edited(flow, known.state, functions.edit))
        return msgspec.structs.replace(request, changes=changes, seen=known.saved_seq)

    def _plain_fields(self, row: RunRow, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of an edit as plain data. Raises `StateError` if the flow is known here and one does not fit it."""
        flow = find_flow(self._services.store, self._flows, row)
        if flow is None or row.state_version != flow.definition.state_version:
            return {field: questions.plain(value, f"state.{field}") for field, value in given.items()}
        with naming_misfit(row.run_id, flow):
            return flow.state.accept_fields(given)

    def _flow_for(self, row: RunRow, request: AnyRequest, *, has_id: bool) -> Flow[Any]:
        """Return the flow that a function which edits the state needs."""
        if has_id:
            raise SettingError(
                f"id={inbox.given_id(request.id)!r} cannot be given with a function that edits the state: the second time, the "
                "changes may be others. Give the fields and their values, or leave id out."
            )
        return require_flow(self._services.store, self._flows, row, row.run_id)

    def _with_plain_update(self, run_id: str, request: inbox.Skip) -> inbox.Skip:
        store = self._services.store
        flow = find_flow(store, self._flows, store.run(run_id))
        update = request.update
        node = flow.nodes.get(request.node) if flow is not None else None
        if node is not None and node.wiring is not None and update is not None:
            update = node.wiring.encode(node.wiring.accept(questions.plain(update, "update")))
        elif flow is not None and update is not None:
            given = flow.state.by_hand(update, node=request.node)
            update = {field: value for part in VALUE_PARTS for field, value in getattr(given, part).items()}
        elif update is not None:
            update = questions.plain(update, "update")
        return msgspec.structs.replace(request, update=update)

    def _checked_answer(
        self, run_id: str, request: inbox.Answer, *, has_id: bool
    ) -> tuple[inbox.Answer, Journal | None]:
        """Return an answer with the key of its question, which may be given by the name of its node. With an id, an answer that
        was given before is not checked: its question may be closed by now.
        """
        sure = request.confidence
        if sure is not None and not (isinstance(sure, (int, float)) and 0 <= sure <= 1):
            raise SettingError(f"confidence={sure!r}: give a number from 0 to 1")
        value = questions.plain(request.value, "answer")
        stated = request.stated
        if stated is not None:
            stated = msgspec.structs.replace(stated, result=questions.plain(stated.result, "result"))
        request = msgspec.structs.replace(request, value=value, stated=stated)
        if has_id and (before := self._find_answer(run_id, request)) is not None:
            return before, None
        try:
            known = self._look_at(run_id, inbox.Answer.traits.asked)
            return msgspec.structs.replace(request, key=questions.check(known, request)), known
        except (AnswerRefused, RunOver):  # perhaps because the same request was carried out in this moment
            if has_id and (before := self._find_answer(run_id, request)) is not None:
                return before, None
            raise

    def _find_answer(self, run_id: str, request: inbox.Answer) -> inbox.Answer | None:
        """Return the request as it was posted before; None if it was not. The caller may have named the node of the question,
        and the posted request has its key. Raises `RequestExists` if another request has the id.
        """
        store = self._services.store
        asked = store.events(run_id, kinds=("QuestionAsked",), node=request.key)
        keys = [request.key, *(open_row(row, store.blobs).event.key for row in asked)]
        other: RequestExists | None = None
        for key in reversed(keys):
            candidate = msgspec.structs.replace(request, key=key)
            try:
                if not self._post(run_id, candidate, only_look=True):
                    return candidate
            except RequestExists as exists:
                other = exists
            except RunOver:  # it would be new, so it is refused by the check
                continue
        if other is not None:
            raise other
        return None

    def _checked_signal(
        self, run_id: str, request: inbox.Signal, *, has_id: bool
    ) -> tuple[inbox.Signal, Journal]:
        """Return a signal as it can be stored. Raises `SignalRefused` if the payload does not fit the wait that would receive it.
        A wait that begins after this check sets a payload that does not fit aside.
        """
        name, payload = request.name, request.payload
        if not isinstance(name, str) or not name:
            raise SettingError(f"{name!r} is not a valid signal name: give a string that is not empty")
        known = self._look_at(run_id, inbox.Signal.traits.asked)
        request = msgspec.structs.replace(request, payload=questions.plain(payload, "payload"))
        wrong = _misfit(known.state, request)
        if wrong is not None and (count := self._on_their_way(run_id, request.name)):
            # Read the log again: one that has arrived meanwhile must not be counted in neither place.
            wrong = _misfit(self._look_at(run_id, inbox.Signal.traits.asked).state, request, count)
        if wrong is not None and (not has_id or self._post(run_id, request, only_look=True)):
            raise SignalRefused(run_id, request.name, wrong)
        return request, known

    def _on_their_way(self, run_id: str, name: str) -> int:
        """How many signals of that name were sent to the run, and are not in its log yet: another engine holds it, or they wait
        for an older request.
        """
        left = self.unheld.older(run_id, None)
        return sum(isinstance(request, inbox.Signal) and request.name == name for request in left)

    def _with_id(self, request: R, id: str | None) -> R:
        """Return the request with the id that the caller has given it, or with a random one."""
        _check_id(id, "signal" if isinstance(request, inbox.Signal) else "request")
        check_by_and_reason(request.by, request.reason)
        chosen = (
            inbox.stored_id(id, request.verb)
            if id is not None
            else f"{self._services.luck.getrandbits(96):024x}"
        )
        return msgspec.structs.replace(request, id=chosen)

    def _post(self, run_id: str, request: AnyRequest, *, only_look: bool = False) -> bool:
        """Put a request into the inbox, unless `only_look` is given. Returns False if it was there before. Raises `RequestExists`
        and `RunOver`.
        """
        store = self._services.store
        check_by_and_reason(request.by, request.reason)
        stored = inbox.check(request)
        try:
            return store.post(run_id, stored, only_look=only_look)
        except RequestExists as other:  # name the id that the caller gave
            raise RequestExists(run_id, inbox.given_id(other.request), other.verb) from None
        except RunOver:  # say what the caller wanted to do with the run
            refuse_final(run_id, store.run(run_id).status, request.traits.asked)
            raise

    # --- previews -------------------------------------------------------------------------------------

    def preview(
        self, run: str, verb: str, options: Mapping[str, Any], commands: CommandLine | None = None
    ) -> Preview:
        """Return what a verb would do to a run, without doing it. It only reads, so that it needs no lease and may be called in
        any thread. Raises `SettingError` for a verb or an option that does not exist.
        """
        services, store = self._services, self._services.store
        run_id, asked, functions = self._read_wanted(run, verb, options)
        row = store.run(run_id)
        flow = find_flow(self._services.store, self._flows, row)
        head = history.load(store, run_id, row=row)
        if isinstance(asked, Forking):
            found = preview_fork(services, flow, row, head, asked)
        else:
            executed = row.held and row.status not in HALTED
            if executed and flow is not None and flow.fingerprint != head.fingerprint:
                flow = None  # the engine that executes the run has another version of it
            found = rehearse(services, flow, row, head, asked, functions, executed=executed)
        commands = (commands or CommandLine()).for_one_of(self._flows, row.flow)
        commands = commands.for_flow_of(head.options.get(FLOW_FILE))
        refused = found.preview.refused is not None
        usual = Reader(store, self._flows).diagnose(run_id, commands).remedies if refused else ()
        wants_base = bool(head.options.get(RUN_BASE_WANTED))
        return previews.with_commands(found, commands, usual, wants_base=wants_base)

    def _read_wanted(
        self, run: str, verb: str, options: Mapping[str, Any]
    ) -> tuple[str, AnyRequest | Forking, Functions]:
        """Return the run, what is asked of it, and what cannot be stored. Raises `SettingError`."""
        if verb not in _OPTIONS:
            near = did_you_mean(str(verb), _OPTIONS) or f"; those that have one are {', '.join(_OPTIONS)}"
            raise SettingError(f"the verb {verb!r} has no preview{near}")
        for name in options:
            if name not in _OPTIONS[verb]:
                near = did_you_mean(name, _OPTIONS[verb])
                raise SettingError(f"{verb} has no option {name!r} that a preview could be about{near}")
        if verb == "fork":
            return *read_fork(run, options), NO_FUNCTIONS
        functions = NO_FUNCTIONS
        request: AnyRequest
        if verb == "resume":
            run, request, functions = read_resume(run, options)
        else:
            request = RECORDS[verb](**options)
        inbox.check(request)
        if isinstance(request, inbox.Skip):
            request = self._with_plain_update(run, request)
        elif isinstance(request, inbox.Resume) and request.edit is not None:
            fields = self._plain_fields(self._services.store.run(run), request.edit)
            request = msgspec.structs.replace(request, edit=fields)
        return run, request, functions

    # --- whichever engine executes the run ------------------------------------------------------------

    async def _hand_in(
        self,
        run_id: str,
        request: AnyRequest,
        *,
        is_posted: bool = False,
        is_new: bool = True,
        known: Journal | None = None,
    ) -> RequestOutcome:
        """Have a request carried out, and wait a few seconds at most until it is. `is_posted` is True if it is in the inbox
        already, `is_new` if no engine can have heard of it before this call. `known` is the journal of the run, read a moment
        ago; it saves reading the log again. Raises what the engine that refused the request has raised, and `RunOver` if the run
        has ended first.
        """
        store, verb = self._services.store, request.traits
        check_by_and_reason(request.by, request.reason)
        row = store.run(run_id)
        if not is_posted:
            refuse_final(run_id, row.status, verb.asked)
        is_known = is_posted and (not is_new or row.status in FINAL)
        for _ in range(_LOOKS):
            if is_known and is_handled(store, run_id, request.id, request.verb):
                break
            if run_id not in self._holdings and not row.held:
                with suppress(RunHeld):
                    outcome = await self._carry_out_here(row, request, is_posted=is_posted, known=known)
                    if outcome is not None or not verb.awaited:
                        return outcome or RequestOutcome()
                    is_posted = True
            if not is_posted:
                is_posted = self._post(run_id, request)
            is_waiting = verb.awaited and not nesting.is_inside(store.generation, run_id)
            if not is_known:  # look at once: a runner here may have carried it out when it heard of it, or the holder has left
                is_known, is_rung = True, self._ring(run_id, request)
                row = row if is_rung else store.run(run_id)
                if is_waiting or not (is_rung or row.held):
                    continue
            if not is_waiting:  # inside a node of the run, which may wait for this call
                break
            await self._until_news(run_id)
            row = store.run(run_id)
        return RequestOutcome()

    async def _resume(self, run_id: str, request: inbox.Resume, functions: Functions) -> RequestOutcome:
        """Resume a run here. One that an engine executes is not asked: it moves already."""
        row = self._services.store.run(run_id)
        if self.unheld.is_done_already(row, request, functions):
            return RequestOutcome()
        try:
            outcome = await self._carry_out_here(row, request, functions, is_posted=False)
        except ResumeRefused:
            row = self._services.store.run(run_id)
            if self.unheld.is_done_already(row, request, functions):  # since it was first read
                return RequestOutcome()
            raise
        assert outcome is not None
        return outcome

    async def _carry_out_here(
        self,
        row: RunRow,
        request: AnyRequest,
        functions: Functions = NO_FUNCTIONS,
        *,
        is_posted: bool,
        known: Journal | None = None,
    ) -> RequestOutcome | None:
        """Carry out a request to a run that no engine executes. The result is None if the request is in the inbox, and another
        engine has found it or it must wait there for an older one, which a worker carries out. An edit needs the flow, and so
        does an answer that skips a node; without the flow, it is left for a worker.
        """
        run_id, lease, executes = row.run_id, None, request.traits.executes
        needs_flow = recorders.needs_flow(request) and (is_posted or isinstance(request, inbox.Edit))
        if needs_flow and row.flow not in self._flows:
            return RequestOutcome() if is_posted else self._leave(run_id, request)
        if not executes and recorders.follows(request, self.unheld.older(run_id, request)):
            if not is_posted:
                self._post(run_id, request)
            return None
        if is_posted:
            lease = self._holdings.claim_for(run_id, request, briefly=not executes)
            if lease is None:
                return None
        done = await self.unheld.carry_out(run_id, request, lease, known, functions=functions, row=row)
        if isinstance(done, Journal):
            if self._services.made_families is not None:
                self._services.made_families.asked(run_id)
            return RequestOutcome(journal=done)
        driving = self._driver.drive(done.journal, done)
        del done  # while the run is asleep, nothing here keeps it in memory
        return RequestOutcome(run=self._driver.result(await self._driver.drive_family(run_id, driving)))

    async def _until_news(self, run_id: str) -> None:
        """Wait until it is time to look at the inbox again, or until a run that is executed here has handled requests."""
        held = self._holdings.get(run_id)
        if held is not None and held.done.done():  # it is being loaded, or its end is being recorded
            await asyncio.sleep(0)
            return
        nap = asyncio.ensure_future(sleep(self._services.clock, _LOOK_S))
        news: list[asyncio.Future[None]] = [nap]
        if held is not None:
            news.append(held.done)
        if isinstance(held, Runner):
            news.append(held.journal.until_taken())
        try:
            await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)
        finally:
            nap.cancel()

    # --- looking --------------------------------------------------------------------------------------

    def view(self, run_id: str, outcome: RequestOutcome) -> Run[Any]:
        """Get a run as it is now or, if it was executed for a request, as it stopped. The log is not read again if it ends where
        the request has left it.
        """
        if outcome.run is not None:
            return outcome.run
        return mark_repeated(self.unheld.view(run_id, outcome.journal), outcome.repeated)

    def _look_at(self, run_id: str, asked: str) -> Journal:
        """Create a journal from which a run is only read: it has no lease."""
        row = self._services.store.run(run_id)
        refuse_final(run_id, row.status, asked)
        services = self._services
        state = history.load(services.store, row.run_id, row=row)
        return Journal(
            services, find_flow(services.store, self._flows, row) or UNKNOWN, state, row=row, fence=0
        )


def is_handled(store: Store, run_id: str, stored_id: str, verb: str) -> bool:
    """Return whether a request was carried out; False if it still waits in the inbox. Raises what the engine that refused it has
    raised, and `RunOver` if the run has ended first.
    """
    found = next((one for one in store.inbox(run_id=run_id) if one.id == stored_id), None)
    if found is not None and not found.taken and not found.unmet:
        return False
    asked = RECORDS[verb].traits.asked
    if found is not None and found.unmet:
        refuse_final(run_id, store.run(run_id).status, asked)
    for row in store.events(run_id, kinds=("RequestRefused",)):
        refused = open_row(row, store.blobs).event
        if refused.request == stored_id:
            raise rebuild_refusal(refused.error, run_id, refused.reason, about=refused.about, asked=asked)
    return True


def refuse_id_here(id: str) -> SettingError:
    """Return the error for an id that was given to a verb which executes the run here."""
    return SettingError(
        f"id={id!r} needs execute=False: the inbox of the run remembers the ids of requests, and this call executes the run here "
        "without an inbox. Leave id out, or add execute=False."
    )


def _check_id(id: Any, what: str) -> None:
    if id is not None and (not isinstance(id, str) or not id):
        raise SettingError(
            f"id={id!r} is not a valid id of a {what}: give a string that is not empty, or leave id out"
        )
    if id is not None and what == "request" and (len(id) > _ID_MAX or not id.isprintable()):
        raise SettingError(
            f"id={id[:40]!r}{'…' * (len(id) > 40)} is not a valid id of a request: give up to {_ID_MAX} printable characters"
        )


def _misfit(state: RunState, request: inbox.Signal, on_their_way: int = 0) -> str | None:
    """Why a signal does not fit the wait that would receive it; None if it does, or if nothing waits for it. The oldest waits get
    the signals that are `on_their_way`.
    """
    waits = [wait for wait in state.waits.values() if wait.signal == request.name][on_their_way:]
    if not waits:
        return None
    wrong = answers.misfit(request.payload, (), waits[0].payload_schema, what="payload")
    return f"{end_sentence(wrong)} Node {waits[0].node!r} waits for it; send what fits." if wrong else None
