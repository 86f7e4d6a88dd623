"""Answers: to which question, which are taken, what becomes of them, and what happens while nobody answers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
from gates import Gate, Plan, answer, refused
from harness import Stage, Work, turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph, append
from holdfast.errors import AnswerRefused
from holdfast.reading.views import Run
from holdfast.testing.clock import STARTS_AT

# --- which question ----------------------------------------------------------------------------------


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
    assert "it has none at all" in refused(quick, "left", "approve")


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


# --- which answers -----------------------------------------------------------------------------------


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


# --- answers into fields -----------------------------------------------------------------------------


@dataclass
class Trip:
    mood: Literal["calm", "wild"] = "calm"
    seats: int = 0
    plan: Plan | None = None
    notes: Annotated[list[str], append] = field(default_factory=list)


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


def picky(old: str, new: str) -> str:
    if new == "bad":
        raise ValueError("not that word")
    return old + new


@dataclass
class Picky:
    words: Annotated[str, picky] = ""


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


# --- nobody answers ----------------------------------------------------------------------------------


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
    with pytest.raises(hf.GraphError, match="without an approval"):
        Gate("node", timeout=60, on_timeout="approve")


def test_a_timeout_may_choose_what_a_field_takes(quick: Stage) -> None:
    flow = asking("mood", options=["calm", "wild"], timeout=60, on_timeout="wild")
    quick.run(flow)
    quick.clock.advance(60)
    assert quick.resume(flow).state.mood == "wild"


# --- while others run --------------------------------------------------------------------------------


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


def test_an_answer_may_wait_until_the_run_has_stopped_since(quick: Stage) -> None:
    flow, ran = two_gates()
    quick.run(flow)

    async def use(engine: hf.Engine) -> list[Run[Any]]:
        alone = await engine.answer("r", "left", "approve", wait=0.5)  # no process executes the run
        work = asyncio.create_task(engine.work())
        await until(lambda: ran == ["left"])
        with_worker = await engine.answer("r", "right", "reject", wait=60, id="k")
        again = await engine.answer("r", "right", "reject", wait=60, id="k")
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return [alone, with_worker, again]

    alone, failed, again = quick.do(use, flow)
    assert [question.node for question in alone.questions] == ["right"]
    assert (failed.status, failed.repeated) == ("failed", False)  # returned, not raised
    assert (again.status, again.repeated) == ("failed", True)


def test_of_two_answers_at_once_the_first_counts_and_the_other_is_told(quick: Stage) -> None:
    gates: dict[str, asyncio.Event] = {}
    flow = busy(gates)

    async def use(engine: hf.Engine) -> list[Any]:
        gates.update({"in": asyncio.Event(), "open": asyncio.Event()})
        run = asyncio.create_task(engine.run(flow, run_id="r"))
        await gates["in"].wait()
        async with quick.engine() as one, quick.engine(luck=random.Random(8)) as two:
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


# --- why an answer does not fit -------------------------------------------------------------------------


class Refund(pydantic.BaseModel):
    cents: int = pydantic.Field(gt=0)
    why: str

    @pydantic.field_validator("why")
    @classmethod
    def _is_a_reason(cls, why: str) -> str:
        if len(why) < 3:
            raise ValueError("give a reason")
        return why


class Claim(pydantic.BaseModel):
    refund: Refund | None = None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"cents": -1, "why": "broken"}, "state.refund.cents: Input should be greater than 0"),
        ({"cents": 1, "why": "x"}, "state.refund.why: Value error, give a reason"),
        ({"cent": 1, "why": "broken"}, "state.refund.cents: Field required"),
        ({"cents": "many", "why": "broken"}, "state.refund.cents: Input should be a valid integer"),
    ],
)
def test_an_answer_that_a_pydantic_model_refuses_says_which_part_and_why(
    quick: Stage, given: Any, why: str
) -> None:
    graph: Graph[Claim] = Graph("claim", Claim)
    flow = graph.ask("what", "How much?", into="refund").chain(START, "what", END).compile()
    quick.run(flow, Claim())
    assert why in refused(quick, "what", given, flow)
    answer(quick, "what", {"cents": 5, "why": "broken"}, flow)
    assert quick.resume(flow).state.refund == Refund(cents=5, why="broken")
