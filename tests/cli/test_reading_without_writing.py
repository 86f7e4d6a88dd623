"""Commands that only read work on a store that the user may not write, and leave nothing beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.storage.sqlite.store import SqliteStore

NOBODY = 65534
READS = (
    "runs",
    "show r",
    "events r",
    "state r",
    "questions",
    "checkpoints r",
    "verify r",
    "ledger r",
    "doctor",
    "recover",
)

CALLER = """
import sys
from holdfast.cli.app import app
for line in sys.stdin.read().splitlines():
    code = 0
    try:
        app(line.split(), prog_name="holdfast")
    except SystemExit as left:
        code = left.code or 0
    print(f"[{line.split()[0]}: {code}]", flush=True)
"""
LOOKER = """
import sys
from holdfast.errors import HoldfastError
from holdfast.storage.urls import open_store
from holdfast.storage.contract import Query
store = open_store(sys.argv[1], reads=True)
for line in sys.stdin:
    try:
        print(len(list(store.runs(Query(limit=10)))), flush=True)
    except HoldfastError as fault:
        print(type(fault).__name__, flush=True)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as made:
        Path(made).chmod(0o755)
        yield Path(made)
        Path(made).chmod(0o755)


def as_another(*command: str) -> subprocess.Popen[str]:
    """Start Python as a user who owns nothing here."""
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    environment = {
        "PATH": os.defpath,
        "HOME": "/nonexistent",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_COLOR": "1",
    }
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", *command],
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        **user,  # type: ignore[call-overload]
    )


def commands(store: Path, *words: str) -> str:
    """What these commands print, and the exit code of each."""
    with as_another(CALLER) as process:
        said, _ = process.communicate("\n".join(f"{line} --store {store}" for line in words))
    return str(said)


def asking() -> hf.Flow[dict[str, object]]:
    return Graph("asking", dict).ask("may", "Go on?").chain(START, "may", END).compile()


def kept(folder: Path) -> Path:
    """A store with a run that waits, which no process has open."""
    path = folder / "runs.db"
    hf.run(asking(), {}, run_id="r", store=path)
    return path


def lock(*paths: Path, folder: int) -> None:
    for path in paths:
        path.chmod(0o444)
        path.parent.chmod(folder)


@pytest.mark.parametrize("mode", [0o777, 0o555], ids=["file", "folder"])
def test_every_command_that_reads_works_and_leaves_nothing_beside_the_store(folder: Path, mode: int) -> None:
    path = kept(folder)
    lock(path, folder=mode)
    said = commands(path, *READS)
    assert "Go on?" in said
    codes = dict(line.strip("[]").split(": ") for line in said.splitlines() if line.startswith("["))
    assert [verb for verb in codes if codes[verb] != "0"] == ["doctor"]
    assert (codes["doctor"], "journal_mode" in said) == (
        "7",
        False,
    )  # it waits for an answer, and the store is sound
    assert len(codes) == len(READS)
    assert [file.name for file in folder.iterdir() if file.name.startswith("runs.db-")] == []


def test_a_command_that_writes_names_the_file_that_cannot_be_written(folder: Path) -> None:
    path = kept(folder)
    lock(path, folder=0o555)
    said = commands(path, "answer r may approve", "cancel r", "worker")
    assert said.count(f"{path} cannot be written") + said.count(f"{path} cannot be opened for writing") >= 2
    assert "Nothing was written" in said
    assert "[answer: 0]" not in said


def test_the_latest_changes_of_a_live_writer_are_read(folder: Path) -> None:
    path = folder / "runs.db"
    store = SqliteStore(path)
    try:
        hf.run(asking(), {}, run_id="r", store=store)
        lock(path, folder / "runs.db-wal", folder / "runs.db-shm", folder=0o555)
        said = commands(path, "runs")
    finally:
        store.close()
    assert "asking  waiting" in said
    assert "[runs: 0]" in said


def test_a_log_whose_index_cannot_be_made_is_refused_with_what_must_be_writable(folder: Path) -> None:
    path = folder / "runs.db"
    store = SqliteStore(path)
    try:
        hf.run(asking(), {}, run_id="r", store=store)
        copy = folder / "copy"
        copy.mkdir()
        for name in ("runs.db", "runs.db-wal"):
            (copy / name).write_bytes((folder / name).read_bytes())
    finally:
        store.close()
    lock(copy / "runs.db", copy / "runs.db-wal", folder=0o555)
    said = commands(copy / "runs.db", "runs")
    copy.chmod(0o755)
    assert f"its latest changes are in {copy}/runs.db-wal" in said
    assert f"allow this user to write to {copy}." in said


def test_reading_stops_when_a_process_begins_to_write(folder: Path) -> None:
    path = kept(folder)
    folder.chmod(0o755)
    path.chmod(0o644)
    with as_another(LOOKER, str(path)) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def look() -> str:
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert look() == "1"
        hf.run(asking(), {}, run_id="s", store=path)
        assert look() == "StoreBusy"
        process.stdin.close()


def test_a_store_in_a_folder_that_the_user_may_not_enter_is_not_called_missing(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    path = kept(inner)
    inner.chmod(0o000 if os.geteuid() else 0o700)
    said = commands(path, "runs")
    inner.chmod(0o700)
    assert f"this user may not look into {inner}" in said
    assert "there is no store" not in said
