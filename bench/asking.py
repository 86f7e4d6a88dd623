"""Measure how fast one command asks many failed runs to resume, compared with one request at a time.

The command is a process of its own, from its start to its end. The single requests are calls of `resume(execute=False)` in one
process that is running already; each is durable before the next begins.
"""

import asyncio
import os
import subprocess
import sys
import time

import holdfast as hf
from bench.parts import Bench
from bench.report import Figure, at_least
from bench.stores import Place, StoreKind

RUNS = {"quick": 200, "normal": 2_000, "full": 10_000}
_PIECE = 1000


def asking(bench: Bench) -> list[Figure]:
    """Measure requests to many runs, on SQLite and, if a server is there, on PostgreSQL."""
    kinds: list[StoreKind] = ["sqlite", "postgres"] if bench.server else ["sqlite"]
    return [_ask(bench, kind, RUNS[bench.effort.name]) for kind in kinds]


def _ask(bench: Bench, kind: StoreKind, runs: int) -> Figure:
    bench.progress.say(f"{runs:,} failed runs asked to resume, {kind}")
    with bench.fresh(kind) as place:
        url = place.url or str(place.folder / "store.db")
        asyncio.run(_fail(url, runs))
        took_s = _one_command(place, url)
        again_s = _one_command(place, url)
        singly_s = asyncio.run(_singly(url, runs))
    return Figure(
        f"{runs:,} failed runs asked to resume by one command, {kind}",
        "requests/s",
        [runs / took_s],
        at_least(1000) if runs >= RUNS["normal"] else None,
        beside={"single requests/s": [runs / singly_s], "repeated, requests/s": [runs / again_s]},
    )


def _failing() -> hf.Flow[dict[str, object]]:
    graph = hf.Graph("failing", dict)

    @graph.node
    async def fail(state: dict[str, object]) -> None:
        raise ValueError("not yet")

    return graph.chain(hf.START, fail, hf.END).compile()


async def _fail(url: str, runs: int) -> None:
    flow = _failing()
    async with hf.Engine(url, flows=[flow]) as engine:
        for first in range(0, runs, _PIECE):
            ids = [f"r{number}" for number in range(first, min(first + _PIECE, runs))]
            await asyncio.gather(*(engine.start(flow, {}, run_id=run_id) for run_id in ids))
        await engine.work(until="idle", concurrency=200, on_end=lambda run: None)


def _one_command(place: Place, url: str) -> float:
    words = [
        sys.executable,
        "-m",
        "holdfast.cli",
        "resume",
        "--where",
        "status=failed",
        "--store",
        url,
        "--json",
    ]
    path = os.pathsep.join(path for path in sys.path if path)
    began = time.perf_counter()
    subprocess.run(
        words, cwd=place.folder, env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True
    )
    return time.perf_counter() - began


async def _singly(url: str, runs: int) -> float:
    async with hf.Engine(url) as engine:
        began = time.perf_counter()
        for number in range(runs):
            await engine.resume(f"r{number}", execute=False, id="single")
        return time.perf_counter() - began
