"""Measure how long it takes to hand in a request, with this tree and with another one in turn.

    python -m bench.handing_in OTHER_TREE [ROUNDS]     an older clone, to compare with; this clone, to see the noise

What is measured: an answer to a run that no engine executes; a signal to a run that this engine holds, and to one that another
engine or another process holds; many signals to one run; and over HTTP an answer and a resume, from the first byte sent to the
last one received. Each round makes a new store for each tree, in a process of its own. On a machine that is not idle, the
processor time says more than the time. The ratio is the median of those of the rounds, and the lowest and the highest of these
say how noisy it is.
"""

import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import holdfast as hf
from bench import server_process
from bench.stores import NoServer, server

ROOT = Path(__file__).parent.parent
ROUNDS = 5
RUNS = 150
SIGNALS = 10_000
_WARM_UP = 10

Times = dict[str, list[float]]


def flow() -> hf.Flow[Any]:
    """Return a flow that asks, waits for a signal or fails, as its input says."""
    graph = hf.Graph("handed", dict)

    @graph.node
    async def work(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        if state["how"] == "fail":
            raise ValueError("not yet")
        if state["how"] == "ask":
            await ctx.ask("Go on?", options=["yes", "no"])
        else:
            await ctx.wait_for("go")
        return {"how": "done"}

    return graph.chain(hf.START, work, hf.END).compile()


async def _timed(times: Times, name: str, calls: list[Callable[[], Awaitable[Any]]]) -> None:
    cpu_s = 0.0
    for number, call in enumerate(calls):
        if number == _WARM_UP:
            cpu_s = time.process_time()
        began = time.perf_counter()
        await call()
        if number >= _WARM_UP:
            times.setdefault(name, []).append(time.perf_counter() - began)
    times[f"{name}, processor"] = [(time.process_time() - cpu_s) / (len(calls) - _WARM_UP)]


async def _in_process(url: str, times: Times) -> None:
    known = flow()
    async with hf.Engine(url, flows=[known], park_after=0.01) as engine:
        for number in range(2 * RUNS):
            await engine.run(known, {"how": "ask"}, run_id=f"ask-{number}")
        for number in range(RUNS):
            await engine.start(known, {"how": "fail"}, run_id=f"fail-{number}")
        await engine.work(until="idle", on_end=lambda run: None)
    async with hf.Engine(url) as engine:
        asked = [f"ask-{number}" for number in range(RUNS)]
        answers = [lambda run=run: engine.answer(run, "work", "yes") for run in asked]
        await _timed(times, "answer, idle run", answers)
    async with hf.Engine(url, flows=[known], park_after=3600) as holder, hf.Engine(url) as other:
        going = asyncio.create_task(holder.run(known, {"how": "wait"}, run_id="held"))
        await _until(holder, lambda run: bool(run.waits))
        for name, engine in (("same", holder), ("another", other)):
            signals = [lambda engine=engine: engine.signal("held", "news", 1) for _ in range(RUNS)]
            await _timed(times, f"signal, run held by {name} engine", signals)
        await holder.signal("held", "go")
        await going
    async with hf.Engine(url, flows=[known], park_after=3600) as holder:
        going = asyncio.create_task(holder.run(known, {"how": "wait"}, run_id="many"))
        await _until(holder, lambda run: bool(run.waits), "many")
        name, began, cpu_s = f"{SIGNALS:,} signals to one run, each", time.perf_counter(), time.process_time()
        for _ in range(SIGNALS):
            await holder.signal("many", "news", 1)
        await _until(holder, lambda run: run.signals.get("news", 0) == SIGNALS, "many")
        times[name] = [(time.perf_counter() - began) / SIGNALS]
        times[f"{name}, processor"] = [(time.process_time() - cpu_s) / SIGNALS]
        await holder.signal("many", "go")
        await going


def _to_another_process(url: str, times: Times) -> None:
    """Measure signals to a run that another process holds, until each is durable. The processor time is that of the sender."""
    with subprocess.Popen([sys.executable, "-m", "bench.handing_in", "--hold", url], cwd=ROOT) as process:
        try:
            asyncio.run(_send(url, times))
            process.wait(timeout=60)
        finally:
            process.kill()


async def _send(url: str, times: Times) -> None:
    async with hf.Engine(url) as engine:
        await _until(engine, lambda run: bool(run.waits), "elsewhere")

        async def signal() -> None:
            await engine.signal("elsewhere", "news", 1)

        await _timed(times, "signal, run held by another process", [signal] * RUNS)
        await engine.signal("elsewhere", "go")


async def _hold(url: str) -> None:
    async with hf.Engine(url, park_after=3600) as holder:
        await holder.run(flow(), {"how": "wait"}, run_id="elsewhere")


async def _until(engine: hf.Engine, met: Callable[[hf.Run[Any]], bool], run_id: str = "held") -> None:
    for _ in range(10_000):
        with suppress(hf.RunNotFound):
            if met(await engine.get(run_id)):
                return
        await asyncio.sleep(0.01)
    raise RuntimeError("the run does not come so far")


def _over_http(url: str, times: Times) -> None:
    with server_process.holdfast_server(url) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port)
        for name, path, body in (
            ("POST resume", "fail-{}/resume", {}),
            ("POST answer", "ask-{}/answer", {"question": "work", "answer": "yes"}),
        ):
            cpu_s = 0.0
            for number in range(RUNS):
                if number == _WARM_UP:
                    cpu_s = served.cpu_s()
                run = path.format(number + (RUNS if "ask" in path else 0))
                began = time.perf_counter()
                headers = {
                    "Authorization": f"Bearer {server_process.TOKEN}",
                    "Content-Type": "application/json",
                }
                client.request("POST", f"/api/v1/runs/{run}", json.dumps(body), headers)
                reply = client.getresponse()
                said = reply.read()
                if reply.status != 202:
                    raise RuntimeError(f"{name}: {reply.status} {said!r}")
                if number >= _WARM_UP:
                    times.setdefault(name, []).append(time.perf_counter() - began)
            times[f"{name}, processor"] = [(served.cpu_s() - cpu_s) / (RUNS - _WARM_UP)]
        client.close()


def _measure(url: str) -> None:
    times: Times = {}
    asyncio.run(_in_process(url, times))
    _to_another_process(url, times)
    _over_http(url, times)
    print(json.dumps({name: statistics.median(found) * 1000 for name, found in times.items()}))


def _child(tree: Path, url: str) -> dict[str, float]:
    path = os.pathsep.join([str(tree / "src"), str(ROOT)])
    words = [sys.executable, "-m", "bench.handing_in", "--measure", url]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(other: Path, folder: Path, rounds: int = ROUNDS) -> None:
    """Print the medians of both trees, and their ratio, for each store."""
    trees = {"this": ROOT, "other": other}
    try:
        with server(folder) as postgres:
            _compare(
                trees,
                {
                    "sqlite": lambda name: str(folder / f"{name}.db"),
                    "postgres": lambda _: postgres.new_database(),
                },
                rounds,
            )
    except NoServer as missing:
        print(f"without PostgreSQL: {missing}")
        _compare(trees, {"sqlite": lambda name: str(folder / f"{name}.db")}, rounds)


def _compare(trees: dict[str, Path], stores: dict[str, Callable[[str], str]], rounds: int) -> None:
    for kind, new_store in stores.items():
        found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for number in range(rounds):
            for name in list(trees)[:: 1 if number % 2 else -1]:
                found[name].append(_child(trees[name], new_store(f"{kind}-{name}-{number}")))
        for figure in found["this"][0]:
            this, other = ([one[figure] for one in found[name]] for name in ("this", "other"))
            ratios = sorted(mine / theirs for mine, theirs in zip(this, other, strict=True))
            print(
                f"{kind:9} {figure:47} {statistics.median(this):7.3f} ms, other {statistics.median(other):7.3f} ms, "
                f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f}; best {min(this) / min(other):.3f})",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        _measure(sys.argv[2])
    elif sys.argv[1:2] == ["--hold"]:
        asyncio.run(_hold(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(
                Path(sys.argv[1]).resolve(), Path(folder), int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
            )
