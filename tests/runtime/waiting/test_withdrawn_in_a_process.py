"""Async nodes in real processes of their own keep a wait that asyncio may cancel, as nodes in the engine do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import impatient_nodes as nodes
import pytest
from harness import until
from impatient_nodes import Impatient

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.storage.contract import Query
from holdfast.storage.urls import open_store
from holdfast.testing.checker import check

PATIENCE_S = 60
LONG_S = 50.0
"""Seconds after which a wait would be given up that ends earlier in another way."""
every_form = pytest.mark.parametrize("form", [form.__name__ for form in nodes.FORMS])


def flow_of(fn: Callable[..., Any], **options: Any) -> Flow[Impatient]:
    graph = Graph("elsewhere", Impatient)
    graph.node(name="only", executor="process", **options)(fn)
    return graph.chain(START, "only", END).compile()


FLOW = flow_of(nodes.listen)


class Place:
    """A store in a folder, and the engines that use it."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "runs.db")

    def do(self, use: Callable[[hf.Engine], Awaitable[Any]], flow: Flow[Any], **options: Any) -> Any:
        async def main() -> Any:
            async with hf.Engine(self.url, flows=[flow], **options) as engine:
                return await asyncio.wait_for(use(engine), PATIENCE_S)

        return asyncio.run(main())

    def rows(self, *kinds: str, run_id: str = "r") -> list[Any]:
        store = open_store(self.url)
        try:
            return store.events(run_id, kinds=kinds)
        finally:
            store.close()

    def kinds(self) -> list[str]:
        return [row.kind for row in self.rows()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def until_recorded(engine: hf.Engine, kind: str, run_id: str = "r") -> None:
    """Follow the run until this event is there. Reading the store again and again would slow down the process of the node."""
    await until(lambda: any(run.run_id == run_id for run in engine.store.runs(Query())))
    async for event in engine.follow(run_id):
        if event.kind == kind:
            return
    pytest.fail(f"the run stopped without {kind}")


@pytest.mark.rotating
@every_form
def test_after_a_wait_was_given_up_the_next_signal_goes_to_the_next_wait(place: Place, form: str) -> None:
    async def use(engine: hf.Engine) -> Any:
        assert (await engine.run(FLOW, Impatient(form), run_id="r")).status == "waiting"
        await engine.signal("r", "x", 7)
        return (await engine.resume("r")).state.log

    assert place.do(use, FLOW) == ["second", 7]
    kinds = place.kinds()
    assert kinds.index("WaitWithdrawn") < kinds.index("NodeWaiting")
    assert kinds.count("WaitWithdrawn") == kinds.count("NodeWaiting") == 1
    assert check(place.url) == []


@pytest.mark.rotating
@every_form
def test_a_signal_that_comes_in_time_ends_the_wait_in_the_process(place: Place, form: str) -> None:
    async def use(engine: hf.Engine) -> Any:
        going = asyncio.ensure_future(engine.run(FLOW, Impatient(form, LONG_S), run_id="r"))
        await until_recorded(engine, "SignalAwaited")
        await engine.signal("r", "x", 7)
        return (await going).state.log

    assert place.do(use, FLOW) == ["first", 7]
    assert not {"NodeWaiting", "WaitWithdrawn"} & set(place.kinds())


@pytest.mark.rotating
@every_form
def test_a_wait_that_asyncio_may_cancel_is_not_unwound_before_park_after_and_then_there_is_one_warning(
    place: Place, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(engine: hf.Engine) -> None:
        going = []
        for run_id in ("r", "s"):  # `r` waits first, so it is also the first that is unwound
            going.append(asyncio.ensure_future(engine.run(FLOW, Impatient(form, LONG_S), run_id=run_id)))
            await until_recorded(engine, "SignalAwaited", run_id)
        assert [run.status for run in await asyncio.gather(*going)] == ["waiting", "waiting"]

    with caplog.at_level(logging.WARNING, "holdfast"):
        place.do(use, FLOW, park_after=1.5)
    for run_id in ("r", "s"):
        (waits,), (parked,) = (place.rows(kind, run_id=run_id) for kind in ("SignalAwaited", "NodeWaiting"))
        assert parked.at - waits.at >= 1.4
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "run 'r', node 'only'" in warning
    assert "timeout=" in warning


@pytest.mark.parametrize("how", ["alone", "gather", "group", "task"])
def test_a_wait_that_nothing_cancels_is_unwound_soon_and_without_a_warning(
    place: Place, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    flow = flow_of(nodes.patient)

    async def use(engine: hf.Engine) -> None:
        assert (await engine.run(flow, Impatient(how), run_id="r")).status == "waiting"
        for name in ("x", "y"):
            await engine.signal("r", name)
        assert (await engine.resume("r")).status == "completed"

    with caplog.at_level(logging.WARNING, "holdfast"):
        place.do(use, flow, park_after=LONG_S)
    waits, (parked,) = place.rows("SignalAwaited"), place.rows("NodeWaiting")
    assert len(waits) == (2 if how in ("gather", "group") else 1)
    assert parked.at - waits[-1].at < LONG_S / 2
    assert caplog.records == []


@pytest.mark.rotating
@every_form
@pytest.mark.parametrize("how", ["stopped", "paused"])
def test_a_wait_that_the_engine_ends_is_unwound_at_once_and_goes_on(
    place: Place, form: str, how: str
) -> None:
    async def first(engine: hf.Engine) -> None:
        going = asyncio.ensure_future(engine.run(FLOW, Impatient(form, LONG_S), run_id="r"))
        await until_recorded(engine, "SignalAwaited")
        if how == "stopped":
            await engine.stop("test", grace=LONG_S)
        else:
            await engine.pause("r")
        assert (await going).status in ("interrupted", "paused", "waiting")

    async def second(engine: hf.Engine) -> Any:
        going = asyncio.ensure_future(engine.resume("r"))
        await engine.signal("r", "x", 7)
        return (await going).state.log

    place.do(first, FLOW)
    assert "WaitWithdrawn" not in place.kinds()
    assert place.do(second, FLOW) == ["first", 7]
    assert check(place.url) == []


def test_the_time_limit_of_a_node_does_not_count_while_it_waits_in_its_process(place: Place) -> None:
    flow = flow_of(nodes.listen, timeout=3.0)

    async def use(engine: hf.Engine) -> Any:
        going = asyncio.ensure_future(engine.run(flow, Impatient("by_timeout", LONG_S), run_id="r"))
        await until_recorded(engine, "SignalAwaited")
        await asyncio.to_thread(asyncio.run, asyncio.sleep(3.5))
        await engine.signal("r", "x", 7)
        return (await going).state.log

    assert place.do(use, flow) == ["first", 7]


def test_what_a_node_leaves_running_when_it_returns_is_no_withdrawal(place: Place) -> None:
    flow = flow_of(nodes.leaves_a_wait)

    async def use(engine: hf.Engine) -> Any:
        return (await engine.run(flow, Impatient(), run_id="r")).state.log

    assert place.do(use, flow) == [False]
    assert "WaitWithdrawn" not in place.kinds()
