"""A run whose node kills every process that tries it is told as quarantined, on the real thing: processes that died in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import Stage, Work

import holdfast as hf
from holdfast.upkeep import doctor


@pytest.fixture(params=["memory", "sqlite"])
def stage(request: Any, tmp_path: Path) -> Any:
    stage = Stage(request.param, tmp_path)
    yield stage
    stage.close()


def quarantined(stage: Stage) -> None:
    """Leave the run `r` as its third death in the same node leaves it."""

    def body(state: Work, ctx: Any) -> Any:
        yield stage.dies(ctx)

    flow = stage.one(body)
    for _ in range(3):
        stage.crash(flow)
    with pytest.raises(hf.RunFailed):
        stage.resume(flow)


def test_a_quarantined_run_is_told_apart_from_one_that_failed(stage: Stage) -> None:
    quarantined(stage)

    def fails(state: Work, ctx: Any) -> Any:
        yield ctx.checkpoint("here")
        raise ValueError("no luck")

    stage.fails(stage.one(fails), run_id="s")
    found = {one.run_id: one for one in doctor.examine(stage.store, None, stage.clock.now())}
    assert {run_id: one.kind for run_id, one in found.items()} == {"r": "quarantined", "s": "failed"}
    assert found["r"].reason.startswith(
        "node only failed: Quarantined: the process ended while 'only' ran, 3 times in a row"
    )
    assert not found["r"].waits


def test_the_doctor_says_how_a_quarantined_run_is_carried_on(tmp_path: Path) -> None:
    stage = Stage("sqlite", tmp_path)
    quarantined(stage)
    stage.close()
    asked = [sys.executable, "-m", "holdfast.cli", "doctor", "--json", "--store", str(tmp_path / "runs.db")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    done = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    (finding,) = [one for one in json.loads(done.stdout)["findings"] if one.get("run_id") == "r"]
    assert (done.returncode, finding["kind"]) == (10, "quarantined")
    assert any("--force" in way["command"] for way in finding["remedies"]), finding["remedies"]
