"""Which visits of a run a fork must not repeat without a decision: those of nodes that are not idempotent which the run, or a run
that it descends from, has begun and which are not completed at the event that the fork begins from.

Rules of this module
- Everything that the log contains counts, before and after that event, and also what the run has rewound since: an effect outside
  is not undone by a rewind. What a run does after the fork was made does not count.
- What an ancestor has begun counts as what the run itself has begun, also if it began after the run was forked: the visits
  of a lineage are the same visits, with the same idempotency keys.
- A visit is a node and an iteration; in a fan-out, each item counts for itself. A fan-out of which no item has begun has had no
  effect.
- If events are missing because the log was compacted, the state that replaces them says which visits they had begun, but not
  always which items, and no results: such a visit counts as begun as a whole.
- A flow may be changed in the middle of a run, and nodes renamed. Visits are named as at the event that the fork begins from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

import msgspec

from holdfast.core import events
from holdfast.core.events import Begun, Changes, NodeName, Seq, Stored
from holdfast.core.run_state import NodeState, RunState

RENAMING = ("FlowChanged", "RunRewound")
"""The kinds of events that `Names` needs."""
VISITING = ("RunForked", "NodeStarted", "NodeCompleted", "NodeSkipped", "ItemStarted", "ItemCompleted")
"""The kinds of events that tell which visits have begun, and how they ended."""


class Names:
    """The names of nodes along a log. Each node has one identity, whichever name it has at a place of the log."""

    def __init__(self, log: Sequence[Stored]) -> None:
        self._places: list[Seq] = [0]
        self._known: list[dict[NodeName, str]] = [{}]
        for stored in log:
            event = stored.event
            if isinstance(event, events.RunRewound):
                self._add(stored.seq, self._at(event.to))
            elif isinstance(event, events.FlowChanged) and event.rename:
                before = self._at(stored.seq)
                # A node that later gets the old name is another one.
                freed = {old: f"{old}\n{stored.seq}" for old in event.rename}
                moved = {new: before.get(old, old) for old, new in event.rename.items()}
                self._add(stored.seq, {**before, **freed, **moved})

    def _add(self, seq: Seq, known: dict[NodeName, str]) -> None:
        self._places.append(seq)
        self._known.append(known)

    def _at(self, seq: Seq) -> dict[NodeName, str]:
        """Return name -> identity after event `seq`, for the nodes whose name has changed."""
        return self._known[bisect_right(self._places, seq) - 1]

    def identity(self, name: NodeName, seq: Seq) -> str:
        """Return the identity of the node that has this name at event `seq`."""
        return self._at(seq).get(name, name)

    def name(self, identity: str, seq: Seq) -> NodeName | None:
        """Return the name that a node has at event `seq`; None if the flow does not have the node there."""
        known = self._at(seq)
        for name, one in known.items():
            if one == identity:
                return name
        return None if identity in known or "\n" in identity else identity


class Kin(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose visits count for a fork: the run that is forked, or one that it descends from."""

    names: Names
    to: Seq
    """The event of its log from which the next run of the line was forked. The log of that run continues with the next number."""
    run: str | None = None
    """The id of the run; None for the run that is forked now."""
    log: Sequence[Stored] = ()
    """Its events of the kinds `VISITING`, at least those of the nodes that are not idempotent."""
    base: RunState | None = None
    """The state that replaces events which the log no longer has."""


def name_at_fork(line: Sequence[Kin], name: NodeName, seq: Seq) -> NodeName | None:
    """Return the name that a node has at the event from which the last run of the line is forked; None if the flow does not have
    the node there. In the log of the first run of the line, the node has the given name at event `seq`.
    """
    for kin in line:
        found = kin.names.name(kin.names.identity(name, seq), kin.to)
        if found is None:
            return None
        name, seq = found, kin.to
    return name


class _Visit(msgspec.Struct):
    """What is known about one visit: what was done of it as a whole, and of its items."""

    whole: Begun | None = None
    items: dict[int, Begun] = {}


def begun_visits(
    log: Sequence[Stored],
    at: RunState,
    names: Names,
    risky: Collection[NodeName],
    fan_outs: Collection[NodeName],
    base: RunState | None = None,
    ancestors: Sequence[Kin] = (),
) -> list[Begun]:
    """Return the visits and items that a fork from the state `at` must not repeat without a decision, in the order in which they
    first began.

    `log` has the events of the kinds `VISITING`, at least those of the nodes in `risky`, which are not idempotent. `base` is the
    state that replaces events which the log no longer has. The names in `risky` and `fan_outs` are those at the fork. `ancestors`
    are the runs from which the run descends, oldest first.
    """
    line = [*ancestors, Kin(names=names, to=at.seq, log=log, base=base)]
    seen = _Seen(fan_outs)
    for number in range(len(line)):
        seen.read(line[number:])
    found: list[Begun] = []
    for (name, iteration), visit in seen.visits.items():
        if name in risky and not at.is_done(name, iteration):
            found.extend(_list(at, name, iteration, visit))
    return found


def _list(at: RunState, name: NodeName, iteration: int, visit: _Visit) -> Iterator[Begun]:
    """Yield what is known about a visit. Items that are completed within the open visit are kept, with the result they have
    there.
    """
    if visit.whole is not None:
        yield msgspec.structs.replace(visit.whole, node=name, iteration=iteration)
    done = _done_items(at, name, iteration)
    for item in sorted({*visit.items, *done}):
        one = visit.items.get(item, Begun(name, iteration, item))
        one = msgspec.structs.replace(one, node=name, iteration=iteration, kept=item in done)
        yield msgspec.structs.replace(one, result=done[item]) if item in done else one


def _done_items(at: RunState, name: NodeName, iteration: int) -> dict[int, Changes]:
    """Return the results of the items of an open visit that are completed there: by this run, or by its parent if the run has
    not begun the visit itself.
    """
    node = at.nodes.get(name)
    if node is not None and name in at.open and node.iteration == iteration and node.attempt:
        return node.items.done if node.items is not None else {}
    inherited = at.begun_visit(name, iteration)
    items = inherited.items if inherited is not None else {}
    return {item: one.result or Changes() for item, one in items.items() if one.kept}


class _Seen:
    """Collects the visits of the logs of a line, by the name that their node has at the fork and their iteration."""

    def __init__(self, fan_outs: Collection[NodeName]) -> None:
        self.visits: dict[tuple[NodeName, int], _Visit] = {}
        self._fan_outs = fan_outs
        self._line: Sequence[Kin] = ()
        self._run: str | None = None

    def read(self, line: Sequence[Kin]) -> None:
        """Add what the log of the first run of the line says. The other runs of the line descend from it."""
        self._line, self._run = line, line[0].run
        if line[0].base is not None:
            self.add_base(line[0].base)
        for stored in line[0].log:
            self.add(stored)

    def add(self, stored: Stored) -> None:
        """Add what an event says."""
        event, at, seq = stored.event, stored.at, stored.seq
        match event:
            case events.RunForked():
                for one in event.visits:
                    self._inherit(msgspec.structs.replace(one, run=one.run or event.parent), event.to)
            case events.NodeStarted():
                if not self._fans_out(event.node, seq):
                    self._begin(event.node, event.iteration, None, seq, at)
            case events.ItemStarted():
                self._begin(event.node, event.iteration, event.item, seq, at)
            case events.NodeCompleted():
                if event.items:
                    self._complete_items(event, seq)
                else:
                    self._complete(event, None, seq, at)
            case events.ItemCompleted():
                self._complete(event, event.item, seq, at)
            case events.NodeSkipped():
                self._skip(event, seq, at)
            case _:
                pass

    def add_base(self, base: RunState) -> None:
        """Add what a state says about the events that it replaces."""
        for visits in base.begun.values():
            for visit in visits.values():
                for one in (*filter(None, [visit.whole]), *visit.items.values()):
                    self._inherit(msgspec.structs.replace(one, run=one.run or base.parent), base.seq)
        for name, executions in base.executions.items():
            for iteration in executions:
                self._begin(name, iteration, None, base.seq, 0.0)
        for name in base.open:
            node = base.nodes[name]
            if node.attempt and node.routed:
                self._add_open(name, node, base.seq)

    def _add_open(self, name: NodeName, node: NodeState, seq: Seq) -> None:
        if node.items is None:
            if not self._fans_out(name, seq):
                self._begin(name, node.iteration, None, seq, node.started_at)
            return
        for item in range(node.items.begun):
            self._begin(name, node.iteration, item, seq, node.started_at)
        for item, result in node.items.done.items():
            self._set(Begun(name, node.iteration, item, result, at=node.started_at, run=self._run), seq)

    def _fans_out(self, name: NodeName, seq: Seq) -> bool:
        return name_at_fork(self._line, name, seq) in self._fan_outs

    def _visit(self, name: NodeName, iteration: int, seq: Seq) -> _Visit | None:
        here = name_at_fork(self._line, name, seq)
        return self.visits.get((here, iteration)) if here is not None else None

    def _inherit(self, one: Begun, seq: Seq) -> None:
        """Note what was known of the ancestors of a run when it was made. Their logs, if they still exist, say more."""
        before = self._get(one.node, one.iteration, one.item, seq)
        if before is None or (before.result is None and one.result is not None):
            self._set(one, seq)

    def _set(self, one: Begun, seq: Seq) -> None:
        here = name_at_fork(self._line, one.node, seq)
        if here is None:
            return  # the flow of the fork does not have the node
        visit = self.visits.setdefault((here, one.iteration), _Visit())
        if one.item is None:
            visit.whole = one
        else:
            visit.items[one.item] = one

    def _get(self, name: NodeName, iteration: int, item: int | None, seq: Seq) -> Begun | None:
        visit = self._visit(name, iteration, seq)
        if visit is None:
            return None
        return visit.whole if item is None else visit.items.get(item)

    def _begin(self, name: NodeName, iteration: int, item: int | None, seq: Seq, at: float) -> None:
        """Note that a visit or an item began. The result of an earlier execution of it stays."""
        before = self._get(name, iteration, item, seq)
        if before is None or before.result is None:
            self._set(Begun(name, iteration, item, at=at, run=self._run), seq)

    def _complete(
        self, event: events.NodeCompleted | events.ItemCompleted, item: int | None, seq: Seq, at: float
    ) -> None:
        if self._get(event.node, event.iteration, item, seq) is not None:
            self._set(Begun(event.node, event.iteration, item, event.changes, at=at, run=self._run), seq)

    def _complete_items(self, event: events.NodeCompleted, seq: Seq) -> None:
        """Note that a fan-out completed with the results of its items, which are all known: none is known of it as a whole."""
        visit = self._visit(event.node, event.iteration, seq)
        if visit is not None:
            visit.whole = None

    def _skip(self, event: events.NodeSkipped, seq: Seq, at: float) -> None:
        """Note the update with which a visit was skipped: it replaces the result, also of a fan-out as a whole. A visit that was
        skipped before it began had no effect, and a skip without an update leaves the result of an earlier execution.
        """
        visit = self._visit(event.node, event.iteration, seq)
        if visit is not None and event.changes != Changes():
            run = visit.whole.run if visit.whole is not None else self._run
            self._set(Begun(event.node, event.iteration, None, event.changes, at=at, run=run), seq)
