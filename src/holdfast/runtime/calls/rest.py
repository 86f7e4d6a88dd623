"""`Rest`: finds out when an attempt is at rest, so that what it awaits now is all that it awaits. `Turns`: lets the other
coroutines of an attempt run before one of them continues.

A wait that is over wakes its own coroutine first, and the node that awaits both it and another wait only some passes of the event
loop later. Until then, the attempt seems to await the other wait alone: it must neither be unwound into that one, nor begin it
again if it was withdrawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from holdfast.runtime.calls import asyncio_timers

_REST_PASSES = 10
"""Passes of the event loop after which an attempt is at rest, counted from the begin or end of one of its waits. The end of a
coroutine takes a pass or two to wake the one that awaits it, and a few more through `asyncio.wait`, `gather` or `shield`."""
_UNREST_PASSES_MAX = 200
"""Passes after which an attempt counts as at rest although one of its coroutines is about to run: perhaps it is a busy loop."""
_TURN_PASSES_MAX = _REST_PASSES - 2
"""Passes that a coroutine gives the others. An attempt cannot be at rest within so few passes."""

Coroutines: TypeAlias = Callable[[], Iterable[asyncio.Task[Any] | None]]


class Rest:
    """Whether an attempt is at rest."""

    is_settling = False
    """True if a wait of the attempt has just begun or ended, so that one of its coroutines may be about to continue."""

    def __init__(self, coroutines: Coroutines, settled: Callable[[], object]) -> None:
        self._coroutines = coroutines
        self._settled = settled
        self._passes = 0

    def disturb(self) -> None:
        """Note that a wait has begun or ended. `settled` is called when the attempt is at rest again."""
        self._passes = 0
        if not self.is_settling:
            self.is_settling = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        self._passes += 1
        is_early = self._passes < _REST_PASSES
        if is_early or (self._passes < _UNREST_PASSES_MAX and self._is_about_to_run()):
            asyncio.get_running_loop().call_soon(self._settle)
            return
        self.is_settling = False
        self._settled()

    def _is_about_to_run(self) -> bool:
        return any(one is not None and asyncio_timers.is_about_to_run(one) for one in self._coroutines())


class Turns:
    """Lets the other coroutines of an attempt run, before one of them continues with a result that is in the log.

    When the result was new, recording it took some passes of the event loop, in which the others got to their waits. If it were
    returned at once now, the node could cancel a task that has not begun its wait: the wait would not be counted, and the next
    one would get its number, and its slot.
    """

    def __init__(self, coroutines: Coroutines, rest: Rest) -> None:
        self._coroutines = coroutines
        self._rest = rest
        self._waiting: dict[asyncio.Task[Any] | None, asyncio.Future[None]] = {}
        self._passes = 0

    async def give(self) -> None:
        """Return when no other coroutine is about to run, except those that wait here too: they continue in the same pass."""
        me, loop = asyncio.current_task(), asyncio.get_running_loop()
        if not self._waiting:
            if not self._has_others(me):
                return
            self._passes = 0
            loop.call_soon(self._pass)
        turn = self._waiting[me] = loop.create_future()
        self._rest.disturb()
        await turn

    def _pass(self) -> None:
        self._passes += 1
        if self._passes < _TURN_PASSES_MAX and self._has_others():
            asyncio.get_running_loop().call_soon(self._pass)
            return
        waiting, self._waiting = self._waiting, {}
        for turn in waiting.values():
            if not turn.done():
                turn.set_result(None)
        self._rest.disturb()

    def _has_others(self, me: asyncio.Task[Any] | None = None) -> bool:
        return any(
            one is not None
            and one is not me
            and one not in self._waiting
            and asyncio_timers.is_about_to_run(one)
            for one in self._coroutines()
        )
