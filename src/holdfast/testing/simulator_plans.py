"""Simulated plans: runs of random plans on several workers that crash between any two appends.

    outcome = plan_schedule(seed).run()

The seed draws the plan (`plan_sketches`): guards, joins, failures that edges take, policies that ask before and after the effect,
results that fail their verification, costs; and the schedule and the budget of its run. Operators approve, raise a budget that is
spent, pause, rewind, fork and prune. Whatever happens, the run must come to what the oracle of the sketch says, and the checker
must find no violation in its log, nor in what its nodes saw.

Invariant: every choice is drawn from the random generator of the schedule.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

from holdfast.core.budget import Budget
from holdfast.core.graph import Flow
from holdfast.core.run_state import FINAL
from holdfast.reading import history
from holdfast.testing import checker
from holdfast.testing import simulator_oracle as oracle
from holdfast.testing.copied_flows import CopiedSource
from holdfast.testing.plan_sketches import PlanSketch, draw_plan
from holdfast.testing.simulator import Disk, Schedule
from holdfast.testing.simulator_flows import witness_flow
from holdfast.testing.simulator_hands import Hand, Subject
from holdfast.testing.witness import Line

PLANS = 300
"""The number of different plans."""
_BUDGET_MORE = 10
"""By how many tokens an operator raises a budget that is spent."""


@lru_cache(maxsize=PLANS)
def sketched(number: int) -> PlanSketch:
    """Return one of the plans."""
    return draw_plan(random.Random(f"plan {number}"), least=3, most=9, handled=True, judged=0.4, slow=True)


def plan_schedule(seed: int, *, disk: Disk | None = None) -> PlanSchedule:
    """Make the schedule of a seed: one run of a plan."""
    luck = random.Random(f"planned {seed}")
    sketch = sketched(luck.randrange(PLANS))
    limits: dict[str, Any] = {"schedule": luck.choice(("eager", "eager", "layered"))}
    if luck.random() < 0.4:
        limits["budget"] = Budget(tokens=luck.randint(2, 12))
    return PlanSchedule(seed, sketch, Subject("p", witness_flow(sketch.flow()), limits=limits), disk=disk)


class PlanHand(Hand):
    """The simulated operator of the run of a plan."""

    def __init__(self, scene: PlanSchedule, subject: Subject, *, calm: bool) -> None:
        super().__init__(scene, subject, calm=calm)
        draw = random.Random(f"planner {scene.seed} {subject.run_id}")
        self._forks = not calm and subject.of is None and not scene.tidies and draw.random() < 0.2

    async def _repair(self) -> None:
        """Raise the budget of a run that has spent it. Any other failure is one that an edge had to take."""
        state = history.load(self._scene.disk, self._run_id)
        if state.failure is None or state.failure.type != "BudgetExceeded":
            await super()._repair()
            return
        budget = Budget(tokens=state.tokens + _BUDGET_MORE)
        await self._ask(lambda engine: engine.resume(self._run_id, budget=budget), waits=False)


class PlanSchedule(Schedule):
    """One simulation of a plan, with one seed."""

    def __init__(self, seed: int, sketch: PlanSketch, subject: Subject, **options: Any) -> None:
        self.sketch = sketch
        super().__init__(seed, [subject], answers={}, **options)
        self.asks = False

    @property
    def flows(self) -> list[Flow[Any]]:
        """The flows that every engine knows. A process that boots has made no flow from a stored plan yet."""
        for flow in super().flows:
            if isinstance(flow.source, CopiedSource):
                flow.source.forget()
        return super().flows

    def make_hand(self, subject: Subject, *, calm: bool) -> Hand:
        return PlanHand(self, subject, calm=calm)

    def judge_rest(self, walks: dict[str, oracle.Walk]) -> list[str]:
        """Return what the checker finds, and how the runs differ from what the oracle of the plan says."""
        wrong = [str(violation) for violation in checker.check(self.disk, testified=self._seen())]
        for run_id in self.run_ids():
            if self.disk.run(run_id).status == "completed":
                wrong += self._judge_result(run_id)
            elif self.disk.run(run_id).status not in FINAL:
                wrong.append(f"{run_id}: the run is {self.disk.run(run_id).status} at the end")
        return wrong

    def _seen(self) -> list[Line]:
        """Return the calls of nodes as lines of a witness file."""
        names = ("node", "iteration", "execution", "attempt", "item", "what")
        return [
            {"run": entry.run_id, **{name: getattr(entry, name) for name in names}}
            for entry in self.witness.entries
        ]

    def _judge_result(self, run_id: str) -> list[str]:
        state, expected = history.load(self.disk, run_id), self.sketch.expect()
        outputs = {name: {"n": told["n"]} for name, told in state.values["outputs"].items()}
        statuses = {name: node.status for name, node in state.nodes.items()}
        wanted = {
            name: "skipped" if status == "handled" else status for name, status in expected.statuses.items()
        }
        wrong = []
        if outputs != expected.outputs:
            wrong.append(f"{run_id}: the outputs are {outputs}, but should be {expected.outputs}")
        if statuses != wanted:
            wrong.append(f"{run_id}: the nodes are {statuses}, but should be {wanted}")
        return wrong
