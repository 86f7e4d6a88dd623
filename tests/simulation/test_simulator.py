"""The simulator: schedules from seeds are the same every time and on every store, and have no violations."""

import asyncio
import gc
import inspect
import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import RunExists
from holdfast.storage.contract import Along, Request, Store
from holdfast.storage.queues import Queues
from holdfast.storage.rows import open_row
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.upkeep import Upkeep
from holdfast.testing import simulate, simulator
from holdfast.testing.appends import Log
from holdfast.testing.event_loops import TRIED
from holdfast.testing.simulator import OUTCOME_SEEDS, is_asking, report_of, schedule, simulate_random
from holdfast.testing.simulator_faults import FaultyStore
from holdfast.testing.simulator_flows import FORK
from holdfast.testing.simulator_loop import Luck, ProcessDied, SimulatedLoop, Stuck, World

HERE = Path(__file__).parent
SEEDS = range(200)
PROBE = "from holdfast.testing.simulator import schedule; print(*(schedule(seed).run().trace for seed in range(4)))"


@pytest.fixture(scope="module")
def outcomes():
    return list(simulate_random(SEEDS))


# --- schedules ---------------------------------------------------------------------------------------


def test_no_schedule_violates_anything(outcomes) -> None:
    report = report_of(outcomes)
    assert not report.violations, report


def test_no_schedule_about_the_outcomes_of_steps_violates_anything() -> None:
    report = report_of(simulate_random(range(OUTCOME_SEEDS, OUTCOME_SEEDS + 100)))
    assert not report.violations, report


def test_every_seed_that_ever_failed_passes() -> None:
    lines = (HERE / "regressions.txt").read_text().splitlines()
    seeds = [int(line.split()[0]) for line in lines if line and not line.startswith("#")]
    assert seeds
    report = report_of(simulate_random(seeds))
    assert not report.violations, report


def test_schedules_are_large_enough_to_matter(outcomes) -> None:
    report = report_of(outcomes)
    assert sum(report.events) / len(report.events) >= 40
    assert min(report.workers) >= 2
    assert min(report.faults_each) >= 1


def test_every_kind_of_fault_happens(outcomes) -> None:
    happened = Counter()
    for outcome in outcomes:
        happened.update(outcome.faults)
    assert happened.keys() >= {
        "busy", "clock step", "crash", "crash after", "crash before", "crash in node", "drain", "lost reply", "pause",
        "stall after", "stall before", "store clock step",
    }  # fmt: skip


def test_every_way_of_running_is_drawn() -> None:
    drawn = [schedule(seed) for seed in SEEDS]
    assert {scene.durability for scene in drawn} == {"sync", "async", "exit"}
    assert {scene.tidies for scene in drawn} == {True, False}
    assert {scene.keep_checkpoints for scene in drawn} == {None, 2}
    assert any(scene.ledger.limits for scene in drawn)
    assert any(len({subject.priority for subject in scene.subjects}) > 1 for scene in drawn)


@pytest.fixture(scope="module")
def asking():
    """Schedules whose callers leave requests and make forks."""
    scenes = [schedule(seed) for seed in range(400) if is_asking(seed)]
    for scene in scenes:
        assert scene.run().violations == []
    return scenes


def test_every_verb_is_asked_for_and_ends_in_every_way(asking) -> None:
    made = [one for scene in asking for hand in scene.hands for one in hand.requests.made]
    assert {one.verb for one in made} == {"pause", "cancel", "edit", "resume", "retry", "skip"}
    assert {one.id is None for one in made} == {True, False}
    errors = {reply.error for one in made for reply in one.replies}
    assert {"", "ResumeRefused", "RunOver"} <= errors
    posted = [request for scene in asking for request in scene.ledger.posted.values()]
    assert {request.verb for request in posted} >= {
        "answer",
        "signal",
        "resume",
        "retry",
        "skip",
        "edit",
        "pause",
    }
    ended = Counter(
        "unmet" if request.unmet else "handled" if request.taken else "waits"
        for scene in asking
        for subject in scene.subjects
        for request in scene.disk.inbox(run_id=subject.run_id)
    )
    assert ended.keys() == {"unmet", "handled"}
    kinds = {row.kind for scene in asking for rows in scene.ledger.rows.values() for row in rows}
    assert {"RequestRefused", "StateEdited", "RunRewound", "RunForked"} <= kinds
    assert any(subject.waits_s for scene in asking for subject in scene.subjects)


def test_runs_are_forked_in_every_way(asking) -> None:
    forks = [
        open_row(scene.disk.events(subject.run_id)[0], scene.disk.blobs).event
        for scene in asking
        for subject in scene.subjects
        if subject.of is not None and not scene.tidies
    ]
    assert {fork.fresh for fork in forks} == {True, False}
    assert {choice for fork in forks for choice in fork.repeat.values()} == {"run", "skip"}
    assert any(fork.visits and not fork.repeat for fork in forks)
    assert any(one.item is not None for fork in forks for one in fork.visits)
    assert any(fork.parent.endswith(FORK) for fork in forks)


def test_logs_are_compacted_while_their_runs_go_on() -> None:
    scenes = [scene for scene in map(schedule, SEEDS) if scene.tidies]
    compacted = 0
    for scene in scenes:
        assert scene.run().violations == []
        bases = [scene.disk.upkeep.trimmed(subject.run_id).base for subject in scene.subjects]
        compacted += any(bases)
    assert compacted > len(scenes) // 4


def test_a_report_prints_its_figures(outcomes) -> None:
    told = str(report_of(outcomes[:20]))
    assert "events, distribution" in told
    assert "violations              0" in told


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    here = [schedule(seed).run().trace for seed in range(4)]
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", PROBE],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.split() == here


def test_the_same_seed_gives_the_same_trace_on_every_python() -> None:
    """A change of the engine may change schedules. Then: python tests/simulation/traces.py > tests/simulation/traces.txt"""
    kept = dict(line.split() for line in (HERE / "traces.txt").read_text().splitlines())
    assert {seed: schedule(int(seed)).run().trace for seed in kept} == kept


def test_this_python_is_not_beyond_those_that_were_tried() -> None:
    assert TRIED[0] <= sys.version_info[:2] <= TRIED[-1], "try it, and add it to testing/event_loops.py"


def test_what_the_environment_sets_does_not_reach_a_world(monkeypatch: pytest.MonkeyPatch) -> None:
    before = schedule(3).run().trace
    monkeypatch.setenv("HOLDFAST_BLOB_OVER", "60")
    assert schedule(3).run().trace == before


def test_luck_draws_what_random_draws() -> None:
    ours, theirs = Luck(7), random.Random(7)
    places = [range(count) for count in (1, 2, 3, 5, 8, 160)] * 20
    assert [ours.choice(seq) for seq in places] == [theirs.choice(seq) for seq in places]


@pytest.mark.parametrize(("part", "contract"), [("", Store), ("queues", Queues), ("upkeep", Upkeep)])
def test_no_verb_of_a_store_is_done_for_a_dead_process(part: str, contract: type) -> None:
    scene = schedule(3)
    store = FaultyStore(
        scene.disk, scene.world, scene.outside, scene.faults, scene.ledger, scene.outside.kill
    )
    scene.outside.kill()
    verbs = {
        name: verb for name, verb in vars(contract).items() if callable(verb) and not name.startswith("_")
    }
    assert verbs
    for name, verb in verbs.items() - {("close", Store.close)}:
        needed = [one for one in inspect.signature(verb).parameters.values() if one.default is one.empty]
        with pytest.raises(ProcessDied):
            getattr(getattr(store, part) if part else store, name)(*needed[1:])


def test_the_ledger_notes_what_an_append_changes_in_other_runs() -> None:
    scene = schedule(3)
    scene.faults.left = 0
    ledger = scene.ledger
    store = FaultyStore(scene.disk, scene.world, scene.outside, scene.faults, ledger, scene.outside.kill)
    caller, child, note = Log("caller"), Log("child"), Request(id="note", verb="signal", body={"name": "n"})
    start = child.create(origin="caller", queue="slow", priority=3)
    posts = (("child", note), ("missing", note))
    assert store.append([caller.create(along=Along(starts=(start,), posts=posts))]) == [None]
    assert ledger.rows["child"] == list(start.rows)
    assert ledger.acknowledged["child", 1] == ledger.accepted["child", 1] == start.rows[0].salt
    assert (ledger.leases["child"], ledger.places["child"]) == ((None, 0), ("slow", 3))
    assert list(ledger.posted) == [("child", "note")]
    again = Log("other").create(along=Along(starts=(Log("child").create(),), posts=(("caller", note),)))
    assert isinstance(store.append([again])[0], RunExists)
    assert {"other"}.isdisjoint(ledger.rows)
    assert list(ledger.posted) == [("child", "note")]
    assert ledger.wrong == []


def test_another_seed_gives_another_trace(outcomes) -> None:
    assert len({outcome.trace for outcome in outcomes}) == len(outcomes)


# --- stores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 8, 27, 74, 596])
def test_sqlite_gives_the_same_log_as_memory_byte_for_byte(seed: int, tmp_path: Path) -> None:
    made = []

    def disk(clock, alive):
        made.append(SqliteStore(tmp_path / "runs.db", clock=clock, alive=alive))
        return made[-1]

    try:
        on_sqlite = schedule(seed, disk=disk).run()
    finally:
        made[0].close()
    assert on_sqlite.violations == []
    assert on_sqlite.trace == schedule(seed).run().trace


@pytest.mark.parametrize("seed", [3, 8, 27])
def test_postgresql_gives_the_same_log_as_memory_byte_for_byte(seed: int, tmp_path: Path) -> None:
    postgres = pytest.importorskip("holdfast.storage.postgres.store")
    sys.path.insert(0, str(HERE.parent))
    from postgres_server import drop_schema, schema_for, shared_url

    made = []
    schema = schema_for(tmp_path)

    def disk(clock, alive):
        made.append(postgres.PostgresStore(shared_url(), schema=schema, clock=clock, alive=alive))
        return made[-1]

    try:
        on_postgres = schedule(seed, disk=disk).run()
    finally:
        made[0].close()
        drop_schema(shared_url(), schema)
    assert on_postgres.violations == []
    assert on_postgres.trace == schedule(seed).run().trace


# --- the world ---------------------------------------------------------------------------------------


def test_nothing_of_a_killed_process_runs_on() -> None:
    world = World(random.Random(1))
    loop, outside = SimulatedLoop(world, "w"), SimulatedLoop(world, "outside")
    seen = []

    async def work() -> None:
        try:
            seen.append("begins")
            await asyncio.sleep(10)
        finally:
            if not world.loops[0].dead:
                seen.append("cleans up")

    async def nemesis() -> None:
        await asyncio.sleep(1)
        loop.kill()
        await asyncio.sleep(20)

    loop.spawn(work())
    done = outside.spawn(nemesis())
    world.go_on(done.done)
    assert seen == ["begins"]
    world.end()
    gc.collect()
    assert seen == ["begins"]


def test_what_unwinds_at_the_end_of_a_world_is_given_its_own_loop_and_no_real_one() -> None:
    world = World(random.Random(1))
    loop = SimulatedLoop(world, "w")
    asked = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            asked.append(asyncio.gather(*()).get_loop())

    loop.spawn(work())
    with pytest.raises(Stuck, match="nothing can happen any more"):
        world.go_on(lambda: False)
    world.end()
    assert asked == [loop]


def test_a_paused_process_goes_on_later_as_if_nothing_had_been() -> None:
    world = World(random.Random(1))
    loop = SimulatedLoop(world, "w")
    began, ended = world.now, []

    async def work() -> None:
        await asyncio.sleep(1)
        ended.append(world.now - began)

    loop.asleep_until = began + 5
    done = loop.spawn(work())
    world.go_on(done.done)
    assert ended == [6]


def test_the_others_go_on_while_one_stands_still_inside_a_call() -> None:
    world = World(random.Random(1))
    one, other = SimulatedLoop(world, "one"), SimulatedLoop(world, "other")
    order = []

    async def stalls() -> None:
        order.append("asks")
        world.elsewhere(one, 3)
        order.append("is answered")

    async def works() -> None:
        await asyncio.sleep(1)
        order.append("works")

    done = [one.spawn(stalls()), other.spawn(works())]
    world.go_on(lambda: all(part.done() for part in done))
    assert order == ["asks", "works", "is answered"]


def test_who_dies_while_it_stands_still_does_not_come_back() -> None:
    world = World(random.Random(1))
    one, other = SimulatedLoop(world, "one"), SimulatedLoop(world, "other")
    order = []

    def stalls() -> None:
        try:
            world.elsewhere(one, 3)
        except ProcessDied:
            order.append("killed")
            raise
        order.append("is answered")

    one.call_soon(stalls)
    other.call_later(1, one.kill)
    world.go_on(lambda: bool(order))
    assert order == ["killed"]


def test_a_world_in_which_nothing_will_ever_happen_is_stuck() -> None:
    world = World(random.Random(1))
    loop = SimulatedLoop(world, "w")
    done = loop.spawn(_wait_for_ever())
    with pytest.raises(Stuck, match="nothing can happen any more"):
        world.go_on(done.done)
    world.end()


@pytest.mark.parametrize("swallows", [False, True])
def test_a_schedule_that_hangs_is_reported_with_its_seed_and_its_stack(swallows: bool, monkeypatch) -> None:
    monkeypatch.setattr(simulator, "SCHEDULE_CPU_S", 0.2)
    graph = Graph("hangs")

    @graph.node
    async def hang(state: dict) -> None:
        while True:
            try:
                await asyncio.gather()
            except Exception:
                continue
            except BaseException:
                if not swallows:
                    raise
                return

    started = time.process_time()
    report = simulate(graph.chain(START, hang, END).compile(), {}, seeds=[1])
    assert time.process_time() - started < 10
    assert "hung: a callback took 0.2 s of processor time" in str(report.violations[0])
    assert "in hang" in str(report.violations[0])


def test_a_world_that_goes_round_without_end_is_stuck() -> None:
    world = World(random.Random(1), turns_max=100)
    loop = SimulatedLoop(world, "w")

    def spin() -> None:
        loop.call_soon(spin)

    loop.call_soon(spin)
    with pytest.raises(Stuck, match="100 turns"):
        world.go_on(lambda: False)


async def _wait_for_ever() -> None:
    await asyncio.get_running_loop().create_future()


# --- flows of users ----------------------------------------------------------------------------------


@dataclass
class Order:
    ticket: str
    paid: int = 0
    note: str = ""


def order_flow(pay) -> hf.Flow:
    graph = Graph("order", Order)

    @graph.node
    async def quote(state: Order, ctx: hf.Context) -> dict:
        price = await ctx.step("price", lambda: 7)
        await ctx.sleep(0.5)
        return {"paid": price}

    graph.node(name="pay", approve="Pay?")(pay)

    @graph.node
    def thank(state: Order) -> dict:
        return {"note": f"thanks for {state.paid}"}

    return graph.chain(START, "quote", "pay", "thank", END).compile()


def test_a_careful_flow_of_a_user_passes() -> None:
    flow = order_flow(lambda state: {"paid": state.paid * 2})
    report = simulate(flow, Order("T-1"), seeds=range(40))
    assert not report.violations, report
    assert report.schedules == 40


def test_a_flow_that_remembers_in_the_process_is_found_out() -> None:
    paid = []

    def pay(state: Order) -> dict:
        paid.append(state.ticket)
        return {"paid": len(paid)}

    report = simulate(order_flow(pay), Order("T-1"), seeds=range(10))
    assert report.violations
    assert "without faults" in report.violations[0].text


def test_a_flow_that_fails_is_told_with_its_seed() -> None:
    def pay(state: Order) -> dict:
        raise ValueError("no money")

    report = simulate(order_flow(pay), Order("T-1"), seeds=range(2))
    assert "no money" in str(report.violations[0])


def test_a_simulation_answers_and_signals_as_it_is_told() -> None:
    graph = Graph("asks", Order)

    @graph.node
    async def ask(state: Order, ctx: hf.Context) -> dict:
        said = await ctx.ask("Which?", options=["this", "that"])
        heard = await ctx.wait_for("parcel")
        return {"note": f"{said} {heard}"}

    flow = graph.chain(START, "ask", END).compile()
    seen = []
    report = simulate(
        flow,
        Order("T-1"),
        seeds=range(10),
        answers=lambda node, iteration, options: options[1],
        signals={"parcel": "came"},
        compare=lambda values: seen.append(values["note"]),
    )
    assert not report.violations, report
    assert set(seen) == {"that came"}
