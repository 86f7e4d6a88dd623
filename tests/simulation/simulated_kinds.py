"""Simulate many plans, families or rolling deploys, for `make prove-night`:

    python tests/simulation/simulated_kinds.py families --schedules 5000

The program prints the figures, and exits with 1 if there was a violation.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable

from holdfast.testing.simulator import Schedule, SimulationReport, report_of
from holdfast.testing.simulator_deploys import deploy_schedule
from holdfast.testing.simulator_families import family_schedule
from holdfast.testing.simulator_plans import plan_schedule

KINDS: dict[str, Callable[[int], Schedule]] = {
    "plans": plan_schedule,
    "families": family_schedule,
    "deploys": deploy_schedule,
}
"""What a schedule is about -> the function that makes the schedule of a seed."""
_COLLECT_EVERY = 50


def prove(kind: str, first: int, count: int) -> SimulationReport:
    """Run the schedules of these seeds."""
    outcomes = []
    for seed in range(first, first + count):
        outcomes.append(KINDS[kind](seed).run())
        if seed % _COLLECT_EVERY == 0:
            gc.collect()
    return report_of(outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--schedules", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    report = prove(given.kind, given.first, given.schedules)
    print(report)
    return bool(report.violations)


if __name__ == "__main__":
    sys.exit(main())
