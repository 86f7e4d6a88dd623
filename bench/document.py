"""Make `docs/performance.md` and its picture from a result. Every figure there was measured; none is written by hand."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import chart, reasons, report

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PICTURE = "performance.md", "performance.svg"

_TITLES = {
    "raw": "The limit",
    "steps": "Steps per second on SQLite, beside raw commits",
    "profile": "Where the time of a step goes",
    "costs": "CPU time a step, in memory",
    "postgres": "Steps per second on PostgreSQL, beside raw commits there",
    "growth": "A state that grows",
    "width": "A state of 1 MB of which one number changes",
    "resuming": "Taking up a run again",
    "history": "A long history",
    "graphs": "Large graphs",
    "overhead": "The engine's own time around slow nodes",
    "saving": "One durable append",
    "starting": "Starting a process",
    "memory": "Waiting runs",
    "fleet": "A fleet: workers in processes of their own",
    "peers": "Beside the peers",
}
_EXPLAINED = {
    "steps": "Every step of a chain waits for its own sync; the steps of a fleet share theirs, and so pass the raw rate.",
    "profile": (
        "The thread of the event loop, sampled from outside by py-spy; a call into SQLite counts until it returns, its sync "
        "included."
    ),
    "growth": "Bytes are those on the disk after close, with indexes and snapshots; 1,024 bytes of random text a step.",
    "resuming": "From the call of `resume` to the first line of the node, in a process that is already running.",
    "history": "CPU time, on a SQLite store that does not sync: so the disk adds no noise.",
    "overhead": "Beside the same coroutines in a bare loop, and beside a raw commit after the same idle time.",
    "saving": (
        "Every append of a run of 1,000 nodes, timed inside the store, beside raw commits before and after it; and what passes "
        "between one append and the next, which is the engine's own part of a step."
    ),
    "fleet": (
        "Measured from outside, by the clock that all processes of the machine share. A claim is from the call of `start` in one "
        "process to the first line of the node in a worker that had nothing to do; a takeover from `kill -9` to the "
        "first line of the node in another. A worker on another machine is one whose death cannot be seen."
    ),
    "peers": (
        "In turn with Holdfast, each in a process of its own, at the same durability: `synchronous=FULL` was checked on the "
        "connection that the library itself uses. As they ship, DBOS and Burr use SQLite's rollback journal; "
        '"with WAL" is the same on a file whose journal mode was set by hand. Burr and LangGraph write the whole state '
        "at every step, DBOS and Restate (a server of its own) the result of the step, Holdfast what changed. *Times* is our "
        "rate over that of the fastest peer in the same round."
    ),
}
_RULES = (
    "A figure is the median of its rounds. A ratio is made of figures of the same round, with the raw rate measured before and "
    "after. A *raw* commit is one row in a transaction of its own, written by a bare loop through the same driver, as durable as "
    "ours. A *floor* must hold in any case; a target is what we want.\n"
)
_QUICK = (
    "> **These figures are of a quick run on a busy machine.** They show that the program works and what it measures, "
    "not how fast anything is. `make bench-full` on a quiet machine, and the command at the end of this page, replace them.\n"
)


def write(result: Path, folder: Path = DOCS) -> list[Path]:
    """Make both files from a result."""
    seen = json.loads(result.read_text(encoding="utf-8"))
    page, picture = folder / PAGE, folder / PICTURE
    page.write_text(text(seen), encoding="utf-8")
    picture.write_text(chart.draw(seen["figures"]), encoding="utf-8")
    return [page, picture]


def text(seen: dict[str, Any]) -> str:
    """The page."""
    parts = [
        "<!-- Made by `python -m bench --write-docs`; changes by hand are lost. -->\n# How fast it is\n",
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
        f"Measured on {seen['measured_on']} ({seen['effort']}): {seen['cpu']}, {seen['cores']} cores, {seen['system']}, "
        f"{seen['file_system']} with an fdatasync of {seen['fdatasync_p50_us']:.0f} µs (p95 {seen['fdatasync_p95_us']:.0f} µs), "
        f"load {seen['load_before']:.1f} before and {seen['load_after']:.1f} after; Python {seen['python']}, "
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
    return "What falls short, and why:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _sections(figures: list[dict[str, Any]]) -> Iterator[str]:
    for part, title in _TITLES.items():
        rows = [figure for figure in figures if figure["part"] == part]
        if not rows:
            continue
        yield f"## {title}\n"
        if part in _EXPLAINED:
            yield f"{_EXPLAINED[part]}\n"
        lines = [
            "| | median | least | most | rounds | target | | beside it |",
            "|---|--:|--:|--:|--:|--:|---|---|",
        ]
        for figure in rows:
            told = (figure["name"], *report.cells(figure), figure["verdict"], _describe(figure))
            lines.append("| " + " | ".join(told) + " |")
        yield "\n".join(lines) + "\n"


def _describe(figure: dict[str, Any]) -> str:
    """The note of a figure. A missing peer gets no reason, because the reason may name this machine."""
    if not figure["values"] and figure["part"] in ("peers", "postgres"):
        return "not measured"
    return report.beside(figure)


def _again() -> str:
    return (
        "## Measure it yourself\n\n"
        "```sh\n"
        "make bench        # about three minutes; the peers are installed into bench/peers/.venv\n"
        "make bench-full   # everything on every store, more rounds, peers at full size, Restate, and a fleet of workers\n"
        "```\n\n"
        "Every figure of every round is kept as JSON in `bench/results/`; "
        "`.venv/bin/python -m bench --write-docs RESULTS.json` makes this page of it. A folder on a file system that lives in "
        "memory is refused. A regression is found by counting, not by timing: `tests/test_bench.py` counts function calls, SQL "
        "statements, pages and bytes a step.\n"
    )
