"""Capabilities: what plans may call. `Capabilities` makes flows from plan documents, and from plans that a store has.

An engine, a worker and the command line accept an object of this class wherever they accept a flow: all runs of its plans
have its name as their flow. The invariant: a flow that `plan` returns has no problems; `flow` makes the same flow from the
stored definition without checking it again, and needs nothing but the capabilities.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from holdfast.core.codec import Codec
from holdfast.core.definition import END, START, Definition
from holdfast.core.graph import Flow, Graph, Node, Retry
from holdfast.core.rules import Asked, Verdict
from holdfast.core.signatures import is_a, takes_one
from holdfast.errors import CodecError, GraphError, PlanError, Problem
from holdfast.plan import checking, compiling, document, judges, schemas
from holdfast.plan.document import Document, Source
from holdfast.plan.registry import Capability, Registry, Ruled

F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V", bound=Callable[[Asked], Verdict])
C = TypeVar("C", bound=Callable[[Asked], bool | str])

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}@[A-Za-z0-9][A-Za-z0-9.]{0,15}")
_FLOWS_KEPT = 64
"""How many flows a source remembers. Making one of 1,000 tasks takes about 20 ms."""


class Capabilities:
    """What plans may call, and the policies and verifiers that apply to every plan. `name` is the flow of all their runs."""

    called: tuple[Flow[Any], ...] = ()
    state = compiling.STATE

    def __init__(self, name: str, *, description: str = "") -> None:
        self.name = name
        self.description = description
        self._registry = Registry(name)
        self._made: OrderedDict[str, Flow[Any]] = OrderedDict()
        _probe(name, name, _nothing, {})

    def __repr__(self) -> str:
        return f"<Capabilities {self.name!r}: {', '.join(self._registry.capabilities) or 'none'}>"

    # --- registering ----------------------------------------------------------------------------------

    def capability(
        self,
        name: str,
        *,
        description: str = "",
        retry: Retry | int | None = None,
        timeout: float | None = None,
        idempotent: bool = True,
        on_interrupt: Literal["rerun", "ask", "skip"] | None = None,
        approve: str | None = None,
        agent: str = "engine",
        safe_to_fail: bool = False,
        crash_limit: int = 3,
        executor: str = "thread",
        memory_limit: int | None = None,
    ) -> Callable[[F], F]:
        """Register a capability: `fn(input)` or `fn(input, ctx)`, `def` or `async def`, whose input and output are annotated.

        `name` has a version: `refund@2`. The options are those of `Graph.node`. Raises `GraphError`.
        """
        options: dict[str, Any] = {
            "retry": retry,
            "timeout": timeout,
            "idempotent": idempotent,
            "on_interrupt": on_interrupt,
            "approve": approve,
            "agent": agent,
            "safe_to_fail": safe_to_fail,
            "crash_limit": crash_limit,
            "executor": executor,
            "memory_limit": memory_limit,
        }

        def add(fn: F) -> F:
            self._registry.capabilities[name] = self._make(
                name, fn, options, description or inspect.getdoc(fn) or ""
            )
            self._made.clear()
            return fn

        return add

    def _make(self, name: str, fn: Any, options: dict[str, Any], description: str) -> Capability:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise GraphError(
                self.name,
                [
                    f"capability {name!r} must be named as name@version, as in 'refund@2'; write @shop.capability('refund@2')"
                ],
            )
        if name in self._registry.capabilities:
            raise GraphError(
                self.name,
                [
                    (
                        f"capability {name!r} is registered twice; give the second one another version, or remove one of them "
                        f"(in a notebook, first run the cell with plan.Capabilities({self.name!r}) again)"
                    )
                ],
            )
        if callable(options["approve"]):
            raise GraphError(
                self.name,
                [
                    f"capability {name!r} has a function as approve; give a text, or decide with @{self.name}.policy(…)"
                ],
            )
        node = _probe(self.name, name, fn, options)
        if node.streams:
            raise GraphError(
                self.name,
                [f"capability {name!r} yields; pass the chunks to ctx.emit(…), and return its output"],
            )
        given, returned = self._annotations(name, fn)
        return Capability(name=name, node=node, input=given, output=returned, description=description)

    def _annotations(self, name: str, fn: Any) -> tuple[Codec[Any], Codec[Any]]:
        """Return how the input and the output of a capability are converted, from its annotations."""
        try:
            hints = typing.get_type_hints(inspect.unwrap(fn), include_extras=True)
        except (NameError, TypeError) as fault:
            raise GraphError(
                self.name,
                [
                    (
                        f"the annotations of capability {name!r} cannot be resolved ({fault}); define its types at the top "
                        "of the module"
                    )
                ],
            ) from fault
        first = next(iter(inspect.signature(fn).parameters))
        codecs = []
        for what, key in (("its input", first), ("what it returns", "return")):
            if key not in hints:
                shown = f"{first}: …" if key == first else "-> …"
                raise GraphError(
                    self.name,
                    [
                        (
                            f"capability {name!r} does not declare the type of {what}; annotate it: {shown} "
                            "(Any, if it may be anything)"
                        )
                    ],
                )
            try:
                codecs.append(Codec.of(hints[key]))
            except CodecError as fault:
                raise GraphError(self.name, [f"capability {name!r}: {what}: {fault}"]) from fault
        return codecs[0], codecs[1]

    def policy(
        self, id: str, *, stage: Literal["pre", "post"] = "pre", capability: str = "*"
    ) -> Callable[[V], V]:
        """Register a policy, which applies to the tasks of every plan whose capability matches: `def fn(asked) -> Verdict`,
        which returns `plan.allow()`, `plan.ask(question)` or `plan.deny(reason)`. It must be quick. Raises `GraphError`.
        """

        def add(fn: V) -> V:
            self._refuse_rule("policy", id, fn, self._registry.policies)
            if stage not in ("pre", "post"):
                raise GraphError(self.name, [f"policy {id!r} has stage={stage!r}; use 'pre' or 'post'"])
            self._registry.policies[id] = Ruled(capability, judges.make_python_policy(id, stage, fn))
            self._made.clear()
            return fn

        return add

    def verifier(self, id: str, *, capability: str = "*") -> Callable[[C], C]:
        """Register a verifier, which judges the outputs of every task whose capability matches: `def fn(asked)`, which returns
        True, or False, or the reason why not as a text. It must be quick. Raises `GraphError`.
        """

        def add(fn: C) -> C:
            self._refuse_rule("verifier", id, fn, self._registry.verifiers)
            self._registry.verifiers[id] = Ruled(capability, judges.make_verifier(id, fn))
            self._made.clear()
            return fn

        return add

    def _refuse_rule(self, kind: str, id: str, fn: Any, taken: Mapping[str, Any]) -> None:
        problem = None
        if not isinstance(id, str) or not id or len(id) > 100:
            problem = f"{kind} {id!r} has no name; give it one: @{self.name}.{kind}('large')"
        elif id in taken:
            problem = f"{kind} {id!r} is registered twice; rename or remove one of them"
        elif not callable(fn) or not takes_one(fn):
            problem = f"{kind} {id!r} is not a function of one argument; write def {kind}(asked): …"
        elif is_a(inspect.iscoroutinefunction, fn) or is_a(inspect.isasyncgenfunction, fn):
            problem = f"{kind} {id!r} is an async def; write a plain, quick def, and do slow work in a task"
        if problem:
            raise GraphError(self.name, [problem])

    # --- plans ----------------------------------------------------------------------------------------

    def check(self, source: Source) -> list[Problem]:
        """Return every problem of a plan, each with its path; an empty list if it can be executed."""
        return self._parse(source)[1]

    def plan(self, source: Source) -> Flow[Any]:
        """Return a plan as a flow that can be run. Raises `PlanError` with all problems."""
        parsed, problems = self._parse(source)
        if problems or parsed is None:
            raise PlanError(f"the plan {parsed.title!r}" if parsed and parsed.title else "the plan", problems)
        return compiling.make_flow(self._registry, compiling.define(self._registry, parsed), self, parsed)

    def _parse(self, source: Source) -> tuple[Document | None, list[Problem]]:
        problems: list[Problem] = []
        try:
            plain = document.read(source)
        except PlanError as fault:
            return None, list(fault.problems)
        parsed = document.parse(plain, problems)
        problems += checking.find_problems(self._registry, parsed, plain)
        return parsed, problems

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the plans that these capabilities can execute, with their inputs."""
        return schemas.describe(self._registry)

    # --- flows of stored plans --------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, Node]:
        """A node for each capability, to check whether an engine can call it."""
        return {name: known.node for name, known in self._registry.capabilities.items()}

    @property
    def descriptions(self) -> Mapping[str, str]:
        """Capability -> what it does, for authors of plans."""
        return {name: known.description for name, known in self._registry.capabilities.items()}

    def made(self, fingerprint: str) -> Flow[Any] | None:
        """Return the flow that was made from the definition with this fingerprint, if it is remembered."""
        found = self._made.get(fingerprint)
        if found is not None:
            self._made.move_to_end(fingerprint)
        return found

    def flow(self, definition: Definition, fingerprint: str) -> Flow[Any]:
        """Make the flow of a stored plan, and remember it. Raises `CapabilityMissing`, which names all that are missing."""
        found = self.made(fingerprint)
        if found is not None:
            return found
        flow = compiling.make_flow(self._registry, definition, self)
        self._made[fingerprint] = flow
        if len(self._made) > _FLOWS_KEPT:
            self._made.popitem(last=False)
        return flow


def _nothing(given: Any) -> None:
    """Stand in for a capability where only the name of the source is checked."""


def _probe(source: str, name: str, fn: Any, options: dict[str, Any]) -> Node:
    """Return a function with its options as a node. They are checked as `Graph.node` checks them."""
    alias = re.sub(r"[^A-Za-z0-9_.-]", ".", str(name)) or "capability"
    graph: Graph[Any] = Graph(source)
    graph.node(name=alias, **options)(fn)
    try:
        return graph.chain(START, alias, END).compile().nodes[alias]
    except GraphError as fault:
        told = [problem.replace(f"node {alias!r}", f"capability {name!r}").replace("fn(state)", "fn(input)")
                .replace("fn(state, ctx)", "fn(input, ctx)") for problem in fault.problems]  # fmt: skip
        raise GraphError(source, told) from None
