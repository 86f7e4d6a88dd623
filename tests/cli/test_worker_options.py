"""The options of `worker` and of the commands that execute runs: resources of nodes, changed flows, and refused requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Cli, caller, furnish

FLOW = """
import contextlib
from holdfast import END, START, Graph

graph = Graph("greet")

@graph.node
def greet(state, ctx):
    with open("log", "a") as file:
        file.write(ctx.resources["name"] + " ")
    return {"greeted": ctx.resources["name"]}

flow = graph.chain(START, "greet", END).compile()
names = {"name": "a dict"}

@contextlib.asynccontextmanager
async def opened():
    yield {"name": "opened"}
    with open("log", "a") as file:
        file.write("closed ")

def broken():
    raise ConnectionError("no database")
"""
ASKING = """
from holdfast import END, START, Graph

graph = Graph("greet")

@graph.node(approve="go on?")
def {name}(state):
    return {{"greeted": True}}

flow = graph.chain(START, {name}, END).compile()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return furnish(
        tmp_path, monkeypatch, work=FLOW, old=ASKING.format(name="greet"), new=ASKING.format(name="welcome")
    )


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return caller(capsys)


def test_a_worker_gives_nodes_the_resources_that_an_option_names(cli: Cli, place: Path) -> None:
    cli("start", "work.py", "--run-id", "r")
    assert cli("worker", "work.py", "--until-idle", "--resources", "work.py:opened").code == 0
    assert cli("run", "work.py", "--resources", "work.py:names", "--json").json["state"] == {
        "greeted": "a dict"
    }
    assert place.joinpath("log").read_text() == "opened closed a dict "


def test_resources_of_the_project_need_no_option_so_that_suggested_commands_work(
    cli: Cli, place: Path
) -> None:
    assert "KeyError" in cli("run", "work.py", "--run-id", "r").err
    place.joinpath("pyproject.toml").write_text(
        '[tool.holdfast]\nflows = ["work.py"]\nresources = "work.py:names"\n'
    )
    assert cli("resume", "r", "--json").json["state"] == {"greeted": "a dict"}


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("work.py", "--resources work.py: name the variable too, as in work.py:resources"),
        ("work.py:name", "--resources: work.py has no variable 'name'; did you mean 'names'?"),
        ("work.py:broken", "--resources work.py:broken: work.py:23: ConnectionError: no database"),
    ],
)
def test_resources_that_cannot_be_had_are_reported_with_their_place(cli: Cli, named: str, told: str) -> None:
    ended = cli("run", "work.py", "--resources", named)
    assert (ended.code, told in ended.err) == (2, True), ended.err


def test_a_worker_follows_a_change_that_it_is_told_to_accept(cli: Cli) -> None:
    cli("run", "old.py", "--run-id", "r")
    cli("answer", "r", "greet", "approve")
    assert "the flow has changed in shape" in cli("worker", "new.py", "--until-idle").err
    worked = cli("worker", "new.py", "--until-idle", "--rename", "greet=welcome", "--on-change", "compatible")
    assert "completed  r" in worked.out


def test_a_new_name_that_no_flow_has_is_refused(cli: Cli) -> None:
    refused = cli("worker", "new.py", "--until-idle", "--rename", "greet=welcom")
    assert (
        refused.code,
        "no flow of this worker has a node 'welcom'; did you mean 'welcome'?" in refused.err,
    ) == (2, True)


def test_a_worker_prints_a_line_when_it_refuses_a_request(cli: Cli) -> None:
    cli("run", "old.py", "--run-id", "r")
    cli("retry", "r", "greet", "--no-execute", "--by", "ann")
    told = "trouble: run 'r': the request by ann to retry greet is refused: "
    assert told in cli("worker", "old.py", "--until-idle").err
    cli("retry", "r", "greet", "--no-execute", "--by", "ann")
    events = [json.loads(line) for line in cli("worker", "old.py", "--until-idle", "--json").out.splitlines()]
    assert [one["run"] for one in events if one["event"] == "trouble"] == ["r"]
