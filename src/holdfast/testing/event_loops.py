"""What the simulator and the manual clock need to know of the inside of asyncio, in one place.

A simulated world plays several processes in one thread, and drops some of them in the middle. asyncio documents how a task
is entered and left (`_enter_task`, `_leave_task`), for those who write event loops. It does not document the loop that a thread
runs, what a task hands to `call_soon`, the flag that keeps a dropped task from complaining, and the queue of what is ready.
These have been the same in every Python in `TRIED`; a Python that is not listed there has to be tried first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TRIED = ((3, 11), (3, 13), (3, 14))
"""The versions of Python under which the simulator was seen to play the same schedules; 3.12 lies between two of them."""

running_loop = asyncio._get_running_loop  # noqa: SLF001
set_running_loop = asyncio._set_running_loop  # noqa: SLF001


def _find_step_type() -> type:
    """What a task hands to `call_soon` when it begins: asyncio keeps its tasks in a weak set, and looking there is slow."""
    steps: list[Any] = []
    event_loop: Any = asyncio.AbstractEventLoop

    class Probe(event_loop):  # type: ignore[misc]
        def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
            steps.append(callback)

        def get_debug(self) -> bool:
            return False

        def call_exception_handler(self, context: Any) -> None:
            """The probe reports nothing."""

    async def nothing() -> None: ...

    coroutine = nothing()
    forget(asyncio.Task(coroutine, loop=Probe()))
    coroutine.close()
    return type(steps[0])


def forget(task: asyncio.Task[Any]) -> None:
    """Let a pending task be dropped without a complaint in the log."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001


def is_idle(loop: Any) -> bool:
    """Whether nothing but the caller is ready to run on an event loop of asyncio's."""
    return not loop._ready  # noqa: SLF001


STEP: type = _find_step_type()
"""The type of what begins a task; its `__self__` is the task."""


@contextmanager
def stepping_outside(loop: Any) -> Iterator[None]:
    """Step out of the task that runs on this loop, so that tasks of other loops may run meanwhile in the same thread: from
    Python 3.14 on, a thread is inside one task at a time, whatever the loop.
    """
    inside = asyncio.current_task(loop)
    if inside is None:
        yield
        return
    asyncio._leave_task(loop, inside)  # noqa: SLF001
    try:
        yield
    finally:
        asyncio._enter_task(loop, inside)  # noqa: SLF001
