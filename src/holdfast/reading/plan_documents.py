"""Puts the plan of a run together again, as the document that describes it.

The parts of a document are stored in two places: nodes, edges and rules in the definition of the flow, and the data of the one
run in its state. A document that is put together here can be executed again, and makes a flow with the same fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core.budget import Budget
from holdfast.core.definition import Definition
from holdfast.core.events import Values

_ABOUT = ("title", "rationale", "alternatives")
_DATA = ("goal", "context", "policy")


def plan_document(
    definition: Definition, values: Values, budget: Budget | Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the plan of a run with this state and this budget; None if the definition is that of a graph in code. Fields that
    are empty are left out.
    """
    if not definition.plan:
        return None
    stored, about = dict(definition.plan), values.get("about") or {}
    limits = msgspec.to_builtins(budget) if budget is not None else {}
    given = {name: about.get(name) for name in _ABOUT}
    given |= {name: values.get(name) for name in _DATA}
    given |= {"budget": {name: limit for name, limit in limits.items() if limit is not None}}
    return {
        "holdfast": stored.pop("holdfast"),
        **{name: value for name, value in given.items() if value not in (None, "", [], {})},
        **stored,
    }
