"""What is measured. Each workload opens an engine on a store of its own, does its work once, checks it, and says what it took.

Steps are as small as steps can be (one field changes), so that what is measured is the engine. Before the clock starts, a
store on disk has taken a first run: its log has grown to its size and its statements are prepared, as in any process that
has been up for a second.
"""

import asyncio
import gc
import random
import string
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import holdfast as hf
from holdfast import END, START, Engine, Flow, Graph, add, append
from holdfast.storage.contract import Store
from holdfast.storage.memory import MemoryStore
from holdfast.storage.sqlite import SqliteStore

StoreKind: TypeAlias = Literal["memory", "sqlite"]

CHAIN_NODES = 1000
FLEET_RUNS = 1000
FLEET_NODES = 10
GROW_BYTES = 1024
# Quotes and backslashes would be escaped: 1 KB of them is more than 1 KB of JSON.
_LETTERS = "".join(sorted(set(string.printable) - set(string.whitespace) - set('"\\')))


class Took(NamedTuple):
    """Seconds on the wall, and seconds of CPU in all threads of this process: what a piece of work took, or when it began."""

    wall_s: float
    cpu_s: float


@dataclass
class Counter:
    """The state of the small workloads."""

    step: int = 0
    note: str = ""


@dataclass
class Tally:
    """A state that many nodes write at once."""

    done: Annotated[int, add] = 0


@dataclass
class Letters:
    """A state that grows."""

    left: int = 0
    letters: Annotated[list[str], append] = field(default_factory=list)


async def count_async(state: Counter) -> dict[str, Any]:
    return {"step": state.step + 1}


def count_in_thread(state: Counter) -> dict[str, Any]:
    return {"step": state.step + 1}


# --- flows ---------------------------------------------------------------------------------------------


def chain_flow(name: str, nodes: int, fn: Callable[..., Any], state: type[Any] = Counter) -> Flow[Any]:
    """One node after the other."""
    graph = Graph(name, state)
    names = [f"n{number}" for number in range(nodes)]
    for node in names:
        graph.node(name=node)(fn)
    return graph.chain(START, *names, END).compile()


def dag_flow(nodes: int, width: int, seed: int = 7) -> Flow[Tally]:
    """Layers of a given width; every node has one to three sources in the layer before, so about two in three are joins."""
    luck = random.Random(seed)
    graph = Graph(f"dag-{nodes}", Tally)

    async def tally(state: Tally) -> dict[str, Any]:
        return {"done": 1}

    names = [f"n{number}" for number in range(nodes)]
    leads_on = set()
    for number, name in enumerate(names):
        graph.node(name=name)(tally)
        layer = number // width
        before = names[(layer - 1) * width : layer * width] if layer else []
        for source in luck.sample(before, luck.randint(1, 3)) if before else [START]:
            graph.edge(source, name)
            leads_on.add(source)
    for name in names:
        if name not in leads_on:
            graph.edge(name, END)
    return graph.compile()


# --- steps per second ----------------------------------------------------------------------------------


def chain(store: StoreKind, folder: Path, fn: Callable[..., Any], nodes: int = CHAIN_NODES) -> Took:
    """One run, one node after the other: every step waits for its own sync."""
    flow = chain_flow("chain", nodes, fn)

    async def work(engine: Engine) -> Took:
        await engine.run(flow, run_id="warm-up")
        run, took = await _timed(lambda: engine.run(flow, run_id="measured"))
        assert (run.status, run.state.step) == ("completed", nodes), run
        return took

    return _with_engine(store, folder, work)


def fleet(store: StoreKind, folder: Path, runs: int = FLEET_RUNS, nodes: int = FLEET_NODES) -> Took:
    """Many runs at once: their steps share syncs."""
    flow = chain_flow("fleet", nodes, count_async)

    async def run_all(engine: Engine, name: str, count: int) -> list[hf.Run[Counter]]:
        return await asyncio.gather(*(engine.run(flow, run_id=f"{name}-{number}") for number in range(count)))

    async def work(engine: Engine) -> Took:
        await run_all(engine, "warm-up", min(runs, 100))
        done, took = await _timed(lambda: run_all(engine, "measured", runs))
        assert all((run.status, run.state.step) == ("completed", nodes) for run in done)
        return took

    return _with_engine(store, folder, work)


def dag(store: StoreKind, folder: Path, flow: Flow[Tally], runs: int) -> Took:
    """A wide graph with joins, run several times, one run after the other."""
    nodes = len(flow.nodes)

    async def run_all(engine: Engine) -> None:
        for number in range(runs):
            run = await engine.run(flow, run_id=f"measured-{number}")
            assert (run.status, run.state.done) == ("completed", nodes), run

    async def work(engine: Engine) -> Took:
        warm_up = chain_flow("warm-up", 400 if store == "sqlite" else 10, count_async)
        await engine.run(warm_up)
        _, took = await _timed(lambda: run_all(engine))
        return took

    return _with_engine(store, folder, work)


# --- bytes ---------------------------------------------------------------------------------------------


class Grown(NamedTuple):
    """A run whose state grew by 1 KB a step."""

    stored_bytes: int
    wall_s: float


def grow(folder: Path, steps: int = 1000, *, loop: bool) -> Grown:
    """Append 1 KB of random text to a list in each step: of a chain, or of a loop over one node. Bytes are those after close."""
    luck = random.Random(steps)
    texts = ["".join(luck.choices(_LETTERS, k=GROW_BYTES)) for _ in range(steps)]

    async def write(state: Letters) -> dict[str, Any]:
        return {"left": state.left - 1, "letters": [texts[state.left - 1]]}

    if loop:
        graph = Graph("grow", Letters)
        graph.node(name="write")(write)
        graph.edge(START, "write").branch(
            "write", lambda state: "write" if state.left else END, to=["write", END]
        )
        flow = graph.compile(max_iterations=steps)
    else:
        flow = chain_flow("grow", steps, write, Letters)

    async def work(engine: Engine) -> Took:
        run, took = await _timed(lambda: engine.run(flow, Letters(left=steps), run_id="measured"))
        assert (run.status, len(run.state.letters)) == ("completed", steps)
        return took

    took = _with_engine("sqlite", folder, work)
    return Grown(sum(path.stat().st_size for path in folder.glob("store.db*")), took.wall_s)


# --- resuming ------------------------------------------------------------------------------------------


class Resumed(NamedTuple):
    """A run that was taken up again by another engine."""

    to_node: Took
    """From the call of `resume` to the first line of the node it goes on with."""
    open_s: float
    """Opening the engine and its store, before that."""


def resume(folder: Path, stops_at: int, nodes: int = CHAIN_NODES) -> Resumed:
    """A chain fails in one of its nodes; another engine in this process resumes it."""
    reached: list[Took] = []

    async def count(state: Counter) -> dict[str, Any]:
        if state.step == stops_at:
            reached.append(Took(time.perf_counter(), time.process_time()))
            if len(reached) == 1:
                raise RuntimeError("the first visit fails")
        return {"step": state.step + 1}

    flow = chain_flow("resume", nodes, count)
    path = folder / "store.db"

    async def first() -> None:
        async with Engine(path, flows=[flow]) as engine:
            try:
                await engine.run(flow, run_id="measured")
            except hf.RunFailed:
                return
        raise AssertionError("the run should have failed")

    async def second() -> Resumed:
        opened_at = time.perf_counter()
        async with Engine(path, flows=[flow]) as engine:
            began = Took(time.perf_counter(), time.process_time())
            run = await engine.resume("measured")
            assert (run.status, run.state.step) == ("completed", nodes), run
        to_node = Took(reached[1].wall_s - began.wall_s, reached[1].cpu_s - began.cpu_s)
        return Resumed(to_node, began.wall_s - opened_at)

    asyncio.run(first())
    with _steady():
        return asyncio.run(second())


# --- measuring -----------------------------------------------------------------------------------------


def _with_engine(kind: StoreKind, folder: Path, work: Callable[[Engine], Awaitable[Took]]) -> Took:
    async def main() -> Took:
        store: Store = MemoryStore() if kind == "memory" else SqliteStore(folder / "store.db")
        try:
            async with Engine(store) as engine:
                return await work(engine)
        finally:
            store.close()

    return asyncio.run(main())


async def _timed(work: Callable[[], Awaitable[Any]]) -> tuple[Any, Took]:
    with _steady():
        wall, cpu = time.perf_counter(), time.process_time()
        result = await work()
        return result, Took(time.perf_counter() - wall, time.process_time() - cpu)


@contextmanager
def _steady() -> Iterator[None]:
    """What earlier workloads left behind is not collected at this one's expense. Its own garbage is: that is part of its cost."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
