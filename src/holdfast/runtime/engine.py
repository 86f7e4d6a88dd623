"""`Engine` has the verbs of Holdfast as async methods; `blocking` offers the same verbs as plain functions.

A verb that *records* (`start cancel pause answer signal fork`) returns when its record is durable. A verb that *executes* (`run
resume retry skip`) returns when the run has ended, or waits for an answer, a signal or an operator; it waits for timers and
retries. Reading verbs (`get runs state events checkpoints ledger questions follow wait`) need no flow.

The verbs are short, and each uses one of these:

    reader: Reader          reads runs, without holding them
    holdings: Holdings      the runs that this engine holds, and how long their leases are certain
    door: Door              takes requests to a run, whichever engine executes it
    unheld: UnheldRuns      carries out requests to runs that no engine executes
    driver: Driver          drives a run that was claimed, until it stops
    worker: Worker          takes runs from queues, while the engine works
    listeners: Listeners    followers, receipts, pruning, and the listeners of the caller

Only the holder of a run's lease appends to it.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from msgspec import structs

from holdfast.core import requests as records
from holdfast.core.graph import Flow, FlowSource, Graph
from holdfast.core.run_state import ENDED
from holdfast.core.situation import FLOW_FILE, RUN_BASE_WANTED
from holdfast.core.verb_options import read_options
from holdfast.documents.artifacts import Artifacts, left
from holdfast.documents.scribe import Scribe
from holdfast.errors import RunExists, RunHeld, RunNotFound, SettingError, did_you_mean
from holdfast.reading.chunks import Chunk
from holdfast.reading.history import Checkpoint
from holdfast.reading.known_flows import find_flow
from holdfast.reading.ledger import Ledger
from holdfast.reading.previews import Preview
from holdfast.reading.reader import Reader, in_asking_order
from holdfast.reading.relatives import WaitedFor
from holdfast.reading.remedies import CommandLine
from holdfast.reading.views import (
    AskedQuestion,
    EventView,
    RequestView,
    Run,
    RunSummary,
    mark_repeated,
    result_of,
)
from holdfast.runtime import creation, nesting, settings
from holdfast.runtime.calls.call_places import CallPlaces, count_cores
from holdfast.runtime.calls.executors import Executor, check_given, refuse_uncallable
from holdfast.runtime.calls.loop_watch import LoopWatch
from holdfast.runtime.calls.process.executor import build_executors
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.door import Door
from holdfast.runtime.driver import Driver
from holdfast.runtime.families import Families
from holdfast.runtime.followers import Followers, Following
from holdfast.runtime.holdings import Holdings, elapsed
from holdfast.runtime.journal import Journal
from holdfast.runtime.listeners import Listener, Listeners, check_listeners
from holdfast.runtime.preparation import NO_FUNCTIONS, Functions, OutOfScope, read_resume, refuse_no_edit
from holdfast.runtime.resources import Resources, open_resources
from holdfast.runtime.runner import SOON_S, Runner
from holdfast.runtime.scripts import script_of
from holdfast.runtime.services import (
    AcceptedChanges,
    Commits,
    ReadingThread,
    Services,
    open_store_for,
    refuse_while_loading,
    waker,
)
from holdfast.runtime.signals import Signals, Stopping
from holdfast.runtime.unheld_runs import UnheldRuns
from holdfast.runtime.verb_signatures import asked, takes, takes_run
from holdfast.runtime.worker import Trouble, Until, Worker
from holdfast.storage.contract import RunStatus, Store
from holdfast.storage.leases import this_process
from holdfast.storage.rows import SALT_BYTES, Salts
from holdfast.storage.writer import InlineWriter, Writer
from holdfast.upkeep import retention
from holdfast.upkeep.retention import KEEP_LAST, Deleted, Keeper, Pruned

S = TypeVar("S")
Edit = Callable[[Any], Any] | Mapping[str, Any]


class Engine:
    """Runs flows on a store. Use it as `async with Engine(store, flows=[…]) as engine`."""

    _driver_type: type[Driver] = Driver
    _caller_blocks = False
    """True if the caller blocks until the run returns: a waiting coroutine is then unwound sooner."""
    _was_opened = False
    _driver: Driver
    _door: Door

    def __init__(
        self,
        store: str | os.PathLike[str] | Store | None = None,
        *,
        flows: Iterable[Flow[Any] | FlowSource] | Flow[Any] | FlowSource = (),
        resources: Resources | None = None,
        executors: Mapping[str, Executor] | None = None,
        listeners: Iterable[Listener] = (),
        grace: float | None = None,
        lease_ttl: float | None = None,
        durability: settings.Durability | None = None,
        park_after: float | None = None,
        blobs: str | os.PathLike[str] | None = None,
        blob_over: int | None = None,
        log_limit: int | None = None,
        run_base: str | os.PathLike[str] | None = None,
        threads: int | None = None,
        processes: int | None = None,
        keep_checkpoints: int | None = None,
        clock: Clock | None = None,
        luck: random.Random | None = None,
        inline: bool = False,
    ) -> None:
        """`resources` are in `ctx.resources` of every node: a mapping, or a function that returns one, which may be async or a
        context manager; it is called when the engine is opened, and what it has opened is closed after the last node has ended.
        `executors` call the nodes that name them (`@graph.node(executor="ray")`); the engine does not close them.
        `listeners` are notified about the runs that this engine executes (`hf.Listener`). `inline` makes all calls and commits
        on the event loop itself; a test that also gives `clock` and `luck` then controls time and random numbers.
        """
        if store is not None and not isinstance(store, (str, os.PathLike)) and not hasattr(store, "append"):
            raise SettingError(f"store={store!r} is not a store: give a path, a URL, or an open store")
        given_store = store if not isinstance(store, (str, os.PathLike)) else None
        url = store if given_store is None else None
        if given_store is not None and blobs is not None:
            raise SettingError(
                "blobs= needs a store that is given as a path or URL: an open store already has its blobs"
            )
        self.settings = settings.resolve(
            {
                "store": url,
                "grace": grace,
                "lease_ttl": lease_ttl,
                "durability": durability,
                "park_after": park_after,
                "blobs": blobs,
                "blob_over": blob_over,
                "log_limit": log_limit,
                "run_base": run_base,
                "threads": threads,
                "processes": processes,
                "keep_checkpoints": keep_checkpoints,
            }
        )
        self._inline = inline
        self._executors = check_given(executors) if executors else {}
        self.flows: dict[str, Flow[Any] | FlowSource] = {}
        self.flow_files: dict[str, str] = {}
        """Name of a flow -> the file that the command line loaded the flow from. Runs that this engine creates record the path,
        so that suggested commands can name the file. Holdfast never imports a file because its path is recorded."""
        self.accepts = AcceptedChanges()
        """What the worker of this engine does with runs whose flow has changed."""
        for flow in flows if isinstance(flows, Iterable) else (flows,):
            self.add(flow)
        self._given_store = given_store
        self._given_resources = resources
        self._opened = AsyncExitStack()
        """What is closed with this engine."""
        self._clock = clock or SystemClock()
        self._luck = luck or random.Random()  # noqa: S311 - jitter and ids, no secrets
        self._services: Services | None = None
        lease_clock = elapsed if type(self._clock) is SystemClock else self._clock.now
        self._holdings = Holdings(now=lease_clock, quiet=inline)
        self._listeners = check_listeners(listeners)
        self._followers: Followers | None = None
        self._keeper: Keeper | None = None
        self._scribe: Scribe | None = None
        self._worker: Worker | None = None
        self._has_drained = False
        """True if `work()` has returned because the engine was stopped."""
        self.os_signals = Signals(self)

    # --- life -----------------------------------------------------------------------------------------

    def add(self, flow: Flow[Any] | FlowSource) -> None:
        """Make a flow known, so that this engine can execute its runs, and the flows that its nodes call (`Graph.call`); or the
        capabilities of plans (`plan.Capabilities`), so that it can execute every plan that needs no others.
        """
        if isinstance(flow, Flow) and flow.source is not None:
            flow = flow.source
        if not isinstance(flow, Flow) and not hasattr(flow, "made"):
            given = f"graph {flow.name!r}" if isinstance(flow, Graph) else repr(flow)
            raise SettingError(f"{given} is not a flow; give what graph.compile() returns")
        known = self.flows.get(flow.name)
        if known is not None and known is not flow:
            raise SettingError(
                f"two flows are named {flow.name!r}, but an engine finds the flow of a run by its name. Rename one"
            )
        if known is None and not self._inline:
            refuse_uncallable(flow, self._executors)
        self.flows[flow.name] = flow
        if known is None:
            for called in flow.called:
                self.add(called)

    async def __aenter__(self) -> Self:
        refuse_while_loading()
        if self._was_opened:
            raise SettingError("an engine can be opened only once; make another one with Engine(…)")
        resources = await open_resources(self._given_resources, self._opened)
        try:
            self._begin(resources)
        except BaseException:
            await self._opened.aclose()
            raise
        return self

    def _begin(self, resources: Mapping[str, Any]) -> None:
        store = self._given_store or open_store_for(self.settings, self._clock)
        writer = InlineWriter(store) if self._inline else Writer(store, waker(asyncio.get_running_loop()))
        holder = this_process(self.settings.lease_ttl)
        files = self._files(store)
        self._was_opened = True
        limits = {"thread": self.settings.threads, "process": self.settings.processes or count_cores()}
        self._services = services = Services(
            store=store,
            commits=Commits(writer),
            clock=self._clock,
            luck=self._luck,
            salts=partial(self._luck.randbytes, SALT_BYTES) if self._inline else Salts().take,
            holder=holder,
            resources=resources,
            accepts=self.accepts,
            blob_over=self.settings.blob_over,
            log_limit=self.settings.log_limit,
            inline=self._inline,
            reading=ReadingThread(inline=self._inline),
            given_executors=self._executors,
            build_executors=partial(build_executors, processes=limits["process"]),
            limits=limits,
            haunted={},
            faults={},
            park_after=self.settings.park_after,
            park_soon=min(self.settings.park_after, SOON_S if self._caller_blocks else math.inf),
            holdings=self._holdings,
            run_options=self._run_options,
            build_families=self._build_families,
            listeners=Listeners(),
            **files,
        )
        self._holdings.open(store, holder, services.aside)
        self._holdings.calls = services.waiting_calls
        if not self._inline:
            self._holdings.look = LoopWatch(threading.get_ident(), lambda: self._holdings.moving > 0).look
        if self.settings.keep_checkpoints:
            self._keeper = Keeper(store, self.settings.keep_checkpoints, services.aside, self._holdings)
        for listener in (self._keeper, self._scribe, *self._listeners):
            if listener is not None:
                services.listeners.add(listener)
        if not self._inline:
            self.os_signals.open()
        self._driver = self._driver_type(services, self.flows)
        self._door = Door(UnheldRuns(self._driver))

    def _files(self, store: Store) -> dict[str, Any]:
        """Return the services that give nodes a folder for their files; empty if `run_base` is not set. Also creates the
        scribe, which writes receipts to `run_base`.
        """
        if not self.settings.run_base:
            return {}
        run_base = os.path.abspath(os.path.expanduser(self.settings.run_base))
        self._scribe = Scribe(run_base, store, inline=self._inline)
        return {"artifacts": partial(Artifacts, run_base), "artifact_names": partial(left, run_base)}

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.os_signals.is_closing = True
        try:
            await self.close()
        finally:
            self.os_signals.close()
        if error is None or isinstance(error, asyncio.CancelledError):
            self.os_signals.pass_on()

    async def close(self) -> None:
        """Stop the runs that this engine executes, release its leases, and close the store if this engine opened it."""
        if self._services is None:
            return
        services, holdings = self._services, self._holdings
        if self.is_executing or holdings.has_joins:
            await self.stop("engine closed")
        await self._driver.settle_families()
        self._driver.close()
        holdings.close()
        self._services = self._followers = None
        services.close()
        if self._keeper is not None:
            self._keeper.close()
        if self._scribe is not None:
            await asyncio.to_thread(self._scribe.close)
        try:
            await self._opened.aclose()
        finally:
            if self._given_store is None:
                services.store.close()

    def stop(self, reason: str = "stopped", *, grace: float | None = None) -> Stopping:
        """Begin to stop the engine: it claims no run and starts no node any more. Running nodes get `grace` seconds to end;
        then they are cancelled and recorded as interrupted. Await the result of this method to wait until everything has
        stopped. A second call changes nothing, except that `grace=0` cancels the running nodes at once. An engine that is not
        open executes nothing, and nothing happens.
        """
        grace_s = self.settings.grace if grace is None else settings.read_seconds(grace, "option 'grace'")
        if self._services is None:
            return Stopping(self._holdings)
        self._holdings.stop(reason, grace_s, at_once=grace is not None and grace_s == 0)
        if self._worker is not None:
            self._worker.look()
        return Stopping(self._holdings)

    def _check_renames(self, rename: Mapping[str, str]) -> None:
        """Refuse a new name that no flow has: it would be ignored in every run. Raises `SettingError`."""
        if all(isinstance(flow, Flow) for flow in self.flows.values()):
            known = {name for flow in self.flows.values() if isinstance(flow, Flow) for name in flow.nodes}
            for old, new in rename.items():
                if new not in known:
                    near = did_you_mean(new, known)
                    raise SettingError(
                        f"rename {old!r} to {new!r}: no flow of this worker has a node {new!r}{near}"
                    )

    @property
    def is_executing(self) -> bool:
        """True if this engine holds a run, or if `work()` is in progress."""
        return len(self._holdings) > 0 or self._worker is not None

    def _open(self) -> Services:
        if self._services is None:
            raise SettingError("the engine is not open; use it as `async with Engine(…) as engine`")
        return self._services

    # --- verbs that make runs -------------------------------------------------------------------------

    @takes(records.Start, records.RunOptions)
    async def run(
        self,
        flow: Flow[S],
        input: S | Mapping[str, Any] | None = None,
        **options: Unpack[records.RunOptions],
    ) -> Run[S]:
        """Start a run and execute it. If a run with this id, flow and input exists already, it is resumed; if it has ended,
        nothing is executed. If another call or engine executes it, this call waits for it, and takes the run over if the
        process that executes it disappears.

        Once the `budget` is spent, nothing more begins, and the run fails with `BudgetExceeded`. `schedule` replaces that of the
        flow. With `scope`, only these nodes run; then the run is paused. All three are in force after every resume.
        """
        self.add(flow)
        wanted, run_id = creation.read_start(self._open(), options), options.get("run_id")
        while True:
            journal = self._new_run(flow, input, wanted, held=True)
            if journal is not None:
                break
            assert run_id is not None
            with suppress(RunNotFound):  # the call that was to record the run has ended before it could
                return await self._run_again(flow, run_id)
            await asyncio.sleep(0)
        run_id, create, drive = journal.state.run_id, journal.create, self._driver.drive(journal)
        del journal  # while the run is asleep, nothing here keeps it in memory
        try:
            return self._driver.result(await self._driver.drive_family(run_id, drive, is_new=True))
        except RunExists:
            creation.require_same(self.store, run_id, create)
            return await self._run_again(flow, run_id)

    @takes(records.Start, records.StartHere)
    async def start(
        self,
        flow: Flow[S],
        input: S | Mapping[str, Any] | None = None,
        **options: Unpack[records.StartHere],
    ) -> str:
        """Record a run and return its id. A worker executes it, or `resume` does. Of the runs that wait for a worker in a
        `queue`, those with the highest `priority` come first. Workers leave the run alone until `begin_at`, a time with a time
        zone. With `on_exists="use"`, an existing run of this id and flow is used, whatever its input; by default, another input
        raises `RunExists`. `trace_parent` is the header `traceparent` of the request for which the run is started (W3C).
        `budget`, `schedule` and `scope`: see `run`.
        """
        self.add(flow)
        services = self._open()
        wanted = creation.read_start(services, options)
        journal = self._new_run(flow, input, wanted, held=False)
        if journal is None:
            assert wanted.run_id is not None
            return wanted.run_id
        try:
            await journal.save_and_wait()
        except RunExists:
            creation.require_same(services.store, journal.state.run_id, journal.create, wanted.on_exists)
        return journal.state.run_id

    def _build_families(self) -> Families:
        return Families(self._open(), self._door.unheld, self.flows, self.add, self.settings.concurrency)

    def _run_options(self, flow: Flow[Any], place: dict[str, Any]) -> dict[str, Any]:
        """Return the options that this engine gives a new run of a flow; `place` are those of its queue."""
        options: dict[str, Any] = {"durability": self.settings.durability, **place}
        if self._scribe is not None:
            options[RUN_BASE_WANTED] = True
        file = self.flow_files.get(flow.name) or script_of(flow)
        if file is not None:
            options[FLOW_FILE] = file
        return options

    def _new_run(
        self, flow: Flow[Any], given: Any, asked: creation.Starting, *, held: bool
    ) -> Journal | None:
        """Create a journal with `RunCreated` recorded; None if the same run exists, or if this engine is about to record it."""
        services = self._open()
        options = self._run_options(flow, asked.place)
        journal = creation.start_journal(services, flow, given, asked, options, held=held)
        if journal is None or not held:
            return journal
        # The first append finds out whether the run exists. Before that, two calls that execute it can meet only in this engine.
        run_id = journal.state.run_id
        runner = self._holdings.get(run_id)
        if runner is None:
            return journal
        known = runner.journal.create if isinstance(runner, Runner) else None
        creation.require_same(services.store, run_id, journal.create, asked.on_exists, known)
        return None

    async def _run_again(self, flow: Flow[S], run_id: str) -> Run[S]:
        """Do what `run` does for a run that exists: wait for it if it is executed, resume it if it is not, return it if it has
        ended.
        """
        ended_before = run_id not in self._holdings and self.store.run(run_id).status in ENDED
        faults: list[BaseException] = []
        with nesting.waiting_for(self.store.generation, run_id):
            while await self._driver.join(run_id, faults):
                with suppress(RunHeld):  # another engine claimed the run first
                    try:
                        return await self.resume(run_id)
                    except OutOfScope:  # everything that the caller wants is done
                        return self.reader.get(run_id, flow)
            await self._open().families.follow(run_id)
            return result_of(
                self.reader.get(run_id, flow), fault=faults[0] if faults else None, earlier=ended_before
            )

    # --- verbs that execute runs ----------------------------------------------------------------------

    @takes(records.Resume, records.ResumeHere)
    async def resume(self, run: str, **options: Unpack[records.ResumeHere]) -> Run[Any]:
        """Resume a run: from the end of its log, or from an earlier event. Nodes that completed before that event
        never run again. `expects` is the digest of a `preview`: if the resume would now do something else, it raises
        `PreviewStale`. From the end of the log, the child runs because of which nodes failed are resumed too; `confirm` names
        their nodes as `"RUN/node"`.

        With `execute=False`, this process executes nothing: the request is left in the inbox of the run, the run is returned as
        it is, and a worker resumes it. With an `id`, a request can then be left twice without harm: the second time, the returned
        run has `repeated` set.
        """
        execute, id = options.pop("execute", True), options.pop("id", None)
        run_id, request, functions = read_resume(run, options)
        return await self._ask(run_id, request, id, execute, functions=functions)

    @takes(records.Retry, records.RetryHere)
    async def retry(
        self, run: str, node: str | None = None, **options: Unpack[records.RetryHere]
    ) -> Run[Any]:
        """Retry a node that failed, was interrupted or waits (default: all such nodes), and resume the child runs for which it
        failed. With `fresh`, the values that its last execution kept are not used, and it starts other child runs. `confirm`
        (nodes of child runs), `execute`, `id` and `expects`: see `resume`.
        """
        return await self._ask(run, *asked(records.Retry, options, node=node))

    @takes(records.Skip, records.SkipHere)
    async def skip(
        self, run: str, node: str, update: Any = None, **options: Unpack[records.SkipHere]
    ) -> Run[Any]:
        """Skip a node that failed, was interrupted or waits: `update` takes the place of its result, and the run continues.
        `execute`, `id` and `expects`: see `resume`.
        """
        return await self._ask(run, *asked(records.Skip, options, node=node, update=update))

    async def work(
        self,
        *,
        concurrency: int | None = None,
        queues: Collection[str] = (),
        until: Until | None = None,
        on_change: records.OnChange = "refuse",
        rename: Mapping[str, str] | None = None,
        on_end: Callable[[Run[Any]], None] | None = None,
        on_report: Callable[[Trouble], None] | None = None,
        on_drain: Callable[[int], None] | None = None,
    ) -> str | None:
        """Work as a worker: claim runs of this engine's flows that wait for a worker, and execute up to `concurrency` of them
        at a time. With `queues`, only runs in these queues are claimed. Ends when the engine is stopped or when `until` is met:
        a function that returns true, or "idle" to end when no run is left to execute now. Before it returns, it waits for the
        runs that it still executes. Returns the reason that was given to `stop`, or None. After it has returned such a reason,
        another call raises `SettingError`.

        With `on_change="compatible"`, this worker also continues runs whose flow has changed in a compatible way, and `rename`
        has the old and the new names of nodes; a request that says something itself counts instead: see `resume`.

        `on_end` is called with every run that this worker executed and that has stopped (default: failed runs are logged),
        `on_report` with every problem (default: it is logged), and `on_drain` with the number of runs that are still executed
        when the worker claims no more.
        """
        if self._worker is not None:
            raise SettingError(
                "work() is already running on this engine; give it a higher concurrency, or open another engine"
            )
        if self._has_drained:
            raise SettingError(
                f"this engine is stopping ({self._holdings.stopping}) and claims no more runs. work() has already "
                "returned that reason: end the loop around work() when it returns one."
            )
        changes = read_options(records.Resume, {"on_change": on_change, "rename": rename})
        self._check_renames(changes["rename"])
        services = self._open()
        self.accepts.on_change, self.accepts.rename = changes["on_change"], changes["rename"]
        self._worker = self._holdings.taker = Worker(
            self._door.unheld,
            concurrency=self.settings.concurrency if concurrency is None else concurrency,
            queues=queues,
            until=until,
            on_end=on_end,
            on_report=on_report,
            on_drain=on_drain,
        )
        services.on_refused = self._worker.report_refused
        try:
            await self._worker.work()
        finally:
            self._worker = self._holdings.taker = None
        self._has_drained = self._holdings.stopping is not None
        return self._holdings.stopping

    # --- verbs that record a request ------------------------------------------------------------------

    @takes(records.Cancel, records.CancelHere)
    async def cancel(
        self, run: str, reason: str | None = None, **options: Unpack[records.CancelHere]
    ) -> Run[Any]:
        """End a run for good. Running nodes are stopped. With an `id`, a repeated request changes nothing. `expects`: see
        `resume`.
        """
        return await self._ask(run, *asked(records.Cancel, options, reason=reason))

    @takes(records.Pause, records.PauseHere)
    async def pause(
        self, run: str, reason: str | None = None, **options: Unpack[records.PauseHere]
    ) -> Run[Any]:
        """Pause a run: running nodes may end, but no node starts until the run is resumed. `id`: see `cancel`."""
        return await self._ask(run, *asked(records.Pause, options, reason=reason))

    @takes(records.Edit, records.EditHere)
    async def edit(self, run: str, edit: Edit, **options: Unpack[records.EditHere]) -> Run[Any]:
        """Change fields of the state of a run that waits, is paused, interrupted, failed or has not begun. `edit` is a mapping of
        fields, or a function of the state, which is called here: the edit is refused if the run has moved since. An engine that
        was not given the flow leaves the edit for a worker. With an `id`, a repeated request changes nothing.
        """
        if isinstance(edit, Mapping):
            return await self._ask(run, *asked(records.Edit, options, edit=edit))
        refuse_no_edit(edit, run)
        return await self._ask(run, *asked(records.Edit, options), functions=Functions(edit=edit))

    @takes(records.Answer, records.AnswerHere)
    async def answer(
        self, run: str, question: str, value: Any, **options: Unpack[records.AnswerHere]
    ) -> Run[Any]:
        """Answer a question of a run, by its key, or by the name of its node if that has only one open question. This only
        records the answer: the engine that executes the run continues with it, otherwise `resume` does. With an `id`, a repeated
        answer changes nothing. `update` is for the answer `skip`; `result`, `step` and `item` are for `happened`. An agent gives
        `by="agent:…"` and its `confidence`. With `wait`, the run is returned when it has stopped since or asks something, or
        after `timeout` seconds. Raises `AnswerRefused` and `RunOver`.
        """
        wait_s = options.pop("wait", None)
        answered = await self._ask(run, *asked(records.Answer, options, question=question, value=value))
        if wait_s is None:
            return answered
        with suppress(TimeoutError):
            await self._driver.until_stopped(run, wait_s)
        return mark_repeated(await self.get(run), answered.repeated)

    @takes(records.Signal, records.SignalHere)
    async def signal(
        self, run: str, name: str, payload: Any = None, **options: Unpack[records.SignalHere]
    ) -> Run[Any]:
        """Send a signal to a run. It goes to the `ctx.wait_for` that has waited longest for that name, or is kept for the next
        one. This only records the signal. With an `id`, a signal can be sent twice without harm: the second time nothing changes,
        and the returned run has `repeated` set. Raises `SignalRefused` if the payload does not fit that wait, and `RunOver`.
        """
        return await self._ask(run, *asked(records.Signal, options, name=name, payload=payload))

    async def _ask(
        self,
        run_id: str,
        request: records.AnyRequest,
        id: str | None,
        execute: bool,
        *,
        functions: Functions = NO_FUNCTIONS,
    ) -> Run[Any]:
        outcome = await self.door.ask(run_id, request, id=id, execute=execute, functions=functions)
        return self._door.view(run_id, outcome)

    @property
    def door(self) -> Door:
        """Where requests are handed in as records. The verbs of this engine are a few lines over it."""
        self._open()
        return self._door

    # --- forks ----------------------------------------------------------------------------------------

    @takes(records.Fork, records.ForkHere)
    async def fork(self, run: str, **options: Unpack[records.ForkHere]) -> str:
        """Make a new, self-contained run that shares the history up to a checkpoint (default: the latest). Returns its id;
        `resume` executes it. `repeat` says what it does, for all nodes or by node, with visits of nodes that are not idempotent
        which its parent has begun. With `fresh`, its idempotency keys differ from those of its parent. `expects`: see `resume`.
        """
        services = self._open()
        parent, wanted = creation.read_fork(run, options)
        row, run_id = services.store.run(parent), wanted.run_id
        fork_id = creation.check_id(run_id) if run_id is not None else creation.new_id(self._luck, row.flow)
        journal = creation.fork_journal(
            services, find_flow(services.store, self.flows, row), row, structs.replace(wanted, run_id=fork_id)
        )
        try:
            await journal.save_and_wait()
        except RunExists:
            creation.require_same(services.store, fork_id, journal.create)
        return fork_id

    # --- upkeep ---------------------------------------------------------------------------------------

    @takes_run
    async def prune(
        self,
        run: str,
        keep_last: int = KEEP_LAST,
        *,
        compact: bool = False,
        archive: str | os.PathLike[str] | None = None,
    ) -> Pruned:
        """Retire all checkpoints of a run except the last `keep_last`, and delete snapshots that only the retired ones needed.
        With `compact`, one stored state (a base) then replaces the events before the kept checkpoints; that raises `RunHeld` if
        another process holds the run. With `archive`, the whole log is first written to that file or URL. Running nodes never
        wait for this.
        """
        services = self._open()
        call = partial(retention.prune, services.store, run, keep_last)
        if compact:  # which needs the lease of the run, and this engine may hold it
            held = self._holdings.get(run)
            self._holdings.hold()
            call = partial(
                retention.compact,
                services.store,
                run,
                keep_last,
                holder=self._holdings.holder,
                fence=held.fence if held is not None else None,
                rewinds=held.journal.rewinds if isinstance(held, Runner) else (),
                archive_to=os.fspath(archive) if archive is not None else None,
                blob_over=services.blob_over,
                doubt=self._holdings.doubt,
            )
        return call() if services.inline else await asyncio.to_thread(call)

    @takes_run
    async def delete(self, run: str) -> Deleted:
        """Delete a run that is completed, cancelled or failed, with its log, for good. Raises `ResumeRefused` if it is not over,
        if a run was forked from it, if a run that is not over has started it, or if a request to it waits; and `RunHeld`.
        """
        services = self._open()
        call = partial(retention.delete_run, services.store, run)
        return call() if services.inline else await asyncio.to_thread(call)

    # --- verbs that read ------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The open store."""
        return self._open().store

    @property
    def places(self) -> Mapping[str, CallPlaces]:
        """Name of an executor -> the places for its calls: how many there are, how many are taken, and how many calls wait."""
        return self._open().places

    @property
    def reader(self) -> Reader:
        """The reader of the open store. It needs no event loop."""
        return Reader(self._open().store, self.flows)

    async def preview(
        self, run: str, verb: str, /, *, commands: CommandLine | None = None, **options: Any
    ) -> Preview:
        """Find out what `resume`, `retry`, `skip`, `fork` or `cancel` would do to a run, without doing it: which nodes run again,
        which are kept, and why it would be refused. `options` are those of the verb. Its digest is `expects` of the verb.
        """
        return await self._open().reading.call(self._door.preview, run, verb, options, commands)

    async def get(self, run: str) -> Run[Any]:
        """Get a run as it is now or, by `"r1@17"`, as it was at that event. Its state is typed if this engine has the flow."""
        return await self._open().reading.call(self.reader.get, run)

    async def runs(
        self,
        *,
        status: RunStatus | Collection[RunStatus] = (),
        flow: str | None = None,
        labels: Mapping[str, str] | None = None,
        parent: str | None = None,
        origin: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[RunSummary]:
        """List the runs that meet every condition, newest first. `parent`: the forks of this run; `origin`: its child runs."""
        return await self._open().reading.call(
            self.reader.runs, status=status, flow=flow, labels=labels, parent=parent, origin=origin, before=before, limit=limit
        )  # fmt: skip

    async def state(self, run: str, checkpoint: str | int | None = None) -> Any:
        """Get the state of a run at a checkpoint (default: at the end), typed if this engine has the flow."""
        return await self._open().reading.call(self.reader.state, run, checkpoint)

    @takes_run
    async def events(
        self, run: str, after: int = 0, node: str | None = None, kind: str | None = None
    ) -> list[EventView]:
        """List the stored events of a run, oldest first: those after this seq, or only those of a node or kind."""
        return await self._open().reading.call(self.reader.events, run, after, node, kind)

    @takes_run
    async def checkpoints(self, run: str) -> list[Checkpoint]:
        """List the checkpoints from which a run can be resumed or forked, oldest first."""
        return await self._open().reading.call(self.reader.checkpoints, run)

    @takes_run
    async def ledger(self, run: str, *, verify: bool = False) -> Ledger:
        """Get every decision in the log of a run; with `verify`, also which events were removed or altered since."""
        return await self._open().reading.call(self.reader.ledger, run, verify=verify)

    @overload
    def follow(
        self, run: str, after: int | str = 0, *, chunks: Literal[False] = False, stay: bool = False
    ) -> Following[EventView]: ...

    @overload
    def follow(
        self, run: str, after: int | str = 0, *, chunks: Literal[True], stay: bool = False
    ) -> Following[EventView | Chunk]: ...

    @takes_run
    def follow(
        self, run: str, after: int | str = 0, *, chunks: bool = False, stay: bool = False
    ) -> Following[Any]:
        """Yield the events of a run as they become durable, without gap or repeat, until the run has stopped; with `stay`, until
        it is over (completed or cancelled). With `chunks`, also yield the chunks that its nodes stream, as they arrive. `after`
        is the seq of an event, or the `cursor` of an earlier follower.
        """
        if self._followers is None:
            self._followers = Followers(self._open())
        return self._followers.follow(run, after, chunks=chunks, stay=stay)

    @takes_run
    async def requests(self, run: str) -> list[RequestView]:
        """List the requests to a run that wait for an engine, and those that were refused, oldest first."""
        return await self._open().reading.call(self.reader.requests, run)

    @takes_run
    async def questions(self, run: str | None = None) -> list[AskedQuestion]:
        """List the open questions of one run and of its child runs, or of all runs, oldest first."""
        rest = self.reader.question_pages(run)
        pages: list[list[AskedQuestion]] = []
        # Read page by page: between two pages, the event loop and shorter reads get their turn.
        while (page := await self._open().reading.call(next, rest, None)) is not None:
            pages.append(page)
        return in_asking_order(pages)

    @takes_run
    async def wait(self, run: str, timeout: float | None = None, *, until: WaitedFor = "stopped") -> Run[Any]:
        """Wait until a run has stopped, in whichever process it is executed. One that only waits for child runs has not, as long
        as one of them goes on. With `until="ended"`, also wait through questions and pauses. Raises `TimeoutError` after
        `timeout` seconds, and `RunHeld` if the run waits for this call in turn and there is no timeout.
        """
        self._open()
        await self._driver.until_stopped(run, timeout, until)
        return result_of(await self.get(run))
