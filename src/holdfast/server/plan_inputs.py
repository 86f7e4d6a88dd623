"""What the nodes of a plan are given: their input as the plan has it, with what its references stand for in a run.

The log does not have it, because nothing that an input refers to changes after its node has begun, except by an edit of the run.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.definition import Definition
from holdfast.core.rules import RuleFacts
from holdfast.core.run_state import RunState
from holdfast.errors import StateError
from holdfast.plan.references import fill, parse_template
from holdfast.reading.state_changes import Value, describe


def input_of(definition: Definition, state: RunState, node: str) -> dict[str, Value] | None:
    """Return the input of a node of a plan; None if the plan has no such node, or if it refers to what does not exist yet."""
    part = next((one for one in definition.plan.get("tasks", ()) if one["id"] == node), None)
    if part is None:
        return None
    caught = [
        edge["from"]
        for edge in definition.plan.get("edges", ())
        if edge["to"] == node and edge.get("on_error")
    ]
    failed = [one.failure for one in reversed(state.warnings) if one.node in caught]
    facts = RuleFacts(values=state.values, now=state.at, error=failed[0] if failed else None)
    try:
        given: Any = fill(parse_template(part.get("input", {})), facts)
    except StateError:
        return None
    fields = given if isinstance(given, dict) else {"input": given}
    return {name: describe(value) for name, value in fields.items()}
