"""Follows the progress of a run from its events: a line for each event worth showing, and the status of every node.

A story reads only events, so it can be used on any thread.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.definition import Definition
from holdfast.core.kinds import TAKES_OVER
from holdfast.errors import describe_item
from holdfast.reading import text, words
from holdfast.reading.chunks import Chunk
from holdfast.reading.views import Cost, EventView, Run
from holdfast.reading.visits import NODE_ENDS

_ITEM_LINES_MAX = 24
"""A fan-out with more items than this gets a line for each tenth of its items."""
_STEP_LINES_EVERY = 100
"""After the first few steps or checkpoints of a node, only every hundredth gets a line."""
_LINE_WIDTH = 60
_ENDS = {kind.__name__: status for kind, status in NODE_ENDS.items()} | {"NodeWaiting": "waiting"}
"""Kind of event after which an attempt does not run any more -> the status of its node."""


class NodeSeen(msgspec.Struct):
    """The progress of a node: its status, and what its latest visit has done."""

    status: str = ""
    iteration: int = 0
    attempt: int = 0
    started_at: float = 0.0
    seconds: float = 0.0
    items_done: int = 0
    items_all: int | None = None
    labels: list[str] = []
    """The names of its items, if the node has `label` and the story saw them listed."""
    steps: int = 0
    """The number of steps that this visit has completed since the story began to follow it."""
    checkpoints: int = 0
    chunks: int = 0
    last_line: str = ""
    """The last part of the last line that the node streamed."""
    unended: str = ""
    """Text that the node streamed since the last line break."""
    note: str = ""


class Line(msgspec.Struct, frozen=True):
    """A line of progress: what happened to a node or the run."""

    status: str
    """The status that determines the symbol and colour of the line."""
    name: str
    note: str = ""


class Story:
    """Folds events into `nodes`, and returns a line for each event worth showing."""

    def __init__(self, definition: Definition | None = None, before: Run[Any] | None = None) -> None:
        self._definition = definition
        self.nodes: dict[str, NodeSeen] = {
            name: NodeSeen() for name in (definition.nodes if definition else ())
        }
        self.status = "pending"
        self.cost = before.cost if before is not None else Cost()
        self.children_cost = before.children_cost if before is not None else Cost()
        for name, node in before.nodes.items() if before is not None else ():
            seen = self._node(name)
            seen.status = node.status
            if node.status == "running" and before is not None and before.held_by is not None:
                seen.started_at = node.started_at  # another process executes it
            elif node.status == "running":
                seen.status = "interrupted"
            seen.iteration, seen.attempt, seen.seconds = node.iteration, node.attempt, node.seconds
            if node.items is not None:
                seen.items_done, seen.items_all = node.items

    def _node(self, name: str) -> NodeSeen:
        return self.nodes.setdefault(name, NodeSeen())

    def _fans_out(self, name: str) -> bool:
        options = self._definition.nodes.get(name) if self._definition else None
        return options is not None and options.each

    def tell(self, event: EventView) -> Line | None:
        """Process an event. Returns its line, or None for an event that is not worth showing."""
        if event.kind.startswith("Item"):
            return self._tell_item(event)
        if event.kind in _ENDS and event.node is not None:
            self._end(event.node, event)
        said = words.words(event)
        if said is not None:
            return self._tell_inside(event, said)
        return self._tell_node(event) if event.iteration else self._tell_run(event)

    def stream(self, chunk: Chunk) -> None:
        """Process a chunk that a node streams. It is shown beside the node, not as a line of its own."""
        seen = self._node(chunk.node)
        seen.chunks += 1
        whole = seen.unended + (
            chunk.value if isinstance(chunk.value, str) else f"{words.value(chunk.value)}\n"
        )
        lines = [line for line in whole.splitlines() if line.strip()]
        seen.last_line = lines[-1][-_LINE_WIDTH:] if lines else seen.last_line
        seen.unended = whole.rpartition("\n")[2][-_LINE_WIDTH:]

    # --- inside nodes ---------------------------------------------------------------------------------

    def _tell_inside(self, event: EventView, said: str) -> Line | None:
        """Process an event that happens inside a node, or that a node waits for."""
        if event.kind == "SignalReceived":
            self._deliver(f"the signal {event.body['name']!r}")
        if event.kind == "ChildEnded":
            self._deliver(f"the child run {event.body['run']}")
            spent = Cost(event.body.get("usd", 0.0), event.body.get("tokens", 0))
            self.children_cost = _sum(self.children_cost, spent)
            return Line(event.body["status"], "child", said)
        if event.kind == "NodesSkipped":
            for skipped in event.body["nodes"]:
                self._node(skipped).status = "skipped"
            return Line("skipped", "run", said)
        if event.node is None:
            return Line("running", "run", said)
        name, seen = event.node, self._node(event.node)
        match event.kind:
            case "CostIncurred":
                spent = Cost(event.body.get("usd", 0.0), event.body.get("tokens", 0))
                self.cost = _sum(self.cost, spent)
                return None
            case "StepFailed":
                if (event.body.get("retry_at") or 0.0) > event.at:
                    seen.status, seen.note = "waiting", said
                return Line("waiting" if seen.status == "waiting" else "running", name, said)
            case "StepCompleted":
                seen.steps += 1
                return Line("running", name, said) if _is_worth_a_line(seen.steps) else None
            case "NodeCheckpointed":
                seen.checkpoints += 1
                seen.note = said
                return Line("running", name, said) if _is_worth_a_line(seen.checkpoints) else None
            case "GuardEvaluated":
                return Line("failed" if event.body.get("failure") else "completed", name, said)
            case "PolicyDecided":
                if event.body["verdict"] == "deny" and event.body["stage"] == "pre":
                    seen.status, seen.note = "failed", said
                shown = {"allow": "completed", "ask": "waiting", "deny": "failed"}[event.body["verdict"]]
                return Line(shown, name, said)
            case "OutputVerified":
                return Line("completed" if event.body["ok"] else "failed", name, said)
            case "TimerSet" | "SignalAwaited" | "ChildAwaited" | "QuestionAsked":
                seen.status, seen.note = "waiting", said
                return Line("waiting", name, said)
            case "WaitWithdrawn":
                seen.status, seen.note = "running", ""
                return Line("running", name, said)
            case "SignalSetAside":
                seen.status, seen.note = "waiting", words.waited_for(event.body["slot"])
                return Line("waiting", name, said)
            case "TimerFired" | "QuestionAnswered":
                seen.note = ""
                if seen.status == "waiting" and seen.started_at:
                    seen.status = "running"  # the node waited in memory and was not suspended
                answered = event.kind == "QuestionAnswered" and not event.body.get("refused")
                return Line("completed" if answered else "waiting", name, said)
            case _:
                return Line(seen.status if event.kind in _ENDS else "running", name, said)

    def _deliver(self, awaited: str) -> None:
        """Mark as running a node that waited for this in memory, without being suspended."""
        for seen in self.nodes.values():
            if seen.status == "waiting" and seen.started_at and awaited in seen.note:
                seen.status, seen.note = "running", ""
                return

    # --- nodes ----------------------------------------------------------------------------------------

    def _tell_node(self, event: EventView) -> Line | None:
        name = event.node or ""
        seen = self._node(name)
        seen.note = ""
        match event.kind:
            case "NodeStarted":
                woken = event.body.get("woken", False)
                if not woken and (event.execution > 1 or seen.iteration != event.iteration):
                    seen.items_done, seen.items_all = 0, None
                if not woken:
                    seen.steps = seen.checkpoints = seen.chunks = 0
                    seen.last_line = seen.unended = ""
                seen.status, seen.iteration, seen.attempt, seen.started_at = (
                    "running",
                    event.iteration,
                    event.attempt,
                    event.at,
                )
                if self._fans_out(name) and seen.items_all is None:
                    return None  # the list of its items follows at once
                kept = (
                    f", {seen.items_done} of {text.count(seen.items_all, 'item')} done already"
                    if seen.items_all
                    else ""
                )
                which = "continues after its wait" if woken else visit(event)
                return Line("running", name, which + kept)
            case "NodeCompleted":
                branches = self._definition is not None and name in self._definition.branches
                routed = (
                    f", next: {' and '.join(routes)}"
                    if branches and (routes := event.body.get("routes"))
                    else ""
                )
                return Line("completed", name, f"{text.duration(seen.seconds)}{_iteration(event)}{routed}")
            case "NodeFailed":
                return self._tell_failed(name, seen, event)
            case "NodeInterrupted":
                return Line("interrupted", name, f"stopped before it ended ({event.body.get('reason', '')})")
            case "NodeSkipped":
                warning = event.body.get("warning")
                if warning is not None:
                    fault = _said(warning)
                    if event.body.get("caught"):
                        taken = " and ".join(event.body.get("routes", ()))
                        return Line("skipped", name, f"failed, and {taken} takes the failure: {fault}")
                    return Line("skipped", name, f"failed, which is ignored (safe_to_fail): {fault}")
                repeat = ", with its result in the parent" if event.body.get("reason") == "repeat" else ""
                return Line("skipped", name, f"skipped{repeat}{_by(event)}")
            case "NodeRouted":
                routes = event.body.get("routes")
                return Line("completed", name, f"next: {' and '.join(routes)}" if routes else "leads nowhere")
            case "NodeScheduled":
                seen.status, seen.note = "pending", str(event.body.get("why", ""))
                return Line("pending", name, f"due, waits ({seen.note})")
            case "RoutingFailed":
                seen.status, seen.note = "failed", _fault(event)
                is_guard = (event.body.get("failure") or {}).get("type") == "GuardError"
                told = seen.note if is_guard else f"its router raised {seen.note}"
                return Line("failed", name, f"completed, but {told}")
            case _:
                return None

    def _end(self, name: str, event: EventView) -> None:
        seen = self._node(name)
        seen.status = "waiting" if event.body.get("retry_at") is not None else _ENDS[event.kind]
        if seen.started_at:
            seen.seconds, seen.started_at = event.at - seen.started_at, 0.0

    def _tell_failed(self, name: str, seen: NodeSeen, event: EventView) -> Line:
        retry_at = event.body.get("retry_at")
        again = "" if retry_at is None else f"; retry in {text.duration(retry_at - event.at)}"
        seen.note = _fault(event) + again
        return Line(seen.status, name, f"attempt {event.attempt} failed: {seen.note}")

    def _tell_item(self, event: EventView) -> Line | None:
        name = event.node or ""
        seen = self._node(name)
        match event.kind:
            case "ItemsListed":
                seen.items_done, seen.items_all = 0, len(event.body.get("items", []))
                seen.labels = event.body.get("labels", [])
                return Line("running", name, f"fans out over {text.count(seen.items_all, 'item')}")
            case "ItemCompleted":
                seen.items_done += 1
                count = seen.items_all or 0
                tenth = seen.items_done % max(1, count // 10) == 0 or seen.items_done == count
                if count > _ITEM_LINES_MAX and not tenth:
                    return None
                done = f"{_item(event, seen)}: {seen.items_done} of {count} done"
                return Line("completed", name, done)
            case "ItemFailed":
                retry_at = event.body.get("retry_at")
                again = "" if retry_at is None else f"; retry in {text.duration(retry_at - event.at)}"
                status = "failed" if retry_at is None else "waiting"
                return Line(
                    status,
                    name,
                    f"{_item(event, seen)} failed: {_fault(event)}{again}",
                )
            case _:
                return None

    # --- the run --------------------------------------------------------------------------------------

    def _tell_run(self, event: EventView) -> Line | None:
        reason = f": {event.body['reason']}" if event.body.get("reason") else ""
        match event.kind:
            case kind if kind in TAKES_OVER:
                self.status = "running"
                for seen in self.nodes.values():
                    if seen.status == "running":
                        seen.status, seen.started_at = "interrupted", 0.0
                place = f"rewound to event {event.body.get('to')}" if kind == "RunRewound" else "resumed"
                return Line("running", "run", f"{place}{_by(event)}{reason}")
            case "RunPaused":
                self.status = "paused"
                return Line(
                    "paused",
                    "run",
                    f"paused{_by(event)}{reason}; running nodes may finish, no new node starts",
                )
            case "RunInterrupted" | "RunCancelled" | "RunCompleted" | "RunFailed":
                self.status = event.kind.removeprefix("Run").lower()
                told = f": {_fault(event)}" if event.kind == "RunFailed" and not event.node else reason
                return Line(self.status, "run", f"{self.status}{_by(event)}{told}")
            case "RunCreated":
                self.status = "running"
                return None
            case "RequestRefused":
                return Line("pending", "run", f"{event.body['verb']} refused{_by(event)}{reason}")
            case "StateEdited" | "FlowChanged" | "StateUpgraded" | "ResumeRefused":
                words = {"StateEdited": "state edited", "FlowChanged": "continues with a changed flow"}
                told = words.get(event.kind) or {"StateUpgraded": "state upgraded"}.get(
                    event.kind, "resume refused"
                )
                return Line("pending", "run", f"{told}{_by(event)}{reason}")
            case "LayerCompleted":
                return Line(
                    "completed",
                    "layer",
                    f"{event.body.get('layer')}: {', '.join(event.body.get('nodes', []))}",
                )
            case _:
                return None


def _sum(one: Cost, other: Cost) -> Cost:
    return Cost(one.usd + other.usd, one.tokens + other.tokens)


def _is_worth_a_line(number: int) -> bool:
    """Return whether the event with this number gets a line: the first few do, and then every hundredth."""
    return number <= _ITEM_LINES_MAX or number % _STEP_LINES_EVERY == 0


def visit(event: EventView) -> str:
    """Return which iteration, execution and attempt an event belongs to; empty if all of them are the first."""
    words = [f"iteration {event.iteration}"] if event.iteration > 1 else []
    words += [f"execution {event.execution}"] if event.execution > 1 else []
    words += [f"attempt {event.attempt}"] if event.attempt > 1 else []
    return ", ".join(words)


def _iteration(event: EventView) -> str:
    return f", iteration {event.iteration}" if event.iteration > 1 else ""


def _by(event: EventView) -> str:
    return f" by {event.by}" if event.by else ""


def _fault(event: EventView) -> str:
    return _said(event.body.get("failure") or {})


def _said(failure: dict[str, Any]) -> str:
    return text.one_line(text.describe_fault(failure), 300)


def _item(event: EventView, seen: NodeSeen) -> str:
    item = event.body.get("item", 0)
    return describe_item(item, seen.labels[item] if seen.labels else "")
