"""A family that failed is mended with one command: a resume or retry of its first caller reaches all that failed below it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from families import Order, Pay, Till, caller, children, kinds
from harness import Stage

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.reading.reader import Reader


class Family:
    """Three generations: `r` calls a shop, which calls `pay`."""

    def __init__(self, stage: Stage, **options: Any) -> None:
        self.stage, self.till = stage, Till()
        self.pay = self.till.pay(**options)
        self.shop = caller(self.pay, "shop")
        self.top = caller_of(self.shop)
        self.flows = (self.top, self.shop, self.pay)

    def fail(self) -> tuple[str, str]:
        """Execute the family, which fails because the till is broken, and mend the till. Returns the ids of the descendants."""
        self.till.is_broken = True
        self.stage.fails(self.top, Order(total=7))
        self.till.is_broken = False
        (middle,) = children(self.stage.store)
        (leaf,) = children(self.stage.store, middle)
        return middle, leaf

    def do(self, use: Any) -> Any:
        return self.stage.do(use, *self.flows)

    def statuses(self, *runs: str) -> list[str]:
        return [self.stage.store.run(run).status for run in ("r", *runs)]


def caller_of(flow: Flow[Order]) -> Flow[Order]:
    graph = Graph("top", Order)

    @graph.node
    async def sell(state: Order, ctx: hf.Context) -> dict[str, Any]:
        sold = await ctx.call(flow, Order(total=state.total, how=state.how))
        return {"log": sold.log}

    return graph.chain(START, "sell", END).compile()


def requests(stage: Stage, run_id: str) -> list[tuple[str, str]]:
    return [(one.id, one.verb) for one in stage.store.inbox(run_id=run_id) if one.verb != "child-ended"]


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_one_command_mends_three_generations(stage: Stage, verb: str) -> None:
    family = Family(stage)
    middle, leaf = family.fail()
    run = family.do(lambda engine: getattr(engine, verb)("r"))
    assert (run.status, run.state.log) == ("completed", [True, 7])
    assert family.statuses(middle, leaf) == ["completed"] * 3
    assert [amount for _, amount in family.till.charged] == [7]
    assert [kinds(stage.store, one).count("RunResumed") for one in ("r", middle, leaf)] == [1, 1, 1]


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_workers_mend_a_family_after_one_request(stage: Stage, verb: str) -> None:
    family = Family(stage)
    middle, leaf = family.fail()

    async def use(engine: hf.Engine) -> None:
        await getattr(engine, verb)("r", execute=False, id="mend it")
        await engine.work(until="idle", concurrency=1)

    family.do(use)
    assert family.statuses(middle, leaf) == ["completed"] * 3
    assert [amount for _, amount in family.till.charged] == [7]


def test_a_repeated_command_repeats_nothing(stage: Stage) -> None:
    family = Family(stage)
    middle, leaf = family.fail()
    family.till.is_broken = True

    async def use(engine: hf.Engine) -> bool:
        await engine.resume("r", execute=False, id="mend it")
        await engine.work(until="idle", concurrency=1)
        again = await engine.resume("r", execute=False, id="mend it")
        await engine.work(until="idle", concurrency=1)
        return again.repeated

    assert family.do(use)
    assert family.statuses(middle, leaf) == ["failed"] * 3
    assert [kinds(stage.store, one).count("RunResumed") for one in ("r", middle, leaf)] == [1, 1, 1]
    assert [len(requests(stage, one)) for one in (middle, leaf)] == [1, 1]
    family.till.is_broken = False
    assert family.do(lambda engine: engine.resume("r")).status == "completed"


# --- what has to be decided --------------------------------------------------------------------------


def test_a_node_of_a_descendant_that_is_not_idempotent_needs_to_be_confirmed(stage: Stage) -> None:
    family = Family(stage, idempotent=False)
    middle, leaf = family.fail()
    before = len(kinds(stage.store, "r"))
    for verb in ("resume", "retry"):
        with pytest.raises(hf.ResumeRefused) as refused:
            family.do(lambda engine, verb=verb: getattr(engine, verb)("r"))
        assert f"--confirm {leaf}/charge" in str(refused.value)
    assert (family.statuses(middle, leaf), len(kinds(stage.store, "r"))) == (["failed"] * 3, before)
    assert requests(stage, middle) == []
    run = family.do(lambda engine: engine.resume("r", confirm=[f"{leaf}/charge"]))
    assert (run.status, len(family.till.charged)) == ("completed", 1)


def test_a_retry_can_confirm_a_node_of_a_descendant(stage: Stage) -> None:
    family = Family(stage, idempotent=False)
    _, leaf = family.fail()
    run = family.do(lambda engine: engine.retry("r", "sell", confirm=[f"{leaf}/charge"]))
    assert (run.status, len(family.till.charged)) == ("completed", 1)


@pytest.mark.parametrize(
    ("verb", "name"), [("resume", "r/sell"), ("retry", "nobody/charge"), ("retry", "sell")]
)
def test_a_needless_confirmation_is_refused(stage: Stage, verb: str, name: str) -> None:
    family = Family(stage)
    middle, leaf = family.fail()
    with pytest.raises(hf.ResumeRefused, match="confirm names"):
        family.do(lambda engine: getattr(engine, verb)("r", confirm=[name]))
    assert family.statuses(middle, leaf) == ["failed"] * 3


def test_a_fatal_failure_of_a_descendant_needs_force(stage: Stage) -> None:
    till, is_gone = Till(), list[bool]()
    graph = Graph("pay", Pay)

    @graph.node
    async def charge(state: Pay) -> dict[str, Any]:
        if not is_gone:
            raise hf.Fatal("the account is closed")
        return {"paid": True}

    pay = graph.chain(START, "charge", END).compile()
    top = caller_of(caller(pay, "shop"))
    stage.fails(top, Order(total=7))
    for verb in ("resume", "retry"):
        with pytest.raises(hf.ResumeRefused, match=r"the account is closed.*`holdfast resume r .*--force`"):
            stage.do(lambda engine, verb=verb: getattr(engine, verb)("r"), top, pay)
    (way, *_) = Reader(stage.store).diagnose("r").remedies
    assert way.arguments == {"run": "r", "force": True}
    is_gone.append(True)
    assert (
        stage.do(lambda engine: engine.resume(**way.arguments), top, pay, *top.called).status == "completed"
    )
    assert till.charged == []


def test_the_preview_names_the_family_and_its_digest_covers_it(stage: Stage) -> None:
    family = Family(stage)
    middle, leaf = family.fail()

    async def use(engine: hf.Engine) -> list[hf.Preview]:
        first = await engine.preview("r", "resume")
        family.till.is_broken = True
        with pytest.raises(hf.RunFailed):
            await engine.resume(leaf)
        again = await engine.preview("r", "resume")
        family.till.is_broken = False
        await engine.resume(leaf)
        return [first, again, await engine.preview("r", "resume"), await engine.preview("r", "retry")]

    first, again, mended, retried = family.do(use)
    assert [(one.run_id, one.caller, one.left) for one in first.family] == [
        (middle, "r", None),
        (leaf, middle, None),
    ]
    assert [[node.node for node in one.rerun] for one in first.family] == [["settle"], ["charge"]]
    assert again.digest == first.digest  # it failed in the same way
    assert [one.run_id for one in mended.family] == [middle]
    assert mended.digest != first.digest
    assert [one.run_id for one in retried.family] == [middle]
    with pytest.raises(hf.PreviewStale):
        family.do(lambda engine: engine.resume("r", expects=first.digest))
    run = family.do(lambda engine: engine.resume("r", expects=mended.digest))
    assert (run.status, len(family.till.charged)) == ("completed", 1)


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_the_digest_of_a_descendant_goes_with_its_request(stage: Stage, verb: str) -> None:
    """The engine that holds the descendant compares it: only there what was checked is what is then done."""
    till, graph = Till(), Graph("order", Order)
    pay = till.pay()

    @graph.node
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [(await ctx.call(pay, queue="elsewhere")).paid]}

    flow = graph.chain(START, "settle", END).compile()
    till.is_broken = True

    async def use(engine: hf.Engine) -> str:
        await engine.start(flow, run_id="r")
        await engine.work(until="idle")
        (child,) = children(stage.store)
        till.is_broken = False
        seen = await engine.preview("r", verb)
        await getattr(engine, verb)("r", execute=False, expects=seen.digest, id="mend it")
        await engine.work(until="idle", queues=["default"])
        (asked,) = stage.store.queues.waiting([child])
        assert asked.body["expects"] == (await engine.preview(child, "resume")).digest
        assert asked.id.startswith("caller:r:")
        assert stage.store.run("r").status == "waiting"  # and not failed again
        await engine.work(until="idle")
        return (await engine.get("r")).status

    assert stage.do(use, flow, pay) == "completed"


# --- who is left alone -------------------------------------------------------------------------------


def test_a_cancelled_descendant_stays_cancelled_and_is_named(stage: Stage) -> None:
    family = Family(stage)
    middle, leaf = family.fail()

    async def use(engine: hf.Engine) -> hf.Preview:
        await engine.cancel(leaf)
        seen = await engine.preview("r", "resume")
        with pytest.raises(hf.RunFailed):
            await engine.resume("r")
        return seen

    seen = family.do(use)
    assert [(one.run_id, one.left is None) for one in seen.family] == [(middle, True), (leaf, False)]
    assert f"it was cancelled; `holdfast retry {middle} settle --fresh` starts another" in (
        seen.family[1].left or ""
    )
    assert family.statuses(middle, leaf) == ["failed", "failed", "cancelled"]


def test_a_descendant_that_is_held_elsewhere_is_left_and_named(stage: Stage) -> None:
    family = Family(stage)
    _, leaf = family.fail()

    async def use(engine: hf.Engine) -> hf.Preview:
        async with stage.engine(*family.flows) as other:
            other._holdings.claim(leaf)
            seen = await engine.preview("r", "resume")
            with pytest.raises(hf.RunFailed):
                await engine.resume("r")
            assert requests(stage, leaf) == []
            return seen

    seen = family.do(use)
    assert "holds it" in (seen.family[1].left or "")
    run = family.do(lambda engine: engine.resume("r"))
    assert (run.status, len(family.till.charged)) == ("completed", 1)


def test_a_child_whose_failure_its_caller_has_handled_is_not_touched(stage: Stage) -> None:
    till, is_broken = Till(), [True]
    pay = till.pay()
    graph = Graph("order", Order)

    @graph.node
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        try:
            await ctx.call(pay, Pay(how="fail"))
        except hf.ChildFailed:
            if is_broken:
                raise ValueError("no plan B") from None
        return {"log": ["plan B"]}

    flow = graph.chain(START, "settle", END).compile()
    stage.fails(flow)
    (child,) = children(stage.store)
    is_broken.clear()
    run = stage.do(lambda engine: engine.resume("r"), flow, pay)
    assert (run.state.log, requests(stage, child), stage.store.run(child).status) == (
        ["plan B"],
        [],
        "failed",
    )


def test_a_rewind_leaves_the_child_alone(stage: Stage) -> None:
    family = Family(stage)
    middle, leaf = family.fail()
    with pytest.raises(hf.RunFailed):
        family.do(lambda engine: engine.resume("r", restart_at="sell"))
    assert (requests(stage, middle), family.statuses(middle, leaf)) == ([], ["failed"] * 3)


# --- what is suggested -------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [True, False])
def test_one_remedy_mends_three_generations(stage: Stage, idempotent: bool) -> None:
    family = Family(stage, idempotent=idempotent)
    middle, leaf = family.fail()
    way, *others = Reader(stage.store).diagnose("r").remedies
    assert (way.verb, way.arguments["run"]) == ("resume", "r")
    assert way.arguments.get("confirm", []) == ([] if idempotent else [f"{leaf}/charge"])
    assert not any(one.verb in ("resume", "retry") for one in others)
    refused = family.do(lambda engine: engine.preview("r", "resume"))
    commands = [one.command for one in refused.remedies]
    assert len(set(commands)) == len(commands)
    run = family.do(lambda engine: engine.resume(**way.arguments))
    assert (run.status, family.statuses(middle, leaf)) == ("completed", ["completed"] * 3)


@pytest.mark.parametrize("place", ["items", "gather", "nodes"])
@pytest.mark.parametrize("generations", [2, 3])
def test_one_remedy_mends_all_children_for_which_a_run_failed(
    stage: Stage, place: str, generations: int
) -> None:
    till = Till()
    pay = till.pay(idempotent=False)
    called = pay if generations == 2 else caller(pay, "shop")
    graph = Graph("order", Order)

    async def settle(amount: int, ctx: hf.Context) -> None:
        await ctx.call(called, {"amount" if called is pay else "total": amount}, key=f"{amount}")

    async def settle_all(state: Order, ctx: hf.Context) -> None:
        await asyncio.gather(*(settle(amount, ctx) for amount in (1, 2, 3)))

    def settle_one(amount: int) -> Any:
        async def settle_it(state: Order, ctx: hf.Context) -> None:
            await settle(amount, ctx)

        return settle_it

    if place == "items":
        graph.node(name="settle", each=lambda state: [1, 2, 3])(settle)
        flow = graph.chain(START, "settle", END).compile()
    elif place == "gather":
        graph.node(name="settle")(settle_all)
        flow = graph.chain(START, "settle", END).compile()
    else:
        for number in (1, 2, 3):
            graph.node(name=f"settle{number}")(settle_one(number))
            graph.edge(START, f"settle{number}").edge(f"settle{number}", END)
        flow = graph.compile()
    flows = (flow, called, pay)
    till.is_broken = True
    stage.do(lambda engine: engine.start(flow, Order(), run_id="r"), *flows)
    stage.do(lambda engine: engine.work(until="idle", concurrency=7), *flows)
    below = children(stage.store)
    leaves = below if called is pay else [leaf for one in below for leaf in children(stage.store, one)]
    assert {stage.store.run(one).status for one in ("r", *below, *leaves)} == {"failed"}
    till.is_broken = False

    found = Reader(stage.store).diagnose("r")
    assert sorted(found.remedies[0].arguments["confirm"]) == sorted(f"{leaf}/charge" for leaf in leaves)
    assert sorted(found.failed_for) == sorted(below)
    run = stage.do(lambda engine: engine.resume(**found.remedies[0].arguments), *flows)
    assert (run.status, sorted(amount for _, amount in till.charged)) == ("completed", [1, 2, 3])


def test_the_remedy_of_a_run_that_failed_itself_confirms_the_child_that_failed_beside(stage: Stage) -> None:
    till = Till()
    pay = till.pay(idempotent=False)
    graph = Graph("order", Order)

    @graph.node
    async def check(state: Order, ctx: hf.Context) -> None:
        if till.is_broken:
            raise ValueError("no stock")

    @graph.node
    async def settle(state: Order, ctx: hf.Context) -> None:
        await ctx.call(pay, Pay(7))

    for name in ("check", "settle"):
        graph.edge(START, name).edge(name, END)
    flow = graph.compile()
    till.is_broken = True
    stage.do(lambda engine: engine.start(flow, Order(), run_id="r"), flow, pay)
    stage.do(lambda engine: engine.work(until="idle"), flow, pay)
    (child,) = children(stage.store)
    assert [stage.store.run(one).status for one in ("r", child)] == ["failed", "failed"]
    till.is_broken = False
    found = Reader(stage.store).diagnose("r")
    assert "no stock" in found.reason
    way = found.remedies[0]
    assert way.arguments == {"run": "r", "confirm": [f"{child}/charge"]}
    assert "fix the cause, then resume it and the child run" in way.words
    assert stage.do(lambda engine: engine.resume(**way.arguments), flow, pay).status == "completed"


def test_more_children_than_a_diagnosis_looks_at_are_confirmed_after_a_preview(stage: Stage) -> None:
    till = Till()
    pay = till.pay(idempotent=False)
    graph = Graph("order", Order)

    async def settle(amount: int, ctx: hf.Context) -> None:
        await ctx.call(pay, Pay(amount))

    graph.node(name="settle", each=lambda state: list(range(25)))(settle)
    flow = graph.chain(START, "settle", END).compile()
    till.is_broken = True
    stage.do(lambda engine: engine.start(flow, Order(), run_id="r"), flow, pay)
    stage.do(lambda engine: engine.work(until="idle", concurrency=30), flow, pay)
    way = Reader(stage.store).diagnose("r").remedies[0]
    assert way.command.endswith(" --dry-run")
    assert way.words.endswith(" and 20 more")
    seen = stage.do(lambda engine: engine.preview("r", "resume"), flow, pay)
    assert len(seen.remedies[0].arguments["confirm"]) == 25


def test_a_child_whose_budget_is_spent_is_mended_before_its_caller(stage: Stage) -> None:
    graph = Graph("pay", Pay)

    @graph.node
    async def charge(state: Pay, ctx: hf.Context) -> dict[str, Any]:
        ctx.cost(usd=2.0)
        return {"paid": True}

    graph.node(name="print")(lambda state: None)
    pay, order = graph.chain(START, "charge", "print", END).compile(), Graph("order", Order)

    @order.node
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [(await ctx.call(pay, budget=hf.Budget(usd=1.0))).paid]}

    flow = order.chain(START, "settle", END).compile()
    stage.fails(flow)
    (child,) = children(stage.store)
    seen = stage.do(lambda engine: engine.preview("r", "resume"), flow, pay)
    assert "budget" in (seen.family[0].left or "")
    first, then, *_ = Reader(stage.store).diagnose("r").remedies
    assert [first.arguments["run"], then.arguments] == [child, {"run": "r"}]
    assert first.arguments["budget"]["usd"] > 2


# --- nodes side by side ------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["resume", "retry"])
@pytest.mark.parametrize("way", ["call", "start"])
def test_nodes_side_by_side_whose_children_failed_are_mended_together(
    stage: Stage, way: str, verb: str
) -> None:
    """The first failure ends the run. The others come while it has failed: for an attempt that waits, or that has yet to wait."""
    till, graph = Till(), Graph("order", Order)
    pay = till.pay()

    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        number = int(ctx.node[-1])
        if way == "call":
            return {"log": [(await ctx.call(pay, Pay(amount=number))).amount]}
        child = await ctx.start(pay, Pay(amount=number))
        await ctx.call(pay, Pay(amount=number + 10), key="other")
        return {"log": [(await ctx.wait_for(child)).amount]}

    for number in (1, 2, 3):
        graph.node(name=f"settle{number}")(settle)
        graph.chain(START, f"settle{number}", END)
    flow = graph.compile()
    till.is_broken = True

    async def fail(engine: hf.Engine) -> None:
        await engine.start(flow, run_id="r")
        await engine.work(until="idle", concurrency=1)

    stage.do(fail, flow, pay)
    assert {stage.store.run(child).status for child in children(stage.store)} == {"failed"}
    till.is_broken = False
    run = stage.do(lambda engine: getattr(engine, verb)("r"), flow, pay)
    assert (run.status, sorted(run.state.log)) == ("completed", [1, 2, 3])
    assert kinds(stage.store, "r").count("RunFailed") == 1
    assert len(till.charged) == (3 if way == "call" else 6)
    assert stage.problems() == []


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_an_end_that_still_waits_in_the_inbox_does_not_fail_the_caller_again(stage: Stage, verb: str) -> None:
    family = Family(stage)
    middle, leaf = family.fail()
    family.till.is_broken = True

    async def fail_again(engine: hf.Engine) -> None:
        with pytest.raises(hf.RunFailed):
            await engine.resume(leaf)

    stage.do(fail_again, family.pay)
    assert [one.verb for one in stage.store.queues.waiting([middle])] == ["child-ended"]
    family.till.is_broken = False
    run = family.do(lambda engine: getattr(engine, verb)("r"))
    assert (run.status, run.state.log) == ("completed", [True, 7])
    assert family.statuses(middle, leaf) == ["completed"] * 3
    assert [amount for _, amount in family.till.charged] == [7]


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_a_child_that_failed_after_its_caller_is_mended_with_it(stage: Stage, verb: str) -> None:
    """Its failure is still in the inbox of the caller, which has failed because of another child."""
    till = Till()
    pay, late = till.pay(), till.pay("late")
    graph = Graph("order", Order)

    @graph.node
    async def one(state: Order, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [(await ctx.call(pay, Pay(amount=1))).amount]}

    @graph.node
    async def two(state: Order, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [(await ctx.call(late, Pay(amount=2, how="ask"))).amount]}

    order = graph.chain(START, "one", END).chain(START, "two", END).compile()
    till.is_broken = True
    stage.fails(order, Order())
    (asking,) = (run for run in children(stage.store) if stage.store.run(run).flow == "late")

    async def fail_late(engine: hf.Engine) -> None:
        await engine.answer(asking, "charge", "yes")
        with pytest.raises(hf.RunFailed):
            await engine.resume(asking)

    stage.do(fail_late, late)
    assert [request.verb for request in stage.store.queues.waiting(["r"])] == ["child-ended"]
    till.is_broken = False
    run = stage.do(lambda engine: getattr(engine, verb)("r"), order, pay, late)
    assert (run.status, sorted(run.state.log)) == ("completed", [1, 2])


@pytest.mark.parametrize("verb", ["resume", "retry"])
@pytest.mark.parametrize("at_once", [True, False])
def test_children_side_by_side_in_one_node_are_mended_together(
    stage: Stage, verb: str, at_once: bool
) -> None:
    """`gather` raises the first failure and swallows the other ones: the node has handled none of them."""
    till = Till()
    pay = till.pay()
    graph = Graph("order", Order)

    @graph.node
    async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
        if at_once:
            calls = (ctx.call(pay, Pay(amount), key=f"{amount}") for amount in (1, 2, 3))
            return {"log": [one.paid for one in await asyncio.gather(*calls)]}
        started = [await ctx.start(pay, Pay(amount), key=f"{amount}") for amount in (1, 2, 3)]
        return {"log": [one.paid for one in await asyncio.gather(*map(ctx.wait_for, started))]}

    flow = graph.chain(START, "settle", END).compile()
    till.is_broken = True
    stage.do(lambda engine: engine.start(flow, Order(), run_id="r"), flow, pay)
    stage.do(lambda engine: engine.work(until="idle", concurrency=4), flow, pay)
    assert {stage.store.run(one).status for one in ("r", *children(stage.store))} == {"failed"}
    till.is_broken = False

    run = stage.do(lambda engine: getattr(engine, verb)("r"), flow, pay)
    assert (run.status, run.state.log) == ("completed", [True, True, True])
    assert sorted(amount for _, amount in till.charged) == [1, 2, 3]


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_children_of_the_items_of_a_fan_out_are_mended_together(stage: Stage, verb: str) -> None:
    till = Till()
    pay = till.pay()
    graph = Graph("order", Order)

    async def settle(amount: int, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [(await ctx.call(pay, Pay(amount))).amount]}

    graph.node(name="settle", each=lambda state: [1, 2, 3])(settle)
    flow = graph.chain(START, "settle", END).compile()
    till.is_broken = True
    stage.do(lambda engine: engine.start(flow, Order(), run_id="r"), flow, pay)
    stage.do(lambda engine: engine.work(until="idle", concurrency=4), flow, pay)
    assert {stage.store.run(one).status for one in ("r", *children(stage.store))} == {"failed"}
    till.is_broken = False
    run = stage.do(lambda engine: getattr(engine, verb)("r"), flow, pay)
    assert (run.status, run.state.log) == ("completed", [1, 2, 3])
    assert sorted(amount for _, amount in till.charged) == [1, 2, 3]
