"""`crash_everywhere` and `rehearse` unwind each node at each of its waits, so that a test finds code that cleans up too early."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.testing import Signal, crash_everywhere, rehearse

SEATS: list[str] = []
AN_HOUR_S = 3600.0


async def first_of(*waits: Any) -> int:
    """Wait for the first of several waits, and cancel the others. Returns its number, or the lowest if several are over."""
    racers = [asyncio.ensure_future(wait) for wait in waits]
    done, losers = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
    for loser in losers:
        loser.cancel()
    return min(racers.index(one) for one in done)


def seats(*, in_step: bool, wait: str) -> Flow[Any]:
    """Books a seat, and releases it when it is stopped: through the context, or directly."""

    async def body(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        await ctx.step("book", SEATS.append, "booked")
        try:
            if wait == "signal":
                await ctx.wait_for("paid")
            elif wait == "race":
                await first_of(ctx.sleep(86_400), ctx.wait_for("paid"))
            elif wait == "ask":
                await ctx.ask("Paid?")
            else:
                await ctx.sleep(0.5)
        except asyncio.CancelledError:
            if in_step:
                await ctx.step("release", SEATS.append, "released")
            else:
                SEATS.append("released")
            raise
        return {"done": True}

    graph = Graph("seats", dict)
    graph.node(name="sell")(body)
    return graph.chain(START, "sell", END).compile()


def given(wait: str) -> dict[str, Any]:
    told: dict[str, Any] = {"signal": {"signals": [Signal("paid", 1)]}, "ask": {"answers": {"sell": "yes"}}}
    return told.get(wait, {})  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def no_seats() -> None:
    SEATS.clear()


@pytest.mark.parametrize("wait", ["signal", "ask", "sleep"])
def test_cleaning_code_outside_of_the_context_is_found(wait: str) -> None:
    report = crash_everywhere(
        seats(in_step=False, wait=wait), {}, observe=lambda: SEATS, reset=SEATS.clear, **given(wait)
    )
    assert not report.ok
    assert "without a crash: each node was unwound at each of its waits" in str(report)
    assert "'released' happened 1 times (without a crash: 0)" in str(report)


@pytest.mark.parametrize("wait", ["signal", "ask", "sleep"])
def test_cleaning_code_that_uses_the_context_is_right(wait: str) -> None:
    report = crash_everywhere(
        seats(in_step=True, wait=wait),
        {},
        observe=lambda: sorted(set(SEATS)),
        reset=SEATS.clear,
        **given(wait),
    )
    assert report.ok, report


@pytest.mark.parametrize("wait", ["signal", "ask", "sleep"])
def test_a_rehearsal_unwinds_the_node_at_each_wait(wait: str) -> None:
    run = rehearse(seats(in_step=False, wait=wait), {}, **given(wait))
    assert (run.status, SEATS) == ("completed", ["booked", "released"])


@pytest.mark.parametrize("wait", ["signal", "race"])
@pytest.mark.parametrize("in_step", [True, False])
def test_cleaning_code_is_found_too_if_the_undisturbed_run_unwinds_because_its_signal_comes_late(
    wait: str, in_step: bool
) -> None:
    report = crash_everywhere(
        seats(in_step=in_step, wait=wait),
        {},
        signals=[Signal("paid", 1, after=AN_HOUR_S)],
        observe=lambda: sorted(set(SEATS)),
        reset=SEATS.clear,
    )
    assert report.ok is in_step, report
    if not in_step:
        assert "['booked', 'released'] was observed" in str(report) or "'released' happened" in str(report)


def test_a_signal_comes_in_time_in_a_race_that_a_crash_has_interrupted() -> None:
    async def body(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        first = await first_of(ctx.sleep(86_400), ctx.wait_for("paid"))
        return {"end": ["expired", "paid"][first]}

    graph = Graph("race", dict)
    graph.node(name="sell")(body)
    flow = graph.chain(START, "sell", END).compile()
    report = crash_everywhere(flow, {}, signals=[Signal("paid", 1, after=AN_HOUR_S)])
    assert report.ok, report
