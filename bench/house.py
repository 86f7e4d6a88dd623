"""`python -m bench.house [TREE]`: print figures of the code's structure (classes, imports, calls) with their targets.

The figures are computed from the syntax trees of a checkout, or measured on its engine (`house_paths`), so the same script works
for any commit: check it out with `git worktree add FOLDER COMMIT` and pass the folder. Only `questions()` is timed and depends on
the machine; everything else is counted.
"""

import argparse
import ast
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
RAM = Path("/dev/shm")
ASKING = 1000
FEW_ASKING = 200
ENGINE_PARTS = ("Engine", "Holdings", "Driver", "Door", "UnheldRuns", "Requests")
"""The engine and the objects that it is composed of. `callbacks` looks for callbacks that any of them passes on."""
FILE_LINES = 800
"""From this many lines on, the question is whether a file has one subject. `tests/test_architecture.py` has the limit."""


class Row(NamedTuple):
    """One line of the table."""

    what: str
    value: str
    target: str


# --- from the syntax trees -------------------------------------------------------------------------------


@cache
def trees(source: Path) -> dict[str, ast.Module]:
    """Return the syntax tree of every file, by its path inside the package."""
    files = sorted(source.rglob("*.py"))
    return {file.relative_to(source).as_posix(): ast.parse(file.read_text("utf-8")) for file in files}


def classes(source: Path) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield every class at the top level of a module, with the path of its file."""
    for path, tree in trees(source).items():
        yield from ((path, node) for node in tree.body if isinstance(node, ast.ClassDef))


def engine_classes(source: Path) -> list[ast.ClassDef]:
    """Return `Engine` and the classes of `runtime` that it inherits from."""
    known = {node.name: node for path, node in classes(source) if path.startswith("runtime/")}
    found: list[ast.ClassDef] = []
    waiting = ["Engine"]
    while waiting:
        node = known.get(waiting.pop())
        if node is not None and node not in found:
            found.append(node)
            waiting += [ast.unparse(base).partition("[")[0] for base in node.bases]
    return found


def stubs(source: Path) -> int:
    """Count the methods in `runtime` that raise NotImplementedError, for a subclass to override."""
    raised = [
        node
        for path, tree in trees(source).items()
        if path.startswith("runtime/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and node.exc is not None
    ]
    return sum("NotImplementedError" in ast.unparse(node.exc) for node in raised if node.exc is not None)


def callbacks(source: Path) -> list[str]:
    """List upward callbacks: methods of `self`, or lambdas with `self`, that the engine or a part of it passes on."""
    parts = [
        node for path, node in classes(source) if path.startswith("runtime/") and node.name in ENGINE_PARTS
    ]
    owners = {node.name: node for node in (*engine_classes(source), *parts)}
    methods = {
        part.name
        for _, node in classes(source)
        for part in node.body
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and not part.decorator_list
    }
    methods -= {
        node.attr
        for owner in owners.values()
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    found = []
    for owner in owners.values():
        for call in (node for node in ast.walk(owner) if isinstance(node, ast.Call)):
            called = ast.unparse(call.func)
            handed = [(keyword.arg or "", keyword.value) for keyword in call.keywords]
            handed += [(str(number), value) for number, value in enumerate(call.args)]
            lowered = called.rpartition(".")[2].lstrip("_")[:1].isupper() or ".follow" in called
            found += [f"{called}.{name}" for name, value in handed if lowered and _goes_up(value, methods)]
    # A bound method that is assigned to a name first: `is_here = self._runners.__contains__`.
    for owner in owners.values():
        for node in ast.walk(owner):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and _goes_up(node.value, methods)
            ):
                found.append(f"{owner.name}.{node.targets[0].id}")
    return found


def _goes_up(value: ast.expr, methods: set[str]) -> bool:
    if isinstance(value, ast.Lambda):
        return "self" in {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    text = ast.unparse(value)
    last = text.rpartition(".")[2]
    is_chain = isinstance(value, ast.Attribute) and text.startswith("self.")
    return is_chain and (last in methods or last == "__contains__")


def long_files(source: Path) -> dict[str, int]:
    """Return how many lines the long files have, the longest first."""
    lines = {path: len((source / path).read_text("utf-8").splitlines()) for path in trees(source)}
    return {
        path: lines[path]
        for path in sorted(lines, key=lambda path: -lines[path])
        if lines[path] >= FILE_LINES
    }


def files(source: Path, room: str) -> list[str]:
    return [path for path in trees(source) if path.startswith(f"{room}/")]


def layers(source: Path, room: str) -> int:
    """Return the length of the longest chain of modules in a package in which each module imports the next."""
    inside = {_module(path): tree for path, tree in trees(source).items() if path.startswith(f"{room}/")}
    arrows = {name: set(_imported(tree, inside)) - {name} for name, tree in inside.items()}

    @cache
    def depth(name: str) -> int:
        return 1 + max((depth(other) for other in arrows[name]), default=0)

    return max(depth(name) for name in inside)


def _module(path: str) -> str:
    return ".".join(("holdfast", *path.removesuffix(".py").removesuffix("/__init__").split("/")))


def _imported(tree: ast.Module, known: dict[str, ast.Module]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in known:
                    yield inner
                elif node.module in known:
                    yield str(node.module)


# --- kinds of events ----------------------------------------------------------------------------------------


def event_kinds(source: Path) -> set[str]:
    """Return the names in the closed union `AnyEvent`."""
    for node in trees(source)["core/events.py"].body:
        if (
            isinstance(node, ast.AnnAssign)
            and ast.unparse(node.target) == "AnyEvent"
            and node.value is not None
        ):
            return {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
    raise AssertionError("core/events.py has no union AnyEvent")


def tables_of_kinds(source: Path) -> list[str]:
    """List the tables of event kinds: assignments at the top level of a module that name at least two kinds of events."""
    raised = {node.name for path, node in classes(source) if path == "errors.py"}
    kinds, found = event_kinds(source) - raised, []
    for path, tree in trees(source).items():
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if len(_named(node.value) & kinds) > 1:
                    found.append(f"{path}:{ast.unparse(target)}")
    return found


def files_that_name(source: Path) -> float:
    """Return in how many files of the package a kind of event is named: the median over all kinds."""
    named = [_named(tree) for tree in trees(source).values()]
    return statistics.median(sum(kind in names for names in named) for kind in event_kinds(source))


def _named(tree: ast.AST) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return names | {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def guarded_places(tree: Path) -> int | None:
    """Return in how many places a new kind of event must be named, according to `test_kinds.py`; None if that test is missing."""
    test = tree / "tests" / "core" / "test_kinds.py"
    if not test.exists():
        return None
    for node in ast.parse(test.read_text("utf-8")).body:
        if (
            isinstance(node, ast.AnnAssign)
            and ast.unparse(node.target) == "CHANGES"
            and isinstance(node.value, ast.Dict)
        ):
            changed = {ast.literal_eval(key) for key in node.value.keys if key is not None}
            return (
                len(changed - {"class"}) + 1
            )  # the class and its union count as one place; the documents are one more
    raise AssertionError(f"{test} has no CHANGES")


# --- names -------------------------------------------------------------------------------------------------


def names_in_two_rooms(source: Path) -> tuple[list[str], list[str]]:
    """Return the names of files, and of public classes, that occur in two top-level packages (rooms)."""
    of_files: dict[str, set[str]] = {}
    of_classes: dict[str, set[str]] = {}
    for path in trees(source):
        if "/" in path and not path.rpartition("/")[2].startswith("__"):
            of_files.setdefault(Path(path).stem, set()).add(path.partition("/")[0])
    for path, node in classes(source):
        if not node.name.startswith("_"):
            of_classes.setdefault(node.name, set()).add(path.partition("/")[0])
    several: Callable[[dict[str, set[str]]], list[str]] = lambda found: sorted(  # noqa: E731
        name for name, rooms in found.items() if len(rooms) > 1
    )
    return several(of_files), several(of_classes)


# --- measured on the engine --------------------------------------------------------------------------------


def measure(tree: Path, part: str, *more: str, folder: Path | None = None) -> dict[str, Any]:
    """Run one part of `house_paths` with the Holdfast of that checkout. The store is in memory (`/dev/shm`) if possible, so
    that commits are quick and stay on one thread.
    """
    place = (
        Path(tempfile.mkdtemp(prefix="house-", dir=RAM if RAM.is_dir() else None))
        if folder is None
        else folder
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    environment["PYTHONPATH"] = str(tree / "src")
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(HERE / "house_paths.py"), part, str(place), *more],
            env=environment, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    finally:
        shutil.rmtree(place, ignore_errors=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def held_up(tree: Path, kind: str, runs: int) -> dict[str, Any]:
    """Measure how long `questions()` delays a node, on SQLite (on a disk) or on a temporary PostgreSQL server."""
    folder = Path(tempfile.mkdtemp(prefix="house-"))
    if kind == "sqlite":
        return measure(tree, "held_up", str(folder / "store.db"), str(runs), folder=folder)
    sys.path.append(str(HERE.parent / "tests"))
    from postgres_server import PostgresServer  # type: ignore[import-not-found]

    server = PostgresServer()
    try:
        return measure(tree, "held_up", server.url(), str(runs), folder=folder)
    finally:
        server.remove()


# --- the table ----------------------------------------------------------------------------------------------


def of_the_tree(tree: Path) -> Iterator[Row]:
    source = tree / "src" / "holdfast"
    made_of, up = engine_classes(source), callbacks(source)
    yield Row(
        "classes that make up Engine / stubs / upward callbacks",
        f"{len(made_of)} / {stubs(source)} / {len(up)}",
        "1 / 0 / ≤ 3",
    )
    yield Row(
        f"files of {FILE_LINES} lines or more: has each of them one subject?",
        ", ".join(f"{path} {lines}" for path, lines in long_files(source).items()) or "none",
        "",
    )
    runtime = files(source, "runtime")
    folders = {path.rpartition("/")[0] for path in runtime}
    yield Row(
        "runtime: files / folders / import layers",
        f"{len(runtime)} / {len(folders)} / {layers(source, 'runtime')}",
        "≤ 40 / 3 / ≤ 11",
    )
    places = guarded_places(tree)
    yield Row(
        "places in which a new kind of event must be named, each checked by a test",
        f"{places}" if places is not None else "there is no test",
        "≤ 6",
    )
    yield Row(
        "  tables that list kinds of events / files of src that name a kind, median",
        f"{len(tables_of_kinds(source))} / {files_that_name(source):g}",
        "",
    )
    of_files, of_classes = names_in_two_rooms(source)
    yield Row(
        "names that occur in two rooms (packages): files / classes",
        f"{len(of_files)} / {len(of_classes)}",
        "each allowed by a test",
    )


def of_the_engine(tree: Path) -> Iterator[Row]:
    step, resume, answer, calls = (measure(tree, part) for part in ("step", "resume", "answer", "calls"))
    yield Row("path of one step: modules / changes from module to module", _path(step), "≤ 28 / ≤ 52")
    yield Row("path of a resume after SIGKILL: modules / changes", _path(resume), "≤ 34")
    yield Row("path of `holdfast answer`: modules / changes", _path(answer), "≤ 42")
    yield Row(
        "`holdfast answer`: engines / folds / write transactions",
        f"{answer['engines']} / {answer['folds']} / {answer['commits']}",
        "1 / ≤ 2 / ≤ 3",
    )
    yield Row(
        "function calls per step: chain / fleet",
        f"{calls['chain']:.1f} / {calls['fleet']:.1f}",
        "within 2 % of before",
    )


def of_questions(tree: Path) -> Iterator[Row]:
    for kind in ("sqlite", "postgresql"):
        for runs in (FEW_ASKING, ASKING):
            found = held_up(tree, kind, runs)
            yield Row(
                f"delay of a node by questions() over {runs:,} runs, {kind}: median / worst of 20",
                f"{found['median_ms']:.1f} / {found['worst_ms']:.1f} ms",
                "≤ 6 / ≤ 25 ms" if runs == ASKING else "as with 1,000",
            )


def _path(found: dict[str, Any]) -> str:
    return f"{found['modules']} / {found['changes']}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.house", description="Measure the structure of the code."
    )
    parser.add_argument(
        "tree", nargs="?", type=Path, default=HERE.parent, help="the checkout to measure; default: this one"
    )
    parser.add_argument(
        "--counted", action="store_true", help="print only the counted figures, and time nothing"
    )
    parser.add_argument(
        "--names", action="store_true", help="also list the classes, files and modules that were counted"
    )
    asked = parser.parse_args(arguments)
    tree = asked.tree.resolve()
    parts = [of_the_tree, of_the_engine] if asked.counted else [of_the_tree, of_the_engine, of_questions]
    print("| | here | target |\n|---|---|---|")
    for part in parts:
        for row in part(tree):
            print(f"| {row.what} | {row.value} | {row.target} |", flush=True)
    if asked.names:
        _list_names(tree)
    return 0


def _list_names(tree: Path) -> None:
    source = tree / "src" / "holdfast"
    of_files, of_classes = names_in_two_rooms(source)
    lists = {
        "classes": [node.name for node in engine_classes(source)],
        "upward callbacks": callbacks(source),
        "tables that list kinds of events": tables_of_kinds(source),
        "files in two rooms": of_files,
        "classes in two rooms": of_classes,
        "step": measure(tree, "step")["named"],
        "resume": measure(tree, "resume")["named"],
        "answer": measure(tree, "answer")["named"],
    }
    for what, names in lists.items():
        print(f"\n{what}: {', '.join(names)}")


if __name__ == "__main__":
    sys.exit(main())
