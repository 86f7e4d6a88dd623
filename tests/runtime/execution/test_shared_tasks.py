"""Plain coroutines share a task as long as none of them waits, and notice nothing of that."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from holdfast.core.events import NodeStarted
from holdfast.runtime.calls.body import Body, Stopped
from holdfast.runtime.calls.shared_task import Stage

_said: contextvars.ContextVar[str] = contextvars.ContextVar("said", default="nothing")


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def on_stage() -> None:
        await scene(Stage())

    asyncio.run(on_stage())


def enter(stage: Stage, coroutine: Coroutine[Any, Any, None]) -> None:
    stage.call(coroutine, contextvars.copy_context())


async def passes(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_coroutines_that_do_not_wait_are_called_in_one_task_in_their_order() -> None:
    seen: list[tuple[int, asyncio.Task[Any] | None]] = []

    async def node(number: int) -> None:
        seen.append((number, asyncio.current_task()))

    async def scene(stage: Stage) -> None:
        for number in range(5):
            enter(stage, node(number))
        assert not seen, "nothing begins before the next pass"
        await passes(1)
        assert [number for number, _ in seen] == [0, 1, 2, 3, 4]
        assert len({task for _, task in seen}) == 1
        assert seen[0][1] is not asyncio.current_task()

    play(scene)


def test_one_that_waits_keeps_its_task_and_the_others_go_on_in_another() -> None:
    async def scene(stage: Stage) -> None:
        gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        tasks: dict[str, list[asyncio.Task[Any] | None]] = {"waits": [], "next": []}

        async def waits() -> None:
            tasks["waits"].append(asyncio.current_task())
            assert await gate == "open"
            await asyncio.sleep(0)
            tasks["waits"].append(asyncio.current_task())

        async def following() -> None:
            tasks["next"].append(asyncio.current_task())

        enter(stage, waits())
        enter(stage, following())
        await passes()
        assert len(tasks["next"]) == 1
        assert tasks["next"][0] is not tasks["waits"][0]
        gate.set_result("open")
        await passes()
        assert tasks["waits"][0] is tasks["waits"][1]

    play(scene)


def test_what_one_sets_in_its_context_is_there_behind_a_wait_and_not_for_the_next() -> None:
    async def scene(stage: Stage) -> None:
        seen: list[str] = []

        async def node(word: str, *, wait: bool) -> None:
            seen.append(_said.get())
            _said.set(word)
            if wait:
                await asyncio.sleep(0)
            seen.append(_said.get())

        enter(stage, node("one", wait=True))
        enter(stage, node("two", wait=False))
        await passes(4)
        assert sorted(seen) == ["nothing", "nothing", "one", "two"]
        assert _said.get() == "nothing"

    play(scene)


def test_a_cancelled_task_ends_what_is_in_it_and_nothing_that_is_queued() -> None:
    async def scene(stage: Stage) -> None:
        ended: list[str] = []

        async def cancels_itself() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            ended.append("first")

        async def following() -> None:
            await asyncio.sleep(0)
            ended.append("second")

        enter(stage, cancels_itself())
        enter(stage, following())
        await passes(5)
        assert ended == ["first", "second"]

    play(scene)


def test_a_cancel_reaches_the_coroutine_that_waits() -> None:
    async def scene(stage: Stage) -> None:
        found: list[object] = []

        async def waits() -> None:
            found.append(asyncio.current_task())
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                found.append("cancelled")

        enter(stage, waits())
        await passes(1)
        task = found[0]
        assert isinstance(task, asyncio.Task)
        task.cancel()
        await passes()
        assert found[1:] == ["cancelled"]

    play(scene)


def test_when_all_tasks_are_cancelled_before_they_begin_what_is_queued_is_still_called() -> None:
    async def scene(stage: Stage) -> None:
        seen: list[int] = []

        async def node(number: int) -> None:
            seen.append(number)

        enter(stage, node(1))
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await passes()
        assert not seen
        enter(stage, node(2))
        await passes()
        assert seen == [1, 2]

    play(scene)


@pytest.mark.parametrize(
    ("hold_s", "order"),
    [(0.0, "node other node other node other node"), (0.002, "node node other other node node other")],
)
def test_calls_that_lead_to_each_other_hold_the_event_loop_up_for_a_moment(hold_s: float, order: str) -> None:
    async def scene(_: Stage) -> None:
        seen: list[str] = []
        now = 0.0
        stage = Stage(hold_s, lambda: now)

        async def node(left: int) -> None:
            nonlocal now
            now += 0.001
            seen.append("node")
            if left:
                enter(stage, node(left - 1))
                asyncio.get_running_loop().call_soon(seen.append, "other")

        enter(stage, node(3))
        await passes(8)
        assert " ".join(seen) == order

    play(scene)


@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="an event loop starts no task at once before Python 3.12"
)
def test_an_event_loop_that_starts_tasks_at_once_changes_nothing() -> None:
    async def scene(stage: Stage) -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
        seen: list[int] = []

        async def node(number: int) -> None:
            seen.append(number)

        enter(stage, node(1))
        enter(stage, node(2))
        assert not seen
        await passes()
        assert seen == [1, 2]

    play(scene)


def test_a_call_that_is_stopped_before_its_turn_ends_without_being_made() -> None:
    class Owner:
        def __init__(self) -> None:
            self.ended: list[Body] = []

        def body_ended(self, body: Body) -> None:
            self.ended.append(body)

        def body_gone(self, body: Body) -> None:
            raise AssertionError("it never was anywhere")

    async def scene(stage: Stage) -> None:
        owner, called = Owner(), []

        async def node(given: str) -> None:
            called.append(given)

        body = Body(NodeStarted(node="work", iteration=1), None, owner)
        body.call(node, ("state",), contextvars.copy_context(), stage)
        body.stop()
        await passes()
        assert owner.ended == [body]
        assert isinstance(body.error, Stopped)
        assert body.has_gone
        assert not called

    play(scene)


def test_a_coroutine_that_is_dropped_where_it_waits_is_closed() -> None:
    closed: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            closed.append("closed")

    async def scene() -> None:
        enter(Stage(), waits())
        await passes()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(scene())
    for task in asyncio.all_tasks(loop):
        coroutine = task.get_coro()
        assert coroutine is not None
        coroutine.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    assert closed == ["closed"]
