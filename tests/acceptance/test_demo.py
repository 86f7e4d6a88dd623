"""`holdfast demo` does what it says: real kills, nothing completed runs again, and the commands it suggests work."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import forked
from holdfast.cli import demo
from holdfast.reading.views import EventView

ROOT = Path(__file__).resolve().parents[2]


def holdfast(words: list[str], folder: Path, run: Any = forked.run) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    done: subprocess.CompletedProcess[str] = run(
        [sys.executable, "-m", "holdfast.cli", *words],
        cwd=folder,
        env={**clean, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("demo")
    done = holdfast(["demo"], folder, subprocess.run)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, folder


def test_two_processes_are_killed_and_the_third_publishes(told: tuple[str, Path]) -> None:
    out, _ = told
    killed = re.findall(r"✗ kill -9 (\d+)", out)
    started = re.findall(r"^process (\d+) ", out, re.MULTILINE)
    assert started[:2] == killed
    assert len(started) == 3
    assert "✓ The report is published." in out


def test_nothing_that_completed_ran_again(told: tuple[str, Path]) -> None:
    out, folder = told
    (witness,) = (folder / ".holdfast" / "demo").glob("*.witness")
    calls = [line.split(" ", 1)[1] for line in witness.read_text("utf-8").splitlines()]
    run_id = witness.stem
    events = json.loads(
        holdfast(["events", run_id, "--store", ".holdfast/demo/runs.db", "--json"], folder).stdout
    )
    ends = [
        event
        for event in events
        if event["kind"] in ("NodeCompleted", "ItemCompleted") and not event["body"].get("items")
    ]
    assert len(ends) == len(set(calls)) == 14
    assert calls.count("write 2 ") == 2  # the kill waited until the draft was really being written again
    assert 2 <= len(calls) - len(set(calls)) <= 3  # one item or two, and the draft, were cut
    assert "none of these ran again" in out


def test_the_account_counts_a_second_call_after_a_completion(tmp_path: Path) -> None:
    made = demo._Demo(str(tmp_path), "r1", True)
    made.pids = [1, 2]
    Path(made.witness).write_text("1 plan 1 \n2 plan 1 \n1 write 1 \n2 write 1 \n", "utf-8")

    def event(seq: int, kind: str, node: str | None = None) -> EventView:
        visit = 1 if node else 0
        return EventView(
            seq=seq,
            at=0.0,
            kind=kind,
            node=node,
            iteration=visit,
            execution=visit,
            attempt=visit,
            by=None,
            body={},
        )

    log = [event(1, "NodeCompleted", "plan"), event(2, "RunResumed"), event(3, "NodeCompleted", "write")]
    counted = demo.count(made, log)
    assert (counted["plan"].again, counted["plan"].called) == (1, [1, 1])
    assert (counted["write"].again, counted["write"].called) == (0, [1, 1])


def test_every_command_it_suggests_works(told: tuple[str, Path]) -> None:
    out, folder = told
    commands = re.findall(r"\$ \S*holdfast(?:\.cli)? ([^#\n]+)", out)
    assert [command.split()[0] for command in commands] == [
        "show", "events", "state", "checkpoints", "fork", "serve",
    ]  # fmt: skip
    for command in commands[:-1]:
        done = holdfast(shlex.split(command), folder)
        assert done.returncode == 0, (command, done.stderr)
        if command.startswith("fork"):
            carry_on = re.search(r"holdfast(?:\.cli)? (resume .*)", done.stdout)
            assert carry_on is not None
            done = holdfast(shlex.split(carry_on[1]), folder)
            assert (done.returncode, '"subject": "storms"' in done.stdout) == (0, True)


def test_the_last_command_opens_the_run(told: tuple[str, Path]) -> None:
    out, folder = told
    last = out.rstrip().rpartition("$ ")[2]
    found = re.match(r"\S*(?:python\S* -m )?\S*holdfast(?:\.cli)? (serve .+?)\s*(?:#|$)", last)
    assert found is not None, last
    chosen = re.search(r"open the address that it prints in a browser, and choose (demo-\w+)", out)
    assert chosen is not None
    environment = {"PYTHONPATH": str(ROOT / "src"), "HOME": str(folder), "PATH": os.environ["PATH"]}
    words = [sys.executable, "-m", "holdfast.cli", *shlex.split(found[1]), "--port", "0"]
    with forked.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url, _, token = server.stdout.readline().strip().partition("#token=")
            with urllib.request.urlopen(url, timeout=60) as page:
                assert page.headers.get_content_type() == "text/html"
            asked = urllib.request.Request(f"{url}api/v1/runs", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                listed = {run["id"]: run["status"] for run in json.load(answer)["runs"]}
            assert listed[chosen[1]] == "completed"
        finally:
            server.terminate()


def test_it_works_where_the_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / ".holdfast").write_text("a file where the folder should be")
    done = holdfast(["demo", "--json"], tmp_path)
    assert done.returncode == 0, done.stderr
    account = json.loads(done.stdout)
    assert account["ok"] is True
    assert account["run_again_after_completion"] == 0
    assert not account["store"].startswith(str(tmp_path))
    assert holdfast(["demo", "--folder", ".holdfast/x"], tmp_path).returncode == 2
