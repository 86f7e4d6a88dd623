"""What a fork from a checkpoint would be: where it continues, and what it must not repeat without a decision.

The engine makes a fork of this plan, and the command line prints it. It is read from the store: it needs no flow and no lease.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from holdfast.core import events
from holdfast.core.begun import RENAMING, VISITING, Kin, Names, begun_visits, name_at_fork
from holdfast.core.definition import NodeOptions
from holdfast.core.events import Begun, Seq, Stored
from holdfast.core.graph import Flow
from holdfast.core.run_state import NODE_LEVEL, RunState
from holdfast.errors import ResumeRefused, RunNotFound, StoreCorrupt
from holdfast.reading import history, inbox, text
from holdfast.storage.contract import RunRow, Store

_CHILDREN_LOOKS_MAX = 1000
"""At how many child runs a plan looks. If a run has more, those of the others count as not idempotent."""


class Missed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A signal or an answer that the run has received and that a fork of it does not have: it came after the event that the fork
    begins from, or it went to a visit that the fork repeats.
    """

    what: Literal["signal", "answer"]
    name: str
    """The name of the signal, or the node that has asked."""
    value: Any = None
    seq: int | None = None
    """The event with which the run received it; None if it waits in the inbox of the run."""

    def words(self) -> list[str]:
        """Return the command that gives it to a fork, without the id of the fork: a signal may be sent at any time, an answer as
        soon as the fork asks.
        """
        if self.what == "answer":
            value = self.value if isinstance(self.value, str) else text.json_text(self.value, indent=None)
            return ["answer", self.name, *(("--",) if value.startswith("-") else ()), value]
        payload = [] if self.value is None else [text.json_text(self.value, indent=None)]
        return ["signal", self.name, *payload]


class ForkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a fork from one event of a run begins with."""

    parent: str
    seq: int
    state: RunState
    """The state of the parent at that event."""
    lineage: str
    """The run from whose id the fork derives its idempotency keys, unless it begins a lineage of its own."""
    next: tuple[str, ...]
    """The nodes with which the fork continues: those that were open, and those that the run had reached."""
    idempotent: dict[str, bool]
    """Every node of the flow, and whether it may be repeated without asking."""
    begun: tuple[Begun, ...]
    """What the parent, or a run that it descends from, has begun of nodes that are not idempotent and is not completed at that
    event."""
    renewed: dict[str, dict[int, int]]
    """Node -> iteration -> how often the parent, or a run that it descends from, has repeated a visit with new idempotency keys
    after the event at which the runs part."""

    @property
    def asks_about(self) -> tuple[str, ...]:
        """The nodes about which the fork will ask, unless the caller decides now."""
        return tuple(dict.fromkeys(one.node for one in self.begun if not one.kept))


def fork_place(store: Store, row: RunRow, seq: int | None) -> int:
    """Return the checkpoint to fork from: `seq`, or by default the latest checkpoint that no rewind has undone, as of this row.
    Raises `ResumeRefused`.
    """
    run_id = row.run_id
    listed = history.checkpoints(store, run_id, row)
    if seq is None:
        latest = max((point.seq for point in listed if point.current), default=None)
        if latest is None:
            raise StoreCorrupt(
                f"run {run_id!r} has no checkpoint, although every run has one: its log is damaged. "
                f"`holdfast verify {run_id}` lists the damage."
            )
        return latest
    if all(point.seq != seq for point in listed):
        trimmed = store.upkeep.trimmed(run_id)
        gone = history.retirement(trimmed) if seq < trimmed.retired else ""
        if seq <= trimmed.base:
            gone = history.beginning(store, row)
        why = f"event {seq} is not a checkpoint{f' any more. {gone}' if gone else '.'} "
        remedy = f"`holdfast checkpoints {run_id}` lists the checkpoints of the run."
        raise ResumeRefused(run_id, why + remedy, asked="forked")
    return seq


def plan_fork(store: Store, row: RunRow, seq: int, flow: Flow[Any] | None = None) -> ForkPlan:
    """Plan a fork from a checkpoint. Nodes count as not idempotent if the flow says so with which the run was executed at that
    event or is executed now, or the given one; or if the run, or one that it descends from, has begun a step of them that is not
    idempotent.
    """
    state = history.load(store, row.run_id, seq, row=row, check=True)
    line = _line(store, row, seq)
    nodes = _options(store, line, state, flow)
    risky = {name for name, options in nodes.items() if any(not one.idempotent for one in options)}
    for number in range(len(line)):
        begun_in = _with_risky_steps(store, line[number:]) | _with_risky_children(store, line[number:])
        risky |= begun_in & nodes.keys()
    risky |= nodes.keys() & state.begun.keys()  # what an ancestor has begun that may be deleted
    begun: list[Begun] = []
    if risky:
        fan_outs = {name for name, options in nodes.items() if any(one.each for one in options)}
        *ancestors, last = [_with_visits(store, line[number:], risky) for number in range(len(line))]
        begun = begun_visits(last.log, state, last.names, risky, fan_outs, last.base, ancestors)
    return ForkPlan(
        parent=row.run_id,
        seq=seq,
        state=state,
        lineage=state.lineage or row.run_id,
        next=tuple(dict.fromkeys((*state.open, *state.arrivals))),
        idempotent={name: name not in risky for name in nodes},
        begun=tuple(begun),
        renewed=_renewed(store, line, state.lineage or row.run_id),
    )


class _Member(msgspec.Struct, frozen=True):
    """A run of the line that leads to a fork: its row, and what `Kin` says of it."""

    row: RunRow
    kin: Kin


def _line(store: Store, row: RunRow, seq: int) -> list[_Member]:
    """Return the run that is forked at event `seq`, after the runs that it descends from, oldest first. The line begins with the
    child of a run that was deleted: what that run had begun until then is in the first event of the child.
    """
    line = [_Member(row, Kin(names=Names(_read(store, row, RENAMING)), to=seq))]
    while row.parent is not None:
        forked = store.events(row.run_id, kinds=("RunForked",), limit=1)
        try:
            parent = store.run(row.parent)
        except RunNotFound:
            break
        # A run that is younger than its fork is another one, which has the id of the deleted run.
        if not forked or parent.created_at > row.created_at:
            break
        to = forked[0].seq - 1
        names = Names(_read(store, parent, RENAMING))
        line.insert(0, _Member(parent, Kin(names=names, to=to, run=parent.run_id)))
        row = parent
    return line


def _known_as(line: Sequence[_Member], name: str, seq: int) -> str | None:
    """Return the name at the fork of a node that has a name at event `seq` of the first run of the line."""
    return name_at_fork([one.kin for one in line], name, seq)


def _with_visits(store: Store, line: Sequence[_Member], risky: Collection[str]) -> Kin:
    """Return the first run of the line with its visits of nodes that are not idempotent. No other events are decoded."""
    row = line[0].row
    rows = store.events(row.run_id, upto=row.seq, kinds=VISITING)
    wanted = [one for one in rows if not one.node or _known_as(line, one.node, one.seq) in risky]
    log = list(history.opened(store, row.run_id, wanted))
    return msgspec.structs.replace(line[0].kin, log=log, base=_base(store, row, log))


def _with_risky_steps(store: Store, line: Sequence[_Member]) -> set[str]:
    """Return the nodes, by their names at the fork, in which the first run of the line has begun a step that must not repeat."""
    rows = store.events(line[0].row.run_id, upto=line[0].row.seq, kinds=("StepStarted",))
    return {name for one in rows if one.node and (name := _known_as(line, one.node, one.seq)) is not None}


def _with_risky_children(store: Store, line: Sequence[_Member]) -> set[str]:
    """Return the nodes, by their names at the fork, in which the first run of the line has started a child run in which a node
    that is not idempotent has begun: in the child, or in a child of it.
    """
    found: set[str] = set()
    looks = 0
    for stored in _read(store, line[0].row, ("ChildStarted",)):
        name = _known_as(line, stored.event.node, stored.seq)
        if name is not None and name not in found:
            looks += 1
            if looks > _CHILDREN_LOOKS_MAX or _has_begun_risky(store, stored.event.run):
                found.add(name)
    return found


def _has_begun_risky(store: Store, run_id: str) -> bool:
    """Return whether a run, or one of its children, has begun a node that is not idempotent. A run that was deleted may have."""
    try:
        row = store.run(run_id)
    except RunNotFound:
        return True
    stored = store.definition(row.fingerprint)
    nodes = history.defined(stored, run_id).nodes if stored is not None else {}
    begun = {one.node for one in store.events(run_id, kinds=("NodeStarted",))}
    if any(name not in nodes or not nodes[name].idempotent for name in begun if name is not None):
        return True
    children = {one.event.run for one in _read(store, row, ("ChildStarted",))}
    return any(_has_begun_risky(store, child) for child in children)


def list_missed(store: Store, row: RunRow, seq: int) -> tuple[Missed, ...]:
    """Return the signals and answers that a run has received and that a fork from event `seq` does not have, oldest first.
    Answers about an interrupted visit are left out: the fork begins that visit again.
    """
    waiting = [inbox.read(one) for one in store.queues.waiting([row.run_id])]
    kinds = ("SignalReceived", "SignalAwaited", "QuestionAsked", "QuestionAnswered")
    log = list(history.opened(store, row.run_id, store.events(row.run_id, upto=row.seq, kinds=kinds)))
    found: list[Missed] = []
    if any(isinstance(stored.event, (events.SignalReceived, events.QuestionAnswered)) for stored in log):
        state = history.load(store, row.run_id, seq, row=row)
        names = names_along(store, row) if state.key_names else None
        before = [one for one in log if one.seq <= seq]
        found += [
            Missed(what="signal", name=name, value=payload, seq=at)
            for node in state.open
            for name, payload, at in taken_signals(state, node, before, names)
        ]
        asked: dict[str, events.QuestionAsked] = {}
        for stored in log:
            event, at = stored.event, stored.seq
            if isinstance(event, events.QuestionAsked):
                asked[event.key] = event
            elif isinstance(event, events.SignalReceived) and at > seq:
                found.append(Missed(what="signal", name=event.name, value=event.payload, seq=at))
            elif isinstance(event, events.QuestionAnswered) and event.key in asked:
                question = asked[event.key]
                if question.about in ("ask", "gate") and (at > seq or _is_repeated(state, question)):
                    found.append(Missed(what="answer", name=question.node, value=event.answer, seq=at))
    found += [
        Missed(what="signal", name=one.name, value=one.payload)
        for one in waiting
        if isinstance(one, inbox.Signal)
    ]
    return tuple(sorted(found, key=lambda one: one.seq or row.seq + 1))


def _is_repeated(state: RunState, question: events.QuestionAsked) -> bool:
    """Return whether a visit that has asked inside its node is open in a state from which a fork begins, and so is repeated."""
    node = state.nodes.get(question.node)
    visit = (question.iteration, question.execution)
    is_open = node is not None and question.node in state.open and (node.iteration, node.execution) == visit
    return is_open and question.about == "ask"


def taken_signals(
    state: RunState, name: str, log: Iterable[Stored], names: Names | None = None
) -> Iterator[tuple[str, Any, Seq]]:
    """Yield name, payload and the seq of its wait of each signal that an open visit has received, according to the events
    `SignalAwaited` of its node. `names` has the names of the nodes along the log; None if none was renamed.
    """
    node = state.nodes[name]
    slots: set[tuple[int, str]] = set()
    for stored in log:
        awaited = stored.event
        if not isinstance(awaited, events.SignalAwaited):
            continue
        is_same = awaited.node == name
        if names is not None:
            is_same = names.identity(awaited.node, stored.seq) == names.identity(name, state.seq)
        if not is_same:
            continue
        level = NODE_LEVEL if awaited.item is None else awaited.item
        visit = (awaited.iteration, awaited.execution)
        if visit == (node.iteration, node.execution) and (level, awaited.slot) not in slots:
            slots.add((level, awaited.slot))
            for payload in node.kept.get(level, {}).get(awaited.slot, ()):
                yield awaited.name, payload, stored.seq


def names_along(store: Store, row: RunRow) -> Names:
    """Return the names that the nodes of a run have had."""
    return Names(_read(store, row, RENAMING))


def names_since(store: Store, row: RunRow, seq: int, names: Iterable[str]) -> dict[str, str]:
    """Return, for nodes of the run as it is now, the names that they had at event `seq`, where these differ."""
    known = names_along(store, row)
    found = {name: known.name(known.identity(name, row.seq), seq) for name in names}
    return {name: before for name, before in found.items() if before is not None and before != name}


def _read(store: Store, row: RunRow, kinds: tuple[str, ...]) -> list[Stored]:
    """Return the events of these kinds, up to the end that the row knows."""
    return list(history.opened(store, row.run_id, store.events(row.run_id, upto=row.seq, kinds=kinds)))


def _base(store: Store, row: RunRow, log: list[Stored]) -> RunState | None:
    """Return the state that replaces the beginning of a log, if no event says what had begun before: the log was compacted, or it
    is that of a fork that an older version of Holdfast made.
    """
    after = history.began_after(store, row)
    first = log[0].event if log and log[0].kind == "RunForked" else None
    told = first is not None and (first.lineage is not None or first.fresh)
    return history.load(store, row.run_id, after, row=row) if after and not told else None


def _options(
    store: Store, line: Sequence[_Member], state: RunState, flow: Flow[Any] | None
) -> dict[str, list[NodeOptions]]:
    """Return the options of each node, by its name at the fork, as every definition has them that may apply."""
    found: dict[str, list[NodeOptions]] = {}
    row, names = line[-1].row, line[-1].kin.names
    definitions = [(flow.definition, row.seq)] if flow is not None else []
    for fingerprint, seq in ((state.fingerprint, state.seq), (row.fingerprint, row.seq)):
        stored = store.definition(fingerprint)
        definitions += [(history.defined(stored, row.run_id), seq)] if stored is not None else []
    for definition, seq in definitions:
        for name, options in definition.nodes.items():
            here = names.name(names.identity(name, seq), state.seq)
            if here is not None:
                found.setdefault(here, []).append(options)
    for number, one in enumerate(line[:-1]):  # what an ancestor is executed with now
        stored = store.definition(one.row.fingerprint) if one.row.fingerprint != row.fingerprint else None
        nodes = history.defined(stored, one.row.run_id).nodes if stored is not None else {}
        for name, options in nodes.items():
            here = _known_as(line[number:], name, one.row.seq)
            if here in found:
                found[here].append(options)
    return found


def _renewed(store: Store, line: Sequence[_Member], lineage: str) -> dict[str, dict[int, int]]:
    """Return the counts of new idempotency keys that the runs of the line have made after the events from which the next ones
    were forked, by the names at the last of these events. Runs before the one that began the lineage have other keys.
    """
    begins = [one.row.run_id for one in line]
    line = line[begins.index(lineage) :] if lineage in begins else line
    found: dict[str, dict[int, int]] = {}
    for number, one in enumerate(line):
        row, to = one.row, one.kin.to
        later = store.events(row.run_id, to, row.seq, kinds=("NodeScheduled", "RunResumed"))
        if not any(stored.event.fresh for stored in history.opened(store, row.run_id, later)):
            continue
        for known, visits in history.load(store, row.run_id, row=row).renewals().items():
            name = _known_as(line[number:], known, row.seq)
            if name is not None:
                before = found.setdefault(name, {})
                before |= {visit: max(times, before.get(visit, 0)) for visit, times in visits.items()}
    return found
