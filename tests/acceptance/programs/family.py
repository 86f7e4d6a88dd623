"""Families on real processes: `python family.py URL FIRST LAST STEP` starts a caller for each number, and lets three workers
execute its family. Two of them are killed (SIGKILL) when they reach that many failpoints; the third one goes on. Prints one line
of JSON for each caller: its final state, and how many workers were killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

from holdfast import END, START, Context, Engine, Flow, Graph, append
from holdfast.storage import failpoints

PATIENCE_S = 60.0


@dataclass
class Order:
    amount: int = 0
    paid: Annotated[list[int], append] = field(default_factory=list)


def make_flows() -> tuple[Flow[Order], ...]:
    """order -> (call a shipment, which calls a payment) and (start two payments, wait for both), side by side."""
    pay, ship, order = Graph("pay", Order), Graph("ship", Order), Graph("order", Order)

    @pay.node
    async def charge(state: Order, ctx: Context) -> dict[str, Any]:
        return {"paid": [await ctx.step("bank", lambda: state.amount)]}

    paying = pay.chain(START, "charge", END).compile()

    @ship.node
    async def pack(state: Order, ctx: Context) -> dict[str, Any]:
        return {"paid": [0, *(await ctx.call(paying, {"amount": state.amount + 1})).paid]}

    shipping = ship.chain(START, "pack", END).compile()

    @order.node
    async def send(state: Order, ctx: Context) -> dict[str, Any]:
        return {"paid": (await ctx.call(shipping, {"amount": state.amount})).paid}

    @order.node
    async def settle(state: Order, ctx: Context) -> dict[str, Any]:
        children = [await ctx.start(paying, {"amount": number}, key=f"part {number}") for number in (10, 20)]
        return {"paid": [paid for child in children for paid in (await ctx.wait_for(child)).paid]}

    @order.node
    async def close(state: Order) -> dict[str, Any]:
        return {"paid": [99]}

    order.chain(START, "send", "close", END).chain(START, "settle", "close")
    return order.compile(), shipping, paying


FLOWS = make_flows()


def work(url: str, dies_at: int | None) -> None:
    """Be a worker, which is killed at this failpoint."""
    reached = 0

    def reach(name: str) -> None:
        nonlocal reached
        reached += 1
        if reached == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    async def main() -> None:
        async with Engine(url, flows=FLOWS, park_after=0.05) as engine:
            failpoints.install(reach)
            await engine.work(concurrency=1)

    asyncio.run(main())


def fork(url: str, dies_at: int | None) -> int:
    pid = os.fork()
    if not pid:
        try:
            work(url, dies_at)
        finally:
            os._exit(1)
    return pid


async def start(url: str, run_id: str) -> None:
    async with Engine(url, flows=FLOWS) as engine:
        await engine.start(FLOWS[0], {"amount": 1}, run_id=run_id)


async def look(url: str, run_id: str) -> dict[str, Any]:
    """Wait until the caller has ended, and return what is to be printed."""
    async with Engine(url, flows=FLOWS) as engine:
        run = await engine.wait(run_id, timeout=PATIENCE_S)
        return {"run": run_id, "status": run.status, "paid": sorted(run.state.paid)}


def main() -> None:
    url, first, last, step = sys.argv[1], *map(int, sys.argv[2:])
    for number in range(first, last, step):
        asyncio.run(start(url, f"r{number}"))
        workers = [fork(url, number), fork(url, number), fork(url, None)]
        told = asyncio.run(look(url, f"r{number}"))
        killed = 0
        for pid in workers:
            ended, _ = os.waitpid(pid, os.WNOHANG)
            killed += bool(ended)
            if not ended:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        print(json.dumps({**told, "killed": killed}), flush=True)


if __name__ == "__main__":
    main()
