"""Simulate several processes in one thread: an event loop for each, one virtual clock for all, and a random order of turns.

This module owns order and time, and knows nothing of engines and stores. A `SimulatedLoop` is an asyncio event loop without a
selector: it runs the callbacks that are ready, in the order that asyncio promises. A `World` gives turns to its loops; when none
of them has a ready callback, the clock jumps to the next timer. A loop can be put to sleep (its process is paused), can block
inside a call while others continue, and can be killed.

Invariants: time never goes back; no code of a killed loop runs, not even to clean up; the same seed gives the same order.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import partial
from heapq import heappop, heappush
from types import FrameType
from typing import Any

import msgspec

from holdfast.testing.clock import STARTS_AT
from holdfast.testing.event_loops import STEP, forget, running_loop, set_running_loop, step_outside

TURNS_MAX = 4_000
_CLOSINGS = 5
_STACK_FRAMES = 12
_NEVER = float("inf")
_EventLoop: Any = asyncio.AbstractEventLoop
"""The base class of the simulated loop. It is typed as `Any`, because a simulated loop has no sockets and does not implement
most methods of an event loop.
"""


class Luck(random.Random):
    """A faster `random.Random`: the same results, with half the function calls in `choice`."""

    def choice(self, seq: Any) -> Any:
        getrandbits, count = self.getrandbits, len(seq)
        bits = count.bit_length()
        drawn = getrandbits(bits)
        while drawn >= count:
            drawn = getrandbits(bits)
        return seq[drawn]


class ProcessDied(BaseException):
    """Raised inside a simulated process that has just died, to stop its code. Code that catches this must not continue."""


class Stuck(Exception):
    """Raised when a simulated schedule cannot end: it takes too long, or has nothing left to run although it is not over."""


class Hung(BaseException):
    """Raised inside a callback that has used up its processor time. A `BaseException`, so that a node that catches every
    `Exception` does not catch it.
    """


def _make_plain(loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=loop, **options)


class SimulatedHandle(msgspec.Struct, eq=False):
    """A scheduled callback. It is a struct because a simulation makes hundreds of them, and creating a struct calls no Python
    function.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...]
    context: Context
    at: float = 0.0
    dropped: bool = False

    def cancel(self) -> None:
        self.dropped = True

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self.at


class SimulatedLoop(_EventLoop):  # type: ignore[misc]
    """The event loop of one simulated process."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.ready: deque[SimulatedHandle] = deque()
        self.timers: list[tuple[float, int, SimulatedHandle]] = []
        self.asleep_until = 0.0
        self.standing = False
        """True while the loop is inside a blocking call; it gets no turn until the call returns."""
        self.dead = False
        self._begun: list[asyncio.Task[Any]] = []
        """Every task that ever began on this loop. Tasks are kept until the world ends, so that no finaliser runs before."""
        self._factory: Any = None
        self.create_future: Callable[[], asyncio.Future[Any]] = partial(asyncio.Future, loop=self)
        world.loops.append(self)
        world.living.append(self)
        world.names.add(name)

    # --- methods that asyncio calls -------------------------------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = SimulatedHandle(callback, args, copy_context() if context is None else context)
        if type(callback) is STEP:
            self._begun.append(callback.__self__)  # type: ignore[attr-defined]
        if not self.dead:
            self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        when = self.world.now + delay
        handle = SimulatedHandle(callback, args, copy_context() if context is None else context, when)
        if not self.dead:
            heappush(self.timers, (when, next(self.world.order), handle))
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = SimulatedHandle(callback, args, copy_context() if context is None else context, when)
        if not self.dead:
            heappush(self.timers, (when, next(self.world.order), handle))
        return handle

    def time(self) -> float:
        return self.world.now

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Create a task on this loop. `options` are name and context; from Python 3.14 on also eager_start."""
        made: asyncio.Task[Any] = (self._factory or _make_plain)(self, coro, **options)
        return made

    def _make_with(self, factory: Any) -> None:
        self._factory = factory

    set_task_factory = _make_with

    def get_task_factory(self) -> Callable[..., asyncio.Task[Any]] | None:
        made_by: Callable[..., asyncio.Task[Any]] | None = self._factory
        return made_by

    get_debug = staticmethod(
        bool
    )  # `bool()` returns False without a Python frame: asyncio calls this for every task and future

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore exceptions of tasks that no code has retrieved: a fault that matters is visible in the store."""

    # --- lifecycle ------------------------------------------------------------------------------------

    def rest(self, seconds: float) -> asyncio.Future[None]:
        """Return a future that is done after this many seconds: a cheaper `asyncio.sleep`, because half of the time of a
        schedule is spent in it.
        """
        rested = self.create_future()
        self.call_later(seconds, rested.set_result, None)
        return rested

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a coroutine in this simulated process, from outside."""
        return asyncio.Task(work, loop=self)

    def kill(self) -> None:
        """Stop the loop for good: none of its callbacks runs again."""
        if not self.dead:
            self.dead = True
            self.world.living.remove(self)
            self.world.names.discard(self.name)
        self.ready.clear()
        self.timers.clear()

    def bury(self) -> None:
        """Unwind the tasks that are left when the world is over, and ignore what they raise. Meanwhile this loop is set as the
        running loop: without a running loop, asyncio would create a real one that is never closed.
        """
        self.kill()
        outer = running_loop()
        set_running_loop(self)
        try:
            for left in self._begun:
                if not left.done():
                    forget(left)
                    _close(left.get_coro())
        finally:
            set_running_loop(outer)
        self._begun.clear()


def _close(coroutine: Any) -> None:
    """Close a coroutine. If it awaits while it unwinds, close it again."""
    for _ in range(_CLOSINGS):
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001 - its process is dead
            continue
        return


class World:
    """The event loops, the clock and the random generator of one simulated schedule."""

    def __init__(self, luck: random.Random, *, turns_max: int = TURNS_MAX) -> None:
        self.luck = luck
        self.now = STARTS_AT
        self.loops: list[SimulatedLoop] = []
        self.living: list[SimulatedLoop] = []
        self.names: set[str] = set()
        """The names of the living loops."""
        self.order = itertools.count()
        self.turns = 0
        self.escaped: list[str] = []
        """The exceptions that callbacks raised, as text; a real event loop would log them."""
        self._turns_max = turns_max
        self._hung: str | None = None
        """A message with the stack of the callback that used up its processor time; None if no callback did."""

    @contextmanager
    def limit_cpu(self, seconds: float) -> Iterator[None]:
        """Stop a world that hangs inside one callback: after this much processor time, raise `Stuck` with the stack of the
        callback. Nothing in a world should wait for the machine, so the limit is in processor time, which does not grow when the
        machine is busy. The limit does not stop code that blocks without computing, that catches every `BaseException` in a
        loop, or that runs outside the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGVTALRM, partial(self._hang, seconds))
        # The signal is repeated each second, because code in a loop may swallow the first exception.
        outer = signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 1.0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL if before is None else before)
            signal.setitimer(signal.ITIMER_VIRTUAL, *outer)

    def _hang(self, seconds: float, _: int, frame: FrameType | None) -> None:
        stack = "".join(traceback.format_stack(frame, _STACK_FRAMES)).rstrip()
        self._hung = (
            self._hung or f"hung: a callback took {seconds:g} s of processor time. Its stack:\n{stack}"
        )
        self._turns_max = -1  # a task that swallows this exception gets no further turn
        raise Hung(self._hung)

    def go_on(
        self, over: Callable[[], bool], until: float = _NEVER, *, standing: SimulatedLoop | None = None
    ) -> None:
        """Run the loops, turn by turn, until `over()` returns true, or until the time `until` is reached and no loop is ready.
        If `standing` is given (a loop that is inside a blocking call), also return at `until` while other loops are ready, and
        when that loop dies. Raises `Stuck` if nothing can happen any more or the schedule takes too long.
        """
        outer = running_loop()
        try:
            self._give_turns(over, until, standing)
        except Hung as hung:
            raise Stuck(self._hung) from hung
        finally:
            set_running_loop(outer)

    def _give_turns(self, over: Callable[[], bool], until: float, standing: SimulatedLoop | None) -> None:
        running = None
        living, luck = self.living, self.luck
        while not over():
            now = self.now
            if standing is not None and (standing.dead or now >= until):
                return
            awake = []
            for loop in living:
                if loop.ready and not loop.standing and loop.asleep_until <= now:
                    awake.append(loop)  # noqa: PERF401 - a comprehension would be a call in every turn
            if awake:
                self.turns += 1
                if self.turns > self._turns_max:
                    raise Stuck(self._hung or f"the schedule is not over after {self._turns_max} turns")
                loop = awake[0] if len(awake) == 1 else awake[int(luck.random() * len(awake))]
                if loop is not running:
                    set_running_loop(loop)
                    running = loop
                self._give_turn(loop, loop.ready)
            elif now >= until:
                return
            else:
                self._pass_time(until)

    def _give_turn(self, loop: SimulatedLoop, ready: deque[SimulatedHandle]) -> None:
        """Run every callback that is ready now, but none that becomes ready during this turn."""
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.dropped:
                continue
            try:
                handle.context.run(handle.call, *handle.args)
            except (ProcessDied, Hung):
                pass
            except Exception as fault:  # noqa: BLE001 - reported as a violation
                self.escaped.append(f"{loop.name}: {type(fault).__name__}: {fault}")
            if loop.dead or loop.asleep_until > self.now:
                return

    def elsewhere(self, loop: SimulatedLoop, seconds: float) -> None:
        """Block a loop inside a call for this many seconds, while the other loops continue. Raises `ProcessDied` if the process
        of the loop died meanwhile.
        """
        until = self.now + seconds
        loop.standing = True
        try:
            with step_outside(loop):
                self.go_on(bool, until, standing=loop)
        finally:
            loop.standing = False
        if loop.dead:
            raise ProcessDied

    def end(self) -> None:
        for loop in self.loops:
            loop.kill()
        for loop in self.loops:
            loop.bury()

    def _pass_time(self, until: float) -> None:
        """Jump to the time at which the next loop becomes ready."""
        soonest = until
        for loop in self.living:
            if loop.standing:
                continue
            timers = loop.timers
            while timers and timers[0][2].dropped:
                heappop(timers)
            if loop.ready:
                wakes_at = loop.asleep_until
            elif timers:
                wakes_at = timers[0][0]
                wakes_at = max(wakes_at, loop.asleep_until)
            else:
                continue
            soonest = min(soonest, wakes_at)
        if soonest == _NEVER:
            raise Stuck("no process has a callback or a timer left, so nothing can happen any more")
        now = self.now = max(self.now, soonest)
        for loop in self.living:
            timers = loop.timers
            while timers and timers[0][0] <= now:
                handle = heappop(timers)[2]
                if not handle.dropped:
                    loop.ready.append(handle)
