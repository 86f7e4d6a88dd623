"""The delays of one step: the time that the engine adds to slow nodes, and the time of a durable append.

A disk is slower after idle time, so the time that is added to a slow node is compared with a raw commit after the same idle time.
"""

import asyncio
import statistics
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from bench.raw import Commits, percentile
from bench.stores import Place
from bench.workloads import CHAIN_NODES, Counter, chain_flow, count_async, steady, warm_up, with_engine
from holdfast import Engine
from holdfast.storage.contract import Append, Verdict


class Around(NamedTuple):
    """The time of slow nodes, with an engine and without."""

    engine_s: float
    """From the first line of the first node until the run is returned, per node."""
    bare_s: float
    """The time of the same coroutines in a plain loop without an engine, per node."""
    commit_s: float
    """The median time of raw commits after the same idle time."""

    @property
    def extra_s(self) -> float:
        return max(self.engine_s - self.bare_s, 0.0)


def around(place: Place, commits: Commits, rounds: Iterable[int], node_s: float, nodes: int) -> list[Around]:
    """Measure a chain of nodes that sleep, the same coroutines without an engine, and raw commits, several times each."""
    began: list[float] = []

    async def nap(state: Counter) -> dict[str, Any]:
        if state.step == 0:
            began.append(time.perf_counter())
        await asyncio.sleep(node_s)
        return {"step": state.step + 1}

    async def bare_s() -> float:
        state = Counter()
        for _ in range(nodes):
            state.step = (await nap(state))["step"]
        return (time.perf_counter() - began[-1]) / nodes

    async def idle_commit_s() -> float:
        times = []
        for _ in range(nodes):
            await asyncio.sleep(node_s)
            times.append(commits.one())
        return statistics.median(times)

    async def work(engine: Engine) -> list[Around]:
        await warm_up(engine, place)
        flow = chain_flow("nap", nodes, nap)
        found = []
        for _ in rounds:
            with steady():
                commit, bare = await idle_commit_s(), await bare_s()
                run = await engine.run(flow)
                found.append(Around((time.perf_counter() - began[-1]) / nodes, bare, commit))
            assert (run.status, run.state.step) == ("completed", nodes), run
        return found

    return with_engine(place, work)


class Saved(NamedTuple):
    """The times of durable appends, of the gaps between them, and of raw commits before and after; all sorted."""

    appends: list[float]
    between: list[float]
    commits: list[float]

    def p(self, share: float) -> tuple[float, float]:
        """Return a percentile of the appends and of the raw commits; 0 if there are no raw commits."""
        return percentile(self.appends, share), percentile(self.commits or [0.0], share)


def save(place: Place, commits: Commits | None = None, nodes: int = CHAIN_NODES) -> Saved:
    """Time every append of a run of many nodes, inside the store."""
    flow = chain_flow("save", nodes, count_async)
    store = place.open()
    append, times = store.append, []

    def timed(batch: Sequence[Append]) -> list[Verdict]:
        began = time.perf_counter()
        verdicts = append(batch)
        times.append((began, time.perf_counter()))
        return verdicts

    setattr(store, "append", timed)  # noqa: B010 - a method of one store, whichever it is

    def raw() -> list[float]:
        return [commits.one() for _ in range(nodes // 2)] if commits is not None else []

    async def work(engine: Engine) -> list[float]:
        await warm_up(engine, place)
        times.clear()
        with steady():
            found = raw()
            run = await engine.run(flow, run_id="measured")
            found += raw()
        assert (run.status, run.state.step) == ("completed", nodes), run
        return found

    beside = with_engine(place, work, store=store)
    return Saved(
        sorted(ended - began for began, ended in times),
        sorted(began - ended for (_, ended), (began, _) in pairwise(times)),
        sorted(beside),
    )
