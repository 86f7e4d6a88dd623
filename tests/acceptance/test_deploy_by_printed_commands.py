"""A changed graph is deployed under two workers, and every run gets to its end by the commands that Holdfast prints.

The commands are read from what doctor, show, a refused resume and a worker print to a terminal, as an operator would read them:
one way is chosen of those that exclude each other (`either … or …`), and its commands are pasted from top to bottom.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from command_line import caller, furnish
from deployed_fleet import Fleet
from holdfast.cli.exits import Exit
from postgres_server import drop_schema, schema_for, shared_url

OLD = """
import asyncio
import os
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
    if state["mode"] == "fail" and not os.path.exists("repaired"):
        raise ValueError("no stock")
    if state["mode"] == "ask":
        return {"reserve": await ctx.ask("Reserve it?", options=["yes", "no"])}
    if state["mode"] == "both":
        come = [asyncio.ensure_future(ctx.wait_for("go")), asyncio.ensure_future(ctx.sleep(86400))]
        done, left = await asyncio.wait(come, return_when=asyncio.FIRST_COMPLETED)
        for one in left:
            one.cancel()
        return {"reserve": 1}
    if state["mode"] == "signal":
        return {"reserve": await ctx.wait_for("go")}
    return {"reserve": 0}

@graph.node
def pay(state):
    return {"pay": 1}

flow = graph.chain(START, check, stock, reserve, pay, END).compile()
"""
ADDED = OLD.replace("flow =", "graph.node(name='thank')(lambda s: {'thank': 1})\n\nflow =").replace(
    "pay, END", "pay, 'thank', END"
)
RENAMED = OLD.replace("def reserve(", "def hold(").replace("stock, reserve, pay", "stock, hold, pay")
REMOVED = OLD.replace("check, stock, reserve", "check, reserve").replace(
    "@graph.node\ndef stock", "def stock"
)
REROUTED = OLD.replace("START, check, stock,", "START, stock, check,")
TYPED = """
import os
from dataclasses import dataclass
from holdfast import END, START, Graph

@dataclass
class Order:
    mode: str = ""
    cents: int = 0

graph = Graph("orders", Order)

@graph.node
async def reserve(state, ctx):
    if state.mode == "fail" and not os.path.exists("repaired"):
        raise ValueError("no stock")
    if state.mode == "signal":
        await ctx.wait_for("go")

@graph.node
def pay(state):
    return {"cents": state.cents}

flow = graph.chain(START, reserve, pay, END).compile()
"""
RETYPED = TYPED.replace("cents: int = 0", "cents: str = ''")
UPGRADED = RETYPED.replace(
    "Order)", "Order, version=2, upgrades={1: lambda old: {**old, 'cents': str(old['cents'])}})"
)
FEWER_FIELDS = TYPED.replace("    cents: int = 0\n", "").replace('{"cents": state.cents}', "{}")
MODES = ("signal", "both", "ask", "fail")


class Printed(NamedTuple):
    """A command as it was printed, and how it belongs to the commands before it."""

    link: str
    command: str


def read_commands(printed: str) -> list[Printed]:
    """The commands that are suggested to an operator, with `either`, `or` and `then` in front of their descriptions."""
    found, words = [], ""
    for line in printed.splitlines():
        if above := re.match(r"  # (.*)$", line):
            words = above[1]
        elif (typed := re.match(r"  \$ (holdfast .+?)(?:   # (.*))?$", line)) and "--follow" not in typed[1]:
            link = (typed[2] or words).partition(" ")[0]
            found.append(Printed(link if link in ("either", "or", "then") else "", typed[1]))
            words = ""
    return found


def ways(printed: str) -> Iterator[list[str]]:
    """The commands of each way that can be pasted: none with a value that only the user knows."""
    way: list[str] = []
    for one in [*read_commands(printed), Printed("or", "")]:
        if one.link == "or" and way:
            if not any(re.search(r"\b(FILE\.py|NEW|VALUE|TEXT)\b", command) for command in way):
                yield way
            way = []
        way.append(one.command)


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


def begin(fleet: Fleet, ids: list[str]) -> None:
    """Let a worker of the old code execute runs until they wait or have failed, and stop it."""
    for run_id in ids:
        fleet("start", "orders.py", "--run-id", run_id, "--input", f'{{"mode": "{run_id.split("-")[0]}"}}')
    worker = fleet.work("orders.py")
    fleet.until(lambda: {fleet.statuses()[run_id] for run_id in ids} <= {"waiting", "failed"})
    assert fleet.stop(worker) == 0


def follow(fleet: Fleet, printed: str) -> None:
    """Paste the first way that can be pasted, from top to bottom. Each command must do what it says."""
    commands = next(ways(printed), None)
    assert commands is not None, printed
    for command in commands:
        name, *words = shlex.split(command)
        assert name == "holdfast"
        ended = fleet.cli(*words)
        expected = (Exit.OK, Exit.WAITS)
        if (
            words[0] == "resume"
        ):  # a worker may have claimed the run at once, after the signal or answer before
            expected = (*expected, Exit.HELD)
        assert ended.code in expected, (command, ended, printed)


@pytest.mark.parametrize(
    "changed", [ADDED, RENAMED, REMOVED, REROUTED], ids=["added", "renamed", "removed", "rerouted"]
)
def test_every_run_ends_by_pasting_what_is_printed_after_a_deploy(fleet: Fleet, changed: str) -> None:
    ids = [f"{mode}-{surface}" for mode in MODES for surface in ("doctor", "show")]
    begin(fleet, ids)
    (fleet.folder / "orders.py").write_text(changed, "utf-8")
    (fleet.folder / "repaired").touch()
    workers = [fleet.work("orders.py"), fleet.work("orders.py")]
    fleet.until(lambda: len({holder for _, holder in fleet.refused()}) == 2)

    told = fleet("doctor", code=Exit.STUCK)
    for mode in ("signal", "both", "ask"):  # although nothing of these runs has moved
        assert re.search(rf"flow changed +{mode}-show: its flow has changed in shape: ", told), told
    for _ in range(8):
        open_runs = [
            run for run, status in fleet.statuses().items() if status not in ("completed", "cancelled")
        ]
        if not open_runs:
            break
        for run_id in open_runs:
            if fleet.statuses()[run_id] in ("completed", "cancelled"):
                continue  # a worker has continued it meanwhile
            if run_id.endswith("doctor"):
                printed = fleet.cli("doctor", "orders.py", "--store", fleet.url).out
                mine = [part for part in re.split(r"\n(?=\S)", printed) if f" {run_id}: " in part]
                if mine and read_commands(mine[0]):
                    follow(fleet, mine[0])
            else:
                printed = fleet("show", run_id).partition("\nMore:")[0]
                if read_commands(printed):
                    follow(fleet, printed)
        fleet.settle()
    assert set(fleet.statuses().values()) <= {"completed", "cancelled"}, fleet.statuses()
    assert "✓ no problems" in fleet("doctor")
    assert [fleet.stop(worker) for worker in workers] == [0, 0]
    if changed != REMOVED:
        assert set(fleet.statuses().values()) == {"completed"}


def test_a_refused_resume_and_the_worker_that_refuses_print_a_command_that_works(fleet: Fleet) -> None:
    begin(fleet, ["signal-resume", "signal-worker"])
    (fleet.folder / "orders.py").write_text(ADDED, "utf-8")
    refused = fleet.cli("resume", "signal-resume", "orders.py", "--store", fleet.url)
    assert refused.code == Exit.REFUSED
    follow(fleet, refused.err)
    workers = [fleet.work("orders.py"), fleet.work("orders.py")]
    fleet.until(lambda: fleet.statuses()["signal-resume"] == "completed")
    fleet("signal", "signal-worker", "go", "1")
    fleet.until(lambda: any(read_commands(fleet.said(worker)) for worker in workers))
    said = next(said for worker in workers if read_commands(said := fleet.said(worker)))
    assert "trouble: run 'signal-worker'" in said
    follow(fleet, said)
    fleet.until(lambda: fleet.statuses()["signal-worker"] == "completed")


def test_a_run_that_an_old_worker_would_continue_names_it_and_is_no_problem(fleet: Fleet) -> None:
    begin(fleet, ["signal-1", "both-1"])
    (fleet.folder / "before.py").write_text(OLD, "utf-8")
    (fleet.folder / "orders.py").write_text(REMOVED, "utf-8")
    old, new = fleet.work("before.py"), fleet.work("orders.py")
    fleet.until(lambda: bool(fleet.refused()))
    takes = f"process {old.pid} on "
    doctor = fleet("doctor", "orders.py", code=Exit.WAITS)
    assert "0 problems, 1 run waiting" in doctor
    assert re.search(
        rf"signal +signal-1: .*; {takes}\S+ takes it, which process {new.pid} on \S+ cannot continue", doctor
    )
    for printed in (doctor, fleet("show", "signal-1")):
        (only,) = read_commands(printed.partition("\nMore:")[0])
        assert only.command.startswith("holdfast signal signal-1 go")
    assert takes in fleet("show", "both-1")
    refused = fleet.cli("resume", "signal-1", "orders.py", "--store", fleet.url)
    assert refused.code == Exit.REFUSED
    assert takes in refused.err
    for run_id in ("signal-1", "both-1"):
        fleet("signal", run_id, "go", "1")
    fleet.until(lambda: set(fleet.statuses().values()) == {"completed"})


def test_a_run_whose_state_has_another_type_in_the_code_continues_with_the_printed_edit(fleet: Fleet) -> None:
    (fleet.folder / "orders.py").write_text(TYPED, "utf-8")
    begin(fleet, ["signal-1", "signal-2", "fail-1"])
    (fleet.folder / "orders.py").write_text(RETYPED, "utf-8")
    (fleet.folder / "repaired").touch()
    worker = fleet.work("orders.py")
    for run_id in ("signal-1", "signal-2"):
        fleet("signal", run_id, "go", "1")
    fleet.until(lambda: {run_id for run_id, _ in fleet.refused()} == {"signal-1", "signal-2"})
    fleet.until(lambda: fleet.said(worker).count("--edit '{") == 2)

    told = fleet("doctor", code=Exit.STUCK)
    assert told.count("no live worker can continue it: process ") == 2
    refused = fleet.cli("resume", "fail-1", "orders.py", "--store", fleet.url)
    assert refused.code == Exit.REFUSED
    for run_id, printed in (("signal-1", fleet("show", "signal-1")), ("fail-1", refused.err)):
        (command,) = [one.command for one in read_commands(printed) if "--edit" in one.command]
        assert "after the code has given the state a new version with an upgrade" in printed
        fleet.paste(command.replace("VALUE", "42.00"))
        fleet.until(lambda run_id=run_id: fleet.statuses()[run_id] == "completed")

    (fleet.folder / "orders.py").write_text(UPGRADED, "utf-8")
    (started, *_) = [one.command for one in read_commands(fleet("show", "signal-2"))]
    assert started.startswith("holdfast worker orders.py")
    upgraded = fleet.work("orders.py")
    fleet.until(lambda: set(fleet.statuses().values()) == {"completed"})
    assert [fleet.stop(one) for one in (worker, upgraded)] == [0, 0]


def test_no_edit_is_printed_for_a_state_with_a_field_that_the_code_does_not_declare_any_more(
    fleet: Fleet,
) -> None:
    (fleet.folder / "orders.py").write_text(TYPED, "utf-8")
    begin(fleet, ["signal-1"])
    (fleet.folder / "orders.py").write_text(FEWER_FIELDS, "utf-8")
    fleet.work("orders.py")
    fleet("signal", "signal-1", "go", "1")
    fleet.until(fleet.refused)
    shown = fleet("show", "signal-1")
    assert "start a worker after the code has given the state a new version with an upgrade" in shown
    assert "--edit" not in shown.replace("(--edit JSON)", "")
