"""What is known about each kind of event: one table, one row per kind.

The table says when an event may happen, which function of the fold handles it, and how the rest of the engine treats it.
Code that treats some kinds differently from others asks a column, so a new kind is named here and not in sets of its own.
A kind of the union that has no row, or a row without a kind, stops the import of this module; a handler that does not
exist stops the import of the fold.

The sets and dictionaries below the table are its columns, made once at import: a step looks up what it needs there.
`testing/replay` reads logs by rules of its own and never uses this table.
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
    GOING,
    LIVE,
    OPEN,
    VISIT_DONE,
    VISIT_STUCK,
    NodeStatus,
    Status,
)

Counts: TypeAlias = Literal["none", "visit", "attempt", "open attempt", "asked"]
"""Which counts of an event must be those of its node:

- `visit`: iteration and execution, of a fan-out that has listed its items;
- `attempt`: these and the attempt, of the node;
- `open attempt`: the same, of the attempt that runs: the node's, or that of an item;
- `asked`: as `open attempt` for a question that a node asks itself, none for a question about a node.
"""
Look: TypeAlias = Literal["nothing", "node", "routes", "layer", "everything"]
"""What `Readiness` looks at again: the node of the event; that and the nodes it leads to; those of a layer; all nodes."""
Writes: TypeAlias = Literal["nothing", "fields", "everything"]
"""What `Writers` must know: the fields that the event sets, or that it must rebuild everything."""


class Kind(msgspec.Struct, frozen=True, gc=False):
    """A row. The first five columns have no default: each has to be thought about."""

    event: type[Event]
    handler: str
    """The module and the function of `core/fold`, which the fold binds."""
    run: frozenset[Status]
    """The statuses of the run that allow the event."""
    node: frozenset[str] | None
    """The statuses of its node that allow it ("": not reached yet). None: any, or the event belongs to no node."""
    look: Look
    counts: Counts = "none"
    run_after: Status | None = None
    """The status of the run afterwards, where that is always the same."""
    node_after: NodeStatus | None = None
    """The status of the node afterwards, where that is always the same."""
    writes: Writes = "nothing"
    checkpoint: bool = False
    """A run can be resumed or forked from here."""
    result: bool = False
    """A result of user code: refused where it is over the log budget. Other events are recorded whatever they weigh."""
    ours: bool = False
    """Holdfast made every field of it, or has checked it: it need not be decoded before it is recorded."""
    heard: bool = False
    """A caller or a node may be waiting for it: it is saved at once, whatever the durability."""
    ends_stream: bool = False
    """Recorded when the chunks that its attempt has streamed by then are known: followers get those first."""
    from_process: bool = False
    """A node in a process of its own may ask the engine to record it."""
    takes_over: bool = False
    """A holder begins to execute the run with it, after an earlier one."""
    from_outside: bool = False
    """A process that does not execute the run may record it."""


_NEW: frozenset[Status] = frozenset({"new"})
_IDLE = VISIT_DONE | {""}
"""Nodes that have no visit which has begun and not ended."""
_RUNNING = frozenset({"running"})
_RAN = frozenset({"running", "interrupted"})
"""An attempt runs, or was interrupted and its end is recorded afterwards."""

TABLE: tuple[Kind, ...] = (
    # --- the run
    Kind(events.RunCreated, "run.run_created", _NEW, None, "everything", run_after="pending", checkpoint=True),
    Kind(events.RunForked, "run.run_forked", OPEN, None, "everything", run_after="pending", checkpoint=True),
    Kind(events.RunClaimed, "run.run_claimed", CLAIMABLE, None, "everything", takes_over=True),
    Kind(events.RunResumed, "run.run_resumed", OPEN, None, "everything", takes_over=True),
    Kind(events.RunRewound, "run.run_rewound", OPEN, None, "everything", run_after="running", writes="everything",
         takes_over=True),
    Kind(events.RunPaused, "run.run_paused", GOING, None, "nothing"),
    Kind(events.RunInterrupted, "run.run_interrupted", ACTIVE, None, "nothing", run_after="interrupted"),
    Kind(events.RunCompleted, "run.run_completed", ACTIVE, None, "nothing", run_after="completed", ours=True),
    Kind(events.RunFailed, "run.run_failed", ACTIVE, None, "nothing", run_after="failed"),
    Kind(events.RunCancelled, "run.run_cancelled", OPEN, None, "nothing", run_after="cancelled"),
    Kind(events.ResumeRefused, "run.resume_refused", OPEN, None, "nothing"),
    # --- its state and its flow
    Kind(events.StateEdited, "run.state_edited", OPEN, None, "nothing", checkpoint=True),
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
    # --- items
    Kind(events.ItemsListed, "items.items_listed", LIVE, _RUNNING, "node"),
    Kind(events.ItemStarted, "items.item_started", ACTIVE, frozenset({"running", "waiting"}), "node", counts="visit",
         ours=True),
    Kind(events.ItemCompleted, "items.item_completed", LIVE, _RUNNING, "node", counts="visit", result=True, ours=True,
         ends_stream=True),
    Kind(events.ItemFailed, "items.item_failed", LIVE, _RUNNING, "node", counts="visit", ends_stream=True),
    # --- inside a visit
    Kind(events.StepCompleted, "waits.step_completed", LIVE, _RUNNING, "node", counts="open attempt", result=True,
         ours=True, ends_stream=True, from_process=True),
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
    Kind(events.QuestionAsked, "waits.question_asked", ACTIVE, _IDLE | {"pending", "interrupted", "running"}, "node",
         counts="asked", heard=True, from_process=True),
    Kind(events.QuestionAnswered, "waits.question_answered", OPEN,
         frozenset({"pending", "running", "waiting", "interrupted"}), "node", checkpoint=True, heard=True, from_outside=True),
)  # fmt: skip


def _require_all() -> None:
    """Every kind of the closed union has one row."""
    rows = [kind.event for kind in TABLE]
    lacking = [cls.__name__ for cls in AnyEvent.__args__ if cls not in rows]
    more = [cls.__name__ for cls in rows if cls not in AnyEvent.__args__ or rows.count(cls) > 1]
    if lacking or more:
        raise AssertionError(
            f"core/kinds.py must have one row for each kind of event; lacking: {lacking}, too many: {more}"
        )


_require_all()


# --- its columns, for looking things up ------------------------------------------------------------------


def _names(has: Callable[[Kind], bool]) -> frozenset[str]:
    return frozenset(kind.event.__name__ for kind in TABLE if has(kind))


def _classes(has: Callable[[Kind], bool]) -> tuple[type[Event], ...]:
    return tuple(kind.event for kind in TABLE if has(kind))


LOOKS: dict[type[Event], Look] = {kind.event: kind.look for kind in TABLE}
WRITES: dict[type[Event], Writes] = {kind.event: kind.writes for kind in TABLE}
CHECKPOINTS = _names(lambda kind: kind.checkpoint)
OURS = _names(lambda kind: kind.ours)
ENDS_STREAM = _names(lambda kind: kind.ends_stream)
FROM_PROCESS = _names(lambda kind: kind.from_process)
TAKES_OVER = _names(lambda kind: kind.takes_over)
FROM_OUTSIDE = _names(lambda kind: kind.from_outside)
RESULTS = _classes(lambda kind: kind.result)
HEARD = _classes(lambda kind: kind.heard)
