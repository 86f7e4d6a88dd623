"""Workloads for steps per second. Each opens an engine on a new store, does its work once, checks it, and returns its time.

Steps are as small as possible (one field changes), so that the engine is measured. Before the time is taken, a first run on the
store brings its log to full size and prepares its statements, as in any process that has run for a second.
Workloads with long histories or large states are in `lasting`, those of single commits in `delays`.
"""

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

import holdfast as hf
from bench.stores import Place
from holdfast import END, START, Engine, Flow, Graph, add
from holdfast.storage.contract import Store

T = TypeVar("T")

CHAIN_NODES = 1000
FLEET_NODES = 10
ITEMS = 1000


class Took(NamedTuple):
    """Wall time and CPU time of all threads of this process, in seconds: the duration of some work, or when it began."""

    wall_s: float
    cpu_s: float


def now() -> Took:
    return Took(time.perf_counter(), time.process_time())


def since(began: Took) -> Took:
    return Took(time.perf_counter() - began.wall_s, time.process_time() - began.cpu_s)


@dataclass
class Counter:
    """The state of the small workloads."""

    step: int = 0
    note: str = ""


@dataclass
class Tally:
    """A state that many nodes write at once."""

    done: Annotated[int, add] = 0


async def count_async(state: Counter) -> dict[str, Any]:
    return {"step": state.step + 1}


def count_in_thread(state: Counter) -> dict[str, Any]:
    return {"step": state.step + 1}


# --- flows ---------------------------------------------------------------------------------------------


def chain_flow(name: str, nodes: int, fn: Callable[..., Any], state: Any = Counter) -> Flow[Any]:
    """Return a flow of nodes that run one after another."""
    graph = Graph(name, state)
    names = [f"n{number}" for number in range(nodes)]
    for node in names:
        graph.node(name=node)(fn)
    return graph.chain(START, *names, END).compile()


def loop_flow(name: str, steps: int, fn: Callable[..., Any], state: Any = Counter) -> Flow[Any]:
    """Return a flow that loops over one node until the state has counted `steps`."""
    graph = Graph(name, state)
    graph.node(name="again")(fn)
    graph.edge(START, "again")
    graph.branch("again", lambda seen: "again" if step_of(seen) < steps else END, to=["again", END])
    return graph.compile(max_iterations=steps + 1)


def step_of(state: Any) -> int:
    return int(state["step"] if isinstance(state, dict) else state.step)


def fan_flow(items: int, *, threads: bool = False) -> Flow[Tally]:
    """Return a flow with one node that fans out over many items."""
    graph = Graph("fan", Tally)

    async def tally(item: int) -> dict[str, Any]:
        return {"done": 1}

    def tally_in_thread(item: int) -> dict[str, Any]:
        return {"done": 1}

    graph.node(name="tally", each=lambda _: range(items))(tally_in_thread if threads else tally)
    return graph.chain(START, "tally", END).compile()


def steps_flow(steps: int, *, threads: bool = False) -> Flow[Counter]:
    """Return a flow with one node that records many steps."""
    graph = Graph("steps", Counter)

    def one(number: int) -> int:
        return number + 1

    async def one_async(number: int) -> int:
        return number + 1

    async def work(state: Counter, ctx: hf.Context) -> dict[str, Any]:
        number = 0
        for key in range(steps):
            number = await ctx.step("one", one_async, number, key=key)
        return {"step": number}

    def work_in_thread(state: Counter, ctx: hf.Context) -> dict[str, Any]:
        number = 0
        for key in range(steps):
            number = ctx.step("one", one, number, key=key)
        return {"step": number}

    graph.node(name="work")(work_in_thread if threads else work)
    return graph.chain(START, "work", END).compile()


def dag_flow(nodes: int, width: int, seed: int = 7) -> Flow[Tally]:
    """Return a graph of layers. Each node has one to three sources in the layer before, so about two in three nodes are joins."""
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


def chain(place: Place, fn: Callable[..., Any] = count_async, nodes: int = CHAIN_NODES) -> Took:
    """One run with one node after another: every step waits for its own sync."""
    return _one_run(place, chain_flow("chain", nodes, fn), lambda state: state.step == nodes)


def loop(place: Place, fn: Callable[..., Any] = count_async, steps: int = CHAIN_NODES) -> Took:
    """One run that loops over one node."""
    return _one_run(place, loop_flow("loop", steps, fn), lambda state: state.step == steps)


def fan(place: Place, items: int = ITEMS, *, threads: bool = False) -> Took:
    """One node that fans out over many items, sixteen at a time; each result is durable by itself."""
    return _one_run(place, fan_flow(items, threads=threads), lambda state: state.done == items)


def steps(place: Place, count: int = ITEMS, *, threads: bool = False) -> Took:
    """One node that records many steps, one after the other."""
    return _one_run(place, steps_flow(count, threads=threads), lambda state: state.step == count)


def _one_run(place: Place, flow: Flow[Any], right: Callable[[Any], bool]) -> Took:
    """Run a flow twice, and return the time of the second run."""

    async def work(engine: Engine) -> Took:
        await engine.run(flow, run_id="warm-up")
        run, took = await timed(lambda: engine.run(flow, run_id="measured"))
        assert run.status == "completed", run
        assert right(run.state), run
        return took

    return with_engine(place, work)


def fleet(place: Place, runs: int, fn: Callable[..., Any] = count_async, nodes: int = FLEET_NODES) -> Took:
    """Many concurrent runs, whose steps share syncs."""
    flow = chain_flow("fleet", nodes, fn)

    async def run_all(engine: Engine, name: str, count: int) -> list[hf.Run[Counter]]:
        return await asyncio.gather(*(engine.run(flow, run_id=f"{name}-{number}") for number in range(count)))

    async def work(engine: Engine) -> Took:
        await run_all(engine, "warm-up", min(runs, 100))
        found, took = await timed(lambda: run_all(engine, "measured", runs))
        assert all((run.status, run.state.step) == ("completed", nodes) for run in found)
        return took

    return with_engine(place, work)


def dag(place: Place, flow: Flow[Tally], runs: int) -> Took:
    """A wide graph with joins, run several times, one run after the other."""
    nodes = len(flow.nodes)

    async def run_all(engine: Engine) -> None:
        for number in range(runs):
            run = await engine.run(flow, run_id=f"measured-{number}")
            assert (run.status, run.state.done) == ("completed", nodes), run

    async def work(engine: Engine) -> Took:
        await warm_up(engine, place)
        _, took = await timed(lambda: run_all(engine))
        return took

    return with_engine(place, work)


# --- measuring -----------------------------------------------------------------------------------------


async def warm_up(engine: Engine, place: Place) -> None:
    """Execute a first run, so that the log of the store has its full size and statements are prepared."""
    await engine.run(chain_flow("warm-up", 10 if place.kind == "memory" else 400, count_async))


def with_engine(
    place: Place, work: Callable[[Engine], Awaitable[T]], *, store: Store | None = None, **options: Any
) -> T:
    """Open an engine on a store, do the work, and close both."""

    async def main() -> T:
        opened = store or place.open()
        try:
            async with Engine(opened, **options) as engine:
                return await work(engine)
        finally:
            opened.close()

    return asyncio.run(main())


async def timed(work: Callable[[], Awaitable[T]]) -> tuple[T, Took]:
    with steady():
        began = now()
        result = await work()
        return result, since(began)


@contextmanager
def steady() -> Iterator[None]:
    """Collect the garbage of earlier workloads first. The garbage of this workload is part of its cost."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
