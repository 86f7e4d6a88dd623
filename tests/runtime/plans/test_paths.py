"""Where the run of a plan goes: guards, joins, skips and error edges, in both schedules."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast import plan
from holdfast.errors import StoreCorrupt
from holdfast.storage import rows

Schedule = str


class Work:
    """Capabilities that record their calls, and fail where a test says so."""

    def __init__(self, folder: Path) -> None:
        self.store = str(folder / "runs.db")
        self.calls: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.capabilities = plan.Capabilities("shop")

        @self.capabilities.capability("do@1")
        async def do(given: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
            self.calls.append(ctx.node)
            if ctx.node in self.fails:
                raise self.fails[ctx.node]
            return {"by": ctx.node, **given}

    def plan(self, tasks: dict[str, dict[str, Any]], *edges: dict[str, Any], **more: Any) -> hf.Flow[Any]:
        listed = [{"id": name, "capability": "do@1", "input": {}, **task} for name, task in tasks.items()]
        return self.capabilities.plan(
            plan.read({"holdfast": "plan/1", "tasks": listed, "edges": list(edges), **more})
        )

    def run(self, flow: hf.Flow[Any], run_id: str = "r", **options: Any) -> Any:
        return hf.run(flow, run_id=run_id, store=self.store, **options)

    def resume(self, run_id: str = "r", **options: Any) -> Any:
        return hf.resume(run_id, store=self.store, flows=[self.capabilities], **options)

    def statuses(self, run_id: str = "r") -> dict[str, str]:
        return {name: node.status for name, node in hf.get(run_id, store=self.store).nodes.items()}

    def events(self, *kinds: str, run_id: str = "r") -> list[Any]:
        return [event for event in hf.events(run_id, store=self.store) if event.kind in kinds]


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def edge(source: str, target: str, guard: str | None = None, **more: Any) -> dict[str, Any]:
    return {"from": source, "to": target, **({"guard": guard} if guard else {}), **more}


def test_a_guard_decides_once_and_is_recorded_with_what_it_read(work: Work) -> None:
    flow = work.plan(
        {"a": {}, "b": {}, "c": {}},
        edge("a", "b", "context.facts.n > 3"),
        edge("a", "c", "outputs.a.by == 'z'"),
        context={"facts": {"n": 5, "secret": "s"}},
    )
    assert work.run(flow).status == "completed"
    (evaluated,) = work.events("GuardEvaluated")
    assert evaluated.body["verdicts"] == {"b": True, "c": False}
    assert evaluated.body["reads"] == {"context.facts.n": 5, "outputs.a.by": "a"}
    assert work.statuses() == {"a": "completed", "b": "completed", "c": "skipped"}
    (skipped,) = work.events("NodesSkipped")
    assert skipped.body == {"nodes": ["c"], "why": {"c": "a"}}


def test_a_branch_that_is_not_taken_is_skipped_in_one_event_to_its_end(work: Work) -> None:
    names = [f"n{number}" for number in range(50)]
    flow = work.plan(
        {"a": {}, **{name: {} for name in names}},
        edge("a", "n0", "context.facts.n > 3"),
        *(edge(one, other) for one, other in itertools.pairwise(names)),
        context={"facts": {"n": 1}},
    )
    assert work.run(flow).status == "completed"
    (skipped,) = work.events("NodesSkipped")
    assert skipped.body["nodes"] == names
    assert work.calls == ["a"]


@pytest.mark.parametrize("schedule", ["eager", "layered"])
@pytest.mark.parametrize("join", ["every", "some"])
def test_a_join_runs_by_its_edges_and_not_by_their_timing(work: Work, join: str, schedule: str) -> None:
    flow = work.plan(
        {"a": {}, "b": {}, "long": {}, "j": {"join": join}, "after": {}},
        edge("a", "b"),
        edge("b", "long"),
        edge("a", "j", "context.facts.n > 3"),
        edge("long", "j"),
        edge("j", "after"),
        context={"facts": {"n": 1}},
    )
    assert work.run(flow, schedule=schedule).status == "completed"
    ends = {"every": "skipped", "some": "completed"}[join]
    assert work.statuses() == {
        "a": "completed",
        "b": "completed",
        "long": "completed",
        "j": ends,
        "after": ends,
    }
    if join == "some":
        assert work.calls.index("j") > work.calls.index("long")


@pytest.mark.parametrize("schedule", ["eager", "layered"])
def test_an_error_edge_takes_a_failure_and_the_next_task_sees_it(work: Work, schedule: str) -> None:
    work.fails["a"] = ValueError("no carrier")
    flow = work.plan(
        {"a": {}, "good": {}, "bad": {"input": {"why": {"$ref": "error.message"}}}},
        edge("a", "good"),
        edge("a", "bad", on_error=["ValueError"]),
    )
    run = work.run(flow, schedule=schedule)
    assert (run.status, run.state.outputs) == ("completed", {"bad": {"by": "bad", "why": "no carrier"}})
    assert work.statuses() == {"a": "skipped", "good": "skipped", "bad": "completed"}


@pytest.mark.parametrize("schedule", ["eager", "layered"])
@pytest.mark.parametrize(
    ("on_error", "guard"), [(["KeyError"], None), (["recoverable"], None), (True, "error.type == 'KeyError'")]
)
def test_a_failure_that_no_error_edge_takes_fails_the_run(
    work: Work, on_error: Any, guard: str | None, schedule: str
) -> None:
    work.fails["a"] = ValueError("no carrier")
    flow = work.plan({"a": {}, "bad": {}}, edge("a", "bad", guard, on_error=on_error))
    with pytest.raises(hf.RunFailed, match="no carrier"):
        work.run(flow, schedule=schedule)
    del work.fails["a"]
    assert work.resume().status == "completed"
    assert work.statuses() == {"a": "completed", "bad": "skipped"}
    assert work.calls == ["a", "a"]


def test_a_guard_on_an_error_edge_that_cannot_be_evaluated_fails_the_run_with_both_reasons(
    work: Work,
) -> None:
    work.fails["a"] = ValueError("no carrier")
    flow = work.plan(
        {"a": {}, "bad": {}},
        edge("a", "bad", "context.facts.n / context.facts.zero > 1", on_error=True),
        context={"facts": {"n": 1, "zero": 0}},
    )
    with pytest.raises(hf.RunFailed, match=r"GuardError.*no carrier"):
        work.run(flow)


def test_a_guard_that_errs_keeps_the_completion_and_a_resume_evaluates_only_the_guard(work: Work) -> None:
    flow = work.plan(
        {"a": {}, "b": {}},
        edge("a", "b", "context.facts.n / context.facts.zero > 1"),
        context={"facts": {"n": 17, "zero": 0}},
    )
    with pytest.raises(hf.RunFailed, match="GuardError") as failed:
        work.run(flow)
    assert "17" not in str(failed.value)
    assert work.calls == ["a"]
    run = work.resume(edit={"context": {"facts": {"n": 17, "zero": 2}}})
    assert (run.status, work.calls) == ("completed", ["a", "b"])
    assert len(work.events("GuardEvaluated")) == 1


def test_a_resume_needs_only_the_capabilities(work: Work, tmp_path: Path) -> None:
    work.fails["b"] = ValueError("not yet")
    flow = work.plan({"a": {}, "b": {"input": {"of": {"$ref": "outputs.a.by"}}}}, edge("a", "b"))
    with pytest.raises(hf.RunFailed):
        work.run(flow)
    again = Work(tmp_path)
    run = again.resume()
    assert (run.status, run.state.outputs["b"]) == ("completed", {"by": "b", "of": "a"})
    assert again.calls == ["b"]


def test_the_same_run_id_with_another_plan_is_refused(work: Work) -> None:
    work.run(work.plan({"a": {}}))
    work.run(work.plan({"a": {}}))
    assert work.calls == ["a"]
    with pytest.raises(hf.RunExists, match="input"):
        work.run(work.plan({"a": {"input": {"x": 1}}}))
    with pytest.raises(hf.RunExists, match="input"):
        work.run(work.plan({"a": {}}, context={"facts": {"x": 1}}))


@pytest.mark.parametrize("schedule", ["eager", "layered"])
def test_a_task_without_an_output_has_none_in_the_guards_after_it(work: Work, schedule: str) -> None:
    @work.capabilities.capability("guess@1", safe_to_fail=True)
    async def guess(given: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no idea")

    flow = work.plan(
        {"a": {"capability": "guess@1"}, "with": {}, "without": {}},
        edge("a", "with", "has(outputs.a)"),
        edge("a", "without", "!has(outputs.a)"),
    )
    assert work.run(flow, schedule=schedule).status == "completed"
    assert work.statuses() == {"a": "skipped", "with": "skipped", "without": "completed"}


def test_a_task_that_is_skipped_by_hand_gives_the_output_of_the_hand(work: Work) -> None:
    work.fails["a"] = ValueError("no")
    flow = work.plan(
        {"a": {}, "b": {"input": {"of": {"$ref": "outputs.a.by"}}}, "c": {}},
        edge("a", "b", "outputs.a.by == 'hand'"),
        edge("a", "c", "outputs.a.by != 'hand'"),
    )
    with pytest.raises(hf.RunFailed):
        work.run(flow)
    run = hf.skip("r", "a", update={"by": "hand"}, store=work.store, flows=[work.capabilities])
    assert (run.status, run.state.outputs["b"]) == ("completed", {"by": "b", "of": "hand"})
    assert work.statuses()["c"] == "skipped"


def test_a_fork_and_a_rewind_use_the_stored_plan(work: Work, tmp_path: Path) -> None:
    flow = work.plan(
        {"a": {}, "b": {}, "c": {}},
        edge("a", "b"),
        edge("b", "c", "context.facts.n > 3"),
        context={"facts": {"n": 1}},
    )
    assert work.run(flow).status == "completed"
    at = work.events("NodeCompleted")[0].seq
    fork = hf.fork(
        f"r@{at}",
        run_id="f",
        edit={"context": {"facts": {"n": 9}}},
        store=work.store,
        flows=[work.capabilities],
    )
    assert (
        hf.resume(
            fork if isinstance(fork, str) else fork.id, store=work.store, flows=[Work(tmp_path).capabilities]
        ).status
        == "completed"
    )
    assert work.statuses("f") == {"a": "completed", "b": "completed", "c": "completed"}


def test_a_plan_that_was_altered_in_the_store_is_not_executed(work: Work, tmp_path: Path) -> None:
    work.fails["a"] = ValueError("not yet")
    flow = work.plan({"a": {}, "b": {}}, edge("a", "b", "context.facts.n > 3"), context={"facts": {"n": 1}})
    with pytest.raises(hf.RunFailed):
        work.run(flow)
    with closing(apsw.Connection(work.store)) as store:
        ((stored,),) = list(store.execute("select body from definitions"))
        altered = rows.unpack(stored).replace(b"n > 3", b"n < 3")
        store.execute("update definitions set body = ?", (rows.pack(altered),))
    again = Work(tmp_path)
    with pytest.raises(StoreCorrupt, match=r"the plan of run 'r' .* is not what was written"):
        again.resume()
    assert again.calls == []
    assert hf.ledger("r", store=work.store, verify=True).verified is False


def test_a_run_whose_capability_is_missing_names_it(work: Work) -> None:
    work.fails["a"] = ValueError("no")
    with pytest.raises(hf.RunFailed):
        work.run(work.plan({"a": {}}))
    bare = plan.Capabilities("shop")
    with pytest.raises(hf.FlowNotFound, match=r"run 'r' needs 'do@1', which 'shop' does not have"):
        hf.resume("r", store=work.store, flows=[bare])
