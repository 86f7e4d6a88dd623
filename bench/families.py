"""Measure child runs: what one call costs beside two chained nodes, how fast workers execute the many children of one caller
beside the same runs started one by one, and what callers that wait keep in memory.
"""

import asyncio
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any, TypedDict

import holdfast as hf
from bench.contest import ROOT
from bench.parts import Bench
from bench.report import Figure, at_least, at_most
from bench.stores import Place, StoreKind
from holdfast import END, START, Flow, Graph
from holdfast.storage.sqlite.store import SqliteStore

WORKERS = 4
LIMIT = 400
"""How many children of the caller are open at a time."""
_PIECE = 1000
SIZES = {"quick": (200, 500, 20), "normal": (2_000, 2_000, 100), "full": (10_000, 10_000, 300)}
"""Effort -> the number of children of one caller, of waiting callers, and of calls."""


class Item(TypedDict, total=False):
    """The state of a child."""

    number: int


class Many(TypedDict, total=False):
    """The state of a caller with many children."""

    count: int
    done: Annotated[int, hf.add]


def child_flow() -> Flow[Item]:
    """Return a flow with one node, which does nothing."""
    graph = Graph("child", Item)

    @graph.node
    async def only(state: Item) -> Item:
        return {"number": state["number"]}

    return graph.chain(START, "only", END).compile()


def asking_flow() -> Flow[Item]:
    """Return a flow with one node, which waits for a signal."""
    graph = Graph("asking", Item)

    @graph.node
    async def only(state: Item, ctx: hf.Context) -> Item:
        await ctx.wait_for("go")
        return state

    return graph.chain(START, "only", END).compile()


def calling_flow(child: Flow[Item], name: str = "calling") -> Flow[Item]:
    """Return a flow with one node, which calls the child."""
    graph = Graph(name, Item)

    @graph.node
    async def call(state: Item, ctx: hf.Context) -> Item:
        return await ctx.call(child, state)

    return graph.chain(START, "call", END).compile()


def chained_flow() -> Flow[Item]:
    """Return a flow with two nodes that do nothing."""
    graph = Graph("chained", Item)

    async def step(state: Item) -> Item:
        return {"number": state["number"]}

    graph.node(name="first")(step)
    graph.node(name="second")(step)
    return graph.chain(START, "first", "second", END).compile()


def many_flow(child: Flow[Item]) -> Flow[Many]:
    """Return a flow whose only node calls the child for each of many items."""
    graph = Graph("many", Many)

    @graph.node(each=lambda state: range(state["count"]), limit=LIMIT)
    async def each(number: int, ctx: hf.Context) -> dict[str, Any]:
        await ctx.call(child, {"number": number})
        return {"done": 1}

    return graph.chain(START, "each", END).compile()


def families(bench: Bench) -> list[Figure]:
    """Measure everything about child runs, on SQLite and, if a server is there, on PostgreSQL."""
    children, callers, calls = SIZES[bench.effort.name]
    figures = [*_calls(bench, calls), _waiting(bench, callers)]
    kinds: list[StoreKind] = ["sqlite", "postgres"] if bench.server else ["sqlite"]
    for kind in kinds:
        figures += _many_children(bench, kind, children)
    return figures


# --- one call ------------------------------------------------------------------------------------------


class _Counting(SqliteStore):
    """A store that counts its appends."""

    appends = 0

    def append(self, batch: Any) -> Any:
        self.appends += len(batch)
        return super().append(batch)


def _calls(bench: Bench, calls: int) -> list[Figure]:
    child = child_flow()
    calling, chained = calling_flow(child), chained_flow()
    ratios: list[float] = []
    appends: list[float] = []
    beside: dict[str, list[float]] = {"ms for a call": [], "ms for two nodes": []}
    for _ in bench.each_round("calls of a child beside two chained nodes"):
        with bench.fresh() as place:
            store = _Counting(str(place.folder / "store.db"))

            async def measure(flow: Flow[Any], store: Any = store) -> float:
                async with hf.Engine(store, flows=[calling, child, chained]) as engine:
                    await engine.run(flow, {"number": 0})
                    began, before = time.perf_counter(), store.appends
                    for number in range(calls):
                        await engine.run(flow, {"number": number})
                    appends.append((store.appends - before) / calls)
                    return (time.perf_counter() - began) / calls * 1e3

            call_ms = asyncio.run(measure(calling))
            appends.append(appends.pop() - 1)  # the append that creates the caller and starts its node
            chain_ms = asyncio.run(measure(chained))
            appends.pop()
            store.close()
        ratios.append(call_ms / chain_ms)
        beside["ms for a call"].append(call_ms)
        beside["ms for two nodes"].append(chain_ms)
    return [
        Figure(
            "a call of a child that returns at once, beside two chained nodes",
            "times the time",
            ratios,
            at_most(3.0),
            beside=beside,
        ),
        Figure(
            "appends of a call, to both logs, until the caller is completed", "appends", appends, at_most(5.0)
        ),
    ]


# --- waiting callers -----------------------------------------------------------------------------------


def _waiting(bench: Bench, callers: int) -> Figure:
    """The memory of an engine whose callers all wait for children that wait, measured in a process of its own."""
    bench.progress.say(f"{callers:,} callers that wait")
    with bench.fresh() as place:
        found = _in_process("waiting", {"store": _url(place), "callers": callers})
    return Figure(
        f"{callers:,} callers that wait for children",
        "MB more than an empty engine",
        [found["extra_mb"]],
        at_most(60.0),
        beside={"MB for the empty engine": [found["empty_mb"]], "threads more": [found["threads"]]},
    )


async def _wait(asked: dict[str, Any]) -> dict[str, float]:
    child = asking_flow()
    flow = calling_flow(child, "patient")
    async with hf.Engine(asked["store"], flows=[child, flow], park_after=0.0) as engine:
        await engine.run(flow, {"number": -1})
        empty, threads = _rss_mb(), threading.active_count()
        for first in range(0, asked["callers"], 500):
            ids = range(first, min(first + 500, asked["callers"]))
            await asyncio.gather(*(engine.start(flow, {"number": number}) for number in ids))
        await engine.work(until="idle")
        waiting = len(await engine.runs(status="waiting", flow="patient", limit=asked["callers"] + 1))
        assert waiting == asked["callers"] + 1, waiting
        return {
            "empty_mb": empty,
            "extra_mb": _peak_mb() - empty,
            "threads": float(max(0, threading.active_count() - threads)),
        }


# --- many children of one caller -----------------------------------------------------------------------


def _many_children(bench: Bench, kind: StoreKind, children: int) -> list[Figure]:
    bench.progress.say(f"{children:,} children of one caller, {WORKERS} workers, {kind}")
    child = child_flow()
    flow = many_flow(child)

    async def alone(place: Place) -> float:
        async with hf.Engine(_url(place), flows=[child]) as engine:
            began = time.perf_counter()
            for first in range(0, children, _PIECE):
                ids = [f"c{number}" for number in range(first, min(first + _PIECE, children))]
                await asyncio.gather(*(engine.start(child, {"number": 1}, run_id=run_id) for run_id in ids))
            for number in range(children):
                await engine.wait(f"c{number}")
            return time.perf_counter() - began

    async def called(place: Place) -> float:
        async with hf.Engine(_url(place), flows=[flow, child]) as engine:
            began = time.perf_counter()
            await engine.start(flow, {"count": children}, run_id="r")
            run = await engine.wait("r")
            assert run.state["done"] == children, run
            return time.perf_counter() - began

    took: list[float] = []
    memory: list[float] = []
    for measure in (alone, called):
        with bench.fresh(kind) as place, ExitStack() as opened:
            place.open().close()  # create the schema before the workers start
            workers = [opened.enter_context(_worker(place)) for _ in range(WORKERS)]
            took.append(asyncio.run(measure(place)))
            memory = [_end(worker) for worker in workers]
    return [
        Figure(
            f"rate of {children:,} children of one caller beside the same runs started alone, {WORKERS} workers, {kind}",
            "of the rate",
            [took[0] / took[1]],
            at_least(0.6),
            beside={"children/s": [children / took[1]], "runs/s": [children / took[0]]},
        ),
        Figure(
            f"memory of the worker of a caller with {children:,} children, {kind}",
            "MB more than an empty worker",
            [max(memory)],
            at_most(60.0),
        ),
    ]


def _url(place: Place) -> str:
    return place.url or str(place.folder / "store.db")


@contextmanager
def _worker(place: Place) -> Iterator[Any]:
    """Start a worker in its own process, and wait until it is ready."""
    process = _start("worker", {"store": _url(place)})
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "the worker did not start"
            yield process
        finally:
            process.kill()


def _end(worker: Any) -> float:
    """End a worker, and return how much memory it needed, in MB."""
    said, _ = worker.communicate(timeout=60)
    return float(json.loads(said)["extra_mb"])


def _start(what: str, asked: dict[str, Any]) -> Any:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.families", what, json.dumps(asked)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _in_process(what: str, asked: dict[str, Any]) -> dict[str, float]:
    with _start(what, asked) as process:
        said, _ = process.communicate()
    found: dict[str, float] = json.loads(said)
    return found


async def _work(asked: dict[str, Any]) -> dict[str, float]:
    child = child_flow()
    async with hf.Engine(asked["store"], flows=[child, many_flow(child)]) as engine:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), engine.stop)
        empty = _rss_mb()
        print("ready", flush=True)
        await engine.work(concurrency=10)
        return {"extra_mb": _peak_mb() - empty}


def _rss_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    _asked = json.loads(sys.argv[2])
    print(json.dumps(asyncio.run(_work(_asked) if sys.argv[1] == "worker" else _wait(_asked))))
