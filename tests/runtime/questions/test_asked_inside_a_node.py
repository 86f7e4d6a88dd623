"""Questions that a node asks while it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gates import Plan, answer, refused
from harness import Stage, Work, turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.reading.views import Run
from holdfast.testing.clock import STARTS_AT

# --- asked inside a node -----------------------------------------------------------------------------


def parked(stage: Stage, flow: Flow[Any]) -> Run[Any]:
    """Start or resume `r` until it waits for somebody."""
    known = stage.do(lambda engine: engine.runs())
    run: Run[Any] = stage.resume(flow) if known else stage.run(flow)
    assert run.status == "waiting"
    return run


def refused_if_open(stage: Stage, key: str) -> str:
    """Who answered, as the log says it: the run is over by now."""
    with pytest.raises(hf.ResumeRefused):
        answer(stage, key, "red")
    return str(stage.told("QuestionAnswered")[0].by)


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


def asked(stage: Stage) -> bool:
    try:
        return bool(stage.told("QuestionAsked"))
    except hf.RunNotFound:
        return False


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
    assert "the run has no such open question" in refused(quick, "only.1.1:ask:Now?", "yes")
