"""Runs of one node `work`, in a process that can be made to wait or to die at any write; and processes that leave requests.

    asked.py run    STORE IDS [--wait N | --die N]           execute these runs (separated by commas)
    asked.py leave  STORE RUN REQUEST                        leave the request `resume` with this id
    asked.py signal STORE RUN REQUEST [--wait N | --die N]   send the signal `news` with this id

`run` prints "in" when every node has begun, and lets them end when it reads a line. Failpoints are counted from then on: at the
N-th of them, with `--wait`, it prints the name of the failpoint and waits for another line; with `--die`, it kills itself. At
the end it prints "over". `leave` and `signal` wait for a line before they leave the request, and then print whether it was new
("over" if the run was over). The failpoints of `signal` are counted from then on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from typing import Any

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.storage import failpoints
from holdfast.storage.urls import open_store

IDS: list[str] = []
BEGUN: set[str] = set()


def make_flow() -> hf.Flow[dict[str, Any]]:
    graph = Graph("asked")

    async def work(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        BEGUN.add(ctx.run_id)
        if set(IDS) == BEGUN:
            say("in")
        await ctx.resources["gate"].wait()
        return {"worked": ctx.attempt}

    graph.node(name="work")(work)
    return graph.chain(START, "work", END).compile()


def say(words: str) -> None:
    print(words, flush=True)


def arm(given: argparse.Namespace) -> None:
    """Count failpoints from now on, and wait or die at one of them."""
    count = 0

    def reached(name: str) -> None:
        nonlocal count
        count += 1
        if count == given.die:
            os.kill(os.getpid(), signal.SIGKILL)
        if count == given.wait:
            say(name)
            sys.stdin.readline()

    failpoints.install(reached)


async def run(given: argparse.Namespace) -> None:
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def let_go() -> None:
        await loop.run_in_executor(None, sys.stdin.readline)
        arm(given)
        gate.set()

    flow = make_flow()
    async with hf.Engine(given.store, flows=[flow], resources={"gate": gate}) as engine:
        runs = [asyncio.ensure_future(engine.run(flow, {}, run_id=run_id)) for run_id in IDS]
        await asyncio.gather(let_go(), *runs, return_exceptions=True)
    say("over")


def leave(given: argparse.Namespace) -> None:
    store = open_store(given.store)
    say("in")
    sys.stdin.readline()
    left = hf.resume(given.run, execute=False, id=given.request, store=store)
    say("repeated" if left.repeated else "new")
    store.close()


def send(given: argparse.Namespace) -> None:
    store = open_store(given.store)
    say("in")
    sys.stdin.readline()
    arm(given)
    try:
        sent = hf.signal(given.run, "news", id=given.request, store=store)
    except hf.RunOver:
        say("over")
    else:
        say("repeated" if sent.repeated else "new")
    failpoints.install(None)
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["run", "leave", "signal"])
    parser.add_argument("store")
    parser.add_argument("run")
    parser.add_argument("request", nargs="?")
    parser.add_argument("--wait", type=int, default=0)
    parser.add_argument("--die", type=int, default=0)
    given = parser.parse_args()
    if given.verb != "run":
        leave(given) if given.verb == "leave" else send(given)
        return
    IDS.extend(given.run.split(","))
    asyncio.run(run(given))


if __name__ == "__main__":
    main()
