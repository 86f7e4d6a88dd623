"""A flow that asks questions of every kind, and the file of it that a server loads."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import forked

SOURCE = '''
"""Refunds: each asks what its input says, and pays out once."""
import asyncio
import os
from typing import Annotated, Literal

import msgspec

import holdfast as hf


class Refund(msgspec.Struct, kw_only=True):
    decision: Literal["refund", "partial", "reject"]
    cents: Annotated[int, msgspec.Meta(ge=1, le=4200)]
    note: Annotated[str, msgspec.Meta(max_length=500)] = ""


class Line(msgspec.Struct, kw_only=True):
    sku: str
    pieces: int


class Packed(msgspec.Struct, kw_only=True):
    box: Literal["small", "large"]
    carrier: Literal["air", "mule", "rail", "road", "sea"]
    fragile: bool = False
    weight: Annotated[float, msgspec.Meta(gt=0)]
    sku: str
    note: Annotated[str, msgspec.Meta(max_length=81)] = ""
    lines: list[Line] = []
    tags: dict[str, int] = {}


graph = hf.Graph("refund")


@graph.node
def load(state):
    return {"charged": 4200}


graph.ask("decide", "Refund order 4698?", schema=Refund, into="decision", timeout=86_400)
graph.ask("every", "How is it packed?", schema=Packed, into="packed")
graph.ask("hostile", "<img src=x onerror=alert(1)></script>?", options=["<b>yes</b>", "{{7*7}}"], into="hostile")
graph.ask("carrier", "Which carrier?", options=["air", "sea"], into="carrier")


@graph.node(idempotent=False)
def pay_out(state):
    if state.get("dies") and not os.path.exists(state["dies"]):
        open(state["dies"], "w").close()
        os._exit(1)
    if state.get("fails") and not os.path.exists(state.get("once", "")):
        raise (ValueError if state.get("stays") else hf.Fatal)(state["fails"])
    return {"paid": True}


@graph.node
def mail(state):
    return {"mailed": True}


graph.edge(hf.START, "load")
graph.branch("load", lambda state: state.get("to", "pay_out"), ["decide", "carrier", "every", "hostile", "pay_out"])
graph.edge("decide", "pay_out")
graph.edge("every", "pay_out")
graph.edge("hostile", "pay_out")
graph.edge("carrier", "mail")
graph.chain("pay_out", "mail", hf.END)
refund = graph.compile()

sending = hf.Graph("parcels", dict)


class Sent(msgspec.Struct):
    number: int


@sending.node
async def send(state, ctx):
    async def lost():
        raise ConnectionError("no reply")

    names = {"label": str, "send": Sent}
    steps = [ctx.step(hf.Step(name, idempotent=False), lost, type=kind) for name, kind in names.items()]
    label, sent = await asyncio.gather(*steps)
    return {"sent": [label, sent.number]}


parcels = sending.chain(hf.START, "send", hf.END).compile()
'''

CRASH = """
import sys, desk, holdfast as hf
hf.run(desk.refund, {"dies": sys.argv[2]}, run_id=sys.argv[1], store=sys.argv[3])
"""


def write_desk(folder: Path) -> ModuleType:
    """Write the flow into a folder as `desk.py`, and return it as a module."""
    file = folder / "desk.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("desk", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["desk"] = module
    spec.loader.exec_module(module)
    return module


def crash(folder: Path, run_id: str, store: Path) -> None:
    """Start a run in a process that dies in the node that pays out."""
    words = [sys.executable, "-c", CRASH, run_id, str(folder / f"{run_id}.died"), str(store)]
    ended = forked.run(words, cwd=folder, check=False)
    assert ended.returncode == 1
