"""Measure how long `engine.questions()`, with many open questions, delays a node that runs in the same process.

The node sleeps 2 ms at a time. Its longest pause during a call of `questions()` is the delay; the pauses without such a call show
the noise of the machine. `python -m bench.held_up` prints the results for SQLite and PostgreSQL.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bench.stores import NoServer, Place, server
from holdfast import END, START, Engine, Flow, Graph
from holdfast.storage.contract import Store
from holdfast.testing.builders import History, outline

TICK_S = 0.002
TIMES = 20


class HeldUp(NamedTuple):
    """The longest pause of the node in each of several measurements, in milliseconds."""

    reading_ms: list[float]
    """The longest pauses during calls of `questions()`."""
    alone_ms: list[float]
    """The longest pauses within the same time, without a call of `questions()`."""
    questions_ms: float
    """The median duration of a call of `questions()`."""

    @property
    def median_ms(self) -> float:
        return statistics.median(self.reading_ms)

    @property
    def worst_ms(self) -> float:
        return max(self.reading_ms)


def write_asking_runs(store: Store, numbers: range) -> None:
    """Write runs that wait for an approval, one for each number."""
    flow = outline("START a END", nodes={"a": {"approve": "Go on?"}})
    for number in numbers:
        History(f"asks-{number}", flow, starts_at=store.now()).created().settled().write(store)


def held_up(store: Store, times: int = TIMES) -> HeldUp:
    """Measure how long `questions()` on this store delays a running node."""
    ticks: list[float] = []
    done = asyncio.Event()

    async def tick(state: dict[str, Any]) -> None:
        while not done.is_set():
            await asyncio.sleep(TICK_S)
            ticks.append(time.perf_counter())

    async def pause_during(reads: Any) -> tuple[float, float]:
        """Await `reads`; return the longest pause between two ticks meanwhile, and its duration, in milliseconds."""
        ticks.clear()
        began = time.perf_counter()
        await reads
        took = time.perf_counter() - began
        await asyncio.sleep(2 * TICK_S)
        return max(later - earlier for earlier, later in pairwise([began, *ticks])) * 1000, took * 1000

    async def main() -> HeldUp:
        async with Engine(store) as engine:
            running = asyncio.ensure_future(engine.run(_ticking(tick), {}, run_id=f"ticks-{time.time_ns()}"))
            while len(ticks) < 10:  # noqa: ASYNC110 - waits until the node ticks
                await asyncio.sleep(TICK_S)
            await engine.questions()  # so that connections are open before measuring
            reading = [await pause_during(engine.questions()) for _ in range(times)]
            took_ms = statistics.median(took for _, took in reading)
            alone = [await pause_during(asyncio.sleep(took_ms / 1000)) for _ in range(times)]
            done.set()
            await running
        return HeldUp([pause for pause, _ in reading], [pause for pause, _ in alone], took_ms)

    return asyncio.run(main())


def _ticking(node: Any) -> Flow[Any]:
    graph = Graph("ticking", dict)
    graph.node(name="tick")(node)
    return graph.chain(START, "tick", END).compile()


def measure(place: Place, counts: tuple[int, ...] = (200, 1000)) -> dict[int, HeldUp]:
    """Return, for each number of runs with an open question, how long `questions()` delays a node."""
    store = place.open()
    found, written = {}, 0
    try:
        for count in counts:
            write_asking_runs(store, range(written, count))
            written = count
            found[count] = held_up(store)
    finally:
        store.close()
    return found


def main() -> None:
    """Measure on SQLite and PostgreSQL, and print one line for each number of runs."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "sqlite").mkdir()
        (folder / "postgres").mkdir()
        places = [Place("sqlite", folder / "sqlite", synced=False)]
        try:
            database = stack.enter_context(server(folder / "postgres")).new_database()
            places.append(Place("postgres", folder / "postgres", url=database))
        except NoServer as missing:
            print(f"PostgreSQL is not measured: {missing}", file=sys.stderr)
        for place in places:
            for count, found in measure(place).items():
                print(
                    f"{place.kind:9} {count:5} runs: median {found.median_ms:5.1f} ms, worst of {len(found.reading_ms)} "
                    f"{found.worst_ms:5.1f} ms (alone {statistics.median(found.alone_ms):.1f} and {max(found.alone_ms):.1f}); "
                    f"questions() takes {found.questions_ms:.0f} ms"
                )


if __name__ == "__main__":
    main()
