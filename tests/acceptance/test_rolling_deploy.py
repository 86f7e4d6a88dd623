"""Workers of different code, and of different versions of Holdfast, on one store: real processes, and the printed commands.

A deploy replaces the code of a fleet while runs are under way. Every run must come to its end: at a worker that can continue it,
or by the commands that Holdfast prints.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import caller, furnish
from deployed_fleet import NEWER, Fleet
from holdfast.cli.exits import Exit
from postgres_server import drop_schema, schema_for, shared_url

OLD = """
from holdfast import END, START, Graph

graph = Graph("orders", dict)

@graph.node
def check(state):
    return {"check": 1}

@graph.node
def stock(state):
    return {"stock": 1}

@graph.node
async def reserve(state, ctx):
    return {"reserve": await ctx.wait_for("go")}

@graph.node
def pay(state):
    return {"pay": 1}

flow = graph.chain(START, check, stock, reserve, pay, END).compile()
"""
LONGER = OLD.replace("flow =", '@graph.node\ndef thank(state):\n    return {"thank": 1}\n\nflow =').replace(
    "pay, END", "pay, thank, END"
)
RENAMED = OLD.replace("def reserve(", "def hold(").replace("stock, reserve, pay", "stock, hold, pay")
SHORTER = OLD.replace("check, stock, reserve", "check, reserve").replace(
    "@graph.node\ndef stock", "def stock"
)
END_OR_WAIT = {"completed", "cancelled", "waiting"}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: Any, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "runs.db")
        return
    schema, server = schema_for(tmp_path), shared_url()
    yield f"{server}{'&' if '?' in server else '?'}schema={schema}"
    drop_schema(server, schema)


@pytest.fixture
def fleet(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Fleet]:
    furnish(tmp_path, monkeypatch, orders=OLD)
    fleet = Fleet(tmp_path, url, caller(capsys, tries_suggestions=False))
    yield fleet
    fleet.close()


def begin(fleet: Fleet, *ids: str) -> None:
    """Let a worker of the old code execute runs until they wait, stop it, and send what they wait for."""
    for run_id in ids:
        fleet("start", "orders.py", "--run-id", run_id)
    worker = fleet.work("orders.py")
    fleet.until(lambda: all(fleet.statuses()[run_id] == "waiting" for run_id in ids))
    assert fleet.stop(worker) == 0
    for run_id in ids:
        fleet("signal", run_id, "go", "1")


# --- changed code ------------------------------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize("changed", [LONGER, RENAMED, SHORTER], ids=["longer", "renamed", "shorter"])
def test_after_a_deploy_of_a_changed_graph_the_printed_commands_bring_every_run_to_its_end(
    fleet: Fleet, changed: str
) -> None:
    begin(fleet, "r1", "r2")
    (fleet.folder / "orders.py").write_text(changed, "utf-8")
    workers = [fleet.work("orders.py"), fleet.work("orders.py")]
    fleet("start", "orders.py", "--run-id", "new")
    fleet.until(lambda: len(fleet.refused()) == 4 and fleet.statuses()["new"] == "waiting")
    assert [one["kind"] for one in fleet.findings()] == ["flow changed"] * 2
    assert fleet("doctor", code=Exit.STUCK).count("no live worker can continue it: process ") == 2
    shown = fleet("show", "r1")
    assert "no live worker can continue it" in shown
    assert "its flow has changed in shape" in fleet("runs")
    assert "its flow has changed in shape" in fleet("recover")
    for _ in range(4):  # a fork is a run of the old graph, which the workers refuse too
        for finding in fleet.findings():
            for remedy in finding["remedies"]:
                if remedy["verb"] in ("fork", "cancel") or remedy is finding["remedies"][0]:
                    fleet.paste(remedy["command"])
        if set(fleet.statuses().values()) <= END_OR_WAIT:
            break
        fleet.settle()
        fleet.until(lambda: set(fleet.statuses().values()) <= END_OR_WAIT or len(fleet.refused()) == 4)
    statuses = fleet.statuses()
    assert fleet.findings() == []
    for run_id in [run_id for run_id, status in statuses.items() if status == "waiting"]:
        fleet("signal", run_id, "go", "2")  # the new run, and forks from before the signal
    fleet.until(lambda: set(fleet.statuses().values()) <= {"completed", "cancelled"})
    replaced = [run_id for run_id, status in fleet.statuses().items() if status == "cancelled"]
    assert replaced == (["r2", "r1"] if changed == SHORTER else [])
    assert "✓ no problems" in fleet("doctor")
    assert [fleet.stop(worker) for worker in workers] == [0, 0]


def test_old_and_new_workers_share_the_runs_of_a_rolling_deploy(fleet: Fleet) -> None:
    begin(fleet, "r1", "r2")
    (fleet.folder / "before.py").write_text(OLD, "utf-8")
    (fleet.folder / "orders.py").write_text(LONGER, "utf-8")
    new = fleet.work("orders.py")
    fleet("start", "orders.py", "--run-id", "new")
    fleet.until(lambda: len(fleet.refused()) == 2)
    assert len(fleet.findings()) == 2
    old = fleet.work("before.py")
    fleet.until(lambda: [fleet.statuses()[run_id] for run_id in ("r1", "r2")] == ["completed", "completed"])
    assert fleet.findings() == []
    fleet("signal", "new", "go", "1")
    fleet.until(lambda: fleet.statuses()["new"] == "completed")
    assert "✓ no problems" in fleet("doctor")
    assert [fleet.stop(worker) for worker in (old, new)] == [0, 0]
    assert "thank" not in json.loads(fleet("show", "r1", "--json"))["nodes"]
    assert "thank" in json.loads(fleet("show", "new", "--json"))["nodes"]


# --- versions of Holdfast ----------------------------------------------------------------------------


def test_a_fleet_of_two_versions_brings_every_run_to_its_end(fleet: Fleet) -> None:
    newer = (sys.executable, NEWER)
    for run_id in ("n1", "n2"):
        fleet("start", "orders.py", "--run-id", run_id)
    first = fleet.work("orders.py", *newer)
    fleet.until(lambda: set(fleet.statuses().values()) == {"waiting"})
    assert fleet.stop(first) == 0
    worker = fleet.work("orders.py")
    for run_id in ("r1", "r2"):
        fleet("start", "orders.py", "--run-id", run_id)
    fleet.until(lambda: set(fleet.statuses().values()) == {"waiting"})
    for run_id in ("r1", "r2"):
        fleet("signal", run_id, "go", "1")
    for run_id in ("n1", "n2"):
        fleet.by_newer("signal", run_id, "go", "1")
    fleet.until(lambda: [fleet.statuses()[run_id] for run_id in ("r1", "r2")] == ["completed", "completed"])
    fleet.until(lambda: fleet.said(worker).count("version 99 of the event 'RunClaimed'") == 2)
    assert worker.poll() is None

    told = fleet("doctor", code=Exit.STUCK)
    assert told.count("version 99 of the event 'RunClaimed'") == 2
    assert "pip install --upgrade holdfast" in told
    assert "version 99" in fleet("show", "n1", code=Exit.STORE)
    assert json.loads(fleet("show", "n1", "--json", code=Exit.STORE))["status"] == "pending"
    assert re.search(r"version 99.*\$ pip install --upgrade holdfast", fleet("runs"), re.DOTALL)
    assert "version 99" in fleet("recover")
    assert fleet("show", "r1")
    seen = fleet.by_newer("show", "n1")
    assert "no live worker can continue it: process " in seen
    assert "holdfast worker orders.py" in seen

    second = fleet.work("orders.py", *newer)
    fleet.until(lambda: set(fleet.statuses().values()) == {"completed"})
    fleet("start", "orders.py", "--run-id", "last")
    fleet.until(lambda: fleet.statuses()["last"] in ("waiting", "completed"))
    assert fleet.said(worker).count("version 99 of the event 'RunClaimed'") in (2, 3)
    assert [fleet.stop(one) for one in (worker, second)] == [0, 0]
