"""What a node spends: the costs that it reports, and the budget of its run, which must not be spent when something begins."""

from __future__ import annotations

from typing import Any

from holdfast.core.run_state import RunState
from holdfast.core.situation import explain_budget
from holdfast.errors import BudgetExceeded, ContextError


def refuse_over_budget(state: RunState) -> None:
    """Raise `BudgetExceeded` if the budget of a run is spent."""
    if state.budget is not None and state.is_over_budget:
        raise BudgetExceeded(explain_budget(state))


def check_cost(node: str, usd: Any, tokens: Any) -> tuple[float, int]:
    """Return the amounts of a cost that a node reports. Raises `ContextError`."""
    fits = (
        isinstance(usd, (int, float))
        and not isinstance(usd, bool)
        and 0 <= usd < 1e12
        and isinstance(tokens, int)
        and not isinstance(tokens, bool)
        and 0 <= tokens < 2**40
    )
    if not fits:
        raise ContextError(
            f"node {node!r}: ctx.cost(usd={usd!r}, tokens={tokens!r}) is not a valid cost; give amounts of 0 or more"
        )
    return float(usd), tokens
