"""A fork of a fork repeats no effect of any run that it descends from, also if that run had the effect after the first fork."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import OnServer, Stage, Work

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.reading.reader import Reader
from holdfast.storage.rows import open_row
from holdfast.testing import check


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stage(request: Any, tmp_path: Path) -> Any:
    stage = OnServer(tmp_path) if request.param == "postgres" else Stage(request.param, tmp_path)
    yield stage
    stage.close()


class Shop:
    """The flow `agree -> pay`. `agree` asks; `pay` is not idempotent, and its calls are counted by the run that made them."""

    def __init__(self, stage: Stage, pay: str = "pay", first: str | None = None) -> None:
        self.stage = stage
        self.paid: list[str] = []
        self.keys: list[str] = []
        self.flow = self.make(pay, first)

    def make(self, pay: str, first: str | None = None) -> Flow[Work]:
        graph = Graph("shop", Work)
        before = [first] if first is not None else []
        for name in before:
            graph.node(name=name)(lambda state: {"log": ["packed"]})
        graph.node(name="agree", approve="Shall we pay?")(lambda state: {"log": ["agreed"]})
        graph.node(name=pay, idempotent=False)(self.pay)
        return graph.chain(START, *before, "agree", pay, END).compile()

    def pay(self, state: Work, ctx: hf.Context) -> dict[str, Any]:
        self.paid.append(ctx.run_id)
        self.keys.append(ctx.idempotency_key())
        return {"log": [f"paid by {ctx.run_id}"]}

    def do(self, verb: str, *args: Any, **given: Any) -> Any:
        return self.stage.do(lambda engine: getattr(engine, verb)(*args, **given), self.flow)

    def go(self, run_id: str) -> hf.Run[Any]:
        """Approve, and execute the run until it stops or asks about something else."""
        run: hf.Run[Any] = self.do("resume", run_id)
        if [one.node for one in run.questions] == ["agree"]:
            self.do("answer", run_id, "agree", "approve")
            run = self.do("resume", run_id)
        return run

    def forked(self, run_id: str) -> Any:
        (row,) = self.stage.store.events(run_id, kinds=("RunForked",))
        return open_row(row, self.stage.store.blobs).event


@pytest.fixture
def shop(stage: Stage) -> Shop:
    """The run `r` waits before it pays, and `f1` was forked from it."""
    shop = Shop(stage)
    shop.stage.run(shop.flow)
    shop.do("fork", "r", run_id="f1")
    return shop


def test_a_fork_of_a_fork_asks_before_it_repeats_what_the_first_run_did_meanwhile(shop: Shop) -> None:
    assert shop.go("r").status == "completed"
    shop.do("fork", "f1", run_id="f2")
    ((node, run, result),) = [(one.node, one.run, one.result) for one in shop.forked("f2").visits]
    assert (node, run, result.append) == ("pay", "r", {"log": ["paid by r"]})
    waits = shop.go("f2")
    assert (waits.status, [one.about for one in waits.questions], shop.paid) == ("waiting", ["repeat"], ["r"])
    shop.do("answer", "f2", "pay", "skip")
    ended = shop.do("resume", "f2")
    assert (ended.state.log, shop.paid) == (["agreed", "paid by r"], ["r"])
    assert [str(found) for found in check(shop.stage.store)] == []


def test_what_any_ancestor_has_begun_counts(shop: Shop) -> None:
    shop.do("fork", "f1", run_id="f2")
    shop.do("fork", "f2", run_id="f3")
    shop.go("r")
    shop.do("fork", "f3", run_id="f4", repeat="run")
    assert [(one.node, one.run) for one in shop.forked("f4").visits] == [("pay", "r")]
    assert shop.go("f4").status == "completed"
    assert (shop.paid, len(set(shop.keys))) == (["r", "f4"], 2)  # it was decided, so it has a key of its own


def test_what_the_parent_has_done_itself_is_not_asked_about_because_an_ancestor_did_it_too(
    shop: Shop,
) -> None:
    shop.go("r")
    shop.go("f1")
    assert (shop.paid, len(set(shop.keys))) == (["r", "f1"], 1)
    shop.do("fork", "f1", run_id="f2")
    assert shop.forked("f2").visits == []
    assert shop.do("resume", "f2").status == "completed"
    assert shop.paid == ["r", "f1"]


def test_what_an_ancestor_does_after_the_fork_was_made_does_not_count(shop: Shop) -> None:
    shop.do("fork", "f1", run_id="f2")
    shop.go("r")
    assert (shop.forked("f2").visits, shop.go("f2").status) == ([], "completed")
    assert (shop.paid, len(set(shop.keys))) == (["r", "f2"], 1)


def test_a_step_of_an_ancestor_counts_too(stage: Stage) -> None:
    graph, done = Graph("steps", Work), []

    @graph.node(approve="Go on?")
    def agree(state: Work) -> dict[str, Any]:
        return {}

    async def transfer() -> int:
        done.append("moved")
        return 1

    transfer_once = hf.Step("move", idempotent=False)

    @graph.node
    async def move(state: Work, ctx: hf.Context) -> dict[str, Any]:
        await ctx.step(transfer_once, transfer)
        return {}

    flow = graph.chain(START, "agree", "move", END).compile()
    stage.run(flow)
    stage.do(lambda engine: engine.fork("r", run_id="f1"), flow)
    stage.do(lambda engine: engine.answer("r", "agree", "approve"), flow)
    stage.do(lambda engine: engine.resume("r"), flow)
    stage.do(lambda engine: engine.fork("f1", run_id="f2"), flow)
    stage.do(lambda engine: engine.resume("f2"), flow)
    stage.do(lambda engine: engine.answer("f2", "agree", "approve"), flow)
    waits = stage.do(lambda engine: engine.resume("f2"), flow)
    assert (waits.status, [one.about for one in waits.questions], done) == ("waiting", ["repeat"], ["moved"])


def test_a_node_that_was_renamed_in_the_fork_is_the_node_of_the_ancestor(stage: Stage) -> None:
    shop = Shop(stage, first="pack")
    shop.stage.run(shop.flow)
    shop.do("fork", "r@1", run_id="f1")
    shop.go("r")
    shop.flow = shop.make("charge", "pack")
    shop.do("resume", "f1", rename={"pay": "charge"})
    shop.do("fork", "f1", run_id="f2")
    assert [(one.node, one.run) for one in shop.forked("f2").visits] == [("charge", "r")]
    assert [one.about for one in shop.go("f2").questions] == ["repeat"]


def test_of_an_ancestor_that_the_store_does_not_have_counts_what_its_nearest_descendant_knows(
    tmp_path: Path,
) -> None:
    """A fork may have come into the store without its parent, from an archive."""
    shop = Shop(Stage("memory", tmp_path))
    shop.stage.run(shop.flow)
    shop.do("fork", "r", run_id="f1")
    shop.go("r")
    shop.do("fork", "f1", run_id="f2")
    del shop.stage.store._data.runs["r"]
    shop.do("fork", "f1", run_id="of-f1")
    shop.do("fork", "f2", run_id="of-f2")
    assert shop.forked("of-f1").visits == []  # f1 was made before r paid
    assert [(one.node, one.run) for one in shop.forked("of-f2").visits] == [("pay", "r")]
    shop.stage.clock.advance(60)
    shop.stage.run(shop.flow)
    shop.go("r")
    shop.do("fork", "f1", run_id="another")
    assert shop.forked("another").visits == []  # the run that has the id r now is younger than f1
    shop.stage.close()


def test_the_preview_of_the_fork_names_the_effect_of_the_ancestor(shop: Shop) -> None:
    shop.go("r")
    preview = shop.do("preview", "f1", "fork")
    assert [(one.node, one.run) for one in preview.confirm] == [("pay", "r")]
    plan = Reader(shop.stage.store, {"shop": shop.flow}).plan_fork("f1")
    assert plan.asks_about == ("pay",)
    assert msgspec.json.encode(preview)
