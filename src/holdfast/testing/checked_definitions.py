"""What the stored definition of a flow says about its nodes and edges, for the checker: decoded from JSON by this module alone,
so that a mistake of the engine's topology is not repeated here. Nothing here reads a store.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast.testing.checked import unpack

_ENDS = ("START", "END")


class CheckedFlow:
    """The nodes, edges and rules of a flow, as its stored definition has them. Edges are those between nodes, without those of
    `START` and `END`.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        nodes: dict[str, dict[str, Any]] = told.get("nodes", {})
        plan: dict[str, Any] = told.get("plan", {})
        self.is_plan = bool(plan)
        self.judged = {name: frozenset(one.get("judged", ())) for name, one in nodes.items()}
        self.once = {name for name, one in nodes.items() if not one.get("idempotent", True)}
        """The nodes that must not be called again without a decision."""
        self.every = {name for name, one in nodes.items() if one.get("join") == "every"}
        self.sources: dict[str, list[str]] = {name: [] for name in nodes}
        self.targets: dict[str, list[str]] = {name: [] for name in nodes}
        for source, target in told.get("edges", ()):
            if source not in _ENDS and target not in _ENDS:
                self.sources[target].append(source)
                self.targets[source].append(target)
        edges = plan.get("edges", ())
        self.guarded = {(edge["from"], edge["to"]) for edge in edges if edge.get("guard")}
        self.catching = {(edge["from"], edge["to"]) for edge in edges if edge.get("on_error")}
        self.says_guards = "edges" in plan or "tasks" in plan
        """True if the definition says which edges have guards and which take failures."""

    def wanted(self, name: str) -> int:
        """Return how many of the edges to a node of a plan must be taken for it to run."""
        sources = self.sources.get(name, ())
        return len(sources) if name in self.every else min(1, len(sources))

    def must_lead(self, name: str, verdicts: dict[str, bool], *, caught: bool) -> set[str] | None:
        """Return the nodes that a node of a plan must lead to, given what its guards have decided; None if a guard that counts
        has no verdict.
        """
        mine = [
            target for target in self.targets.get(name, ()) if ((name, target) in self.catching) == caught
        ]
        guarded = [target for target in mine if (name, target) in self.guarded]
        if not caught and any(target not in verdicts for target in guarded):
            return None
        return {target for target in mine if verdicts.get(target, target not in guarded)}


def shape_of(body: bytes) -> CheckedFlow:
    """Decode a stored definition. Raises `ValueError` for data that cannot be decoded."""
    told = json.loads(unpack(body))
    if not isinstance(told, dict):
        raise ValueError("the definition is not a JSON object")  # noqa: TRY004 - the stored value is at fault
    return CheckedFlow(told)
