"""Explain why a figure misses its target, with other figures of the same measurement: the reason is measured, not guessed.

A reason is a text that contains the medians of other figures. If one of these was not measured, the text names it.
"""

from collections.abc import Iterator
from typing import Any

from bench.contest import PEERS
from bench.report import number

RAW = "raw commits of one row, SQLite, synchronous=FULL"
_LIBRARIES = {peer.name for peer in PEERS if peer.mode == "shipped"}


class Seen:
    """The figures of one measurement, by their names."""

    def __init__(self, figures: list[dict[str, Any]]) -> None:
        self._figures = {figure["name"]: figure for figure in figures}

    def __getitem__(self, asked: str) -> float:
        """Return the median of the figure `name`, or of its additional value: `name: value`. Raises `LookupError`."""
        name, _, beside = asked.partition(": ")
        figure = self._figures[name]
        found = figure["beside"][beside]["median"] if beside else figure["median"]
        if found is None:
            raise LookupError(name)
        return float(found)

    def best(self, workload: str) -> tuple[str, float]:
        """Return the peer that is fastest at a workload with default settings, and its steps per second."""
        rates = {
            name.removeprefix(f"{workload}, "): figure["median"]
            for name, figure in self._figures.items()
            if name.startswith(f"{workload}, ") and figure["part"] == "peers" and figure["unit"] == "steps/s"
        }
        shipped = {
            peer: rate
            for peer, rate in rates.items()
            if rate and peer != "Holdfast" and "with WAL" not in peer
        }
        if not shipped:
            raise LookupError("peers")
        return max(shipped.items(), key=lambda pair: pair[1])


def _chain(seen: Seen) -> str:
    raw_us = 1e6 / seen[RAW]
    between, hot = seen["time between two appends, sqlite"], seen["time between two appends, memory"]
    append = seen["one append, p95, 1,000 nodes: µs at p50"]
    return (
        f"a raw commit takes {raw_us:.0f} µs; an append takes {append:.0f} µs within the store, because it writes two pages and "
        f"executes four statements instead of one. Between two appends the engine runs Python code for {between:.0f} µs; on the "
        f"memory store, without waiting for syncs, the same code takes {hot:.0f} µs. The target allows "
        f"{raw_us / 0.55 - raw_us:.0f} µs per step in addition to the raw commit."
    )


def _chain_in_threads(seen: Seen) -> str:
    hops = seen["chain, def nodes, memory"] - seen["chain, async nodes, memory"]
    return (
        "the reason given for the chain of async nodes applies here too. In addition, each step changes threads twice, to the "
        f"thread that calls the function and back to the event loop, which costs {hops:.0f} µs of CPU time per step on the "
        "memory store."
    )


def _fleet(seen: Seen) -> str:
    raw, rate = seen[RAW], seen["fleet, 1,000 runs, memory: steps/s"]
    return (
        f"the limit is Python, not the disk, because concurrent runs share syncs. The same fleet on the memory store, without "
        f"writing to a disk, reaches {number(rate)} steps/s, {number(rate / raw)} of the raw commit rate: only one thread at a "
        f"time runs Python, for {1e6 / rate:.0f} µs per step, and the target allows {1e6 / (2.2 * raw):.0f} µs. In the profile "
        "below, no part of the code dominates."
    )


def _beside_best(seen: Seen, workload: str, times: float) -> str:
    (peer, rate), raw = seen.best(workload), seen[RAW]
    return (
        f"the fastest other library, {peer}, keeps no log and reaches {number(rate / raw)} of the raw commit rate. The target is "
        f"{times:g} times its rate, which would be {number(times * rate / raw)} of the raw commit rate"
    )


def _chain_beside(seen: Seen) -> str:
    ours = seen["chain, async nodes, sqlite"]
    why = "for the reason given for *chain, async nodes on SQLite*"
    return f"{_beside_best(seen, 'chain', 3)}; the chain of Holdfast reaches {number(ours)}, {why}."


def _fleet_beside(seen: Seen) -> str:
    most = seen["fleet, 1,000 runs, memory: steps/s"] / seen[RAW]
    ours = f"even on the memory store, without a disk, the fleet of Holdfast reaches only {number(most)}"
    return f"{_beside_best(seen, 'fleet', 20)}; {ours}."


def _quick_nodes(seen: Seen) -> str:
    idle = seen["overhead, nodes of 10 ms: µs for a raw commit after 10 ms of idle time"]
    return (
        f"a raw commit takes {idle:.0f} µs after 10 ms of idle time, but {1e6 / seen[RAW]:.0f} µs right after another commit. "
        "The Python code of the engine is slower after idle time, too; without idle time it takes "
        f"{seen['time between two appends, memory']:.0f} µs per step."
    )


def _slow_nodes(seen: Seen) -> str:
    idle = seen["overhead, nodes of 10 ms: µs for a raw commit after 10 ms of idle time"]
    return f"disk and processor are slower after idle time: after only 10 ms of it, a raw commit alone takes {idle:.0f} µs."


def _postgres_chain(seen: Seen) -> str:
    raw_us = 1e6 / seen["raw commits of one row, PostgreSQL"]
    return (
        f"a raw commit takes {raw_us:.0f} µs on PostgreSQL. Between two appends the engine runs Python code for "
        f"{seen['time between two appends, postgres']:.0f} µs; on the memory store, without waiting for commits, the same code "
        f"takes {seen['time between two appends, memory']:.0f} µs."
    )


def _resume(seen: Seen) -> str:
    cpu, opened = (
        seen[f"resume, 1,000 nodes: {what}"] for what in ("ms of CPU time", "ms to open the engine")
    )
    return (
        f"{number(cpu)} ms of this time are CPU time: the engine reads up to 250 events after the last snapshot, checks their "
        "hash chain and folds them. The rest is the commit by which the engine claims the run. The "
        f"{number(opened)} ms to open the engine are not included."
    )


WHY = {
    "chain, async nodes, sqlite": _chain,
    "chain, def nodes, sqlite": _chain_in_threads,
    "fleet, 1,000 runs, sqlite": _fleet,
    "chain, async nodes, postgres": _postgres_chain,
    "chain, compared with the fastest other library": _chain_beside,
    "fleet, compared with the fastest other library": _fleet_beside,
    "overhead, nodes of 10 ms": _quick_nodes,
    "overhead, nodes of 100 ms": _slow_nodes,
    "resume, 1,000 nodes": _resume,
    "takeover after kill -9 on the same machine, sqlite": lambda seen: (
        "an idle worker looks for dead holders once per renewal interval. In the worst case, the kill came right after a poll, "
        "so that the run was claimed at the next poll. The median of all takeovers is "
        f"{seen['takeover after kill -9 on the same machine, sqlite: s at the median']:.2f} s."
    ),
    "import holdfast": lambda seen: (
        "most of the time is spent on the standard library and msgspec (see `python -X importtime -c 'import holdfast'`); Python "
        f"itself takes {seen['import holdfast: ms for Python alone']:.0f} ms to start on this machine."
    ),
}


def reasons(figures: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every figure that misses its target, with the reason."""
    seen = Seen(figures)
    for figure in figures:
        if figure["verdict"] in ("", "met"):
            continue
        why = WHY.get(figure["name"])
        if why is None:
            yield figure, "no reason is known yet."
            continue
        try:
            yield figure, why(seen)
        except LookupError as missing:
            yield figure, f"the figure that would explain it was not measured in this run: {missing.args[0]}."
