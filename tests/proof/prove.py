"""`make prove`: run the test programs for the promises of Holdfast (crashes, power loss, simulated fleets) and print one table.

    python tests/proof/prove.py                      # under 12 minutes on two cores
    python tests/proof/prove.py --hours 8            # make prove-night: more cases, branch coverage, mutation tests
    python tests/proof/prove.py --only "crash points" --only "zombie rounds"
    python tests/proof/prove.py --write-docs build/prove.json

The exit code is 1 if a promise was violated, a part was skipped, or a target was missed. The table is also written as JSON
(`--json`); the output of each part goes into a folder beside that file. Parts that need both cores run one after the other, the
other parts two at a time. Each part has a share of the twelve minutes, and the table shows how long it took. The seed, which is
printed, determines the cases that are tried.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import apsw
from parts import PARTS, ROOT, Line
from rich.console import Console
from rich.table import Table

import holdfast

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- figures: written by `tests/proof/prove.py --write-docs` -->", "<!-- end of figures -->"
BUSY = (
    " **The machine was busy with other work** (load {load} at the beginning), so counts per minute, and counts within a "
    "time limit, are lower than on a quiet machine."
)
MINUTES = 12
_LAST_WORDS = 1500


# --- running the parts -------------------------------------------------------------------------------


def run(name: str, size: float, seed: int, folder: Path) -> list[Line]:
    """Run one part in a process of its own, and return its lines. The first line has its duration and processor time."""
    began = time.monotonic()
    told, log = folder / f"{name}.json", folder / f"{name}.log"
    told.unlink(missing_ok=True)
    asked = ["--part", name, "--size", str(size), "--seed", str(seed), "--json", str(told)]
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, __file__, *asked], stdout=said, stderr=subprocess.STDOUT, cwd=ROOT
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not told.exists():
        words = log.read_text(errors="replace")[-_LAST_WORDS:]
        lines = [Line(name, "failed to run", "a result", met=False, told=words)]
    else:
        lines = [Line(**line) for line in json.loads(told.read_text())]
    seconds, cpu_s = time.monotonic() - began, used.ru_utime + used.ru_stime
    return [replace(lines[0], seconds=round(seconds, 1), cpu_s=round(cpu_s, 1)), *lines[1:]]


def run_all(names: list[str], sizes: dict[str, float], seed: int, folder: Path) -> dict[str, list[Line]]:
    """Run all parts: first those that need all cores, one by one, then the others, two at a time."""
    found: dict[str, list[Line]] = {}

    def one(name: str) -> None:
        print(f"  {name} …", flush=True)
        lines = found[name] = run(name, sizes[name], seed, folder)
        took = f"{lines[0].seconds:.0f} s, {lines[0].cpu_s:.0f} s of processor time"
        for line in lines:
            print(f"  {name}: {line.many} ({took})" + ("" if is_well(line) else "  FAILED"), flush=True)
            if not is_well(line):
                print(f"    see {folder / name}.log", flush=True)

    for name in names:
        if PARTS[name].alone:
            one(name)
    with ThreadPoolExecutor(2) as hands:
        beside = [name for name in names if not PARTS[name].alone]
        list(hands.map(one, sorted(beside, key=lambda name: -PARTS[name].share_s)))
    return {name: found[name] for name in names}


def in_all(found: dict[str, list[Line]], seconds: float) -> Line:
    """Return the table's last line: how many parts ran, and whether all of them together stayed within twelve minutes."""
    cpu_s = sum(line.cpu_s for lines in found.values() for line in lines)
    many = f"{len(found)} parts in {seconds / 60:.1f} minutes"
    return Line(
        "all parts",
        many,
        f"≤ {MINUTES} minutes",
        seconds <= MINUTES * 60,
        seconds=round(seconds, 1),
        cpu_s=round(cpu_s, 1),
    )


def is_well(line: Line) -> bool:
    return line.met and not line.violations


# --- the table ---------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    return {
        "holdfast": holdfast.__version__,
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }


def document(
    lines: list[Line], seconds: float, seed: int, hours: float, on: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "on": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": on or machine(),
        "seed": seed,
        "hours": hours,
        "seconds": round(seconds),
        "well": all(map(is_well, lines)),
        "lines": [asdict(line) for line in lines],
    }


def show(document: dict[str, Any]) -> None:
    """Print the table, the details of lines that failed, and why parts were skipped."""
    table = Table(title=f"make prove: {document['seconds'] / 60:.1f} minutes, seed {document['seed']}")
    for heading in ("what", "how many", "target", "result"):
        table.add_column(heading, overflow="fold")
    for heading in ("violations", "seconds", "processor s"):
        table.add_column(heading, justify="right")
    for told in document["lines"]:
        line = Line(**told)
        table.add_row(
            line.what,
            line.many,
            line.target,
            "met" if line.met else "SKIPPED" if line.skipped else "MISSED",
            str(line.violations),
            *(f"{took:.0f}" if took else "" for took in (line.seconds, line.cpu_s)),
            style="" if is_well(line) else "bold red",
        )
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    lines = [Line(**told) for told in document["lines"]]
    for line in lines:
        if line.told and not line.skipped and (line.what == "simulated schedules" or not is_well(line)):
            console.print(f"{line.what}: {line.told}", markup=False, highlight=False)
    for why in dict.fromkeys(line.skipped for line in lines if line.skipped):
        what = ", ".join(line.what for line in lines if line.skipped == why)
        console.print(f" SKIPPED: {what}: {why} ", style="bold white on red", markup=False, highlight=False)


def figures_of(document: dict[str, Any]) -> str:
    """Return the table as Markdown for `docs/reliability.md`, followed by the details of each part."""
    on = document["machine"]
    told = [
        f"The figures are those of one `make prove` on {document['on']}: Holdfast {on['holdfast']}, Python {on['python']},",
        f"SQLite {on['sqlite']}, {on['cores']} cores, {document['seconds'] / 60:.1f} minutes, seed {document['seed']}."
        + (BUSY.format(**on) if on.get("load", 0) > on["cores"] / 2 else ""),
        *(["", f"**{document['note']}**"] if document.get("note") else []),
        "",
        "| what | how many | target | violations | time |",
        "|---|---|---|---|---|",
    ]
    for line in document["lines"]:
        result = "met" if line["met"] else "**skipped**" if line.get("skipped") else "**missed**"
        found = f"{line['violations']} violations" if line["violations"] else "no violation"
        took = (
            f"{line['seconds']:.0f} s, processor time {line.get('cpu_s', 0):.0f} s"
            if line.get("seconds")
            else ""
        )
        told.append(
            f"| {line['what']} | {line['many']} | target: {line['target']} ({result}) | {found} | {took} |"
        )
    told += [
        "",
        "Details of each part:",
        "",
        *(f"- {line['what']}: {line['told']}" for line in document["lines"] if line["told"]),
    ]
    return "\n".join(told)


def write_docs(file: Path, page: Path = PAGE, note: str = "") -> None:
    """Write the figures of a result file into the page, with an optional note for its readers."""
    text = page.read_text("utf-8")
    assert text.count(BEGIN) == text.count(END) == 1, f"{page} has no place for figures"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    made = figures_of({"note": note, **json.loads(file.read_text("utf-8"))})
    page.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", "utf-8")


# --- the command -------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--hours", type=float, default=0.0, help="run for about this many hours; 0: under twelve minutes"
    )
    parser.add_argument(
        "--only", action="append", choices=list(PARTS), help="run only this part; may be repeated"
    )
    parser.add_argument(
        "--seed", type=int, help="determines the cases; default: 0, with --hours a random seed"
    )
    parser.add_argument(
        "--json", type=Path, default=ROOT / "build" / "prove.json", help="write the table to this JSON file"
    )
    parser.add_argument(
        "--write-docs", type=Path, metavar="FILE", help=f"write the figures of this result into {PAGE.name}"
    )
    parser.add_argument(
        "--note", default="", help="with --write-docs: a remark that is printed above the figures"
    )
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--size", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    if asked.write_docs is not None:
        write_docs(asked.write_docs, note=asked.note)
        return 0
    if asked.part is not None:
        lines = PARTS[asked.part].prove(asked.size, asked.seed)
        asked.json.write_text(json.dumps([asdict(line) for line in lines]), "utf-8")
        return 0
    seed = asked.seed if asked.seed is not None else random.randrange(1, 10**6) if asked.hours else 0
    names = asked.only or [name for name, part in PARTS.items() if asked.hours or not part.only_at_night]
    sizes = {name: max(part.size, part.nightly * asked.hours) for name, part in PARTS.items()}
    folder = asked.json.parent / asked.json.stem
    folder.mkdir(parents=True, exist_ok=True)
    print(f"make prove, seed {seed}; the output of each part goes to {folder}", flush=True)
    began, on = time.monotonic(), machine()
    found = run_all(names, sizes, seed, folder)
    seconds = time.monotonic() - began
    lines = [line for of_part in found.values() for line in of_part]
    if not asked.hours and not asked.only:
        lines.append(in_all(found, seconds))
    told = document(lines, seconds, seed, asked.hours, on)
    asked.json.write_text(json.dumps(told, indent=1), "utf-8")
    show(told)
    print(
        f"\n{asked.json}: {'no violations, all targets met' if told['well'] else 'FAILED: see the red lines of the table'}"
    )
    return 0 if told["well"] else 1


if __name__ == "__main__":
    sys.exit(main())
