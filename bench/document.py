"""Make `docs/performance.md` and its picture from a result file of `python -m bench`. No figure is written by hand."""

import json
import re
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
    "listings": "Listing runs",
    "ledger": "The ledger of a long run",
    "graphs": "Large graphs",
    "pictures": "Pictures of flows",
    "overhead": "Overhead of the engine with slow nodes",
    "saving": "The time of one durable append",
    "starting": "Start-up time of a process",
    "memory": "Memory of waiting runs",
    "families": "Child runs",
    "plans": "Plans",
    "places": "More calls at once than places in processes and threads",
    "fleet": "A fleet of worker processes",
    "asking": "Requests to many runs",
    "live": "Live events",
    "server": "The HTTP server",
    "page": "The web page",
    "peers": "Compared with other libraries",
    "large-states": "Large states, compared with other libraries",
}
_EXPLAINED = {
    "steps": (
        "Each step of a chain waits for its own sync. The steps of concurrent runs (a fleet) share syncs, so their rate can be "
        "higher than that of raw commits."
    ),
    "profile": (
        "The profiler py-spy sampled the thread of the event loop from another process. The time of a call into SQLite includes "
        "the sync of its commit."
    ),
    "growth": (
        "Each step adds 1,024 bytes of random text to the state. Stored bytes are the size of the store on the disk after it was "
        "closed, with indexes and snapshots; the payload is the text that was added."
    ),
    "resuming": (
        "The figure is the time from the call of `resume` to the first line of the resumed node, in a process that is already "
        "running."
    ),
    "history": "CPU time was measured on a SQLite store without syncs, so that the disk adds no noise.",
    "overhead": (
        "The figures show how much time the engine adds to nodes that only sleep, compared with the same coroutines in a plain "
        "loop. For nodes of 10 ms, the added time is also compared with a raw commit after 10 ms of idle time."
    ),
    "saving": (
        "Every append of a run of 1,000 nodes was timed inside the store and compared with raw commits before and after the run. "
        "Between two appends, the engine runs its own code for one step."
    ),
    "fleet": (
        "All processes of a machine share the monotonic clock that measures these times. The time until a run is claimed is that "
        "from the call of `start` in one process to the first line of the node in an idle worker; the time of a takeover is that "
        'from `kill -9` of a worker to the first line of the node in another worker. "On another machine" is simulated: the '
        "other worker cannot see that the process is dead, and has to wait until the lease of that process expires."
    ),
    "asking": (
        "`holdfast resume --where status=failed` is measured from the start of its process to its end. The single requests are "
        "calls of `resume(execute=False)` in a process that is already running, each durable before the next begins."
    ),
    "server": (
        "`holdfast serve` ran in a process of its own, and a client in another process called it over loopback, with 16 "
        "connections for requests per second. The bare route is one route of starlette on the same HTTP server, which answers "
        "with as many bytes and does nothing else. The rows of the many runs are those of real runs, with reason and remedy; "
        "only those logs were written that the measured requests read. A run is encoded once for all requests until it moves."
    ),
    "peers": (
        "Holdfast and the other libraries were measured in turn, each in a process of its own and with the same durability: "
        "`synchronous=FULL` was checked on the connection that the library itself uses. By default, DBOS and Burr use SQLite's "
        'rollback journal; "with WAL" means that the journal mode of their file was set to WAL, which Holdfast uses. Burr and '
        "LangGraph write the whole state at every step, DBOS and Restate (which is a server) the result of the step, and "
        'Holdfast the changes of the state. "14 times its rate" means that Holdfast did 14 times as many steps per second as '
        "the other library in the same round.\n\n"
        "The workload *growing state* adds 1 KB to the state in each step; *wide state* changes one number in a state of 1 MB."
    ),
    "large-states": (
        'A row is a dict such as `{"id": 7, "name": "…", "tags": ["new", "gift"], "amount": 81.5}`: ten thousand of them are '
        "1 MB. One number changes beside them in each step. To a *history*, each step appends a message of an agent. "
        'LangGraph was measured as it is shipped (`durability="async"`: a checkpoint is written while the next node runs) and '
        'with `durability="sync"`; every step of Holdfast is durable before the next begins. "0.50 times its time per step" '
        "means that Holdfast took half as long in the same round. Stored bytes and CPU time do not include the first state."
    ),
}
_RULES = (
    "Each figure is the median of its rounds. A ratio compares two figures of the same round, and raw commits are measured right "
    "before and right after each workload. A *raw commit* is the limit: a plain loop inserts one row per transaction, without "
    'Holdfast, through the same driver and with the same durability. "0.51 of the raw commit rate" means that the workload does '
    "0.51 steps in the time of one raw commit. A *target* is the value that we want to reach; a *floor* is a weaker bound that "
    "must hold in any case.\n\n"
    "The workloads: a *chain* is one run of 1,000 nodes, one after another; a *loop* is one run that visits the same node 1,000 "
    "times; a *fleet* is many concurrent runs of ten nodes each; a *fan* is one node with 1,000 items, 16 at a time; *steps* is "
    "one node with 1,000 calls of `ctx.step`. `def` nodes run in threads, async nodes on the event loop. Each node "
    "changes one field and does nothing else, so the figures show the cost of the engine.\n"
)
_STORES = {"sqlite": "on SQLite", "memory": "in memory", "postgres": "on PostgreSQL"}
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
    counts = [
        f"{judged.count(verdict)} {'with only the floor met' if verdict == 'only the floor' else verdict}"
        for verdict in report.STYLES
        if verdict in judged
    ]
    return f"Of {len(judged)} targets: {', '.join(counts)}.\n" if counts else ""


def _reasons(figures: list[dict[str, Any]]) -> str:
    lines = [
        f"- **{_name(figure)}** ({report.cells(figure)[0]}): {why}"
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
        lines = ["| workload | median (lowest to highest) | target | also measured |", "|---|---|---|---|"]
        for figure in rows:
            told = (_name(figure), _median(figure), _target(figure), _describe(figure))
            lines.append("| " + " | ".join(told) + " |")
        yield "\n".join(lines) + "\n"


def _name(figure: dict[str, Any]) -> str:
    """Return the name of a figure, with its store and the workload `grow` in words."""
    named = re.sub(r", (sqlite|memory|postgres)\b", lambda found: f" {_STORES[found[1]]}", figure["name"])
    return re.sub(r"^grow\b", "growing state", named)


def _median(figure: dict[str, Any]) -> str:
    """Return the median with its unit, followed by the range over all rounds."""
    median, lowest, highest, rounds, _ = report.cells(figure)
    if not rounds:
        return median
    return f"{median} (1 round)" if rounds == "1" else f"{median} ({lowest} to {highest} in {rounds} rounds)"


def _target(figure: dict[str, Any]) -> str:
    """Return the target and the floor of a figure, and whether they are met."""
    if not figure["target"]:
        return ""
    bounds = f"{figure['target']}, floor {figure['floor']}" if figure["floor"] else figure["target"]
    return f"target {bounds}: {'only the floor is met' if figure['verdict'] == 'only the floor' else figure['verdict']}"


def _describe(figure: dict[str, Any]) -> str:
    """Return the other values and the note of a figure. Why a peer is missing is left out: the reason may contain local paths."""
    if not figure["values"] and figure["part"] in ("peers", "postgres", "large-states"):
        return "not measured"
    return report.beside(figure)


def _again() -> str:
    return (
        "## Measure it yourself\n\n"
        "```sh\n"
        "make bench        # about five minutes; installs the other libraries into bench/peers/.venv\n"
        "make bench-full   # all workloads on all stores, with more rounds; also Restate and a fleet of worker processes\n"
        "```\n\n"
        "The figures of all rounds are stored as JSON in `bench/results/`; "
        "`.venv/bin/python -m bench --write-docs RESULTS.json` makes this page from such a file. The benchmark refuses a folder "
        "on a file system in memory, because syncs cost nothing there. The tests do not measure time: to find changes that make "
        "steps more expensive, `tests/test_bench.py` counts function calls, SQL statements, pages and bytes per step.\n"
    )
