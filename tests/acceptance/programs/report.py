"""A flow with a fan-out, a join, a branch and a loop, in a process that dies at the n-th failpoint.

    report.py run|resume|refuse|post  STORE WITNESS SCHEDULE [--die N] [--count FILE]
    report.py serve          the same, many times: reads a JSON list of arguments per line, prints exit codes

Every node first writes a line to the witness file (node, iteration, item, attempt, pid): a record of what ran that does
not come from Holdfast. `serve` forks a process for each line: a whole process dies, but no new interpreter must start.

SCHEDULE is `threads` (plain functions in threads, one node at a time) or `inline` (everything on the event loop, nodes in
parallel). Both reach the same failpoints in the same order every time, so that failpoints can be counted.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import random
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import holdfast as hf
from holdfast import END, START, Graph, add, append
from holdfast.storage import failpoints
from holdfast.storage.contract import Request
from holdfast.storage.sqlite.store import SqliteStore

RUN_ID = "report"
REFUSED = 3
witness_file = ""


@dataclass
class Report:
    topic: str
    pages: list[str] = field(default_factory=list)
    facts: Annotated[list[str], append] = field(default_factory=list)
    drafts: Annotated[int, add] = 0
    draft: str = ""
    style: str = ""
    spelling: str = ""
    verdicts: Annotated[list[str], append] = field(default_factory=list)


def leave_witness(ctx: hf.Context) -> None:
    line = json.dumps([ctx.node, ctx.iteration, ctx.item, ctx.attempt, os.getpid()]) + "\n"
    handle = os.open(witness_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, line.encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def report_graph() -> Graph[Report]:
    graph = Graph("report", Report)

    @graph.node
    async def plan(state: Report, ctx: hf.Context) -> dict[str, Any]:
        leave_witness(ctx)
        return {"pages": [f"{state.topic}-{number}" for number in (1, 2)]}

    @graph.node(each=lambda state: state.pages, limit=1)
    def read(page: str, ctx: hf.Context) -> dict[str, Any]:
        leave_witness(ctx)
        return {"facts": [f"fact of {page}"]}

    @graph.node
    async def write(state: Report, ctx: hf.Context) -> dict[str, Any]:
        leave_witness(ctx)
        return {"drafts": 1, "draft": f"{state.draft}|draft {ctx.iteration} of {len(state.facts)} facts"}

    @graph.node
    def style(state: Report, ctx: hf.Context) -> Report:
        leave_witness(ctx)
        state.style = f"styled {state.draft}"
        return state

    @graph.node
    async def spell(state: Report, ctx: hf.Context) -> dict[str, Any]:
        leave_witness(ctx)
        for _ in range(20):  # so that the end of the node in parallel is recorded while this one still runs
            await asyncio.sleep(0)
        return {"spelling": f"spelled {state.draft}"}

    @graph.node
    def judge(state: Report, ctx: hf.Context) -> dict[str, Any]:
        leave_witness(ctx)
        return {"verdicts": [f"{ctx.iteration}: {state.style} / {state.spelling}"]}

    graph.chain(START, "plan", "read", "write", "style", "judge").edge("write", "spell").edge(
        "spell", "judge"
    )
    graph.branch("judge", lambda state: "write" if state.drafts < 2 else END, to=["write", END])
    return graph


def points(reached: list[str], die: int | None) -> failpoints.Hook:
    """Return a hook that notes every failpoint, and kills the process at the one with this number."""
    numbers = itertools.count(1)

    def reach(name: str) -> None:
        reached.append(name)
        if next(numbers) == die:
            os.kill(os.getpid(), signal.SIGKILL)

    return reach


async def perform(verb: str, store: str, schedule: str) -> int:
    flow = report_graph().compile(max_parallel=1 if schedule == "threads" else 64)
    options: dict[str, Any] = {"inline": True, "luck": random.Random(1)} if schedule == "inline" else {}
    async with hf.Engine(store, flows=[flow], lease_ttl=3600.0, **options) as engine:
        if verb == "run":
            await engine.run(flow, Report("otters"), run_id=RUN_ID)
        elif verb == "resume":
            await engine.resume(RUN_ID)
        else:
            try:
                await engine.resume(RUN_ID, after="nowhere")
            except hf.ResumeRefused:
                return REFUSED
    return 0


def post(store: str) -> int:
    opened = SqliteStore(store)
    opened.post(RUN_ID, Request(id="please", verb="pause"))
    opened.close()
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["run", "resume", "refuse", "post"])
    parser.add_argument("store")
    parser.add_argument("witness")
    parser.add_argument("schedule", choices=["threads", "inline"])
    parser.add_argument("--die", type=int)
    parser.add_argument("--count")
    given = parser.parse_args(arguments)
    global witness_file  # noqa: PLW0603 - one process, one witness
    witness_file = given.witness
    reached: list[str] = []
    failpoints.install(points(reached, given.die))
    code = (
        post(given.store)
        if given.verb == "post"
        else asyncio.run(perform(given.verb, given.store, given.schedule))
    )
    if given.count:
        Path(given.count).write_text(json.dumps(reached), encoding="utf-8")
    return code


def serve() -> None:
    _ = hf.Engine  # load the engine once, here, and not in every child
    gc.freeze()  # loaded objects are not touched by garbage collections in children, so their memory stays shared
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                code = main(json.loads(line))
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        sys.exit(main(sys.argv[1:]))
