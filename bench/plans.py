"""Measure plans: what a task costs beside a node in code, what guards and policies add, and how plans are kept.

`python -m bench.plans TASKS FOLDER` is a process that executes a plan of this many tasks and prints its memory as JSON.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import holdfast as hf
from bench.contest import ROOT
from bench.delays import Saved
from bench.parts import Bench
from bench.raw import percentile
from bench.report import Figure, at_most
from bench.stores import Place
from bench.workloads import chain_flow, steady, warm_up, with_engine
from holdfast import Engine, Flow, plan
from holdfast.core import run_state
from holdfast.reading import history
from holdfast.storage.rows import pack

TASKS, GUARDS = 1_000, 300
SMALL, LARGE = 100, 10_000
OUTPUT = {"done": True, "number": 4711}


@dataclass
class Last:
    """The state of the chain in code: the output of the node before, as a task gets it."""

    last: dict[str, Any] = field(default_factory=lambda: dict(OUTPUT))


async def _pass_on(state: Last) -> dict[str, Any]:
    """What a task of the chain does, as a node in code: read a number of the output before, and return an output."""
    return {"last": {"done": True, "number": state.last["number"]}}


def capabilities(fails_at: list[str] | None = None) -> plan.Capabilities:
    """Return capabilities with one that does nothing. `fails_at` has the tasks that fail."""
    found = plan.Capabilities("bench")

    @found.capability("work@1")
    async def work(given: dict[str, Any]) -> dict[str, Any]:
        return {"done": True, "number": given.get("number", OUTPUT["number"])}

    @found.capability("stop@1")
    async def stop(given: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        if fails_at and ctx.node in fails_at:
            raise RuntimeError("stops here")
        return OUTPUT

    return found


def document(tasks: int, guards: int = 0, *, policy: bool = False, stop: int | None = None) -> dict[str, Any]:
    """Return a plan: a chain, to which `guards` tasks are attached by edges with guards, half of which are true."""
    length = tasks - guards
    listed = [
        {"id": f"t{n}", "capability": "stop@1" if n == stop else "work@1", "input": {}} for n in range(length)
    ]
    for number in range(1, length):
        listed[number]["input"] = {"number": {"$ref": f"outputs.t{number - 1}.number"}}
    edges: list[dict[str, Any]] = [{"from": f"t{n}", "to": f"t{n + 1}"} for n in range(length - 1)]
    for number in range(guards):
        source, sign = f"t{number * length // max(guards, 1)}", "==" if number % 2 else "!="
        listed.append({"id": f"g{number}", "capability": "work@1", "input": {}})
        edges.append(
            {"from": source, "to": f"g{number}", "guard": f"outputs.{source}.number {sign} context.facts.n"}
        )
    rules = [
        {
            "id": "small",
            "stage": "pre",
            "capability": "work@1",
            "rule": "context.facts.n > 0",
            "otherwise": "deny",
        }
    ]
    return {
        "holdfast": "plan/1",
        "context": {"facts": {"n": 4711}},
        "tasks": listed,
        "edges": edges,
        "policies": rules if policy else [],
    }


def plans(bench: Bench) -> list[Figure]:
    """Measure everything about plans, on SQLite."""
    return [
        *_checked(bench),
        *_stored(bench),
        _saved(bench),
        _resumed(bench),
        *_beside_code(bench),
        _rows_of_a_policy(bench),
        _grown(bench),
        _memory(bench),
    ]


def _checked(bench: Bench) -> list[Figure]:
    """The time to read, check and compile a plan, and to make the flow of a stored one."""
    text = msgspec.json.encode(document(TASKS, GUARDS))
    check_ms, compile_ms = [], []
    for _ in bench.each_round("check a plan"):
        shop = capabilities()
        with steady():
            began = time.perf_counter()
            flow = shop.plan(plan.read(text))
            check_ms.append((time.perf_counter() - began) * 1e3)
        fresh = capabilities()
        with steady():
            began = time.perf_counter()
            fresh.flow(flow.definition, flow.fingerprint)
            compile_ms.append((time.perf_counter() - began) * 1e3)
    what = f"{TASKS:,} tasks with {GUARDS} guards"
    return [
        Figure(f"check and compile a plan of {what}", "ms", check_ms, at_most(300)),
        Figure(f"make the flow of a stored plan of {what}", "ms", compile_ms),
    ]


def _run(place: Place, flow: Flow[Any], source: plan.Capabilities, **options: Any) -> float:
    """Execute a plan, and return the seconds that it takes."""

    async def work(engine: Engine) -> float:
        await warm_up(engine, place)
        with steady():
            began = time.perf_counter()
            run = await engine.run(flow, run_id="measured", **options)
            took = time.perf_counter() - began
        assert run.status == "completed", run
        return took

    return with_engine(place, work, flows=[source])


def _stored(bench: Bench) -> list[Figure]:
    """The bytes of a plan's run: its definition, its log and a snapshot of its end, without the outputs."""
    shop = capabilities()
    flow = shop.plan(plan.read(document(TASKS, GUARDS)))
    with bench.fresh() as place:
        bench.progress.say("bytes of a plan")
        _run(place, flow, shop)
        store = place.open()
        try:
            state = history.load(store, "measured")
            rows = store.events("measured")
            definition = store.definition(state.fingerprint) or b""
            outputs = len(msgspec.json.encode(state.values["outputs"]))
            snapshot = len(pack(run_state.dump(state)))
            log = sum(len(row.body) + len(row.salt) + len(row.digest) + 64 for row in rows)
        finally:
            store.close()
    executed = sum(node.status == "completed" for node in state.nodes.values())
    return [
        Figure("definition of a plan, as stored", "KB", [len(definition) / 1e3], at_most(40)),
        Figure("snapshot of a plan's run, as stored, with its outputs", "KB", [snapshot / 1e3], at_most(40)),
        Figure(
            "log of a plan's run, without the outputs",
            "bytes per task",
            [(log - outputs) / TASKS],
            at_most(600),
            beside={"bytes per executed task": [(log - outputs) / executed]},
        ),
    ]


def _saved(bench: Bench) -> Figure:
    """The time of one durable append of a plan's run, beside raw commits."""
    shop = capabilities()
    flow = shop.plan(plan.read(document(TASKS, GUARDS)))
    found: list[Saved] = []
    for _ in bench.each_round("appends of a plan"):
        with bench.fresh() as place:
            store = place.open()
            append, times = store.append, []

            def timed(batch: Any, append: Any = append, times: list[float] = times) -> Any:
                began = time.perf_counter()
                verdicts = append(batch)
                times.append(time.perf_counter() - began)
                return verdicts

            setattr(store, "append", timed)  # noqa: B010 - a method of one store, whichever it is

            async def work(engine: Engine, place: Place = place, times: list[float] = times) -> list[float]:
                await warm_up(engine, place)
                times.clear()
                with steady():
                    raw = [bench.commits.one() for _ in range(500)]
                    await engine.run(flow, run_id="measured")
                    return raw + [bench.commits.one() for _ in range(500)]

            raw = with_engine(place, work, store=store, flows=[shop])
            found.append(Saved(sorted(times), [], sorted(raw)))
    p95 = [percentile(seen.appends, 0.95) * 1e3 for seen in found]
    return Figure(
        f"one append, p95, a plan of {TASKS:,} tasks",
        "times the p95 of raw commits",
        [seen.p(0.95)[0] / seen.p(0.95)[1] for seen in found],
        at_most(2.0),
        beside={"ms at p95": p95, "ms at p95 of raw commits": [seen.p(0.95)[1] * 1e3 for seen in found]},
    )


def _resumed(bench: Bench) -> Figure:
    """The time from `resume` to the first line of a task, in an open engine that has never seen the plan."""
    found = []
    for _ in bench.each_round("resume a plan"):
        stop = (TASKS - GUARDS) // 2
        shop = capabilities([f"t{stop}"])
        flow = shop.plan(plan.read(document(TASKS, GUARDS, stop=stop)))
        with bench.fresh() as place:

            async def fail(engine: Engine, flow: Flow[Any] = flow) -> None:
                try:
                    await engine.run(flow, run_id="measured")
                except hf.RunFailed:
                    return
                raise AssertionError("the run should have failed")

            with_engine(place, fail, flows=[shop])
            reached: list[float] = []
            fresh = _arriving(reached)

            async def resume(engine: Engine, place: Place = place) -> float:
                await warm_up(engine, place)
                with steady():
                    began = time.perf_counter()
                    await engine.resume("measured")
                    return began

            began = with_engine(place, resume, flows=[fresh])
            found.append((reached[0] - began) * 1e3)
    return Figure(f"resume a plan of {TASKS:,} tasks that the engine has not seen", "ms", found, at_most(50))


def _arriving(reached: list[float]) -> plan.Capabilities:
    """Return capabilities that note when the task at which a run stopped is called."""
    found = plan.Capabilities("bench")

    @found.capability("work@1")
    async def work(given: dict[str, Any]) -> dict[str, Any]:
        return OUTPUT

    @found.capability("stop@1")
    async def stop(given: dict[str, Any]) -> dict[str, Any]:
        reached.append(time.perf_counter())
        return OUTPUT

    return found


def _beside_code(bench: Bench) -> list[Figure]:
    """The time of a task beside a node in code, both in a chain with the same values, and what a guard adds."""
    code = chain_flow("code", TASKS - GUARDS, _pass_on, Last)
    shop = capabilities()
    bare = shop.plan(plan.read(document(TASKS - GUARDS)))
    guarded = shop.plan(plan.read(_guarded_chain(TASKS - GUARDS)))
    ratios, guard_us, task_us = [], [], []
    for _ in bench.each_round("a task beside a node"):
        times = []
        for flow in (code, bare, guarded):
            with bench.fresh("memory") as place:
                times.append(_cpu(place, flow, shop) / (TASKS - GUARDS) * 1e6)
        ratios.append(times[1] / times[0])
        task_us.append(times[1])
        guard_us.append(times[2] - times[1])
    return [
        Figure(
            "a task beside a node in code", "times its CPU time", ratios, at_most(1.2), beside={"µs": task_us}
        ),
        Figure("a guard", "µs of CPU time", guard_us, at_most(80)),
    ]


def _guarded_chain(tasks: int) -> dict[str, Any]:
    """Return a chain in which every edge has a guard, which is true."""
    made = document(tasks)
    for edge in made["edges"]:
        edge["guard"] = f"outputs.{edge['from']}.number == context.facts.n"
    return made


def _cpu(place: Place, flow: Flow[Any], source: plan.Capabilities) -> float:
    """Return the seconds of CPU time that a run needs."""

    async def work(engine: Engine) -> float:
        await warm_up(engine, place)
        with steady():
            began = time.process_time()
            run = await engine.run(flow, run_id="measured")
            took = time.process_time() - began
        assert run.status == "completed", run
        return took

    return with_engine(place, work, flows=[source])


def _rows_of_a_policy(bench: Bench) -> Figure:
    """How many rows more a task has in the log if a policy decides about it."""
    shop, counts = capabilities(), []
    for policy in (False, True):
        flow = shop.plan(plan.read(document(SMALL, policy=policy)))
        with bench.fresh() as place:
            _run(place, flow, shop)
            store = place.open()
            counts.append(len(store.events("measured")))
            store.close()
    return Figure("a policy", "rows more per task", [(counts[1] - counts[0]) / SMALL], at_most(1))


def _grown(bench: Bench) -> Figure:
    """The CPU time of a task in a large plan, beside one in a small plan."""
    shop = capabilities()
    large_count = LARGE if bench.effort.name != "quick" else LARGE // 10
    large = shop.plan(plan.read(document(large_count)))
    small = shop.plan(plan.read(document(SMALL)))
    ratios = []
    for _ in bench.each_round(f"a plan of {large_count:,} tasks", min(bench.effort.few, 3)):
        with bench.fresh("memory") as place:
            late = _cpu(place, large, shop) / large_count
        early = []
        for _ in range(10):
            with bench.fresh("memory") as place:
                early.append(_cpu(place, small, shop) / SMALL)
        ratios.append(late / (sum(early) / len(early)))
    return Figure(f"a task of {large_count:,}", f"times the CPU time of one of {SMALL}", ratios, at_most(1.3))


def _memory(bench: Bench) -> Figure:
    """The memory of a process that executes a large plan."""
    count = LARGE if bench.effort.name != "quick" else LARGE // 10
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.plans", str(count), folder]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    return Figure(
        f"memory of a process that executes {count:,} tasks",
        "MB",
        [found["peak"]],
        at_most(200),
        beside={"MB before": [found["before"]]},
    )


def _peak_mb() -> float:
    """Return the peak of this process's own memory. (`ru_maxrss` begins with that of the process which started this one.)"""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM in /proc/self/status")


def main(tasks: int, folder: str) -> None:
    """Execute a plan of this many tasks, and print the memory of this process."""
    shop = capabilities()
    before = _peak_mb()
    flow = shop.plan(plan.read(msgspec.json.encode(document(tasks))))
    run = hf.run(flow, run_id="measured", store=str(Path(folder) / "store.db"), durability="exit")
    assert run.status == "completed", run
    print(json.dumps({"before": before, "peak": _peak_mb()}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
