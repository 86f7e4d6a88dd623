"""`python -m bench`: measure everything, print each figure with its target, and save all figures as JSON.

`python -m bench --write-docs RESULTS.json` makes `docs/performance.md` and its picture from such a file, and measures nothing.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import (
    asking,
    beside_peers,
    document,
    families,
    fleet,
    large_states,
    ledgers,
    listings,
    live,
    page,
    parts,
    pictures,
    places,
    plans,
    profiles,
    raw,
    reasons,
    report,
    server,
    stores,
)
from bench.parts import FULL, NORMAL, QUICK, Bench, Effort
from bench.report import Figure

PARTS: dict[str, Callable[[Bench], list[Figure]]] = {
    "steps": parts.steps,
    "profile": profiles.profile,
    "costs": parts.costs,
    "postgres": parts.postgres,
    "growth": parts.growth,
    "width": parts.width,
    "resuming": parts.resuming,
    "history": parts.history,
    "listings": listings.listings,
    "ledger": ledgers.ledgers,
    "graphs": parts.graphs,
    "pictures": pictures.pictures,
    "overhead": parts.overhead,
    "saving": parts.saving,
    "starting": parts.starting,
    "memory": parts.memory,
    "families": families.families,
    "plans": plans.plans,
    "places": places.places,
    "fleet": fleet.fleet,
    "asking": asking.asking,
    "live": live.live,
    "server": server.server,
    "page": page.page,
    "peers": beside_peers.peers,
    "large-states": large_states.large_states,
}


LONG = frozenset({"fleet", "asking"})
"""Parts that take minutes, because they wait for workers. They are measured only with `--full`, or with `--only`."""


def main(arguments: list[str] | None = None) -> int:
    asked = _arguments(arguments)
    if asked.write_docs is not None:
        for path in document.write(asked.write_docs):
            print(f"Written: {path}")
        return 0
    effort = QUICK if asked.quick else FULL if asked.full else NORMAL
    if asked.rounds:
        effort = replace(effort, rounds=asked.rounds)
    try:
        kind = raw.file_system(asked.folder)
        with tempfile.TemporaryDirectory(
            prefix=".bench-", dir=asked.folder, ignore_cleanup_errors=True
        ) as name:
            wanted = asked.only or [part for part in PARTS if part not in LONG or effort is FULL]
            _measure(Path(name), kind, effort, [part for part in PARTS if part in wanted])
    except (raw.NoDisk, OSError) as fault:
        print(f"bench: {fault}", file=sys.stderr)
        return 2
    return 0


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure Holdfast, and compare it with the limits of this disk and with other libraries.",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path.cwd(),
        help="where to put the measured stores; must be on a real disk (default: the current folder)",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", action="store_true", help="few and small workloads, only to test that the benchmark works"
    )
    size.add_argument(
        "--full",
        action="store_true",
        help="all workloads on all stores, more rounds, more steps for the other libraries",
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds of the workloads with a target (default: 5; full: 9)"
    )
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="measure only this part; may be repeated"
    )
    parser.add_argument(
        "--write-docs",
        type=Path,
        metavar="RESULTS",
        help="make docs/performance.md from this result file, and measure nothing",
    )
    return parser.parse_args(arguments)


def _measure(folder: Path, file_system: str, effort: Effort, chosen: list[str]) -> None:
    facts = report.machine(folder.parent, file_system) | {"effort": effort.name, "parts": chosen}
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
    figures = _figures(folder, effort, chosen)
    facts["load_after"] = report.load()
    report.show(figures)
    for figure, why in reasons.reasons(figures):
        print(f"{figure['name']} ({figure['verdict']}): {why}")
    print(f"All figures are in {report.write(figures, facts)}")


def _figures(folder: Path, effort: Effort, chosen: list[str]) -> list[dict[str, Any]]:
    progress = report.Progress()
    commits = raw.SqliteCommits(folder)
    figures: list[dict[str, Any]] = []
    with ExitStack() as opened:
        opened.callback(commits.close)
        bench = Bench(folder, commits, progress, effort)
        if {"postgres", "families", "fleet", "asking", "live"} & {*chosen}:
            progress.say("start PostgreSQL")
            try:
                bench = replace(bench, server=opened.enter_context(stores.server(folder)))
            except stores.NoServer as fault:
                figures.append(Figure("PostgreSQL", "", [], note=f"not measured: {fault}").plain("postgres"))
        for part in chosen:
            figures += [figure.plain(part) for figure in PARTS[part](bench)]
        if not commits.rates:
            commits.rate()
        told = Figure("raw commits of one row, SQLite, synchronous=FULL", "commits/s", commits.rates)
        figures.insert(0, told.plain("raw"))
    progress.end()
    return figures


if __name__ == "__main__":
    sys.exit(main())
