"""A worker takes due runs from the queues, drives each until it stops or waits, and takes the next. All facts about a run are in
the store, so another worker can continue the run at any time.

It claims runs, it does not resume them (`RunClaimed`): no caller has asked, so a failed run stays failed, a paused one stays
paused, and the time limit of a run keeps running. If a request to resume the run is in its inbox, a caller has asked, and the
worker resumes it. A run that waits for a long time is released, for any worker to take when it
is due.

Invariants
- It executes at most `concurrency` runs at a time, and only of flows that this engine knows. It leaves other runs alone.
- A run that fails is recorded as failed, and the worker continues.
- A run that cannot be resumed (its flow has changed, a validation refused it, its log is unreadable or of a newer version) is
  released, recorded as refused by this worker (`Queues.refuse`) and reported once. The worker passes it over for a while, each
  time longer: another worker may have the code for it. It looks at the run again as soon as the run has moved, or has a new
  request.
- An idle worker rarely polls the database: it looks for runs when it is notified (`ear`), or when a run is due.
- It ends when it is stopped, when `until` says so, or when the store cannot be used until an operator repairs it. A store that
  does not answer, or is a replica that is not promoted yet, is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar

import msgspec

from holdfast.core import events
from holdfast.core.graph import Flow
from holdfast.core.run_state import TAKEABLE, RunState
from holdfast.errors import (
    BlobCorrupt,
    BlobMissing,
    FenceLost,
    HoldfastError,
    ResumeRefused,
    RunCancelled,
    RunFailed,
    RunNotFound,
    SchemaTooNew,
    SettingError,
    StoreBusy,
    StoreError,
    StoreFull,
    StorePoisoned,
    StoreReadOnly,
    StoreUnusable,
    end_sentence,
)
from holdfast.reading import history
from holdfast.reading.views import Run, result_of
from holdfast.runtime.clock import sleep
from holdfast.runtime.creation import check_queue
from holdfast.runtime.preparation import OtherCode, worker_flow_events
from holdfast.runtime.runner import only_waits
from holdfast.runtime.unheld_runs import UnheldRuns
from holdfast.storage import definitions
from holdfast.storage.contract import Query, in_order
from holdfast.storage.queues import Refusal, Taken, Wanted
from holdfast.upkeep.recovery import Recovery, RecoveryReport

T = TypeVar("T")
Until: TypeAlias = "Callable[[], Any] | Literal['idle']"

POLL_S = 15.0
"""Seconds without news after which a worker looks for runs anyway."""
UNHEARD_POLL_S = 1.0
"""Seconds after which a worker looks for runs again in an engine without threads, which gets no news from the store."""
SWEEP_S = 60.0
"""Seconds after which an idle worker looks again for runs that do not move."""
_FIRST_S, _LAST_S, _GROWS = 5.0, 3600.0, 4.0
"""How long a run that could not be resumed is passed over: seconds the first time, seconds at most, and the factor by which the
time grows.
"""
_BREATH_S, _BREATH_MAX_S = 0.02, 0.2
"""Seconds between two searches for runs that found none, while the store keeps sending news: at first, and at most."""
_LIMITED_S = 1.0
"""Seconds until the worker looks again for a due run whose queue is at its limit. It looks earlier if another run in that queue
ends.
"""
_REMEMBERED_MAX = 1000
"""How many reported problems a worker remembers. Of the runs that it passes over, it first forgets those that it has not met
again: if it forgot a run that is still due, it would take that run again and again, before all later runs.
"""
_PASSED_OVER_MAX = 50_000
_SHAPES_LOOKED = 200
_SHAPES_KEPT = 20
"""Among how many of the newest runs of a flow a worker looks for those that began with another graph, and how many of each such
graph it records.
"""
_HOPELESS = (StorePoisoned, StoreUnusable, SchemaTooNew)

_log = logging.getLogger("holdfast")


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that a worker reports to its operator. The worker continues after it."""

    run_id: str | None = None
    flow: str | None = None
    message: str


class _PassedOver(msgspec.Struct):
    until: float
    seconds: float
    told: str
    seq: int
    """The last event of the run when it was refused: if it has moved since, it is taken again."""
    asked: frozenset[str] = frozenset()
    """The requests to the run for which it was already taken again."""


class Worker:
    """Claims runs from queues and executes them until it is stopped."""

    def __init__(
        self,
        unheld: UnheldRuns,
        *,
        concurrency: int,
        queues: Collection[str],
        until: Until | None,
        on_end: Callable[[Run[Any]], None] | None,
        on_report: Callable[[Trouble], None] | None,
        on_drain: Callable[[int], None] | None,
    ) -> None:
        driver, self._unheld = unheld.driver, unheld
        self._services = driver.services
        self._holdings = driver.services.holdings
        self._flows = driver.flows
        self._ear = driver.ear
        self._concurrency = _checked(concurrency)
        self._queues = tuple(check_queue(queue) for queue in _several(queues))
        self._until = until
        self._on_end = on_end or _log_failure
        self._on_report = on_report or _log_trouble
        self._on_drain = on_drain or (lambda going: None)
        self._news = asyncio.Event()
        self.left = asyncio.Event()
        """Set when this worker has ended, and every run that it drove has stopped."""
        self._going: dict[str, asyncio.Future[None]] = {}
        self._takes = 0
        """How many requests for runs to the store are under way. Such a request is over when its runs are in `_going`."""
        self._passed_over: dict[str, _PassedOver] = {}
        self._forgets_at = _REMEMBERED_MAX
        self._reported: dict[str, None] = {}
        self._fault: StoreError | None = None
        self._empty = 0
        """How many searches for runs in a row have found none. Set back to 0 when a run ends here, because that may make room
        in a queue, or leave the run due again.
        """
        self._ends = 0
        self._troubled = 0
        """How many times in a row the store has not answered."""
        self._recovery = Recovery(self._services.store, flows=self._flows, inside=False)
        self._swept_at = self._services.clock.now() - SWEEP_S / 2
        self._knows_shapes = False

    def has(self, run_id: str) -> bool | None:
        """Return whether this worker has taken a run; None if it is taking runs now, perhaps this one. May be called from any
        thread.
        """
        if self._takes:  # checked first: a run is in `_going` before the request for it is over
            return True if run_id in self._going else None
        return run_id in self._going

    def look(self) -> None:
        """Make the worker look for runs now, because something has changed."""
        self._news.set()

    async def work(self) -> None:
        """Take runs and drive them until there is a reason to stop; then wait for those that still run."""
        if self._ear is not None:
            self._ear.listen(self._news)
        try:
            while not self._is_over():
                self._news.clear()
                free = self._concurrency - len(self._going)
                begun = await self._take_and_begin(free) if free > 0 else 0
                if free <= 0 or begun < free:
                    await self._rest(free)
            self._on_drain(len(self._going))
        except BaseException:
            for going in self._going.values():
                going.cancel()
            raise
        finally:
            if self._ear is not None:
                self._ear.leave(self._news)
            try:
                await asyncio.gather(self._serve(()), *self._going.values(), return_exceptions=True)
            finally:  # also when it is cancelled a second time: closing the engine waits for this
                self.left.set()
        if self._fault is not None:
            raise self._fault

    def _is_crowded(self) -> bool:
        """Return whether this worker has as many runs as it may execute, and all of them only wait: then none of their children
        could begin.
        """
        if len(self._going) < self._concurrency:
            return False
        return all(only_waits(self._holdings.get(run_id)) for run_id in self._going)

    @property
    def _is_stopping(self) -> bool:
        return self._holdings.stopping is not None

    def _is_over(self) -> bool:
        if self._is_stopping or self._fault is not None:
            return True
        if self._until == "idle":
            return bool(self._empty) and not self._going
        return self._until is not None and bool(self._until())

    # --- taking ---------------------------------------------------------------------------------------

    async def _take_and_begin(self, free: int) -> int:
        """Take runs, and begin to drive them. Returns how many were taken."""
        self._takes += 1
        try:
            taken = await self._take(free)
            for run in taken:
                self._begin(run)
        finally:
            self._takes -= 1
        return len(taken)

    async def _take(self, free: int) -> list[Taken]:
        if not self._flows:
            self._empty += 1
            return []
        ends = self._ends
        try:
            await self._serve(tuple(self._flows))
            self._holdings.hold()
            if not self._knows_shapes:
                self._knows_shapes = True
                await self._refuse_other_shapes()
            await self._look_for_requests()
            taken = await self._taken(self._wanted(free))
        except StoreError as fault:
            if _is_hopeless(fault):
                raise
            self._tell_trouble(fault)
            return []
        if self._troubled:
            self._troubled = 0
            self._reported = {told: None for told in self._reported if not told.startswith("the store")}
        self._empty = 0 if taken or ends != self._ends else self._empty + 1
        return taken

    async def _serve(self, flows: tuple[str, ...]) -> None:
        """Register with the store which flows this worker takes, if that has changed; none when it takes no more runs."""
        renewal = self._holdings.serve(flows, self._queues if flows else ())
        if renewal is not None:
            with suppress(StoreError):  # a later renewal of the leases registers it
                await self._call(renewal.renew)

    async def _taken(self, wanted: Wanted) -> list[Taken]:
        """Take runs. If the worker is cancelled meanwhile, the runs are released."""
        queues, holder = self._services.store.queues, self._holdings.holder
        if self._services.inline:  # no other code runs meanwhile
            await asyncio.sleep(0)  # other coroutines get their turn, however often this is called
            return queues.take(holder, wanted)
        taking = asyncio.ensure_future(self._call(lambda: queues.take(holder, wanted)))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._give_back)
            raise

    def _give_back(self, taking: asyncio.Future[list[Taken]]) -> None:
        if not taking.cancelled() and taking.exception() is None:
            for taken in taking.result():
                self._holdings.release(taken.lease.run_id, taken.lease.fence)

    def _wanted(self, limit: int) -> Wanted:
        now = self._services.clock.now()
        # A run whose lease was lost and that still unwinds here is due again: this worker would take and release it forever.
        refused = {name: passed.seq for name, passed in self._passed_over.items() if passed.until > now}
        return Wanted(
            flows=tuple(self._flows),
            queues=self._queues,
            limit=limit,
            without=tuple(self._going),
            refused=refused,
        )

    async def _look_for_requests(self) -> None:
        """Let runs that are passed over be taken if they have a new request: it may be to resume them with the changed flow."""
        now = self._services.clock.now()
        ids = [name for name, passed in self._passed_over.items() if passed.until > now]
        if not ids:
            return
        for request in await self._call(lambda: self._services.store.queues.waiting(ids)):
            passed = self._passed_over.get(request.run_id)
            if passed is not None and request.id not in passed.asked:
                passed.asked |= {request.id}
                passed.until = now

    async def _call(self, call: Callable[[], T]) -> T:
        """Call a function of the store: in a thread, if the engine has threads."""
        threads = self._services.threads
        found: T = call() if threads is None else await threads.call(call)
        return found

    # --- driving -------------------------------------------------------------------------------------

    def _begin(self, taken: Taken) -> None:
        run_id = taken.lease.run_id
        if self._is_stopping or run_id in self._going:
            self._holdings.release(run_id, taken.lease.fence)
            return
        # Not by the loop's factory: one that starts tasks at once (Python 3.12) would end this one before it is noted.
        self._going[run_id] = asyncio.Task(self._drive(taken), loop=asyncio.get_running_loop())

    async def _drive(self, taken: Taken) -> None:
        run_id = taken.lease.run_id
        try:
            run = await self._unheld.drive_claimed(
                taken.lease, self._is_crowded, only_asked=taken.why == "asked"
            )
        except FenceLost as lost:
            self._report(Trouble(run_id=run_id, flow=taken.flow, message=str(lost)))
        except Exception as refused:  # noqa: BLE001 - whatever it is, the other runs continue
            if _is_hopeless(refused) and await self._is_lost(refused):
                self._fault = refused
                return
            self._holdings.release(run_id, taken.lease.fence)  # releasing a lease twice does no harm
            if isinstance(refused, StoreReadOnly):  # a fault of the store, not of this run
                self._tell_trouble(refused)
            elif not self._is_stopping:
                await self._pass_over(taken, refused)
        else:
            self._passed_over.pop(run_id, None)
            if run is not None:
                self._on_end(run)
        finally:
            self._services.faults.pop(run_id, None)
            del self._going[run_id]
            self._ends += 1
            self._empty = 0
            self._news.set()

    async def _is_lost(self, fault: StoreError) -> bool:
        """Return whether the whole store is unusable. If this worker can still renew its leases, only data of one run cannot be
        read, such as a blob, or an event of a newer version.
        """
        if not isinstance(fault, (StoreUnusable, SchemaTooNew)):
            return True
        store, holder = self._services.store, self._holdings.holder
        try:
            await self._call(lambda: store.renew(holder))
        except StoreError:
            return True
        return False

    async def _pass_over(self, taken: Taken, refused: Exception) -> None:
        """Pass over a run that cannot be resumed here now, each time for longer, and record and report why."""
        run_id, before = taken.lease.run_id, self._passed_over.get(taken.lease.run_id)
        passing = isinstance(refused, (StoreBusy, StoreFull))
        seq, soon = taken.lease.seq, passing
        if not passing:
            try:
                seq = await self._call(lambda: self._record_refusal(taken, refused))
            except RunNotFound:
                pass
            except StoreError:
                soon = True  # it is recorded when the run is tried again
        seconds = _FIRST_S if before is None or soon else min(before.seconds * _GROWS, _LAST_S)
        if not soon and _is_settled(refused):
            seconds = _LAST_S
        told = str(refused)
        if not isinstance(refused, HoldfastError):
            told = f"{type(refused).__name__}: {end_sentence(told)} This is a defect in Holdfast; please report it."
        elif isinstance(refused, (BlobMissing, BlobCorrupt)) or not passing:
            told = f"{end_sentence(told)} This worker tries the run again later; another worker may claim it."
        if before is None or before.told != told:
            self._on_report(Trouble(run_id=run_id, flow=taken.flow, message=told))
        until = self._services.clock.now() + seconds
        self._passed_over.pop(run_id, None)  # put at the end: the oldest entry comes first
        asked = before.asked if before is not None else frozenset()
        if isinstance(refused, OtherCode) and refused.request is not None:
            asked |= {refused.request}  # it waits for another worker
        self._passed_over[run_id] = _PassedOver(until, seconds, told, seq, asked)
        if len(self._passed_over) > self._forgets_at:
            self._forget_passed_over()

    def _record_refusal(self, taken: Taken, refused: Exception) -> int:
        """Record that this worker cannot continue a run, unless another engine has moved the run since. Returns the seq of the
        last event that this worker knows: a validation that refuses a run is an event. (That another worker has claimed the run
        says nothing: it may be about to refuse it too.)
        """
        store, run_id = self._services.store, taken.lease.run_id
        row = store.run(run_id)
        if row.fence != taken.lease.fence and row.seq != taken.lease.seq:
            return taken.lease.seq
        known = self._flows.get(taken.flow)
        flow = known if isinstance(known, Flow) and known.fingerprint != row.fingerprint else None
        refusal = Refusal(
            run_id=run_id,
            holder=self._holdings.holder.id,
            seq=row.seq,
            reason=refused.reason if isinstance(refused, ResumeRefused) else str(refused),
            fingerprint=flow.fingerprint
            if flow is not None
            else row.fingerprint
            if known is not None
            else "",
            too_new=isinstance(refused, SchemaTooNew),
        )
        definition = definitions.encode(flow.definition, flow.definition_json) if flow is not None else None
        store.queues.refuse(refusal, definition)
        return row.seq

    async def _refuse_other_shapes(self) -> None:
        """Record that this worker cannot continue runs of shapes that its flows do not have: then an operator sees it as soon as
        the worker has started, and not when the run has its signal or its time. A few of each shape are recorded, which stand for
        the others (`cases.known_shapes`), so that some are left when an operator mends them one by one.
        """
        for name, flow in self._flows.items():
            if isinstance(flow, Flow):
                with suppress(HoldfastError):  # a run that it meets is refused anyway
                    await self._call(partial(self._refuse_shapes, name, flow))

    def _refuse_shapes(self, name: str, flow: Flow[Any]) -> None:
        store, times, reasons = self._services.store, Counter[str](), dict[str, str]()
        query = Query(
            flow=name, status=in_order(TAKEABLE), without_fingerprint=flow.fingerprint, limit=_SHAPES_LOOKED
        )
        for row in store.runs(query):
            times[row.fingerprint] += not self._queues or row.queue in self._queues
            if not 0 < times[row.fingerprint] <= _SHAPES_KEPT or row.held:
                continue
            if row.fingerprint not in reasons:
                state = history.load(store, row.run_id, row=row)
                try:
                    worker_flow_events(self._services, flow, state)
                except OtherCode as refused:
                    reasons[row.fingerprint] = refused.reason
            if reason := reasons.setdefault(row.fingerprint, ""):
                refusal = Refusal(
                    run_id=row.run_id,
                    holder=self._holdings.holder.id,
                    seq=row.seq,
                    reason=reason,
                    fingerprint=flow.fingerprint,
                )
                store.queues.refuse(refusal, definitions.encode(flow.definition, flow.definition_json))

    def _forget_passed_over(self) -> None:
        """Forget runs that were not met again for as long as they were passed over: another worker has claimed them, or they were
        deleted.
        """
        now = self._services.clock.now()
        self._passed_over = {
            run_id: passed
            for run_id, passed in self._passed_over.items()
            if passed.until + passed.seconds > now
        }
        _forget_oldest(self._passed_over, _PASSED_OVER_MAX)
        self._forgets_at = max(_REMEMBERED_MAX, 2 * len(self._passed_over))

    def _tell_trouble(self, fault: StoreError) -> None:
        """Report that the store cannot be used now; the worker tries again later. A request for runs that got no reply may have
        claimed some.
        """
        self._troubled += 1
        self._holdings.doubt()
        if isinstance(fault, StoreReadOnly):
            told = f"the store accepts no writes; the worker tries again. {end_sentence(str(fault))}"
            self._report_once(
                "the store takes no writes", Trouble(message=told)
            )  # each run would report the same fault in other words
            return
        self._report(
            Trouble(message=f"the store does not answer; the worker tries again. {end_sentence(str(fault))}")
        )

    def report_refused(self, state: RunState, refused: events.RequestRefused) -> None:
        """Report that a request in the inbox of a run was refused here: its caller may have left it hours ago. A run that was
        refused without a request is reported as such.
        """
        if not refused.request:
            return
        about = f" {refused.about}" if refused.about else ""
        by = f" by {refused.by}" if refused.by else ""
        told = f"the request{by} to {refused.verb}{about} is refused: {end_sentence(refused.reason)}"
        self._on_report(Trouble(run_id=state.run_id, flow=state.flow, message=told))

    def _report(self, trouble: Trouble) -> None:
        self._report_once(trouble.message, trouble)

    def _report_once(self, key: str, trouble: Trouble) -> None:
        if key not in self._reported:
            self._reported[key] = None
            _forget_oldest(self._reported)
            self._on_report(trouble)

    # --- resting --------------------------------------------------------------------------------------

    async def _rest(self, free: int) -> None:
        """Wait until a run may be due, or until there may be room for one."""
        clock = self._services.clock
        if self._until == "idle" and self._is_over():
            return
        seconds = await self._patience_s() if free > 0 else POLL_S
        if self._is_stopping:
            return
        if self._news.is_set() and self._empty > 1:  # the store has much news, but no run for this worker
            seconds = min(_BREATH_S * 2 ** min(self._empty, 8), _BREATH_MAX_S, seconds)
            await sleep(clock, seconds)
            return
        began = clock.now()
        timer = clock.call_at(began + seconds, self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()
        if clock.now() - began >= 1.0:
            self._empty = min(self._empty, 1)

    async def _patience_s(self) -> float:
        """Return how many seconds to wait before the worker looks for runs again."""
        clock = self._services.clock
        if self._troubled:
            return float(min(2.0 ** min(self._troubled - 2, 10), POLL_S))  # a float has no 2 ** 1024
        await self._sweep()
        slow = max(
            min(POLL_S, self._services.holder.ttl_s / 3), UNHEARD_POLL_S
        )  # a lease that runs out is not news
        waits = [slow if self._ear is not None else UNHEARD_POLL_S]
        waits += [
            passed.until - clock.now() for passed in self._passed_over.values() if passed.until > clock.now()
        ]
        store, wanted = self._services.store, self._wanted(1)
        try:
            due_at = await self._call(lambda: store.queues.next_due(wanted))
            if due_at is not None:
                left = due_at - store.now()
                waits.append(left if left > 0 else _LIMITED_S)
        except StoreError:
            self._troubled += 1
        return max(min(waits), 0.0)

    async def _sweep(self) -> None:
        """Look for runs that do not move, once every `SWEEP_S` seconds."""
        now = self._services.clock.now()
        if now - self._swept_at < SWEEP_S:
            return
        self._swept_at = now
        await self._refuse_other_shapes()
        try:
            report: RecoveryReport = await self._call(self._recovery.sweep)
        except Exception as fault:  # noqa: BLE001 - whatever it is, the other runs continue
            told = f"looking for runs that do not move failed: {type(fault).__name__}: {end_sentence(str(fault))}"
            self._report(Trouble(message=f"{told} The worker looks again in {SWEEP_S:.0f} s."))
            return
        for flow, count in report.unknown.items():
            wait = f"a run of flow {flow!r} waits" if count == 1 else f"{count} runs of flow {flow!r} wait"
            self._report_flow(flow, f"{wait}, and no live worker takes that flow")

    def _report_flow(self, flow: str, told: str) -> None:
        way_out = "Give this worker the file that defines the flow, or start another worker."
        self._report_once(f"flow {flow}", Trouble(flow=flow, message=f"{told}. {way_out}"))


def _is_settled(refused: Exception) -> bool:
    """Return whether a run is refused as long as its log does not change, because the code of this worker does not: trying it
    again would only delay the runs after it.
    """
    return isinstance(refused, SchemaTooNew) or (isinstance(refused, OtherCode) and refused.request is None)


def _is_hopeless(fault: BaseException) -> TypeGuard[StoreError]:
    """Return whether the error means that the store will not work again until an operator repairs it."""
    return isinstance(fault, _HOPELESS) and not isinstance(fault, StoreReadOnly)


def _forget_oldest(remembered: dict[str, Any], most: int | None = None) -> None:
    while len(remembered) > (_REMEMBERED_MAX if most is None else most):
        del remembered[next(iter(remembered))]


def _log_trouble(trouble: Trouble) -> None:
    whose = (
        f"run {trouble.run_id!r}: " if trouble.run_id and repr(trouble.run_id) not in trouble.message else ""
    )
    _log.warning("%s%s", whose, trouble.message)


def _log_failure(run: Run[Any]) -> None:
    try:
        result_of(run)
    except RunFailed as failed:
        _log.warning("%s", failed)
    except RunCancelled:
        pass  # an operator asked for the cancellation


def _checked(concurrency: Any) -> int:
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise SettingError(f"concurrency={concurrency!r}: give a whole number, at least 1")
    return concurrency


def _several(queues: Any) -> Collection[str]:
    if isinstance(queues, str):
        raise SettingError(f"queues={queues!r}: give a list of names, as in [{queues!r}]")
    return queues  # type: ignore[no-any-return]
