"""An async node that blocks the event loop is named in a warning, once, with its line."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from engines import Work, in_engine, one_node
from harness import PATIENCE_S

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.runtime.calls.loop_watch import LoopWatch

HERE = Path(__file__).name


class Scene:
    """A watch whose looks are made by threads of the test, while a node of a run blocks the event loop."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.watch: LoopWatch
        self._caplog = caplog

    def look(self, times: int) -> None:
        """Let another thread look, and block until it has."""
        thread = threading.Thread(target=lambda: [self.watch.look() for _ in range(times)])
        thread.start()
        thread.join()

    def run(self, flow: hf.Flow[Any], given: Any = None) -> list[str]:
        """Execute a run without the watch of the engine itself. Returns what was logged."""

        async def use(engine: hf.Engine) -> None:
            self.watch = LoopWatch(threading.get_ident(), lambda: True)
            await engine.run(flow, given)

        self._caplog.clear()
        in_engine(use, inline=True)
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def scene(caplog: pytest.LogCaptureFixture) -> Scene:
    return Scene(caplog)


def line_of(function: Callable[..., Any], after: int) -> str:
    return f"{HERE}:{function.__code__.co_firstlineno + after}, in {function.__name__}."


def test_a_node_that_blocks_is_named_with_its_line_once(scene: Scene) -> None:
    async def greedy(state: Work) -> None:
        scene.look(3)
        scene.look(2)

    (told,) = scene.run(one_node(greedy))
    assert told.startswith("node 'only' blocks the event loop for more than a second, at ")
    assert line_of(greedy, 1) in told
    assert "await asyncio.to_thread" in told


def test_a_node_with_a_context_or_a_stream_is_named_too(scene: Scene) -> None:
    async def steps(state: Work, ctx: hf.Context) -> None:
        await ctx.step("first", lambda: 1)
        scene.look(3)

    async def streams(state: Work) -> AsyncIterator[Any]:
        yield "a chunk"
        scene.look(3)

    assert line_of(steps, 2) in scene.run(one_node(steps))[0]
    assert line_of(streams, 2) in scene.run(one_node(streams))[0]


def test_many_short_nodes_are_not_blamed_for_a_busy_loop(scene: Scene) -> None:
    graph = Graph("many", Work)

    @graph.node(each=lambda state: state.pages)
    async def brief(page: str) -> None:
        scene.look(1)

    assert scene.run(graph.chain(START, brief, END).compile(), Work(pages=list("abcdef"))) == []


def test_what_is_not_the_code_of_a_node_is_not_reported(scene: Scene) -> None:
    graph = Graph("routed", Work)

    @graph.node
    async def quick(state: Work) -> None: ...

    def route(state: Work) -> str:
        scene.look(4)
        return END

    graph.edge(START, quick).branch(quick, route, to=[END])
    assert scene.run(graph.compile()) == []


def test_a_process_that_was_suspended_does_not_blame_a_node(scene: Scene) -> None:
    async def innocent(state: Work) -> None:
        for _ in range(4):
            scene.look(1)
            scene.watch._looked_at -= 10.0

    assert scene.run(one_node(innocent)) == []


def test_the_thread_that_renews_leases_looks_while_a_run_is_executed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    noticed = threading.Event()

    class Notice(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            noticed.set()

    async def greedy(state: Work) -> dict[str, Any]:
        return {"plain": "noticed" if noticed.wait(PATIENCE_S) else "not noticed"}

    log, hears = logging.getLogger("holdfast"), Notice()
    log.addHandler(hears)
    try:
        run = in_engine(lambda engine: engine.run(one_node(greedy)))
    finally:
        log.removeHandler(hears)
    assert run.state.plain == "noticed"
    assert [line_of(greedy, 1) in record.getMessage() for record in caplog.records] == [True]
