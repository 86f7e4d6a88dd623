"""`Families` creates the child runs of nodes, and executes the families of the runs that this engine executes.

A family is a run with its children, their children, and so on. `Engine.run` and `Engine.resume` execute the family of their run,
as a worker limited to it would: at most `concurrency` children at a time, and none that is in a queue of its own. Whichever
engine claims a child first executes it. They return when the family can only wait: for an answer, a signal, an operator, or a
worker that is not there.

Invariants
- A child is created in the append of its caller's `ChildStarted`, and reports its end in its own last append. This module only
  makes things happen sooner: what it does not do, because its process dies, a worker or the next resume does.
- A run that another engine holds is left alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.child_place import ChildOptions, ChildPlace
from holdfast.core.graph import Flow
from holdfast.core.run_state import FINAL, GOING, OFFERED
from holdfast.errors import (
    FenceLost,
    FlowNotFound,
    HoldfastError,
    RunHeld,
    RunNotFound,
    RunOver,
    StoreBusy,
    StoreError,
    StoreFull,
)
from holdfast.reading import inbox
from holdfast.reading.known_flows import Flows, find_loaded
from holdfast.reading.relatives import goes_on_by_itself, may_move, open_family
from holdfast.reading.views import Run
from holdfast.runtime import creation
from holdfast.runtime.clock import Timer
from holdfast.runtime.followers import POLL_S
from holdfast.runtime.runner import Runner, only_waits
from holdfast.runtime.services import Services
from holdfast.runtime.unheld_runs import UnheldRuns
from holdfast.storage.contract import Along, Append, Request, RunRow
from holdfast.storage.queues import DEFAULT_QUEUE

_LOOK_S_MAX = 5.0
"""Seconds between two looks at a family that only waits, or is executed elsewhere, at most."""
_AGAIN_S = 1.0
"""Seconds until a member is driven again that the store did not let be driven."""
_log = logging.getLogger("holdfast")


class Families:
    """Creates child runs, passes on what an append has left for other runs, and executes families."""

    def __init__(
        self,
        services: Services,
        unheld: UnheldRuns,
        flows: Flows,
        add: Callable[[Flow[Any]], None],
        concurrency: int,
    ) -> None:
        """`flows` are those that the engine knows, and `add` makes another one known."""
        self.services = services
        self.unheld = unheld
        self._add = add
        self.flows = flows
        self.concurrency = concurrency
        self.members: dict[str, ExecutedFamily] = {}
        """Run -> the family that is executed here and has this run."""
        self._errands: set[asyncio.Task[None]] = set()

    def know(self, flow: Flow[Any]) -> None:
        """Make a flow known, so that this engine can execute the children of this flow. Raises `SettingError`."""
        self._add(flow)

    def know_loaded(self, row: RunRow) -> None:
        """Make the flow of a child known that another process has started: a module that is imported here may have it. Raises
        `FlowNotFound` if none has, or if it is not clear which flow is meant.
        """
        loaded = find_loaded(row.flow)
        if len(loaded) != 1:
            raise FlowNotFound(row.flow, self.flows, run_id=row.run_id, several=[*loaded])
        (flow,) = loaded.values()
        self.know(flow)

    def prepare(self, flow: Flow[Any], given: Any, place: ChildPlace, options: ChildOptions) -> Append:
        """Return the first append of a child run. Raises `StateError` and `SettingError` if input or options do not fit."""
        return creation.child_append(self.services, flow, given, place, options)

    def moved(self, along: Along) -> None:
        """Begin the children that an append has created, and pass its requests on, to the runs that this engine executes. Other
        engines find them in the store.
        """
        holdings = self.services.holdings
        for start in along.starts:
            created = start.create
            family = self._family_of(created.origin or "") if created is not None else None
            if family is not None and created is not None and created.queue == DEFAULT_QUEUE:
                family.add(start.run_id)
        for run_id, request in along.posts:
            held, family = holdings.get(run_id), self.members.get(run_id)
            if held is not None:
                held.request(inbox.read(replace(request, run_id=run_id, at=self.services.store.now())))
            elif family is not None:
                family.add(run_id)
            elif request.verb == inbox.Cancel.verb and holdings.taker is None:
                self._carry_out(run_id, request)
        if holdings.taker is not None:
            holdings.taker.look()

    def asked(self, run_id: str) -> None:
        """Drive a member that was left until its time, if a request has made it due before."""
        family = self.members.get(run_id)
        if (
            family is not None
            and family.is_timed(run_id)
            and self.services.store.run(run_id).status == "pending"
        ):
            family.add(run_id)

    def is_at_rest(self, run_id: str) -> bool:
        """Return whether the family of a run is executed here, and can only wait."""
        family = self.members.get(run_id)
        return family is not None and family.is_at_rest

    def _family_of(self, caller: str) -> ExecutedFamily | None:
        """Return the family that is executed here and has this run; None if a worker executes the run, or no engine here."""
        family, held = self.members.get(caller), self.services.holdings.get(caller)
        if family is None and isinstance(held, Runner) and not held.is_of_worker:
            family = self.members[caller] = ExecutedFamily(self, caller)
        return family

    def _carry_out(self, run_id: str, request: Request) -> None:
        """Cancel a run that no engine executes, because its caller was cancelled here: there may be no worker that would."""
        errand = asyncio.get_running_loop().create_task(self._cancel_idle(run_id, request))
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)

    async def _cancel_idle(self, run_id: str, request: Request) -> None:
        with suppress(RunNotFound, RunOver, StoreError):  # then a worker finds the request, or it is void
            if not self.services.store.run(run_id).held:
                await self.unheld.record_posted(run_id, inbox.read(replace(request, run_id=run_id)))

    async def settle(self) -> None:
        """Wait until the children of runs that were cancelled here are cancelled, if no engine executes them."""
        while self._errands:
            await asyncio.gather(*self._errands, return_exceptions=True)
            await asyncio.sleep(0)  # the errands that these have sent begin

    # --- executing ------------------------------------------------------------------------------------

    async def finish(self, run_id: str, run: Run[Any], *, is_new: bool) -> Run[Any]:
        """Execute the family of a run that was driven, until all of it has ended or can only wait. Returns the run as it is then.
        `is_new` is true if all its children were started while it was driven here.
        """
        family = self.members.get(run_id)
        if family is None and is_new:
            return run
        if family is None:
            family = self.members[run_id] = ExecutedFamily(self, run_id)
        is_over = run.status in FINAL
        try:
            if not is_over:
                family.plan(run_id)
            has_others = await family.rest(is_over=is_over)
            return self.unheld.view(run_id) if has_others and not is_over else run
        finally:
            await family.close()

    async def abandon(self, run_id: str) -> None:
        """Stop executing the family of a run that cannot be driven any more."""
        if run_id in self.members:
            await self.members[run_id].close()

    async def follow(self, run_id: str) -> None:
        """Execute the family of a run that only waits, as `finish` does."""
        family = self.members[run_id] = ExecutedFamily(self, run_id)
        try:
            await family.rest()
        finally:
            await family.close()


class _Survey(msgspec.Struct, frozen=True):
    """What a look at a family in the store has found."""

    has_others: bool = False
    due: list[str] = []
    """The members that can be driven here."""
    unknown: list[RunRow] = []
    """The members that could be driven here if this engine knew their flows, and that no live worker takes."""
    is_moving: bool = False
    """True if another member is executed elsewhere, or soon will be."""


class ExecutedFamily:
    """The family of one run that a caller executes here. Members are driven as a worker drives runs: one that only waits is
    released, and claimed again when it is due or has a request.
    """

    def __init__(self, families: Families, root: str) -> None:
        self._families = families
        self._root = root
        self._due: dict[str, None] = {}
        self._going: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        """Members that were due again while they were driven."""
        self._later: dict[str, Timer] = {}
        """Members that are due later -> the timer."""
        self._timed: set[str] = set()
        """The members that continue by themselves then: the others wait for an answer, a signal or a child, and only give up
        waiting, so that the caller need not wait for it."""
        self._soon: set[str] = set()
        """The members that could not be driven a moment ago, and are tried again after `_AGAIN_S` seconds."""
        self._refused: set[str] = set()
        """Members that cannot be executed here."""
        self._news: asyncio.Event | None = None
        self._has_others = False
        """True if the root has children."""

    def add(self, run_id: str) -> None:
        """Drive a member, now or as soon as fewer than `concurrency` are driven."""
        self._has_others = True
        self._families.members[run_id] = self
        if run_id in self._going:
            self._again.add(run_id)
        elif run_id not in self._refused:
            timer = self._later.pop(run_id, None)
            self._timed.discard(run_id)
            self._soon.discard(run_id)
            if timer is not None:
                timer.cancel()
            self._due[run_id] = None
            self._begin()

    @property
    def is_at_rest(self) -> bool:
        """True if every member that is driven here only waits, and none continues by itself."""
        holdings = self._families.services.holdings
        if self._due or self._again or self._timed:
            return False
        return all(only_waits(holdings.get(run_id)) for run_id in self._going)

    def _leave_waits(self) -> None:
        """Unwind the members that wait for children, and the root, if the whole family only waits: the caller then need not wait
        until they unwind by themselves.
        """
        if self.is_at_rest:
            for run_id in (self._root, *self._going):
                held = self._families.services.holdings.get(run_id)
                if isinstance(held, Runner):
                    held.leave_children()

    def is_timed(self, run_id: str) -> bool:
        """Return whether a member continues by itself when its time has come."""
        return run_id in self._timed

    def _begin(self) -> None:
        stopping = self._families.services.holdings.stopping
        while self._due and not self._is_full() and stopping is None:
            run_id = next(iter(self._due))
            del self._due[run_id]
            loop = asyncio.get_running_loop()
            self._going[run_id] = asyncio.Task(self._drive(run_id), loop=loop, context=contextvars.Context())
        self._ring()

    def _is_full(self) -> bool:
        return len(self._going) >= self._families.concurrency

    def _is_crowded(self) -> bool:
        """Return whether as many members are driven as may be, and all of them only wait: then none of their children could
        begin.
        """
        holdings = self._families.services.holdings
        return self._is_full() and all(only_waits(holdings.get(run_id)) for run_id in self._going)

    def _ring(self) -> None:
        if self._news is not None:
            self._news.set()

    async def _drive(self, run_id: str) -> None:
        services = self._families.services
        try:
            run = await self._families.unheld.drive(run_id, self._is_crowded)
            if run is None or run.status not in FINAL:
                self.plan(run_id)
            elif run_id != self._root:
                self._families.members.pop(run_id, None)
        except (RunHeld, FenceLost, RunNotFound, RunOver):
            self._again.discard(run_id)  # it is executed elsewhere, or is over
            if run_id in services.holdings:  # this engine has not noticed yet that it had lost the run
                self._add_soon(run_id)
        except (StoreBusy, StoreFull):
            self._add_soon(run_id)
        except HoldfastError as refused:
            self._refused.add(run_id)
            _log.warning("run %r: %s", run_id, refused)
        finally:
            if run_id != self._root:
                services.faults.pop(run_id, None)
            self._going.pop(run_id, None)
            if run_id in self._again:
                self._again.discard(run_id)
                self._due[run_id] = None
            self._begin()
            self._leave_waits()

    def _add_soon(self, run_id: str) -> None:
        clock = self._families.services.clock
        self._later[run_id] = clock.call_at(clock.now() + _AGAIN_S, lambda: self.add(run_id))
        self._timed.add(run_id)
        self._soon.add(run_id)

    def plan(self, run_id: str) -> None:
        """Find out when a member that was driven is due again."""
        services = self._families.services
        row = services.store.run(run_id)
        if row.status in FINAL:
            if run_id != self._root:
                self._families.members.pop(run_id, None)
        elif services.store.queues.waiting((run_id,)) and row.status in ("waiting", "paused"):
            self.add(run_id)
        elif not row.held and row.status in GOING and row.due_at is not None:
            clock = services.clock
            at = clock.now() + max(0.0, row.due_at - services.store.now())
            self._later[run_id] = clock.call_at(at, lambda: self.add(run_id))
            if goes_on_by_itself(row):
                self._timed.add(run_id)

    async def rest(self, *, is_over: bool = False) -> bool:
        """Return when no member can be executed here, and none moves elsewhere. If the root is over (`is_over`), return as soon
        as no member is executed here. Returns whether the run has a family.
        """
        services, looks = self._families.services, 0
        while services.holdings.stopping is None:
            await asyncio.sleep(0)
            if self._going or self._due:
                await self._hear()
                looks = 0
                continue
            if is_over:
                break
            found = await services.reading.call(self._survey)
            self._has_others = self._has_others or found.has_others
            for run_id in found.due:
                self.add(run_id)
            if not found.due and not found.is_moving and not self._timed:
                if not found.unknown:
                    break
                self._families.know_loaded(found.unknown[0])
            looks += 1
            await self._look_later(0.0 if found.due else min(POLL_S * looks, _LOOK_S_MAX))
        if self._going:  # the engine stops: the members have as much time to end as the root
            await asyncio.wait(list(self._going.values()))
        return self._has_others

    async def _hear(self) -> None:
        self._news = asyncio.Event()
        if self._going or self._due:
            await self._news.wait()

    async def _look_later(self, seconds: float) -> None:
        """Return after this time, or when a member is due. Another process may send a signal or an answer to a member that waits
        for its time; an engine without threads is alone, and `asked` tells it.
        """
        news, services = asyncio.Event(), self._families.services
        self._news = news
        timer = None
        if not (services.inline and self._timed):
            timer = services.clock.call_at(services.clock.now() + seconds, news.set)
        try:
            if not self._going and not self._due:
                await news.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _survey(self) -> _Survey:
        """Look at the whole family in the store. Called in the reading thread, so it changes nothing."""
        store = self._families.services.store
        rows = list(open_family(store, self._root))
        if not rows and not self._has_others:
            return _Survey()
        with suppress(RunNotFound):
            rows.append(store.run(self._root))
        asked = {one.run_id for one in store.queues.waiting([row.run_id for row in rows])}
        holders, due, unknown, is_moving = store.queues.holders(), list[str](), list[RunRow](), False
        refusals = {(one.run_id, one.holder) for one in store.queues.refusals([row.run_id for row in rows])}
        for row in rows:
            is_asked = row.run_id in asked
            can_drive = self._may_drive(row, is_asked)
            if can_drive and row.flow in self._families.flows:
                due.append(row.run_id)
            elif may_move(row, is_asked=is_asked, holders=holders, refusals=refusals):
                is_moving = True
            elif can_drive:
                unknown.append(row)
        return _Survey(has_others=True, due=due, unknown=unknown, is_moving=is_moving)

    def _may_drive(self, row: RunRow, is_asked: bool) -> bool:
        """Return whether a member can be driven here, now or later, if its flow is known."""
        if row.held or row.queue != DEFAULT_QUEUE:
            return False
        if row.run_id in self._refused or row.run_id in self._soon or row.status in FINAL:
            return False
        is_due_later = row.run_id in self._later
        return (
            row.status in OFFERED
            or is_asked
            or (row.status == "waiting" and row.due_at is not None and not is_due_later)
        )

    async def close(self) -> None:
        """Stop driving the members."""
        families = self._families
        for timer in self._later.values():
            timer.cancel()
        for task in self._going.values():
            task.cancel()
        if self._going:
            await asyncio.gather(*self._going.values(), return_exceptions=True)
        for run_id in [run_id for run_id, family in families.members.items() if family is self]:
            del families.members[run_id]
