"""The cost of a process: the time to start Python and import Holdfast, and the memory of very many waiting runs.

`python -m bench.processes FOLDER RUNS HOW` is the process with the waiting runs: it starts them and prints their memory as JSON.
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_AT_ONCE = 500


def start_s(*arguments: str) -> float:
    """Return the seconds from the start to the end of a Python process with these arguments."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def waiting(folder: Path, runs: int, how: str) -> dict[str, float]:
    """Return the memory of waiting runs in a new process, and of its engine before it had any, in megabytes."""
    command = [sys.executable, "-m", "bench.processes", str(folder), str(runs), how]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _resident_mb() -> float:
    gc.collect()
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS in /proc/self/status")


async def _wait(folder: Path, runs: int, how: str) -> None:
    import holdfast as hf
    from bench.workloads import Counter, chain_flow, count_async

    async def nap(state: Counter, ctx: hf.Context) -> dict[str, Any]:
        await ctx.sleep(24 * 3600)
        return {"step": state.step + 1}

    async def paid(state: Counter, ctx: hf.Context) -> dict[str, Any]:
        await ctx.wait_for("paid")
        return {"step": state.step + 1}

    flow = chain_flow("waiting", 1, nap if how == "timer" else paid)
    async with hf.Engine(folder / "store.db", park_after=0, grace=0) as engine:
        await engine.run(chain_flow("warm-up", 100, count_async))
        empty = _resident_mb()
        held: list[asyncio.Task[Any]] = []
        for first in range(0, runs, _AT_ONCE):
            begun = [
                asyncio.create_task(engine.run(flow, run_id=f"w{number}"))
                for number in range(first, min(first + _AT_ONCE, runs))
            ]
            held += begun
            await _until_waiting(engine, begun, len(held))
        print(json.dumps({"empty_mb": empty, "extra_mb": _resident_mb() - empty, "runs": runs}), flush=True)
        os._exit(0)  # exit at once: stopping each run would take as long as starting it


async def _until_waiting(engine: Any, begun: list[asyncio.Task[Any]], count: int) -> None:
    """Wait until the runs that started last are waiting."""
    from holdfast.storage.contract import Query

    newest = Query(status=("waiting",), limit=len(begun))
    wanted = {f"w{number}" for number in range(count - len(begun), count)}
    while {row.run_id for row in engine.store.runs(newest)} != wanted:
        for task in begun:
            if task.done():
                task.result()
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(_wait(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
