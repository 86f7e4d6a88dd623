"""What somebody gets wrong who tests a flow for the first time is told: no test is green for what it never tested."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from inner_pytest import pytest_on

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import AnswerRefused, SettingError
from holdfast.testing import ManualClock, Receiver, Signal, crash_everywhere, rehearse
from holdfast.testing.clock import STARTS_AT


@dataclass
class Letter:
    tone: str = ""
    sent: bool = False
    paid: int = 0


def careless() -> hf.Flow[Letter]:
    """Asks, then does something that must not be done twice."""
    graph = Graph("letters", Letter)
    graph.ask("tone", "How?", options=["dry", "warm"], into="tone")

    @graph.node
    async def send(state: Letter, ctx: hf.Context) -> dict[str, Any]:
        ctx.resources["post"].send("letter")
        return {"sent": True}

    return graph.chain(START, "tone", "send", END).compile()


def waits() -> hf.Flow[Letter]:
    graph = Graph("waits", Letter)

    @graph.node
    async def settle(state: Letter, ctx: hf.Context) -> dict[str, Any]:
        return {"paid": await ctx.wait_for("paid")}

    return graph.chain(START, "settle", END).compile()


def post() -> dict[str, Any]:
    return {"post": Receiver("post")}


# --- crash_everywhere ----------------------------------------------------------------------------------


def test_a_flow_that_waits_for_an_answer_nobody_gives_is_a_finding() -> None:
    report = crash_everywhere(careless(), Letter(), resources=post())
    assert not report.ok
    assert (report.status, report.crashes, report.unreached) == ("waiting", 0, ("send",))
    (finding,) = report.findings
    assert (finding.kind, finding.crashes) == ("end", ())
    assert finding.text == (
        "without any crash the run is waiting, not completed: node 'tone' asks 'How?' (dry, warm); pass answers={'tone': …}. "
        "It did not reach: send. No crash was tried. If the run is expected to end like this, pass ends='waiting'."
    )
    assert str(report).startswith("flow 'letters': waiting, ")


def test_resources_that_were_forgotten_are_a_finding() -> None:
    report = crash_everywhere(careless(), Letter(), answers={"tone": "dry"})
    (finding,) = report.findings
    assert report.status == "failed"
    assert "it failed at node 'send' (KeyError: " in finding.text
    assert "If the key is one of ctx.resources, pass it with resources={…}." in finding.text


def test_a_signal_that_nobody_gives_is_a_finding() -> None:
    (finding,) = crash_everywhere(waits(), Letter()).findings
    assert "node 'settle' waits for the signal 'paid'; pass signals=[Signal('paid', …)]" in finding.text
    assert crash_everywhere(waits(), Letter(), signals=[Signal("paid", 3)]).ok


def test_a_wrong_answer_is_refused() -> None:
    with pytest.raises(
        AnswerRefused, match="'dyr' is not one of the options 'dry', 'warm'; did you mean 'dry'"
    ):
        crash_everywhere(careless(), Letter(), resources=post(), answers={"tone": "dyr"})
    with pytest.raises(SettingError, match="has no node of that name; did you mean 'tone'"):
        crash_everywhere(careless(), Letter(), resources=post(), answers={"tonne": "dry"})


def test_a_flow_that_is_given_everything_is_tested() -> None:
    report = crash_everywhere(careless(), Letter(), resources=post(), answers={"tone": "dry"})
    assert report.status == "completed"
    assert [finding.kind for finding in report.findings] == ["effect"]


def test_a_flow_may_be_meant_to_wait() -> None:
    report = crash_everywhere(careless(), Letter(), resources=post(), ends="waiting")
    assert report.ok, report
    assert "not reached, so not tested: send" in str(report)
    (finding,) = crash_everywhere(waits(), Letter(), signals=[Signal("paid", 3)], ends="failed").findings
    assert finding.text.startswith("without any crash the run is completed, not failed.")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"moments": ["befor"]}, "moments='befor': give one of 'before', 'after'; did you mean 'before'?"),
        ({"moments": "after"}, "moments='after': give a list"),
        ({"moments": []}, "give a list"),
        ({"store": "pg"}, "store='pg': give one of 'memory', 'sqlite'"),
        ({"store": "sqlit"}, "did you mean 'sqlite'?"),
        ({"ends": "complete"}, "did you mean 'completed'?"),
        ({"limit": 0}, "limit=0: give the number of crashes"),
        ({"signals": ["paid"]}, r"signals=\['paid'\]: give a list of signals, e.g. \[Signal\('paid', 12"),
        ({"answers": ["dry"]}, "give a dict that maps the name of a node to its answer"),
    ],
)
def test_an_option_that_means_nothing_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingError, match=told):
        crash_everywhere(waits(), Letter(), **{"signals": [Signal("paid", 3)], **given})


def test_an_answer_of_a_gate_is_no_answer_to_what_becomes_of_a_node_that_was_cut() -> None:
    """Both are asked in the name of the node; only one of them was answered."""
    graph = Graph("gated", Letter)

    @graph.node(approve="Send it?", idempotent=False)
    async def send(state: Letter, ctx: hf.Context) -> dict[str, Any]:
        ctx.resources["post"].send("letter")
        return {"sent": True}

    flow = graph.chain(START, "send", END).compile()
    report = crash_everywhere(flow, Letter(), resources=post(), answers={"send": "approve"})
    assert report.ok, report
    assert report.parked
    both = crash_everywhere(flow, Letter(), resources=post(), answers={"send": ["approve", "retry"]})
    assert [finding.kind for finding in both.findings] == ["effect"]
    assert not both.parked


# --- rehearse ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 0.5, 3600.0])
def test_an_answer_that_no_option_allows_is_refused_in_a_rehearsal(timeout: float | None) -> None:
    graph = Graph("asks", Letter)
    graph.ask("tone", "How?", options=["dry", "warm"], into="tone", timeout=timeout, on_timeout="warm")
    flow = graph.chain(START, "tone", END).compile()
    with pytest.raises(AnswerRefused, match="did you mean 'dry'"):
        rehearse(flow, Letter(), answers={"tone": "dyr"})
    assert rehearse(flow, Letter(), answers={"tone": "dry"}).state.tone == "dry"


def test_a_wrong_answer_is_refused_also_where_the_run_goes_on_without_it() -> None:
    graph, clock = Graph("asks-beside", Letter), ManualClock(auto=True)
    graph.ask("tone", "How?", options=["dry", "warm"], into="tone", timeout=0.5, on_timeout="warm")

    @graph.node
    async def work(state: Letter, ctx: hf.Context) -> dict[str, Any]:
        late = asyncio.Event()  # nobody can answer any more then
        clock.call_at(STARTS_AT + 1.0, late.set)
        await late.wait()
        return {"sent": True}

    flow = graph.chain(START, "tone", END).chain(START, "work", END).compile()
    with pytest.raises(AnswerRefused, match="did you mean 'dry'"):
        rehearse(flow, Letter(), answers={"tone": "dyr"}, clock=clock)
    clock = ManualClock(auto=True)
    assert rehearse(flow, Letter(), clock=clock).state == Letter("warm", sent=True)


def test_a_question_that_the_flow_does_not_have_is_refused_in_a_rehearsal() -> None:
    with pytest.raises(
        SettingError, match="answers has the name 'ton', but flow 'letters' has no node of that name; did you"
    ):
        rehearse(careless(), Letter(), answers={"ton": "dry"})


@pytest.mark.parametrize("signals", [["go"], "go", {"go": 1}, Signal("go")])
def test_what_is_no_list_of_signals_is_refused_in_a_rehearsal(signals: Any) -> None:
    with pytest.raises(SettingError, match=r"from holdfast\.testing import Signal"):
        rehearse(waits(), Letter(), signals=signals)


# --- the fixture ---------------------------------------------------------------------------------------

THREADED = """
def threaded():
    graph = Graph("threaded", dict)
    @graph.node
    def nap(state, ctx):
        ctx.sleep(3600)
        return {"slept": ctx.step("look", lambda: True)}
    return graph.chain(START, "nap", END).compile()

def ran(engine):
    async def main():
        async with engine:
            return await engine.run(engine.flows["threaded"], {}, run_id="r")
    return asyncio.run(main())

def test_on_the_loop(holdfast_engine):
    with pytest.raises(hf.RunFailed, match=r"holdfast_engine\\(flow, inline=False\\)"):
        ran(holdfast_engine(threaded()))

def test_with_threads(holdfast_engine):
    assert ran(holdfast_engine(threaded(), inline=False)).state == {"slept": True}
"""


def test_a_plain_node_that_waits_by_its_context_is_told_how_the_fixture_can_run_it(tmp_path: Any) -> None:
    code, said = pytest_on(THREADED, tmp_path)
    assert code == 0, said
    assert "2 passed" in said


def test_a_loop_runs_on_after_a_refusal() -> None:
    """Nothing of a refused rehearsal is left behind."""
    with pytest.raises(AnswerRefused):
        rehearse(careless(), Letter(), answers={"tone": 3})
    assert asyncio.run(asyncio.sleep(0, "on")) == "on"
