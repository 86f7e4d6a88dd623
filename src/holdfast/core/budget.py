"""`Budget`: what a run may cost in total, and the arithmetic of what is spent and what is left.

What a run has spent is read from its log (`RunState.spent`), so that neither a crash nor a resume or a rewind resets it. Once a
limit is reached, nothing more begins in the run: `decide` starts no visit and no item, and a context no step and no child run.
What runs is not stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec.structs import force_setattr

from holdfast.errors import SettingError, did_you_mean

LIMITS = ("usd", "tokens", "active_s")
"""The names of the limits that a budget can have."""
LIMIT_MAX = 1e15
_DIGITS = 9
"""Decimal places to which amounts are rounded before they are compared: ten times 0.1 reaches a limit of 1."""
_UNITS = {"usd": "usd", "tokens": "tokens", "active_s": "seconds of activity"}


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a run may cost in total: US dollars and tokens, as its nodes report them with `ctx.cost`, with those of its child
    runs; and the seconds that its own nodes are active. None is no limit.
    """

    usd: Annotated[float, msgspec.Meta(gt=0)] | None = None
    tokens: Annotated[int, msgspec.Meta(gt=0)] | None = None
    active_s: Annotated[float, msgspec.Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        for name, limit in self.limits():
            is_whole = isinstance(limit, int) and not isinstance(limit, bool)
            fits = is_whole or (isinstance(limit, float) and name != "tokens")
            if not fits or not 0 < limit < LIMIT_MAX:
                number = "whole number" if name == "tokens" else "number"
                raise SettingError(
                    f"Budget({name}={limit!r}) is not a limit: give a {number} above 0, or leave {name} out"
                )
            if name != "tokens":
                force_setattr(self, name, float(limit))
        if not any(True for _ in self.limits()):
            raise SettingError("Budget() limits nothing: give usd=…, tokens=… or active_s=…")

    def limits(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the amount of each limit that is set."""
        for name in LIMITS:
            limit = getattr(self, name)
            if limit is not None:
                yield name, limit

    def __str__(self) -> str:
        """Return the budget as the command line has it: `usd=5,tokens=1000`."""
        return ",".join(f"{name}={number(limit)}" for name, limit in self.limits())


class Spent(msgspec.Struct, frozen=True):
    """What a run has spent of what a budget can limit."""

    usd: float
    tokens: int
    active_s: float


class BudgetLeft(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of each limit of a run's budget: 0 if nothing is, None if there is no such limit."""

    usd: float | None = None
    tokens: int | None = None
    active_s: float | None = None

    def __str__(self) -> str:
        """Return what is left as `Budget` does: `usd=5,tokens=1000`."""
        amounts = ((name, getattr(self, name)) for name in LIMITS)
        return ",".join(f"{name}={number(amount)}" for name, amount in amounts if amount is not None)


def reached(budget: Budget, spent: Spent) -> list[str]:
    """Return the names of the limits that are reached."""
    return [
        name for name, limit in budget.limits() if round(limit - getattr(spent, name), _DIGITS) <= 0
    ]  # fmt: skip


def left_of(budget: Budget, spent: Spent) -> BudgetLeft:
    """Return what is left of a budget."""
    return BudgetLeft(
        **{
            name: max(0, round(limit - getattr(spent, name), _DIGITS)) for name, limit in budget.limits()
        }
    )  # fmt: skip


def explain(run_id: str, budget: Budget, spent: Spent, file: str) -> str:
    """Say which limits are reached, and how the run continues. `file` is the file of its flow."""
    said = " and ".join(_compare(name, budget, spent) for name in reached(budget, spent))
    return (
        f"run {run_id!r} {said}, so nothing more begins in it. To continue, resume it with a higher budget: "
        f"`holdfast resume {run_id} {file} --budget {raised(budget, spent)}`"
    )


def _compare(name: str, budget: Budget, spent: Spent) -> str:
    limit = number(getattr(budget, name))
    return f"has spent {number(getattr(spent, name))} {_UNITS[name]} of a budget of {limit}"


def raised(budget: Budget, spent: Spent) -> Budget:
    """Return a higher budget, for a suggestion: each limit that is reached is doubled until there is as much left as it was."""
    higher: dict[str, Any] = {
        name: limit if name not in reached(budget, spent) else _round_up(limit + getattr(spent, name), name)
        for name, limit in budget.limits()
    }
    return Budget(**higher)


def _round_up(amount: float, name: str) -> float:
    """Round an amount up to two digits, because it is only a suggestion."""
    step = 10.0 ** (len(f"{int(amount)}") - 2) if amount >= 10 else 0.01
    rounded = -(-round(amount, _DIGITS) // step) * step
    return int(rounded) if name == "tokens" else round(rounded, 2)


def number(amount: float) -> str:
    """Return an amount in digits, without those that say nothing."""
    return f"{amount:.12g}" if isinstance(amount, float) and abs(amount) < 1e12 else f"{int(amount)}"


def check_budget(given: Any, said: str = "budget") -> Budget | None:
    """Return the budget that a caller has given, as a `Budget` or as a mapping of its fields. Raises `SettingError`."""
    if given is None or isinstance(given, Budget):
        return given
    if not isinstance(given, Mapping):
        raise SettingError(f"{said}={given!r} is not a budget: give hf.Budget(usd=…, tokens=…, active_s=…)")
    for name in given:
        if name not in LIMITS:
            near = did_you_mean(str(name), LIMITS) or f"; it limits {', '.join(LIMITS)}"
            raise SettingError(f"{said}: a budget has no limit {name!r}{near}")
    return Budget(**given)


def plain(budget: Budget) -> dict[str, Any]:
    """Return a budget as plain data, as the log has it."""
    return dict(budget.limits())
