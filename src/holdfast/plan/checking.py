"""Find everything that is wrong with a plan: all problems at once, each with its path in the document, the fault and the
remedy.

The structure of the document is checked when it is parsed (`plan/document`); here its parts are checked against each other and
against the capabilities. One mistake is reported once: what depends on a part that has a problem is not reported as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from holdfast.core.budget import LIMIT_MAX
from holdfast.core.codec import plain_problem
from holdfast.core.definition import END, START
from holdfast.errors import Problem, did_you_mean
from holdfast.plan import expressions, references, shapes
from holdfast.plan.certainty import Certainty
from holdfast.plan.compiling import merge_retry
from holdfast.plan.document import SUGGESTED_MAX, BudgetRule, Document, PlanEdge, PolicyRule, Task
from holdfast.plan.expressions import Expression
from holdfast.plan.registry import Capability, Registry
from holdfast.plan.syntax import Path, Tree

TASK_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")
_FAILURE = re.compile(r"[A-Za-z_]\w{0,199}")
_ERROR_KEYS = ("type", "kind", "message")
_KNOWN_MAX = 2_000
EXPRESSIONS_MAX = 10_000
_SHARED = ("context", "policy", "goal", "outputs")


def find_problems(registry: Registry, document: Document, plain: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of a document that was parsed. `plain` is what it was parsed from: names of tasks that could not be
    parsed are known from there.
    """
    count = _count_expressions(document)
    if count > EXPRESSIONS_MAX:
        told = f"the plan has {count:,} expressions, and at most {EXPRESSIONS_MAX:,} are allowed; split it into several plans"
        return [Problem("", told)]
    return [*_Plan(registry, document, plain).problems()]


def _count_expressions(document: Document) -> int:
    guards = sum(edge is not None and edge.guard is not None for edge in document.edges)
    rules = sum(
        len(task.verification) + (task.idempotency_key is not None)
        for task in document.tasks
        if task is not None
    )
    return guards + rules + len(document.policies)


class _Plan:
    """A plan while it is checked. Tasks and edges that have problems of their own are left out of what is checked next."""

    def __init__(self, registry: Registry, document: Document, plain: Mapping[str, Any]) -> None:
        self.registry = registry
        self.document = document
        listed = plain.get("tasks")
        parts = listed if isinstance(listed, list) else []
        self.named = {
            part["id"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("id"), str)
        }
        self.tasks: dict[str, Task] = {}
        self.places: dict[str, int] = {}
        self.edges: dict[int, PlanEdge] = {}
        self.guards: dict[int, Tree] = {}
        self._pairs: dict[tuple[str, str], int] = {}
        self._searches = 0

    def problems(self) -> Iterator[Problem]:
        yield from self._budget()
        for index, task in enumerate(self.document.tasks):
            if task is not None:
                yield from self._task(index, task)
        for index, edge in enumerate(self.document.edges):
            if edge is not None:
                yield from self._edge(index, edge)
        expressed = self._compile_guards()
        without = {
            name
            for name, task in self.tasks.items()
            if (known := self._capability(task)) is not None and known.may_end_without_output
        }
        self.certain = Certainty(self.tasks, self.edges, self.guards, frozenset(without))
        for cycle in self.certain.cycles:
            yield Problem(
                f"edges[{cycle.edge}]",
                f"it closes the circle {cycle}; a plan has no loops: remove one of these edges",
            )
        for name, opponents in self.certain.never.items():
            yield Problem(f"tasks[{self.places[name]}]", _never(opponents))
        for name, task in self.tasks.items():
            yield from self._input(f"tasks[{self.places[name]}]", task)
            yield from self._task_rules(f"tasks[{self.places[name]}]", task)
        for index, found in expressed.items():
            yield from self._guard(f"edges[{index}].guard", self.edges[index], found)
        yield from self._policies()

    # --- tasks --------------------------------------------------------------------------------------------

    def _budget(self) -> Iterator[Problem]:
        budget = self.document.budget
        if budget is not None and budget == BudgetRule():
            yield Problem("budget", "it limits nothing; give usd, tokens or active_s, or leave it out")
        for name in ("usd", "tokens", "active_s") if budget else ():
            value = getattr(budget, name)
            if value is not None and not 0 < value < LIMIT_MAX:
                yield Problem(
                    f"budget.{name}",
                    f"it must be a number above 0 and below {LIMIT_MAX:.0e}; leave it out for no limit",
                )

    def _task(self, index: int, task: Task) -> Iterator[Problem]:
        path = f"tasks[{index}]"
        if not TASK_ID.fullmatch(task.id) or task.id in (START, END):
            rule = "1 to 128 letters, digits, '_' or '-', not '-' first, and neither START nor END"
            yield Problem(f"{path}.id", f"{task.id!r:.60} cannot name a task; use {rule}")
        if task.id in self.tasks:
            yield Problem(
                f"{path}.id",
                f"{task.id!r:.60} is also the id of tasks[{self.places[task.id]}]; choose another one",
            )
        else:
            self.tasks[task.id] = task
            self.places[task.id] = index
        known = self._capability(task)
        if known is None:
            yield Problem(f"{path}.capability", self._unknown_capability(task.capability))
        if task.timeout_s is not None and not 0 < task.timeout_s < math.inf:
            yield Problem(f"{path}.timeout_s", "it must be a number of seconds above 0")
        if task.retry is not None and known is not None:
            yield from _retry_problems(f"{path}.retry", known, task)

    def _capability(self, task: Task) -> Capability | None:
        return self.registry.capabilities.get(task.capability)

    def _unknown_capability(self, name: str) -> str:
        known = self.registry.capabilities
        versions = [one for one in known if one.partition("@")[0] == name.partition("@")[0]]
        if versions:
            return f"{self.registry.name!r} has no {name!r}, but {', '.join(map(repr, versions[:5]))}; name one of these versions"
        near = self._near(name, known) or "; register it, or name another one"
        return f"{self.registry.name!r} has no capability {name!r:.80}{near}"

    def _near(self, name: str, known: Collection[str]) -> str:
        """Return the most similar known name, as a question. Only for the first problems, and among few names."""
        self._searches += 1
        is_cheap = self._searches <= SUGGESTED_MAX and len(known) <= _KNOWN_MAX and len(name) <= 128
        return did_you_mean(name, known) if is_cheap else ""

    def _edge(self, index: int, edge: PlanEdge) -> Iterator[Problem]:
        path = f"edges[{index}]"
        is_sound = True
        for field, name in (("from", edge.source), ("to", edge.target)):
            if name not in self.tasks:
                is_sound = False
                if name not in self.named:
                    near = self._near(name, self.tasks)
                    yield Problem(
                        f"{path}.{field}", f"there is no task {name!r:.80}{near or '; name the id of a task'}"
                    )
        if isinstance(edge.on_error, list):
            yield from _failure_name_problems(f"{path}.on_error", edge.on_error)
        if is_sound and edge.source == edge.target:
            yield Problem(path, f"it leads from {edge.source!r} to itself; a plan has no loops: remove it")
            is_sound = False
        if is_sound:
            first = self._pairs.setdefault((edge.source, edge.target), index)
            if first != index:
                yield Problem(
                    path,
                    f"edges[{first}] leads from {edge.source!r} to {edge.target!r} too; keep one of them, and join their guards "
                    "with ||",
                )
            else:
                self.edges[index] = edge

    # --- expressions --------------------------------------------------------------------------------------

    def _compile_guards(self) -> dict[int, Expression]:
        found = {}
        for index, edge in self.edges.items():
            if edge.guard is not None:
                roots = (*_SHARED, "now", "error") if edge.catches else (*_SHARED, "now")
                found[index] = expressions.check(edge.guard, roots=roots)
                if not found[index].problem:
                    self.guards[index] = found[index].tree
        return found

    def _guard(self, path: str, edge: PlanEdge, found: Expression) -> Iterator[Problem]:
        if found.problem:
            yield Problem(path, found.problem)
        elif found.tree == ("const", False):
            yield Problem(
                path, "it is always false, so that the edge is never taken; correct it, or remove the edge"
            )
        else:
            yield from self._reads(path, found, lambda task: self._decided_along(task, edge))

    def _decided_along(self, task: str, edge: PlanEdge) -> str:
        if self.certain.succeeds_along(task, edge):
            return ""
        if self.certain.comes_before(task, edge.source) or task == edge.source:
            return "maybe"
        return f"it is not decided when {edge.source!r} ends; {_add_edge(task)}"

    def _decided_before(self, task: str, reader: str) -> str:
        if self.certain.has_succeeded(task, reader):
            return ""
        if self.certain.comes_before(task, reader):
            return "maybe"
        if task == reader:
            return "that is the output of this task itself; refer to a task that ends before it"
        return f"it is not decided before {reader!r} begins; {_add_edge(task)}"

    def _reads(self, path: str, found: Expression, decided: Callable[[str], str]) -> Iterator[Problem]:
        """Yield which places an expression reads that are not certain to exist."""
        tested = [one for one in found.paths if one.tested]
        for place in found.paths:
            is_asked = any(
                one.root == place.root and one.keys == place.keys[: len(one.keys)] for one in tested
            )
            told = self._place(place, decided, optional=is_asked)
            if told:
                yield Problem(path, f"it reads {place}, but {told}")

    def _place(
        self, place: Path, decided: Callable[[str], str], *, optional: bool, remedy: str = "ask first: has(…)"
    ) -> str | None:
        """Return why a place is not certain to exist; with `optional`, why it cannot exist at all."""
        if place.root in ("context", "policy", "goal"):
            if optional or _exists(getattr(self.document, place.root), place.keys):
                return None
            return f"the {place.root} of the plan has no such value; correct the path, or {remedy}"
        if place.root == "error" and place.keys and place.keys[0] not in _ERROR_KEYS:
            return f"an error has only {', '.join(_ERROR_KEYS)}"
        if place.root != "outputs":
            return None
        task = place.keys[0]
        if task not in self.tasks:
            if task in self.named:
                return None
            return f"there is no task {task!r:.80}{self._near(task, self.tasks)}"
        told = decided(task)
        if told and told != "maybe":
            return told
        if told and not optional:
            return f"{task!r} is not certain to succeed before; {remedy}"
        known = self._capability(self.tasks[task])
        return (
            None if known is None or optional else _lacks(known.output.type, place.keys[1:], "output", known)
        )

    # --- input and rules of a task --------------------------------------------------------------------------

    def _input(self, path: str, task: Task) -> Iterator[Problem]:
        fault = plain_problem(task.input, f"{path}.input")
        if fault:
            yield Problem(*fault)
            return
        is_sound = True
        for where, part in references.find_references(task.input, f"{path}.input"):
            told = references.misuse(part) or self._reference(task, part)
            if told:
                is_sound = is_sound and "$ref" in part
                yield Problem(where, told)
        known = self._capability(task)
        if known is not None and is_sound:
            yield from shapes.fit(task.input, known.input.type, f"{path}.input", references.is_reference)

    def _reference(self, task: Task, part: dict[str, Any]) -> str | None:
        place = references.parse_path(part["$ref"])
        assert place is not None
        has_default = "default" in part
        told = self._place(
            place,
            lambda other: self._decided_before(other, task.id),
            optional=has_default,
            remedy="give a default",
        )
        if told is None and place.root == "error" and not has_default and not self.certain.has_error(task.id):
            told = "this task may run without a failure before it; give a default, or let only error edges lead to it"
        return f"it refers to {place}, but {told}" if told else None

    def _task_rules(self, path: str, task: Task) -> Iterator[Problem]:
        known = self._capability(task)
        if task.idempotency_key is not None:
            roots = (*_SHARED, "input", *(("error",) if self.certain.has_error(task.id) else ()))
            found = expressions.check(task.idempotency_key, roots=roots, wants=expressions.TEXT)
            yield from self._expression(f"{path}.idempotency_key", found, task, known)
        seen: set[str] = set()
        for index, rule in enumerate(task.verification):
            where = f"{path}.verification[{index}]"
            if not rule.id or rule.id in seen:
                yield Problem(f"{where}.id", "it must be a name that no other rule of this task has")
            seen.add(rule.id)
            roots = (*_SHARED, "input", "output", "now")
            yield from self._expression(
                f"{where}.rule", expressions.check(rule.rule, roots=roots), task, known
            )

    def _expression(
        self, path: str, found: Expression, task: Task, known: Capability | None
    ) -> Iterator[Problem]:
        if found.problem:
            yield Problem(path, found.problem)
            return
        yield from self._reads(path, found, lambda other: self._decided_before(other, task.id))
        for place in found.paths if known else ():
            if place.root in ("input", "output") and not place.tested:
                assert known is not None
                declared = known.input.type if place.root == "input" else known.output.type
                told = _lacks(declared, place.keys, place.root, known)
                if told:
                    yield Problem(path, f"it reads {place}, but {told}")

    def _policies(self) -> Iterator[Problem]:
        seen = set(self.registry.policies)
        for index, rule in enumerate(self.document.policies):
            if rule is not None:
                yield from self._policy(f"policies[{index}]", rule, seen)

    def _policy(self, path: str, rule: PolicyRule, seen: set[str]) -> Iterator[Problem]:
        if not rule.id or rule.id in seen:
            yield Problem(f"{path}.id", "it must be a name that no other policy has, also none in Python")
        seen.add(rule.id)
        if not any(fnmatchcase(name, rule.capability) for name in self.registry.capabilities):
            yield Problem(f"{path}.capability", self._unknown_capability(rule.capability))
        more: Collection[str] = ("input", "now") if rule.stage == "pre" else ("input", "output", "now")
        found = expressions.check(rule.rule, roots=(*_SHARED, *more))
        reported: set[str] = set()
        for task in self.tasks.values():
            if fnmatchcase(task.capability, rule.capability):
                for problem in self._expression(f"{path}.rule", found, task, self._capability(task)):
                    if not reported:
                        yield problem
                    reported.add(problem.message)
        if found.problem and not reported:
            yield Problem(f"{path}.rule", found.problem)


# --- single faults ------------------------------------------------------------------------------------------


def _never(opponents: tuple[str, str] | None) -> str:
    between = " and ".join(map(repr, opponents)) if opponents else "its sources"
    return (
        f"it can never run: the edges to it exclude each other (from {between}), and it joins 'every'; write join: 'some', or "
        "correct the guards"
    )


def _add_edge(task: str) -> str:
    return f"add an edge, so that {task!r} always ends before"


def _exists(value: Any, keys: tuple[str, ...]) -> bool:
    for key in keys:
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return False
    return True


def _lacks(declared: Any, keys: tuple[str, ...], what: str, known: Capability) -> str | None:
    missing = shapes.missing_key(declared, keys)
    if missing is None:
        return None
    key, fields = missing
    has = f"; it has {', '.join(map(repr, fields))}" if fields else ""
    return f"the {what} of {known.name!r} has no {key!r}{did_you_mean(key, fields) or has}"


def _retry_problems(path: str, known: Capability, task: Task) -> Iterator[Problem]:
    assert task.retry is not None
    try:
        merge_retry(known, task.retry)
    except ValueError as fault:
        found = re.match(r"Retry\((\w+)=.*\): (.*)", str(fault), re.DOTALL)
        yield Problem(f"{path}.{found[1]}" if found else path, found[2] if found else "it is not valid")
    yield from _failure_name_problems(f"{path}.on", task.retry.on, may_be_empty=True)


def _failure_name_problems(path: str, names: list[str], *, may_be_empty: bool = False) -> Iterator[Problem]:
    if not names and not may_be_empty:
        yield Problem(
            path,
            "it takes no failure; name failure classes or exception types, or write true for all of them",
        )
    for index, name in enumerate(names):
        if not _FAILURE.fullmatch(name):
            yield Problem(
                f"{path}[{index}]",
                "it is neither a failure class (recoverable, partial, fatal) nor the name of an exception type; write the name "
                "of a class without its module, as in ConnectionError",
            )
