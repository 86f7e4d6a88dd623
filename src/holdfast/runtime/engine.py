"""The engine: the verbs of Holdfast. It exists once, and it is async; `blocking` is a thin bridge over it.

A verb that *records* (`start cancel pause fork`) returns when that is durable. A verb that *goes on* (`run
resume retry skip`) returns when the run has ended or cannot go on without somebody; timers and retries are
waited for. Reading verbs (`get runs state events checkpoints follow wait`) need no flow.

Only the holder of a run's lease appends to it. For a run that nobody holds the engine claims it briefly; for
one that is held elsewhere the wish is left in its inbox, where the holder finds it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec

from holdfast.core import events
from holdfast.core.graph import Flow, Graph
from holdfast.core.run_state import ENDED
from holdfast.documents.artifacts import Artifacts, left
from holdfast.documents.scribe import Scribe
from holdfast.errors import (
    AnswerRefused,
    FenceLost,
    FlowNotFound,
    ResumeRefused,
    RunExists,
    RunHeld,
    SettingError,
    StoreBusy,
    StoreError,
    StoreFull,
)
from holdfast.reading import history
from holdfast.reading.history import split
from holdfast.reading.views import Run, run_view
from holdfast.runtime import operator, questions, settings
from holdfast.runtime.calls.body import Threads
from holdfast.runtime.calls.executors import Executor, elsewhere, refuse_uncallable, registered
from holdfast.runtime.calls.process.executor import executors_on
from holdfast.runtime.calls.shared_task import Stage
from holdfast.runtime.calls.streams import recover
from holdfast.runtime.clock import Clock, SystemClock, sleep
from holdfast.runtime.commits import Commits
from holdfast.runtime.creation import (
    UNKNOWN,
    checked_id,
    checked_said,
    checked_seconds,
    checkpoint_zero,
    created,
    fork_place,
    forked,
    placed,
    refuse_another,
)
from holdfast.runtime.followers import POLL_S, Followers
from holdfast.runtime.journal import Journal
from holdfast.runtime.news import Ear
from holdfast.runtime.reading import ReadingThread
from holdfast.runtime.renewal import Renewal, elapsed
from holdfast.runtime.resume import Invalid, Wish, edited, prepare, refuse_final
from holdfast.runtime.runner import Asleep, Halt, Runner
from holdfast.runtime.services import Salts, Services, at_once, in_thread, waker
from holdfast.runtime.signals import Signals
from holdfast.runtime.worker import Worker
from holdfast.runtime.working import Working
from holdfast.storage.contract import Lease, NewRun, Request, RunRow, Store
from holdfast.storage.holder import this_process
from holdfast.storage.rows import SALT_BYTES, open_row
from holdfast.storage.urls import open_store
from holdfast.storage.writer import InlineWriter, Writer

S = TypeVar("S")
Edit = Callable[[Any], Any] | Mapping[str, Any]

_ANSWER_POLLS = 100
_SOON_OVER = 10
"""So many looks into the inbox before it is worth a thread that hears what comes."""
_UNHEARD_S = 5.0
"""How long nothing need be heard before the inbox is looked into all the same."""
_ASKED = {
    "retry": "tried again",
    "skip": "skipped",
    "cancel": "cancelled",
    "pause": "paused",
    "answer": "answered",
    "signal": "told anything",
}


class Engine(Working):
    """Runs flows on a store. Use it as `async with Engine(store, flows=[…]) as engine`."""

    def __init__(
        self,
        store: str | os.PathLike[str] | Store | None = None,
        *,
        flows: Iterable[Flow[Any]] | Flow[Any] = (),
        resources: Mapping[str, Any] | None = None,
        executors: Mapping[str, Executor] | None = None,
        grace: float | None = None,
        lease_ttl: float | None = None,
        durability: settings.Durability | None = None,
        park_after: float | None = None,
        blobs: str | os.PathLike[str] | None = None,
        blob_over: int | None = None,
        log_budget: int | None = None,
        run_base: str | os.PathLike[str] | None = None,
        keep_checkpoints: int | None = None,
        clock: Clock | None = None,
        luck: random.Random | None = None,
        inline: bool = False,
    ) -> None:
        """`executors` call the nodes that name them (`@graph.node(executor="ray")`); the engine does not close them.
        `inline` calls all functions and commits on the event loop itself; with `clock` and `luck` of its own, a test then
        owns everything.
        """
        if store is not None and not isinstance(store, (str, os.PathLike)) and not hasattr(store, "append"):
            raise SettingError(f"store={store!r}: give a path, a URL, or an open store")
        given_store = store if not isinstance(store, (str, os.PathLike)) else None
        url = store if given_store is None else None
        if given_store is not None and blobs is not None:
            raise SettingError("blobs= goes with the path or URL of a store; give it to what opens this one")
        self.settings = settings.resolve(
            {
                "store": url,
                "grace": grace,
                "lease_ttl": lease_ttl,
                "durability": durability,
                "park_after": park_after,
                "blobs": blobs,
                "blob_over": blob_over,
                "log_budget": log_budget,
                "run_base": run_base,
                "keep_checkpoints": keep_checkpoints,
            }
        )
        self._inline = inline
        self._executors = registered(executors or {})
        self.flows: dict[str, Flow[Any]] = {}
        for flow in flows if isinstance(flows, Iterable) else (flows,):
            self.add(flow)
        self._given_store = given_store
        self._resources = dict(resources or {})
        self._clock = clock or SystemClock()
        self._luck = luck or random.Random()  # noqa: S311 - jitter and ids, no secrets
        self._services: Services | None = None
        self._runners: dict[str, Runner | Asleep] = {}
        self._given_up: dict[str, int] = {}
        self._asleep = 0
        """How many of them are asleep."""
        self._idle = asyncio.Event()
        """Set exactly while no run is in this engine's hands."""
        self._idle.set()
        self._followers = Followers()
        self._scribe: Scribe | None = None
        self._poller: asyncio.Task[None] | None = None
        self._renewal: Renewal | None = None
        self._ear: Ear | None = None
        self._worker: Worker | None = None
        self._stopping: str | None = None
        self._signals = Signals()
        self._reading = ReadingThread(inline=inline)

    # --- life -----------------------------------------------------------------------------------------

    def add(self, flow: Flow[Any]) -> None:
        """Make a flow known, so that its runs can be taken up."""
        if not isinstance(flow, Flow):
            raise SettingError(f"{_named(flow)} is no flow; give what graph.compile() returns")
        known = self.flows.get(flow.name)
        if known is not None and known is not flow:
            raise SettingError(
                f"two flows are named {flow.name!r}; names tell an engine which flow a run belongs to"
            )
        if known is None and not self._inline:
            refuse_uncallable(flow, self._executors)
        self.flows[flow.name] = flow

    async def __aenter__(self) -> Self:
        own_clock = None if type(self._clock) is SystemClock else self._clock.now
        store = self._given_store or open_store(
            self.settings.store, clock=own_clock, blobs=self.settings.blobs
        )
        threads = None if self._inline else Threads()
        executors = executors_on(threads, self._executors)
        writer = InlineWriter(store) if self._inline else Writer(store, waker(asyncio.get_running_loop()))
        self._services = Services(
            store=store,
            commits=Commits(writer, lambda: len(self._runners) - self._asleep),
            clock=self._clock,
            luck=self._luck,
            salts=partial(self._luck.randbytes, SALT_BYTES) if self._inline else Salts().take,
            holder=this_process(self.settings.lease_ttl),
            resources=self._resources,
            blob_over=self.settings.blob_over,
            log_budget=self.settings.log_budget,
            stage=Stage(0.0) if self._inline else Stage(),
            threads=threads,
            executors=executors,
            elsewhere=elsewhere(executors),
            haunted={},
            aside=in_thread(threads) if threads is not None else at_once,
            streamed=self._followers.streamed,
            park_after=self.settings.park_after,
            wake=self._wake,
            saved=self._saved,
            stands=self._stands,
            **self._files(store),
        )
        self._keep(self._services, self.settings.keep_checkpoints)
        if not self._inline:
            self._ear = Ear(store.queues)
            self._signals.watch(self).__enter__()
        return self

    def _files(self, store: Store) -> dict[str, Any]:
        """Where there is a RUN_BASE: who writes there, and what nodes get of it."""
        if not self.settings.run_base:
            return {}
        run_base = os.path.abspath(os.path.expanduser(self.settings.run_base))
        self._scribe = Scribe(run_base, store, inline=self._inline)
        return {"artifacts": partial(Artifacts, run_base), "artifact_names": partial(left, run_base)}

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        finally:
            self._signals.__exit__()
        if error is None or isinstance(error, asyncio.CancelledError):
            self._signals.pass_on()

    async def close(self) -> None:
        """Interrupt what still runs, give the leases back, and close the store if it was opened here."""
        if self._services is None:
            return
        services = self._services
        if self._runners or self._worker is not None:
            self.stop("engine closed")
            if self._worker is not None:
                await self._worker.left.wait()
            while self._runners:  # a run may have begun since the event was set
                await self._idle.wait()
        if self._poller is not None:
            self._poller.cancel()
        if self._ear is not None:
            self._ear.close()
        if self._renewal is not None:
            self._renewal.stop()
            with suppress(StoreError):
                services.store.renew(msgspec.structs.replace(services.holder, ttl_s=0.0))
        self._services = None
        self._reading.close()
        for name, executor in services.executors.items():
            if name not in self._executors:
                executor.close()
        services.commits.close()
        if self._keeper is not None:
            self._keeper.close()
        if self._scribe is not None:
            await asyncio.to_thread(self._scribe.close)
        if self._given_store is None:
            services.store.close()

    def stop(self, reason: str = "stopped") -> None:
        """Start nothing new; running nodes get `grace` seconds, then are cancelled and recorded as
        interrupted. A second call waits no longer.
        """
        grace = self.settings.grace if self._stopping is None else 0.0
        self._stopping = reason
        for runner in self._runners.values():
            runner.halt(Halt("interrupt", reason=reason), grace_s=grace)
        if self._worker is not None:
            self._worker.look()

    def _open(self) -> Services:
        if self._services is None:
            raise SettingError("the engine is not open; use it as `async with Engine(…) as engine`")
        return self._services

    # --- verbs that make runs -------------------------------------------------------------------------

    async def run(
        self,
        flow: Flow[S],
        input: S | Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
        queue: str | None = None,
        priority: int = 0,
        by: str | None = None,
    ) -> Run[S]:
        """Start a run and carry it on. The same id with the same flow and input is the same run: it is
        carried on, or returned if it is completed.
        """
        self.add(flow)
        place = placed(queue, priority)
        journal = await self._new_run(
            flow, input, run_id, place, held=True, timeout=timeout, labels=labels, by=by
        )
        if journal is None:
            assert run_id is not None
            return await self._run_again(flow, run_id)
        run_id, create, drive = journal.state.run_id, journal.create, self._drive(journal)
        del journal  # while the run is asleep, nothing here keeps it in memory
        try:
            return await drive
        except RunExists:
            self._require_same(run_id, create)
            return await self._run_again(flow, run_id)

    async def start(
        self,
        flow: Flow[S],
        input: S | Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
        queue: str | None = None,
        priority: int = 0,
        by: str | None = None,
    ) -> str:
        """Record a run and return its id. A worker executes it, or `resume`. Of the runs that wait for a worker in a `queue`,
        those with the highest `priority` come first.
        """
        self.add(flow)
        place = placed(queue, priority)
        journal = await self._new_run(
            flow, input, run_id, place, held=False, timeout=timeout, labels=labels, by=by
        )
        if journal is None:
            assert run_id is not None
            return run_id
        try:
            await journal.saved()
        except RunExists:
            self._require_same(journal.state.run_id, journal.create)
        return journal.state.run_id

    async def _new_run(
        self,
        flow: Flow[Any],
        given: Any,
        run_id: str | None,
        place: dict[str, Any],
        *,
        held: bool,
        timeout: float | None,
        **said: Any,
    ) -> Journal | None:
        """A journal with `RunCreated` recorded, or None where the same run exists already."""
        services = self._open()
        run_id = checked_id(run_id) if run_id is not None else self._new_id(flow.name)
        options: dict[str, Any] = {"durability": self.settings.durability, **place}
        if self._scribe is not None:
            options[history.RUN_BASE_WANTED] = True
        if timeout is not None:
            options["timeout_s"] = checked_seconds(timeout, "timeout")
        zero = checkpoint_zero(flow, given, options=options, **said)
        if held:
            self._hold()
        journal = created(services, flow, run_id, zero, held=held)
        # Whether it exists is what its first append finds out; only in here two of them could meet before that.
        runner = self._runners.get(run_id)
        if runner is not None:
            assert journal.create is not None
            known = runner.journal.create if isinstance(runner, Runner) else None
            refuse_another(run_id, known or services.store.run(run_id), journal.create)
            return None
        return journal

    def _require_same(self, run_id: str, create: NewRun | None) -> None:
        """The run exists already: raises `RunExists` where it is another one."""
        assert create is not None
        refuse_another(run_id, self.store.run(run_id), create)

    async def _run_again(self, flow: Flow[S], run_id: str) -> Run[S]:
        row = self.store.run(run_id)
        if row.status in ENDED:
            return self._result(self._view(run_id, flow))
        return await self.resume(run_id)

    # --- verbs that carry runs on ---------------------------------------------------------------------

    async def resume(
        self,
        run: str,
        *,
        checkpoint: str | int | None = None,
        after: str | None = None,
        restart_at: str | None = None,
        replay: bool = False,
        validate: Callable[[Any], Any] | None = None,
        edit: Edit | None = None,
        force: bool = False,
        on_change: Literal["refuse", "compatible"] = "refuse",
        rename: Mapping[str, str] | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> Run[Any]:
        """Carry a run on: from its end, or from an earlier place of its log. What completed before that place
        never runs again.
        """
        run_id, seq = split(run, checkpoint)
        wish = Wish(
            checkpoint=seq,
            after=after,
            restart_at=restart_at,
            replay=replay,
            validate=validate,
            edit=edit,
            force=force,
            on_change=on_change,
            rename=dict(rename or {}),
            by=by,
            reason=reason,
        )
        only_on = seq is None and not (after or restart_at or replay or edit)
        if only_on and self.store.run(run_id).status == "completed":
            return self._view(run_id)
        try:
            journal = await self._take_up(run_id, wish)
        except ResumeRefused:
            if only_on and self.store.run(run_id).status == "completed":  # since it was looked at
                return self._view(run_id)
            raise
        return await self._drive(journal)

    async def retry(
        self,
        run_id: str,
        node: str | None = None,
        *,
        fresh: bool = False,
        by: str | None = None,
        reason: str | None = None,
    ) -> Run[Any]:
        """Try a failed, cut or waiting node again (default: all of them). `fresh` keeps nothing of the execution before."""
        body = {"node": node, "fresh": fresh}
        return await self._operate(
            run_id, Request(id=self._request_id(), verb="retry", body=body, by=by, reason=reason)
        )

    async def skip(
        self, run_id: str, node: str, update: Any = None, *, by: str | None = None, reason: str | None = None
    ) -> Run[Any]:
        """Put an update in place of the result of a failed, cut or waiting node, and go on behind it."""
        flow = self.flows.get(self.store.run(run_id).flow)
        if flow is not None and update is not None:
            given = msgspec.structs.asdict(flow.state.by_hand(update, node=node))
            update = {
                field: value
                for part in ("set", "append", "merge", "add", "reduce")
                for field, value in given[part].items()
            }
        body = {"node": node, "update": update}
        return await self._operate(
            run_id, Request(id=self._request_id(), verb="skip", body=body, by=by, reason=reason)
        )

    async def cancel(self, run_id: str, reason: str | None = None, *, by: str | None = None) -> Run[Any]:
        """Call a run off, for good. Running nodes are stopped."""
        return await self._operate(
            run_id, Request(id=self._request_id(), verb="cancel", by=by, reason=reason)
        )

    async def pause(self, run_id: str, reason: str | None = None, *, by: str | None = None) -> Run[Any]:
        """Let running nodes end and start nothing new, until the run is resumed."""
        return await self._operate(run_id, Request(id=self._request_id(), verb="pause", by=by, reason=reason))

    async def answer(
        self,
        run_id: str,
        question: str,
        value: Any,
        *,
        update: Any = None,
        by: str | None = None,
        reason: str | None = None,
        confidence: float | None = None,
    ) -> Run[Any]:
        """Answer a question of a run, by its key or, where that node asks only one, by the name of its node. Only records:
        whoever executes the run goes on with it, otherwise `resume` does. Raises `AnswerRefused`.

        `update` goes with the answer `skip` to a node that was cut. An agent says who it is (`by="agent:…"`) and how
        sure.
        """
        if confidence is not None and not (isinstance(confidence, (int, float)) and 0 <= confidence <= 1):
            raise SettingError(f"confidence={confidence!r}: give a number from 0 to 1")
        key = questions.check(self._looked_up(run_id, "answered"), question, value, update=update)
        body = {
            "key": key,
            "value": questions.plain(value, "answer"),
            "update": update,
            "confidence": confidence,
        }
        body = {name: part for name, part in body.items() if part is not None or name == "value"}
        request = Request(id=self._request_id(), verb="answer", body=body, by=by, reason=reason)
        run = await self._operate(run_id, request)
        await self._until_answered(run_id, key, request)
        return run if run.questions == () else self._view(run_id)

    async def _until_answered(self, run_id: str, key: str, request: Request) -> None:
        """Whoever executes the run takes the answer soon. It is refused if somebody else's came first."""
        services = self._open()
        for _ in range(_ANSWER_POLLS):
            for row in services.store.events(run_id, kinds=("QuestionAnswered",)):
                answered = open_row(row, services.store.blobs).event
                if answered.key == key:
                    if (answered.answer, answered.by) != (request.body["value"], request.by):
                        raise AnswerRefused(run_id, key, questions.said_already(answered))
                    return
            if key not in history.load(services.store, run_id).questions:
                raise AnswerRefused(run_id, key, "it was closed before anybody could take the answer")
            await sleep(self._clock, POLL_S / 4)

    async def signal(
        self,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> Run[Any]:
        """Tell a run something. It goes to the `ctx.wait_for` that has waited longest for that name, or is kept for the next
        one. Only records. `id` makes telling it twice harmless: the second time `repeated` is set, and nothing changed.
        """
        if not isinstance(name, str) or not name:
            raise SettingError(f"{name!r} is no name of a signal")
        refuse_final(run_id, self.store.run(run_id).status, "told anything")
        body = {"name": name, "payload": questions.plain(payload, "payload")}
        request_id = f"signal:{id}" if id is not None else self._request_id()
        request = Request(id=request_id, verb="signal", body=body, by=by, reason=reason)
        if id is not None and not self.store.post(run_id, request):  # the inbox knows what was told before
            return msgspec.structs.replace(self._view(run_id), repeated=True)
        return await self._operate(run_id, request, posted=id is not None)

    def _looked_up(self, run_id: str, asked: str) -> Journal:
        """A run as it stands, for looking only."""
        services = self._open()
        row = services.store.run(run_id)
        refuse_final(run_id, row.status, asked)
        state = history.load(services.store, run_id, row=row)
        return Journal(services, self.flows.get(row.flow) or UNKNOWN, state, row=row, fence=0)

    async def _operate(self, run_id: str, request: Request, *, posted: bool = False) -> Run[Any]:
        """Do what an operator asks: through the runner that has the run, its inbox, or a short claim."""
        services = self._open()
        checked_said(request.by, request.reason)
        row = services.store.run(run_id)
        refuse_final(run_id, row.status, _ASKED[request.verb])
        runner = self._runners.get(run_id)
        if runner is None and not row.held:
            with suppress(RunHeld):
                return await self._operate_on_idle(run_id, request, posted=posted)
        services.store.post(run_id, request)
        if runner is not None:
            runner.request(request)
        elif not services.store.run(run_id).held:  # its holder left before it could see this
            with suppress(RunHeld):
                return await self._operate_on_idle(run_id, request, posted=True)
        return self._view(run_id)

    async def _operate_on_idle(
        self,
        run_id: str,
        request: Request,
        lease: Lease | None = None,
        *,
        raises: bool = True,
        posted: bool = False,
    ) -> Run[Any]:
        """`posted`: it is in the inbox too, where somebody may have found it before the run was ours."""
        if posted and lease is None:
            lease = self._claim_with(run_id, request)
            if lease is None:
                return self._view(run_id)
        if request.verb in ("cancel", "pause", "answer", "signal"):
            return await self._record_on_idle(run_id, request, lease)
        journal = await self._take_up(
            run_id, Wish(nodes=[], named=True, by=request.by, reason=request.reason), lease
        )
        runner = Runner(journal)
        try:
            runner.answer(request)
        except BaseException:
            self._release(run_id, journal.fence)
            raise
        return await self._drive(journal, runner, raises=raises)

    async def _record_on_idle(self, run_id: str, request: Request, lease: Lease | None) -> Run[Any]:
        """Record it, without executing anything: that needs no flow."""
        services = self._open()
        self._hold()
        lease = lease or self._claim(run_id)
        try:
            row = services.store.run(run_id)
            state = history.load(services.store, run_id, row=row)
            refuse_final(run_id, state.status, _ASKED[request.verb])
            journal = Journal(
                services, self.flows.get(row.flow) or UNKNOWN, state, row=row, fence=lease.fence
            )
            journal.tick()
            journal.taken.append(request.id)
            if request.verb == "pause":
                operator.pause(journal, by=request.by, reason=request.reason, cut=True)
            elif request.verb == "cancel" or questions.tell(journal, request):
                operator.cancel(journal, by=request.by, reason=request.reason)
            if journal.unsaved:
                await journal.saved()
            if journal.spills:
                services.store.blobs.unspill(run_id, journal.spills)
        finally:
            self._release(run_id, lease.fence)
        flow = self.flows.get(row.flow)
        fits = flow is not None and state.state_version == flow.definition.state_version
        return run_view(state, services.store.run(run_id), flow if fits else None)

    async def _take_up(self, run_id: str, wish: Wish, lease: Lease | None = None) -> Journal:
        """Claim a run, where that has not been done, and record how it is taken up."""
        services = self._open()
        if run_id in self._runners:
            raise RunHeld(run_id, "this engine")
        row = services.store.run(run_id)
        flow = self.flows.get(row.flow)
        if flow is None:
            raise FlowNotFound(row.flow, self.flows, run_id=run_id)
        if self._stopping is not None:
            raise ResumeRefused(run_id, f"this engine is stopping ({self._stopping})")
        self._hold()
        was_taken = lease is not None  # then the row above is from behind the claim already
        lease = lease or self._claim(run_id)
        try:
            row = row if was_taken else services.store.run(run_id)
            if row.fence != lease.fence:
                raise FenceLost(f"run {run_id!r} was taken over while this process stood still")
            if self._given_up.pop(run_id, -1) == lease.fence - 1:  # nobody has had it since
                wish = msgspec.structs.replace(wish, outlived=True)
            return recover(prepare(services, flow, row, lease.fence, wish))
        except Invalid as refused:
            await self._record_refusal(flow, row, lease.fence, refused, wish)
            raise ResumeRefused(run_id, refused.reason) from refused.__cause__
        except BaseException:
            self._release(run_id, lease.fence)
            raise

    async def _record_refusal(
        self, flow: Flow[Any], row: RunRow, fence: int, refused: Invalid, wish: Wish
    ) -> None:
        services = self._open()
        journal = Journal(
            services, flow, history.load(services.store, row.run_id, row=row), row=row, fence=fence
        )
        journal.tick()
        journal.record(events.ResumeRefused(reason=refused.reason, by=wish.by))
        await journal.saved(release=True)

    # --- forks ----------------------------------------------------------------------------------------

    async def fork(
        self,
        run: str,
        *,
        checkpoint: str | int | None = None,
        edit: Edit | None = None,
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> str:
        """Make a new, self-contained run that shares the history up to a checkpoint (default: the latest).
        Returns its id; `resume` carries it on.
        """
        services = self._open()
        parent, seq = split(run, checkpoint)
        row = services.store.run(parent)
        flow = self.flows.get(row.flow)
        fork_id = checked_id(run_id) if run_id is not None else self._new_id(row.flow)
        place = fork_place(services, parent, seq)
        journal = forked(services, flow, row, place, fork_id=fork_id, labels=labels, by=by, reason=reason)
        if edit is not None:
            if flow is None:
                raise FlowNotFound(row.flow, self.flows, run_id=parent)
            journal.record(
                events.StateEdited(changes=edited(flow, journal.state, edit), by=by, reason=reason)
            )
        await journal.saved()
        return fork_id

    # --- inside ---------------------------------------------------------------------------------------

    def _new_id(self, flow: str) -> str:
        return f"{flow[:40]}-{self._luck.getrandbits(48):012x}"

    def _request_id(self) -> str:
        return f"{self._luck.getrandbits(96):024x}"

    def _hold(self) -> None:
        """Make this engine known to the store as a holder, and keep it known."""
        if self._renewal is None:
            services = self._open()
            now = elapsed if type(self._clock) is SystemClock else self._clock.now
            self._renewal = Renewal(
                services.store,
                services.holder,
                lost=self._lose,
                executes=self._executes,
                now=now,
                quiet=self._inline,
            )
        elif self._inline:
            self._renewal.keep()

    def _stands(self, run_id: str, fence: int) -> bool:
        return self._renewal is None or self._renewal.stands(run_id, fence)

    def _lose(self) -> None:
        """The leases cannot be renewed: stop every node before anybody else may start it. Behind their end it is too late for
        that; then the store says which are still ours.
        """
        renewal, services = self._renewal, self._open()
        if renewal is None or not renewal.stood_still or self._inline:
            self._give_up_all()
            return
        ours: set[tuple[str, int]] = set()

        def ask() -> None:
            renewal.renew()
            ours.update(
                (lease.run_id, lease.fence) for lease in services.store.queues.held_by(services.holder.id)
            )

        def told(error: BaseException | None) -> None:
            if error is not None:
                self._give_up_all()
                return
            for run_id, runner in list(self._runners.items()):
                if (run_id, runner.fence) not in ours and not runner.done.done():
                    runner.lose(FenceLost(f"run {run_id!r} was taken over while this process stood still"))

        services.aside(ask, told)

    def _give_up_all(self) -> None:
        fault = self._renewal.fault if self._renewal is not None else None
        kind = StoreFull if isinstance(fault, StoreFull) else StoreBusy
        why = f" ({fault})" if fault is not None else ""
        for run_id, runner in list(self._runners.items()):
            runner.lose(
                kind(
                    f"run {run_id!r}: its lease could not be renewed{why}, so its nodes were stopped before another process may "
                    "take it over, and nothing more is started. What was acknowledged is safe; resume when the store works again."
                )
            )

    def _saved(self, run_id: str) -> None:
        """Something new is durable in the log of a run, or it has stopped."""
        self._followers.saved(run_id)
        if self._keeper is not None:
            self._keeper.saved(run_id)
        if self._scribe is not None:
            self._scribe.saved(run_id)

    def _wake(self, run_id: str) -> None:
        runner = self._runners.get(run_id)
        if runner is not None:
            runner.wake()

    def _poll(self) -> None:
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._watch_inbox())

    async def _watch_inbox(self) -> None:
        """Look for requests to the runs held here, as long as there are any."""
        services, looks = self._open(), 0
        while self._runners:
            await sleep(self._clock, POLL_S)
            looks += 1
            if self._ear is not None and looks > _SOON_OVER:
                await self._ear.heard(self._clock, _UNHEARD_S)
            elif self._inline and self._renewal is not None:
                self._renewal.keep()
            with suppress(StoreError):  # the next round asks again; an append that fails is what stops a run
                for request in await self._reading.call(services.store.inbox, services.holder.id):
                    runner = self._runners.get(request.run_id)
                    if runner is not None:
                        runner.request(request)


def _named(given: object) -> str:
    return f"graph {given.name!r}" if isinstance(given, Graph) else repr(given)
