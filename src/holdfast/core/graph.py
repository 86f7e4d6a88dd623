"""Build a workflow: a `Graph` is compiled into a `Flow`, which never changes.

A flow has two parts. Its **definition** is plain data (nodes, edges, options): it is stored with the runs, drawn, fingerprinted
and compared, and it is all that `decide` needs. Its functions (of nodes, routers, `each`) are only stored here; nothing in `core`
calls them.
"""

from __future__ import annotations

import inspect
import itertools
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, overload

import msgspec

from holdfast.core import answers, difference, validate
from holdfast.core.budget import Budget
from holdfast.core.codec import Codec
from holdfast.core.definition import (
    BUILT_IN_EXECUTORS,
    END,
    START,
    Definition,
    Edge,
    ExecutorTraits,
    NodeOptions,
    QuestionOptions,
)
from holdfast.core.events import Values
from holdfast.core.policies import policy_problems, with_policies
from holdfast.core.rules import Guards, Policy, Verifier, Wiring
from holdfast.core.signatures import (
    argument_type,
    element_type,
    is_a,
    is_typed_in,
    returned_field,
    takes_context,
    takes_one,
    takes_one_or_two,
)
from holdfast.core.state import StateType
from holdfast.core.topology import Topology
from holdfast.errors import GraphError, did_you_mean

S = TypeVar("S")
NodeFn: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=NodeFn)
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741

__all__ = ["END", "START", "Branch", "Flow", "Graph", "Node", "Retry"]


class Retry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often and when a failed attempt is retried.

    `attempts` counts the failures of a visit over its whole life: neither a resume nor a crash resets the count; None: no limit.
    The wait before attempt n+1 is `backoff * factor ** (n - 1)` seconds, at most `max_delay`, randomly longer or shorter by up to
    the fraction `jitter`. Without `on`, only *recoverable* failures are retried; with `on`, exactly those exception types.
    """

    attempts: int | None = 3
    backoff: float = 1.0
    factor: float = 2.0
    max_delay: float = 60.0
    jitter: float = 0.1
    on: tuple[type[BaseException], ...] = ()
    named: tuple[str, ...] = ()
    """As `on`, by name: failure classes, and names of exception types. Plans use this."""

    def __post_init__(self) -> None:
        if self.attempts is not None and (type(self.attempts) is not int or self.attempts < 1):
            raise ValueError(
                f"Retry(attempts={self.attempts!r}): must be a whole number, at least 1 (no retry), or None (no limit)"
            )
        for name in ("backoff", "factor", "max_delay", "jitter"):
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < 1e10:
                raise ValueError(f"Retry({name}={given!r}): must be a number that is not negative")


class FlowCall(msgspec.Struct, frozen=True, kw_only=True):
    """How a node calls another flow; the node's function returns the input of the child run."""

    flow: Any
    """The flow to call; None if the node calls the flow that it belongs to."""
    output: Callable[[Any], Any] | None
    """A function of the child's final state that returns the update; None if the node changes nothing."""
    queue: str | None = None
    priority: int = 0
    labels: Mapping[str, str] | None = None
    run_timeout: float | None = None
    budget: Budget | None = None


class Node(msgspec.Struct, frozen=True):
    """A node of a flow: a function, and the options that say how the engine treats it."""

    name: str
    fn: NodeFn
    options: NodeOptions
    retry: Retry
    each: NodeFn | None
    takes_context: bool
    is_async: bool
    streams: bool = False
    """True if the function is an async generator, which yields chunks."""
    asks: NodeFn | None = None
    """A function of the state that returns the question to ask before a visit begins."""
    calls: FlowCall | None = None
    """Set if the node calls another flow."""
    label: NodeFn | None = None
    """A function of an item of a fan-out that returns the name of the item in views and lists."""
    wiring: Wiring | None = None
    """How the node of a plan gets its input and gives its output; None for a graph in code: a node gets the state."""
    pre: tuple[Policy, ...] = ()
    """The policies that decide whether a visit may begin."""
    checks: tuple[Verifier, ...] = ()
    """The verification of what the function returns."""
    post: tuple[Policy, ...] = ()
    """The policies that decide whether the result may be used."""
    is_plain: bool = False
    """True if `fn` is a coroutine function that takes only the state. Derived, but a field, because every step reads it."""
    is_ruled: bool = False
    """True if the node belongs to a plan, or if rules judge its result. Derived, for the same reason."""
    is_careful: bool = False
    """True if start and end of the node are saved at once, whatever the durability: it is not idempotent, or rules judge it."""

    def __post_init__(self) -> None:
        careful = not self.options.idempotent or bool(self.options.judged)
        msgspec.structs.force_setattr(self, "is_careful", careful)
        plain = self.is_async and not (self.takes_context or self.streams)
        msgspec.structs.force_setattr(self, "is_plain", plain)
        msgspec.structs.force_setattr(self, "is_ruled", bool(self.wiring or self.checks or self.post))


class Branch(msgspec.Struct, frozen=True):
    """A routing function, and the nodes that it may choose."""

    source: str
    router: Callable[[Any], str | Sequence[str]]
    targets: tuple[str, ...]


_CELL_AGAIN = (
    "a notebook cell that adds nodes was run again; begin that cell with a new graph: graph = Graph(…)"
)


class Graph(Generic[S]):
    """The builder of a flow. Every method that adds something returns the graph, or the function if it is used as a decorator."""

    def __init__(
        self,
        name: str,
        state: type[S] = dict,  # type: ignore[assignment]
        *,
        version: int = 1,
        upgrades: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] | None = None,
        validate_resume: Callable[[S], Any] | None = None,
        description: str = "",
    ) -> None:
        self.name = name
        self.description = description
        self.state: StateType[S] = StateType.of(state)
        self.version = version
        self.upgrades = dict(upgrades or {})
        self.validate_resume = validate_resume
        self._nodes: dict[str, Node] = {}
        self._edges: dict[Edge, None] = {}
        self._branches: list[Branch] = []
        self._problems: list[str] = []
        self._repeats: list[str] = []
        """Messages about edges and branches that were added twice."""
        self._is_repeated = False
        """True if a node was added again, as by a notebook cell that was run twice."""

    if not typing.TYPE_CHECKING:  # a type checker reports unknown methods by itself

        def __getattr__(self, name: str) -> Any:
            ours = validate.OF_OTHERS.get(name)
            told = f"Graph has no {name}; {ours}" if ours else f"'Graph' object has no attribute {name!r}"
            raise AttributeError(told, name=None if ours else name, obj=self)

    @overload
    def node(self, fn: F, /) -> F: ...

    @overload
    def node(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        idempotent: bool = True,
        on_interrupt: Literal["rerun", "ask", "skip"] | None = None,
        each: Callable[[S], Iterable[Any]] | None = None,
        label: Callable[[Any], str] | None = None,
        limit: int = 16,
        join: Literal["all", "any"] = "all",
        approve: str | Callable[[S], str | None] | None = None,
        agent: str = "engine",
        safe_to_fail: bool = False,
        crash_limit: int = 3,
        executor: str = "thread",
        memory_limit: int | None = None,
    ) -> Callable[[F], F]: ...

    def node(
        self,
        fn: NodeFn | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        idempotent: bool = True,
        on_interrupt: Literal["rerun", "ask", "skip"] | None = None,
        each: Callable[[S], Iterable[Any]] | None = None,
        label: Callable[[Any], str] | None = None,
        limit: int = 16,
        join: Literal["all", "any"] = "all",
        approve: str | Callable[[S], str | None] | None = None,
        agent: str = "engine",
        safe_to_fail: bool = False,
        crash_limit: int = 3,
        executor: str = "thread",
        memory_limit: int | None = None,
    ) -> Any:
        """Add a node: `fn(state)` or `fn(state, ctx)`, `def` or `async def`; with `each`, `fn(item)` or `fn(item, ctx)`.

        The function returns a partial update, a whole state, or None. With `idempotent=False` it is never run twice without
        asking: it is not retried by default, and after a crash inside it a person decides. `approve="Publish?"` (or a function
        of the state that returns the text, or None if there is nothing to ask) asks this question before each visit; the visit
        begins only if the answer is `approve`. If a node that is `safe_to_fail` fails, the run continues without its result. A
        node that has crashed its process `crash_limit` times in a row, without keeping or receiving anything in between, is not
        tried again.

        `executor="process"` calls the function in a process of its own, which is really killed on a timeout or a cancel. If that
        process dies, or needs more than `memory_limit` bytes, only the node fails. Any other name is that of an executor that was
        given to the engine: `Engine(executors={…})`.

        An `async def` that yields is streamed: the yielded values are chunks, and the last one is the result if it is a partial
        update or a whole state.
        """

        def add(fn: NodeFn) -> NodeFn:
            called = name or str(getattr(fn, "__name__", ""))
            self._problems.extend(_use_problems(called, fn, retry, idempotent, each, label))
            chosen = (
                Retry(attempts=retry) if type(retry) is int else retry if isinstance(retry, Retry) else None
            )
            options = NodeOptions(
                timeout_s=timeout,
                idempotent=idempotent,
                on_interrupt=on_interrupt or ("rerun" if idempotent else "ask"),
                each=each is not None,
                label=label is not None,
                limit=limit,
                join=join,
                retry=_describe(chosen) if chosen else {},
                approve=f"{called}?" if callable(approve) else approve,
                agent=agent,
                safe_to_fail=safe_to_fail,
                crash_limit=crash_limit,
                executor=executor,
                memory_limit=memory_limit,
            )
            asks = approve if callable(approve) else None
            self._add(called, fn, options, retry=chosen, each=each, label=label, asks=asks)
            return fn

        return add if fn is None else add(fn)

    def _add(
        self,
        name: str,
        fn: NodeFn,
        options: NodeOptions,
        *,
        retry: Retry | None,
        each: Any,
        label: Any,
        asks: Any,
    ) -> None:
        node = Node(
            name=name,
            fn=fn,
            options=options,
            retry=retry or (Retry() if options.idempotent else Retry(attempts=1)),
            each=each,
            takes_context=takes_context(fn),
            is_async=is_a(inspect.iscoroutinefunction, fn),
            streams=is_a(inspect.isasyncgenfunction, fn),
            asks=asks,
            label=label,
        )
        built_in = BUILT_IN_EXECUTORS.get(str(options.executor))
        if built_in is not None:
            self._problems.extend(_call_problems(node, self.state.type, built_in))
        if name in self._nodes and is_typed_in(fn) and is_typed_in(self._nodes[name].fn):
            self._is_repeated = True
        else:
            self._problems.extend(validate.node_problems(name, options, taken=name in self._nodes))
        self._nodes.setdefault(name, node)

    @overload
    def call(
        self,
        name: str,
        flow: Flow[R] | Graph[R],
        *,
        input: Callable[[S], R | Mapping[str, Any]],
        output: Callable[[R], S | Mapping[str, Any] | None] | None = None,
        each: None = None,
        timeout: float | None = None,
        join: Literal["all", "any"] = "all",
        approve: str | Callable[[S], str | None] | None = None,
        agent: str = "engine",
        safe_to_fail: bool = False,
        queue: str | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        run_timeout: float | None = None,
        budget: Budget | None = None,
        retry: None = None,
    ) -> Graph[S]: ...

    @overload
    def call(
        self,
        name: str,
        flow: Flow[R] | Graph[R],
        *,
        input: Callable[[I], R | Mapping[str, Any]],
        output: Callable[[R], Mapping[str, Any] | None] | None = None,
        each: Callable[[S], Iterable[I]],
        label: Callable[[I], str] | None = None,
        limit: int = 16,
        timeout: float | None = None,
        join: Literal["all", "any"] = "all",
        approve: str | Callable[[S], str | None] | None = None,
        agent: str = "engine",
        safe_to_fail: bool = False,
        queue: str | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        run_timeout: float | None = None,
        budget: Budget | None = None,
        retry: None = None,
    ) -> Graph[S]: ...

    def call(
        self,
        name: str,
        flow: Flow[Any] | Graph[Any],
        *,
        input: Any,
        output: Any = None,
        each: Any = None,
        label: Any = None,
        limit: int = 16,
        timeout: float | None = None,
        join: Literal["all", "any"] = "all",
        approve: str | Callable[[Any], str | None] | None = None,
        agent: str = "engine",
        safe_to_fail: bool = False,
        queue: str | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        run_timeout: float | None = None,
        budget: Budget | None = None,
        retry: Any = None,
    ) -> Graph[S]:
        """Add a node that calls a flow: each visit starts a child run with the input that `input(state)` returns, and waits for
        its end without occupying a process, thread or worker. `output(result)` gets the child's final state and returns the
        update, as a node's function does; without it, the node changes nothing. With `each`, there is one child run per item, at
        most `limit` at once, and `input` gets the item. Pass the graph itself to let the flow call itself.

        If the child fails or is cancelled, the node fails, and is not retried: retries belong to the nodes of the child. If the
        child has not ended after `timeout` seconds, the node fails and the child is cancelled. `queue`, `priority`, `labels`,
        `run_timeout` and `budget` (default: what is left of the caller's) are those of the child run; the other options are those
        of `node`.
        """
        called = self.name if flow is self else flow.name if isinstance(flow, Flow) else None
        node = Node(
            name=name,
            fn=input,
            options=NodeOptions(
                timeout_s=timeout,
                each=each is not None,
                label=label is not None,
                limit=limit,
                join=join,
                approve=f"{name}?" if callable(approve) else approve,
                agent=agent,
                safe_to_fail=safe_to_fail,
                calls=called or "",
            ),
            retry=Retry(),
            each=each,
            takes_context=True,
            is_async=True,
            asks=approve if callable(approve) else None,
            label=label,
            calls=FlowCall(
                flow=None if flow is self else flow,
                output=output,
                queue=queue,
                priority=priority,
                labels=labels,
                run_timeout=run_timeout,
                budget=budget,
            ),
        )
        self._problems.extend(_flow_call_problems(node, called, flow, retry))
        self._problems.extend(validate.node_problems(name, node.options, taken=name in self._nodes))
        self._nodes.setdefault(name, node)
        return self

    def ask(
        self,
        name: str,
        question: str | Callable[[S], str | None],
        *,
        options: Iterable[str] = (),
        schema: Any = None,
        into: str | None = None,
        timeout: float | None = None,
        on_timeout: str = "fail",
        join: Literal["all", "any"] = "all",
        agent: str = "engine",
    ) -> Graph[S]:
        """Add a question node: the run waits there until a person answers. It has no code that could run twice. If `question` is
        a function of the state that returns None, there is nothing to ask: the node completes at once and changes nothing.

        The answer must be one of `options`, or match `schema` (a type), or else the type of the field `into`, which gets the
        answer. Without `into`, the run continues only if the first option is chosen (the default options are `approve` and
        `reject`); any other answer is a refusal, which is fatal. If no answer comes within `timeout` seconds, `on_timeout`
        decides: `fail` fails the node, and one of the options counts as the answer.
        """
        listed = list(options) or ([] if into is not None or schema is not None else ["approve", "reject"])
        asked = QuestionOptions(
            text=question if isinstance(question, str) else "",
            options=listed,
            answer_schema=self._answer_schema(name, listed, schema, into),
            into=into,
            timeout_s=timeout,
            on_timeout=on_timeout,
        )
        node = Node(
            name=name,
            fn=question if callable(question) else _nothing,
            options=NodeOptions(question=asked, join=join, agent=agent),
            retry=Retry(attempts=1),
            each=None,
            takes_context=False,
            is_async=False,
        )
        self._problems.extend(validate.node_problems(name, node.options, taken=name in self._nodes))
        if into is not None and self.state.fields and into not in self.state.fields:
            near = did_you_mean(into, self.state.fields)
            self._problems.append(
                f"question {name!r} puts its answer into {into!r}, which {self.state.name} does not have{near}"
            )
        self._nodes.setdefault(name, node)
        return self

    def _answer_schema(self, name: str, options: list[str], schema: Any, into: str | None) -> dict[str, Any]:
        """Return the JSON Schema that an answer must match: of the given type, or of the field that gets the answer."""
        declared = schema
        if declared is None and not options and into in self.state.fields:
            declared = self.state.fields[into].codec.type
        if declared is None or options:
            return {}
        try:
            return answers.schema_of(declared)
        except GraphError as fault:
            if schema is not None:
                self._problems.extend(f"question {name!r}: {problem}" for problem in fault.problems)
            return {}

    def edge(self, source: str | NodeFn, target: str | NodeFn) -> Graph[S]:
        """Add an edge: when `source` completes, the run continues with `target`."""
        edge = Edge(_name(source), _name(target))
        if edge in self._edges:
            self._repeats.append(
                f"the edge from {edge.source!r} to {edge.target!r} was added twice; remove one"
            )
        else:
            self._edges[edge] = None
        return self

    def chain(self, *nodes: str | NodeFn) -> Graph[S]:
        """Add the edges `nodes[0] -> nodes[1] -> …`."""
        for source, target in itertools.pairwise(nodes):
            self.edge(source, target)
        return self

    def branch(
        self,
        source: str | NodeFn,
        router: Callable[[S], str | Sequence[str]],
        to: Iterable[str | NodeFn],
    ) -> Graph[S]:
        """Add a branch: when `source` completes, `router(state)` returns the name of the next node, or a list of names, out of
        `to`.

        A branch from `START` chooses where a run begins: its router gets the input. It is called once, before the run is
        recorded; if it raises, no run is recorded.
        """
        added = Branch(_name(source), router, tuple(_name(target) for target in to))
        if any(branch.source == added.source for branch in self._branches):
            self._repeats.append(f"{added.source!r} has two branches; put both choices into one router")
        else:
            self._branches.append(added)
        return self

    def compile(
        self,
        *,
        schedule: Literal["eager", "layered"] = "eager",
        max_iterations: int | None = 1000,
        max_parallel: int = 64,
        policies: Iterable[Policy] = (),
    ) -> Flow[S]:
        """Verifier the graph and turn it into a flow. Raises `GraphError` with all problems at once.

        `max_iterations` limits how often a run may reach one node; with None there is no limit, and a loop in which a node can
        wait (a question, a child run, a function with `ctx`) needs no END. `max_parallel` limits how many nodes of a run are
        executed at once. `policies` decide whether visits may begin, or their results be used (`hf.Policy`).
        """
        rules = list(policies)
        nodes = with_policies(self._nodes, rules)
        definition = Definition(
            name=self.name,
            nodes={name: node.options for name, node in nodes.items()},
            edges=list(self._edges),
            branches={branch.source: list(branch.targets) for branch in self._branches},
            schedule=schedule,
            max_iterations=max_iterations,
            max_parallel=max_parallel,
            state_version=self.version,
            state=self.state.describe(),
        )
        problems = [
            *self._problems,
            *([_CELL_AGAIN] if self._is_repeated else self._repeats),
            *policy_problems(rules, {name: node.each is not None for name, node in self._nodes.items()}),
            *validate.problems(
                definition, waiting={name for name, node in nodes.items() if node.takes_context}
            ),
            *validate.upgrade_problems(self.version, self.upgrades),
        ]
        described: object = self.description
        if not isinstance(described, str):
            problems.append(f"description={described!r} is not text; give a sentence")
        if problems:
            raise GraphError(self.name, problems)
        return Flow(
            definition=definition,
            nodes=nodes,
            branches={branch.source: branch for branch in self._branches},
            state=self.state,
            upgrades=dict(self.upgrades),
            validate_resume=self.validate_resume,
            description=self.description,
        )


class Flow(Generic[S]):
    """A compiled graph: immutable, thread-safe, reusable by any number of runs."""

    __slots__ = (
        "branches",
        "called",
        "definition",
        "definition_json",
        "description",
        "fingerprint",
        "guards",
        "input",
        "item_codecs",
        "nodes",
        "options",
        "plain_routes",
        "source",
        "state",
        "topology",
        "upgrades",
        "validate_resume",
    )

    def __init__(
        self,
        *,
        definition: Definition,
        nodes: dict[str, Node],
        branches: dict[str, Branch],
        state: StateType[S],
        upgrades: dict[int, Callable[[dict[str, Any]], dict[str, Any]]],
        validate_resume: Callable[[S], Any] | None,
        description: str = "",
        guards: dict[str, Guards] | None = None,
        input: Values | None = None,
        options: dict[str, Any] | None = None,
        source: FlowSource | None = None,
    ) -> None:
        self.definition = definition
        self.description = description
        """What the flow does, for people and agents that choose a flow. Not part of the definition: it changes nothing."""
        self.topology = Topology.of(definition)
        self.fingerprint = difference.fingerprint(definition)
        self.definition_json = msgspec.json.encode(definition)
        """The definition as JSON; a store keeps it once per fingerprint, and gets it with every new run."""
        self.guards = guards
        """The edges out of each node, if the flow is a plan; None for a graph in code."""
        self.input = input
        """What a run of this plan begins with: a plan brings its own input. None for a graph in code, and for a plan that was
        read from a store."""
        self.options = options or {}
        """The options that a plan brings for its run."""
        self.source = source
        """What makes the flow of a plan from a stored definition, for the engine that executes its run."""
        self.nodes = nodes
        self.branches = branches
        self.state = state
        self.upgrades = upgrades
        self.validate_resume = validate_resume
        self.item_codecs = {
            name: Codec.of(item_type(node, state)) for name, node in nodes.items() if node.each is not None
        }
        self.called: tuple[Flow[Any], ...] = tuple(
            {
                node.calls.flow.name: node.calls.flow
                for node in nodes.values()
                if node.calls is not None and node.calls.flow is not None
            }.values()
        )
        """The other flows that nodes of this flow call. An engine that knows this flow knows them too."""
        self.plain_routes: dict[str, tuple[str, ...]] = dict.fromkeys((START, *nodes), ())
        for edge in definition.edges:
            self.plain_routes[edge.source] += (edge.target,)

    @property
    def name(self) -> str:
        return self.definition.name

    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input, as a dict of fields: for forms, APIs, and agents that call the flow as a tool."""
        return self.state.json_schema()

    def __repr__(self) -> str:
        return f"<Flow {self.name!r}: {len(self.nodes)} nodes, {self.fingerprint[:12]}>"

    def _repr_html_(self) -> str:
        """The picture of the flow, which a notebook shows for it."""
        from holdfast.core import svg  # few programs draw

        return svg.draw(self.definition)


class FlowSource(Protocol):
    """Makes the flows of runs from their stored definitions: the capabilities that plans may use. An engine accepts it like a
    flow, and `name` is the flow of all these runs.
    """

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def called(self) -> tuple[Flow[Any], ...]: ...

    @property
    def state(self) -> StateType[Any]: ...

    @property
    def nodes(self) -> Mapping[str, Node]:
        """A node for each capability, to check whether an engine can call it."""

    def made(self, fingerprint: str) -> Flow[Any] | None:
        """Return the flow that was made from the definition with this fingerprint; None if it was not made yet."""

    def current(self, flow: Flow[Any]) -> Flow[Any]:
        """Return a flow of a plan with the rules that are registered now: it may have been made before some of them."""

    def flow(self, definition: Definition, fingerprint: str) -> Flow[Any]:
        """Make the flow of a stored definition, and remember it. Its fingerprint may be another one, because options of
        capabilities may have changed. Raises `CapabilityMissing`.
        """


def without_functions(definition: Definition) -> Flow[Any]:
    """Return a flow that stands for one whose functions are not known here: it can be decided about, but none of its nodes can be
    called, and its state is plain data.
    """
    nodes = {
        name: Node(
            name=name,
            fn=_nothing,
            options=options,
            retry=Retry(),
            each=None,
            takes_context=False,
            is_async=False,
        )
        for name, options in definition.nodes.items()
    }
    return Flow(
        definition=definition,
        nodes=nodes,
        branches={},
        state=StateType.of(dict),
        upgrades={},
        validate_resume=None,
    )


def _nothing(state: Any) -> str:
    """The function of a question node whose text is fixed, and of the nodes of `without_functions`."""
    return ""


def _name(node: str | NodeFn) -> str:
    return node if isinstance(node, str) else getattr(node, "__name__", repr(node))


def _describe(retry: Retry) -> dict[str, Any]:
    described = {
        name: getattr(retry, name) for name in ("attempts", "backoff", "factor", "max_delay", "jitter")
    }
    if retry.on:
        described["on"] = [cls.__qualname__ for cls in retry.on]
    return described


def _use_problems(name: str, fn: Any, retry: Any, idempotent: Any, each: Any, label: Any) -> Iterator[str]:
    """Yield the mistakes in a call of `Graph.node` that would otherwise show only when the node runs."""
    if not callable(fn):
        yield f"node {name!r} is {fn!r}, which cannot be called; give a function"
    elif not takes_one_or_two(fn):
        what = "fn(item) or fn(item, ctx)" if each is not None else "fn(state) or fn(state, ctx)"
        yield f"node {name!r} is called as {what}, but its function does not accept these arguments"
    if not isinstance(idempotent, bool):
        yield f"node {name!r} has idempotent={idempotent!r}; use True or False"
    if retry is not None and type(retry) is not int and not isinstance(retry, Retry):
        yield f"node {name!r} has retry={retry!r}; give a number of tries or Retry(…)"
    if each is not None and not callable(each):
        yield f"node {name!r} has each={each!r}; give a function of the state that lists the items"
    if label is not None and (not callable(label) or not takes_one(label)):
        yield f"node {name!r} has label={label!r:.80}; give a function of the item: label=lambda item: …"
    elif is_a(inspect.iscoroutinefunction, label):
        yield f"node {name!r} has an async def as label; give a plain function, which names the item from what it has"


def item_type(node: Node, state: StateType[Any]) -> Any:
    """Return the type of the items of a fan-out: that of the argument of the node's function or, if it has no annotation, that of
    the field which `each` returns. `Any` if both are unknown.
    """
    declared = argument_type(node.fn)
    if declared is not Any or node.each is None:
        return declared
    field = state.fields.get(returned_field(node.each))
    return element_type(field.codec.type) if field is not None else Any


def _flow_call_problems(node: Node, called: str | None, flow: Any, retry: Any) -> Iterator[str]:
    """Yield the mistakes in a call of `Graph.call` that would otherwise show only when the node runs."""
    name, call = node.name, node.calls
    assert call is not None
    if called is None:
        what = "a graph that is not compiled" if isinstance(flow, Graph) else f"{flow!r:.80}"
        yield f"node {name!r} calls {what}, which is not a flow; give what graph.compile() returns, or this graph itself"
    if isinstance(flow, Flow) and flow.source is not None:
        yield f"node {name!r} calls a plan, which brings its own input; call it in the function of a node: await ctx.call(plan)"
    of = "item" if node.each is not None else "state"
    for option, fn, given in (
        ("input", node.fn, of),
        ("output", call.output, "result"),
        ("each", node.each, "state"),
        ("label", node.label, "item"),
    ):
        if fn is None and option != "input":
            continue
        if not callable(fn) or not takes_one(fn):
            yield f"node {name!r} has {option}={fn!r:.80}; give a function of the {given}: {option}=lambda {given}: …"
        elif is_a(inspect.iscoroutinefunction, fn):
            yield f"node {name!r} has an async def as {option}; give a plain function, and do async work in a node of the flow"
    if retry is not None:
        yield (
            f"node {name!r} calls a flow, so retry={retry!r} has no meaning: each attempt would get the same end of the same "
            "child run; give retry= to the nodes of that flow"
        )
    yield from validate.child_problems(
        name, call.queue, call.priority, call.labels, call.run_timeout, call.budget
    )


def executor_problems(node: Node, state: type[Any], traits: ExecutorTraits) -> list[str]:
    """Return the reasons why an executor with these traits cannot call a node. Used for executors that are given to an engine;
    `Graph` checks the built-in ones.
    """
    return [
        *_call_problems(node, state, traits),
        *validate.executor_problems(node.name, node.options, traits),
    ]


def _call_problems(node: Node, state: type[Any], traits: ExecutorTraits) -> Iterator[str]:
    """Yield the reasons why an executor cannot call the function of a node: chunks cannot be yielded from another process, and an
    executor that works by name must be able to import the function and the type of the state.
    """
    name, executor = node.name, node.options.executor
    if node.streams and not traits.here:
        yield f"node {name!r} yields chunks, which executor={executor!r} does not support; pass them to ctx.emit(…) and return"
    if not traits.by_name:
        return
    for what, found in (("its function", node.fn), ("the type of its state", state)):
        named = str(getattr(found, "__qualname__", "<nothing>"))
        if "<" in named or inspect.ismethod(found):
            yield (
                f"node {name!r} has executor={executor!r}, and another process cannot find {what} ({named}) by its name; "
                "define it at the top of a module, not as a lambda, a method of an object or inside a function"
            )
        elif is_typed_in(found):
            yield (
                f"node {name!r} has executor={executor!r}, and {what} ({named}) was defined interactively, where "
                "no other process can find it; put it into a file"
            )
