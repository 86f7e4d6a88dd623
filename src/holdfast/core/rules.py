"""What rules are asked, and what they answer: guards on edges, policies, and the verification of results.

Rules are user code, or expressions of a plan. This module has only the data and the protocols: the runtime calls rules
(`runtime/judging`, `runtime/outcomes`), records what they decide, and never asks again about what is recorded. A rule sees plain
data, and has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from holdfast.core.events import Checked, Failure, NodeName, Values

Stage: TypeAlias = Literal["pre", "post"]
"""When a policy is asked: before a visit begins, or before its result is used."""


class RuleFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a rule or a reference of a plan may read. Nothing here is a copy, so a reader must not change it."""

    values: Values
    """The state of the run. In the run of a plan: `goal`, `context`, `policy`, `outputs`, `messages` and `about`."""
    now: float
    """The time of the event that records what the rule decides."""
    fresh: Mapping[NodeName, Any] = {}
    """Node -> output that is not in `values` yet: of the node that has just ended, or of its whole layer."""
    error: Failure | None = None
    """The failure that led here by an error edge."""
    input: Any = None
    output: Any = None


class Asked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a policy or a verifier in Python is asked about: one visit of a node. All data is plain JSON data."""

    run_id: str
    node: NodeName
    """The name of the node; in a plan, it is the id that the plan gives."""
    iteration: int = 1
    input: Any = None
    """What the function gets; for a graph in code, the state, as a dict of fields."""
    output: Any = None
    """What the node returned; None before it was called. For a graph in code, its update of the state."""
    capability: str = ""
    """What the plan calls, as in `charge@2`; empty for a graph in code."""
    title: str = ""
    goal: Any = None
    context: Any = None
    """What the author of the plan wrote there. A policy must not trust it more than its author."""
    policy: Any = None
    usd: float = 0.0
    """What the run has cost so far, with its child runs."""
    tokens: int = 0
    active_s: float = 0.0

    def copy(self) -> Asked:
        """Return the same with data of its own, for a function that may change what it gets."""
        own = {name: msgspec.to_builtins(getattr(self, name)) for name in _DATA_ASKED_ABOUT}
        return msgspec.structs.replace(self, **own)


_DATA_ASKED_ABOUT = ("input", "output", "goal", "context", "policy")


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The answer of a policy: made by `allow`, `ask` or `deny`."""

    verdict: Literal["allow", "ask", "deny"]
    reason: str = ""
    """Why; for `ask`, the question."""
    reads: dict[str, Any] = {}
    """The values that the verdict is based on, by name, for the log."""


def allow(reason: str = "", *, reads: Mapping[str, Any] | None = None) -> Verdict:
    """Let the visit begin, or its result be used."""
    return Verdict("allow", reason, dict(reads or {}))


def ask(question: str, *, reads: Mapping[str, Any] | None = None) -> Verdict:
    """Let a person or an agent decide: the run waits for the answer to this question."""
    return Verdict("ask", question, dict(reads or {}))


def deny(reason: str = "", *, reads: Mapping[str, Any] | None = None) -> Verdict:
    """Fail the visit. Nothing of it has begun (`pre`), or its result is kept and not used (`post`)."""
    return Verdict("deny", reason, dict(reads or {}))


class Policy(msgspec.Struct, frozen=True, gc=False):
    """A rule that decides whether a visit may begin, or whether its result may be used. Give it to `compile(policies=[…])`."""

    id: str
    judge: Callable[[Asked], Verdict]
    """Called with an `Asked`; must be quick, and have no effect. It may be called again for a visit that is not recorded."""
    stage: Stage = "pre"
    node: str = "*"
    """The nodes that it applies to: a name, or a pattern with `*` and `?`."""
    rule: Callable[[RuleFacts], Verdict] | None = None
    """The policy of a plan, an expression: called in place of `judge`."""

    def applies_to(self, node: NodeName) -> bool:
        """Return whether the policy is asked about this node."""
        return fnmatchcase(node, self.node)


class Verifier(msgspec.Struct, frozen=True, gc=False):
    """One rule of the verification of a node's result."""

    id: str
    check: Callable[[Asked, RuleFacts], Checked]


class EdgeChoice(msgspec.Struct, frozen=True, gc=False):
    """The edges out of a node that are taken."""

    to: list[NodeName]
    verdicts: dict[NodeName, bool] = {}
    """Target -> the verdict of its guard; edges without a guard are left out."""
    reads: dict[str, Any] = {}


class Guards(Protocol):
    """The edges out of a node of a plan, with their guards."""

    def choose(self, facts: RuleFacts, failure: Failure | None) -> EdgeChoice:
        """Return the edges that are taken: the ordinary ones or, after a failure for good, those that take this failure. Raises
        `GuardError`.
        """
        ...


class Wiring(Protocol):
    """How a node of a plan gets its input and gives its output."""

    @property
    def capability(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def catches(self) -> tuple[NodeName, ...]:
        """The sources of the error edges to the node."""
        ...

    def resolve(self, facts: RuleFacts) -> Any:
        """Return the input as plain data. Raises `StateError` if something that it refers to does not exist."""
        ...

    def decode(self, given: Any) -> Any:
        """Return the input as the function gets it. Raises `StateError`."""
        ...

    def accept(self, given: Any) -> Any:
        """Return an output that a person gives in place of the node's, from plain data, as the function would return it. Raises
        `StateError`.
        """
        ...

    def encode(self, returned: Any) -> Any:
        """Return what the function returned as plain data. Raises `StateError` if it does not fit the declared type."""
        ...

    def key(self, facts: RuleFacts) -> str | None:
        """Return the idempotency key that the plan chooses for the node; None if it chooses none."""
        ...
