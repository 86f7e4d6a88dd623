"""Random plans for tests, and what their runs must come to, computed by plain Python.

A `PlanSketch` says of each node how it joins, how it ends and what judges it, and of each edge its guard and the failures that it
takes. `PlanSketch.expect` follows these words by themselves: it is the oracle, and shares no code with the engine.
`PlanSketch.flow` makes the flow of a plan of the same nodes whose rules are Python and need no expressions, so that this package
does not depend on `holdfast.plan`. The plan is stored in the definition, as that of every plan: another engine makes the flow
from there.

Every node returns `{"n": …}`, a number that depends on the outputs that reached it. A guard reads the number of its source. So
the values of a run show which nodes ran before which, and guards depend on data.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from holdfast.core.definition import END, START, Definition, Edge, NodeOptions
from holdfast.core.events import Checked, Failure
from holdfast.core.graph import Flow, Node, Retry
from holdfast.core.rules import Asked, EdgeChoice, Policy, RuleFacts, Verdict, Verifier, allow, ask, deny
from holdfast.core.state import StateType, append, merge
from holdfast.errors import Fatal, Recoverable
from holdfast.runtime.calls.context import Context

NAME = "sketched"
"""The flow of every sketched plan."""
PRIME = 97
Ends: TypeAlias = Literal[
    "returns", "slow", "flaky", "raises", "fatal", "unverified", "later", "denied", "refused"
]
Expected: TypeAlias = Literal["completed", "skipped", "handled", "failed", "unreached"]

FAILURES: dict[str, tuple[str, str]] = {
    "raises": ("ValueError", "partial"),
    "fatal": ("Fatal", "fatal"),
    "unverified": ("VerificationFailed", "partial"),
    "denied": ("PolicyDenied", "fatal"),
    "refused": ("PolicyDenied", "fatal"),
}
"""How a node ends -> type and class of its failure."""
_REFUSALS = frozenset({"PolicyDenied", "QuestionRefused"})
_RETRY: dict[str, Any] = {"attempts": 20, "backoff": 0.05, "factor": 1.0, "jitter": 0.0}


class SketchedEdge(msgspec.Struct, frozen=True, omit_defaults=True):
    """An edge of a sketched plan."""

    source: str
    target: str
    guard: tuple[int, int] | None = None
    """`(modulus, below)`: taken if the number of the source, modulo `modulus`, is below `below`. On an edge that takes failures,
    the number is the length of the name of the failure's type. None: no guard."""
    on_error: tuple[str, ...] = ()
    """The failures that it takes; empty for an ordinary edge."""

    def is_open(self, number: int) -> bool:
        return self.guard is None or number % self.guard[0] < self.guard[1]

    def takes(self, failure: str, kind: str) -> bool:
        named = failure in self.on_error
        return named or (failure not in _REFUSALS and ("*" in self.on_error or kind in self.on_error))


class SketchedNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node of a sketched plan."""

    name: str
    number: int
    every: bool = True
    ends: Ends = "returns"
    pre: Literal["", "allow", "ask"] = ""
    """What its policy decides before it begins; a `denied` node has one that denies."""
    post: Literal["", "allow", "ask"] = ""
    """What its policy decides about its result; a `refused` node has one that denies."""
    verifies: bool = False
    idempotent: bool = True
    tokens: int = 0
    """What each call of it costs."""

    def output(self, inputs: list[int]) -> dict[str, int]:
        """Return what the node returns, given the numbers of the outputs that reached it."""
        return {"n": (self.number + sum(inputs)) % PRIME}


class Outcome(msgspec.Struct, frozen=True):
    """What a run of a plan comes to."""

    statuses: dict[str, Expected]
    """`handled`: the node failed, and an edge took its failure. `unreached`: a failure that no edge takes comes before it."""
    outputs: dict[str, dict[str, int]]

    @property
    def completes(self) -> bool:
        return not {"failed", "unreached"} & {*self.statuses.values()}


class PlanSketch(msgspec.Struct, frozen=True, dict=True):
    """A plan: its nodes in topological order, and the edges between them."""

    nodes: tuple[SketchedNode, ...]
    edges: tuple[SketchedEdge, ...]
    max_parallel: int = 64

    @cached_property
    def into(self) -> dict[str, list[SketchedEdge]]:
        found: dict[str, list[SketchedEdge]] = {node.name: [] for node in self.nodes}
        for edge in self.edges:
            found[edge.target].append(edge)
        return found

    @cached_property
    def out(self) -> dict[str, list[SketchedEdge]]:
        found: dict[str, list[SketchedEdge]] = {node.name: [] for node in self.nodes}
        for edge in self.edges:
            found[edge.source].append(edge)
        return found

    def inputs(self, name: str) -> list[str]:
        """Return the nodes whose outputs a node gets, if they exist: the sources of its ordinary edges."""
        return [edge.source for edge in self.into[name] if not edge.on_error]

    # --- the oracle -------------------------------------------------------------------------------------

    def expect(self) -> Outcome:
        """Return what every run of the plan comes to, whatever the schedule and the order of its nodes. After a failure that no
        edge takes, a node that could still run may or may not have begun.
        """
        statuses: dict[str, Expected] = {}
        outputs: dict[str, dict[str, int]] = {}
        taken: dict[str, set[str]] = {}
        """Node -> the targets of the edges that were taken; a node whose edges are undecided is missing."""
        for node in self.nodes:
            name, into = node.name, self.into[node.name]
            if any(edge.source not in taken for edge in into):
                statuses[name] = "unreached"
                continue
            came = sum(name in taken[edge.source] for edge in into)
            if came < (len(into) if node.every else min(1, len(into))):
                statuses[name], taken[name] = "skipped", set()
                continue
            ordinary = [edge for edge in self.out[name] if not edge.on_error]
            if node.ends in FAILURES:
                failure, kind = FAILURES[node.ends]
                catching = [edge for edge in self.out[name] if edge.on_error and edge.takes(failure, kind)]
                caught = {edge.target for edge in catching if edge.is_open(len(failure))}
                statuses[name] = "handled" if caught else "failed"
                if caught:
                    taken[name] = caught
                continue
            there = [outputs[source]["n"] for source in self.inputs(name) if source in outputs]
            outputs[name] = node.output(there)
            statuses[name] = "completed"
            taken[name] = {edge.target for edge in ordinary if edge.is_open(outputs[name]["n"])}
        return Outcome(statuses, outputs)

    # --- the flow ---------------------------------------------------------------------------------------

    def flow(self) -> Flow[Any]:
        """Return the flow of the plan, with a source that makes it again from the stored definition."""
        return _make_flow(self, SketchSource())

    def define(self) -> Definition:
        """Return the definition of the plan. Its edges are also in the form of a plan document."""
        targets, sources = ({getattr(edge, end) for edge in self.edges} for end in ("target", "source"))
        edges = [
            {
                "from": edge.source,
                "to": edge.target,
                "guard": str(edge.guard) if edge.guard else None,
                "on_error": edge.on_error,
            }
            for edge in self.edges
        ]
        return Definition(
            name=NAME,
            nodes={node.name: self._options(node) for node in self.nodes},
            edges=[
                *(Edge(START, node.name) for node in self.nodes if node.name not in targets),
                *(Edge(edge.source, edge.target) for edge in self.edges),
                *(Edge(node.name, END) for node in self.nodes if node.name not in sources),
            ],
            max_parallel=self.max_parallel,
            state=_STATE.describe(),
            plan={"sketch": msgspec.to_builtins(self), "edges": edges},
        )

    def _options(self, node: SketchedNode) -> NodeOptions:
        judged: list[Literal["pre", "verify", "post"]] = []
        if node.pre or node.ends == "denied":
            judged.append("pre")
        if _verifies(node):
            judged.append("verify")
        if node.post or node.ends == "refused":
            judged.append("post")
        caught = [name for edge in self.out[node.name] for name in edge.on_error]
        return NodeOptions(
            join="every" if node.every else "all",
            idempotent=node.idempotent,
            on_interrupt="rerun" if node.idempotent else "ask",
            retry={**_RETRY, "on": ["recoverable", "VerificationFailed"]} if node.ends in _RETRIED else {},
            crash_limit=1000,
            on_error=list(dict.fromkeys(caught)),
            judged=judged,
        )


_RETRIED = ("flaky", "later")


def _verifies(node: SketchedNode) -> bool:
    return node.verifies or node.ends in ("unverified", "later")


class SketchState(msgspec.Struct, kw_only=True):
    """The state of a run of a sketched plan: the fields that the run of every plan has."""

    goal: Any = None
    context: dict[str, Any] = {}
    policy: dict[str, Any] = {}
    outputs: Annotated[dict[str, Any], merge] = {}
    messages: Annotated[list[Any], append] = []
    about: dict[str, Any] = {}


_STATE = StateType.of(SketchState)


class SketchSource:
    """Makes flows from the definitions of sketched plans. It is a `FlowSource`."""

    name = NAME
    description = "sketched plans"
    called: tuple[Flow[Any], ...] = ()
    nodes: Mapping[str, Node] = {}
    state = _STATE

    def __init__(self) -> None:
        self._made: dict[str, Flow[Any]] = {}

    def made(self, fingerprint: str) -> Flow[Any] | None:
        """Return the flow that was made from the definition with this fingerprint; None if it was not made yet."""
        return self._made.get(fingerprint)

    def current(self, flow: Flow[Any]) -> Flow[Any]:
        """Return the flow itself: the rules of a sketch never change."""
        return flow

    def flow(self, definition: Definition, fingerprint: str) -> Flow[Any]:
        """Make the flow of a stored definition, and remember it."""
        if fingerprint not in self._made:
            self._made[fingerprint] = _make_flow(msgspec.convert(definition.plan["sketch"], PlanSketch), self)
        return self._made[fingerprint]


def _make_flow(sketch: PlanSketch, source: SketchSource) -> Flow[Any]:
    definition = sketch.define()
    return Flow(
        definition=definition,
        nodes={node.name: _make_node(sketch, node, definition.nodes[node.name]) for node in sketch.nodes},
        branches={},
        state=_STATE,
        upgrades={},
        validate_resume=None,
        description="a sketched plan",
        guards={node.name: SketchedGuards(tuple(sketch.out[node.name])) for node in sketch.nodes},
        input={"goal": None, "context": {}, "policy": {}, "outputs": {}, "messages": [], "about": {}},
        source=source,
    )


def _make_node(sketch: PlanSketch, node: SketchedNode, options: NodeOptions) -> Node:
    retry = Retry(**_RETRY, named=("recoverable", "VerificationFailed")) if node.ends in _RETRIED else Retry()
    pre, post = (
        node.pre or (node.ends == "denied" and "deny"),
        node.post or (node.ends == "refused" and "deny"),
    )
    return Node(
        name=node.name,
        fn=_body(node),
        options=options,
        retry=retry,
        each=None,
        takes_context=True,
        is_async=True,
        wiring=SketchedWiring(tuple(sketch.inputs(node.name))),
        pre=(_policy("before", pre), _policy("before too", "allow")) if pre else (),
        checks=(Verifier("try", _check_of(node)),) if _verifies(node) else (),
        post=(_policy("after", post),) if post else (),
    )


def _body(node: SketchedNode) -> Any:
    async def body(given: list[int], ctx: Context) -> dict[str, int]:
        if node.tokens:
            ctx.cost(tokens=node.tokens)
        match node.ends:
            case "slow":
                await asyncio.sleep(0.3)
            case "flaky" if ctx.attempt < 3:
                raise Recoverable("not yet")
            case "raises":
                raise ValueError("as sketched")
            case "fatal":
                raise Fatal("as sketched")
            case "later":  # only what a later attempt returns passes the verification
                return node.output(given) | {"try": min(2, ctx.attempt)}
            case _:
                pass
        return node.output(given)

    return body


def _policy(name: str, verdict: str) -> Policy:
    says: dict[str, Verdict] = {"allow": allow(), "ask": ask("Sure?"), "deny": deny("as sketched")}
    return Policy(name, lambda asked: says[verdict], stage="post" if name == "after" else "pre")


def _check_of(node: SketchedNode) -> Any:
    def check(asked: Asked, facts: RuleFacts) -> Checked:
        ok = node.ends != "unverified" and asked.output.get("try", 2) == 2
        return Checked("try", ok, "" if ok else "as sketched", {"output.n": asked.output["n"]})

    return check


class SketchedGuards(msgspec.Struct, frozen=True):
    """The edges out of a node. Implements `core.rules.Guards`."""

    edges: tuple[SketchedEdge, ...]

    def choose(self, facts: RuleFacts, failure: Failure | None) -> EdgeChoice:
        """Return the edges that are taken."""
        choice = EdgeChoice([], {}, {})
        for edge in self.edges:
            if bool(edge.on_error) != (failure is not None):
                continue
            if failure is not None and not edge.takes(failure.type, failure.kind):
                continue
            if edge.guard is not None:
                number = len(failure.type) if failure is not None else self._number(edge.source, facts)
                choice.verdicts[edge.target] = edge.is_open(number)
                choice.reads["number"] = number
            if choice.verdicts.get(edge.target, True):
                choice.to.append(edge.target)
        return choice

    def _number(self, source: str, facts: RuleFacts) -> int:
        """Return the number of the source, which is 0 if an operator has skipped it without one."""
        told = facts.fresh.get(source) or facts.values["outputs"].get(source) or {"n": 0}
        return int(told["n"])


class SketchedWiring(msgspec.Struct, frozen=True):
    """How a node gets the numbers of the outputs that reached it. Implements `core.rules.Wiring`."""

    sources: tuple[str, ...]
    capability: str = "sketched@1"
    title: str = ""
    catches: tuple[str, ...] = ()

    def resolve(self, facts: RuleFacts) -> Any:
        """Return the numbers of the outputs that exist."""
        outputs = facts.values["outputs"]
        return [outputs[source]["n"] for source in self.sources if source in outputs]

    def decode(self, given: Any) -> Any:
        return given

    def accept(self, given: Any) -> Any:
        return given

    def encode(self, returned: Any) -> Any:
        return returned

    def key(self, facts: RuleFacts) -> str | None:
        return None


# --- drawing -----------------------------------------------------------------------------------------------


def draw_plan(
    luck: random.Random,
    *,
    least: int = 5,
    most: int = 40,
    handled: bool = False,
    judged: float = 0.3,
    slow: bool = False,
) -> PlanSketch:
    """Draw a random plan. With `handled`, an edge takes every failure that its run meets. `judged` is the share of its nodes that
    rules judge. With `slow`, some nodes wait by an asyncio timer, for a simulated world.
    """
    while True:
        sketch = _draw(luck, luck.randint(least, most), handled=handled, judged=judged, slow=slow)
        if not handled or sketch.expect().completes:
            return sketch


def _draw(luck: random.Random, count: int, *, handled: bool, judged: float, slow: bool) -> PlanSketch:
    fails = luck.choice((0.0, 0.1, 0.25))
    ways: list[Ends] = ["returns", "returns", "returns", "slow" if slow else "returns", "flaky", "later"]
    nodes = [_draw_node(luck, number, ways, fails, judged) for number in range(count)]
    edges: list[SketchedEdge] = []
    for number, node in enumerate(nodes[1:], 1):
        earlier = luck.sample(
            nodes[max(0, number - 8) : number], k=min(number, luck.choice((0, 1, 1, 2, 2, 3)))
        )
        edges += [_draw_edge(luck, source, node) for source in earlier]
    if handled:
        edges += _draw_rescues(nodes, edges)
    return PlanSketch(tuple(nodes), tuple(edges), luck.choice((1, 2, 64)))


def _draw_node(
    luck: random.Random, number: int, ways: list[Ends], fails: float, judged: float
) -> SketchedNode:
    ends: Ends = luck.choice(ways)
    if luck.random() < fails:
        ends = luck.choice(("raises", "fatal", "unverified", "denied", "refused"))
    return SketchedNode(
        name=f"n{number}",
        number=luck.randrange(PRIME),
        every=luck.random() < 0.6,
        ends=ends,
        pre=luck.choice(("allow", "ask")) if luck.random() < judged and ends != "denied" else "",
        post=luck.choice(("allow", "ask")) if luck.random() < judged and ends != "refused" else "",
        verifies=luck.random() < judged,
        idempotent=luck.random() < 0.85 or ends in _RETRIED,
        tokens=luck.choice((0, 1, 2)),
    )


def _draw_edge(luck: random.Random, source: SketchedNode, target: SketchedNode) -> SketchedEdge:
    modulus = luck.choice((2, 3, 5))
    guard = (modulus, luck.randrange(modulus + 1)) if luck.random() < 0.4 else None
    caught: tuple[str, ...] = ()
    if luck.random() < (0.7 if source.ends in FAILURES else 0.05):
        failure, kind = FAILURES.get(source.ends, ("ValueError", "partial"))
        caught = luck.choice((("*",), (failure,), (kind,), (failure, "TimeoutError"), ("KeyError",)))
    return SketchedEdge(source.name, target.name, guard, caught)


def _draw_rescues(nodes: list[SketchedNode], edges: list[SketchedEdge]) -> list[SketchedEdge]:
    """Return more edges to the last node, so that every failure is taken."""
    last, out = nodes[-1].name, {edge.source for edge in edges if edge.target == nodes[-1].name}
    return [
        SketchedEdge(node.name, last, None, (FAILURES[node.ends][0],))
        for node in nodes[:-1]
        if node.ends in FAILURES and node.name not in out
    ]
