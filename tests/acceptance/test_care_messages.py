"""What an operator is told when something is in the way: the fault, the thing and the way out, and never a defect of Holdfast."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import forked
from command_line import Cli, Ended, caller, furnish
from holdfast.cli.exits import Exit
from holdfast.errors import StoreError
from holdfast.storage.postgres import upkeep as postgres_upkeep
from holdfast.storage.sqlite.store import SqliteStore

FLOW = """
from dataclasses import dataclass, field
from typing import Annotated
from holdfast import END, START, Graph, append

@dataclass
class Work:
    rounds: int = 8
    noise: str = ""
    log: Annotated[list[int], append] = field(default_factory=list)

graph = Graph("work", Work)

@graph.node
def turn(state, ctx):
    return {"log": [ctx.iteration]}

graph.edge(START, "turn")
graph.branch("turn", lambda s: "turn" if len(s.log) < s.rounds else END, to=["turn", END])
flow = graph.compile()
"""

UNWRITABLE = Path("/proc/self")  # not even for root


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return furnish(tmp_path, monkeypatch, work=FLOW)


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return caller(capsys)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kilobytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if not shutil.which("mount") or forked.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small file system")
    yield folder
    forked.run(["umount", "-l", str(folder)], check=True)


def in_way(ended: Ended, place: Path) -> None:
    assert ended.code == Exit.STORE, ended
    for part in ("'r' was not archived to", str(place), "The run is unchanged", "another place"):
        assert part in ended.err
    assert SqliteStore(".holdfast/runs.db").run("r").status == "completed"


ARCHIVING = [
    ("archive", "r", "--to"),
    ("prune", "--keep", "0", "--archive"),
    ("prune", "r", "--keep-last", "2", "--compact", "--archive"),
]


@pytest.mark.parametrize("words", ARCHIVING)
def test_an_archive_on_a_full_disk_says_so_and_leaves_the_run(
    cli: Cli, small_disk: Path, words: tuple[str, ...]
) -> None:
    cli("run", "work.py", "--run-id", "r", "--input", json.dumps({"noise": os.urandom(100_000).hex()}))
    in_way(cli(*words, f"{small_disk}/"), small_disk)
    assert list(small_disk.iterdir()) == []


@pytest.mark.skipif(not UNWRITABLE.is_dir(), reason="there is no folder that nobody may write to")
@pytest.mark.parametrize("words", ARCHIVING)
@pytest.mark.parametrize("folder", ["", "new/"])
def test_an_archive_in_a_place_that_cannot_be_written_says_so(
    cli: Cli, words: tuple[str, ...], folder: str
) -> None:
    cli("run", "work.py", "--run-id", "r")
    in_way(cli(*words, f"{UNWRITABLE}/{folder}"), UNWRITABLE)


def test_an_archive_is_not_put_back_over_the_compacted_run(cli: Cli, place: Path) -> None:
    cli("run", "work.py", "--run-id", "r")
    cli("archive", "r", "--to", "r.zst")
    assert cli("unarchive", "r.zst").code == Exit.OK  # all of it is there
    assert cli("prune", "r", "--keep-last", "2", "--compact").code == Exit.OK
    left = len(SqliteStore(".holdfast/runs.db").events("r"))
    refused = cli("unarchive", "r.zst")
    assert refused.code == Exit.REFUSED, refused
    for part in ("compacted", "was not replaced", "--store"):
        assert part in refused.err
    assert len(SqliteStore(".holdfast/runs.db").events("r")) == left
    assert cli("unarchive", "r.zst", "--store", "other.db").code == Exit.OK
    assert len(SqliteStore("other.db").events("r")) > left


def test_a_compacted_archive_takes_nothing_from_the_whole_run(cli: Cli, place: Path) -> None:
    cli("run", "work.py", "--run-id", "r")
    cli("archive", "r", "--to", "whole.zst")
    cli("prune", "r", "--keep-last", "2", "--compact")
    cli("archive", "r", "--to", "compacted.zst")
    cli("unarchive", "whole.zst", "--store", "other.db")
    assert cli("unarchive", "compacted.zst", "--store", "other.db").code == Exit.OK
    assert SqliteStore("other.db").upkeep.trimmed("r").base == 0
    assert cli("verify", "r", "--store", "other.db").code == Exit.OK


def test_starting_a_run_again_tells_the_queue_it_is_really_in(cli: Cli) -> None:
    words = ("start", "work.py", "--run-id", "r", "--json", "--queue")
    assert cli(*words, "mail").json["queue"] == "mail"
    assert cli(*words, "other").json["queue"] == "mail"


@pytest.mark.parametrize("number", ["0", "-1"])
def test_a_worker_of_no_runs_is_refused_before_it_says_that_it_works(cli: Cli, number: str) -> None:
    refused = cli("worker", "work.py", "--until-idle", "--concurrency", number)
    assert refused.code == Exit.USAGE
    assert refused.out == ""
    assert f"--concurrency {number}" in refused.err
    assert "at least 1" in refused.err


def test_a_pg_dump_older_than_its_server_is_told_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "pg_dump"  # two versions of PostgreSQL are not to be had here
    program.write_text(
        "#!/bin/sh\necho 'pg_dump: error: aborting because of server version mismatch' >&2\nexit 1\n"
    )
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(StoreError, match=r"version mismatch\. Put the pg_dump of .* first on PATH"):
        postgres_upkeep.call("pg_dump", None)
