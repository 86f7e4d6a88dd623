"""The definition of a flow as plain data, without functions: it is stored with runs, drawn, fingerprinted and compared."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

START = "START"
END = "END"


class ExecutorTraits(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of an executor that a graph and an engine need to know, so that neither checks for names of executors."""

    here: bool
    """True if the executor calls functions in the engine's own process; an `async def` is then called on its event loop."""
    by_name: bool = False
    """True if the executor finds a function, and the type of the state, by import path; both must then be defined at the top
    level of a module."""
    at_once: int | None = None
    """How many calls the executor makes at the same time, at most: the engine lets further calls wait. None: as many as begin;
    for the built-in executors, the options of the engine say it."""


BUILT_IN_EXECUTORS: dict[str, ExecutorTraits] = {
    "thread": ExecutorTraits(here=True),
    "process": ExecutorTraits(here=False, by_name=True),
}
"""The executors that every engine has. Others are given to an engine by name, and are unknown when a graph is compiled."""


class QuestionOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of a question node: what it asks, and what happens with the answer."""

    text: str = ""
    """The text of the question; empty if a function of the state returns the text."""
    options: list[str] = []
    answer_schema: dict[str, Any] = {}
    into: str | None = None
    """The field of the state that gets the answer. Without it, only the first option lets the run continue."""
    timeout_s: float | None = None
    on_timeout: str = "fail"


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of a node: how the engine treats it."""

    join: Literal["all", "any", "every"] = "all"
    """When a node with several incoming edges starts. `every`: only if each of these edges is taken (in plans)."""
    each: bool = False
    label: bool = False
    """True if a function names the items of the fan-out."""
    limit: int = 16
    idempotent: bool = True
    on_interrupt: Literal["rerun", "ask", "skip"] = "rerun"
    timeout_s: float | None = None
    retry: dict[str, Any] = {}
    agent: str = "engine"
    """The name of the agent that does this work, for receipts."""
    approve: str | None = None
    """The question that is asked before each visit; the visit begins only if the answer is `approve`."""
    question: QuestionOptions | None = None
    """Set if the node is a question node, which has no function."""
    safe_to_fail: bool = False
    crash_limit: int = 3
    """The node is not tried again after this many crashes in a row in which it kept no new result and received nothing."""
    executor: str = "thread"
    """The name of the executor that calls the function: `thread` calls it in the engine's own process (an `async def` on its
    event loop), `process` in a process of its own; other executors are given to the engine.
    """
    memory_limit: int | None = None
    """How many bytes of memory the node's own process may use."""
    calls: str | None = None
    """The name of the flow of which the node starts one child run per visit, or per item; None for any other node."""
    on_error: list[str] = []
    """The failures for good that edges out of the node take: failure classes, names of exception types, or `*` for all of them
    (but for a denial)."""
    judged: list[Literal["pre", "verify", "post"]] = []
    """Where rules judge a visit: policies before it begins, verification and policies before its result is used."""

    @property
    def gated(self) -> bool:
        """True if a question must be answered, or a policy asked, before a visit of the node begins."""
        return self.approve is not None or self.question is not None or "pre" in self.judged


class Edge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An edge from one node to the next. Stored as the pair `[source, target]`, without the names of its fields: adding a field
    would change the stored bytes of every definition.
    """

    source: str
    target: str


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nodes, edges and options of a flow, in the order in which they were declared."""

    name: str
    nodes: dict[str, NodeOptions]
    edges: list[Edge] = []
    """Edges that are not part of a branch; `START` and `END` are the two ends of the flow."""
    branches: dict[str, list[str]] = {}
    """Source of a branch -> its declared targets."""
    schedule: Literal["eager", "layered"] = "eager"
    max_iterations: int | None = 1000
    """How often a run may reach one node; None for no limit."""
    max_parallel: int = 64
    state_version: int = 1
    state: dict[str, str] = {}
    """Declared field of the state -> how updates are merged: `set`, `append`, `merge`, `add` or a custom reducer's name."""
    plan: dict[str, Any] = {}
    """The plan that the flow was made from, without the data that belongs to one run (goal, context, policy data, budget); empty
    for a graph in code."""

    def arrows(self) -> list[Edge]:
        """Return all edges, including those of branches, without duplicates and in the order of declaration."""
        branched = [Edge(source, target) for source, targets in self.branches.items() for target in targets]
        return list(dict.fromkeys([*self.edges, *branched]))
