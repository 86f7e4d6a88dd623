"""Steps with `idempotent=False`: a run that was interrupted inside one asks before it calls the step again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gates import answer
from harness import Stage, Work

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry, Step
from holdfast.documents.receipts import documents
from holdfast.reading import cases, diagnosis, history, node_diagnosis
from holdfast.reading.node_visits import VisitWanted, show_visit
from holdfast.storage.rows import open_row

ONCE = Step("charge", idempotent=False)


def paying(stage: Stage, calls: list[Any], *, step: Step = ONCE, **options: Any) -> Flow[Any]:
    """Dies inside the first call of its step."""

    def pay(state: Work, ctx: Any) -> Any:
        yield ctx.step("reserve", str, "seat 3")

        def charge() -> Any:
            calls.append(ctx.attempt)
            if len(calls) == 1:
                return stage.dies(ctx)
            return "paid"

        return {"log": [(yield ctx.step(step, charge, type=str))]}

    graph = Graph("pay", Work)
    graph.node(name="pay", **options)(stage.node(pay))
    return graph.chain(START, "pay", END).compile()


def test_a_run_that_died_inside_such_a_step_asks_and_calls_nothing(stage: Stage) -> None:
    calls: list[Any] = []
    flow = paying(stage, calls)
    stage.crash(flow)
    run = stage.resume(flow)
    assert (run.status, calls) == ("waiting", [1])
    (question,) = run.questions
    assert (question.node, question.options, question.about) == (
        "pay",
        ["retry", "skip", "abort"],
        "interrupt",
    )
    assert "has begun the step 'charge', which is not idempotent" in question.text
    assert (question.partial["steps"], question.partial["steps_begun"]) == (["reserve"], ["charge"])
    for _ in range(3):
        assert stage.resume(flow).questions == (question,)
    assert calls == [1]
    assert stage.problems() == []


@pytest.mark.parametrize("on_interrupt", ["rerun", "skip"])
def test_it_is_asked_whatever_the_node_says_about_interruptions(stage: Stage, on_interrupt: Any) -> None:
    calls: list[Any] = []
    flow = paying(stage, calls, on_interrupt=on_interrupt)
    stage.crash(flow)
    assert (stage.resume(flow).status, calls) == ("waiting", [1])


def test_the_answer_retry_calls_the_step_again(stage: Stage) -> None:
    calls: list[Any] = []
    flow = paying(stage, calls)
    stage.crash(flow)
    stage.resume(flow)
    answer(stage, "pay", "retry", by="ann")
    run = stage.resume(flow)
    assert (run.status, run.state.log, calls) == ("completed", ["paid"], [1, 2])
    assert [one.attempt for one in stage.told("StepStarted")] == [1, 2]
    assert stage.problems() == []


def test_the_answer_skip_puts_an_update_in_place_of_the_node(stage: Stage) -> None:
    calls: list[Any] = []
    flow = paying(stage, calls)
    stage.crash(flow)
    stage.resume(flow)
    answer(stage, "pay", "skip", flow, update={"log": ["the bank says paid"]})
    run = stage.resume(flow)
    assert (run.state.log, calls) == (["the bank says paid"], [1])
    assert stage.problems() == []


def test_a_crash_before_or_after_the_step_asks_nothing(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step("before", str, "")
        yield ctx.step(ONCE, str, "")
        yield ctx.step("after", str, "")

    flow = stage.one(body)
    whole = stage.run(flow)
    kinds = stage.kinds()
    begun = kinds.index("StepStarted") + 1
    assert kinds[begun] == "StepCompleted"
    for seq in range(1, whole.seq):
        run = stage.verb(flow, "resume", url=stage.crashed_at(seq))
        assert run.status == ("waiting" if seq == begun else "completed"), seq


def test_a_decision_to_retry_covers_a_crash_before_the_step_is_called_again(stage: Stage) -> None:
    calls: list[Any] = []
    flow = paying(stage, calls)
    stage.crash(flow)
    stage.resume(flow)
    answer(stage, "pay", "retry")
    stage.resume(flow)
    second = [row.seq for row in stage.store.events("r", kinds=("NodeStarted",))][-1]
    run = stage.verb(flow, "resume", url=stage.crashed_at(second))
    assert (run.status, run.state.log) == ("completed", ["paid"])


class Declined(Exception):
    """An outcome."""


@pytest.mark.parametrize(
    ("raised", "status", "kept"),
    [
        (Declined("no"), "failed", ["StepFailed"]),
        (ValueError("no such card"), "failed", ["StepFailed"]),
        (hf.Recoverable("not sent"), "failed", ["StepFailed"]),
        (ConnectionError("no reply"), "waiting", []),
        (TimeoutError("no reply"), "waiting", []),
    ],
)
def test_an_exception_that_does_not_say_what_happened_is_asked_about(
    stage: Stage, raised: Exception, status: str, kept: list[str]
) -> None:
    calls: list[Any] = []

    def charge() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise raised
        return "paid"

    def body(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.step(Step("charge", raises=(Declined,), idempotent=False), charge))]}

    flow = stage.one(body, retry=Retry(attempts=1))
    if status == "failed":
        run = stage.fails(flow)
    else:
        run = stage.run(flow)
        assert "has begun the step 'charge'" in run.questions[0].text
        assert type(raised).__name__ in run.questions[0].text
    assert (run.status, len(calls)) == (status, 1)
    assert [kind for kind in stage.kinds() if kind == "StepFailed"] == kept
    assert stage.problems() == []


def test_a_retry_of_such_a_step_applies_only_where_it_says_so(quick: Stage) -> None:
    calls: list[Any] = []

    def charge() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("no reply")
        return "paid"

    def body(state: Work, ctx: Any) -> Any:
        step = Step("charge", idempotent=False, retry=Retry(attempts=3, backoff=0.0))
        return {"log": [(yield ctx.step(step, charge))]}

    run = quick.run(quick.one(body))
    assert (run.state.log, len(calls), len(quick.told("StepStarted"))) == (["paid"], 3, 3)


def test_an_item_that_died_inside_such_a_step_is_asked_about(stage: Stage) -> None:
    calls: list[Any] = []

    def pay(item: int, ctx: Any) -> Any:
        def charge() -> Any:
            calls.append(item)
            if calls == [0]:
                return stage.dies(ctx)
            return item

        return {"log": [(yield ctx.step(ONCE, charge, type=int))]}

    graph = Graph("pay", Work)
    graph.node(name="pay", each=lambda state: [0], limit=1)(stage.node(pay))
    flow = graph.chain(START, "pay", END).compile()
    stage.crash(flow)
    run = stage.resume(flow)
    assert (run.status, run.questions[0].partial["steps_begun"]) == ("waiting", ["charge"])
    answer(stage, "pay", "retry")
    run = stage.resume(flow)
    assert (run.status, run.state.log, calls) == ("completed", [0], [0, 0])
    assert stage.problems() == []


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_the_beginning_is_durable_before_the_call_whatever_the_durability(
    quick: Stage, durability: Any
) -> None:
    seen: list[list[str]] = []

    def charge() -> str:
        seen.append(quick.kinds())
        return "paid"

    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step(ONCE, charge)

    flow = quick.one(body)
    quick.run(flow, durability=durability)
    assert seen[0][-1] == "StepStarted"


def test_a_crashed_run_says_that_a_resume_asks(stage: Stage) -> None:
    calls: list[Any] = []
    flow = paying(stage, calls)
    stage.crash(flow)
    row = stage.store.run("r")
    state = history.load(stage.store, "r")
    assert "may have had an effect: resume asks a question and does not run it" in str(
        diagnosis.diagnose(cases.case_of(stage.store, row), stage.clock.now()).remedies
    )
    (node,) = node_diagnosis.diagnose_nodes(row, state, flow.definition.nodes, stage.clock.now())
    assert "resuming asks whether to run the node again" in node.remedies[0].words
    of_row = cases.case_of_row(stage.store, row)
    assert of_row is not None
    assert of_row.situation.in_doubt == ("pay",)


def test_a_fork_asks_before_it_repeats_a_visit_that_has_begun_such_a_step(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.step(ONCE, str, "paid"))]}

    flow = quick.one(body)
    quick.run(flow)
    fork = quick.do(lambda engine: engine.fork("r@1", run_id="f"), flow)
    assert fork is not None
    run = quick.do(lambda engine: engine.resume("f"), flow)
    assert (run.status, run.questions[0].options) == ("waiting", ["run", "skip", "abort"])
    first = quick.store.events("f", limit=1)[0].seq
    quick.do(lambda engine: engine.fork(f"f@{first}", run_id="g"), flow)
    again = quick.do(lambda engine: engine.resume("g"), flow)
    assert (again.status, again.questions[0].options) == ("waiting", ["run", "skip", "abort"])


def test_a_receipt_names_outcomes_and_steps_in_doubt(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        def charge() -> None:
            raise ConnectionError("no reply")

        def decline() -> None:
            raise Declined("no")

        try:
            yield ctx.step(Step("ask", raises=(Declined,)), decline)
        except Declined:
            yield ctx.step(ONCE, charge)

    flow = quick.one(body)
    quick.run(flow)
    row = quick.store.run("r")
    log = [open_row(found, quick.store.blobs) for found in quick.store.events("r")]
    made = documents(row, log, lambda fingerprint: flow.definition)
    (receipt,) = [
        json.loads(text) for name, text in made.items() if b'"steps_begun"' in text and ".1.1.1" in name
    ]
    assert receipt["steps_raised"] == {"ask": "Declined: no"}
    assert receipt["steps_begun"] == ["charge"]


def test_the_view_of_a_visit_has_the_exception_of_a_step(quick: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        def decline() -> None:
            raise Declined("no")

        try:
            yield ctx.step(Step("ask", raises=(Declined,), retry=Retry(attempts=2)), decline)
        except Declined:
            yield ctx.step("undo", str, "undone")

    flow = quick.one(body)
    quick.run(flow)
    visit = show_visit(quick.store, quick.store.run("r"), flow.definition, "only", VisitWanted())
    assert visit is not None
    assert [(step.name, step.raised) for step in visit.steps] == [("ask", "Declined: no"), ("undo", None)]
