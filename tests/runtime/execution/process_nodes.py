"""Functions of nodes that run in processes of their own, which import this file.

Nothing here sleeps: `hold` opens a named pipe, which blocks until the test opens the other end, and keeps it open. A test that
reads such a pipe to its end knows that the process, and every process that it started, is dead.
"""

from __future__ import annotations

import collections
import ctypes
import datetime as dt
import decimal
import itertools
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import Annotated, Any

import holdfast as hf
from holdfast import append


@dataclass
class Page:
    url: str
    at: dt.datetime


@dataclass
class Work:
    pipe: str = ""
    log: Annotated[list[Any], append] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)
    total: decimal.Decimal = decimal.Decimal(0)
    raw: bytes = b""
    tags: set[str] = field(default_factory=set)
    numbers: list[int] = field(default_factory=list)


def hold(pipe: str, word: str = "begun") -> int:
    """Write a word to the pipe, and keep it open."""
    handle = os.open(pipe, os.O_WRONLY)
    os.write(handle, word.encode())
    return handle


def hog(state: Work) -> None:
    """Start a process, and then hold the GIL for ever."""
    subprocess.Popen(
        [sys.executable, "-c", "import signal, sys; sys.stdin.read() or signal.pause()"],
        stdin=subprocess.DEVNULL,
        stdout=os.open(state.pipe, os.O_WRONLY),
    )
    hold(state.pipe)
    collections.deque(itertools.repeat(None), maxlen=0)


def hog_once(state: Work, ctx: hf.BlockingContext) -> dict[str, Any]:
    if ctx.attempt == 1:
        hold(state.pipe)
        while True:
            pass
    return {"log": [f"attempt {ctx.attempt}"]}


def books(state: Work, ctx: hf.BlockingContext) -> None:
    """Keep a step, and wait for ever; what would clean up is never called in a process that is killed."""
    try:
        ctx.step("book", int)
        hold(state.pipe)
        signal.pause()
    finally:
        ctx.step("release", int)


def typed(state: Work) -> dict[str, Any]:
    assert state.pages[0].at.tzinfo is not None
    return {
        "pages": [*state.pages, Page("b", dt.datetime(2024, 1, 2, tzinfo=dt.UTC))],
        "total": state.total + decimal.Decimal("0.1"),
        "raw": b"\x00\xff",
        "tags": {"x", "y"},
        "log": [{"pid": os.getpid()}],
    }


async def whole(state: Work) -> Work:
    state.tags.add("whole")
    state.log.append({"pid": os.getpid()})
    return state


def wrong_type(state: Work) -> dict[str, Any]:
    return {"pages": "none"}


def segfault(state: Work) -> None:
    ctypes.string_at(0)


def segfault_once(state: Work, ctx: hf.BlockingContext) -> dict[str, Any]:
    if ctx.attempt == 1:
        ctypes.string_at(0)
    return {"log": [f"attempt {ctx.attempt}"]}


def leave(state: Work) -> None:
    os._exit(3)


def fork_and_leave(state: Work) -> None:
    """Exit, and leave behind a child that has inherited every open file of this process."""
    if os.fork() == 0:
        signal.pause()
    os._exit(3)


def eat(state: Work) -> dict[str, Any]:
    return {"log": [len(bytearray(300 * 2**20))]}


def raise_value(state: Work) -> None:
    raise ValueError("wrong")


def together(item: int, ctx: hf.BlockingContext) -> dict[str, Any]:
    """Report that this item has begun, and wait until the test lets it continue."""
    base = os.environ["HOLDFAST_TEST_PIPES"]
    os.close(hold(f"{base}/begun-{item}"))
    with open(f"{base}/go-{item}") as pipe:
        pipe.read()
    return {"log": [f"{item} {ctx.item}"]}


def pid(state: Work) -> dict[str, Any]:
    return {"log": [os.getpid()]}


def other_pid(state: Work) -> dict[str, Any]:
    return {"log": [os.getpid()]}


def linger(state: Work) -> dict[str, Any]:
    """Return, and leave a thread running."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return {"log": [os.getpid()]}


# --- with a context -----------------------------------------------------------------------------------


def steps(state: Work, ctx: hf.BlockingContext) -> dict[str, Any]:
    """Exit after a step and a checkpoint in the first attempt; the second attempt finds both recorded."""
    found = ctx.step("look", dt.datetime.fromisoformat, "2024-01-01", type=dt.datetime)
    before = ctx.last_checkpoint
    ctx.checkpoint({"attempt": ctx.attempt})
    assert ctx.last_checkpoint == {"attempt": ctx.attempt}
    if ctx.attempt == 1:
        os._exit(1)
    squares = ctx.map("square", square, [1, 2, 3])
    ctx.cost(usd=0.5, tokens=7)
    ctx.emit({"chunk": 1})
    return {"log": [found.year, before, squares, ctx.idempotency_key("pay"), os.getpid()]}


async def async_steps(state: Work, ctx: hf.Context) -> dict[str, Any]:
    found = await ctx.step("look", dt.datetime.fromisoformat, "2024-01-01", type=dt.datetime)
    before = ctx.last_checkpoint
    await ctx.checkpoint({"attempt": ctx.attempt})
    if ctx.attempt == 1:
        os._exit(1)
    squares = await ctx.map("square", square, [1, 2, 3])
    ctx.cost(usd=0.5, tokens=7)
    ctx.emit({"chunk": 1})
    return {"log": [found.year, before, squares, ctx.idempotency_key("pay"), os.getpid()]}


def speak(ctx: Any) -> str:
    for word in ("once", "upon"):
        ctx.emit(word)
    return "spoken"


def speaks(state: Work, ctx: hf.BlockingContext) -> dict[str, Any]:
    """Exit right after a step that streams, in the first attempt."""
    ctx.emit("listen")
    said = ctx.step("speak", speak, ctx)
    if ctx.attempt == 1:
        os._exit(1)
    return {"log": [said]}


async def async_speaks(state: Work, ctx: hf.Context) -> dict[str, Any]:
    ctx.emit("listen")
    said = await ctx.step("speak", speak, ctx)
    if ctx.attempt == 1:
        os._exit(1)
    return {"log": [said]}


def key(state: Work, ctx: hf.BlockingContext) -> dict[str, Any]:
    return {"log": [ctx.idempotency_key("pay")]}


def square(number: int) -> int:
    return number * number


def waits(state: Work, ctx: hf.BlockingContext) -> dict[str, Any]:
    ctx.sleep(60)
    paid = ctx.wait_for("paid", type=Page)
    answer = ctx.ask("Publish?", options=["yes", "no"])
    return {"log": [paid.url, answer]}


async def async_waits(state: Work, ctx: hf.Context) -> dict[str, Any]:
    await ctx.sleep(60)
    paid = await ctx.wait_for("paid", type=Page)
    answer = await ctx.ask("Publish?", options=["yes", "no"])
    return {"log": [paid.url, answer]}


async def forgets(state: Work, ctx: hf.Context) -> None:
    ctx.checkpoint(1)


def writes_a_file(state: Work, ctx: hf.BlockingContext) -> None:
    ctx.artifacts.write("pages/1.txt", "one")
    with open(ctx.artifacts.path("2.txt"), "w") as file:
        file.write("two")


def uses_resources(state: Work, ctx: hf.BlockingContext) -> None:
    ctx.resources["db"].query()


def picks(state: Work, ctx: hf.BlockingContext) -> dict[str, Any]:
    page = ctx.wait_for("paid", type=Page)
    return {"log": [page.url, ctx.wait_for("paid", type=str)]}


async def async_picks(state: Work, ctx: hf.Context) -> dict[str, Any]:
    page = await ctx.wait_for("paid", type=Page)
    return {"log": [page.url, await ctx.wait_for("paid", type=str)]}


class Declined(Exception):
    """An outcome of a step."""


class TrulyDeclined(Declined):
    """A subclass that no step lists."""


def _decline() -> None:
    raise Declined("no", os.getpid())


DECLINED = hf.Step("charge", raises=(Declined,))


def saga(state: Work, ctx: hf.BlockingContext) -> dict[str, Any]:
    """Is declined, and fails in its first attempt while it undoes; then says who was asked."""
    try:
        ctx.step(DECLINED, _decline)
    except Declined as declined:
        ctx.step("undo", os.getpid, key=ctx.attempt)
        if ctx.attempt == 1:
            raise hf.Recoverable("once") from None
        return {"log": [type(declined).__name__, *declined.args, ctx.kept("charge"), ctx.kept("undo", key=1)]}
    return {}


async def async_saga(state: Work, ctx: hf.Context) -> dict[str, Any]:
    """Is `saga` as a coroutine."""
    try:
        await ctx.step(DECLINED, _decline)
    except Declined as declined:
        await ctx.step("undo", os.getpid, key=ctx.attempt)
        if ctx.attempt == 1:
            raise hf.Recoverable("once") from None
        return {"log": [type(declined).__name__, *declined.args, ctx.kept("charge"), ctx.kept("undo", key=1)]}
    return {}


def declines(state: Work, ctx: hf.BlockingContext) -> None:
    """Let the outcome of its step leave the node."""
    ctx.step(DECLINED, _decline)


def tries(state: Work, ctx: hf.BlockingContext) -> dict[str, Any]:
    """Needs three tries, which it counts in a file; another kind of exception comes first."""
    step = hf.Step(
        "charge",
        raises=(Declined,),
        retry=hf.Retry(attempts=4, backoff=0.3, jitter=0.0, on=(Exception,)),
        timeout=30,
    )

    def charge() -> int:
        with open(state.pipe, "a+", encoding="utf-8") as file:
            file.write("x")
            file.seek(0)
            count = len(file.read())
        if count < 3:
            raise TrulyDeclined("subclass") if count == 1 else ConnectionError("busy")
        return count

    return {"log": [ctx.step(step, charge)]}


def leaves_in_a_step(state: Work, ctx: hf.BlockingContext) -> None:
    """Die inside a step that must not be called twice."""
    ctx.step(hf.Step("charge", idempotent=False), os._exit, 3)


NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)


@dataclass
class Parcel:
    pages: list[Page] = field(default_factory=list)
    log: Annotated[list[str], append] = field(default_factory=list)


def weigh(page):  # type: ignore[no-untyped-def]  # without an annotation
    return {"log": [f"{type(page).__name__} of {page.at.year}"]}
