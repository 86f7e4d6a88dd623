"""The scope of a run, its schedule, and the run as it was at an event."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from families import Order, Till, caller
from harness import Stage

import holdfast as hf
from holdfast import END, START, Flow, Graph, append
from holdfast.core.definition import Definition, NodeOptions
from holdfast.core.scope import check_scope
from holdfast.core.verb_options import foreseen_options
from holdfast.reading import inbox
from holdfast.reading.reader import Reader
from holdfast.storage.contract import Request
from holdfast.testing import check
from holdfast.testing.crashing import crash_everywhere


@dataclass
class Work:
    log: Annotated[list[str], append] = field(default_factory=list)


def diamond() -> Flow[Work]:
    """Nodes a to d: b and c run side by side after a, and d joins them."""
    graph = Graph("diamond", Work)

    def add(name: str) -> None:
        @graph.node(name=name)
        async def node(state: Work, ctx: hf.Context) -> dict[str, Any]:
            ctx.cost(tokens=1)
            return {"log": [name]}

    for name in "abcd":
        add(name)
    return graph.chain(START, "a", "b", "d", END).chain("a", "c", "d").compile()


def run(stage: Stage, flow: Flow[Any], **limits: Any) -> hf.Run[Any]:
    found: hf.Run[Any] = stage.do(lambda engine: engine.run(flow, run_id="r", **limits))
    return found


# --- the scope -------------------------------------------------------------------------------------------


def test_only_nodes_in_scope_run_until_the_scope_is_widened(stage: Stage) -> None:
    flow = diamond()
    paused = run(stage, flow, scope=["b", "a"])
    assert (paused.status, paused.scope, paused.state.log) == ("paused", ("a", "b"), ["a", "b"])
    assert {name: node.status for name, node in paused.nodes.items()}["c"] == "pending"
    assert stage.told("RunPaused")[0].reason == "scope"
    wider = stage.resume(flow, scope=["c"])
    assert (wider.status, wider.scope, wider.state.log) == ("paused", ("a", "b", "c"), ["a", "b", "c"])
    done = stage.resume(flow, scope=["*"])
    assert (done.status, done.scope, done.state.log) == ("completed", None, ["a", "b", "c", "d"])
    assert not check(stage.store)


def test_a_resume_that_widens_nothing_is_refused_and_the_same_call_of_run_returns_the_run(
    stage: Stage,
) -> None:
    flow = diamond()
    run(stage, flow, scope=["a"])
    before = stage.kinds()
    with pytest.raises(hf.ResumeRefused, match=r"b and c are not in scope.*--scope b --scope c"):
        stage.resume(flow)
    with pytest.raises(hf.ResumeRefused, match=r"--scope b --scope c"):
        stage.resume(flow, scope=["a"])
    assert run(stage, flow, scope=["a"]).status == "paused"
    assert stage.kinds() == before


def test_a_run_that_goes_back_stays_in_its_scope(stage: Stage) -> None:
    flow = diamond()
    run(stage, flow, scope=["a"])
    stage.resume(flow, scope=["b"])
    again = stage.resume(flow, after="a")  # the scope was narrower there
    assert (again.status, again.scope, again.state.log) == ("paused", ("a", "b"), ["a", "b"])
    assert stage.told("RunRewound")[0].scope == ["a", "b"]
    assert not check(stage.store)


@pytest.mark.parametrize(
    ("scope", "wrong"),
    [
        ([], "names no node"),
        (["e"], r"no such node; it has a, b, c, d"),
        ("a", "give a list"),
        ([1], "give a list"),
        (7, "give a list"),
    ],
)
def test_a_wrong_scope_is_refused_and_nothing_is_recorded(stage: Stage, scope: Any, wrong: str) -> None:
    with pytest.raises(hf.SettingError, match=wrong):
        run(stage, diamond(), scope=scope)
    assert stage.do(lambda engine: engine.runs()) == []


def test_a_message_about_a_wrong_name_names_only_some_of_many_nodes() -> None:
    flow = Definition(name="f", nodes={f"n{number}": NodeOptions() for number in range(10_000)}, edges=[])
    with pytest.raises(hf.SettingError) as refused:
        check_scope(flow, ["other"])
    assert str(refused.value).endswith(
        "no such node; it has n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 9,990 more"
    )


def test_a_scope_can_only_be_widened_and_only_if_there_is_one(stage: Stage) -> None:
    flow = diamond()
    run(stage, flow, scope=["a"])
    with pytest.raises(hf.ResumeRefused, match="scope names 'bb'"):
        stage.resume(flow, scope=["bb"])
    stage.do(lambda engine: engine.start(flow, run_id="free"))
    with pytest.raises(hf.ResumeRefused, match="has no scope"):
        stage.do(lambda engine: engine.resume("free", scope=["a"]), flow)


def test_the_scope_is_in_force_on_every_worker_and_after_a_crash(stage: Stage) -> None:
    flow = diamond()

    async def work(engine: hf.Engine) -> hf.Run[Any]:
        await engine.start(flow, run_id="r", scope=["a", "b"])
        await engine.work(until="idle")
        return await engine.get("r")

    done = stage.do(work, flow)
    assert (done.status, done.state.log) == ("paused", ["a", "b"])
    if stage.kind != "postgres":
        for seq in range(1, done.seq):
            again = stage.do(lambda e: e.run(flow, run_id="r"), url=stage.crashed_at(seq))
            assert (again.status, again.scope) == ("paused", ("a", "b")), seq


def test_a_worker_that_is_asked_widens_the_scope_and_raises_the_budget(stage: Stage) -> None:
    flow = diamond()
    run(stage, flow, scope=["a"], budget=hf.Budget(tokens=100))

    async def ask(engine: hf.Engine) -> hf.Run[Any]:
        await engine.resume("r", scope=["*"], budget=hf.Budget(tokens=200), execute=False)
        await engine.work(until="idle")
        return await engine.get("r")

    done = stage.do(ask, flow)
    assert (done.status, done.budget) == ("completed", hf.Budget(tokens=200))


def test_the_diagnosis_names_the_nodes_and_the_command_that_works(stage: Stage) -> None:
    flow = diamond()
    run(stage, flow, scope=["a"])
    found = Reader(stage.store).diagnose("r")
    assert found.reason == "paused: everything in its scope is done, and b and c are not in scope"
    wider, every = found.remedies
    assert wider.command == "holdfast resume r FILE.py --scope b --scope c"
    assert every.command == "holdfast resume r FILE.py --scope '*'"
    arguments = {name: value for name, value in wider.arguments.items() if name != "run"}
    assert stage.resume(flow, **arguments).state.log == ["a", "b", "c"]


def test_the_diagnosis_of_a_spent_budget_has_a_command_that_works(stage: Stage) -> None:
    flow = diamond()
    with pytest.raises(hf.RunFailed):
        run(stage, flow, budget=hf.Budget(tokens=2))
    found = Reader(stage.store).diagnose("r")
    assert "BudgetExceeded" in found.reason
    (remedy,) = found.remedies
    assert remedy.command == "holdfast resume r FILE.py --budget tokens=5"
    assert remedy.arguments["budget"] == {"tokens": 5}


def test_a_preview_types_the_limits(stage: Stage) -> None:
    flow = diamond()
    run(stage, flow, scope=["a"])

    async def look(engine: hf.Engine) -> hf.Preview:
        return await engine.preview("r", "resume", scope=["b"], budget=hf.Budget(usd=5))

    assert stage.do(look, flow).command == "holdfast resume r FILE.py --budget usd=5 --scope b"


def test_every_crash_of_a_run_with_a_scope_leads_to_the_same_end() -> None:
    report = crash_everywhere(diamond(), scope=["a", "b"], ends="paused")
    assert not report.findings


# --- a request with limits -------------------------------------------------------------------------------


def test_a_request_with_limits_has_a_form_that_older_versions_refuse() -> None:
    request = inbox.Resume(id="q", budget=hf.Budget(usd=5), scope=["a"])
    stored = inbox.stored_form(request)
    assert json.loads(json.dumps(stored.body))["on_change"] == {
        "on_change": "refuse",
        "budget": {"usd": 5.0},
        "scope": ["a"],
    }
    assert inbox.read(stored) == request
    assert inbox.about(request) == "budget usd=5; scope a"
    assert inbox.stored_form(inbox.Resume(id="q")).body["on_change"] == "refuse"
    broken = Request(
        id="q", verb="resume", body={"on_change": {"on_change": "refuse", "budget": {"usd": -1}}}
    )
    assert isinstance(inbox.read(broken), inbox.Unknown)
    assert "budget" in foreseen_options(inbox.Resume)


# --- the schedule ----------------------------------------------------------------------------------------


def test_a_flow_runs_eager_or_layered_as_each_run_says(stage: Stage) -> None:
    flow = diamond()
    eager = run(stage, flow)
    layered = stage.do(lambda engine: engine.run(flow, run_id="l", schedule="layered"))
    assert (eager.schedule, eager.layer, layered.schedule, layered.layer) == ("eager", 0, "layered", 3)
    assert eager.state == layered.state
    layers = [point.layer for point in stage.do(lambda engine: engine.checkpoints("l"))]
    assert layers == [None, 1, 1, 2, 2, 2, 3, 3]
    assert {point.layer for point in stage.do(lambda engine: engine.checkpoints("r"))} == {None}
    assert not check(stage.store)


def test_a_layered_flow_runs_eager_if_the_run_says_so(stage: Stage) -> None:
    graph = Graph("two", Work)
    for name in "ab":
        graph.node(name=name)(lambda state: None)
    flow = graph.chain(START, "a", "b", END).compile(schedule="layered")
    found = run(stage, flow, schedule="eager")
    assert (found.schedule, found.layer) == ("eager", 0)
    assert {point.layer for point in stage.do(lambda engine: engine.checkpoints("r"))} == {None}


def test_an_unknown_schedule_is_refused(stage: Stage) -> None:
    with pytest.raises(hf.SettingError, match="did you mean 'layered'"):
        run(stage, diamond(), schedule="layers")


def test_a_receipt_of_a_layered_run_names_the_layer(stage: Stage) -> None:
    base = stage.folder / "base"
    flow = diamond()
    stage.do(lambda engine: engine.run(flow, run_id="r", schedule="layered"), run_base=base)
    receipts = [json.loads(path.read_text()) for path in base.rglob("*.json")]
    layers = {one["node"]: one["layer"] for one in receipts if one["kind"] == "receipt"}
    assert layers == {"a": 1, "b": 2, "c": 2, "d": 3}


def test_a_receipt_of_an_eager_run_names_none(stage: Stage) -> None:
    base = stage.folder / "base"
    stage.do(lambda engine: engine.run(diamond(), run_id="r"), run_base=base)
    receipts = [json.loads(path.read_text()) for path in base.rglob("*.json")]
    assert not any("layer" in one for one in receipts if one["kind"] == "receipt")


# --- as it was -------------------------------------------------------------------------------------------


def test_a_run_is_returned_as_it_was_at_every_event(stage: Stage) -> None:
    flow = diamond()
    seen: dict[int, hf.Run[Any]] = {}
    now = run(stage, flow, budget=hf.Budget(tokens=9))

    async def look(engine: hf.Engine) -> None:
        for seq in range(1, now.seq + 1):
            seen[seq] = await engine.get(f"r@{seq}")

    stage.do(look, flow)
    assert [one.seq for one in seen.values()] == list(range(1, now.seq + 1))
    assert (seen[1].status, seen[1].nodes, seen[1].cost.tokens) == ("pending", {}, 0)
    assert (seen[4].state.log, seen[4].cost.tokens, seen[4].nodes["a"].status) == (["a"], 1, "completed")
    assert (seen[4].budget_left.tokens, seen[4].held_by) == (8, None)  # type: ignore[union-attr]
    assert seen[now.seq] == now


def test_a_run_is_returned_as_it_was_before_it_went_back(stage: Stage) -> None:
    flow = diamond()
    run(stage, flow, scope=["a", "b"])
    stage.resume(flow, after="a")
    assert stage.do(lambda engine: engine.get("r@9"), flow).state.log == ["a", "b"]


def test_the_children_of_a_run_are_those_that_it_had_then(stage: Stage) -> None:
    till = Till()
    flow = caller(till.pay())
    stage.run(flow, Order(total=1))
    children = [
        [child.status for child in stage.do(lambda engine, at=seq: engine.get(f"r@{at}")).children]
        for seq in range(1, 7)
    ]
    assert children == [[], [], ["running"], ["running"], ["completed"], ["completed"]]


def test_an_event_that_the_run_does_not_have_is_named(stage: Stage) -> None:
    run(stage, diamond(), scope=["a"])
    with pytest.raises(hf.RunNotFound, match=r"r@99.*has events 1 to"):
        stage.do(lambda engine: engine.get("r@99"))
    with pytest.raises(hf.ResumeRefused, match="is not a checkpoint"):
        stage.do(lambda engine: engine.get("r@x"))
