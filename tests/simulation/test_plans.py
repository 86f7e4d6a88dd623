"""Simulated plans: random plans on several workers, with faults, rewinds, forks and budgets that are raised."""

from __future__ import annotations

from collections import Counter
from typing import Any, NoReturn

import planted
import pytest

from holdfast.runtime import judging
from holdfast.testing.simulator_plans import plan_schedule

SEEDS = range(200)


@pytest.mark.parametrize("part", range(4))
def test_no_schedule_of_a_plan_breaks_an_invariant(part: int) -> None:
    for seed in SEEDS[part::4]:
        assert plan_schedule(seed).run().violations == [], f"seed {seed}"


def test_the_same_seed_gives_the_same_plan_whatever_ran_before() -> None:
    traces = [plan_schedule(seed).run().trace for seed in (7, 8, 7, 9, 8)]
    assert (traces[0], traces[1]) == (traces[2], traces[4])


def test_schedules_reach_every_situation_of_a_plan() -> None:
    """Edges are decided and nodes skipped, policies ask before and after the effect, results are kept, budgets are raised."""
    seen: Counter[str] = Counter()
    for seed in range(150):
        schedule = plan_schedule(seed)
        schedule.run()
        for rows in schedule.ledger.rows.values():
            seen.update(row.kind for row in rows)
            seen.update("caught" for row in rows if row.kind == "NodeSkipped" and b'"caught"' in row.body)
            seen.update("asked about a result" for row in rows if b'"about":"result"' in row.body)
            seen.update(
                "budget raised" for row in rows if row.kind == "RunResumed" and b'"budget"' in row.body
            )
    wanted = {
        "GuardEvaluated", "NodesSkipped", "PolicyDecided", "OutputVerified", "NodeReturned", "LayerCompleted", "RunForked",
        "RunRewound", "caught", "asked about a result", "budget raised",
    }  # fmt: skip
    assert wanted <= seen.keys()


SAID = {
    "a_guard_is_evaluated_twice": "are evaluated a second time",
    "the_skip_is_not_closed": "leaves nodes that can never run",
    "an_allowance_is_not_durable_before_the_call": "times, but the log has",
    "a_denied_task_is_begun": "was denied by its policies",
    "what_has_returned_is_run_again": "is called again although what it returned is kept",
    "a_resume_resets_the_budget": "begins although the budget of the run is spent",
}
"""Planted bug -> what the checker says about it."""


@pytest.mark.rotating
@pytest.mark.parametrize("name", SAID)
def test_a_planted_bug_of_a_plan_is_found_by_the_rule_that_it_breaks(name: str) -> None:
    with planted.BUGS[name]():
        for seed in range(2_000):
            if any(SAID[name] in violation for violation in plan_schedule(seed).run().violations):
                return
    pytest.fail(f"no schedule finds {name}")


def test_a_plan_that_fails_although_no_task_is_meant_to_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> NoReturn:
        raise ValueError("broken")

    monkeypatch.setattr(judging, "complete", fail)
    assert "p failed at n0: ValueError: broken" in plan_schedule(0).run().violations[0]
