"""Turn plans into flows: a document into a definition, and a definition into a flow.

The definition of a plan holds tasks, edges and rules, and nothing of the data of one run. `make_flow` builds a flow from it
without `Graph` and without checking it, because it was checked before it was stored: a run is resumed with the stored plan,
and needs only the capabilities.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from holdfast.core.definition import END, START, Definition, Edge, NodeOptions
from holdfast.core.events import Values
from holdfast.core.graph import Flow, FlowSource, Node, Retry
from holdfast.core.rules import Guards, Policy, Verifier
from holdfast.core.state import StateType, append, merge
from holdfast.plan.document import Document, PlanEdge, PolicyRule, RetryRule, Task
from holdfast.plan.judges import make_check, make_policy
from holdfast.plan.registry import Capability, Registry
from holdfast.plan.texts import FORMAT
from holdfast.plan.wiring import EdgesOut, TaskWiring

_Judged: TypeAlias = 'list[Literal["pre", "verify", "post"]]'


class PlanState(msgspec.Struct, kw_only=True):
    """The state of a run of a plan."""

    goal: Any = None
    context: dict[str, Any] = {}
    policy: dict[str, Any] = {}
    outputs: Annotated[dict[str, Any], merge] = {}
    """Task -> its output, if it has one."""
    messages: Annotated[list[Any], append] = []
    about: dict[str, Any] = {}
    """Title, rationale and alternatives of the plan."""


STATE = StateType.of(PlanState)


class _Plan(msgspec.Struct, frozen=True):
    """The part of a document that is stored in a definition."""

    tasks: list[Task]
    edges: list[PlanEdge] = []
    policies: list[PolicyRule] = []
    holdfast: str = FORMAT


def define(registry: Registry, document: Document) -> Definition:
    """Return the definition of a plan that has no problems."""
    plan = _Plan(document.tasks, document.edges, document.policies)
    targets = {edge.target for edge in plan.edges}
    sources = {edge.source for edge in plan.edges}
    return Definition(
        name=registry.name,
        nodes=_Options(registry, plan).of_all(),
        edges=[
            *(Edge(START, task.id) for task in plan.tasks if task.id not in targets),
            *(Edge(edge.source, edge.target) for edge in plan.edges),
            *(Edge(task.id, END) for task in plan.tasks if task.id not in sources),
        ],
        state=STATE.describe(),
        plan={"holdfast": FORMAT, **msgspec.to_builtins(plan)},
    )


def make_flow(
    registry: Registry, definition: Definition, source: FlowSource, document: Document | None = None
) -> Flow[Any]:
    """Return the flow of a plan; with its document, one that brings the input of a new run. Raises `CapabilityMissing`.

    The options of a node are made from the capabilities as they are now, as those of a graph in code are.
    """
    plan = msgspec.convert(definition.plan, _Plan)
    registry.require({task.capability for task in plan.tasks})
    made = _Options(registry, plan)
    options = made.of_all()
    if options != definition.nodes:
        definition = msgspec.structs.replace(definition, nodes=options)
    nodes = {task.id: made.node(task, options[task.id]) for task in plan.tasks}
    guards: dict[str, Guards] = {
        task.id: EdgesOut(task.id, tuple(made.out.get(task.id, ()))) for task in plan.tasks
    }
    return Flow(
        definition=definition,
        nodes=nodes,
        branches={},
        state=STATE,
        upgrades={},
        validate_resume=None,
        description=document.title if document else source.description,
        guards=guards,
        input=_input(document) if document else None,
        options=_run_options(document) if document else None,
        source=source,
    )


def _input(document: Document) -> Values:
    about = {name: getattr(document, name) for name in ("title", "rationale", "alternatives")}
    return {
        "goal": document.goal,
        "context": document.context,
        "policy": document.policy,
        "outputs": {},
        "messages": [],
        "about": {name: value for name, value in about.items() if value},
    }


def _run_options(document: Document) -> dict[str, Any]:
    budget = msgspec.to_builtins(document.budget) if document.budget else {}
    return {"budget": budget} if budget else {}


class _Options:
    """Puts together what a capability, its task, the edges and the rules say about a node."""

    def __init__(self, registry: Registry, plan: _Plan) -> None:
        self.registry = registry
        self.plan = plan
        self.out: dict[str, list[PlanEdge]] = {}
        self.caught: dict[str, list[str]] = {}
        """Task -> the sources of the error edges to it."""
        for edge in plan.edges:
            self.out.setdefault(edge.source, []).append(edge)
            if edge.catches:
                self.caught.setdefault(edge.target, []).append(edge.source)
        self._policies = [(rule.capability, make_policy(rule)) for rule in plan.policies]
        self._rules: dict[str, tuple[tuple[Policy, ...], tuple[Verifier, ...], tuple[Policy, ...]]] = {}

    def of_all(self) -> dict[str, NodeOptions]:
        """Return the options of every task."""
        return {task.id: self._options(task) for task in self.plan.tasks}

    def _options(self, task: Task) -> NodeOptions:
        capability = self.registry.capabilities[task.capability]
        base = capability.node.options
        pre, checks, post = self._rules_of(task.capability)
        judged: _Judged = []
        if pre:
            judged.append("pre")
        if checks or task.verification:
            judged.append("verify")
        if post:
            judged.append("post")
        caught = [name for edge in self.out.get(task.id, ()) for name in edge.catches]
        return msgspec.structs.replace(
            base,
            join="every" if task.join == "every" else "all",
            timeout_s=base.timeout_s if task.timeout_s is None else task.timeout_s,
            retry=base.retry if task.retry is None else _describe(merge_retry(capability, task.retry)),
            on_error=list(dict.fromkeys(caught)),
            judged=judged,
        )

    def node(self, task: Task, options: NodeOptions) -> Node:
        """Return the node of a task."""
        capability = self.registry.capabilities[task.capability]
        base = capability.node
        pre, checks, post = self._rules_of(task.capability)
        return Node(
            name=task.id,
            fn=base.fn,
            options=options,
            retry=base.retry if task.retry is None else merge_retry(capability, task.retry),
            each=None,
            takes_context=base.takes_context,
            is_async=base.is_async,
            wiring=TaskWiring(
                task=task,
                input=capability.input,
                output=capability.output,
                catches=tuple(self.caught.get(task.id, ())),
            ),
            pre=pre,
            checks=(*map(make_check, task.verification), *checks),
            post=post,
        )

    def _rules_of(
        self, capability: str
    ) -> tuple[tuple[Policy, ...], tuple[Verifier, ...], tuple[Policy, ...]]:
        """Return the rules that apply to a capability: those in Python first, then those of the plan, which can only add to
        them.
        """
        found = self._rules.get(capability)
        if found is None:
            policies = [
                *self.registry.policies_for(capability),
                *(policy for pattern, policy in self._policies if fnmatchcase(capability, pattern)),
            ]
            pre = tuple(policy for policy in policies if policy.stage == "pre")
            post = tuple(policy for policy in policies if policy.stage == "post")
            found = self._rules[capability] = (pre, tuple(self.registry.verifiers_for(capability)), post)
        return found


def merge_retry(capability: Capability, rule: RetryRule) -> Retry:
    """Return the retry of a capability with what a task says about it. Raises `ValueError`."""
    base = capability.node.retry
    said = {
        name: value
        for name in ("attempts", "backoff", "factor", "max_delay", "jitter")
        if (value := getattr(rule, name)) is not None
    }
    kept = {
        name: getattr(base, name) for name in ("attempts", "backoff", "factor", "max_delay", "jitter", "on")
    }
    named = {"on": (), "named": tuple(rule.on)} if rule.on else {}
    return Retry(**{**kept, **said, **named})


def _describe(retry: Retry) -> dict[str, Any]:
    """Return a retry as options of a node store it, as `core/graph` does."""
    described: dict[str, Any] = {
        name: getattr(retry, name) for name in ("attempts", "backoff", "factor", "max_delay", "jitter")
    }
    names = [*(kind.__qualname__ for kind in retry.on), *retry.named]
    return {**described, "on": names} if names else described
