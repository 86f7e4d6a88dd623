"""Our own processes exclude what they have loaded from garbage collections; the process of another program is left alone."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import frozen_nodes

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.cli import program

FILE = """
import gc
from holdfast import END, START, Graph

graph = Graph("frozen")


@graph.node
def look(state):
    return {"frozen": gc.get_freeze_count(), "thresholds": list(gc.get_threshold())}


flow = graph.chain(START, "look", END).compile()
"""


async def execute(flow: Flow[Any]) -> hf.Run[Any]:
    async with hf.Engine("memory://frozen", flows=[flow]) as engine:
        return await engine.run(flow, {})


def test_an_engine_in_another_program_leaves_its_collector_alone_and_the_process_of_a_node_does_not() -> None:
    before = gc.get_freeze_count()
    program.freeze()
    graph = Graph("one")
    graph.node(name="look", executor="process")(frozen_nodes.look)
    run = asyncio.run(execute(graph.chain(START, "look", END).compile()))
    assert run.state["frozen"] > 1000
    assert gc.get_freeze_count() <= before  # frozen objects may end


def test_a_command_freezes_what_it_has_loaded_and_changes_no_threshold(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(FILE)
    command = [sys.executable, "-m", "holdfast.cli", "run", "work.py", "--json"]
    # Really started, because the server of `forked` has frozen what it has loaded itself.
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    state = json.loads(ended.stdout)["state"]
    assert state["frozen"] > 1000
    assert state["thresholds"] == list(gc.get_threshold())
