"""The part of the second reading that concerns rules (`replay`): guards on the edges of a plan, the nodes that it skips,
policies, and the verification of results (invariant I18 in docs/testing.md).

- Each edge of a plan is decided once: taken or not. What guards decided is followed at once by the route.
- A node of a plan begins only when all edges to it are decided and enough of them are taken. If too few are, it is skipped,
  together with every other node that can never run; then it never begins.
- A visit that policies judge begins only after they, or an answer to their question, have allowed it.
- What a node has returned is used only if it passed its verification and its policies; until then the node is not called again.

This module shares no code with the engine. Invariant: what a rewind undoes is in the `RewindableState`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from holdfast.testing.checked_definitions import CheckedFlow
from holdfast.testing.standings import Body, RewindableState, Visit, name_visit

Where: TypeAlias = tuple[str, int, int, int]
Shapes: TypeAlias = Callable[[str], CheckedFlow | None]
"""Returns what the definition with a fingerprint says; None if it is not known."""

_ROUTES = frozenset({"NodeCompleted", "NodeRouted", "NodeSkipped"})
_ACCEPTED = frozenset({"GuardEvaluated", "NodeCompleted"})
_NOT_ACCEPTED = frozenset({"NodeReturned", "NodeFailed"})
_STRICTEST = ("deny", "ask", "allow")


class Replayed(Protocol):
    """The part of a `Replay` that is used here."""

    now: RewindableState

    def report(self, invariant: str, text: str) -> None: ...

    def refuse(self, name: str) -> None:
        """Fail a node without running it."""


class RuleReplay:
    """What rules have decided in a run, according to its log."""

    def __init__(self, replay: Replayed, shapes: Shapes) -> None:
        self._replay = replay
        self._shapes = shapes
        self._owed: dict[str, tuple[str, frozenset[str]]] = {}
        """Node -> an event of it that other events follow at once, in the same append, and the kinds of these."""
        self._verdicts: dict[str, dict[str, bool]] = {}
        """Node -> what its guards have decided, until its route is read."""
        self._unread: set[str] = set()
        """The nodes whose guards may have been evaluated by an event that a base replaces."""

    @property
    def shape(self) -> CheckedFlow | None:
        """What the definition of the run's flow says; None if it is not known."""
        return self._shapes(self._replay.now.fingerprint)

    def _plan(self) -> CheckedFlow | None:
        shape = self.shape if self._replay.now.plan else None
        return shape if shape is not None and shape.is_plan else None

    # --- what follows at once ---------------------------------------------------------------------------

    def look(self, kind: str, where: Where, body: Body) -> None:
        """Report an event that comes in place of one that had to follow at once."""
        if not self._owed or kind == "NodeStreamed":
            return
        name = where[0]
        if kind == "LayerCompleted":
            for done in body.get("nodes", ()):
                if self._owed.get(done, ("",))[0] == "GuardEvaluated":
                    del self._owed[done]
        elif name in self._owed and kind in self._owed[name][1]:
            del self._owed[name]
            return
        elif kind == "GuardEvaluated" and {one for one, _ in self._owed.values()} == {"GuardEvaluated"}:
            return  # the guards of a layer are evaluated one after the other
        self.end(kind)

    def end(self, kind: str = "the end of the log") -> None:
        """Report everything that had to follow at once and did not."""
        for name, (what, wanted) in self._owed.items():
            self._say(f"{what} of node {name!r} must be followed at once by {_one_of(wanted)}, not by {kind}")
        self._owed.clear()

    def _owe(self, where: Where, kind: str, *kinds: str) -> None:
        self._owed[where[0]] = kind, frozenset(kinds)

    # --- guards and skips -------------------------------------------------------------------------------

    def evaluate(self, where: Where, body: Body, at: float) -> None:
        name, verdicts, now = where[0], body.get("verdicts", {}), self._replay.now
        visit = now.visit(name)
        if name in now.routes:
            self._say(f"the guards of {_named(where)} are evaluated although its route is decided")
        again = sorted(target for target in verdicts if (*where[1:], target) in visit.weighed)
        if again:
            self._say(f"the guards of {_named(where)} on the edges to {again} are evaluated a second time")
        visit.weighed |= {(*where[1:], target) for target in verdicts}
        shape = self._plan()
        strange = sorted(verdicts.keys() - {*shape.targets.get(name, ())}) if shape is not None else []
        if strange:
            self._say(
                f"the guards of {_named(where)} decide about edges that the plan does not have: {strange}"
            )
        self._verdicts[name] = verdicts
        if visit.status != "failed" or any(verdicts.values()):
            self._owe(where, "GuardEvaluated", *_ROUTES)

    def hold(self, name: str, routes: list[str]) -> None:
        """Read where the run goes from a node of a layered run whose failure an edge takes. The route counts with its layer."""
        self._compare(name, routes, caught=True)
        self._replay.now.caught[name] = list(routes)

    def lead(self, name: str, routes: list[str], *, caught: bool = False) -> None:
        """Read where the run goes from a node that has ended. Does nothing for a graph in code."""
        now = self._replay.now
        if not now.plan:
            return
        held = now.caught.pop(name, None)
        if held is None:
            self._compare(name, routes, caught=caught)
        elif held != routes:
            self._say(
                f"an edge took the failure of node {name!r} and led to {held}, but the route is {routes}"
            )
        self._decide(name, list(routes))

    def _compare(self, name: str, routes: list[str], *, caught: bool) -> None:
        """Compare a route with what the guards have decided, and with the edges of the plan."""
        if name in self._unread and name not in self._verdicts:
            self._unread.discard(name)
            return
        verdicts, shape = self._verdicts.pop(name, {}), self._plan()
        for target, taken in verdicts.items():
            if taken != (target in routes):
                said = "true" if taken else "false"
                self._say(
                    f"the guard on the edge {name!r} -> {target!r} is {said}, but the route is {routes}"
                )
        if shape is None or not shape.says_guards:
            return
        wanted = shape.must_lead(name, verdicts, caught=caught)
        if wanted is None:
            self._say(f"the route of node {name!r} is decided without its guards")
        elif wanted != {*routes} - {"END"} and (not caught or not {*routes} <= wanted):
            self._say(f"node {name!r} must lead to {sorted(wanted)}, but the route is {routes}")

    def _decide(self, name: str, routes: list[str]) -> None:
        """Note that the edges out of a node are decided, and which nodes can never run any more."""
        now, shape = self._replay.now, self._plan()
        if name in now.routes:
            self._say(f"the edges out of node {name!r} are decided a second time")
            return
        now.routes[name] = routes
        for target in shape.targets.get(name, ()) if shape is not None else ():
            now.undecided[target] -= 1
            if not now.undecided[target] and self._taken(target) < shape.wanted(target):  # type: ignore[union-attr]
                now.doomed[target] = now.at

    def _taken(self, name: str) -> int:
        shape, routes = self._plan(), self._replay.now.routes
        return sum(name in routes.get(source, ()) for source in shape.sources[name]) if shape else 0

    def begin(self) -> None:
        """Begin with a stored state. A base may be between what guards decided and the route that follows."""
        self._unread = {*self._replay.now.open, *self._replay.now.failed}
        self.count_edges()

    def count_edges(self) -> None:
        """Count the edges that are not decided, and find the nodes that can never run: when a run begins, or its flow changes."""
        now, shape = self._replay.now, self._plan()
        now.undecided, now.doomed = {}, {}
        for name, sources in shape.sources.items() if shape is not None else ():
            now.undecided[name] = sum(source not in now.routes for source in sources)
            begun = name in now.nodes and now.nodes[name].iteration
            if not now.undecided[name] and not begun and self._taken(name) < shape.wanted(name):  # type: ignore[union-attr]
                now.doomed[name] = now.at

    def skip(self, where: Where, body: Body, at: float) -> None:
        now, why = self._replay.now, body.get("why", {})
        shape = self._plan()
        for name in body.get("nodes", ()):
            visit = now.visit(name)
            if visit.iteration or name in now.open or visit.question is not None:
                self._say(f"node {name!r} is skipped although it has begun, or is asked about")
            elif shape is not None and name not in now.doomed:
                self._say(f"node {name!r} is skipped although it can still run, or was skipped")
            source = why.get(name)
            if source is None or name in now.routes.get(source, [name]):
                self._say(f"node {name!r} is skipped because of the edge from {source!r}, which is not so")
            now.doomed.pop(name, None)
            now.arrivals.pop(name, None)
            visit.iteration = 1
            now.turn(visit, "skipped")
            self._decide(name, [])
        if now.doomed:
            self._say(f"the skip leaves nodes that can never run: {[*now.doomed]}")
        now.settle()

    def require_closed(self, what: str, *, at_once: bool = False) -> None:
        """Report nodes that can never run and are not skipped when something else begins, or (`at_once`) the run ends. Events
        with the same time may be one append, in any order.
        """
        now = self._replay.now
        left = [name for name, since in now.doomed.items() if at_once or since < now.at]
        if left:
            self._say(f"{what} comes before the skip of nodes that can never run: {left}")

    def require_complete(self) -> None:
        """Report the nodes of a plan that are neither done, nor skipped, nor handled when the run is completed."""
        shape = self._plan()
        left = [name for name in shape.sources if name not in self._replay.now.routes] if shape else []
        if left:
            self._say(f"the run is completed, but these nodes are neither done nor skipped: {left}")

    # --- policies and verification ----------------------------------------------------------------------

    def judge(self, where: Where, body: Body, at: float) -> None:
        stage, verdict = body.get("stage", "pre"), body.get("verdict", "allow")
        decisions = {one.get("verdict") for one in body.get("decisions", ())}
        strictest = next((one for one in _STRICTEST if one in decisions), "allow")
        if verdict != ("deny" if body.get("failure") else strictest):
            self._say(f"the verdict about {_named(where)} is {verdict!r}, but the strictest is {strictest!r}")
        visit = self._replay.now.visit(where[0])
        if stage == "post":
            self._require_running("PolicyDecided", where, visit)
            self._owe(where, "PolicyDecided", *_after(verdict))
            if verdict == "allow":
                visit.passed.add("post")
            return
        if visit.status == "running":
            self._say(f"the policies decide whether {_named(where)} may begin, which has begun")
        visit.verdict = verdict
        if not visit.status:
            self._replay.now.turn(visit, "pending")
        if verdict == "ask":
            self._owe(where, "PolicyDecided", "QuestionAsked")
        elif verdict == "deny":
            visit.weighed = set()
            self._replay.refuse(where[0])
            self._replay.now.rouse()

    def verify(self, where: Where, body: Body, at: float) -> None:
        ok, visit = body.get("ok", True), self._replay.now.visit(where[0])
        self._require_running("OutputVerified", where, visit)
        if ok != all(one.get("ok") for one in body.get("checks", ())):
            self._say(f"the verification of {_named(where)} says {ok}, and its checks something else")
        if ok:
            visit.passed.add("verify")
        allowed = {*_ACCEPTED, "PolicyDecided", *_NOT_ACCEPTED} if ok else _NOT_ACCEPTED
        self._owe(where, "OutputVerified", *allowed)

    def keep(self, where: Where, body: Body, at: float) -> None:
        visit = self._replay.now.visit(where[0])
        self._require_running("NodeReturned", where, visit)
        if visit.returned is not None:
            self._say(f"what {_named(where)} has returned is kept a second time")
        visit.returned = (body.get("value"), body.get("artifacts", {}))
        self._owe(where, "NodeReturned", "NodeFailed", "QuestionAsked")

    def answer(self, name: str, about: str) -> None:
        """Read an answer that approves: a visit may begin, or what a node has returned is used."""
        visit = self._replay.now.visit(name)
        if about == "gate" and visit.verdict == "ask":
            visit.verdict = "allow"
        elif about == "result":
            visit.passed |= {"verify", "post"}

    def fail(self, where: Where, visit: Visit, body: Body) -> None:
        """Read a failed attempt. What it returned is dropped only if it is called again: after a failed verification. Guards
        decide about each failure again.
        """
        visit.weighed = set()
        if body.get("retry_at") is None or visit.returned is None:
            return
        shape = self.shape
        if body.get("failure", {}).get("type") != "VerificationFailed":
            self._say(
                f"{_named(where)} has returned, and is called again for another reason than its verification"
            )
        elif shape is not None and where[0] in shape.once:
            self._say(f"{_named(where)} has returned and is not idempotent, and is called again")
        visit.returned = None

    # --- starts and ends --------------------------------------------------------------------------------

    def require_allowed(self, where: Where, visit: Visit) -> None:
        """Report a start that a plan or a policy does not allow."""
        name, iteration, execution, attempt = where
        now, shape, plan = self._replay.now, self.shape, self._plan()
        self.require_closed(f"the start of {_named(where)}")
        if visit.returned is not None and (iteration, execution) == (visit.iteration, visit.execution):
            self._say(f"{_named(where)} is called again although what it returned is kept")
        if attempt == 1:
            judged = shape is not None and "pre" in shape.judged.get(name, ())
            if visit.verdict != "allow" and (judged or visit.verdict):
                said = {"ask": "has no answer", "deny": "was denied"}.get(
                    visit.verdict, "was not decided about"
                )
                self._say(f"{_named(where)} begins, but {said} by its policies")
            visit.verdict = ""
        if now.plan and name in now.routes:
            self._say(f"{_named(where)} begins although it has ended or is skipped")
        if plan is not None and name in plan.sources:
            if now.undecided.get(name):
                self._say(f"{_named(where)} begins before all edges to it are decided")
            elif self._taken(name) < plan.wanted(name):
                self._say(f"{_named(where)} begins although too few edges to it are taken")
        visit.returned, visit.passed = None, set()

    def complete(self, where: Where, visit: Visit, body: Body) -> None:
        """Compare a completion with what its node has returned, and with what judged it."""
        name, shape = where[0], self.shape
        lacking = shape.judged.get(name, frozenset()) - {"pre"} - visit.passed if shape is not None else ()
        if lacking and visit.items is None:
            self._say(f"{_named(where)} completes, but did not pass: {sorted(lacking)}")
        if visit.returned is None:
            return
        changes, (value, artifacts) = body.get("changes", {}), visit.returned
        if body.get("artifacts", {}) != artifacts:
            self._say(f"{_named(where)} completes with other artifacts than it had returned")
        if self._replay.now.plan:
            changes = changes.get("merge", {}).get("outputs", {}).get(name)
        elif isinstance(value, dict) and value.get("reduce"):
            return  # the completion has what the reducers of the state made of it
        if _plain(changes) != _plain(value):
            self._say(f"{_named(where)} completes with another result than it had returned")

    def _require_running(self, kind: str, where: Where, visit: Visit) -> None:
        if visit.status != "running" or where[1:] != visit.here():
            self._say(f"{kind} belongs to {_named(where)}, which is not the running attempt")

    def _say(self, text: str) -> None:
        self._replay.report("I18", text)


def _after(verdict: str) -> frozenset[str]:
    """Return what may follow what policies decide about a result."""
    match verdict:
        case "allow":
            return _ACCEPTED
        case "ask":
            return frozenset({"NodeReturned", "QuestionAsked"})
        case _:
            return _NOT_ACCEPTED


def _plain(value: object) -> object:
    """Return changes without the parts that are empty: an event leaves them out."""
    return {part: told for part, told in value.items() if told} if isinstance(value, dict) else value


def _one_of(kinds: frozenset[str]) -> str:
    return " or ".join(sorted(kinds))


def _named(where: Where) -> str:
    node, iteration, execution, attempt = where
    return name_visit(node, iteration, execution, None, attempt)
