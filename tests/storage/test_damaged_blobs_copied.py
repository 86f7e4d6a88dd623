"""A blob that is damaged, or removed just now, costs neither the backup nor the restore of all the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import StoreCorrupt
from holdfast.reading import verification
from holdfast.storage.blobs import Blob
from holdfast.storage.contract import Store
from holdfast.storage.files.blobs import FileBlobs
from holdfast.storage.files.restoring import back_up, restore
from holdfast.storage.urls import open_store
from holdfast.upkeep import archive

graph = Graph("big", dict)


@graph.node
async def only(state: dict[str, Any]) -> dict[str, Any]:
    return {"big": state["name"] * 1_500_000}


flow = graph.chain(START, only, END).compile()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with two runs, each with a blob of its own."""

    async def main() -> None:
        async with hf.Engine(tmp_path / "runs.db", flows=[flow], run_base="") as engine:
            for name in ("a", "b"):
                await engine.run(flow, {"name": name}, run_id=name)

    asyncio.run(main())
    store = open_store(tmp_path / "runs.db")
    yield store
    store.close()


def damage(folder: Path, store: Store, run_id: str) -> str:
    """Let the blob of a run be another than was put."""
    (digest,) = archive.references(store, store.run(run_id))
    (folder / digest[:2] / digest[2:4] / digest).write_bytes(b"rust")
    return digest


def problems(url: str) -> dict[str, int]:
    """How many problems each run of a store has."""
    store = open_store(url)
    try:
        return {run_id: len(verification.verify(store, run_id).problems) for run_id in ("a", "b")}
    finally:
        store.close()


def test_a_damaged_blob_is_told_and_the_backup_has_everything_else(store: Store, tmp_path: Path) -> None:
    damaged = damage(tmp_path / "runs.db.blobs", store, "a")
    with pytest.raises(
        StoreCorrupt, match=f"copy was written, but not completely: 1 of its blobs cannot be read .*{damaged}"
    ):
        back_up(store, str(tmp_path / "copy"))
    assert problems(restore(str(tmp_path / "copy"), str(tmp_path / "new.db"))) == {"a": 1, "b": 0}


def test_a_backup_with_a_damaged_blob_is_restored_as_far_as_it_is_whole(store: Store, tmp_path: Path) -> None:
    back_up(store, str(tmp_path / "copy"))
    damaged = damage(tmp_path / "copy.blobs", store, "b")
    with pytest.raises(StoreCorrupt, match=f"new\\.db was made, but not completely: .*{damaged}"):
        restore(str(tmp_path / "copy"), str(tmp_path / "new.db"))
    assert problems(str(tmp_path / "new.db")) == {"a": 0, "b": 1}


def test_a_blob_that_is_removed_while_others_are_copied_is_nobodys(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unused = Blob.of(b"of nobody")
    store.blobs.put(unused.digest, unused.body)
    listed = store.blobs.digests

    def swept_at_once() -> Iterator[str]:
        found = list(listed())
        store.blobs.delete(unused.digest)
        return iter(found)

    monkeypatch.setattr(store.blobs, "digests", swept_at_once)
    assert back_up(store, str(tmp_path / "copy")) == 2
    assert unused.digest not in set(FileBlobs(tmp_path / "copy.blobs").digests())
