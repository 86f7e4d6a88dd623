"""What somebody still counts on stays: a run that asks, a log that was gone back in just now, a blob that came while a backup was
made. And what is put back was written by Holdfast, whoever else could have made the file.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import ResumeRefused, RunNotFound, StoreCorrupt
from holdfast.reading import history, verification
from holdfast.storage.contract import Store
from holdfast.storage.files import archives, restoring
from holdfast.storage.leases import this_process
from holdfast.storage.urls import open_store
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import archive, retention
from holdfast.upkeep.archive import EventPart, Part, RunPart, SnapshotPart
from holdfast.upkeep.retention import RetentionPolicy

graph = Graph("rounds", dict)


@graph.node
async def turn(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    if ctx.iteration == state.get("fail_at"):
        raise ValueError("not this time")
    return {"turns": ctx.iteration, "big": f"{ctx.iteration}" * state.get("size", 0)}


graph.edge(START, "turn")
graph.branch("turn", lambda state: "turn" if state["turns"] < state["rounds"] else END, to=["turn", END])
rounds = graph.compile()

beside = Graph("beside", dict)


@beside.node
async def fail(state: dict[str, Any], ctx: hf.Context) -> None:
    await ctx.sleep(60)
    raise ValueError("no luck")


@beside.node
async def ask(state: dict[str, Any], ctx: hf.Context) -> None:
    await ctx.ask("keep what there is?", options=["yes", "no"])


beside.edge(START, "fail").edge(START, "ask").edge("fail", END).edge("ask", END)
asking = beside.compile()


class Place:
    """A store and a clock, with one engine after the other."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock(auto=True)
        self.store: Store = open_store(url, clock=self.clock.now)

    def do(self, use: Callable[[hf.Engine], Any], **options: Any) -> Any:
        async def main() -> Any:
            async with hf.Engine(
                open_store(self.url, clock=self.clock.now),
                flows=[rounds, asking],
                clock=self.clock,
                luck=random.Random(1),
                inline=True,
                **options,
            ) as engine:
                return await use(engine)

        return asyncio.run(main())

    def run(self, run_id: str = "r", flow: Any = rounds, **given: Any) -> None:
        with suppress(hf.RunFailed):
            self.do(
                lambda engine: engine.run(flow, {"rounds": 12, **given}, run_id=run_id),
                blob_over=10_000,
            )

    def points(self) -> list[int]:
        return [point.seq for point in history.checkpoints(self.store, "r")]

    def well(self) -> bool:
        return verification.verify(self.store, "r").problems == []


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(f"memory://{tmp_path.name}" if request.param == "memory" else str(tmp_path / "runs.db"))
    yield made
    made.store.close()


def once_before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object]) -> None:
    """Somebody else acts just before the first call of a function."""
    real, acted = getattr(owner, name), False

    def wrapped(*args: Any, **options: Any) -> Any:
        nonlocal acted
        if not acted:
            acted = True
            act()
        return real(*args, **options)

    monkeypatch.setattr(owner, name, wrapped)


# --- a run that asks ---------------------------------------------------------------------------------

OLD = RetentionPolicy(older_than=1.0, status=("completed", "cancelled", "failed"))


def test_a_failed_run_that_still_asks_stays_and_says_what_it_asks(place: Place) -> None:
    place.run("r", asking)
    place.run("s", fail_at=3)
    place.clock.advance(100)
    assert {row.run_id: row.status for row in retention.rows_of(place.store, retention.Query())} == {
        "r": "failed",
        "s": "failed",
    }
    chosen = {choice.run_id: choice for choice in retention.choose(place.store, [OLD])}
    assert (chosen["r"].goes, chosen["r"].why) == (False, "the run has an open question: keep what there is?")
    assert chosen["s"].goes
    went = [
        choice.run_id
        for choice in chain.from_iterable(retention.delete_all(place.store, list(chosen.values())))
        if choice.goes
    ]
    assert went == ["s"]
    assert place.store.run("r").status == "failed"


def test_a_run_that_began_to_ask_after_it_was_chosen_stays(place: Place) -> None:
    """What needs a run is looked up when it goes; the choice may be minutes old."""
    place.run("r", asking)
    place.clock.advance(100)
    (choice,) = retention.choose(place.store, [OLD])
    (done,) = retention.delete(place.store, [msgspec.structs.replace(choice, goes=True, why="older than 1s")])
    assert (done.goes, done.why) == (False, "the run has an open question: keep what there is?")
    assert place.store.run("r").status == "failed"


# --- a log that was gone back in ---------------------------------------------------------------------


def test_a_run_that_is_rewound_while_its_base_is_made_is_not_compacted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run(fail_at=10)
    early = place.points()[2]

    def rewind() -> None:
        with suppress(hf.RunFailed):
            place.do(lambda engine: engine.resume(f"r@{early}"))

    once_before(monkeypatch, place.store.upkeep, "retire", rewind)  # behind that nobody goes back
    with pytest.raises(ResumeRefused, match=r"rewound at the same time\. Its log is unchanged"):
        retention.compact(place.store, "r", 3, holder=this_process(30.0, "compactor"))
    row = place.store.run("r")
    assert row.rewinds
    assert not row.held
    assert place.store.upkeep.trimmed("r").base == 0
    assert [event.seq for event in place.store.events("r")] == list(range(1, row.seq + 1))
    assert place.well()
    # Looked at again, the way back leads through the base.
    assert retention.compact(place.store, "r", 3, holder=this_process(30.0, "compactor")).base > 0
    assert place.well()


# --- archives that somebody made ---------------------------------------------------------------------


def forged(source: str, folder: Path, change: Callable[[list[Part]], list[Part]]) -> str:
    """An archive with other parts, whose last line fits them: who writes a file can also count and digest its lines."""
    parts = change([part for part in archive.read(source) if not isinstance(part, archive.End)])
    file = str(folder / "forged.zst")
    archives.write_lines(file, archive._seal(parts))
    return file


def without(parts: list[Part], number: int) -> list[Part]:
    """All parts but the event of this place among the events."""
    events = [part for part in parts if isinstance(part, EventPart)]
    return [part for part in parts if part is not events[number]]


def other_body(parts: list[Part]) -> list[Part]:
    events = [part for part in parts if isinstance(part, EventPart)]
    altered = msgspec.structs.replace(events[-3], body='{"changes": {"turns": 99}}', packed=b"")
    return [altered if part is events[-3] else part for part in parts]


def other_end(parts: list[Part]) -> list[Part]:
    return [
        msgspec.structs.replace(part, digest=b"\1" * 32) if isinstance(part, RunPart) else part
        for part in parts
    ]


def other_base(parts: list[Part]) -> list[Part]:
    return [
        msgspec.structs.replace(part, digest=b"\1" * 32)
        if isinstance(part, SnapshotPart) and part.base
        else part
        for part in parts
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_body, "event"),
        (lambda parts: without(parts, 1), "event"),
        (lambda parts: without(parts, -1), "does not end at the event that the run row names"),
        (other_end, "does not end at the event that the run row names"),
        (other_base, "event"),
        (lambda parts: [part for part in parts if not isinstance(part, EventPart)], "does not end"),
    ],
    ids=["a body", "an event is missing", "the last is missing", "the end", "the base", "no event"],
)
def test_an_archive_whose_chain_does_not_hold_is_not_put_back(
    place: Place, tmp_path: Path, change: Any, says: str
) -> None:
    place.run(fail_at=10)
    retention.compact(place.store, "r", 4, holder=this_process(30.0, "compactor"))
    whole = archive.archive(place.store, "r", str(tmp_path / "r.zst")).place
    other = open_store(str(tmp_path / "other.db"))
    try:
        file = forged(whole, tmp_path, change)
        with pytest.raises(StoreCorrupt, match=f"run 'r' is not what was written: .*{says}"):
            archive.put_back(other, file)
        with pytest.raises(RunNotFound):
            other.run("r")
        archive.put_back(other, whole)
        assert verification.verify(other, "r").problems == []
    finally:
        other.close()


# --- a blob that came meanwhile ----------------------------------------------------------------------


def test_a_blob_that_comes_between_the_copy_of_blobs_and_that_of_the_database_is_in_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(str(tmp_path / "runs.db"))
    try:
        place.run("r", rounds=2, size=30_000)
        once_before(monkeypatch, place.store.upkeep, "backup", lambda: place.run("s", rounds=3, size=40_000))
        assert restoring.back_up(place.store, str(tmp_path / "copy")) == 5
    finally:
        place.store.close()
    url = restoring.restore(str(tmp_path / "copy"), str(tmp_path / "restored.db"))
    restored = open_store(url)
    try:
        assert {row.run_id for row in restored.runs(retention.Query())} == {"r", "s"}
        for run_id in "rs":
            assert verification.verify(restored, run_id).problems == []
            assert history.load(restored, run_id).values["turns"] in {2, 3}
    finally:
        restored.close()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".copy-")]
