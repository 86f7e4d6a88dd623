"""What a diagnosis says about a run that has stopped at a limit: its budget is spent, or nothing in its scope is left to do."""

from __future__ import annotations

from holdfast.core.situation import Situation
from holdfast.storage.contract import RunStatus


def is_out_of_scope(known: Situation) -> bool:
    """Return whether the engine has paused the run, because nothing in its scope is left to do."""
    said = known.said
    return bool(known.beyond) and said is not None and (said.by, said.reason) == (None, "scope")


def describe_scope(known: Situation) -> str:
    """Say which nodes are due and may not run."""
    names = known.beyond
    return f"everything in its scope is done, and {' and '.join(names)} {'is' if len(names) == 1 else 'are'} not in scope"


def find_wider(known: Situation, status: RunStatus) -> list[tuple[str, tuple[str, ...]]] | None:
    """Return the ways to resume a run with wider limits, each in words and as options; None if no limit has stopped it."""
    if status == "paused" and is_out_of_scope(known):
        scope = tuple(word for name in known.beyond for word in ("--scope", name))
        return [
            (f"let {' and '.join(known.beyond)} run too", scope),
            ("let all nodes run", ("--scope", "*")),
        ]
    is_spent = known.failure is not None and known.failure.type == "BudgetExceeded"
    if status == "failed" and is_spent and known.higher_budget is not None:
        return [("continue with a higher budget", ("--budget", known.higher_budget))]
    return None
