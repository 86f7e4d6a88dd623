"""How a request to a run is carried out: a table from each verb to the function that records its events (`RECORDERS`).

The table serves a run that this engine executes, a run that another engine executes (which finds the request in its inbox), and a
run that no engine executes. Each function records events in a journal; the caller saves them.

`rehearse` does the same in a journal that is never saved, and returns what would come of it: a preview. An engine that carries
out a request which was made for a preview rehearses it once more, under its lease (`refuse_stale`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.core import commands, events, run_state
from holdfast.core.cleanup import Unfinished, find_uncleaned
from holdfast.core.consequences import Consequences, PreviewNode, foresee, survey
from holdfast.core.decide import decide
from holdfast.core.events import Failure
from holdfast.core.graph import Flow
from holdfast.core.run_state import FINAL, HALTED, STOPPED, VISIT_STUCK, RunState, visit_of
from holdfast.core.situation import typed_file
from holdfast.core.verb_options import foreseen_options
from holdfast.errors import (
    AnswerRefused,
    HoldfastError,
    PreviewStale,
    RequestSuperseded,
    ResumeRefused,
    RunHeld,
    RunNotFound,
    SchemaTooNew,
    SettingError,
    SignalRefused,
    StateError,
    StoreCorrupt,
    name_known,
    name_refusal,
)
from holdfast.reading import history, inbox, previews
from holdfast.reading.previews import Mended, PreviewCancelled, Rehearsed, VerbCall
from holdfast.reading.relatives import FAMILY_MAX
from holdfast.runtime import mending, outcomes, questions
from holdfast.runtime.holdings import Halt
from holdfast.runtime.journal import Journal
from holdfast.runtime.mending import FamilyOrders, Unconfirmed
from holdfast.runtime.perform import perform
from holdfast.runtime.resume import (
    NO_FUNCTIONS,
    Executing,
    Functions,
    OtherCode,
    StaleForCode,
    changes_nothing,
    edited,
    edits_of,
    prepare,
    prepare_child,
    recover_streams,
    refuse_moved,
)
from holdfast.runtime.services import Services
from holdfast.storage.contract import RunRow, Store
from holdfast.storage.verdicts import refuse_final


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
    journal.record(
        events.RequestRefused(
            verb=verb,
            reason=str(getattr(refused, "reason", refused)),
            request=request.id,
            error=name_refusal(refused),
            about=about or inbox.about(request),
            asked_at=request.at or None,
            by=request.by,
        )
    )


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


def settle(
    journal: Journal,
    request: inbox.AnyRequest,
    older: Iterable[inbox.AnyRequest],
    row: RunRow,
    flow: Flow[Any] | None,
) -> None:
    """Record what becomes of the requests that wait for a run which no engine executes, before `request` is recorded in the same
    append. Those that need not execute the run are carried out or refused, in their order; a pause or a cancel supersedes the
    others. What this engine cannot record without the flow stays in the inbox, and so does the end of a child.
    """
    for one in older:
        if journal.state.status in FINAL:
            return
        if one.traits.executes and not supersedes(request):
            return  # it came while this request was made: what is after it waits for it
        if one.traits.executes:
            supersede(journal, one, request)
        elif not isinstance(one, inbox.ChildEnd) and (flow is not None or not needs_flow(one)):
            _record_or_refuse(journal, one, row, flow)


def _record_or_refuse(
    journal: Journal, request: inbox.AnyRequest, row: RunRow, flow: Flow[Any] | None
) -> None:
    before = journal.state.seq
    try:
        refuse_stale(journal.services, flow, row, journal.state, request, executed=False)
        record_unexecuted(journal, request)
    except REFUSALS as refused:
        if journal.state.seq != before:  # never save a part of what a refused request recorded
            raise
        refuse(journal, request, refused)


def supersede(journal: Journal, request: inbox.AnyRequest, later: inbox.AnyRequest) -> None:
    """Record that a later request has superseded a request, and remove it from the inbox."""
    state, verb = journal.state, request.traits
    by = f" by {later.by}" if later.by else ""
    again = f"To resume the run after all: `holdfast resume {state.run_id} {typed_file(state)}`"
    if isinstance(later, inbox.Cancel):
        again = f"To continue from one of its checkpoints: `holdfast fork {state.run_id}`"
    why = f"a later {later.verb}{by} superseded this request before an engine carried it out. {again}"
    refuse(journal, request, RequestSuperseded(state.run_id, why, asked=verb.asked))


# --- previews ----------------------------------------------------------------------------------------


def rehearse(
    services: Services,
    flow: Flow[Any] | None,
    row: RunRow | None,
    head: RunState,
    asked: inbox.AnyRequest,
    functions: Functions = NO_FUNCTIONS,
    *,
    executed: bool,
) -> Rehearsed:
    """Return what a resume, or a request to retry, skip or cancel, would do to a run in the state `head`. Nothing is saved, and
    nothing is executed. `flow` is None if it is not known here. `executed` is True if an engine executes the run; if it is False,
    `row` is the row of the run.
    """
    wanted = _wanted(head.run_id, asked, functions)
    known = flow or history.stand_in(services.store, head)
    before = survey(head, asked.rename if isinstance(asked, inbox.Resume) else None)
    refused: HoldfastError | None = None
    journal: Journal | None = None
    try:
        journal = _record_unsaved(services, known, row, head, asked, functions, executed=executed)
    except Unconfirmed as unconfirmed:
        assert isinstance(asked, (inbox.Resume, inbox.Retry))
        refused, confirmed = unconfirmed, msgspec.structs.replace(asked, confirm=unconfirmed.nodes)
        try:
            journal = _record_unsaved(services, known, row, head, confirmed, functions, executed=executed)
        except REFUSALS as other:
            refused = other
    except (*REFUSALS, RunHeld) as other:
        refused = other
    found, at, family = Consequences(), None, tuple[Mended, ...]()
    uncleaned: list[events.Uncleaned] = []
    cancels: list[PreviewCancelled] = []
    if journal is not None:
        if isinstance(asked, inbox.Cancel):
            uncleaned = find_uncleaned(head, lost=not executed)
            cancels = list(_find_cancelled(services.store, head))
        family = journal.family
        found = foresee(before, journal.state, journal.flow, journal.at)
        rewound = journal.rewinds[len(row.rewinds) :] if row is not None else ()
        at = rewound[-1][1] if rewound else None
    preview = previews.make(
        wanted,
        found,
        confirm=(*_own_confirm(asked, found, at), *mending.family_confirm(family)),
        at=at,
        path=head.path,
        refused=refused,
        is_undecided=isinstance(refused, Unconfirmed),
        unknown=_unsaid(asked, functions, known) if flow is None else (),
        family=family,
        uncleaned=uncleaned,
        cancels=cancels,
    )
    is_undecided = isinstance(refused, Unconfirmed)
    return Rehearsed(wanted=wanted, preview=preview, is_undecided=is_undecided, refused=refused)


def _find_cancelled(store: Store, head: RunState, left: int = FAMILY_MAX) -> Iterator[PreviewCancelled]:
    """Yield the child runs that are cancelled with a run, and theirs: at most `left`."""
    for run_id, child in head.children.items():
        if left <= 0 or not child.cancels or child.is_final:
            continue
        with suppress(RunNotFound, StoreCorrupt, SchemaTooNew):
            row = store.run(run_id)
            if row.status in FINAL:
                continue
            state = history.load(store, run_id, row=row)
            yield PreviewCancelled(
                run_id=run_id,
                flow=row.flow,
                caller=head.run_id,
                uncleaned=tuple(find_uncleaned(state, lost=not row.held)),
            )
            left -= 1
            for below in _find_cancelled(store, state, left):
                left -= 1
                yield below


def _own_confirm(asked: inbox.AnyRequest, found: Consequences, at: int | None) -> tuple[PreviewNode, ...]:
    """Return the nodes of the run itself that have to be confirmed: those that a rewind repeats, and those that a resume by its
    caller does.
    """
    if at is not None:
        return found.risky
    return mending.find_unsafe(found.rerun) if mending.is_from_caller(asked) else ()


def _record_unsaved(
    services: Services,
    flow: Flow[Any],
    row: RunRow | None,
    head: RunState,
    asked: inbox.AnyRequest,
    functions: Functions,
    *,
    executed: bool,
) -> Journal:
    """Record what a verb records, in a journal that is never saved."""
    dry = services.unsaving()
    if isinstance(asked, inbox.Resume):
        if executed and row is not None and row.holder is not None:
            raise RunHeld(head.run_id, row.holder.describe())
        is_empty = changes_nothing(asked, functions) and head.status == "completed"
    else:
        refuse_final(head.run_id, head.status, asked.traits.asked)
        is_empty = False
    if isinstance(asked, Executing) and not executed and not is_empty:
        assert row is not None
        journal = prepare(dry, flow, row, 0, asked, functions)
        if not isinstance(asked, inbox.Resume):
            RECORDERS[asked.verb](journal, asked, True)
        return journal
    journal = Journal(dry, flow, run_state.load(run_state.dump(head)), row=row, fence=0)
    journal.tick()
    if not is_empty and RECORDERS[asked.verb](journal, asked, executed):
        cancel(journal, by=None, reason=None)
    return journal


def _wanted(run_id: str, asked: inbox.AnyRequest, functions: Functions) -> VerbCall:
    given = {name: getattr(asked, name) for name in foreseen_options(type(asked))}
    is_function = functions.edit is not None or getattr(asked, "changes", None) is not None
    if is_function:  # what it changes depends on the state; `seen` says which state that was
        given["edit"] = True
    options = {
        name: value for name, value in given.items() if value not in (None, False, (), [], {}, "refuse")
    }
    is_typable = functions.validate is None and not is_function
    return VerbCall(run_id=run_id, verb=asked.verb, options=options, is_typable=is_typable)


def _unsaid(asked: inbox.AnyRequest, functions: Functions, flow: Flow[Any]) -> Iterable[str]:
    """Say what a preview leaves open in an engine that does not know the flow."""
    if isinstance(asked, inbox.Cancel):
        return
    yield (
        f"flow {flow.name!r} is not known here, so it was not checked whether the flow has changed, or its validate_resume "
        "refuses the state"
    )
    if isinstance(asked, inbox.Resume) and edits_of(asked, functions) is not None:
        yield "it was not checked whether the edit fits the state"
    if isinstance(asked, inbox.Skip) and asked.update is not None:
        yield "it was not checked whether the update fits the state"
    if isinstance(asked, inbox.Skip) and asked.node in flow.definition.branches:
        yield f"a function of the flow chooses which nodes follow {asked.node!r}"


def refuse_stale(
    services: Services,
    flow: Flow[Any] | None,
    row: RunRow | None,
    head: RunState,
    asked: inbox.AnyRequest,
    functions: Functions = NO_FUNCTIONS,
    *,
    executed: bool,
) -> None:
    """Refuse a verb that was asked for with the digest of a preview (`expects`), if it would now do something else. The caller
    holds the lease of the run, so that what is checked here is what is then done. Raises `PreviewStale`; as
    `StaleForCode` if the verb is refused because of the code of this engine, so that another engine may do what the preview said.
    """
    expects = inbox.expects_of(asked)
    is_refused_anyway = isinstance(asked, inbox.Resume) and executed
    if expects is not None and not is_refused_anyway:
        found = rehearse(services, flow, row, head, asked, functions, executed=executed)
        try:
            previews.refuse_stale(found.preview, expects, asked.traits.asked)
        except PreviewStale as stale:
            if isinstance(found.refused, OtherCode):
                raise StaleForCode(head.run_id, stale.reason, asked=asked.traits.asked) from stale
            raise


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
        told = f"{halt.reason}; resume it to give it the same time again"
        journal.record(events.RunFailed(failure=Failure("partial", "RunTimeout", told)))
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
    if status in HALTED:
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
    known, version = journal.state.state_version, journal.flow.definition.state_version
    if known != version:
        raise ResumeRefused(
            journal.state.run_id,
            f"its state has version {known}, and the flow has version {version}. Resume the run with edit=…, which upgrades the "
            "state first.",
            asked="edited",
        )
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
            f"node {node!r} is {is_now}; only a failed, interrupted or waiting node can be {asked}",
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
