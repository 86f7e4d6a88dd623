"""A fork repeats no effect unasked: what it asks, what each answer does, under which keys nodes run again, and when two forks
are the same.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

import holdfast as hf
from holdfast import END, START, Flow, Graph, add, append
from holdfast.core import events
from holdfast.core.fold import fold
from holdfast.reading import history, verification
from holdfast.reading.reader import Reader
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import open_row
from holdfast.testing import check
from holdfast.testing.builders import History


@dataclass
class Order:
    log: Annotated[list[str], append] = field(default_factory=list)
    paid: Annotated[int, add] = 0
    items: list[int] = field(default_factory=lambda: [10, 20, 30])
    rounds: int = 0
    city: str = "Ulm"


class Shop:
    """A store, and every call of a node: run, node, iteration, item and idempotency key. Each verb has an engine of its own."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.called: list[tuple[str, str, int, int | None, str]] = []
        self.broken: dict[str, Callable[[hf.Context], bool]] = {}
        self.flows: list[Flow[Any]] = []

    def charge(self, state: Any, ctx: hf.Context) -> dict[str, Any]:
        self.called.append((ctx.run_id, ctx.node, ctx.iteration, ctx.item, ctx.idempotency_key()))
        if ctx.node in self.broken and self.broken[ctx.node](ctx):
            raise ValueError("broken")
        place = "" if ctx.item is None else f"[{ctx.item}]"
        return {"log": [f"{ctx.run_id} {ctx.node}.{ctx.iteration}{place}"], "paid": 1}

    def chain(self, *names: str, risky: tuple[str, ...] = ("charge",), **options: Any) -> Flow[Order]:
        graph = Graph("order", Order)
        for name in names:
            graph.node(name=name, idempotent=name not in risky)(self.charge)
        graph.chain(START, *names, END)
        flow = graph.compile(**options)
        self.flows = [flow]
        return flow

    def __call__(self, verb: str, *args: Any, **given: Any) -> Any:
        async def use() -> Any:
            async with hf.Engine(self.store, flows=self.flows) as engine:
                return await getattr(engine, verb)(*args, **given)

        return asyncio.run(use())

    def place(self, kind: str, node: str | None = None, run_id: str = "r") -> str:
        return f"{run_id}@{self.store.events(run_id, kinds=(kind,), node=node)[-1].seq}"

    def calls(self, run_id: str) -> list[tuple[str, int, int | None]]:
        return [call[1:4] for call in self.called if call[0] == run_id]

    def keys(self, run_id: str, node: str) -> list[str]:
        return [call[4] for call in self.called if call[:2] == (run_id, node)]

    def forked(self, run_id: str) -> Any:
        return open_row(self.store.events(run_id, limit=1)[0], self.store.blobs).event

    def assert_sound(self, *run_ids: str) -> None:
        for run_id in run_ids:
            assert verification.verify(self.store, run_id).problems == []
        assert check(self.store) == []


@pytest.fixture
def shop() -> Shop:
    return Shop()


def completed(shop: Shop, *names: str, **options: Any) -> Flow[Order]:
    flow = shop.chain(*names, **options)
    shop("run", flow, run_id="r")
    return flow


# --- the question ------------------------------------------------------------------------------------


def test_a_fork_asks_before_it_repeats_a_node_that_is_not_idempotent(shop: Shop) -> None:
    completed(shop, "look", "charge", "send")
    shop("fork", shop.place("NodeCompleted", "look"), run_id="f")
    run = shop("resume", "f")
    (question,) = run.questions
    assert (run.status, question.key, question.about) == ("waiting", "charge.1.1.repeat", "repeat")
    assert question.options == ["run", "skip", "abort"]
    assert re.match(
        r"'charge' was completed at .* UTC by run 'r', from which this run was forked\. ", question.text
    )
    assert question.partial["result"] == {"append": {"log": ["r charge.1"]}, "add": {"paid": 1}}
    assert shop.calls("f") == []
    shop.assert_sound("f")


@pytest.mark.parametrize(
    ("answer", "calls", "log"),
    [
        ("run", ["charge", "send"], ["r look.1", "f charge.1", "f send.1"]),
        ("skip", ["send"], ["r look.1", "r charge.1", "f send.1"]),
    ],
)
def test_the_answer_says_whether_the_fork_runs_or_skips_it(
    shop: Shop, answer: str, calls: list[str], log: list[str]
) -> None:
    completed(shop, "look", "charge", "send")
    shop("fork", shop.place("NodeCompleted", "look"), run_id="f")
    shop("resume", "f")
    flows, shop.flows = shop.flows, []
    shop("answer", "f", "charge", answer)  # needs no flow
    shop.flows = flows
    run = shop("resume", "f")
    assert (run.status, run.state.log, run.state.paid) == ("completed", log, 3)
    assert [node for node, _, _ in shop.calls("f")] == calls
    shop.assert_sound("f")


def test_the_answer_abort_cancels_the_fork(shop: Shop) -> None:
    completed(shop, "look", "charge")
    shop("fork", "r@1", run_id="f")
    shop("resume", "f")
    assert shop("answer", "f", "charge", "abort").status == "cancelled"
    assert shop.calls("f") == [("look", 1, None)]
    with pytest.raises(hf.RunOver):
        shop("resume", "f")
    shop.assert_sound("f")


def test_an_answer_that_is_no_option_is_refused(shop: Shop) -> None:
    completed(shop, "charge")
    shop("fork", "r@1", run_id="f")
    shop("resume", "f")
    with pytest.raises(hf.AnswerRefused, match="run"):
        shop("answer", "f", "charge", "retry")
    with pytest.raises(hf.AnswerRefused, match="update"):
        shop("answer", "f", "charge", "skip", update={"paid": 1})


def test_a_node_that_began_before_the_place_and_completed_after_it_is_asked_about(shop: Shop) -> None:
    flow = parallel(shop)
    told = History("r", flow).created().started("charge").completed("look", {"log": ["r look.1"]})
    place = told.state.seq
    told.completed("charge", {"log": ["r charge.1"]}).settled().write(shop.store)
    shop("fork", f"r@{place}", run_id="f")
    run = shop("resume", "f")
    assert [(one.key, one.about) for one in run.questions] == [("charge.1.2.repeat", "repeat")]
    shop("answer", "f", "charge", "skip")
    assert shop("resume", "f").state.log == ["r look.1", "r charge.1"]
    assert shop.calls("f") == []
    shop.assert_sound("f")


def parallel(shop: Shop) -> Flow[Order]:
    graph = Graph("order", Order)
    for name in ("charge", "look"):
        graph.node(name=name, idempotent=name != "charge")(shop.charge)
        graph.chain(START, name, END)
    shop.flows = [graph.compile()]
    return shop.flows[0]


def test_a_node_that_began_and_failed_is_asked_about_and_skipped_without_a_result(shop: Shop) -> None:
    flow = shop.chain("look", "charge", "send")
    shop.broken["charge"] = lambda ctx: True
    with pytest.raises(hf.RunFailed):
        shop("run", flow, run_id="r")
    shop.broken.clear()
    shop("fork", "r", run_id="f", repeat={"charge": "skip"})
    run = shop("resume", "f")
    assert (run.status, run.state.log) == ("completed", ["r look.1", "f send.1"])
    shop("fork", "r", run_id="g")
    (question,) = shop("resume", "g").questions
    assert "'charge' was begun at" in question.text
    assert "may or may not have happened" in question.text
    shop("answer", "g", "charge", "run")
    assert shop("resume", "g").state.log == ["r look.1", "g charge.1", "g send.1"]
    shop.assert_sound("f", "g")


def test_what_a_rewind_of_the_parent_has_undone_is_asked_about_too(shop: Shop) -> None:
    flow = shop.chain("look", "charge", "send")
    shop.broken["send"] = lambda ctx: True
    with pytest.raises(hf.RunFailed):
        shop("run", flow, run_id="r")
    with pytest.raises(hf.RunFailed):
        shop("resume", "r@1", force=True, edit={"city": "Bonn"})
    shop.broken["look"] = lambda ctx: True
    with pytest.raises(hf.RunFailed):
        shop("resume", "r@1", force=True)
    shop.broken.clear()
    shop("fork", "r@1", run_id="f", repeat="skip")
    assert [one.node for one in shop.forked("f").visits] == ["charge"]
    assert shop("resume", "f").state.log == ["f look.1", "r charge.1", "f send.1"]


def test_the_parent_may_go_on_afterwards_and_what_it_does_then_does_not_count(shop: Shop) -> None:
    flow = shop.chain("look", "charge")
    shop.broken["look"] = lambda ctx: True
    with pytest.raises(hf.RunFailed):
        shop("run", flow, run_id="r")
    shop.broken.clear()
    shop("fork", "r", run_id="f")
    shop("resume", "r")
    assert shop("resume", "f").status == "completed"
    assert shop.keys("r", "charge") == shop.keys("f", "charge")


# --- loops, gates, layers, fan-outs ------------------------------------------------------------------


def loop(shop: Shop, **node: Any) -> Flow[Order]:
    graph = Graph("order", Order)
    graph.node(name="charge", idempotent=False, **node)(
        lambda state, ctx: {**shop.charge(state, ctx), "rounds": state.rounds + 1}
    )
    graph.edge(START, "charge")
    graph.branch("charge", lambda state: "charge" if state.rounds < 3 else END, to=["charge", END])
    flow = graph.compile()
    shop.flows = [flow]
    return flow


def test_each_round_of_a_loop_is_a_visit_of_its_own(shop: Shop) -> None:
    shop("run", loop(shop), run_id="r")
    second = shop.store.events("r", kinds=("NodeCompleted",))[0].seq
    shop("fork", f"r@{second}", run_id="f")
    run = shop("resume", "f")
    assert [question.key for question in run.questions] == ["charge.2.1.repeat"]
    shop("answer", "f", "charge", "run")
    run = shop("resume", "f")
    assert [question.key for question in run.questions] == ["charge.3.1.repeat"]
    shop("answer", "f", "charge", "skip")
    run = shop("resume", "f")
    assert run.state.log == ["r charge.1", "f charge.2", "r charge.3"]
    assert shop.keys("f", "charge") != shop.keys("r", "charge")[1:2]
    shop.assert_sound("f")


def test_the_question_comes_before_the_approval_and_a_skip_needs_none(shop: Shop) -> None:
    shop("start", loop(shop, approve="Sure?"), run_id="r")
    for _ in range(3):
        shop("resume", "r")
        shop("answer", "r", "charge", "approve")
    assert shop("resume", "r").status == "completed"
    shop("fork", "r@1", run_id="f", repeat="skip")
    assert shop("resume", "f").state.log == ["r charge.1", "r charge.2", "r charge.3"]
    shop("fork", "r@1", run_id="g")
    (question,) = shop("resume", "g").questions
    assert question.about == "repeat"
    shop("answer", "g", "charge", "run")
    (question,) = shop("resume", "g").questions
    assert question.about == "gate"
    shop("answer", "g", "charge", "approve")
    assert [one.key for one in shop("resume", "g").questions] == ["charge.2.1.repeat"]
    assert shop.calls("g") == [("charge", 1, None)]
    shop.assert_sound("f", "g")


def test_in_a_layered_flow_too(shop: Shop) -> None:
    completed(shop, "look", "charge", "send", schedule="layered")
    shop("fork", "r@1", run_id="f")
    shop("resume", "f")
    shop("answer", "f", "charge", "skip")
    run = shop("resume", "f")
    assert run.state.log == ["f look.1", "r charge.1", "f send.1"]
    shop.assert_sound("f")


def fan(shop: Shop, **node: Any) -> Flow[Order]:
    graph = Graph("order", Order)
    graph.node(name="look")(shop.charge)
    graph.node(name="charge", idempotent=False, each=lambda state: state.items, limit=1, **node)(shop.charge)
    graph.chain(START, "look", "charge", END)
    flow = graph.compile()
    shop.flows = [flow]
    return flow


def test_a_fan_out_asks_once_and_only_its_begun_items_are_skipped(shop: Shop) -> None:
    flow = fan(shop)
    shop.broken["charge"] = lambda ctx: ctx.item == 1
    with pytest.raises(hf.RunFailed):
        shop("run", flow, run_id="r")
    shop.broken.clear()
    shop.store.events("r")
    begun = {one.item: one.result is not None for one in Reader(shop.store).plan_fork("r").begun}
    assert begun == {0: True, 1: False, 2: True}
    shop("fork", "r", run_id="f")
    (question,) = shop("resume", "f").questions
    assert (question.partial["items"], question.partial["items_done"]) == ([0, 1, 2], 2)
    shop("answer", "f", "charge", "skip")
    run = shop("resume", "f")
    assert (run.status, run.state.log) == ("completed", ["r look.1", "r charge.1[0]", "r charge.1[2]"])
    shop.assert_sound("f")


def test_items_that_the_parent_never_began_run_in_any_case(shop: Shop) -> None:
    flow = fan(shop)
    shop("run", flow, run_id="r")
    shop(
        "fork",
        shop.place("NodeCompleted", "look"),
        run_id="f",
        repeat="skip",
        edit={"items": [10, 20, 30, 40, 50]},
    )
    run = shop("resume", "f")
    assert run.state.log == [
        "r look.1",
        *(f"r charge.1[{item}]" for item in range(3)),
        "f charge.1[3]",
        "f charge.1[4]",
    ]
    shop("fork", shop.place("NodeCompleted", "look"), run_id="g", repeat="run", edit={"items": [1, 2, 3, 4]})
    shop("resume", "g")
    assert shop.calls("g") == [("charge", 1, item) for item in range(4)]
    assert not {*shop.keys("g", "charge")[:3]} & {*shop.keys("r", "charge")}
    assert shop.keys("g", "charge")[3] == shop.keys("f", "charge")[0]
    shop.assert_sound("f", "g")


def half_done(shop: Shop) -> str:
    """A fan-out with items 0 and 1 done and item 2 not begun, at a checkpoint in between (an answer)."""
    graph = Graph("order", Order)

    async def charge(item: int, ctx: hf.Context) -> dict[str, Any]:
        return shop.charge(item, ctx)

    graph.node(name="charge", idempotent=False, each=lambda state: state.items, limit=1)(charge)
    graph.chain(START, "charge", END)
    flow = graph.compile()
    shop.flows = [flow]
    shop.broken["charge"] = lambda ctx: ctx.item == 2
    with pytest.raises(hf.RunFailed):
        shop("run", flow, run_id="r")
    with pytest.raises(hf.RunFailed):
        shop("resume", "r", edit={"city": "Bonn"})
    shop.broken.clear()
    return shop.place("StateEdited")


def test_items_that_were_done_in_the_open_visit_are_used_without_asking(shop: Shop) -> None:
    place = half_done(shop)
    plan = Reader(shop.store).plan_fork(place)
    assert [(one.item, one.kept) for one in plan.begun] == [(0, True), (1, True), (2, False)]
    shop("fork", place, run_id="f", repeat="run")
    assert shop("resume", "f").state.log == ["r charge.1[0]", "r charge.1[1]", "f charge.1[2]"]
    assert shop.calls("f") == [("charge", 1, 2)]
    shop.assert_sound("f")


def test_after_an_edit_items_that_were_done_are_asked_about(shop: Shop) -> None:
    shop("fork", half_done(shop), run_id="f", edit={"city": "Kiel"})
    (question,) = shop("resume", "f").questions
    assert question.partial["items"] == [0, 1, 2]
    shop("answer", "f", "charge", "run")
    shop("resume", "f")
    assert shop.calls("f") == [("charge", 1, item) for item in range(3)]
    shop.assert_sound("f")


# --- keys --------------------------------------------------------------------------------------------


def test_a_fork_has_the_keys_of_its_parent_and_a_repeated_visit_has_its_own(shop: Shop) -> None:
    completed(shop, "look", "charge", "send")
    for fork in ("f", "g"):
        shop("fork", "r@1", run_id=fork, repeat={"charge": "run"})
        shop("resume", fork)
    assert shop.forked("f").lineage == "r"
    for node in ("look", "send"):
        assert shop.keys("r", node) == shop.keys("f", node) == shop.keys("g", node)
    assert len({*shop.keys("r", "charge"), *shop.keys("f", "charge"), *shop.keys("g", "charge")}) == 3


def test_a_fork_of_a_fork_has_the_keys_of_the_first_run_and_inherits_what_it_began(shop: Shop) -> None:
    completed(shop, "look", "charge", "send")
    shop("fork", "r@1", run_id="f")
    shop("fork", shop.place("RunForked", run_id="f"), run_id="g")
    (one,) = shop.forked("g").visits
    assert (shop.forked("g").lineage, one.node, one.run) == ("r", "charge", "r")
    (question,) = shop("resume", "g").questions
    assert "by run 'r'" in question.text
    assert shop.keys("g", "look") == shop.keys("r", "look")


def test_fresh_begins_a_lineage_and_still_asks(shop: Shop) -> None:
    completed(shop, "look", "charge", "send")
    shop("fork", "r@1", run_id="f", fresh=True)
    assert (shop.forked("f").lineage, shop.forked("f").fresh) == (None, True)
    assert shop("resume", "f").status == "waiting"
    shop("answer", "f", "charge", "run")
    shop("resume", "f")
    assert not {call[4] for call in shop.called if call[0] == "r"} & {
        call[4] for call in shop.called if call[0] == "f"
    }
    shop("fork", shop.place("RunForked", run_id="f"), run_id="g", repeat="run")
    assert shop.forked("g").lineage == "f"


def test_keys_of_runs_and_forks_that_exist_already_stay_what_they_are(shop: Shop) -> None:
    completed(shop, "look")
    assert shop.keys("r", "look") == ["hf-e8775c0a33f77e1e0d7bc08064995b360cedb100"]
    old = events.RunForked(
        parent="r", to=1, base_digest="d"
    )  # without a lineage, as earlier versions recorded it
    state = history.load(shop.store, "r", 1)
    state.run_id = "f"
    assert fold(state, events.Stored(2, 0.0, old)).key_root("look", 1, None) == "f"


def test_a_visit_that_the_parent_repeated_with_new_keys_keeps_them_in_a_fork(shop: Shop) -> None:
    flow = shop.chain("look", "send", risky=())
    shop.broken["look"] = lambda ctx: True
    with pytest.raises(hf.RunFailed):
        shop("run", flow, run_id="r")
    shop.broken.clear()
    shop("retry", "r", "look", fresh=True)
    shop("fork", "r@1", run_id="f")
    shop("resume", "f")
    first, second = shop.keys("r", "look")
    assert first != second
    assert shop.keys("f", "look") == [second]


# --- on interrupts and rewinds -----------------------------------------------------------------------


def test_a_rewind_of_the_fork_asks_again_under_another_key(shop: Shop) -> None:
    completed(shop, "look", "charge", "send")
    shop("fork", "r@1", run_id="f")
    shop("resume", "f")
    first = shop.place("RunForked", run_id="f")
    assert [one.key for one in shop("resume", first).questions] == ["charge.1.2.repeat"]
    shop("answer", "f", "charge", "skip")
    assert shop("resume", first).status == "waiting"
    with pytest.raises(hf.AnswerRefused):
        shop("answer", "f", "charge.1.2.repeat", "run")
    shop("answer", "f", "charge", "skip")
    assert shop("resume", "f").state.log == ["f look.1", "r charge.1", "f send.1"]
    shop.assert_sound("f")


def test_a_caller_may_skip_the_visit_with_an_update_instead_of_answering(shop: Shop) -> None:
    completed(shop, "look", "charge", "send")
    shop("fork", "r@1", run_id="f")
    shop("resume", "f")
    with pytest.raises(hf.ResumeRefused, match="Answer the question"):
        shop("retry", "f", "charge")
    run = shop("skip", "f", "charge", {"paid": 7})
    assert (run.status, run.state.paid, run.questions) == ("completed", 9, ())
    shop.assert_sound("f")


def test_a_fork_that_crashes_in_a_repeated_visit_asks_about_the_crash(shop: Shop) -> None:
    completed(shop, "look", "charge", "send")
    shop("fork", "r@1", run_id="f", repeat="run")
    shop.broken["charge"] = _timeout
    run = shop("resume", "f")
    assert [(one.about, one.key) for one in run.questions] == [("interrupt", "charge.1.1.1")]
    shop.broken.clear()
    shop("answer", "f", "charge", "retry")
    assert shop("resume", "f").status == "completed"
    assert len({*shop.keys("f", "charge")}) == 1
    shop.assert_sound("f")


def _timeout(ctx: hf.Context) -> bool:
    raise TimeoutError("no reply")


# --- changed flows, compacted logs, workers ----------------------------------------------------------


def test_a_fork_of_a_compacted_run_asks_about_what_the_lost_events_had_begun(shop: Shop) -> None:
    flow = shop.chain("look", "pack", "pick", "charge", "send")
    shop.broken["send"] = lambda ctx: True
    with pytest.raises(hf.RunFailed):
        shop("run", flow, run_id="r")
    shop.broken["pick"] = lambda ctx: True
    with pytest.raises(hf.RunFailed):
        shop("resume", "r@1", force=True)
    assert shop("prune", "r", 1, compact=True).events > 0
    assert shop.store.events("r", node="charge") == []
    shop.broken.clear()
    plan = Reader(shop.store).plan_fork("r")
    assert [(one.node, one.result) for one in plan.begun] == [("charge", None)]
    shop("fork", "r", run_id="f")
    (question,) = shop("resume", "f").questions
    assert "was not completed" in question.text
    shop("answer", "f", "charge", "skip")
    assert shop("resume", "f").state.log == ["r look.1", "r pack.1", "f pick.1", "f send.1"]


def test_a_renamed_node_is_asked_about_before_and_after_its_renaming(shop: Shop) -> None:
    flow = shop.chain("look", "charge", "send")
    shop.broken["send"] = lambda ctx: True
    with pytest.raises(hf.RunFailed):
        shop("run", flow, run_id="r")
    shop.broken.clear()
    shop.chain("look", "pay", "send", risky=("pay",))
    shop("resume", "r", rename={"charge": "pay"}, on_change="compatible")
    shop("fork", "r@1", run_id="f")
    assert [one.node for one in shop.forked("f").visits] == ["charge"]
    run = shop("resume", "f", rename={"charge": "pay"}, on_change="compatible")
    assert [(one.node, one.about) for one in run.questions] == [("pay", "repeat")]
    shop("answer", "f", "pay", "skip")
    assert shop("resume", "f").state.log == ["f look.1", "r charge.1", "f send.1"]
    shop.assert_sound("f")


def test_a_result_that_does_not_fit_any_more_fails_the_run_and_repeats_nothing(shop: Shop) -> None:
    completed(shop, "look", "charge", "send")
    shop("fork", "r@1", run_id="f", repeat="skip")

    @dataclass
    class Narrow:
        log: Annotated[list[str], append] = field(default_factory=list)
        items: list[int] = field(default_factory=list)
        city: str = "Ulm"
        rounds: int = 0
        paid: str = ""

    graph = Graph("order", Narrow, version=2, upgrades={1: lambda values: {**values, "paid": "none"}})
    for name in ("look", "charge", "send"):
        graph.node(name=name, idempotent=name != "charge")(
            lambda state, ctx: {"log": [f"{ctx.run_id} {ctx.node}"]}
        )
    shop.flows = [graph.chain(START, "look", "charge", "send", END).compile()]
    with pytest.raises(hf.RunFailed, match="does not fit the state"):
        shop("resume", "f", on_change="compatible")
    run = shop("resume", "f", edit={"paid": "once"}, on_change="compatible")
    assert (run.status, run.state.log, run.state.paid) == ("completed", ["f look", "f send"], "once")


def test_a_worker_takes_a_fork_asks_and_goes_on_with_the_answer(shop: Shop) -> None:
    completed(shop, "look", "charge", "send")
    shop("fork", "r@1", run_id="f")
    shop("work", until="idle")
    assert shop("get", "f").status == "waiting"
    shop("answer", "f", "charge", "skip")
    assert shop("get", "f").status == "pending"
    shop("work", until="idle")
    assert shop("get", "f").status == "completed"
    assert [node for node, _, _ in shop.calls("f")] == ["look", "send"]


def test_a_plan_says_what_comes_next_and_what_the_parent_has_begun(shop: Shop) -> None:
    completed(shop, "look", "charge", "send")
    plan = Reader(shop.store).plan_fork(shop.place("NodeCompleted", "look"))
    assert (plan.parent, plan.lineage, plan.next, plan.asks_about) == ("r", "r", ("charge",), ("charge",))
    assert plan.idempotent == {"look": True, "charge": False, "send": True}
    with pytest.raises(hf.ResumeRefused, match="not a checkpoint"):
        Reader(shop.store).plan_fork("r@2")


def test_a_diagnosis_of_a_fork_that_asks_says_what_each_answer_does(shop: Shop) -> None:
    completed(shop, "look", "charge", "send")
    shop("fork", "r@1", run_id="f")
    shop("resume", "f")
    found = Reader(shop.store).diagnose("f")
    assert "charge was completed" in found.reason
    told = {remedy.arguments.get("value"): remedy for remedy in found.remedies if remedy.verb == "answer"}
    assert [*told] == ["run", "skip", "abort"]
    assert told["skip"].command == "holdfast answer f charge skip"
    assert "the result that it had in the parent" in told["skip"].words


def test_a_node_that_the_given_flow_marks_is_not_idempotent_whatever_its_run_knew(shop: Shop) -> None:
    completed(shop, "look", "charge", risky=())
    shop.chain("look", "charge", risky=("charge",))
    shop("fork", "r@1", run_id="f")
    assert [one.node for one in shop.forked("f").visits] == ["charge"]


# --- bad input, and the same fork twice --------------------------------------------------------------


@pytest.mark.parametrize(
    ("repeat", "told"),
    [
        ("again", "'ask', 'run', 'skip'"),
        (7, "'ask', 'run', 'skip'"),
        ({"charge": "retry"}, "'retry' is not valid"),
        ({"chrage": "run"}, "did you mean 'charge'"),
        ({"look": "run"}, "'look' is idempotent"),
    ],
)
def test_a_repeat_that_cannot_be_meant_is_refused(shop: Shop, repeat: Any, told: str) -> None:
    completed(shop, "look", "charge")
    with pytest.raises(hf.SettingError, match=told):
        shop("fork", "r@1", run_id="f", repeat=repeat)
    with pytest.raises(hf.RunNotFound):
        shop("get", "f")


SAME: list[dict[str, Any]] = [
    {},
    {"edit": {"city": "Kiel"}},
    {"edit": lambda state: {"city": "Kiel"}},
    {"repeat": "run"},
    {"repeat": {"charge": "skip"}},
    {"fresh": True},
]


@pytest.mark.parametrize("given", SAME)
def test_the_same_fork_twice_is_one_run(shop: Shop, given: dict[str, Any]) -> None:
    completed(shop, "look", "charge")
    assert shop("fork", "r@1", run_id="f", **given) == "f"
    before = shop.store.run("f")
    assert shop("fork", "r@1", run_id="f", by="ann", labels={"x": "y"}, **given) == "f"
    assert shop.store.run("f") == before


@pytest.mark.parametrize("given", SAME)
@pytest.mark.parametrize("other", [{}, {"edit": {"city": "Bonn"}}, {"repeat": "skip", "fresh": True}])
def test_another_fork_under_the_same_id_is_refused(
    shop: Shop, given: dict[str, Any], other: dict[str, Any]
) -> None:
    completed(shop, "look", "charge")
    shop("fork", "r@1", run_id="f", **given)
    with pytest.raises(hf.RunExists, match="another origin"):
        shop("fork", shop.place("NodeCompleted", "look"), run_id="f", **given)
    if given != other:
        with pytest.raises(hf.RunExists, match="another origin"):
            shop("fork", "r@1", run_id="f", **other)


def test_no_execution_has_the_number_of_another_after_a_rewind_to_what_an_earlier_rewind_has_left() -> None:
    shop = Shop()
    flow = shop.chain("a", "charge", "ship", risky=())
    shop.broken["ship"] = lambda ctx: True
    with pytest.raises(hf.RunFailed):
        shop("run", flow, Order(), run_id="r")
    after_a, charged = shop.place("NodeCompleted", "a"), shop.place("NodeCompleted", "charge")
    for place in (after_a, charged, after_a, after_a):
        with pytest.raises(hf.RunFailed):
            shop("resume", place, force=True)
    begun = shop.store.events("r", kinds=("NodeStarted",), node="charge")
    assert [row.execution for row in begun] == [1, 2, 3, 4]
    assert check(shop.store) == []
