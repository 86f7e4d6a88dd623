"""The testing kit itself: the manual clock, and histories that an engine carries on."""

import asyncio
import random

import pytest

from holdfast import Engine, Graph, Recoverable, Retry, RunFailed, RunHeld
from holdfast.errors import IllegalEvent
from holdfast.reading.verification import verify
from holdfast.storage.holder import this_process
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import dead_process
from holdfast.testing.builders import History, outline
from holdfast.testing.clock import STARTS_AT, ManualClock

# --- the clock -----------------------------------------------------------------------------------------


def on_a_loop(test):
    """Run a test of the clock where timers belong: on an event loop."""

    def run():
        async def main():
            test()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def told(clock: ManualClock, *seconds: float) -> list[float]:
    """A list that gets the time whenever one of these timers is called."""
    rang: list[float] = []
    for after in seconds:
        clock.call_at(STARTS_AT + after, lambda: rang.append(clock.now() - STARTS_AT))
    return rang


@on_a_loop
def test_time_stands_still_until_it_is_moved():
    clock = ManualClock()
    assert (clock.now(), clock.now()) == (STARTS_AT, STARTS_AT)
    clock.advance(2.5)
    assert clock.now() == STARTS_AT + 2.5


@on_a_loop
def test_timers_are_called_in_order_each_at_its_own_time():
    clock = ManualClock()
    rang = told(clock, 7, 3, 5, 20)
    clock.advance(10)
    assert rang == [3, 5, 7]
    assert clock.now() == STARTS_AT + 10


@on_a_loop
def test_a_timer_that_another_sets_on_the_way_is_called_as_well():
    clock = ManualClock()
    rang: list[float] = []
    clock.call_at(STARTS_AT + 1, lambda: clock.call_at(STARTS_AT + 2, lambda: rang.append(clock.now())))
    clock.advance(5)
    assert rang == [STARTS_AT + 2]


@on_a_loop
def test_a_cancelled_timer_is_not_called():
    clock = ManualClock()
    rang: list[str] = []
    clock.call_at(STARTS_AT + 1, lambda: rang.append("a")).cancel()
    clock.advance(5)
    assert rang == []
    assert clock.next_at is None


@on_a_loop
def test_the_clock_jumps_to_the_next_timer_and_calls_all_of_that_time():
    clock = ManualClock()
    rang = told(clock, 4, 9, 4)
    assert clock.advance_to_next()
    assert rang == [4, 4]
    assert clock.advance_to_next()
    assert not clock.advance_to_next()


@on_a_loop
def test_time_does_not_go_back():
    with pytest.raises(ValueError, match="cannot go back"):
        ManualClock().advance(-1)


def test_a_timer_in_the_past_is_called_in_the_next_round_of_the_loop():
    async def main():
        clock = ManualClock()
        rang = told(clock, -5)
        assert rang == []
        await asyncio.sleep(0)
        assert rang == [0]

    asyncio.run(main())


def test_a_timer_does_not_outlive_its_loop():
    clock = ManualClock()

    async def main():
        return told(clock, 5)

    rang = asyncio.run(main())
    clock.advance(10)
    assert rang == []


def engine(clock: ManualClock, store=None, **options) -> Engine:
    return Engine(
        store or MemoryStore(clock=clock.now), clock=clock, luck=random.Random(1), inline=True, **options
    )


def test_an_automatic_clock_makes_retries_happen_at_once_and_at_their_time():
    graph = Graph("flaky", dict)
    attempts = []

    @graph.node(retry=Retry(attempts=3, backoff=600, factor=2, max_delay=3600, jitter=0))
    def call(state, ctx):
        attempts.append(clock.now() - STARTS_AT)
        if ctx.attempt < 3:
            raise Recoverable("not yet")

    flow = graph.edge("START", "call").edge("call", "END").compile()
    clock = ManualClock(auto=True)

    async def main():
        async with engine(clock) as it:
            return await it.run(flow, {})

    assert asyncio.run(main()).status == "completed"
    assert attempts == [0, 600, 1800]


def test_an_automatic_clock_makes_timeouts_happen_at_once():
    graph = Graph("slow", dict)

    @graph.node(timeout=3600, retry=1)
    async def wait(state):
        await asyncio.get_running_loop().create_future()

    flow = graph.edge("START", "wait").edge("wait", "END").compile()
    clock = ManualClock(auto=True)

    async def main():
        async with engine(clock) as it:
            await it.run(flow, {})

    with pytest.raises(RunFailed, match="took longer than 3600 s"):
        asyncio.run(main())
    assert clock.now() == STARTS_AT + 3600


# --- histories -----------------------------------------------------------------------------------------


def abc(calls: list[tuple[str, int]]):
    """a -> b -> c, each of which notes that it was called."""
    graph = Graph("abc", dict)
    for name in ("a", "b", "c"):

        def body(state, ctx):
            calls.append((ctx.node, ctx.attempt))
            return {ctx.node: "called"}

        graph.node(name=name)(body)
    return graph.chain("START", "a", "b", "c", "END").compile()


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    opened = MemoryStore() if request.param == "memory" else SqliteStore(str(tmp_path / "runs.db"))
    yield opened
    opened.close()


def resumed(flow, store):
    async def main():
        async with engine(ManualClock(auto=True), store, flows=[flow]) as it:
            return await it.resume("r1")

    return asyncio.run(main())


def test_an_engine_carries_on_from_a_history_that_crashed_before_a_node(store):
    calls = []
    flow = abc(calls)
    History("r1", flow).created({"n": 1}).completed("a", {"a": "told"}).completed("b").crashed_before(
        "c"
    ).write(store)
    run = resumed(flow, store)
    assert run.status == "completed"
    assert run.state == {"n": 1, "a": "told", "c": "called"}
    assert calls == [("c", 1)]
    assert verify(store, "r1").problems == []


def test_an_engine_carries_on_from_a_history_that_crashed_in_a_node(store):
    calls = []
    flow = abc(calls)
    History("r1", flow).created().completed("a").crashed_in("b").write(store)
    assert resumed(flow, store).status == "completed"
    assert calls == [("b", 2), ("c", 1)]


def test_a_history_may_be_held_by_a_process_that_has_died_or_lives(store):
    calls = []
    flow = abc(calls)
    History("r1", flow).created().crashed_in("a").write(store, holder=dead_process())
    assert resumed(flow, store).status == "completed"
    History("r2", flow).created().crashed_in("a").write(store, holder=this_process())
    assert store.run("r2").held

    async def main():
        async with engine(ManualClock(auto=True), store, flows=[flow]) as it:
            await it.resume("r2")

    with pytest.raises(RunHeld):
        asyncio.run(main())


def test_a_history_is_the_same_run_to_whoever_starts_it_again(store):
    calls = []
    flow = abc(calls)
    History("r1", flow).created({"n": 1}).completed("a").write(store)

    async def main():
        async with engine(ManualClock(auto=True), store) as it:
            return await it.run(flow, {"n": 1}, run_id="r1")

    assert asyncio.run(main()).status == "completed"
    assert calls == [("b", 1), ("c", 1)]


def test_items_that_a_history_completed_are_not_called_again(store):
    graph = Graph("fan", dict)
    called = []

    @graph.node(each=lambda state: [10, 20, 30])
    def square(item, ctx):
        called.append(item)
        return {str(item): item * item}

    flow = graph.edge("START", "square").edge("square", "END").compile()
    History("r1", flow).created().item_completed("square", 1, {"20": 400}).write(store)
    assert resumed(flow, store).state == {"10": 100, "20": 400, "30": 900}
    assert sorted(called) == [10, 30]


def test_a_history_of_a_failed_run_is_resumed_at_the_node_that_failed(store):
    calls = []
    flow = abc(calls)
    History("r1", flow).created().completed("a").failed("b", ValueError("broken")).settled().write(store)
    assert store.run("r1").status == "failed"
    assert resumed(flow, store).status == "completed"
    assert calls == [("b", 2), ("c", 1)]


def test_a_history_writes_the_same_log_every_time():
    logs = []
    for _ in range(2):
        store = MemoryStore()
        History("r1", abc([])).created().completed("a", {"x": [1]}).completed("b").write(store)
        logs.append(store.events("r1"))
    assert logs[0] == logs[1]
    assert [row.at - STARTS_AT for row in logs[0]] == [0, 1, 2, 3, 4]


def test_a_history_that_no_engine_could_have_written_is_refused_where_it_is_told():
    run = History("r1", outline("START a b END")).created()
    with pytest.raises(AssertionError, match="does not return StartNode for 'b' now"):
        run.completed("b")
    with pytest.raises(AssertionError, match="has not reached 'b'"):
        run.crashed_before("b")
    run.completed("a").completed("b").settled()
    with pytest.raises(IllegalEvent, match="is completed"):
        run.paused()


def test_a_visit_that_an_operator_skips_before_it_began_leaves_the_other_arrivals_alone(store):
    """Twice the run came to `c`, which starts for each: one visit is skipped, the other one runs."""
    flow = outline("START a c END", "START b c", nodes={"c": {"join": "any"}})
    told = History("r1", flow).created().started("a", "b").paused().completed("a").completed("b").settled()
    told.write(store)

    async def main():
        async with engine(ManualClock(auto=True), store, flows=[flow]) as it:
            return await it.skip("r1", "c")

    run = asyncio.run(main())
    assert (run.status, run.nodes["c"].iteration, run.nodes["c"].tries) == ("completed", 2, 1)
