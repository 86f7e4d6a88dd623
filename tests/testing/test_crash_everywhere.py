"""`crash_everywhere` finds what a crash makes a difference to, says where, and finds nothing in a flow that is careful."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import END, START, Graph, Retry, append
from holdfast.errors import SettingError
from holdfast.storage import failpoints
from holdfast.testing import crashing
from holdfast.testing.crashing import Report, crash_everywhere
from holdfast.testing.fakes import Receiver, Signal
from holdfast.testing.flows import nested, without_order

DAY = 86_400


@dataclass
class Order:
    amount: int = 0
    log: Annotated[list[str], append] = field(default_factory=list)
    verdict: str = ""
    total: int = 0


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    assert failpoints.hook is None


def one(body: Any, **options: Any) -> hf.Flow[Order]:
    """A flow of three nodes; the middle one does this."""
    graph = Graph("orders", Order)
    graph.node(name="before")(lambda state: {"log": ["before"]})
    graph.node(name="middle", **options)(body)
    graph.node(name="behind")(lambda state: {"log": ["behind"]})
    return graph.chain(START, "before", "middle", "behind", END).compile()


def careful() -> hf.Flow[Order]:
    graph = Graph("careful", Order)

    @graph.node(retry=Retry(attempts=2, backoff=5.0))
    def plan(state: Order, ctx: hf.BlockingContext) -> dict[str, Any]:
        amount = ctx.step("amount", lambda: 3)
        ctx.cost(tokens=1)
        ctx.emit("planned")
        ctx.checkpoint(amount)
        return {"amount": amount}

    @graph.node(each=lambda state: range(state.amount))
    async def page(item: int, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [f"page {await ctx.step('read', lambda: item)}"]}

    @graph.node
    async def charge(state: Order, ctx: hf.Context) -> None:
        ctx.resources["bank"].send(("charge", state.amount), key=ctx.idempotency_key())

    @graph.node
    def paid(state: Order, ctx: hf.BlockingContext) -> dict[str, Any]:
        ctx.sleep(30 * DAY)
        return {"total": ctx.wait_for("paid", timeout=90 * DAY)}

    graph.ask("verdict", "Good?", options=["yes", "no"], into="verdict", timeout=DAY)
    return graph.chain(START, "plan", "page", "verdict", "charge", "paid", END).compile()


ATTENDED: dict[str, Any] = {"answers": {"verdict": "yes"}, "signals": [Signal("paid", 12, after=40 * DAY)]}


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_careful_flow_ends_the_same_wherever_it_crashes(store: Any) -> None:
    bank = Receiver("bank")
    limit = None if store == "memory" else 24
    report = crash_everywhere(
        careful(), Order(), resources={"bank": bank}, store=store, limit=limit, **ATTENDED
    )
    assert report.ok, report
    assert report.status == "completed"
    assert len(report.writes) > 20
    assert report.crashes == (limit or 2 * len(report.writes))
    assert report.again  # nodes were cut, and their keys and steps made that harmless
    assert report.parked == ()


def test_the_same_call_gives_the_same_report() -> None:
    first, second = (
        crash_everywhere(careful(), Order(), resources={"bank": Receiver()}, limit=12, **ATTENDED)
        for _ in range(2)
    )
    assert first == second


# --- what careless nodes do --------------------------------------------------------------------------


async def pay_carelessly(state: Order, ctx: hf.Context) -> None:
    ctx.resources["bank"].send("pay")


async def pay_carefully(state: Order, ctx: hf.Context) -> None:
    ctx.resources["bank"].send("pay", key=ctx.idempotency_key())


def test_an_effect_without_a_key_happens_twice_and_is_found() -> None:
    report = crash_everywhere(one(pay_carelessly), Order(), resources={"bank": Receiver("bank")})
    (finding,) = report.findings
    assert finding.kind == "effect"
    assert finding.text == "'pay' happened 2 times at 'bank' (without a crash: 1)"
    assert [crash.moment for crash in finding.crashes] == ["before"]
    assert finding.crashes[0].write.added == "NodeCompleted middle, NodeStarted behind"
    assert not report
    assert "right before write" in str(report)


def test_an_effect_with_its_key_happens_once() -> None:
    assert crash_everywhere(one(pay_carefully), Order(), resources=lambda: {"bank": Receiver("bank")}).ok


class CardDeclined(Exception):
    """The bank has decided."""


def saga(step: Any) -> hf.Flow[Order]:
    """Books, is declined as long as nothing is cancelled, and cancels."""

    async def travel(state: Order, ctx: hf.Context) -> dict[str, Any]:
        bank = ctx.resources["bank"]

        def send(what: str) -> None:
            bank.send(what, key=ctx.idempotency_key(what))

        def charge() -> None:
            if "cancel" not in bank.done:
                raise CardDeclined("no cover")
            send("charge")

        await ctx.step("book", send, "book")
        try:
            await ctx.step(step, charge)
        except CardDeclined:
            await ctx.step("undo", send, "cancel")
            await ctx.step("tell", send, "tell")
            return {"log": ["cancelled"]}
        return {"log": ["travelled"]}

    return one(travel)


def test_a_saga_without_raises_differs_after_a_crash_during_its_undo_and_the_cause_is_named() -> None:
    report = crash_everywhere(saga("charge"), Order(), resources=lambda: {"bank": Receiver("bank")})
    (cause,) = [finding for finding in report.findings if finding.kind == "step"]
    assert "completed the step 'charge' in attempt 2, after the crash" in cause.text
    assert "hf.Step('charge', raises=(…,))" in cause.text
    assert {finding.kind for finding in report.findings} == {"state", "effect", "step"}


def test_a_saga_with_raises_ends_the_same_wherever_it_crashes() -> None:
    step = hf.Step("charge", raises=(CardDeclined,))
    report = crash_everywhere(saga(step), Order(), resources=lambda: {"bank": Receiver("bank")})
    assert report.ok, report
    assert report.again["middle"] > 5


def test_tries_and_steps_in_doubt_are_no_findings() -> None:
    calls: list[int] = []

    async def pay(state: Order, ctx: hf.Context) -> dict[str, Any]:
        def charge() -> str:
            calls.append(1)
            if len(calls) < 3:
                raise ConnectionError("no line")
            return "paid"

        return {"log": [await ctx.step(hf.Step("charge", retry=Retry(attempts=3, backoff=60.0)), charge)]}

    assert crash_everywhere(one(pay), Order(), reset=calls.clear).ok

    async def ship(state: Order, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [await ctx.step(hf.Step("ship", idempotent=False), str, "shipped")]}

    report = crash_everywhere(one(ship), Order())
    assert report.ok, report
    assert report.parked


def test_effects_that_are_only_observed_are_compared() -> None:
    sent: list[str] = []
    flow = one(lambda state: sent.append("mail"))
    report = crash_everywhere(flow, Order(), observe=lambda: sent, reset=sent.clear)
    assert [finding.text for finding in report.findings] == ["'mail' happened 2 times (without a crash: 1)"]
    count = crash_everywhere(flow, Order(), observe=lambda: len(sent), reset=sent.clear)
    assert [finding.text for finding in count.findings] == ["2 was observed, but 1 without a crash"]


def test_what_a_node_keeps_in_memory_is_lost_and_is_found() -> None:
    cache: dict[str, int] = {}

    def remember(state: Order) -> dict[str, Any]:
        cache["total"] = 7
        return {}

    graph = Graph("remembers", Order)
    graph.node(name="first")(remember)
    graph.node(name="second")(lambda state: {"total": cache.get("total", 0)})
    flow = graph.chain(START, "first", "second", END).compile()
    report = crash_everywhere(flow, Order(), reset=cache.clear, forget=cache.clear)
    (finding,) = report.findings
    assert (finding.kind, finding.text) == ("state", "total is 0, but 7 without a crash")
    assert crash_everywhere(flow, Order(), reset=cache.clear, forget=cache.clear, ignore=["total"]).ok
    assert crash_everywhere(
        flow, Order(), reset=cache.clear, forget=cache.clear, same=lambda one, other: True
    ).ok
    unlike = crash_everywhere(
        flow, Order(), reset=cache.clear, forget=cache.clear, same=lambda one, other: False
    )
    assert {finding.kind for finding in unlike.findings} == {"state"}


def test_a_run_that_ends_otherwise_is_found() -> None:
    async def only_once(state: Order, ctx: hf.Context) -> None:
        if ctx.attempt > 1:
            raise hf.Fatal("a second time")

    report = crash_everywhere(one(only_once), Order())
    assert {finding.text for finding in report.findings} == {
        "the resumed run is failed, the undisturbed run is completed"
    }


def test_a_write_that_is_lost_makes_a_node_run_again_and_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that forgets what it acknowledged: the node behind it runs a second time as its first attempt."""
    restart = crashing._Stage.restart

    def forgetful(stage: Any) -> None:
        restart(stage)
        run = stage.store._data.runs.get(crashing.RUN_ID)
        completed = (
            [row.seq for row in run.rows if row.node == "middle" and row.kind == "NodeStarted"] if run else []
        )
        if completed and run.rows[-1].seq > completed[0]:
            del run.rows[completed[0] - 1 :]
            run.head = type(run.head)(run.rows[-1].seq, run.head.fence, run.head.holder)

    monkeypatch.setattr(crashing._Stage, "restart", forgetful)
    report = crash_everywhere(one(lambda state: None), Order())
    assert "ran again" in {finding.kind for finding in report.findings}
    assert any(
        "node 'middle' (iteration 1, execution 1, attempt 1) ran 2 times" in finding.text
        for finding in report.findings
    )


def side_by_side(schedule: Any = "eager") -> hf.Flow[Order]:
    """Two nodes that append to the same list; which of them ends first depends on the attempt."""
    graph = Graph("parallel", Order)

    def node(slow_attempt: int) -> Any:
        async def body(state: Order, ctx: hf.Context) -> dict[str, Any]:
            if ctx.attempt == slow_attempt:
                await ctx.step("look up", lambda: None)
            return {"log": [ctx.node]}

        return body

    graph.node(name="left")(node(1))
    graph.node(name="right")(node(2))
    graph.node(name="count")(lambda state: {"total": len(state.log)})
    graph.chain(START, "left", "count", END).chain(START, "right", "count")
    return graph.compile(schedule=schedule)


def test_another_order_of_parallel_appends_is_found_and_its_cause_is_named() -> None:
    report = crash_everywhere(side_by_side(), Order())
    (finding,) = report.findings
    text = (
        "log has the same items in another order: ['left', 'right'], but ['right', 'left'] without a crash. The nodes 'left' "
        "and 'right' run in parallel, and what parallel nodes append is stored in the order in which they complete. For a fixed "
        'order, compile the flow with schedule="layered", or make the field a dict with the reducer merge, with a key for each '
        "node. If the order does not matter, pass same=…."
    )
    assert (finding.kind, finding.text) == ("state", text)
    assert crash_everywhere(side_by_side("layered"), Order()).ok


def test_another_order_of_what_one_node_appends_has_another_cause() -> None:
    async def shuffles(state: Order, ctx: hf.Context) -> dict[str, Any]:
        return {"log": ["a", "b"] if ctx.attempt == 1 else ["b", "a"]}

    (finding,) = crash_everywhere(one(shuffles), Order()).findings
    assert "parallel" not in finding.text


# --- what is not a finding ---------------------------------------------------------------------------


def test_a_node_that_must_not_run_twice_asks_and_is_no_finding() -> None:
    bank = Receiver("bank")
    report = crash_everywhere(one(pay_carelessly, idempotent=False), Order(), resources={"bank": bank})
    assert report.ok, report
    assert [crash.moment for crash in report.parked] == ["after", "before"]
    assert "asked the operator what to do after 2 crashes" in str(report)
    answered = crash_everywhere(
        one(pay_carelessly, idempotent=False), Order(), resources={"bank": bank}, answers={"middle": "retry"}
    )
    assert {finding.kind for finding in answered.findings} == {"effect"}
    assert answered.parked == ()


def test_a_run_that_fails_anyway_fails_wherever_it_crashes() -> None:
    def fails(state: Order) -> None:
        raise ValueError("always")

    report = crash_everywhere(one(fails), Order(), ends="failed")
    assert report.status == "failed"
    assert report.ok, report


def test_a_run_that_waits_for_an_answer_nobody_gives_waits_wherever_it_crashes() -> None:
    given: dict[str, Any] = {"resources": {"bank": Receiver()}, "answers": {"verdict": "yes"}}
    report = crash_everywhere(careful(), Order(), ends="failed", **given)
    assert report.status == "failed"  # the signal does not come in time
    assert report.ok, report
    waits = Graph("waits", Order).ask("sure", "Sure?").chain(START, "sure", END).compile()
    report = crash_everywhere(waits, Order(), ends="waiting")
    assert report.status == "waiting"
    assert report.ok, report


@dataclass
class Draft:
    drafts: int = 0
    verdict: str = ""


def written_again() -> hf.Flow[Draft]:
    graph = Graph("drafts", Draft)
    graph.node(name="write")(lambda state: {"drafts": state.drafts + 1})
    graph.ask("approve", "Publish?", options=["again", "publish"], into="verdict")
    graph.chain(START, "write", "approve")
    graph.branch("approve", lambda state: "write" if state.verdict == "again" else END, ["write", END])
    return graph.compile()


def test_a_list_of_answers_goes_on_after_a_crash_where_it_was() -> None:
    """An answer belongs to the key of its question, and not to an engine."""
    report = crash_everywhere(written_again(), Draft(), answers={"approve": ["again", "again", "publish"]})
    assert report.ok, report
    assert report.status == "completed"


def test_questions_that_are_asked_in_another_order_after_a_crash_get_the_same_answers() -> None:
    """Items ask at the same time. After a crash, the one that had not asked asks last."""
    graph = Graph("pages", Order)

    @graph.node(each=lambda state: [1, 2])
    async def page(item: int, ctx: hf.Context) -> dict[str, Any]:
        if ctx.attempt == item:  # the first item is slow, and after a crash the second
            await ctx.step("slow", lambda: None)
        return {"log": [f"{item} {await ctx.ask(f'Page {item}?')}"]}

    flow = graph.chain(START, "page", END).compile()
    report = crash_everywhere(
        flow,
        Order(),
        answers={"page": ["first", "second"]},
        same=lambda one, other: set(one.log) == set(other.log),
    )
    assert report.ok, report


def test_what_a_dead_engine_does_when_it_unwinds_is_not_seen() -> None:
    sent: list[str] = []

    async def tidies(state: Order, ctx: hf.Context) -> None:
        try:
            await ctx.step("work", lambda: 1)
        except BaseException:
            sent.append("tidied up")
            raise

    report = crash_everywhere(one(tidies), Order(), observe=lambda: sent, reset=sent.clear)
    assert report.ok, report


async def model(ctx: hf.Context, closed: list[str]) -> AsyncIterator[str]:
    """A client that streams the answer of a model: an async generator, which is open while its caller works."""
    try:
        for word in ("hold", "fast"):
            await asyncio.sleep(0)
            yield word
    finally:
        await asyncio.sleep(0)
        closed.append("closed")


@pytest.mark.parametrize("streams", [False, True], ids=["a node", "a node that streams"])
def test_a_flow_with_open_async_generators_can_be_crashed(streams: bool) -> None:
    closed: list[str] = []

    async def speaks(state: Order, ctx: hf.Context) -> dict[str, Any]:
        words = [await ctx.step(word, lambda: word) async for word in model(ctx, closed)]  # noqa: B023
        return {"log": words}

    async def yields(state: Order, ctx: hf.Context) -> AsyncIterator[Any]:
        async for word in model(ctx, closed):
            yield await ctx.step(word, lambda: word)  # noqa: B023
        yield {"log": ["spoken"]}

    report = crash_everywhere(one(yields if streams else speaks), Order())
    assert report.ok, report
    assert len(closed) > len(report.writes)  # a generator of a dead engine is closed, too


def test_an_async_generator_that_never_closes_is_left() -> None:
    async def stuck() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.get_running_loop().create_future()

    async def uses(state: Order, ctx: hf.Context) -> None:
        left = stuck()
        await anext(left)
        await ctx.step("work", lambda: 1)
        ctx.resources["left"].append(left)

    kept: list[Any] = []
    assert crash_everywhere(one(uses), Order(), resources={"left": kept}, limit=6).ok


# --- how it is called --------------------------------------------------------------------------------


def test_fewer_crashes_can_be_tried() -> None:
    flow = one(lambda state: None)
    every = crash_everywhere(flow, Order())
    assert crash_everywhere(flow, Order(), moments=["after"]).crashes == len(every.writes)
    assert crash_everywhere(flow, Order(), limit=3).crashes == 3
    assert crash_everywhere(flow, Order(), limit=10_000).crashes == every.crashes


def test_it_is_refused_inside_an_event_loop() -> None:
    async def inside() -> Report:
        return crash_everywhere(one(lambda state: None), Order())

    with pytest.raises(SettingError, match="plain function"):
        asyncio.run(inside())


def test_what_is_wrong_with_the_call_itself_is_raised() -> None:
    with pytest.raises(hf.StateError):
        crash_everywhere(one(lambda state: None), {"no such field": 1})


@given(st.integers(0, 10_000), st.sampled_from(["eager", "layered"]))
@settings(max_examples=8)
def test_no_flow_is_changed_by_a_crash(seed: int, schedule: Any) -> None:
    flow = nested(random.Random(seed), depth=2).flow(schedule=schedule)
    report = crash_everywhere(
        flow, limit=12, same=lambda one, other: without_order(one) == without_order(other)
    )
    assert report.ok, report


def test_waits_that_are_given_up_and_signals_that_do_not_fit_end_the_same_wherever_the_process_dies() -> None:
    graph = Graph("impatient", dict)

    @graph.node
    async def listen(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        task = asyncio.create_task(ctx.wait_for("paid"))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        paid = await ctx.wait_for("paid", key="again")
        return {"paid": paid, "count": await ctx.wait_for("count", type=int)}

    flow = graph.chain(START, "listen", END).compile()
    signals = [Signal("count", "many"), Signal("paid", 7, after=10), Signal("count", 5, after=20)]
    report = crash_everywhere(flow, {}, signals=signals)
    assert report.ok, report
    written = " ".join(write.added for write in report.writes)
    assert all(kind in written for kind in ("WaitWithdrawn", "SignalSetAside", "RunCompleted"))
