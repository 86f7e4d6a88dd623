"""Flows that call other flows, in tests of users: with the real children, or with functions in their place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from holdfast import END, START, ChildFailed, Context, Flow, Graph, SettingError, append
from holdfast.testing import crash_everywhere, rehearse, simulate


@dataclass
class Order:
    amount: int = 0
    paid: Annotated[list[int], append] = field(default_factory=list)
    note: str = ""


def pay_flow() -> Flow[Order]:
    graph = Graph("pay", Order)

    @graph.node
    async def charge(state: Order, ctx: Context) -> dict[str, Any]:
        await ctx.step("bank", lambda: None)
        return {"paid": [state.amount]}

    return graph.chain(START, "charge", END).compile()


def order_flow() -> Flow[Order]:
    pay, graph = pay_flow(), Graph("order", Order)

    @graph.node
    async def settle(state: Order, ctx: Context) -> dict[str, Any]:
        try:
            done = await ctx.call(pay, {"amount": state.amount})
        except ChildFailed as failed:
            return {"note": failed.failure.message if failed.failure else ""}
        return {"paid": done.paid, "note": done.note}

    @graph.node
    async def tip(state: Order, ctx: Context) -> dict[str, Any]:
        children = [await ctx.start(pay, {"amount": number}, key=f"tip {number}") for number in (1, 2)]
        return {"paid": [paid for child in children for paid in (await ctx.wait_for(child)).paid]}

    return graph.chain(START, "settle", "tip", END).compile()


def test_a_rehearsal_executes_the_children_too():
    run = rehearse(order_flow(), {"amount": 5})
    assert (run.status, run.state.paid) == ("completed", [5, 1, 2])


def test_a_function_takes_the_place_of_a_child():
    fakes = {"pay": lambda order: {"paid": [order.amount * 100], "note": "faked"}}
    run = rehearse(order_flow(), {"amount": 5}, children=fakes)
    assert (run.status, run.state.paid, run.state.note) == ("completed", [500, 100, 200], "faked")


def test_a_fake_may_be_a_coroutine_function_and_may_raise():
    async def pay(order: Order) -> dict[str, Any]:
        if order.amount == 5:
            raise ValueError("no cover")
        return {"paid": [0]}

    run = rehearse(order_flow(), {"amount": 5}, children={"pay": pay})
    assert (run.status, run.state.paid, run.state.note) == ("completed", [0, 0], "no cover")


def test_a_misspelt_child_is_refused():
    with pytest.raises(
        SettingError, match=r"children has the name 'pya', but no child of such a flow .*did you mean 'pay'"
    ):
        rehearse(order_flow(), {"amount": 5}, children={"pya": lambda order: {}})


def test_a_fake_that_cannot_be_called_is_refused():
    with pytest.raises(SettingError, match="maps the name of a flow to a function"):
        rehearse(order_flow(), {"amount": 5}, children={"pay": {"paid": [1]}})  # type: ignore[dict-item]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_crash_at_any_write_of_a_family_changes_nothing(store: Any):
    report = crash_everywhere(order_flow(), {"amount": 5}, store=store)
    assert report.ok, report
    assert report.status == "completed"
    assert report.crashes >= 30


def test_a_crash_at_any_write_of_a_caller_with_faked_children_changes_nothing():
    report = crash_everywhere(order_flow(), {"amount": 5}, children={"pay": lambda order: {"paid": [7]}})
    assert report.ok, report


@pytest.mark.parametrize("fakes", [None, {"pay": lambda order: {"paid": [order.amount]}}])
def test_a_family_is_simulated_with_real_and_with_faked_children(fakes: Any):
    report = simulate(order_flow(), {"amount": 5}, seeds=range(30), children=fakes)
    assert report.ok, report
