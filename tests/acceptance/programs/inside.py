"""Flows whose nodes map, wait, ask, stream, pay and die, in a process that can be killed anywhere inside them.

    inside.py FLOW run|resume|skip STORE FOLDER [options]

The program records what really happened independently of Holdfast: every step and node writes a line of JSON to FOLDER/witness.
With `--gate`, a node waits at a gate, the FIFO FOLDER/gate. Prints status, state and questions of the run as JSON; the id of a
run is the name of its flow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import holdfast as hf
from holdfast import END, START, Graph, append
from holdfast.runtime.clock import SystemClock, Timer

REFUSED, FAILED, CANCELLED = 74, 77, 78
ITEMS = 1000
WORDS = [f"word {number}" for number in range(12)]
HALF = len(WORDS) // 2
SLEEP_S = 3600.0


@dataclass
class Inside:
    done: list[int] = field(default_factory=list)
    log: Annotated[list[str], append] = field(default_factory=list)


CALLS_MAX = 24
"""How many calls a process makes after the one at which it is to be killed, at most."""


class World:
    """Everything outside of Holdfast: the witness file, the gate, and the death of the process."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.fifo = os.path.join(given.folder, "gate")
        self._witness = os.open(
            os.path.join(given.folder, "witness"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        self._calls = 0
        self._lock = threading.Lock()
        self.unwound = threading.Event()

    def tell(self, *words: Any) -> None:
        """Write a line to the witness file, with a single write: it is complete or missing, whatever happens to the process."""
        os.write(self._witness, (json.dumps([os.getpid(), *words]) + "\n").encode())

    def call(self, number: int) -> int:
        """Do the work of one item. At the call with the number `--kill-at`, start a timer that kills the process, which dies a
        few calls later at the latest: on a busy machine, the timer's thread may not run before all items are done.
        """
        with self._lock:
            self._calls += 1
            beyond = self._calls - self.given.kill_at if self.given.kill_at else -1
        self.tell("item", number)
        if beyond > CALLS_MAX:
            die()
        if beyond == 0:
            late = random.Random(self.given.seed).random() * 0.001
            threading.Timer(late, die).start()
        return number * number

    async def at_gate(self) -> None:
        """Wait until the test opens the FIFO for writing. Before that, the FIFO has no writer and is not readable."""
        if not self.given.gate:
            return
        handle = os.open(self.fifo, os.O_RDONLY | os.O_NONBLOCK)
        opened = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(handle, lambda: opened.done() or opened.set_result(None))
        try:
            await opened
        finally:
            asyncio.get_running_loop().remove_reader(handle)
            os.close(handle)

    def at_gate_in_thread(self) -> None:
        if self.given.gate:
            with open(self.fifo, encoding="utf-8") as gate:
                gate.read()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class LaterClock(SystemClock):
    """The clock of the machine, moved forward by some seconds."""

    def __init__(self, by_s: float) -> None:
        self._by_s = by_s

    def now(self) -> float:
        return super().now() + self._by_s

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        return super().call_at(at - self._by_s, call)


# --- the flows ----------------------------------------------------------------------------------------


def mapping(graph: Graph[Inside], world: World) -> None:
    """One node that maps 1,000 items: with coroutines, with plain functions, or in a thread."""
    colour, limit = world.given.colour, world.given.limit

    async def square(number: int) -> int:
        return world.call(number)

    async def on_loop(state: Inside, ctx: hf.Context) -> dict[str, Any]:
        work = square if colour == "loop" else world.call
        return {"done": await ctx.map("square", work, range(ITEMS), limit=limit)}

    def in_thread(state: Inside, ctx: hf.BlockingContext) -> dict[str, Any]:
        return {"done": ctx.map("square", world.call, range(ITEMS), limit=limit)}

    graph.node(name="mapping")(in_thread if colour == "thread" else on_loop)
    graph.chain(START, "mapping", END)


def gated(graph: Graph[Inside], world: World) -> None:
    """write -> publish, which needs an approval; and in parallel a node that keeps the process busy."""

    @graph.node
    async def write(state: Inside) -> dict[str, Any]:
        world.tell("write")
        return {"log": ["written"]}

    @graph.node(approve="Publish it?")
    def publish(state: Inside) -> dict[str, Any]:
        world.tell("publish")
        return {"log": ["published"]}

    @graph.node
    async def beside(state: Inside) -> None:
        world.tell("beside")
        await world.at_gate()

    graph.chain(START, "write", "publish", END).chain("write", "beside", END)


def asking(graph: Graph[Inside], world: World) -> None:
    """A node that asks a question between two steps."""

    @graph.node
    async def offer(state: Inside, ctx: hf.Context) -> dict[str, Any]:
        await ctx.step("draft", lambda: world.tell("draft"))
        said = await ctx.ask("How much?", schema=int)
        await ctx.step("send", lambda: world.tell("send", said))
        return {"log": [f"offered {said}"]}

    graph.chain(START, "offer", END)


def streaming(graph: Graph[Inside], world: World) -> None:
    """A node that streams words, and waits at the gate after half of them."""

    @graph.node
    async def speak(state: Inside, ctx: hf.Context) -> AsyncIterator[Any]:
        for number, word in enumerate(WORDS):
            if number == HALF:
                world.tell("half")
                await world.at_gate()
            yield word
        yield {"log": [f"spoken in attempt {ctx.attempt}"]}

    graph.chain(START, "speak", END)


def spoken(graph: Graph[Inside], world: World) -> None:
    """A node with a step that streams words, which then kills its process, if `--die` is given."""

    def say(ctx: Any) -> str:
        for word in WORDS:
            ctx.emit(word)
        return "spoken"

    async def on_loop(state: Inside, ctx: hf.Context) -> dict[str, Any]:
        said = await ctx.step("say", say, ctx)
        if world.given.die:
            die()
        return {"log": [said]}

    def in_thread(state: Inside, ctx: hf.BlockingContext) -> dict[str, Any]:
        said = ctx.step("say", say, ctx)
        if world.given.die:
            die()
        return {"log": [said]}

    graph.node(name="speak")(in_thread if world.given.colour == "thread" else on_loop)
    graph.chain(START, "speak", END)


def deadly(graph: Graph[Inside], world: World) -> None:
    """A node that kills its process, if `--die` is given."""

    def enter(ctx: Any) -> dict[str, Any]:
        world.tell("deadly", ctx.attempt)
        if world.given.die:
            die()
        return {"log": ["survived"]}

    async def on_loop(state: Inside, ctx: hf.Context) -> dict[str, Any]:
        return enter(ctx)

    def in_thread(state: Inside, ctx: hf.BlockingContext) -> dict[str, Any]:
        return enter(ctx)

    body = in_thread if world.given.colour == "thread" else on_loop
    graph.node(name="deadly", crash_limit=world.given.crash_limit)(body)
    graph.chain(START, "deadly", END)


def sleeping(graph: Graph[Inside], world: World) -> None:
    """A node with a step, an hour of sleep, and another step."""

    async def on_loop(state: Inside, ctx: hf.Context) -> dict[str, Any]:
        await ctx.step("before", lambda: world.tell("before"))
        await ctx.sleep(SLEEP_S)
        await ctx.step("behind", lambda: world.tell("behind"))
        return {"log": [f"slept in attempt {ctx.attempt}"]}

    def in_thread(state: Inside, ctx: hf.BlockingContext) -> dict[str, Any]:
        ctx.step("before", lambda: world.tell("before"))
        ctx.sleep(SLEEP_S)
        ctx.step("behind", lambda: world.tell("behind"))
        return {"log": [f"slept in attempt {ctx.attempt}"]}

    graph.node(name="rest")(in_thread if world.given.colour == "thread" else on_loop)
    graph.chain(START, "rest", END)


def told(graph: Graph[Inside], world: World) -> None:
    """A node with a step that then waits for a signal."""

    async def on_loop(state: Inside, ctx: hf.Context) -> dict[str, Any]:
        await ctx.step("before", lambda: world.tell("before"))
        return {"log": [f"paid {await ctx.wait_for('paid')}"]}

    def in_thread(state: Inside, ctx: hf.BlockingContext) -> dict[str, Any]:
        ctx.step("before", lambda: world.tell("before"))
        return {"log": [f"paid {ctx.wait_for('paid')}"]}

    graph.node(name="listen")(in_thread if world.given.colour == "thread" else on_loop)
    graph.chain(START, "listen", END)


def paying(graph: Graph[Inside], world: World) -> None:
    """A node that must not run twice unasked; with `--die`, it kills its process after its first step."""

    @graph.node(idempotent=False)
    async def pay(state: Inside, ctx: hf.Context) -> dict[str, Any]:
        await ctx.step("reserve", lambda: world.tell("reserve"))
        world.tell("pay", ctx.idempotency_key("pay"))
        if world.given.die:
            die()
        return {"log": ["paid"]}

    @graph.node
    def book(state: Inside) -> dict[str, Any]:
        return {"log": ["booked"]}

    graph.chain(START, "pay", "book", END)


def stopping(graph: Graph[Inside], world: World) -> None:
    """A long node that notes how it learns of its cancellation, and a node after it."""

    async def on_loop(state: Inside, ctx: hf.Context) -> dict[str, Any]:
        world.tell("long")
        try:
            await world.at_gate()
        except asyncio.CancelledError:
            world.tell("CancelledError")
            world.unwound.set()
            raise
        return {"log": ["long"]}

    def in_thread(state: Inside, ctx: hf.BlockingContext) -> dict[str, Any]:
        world.tell("long")
        while world.given.until_cancelled and not ctx.cancelled:
            os.sched_yield()
        if ctx.cancelled:
            world.tell("ctx.cancelled")
            world.unwound.set()
            return {}
        world.at_gate_in_thread()
        return {"log": ["long"]}

    @graph.node
    def behind(state: Inside) -> dict[str, Any]:
        world.tell("behind")
        return {"log": ["behind"]}

    graph.node(name="long")(in_thread if world.given.colour == "thread" else on_loop)
    graph.chain(START, "long", "behind", END)


FLOWS = {
    "mapping": mapping, "gated": gated, "asking": asking, "streaming": streaming, "spoken": spoken, "deadly": deadly,
    "sleeping": sleeping, "told": told, "paying": paying, "stopping": stopping,
}  # fmt: skip


# --- the process --------------------------------------------------------------------------------------


def perform(given: argparse.Namespace, world: World) -> hf.Run[Inside]:
    graph = Graph(given.flow, Inside)
    FLOWS[given.flow](graph, world)
    flow = graph.compile()
    options: dict[str, Any] = {"store": given.store, "grace": given.grace}
    if given.later:
        options["clock"] = LaterClock(given.later)
    if given.verb == "run":
        return hf.run(flow, Inside(), run_id=given.flow, **options)
    if given.verb == "skip":
        update = {"log": ["by hand"]}
        return hf.answer(given.flow, given.question, "skip", update=update, flows=[flow], **options)
    return hf.resume(given.flow, flows=[flow], force=given.force, **options)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("flow", choices=list(FLOWS))
    parser.add_argument("verb", choices=["run", "resume", "skip"])
    parser.add_argument("store")
    parser.add_argument("folder")
    parser.add_argument("--colour", choices=["loop", "plain", "thread"], default="loop")
    parser.add_argument("--gate", action="store_true", help="wait at the gate")
    parser.add_argument("--die", action="store_true")
    parser.add_argument("--until-cancelled", action="store_true")
    parser.add_argument(
        "--kill-at", type=int, default=0, help="the number of the call at which the process is killed"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--crash-limit", type=int, default=3)
    parser.add_argument("--later", type=float, default=0.0, help="move the clock forward by so many seconds")
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--question", help="the key of the question that is answered with skip")
    given = parser.parse_args()
    world = World(given)
    try:
        run = perform(given, world)
    except hf.RunFailed as failed:
        print(failed, file=sys.stderr)
        return FAILED
    except hf.ResumeRefused as refused:
        print(refused, file=sys.stderr)
        return REFUSED
    except hf.RunCancelled:
        world.unwound.wait(20)  # an abandoned thread is notified, and needs a moment to note it
        return CANCELLED
    keys = [question.key for question in run.questions]
    print(json.dumps({"status": run.status, "done": run.state.done, "log": run.state.log, "questions": keys}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
