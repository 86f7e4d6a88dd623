"""`doctor` and `show` say how many calls of a live worker wait for a place in a thread or process."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from command_line import Cli, caller, furnish
from holdfast.storage.leases import CallsAtOnce, this_process
from holdfast.storage.urls import open_store

FILE = """
from holdfast import END, START, Graph

graph = Graph("work")


@graph.node
def a(state):
    return {}


flow = graph.chain(START, "a", END).compile()
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    furnish(tmp_path, monkeypatch, work=FILE)
    return caller(capsys)


def test_doctor_and_show_say_how_many_calls_wait(cli: Cli) -> None:
    cli("start", "work.py", "--run-id", "r1")
    store = open_store(".holdfast/runs.db")
    calls = (CallsAtOnce(executor="process", limit=2, waiting=1_198),)
    busy = msgspec.structs.replace(this_process(), calls=calls, flows=("work",))
    store.renew(busy)
    store.claim("r1", busy)
    said = "1,198 calls wait for one of 2 places (executor 'process')"
    assert f"executes it; {said} there" in " ".join(cli("show", "r1").out.split())
    examined = cli("doctor")
    assert f"{busy.describe()}: {said}" in " ".join(examined.out.split())
    assert examined.code == 0
    [told] = cli("doctor", "--json").json["calls"]
    assert told["waiting"] == [{"executor": "process", "limit": 2, "waiting": 1198}]
    store.renew(msgspec.structs.replace(busy, calls=()))
    assert "calls" not in cli("doctor").out
    store.close()
