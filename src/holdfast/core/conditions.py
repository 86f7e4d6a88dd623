"""The conditions on the edges of a plan, as its definition has them: a guard, the failures that the edge takes, or both. An edge
of a graph in code has none.
"""

from __future__ import annotations

import msgspec

from holdfast.core.definition import Definition, Edge

EVERY_FAILURE = "*"


class Condition(msgspec.Struct, frozen=True):
    """When an edge is taken: if its guard is true and, with `errors`, only if its source has failed like that."""

    guard: str = ""
    errors: tuple[str, ...] = ()
    """Classes of failures and types of exceptions; empty for an ordinary edge."""

    @property
    def failures(self) -> str:
        """The failures that the edge takes, in words."""
        return "any failure" if EVERY_FAILURE in self.errors else " or ".join(self.errors)

    def __str__(self) -> str:
        parts = [f"on {self.failures}"] if self.errors else []
        return " ".join([*parts, *([f"if {self.guard}"] if self.guard else [])])


def conditions_of(definition: Definition) -> dict[Edge, Condition]:
    """Return the conditions of the edges that have one."""
    found = {}
    for edge in definition.plan.get("edges", ()):
        on_error = edge.get("on_error", False)
        errors = (EVERY_FAILURE,) if on_error is True else tuple(on_error or ())
        if edge.get("guard") or errors:
            found[Edge(edge["from"], edge["to"])] = Condition(edge.get("guard") or "", errors)
    return found
