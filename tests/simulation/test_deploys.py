"""Simulated deploys: workers with the old and the new code of a flow on one store, with faults at any time."""

from __future__ import annotations

import pytest

from holdfast.testing.simulator_deploys import deploy_schedule

SEEDS = range(120)


@pytest.mark.parametrize("part", range(4))
def test_no_schedule_of_a_deploy_breaks_an_invariant(part: int) -> None:
    for seed in SEEDS[part::4]:
        assert deploy_schedule(seed).run().violations == [], f"seed {seed}"


def test_the_same_seed_gives_the_same_deploy() -> None:
    assert deploy_schedule(7).run().trace == deploy_schedule(7).run().trace


def test_schedules_reach_every_situation_of_a_deploy() -> None:
    """Runs continue with the new code because an operator asked for it, and others end with the code that they began with."""
    seen: set[str] = set()
    for seed in range(40):
        schedule = deploy_schedule(seed)
        schedule.run()
        seen |= {"a worker refuses a run"} if schedule.reports else set()
        for run_id in schedule.run_ids():
            kinds = [row.kind for row in schedule.ledger.rows[run_id]]
            changed = "FlowChanged" in kinds
            seen.add(f"a run ends {'with changed code' if changed else 'with its code'}")
            if kinds.count("RunClaimed") > 1 and not changed:
                seen.add("a run passes from worker to worker")
    assert seen == {
        "a worker refuses a run",
        "a run ends with changed code",
        "a run ends with its code",
        "a run passes from worker to worker",
    }
