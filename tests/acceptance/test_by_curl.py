"""A run that is started, watched, interrupted, resumed, answered and forked by curl alone, while its workers are killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import forked

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")

PATIENCE_S = 60
TOKEN = "t1.0123456789abcdef0123456789abcdef"
FLOW = """
import time
from pathlib import Path
import holdfast as hf

graph = hf.Graph("order", dict)

@graph.node
def reserve(state):
    return {"reserved": state["item"]}

@graph.node
def charge(state):
    while not Path("open").exists():
        time.sleep(0.01)
    return {"charged": True}

@graph.node(approve="Ship it?")
def ship(state):
    return {"shipped": state["item"]}

flow = graph.chain(hf.START, reserve, charge, ship, hf.END).compile()
"""


class Shop(NamedTuple):
    """A folder with a flow, and the address of the server over its store."""

    folder: Path
    url: str
    begin: Callable[..., subprocess.Popen[str]]

    def curl(self, path: str, body: Any = None, *headers: str) -> tuple[int, Any]:
        """Call the server with curl. Returns the status and the decoded body."""
        return self.read(self.calling(path, body, *headers))

    def calling(self, path: str, body: Any = None, *headers: str) -> subprocess.Popen[str]:
        words = ["curl", "-s", "-w", "\n%{http_code}", "-H", f"Authorization: Bearer {TOKEN}"]
        for header in headers:
            words += ["-H", header]
        if body is not None:
            words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        return subprocess.Popen([*words, f"{self.url}/api/v1/{path}"], stdout=subprocess.PIPE, text=True)

    @staticmethod
    def read(called: subprocess.Popen[str]) -> tuple[int, Any]:
        answer, _ = called.communicate(timeout=PATIENCE_S)
        body, _, status = answer.rpartition("\n")
        return int(status), json.loads(body)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "pyproject.toml").write_text("")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    paths = os.pathsep.join(path for path in sys.path if path)
    begun: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        process = forked.Popen(
            [sys.executable, "-m", "holdfast.cli", *words],
            cwd=tmp_path,
            env=clean | {"PYTHONPATH": paths, "HOME": str(tmp_path), "HOLDFAST_TOKEN": TOKEN},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        begun.append(process)
        assert process.stdout is not None
        process.first_line = process.stdout.readline().strip()  # type: ignore[attr-defined]
        return process

    server = begin("serve", "flow.py", "--no-work", "--port", "0")
    yield Shop(tmp_path, server.first_line.rstrip("/"), begin)  # type: ignore[attr-defined]
    for process in begun:
        process.kill()
        process.communicate()


REPORT = """
import holdfast as hf

graph = hf.Graph("report", dict)

@graph.node
def research(state):
    return {"notes": f"about {state['topic']}"}

@graph.node(approve="Publish it?")
def publish(state):
    return {"published": True}

flow = graph.chain(hf.START, research, publish, hf.END).compile()
"""
DOCUMENT = Path(__file__).parents[2] / "docs" / "server.md"


def test_the_calls_in_the_document_work_as_they_are_printed(shop):
    (shop.folder / "report.py").write_text(REPORT)
    server = shop.begin("serve", "report.py", "--port", "0")
    section = DOCUMENT.read_text("utf-8").partition("## Asking for something")[2].partition("\n## ")[0]
    define, *calls = [line.strip() for line in section.splitlines() if line.startswith("    call")]
    define = define.replace("curl -s", r"curl -s -w '\n%{http_code}'")
    found = []
    for line, status in zip(calls, (201, 200, 200, 200, 201, 200), strict=True):
        if "/answer" in line:  # a person would wait for the question, too
            look = 'call "$URL/api/v1/runs/r1"'
            while not shop.read(_shell(define, look, server))[1]["questions"]:
                pass
        found.append(shop.read(_shell(define, line, server)))
        assert found[-1][0] == status, (line, found[-1])
    started, _, answered, preview, fork, batch = (body for _, body in found)
    assert started["status"] in ("pending", "running")  # the worker of the server may have claimed it
    assert answered["run"]["status"] == "completed"
    assert preview["verb"] == "fork"
    assert fork["state"]["topic"] == "moon"
    assert batch["matched"] == 0


def _shell(define: str, line: str, server: subprocess.Popen[str]) -> subprocess.Popen[str]:
    address = server.first_line.rstrip("/")  # type: ignore[attr-defined]
    return subprocess.Popen(
        ["sh", "-c", f"{define}\n{line}"],
        env=os.environ | {"URL": address, "TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_run_is_started_watched_interrupted_resumed_answered_and_forked_by_curl(shop):
    worker = shop.begin("worker", "flow.py", "--json")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    status, run = shop.curl(
        "runs", {"flow": "order", "input": {"item": "lamp"}}, "Idempotency-Key: o17", f"traceparent: {trace}"
    )
    assert status == 201
    run_id = run["id"]

    # It is watched until it is charged.
    while "charge" not in run["nodes"]:
        status, run = shop.curl(f"runs/{run_id}?wait=30&after={run['seq']}")
        assert status == 200
    assert (run["status"], run["nodes"]["charge"]["status"]) == ("running", "running")

    # Its worker is killed. A retried start finds the same run, and the run says what happened.
    worker.kill()
    worker.wait()
    assert shop.curl("runs", {"flow": "order", "input": {"item": "lamp"}}, "Idempotency-Key: o17")[0] == 200
    status, run = shop.curl(f"runs/{run_id}")
    assert run["crashed"]

    # A resume is previewed, asked for, and carried out by the next worker, until the run asks.
    (shop.folder / "open").touch()
    status, preview = shop.curl(f"runs/{run_id}/resume?preview=1", {})
    assert (status, [node["node"] for node in preview["rerun"]]) == (200, ["charge"])
    asked = shop.calling(
        f"runs/{run_id}/resume",
        {},
        f'If-Match: "{preview["digest"]}"',
        "Idempotency-Key: r1",
        "Prefer: wait=60",
    )
    shop.begin("worker", "flow.py", "--json")
    status, resumed = shop.read(asked)
    assert status == 200, resumed
    (question,) = resumed["run"]["questions"]
    assert question["text"] == "Ship it?"

    # A wrong answer is refused, and the right one completes the run.
    status, problem = shop.curl(f"runs/{run_id}/answer", {"question": question["key"], "answer": "perhaps"})
    assert (status, problem["errors"][0]["path"]) == (422, "answer")
    status, answered = shop.curl(
        f"runs/{run_id}/answer", {"question": question["key"], "answer": "approve"}, "Prefer: wait=60"
    )
    assert (status, answered["run"]["status"], answered["run"]["state"]["shipped"]) == (
        200,
        "completed",
        "lamp",
    )

    # A fork sells something else.
    places = shop.curl(f"runs/{run_id}/checkpoints")[1]["checkpoints"]
    status, fork = shop.curl(
        f"runs/{run_id}/fork",
        {"checkpoint": places[0]["seq"], "edit": {"item": "desk"}},
        "Idempotency-Key: f1",
    )
    assert (status, fork["parent"]) == (201, run_id)
    while not fork["questions"]:  # the worker executes it, because it has not stopped
        status, fork = shop.curl(f"runs/{fork['id']}?wait=30&after={fork['seq']}")
        assert status == 200
    assert fork["state"]["reserved"] == "desk"
    (question,) = fork["questions"]
    status, answered = shop.curl(
        f"runs/{fork['id']}/answer", {"question": question["key"], "answer": "approve"}, "Prefer: wait=60"
    )
    assert answered["run"]["state"]["shipped"] == "desk"

    # The log says by whom, and which trace the run belongs to.
    created = shop.curl(f"runs/{run_id}/events?kind=RunCreated")[1]["events"][0]
    assert created["body"]["trace_parent"] == trace
    acts = shop.curl(f"runs/{run_id}/events?kind=QuestionAnswered")[1]["events"]
    assert [act["by"] for act in acts] == [created["by"]]
