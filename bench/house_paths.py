"""The measurements of `bench.house` on a running engine. `python -P bench/house_paths.py PART FOLDER [STORE]` prints one as JSON.

The script measures whichever version of Holdfast it imports. So it uses only public names, and finds files by their file name.
"""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import CodeType
from typing import Any

import holdfast as hf
from holdfast import END, START, Engine, Graph

SOURCE = str(Path(hf.__file__).parent) + os.sep
FLOWS = """
import os, signal
from holdfast import END, START, Graph

graph = Graph("cut")

@graph.node
async def first(state):
    return {"first": True}

@graph.node
async def second(state, ctx):
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"second": True}

cut = graph.chain(START, first, second, END).compile()
graph = Graph("gated")

@graph.node(approve="Publish it?")
async def post(state):
    return {"published": True}

gated = graph.chain(START, post, END).compile()
"""
STEPS = 60
WARM = 20
"""The number of steps that are left out at the beginning, while statements are prepared and the first commits are timed."""
TICK_S = 0.002
LOOKS = 20


class Trace:
    """Records the calls of Holdfast's functions, in their order, between `on()` and `off()`."""

    def __init__(self) -> None:
        self.codes: list[CodeType] = []

    def look(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            self.codes.append(frame.f_code)

    def on(self) -> None:
        threading.setprofile(self.look)
        sys.setprofile(self.look)

    def off(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def path(self, codes: list[CodeType] | None = None) -> dict[str, Any]:
        codes = self.codes if codes is None else codes
        files = [code.co_filename.removeprefix(SOURCE) for code in codes]
        changes = sum(before != after for before, after in pairwise(files))
        named = sorted({name.removesuffix(".py").removesuffix("/__init__") for name in files})
        return {"calls": len(codes), "modules": len(named), "changes": changes, "named": named}

    def count(self, file: str, function: str) -> int:
        return sum(
            code.co_filename.endswith(os.sep + file) and code.co_qualname == function for code in self.codes
        )


def step(folder: Path) -> dict[str, Any]:
    """Measure the calls from the return of one node's body to the call of the next: the median over a chain on SQLite."""
    trace = Trace()
    marks: list[int] = []
    returned: list[int] = []

    async def body(state: dict[str, Any]) -> dict[str, Any]:
        marks.append(len(trace.codes))
        await asyncio.sleep(0)
        returned.append(len(trace.codes))
        return {"n": state["n"] + 1}

    graph = Graph("chain")
    names = [f"n{number}" for number in range(STEPS)]
    for name in names:
        graph.node(name=name)(body)
    flow = graph.chain(START, *names, END).compile()

    async def main() -> None:
        async with Engine(folder / "step.db") as engine:
            await engine.run(flow, {"n": 0})
            for kept in (marks, returned, trace.codes):
                kept.clear()
            await engine.run(flow, {"n": 0})

    trace.on()
    try:
        asyncio.run(main())
    finally:
        trace.off()
    paths = [
        trace.path(trace.codes[begin:end])
        for begin, end in zip(returned[WARM:-1], marks[WARM + 1 :], strict=True)
    ]
    median = {
        key: statistics.median_low(path[key] for path in paths) for key in ("calls", "modules", "changes")
    }
    return median | {"named": next(path["named"] for path in paths if path["modules"] == median["modules"])}


def resume(folder: Path) -> dict[str, Any]:
    """Measure the calls from `engine.resume` to the body of the node in which the process was killed."""
    program = "import sys; import house_flows, holdfast as hf; hf.run(house_flows.cut, {}, run_id='r', store=sys.argv[1])"
    store = str(folder / "resume.db")
    done = subprocess.run([sys.executable, "-c", program, store], cwd=folder, check=False)
    assert done.returncode == -signal.SIGKILL, done
    trace, graph = Trace(), Graph("cut")

    @graph.node
    async def first(state: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("this node has completed")

    @graph.node
    async def second(state: dict[str, Any]) -> dict[str, Any]:
        trace.off()
        return {"second": True}

    flow = graph.chain(START, first, second, END).compile()

    async def main() -> None:
        async with Engine(store, flows=[flow]) as engine:
            trace.codes.clear()
            run = await engine.resume("r")
            assert (run.status, run.nodes["second"].attempt) == ("completed", 2), run

    trace.on()
    try:
        asyncio.run(main())
    finally:
        trace.off()
    return trace.path()


def answer(folder: Path) -> dict[str, Any]:
    """Measure `holdfast answer` for an approval, if no engine holds the run. The command is called twice and the second call is
    measured, because the first one also imports modules.
    """
    import apsw

    sys.path.insert(0, str(folder))
    import house_flows  # type: ignore[import-not-found]

    from holdfast.cli import main

    store = str(folder / "answer.db")
    for run_id in ("warm", "r"):
        assert hf.run(house_flows.gated, {}, run_id=run_id, store=store).status == "waiting"
    trace, commits = Trace(), [0]

    def committed() -> bool:
        commits[0] += 1
        return False

    apsw.connection_hooks.append(lambda connection: connection.set_commit_hook(committed))
    os.environ["HOLDFAST_STORE"] = store
    sys.stdout, said = open(os.devnull, "w", encoding="utf-8"), sys.stdout  # noqa: SIM115
    for run_id in ("warm", "r"):
        sys.argv = ["holdfast", "answer", run_id, "post", "approve"]
        commits[0] = 0
        trace.codes.clear()
        trace.on()
        try:
            with suppress(SystemExit):
                main()
        finally:
            trace.off()
    sys.stdout = said
    assert not hf.get("r", store=store).questions, "the question was not answered"
    found = trace.path()
    found["engines"] = trace.count("engine.py", "Engine.__aenter__")
    found["folds"] = trace.count("history.py", "load")
    found["commits"] = commits[0]
    return found


def held_up(folder: Path, store: str, runs: int) -> dict[str, Any]:
    """Measure how long `questions()`, with `runs` open questions, delays a node that ticks every 2 ms."""
    late: list[float] = []
    stop = [False]

    async def tick(state: dict[str, Any]) -> dict[str, Any]:
        before = time.perf_counter()
        while not stop[0]:
            await asyncio.sleep(TICK_S)
            after = time.perf_counter()
            late.append(after - before - TICK_S)
            before = after
        return {"ticked": True}

    graph = Graph("ticking")
    ticking = graph.chain(START, graph.node(tick), END).compile()
    asking = _gate()

    async def main() -> dict[str, Any]:
        async with Engine(store) as engine:
            for first in range(0, runs, 100):
                some = range(first, min(first + 100, runs))
                await asyncio.gather(*(engine.run(asking, {}, run_id=f"ask-{number}") for number in some))
            assert len(await engine.questions()) == runs
            going = asyncio.create_task(engine.run(ticking, {}))
            await asyncio.sleep(0.3)
            quiet, worst, took = max(late[5:]), [], []
            for _ in range(LOOKS):
                await asyncio.sleep(0.05)
                late.clear()
                began = time.perf_counter()
                await engine.questions()
                took.append(time.perf_counter() - began)
                await asyncio.sleep(2 * TICK_S)
                worst.append(max(late))
            stop[0] = True
            await going
        return {
            "median_ms": statistics.median(worst) * 1000,
            "worst_ms": max(worst) * 1000,
            "took_ms": statistics.median(took) * 1000,
            "without_ms": quiet * 1000,
        }

    return asyncio.run(main())


def _gate() -> Any:
    graph = Graph("gated")

    async def post(state: dict[str, Any]) -> dict[str, Any]:
        return {"published": True}

    return graph.chain(START, graph.node(approve="Publish it?")(post), END).compile()


def calls(folder: Path) -> dict[str, float]:
    """Count the calls of Holdfast's functions per step, in a chain and in a fleet of 100 runs. Everything runs on one thread."""

    async def body(state: dict[str, Any]) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    def flow(nodes: int) -> Any:
        graph = Graph("chain")
        names = [f"n{number}" for number in range(nodes)]
        for name in names:
            graph.node(name=name)(body)
        return graph.chain(START, *names, END).compile()

    def counted(runs: int, nodes: int) -> int:
        trace, chain = Trace(), flow(nodes)

        async def main() -> None:
            async with Engine("memory://", inline=True) as engine:
                await asyncio.gather(*(engine.run(chain, {"n": 0}, run_id=f"r{n}") for n in range(runs)))

        trace.on()
        try:
            asyncio.run(main())
        finally:
            trace.off()
        return len(trace.codes)

    return {
        "chain": (counted(1, 120) - counted(1, 20)) / 100,
        "fleet": (counted(100, 20) - counted(100, 10)) / 1000,
    }


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "step": step,
    "resume": resume,
    "answer": answer,
    "calls": calls,
    "held_up": held_up,
}


def main(part: str, folder: str, *more: str) -> None:
    place = Path(folder)
    (place / "house_flows.py").write_text(FLOWS, "utf-8")
    arguments: list[Any] = [int(word) if word.isdecimal() else word for word in more]
    print(json.dumps(PARTS[part](place, *arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])
