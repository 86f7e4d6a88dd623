"""A node that is stopped because its run is cancelled may call steps while it unwinds, and may not wait any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Stage, Work, until

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry, Step


@pytest.fixture(params=["memory", "sqlite"])
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(request.param, tmp_path, still=True)
    yield found
    found.close()


def child() -> Flow[Any]:
    graph = Graph("child", Work)
    graph.node(name="only")(lambda state: None)
    return graph.chain(START, "only", END).compile()


CHILD = child()


class Node:
    """A node that books, waits until it is cancelled, and then cleans up."""

    def __init__(self, clean_up: Callable[[hf.Context], Awaitable[Any]], **options: Any) -> None:
        self.is_waiting = False
        self.effects: list[str] = []
        self.errors: list[BaseException] = []
        self._clean_up = clean_up
        graph = Graph("one", Work)
        graph.node(name="only", **options)(self._body)
        self.flow: Flow[Any] = graph.chain(START, "only", END).compile()

    async def _body(self, state: Work, ctx: hf.Context) -> None:
        await ctx.step("book", self.effects.append, "booked")
        try:
            self.is_waiting = True
            await asyncio.get_running_loop().create_future()
        finally:
            try:
                await self._clean_up(ctx)
            except BaseException as raised:
                self.errors.append(raised)
                raise

    def cancelled(self, stage: Stage, *, end: str = "cancel", **options: Any) -> Any:
        """Execute the run, stop it where the node waits, and return the run."""

        async def use(engine: hf.Engine) -> Any:
            run = asyncio.create_task(engine.run(self.flow, None, run_id="r"))
            await until(lambda: self.is_waiting)
            if end == "cancel":
                await engine.cancel("r", by="ann")
            else:
                engine.stop(grace=0)
            await asyncio.gather(run, return_exceptions=True)
            return await engine.get("r")

        return stage.do(use, **options)


def test_steps_of_a_node_that_cleans_up_are_recorded_before_the_cancellation(stage: Stage) -> None:
    async def clean_up(ctx: hf.Context) -> None:
        assert ctx.kept("book")
        await ctx.step("unbook", node.effects.append, "unbooked")
        ctx.cost(usd=1.0)

    node = Node(clean_up)
    run = node.cancelled(stage)
    assert (run.status, node.effects, run.cost.usd) == ("cancelled", ["booked", "unbooked"], 1.0)
    kinds = stage.kinds()
    assert kinds[-4:] == ["StepCompleted", "CostIncurred", "NodeInterrupted", "RunCancelled"]
    assert stage.problems() == []


def test_a_declared_step_keeps_its_outcome_and_its_tries_while_a_node_cleans_up(stage: Stage) -> None:
    raised = [ConnectionError("busy"), ValueError("gone")]

    def undo() -> None:
        raise raised.pop(0)

    async def clean_up(ctx: hf.Context) -> None:
        step = Step("unbook", raises=(ValueError,), retry=Retry(attempts=3, backoff=0.0))
        with pytest.raises(ValueError, match="gone"):
            await ctx.step(step, undo)

    run = Node(clean_up).cancelled(stage)
    assert (run.status, len(stage.told("StepFailed"))) == ("cancelled", 2)
    assert stage.problems() == []


@pytest.mark.parametrize("wait", ["sleep", "wait_for", "ask", "start", "call"])
def test_waits_and_children_are_refused_while_a_node_cleans_up(stage: Stage, wait: str) -> None:
    waits: dict[str, Callable[[hf.Context], Awaitable[Any]]] = {
        "sleep": lambda ctx: ctx.sleep(1),
        "wait_for": lambda ctx: ctx.wait_for("paid"),
        "ask": lambda ctx: ctx.ask("Really?"),
        "start": lambda ctx: ctx.start(CHILD),
        "call": lambda ctx: ctx.call(CHILD),
    }
    node = Node(waits[wait])
    run = node.cancelled(stage)
    assert run.status == "cancelled"
    (refused,) = node.errors
    assert isinstance(refused, hf.ContextError)
    assert f"is cleaning up because the run is being cancelled, and can no longer use ctx.{wait}." in str(
        refused
    )
    assert stage.problems() == []


def test_a_node_that_is_only_interrupted_calls_no_step_while_it_unwinds(stage: Stage) -> None:
    """It runs again when the run is resumed, so nothing is to be undone."""

    async def clean_up(ctx: hf.Context) -> None:
        await ctx.step("unbook", node.effects.append, "unbooked")

    node = Node(clean_up)
    run = node.cancelled(stage, end="stop")
    assert (run.status, node.effects) == ("interrupted", ["booked"])
    assert type(node.errors[0]).__name__ == "Stopped"


def test_a_node_that_cleans_up_for_too_long_is_abandoned_and_records_nothing_more(stage: Stage) -> None:
    async def clean_up(ctx: hf.Context) -> None:
        stage.clock.advance(6)
        await until(lambda: stage.kinds()[-1] == "RunCancelled")
        await ctx.step("unbook", node.effects.append, "unbooked")

    node = Node(clean_up)
    run = node.cancelled(stage)
    assert (run.status, node.effects) == ("cancelled", ["booked"])
    assert stage.kinds()[-1] == "RunCancelled"
    assert stage.problems() == []
