"""`python -m tests.chaos`: run all chaos tests, on both databases. The exit code is 1 if a check failed.

With `--unfenced` it runs the control, in which stores do not check fences and stale writes must be found.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from chaos import Plan, PostgresGround, SqliteGround, Summary, endure  # noqa: E402 - found by the lines above

SHOWN = 20


def main() -> int:
    asked = _arguments()
    failed = False
    for name in ("sqlite", "postgres"):
        if asked.store in (name, "both"):
            plan = Plan(
                seed=asked.seed,
                runs=asked.runs,
                workers=asked.workers,
                batches=max(10, asked.runs // 25),
                fenced=not asked.unfenced,
                patience_s=asked.patience,
            )
            failed |= _endured(name, plan)
    return int(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Run a fleet of workers that are killed, paused and disconnected, and check the result.",
    )
    parser.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--patience", type=float, default=1800.0, metavar="SECONDS")
    parser.add_argument(
        "--unfenced",
        action="store_true",
        help="run the control: stores do not check fences, and stale writes must be found",
    )
    return parser.parse_args()


def _endured(name: str, plan: Plan) -> bool:
    """Run a plan on one database. Return whether it failed; a control fails if it finds no stale write."""
    print(f"chaos on {name}, seed {plan.seed}, {plan.runs} runs …", flush=True)
    with tempfile.TemporaryDirectory(prefix="hf-chaos-") as folder:
        ground = SqliteGround(Path(folder)) if name == "sqlite" else PostgresGround()
        try:
            summary = endure(ground, Path(folder), plan)
        finally:
            ground.close()
    _say(summary)
    return not summary.stale_accepted if not plan.fenced else bool(summary.violations)


def _say(summary: Summary) -> None:
    print(summary, flush=True)
    for violation in summary.violations[:SHOWN]:
        print(f"  VIOLATION {violation}", flush=True)
    more = len(summary.violations) - SHOWN
    if more > 0:
        print(f"  … and {more} more", flush=True)


if __name__ == "__main__":
    sys.exit(main())
