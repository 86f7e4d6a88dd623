"""What the source promises about its own shape, read from its syntax trees: nothing here imports Holdfast.

A rule is a function of a source tree that returns its breaches, one line each. Our own tree must have none, and for
every rule there are small trees that breach it, so that a rule which sees nothing is found out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "holdfast"

# --- what is allowed ---------------------------------------------------------------------------------

BELOW_PLAN = frozenset({"errors", "core", "storage", "reading", "upkeep", "documents", "runtime"})
ROOMS: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "core": frozenset({"errors"}),
    "storage": frozenset({"errors", "core"}),
    "reading": frozenset({"errors", "core", "storage"}),
    "upkeep": frozenset({"errors", "core", "storage", "reading"}),
    "documents": frozenset({"errors", "core", "storage", "reading"}),
    "runtime": BELOW_PLAN - {"runtime"},
    "testing": BELOW_PLAN,
    "plan": BELOW_PLAN | {"holdfast"},
    "adapters": BELOW_PLAN | {"holdfast"},
    "server": BELOW_PLAN | {"holdfast", "plan", "adapters"},
    "cli": BELOW_PLAN | {"holdfast", "plan", "adapters", "server"},
    "__main__": frozenset({"cli"}),
}
"""Room -> the rooms it may import beside itself; `holdfast` is the public face, which may import them all."""

PACKAGES: dict[str, tuple[str, ...]] = {
    "msgspec": ("",),
    "apsw": ("storage/sqlite/database.py", "testing/checked.py"),
    "zstandard": ("storage/rows.py", "storage/blobs.py", "storage/files/archives.py", "testing/checked.py"),
    "typer": ("cli/",),
    "rich": ("cli/",),
    "yaml": ("plan/texts.py",),
    "pytest": ("testing/",),
    "hypothesis": ("testing/",),
}
"""Package -> where it may be imported, as the beginning of a path. One that is not listed here is optional."""

OPTIONAL = frozenset({
    "agent_framework", "aiohttp", "cel_expr_python", "cryptography", "dask", "fsspec", "httptools", "langgraph",
    "opentelemetry", "psycopg", "psycopg_pool", "ray", "starlette", "uvicorn", "uvloop",
})  # fmt: skip

UNSAFE_MODULES = frozenset({"cloudpickle", "dbm", "dill", "joblib", "marshal", "pickle", "shelve", "sqlite3"})
UNSAFE_CALLS = frozenset({"eval", "exec", "__import__"} | {
    f"yaml.{name}{every}" for name in ("load", "full_load", "unsafe_load") for every in ("", "_all")
})  # fmt: skip

IMPURE_MODULES = frozenset({
    "apsw", "asyncio", "concurrent", "contextvars", "fcntl", "getpass", "glob", "http", "importlib", "io", "logging",
    "mmap", "multiprocessing", "os", "pathlib", "platform", "queue", "random", "sched", "secrets", "select",
    "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time",
    "urllib", "warnings",
})  # fmt: skip
IMPURE_CALLS = frozenset({"open", "print", "input", "breakpoint", "uuid.uuid1", "uuid.uuid4", "sys.exit"})

CLOCKS = frozenset(
    {
        f"time.{name}{unit}"
        for name in ("time", "monotonic", "perf_counter", "process_time")
        for unit in ("", "_ns")
    }
    | {"time.sleep", "time.clock_gettime"}
    | {f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")}
    | {"datetime.date.today"}
)

EMPTY_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "misc", "manager", "managers"})
FOREIGN_WORDS = frozenset({"task", "tasks", "job", "jobs"})

STATEMENT = re.compile(
    r"\s*(select\b.+\bfrom\b|insert\s+(or\s+\w+\s+)?into\b|update\s+\w+\s+set\b|delete\s+from\b"
    r"|create\s+(unique\s+)?(table|index)\b|begin\s+immediate\b|pragma\s+\w)",
    re.IGNORECASE | re.DOTALL,
)

GIVES_WAY = frozenset({"sleep", "asyncio.sleep", "asyncio.wait", "rest", "_sleep_on", "_wait_here"})
"""What always suspends the coroutine that awaits it, by the last part of its name: asyncio's own, a timer, a future just made.
`gather`, `wait_for`, `shield`, a future, an event or a queue return at once where there is nothing to wait for.
"""
ALWAYS_GOES_ON: dict[str, str] = {
    "runtime/holdings.py:stopped": "the event is set exactly while the loop's condition is false",
    "runtime/driver.py:join": "each pass waits for news, which were cleared just before",
    "runtime/followers.py:_follow": "each pass takes events that are there, and their number does not grow meanwhile",
    "runtime/followers.py:_recall": "each pass reads one page of a log up to a given place",
    "runtime/engine.py:_run_again": "a run that another engine has claimed meanwhile is waited for in the next pass",
    "runtime/engine.py:questions": "each pass reads one page of a list that ends",
    "runtime/calls/context.py:_wait_for_signal": "each pass sets one of the signals aside that were sent",
    "runtime/calls/steps.py:drive": "each pass calls the step, or waits until a failed try of it is durable",
    "testing/simulator_families.py:attend": "each pass asks an engine to start the run, which takes simulated time",
    "testing/simulator_deploys.py:attend": "each pass asks an engine to start the run, which takes simulated time",
    "runtime/calls/shared_task.py:_run_queue": "each pass takes one coroutine from a queue, and passes end after HOLD_S",
    "server/client.py:_frames": "each pass waits for a frame of the server; one for which there is none rests a second",
    "server/client.py:_asking": "each pass reads one page of a list that ends",
    "server/client.py:checkpoints": "each pass reads one page of a list that ends",
    "server/client.py:ledger": "each pass reads one page of a list that ends",
    "server/client.py:events": "each pass reads one page of a list that ends",
    "server/client.py:runs": "each pass reads one page of a list that ends",
    "server/client.py:wait": "each pass waits for an answer of the server, which comes when the run has moved, or after seconds",
    "server/asgi.py:_stream": "each pass reads one part of a file, in a thread",
    "server/asgi.py:__call__": "a client sends the end of its connection once, and parts of a body before it",
    "server/live.py:_serve": "a pass that sends what is in memory is followed by one that waits, or that reads in a thread",
    "runtime/worker.py:work": "a pass that took fewer runs than it has room for rests; another has waited for the store",
    "testing/simulator_hands.py:attend": "asking rests until the store has answered, or the process is killed",
    "testing/watching.py:_in_step": "each pass takes one call of a function that runs in a thread of its own",
}
"""Loops that await and may not suspend, and why none of them holds the event loop for ever."""

TWICE: dict[str, str] = {
    # files
    "append": "how SQLite and PostgreSQL write appends",
    "blobs": "the contract of blobs, its implementations and its suite",
    "clock": "the clock of the engine, and the one that tests set in its place",
    "database": "what every part of a SQL store borrows: connections and transactions, of SQLite and of PostgreSQL",
    "executors": "the contract of executors and its suite",
    "feed": "the implementations of `storage/contract.Feed`, and its suite",
    "ledger": "the ledger of a run, and the command that prints it",
    "leases": "what a lease is, and the suite that stores pass about it",
    "questions": "how runs ask and are answered, and the commands that list and answer questions",
    "queues": "the contract of a store's queues, its implementations and its suite",
    "receipts": "the documents, and the commands about them",
    "requests": "what may be asked of a run, and the commands that ask",
    "store": "the implementations of `storage/contract`",
    "tokens": "the contract of a store's tokens, its implementations and its suite",
    "upkeep": "the contract of a store's upkeep, its implementations and its suite",
    "worker": "the worker, and the commands that start and watch workers",
    # classes
    "Problem": "one problem of a plan, a public name; and the body of a refusal over HTTP, which is called so by its standard",
    "Answer": "the request `requests.Answer`, and the engine's message that answers the process of a node",
    "Ledger": "the decisions of a run, a public name; and what the simulator knows about writes that were acknowledged",
    "Report": "the state of the demo, which writes a report; and what `crash_everywhere` returns, a public name",
    "ResumeRefused": "an event, whose name is stored in logs; and the error that a caller gets, a public name",
    "RunCancelled": "an event, whose name is stored in logs; and the error that a caller gets, a public name",
    "RunFailed": "an event, whose name is stored in logs; and the error that a caller gets, a public name",
    "Signal": "the request `requests.Signal`; and a signal that a test sends, a public name",
}
"""File or public class -> why its name may occur in two folders. Any other name occurs in one, so that it says where to look."""

FILE_LINES_MAX = 1200
"""A file that is longer has more than one subject. From 800 lines on, `python -m bench.house` asks whether it has: split a file
only where a noun wants a file of its own.
"""
FUNCTION_LINES_MAX = 100
STORE_VERBS_MAX = 15
STORE_ATTRIBUTES_MAX = 7

# --- reading a tree ----------------------------------------------------------------------------------

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class Module:
    """A source file: `name` is `holdfast.core.fold`, `path` is `core/fold.py`."""

    name: str
    path: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return room_of(self.name)

    @property
    def package(self) -> str:
        return self.name if self.path.endswith("__init__.py") else self.name.rpartition(".")[0]


def room_of(name: str) -> str:
    return name.split(".")[1] if "." in name else name


@cache
def modules(root: Path) -> dict[str, Module]:
    found = {}
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
        name = ".".join(("holdfast", *parts))
        text = file.read_text(encoding="utf-8")
        found[name] = Module(name, path.as_posix(), text, ast.parse(text, file.name))
    return found


@cache
def nodes_of(module: Module) -> list[ast.AST]:
    """All of its tree: every rule walks it, and a walk takes longer than the rule."""
    return list(ast.walk(module.tree))


def imports(module: Module, root: Path) -> Iterator[tuple[int, str]]:
    """Every module that this one imports, wherever in the file: under TYPE_CHECKING and inside functions too."""
    known = modules(root)
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = origin_of(node, module)
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                yield node.lineno, inner if inner in known else origin
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            target = node.args[0]
            if node.func.attr == "import_module" and isinstance(target, ast.Constant):
                yield node.lineno, str(target.value)


def origin_of(node: ast.ImportFrom, module: Module) -> str:
    """The module named by `from … import`, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    parts = module.package.split(".")
    above = parts[: len(parts) - node.level + 1]
    return ".".join([*above, node.module] if node.module else above)


def references(module: Module) -> Iterator[tuple[ast.expr, str]]:
    """Every name and dotted name in use, by the name it was imported under: `t.time` after `import time as t` is `time.time`."""
    imported: dict[str, str] = {}
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            imported |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            origin = origin_of(node, module)
            imported |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
    for node in nodes_of(module):
        if isinstance(node, ast.Name | ast.Attribute) and (name := dotted(node)):
            first, _, rest = name.partition(".")
            yield node, ".".join(filter(None, (imported.get(first, first), rest)))


def dotted(node: ast.expr) -> str:
    """`a.b.c` as written, or nothing where it does not begin with a name."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def calls(module: Module) -> Iterator[tuple[int, str]]:
    called = {id(node.func) for node in nodes_of(module) if isinstance(node, ast.Call)}
    yield from ((node.lineno, name) for node, name in references(module) if id(node) in called)


def texts(module: Module) -> Iterator[tuple[int, str]]:
    """Every string that is a value, an f-string with `x` in its holes. Docstrings are prose and left out."""
    nodes = nodes_of(module)
    left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    left_out |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "x" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.lineno, node.value


def words(identifier: str) -> set[str]:
    """`fetch_job` and `FetchJob` are both made of fetch and job."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", identifier)}


# --- the rules ---------------------------------------------------------------------------------------

Rule = Callable[[Path], Iterator[str]]
RULES: list[Rule] = []


def rule(check: Rule) -> Rule:
    RULES.append(check)
    return check


@rule
def imports_point_one_way(root: Path) -> Iterator[str]:
    for module in modules(root).values():
        if module.room == "holdfast":
            continue
        if module.room not in ROOMS:
            yield f"{module.path}: belongs to no room; put it into one of {', '.join(ROOMS)}"
            continue
        for line, target in imports(module, root):
            inside = target.split(".")[0] == "holdfast"
            if inside and room_of(target) not in ROOMS[module.room] | {module.room}:
                yield f"{module.path}:{line}: {module.room} may not import {target}"


@rule
def modules_never_import_each_other_in_a_circle(root: Path) -> Iterator[str]:
    known = modules(root)
    arrows = {name: sorted({t for _, t in imports(m, root) if t in known}) for name, m in known.items()}
    finished: set[str] = set()

    def walk(name: str, path: list[str]) -> Iterator[str]:
        if name in path:
            yield " -> ".join([*path[path.index(name) :], name])
        elif name not in finished:
            for target in arrows[name]:
                yield from walk(target, [*path, name])
            finished.add(name)

    for name in arrows:
        yield from walk(name, [])


@rule
def the_core_is_pure(root: Path) -> Iterator[str]:
    asynchronous = ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await
    for module in modules(root).values():
        if module.room != "core":
            continue
        for line, target in imports(module, root):
            if target.split(".")[0] in IMPURE_MODULES:
                yield f"{module.path}:{line}: the core may not import {target}"
        for line, name in calls(module):
            if name in IMPURE_CALLS:
                yield f"{module.path}:{line}: the core may not call {name}()"
        for node in nodes_of(module):
            if isinstance(node, asynchronous):
                yield f"{module.path}:{node.lineno}: the core may not be async"


@rule
def only_the_runtime_reads_a_clock(root: Path) -> Iterator[str]:
    """A store's constructor may name a clock as the default of an argument: there it can be replaced."""
    for module in modules(root).values():
        if module.room == "runtime":
            continue
        functions = [node for node in nodes_of(module) if isinstance(node, Function)]
        defaults = [d for f in functions for d in (*f.args.defaults, *f.args.kw_defaults) if d is not None]
        injected = {id(default) for default in defaults} if module.room == "storage" else set()
        for node, name in references(module):
            if name in CLOCKS and id(node) not in injected:
                yield f"{module.path}:{node.lineno}: {module.room} reads a clock, {name}; take it as an argument"


@rule
def each_package_has_its_place(root: Path) -> Iterator[str]:
    users: dict[str, set[str]] = {}
    for module in modules(root).values():
        for line, target in imports(module, root):
            package = target.split(".")[0]
            if package == "holdfast" or package in sys.stdlib_module_names:
                continue
            users.setdefault(package, set()).add(module.path)
            if package not in PACKAGES and package not in OPTIONAL:
                yield f"{module.path}:{line}: {package} is no dependency of Holdfast"
            elif not module.path.startswith(PACKAGES.get(package, ("",))):
                yield f"{module.path}:{line}: {package} is imported only in {' or '.join(PACKAGES[package])}"
    for package in sorted(OPTIONAL & users.keys()):
        if len(users[package]) > 1:
            yield f"{package} is optional and imported in {len(users[package])} files: {', '.join(sorted(users[package]))}"


@rule
def data_never_becomes_code(root: Path) -> Iterator[str]:
    for module in modules(root).values():
        for line, target in imports(module, root):
            if target.split(".")[0] in UNSAFE_MODULES:
                yield f"{module.path}:{line}: {target} is not used in Holdfast"
        for line, name in calls(module):
            if name in UNSAFE_CALLS:
                yield f"{module.path}:{line}: {name}() is not used in Holdfast"


@rule
def sql_stays_in_storage(root: Path) -> Iterator[str]:
    for module in modules(root).values():
        for line, text in texts(module):
            if module.room != "storage" and STATEMENT.match(text):
                yield f"{module.path}:{line}: SQL outside storage: {text.strip()[:40]!r}"


@rule
def a_name_says_what_it_names(root: Path) -> Iterator[str]:
    for module in modules(root).values():
        last = module.name.rpartition(".")[2]
        if words(last) & EMPTY_NAMES:
            yield f"{module.path}: {last!r} says nothing about what is inside"
        for node in nodes_of(module):
            if isinstance(node, ast.ClassDef) and words(node.name) & EMPTY_NAMES:
                yield f"{module.path}:{node.lineno}: {node.name!r} says nothing about what it is"


@rule
def a_name_has_one_place(root: Path) -> Iterator[str]:
    """The name of a file or of a public class leads a reader to one folder, or has a reason in `TWICE`."""
    for name, places in places_by_name(root).items():
        if len({path.rpartition("/")[0] for path in places}) > 1 and name not in TWICE:
            yield f"{name!r} is in {', '.join(places)}: rename all but one, or give the reason in TWICE"


def places_by_name(root: Path) -> dict[str, list[str]]:
    """Files and public classes by name, each with the files that it names or that define it."""
    places: dict[str, list[str]] = {}
    for module in modules(root).values():
        file = module.path.rpartition("/")[2].removesuffix(".py")
        classes = [node.name for node in nodes_of(module) if isinstance(node, ast.ClassDef)]
        for name in {file, *classes}:
            if not name.startswith("_"):
                places.setdefault(name, []).append(module.path)
    return places


@rule
def tasks_and_jobs_are_called_nodes_and_runs(root: Path) -> Iterator[str]:
    """Only names that others see count; what holds an `asyncio.Task` may be called one."""
    for module in modules(root).values():
        if module.room == "plan":
            continue
        nodes = [node for node in nodes_of(module) if isinstance(node, Function | ast.ClassDef | ast.arg)]
        for node in nodes:
            for name, annotation in names_that_others_see(node):
                if words(name) & FOREIGN_WORDS and "Task" not in (
                    ast.unparse(annotation) if annotation else ""
                ):
                    yield f"{module.path}:{node.lineno}: {name!r} is not one of our words (docs/concepts.md)"


def names_that_others_see(node: Function | ast.ClassDef | ast.arg) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(node, ast.arg):
        yield node.arg, node.annotation
    elif isinstance(node, ast.ClassDef):
        yield node.name, None
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                yield part.target.id, part.annotation
    else:
        yield node.name, node.returns


@rule
def files_and_functions_are_small_enough_to_hold(root: Path) -> Iterator[str]:
    for module in modules(root).values():
        if (lines := len(module.text.splitlines())) > FILE_LINES_MAX:
            yield f"{module.path}: {lines} lines, more than {FILE_LINES_MAX}"
        for node in nodes_of(module):
            if (
                isinstance(node, Function)
                and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
            ):
                yield f"{module.path}:{node.lineno}: {node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"


@rule
def every_module_opens_with_what_it_owns(root: Path) -> Iterator[str]:
    for module in modules(root).values():
        if not ast.get_docstring(module.tree):
            yield f"{module.path}: has no docstring"


@rule
def a_loop_that_awaits_lets_others_run(root: Path) -> Iterator[str]:
    """An `await` need not suspend. A `while` whose awaits all return at once blocks the event loop for ever."""
    for module in modules(root).values():
        for function in nodes_of(module):
            if not isinstance(function, ast.AsyncFunctionDef):
                continue
            place = f"{module.path}:{function.name}"
            for loop in own_nodes(function):
                if (
                    isinstance(loop, ast.While)
                    and any(
                        isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in own_nodes(loop)
                    )
                    and place not in ALWAYS_GOES_ON
                    and not Passes(loop).all_suspend()
                ):
                    yield f"{module.path}:{loop.lineno}: a pass of this loop may await nothing that suspends ({function.name})"


def own_nodes(outer: ast.AST) -> Iterator[ast.AST]:
    """Everything inside, without functions that are defined there."""
    for node in ast.iter_child_nodes(outer):
        if not isinstance(node, Function | ast.Lambda):
            yield node
            yield from own_nodes(node)


class Passes:
    """The ways through the body of one `while`: does each of them await something that suspends?"""

    def __init__(self, loop: ast.While) -> None:
        self._loop = loop
        called = [node.func for node in own_nodes(loop) if isinstance(node, ast.Call)]
        self._cleared = {
            dotted(func.value) for func in called if isinstance(func, ast.Attribute) and func.attr == "clear"
        }
        self._continues_unsuspended = False

    def all_suspend(self) -> bool:
        ends = self._walk(self._loop.body, suspended=False)
        return ends is not False and not self._continues_unsuspended

    def _walk(self, body: Sequence[ast.stmt], *, suspended: bool) -> bool | None:
        """Whether it has suspended when it comes to the end of this; None where it never comes there."""
        for statement in body:
            if isinstance(statement, ast.Return | ast.Raise | ast.Break):
                return None
            if isinstance(statement, ast.Continue):
                self._continues_unsuspended |= not suspended
                return None
            after = self._through(statement, suspended=suspended)
            if after is None:
                return None
            suspended = after
        return suspended

    def _through(self, statement: ast.stmt, *, suspended: bool) -> bool | None:
        match statement:
            case ast.If():
                ways = [
                    self._walk(branch, suspended=suspended) for branch in (statement.body, statement.orelse)
                ]
            case ast.Match():
                ways = [self._walk(case.body, suspended=suspended) for case in statement.cases] + [suspended]
            case ast.Try() | ast.TryStar():
                tried = self._walk([*statement.body, *statement.orelse], suspended=suspended)
                ways = [
                    tried,
                    *(self._walk(handler.body, suspended=suspended) for handler in statement.handlers),
                ]
                ways = [
                    way or self._walk(statement.finalbody, suspended=way) for way in ways if way is not None
                ]
            case ast.With() | ast.AsyncWith():
                inside = self._walk(statement.body, suspended=suspended)
                ways = [suspended if self._may_leave_early(statement) else inside]
            case ast.For() | ast.AsyncFor() | ast.While():
                ways = [suspended]  # perhaps it has no pass
            case _:
                # Only an await that is the whole of a statement's value surely takes place: `y and await sleep(1)` need not.
                ways = [suspended or self._suspends(getattr(statement, "value", None))]
        left = [way for way in ways if way is not None]
        return all(left) if left else None

    def _may_leave_early(self, statement: ast.With | ast.AsyncWith) -> bool:
        return any("suppress" in ast.unparse(item.context_expr) for item in statement.items)

    def _suspends(self, node: ast.AST | None) -> bool:
        if not isinstance(node, ast.Await) or not isinstance(node.value, ast.Call):
            return False
        func = node.value.func
        name = dotted(func)
        if isinstance(func, ast.Attribute) and func.attr == "wait" and dotted(func.value) in self._cleared:
            return True  # an event that each pass clears
        return name in GIVES_WAY or (not name.startswith("asyncio.") and name.rpartition(".")[2] in GIVES_WAY)


@rule
def every_match_has_a_default(root: Path) -> Iterator[str]:
    """A member that is added to a union of ours is then refused or treated, wherever it is matched: never passed over."""
    for module in modules(root).values():
        for node in nodes_of(module):
            if isinstance(node, ast.Match) and not is_default(node.cases[-1]):
                yield f"{module.path}:{node.lineno}: this match has no default; end it with assert_never, or say what is right"


def is_default(case: ast.match_case) -> bool:
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None


@rule
def the_contract_of_a_store_is_short(root: Path) -> Iterator[str]:
    for module in modules(root).values():
        for node in nodes_of(module):
            if (
                module.path == "storage/contract.py"
                and isinstance(node, ast.ClassDef)
                and node.name == "Store"
            ):
                functions = [part for part in node.body if isinstance(part, Function)]
                verbs = [part for part in functions if not is_property(part)]
                declared = [part for part in node.body if isinstance(part, ast.AnnAssign)]
                attributes = len(declared) + len(functions) - len(verbs)
                if len(verbs) > STORE_VERBS_MAX:
                    yield f"{module.path}:{node.lineno}: {len(verbs)} verbs, more than {STORE_VERBS_MAX}"
                if attributes > STORE_ATTRIBUTES_MAX:
                    yield f"{module.path}:{node.lineno}: {attributes} attributes, more than {STORE_ATTRIBUTES_MAX}"


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "property" for mark in function.decorator_list)


# --- our own tree ------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", RULES, ids=lambda check: check.__name__)
def test_our_source_keeps_the_rule(check: Rule) -> None:
    breaches = list(check(SOURCE))
    assert not breaches, "\n" + "\n".join(breaches)


def test_a_loop_that_is_excused_is_still_there() -> None:
    there = {
        f"{module.path}:{node.name}"
        for module in modules(SOURCE).values()
        for node in nodes_of(module)
        if isinstance(node, ast.AsyncFunctionDef)
    }
    assert ALWAYS_GOES_ON.keys() - there == set()


def test_a_name_that_may_occur_twice_does() -> None:
    folders = {
        name: {path.rpartition("/")[0] for path in places} for name, places in places_by_name(SOURCE).items()
    }
    assert {name for name in TWICE if len(folders.get(name, ())) < 2} == set()


def test_our_source_is_what_is_read() -> None:
    assert {"holdfast.errors", "holdfast.core", "holdfast.storage.contract"} <= modules(SOURCE).keys()


# --- trees that breach a rule, and trees that only look as if ----------------------------------------

BREACHES: dict[Rule, list[tuple[str, str, str]]] = {
    imports_point_one_way: [
        ("core/fold.py", "from holdfast.storage import contract", "core may not import holdfast.storage"),
        ("core/fold.py", "from ..runtime.engine import Engine", "holdfast.runtime.engine"),
        ("core/fold.py", "from .. import Engine", "core may not import holdfast"),
        ("errors.py", "import holdfast.core.events", "errors may not import holdfast.core.events"),
        ("storage/sqlite/store.py", "def f():\n    from holdfast.cli import main", "holdfast.cli"),
        (
            "storage/sqlite/store.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from holdfast.runtime import engine",
            "storage may not import holdfast.runtime",
        ),
        ("runtime/run.py", "import importlib\nimportlib.import_module('holdfast.server')", "server"),
        ("server/app.py", "from holdfast.cli import main", "server may not import holdfast.cli"),
        ("testing/simulator.py", "from holdfast.cli import main", "testing may not import"),
        ("cellar/wine.py", "", "belongs to no room"),
    ],
    the_core_is_pure: [
        ("core/fold.py", "import time", "may not import time"),
        ("core/fold.py", "def f():\n    from os.path import join", "may not import os.path"),
        ("core/fold.py", "def f():\n    print('here')", "may not call print()"),
        ("core/fold.py", "open('log').read()", "may not call open()"),
        ("core/fold.py", "from uuid import uuid4 as new\nnew()", "may not call uuid.uuid4()"),
        ("core/fold.py", "async def f(): ...", "may not be async"),
    ],
    only_the_runtime_reads_a_clock: [
        ("core/fold.py", "import datetime\ndatetime.datetime.now()", "core reads a clock"),
        ("core/fold.py", "from datetime import date as d\nd.today()", "datetime.date.today"),
        ("core/fold.py", "import time\ndef f(c=time.time): ...", "core reads a clock"),
        ("storage/sqlite/store.py", "import time as t\ndef f():\n    t.time()", "time.time"),
        ("storage/sqlite/store.py", "import time\ndef f(at=time.time()): ...", "time.time"),
        ("cli/show.py", "from time import monotonic\nmonotonic()", "time.monotonic"),
    ],
    each_package_has_its_place: [
        ("runtime/run.py", "import apsw", "apsw is imported only in storage/sqlite/database.py"),
        ("core/codec.py", "import zstandard", "zstandard is imported only in storage/rows.py"),
        ("runtime/run.py", "from rich.table import Table", "rich is imported only in cli/"),
        ("runtime/run.py", "import typer", "typer is imported only in cli/"),
        ("core/codec.py", "import pydantic", "pydantic is no dependency of Holdfast"),
    ],
    data_never_becomes_code: [
        ("storage/blobs.py", "import pickle", "pickle is not used"),
        ("storage/sqlite/store.py", "import sqlite3", "sqlite3 is not used"),
        ("plan/guards.py", "eval('1 + 1')", "eval() is not used"),
    ],
    sql_stays_in_storage: [
        ("runtime/run.py", "q = 'select seq\\nfrom events'", "SQL outside storage"),
        ("cli/show.py", "t = 'runs'\nq = f'delete from {t}'", "SQL outside storage"),
        ("cli/show.py", "q = 'UPDATE runs SET seq = 1'", "SQL outside storage"),
        ("cli/show.py", "q = 'insert or replace into runs values (1)'", "SQL outside storage"),
    ],
    a_name_says_what_it_names: [
        ("runtime/utils.py", "", "'utils' says nothing"),
        ("storage/lock_helper.py", "", "'lock_helper' says nothing"),
        ("common/__init__.py", "", "'common' says nothing"),
        ("runtime/engine.py", "class RunManager: ...", "'RunManager' says nothing"),
    ],
    tasks_and_jobs_are_called_nodes_and_runs: [
        ("runtime/run.py", "def start_task(): ...", "'start_task'"),
        ("core/graph.py", "class JobQueue: ...", "'JobQueue'"),
        ("core/graph.py", "def f(*, jobs: int): ...", "'jobs'"),
        ("core/graph.py", "class A:\n    job_id: str", "'job_id'"),
    ],
    files_and_functions_are_small_enough_to_hold: [
        ("core/fold.py", "x = 1\n" * 1201, "1201 lines, more than 1200"),
        ("core/fold.py", "def f():\n" + "    x = 1\n" * 100, "f has 101 lines"),
    ],
    a_loop_that_awaits_lets_others_run: [
        (
            "runtime/engine.py",
            "async def stop(self):\n    while self.runners:\n        await asyncio.gather(*self.runners)",
            "a pass of this loop may await nothing that suspends (stop)",
        ),
        (
            "cli/a.py",
            "async def f():\n    while True:\n        if x:\n            await sleep(1)",
            "suspends (f)",
        ),
        (
            "cli/a.py",
            "async def f():\n    while True:\n        if x:\n            continue\n        await sleep(1)",
            "(f)",
        ),
        (
            "cli/a.py",
            "async def f():\n    while x:\n        with suppress(E):\n            await sleep(1)",
            "(f)",
        ),
        ("cli/a.py", "async def f():\n    while x:\n        for y in x:\n            await sleep(1)", "(f)"),
        ("cli/a.py", "async def f():\n    while x:\n        await news.wait()", "(f)"),
        ("cli/a.py", "async def f():\n    while x:\n        y and await sleep(1)", "(f)"),
        ("cli/a.py", "async def f():\n    while x:\n        async for y in z: pass", "(f)"),
        (
            "cli/a.py",
            "async def f():\n    while x:\n        try:\n            await sleep(1)\n        except E:\n            pass",
            "(f)",
        ),
    ],
    every_module_opens_with_what_it_owns: [
        ("core/fold.py", "x = 1", "core/fold.py: has no docstring"),
    ],
    every_match_has_a_default: [
        (
            "runtime/perform.py",
            "match command:\n    case commands.StartNode():\n        start()\n    case commands.FailRun(f):\n        fail(f)",
            "runtime/perform.py:1: this match has no default",
        ),
        (
            "cli/show.py",
            "def f(s):\n    match s:\n        case 'failed':\n            return 1",
            "show.py:2: this match",
        ),
        (
            "cli/show.py",
            "match s:\n    case 'a':\n        x = 1\n    case _ if s:\n        x = 2",
            "has no default",
        ),
        ("cli/show.py", "match e:\n    case A() as found:\n        x = 1", "has no default"),
    ],
    the_contract_of_a_store_is_short: [
        (
            "storage/contract.py",
            "class Store:\n" + "".join(f"    def verb_{n}(self): ...\n" for n in range(16)),
            "16 verbs, more than 15",
        ),
        (
            "storage/contract.py",
            "class Store:\n    url: str\n"
            + "".join(f"    @property\n    def part_{n}(self): ...\n" for n in range(7)),
            "8 attributes, more than 7",
        ),
    ],
}

ALLOWED: dict[Rule, list[tuple[str, str]]] = {
    imports_point_one_way: [
        ("__init__.py", "from holdfast.cli import main"),
        ("cli/main.py", "import holdfast as hf\nfrom . import show\nfrom holdfast.runtime import engine"),
        ("testing/simulator.py", "from holdfast.runtime import engine\nfrom holdfast.errors import RunHeld"),
    ],
    the_core_is_pure: [
        (
            "core/codec.py",
            "import datetime, uuid, re\nre.compile('a')\ndatetime.timedelta(1)\nuuid.UUID('a')",
        ),
        ("runtime/run.py", "import asyncio, os\nasync def f(): print(os.getpid())"),
    ],
    only_the_runtime_reads_a_clock: [
        ("runtime/run.py", "import time\ntime.monotonic()"),
        ("storage/sqlite/store.py", "import time\ndef f(*, clock=time.time): clock()"),
        ("cli/show.py", "from datetime import datetime\ndatetime.fromtimestamp(0)"),
    ],
    each_package_has_its_place: [
        ("cli/show.py", "import rich.table, typer, msgspec, json\nfrom holdfast import errors"),
        ("storage/postgres/store.py", "import psycopg"),
    ],
    sql_stays_in_storage: [
        ("storage/sqlite/store.py", "q = 'select 1 from runs'"),
        ("cli/show.py", '"""Select a run from the list."""\nq = "update the run and set a label"'),
    ],
    tasks_and_jobs_are_called_nodes_and_runs: [
        ("plan/tasks.py", "class Task: ..."),
        (
            "runtime/run.py",
            "import asyncio\ndef f(task: asyncio.Task[None]):\n    task = asyncio.create_task(g())",
        ),
    ],
    files_and_functions_are_small_enough_to_hold: [
        ("core/fold.py", "def f():\n" + "    x = 1\n" * 99),
    ],
    a_loop_that_awaits_lets_others_run: [
        (
            "cli/a.py",
            "async def f():\n    while True:\n        if x:\n            return await g()\n        await self.rest(1)",
        ),
        (
            "cli/a.py",
            "async def f():\n    while x:\n        news.clear()\n        await g()\n        await news.wait()",
        ),
        ("cli/a.py", "async def f():\n    while x:\n        async def g():\n            await y"),
        (
            "cli/a.py",
            "async def f():\n    while x:\n        if y:\n            await sleep(1)\n        else:\n            await rest()",
        ),
    ],
    every_match_has_a_default: [
        ("cli/show.py", "match s:\n    case 'a':\n        x = 1\n    case _:\n        assert_never(s)"),
        ("cli/show.py", "match s:\n    case 'a':\n        x = 1\n    case other:\n        f(other)"),
        ("cli/show.py", "match = pattern.match(text)"),
    ],
    every_module_opens_with_what_it_owns: [
        ("core/fold.py", '"""What a log means."""'),
    ],
}


def cases(table: Mapping[Rule, Sequence[tuple[str, ...]]]) -> list[object]:
    named = [(f"{check.__name__}-{row[0]}", (check, *row)) for check, rows in table.items() for row in rows]
    return [pytest.param(*case, id=name) for name, case in named]


def plant(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(("check", "path", "text", "breach"), cases(BREACHES))
def test_a_breach_is_reported(check: Rule, path: str, text: str, breach: str, tmp_path: Path) -> None:
    breaches = list(check(plant(tmp_path, {path: text})))
    assert len(breaches) == 1
    assert breach in breaches[0]


@pytest.mark.parametrize(("check", "path", "text"), cases(ALLOWED))
def test_what_is_allowed_is_not_reported(check: Rule, path: str, text: str, tmp_path: Path) -> None:
    assert list(check(plant(tmp_path, {path: text}))) == []


def test_a_circle_of_imports_is_reported_with_its_way_round(tmp_path: Path) -> None:
    files = {
        "core/a.py": "from holdfast.core import b",
        "core/b.py": "def f():\n    from holdfast.core.c import x",
        "core/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import y",
        "core/d.py": "from holdfast.core import a, b",
    }
    a, b, c = (f"holdfast.core.{name}" for name in "abc")
    assert list(modules_never_import_each_other_in_a_circle(plant(tmp_path, files))) == [
        f"{a} -> {b} -> {c} -> {a}"
    ]


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (("runtime/wire.py", ""), ("storage/postgres/wire.py", ""), "'wire'"),
        (("storage/files/ear.py", ""), ("storage/postgres/ear.py", ""), "'ear'"),
        (("runtime/news.py", "class Ear: ..."), ("storage/listener.py", "class Ear: ..."), "'Ear'"),
        (("errors.py", "class Lost: ..."), ("core/a.py", "def f():\n    class Lost: ..."), "'Lost'"),
    ],
)
def test_a_name_in_two_folders_needs_a_reason(
    one: tuple[str, str], other: tuple[str, str], name: str, tmp_path: Path
) -> None:
    (breach,) = a_name_has_one_place(plant(tmp_path, dict([one, other])))
    assert breach.startswith(f"{name} is in ")
    assert one[0] in breach
    assert other[0] in breach


def test_a_name_in_one_folder_or_with_a_reason_needs_no_other(tmp_path: Path) -> None:
    files = {
        "storage/queues.py": "class _Line: ...",
        "storage/sqlite/queues.py": "class _Line: ...",
        "storage/__init__.py": "",
        "upkeep/__init__.py": "",
        "upkeep/doctor.py": "class Finding: ...",
        "upkeep/recovery.py": "class Finding: ...",
    }
    assert list(a_name_has_one_place(plant(tmp_path, files))) == []


def test_two_ways_to_the_same_module_are_no_circle(tmp_path: Path) -> None:
    files = {
        "core/a.py": "from . import b, c",
        "core/b.py": "from .d import x",
        "core/c.py": "from .d import x",
        "core/d.py": "",
    }
    assert list(modules_never_import_each_other_in_a_circle(plant(tmp_path, files))) == []


def test_an_optional_package_belongs_to_one_file(tmp_path: Path) -> None:
    files = {
        "storage/postgres/store.py": "import psycopg",
        "storage/pool.py": "from psycopg.rows import dict_row",
    }
    (breach,) = each_package_has_its_place(plant(tmp_path, files))
    assert breach == "psycopg is optional and imported in 2 files: storage/pool.py, storage/postgres/store.py"


def test_every_rule_has_a_tree_that_breaches_it() -> None:
    shown = BREACHES.keys() | {modules_never_import_each_other_in_a_circle, a_name_has_one_place}
    assert shown == set(RULES)
