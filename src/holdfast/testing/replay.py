"""A second implementation of the fold, for the checker: it derives the state of a run from the log, by the rules of the design.

This module shares no code with the engine: it knows rows, JSON and its own rules. It does not call `core.fold`, decides nothing
and stores nothing. `checker` gives it the events of one run in order. An event that cannot have happened is reported through
`say(invariant, text)`, and reading continues as well as possible, so that one fault does not hide the next.

Invariant: the work for an event does not grow with the log. A state that a later rewind goes back to is copied once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from operator import attrgetter
from typing import TypeAlias

from holdfast.testing.replayed_children import ChildReplay
from holdfast.testing.replayed_limits import LimitReplay
from holdfast.testing.replayed_rules import RuleReplay, Shapes
from holdfast.testing.replayed_steps import StepReplay
from holdfast.testing.standings import (
    NODE,
    Body,
    RewindableState,
    Visit,
    apply,
    level_of,
    name_visit,
    repeats_of,
    standing_of,
)

Say: TypeAlias = Callable[[str, str], None]
Where: TypeAlias = tuple[str, int, int, int]
"""The attempt that an event belongs to: node, iteration, execution, attempt."""
Handler: TypeAlias = Callable[[Where, Body, float], None]

FINAL = frozenset({"completed", "cancelled"})
_AFTER_FAILURE = frozenset({
    "RunForked", "RunResumed", "RunRewound", "RunCancelled", "RequestRefused", "ResumeRefused", "StateEdited", "StateUpgraded",
    "FlowChanged", "QuestionAnswered", "SignalReceived", "ChildEnded",
})  # fmt: skip
"""The event kinds that may follow the failure of a run: those that an operator or a caller causes, those of a resume,
and the first one of a fork of the failed run."""
_INSIDE = frozenset({
    "StepCompleted", "StepStarted", "StepFailed", "NodeCheckpointed", "TimerSet", "SignalAwaited", "SignalSetAside",
    "WaitWithdrawn", "NodeWaiting", "ChildStarted", "ChildAwaited",
})  # fmt: skip


_HANDLERS = {
    "RunCreated": "_created",
    "RunForked": "_forked",
    "RunClaimed": "_claimed",
    "RunResumed": "_resumed",
    "RunRewound": "_rewound",
    "RunPaused": "_paused",
    "RunInterrupted": "_interrupted",
    "RunCompleted": "_completed",
    "RunFailed": "_failed",
    "RunCancelled": "_cancelled",
    "RequestRefused": "_ignore",
    "ResumeRefused": "_ignore",
    "StateEdited": "_edited",
    "StateUpgraded": "_upgraded",
    "FlowChanged": "_flow_changed",
    "NodeScheduled": "_scheduled",
    "NodeStarted": "_started",
    "NodeCompleted": "_node_completed",
    "NodeFailed": "_node_failed",
    "NodeInterrupted": "_node_interrupted",
    "NodeSkipped": "_node_skipped",
    "NodeRouted": "_node_routed",
    "RoutingFailed": "_routing_failed",
    "GuardEvaluated": "rules.evaluate",
    "NodesSkipped": "rules.skip",
    "PolicyDecided": "rules.judge",
    "OutputVerified": "rules.verify",
    "NodeReturned": "rules.keep",
    "ItemsListed": "_items_listed",
    "ItemStarted": "_item_started",
    "ItemCompleted": "_item_completed",
    "ItemFailed": "_item_failed",
    "LayerCompleted": "_layer_completed",
    "QuestionAsked": "_asked",
    "QuestionAnswered": "_answered",
    "NodeWaiting": "_node_waiting",
    "NodeCheckpointed": "_checkpointed",
    "NodeStreamed": "_streamed",
    "StepCompleted": "steps.complete",
    "StepStarted": "steps.start",
    "StepFailed": "steps.fail",
    "CostIncurred": "limits.spend",
    "TimerSet": "_timer_set",
    "TimerFired": "_timer_fired",
    "SignalAwaited": "_signal_awaited",
    "SignalReceived": "_signal_received",
    "SignalSetAside": "_signal_set_aside",
    "WaitWithdrawn": "_wait_withdrawn",
    "ChildStarted": "limits.start_child",
    "ChildAwaited": "children.wait",
    "ChildEnded": "limits.end_child",
}
"""Event kind -> the method that handles it."""


class Replay:
    """The state of a run according to its events. Call `read` with each event, in order."""

    def __init__(
        self, say: Say, returns_to: frozenset[int] = frozenset(), shapes: Shapes = lambda fingerprint: None
    ) -> None:
        self.now = RewindableState()
        self.seq = 0
        self.at = 0.0
        self.base = 0
        """The seq of the base that replaces the first events of the log; 0 if there is none."""
        self.durability = "sync"
        self.begin_at: float | None = None
        self.asked_fresh = False
        """True if an operator asked to repeat a visit from scratch, without the results that the visit had recorded."""
        self.was_renamed = self.renames_keys = False
        """True if nodes were renamed, and if an older version did that, which made the keys of a node from its new name."""
        self.rewinds: list[tuple[int, int]] = []
        self.take_ups: list[tuple[int, float, str]] = []
        """One tuple for every claim, resume and rewind in the log: its seq, its time, and the status that the run had before."""
        self.starts: dict[Where, int] = {}
        """Attempt of a node -> how often the log says that it started, or continued after a wait."""
        self.item_starts: dict[tuple[str, int, int, int, int], int] = {}
        """Attempt of an item (node, iteration, execution, attempt, item) -> how often the log says that it started."""
        self.done: dict[tuple[str, int, int, int], int] = {}
        """(node, iteration, execution, item) -> the number of the attempt that completed it. The item is -1 for the node
        itself.
        """
        self.children = ChildReplay(self)
        self.rules = RuleReplay(self, shapes)
        self.limits = LimitReplay(self)
        self.steps = StepReplay(self)
        self.report = self._say = say
        self._last: dict[tuple[str, int, int, int], int] = {}
        """(node, iteration, execution, item) -> the number of its latest attempt. The item is -1 for the node itself."""
        self._returns_to = returns_to
        self._places: dict[int, RewindableState] = {}
        self._handlers: dict[str, Handler] = {
            kind: attrgetter(name)(self) for kind, name in _HANDLERS.items()
        }

    def begin_from(self, seq: int, base: Body) -> None:
        """Begin with the state of a base, which replaces the events up to `seq`."""
        self.now = standing_of(base)
        self.rules.begin()
        self.seq = self.base = seq
        self._remember(seq)

    def read(self, seq: int, at: float, kind: str, where: Where, body: Body) -> None:
        """Read the next event. `where` is the attempt that the event belongs to; its node is empty for an event of the run."""
        self.seq, self.at = seq, at
        now = self.now
        self.limits.look(at)
        if now.status in FINAL:
            self._say("I7", f"{kind} follows the end of the run, which is {now.status}")
        elif now.status == "failed" and kind not in _AFTER_FAILURE:
            self._say("I7", f"{kind} follows the failure of the run, which was not resumed")
        handler = self._handlers.get(kind)
        if handler is None:
            self._say("I2", f"this version of the checker does not know the event kind {kind}")
        else:
            if kind in _INSIDE:
                self._require_inside(kind, where, body)
            self.rules.look(kind, where, body)
            now.at = at
            handler(where, body, at)
            self.now.last_at = at
        if seq in self._returns_to:
            self._remember(seq)

    def end(self) -> None:
        """Note that the log has no more events."""
        self.rules.end()

    def _remember(self, seq: int) -> None:
        self._places[seq] = copy.deepcopy(self.now)

    # --- the run ----------------------------------------------------------------------------------------

    def _created(self, where: Where, body: Body, at: float) -> None:
        now = self.now
        if now.status != "new":
            self._say("I7", "the log creates the run a second time")
        now.status = "pending"
        now.flow, now.fingerprint = body.get("flow", ""), body.get("fingerprint", "")
        now.state_version = body.get("state_version", 1)
        now.schedule = body.get("schedule", "eager")
        now.created_at, now.labels = at, body.get("labels", {})
        now.values, now.plan = dict(body.get("input", {})), body.get("plan", False)
        options = body.get("options", {})
        self.durability, self.begin_at = options.get("durability", "sync"), options.get("begin_at")
        self.limits.set(options)
        now.origin, now.lineage = body.get("caller", {}).get("run"), body.get("caller", {}).get("lineage", "")
        self.now.arrive(body.get("starts", ()))
        self.rules.count_edges()

    def _forked(self, where: Where, body: Body, at: float) -> None:
        now = self.now
        now.parent, now.created_at = body.get("parent"), at
        now.labels = body["labels"] if body.get("labels") is not None else now.labels
        self.now.reopen()
        now.origin, now.children = None, {}
        now.lineage = body.get("lineage") or ""
        if body.get("visits") and not now.lineage and not body.get("fresh"):
            self._say(
                "I8", "the fork records what its parent had begun, but not whose idempotency keys it has"
            )
        now.repeats = repeats_of(body.get("visits", ()), body.get("repeat", {}))
        now.status = "pending"

    def _claimed(self, where: Where, body: Body, at: float) -> None:
        self._taken_up(at)
        self.now.cut()
        self.now.status = "running"
        self.now.settle()

    def _resumed(self, where: Where, body: Body, at: float) -> None:
        now = self.now
        self._taken_up(at)
        self.now.cut()
        now.paused, now.failed_with = False, None
        self.limits.set(body)
        named = body.get("nodes")
        self.asked_fresh = self.asked_fresh or bool(body.get("fresh"))
        for name in list(now.failed) if named is None else named:
            self.now.try_again(name, fresh=body.get("fresh", False))
        now.status = "running"
        now.settle()

    def _rewound(self, where: Where, body: Body, at: float) -> None:
        self._taken_up(at)
        to = body.get("to", 0)
        place = self._places.get(to)
        if place is None:
            self._say("I2", f"the run goes back to event {to}, which its log does not have")
        else:
            self.now, active_s = copy.deepcopy(place), body.get("active_s", 0.0)
            self.now.active_s = max(self.now.active_s, active_s)
            self.limits.carry(body)
            self.limits.set(body)
        self.rewinds.append((self.seq, to))
        self.now.reopen()
        self.now.signals.update({name: len(told) for name, told in body.get("signals", {}).items()})
        self.now.status = "running"

    def _taken_up(self, at: float) -> None:
        self.take_ups.append((self.seq, at, self.now.status))

    def _paused(self, where: Where, body: Body, at: float) -> None:
        self.now.paused = True
        self.now.settle()

    def _interrupted(self, where: Where, body: Body, at: float) -> None:
        self.now.status = "interrupted"

    def _completed(self, where: Where, body: Body, at: float) -> None:
        now = self.now
        self.rules.require_closed("RunCompleted", at_once=True)
        self.rules.require_complete()
        left = [*now.open, *now.arrivals, *now.held]
        if left:
            self._say("I7", f"RunCompleted is recorded, but these nodes are still open or due: {left}")
        now.status = "completed"
        self.children.end_run("completed")

    def _failed(self, where: Where, body: Body, at: float) -> None:
        self.now.status = "failed"
        self.now.failed_with = body.get("failure", {})
        self.children.end_run("failed")

    def _cancelled(self, where: Where, body: Body, at: float) -> None:
        now = self.now
        now.status = "cancelled"
        for left in body.get("uncleaned", ()):  # logs of older versions do not say it
            visit, steps = now.visit(left["node"]), {f"step:{step}" for step in left.get("steps", ())}
            kept = {slot for slot in visit.kept.get(level_of(left), ()) if slot.startswith("step:")}
            if left["iteration"] != visit.iteration or steps != kept:
                self._say(
                    "I7",
                    f"RunCancelled says that {left['node']} has kept {sorted(steps)}, but the log says {sorted(kept)}",
                )
        self.children.end_run("cancelled")
        now.questions.clear()
        now.waits.clear()

    def _ignore(self, where: Where, body: Body, at: float) -> None:
        """Read an event that does not change the state of the run."""

    # --- state and flow ---------------------------------------------------------------------------------

    def _edited(self, where: Where, body: Body, at: float) -> None:
        apply(self.now.values, body.get("changes", {}))
        for repeat in self.now.repeats.values():
            repeat.kept = set()

    def _upgraded(self, where: Where, body: Body, at: float) -> None:
        self.now.state_version = body.get("state_version", 1)
        self.now.values = dict(body.get("values", {}))

    def _flow_changed(self, where: Where, body: Body, at: float) -> None:
        now, keeps_keys = self.now, body.get("keeps_keys", False)
        rename = {old: new for old, new in body.get("rename", {}).items() if old != new}
        now.fingerprint = body.get("fingerprint", "")
        if now.plan:
            self.rules.count_edges()
        if not rename:
            return
        now.rename(rename, keeps_keys=keeps_keys)
        self.was_renamed = True
        self.renames_keys = self.renames_keys or not keeps_keys
        for seen in (self.done, self._last):
            renamed = {(rename.get(name, name), *rest): what for (name, *rest), what in seen.items()}
            seen.clear()
            seen.update(renamed)

    # --- nodes ------------------------------------------------------------------------------------------

    def _scheduled(self, where: Where, body: Body, at: float) -> None:
        now, name = self.now, where[0]
        visit = now.visit(name)
        if name in now.open and (visit.begun or not visit.routed):
            self.asked_fresh = self.asked_fresh or bool(body.get("fresh"))
            self.now.try_again(name, fresh=body.get("fresh", False))
            now.await_anew(name, body.get("anew", ()))
        else:
            now.turn(visit, "pending")
        now.settle()

    def _started(self, where: Where, body: Body, at: float) -> None:
        name, iteration, execution, attempt = where
        now = self.now
        visit = now.visit(name)
        if not body.get("woken") or visit.returned is None:  # otherwise its function is not called
            self.starts[where] = self.starts.get(where, 0) + 1
        if body.get("woken"):
            self._woken(where, visit)
            return
        self.rules.require_allowed(where, visit)
        took = body.get("took", 1)
        self.limits.require_scope(name, _named(where))
        self.limits.require_budget(_named(where))
        if took:
            self._take_up(name, took)
        if visit.status == "running":
            self._say("I6", f"{_named(where)} starts while its attempt {visit.attempt} is open")
        self._require_new(where, NODE)
        if (iteration, execution) != (visit.iteration, visit.execution) or attempt == 1:
            repeat = now.repeats.get((name, iteration))
            if repeat is not None and not repeat.allows():
                self._say(
                    "I5", f"{_named(where)} repeats what the parent of the fork has begun, without a decision"
                )
            visit.forget_items()
            visit.kept, visit.parked, visit.filled, visit.withdrawn = {}, {}, {}, set()
        else:
            if visit.is_in_doubt():
                self._say("I5", f"{_named(where)} starts without a decision about the step in doubt")
            visit.parked.pop(NODE, None)
        visit.iteration, visit.execution, visit.attempt = iteration, execution, attempt
        visit.begun, visit.question = True, None
        now.turn(visit, "running")
        now.open[name] = None
        now.status = "running"

    def _woken(self, where: Where, visit: Visit) -> None:
        if where[1:] != visit.here() or (NODE not in visit.parked and visit.returned is None):
            self._say("I6", f"{_named(where)} is recorded as woken, but was not waiting")
        visit.parked.pop(NODE, None)
        self.now.turn(visit, "running")
        self.now.open[where[0]] = None
        self.now.status = "running"

    def _require_new(self, where: Where, item: int) -> None:
        """Report a start whose attempt number is not higher than those of all earlier attempts of the visit, or that follows
        the completion of the visit.
        """
        name, iteration, execution, attempt = where
        key = (name, iteration, execution, item)
        if key in self.done:
            self._say("I5", f"{_named(where, item)} starts although its completion is in the log")
        last = self._last.get(key, 0)
        if attempt <= last:
            self._say(
                "I6",
                f"{_named(where, item)} starts after its attempt {last}: the numbers of attempts must grow",
            )
        self._last[key] = attempt

    def _require_end(self, kind: str, where: Where, allowed: tuple[str, ...]) -> Visit:
        visit = self.now.visit(where[0])
        if visit.status not in allowed or where[1:] != visit.here():
            latest = _named((where[0], *visit.here()))
            self._say(
                "I6",
                f"{kind} belongs to {_named(where)}, but the latest attempt is {latest}, which is "
                f"{visit.status or 'not started'}",
            )
        return visit

    def _node_completed(self, where: Where, body: Body, at: float) -> None:
        name, iteration, execution, _ = where
        visit = self._require_end("NodeCompleted", where, ("running",))
        self._note_done((name, iteration, execution, NODE), where)
        self.rules.complete(where, visit, body)
        results = self._item_results(where, visit) if body.get("items") else []
        self._close(name, visit, "completed")
        self._finish(name, visit, results, body)

    def _note_done(self, key: tuple[str, int, int, int], where: Where) -> None:
        if key in self.done:
            self._say("I5", f"{_named(where, key[3])} completes a second time")
        self.done[key] = where[3]

    def _item_results(self, where: Where, visit: Visit) -> list[Body]:
        missing = [item for item in range(visit.items or 0) if item not in visit.changes]
        if missing:
            self._say("I6", f"{_named(where)} completes while its items {missing[:5]} are not completed")
        return [visit.changes[item] for item in sorted(visit.changes)]

    def _node_skipped(self, where: Where, body: Body, at: float) -> None:
        name, iteration, execution, _ = where
        if body.get("took"):
            self._take_up(name, body["took"])
        visit = self.now.visit(name)
        if visit.status not in ("pending", "waiting", "interrupted", "failed"):
            self._say("I6", f"{_named(where)} is skipped while it is {visit.status or 'not reached'}")
        visit.iteration, visit.execution = iteration, execution
        self._note_done((name, iteration, execution, NODE), where)
        self._close(name, visit, "skipped")
        self._finish(name, visit, [], body)

    def _node_failed(self, where: Where, body: Body, at: float) -> None:
        now, name = self.now, where[0]
        visit = self._require_end("NodeFailed", where, ("running", "interrupted"))
        self.now.close_waits(name)
        now.note_failure(name, NODE, body)
        visit.forget(NODE, "try:")
        self.rules.fail(where, visit, body)
        if body.get("retry_at") is None:
            now.failed[name] = None
            now.turn(visit, "failed")
        else:
            now.turn(visit, "waiting")
        now.settle()

    def _node_interrupted(self, where: Where, body: Body, at: float) -> None:
        visit = self._require_end("NodeInterrupted", where, ("running",))
        visit.cut_items()
        self.now.turn(visit, "interrupted", self.now.last_at if body.get("lost") else None)
        self.now.settle()

    def _node_routed(self, where: Where, body: Body, at: float) -> None:
        now, name = self.now, where[0]
        visit = now.visit(name)
        if visit.routed:
            self._say("I5", f"the route of {_named(where)} is decided a second time")
        visit.routed = True
        now.open.pop(name, None)
        now.failed.pop(name, None)
        self.now.arrive(body.get("routes", ()))
        self.rules.lead(name, body.get("routes", []))
        now.settle()

    def _routing_failed(self, where: Where, body: Body, at: float) -> None:
        now, name = self.now, where[0]
        now.visit(name).routed = False
        now.open[name] = None
        now.failed[name] = None

    def _layer_completed(self, where: Where, body: Body, at: float) -> None:
        now, names = self.now, body.get("nodes", [])
        if set(names) != now.held.keys():
            self._say(
                "I6", f"layer {body.get('layer')} has the nodes {names}, but {list(now.held)} have completed"
            )
        for name in names:
            items, own = now.held.pop(name, ([], {}))
            for changes in (*items, own):
                apply(now.values, changes)
        apply(now.values, body.get("changes", {}))
        for name, routes in body.get("routes", {}).items():
            self.now.arrive(routes)
            self.rules.lead(name, routes)
        now.settle()

    # --- items ------------------------------------------------------------------------------------------

    def _items_listed(self, where: Where, body: Body, at: float) -> None:
        visit = self.now.visit(where[0])
        if visit.items is not None:
            self._say("I5", f"{_named(where)} lists its items a second time")
        visit.forget_items()
        visit.items = len(body.get("items", ()))
        repeat = self.now.repeats.get((where[0], where[1]))
        if repeat is not None:
            visit.changes = repeat.reused(visit.items)

    def _item_started(self, where: Where, body: Body, at: float) -> None:
        name, iteration, execution, attempt = where
        item, now = body.get("item", 0), self.now
        visit = now.visit(name)
        key = (name, iteration, execution, attempt, item)
        waits = item in visit.parked
        if not waits:
            self.limits.require_budget(_named(where, item))
        self.item_starts[key] = self.item_starts.get(key, 0) + 1
        if not waits or attempt != self._last.get((name, iteration, execution, item), 0):
            self._require_new(where, item)
        if item in visit.changes:
            self._say("I5", f"{_named(where, item)} starts although it has its result")
        if item in visit.running:
            self._say("I6", f"{_named(where, item)} starts while its attempt {visit.running[item]} is open")
        if visit.status == "waiting":
            now.turn(visit, "running")
            now.status = "running"
        visit.parked.pop(item, None)
        visit.again.discard(item)
        visit.running[item] = attempt

    def _item_ended(self, kind: str, where: Where, item: int, visit: Visit) -> None:
        if visit.running.get(item) != where[3]:
            self._say("I6", f"{kind} belongs to {_named(where, item)}, which is not open")
        visit.running.pop(item, None)

    def _item_completed(self, where: Where, body: Body, at: float) -> None:
        name, iteration, execution, _ = where
        item, visit = body.get("item", 0), self.now.visit(name)
        self._item_ended("ItemCompleted", where, item, visit)
        self._note_done((name, iteration, execution, item), where)
        visit.changes[item] = body.get("changes", {})
        visit.kept.pop(item, None)
        visit.filled = {place: wait for place, wait in visit.filled.items() if place[0] != item}
        visit.withdrawn = {place for place in visit.withdrawn if place[0] != item}
        self.now.close_waits(name, item)
        self.now.forget_children(name, item)
        self.now.rest(visit)

    def _item_failed(self, where: Where, body: Body, at: float) -> None:
        name, item = where[0], body.get("item", 0)
        visit = self.now.visit(name)
        self._item_ended("ItemFailed", where, item, visit)
        (visit.gone if body.get("retry_at") is None else visit.again).add(item)
        self.now.note_failure(name, item, body)
        visit.forget(item, "try:")
        self.now.close_waits(name, item)
        self.now.rest(visit)

    # --- inside a visit ---------------------------------------------------------------------------------

    def _require_inside(self, kind: str, where: Where, body: Body) -> None:
        """Report an event of an attempt that is not the open attempt of its node or item."""
        visit, item = self.now.visit(where[0]), body.get("item")
        attempt = visit.attempt if item is None or visit.items is None else visit.running.get(item, 0)
        if visit.status != "running" or where[1:] != (visit.iteration, visit.execution, attempt):
            self._say("I6", f"{kind} belongs to {_named(where, item)}, which is not the running attempt")

    def _streamed(self, where: Where, body: Body, at: float) -> None:
        chunks, spans = len(body.get("chunks", ())), body.get("spans", ())
        named = sum(span["chunks"] for span in spans)
        if spans and named != chunks:
            self._say(
                "I5",
                f"{_named(where, level_of(body))} streamed {chunks} chunks, but {named} are said to be of steps",
            )

    def _checkpointed(self, where: Where, body: Body, at: float) -> None:
        self.keep(where[0], level_of(body), "checkpoint")

    def keep(self, name: str, item: int, slot: str) -> None:
        """Note that a visit has a result in this slot."""
        self.now.visit(name).kept.setdefault(item, set()).add(slot)

    def _timer_set(self, where: Where, body: Body, at: float) -> None:
        self.now.visit(where[0]).withdrawn.discard((level_of(body), body.get("slot", "")))
        self.now.waits[where[0], body.get("item"), body.get("slot", "")] = {"until": body.get("until")}

    def _signal_awaited(self, where: Where, body: Body, at: float) -> None:
        wait = {
            "until": body.get("until"), "signal": body.get("name", ""), "payload_schema": body.get("payload_schema", {}),
        }  # fmt: skip
        self.now.visit(where[0]).withdrawn.discard((level_of(body), body.get("slot", "")))
        takes = body.get("takes")
        if takes is None:
            self._begin_wait(where[0], body, wait)
        elif takes < len(self.now.aside) and self.now.aside[takes] == wait["signal"]:
            del self.now.aside[takes]
            self._fill(where[0], body, wait)
        else:
            self._say(
                "I9", f"{_named(where)} takes signal {takes} of those that were set aside, which is not there"
            )

    def _begin_wait(self, name: str, body: Body, wait: Body, *, first: bool = False) -> None:
        """Give a wait the oldest signal that no node has taken, or open it: as the `first`, or as the last."""
        now, signal = self.now, wait["signal"]
        if now.signals.get(signal):
            now.signals[signal] -= 1
            self._fill(name, body, wait)
            return
        place = (name, body.get("item"), body.get("slot", ""))
        if first:
            now.waits = {place: wait, **now.waits}
        else:
            now.waits[place] = wait

    def _fill(self, name: str, body: Body, wait: Body) -> None:
        level, slot = level_of(body), body.get("slot", "")
        self.keep(name, level, slot)
        self._note_filled(name, level, slot, wait)

    def _note_filled(self, name: str, level: int, slot: str, wait: Body) -> None:
        if wait.get("payload_schema"):
            self.now.visit(name).filled[level, slot] = wait

    def _signal_set_aside(self, where: Where, body: Body, at: float) -> None:
        name, level, slot = where[0], level_of(body), body.get("slot", "")
        visit = self.now.visit(name)
        if slot not in visit.kept.get(level, ()):
            self._say("I9", f"{_named(where)} sets a signal aside that it has not received")
        visit.kept.get(level, set()).discard(slot)
        self.now.aside.append(body.get("name", ""))
        wait = visit.filled.pop((level, slot), {"until": None, "signal": body.get("name", "")})
        self._begin_wait(name, body, wait, first=True)

    def _signal_received(self, where: Where, body: Body, at: float) -> None:
        self._deliver(body.get("name", ""))

    def _deliver(self, name: str) -> None:
        """Give a signal to the oldest wait for it, or keep it."""
        now = self.now
        for place, wait in now.waits.items():
            if wait.get("signal") == name:
                del now.waits[place]
                self._note_filled(place[0], NODE if place[1] is None else place[1], place[2], wait)
                self.resolve(*place)
                return
        now.signals[name] = now.signals.get(name, 0) + 1

    def _wait_withdrawn(self, where: Where, body: Body, at: float) -> None:
        now, level, slot = self.now, level_of(body), body.get("slot", "")
        visit, place = now.visit(where[0]), (where[0], body.get("item"), slot)
        asked = [
            key for key, one in now.questions.items() if (one["node"], one["item"], one["slot"]) == place
        ]
        returned = body.get("returned")
        if returned is None and place not in now.waits and not asked:
            self._say("I6", f"{_named(where)} withdraws the wait {slot!r}, which is not open")
        if returned is not None and slot not in visit.kept.get(level, ()):
            self._say("I9", f"{_named(where)} returns the signal {returned!r}, which it has not received")
        now.waits.pop(place, None)
        for key in asked:
            del now.questions[key]
        visit.withdrawn.add((level, slot))
        if returned is not None:
            visit.kept.get(level, set()).discard(slot)
            visit.filled.pop((level, slot), None)
            self._deliver(returned)

    def _timer_fired(self, where: Where, body: Body, at: float) -> None:
        now, place = self.now, (where[0], body.get("item"), body.get("slot", ""))
        wait = now.waits.pop(place, None)
        if wait is not None:
            until = wait.get("until")
            if until is not None and at < until:
                self._say("I6", f"the timer {place[2]!r} of {_named(where)} fires before its time")
            self.resolve(*place)
            return
        for key, asked in list(now.questions.items()):
            if (asked["node"], asked["item"], asked["slot"]) == place:
                del now.questions[key]
                if asked["about"] == "ask":
                    self.resolve(*place)
                else:
                    self.refuse(place[0])
                    now.settle()
                return
        self._say("I6", f"the timer {place[2]!r} of {_named(where)} fires, but is not set")

    def resolve(self, name: str, item: int | None, slot: str) -> None:
        """Fill the slot of a wait, and make the attempt due that waited for it."""
        visit, level = self.now.visit(name), NODE if item is None else item
        self.keep(name, level, slot)
        if slot in visit.parked.get(level, ()):
            self.now.unpark(visit, level)

    def _node_waiting(self, where: Where, body: Body, at: float) -> None:
        now, level = self.now, level_of(body)
        visit, slots = now.visit(where[0]), body.get("on", [])
        visit.parked[level] = slots
        if level == NODE:
            now.turn(visit, "waiting")
        else:
            self._item_ended("NodeWaiting", where, level, visit)
            self.now.rest(visit)
        now.settle()
        if any(slot in visit.kept.get(level, ()) for slot in slots):
            self.now.unpark(visit, level)

    # --- questions --------------------------------------------------------------------------------------

    def _asked(self, where: Where, body: Body, at: float) -> None:
        now, key, about = self.now, body.get("key", ""), body.get("about", "interrupt")
        if key in now.questions:
            self._say("I6", f"the question {key!r} is asked while it is already open")
        if about == "ask":
            self._require_inside("QuestionAsked", where, body)
            now.visit(where[0]).withdrawn.discard((level_of(body), body.get("slot", "")))
        now.questions[key] = {
            "node": where[0], "item": body.get("item"), "slot": body.get("slot", ""), "about": about,
            "until": body.get("until"),
        }  # fmt: skip
        if about != "ask":
            visit = now.visit(where[0])
            visit.question = key
            now.turn(visit, "waiting")
        now.settle()

    def _answered(self, where: Where, body: Body, at: float) -> None:
        now, key = self.now, body.get("key", "")
        asked = now.questions.get(key)
        if asked is None:
            self._say("I6", f"the question {key!r} is answered, but is not open")
            return
        if "stated" in body:
            self.steps.state(where, body["stated"], body.get("by"), body.get("reason"))
            if now.visit(where[0]).is_in_doubt():
                return
        del now.questions[key]
        if asked["about"] == "ask":
            self.resolve(asked["node"], asked["item"], asked["slot"])
            return
        visit = now.visit(asked["node"])
        visit.question = None
        repeat = now.repeats.get((asked["node"], where[1])) if asked["about"] == "repeat" else None
        if asked["about"] == "repeat" and repeat is None:
            self._say(
                "I6",
                f"{_named(where)} was not begun by the parent of the fork, so there is nothing to decide",
            )
        if repeat is not None and body.get("answer") in ("run", "skip"):
            repeat.choice = body["answer"]
        if body.get("refused"):
            self.refuse(asked["node"])
        else:
            self.rules.answer(asked["node"], asked["about"])
            visit.again |= visit.gone
            visit.gone = set()
            visit.forget_begun()
            now.turn(visit, "pending")
        now.rouse()

    def refuse(self, name: str) -> None:
        """Fail a node without running it, because its visit may not begin, or its result may not be used."""
        visit = self.now.visit(name)
        visit.question = None
        self.now.failed[name] = None
        self.now.turn(visit, "failed")

    # --- shared by several handlers ---------------------------------------------------------------------

    def _take_up(self, name: str, took: int) -> None:
        there = self.now.arrivals.pop(name, 0)
        if there < took:
            self._say(
                "I5",
                f"{name!r} starts with {took} arrived edges, but according to the log only {there} have arrived",
            )
        elif there > took:
            self.now.arrivals[name] = there - took

    def _close(self, name: str, visit: Visit, status: str) -> None:
        now = self.now
        if visit.question is not None:
            now.questions.pop(visit.question, None)
        if now.waits or now.questions:
            self.now.close_waits(name)
        now.forget_children(name)
        visit.question, visit.begun = None, False
        visit.kept, visit.parked, visit.filled, visit.withdrawn = {}, {}, {}, set()
        visit.returned, visit.verdict, visit.passed = None, "", set()
        visit.forget_items()
        now.open.pop(name, None)
        now.failed.pop(name, None)
        now.turn(visit, status)

    def _finish(self, name: str, visit: Visit, items: list[Body], body: Body) -> None:
        now, changes = self.now, body.get("changes", {})
        if now.schedule == "layered":
            now.held[name] = (items, changes)
            if body.get("caught"):
                self.rules.hold(name, body.get("routes", []))
        else:
            for part in items:
                apply(now.values, part)
            apply(now.values, changes)
            if body.get("routes") is None:
                visit.routed = False
                now.open[name] = None
            else:
                self.now.arrive(body["routes"])
                self.rules.lead(name, body["routes"], caught=body.get("caught", False))
        now.settle()


def _named(where: Where, item: int | None = None) -> str:
    node, iteration, execution, attempt = where
    return name_visit(node, iteration, execution, item, attempt)
