"""Access to the asyncio internals that the simulator and the manual clock need, in one place.

A simulated world runs several processes in one thread, and drops some of them midway. asyncio documents, for authors of event
loops, how a task is entered and left (`_enter_task`, `_leave_task`). It does not document how the running loop of a thread is
set, what a task passes to `call_soon`, the flag that silences a dropped task, and the queue of ready callbacks. These internals
are the same in every Python version in `TRIED`; test any other version before you rely on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TRIED = ((3, 11), (3, 13), (3, 14))
"""The Python versions with which the simulator was tested; it gave the same schedules with all of them."""

running_loop = asyncio._get_running_loop  # noqa: SLF001
set_running_loop = asyncio._set_running_loop  # noqa: SLF001


def _find_step_type() -> type:
    """Return the type of the callback that a new task passes to `call_soon`. With it, an event loop recognises new tasks
    without a search in asyncio's weak set of tasks, which would be slow.
    """
    steps: list[Any] = []
    event_loop: Any = asyncio.AbstractEventLoop

    class Probe(event_loop):  # type: ignore[misc]
        def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
            steps.append(callback)

        def get_debug(self) -> bool:
            return False

        def call_exception_handler(self, context: Any) -> None:
            """Report nothing: the probe is not a real event loop."""

    async def nothing() -> None: ...

    coroutine = nothing()
    forget(asyncio.Task(coroutine, loop=Probe()))
    coroutine.close()
    return type(steps[0])


def forget(task: asyncio.Task[Any]) -> None:
    """Silence the warning that asyncio logs when a pending task is dropped."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001


def is_idle(loop: Any) -> bool:
    """Return whether an asyncio event loop has nothing else to run than the caller."""
    return not loop._ready  # noqa: SLF001


STEP: type = _find_step_type()
"""The type of the callback with which a task begins; the `__self__` of such a callback is the task."""


@contextmanager
def step_outside(loop: Any) -> Iterator[None]:
    """Leave the task that runs on this loop, so that tasks of other loops can run meanwhile in the same thread: since Python
    3.14 a thread can be inside only one task at a time, whatever the loop.
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
