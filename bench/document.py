"""Make `docs/performance.md` and its picture from a result file of `python -m bench`. No figure is written by hand."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import chart, reasons, report

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PICTURE = "performance.md", "performance.svg"

_TITLES = {
    "raw": "The limit: raw commits",
    "steps": "Steps per second on SQLite, compared with raw commits",
    "profile": "How the time of a step is spent",
    "costs": "CPU time per step, in memory",
    "postgres": "Steps per second on PostgreSQL, compared with raw commits there",
    "growth": "A state that grows with each step",
    "width": "A state of 1 MB in which each step changes one number",
    "resuming": "Resuming a run",
    "history": "A run with a long history",
    "graphs": "Large graphs",
    "overhead": "Overhead of the engine with slow nodes",
    "saving": "The time of one durable append",
    "starting": "Start-up time of a process",
    "memory": "Memory of waiting runs",
    "fleet": "A fleet of worker processes",
    "peers": "Compared with other libraries",
}
_EXPLAINED = {
    "steps": (
        "Each step of a chain waits for its own sync. The steps of concurrent runs (a fleet) share syncs, so their rate can be "
        "higher than that of raw commits."
    ),
    "profile": (
        "py-spy sampled the thread of the event loop from another process. The time of a call into SQLite includes its sync."
    ),
    "growth": (
        "Each step adds 1,024 bytes of random text to the state. The stored bytes are those of the closed store on the disk, "
        "with indexes and snapshots."
    ),
    "resuming": (
        "The time from the call of `resume` to the first line of the resumed node, in a process that is already running."
    ),
    "history": "CPU time was measured on a SQLite store without syncs, so that the disk adds no noise.",
    "overhead": (
        "The time that the engine adds to nodes that sleep: compared with the same coroutines in a plain loop, and with a raw "
        "commit after the same idle time."
    ),
    "saving": (
        "Every append of a run of 1,000 nodes was timed inside the store and compared with raw commits before and after the run. "
        "The time between two appends is the time that the engine itself needs for a step."
    ),
    "fleet": (
        "Measured by the monotonic clock, which all processes of a machine share. A claim takes from the call of `start` in one "
        "process to the first line of the node in an idle worker; a takeover takes from `kill -9` of a worker to the first line "
        'of the node in another worker. "On another machine" is simulated: the other worker cannot see that the process is dead, '
        "and has to wait until its lease expires."
    ),
    "peers": (
        "Holdfast and the other libraries were measured in turn, each in a process of its own and with the same durability: "
        "`synchronous=FULL` was checked on the connection that the library itself uses. By default, DBOS and Burr use SQLite's "
        'rollback journal; "with WAL" means that the journal mode of the file was set to WAL by hand. Burr and LangGraph write '
        "the whole state at every step, DBOS and Restate (which is a server) the result of the step, and Holdfast the changes of "
        "the state. *Times* is the rate of Holdfast divided by the rate of the fastest other library in the same round.\n\n"
        "The workload *grow* adds 1 KB to the state in each step; *wide state* changes one number in a state of 1 MB."
    ),
}
_RULES = (
    "Each figure is the median of its rounds. A ratio compares figures of the same round, with the rate of raw commits measured "
    "before and after. A *raw commit* is the limit: a plain loop inserts one row per transaction, without Holdfast, through the "
    'same driver and with the same durability. "0.51 of raw" means 51 % of the rate of raw commits. A *target* is what we want '
    "to reach; a *floor* must hold in any case.\n\n"
    "The workloads: a *chain* is one run of 1,000 nodes, one after another; a *loop* is one run that visits the same node 1,000 "
    "times; a *fleet* is many concurrent runs of ten nodes each; a *fan* is one node with 1,000 items, 16 at a time; *steps* is "
    "one node with 1,000 calls of `ctx.step`. `def` nodes run in threads, async nodes on the event loop. Nodes only change one "
    "field, so that the engine is measured.\n"
)
_QUICK = (
    "> **These figures are from a quick run on a busy machine.** They show what is measured and that the program works, not how "
    "fast Holdfast is. To replace them, run `make bench-full` on a quiet machine, then the command at the end of this page.\n"
)


def write(result: Path, folder: Path = DOCS) -> list[Path]:
    """Write the page and its picture from a result file, and return their paths."""
    seen = json.loads(result.read_text(encoding="utf-8"))
    page, picture = folder / PAGE, folder / PICTURE
    page.write_text(text(seen), encoding="utf-8")
    picture.write_text(chart.draw(seen["figures"]), encoding="utf-8")
    return [page, picture]


def text(seen: dict[str, Any]) -> str:
    """Return the text of the page for a result."""
    parts = [
        "<!-- Made by `python -m bench --write-docs`; changes by hand are lost. -->\n# Performance\n",
        _QUICK if seen["effort"] == "quick" else "",
        _machine(seen),
        f"![Durable steps per second]({PICTURE})\n",
        _RULES,
        _verdicts(seen["figures"]),
        _reasons(seen["figures"]),
    ]
    parts += _sections(seen["figures"])
    parts.append(_again())
    return "\n".join(part for part in parts if part)


def _machine(seen: dict[str, Any]) -> str:
    return (
        f"Measured on {seen['measured_on']} with {seen['effort']} effort: "
        f"{seen['cpu']}, {seen['cores']} cores, {seen['system']}, "
        f"{seen['file_system']} with an fdatasync of {seen['fdatasync_p50_us']:.0f} µs (p95 {seen['fdatasync_p95_us']:.0f} µs), "
        f"load average {seen['load_before']:.1f} before and {seen['load_after']:.1f} after; Python {seen['python']}, "
        f"SQLite {seen['sqlite']}, apsw {seen['apsw']}, Holdfast {seen['holdfast']}.\n"
    )


def _verdicts(figures: list[dict[str, Any]]) -> str:
    judged = [figure["verdict"] for figure in figures if figure["verdict"]]
    counts = [f"{judged.count(verdict)} {verdict}" for verdict in report.STYLES if verdict in judged]
    return f"Targets: {', '.join(counts)}.\n" if counts else ""


def _reasons(figures: list[dict[str, Any]]) -> str:
    lines = [
        f"- **{figure['name']}** ({report.cells(figure)[0]}): {why}"
        for figure, why in reasons.reasons(figures)
    ]
    return "These figures miss their target:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _sections(figures: list[dict[str, Any]]) -> Iterator[str]:
    for part, title in _TITLES.items():
        rows = [figure for figure in figures if figure["part"] == part]
        if not rows:
            continue
        yield f"## {title}\n"
        if part in _EXPLAINED:
            yield f"{_EXPLAINED[part]}\n"
        lines = [
            "| | median | lowest | highest | rounds | target | result | also measured |",
            "|---|--:|--:|--:|--:|--:|---|---|",
        ]
        for figure in rows:
            told = (figure["name"], *report.cells(figure), figure["verdict"], _describe(figure))
            lines.append("| " + " | ".join(told) + " |")
        yield "\n".join(lines) + "\n"


def _describe(figure: dict[str, Any]) -> str:
    """Return the other values and the note of a figure. Why a peer is missing is left out: the reason may contain local paths."""
    if not figure["values"] and figure["part"] in ("peers", "postgres"):
        return "not measured"
    return report.beside(figure)


def _again() -> str:
    return (
        "## Measure it yourself\n\n"
        "```sh\n"
        "make bench        # about three minutes; installs the other libraries into bench/peers/.venv\n"
        "make bench-full   # all workloads on all stores, more rounds, more steps for the others, Restate, and worker processes\n"
        "```\n\n"
        "The figures of all rounds are stored as JSON in `bench/results/`; "
        "`.venv/bin/python -m bench --write-docs RESULTS.json` makes this page from such a file. The benchmark refuses a folder "
        "on a file system in memory, because syncs cost nothing there. Regressions are found by counting, not by timing: "
        "`tests/test_bench.py` counts function calls, SQL statements, pages and bytes per step.\n"
    )
