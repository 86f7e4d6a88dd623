"""Which visits of a run a fork must not repeat without a decision: those of nodes that are not idempotent which the run has begun
and which are not completed at the event that the fork begins from.

Rules of this module
- Everything that the log contains counts, before and after that event, and also what the run has rewound since: an effect outside
  is not undone by a rewind. What a run does after the fork was made does not count.
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

    def all_names(self, identity: str) -> set[NodeName]:
        """Return every name that a node has somewhere in the log."""
        known = {name for names in self._known for name, one in names.items() if one == identity}
        return known if "\n" in identity else known | {identity}


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
) -> list[Begun]:
    """Return the visits and items that a fork from the state `at` must not repeat without a decision, in the order in which they
    first began.

    `log` has the events of the kinds `VISITING`, at least those of the nodes in `risky`, which are not idempotent. `base` is the
    state that replaces events which the log no longer has. The names in `risky` and `fan_outs` are those at the fork.
    """
    seen = _Seen(names, at.seq, fan_outs)
    if base is not None:
        seen.add_base(base)
    for stored in log:
        seen.add(stored)
    found: list[Begun] = []
    for (identity, iteration), visit in seen.visits.items():
        name = names.name(identity, at.seq)
        if name is not None and name in risky and not at.is_done(name, iteration):
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
    """Collects the visits of a log, by the identity of their node and their iteration."""

    def __init__(self, names: Names, forked_at: Seq, fan_outs: Collection[NodeName]) -> None:
        self.visits: dict[tuple[str, int], _Visit] = {}
        self._names = names
        self._fan_outs = fan_outs
        self._forked_at = forked_at

    def add(self, stored: Stored) -> None:
        """Add what an event says."""
        event, at, seq = stored.event, stored.at, stored.seq
        match event:
            case events.RunForked():
                for one in event.visits:
                    self._set(msgspec.structs.replace(one, run=one.run or event.parent), seq)
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
                    self._set(msgspec.structs.replace(one, run=one.run or base.parent), base.seq)
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
            self._set(Begun(name, node.iteration, item, result, at=node.started_at), seq)

    def _fans_out(self, name: NodeName, seq: Seq) -> bool:
        return self._names.name(self._names.identity(name, seq), self._forked_at) in self._fan_outs

    def _set(self, one: Begun, seq: Seq) -> None:
        visit = self.visits.setdefault((self._names.identity(one.node, seq), one.iteration), _Visit())
        if one.item is None:
            visit.whole = one
        else:
            visit.items[one.item] = one

    def _get(self, name: NodeName, iteration: int, item: int | None, seq: Seq) -> Begun | None:
        visit = self.visits.get((self._names.identity(name, seq), iteration))
        if visit is None:
            return None
        return visit.whole if item is None else visit.items.get(item)

    def _begin(self, name: NodeName, iteration: int, item: int | None, seq: Seq, at: float) -> None:
        """Note that a visit or an item began. The result of an earlier execution of it stays."""
        before = self._get(name, iteration, item, seq)
        if before is None or before.result is None:
            self._set(Begun(name, iteration, item, at=at), seq)

    def _complete(
        self, event: events.NodeCompleted | events.ItemCompleted, item: int | None, seq: Seq, at: float
    ) -> None:
        if self._get(event.node, event.iteration, item, seq) is not None:
            self._set(Begun(event.node, event.iteration, item, event.changes, at=at), seq)

    def _complete_items(self, event: events.NodeCompleted, seq: Seq) -> None:
        """Note that a fan-out completed with the results of its items, which are all known: none is known of it as a whole."""
        visit = self.visits.get((self._names.identity(event.node, seq), event.iteration))
        if visit is not None:
            visit.whole = None

    def _skip(self, event: events.NodeSkipped, seq: Seq, at: float) -> None:
        """Note the update with which a visit was skipped: it replaces the result, also of a fan-out as a whole. A visit that was
        skipped before it began had no effect, and a skip without an update leaves the result of an earlier execution.
        """
        visit = self.visits.get((self._names.identity(event.node, seq), event.iteration))
        if visit is not None and event.changes != Changes():
            run = visit.whole.run if visit.whole is not None else None
            self._set(Begun(event.node, event.iteration, None, event.changes, at=at, run=run), seq)
