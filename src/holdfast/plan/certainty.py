"""What is certain before a plan runs: which tasks come before others, which of them have succeeded whenever a task runs, and
which tasks can never run.

Each task has two masks (`int`, one bit per condition): the conditions that hold whenever it runs, and those that do not. A
condition is that a task succeeded, or that a guard is true. A task that joins `every` has the conditions of all edges into
it; one that joins `some` has those that all these edges have in common. A task whose two masks have a bit in common can never
run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.plan.document import PlanEdge, Task
from holdfast.plan.syntax import Tree

_CYCLES_MAX = 5
_SHOWN_MAX = 8
_NEGATED = {"_!=_": "_==_", "_>=_": "_<_", "_<=_": "_>_"}


class Cycle(msgspec.Struct, frozen=True):
    """Tasks that wait for each other, and the place of the edge that closes the circle."""

    tasks: list[str]
    edge: int

    def __str__(self) -> str:
        ring = [*self.tasks, self.tasks[0]]
        shown = ring if len(ring) <= _SHOWN_MAX else [*ring[: _SHOWN_MAX - 2], "…", ring[-1]]
        return " -> ".join(shown)


class Certainty:
    """The conditions of every task of a plan. `edges` has the edges between known tasks, by their places in the document."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        edges: Mapping[int, PlanEdge],
        guards: Mapping[int, Tree],
        without_output: frozenset[str],
    ) -> None:
        self._bits = {name: 1 << number for number, name in enumerate(tasks)}
        self._tasks = tasks
        self._guards = guards
        self._without_output = without_output
        self._conditions: dict[tuple[str, str], int] = {}
        self.incoming: dict[str, list[tuple[int, PlanEdge]]] = {name: [] for name in tasks}
        self.cycles = list(_take_out_cycles(tasks, edges, self.incoming))
        self._holds: dict[str, int] = {}
        self._fails: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._impossible: set[str] = set()
        self.never: dict[str, tuple[str, str] | None] = {}
        """Task that can never run -> two of its sources that exclude each other, if they are the reason. A task that can
        never run only because one of its sources cannot is left out."""
        for name in _order(self.incoming):
            self._look_at(name)

    # --- questions --------------------------------------------------------------------------------------

    def comes_before(self, source: str, task: str) -> bool:
        """Return whether a task has always been decided (done, failed or skipped) before another begins."""
        return bool(self._before.get(task, 0) & self._bits[source])

    def has_succeeded(self, source: str, task: str) -> bool:
        """Return whether a task has an output whenever another runs."""
        return bool(self._holds.get(task, 0) & self._bits[source])

    def succeeds_along(self, source: str, edge: PlanEdge) -> bool:
        """Return whether a task has an output whenever the guard of an edge is evaluated."""
        if source == edge.source:
            return not edge.catches and source not in self._without_output
        return self.has_succeeded(source, edge.source)

    def has_error(self, task: str) -> bool:
        """Return whether a task runs only after a failure that led to it."""
        caught = [bool(edge.catches) for _, edge in self.incoming.get(task, ())]
        return any(caught) if self._tasks[task].join == "every" else bool(caught) and all(caught)

    # --- the walk -----------------------------------------------------------------------------------------

    def _look_at(self, name: str) -> None:
        edges = self.incoming[name]
        before = 0
        for _, edge in edges:
            before |= self._before.get(edge.source, 0) | self._bits[edge.source]
        self._before[name] = before
        masks = [self._along(place, edge) for place, edge in edges]
        if self._tasks[name].join == "every":
            holds = fails = 0
            for held, failed in masks:
                holds |= held
                fails |= failed
        else:
            holds = fails = -1 if masks else 0
            for held, failed in masks:
                holds &= held
                fails &= failed
        self._holds[name], self._fails[name] = holds, fails
        self._judge(name, masks)

    def _along(self, place: int, edge: PlanEdge) -> tuple[int, int]:
        """Return the conditions that hold, and those that do not, whenever an edge is taken."""
        source = edge.source
        holds, fails = self._holds.get(source, 0), self._fails.get(source, 0)
        if edge.catches:
            fails |= self._bits[source]
        elif source not in self._without_output:
            holds |= self._bits[source]
        if place in self._guards:
            condition, is_true = _condition(self._guards[place])
            bit = self._conditions.setdefault(
                (source, condition), 1 << (len(self._bits) + len(self._conditions))
            )
            if is_true:
                holds |= bit
            else:
                fails |= bit
        return holds, fails

    def _judge(self, name: str, masks: Sequence[tuple[int, int]]) -> None:
        edges = self.incoming[name]
        dead = [
            edge.source in self._impossible or self._guards.get(place) == ("const", False)
            for place, edge in edges
        ]
        is_every = self._tasks[name].join == "every"
        if edges and (any(dead) if is_every else all(dead)):
            self._impossible.add(name)
        elif is_every and self._holds[name] & self._fails[name]:
            self._impossible.add(name)
            self.never[name] = self._opponents(edges, masks)

    @staticmethod
    def _opponents(
        edges: Sequence[tuple[int, PlanEdge]], masks: Sequence[tuple[int, int]]
    ) -> tuple[str, str] | None:
        for (_, one), (held, _) in zip(edges, masks, strict=True):
            for (_, other), (_, failed) in zip(edges, masks, strict=True):
                if held & failed and one is not other:
                    return one.source, other.source
        return None


def _condition(tree: Tree) -> tuple[str, bool]:
    """Return a guard as a condition that it shares with its negation, and whether it says that this condition holds."""
    is_true = True
    while tree[0] == "call" and tree[1] == "!_":
        tree, is_true = tree[2], not is_true
    if tree[0] == "call" and tree[1] in _NEGATED:
        tree, is_true = ("call", _NEGATED[tree[1]], *tree[2:]), not is_true
    return repr(tree), is_true


# --- order ------------------------------------------------------------------------------------------------


def _take_out_cycles(
    tasks: Mapping[str, Task],
    edges: Mapping[int, PlanEdge],
    incoming: dict[str, list[tuple[int, PlanEdge]]],
) -> Iterator[Cycle]:
    """Fill in the incoming edges without those that close a circle, and yield the circles. Iterative: plans may be deep."""
    outgoing: dict[str, list[tuple[int, PlanEdge]]] = {name: [] for name in tasks}
    for place, edge in edges.items():
        outgoing[edge.source].append((place, edge))
    found = 0
    done: set[str] = set()
    for root in tasks:
        if root in done:
            continue
        path, inside = [root], {root}
        stack = [iter(outgoing[root])]
        while stack:
            for place, edge in stack[-1]:
                if edge.target in inside:
                    found += 1
                    if found <= _CYCLES_MAX:
                        yield Cycle(path[path.index(edge.target) :], place)
                    continue
                incoming[edge.target].append((place, edge))
                if edge.target not in done:
                    path.append(edge.target)
                    inside.add(edge.target)
                    stack.append(iter(outgoing[edge.target]))
                    break
            else:
                stack.pop()
                inside.discard(path[-1])
                done.add(path.pop())
    for arrived in incoming.values():
        arrived.sort(key=lambda one: one[0])


def _order(incoming: Mapping[str, Sequence[tuple[int, PlanEdge]]]) -> list[str]:
    """Return the tasks so that each comes after the sources of the edges into it."""
    waiting = {name: len(edges) for name, edges in incoming.items()}
    targets: dict[str, list[str]] = {}
    for name, edges in incoming.items():
        for _, edge in edges:
            targets.setdefault(edge.source, []).append(name)
    order = [name for name, count in waiting.items() if not count]
    for name in order:
        for target in targets.get(name, ()):
            waiting[target] -= 1
            if not waiting[target]:
                order.append(target)
    return order
