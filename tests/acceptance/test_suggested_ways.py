"""Commands suggested for a run whose flow has changed are taken as they stand, and a command looks for its store once."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from command_line import Cli, caller, furnish
from holdfast.cli.exits import Exit
from holdfast.storage import urls

FLOW = """
from holdfast import END, START, Graph

graph = Graph("work", dict)

@graph.node
def first(state):
    raise ValueError("no luck")

flow = graph.chain(START, first, END).compile()
"""
LONGER = FLOW.replace("first, END", "first, 'more', END").replace(
    "flow =", "graph.node(name='more')(lambda s: {})\nflow ="
)
RENAMED = FLOW.replace("def first(", "def begin(").replace("START, first", "START, begin")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return furnish(tmp_path, monkeypatch, work=FLOW)


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return caller(capsys)


@pytest.mark.parametrize("changed", [LONGER, RENAMED], ids=["longer", "renamed"])
def test_skipping_a_node_of_a_flow_that_changed_names_the_code_that_the_run_was_made_with(
    cli: Cli, place: Path, changed: str
) -> None:
    cli("run", "work.py", "--run-id", "r")
    (place / "work.py").write_text(changed, "utf-8")
    (place / "before.py").write_text(FLOW, "utf-8")
    (finding,) = json.loads(cli("doctor", "work.py", "--json").out)["findings"]
    (way,) = [way for way in finding["remedies"] if " skip " in way["command"]]
    assert way["words"] == "continue without first (with the code that the run was created with)"
    words = shlex.split(way["command"])[1:]
    assert words == ["skip", "r", "first", "FILE.py"]
    assert cli("skip", "r", "first", "work.py").code == Exit.REFUSED
    assert cli(*[word.replace("FILE.py", "before.py") for word in words]).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("resume", "r", "work.py"),
        ("cancel", "r", "work.py"),
        ("pause", "r", "work.py"),
        ("fork", "r"),
        ("answer", "r", "first", "yes"),
    ],
    ids=" ".join,
)
def test_a_command_asks_once_whether_its_store_is_there(
    cli: Cli, place: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = FLOW.replace("(state)", "(state, ctx)").replace('raise ValueError("no luck")', 'ctx.ask("go on?")')
    (place / "work.py").write_text(asks, "utf-8")
    cli("run", "work.py", "--run-id", "r")
    asked: list[object] = []
    there = urls.is_there
    monkeypatch.setattr(urls, "is_there", lambda url: asked.append(url) or there(url))
    assert cli(*words).code in {Exit.OK, Exit.WAITS}
    assert len(asked) == 1
