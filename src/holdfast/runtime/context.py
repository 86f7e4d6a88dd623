"""What a node is told about itself: its second argument, if it takes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Context:
    """Who is running: `run_id flow node iteration execution attempt` (and `item`, in a fan-out), and the engine's `resources`."""

    __slots__ = (
        "_is_cancelled",
        "attempt",
        "execution",
        "flow",
        "item",
        "iteration",
        "node",
        "resources",
        "run_id",
    )

    def __init__(
        self,
        *,
        run_id: str,
        flow: str,
        node: str,
        iteration: int,
        execution: int,
        attempt: int,
        item: int | None,
        resources: Mapping[str, Any],
        is_cancelled: Callable[[], bool],
    ) -> None:
        self.run_id = run_id
        self.flow = flow
        self.node = node
        self.iteration = iteration
        self.execution = execution
        self.attempt = attempt
        self.item = item
        self.resources = resources
        self._is_cancelled = is_cancelled

    @property
    def cancelled(self) -> bool:
        """Whether this attempt was cancelled or timed out. A `def` node in a long loop asks this now and then and returns."""
        return self._is_cancelled()

    def __repr__(self) -> str:
        item = f" item {self.item}" if self.item is not None else ""
        return f"<Context {self.run_id} {self.node} {self.iteration}.{self.execution}.{self.attempt}{item}>"
