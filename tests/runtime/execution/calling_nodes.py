"""Nodes in processes of their own that start child runs. The processes import this file, and so find the flow of the children.

The child says with a line in a file that it has run, so a test can count how often it did.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast import END, START, Graph


@dataclass
class Payment:
    book: str = ""
    amount: int = 0
    paid: int = 0


payment = Graph("payment", Payment)


@payment.node
def charge(state: Payment, ctx: hf.BlockingContext) -> dict[str, Any]:
    if state.amount < 0:
        raise ValueError("nothing to pay")
    with Path(state.book).open("a") as book:
        book.write(f"{ctx.idempotency_key()}\n")
    return {"paid": state.amount}


pay = payment.chain(START, "charge", END).compile()

_other = Graph("payment", Payment)
_other.node(name="another")(charge)
impostor = _other.chain(START, "another", END).compile()
"""Another flow with the same name."""


@dataclass
class Order:
    book: str = ""
    amount: int = 12
    paid: int = 0
    trace: str = ""


def given(state: Order) -> Payment:
    return Payment(state.book, state.amount)


async def calls(state: Order, ctx: hf.Context) -> dict[str, Any]:
    done = await ctx.call(pay, given(state))
    return {"paid": done.paid, "trace": type(done).__name__}


def calls_blocking(state: Order, ctx: hf.BlockingContext) -> dict[str, Any]:
    done = ctx.call(pay, given(state))
    return {"paid": done.paid, "trace": type(done).__name__}


async def leaves_it_to_workers(state: Order, ctx: hf.Context) -> dict[str, Any]:
    return {"paid": (await ctx.call(pay, given(state), queue="till")).paid}


def leaves_it_to_workers_blocking(state: Order, ctx: hf.BlockingContext) -> dict[str, Any]:
    return {"paid": ctx.call(pay, given(state), queue="till").paid}


def starts_and_waits(state: Order, ctx: hf.BlockingContext) -> dict[str, Any]:
    child = ctx.start(pay, given(state), key="first")
    done: dict[str, int] = ctx.wait_for(child, type=dict[str, Any])
    return {"paid": done["paid"], "trace": type(done).__name__}


def dies_after_start(state: Order, ctx: hf.BlockingContext) -> dict[str, Any]:
    """Start the child; its first attempt is killed then."""
    child = ctx.start(pay, given(state))
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"paid": ctx.wait_for(child).paid}


def kills_its_engine(state: Order, ctx: hf.BlockingContext) -> dict[str, Any]:
    """Start the child; the first attempt kills the process of the engine then."""
    child = ctx.start(pay, given(state))
    if ctx.attempt == 1:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    return {"paid": ctx.wait_for(child).paid}


def catches(state: Order, ctx: hf.BlockingContext) -> dict[str, Any]:
    try:
        ctx.call(pay, given(state))
    except hf.ChildFailed as failed:
        return {"trace": f"{failed.id} {failed.failure.type} {failed.remedy}"}
    return {}


def misfit(state: Order, ctx: hf.BlockingContext) -> None:
    ctx.start(pay, {"amount": "much"})


def bad_queue(state: Order, ctx: hf.BlockingContext) -> None:
    ctx.start(pay, given(state), queue="no queue")


def same_key(state: Order, ctx: hf.BlockingContext) -> None:
    ctx.start(pay, given(state))
    ctx.start(pay, given(state))


def awaits_twice(state: Order, ctx: hf.BlockingContext) -> None:
    child = ctx.start(pay, given(state))
    ctx.wait_for(child)
    ctx.wait_for(child)


def no_flow(state: Order, ctx: hf.BlockingContext) -> None:
    ctx.start("payment", given(state))  # type: ignore[arg-type]


def calls_impostor(state: Order, ctx: hf.BlockingContext) -> None:
    ctx.call(impostor, given(state))


def impatient(state: Order, ctx: hf.BlockingContext) -> dict[str, Any]:
    try:
        ctx.call(pay, given(state), queue="nobody", timeout=0.05)
    except hf.WaitTimeout as late:
        return {"trace": str(late)}
    return {}
