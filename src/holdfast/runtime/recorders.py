"""What each verb records in the log of a run, and which of two requests comes first.

`RECORDERS` is the table from each verb to the function that records its events in a journal; the caller saves them. It serves a
run that this engine executes, a run that another engine executes (which finds the request in its inbox), a run that no engine
executes, and a preview, whose journal is never saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.core import commands, events
from holdfast.core.cleanup import Unfinished, find_uncleaned
from holdfast.core.decide import decide
from holdfast.core.events import Failure
from holdfast.core.run_state import FEW, STOPPED, VISIT_STUCK, visit_of
from holdfast.core.situation import typed_file
from holdfast.errors import (
    AnswerRefused,
    HoldfastError,
    RequestSuperseded,
    ResumeRefused,
    RunHeld,
    SettingError,
    SignalRefused,
    StateError,
    name_known,
    name_refusal,
)
from holdfast.reading import inbox
from holdfast.runtime import mending, outcomes, questions
from holdfast.runtime.holdings import Halt
from holdfast.runtime.journal import Journal
from holdfast.runtime.mending import FamilyOrders
from holdfast.runtime.perform import perform
from holdfast.runtime.preparation import (
    edited,
    prepare_child,
    recover_streams,
    refuse_moved,
    refuse_other_version,
)


def _pause(journal: Journal, request: inbox.Pause, executed: bool) -> bool:
    pause(journal, by=request.by, reason=request.reason, lost=not executed)
    return False


def _cancel(journal: Journal, request: inbox.Cancel, executed: bool) -> bool:
    return True


def _answer(journal: Journal, request: inbox.Answer, executed: bool) -> bool:
    return questions.answer(journal, request)


def _signal(journal: Journal, request: inbox.Signal, executed: bool) -> bool:
    journal.record(
        events.SignalReceived(
            name=request.name, payload=request.payload, by=request.by, reason=request.reason
        )
    )
    return False


def _retry(journal: Journal, request: inbox.Retry, executed: bool) -> bool:
    retry(journal, request)
    return False


def _skip(journal: Journal, request: inbox.Skip, executed: bool) -> bool:
    skip(journal, request.node, request.update, by=request.by, reason=request.reason)
    return False


def _edit(journal: Journal, request: inbox.Edit, executed: bool) -> bool:
    edit(journal, request, executed=executed)
    return False


def _resume(journal: Journal, request: inbox.Resume, executed: bool) -> bool:
    raise RunHeld(
        journal.state.run_id,
        journal.services.holder.describe(),
        "It moves already, so there is nothing to resume. To change something, pause the run first, or wait until it stops.",
    )


def _child_end(journal: Journal, request: inbox.ChildEnd, executed: bool) -> bool:
    journal.record_child_end(request)
    return False


def _refuse_unknown(journal: Journal, request: inbox.Unknown, executed: bool) -> bool:
    raise ResumeRefused(
        journal.state.run_id,
        f"this version of Holdfast does not know the request {request.stored_verb!r}. "
        "Use the version that sent the request, or a newer one.",
    )


RECORDERS: Mapping[str, Callable[[Journal, Any, bool], bool]] = {
    inbox.Pause.verb: _pause,
    inbox.Cancel.verb: _cancel,
    inbox.Answer.verb: _answer,
    inbox.Signal.verb: _signal,
    inbox.Retry.verb: _retry,
    inbox.Skip.verb: _skip,
    inbox.Edit.verb: _edit,
    inbox.Resume.verb: _resume,
    inbox.ChildEnd.verb: _child_end,
    inbox.Unknown.verb: _refuse_unknown,
}
"""Verb -> the function that records what was requested: `record(journal, request, executed)`, where `executed` is True if an
engine executes the run. It returns True if the run is to be cancelled, and raises `ResumeRefused` or `AnswerRefused` if the run
does not allow the request. What else is true of a verb is in the traits of its record (`core.requests`).
"""


def check_by_and_reason(by: Any, reason: Any) -> None:
    """Refuse a `by` or `reason` that is not text, or text that no store can keep. Raises `SettingError`."""
    for name, said in (("by", by), ("reason", reason)):
        if said is not None and not isinstance(said, str):
            raise SettingError(f"{name}={said!r} is not text: give a string, or leave {name} out")
        if said is not None and ("\0" in said or said != said.encode(errors="ignore").decode()):
            raise SettingError(
                f"{name}={said[:80]!r} cannot be stored: it contains a NUL character, or half of a surrogate pair. Remove it."
            )


def record_unexecuted(journal: Journal, request: inbox.AnyRequest) -> None:
    """Record a request to a run that no engine executes, and remove the request from the inbox."""
    before = journal.state.status
    if request.id not in journal.taken:
        journal.taken.append(request.id)
    if RECORDERS[request.verb](journal, request, False):
        cancel(journal, by=request.by, reason=request.reason)
    if (
        journal.state.status == "pending" != before
    ):  # it continues now, and not at the end of what it waited for
        journal.due_at = None


def needs_flow(request: inbox.AnyRequest) -> bool:
    """Return whether a request can only be recorded by an engine that knows the flow: an edit, or an answer that skips a node."""
    return isinstance(request, inbox.Edit) or (isinstance(request, inbox.Answer) and request.value == "skip")


REFUSALS = (ResumeRefused, AnswerRefused, SignalRefused, SettingError, StateError)
"""The exceptions with which a verb refuses a request. Any other exception leaves the request in the inbox."""


def refuse(journal: Journal, request: inbox.AnyRequest, refused: HoldfastError) -> None:
    """Record that a request cannot be carried out, and remove it from the inbox."""
    if request.id and request.id not in journal.taken:
        journal.taken.append(request.id)
    verb = request.stored_verb if isinstance(request, inbox.Unknown) else request.verb
    about = next((said for name in ("key", "name", "holder") if (said := getattr(refused, name, None))), None)
    event = events.RequestRefused(
        verb=verb,
        reason=str(getattr(refused, "reason", refused)),
        request=request.id,
        error=name_refusal(refused),
        about=about or inbox.about(request),
        asked_at=request.at or None,
        by=request.by,
    )
    journal.record(event)
    journal.services.on_refused(journal.state, event)


# --- the order of requests ---------------------------------------------------------------------------


def supersedes(request: inbox.AnyRequest) -> bool:
    """Return whether a request makes older requests void that would let the run continue."""
    return isinstance(request, (inbox.Pause, inbox.Cancel))


def follows(request: inbox.AnyRequest, older: Iterable[inbox.AnyRequest]) -> bool:
    """Return whether a request must wait for older ones that let the run continue, because its effect depends on theirs. A signal
    depends on no resume: a rewind loses no signal. The end of a child is a fact, and waits for nothing.
    """
    ahead = [one for one in older if one.traits.executes]
    if isinstance(request, inbox.ChildEnd) or supersedes(request):
        return False
    if isinstance(request, inbox.Signal):
        return any(not isinstance(one, inbox.Resume) for one in ahead)
    return bool(ahead)


def first_of(waiting: Sequence[inbox.AnyRequest]) -> inbox.AnyRequest:
    """Return the request to carry out first, of those that wait for a run which no engine executes: the oldest, unless a later
    one supersedes it.
    """
    chosen, continues = waiting[0], False
    for one in waiting:
        if continues and supersedes(one):
            chosen = one
        continues = continues or one.traits.executes
    return chosen


def supersede(journal: Journal, request: inbox.AnyRequest, later: inbox.AnyRequest) -> None:
    """Record that a later request has superseded a request, and remove it from the inbox."""
    state, verb = journal.state, request.traits
    by = f" by {later.by}" if later.by else ""
    again = f"To resume the run after all: `holdfast resume {state.run_id} {typed_file(state)}`"
    if isinstance(later, inbox.Cancel):
        again = f"To continue from one of its checkpoints: `holdfast fork {state.run_id}`"
    why = f"a later {later.verb}{by} superseded this request before an engine carried it out. {again}"
    refuse(journal, request, RequestSuperseded(state.run_id, why, asked=verb.asked))


# --- what the verbs record ---------------------------------------------------------------------------


def cancel(journal: Journal, *, by: str | None, reason: str | None) -> None:
    """Cancel a run that no engine executes. Nodes that still count as running were interrupted with their process."""
    uncleaned = find_uncleaned(journal.state, lost=True)
    cut_all(journal, "its process died", lost=True)
    recover_streams(journal)
    journal.record(events.RunCancelled(by=by, reason=reason, uncleaned=uncleaned))


def record_halt(
    journal: Journal,
    halt: Halt,
    cancels: list[str],
    unfinished: Mapping[tuple[str, int | None], Unfinished],
) -> None:
    """Record which nodes were interrupted, and the status of the run. Called when all nodes have ended, or were stopped
    `unfinished`. `cancels` are the ids of the requests to cancel the run.
    """
    if journal.state.status in STOPPED:
        return
    uncleaned = (
        find_uncleaned(journal.state, lost=False, unfinished=unfinished) if halt.kind == "cancel" else []
    )
    cut_all(journal, halt.reason or halt.kind)
    if halt.kind == "cancel":
        journal.taken += cancels
        journal.record(events.RunCancelled(by=halt.by, reason=halt.reason, uncleaned=uncleaned))
    elif halt.kind == "timeout":
        advice = "Resume it to give it the same time again."
        journal.record(
            events.RunFailed(failure=Failure("partial", "RunTimeout", halt.reason or "", advice=advice))
        )
    else:
        _record_interrupt(journal, halt)


def _record_interrupt(journal: Journal, halt: Halt) -> None:
    """Record that the run has ended if its last node ended in time; otherwise record that the run was interrupted."""
    for command in decide(journal.flow, journal.state, journal.at, journal.ready):
        if isinstance(command, (commands.CompleteRun, commands.FailRun)):
            perform(journal, command, [])
            return
    if journal.state.status != "paused":
        journal.record(events.RunInterrupted(reason=halt.reason))


def cut_all(journal: Journal, reason: str, *, lost: bool = False) -> None:
    """Record that every node which counts as running was interrupted. `lost` is True if their process died."""
    state = journal.state
    for name in [name for name in state.open if state.nodes[name].status == "running"]:
        journal.record(events.NodeInterrupted(**visit_of(name, state.nodes[name]), reason=reason, lost=lost))


def pause(journal: Journal, *, by: str | None, reason: str | None, lost: bool = False) -> None:
    """Start nothing new until the run is resumed. A run that has stopped cannot be paused. A paused one stays paused: the event
    says that this request was carried out too, or it would wait and pause the run once more after a resume. `lost` is True if
    no engine executes the run.
    """
    status = journal.state.status
    if status not in inbox.Pause.traits.accepts:
        why = f"the run is {status}, so there is nothing to pause"
        raise ResumeRefused(journal.state.run_id, why, asked="paused")
    if lost:
        cut_all(journal, "its process died", lost=True)
    journal.record(events.RunPaused(by=by, reason=reason))


def retry(journal: Journal, request: inbox.Retry) -> None:
    """Retry a node that failed, was interrupted or waits, now; without a node, all of them. The child runs for which they failed
    are resumed with them, unless they get new ones (`fresh`).
    """
    names, by, reason, fresh = (
        _stuck(journal, request.node, "retry"),
        request.by,
        request.reason,
        request.fresh,
    )
    is_previewed = journal.is_previewed or request.expects is not None
    orders = FamilyOrders(
        confirm=request.confirm or (), by=by, reason=reason, expected=is_previewed, asked="tried again"
    )
    _refuse_own_confirm(journal, orders)
    reached = names if request.node is not None else {*names, *journal.state.open}
    family = mending.find(journal, reached, orders, prepare_child) if not fresh else ()
    mending.refuse_unconfirmed(journal.state.run_id, family, orders)
    mending.refuse_needless(journal.state.run_id, family, orders)
    mending.leave(journal, family, orders)
    anew = mending.find_anew(journal.state, family)
    for name in dict.fromkeys((*names, *anew)):
        header = visit_of(name, journal.state.nodes[name])
        if fresh:
            journal.cancel_children(name, None, f"its caller repeats {name!r} with new children")
        journal.record(
            events.NodeScheduled(
                **header, why="retry", fresh=fresh, by=by, reason=reason, anew=anew.get(name, [])
            )
        )


def _refuse_own_confirm(journal: Journal, orders: FamilyOrders) -> None:
    """Refuse a `confirm` of a node of the run itself: its caller names the node that is retried. Raises `ResumeRefused`."""
    for name in orders.confirm:
        if name not in mending.of_family((name,)):
            raise ResumeRefused(
                journal.state.run_id,
                f"confirm names {name!r}, but retry needs no confirmation for a node of the run itself. Leave it out of confirm.",
                asked="tried again",
            )


def skip(journal: Journal, node: str, update: Any, *, by: str | None, reason: str | None) -> None:
    """Put an update in place of the result of a visit that has not ended, and continue after it."""
    (name,) = _stuck(journal, node, "skip")
    visit = journal.state.nodes[name]
    header = visit_of(name, visit)
    took = 0
    if visit.input is None:  # the visit is due, but has not begun
        header["iteration"] = visit.iteration + 1
        header["execution"] = journal.state.next_execution(name, header["iteration"])
        took = journal.state.arrivals[name] if name in journal.flow.topology.joins else 1
    try:
        skipped = outcomes.skipped(
            journal.flow,
            journal.state,
            name,
            header,
            took=took,
            update=update,
            now=journal.at,
            by=by,
            reason=reason,
        )
    except HoldfastError:
        raise
    except Exception as raised:  # a reducer of the user's raised
        raise ResumeRefused(
            journal.state.run_id,
            f"the update for {name!r} does not merge into the state: {type(raised).__name__}: {raised}. Give another update.",
            asked="skipped",
        ) from raised
    journal.cancel_children(name, None, f"its caller has skipped {name!r}")
    for event in skipped:
        journal.record(event)


def edit(journal: Journal, request: inbox.Edit, *, executed: bool) -> None:
    """Change fields of the state. A run with running nodes refuses this: they were given the state as it was."""
    state = journal.state
    running = [name for name in state.open if state.nodes[name].status == "running"] if executed else []
    if running:
        raise ResumeRefused(
            state.run_id,
            f"{' and '.join(running)} {'is' if len(running) == 1 else 'are'} running. Pause the run first "
            f"(`holdfast pause {state.run_id}`), and edit it when it is paused.",
            asked="edited",
        )
    check_edit(journal, request)
    given = request.fields if request.changes is None else inbox.read_changes(request.changes)
    journal.record(
        events.StateEdited(changes=edited(journal.flow, state, given), by=request.by, reason=request.reason)
    )


def check_edit(journal: Journal, request: inbox.Edit) -> None:
    """Refuse an edit of a state that has another version, or that was computed from an older state. Raises `ResumeRefused`."""
    older = "Resume the run with edit=…, which upgrades the state first."
    refuse_other_version(journal.flow, journal.state, journal.state.run_id, asked="edited", older=older)
    refuse_moved(journal, request.seen, "edited")


def _stuck(journal: Journal, node: str | None, verb: str) -> list[str]:
    """Return the visits that can be retried or skipped: failed, interrupted, waiting, or due and not begun."""
    nodes = journal.state.nodes
    asked = "tried again" if verb == "retry" else "skipped"
    names = [name for name in journal.state.open if nodes[name].status in VISIT_STUCK]
    # A visit that waits for an approval, or did not get it, has not begun: it can be skipped, but not retried.
    unbegun = VISIT_STUCK - {"interrupted"} if verb == "skip" else {"pending"}
    if node in journal.state.arrivals and node in nodes and nodes[node].status in unbegun:
        names.append(node)
    if verb == "retry":
        names += [name for name in journal.state.open if not nodes[name].routed]
    if node is None:
        names = [name for name in names if nodes[name].status != "pending"]
    elif node in names:
        return [node]
    elif node not in journal.flow.nodes:
        near = name_known(node, journal.flow.nodes)
        why = f"flow {journal.flow.name!r} has no node {node!r}{near}"
        raise ResumeRefused(journal.state.run_id, why, asked=asked)
    else:
        visit = nodes.get(node)
        is_now = visit.status if visit is not None else "not reached"
        if verb == "retry":
            _refuse_unapproved(journal, [node])
        raise ResumeRefused(
            journal.state.run_id,
            f"node {node!r} is {is_now}; only a failed, interrupted or waiting node can be {asked}"
            + (f", here {' and '.join(map(repr, dict.fromkeys(names[:FEW])))}" if names else ""),
            asked=asked,
        )
    if not names:
        _refuse_unapproved(journal, journal.state.arrivals)
        raise ResumeRefused(
            journal.state.run_id,
            f"it has no failed, interrupted or waiting node, so there is nothing to {verb}",
            asked=asked,
        )
    return names


def _refuse_unapproved(journal: Journal, names: Iterable[str]) -> None:
    """Refuse to retry a visit that waits for approval. Raises `ResumeRefused`."""
    for name in names:
        visit = journal.state.nodes.get(name)
        if visit is not None and visit.asked and name in journal.state.arrivals:
            raise ResumeRefused(
                journal.state.run_id,
                f"node {name!r} has asked a question and has not begun. Answer the question; if the answer was a refusal, resume "
                "with force=True (--force) to ask again.",
                asked="tried again",
            )
