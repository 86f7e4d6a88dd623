"""Questions: asked in the log first, answered once and by somebody, and only an approval lets a gated node run."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from harness import Stage, Work, turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph, append
from holdfast.errors import AnswerRefused
from holdfast.reading.views import Run
from holdfast.testing.clock import STARTS_AT


@pytest.fixture(params=["memory", "sqlite"])
def quick(request: Any, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(request.param, tmp_path)
    yield found
    found.close()


@pytest.fixture(
    params=[(kind, colour) for kind in ("memory", "sqlite") for colour in ("async", "def")], ids="-".join
)
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(request.param[0], tmp_path, request.param[1])
    yield found
    found.close()


def answer(stage: Stage, key: str, value: Any, *flows: Flow[Any], **named: Any) -> Run[Any]:
    """From an engine that knows no flow, unless one is given."""
    run: Run[Any] = stage.do(lambda engine: engine.answer("r", key, value, **named), *flows)
    return run


def refused(stage: Stage, key: str, value: Any, *flows: Flow[Any], **named: Any) -> str:
    """Why the answer is not taken. Nothing is recorded."""
    before = stage.kinds()
    with pytest.raises(AnswerRefused) as told:
        answer(stage, key, value, *flows, **named)
    assert stage.kinds() == before
    assert told.value.run_id == "r"
    return str(told.value)


class Gate:
    """`write -> publish -> after`, where `publish` is gated in one of two ways."""

    def __init__(self, how: str, **options: Any) -> None:
        self.ran: list[str] = []
        graph = Graph("gate", Work)
        for name in ("write", "publish", "after"):
            gated = name == "publish" and how == "approve"
            graph.node(name=name, approve="Publish?" if gated else None)(self.body)
        if how == "node":
            graph.ask("may", "Publish?", **options)
            graph.chain(START, "write", "may", "publish", "after", END)
        else:
            graph.chain(START, "write", "publish", "after", END)
        self.flow = graph.compile()
        self.key = "may.1.1" if how == "node" else "publish.1.1"

    def body(self, state: Work, ctx: hf.Context) -> dict[str, Any]:
        self.ran.append(ctx.node)
        return {"log": [ctx.node]}


@pytest.fixture(params=["approve", "node"])
def gate(request: Any) -> Gate:
    return Gate(request.param)


# --- gates and question nodes -------------------------------------------------------------------------


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
    with pytest.raises(hf.ResumeRefused, match=r"asks first.*force"):
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


# --- which question -----------------------------------------------------------------------------------


def two_gates() -> tuple[Flow[Any], list[str]]:
    ran: list[str] = []

    def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        ran.append(ctx.node)
        return {"log": [ctx.node]}

    graph = Graph("two", Work)
    for name in ("left", "right"):
        graph.node(name=name, approve=f"{name}?")(body)
        graph.chain(START, name, END)
    return graph.compile(), ran


def test_two_questions_are_open_at_once_and_each_gets_its_own_answer(quick: Stage) -> None:
    flow, ran = two_gates()
    run = quick.run(flow)
    assert sorted(question.key for question in run.questions) == ["left.1.1", "right.1.1"]
    answer(quick, "right", "approve")
    run = quick.resume(flow)
    assert (run.status, ran, [question.key for question in run.questions]) == (
        "waiting",
        ["right"],
        ["left.1.1"],
    )
    answer(quick, "left.1.1", "reject")
    with pytest.raises(hf.RunFailed):
        quick.resume(flow)
    assert ran == ["right"]


def test_an_unknown_question_is_refused_with_what_might_be_meant(quick: Stage) -> None:
    flow, _ = two_gates()
    quick.run(flow)
    assert "did you mean 'left" in refused(quick, "lfet.1.1", "approve")
    told = refused(quick, "something else", "approve")
    assert "left.1.1" in told
    assert "right.1.1" in told
    with pytest.raises(hf.RunNotFound):
        quick.do(lambda engine: engine.answer("nobody", "left", "approve"))


def test_a_run_that_asks_nothing_says_so(quick: Stage) -> None:
    flow, _ = two_gates()
    quick.do(lambda engine: engine.start(flow, run_id="r"))
    assert "asks nothing" in refused(quick, "left", "approve")


def test_a_run_that_is_over_cannot_be_answered(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    quick.do(lambda engine: engine.cancel("r"))
    before = quick.kinds()
    with pytest.raises(hf.ResumeRefused, match="'r' was not answered: it is cancelled"):
        answer(quick, gate.key, "approve")
    assert quick.kinds() == before
    assert quick.do(lambda engine: engine.questions()) == []


def test_a_question_of_another_run_is_not_answered(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    quick.run(gate.flow, run_id="other")
    quick.do(lambda engine: engine.answer("other", gate.key, "approve"))
    assert quick.do(lambda engine: engine.get("r")).status == "waiting"
    assert gate.ran == ["write", "write"]


# --- which answers ------------------------------------------------------------------------------------


def test_an_answer_outside_the_options_is_refused_and_nothing_is_recorded(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    assert "did you mean 'approve'" in refused(quick, gate.key, "aprove")
    for wrong in (None, True, 1, ["approve"], {"a": 1}, "", "Approve"):
        assert "options" in refused(quick, gate.key, wrong)
    assert quick.resume(gate.flow).status == "waiting"
    assert gate.ran == ["write"]


def test_an_answer_that_cannot_be_kept_is_refused(quick: Stage) -> None:
    graph = Graph("ask", dict)
    graph.ask("what", "What?", into="what", schema=dict[str, Any])
    flow = graph.chain(START, "what", END).compile()
    quick.run(flow, {})
    before = quick.kinds()
    for wrong in (object(), {"a": float("nan")}, {"a": "\0"}, {1: 2}):
        with pytest.raises(hf.HoldfastError, match="answer"):
            answer(quick, "what", wrong)
    assert quick.kinds() == before


def test_answering_twice_is_refused_naming_who_and_what(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    answer(quick, gate.key, "approve", by="ann")
    for key in (gate.key, gate.key.partition(".")[0]):
        told = refused(quick, key, "reject", by="bob")
        assert "'approve'" in told
        assert "ann" in told
    assert quick.resume(gate.flow).status == "completed"


def test_an_agent_answers_through_the_same_door(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    answer(quick, gate.key, "approve", by="agent:reviewer", reason="no secrets in it", confidence=0.8)
    (event,) = quick.told("QuestionAnswered")
    assert (event.by, event.reason, event.confidence) == ("agent:reviewer", "no secrets in it", 0.8)
    assert quick.resume(gate.flow).status == "completed"


@pytest.mark.parametrize("confidence", [-0.1, 1.1, "sure", float("nan")])
def test_a_confidence_is_a_share(quick: Stage, gate: Gate, confidence: Any) -> None:
    quick.run(gate.flow)
    before = quick.kinds()
    with pytest.raises(hf.SettingError, match="confidence"):
        answer(quick, gate.key, "approve", confidence=confidence)
    assert quick.kinds() == before


def test_a_question_without_into_continues_only_on_its_first_option(quick: Stage) -> None:
    for number, (option, status) in enumerate(
        (("ship", "completed"), ("hold", "failed"), ("never", "failed"))
    ):
        gate = Gate("node", options=["ship", "hold", "never"])
        run_id = f"r{number}"
        quick.run(gate.flow, run_id=run_id)
        quick.do(lambda engine, o=option, r=run_id: engine.answer(r, "may", o))
        if status == "failed":
            with pytest.raises(hf.RunFailed, match="QuestionRefused"):
                quick.do(lambda engine, r=run_id: engine.resume(r), gate.flow)
        else:
            assert quick.do(lambda engine, r=run_id: engine.resume(r), gate.flow).status == "completed"
        assert ("publish" in gate.ran) == (status == "completed")


# --- answers into fields ------------------------------------------------------------------------------


@dataclass
class Plan:
    city: str
    days: int = 1


@dataclass
class Trip:
    mood: Literal["calm", "wild"] = "calm"
    seats: int = 0
    plan: Plan | None = None
    notes: Annotated[list[str], append] = field(default_factory=list)


def picky(old: str, new: str) -> str:
    if new == "bad":
        raise ValueError("not that word")
    return old + new


@dataclass
class Picky:
    words: Annotated[str, picky] = ""


def asking(into: str, **options: Any) -> Flow[Any]:
    graph = Graph("ask", Trip)
    graph.ask("what", "What?", into=into, **options)
    return graph.chain(START, "what", END).compile()


@pytest.mark.parametrize(
    ("into", "right", "wrong", "found"),
    [
        ("mood", "wild", "sad", "wild"),
        ("seats", 3, "three", 3),
        ("seats", 0, 1.5, 0),
        ("plan", {"city": "Rome"}, {"town": "Rome"}, Plan("Rome")),
        ("plan", None, {"city": 3}, None),
    ],
)
def test_an_answer_fits_the_field_that_takes_it(
    quick: Stage, into: str, right: Any, wrong: Any, found: Any
) -> None:
    flow = asking(into)
    quick.run(flow)
    refused(quick, "what", wrong)
    refused(quick, "what", wrong, flow)
    answer(quick, "what", right)
    run = quick.resume(flow)
    assert getattr(run.state, into) == found
    assert (run.status, run.nodes["what"].status) == ("completed", "completed")


def test_an_answer_into_a_field_with_a_reducer_is_what_it_takes(quick: Stage) -> None:
    flow = asking("notes", schema=list[str])
    quick.run(flow, Trip(notes=["old"]))
    answer(quick, "what", ["new"])
    assert quick.resume(flow).state.notes == ["old", "new"]


def test_options_may_lead_into_a_field_and_none_of_them_refuses(quick: Stage) -> None:
    flow = asking("mood", options=["calm", "wild"])
    quick.run(flow)
    refused(quick, "what", "sad")
    answer(quick, "what", "wild")
    assert quick.resume(flow).state.mood == "wild"


def test_a_question_may_be_put_in_words_that_depend_on_the_state(quick: Stage) -> None:
    graph = Graph("ask", Trip)
    graph.ask("may", lambda state: f"Book {state.seats} seats?")
    flow = graph.chain(START, "may", END).compile()
    assert quick.run(flow, Trip(seats=3)).questions[0].text == "Book 3 seats?"


def test_a_question_that_cannot_be_put_fails_its_node_and_is_put_by_a_resume(quick: Stage) -> None:
    broken = [True]

    def words(state: Trip) -> str:
        if broken:
            raise KeyError("no words")
        return "Now?"

    graph = Graph("ask", Trip)
    graph.ask("may", words)
    flow = graph.chain(START, "may", END).compile()
    failed = quick.fails(flow)
    assert (failed.error.type, failed.failed_node, failed.error.kind) == ("KeyError", "may", "partial")
    with pytest.raises(hf.RunFailed, match="no words"):
        quick.resume(flow)
    broken.clear()
    assert quick.resume(flow).questions[0].text == "Now?"
    answer(quick, "may", "reject")
    with pytest.raises(hf.RunFailed, match="QuestionRefused"):
        quick.resume(flow)
    (question,) = quick.resume(flow, force=True).questions
    answer(quick, question.key, "approve")
    assert quick.resume(flow).status == "completed"
    assert quick.problems() == []


def test_an_answer_that_cannot_be_merged_is_asked_for_again(quick: Stage) -> None:
    graph = Graph("ask", Picky)
    graph.ask("what", "What?", into="words")
    flow = graph.chain(START, "what", END).compile()
    quick.run(flow)
    answer(quick, "what", "bad")
    with pytest.raises(hf.RunFailed, match="not that word"):
        quick.resume(flow)
    (question,) = quick.resume(flow).questions
    answer(quick, question.key, "good")
    assert quick.resume(flow).state.words == "good"
    assert quick.problems() == []


def test_where_the_answer_leads_is_up_to_a_branch(quick: Stage) -> None:
    graph = Graph("ask", Trip)
    graph.ask("what", "What mood?", into="mood", options=["calm", "wild"])
    for name in ("rest", "dance"):
        graph.node(name=name)(lambda state, ctx: {"notes": [ctx.node]})
        graph.edge(name, END)
    graph.edge(START, "what").branch(
        "what", lambda s: "dance" if s.mood == "wild" else "rest", to=["rest", "dance"]
    )
    flow = graph.compile()
    quick.run(flow)
    answer(quick, "what", "wild")
    assert quick.resume(flow).state.notes == ["dance"]


# --- nobody answers -----------------------------------------------------------------------------------


def test_a_question_that_nobody_answers_in_time_fails_the_run_and_runs_nothing(quick: Stage) -> None:
    gate = Gate("node", timeout=60)
    run = quick.run(gate.flow)
    assert (run.status, quick.store.run("r").due_at) == ("waiting", STARTS_AT + 60)
    quick.clock.advance(59)
    assert quick.resume(gate.flow).status == "waiting"
    quick.clock.advance(1)
    with pytest.raises(hf.RunFailed) as failed:
        quick.resume(gate.flow)
    error = failed.value.run.error
    assert (error.type, error.kind, gate.ran) == ("QuestionTimeout", "partial", ["write"])
    assert "'Publish?'" in error.message
    run = quick.resume(gate.flow)
    assert (run.status, len(run.questions)) == ("waiting", 1), "it is asked again, with new time"
    answer(quick, "may", "approve")
    assert quick.resume(gate.flow).status == "completed"
    assert quick.problems() == []


def test_an_answer_that_comes_too_late_is_refused(quick: Stage) -> None:
    """The time has come and nobody has taken the run up: it is over for the question all the same."""
    gate = Gate("node", timeout=60)
    quick.run(gate.flow)
    quick.clock.advance(61)
    assert "in time" in refused(quick, "may", "approve")
    with pytest.raises(hf.RunFailed, match="QuestionTimeout"):
        quick.resume(gate.flow)
    assert gate.ran == ["write"]


def test_a_timeout_may_choose_an_option_but_never_the_approving_one(quick: Stage) -> None:
    gate = Gate("node", timeout=60, on_timeout="reject")
    quick.run(gate.flow)
    quick.clock.advance(60)
    with pytest.raises(hf.RunFailed, match="QuestionRefused"):
        quick.resume(gate.flow)
    (event,) = quick.told("QuestionAnswered")
    assert (event.answer, event.by, event.refused, gate.ran) == ("reject", "timeout", True, ["write"])
    with pytest.raises(hf.GraphError, match="without anybody's approval"):
        Gate("node", timeout=60, on_timeout="approve")


def test_a_timeout_may_choose_what_a_field_takes(quick: Stage) -> None:
    flow = asking("mood", options=["calm", "wild"], timeout=60, on_timeout="wild")
    quick.run(flow)
    quick.clock.advance(60)
    assert quick.resume(flow).state.mood == "wild"


# --- while others run ---------------------------------------------------------------------------------


def busy(gates: dict[str, asyncio.Event]) -> Flow[Any]:
    """A gated branch beside one that is busy until the test lets it go."""

    async def work(state: Work) -> dict[str, Any]:
        gates["in"].set()
        await gates["open"].wait()
        return {"log": ["busy"]}

    graph = Graph("busy", Work)
    graph.node(name="busy")(work)
    graph.node(name="publish", approve="Publish?")(lambda state: {"log": ["publish"]})
    graph.chain(START, "busy", END).chain(START, "publish", END)
    return graph.compile()


def test_parallel_branches_go_on_while_one_is_asked_about(quick: Stage) -> None:
    ran: list[str] = []

    def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        ran.append(ctx.node)
        return {"log": [ctx.node]}

    graph = Graph("branches", Work)
    graph.node(name="publish", approve="Publish?")(body)
    for name in ("b", "c", "d"):
        graph.node(name=name)(body)
    graph.chain(START, "publish", END).chain(START, "b", "c", "d", END)
    run = quick.run(graph.compile())
    assert (run.status, ran) == ("waiting", ["b", "c", "d"])


@pytest.mark.parametrize("where", ["the same engine", "another engine"])
def test_a_run_is_answered_while_it_executes(quick: Stage, where: str) -> None:
    """From another engine: through the inbox, and within the time that takes."""
    gates: dict[str, asyncio.Event] = {}
    flow = busy(gates)

    async def use(engine: hf.Engine) -> Run[Any]:
        gates.update({"in": asyncio.Event(), "open": asyncio.Event()})
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await gates["in"].wait()
        if where == "another engine":
            async with quick.engine() as other:
                await other.answer("r", "publish", "approve", by="ann")
        else:
            await engine.answer("r", "publish", "approve", by="ann")
        await until(lambda: any(event.node == "publish" for event in quick.told("NodeCompleted")))
        gates["open"].set()
        return await run

    run = quick.do(use, flow)
    assert (run.status, run.state.log) == ("completed", ["publish", "busy"])
    assert quick.told("QuestionAnswered")[0].by == "ann"
    assert quick.problems() == []


def test_of_two_answers_at_once_the_first_counts_and_the_other_is_told(quick: Stage) -> None:
    gates: dict[str, asyncio.Event] = {}
    flow = busy(gates)

    async def use(engine: hf.Engine) -> list[Any]:
        gates.update({"in": asyncio.Event(), "open": asyncio.Event()})
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await gates["in"].wait()
        async with quick.engine() as one, quick.engine() as two:
            ends = await asyncio.gather(
                one.answer("r", "publish", "approve", by="ann"),
                two.answer("r", "publish", "reject", by="bob"),
                return_exceptions=True,
            )
        gates["open"].set()
        await asyncio.gather(run, return_exceptions=True)
        return ends

    first, second = quick.do(use, flow)
    assert isinstance(first, Run)
    assert isinstance(second, AnswerRefused)
    assert "'approve' by ann" in str(second)
    assert [event.by for event in quick.told("QuestionAnswered")] == ["ann"]


def test_an_answer_that_is_left_in_the_inbox_and_comes_too_late_is_told_so(tmp_path: Path) -> None:
    """In time when it was given, and too late when whoever executes the run finds it."""
    stage = Stage("memory", tmp_path, still=True)
    gates: dict[str, asyncio.Event] = {}

    async def work(state: Work) -> None:
        gates["in"].set()
        await gates["open"].wait()

    graph = Graph("busy", Work)
    graph.node(name="busy")(work)
    graph.ask("may", "Publish?", timeout=60)
    graph.chain(START, "busy", END).chain(START, "may", END)
    flow = graph.compile()

    async def use(engine: hf.Engine) -> Any:
        gates.update({"in": asyncio.Event(), "open": asyncio.Event()})
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await gates["in"].wait()
        stage.clock.advance(59.95)
        await turns(20)  # the inbox was looked at just now, and will be again in 0.2 s
        async with stage.engine() as other:
            answering = asyncio.create_task(other.answer("r", "may", "approve"))
            while not answering.done():
                await turns(20)
                stage.clock.advance(0.1)
        gates["open"].set()
        await asyncio.gather(run, return_exceptions=True)
        return answering.exception()

    assert isinstance(stage.do(use, flow, lease_ttl=1000.0), AnswerRefused)
    assert stage.told("QuestionAnswered") == []


def test_an_answer_to_a_paused_run_waits_for_its_resume(quick: Stage, gate: Gate) -> None:
    quick.run(gate.flow)
    quick.do(lambda engine: engine.pause("r"))
    assert answer(quick, gate.key, "approve").status == "paused"
    assert gate.ran == ["write"]
    assert quick.resume(gate.flow).status == "completed"


def test_an_answer_to_an_interrupted_run_waits_for_its_resume(quick: Stage) -> None:
    gates: dict[str, asyncio.Event] = {}
    flow = busy(gates)

    async def use(engine: hf.Engine) -> Run[Any]:
        gates.update({"in": asyncio.Event(), "open": asyncio.Event()})
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await gates["in"].wait()
        engine.stop("deploy")
        return await run

    assert quick.do(use, flow, grace=0.0).status == "interrupted"
    answer(quick, "publish", "approve")

    async def again(engine: hf.Engine) -> Run[Any]:
        gates.update({"in": asyncio.Event(), "open": asyncio.Event()})
        gates["open"].set()
        return await engine.resume("r")

    assert quick.do(again, flow).status == "completed"


# --- asked inside a node ------------------------------------------------------------------------------


def parked(stage: Stage, flow: Flow[Any]) -> Run[Any]:
    """Start or resume `r` until it waits for somebody."""
    known = stage.do(lambda engine: engine.runs())
    run: Run[Any] = stage.resume(flow) if known else stage.run(flow)
    assert run.status == "waiting"
    return run


def test_a_node_asks_and_goes_on_with_the_answer(stage: Stage) -> None:
    entered: list[int] = []
    done: list[str] = []

    def body(state: Work, ctx: Any) -> Any:
        entered.append(ctx.attempt)
        yield ctx.step("draft", done.append, "draft")
        said = yield ctx.ask("Which?", options=["red", "blue"])
        return {"log": [said]}

    flow = stage.one(body)
    (question,) = parked(stage, flow).questions
    assert (question.key, question.text, question.options) == (
        "only.1.1:ask:Which?",
        "Which?",
        ["red", "blue"],
    )
    assert "did you mean 'blue'" in refused(stage, question.key, "blu")
    assert answer(stage, "only", "blue", by="ann").status == "pending"
    run = stage.resume(flow)
    assert (run.state.log, entered, done) == (["blue"], [1, 1], ["draft"])
    assert "ann" in refused_if_open(stage, question.key)
    assert stage.problems() == []


def refused_if_open(stage: Stage, key: str) -> str:
    """Who answered, as the log says it: the run is over by now."""
    with pytest.raises(hf.ResumeRefused):
        answer(stage, key, "red")
    return str(stage.told("QuestionAnswered")[0].by)


def test_the_question_of_a_node_is_durable_before_the_node_waits_and_anyone_can_answer(quick: Stage) -> None:
    """Answered in place, while the node has not unwound."""
    entered: list[int] = []

    def body(state: Work, ctx: Any) -> Any:
        entered.append(1)
        return {"log": [(yield ctx.ask("Which?", options=["red", "blue"]))]}

    flow = quick.one(body)

    async def use(engine: hf.Engine) -> Run[Any]:
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await until(lambda: asked(quick))
        await engine.answer("r", "only", "red")
        return await run

    assert (quick.do(use, flow).state.log, entered) == (["red"], [1])


def asked(stage: Stage) -> bool:
    try:
        return bool(stage.told("QuestionAsked"))
    except hf.RunNotFound:
        return False


def test_a_node_asks_in_a_loop_and_each_answer_reaches_its_own_question(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        said = []
        for turn in range(3):
            one = yield ctx.ask("More?", options=["yes", "no"], key=turn)
            said.append(one)
        return {"log": said}

    flow = stage.one(body)
    for turn, said in enumerate(("yes", "no", "yes")):
        (question,) = parked(stage, flow).questions
        assert question.key == f"only.1.1:ask:{turn}"
        if turn:
            assert "answered" in refused(stage, f"only.1.1:ask:{turn - 1}", "no")
        answer(stage, question.key, said)
    assert stage.resume(flow).state.log == ["yes", "no", "yes"]


def test_the_same_question_twice_is_refused_unless_it_has_a_key(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.ask("More?", options=["yes", "no"])
        yield ctx.ask("More?", options=["yes", "no"])

    flow = stage.one(body)
    parked(stage, flow)
    answer(stage, "only", "yes")
    with pytest.raises(hf.RunFailed, match=r"More\?.*key="):
        stage.resume(flow)


def test_two_questions_of_one_node_are_told_apart(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        async def both() -> list[Any]:
            return list(
                await asyncio.gather(
                    ctx.ask("Left?", options=["a", "b"]), ctx.ask("Right?", options=["a", "b"])
                )
            )

        return {"log": (yield both())}

    flow = quick.one(body)
    assert len(parked(quick, flow).questions) == 2
    told = refused(quick, "only", "a")
    assert "only.1.1:ask:Left?" in told
    answer(quick, "only.1.1:ask:Right?", "b")
    parked(quick, flow)
    answer(quick, "only.1.1:ask:Left?", "a")
    assert quick.resume(flow).state.log == ["a", "b"]


def test_the_items_of_a_fan_out_ask_each_for_itself(quick: Stage) -> None:
    def body(page: int, ctx: Any) -> Any:
        return {"log": [[page, (yield ctx.ask("Keep?", options=["yes", "no"]))]]}

    graph = Graph("pages", Work)
    graph.node(name="only", each=lambda state: [1, 2])(quick.node(body))
    flow = graph.chain(START, "only", END).compile()
    run = quick.run(flow)
    assert [question.key for question in run.questions] == ["only.1.1[0]:ask:Keep?", "only.1.1[1]:ask:Keep?"]
    answer(quick, "only.1.1[1]:ask:Keep?", "no")
    answer(quick, "only.1.1[0]:ask:Keep?", "yes")
    assert quick.resume(flow).state.log == [[1, "yes"], [2, "no"]]


def test_an_answer_with_a_schema_comes_typed_and_is_checked_by_those_who_know_no_type(stage: Stage) -> None:
    seen: list[Any] = []

    def body(state: Work, ctx: Any) -> Any:
        seen.append((yield ctx.ask("Where to?", schema=Plan)))

    flow = stage.one(body)
    parked(stage, flow)
    assert "days" in refused(stage, "only", {"city": "Rome", "days": "two"})
    assert "city" in refused(stage, "only", {"days": 2})
    answer(stage, "only", {"city": "Rome", "days": 2})
    stage.resume(flow)
    assert seen == [Plan("Rome", 2)]


def test_a_question_without_options_and_schema_takes_any_json(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.ask("Anything?"))]}

    flow = stage.one(body)
    parked(stage, flow)
    answer(stage, "only", {"a": [1, None, "x"]})
    assert stage.resume(flow).state.log == [{"a": [1, None, "x"]}]


def test_a_question_inside_a_node_times_out_there(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        try:
            yield ctx.ask("Now?", options=["yes", "no"], timeout=60)
        except TimeoutError as late:
            return {"log": [type(late).__name__]}

    flow = quick.one(body)
    parked(quick, flow)
    assert quick.store.run("r").due_at == STARTS_AT + 60
    quick.clock.advance(60)
    run = quick.resume(flow)
    assert (run.state.log, run.questions) == (["WaitTimeout"], ())


def test_a_question_inside_a_node_may_have_an_option_for_when_nobody_answers(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.ask("Now?", options=["yes", "no"], timeout=20, on_timeout="no"))]}

    run = quick.run(quick.one(body))
    assert run.state.log == ["no"]
    assert quick.told("QuestionAnswered")[0].by == "timeout"


@pytest.mark.parametrize(
    "how",
    [
        {"on_timeout": "maybe", "options": ["yes", "no"]},
        {"on_timeout": "yes"},
        {"options": "yes"},
        {"options": ["yes", "yes"]},
        {"options": ["yes", 3]},
    ],
    ids=["unknown", "no options", "a text", "twice", "a number"],
)
def test_a_question_that_makes_no_sense_is_refused(quick: Stage, how: Any) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.ask("Now?", **how)

    error = quick.fails(quick.one(body)).error
    assert (error.type, "'only'" in error.message) == ("ContextError", True)
    assert quick.told("QuestionAsked") == []


def test_a_node_that_ends_leaves_no_question_behind(quick: Stage) -> None:
    """It asked beside other work, which then failed."""

    def body(state: Work, ctx: Any) -> Any:
        async def both() -> None:
            task = asyncio.create_task(ctx.ask("Now?", options=["yes", "no"]))
            await until(lambda: asked(quick))
            await turns(3)
            assert not task.done()
            raise ValueError("something else")

        yield both()

    flow = quick.one(body)
    failed = quick.fails(flow)
    assert (failed.error.type, failed.questions) == ("ValueError", ())
    assert "the run does not ask that" in refused(quick, "only.1.1:ask:Now?", "yes")


# --- a node that was cut ------------------------------------------------------------------------------


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
