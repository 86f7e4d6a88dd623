"""The flow that the fleet of the chaos tests executes: a loop, a fan-out, a retry and a timer; every visit has an effect.

The effects go to a `Receiver`: it acts once for each key, whichever process sends it and however often, and it knows nothing of
Holdfast. `expected` computes the effects of a run from its input alone.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import holdfast as hf
from holdfast import END, START, Graph, Recoverable, Retry, add

NAP_S = 0.3


@dataclass
class Order:
    """The state of an order: a loop of `rounds` iterations, then a fan-out over `pages` items."""

    rounds: int = 2
    pages: int = 3
    round: int = 0
    fetched: Annotated[int, add] = 0
    tried: int = 0
    delivered: bool = False
    parcels: list[str] = field(default_factory=list)


class Receiver:
    """A fake of another system: a folder with one symbolic link for each key. Creating a link is atomic, even if the process
    dies.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def send(self, key: str, what: str) -> bool:
        """Do something, unless it was already done for this key. Return whether it was done now."""
        with suppress(FileExistsError):
            os.symlink(what, self._folder / key)
            return True
        return False

    def done(self) -> list[str]:
        return sorted(os.readlink(found) for found in self._folder.iterdir())


def _do(ctx: Any, name: str = "") -> None:
    """Cause the effect of this visit at the receiver."""
    witness, key = ctx.resources["witness"], ctx.idempotency_key(name)
    witness.effect(ctx, key, name)
    if ctx.resources["receiver"].send(key, _told(ctx.run_id, ctx.node, ctx.iteration, ctx.item)):
        witness.receipt(key)


def _told(run_id: str, node: str, iteration: int, item: int | None) -> str:
    return f"{run_id} {node} {iteration} {'' if item is None else item}"


graph = Graph("orders", Order)


@graph.node
async def pack(state: Order, ctx: hf.Context) -> dict[str, Any]:
    with ctx.resources["witness"].visit(ctx):
        _do(ctx)
        await asyncio.sleep(0.03)
    return {"round": state.round + 1, "parcels": [*state.parcels, f"parcel {ctx.iteration}"]}


@graph.node(each=lambda state: range(state.pages), limit=3)
async def fetch(page: int, ctx: hf.Context) -> dict[str, Any]:
    with ctx.resources["witness"].visit(ctx):
        _do(ctx)
        await asyncio.sleep(0.02 * (page % 3))
    return {"fetched": 1}


@graph.node(retry=Retry(attempts=5, backoff=0.05))
async def weigh(state: Order, ctx: hf.Context) -> dict[str, Any]:
    with ctx.resources["witness"].visit(ctx):
        _do(ctx)
        if ctx.attempt == 1:
            raise Recoverable("the scale was busy")
    return {"tried": ctx.attempt}


@graph.node
async def nap(state: Order, ctx: hf.Context) -> None:
    await ctx.sleep(NAP_S)
    with ctx.resources["witness"].visit(ctx):
        _do(ctx)


@graph.node
def deliver(state: Order, ctx: Any) -> dict[str, Any]:
    with ctx.resources["witness"].visit(ctx):
        _do(ctx)
        time.sleep(0.05)  # a plain function runs in a thread, and is not stopped when the lease is lost
    return {"delivered": True}


graph.edge(START, "pack")
graph.branch("pack", lambda state: "pack" if state.round < state.rounds else "fetch", to=["pack", "fetch"])
graph.chain("fetch", "weigh", "nap", "deliver", END)
flow = graph.compile()


def order(number: int) -> Order:
    """Return the input of the run with this number."""
    return Order(rounds=1 + number % 3, pages=2 + number % 4)


def expected(run_id: str, given: Order) -> list[str]:
    """Return the effects that the receiver must have for a run that has ended."""
    return [
        *(_told(run_id, "pack", number + 1, None) for number in range(given.rounds)),
        *(_told(run_id, "fetch", 1, page) for page in range(given.pages)),
        *(_told(run_id, node, 1, None) for node in ("weigh", "nap", "deliver")),
    ]


def is_right(state: dict[str, Any], given: Order) -> bool:
    """Return whether the final state of a run is that of an undisturbed run."""
    parcels = [f"parcel {number + 1}" for number in range(given.rounds)]
    found = (state["round"], state["fetched"], state["delivered"], state["parcels"])
    return found == (given.rounds, given.pages, True, parcels) and state["tried"] > 1
