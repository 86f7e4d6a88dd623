"""Workers execute plans with nothing but the capabilities, and give back what they cannot execute."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast import plan
from holdfast.runtime.worker import Trouble

DOCUMENT = {
    "holdfast": "plan/1",
    "tasks": [
        {"id": "first", "capability": "one@1", "input": {}},
        {"id": "second", "capability": "two@1", "input": {"of": {"$ref": "outputs.first.by"}}},
    ],
    "edges": [{"from": "first", "to": "second", "guard": "outputs.first.by == 'one'"}],
}


def capabilities(*names: str) -> plan.Capabilities:
    found = plan.Capabilities("shop")
    for name in names:

        @found.capability(f"{name}@1")
        async def work(given: dict[str, Any], by: str = name) -> dict[str, Any]:
            return {"by": by, **given}

    return found


def started(store: str) -> None:
    hf.start(capabilities("one", "two").plan(DOCUMENT), run_id="r", store=store)


def work(store: str, source: plan.Capabilities) -> list[Trouble]:
    reported: list[Trouble] = []

    async def use() -> None:
        async with hf.Engine(store, flows=[source]) as engine:
            await engine.work(until="idle", on_report=reported.append)

    asyncio.run(use())
    return reported


def test_a_worker_needs_only_the_capabilities(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    started(store)
    assert work(store, capabilities("one", "two")) == []
    run = hf.get("r", store=store)
    assert (run.status, run.state["outputs"]["second"]) == ("completed", {"by": "two", "of": "one"})


def test_a_worker_that_lacks_a_capability_gives_the_run_back_and_names_it(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    started(store)
    (told,) = work(store, capabilities("one"))
    assert told.run_id == "r"
    assert "'two@1'" in told.message
    assert [event.kind for event in hf.events("r", store=store)] == ["RunCreated"]
    assert work(store, capabilities("one", "two")) == []
    assert hf.get("r", store=store).status == "completed"
