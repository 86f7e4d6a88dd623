"""Mutation testing of the core: a mutant is one small mistake in the core, and the core's own tests must find it.

    python tests/proof/mutation.py [seconds] [decide.py fold/nodes.py …]      # lists the mutants that survived

cosmic-ray makes the mutants; this program decides which are worth trying, in which order, and with which tests. It does not try
mutants of annotations, which are never executed, and tries only one of the many mutants of an operator. The order is random but
always the same, so that the first part of it is a fair sample of all. Each lane works on a copy of the tree, in which the tests
must pass before a mutant is tried. It needs the extra `night`.
"""

from __future__ import annotations

import ast
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
CORE = Path("src/holdfast/core")
COPIED = ("src", "tests", "docs", "pyproject.toml", "README.md")
LANES = 2
PATIENCE_S = 300.0
OPERATORS = frozenset({
    "core/AddNot", "core/NumberReplacer", "core/ReplaceAndWithOr", "core/ReplaceOrWithAnd", "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak", "core/ReplaceTrueWithFalse", "core/ReplaceFalseWithTrue", "core/ZeroIterationForLoop",
    "core/ReplaceUnaryOperator_Delete_Not", "core/ExceptionReplacer",
    *(f"core/ReplaceComparisonOperator_{change}" for change in (
        "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE",
        "GtE_Gt", "GtE_Lt", "In_NotIn", "NotIn_In")),
    *(f"core/ReplaceBinaryOperator_{change}" for change in (
        "Add_Sub", "Sub_Add", "Mul_Add", "BitOr_BitAnd", "BitAnd_BitOr", "LShift_RShift", "RShift_LShift")),
})  # fmt: skip


# --- which mutants -----------------------------------------------------------------------------------


def annotations(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield everything in a module that only a type checker reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            yield node.annotation
            if node.value is not None and "TypeAlias" in ast.unparse(node.annotation):
                yield node.value
        elif isinstance(node, ast.arg) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            yield node.returns


def is_read_by_nobody(place: tuple[int, int], spans: list[ast.expr]) -> bool:
    return any(
        (span.lineno, span.col_offset) <= place <= (span.end_lineno or 0, span.end_col_offset or 0)
        for span in spans
    )


def mutants(tree: Path, files: list[str]) -> list[Any]:
    """Return the mutants to try, in order."""
    from cosmic_ray.work_db import use_db

    chosen = [str(CORE / name) for name in files] or sorted(
        str(path.relative_to(tree)) for path in (tree / CORE).rglob("*.py")
    )
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.toml"
        config.write_text(
            f'[cosmic-ray]\nmodule-path = {chosen}\ntimeout = 1.0\nexcluded-modules = []\ntest-command = "true"\n'
            '[cosmic-ray.distributor]\nname = "local"\n'
        )
        session = str(Path(folder) / "session.sqlite")
        program = str(Path(sys.executable).with_name("cosmic-ray"))
        subprocess.run([program, "init", str(config), session], cwd=tree, check=True, capture_output=True)
        with use_db(session) as found:
            made = [mutation for item in found.work_items for mutation in item.mutations]
    spans = {name: list(annotations(ast.parse((tree / name).read_text("utf-8")))) for name in chosen}
    wanted = [
        one
        for one in made
        if one.operator_name in OPERATORS
        and not is_read_by_nobody(tuple(one.start_pos), spans[str(one.module_path)])
    ]
    random.Random(len(wanted)).shuffle(wanted)
    return wanted


# --- trying them -------------------------------------------------------------------------------------


def command(module: Path) -> str:
    """Return the command that runs the tests of the core, those of this module first."""
    subject = module.parent.name if module.parent.name != CORE.name else module.stem
    folder = Path("tests/core")
    places = (folder / f"test_{subject}.py", folder / subject)
    first = "".join(f"{own} " for own in places if (ROOT / own).exists())
    return f"{sys.executable} -m pytest -x -q -n 0 -p no:cacheprovider --hypothesis-profile quick {first}tests/core"


def enter(lanes: Any) -> None:
    """Make this process work in its copy of the tree."""
    lane = lanes.get()
    os.chdir(lane)
    os.environ |= {"PYTHONPATH": str(Path(lane) / "src"), "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def attempt(mutant: Any) -> tuple[Any, str, str]:
    """Make one mutant, and test whether the tests find it."""
    from cosmic_ray.mutating import mutate_and_test

    result = mutate_and_test(mutations=[mutant], test_command=command(mutant.module_path), timeout=PATIENCE_S)
    changed = [
        line for line in (result.diff or "").splitlines() if line.startswith("+") and line[:3] != "+++"
    ]
    return (
        mutant,
        str(result.test_outcome.value if result.test_outcome else "incompetent"),
        "".join(changed[:1]),
    )


def require_sound() -> None:
    """Fail unless the tests pass without a mutant: otherwise every mutant would seem to be found."""
    done = subprocess.run(
        command(CORE / "fold/__init__.py").split(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"tests/core fails without a mutant: {done.stdout[-1500:]}"


def try_all(
    pool: Executor, wanted: Iterable[Any], until: float, least: int = 0
) -> Iterator[tuple[Any, str, str]]:
    """Try mutants until this time, but at least `least` of them, and yield the outcomes. A lane gets a mutant only when it is
    free.
    """
    going: set[Future[tuple[Any, str, str]]] = set()
    left = takewhile(lambda one: one[0] < least or time.monotonic() < until, enumerate(wanted))
    while True:
        going |= {pool.submit(attempt, mutant) for _, mutant in islice(left, LANES - len(going))}
        if not going:
            return
        ended, going = wait(going, return_when=FIRST_COMPLETED)
        yield from (one.result() for one in ended)


def main(seconds: float = 3600.0, files: list[str] | None = None, least: int = 0) -> dict[str, Any]:
    """Try as many mutants as the time allows, but at least `least`. Print those that survived; return the figures."""
    outcomes: Counter[str] = Counter()
    survivors: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hf-mutants-") as folder, multiprocessing.Manager() as manager:
        queue = manager.Queue()
        for number in range(LANES):
            lane = Path(folder) / f"lane-{number}"
            for name in COPIED:
                place = ROOT / name
                (shutil.copytree if place.is_dir() else shutil.copy)(place, _made(lane) / name)
            queue.put(str(lane))
        wanted = mutants(Path(folder) / "lane-0", files or [])
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(LANES, spawn, enter, (queue,)) as pool:
            pool.submit(require_sound).result()
            for mutant, outcome, changed in try_all(pool, wanted, time.monotonic() + seconds, least):
                outcomes[outcome] += 1
                if outcome == "survived":
                    survivors.append(
                        f"{mutant.module_path}:{mutant.start_pos[0]} {mutant.operator_name}: {changed.strip()}"
                    )
                    print(f"  SURVIVED {survivors[-1]}", flush=True)
    told = figures(len(wanted), outcomes) | {"survivors": survivors}
    print(
        "mutants: " + ", ".join(f"{name} {value}" for name, value in told.items() if name != "survivors"),
        flush=True,
    )
    return told


def figures(there_are: int, outcomes: Counter[str]) -> dict[str, Any]:
    """Return the figures, for a table. A mutant that Python cannot load does not count as tried."""
    killed, survived = outcomes["killed"], outcomes["survived"]
    tried = killed + survived
    share = killed / max(tried, 1)
    return {
        "mutants": there_are,
        "tried": tried,
        "killed": killed,
        "refused": outcomes.total() - tried,
        "share": share,
    }


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


if __name__ == "__main__":
    main(float(sys.argv[1]) if sys.argv[1:] else 3600.0, sys.argv[2:])
