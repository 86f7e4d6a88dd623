"""What a dry run of `prune` says is what the real one then does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.cli import care
from holdfast.storage.urls import open_store
from holdfast.upkeep import retention
from holdfast.upkeep.retention import Choice, RetentionPolicy

ENDED = RetentionPolicy(keep=0)

graph = Graph("one", dict)


@graph.node
async def only(state: dict[str, Any]) -> dict[str, Any]:
    return {"done": True}


flow = graph.chain(START, only, END).compile()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Runs that ended, of which others were forked; the last fork has not ended, that of `alone` has."""
    made = str(tmp_path / "runs.db")

    async def main() -> None:
        async with hf.Engine(made, flows=[flow], run_base="") as engine:
            for run_id in ("parent", "alone"):
                await engine.run(flow, {}, run_id=run_id)
            await engine.fork("parent@1", run_id="child")
            await engine.resume("child")
            await engine.fork("child@2", run_id="grandchild")
            await engine.fork("alone@1", run_id="ended")
            await engine.resume("ended")

    asyncio.run(main())
    return made


def told(choices: Sequence[Choice]) -> dict[str, tuple[bool, str]]:
    return {choice.run_id: (choice.goes, choice.why) for choice in choices}


def test_a_dry_run_keeps_what_a_fork_that_stays_needs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    care._prune_many([ENDED], None, False, url, dry_run=True, as_json=False)
    said = capsys.readouterr().out
    assert "child: run 'grandchild' was forked from it" in said
    assert "parent: run 'child' was forked from it" in said
    assert "2 runs would be deleted, 2 kept" in said


def test_a_dry_run_says_what_the_real_one_does(url: str) -> None:
    store = open_store(url)
    chosen = list(retention.choose(store, [ENDED]))
    foretold = told(list(retention.preview_deletion(store, lambda: chosen)))
    assert told(list(chain.from_iterable(retention.delete_all(store, chosen)))) == foretold
    assert sorted(run_id for run_id, (goes, _) in foretold.items() if goes) == ["alone", "ended"]
    store.close()
