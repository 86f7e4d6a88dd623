"""Commands about a run that a script has started name the script, if importing it only defines the flow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import forked
from command_line import Cli, caller, furnish
from holdfast.cli.exits import Exit

DEFINES = """
import os
import holdfast as hf
from holdfast import END, START, Graph

graph = Graph("order", dict)

@graph.node
def price(order):
    if not os.path.exists("fixed"):
        raise ValueError("no price")

flow = graph.chain(START, price, END).compile()
"""
RUNS = 'hf.run(flow, {}, run_id="o1")'
SCRIPTS = {
    "guarded": f'{DEFINES}\nif __name__ == "__main__":\n    {RUNS}\n',
    "unguarded": f"{DEFINES}\n{RUNS}\n",
    "local": "def main():\n"
    + "".join(f"    {line}\n" for line in f"{DEFINES}\n{RUNS}".splitlines())
    + '\nif __name__ == "__main__":\n    main()\n',
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return furnish(tmp_path, monkeypatch)


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return caller(capsys)


def started(place: Path, how: str) -> None:
    (place / "order.py").write_text(SCRIPTS[how], "utf-8")
    ended = forked.run([sys.executable, "order.py"], cwd=place, capture_output=True, text=True)
    assert "no price" in ended.stderr


def test_commands_name_the_script_that_started_the_run_and_work(place: Path, cli: Cli) -> None:
    started(place, "guarded")
    shown = cli("show", "o1").out  # each command in it is run, too
    assert "$ holdfast resume o1 order.py " in shown
    assert "$ holdfast skip o1 price order.py " in shown
    assert "FILE.py" not in shown
    (place / "fixed").touch()
    assert cli("resume", "o1", "order.py").code == Exit.OK


def test_a_script_that_is_not_there_any_more_is_not_named(place: Path, cli: Cli) -> None:
    started(place, "guarded")
    (place / "order.py").unlink()
    assert "$ holdfast resume o1 FILE.py " in cli("show", "o1").out


@pytest.mark.parametrize("how", ["unguarded", "local"])
def test_a_script_from_which_no_command_can_load_the_flow_is_not_named(
    place: Path, cli: Cli, how: str
) -> None:
    started(place, how)
    assert "$ holdfast resume o1 FILE.py " in cli("show", "o1").out
