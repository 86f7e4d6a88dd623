"""Every example is killed in its middle, carried on, answered where it asks, and comes to the end of an uninterrupted run;
what it does to the world outside, it does once.

The uninterrupted run is the file run by Python itself; the killed ones are started from the command line. A kill comes when
the log, or the world outside, shows that the example is in its middle: nobody sleeps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import forked
import holdfast as hf
from holdfast.core.events import Stored
from holdfast.errors import RunNotFound
from holdfast.reading import verification
from holdfast.storage.rows import open_row
from holdfast.storage.sqlite.store import SqliteStore

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(file.stem for file in EXAMPLES.glob("*.py"))
KILLED, FAILED, REFUSED, WAITS = -9, 1, 4, 7
PATIENCE_S = 60
LOOK_AGAIN_S = 0.003

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


class Place:
    """A folder in which one example runs."""

    def __init__(self, folder: Path, example: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.example = example
        self.file = EXAMPLES / f"{example}.py"
        self.store = folder / ".holdfast" / "runs.db"
        self.processes: list[subprocess.Popen[str]] = []

    def begin(self, *command: str | Path, popen: Any = forked.Popen) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] = popen(
            [sys.executable, *map(str, command)],
            cwd=self.folder,
            env=ENVIRONMENT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def run(self) -> subprocess.Popen[str]:
        return self.begin(
            "-m", "holdfast.cli", "run", self.file, "--run-id", self.example, "--run-base", "out"
        )

    def resume(self) -> subprocess.Popen[str]:
        return self.begin("-m", "holdfast.cli", "resume", self.example, self.file, "--run-base", "out")

    def answer(self, node: str, value: str) -> None:
        code, said = end(self.begin("-m", "holdfast.cli", "answer", self.example, node, value))
        assert code == 0, said

    def log(self) -> list[Stored]:
        if not self.store.exists():
            return []
        with closing(SqliteStore(self.store)) as store, suppress(RunNotFound):
            return [open_row(row, store.blobs) for row in store.events(self.example)]
        return []

    def of_kind(self, kind: str) -> list[Any]:
        return [stored.event for stored in self.log() if stored.kind == kind]

    def got(self) -> hf.Run[Any]:
        return hf.get(self.example, store=self.store)

    def book(self, name: str) -> list[Any]:
        """What was written down in the world outside."""
        file = self.folder / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def assert_like(self, whole: Place) -> None:
        mine, other = self.got(), whole.got()
        assert (mine.status, mine.state) == ("completed", other.state)
        with closing(SqliteStore(self.store)) as store:
            assert verification.verify(store, self.example).problems == []

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out + said


def wait_until(process: subprocess.Popen[str], came: Callable[[], bool]) -> None:
    """Wait until something is so, and look every few milliseconds; the process must not end before."""
    latest = time.monotonic() + PATIENCE_S
    while not came():
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_AGAIN_S)
            pytest.fail(f"it ended: {end(process)[1]}")
        assert time.monotonic() < latest, "it did not come so far"


def kill_when(process: subprocess.Popen[str], came: Callable[[], bool]) -> None:
    wait_until(process, came)
    process.kill()
    assert end(process)[0] == KILLED


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Callable[[str, str], Place]]:
    made: list[Place] = []

    def make(name: str, example: str) -> Place:
        made.append(Place(tmp_path / name, example))
        return made[-1]

    yield make
    for place in made:
        place.close()


def uninterrupted(place: Place) -> Place:
    code, said = end(place.begin(place.file, popen=subprocess.Popen))
    assert code == 0, said
    return place


# --- agent --------------------------------------------------------------------------------------------


def test_an_agent_that_is_killed_again_and_again_asks_once_and_refunds_once(places) -> None:
    whole = uninterrupted(places("whole", "agent"))
    whole.answer("refund", "approve")
    assert end(whole.resume())[0] == 0
    place: Place = places("killed", "agent")
    kill_when(place.run(), lambda: len(place.of_kind("NodeStarted")) >= 3)
    kill_when(place.resume(), lambda: len(place.of_kind("NodeCompleted")) >= 3)
    for _ in range(2):
        assert end(place.resume())[0] == WAITS
    assert place.book("shop/refunds.jsonl") == [], "nobody has approved it yet"
    place.answer("refund", "approve")
    kill_when(place.resume(), lambda: bool(place.book("shop/refunds.jsonl")))
    assert end(place.resume())[0] == 0
    place.assert_like(whole)
    assert place.book("shop/refunds.jsonl") == whole.book("shop/refunds.jsonl")
    assert len(place.book("shop/refunds.jsonl")) == len(place.of_kind("QuestionAsked")) == 1
    steps = [(event.node, event.iteration, event.step) for event in place.of_kind("StepCompleted")]
    assert len(steps) == len(set(steps)) == 7
    assert place.got().cost.tokens >= whole.got().cost.tokens, "what was cut was paid for as well"


def test_the_words_of_a_model_that_is_asked_to_stop_are_kept(places) -> None:
    place: Place = places("stopped", "agent")
    process = place.begin("-m", "holdfast.cli", "run", place.file, "--run-id", "agent", "--grace", "0")
    wait_until(process, lambda: bool(place.of_kind("CostIncurred")))
    process.terminate()
    code, said = end(process)
    assert (code, "resume agent" in said) == (143, True)
    (streamed,) = place.of_kind("NodeStreamed")
    said = "Let me see what was ordered, and what our rules say."
    assert streamed.chunks
    assert said.startswith("".join(streamed.chunks).rstrip())
    assert place.got().status == "interrupted"
    assert end(place.resume())[0] == WAITS


def test_a_refund_that_was_rejected_is_never_paid(places) -> None:
    place: Place = places("rejected", "agent")
    assert end(place.run())[0] == WAITS
    place.answer("refund", "reject")
    assert end(place.resume())[0] == FAILED
    assert end(place.resume())[0] == REFUSED
    assert place.book("shop/refunds.jsonl") == []


# --- etl ----------------------------------------------------------------------------------------------


def test_a_batch_that_is_killed_reads_no_shop_again_and_pays_once(places) -> None:
    whole = uninterrupted(places("whole", "etl"))
    calls = Counter(whole.book("batch/calls.jsonl"))
    assert calls == {"Aachen": 1, "Bergen": 2, "Cork": 1, "Delft": 1, "Essen": 3, "Faro": 1}
    place: Place = places("killed", "etl")
    kill_when(place.run(), lambda: len(place.of_kind("ItemCompleted")) >= 2)
    (listed,) = place.of_kind("ItemsListed")
    read = {listed.items[event.item]["shop"] for event in place.of_kind("ItemCompleted")}
    called = len(place.book("batch/calls.jsonl"))
    kill_when(place.resume(), lambda: bool(place.book("batch/transfers.jsonl")))
    assert read.isdisjoint(place.book("batch/calls.jsonl")[called:])
    for _ in range(2):
        code, said = end(place.resume())
        assert (code, "may or may not have happened" in said) == (WAITS, True)
    place.answer("pay", "retry")
    assert end(place.resume())[0] == 0
    place.assert_like(whole)
    assert place.book("batch/transfers.jsonl") == whole.book("batch/transfers.jsonl")
    assert len(place.book("batch/transfers.jsonl")) == 1


# --- download -----------------------------------------------------------------------------------------


def test_a_download_that_is_killed_goes_on_behind_its_last_checkpoint(places) -> None:
    whole = uninterrupted(places("whole", "download"))
    place: Place = places("killed", "download")

    def pieces() -> list[int]:
        return place.book("downloads/pieces.log")

    def passed() -> int:
        return max((event.value for event in place.of_kind("NodeCheckpointed")), default=0)

    process = place.run()
    for number in (3, 25):
        kill_when(process, lambda number=number: passed() >= number)
        asked, safe = len(pieces()), passed()
        process = place.resume()
        kill_when(process, lambda asked=asked: len(pieces()) > asked)
        assert min(pieces()[asked:]) >= safe
        process = place.resume()
    assert end(process)[0] == 0
    place.assert_like(whole)
    assert (place.folder / "downloads/film").read_bytes() == (whole.folder / "downloads/film").read_bytes()
    assert len(pieces()) <= 40 + 4, "a kill costs one piece at most"
    (note,) = (place.folder / "out/download/download/artifacts/keep").glob("note.json")
    assert json.loads(note.read_text())["sha256"] == place.got().state["sha256"]


# --- order --------------------------------------------------------------------------------------------


def test_a_plan_that_is_killed_asks_once_charges_once_and_takes_the_same_branch(places) -> None:
    whole = uninterrupted(places("whole", "order"))
    assert whole.got().status == "waiting"
    whole.answer("charge", "approve")
    uninterrupted(whole)
    place: Place = places("killed", "order")
    kill_when(place.begin(place.file), lambda: bool(place.book("order/reservations.jsonl")))
    for _ in range(2):
        assert end(place.begin(place.file))[0] == 0, "it waits for the approval"
    assert place.book("order/charges.jsonl") == [], "nobody has approved it yet"
    place.answer("charge", "approve")
    kill_when(place.begin(place.file), lambda: bool(place.book("order/charges.jsonl")))
    kill_when(place.begin(place.file), lambda: bool(place.of_kind("GuardEvaluated")))
    assert end(place.begin(place.file))[0] == 0
    place.assert_like(whole)
    assert place.book("order/charges.jsonl") == [{"key": "charge-4711", "cents": 12500}]
    for kind in ("GuardEvaluated", "QuestionAsked", "OutputVerified"):
        assert len(place.of_kind(kind)) == len(whole.of_kind(kind)) == 1
    assert {name for name, node in place.got().nodes.items() if node.status == "skipped"} == {"hold"}


# --- parcels ------------------------------------------------------------------------------------------


def test_an_order_that_is_killed_pays_once_and_packs_every_parcel_once(places) -> None:
    whole = uninterrupted(places("whole", "parcels"))
    place: Place = places("killed", "parcels")
    kill_when(place.run(), lambda: bool(place.book("parcels/calls.jsonl")))
    kill_when(place.resume(), lambda: bool(place.book("parcels/charges.jsonl")))
    kill_when(place.resume(), lambda: len(place.book("parcels/parcels.jsonl")) >= 2)
    assert end(place.resume())[0] == 0
    place.assert_like(whole)
    for book in ("charges", "parcels"):
        done = [entry | {"key": ""} for entry in place.book(f"parcels/{book}.jsonl")]
        assert Counter(map(str, done)) == Counter(
            str(entry | {"key": ""}) for entry in whole.book(f"parcels/{book}.jsonl")
        )
    started = [event.run for event in place.of_kind("ChildStarted")]
    assert len(started) == len(set(started)) == 5
    assert sorted(event.run for event in place.of_kind("ChildEnded")) == sorted(started)


def test_an_order_whose_card_is_declined_names_the_payment_and_goes_on_when_that_is_mended(places) -> None:
    place: Place = places("declined", "parcels")
    given = '{"card": "declined"}'
    command = ("-m", "holdfast.cli", "run", place.file, "--run-id", "parcels", "--input", given)
    code, said = end(place.begin(*command))
    (child,) = (event.run for event in place.of_kind("ChildStarted"))
    assert (code, child in said) == (FAILED, True)
    code, said = end(place.begin("-m", "holdfast.cli", "edit", child, '{"card": "valid"}'))
    assert code == 0, said
    code, said = end(place.begin("-m", "holdfast.cli", "resume", child, f"{place.file}:payment"))
    assert code == 0, said
    assert end(place.resume())[0] == 0
    assert len(place.book("parcels/charges.jsonl")) == 1
    assert place.got().state["receipt"] == "4.00 euros"


# --- all of them --------------------------------------------------------------------------------------


def test_every_example_is_told_of_and_tested() -> None:
    told = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    tests = Path(__file__).read_text(encoding="utf-8")
    assert NAMES == ["agent", "download", "etl", "order", "parcels"]
    for name in NAMES:
        assert f"[{name}.py]({name}.py)" in told
        assert f'places("killed", "{name}")' in tests
