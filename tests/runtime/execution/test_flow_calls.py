"""A node that calls a flow: one child run per visit, or per item, on each store."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from harness import OnServer, Stage

import holdfast as hf
from holdfast import END, START, Flow, Graph, append
from holdfast.storage.contract import Query


@dataclass
class Payment:
    amount: int = 0
    paid: int = 0


@dataclass
class Order:
    amounts: list[int] = field(default_factory=list)
    total: int = 0
    log: Annotated[list[Any], append] = field(default_factory=list)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stage(request: Any, tmp_path: Path) -> Any:
    stage = OnServer(tmp_path) if request.param == "postgres" else Stage(request.param, tmp_path)
    yield stage
    assert stage.problems() == []
    stage.close()


class Till:
    """The flow `payment`, and what it has done."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.running = self.most = 0
        graph = Graph("payment", Payment)

        @graph.node
        async def charge(state: Payment, ctx: hf.Context) -> dict[str, Any]:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await ctx.sleep(1)
                if state.amount < 0:
                    raise ValueError("nothing to pay")
                self.seen.append(state.amount)
            finally:
                self.running -= 1
            return {"paid": state.amount}

        self.flow = graph.chain(START, "charge", END).compile()


@pytest.fixture
def till() -> Till:
    return Till()


def calling(till: Till, **options: Any) -> Flow[Order]:
    graph = Graph("order", Order)
    chosen: dict[str, Any] = {
        "input": lambda state: Payment(state.total),
        "output": lambda result: {"log": [result.paid]},
        **options,
    }
    graph.call("settle", till.flow, **chosen)
    return graph.chain(START, "settle", END).compile()


def each_of(till: Till, **options: Any) -> Flow[Order]:
    return calling(till, **{"each": lambda state: state.amounts, "input": Payment, **options})


def children(stage: Stage) -> dict[str, str]:
    return {row.run_id: row.status for row in stage.store.runs(Query(origin="r"))}


# --- one child per visit ------------------------------------------------------------------------------


def test_a_visit_is_a_child_run_whose_result_becomes_the_update(stage: Stage, till: Till) -> None:
    ended = stage.run(calling(till), Order(total=12))
    assert (ended.status, ended.state.log, till.seen) == ("completed", [12], [12])
    assert list(children(stage).values()) == ["completed"]


def test_without_output_the_node_changes_nothing(stage: Stage, till: Till) -> None:
    given = Order(total=12)
    assert stage.run(calling(till, output=None), given).state == given
    assert till.seen == [12]


def test_the_input_may_be_a_dict(stage: Stage, till: Till) -> None:
    assert stage.run(calling(till, input=lambda state: {"amount": 5})).state.log == [5]


def test_the_child_gets_the_options_of_the_call(stage: Stage, till: Till) -> None:
    flow = calling(till, queue="till", priority=7, labels={"kind": "card"}, run_timeout=50)
    assert stage.run(flow).status == "waiting"
    (row,) = stage.store.runs(Query(origin="r"))
    assert (row.queue, row.priority, row.labels) == ("till", 7, {"kind": "card"})
    created = stage.store.events(row.run_id, kinds=("RunCreated",))[0]
    assert b'"timeout_s":50' in created.body


def test_an_engine_that_knows_a_flow_knows_the_flows_that_it_calls(stage: Stage, till: Till) -> None:
    flow = calling(till)
    stage.run(flow)
    assert list(stage.engine(flow).flows) == ["order", "payment"]
    with pytest.raises(hf.SettingError, match="two flows are named 'payment'"):
        stage.engine(flow, Till().flow)


def test_a_crash_between_start_and_end_leaves_one_child(stage: Stage, till: Till) -> None:
    flow = calling(till, queue="till")
    assert stage.run(flow, Order(total=3)).status == "waiting"
    assert stage.resume(flow).status == "waiting"

    async def work(engine: hf.Engine) -> None:
        await engine.work(queues=["till", "default"], until="idle")

    stage.do(work, flow)
    assert stage.store.run("r").status == "completed"
    assert (len(children(stage)), till.seen) == (1, [3])
    assert len(stage.told("ChildStarted")) == len(stage.told("ChildEnded")) == 1


def test_an_input_that_does_not_fit_fails_the_node_and_the_run_stays_resumable(
    stage: Stage, till: Till
) -> None:
    stage.fails(calling(till, input=lambda state: {"amount": "much"}))
    assert children(stage) == {}
    assert stage.resume(calling(till)).state.log == [0]


def test_an_output_that_raises_fails_the_node_and_the_child_is_not_called_again(
    stage: Stage, till: Till
) -> None:
    stage.fails(calling(till, output=lambda result: {"log": [result.unknown]}), Order(total=2))
    assert stage.resume(calling(till)).state.log == [2]
    assert till.seen == [2]


def test_a_flow_that_calls_itself_stops_at_its_depth(stage: Stage) -> None:
    graph = Graph("deep", Order)
    graph.call(
        "again",
        graph,
        input=lambda state: Order(total=state.total + 1),
        output=lambda result: {"total": result.total},
    )
    graph.node(name="done")(lambda state: None)
    graph.branch(START, lambda state: "again" if state.total < 5 else "done", to=["again", "done"])
    flow = graph.edge("again", END).edge("done", END).compile()
    assert stage.run(flow).state.total == 5


def test_a_flow_that_calls_itself_without_end_is_refused_at_a_depth_of_50(tmp_path: Path) -> None:
    stage = Stage("memory", tmp_path)
    graph = Graph("deep", Order)
    graph.call("again", graph, input=lambda state: state)
    stage.fails(graph.chain(START, "again", END).compile())
    assert len(stage.store.runs(Query(limit=100))) == 51
    stage.close()


# --- failing, waiting, asking -------------------------------------------------------------------------


def test_a_failed_child_fails_the_node_without_a_retry(stage: Stage, till: Till) -> None:
    stage.fails(calling(till), Order(total=-1))
    (failed,) = stage.told("NodeFailed")
    (child,) = children(stage)
    assert (failed.failure.type, failed.failure.child, failed.retry_at) == ("ChildFailed", child, None)


def test_a_node_that_is_safe_to_fail_is_skipped(stage: Stage, till: Till) -> None:
    ended = stage.run(calling(till, safe_to_fail=True), Order(total=-1))
    assert (ended.status, ended.state.log) == ("completed", [])


def test_a_timeout_fails_the_node_and_cancels_the_child(stage: Stage, till: Till) -> None:
    flow = calling(till, queue="till", timeout=60)

    async def use(engine: hf.Engine) -> Any:
        await engine.run(flow, run_id="r")
        stage.clock.advance(61)
        return await engine.resume("r")

    with pytest.raises(hf.RunFailed):
        stage.do(use)
    assert stage.told("NodeFailed")[-1].failure.type == "WaitTimeout"
    assert list(children(stage).values()) == ["cancelled"]


def test_a_gate_asks_before_the_child_is_started(stage: Stage, till: Till) -> None:
    flow = calling(till, approve="Pay?")
    assert stage.run(flow, Order(total=4)).status == "waiting"
    assert children(stage) == {}
    stage.verb(flow, "answer", "settle", "approve")
    assert stage.resume(flow).state.log == [4]


def test_cancelling_the_caller_cancels_the_child(stage: Stage, till: Till) -> None:
    flow = calling(till, queue="till")
    stage.run(flow)
    stage.verb(flow, "cancel")
    assert list(children(stage).values()) == ["cancelled"]


# --- one child per item -------------------------------------------------------------------------------


def test_each_item_is_a_child_run_and_at_most_limit_run_at_once(stage: Stage, till: Till) -> None:
    ended = stage.run(each_of(till, limit=2), Order(amounts=[3, 1, 2, 5, 4]))
    assert ended.state.log == [3, 1, 2, 5, 4]
    assert len(children(stage)) == 5
    assert till.most <= 2


def test_the_limit_counts_children_that_wait_for_a_worker(stage: Stage, till: Till) -> None:
    flow = each_of(till, limit=2, queue="till")
    assert stage.run(flow, Order(amounts=[1, 2, 3, 4, 5])).status == "waiting"
    assert len(children(stage)) == 2

    async def work(engine: hf.Engine) -> None:
        await engine.work(queues=["till", "default"], until="idle", concurrency=2)

    stage.do(work, flow)
    assert stage.store.run("r").status == "completed"
    assert sorted(till.seen) == [1, 2, 3, 4, 5]


def test_a_failed_item_names_its_child_and_a_mended_child_is_used(stage: Stage, till: Till) -> None:
    flow = each_of(till)
    stage.fails(flow, Order(amounts=[1, -1, 2]))
    (failed,) = (run_id for run_id, status in children(stage).items() if status == "failed")
    assert stage.told("NodeFailed")[-1].failure.child == failed

    async def mend(engine: hf.Engine) -> None:
        await engine.edit(failed, {"amount": 9})
        await engine.resume(failed)

    stage.do(mend, flow)
    assert stage.resume(flow).state.log == [1, 9, 2]
    assert (len(children(stage)), sorted(till.seen)) == (3, [1, 2, 9])


def test_items_have_the_type_of_the_input_function(stage: Stage, till: Till) -> None:
    def given(amount: int) -> Payment:
        return Payment(amount)

    stage.fails(each_of(till, input=given, each=lambda state: ["much"]))
    assert children(stage) == {}
