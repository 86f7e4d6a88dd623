"""Branch coverage of the parts on which every promise rests: fold, decide, both SQL stores, leases and recovery.

    python tests/proof/covered.py [pytest arguments]      # exit code 1: a branch is not taken; they are listed

Measured over the tests that belong to these parts, without a mark that excludes anything. It needs the extra `night`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
COVERED = (
    "core/decide.py", "core/fold.py", "core/inside.py", "core/standing.py",
    "storage/sqlite.py", "storage/sqlite_*.py", "storage/postgres.py", "storage/postgres_*.py",
    "storage/leases.py", "storage/holder.py", "runtime/leases.py", "runtime/recovery.py",
)  # fmt: skip
TESTED_BY = (
    "tests/core", "tests/conformance", "tests/storage", "tests/acceptance/test_restore_killed.py",
    *(f"tests/runtime/test_{name}.py" for name in (
        "recovery", "recovery_branches", "recovery_meanwhile", "leases_kept", "lease_races", "worker", "many_runs")),
)  # fmt: skip


def measure(arguments: list[str]) -> dict[str, dict[str, object]]:
    """File -> what coverage tells of it."""
    include = ",".join(f"*/holdfast/{file}" for file in COVERED)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "COVERAGE_FILE": str(Path(folder) / "data")}
        coverage = [sys.executable, "-m", "coverage"]
        pytest = ["pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *(arguments or TESTED_BY)]
        subprocess.run(
            [*coverage, "run", "--branch", "--source=holdfast", "-m", *pytest],
            cwd=ROOT, env=environment, check=True,
        )  # fmt: skip
        told = Path(folder) / "told.json"
        # What stands in an `if TYPE_CHECKING` or a Protocol counts as well: no line is left out.
        subprocess.run(
            [*coverage, "json", "-q", f"--include={include}", f"-o{told}", "--rcfile=" + os.devnull],
            cwd=ROOT, env=environment, check=True,
        )  # fmt: skip
        files: dict[str, dict[str, object]] = json.loads(told.read_text())["files"]
    return files


def main(arguments: list[str] | None = None) -> tuple[float, str]:
    """The share of lines and branches that were taken, and which were not."""
    taken = of = 0
    missing = []
    for name, told in measure(arguments or []).items():
        summary = told["summary"]
        assert isinstance(summary, dict)
        taken += summary["covered_lines"] + summary["covered_branches"]
        of += summary["num_statements"] + summary["num_branches"]
        if told["missing_lines"] or told["missing_branches"]:
            missing.append(f"{name}: lines {told['missing_lines']}, branches {told['missing_branches']}")
    share = 100.0 * taken / max(of, 1)
    print(f"{share:.2f} % of lines and branches", *missing, sep="\n  ", flush=True)
    return share, "; ".join(missing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:])[0] < 100.0)
