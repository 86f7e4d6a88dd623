"""The budget of a run: counted from its log, whatever happens to the run, and in force in everything that begins in it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import budget_nodes
import pytest
from families import Order, Pay, Till, caller, children
from harness import Stage

import holdfast as hf
from holdfast import END, START, Flow, Graph, append
from holdfast.testing import check
from holdfast.testing.crashing import crash_everywhere


@dataclass
class Work:
    log: Annotated[list[str], append] = field(default_factory=list)


def spending(usd: float = 1.0, *, names: str = "a b c", breaks: str = "", **options: Any) -> Flow[Work]:
    """A chain of nodes, each of which costs this much; one of them may break before that."""
    graph = Graph("spending", Work)

    def add(name: str) -> None:
        @graph.node(name=name, **options)
        async def node(state: Work, ctx: hf.Context) -> dict[str, Any]:
            if name == breaks:
                raise ValueError("broken")
            ctx.cost(usd=usd, tokens=10)
            return {"log": [name]}

    for name in names.split():
        add(name)
    return graph.chain(START, *names.split(), END).compile()


def fails(stage: Stage, flow: Flow[Any], given: Any = None, **limits: Any) -> hf.Run[Any]:
    """Execute the run `r` with these limits, which must fail because its budget is spent."""
    with pytest.raises(hf.RunFailed, match="BudgetExceeded") as failed:
        stage.do(lambda engine: engine.run(flow, given, run_id="r", **limits))
    run: hf.Run[Any] = failed.value.run
    assert run.error is not None
    assert (run.error.kind, run.error.type) == ("partial", "BudgetExceeded")
    return run


def sound(stage: Stage) -> bool:
    return not check(stage.store)


def test_the_cost_is_recorded_and_then_the_node_fails(stage: Stage) -> None:
    run = fails(stage, spending(), budget=hf.Budget(usd=2))
    assert (run.failed_node, run.state.log, run.cost.usd) == ("b", ["a"], 2.0)
    assert stage.kinds()[-3:] == ["CostIncurred", "NodeFailed", "RunFailed"]
    assert (run.budget, run.budget_left.usd) == (hf.Budget(usd=2), 0)  # type: ignore[union-attr]
    assert "`holdfast resume r FILE.py --budget usd=4`" in run.error.message  # type: ignore[union-attr]
    assert sound(stage)


def test_a_run_within_its_budget_shows_what_is_left(stage: Stage) -> None:
    run = stage.do(lambda e: e.run(spending(), run_id="r", budget=hf.Budget(usd=9, tokens=31)))
    assert (run.status, run.budget_left.usd, run.budget_left.tokens) == ("completed", 6.0, 1)


def test_a_resume_with_a_higher_budget_continues(stage: Stage) -> None:
    flow = spending()
    fails(stage, flow, budget=hf.Budget(usd=2))
    run = stage.resume(flow, budget=hf.Budget(usd=20))
    assert (run.status, run.state.log, run.cost.usd) == ("completed", ["a", "b", "c"], 4.0)
    assert run.budget == hf.Budget(usd=20)
    assert sound(stage)


def test_a_resume_without_a_higher_budget_is_refused_and_nothing_is_recorded(stage: Stage) -> None:
    flow = spending()
    fails(stage, flow, budget=hf.Budget(usd=2))
    before = stage.kinds()
    with pytest.raises(hf.ResumeRefused, match=r"holdfast resume r FILE\.py --budget usd=4"):
        stage.resume(flow)
    with pytest.raises(
        hf.ResumeRefused, match=r"usd=1\.5 is not above the 2 that the run has spent"
    ) as refused:
        stage.resume(flow, budget=hf.Budget(usd=1.5))
    assert "--budget usd=3.5" in str(refused.value)
    with pytest.raises(hf.SettingError, match="is not a budget"):
        stage.resume(flow, budget=7)
    assert stage.kinds() == before


def test_the_budget_is_in_force_in_another_process_after_a_crash(stage: Stage) -> None:
    if stage.kind == "postgres":
        pytest.skip("a store on a server is not copied")
    flow = spending()
    run = stage.do(lambda e: e.run(flow, run_id="r", budget=hf.Budget(usd=9)))
    assert run.status == "completed"
    for seq in range(1, run.seq):
        url = stage.crashed_at(seq)
        again = stage.verb(flow, "resume", url=url)
        assert (again.status, again.budget) == ("completed", hf.Budget(usd=9)), seq


def test_a_rewind_keeps_what_was_spent(stage: Stage) -> None:
    flow = spending(names="a b c d")
    fails(stage, flow, budget=hf.Budget(usd=3))
    with pytest.raises(hf.ResumeRefused, match="has spent 3 usd of a budget of 3"):
        stage.resume(flow, after="a")
    run = stage.resume(flow, after="a", budget=hf.Budget(usd=9))
    assert (run.status, run.cost.usd, run.budget.usd) == ("completed", 6.0, 9.0)
    assert sound(stage)


def test_a_rewind_to_before_a_resume_keeps_the_budget_of_that_resume(stage: Stage) -> None:
    flow, broken = spending(names="a b c"), spending(names="a b c", breaks="c")
    fails(stage, flow, budget=hf.Budget(usd=2))
    with pytest.raises(hf.RunFailed, match="ValueError"):
        stage.resume(broken, budget=hf.Budget(usd=100))
    run = stage.resume(flow, after="a")
    assert (run.status, run.budget, run.cost.usd) == ("completed", hf.Budget(usd=100), 5.0)
    assert stage.told("RunRewound")[0].budget == hf.Budget(usd=100)
    assert sound(stage)


def test_a_fork_has_spent_what_its_base_has_and_keeps_the_budget(stage: Stage) -> None:
    flow = spending()
    fails(stage, flow, budget=hf.Budget(usd=2))

    async def fork(engine: hf.Engine) -> hf.Run[Any]:
        await engine.fork("r", run_id="f")
        return await engine.get("f")

    run = stage.do(fork, flow)
    assert (run.cost.usd, run.budget) == (1.0, hf.Budget(usd=2))


# --- what begins -----------------------------------------------------------------------------------------


def test_a_step_that_would_begin_over_the_budget_is_refused_and_kept_ones_are_not(stage: Stage) -> None:
    calls: list[str] = []

    def body(state: Any, ctx: Any) -> Any:
        yield ctx.step("first", lambda: calls.append("first"))
        with pytest.raises(hf.BudgetExceeded):
            ctx.cost(usd=5)
        with pytest.raises(hf.BudgetExceeded):
            yield ctx.step("second", lambda: calls.append("second"))
        with pytest.raises(hf.BudgetExceeded):
            yield ctx.step(hf.Step("third", idempotent=False), lambda: calls.append("third"))
        with pytest.raises(hf.BudgetExceeded):
            yield ctx.map("fourth", calls.append, ["fourth"])
        with pytest.raises(hf.BudgetExceeded):
            yield ctx.step("second", lambda: calls.append("second"))
        return {"log": ["done"]}

    run = stage.do(lambda e: e.run(stage.one(body), run_id="r", budget=hf.Budget(usd=1)))
    assert (run.status, calls) == ("completed", ["first"])
    assert "StepStarted" not in stage.kinds()


def test_a_step_that_is_not_idempotent_and_is_refused_another_step_is_asked_about(stage: Stage) -> None:
    graph = Graph("one", Work)

    @graph.node
    async def only(state: Work, ctx: hf.Context) -> None:
        async def charge() -> None:
            ctx.cost(usd=5)
            await ctx.step("another", lambda: None)

        await ctx.step(hf.Step("charge", idempotent=False), charge)

    flow = graph.chain(START, "only", END).compile()
    run = stage.do(lambda e: e.run(flow, run_id="r", budget=hf.Budget(usd=1)))
    assert run.status == "waiting"
    assert run.questions[0].about == "interrupt"


def test_a_node_that_is_not_idempotent_and_spends_too_much_is_asked_about(stage: Stage) -> None:
    run = stage.do(
        lambda e: e.run(spending(names="a b", idempotent=False), run_id="r", budget=hf.Budget(usd=1))
    )
    assert (run.status, run.questions[0].node) == ("waiting", "a")


def test_no_attempt_is_retried_whatever_the_retry_says(stage: Stage) -> None:
    flow = spending(retry=hf.Retry(attempts=9, on=(Exception,)))
    assert fails(stage, flow, budget=hf.Budget(usd=1)).nodes["a"].tries == 1


def test_a_group_of_exceptions_with_a_spent_budget_is_one(stage: Stage) -> None:
    graph = Graph("grouped", Work)

    @graph.node(safe_to_fail=True)
    async def only(state: Work, ctx: hf.Context) -> None:
        async def spend() -> None:
            ctx.cost(usd=5)

        async with asyncio.TaskGroup() as group:
            group.create_task(spend())

    assert (
        "has spent 5 usd"
        in fails(stage, graph.chain(START, "only", END).compile(), budget=hf.Budget(usd=1)).error.message
    )  # type: ignore[union-attr]


def test_no_item_begins_over_the_budget_and_those_that_are_done_stay_done(stage: Stage) -> None:
    graph, ran = Graph("items", Work), list[int]()

    @graph.node(each=lambda state: [1, 2, 3, 4], limit=1)
    async def pay(item: int, ctx: hf.Context) -> dict[str, Any]:
        ran.append(item)
        with pytest.raises(hf.BudgetExceeded) if item == 2 else _nothing():
            ctx.cost(tokens=10)
        return {"log": [str(item)]}

    flow = graph.chain(START, "pay", END).compile()
    run = fails(stage, flow, budget=hf.Budget(tokens=20))
    assert (run.failed_node, ran) == ("pay", [1, 2])
    assert run.error is not None
    assert (run.error.item, run.error.message[:45]) == (2, "run 'r' has spent 20 tokens of a budget of 20")
    assert stage.resume(flow, budget=hf.Budget(tokens=99)).state.log == ["1", "2", "3", "4"]
    assert ran == [1, 2, 3, 4]
    assert sound(stage)


class _nothing:  # noqa: N801 - in the place of a function
    def __enter__(self) -> None: ...

    def __exit__(self, *raised: object) -> None: ...


def test_the_time_of_nodes_counts_also_before_a_crash(stage: Stage) -> None:
    graph = Graph("slow", Work)

    @graph.node
    async def slow(state: Work) -> None:
        stage.clock.advance(60)

    @graph.node
    async def after(state: Work) -> None: ...

    flow = graph.chain(START, "slow", "after", END).compile()
    run = fails(stage, flow, budget=hf.Budget(active_s=30))
    assert run.failed_node is None
    assert "60 seconds of activity of a budget of 30" in run.error.message  # type: ignore[union-attr]
    assert stage.resume(flow, budget=hf.Budget(active_s=90)).status == "completed"
    assert sound(stage)


def test_a_run_that_is_cancelled_may_clean_up_over_its_budget(stage: Stage) -> None:
    graph, undone, began = Graph("cleaning", Work), list[str](), asyncio.Event()

    @graph.node
    async def only(state: Work, ctx: hf.Context) -> None:
        with pytest.raises(hf.BudgetExceeded):
            ctx.cost(usd=5)
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await ctx.step("undo", lambda: undone.append("undo"))
            raise

    async def use(engine: hf.Engine) -> None:
        flow = graph.chain(START, "only", END).compile()
        going = asyncio.ensure_future(engine.run(flow, run_id="r", budget=hf.Budget(usd=1)))
        await began.wait()
        await engine.cancel("r")
        await asyncio.gather(going, return_exceptions=True)

    stage.do(use)
    assert undone == ["undo"]


# --- child runs ------------------------------------------------------------------------------------------


def test_a_child_gets_what_is_left_and_its_cost_counts(stage: Stage) -> None:
    till = Till()
    flow = calling_twice(till.pay())
    run = stage.do(lambda e: e.run(flow, Order(total=7), run_id="r", budget=hf.Budget(usd=2, tokens=99)))
    first, second = children(stage.store)
    assert run.budget_left.usd == 1.0
    assert run.children_cost.usd == 1.0
    assert stage.do(lambda e: e.get(first)).budget == hf.Budget(usd=2, tokens=99)
    assert stage.do(lambda e: e.get(second)).budget == hf.Budget(usd=1.5, tokens=89)


def calling_twice(pay: Flow[Pay], **options: Any) -> Flow[Order]:
    graph = Graph("order", Order)

    @graph.node
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        for key in ("one", "two"):
            await ctx.call(pay, Pay(amount=state.total, how=state.how), key=key, **options)
        return {"log": ["done"]}

    return graph.chain(START, "settle", END).compile()


def test_no_child_begins_once_the_children_have_spent_the_budget(stage: Stage) -> None:
    till = Till()
    run = fails(stage, calling_twice(till.pay(), budget=hf.Budget(usd=9)), budget=hf.Budget(usd=0.5))
    assert (run.failed_node, len(till.charged), run.children_cost.usd) == ("settle", 1, 0.5)
    assert sound(stage)


def test_a_child_that_spends_what_is_left_fails_and_names_its_own_way_out(stage: Stage) -> None:
    till = Till()
    flow = caller(till.pay())
    with pytest.raises(hf.RunFailed, match=r"ChildFailed.*BudgetExceeded"):
        stage.do(lambda e: e.run(flow, Order(total=7), run_id="r", budget=hf.Budget(usd=0.25)))
    (child,) = children(stage.store)
    found = stage.do(lambda e: e.get(child))
    assert (found.status, found.budget) == ("failed", hf.Budget(usd=0.25))


def test_a_child_is_given_a_budget_of_its_own(stage: Stage) -> None:
    till = Till()
    graph = Graph("order", Order)
    graph.call("settle", till.pay(), input=lambda state: Pay(amount=1), budget=hf.Budget(usd=7))
    flow = graph.chain(START, "settle", END).compile()
    stage.run(flow, Order())
    assert stage.do(lambda e: e.get(children(stage.store)[0])).budget == hf.Budget(usd=7)


# --- elsewhere -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [budget_nodes.spends, budget_nodes.spends_async], ids=["def", "async"])
def test_the_budget_holds_in_a_process(tmp_path: Path, body: Any) -> None:
    graph = Graph("process", budget_nodes.Work)
    graph.node(name="only", executor="process")(body)
    flow = graph.chain(START, "only", END).compile()
    run = hf.run(flow, store=tmp_path / "runs.db", budget=hf.Budget(usd=1))
    assert run.state.log == ["first", "spent", "refused"]


def test_every_crash_of_a_run_with_a_budget_leads_to_the_same_end() -> None:
    report = crash_everywhere(spending(), budget=hf.Budget(usd=9, tokens=100, active_s=1000))
    assert not report.findings
    layered = crash_everywhere(spending(), budget=hf.Budget(usd=9), schedule="layered", limit=20)
    assert not layered.findings


def test_every_crash_of_a_run_that_spends_its_budget_leads_to_the_same_end() -> None:
    report = crash_everywhere(spending(), budget=hf.Budget(usd=2), ends="failed")
    assert not report.findings
