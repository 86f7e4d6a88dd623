"""A worker process for `bench.fleet`, and the flows that it executes.

    python -m bench.fleet_worker '{"store": URL, "ttl_s": 30, "concurrency": 10, "host": "", "told": PATH}'

Its nodes report when they began (by the clock that all processes of a machine share), or only that they began. With `host`, the
worker looks like a process on another machine, whose death other workers cannot see. The worker ends when its stdin is closed.
"""

import asyncio
import json
import os
import socket
import sys
import time
from typing import Any

import holdfast as hf
from holdfast import END, START, Flow, Graph

STEPS = 3


def claimed_flow() -> Flow[Any]:
    """Return a flow with one node, which reports when it began."""
    graph = Graph("claimed", dict)

    @graph.node
    async def began(state: dict[str, Any]) -> dict[str, Any]:
        return {"at": time.monotonic()}

    return graph.chain(START, "began", END).compile()


def stuck_flow() -> Flow[Any]:
    """Return a flow with one node, whose first attempt never ends; its second attempt reports when it began."""
    graph = Graph("stuck", dict)

    @graph.node
    async def stays(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        at = time.monotonic()
        if ctx.attempt == 1:
            await asyncio.sleep(3600)
        return {"at": at}

    return graph.chain(START, "stays", END).compile()


def counted_flow(told: str) -> Flow[Any]:
    """Return a flow with a few nodes; each of them writes a line into the file `told` when it is executed."""
    graph = Graph("counted", dict)

    async def count(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        handle = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(handle, f"{ctx.run_id} {ctx.node}\n".encode())
        os.close(handle)
        return {"step": state.get("step", 0) + 1}

    names = [f"n{number}" for number in range(STEPS)]
    for name in names:
        graph.node(name=name)(count)
    return graph.chain(START, *names, END).compile()


async def _work(asked: dict[str, Any]) -> None:
    flows = [claimed_flow(), stuck_flow(), counted_flow(asked["told"])]
    async with hf.Engine(asked["store"], flows=flows, lease_ttl=asked["ttl_s"], grace=0) as engine:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), engine.stop)
        print("ready", flush=True)
        await engine.work(concurrency=asked["concurrency"])


def main(asked: dict[str, Any]) -> None:
    if asked["host"]:
        socket.gethostname = lambda: asked["host"]
    asyncio.run(_work(asked))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
