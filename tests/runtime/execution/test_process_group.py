"""Whatever a node in a process of its own has started ends with it: on a timeout, a cancel, a stop, and when it dies by itself.
Real processes, which ignore every signal that can be ignored."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import group_nodes as nodes
import pytest
from group_nodes import Family

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.testing.clock import ManualClock

PATIENCE_S = 60
THREE = 3
"""The process of the node, the one it starts, and the one which that starts."""
_numbers = itertools.count()


class Pipe:
    """Read by the test; held open by every process of the family."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "pipe")
        os.mkfifo(self.path)
        # Opened for both, so that it is there before anybody writes, and again for reading only, so that it can end.
        self._both = os.open(self.path, os.O_RDWR)
        self._reading = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def all_begun(self) -> None:
        """All of the family are there."""
        said = b""
        while len(said) < THREE:
            said += self._next()
        os.close(self._both)  # from here on only they hold it

    def all_ended(self) -> None:
        assert self._next() == b""
        os.close(self._reading)

    def _next(self) -> bytes:
        assert select.select([self._reading], [], [], PATIENCE_S)[0], "somebody of the family still lives"
        return os.read(self._reading, 100)


@pytest.fixture
def pipe(tmp_path: Path) -> Pipe:
    return Pipe(tmp_path)


@pytest.fixture
def given(pipe: Pipe, tmp_path: Path) -> Family:
    return Family(pipe=pipe.path, program=nodes.write_program(str(tmp_path / "program.py")))


def one(fn: Callable[..., Any], **options: Any) -> Flow[Family]:
    graph = Graph("one", Family)
    graph.node(name="only", executor="process", **options)(fn)
    return graph.chain(START, "only", END).compile()


def using(use: Callable[[hf.Engine], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with hf.Engine(f"memory://group-{next(_numbers)}", **options) as engine:
            return await asyncio.wait_for(use(engine), PATIENCE_S)

    return asyncio.run(main())


def test_a_timeout_ends_all_that_the_node_has_started(pipe: Pipe, given: Family) -> None:
    clock = ManualClock()

    async def use(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.run(one(nodes.starts_a_family, timeout=10, retry=1), given))
        await asyncio.to_thread(pipe.all_begun)
        clock.advance(10.1)
        await asyncio.to_thread(pipe.all_ended)
        with pytest.raises(hf.RunFailed, match="took longer than 10 s"):
            await going

    using(use, clock=clock)


def test_a_cancelled_run_ends_all_that_the_node_has_started(pipe: Pipe, given: Family) -> None:
    async def use(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.run(one(nodes.starts_a_family), given, run_id="r"))
        await asyncio.to_thread(pipe.all_begun)
        await engine.cancel("r")
        await asyncio.to_thread(pipe.all_ended)
        with pytest.raises(hf.RunCancelled):
            await going

    using(use)


def test_an_engine_that_stops_ends_all_that_the_node_has_started(pipe: Pipe, given: Family) -> None:
    async def use(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.run(one(nodes.starts_a_family), given, run_id="r"))
        await asyncio.to_thread(pipe.all_begun)
        engine.stop()
        await asyncio.to_thread(pipe.all_ended)
        assert (await going).status == "interrupted"

    using(use, grace=0)


def test_a_process_that_dies_by_itself_takes_its_family_along(pipe: Pipe, given: Family) -> None:
    async def use(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.run(one(nodes.dies_before_its_family, retry=1), given))
        with pytest.raises(hf.RunFailed, match="exited with code 3"):
            await going

    # Those that it left had perhaps no time to begin; none of them may be alive.
    using(use)
    os.close(pipe._both)
    said = [pipe._next()]
    while said[-1]:
        said.append(pipe._next())
    os.close(pipe._reading)


def test_a_family_that_outlives_a_finished_node_ends_with_the_engine(pipe: Pipe, given: Family) -> None:
    async def use(engine: hf.Engine) -> Any:
        ended = await engine.run(one(nodes.leaves_a_family), given)
        await asyncio.to_thread(pipe.all_begun)
        return ended

    assert using(use).state.done
    pipe.all_ended()
