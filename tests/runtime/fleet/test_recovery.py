"""A sweep finds what should move and does not, offers it again, and executes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import LeftRuns, Stage, until

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry
from holdfast.errors import StoreBusy, StoreCorrupt
from holdfast.reading import history
from holdfast.storage.leases import Holder, this_process
from holdfast.testing.builders import History, outline
from holdfast.upkeep import recovery
from holdfast.upkeep.recovery import Recovery, RecoveryReport

calls: list[str] = []


@pytest.fixture(params=["memory", "sqlite"])
def stage(request: Any, tmp_path: Path) -> Any:
    stage = Stage(request.param, tmp_path)
    calls.clear()
    yield stage
    stage.close()


async def counted(state: dict[str, Any]) -> None:
    calls.append("only")


def flow_of(body: Any = counted, **options: Any) -> Flow[Any]:
    graph = Graph("one", dict)
    graph.node(name="only", **options)(body)
    return graph.chain(START, "only", END).compile()


def sweep(stage: Stage, **options: Any) -> RecoveryReport:
    before = list(calls)
    report = Recovery(stage.store, **options).sweep()
    assert calls == before  # it never executes
    return report


def found(report: RecoveryReport) -> list[tuple[str, str, str | None]]:
    return [(one.run_id, one.kind, one.node) for one in report.findings]


def starts(stage: Stage, flow: Flow[Any], *ids: str) -> None:
    async def use(engine: hf.Engine) -> None:
        for run_id in ids:
            await engine.start(flow, {}, run_id=run_id)

    stage.do(use)


def dies(stage: Stage, **options: Any) -> Flow[Any]:
    """The process of run `r` dies inside its node; its lease is left with a holder whose time runs out."""

    async def body(state: dict[str, Any], ctx: hf.Context) -> None:
        await stage.dies(ctx)

    flow = flow_of(body, **options)
    stage.crash(flow, {})
    gone = msgspec.structs.replace(this_process(30), id="gone", host="elsewhere")
    stage.store.claim("r", gone)
    return flow


def worker_of(stage: Stage, *flows: str, **options: Any) -> Holder:
    """Register a worker in another process."""
    worker = Holder(id=f"worker of {flows}", host="elsewhere", flows=flows, ttl_s=1000.0, **options)
    stage.store.renew(worker)
    return worker


def test_nothing_is_found_where_all_is_well(stage: Stage) -> None:
    starts(stage, flow_of(), "r")
    worker_of(stage, "one")
    assert sweep(stage) == RecoveryReport(at=stage.clock.now())


def test_a_pending_run_that_no_live_worker_takes_is_told_of_at_once(stage: Stage) -> None:
    starts(stage, flow_of(), "r")
    worker_of(stage, "another")
    report = sweep(stage)
    assert found(report) == [("r", "no worker", None)]
    (told,) = report.findings
    assert told.since == stage.clock.now()
    assert told.reason == "recorded, but not started, and no live worker takes flow 'one'"
    assert told.remedies[0].words == "start a worker that takes flow 'one': it claims the run"
    assert told.remedies[0].command == "holdfast worker FILE.py"


def test_a_run_in_a_queue_that_no_live_worker_serves_is_told_of_with_its_queue(stage: Stage) -> None:
    starts(stage, flow_of(), "r")
    worker_of(stage, "one", queues=("mail", "calls"))
    (told,) = sweep(stage).findings
    assert (
        told.reason == "recorded, but not started, and no live worker takes flow 'one' from queue 'default'"
    )


def test_an_idle_worker_that_does_not_claim_a_run_is_named_after_a_while_and_a_busy_one_is_not(
    stage: Stage,
) -> None:
    starts(stage, flow_of(), "r", "s")
    worker = worker_of(stage, "one")
    assert sweep(stage).findings == ()
    stage.clock.advance(60)
    assert {one.reason for one in sweep(stage).findings} == {
        f"recorded, but not started, and no worker has claimed the run; {worker.describe()} takes flow 'one'"
    }
    stage.store.claim("s", worker)
    assert sweep(stage).findings == ()


def test_a_run_whose_flow_is_not_known_here_is_counted_unless_another_worker_takes_it(stage: Stage) -> None:
    starts(stage, flow_of(), "r", "s")
    report = sweep(stage, flows=["another"])
    assert report.unknown == {"one": 2}
    assert "start a worker that takes flow 'one'" in report.findings[0].remedies[0].words
    worker_of(stage, "one")
    assert sweep(stage, flows=["another"]) == RecoveryReport(at=stage.clock.now())


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "runs the node again, as attempt 2"),
        ({"idempotent": False}, "asks whether to run the node again"),
        ({"on_interrupt": "skip"}, "resuming skips the node"),
    ],
)
def test_a_lease_that_ran_out_is_given_back_and_the_cut_node_named(
    stage: Stage, options: dict[str, Any], what: str
) -> None:
    dies(stage, **options)
    assert sweep(stage).findings == ()  # its holder may live
    stage.clock.advance(31)
    report = sweep(stage)
    (told,) = report.findings
    assert (told.run_id, told.kind, "crashed in only" in told.reason) == ("r", "crashed", True)
    assert [what in one.words for one in told.remedies if one.verb == "resume"] == [True]
    assert "elsewhere" in report.given_back[0]
    assert stage.store.run("r").holder is None
    assert found(sweep(stage)) == [("r", "no worker", None)]


def test_a_late_holder_whose_lease_was_given_back_is_refused(stage: Stage) -> None:
    dies(stage)
    fence = stage.store.run("r").fence
    stage.clock.advance(31)
    sweep(stage)
    stage.store.renew(msgspec.structs.replace(this_process(30), id="gone", host="elsewhere"))
    assert stage.store.run("r").holder is None
    assert stage.store.run("r").fence >= fence


def test_what_a_sweep_offers_again_a_worker_executes(stage: Stage) -> None:
    dies(stage)
    stage.clock.advance(31)
    sweep(stage)
    stage.do(lambda engine: engine.work(until="idle"), flow_of())
    assert calls == ["only"]
    assert stage.store.run("r").status == "completed"


def test_a_node_that_was_due_and_never_started_starts_as_the_same_attempt(stage: Stage) -> None:
    async def body(state: dict[str, Any], ctx: hf.Context) -> None:
        await stage.dies(ctx)

    graph = Graph("two", dict)
    graph.node(name="first")(body)
    graph.node(name="second")(counted)
    for name in ("first", "second"):
        graph.edge(START, name).edge(name, END)
    stage.crash(graph.compile(max_parallel=1), {})
    stage.clock.advance(60)
    report = sweep(stage)
    (told,) = report.findings
    assert [one.words for one in told.remedies if one.verb == "resume"] == [
        "first: resuming runs the node again, as attempt 2; second: the node starts, as attempt 1"
    ]


def test_a_node_that_waits_for_its_next_try_is_told_of(stage: Stage) -> None:
    async def broken(state: dict[str, Any]) -> None:
        raise ConnectionError("gone")

    flow = flow_of(broken, retry=Retry(attempts=3, backoff=600, max_delay=600, jitter=0.0))
    starts(stage, flow, "r")
    stage.do(lambda engine: engine.work(until="idle"), flow)
    report = sweep(stage)
    assert found(report) == [("r", "retry", "only")]
    assert report.findings[0].remedies[0].words == "the node is retried in 600 s"
    stage.clock.advance(700)
    assert found(sweep(stage)) == [("r", "due", None)]


def test_a_run_that_somebody_executes_is_none_of_its_business(stage: Stage) -> None:
    begun: list[int] = []

    async def hang(state: dict[str, Any]) -> None:
        begun.append(1)
        await asyncio.get_running_loop().create_future()

    async def use(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.run(flow_of(hang), {}, run_id="r"))
        await until(lambda: begun)
        assert sweep(stage).findings == ()
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)

    stage.do(use)


def test_a_sweep_survives_its_own_database_errors(stage: Stage) -> None:
    dies(stage)
    stage.clock.advance(31)
    recovery = Recovery(stage.store)
    give_back = stage.store.queues.give_back

    def busy(holders: Any) -> None:
        raise StoreBusy("try later")

    stage.store.queues.give_back = busy  # type: ignore[method-assign]
    report = recovery.sweep()
    assert report.error == "try later"
    assert ("r", "crashed", None) in found(report)
    stage.store.queues.give_back = give_back  # type: ignore[method-assign]
    assert recovery.sweep().given_back != ()


# --- many runs and damaged logs ----------------------------------------------------------------------


def test_a_sweep_reads_page_after_page_and_says_where_it_stopped(monkeypatch: Any) -> None:
    kept = LeftRuns(*(f"r{number}" for number in range(5)))
    kept.clock.advance(60)
    monkeypatch.setattr(recovery, "_PAGE", 2)
    report = Recovery(kept.store).sweep()
    assert {found.run_id for found in report.findings} == {f"r{number}" for number in range(5)}
    assert report.complete
    monkeypatch.setattr(recovery, "ROWS_MAX", 4)
    report = Recovery(kept.store).sweep()
    assert len({found.run_id for found in report.findings}) == 4
    assert not report.complete


def test_a_sweep_looks_into_so_many_logs_and_no_more(monkeypatch: Any) -> None:
    kept = LeftRuns("r0", "r1")
    kept.clock.advance(60)
    monkeypatch.setattr(recovery, "LOADS_MAX", 1)
    report = Recovery(kept.store).sweep()
    assert sorted("crashed in b" in found.reason for found in report.findings) == [False, True]
    assert not report.complete


def test_a_run_whose_log_cannot_be_read_is_told_of_with_the_way_out(monkeypatch: Any) -> None:
    kept = LeftRuns("r0")
    kept.clock.advance(60)

    def damaged(*asked: Any, **named: Any) -> Any:
        raise StoreCorrupt("event 2 is not what was written")

    monkeypatch.setattr(history, "load", damaged)
    (found,) = (one for one in Recovery(kept.store).sweep().findings if one.kind == "unreadable")
    assert found.reason == "its log cannot be read: event 2 is not what was written"
    assert "holdfast verify r0" in found.remedies[0].command


def test_a_run_that_waits_for_somebody_is_no_finding() -> None:
    kept = LeftRuns()
    flow = outline("START a END", nodes={"a": {"approve": "Go on?"}})
    History("r0", flow, starts_at=kept.clock.now()).created().settled().write(kept.store)
    kept.clock.advance(60)
    assert kept.store.run("r0").status == "waiting"
    assert Recovery(kept.store).sweep().findings == ()
