"""A flow as plain data: what is stored with its runs, drawn, fingerprinted and compared. No functions."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

START = "START"
END = "END"


class ExecutorTraits(msgspec.Struct, frozen=True, kw_only=True):
    """What a graph and an engine have to know about an executor. Neither of them compares names."""

    here: bool
    """It calls functions in the engine's own process. An `async def` is then called on the engine's event loop."""
    by_name: bool = False
    """It finds a function, and the type of the state, by import path: both have to be at the top of a module."""


BUILT_IN_EXECUTORS: dict[str, ExecutorTraits] = {
    "thread": ExecutorTraits(here=True),
    "process": ExecutorTraits(here=False, by_name=True),
}
"""Every engine has these. Others are given to it by name, and are unknown when a graph is compiled."""


class QuestionOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a question node asks, and what becomes of the answer."""

    text: str = ""
    """Empty: a function of the state says it."""
    options: list[str] = []
    answer_schema: dict[str, Any] = {}
    into: str | None = None
    """The field that takes the answer. Without it, only the first option lets the run go on."""
    timeout_s: float | None = None
    on_timeout: str = "fail"


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the engine treats a node."""

    join: Literal["all", "any"] = "all"
    each: bool = False
    limit: int = 16
    idempotent: bool = True
    on_interrupt: Literal["rerun", "ask", "skip"] = "rerun"
    timeout_s: float | None = None
    retry: dict[str, Any] = {}
    agent: str = "engine"
    """Whose work this is, for receipts."""
    approve: str | None = None
    """What is asked before each visit begins; it begins only if the answer is `approve`."""
    question: QuestionOptions | None = None
    """The node is a question: there is no code behind it."""
    safe_to_fail: bool = False
    crash_limit: int = 3
    """Crashes in a row, with nothing kept in between, after which the node is not tried again."""
    executor: str = "thread"
    """Where the function is called, by the name of an executor: in the engine's own process (`thread`; an `async def` on its
    event loop), in one of its own (`process`), or by one that was given to the engine.
    """
    memory_limit: int | None = None
    """Bytes of memory that the node's own process may have."""

    @property
    def gated(self) -> bool:
        """Whether something is asked before a visit begins."""
        return self.approve is not None or self.question is not None


class Edge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A way from one node to the next. Stored as the pair `[source, target]`, without the names of its fields: another
    field would move the stored bytes of every definition.
    """

    source: str
    target: str


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nodes, edges and options of a flow, in the order they were declared."""

    name: str
    nodes: dict[str, NodeOptions]
    edges: list[Edge] = []
    """Plain edges; `START` and `END` are the two ends."""
    branches: dict[str, list[str]] = {}
    """Source of a branch -> its declared targets."""
    schedule: Literal["eager", "layered"] = "eager"
    max_iterations: int = 1000
    max_parallel: int = 64
    state_version: int = 1
    state: dict[str, str] = {}
    """Declared fields of the state -> how updates are merged: `set append merge add` or a custom reducer's name."""

    def arrows(self) -> list[Edge]:
        """Every way the run can go from one node to the next, once each, in the order of declaration."""
        branched = [Edge(source, target) for source, targets in self.branches.items() for target in targets]
        return list(dict.fromkeys([*self.edges, *branched]))
