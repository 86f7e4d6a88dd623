"""Gates and question nodes: asked in the log first, and only an approval lets a gated node run."""

from __future__ import annotations

from typing import Any

import pytest
from gates import Gate, answer, refused
from harness import Stage, Work

import holdfast as hf
from holdfast import END, START, Graph, plan

# --- gates and question nodes ------------------------------------------------------------------------


def test_a_gated_run_waits_with_its_question_in_the_log(quick: Stage, gate: Gate) -> None:
    run = quick.run(gate.flow)
    assert (run.status, gate.ran, run.held_by) == ("waiting", ["write"], None)
    (question,) = run.questions
    assert (question.key, question.text, question.options) == (gate.key, "Publish?", ["approve", "reject"])
    (asked,) = quick.told("QuestionAsked")
    assert (asked.key, asked.about) == (gate.key, "gate")
    (listed,) = quick.do(lambda engine: engine.questions())
    assert (listed.run_id, listed.question.key) == ("r", gate.key)


def test_an_approval_lets_the_gated_node_run(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    answered = answer(quick, gate.key, "approve", by="ann", reason="looks right")
    assert (answered.status, answered.questions, gate.ran) == ("pending", (), ["write"])
    run = quick.resume(gate.flow)
    assert (run.status, run.state.log) == ("completed", ["write", "publish", "after"])
    (event,) = quick.told("QuestionAnswered")
    assert (event.answer, event.refused, event.by, event.reason) == ("approve", False, "ann", "looks right")
    assert quick.problems() == []


def test_a_rejection_never_runs_the_gated_node(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    answer(quick, gate.key, "reject", by="ann")
    with pytest.raises(hf.RunFailed) as failed:
        quick.resume(gate.flow)
    error = failed.value.run.error
    assert (error.kind, error.type) == ("fatal", "QuestionRefused")
    assert all(part in error.message for part in ("'Publish?'", "'reject'", "ann", "force"))
    for verb in ("resume", "run"):
        with pytest.raises((hf.ResumeRefused, hf.RunFailed)):
            quick.do(
                lambda engine, verb=verb: (
                    engine.resume("r") if verb == "resume" else engine.run(gate.flow, run_id="r")
                ),
                gate.flow,
            )
    assert gate.ran == ["write"]
    assert quick.problems() == []


def test_force_asks_again_and_never_runs_the_gated_node(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    answer(quick, gate.key, "reject")
    with pytest.raises(hf.RunFailed):
        quick.resume(gate.flow)
    run = quick.resume(gate.flow, force=True)
    (question,) = run.questions
    assert (run.status, gate.ran) == ("waiting", ["write"])
    assert question.key != gate.key
    assert "answered 'reject'" in refused(quick, gate.key, "approve")
    answer(quick, question.key, "approve")
    assert quick.resume(gate.flow).state.log == ["write", "publish", "after"]
    assert quick.problems() == []


@pytest.mark.parametrize("named", [False, True])
def test_a_refused_gate_is_not_retried_and_the_way_out_is_told(quick: Stage, gate: Gate, named: bool) -> None:
    quick.run(gate.flow)
    answer(quick, gate.key, "reject")
    with pytest.raises(hf.RunFailed):
        quick.resume(gate.flow)
    args = [gate.key.partition(".")[0]] if named else []
    with pytest.raises(hf.ResumeRefused, match=r"has asked a question and has not begun.*force"):
        quick.verb(gate.flow, "retry", *args)
    assert gate.ran == ["write"]


def test_a_refused_gate_can_be_skipped(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    answer(quick, gate.key, "reject")
    with pytest.raises(hf.RunFailed):
        quick.resume(gate.flow)
    run = quick.verb(gate.flow, "skip", gate.key.partition(".")[0], {"log": ["by hand"]})
    assert run.status == "completed"
    assert "by hand" in run.state.log


def test_no_answer_is_no_approval_however_often_the_run_is_taken_up(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    for _ in range(5):
        run = quick.resume(gate.flow)
        assert (run.status, [question.key for question in run.questions]) == ("waiting", [gate.key])
    assert gate.ran == ["write"]
    assert len(quick.told("QuestionAsked")) == 1


def test_a_question_outlives_a_crash_at_every_event(quick: Stage, gate: Gate) -> None:
    """The log of a run that was approved, cut behind each of its events."""
    quick.run(gate.flow)
    answer(quick, gate.key, "approve")
    whole = quick.resume(gate.flow)
    kinds = quick.kinds()
    for seq in range(1, whole.seq):
        gate.ran.clear()
        url = quick.crashed_at(seq)
        run = quick.verb(gate.flow, "resume", url=url)
        if "QuestionAnswered" not in kinds[:seq]:
            assert (run.status, "publish" in gate.ran) == ("waiting", False), seq
            assert [question.key for question in run.questions] == [gate.key]
            quick.verb(gate.flow, "answer", gate.key, "reject", url=url)
            with pytest.raises(hf.RunFailed):
                quick.verb(gate.flow, "resume", url=url)
            assert "publish" not in gate.ran
        else:
            assert run.state.log == ["write", "publish", "after"], seq
        assert quick.problems(url) == []


def test_the_gate_of_a_loop_asks_for_every_visit_and_a_stale_key_answers_nothing(quick: Stage) -> None:
    ran: list[int] = []

    def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        ran.append(ctx.iteration)
        return {"total": 1}

    graph = Graph("loop", Work)
    graph.node(name="turn", approve="Once more?")(body)
    graph.edge(START, "turn").branch("turn", lambda s: END if s.total == 2 else "turn", to=["turn", END])
    flow = graph.compile()
    quick.run(flow)
    answer(quick, "turn.1.1", "approve", by="ann")
    run = quick.resume(flow)
    assert (run.status, ran, [question.key for question in run.questions]) == ("waiting", [1], ["turn.2.1"])
    told = refused(quick, "turn.1.1", "approve", by="bob")
    assert "'approve'" in told
    assert "ann" in told
    answer(quick, "turn", "approve")
    assert (quick.resume(flow).status, ran) == ("completed", [1, 2])


def test_a_visit_that_is_done_over_is_asked_about_again_and_a_stale_key_answers_nothing(quick: Stage) -> None:
    gate = Gate("approve")
    broken = [True]
    graph = Graph("gate", Work)
    graph.node(name="write")(gate.body)
    graph.node(name="publish", approve="Publish?")(gate.body)

    @graph.node
    def after(state: Work) -> None:
        if broken:
            raise ValueError("not yet")

    flow = graph.chain(START, "write", "publish", "after", END).compile()
    quick.run(flow)
    answer(quick, "publish.1.1", "approve")
    with pytest.raises(hf.RunFailed):
        quick.resume(flow)
    assert gate.ran == ["write", "publish"]
    run = quick.resume(flow, restart_at="publish")
    assert (run.status, gate.ran) == ("waiting", ["write", "publish"])
    assert [question.key for question in run.questions] == ["publish.1.2"]
    refused(quick, "publish.1.1", "approve")
    broken.clear()
    answer(quick, "publish.1.2", "approve")
    assert quick.resume(flow).status == "completed"
    assert gate.ran == ["write", "publish", "publish"]
    assert quick.problems() == []


def test_a_rewind_closes_the_questions_behind_that_place(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    run = quick.resume(gate.flow, checkpoint=1)
    assert (run.status, gate.ran) == ("waiting", ["write", "write"])
    (question,) = run.questions
    answer(quick, question.key, "approve")
    assert quick.resume(gate.flow).status == "completed"
    assert quick.problems() == []


def test_a_gated_node_that_fails_is_tried_again_without_another_question(quick: Stage) -> None:
    tries: list[int] = []

    def body(state: Work) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise hf.Recoverable("once")

    graph = Graph("gate", Work)
    graph.node(name="publish", approve="Publish?")(body)
    flow = graph.chain(START, "publish", END).compile()
    quick.run(flow)
    answer(quick, "publish", "approve")
    assert quick.resume(flow).status == "completed"
    assert (len(tries), len(quick.told("QuestionAsked"))) == (2, 1)


def test_a_gated_fan_out_is_asked_about_once(quick: Stage) -> None:
    ran: list[int] = []

    def body(page: int) -> dict[str, Any]:
        ran.append(page)
        return {"log": [page]}

    graph = Graph("gate", Work)
    graph.node(name="publish", approve="Publish all?", each=lambda state: [1, 2, 3])(body)
    flow = graph.chain(START, "publish", END).compile()
    quick.run(flow)
    assert ran == []
    answer(quick, "publish", "approve")
    assert quick.resume(flow).state.log == [1, 2, 3]


def test_a_gate_holds_in_a_layered_run_too(quick: Stage) -> None:
    gate = Gate("approve")
    graph = Graph("layers", Work)
    graph.node(name="publish", approve="Publish?")(gate.body)
    for name in ("beside", "after"):
        graph.node(name=name)(gate.body)
    graph.chain(START, "publish", "after", END).chain(START, "beside", END)
    flow = graph.compile(schedule="layered")
    run = quick.run(flow)
    assert (run.status, gate.ran) == ("waiting", ["beside"])
    answer(quick, "publish", "approve")
    assert quick.resume(flow).status == "completed"
    assert gate.ran == ["beside", "publish", "after"]


# --- which visit waits -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["question", "gate"])
def test_a_node_that_asks_first_shows_the_iteration_that_it_asks_about(quick: Stage, kind: str) -> None:
    graph = Graph("rounds", Work)
    if kind == "question":
        graph.ask("fb", "Again?", options=["again", "done"], into="plain")
    else:
        graph.node(name="fb", approve="Again?")(lambda state: {"total": 1})
    rounds = {"question": lambda s: "fb" if s.plain == "again" else END}
    graph.edge(START, "fb").branch(
        "fb", rounds.get(kind, lambda s: "fb" if s.total < 2 else END), to=["fb", END]
    )
    flow = graph.compile()
    run = quick.run(flow)
    for iteration in (1, 2):
        (question,) = run.questions
        node = run.nodes["fb"]
        place = f"fb.{node.iteration}.{node.execution}"
        assert (place, node.iteration, node.attempt) == (question.key, iteration, 0)
        assert (node.status, node.started_at, node.tries) == ("waiting", 0.0, iteration - 1)
        answer(quick, question.key, "again" if kind == "question" else "approve")
        run = quick.resume(flow)
    if kind == "question":
        answer(quick, run.questions[0].key, "done")
        run = quick.resume(flow)
    assert (run.status, run.nodes["fb"].attempt) == ("completed", 1)


def test_a_gate_that_is_asked_again_shows_the_execution_that_it_asks_about(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    answer(quick, gate.key, "approve")
    quick.resume(gate.flow)
    quick.do(lambda engine: engine.fork("r", checkpoint=1, run_id="f"), gate.flow)
    quick.do(lambda engine: engine.resume("f"), gate.flow)
    run = quick.do(lambda engine: engine.resume("f", replay=True), gate.flow)
    (question,) = run.questions
    node = run.nodes[question.node]
    assert question.key == f"{question.node}.{node.iteration}.{node.execution}" == f"{question.node}.1.2"


# --- a function that has nothing to ask --------------------------------------------------------------


def _asking(how: str, question: Any) -> hf.Flow[Any]:
    graph = Graph("asking", Work)
    first = question if how == "approve" else None
    graph.node(name="publish", approve=first)(lambda state: {"log": ["publish"]})
    if how == "node":
        graph.ask("may", question)
        graph.chain(START, "may", "publish", END)
    else:
        graph.chain(START, "publish", END)
    return graph.compile()


@pytest.mark.parametrize("how", ["approve", "node"])
def test_a_function_that_returns_none_asks_nothing_and_the_node_begins(quick: Stage, how: str) -> None:
    run = quick.run(_asking(how, lambda state: None))
    assert (run.status, run.state.log) == ("completed", ["publish"])
    assert quick.told("QuestionAsked") == []
    (decided,) = quick.told("PolicyDecided")
    assert (decided.node, decided.verdict) == ("publish" if how == "approve" else "may", "allow")
    (one,) = decided.decisions
    assert one.reason == "its function returned None, so there is no question"
    assert quick.problems() == []


@pytest.mark.parametrize("how", ["approve", "node"])
def test_a_function_decides_at_each_visit_whether_there_is_a_question(quick: Stage, how: str) -> None:
    graph = Graph("asking", Work)
    question = lambda state: "Once more?" if len(state.log) == 1 else None  # noqa: E731
    graph.node(name="publish", approve=question if how == "approve" else None)(
        lambda state: {"log": ["publish"]}
    )
    first = "publish"
    if how == "node":
        graph.ask("may", question)
        graph.edge("may", "publish")
        first = "may"
    graph.edge(START, first)
    graph.branch("publish", lambda state: END if len(state.log) == 3 else first, to=[first, END])
    flow = graph.compile()
    assert quick.run(flow).questions[0].text == "Once more?"
    answer(quick, first, "approve")
    run = quick.resume(flow)
    assert (run.status, run.state.log) == ("completed", ["publish"] * 3)
    assert len(quick.told("QuestionAsked")) == 1
    assert quick.problems() == []


def test_a_policy_is_still_asked_if_the_function_of_approve_returns_none(quick: Stage) -> None:
    graph = Graph("asking", Work)
    graph.node(name="publish", approve=lambda state: None)(lambda state: {"log": ["publish"]})
    policy = hf.Policy("four-eyes", lambda asked: plan.ask("Who else has read it?"))
    flow = graph.chain(START, "publish", END).compile(policies=[policy])
    assert quick.run(flow).questions[0].text == "Who else has read it?"
    assert quick.problems() == []


def test_a_node_cannot_ask_none(quick: Stage) -> None:
    graph = Graph("asking", Work)

    @graph.node
    async def publish(state: Work, ctx: hf.Context) -> None:
        await ctx.ask(None)  # type: ignore[arg-type]

    with pytest.raises(hf.RunFailed, match=r"ctx\.ask\(None\) has no question"):
        quick.run(graph.chain(START, "publish", END).compile())
