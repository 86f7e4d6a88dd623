"""The rules of a plan as the runtime calls them: guards on edges, policies, verification, and how a task gets its input.

Implements the protocols of `core/rules`. A rule in CEL is evaluated over the places that it names, and over nothing else of
the run. A rule that cannot be evaluated fails closed: `GuardError` for an edge, `PolicyError` for a policy or a verification.
"""

from __future__ import annotations

import functools
import logging
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.codec import Codec
from holdfast.core.events import Checked, Failure
from holdfast.core.rules import Asked, Check, Choice, Facts, Policy, Verdict, allow, ask, deny
from holdfast.errors import GuardError, PolicyError, StateError
from holdfast.plan import expressions
from holdfast.plan.document import PlanEdge, PolicyRule, Task, VerificationRule
from holdfast.plan.expressions import Evaluated
from holdfast.plan.references import NOTHING, describe_failure, fill
from holdfast.runtime.clock import SystemClock

KEY_MAX = 200
SLOW_S = 1.0
_NAMED_ONLY = frozenset({"PolicyDenied", "QuestionRefused"})
"""Failures that `on_error: true` does not take: a refusal must be named."""
_clock = SystemClock()
_log = logging.getLogger("holdfast")


def _evaluate(text: str, facts: Facts, **more: Any) -> Evaluated:
    values = facts.values
    outputs: Any = values["outputs"]
    roots = {
        "context": values["context"],
        "policy": values["policy"],
        "goal": values["goal"],
        "outputs": ChainMap(facts.fresh, outputs) if facts.fresh else outputs,  # type: ignore[arg-type]
        "now": facts.now,
        **more,
    }
    error = describe_failure(facts.error)
    if error is not NOTHING:
        roots["error"] = error
    return expressions.evaluate(text, roots)


# --- edges ------------------------------------------------------------------------------------------------


class EdgesOut(msgspec.Struct, frozen=True):
    """The edges out of a task. Implements `core.rules.Guards`."""

    source: str
    edges: tuple[PlanEdge, ...] = ()

    def choose(self, facts: Facts, failure: Failure | None) -> Choice:
        """Return the edges that are taken: the ordinary ones or, after a failure for good, those that take this failure."""
        if failure is not None:
            facts = msgspec.structs.replace(facts, error=failure)
        choice = Choice([], {}, {})
        for edge in self.edges:
            caught = edge.catches
            if bool(caught) != (failure is not None) or (failure is not None and not takes(caught, failure)):
                continue
            if edge.guard is None or self._is_open(edge, facts, choice):
                choice.to.append(edge.target)
        return choice

    def _is_open(self, edge: PlanEdge, facts: Facts, choice: Choice) -> bool:
        assert edge.guard is not None
        found = _evaluate(edge.guard, facts)
        problem = found.problem
        if not problem and not isinstance(found.value, bool):
            problem = "it does not give true or false"
        if problem:
            raise GuardError(
                f"the guard of the edge from {edge.source!r} to {edge.target!r} cannot be evaluated: {problem}. Edit the data "
                "that it reads and resume the run: only this guard is evaluated again"
            )
        choice.verdicts[edge.target] = found.value
        choice.reads.update(found.reads)
        return bool(found.value)


def takes(caught: tuple[str, ...], failure: Failure) -> bool:
    """Return whether an error edge takes a failure: by its class, by its type, or all of them but refusals."""
    name = failure.type.rpartition(".")[2]
    return (
        failure.kind in caught
        or failure.type in caught
        or name in caught
        or ("*" in caught and name not in _NAMED_ONLY)
    )


# --- tasks ------------------------------------------------------------------------------------------------


class TaskWiring(msgspec.Struct, frozen=True, kw_only=True):
    """How a task gets its input and gives its output. Implements `core.rules.Wiring`."""

    task: Task
    template: Any
    input: Codec[Any]
    output: Codec[Any]
    catches: tuple[str, ...] = ()

    @property
    def capability(self) -> str:
        return self.task.capability

    @property
    def title(self) -> str:
        return self.task.title

    def resolve(self, facts: Facts) -> Any:
        """Return the input of a visit as plain data."""
        try:
            return fill(self.template, facts)
        except StateError as fault:
            raise StateError(str(fault), node=self.task.id, field=fault.field) from None

    def decode(self, given: Any) -> Any:
        """Return the input as the capability gets it."""
        return self.input.decode(given, path="input", node=self.task.id)

    def encode(self, returned: Any) -> Any:
        """Return what the capability returned as plain data."""
        return self.output.encode(returned, path="output", node=self.task.id)

    def accept(self, given: Any) -> Any:
        """Return the output that a person gives in place of the capability's, from plain data, as the capability would
        return it.
        """
        return self.output.decode(given, path="output", node=self.task.id)

    def key(self, facts: Facts) -> str | None:
        """Return the idempotency key that the plan chooses for the task; None if it chooses none."""
        text = self.task.idempotency_key
        if text is None:
            return None
        needs_input = any(
            path.root == "input" for path in expressions.check(text, wants=expressions.TEXT).paths
        )
        found = _evaluate(text, facts, **({"input": self.resolve(facts)} if needs_input else {}))
        problem = found.problem
        if not problem and not (isinstance(found.value, str) and 0 < len(found.value) <= KEY_MAX):
            problem = f"it does not give a text of 1 to {KEY_MAX} characters"
        if problem:
            raise StateError(f"idempotency_key: {problem}", node=self.task.id, field="idempotency_key")
        key: str = found.value
        return key


# --- policies and verification ----------------------------------------------------------------------------


def make_policy(rule: PolicyRule) -> Policy:
    """Return a policy of a plan: it allows what its expression is true for."""
    return Policy(
        id=rule.id, judge=_judged_by_rule, stage=rule.stage, rule=functools.partial(_judge_by_rule, rule)
    )


def _judged_by_rule(asked: Asked) -> Verdict:
    raise AssertionError("a policy of a plan is decided by its expression")


def _judge_by_rule(rule: PolicyRule, facts: Facts) -> Verdict:
    more = {"input": facts.input} if rule.stage == "pre" else {"input": facts.input, "output": facts.output}
    found = _evaluate(rule.rule, facts, **more)
    if found.problem or not isinstance(found.value, bool):
        problem = found.problem or "it does not give true or false"
        raise PolicyError(f"its rule cannot be evaluated: {problem}")
    if found.value:
        return allow(reads=found.reads)
    refuse = ask if rule.otherwise == "ask" else deny
    return refuse(rule.reason or f"{rule.id}: {rule.rule}", reads=found.reads)


def make_check(rule: VerificationRule) -> Check:
    """Return a rule of a task's verification: it accepts outputs that its expression is true for."""
    return Check(rule.id, functools.partial(_check_by_rule, rule))


def _check_by_rule(rule: VerificationRule, asked: Asked, facts: Facts) -> Checked:
    found = _evaluate(rule.rule, facts, input=facts.input, output=facts.output)
    if found.problem or not isinstance(found.value, bool):
        problem = found.problem or "it does not give true or false"
        raise PolicyError(f"its rule cannot be evaluated: {problem}")
    reason = "" if found.value else rule.reason or rule.rule
    return Checked(rule.id, found.value, reason, found.reads)


def make_python_policy(id: str, stage: Any, fn: Callable[[Asked], Verdict]) -> Policy:
    """Return a policy in Python that is noticed if it takes long."""
    return Policy(id=id, judge=functools.partial(_timed, "policy", id, fn), stage=stage)


def make_verifier(id: str, fn: Callable[[Asked], bool | str]) -> Check:
    """Return a verifier in Python: it returns True, or False, or the reason why it does not accept an output."""
    return Check(id, functools.partial(_check_in_python, id, fn))


def _check_in_python(id: str, fn: Callable[[Asked], bool | str], asked: Asked, facts: Facts) -> Checked:
    told = _timed("verifier", id, fn, asked)
    if isinstance(told, str) and told:
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
