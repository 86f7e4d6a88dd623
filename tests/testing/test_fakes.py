"""An audience answers and signals through the engine's own verbs, and time passes at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph, append
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.clock import STARTS_AT, ManualClock
from holdfast.testing.fakes import Receiver, Signal, rehearse

DAY = 86_400


@dataclass
class Review:
    log: Annotated[list[Any], append] = field(default_factory=list)
    verdict: str = ""


def asks(**options: Any) -> hf.Flow[Review]:
    graph = Graph("asks", Review)
    graph.ask("verdict", "Good?", options=["yes", "no"], into="verdict", **options)
    graph.node(name="note")(lambda state: {"log": [state.verdict]})
    graph.edge(START, "verdict").edge("verdict", "note")
    graph.branch("note", lambda state: "verdict" if state.verdict == "no" else END, to=["verdict", END])
    return graph.compile()


def test_a_question_is_answered_by_its_node() -> None:
    run = rehearse(asks(), Review(), answers={"verdict": "yes"})
    assert (run.status, run.state.log) == ("completed", ["yes"])


def test_a_list_answers_one_question_after_the_other() -> None:
    run = rehearse(asks(), Review(), answers={"verdict": ["no", "no", "yes"]})
    assert run.state.log == ["no", "no", "yes"]


def test_a_run_waits_when_the_answers_are_used_up() -> None:
    run = rehearse(asks(), Review(), answers={"verdict": ["no"]})
    assert (run.status, run.state.log) == ("waiting", ["no"])
    assert len(run.questions) == 1


def test_a_function_answers_what_it_is_asked() -> None:
    asked: list[str] = []

    def answer(question: Any) -> str:
        asked.append(question.text)
        return "yes"

    rehearse(asks(), Review(), answers={"verdict": answer})
    assert asked == ["Good?"]


def test_a_question_inside_a_node_is_answered_before_its_time_is_over() -> None:
    graph = Graph("inside", Review)

    @graph.node
    async def talk(state: Review, ctx: hf.Context) -> dict[str, Any]:
        first = await ctx.ask("How many?", schema=int, timeout=60, key="count")
        return {"log": [first, await ctx.ask("Sure?", options=["y", "n"], timeout=60, on_timeout="n")]}

    flow = graph.chain(START, "talk", END).compile()
    assert rehearse(flow, Review(), answers={"talk.1.1:ask:count": 3}).state.log == [3, "n"]
    assert rehearse(flow, Review(), answers={"talk": [3, "y"]}).state.log == [3, "y"]


def test_signals_come_at_their_time() -> None:
    graph, clock = Graph("told", Review), ManualClock(auto=True)

    @graph.node
    def wait(state: Review, ctx: hf.BlockingContext) -> dict[str, Any]:
        return {"log": [ctx.wait_for("paid", timeout=10 * DAY), ctx.wait_for("paid")]}

    flow = graph.chain(START, "wait", END).compile()
    told = [Signal("paid", "second", after=30 * DAY), Signal("paid", "first", after=9 * DAY)]
    store = MemoryStore(clock=clock.now)
    run = rehearse(flow, Review(), signals=told, store=store, clock=clock, run_id="r")
    assert run.state.log == ["first", "second"]
    times = [row.at - STARTS_AT for row in store.events("r", kinds=("SignalReceived",))]
    assert times == [9 * DAY, 30 * DAY]
    late = rehearse(flow, Review(), signals=told[:1])
    assert (late.status, late.error.type) == ("failed", "WaitTimeout")


@pytest.mark.parametrize("after", [0.5, 600.0])
def test_a_signal_that_does_not_fit_what_the_run_waits_for_is_refused(after: float) -> None:
    graph = Graph("typed", dict)

    @graph.node
    async def listen(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        return {"paid": await ctx.wait_for("paid", type=int)}

    flow = graph.chain(START, "listen", END).compile()
    with pytest.raises(hf.SignalRefused, match="'much' is not a whole number"):
        rehearse(flow, {}, signals=[Signal("paid", "much", after=after)])
    assert rehearse(flow, {}, signals=[Signal("paid", 7, after=after)]).state == {"paid": 7}


def test_a_signal_for_a_run_that_has_ended_is_nobodys_trouble() -> None:
    run = rehearse(asks(), Review(), answers={"verdict": "yes"}, signals=[Signal("late", after=DAY)])
    assert run.status == "completed"


def test_a_run_that_failed_is_returned() -> None:
    graph = Graph("fails", Review)
    graph.node(name="only")(lambda state: 1 / 0)
    run = rehearse(graph.chain(START, "only", END).compile(), Review())
    assert (run.status, run.failed_node) == ("failed", "only")


def test_a_run_that_asks_for_ever_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.fakes._ROUNDS_MAX", 5)
    flow = Graph("waits", Review)

    @flow.node(approve="Again?")
    async def again(state: Review) -> None: ...

    flow.edge(START, "again").branch("again", lambda state: "again", to=["again", END])
    with pytest.raises(AssertionError, match="still asks"):
        rehearse(flow.compile(max_iterations=1000), Review(), answers={"again": "approve"})


def test_a_receiver_does_the_same_thing_once() -> None:
    bank = Receiver("bank")
    assert bank.send("pay", key="k", reply=1) == bank.send("pay", key="k", reply=2) == 1
    bank.send("mail")
    bank.send("mail")
    assert bank.done == ["pay", "mail", "mail"]
    bank.reset()
    assert bank.done == []
    assert bank.send("pay", key="k", reply=3) == 3
