"""`python -m tests.chaos`: run all chaos tests, on both databases. Exit code 1: a check failed.

With `--unfenced` it is the control, in which a check must fail.
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
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="A fleet in trouble.")
    parser.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--patience", type=float, default=1800.0, metavar="SECONDS")
    parser.add_argument(
        "--unfenced", action="store_true", help="the control: stores judge no fences, and it must be seen"
    )
    return parser.parse_args()


def _endured(name: str, plan: Plan) -> bool:
    """Whether something is wrong; of a control: whether nothing is."""
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
