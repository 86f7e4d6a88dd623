"""Random plan documents come to what plain Python says, eagerly and layer by layer. `make prove` executes 2,000 of them."""

from __future__ import annotations

import pytest
import random_plans

PLANS = 80


@pytest.mark.rotating
@pytest.mark.parametrize("part", range(4))
def test_a_random_plan_comes_to_what_plain_python_says(part: int) -> None:
    figures = random_plans.prove(part * PLANS // 4, PLANS // 4)
    assert not figures.wrong, "\n".join(figures.wrong[:10])


def test_random_plans_have_tasks_of_every_fate() -> None:
    statuses: set[str] = set()
    for seed in range(40):
        sketch, _, _ = random_plans.draw(seed)
        statuses |= {*sketch.expect().statuses.values()}
        assert 5 <= len(sketch.nodes) <= 40
    assert statuses == {"completed", "skipped", "handled", "failed", "unreached"}


def test_a_difference_from_the_oracle_is_found() -> None:
    seed = next(seed for seed in range(40) if random_plans.draw(seed)[0].expect().completes)
    sketch, flow, _ = random_plans.draw(seed)
    expected = sketch.expect()
    name = next(name for name, status in expected.statuses.items() if status == "completed")
    expected.outputs[name]["n"] += 1
    assert any("the outputs are" in told for told in random_plans.compare(sketch, flow, "eager", expected))
