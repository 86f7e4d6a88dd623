"""Why a figure misses its target: explained with other figures of the same run, so that the reason is measured, not guessed.

A reason is a text with the medians of other figures. If one of them was not measured in this run, the text names it.
"""

from collections.abc import Iterator
from typing import Any

from bench.contest import PEERS
from bench.report import number

RAW = "raw, one row a commit, SQLite, FULL"
_LIBRARIES = {peer.name for peer in PEERS if peer.mode == "shipped"}


class Seen:
    """The figures of a run, by their names."""

    def __init__(self, figures: list[dict[str, Any]]) -> None:
        self._figures = {figure["name"]: figure for figure in figures}

    def __getitem__(self, asked: str) -> float:
        """The median of the figure `name`, or of a value beside it: `name: value`. Raises `LookupError`."""
        name, _, beside = asked.partition(": ")
        figure = self._figures[name]
        found = figure["beside"][beside]["median"] if beside else figure["median"]
        if found is None:
            raise LookupError(name)
        return float(found)

    def best(self, workload: str) -> tuple[str, float]:
        """The fastest peer at a workload with default settings, and its steps per second."""
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
    between, hot = seen["between two appends, sqlite"], seen["between two appends, memory"]
    append = seen["save, p95, 1,000 nodes: µs p50"]
    return (
        f"a raw commit takes {raw_us:.0f} µs, an append {append:.0f} µs within the store (two pages and four statements instead "
        f"of one), and between two appends the engine runs Python for {between:.0f} µs. In memory, where nothing sleeps, the "
        f"same Python takes {hot:.0f} µs: a processor that slept in a sync comes back with cold caches. The target leaves "
        f"{raw_us / 0.55 - raw_us:.0f} µs a step for all but the commit."
    )


def _chain_in_threads(seen: Seen) -> str:
    hops = seen["chain, def nodes, memory"] - seen["chain, async nodes, memory"]
    return (
        "as for async nodes, and two hops between threads, out to the one that calls the function and back to the event "
        f"loop: {hops:.0f} µs of CPU a step in memory."
    )


def _fleet(seen: Seen) -> str:
    raw, rate = seen[RAW], seen["fleet, 1,000 runs, memory: steps/s"]
    return (
        f"syncs are shared and cost next to nothing here. The same fleet in memory, where nothing is written at all, makes "
        f"{number(rate)} steps/s, {number(rate / raw)} of raw: one thread at a time runs Python, {1e6 / rate:.0f} µs a step, and "
        f"the target leaves {1e6 / (2.2 * raw):.0f} µs. The profile shows no part that stands out."
    )


def _beside_best(seen: Seen, workload: str, times: float) -> str:
    (peer, rate), raw = seen.best(workload), seen[RAW]
    return (
        f"the best peer, {peer}, keeps no log and is at {number(rate / raw)} of raw. {times:g} times that is "
        f"{number(times * rate / raw)} of raw"
    )


def _chain_beside(seen: Seen) -> str:
    ours = seen["chain, async nodes, sqlite"]
    return f"{_beside_best(seen, 'chain', 3)}; our chain is at {number(ours)}, for the reason above."


def _fleet_beside(seen: Seen) -> str:
    most = seen["fleet, 1,000 runs, memory: steps/s"] / seen[RAW]
    return f"{_beside_best(seen, 'fleet', 20)}; a fleet in memory, where nothing is written, is at {number(most)}."


def _quick_nodes(seen: Seen) -> str:
    idle, busy = seen["overhead, nodes of 10 ms: µs a raw commit after 10 ms"], 1e6 / seen[RAW]
    return (
        f"a raw commit takes {idle:.0f} µs after 10 ms of idling and {busy:.0f} µs where the disk and the processor are kept "
        f"busy. The engine's Python wakes as slowly: {seen['between two appends, memory']:.0f} µs a step where nothing sleeps."
    )


def _slow_nodes(seen: Seen) -> str:
    idle = seen["overhead, nodes of 10 ms: µs a raw commit after 10 ms"]
    return f"a machine that has idled wakes slowly: after only 10 ms a raw commit alone takes {idle:.0f} µs."


def _postgres_chain(seen: Seen) -> str:
    raw_us = 1e6 / seen["raw, one row a commit, PostgreSQL"]
    return (
        f"a raw commit takes {raw_us:.0f} µs there; between two appends the engine runs Python for "
        f"{seen['between two appends, postgres']:.0f} µs, {seen['between two appends, memory']:.0f} µs where nothing sleeps."
    )


def _resume(seen: Seen) -> str:
    cpu, opened = (seen[f"resume, 1,000 nodes: {what}"] for what in ("ms CPU", "ms to open the engine"))
    return (
        f"{number(cpu)} ms of it are CPU: the events behind the last snapshot, up to 250 of them here, are read, held against "
        f"the hash chain and folded. The rest is one durable claim. To open the engine took {number(opened)} ms before that."
    )


WHY = {
    "chain, async nodes, sqlite": _chain,
    "chain, def nodes, sqlite": _chain_in_threads,
    "fleet, 1,000 runs, sqlite": _fleet,
    "chain, async nodes, postgres": _postgres_chain,
    "chain, beside the best peer": _chain_beside,
    "fleet, beside the best peer": _fleet_beside,
    "overhead, nodes of 10 ms": _quick_nodes,
    "overhead, nodes of 100 ms": _slow_nodes,
    "resume, 1,000 nodes": _resume,
    "takeover after kill -9 on the same machine, sqlite": lambda seen: (
        "a worker at rest looks for the dead once in a renewal. The worst of these kills came right behind a look, and the run "
        f"was taken at the next: after {seen['takeover after kill -9 on the same machine, sqlite: s']:.2f} s in the median."
    ),
    "import holdfast": lambda seen: (
        "most of it is the standard library and msgspec (`python -X importtime -c 'import holdfast'`); Python itself takes "
        f"{seen['import holdfast: ms bare Python']:.0f} ms to start here."
    ),
}


def reasons(figures: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    """Every figure that misses its target, and why."""
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
