"""The work inside an attempt, between the context that the node sees and the log: keep, wait, unwind, stream.

Invariants
- A kept value is durable before the node gets it (with `durability="sync"`, or in a node that is not idempotent).
- A wait is in the log before it begins, and its outcome is durable before the node gets it.
- A long wait does not keep the node in memory: the attempt unwinds (`Parked`), and runs again from its top when the wait is
  over. A plain function unwinds at once, because it occupies a thread; a coroutine after `park_after` seconds, and never
  while one of its steps is running.
- A wait that the node itself cancels is withdrawn, and gets nothing any more. The withdrawal is durable before the next step is
  called. A wait that the engine cancels, because the attempt unwinds or is stopped, stays open.
- An abandoned attempt records nothing any more. Nor does one that unwinds for a wait: nothing that the node does through its
  context takes effect then, because the node was not cancelled and runs again. Only a step whose function was called before
  is still kept.
- The chunks that a step has streamed are recorded with its result, in the same append.

Everything here runs on the event loop; only `emit` and `cost` may be called from other threads.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from holdfast.core import events
from holdfast.core.codec import Codec
from holdfast.core.events import NodeEvent
from holdfast.core.graph import Retry
from holdfast.core.run_state import NODE_LEVEL, NodeState
from holdfast.core.slots import CHECKPOINT, TRY, Slot, labels, raised_text, try_text
from holdfast.core.step import Step as Declared
from holdfast.documents.artifacts import Artifacts
from holdfast.errors import BudgetExceeded, ContextError
from holdfast.reading.chunks import Step, Streamer
from holdfast.reading.inbox import ChildEnd
from holdfast.runtime import failures
from holdfast.runtime.calls import asyncio_timers, spending, steps
from holdfast.runtime.calls.body import Body, Parked, Stopped
from holdfast.runtime.calls.call_places import CallPlace, CallPlaces, held
from holdfast.runtime.calls.child_runs import Children
from holdfast.runtime.calls.executors import Threads
from holdfast.runtime.calls.rest import Rest, Turns
from holdfast.runtime.calls.running_steps import RunningSteps
from holdfast.runtime.calls.streams import Stream
from holdfast.runtime.calls.task_family import Family
from holdfast.runtime.clock import Clock, Timer, sleep
from holdfast.runtime.journal import Journal
from holdfast.runtime.judging import facts_of

T = TypeVar("T")
_ANY: Codec[Any] = Codec.of(Any)
_NOT_AWAITED = (CHECKPOINT, "begun:", TRY)
"""How the slots begin that a node does not ask for by name."""
_CHILD_S = 1.0
"""Seconds that a wait for a child stays in memory, at most: `run` looks at the whole family only when its root has unwound."""
_LOOK_AGAIN_S = 0.02
"""Seconds until the engine checks again whether a cancelled task has ended, which may take time to clean up."""
_STEP_ENDS = (events.StepCompleted, events.StepFailed)
_PROMISES_MAX = 100
_log = logging.getLogger("holdfast")


class Recorder(Protocol):
    """The methods of a runner that an attempt uses."""

    journal: Journal
    park_after_s: float

    def is_current(self, body: Body) -> bool: ...

    def cleans_up(self, body: Body) -> bool: ...

    def look_again(self) -> None: ...

    def awaits_child(self) -> None: ...

    def is_room_wanted(self, body: Body) -> bool: ...

    def record_stream(self, body: Body) -> None: ...


class Waiter:
    """A coroutine of the node that waits in memory."""

    def __init__(self, began_at: float) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.current_task()
        self.began_at = began_at
        self.timer: Timer | None = None


class Promises:
    """Finds a method of a context that a node has called without awaiting it: it has done nothing."""

    def __init__(self) -> None:
        self._promises: list[tuple[Coroutine[Any, Any, Any], str]] = []

    def add(self, coroutine: Coroutine[Any, Any, Any], told: str) -> None:
        """Note that the node has called a method of its context, and must await the coroutine that it got."""
        self._promises.append((coroutine, told))
        if len(self._promises) > _PROMISES_MAX:
            self._promises = [promise for promise in self._promises if _is_untouched(promise[0])]

    def refuse_forgotten(self, node: str) -> None:
        """Raise `ContextError` if the node called a method of its context without awaiting it."""
        for coroutine, told in self._promises:
            if _is_untouched(coroutine):
                coroutine.close()
                raise ContextError(
                    f"node {node!r} called {told} and did not await it, so it was not done: await {told}"
                )


def _is_untouched(coroutine: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED


class Attempt:
    """The work inside one attempt: kept values, steps, waits and streamed chunks."""

    def __init__(self, runner: Recorder, body: Body, start: NodeEvent, *, blocks: bool) -> None:
        self._runner = runner
        self._journal = runner.journal
        self._services = runner.journal.services
        state, options = runner.journal.state, runner.journal.flow.nodes[start.node].options
        streamer = Streamer(start.node, start.iteration, start.execution, start.attempt, body.key[1])
        header = streamer._asdict()
        del header["item"]
        self._begin(
            body,
            header,
            state.run_id,
            idempotent=options.idempotent,
            blocks=blocks,
            callers=self._services.threads,
            places=self._services.places.get("thread"),
            clock=self._services.clock,
            park_after_s=self._services.park_after,
        )
        self._luck = self._services.luck
        self._sync = state.options.get("durability", "sync") == "sync" or not options.idempotent
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self.children = Children(self, self._journal, header, self._item)
        self.stream = Stream(self._services, state.run_id, streamer, self._journal.streamed.pop(streamer, 0))
        body.work = self

    def _begin(
        self,
        body: Body,
        header: dict[str, Any],
        run_id: str,
        *,
        idempotent: bool,
        blocks: bool,
        callers: Threads | None,
        places: CallPlaces | None = None,
        clock: Clock,
        park_after_s: float,
    ) -> None:
        """Set the attributes that an attempt has wherever its function runs: in this process or in another one."""
        self.body = body
        self.blocks = blocks
        """True if no wait of the node stays in memory here: it is a plain function, or it runs in another process."""
        self.parks_elsewhere = False
        """True if the engine has asked the attempt to unwind while its function runs in another process."""
        self.clock = clock
        self.park_after_s = park_after_s
        """Seconds after which a wait that an asyncio timer may end is unwound."""
        self._run_id = run_id
        self._item: int | None = body.key[1]
        self._header = header
        self._idempotent = idempotent
        self._callers = callers
        self._places = places
        self._used: set[str] = set()
        self._counts: dict[str, int] = {}
        self.failed_children: list[str] = []
        """The child runs whose failures the node has received since it last began something: it has handled none of them."""
        self._steps = 0
        self._threads = 0
        self._gone: asyncio.Future[None] | None = None
        self._waiters: dict[str, Waiter] = {}
        self._begin_again: dict[str, Callable[[], object]] = {}
        """Slot of a wait that the node is in -> the function that records the wait again if it was withdrawn."""
        self._cancelled: list[tuple[str, str | None]] = []
        """Slot and signal of each wait that was cancelled, until it is known whether the node or the engine cancelled it."""
        self._withdrawn_seq = 0
        """The seq of the last withdrawal that this attempt has recorded."""
        self._is_closing = False
        self._park_due = False
        self._in_step: dict[asyncio.Task[Any] | None, str] = {}
        self.running = RunningSteps()
        self._promises = Promises()
        self._artifacts: Artifacts | None = None
        self.artifacts_made: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.family: Family = Family()
        self._rest = Rest(self._coroutines, self._settled)
        self._turns = Turns(self._coroutines, self._rest)

    def _coroutines(self) -> Iterator[asyncio.Task[Any] | None]:
        yield self.body.task
        yield from self.family

    # --- what is kept ---------------------------------------------------------------------------------

    @property
    def visit(self) -> NodeState:
        return self._journal.state.nodes[self._header["node"]]

    @property
    def has_budget(self) -> bool:
        return self._journal.state.budget is not None

    @property
    def key_root(self) -> str:
        """The run id from which the idempotency keys of this visit (or item) are derived."""
        return self._journal.state.key_root(self._header["node"], self._header["iteration"], self._item)

    @property
    def key_name(self) -> str:
        """The name from which the keys of the node are made."""
        return self._journal.state.key_name(self._header["node"])

    @property
    def chosen_key(self) -> str | None:
        """The idempotency key that a plan has chosen for this visit; None if the key is derived from the run. Forks have the same
        key as their parent, except for a visit that a caller decided to repeat.
        """
        journal, name = self._journal, self._header["node"]
        node = journal.flow.nodes[name]
        chosen = (
            node.wiring.key(facts_of(node, journal.state, journal.at)) if node.wiring is not None else None
        )
        if chosen is None or not journal.state.lineage or self.key_root != journal.state.run_id:
            return chosen
        return f"{chosen}@{journal.state.run_id}"

    def kept(self) -> dict[str, Any]:
        """Return the values that this execution has kept, by slot."""
        return self.visit.kept.get(NODE_LEVEL if self._item is None else self._item, {})

    def claim(self, slot: str, told: str) -> None:
        """Claim a slot for this attempt. Claiming it twice is an error: the second call would get the result of the first."""
        self._require_current()
        if slot in self._used:
            raise ContextError(
                f"node {self._header['node']!r} uses {told} twice in one execution, so the second would get the result of "
                "the first. Give each its own key=…."
            )
        self._used.add(slot)
        self.failed_children = []

    def number(self, what: str) -> int:
        """Return the number of this call among the attempt's calls of its kind, counted from 1."""
        self._counts[what] = self._counts.get(what, 0) + 1
        return self._counts[what]

    def claim_step(self, name: str, key: Any) -> Slot:
        """Claim the slot of a step, and return it. Raises `ContextError` if this attempt has used the slot already."""
        if not isinstance(name, str) or not name:
            raise ContextError(
                f"node {self._header['node']!r}: {name!r} is not a valid name of a step; give a string"
            )
        slot = Slot.step(self.encode(name, "the name of a step"), key)
        self.claim(slot.text, f"the step {slot.label!r}")
        return slot

    def unclaim_step(self, slot: Slot) -> None:
        """Release the slot of a step that raised: nothing was kept, so the node may call the step again."""
        if raised_text(slot.label) not in self.kept():
            self._used.discard(slot.text)

    def claim_declared(self, step: Declared, key: Any) -> Slot:
        """Claim the slot of a declared step, and return it."""
        slot = self.claim_step(step.name, key)
        self._used.add(raised_text(slot.label))
        return slot

    def kept_step(self, slot: Slot, codec: Codec[Any]) -> list[Any]:
        """Return `[result]` if the step has completed, otherwise `[]`. Raises `ContextError` if its outcome is an exception,
        which only a declared step can have.
        """
        found = self.kept_result(slot, codec)
        if not found and raised_text(slot.label) in self.kept():
            steps.refuse_undeclared(self, slot)
        return found

    def kept_result(self, slot: Slot, codec: Codec[Any]) -> list[Any]:
        """Return `[result]` if the step has completed, otherwise `[]`."""
        kept, text = self.kept(), slot.text
        if text not in kept:
            return []
        return [codec.decode(kept[text], path=f"step {slot.label!r}", node=self._header["node"])]

    def is_kept(self, slot: Slot) -> bool:
        """Return whether the step has an outcome: a result, or an exception."""
        kept = self.kept()
        return slot.text in kept or raised_text(slot.label) in kept

    def reclaim_step(self, slot: Slot) -> None:
        """Claim the slot of a step again that raised, because it is tried again or the exception is its outcome."""
        self._used.update((slot.text, raised_text(slot.label)))

    def failed_tries(self, step: str) -> tuple[int, str | None]:
        """Return how many tries of a step have failed, and the slot of the wait before its next try; None if that is over."""
        kept, number = self.kept(), 2
        while (slot := try_text(step, number)) in kept:
            number += 1
        return (number - 1, slot) if self.wait_ends_at(slot) is not None else (number - 2, None)

    def wait_ends_at(self, slot: str) -> float | None:
        """Return when the open wait of this slot ends by itself; None if there is no such wait."""
        visit = (self._header["node"], self._header["iteration"], self._header["execution"])
        wait = self._journal.state.waits.get(self._journal.state.wait_key(*visit, self._item, slot))
        return wait.until if wait is not None else None

    async def until_try(self, slot: str, *, unwinds: bool) -> None:
        """Wait until the next try of a step. If the wait is long and the node may be unwound, it is, as during any wait.
        Otherwise it stays in memory: inside another step, in a node that must not run twice, and while a node cleans up.
        """
        until = self.wait_ends_at(slot)
        seconds = 0.0 if until is None else until - self.now()
        is_short = self.blocks and seconds <= self._park_soon_s() and not self._is_room_wanted()
        if unwinds and self._idempotent and not self.body.cancelled and not is_short:
            await self.until_kept(slot)
        elif seconds > 0:
            await sleep(self.clock, seconds)

    def jitter(self, retry: Retry, error: BaseException, tries: int) -> float | None:
        """Return the seconds until the next try of a step, after this many failed tries; None if there is none."""
        kind = failures.classify(error)
        return failures.retry_delay(retry, error, kind, tries, self._luck, now=self.clock_time())

    @property
    def place(self) -> tuple[str, str]:
        """The run and the node of this attempt."""
        return self._run_id, self._header["node"]

    def warn_once(self, key: tuple[str, ...], told: str) -> None:
        """Log a warning, once per engine and key."""
        if key not in self._services.warned:
            self._services.warned.add(key)
            _log.warning("%s", told)

    async def keep_step(self, slot: Slot, value: Any, codec: Codec[Any]) -> Any:
        """Keep the result of a step, and return it as the next attempt would get it."""
        path = f"step {slot.label!r}"
        plain = self.encode(value, path, codec)
        await self.record(events.StepCompleted, step=slot.label, value=plain)
        return codec.decode(plain, path=path, node=self._header["node"])

    async def record(self, kind: type[NodeEvent], **fields: Any) -> None:
        """Record an event about this attempt. With `durability="sync"`, or in a node that is not idempotent, returns when the
        event is durable; for a step that has begun or failed, always.
        """
        seq = self.note(kind, **fields)
        if self._sync or kind is events.StepStarted or kind is events.StepFailed:
            await self._durable(seq)

    def note(self, kind: type[NodeEvent], **fields: Any) -> int:
        """Record an event about this attempt without waiting until it is durable. Returns its seq. The chunks that a step has
        streamed are recorded with its result, in the same append.
        """
        if not self._ends_call(kind, fields):
            self._require_current()
        if kind is not events.WaitWithdrawn:
            self._withdraw()
        if "item" in kind.__struct_fields__:
            fields["item"] = self._item
        self._journal.tick()
        if kind in _STEP_ENDS and self.stream.segment.has_steps:
            self._runner.record_stream(self.body)
        self._journal.record(kind(**self._header, **fields))
        self._runner.look_again()
        return self._journal.state.seq

    def record_end(self, end: ChildEnd) -> None:
        """Record the end of a child run, which was read from the log of the child."""
        self._require_current()
        self._journal.tick()
        self._journal.record_child_end(end)
        self._runner.look_again()

    async def durable(self, seq: int) -> None:
        """Return when the log is durable up to `seq`, whatever the durability of the run."""
        await self._durable(seq)

    async def _durable(self, seq: int) -> None:
        if self._journal.saved_seq < seq:
            await self._journal.until_saved(seq)
        self._require_current()

    def encode(self, value: Any, path: str, codec: Codec[Any] = _ANY) -> Any:
        """Encode a value as plain data. Raises `CodecError`."""
        return codec.encode(value, path=path, node=self._header["node"])

    @contextmanager
    def step(self, slot: Slot) -> Iterator[None]:
        """Mark a step as running inside this context: the attempt does not unwind for a parallel wait then. A step that raised
        may be called again.
        """
        task = asyncio.current_task()
        outer = self._in_step.get(task)
        self._in_step[task] = slot.label
        self._steps += 1
        self._adopt()
        try:
            with self.calling(slot):
                yield
        except BaseException:
            self.unclaim_step(slot)
            raise
        finally:
            self._steps -= 1
            if outer is None:
                del self._in_step[task]
            else:
                self._in_step[task] = outer
            if self._park_due:
                self.park()

    def calling(self, slot: Slot) -> AbstractContextManager[None]:
        """Mark the function of a step as being called inside this context: chunks that it streams get the name of the step."""
        self._require_current()
        return self.running.calling(slot.label)

    def called_step(self) -> Step | None:
        """The step of this attempt that the executing code belongs to, in any task or thread; None outside of steps."""
        return self.running.called_step()

    async def call(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        named: dict[str, Any],
        place: CallPlace | None = None,
    ) -> Any:
        """Call the function of a step: a coroutine function here, a plain function in a thread, in `place` or as soon as there is
        one.
        """
        threads = self._callers
        if inspect.iscoroutinefunction(fn) or threads is None:
            value = fn(*args, **named)
        elif place is not None:
            value = await self._call_in_place(threads, place, fn, args, named)
        else:
            place = self.place_of(fn)
            try:
                if not place.is_taken:
                    await place.take()
                    if self.has_budget:  # it may be spent since
                        self.refuse_over_budget()
                value = await self._call_in_place(threads, place, fn, args, named)
            finally:
                place.give_back()
        return await value if isinstance(value, Awaitable) else value

    async def _call_in_place(
        self,
        threads: Threads,
        place: CallPlace,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        def inside() -> Any:
            held.set(place)
            return fn(*args, **named)

        self._threads += 1
        return await threads.call(inside, self._thread_ended)

    def place_of(self, fn: Callable[..., Any]) -> CallPlace:
        """Return the place for calls of a step's function, which is not taken yet: one in a thread, if the function is plain."""
        return CallPlace(None if inspect.iscoroutinefunction(fn) else self._places, held.get())

    async def take_place(self, place: CallPlace) -> None:
        """Wait for the place in which a step is called. The attempt does not unwind meanwhile: the step has its turn."""
        if place.is_taken:
            return
        self._steps += 1
        try:
            await place.take()
        finally:
            self._steps -= 1
            if self._park_due:
                self.park()

    def _thread_ended(self) -> None:
        self._threads -= 1
        if not self._threads and self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def threads_left(self) -> asyncio.Future[None] | None:
        """Return a future that is done when no thread of a step runs any more; None if none runs now. It is needed because a
        thread cannot be killed.
        """
        if not self._threads:
            return None
        self._gone = asyncio.get_running_loop().create_future()
        return self._gone

    # --- waiting --------------------------------------------------------------------------------------

    def refuse_in_cleanup(self, what: str) -> None:
        """Refuse what a node may not do while it cleans up, because the run is being cancelled and the node will not continue."""
        if self.body.cancelled and self._cleans_up():
            raise ContextError(
                f"node {self._header['node']!r} is cleaning up because the run is being cancelled, and can no longer use {what}. "
                "Only steps are possible now (ctx.step), for a few seconds."
            )

    def refuse_over_budget(self) -> None:
        """Raise `BudgetExceeded` if the budget of the run is spent: nothing begins then, except steps with which a node cleans up
        after a cancellation.
        """
        if not (self.body.cancelled and self._cleans_up()):
            spending.refuse_over_budget(self._journal.state)

    async def require_budget(self) -> None:
        """Raise `BudgetExceeded` if the budget is spent, when the steps beside have ended: it would cancel what was paid for."""
        try:
            self.refuse_over_budget()
        except BudgetExceeded:
            if self.called_step() is None:
                await self.running.until_none()
            raise

    def refuse_waits(self, what: str) -> None:
        """Refuse a wait in a node that is not idempotent: a wait unwinds the node, which then runs again from its top. Refuse it
        also while the node cleans up: the run is being cancelled, so the node would never continue.
        """
        self.refuse_in_cleanup(what)
        if not self._idempotent:
            raise ContextError(
                f"node {self._header['node']!r} is not idempotent, and {what} inside it would run it again from its top. Wait "
                "in a separate node before it: graph.ask(…) for a decision, @graph.node(approve=…) for an approval."
            )

    def now(self) -> float:
        """Return the time of the store, which timers use."""
        return self._services.store.now()

    def clock_time(self) -> float:
        """Return the time of the engine's clock, which a test can control."""
        return self._services.clock.now()

    def is_waiting(self, slot: str) -> bool:
        """Return whether the wait of this slot is open in the log, perhaps since before the node was unwound."""
        visit = (self._header["node"], self._header["iteration"], self._header["execution"])
        key = self._journal.state.wait_key(*visit, self._item, slot)
        return key in self._journal.state.waits or key in self._journal.state.questions

    def set_aside(self, name: str) -> list[tuple[int, Any]]:
        """Return the signals of this name that were set aside, oldest first: pairs of a position among all signals set aside,
        and a payload.
        """
        aside = self._journal.state.aside
        return [(number, signal.payload) for number, signal in enumerate(aside) if signal.name == name]

    def refuse_inside_step(self, slot: str) -> None:
        """Refuse a wait inside a step: an attempt does not unwind while a step runs, so the node would stay in memory for the
        whole wait.
        """
        called = self.called_step() if self._threads else None
        step = self._in_step.get(asyncio.current_task(), "" if called is None else called[0])
        if step:
            raise ContextError(
                f"node {self._header['node']!r} waits ({slot!r}) inside the step {step!r}, but a step cannot be unwound. Wait "
                "outside of the step, and pass the outcome to it."
            )

    def warn_of_unused_answers(self, slot: Slot) -> None:
        """Warn if the node asks a new question although it has not used the answer to an earlier one: a question whose text
        changes from attempt to attempt would be asked again and again.
        """
        unused = labels("ask", (kept for kept in self.kept() if kept not in self._used))
        if unused:
            told = "If both are the same question in different words, give it a key=…, or build its text in a step."
            asks = f"the node asks {slot.label!r}, but has not used the answer to {unused[0]!r}"
            _log.warning("run %r, node %r: %s. %s", self._run_id, self._header["node"], asks, told)

    def promised(self, coroutine: Coroutine[Any, Any, Any], told: str) -> None:
        """Note that the node has called a method of its context, and must await the coroutine that it got."""
        self._promises.add(coroutine, told)

    def refuse_forgotten(self) -> None:
        """Raise `ContextError` if the node called a method of its context without awaiting it: the method has done nothing."""
        self._promises.refuse_forgotten(self._header["node"])

    async def find_kept(self, slots: list[str]) -> dict[str, list[Any]]:
        """Return the outcomes of those of these waits that are over and whose outcome is durable."""
        self._require_current()
        kept = self.kept()
        found = {slot: kept[slot] for slot in slots if slot in kept}
        if found and self._sync:
            await self._durable(self._journal.state.seq)
        return found

    async def until_kept(self, slot: str) -> list[Any]:
        """Wait until the wait of this slot, which is in the log, is over. Returns `[value]`, or `[]` if the wait timed out."""
        if slot in self.kept():
            await self.give_turns()
        while slot not in self.kept():
            self.refuse_inside_step(slot)
            if self.blocks:
                self.body.parking = [slot]
                raise Parked([slot])
            await self._wait_here(slot)
        if self._sync:
            await self._durable(self._journal.state.seq)
        came: list[Any] = self.kept()[slot]
        return came

    async def give_turns(self) -> None:
        """Let the other tasks of the node get to their waits, before this one continues with a result from the log."""
        await self._turns.give()

    async def _wait_here(self, slot: str) -> None:
        waiter = self._waiters[slot] = Waiter(self.clock.now())
        patience_s = min(self._park_soon_s(), _CHILD_S) if slot.startswith("child:") else self._park_soon_s()
        soonest_at = waiter.began_at + patience_s
        waiter.timer = self.clock.call_at(soonest_at, lambda: self._park_in_time(waiter))
        self._withdraw()
        if self.is_withdrawn(slot) or any(other is not self.body.task for other in self.family):
            self._rest.disturb()
        if not self._steps:
            self.body.hold_limit()
        if slot.startswith("child:"):
            self._loop.call_soon(self._awaits_child)
        if self._is_room_wanted():
            self._loop.call_soon(self._park_in_time, waiter)
        try:
            await waiter.over
        finally:
            waiter.timer.cancel()
            self._waiters.pop(slot, None)
            if self._waiters and not self._is_unwinding():
                self._rest.disturb()
            self.body.go_on_with_limit()

    @property
    def is_settling(self) -> bool:
        """True if the attempt is not at rest: see `Rest`."""
        return self._rest.is_settling

    def _settled(self) -> None:
        self._begin_withdrawn_again(unwinds=False)
        if self._park_due:
            self.park()
            self._rested()

    def _rested(self) -> None:
        """Let the runner look at a request again that waited until the attempt is at rest."""
        self._runner.look_again()

    def _awaits_child(self) -> None:
        self._runner.awaits_child()

    def _is_room_wanted(self) -> bool:
        """Return whether other calls begin only when this one has unwound, so that it must not wait in memory."""
        return self._runner.is_room_wanted(self.body)

    def deliver(self) -> None:
        """Wake the coroutines whose wait is over; called when an event has become durable."""
        kept = self.kept()
        for slot, waiter in self._waiters.items():
            if slot in kept and not waiter.over.done():
                waiter.over.set_result(None)

    def _park_in_time(self, waiter: Waiter) -> None:
        """Unwind the attempt because this wait takes long. If the node may cancel one of its waits by an asyncio timer, which
        unwinding would lose, the attempt is unwound only `park_after` seconds after this wait began.
        """
        latest_at = waiter.began_at + self.park_after_s
        is_timed = self._may_be_cancelled()
        if is_timed and self.clock.now() < latest_at:
            waiter.timer = self.clock.call_at(latest_at, lambda: self._park_in_time(waiter))
            return
        if self.park() and is_timed:
            self.warn_of_lost_timer()

    def leave_children(self) -> None:
        """Unwind the attempt now if it waits for nothing but children. What keeps a longer wait in memory keeps this one too."""
        if self._waiters and all(slot.startswith("child:") for slot in self._waiters):
            waiter = next(iter(self._waiters.values()))
            if waiter.timer is not None:
                waiter.timer.cancel()
            self._park_in_time(waiter)

    def _park_soon_s(self) -> float:
        """Return after how many seconds a wait is unwound that nothing in the node can cancel."""
        return self._runner.park_after_s

    @property
    def only_waits(self) -> bool:
        """True if the node waits, and none of its steps is running."""
        return bool(self._waiters) and not self._steps

    def park(self) -> bool:
        """Unwind the attempt because a wait takes long, unless a step is running or a wait is over by now. If a task of the
        attempt may be about to continue, the attempt is unwound when it is at rest. Returns whether the attempt unwinds.
        """
        waiters, self.parks_elsewhere = self._waiters, self.blocks
        self._park_due = bool(waiters) and all(not waiter.over.done() for waiter in waiters.values())
        is_free = self._park_due and not self._steps and not self.is_settling and self._is_current()
        if not is_free or self._is_about_to_give_up():
            return False
        self._begin_withdrawn_again(unwinds=True)
        kept = self.kept()
        if any(
            slot in kept for slot in waiters
        ):  # the attempt continues when the end of that wait is durable
            return False
        self.body.park([slot for slot in waiters if not self.is_withdrawn(slot)])
        return True

    def _is_about_to_give_up(self) -> bool:
        """Return whether the node is about to cancel a wait again that an earlier attempt has withdrawn. It must not be unwound
        before that: its next wait may be over already, and the withdrawn one would keep it from getting there.
        """
        given_up = [waiter for slot, waiter in self._waiters.items() if self.is_withdrawn(slot)]
        if not given_up or not self._may_be_cancelled():
            return False
        long_since = self.clock.now() - self.park_after_s
        is_recent = all(waiter.began_at > long_since for waiter in given_up)
        return is_recent or any(
            slot not in self._used for slot in self.kept() if not slot.startswith(_NOT_AWAITED)
        )

    def _may_be_cancelled(self) -> bool:
        own = self.body.task
        waiting = {waiter.task for waiter in self._waiters.values() if waiter.task is not None}
        return own is not None and asyncio_timers.may_be_cancelled(own, waiting, set(self.family))

    def warn_of_lost_timer(self) -> None:
        """Log once per node that it is unwound although asyncio was perhaps meant to cancel its wait."""
        self.warn_once(
            (self._journal.flow.name, self._header["node"]),
            f"run {self._run_id!r}, node {self._header['node']!r}: the node has waited for {self.park_after_s:g} s and is now "
            "unwound: its call ends, and it runs again from its top when the wait is over. If an asyncio timer or task was meant "
            "to cancel the wait, it ends with the call and may never do so. Give the wait its own timeout=…, which is durable.",
        )

    # --- waits that the node cancels --------------------------------------------------------------------

    @contextmanager
    def waiting(self, slot: str, begin: T, again: Callable[[], object], signal: str | None) -> Iterator[T]:
        """Mark the node as waiting inside this context. The caller records the wait with `begin`, and the engine with `again`
        if the wait was withdrawn and must begin again; `signal` is the name of the signal that the node waits for. If the node
        itself cancels the wait, the wait is withdrawn; if the engine cancels it, it continues when the node runs again.
        """
        self._begin_again[slot] = again
        self._adopt()
        try:
            yield begin
        except asyncio.CancelledError:
            if not self.blocks and not self._is_unwinding():
                self._cancelled.append((slot, signal))
                self._find_out_who_cancelled()
            raise
        finally:
            del self._begin_again[slot]

    def _is_unwinding(self) -> bool:
        """Return whether the engine is ending this attempt, and its waits with it."""
        return self._is_closing or not self._is_current()

    def _find_out_who_cancelled(self) -> None:
        """Find out whether the node or the engine has cancelled a wait. If the task of the node is not being cancelled, the
        node has cancelled a wait in one of its other tasks. If it is, look again a moment later: `asyncio.timeout` and
        `TaskGroup` take their cancellation back, so if the task is no longer being cancelled then, the node did it.
        """
        own = self.body.task
        if own is not None and own.cancelling():
            self._loop.call_soon(self._look_who_cancelled)
        else:
            self._withdraw()

    def _look_who_cancelled(self) -> None:
        own = self.body.task
        if self._is_unwinding():
            self._cancelled.clear()
        elif self._cancelled and own is not None and own.cancelling():
            self._loop.call_later(_LOOK_AGAIN_S, self._look_who_cancelled)
        elif self._cancelled:
            self._withdraw()

    def _withdraw(self) -> None:
        """Record that the node has withdrawn the waits that it cancelled, before anything else that the node does is recorded.
        If a signal came at the same moment and the node did not receive it, the signal goes to the next wait.
        """
        if not self._cancelled and not self._waiters:
            return
        cancelled, self._cancelled = self._cancelled, []
        if (
            not self._is_unwinding()
        ):  # the code of a task that the node has cancelled may not have been told yet
            cancelled += [
                (slot, None) for slot, waiter in self._waiters.items() if self._is_cancelled(waiter)
            ]
        for slot, signal in cancelled:
            self.withdraw(slot, signal)

    def withdraw(self, slot: str, signal: str | None) -> bool:
        """Record that the node has withdrawn a wait. If the wait was over, and the node did not receive its signal, the signal is
        returned for the next wait. Returns whether there was anything to record.
        """
        if self.is_waiting(slot):
            self._abandon_child(slot)
            self._withdrawn_seq = self.note(events.WaitWithdrawn, slot=slot)
        elif signal is not None and self.kept().get(slot):
            self._withdrawn_seq = self.note(events.WaitWithdrawn, slot=slot, returned=signal)
        else:
            return False
        return True

    async def withdraw_durably(self, slot: str, signal: str | None) -> bool:
        """Withdraw a wait as `withdraw` does, and return when that is durable."""
        is_withdrawn = self.withdraw(slot, signal)
        await self._until_withdrawn()
        return is_withdrawn

    async def settle_withdrawals(self) -> None:
        """Return when the withdrawals of the waits that the node has cancelled are durable. A step that follows from them must
        not be called before: if the process died inside the step, a signal could end such a wait, and the next attempt would
        take another way, although the step may have had its effect.
        """
        self._withdraw()
        await self._until_withdrawn()
        self._require_current()

    async def _until_withdrawn(self) -> None:
        if self._sync and self._journal.saved_seq < self._withdrawn_seq:
            await self._journal.until_saved(self._withdrawn_seq)

    def _abandon_child(self, slot: str) -> None:
        """Cancel the child of a call that the node itself has cancelled, with the event that says so."""
        key = self._journal.state.wait_key(
            self._header["node"], self._header["iteration"], self._header["execution"], self._item, slot
        )
        wait = self._journal.state.waits.get(key)
        if wait is not None and wait.child is not None and wait.abandons:
            self._journal.cancel_child(
                wait.child, f"{self._header['node']!r} of its caller has cancelled the call"
            )

    def _is_cancelled(self, waiter: Waiter) -> bool:
        """Return whether the node has cancelled one of its own tasks, which waits."""
        task = waiter.task
        return task is not None and task is not self.body.task and task.cancelling() > 0

    def is_withdrawn(self, slot: str) -> bool:
        """Return whether this execution has withdrawn the wait, so that no signal or timer ends it. Always False for a plain
        function: it unwinds for each wait and could not be woken, so its wait begins again.
        """
        level = NODE_LEVEL if self._item is None else self._item
        return not self.blocks and slot in self.visit.withdrawn.get(level, ())

    def _begin_withdrawn_again(self, *, unwinds: bool) -> None:
        """Begin the withdrawn waits again if the node awaits only these, and nothing else could wake it: because it `unwinds`
        now, or because none of its tasks or timers can cancel them. Called only while the attempt is at rest.
        """
        if not self._is_current() or not all(map(self.is_withdrawn, self._waiters)):
            return
        if any(map(self._is_cancelled, self._waiters.values())):
            return
        if unwinds or not self._may_be_cancelled():
            for slot in self._waiters:
                self._begin_again[slot]()

    # --- inside ---------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Note that the current task belongs to the attempt: it must not outlive the attempt."""
        task = asyncio.current_task()
        if task is not None and task not in self._tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self, error: BaseException | None) -> None:
        """Cancel the tasks that the node left running, and wait for their end. If the budget is spent, steps end before that."""
        try:
            if error and failures.find_spent_budget(error):
                await self.running.until_none()
        finally:
            await self._end_left_over()

    async def _end_left_over(self) -> None:
        self._is_closing = True
        me = asyncio.current_task()
        left = [task for task in self._tasks if task is not me]
        for task in left:
            if not task.cancelling():  # a second time would interrupt its cleanup
                task.cancel()
        left += [task for task in self.family if task.cancelling() and task is not me and not task.done()]
        if left:
            await asyncio.gather(*left, return_exceptions=True)
        if self._artifacts is not None and not self.blocks:
            await self.call(self.collect, (), {}, CallPlace(None))

    def collect(self) -> None:
        """Make the files that the node wrote durable, and note their names and digests. May block."""
        if self._artifacts is not None:
            self.artifacts_made = self._artifacts.collect()

    def _is_alive(self) -> bool:
        """Return whether the engine has not abandoned the attempt, which perhaps unwinds."""
        return self._runner.is_current(self.body)

    def _is_current(self) -> bool:
        """Return whether what the node does takes effect."""
        return self.body.parking is None and self._is_alive()

    def _cleans_up(self) -> bool:
        return self.body.parking is None and self._runner.cleans_up(self.body)

    def _ends_call(self, kind: type[NodeEvent], fields: dict[str, Any]) -> bool:
        """Return whether an event is the outcome of a step that this attempt called before it began to unwind: its function may
        still run then, in another thread of a plain function.
        """
        return kind in _STEP_ENDS and self.running.has_called(fields["step"]) and self._is_alive()

    def called_elsewhere(self, step: str) -> None:
        """Note that the process in which the node's function runs has called a step."""
        self.running.note_call(step)

    def _require_current(self) -> None:
        """Raise `Stopped` if nothing that the node does takes effect any more."""
        if self._is_current() or self._cleans_up():
            return
        if self.body.parking is not None:
            raise Stopped(
                "the node is not cancelled: it unwinds during a wait and runs again from its top when the wait is over. Until "
                "then, nothing that it does through its context takes effect."
            )
        raise Stopped("the engine has abandoned this attempt, and records nothing more of it")

    def artifacts(self) -> Artifacts:
        """Return the folder for files of this attempt."""
        self._require_current()
        if self._artifacts is None:
            visit = ".".join(str(self._header[part]) for part in ("iteration", "execution", "attempt"))
            visit += "" if self._item is None else f".{self._item}"
            self._artifacts = self._services.artifacts(
                self._journal.state.run_id, self._journal.flow.name, self._header["node"], visit
            )
            self._artifacts.guard = self._require_current
        return self._artifacts

    def cost(self, usd: float, tokens: int) -> None:
        """Record a cost. Raises `BudgetExceeded` if the budget is spent, unless in a step. May be called from any thread."""
        self.add_cost(usd, tokens, in_step=self.running.is_inside())

    def add_cost(self, usd: float, tokens: int, *, in_step: bool) -> None:
        """Record a cost that was reported inside or outside of a step; see `cost`."""

        def add() -> None:
            self.note(events.CostIncurred, usd=usd, tokens=tokens)
            if not in_step:
                self.refuse_over_budget()

        self._on_loop(add)

    def emit(self, written: bytes, value: Any, step: Step | None) -> None:
        """Stream a chunk that `streams.encode_chunk` has accepted. May be called from a thread of the node."""

        def add() -> None:
            self._require_current()
            self.stream.add(written, value, step)

        self._on_loop(add)

    def hold(self, value: Any) -> None:
        """Hold a value that the node, an async generator, has yielded: it may be a chunk or the node's result."""
        self._require_current()
        self.stream.hold(value)

    def release(self) -> None:
        """Stream the held value as a chunk, because the node has yielded another one after it."""
        self._require_current()
        self.stream.release()

    def _on_loop(self, call: Callable[[], object]) -> None:
        """Call a function on the event loop and wait for it. May be called from any thread."""
        if threading.get_ident() == self._home:
            call()
            return

        async def called() -> None:
            call()

        asyncio.run_coroutine_threadsafe(called(), self._loop).result()
