"""The properties of each kind of event: one table, with one row per kind.

The table says when an event may happen, which function of the fold handles it, and how the rest of the engine treats it. Code
that treats some kinds differently from others reads a column of this table, so a new kind is added here and nowhere else. If a
kind of the union has no row, or a row has no kind, importing this module fails; if a handler does not exist, importing the fold
fails.

The sets and dictionaries below the table are its columns, computed once at import for fast lookups. `testing/replay` reads logs
by rules of its own and never uses this table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from holdfast.core import events
from holdfast.core.events import AnyEvent, Event
from holdfast.core.run_state import (
    ACTIVE,
    CLAIMABLE,
    ENDED,
    GOING,
    LIVE,
    OPEN,
    VISIT_DONE,
    VISIT_STUCK,
    NodeStatus,
    Status,
)

Counts: TypeAlias = Literal["none", "visit", "attempt", "open attempt", "asked"]
"""Which numbers of an event must match those of its node:

- `visit`: iteration and execution, and the node must be a fan-out that has listed its items;
- `attempt`: iteration, execution and attempt of the node;
- `open attempt`: iteration, execution and attempt of the running attempt, which is the node's or an item's;
- `asked`: as `open attempt` for a question that a node asks with `ctx.ask`; none for a question about a node.
"""
Look: TypeAlias = Literal["nothing", "node", "nodes", "routes", "layer", "everything"]
"""Which nodes `Readiness` must look at again after an event: its node; the nodes that it lists; its node and the nodes that it
leads to; the nodes of a layer; all nodes."""
Writes: TypeAlias = Literal["nothing", "fields", "everything"]
"""What `Writers` must update after an event: nothing, the fields that the event sets, or everything."""


class Kind(msgspec.Struct, frozen=True, gc=False):
    """The row of one kind of event. The first five columns have no default, so that each is decided for every kind."""

    event: type[Event]
    handler: str
    """The module and the function of `core/fold` that handle the event."""
    run: frozenset[Status]
    """The statuses of the run in which the event may happen."""
    node: frozenset[str] | None
    """The statuses of its node in which the event may happen ("" is a node that was not reached yet). None means any status, or
    that the event belongs to no node."""
    look: Look
    counts: Counts = "none"
    run_after: Status | None = None
    """The status of the run after the event, if it is always the same."""
    node_after: NodeStatus | None = None
    """The status of the node after the event, if it is always the same."""
    writes: Writes = "nothing"
    checkpoint: bool = False
    """Whether the event is a checkpoint: a run can be resumed or forked from it."""
    result: bool = False
    """Whether the event contains a result of user code, which is refused if it is too large for the log. Other events are
    recorded whatever their size."""
    ours: bool = False
    """Whether Holdfast has created or checked every field of the event, so that it need not be decoded before it is recorded."""
    heard: bool = False
    """Whether a caller or a node may be waiting for the event, so that it is saved at once, whatever the durability."""
    ends_stream: bool = False
    """Whether the chunks that the attempt has streamed so far must be known before the event is recorded: followers get these
    chunks first."""
    from_process: bool = False
    """Whether a node in a process of its own may ask the engine to record the event."""
    takes_over: bool = False
    """Whether the event is one that a new holder records when it begins to execute the run."""
    moves: bool = True
    """Whether the event may change why the run is where it is. The reason for its status is
    made without the others."""
    from_outside: bool = False
    """Whether a process that does not execute the run may record the event."""


_NEW: frozenset[Status] = frozenset({"new"})
_IDLE = VISIT_DONE | {""}
"""Statuses of a node without an open visit."""
_RUNNING = frozenset({"running"})
_RAN = frozenset({"running", "interrupted"})
"""Statuses of a node whose attempt is running, or was interrupted before its end was recorded."""

TABLE: tuple[Kind, ...] = (
    # --- the run
    Kind(events.RunCreated, "run.run_created", _NEW, None, "everything", run_after="pending", checkpoint=True),
    Kind(events.RunForked, "run.run_forked", OPEN, None, "everything", run_after="pending", checkpoint=True),
    Kind(events.RunClaimed, "run.run_claimed", CLAIMABLE, None, "everything", takes_over=True),
    Kind(events.RunResumed, "run.run_resumed", OPEN, None, "everything", takes_over=True),
    Kind(events.RunRewound, "run.run_rewound", OPEN, None, "everything", run_after="running", writes="everything",
         takes_over=True),
    Kind(events.RunPaused, "run.run_paused", ACTIVE, None, "nothing"),
    Kind(events.RunInterrupted, "run.run_interrupted", ACTIVE, None, "nothing", run_after="interrupted"),
    Kind(events.RunCompleted, "run.run_completed", ACTIVE, None, "nothing", run_after="completed", ours=True),
    Kind(events.RunFailed, "run.run_failed", ACTIVE, None, "nothing", run_after="failed"),
    Kind(events.RunCancelled, "run.run_cancelled", OPEN, None, "nothing", run_after="cancelled"),
    Kind(events.RequestRefused, "run.request_refused", OPEN, None, "nothing", heard=True, moves=False,
         from_outside=True),
    Kind(events.ResumeRefused, "run.resume_refused", OPEN, None, "nothing"),
    # --- its state and its flow
    Kind(events.StateEdited, "run.state_edited", OPEN, None, "nothing", checkpoint=True, moves=False),
    Kind(events.StateUpgraded, "run.state_upgraded", OPEN, None, "nothing"),
    Kind(events.FlowChanged, "run.flow_changed", OPEN, None, "everything", writes="everything"),
    # --- nodes
    Kind(events.NodeScheduled, "nodes.node_scheduled", ACTIVE, _IDLE | VISIT_STUCK, "node"),
    Kind(events.NodeStarted, "nodes.node_started", GOING, _IDLE | {"pending", "waiting", "interrupted"}, "node",
         run_after="running", node_after="running", ours=True),
    Kind(events.NodeCompleted, "nodes.node_completed", LIVE, _RUNNING, "routes", counts="attempt", node_after="completed",
         writes="fields", checkpoint=True, result=True, ours=True, ends_stream=True),
    Kind(events.NodeFailed, "nodes.node_failed", ACTIVE, _RAN, "node", counts="attempt", ends_stream=True),
    Kind(events.NodeInterrupted, "nodes.node_interrupted", LIVE, _RUNNING, "node", counts="attempt",
         node_after="interrupted", ends_stream=True),
    Kind(events.NodeSkipped, "nodes.node_skipped", ACTIVE, VISIT_STUCK, "routes", node_after="skipped", writes="fields",
         checkpoint=True, ends_stream=True, from_outside=True),
    Kind(events.NodeRouted, "nodes.node_routed", ACTIVE, VISIT_DONE, "routes", checkpoint=True),
    Kind(events.RoutingFailed, "nodes.routing_failed", ACTIVE, VISIT_DONE, "node"),
    Kind(events.LayerCompleted, "nodes.layer_completed", ACTIVE, None, "layer", writes="everything", checkpoint=True),
    # --- plans and policies
    Kind(events.GuardEvaluated, "judged.guard_evaluated", ACTIVE, VISIT_DONE | VISIT_STUCK | _RUNNING, "node"),
    Kind(events.NodesSkipped, "judged.nodes_skipped", ACTIVE, None, "nodes"),
    Kind(events.PolicyDecided, "judged.policy_decided", ACTIVE, _IDLE | {"pending", "interrupted", "running"}, "node"),
    Kind(events.OutputVerified, "judged.output_verified", LIVE, _RUNNING, "node", counts="attempt"),
    Kind(events.NodeReturned, "judged.node_returned", LIVE, _RUNNING, "node", counts="attempt", result=True,
         ends_stream=True),
    # --- items
    Kind(events.ItemsListed, "items.items_listed", LIVE, _RUNNING, "node"),
    Kind(events.ItemStarted, "items.item_started", ACTIVE, frozenset({"running", "waiting"}), "node", counts="visit",
         ours=True),
    Kind(events.ItemCompleted, "items.item_completed", LIVE, _RUNNING, "node", counts="visit", result=True, ours=True,
         ends_stream=True),
    Kind(events.ItemFailed, "items.item_failed", LIVE, _RUNNING, "node", counts="visit", ends_stream=True),
    # --- inside a visit
    Kind(events.StepCompleted, "kept_steps.step_completed", LIVE, _RUNNING, "node", counts="open attempt", result=True,
         ours=True, ends_stream=True, from_process=True),
    Kind(events.StepStarted, "kept_steps.step_started", LIVE, _RUNNING, "node", counts="open attempt", from_process=True),
    Kind(events.StepFailed, "kept_steps.step_failed", LIVE, _RUNNING, "node", counts="open attempt", result=True,
         ends_stream=True, from_process=True),
    Kind(events.NodeCheckpointed, "waits.node_checkpointed", LIVE, _RUNNING, "node", counts="open attempt", result=True,
         ends_stream=True, from_process=True),
    Kind(events.NodeStreamed, "waits.node_streamed", ACTIVE, _RAN, "node", ends_stream=True),
    Kind(events.CostIncurred, "waits.cost_incurred", LIVE, _RUNNING, "node"),
    # --- waits and questions
    Kind(events.NodeWaiting, "waits.node_waiting", LIVE, _RUNNING, "node", counts="open attempt", ends_stream=True),
    Kind(events.TimerSet, "waits.timer_set", LIVE, _RUNNING, "node", counts="open attempt", from_process=True),
    Kind(events.TimerFired, "waits.timer_fired", ACTIVE, None, "node", heard=True),
    Kind(events.SignalAwaited, "waits.signal_awaited", LIVE, _RUNNING, "node", counts="open attempt", heard=True,
         from_process=True),
    Kind(events.SignalReceived, "waits.signal_received", OPEN, None, "nothing", heard=True, from_outside=True),
    Kind(events.SignalSetAside, "waits.signal_set_aside", LIVE, _RUNNING, "node", counts="open attempt", heard=True,
         from_process=True),
    Kind(events.WaitWithdrawn, "waits.wait_withdrawn", LIVE, _RUNNING, "node", counts="open attempt", heard=True),
    Kind(events.ChildStarted, "children.child_started", LIVE, _RUNNING, "node", counts="open attempt", heard=True),
    Kind(events.ChildAwaited, "children.child_awaited", LIVE, _RUNNING, "node", counts="open attempt", heard=True,
         from_process=True),
    Kind(events.ChildEnded, "children.child_ended", OPEN, None, "nothing", heard=True, from_outside=True),
    Kind(events.QuestionAsked, "waits.question_asked", ACTIVE, _IDLE | {"pending", "interrupted", "running"}, "node",
         counts="asked", heard=True, from_process=True),
    Kind(events.QuestionAnswered, "waits.question_answered", OPEN,
         frozenset({"pending", "running", "waiting", "interrupted"}), "node", checkpoint=True, heard=True, from_outside=True),
)  # fmt: skip


def _require_all() -> None:
    """Raise unless every kind of the closed union has exactly one row."""
    rows = [kind.event for kind in TABLE]
    lacking = [cls.__name__ for cls in AnyEvent.__args__ if cls not in rows]
    more = [cls.__name__ for cls in rows if cls not in AnyEvent.__args__ or rows.count(cls) > 1]
    if lacking or more:
        raise AssertionError(
            f"core/kinds.py must have one row for each kind of event; lacking: {lacking}, too many: {more}"
        )


_require_all()


# --- the columns of the table, for fast lookups ----------------------------------------------------------


def _names(has: Callable[[Kind], bool]) -> frozenset[str]:
    return frozenset(kind.event.__name__ for kind in TABLE if has(kind))


def _classes(has: Callable[[Kind], bool]) -> tuple[type[Event], ...]:
    return tuple(kind.event for kind in TABLE if has(kind))


LOOKS: dict[type[Event], Look] = {kind.event: kind.look for kind in TABLE}
WRITES: dict[type[Event], Writes] = {kind.event: kind.writes for kind in TABLE}
ENDS = frozenset(kind.event.__name__ for kind in TABLE if kind.run_after in ENDED)
"""The kinds with which a run ends."""
CHECKPOINTS = _names(lambda kind: kind.checkpoint)
OURS = _names(lambda kind: kind.ours)
ENDS_STREAM = _names(lambda kind: kind.ends_stream)
FROM_PROCESS = _names(lambda kind: kind.from_process)
TAKES_OVER = _names(lambda kind: kind.takes_over)
MOVES = _names(lambda kind: kind.moves)
FROM_OUTSIDE = _names(lambda kind: kind.from_outside)
RESULTS = _classes(lambda kind: kind.result)
HEARD = _classes(lambda kind: kind.heard)
