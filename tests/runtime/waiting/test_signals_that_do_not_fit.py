"""Signals are checked against the type that a node waits for: refused when they are sent, or set aside, never lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest
from harness import Stage, Work
from waits import Going, paid, told, waiting

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.reading.views import Run
from holdfast.testing import check
from holdfast.testing.clock import STARTS_AT


@dataclass
class Even:
    """A schema cannot say that the number is even."""

    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


class Rates(msgspec.Struct):
    """A schema accepts any text as a key."""

    by_day: dict[int, float]


def refused(stage: Stage, payload: Any, **named: Any) -> str:
    """Why a signal is not accepted. Nothing is recorded."""
    before = stage.kinds()
    with pytest.raises(hf.SignalRefused) as found:
        told(stage, "paid", payload, **named)
    assert stage.kinds() == before
    assert (found.value.run_id, found.value.name) == ("r", "paid")
    return str(found.value)


def both(stage: Stage, *types: Any) -> hf.Flow[Any]:
    """Waits for as many signals as there are types, one after the other."""

    def body(state: Work, ctx: Any) -> Any:
        found: list[Any] = []
        for kind in types:
            found += [(yield ctx.wait_for("paid", type=kind))]
        return {"log": [getattr(one, "number", one) for one in found]}

    return stage.one(body)


def sound(stage: Stage) -> bool:
    """The two readings of the log agree, and nothing is damaged."""
    return stage.problems() == [] and check(stage.store) == []


# --- refused when they are sent ----------------------------------------------------------------------


def test_a_signal_that_does_not_fit_the_open_wait_is_refused_with_the_reason(stage: Stage) -> None:
    flow = paid(stage, type=int)
    waiting(stage, flow)
    text = refused(stage, "much")
    assert text == (
        "the signal 'paid' to run 'r' was not accepted: payload: 'much' is not a whole number. Node 'only' waits for it; send "
        "what fits."
    )
    told(stage, "paid", 7)
    assert stage.resume(flow).state.log == [7]


def test_a_refused_signal_does_not_use_up_its_id(stage: Stage) -> None:
    flow = paid(stage, type=int)
    waiting(stage, flow)
    refused(stage, "much", id="invoice-3")
    run = told(stage, "paid", 7, id="invoice-3")
    assert not run.repeated
    assert stage.resume(flow).state.log == [7]


@pytest.mark.parametrize("id", ["", 5, b"x", ["x"]])
def test_what_is_not_the_id_of_a_signal_is_refused_and_makes_no_signal_a_repetition(
    quick: Stage, id: Any
) -> None:
    flow = paid(quick, type=int)
    waiting(quick, flow)
    with pytest.raises(hf.SettingError, match="is not a valid id of a signal"):
        told(quick, "paid", 7, id=id)


def test_a_signal_that_was_sent_before_is_repeated_and_not_refused(stage: Stage) -> None:
    flow = both(stage, int, str)
    waiting(stage, flow)
    told(stage, "paid", 7, id="invoice-3")
    waiting(stage, flow, resume=True)
    assert told(stage, "paid", 7, id="invoice-3").repeated, "the wait that is open now wants a text"
    refused(stage, 7, id="invoice-4")


def test_a_wait_without_a_type_takes_any_signal_and_records_no_schema(stage: Stage) -> None:
    flow = paid(stage)
    waiting(stage, flow)
    assert stage.told("SignalAwaited")[0].payload_schema == {}
    told(stage, "paid", {"any": ["thing"]})
    assert stage.resume(flow).state.log == [{"any": ["thing"]}]


def test_the_oldest_wait_of_the_name_decides(quick: Stage) -> None:
    graph = Graph("two", Work)
    for name, kind in (("number", int), ("text", str)):

        def body(state: Work, ctx: Any, kind: Any = kind) -> Any:
            return {"log": [(yield ctx.wait_for("paid", type=kind))]}

        graph.node(name=name)(quick.node(body))
        graph.chain(START, name, END)
    flow = graph.compile()
    quick.run(flow)
    first = quick.told("SignalAwaited")[0].node
    unfit, fit = ("text", 1) if first == "number" else (1, "text")
    refused(quick, unfit)
    told(quick, "paid", fit)
    told(quick, "paid", unfit)
    assert sorted(map(str, quick.resume(flow).state.log)) == ["1", "text"]


def test_a_signal_to_a_node_that_waits_in_memory_is_refused_too(quick: Stage) -> None:
    flow = paid(quick, type=int)

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(quick, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        async with quick.engine() as other:
            for sender in (engine, other):
                with pytest.raises(hf.SignalRefused, match="'much' is not a whole number"):
                    await sender.signal("r", "paid", "much", id="x")
            await other.signal("r", "paid", 7, id="x")
        return await going.task

    assert quick.do(use, flow).state.log == [7]


def test_a_signal_is_checked_against_the_wait_that_is_left_by_those_on_their_way(quick: Stage) -> None:
    flow = both(quick, int, str)

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(quick, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        async with quick.engine() as other:
            await other.signal("r", "paid", 7)
            await other.signal("r", "paid", "text")
            assert quick.told("SignalReceived") == [], "the first engine has not seen the inbox"
        return await going.task

    assert quick.do(use, flow).state.log == [7, "text"]
    assert quick.told("SignalSetAside") == []


# --- set aside ---------------------------------------------------------------------------------------


def test_a_signal_that_came_before_the_wait_and_does_not_fit_is_set_aside(stage: Stage) -> None:
    flow = paid(stage, type=int)
    stage.do(lambda engine: engine.start(flow, run_id="r"))
    told(stage, "paid", "much")
    run = waiting(stage, flow, resume=True)
    assert [(one.name, one.payload, one.node) for one in run.set_aside] == [("paid", "much", "only")]
    (aside,) = stage.told("SignalSetAside")
    assert (aside.slot, aside.name) == ("signal:paid:1", "paid")
    assert "payload" in aside.reason
    told(stage, "paid", 7)
    run = stage.resume(flow)
    assert (run.status, run.state.log, len(run.set_aside)) == ("completed", [7], 1)
    assert sound(stage)


def test_several_that_do_not_fit_are_passed_over_for_one_that_does(stage: Stage) -> None:
    flow = paid(stage, type=int)
    stage.do(lambda engine: engine.start(flow, run_id="r"))
    for payload in ("a", [1], 7, 8):
        told(stage, "paid", payload)
    run = stage.resume(flow)
    assert (run.state.log, [one.payload for one in run.set_aside], run.signals) == (
        [7],
        ["a", [1]],
        {"paid": 1},
    )
    assert sound(stage)


def test_a_signal_that_was_set_aside_goes_to_a_later_wait_that_it_fits(stage: Stage) -> None:
    flow = both(stage, int, int, str)
    stage.do(lambda engine: engine.start(flow, run_id="r"))
    for payload in ("much", 7, 8):
        told(stage, "paid", payload)
    run = stage.resume(flow)
    assert (run.state.log, run.set_aside) == ([7, 8, "much"], ())
    assert [event.takes for event in stage.told("SignalAwaited")] == [None, None, 0]
    assert sound(stage)


def test_a_signal_that_only_the_type_rejects_is_set_aside_and_the_wait_goes_on_until_its_time(
    stage: Stage,
) -> None:
    seen: list[Any] = []

    def body(state: Work, ctx: Any) -> Any:
        try:
            found = yield ctx.wait_for("paid", type=Even, timeout=500)
        except TimeoutError:
            found = Even(0)
        seen.append(found)
        return {"log": [found.number]}

    flow = stage.one(body)
    waiting(stage, flow)
    for number in (3, 5):
        told(stage, "paid", {"number": number})
        run = waiting(stage, flow, resume=True)
        assert run.waits == ("only.1.1:signal:paid:1",)
        assert run.due_at == STARTS_AT + 500, "its time is set once"
        assert "is odd" in run.set_aside[-1].reason
    refused(stage, {"number": "five"})
    told(stage, "paid", {"number": 4})
    assert (stage.resume(flow).state.log, seen) == ([4], [Even(4)])
    assert sound(stage)


def test_the_time_of_a_wait_that_set_a_signal_aside_comes_all_the_same(stage: Stage) -> None:
    flow = paid(stage, [], type=Even, timeout=500)
    waiting(stage, flow)
    told(stage, "paid", {"number": 3})
    waiting(stage, flow, resume=True)
    stage.clock.advance(STARTS_AT + 500 - stage.clock.now())
    assert stage.resume(flow).state.log == ["late"]
    assert sound(stage)


def test_a_node_that_waits_in_memory_sets_aside_what_its_type_rejects(quick: Stage) -> None:
    flow = both(quick, Even)
    entered: list[str] = []

    async def use(engine: hf.Engine) -> Run[Any]:
        going = Going(quick, engine, engine.run(flow, run_id="r"))
        await going.asleep()
        await engine.signal("r", "paid", {"number": 3})
        await going.until("SignalSetAside")
        entered.append((await engine.get("r")).status)
        await engine.signal("r", "paid", {"number": 4})
        return await going.task

    assert quick.do(use, flow).state.log == [4]
    assert entered == ["waiting"]
    assert "NodeWaiting" not in quick.kinds()
    assert sound(quick)


def test_a_type_that_no_schema_expresses_is_checked_by_the_node(stage: Stage) -> None:
    def body(state: Work, ctx: Any) -> Any:
        return {"log": [(yield ctx.wait_for("paid", type=Rates)).by_day[3]]}

    flow = stage.one(body)
    waiting(stage, flow)
    assert stage.told("SignalAwaited")[0].payload_schema == {"title": "Rates"}
    told(stage, "paid", {"by_day": {"x": 1.0}})
    waiting(stage, flow, resume=True)
    told(stage, "paid", {"by_day": {"3": 1.5}})
    assert stage.resume(flow).state.log == [1.5]


def test_items_set_aside_each_for_itself(quick: Stage) -> None:
    def body(page: int, ctx: Any) -> Any:
        return {"log": [[page, (yield ctx.wait_for("page", type=int if page else str))]]}

    graph = Graph("pages", Work)
    graph.node(name="only", each=lambda state: [0, 1], limit=1)(quick.node(body))
    flow = graph.chain(START, "only", END).compile()
    quick.do(lambda engine: engine.start(flow, run_id="r"))
    for payload in (4, "text"):
        told(quick, "page", payload)
    run = quick.do(lambda engine: engine.resume("r"), flow, park_after=0.0)
    assert (sorted(run.state.log), run.set_aside) == ([[0, "text"], [1, 4]], ())
    assert sound(quick)


def test_what_was_set_aside_is_the_same_wherever_the_process_died(quick: Stage) -> None:
    flow = both(quick, int, Even, str)
    quick.do(lambda engine: engine.start(flow, run_id="r"))
    for payload in ("text", {"number": 3}, 1, {"number": 4}):
        told(quick, "paid", payload)
    whole = quick.resume(flow)
    assert whole.state.log == [1, 4, "text"]
    for seq in range(5, whole.seq):
        url = quick.crashed_at(seq)
        assert quick.verb(flow, "resume", url=url).state.log == whole.state.log, seq
        assert quick.problems(url) == []


def test_a_rewind_gives_back_what_was_set_aside(quick: Stage) -> None:
    broken = [True]

    def body(state: Work, ctx: Any) -> Any:
        one = yield ctx.wait_for("paid", type=int)
        two = yield ctx.wait_for("paid", type=str)
        if broken:
            raise ValueError("once")
        return {"log": [one, two]}

    flow = quick.one(body)
    quick.do(lambda engine: engine.start(flow, run_id="r"))
    for payload in ("text", "more", 7):
        told(quick, "paid", payload)
    with pytest.raises(hf.RunFailed):
        quick.resume(flow)
    broken.clear()
    run = quick.resume(flow, checkpoint=1)
    assert (run.state.log, [one.payload for one in run.set_aside]) == ([7, "text"], ["more"])
    assert sound(quick)


# --- what may be sent --------------------------------------------------------------------------------


class Model(pydantic.BaseModel):
    number: int


class Record(msgspec.Struct):
    number: int


@pytest.mark.parametrize(
    "payload", [Even(4), Model(number=4), Record(4)], ids=["dataclass", "pydantic", "struct"]
)
def test_a_signal_and_an_answer_may_be_typed_objects(quick: Stage, payload: Any) -> None:
    def body(state: Work, ctx: Any) -> Any:
        came = yield ctx.wait_for("paid", type=type(payload))
        said = yield ctx.ask("Which?", schema=Record)
        return {"log": [came == payload, said.number, (yield ctx.wait_for("many"))]}

    flow = quick.one(body)
    quick.run(flow)
    told(quick, "paid", payload)
    quick.resume(flow)
    quick.do(lambda engine: engine.answer("r", "only", payload))
    told(quick, "many", {"list": [payload]})
    assert quick.resume(flow).state.log == [True, 4, {"list": [{"number": 4}]}]


@pytest.mark.parametrize("end", ["completed", "cancelled"])
def test_a_signal_or_an_answer_to_a_run_that_is_over_raises_run_over(quick: Stage, end: str) -> None:
    flow = paid(quick)
    quick.run(flow)
    if end == "cancelled":
        quick.do(lambda engine: engine.cancel("r"))
    else:
        told(quick, "paid")
        quick.resume(flow)
    with pytest.raises(hf.RunOver, match=f"'r' was not sent a signal: it is {end}"):
        told(quick, "paid", id="x")
    with pytest.raises(hf.RunOver, match=f"'r' was not answered: it is {end}"):
        quick.do(lambda engine: engine.answer("r", "only", 1))
