"""Nodes that give up a wait, in every form that asyncio offers. Processes of their own import this file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import holdfast as hf
from holdfast import append

# --- how a node gives up a wait ----------------------------------------------------------------------


async def by_wait_for(wait: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    return await asyncio.wait_for(wait(), seconds)


async def by_timeout(wait: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        return await wait()


async def by_slow_cleanup(wait: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        try:
            return await wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0)


async def by_first_completed(wait: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    waiting, timer = asyncio.ensure_future(wait()), asyncio.ensure_future(asyncio.sleep(seconds))
    await asyncio.wait({waiting, timer}, return_when=asyncio.FIRST_COMPLETED)
    for task in (waiting, timer):
        task.cancel()
    await asyncio.gather(waiting, timer, return_exceptions=True)
    if waiting.cancelled():
        raise TimeoutError
    return waiting.result()


async def by_wait(wait: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    waiting = asyncio.ensure_future(wait())
    await asyncio.wait({waiting}, timeout=seconds)
    if not waiting.done():
        waiting.cancel()
        raise TimeoutError
    return waiting.result()


async def late(seconds: float) -> None:
    await asyncio.sleep(seconds)
    raise TimeoutError


async def by_group(wait: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    try:
        async with asyncio.TaskGroup() as group:
            timer = group.create_task(late(seconds))
            waiting = asyncio.ensure_future(wait())
            waiting.add_done_callback(lambda done: timer.cancel())
            return await waiting
    except ExceptionGroup as group_error:  # what `except*` raises is in a group again before Python 3.11.4
        raise TimeoutError from group_error


async def by_group_around(wait: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    try:
        async with asyncio.TaskGroup() as group:
            timer = group.create_task(late(seconds))
            found = await wait()
            timer.cancel()
            return found
    except ExceptionGroup as group_error:
        raise TimeoutError from group_error


FORMS = [by_wait_for, by_timeout, by_slow_cleanup, by_first_completed, by_wait, by_group, by_group_around]


# --- nodes -------------------------------------------------------------------------------------------


@dataclass
class Impatient:
    form: str = ""
    seconds: float = 0.3
    log: Annotated[list[Any], append] = field(default_factory=list)


async def listen(state: Impatient, ctx: hf.Context) -> dict[str, Any]:
    """Wait for `x` for a while, and then again."""
    form = next(form for form in FORMS if form.__name__ == state.form)
    try:
        return {"log": ["first", await form(lambda: ctx.wait_for("x"), state.seconds)]}
    except TimeoutError:
        return {"log": ["second", await ctx.wait_for("x", key="second")]}


async def patient(state: Impatient, ctx: hf.Context) -> None:
    """Wait for signals in a form in which nothing cancels the wait."""
    if state.form == "gather":
        await asyncio.gather(ctx.wait_for("x"), ctx.wait_for("y"))
    elif state.form == "task":
        await asyncio.create_task(ctx.wait_for("x"))
    elif state.form == "group":
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.wait_for("x"))
            group.create_task(ctx.wait_for("y"))
    else:
        await ctx.wait_for("x")


async def leaves_a_wait(state: Impatient, ctx: hf.Context) -> dict[str, Any]:
    """Return while another task of the node still waits."""
    waiting = asyncio.ensure_future(ctx.wait_for("x"))
    await asyncio.sleep(0.3)
    return {"log": [waiting.done()]}
