"""What need not be kept goes, and nothing else: checkpoints, events behind a base, runs, blobs. On a real engine, and on every
place where a process may die.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import apsw
import pytest

import holdfast as hf
from holdfast import END, START, Graph, append
from holdfast.errors import ResumeRefused, RunExists, RunHeld, RunNotFound, SettingError, StoreCorrupt
from holdfast.reading import history, verification
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Query, Store
from holdfast.storage.failpoints import FAILPOINTS
from holdfast.storage.leases import this_process
from holdfast.storage.urls import open_store
from holdfast.testing.appends import KilledAtFailpoint, hooked
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import archive, retention
from holdfast.upkeep.retention import RetentionPolicy

DAY_S = 86_400.0


@dataclass
class Work:
    rounds: int = 20
    fail_at: int = 0
    stubborn: bool = False
    big: int = 0
    log: Annotated[list[str], append] = field(default_factory=list)
    blob: str = ""


graph = Graph("rounds", Work)


@graph.node
async def turn(state: Work, ctx: hf.Context) -> dict[str, Any]:
    if ctx.iteration == state.fail_at and (state.stubborn or ctx.execution == ctx.attempt == 1):
        raise ValueError("not this time")
    return {"log": [f"turn {ctx.iteration}"], "blob": f"{ctx.iteration}" * state.big}


@graph.node
async def ask(state: Work, ctx: hf.Context) -> dict[str, Any]:
    return {"log": [await ctx.step("kept", lambda: "kept"), await ctx.ask("go on?", options=["yes", "no"])]}


graph.edge(START, "turn")
graph.branch("turn", lambda s: "turn" if len(s.log) < s.rounds else "ask" if s.rounds == 7 else END,
             to=["turn", "ask", END])  # fmt: skip
graph.edge("ask", END)
flow = graph.compile()


class Place:
    """A store, a clock, and one engine after the other."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock(auto=True)
        self.store: Store = open_store(url, clock=self.clock.now)

    def do(self, use: Callable[[hf.Engine], Any], **options: Any) -> Any:
        async def main() -> Any:
            async with hf.Engine(
                open_store(self.url, clock=self.clock.now),
                **{"flows": [flow], **options},
                clock=self.clock,
                luck=random.Random(1),
                inline=True,
            ) as engine:
                return await use(engine)

        return asyncio.run(main())

    def run(self, run_id: str = "r", **given: Any) -> None:
        with suppress(hf.RunFailed):
            self.do(lambda engine: engine.run(flow, Work(**given), run_id=run_id))

    def resume(self, run: str, **wish: Any) -> Any:
        return self.do(lambda engine: engine.resume(run, **wish))

    def points(self, run_id: str = "r") -> list[int]:
        return [point.seq for point in history.checkpoints(self.store, run_id)]

    def well(self, run_id: str = "r") -> bool:
        return verification.verify(self.store, run_id).problems == []

    def state(self, run_id: str = "r") -> dict[str, Any]:
        return history.load(self.store, run_id).values

    def compact(self, run_id: str = "r", keep_last: int = 5, **options: Any) -> retention.Pruned:
        return retention.compact(
            self.store, run_id, keep_last, holder=this_process(30.0, "compactor"), **options
        )


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    url = f"memory://{tmp_path.name}" if request.param == "memory" else str(tmp_path / "runs.db")
    made = Place(url)
    yield made
    made.store.close()


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Place]:
    made = Place(str(tmp_path / "runs.db"))
    yield made
    made.store.close()


# --- checkpoints -------------------------------------------------------------------------------------


def test_pruning_leaves_the_last_checkpoints_and_all_of_history(place: Place) -> None:
    place.run()
    before, events = place.points(), place.store.events("r")
    pruned = place.do(lambda engine: engine.prune("r", keep_last=3))
    assert place.points() == before[-3:]
    assert (pruned.kept, pruned.retired) == (3, before[-3])
    assert place.store.events("r") == events
    assert place.well()


def test_a_retired_checkpoint_is_refused_with_the_reason_and_the_way_out(place: Place) -> None:
    place.run(fail_at=10)
    gone, *_, last = place.points()
    retention.prune(place.store, "r", 2)
    for ask in (lambda e: e.resume(f"r@{gone}"), lambda e: e.fork(f"r@{gone}")):
        with pytest.raises(ResumeRefused, match=r"were retired on .*holdfast checkpoints r"):
            place.do(ask)
    assert place.do(lambda engine: engine.state(f"r@{gone}")).log == []
    assert place.resume(f"r@{last}").status == "completed"
    assert place.well()


def test_a_run_with_few_checkpoints_is_left_alone(place: Place) -> None:
    place.run(rounds=2)
    before = place.points()
    assert retention.prune(place.store, "r", 50).retired == 0
    assert place.points() == before


def test_what_is_pruned_twice_is_pruned_once(place: Place) -> None:
    place.run()
    assert retention.prune(place.store, "r", 4) == retention.prune(place.store, "r", 4)
    retention.prune(place.store, "r", 9)
    assert len(place.points()) == 4


@pytest.mark.parametrize("count", [0, -1, True, 2.5, "3"])
def test_a_number_that_keeps_nothing_is_refused(place: Place, count: Any) -> None:
    place.run(rounds=2)
    with pytest.raises(SettingError, match="at least 1"):
        retention.prune(place.store, "r", count)


def test_snapshots_go_that_only_retired_checkpoints_needed(place: Place) -> None:
    place.run(rounds=900)
    snapshots = [kept.seq for kept in place.store.upkeep.snapshots("r")]
    assert len(snapshots) > 2
    state = place.state()
    assert retention.prune(place.store, "r", 3).snapshots == len(snapshots) - 1
    assert [kept.seq for kept in place.store.upkeep.snapshots("r")] == snapshots[-1:]
    assert place.state() == state
    assert place.well()


def test_a_rewind_leaves_the_snapshot_that_its_way_leads_through(place: Place) -> None:
    place.run(rounds=700, fail_at=650)
    snapshots = [kept.seq for kept in place.store.upkeep.snapshots("r")]
    target = next(seq for seq in place.points() if seq > snapshots[0])
    place.resume(f"r@{target}")
    retention.prune(place.store, "r", 300)
    for point in history.checkpoints(place.store, "r"):
        history.load(place.store, "r", point.seq)
    assert place.well()


def test_checkpoints_are_retired_as_a_run_goes_on(place: Place) -> None:
    place.do(lambda engine: engine.run(flow, Work(100), run_id="r"), keep_checkpoints=4)
    assert len(place.points()) == 4
    assert place.well()


def test_a_run_in_threads_is_pruned_beside_its_work(tmp_path: Path) -> None:
    async def main() -> None:
        async with hf.Engine(tmp_path / "runs.db", flows=[flow], keep_checkpoints=3) as engine:
            await engine.run(flow, Work(100), run_id="r")

    asyncio.run(main())
    assert len(hf.checkpoints("r", store=tmp_path / "runs.db")) == 3


# --- compaction --------------------------------------------------------------------------------------


def test_a_compacted_run_is_as_it_was_from_its_last_checkpoints_on(place: Place) -> None:
    place.run(fail_at=15)
    points, state = place.points(), place.state()
    states = {seq: history.load(place.store, "r", seq) for seq in points[-5:]}
    pruned = place.compact()
    assert pruned.base == pruned.events == points[-6]
    retention.sweep(place.store)
    assert place.points() == points[-5:]
    assert place.store.events("r")[0].seq == pruned.base + 1
    assert {seq: history.load(place.store, "r", seq) for seq in points[-5:]} == states
    assert place.state() == state
    assert place.well()
    assert place.resume("r").state.log == [f"turn {n}" for n in range(1, 21)]
    assert place.well()


def test_what_was_compacted_is_told_with_where_it_is(place: Place, tmp_path: Path) -> None:
    place.run(fail_at=15)
    first = place.points()[0]
    place.compact(archive_to=f"{tmp_path}/archive/")
    for ask in (lambda e: e.resume(f"r@{first}"), lambda e: e.fork(f"r@{first}")):
        with pytest.raises(
            ResumeRefused, match=r"Events up to \d+ were compacted on .* archived at .*/archive/r-"
        ):
            place.do(ask)
    with pytest.raises(RunNotFound, match=r"compacted on .* archived at"):
        place.do(lambda engine: engine.state(f"r@{first}"))


def test_a_compacted_run_is_replayed_restarted_and_forked(place: Place) -> None:
    place.run(fail_at=15)
    place.compact()
    oldest = place.points()[0]
    fork = place.do(lambda engine: engine.fork(f"r@{oldest}", edit={"fail_at": 0}))
    assert len(place.resume(fork).state.log) == 20
    assert place.well(fork)
    assert len(place.resume("r", replay=True).state.log) == 20
    assert place.well()


def test_a_fork_is_compacted_like_any_run(place: Place) -> None:
    place.run(rounds=8)
    fork = place.do(lambda engine: engine.fork(f"r@{place.points()[2]}", edit={"rounds": 30}))
    place.resume(fork)
    pruned = place.compact(fork, 3)
    assert pruned.base > place.points()[2]
    assert place.well(fork)
    assert len(place.state(fork)["log"]) == 30
    place.compact(fork, 1)
    assert place.well(fork)


def test_a_base_never_stands_where_a_rewind_leads_around_it(place: Place) -> None:
    place.run(fail_at=15, stubborn=True)
    points = place.points()
    for target in (points[3], points[9]):  # the second goes back to what the first had left behind
        with pytest.raises(hf.RunFailed):
            place.resume(f"r@{target}")
    current = [point.seq for point in history.checkpoints(place.store, "r") if point.current]
    assert current[:10] == points[:10]
    pruned = place.compact(keep_last=len(current) - 6)
    assert (pruned.base, pruned.why) == (points[3], f"the run was rewound to event {points[3]}")
    for row in place.store.events("r"):
        history.load(place.store, "r", row.seq)
    assert place.well()
    assert place.compact(keep_last=2).base > points[-1]
    assert place.well()


def test_a_visit_that_is_still_open_keeps_its_own_events(place: Place) -> None:
    beside = Graph("beside", Work)

    @beside.node
    async def wait(state: Work, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [await ctx.wait_for("first"), await ctx.wait_for("second")]}

    @beside.node
    async def go(state: Work, ctx: hf.Context) -> dict[str, Any]:
        return {"rounds": ctx.iteration}

    beside.edge(START, "wait").edge(START, "go").edge("wait", END)
    beside.branch("go", lambda s: "go" if s.rounds < 20 else END, to=["go", END])
    two = beside.compile()

    async def told_twice(engine: hf.Engine) -> Any:
        await engine.start(two, Work(), run_id="r")
        await engine.signal("r", "first", "one")
        await engine.resume("r")
        began = engine.store.events("r", kinds=("NodeStarted",), node="wait")[0].seq
        pruned = await engine.prune("r", 1, compact=True)
        assert pruned.base < began
        assert pruned.why == f"node 'wait' has been open since event {began}"
        await engine.signal("r", "second", "two")
        return await engine.resume("r", restart_at="wait")  # what it had taken is put back, by the log

    assert place.do(told_twice, flows=[two]).state.log == ["one", "two"]
    assert place.well()


def test_a_question_is_answered_after_a_compaction(place: Place) -> None:
    place.run(rounds=7)
    assert place.compact(keep_last=1).base > 0
    place.do(lambda engine: engine.answer("r", "ask", "yes"))
    assert place.resume("r").state.log[-2:] == ["kept", "yes"]
    assert place.well()


def test_a_run_with_nothing_to_compact_says_so(place: Place) -> None:
    place.run(rounds=2)
    pruned = place.compact()
    assert (pruned.base, pruned.events) == (0, 0)
    assert "no events before" in pruned.why


def test_a_run_that_another_process_holds_is_not_compacted(place: Place) -> None:
    place.run(fail_at=15)
    place.store.claim("r", this_process(30.0, "another"))
    with pytest.raises(RunHeld):
        place.compact()
    assert place.well()


def test_a_run_is_compacted_by_the_engine_that_executes_it(place: Place) -> None:
    async def use(engine: hf.Engine) -> Any:
        await engine.start(flow, Work(60), run_id="r")
        running = asyncio.create_task(engine.resume("r"))
        async for event in engine.follow("r"):
            if event.kind == "NodeCompleted" and event.iteration == 40:
                await engine.prune("r", 3, compact=True)
        return await running

    assert place.do(use).status == "completed"
    assert place.store.upkeep.trimmed("r").base > 0
    assert place.well()


def test_an_altered_base_is_found(on_disk: Place) -> None:
    on_disk.run()
    on_disk.compact()
    database = apsw.Connection(on_disk.store.url.removeprefix("sqlite:///"))
    ((body,),) = database.execute("select body from snapshots where base = 1").fetchall()
    database.execute("update snapshots set body = ? where base = 1", (body + b" ",))
    database.close()
    assert verification.verify(on_disk.store, "r").problems == [
        f"the compaction base at event {on_disk.store.upkeep.trimmed('r').base} is not what was written"
    ]


@pytest.mark.parametrize(
    "point", [name for name in FAILPOINTS if name.startswith(("prune", "compact", "sweep"))]
)
@pytest.mark.parametrize("keep_last", [1, 4])
def test_a_compaction_that_is_killed_leaves_a_run_that_can_be_carried_on(
    place: Place, point: str, keep_last: int
) -> None:
    place.run(fail_at=15)

    def die(name: str) -> None:
        if name == point:
            raise KilledAtFailpoint(name)

    with hooked(die), suppress(KilledAtFailpoint):
        place.compact(keep_last=keep_last)
        retention.sweep(place.store)
    again = Place(place.url)
    again.clock = place.clock
    again.store.release("r", "compactor", again.store.run("r").fence)  # its process is dead
    assert again.well()
    assert again.resume("r").state.log == [f"turn {n}" for n in range(1, 21)]
    again.compact(keep_last=keep_last)
    retention.sweep(again.store)
    assert again.well()
    assert len(again.points()) == keep_last


# --- archives ----------------------------------------------------------------------------------------


def everything(store: Store, run_id: str = "r") -> Any:
    row = store.run(run_id)
    seqs = [kept.seq for kept in store.upkeep.snapshots(run_id)]
    return (
        [getattr(row, name) for name in row.__struct_fields__ if name not in ("fence", "holder", "held")],
        store.events(run_id),
        [store.snapshot(run_id, [(seq, seq)]) for seq in seqs],
        store.upkeep.trimmed(run_id),
        store.definition(row.fingerprint),
    )


@pytest.mark.parametrize("compacted", [False, True])
def test_an_archived_run_comes_back_equal(place: Place, tmp_path: Path, compacted: bool) -> None:
    place.run(rounds=600, fail_at=590, big=1)
    if compacted:
        place.compact()
    done = archive.archive(place.store, "r", tmp_path / "r.zst")
    assert done.place == str(tmp_path / "r.zst")
    assert os.stat(done.place).st_mode & 0o777 == 0o600
    other = Place(str(tmp_path / "other.db"))
    assert archive.put_back(other.store, done.place) == "r"
    assert archive.put_back(other.store, done.place) == "r"
    assert everything(other.store) == everything(place.store)
    assert other.well()
    assert len(other.resume("r").state.log) == 600
    other.store.close()


def test_blobs_travel_with_the_run(tmp_path: Path) -> None:
    one, other = Place(str(tmp_path / "one.db")), Place(str(tmp_path / "other.db"))
    one.run(rounds=3, big=1_200_000)
    done = archive.archive(one.store, "r", f"file://{tmp_path}/archive/")
    assert done.blobs == 3
    archive.put_back(other.store, done.place)
    assert other.well()
    assert list(other.store.blobs.digests()) == list(one.store.blobs.digests())


def test_an_archive_goes_to_a_url_of_fsspec_and_back(place: Place, tmp_path: Path) -> None:
    place.run()
    folder = f"memory://{tmp_path.name}/"
    done = archive.archive(place.store, "r", folder)
    assert done.place.startswith(f"{folder}r-")
    assert archive.archive(place.store, "r", folder) == done
    other = Place(str(tmp_path / "other.db"))
    archive.put_back(other.store, done.place)
    assert other.well()
    with pytest.raises(SettingError, match="exists already"):
        archive.archive(place.store, "r", done.place)


def test_an_archive_takes_the_place_of_nothing(place: Place, tmp_path: Path) -> None:
    place.run()
    (tmp_path / "there").write_text("mine")
    with pytest.raises(SettingError, match="exists already"):
        archive.archive(place.store, "r", tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"


def test_another_run_of_that_id_is_not_replaced(place: Place, tmp_path: Path) -> None:
    place.run()
    archive.archive(place.store, "r", tmp_path / "r.zst")
    other = Place(str(tmp_path / "other.db"))
    other.run(rounds=3)
    with pytest.raises(RunExists):
        archive.put_back(other.store, tmp_path / "r.zst")
    assert len(other.state()["log"]) == 3


def test_a_damaged_archive_is_refused_and_nothing_is_written(place: Place, tmp_path: Path) -> None:
    place.run()
    file = tmp_path / "r.zst"
    archive.archive(place.store, "r", file)
    whole = file.read_bytes()
    other = Place(str(tmp_path / "other.db"))
    luck = random.Random(5)
    damages = [whole[: len(whole) // 2], whole[:-1], b"", b"plain text", whole + b"more"]
    for _ in range(40):
        at = luck.randrange(len(whole))
        damages.append(whole[:at] + bytes([whole[at] ^ 1 << luck.randrange(8)]) + whole[at + 1 :])
    for damaged in damages:
        file.write_bytes(damaged)
        try:
            archive.put_back(other.store, file)
        except StoreCorrupt:
            assert other.store.runs(Query()) == []
        else:  # a bit of the frame that says nothing about its content
            assert everything(other.store) == everything(place.store)
            assert not other.store.upkeep.delete({"r": other.store.run("r").seq})


# --- policies ----------------------------------------------------------------------------------------


def prune_all(place: Place, *policies: RetentionPolicy, **options: Any) -> dict[str, tuple[bool, str]]:
    chosen = list(retention.choose(place.store, policies))
    done = list(chain.from_iterable(retention.delete_all(place.store, chosen, **options)))
    retention.sweep(place.store)
    return {choice.run_id: (choice.goes, choice.why) for choice in done}


def test_runs_go_by_age_and_number_and_it_is_told_why_the_others_stay(place: Place) -> None:
    for number in range(6):
        place.run(f"r{number}", rounds=2)
        place.clock.advance(DAY_S)
    place.run("failed", rounds=2, fail_at=1)
    assert prune_all(place, RetentionPolicy(older_than=2 * DAY_S, keep=3)) == {
        "r5": (False, "among the newest 3 completed runs of rounds"),
        "r4": (False, "among the newest 3 completed runs of rounds"),
        "r3": (False, "among the newest 3 completed runs of rounds"),
        "r2": (True, "older than 2d and not among the newest 3 runs"),
        "r1": (True, "older than 2d and not among the newest 3 runs"),
        "r0": (True, "older than 2d and not among the newest 3 runs"),
    }
    assert {row.run_id for row in place.store.runs(Query())} == {"r3", "r4", "r5", "failed"}
    assert prune_all(place, RetentionPolicy(older_than=100 * DAY_S))["r3"] == (False, "younger than 100d")
    for run_id in ("r3", "r4", "r5", "failed"):
        assert place.well(run_id)


def test_what_something_still_needs_stays(place: Place) -> None:
    place.run("parent", rounds=4)
    place.do(lambda engine: engine.fork("parent", run_id="fork", edit={"rounds": 9}))
    place.run("held", rounds=2)
    place.store.claim("held", this_process(10_000.0, "another"))
    place.run("asks", rounds=7)
    place.clock.advance(5.0)
    told = prune_all(place, RetentionPolicy(older_than=1.0))
    assert told["parent"] == (False, "run 'fork' was forked from it")
    assert told["held"][0] is False
    assert "executes the run" in told["held"][1]
    assert "asks" not in told
    place.do(lambda engine: engine.cancel("fork"))
    place.clock.advance(5.0)
    assert {
        run_id for run_id, (goes, _) in prune_all(place, RetentionPolicy(older_than=1.0)).items() if goes
    } == {
        "parent",
        "fork",
    }


def test_runs_are_archived_before_they_go(place: Place, tmp_path: Path) -> None:
    for number in range(3):
        place.run(f"r{number}", rounds=3)
    before = {f"r{number}": everything(place.store, f"r{number}") for number in range(3)}
    place.clock.advance(20.0)
    prune_all(place, RetentionPolicy(older_than=1.0), archive_to=f"{tmp_path}/archive/")
    assert place.store.runs(Query()) == []
    for file in (tmp_path / "archive").iterdir():
        archive.put_back(place.store, file)
    assert {run_id: everything(place.store, run_id) for run_id in before} == before


def test_an_archive_that_is_there_already_is_not_written_again(place: Place, tmp_path: Path) -> None:
    place.run(rounds=3)
    first = archive.archive(place.store, "r", tmp_path)
    assert archive.archive(place.store, "r", f"{tmp_path}/") == first


def test_a_run_that_cannot_be_archived_stays(place: Place, tmp_path: Path) -> None:
    place.run(rounds=3)
    place.clock.advance(20.0)
    (tmp_path / "file").write_text("")
    with pytest.raises(hf.HoldfastError):
        prune_all(place, RetentionPolicy(older_than=1.0), archive_to=f"{tmp_path}/file/archive/")
    assert place.well()


def test_a_run_that_was_carried_on_after_it_was_chosen_stays(place: Place) -> None:
    place.run(fail_at=3)
    place.clock.advance(20.0)
    (choice,) = retention.choose(place.store, [RetentionPolicy(older_than=1.0, status=("failed",))])
    place.resume("r")
    (done,) = retention.delete(place.store, [choice])
    assert (done.goes, done.why) == (False, "the run was resumed in the meantime")
    assert place.well()


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"status": ["running"], "keep": 1}, "has not ended"),
        ({"flow": "x"}, "older_than"),
        ({"keep": -1}, "keep"),
        ({"older_than": "soon"}, "30d"),
        ({"old": "30d"}, "old"),
        ({"status": "gone", "keep": 1}, "status"),
        ("30d", "table"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(policy: Any, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        retention.policies({"policies": [policy]})


def test_the_policies_of_a_project_are_read() -> None:
    table = {
        "archive": "s3://bucket/",
        "policies": [{"flow": "a", "older_than": "2w"}, {"status": "failed", "keep": 10}],
    }
    assert retention.policies(table) == (
        [RetentionPolicy(flow="a", older_than=14 * DAY_S), RetentionPolicy(status=("failed",), keep=10)],
        "s3://bucket/",
    )


@pytest.mark.parametrize("point", [name for name in FAILPOINTS if name.startswith(("delete", "sweep"))])
def test_a_deletion_that_is_killed_is_finished_by_the_next(place: Place, tmp_path: Path, point: str) -> None:
    for number in range(4):
        place.run(f"r{number}", rounds=3)
    place.clock.advance(20.0)

    def die(name: str) -> None:
        if name == point:
            raise KilledAtFailpoint(name)

    policy = RetentionPolicy(older_than=1.0, keep=1)
    with hooked(die), suppress(KilledAtFailpoint):
        prune_all(place, policy)
    left = {row.run_id for row in place.store.runs(Query())}
    assert "r3" in left
    assert all(place.well(run_id) for run_id in left)
    prune_all(place, policy)
    assert [row.run_id for row in place.store.runs(Query())] == ["r3"]
    assert place.store.upkeep.facts().unswept == 0
    assert place.well("r3")


# --- blobs, spills, definitions ----------------------------------------------------------------------


def age(place: Place, digest: str, seconds: float) -> None:
    """As if a blob had been put so long ago."""
    file = Path(f"{place.store.url.removeprefix('sqlite:///')}.blobs", digest[:2], digest[2:4], digest)
    at = place.store.blobs.now() - seconds
    os.utime(file, (at, at))


def test_only_old_blobs_go_that_nothing_refers_to(on_disk: Place) -> None:
    on_disk.run("kept", rounds=2, big=1_100_000)
    on_disk.run("gone", rounds=3, big=1_200_000)
    kept = archive.references(on_disk.store, on_disk.store.run("kept"))
    on_disk.clock.advance(20.0)
    assert not on_disk.store.upkeep.delete({"gone": on_disk.store.run("gone").seq})
    unwanted = sorted(set(on_disk.store.blobs.digests()) - kept)
    assert len(unwanted) == 3
    for digest in on_disk.store.blobs.digests():
        age(on_disk, digest, 7200.0)
    age(on_disk, unwanted[0], 600.0)
    swept = retention.sweep(on_disk.store)
    assert swept.blobs == 2
    assert swept.kept == ("1 unreferenced blob: younger than 1h",)
    assert set(on_disk.store.blobs.digests()) == {*kept, unwanted[0]}
    assert on_disk.well("kept")


def test_a_blob_that_is_put_again_is_young(on_disk: Place) -> None:
    on_disk.store.blobs.put(*_blob(b"x"))
    age(on_disk, _blob(b"x")[0], 7200.0)
    on_disk.store.blobs.put(*_blob(b"x"))
    assert retention.sweep(on_disk.store).blobs == 0


def _blob(body: bytes) -> tuple[str, bytes]:
    made = Blob.of(body)
    return made.digest, made.body


def test_blobs_are_left_alone_where_other_stores_may_keep_theirs(on_disk: Place) -> None:
    on_disk.store.blobs.put(*_blob(b"x"))
    age(on_disk, _blob(b"x")[0], 7200.0)
    swept = retention.sweep(on_disk.store, blobs_too=False)
    assert (swept.blobs, len(swept.kept)) == (0, 1)
    assert retention.sweep(on_disk.store).blobs == 1


def test_blobs_stay_as_long_as_a_run_cannot_be_read(on_disk: Place) -> None:
    on_disk.run(rounds=3, big=1_100_000)
    on_disk.store.blobs.put(*_blob(b"x"))
    for digest in on_disk.store.blobs.digests():
        age(on_disk, digest, 7200.0)
    database = apsw.Connection(on_disk.store.url.removeprefix("sqlite:///"))
    database.execute("update events set body = x'28b52ffd00' where key in (select key from events limit 1)")
    database.close()
    swept = retention.sweep(on_disk.store)
    assert swept.blobs == 0
    assert "cannot be read" in swept.kept[0]


def test_partial_streams_of_runs_that_are_over_go(place: Place) -> None:
    place.run("over", rounds=2)
    place.run("failed", rounds=2, fail_at=1)
    for run_id in ("over", "failed", "unknown"):
        place.store.blobs.spill(run_id, "k", b"x")
    assert retention.sweep(place.store).spills == 1
    assert place.store.blobs.spilling() == ["failed", "unknown"]


def test_definitions_stay_as_long_as_a_log_refers_to_them(place: Place) -> None:
    place.run(rounds=2)
    place.store.upkeep.adopt("nobody", place.store.upkeep.trimmed("r"), {"unused": b"{}"})
    assert retention.sweep(place.store).definitions == 1
    assert place.store.definition(flow.fingerprint) is not None
    assert place.store.definition("unused") is None
