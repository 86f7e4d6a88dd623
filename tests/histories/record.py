"""Record golden histories: `python tests/histories/record.py FOLDER` executes the stories below with the installed version of
Holdfast, and writes the logs that it stored. The logs are kept for ever.

Each story has two files. NAME.jsonl: the parts of the run row and the base of a fork on the first line, then one row per line,
exactly as stored (a compressed body is written as base64). NAME.json: the folded run, as a user sees it. An existing file is
never written again: later versions of Holdfast must read what an earlier version wrote.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import plan_flows
from family_flows import Bill, caller_flow, pair_flow, pay_flow, slow_flow

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry, add, append, merge
from holdfast.core.event_encoding import Encoded
from holdfast.core.graph import FlowSource
from holdfast.reading import history
from holdfast.reading.views import run_view
from holdfast.runtime import failures
from holdfast.storage.contract import Append, NewRun, Query, Row, RunRow, RunStatus, View
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import seal, unpack
from holdfast.testing.appends import dead_process
from holdfast.testing.clock import ManualClock

PACKED = b"\x28\xb5\x2f\xfd"


@dataclass
class Report:
    topic: str
    pages: list[str] = field(default_factory=list)
    facts: Annotated[list[str], append] = field(default_factory=list)
    seen: Annotated[dict[str, int], merge] = field(default_factory=dict)
    drafts: Annotated[int, add] = 0
    draft: str = ""


def report_flow(broken: set[str], **options: Any) -> Flow[Report]:
    """plan -> read (each page) -> write -> check -> write again or publish, which is not idempotent."""
    graph = Graph("report", Report)

    @graph.node
    def plan(state: Report) -> dict[str, Any]:
        return {"pages": [f"{state.topic} {number}" for number in (1, 2, 3)]}

    @graph.node(each=lambda state: state.pages, limit=2, retry=Retry(attempts=2, jitter=0.0))
    def read(page: str, ctx: hf.Context) -> dict[str, Any]:
        if "read" in broken and ctx.item == 1:
            raise hf.Recoverable("the page is slow") if ctx.attempt == 1 else ValueError("the page is torn")
        return {"facts": [f"fact of {page}"], "seen": {page: ctx.attempt}}

    @graph.node
    def write(state: Report, ctx: hf.Context) -> dict[str, Any]:
        if "write" in broken and ctx.attempt == 1:
            raise TimeoutError("no words")
        return {"drafts": 1, "draft": "long text, " * 200 + str(ctx.iteration)}

    @graph.node
    def check(state: Report) -> None:
        if "check" in broken:
            raise hf.Fatal("not worth it")

    @graph.node(idempotent=False)
    def publish(state: Report) -> dict[str, Any]:
        return {"draft": f"published {state.drafts}"}

    def route(state: Report) -> str:
        if "route" in broken:
            raise LookupError("no way")
        return "write" if state.drafts < 2 else "publish"

    graph.chain(START, "plan", "read", "write", "check").branch("check", route, to=["write", "publish"]).edge(
        "publish", END
    )
    return graph.compile(**options)


@dataclass
class Longest:
    word: Annotated[str, lambda old, new: max(old, new, key=len)] = ""
    words: Annotated[list[str], append] = field(default_factory=list)


def layered_flow(broken: set[str]) -> Flow[Longest]:
    graph = Graph("layers", Longest)
    for name in ("one", "three", "eleven", "end"):

        def say(state: Longest, ctx: hf.Context) -> dict[str, Any]:
            if ctx.node in broken:
                raise ValueError("speechless")
            return {"word": ctx.node, "words": [ctx.node]}

        graph.node(name=name)(say)
    graph.chain(START, "one", "end", END).chain(START, "three", "end").chain(START, "eleven", "end")
    return graph.compile(schedule="layered", max_parallel=2)


class Recorder:
    """A memory store and engines on one thread, with a clock that jumps over waits and a fixed seed."""

    def __init__(self) -> None:
        self.clock = ManualClock(auto=True)
        self.store = MemoryStore(clock=self.clock.now)

    def call(self, use: Callable[[hf.Engine], Awaitable[Any]], *flows: Flow[Any] | FlowSource) -> None:
        """Call `use` with a new engine. Ignore failed runs and refusals: they are part of the story."""

        async def main() -> None:
            options: dict[str, Any] = {"clock": self.clock, "luck": random.Random(1), "inline": True}
            async with hf.Engine(self.store, flows=flows, **options) as engine:
                with suppress(hf.RunFailed, hf.RunCancelled, hf.ResumeRefused):
                    await use(engine)

        asyncio.run(main())


def failed_and_resumed(recorder: Recorder) -> str:
    """A fan-out with a slow and then torn page, an edit, a retry, a loop."""
    broken = {"read", "write"}
    flow = report_flow(broken)
    recorder.call(lambda e: e.run(flow, Report("otters"), run_id="r", labels={"team": "red"}, by="ann"))
    broken.discard("read")
    recorder.call(
        lambda e: e.resume("r", edit={"topic": "sea otters"}, by="ann", reason="a better word"), flow
    )
    return "r"


def rewound(recorder: Recorder) -> str:
    """A fatal failure, a refusal, a rewind by name with force, and a skip."""
    broken = {"check"}
    flow = report_flow(broken)
    recorder.call(lambda e: e.run(flow, Report("otters"), run_id="r"))
    recorder.call(lambda e: e.resume("r", force=True, validate=lambda state: "not today", by="ann"), flow)
    recorder.call(lambda e: e.resume("r", restart_at="read", force=True), flow)
    recorder.call(lambda e: e.skip("r", "check", {"drafts": 5}, by="ann"), flow)
    return "r"


def forked(recorder: Recorder) -> str:
    """A fork of a completed run, edited."""
    flow = report_flow(set())
    recorder.call(lambda e: e.run(flow, Report("otters"), run_id="r"))
    place = next(row.seq for row in recorder.store.events("r", kinds=("NodeCompleted",), node="write"))
    recorder.call(
        lambda e: e.fork("r", checkpoint=place, run_id="f", edit={"topic": "minks"}, labels={"copy": "1"}),
        flow,
    )
    recorder.call(lambda e: e.resume("f"), flow)
    return "f"


def routed_again(recorder: Recorder) -> str:
    """A router that raised, evaluated again; then a pause, and an end by cancelling."""
    broken = {"route"}
    flow = report_flow(broken)
    recorder.call(lambda e: e.run(flow, Report("otters"), run_id="r"))
    broken.discard("route")
    broken.add("check")
    recorder.call(lambda e: e.resume("r"), flow)
    recorder.call(lambda e: e.fork("r", run_id="f"), flow)
    recorder.call(lambda e: e.pause("f", "lunch", by="ann"), flow)
    recorder.call(lambda e: e.cancel("r", "given up", by="ann"), flow)
    return "r"


def paused(recorder: Recorder) -> str:
    """The fork of the story `routed_again`, left paused."""
    routed_again(recorder)
    return "f"


def layers(recorder: Recorder) -> str:
    """A layered flow with a custom reducer, a layer that failed first, and at most two nodes in parallel."""
    broken = {"three"}
    flow = layered_flow(broken)
    recorder.call(lambda e: e.run(flow, Longest(), run_id="r"))
    broken.clear()
    recorder.call(lambda e: e.resume("r"), flow)
    return "r"


def changed(recorder: Recorder) -> str:
    """A run that is resumed with a changed flow: one more node, and a newer state version."""
    graph = Graph("growing")
    graph.node(name="a")(lambda state: {"a": 1})
    graph.node(name="b")(lambda state: {}[0])
    old = graph.chain(START, "a", "b", END).compile()
    recorder.call(lambda e: e.run(old, {}, run_id="r"))
    graph = Graph("growing", version=2, upgrades={1: lambda values: {**values, "version": 2}})
    graph.node(name="first")(lambda state: {"a": 1})
    graph.node(name="b")(lambda state: {"b": state["version"]})
    graph.node(name="c")(lambda state: {"c": 3})
    new = graph.chain(START, "first", "b", "c", END).compile()
    recorder.call(lambda e: e.resume("r", on_change="compatible", rename={"a": "first"}), new)
    return "r"


def renamed(recorder: Recorder) -> str:
    """A node that has called a child run is renamed twice while it asks; another node is renamed to its first name."""
    pay = pay_flow(set())

    def flow(*names: str) -> Flow[Bill]:
        graph = Graph("renamed", Bill)

        @graph.node(name=names[0])
        async def settle(state: Bill, ctx: hf.Context) -> dict[str, Any]:
            child = await ctx.call(pay, {"amount": 1}, key="settle")
            word = await ctx.ask("Close?", options=["yes", "no"])
            return {"paid": child.paid, "told": [word, ctx.idempotency_key()]}

        @graph.node(name=names[-1])
        async def close(state: Bill, ctx: hf.Context) -> dict[str, Any]:
            return {"told": [ctx.idempotency_key()]}

        return graph.chain(START, *names, END).compile()

    recorder.call(lambda e: e.run(flow("sub", "close"), {}, run_id="r"), pay)
    recorder.call(lambda e: e.resume("r", rename={"sub": "sub2"}), flow("sub2", "close"), pay)
    last = flow("sub3", "sub")
    recorder.call(lambda e: e.resume("r", rename={"sub2": "sub3", "close": "sub"}), last, pay)
    recorder.call(lambda e: e.answer("r", "sub3", "yes"), last, pay)
    recorder.call(lambda e: e.resume("r"), last, pay)
    return "r"


def cut(recorder: Recorder) -> str:
    """A process that died in a node that is not idempotent: the run waits for a decision."""
    flow = report_flow(set())
    recorder.call(lambda e: e.run(flow, Report("otters"), run_id="whole"))
    place = recorder.store.events("whole", kinds=("NodeStarted",), node="publish")[0].seq
    copy_of(recorder.store, "whole", "r", place)
    recorder.call(lambda e: e.resume("r"), flow)
    return "r"


def interrupted(recorder: Recorder) -> str:
    """A process that was asked to stop while its node ran."""
    graph = Graph("stopped")

    @graph.node
    async def slow(state: dict[str, Any], ctx: hf.Context) -> None:
        ctx.resources["engine"][0].stop("SIGTERM")
        await asyncio.Event().wait()

    flow = graph.chain(START, "slow", END).compile()

    async def main() -> None:
        engines: list[hf.Engine] = []
        options: dict[str, Any] = {
            "clock": recorder.clock,
            "luck": random.Random(1),
            "inline": True,
            "resources": {"engine": engines},
        }
        async with hf.Engine(recorder.store, grace=0.0, **options) as engine:
            engines.append(engine)
            await engine.run(flow, {}, run_id="r")

    asyncio.run(main())
    return "r"


@dataclass
class Order:
    number: str
    parcels: list[str] = field(default_factory=list)
    log: Annotated[list[Any], append] = field(default_factory=list)
    price: int = 0


def order_flow(crash_limit: int = 3) -> Flow[Order]:
    """charge (steps, a map, checkpoints, costs) -> hint (safe to fail) -> price (a question) -> send (gated)."""
    graph = Graph("order", Order)

    @graph.node(crash_limit=crash_limit)
    async def charge(state: Order, ctx: hf.Context) -> dict[str, Any]:
        paid = await ctx.step("pay", lambda: {"receipt": f"for {state.number}"})
        weights = await ctx.map("weigh", len, state.parcels, limit=1)
        await ctx.checkpoint({"weighed": len(weights)})
        ctx.cost(usd=0.25, tokens=40)
        return {"log": [paid, weights, ctx.attempt]}

    @graph.node(safe_to_fail=True)
    def hint(state: Order) -> None:
        raise ValueError("no idea")

    graph.ask("price", lambda state: f"What does {state.number} cost?", into="price", timeout=3600)

    @graph.node(approve="Send it?", agent="courier")
    def send(state: Order) -> dict[str, Any]:
        return {"log": ["sent"]}

    return graph.chain(START, "charge", "hint", "price", "send", END).compile()


def kept(recorder: Recorder) -> str:
    """A process that died between two steps of a node: the recorded step is not done again."""
    flow = order_flow()
    recorder.call(lambda e: e.run(flow, Order("T-1", ["a", "bcd", "ef"]), run_id="whole"))
    place = recorder.store.events("whole", kinds=("StepCompleted",))[1].seq
    copy_of(recorder.store, "whole", "r", place, active="charge")
    recorder.call(lambda e: e.resume("r"), flow)
    return "r"


def refused(recorder: Recorder) -> str:
    """A question that was not answered in time, then an answered one; a rejection, a refused and a forced resume, an approval."""
    flow = order_flow()
    recorder.call(lambda e: e.run(flow, Order("T-2"), run_id="r"))
    recorder.clock.advance(4000)
    recorder.call(lambda e: e.resume("r"), flow)
    recorder.call(lambda e: e.resume("r", by="ann"), flow)
    recorder.call(
        lambda e: e.answer("r", "price", 12, by="agent:clerk", confidence=0.5, reason="a guess"), flow
    )
    recorder.call(lambda e: e.resume("r"), flow)
    recorder.call(lambda e: e.answer("r", "send", "reject", by="ann", reason="too dear"), flow)
    recorder.call(lambda e: e.resume("r"), flow)
    recorder.call(lambda e: e.resume("r"), flow)
    recorder.call(lambda e: e.resume("r", force=True, by="ann"), flow)
    recorder.call(lambda e: e.answer("r", "send", "approve", by="ann"), flow)
    recorder.call(lambda e: e.resume("r"), flow)
    return "r"


def quarantined(recorder: Recorder) -> str:
    """A process that died twice in the same node, whose `crash_limit` is two."""
    flow = order_flow(crash_limit=2)
    recorder.call(lambda e: e.run(flow, Order("T-3"), run_id="whole"))
    for number, (before, after) in enumerate((("whole", "once"), ("once", "r"))):
        place = recorder.store.events(before, kinds=("NodeStarted",), node="charge")[number].seq
        copy_of(recorder.store, before, after, place, active="charge")
        recorder.call(lambda e, run_id=after: e.resume(run_id), flow)
    return "r"


def wait_flow() -> Flow[Order]:
    """One node that waits for a time, two signals and an answer; then a fan-out whose items wait."""
    graph = Graph("waits", Order)

    @graph.node
    async def listen(state: Order, ctx: hf.Context) -> dict[str, Any]:
        first = await ctx.wait_for("paid")
        await ctx.sleep(600)
        second = await ctx.wait_for("paid", timeout=60, key="late")
        sure = await ctx.ask("Sure?", options=["yes", "no"], timeout=60, on_timeout="no")
        return {"log": [first, second, sure], "parcels": ["a", "b"]}

    @graph.node(each=lambda state: state.parcels)
    async def stamp(parcel: str, ctx: hf.Context) -> dict[str, Any]:
        await ctx.step("weigh", lambda: 5)
        return {"log": [parcel, await ctx.wait_for("stamp")]}

    return graph.chain(START, "listen", "stamp", END).compile()


def waited(recorder: Recorder) -> str:
    """A signal that arrives before its wait, a sleep, a signal after its wait began, a question without an answer, and items that
    wait for one signal each.
    """
    flow = wait_flow()
    recorder.call(lambda e: e.start(flow, Order("T-4"), run_id="r"))
    recorder.call(lambda e: e.signal("r", "paid", {"eur": 5}, by="bank"), flow)
    recorder.call(lambda e: e.signal("r", "paid"), flow)
    recorder.call(lambda e: e.resume("r"), flow)
    recorder.clock.advance(1000)
    recorder.call(lambda e: e.resume("r"), flow)
    for number in (1, 2):
        recorder.call(lambda e, number=number: e.signal("r", "stamp", number), flow)
        recorder.call(lambda e: e.resume("r"), flow)
    return "r"


def waiting(recorder: Recorder) -> str:
    """The run of the story `waited` at the point where it waits for a signal, with recorded steps."""
    waited(recorder)
    place = recorder.store.events("r", kinds=("NodeWaiting",), node="stamp")[-1].seq
    copy_of(recorder.store, "r", "half", place, active="stamp", status="waiting")
    return "half"


def not_cleaned_up(recorder: Recorder) -> str:
    """The run of the story `waiting`, cancelled while the items of its fan-out are unwound."""
    half = waiting(recorder)
    recorder.call(lambda e: e.cancel(half, by="ann", reason="no longer needed"), wait_flow())
    return half


def superseded(recorder: Recorder) -> str:
    """A resume that waits for a worker, and a later pause that supersedes it."""
    flow = wait_flow()
    recorder.call(lambda e: e.start(flow, {"number": "A7"}, run_id="r"), flow)
    recorder.call(lambda e: e.pause("r", by="ann"), flow)
    recorder.call(lambda e: e.resume("r", by="bob", execute=False, id="later"), flow)
    recorder.call(lambda e: e.pause("r", by="ann", reason="not yet"), flow)
    return "r"


@dataclass
class Sum:
    euros: int

    def __post_init__(self) -> None:
        if self.euros < 0:
            raise ValueError("a payment is not negative")


def set_aside(recorder: Recorder) -> str:
    """A signal that came before its wait and does not fit, one that only the type rejects, and a wait that the first one fits."""
    graph = Graph("sums", Order)

    @graph.node
    async def listen(state: Order, ctx: hf.Context) -> dict[str, Any]:
        paid = await ctx.wait_for("paid", type=Sum, timeout=600)
        note = await ctx.wait_for("paid", type=str, key="note")
        return {"log": [paid.euros, note]}

    flow = graph.chain(START, "listen", END).compile()
    recorder.call(lambda e: e.start(flow, Order("T-6"), run_id="r"))
    recorder.call(lambda e: e.signal("r", "paid", "soon"), flow)
    recorder.call(lambda e: e.resume("r"), flow)
    for euros in (-5, 5):
        recorder.call(lambda e, euros=euros: e.signal("r", "paid", {"euros": euros}, by="bank"), flow)
        recorder.call(lambda e: e.resume("r"), flow)
    return "r"


def withdrawn(recorder: Recorder) -> str:
    """A question, a sleep and two waits that the node gives up. One of them has just received a signal, which the next gets."""
    graph = Graph("impatient", Order)

    async def give_up(ctx: hf.Context, wait: Any, slot: str) -> None:
        """Cancel a wait as soon as it is in the log, or as it has its result."""
        task, work = asyncio.create_task(wait), ctx._work
        for _ in range(100):
            await asyncio.sleep(0)
            if work.is_waiting(slot) or work.is_withdrawn(slot) or slot in work.kept():
                task.cancel()
                break
        await asyncio.gather(task, return_exceptions=True)

    @graph.node
    async def listen(state: Order, ctx: hf.Context) -> dict[str, Any]:
        await give_up(ctx, ctx.ask("Sure?", options=["yes", "no"]), "ask:Sure?")
        await give_up(ctx, ctx.sleep(60), "sleep:1")
        await give_up(ctx, ctx.wait_for("sent"), "signal:sent:1")
        await give_up(ctx, ctx.wait_for("paid"), "signal:paid:1")
        return {"log": [await ctx.wait_for("paid"), await ctx.wait_for("sent")]}

    flow = graph.chain(START, "listen", END).compile()
    recorder.call(lambda e: e.start(flow, Order("T-7"), run_id="r"))
    recorder.call(lambda e: e.signal("r", "paid", 5), flow)
    recorder.call(lambda e: e.resume("r"), flow)
    recorder.call(lambda e: e.signal("r", "sent"), flow)
    recorder.call(lambda e: e.resume("r"), flow)
    return "r"


def streamed(recorder: Recorder) -> str:
    """A process that was asked to stop while its node streamed; the next process streams to the end."""
    graph = Graph("streams")

    @graph.node
    async def tell(state: dict[str, Any], ctx: hf.Context) -> Any:
        for word in ("once", "upon", {"a": "time"}):
            yield word
        if ctx.attempt == 1:
            ctx.resources["engine"][0].stop("SIGTERM")
            await asyncio.Event().wait()
        yield {"told": ctx.attempt}

    flow = graph.chain(START, "tell", END).compile()

    async def main(verb: str, *args: Any) -> None:
        engines: list[hf.Engine] = []
        options: dict[str, Any] = {"clock": recorder.clock, "luck": random.Random(1), "inline": True}
        options |= {"flows": [flow], "resources": {"engine": engines}, "grace": 0.0}
        async with hf.Engine(recorder.store, **options) as engine:
            engines.append(engine)
            await getattr(engine, verb)(*args, **({"run_id": "r"} if verb == "run" else {}))

    asyncio.run(main("run", flow, {}))
    asyncio.run(main("resume", "r"))
    return "r"


def spoken(recorder: Recorder) -> str:
    """A node that streams in steps and outside of them, with a step that raises once and is called again."""
    graph = Graph("speaks")

    @graph.node
    async def speak(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        def say(*words: str, fails: bool = False) -> int:
            for word in words:
                ctx.emit(word)
            if fails:
                raise ValueError("lost for words")
            return len(words)

        ctx.emit("listen")
        try:
            said = await ctx.step("draft", say, "once", fails=True)
        except ValueError:
            said = await ctx.step("draft", say, "once", "upon")
        said += await ctx.step("draft", say, "a time", key="end")
        await ctx.sleep(3600)
        ctx.emit("awake")
        return {"said": said}

    flow = graph.chain(START, "speak", END).compile()
    recorder.call(lambda engine: engine.run(flow, {}, run_id="r"))
    return "r"


def worked(recorder: Recorder) -> str:
    """A run that a worker claimed, released while it waited, and claimed again."""
    graph = Graph("worked")

    @graph.node
    async def nap(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        await ctx.sleep(3600)
        return {"slept": True}

    flow = graph.chain(START, "nap", END).compile()
    recorder.call(lambda engine: engine.start(flow, {}, run_id="r", queue="slow", priority=2))
    recorder.call(lambda engine: engine.work(until="idle"), flow)
    recorder.clock.advance(3600)
    recorder.call(lambda engine: engine.work(until="idle"), flow)
    return "r"


def asked(recorder: Recorder) -> str:
    """Requests that a worker found in the inbox: three that it refused, an edit, and a rewind with a confirmed repeat."""
    broken = {"send"}
    graph = Graph("asked", Order)

    @graph.node(idempotent=False)
    def charge(state: Order) -> dict[str, Any]:
        return {"price": len(state.parcels)}

    @graph.node
    def send(state: Order) -> dict[str, Any]:
        if broken:
            raise ValueError("no stamps")
        return {"log": [state.number, state.price]}

    flow = graph.chain(START, "charge", "send", END).compile()
    recorder.call(lambda e: e.run(flow, Order("T-8", ["a"]), run_id="r"))
    broken.clear()
    recorder.call(lambda e: e.edit("r", {"price": "dear"}, id="1", by="bob"))
    recorder.call(lambda e: e.skip("r", "sned", execute=False, id="2", by="bob", reason="no stamps"))
    recorder.call(lambda e: e.resume("r", restart_at="charge", execute=False, id="3", by="bob"))
    recorder.call(lambda e: e.edit("r", {"parcels": ["a", "b"]}, id="4", by="ann", reason="one more"))
    recorder.call(
        lambda e: e.resume("r", restart_at="charge", confirm=["charge"], execute=False, id="5", by="ann")
    )
    recorder.call(lambda e: e.work(until="idle"), flow)
    return "r"


@dataclass
class Basket:
    parcels: list[int] = field(default_factory=lambda: [10, 20, 30])
    sent: Annotated[list[int], append] = field(default_factory=list)
    note: str = ""


def parcels_flow(broken: set[str]) -> Flow[Basket]:
    """pack -> send (each parcel) -> bill; the last two are not idempotent."""
    graph = Graph("parcels", Basket)
    graph.node(name="pack")(lambda state: {"note": "packed"})

    @graph.node(each=lambda state: state.parcels, limit=1, idempotent=False)
    def send(parcel: int, ctx: hf.Context) -> dict[str, Any]:
        if "send" in broken and ctx.item == 2:
            raise ValueError("torn")
        return {"sent": [parcel]}

    graph.node(name="bill", idempotent=False)(lambda state, ctx: {"note": f"billed by {ctx.run_id}"})
    return graph.chain(START, "pack", "send", "bill", END).compile()


def repeat_asked(recorder: Recorder) -> str:
    """A fork that asks whether to repeat an item that its parent has begun, and uses the items that were done there."""
    broken = {"send"}
    flow = parcels_flow(broken)
    recorder.call(lambda e: e.run(flow, Basket(), run_id="r"))
    recorder.call(lambda e: e.resume("r", edit={"note": "fragile"}), flow)
    place = recorder.store.events("r", kinds=("StateEdited",))[0].seq
    broken.clear()
    recorder.call(lambda e: e.resume("r"), flow)
    recorder.call(lambda e: e.fork(f"r@{place}", run_id="f", repeat={"bill": "run"}), flow)
    recorder.call(lambda e: e.resume("f"), flow)
    return "f"


def repeated(recorder: Recorder) -> str:
    """A fork of such a fork, which skips the item and repeats a node; it inherits what the first run had begun."""
    repeat_asked(recorder)
    flow = parcels_flow(set())
    place = recorder.store.events("f", limit=1)[0].seq
    recorder.call(lambda e: e.fork(f"f@{place}", run_id="g", repeat={"bill": "skip"}), flow)
    recorder.call(lambda e: e.resume("g"), flow)
    recorder.call(lambda e: e.answer("g", "send", "skip", by="ann"), flow)
    recorder.call(lambda e: e.resume("g"), flow)
    return "g"


def called(recorder: Recorder) -> str:
    """A caller whose first child completes, and whose second one fails, is mended and ends again. A third one is never done."""
    broken, flow = {"charge"}, caller_flow(set())
    recorder.call(lambda e: e.run(caller_flow(broken), {"amount": 5}, run_id="c"))
    broken.clear()
    child = _failed_child(recorder, "c")
    recorder.call(lambda e: e.resume(child), flow, pay_flow(set()))
    recorder.call(lambda e: e.resume("c"), flow, pay_flow(set()))
    recorder.call(lambda e: e.signal("c", "close", "well"), flow)
    recorder.call(lambda e: e.resume("c"), flow)
    return "c"


def _failed_child(recorder: Recorder, origin: str) -> str:
    (found,) = recorder.store.runs(Query(origin=origin, status=("failed",)))
    return found.run_id


def mended(recorder: Recorder) -> str:
    """The child of such a caller that failed, was resumed and ended again."""
    called(recorder)
    return next(
        row.run_id for row in recorder.store.runs(Query(origin="c")) if recorder.store.run(row.run_id).seq > 9
    )


def child_cancelled(recorder: Recorder) -> str:
    """A caller that fails because its child was cancelled, and is resumed in vain."""
    broken = {"charge"}
    recorder.call(lambda e: e.run(caller_flow(broken), {"amount": 5}, run_id="c"))
    recorder.call(lambda e: e.cancel(_failed_child(recorder, "c")), caller_flow(set()), pay_flow(set()))
    recorder.call(lambda e: e.resume("c"), caller_flow(set()), pay_flow(set()))
    return "c"


def adopted(recorder: Recorder) -> str:
    """A caller that is rewound to before its children, and finds them again; it is cancelled while it waits for a signal."""
    flow = caller_flow(set())
    recorder.call(lambda e: e.run(flow, {"amount": 5}, run_id="c"))
    recorder.call(lambda e: e.resume("c", restart_at="quote"), flow)
    recorder.call(lambda e: e.cancel("c", by="ann"), flow)
    return "c"


def mended_together(recorder: Recorder) -> str:
    """A caller with two children that fail, one of them while the caller has failed already and its node has unwound. The caller
    is resumed with both, and is cancelled while its last node waits.
    """
    broken = {"charge"}
    pay, slow = pay_flow(broken), slow_flow(broken)
    flow = pair_flow(pay, slow)
    recorder.call(lambda e: e.run(flow, {"amount": 5}, run_id="c"))
    (late,) = recorder.store.runs(Query(origin="c", flow="slow"))
    recorder.call(lambda e: e.answer(late.run_id, "charge", "yes"), slow)
    recorder.call(lambda e: e.resume(late.run_id), slow)
    broken.clear()
    recorder.call(lambda e: e.resume("c", by="ann"), flow, pay, slow)
    recorder.call(lambda e: e.cancel("c", by="ann"), flow)
    return "c"


class CardDeclined(Exception):
    """An outcome of a step."""


SHIP = hf.Step("ship", idempotent=False)


def outcome_flow(bank: list[Exception]) -> Flow[Order]:
    """pay (a step that is tried again and then declined; the undo) -> ship (a step that must not be called twice)."""
    graph = Graph("outcomes", Order)
    charge = hf.Step("charge", raises=(CardDeclined,), retry=Retry(attempts=3, backoff=60.0, jitter=0.0))

    def ask_bank() -> str:
        if bank:
            raise bank.pop(0)
        return "charged"

    @graph.node
    async def pay(state: Order, ctx: hf.Context) -> dict[str, Any]:
        await ctx.step("reserve", str, "seat 3")
        try:
            return {"log": [await ctx.step(charge, ask_bank)]}
        except CardDeclined as declined:
            await ctx.step("undo", str, "free again", key="seat")
            return {"log": [f"declined: {declined.args}"]}

    @graph.node
    async def ship(state: Order, ctx: hf.Context) -> dict[str, Any]:
        return {"log": [await ctx.step(SHIP, str, "shipped")]}

    return graph.chain(START, "pay", "ship", END).compile()


def outcomes(recorder: Recorder) -> str:
    """A step that is tried again and then declined, a process that died during the undo, and one that died in a step that must
    not be called twice: the run asks.
    """
    flow = outcome_flow([ConnectionError("no line"), CardDeclined("no cover", 51)])
    recorder.call(lambda e: e.run(flow, Order("T-5"), run_id="whole"))
    place = recorder.store.events("whole", kinds=("StepFailed",))[1].seq
    copy_of(recorder.store, "whole", "undoing", place, active="pay")
    recorder.call(lambda e: e.resume("undoing"), flow)
    place = recorder.store.events("undoing", kinds=("StepStarted",))[0].seq
    copy_of(recorder.store, "undoing", "r", place, active="ship")
    recorder.call(lambda e: e.resume("r"), flow)
    return "r"


def stated_flow() -> Flow[Order]:
    """ship: two steps that must not be called twice, one of them with a typed result."""
    graph = Graph("stated", Order)

    @graph.node
    async def ship(state: Order, ctx: hf.Context) -> dict[str, Any]:
        label, parcel = await asyncio.gather(
            ctx.step(hf.Step("label", idempotent=False), str, "printed", key="A4", type=str),
            ctx.step(hf.Step("parcel", idempotent=False), dict, number=7, type=dict[str, int]),
        )
        return {"log": [f"{label}, {parcel}"]}

    return graph.chain(START, "ship", END).compile()


def stated(recorder: Recorder) -> str:
    """A process that died inside two steps that must not be called twice. An answer says that one of them has happened, with its
    result; the question about the other one is open.
    """
    flow = stated_flow()
    recorder.call(lambda e: e.run(flow, Order("T-6"), run_id="whole"))
    place = recorder.store.events("whole", kinds=("StepStarted",))[1].seq
    copy_of(recorder.store, "whole", "r", place, active="ship")
    recorder.call(lambda e: e.resume("r"), flow)
    said: dict[str, Any] = {"by": "ann", "reason": "it lies on the counter"}
    recorder.call(
        lambda e: e.answer("r", "ship", "happened", step="label:A4", result="stamped", **said), flow
    )
    return "r"


def spending_flow(broken: set[str]) -> Flow[Report]:
    """plan -> write -> check, each of which costs a dollar."""
    graph = Graph("spending", Report)

    def add_node(name: str) -> None:
        @graph.node(name=name)
        async def node(state: Report, ctx: hf.Context) -> dict[str, Any]:
            ctx.cost(usd=1.0, tokens=10)
            if name in broken:
                raise ValueError("broken")
            return {"facts": [name], "drafts": 1}

    for name in ("plan", "write", "check"):
        add_node(name)
    return graph.chain(START, "plan", "write", "check", END).compile()


def limited(recorder: Recorder) -> str:
    """A layered run of an eager flow with a budget and a scope: the scope is widened, the budget is spent and raised, and a
    rewind keeps both.
    """
    flow, given, broken = spending_flow(set()), Report("limits"), spending_flow({"check"})
    limits: dict[str, Any] = {
        "budget": hf.Budget(usd=2, tokens=100),
        "scope": ["plan"],
        "schedule": "layered",
    }
    recorder.call(lambda e: e.run(flow, given, run_id="r", **limits))
    recorder.call(lambda e: e.resume("r"), flow)
    recorder.call(lambda e: e.resume("r", scope=["write"], by="ann"), flow)
    recorder.call(lambda e: e.resume("r", budget=hf.Budget(usd=2.5)), flow)
    recorder.call(lambda e: e.resume("r", scope=["*"], budget=hf.Budget(usd=9, active_s=60)), broken)
    recorder.call(lambda e: e.resume("r", after="plan"), flow)
    return "r"


def guarded(recorder: Recorder) -> str:
    """A plan: guards of which one fails and is evaluated again after an edit, skipped tasks, a join of what is left."""
    flow = plan_flows.order_plan()
    recorder.call(lambda e: e.run(flow, run_id="r"))
    facts = {"order": "4711", "country": "DE", "parts": 20}
    recorder.call(lambda e: e.resume("r", edit={"context": {"facts": facts}}, by="ann"), plan_flows.desk)
    return "r"


def judged(recorder: Recorder) -> str:
    """A plan: a policy asks before a charge and another one about what it returned. Both are answered."""
    recorder.call(lambda e: e.run(plan_flows.payment_plan(5_000), run_id="r"))
    recorder.call(lambda e: e.answer("r", "charge", "approve", by="ann"), plan_flows.desk)
    recorder.call(lambda e: e.resume("r"), plan_flows.desk)
    recorder.call(lambda e: e.answer("r", "charge", "approve", by="agent:clerk"), plan_flows.desk)
    recorder.call(lambda e: e.resume("r"), plan_flows.desk)
    return "r"


def judging(recorder: Recorder) -> str:
    """The run of the story `judged` at the point where the charge has happened, and a question about it waits."""
    judged(recorder)
    place = recorder.store.events("r", kinds=("QuestionAsked",), node="charge")[-1].seq
    copy_of(recorder.store, "r", "half", place, active="charge", status="waiting")
    return "half"


def denied(recorder: Recorder) -> str:
    """A plan: a policy denies a charge, which does not begin."""
    recorder.call(lambda e: e.run(plan_flows.payment_plan(500_000), run_id="r"))
    return "r"


def verified(recorder: Recorder) -> str:
    """A plan: a result that fails its verification, and another one that passes."""
    recorder.call(lambda e: e.run(plan_flows.draft_plan(), run_id="r"))
    return "r"


def caught(recorder: Recorder) -> str:
    """A plan: an error edge takes a failure, the guard of another one does not let it."""
    recorder.call(lambda e: e.run(plan_flows.carrier_plan(), run_id="r"))
    return "r"


def caught_in_a_layer(recorder: Recorder) -> str:
    """The plan of the story `caught`, layer by layer, within a budget, and with a scope that is widened."""
    budget, scope = hf.Budget(tokens=100), ["ship", "mail"]
    flow = plan_flows.carrier_plan()
    recorder.call(lambda e: e.run(flow, run_id="r", schedule="layered", budget=budget, scope=scope))
    recorder.call(
        lambda e: e.resume("r", scope=["*"], budget=hf.Budget(tokens=200), by="ann"), plan_flows.desk
    )
    return "r"


STORIES = (
    *(failed_and_resumed, rewound, forked, routed_again, paused, layers, changed, renamed, cut, interrupted),
    *(kept, refused, quarantined, waited, waiting, not_cleaned_up, superseded, set_aside, withdrawn),
    *(streamed, spoken, worked, asked, repeat_asked, repeated, outcomes, stated),
    *(called, mended, mended_together, child_cancelled, adopted, limited),
    *(guarded, judged, judging, denied, verified, caught, caught_in_a_layer),
)


def copy_of(
    store: MemoryStore,
    parent: str,
    run_id: str,
    upto: int,
    active: str = "publish",
    status: RunStatus = "running",
) -> None:
    """Copy a log up to this event into a new run whose process died there. The hash chain is computed again, because it contains
    the id of the run.
    """
    holder, row = dead_process(), store.run(parent)
    store.renew(holder)
    rows: list[Row] = []
    for found in store.events(parent, 0, upto):
        encoded = Encoded(
            found.kind, found.node, found.iteration, found.execution, found.attempt, unpack(found.body)
        )
        rows += seal(rows[-1].digest if rows else b"", run_id, found.seq - 1, found.at, [encoded], found.salt)
    view = View(status=status, fingerprint=row.fingerprint, state_version=row.state_version, active=(active,))
    create = NewRun(flow=row.flow, input_digest=row.input_digest, created_at=row.created_at)
    (verdict,) = store.append(
        [
            Append(
                run_id=run_id,
                expected_seq=0,
                rows=tuple(rows),
                view=view,
                holder=holder.id,
                fence=1,
                create=create,
            )
        ]
    )
    assert verdict is None, verdict


# --- files --------------------------------------------------------------------------------------------


def told(store: MemoryStore, run_id: str) -> dict[str, Any]:
    """Return the run as a user sees it who does not have the flow."""
    row = store.run(run_id)
    view: dict[str, Any] = msgspec.to_builtins(
        run_view(history.load(store, run_id, row=row), None, None), str_keys=True
    )
    return view


def lines_of(store: MemoryStore, run_id: str) -> list[dict[str, Any]]:
    row = store.run(run_id)
    rows = store.events(run_id)
    base = store.snapshot(run_id, [(rows[0].seq - 1, rows[0].seq - 1)]) if rows[0].seq > 1 else None
    head: dict[str, Any] = {
        "run_id": run_id,
        "create": _part(row, NewRun),
        "view": _part(row, View),
        "definition": json.loads(unpack(store.definition(row.fingerprint) or b"{}")),
    }
    if base is not None:
        head["base"] = {"seq": base.seq, "digest": base.digest.hex(), **_body(base.body)}
    return [head, *(_line(found) for found in rows)]


def _part(row: RunRow, kind: type[Any]) -> dict[str, Any]:
    found = {name: getattr(row, name) for name in kind.__struct_fields__}
    return {
        name: value.hex() if isinstance(value, bytes) else msgspec.to_builtins(value)
        for name, value in found.items()
    }


def _line(row: Row) -> dict[str, Any]:
    header = {
        name: getattr(row, name)
        for name in ("seq", "at", "kind", "node", "iteration", "execution", "attempt")
    }
    return {**header, "salt": row.salt.hex(), "digest": row.digest.hex(), **_body(row.body)}


def _body(body: bytes) -> dict[str, str]:
    return {"packed": base64.b64encode(body).decode()} if body.startswith(PACKED) else {"body": body.decode()}


def main(folder: Path) -> None:
    for story in STORIES:
        name = story.__name__
        if (folder / f"{name}.jsonl").exists():
            print(f"{name} exists already, and was not changed")
            continue
        recorder = Recorder()
        run_id = story(recorder)
        lines = (json.dumps(line, ensure_ascii=False) for line in lines_of(recorder.store, run_id))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / f"{name}.json").write_text(
            json.dumps(told(recorder.store, run_id), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        print(f"{name}: {recorder.store.run(run_id).seq} events, {recorder.store.run(run_id).status}")


def no_paths(error: BaseException) -> str:
    """Return a traceback without the paths of this machine."""
    return f'Traceback (most recent call last):\n  File "flow.py", line 1, in node\n{type(error).__name__}: {error}\n'


if __name__ == "__main__":
    failures._trace = no_paths
    main(Path(sys.argv[1]))
