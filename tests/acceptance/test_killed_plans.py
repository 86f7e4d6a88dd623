"""Real processes that execute a plan and are killed: between a guard and the task that it leads to, at every other append, and
while the question of a policy waits. Whatever is killed, the run decides everything once, and needs only the capabilities.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import forked
import holdfast as hf
from holdfast.errors import RunNotFound
from holdfast.reading.ledger import decisions, read_ledger
from holdfast.storage.rows import open_row
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.checker import check

PROGRAM = Path(__file__).parent / "programs" / "planned.py"
RUN_ID = "planned"
PATIENCE_S = 60
ROUNDS_MAX = 12

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


def program() -> ModuleType:
    """The program as another process has it that knows no plan."""
    spec = importlib.util.spec_from_file_location("planned", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Depot:
    """A store, a witness, and the processes that use them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path, self.witness = folder / "runs.db", folder / "witness.jsonl"

    def begin(self, verb: str, *options: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), verb, str(self.path), str(self.witness), *map(str, options)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return forked.Popen(command, text=True, env=ENVIRONMENT, **pipes)

    def appends(self, verb: str) -> int:
        """Let a process do this, and return how many appends it made."""
        process = self.begin(verb)
        said, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
        return int(said)

    def kill(self, verb: str, moment: str, number: int) -> None:
        """Let a process do this until it dies at its append with this number."""
        process = self.begin(verb, moment, number)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == -signal.SIGKILL, errors

    def use(self, do: Callable[[hf.Engine, ModuleType], Awaitable[Any]]) -> None:
        """Do something with an engine of this process, which has only the capabilities, and with the program."""
        resources, known = {"witness": str(self.witness)}, program()

        async def main() -> None:
            async with hf.Engine(str(self.path), flows=[known.depot], resources=resources) as engine:
                await do(engine, known)

        asyncio.run(main())

    def create(self) -> None:
        self.use(lambda engine, known: engine.start(known.depot.plan(known.DOCUMENT), run_id=RUN_ID))

    def start(self) -> None:
        """Execute the run to its first question."""
        self.create()
        self.use(lambda engine, known: engine.resume(RUN_ID))

    def answer(self) -> None:
        async def approve(engine: hf.Engine, known: ModuleType) -> None:
            for found in await engine.questions(RUN_ID):
                await engine.answer(RUN_ID, found.question.key, found.question.options[0], by="ann")

        self.use(approve)

    def carry_on(self) -> None:
        """Resume and answer, with an engine that knows nothing each time, until the run is over."""
        for _ in range(ROUNDS_MAX):
            if self.status == "completed":
                return
            self.use(lambda engine, known: engine.resume(RUN_ID))
            self.answer()
        raise AssertionError(f"the run is {self.status}")

    @property
    def status(self) -> str:
        """The status of the run; empty if it does not exist."""
        try:
            return self._read(lambda store: store.run(RUN_ID).status)
        except RunNotFound:
            return ""

    def rows(self, *kinds: str) -> list[Any]:
        return self._read(lambda store: store.events(RUN_ID, kinds=kinds))

    def asked(self) -> list[Any]:
        """The questions that were asked; a long one is stored in a compressed form."""
        rows = self.rows("QuestionAsked")
        return self._read(lambda store: [open_row(row, store.blobs).event for row in rows])

    def decided(self) -> list[dict[str, Any]]:
        return self._read(lambda store: decisions(read_ledger(store, RUN_ID)))

    def _read(self, look: Callable[[SqliteStore], Any]) -> Any:
        store = SqliteStore(self.path)
        try:
            return look(store)
        finally:
            store.close()

    def calls(self) -> list[str]:
        """The tasks whose capability was called, in order."""
        lines = self.witness.read_text().splitlines() if self.witness.exists() else []
        return [told["node"] for told in map(json.loads, lines) if told["what"] == "enter"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Depot:
    """A run that nobody killed."""
    depot = Depot(tmp_path_factory.mktemp("undisturbed"))
    depot.start()
    depot.answer()
    depot.carry_on()
    return depot


def require_the_same(depot: Depot, undisturbed: Depot) -> None:
    """Nothing was decided twice or differently, and the log agrees with what the tasks saw."""
    assert depot.decided() == undisturbed.decided()
    assert check(depot.path, depot.witness) == []
    assert [row.node for row in depot.rows("GuardEvaluated")] == ["look", "pay"]
    assert [row.node for row in depot.rows("NodeReturned")] == ["pay"]
    assert len(depot.rows("NodesSkipped")) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_killed_at_any_append_before_the_first_question_changes_no_decision(
    moment: str, undisturbed: Depot, tmp_path: Path
) -> None:
    appends = Depot(tmp_path / "counted").appends("run")
    for number in range(1, appends + 1):
        depot = Depot(tmp_path / f"{number}")
        depot.kill("run", moment, number)
        if not depot.status:
            depot.start()  # the process died before the run was created
        depot.carry_on()
        require_the_same(depot, undisturbed)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_killed_at_any_append_around_the_effect_changes_no_decision(
    moment: str, undisturbed: Depot, tmp_path: Path
) -> None:
    """The effect is not idempotent: where it may or may not have happened, the run asks first."""
    counted = Depot(tmp_path / "counted")
    counted.start()
    counted.answer()
    appends = counted.appends("resume")
    for number in range(1, appends + 1):
        depot = Depot(tmp_path / f"{number}")
        depot.start()
        depot.answer()
        depot.kill("resume", moment, number)
        called = depot.calls().count("pay")
        depot.carry_on()
        require_the_same(depot, undisturbed)
        asked = [found for found in depot.asked() if "Retry it, skip it" in found.text]
        assert depot.calls().count("pay") == called + (not called) + (called * len(asked))


def test_a_process_is_killed_between_a_guard_and_the_task_that_it_leads_to(
    undisturbed: Depot, tmp_path: Path
) -> None:
    """The append with the verdict is durable, and the task was not called."""
    depot, number = Depot(tmp_path / "0"), 0
    while not depot.status or not depot.rows("GuardEvaluated"):
        number += 1
        depot = Depot(tmp_path / f"{number}")
        depot.kill("run", "after", number)
    assert "ship" not in depot.calls()
    evaluated = depot.rows("GuardEvaluated")
    depot.carry_on()
    assert depot.rows("GuardEvaluated")[:1] == evaluated
    require_the_same(depot, undisturbed)


@pytest.mark.parametrize("question", [1, 2], ids=["before the effect", "after the effect"])
def test_a_worker_is_killed_while_the_question_of_a_policy_waits(
    question: int, undisturbed: Depot, tmp_path: Path
) -> None:
    depot = Depot(tmp_path)
    depot.create()
    worker = depot.begin("work")
    try:
        wait_until(lambda: depot.status == "waiting")
        if question == 2:
            depot.answer()
            wait_until(lambda: len(depot.rows("QuestionAsked")) == 2 and depot.status == "waiting")
    finally:
        worker.kill()
        worker.communicate()
    depot.carry_on()
    require_the_same(depot, undisturbed)
    assert depot.calls().count("pay") == 1


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, "it does not come to this"
        time.sleep(0.05)
