"""`python -m bench`: measure everything, print it beside its targets, and keep it as JSON.

A ratio is always made of figures of the same round, with the raw rate measured before and after: the machine may be half
as fast a minute later, and the ratio stays.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench import raw, report, workloads
from bench.report import Figure, at_least, at_most
from bench.workloads import (
    CHAIN_NODES,
    FLEET_NODES,
    FLEET_RUNS,
    GROW_BYTES,
    StoreKind,
    Took,
    chain,
    count_async,
    count_in_thread,
    fleet,
)

_DISTURBED = 1.4
_DAG_WIDTH = 10
_DAG_SMALL, _DAG_LARGE = 100, 10_000


@dataclass(frozen=True)
class Bench:
    """Where and how thoroughly to measure."""

    folder: Path
    commits: raw.Commits
    progress: report.Progress
    rounds: int
    large: int
    """Nodes of the large DAG."""

    @contextmanager
    def fresh(self) -> Iterator[Path]:
        """A folder for one store, gone afterwards."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            yield Path(name)

    def each_round(self, what: str, rounds: int | None = None) -> Iterator[int]:
        rounds = rounds or self.rounds
        for number in range(rounds):
            self.progress.say(what, f"round {number + 1} of {rounds}")
            yield number


class Round(NamedTuple):
    """One measurement of steps per second, between two of the raw rate."""

    before: float
    rate: float
    after: float
    cpu_us: float
    """CPU time a step, in all threads."""

    @property
    def ratio(self) -> float:
        return self.rate / statistics.mean((self.before, self.after))

    @property
    def disturbed(self) -> bool:
        """Whether the disk changed its speed meanwhile, so that the ratio says nothing."""
        return max(self.before, self.after) > _DISTURBED * min(self.before, self.after)


def steps(bench: Bench) -> list[Figure]:
    """Durable steps per second beside raw commits per second. Disturbed rounds are measured again, up to three times as many."""
    on_disk: StoreKind = "sqlite"
    return [
        _beside_raw(
            bench, "chain, async nodes", 0.45, CHAIN_NODES, lambda at: chain(on_disk, at, count_async)
        ),
        _beside_raw(
            bench, "chain, def nodes", 0.3, CHAIN_NODES, lambda at: chain(on_disk, at, count_in_thread)
        ),
        _beside_raw(bench, "fleet, 1,000 runs", 1.5, FLEET_RUNS * FLEET_NODES, lambda at: fleet(on_disk, at)),
    ]


def _beside_raw(bench: Bench, name: str, target: float, count: int, work: Callable[[Path], Took]) -> Figure:
    found: list[Round] = []
    before = bench.commits.rate()
    for _ in bench.each_round(name, 3 * bench.rounds):
        with bench.fresh() as folder:
            took = work(folder)
        after = bench.commits.rate()
        found.append(Round(before, count / took.wall_s, after, took.cpu_s / count * 1e6))
        before = after
        if sum(not seen.disturbed for seen in found) == bench.rounds:
            break
    calm = [seen for seen in found if not seen.disturbed]
    counted = calm or found
    beside = {
        "steps/s": [seen.rate for seen in counted],
        "µs CPU": [seen.cpu_us for seen in counted],
        "rounds": [float(len(calm))],
        "disturbed": [float(len(found) - len(calm))],
    }
    return Figure(name, "of raw", [seen.ratio for seen in counted], at_least(target), beside)


def costs(bench: Bench) -> list[Figure]:
    """CPU time a step without a disk: the steadiest figure there is, and the one a change of the code moves."""
    contests: list[tuple[str, int, Callable[[Path], Took]]] = [
        ("chain, async nodes, memory", CHAIN_NODES, lambda at: chain("memory", at, count_async)),
        ("fleet, 1,000 runs, memory", FLEET_RUNS * FLEET_NODES, lambda at: fleet("memory", at)),
    ]
    figures = []
    for name, count, work in contests:
        cpu = [work(bench.folder).cpu_s / count * 1e6 for _ in bench.each_round(name)]
        figures.append(Figure(name, "µs CPU", cpu))
    return figures


def growth(bench: Bench) -> list[Figure]:
    """Bytes stored by a run that appends 1 KB a step."""
    figures = []
    for shape in ("chain", "loop"):
        grown = []
        for _ in bench.each_round(f"grow, {shape}", 1):
            with bench.fresh() as folder:
                grown.append(workloads.grow(folder, loop=shape == "loop"))
        size = [found.stored_bytes / 1e6 for found in grown]
        beside = {
            "of the payload": [found.stored_bytes / (1000 * GROW_BYTES) for found in grown],
            "ms a step": [found.wall_s for found in grown],  # seconds for a thousand steps
        }
        figures.append(Figure(f"grow, {shape}", "MB", size, at_most(2.0), beside))
    return figures


def resuming(bench: Bench) -> list[Figure]:
    """From `resume` to the first line of the node, for a run that stopped at different places of its second half."""
    found = []
    for number in bench.each_round("resume, 1,000 nodes"):
        with bench.fresh() as folder:
            stops_at = CHAIN_NODES - 1 - number * CHAIN_NODES // (2 * bench.rounds)
            found.append(workloads.resume(folder, stops_at))
    to_node_ms = [resumed.to_node.wall_s * 1e3 for resumed in found]
    beside = {
        "ms CPU": [resumed.to_node.cpu_s * 1e3 for resumed in found],
        "ms to open the engine": [resumed.open_s * 1e3 for resumed in found],
    }
    return [Figure("resume, 1,000 nodes", "ms", to_node_ms, at_most(20.0), beside)]


def graphs(bench: Bench) -> list[Figure]:
    """What a node of a large graph costs, beside one of a small graph of the same shape."""
    bench.progress.say(f"compile a DAG of {bench.large:,} nodes")
    began = time.perf_counter()
    large = workloads.dag_flow(bench.large, _DAG_WIDTH)
    compiled_s = time.perf_counter() - began
    small = workloads.dag_flow(_DAG_SMALL, _DAG_WIDTH)
    figures = [Figure(f"compile, {bench.large:,} nodes", "s", [compiled_s])]
    kinds: tuple[StoreKind, ...] = ("memory", "sqlite")
    for kind in kinds:
        ratios, costs_us = [], []
        for _ in bench.each_round(f"DAG of {bench.large:,} nodes, {kind}", min(bench.rounds, 3)):
            times = []
            for flow, runs in ((small, 20), (large, 1), (small, 20)):
                with bench.fresh() as folder:
                    times.append(workloads.dag(kind, folder, flow, runs).wall_s / (runs * len(flow.nodes)))
            ratios.append(times[1] / statistics.mean((times[0], times[2])))
            costs_us.append(times[1] * 1e6)
        name = f"DAG {bench.large:,} to {_DAG_SMALL} nodes, {kind}"
        figures.append(Figure(name, "of small", ratios, at_most(1.3), {"µs a node": costs_us}))
    return figures


PARTS: dict[str, Callable[[Bench], list[Figure]]] = {
    "steps": steps,
    "costs": costs,
    "growth": growth,
    "resuming": resuming,
    "graphs": graphs,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure Holdfast beside the limits of this disk."
    )
    parser.add_argument(
        "--folder", type=Path, default=Path.cwd(), help="where to write, on a real disk (default: here)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="two rounds and smaller graphs: only to see that all works"
    )
    parser.add_argument("--rounds", type=int, help="rounds (default: 7; --quick: 2)")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; may be repeated")
    asked = parser.parse_args(arguments)
    rounds = asked.rounds or (2 if asked.quick else 7)
    try:
        kind = raw.file_system(asked.folder)
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=asked.folder) as name:
            return _measure(Path(name), kind, rounds, quick=asked.quick, parts=asked.only or list(PARTS))
    except (raw.NoDisk, OSError) as fault:
        print(f"bench: {fault}", file=sys.stderr)
        return 2


def _measure(folder: Path, file_system: str, rounds: int, *, quick: bool, parts: list[str]) -> int:
    facts = report.machine(folder.parent, file_system)
    syncs = raw.sync_times(folder)
    facts |= {
        "fdatasync_p50_us": raw.percentile(syncs, 0.5) * 1e6,
        "fdatasync_p95_us": raw.percentile(syncs, 0.95) * 1e6,
    }
    print("{cpu}, {cores} cores, Python {python}, SQLite {sqlite}".format_map(facts))
    print(
        "{file_system} at {folder}: fdatasync p50 {fdatasync_p50_us:.0f} µs, p95 {fdatasync_p95_us:.0f} µs".format_map(
            facts
        )
    )
    progress = report.Progress()
    commits = raw.Commits(folder)
    bench = Bench(folder, commits, progress, rounds, 2_000 if quick else _DAG_LARGE)
    figures = []
    for part in parts:
        figures.extend(PARTS[part](bench))
    progress.end()
    if not commits.rates:
        commits.rate()
    figures.insert(0, Figure("raw, one row a commit, FULL", "commits/s", commits.rates))
    commits.close()
    report.show(figures)
    print(f"Everything that was seen: {report.write(figures, facts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
