"""A run that was paused while a node runs is pausing, wherever it is shown, until the node has ended or its process has died."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from engines import gated
from harness import Stage, Work, until

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.cli.looks import look_of_run
from holdfast.cli.suggestions import status_words
from holdfast.core import situation
from holdfast.reading import verification
from holdfast.reading.cases import case_of, case_of_row
from holdfast.reading.diagnosis import Diagnosis, diagnose
from holdfast.storage.contract import Query
from holdfast.testing.appends import dead_process
from holdfast.testing.builders import History


def wide(count: int, limit: int | None = None) -> tuple[Flow[Any], dict[str, asyncio.Event]]:
    """Make a flow of so many parallel nodes, or, with a limit, of one fan-out with so many items. All wait for the gate."""
    gate: dict[str, asyncio.Event] = {}
    graph = Graph("wide", Work)

    async def body(*given: Any) -> None:
        gate["in"].set()
        await gate["open"].wait()

    if limit is not None:
        graph.node(name="each", each=lambda state: list(range(count)), limit=limit)(body)
        graph.chain(START, "each", END)
    else:
        for number in range(count):
            graph.node(name=f"n{number}")(body)
            graph.chain(START, f"n{number}", END)
    return graph.compile(max_parallel=count + 1), gate


def while_it_runs(
    stage: Stage, flow: Flow[Any], gate: dict[str, asyncio.Event], use: Callable[[hf.Engine], Awaitable[Any]]
) -> tuple[Any, hf.Run[Any]]:
    """Execute the run `r`, call `use` while its node runs, and let the node end. Returns what `use` returned, and the run."""

    async def main(engine: hf.Engine) -> Any:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await gate["in"].wait()
        told = await use(engine)
        gate["open"].set()
        return told, await run

    found: tuple[Any, hf.Run[Any]] = stage.do(main, flow)
    return found


def diagnoses(stage: Stage) -> tuple[Diagnosis | None, Diagnosis]:
    """Diagnose the run by its row, if that tells enough, and by its log."""
    row, now = stage.store.run("r"), stage.store.now()
    by_row = case_of_row(stage.store, row)
    return (
        diagnose(by_row, now) if by_row is not None else None,
        diagnose(case_of(stage.store, row), now),
    )


def test_a_run_that_is_paused_while_its_node_runs_is_pausing_until_the_node_has_ended(stage: Stage) -> None:
    flow, gate = gated()

    async def use(engine: hf.Engine) -> Any:
        assert not (await engine.get("r")).pausing
        asked = await engine.pause("r", "tea time", by="ann")
        (listed,) = await engine.runs(status="running")
        by_row, by_log = diagnoses(stage)
        assert by_row == by_log
        return asked, await engine.get("r"), listed, by_log

    (asked, shown, listed, found), ended = while_it_runs(stage, flow, gate, use)
    assert (asked.pausing, shown.pausing, listed.pausing, found.pausing) == (True,) * 4
    assert (asked.status, shown.status, listed.status) == ("running",) * 3
    assert repr(shown).startswith("<Run 'r' of 'gated': pausing in 'first'")
    assert "a pause by ann is recorded (tea time), so the run is paused when first has ended" in found.reason
    assert "now in first" in found.reason
    assert (status_words(shown.status, found), look_of_run(found).word) == ("pausing", "pausing")
    assert (ended.status, ended.pausing) == ("paused", False)
    (after,) = stage.do(lambda engine: engine.runs())
    assert (after.status, after.pausing, diagnoses(stage)[1].pausing) == ("paused", False, False)
    assert verification.verify(stage.store, "r").problems == []


def test_a_run_whose_node_runs_a_step_beside_a_wait_is_pausing_until_the_step_has_ended(stage: Stage) -> None:
    gate: dict[str, asyncio.Event] = {}
    graph = Graph("beside", Work)

    @graph.node
    async def only(state: Work, ctx: hf.Context) -> None:
        async def work() -> None:
            await until(lambda: "SignalAwaited" in stage.kinds())
            gate["in"].set()
            await gate["open"].wait()

        await asyncio.gather(ctx.wait_for("x"), ctx.step("work", work))

    async def use(engine: hf.Engine) -> Any:
        asked = await engine.pause("r", by="ann")
        (listed,) = await engine.runs(status="running")
        by_row, by_log = diagnoses(stage)
        assert by_row == by_log
        return asked, await engine.get("r"), listed, by_log

    flow = graph.chain(START, "only", END).compile()
    (asked, shown, listed, found), ended = while_it_runs(stage, flow, gate, use)
    assert (asked.pausing, shown.pausing, listed.pausing, found.pausing) == (True,) * 4
    assert (shown.status, shown.nodes["only"].status) == ("running", "running")
    assert "a pause by ann is recorded, so the run is paused when only has ended" in found.reason
    assert (ended.status, ended.pausing) == ("paused", False)


def test_a_pause_that_another_engine_asks_for_shows_the_run_as_pausing(stage: Stage) -> None:
    flow, gate = gated()

    async def use(engine: hf.Engine) -> Any:
        async with stage.engine(flow) as other:
            return await other.pause("r", by="ben")

    asked, _ = while_it_runs(stage, flow, gate, use)
    assert (asked.pausing, asked.status) == (True, "running")


def test_the_run_as_it_was_between_the_pause_and_the_end_of_the_node_is_pausing(stage: Stage) -> None:
    flow, gate = gated()
    while_it_runs(stage, flow, gate, lambda engine: engine.pause("r"))
    paused = next(row.seq for row in stage.store.events("r") if row.kind == "RunPaused")
    then = stage.do(lambda engine: engine.get(f"r@{paused}"))
    assert (then.status, then.pausing) == ("running", True)
    assert not stage.do(lambda engine: engine.get(f"r@{paused - 1}")).pausing


@pytest.mark.parametrize(("count", "limit"), [(2, None), (3, 1), (70, None), (70, 70)])
def test_a_run_with_many_running_nodes_or_items_is_pausing_until_the_last_has_ended(
    stage: Stage, count: int, limit: int | None
) -> None:
    flow, gate = wide(count, limit)

    async def use(engine: hf.Engine) -> Any:
        await engine.pause("r", by="ann")
        (listed,) = await engine.runs()
        by_row, by_log = diagnoses(stage)
        assert by_row in (None, by_log)  # the row of a run with many open nodes leaves the reason to the log
        return listed.pausing, (await engine.get("r")).pausing, by_log.pausing, by_log.reason

    told, ended = while_it_runs(stage, flow, gate, use)
    assert told[:3] == (True, True, True)
    assert "a pause by ann is recorded, so the run is paused when" in told[3]
    assert ("when they have ended" in told[3]) == (limit is None)
    assert not ended.pausing
    assert verification.verify(stage.store, "r").problems == []


def test_a_run_whose_process_died_while_it_was_pausing_is_crashed_and_not_pausing(stage: Stage) -> None:
    flow, _ = gated()
    history = History("r", flow).created({}).started("first").paused()
    history.write(stage.store, holder=dead_process())
    row, (by_row, by_log) = stage.store.run("r"), diagnoses(stage)
    assert (row.status, row.held, by_row) == ("running", False, by_log)
    assert (by_log.crashed, by_log.pausing, by_log.kind) == (True, False, "crashed")
    assert "a pause is recorded, so nothing of it starts until it is resumed" in by_log.reason
    (listed,) = stage.do(lambda engine: engine.runs())
    shown = stage.do(lambda engine: engine.get("r"))
    assert (listed.pausing, shown.pausing, status_words("running", by_log)) == (
        False,
        False,
        "running, crashed",
    )


def test_a_row_that_leaves_its_situation_to_the_log_still_says_that_the_run_is_paused(stage: Stage) -> None:
    flow, gate = wide(70)

    async def use(engine: hf.Engine) -> Any:
        before = stage.store.run("r").situation
        await engine.pause("r")
        return before, stage.store.runs(Query(ids=("r",)))[0].situation

    (before, after), _ = while_it_runs(stage, flow, gate, use)
    assert not situation.load(before, ()).is_paused
    assert (situation.load(after, ()).cut, situation.load(after, ()).is_paused) == (True, True)


def test_a_resume_that_waits_for_a_pausing_run_is_named_among_its_requests(stage: Stage) -> None:
    flow, gate = gated()

    async def use(engine: hf.Engine) -> Any:
        await engine.pause("r")
        asked = await engine.resume("r", execute=False, by="ann")
        return asked.pausing, [one.verb for one in await engine.requests("r")]

    told, ended = while_it_runs(stage, flow, gate, use)
    assert told == (True, ["resume"])
    assert ended.status == "paused"
