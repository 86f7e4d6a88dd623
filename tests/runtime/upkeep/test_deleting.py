"""`Engine.delete`: a run that is over goes with its log, and none that is needed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from engines import Work, in_engine, one_node, running, started

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import ResumeRefused, RunHeld, RunNotFound
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.urls import open_store

PLAIN = one_node(lambda state: {"plain": "done"})


def fail(state: Work) -> None:
    raise ValueError("no luck")


@pytest.mark.parametrize("ends", ["completed", "failed", "cancelled"])
def test_a_run_that_is_over_is_deleted_with_its_log(ends: str, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "runs.db"))

    async def use(engine: hf.Engine) -> Any:
        flow = one_node(fail) if ends == "failed" else PLAIN
        if ends == "cancelled":
            await engine.start(flow, run_id="r")
            await engine.cancel("r")
        else:
            await asyncio.gather(engine.run(flow, run_id="r"), return_exceptions=True)
        await engine.start(flow, run_id="later")  # without it, the store would delete all events at once
        seq = store.run("r").seq
        return await engine.delete("r"), seq

    deleted, seq = in_engine(use, store)
    assert (deleted.run_id, deleted.flow, deleted.status, deleted.events) == ("r", "one", ends, seq)
    with pytest.raises(RunNotFound):
        store.run("r")
    assert (store.upkeep.facts().unswept, len(in_engine(lambda engine: engine.runs(), store))) == (0, 1)
    with pytest.raises(RunNotFound):
        in_engine(lambda engine: engine.delete("r"), store)
    store.close()


def refusal(store: MemoryStore, run_id: str = "r") -> str:
    with pytest.raises(ResumeRefused) as refused:
        in_engine(lambda engine: engine.delete(run_id), store)
    assert store.run(run_id)
    return str(refused.value)


def test_a_run_that_is_not_over_is_kept() -> None:
    store = MemoryStore()
    in_engine(lambda engine: engine.start(PLAIN, run_id="r"), store)
    assert refusal(store) == (
        "run 'r' was not deleted: the run has not ended: it is pending. Cancel it first: `holdfast cancel r`"
    )


def test_a_failed_run_with_an_open_question_is_kept() -> None:
    store, graph = MemoryStore(), Graph("both", Work)
    graph.node(name="fails")(fail)
    graph.node(name="asks", approve="go on?")(lambda state: {})
    flow = graph.chain(START, "asks", END).chain(START, "fails", END).compile()
    with pytest.raises(hf.RunFailed):
        in_engine(lambda engine: engine.run(flow, run_id="r"), store)
    assert "the run has an open question: go on? Cancel it first" in refusal(store)


def test_a_run_that_was_forked_is_kept_until_the_fork_is_deleted() -> None:
    store = MemoryStore()

    async def use(engine: hf.Engine) -> None:
        await engine.run(PLAIN, run_id="r")
        await engine.cancel(await engine.fork("r", run_id="f"))

    in_engine(use, store)
    assert "run 'f' was forked from this run and needs its events. Delete 'f' first." in refusal(store)
    for run_id in ("f", "r"):
        in_engine(lambda engine, one=run_id: engine.delete(one), store)


def test_a_child_is_kept_until_its_caller_is_over() -> None:
    store, caller = MemoryStore(), Graph("caller", Work)

    @caller.node
    async def call(state: Work, ctx: hf.Context) -> None:
        await ctx.call(PLAIN, {"plain": ""}, key="child")
        await ctx.wait_for("go on")

    flow = caller.chain(START, "call", END).compile()
    in_engine(lambda engine: engine.run(flow, run_id="r"), store, park_after=0)
    (child,) = in_engine(lambda engine: engine.runs(origin="r"), store)
    assert "run 'r' started this run and may still need it, because it is waiting" in refusal(store, child.id)
    in_engine(lambda engine: engine.cancel("r"), store)
    in_engine(lambda engine: engine.delete(child.id), store)


def test_a_run_that_an_engine_executes_is_kept() -> None:
    async def forever(state: Work) -> None:
        await asyncio.Event().wait()

    async def use(engine: hf.Engine) -> None:
        async with running(engine, one_node(forever)):
            await started(engine, "only")
            with pytest.raises((RunHeld, ResumeRefused)):
                await engine.delete("r")

    in_engine(use)


def test_a_run_to_which_a_request_waits_is_kept() -> None:
    store, flow = MemoryStore(), one_node(fail)

    async def use(engine: hf.Engine) -> None:
        with pytest.raises(hf.RunFailed):
            await engine.run(flow, run_id="r")
        await engine.resume("r", execute=False)

    in_engine(use, store)
    assert "a request (resume) waits in the inbox of this run" in refusal(store)
