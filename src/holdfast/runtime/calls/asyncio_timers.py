"""Finds out whether a node may cancel one of its own waits through asyncio: by a timer around the wait, or in another of its
tasks.

An asyncio timer lives in memory only. If a timer may end a wait of an attempt, the attempt is kept in memory as long as
`park_after` allows, because unwinding it would lose the timer. asyncio does not record which timers surround a coroutine, so
this module looks at the suspended coroutines of a task, without changing them. It recognizes `asyncio.timeout`,
`asyncio.wait_for`, `asyncio.wait` and `asyncio.TaskGroup`; it was tried with Python 3.11 to 3.14. A timer that it does not
recognize is lost when the attempt unwinds.
"""

from __future__ import annotations

import asyncio
import gc
import types
from collections.abc import Collection, Iterator
from typing import Any

_SUSPENDED = (types.CoroutineType, types.AsyncGeneratorType, types.GeneratorType)
_WAIT, _WAIT_FOR = asyncio.wait.__code__, asyncio.wait_for.__code__
_GROUP_END = asyncio.TaskGroup.__aexit__.__code__


def may_be_cancelled(
    own: asyncio.Task[Any], waiting: Collection[asyncio.Task[Any]], family: Collection[asyncio.Task[Any]]
) -> bool:
    """Return whether the node itself may cancel one of its waits. `own` is the task of the node, `waiting` are the tasks that
    wait through its context, `family` are all tasks that it has started.
    """
    if any(_has_timer(task) for task in (own, *waiting)):
        return True
    in_tasks = any(task is not own for task in waiting) or _is_in_group(own)
    return in_tasks and not all(
        task in waiting or task.done() or _only_awaits_others(task) for task in (own, *family)
    )


def is_about_to_run(task: asyncio.Task[Any]) -> bool:
    """Return whether a task continues in the next pass of the event loop."""
    awaited = getattr(task, "_fut_waiter", None)
    return not task.done() and (awaited is None or awaited.done())


def _suspended(task: asyncio.Task[Any]) -> Iterator[Any]:
    """Yield the coroutines and generators in which a task is suspended, outermost first."""
    part: Any = task.get_coro()
    while part is not None and not asyncio.isfuture(part):
        match part:
            case types.CoroutineType():
                yield part
                part = part.cr_await
            case types.AsyncGeneratorType():
                yield part
                part = part.ag_await
            case types.GeneratorType():
                yield part
                part = part.gi_yieldfrom
            case _:  # the object that awaits the next item of an async generator, or a future
                part = next(
                    (inner for inner in gc.get_referents(part) if isinstance(inner, _SUSPENDED)), None
                )


def _held_by(part: Any) -> Iterator[Any]:
    """Yield the objects on the stack of a suspended coroutine, where an `async with` keeps its context manager."""
    for found in gc.get_referents(part):
        yield found.__self__ if type(found) is types.MethodType else found


def _has_timer(task: asyncio.Task[Any]) -> bool:
    for part in _suspended(task):
        if any(isinstance(found, asyncio.Timeout) and found.when() is not None for found in _held_by(part)):
            return True
        if _code_of(part) in (_WAIT, _WAIT_FOR) and _local(part, "timeout") is not None:
            return True
    return False


def _is_in_group(task: asyncio.Task[Any]) -> bool:
    return any(isinstance(found, asyncio.TaskGroup) for part in _suspended(task) for found in _held_by(part))


def _only_awaits_others(task: asyncio.Task[Any]) -> bool:
    """Return whether a task only awaits other tasks: by `gather`, at the end of a `TaskGroup`, by `asyncio.wait`, or one task."""
    awaited = getattr(task, "_fut_waiter", None)
    if isinstance(awaited, asyncio.Task) or type(awaited).__name__ == "_GatheringFuture":
        return True
    return any(_code_of(part) in (_GROUP_END, _WAIT) for part in _suspended(task))


def _code_of(part: Any) -> Any:
    return getattr(part, "cr_code", None)


def _local(part: Any, name: str) -> Any:
    frame = part.cr_frame
    return None if frame is None else frame.f_locals.get(name)
