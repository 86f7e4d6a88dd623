"""Disks that are full, files that are damaged, folders that are not ours, logs that somebody changed: one clear
message, and no run lost or half-written.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.core.event_encoding import Encoded
from holdfast.errors import SchemaTooNew, StoreCorrupt, StoreUnusable
from holdfast.reading import verification
from holdfast.storage.contract import Append, View
from holdfast.storage.leases import this_process
from holdfast.storage.rows import seal
from holdfast.storage.sqlite.store import SqliteStore

PROGRAM = Path(__file__).parent / "programs" / "pages.py"
PAGES = 40
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


def counting() -> Flow[dict[str, Any]]:
    graph = Graph("counting")
    graph.node(name="count")(lambda state: {"n": state.get("n", 0) + 1, "text": "x" * 3000})
    graph.edge(START, "count").branch(
        "count", lambda state: "count" if state["n"] < 5 else END, to=["count", END]
    )
    return graph.compile()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a completed run `r` and a fork `f` of it that was rewound."""
    path = tmp_path / "runs.db"
    flow = counting()
    hf.run(flow, {"n": 0}, run_id="r", store=path, labels={"team": "red"})
    place = hf.checkpoints("r", store=path)[2].seq
    hf.fork("r", checkpoint=place, run_id="f", store=path)
    hf.pause("f", store=path, flows=[flow])
    hf.resume("f", checkpoint=place + 1, store=path, flows=[flow])
    return path


def problems(path: Path, run_id: str = "r") -> list[str]:
    opened = SqliteStore(path)
    try:
        return verification.verify(opened, run_id).problems
    finally:
        opened.close()


# --- the disk is full -----------------------------------------------------------------------------------


def write_pages(store: Path, witness: Path, *limit: int) -> tuple[int, str]:
    command = [sys.executable, str(PROGRAM), str(store), str(witness), *map(str, limit)]
    done = forked.run(
        command,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENVIRONMENT,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = (
        shutil.which("mount")
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
    )
    if not mounted:
        pytest.skip(
            "only root may mount a small file system; the limit on a file's size is tried in its place"
        )
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_run_on_a_full_disk_stops_with_a_word_and_goes_on_when_there_is_room(
    small_disk: Path, tmp_path: Path
) -> None:
    path, witness = small_disk / "runs.db", tmp_path / "witness"
    code, said = write_pages(path, witness)
    assert (code, said.count("\n")) == (3, 1), said
    assert said.startswith("StoreFull: run 'book'")
    for part in ("no space left", "resume"):
        assert part in said
    # Either the events or the lease could not be stored first.
    assert "the run was stopped" in said or "nothing more is started" in said
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    kept = len(hf.events("book", kind="NodeCompleted", store=path))
    assert 0 < kept < PAGES
    assert problems(path, "book") == []
    assert write_pages(path, witness) == (0, f"completed {PAGES}\n")
    assert set(once_each(witness, kept)) == {1}
    assert problems(path, "book") == []


def once_each(witness: Path, kept: int) -> list[int]:
    """How often each of the first iterations ran."""
    times = Counter(map(int, witness.read_text().split()))
    return [times[iteration] for iteration in range(1, kept + 1)]


def test_a_file_that_may_not_grow_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    path, witness = tmp_path / "runs.db", tmp_path / "witness"
    code, said = write_pages(path, witness, 400_000)
    assert (code, said.count("\n")) == (3, 1), said
    assert str(path) in said
    kept = len(hf.events("book", kind="NodeCompleted", store=path))
    assert 0 < kept < PAGES
    assert write_pages(path, witness) == (0, f"completed {PAGES}\n")
    assert set(once_each(witness, kept)) == {1}
    assert problems(path, "book") == []


def fill_up(handle: int) -> None:
    while True:
        os.write(handle, b"x" * 1024)


def test_a_disk_too_full_for_a_first_event_leaves_no_run(small_disk: Path, tmp_path: Path) -> None:
    path = small_disk / "runs.db"
    SqliteStore(path).close()
    fill = small_disk / "fill"
    handle = os.open(fill, os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="No space left"):
        fill_up(handle)
    os.close(handle)
    code, said = write_pages(path, tmp_path / "witness")
    assert (code, said.count("\n")) == (3, 1), said
    fill.unlink()
    assert hf.runs(store=path) == []
    assert not (tmp_path / "witness").exists()


# --- the file is not what it was ------------------------------------------------------------------------


def every_verb(path: Path) -> Iterator[tuple[str, Any]]:
    flow = counting()
    yield "run", lambda: hf.run(flow, {"n": 0}, run_id="new", store=path)
    yield "start", lambda: hf.start(flow, {"n": 0}, run_id="other", store=path)
    yield "resume", lambda: hf.resume("r", replay=True, store=path, flows=[flow])
    for verb in ("get", "events", "checkpoints", "state", "wait", "fork", "retry", "cancel", "pause"):
        yield verb, lambda verb=verb: getattr(hf, verb)("r", store=path)
    yield "runs", lambda: hf.runs(store=path)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"This is not a database, and it is long enough to be one." * 100, StoreCorrupt),
        (b"SQLite format 3\0" + b"\xff" * 5000, StoreCorrupt),
    ],
    ids=["text", "a torn header"],
)
def test_a_file_that_is_no_store_is_refused_by_every_verb_and_left_alone(
    tmp_path: Path, content: bytes, kind: type[Exception]
) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(content)
    for verb, call in every_verb(path):
        with pytest.raises(kind, match=r"runs\.db") as refused:
            call()
        assert str(refused.value).count("\n") == 0, verb
    assert path.read_bytes() == content


def test_a_store_cut_in_half_is_found_damaged(store: Path) -> None:
    whole = store.read_bytes()
    store.write_bytes(whole[: len(whole) // 2])
    for run_id in ("r", "f"):
        with pytest.raises(StoreCorrupt, match=r"runs\.db is damaged"):
            hf.get(run_id, store=store)


def test_a_store_of_a_newer_holdfast_is_refused_and_left_alone(store: Path) -> None:
    tamper(store, "pragma user_version = 999")
    before = store.read_bytes()
    for _, call in every_verb(store):
        with pytest.raises(SchemaTooNew, match="999"):
            call()
    assert store.read_bytes() == before


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    tamper(path, "create table theirs (id integer)", "pragma user_version = 3")
    before = path.read_bytes()
    for _, call in every_verb(path):
        with pytest.raises(StoreUnusable, match="another program"):
            call()
    assert path.read_bytes() == before


# --- the path is not ours -------------------------------------------------------------------------------


def test_a_path_under_a_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnusable, match="Choose a path"):
        hf.runs(store=tmp_path / "file" / "runs.db")


def test_a_folder_in_place_of_the_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=r"is a folder.*runs\.db"):
        hf.runs(store=tmp_path)


@pytest.mark.parametrize("there", [True, False], ids=["a store", "nothing there"])
def test_a_read_only_folder_is_refused_with_the_way_out(small_disk: Path, there: bool) -> None:
    path = small_disk / "runs.db"
    if there:
        hf.run(counting(), {"n": 4}, run_id="r", store=path)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreUnusable, match=r"runs\.db") as refused:
        hf.run(counting(), {"n": 4}, run_id="s", store=path)
    assert "Choose a path" in str(refused.value) or "permissions" in str(refused.value)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_leave_to_write_is_refused_with_the_way_out(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreUnusable, match="Choose a path"):
        hf.runs(store=tmp_path / "runs.db")
    tmp_path.chmod(0o700)


# --- somebody changed the log -----------------------------------------------------------------------------


TAMPER = """
import apsw, sys

def flipped(blob):
    middle = len(blob) // 2
    return blob[:middle] + bytes([blob[middle] ^ 1]) + blob[middle + 1:]

database = apsw.Connection(sys.argv[1])
database.create_scalar_function("flipped", flipped)
for statement in sys.argv[2:]:
    database.execute(statement)
database.close()
"""


def tamper(path: Path, *statements: str) -> None:
    """Change a database from outside, in a process of its own. `flipped(blob)` has one bit of its middle turned."""
    forked.run([sys.executable, "-c", TAMPER, str(path), *statements], check=True)


KEY = "(select key from runs where run_id = '{run}')"


def test_what_nobody_touched_verifies(store: Path) -> None:
    assert problems(store, "r") == problems(store, "f") == []


@pytest.mark.parametrize("run", ["r", "f"])
@pytest.mark.parametrize(
    "change",
    [
        "update events set body = flipped(body) where run = {key} and kind in ('RunCreated', 'RunForked')",
        "update events set body = flipped(body) where run = {key} and kind = 'NodeCompleted'",
        "update events set at = at + 1 where run = {key} and kind = 'NodeCompleted'",
        "update events set node = 'other' where run = {key} and kind = 'NodeStarted'",
        "update events set attempt = 2 where run = {key} and kind = 'NodeStarted'",
        "update events set kind = 'NodeSkipped' where run = {key} and kind = 'NodeCompleted'",
        "delete from events where run = {key} and seq = (select min(seq) + 2 from events where run = {key})",
        "delete from events where run = {key} and seq = (select max(seq) from events where run = {key})",
        "delete from events where run = {key} and seq = (select min(seq) from events where run = {key})",
        "delete from events where run = {key}",
    ],
    ids=[
        "a byte",
        "a packed byte",
        "a time",
        "a node",
        "an attempt",
        "a kind",
        "one gone",
        "the last gone",
        "the first gone",
        "all gone",
    ],
)
def test_a_changed_or_missing_event_is_found(store: Path, run: str, change: str) -> None:
    tamper(store, change.format(key=KEY.format(run=run)))
    assert problems(store, run)


SHOWN_IN_LISTINGS = [
    "flow = 'other'",
    "error = 'ValueError: never happened'",
    'labels = \'{"team":"blue"}\'',
    "created_at = created_at - 1000",
    "updated_at = updated_at + 1000",
    "active = '[\"ghost\"]'",
    "parent = 'somebody'",
]


def test_a_promise_of_a_base_that_is_no_digest_is_found(store: Path) -> None:
    promised = 'cast(replace(cast(body as text), \'"base_digest":"\', \'"base_digest":"no hex\') as blob)'
    tamper(
        store, f"update events set body = {promised} where run = {KEY.format(run='f')} and kind = 'RunForked'"
    )
    assert problems(store, "f")


@pytest.mark.parametrize(
    "change",
    [
        "status = 'failed'",
        "seq = seq - 1",
        "seq = seq + 1",
        "digest = zeroblob(32)",
        "fingerprint = 'other'",
        "state_version = 7",
        "rewinds = '[[3,1]]'",
        *SHOWN_IN_LISTINGS,
    ],
)
def test_a_changed_run_row_is_found(store: Path, change: str) -> None:
    tamper(store, f"update runs set {change} where run_id = 'r'")
    assert problems(store)


def test_a_changed_base_of_a_fork_is_found(store: Path) -> None:
    tamper(store, f"update snapshots set body = flipped(body) where run = {KEY.format(run='f')} and base = 1")
    assert problems(store, "f")


def test_a_missing_base_of_a_fork_is_found(store: Path) -> None:
    tamper(store, f"delete from snapshots where run = {KEY.format(run='f')}")
    assert problems(store, "f")


def test_a_damaged_run_leaves_its_neighbours_alone(store: Path) -> None:
    tamper(store, f"update events set body = x'ff' where run = {KEY.format(run='r')}")
    assert problems(store, "r")
    assert problems(store, "f") == []
    with pytest.raises(StoreCorrupt):
        hf.get("r", store=store)
    assert hf.get("f", store=store).status == "completed"


def write_as_a_newer_holdfast(path: Path) -> int:
    """Append an event of a kind that this version does not know, as its writer would have. Returns the fence it left."""
    store = SqliteStore(path)
    holder = this_process()
    lease = store.claim("r", holder)
    run = store.run("r")
    rows = seal(
        run.digest, "r", run.seq, run.updated_at, [Encoded("QuantumEntangled", None, 0, 0, 0, b"")], bytes(16)
    )
    view = View(status="failed", fingerprint=run.fingerprint, state_version=run.state_version)
    append = Append(
        run_id="r",
        expected_seq=run.seq,
        rows=rows,
        view=view,
        holder=holder.id,
        fence=lease.fence,
        release=True,
    )
    assert store.append([append]) == [None]
    store.close()
    return lease.fence


def test_an_event_of_a_newer_holdfast_leaves_the_run_untouched(store: Path) -> None:
    fence = write_as_a_newer_holdfast(store)
    with pytest.raises(SchemaTooNew, match="QuantumEntangled"):
        hf.get("r", store=store)
    with pytest.raises(SchemaTooNew, match="QuantumEntangled"):
        hf.resume("r", restart_at="count", store=store, flows=[counting()])
    after = SqliteStore(store)
    assert after.run("r").fence == fence or not after.run("r").held
    after.close()
