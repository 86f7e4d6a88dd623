"""Plant small faults all over the source, one at a time, and say which tests find each: those of its folder, or all tests.

    python tests/proof/faults.py --seed 7 --count 40                    # what `make test` chooses
    python tests/proof/faults.py --seed 7 --only 12 --all-tests         # one fault, and all tests of `make test`
    python tests/proof/faults.py --seed 7 --only 12 -- --stores all     # the rest goes to pytest

A fault is a removed check, a swapped comparison, a dropped await or an off-by-one. The seed, which is printed, determines the
faults. They are planted in a copy of the working tree, so the tree itself never changes. `mutation.py` does the same for every
place of the core, for hours; this is a sample of everything.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = Path("src/holdfast")
COPIED = (
    "src",
    "tests",
    "docs",
    "examples",
    "bench",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
    "pyproject.toml",
)
FOLDERS = {
    "upkeep": ("tests/runtime/upkeep", "tests/cli"),
    "testing": ("tests/testing", "tests/simulation"),
    "documents": ("tests/runtime/files", "tests/runtime/plans", "tests/cli"),
}
"""Where the tests of a room are, if not in the folder of its name."""
SWAPPED = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    " in ": " not in ", " not in ": " in ", " is ": " is not ", " is not ": " is ",
}  # fmt: skip
MINUTES_MAX = 15


@dataclass(frozen=True)
class Fault:
    """One place of a file where other text is written."""

    kind: str
    path: Path
    line: int
    begin: int
    end: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(SOURCE)}:{self.line} {self.kind}"

    def plant(self, tree: Path) -> str:
        """Write the fault into a tree, and return the source without it."""
        whole = (tree / self.path).read_bytes()
        (tree / self.path).write_bytes(whole[: self.begin] + self.text.encode() + whole[self.end :])
        return whole.decode()


def faults_in(path: Path) -> Iterator[Fault]:
    """Yield every fault that can be planted into a file."""
    whole = (ROOT / path).read_bytes()
    starts = [0]
    for line in whole.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: ast.expr) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def fault(kind: str, node: ast.expr, text: Callable[[str], str]) -> Fault:
        begin, end = place(node)
        return Fault(kind, path, node.lineno, begin, end, text(whole[begin:end].decode()))

    for node in ast.walk(ast.parse(whole)):
        match node:
            case ast.If(orelse=[], body=[*_, ast.Raise() | ast.Return() | ast.Continue()]):
                yield fault("a removed check", node.test, lambda test: f"(False and ({test}))")
            case ast.Compare(left=left, comparators=[right]):
                begin, end = place(left)[1], place(right)[0]
                sign = re.sub(r"\s*(\W+|\s+\w[\w ]*\s+)\s*", r"\1", whole[begin:end].decode())
                if (other := SWAPPED.get(sign) or SWAPPED.get(sign.strip())) is not None:
                    yield Fault("a swapped comparison", path, node.lineno, begin, end, f" {other.strip()} ")
            case ast.Await():
                yield fault("a dropped await", node, lambda text: f"({text.removeprefix('await ')})")
            case ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Constant(value=int() as value) as number):
                yield fault("an off-by-one", number, lambda _, value=value: str(value + 1))
            case ast.Slice(lower=ast.Constant(value=int() as value) as number):
                yield fault("an off-by-one", number, lambda _, value=value: str(value + 1))


def draw(seed: int, count: int) -> list[Fault]:
    """Draw faults: one kind after the other, and of each kind any place with the same chance."""
    kinds: dict[str, list[Fault]] = {}
    for file in sorted((ROOT / SOURCE).rglob("*.py")):
        if "    def test_" in file.read_text("utf-8"):
            continue  # a suite of tests, for stores that others write
        for fault in faults_in(file.relative_to(ROOT)):
            kinds.setdefault(fault.kind, []).append(fault)
    luck = random.Random(seed)
    drawn = {kind: iter(luck.sample(some, len(some))) for kind, some in sorted(kinds.items())}
    return [next(list(drawn.values())[number % len(drawn)]) for number in range(count)]


def tests_of(fault: Fault) -> tuple[str, ...]:
    room = fault.path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return FOLDERS.get(room) or ((f"tests/{room}",) if (ROOT / "tests" / room).is_dir() else ())


def run(tree: Path, words: list[str]) -> tuple[str, float]:
    """Run tests until one fails; return the first that failed, or nothing."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--workers", "3",
               "-p", "no:cacheprovider", "--hypothesis-profile", "quick", *words]  # fmt: skip
    paths = {"PYTHONPATH": f"{tree}:{tree / 'src'}", "PATH": "/usr/sbin:/usr/bin:/bin", "HOME": str(tree)}
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=paths,
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * MINUTES_MAX,
        )
    except subprocess.TimeoutExpired:
        return f"they did not end within {MINUTES_MAX} minutes", time.monotonic() - began
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    name = found[1] if found else f"exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]!r}"
    return ("" if done.returncode == 0 else name), time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant faults, and say which tests find each.")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--only", type=int, action="append", help="the number of a fault in the list")
    parser.add_argument("--all-tests", action="store_true", help="all tests, not those of the folder")
    parser.add_argument(
        "--tests", type=Path, default=ROOT, help="the tree whose tests run (default: this one)"
    )
    parser.add_argument("words", nargs="*", help="more words for pytest")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="hf-faults-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for name in COPIED:
            origin = (ROOT if name == "src" else asked.tests) / name
            (shutil.copytree if origin.is_dir() else shutil.copy)(origin, tree / name)
        for number, fault in enumerate(draw(asked.seed, asked.count), 1):
            if asked.only and number not in asked.only:
                continue
            source = fault.plant(tree)
            try:
                chosen = () if asked.all_tests else tests_of(fault)
                found, seconds = run(tree, [*asked.words, *chosen])
            finally:
                (tree / fault.path).write_text(source, "utf-8")
            print(f"{number:>3} {fault}: {found or 'NOT FOUND'} ({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
