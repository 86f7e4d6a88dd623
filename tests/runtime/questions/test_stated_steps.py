"""The answer `happened`: a step with `idempotent=False` that was interrupted has happened, and its result is stated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gates import answer, refused
from harness import OnServer, Stage, Work

import holdfast as hf
from holdfast import END, START, Flow, Graph, Step
from holdfast.core import event_encoding, events
from holdfast.documents.receipts import documents
from holdfast.reading import cases, diagnosis
from holdfast.reading.remedies import CommandLine
from holdfast.storage.rows import open_row
from holdfast.testing import check

ONCE = Step("charge", idempotent=False)
SAID: dict[str, Any] = {"by": "ann", "reason": "the bank shows receipt 7"}


@dataclass
class Receipt:
    id: int
    bank: str = "north"


@pytest.fixture(params=["memory-async", "memory-def", "sqlite-async", "sqlite-def", "postgres-async"])
def stage(request: Any, tmp_path: Path) -> Iterator[Stage]:
    kind, colour = request.param.split("-")
    found = OnServer(tmp_path) if kind == "postgres" else Stage(kind, tmp_path, colour)
    yield found
    found.close()


def paying(stage: Stage, calls: list[Any], **options: Any) -> Flow[Any]:
    """Dies inside the first call of its step, whose result is a `Receipt`."""

    def pay(state: Work, ctx: Any) -> Any:
        def charge() -> Any:
            calls.append(ctx.attempt)
            if len(calls) == 1:
                return stage.dies(ctx)
            return Receipt(id=99)

        receipt = yield ctx.step(ONCE, charge, type=Receipt)
        return {"log": [type(receipt).__name__, receipt.id, receipt.bank]}

    graph = Graph("pay", Work)
    graph.node(name="pay", **options)(stage.node(pay))
    return graph.chain(START, "pay", END).compile()


def asked(stage: Stage, flow: Flow[Any]) -> hf.Run[Any]:
    stage.crash(flow)
    run: hf.Run[Any] = stage.resume(flow)
    assert run.status == "waiting"
    return run


def test_the_node_runs_again_and_gets_the_stated_result_without_a_call(stage: Stage) -> None:
    calls: list[Any] = []
    flow = paying(stage, calls)
    (question,) = asked(stage, flow).questions
    (step,) = question.in_doubt
    assert (step.step, step.item) == ("charge", None)
    assert "Receipt" in str(step.result_schema)
    answer(stage, "pay", "happened", result={"id": 7}, **SAID)
    run = stage.resume(flow)
    assert (run.status, run.state.log, calls) == ("completed", ["Receipt", 7, "north"], [1])
    (said,) = stage.told("QuestionAnswered")
    assert (said.answer, said.by, said.reason) == ("happened", "ann", "the bank shows receipt 7")
    assert (said.stated.step, said.stated.result) == ("charge", {"id": 7})
    assert not stage.told("StepCompleted")
    assert stage.problems() == []
    assert not check(stage.store)


def test_the_step_may_be_given_as_a_value_of_its_type(stage: Stage) -> None:
    flow = paying(stage, [])
    asked(stage, flow)
    answer(stage, "pay", "happened", step="charge", result=Receipt(id=8, bank="south"), **SAID)
    assert stage.resume(flow).state.log == ["Receipt", 8, "south"]


def test_a_result_of_another_type_is_refused_and_the_question_stays_open(stage: Stage) -> None:
    flow = paying(stage, [])
    asked(stage, flow)
    assert "result.id: 'seven' is not a whole number" in refused(
        stage, "pay", "happened", result={"id": "seven"}, **SAID
    )
    assert "'id' is missing" in refused(stage, "pay", "happened", result={}, **SAID)
    assert "is not an object" in refused(stage, "pay", "happened", result=None, **SAID)
    assert len(stage.resume(flow).questions) == 1


def test_a_result_that_contains_itself_or_is_nested_too_deeply_is_refused(stage: Stage) -> None:
    asked(stage, paying(stage, []))
    ring: list[Any] = []
    ring.append(ring)
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    for result in (ring, deep):
        with pytest.raises(hf.CodecError, match=r"nested|contains itself"):
            answer(stage, "pay", "happened", result=result, **SAID)


@pytest.mark.parametrize("said", [{}, {"by": "ann"}, {"reason": "why"}, {"by": "", "reason": "why"}], ids=str)
def test_who_states_it_and_why_is_required(stage: Stage, said: dict[str, Any]) -> None:
    asked(stage, paying(stage, []))
    told = refused(stage, "pay", "happened", result={"id": 7}, **said)
    assert "say who states that the step has happened" in told


def test_what_cannot_be_stated_is_refused(stage: Stage) -> None:
    asked(stage, paying(stage, []))
    assert "give the result of the step 'charge'" in refused(stage, "pay", "happened", **SAID)
    assert (
        "did you mean 'charge'"
        in refused(stage, "pay", "happened", step="chrage", result={"id": 7}, **SAID).lower()
    )
    assert "only be given with the answer 'happened'" in refused(
        stage, "pay", "retry", result={"id": 7}, **SAID
    )
    with pytest.raises(hf.SettingError, match="needs the result of the step"):
        answer(stage, "pay", "happened", step="charge", **SAID)


def test_a_node_without_such_a_step_has_nothing_to_state(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        yield ctx.step("look", str, "")
        yield stage.dies(ctx)

    flow = stage.one(body, idempotent=False)
    stage.crash(flow)
    stage.resume(flow)
    told = refused(stage, "only", "happened", result=1, **SAID)
    assert "that can only be a step with idempotent=False" in told


def test_a_step_that_is_no_longer_open_is_refused(stage: Stage) -> None:
    calls: list[Any] = []
    flow = paying(stage, calls)
    asked(stage, flow)
    answer(stage, "pay", "happened", result={"id": 7}, **SAID)
    again = refused(stage, "pay", "happened", result={"id": 8}, **SAID)
    assert "answered 'happened' (the step 'charge') by ann already" in again
    stage.resume(flow)
    with pytest.raises(hf.RunOver):
        answer(stage, "pay", "happened", result={"id": 8}, **SAID)
    assert calls == [1]


def test_a_rewind_to_before_the_node_closes_the_question(stage: Stage) -> None:
    calls: list[Any] = []
    flow = paying(stage, calls)
    (question,) = asked(stage, flow).questions
    stage.resume(flow, restart_at="pay", confirm=["pay"])
    with pytest.raises((hf.RunOver, hf.AnswerRefused)):
        answer(stage, question.key, "happened", result={"id": 7}, **SAID)


def test_of_two_answers_at_the_same_time_one_counts(stage: Stage) -> None:
    flow = paying(stage, [])
    asked(stage, flow)

    async def both(engine: hf.Engine) -> list[Any]:
        return await asyncio.gather(
            *(engine.answer("r", "pay", "happened", result={"id": id}, **SAID) for id in (7, 8)),
            return_exceptions=True,
        )

    told = stage.do(both)
    assert sum(isinstance(one, hf.AnswerRefused) for one in told) == 1
    (said,) = stage.told("QuestionAnswered")
    assert stage.resume(flow).state.log[1] == said.stated.result["id"]


def test_a_repeated_answer_with_the_same_id_changes_nothing(stage: Stage) -> None:
    flow = paying(stage, [])
    asked(stage, flow)
    answer(stage, "pay", "happened", result={"id": 7}, id="once", **SAID)
    again = answer(stage, "pay", "happened", result={"id": 7}, id="once", **SAID)
    assert again.repeated
    assert stage.kinds().count("QuestionAnswered") == 1
    assert stage.resume(flow).state.log == ["Receipt", 7, "north"]


def test_a_crash_at_any_event_after_the_answer_loses_nothing(stage: Stage) -> None:
    if stage.kind == "postgres":
        pytest.skip("a store on a server is not copied")
    calls: list[Any] = []
    flow = paying(stage, calls)
    asked(stage, flow)
    answer(stage, "pay", "happened", result={"id": 7}, **SAID)
    seq = len(stage.kinds())
    whole = stage.resume(flow)
    for at in range(seq, whole.seq):
        run = stage.verb(flow, "resume", url=stage.crashed_at(at))
        assert (run.status, run.state.log, calls) == ("completed", ["Receipt", 7, "north"], [1]), at


def test_of_several_open_steps_each_is_stated_and_then_the_node_runs(stage: Stage) -> None:
    if stage.colour == "def":
        pytest.skip("a plain function calls one step after the other")
    calls: list[str] = []
    graph = Graph("two", Work)

    @graph.node
    async def both(state: Work, ctx: hf.Context) -> dict[str, Any]:
        async def call(name: str) -> int:
            calls.append(name)
            if len(calls) == 2:
                await stage.dies(ctx)
            await asyncio.get_running_loop().create_future()
            return 0

        steps = (ctx.step(Step(name, idempotent=False), call, name) for name in ("charge", "ship"))
        return {"log": list(await asyncio.gather(*steps))}

    flow = graph.chain(START, both, END).compile()
    asked(stage, flow)
    told = refused(stage, "both", "happened", result=1, **SAID)
    assert "choose one of the steps 'charge' and 'ship'" in told
    run = answer(stage, "both", "happened", step="charge", result=1, **SAID)
    assert [one.step for one in run.questions[0].in_doubt] == ["ship"]
    told = refused(stage, "both", "happened", step="charge", result=2, **SAID)
    assert "the step 'charge' has an outcome already" in told
    assert stage.resume(flow).status == "waiting"
    answer(stage, "both", "happened", result=2, **SAID)
    run = stage.resume(flow)
    assert (run.state.log, sorted(calls)) == ([1, 2], ["charge", "ship"])
    assert stage.problems() == []
    assert not check(stage.store)


def test_a_step_of_an_item_is_stated_for_that_item(stage: Stage) -> None:
    if stage.colour == "def":
        pytest.skip("written once, as a coroutine")
    calls: list[int] = []
    graph = Graph("items", Work)

    @graph.node(each=lambda state: [10, 20])
    async def pay(item: int, ctx: hf.Context) -> dict[str, Any]:
        async def charge() -> int:
            calls.append(item)
            if len(calls) == 2:
                await stage.dies(ctx)
            await asyncio.get_running_loop().create_future()
            return 0

        return {"log": [await ctx.step(ONCE, charge)]}

    flow = graph.chain(START, pay, END).compile()
    run = asked(stage, flow)
    assert [(one.step, one.item) for one in run.questions[0].in_doubt] == [("charge", 0), ("charge", 1)]
    assert "of item 0 and 'charge' of item 1" in refused(stage, "pay", "happened", result=1, **SAID)
    answer(stage, "pay", "happened", item=1, result=21, **SAID)
    answer(stage, "pay", "happened", item=0, result=11, **SAID)
    run = stage.resume(flow)
    assert (sorted(run.state.log), sorted(calls)) == ([11, 21], [10, 20])
    assert stage.problems() == []
    assert not check(stage.store)


def test_the_ledger_the_receipt_and_the_diagnosis_name_it(stage: Stage) -> None:
    flow = paying(stage, [])
    asked(stage, flow)
    found = diagnosis.diagnose(
        cases.case_of(stage.store, stage.store.run("r")), stage.store.now(), CommandLine()
    )
    commands = [one.command for one in found.remedies if "happened" in one.command]
    assert commands == [
        """holdfast answer r pay happened --result '{"id": NUMBER, "bank": "north"}' --reason 'HOW YOU KNOW'"""
    ]
    answer(stage, "pay", "happened", result={"id": 7}, **SAID)
    stage.resume(flow)
    entries = stage.do(lambda engine: engine.ledger("r")).entries
    (entry,) = [one for one in entries if one.about.get("answer") == "happened"]
    assert (entry.type, entry.reason) == ("decision", SAID["reason"])
    assert entry.about["stated"] == {"step": "charge", "result": {"id": 7}}
    assert "the step 'charge' has happened" in entry.text
    row = stage.store.run("r")
    log = [open_row(found, stage.store.blobs) for found in stage.store.events("r")]
    receipts = [
        json.loads(text)
        for text in documents(row, log, lambda _: flow.definition).values()
        if text[:1] == b"{"
    ]
    assert any("charge" in one.get("steps", []) and not one.get("steps_begun") for one in receipts)


def test_an_answer_without_a_stated_step_is_stored_as_before(stage: Stage) -> None:
    flow = paying(stage, [])
    asked(stage, flow)
    answer(stage, "pay", "retry", by="ann")
    (said,) = stage.told("QuestionAnswered")
    assert b'"v"' not in event_encoding.encode(said).body
    told = msgspec.structs.replace(said, stated=events.StatedStep("charge"))
    assert (
        b'"v":2' in event_encoding.encode(told).body
    )  # an older version would take it for a decision to call the step again
