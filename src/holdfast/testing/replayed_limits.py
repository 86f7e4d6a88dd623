"""The part of the second reading that concerns the budget and the scope of a run (`replay`), by rules of its own: once a limit of
the budget is reached, no attempt and no child run begins; a node that is not in scope never starts.

This module shares no code with the engine. Invariant: what counts is what the log had said when the event was decided on. Events
of one append have the same time, and the first of them may end an attempt: so the seconds of activity are those up to the last
event with an earlier time.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.testing.replayed_children import ChildReplay, Where
from holdfast.testing.standings import Body, RewindableState

_TINY = 1e-9


class Replayed(Protocol):
    """The part of a `Replay` that is used here."""

    now: RewindableState
    children: ChildReplay

    def report(self, invariant: str, text: str) -> None: ...


class LimitReplay:
    """The budget and the scope of a run according to its log, and what it has spent."""

    def __init__(self, replay: Replayed) -> None:
        self._replay = replay
        self._active_s = 0.0

    def look(self, at: float) -> None:
        """Note how long nodes were active, before an event with this time is read."""
        now = self._replay.now
        if now.budget is not None and at > now.last_at:
            runs = [now.visit(name) for name in now.open if now.visit(name).status == "running"]
            self._active_s = now.active_s + sum(max(0.0, now.last_at - visit.since) for visit in runs)

    def set(self, body: Body) -> None:
        """Read the limits with which a run is created, or resumed."""
        now = self._replay.now
        if body.get("budget") is not None:
            now.budget = body["budget"]
        if body.get("scope") is not None:
            now.scope = None if body["scope"] == ["*"] else sorted(body["scope"])

    def carry(self, body: Body) -> None:
        """Read the costs that a rewind does not undo."""
        now = self._replay.now
        now.usd = max(now.usd, body.get("usd", 0.0))
        now.tokens = max(now.tokens, body.get("tokens", 0))
        now.children_usd = max(now.children_usd, body.get("children_usd", 0.0))
        now.children_tokens = max(now.children_tokens, body.get("children_tokens", 0))
        self._active_s = max(self._active_s, body.get("active_s", 0.0))

    def spend(self, where: Where, body: Body, at: float) -> None:
        """Read a cost that a node has reported."""
        self._replay.now.usd += body.get("usd", 0.0)
        self._replay.now.tokens += body.get("tokens", 0)

    def start_child(self, where: Where, body: Body, at: float) -> None:
        """Read the start of a child, which may not begin over the budget; one that existed already may be adopted."""
        if not body.get("adopted"):
            self.require_budget(f"the child {body.get('run')!r} of node {where[0]!r}")
        self._replay.children.start(where, body, at)

    def end_child(self, where: Where, body: Body, at: float) -> None:
        """Read the end of a child, with its cost."""
        self._replay.now.children_usd += body.get("usd", 0.0)
        self._replay.now.children_tokens += body.get("tokens", 0)
        self._replay.children.end(where, body, at)

    def require_budget(self, what: str) -> None:
        """Report what begins although the budget of the run is spent."""
        now = self._replay.now
        if now.budget is None:
            return
        spent = {
            "usd": now.usd + now.children_usd,
            "tokens": now.tokens + now.children_tokens,
            "active_s": self._active_s,
        }
        over = [name for name, limit in now.budget.items() if spent[name] >= limit - _TINY]
        if over:
            text = ", ".join(f"{spent[name]:g} of {now.budget[name]:g} {name}" for name in over)
            self._replay.report("I17", f"{what} begins although the budget of the run is spent ({text})")

    def require_scope(self, name: str, what: str) -> None:
        """Report a node that starts although it is not in the scope of the run."""
        scope = self._replay.now.scope
        if scope is not None and name not in scope:
            self._replay.report("I17", f"{what} starts although the node is not in the scope of the run")
