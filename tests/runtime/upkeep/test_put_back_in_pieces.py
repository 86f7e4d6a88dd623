"""A long archive is read and put back a piece at a time: what is there meanwhile is nobody's to carry on, and one that was cut
off is gone on with.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import RunExists, RunHeld
from holdfast.reading import verification
from holdfast.storage import failpoints
from holdfast.storage.contract import Query, Store
from holdfast.storage.leases import this_process
from holdfast.storage.queues import Wanted
from holdfast.storage.urls import open_store
from holdfast.testing.appends import KilledAtFailpoint, hooked
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import archive, retention
from postgres_server import drop_schema, schema_for, shared_url

ROWS = 7
"""Of a piece, here."""

graph = Graph("rounds", dict)


@graph.node
async def turn(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    if ctx.iteration == state.get("fails_at"):
        raise ValueError("not this time")
    return {"turns": ctx.iteration, "note": f"{ctx.iteration}" * 300}


graph.edge(START, "turn")
graph.branch("turn", lambda state: "turn" if state["turns"] < state["rounds"] else END, to=["turn", END])
flow = graph.compile()


def engine_on(store: Store) -> hf.Engine:
    return hf.Engine(
        store, flows=[flow], clock=ManualClock(auto=True), luck=random.Random(1), inline=True, blob_over=None
    )


def run(store: Store, **given: Any) -> None:
    async def main() -> None:
        async with engine_on(store) as engine:
            try:
                await engine.run(flow, {"rounds": 40, **given}, run_id="r")
            except hf.RunFailed:
                assert "fails_at" in given

    asyncio.run(main())


def everything(store: Store) -> Any:
    row = store.run("r")
    seqs = [kept.seq for kept in store.upkeep.snapshots("r")]
    return (
        [getattr(row, name) for name in row.__struct_fields__ if name not in ("fence", "holder", "held")],
        store.events("r"),
        [store.snapshot("r", [(seq, seq)]) for seq in seqs],
        store.upkeep.trimmed("r"),
        store.definition(row.fingerprint),
    )


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Store]:
    store = open_store(str(tmp_path / "one.db"))
    yield store
    store.close()


def unhooked(check: Any) -> Any:
    """The archive is first put into a store of its own. The failpoints are meant for the other."""

    def unhooked_check(*given: Any) -> None:
        hook = failpoints.hook
        failpoints.install(None)
        try:
            check(*given)
        finally:
            failpoints.install(hook)

    return unhooked_check


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def other(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(archive, "_PIECE_ROWS", ROWS)
    monkeypatch.setattr(archive, "_refuse_contradiction", unhooked(archive._refuse_contradiction))
    schema = schema_for(tmp_path)
    url = {
        "memory": f"memory://other-{tmp_path.name}",
        "sqlite": str(tmp_path / "other.db"),
        "postgres": f"{shared_url()}&schema={schema}" if request.param == "postgres" else "",
    }[request.param]
    store = open_store(url)
    yield store
    store.close()
    if request.param == "postgres":
        drop_schema(shared_url(), schema)


def archived(store: Store, tmp_path: Path) -> str:
    return archive.archive(store, "r", tmp_path / "r.zst").place


@pytest.mark.parametrize("compacted", [False, True])
def test_a_long_archive_comes_back_equal_in_pieces(
    one: Store, other: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    run(one, fails_at=30)
    if compacted:
        retention.compact(one, "r", 4, holder=this_process(30.0, "compactor"))
    place = archived(one, tmp_path)
    lengths = []
    append = other.append

    def counted(batch: Any) -> Any:
        lengths.extend(len(one.rows) for one in batch)
        return append(batch)

    monkeypatch.setattr(other, "append", counted)
    assert archive.put_back(other, place) == "r"
    assert len(lengths) > 1 or compacted
    assert max(lengths) <= ROWS
    assert everything(other) == everything(one)
    assert verification.verify(other, "r").problems == []
    assert (other.run("r").holder, other.run("r").held) == (None, False)
    lengths.clear()
    archive.put_back(other, place)
    assert lengths == []


def killed(store: Store, place: str, at: int) -> bool:
    """Whether putting back was ended behind so many appends; it lets go of the run, as the next would of a dead process."""
    left = at

    def kill(name: str) -> None:
        nonlocal left
        if name == "append.committed":
            left -= 1
            if left == 0:
                raise KilledAtFailpoint

    try:
        with hooked(kill):
            archive.put_back(store, place)
    except KilledAtFailpoint:
        return True
    return False


def test_one_that_was_killed_is_nobodys_to_carry_on_and_is_finished_by_the_next(
    one: Store, other: Store, tmp_path: Path
) -> None:
    run(one, fails_at=30)
    place = archived(one, tmp_path)
    for at in (1, 2, 1):
        assert killed(other, place, at)
        (row,) = other.runs(Query())
        assert (row.status, row.seq < one.run("r").seq) == ("cancelled", True)
        assert "put it back again" in (row.error or "")
        assert other.queues.take(this_process(), Wanted(flows=("rounds",))) == []
    archive.put_back(other, place)
    assert everything(other) == everything(one)
    assert verification.verify(other, "r").problems == []


def test_two_who_put_the_same_back_do_not_mix(one: Store, other: Store, tmp_path: Path) -> None:
    run(one)
    place = archived(one, tmp_path)
    assert killed(other, place, 2)
    another = this_process(30.0, "another")
    other.claim("r", another)
    with pytest.raises(RunHeld):
        archive.put_back(other, place)
    other.renew(this_process(0.0, "another"))
    archive.put_back(other, place)
    assert everything(other) == everything(one)


def test_what_another_archive_began_is_not_gone_on_with(one: Store, other: Store, tmp_path: Path) -> None:
    run(one)
    assert killed(other, archived(one, tmp_path), 2)
    before = other.run("r")
    second = open_store(str(tmp_path / "second.db"))
    try:
        run(second, rounds=41)
        place = archive.archive(second, "r", tmp_path / "second.zst").place
    finally:
        second.close()
    with pytest.raises(RunExists, match="another archive"):
        archive.put_back(other, place)
    assert other.run("r").seq == before.seq
