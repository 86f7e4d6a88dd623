"""The flow first -> turn (three iterations) -> last, in a process that can be made to die, hang or wait at a gate in any of
its nodes.

    steps.py run|resume|cancel|pause|retry|skip  STORE WITNESS [options]

`--die turn:2` ends the process in the second iteration of `turn`, in the way that `--how` says. `--gate turn:2`
makes that node wait until the test opens the FIFO at `--fifo` for writing and closes it again; `--colour` says how the node
waits. Prints status and log of the run as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

import holdfast as hf
from holdfast import END, START, Graph, append

RUN_ID = "steps"
HELD, FENCED, FAILED, CANCELLED = 75, 76, 77, 78


@dataclass
class Steps:
    log: Annotated[list[str], append] = field(default_factory=list)


def leave_witness(given: argparse.Namespace, ctx: hf.Context) -> None:
    line = json.dumps([ctx.node, ctx.iteration, ctx.attempt, os.getpid()]) + "\n"
    handle = os.open(given.witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, line.encode())
    os.fsync(handle)
    os.close(handle)


def die(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exit":
        os._exit(5)
    sys.exit(5)


def wait_in_thread(fifo: str) -> None:
    with open(fifo, encoding="utf-8") as gate:
        gate.read()


async def wait_on_loop(fifo: str) -> None:
    """Wait on the event loop until the test opens the FIFO: without a writer it is not readable."""
    handle = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    opened = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().add_reader(handle, lambda: opened.done() or opened.set_result(None))
    try:
        await opened
    finally:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)


async def wait_stubbornly(fifo: str) -> None:
    while True:
        try:
            await wait_on_loop(fifo)
        except asyncio.CancelledError:
            continue
        return


def steps_flow(given: argparse.Namespace) -> hf.Flow[Steps]:
    graph = Graph("steps", Steps)

    def enter(ctx: hf.Context) -> bool:
        """Write to the witness file, and die here if `--die` says so. Return whether the node must wait at the gate."""
        leave_witness(given, ctx)
        here = f"{ctx.node}:{ctx.iteration}"
        if here == given.die:
            die(given.how)
        return here == given.gate

    def in_thread(state: Steps, ctx: hf.Context) -> dict[str, Any]:
        if enter(ctx):
            wait_in_thread(given.fifo)
        return {"log": [f"{ctx.node} {ctx.iteration}"]}

    async def on_loop(state: Steps, ctx: hf.Context) -> dict[str, Any]:
        if enter(ctx):
            if given.colour == "hog":
                wait_in_thread(given.fifo)
            else:
                await (wait_stubbornly if given.colour == "stubborn" else wait_on_loop)(given.fifo)
        return {"log": [f"{ctx.node} {ctx.iteration}"]}

    body = in_thread if given.colour == "thread" else on_loop
    graph.node(name="first")(body)
    graph.node(name="turn", idempotent=not given.once)(body)
    graph.node(name="last")(body)
    graph.chain(START, "first", "turn").edge("last", END)
    graph.branch("turn", lambda state: "turn" if len(state.log) < 4 else "last", to=["turn", "last"])
    return graph.compile()


def perform(given: argparse.Namespace) -> hf.Run[Steps]:
    flow = steps_flow(given)
    options: dict[str, Any] = {
        "store": given.store,
        "grace": given.grace,
        "lease_ttl": given.lease_ttl,
        "durability": given.durability,
    }
    if given.verb == "run":
        return hf.run(flow, Steps(), run_id=RUN_ID, **options)
    verb = getattr(hf, given.verb)
    args = (RUN_ID, "turn", {"log": ["skipped"]}) if given.verb == "skip" else (RUN_ID,)
    return verb(*args, flows=[flow], **options)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["run", "resume", "cancel", "pause", "retry", "skip"])
    parser.add_argument("store")
    parser.add_argument("witness")
    parser.add_argument("--die")
    parser.add_argument("--how", choices=["kill", "exit", "sys.exit"], default="kill")
    parser.add_argument("--gate")
    parser.add_argument("--fifo")
    parser.add_argument("--colour", choices=["thread", "loop", "stubborn", "hog"], default="thread")
    parser.add_argument("--once", action="store_true", help="turn is not idempotent")
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument("--lease-ttl", type=float, default=30.0)
    parser.add_argument("--durability", default="sync")
    given = parser.parse_args()
    try:
        run = perform(given)
    except hf.RunHeld as held:
        print(held, file=sys.stderr)
        return HELD
    except hf.RunFailed as failed:
        print(failed, file=sys.stderr)
        return FAILED
    except hf.RunCancelled:
        return CANCELLED
    except hf.StoreError as refused:
        print(f"{type(refused).__name__}: {refused}", file=sys.stderr)
        return FENCED if type(refused).__name__ == "FenceLost" else 1
    log = run.state.log if isinstance(run.state, Steps) else run.state["log"]
    print(json.dumps({"status": run.status, "log": log, "questions": len(run.questions)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
