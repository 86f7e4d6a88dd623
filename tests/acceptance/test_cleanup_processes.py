"""Cleaning code around a wait, in real processes: at SIGTERM it does nothing, after a cancel it runs, and a kill in the middle of
it is named by the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
import holdfast as hf
from postgres_server import drop_schema, schema_for, shared_url

PROGRAM = Path(__file__).parent / "programs" / "seats.py"
PATIENCE_S = 60.0
FLOWS = ["flow", "plain_flow", "process_flow", "plain_process_flow"]


class Place:
    """A store, a folder for effects, and processes that use them."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, store
        self.children: list[subprocess.Popen[bytes]] = []

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {"FOLDER": str(self.folder), "HOLDFAST_STORE": self.store}
        child = forked.Popen(
            [sys.executable, "-m", "holdfast.cli", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.children.append(child)
        return child

    def say(self, *words: str) -> str:
        child = self.begin(*words)
        out, _ = child.communicate(timeout=PATIENCE_S)
        return out.decode()

    def effects(self) -> list[str]:
        file = self.folder / "effects"
        return file.read_text("utf-8").split("\n")[:-1] if file.exists() else []

    def kinds(self) -> list[str]:
        try:
            return [event.kind for event in hf.events("r", store=self.store)]
        except hf.HoldfastError:
            return []

    def until(self, holds: Callable[[], object]) -> None:
        latest = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < latest, (self.kinds(), self.effects())
            time.sleep(0.02)

    def kill(self, child: subprocess.Popen[bytes], how: signal.Signals = signal.SIGKILL) -> None:
        os.kill(child.pid, how)
        child.communicate(timeout=PATIENCE_S)

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: Any, tmp_path: Path) -> Iterator[Place]:
    schema = schema_for(tmp_path)
    on_server = request.param == "postgres"
    found = Place(tmp_path, f"{shared_url()}&schema={schema}" if on_server else str(tmp_path / "runs.db"))
    yield found
    found.close()
    if on_server:
        drop_schema(shared_url(), schema)


@pytest.mark.parametrize("flow", FLOWS)
def test_a_worker_that_is_stopped_while_a_node_waits_releases_no_seat(place: Place, flow: str) -> None:
    place.say("start", f"{PROGRAM}:{flow}", "--run-id", "r")
    worker = place.begin("worker", str(PROGRAM))
    place.until(lambda: "SignalAwaited" in place.kinds())
    place.kill(worker, signal.SIGTERM)
    assert place.effects() == ["booked"]
    hf.signal("r", "paid", 7, store=place.store)
    place.begin("worker", str(PROGRAM))
    place.until(lambda: "RunCompleted" in place.kinds())
    assert (place.effects(), hf.get("r", store=place.store).state["paid"]) == (["booked"], 7)


def test_a_run_that_is_cancelled_while_its_node_is_unwound_says_that_its_cleanup_did_not_run(
    place: Place,
) -> None:
    said = place.say("run", f"{PROGRAM}:flow", "--run-id", "r")
    assert "waiting" in said
    assert place.kinds()[-1] == "NodeWaiting"
    place.say("cancel", "r")
    assert place.effects() == ["booked"]
    told = "sell waited and was not in memory, so its cleanup did not run; its kept steps: book"
    assert told in " ".join(place.say("show", "r").split())
    assert told in " ".join(place.say("ledger", "r").split())
    (left,) = hf.get("r", store=place.store).uncleaned
    assert (left.node, left.why, left.steps) == ("sell", "unwound", ["book"])


def test_a_kill_during_the_cleanup_after_a_cancel_is_named_with_what_was_kept(
    place: Place, tmp_path: Path
) -> None:
    (tmp_path / "hold").touch()
    base = tmp_path / "base"
    place.say("start", f"{PROGRAM}:working_flow", "--run-id", "r", "--run-base", str(base))
    worker = place.begin("worker", str(PROGRAM), "--run-base", str(base))
    place.until(lambda: "working" in place.effects())
    asked = place.begin("cancel", "r")
    place.until(lambda: "apologising" in place.effects())
    place.kill(asked)  # it would end the run instead of the next worker, and it has no folder for receipts
    place.kill(worker)
    (tmp_path / "hold").unlink()
    place.begin("worker", str(PROGRAM), "--run-base", str(base))
    place.until(lambda: "RunCancelled" in place.kinds())
    assert place.effects() == ["booked", "working", "released", "apologising"]
    told = "the rest of its cleanup was not done; its kept steps: book, release"
    assert told in " ".join(place.say("show", "r").split())
    assert told in " ".join(place.say("ledger", "r").split())
    place.until(lambda: any(told in file.read_text("utf-8") for file in base.rglob("*.json")))


def test_a_node_that_takes_a_signal_between_kills_is_not_quarantined(place: Place, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"hold {number}").touch()
    place.say("start", f"{PROGRAM}:listening_flow", "--run-id", "r")
    for number in range(4):
        worker = place.begin("worker", str(PROGRAM))
        place.until(lambda number=number: place.kinds().count("SignalAwaited") > number)
        hf.signal("r", "said", number, store=place.store)
        place.until(lambda number=number: f"heard {number}" in place.effects())
        place.kill(worker)
        (tmp_path / f"hold {number}").unlink()
    place.begin("worker", str(PROGRAM))
    place.until(lambda: {"RunCompleted", "RunFailed"} & set(place.kinds()))
    run = json.loads(place.say("show", "r", "--json"))
    assert (run["status"], run["state"]["heard"]) == ("completed", [0, 1, 2, 3])
