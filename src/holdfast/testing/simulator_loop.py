"""One thread that plays several processes: an event loop for each, one virtual clock for all, and luck that says who goes next.

Owns order and time, and knows nothing of engines and stores. A `SimulatedLoop` is an asyncio event loop without a selector: it
runs what is ready, in the order asyncio promises, and waits for nothing else. A `World` gives turns to its loops; where none has
anything to do, the clock jumps to the next timer. A loop may be put to sleep (its process is paused), stand still inside a call
while others go on, and be killed.

Invariants: time never goes back; nothing of a killed loop runs on, not even to clean up; the same luck gives the same order.
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
from holdfast.testing.event_loops import STEP, forget, running_loop, set_running_loop, stepping_outside

TURNS_MAX = 4_000
_CLOSINGS = 5
_STACK_FRAMES = 12
_NEVER = float("inf")
_EventLoop: Any = asyncio.AbstractEventLoop
"""Untyped: most of what a loop could do has no place in a world without sockets, and is not written out."""


class Luck(random.Random):
    """The same luck, drawn with half the calls."""

    def choice(self, seq: Any) -> Any:
        getrandbits, count = self.getrandbits, len(seq)
        bits = count.bit_length()
        drawn = getrandbits(bits)
        while drawn >= count:
            drawn = getrandbits(bits)
        return seq[drawn]


class ProcessDied(BaseException):
    """Raised inside a process that has just died, so that nothing of it goes on. No code catches this and carries on."""


class Stuck(Exception):
    """The world goes round and round, or nothing in it will ever happen again."""


class Hung(BaseException):
    """Raised inside a callback that has used up its processor time. A node that catches every `Exception` must not catch this."""


def _make_plain(loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=loop, **options)


class SimulatedHandle(msgspec.Struct, eq=False):
    """A call that is waiting for its turn, or for its time. A world makes hundreds: a struct is made without a frame."""

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
    """The event loop of one process of the world."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.ready: deque[SimulatedHandle] = deque()
        self.timers: list[tuple[float, int, SimulatedHandle]] = []
        self.asleep_until = 0.0
        self.standing = False
        """Inside a call that takes its time: it is not given a turn until that returns."""
        self.dead = False
        self._begun: list[asyncio.Task[Any]] = []
        """Everything that ever began here: whatever is left of it is kept to the end, so that no finaliser runs before."""
        self._factory: Any = None
        self.create_future: Callable[[], asyncio.Future[Any]] = partial(asyncio.Future, loop=self)
        world.loops.append(self)
        world.living.append(self)
        world.names.add(name)

    # --- what asyncio asks of a loop ------------------------------------------------------------------

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
        """`options`: name and context; from Python 3.14 on also eager_start."""
        made: asyncio.Task[Any] = (self._factory or _make_plain)(self, coro, **options)
        return made

    def _make_with(self, factory: Any) -> None:
        self._factory = factory

    set_task_factory = _make_with

    def get_task_factory(self) -> Callable[..., asyncio.Task[Any]] | None:
        made_by: Callable[..., asyncio.Task[Any]] | None = self._factory
        return made_by

    get_debug = staticmethod(bool)  # False, without a frame: asked for every task and future

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Asyncio tells of what nobody has asked for; what matters is found in the store."""

    # --- its life -------------------------------------------------------------------------------------

    def rest(self, seconds: float) -> asyncio.Future[None]:
        """`asyncio.sleep` for those that nobody cancels: they rest half of the time that a world takes."""
        rested = self.create_future()
        self.call_later(seconds, rested.set_result, None)
        return rested

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a coroutine in this process, from outside of it."""
        return asyncio.Task(work, loop=self)

    def kill(self) -> None:
        """Nothing of this loop runs any more."""
        if not self.dead:
            self.dead = True
            self.world.living.remove(self)
            self.world.names.discard(self.name)
        self.ready.clear()
        self.timers.clear()

    def bury(self) -> None:
        """The world is over: unwind what was left, whatever it says to that. What asks for its loop meanwhile is given this one:
        with none, asyncio would make a real one, which nobody closes.
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
    """Close a coroutine; one that awaits something while it unwinds is closed again."""
    for _ in range(_CLOSINGS):
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001 - it is dead
            continue
        return


class World:
    """The loops, the clock and the luck of one schedule."""

    def __init__(self, luck: random.Random, *, turns_max: int = TURNS_MAX) -> None:
        self.luck = luck
        self.now = STARTS_AT
        self.loops: list[SimulatedLoop] = []
        self.living: list[SimulatedLoop] = []
        self.names: set[str] = set()
        """Of those that live."""
        self.order = itertools.count()
        self.turns = 0
        self.escaped: list[str] = []
        """Exceptions that came out of a callback: asyncio would have logged them."""
        self._turns_max = turns_max
        self._hung: str | None = None
        """Where it was when its time was over."""

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """End a world that hangs inside one callback: one that takes this much processor time raises `Stuck`, with the stack it
        was found at. Nothing in a world should wait for the machine, so processor time is the measure: a busy machine costs
        none. There is no limit for code that blocks without computing, that catches every `BaseException` in a loop, or that
        runs in another thread than the main one.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGVTALRM, partial(self._hang, seconds))
        # Again each second: code in a loop may swallow the first.
        outer = signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 1.0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL if before is None else before)
            signal.setitimer(signal.ITIMER_VIRTUAL, *outer)

    def _hang(self, seconds: float, _: int, frame: FrameType | None) -> None:
        stack = "".join(traceback.format_stack(frame, _STACK_FRAMES)).rstrip()
        self._hung = self._hung or f"hung: it took {seconds:g} s of processor time, and was here:\n{stack}"
        self._turns_max = -1  # a task that swallows what is raised here gets no other turn
        raise Hung(self._hung)

    def go_on(
        self, over: Callable[[], bool], until: float = _NEVER, *, standing: SimulatedLoop | None = None
    ) -> None:
        """Give turns until it is over, or until a time at which nobody has anything to do. `standing`: a loop whose call is over
        at that time, whatever others have to do, and when it dies. Raises `Stuck`.
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
                    awake.append(loop)  # noqa: PERF401 - a comprehension is a call, here at every turn
            if awake:
                self.turns += 1
                if self.turns > self._turns_max:
                    raise Stuck(self._hung or f"not over after {self._turns_max} turns")
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
        """One pass: everything that was ready when it began."""
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.dropped:
                continue
            try:
                handle.context.run(handle.call, *handle.args)
            except (ProcessDied, Hung):
                pass
            except Exception as fault:  # noqa: BLE001 - a defect, and told as one
                self.escaped.append(f"{loop.name}: {type(fault).__name__}: {fault}")
            if loop.dead or loop.asleep_until > self.now:
                return

    def elsewhere(self, loop: SimulatedLoop, seconds: float) -> None:
        """Let a loop stand still inside a call for so long, while the others go on. Raises `ProcessDied` if it died meanwhile."""
        until = self.now + seconds
        loop.standing = True
        try:
            with stepping_outside(loop):
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
        """Nobody has anything to do: jump to when somebody has."""
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
            raise Stuck("nothing will ever happen again")
        now = self.now = max(self.now, soonest)
        for loop in self.living:
            timers = loop.timers
            while timers and timers[0][0] <= now:
                handle = heappop(timers)[2]
                if not handle.dropped:
                    loop.ready.append(handle)
