"""Budgets, scopes and schedules on the command line, and the commands that it suggests."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Cli, caller, furnish

FLOW = """
from dataclasses import dataclass, field
from typing import Annotated, Any
import holdfast as hf
from holdfast import END, START, Graph, append

@dataclass
class Work:
    log: Annotated[list[str], append] = field(default_factory=list)

graph = Graph("work", Work)

def add(name):
    @graph.node(name=name)
    async def node(state, ctx):
        ctx.cost(usd=1, tokens=10)
        return {"log": [name]}

for name in ("a", "b", "c"):
    add(name)
flow = graph.chain(START, "a", "b", "c", END).compile()
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    furnish(tmp_path, monkeypatch, work=FLOW)
    return caller(capsys)


def test_a_budget_stops_a_run_and_a_higher_one_continues_it(cli: Cli) -> None:
    ended = cli("run", "work.py", "--run-id", "r1", "--budget", "usd=2,tokens=1000")
    assert ended.code != 0
    assert "has spent 2 usd of a budget of 2" in ended.out + ended.err
    shown = cli("show", "r1")
    assert "budget usd=2,tokens=1000 (left: usd=0,tokens=980)" in shown.out
    assert "holdfast resume r1 work.py --budget usd=4,tokens=1000" in shown.out
    assert "--budget usd=4,tokens=1000" in cli("doctor").out
    refused = cli("resume", "r1", "work.py", "--budget", "usd=1")
    assert "usd=1 is not above the 2 that the run has spent already" in refused.err
    assert cli("resume", "r1", "work.py", "--budget", "usd=9").code == 0
    assert cli("show", "r1", "--json").json["budget_left"] == {"usd": 5.0, "tokens": None, "active_s": None}


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ("usd", "write limits as NAME=NUMBER"),
        ("usd=five", "write limits as NAME=NUMBER"),
        ("euro=5", "--budget euro=5: a budget has no limit 'euro'; it limits usd, tokens, active_s"),
        ("usd=-1", "above 0"),
        ("tokens=1.5", "write limits as NAME=NUMBER"),
    ],
)
def test_a_wrong_budget_is_refused(cli: Cli, given: str, wrong: str) -> None:
    ended = cli("run", "work.py", "--budget", given)
    assert (ended.code, wrong in ended.err) == (2, True), ended.err
    assert not Path(".holdfast/runs.db").exists()


def test_a_scope_pauses_a_run_and_show_and_doctor_say_how_to_widen_it(cli: Cli) -> None:
    cli("start", "work.py", "--run-id", "r1", "--scope", "a", "--schedule", "layered")
    cli("worker", "work.py", "--until-idle")
    shown = cli("show", "r1")
    assert "scope a; layered" in shown.out
    assert "paused: everything in its scope is done, and b is not in scope" in shown.out
    assert "holdfast resume r1 work.py --scope b" in shown.out
    refused = cli("resume", "r1", "work.py")
    assert "b is not in scope" in refused.err
    cli("resume", "r1", "work.py", "--scope", "b")
    assert cli("resume", "r1", "work.py", "--scope", "*").code == 0
    assert cli("show", "r1", "--json").json["state"] == {"log": ["a", "b", "c"]}
    ended = cli("run", "work.py", "--scope", "aa")
    assert "did you mean 'a'" in ended.err


def test_a_request_for_a_worker_has_the_limits(cli: Cli) -> None:
    cli("run", "work.py", "--run-id", "r1", "--scope", "a")
    cli("resume", "r1", "--no-execute", "--scope", "*", "--budget", "usd=50")
    assert "budget usd=50; scope *" in cli("requests", "r1").out
    cli("worker", "work.py", "--until-idle")
    shown = cli("show", "r1", "--json").json
    assert (shown["status"], shown["budget"]["usd"]) == ("completed", 50.0)


def test_a_run_is_shown_as_it_was_at_an_event(cli: Cli) -> None:
    cli("run", "work.py", "--run-id", "r1")
    then = cli("show", "r1@4", "--json").json
    assert (then["seq"], then["status"], then["state"], then["cost"]["usd"]) == (
        4,
        "running",
        {"log": ["a"]},
        1.0,
    )
    assert "this is the run as it was at event 4 of" in cli("show", "r1@4").out
