"""What to do next: the closed union of what `decide` asks of the engine. Imperative; the engine answers with events."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from holdfast.core.events import Failure, NodeName


class Command(msgspec.Struct, frozen=True, gc=False):
    """Something to do."""


class StartNode(Command, frozen=True):
    """Record `NodeStarted` and, when that is durable, call the node."""

    node: NodeName
    iteration: int
    execution: int
    attempt: int
    took: int
    woken: bool = False


class AskFirst(Command, frozen=True):
    """Ask what is to be asked before a visit begins."""

    node: NodeName
    iteration: int
    execution: int


class FireTimer(Command, frozen=True):
    """The time of a wait has come."""

    key: str


class ExpireQuestion(Command, frozen=True):
    """No answer has come in time."""

    key: str


class QuarantineNode(Command, frozen=True):
    """The node crashes its process again and again: it is not tried any more."""

    node: NodeName


class ScheduleNode(Command, frozen=True):
    """Record that a node is due and why it does not start now."""

    node: NodeName
    iteration: int
    execution: int
    why: str


class SkipNode(Command, frozen=True):
    """Put nothing in place of a visit that was interrupted (`on_interrupt="skip"`) or was safe to fail, and continue."""

    node: NodeName


class AskAboutNode(Command, frozen=True):
    """Ask what to do with a visit that was interrupted (`on_interrupt="ask"`)."""

    node: NodeName


class RouteNode(Command, frozen=True):
    """Evaluate the router of a node that has completed."""

    node: NodeName


class StartItem(Command, frozen=True):
    """Record `ItemStarted` and, when that is durable, call the node for this item."""

    node: NodeName
    item: int
    attempt: int


class CompleteItems(Command, frozen=True):
    """All items are done: the node is complete."""

    node: NodeName


class FailItems(Command, frozen=True):
    """Items failed for good and the others have ended: the node has failed."""

    node: NodeName
    item: int
    failure: Failure


class CompleteLayer(Command, frozen=True):
    """All nodes of the layer are done: merge what they changed and decide their routes."""

    layer: int
    nodes: tuple[NodeName, ...]


class CompleteRun(Command, frozen=True):
    """Every branch has reached its end."""


class FailRun(Command, frozen=True):
    """Something failed for good and nothing runs any more."""

    failure: Failure
    node: NodeName | None


class WakeAt(Command, frozen=True):
    """Nothing to do before this time, unless a node ends, or an answer, a signal or a request comes."""

    at: float


class DueAt(Command, frozen=True):
    """The run is due then; until then only an answer, a signal or an operator can continue it, so no holder need wait."""

    at: float


AnyCommand: TypeAlias = (
    StartNode | AskFirst | FireTimer | ExpireQuestion | QuarantineNode | ScheduleNode | SkipNode | AskAboutNode | RouteNode
    | StartItem | CompleteItems | FailItems | CompleteLayer
    | CompleteRun | FailRun | WakeAt | DueAt
)  # fmt: skip
