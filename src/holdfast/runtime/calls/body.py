"""Calls of user code: coroutines on the loop, plain functions in daemon threads, each with its timeout.

A `Body` is one call of a node's function. It reports its end to its owner exactly once: the result, the exception, or why it
was stopped. A thread cannot be killed, so a call in a thread is abandoned if it times out or is cancelled: the `Body` ends at
once, a late result is discarded, and `body_gone` reports when the thread has really ended, because no new attempt may start
while the old one runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from holdfast.core.cleanup import Unfinished
from holdfast.core.events import NodeEvent
from holdfast.runtime.calls import call_places, task_family
from holdfast.runtime.calls.call_places import CallPlace
from holdfast.runtime.calls.executors import Call, Executor, Handle, Killed
from holdfast.runtime.calls.shared_task import Stage
from holdfast.runtime.clock import Clock, Timer
from holdfast.storage import failpoints

UNWIND_S = 5.0
"""Seconds that a cancelled coroutine may take to end. After that the engine abandons it, as it abandons a thread."""


class Stopped(BaseException):
    """Raised inside a node's call to stop it. It is a `BaseException`, so that `except Exception` in the node does not catch
    it.
    """


class Parked(BaseException):
    """Raised inside a node's call to unwind it during a long wait, so that the node uses no thread and no memory. It is a
    `BaseException`, so that `except Exception` in the node does not catch it.
    """

    def __init__(self, slots: list[str]) -> None:
        self.slots = slots
        super().__init__(slots)


def _is_stop(error: BaseException | None) -> bool:
    """Return whether a call ended because it was stopped, in one of its tasks or in all of them."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_stop, error.exceptions))
    return isinstance(error, (asyncio.CancelledError, Killed, Stopped))


class Executing(Protocol):
    """What code inside a node's call can ask about that call."""

    def current_context(self) -> Any:
        """Return the context to use on the calling thread; None if the node's call has ended."""


executing: contextvars.ContextVar[Callable[[], Executing | None]] = contextvars.ContextVar("holdfast_node")
"""Returns the call of a node that the executing code belongs to. It is a weak reference, because tasks that a node leaves
running keep this variable alive.
"""


class Owner(Protocol):
    """The caller of a node's function, which is told how the call ends."""

    def context_of(self, body: Body) -> Any:
        """Return the context of a call, for the calling thread. It is made now if the node's function does not take one."""

    def body_ended(self, body: Body) -> None:
        """Called once, on the event loop, when the call is over: its `value` or `error` is set."""

    def body_gone(self, body: Body) -> None:
        """Called when the code of an abandoned call has really ended. The end of the call was reported before."""


class Body:
    """One call of a node's function. It reports its end to its owner."""

    given: Any = None
    value: Any = None
    """What the function returned. Nothing else in the engine refers to it, so what is taken from here may be handed on."""
    error: BaseException | None = None
    context: Any = None
    """The `Context` of the call's attempt."""
    is_inline = False
    """True if the call is of a plain function that runs on the event loop itself."""
    unfinished: Unfinished | None = None
    """How the call was stopped, if that was before its code had ended: then the code cleans nothing up, or not to the end."""
    has_gone = False
    given_up_at = 0.0
    _queued = False
    """True if the coroutine of the call is scheduled, but has not begun to run."""
    _clock: Clock | None = None
    _deadline = 0.0
    _left: float | None = None

    def __init__(self, start: NodeEvent, item: int | None, owner: Owner | None) -> None:
        self.start = start
        self.key = (start.node, item)
        self.attempt = start.attempt
        # What every call reads is set here: an attribute that only the class has takes several times as long to read.
        self.cancelled = False
        """True if the call was cancelled, timed out, or was stopped with its engine."""
        self.timed_out = False
        self.work: Any = None
        """The `Attempt` of this call, if the node takes a context or its code has asked for one."""
        self.place: CallPlace | None = None
        """The place that the call has among those of its executor; None if it needs none."""
        self.parking: list[str] | None = None
        self._owner = owner
        self._is_over = False
        self._task: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._handle: Handle | None = None

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that the coroutine of the node runs in."""
        return self._task

    def call(
        self, fn: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context, stage: Stage
    ) -> None:
        """Call a coroutine function on the event loop."""
        self._queued = True
        if self.work is None:
            stage.call(self._await(fn, args), context)
        else:
            loop = asyncio.get_running_loop()
            self._task = task_family.start(loop, self._await(fn, args), self.work.family, context)

    async def _await(self, fn: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]) -> None:
        # Every exception is caught here: SystemExit and KeyboardInterrupt in a task would stop the event loop.
        self._queued = False
        error = None
        executing.set(weakref.ref(self))
        try:
            if self._task is None:
                self._task = asyncio.current_task()
                if self.cancelled:
                    raise asyncio.CancelledError  # the call was stopped before it began
            if failpoints.hook is not None:
                failpoints.reach("node.enter")
            call = fn(*args)
            del args  # what the node was given may be handed on when it has ended, if nothing refers to it
            self.value = await call
            if self.work is not None:
                self.work.refuse_forgotten()
            if failpoints.hook is not None:
                failpoints.reach("node.exit")
        except BaseException as raised:  # noqa: BLE001
            error = raised
        if self.work is not None:
            try:
                await self.work.close(error)
            except BaseException as raised:  # noqa: BLE001 - the node's files could not be made durable
                error = error or raised
            if (left := self.work.threads_left()) is not None:
                # A thread of a step still runs: report the end now, and call `body_gone` when the thread has ended.
                self._end(error)
                await asyncio.shield(left)
                error = None
        self._leave(error)

    def call_on(self, executor: Executor, call: Call) -> None:
        """Call a function through an executor."""
        loop = asyncio.get_running_loop()

        def left(value: Any, error: BaseException | None) -> None:
            # What the node was given may be handed on when the node has ended, if nothing refers to it.
            msgspec.structs.force_setattr(call, "given", None)
            self.value = value
            with suppress(RuntimeError):  # the loop is closed: the engine has abandoned this call
                loop.call_soon_threadsafe(self._leave, error)

        executing.set(weakref.ref(self))
        call_places.held.set(self.place)
        self._handle = executor.submit(call, left)

    def call_inline(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Call a plain function on the event loop itself, for tests that run everything in one thread."""
        error = None
        self.is_inline = True
        executing.set(weakref.ref(self))
        try:
            if failpoints.hook is not None:
                failpoints.reach("node.enter")
            self.value = fn(*args)
            self.collect()
            if failpoints.hook is not None:
                failpoints.reach("node.exit")
        except BaseException as raised:  # noqa: BLE001
            error = raised
        asyncio.get_running_loop().call_soon(self._leave, error)

    def current_context(self) -> Any:
        if self._is_over and not self.has_gone:
            raise Stopped("the engine has abandoned this attempt, and records nothing more of it")
        return self._owner.context_of(self) if self._owner is not None and not self.has_gone else None

    def collect(self) -> None:
        """Make the files that the node wrote durable. May block."""
        if self.work is not None:
            self.work.collect()

    def limit(self, clock: Clock, seconds: float) -> None:
        """Stop the call if it takes longer than this many seconds."""
        self._clock = clock
        self._deadline = clock.now() + seconds
        self._timer = clock.call_at(self._deadline, self._time_out)

    def hold_limit(self) -> None:
        """Pause the time limit while the call only waits."""
        if self._timer is not None and self._clock is not None and not self.timed_out:
            self._timer.cancel()
            self._timer = None
            self._left = self._deadline - self._clock.now()

    def go_on_with_limit(self) -> None:
        """Continue the time limit after a wait."""
        if self._left is not None and self._clock is not None and not self._is_over:
            left, self._left = self._left, None
            self.limit(self._clock, max(0.0, left))

    def rest(self) -> None:
        """Note that the call only waits, in the process that it has: its time limit is paused, and other calls get its place."""
        self.hold_limit()
        if self.place is not None:
            self.place.give_back()

    async def go_on(self) -> None:
        """Wait until the call has a place again after a wait, and continue its time limit."""
        if self.place is not None and not self._is_over:
            await self.place.take()
        self.go_on_with_limit()

    def stop(self) -> None:
        """Cancel the call. A coroutine ends when it has unwound, a process when it is dead; a thread is abandoned at once."""
        self.cancelled = True
        if self._task is not None:
            self._task.cancel()
            if self._queued:  # asyncio never begins such a task, so the call would not report its end
                asyncio.get_running_loop().call_soon(self._leave, asyncio.CancelledError())
        elif self._queued:
            pass  # the coroutine ends as soon as it would begin
        elif self._handle is None or not self._handle.kill():
            self._end(Stopped(), is_abandoned=True)

    def park(self, slots: list[str]) -> None:
        """Unwind the call, which waits for these slots: the node runs again from its top when one of the waits is over."""
        if self.parking is None and self._task is not None and not self.cancelled:
            self.parking = slots
            self._task.cancel()

    def give_up(self) -> None:
        """Abandon a cancelled coroutine that does not unwind, like a thread: report its end, and do not wait for it."""
        if self._is_over:
            return
        if self._task is not None:
            # Otherwise `asyncio.run` would wait for the task before it returns.
            with suppress(AttributeError, KeyError):
                asyncio.tasks._unregister_task(self._task)  # noqa: SLF001
        self._end(Stopped(), is_abandoned=True)

    def _time_out(self) -> None:
        self.timed_out = True
        self.stop()
        if not self._is_over and self._clock is not None:
            self._timer = self._clock.call_at(self._clock.now() + UNWIND_S, self.give_up)

    def _leave(self, error: BaseException | None) -> None:
        """Report that the call has ended or, if that was reported before, that its code has really ended."""
        was_over = self._is_over
        left = (
            self.work.threads_left()
            if self._handle is not None and self.work is not None and not was_over
            else None
        )
        if left is not None:  # a try of a step took too long, and its thread still runs
            self._end(error)
            left.add_done_callback(lambda _: self._leave(None))
            return
        self.has_gone = True
        self._end(error)
        if was_over and self._owner is not None:
            self._owner.body_gone(self)

    def _end(self, error: BaseException | None, *, is_abandoned: bool = False) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self.parking is not None and not is_abandoned:
            # Even if the node has returned a result or raised while it unwound, or was stopped then: its wait is not over.
            error = Parked(self.parking)
        elif self.cancelled and _is_stop(error):
            if is_abandoned or isinstance(error, Killed):
                self.unfinished = "abandoned" if is_abandoned else "killed"
            error = Stopped()
        self.error = error
        if self.place is not None:
            self.place.give_back()
        if self._owner is not None:
            self._owner.body_ended(self)
