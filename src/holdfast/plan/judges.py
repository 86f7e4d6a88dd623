"""Policies and verification of plans, as expressions and in Python: what judges visits and their outputs.

A rule that cannot decide fails closed (`PolicyError`): an expression that cannot be evaluated, a function that returns something
else than a verdict. The runtime does the same with a function that raises. No message has data of the run.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from holdfast.core.codec import plain_problem
from holdfast.core.events import Checked
from holdfast.core.rules import Asked, Policy, RuleFacts, Verdict, Verifier, allow, ask, deny
from holdfast.errors import PolicyError
from holdfast.plan.document import PolicyRule, VerificationRule
from holdfast.plan.references import evaluate_over
from holdfast.runtime.clock import SystemClock

SLOW_S = 1.0
_clock = SystemClock()
_log = logging.getLogger("holdfast")


def make_policy(rule: PolicyRule) -> Policy:
    """Return a policy of a plan: it allows what its expression is true for."""
    return Policy(
        id=rule.id, judge=_judged_by_rule, stage=rule.stage, rule=functools.partial(_judge_by_rule, rule)
    )


def _judged_by_rule(asked: Asked) -> Verdict:
    raise AssertionError("a policy of a plan is decided by its expression")


def _judge_by_rule(rule: PolicyRule, facts: RuleFacts) -> Verdict:
    more = {"input": facts.input} if rule.stage == "pre" else {"input": facts.input, "output": facts.output}
    found = evaluate_over(rule.rule, facts, **more)
    if found.problem or not isinstance(found.value, bool):
        problem = found.problem or "it does not give true or false"
        raise PolicyError(f"its rule cannot be evaluated: {problem}")
    if found.value:
        return allow(reads=found.reads)
    refuse = ask if rule.otherwise == "ask" else deny
    return refuse(rule.reason or f"{rule.id}: {rule.rule}", reads=found.reads)


def make_check(rule: VerificationRule) -> Verifier:
    """Return a rule of a task's verification: it accepts outputs that its expression is true for."""
    return Verifier(rule.id, functools.partial(_check_by_rule, rule))


def _check_by_rule(rule: VerificationRule, asked: Asked, facts: RuleFacts) -> Checked:
    found = evaluate_over(rule.rule, facts, input=facts.input, output=facts.output)
    if found.problem or not isinstance(found.value, bool):
        problem = found.problem or "it does not give true or false"
        raise PolicyError(f"its rule cannot be evaluated: {problem}")
    reason = "" if found.value else rule.reason or rule.rule
    return Checked(rule.id, found.value, reason, found.reads)


def make_python_policy(id: str, stage: Any, fn: Callable[[Asked], Verdict]) -> Policy:
    """Return a policy in Python that is noticed if it takes long."""
    return Policy(id=id, judge=functools.partial(_timed, "policy", id, fn), stage=stage)


def make_verifier(id: str, fn: Callable[[Asked], bool | str]) -> Verifier:
    """Return a verifier in Python: it returns True, or False, or the reason why it does not accept an output."""
    return Verifier(id, functools.partial(_check_in_python, id, fn))


def _check_in_python(id: str, fn: Callable[[Asked], bool | str], asked: Asked, facts: RuleFacts) -> Checked:
    told = _timed("verifier", id, fn, asked.copy())
    if isinstance(told, str) and told:
        unfit = plain_problem(told, "the reason")
        if unfit:
            raise PolicyError(f"{unfit[0]} that it returned cannot be recorded: {unfit[1]}")
        return Checked(id, ok=False, reason=told)
    if isinstance(told, bool):
        return Checked(id, ok=told)
    raise PolicyError(
        f"it returned {type(told).__name__}; return True, or False, or the reason why not as a text"
    )


def _timed(kind: str, id: str, fn: Callable[[Asked], Any], asked: Asked) -> Any:
    """Call a rule in Python. The engine executes nothing else meanwhile, so a slow one is reported."""
    began = _clock.now()
    try:
        return fn(asked)
    finally:
        took = _clock.now() - began
        if took >= SLOW_S:
            _log.warning(
                "%s %r took %.1f s for %r, and the engine waited for it; it must be quick: do slow work in a task, and let "
                "the %s look at its output",
                kind, id, took, asked.node, kind,
            )  # fmt: skip
