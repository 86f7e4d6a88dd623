"""Simulate many plans, for `make prove-night`: python tests/simulation/simulated_plans.py --schedules 5000

The program prints the figures, and exits with 1 if there was a violation.
"""

from __future__ import annotations

import argparse
import gc
import sys

from holdfast.testing.simulator import SimulationReport, report_of
from holdfast.testing.simulator_plans import plan_schedule

_COLLECT_EVERY = 50


def prove(first: int, count: int) -> SimulationReport:
    """Run the schedules of these seeds."""
    outcomes = []
    for seed in range(first, first + count):
        outcomes.append(plan_schedule(seed).run())
        if seed % _COLLECT_EVERY == 0:
            gc.collect()
    return report_of(outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--schedules", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    report = prove(given.first, given.schedules)
    print(report)
    return bool(report.violations)


if __name__ == "__main__":
    sys.exit(main())
