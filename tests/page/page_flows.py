"""Flows for the tests of the page, and the file of them that a server loads."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SOURCE = '''
"""Orders that complete, fail, ask or go on until they are let go."""
import os
import time

import holdfast as hf

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def build(name):
    graph = hf.Graph(name)

    @graph.node
    def reserve(state):
        return {"reserved": True}

    @graph.node
    def charge(state):
        while state.get("until") and not os.path.exists(state["until"]):
            time.sleep(0.02)
        if state.get("fails"):
            raise hf.Fatal(state["fails"])
        return {"charged": True}

    @graph.node(approve=f"Ship {MARKUP}?")
    def ship(state):
        return {"shipped": True}

    graph.chain(hf.START, reserve, charge)
    graph.branch("charge", lambda state: "ship" if state.get("asks") else hf.END, ["ship", hf.END])
    graph.edge("ship", hf.END)
    return graph.compile()


order = build("order")
refund = build("refund")
'''


def write_flows(folder: Path) -> ModuleType:
    """Write the flows into a folder as `shop.py`, and return them as a module."""
    file = folder / "shop.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("shop", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["shop"] = module
    spec.loader.exec_module(module)
    return module
