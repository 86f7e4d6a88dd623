"""A failed run says where it failed: its exception is chained to the node's, and ends with the line of the user's code."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engines import Work, in_engine, one_node

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.runtime import verb_signatures
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.clock import ManualClock


def boom(state: Work) -> None:
    raise ValueError("no luck")


def routed(state: Work) -> str:
    raise ValueError("no luck")


def routes_badly() -> Flow[Work]:
    graph = Graph("one", Work)
    graph.node(name="only")(lambda state: {})
    graph.edge(START, "only").branch("only", routed, [END])
    return graph.compile()


def lists_badly() -> Flow[Work]:
    graph = Graph("one", Work)

    def items(state: Work) -> list[str]:
        raise ValueError("no luck")

    graph.node(name="only", each=items)(lambda item: {})
    return graph.chain(START, "only", END).compile()


def fails_in_an_item() -> Flow[Work]:
    graph = Graph("one", Work)

    def shout(item: str) -> None:
        raise ValueError("no luck")

    graph.node(name="only", each=lambda state: ["a", "b"])(shout)
    return graph.chain(START, "only", END).compile()


def failure_of(call: Callable[[hf.Engine], Any], store: Any = None, **options: Any) -> hf.RunFailed:
    with pytest.raises(hf.RunFailed) as failed:
        in_engine(call, store, **options)
    return failed.value


@pytest.mark.parametrize(
    ("flow", "function"),
    [
        (one_node(boom), "boom"),
        (routes_badly(), "routed"),
        (lists_badly(), "items"),
        (fails_in_an_item(), "shout"),
    ],
    ids=["node", "router", "each", "item"],
)
def test_a_failed_run_is_chained_to_the_exception_and_ends_with_its_place(
    flow: Flow[Any], function: str
) -> None:
    failed = failure_of(lambda engine: engine.run(flow, run_id="r"))
    assert type(failed.__cause__) is ValueError
    place, source = str(failed).splitlines()[-1].split(f", in {function}: ")
    assert place.strip().startswith(f"{__file__}:")
    assert source == 'raise ValueError("no luck")'


def test_a_failed_resume_and_a_failed_retry_are_chained_too() -> None:
    store, flow = MemoryStore(), one_node(boom)
    failure_of(lambda engine: engine.run(flow, run_id="r"), store)
    for call in (lambda engine: engine.resume("r"), lambda engine: engine.retry("r")):
        assert type(failure_of(call, store, flows=[flow]).__cause__) is ValueError


def test_a_run_that_only_its_router_failed_is_not_to_be_skipped() -> None:
    assert "skip" not in str(failure_of(lambda engine: engine.run(routes_badly(), run_id="r")))
    assert "or skip the node." in str(failure_of(lambda engine: engine.run(one_node(boom), run_id="r")))


def test_an_exception_is_not_kept_after_its_run_was_reported() -> None:
    async def use(engine: hf.Engine) -> None:
        with pytest.raises(hf.RunFailed):
            await engine.run(one_node(boom), run_id="r")
        assert engine._open().faults == {}

    in_engine(use)


def test_the_traceback_of_the_exception_begins_in_user_code() -> None:
    cause = failure_of(lambda engine: engine.run(one_node(boom), run_id="r")).__cause__
    assert cause is not None
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == ["boom"]


def _calls_boom() -> None:
    try:
        boom(Work())
    except ValueError as raised:
        raise LookupError("no more luck") from raised


async def _in_a_step(state: Work, ctx: hf.Context) -> None:
    async with asyncio.TaskGroup() as group:
        await group.create_task(ctx.step("look", _calls_boom))


def test_a_failed_run_shows_the_line_of_its_caller_and_the_frames_of_user_code() -> None:
    try:
        hf.run(one_node(_in_a_step), store="memory://a_failed_run", run_id="r")
    except hf.RunFailed as raised:
        failed = raised
    here, ours = [frame.name for frame in traceback.extract_tb(failed.__traceback__)]
    assert here == "test_a_failed_run_shows_the_line_of_its_caller_and_the_frames_of_user_code"
    assert ours == "call"  # the frame that raises it
    cause: BaseException | None = failed.__cause__
    while isinstance(cause, BaseExceptionGroup):
        assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == ["_in_a_step"]
        (cause,) = cause.exceptions
    assert isinstance(cause, LookupError)
    frames = traceback.extract_tb(cause.__traceback__)
    assert [frame.name for frame in frames] == ["_calls_boom"]
    assert [frame.name for frame in traceback.extract_tb(cause.__cause__.__traceback__)] == [  # type: ignore[union-attr]
        "_calls_boom",
        "boom",
    ]


def test_a_run_that_an_engine_has_failed_shows_the_line_of_its_caller_only() -> None:
    failed = failure_of(lambda engine: engine.run(one_node(boom), run_id="r"))
    files = [frame.filename for frame in traceback.extract_tb(failed.__traceback__)]
    ours = str(Path(hf.__file__).parent)
    assert [file for file in files if file.startswith(ours)] == [verb_signatures.__file__]


def test_an_exception_with_a_method_of_its_own_for_tracebacks_is_chained_all_the_same() -> None:
    class Odd(Exception):
        def with_traceback(self, trace: Any) -> Any:
            raise RuntimeError("not this one")

    def body(state: Work) -> None:
        raise Odd("no luck")

    assert type(failure_of(lambda engine: engine.run(one_node(body), run_id="r")).__cause__) is Odd


def test_a_worker_keeps_no_exception() -> None:
    flow = one_node(boom)

    async def use(engine: hf.Engine) -> None:
        await engine.start(flow, run_id="r")
        await engine.work(until="idle")
        assert (await engine.get("r")).status == "failed"
        assert engine._open().faults == {}

    in_engine(use)


@pytest.mark.parametrize(
    ("error", "resumes"),
    [(ValueError, "hf.resume('r', flows=[…])"), (hf.Fatal, "hf.resume('r', force=True, flows=[…])")],
)
def test_calling_for_a_run_that_failed_before_says_so_and_how_to_continue(
    error: type[Exception], resumes: str
) -> None:
    called = []

    def body(state: Work) -> None:
        called.append(1)
        raise error("no luck")

    clock = ManualClock()
    store, flow = MemoryStore(clock=clock.now), one_node(body)
    failure_of(lambda engine: engine.run(flow, run_id="r"), store, clock=clock)
    again = failure_of(lambda engine: engine.run(flow, run_id="r"), store, clock=clock)
    told, place = str(again).splitlines()
    assert len(called) == 1
    assert again.__cause__ is None
    assert told.startswith("run 'r' failed before, at ")
    assert f"in node 'only': {error.__name__}: no luck. Nothing was executed now. Fix the cause" in told
    assert told.endswith(
        f"continue it with {resumes} or hf.retry('r', 'only', flows=[…]); another run_id starts a new run."
    )
    assert 'in body: raise error("no luck")' in place
