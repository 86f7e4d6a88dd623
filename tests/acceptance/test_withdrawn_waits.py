"""A node that gives up a wait, in real processes: it is killed before its next wait, and a worker keeps its asyncio timer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import forked
import holdfast as hf

PROGRAM = Path(__file__).parent / "programs" / "impatient.py"
PATIENCE_S = 60.0
FORMS = ["wait_for", "timeout", "task"]
FLOWS = ["flow", "flow_in_a_process"]
every_flow = pytest.mark.parametrize("flow", FLOWS)


class Place:
    """A store and a note in a folder, and processes that use them."""

    def __init__(self, folder: Path) -> None:
        self.store = str(folder / "runs.db")
        self.note = folder / "note"
        self.children: list[subprocess.Popen[bytes]] = []

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {"NOTE": str(self.note), "HOLDFAST_STORE": self.store}
        command = [sys.executable, "-m", "holdfast.cli", *words]
        child = forked.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.children.append(child)
        return child

    def kinds(self, run_id: str = "r") -> list[str]:
        try:
            return [event.kind for event in hf.events(run_id, store=self.store)]
        except hf.HoldfastError:
            return []

    def until(self, holds: Callable[[], object]) -> None:
        latest = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < latest, [self.kinds(run.id) for run in hf.runs(store=self.store)]
            time.sleep(0.02)

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.close()


def given(form: str, seconds: float, *, dies: bool) -> str:
    return json.dumps({"form": form, "seconds": seconds, "dies": dies})


@every_flow
@pytest.mark.parametrize("form", FORMS)
def test_a_process_that_is_killed_after_a_wait_was_given_up_loses_no_signal(
    place: Place, form: str, flow: str
) -> None:
    run = ("run", f"{PROGRAM}:{flow}", "--run-id", "r", "--input")
    child = place.begin(*run, given(form, 0.3, dies=True))
    place.until(place.note.exists)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert place.kinds()[-1] == "WaitWithdrawn"
    hf.signal("r", "x", 7, store=place.store)
    resumed = place.begin("resume", "r", f"{PROGRAM}:{flow}", "--json")
    out, _ = resumed.communicate(timeout=PATIENCE_S)
    assert resumed.returncode == 0, out
    assert hf.get("r", store=place.store).state["second"] == 7


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A worker and one run for each flow and form: all of them wait at the same time."""
    found = Place(tmp_path_factory.mktemp("worked"))
    for flow in FLOWS:
        for form in FORMS:
            named = ("--run-id", f"{flow}-{form}", "--input", given(form, 1.6, dies=False))
            found.begin("start", f"{PROGRAM}:{flow}", *named)
    for started in found.children:
        assert started.wait(PATIENCE_S) == 0
    found.begin("worker", str(PROGRAM), "--concurrency", str(len(FLOWS) * len(FORMS)))
    yield found
    found.close()


@pytest.mark.rotating
@every_flow
@pytest.mark.parametrize("form", FORMS)
def test_a_worker_does_not_unwind_a_wait_that_asyncio_ends_later_than_it_unwinds_others(
    worked: Place, form: str, flow: str
) -> None:
    """A worker unwinds after one second. It would lose the timer, and the run would wait for ever."""
    run_id = f"{flow}-{form}"
    worked.until(lambda: "NodeWaiting" in worked.kinds(run_id))
    kinds = worked.kinds(run_id)
    assert "WaitWithdrawn" in kinds[: kinds.index("NodeWaiting")]
    hf.signal(run_id, "x", 7, store=worked.store)
    worked.until(lambda: "RunCompleted" in worked.kinds(run_id))
    assert hf.get(run_id, store=worked.store).state["second"] == 7
