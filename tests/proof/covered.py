"""Branch coverage of the parts that every promise depends on: fold, decide, both SQL stores, leases and recovery.

    python tests/proof/covered.py [pytest arguments]      # exit code 1: a branch was not taken or a test failed; both are listed

The program runs the tests of these parts in two parallel processes; no line is excluded by a marker. It needs the extra `night`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
COVERED = (
    "core/decide.py", "core/fold/*.py",
    "storage/sqlite/*.py", "storage/postgres/*.py",
    "storage/rows.py", "storage/verdicts.py", "storage/writer.py", "storage/queues.py",
    "storage/offers.py", "storage/upkeep.py",
    "storage/leases.py", "runtime/holdings.py", "upkeep/recovery.py",
)  # fmt: skip
TESTED_BY = (
    ("tests/core", *(f"tests/acceptance/test_restore_{name}.py" for name in ("killed", "refused"))),
    ("tests/storage", "tests/runtime/execution/test_many_runs.py", *(
        f"tests/runtime/fleet/test_{name}.py" for name in (
            "recovery", "recovery_meanwhile", "leases_kept", "lease_races", "worker"))),
)  # fmt: skip
"""Two groups of tests that take about the same time."""
_COVERAGE = (sys.executable, "-m", "coverage")


class Covered(NamedTuple):
    share: float
    """The share of lines and branches that were executed, in percent."""
    missing: str
    """The lines and branches that were not executed."""
    failed: int
    """The number of processes with a failed test; if there are any, the share says little."""


def execute(tests: Sequence[str], data: Path) -> int:
    """Run tests, and record which branches they execute. Return pytest's exit code."""
    pytest = ("pytest", "-q", "-p", "no:cacheprovider", *tests)
    return subprocess.run(
        [*_COVERAGE, "run", "--branch", "--source=holdfast", "-m", *pytest],
        cwd=ROOT, env={**os.environ, "COVERAGE_FILE": str(data)}, check=False,
    ).returncode  # fmt: skip


def measure(groups: Sequence[Sequence[str]]) -> tuple[dict[str, dict[str, Any]], int]:
    """Run groups of tests in parallel. Return file -> its coverage report, and how many groups failed."""
    include = ",".join(f"*/holdfast/{file}" for file in COVERED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [folder / f"part-{number}" for number in range(len(groups))]
        with ThreadPoolExecutor(len(groups)) as hands:
            failed = sum(map(bool, hands.map(execute, groups, parts)))
        environment = {**os.environ, "COVERAGE_FILE": str(folder / "data")}
        # No line is excluded, not even in an `if TYPE_CHECKING` or a Protocol.
        for verb, *words in (
            ("combine", *map(str, parts)),
            ("json", f"--include={include}", f"-o{folder}/told"),
        ):
            command = [*_COVERAGE, verb, "-q", f"--rcfile={os.devnull}", *words]
            subprocess.run(command, cwd=ROOT, env=environment, check=True)
        files: dict[str, dict[str, Any]] = json.loads((folder / "told").read_text())["files"]
    return files, failed


def main(arguments: Sequence[str] = ()) -> Covered:
    """Measure and print the share of lines and branches that were executed, and those that were not."""
    taken = of = 0
    missing = []
    files, failed = measure([arguments] if arguments else TESTED_BY)
    for name, told in files.items():
        summary = told["summary"]
        taken += summary["covered_lines"] + summary["covered_branches"]
        of += summary["num_statements"] + summary["num_branches"]
        if told["missing_lines"] or told["missing_branches"]:
            missing.append(f"{name}: lines {told['missing_lines']}, branches {told['missing_branches']}")
    found = Covered(100.0 * taken / max(of, 1), "; ".join(missing), failed)
    print(f"{found.share:.2f} % of lines and branches", *missing, sep="\n  ", flush=True)
    return found


if __name__ == "__main__":
    found = main(sys.argv[1:])
    sys.exit(found.share < 100.0 or found.failed > 0)
