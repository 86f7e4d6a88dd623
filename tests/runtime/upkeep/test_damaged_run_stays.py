"""A run that is damaged is not archived and stays, with the reason; the others are archived and go."""

from __future__ import annotations

import asyncio
from itertools import chain
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.storage.contract import Query, Store
from holdfast.storage.urls import open_store
from holdfast.upkeep import archive, retention
from holdfast.upkeep.retention import RetentionPolicy

graph = Graph("big", dict)


@graph.node
async def only(state: dict[str, Any]) -> dict[str, Any]:
    return {"big": state["name"] * 1_500_000}


flow = graph.chain(START, only, END).compile()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store with three runs that ended, each with a blob of its own."""
    made = tmp_path / "runs.db"

    async def main() -> None:
        async with hf.Engine(made, flows=[flow], run_base="") as engine:
            for name in ("a", "b", "c"):
                await engine.run(flow, {"name": name}, run_id=name)

    asyncio.run(main())
    return made


def pruned(store: Store, place: Path) -> dict[str, str]:
    """What stayed, and why."""
    chosen = retention.choose(store, [RetentionPolicy(keep=0)])
    done = list(chain.from_iterable(retention.delete_all(store, chosen, f"{place}/")))
    return {choice.run_id: choice.why for choice in done if not choice.goes}


def test_a_run_whose_blob_is_missing_does_not_keep_the_others_from_going(file: Path, tmp_path: Path) -> None:
    store = open_store(file)
    (missing,) = archive.references(store, store.run("b"))
    store.blobs.delete(missing)
    kept = pruned(store, tmp_path / "archive")
    assert list(kept) == ["b"]
    assert kept["b"].startswith(
        "the run cannot be archived, because its log is damaged: event 3 (NodeCompleted): blob "
    )
    assert [row.run_id for row in store.runs(Query())] == ["b"]
    store.close()


def test_a_run_that_was_altered_does_not_keep_the_others_from_going(file: Path, tmp_path: Path) -> None:
    database = apsw.Connection(str(file))
    database.execute("update events set at = at + 1 where key & 4294967295 = 2 and key >> 32 = "
                     "(select key from runs where run_id = 'b')")  # fmt: skip
    database.close()
    store = open_store(file)
    kept = pruned(store, tmp_path / "archive")
    assert list(kept) == ["b"]
    assert "event 2 (RunClaimed)" in kept["b"] or "event 2 (NodeStarted)" in kept["b"]
    store.close()
