"""The care of a store as an operator meets it: the commands, real files, a real PostgreSQL, and processes that are killed in the
middle of it.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

import forked
from command_line import Cli, caller, furnish
from holdfast.cli import flow_files
from holdfast.cli.exits import Exit
from holdfast.errors import FenceLost
from holdfast.reading import verification
from holdfast.storage.contract import Query
from holdfast.storage.failpoints import FAILPOINTS, OF_UPKEEP
from holdfast.storage.files.restoring import back_up, restore
from holdfast.storage.leases import this_process
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.appends import Log
from postgres_server import PostgresServer, _binaries

FLOW = """
from dataclasses import dataclass, field
from typing import Annotated
import holdfast as hf
from holdfast import END, START, Graph, append

@dataclass
class Work:
    rounds: int = 8
    mode: str = ""
    blob: str = ""
    log: Annotated[list[int], append] = field(default_factory=list)

graph = Graph("work", Work)

@graph.node
async def turn(state, ctx):
    if state.mode == "ask" and ctx.iteration == 3:
        await ctx.ask("go on?", options=["yes", "no"])
    if state.mode == "fail" and ctx.iteration == state.rounds:
        raise ValueError("no luck")
    return {"log": [ctx.iteration], "blob": str(ctx.iteration) * (1_100_000 if state.mode == "big" else 1)}

graph.edge(START, "turn")
graph.branch("turn", lambda s: "turn" if len(s.log) < s.rounds else END, to=["turn", END])
flow = graph.compile()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    furnish(tmp_path, monkeypatch, work=FLOW)
    monkeypatch.setenv("HOLDFAST_PARK_AFTER", "0")
    return tmp_path


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return caller(capsys)


def started(cli: Cli, run_id: str, **given: Any) -> None:
    cli("run", "work.py", "--run-id", run_id, "--input", json.dumps(given))


def test_a_run_is_deleted_on_a_terminal_after_a_question(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    started(cli, "r")
    try:
        terminal, typed = pty.openpty()
    except OSError as fault:
        pytest.skip(f"no terminal can be opened here: {fault}")
    with os.fdopen(typed) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        for answer, code, said in (
            (b"n\n", Exit.REFUSED, "nothing was deleted"),
            (b"y\n", Exit.OK, "deleted  r  work completed"),
        ):
            os.write(terminal, answer)
            ended = cli("delete", "r")
            assert "Delete run r for good (work, completed, " in ended.err
            assert (ended.code, said in ended.out) == (code, True), ended
    os.close(terminal)
    assert cli("show", "r").code == Exit.NOT_FOUND


def test_a_run_is_deleted_without_a_terminal_only_with_yes(cli: Cli) -> None:
    started(cli, "r")
    refused = cli("delete", "r")
    assert (refused.code, "To delete it, add --yes: `holdfast delete r --yes`" in refused.err) == (
        Exit.USAGE,
        True,
    )
    assert cli("delete", "r", "--yes", "--json").json["run_id"] == "r"
    started(cli, "s", mode="ask")
    refused = cli("delete", "s", "--yes")
    assert (refused.code, "it is waiting. Cancel it first: `holdfast cancel s`" in refused.err) == (
        Exit.REFUSED,
        True,
    )
    assert cli("delete", "none", "--yes").code == Exit.NOT_FOUND


def test_a_run_that_cannot_be_deleted_is_refused_before_anything_is_asked(cli: Cli) -> None:
    started(cli, "r", mode="ask")
    refused = cli("delete", "r")
    assert (refused.code, "Cancel it first: `holdfast cancel r`" in refused.err) == (Exit.REFUSED, True)
    assert "--yes" not in refused.err
    assert [cli(*words).code for words in (("cancel", "r"), ("delete", "r", "--yes"))] == [0, 0]


def test_a_file_that_exists_is_not_overwritten_and_is_named_for_what_was_to_be_written(cli: Cli) -> None:
    started(cli, "r")
    for words, what in ((("archive", "r", "--to", "copy"), "an archive"), (("backup", "copy"), "a backup")):
        Path("copy").touch()
        assert f"exists already, and {what} overwrites nothing" in cli(*words).err


def test_a_run_that_was_forked_is_deleted_after_its_fork(cli: Cli) -> None:
    started(cli, "r")
    cli("fork", "r", "--run-id", "f")
    refused = cli("delete", "r", "--yes")
    assert (refused.code, "needs its events. Delete 'f' first." in refused.err) == (
        Exit.REFUSED,
        True,
    )
    refused = cli("delete", "f", "--yes")
    assert "Cancel it first: `holdfast cancel f`" in refused.err
    assert [
        cli(*words).code for words in (("cancel", "f"), ("delete", "f", "--yes"), ("delete", "r", "--yes"))
    ] == [0, 0, 0]


def opened(path: Path | str = ".holdfast/runs.db") -> SqliteStore:
    return SqliteStore(path)


# --- prune -------------------------------------------------------------------------------------------


def test_a_run_is_pruned_and_compacted_and_every_command_says_where_the_rest_is(
    cli: Cli, place: Path
) -> None:
    started(cli, "r", rounds=20, mode="fail")
    assert "5 checkpoints kept" in cli("prune", "r").out
    done = cli("prune", "r", "--keep-last", "3", "--compact", "--archive", "archive/")
    assert "a base replaces" in done.out
    assert "archived at" in done.out
    for words in (("verify",), ("verify", "r"), ("events", "r"), ("checkpoints", "r")):
        ended = cli(*words)
        assert ended.code == 0
        assert "were compacted on" in ended.out + ended.err
        assert str(place / "archive") in ended.out + ended.err
    receipts = cli("receipts", "r", "--run-base", "files")
    assert (receipts.code, "were compacted on" in receipts.err) == (0, True)
    for verb in ("state", "fork"):
        refused = cli(verb, "r@2")
        assert refused.code in (Exit.NOT_FOUND, Exit.REFUSED)
        assert "archived at" in refused.err
    assert cli("resume", "r@2", "work.py").code == Exit.REFUSED
    (file,) = (place / "archive").iterdir()
    assert cli("unarchive", str(file), "--store", "other.db").code == 0
    assert len(cli("checkpoints", "r", "--store", "other.db", "--json").json) > 3
    assert cli("verify", "--store", "other.db").code == 0


def test_old_runs_are_archived_and_deleted_and_what_stays_is_told(cli: Cli, place: Path) -> None:
    for number in range(4):
        started(cli, f"r{number}")
    started(cli, "failed", mode="fail")
    cli("fork", "r1", "--run-id", "fork")
    trial = cli("prune", "--keep", "1", "--dry-run")
    assert "2 runs would be deleted, 2 kept" in trial.out
    assert len(cli("runs", "--json").json) == 6
    done = cli("prune", "--keep", "1", "--archive", "archive/")
    assert "2 runs deleted, 2 kept" in done.out
    assert "r1: run 'fork' was forked from it" in done.out
    assert "r3: among the newest 1 completed runs of work" in done.out
    assert {row["id"] for row in cli("runs", "--json").json} == {"r1", "r3", "failed", "fork"}
    assert cli("verify").code == 0
    for file in (place / "archive").iterdir():
        assert cli("unarchive", str(file)).code == 0
    assert cli("verify").code == 0
    assert len(cli("runs", "--json").json) == 6


def test_the_policies_of_the_project_are_used(cli: Cli, place: Path) -> None:
    for number in range(3):
        started(cli, f"r{number}")
    assert cli("prune").code == Exit.USAGE
    (place / "pyproject.toml").write_text(
        '[tool.holdfast.retention]\narchive = "kept/"\n[[tool.holdfast.retention.policies]]\nflow = "work"\nkeep = 2\n'
    )
    told = cli("prune", "--json").json
    assert [choice["run_id"] for choice in told["deleted"]] == ["r0"]
    assert [path.name[:3] for path in (place / "kept").iterdir()] == ["r0-"]


@pytest.mark.parametrize(
    "words",
    [
        ("prune", "--older-than", "soon"),
        ("prune", "--status", "running", "--keep", "1"),
        ("prune", "--status", "gone", "--keep", "1"),
        ("prune", "--flow", "work"),
        ("prune", "r", "--keep", "3"),
        ("prune", "r", "--archive", "x"),
        ("prune", "--compact", "--keep", "3"),
        ("restore", "nothing.here", "--store", "new.db"),
        ("restore", "work.py", "--store", "new.db"),
        ("unarchive", "nothing.here", "--store", "new.db"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_way_out(cli: Cli, words: tuple[str, ...]) -> None:
    started(cli, "r")
    ended = cli(*words)
    assert ended.code in (Exit.USAGE, Exit.STORE)
    assert ended.err.startswith("error: ")
    assert [row["id"] for row in cli("runs", "--json").json] == ["r"]


# --- doctor ------------------------------------------------------------------------------------------


def test_doctor_reports_an_altered_event_and_how_many_logs_it_has_verified(cli: Cli, place: Path) -> None:
    for run_id in ("a", "b"):
        assert cli("run", "work.py", "--run-id", run_id).code == 0
    before = cli("doctor", "--json")
    assert (before.code, before.json["ok"]) == (0, True)
    assert (before.json["verified"]["runs"], before.json["verified"]["of"]) == (2, 2)
    assert abs(before.json["verified"]["at"] - time.time()) < 100
    connection = apsw.Connection(str(place / ".holdfast" / "runs.db"))
    connection.execute(
        "update events set at = at + 1 where key = (select key << 32 | 3 from runs where run_id = 'b')"
    )
    connection.close()
    told = cli("doctor")
    assert told.code == Exit.STUCK
    assert "b: its log is not what was written: event 3 " in told.out
    assert "holdfast verify b" in told.out
    assert "logs  1 log is not what was written (all 2 runs verified), " in told.out
    (finding,) = cli("doctor", "--json").json["findings"]
    assert (finding["kind"], finding["run_id"]) == ("unreadable", "b")
    assert cli("verify", "b").code == Exit.DAMAGED


def test_doctor_tells_what_stands_still_with_the_command_that_carries_it_on(cli: Cli, place: Path) -> None:
    assert cli("run", "work.py", "--run-id", "well").code == 0
    well = cli("doctor")
    assert well.code == 0
    logs, found = well.out.splitlines()
    assert found == "✓ no problems found in the store, and no run is stuck"
    assert logs.startswith("logs  the only run verified, ")
    started(cli, "asks", mode="ask")
    waits = cli("doctor")
    assert waits.code == Exit.WAITS
    assert "asks: turn asks: go on?" in waits.out
    assert "answer asks turn yes" in waits.out
    started(cli, "failed", mode="fail")
    (place / "work.py").write_text(FLOW.replace('graph.edge(START, "turn")', 'graph.node(name="new")(lambda s: None)\n'
                                                'graph.edge(START, "new")\ngraph.edge("new", "turn")'))  # fmt: skip
    flow_files._loaded.clear()
    told = cli("doctor", "work.py", "--json")
    assert told.code == Exit.STUCK
    assert {one["run_id"]: one["kind"] for one in told.json["findings"]} == {
        "asks": "question",
        "failed": "failed",
    }
    assert "resume failed FILE.py" in json.dumps(told.json)  # work.py would be refused


def test_of_many_runs_that_stand_still_for_one_reason_doctor_tells_the_first_three(cli: Cli) -> None:
    for number in range(5):
        started(cli, f"asks{number}", mode="ask")
    started(cli, "failed", mode="fail")
    told = cli("doctor")
    assert told.code == Exit.STUCK
    assert [
        word for word in ("asks0", "asks1", "asks2", "asks3", "asks4") if f"answer {word} " in told.out
    ] == [
        "asks0",
        "asks1",
        "asks2",
    ]
    assert "question  2 more runs of flow 'work' with the same reason (--json lists all)\n" in told.out
    assert "failed  failed: " in told.out
    assert told.out.endswith("1 problem, 5 runs waiting for an answer, a signal or a resume\n")
    named = cli("doctor", "--json").json["findings"]
    assert {one["run_id"]: bool(one["remedies"]) for one in named} == {
        "failed": True,
        **{f"asks{number}": True for number in range(5)},
    }


def test_doctor_finds_a_run_whose_process_died(cli: Cli, place: Path) -> None:
    dies = 'if state.mode == "die":\n        import os; os._exit(9)\n    '
    dying = FLOW.replace('if state.mode == "ask"', dies + 'if state.mode == "ask"')
    (place / "dying.py").write_text(dying)
    ended = forked.run(
        [
            sys.executable,
            "-m",
            "holdfast.cli",
            "run",
            "dying.py",
            "--run-id",
            "cut",
            "--input",
            '{"mode": "die"}',
        ],
        check=False,
        capture_output=True,
    )
    assert ended.returncode == 9
    told = cli("doctor")
    assert told.code == Exit.STUCK
    assert "crashed" in told.out
    assert "resume cut" in told.out


# --- backups -----------------------------------------------------------------------------------------


def test_a_backup_is_restored_as_a_store_of_its_own(cli: Cli, place: Path) -> None:
    started(cli, "r", rounds=3, mode="big")
    started(cli, "asks", mode="ask")
    assert "3 blobs" in cli("backup", "copy").out
    assert stat.S_IMODE(os.stat("copy").st_mode) == 0o600
    assert cli("backup", "copy").code == Exit.USAGE
    assert cli("restore", "copy").code == Exit.USAGE  # the store is there
    assert cli("restore", "copy", "--store", "new/runs.db").code == 0
    assert cli("verify", "--store", "new/runs.db").code == 0
    assert cli("state", "r", "--store", "new/runs.db").out == cli("state", "r").out
    cli("answer", "asks", "turn", "yes", "--store", "new/runs.db")
    assert cli("resume", "asks", "work.py", "--store", "new/runs.db").code == 0
    assert cli("show", "asks", "--json").json["status"] == "waiting"
    assert sorted(path.name for path in (place / "new").iterdir() if "-" not in path.name) == [
        "runs.db",
        "runs.db.blobs",
    ]


def test_a_restored_store_gives_out_no_fence_twice(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    holder = this_process(30.0, "worker")
    store.renew(holder)
    log = Log("r", holder="worker", fence=1)
    first = log.create()
    assert store.append([first]) == [None]
    log.wrote(first)
    back_up(store, str(tmp_path / "copy"))
    generation = store.generation
    lost = store.claim("r", holder)  # this is not in the backup
    restore(str(tmp_path / "copy"), str(tmp_path / "new.db"))
    new = SqliteStore(tmp_path / "new.db")
    assert new.generation != generation
    row = new.run("r")
    assert (row.holder, row.held) == (None, False)
    assert row.fence > lost.fence
    new.renew(holder)
    assert new.claim("r", holder).fence > lost.fence + 1
    late = log.next(fence=lost.fence)
    (verdict,) = new.append([late])
    assert isinstance(verdict, FenceLost)
    for opened_store in (store, new):
        opened_store.close()


def test_a_damaged_backup_is_refused_and_leaves_nothing(cli: Cli, place: Path) -> None:
    started(cli, "r", rounds=300)
    cli("backup", "copy")
    content = bytearray(Path("copy").read_bytes())
    content[8192:12288] = b"\xff" * 4096
    Path("copy").write_bytes(content)
    assert cli("restore", "copy", "--store", "new/runs.db").code == Exit.STORE
    assert list((place / "new").iterdir()) == []


def test_a_postgres_store_is_backed_up_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = PostgresServer()
    monkeypatch.setenv("PATH", f"{_binaries()}{os.pathsep}{os.environ['PATH']}")
    try:
        server.execute("create role keeper superuser login password 'quite secret'", "create database other")
        url = server.url(user="keeper", schema="mine").replace("keeper@", "keeper:quite%20secret@")
        store = PostgresStore(url)
        log = Log("r")
        assert store.append([log.create()]) == [None]
        store.blobs.put("2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881", b"x")
        generation = store.generation
        back_up(store, str(tmp_path / "copy"))
        store.close()
        with pytest.raises(Exception, match="already") as refused:
            restore(str(tmp_path / "copy"), url)
        assert "secret" not in str(refused.value)
        there = url.replace("/postgres?", "/other?")
        with pytest.raises(Exception, match="schema=mine"):
            restore(str(tmp_path / "copy"), there.replace("schema=mine", "schema=yours"))
        assert "secret" not in restore(str(tmp_path / "copy"), there)
        new = PostgresStore(there)
        assert new.run("r").seq == 1
        assert new.blobs.get("2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881") == b"x"
        assert new.generation != generation
        new.close()
    finally:
        server.remove()


# --- killed in the middle ----------------------------------------------------------------------------

KILLED_AT = """
import os, signal, sys
from holdfast.cli.app import app
from holdfast.storage import failpoints

left = int(sys.argv[2])

def die(name):
    global left
    if name == sys.argv[1]:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

failpoints.install(die)
app(sys.argv[3:], prog_name="holdfast")
"""


def killed_at(place: Path, point: str, number: int, *words: str) -> bool:
    """Whether a command came so far that it was killed there."""
    (place / "killed.py").write_text(KILLED_AT)
    done = forked.run(
        [sys.executable, str(place / "killed.py"), point, str(number), *words],
        capture_output=True,
        text=True,
        cwd=place,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode == -signal.SIGKILL


COMMANDS: dict[str, tuple[str, ...]] = {
    "prune.": ("prune", "long", "--keep-last", "2", "--compact", "--archive", "archive/"),
    "compact.": ("prune", "long", "--keep-last", "2", "--compact", "--archive", "archive/"),
    "delete.": ("prune", "--keep", "1", "--archive", "archive/"),
    "sweep.": ("prune", "--keep", "1", "--archive", "archive/"),
    "backup.": ("backup", "copy"),
}


POINTS = [(name, 1) for name in FAILPOINTS if name.startswith(OF_UPKEEP)]
POINTS += [("delete.committed", 2)]


@pytest.mark.rotating
@pytest.mark.parametrize(("point", "number"), POINTS)
def test_a_command_that_is_killed_leaves_a_store_in_which_everything_can_be_carried_on(
    cli: Cli, place: Path, point: str, number: int
) -> None:
    started(cli, "long", rounds=12, mode="fail")
    for name in ("a", "b", "c"):
        started(cli, name, rounds=2)
    words = COMMANDS[point.partition(".")[0] + "."]
    assert killed_at(place, point, number, *words)
    assert cli("verify").code == 0
    ended = cli(*words)
    if point == "backup.named":
        assert "exists already" in ended.err
    else:
        assert ended.code == 0, ended.err
    assert cli("verify").code == 0
    store = opened()
    assert store.upkeep.facts().unswept == 0
    assert store.run("long").status == "failed"
    left = {row.run_id for row in store.runs(Query())}
    assert left == ({"long", "c"} if "--keep" in words else {"long", "a", "b", "c"})
    store.close()
    if words[0] == "backup":
        restore(str(place / "copy"), str(place / "new.db"))
        new = opened(place / "new.db")
        assert all(not verification.verify(new, row.run_id).problems for row in new.runs(Query()))
        new.close()
    (place / "work.py").write_text(FLOW.replace('raise ValueError("no luck")', "pass"))
    flow_files._loaded.clear()
    assert cli("resume", "long", "work.py").code == 0
    assert cli("state", "long").json["log"] == list(range(1, 13))
