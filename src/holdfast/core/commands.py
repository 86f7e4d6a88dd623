"""Commands: what `decide` asks the engine to do next, as a closed union. The engine carries a command out by recording events."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from holdfast.core.events import Failure, NodeName


class Command(msgspec.Struct, frozen=True, gc=False):
    """The base class of all commands."""


class StartNode(Command, frozen=True):
    """Record `NodeStarted` and, when that is durable, call the node."""

    node: NodeName
    iteration: int
    execution: int
    attempt: int
    took: int
    woken: bool = False


class AskFirst(Command, frozen=True):
    """Ask the question that must be answered before a visit of this node begins."""

    node: NodeName
    iteration: int
    execution: int


class AskRepeat(Command, frozen=True):
    """Ask whether this fork repeats a visit that its parent has begun."""

    node: NodeName
    iteration: int
    execution: int


class SkipRepeat(Command, frozen=True):
    """Skip a visit that the parent of this fork has begun, with the result that it had there."""

    node: NodeName
    iteration: int
    execution: int
    took: int


class FireTimer(Command, frozen=True):
    """Record `TimerFired`, because the time of this wait has come."""

    key: str


class ExpireQuestion(Command, frozen=True):
    """End a question that was not answered in time."""

    key: str


class QuarantineNode(Command, frozen=True):
    """Stop trying a node that has repeatedly crashed its process."""

    node: NodeName


class ScheduleNode(Command, frozen=True):
    """Record that a node is due and why it does not start now."""

    node: NodeName
    iteration: int
    execution: int
    why: str


class SkipNode(Command, frozen=True):
    """Skip a visit that was interrupted (`on_interrupt="skip"`) or that failed and is `safe_to_fail`, and continue after it."""

    node: NodeName


class AskAboutNode(Command, frozen=True):
    """Ask what to do with a visit that was interrupted (`on_interrupt="ask"`)."""

    node: NodeName


class SkipNodes(Command, frozen=True):
    """Skip all nodes of a plan that can never run any more."""

    nodes: tuple[NodeName, ...]
    why: dict[NodeName, NodeName]


class FinishNode(Command, frozen=True):
    """Judge again what a node has returned, or accept it because an answer did, without calling the node."""

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
    """Complete a fan-out node, because all its items are done."""

    node: NodeName


class FailItems(Command, frozen=True):
    """Fail a fan-out node, because some of its items failed for good and the others have ended."""

    node: NodeName
    item: int
    failure: Failure


class CompleteLayer(Command, frozen=True):
    """Complete a layer, because all its nodes are done: merge their changes and decide their routes."""

    layer: int
    nodes: tuple[NodeName, ...]


class CompleteRun(Command, frozen=True):
    """Complete the run, because every branch has reached its end."""


class FailRun(Command, frozen=True):
    """Fail the run, because a node failed for good or reached the iteration limit, and no node is running."""

    failure: Failure
    node: NodeName | None


class PauseRun(Command, frozen=True):
    """Pause the run, because nothing that is in its scope is left to do."""

    reason: str


class WakeAt(Command, frozen=True):
    """Call `decide` again at this time, or earlier if a node ends, or an answer, a signal or a request arrives."""

    at: float


class DueAt(Command, frozen=True):
    """Release the run until this time, at which it is due. Only an answer, a signal or an operator can continue it earlier, so no
    engine needs to hold it.
    """

    at: float


AnyCommand: TypeAlias = (
    StartNode | AskFirst | AskRepeat | SkipRepeat | FireTimer | ExpireQuestion | QuarantineNode | ScheduleNode | SkipNode
    | SkipNodes | FinishNode | AskAboutNode | RouteNode | StartItem | CompleteItems | FailItems | CompleteLayer
    | CompleteRun | FailRun | PauseRun | WakeAt | DueAt
)  # fmt: skip
