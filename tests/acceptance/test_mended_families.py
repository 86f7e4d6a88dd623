"""Families on real processes: a script that is killed and started again, and a failed family that one command mends."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
from holdfast.storage.contract import Query
from holdfast.storage.urls import open_store
from holdfast.testing.checker import check
from postgres_server import drop_schema, schema_for, shared_url

PROGRAM = Path(__file__).parent / "programs" / "generations.py"
PATIENCE_S = 60


class Place:
    """A store, a folder with the files that the program looks at, and commands as a user types them."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.charged, self.broken, self.slow = folder / "charged", folder / "broken", folder / "slow"
        (folder / "pyproject.toml").write_text("", "utf-8")
        (folder / "shop.py").write_text(PROGRAM.read_text("utf-8"), "utf-8")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"],
            "CHARGED": str(self.charged),
            "BROKEN": str(self.broken),
            "SLOW": str(self.slow),
        }

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        program = shutil.which(words[0], path=self.environment["PATH"])
        assert program is not None
        if words[0] == "holdfast":  # what its first line says
            words = (sys.executable, program, *words[1:])
        return forked.Popen(
            words, cwd=self.folder, env={**self.environment, **environment}, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    def call(self, *words: str, **environment: str) -> tuple[int, str]:
        process = self.start(*words, **environment)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out + err

    def holdfast(self, *words: str, **environment: str) -> tuple[int, str]:
        return self.call("holdfast", *words, "--store", self.url, **environment)

    def paste(self, line: str, **environment: str) -> tuple[int, str]:
        return self.call(*shlex.split(line), **environment)

    def statuses(self) -> list[str]:
        """Return the statuses of all runs, the youngest first; none while there is no store."""
        if "://" not in self.url and not os.path.exists(self.url):
            return []
        store = open_store(self.url)
        try:
            return [row.status for row in store.runs(Query())]
        finally:
            store.close()

    def charges(self) -> list[str]:
        return self.charged.read_text().splitlines() if self.charged.exists() else []


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: Any, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield Place(str(tmp_path / "runs.db"), tmp_path)
        return
    schema, server = schema_for(tmp_path), shared_url()
    yield Place(f"{server}{'&' if '?' in server else '?'}schema={schema}", tmp_path)
    drop_schema(server, schema)


def test_a_script_that_is_killed_and_started_again_completes_its_family(place: Place) -> None:
    place.slow.touch()
    script = place.start(sys.executable, "shop.py", place.url)
    try:
        _until_parked(place)
    finally:
        script.send_signal(signal.SIGKILL)
        script.communicate()
    place.slow.unlink()
    assert place.call(sys.executable, "shop.py", place.url) == (0, "completed\n")
    assert len(place.charges()) == 1
    assert check(place.url) == []


def _until_parked(place: Place) -> None:
    """Return when both callers only wait: then a process that resumes them does not call their nodes at once."""
    _until(lambda: place.statuses() == ["running", "waiting", "waiting"], "the callers did not park")


def _until(came: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not came():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _fail(place: Place, **environment: str) -> None:
    place.broken.touch()
    code, said = place.holdfast("run", "shop.py:ordering", "--run-id", "r", **environment)
    assert (code, place.statuses()) == (1, ["failed"] * 3), said
    place.broken.unlink()


def _suggested(place: Place) -> str:
    """Return the only command that `show` suggests to make the family continue."""
    _, said = place.holdfast("show", "r", "--json")
    ways = [one["command"] for one in json.loads(said)["remedies"] if one["verb"] in ("resume", "retry")]
    assert len(ways) == 1, ways
    _, told = place.holdfast("show", "r")
    assert ways[0] in told
    return str(ways[0])


@pytest.mark.parametrize("environment", [{}, {"IDEMPOTENT": "no"}], ids=["idempotent", "not idempotent"])
def test_the_command_that_show_prints_mends_three_generations(
    place: Place, environment: dict[str, str]
) -> None:
    _fail(place, **environment)
    way = _suggested(place)
    assert ("--confirm r." in way) == bool(environment)
    code, ahead = place.paste(f"{way} --dry-run", **environment)
    assert (code, ahead.count("the child run r.")) == (0, 2), ahead
    code, said = place.paste(way, **environment)
    assert (code, place.statuses()) == (0, ["completed"] * 3), said
    assert len(place.charges()) == 1
    assert check(place.url) == []


def test_doctor_suggests_the_same_command(place: Place) -> None:
    _fail(place)
    _, said = place.holdfast("doctor", "--json")
    found = {one["run_id"]: one for one in json.loads(said)["findings"] if one.get("run_id")}
    assert found["r"]["remedies"][0]["command"] == _suggested(place)


def test_workers_mend_a_family_after_one_request_and_its_repetition_changes_nothing(place: Place) -> None:
    _fail(place)
    for _ in range(2):
        assert place.holdfast("resume", "r", "shop.py:ordering", "--no-execute")[0] == 0
    workers = [place.start("holdfast", "worker", "shop.py", "--store", place.url) for _ in range(2)]
    waits = (
        "import sys, holdfast as hf\n"
        "print(hf.wait('r', 60, until='ended', store=sys.argv[1]).status, hf.wait('r', 60, store=sys.argv[1]).status)"
    )
    try:
        _until(lambda: place.statuses() != ["failed"] * 3, "no worker took the request")
        code, said = place.call(sys.executable, "-c", waits, place.url)
        assert (code, said) == (0, "completed completed\n")
    finally:
        for worker in workers:
            worker.terminate()
            worker.communicate()
    assert (place.statuses(), len(place.charges())) == (["completed"] * 3, 1)
    assert check(place.url) == []


def test_the_command_that_is_killed_at_any_moment_is_given_again(tmp_path: Path) -> None:
    """It is killed at one failpoint after the other, until it ends: each time it begins where the last one was killed."""
    place = Place(str(tmp_path / "runs.db"), tmp_path)
    _fail(place)
    way, kills = _suggested(place), 0
    for dies_at in (3, 7, 10, 12, 14, 16, 18, 20, 24, 28):
        code, said = place.paste(way, DIES_AT=str(dies_at))
        if code != -signal.SIGKILL:
            break
        kills += 1
    code, said = place.paste(way)
    assert (code, place.statuses()) == (0, ["completed"] * 3), said
    assert kills >= 3
    assert len(set(place.charges())) == 1
    assert check(place.url) == []
