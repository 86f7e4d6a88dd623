"""Receipts with real processes: killed between a commit and its receipt, without space, and from the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import forked
import holdfast as hf
from holdfast.core.definition import Definition
from holdfast.documents import receipts, run_folder
from holdfast.storage.rows import open_row
from holdfast.storage.sqlite.store import SqliteStore

PROGRAM = Path(__file__).parent / "programs" / "filed.py"
PATIENCE_S = 60
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


class Desk:
    """A store and a RUN_BASE, and processes that use them."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "runs.db"
        self.base = folder / "base"
        self.folder = run_folder.run_folder(self.base, "filed", "filed")

    def call(self, verb: str, *options: str, store: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(PROGRAM), verb, store or str(self.store), str(self.base), *options]
        return _call(command)

    def holdfast(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast.cli", *words, "--store", str(self.store)]
        return _call(command, **variables)

    def open(self) -> None:
        """Open an engine and close it again."""
        hf.runs(store=self.store, run_base=self.base)

    def stands(self) -> dict[str, bytes]:
        return {
            file.relative_to(self.folder).as_posix(): file.read_bytes()
            for file in sorted(self.folder.rglob("*.json"))
        }

    def by_the_log(self) -> dict[str, bytes]:
        store = SqliteStore(self.store)

        def lookup(fingerprint: str) -> Definition | None:
            found = store.definition(fingerprint)
            return None if found is None else msgspec.json.decode(found, type=Definition)

        try:
            log = [open_row(row, store.blobs) for row in store.events("filed")]
            return receipts.documents(store.run("filed"), log, lookup)
        finally:
            store.close()

    def read(self, name: str) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.folder / name).read_bytes())
        return read


def _call(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        command,
        env={**ENVIRONMENT, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def _may_mount() -> bool:
    return shutil.which("unshare") is not None and _call(["unshare", "-rm", "true"]).returncode == 0


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.parametrize("name", ["receipts/one-engine.1.1.1.json", "handoffs/three-engine.json", "run.json"])
def test_a_process_killed_between_commit_and_receipt_owes_it_to_the_next_one(desk: Desk, name: str) -> None:
    killed = desk.call("run", "--die", name)
    assert killed.returncode == -signal.SIGKILL
    assert name not in desk.stands()
    desk.open()
    assert desk.stands() == desk.by_the_log()
    resumed = desk.call("resume")
    assert (resumed.returncode, resumed.stdout) == (0, "completed\n"), resumed.stderr
    assert desk.stands() == desk.by_the_log()
    assert not list(desk.base.rglob(f"{run_folder.TEMPORARY}*"))


def test_a_node_that_died_leaves_its_files_and_an_interrupted_receipt(desk: Desk) -> None:
    assert desk.call("run", "--die-in", "two").returncode == -signal.SIGKILL
    assert desk.call("resume").stdout == "completed\n"
    first, second = (desk.read(f"receipts/two-engine.1.1.{attempt}.json") for attempt in (1, 2))
    assert (first["status"], first["lost"], second["status"]) == ("interrupted", True, "succeeded")
    artifacts = desk.folder / "artifacts"
    assert (artifacts / "two" / "notes" / "made.txt").read_text() == "by two in attempt 2"
    assert (artifacts / "two@1.1.1" / "notes" / "made.txt").read_text() == "by two in attempt 1"
    assert list(second["artifacts"]) == ["notes/made.txt"]
    assert desk.stands() == desk.by_the_log()


@pytest.mark.skipif(not _may_mount(), reason="no small file system can be mounted here")
def test_a_run_without_space_for_receipts_goes_on_and_they_are_made_later(desk: Desk) -> None:
    desk.base.mkdir()
    mounted = 'mount -t tmpfs -o size=16k tmpfs "$1" && shift && exec "$@"'
    program = [sys.executable, str(PROGRAM), "run", str(desk.store), str(desk.base), "--no-artifacts"]
    ran = _call(["unshare", "-rm", "sh", "-c", mounted, "sh", str(desk.base), *program])
    assert (ran.returncode, ran.stdout) == (0, "completed\n"), ran.stderr
    assert ran.stderr.count("No space left on device") == 1
    assert "The run continues" in ran.stderr
    assert desk.stands() == {}
    desk.open()
    assert desk.stands() == desk.by_the_log()


# --- the command line ---------------------------------------------------------------------------------


def test_the_command_makes_what_is_missing_and_says_so(desk: Desk) -> None:
    assert desk.call("run").returncode == 0
    before = desk.stands()
    assert before == desk.by_the_log()
    well = desk.holdfast("receipts", "filed", "--run-base", str(desk.base))
    assert (well.returncode, "all match the log" in well.stdout) == (0, True), well.stderr
    (desk.folder / "receipts" / "two-engine.json").unlink()
    torn = desk.folder / "handoffs" / "one-engine.1.1.1.json"
    torn.write_bytes(torn.read_bytes()[:77])
    told = desk.holdfast("receipts", "filed", HOLDFAST_RUN_BASE=str(desk.base))
    assert told.returncode == 0, told.stderr
    assert "was missing" in told.stdout
    assert "was damaged" in told.stdout
    assert desk.stands() == before
    (desk.folder / "run.json").unlink()
    as_json = json.loads(desk.holdfast("receipts", "filed", "--run-base", str(desk.base), "--json").stdout)
    assert (as_json["missing"], as_json["torn"], as_json["different"]) == (["run.json"], [], [])


def test_the_command_asks_for_a_folder_and_for_a_run_that_is_there(desk: Desk) -> None:
    assert desk.call("run").returncode == 0
    nowhere = desk.holdfast("receipts", "filed")
    assert nowhere.returncode == 2
    assert "--run-base" in nowhere.stderr
    unknown = desk.holdfast("receipts", "filde", "--run-base", str(desk.base))
    assert unknown.returncode == 3
    assert "filed" in unknown.stderr
    blocked = desk.base.with_name("file")
    blocked.write_text("")
    refused = desk.holdfast("receipts", "filed", "--run-base", str(blocked))
    assert refused.returncode == 2
    assert "cannot be written" in refused.stderr


def test_commands_that_execute_take_a_run_base_and_those_that_look_write_nothing(
    desk: Desk, tmp_path: Path
) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text(
        "import holdfast as hf\n"
        "graph = hf.Graph('small', dict)\n"
        "@graph.node\n"
        "def only(state): return {'a': 1}\n"
        "flow = graph.chain(hf.START, 'only', hf.END).compile()\n"
    )
    ran = desk.holdfast("run", str(flow), "--run-id", "s", "--run-base", str(desk.base))
    assert ran.returncode == 0, ran.stderr
    folder = run_folder.run_folder(desk.base, "s", "small")
    assert json.loads((folder / "receipts" / "only-engine.json").read_bytes())["status"] == "succeeded"
    (folder / "receipts" / "only-engine.json").unlink()
    assert desk.holdfast("show", "s", HOLDFAST_RUN_BASE=str(desk.base)).returncode == 0
    assert not (folder / "receipts" / "only-engine.json").exists()
