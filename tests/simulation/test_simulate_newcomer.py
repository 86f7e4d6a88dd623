"""`simulate` as somebody calls it for the first time: told like the others, and refused once where it cannot be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import AnswerRefused, SettingError, StateError
from holdfast.testing import Receiver, simulate


@dataclass
class Letter:
    to: str
    tone: str = ""
    note: str = ""


def asks(send: Any = lambda ctx: None, **options: Any) -> hf.Flow[Letter]:
    graph = Graph("letters", Letter)
    graph.ask("tone", "How?", into="tone", **options)

    @graph.node(name="send")
    async def send_it(state: Letter, ctx: hf.Context) -> dict[str, Any]:
        send(ctx)
        return {"note": f"{state.tone} to {state.to}"}

    return graph.chain(START, "tone", "send", END).compile()


def notes(flow: hf.Flow[Letter], answers: Any) -> set[str]:
    seen: set[str] = set()
    report = simulate(
        flow, Letter("eve"), seeds=range(6), answers=answers, compare=lambda values: seen.add(values["note"])
    )
    assert report.ok, report
    assert report
    return seen


@pytest.mark.parametrize(
    "answers",
    [
        {"tone": "dry"},
        {"tone": ["dry"]},
        {"tone": lambda question: "dry"},
        lambda node, iteration, options: "dry",
    ],
    ids=["value", "list", "function of the question", "function"],
)
def test_answers_are_given_as_elsewhere(answers: Any) -> None:
    assert notes(asks(), answers) == {"dry to eve"}


def test_what_nobody_answers_is_answered_by_default_where_there_are_options() -> None:
    assert notes(asks(options=["warm", "dry"]), None) == {"warm to eve"}
    with pytest.raises(SettingError, match=r"nobody answers: give answers=\{'tone': …\}"):
        simulate(asks(), Letter("eve"), seeds=range(2))


def test_a_wrong_answer_is_refused_at_once() -> None:
    with pytest.raises(AnswerRefused, match="did you mean 'dry'"):
        simulate(asks(options=["dry", "warm"]), Letter("eve"), seeds=range(2), answers={"tone": "dyr"})
    with pytest.raises(AnswerRefused, match="tone"):
        simulate(asks(), Letter("eve"), seeds=range(2), answers={"tone": 3})
    with pytest.raises(SettingError, match="did you mean 'tone'"):
        simulate(asks(), Letter("eve"), seeds=range(2), answers={"ton": "dry"})


def test_a_wrong_input_is_refused_at_once() -> None:
    with pytest.raises(StateError, match="the state lacks 'to'"):
        simulate(asks(), {}, seeds=range(2), answers={"tone": "dry"})


def test_signals_are_names_and_payloads() -> None:
    with pytest.raises(SettingError, match="give a dict of names and payloads"):
        simulate(asks(), Letter("eve"), seeds=range(2), answers={"tone": "dry"}, signals=["go"])


def test_a_plain_node_that_waits_by_its_context_is_refused_once() -> None:
    graph = Graph("waits", dict)

    @graph.node
    def nap(state: dict[str, Any], ctx: hf.BlockingContext) -> None:
        ctx.sleep(1)

    with pytest.raises(SettingError, match="node 'nap' is a plain function that waits by its context"):
        simulate(graph.chain(START, "nap", END).compile(), {}, seeds=range(3))


def test_a_plain_node_that_only_looks_at_its_context_is_simulated() -> None:
    graph = Graph("looks", dict)

    @graph.node
    def look(state: dict[str, Any], ctx: hf.BlockingContext) -> dict[str, Any]:
        return {"node": ctx.node}

    assert simulate(graph.chain(START, "look", END).compile(), {}, seeds=range(3)).ok


def test_a_flow_that_does_not_complete_without_faults_is_told_once() -> None:
    def fails(ctx: hf.Context) -> None:
        raise ValueError("no stamps")

    report = simulate(asks(fails), Letter("eve"), seeds=range(5), answers={"tone": "dry"})
    assert not report.ok
    assert len(report.violations) == 1
    assert "without any fault: r failed at send: ValueError: no stamps" in report.violations[0].told
    assert "answers=, signals= and resources=" in report.violations[0].told


def test_an_effect_that_happens_twice_is_a_violation() -> None:
    post = Receiver("post")
    report = simulate(
        asks(lambda ctx: ctx.resources["post"].send("letter")),
        Letter("eve"),
        seeds=range(40),
        answers={"tone": "dry"},
        resources={"post": post},
    )
    assert not report.ok
    told = {violation.told for violation in report.violations}
    assert "r: 'letter' happened 2 times at 'post', and without faults 1" in told
    assert all("at 'post', and without faults 1" in one for one in told)


def test_an_effect_with_its_key_happens_once_in_every_schedule() -> None:
    report = simulate(
        asks(lambda ctx: ctx.resources["post"].send("letter", key=ctx.idempotency_key())),
        Letter("eve"),
        seeds=range(40),
        answers={"tone": "dry"},
        resources={"post": Receiver("post")},
    )
    assert report.ok, report
