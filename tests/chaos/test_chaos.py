"""Chaos tests of a fleet, on both databases: a small part of `python -m tests.chaos`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos import Ground, Plan, PostgresGround, SqliteGround, Summary, endure

SMALL = Plan(
    seed=0,
    runs=60,
    ttl_s=1.0,
    kill_every_s=(1.0, 2.0),
    pause_every_s=(0.3, 0.6),
    pause_beyond_s=(0.1, 0.5),
    restart_every_s=(1.5, 2.5),
    batches=4,
    to_the_end=False,
    patience_s=120,
)


@pytest.fixture(params=["sqlite", "postgres"])
def ground(request: Any, tmp_path: Path) -> Iterator[Ground]:
    made = SqliteGround(tmp_path) if request.param == "sqlite" else PostgresGround()
    yield made
    made.close()


def endured(ground: Ground, folder: Path, plan: Plan) -> Summary:
    summary = endure(ground, folder, replace(plan, seed=random.randrange(1_000_000)))
    print(summary)
    return summary


def test_a_fleet_that_is_killed_paused_and_cut_off_does_everything_once(
    ground: Ground, tmp_path: Path
) -> None:
    summary = endured(ground, tmp_path, SMALL)
    assert summary.violations == [], summary
    assert summary.ended == SMALL.runs
    assert summary.kills > 0
    assert summary.pauses > 0
    assert (summary.restarts > 0) == (ground.name == "PostgreSQL")


def test_without_fences_a_stale_write_is_accepted_and_seen(ground: Ground, tmp_path: Path) -> None:
    control = replace(
        SMALL,
        kill_every_s=None,
        restart_every_s=None,
        before_a_write=1.0,
        linger=1.0,
        batches=1,
        least=0,
        runs=1000,
        to_the_end=True,
        fenced=False,
    )
    summary = endured(ground, tmp_path, control)
    assert summary.stale_accepted > 0, summary
    assert any("stale writes were accepted" in told for told in summary.violations)
