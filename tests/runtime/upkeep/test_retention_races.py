"""Retention beside others who prune, compact and carry on: nothing is lost, nothing aborts, and no more is read than needed."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.cli import care
from holdfast.errors import RunNotFound, StoreBusy, StoreError, StoreUnusable
from holdfast.reading import verification
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Query, RunRow, Store
from holdfast.storage.files.blobs import FileBlobs
from holdfast.storage.files.remote import FsspecBlobs
from holdfast.storage.leases import this_process
from holdfast.storage.memory.blobs import MemoryBlobs
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.urls import open_store
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import archive, doctor, retention
from holdfast.upkeep.retention import Choice, RetentionPolicy

graph = Graph("rounds", dict)


@graph.node
async def turn(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    if state.get("fails"):
        raise ValueError("not this time")
    return {"turns": ctx.iteration, "blob": f"{ctx.iteration}" * state.get("big", 0)}


graph.edge(START, "turn")
graph.branch("turn", lambda state: "turn" if state["turns"] < state["rounds"] else END, to=["turn", END])
flow = graph.compile()

ENDED = RetentionPolicy(older_than=1.0, status=("completed", "cancelled", "failed"))


class Place:
    """A store with a clock, and another connection to it: somebody else's."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock(auto=True)
        self.store = self.open()
        self.other = self.open()

    def open(self) -> Store:
        return open_store(self.url, clock=self.clock.now)

    def do(self, use: Callable[[hf.Engine], Any]) -> Any:
        async def main() -> Any:
            async with hf.Engine(
                self.open(), flows=[flow], clock=self.clock, luck=random.Random(1), inline=True
            ) as engine:
                return await use(engine)

        return asyncio.run(main())

    def run(self, run_id: str, **given: Any) -> None:
        with suppress(hf.RunFailed):
            self.do(lambda engine: engine.run(flow, {"rounds": 2, **given}, run_id=run_id))
        self.clock.advance(20.0)

    def compact(self, run_id: str, keep_last: int = 5) -> None:
        retention.compact(self.other, run_id, keep_last, holder=this_process(30.0, "another"))

    def delete(self, run_id: str) -> None:
        assert not self.other.upkeep.delete({run_id: self.other.run(run_id).seq})

    def chosen(self, policy: RetentionPolicy = ENDED) -> list[Choice]:
        return list(retention.choose(self.store, [policy]))

    def ids(self) -> list[str]:
        return [row.run_id for row in self.store.runs(Query())]


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(f"memory://{tmp_path.name}" if request.param == "memory" else str(tmp_path / "runs.db"))
    yield made
    made.other.close()
    made.store.close()


def once_before(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object], *, at: int = 1
) -> None:
    """Somebody else acts just before the call of a function: the first, or the one that is told."""
    calls = 0
    real = getattr(owner, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            act()
        return real(*args, **options)

    monkeypatch.setattr(owner, name, wrapped)


def is_whole(place: str | Path, run_id: str, tmp_path: Path, events: int) -> bool:
    """Whether an archive can be put back, with so many events."""
    store = open_store(str(tmp_path / "again.db"))
    try:
        archive.put_back(store, place)
        return len(store.events(run_id)) == events and verification.verify(store, run_id).problems == []
    finally:
        store.close()


# --- archives ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("between", ["_run_part", "_snapshot", "fingerprints", "references", "rows_of"])
def test_a_run_that_is_compacted_while_it_is_archived_is_archived_whole(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    place.run("r", rounds=80)
    place.compact("r", keep_last=40)  # so that it has a base, which the next takes the place of
    first = place.store.upkeep.trimmed("r").base
    once_before(monkeypatch, archive, between, lambda: place.compact("r"))
    (choice,) = place.chosen()
    (done,) = retention.delete(place.store, [choice], f"{tmp_path}/archive/")
    assert done.goes
    assert place.ids() == []
    assert [path.name for path in (tmp_path / "archive").iterdir()] == [Path(done.place).name]
    store = open_store(str(tmp_path / "again.db"))
    archive.put_back(store, done.place)
    assert verification.verify(store, "r").problems == []
    assert store.upkeep.trimmed("r").base > first
    store.close()


def test_a_run_that_is_compacted_again_and_again_is_not_archived_and_stays(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run("r", rounds=80)
    real, keep = archive.references, iter(range(40, 1, -5))

    def compacted(store: Store, row: Any) -> set[str]:
        place.compact("r", next(keep))
        return real(store, row)

    monkeypatch.setattr(archive, "references", compacted)
    (choice,) = place.chosen()
    with pytest.raises(StoreBusy, match=r"'r' was not archived.*try again"):
        retention.delete(place.store, [choice], f"{tmp_path}/archive/")
    assert place.ids() == ["r"]
    assert list((tmp_path / "archive").iterdir()) == []


def test_a_broken_archive_that_is_there_already_does_not_cost_the_run(place: Place, tmp_path: Path) -> None:
    place.run("r", rounds=3)
    events = len(place.store.events("r"))
    first = Path(archive.archive(place.store, "r", tmp_path).place)
    lines = [part for part in archive.read(first) if not isinstance(part, archive.End)]
    events_from = next(i for i, part in enumerate(lines) if isinstance(part, archive.EventPart))
    del lines[events_from : events_from + 2]
    archive.archives.write_lines(str(first), archive._seal(lines))
    (choice,) = place.chosen()
    (done,) = retention.delete(place.store, [choice], f"{tmp_path}/")
    assert (done.goes, done.place) == (True, str(first))
    assert is_whole(first, "r", tmp_path, events)


def test_an_archive_with_less_of_the_log_does_not_stand_for_the_whole(place: Place, tmp_path: Path) -> None:
    place.run("r", rounds=80)
    events = len(place.store.events("r"))
    whole = archive.archive(place.store, "r", tmp_path / "whole.holdfast.zst").place
    place.compact("r")
    archive.archive(place.store, "r", f"{tmp_path}/kept/")
    place.delete("r")
    archive.put_back(place.store, whole)
    (choice,) = place.chosen()
    assert is_whole(
        retention.delete(place.store, [choice], f"{tmp_path}/kept/")[0].place, "r", tmp_path, events
    )


def test_an_archive_that_did_not_arrive_whole_keeps_the_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec = pytest.importorskip("fsspec")
    place.run("r")
    files = fsspec.filesystem("memory")

    def half(url: str, file: str, *, replace: bool = False) -> str:
        files.pipe_file(url.removeprefix("memory:/"), Path(file).read_bytes()[:-20])
        return url

    monkeypatch.setattr(archive.remote, "upload", half)
    (choice,) = place.chosen()
    with pytest.raises(StoreError):
        retention.delete(place.store, [choice], "memory://halved/")
    assert place.ids() == ["r"]


@pytest.mark.parametrize("between", ["_run_part", "fingerprints", "references", "rows_of", "_whole"])
def test_a_run_that_is_deleted_while_it_is_archived_is_told_as_gone(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    place.run("r", rounds=3)
    (choice,) = place.chosen()
    at = 2 if between == "_whole" else 1  # the first looks for an archive that is there already
    once_before(monkeypatch, archive, between, lambda: place.delete("r"), at=at)
    (done,) = retention.delete(place.store, [choice], f"{tmp_path}/archive/")
    assert (done.goes, done.why) == (False, "another process has already deleted the run")
    assert list((tmp_path / "archive").iterdir()) == []


# --- others who prune and carry on -------------------------------------------------------------------


@pytest.mark.parametrize("gone", [["r3"], ["r2", "r3"], ["r4", "r3"], ["r4", "r3", "r2", "r1"]])
def test_a_listing_goes_on_where_runs_are_deleted_meanwhile(place: Place, gone: list[str]) -> None:
    for number in range(5):
        place.run(f"r{number}")
    listing = retention.rows_of(place.store, Query(limit=2))
    found = [next(listing).run_id, next(listing).run_id]
    for run_id in gone:
        place.delete(run_id)
    found += [row.run_id for row in listing]
    assert found[:2] == ["r4", "r3"]
    assert found[2:] == [f"r{number}" for number in (2, 1, 0) if f"r{number}" not in gone]


def test_a_run_that_another_deletes_is_left_out_of_the_choice(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run("stays", fails=True)
    place.run("goes", fails=True)
    once_before(monkeypatch, retention, "explain_need", lambda: place.delete("goes"))
    assert [choice.run_id for choice in place.chosen()] == ["stays"]


@pytest.mark.parametrize("looks_at", ["references", "fingerprints"])
def test_a_sweep_goes_on_where_a_run_is_deleted_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch, looks_at: str
) -> None:
    place.run("stays")
    place.run("goes")
    place.store.blobs.put(*_blob(b"x"))
    place.store.upkeep.adopt("nobody", place.store.upkeep.trimmed("stays"), {"unused": b"{}"})
    once_before(monkeypatch, archive, looks_at, lambda: place.delete("goes"))
    assert retention.sweep(place.store).definitions == 1
    assert place.ids() == ["stays"]


def test_a_run_that_is_carried_on_just_before_it_goes_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run("r", fails=True)
    place.run("other")
    chosen = place.chosen()

    def resume() -> None:
        with suppress(hf.RunFailed):
            place.do(lambda engine: engine.resume("r"))

    real = place.store.upkeep.delete

    def delete(ends: Mapping[str, int]) -> dict[str, hf.HoldfastError]:
        resume()
        return real(ends)

    monkeypatch.setattr(place.store.upkeep, "delete", delete)
    done = {
        choice.run_id: (choice.goes, choice.why)
        for choice in chain.from_iterable(retention.delete_all(place.store, chosen))
    }
    assert done == {"r": (False, "the run was resumed in the meantime"), "other": (True, "older than 1s")}


def test_runs_are_told_as_soon_as_they_are_gone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    for number in range(4):
        place.run(f"r{number}")
    chosen = place.chosen()

    def full() -> None:
        raise StoreUnusable("the disk is gone")

    once_before(monkeypatch, place.store.upkeep, "delete", full, at=2)
    deleted = retention.delete_all(place.store, chosen)
    assert [choice.run_id for choice in next(deleted)] == ["r3", "r2"]
    with pytest.raises(StoreUnusable):
        next(deleted)
    assert place.ids() == ["r1", "r0"]


def test_what_went_before_an_error_is_told_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(str(tmp_path / "runs.db"))
    place.run("r0")
    place.run("r1")
    in_the_way = f"r0-{place.store.run('r0').digest.hex()[:12]}{archive.ENDING}"
    (tmp_path / "archive" / in_the_way).mkdir(parents=True)
    everything = [RetentionPolicy(keep=0)]
    with pytest.raises(StoreUnusable, match="'r0' was not archived"):
        care._prune_many(everything, f"{tmp_path}/archive/", False, place.url, dry_run=False, as_json=False)
    assert "deleted   r1" in capsys.readouterr().out
    assert place.ids() == ["r0"]
    place.other.close()
    place.store.close()


# --- no more is read than needed ---------------------------------------------------------------------


def test_a_sweep_reads_no_log_where_there_is_no_blob(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        place.run(f"r{number}")
    read: list[str] = []
    real = place.store.events

    def events(run_id: str, *args: Any, **options: Any) -> Any:
        read.append(run_id)
        return real(run_id, *args, **options)

    monkeypatch.setattr(place.store, "events", events)
    retention.sweep(place.store)
    assert read == []
    assert place.store.definition(flow.fingerprint) is not None


# --- whose clock says how old a blob is ----------------------------------------------------------------


def _blob(body: bytes) -> tuple[str, bytes]:
    made = Blob.of(body)
    return made.digest, made.body


@pytest.mark.parametrize("ahead_s", [-7200.0, 7200.0])
def test_how_old_a_blob_is_says_the_clock_of_its_place(tmp_path: Path, ahead_s: float) -> None:
    store = SqliteStore(tmp_path / "runs.db", clock=lambda: time.time() + ahead_s)
    old, young = _blob(b"old"), _blob(b"young")
    for blob in (old, young):
        store.blobs.put(*blob)
    file = tmp_path / "runs.db.blobs" / old[0][:2] / old[0][2:4] / old[0]
    os.utime(file, (file.stat().st_atime, file.stat().st_mtime - retention.YOUNG_S - 60.0))
    assert retention.sweep(store).blobs == 1
    assert list(store.blobs.digests()) == [young[0]]
    store.close()


def test_a_place_where_nothing_was_put_is_not_made_to_ask_its_clock(tmp_path: Path) -> None:
    far = FsspecBlobs(f"local://{tmp_path}/far", spills=MemoryBlobs())
    assert (FileBlobs(tmp_path / "near").now(), far.now()) == (0.0, 0.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ahead_s", [-7200.0, 7200.0])
def test_a_far_blob_that_is_put_again_is_made_young_by_the_clock_of_its_place(
    tmp_path: Path, ahead_s: float
) -> None:
    far = FsspecBlobs(f"local://{tmp_path}/far", spills=MemoryBlobs(), clock=lambda: time.time() + ahead_s)
    blob = _blob(b"x")
    far.put(*blob)
    file = tmp_path / "far" / blob[0][:2] / blob[0][2:4] / blob[0]
    os.utime(file, (0.0, 0.0))
    far.put(*blob)
    assert not far.expire(blob[0], far.now() - retention.YOUNG_S)
    os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 3000.0))
    far.put(*blob)
    assert not far.expire(blob[0], far.now() - 60.0)
    assert [path.name for path in (tmp_path / "far").iterdir()] == [blob[0][:2]]


# --- the doctor --------------------------------------------------------------------------------------


def test_of_too_many_runs_the_doctor_looks_at_the_newest_of_each_status_and_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        place.run(f"r{number}", fails=True)
    place.do(lambda engine: engine.start(flow, {"rounds": 2}, run_id="pending"))
    monkeypatch.setattr(doctor, "RUNS_MAX", 4)
    monkeypatch.setattr(doctor, "_PAGE", 2)
    read: list[str] = []
    real = place.store.runs

    def runs(query: Query) -> list[RunRow]:
        found = real(query)
        read.extend(row.run_id for row in found if query.status)
        return found

    monkeypatch.setattr(place.store, "runs", runs)
    found = doctor.examine(place.store, None, place.clock.now())
    assert {"r5", "r4", "r3"} == {one.run_id for one in found if one.status == "failed"}
    assert {*read} <= {"r5", "r4", "r3", "r2", "pending"}
    told = "".join(one.reason for one in found if one.kind == "store")
    assert (
        "7 runs have not ended, and only the newest 4 of them were examined; the others are 3 failed" in told
    )
    monkeypatch.setattr(doctor, "RUNS_MAX", 10_000)
    found = doctor.examine(place.store, None, place.clock.now())
    assert [one.run_id for one in found if one.status == "failed"] == [f"r{number}" for number in range(6)]


def test_a_large_database_is_not_read_as_a_whole_by_the_doctor(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place.store, "check", lambda: ["page 7 is damaged"])
    facts = place.store.upkeep.facts()
    checked = [one.reason for one in doctor.examine(place.store, None, place.clock.now())]
    assert ("page 7 is damaged" in checked) == doctor.is_checked(facts)
    monkeypatch.setattr(doctor, "CHECKED_BYTES", -1)
    assert "page 7 is damaged" not in [
        one.reason for one in doctor.examine(place.store, None, place.clock.now())
    ]


def test_the_doctor_goes_on_where_runs_are_deleted_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        place.run(f"r{number}", fails=True)
    once_before(monkeypatch, doctor, "case_of", lambda: place.delete("r0"))
    found = doctor.examine(place.store, None, place.clock.now())
    assert [one.run_id for one in found] == ["r1", "r2"]
    with pytest.raises(RunNotFound):
        place.store.run("r0")
