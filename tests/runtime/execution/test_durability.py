"""What is durable before the next node starts, and nodes that must not run twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engines import Work, failure_of, has, in_engine, kinds, looping, one_node, quickly

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.errors import StoreBusy
from holdfast.reading import verification
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import dead_process, hooked
from holdfast.testing.builders import History
from holdfast.testing.clock import STARTS_AT, ManualClock

# --- durability --------------------------------------------------------------------------------------


def chain_that_looks(folder: Path, durability: str, *, idempotent: bool) -> list[bool]:
    """a -> b on a file; what b finds there of the completion of a."""
    seen = []
    graph = Graph("two", Work)
    graph.node(name="a", idempotent=idempotent)(lambda state: {"total": 1})

    @graph.node
    async def b(state: Work) -> None:
        other = SqliteStore(folder / "runs.db")
        try:
            seen.append(bool(other.events("r", kinds=("NodeCompleted",), node="a")))
        except hf.RunNotFound:
            seen.append(False)
        finally:
            other.close()

    flow = graph.chain(START, "a", "b", END).compile()
    in_engine(lambda engine: engine.run(flow, run_id="r"), folder / "runs.db", durability=durability)
    return seen


@pytest.mark.parametrize(("durability", "durable"), [("sync", True), ("exit", False)])
def test_the_next_node_starts_when_the_completion_before_it_is_as_durable_as_asked(
    tmp_path: Path, durability: str, durable: bool
) -> None:
    seen = chain_that_looks(tmp_path, durability, idempotent=True)
    assert seen == [durable]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_node_that_is_not_idempotent_is_always_durable_before_the_next(
    tmp_path: Path, durability: str
) -> None:
    assert chain_that_looks(tmp_path, durability, idempotent=False) == [True]


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_run_of_less_durability_ends_in_the_same_log(tmp_path: Path, durability: str) -> None:
    ran: list[int] = []
    flow = looping(ran)
    run = in_engine(lambda engine: engine.run(flow, run_id="r"), tmp_path / "runs.db", durability=durability)
    assert (run.status, ran) == ("completed", list(range(1, 11)))
    store = SqliteStore(tmp_path / "runs.db")
    assert verification.verify(store, "r").problems == []
    assert len(store.events("r", kinds=("NodeCompleted",))) == 10
    assert not store.run("r").held
    store.close()


class Busy:
    """A hook for failpoints: these appends (by number, from 1) find the store busy, so often."""

    def __init__(self, numbers: range, times: int) -> None:
        self.left = dict.fromkeys(numbers, times)
        self.number = 1

    def __call__(self, name: str) -> None:
        if name == "append.before" and self.left.get(self.number, 0) > 0:
            self.left[self.number] -= 1
            raise StoreBusy("somebody else is at it")
        if name == "append.committed":
            self.number += 1


def looking(store: Any, seen: list[bool]) -> Flow[Work]:
    """a -> b; b notes whether the store knows that a is completed."""
    graph = Graph("two", Work)
    graph.node(name="a")(lambda state: {"total": 1})
    graph.node(name="b")(lambda state: seen.append(has(store, "NodeCompleted", "a")) or {"total": 1})
    return graph.chain(START, "a", "b", END).compile()


@pytest.mark.parametrize(("durability", "durable"), [("sync", True), ("async", False)])
def test_a_busy_store_is_asked_again_and_the_next_node_waits_for_it(durability: str, durable: bool) -> None:
    clock, seen = ManualClock(auto=True), []
    store = MemoryStore(clock=clock.now)
    with hooked(Busy(range(2, 3), times=4)):
        run = quickly(looking(store, seen), store=store, clock=clock, durability=durability)
    assert (run.status, run.state.total, seen) == ("completed", 2, [durable])
    assert verification.verify(store, "r").problems == []


def test_an_append_that_cannot_be_made_stops_the_run_and_calls_nothing_failed() -> None:
    clock, seen = ManualClock(auto=True), []
    store = MemoryStore(clock=clock.now)
    flow = looking(store, seen)
    with (
        hooked(Busy(range(2, 3), times=10_000)),
        pytest.raises(StoreBusy, match=r"could not be recorded.*resume"),
    ):
        quickly(flow, store=store, clock=clock)
    assert clock.now() - STARTS_AT >= 30, "as long as the lease lasts"
    assert (kinds(store), seen) == (["RunCreated", "NodeStarted"], [])
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (run.status, run.state.total, run.nodes["a"].attempt) == ("completed", 2, 2)


# --- nodes that must not run twice -------------------------------------------------------------------


def paying(ran: list[int]) -> Flow[Work]:
    graph = Graph("pay", Work)
    graph.node(name="pay", idempotent=False)(lambda state, ctx: ran.append(ctx.attempt) or {"log": ["paid"]})
    graph.node(name="after")(lambda state: {"log": ["after"]})
    return graph.chain(START, "pay", "after", END).compile()


@pytest.mark.parametrize(
    ("verb", "args", "status", "ran", "log"),
    [
        ("retry", ("r",), "completed", [2], ["paid", "after"]),
        ("skip", ("r", "pay", {"log": ["found paid"]}), "completed", [], ["found paid", "after"]),
        ("cancel", ("r",), "cancelled", [], []),
    ],
)
def test_a_crash_inside_a_node_that_is_not_idempotent_parks_the_run_with_a_question(
    verb: str, args: Any, status: str, ran: list[int], log: list[str]
) -> None:
    tried: list[int] = []
    flow, store = paying(tried), MemoryStore()
    History("r", flow).created(Work()).crashed_in("pay").write(store, holder=dead_process())
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (run.status, tried, run.nodes["pay"].status) == ("waiting", [], "waiting")
    (question,) = run.questions
    assert (question.node, question.options) == ("pay", ["retry", "skip", "abort"])
    again = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (again.status, tried, len(again.questions)) == ("waiting", [], 1)
    ended = in_engine(lambda engine: getattr(engine, verb)(*args), store, flows=[flow])
    assert (ended.status, tried, ended.state.log, ended.questions) == (status, ran, log, ())
    assert verification.verify(store, "r").problems == []


def test_a_node_that_may_be_left_out_is_skipped_when_it_was_cut() -> None:
    ran: list[str] = []
    graph = Graph("skip", Work)
    for name in ("hint", "after"):
        graph.node(name=name, on_interrupt="skip")(lambda state, ctx: ran.append(ctx.node) or None)
    flow, store = graph.chain(START, "hint", "after", END).compile(), MemoryStore()
    History("r", flow).created(Work()).crashed_in("hint").write(store, holder=dead_process())
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (run.nodes["hint"].status, ran) == ("skipped", ["after"])


def test_a_node_that_is_not_idempotent_is_not_retried_by_itself() -> None:
    tried = []

    def body(state: Work) -> None:
        tried.append(1)
        raise hf.Recoverable("busy")

    failure_of(one_node(body, idempotent=False))
    assert tried == [1]
