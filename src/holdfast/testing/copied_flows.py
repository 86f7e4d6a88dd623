"""Copies of flows with other functions in their nodes, for the tools that watch what an engine calls.

The copy of a plan's flow also has a copy of its source, because an engine makes the flow of a stored plan again, from the source.
Invariant: a copy has the fingerprint of the original; either can resume a run of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from holdfast.core.definition import Definition
from holdfast.core.graph import Flow, FlowSource, Node
from holdfast.core.state import StateType

S = TypeVar("S")
ChangeNode: TypeAlias = Callable[[Node], Node]


def copy_flow(flow: Flow[S], change: ChangeNode) -> Flow[S]:
    """Return a copy of the flow in which `change` has replaced every node."""
    source = CopiedSource(flow.source, change) if flow.source is not None else None
    return _copy(flow, change, source)


def _copy(flow: Flow[S], change: ChangeNode, source: FlowSource | None) -> Flow[S]:
    twin = Flow(
        definition=flow.definition,
        nodes={name: change(node) for name, node in flow.nodes.items()},
        branches=flow.branches,
        state=flow.state,
        upgrades=flow.upgrades,
        validate_resume=flow.validate_resume,
        description=flow.description,
        guards=flow.guards,
        input=flow.input,
        options=flow.options,
        source=source,
    )
    twin.item_codecs, twin.called = flow.item_codecs, flow.called
    return twin


class CopiedSource:
    """A source of flows that changes the nodes of the flows that another source makes. It remembers only what it has made itself,
    so that it knows no plan at first, as a process that was restarted.
    """

    def __init__(self, source: FlowSource, change: ChangeNode) -> None:
        self._source = source
        self._change = change
        self._made: dict[str, Flow[Any]] = {}

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def description(self) -> str:
        return self._source.description

    @property
    def called(self) -> tuple[Flow[Any], ...]:
        return self._source.called

    @property
    def nodes(self) -> Mapping[str, Node]:
        return {name: self._change(node) for name, node in self._source.nodes.items()}

    @property
    def state(self) -> StateType[Any]:
        return self._source.state

    def forget(self) -> None:
        """Forget every flow that was made, as a process that is restarted."""
        self._made.clear()

    def made(self, fingerprint: str) -> Flow[Any] | None:
        """Return the flow that was made from the definition with this fingerprint; None if it was not made yet."""
        return self._made.get(fingerprint)

    def current(self, flow: Flow[Any]) -> Flow[Any]:
        """Return the flow itself: a test registers no rules while it runs."""
        return flow

    def flow(self, definition: Definition, fingerprint: str) -> Flow[Any]:
        """Make the flow of a stored definition, and remember it. Raises `CapabilityMissing`."""
        if fingerprint not in self._made:
            made = self._source.flow(definition, fingerprint)
            self._made[fingerprint] = _copy(made, self._change, self)
        return self._made[fingerprint]
