"""The edges out of tasks with their guards, and how a task gets its input and gives its output. The runtime calls this.

Implements the protocols `Guards` and `Wiring` of `core/rules`. A guard and an input read the places that they name, and nothing
else of the run. A guard that cannot be evaluated raises `GuardError`, whose message has no data.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.codec import Codec
from holdfast.core.decide import catches
from holdfast.core.events import Failure
from holdfast.core.rules import EdgeChoice, RuleFacts
from holdfast.errors import GuardError, StateError
from holdfast.plan import expressions
from holdfast.plan.document import PlanEdge, Task
from holdfast.plan.references import evaluate_over, fill, parse_template

KEY_MAX = 200


class EdgesOut(msgspec.Struct, frozen=True):
    """The edges out of a task. Implements `core.rules.Guards`."""

    source: str
    edges: tuple[PlanEdge, ...] = ()

    def choose(self, facts: RuleFacts, failure: Failure | None) -> EdgeChoice:
        """Return the edges that are taken: the ordinary ones or, after a failure for good, those that take this failure."""
        if failure is not None:
            facts = msgspec.structs.replace(facts, error=failure)
        choice = EdgeChoice([], {}, {})
        for edge in self.edges:
            caught = edge.catches
            if bool(caught) != (failure is not None) or (
                failure is not None and not catches(caught, failure)
            ):
                continue
            if edge.guard is None or self._is_open(edge, facts, choice):
                choice.to.append(edge.target)
        return choice

    def _is_open(self, edge: PlanEdge, facts: RuleFacts, choice: EdgeChoice) -> bool:
        assert edge.guard is not None
        found = evaluate_over(edge.guard, facts)
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


# --- tasks ------------------------------------------------------------------------------------------------


class TaskWiring(msgspec.Struct, kw_only=True):
    """How a task gets its input and gives its output. Implements `core.rules.Wiring`."""

    task: Task
    input: Codec[Any]
    output: Codec[Any]
    catches: tuple[str, ...] = ()
    _template: Any = msgspec.UNSET
    """The input with its references found: at the first visit, because a stored plan of a thousand tasks is opened at once."""

    @property
    def capability(self) -> str:
        return self.task.capability

    @property
    def title(self) -> str:
        return self.task.title

    def resolve(self, facts: RuleFacts) -> Any:
        """Return the input of a visit as plain data."""
        if self._template is msgspec.UNSET:
            self._template = parse_template(self.task.input)
        try:
            return fill(self._template, facts)
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

    def key(self, facts: RuleFacts) -> str | None:
        """Return the idempotency key that the plan chooses for the task; None if it chooses none."""
        text = self.task.idempotency_key
        if text is None:
            return None
        needs_input = any(
            path.root == "input" for path in expressions.check(text, wants=expressions.TEXT).paths
        )
        found = evaluate_over(text, facts, **({"input": self.resolve(facts)} if needs_input else {}))
        problem = found.problem
        if not problem and not (isinstance(found.value, str) and 0 < len(found.value) <= KEY_MAX):
            problem = f"it does not give a text of 1 to {KEY_MAX} characters"
        if problem:
            raise StateError(f"idempotency_key: {problem}", node=self.task.id, field="idempotency_key")
        key: str = found.value
        return key
