"""The parts of a measurement: each runs a few workloads for several rounds, and makes figures with targets.

A ratio always compares figures of the same round, with the raw rate measured before and after: a minute later the machine may
be half as fast, but the ratio is the same. A round during which the disk changed its speed is measured again.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import delays, lasting, payloads, processes, raw, report, workloads
from bench.report import Figure, Target, at_least, at_most
from bench.stores import Place, Server, StoreKind
from bench.workloads import CHAIN_NODES, FLEET_NODES, ITEMS, Took, count_in_thread

_DISTURBED = 1.4
_DAG_WIDTH = 10
_DAG_SMALL = 100


@dataclass(frozen=True)
class Effort:
    """How thoroughly to measure: numbers of rounds, and sizes of workloads."""

    name: str
    rounds: int
    """Rounds of a workload with a target that is relative to the raw rate."""
    few: int
    """Rounds of a workload that takes long, or has no target."""
    dag: int
    """Nodes of the large DAG."""
    grow: int
    history: int
    window: int
    waiting: int
    peer_rounds: int
    peer_steps: int
    peer_fleet: int
    """Concurrent runs in the fleet workload of a peer."""
    peer_large: int
    """Steps of a peer with a large state: a peer that stores the whole state writes a gigabyte in a thousand steps."""


QUICK = Effort("quick", 2, 1, 2_000, 1_000, 4_000, 200, 1_000, 1, 100, 20, 20)
NORMAL = Effort("normal", 5, 1, 10_000, 5_000, 100_000, 1_000, 10_000, 3, 150, 60, 50)
FULL = Effort("full", 9, 5, 10_000, 5_000, 100_000, 1_000, 10_000, 5, 1_000, 200, 200)


@dataclass(frozen=True)
class Bench:
    """The folder to measure in, the raw commits to compare with, the effort, and the PostgreSQL server if there is one."""

    folder: Path
    commits: raw.Commits
    progress: report.Progress
    effort: Effort
    server: Server | None = None

    @contextmanager
    def fresh(self, kind: StoreKind = "sqlite") -> Iterator[Place]:
        """Make a place for one store, and remove it afterwards."""
        url = self.server.new_database() if kind == "postgres" and self.server else ""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            yield Place(kind, Path(name), url)

    @property
    def elsewhere(self) -> tuple[StoreKind, ...]:
        """The stores that are measured with all workloads in addition to SQLite; none without `--full`."""
        if self.effort.name != "full":
            return ()
        return ("memory", "postgres") if self.server else ("memory",)

    def each_round(self, what: str, rounds: int | None = None) -> Iterator[int]:
        rounds = rounds or self.effort.rounds
        for number in range(rounds):
            self.progress.say(what, f"round {number + 1} of {rounds}")
            yield number


# --- steps per second ----------------------------------------------------------------------------------


class Rate(NamedTuple):
    """A workload that is measured in steps per second."""

    name: str
    steps: int
    work: Callable[[Place], Took]
    target: Target | None = None
    """The target for the ratio to raw commits on SQLite."""
    floor: Target | None = None
    long: bool = False
    """Whether the workload is measured only with `--full`."""


RATES = (
    Rate("chain, async nodes", CHAIN_NODES, workloads.chain, at_least(0.55), at_least(0.45)),
    Rate(
        "chain, def nodes",
        CHAIN_NODES,
        partial(workloads.chain, fn=count_in_thread),
        at_least(0.4),
        at_least(0.3),
    ),
    Rate("loop", CHAIN_NODES, workloads.loop),
    Rate("loop, def nodes", CHAIN_NODES, partial(workloads.loop, fn=count_in_thread), long=True),
    Rate("fleet, 200 runs", 200 * FLEET_NODES, partial(workloads.fleet, runs=200)),
    Rate("fleet, 200 runs, def nodes", 200 * FLEET_NODES, partial(workloads.fleet, runs=200, fn=count_in_thread)),
    Rate(
        "fleet, 1,000 runs", 1000 * FLEET_NODES, partial(workloads.fleet, runs=1000), at_least(2.2), at_least(1.5)
    ),
    Rate("fleet, 1,000 runs, def nodes", 1000 * FLEET_NODES,
         partial(workloads.fleet, runs=1000, fn=count_in_thread), long=True),
    Rate("fan, 1,000 items", ITEMS, workloads.fan),
    Rate("fan, 1,000 items, def nodes", ITEMS, partial(workloads.fan, threads=True), long=True),
    Rate("steps, 1,000 in one node", ITEMS, workloads.steps),
    Rate("steps, 1,000 in one node, def nodes", ITEMS, partial(workloads.steps, threads=True), long=True),
)  # fmt: skip


class Round(NamedTuple):
    """One measurement of steps per second, with the raw rate before and after it."""

    before: float
    rate: float
    after: float
    cpu_us: float
    """CPU time per step of all threads, in microseconds."""

    @property
    def ratio(self) -> float:
        return self.rate / statistics.mean((self.before, self.after))

    @property
    def disturbed(self) -> bool:
        """Whether the disk changed its speed during the round, so that the ratio means nothing."""
        return max(self.before, self.after) > _DISTURBED * min(self.before, self.after)


def steps(bench: Bench) -> list[Figure]:
    """Durable steps per second, compared with raw commits per second."""
    return [_beside_raw(bench, rate, "sqlite", bench.commits) for rate in _rates(bench, "sqlite")]


def _rates(bench: Bench, kind: StoreKind) -> list[Rate]:
    """Return the workloads to measure: with `--full` all; otherwise those with a target, and on SQLite also all short ones."""
    if bench.effort.name == "full":
        return list(RATES)
    return [rate for rate in RATES if rate.target or (kind == "sqlite" and not rate.long)]


def postgres(bench: Bench) -> list[Figure]:
    """Durable steps per second on PostgreSQL, compared with raw commits per second on that server."""
    if bench.server is None:
        return []
    commits = raw.PostgresCommits(bench.server)
    try:
        chain, *others = (rate._replace(target=None, floor=None) for rate in _rates(bench, "postgres"))
        figures = [
            _beside_raw(bench, rate, "postgres", commits)
            for rate in (chain._replace(target=at_least(0.55)), *others)
        ]
        settings = ", ".join(f"{name} {value}" for name, value in bench.server.settings.items())
        told = Figure("raw commits of one row, PostgreSQL", "commits/s", commits.rates, note=settings)
        return [told, *figures]
    finally:
        commits.close()


def _beside_raw(bench: Bench, rate: Rate, kind: StoreKind, commits: raw.Commits) -> Figure:
    """Measure a rate. Disturbed rounds are measured again, up to three times the number of rounds."""
    wanted = bench.effort.rounds if rate.target else bench.effort.few
    found: list[Round] = []
    before = commits.rate()
    for _ in bench.each_round(f"{rate.name}, {kind}", 3 * wanted):
        with bench.fresh(kind) as place:
            took = rate.work(place)
        after = commits.rate()
        found.append(Round(before, rate.steps / took.wall_s, after, took.cpu_s / rate.steps * 1e6))
        before = after
        if sum(not seen.disturbed for seen in found) == wanted:
            break
    calm = [seen for seen in found if not seen.disturbed]
    disturbed = len(found) - len(calm)
    # If there are too few undisturbed rounds, a verdict from them would be luck: then all rounds count.
    counted = calm if len(calm) == wanted else found
    left_out = f"disturbed rounds left out: {disturbed}" if disturbed else ""
    note = left_out if counted is calm else f"disturbed rounds: {disturbed} of {len(found)}"
    beside = {
        "steps/s": [seen.rate for seen in counted],
        "µs of CPU time per step": [seen.cpu_us for seen in counted],
    }
    values = [seen.ratio for seen in counted]
    return Figure(
        f"{rate.name}, {kind}", "of the raw commit rate", values, rate.target, rate.floor, beside, note
    )


def costs(bench: Bench) -> list[Figure]:
    """CPU time per step without a disk: the figure with the least noise, which shows the effect of a change in the code best."""
    figures = []
    for rate in _rates(bench, "memory"):
        found = []
        for _ in bench.each_round(f"{rate.name}, memory", bench.effort.few):
            with bench.fresh("memory") as place:
                found.append(rate.work(place))
        cpu = [took.cpu_s / rate.steps * 1e6 for took in found]
        beside = {"steps/s": [rate.steps / took.wall_s for took in found]}
        figures.append(Figure(f"{rate.name}, memory", "µs of CPU time per step", cpu, beside=beside))
    return figures


# --- large states and long histories -------------------------------------------------------------------


def growth(bench: Bench) -> list[Figure]:
    """Bytes stored by a run that appends 1 KB per step, and the time of a step when the state is large."""
    figures = []
    for shape in ("chain", "loop"):
        with bench.fresh() as place:
            bench.progress.say(f"grow, {shape}")
            grown = lasting.grow(place, 1000, loop=shape == "loop")
        payload = 1000 * payloads.GROW_BYTES
        beside = {"MB stored": [grown.stored_bytes / 1e6], "µs per step": [grown.step_us(0, 1000)]}
        of_payload = [grown.stored_bytes / payload]
        target, floor = at_most(1.5), at_most(round(2e6 / payload, 2))
        name = f"grow, {shape} of 1,000 steps: stored bytes"
        figures.append(Figure(name, "times the payload", of_payload, target, floor, beside))
    ratios, late = [], []
    last, window = bench.effort.grow, bench.effort.grow // 10
    for _ in bench.each_round(f"grow to {last:,} steps", bench.effort.few):
        with bench.fresh() as place:
            grown = lasting.grow(place, last, loop=True)
        late.append(grown.step_us(last - window, last))
        ratios.append(late[-1] / grown.step_us(0, window))
    name = f"grow, last {window} of {last:,} steps: time per step"
    unit = f"times that of the first {window} steps"
    figures.append(Figure(name, unit, ratios, at_most(1.5), beside={"µs per step at the end": late}))
    for kind in bench.elsewhere:
        with bench.fresh(kind) as place:
            bench.progress.say(f"grow, {kind}")
            grown = lasting.grow(place, 1000, loop=True)
        figures.append(Figure(f"grow, loop of 1,000, {kind}", "µs per step", [grown.step_us(0, 1000)]))
    return figures


def width(bench: Bench) -> list[Figure]:
    """Bytes stored per step by a run that changes one number in a state of 1 MB: at most a hundredth of the state."""
    wide_bytes = payloads.wide_bytes(payloads.wide())
    figures = []
    for kind, typed in (("typed", True), ("plain dict", False)):
        found = []
        for _ in bench.each_round(f"wide state, {kind}", bench.effort.few):
            with bench.fresh() as place:
                found.append(lasting.wide(place, 1000, typed=typed))
        stored = [seen.stored_bytes / 1000 for seen in found]
        rates = {"steps/s": [1000 / seen.took.wall_s for seen in found]}
        figures.append(
            Figure(
                f"wide state, 1 MB, {kind}",
                "bytes stored per step",
                stored,
                at_most(wide_bytes // 100),
                beside=rates,
            )
        )
        for store in bench.elsewhere:
            with bench.fresh(store) as place:
                took = lasting.wide(place, 1000, typed=typed).took
            figures.append(Figure(f"wide state, 1 MB, {kind}, {store}", "steps/s", [1000 / took.wall_s]))
    return figures


def resuming(bench: Bench) -> list[Figure]:
    """The time from `resume` to the first line of the node, for runs that stopped at different places of their second half."""
    found = []
    for number in bench.each_round("resume, 1,000 nodes"):
        with bench.fresh() as place:
            stops_at = CHAIN_NODES - 1 - number * CHAIN_NODES // (2 * bench.effort.rounds)
            found.append(lasting.resume(place, stops_at))
    figures = [_resumed("resume, 1,000 nodes", found, at_most(10.0), at_most(20.0))]
    if "postgres" in bench.elsewhere:  # a store in memory is lost with its engine
        with bench.fresh("postgres") as place:
            there = [lasting.resume(place, CHAIN_NODES - 1)]
        figures.append(_resumed("resume, 1,000 nodes, postgres", there))
    return figures


def _resumed(
    name: str, found: list[lasting.Resumed], target: Target | None = None, floor: Target | None = None
) -> Figure:
    to_node_ms = [resumed.to_node.wall_s * 1e3 for resumed in found]
    beside = {
        "ms of CPU time": [resumed.to_node.cpu_s * 1e3 for resumed in found],
        "ms to open the engine": [resumed.open_s * 1e3 for resumed in found],
    }
    return Figure(name, "ms", to_node_ms, target, floor, beside)


def history(bench: Bench) -> list[Figure]:
    """A loop of very many steps: the time to resume it midway, and the cost of its last steps compared with its first."""
    effort = bench.effort
    bench.progress.say(f"history of {effort.history:,} steps")
    with bench.fresh() as place:
        found = lasting.history(
            place, effort.history, effort.history // 2, times=max(effort.rounds, 3), window=effort.window
        )
    ratio = Figure(
        f"history, last {effort.window:,} of {effort.history:,} steps: CPU time per step",
        f"times that of {effort.window:,} early steps",
        [found.late_us / found.early_us],
        at_most(1.2),
        beside={"µs early": [found.early_us], "µs at the end": [found.late_us]},
        note="SQLite without syncs",
    )
    figures = [_resumed(f"resume, {found.events:,} events", found.resumed, at_most(20.0)), ratio]
    for kind in bench.elsewhere:
        with bench.fresh(kind) as place:
            bench.progress.say(f"history, {kind}")
            early, late = lasting.history_of(place, effort.history // 10, window=effort.window)
        name = f"history, last {effort.window:,} of {effort.history // 10:,} steps, {kind}: CPU time per step"
        unit, beside = (
            f"times that of {effort.window:,} early steps",
            {"µs early": [early], "µs at the end": [late]},
        )
        figures.append(Figure(name, unit, [late / early], beside=beside))
    return figures


def graphs(bench: Bench) -> list[Figure]:
    """The cost of a node in a large graph, compared with a small graph of the same shape."""
    count = bench.effort.dag
    bench.progress.say(f"compile a DAG of {count:,} nodes")
    began = time.perf_counter()
    large = workloads.dag_flow(count, _DAG_WIDTH)
    compiled_s = time.perf_counter() - began
    small = workloads.dag_flow(_DAG_SMALL, _DAG_WIDTH)
    figures = [Figure(f"compile a graph of {count:,} nodes", "s", [compiled_s])]
    kinds: tuple[StoreKind, ...] = ("memory", "sqlite")
    for kind in kinds:
        ratios, costs_us = [], []
        for _ in bench.each_round(f"DAG of {count:,} nodes, {kind}", min(bench.effort.few, 3)):
            times = []
            for flow, runs in ((small, 20), (large, 1), (small, 20)):
                with bench.fresh(kind) as place:
                    times.append(workloads.dag(place, flow, runs).wall_s / (runs * len(flow.nodes)))
            ratios.append(times[1] / statistics.mean((times[0], times[2])))
            costs_us.append(times[1] * 1e6)
        name, unit = (
            f"graph of {count:,} nodes, {kind}: time per node",
            f"times that of a graph of {_DAG_SMALL} nodes",
        )
        figures.append(Figure(name, unit, ratios, at_most(1.3), beside={"µs per node": costs_us}))
    return figures


# --- single steps and processes ------------------------------------------------------------------------


def overhead(bench: Bench) -> list[Figure]:
    """The time that the engine adds to slow nodes."""
    found = []
    for node_s, nodes in ((0.1, 3), (0.01, 20)):
        rounds = bench.each_round(f"nodes of {node_s * 1e3:.0f} ms")
        with bench.fresh() as place:
            found.append(delays.around(place, bench.commits, rounds, node_s, nodes))
    slow, quick = found
    figures = [
        Figure(
            "overhead, nodes of 100 ms",
            "% longer than without an engine",
            [seen.extra_s / seen.bare_s * 100 for seen in slow],
            at_most(1.5),
            beside={"µs added per node": [seen.extra_s * 1e6 for seen in slow]},
        ),
        Figure(
            "overhead, nodes of 10 ms",
            "times the duration of a raw commit",
            [seen.extra_s / seen.commit_s for seen in quick],
            at_most(2.5),
            beside={
                "µs added per node": [seen.extra_s * 1e6 for seen in quick],
                "µs for a raw commit after 10 ms of idle time": [seen.commit_s * 1e6 for seen in quick],
            },
        ),
    ]
    for kind in bench.elsewhere:
        rounds = bench.each_round(f"nodes of 10 ms, {kind}")
        with bench.fresh(kind) as place:
            extra_us = [seen.extra_s * 1e6 for seen in delays.around(place, bench.commits, rounds, 0.01, 20)]
        figures.append(Figure(f"overhead, nodes of 10 ms, {kind}", "µs added per node", extra_us))
    return figures


def saving(bench: Bench) -> list[Figure]:
    """The time of one durable append in a run of 1,000 nodes, compared with a raw commit; and the time between two appends."""
    found = []
    for _ in bench.each_round("save, 1,000 nodes"):
        with bench.fresh() as place:
            found.append(delays.save(place, bench.commits))
    beside = {
        f"µs at p{share * 100:.0f}": [seen.p(share)[0] * 1e6 for seen in found] for share in (0.5, 0.95, 0.99)
    }
    beside |= {"µs at p95 of raw commits": [seen.p(0.95)[1] * 1e6 for seen in found]}
    ratios = [seen.p(0.95)[0] / seen.p(0.95)[1] for seen in found]
    figures = [
        Figure(
            "one append, p95, 1,000 nodes",
            "times the p95 of raw commits",
            ratios,
            at_most(2.0),
            beside=beside,
        ),
        _between("sqlite", found),
    ]
    others: tuple[StoreKind, ...] = ("memory", "postgres") if bench.server else ("memory",)
    for kind in others:
        with bench.fresh(kind) as place:
            seen = delays.save(place)
        figures.append(_between(kind, [seen]))
        if kind in bench.elsewhere:
            p50, p95, p99 = ([seen.p(share)[0] * 1e6] for share in (0.5, 0.95, 0.99))
            figures.append(
                Figure(
                    f"one append, p95, 1,000 nodes, {kind}",
                    "µs",
                    p95,
                    beside={"µs at p50": p50, "µs at p99": p99},
                )
            )
    return figures


def _between(kind: StoreKind, found: list[delays.Saved]) -> Figure:
    middle = [raw.percentile(seen.between, 0.5) * 1e6 for seen in found]
    return Figure(f"time between two appends, {kind}", "µs", middle)


def starting(bench: Bench) -> list[Figure]:
    """The time to start Python and import Holdfast, compared with a process that imports nothing."""
    imported, helped, bare = [], [], []
    for number in bench.each_round("import", bench.effort.rounds + 1):
        times = [
            processes.start_s(*arguments)
            for arguments in (("-c", "pass"), ("-c", "import holdfast"), ("-m", "holdfast.cli", "--help"))
        ]
        if number:  # the first round reads all files from the disk
            bare.append(times[0] * 1e3)
            imported.append((times[1] - times[0]) * 1e3)
            helped.append(times[2] * 1e3)
    return [
        Figure("import holdfast", "ms", imported, at_most(100.0), beside={"ms for Python alone": bare}),
        Figure("holdfast --help", "ms", helped, at_most(250.0)),
    ]


def memory(bench: Bench) -> list[Figure]:
    """The memory of very many waiting runs in one process."""
    figures = []
    waits = (("timer", "for a timer"), ("signal", "for a signal"))
    for how, told in waits if bench.effort.name == "full" else waits[:1]:
        runs = bench.effort.waiting
        bench.progress.say(f"{runs:,} runs that wait {told}")
        with bench.fresh() as place:
            found = processes.waiting(place.folder, runs, how)
        beside = {"MB for the empty engine": [found["empty_mb"]]}
        figures.append(
            Figure(
                f"{runs:,} runs that wait {told}",
                "MB more than an empty engine",
                [found["extra_mb"]],
                at_most(50.0),
                beside=beside,
            )
        )
    return figures
