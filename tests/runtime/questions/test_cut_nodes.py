"""What is asked about a node that was cut, and what each answer does."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from gates import Gate, answer, refused
from harness import Stage, Work

import holdfast as hf
from holdfast import END, START, Flow, Graph

# --- a node that was cut -----------------------------------------------------------------------------


def cut(stage: Stage, ran: list[str], **options: Any) -> Flow[Any]:
    """Dies in its first life, with a step, a checkpoint and chunks behind it."""

    def pay(state: Work, ctx: Any) -> Any:
        ran.append(f"pay {ctx.attempt}")
        ctx.emit("one")
        ctx.emit("two")
        yield ctx.step("reserve", lambda: "seat 3")
        yield ctx.checkpoint({"page": 7})
        if ran == ["pay 1"]:
            yield stage.dies(ctx)
        return {"log": ["paid"]}

    def after(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint(1)
        ran.append("after")
        return {"log": ["after"]}

    graph = Graph("pay", Work)
    graph.node(name="pay", **options)(stage.node(pay))
    graph.node(name="after")(stage.node(after))
    return graph.chain(START, "pay", "after", END).compile()


@pytest.mark.parametrize(
    "options", [{"idempotent": False}, {"on_interrupt": "ask"}], ids=["not idempotent", "ask"]
)
def test_a_node_that_must_not_run_twice_is_asked_about_with_what_is_partial(
    stage: Stage, options: Any
) -> None:
    ran: list[str] = []
    flow = cut(stage, ran, **options)
    stage.crash(flow)
    run = stage.resume(flow)
    assert (run.status, ran) == ("waiting", ["pay 1"])
    (question,) = run.questions
    assert (question.node, question.options, question.about) == (
        "pay",
        ["retry", "skip", "abort"],
        "interrupt",
    )
    assert question.partial["steps"] == ["reserve"]
    assert question.partial["checkpoint"] == {"page": 7}
    assert "'pay'" in question.text
    for _ in range(5):
        assert stage.resume(flow).questions == (question,)
    assert ran == ["pay 1"]


def test_the_answer_retry_runs_a_cut_node_again_with_its_kept_steps(stage: Stage) -> None:
    ran: list[str] = []
    flow = cut(stage, ran, idempotent=False)
    stage.crash(flow)
    stage.resume(flow)
    assert answer(stage, "pay", "retry", by="ann").status == "pending"
    run = stage.resume(flow)
    assert (run.state.log, ran) == (["paid", "after"], ["pay 1", "pay 2", "after"])
    assert len(stage.told("StepCompleted")) == 1
    assert stage.problems() == []


def test_the_answer_skip_puts_an_update_in_place_of_a_cut_node(stage: Stage) -> None:
    ran: list[str] = []
    flow = cut(stage, ran, idempotent=False)
    stage.crash(flow)
    stage.resume(flow)
    for wrong in ({"lgo": ["x"]}, {"log": 3}, "text"):
        refused(stage, "pay", "skip", flow, update=wrong)
    run = answer(
        stage, "pay", "skip", flow, update={"log": ["found paid"]}, by="ann", reason="the bank says so"
    )
    assert run.questions == ()
    run = stage.resume(flow)
    assert (run.state.log, ran) == (["found paid", "after"], ["pay 1", "after"])
    (skipped,) = stage.told("NodeSkipped")
    assert (skipped.by, skipped.reason) == ("ann", "the bank says so")
    assert stage.problems() == []


def test_the_answer_skip_needs_no_update(stage: Stage) -> None:
    ran: list[str] = []
    flow = cut(stage, ran, idempotent=False)
    stage.crash(flow)
    stage.resume(flow)
    answer(stage, "pay", "skip", flow)
    assert stage.resume(flow).state.log == ["after"]


def test_a_skip_needs_an_engine_that_knows_the_flow(quick: Stage) -> None:
    """It decides the route: that must not be lost where the one who answers has none."""
    ran: list[str] = []
    flow = cut(quick, ran, idempotent=False)
    quick.crash(flow)
    quick.resume(flow)
    before = quick.kinds()
    with pytest.raises(hf.FlowNotFound):
        answer(quick, "pay", "skip", update={"log": ["by hand"]})
    assert quick.kinds() == before
    answer(quick, "pay", "skip", flow, update={"log": ["by hand"]})
    assert quick.resume(flow).state.log == ["by hand", "after"]


def test_the_answer_abort_calls_the_run_off(stage: Stage) -> None:
    ran: list[str] = []
    flow = cut(stage, ran, idempotent=False)
    stage.crash(flow)
    stage.resume(flow)
    run = answer(stage, "pay", "abort", by="ann")
    assert (run.status, run.questions, ran) == ("cancelled", (), ["pay 1"])
    assert stage.told("RunCancelled")[0].by == "ann"
    with pytest.raises(hf.ResumeRefused):
        stage.resume(flow)


def test_an_update_goes_with_skip_only(stage: Stage) -> None:
    ran: list[str] = []
    flow = cut(stage, ran, idempotent=False)
    stage.crash(flow)
    stage.resume(flow)
    assert "skip" in refused(stage, "pay", "retry", flow, update={"log": ["x"]})


def test_a_gate_takes_no_update(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    refused(quick, gate.key, "approve", gate.flow, update={"log": ["x"]})


def test_a_second_crash_asks_a_second_question_and_the_first_answer_does_not_count(stage: Stage) -> None:
    ran: list[str] = []

    def pay(state: Work, ctx: Any) -> Any:
        ran.append(f"pay {ctx.attempt}")
        yield stage.dies(ctx)

    flow = stage.one(pay, idempotent=False)
    stage.crash(flow)
    (first,) = stage.resume(flow).questions
    answer(stage, first.key, "retry")
    stage.crash(flow)
    (second,) = stage.resume(flow).questions
    assert (first.key, second.key, ran) == ("only.1.1.1", "only.1.1.2", ["pay 1", "pay 2"])
    refused(stage, first.key, "retry")


def test_what_a_cut_node_streamed_and_wrote_is_part_of_the_question(tmp_path: Path) -> None:
    stage = Stage("sqlite", tmp_path / "store")
    ran: list[str] = []

    def pay(state: Work, ctx: Any) -> Any:
        ran.append("pay")
        ctx.emit("one")
        ctx.emit("two")
        ctx.artifacts.write("bill.txt", "3 EUR")
        stage.clock.advance(1)  # the stream is spilled
        yield stage.dies(ctx)

    flow = stage.one(pay, idempotent=False)
    base = str(tmp_path / "base")
    stage.crash(flow, run_base=base)
    run = stage.do(lambda engine: engine.resume("r"), flow, run_base=base)
    (question,) = run.questions
    assert question.partial["chunks"] == 2
    assert question.partial["artifacts"] == ["bill.txt"]
    stage.close()


def test_in_a_git_checkout_the_question_shows_what_has_changed(
    quick: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkout"
    folder.mkdir()
    for command in (
        ["git", "init", "-q", "-b", "main"],
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"],
    ):
        subprocess.run(command, cwd=folder, check=True)
    (folder / "half.txt").write_text("half-way")
    monkeypatch.chdir(folder)
    flow = cut(quick, [], idempotent=False)
    quick.crash(flow)
    (question,) = quick.resume(flow).questions
    found = question.partial["checkout"]
    assert (found["branch"], found["changed"]) == ("main", ["half.txt"])
    assert len(found["head"]) == 40
