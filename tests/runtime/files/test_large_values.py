"""Values over the limit in real runs: blobs beside the log, on memory and on SQLite."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Annotated

import pytest

import holdfast as hf
from holdfast import END, START, Graph, append
from holdfast.errors import BlobCorrupt, BlobMissing, SettingError, StoreBusy, StoreFull
from holdfast.reading import verification
from holdfast.runtime import journal
from holdfast.storage import oversize
from holdfast.storage.files.blobs import FileBlobs
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import unpack
from holdfast.storage.urls import open_store
from holdfast.testing.appends import KilledAtFailpoint, hooked, kill_at

TEXT = random.Random(7).randbytes(1_500_000).hex()  # which no compression makes small
PAGE = "page" * 300_000


@dataclass
class Book:
    pages: Annotated[list[str], append] = field(default_factory=list)


def book(pages):
    """Each page is small, all of them together are not."""
    graph = Graph("book", Book)

    @graph.node
    def write(state, ctx):
        return {"pages": [f"{ctx.iteration:06d}" * 500]}

    graph.edge(START, "write")
    graph.branch("write", lambda state: "write" if len(state.pages) < pages else END, to=["write", END])
    return graph.compile()


def flow(calls: list[str] | None = None, *, fails: bool = False):
    seen = [] if calls is None else calls
    graph = Graph("large", dict)

    @graph.node
    def write(state):
        seen.append("write")
        return {"text": TEXT, "nested": {"pages": [{"body": PAGE, "n": 1}, {"body": "short", "n": 2}]}}

    @graph.node
    def copy(state):
        seen.append("copy")
        if fails:
            raise ValueError("not yet")
        return {"again": state["text"], "length": len(state["nested"]["pages"][0]["body"])}

    graph.edge(START, "write").edge("write", "copy").edge("copy", END)
    return graph.compile()


WHOLE = {
    "text": TEXT,
    "again": TEXT,
    "nested": {"pages": [{"body": PAGE, "n": 1}, {"body": "short", "n": 2}]},
    "length": len(PAGE),
}


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    """How to open a store of each kind, again and again."""
    return f"memory://{tmp_path.name}" if request.param == "memory" else str(tmp_path / "runs.db")


def do(place, use, *flows, **options):
    async def main():
        async with hf.Engine(place, flows=flows, **options) as engine:
            return await use(engine)

    return asyncio.run(main())


def problems(place, run_id="r1"):
    store = open_store(place)
    try:
        return verification.verify(store, run_id).problems
    finally:
        store.close()


def snapshot_references(place, run_id="r1"):
    store = open_store(place)
    try:
        return oversize.references(unpack(store.snapshot(run_id, [(0, 10**9)]).body))
    finally:
        store.close()


def digests(place):
    store = open_store(place)
    try:
        return list(store.blobs.digests())
    finally:
        store.close()


def failed_run(place):
    """A run that has its large values and stopped behind them."""
    with pytest.raises(hf.RunFailed):
        hf.run(flow(fails=True), {}, run_id="r1", store=place)


def test_a_run_with_large_values_is_what_it_would_be_without_blobs(place):
    run = hf.run(flow(), {}, run_id="r1", store=place)
    assert run.state == WHOLE
    assert hf.get("r1", store=place).state == WHOLE
    assert problems(place) == []
    assert len(digests(place)) == 2, "the same text twice is one blob"
    (completed, _) = hf.events("r1", kind="NodeCompleted", store=place)
    assert completed.body["changes"]["set"]["text"] == TEXT


def test_a_resume_from_another_engine_reads_them_and_runs_nothing_twice(place):
    failed_run(place)
    calls: list[str] = []
    run = do(place, lambda engine: engine.resume("r1"), flow(calls))
    assert (run.status, run.state, calls) == ("completed", WHOLE, ["copy"])
    assert problems(place) == []


def test_a_fork_shares_the_blobs_and_has_the_state(place):
    failed_run(place)
    before = digests(place)
    do(place, lambda engine: engine.fork("r1", run_id="r2"), flow())
    assert digests(place) == before
    assert list(snapshot_references(place, "r2")) == [
        "/state/values/text",
        "/state/values/nested/pages/0/body",
    ]
    assert do(place, lambda engine: engine.resume("r2"), flow()).state == WHOLE
    assert problems(place, "r2") == []


def test_a_fork_keeps_what_only_its_base_holds_as_a_blob(place):
    hf.run(book(10), Book(), run_id="r1", store=place, blob_over=20_000)
    assert digests(place) == []
    do(place, lambda engine: engine.fork("r1", run_id="r2"), book(10), blob_over=20_000)
    assert list(snapshot_references(place, "r2")) == ["/state/values/pages"]
    assert len(digests(place)) == 1
    assert hf.state("r2", store=place) == hf.state("r1", store=place)
    assert problems(place, "r2") == []


def test_an_input_and_an_edit_may_be_large(place):
    graph = Graph("input", dict)
    graph.node(lambda state: {"n": len(state["given"])}, name="count")
    graph.edge(START, "count").edge("count", END)
    counted = graph.compile()
    run = hf.run(counted, {"given": TEXT}, run_id="r1", store=place)
    assert run.state == {"given": TEXT, "n": len(TEXT)}
    assert len(digests(place)) == 1
    assert hf.run(counted, {"given": TEXT}, run_id="r1", store=place).state["n"] == len(TEXT)


def test_a_list_that_grows_beyond_the_limit_goes_into_the_snapshot_as_a_blob(place, monkeypatch):
    monkeypatch.setattr(journal, "SNAPSHOT_BYTES_MIN", 64 * 1024)
    run = hf.run(book(60), Book(), run_id="r1", store=place, blob_over=20_000)
    assert len(run.state.pages) == 60
    assert list(snapshot_references(place)) == ["/state/values/pages"]
    assert oversize_rows(place, "r1") == 0
    assert len(hf.get("r1", store=place).state["pages"]) == 60
    assert problems(place) == []


def test_the_database_stays_small_and_the_files_are_their_owners(tmp_path):
    path = tmp_path / "runs.db"
    hf.run(flow(), {}, run_id="r1", store=path)
    assert path.stat().st_size < 160_000  # most of it are empty indexes
    kept = [file for file in (tmp_path / "runs.db.blobs").rglob("*") if file.is_file()]
    assert len(kept) == 2
    assert sum(file.stat().st_size for file in kept) > 500_000
    assert {file.stat().st_mode & 0o777 for file in kept} == {0o600}


def test_a_small_run_makes_no_folder(tmp_path):
    graph = Graph("small", dict)
    graph.node(lambda state: {"text": "x" * 900_000}, name="write")
    graph.edge(START, "write").edge("write", END)
    hf.run(graph.compile(), {}, run_id="r1", store=tmp_path / "runs.db")
    assert sorted(os.listdir(tmp_path)) == ["runs.db"]


# --- damage ------------------------------------------------------------------------------------------


def removed(path):
    path.unlink()


def flipped(path):
    stored = bytearray(path.read_bytes())
    stored[len(stored) // 2] ^= 1
    path.write_bytes(stored)


def truncated(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("damage", "error", "told"),
    [
        (removed, BlobMissing, "is missing"),
        (flipped, BlobCorrupt, "is damaged"),
        (truncated, BlobCorrupt, "is damaged"),
    ],
)
def test_a_damaged_blob_is_one_clear_error_that_names_it(tmp_path, damage, error, told):
    path = tmp_path / "runs.db"
    failed_run(path)
    digest = oversize.Blob.of(b'"' + TEXT.encode() + b'"').digest
    damage(tmp_path / "runs.db.blobs" / digest[:2] / digest[2:4] / digest)
    for use in (
        lambda: hf.resume("r1", store=path, flows=[flow()]),
        lambda: hf.state("r1", store=path),
        lambda: hf.get("r1", store=path),
        lambda: hf.events("r1", store=path),
    ):
        with pytest.raises(error, match=f"blob {digest} .*{told}") as fault:
            use()
        assert str(tmp_path / "runs.db.blobs") in str(fault.value)
        assert fault.value.digest == digest
    (problem,) = problems(path)
    assert problem.startswith(f"event 3 (NodeCompleted): blob {digest} ")
    store = open_store(path)
    assert not store.run("r1").held, "a refused resume leaves nobody in the way"
    store.close()


def test_a_run_goes_on_once_the_blob_is_put_back(tmp_path):
    path = tmp_path / "runs.db"
    failed_run(path)
    digest = digests(path)[0]
    file = tmp_path / "runs.db.blobs" / digest[:2] / digest[2:4] / digest
    away = tmp_path / "away"
    file.rename(away)
    with pytest.raises(BlobMissing):
        hf.resume("r1", store=path, flows=[flow()])
    away.rename(file)
    assert hf.resume("r1", store=path, flows=[flow()]).state == WHOLE


def test_a_checkpoint_before_a_lost_blob_can_still_be_forked(tmp_path):
    path = tmp_path / "runs.db"
    failed_run(path)
    for digest in digests(path):
        (tmp_path / "runs.db.blobs" / digest[:2] / digest[2:4] / digest).unlink()
    hf.fork("r1", checkpoint=1, run_id="r2", store=path, flows=[flow()])
    assert hf.resume("r2", store=path, flows=[flow()]).state == WHOLE


# --- crashes and refusals ----------------------------------------------------------------------------


def test_a_crash_between_blob_and_append_leaves_only_a_blob_that_nothing_refers_to(place):
    async def use(engine):
        count = 0

        def die_at_the_second(reached):
            nonlocal count
            count += reached == "append.before"
            if count == 2:
                kill_at("append.before")(reached)

        with hooked(die_at_the_second):
            await engine.run(flow(), {}, run_id="r1")

    with pytest.raises(KilledAtFailpoint):
        do(place, use, inline=True)
    assert [row.kind for row in hf.events("r1", store=place)] == ["RunCreated", "NodeStarted"]
    assert len(digests(place)) == 2
    assert problems(place) == []
    calls: list[str] = []
    assert do(place, lambda engine: engine.resume("r1"), flow(calls)).state == WHOLE
    assert calls == ["write", "copy"]
    assert len(digests(place)) == 2


PROGRAM = """
import os, signal, sys
sys.path[:0] = {path!r}
import holdfast as hf
from holdfast.storage import failpoints
from test_large_values import flow
count = 0
def die(reached):
    global count
    count += reached == "append.before"
    if count == 2:
        os.kill(os.getpid(), signal.SIGKILL)
failpoints.install(die)
hf.run(flow(), {{}}, run_id="r1", store=sys.argv[1])
"""


def test_the_same_with_sigkill(tmp_path):
    path = tmp_path / "runs.db"
    program = PROGRAM.format(path=[os.path.dirname(__file__), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(digests(path)) == 2
    assert problems(path) == []
    assert hf.resume("r1", store=path, flows=[flow()]).state == WHOLE


class Refusing(FileBlobs):
    """Blobs that cannot be put for a while."""

    def __init__(self, folder, fault, times):
        super().__init__(folder)
        self.fault, self.left = fault, times

    def put(self, digest, body):
        if self.left:
            self.left -= 1
            raise self.fault("no room for it")
        super().put(digest, body)


@pytest.mark.parametrize("fault", [StoreFull, StoreBusy])
def test_an_append_whose_blob_cannot_be_put_is_tried_again(tmp_path, fault):
    blobs = Refusing(tmp_path / "blobs", fault, 2)
    run = hf.run(flow(), {}, run_id="r1", store=MemoryStore(blobs=blobs))
    assert (run.state, blobs.left) == (WHOLE, 0)


def test_blobs_go_where_the_setting_says(tmp_path, monkeypatch):
    path = tmp_path / "runs.db"
    hf.run(flow(), {}, run_id="r1", store=path, blobs=f"file://{tmp_path}/far")
    assert len(list(FileBlobs(tmp_path / "far").digests())) == 2
    assert sorted(os.listdir(tmp_path)) == ["far", "runs.db"]
    with pytest.raises(BlobMissing, match=r"runs\.db\.blobs"):
        hf.get("r1", store=path)
    monkeypatch.setenv("HOLDFAST_BLOBS", str(tmp_path / "far"))
    assert hf.get("r1", store=path).state == WHOLE
    monkeypatch.delenv("HOLDFAST_BLOBS")
    (tmp_path / "pyproject.toml").write_text('[tool.holdfast]\nblobs = "far"\nblob_over = 4000000\n')
    monkeypatch.chdir(tmp_path)
    assert hf.get("r1", store=path).state == WHOLE
    hf.run(flow(), {}, run_id="r2", store=path)
    assert oversize_rows(path, "r2") == 1, "text and nested together are over the limit, each of them is not"


def oversize_rows(path, run_id):
    store = open_store(path)
    try:
        return sum(bool(oversize.references(unpack(row.body))) for row in store.events(run_id))
    finally:
        store.close()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"blob_over": 10}, "at least 1000"),
        ({"blob_over": "many"}, "number of bytes"),
        ({"blob_over": 1e6}, "whole number"),
        ({"blob_over": True}, "number of bytes"),
        ({"blobs": 7}, "a path or a URL"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(tmp_path, option, message):
    with pytest.raises(SettingError, match=message):
        hf.Engine(tmp_path / "runs.db", **option)


def test_an_open_store_has_its_blobs_already(tmp_path):
    with pytest.raises(SettingError, match="given as a path or URL"):
        hf.Engine(MemoryStore(), blobs=tmp_path)
