"""A worker carries on what is on offer, of the flows it knows, and nothing else; what it cannot take up it leaves to others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE_S, Stage, turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry
from holdfast.errors import SettingError, StoreBusy, StorePoisoned
from holdfast.runtime.worker import Trouble
from holdfast.storage.contract import Query, Request
from holdfast.storage.rows import open_row


@pytest.fixture(params=["memory", "sqlite"])
def stage(request: Any, tmp_path: Path) -> Any:
    stage = Stage(request.param, tmp_path)
    yield stage
    stage.close()


def flow_of(body: Callable[..., Any], name: str = "one", **options: Any) -> Flow[Any]:
    graph = Graph(name, dict)
    graph.node(name="only", **options)(body)
    return graph.chain(START, "only", END).compile()


def all_completed(store: Any, count: int) -> bool:
    return len(store.runs(Query(status=("completed",)))) == count


async def nothing(state: dict[str, Any]) -> dict[str, Any]:
    return {"done": True}


PLAIN = flow_of(nothing)


def works(stage: Stage, *flows: Flow[Any], **options: Any) -> tuple[list[hf.Run[Any]], list[Trouble]]:
    """Work until nothing is left to do now."""
    ended: list[hf.Run[Any]] = []
    told: list[Trouble] = []

    async def use(engine: hf.Engine) -> None:
        await engine.work(until="idle", on_end=ended.append, on_report=told.append, **options)

    stage.do(use, *flows)
    return ended, told


def starts(stage: Stage, flow: Flow[Any], *ids: str, **options: Any) -> None:
    async def use(engine: hf.Engine) -> None:
        for run_id in ids:
            await engine.start(flow, {}, run_id=run_id, **options)

    stage.do(use)


def status(stage: Stage, run_id: str = "r") -> str:
    return stage.store.run(run_id).status


# --- what it takes -----------------------------------------------------------------------------------


def test_a_worker_executes_what_was_only_started(stage: Stage) -> None:
    starts(stage, PLAIN, "r", "s", "t")
    ended, told = works(stage, PLAIN)
    assert {run.id: run.status for run in ended} == dict.fromkeys("rst", "completed")
    assert not told
    assert stage.kinds() == [
        "RunCreated", "RunClaimed", "NodeStarted", "NodeCompleted", "RunCompleted",
    ]  # fmt: skip
    assert stage.problems() == []


def test_runs_of_a_flow_that_it_does_not_know_are_left_alone(stage: Stage) -> None:
    starts(stage, PLAIN, "r")
    ended, _ = works(stage, flow_of(nothing, "another"))
    assert (ended, status(stage)) == ([], "pending")


def test_only_the_queues_that_it_was_told(stage: Stage) -> None:
    starts(stage, PLAIN, "r", queue="slow")
    starts(stage, PLAIN, "s", queue="fast")
    ended, _ = works(stage, PLAIN, queues=["fast"])
    assert [run.id for run in ended] == ["s"]
    assert stage.store.run("r").queue == "slow"


def test_the_highest_priority_comes_first(stage: Stage) -> None:
    for number, run_id in enumerate("abc"):
        starts(stage, PLAIN, run_id, priority=number)
    ended, _ = works(stage, PLAIN, concurrency=1)
    assert [run.id for run in ended] == ["c", "b", "a"]


def test_a_fork_waits_in_the_queue_of_its_parent(stage: Stage) -> None:
    starts(stage, PLAIN, "r", queue="slow", priority=3)
    stage.do(lambda engine: engine.fork("r", run_id="f"))
    row = stage.store.run("f")
    assert (row.queue, row.priority) == ("slow", 3)


def test_never_more_runs_at_a_time_than_its_concurrency(stage: Stage) -> None:
    now, most = 0, 0

    async def busy(state: dict[str, Any]) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await turns(20)
        now -= 1

    flow = flow_of(busy)
    starts(stage, flow, *(f"r{number}" for number in range(12)))
    ended, _ = works(stage, flow, concurrency=3)
    assert (len(ended), most) == (12, 3)


def test_a_limit_of_a_queue_holds_over_all_workers(stage: Stage) -> None:
    now, most = 0, 0

    async def busy(state: dict[str, Any]) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await turns(20)
        now -= 1

    flow = flow_of(busy)
    starts(stage, flow, *(f"r{number}" for number in range(8)))
    stage.store.queues.limit("default", 2)

    async def use(engine: hf.Engine) -> None:
        async with stage.engine(flow) as another:
            workers = [each.work(until=lambda: all_completed(stage.store, 8)) for each in (engine, another)]
            await asyncio.gather(*workers)

    stage.do(use, flow)
    assert most == 2


# --- failing, waiting, asking ------------------------------------------------------------------------


def test_a_failed_run_is_recorded_and_the_worker_goes_on(stage: Stage) -> None:
    async def broken(state: dict[str, Any]) -> None:
        raise ValueError("no luck")

    bad = flow_of(broken, "bad")
    starts(stage, bad, "r", priority=9)
    starts(stage, PLAIN, "s")
    ended, told = works(stage, bad, PLAIN, concurrency=1)
    assert [(run.id, run.status) for run in ended] == [("r", "failed"), ("s", "completed")]
    assert not told
    assert works(stage, bad)[0] == []  # it stays failed until somebody says what to do


def test_a_run_that_waits_long_is_let_go_and_goes_on_when_its_time_has_come(stage: Stage) -> None:
    async def naps(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        await ctx.sleep(3600)
        return {"slept": True}

    flow = flow_of(naps)
    starts(stage, flow, "r")
    ended, _ = works(stage, flow)
    assert [run.status for run in ended] == ["waiting"]
    row = stage.store.run("r")
    assert not row.held
    assert row.due_at is not None
    assert works(stage, flow)[0] == []
    stage.clock.advance(3600)
    ended, _ = works(stage, flow)
    assert [run.state for run in ended] == [{"slept": True}]
    assert stage.problems() == []


def test_a_retry_far_off_is_made_by_whichever_worker_is_there_then(stage: Stage) -> None:
    tries = 0

    async def flaky(state: dict[str, Any]) -> dict[str, Any]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ConnectionError("gone")
        return {"tries": tries}

    flow = flow_of(flaky, retry=Retry(attempts=3, backoff=600, max_delay=600, jitter=0.0))
    starts(stage, flow, "r")
    assert [run.status for run in works(stage, flow)[0]] == ["waiting"]
    assert tries == 1
    stage.clock.advance(600)
    assert [run.state for run in works(stage, flow)[0]] == [{"tries": 2}]


def test_an_idle_worker_wakes_for_what_falls_due(stage: Stage) -> None:
    async def naps(state: dict[str, Any], ctx: hf.Context) -> None:
        await ctx.sleep(600)

    flow = flow_of(naps)
    starts(stage, flow, "r")
    ended: list[str] = []

    async def use(engine: hf.Engine) -> None:
        await engine.work(until=lambda: "completed" in ended, on_end=lambda run: ended.append(run.status))

    began = stage.clock.now()
    stage.do(use, flow)
    assert ended == ["waiting", "completed"]
    assert 600 <= stage.clock.now() - began < 605


def test_a_time_limit_goes_on_while_nobody_holds_the_run(stage: Stage) -> None:
    async def naps(state: dict[str, Any], ctx: hf.Context) -> None:
        await ctx.sleep(3600)

    flow = flow_of(naps)
    starts(stage, flow, "r", timeout=600)
    works(stage, flow)
    stage.clock.advance(540)
    assert works(stage, flow)[0] == []
    stage.clock.advance(60)
    (run,) = works(stage, flow)[0]
    assert run.error is not None
    assert run.error.type == "RunTimeout"


def test_an_answer_puts_a_waiting_run_on_offer(stage: Stage) -> None:
    flow = flow_of(nothing, approve="go on?")
    starts(stage, flow, "r")
    (run,) = works(stage, flow)[0]
    assert run.status == "waiting"
    assert works(stage, flow)[0] == []
    stage.do(lambda engine: engine.answer("r", "only", "approve"))
    assert [run.status for run in works(stage, flow)[0]] == ["completed"]


def test_a_signal_puts_a_waiting_run_on_offer(stage: Stage) -> None:
    async def waits(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        return {"told": await ctx.wait_for("go")}

    flow = flow_of(waits)
    starts(stage, flow, "r")
    assert [run.status for run in works(stage, flow)[0]] == ["waiting"]
    stage.do(lambda engine: engine.signal("r", "go", 7))
    assert [run.state for run in works(stage, flow)[0]] == [{"told": 7}]


def test_an_answer_before_the_deadline_of_its_question_puts_the_run_on_offer_at_once(stage: Stage) -> None:
    graph = Graph("late", dict)
    graph.ask("tone", "which tone?", options=["warm", "dry"], into="tone", timeout=3600)
    graph.ask("other", "which other?", options=["a", "b"], into="other", timeout=1800)
    graph.node(name="after")(nothing)
    graph.edge(START, "tone").edge("tone", "after").edge("after", END).edge(START, "other").edge("other", END)
    flow = graph.compile()
    starts(stage, flow, "r")
    works(stage, flow)
    stage.do(lambda engine: engine.answer("r", "tone", "dry"))
    assert stage.store.run("r").due_at is None
    (run,) = works(stage, flow)[0]
    assert (run.status, run.state) == ("waiting", {"tone": "dry", "done": True})
    assert stage.store.run("r").due_at == stage.clock.now() + 1800  # of the other question
    stage.do(lambda engine: engine.answer("r", "other", "b"))
    assert [run.status for run in works(stage, flow)[0]] == ["completed"]


def test_a_signal_before_the_deadline_of_its_wait_puts_the_run_on_offer_at_once(stage: Stage) -> None:
    async def waits(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        return {"told": await ctx.wait_for("go", timeout=3600)}

    flow = flow_of(waits)
    starts(stage, flow, "r")
    works(stage, flow)
    stage.do(lambda engine: engine.signal("r", "go", 7))
    assert [run.state for run in works(stage, flow)[0]] == [{"told": 7}]


def test_a_paused_run_stays_paused_also_where_a_request_was_left(stage: Stage) -> None:
    flow = flow_of(nothing, approve="go on?")
    starts(stage, flow, "r")
    works(stage, flow)
    stage.do(lambda engine: engine.pause("r"))
    body = {"key": "only.1.1", "value": "approve"}
    stage.store.post("r", Request(id="a", verb="answer", body=body))
    works(stage, flow)
    assert status(stage) == "paused"
    assert "QuestionAnswered" in stage.kinds()
    assert [run.status for run in works(stage, flow)[0]] == []


@pytest.mark.parametrize(
    ("verb", "body", "becomes"),
    [
        ("retry", {"node": None}, "completed"),
        ("cancel", {}, "cancelled"),
        ("retry", {"node": "no"}, "failed"),
    ],
)
def test_what_was_asked_of_a_failed_run_while_its_holder_left_is_done(
    stage: Stage, verb: str, body: dict[str, Any], becomes: str
) -> None:
    tries = 0

    async def second_time_lucky(state: dict[str, Any]) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError("no luck")

    flow = flow_of(second_time_lucky)
    starts(stage, flow, "r")
    works(stage, flow)
    stage.store.post("r", Request(id="a", verb=verb, body=body))
    works(stage, flow)
    assert status(stage) == becomes
    assert works(stage, flow)[0] == []  # and it has left the inbox


# --- what cannot be taken up -------------------------------------------------------------------------


def changed() -> Flow[Any]:
    graph = Graph("one", dict)
    graph.node(name="renamed")(nothing)
    return graph.chain(START, "renamed", END).compile()


def test_a_run_whose_flow_has_changed_is_told_of_once_and_left_to_others(stage: Stage) -> None:
    starts(stage, PLAIN, "r")
    told: list[Trouble] = []
    looks = 0

    def enough() -> bool:
        nonlocal looks
        looks += 1
        return stage.clock.now() > began + 3000

    began = stage.clock.now()
    stage.do(lambda engine: engine.work(until=enough, on_report=told.append), changed())
    assert [trouble.run_id for trouble in told] == ["r"]
    assert "the flow has changed" in told[0].message
    row = stage.store.run("r")
    assert not row.held
    assert row.fence <= 6  # 5, 20, 80, 320, 1280 s: tried again, ever later
    assert [run.status for run in works(stage, PLAIN)[0]] == ["completed"]


def test_a_worker_that_accepts_changes_continues_runs_of_the_old_flow(stage: Stage) -> None:
    starts(stage, PLAIN, "r")
    longer = Graph("one", dict)
    longer.node(name="only")(nothing)
    longer.node(name="after")(nothing)
    flow = longer.chain(START, "only", "after", END).compile()
    assert [trouble.run_id for trouble in works(stage, flow)[1]] == ["r"]
    stage.clock.advance(60.0)
    ended, told = works(stage, flow, on_change="compatible")
    assert ([run.status for run in ended], told) == (["completed"], [])
    assert stage.problems() == []


def test_a_worker_that_renames_a_node_renames_it_where_the_flow_has_it(stage: Stage) -> None:
    other = flow_of(nothing, "other")
    starts(stage, PLAIN, "r")
    starts(stage, other, "s")
    reoptioned = flow_of(nothing, "other", timeout=9)
    ended, told = works(stage, changed(), reoptioned, rename={"only": "renamed"})
    assert (sorted((run.id, run.status) for run in ended), told) == (
        [("r", "completed"), ("s", "completed")],
        [],
    )
    renames = {
        run: open_row(stage.store.events(run, kinds=("FlowChanged",))[0], stage.store.blobs).event
        for run in "rs"
    }
    assert {run: event.rename for run, event in renames.items()} == {"r": {"only": "renamed"}, "s": {}}


@pytest.mark.parametrize("verb", ["retry", "resume"])
def test_a_worker_that_accepts_changes_carries_requests_out_with_them(stage: Stage, verb: str) -> None:
    def fail(state: dict[str, Any]) -> None:
        raise hf.Recoverable("not yet")

    failing = flow_of(fail, retry=Retry(attempts=1))
    starts(stage, failing, "r")
    works(stage, failing)
    stage.store.post("r", Request(id="a", verb=verb))
    ended, told = works(stage, changed(), rename={"only": "renamed"})
    assert ([run.status for run in ended], told) == (["completed"], [])


def test_a_worker_prints_which_request_it_refuses(stage: Stage) -> None:
    flow = flow_of(nothing, approve="go on?")
    starts(stage, flow, "r")
    works(stage, flow)
    body = {"key": "only.1.1", "value": "maybe"}
    stage.store.post("r", Request(id="a", verb="answer", body=body))
    (trouble,) = works(stage, flow)[1]
    assert trouble.run_id == "r"
    assert trouble.message.startswith("the request to answer only.1.1 is refused: 'maybe' is not one of")


def test_what_cannot_be_taken_up_keeps_nothing_else_waiting(stage: Stage) -> None:
    starts(stage, PLAIN, "r", priority=9)
    good = flow_of(nothing, "good")
    starts(stage, good, "s")
    ended, told = works(stage, changed(), good, concurrency=1)
    assert ([run.id for run in ended], len(told)) == (["s"], 1)


def test_a_validation_binds_workers(stage: Stage) -> None:
    graph = Graph("one", dict, validate_resume=lambda state: "not today")
    graph.node(name="only")(nothing)
    flow = graph.chain(START, "only", END).compile()
    starts(stage, flow, "r")
    ended, told = works(stage, flow)
    assert ended == []
    assert ["not today" in trouble.message for trouble in told] == [True]
    assert stage.kinds() == ["RunCreated", "RequestRefused"]


def test_without_a_hook_troubles_are_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    starts(stage, PLAIN, "r")
    with caplog.at_level(logging.WARNING, "holdfast"):
        stage.do(lambda engine: engine.work(until="idle"), changed())
    assert "the flow has changed" in caplog.text


def test_runs_that_wait_for_a_flow_nobody_has_are_told_of_once_per_flow(stage: Stage) -> None:
    starts(stage, PLAIN, "r", "s")
    told: list[Trouble] = []
    began = stage.clock.now()
    stage.do(
        lambda engine: engine.work(until=lambda: stage.clock.now() > began + 300, on_report=told.append),
        flow_of(nothing, "another"),
    )
    assert [(trouble.flow, "2 runs" in trouble.message) for trouble in told] == [("one", True)]


# --- stopping ----------------------------------------------------------------------------------------


def test_a_stop_lets_nodes_end_and_leaves_the_rest_on_offer(stage: Stage) -> None:
    graph = Graph("two", dict)

    @graph.node
    async def first(state: dict[str, Any]) -> dict[str, Any]:
        begun.append(1)
        await until(lambda: stopped)
        return {"first": 1}

    graph.node(name="second")(nothing)
    flow = graph.chain(START, "first", "second", END).compile()
    starts(stage, flow, "r", "s")
    begun: list[int] = []
    stopped: list[int] = []

    async def use(engine: hf.Engine) -> None:
        working = asyncio.create_task(engine.work(concurrency=1))
        await until(lambda: begun)
        engine.stop("SIGTERM")
        stopped.append(1)
        await working

    stage.do(use, flow)
    assert stage.kinds() == [
        "RunCreated", "RunClaimed", "NodeStarted", "NodeCompleted", "RunInterrupted",
    ]  # fmt: skip
    assert [stage.store.run(run_id).held for run_id in "rs"] == [False, False]
    assert status(stage, "s") == "pending"
    assert {run.id: run.status for run in works(stage, flow)[0]} == {"r": "completed", "s": "completed"}


def test_a_worker_that_is_cancelled_holds_nothing(stage: Stage) -> None:
    async def for_ever(state: dict[str, Any]) -> None:
        begun.append(1)
        await asyncio.get_running_loop().create_future()

    flow = flow_of(for_ever)
    starts(stage, flow, "r")
    begun: list[int] = []

    async def use(engine: hf.Engine) -> None:
        working = asyncio.create_task(engine.work())
        await until(lambda: begun)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert not stage.store.run("r").held

    stage.do(use, flow)


def test_closing_the_engine_ends_its_worker(stage: Stage) -> None:
    async def main() -> None:
        async with stage.engine(PLAIN) as engine:
            working = asyncio.create_task(engine.work())
            await turns(20)
        await asyncio.wait_for(working, PATIENCE_S)

    asyncio.run(main())


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"concurrency": True}, {"queues": "a"}, {"queues": ["no way"]}]
)
def test_what_makes_no_sense_is_refused(stage: Stage, options: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        stage.do(lambda engine: engine.work(**options), PLAIN)


@pytest.mark.parametrize("options", [{"queue": ""}, {"queue": 3}, {"priority": "high"}, {"priority": 10**9}])
def test_a_place_that_makes_no_sense_is_refused(stage: Stage, options: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        starts(stage, PLAIN, "r", **options)


def test_an_engine_works_once_at_a_time(stage: Stage) -> None:
    async def use(engine: hf.Engine) -> None:
        working = asyncio.create_task(engine.work())
        await turns(5)
        with pytest.raises(SettingError, match="already running on this engine"):
            await engine.work()
        engine.stop()
        await working

    stage.do(use, PLAIN)


def test_a_worker_returns_why_it_was_stopped_and_refuses_to_work_again(stage: Stage) -> None:
    async def use(engine: hf.Engine) -> None:
        working = asyncio.create_task(engine.work())
        await turns(5)
        engine.stop("deploy")
        assert await working == "deploy"
        for _ in range(2):
            with pytest.raises(SettingError, match=r"this engine is stopping \(deploy\)"):
                await engine.work(until="idle")

    stage.do(use, PLAIN)


def test_a_worker_that_begins_on_a_stopping_engine_returns_the_reason_once(stage: Stage) -> None:
    starts(stage, PLAIN, "r")

    async def use(engine: hf.Engine) -> None:
        assert await engine.work(until=lambda: True) is None
        engine.stop("deploy")
        assert await engine.work(until="idle") == "deploy"
        with pytest.raises(SettingError, match="stopping"):
            await engine.work(until="idle")

    stage.do(use, PLAIN)
    assert status(stage) == "pending"


def test_a_worker_without_on_end_logs_the_runs_that_fail(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(state: dict[str, Any]) -> None:
        raise ValueError("no luck")

    broken = flow_of(breaks, "broken")
    starts(stage, broken, "r")
    starts(stage, PLAIN, "s")
    with caplog.at_level(logging.INFO, logger="holdfast"):
        stage.do(lambda engine: engine.work(until="idle"), broken, PLAIN)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "run 'r' failed in node 'only': ValueError: no luck" in caplog.text


# --- a store in trouble ------------------------------------------------------------------------------


class Troubled:
    """The queues of a store that does not answer a few times."""

    def __init__(self, queues: Any, *faults: Exception) -> None:
        self._queues = queues
        self._faults = list(faults)

    def take(self, *asked: Any) -> Any:
        if self._faults:
            raise self._faults.pop(0)
        return self._queues.take(*asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queues, name)


def in_trouble(stage: Stage, *faults: Exception) -> Callable[[hf.Engine], Awaitable[list[Trouble]]]:
    async def use(engine: hf.Engine) -> list[Trouble]:
        told: list[Trouble] = []
        engine.store.queues = Troubled(engine.store.queues, *faults)
        await engine.work(until=lambda: status(stage) == "completed", on_report=told.append)
        return told

    return use


def test_a_store_that_does_not_answer_is_asked_again(stage: Stage) -> None:
    starts(stage, PLAIN, "r")
    told = stage.do(in_trouble(stage, StoreBusy("gone"), StoreBusy("gone"), StoreBusy("gone")), PLAIN)
    assert [trouble.message for trouble in told] == [
        "the store does not answer; the worker tries again. gone."
    ]


def test_a_worker_outlives_a_store_that_does_not_answer_for_hours(stage: Stage) -> None:
    starts(stage, PLAIN, "r")
    stage.do(in_trouble(stage, *[StoreBusy("gone")] * 1100), PLAIN)
    assert status(stage) == "completed"


def test_a_store_that_will_not_work_again_ends_the_worker(stage: Stage) -> None:
    starts(stage, PLAIN, "r")
    with pytest.raises(StorePoisoned):
        stage.do(in_trouble(stage, StorePoisoned("a sync failed")), PLAIN)


# --- threads and news --------------------------------------------------------------------------------


def test_a_run_that_is_started_meanwhile_is_heard_of(tmp_path: Path) -> None:
    """With the system's clock and threads: a look that nobody woke would come too late for this."""
    flow = flow_of(nothing)
    ended: list[str] = []

    async def main() -> None:
        url = str(tmp_path / "runs.db")
        async with hf.Engine(url, flows=[flow]) as engine, hf.Engine(url) as another:
            working = asyncio.create_task(
                engine.work(until=lambda: len(ended) == 3, on_end=lambda run: ended.append(run.id))
            )
            for run_id in "abc":
                await another.start(flow, {}, run_id=run_id)
                await until(lambda: run_id in ended)  # noqa: B023 - it is awaited here
            await working

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert ended == ["a", "b", "c"]


def test_an_idle_worker_asks_next_to_nothing(tmp_path: Path) -> None:
    """It has threads, so it hears; but for that it looks every ten seconds, in case a lease has run out."""
    stage = Stage("sqlite", tmp_path, "def")

    class Counted(Troubled):
        looks = 0

        def next_due(self, *asked: Any) -> Any:
            Counted.looks += 1
            return self._queues.next_due(*asked)

    def rests() -> bool:
        """Whether nothing but the slow look is to come; what was heard of its own beginning is let pass."""
        at, now = stage.clock.next_at, stage.clock.now()
        if at is not None and at < now + 5:
            stage.clock.advance_to_next()
        return at is not None and at >= now + 5

    async def use(engine: hf.Engine) -> None:
        engine.store.queues = Counted(engine.store.queues)
        working = asyncio.create_task(engine.work())
        for _ in range(3):
            await until(rests)
            looks = Counted.looks
            stage.clock.advance(9.9)
            await turns(50)
            assert Counted.looks == looks
            stage.clock.advance(0.1)
            await until(lambda: Counted.looks == looks + 1)  # noqa: B023 - it is awaited here
        await until(rests)
        engine.stop()
        await working

    stage.do(use, PLAIN)
    stage.close()
