"""Figures with their targets, printed as a table and written as JSON.

The table shows the median of all rounds, and the lowest and highest value, because timings on a busy machine vary.
"""

import json
import os
import platform
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import apsw
from rich.console import Console
from rich.table import Table

import holdfast

RESULTS = Path(__file__).parent / "results"
STYLES = {"met": "green", "only the floor": "yellow", "not met": "red", "not measured": "yellow"}


@dataclass(frozen=True)
class Target:
    """A bound for the median of a figure."""

    bound: float
    side: Literal["least", "most"]

    def met(self, value: float) -> bool:
        return value >= self.bound if self.side == "least" else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.side == 'least' else '≤'} {self.bound:g}"


def at_least(bound: float) -> Target:
    return Target(bound, "least")


def at_most(bound: float) -> Target:
    return Target(bound, "most")


@dataclass(frozen=True)
class Figure:
    """One measured quantity, with its values from all rounds."""

    name: str
    unit: str
    values: list[float]
    """One value per round. If the list is empty, the quantity could not be measured, and `note` says why."""
    target: Target | None = None
    """The bound that the median should reach."""
    floor: Target | None = None
    """A weaker bound that the median must reach in any case."""
    beside: dict[str, list[float]] = field(default_factory=dict)
    """Other values of the same rounds, e.g. steps per second for a ratio."""
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        bounds = [bound for bound in (self.target, self.floor) if bound is not None]
        if not bounds:
            return ""
        if not self.values:
            return "not measured"
        met = [bound.met(self.median) for bound in bounds]
        if all(met):
            return "met"
        return "only the floor" if met[-1] else "not met"

    def plain(self, part: str) -> dict[str, Any]:
        """Return the figure as it is stored in JSON."""
        return {
            "part": part,
            "name": self.name,
            "unit": self.unit,
            "median": self.median if self.values else None,
            "values": self.values,
            "target": str(self.target) if self.target else None,
            "floor": str(self.floor) if self.floor else None,
            "verdict": self.verdict,
            "beside": {
                name: {"median": statistics.median(values), "values": values}
                for name, values in self.beside.items()
            },
            "note": self.note,
        }


def machine(folder: Path, file_system: str) -> dict[str, Any]:
    """Return facts about the machine that the figures are measured on."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "apsw": apsw.apsw_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "holdfast": holdfast.__version__,
        "folder": str(folder),
        "file_system": file_system or "unknown",
        "load_before": load(),
        "measured_on": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def load() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def show(figures: list[dict[str, Any]]) -> None:
    """Print the table of figures, which have the form that is stored in JSON."""
    table = Table(title="Holdfast compared with its targets (medians)", title_justify="left")
    for heading in ("workload", "median", "lowest", "highest", "rounds", "target", "result", "also measured"):
        right = heading in ("median", "lowest", "highest", "rounds", "target")
        table.add_column(heading, justify="right" if right else "left")
    part = ""
    for figure in figures:
        if part not in ("", figure["part"]):
            table.add_section()
        part = figure["part"]
        style = STYLES.get(figure["verdict"], "")
        verdict = f"[{style}]{figure['verdict']}[/]" if style else ""
        table.add_row(figure["name"], *cells(figure), verdict, beside(figure))
    Console(width=None if sys.stdout.isatty() else 170).print(table)


def cells(figure: dict[str, Any]) -> tuple[str, ...]:
    """Return median, lowest value, highest value, number of rounds and target of a figure, as texts."""
    values = figure["values"]
    target = " ".join(
        [figure["target"] or "", f"(floor {figure['floor']})" if figure["floor"] else ""]
    ).strip()
    if not values:
        return ("—", "", "", "", target)
    return (
        f"{number(figure['median'])} {figure['unit']}",
        number(min(values)),
        number(max(values)),
        str(len(values)),
        target,
    )


def beside(figure: dict[str, Any]) -> str:
    """Return the other values and the note of a figure, in one line."""
    seen = [f"{number(found['median'])} {name}" for name, found in figure["beside"].items()]
    return ", ".join([*seen, figure["note"]] if figure["note"] else seen)


def number(value: float) -> str:
    """Format a number with about three significant digits; a small integer without decimals."""
    if value == int(value) and abs(value) < 100:
        return str(int(value))
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def write(figures: list[dict[str, Any]], facts: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write all figures to a JSON file that is named after the current time, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / time.strftime("%Y-%m-%dT%H%M%SZ.json", time.gmtime())
    path.write_text(
        json.dumps({**facts, "figures": figures}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return path


class Progress:
    """Shows what is being measured: on a terminal, in one line that is updated; otherwise, in one line per workload."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = ""
        self._began = time.monotonic()

    def say(self, what: str, detail: str = "") -> None:
        if self._live:
            sys.stderr.write(f"\r\x1b[K{time.monotonic() - self._began:4.0f} s  {what} {detail}")
        elif what != self._last:
            sys.stderr.write(f"{time.monotonic() - self._began:4.0f} s  {what}\n")
        sys.stderr.flush()
        self._last = what

    def end(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
        sys.stderr.write(f"{time.monotonic() - self._began:4.0f} s  done\n")
