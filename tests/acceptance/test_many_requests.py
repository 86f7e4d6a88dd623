"""One command that asks many runs, as a process of its own that is killed in the middle: the command is repeated, a worker works,
and every run was resumed once. A node writes to a witness file beside Holdfast, so that what was executed is known without asking
the log.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import forked
import holdfast as hf
from holdfast.reading.reader import Reader
from holdfast.storage.urls import open_store
from holdfast.upkeep import mass_requests
from postgres_server import drop_schema, schema_for, shared_url

FLOW = """
import os
from holdfast import END, START, Graph

graph = Graph("order", dict)

@graph.node
def ship(state):
    if not os.path.exists("repaired"):
        raise ValueError("the warehouse is down")
    with open("witness", "a") as file:
        file.write(state["number"] + "\\n")

flow = graph.chain(START, "ship", END).compile()
"""
KILLED = """
import os, signal, sys
from holdfast.cli import main
from holdfast.storage import failpoints

point, left = sys.argv.pop(1), [int(sys.argv.pop(1))]

def reach(name):
    left[0] -= name == point
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

failpoints.hook = reach
main()
"""
RUNS = 2 * mass_requests.AT_ONCE + 100


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: Any, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "runs.db")
        return
    schema = schema_for(tmp_path)
    server = shared_url()
    yield f"{server}{'&' if '?' in server else '?'}schema={schema}"
    drop_schema(server, schema)


@pytest.fixture
def place(tmp_path: Path, url: str) -> Path:
    """A folder with a flow, and a store in which every run of the flow has failed."""
    (tmp_path / "order.py").write_text(FLOW)
    (tmp_path / "killed.py").write_text(KILLED)
    flow = runpy.run_path(str(tmp_path / "order.py"))["flow"]

    async def fail() -> None:
        async with hf.Engine(url, flows=[flow]) as engine:
            await asyncio.gather(
                *(engine.start(flow, {"number": str(n)}, run_id=f"r{n}") for n in range(RUNS))
            )
            await engine.work(until="idle", concurrency=100, on_end=lambda run: None)

    asyncio.run(fail())
    (tmp_path / "repaired").touch()
    return tmp_path


def call(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return forked.run(
        [sys.executable, *words], cwd=place, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.rotating
@pytest.mark.parametrize("point", ["post.before", "post.committed"])
def test_a_command_that_was_killed_in_the_middle_is_repeated_and_every_run_is_resumed_once(
    place: Path, url: str, point: str
) -> None:
    asks = ("resume", "--where", "status=failed", "--where", "flow=order", "--store", url)
    killed = call(place, "killed.py", point, "2", *asks)
    assert killed.returncode == -9, killed.stderr
    left = 2 * mass_requests.AT_ONCE if point == "post.committed" else mass_requests.AT_ONCE
    repeated = call(place, "-m", "holdfast.cli", *asks, "--json")
    told = json.loads(repeated.stdout)
    assert (told["matched"], told["asked"], told["repeated"]) == (RUNS, RUNS - left, left)
    worked = call(place, "-m", "holdfast.cli", "worker", "order.py", "--until-idle", "--store", url)
    assert worked.returncode == 0, worked.stderr
    assert Counter((place / "witness").read_text().split()) == {str(number): 1 for number in range(RUNS)}
    with closing(open_store(url)) as store:
        for number in range(RUNS):
            kinds = Counter(row.kind for row in store.events(f"r{number}"))
            assert (kinds["RunResumed"], kinds["RequestRefused"], kinds["RunCompleted"]) == (1, 0, 1), number
            assert Reader(store).requests(f"r{number}") == []
    again = call(place, "-m", "holdfast.cli", *asks)
    assert again.returncode == 3
    assert "no run matches --where status=failed --where flow=order" in again.stderr
