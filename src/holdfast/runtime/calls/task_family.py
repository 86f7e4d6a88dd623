"""The tasks that belong to an attempt: those that its coroutine has started, directly or through other tasks.

asyncio does not record which task started which, so the event loop of a node with a context gets a task factory that notes a
new task if the code that creates it belongs to an attempt. The factory changes nothing else about the tasks.

When an attempt unwinds, it ends the tasks that were cancelled on the way (the other parts of a `gather`) and those that have
used the attempt's context. It leaves the other tasks alone: the reader of a connection pool that was first used inside a node
must not end with that node.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any


class Family:
    """The tasks of one attempt, as long as they exist. Most attempts start none."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] | None = None

    def add(self, task: asyncio.Task[Any]) -> None:
        if self._tasks is None:
            self._tasks = weakref.WeakSet()
        self._tasks.add(task)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(()) if self._tasks is None else iter(self._tasks)


_family: contextvars.ContextVar[Family | None] = contextvars.ContextVar("holdfast_family", default=None)


def start(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, None],
    family: Family,
    context: contextvars.Context,
) -> asyncio.Task[None]:
    """Start the coroutine of an attempt, and note the tasks that it starts in `family`."""
    context.run(join, loop, family)
    return asyncio.Task(coroutine, loop=loop, context=context)


def join(loop: asyncio.AbstractEventLoop, family: Family) -> None:
    """Note the tasks that the calling code starts from now on in `family`."""
    factory = loop.get_task_factory()
    if not getattr(factory, "notes_families", False):
        loop.set_task_factory(_wrap_factory(factory))
    _family.set(family)


def _wrap_factory(factory: Callable[..., Any] | None) -> Callable[..., Any]:
    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        task = (
            asyncio.Task(coroutine, loop=loop, **options)
            if factory is None
            else factory(loop, coroutine, **options)
        )
        family = _family.get()
        if family is not None:
            family.add(task)
        return task

    make.notes_families = True  # type: ignore[attr-defined]
    return make
