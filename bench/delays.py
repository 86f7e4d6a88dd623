"""What one step waits for: the engine's own time around nodes that take a while, and how long a durable append takes.

A disk that was idle is slower than one that is kept busy, so the time around a slow node is compared with a raw commit made
after the same idle time.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.raw import Commits, percentile
from bench.stores import Place
from bench.workloads import CHAIN_NODES, Counter, chain_flow, count_async, steady, warm_up, with_engine
from holdfast import Engine
from holdfast.storage.contract import Append, Verdict
from holdfast.storage.sqlite import SqliteStore


class Around(NamedTuple):
    """Nodes that take a while, with an engine and without."""

    engine_s: float
    """From the first line of the first node until the run is returned, per node."""
    bare_s: float
    """The same coroutines in a bare loop, per node; before and after."""
    commit_s: float
    """A raw commit after as long an idle time; the median of as many, before and after."""

    @property
    def extra_s(self) -> float:
        return max(self.engine_s - self.bare_s, 0.0)


def around(place: Place, commits: Commits, node_s: float, nodes: int) -> Around:
    """A chain of nodes that sleep, beside the same coroutines without an engine and beside raw commits."""
    began: list[float] = []

    async def nap(state: Counter) -> dict[str, Any]:
        if state.step == 0:
            began.append(time.perf_counter())
        await asyncio.sleep(node_s)
        return {"step": state.step + 1}

    async def bare() -> float:
        state = Counter()
        for _ in range(nodes):
            state.step = (await nap(state))["step"]
        return (time.perf_counter() - began[-1]) / nodes

    async def idle_commits() -> list[float]:
        times = []
        for _ in range(nodes):
            await asyncio.sleep(node_s)
            times.append(commits.one())
        return times

    async def work(engine: Engine) -> Around:
        await warm_up(engine, place)
        flow = chain_flow("nap", nodes, nap)
        with steady():
            raw, before = await idle_commits(), await bare()
            run = await engine.run(flow)
            engine_s = (time.perf_counter() - began[-1]) / nodes
            raw += await idle_commits()
            after = await bare()
        assert (run.status, run.state.step) == ("completed", nodes), run
        return Around(engine_s, statistics.mean((before, after)), statistics.median(raw))

    return with_engine(place, work)


class _Timed(SqliteStore):
    """A store that notes how long each append took."""

    times: list[float]

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        began = time.perf_counter()
        verdicts = super().append(batch)
        self.times.append(time.perf_counter() - began)
        return verdicts


class Saved(NamedTuple):
    """How long durable appends took, beside raw commits before and after; both sorted."""

    appends: list[float]
    commits: list[float]

    def p(self, share: float) -> tuple[float, float]:
        return percentile(self.appends, share), percentile(self.commits, share)


def save(place: Place, commits: Commits, nodes: int = CHAIN_NODES) -> Saved:
    """Every append of a run of many nodes, timed inside the store."""
    flow = chain_flow("save", nodes, count_async)
    store = _Timed(place.folder / "store.db")
    store.times = []

    async def work(engine: Engine) -> list[float]:
        await engine.run(flow, run_id="warm-up")
        store.times.clear()
        with steady():
            raw = [commits.one() for _ in range(nodes // 2)]
            run = await engine.run(flow, run_id="measured")
            raw += [commits.one() for _ in range(nodes // 2)]
        assert (run.status, run.state.step) == ("completed", nodes), run
        return raw

    raw = with_engine(place, work, store=store)
    return Saved(sorted(store.times), sorted(raw))
