"""Loops, fan-outs and layers as an engine executes them: limits, order, and what is done again after a crash."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from engines import Work, failure_of, in_engine, looping, quickly, running, started
from harness import turns, until

import holdfast as hf
from holdfast import END, START, Flow, Graph, append
from holdfast.reading import verification
from holdfast.reading.reader import Reader
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.appends import dead_process
from holdfast.testing.builders import History

# --- loops -------------------------------------------------------------------------------------------


def test_a_loop_ends_at_its_limit_and_goes_on_with_a_higher_one() -> None:
    ran: list[int] = []
    store = MemoryStore()
    run = failure_of(looping(ran, max_iterations=4), store=store)
    assert (run.error.type, run.failed_node, ran) == ("IterationLimit", "turn", [1, 2, 3, 4])
    assert "max_iterations" in run.error.advice
    flow = looping(ran, max_iterations=20)
    assert in_engine(lambda engine: engine.resume("r"), store, flows=[flow]).state.total == 10


def test_a_crash_does_not_reset_the_limit_of_a_loop() -> None:
    ran: list[int] = []
    flow, store = looping(ran, max_iterations=4), MemoryStore()
    history = History("r", flow).created(Work())
    for _ in range(3):
        history.completed("turn", {"total": 1})
    history.crashed_before("turn").write(store, holder=dead_process())
    with pytest.raises(hf.RunFailed, match="IterationLimit"):
        in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert ran == [4]


def test_a_warning_at_nine_tenths_of_a_limit_names_the_option(caplog: pytest.LogCaptureFixture) -> None:
    for limit, warned in ((5, []), (10, ["9 of at most 10"]), (15, [])):
        caplog.clear()
        flow = looping([], max_iterations=limit)
        given = Work(total=1 if limit == 10 else 0)  # so the run ends with iteration 9
        if limit == 5:
            failure_of(flow, given)
        else:
            quickly(flow, given)
        said = [record.getMessage() for record in caplog.records]
        assert [words in message for words, message in zip(warned, said, strict=True)] == [True] * len(warned)
        assert all("max_iterations=None" in message and "'turn'" in message for message in said)


def endless(**options: Any) -> Flow[Work]:
    """A run that lives for ever: it receives a message, answers, and receives the next one. Nothing leads to END."""
    graph = Graph("agent", Work)

    @graph.node
    async def receive(state: Work, ctx: hf.Context) -> dict[str, Any]:
        return {"plain": await ctx.wait_for("message")}

    @graph.node
    def reply(state: Work) -> dict[str, Any]:
        return {"log": [state.plain]}

    return graph.chain(START, "receive", "reply", "receive").compile(**options)


def test_a_run_without_a_limit_lives_for_ever_and_continues_after_a_crash() -> None:
    flow, store = endless(max_iterations=None), MemoryStore()

    async def converse(engine: hf.Engine, names: list[str], answered: int) -> None:
        for number, name in enumerate(names, answered + 1):
            await engine.signal("r", "message", name)
            await until(lambda: len(store.events("r", kinds=("NodeCompleted",), node="reply")) == number)  # noqa: B023

    async def first(engine: hf.Engine) -> None:
        async with running(engine, flow):
            await started(engine, "receive")
            await converse(engine, ["one", "two"], 0)

    async def then(engine: hf.Engine) -> list[str]:
        resumed = asyncio.create_task(engine.resume("r"))
        await converse(engine, ["three"], 2)
        resumed.cancel()
        await asyncio.gather(resumed, return_exceptions=True)
        return (await engine.state("r")).log

    in_engine(first, store)
    assert in_engine(then, store, flows=[flow]) == ["one", "two", "three"]
    assert verification.verify(store, "r").problems == []


def test_a_loop_without_end_is_refused_where_it_has_a_limit_or_cannot_wait() -> None:
    with pytest.raises(hf.GraphError, match="can never end"):
        endless()
    graph = Graph("busy", Work)
    graph.node(name="turn")(lambda state: {"total": 1})
    with pytest.raises(hf.GraphError, match="leads to itself by a plain edge"):
        graph.chain(START, "turn", "turn").compile(max_iterations=None)


# --- fan-outs ----------------------------------------------------------------------------------------


def fanned(body: Callable[..., Any], **options: Any) -> Flow[Work]:
    graph = Graph("fan", Work)
    graph.node(name="read", each=lambda state: state.pages, **options)(body)
    graph.node(name="after")(lambda state: {"plain": f"{len(state.log)} read"})
    return graph.chain(START, "read", "after", END).compile()


def test_results_of_items_merge_in_item_order_whatever_order_they_end_in() -> None:
    async def body(page: str, ctx: hf.Context) -> dict[str, Any]:
        for _ in range(30 - 10 * ctx.item):
            await asyncio.sleep(0)
        return {"log": [page], "total": 1}

    run = quickly(fanned(body), Work(pages=["one", "two", "three"]))
    assert (run.state.log, run.state.total, run.state.plain) == (["one", "two", "three"], 3, "3 read")


def test_a_fan_out_over_nothing_completes() -> None:
    assert quickly(fanned(lambda page: {"log": [page]}), Work()).state.plain == "0 read"


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_items_run_at_once_than_the_limit_says(limit: int) -> None:
    now, most = [0], [0]

    async def body(page: str) -> None:
        now[0] += 1
        most[0] = max(most[0], now[0])
        await turns(5)
        now[0] -= 1

    quickly(fanned(body, limit=limit), Work(pages=list("abcdefg")))
    assert most[0] == limit


def test_when_an_item_fails_the_others_finish_and_only_what_is_missing_runs_again() -> None:
    ran, store, broken = [], MemoryStore(), [True]

    async def body(page: str, ctx: hf.Context) -> dict[str, Any]:
        ran.append(page)
        if page == "two" and broken:
            raise ValueError("torn")
        await asyncio.sleep(0)
        return {"log": [f"{page} {ctx.attempt}"]}

    flow = fanned(body)
    with pytest.raises(hf.RunFailed, match="item 1: torn"):
        quickly(flow, Work(pages=["one", "two", "three"]), store=store)
    assert sorted(ran) == ["one", "three", "two"]
    broken.clear()
    ran.clear()
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (ran, run.state.log) == (["two"], ["one 1", "two 2", "three 1"])
    assert verification.verify(store, "r").problems == []


def labelled(label: Any) -> Flow[Work]:
    def body(page: str) -> dict[str, Any]:
        if page == "two":
            raise ValueError("torn")
        return {"log": [page]}

    return fanned(body, label=label)


def test_items_have_the_labels_that_a_function_gives_them() -> None:
    store = MemoryStore()
    run = failure_of(
        labelled(lambda page: f"page {page}"), Work(pages=["one", "two", "x" * 200]), store=store
    )
    (row,) = store.events("r", kinds=("ItemsListed",))
    assert json.loads(row.body)["labels"] == ["page one", "page two", f"page {'x' * 94}…"]
    assert (run.error.item, run.error.label) == (1, "page two")
    assert run.error.describe() == "ValueError: item 1 (page two): torn"
    assert verification.verify(store, "r").problems == []


def test_the_message_of_a_failed_fan_out_is_that_of_the_exception_and_the_item_a_field() -> None:
    store = MemoryStore()
    run = failure_of(labelled(None), Work(pages=["one", "two"]), store=store)
    assert (run.error.message, run.error.item, run.error.label) == ("torn", 1, "")
    assert run.nodes["read"].error.message == "torn"
    assert store.run("r").error == "ValueError: item 1: torn"


def test_a_label_may_be_added_while_a_run_is_open() -> None:
    store = MemoryStore()
    failure_of(labelled(None), Work(pages=["one", "two"]), store=store)
    changed = fanned(lambda page: {"log": [page]}, label=str)
    retried = in_engine(lambda engine: engine.retry("r", "read", fresh=True), store, flows=[changed])
    (_, again) = store.events("r", kinds=("ItemsListed",))
    assert json.loads(again.body)["labels"] == ["one", "two"]
    assert retried.status == "completed"


def test_what_an_item_waits_for_is_said_with_its_label() -> None:
    async def body(page: str, ctx: hf.Context) -> None:
        await (ctx.ask("Read it?") if page == "one" else ctx.wait_for("read"))

    store = MemoryStore()
    run = quickly(fanned(body, label=lambda page: f"page {page}"), Work(pages=["one", "two"]), store=store)
    assert run.status == "waiting"
    assert Reader(store).diagnose("r").expects == (
        "read (item 0, page one) asks: Read it?",
        "read (item 1, page two) waits for the signal 'read'",
    )
    assert verification.verify(store, "r").problems == []


def test_a_log_of_a_fan_out_without_labels_is_as_it_was() -> None:
    store = MemoryStore()
    quickly(fanned(lambda page: None), Work(pages=["one"]), store=store)
    (row,) = store.events("r", kinds=("ItemsListed",))
    assert b"labels" not in row.body


def test_a_label_that_cannot_be_made_fails_the_node_before_any_item() -> None:
    store = MemoryStore()
    run = failure_of(labelled(lambda page: page["name"]), Work(pages=["one"]), store=store)
    assert (run.error.type, run.failed_node) == ("TypeError", "read")
    assert "label=" not in run.error.message
    assert "raised by label= of node 'read' for item 0" in run.error.advice
    assert store.events("r", kinds=("ItemStarted",)) == []


@pytest.mark.parametrize(
    ("made", "says"), [(7, "label= returned 7 for item 0; return a str"), ("a\nb", "control characters")]
)
def test_a_label_is_a_text_in_one_line(made: Any, says: str) -> None:
    run = failure_of(labelled(lambda page: made), Work(pages=["one"]))
    assert (run.error.type, says in run.error.message) == ("StateError", True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"label": str}, "label= names the items of a fan-out; add each="),
        ({"each": list, "label": "url"}, "label='url'; give a function of the item"),
    ],
)
def test_a_label_without_items_to_name_is_refused(options: dict[str, Any], says: str) -> None:
    graph = Graph("fan", Work)
    graph.node(name="read", **options)(lambda page: None)
    with pytest.raises(hf.GraphError) as refused:
        graph.chain(START, "read", END).compile()
    assert says in str(refused.value)


def test_an_item_has_retries_of_its_own() -> None:
    tried: dict[str, int] = {}

    def body(page: str, ctx: hf.Context) -> dict[str, Any]:
        tried[page] = ctx.attempt
        if page == "two" and ctx.attempt < 3:
            raise hf.Recoverable("busy")
        return {"log": [page]}

    run = quickly(fanned(body), Work(pages=["one", "two"]))
    assert (tried, run.state.log) == ({"one": 1, "two": 3}, ["one", "two"])


def test_an_item_that_takes_too_long_fails_by_itself() -> None:
    async def body(page: str, ctx: hf.Context) -> dict[str, Any]:
        if page == "two" and ctx.attempt == 1:
            await asyncio.Event().wait()
        return {"log": [f"{page} {ctx.attempt}"]}

    run = quickly(fanned(body, timeout=5), Work(pages=["one", "two"]))
    assert run.state.log == ["one 1", "two 2"]


def test_items_that_were_done_before_a_crash_do_not_run_again() -> None:
    ran, store = [], MemoryStore()
    flow = fanned(lambda page: ran.append(page) or {"log": [page]})
    history = History("r", flow).created(Work(pages=["one", "two", "three"])).started("read")
    history.item_completed("read", 1, {"log": ["two"]}).write(store, holder=dead_process())
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (sorted(ran), run.state.log) == (["one", "three"], ["one", "two", "three"])


def test_two_items_that_set_one_plain_field_are_refused_by_number() -> None:
    run = failure_of(fanned(lambda page: {"plain": page}), Work(pages=["one", "two"]))
    assert "items 0 and 1 both set 'plain'" in run.error.message


def test_one_item_alone_may_set_a_plain_field() -> None:
    graph = Graph("fan", Work)
    graph.node(name="read", each=lambda state: state.pages)(
        lambda page: {"number": 1.0} if page == "two" else None
    )
    flow = graph.chain(START, "read", END).compile()
    assert quickly(flow, Work(pages=["one", "two"])).state.number == 1.0


@pytest.mark.parametrize(
    ("each", "said"),
    [
        (lambda s: 3, "each= returned 3; return a list of items"),
        (lambda s: [object()], "item 0"),
        (lambda s: s.nothing, "nothing"),
    ],
)
def test_items_that_cannot_be_listed_fail_the_node(each: Any, said: str) -> None:
    graph = Graph("fan", Work)
    graph.node(name="read", each=each)(lambda page: None)
    run = failure_of(graph.chain(START, "read", END).compile())
    assert (run.failed_node, said in run.error.message) == ("read", True)


def test_a_fresh_retry_of_a_fan_out_keeps_nothing() -> None:
    ran, store, broken = [], MemoryStore(), [True]

    def body(page: str) -> dict[str, Any]:
        ran.append(page)
        if page == "two" and broken:
            raise ValueError("torn")
        return {"log": [page]}

    flow = fanned(body)
    failure_of(flow, Work(pages=["one", "two"]), store=store)
    broken.clear()
    ran.clear()
    run = in_engine(lambda engine: engine.retry("r", fresh=True), store, flows=[flow])
    assert (sorted(ran), run.state.log) == (["one", "two"], ["one", "two"])


# --- layers ------------------------------------------------------------------------------------------


def longest(old: str | None, new: str) -> str:
    return max((old or "", new), key=len)


@dataclass
class Best:
    best: Annotated[str, longest] = ""
    order: Annotated[list[str], append] = field(default_factory=list)


def layered(ran: list[str], broken: set[str] = frozenset()) -> Flow[Best]:  # type: ignore[assignment]
    graph = Graph("layers", Best)
    for name in ("short", "longest_word", "middle"):

        async def body(state: Best, ctx: hf.Context) -> dict[str, Any]:
            ran.append(ctx.node)
            for _ in range(30 if ctx.node == "short" else 0):
                await asyncio.sleep(0)
            if ctx.node in broken:
                raise ValueError("broken")
            assert state.order == [], "nothing of a layer is seen before it is complete"
            return {"best": ctx.node, "order": [ctx.node]}

        graph.node(name=name)(body)
        graph.chain(START, name, "end")
    graph.node(name="end")(lambda state, ctx: ran.append(ctx.node) or {"best": "end", "order": ["end"]})
    return graph.edge("end", END).compile(schedule="layered")


def test_a_layer_is_merged_in_node_order_by_reducers_of_the_users_own() -> None:
    run = quickly(layered([]))
    assert run.state == Best("longest_word", ["short", "longest_word", "middle", "end"])
    assert run.layer == 2


def test_a_layer_that_was_cut_runs_only_what_is_missing_and_merges_the_same() -> None:
    ran: list[str] = []
    flow, store = layered(ran), MemoryStore()
    history = History("r", flow).created(Best()).started("short", "longest_word", "middle")
    history.completed("middle", {"best": "middle", "order": ["middle"]})
    history.write(store, holder=dead_process())
    assert in_engine(lambda engine: engine.get("r"), store, flows=[flow]).state == Best()
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert sorted(ran) == ["end", "longest_word", "short"]
    assert run.state == Best("longest_word", ["short", "longest_word", "middle", "end"])
    assert verification.verify(store, "r").problems == []


def test_a_node_that_fails_holds_its_layer_and_the_others_stay_done() -> None:
    ran: list[str] = []
    broken, store = {"middle"}, MemoryStore()
    flow = layered(ran, broken)
    failure_of(flow, store=store)
    assert sorted(ran) == ["longest_word", "middle", "short"]
    broken.clear()
    ran.clear()
    run = in_engine(lambda engine: engine.resume("r"), store, flows=[flow])
    assert (ran, run.state.best) == (["middle", "end"], "longest_word")


def test_a_skipped_node_takes_its_place_in_the_layer() -> None:
    ran: list[str] = []
    store = MemoryStore()
    flow = layered(ran, {"middle"})
    failure_of(flow, store=store)
    run = in_engine(lambda engine: engine.skip("r", "middle", {"order": ["put"]}), store, flows=[flow])
    assert run.state.order == ["short", "longest_word", "put", "end"]


moody: list[bool] = []


def joined(old: str, new: str) -> str:
    if moody:
        raise RuntimeError("not today")
    return old + new


@dataclass
class Moody:
    text: Annotated[str, joined] = ""


@pytest.mark.parametrize("schedule", ["eager", "layered"])
def test_a_reducer_that_raises_fails_its_node_and_can_be_resumed(schedule: str) -> None:
    moody.append(True)
    ran: list[int] = []
    graph = Graph("moody", Moody)
    graph.node(name="only")(lambda state: ran.append(1) or {"text": "x"})
    flow, store = graph.chain(START, "only", END).compile(schedule=schedule), MemoryStore()
    assert "not today" in failure_of(flow, store=store).error.message
    moody.clear()
    assert in_engine(lambda engine: engine.resume("r"), store, flows=[flow]).state.text == "x"
