"""Random flows for tests, drawn from one `random.Random`: the same seed gives the same flow, and its runs end in the same state.

A `Sketch` describes a random graph: edges, branches, and for every branch a `Plan` that says where the n-th visit of its node
leads. All functions of its flow are pure and depend only on the name and the iteration of their node. So the result of a run is
known before it starts, whatever the order in which its nodes end:

- `nested(luck)` draws steps, fan-outs, splits with joins, choices and loops, one inside the other. Such a sketch
  knows how often each of its nodes is visited (`visits`), because it counts the visits without the engine.
- `arbitrary(luck)` draws edges at random: loops that cross, loops with two entries, joins anywhere. Every run ends, because from
  some visit on each branch chooses a way to END; how often a join is visited may depend on the order in which nodes end.
- `attended(sketch, luck)` adds work for an operator: some nodes need approval, some are questions, some are safe to fail and do
  fail. `answer_to` gives the answers.
- `with_risks(sketch, luck)` marks nodes as not idempotent.

`random_flow(luck)` compiles a nested sketch. With `Engine(resources={"witness": fn})`, every node calls `fn(ctx)`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, Literal

from holdfast.core.definition import END, START, Definition, Edge, NodeOptions, QuestionOptions
from holdfast.core.graph import Flow, Graph
from holdfast.core.state import add, append, merge
from holdfast.runtime.calls.context import Context

ITERATIONS_MAX = 10_000
CRASHES_MAX = 100
_ITEMS_AT_ONCE = 3
_DECISIONS = ["on", "off"]


def largest(one: int, other: int) -> int:
    """Return the larger value. This is a custom reducer whose result does not depend on the order of updates."""
    return max(one, other)


@dataclass
class Journey:
    """The state of every random flow. Every field that parallel nodes write has a reducer; of the results, only the order of
    `trail` depends on the order of visits.
    """

    total: Annotated[int, add] = 0
    visits: Annotated[dict[str, int], merge] = field(default_factory=dict)
    trail: Annotated[list[str], append] = field(default_factory=list)
    longest: Annotated[int, largest] = 0
    stage: str = ""
    """A field without a reducer: only nodes that never run in parallel set it."""


def without_order(journey: Journey) -> dict[str, Any]:
    """Return the final state without the order of visits: it must be equal in all runs of the same sketch."""
    return {**vars(journey), "trail": sorted(journey.trail)}


@dataclass(frozen=True)
class Plan:
    """The choices of a branch: at the n-th visit of its node it leads to `choices[n-1]`, at all later visits to `rest`."""

    targets: tuple[str, ...]
    choices: tuple[tuple[str, ...], ...]
    rest: tuple[str, ...]

    def at(self, iteration: int) -> tuple[str, ...]:
        return self.choices[iteration - 1] if iteration <= len(self.choices) else self.rest


@dataclass(frozen=True)
class Sketch:
    """A random graph, and what its nodes do."""

    name: str
    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    plans: dict[str, Plan]
    items: dict[str, int]
    """Fan-out node -> its number of items."""
    any_joins: frozenset[str]
    alone: frozenset[str]
    """Nodes that never run in parallel with another node."""
    yields: dict[str, int]
    """`async def` node -> how often it yields to the event loop; all other nodes are `def`."""
    visits: dict[str, int] | None
    """Node -> how often a run visits it; None if that depends on the order in which nodes end."""
    gated: frozenset[str] = frozenset()
    questions: frozenset[str] = frozenset()
    """The question nodes. If a question node never runs in parallel with another node, its answer is put into the state field
    `stage`.
    """
    safe: frozenset[str] = frozenset()
    """Nodes that are safe to fail, and fail at every odd visit."""
    risky: frozenset[str] = frozenset()
    """Nodes that are not idempotent."""
    crash_limit: int = CRASHES_MAX

    def routes(self, node: str, iteration: int) -> list[str]:
        """Return the names of the nodes that this visit of the node leads to."""
        plain = [target for source, target in self.edges if source == node]
        chosen = self.plans[node].at(iteration) if node in self.plans else ()
        return list(dict.fromkeys([*plain, *chosen]))

    def fails(self, node: str, iteration: int) -> bool:
        """Return whether this visit of the node raises."""
        return node in self.safe and iteration % 2 == 1

    def answer_to(self, node: str, iteration: int) -> str:
        """Return the answer to the question of this visit. With it the run continues, and all runs of the sketch end in the same
        state.
        """
        if node in self.questions and node in self.alone:
            return _DECISIONS[iteration % 2]
        return "approve"

    def update(self, node: str, iteration: int, item: int | None = None) -> dict[str, Any]:
        """Return the update that this visit of the node, or one item of the visit, returns."""
        mark = f"{node}.{iteration}" if item is None else f"{node}.{iteration}[{item}]"
        update = {"total": 1, "visits": {node: iteration}, "trail": [mark], "longest": iteration}
        return {**update, "stage": mark} if item is None and node in self.alone else update

    def definition(self) -> Definition:
        """Return the definition of the graph, without functions: enough for `decide`, and quick to make."""
        branches = {source: list(plan.targets) for source, plan in self.plans.items()}
        return Definition(
            name=self.name,
            nodes={name: self._options(name) for name in self.nodes},
            edges=[Edge(source, target) for source, target in self.edges],
            branches=branches,
            max_iterations=ITERATIONS_MAX,
        )

    def _options(self, name: str) -> NodeOptions:
        join: Literal["all", "any"] = "any" if name in self.any_joins else "all"
        if name in self.questions:
            into = "stage" if name in self.alone else None
            options = _DECISIONS if into else ["approve", "reject"]
            asked = QuestionOptions(text=f"{name}?", options=options, into=into)
            return NodeOptions(join=join, question=asked)
        return NodeOptions(
            join=join,
            each=name in self.items,
            limit=_ITEMS_AT_ONCE,
            approve=f"{name}?" if name in self.gated else None,
            safe_to_fail=name in self.safe,
            crash_limit=self.crash_limit,
            idempotent=name not in self.risky,
            on_interrupt="ask" if name in self.risky else "rerun",
        )

    def graph(self) -> Graph[Journey]:
        graph = Graph(self.name, Journey)
        for name in self.nodes:
            told = self._options(name)
            if told.question is not None:
                asked = told.question
                graph.ask(name, asked.text, options=asked.options, into=asked.into, join=_join(told))
                continue
            graph.node(
                name=name,
                join=_join(told),
                limit=told.limit,
                each=_each(self.items[name]) if told.each else None,
                approve=told.approve,
                safe_to_fail=told.safe_to_fail,
                crash_limit=told.crash_limit,
                idempotent=told.idempotent,
            )(_item_body(self, name) if told.each else _body(self, name))
        for source, target in self.edges:
            graph.edge(source, target)
        for source, plan in self.plans.items():
            graph.branch(source, _router(source, plan), to=plan.targets)
        return graph

    def flow(
        self, *, schedule: Literal["eager", "layered"] = "eager", max_parallel: int = 64
    ) -> Flow[Journey]:
        return self.graph().compile(
            schedule=schedule, max_parallel=max_parallel, max_iterations=ITERATIONS_MAX
        )


def random_flow(luck: random.Random, *, schedule: Literal["eager", "layered"] = "eager") -> Flow[Journey]:
    """Make a random flow whose runs all end in the same state."""
    return nested(luck).flow(schedule=schedule)


def attended(sketch: Sketch, luck: random.Random) -> Sketch:
    """Return a copy of the sketch with approvals, questions and nodes that are safe to fail. A node with a branch never becomes a
    question or fails, because its branch needs its result.
    """
    plain = [name for name in sketch.nodes if name not in sketch.plans and name not in sketch.items]
    questions = frozenset(name for name in plain if luck.random() < 0.15)
    return replace(
        sketch,
        questions=questions,
        gated=frozenset(name for name in sketch.nodes if name not in questions and luck.random() < 0.2),
        safe=frozenset(name for name in plain if name not in questions and luck.random() < 0.3),
    )


def with_risks(sketch: Sketch, luck: random.Random) -> Sketch:
    """Return a copy of the sketch in which about half of the nodes are not idempotent."""
    risky = (name for name in sketch.nodes if name not in sketch.questions and luck.random() < 0.5)
    return replace(sketch, risky=frozenset(risky))


# --- what the nodes do -------------------------------------------------------------------------------


def _tell(ctx: Context) -> None:
    witness = ctx.resources.get("witness")
    if witness is not None:
        witness(ctx)


def _body(sketch: Sketch, name: str) -> Callable[..., Any]:
    def result(ctx: Context) -> dict[str, Any]:
        if sketch.fails(name, ctx.iteration):
            raise ValueError("as drawn")
        return sketch.update(name, ctx.iteration)

    def visit(state: Journey, ctx: Context) -> dict[str, Any]:
        _tell(ctx)
        return result(ctx)

    async def visit_later(state: Journey, ctx: Context) -> dict[str, Any]:
        _tell(ctx)
        for _ in range(sketch.yields[name]):
            await asyncio.sleep(0)
        return result(ctx)

    return visit_later if name in sketch.yields else visit


def _item_body(sketch: Sketch, name: str) -> Callable[..., Any]:
    def visit_item(item: int, ctx: Context) -> dict[str, Any]:
        _tell(ctx)
        return sketch.update(name, ctx.iteration, item)

    return visit_item


def _join(told: NodeOptions) -> Literal["all", "any"]:
    return "any" if told.join == "any" else "all"


def _each(count: int) -> Callable[[Journey], Iterable[int]]:
    return lambda state: range(count)


def _router(name: str, plan: Plan) -> Callable[[Journey], Sequence[str]]:
    return lambda state: plan.at(state.visits[name])


# --- nested ------------------------------------------------------------------------------------------


def nested(luck: random.Random, *, depth: int = 3) -> Sketch:
    """Draw a sketch of steps, splits and loops, nested at most `depth` deep."""
    return _Nest(luck).sketch(depth)


@dataclass(frozen=True)
class _Part:
    """A part of a nested sketch: its entry, its exits, and a function that counts the visits of a run through it."""

    entry: str
    exits: tuple[str, ...]
    walk: Callable[[], None]


class _Fork:
    """A branch of a sketch that is still being drawn. Some of its targets are known only when the parts around it are drawn."""

    def __init__(self) -> None:
        self.targets: dict[str, None] = {}
        self.choices: list[tuple[str, ...]] = []
        self.onward: str | None = None
        """The target that the branch chooses in the end: the entry of the next part; None until that part is drawn."""


_ONWARD = ""


class _Nest:
    """Draws a nested sketch, and counts the visits of its nodes in `_visits`."""

    def __init__(self, luck: random.Random) -> None:
        self._luck = luck
        self._nodes: list[str] = []
        self._edges: list[tuple[str, str]] = []
        self._forks: dict[str, _Fork] = {}
        self._items: dict[str, int] = {}
        self._any: set[str] = set()
        self._alone: set[str] = set()
        self._visits: dict[str, int] = {}

    def sketch(self, depth: int) -> Sketch:
        parts = [self._sequence(depth, alone=False) for _ in range(2)] if self._luck.random() < 0.15 else []
        if not parts:
            parts = [self._sequence(depth, alone=True)]
        for part in parts:
            self._edges.insert(0, (START, part.entry))
            self._lead(part, END)
            part.walk()
        plain = [name for name in self._nodes if name not in self._items]
        return Sketch(
            name=f"nested-{self._luck.getrandbits(24):06x}",
            nodes=tuple(self._nodes),
            edges=tuple(self._edges),
            plans={name: _plan_of(fork) for name, fork in self._forks.items()},
            items=self._items,
            any_joins=frozenset(self._any),
            alone=frozenset(self._alone),
            yields={name: self._luck.randrange(4) for name in plain if self._luck.random() < 0.4},
            visits={name: self._visits.get(name, 0) for name in self._nodes},
        )

    def _node(self, kind: str, *, alone: bool) -> str:
        name = f"{kind}{len(self._nodes)}"
        self._nodes.append(name)
        if alone:
            self._alone.add(name)
        return name

    def _visit(self, name: str) -> int:
        self._visits[name] = self._visits.get(name, 0) + 1
        return self._visits[name]

    def _lead(self, part: _Part, target: str) -> None:
        for name in part.exits:
            if name in self._forks:
                self._forks[name].onward = target
                self._forks[name].targets.setdefault(target)
            else:
                self._edges.append((name, target))

    # --- parts ----------------------------------------------------------------------------------------

    def _part(self, depth: int, *, alone: bool) -> _Part:
        draw = self._luck.random()
        if depth <= 0 or draw < 0.35:
            return self._step(alone=alone)
        if draw < 0.65:
            return self._split(depth - 1, alone=alone)
        return (
            self._until_loop(depth - 1, alone=alone)
            if draw < 0.85
            else self._while_loop(depth - 1, alone=alone)
        )

    def _step(self, *, alone: bool) -> _Part:
        name = self._node("step", alone=alone)
        if self._luck.random() < 0.15:
            self._items[name] = self._luck.randrange(5)
        return _Part(name, (name,), lambda: _void(self._visit(name)))

    def _sequence(self, depth: int, *, alone: bool) -> _Part:
        parts = [self._part(depth, alone=alone) for _ in range(self._luck.choice((1, 1, 2, 2, 3)))]
        for part, following in pairwise(parts):
            self._lead(part, following.entry)

        def walk() -> None:
            for part in parts:
                part.walk()

        return _Part(parts[0].entry, parts[-1].exits, walk)

    def _split(self, depth: int, *, alone: bool) -> _Part:
        """Draw a split into all, some or one of several parts, and the node that joins them."""
        mode = self._luck.choice(("all", "all", "some", "one"))
        split = self._node("split", alone=alone)
        inner = alone and mode == "one"
        parts = [self._sequence(depth, alone=inner) for _ in range(self._luck.choice((2, 2, 3)))]
        join = self._node("join", alone=alone)
        by_entry = {part.entry: part for part in parts}
        for part in parts:
            self._lead(part, join)
        ways = list(by_entry)
        if mode == "all":
            self._edges.extend((split, entry) for entry in ways)
        else:
            if self._luck.random() < 0.3:
                ways.append(join)
            if mode == "one" and self._luck.random() < 0.5:
                self._any.add(join)
            fork = self._forks[split] = _Fork()
            fork.targets = dict.fromkeys(ways)
            for _ in range(self._luck.randrange(1, 4)):
                count = 1 if mode == "one" else self._luck.randrange(1, len(ways) + 1)
                fork.choices.append(tuple(sorted(self._luck.sample(ways, count), key=ways.index)))
            fork.onward = self._luck.choice(ways)

        def walk() -> None:
            visit = self._visit(split)
            for entry in ways if mode == "all" else _plan_of(self._forks[split]).at(visit):
                if entry != join:
                    by_entry[entry].walk()
            self._visit(join)

        return _Part(split, (join,), walk)

    def _until_loop(self, depth: int, *, alone: bool) -> _Part:
        """Draw a loop whose last node decides whether to repeat it. Branches inside the loop may jump back to its beginning or
        out of it, like `continue` and `break`.
        """
        parts: list[_Part] = []
        gates: list[tuple[str, str] | None] = []
        for _ in range(self._luck.choice((1, 1, 2))):
            parts.append(self._part(depth, alone=alone))
            gates.append(None)
            if self._luck.random() < 0.3:
                name = self._node("gate", alone=alone)
                parts.append(_Part(name, (name,), lambda: None))
                gates.append((name, self._luck.choice(("continue", "break"))))
        tail = self._node("tail", alone=alone)
        for part, following in zip(parts, [*(part.entry for part in parts[1:]), tail], strict=True):
            self._gate_or_lead(part, following, gates[parts.index(part)], parts[0].entry)
        self._turns(tail, parts[0].entry, _ONWARD)
        breaks = [gate[0] for gate in gates if gate is not None and gate[1] == "break"]

        def walk() -> None:
            while not self._walk_body(parts, gates, tail):
                pass

        return _Part(parts[0].entry, (*breaks, tail), walk)

    def _gate_or_lead(self, part: _Part, following: str, gate: tuple[str, str] | None, head: str) -> None:
        if gate is None:
            self._lead(part, following)
        elif gate[1] == "continue":
            self._turns(gate[0], head, following)
        else:
            self._turns(gate[0], following, _ONWARD)

    def _turns(self, name: str, often: str, rest: str) -> None:
        """Draw a branch that chooses `often` or `rest` at its first few visits, and `rest` at all later ones. The target
        `_ONWARD` is replaced by a node that is drawn later.
        """
        fork = self._forks[name] = _Fork()
        fork.targets = dict.fromkeys(way for way in (often, rest) if way != _ONWARD)
        fork.choices = [(self._luck.choice((often, often, rest)),) for _ in range(self._luck.randrange(4))]
        fork.onward = None if rest == _ONWARD else rest

    def _walk_body(self, parts: list[_Part], gates: list[tuple[str, str] | None], tail: str) -> bool:
        """Count the visits of one round of a loop. Return whether this round was the last."""
        for part, gate in zip(parts, gates, strict=True):
            if gate is None:
                part.walk()
                continue
            (way,) = _plan_of(self._forks[gate[0]]).at(self._visit(gate[0]))
            onward = way == self._forks[gate[0]].onward
            if onward == (gate[1] == "break"):
                return onward
        (way,) = _plan_of(self._forks[tail]).at(self._visit(tail))
        return way != parts[0].entry

    def _while_loop(self, depth: int, *, alone: bool) -> _Part:
        """Draw a loop whose first node decides whether to enter it once more. The last node inside the loop leads back to the
        first by a plain edge.
        """
        head = self._node("head", alone=alone)
        body = self._sequence(depth, alone=alone)
        self._lead(body, head)
        self._turns(head, body.entry, _ONWARD)

        def walk() -> None:
            while _plan_of(self._forks[head]).at(self._visit(head)) == (body.entry,):
                body.walk()

        return _Part(head, (head,), walk)


def _void(_: object) -> None:
    """Discard a result."""


def _plan_of(fork: _Fork) -> Plan:
    assert fork.onward is not None, "a branch has no onward target"
    choices = tuple(tuple(way or fork.onward for way in choice) for choice in fork.choices)
    return Plan(tuple(fork.targets), choices, (fork.onward,))


# --- arbitrary ---------------------------------------------------------------------------------------


def arbitrary(luck: random.Random, *, most: int = 9) -> Sketch:
    """Draw a sketch of any shape that compiles, with 2 to `most` nodes."""
    nodes = [f"n{number}" for number in range(luck.randrange(2, most + 1))]
    plain, branched = _arrows(luck, nodes)
    _break_plain_loops(nodes, plain, branched)
    rest = _ways_out(nodes, plain, branched)
    plans = {}
    for name, targets in branched.items():
        if targets:
            choices = [
                tuple(luck.sample(targets, luck.randrange(1, len(targets) + 1)))
                for _ in range(luck.randrange(4))
            ]
            plans[name] = Plan(tuple(targets), tuple(choices), (rest[name],))
    edges = [(source, target) for source, targets in plain.items() for target in targets]
    luck.shuffle(edges)
    return Sketch(
        name=f"arbitrary-{luck.getrandbits(24):06x}",
        nodes=tuple(nodes),
        edges=tuple(edges),
        plans=plans,
        items={name: luck.randrange(4) for name in nodes if name not in plans and luck.random() < 0.4},
        any_joins=frozenset(name for name in nodes if luck.random() < 0.05),
        alone=frozenset(),
        yields={},
        visits=None,
    )


def _arrows(luck: random.Random, nodes: list[str]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Draw random plain edges and branches, by source, so that every node can be reached."""
    plain: dict[str, list[str]] = {START: luck.sample(nodes, luck.choice((1, 1, 1, min(2, len(nodes)))))}
    branched: dict[str, list[str]] = {name: [] for name in nodes}
    for name in nodes:
        targets = luck.sample([*nodes, END], min(len(nodes), luck.choice((1, 1, 2, 2, 3))))
        plain[name] = [target for target in targets if luck.random() < 0.45 and target != name]
        branched[name] = [target for target in targets if target not in plain[name]]
    while len(reached := _reached(plain, branched)) < len(nodes):
        lost = next(name for name in nodes if name not in reached)
        branched[luck.choice(reached)].append(lost)
    return plain, branched


def _reached(plain: dict[str, list[str]], branched: dict[str, list[str]]) -> list[str]:
    reached = list(plain[START])
    for name in reached:  # the list grows during the loop
        reached.extend(t for t in (*plain[name], *branched[name]) if t != END and t not in reached)
    return reached


def _break_plain_loops(nodes: list[str], plain: dict[str, list[str]], branched: dict[str, list[str]]) -> None:
    """Turn the last edge of every loop of plain edges into a branch: such a loop would never end."""
    done: set[str] = set()

    def walk(name: str, inside: set[str]) -> None:
        for target in [target for target in plain[name] if target != END]:
            if target in inside:
                plain[name].remove(target)
                branched[name].append(target)
            elif target not in done:
                walk(target, inside | {target})
        done.add(name)

    for name in nodes:
        if name not in done:
            walk(name, {name})


def _ways_out(
    nodes: list[str], plain: dict[str, list[str]], branched: dict[str, list[str]]
) -> dict[str, str]:
    """Choose the final target of every branch. Together these targets make no loop, so every run ends."""
    out: dict[str, str] = {}
    safe = {END}
    while len(safe) <= len(nodes):
        found = [
            n
            for n in nodes
            if n not in safe and safe.issuperset(plain[n]) and _has_way(n, plain, branched, safe)
        ]
        if not found:  # no node has a safe way out: give END as a target to one whose plain edges are safe
            name = next(n for n in nodes if n not in safe and safe.issuperset(plain[n]))
            (branched if branched[name] else plain)[name].append(END)
            continue
        for name in found:
            if branched[name]:
                out[name] = next(target for target in branched[name] if target in safe)
        safe.update(found)
    return out


def _has_way(name: str, plain: dict[str, list[str]], branched: dict[str, list[str]], safe: set[str]) -> bool:
    return not safe.isdisjoint(branched[name]) if branched[name] else bool(plain[name])
