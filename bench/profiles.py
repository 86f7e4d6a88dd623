"""How the time of a step is spent: a sampled profile of a chain and of a fleet, by the innermost frame.

`python -m bench.profiles NAME FOLDER` is the program that is profiled; `py-spy` samples it from another process. If `py-spy` is
not installed, or may not read another process, the figures have a note with the reason and no values.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench import workloads
from bench.parts import Bench
from bench.report import Figure
from bench.stores import Place
from bench.workloads import count_in_thread

PROFILED = {
    "chain, async nodes": partial(workloads.chain),
    "chain, def nodes": partial(workloads.chain, fn=count_in_thread),
    "fleet, 1,000 runs": partial(workloads.fleet, runs=1000),
}
_TIMES = {"chain, async nodes": 2, "chain, def nodes": 2, "fleet, 1,000 runs": 1}
_RATE = 500
_PLACES = (
    (r"storage/(sqlite|writer)", "SQLite, commit included"),
    (r"storage/(rows|oversize|blobs)", "making rows and their hashes"),
    (r"core/(fold|readiness|writers)", "time spent folding events and finding the nodes that are due"),
    (r"core/(decide|commands)", "decide (the next commands)"),
    (r"core/(events|codec|state|graph|topology|run_state)", "typed state and JSON"),
    (r"runtime/calls/", "calling the node"),
    (r"runtime/", "scheduling and recording (runner, journal)"),
    (r"selectors|asyncio/|threading|queue\.py", "event loop, waiting for a thread included"),
    (r"bench/", "the function of the node"),
)
_FRAME = re.compile(r"\(([^()]*?):\d+\)$")


def profile(bench: Bench) -> list[Figure]:
    """Measure which share of the event loop's time each part of a step takes."""
    figures = []
    for name in PROFILED:
        bench.progress.say(f"profile of {name}")
        with bench.fresh() as place:
            shares, note = _sampled(name, place.folder)
        if not shares:
            figures.append(Figure(f"{name}: not profiled", "", [], note=note))
        figures += [
            Figure(f"{name}: {where}", "% of the event loop's time", [share]) for where, share in shares
        ]
    return figures


def _sampled(name: str, folder: Path) -> tuple[list[tuple[str, float]], str]:
    spy = Path(sys.executable).with_name("py-spy")
    if not spy.exists():
        return [], "py-spy is not installed"
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".txt") as found:
        command = [
            str(spy), "record", "--idle", "--threads", "--nonblocking", "--rate", str(_RATE), "--format", "raw",
            "--output", found.name, "--", sys.executable, "-m", "bench.profiles", name, str(folder),
        ]  # fmt: skip
        done = subprocess.run(
            command, check=False, cwd=Path(__file__).parent.parent, capture_output=True, text=True
        )
        samples = Counter(dict(_places(Path(found.name).read_text(encoding="utf-8"))))
    if done.returncode or not samples:
        return [], (done.stderr.strip().splitlines() or ["no samples"])[-1][:200]
    total = sum(samples.values())
    return [(where, 100 * count / total) for where, count in samples.most_common()], ""


def _places(raw: str) -> Iterator[tuple[str, int]]:
    """Yield each place in the code at which the main thread was sampled, with the number of samples."""
    seen: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if "MainThread" in frames[0] and "_run_once" in stack:
            seen[_place(frames[1:])] += int(count)
    yield from seen.items()


def _place(frames: list[str]) -> str:
    """Return the place of the innermost frame that belongs to Holdfast or to the event loop."""
    for frame in reversed(frames):
        match = _FRAME.search(frame)
        for pattern, where in _PLACES:
            if match and re.search(pattern, match[1]):
                return where
    return "the rest"


if __name__ == "__main__":
    for _ in range(_TIMES[sys.argv[1]]):
        with tempfile.TemporaryDirectory(dir=sys.argv[2]) as own:
            PROFILED[sys.argv[1]](Place("sqlite", Path(own)))
