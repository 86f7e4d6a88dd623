"""The state of a run after a given event, for the checker: plain records that share no code with the engine.

A `RewindableState` is everything that a rewind undoes. `replay` makes it from events; this module makes it from a
stored snapshot, and knows nothing of events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

Body: TypeAlias = dict[str, Any]

NODE = -1
"""The number used in place of an item number for the node itself."""
_MOVING = frozenset({"running", "waiting", "paused"})


class Visit:
    """The latest visit of a node."""

    __slots__ = (
        "again", "attempt", "begun", "changes", "execution", "filled", "gone", "items", "iteration", "kept", "parked",
        "passed", "question", "returned", "routed", "running", "since", "status", "verdict", "weighed", "withdrawn",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status = ""
        self.iteration = 0
        self.execution = 1
        self.attempt = 0
        self.begun = False
        """True while the visit has started and not ended."""
        self.routed = True
        self.since = 0.0
        """When the node began to run, if it runs."""
        self.question: str | None = None
        self.items: int | None = None
        """The number of items if the node is a fan-out and has listed them, otherwise None."""
        self.running: dict[int, int] = {}
        """Number of an item -> the number of its running attempt."""
        self.again: set[int] = set()
        self.gone: set[int] = set()
        """Numbers of the items that failed for good."""
        self.changes: dict[int, Body] = {}
        """Number of a completed item -> the changes that it recorded."""
        self.kept: dict[int, set[str]] = {}
        self.parked: dict[int, list[str]] = {}
        self.filled: dict[tuple[int, str], Body] = {}
        """Item and slot -> a wait that a signal has ended, if the payload must fit a type."""
        self.withdrawn: set[tuple[int, str]] = set()
        """Item and slot of each wait that the node has withdrawn."""
        self.verdict = ""
        """What policies have decided about the next start: `allow`, `ask` or `deny`; empty if they have decided nothing."""
        self.returned: tuple[Any, Body] | None = None
        """What the node has returned and the files that it wrote, if they are kept and not used yet."""
        self.passed: set[str] = set()
        """Which of `verify` and `post` the result of the latest attempt has passed."""
        self.weighed: set[tuple[int, int, int, str]] = set()
        """Iteration, execution, attempt and target of each edge whose guard was evaluated."""

    def here(self) -> tuple[int, int, int]:
        return self.iteration, self.execution, self.attempt

    def forget_items(self) -> None:
        if self.items is not None:
            self.items = None
            self.running, self.again, self.gone, self.changes = {}, set(), set(), {}

    def cut_items(self) -> None:
        """Mark the running items as interrupted: they run again."""
        self.again |= self.running.keys()
        self.running = {}

    def forget(self, item: int, mark: str) -> None:
        """Forget the slots of an item (or of the node itself) that begin with this mark."""
        if item in self.kept:
            self.kept[item] = {slot for slot in self.kept[item] if not slot.startswith(mark)}

    def forget_begun(self) -> None:
        """Forget which steps were about to be called, because it was decided that the visit runs again."""
        for item in list(self.kept):
            self.forget(item, "begun:")

    def is_in_doubt(self) -> bool:
        """Return whether a step that must not be called twice was about to be called, and has no outcome."""
        return any(
            slot.startswith("begun:") and not {f"step:{slot[6:]}", f"raised:{slot[6:]}"} & slots
            for slots in self.kept.values()
            for slot in slots
        )


class Repeat:
    """A visit that the parent of a fork has begun, and what was decided about it."""

    __slots__ = ("choice", "items", "kept", "whole")

    def __init__(self, choice: str = "") -> None:
        self.choice = choice
        """`run`, `skip`, or empty if nothing is decided."""
        self.whole: Body | None = None
        """What the parent did of the visit itself; None if it is a fan-out of which only items are known."""
        self.items: dict[int, Body] = {}
        """Number of an item that the parent has begun -> the changes that it recorded there."""
        self.kept: set[int] = set()
        """Numbers of the items whose results the fork uses without a decision."""

    def note(self, deed: Body) -> None:
        """Note one entry of the list that the fork begins with."""
        if deed.get("item") is None:
            self.whole = deed.get("result") or {}
            return
        self.items[deed["item"]] = deed.get("result") or {}
        self.kept |= {deed["item"]} if deed.get("kept") else set()

    def allows(self) -> bool:
        """Return whether the visit may begin."""
        if self.whole is not None:
            return self.choice == "run"
        return bool(self.choice) or self.items.keys() <= self.kept

    def reused(self, count: int) -> dict[int, Body]:
        """Return the results of the items that do not run again, in a list of `count` items."""
        again = set() if self.choice == "skip" else self.items.keys() - self.kept
        return {item: told for item, told in self.items.items() if item < count and item not in again}


class ChildRecord:
    """A child run that a visit has started."""

    __slots__ = ("cancels", "ended", "execution", "has_end", "is_final", "item", "iteration", "node", "slots")

    def __init__(self, node: str, iteration: int, execution: int, item: int | None, cancels: bool) -> None:
        self.node = node
        self.iteration = iteration
        self.execution = execution
        self.item = item
        self.cancels = cancels
        self.ended = 0
        """The seq of its latest end that the log has; 0 if it has none."""
        self.is_final = False
        """True if the child cannot end again."""
        self.has_end = False
        """True if there is an end for the next wait."""
        self.slots: set[tuple[int, str]] = set()
        """Item and slot of each wait that has an end of this child."""

    def take(self, level: int, slot: str) -> None:
        """Give the end to a wait. A failure stays for the next one, because the node may be retried."""
        self.slots.add((level, slot))
        self.has_end = not self.is_final


class RewindableState:
    """The state of a run after a given event: everything that a rewind undoes."""

    def __init__(self) -> None:
        self.status = "new"
        self.paused = False
        self.failed_with: Body | None = None
        """The failure of the run, or None if the run has not failed or was resumed."""
        self.flow = ""
        self.fingerprint = ""
        self.state_version = 1
        self.schedule = "eager"
        self.created_at = 0.0
        self.labels: dict[str, str] = {}
        self.parent: str | None = None
        self.lineage = ""
        """The run whose idempotency keys a fork shares; empty if it has its own."""
        self.repeats: dict[tuple[str, int], Repeat] = {}
        """(node, iteration) -> what the parent of a fork has begun of this visit."""
        self.values: Body = {}
        self.nodes: dict[str, Visit] = {}
        self.open: dict[str, None] = {}
        self.arrivals: dict[str, int] = {}
        self.held: dict[str, tuple[list[Body], Body]] = {}
        """For a layered flow: node that completed while its layer has not -> the changes of its items, and its own changes."""
        self.caught: dict[str, list[str]] = {}
        """Those of them whose failure an edge of the plan takes -> where the run goes from there."""
        self.failed: dict[str, None] = {}
        self.questions: dict[str, Body] = {}
        self.waits: dict[tuple[str, int | None, str], Body] = {}
        """(node, item, slot) -> the wait that is recorded under this slot and is not over."""
        self.signals: dict[str, int] = {}
        """Name of a signal -> how many signals of that name no node has received yet."""
        self.aside: list[str] = []
        """The names of the signals that nodes could not use, oldest first."""
        self.origin: str | None = None
        """The run that started this one."""
        self.first_names: dict[str, str] = {}
        """Node that was renamed, or has the name that such a node had -> its first name."""
        self.children: dict[str, ChildRecord] = {}
        self.failed_for: dict[tuple[str, int], str] = {}
        """Node and item that failed because a child did -> that child."""
        self.plan = False
        """True if the run is one of a plan. The next three are empty otherwise."""
        self.routes: dict[str, list[str]] = {}
        """Node whose edges are decided -> the nodes that it leads to; none if it is skipped."""
        self.undecided: dict[str, int] = {}
        """Node -> how many edges to it are not decided."""
        self.doomed: dict[str, float] = {}
        """Node that can never run any more and is not skipped yet -> the time of the event by which this was decided."""
        self.at = self.last_at = 0.0
        """The times of the event that is being read, and of the event before it."""
        self.active_s = 0.0
        self.budget: dict[str, float] | None = None
        """The limits of what the run may cost; None if it has none."""
        self.scope: list[str] | None = None
        """The only nodes that may start, sorted; None if all may."""
        self.usd = self.children_usd = 0.0
        self.tokens = self.children_tokens = 0
        self.busy = 0
        self.idle = 0
        """The number of nodes that wait; `busy` is the number of nodes that run."""

    def visit(self, name: str) -> Visit:
        found = self.nodes.get(name)
        if found is None:
            found = self.nodes[name] = Visit()
        return found

    def turn(self, visit: Visit, status: str, until: float | None = None) -> None:
        """Set the status of a node's visit, and update `busy`, `idle` and `active_s`. A node that ran did so until now, or until
        the time given.
        """
        if visit.status == "running":
            self.active_s += max(0.0, (self.at if until is None else until) - visit.since)
        if status == "running":
            visit.since = self.at
        self.busy += (status == "running") - (visit.status == "running")
        self.idle += (status == "waiting") - (visit.status == "waiting")
        visit.status = status

    def arrive(self, routes: Iterable[str]) -> None:
        """Note that the run has reached these nodes."""
        for name in routes:
            if name != "END":
                self.arrivals[name] = self.arrivals.get(name, 0) + 1

    def close_waits(self, name: str, item: int | None = None) -> None:
        """Close the waits and questions of a node's visit, or of one of its items."""
        for place in [place for place in self.waits if place[0] == name and item in (None, place[1])]:
            del self.waits[place]
        for key, asked in list(self.questions.items()):
            if asked["node"] == name and asked["slot"] and item in (None, asked["item"]):
                del self.questions[key]

    def cut(self) -> None:
        """Mark all running attempts as interrupted: the process that ran them no longer holds the run."""
        for name in self.open:
            visit = self.visit(name)
            if visit.status == "running":
                visit.cut_items()
                self.turn(visit, "interrupted", self.last_at)

    def rest(self, visit: Visit) -> None:
        """Set a fan-out to waiting if none of its items runs and at least one waits."""
        if visit.items is not None and visit.parked and not visit.running and visit.status == "running":
            self.turn(visit, "waiting")
            self.settle()

    def unpark(self, visit: Visit, level: int) -> None:
        """Make an attempt that has unwound due again, because something that it waited for has come."""
        if level != NODE:
            visit.again.add(level)
            if visit.question is not None:
                return
        elif visit.status == "waiting":
            self.turn(visit, "pending")
        self.rouse()

    def next_try(self, name: str, item: int | None, step: str) -> str:
        """Return the slot of the wait before the next try of a step."""
        number, kept = 2, self.visit(name).kept.get(NODE if item is None else item, set())
        while f"try:{step}:{number}" in kept:
            number += 1
        return f"try:{step}:{number}"

    def end_try(self, name: str, item: int | None, step: str) -> None:
        """End the wait before a try of a step that was made, if that is not recorded yet."""
        slot = self.next_try(name, item, step)
        if self.waits.pop((name, item, slot), None) is not None:
            self.visit(name).kept.setdefault(NODE if item is None else item, set()).add(slot)

    def reopen(self) -> None:
        """Make every open visit due again, as a new execution. Called after a rewind and at the start of a fork."""
        for name in tuple(self.open):
            visit = self.visit(name)
            if not visit.routed:
                self.route_again(name)
                continue
            if visit.begun:
                visit.attempt = 0
            visit.forget_items()
            visit.question, visit.kept, visit.parked, visit.filled, visit.withdrawn = None, {}, {}, {}, set()
            visit.verdict, visit.returned = "", None
            self.turn(visit, "pending", visit.since)
            self.children = {run: child for run, child in self.children.items() if child.node != name}
        for name in self.arrivals:
            gate = self.nodes.get(name)
            if gate is not None and name not in self.open and gate.status in ("waiting", "failed"):
                gate.question, gate.verdict = None, ""
                self.turn(gate, "pending")
        self.failed.clear()
        self.questions.clear()
        self.waits.clear()
        self.failed_with, self.paused = None, False

    def try_again(self, name: str, *, fresh: bool) -> None:
        """Make a failed, interrupted or waiting visit due again."""
        visit = self.nodes.get(name)
        if visit is None or (name not in self.open and name not in self.failed):
            return
        self.failed.pop(name, None)
        if not visit.routed:
            self.route_again(name)
            return
        if visit.question is not None:
            self.questions.pop(visit.question, None)
        visit.question, visit.verdict = None, ""
        waited, visit.parked = visit.parked, {}
        for _, item, slot in [
            place for place in self.waits if place[0] == name and place[2].startswith("try:")
        ]:
            visit.kept.setdefault(NODE if item is None else item, set()).add(slot)
        self.close_waits(name)
        if not fresh:
            self.doubt_children(name)
        visit.forget_begun()
        if name in self.open and not fresh and visit.items is not None:
            visit.again |= visit.gone | waited.keys()
            visit.gone = set()
        elif name in self.open and fresh:
            visit.attempt = 0
        self.turn(visit, "pending")

    def note_failure(self, name: str, item: int, body: Body) -> None:
        """Note for which child a node, or an item of it, has failed."""
        self.failed_for.pop((name, item), None)
        if body.get("failure", {}).get("child"):
            self.failed_for[name, item] = body["failure"]["child"]

    def is_open(self, child: ChildRecord) -> bool:
        """Return whether the visit, or the item, that started a child has not ended."""
        visit = self.visit(child.node)
        if child.node not in self.open or (visit.iteration, visit.execution) != (
            child.iteration,
            child.execution,
        ):
            return False
        return child.item is None or visit.items is None or child.item not in visit.changes

    def forget_children(self, name: str, item: int | None = None) -> None:
        """Forget the children of a visit or an item that has ended, except those that are cancelled with this run."""
        for run, child in list(self.children.items()):
            if child.node == name and item in (None, child.item) and (child.is_final or not child.cancels):
                del self.children[run]

    def doubt_children(self, name: str) -> None:
        """Empty the slots of the children for which a node, or items of it, failed: the node is tried again."""
        failed = [place for place in self.failed_for if place[0] == name]
        for place, run in [(one, run) for one in failed for run in self.failed_for.pop(one).split()]:
            child = self.children.get(run)
            if child is not None and (child.has_end or not child.is_final):
                for level, slot in [one for one in child.slots if one[0] == place[1]]:
                    self.visit(name).kept.get(level, set()).discard(slot)
                    child.slots.discard((level, slot))

    def await_anew(self, name: str, runs: Iterable[str]) -> None:
        """Empty the slots of children that failed while the visit waited, and that were resumed with the run."""
        for child in [self.children[run] for run in runs if run in self.children]:
            for level, slot in sorted(child.slots):
                self.visit(name).kept.get(level, set()).discard(slot)
            child.slots.clear()

    def route_again(self, name: str) -> None:
        """Let a completed node whose router failed be routed again: in a layered flow, with its layer."""
        if name in self.held:
            self.visit(name).routed = True
            self.open.pop(name, None)

    def first_name(self, name: str) -> str:
        """Return the name that a node had before it was renamed. A node with a name that another one has given up is counted."""
        return self.first_names.get(name, name)

    def rename(self, rename: dict[str, str], *, keeps_keys: bool) -> None:
        """Move everything that is known about renamed nodes to their new names."""
        if keeps_keys:
            before = dict(self.first_names)
            taken = set(before.values()) | {before.get(old, old) for old in rename}
            for old in rename.keys() - set(rename.values()):
                self.first_names[old] = next(one for i in range(2, 999) if (one := f"{old}~{i}") not in taken)
            self.first_names.update((new, before.get(old, old)) for old, new in rename.items())
        for part in ("nodes", "open", "failed", "arrivals", "held"):
            setattr(self, part, {rename.get(name, name): what for name, what in getattr(self, part).items()})
        for key, asked in list(self.questions.items()):
            before, asked["node"] = asked["node"], rename.get(asked["node"], asked["node"])
            if asked["about"] == "ask" and not keeps_keys:
                del self.questions[key]
                self.questions[asked["node"] + key.removeprefix(before)] = asked
        for child in self.children.values():
            child.node = rename.get(child.node, child.node)
        places = self.failed_for.items()
        self.failed_for = {(rename.get(name, name), item): run for (name, item), run in places}
        waits = self.waits.items()
        self.waits = {(rename.get(name, name), item, slot): what for (name, item, slot), what in waits}
        self.repeats = {(rename.get(name, name), visit): what for (name, visit), what in self.repeats.items()}
        if self.scope is not None:
            self.scope = sorted(rename.get(name, name) for name in self.scope)

    def settle(self) -> None:
        """Derive the status of the run from its nodes."""
        still = "paused" if self.paused else "waiting" if self.idle else ""
        if self.status in _MOVING:
            self.status = "running" if self.busy else still or "running"
        elif self.status == "pending":
            self.status = still or "pending"

    def rouse(self) -> None:
        """Mark the run as pending: it can continue, and no engine has claimed it yet."""
        self.settle()
        if not self.busy and self.status in ("running", "waiting"):
            self.status = "pending"


def repeats_of(visits: Iterable[Body], choices: dict[str, str]) -> dict[tuple[str, int], Repeat]:
    """Return what the parent of a fork has begun, by visit, from the list with which the fork begins."""
    found: dict[tuple[str, int], Repeat] = {}
    for deed in visits:
        place = deed["node"], deed["iteration"]
        found.setdefault(place, Repeat(choices.get(deed["node"], ""))).note(deed)
    return found


def apply(values: Body, changes: Body) -> None:
    """Apply the changes that an event recorded to the values of a state."""
    for part, change in changes.items():
        match part:
            case "set":
                values.update(change)
            case "append":
                for field, added in change.items():
                    values[field] = [*(values.get(field) or ()), *added]
            case "merge":
                for field, entries in change.items():
                    values[field] = {**(values.get(field) or {}), **entries}
            case "add":
                for field, amount in change.items():
                    values[field] = values.get(field, 0) + amount
            case "unset":
                for field in change:
                    values.pop(field, None)
            case _:
                pass  # `reduce` has the operands of custom reducers; their results are in `set`


def level_of(body: Body) -> int:
    """Return the number of the item that an event belongs to, or `NODE`."""
    item = body.get("item")
    return NODE if item is None else int(item)


def name_visit(
    node: str, iteration: int, execution: int, item: int | None = None, attempt: int | None = None
) -> str:
    """Return a name for use in messages: of a visit of a node or an item or, if `attempt` is given, of one attempt of it."""
    whose = f"node {node!r}" if item is None or item == NODE else f"item {item} of node {node!r}"
    tried = "" if attempt is None else f", attempt {attempt}"
    return f"{whose} (iteration {iteration}, execution {execution}{tried})"


def told_by(snapshot: Body) -> Body:
    """Return the state in a stored snapshot. Older versions cannot read the second form, with which they would miss a limit."""
    told: Body = snapshot.get("run" if snapshot.get("v") == 2 else "state", {})
    return told


def standing_of(snapshot: Body) -> RewindableState:
    """Make the state of a run from a stored snapshot."""
    told = told_by(snapshot)
    now = RewindableState()
    for part in (
        "status",
        "paused",
        "flow",
        "fingerprint",
        "state_version",
        "schedule",
        "created_at",
        "labels",
        "parent",
        "active_s",
        "lineage",
        "origin",
        "plan",
        "budget",
        "usd",
        "tokens",
        "children_usd",
        "children_tokens",
    ):
        setattr(now, part, told.get(part, getattr(now, part)))
    now.scope = sorted(told["scope"]) if told.get("scope") is not None else None
    now.at = now.last_at = told.get("at", 0.0)
    now.values = told.get("values", {})
    now.first_names = dict(told.get("key_names", {}))
    now.arrivals = dict(told.get("arrivals", {}))
    now.open, now.failed = dict.fromkeys(told.get("open", ())), dict.fromkeys(told.get("failed", ()))
    now.failed_with = told.get("failure")
    now.held = {
        name: (held.get("items", []), held.get("changes", {})) for name, held in told.get("held", {}).items()
    }
    now.caught = {
        name: held["routes"] for name, held in told.get("held", {}).items() if held.get("routes") is not None
    }
    now.signals = {name: len(waiting) for name, waiting in told.get("signals", {}).items()}
    now.aside = [signal["name"] for signal in told.get("aside", ())]
    for wait in told.get("waits", {}).values():
        now.waits[wait["node"], wait.get("item"), wait["slot"]] = wait
    for run, child in told.get("children", {}).items():
        now.children[run] = _child_of(child)
    for key, asked in told.get("questions", {}).items():
        now.questions[key] = {"item": None, "slot": "", "about": "interrupt", "until": None, **asked}
    for name, visits in told.get("begun", {}).items():
        for iteration, visit in visits.items():
            repeat = now.repeats[name, int(iteration)] = Repeat(visit.get("choice") or "")
            whole = visit.get("whole")
            for deed in [*([whole] if whole is not None else []), *visit.get("items", {}).values()]:
                repeat.note(deed)
    begun = snapshot.get("inputs", {})
    for name, node in told.get("nodes", {}).items():
        now.nodes[name] = found = _visit_of(node)
        found.begun = name in begun
        now.busy += found.status == "running"
        now.idle += found.status == "waiting"
        if node.get("routes") is not None:
            now.routes[name] = node["routes"]
        _note_ends(now, name, node)
    return now


def _child_of(told: Body) -> ChildRecord:
    child = ChildRecord(
        told["node"], told["iteration"], told["execution"], told.get("item"), told.get("cancels", False)
    )
    child.ended, child.is_final = told.get("ended", 0), told.get("is_final", False)
    child.has_end = told.get("end") is not None
    return child


def _note_ends(now: RewindableState, name: str, node: Body) -> None:
    """Note which slots of a node have the end of a child, and for which child it, or an item of it, has failed."""
    for item, slots in node.get("kept", {}).items():
        for slot, value in slots.items():
            child = now.children.get(value[0]["run"]) if slot.startswith("child:") and value else None
            if child is not None:
                child.slots.add((int(item), slot))
    items = node.get("items")
    failures = {NODE: node.get("failure")} if items is None else items.get("failed", {})
    for item, failure in failures.items():
        if failure and failure.get("child"):
            now.failed_for[name, int(item)] = failure["child"]


def _visit_of(node: Body) -> Visit:
    visit = Visit()
    visit.status = node.get("status", "pending")
    visit.iteration, visit.execution = node.get("iteration", 0), node.get("execution", 1)
    visit.attempt, visit.routed = node.get("attempt", 0), node.get("routed", True)
    visit.question = node.get("question")
    visit.verdict = "allow" if node.get("approved") else "ask" if visit.question is not None else ""
    returned = node.get("returned")
    visit.returned = (returned.get("value"), returned.get("artifacts", {})) if returned is not None else None
    # What the result of a running attempt has passed is not stored: the base may be between its verdicts and its completion.
    accepted = visit.status == "running" or (returned is not None and returned.get("accepted"))
    visit.passed = {"verify", "post"} if accepted else set()
    visit.since = node.get("started_at", 0.0)
    visit.kept = {int(item): set(slots) for item, slots in node.get("kept", {}).items()}
    visit.parked = {int(item): slots for item, slots in node.get("parked", {}).items()}
    for item, waits in node.get("filled", {}).items():
        visit.filled.update({(int(item), slot): wait for slot, wait in waits.items()})
    for item, slots in node.get("withdrawn", {}).items():
        visit.withdrawn.update((int(item), slot) for slot in slots)
    items = node.get("items")
    if items is not None:
        visit.items = len(items["values"])
        visit.running = {int(item): attempt for item, attempt in items.get("running", {}).items()}
        visit.again = {int(item) for item in items.get("again", ())}
        visit.gone = {int(item) for item in items.get("failed", ())}
        visit.changes = {int(item): changes for item, changes in items.get("done", {}).items()}
    return visit
