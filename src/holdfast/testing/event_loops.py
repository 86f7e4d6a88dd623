"""Everything that the simulator and the manual clock use of the internals of asyncio, in one place.

A simulated world runs several processes in one thread, and drops some of them midway. asyncio documents how a task is entered
and left (`_enter_task`, `_leave_task`), for authors of event loops. It does not document how the running loop of a thread is
set, what a task passes to `call_soon`, the flag that silences a dropped task, and the queue of ready callbacks. These are the
same in every Python version in `TRIED`; try any other version before you rely on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TRIED = ((3, 11), (3, 13), (3, 14))
"""The Python versions in which the simulator gave the same schedules; 3.12 is between two of them."""

running_loop = asyncio._get_running_loop  # noqa: SLF001
set_running_loop = asyncio._set_running_loop  # noqa: SLF001


def _find_step_type() -> type:
    """The type that a task passes to `call_soon` when it begins: a search in asyncio's weak set of tasks would be slow."""
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
    """Silence the warning that asyncio logs when a pending task is dropped."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001


def is_idle(loop: Any) -> bool:
    """Whether only the caller is ready to run on an asyncio event loop."""
    return not loop._ready  # noqa: SLF001


STEP: type = _find_step_type()
"""The type of the callback that begins a task; its `__self__` is the task."""


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
