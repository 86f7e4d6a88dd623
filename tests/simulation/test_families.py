"""Simulated families: runs that call runs, on several workers, with faults, rewinds, cancels and repairs at any time."""

from __future__ import annotations

import pytest

from holdfast.testing.simulator_families import family_schedule

SEEDS = range(60)


@pytest.mark.parametrize("part", range(4))
def test_no_schedule_of_a_family_breaks_an_invariant(part: int) -> None:
    for seed in SEEDS[part::4]:
        assert family_schedule(seed).run().violations == [], f"seed {seed}"


def test_the_same_seed_gives_the_same_family() -> None:
    assert family_schedule(7).run().trace == family_schedule(7).run().trace


def test_schedules_reach_every_situation_of_a_family() -> None:
    """They start three generations, adopt children after rewinds, mend them, and cancel callers."""
    seen: set[str] = set()
    for seed in range(120):
        schedule = family_schedule(seed)
        schedule.run()
        runs = schedule.run_ids()
        seen.add(f"{max(run_id.count('.') for run_id in runs)} generations")
        for run_id in runs:
            seen.add(f"a run is {schedule.disk.run(run_id).status}")
            for row in schedule.ledger.rows[run_id]:
                if row.kind == "ChildStarted" and b'"adopted"' in row.body:
                    seen.add("adopted")
                elif row.kind == "ChildAwaited" and b'"anew"' in row.body:
                    seen.add("awaited anew")
                elif row.kind == "ChildEnded":
                    seen |= {f"a child is {status}" for status in STATUSES if status.encode() in row.body}
    assert seen >= {"2 generations", "adopted", "awaited anew", "a run is cancelled", "a run is completed"}
    assert seen >= {f"a child is {status}" for status in STATUSES}


STATUSES = ("completed", "failed", "cancelled")
