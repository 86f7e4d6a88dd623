"""`prune --json` tells what went, also where it ended with an error or was interrupted in the middle: it is gone all the same."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.cli import care
from holdfast.errors import StoreUnusable
from holdfast.storage.contract import Query
from holdfast.storage.urls import open_store
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import retention
from holdfast.upkeep.retention import Choice, RetentionPolicy

graph = Graph("one", dict)


@graph.node
async def only(state: dict[str, Any]) -> dict[str, Any]:
    return {"done": True}


flow = graph.chain(START, only, END).compile()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with three runs that ended, one after the other."""
    made = str(tmp_path / "runs.db")
    clock = ManualClock(auto=True)

    async def main() -> None:
        async with hf.Engine(made, flows=[flow], clock=clock, luck=random.Random(1), inline=True) as engine:
            for run_id in ("r0", "r1", "r2"):
                await engine.run(flow, {}, run_id=run_id)
                clock.advance(10)

    asyncio.run(main())
    return made


def left(url: str) -> list[str]:
    store = open_store(url)
    try:
        return [row.run_id for row in store.runs(Query())]
    finally:
        store.close()


@pytest.mark.parametrize(
    "ends", [StoreUnusable("the disk is gone."), KeyboardInterrupt()], ids=["error", "signal"]
)
def test_what_went_before_it_ended_is_told(
    url: str, ends: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = retention.delete_all
    monkeypatch.setattr(retention, "BATCH", 2)

    def cut(*asked: Any) -> Iterator[list[Choice]]:
        for choices in real(*asked):
            yield choices
            raise ends

    monkeypatch.setattr(retention, "delete_all", cut)
    with pytest.raises(type(ends)):
        care._prune_many([RetentionPolicy(keep=0)], None, False, url, dry_run=False, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [choice["run_id"] for choice in told["deleted"]] == ["r2", "r1"]
    assert (told["dry_run"], told["swept"]) == (False, None)
    assert told["error"] == (str(ends) or "KeyboardInterrupt")
    assert left(url) == ["r0"]


def test_where_nothing_went_before_the_error_that_is_told_too(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*asked: Any) -> Iterator[list[Choice]]:
        raise StoreUnusable("the disk is gone.")

    monkeypatch.setattr(retention, "delete_all", refuse)
    with pytest.raises(StoreUnusable):
        care._prune_many([RetentionPolicy(keep=0)], None, False, url, dry_run=False, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["deleted"], told["kept"], told["error"]) == ([], [], "the disk is gone.")
    assert left(url) == ["r2", "r1", "r0"]


def test_where_all_went_there_is_no_error_to_tell(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    care._prune_many([RetentionPolicy(keep=1)], None, False, url, dry_run=False, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert "error" not in told
    assert [choice["run_id"] for choice in told["deleted"]] == ["r1", "r0"]
    assert [choice["run_id"] for choice in told["kept"]] == ["r2"]
