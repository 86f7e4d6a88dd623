"""A flow whose node pays in a step, and then holds its run until the file named GO exists. Both are noted in a witness file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from holdfast import END, START, Context, Graph

graph = Graph("held", dict)


def witness(ctx: Any, what: str) -> None:
    """Write a line to the witness file, with a single write, because several processes append to it."""
    file = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{ctx.run_id} {what} {os.getpid()}\n".encode())
    finally:
        os.close(file)


@graph.node
def work(state: dict[str, Any], ctx: Context) -> dict[str, Any]:
    def pay() -> int:
        witness(ctx, "pay")
        return 5

    paid = ctx.step("pay", pay)
    witness(ctx, "hold")
    while not state.get("short") and not Path(os.environ["GO"]).exists():
        time.sleep(0.02)
    return {"paid": paid}


flow = graph.chain(START, "work", END).compile()
