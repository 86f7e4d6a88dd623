"""Measure the simulator, for `make prove`: schedules per minute, their size and faults, and the planted bugs found.

    python tests/simulation/figures.py --seconds 60 --processes 2

The program prints one line per figure, and exits with 1 if there was a violation or a planted bug was not found.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import multiprocessing
import sys
import time
from collections.abc import Iterator

import msgspec
import planted

from holdfast.testing.simulator import OUTCOME_SEEDS, Outcome, figures, report_of, schedule
from holdfast.testing.simulator_flows import TALES, tale

SHARP = (
    0, 2, 3, 7, 8, 11, 12, 14, 15, 16, 19, 21, 27, 28, 29, 30, 32, 34, 45, 48, 51, 53, 56, 74, 75, 79, 80, 83, 102, 114, 116,
    118, 124, 131, 226, 248, 252, 336, 540, 572, 584, 596, 685, 719, 1252, 2834, 6812, 19156,
)  # fmt: skip
"""Seeds that have found many planted bugs: a search begins with them."""
SHARP_OUTCOMES = (OUTCOME_SEEDS + 106, OUTCOME_SEEDS + 147)
"""Seeds of schedules in which an answer says that a step has happened, which is rare."""
SEARCHED = 1500
SEARCHED_OUTCOMES = 60
OUTCOMES_EVERY = 8
"""One schedule of so many is about the outcomes of steps."""


def seeds_to_find() -> Iterator[int]:
    """Yield the seeds that are tried to find a planted bug."""
    yield from SHARP
    yield from range(OUTCOME_SEEDS, OUTCOME_SEEDS + SEARCHED_OUTCOMES)
    yield from SHARP_OUTCOMES
    yield from range(SEARCHED)
    yield from range(OUTCOME_SEEDS + SEARCHED_OUTCOMES, OUTCOME_SEEDS + 5 * SEARCHED_OUTCOMES)


def play(first: int, step: int, seconds: float) -> list[Outcome]:
    """Run schedules one after the other for this many seconds."""
    for number in range(TALES):
        tale(number)
    gc.collect()
    gc.freeze()  # garbage collections then look only at the objects that schedules make
    gc.disable()  # collections happen only between schedules
    outcomes = []
    over_at = time.monotonic() + seconds
    for seed in itertools.count(first, step):
        outcome = schedule(seed + (seed % OUTCOMES_EVERY == 0) * OUTCOME_SEEDS).run()
        if (
            outcome.faults or outcome.violations
        ):  # one schedule in a thousand is over before its first fault, and does not count
            outcomes.append(msgspec.structs.replace(outcome, states={}))
        gc.collect(
            0
        )  # the schedule's objects are still in the processor's cache; each outcome is visited only once
        if time.monotonic() >= over_at:
            return outcomes
    raise AssertionError


def prove(seconds: float = 60.0, processes: int = 2, first: int = 0) -> tuple[dict[str, str], bool]:
    """Run schedules for this many seconds on several processes. Return the figures, and whether there was no violation."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        wanted = [(first + number, processes, seconds) for number in range(processes)]
        outcomes = [outcome for part in pool.starmap(play, wanted) for outcome in part]
    report = report_of(outcomes)
    told = {
        "schedules/min": f"{report.schedules / seconds * 60:,.0f} on {processes} processes",
        **figures(report),
    }
    return told, not report.violations


def prove_teeth() -> tuple[dict[str, str], bool]:
    """Search for every planted bug. Return how many were found, and whether all were."""
    found = {}
    for name in planted.BUGS:
        found[name] = planted.found(name, seeds_to_find())
        gc.collect()
    survivors = [name for name, seed in found.items() if seed is None]
    told = f"{len(found) - len(survivors)} of {len(found)}"
    if survivors:
        told += f"; survivors: {', '.join(survivors)}"
    return {"planted bugs found": told}, not survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--no-teeth", action="store_true", help="do not search for the planted bugs")
    given = parser.parse_args()
    told, well = prove(given.seconds, given.processes, given.first)
    if not given.no_teeth:
        teeth, sharp = prove_teeth()
        told |= teeth
        well = well and sharp
    for name, value in told.items():
        print(f"{name:<24}{value}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
