"""Measure nodes that are called in processes and threads, many more at once than there are places for them: what one empty call
takes beside one call at a time, how long 100 calls with work take beside bare processes, and how many threads blocking calls use.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import holdfast as hf
from bench.parts import Bench
from bench.report import Figure, at_most
from holdfast import END, START, Flow, Graph
from holdfast.runtime.calls.call_places import count_cores

WORK_S = 0.02
_NAP_S = 0.05
_THREADS = 200
SIZES = {"quick": (20, 10, 200), "normal": (200, 100, 5_000), "full": (200, 100, 5_000)}
"""Effort -> the number of empty calls at once, of calls with work, and of blocking calls."""


def empty(state: dict[str, Any]) -> None:
    """Do nothing."""


def work(state: dict[str, Any]) -> None:
    """Use the processor for 20 ms."""
    until = time.process_time() + WORK_S
    while time.process_time() < until:
        pass


def nap(state: dict[str, Any]) -> None:
    """Block a thread for 50 ms."""
    time.sleep(_NAP_S)


def places(bench: Bench) -> list[Figure]:
    """Measure calls that wait for a place, on SQLite."""
    empties, works, naps = SIZES[bench.effort.name]
    return [_empty(bench, empties), _work(bench, works), _naps(bench, naps)]


def _flow(fn: Callable[[dict[str, Any]], None], executor: str) -> Flow[Any]:
    graph = Graph(fn.__name__)
    graph.node(name="only", executor=executor)(fn)
    return graph.chain(START, "only", END).compile()


async def _at_once(engine: hf.Engine, flow: Flow[Any], count: int) -> float:
    """Return how many seconds this many runs at once take."""
    began = time.perf_counter()
    runs = await asyncio.gather(*(engine.run(flow, {}) for _ in range(count)))
    took = time.perf_counter() - began
    assert all(run.status == "completed" for run in runs)
    return took


def _empty(bench: Bench, count: int) -> Figure:
    flow, values, one, many = _flow(empty, "process"), list[float](), list[float](), list[float]()

    async def measure(url: str) -> None:
        async with hf.Engine(url, flows=[flow]) as engine:
            await _at_once(engine, flow, 2 * count_cores())  # the processes are warm
            began = time.perf_counter()
            for _ in range(20):
                await engine.run(flow, {})
            one.append((time.perf_counter() - began) / 20 * 1e3)
            many.append(await _at_once(engine, flow, count) / count * 1e3)
            values.append(many[-1] * count_cores() / one[-1])

    for _ in bench.each_round("empty nodes in processes"):
        with bench.fresh() as place:
            asyncio.run(measure(str(place.folder / "store.db")))
    return Figure(
        f"an empty node of {count} at once in processes, per core, beside one at a time",
        "times",
        values,
        at_most(1.5),
        beside={"ms at once": many, "ms one at a time": one},
    )


def _work(bench: Bench, count: int) -> Figure:
    flow, values = _flow(work, "process"), list[float]()

    async def measure(url: str) -> None:
        with ProcessPoolExecutor(count_cores(), mp_context=get_context("spawn")) as bare:
            list(bare.map(work, [{}] * 2 * count_cores()))
            async with hf.Engine(url, flows=[flow]) as engine:
                await _at_once(engine, flow, 2 * count_cores())
                began = time.perf_counter()
                list(bare.map(work, [{}] * count))  # the ideal, on this machine and at this moment
                ideal = time.perf_counter() - began
                values.append(await _at_once(engine, flow, count) / ideal)

    for _ in bench.each_round("nodes of 20 ms in processes"):
        with bench.fresh() as place:
            asyncio.run(measure(str(place.folder / "store.db")))
    return Figure(
        f"{count} nodes of 20 ms at once in processes, beside bare processes", "times", values, at_most(1.3)
    )


def _naps(bench: Bench, count: int) -> Figure:
    flow, values = _flow(nap, "thread"), list[float]()

    async def measure(url: str) -> None:
        async with hf.Engine(url, flows=[flow], threads=_THREADS) as engine:
            going, most = asyncio.ensure_future(_at_once(engine, flow, count)), 0
            while not going.done():
                most = max(most, sum(one.name == "holdfast-node" for one in threading.enumerate()))
                await asyncio.sleep(_NAP_S)
            await going
            values.append(most)

    with bench.fresh() as place:
        asyncio.run(measure(str(place.folder / "store.db")))
    return Figure(f"threads for {count:,} blocking nodes at once", "threads", values, at_most(_THREADS))
