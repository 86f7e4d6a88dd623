"""Every run that cannot go on by itself is found, with the reason; runs that are well are not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.cli import care
from holdfast.reading import history, text
from holdfast.reading.attention import count
from holdfast.reading.cases import Case, case_of
from holdfast.reading.diagnosis import PATIENCE_S, Diagnosis, diagnose
from holdfast.reading.pages import list_page
from holdfast.storage.contract import Holder, Query, Store
from holdfast.storage.upkeep import Facts
from holdfast.storage.urls import open_store
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import doctor
from holdfast.upkeep.doctor import FREE_BYTES, LOG_BYTES


def made(*extra: str) -> hf.Flow[Any]:
    graph = Graph("work", dict)

    @graph.node
    async def first(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        match state.get("mode"):
            case "fail":
                raise ValueError("no luck")
            case "ask":
                await ctx.ask("go on?", options=["yes", "no"])
            case "signal":
                await ctx.wait_for("paid")
            case "sleep":
                await ctx.sleep(1000)
        return {}

    for name in extra:
        graph.node(name=name)(lambda state: {})
    return graph.chain(START, "first", *extra, END).compile()


flow = made()


class Ward:
    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock()
        self.store: Store = open_store(url, clock=self.clock.now)

    def do(self, use: Any) -> Any:
        async def main() -> Any:
            async with hf.Engine(
                self.store, flows=[flow], clock=self.clock, luck=random.Random(1), inline=True
            ) as engine:
                return await use(engine)

        return asyncio.run(main())

    def run(self, run_id: str, mode: str = "", **options: Any) -> None:
        async def use(engine: hf.Engine) -> None:
            running = asyncio.ensure_future(engine.run(flow, {"mode": mode}, run_id=run_id, **options))
            for _ in range(50):
                await asyncio.sleep(0)
            engine.stop("test")
            await asyncio.gather(running, return_exceptions=True)

        self.do(use)

    def start(self, run_id: str, **options: Any) -> None:
        self.do(lambda engine: engine.start(flow, {}, run_id=run_id, **options))

    def found(self, flows: Any = None) -> list[tuple[str | None, str, str]]:
        told = doctor.examine(self.store, flows, self.clock.now())
        return [(one.run_id, one.kind, one.reason) for one in told]


@pytest.fixture(params=["memory", "sqlite"])
def ward(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ward]:
    kind = request.param
    made = Ward(f"memory://{tmp_path.name}" if kind == "memory" else str(tmp_path / "runs.db"))
    yield made
    made.store.close()


WORKER = Holder(id="worker", host="box", pid=7, ttl_s=10_000.0, flows=("other", "work"))


def test_runs_that_are_well_are_not_told_of(ward: Ward) -> None:
    ward.run("done")
    ward.start("new")
    ward.store.renew(WORKER)
    assert ward.found() == []
    assert ward.found({}) == []


def test_a_failed_run_is_told_with_its_failure(ward: Ward) -> None:
    ward.run("r", "fail")
    assert ward.found() == [("r", "failed", "node first failed: ValueError: no luck")]


def test_a_run_that_asks_or_waits_for_a_signal_is_told_as_waiting(ward: Ward) -> None:
    ward.run("asks", "ask")
    ward.run("waits", "signal")
    assert set(ward.found()) == {
        ("asks", "question", "first asks: go on?"),
        ("waits", "signal", "first waits for the signal 'paid'"),
    }
    assert all(one.waits for one in doctor.examine(ward.store, None, ward.clock.now()))


@pytest.mark.parametrize(
    ("workers", "told"),
    [
        ([], "flow 'work'"),
        ([msgspec.structs.replace(WORKER, flows=())], "flow 'work'"),
        ([msgspec.structs.replace(WORKER, flows=("other",))], "flow 'work'"),
        ([msgspec.structs.replace(WORKER, queues=("mail",))], "flow 'work' from queue 'default'"),
    ],
    ids=["no engine", "no worker", "another flow", "another queue"],
)
def test_a_run_that_no_live_worker_takes_is_named_at_once(
    ward: Ward, workers: list[Holder], told: str
) -> None:
    ward.start("r")
    for worker in workers:
        ward.store.renew(worker)
    reason = f"recorded, but not started, and no live worker takes {told}"
    assert ward.found() == [("r", "no worker", reason)]
    assert ward.found({}) == [("r", "flow unknown", f"{reason}, which is not known here")]
    (finding,) = doctor.examine(ward.store, None, ward.clock.now())
    assert [(one.verb, one.command) for one in finding.remedies] == [
        ("work", "holdfast worker FILE.py"),
        ("resume", "holdfast resume r FILE.py"),
    ]


def test_a_run_is_named_as_soon_as_its_worker_drains_or_its_lease_expires(ward: Ward) -> None:
    ward.start("r")
    ward.store.renew(WORKER)
    assert ward.found() == []
    ward.store.renew(msgspec.structs.replace(WORKER, flows=()))
    assert [kind for _, kind, _ in ward.found()] == ["no worker"]
    ward.store.renew(msgspec.structs.replace(WORKER, ttl_s=5.0))
    assert ward.found() == []
    ward.clock.advance(6)
    assert [kind for _, kind, _ in ward.found()] == ["no worker"]


def test_a_run_that_an_idle_worker_leaves_alone_is_told_after_a_while(ward: Ward) -> None:
    ward.start("r")
    ward.store.renew(WORKER)
    ward.clock.advance(PATIENCE_S - 1)
    assert ward.found() == []
    ward.clock.advance(2)
    reason = (
        "recorded, but not started, and no worker has claimed the run; process 7 on box takes flow 'work'"
    )
    assert ward.found() == [("r", "no worker", reason)]


def test_a_run_that_waits_until_a_busy_worker_has_time_is_not_told(ward: Ward) -> None:
    ward.start("held")
    ward.store.claim("held", WORKER)
    ward.start("r")
    ward.clock.advance(10 * PATIENCE_S)
    assert ward.found() == []


def test_a_full_queue_is_named(ward: Ward) -> None:
    ward.start("r", queue="slow")
    ward.store.queues.limit("slow", 0 + 1)
    ward.start("other", queue="slow")
    ward.store.claim("other", WORKER)
    ward.clock.advance(PATIENCE_S + 1)
    assert (
        "r",
        "queue full",
        "recorded, but not started, and no worker has claimed the run: queue 'slow' is at its limit of 1",
    ) in ward.found()


def test_what_was_found_about_a_run_that_has_moved_is_judged_again(ward: Ward) -> None:
    ward.run("asks", "ask")
    ward.run("fails", "fail")
    ward.run("gone", "fail")
    since = ward.store.now()
    found = doctor.examine(ward.store, None, ward.clock.now())
    assert {one.run_id for one in found} == {"fails", "gone", "asks"}
    assert doctor.look_again(ward.store, None, found, since) == found
    ward.clock.advance(1)

    async def settle(engine: hf.Engine) -> None:
        await engine.cancel("asks")
        await engine.cancel("gone")

    ward.do(settle)
    assert [one.run_id for one in doctor.look_again(ward.store, None, found, since)] == ["fails"]


def test_a_run_that_waits_for_an_answer_needs_no_resume_if_a_worker_takes_it(ward: Ward) -> None:
    def verbs() -> list[str]:
        case = case_of(ward.store, ward.store.run("r"), holders=ward.store.queues.holders())
        return [one.verb for one in diagnose(case, ward.store.now()).remedies]

    ward.run("r", "ask")
    assert verbs() == ["answer", "answer", "resume"]
    ward.store.renew(WORKER)
    assert verbs() == ["answer", "answer"]


def test_a_stopped_queue_is_named_as_the_reason_of_every_run_that_waits_for_it(ward: Ward) -> None:
    ward.store.renew(WORKER)
    ward.start("new", queue="slow")
    ward.run("due", "sleep", queue="slow")
    ward.clock.advance(7200)
    ward.start("dead", queue="slow")
    ward.store.claim("dead", msgspec.structs.replace(WORKER, id="died", pid=8, ttl_s=1.0))
    ward.store.queues.limit("slow", 0)
    ward.clock.advance(2)
    found = {run: (kind, reason) for run, kind, reason in ward.found()}
    assert found.keys() == {"new", "due", "dead"}
    assert {kind for kind, _ in found.values()} == {"queue stopped"}
    listed = {one.row.run_id: one for one in list_page(ward.store, Query(limit=10)).runs}
    for run, (_, reason) in found.items():
        assert "queue 'slow' is stopped: its limit is 0" in reason
        row = ward.store.run(run)
        case = case_of(ward.store, row, holders=ward.store.queues.holders())
        shown = diagnose(case, ward.store.now())
        assert shown.reason == listed[run].found.reason == reason
        assert shown.remedies[0].command == "holdfast queue slow --no-limit"
        assert not listed[run].needs_attention  # a person has stopped it
    assert count(ward.store, ward.store.queues.board(), {}) == 0
    ward.store.queues.limit("slow", None)
    assert "queue stopped" not in [kind for _, kind, _ in ward.found()]


def test_a_worker_for_a_stopped_queue_is_started_after_the_queue(ward: Ward) -> None:
    ward.start("new", queue="slow")
    ward.store.queues.limit("slow", 0)
    case = case_of(ward.store, ward.store.run("new"), holders=ward.store.queues.holders())
    shown = diagnose(case, ward.store.now()).remedies
    assert [(one.verb, one.link) for one in shown] == [("queue", ""), ("work", "then"), ("resume", "or")]
    assert shown[0].command == "holdfast queue slow --no-limit"


def test_a_flow_that_changed_in_shape_is_told_with_the_difference(ward: Ward) -> None:
    ward.start("r")
    changed = made("second")
    ((run_id, kind, told),) = ward.found({"work": changed})
    assert (run_id, kind) == ("r", "flow changed")
    assert "second" in told


def test_a_run_whose_holder_died_is_told(ward: Ward) -> None:
    ward.run("r", "sleep")
    row = ward.store.run("r")
    state = history.load(ward.store, "r")
    dead = msgspec.structs.replace(
        row, status="running", holder=Holder(id="x", host="box", pid=77), held=False
    )
    finding = doctor.judge(Case(row=dead, state=state), ward.clock.now())
    assert finding is not None
    assert (finding.kind, finding.reason) == (
        "crashed",
        "process 77 on box, which executed it, crashed, and no worker has claimed the run; first sleeps until "
        + text.soon(ward.clock.now() + 1000, ward.clock.now()),
    )


def test_a_timer_that_is_due_without_a_worker_is_told(ward: Ward) -> None:
    ward.run("r", "sleep")
    row = ward.store.run("r")
    waiting = msgspec.structs.replace(row, status="waiting", due_at=ward.clock.now())
    state = history.load(ward.store, "r")
    patient = Case(row=waiting, state=state)
    assert doctor.judge(patient, ward.clock.now()) is None
    late = doctor.judge(patient, ward.clock.now() + PATIENCE_S)
    assert late is not None
    assert (late.kind, late.since) == ("due", ward.clock.now())


def test_a_paused_run_is_told(ward: Ward) -> None:
    ward.start("r")
    ward.do(lambda engine: engine.pause("r"))
    assert ward.found() == [("r", "paused", "paused until it is resumed")]


def test_runs_are_judged_by_their_rows_as_by_their_logs(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("fail", "ask", "signal", "sleep"):
        ward.run(mode, mode)
    ward.run("changed", "signal")
    ward.start("new")
    ward.start("paused")
    ward.do(lambda engine: engine.pause("paused", by="ada", reason="lunch"))
    ward.clock.advance(5000)
    known = {"work": made("second")}
    by_logs = doctor.examine(ward.store, None, ward.clock.now()), ward.found(known)
    assert len(by_logs[0]) == 7
    monkeypatch.setattr(doctor, "LOGS_MAX", 0)
    assert (doctor.examine(ward.store, None, ward.clock.now()), ward.found(known)) == by_logs
    monkeypatch.setattr(doctor, "case_of", None)
    assert doctor.examine(ward.store, None, ward.clock.now()) == by_logs[0]


def test_a_run_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    import apsw

    ward = Ward(str(tmp_path / "runs.db"))
    ward.start("broken")
    ward.run("failed", "fail")
    database = apsw.Connection(str(tmp_path / "runs.db"))
    database.execute(
        "update events set body = x'00' where key >> 32 = (select key from runs where run_id = 'broken')"
    )
    database.close()
    assert {run_id: kind for run_id, kind, _ in ward.found()} == {"broken": "unreadable", "failed": "failed"}


WELL = Facts(kind="sqlite", now=100.0, settings={"journal_mode": "wal", "synchronous": "2"})


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (WELL, None),
        (msgspec.structs.replace(WELL, now=3700.0), "3600 s ahead"),
        (msgspec.structs.replace(WELL, now=-3500.0), "3600 s behind"),
        (msgspec.structs.replace(WELL, log_bytes=LOG_BYTES + 1), "write-ahead log"),
        (msgspec.structs.replace(WELL, free_bytes=FREE_BYTES - 1), "disk"),
        (msgspec.structs.replace(WELL, schema_version=1, schema_known=2), "version 1"),
        (msgspec.structs.replace(WELL, settings={"journal_mode": "delete"}), "journal_mode"),
        (Facts(kind="postgresql", now=100.0, settings={"fsync": "off"}), "fsync is 'off'"),
    ],
)
def test_what_is_wrong_with_a_store_is_told(facts: Facts, says: str | None) -> None:
    told = [one.reason for one in doctor.look_over(facts, 100.0, [])]
    assert (told == []) if says is None else any(says in one for one in told)
    assert [one.reason for one in doctor.look_over(WELL, 100.0, ["page 7"])] == ["page 7"]


def test_of_very_many_reasons_of_a_kind_the_command_prints_the_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [
        Diagnosis(
            kind="unreadable", reason=f"the log of run r{number} is damaged", run_id=f"r{number}", flow="f"
        )
        for number in range(50)
    ]
    care._say_findings([*found, Diagnosis(kind="failed", reason="node a failed", run_id="other", flow="f")])
    told = capsys.readouterr().out
    assert told.count("is damaged") == 20
    assert "unreadable  30 more runs with other reasons of this kind (--json lists all)" in told
    assert "other: node a failed" in told
