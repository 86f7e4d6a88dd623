"""Three generations: `order` calls `shop`, which calls `pay`. `python generations.py URL` runs an order and prints its status.

Every charge is noted in the file of the environment variable CHARGED. While BROKEN exists, `pay` fails; while SLOW exists, it
does not end. With DIES_AT, this process is killed (SIGKILL) when it reaches that many failpoints.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.storage import failpoints

CHARGED, BROKEN, SLOW = (Path(os.environ.get(name, name)) for name in ("CHARGED", "BROKEN", "SLOW"))


@dataclass
class Order:
    amount: int = 7
    paid: bool = False


pay, shop, order = hf.Graph("pay", Order), hf.Graph("shop", Order), hf.Graph("order", Order)


@pay.node(idempotent="IDEMPOTENT" not in os.environ, crash_limit=50)
async def charge(state: Order, ctx: hf.Context) -> dict[str, Any]:
    if SLOW.exists():
        await asyncio.get_running_loop().create_future()
    if BROKEN.exists():
        raise ValueError("the till is broken")
    with CHARGED.open("a") as file:
        file.write(f"{ctx.idempotency_key()}\n")
    return {"paid": True}


paying = pay.chain(hf.START, "charge", hf.END).compile()


@shop.node(crash_limit=50)
async def settle(state: Order, ctx: hf.Context) -> dict[str, Any]:
    return {"paid": (await ctx.call(paying, {"amount": state.amount})).paid}


selling = shop.chain(hf.START, "settle", hf.END).compile()


@order.node(crash_limit=50)
async def sell(state: Order, ctx: hf.Context) -> dict[str, Any]:
    return {"paid": (await ctx.call(selling, {"amount": state.amount})).paid}


ordering = order.chain(hf.START, "sell", hf.END).compile()

if "DIES_AT" in os.environ:
    left = int(os.environ["DIES_AT"])

    def reach(name: str) -> None:
        global left  # noqa: PLW0603
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.install(reach)

if __name__ == "__main__":
    print(hf.run(ordering, run_id="r", store=sys.argv[1]).status)
