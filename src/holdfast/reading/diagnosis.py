"""Finds out why a run is in its current status, and what can be done about it.

Only `diagnose` answers this. `holdfast show`, `runs`, `doctor` and `recover` print its result, so that they never disagree about
a run. It judges a `Case` and reads nothing else; `case_of` reads a case from the store.

A run that waits for a child run, or failed because of one, is judged with the case of that child: its reason says what the child
does, and its remedies are those of the child.

A run has *crashed* if it is under way but no live process executes it. It is *answered* if it can continue with an answer or a
signal that has come, but no process executes it. Both follow from the lease and the log, not from the status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, TypeAlias, assert_never

import msgspec

from holdfast.core import VERSION
from holdfast.core.definition import NodeOptions
from holdfast.core.run_state import ENDED, FEW, FINAL, TAKEABLE, Question, Wait
from holdfast.core.situation import QUESTIONS_FEW, Situation, is_pausing, situate
from holdfast.core.slots import parse
from holdfast.errors import describe_failure, end_sentence
from holdfast.reading import inbox, remedies, text
from holdfast.reading.cases import Case
from holdfast.reading.inbox import EXECUTING
from holdfast.reading.remedies import CommandLine, Remedy, either, in_turn
from holdfast.reading.views import held_by
from holdfast.storage.contract import STATUSES, RunStatus
from holdfast.storage.queues import LiveHolder

Kind: TypeAlias = Literal[
    "executing", "waiting", "completed", "cancelled", "unreadable", "quarantined", "failed", "crashed", "answered",
    "flow changed", "refused", "flow unknown", "capability missing", "queue full", "queue stopped", "due", "no worker",
    "interrupted", "paused", "question", "signal", "child", "not started", "retry", "store",
]  # fmt: skip
ON_OFFER: frozenset[Kind] = frozenset(
    {
        "no worker",
        "interrupted",
        "answered",
        "due",
        "flow unknown",
        "capability missing",
        "queue full",
        "crashed",
    }
)
"""Kinds of diagnosis where a worker may claim the run at any moment."""
REFUSED: frozenset[Kind] = frozenset({"flow changed", "refused"})
"""Kinds of diagnosis where the run is on offer, but no live worker can continue it as it is."""
WAITS: frozenset[Kind] = frozenset({"question", "signal", "child", "paused", "queue stopped"})
"""Kinds of diagnosis where nothing is wrong with the run: it waits for a person or another system, or for a child run with which
something is wrong. A queue is stopped by a person, who lets it continue."""
_WELL: frozenset[Kind] = frozenset({"executing", "waiting", "completed", "cancelled"})
"""Kinds of diagnosis that need no report: the run continues by itself, or has ended."""
PATIENCE_S = 60.0
"""Seconds for which a run may wait although a live worker takes its flow and is idle, or its queue is full, before it is
reported. A run that no live worker takes is reported at once.
"""

_UPGRADES_STATE = "the code has given the state a new version with an upgrade"
_PASSED_ON = frozenset({"run", "force", "confirm"})
"""The arguments of a resume that also reach the failed child runs of the run."""
_OF_CHILDREN_MAX = 5
"""How many remedies of the child runs that a run waits for are listed with its own."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a run or a node is in its current status, or what is wrong with the store; and what can be done about it."""

    kind: Kind
    reason: str
    """The reason, in one sentence."""
    remedies: tuple[Remedy, ...] = ()
    run_id: str | None = None
    """The id of the run; None if the diagnosis is about the store."""
    flow: str | None = None
    status: RunStatus | None = None
    node: str | None = None
    """The name of the node; None if the diagnosis is about the whole run."""
    since: float | None = None
    crashed: bool = False
    """True if the run is under way, but no live process executes it."""
    answered: bool = False
    """True if an answer or a signal has come, but no process executes the run."""
    pausing: bool = False
    """True if the run was paused, and a live process still executes nodes of it."""
    questions: tuple[Question, ...] = ()
    awaited: tuple[Wait, ...] = ()
    """The timers and signals that the run waits for."""
    expects: tuple[str, ...] = ()
    """Each question, signal, timer and retry that the run waits for, in a few words."""
    labels: dict[str, dict[int, str]] = {}
    """Node -> item -> label, for the items of `questions` and `awaited` that have one."""
    unreceived: tuple[str, ...] = ()
    """Names of the signals that no node has received yet."""
    asks_before: tuple[str, ...] = ()
    """Crashed nodes that a resume does not run again: it asks a question about them instead."""
    once: tuple[str, ...] = ()
    """Failed nodes that are not idempotent, and that a resume runs again."""
    taker: str | None = None
    """The live worker that is expected to claim the run; None if none is, or if that is not known."""
    failed_for: tuple[str, ...] = ()
    """The child runs because of which the run failed, and that a resume of it resumes too."""

    @property
    def waits(self) -> bool:
        """True if nothing is wrong and the run only waits for a person or another system."""
        return self.kind in WAITS


# --- judging -----------------------------------------------------------------------------------------


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The facts in the state of a run that explain its status."""

    crashed: bool = False
    answered: bool = False
    pausing: bool = False
    running: tuple[str, ...] = ()
    """The names of the nodes that run, of which the last may be a count of others."""
    expects: tuple[str, ...] = ()
    asked_about: dict[str, bool] = {}
    """Name of a crashed node that a resume does not run, but asks a question about -> True if the node is idempotent."""
    once: tuple[str, ...] = ()
    """Failed nodes that are not idempotent."""
    known: Situation = Situation()
    children: dict[str, Diagnosis | None] = {}
    """The children that it waits for, or because of which it failed; None for one that was deleted."""
    stuck: tuple[str, ...] = ()
    """Children that are stuck: they need help, but wait for no person or system."""


def diagnose(case: Case, now: float, commands: CommandLine | None = None) -> Diagnosis:
    """Find out why a run is in its current status, and what can be done about it. `now` is the store's time."""
    row, commands = case.row, commands or CommandLine()
    if row.status not in STATUSES:  # a damaged run is diagnosed too
        case = Case(row=row, fault=f"the row of the run has the unknown status {row.status!r}")
    if row.status == "failed":  # it only records the end of a child, and continues at the request of a caller
        asked = tuple(one for one in case.requests if one.verb != inbox.ChildEnd.verb)
        case = msgspec.structs.replace(case, requests=asked)
    seen = _look(case, now, commands)
    kind, since = _kind(case, seen, now)
    reason = _reason(case, seen, kind, now)
    if case.requests:
        reason = reason.removesuffix(".") + _unanswered(case, kind, now)
    if kind not in ("flow changed", "refused", "executing"):
        reason += _change(case, kind)
        if case.misfit is not None:
            reason += "; its state no longer fits the type that it has in the code"
    return Diagnosis(
        kind=kind,
        reason=reason,
        remedies=tuple(_remedies(case, seen, kind, commands)),
        run_id=row.run_id,
        flow=row.flow,
        status=row.status,
        since=since,
        crashed=seen.crashed,
        answered=seen.answered,
        pausing=seen.pausing,
        questions=seen.known.questions,
        awaited=seen.known.waits,
        labels=seen.known.labels,
        expects=seen.expects,
        unreceived=tuple(case.state.signals) if case.state is not None else (),
        asks_before=tuple(seen.asked_about),
        once=seen.once if row.status == "failed" else (),
        taker=_taker(case, kind),
        failed_for=tuple(seen.children) if row.status == "failed" else (),
    )


def _taker(case: Case, kind: Kind) -> str | None:
    """Name the live worker that is expected to claim a run."""
    waits_for_room = kind in ("queue full", "queue stopped", "capability missing")
    if kind not in ON_OFFER or waits_for_room or not case.takers:
        return None
    return case.takers[0].holder.describe()


def resume_remedy(case: Case, now: float, commands: CommandLine | None = None) -> Remedy | None:
    """Return the remedy that resumes a run, with the options that it needs now; None if it cannot be resumed. A process that
    holds the run now does not matter: a worker may have claimed it only to find out that it cannot continue it.
    """
    case = msgspec.structs.replace(case, row=msgspec.structs.replace(case.row, held=False, holder=None))
    alone = msgspec.structs.replace(case, holders=None, refusals=())
    found = (one for each in (case, alone) for one in diagnose(each, now, commands).remedies)
    return next((one for one in found if one.verb == "resume"), None)


def may_be_claimed(case: Case, found: Diagnosis, now: float, patience_s: float) -> bool:
    """Return whether a live worker is expected to claim a run on offer, so that there is nothing to report. A worker that holds
    other runs may be busy. One that holds none is expected to claim the run within `patience_s` seconds. The same time is given
    to a run whose queue is full, or if the live holders were not read. The run of a dead holder is claimed when a worker next
    looks for runs.
    """
    if found.kind not in ON_OFFER or found.kind == "capability missing" or case.has_no_taker:
        return False
    if found.kind == "crashed":
        return bool(case.takers)
    is_busy = found.kind != "queue full" and any(taker.held for taker in case.takers)
    return is_busy or (found.since is not None and now - found.since < patience_s)


def is_problem(case: Case, found: Diagnosis, now: float) -> bool:
    """Return whether a run cannot continue by itself, or waits for a person or another system."""
    if case.has_no_taker and any(one.verb == inbox.ChildEnd.verb for one in case.requests):
        return True  # its child has ended
    return found.kind not in _WELL and not may_be_claimed(case, found, now, PATIENCE_S)


def _look(case: Case, now: float, commands: CommandLine) -> _Seen:
    row = case.row
    known = case.situation or (situate(case.state, None) if case.state is not None else None)
    if known is None:
        return _Seen(crashed=row.status == "running" and not row.held)
    answered = not row.held and known.is_answered
    timers = bool(known.retries) or known.is_timed
    was_held = (
        row.holder is not None
    )  # a run that was released waits in the store, and needs no process until it is due
    should_go = row.status == "running" or (row.status == "waiting" and timers and was_held)
    names = known.running or ()
    others = known.running_count - len(names[:FEW])
    commands = commands.for_flow_of(known.flow_file).for_other_flow()
    children = {
        name: diagnose(child, now, commands) if child is not None else None
        for name, child in case.children.items()
    }
    return _Seen(
        crashed=not row.held and not answered and should_go,
        answered=answered,
        pausing=row.held and is_pausing(row.status, known),
        running=(*names[:FEW], *([f"{others} more"] if others else [])),
        expects=tuple(_expects(known, now, children)),
        asked_about={} if row.held else dict(_asked_about(known, case.nodes)),
        once=tuple(
            name
            for name in known.failed
            if name in case.nodes and not case.nodes[name].idempotent and name not in known.returned
        ),
        known=known,
        children=children,
        stuck=tuple(
            name
            for name, found in children.items()
            if found is not None and _is_stuck(case.children[name], found, now)
        ),
    )


def _is_stuck(case: Case | None, found: Diagnosis, now: float) -> bool:
    return case is not None and (
        found.kind == "child" or (found.kind not in WAITS and is_problem(case, found, now))
    )


def _asked_about(known: Situation, nodes: Mapping[str, NodeOptions]) -> Iterator[tuple[str, bool]]:
    for name in (*(known.running or ()), *known.interrupted):
        if name in nodes and (nodes[name].on_interrupt == "ask" or name in known.in_doubt):
            yield name, nodes[name].idempotent


# --- which kind --------------------------------------------------------------------------------------


def _kind(case: Case, seen: _Seen, now: float) -> tuple[Kind, float]:
    """Return the kind of diagnosis for a run, which is the first reason that applies, and since when it applies."""
    row, since = case.row, case.row.updated_at
    if case.fault:
        return "unreadable", since
    if row.status in ENDED:
        return _ended_kind(case, seen), since
    needed = _needed(case, seen)
    if row.held:
        return needed or ("executing", since)
    if row.status == "paused":
        return "paused", since
    if case.is_refused:
        return ("flow changed" if case.changes else "refused"), since
    is_due = row.due_at is not None and row.due_at <= now
    if needed and not is_due:
        return needed
    if case.changes and not case.takers:
        return "flow changed", since
    if case.lacks:
        return "capability missing", since
    if row.holder is not None:
        return _without_worker(case, "crashed"), since
    if row.status == "waiting" and not seen.answered:
        if row.due_at is None or not is_due:
            return ("child" if seen.stuck else "waiting"), since
        return _without_worker(case, "due"), row.due_at
    if row.status == "pending" and row.due_at is not None and not is_due:
        return "waiting", since
    if row.status == "interrupted":
        return _without_worker(case, "interrupted"), since
    return _without_worker(case, "answered" if seen.answered else "no worker"), since


def _ended_kind(case: Case, seen: _Seen) -> Kind:
    match case.row.status:
        case "completed":
            return "completed"
        case "cancelled":
            return "cancelled"
        case _:
            failure = seen.known.failure
            return "quarantined" if failure is not None and failure.type == "Quarantined" else "failed"


def _needed(case: Case, seen: _Seen) -> tuple[Kind, float] | None:
    """Return what the run needs (an answer or a signal) and since when; None if it needs neither, or if one of its nodes runs."""
    known = seen.known
    if known.running_count > (known.in_memory if case.row.held else 0):
        return None
    for question in known.questions:
        return "question", question.asked_at
    if known.needs_signal and not known.is_timed:
        return "signal", case.row.updated_at
    return None


def _without_worker(case: Case, kind: Kind) -> Kind:
    """Return `flow unknown`, `queue stopped` or `queue full` if that is why no worker claims the run; otherwise return the given
    kind of diagnosis. A run that crashed is claimed when its queue has room again.
    """
    if kind != "crashed" and not case.flow_known:
        return "flow unknown"
    if case.has_no_taker or case.queue is None:
        return kind
    if case.is_queue_stopped:
        return "queue stopped"
    return kind if kind == "crashed" else "queue full"


# --- the reason --------------------------------------------------------------------------------------


def _reason(case: Case, seen: _Seen, kind: Kind, now: float) -> str:
    row = case.row
    if case.fault:
        return f"its log cannot be read: {case.fault}{_other_readers(case)}"
    if kind == "flow changed":
        stuck = "" if case.takes is not None else "; this run cannot continue with the changed flow"
        by = f"; {_refusing(case)}" if case.is_refused else ""
        waits = f"; {'; '.join(seen.expects)}" if seen.expects and row.status == "waiting" else ""
        return f"its flow has changed in shape: {'; '.join(case.changes)}{stuck}{by}{waits}"
    if kind == "refused":
        return f"{_refusing(case)}: {case.refusers[-1][1].reason}"
    expects = f"; {'; '.join(seen.expects)}" if seen.expects else ""
    inside = f" in {' and '.join(seen.running)}" if seen.running else ""
    if row.held and row.status not in ENDED:
        going = f", now in {', '.join(seen.running)}" if seen.running else ""
        ended = f"{seen.running[0]} has ended" if len(seen.running) == 1 else "they have ended"
        then = f"; {_pause(seen)}, so the run is paused when {ended}" if seen.pausing else ""
        return f"{held_by(row)} executes it{going}{_queued(case)}{then}{expects}"
    if seen.crashed or kind == "crashed":
        whose = f"{row.holder.describe()}, which executed it," if row.holder is not None else "its process"
        paused = (
            f"; {_pause(seen)}, so nothing of it starts until it is resumed" if seen.known.is_paused else ""
        )
        return f"{whose} crashed{inside}{_unclaimed(case, kind)}{paused}{expects}"
    if seen.answered:
        refused = seen.known.refused
        refuses = f", which refuses node {' and '.join(refused)}" if refused else ""
        came = seen.known.said.describe_arrival() if seen.known.said is not None else "answered"
        return f"{came}{refuses}{_unclaimed(case, kind)}{expects}"
    if kind in ("question", "signal", "child"):
        return "; ".join(seen.expects)
    if kind == "waiting" and row.status == "pending" and row.due_at is not None:
        return f"it begins at {text.soon(row.due_at, now)}"
    return _reason_of_status(case, seen, kind, expects)


def _pause(seen: _Seen) -> str:
    """Say who paused a run that is not paused yet, and why."""
    by, why = _stopped(seen)
    return f"a pause{by} is recorded" + (f" ({why.removeprefix(': ')})" if why else "")


def _stopped(seen: _Seen) -> tuple[str, str]:
    """Return the words for who stopped a run, and for the reason, as far as the event says so."""
    said = seen.known.said
    by = f" by {said.by}" if said is not None and said.by else ""
    return by, f": {said.reason}" if said is not None and said.reason else ""


def _reason_of_status(case: Case, seen: _Seen, kind: Kind, expects: str) -> str:
    by, why = _stopped(seen)
    match case.row.status:
        case "pending":
            return f"recorded, but not started{_unclaimed(case, kind)}"
        case "running":
            return "the run is under way"
        case "waiting":
            due = f"the run is due, but no worker has claimed it{_unclaimed(case, kind, said=True)}"
            waits = "; ".join(seen.expects) or "the run waits, and no process executes it"
            return (
                f"{due}{expects}" if kind in ("due", "flow unknown", "queue full", "queue stopped") else waits
            )
        case "completed":
            return "every branch of the flow reached its end"
        case "failed":
            return _failure(case, seen.known)
        case "cancelled":
            return f"cancelled{by}{why}"
        case "paused":
            if _is_out_of_scope(seen.known):
                return f"paused: {_describe_scope(seen.known)}{expects}"
            return f"paused{by} until it is resumed{why}{expects}"
        case "interrupted":
            cut = " and ".join(seen.asked_about)
            doubt = f"; {cut} was stopped before it ended, and may have had its effect" if cut else ""
            return f"its process was asked to stop{why}{doubt}{_unclaimed(case, kind)}{expects}"
        case _:
            assert_never(case.row.status)


def _change(case: Case, kind: Kind) -> str:
    """Say that the flow of a run that does not stand still for this reason has changed in shape, and which live worker has the
    code for the run.
    """
    if case.row.status in FINAL or case.row.held:
        return ""
    if case.takers and (case.changes or case.refusers) and not case.fault and case.row.status != "failed":
        return f"; {_continuing(case)}" if kind not in ON_OFFER else ""
    if not case.changes:
        return ""
    stuck = "" if case.takes is not None else ", and this run cannot continue with the changed flow"
    return f"; its flow has since changed in shape: {'; '.join(case.changes)}{stuck}"


def _continuing(case: Case) -> str:
    """Name a live worker that can continue a run which others cannot."""
    refused = [one.holder.describe() for one, _ in case.refusers]
    others = f", which {' and '.join(refused[:FEW])} cannot continue" if refused else ""
    return f"{case.takers[0].holder.describe()} takes it{others}"


def _refusing(case: Case) -> str:
    """Name the workers that refuse a run, which are all live workers that take its flow."""
    names = [f"{one.holder.describe()}{_version_of(one)}" for one, _ in case.refusers]
    shown = [*names[:FEW], *([f"{len(names) - FEW} more"] if len(names) > FEW else [])]
    return f"no live worker can continue it: {' and '.join(shown)} {'refuses' if len(names) == 1 else 'refuse'} it"


def _queued(case: Case) -> str:
    """Return how many calls wait in the engine that executes the run, perhaps those of this run; an empty text if none does."""
    holder = case.row.holder
    mine = [one.holder for one in case.holders or () if holder is not None and one.holder.id == holder.id]
    return f"; {mine[0].describe_calls()} there" if mine and mine[0].calls else ""


def _version_of(one: LiveHolder) -> str:
    return f" (Holdfast {one.holder.version})" if one.holder.version not in ("", VERSION) else ""


def _other_readers(case: Case) -> str:
    """Name a live worker that may be able to read a run of a newer version."""
    if not case.too_new or not case.takers:
        return ""
    taker = case.takers[0]
    return f" A live worker takes it: {taker.holder.describe()}{_version_of(taker)}"


def _unclaimed(case: Case, kind: Kind, *, said: bool = False) -> str:
    """Return the words that say that no worker has claimed the run, and why, if that is known."""
    row, words = case.row, "" if said else ", and no worker has claimed the run"
    if kind == "capability missing":
        names = " and ".join(map(repr, case.lacks))
        return f"{':' if said else ', and'} its plan needs {names}, which {row.flow!r} does not have here"
    if case.has_no_taker:
        some_take_flow = any(row.flow in one.holder.flows for one in case.holders or ())
        place = f" from queue {row.queue!r}" if some_take_flow else ""
        unknown = ", which is not known here" if kind == "flow unknown" else ""
        stopped = f"; {_full(case)}" if case.is_queue_stopped else ""
        return f"{':' if said else ', and'} no live worker takes flow {row.flow!r}{place}{unknown}{stopped}"
    if kind in ("queue full", "queue stopped"):
        return f"{words}: {_full(case)}"
    if case.takers:
        name = case.takers[0].holder.describe()
        return f"{words}; {_continuing(case) if case.refusers else f'{name} takes flow {row.flow!r}'}"
    return f"{words}: flow {row.flow!r} is not known here" if kind == "flow unknown" else words


def _full(case: Case) -> str:
    """Say that the queue of the run has no room."""
    assert case.queue is not None
    name, limit = case.queue.name, case.queue.limit
    return f"queue {name!r} is {f'at its limit of {limit}' if limit else 'stopped: its limit is 0'}"


def _unanswered(case: Case, kind: Kind, now: float) -> str:
    """Say which request waits for an engine, since when, and whether a live worker takes it."""
    oldest = case.requests[0]
    by = f" by {oldest.by}" if oldest.by else ""
    what = f"the request {oldest.verb!r}{by}"
    if oldest.verb == inbox.ChildEnd.verb:
        what = f"the end of the child run {inbox.about(inbox.read(oldest))}"
    more = f" (and {text.count(len(case.requests) - 1, 'more request')})" if len(case.requests) > 1 else ""
    who = "" if kind in ON_OFFER else _unclaimed(case, kind)
    return f"; {what} has waited since {text.soon(oldest.at, now)}{more}{who}"


def _failure(case: Case, known: Situation) -> str:
    error = known.failure
    what = (
        describe_failure(error.type, text.first_line(error.message), error.item, error.label)
        if error is not None
        else case.row.error or "unknown"
    )
    node = known.failure_node
    where = f"node {node} failed" if node else "the run failed"
    is_fatal = error is not None and error.kind == "fatal" and error.type != "QuestionRefused"
    fatal = " (fatal: a retry is pointless until the cause is fixed)" if is_fatal else ""
    advice = f" {error.advice}" if error is not None and error.advice else ""
    return f"{where}: {end_sentence(f'{what}{fatal}') if advice else f'{what}{fatal}'}{advice}"


def _expects(known: Situation, now: float, children: Mapping[str, Diagnosis | None]) -> Iterator[str]:
    shown = known.questions[:QUESTIONS_FEW]
    yield from (f"{asks(question, known.labels)}{text.until(question.until, now)}" for question in shown)
    if known.asks > len(shown):
        yield text.count(known.asks - len(shown), "more question")
    for wait in known.waits[:FEW]:
        whose = text.name_item(wait.node, wait.item, known.labels)
        match wait.kind:
            case "signal":
                yield f"{whose} waits for the signal {wait.signal!r}{text.until(wait.until, now)}"
            case "child":
                waits = f"{whose} waits for the child run {wait.child}{text.until(wait.until, now)}"
                yield waits + (_fate(children[wait.child]) if wait.child and wait.child in children else "")
            case "timer":
                if wait.until is not None:
                    yield f"{whose} {_resting(wait, now)} {text.soon(wait.until, now)}"
            case unknown:
                assert_never(unknown)
    if known.waits_count > FEW:
        yield text.count(known.waits_count - FEW, "more wait")
    for name, at in islice(known.retries.items(), FEW):
        yield f"{name} {'is' if at > now else 'was to be'} retried at {text.soon(at, now)}"
    if known.retries_count > FEW:
        yield f"{known.retries_count - FEW} more are retried"


def _resting(wait: Wait, now: float) -> str:
    """Say what a node does until the time of a wait has come. If it has come, no worker could continue the run since."""
    slot = parse(wait.slot)
    is_over = wait.until is not None and wait.until <= now
    if slot is not None and slot.kind == "try":
        return f"{'was to try' if is_over else 'tries'} the step {slot.name} again at"
    return "has slept until" if is_over else "sleeps until"


def _fate(child: Diagnosis | None) -> str:
    """Say what a child run does, after the words that name it."""
    if child is None:
        return ", which was deleted"
    if child.status in FINAL:
        return f", which was {child.status}" if child.status == "cancelled" else ", which has completed"
    waits = child.kind in ("question", "signal", "child", "waiting") and child.expects
    return f", in which {child.reason}" if waits else f" of flow {child.flow!r}: {child.reason}"


def asks(question: Question, labels: Mapping[str, Mapping[int, str]] | None = None) -> str:
    """Return a question and the node that asks it, in one line. The text of a question that Holdfast asks names the node: in
    quotes, which a sentence does not need.
    """
    asked = text.first_line(question.text)
    if question.about in ("interrupt", "repeat"):
        return asked.replace(repr(question.node), question.node)
    return f"{text.name_item(question.node, question.item, labels)} asks: {asked}"


# --- what can be done --------------------------------------------------------------------------------


def _remedies(case: Case, seen: _Seen, kind: Kind, commands: CommandLine) -> list[Remedy]:
    run_id = case.row.run_id
    if kind == "unreadable":
        look = remedies.look(commands, "verify", run_id, "see what is wrong with its log")
        return [look, remedies.upgrade()] if case.too_new else [look]
    commands = changed = commands.for_flow_of(seen.known.flow_file)
    if case.takes is None:
        commands = commands.without_file()
    found = _usual_remedies(case, seen, kind, commands)
    has_change = bool(case.changes or case.refusers)
    if has_change and case.takers and case.row.status != "failed":  # that worker has the code for it
        return [one for one in found if one.verb not in EXECUTING]
    if case.lacks and kind in ("capability missing", "refused"):
        words = f"register {' and '.join(case.lacks)}, or name a file that has it; then start a worker"
        line = commands.line("worker", *commands.file_words())
        return [Remedy("work", {}, words, line), *(one for one in found if one.verb != "resume")]
    if kind == "refused" or (
        (kind in ON_OFFER or case.requests) and case.has_no_taker and not case.is_refused
    ):
        words = _other_code(case) if kind == "refused" else ""
        work = [remedies.work(commands, case.row.flow, wants_base=seen.known.wants_base, words=words)]
        if any(one.too_new for _, one in case.refusers):
            work = in_turn([remedies.upgrade()], work)
        if case.is_queue_stopped:
            work = in_turn([_open_queue(case, commands)], work)
        found = either(work, found)
    if kind == "queue stopped":
        return either([_open_queue(case, commands)], found)
    if kind == "queue full":
        line = commands.line("queue")
        return either([Remedy("queue", {}, "list the queues; then raise the limit, or wait", line)], found)
    return found if case.takes == () or case.row.held else _of_changed_flow(case, found, changed)


def _open_queue(case: Case, commands: CommandLine) -> Remedy:
    """Return the remedy that removes the limit of a queue that was stopped."""
    line = commands.line("queue", case.row.queue, "--no-limit")
    return Remedy("queue", {}, "let workers execute the runs of its queue", line)


def _resume(
    case: Case, seen: _Seen, commands: CommandLine, words: str, *more: str, force: bool = False
) -> Remedy:
    """Return the remedy that resumes a run: with its changed flow, if it has one. If live workers have that flow, they carry the
    request out, so that the command needs no file, and does not wait for the timers of the run. After a failure, the cause was
    perhaps fixed in the file, which these workers have not read again. A state that does not fit its type any more is edited.
    """
    if case.misfit:
        words += f"; give a value of {case.misfit} that fits, or leave --edit out after {_UPGRADES_STATE}"
    elif case.misfit is not None:
        words += f" (after {_UPGRADES_STATE})"
    edit = ("--edit", text.json_text({case.misfit: "VALUE"}, indent=None)) if case.misfit else ()
    return remedies.resume(
        commands,
        case.row.run_id,
        words,
        force=force,
        options=(*(case.takes or ()), *more, *edit),
        wants_base=seen.known.wants_base,
        leaves=bool(case.takes) and case.is_left_to_change and case.row.status != "failed",
    )


def _other_code(case: Case) -> str:
    """Say which worker continues a run that all live workers refuse."""
    if case.misfit is None:
        return "start a worker with code that can continue it"
    return f"start a worker after {_UPGRADES_STATE}: it claims the run"


def _usual_remedies(case: Case, seen: _Seen, kind: Kind, commands: CommandLine) -> list[Remedy]:
    run_id, status = case.row.run_id, case.row.status

    def resume(words: str, *more: str, force: bool = False) -> Remedy:
        return _resume(case, seen, commands, words, *more, force=force)

    if status == "completed":
        return []
    if status == "cancelled":
        return [remedies.fork(commands, run_id)]
    if status == "pending" and kind == "waiting":
        return [resume("begin it now")]
    of_children = [remedy for child in seen.children.values() for remedy in _of_child(child)]
    if (seen.known.beyond or seen.known.higher_budget) and (wanted := _find_wider(seen.known, status)):
        return [resume(words, *options) for words, options in wanted]
    if status == "failed":
        words, force = _after_failure(seen)
        beside = [child for child in seen.children.values() if child is not None and child.status == "failed"]
        own = [resume(words, force=force)]
        if beside and not force:
            own = _resume_family(beside, resume, left=case.children_left, words=words)
        again = _call_again(case, seen, commands)
        if seen.known.failure is not None and seen.known.failure.step:
            return either(again, _skip(case, seen, commands), own)
        return _after_child(case, seen, commands) or either(own, again, _skip(case, seen, commands))
    speak = [
        *remedies.answers_to_all(commands, run_id, seen.known.questions, seen.known.asks),
        *remedies.signals(commands, run_id, seen.known.waits),
    ]
    if case.row.held:
        line = commands.line("events", run_id, "--follow")
        return [*speak, Remedy("follow", {"run_id": run_id}, "watch its events", line)]
    if seen.known.refused:
        names = " and ".join(seen.known.refused)
        if all(
            name in case.nodes and "QuestionRefused" in case.nodes[name].on_error
            for name in seen.known.refused
        ):
            return [resume(f"resume it: an error edge takes the refusal of {names}, which never ran"), *speak]
        return [resume(f"let the run end: it fails, because {names} was refused and never ran"), *speak]
    failed = [child for child in seen.children.values() if child is not None and child.status == "failed"]
    if failed and not any(one.verb == inbox.ChildEnd.verb for one in case.requests):
        return [
            *_resume_family(failed, resume),
            *speak,
        ]  # it waits for the next end of a child that was not resumed
    speak += of_children[:_OF_CHILDREN_MAX]
    if seen.crashed or seen.answered or seen.asked_about or not speak:
        return [resume(_resume_words(seen)), *speak]
    if kind == "flow changed" and case.is_left_to_change and case.takes and not seen.known.questions:
        return in_turn([resume("resume it; it continues to wait")], speak)
    if status in TAKEABLE and case.takers:
        return speak  # a live worker continues the run then
    return in_turn(speak, [resume(_resume_words(seen))])


def _of_child(child: Diagnosis | None) -> list[Remedy]:
    """Return the remedies of a child run that also help its caller. A child that only waits, or that no engine executes, is not
    resumed by itself: resuming the caller executes it, unless the flow of the child has changed. Its caller waits for this very
    run, so a fork in its place does not help.
    """
    if child is None:
        return []
    if child.kind == "flow changed":
        return [one for one in child.remedies if one.verb == "resume"]
    needs_resume = child.kind in ("failed", "quarantined", "paused", "unreadable")
    return [one for one in child.remedies if needs_resume or one.verb not in ("resume", "follow")]


def _after_child(case: Case, seen: _Seen, commands: CommandLine) -> list[Remedy]:
    """Return the remedies of a run that failed because a child run did. Resuming the run resumes the child too; if the child
    needs more than that, such as a budget, its own remedies come first. Empty if it failed for another reason.
    """
    failure, run_id, node = seen.known.failure, case.row.run_id, seen.known.failure_node
    if failure is None or not failure.child:
        return []
    names = [*seen.children]
    unmended = [
        name for name in names if (one := seen.children[name]) is None or one.status in ENDED - {"completed"}
    ]
    name = (unmended or names)[0]
    child = seen.children[name]

    def resume(words: str, *more: str, force: bool = False) -> Remedy:
        return _resume(case, seen, commands, words, *more, force=force)

    if child is None or child.status == "cancelled":
        found = [remedies.retry_fresh(commands, run_id, node)] if node is not None else []
    elif child.status == "failed":
        failed = [one for other in unmended if (one := seen.children[other]) and one.status == "failed"]
        found = _resume_family(failed, resume, left=case.children_left)
    else:
        words = "resume it: it looks at the child run again, which has been resumed"
        found = [resume(words)]
    return either(found, _skip(case, seen, commands))


def _resume_family(
    failed: list[Diagnosis],
    resume: Callable[..., Remedy],
    *,
    left: int = 0,
    words: str = "fix the cause, then resume it",
) -> list[Remedy]:
    """Return the command that resumes a run and the child runs for which it failed: these, and `left` others.
    Remedies of a child that the command cannot do come before it. `words` say what the command does to the run itself.
    """
    before: list[list[Remedy]] = []
    confirm: list[str] = []
    force = False
    for child in failed:
        own = next((one for one in child.remedies if one.arguments.get("run") == child.run_id), None)
        if own is None or own.verb != "resume" or not own.arguments.keys() <= _PASSED_ON:
            before.append([*child.remedies[:1]])
            continue
        before.append([*child.remedies[: child.remedies.index(own)]])
        force = force or own.arguments.get("force", False)
        confirm += [f"{child.run_id}/{node}" for node in child.once]
        confirm += own.arguments.get("confirm", ())
    shown = [child.run_id or "" for child in failed[:FEW]]
    others = len(failed[FEW:]) + left
    names = " and ".join([*shown, *([f"{others} more"] if others else [])])
    runs = f"the child run{'s' if len(failed) + left > 1 else ''} {names}"
    more = [word for name in ([] if force else confirm) for word in ("--confirm", name)]
    again = f"; it runs {' and '.join(confirm)} AGAIN, which is not idempotent" if confirm else ""
    first = f"resume this run, which waits for {runs}" if any(before) else f"{words} and {runs}"
    found = resume(f"{first}{again}", *more, force=force)
    if left and more:  # nodes of the others may have to be confirmed too
        words = f"see all that has to be confirmed, and the command that resumes it and {runs}"
        found = msgspec.structs.replace(found, words=words, command=f"{found.command} --dry-run")
    return in_turn(*before, [found])


def _resume_words(seen: _Seen) -> str:
    """Say what resuming does to a run that has not failed."""
    names = " and ".join(seen.asked_about)
    if not names:
        return "resume it; completed work does not run again"
    asks_what = f"resume asks a question and does not run {'it' if len(seen.asked_about) == 1 else 'them'}"
    if any(seen.asked_about.values()):
        return f"resume it; {names} may have had an effect: {asks_what}"
    return f"resume it; {names} {'is' if len(seen.asked_about) == 1 else 'are'} not idempotent: {asks_what}"


def _after_failure(seen: _Seen) -> tuple[str, bool]:
    """Say what resuming does to a failed run, and whether that needs `force`."""
    error = seen.known.failure
    again = f"; it runs {' and '.join(seen.once)} AGAIN, which is not idempotent" if seen.once else ""
    node = seen.known.failure_node
    has_returned = node in seen.known.returned
    if error is not None and error.type == "PolicyDenied":
        about = f"about what {node} returned; it is not called again" if has_returned else f"about {node}"
        return f"ask the policies again {about}", True
    if error is not None and error.type == "GuardError":
        return "edit the data that the guard reads, then resume it; only the guard is evaluated again", False
    if error is not None and error.step:
        words = f"resume it, if the code of {node} now handles this outcome of the step {error.step}{again}"
        return words, error.kind == "fatal"
    if error is None or error.kind != "fatal":
        judged = f"; it judges what {node} returned, and does not call it" if has_returned else ""
        return f"fix the cause, then resume it{judged}{again}", False
    if error.type == "QuestionRefused":
        return f"ask again; {node} starts only if it is approved this time", True
    return f"retry in spite of the fatal failure{again}", True


def _call_again(case: Case, seen: _Seen, commands: CommandLine) -> list[Remedy]:
    """Return the remedy that starts a visit over, if no other attempt helps: the node has returned and its result did not pass
    the verification, or the failure is the kept outcome of a step.
    """
    node, error = seen.known.failure_node, seen.known.failure
    if node is not None and error is not None and error.step:
        once = f"; it runs {' and '.join(seen.once)} AGAIN, which is not idempotent" if seen.once else ""
        words = f"fix the cause, then call the steps of {node} again, with new idempotency keys{once}"
        return [remedies.retry_fresh(commands, case.row.run_id, node, words)]
    if node not in seen.known.returned or node is None or error is None or error.type != "VerificationFailed":
        return []
    words = f"call {node} again, with new idempotency keys; its effect has happened once"
    return [remedies.retry_fresh(commands, case.row.run_id, node, words)]


def _skip(case: Case, seen: _Seen, commands: CommandLine) -> list[Remedy]:
    node = seen.known.failure_node
    if node is None or not seen.known.is_stuck:
        return []  # a node whose router failed has completed: only its router is called again
    happened = "; choose it if its effect did happen" if node in seen.once else ""
    if node in seen.known.returned:
        happened = ", and without what it returned; --update JSON gives a result in its place"
    words = f"continue without {node}{happened}"
    made_with = remedies.PLACEHOLDER if case.takes else None  # `skip` refuses a flow whose shape has changed
    return [
        remedies.skip(
            commands, case.row.run_id, node, words, file=made_with, wants_base=seen.known.wants_base
        )
    ]


def _of_changed_flow(case: Case, found: list[Remedy], commands: CommandLine) -> list[Remedy]:
    """Return the remedies for a run whose flow has changed in shape, each with the condition under which it works. Those of its
    child runs have their own conditions. `commands` name the file of the changed flow.
    """
    renamed = [pair.replace("=", " was renamed to ") for pair in case.takes or () if "=" in pair]
    made_with = "with the code that the run was created with"
    provided = f"if {' and '.join(renamed)}" if renamed else "with the flow as it is now"
    if case.takes is None:
        provided = made_with
        found = _with_fork(case, found, commands)
    needs = {"resume": provided, "skip": made_with}
    return [
        msgspec.structs.replace(one, words=f"{one.words} ({needs[one.verb]})")
        if one.verb in needs and case.row.run_id in one.arguments.values()
        else one
        for one in found
    ]


def _with_fork(case: Case, found: list[Remedy], commands: CommandLine) -> list[Remedy]:
    """Return the remedies and a fork, which comes first, together with the cancellation of the run that it replaces. If the
    changed flow continues from no checkpoint, only the code that the run was created with brings it further than a cancellation.
    """
    run_id = case.row.run_id
    if case.fork_from is None:
        words = "cancel it: the changed flow can continue from none of its checkpoints"
        return either(found, [remedies.cancel(commands, run_id, words)])
    fork = remedies.fork(commands, run_id, case.fork_from)
    words = "cancel this run: the fork replaces it, with the signals and answers that `fork` tells you to send again"
    drop = remedies.cancel(commands, run_id, words)
    return either(in_turn([fork], [drop]), found)


def diagnosis_as_json(found: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as a dict for JSON. Every command and the API use these fields to explain the status of a run."""
    return {
        "crashed": found.crashed,
        "answered": found.answered,
        "pausing": found.pausing,
        "reason": found.reason,
        "remedies": found.remedies,
    }


# --- limits ------------------------------------------------------------------------------------------


def _is_out_of_scope(known: Situation) -> bool:
    """Return whether the engine has paused the run, because nothing in its scope is left to do."""
    said = known.said
    return bool(known.beyond) and said is not None and (said.by, said.reason) == (None, "scope")


def _describe_scope(known: Situation) -> str:
    """Say which nodes are due and may not run."""
    names = known.beyond
    return f"everything in its scope is done, and {' and '.join(names)} {'is' if len(names) == 1 else 'are'} not in scope"


def _find_wider(known: Situation, status: RunStatus) -> list[tuple[str, tuple[str, ...]]] | None:
    """Return the ways to resume a run with wider limits, each in words and as options; None if no limit has stopped it."""
    if status == "paused" and _is_out_of_scope(known):
        scope = tuple(word for name in known.beyond for word in ("--scope", name))
        return [
            (f"let {' and '.join(known.beyond)} run too", scope),
            ("let all nodes run", ("--scope", "*")),
        ]
    is_spent = known.failure is not None and known.failure.type == "BudgetExceeded"
    if status == "failed" and is_spent and known.higher_budget is not None:
        return [("continue with a higher budget", ("--budget", known.higher_budget))]
    return None
