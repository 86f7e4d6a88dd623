"""Decides how a run is resumed: from which event, with which state and flow, and whether that is allowed.

`prepare` turns a request into a journal whose first events are recorded but not saved yet: `RunResumed`, `RunClaimed` or
`RunRewound`, then `FlowChanged`, `StateUpgraded`, `StateEdited`. If the request is refused, it raises `ResumeRefused` and
nothing is saved. Validations are called last, with the state that the run would continue with. Of the requests that a caller
makes directly, only those that a validation refuses (`Invalid`) are recorded as refused; of those in an inbox, all are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec

from holdfast.core import events
from holdfast.core.budget import Budget, number, raised, reached
from holdfast.core.commands import PauseRun
from holdfast.core.consequences import begins_again, foresee, survey
from holdfast.core.decide import decide
from holdfast.core.definition import Definition
from holdfast.core.difference import compatible, difference, rename_refusals
from holdfast.core.events import Values
from holdfast.core.graph import Flow
from holdfast.core.kinds import CHECKPOINTS
from holdfast.core.run_state import VISIT_DONE, NodeState, RunState, visit_of
from holdfast.core.scope import EVERY, check_scope
from holdfast.core.situation import explain_budget, typed_file
from holdfast.core.state import always, apply, diff
from holdfast.core.verb_options import read_options
from holdfast.errors import (
    HoldfastError,
    PreviewStale,
    ResumeRefused,
    SettingError,
    StateError,
    did_you_mean,
    end_sentence,
    name_known,
)
from holdfast.reading import forks, history, inbox, text
from holdfast.reading.changes import MISFIT
from holdfast.reading.chunks import Streamer, make_spans, read_spills
from holdfast.runtime import mending
from holdfast.runtime.journal import Journal
from holdfast.runtime.mending import FamilyOrders, FatalFailure, Unconfirmed
from holdfast.runtime.services import Services
from holdfast.runtime.upgrading import upgrade
from holdfast.storage.contract import RunRow
from holdfast.storage.rows import open_row
from holdfast.storage.verdicts import refuse_final

Edit: TypeAlias = Callable[[Any], Any] | Mapping[str, Any] | events.Changes
"""A function of the state, fields with their values, or what such a function has changed."""


class Functions(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller in this process adds to a request to resume a run: functions, which cannot be stored."""

    edit: Callable[[Any], Any] | None = None
    """Edits the state, in place of the `edit` of the request."""
    validate: Callable[[Any], Any] | None = None


NO_FUNCTIONS = Functions()
Executing: TypeAlias = inbox.Resume | inbox.Retry | inbox.Skip | inbox.Unknown
"""A request that lets a run continue which no engine executes."""


def read_resume(run: str, options: Mapping[str, Any]) -> tuple[str, inbox.Resume, Functions]:
    """Return the run to resume, the request, and what cannot be stored, from the options of `Engine.resume`. Raises
    `SettingError`.
    """
    given = read_options(inbox.Resume, options)
    run_id, given["checkpoint"] = history.split(run, given.get("checkpoint"))
    edit = given.pop("edit") if callable(given.get("edit")) else None
    functions = Functions(edit=edit, validate=given.pop("validate", None))
    return run_id, inbox.Resume(**given), functions


def edits_of(request: inbox.Resume, functions: Functions) -> Edit | None:
    """Return how a resume edits the state, if at all. Raises `SettingError` if the stored changes are damaged."""
    if request.changes is not None:
        return inbox.read_changes(request.changes)
    return functions.edit or request.edit


def changes_nothing(request: inbox.Resume, functions: Functions) -> bool:
    """Return whether the run continues from the end of its log with the state that it has: then a completed run is returned as it
    is.
    """
    return not (request.places or edits_of(request, functions))


def _resume_of(asked: Executing | None) -> inbox.Resume:
    """Return the resume with which a run begins to continue: after it, a retry or a skip is recorded. A worker that claims a run
    from a queue was asked by no caller.
    """
    if asked is None:
        return inbox.Resume()
    if isinstance(asked, inbox.Resume):
        return asked
    return inbox.Resume(by=asked.by, reason=asked.reason, expects=inbox.expects_of(asked))


class Invalid(ResumeRefused):
    """A validation refused to let the run continue with its state."""


class OtherCode(ResumeRefused):
    """The run cannot continue with the flow or state type that this engine knows. An engine with other code may resume it."""

    request: str | None = None
    """The id of the request that this engine leaves in the inbox for such an engine."""


class StaleForCode(OtherCode, PreviewStale):
    """With the code of this engine, the verb would not do what its preview said."""


def prepare(
    services: Services,
    flow: Flow[Any],
    row: RunRow,
    fence: int,
    asked: Executing | None,
    functions: Functions = NO_FUNCTIONS,
    *,
    outlived: bool = False,
) -> Journal:
    """Create the journal with which a run continues as asked, and record its first events; a retry or a skip itself is recorded
    after them. `asked` is None if a worker claims the run from a queue: a failed run stays failed, a paused run paused.
    `outlived` is True if this engine held the run before, and gave it up because the store did not answer. Raises
    `ResumeRefused`.
    """
    request = _resume_of(asked)
    is_passed_on = mending.is_from_caller(request)
    before = history.load(services.store, row.run_id, row=row) if is_passed_on else None
    journal = prepare_unchecked(services, flow, row, fence, asked, functions, outlived=outlived)
    orders = _orders(request)
    if before is not None:
        found = foresee(survey(before), journal.state, flow, journal.at)
        mending.refuse_unconfirmed(row.run_id, journal.family, orders, mending.find_unsafe(found.rerun))
    else:
        mending.refuse_unconfirmed(row.run_id, journal.family, orders)
        mending.refuse_needless(row.run_id, journal.family, orders)
    _validate(flow, journal.state, functions)
    journal.is_previewed = request.expects is not None
    return journal


def _orders(request: inbox.Resume) -> FamilyOrders:
    return FamilyOrders(
        confirm=request.confirm,
        force=request.force,
        by=request.by,
        reason=request.reason,
        expected=request.expects is not None,
    )


def prepare_child(services: Services, flow: Flow[Any], row: RunRow, orders: FamilyOrders) -> Journal:
    """Prepare the resume of a child run whose caller is resumed or retried, in a journal that is never saved. Raises
    `ResumeRefused`.
    """
    request = inbox.Resume(id=mending.FROM_CALLER, force=orders.force, confirm=list(orders.confirm))
    return prepare_unchecked(services, flow, row, 0, request)


def prepare_unchecked(
    services: Services,
    flow: Flow[Any],
    row: RunRow,
    fence: int,
    asked: Executing | None,
    functions: Functions = NO_FUNCTIONS,
    *,
    outlived: bool = False,
) -> Journal:
    """Do what `prepare` does, but do not call the validations."""
    is_resume = isinstance(asked, inbox.Resume)
    head = history.load(services.store, row.run_id, row=row, check=True)
    request = _accepting(services, flow, head, _resume_of(asked))
    refuse_final(row.run_id, head.status)
    to = _place(services, row, head, request)
    if to is not None:
        to = _within(services, row, to)
    fatal = head.failure is not None and head.failure.kind == "fatal"
    # A retry or a skip says what to do with the failed nodes: then a fatal failure does not prevent it.
    names_nodes = asked is not None and not is_resume
    if head.failure is not None and fatal and not names_nodes and not request.force:
        cause = head.failure.describe()
        raise FatalFailure(row.run_id, _fatal(head.failure), cause=cause)
    limits, was_paused = _limits(flow, head, request, is_resume=is_resume), head.paused
    state = head if to is None else _rewound_to(services, flow, row, head, to, request)
    state.at = head.at  # after a rewind, the time of new events is still later than that of all old ones
    journal = Journal(services, flow, state, row=row, fence=fence)
    refuse_moved(journal, request.seen)
    journal.tick()
    changed = flow_events(services, flow, state, request)
    if to is None:
        _refuse_needless(
            flow, row.run_id, request, head.failed, "if the run continues from the end of its log"
        )
        if head.status == "failed" and head.children and asked is not None:
            mending.receive_ends(journal)
        holder = services.holder.describe()
        anew: dict[str, list[str]] = {}
        if asked is None:
            journal.record(events.RunClaimed(holder=holder, outlived=outlived))
        else:
            nodes = [] if names_nodes else _tried_again(head, request)
            if is_resume:
                again = head.failed if nodes is None else nodes
                names, orders, unseen = {*again, *head.open}, _orders(request), head.status == "failed"
                family = mending.find(journal, names, orders, prepare_child, unseen=unseen)
                mending.leave(journal, family, orders)
                anew = mending.find_anew(head, family)
            journal.record(_resumed(holder, nodes, request, limits, outlived=outlived))
        for name in anew:
            header = visit_of(name, journal.state.nodes[name])
            journal.record(
                events.NodeScheduled(
                    **header, why="retry", anew=anew[name], by=request.by, reason=request.reason
                )
            )
    else:
        seq = row.seq + 1
        journal.rewinds = (*row.rewinds, (seq, to))
        signals = _signals_since(services, row, head, state, to)
        journal.record(_rewind(head, state, to, request, signals, limits), seq=seq)
    for event in changed:
        journal.record(event)
        journal.definition, journal.renamed = flow.definition_json, request.rename
    _upgrade(journal, flow)
    if (edits := edits_of(request, functions)) is not None:
        journal.record(
            events.StateEdited(
                changes=edited(flow, journal.state, edits), by=request.by, reason=request.reason
            )
        )
    _refuse_misfit(flow, journal.state)
    if journal.state.scope is not None and was_paused and asked is not None:
        _refuse_within_scope(journal, flow)
    return journal


def _resumed(
    holder: str, nodes: list[str] | None, request: inbox.Resume, limits: _Limits, *, outlived: bool
) -> events.RunResumed:
    """Return the event for a run that is resumed from the end of its log."""
    return events.RunResumed(
        holder=holder,
        nodes=nodes,
        force=request.force,
        outlived=outlived,
        by=request.by,
        reason=request.reason,
        budget=limits.budget,
        scope=limits.scope,
    )


def _tried_again(head: RunState, request: inbox.Resume) -> list[str] | None:
    """Return the failed nodes to run again; None for all of them. A node with a fatal failure, such as a refused approval,
    stays failed. If the run was stopped before such a failure ended it, the run fails now.
    """
    fatal = {name for name in head.failed if (told := head.nodes[name].failure) and told.kind == "fatal"}
    return [name for name in head.failed if name not in fatal] if fatal and not request.force else None


def _fatal(failure: events.Failure) -> str:
    told = f"the failure of the run is fatal. {end_sentence(failure.describe())}"
    if failure.advice:
        return f"{told} {failure.advice}"
    if "--force" in failure.message:  # of a log of an older version, whose message says what `force` does
        return told
    return f"{told} Trying again is pointless unless the cause is gone; then use force=True (--force)."


# --- within which limits ---------------------------------------------------------------------------------


class _Limits(msgspec.Struct, frozen=True):
    """The budget and the scope that the run gets with this resume; None for what stays as it is."""

    budget: Budget | None = None
    scope: list[str] | None = None


def _limits(flow: Flow[Any], head: RunState, request: inbox.Resume, *, is_resume: bool) -> _Limits:
    """Return the new limits of the run. Raises `ResumeRefused` if its budget is spent already, and for a scope that cannot be
    widened in this way.
    """
    _refuse_spent(head, request, is_resume=is_resume)
    if request.scope is None:
        return _Limits(request.budget)
    listed = [request.rename.get(name, name) for name in head.scope or ()]
    if head.scope is None:
        raise ResumeRefused(
            head.run_id, "the run has no scope, so all its nodes may run already. Leave scope out."
        )
    if list(request.scope) == [EVERY]:
        return _Limits(request.budget, [EVERY])
    try:
        wider = {*listed, *check_scope(flow.definition, request.scope)}
    except SettingError as misfit:
        raise ResumeRefused(head.run_id, str(misfit)) from misfit
    return _Limits(request.budget, [name for name in flow.nodes if name in wider])


def _refuse_spent(head: RunState, request: inbox.Resume, *, is_resume: bool) -> None:
    """Refuse a budget that the run has spent already, and to resume a run that failed because its budget is spent unless it gets
    a higher one: it would fail again at once.
    """
    spent = head.spent()
    if request.budget is not None and (names := reached(request.budget, spent)):
        told = " and ".join(
            f"{name}={number(getattr(request.budget, name))} is not above the {number(getattr(spent, name))} that"
            for name in names
        )
        higher = raised(request.budget, spent)
        raise ResumeRefused(
            head.run_id,
            f"the budget {told} the run has spent already. Give it more: "
            f"`holdfast resume {head.run_id} {typed_file(head)} --budget {higher}`",
        )
    failed_for_it = head.failure is not None and head.failure.type == "BudgetExceeded"
    keeps_budget = is_resume and request.budget is None
    if failed_for_it and keeps_budget and head.budget is not None and head.is_over_budget:
        raise ResumeRefused(head.run_id, explain_budget(head))


class OutOfScope(ResumeRefused):
    """Nothing that is in the scope of the run is left to do."""


def _refuse_within_scope(journal: Journal, flow: Flow[Any]) -> None:
    """Refuse to resume a run in which nothing that is in its scope is left to do: it would be paused again at once."""
    state = journal.state
    if not any(isinstance(one, PauseRun) for one in decide(flow, state, journal.at)):
        return
    left = [name for name in state.arrivals if name not in (state.scope or ())]
    raise OutOfScope(
        state.run_id,
        f"everything in its scope is done, and {' and '.join(left)} {'is' if len(left) == 1 else 'are'} not in scope. To let "
        f"{'it' if len(left) == 1 else 'them'} run too: `holdfast resume {state.run_id} {typed_file(state)} "
        f"{' '.join(f'--scope {name}' for name in left)}`; `--scope '*'` lets all nodes run.",
    )


# --- from where --------------------------------------------------------------------------------------


def _place(services: Services, row: RunRow, head: RunState, request: inbox.Resume) -> int | None:
    """Return the seq of the event to rewind to; None to continue from the end of the log. Raises `ResumeRefused`."""
    chosen = list(request.places)
    if len(chosen) > 1:
        raise ResumeRefused(
            row.run_id, f"choose one of {' and '.join(chosen)}: each names a different place to resume from"
        )
    if request.checkpoint is not None:
        return _checkpoint(services, row, request.checkpoint)
    if request.replay:
        done = {node.completed_seq: name for name, node in head.nodes.items() if node.completed_seq}
        if not done:
            raise ResumeRefused(
                row.run_id,
                "no node has completed yet, so there is none to replay. Resume the run without replay.",
            )
        return max(done) - 1
    name = request.after or request.restart_at
    if name is None:
        return None
    node = head.nodes.get(name)
    reached = node is not None and (node.completed_seq if request.after else node.iteration)
    if node is None or not reached:
        what = "has not completed" if request.after else "was never reached"
        near = did_you_mean(name, head.nodes) if node is None else ""
        raise ResumeRefused(row.run_id, f"node {name!r} {what} in this run{near}")
    if request.after:
        return node.completed_seq
    return row.seq if name in head.open else node.completed_seq - 1


def _within(services: Services, row: RunRow, to: int) -> int:
    """Return the seq to rewind to in this run's own log. Raises `ResumeRefused` if the log does not contain that event (any
    more). For a fork, the first event of the fork takes the place of the event from which it was forked.
    """
    trimmed = services.store.upkeep.trimmed(row.run_id)
    if to < trimmed.base or to + 1 < trimmed.retired:  # a node is repeated from the event before it completed
        gone = history.beginning(services.store, row) if to < trimmed.base else history.retirement(trimmed)
        raise ResumeRefused(
            row.run_id,
            f"the run cannot go back to event {to}. {gone} `holdfast checkpoints {row.run_id}` lists the remaining checkpoints.",
        )
    began_after = history.began_after(services.store, row)
    if to < began_after:
        raise ResumeRefused(
            row.run_id,
            f"event {to} is older than this fork. Fork its parent again, from that event: "
            f"fork({row.parent!r}, checkpoint={to})",
        )
    return max(to, began_after + 1) if began_after and not trimmed.base else to


def _checkpoint(services: Services, row: RunRow, seq: int) -> int:
    found = services.store.events(row.run_id, seq - 1, seq)
    trimmed = services.store.upkeep.trimmed(row.run_id)
    if seq < trimmed.retired or seq <= trimmed.base:
        gone = history.beginning(services.store, row) if seq <= trimmed.base else history.retirement(trimmed)
        raise ResumeRefused(
            row.run_id,
            f"the run cannot go back to event {seq}. {gone} `holdfast checkpoints {row.run_id}` lists the remaining checkpoints.",
        )
    if not found or found[0].kind not in CHECKPOINTS:
        what = (
            f"event {seq} is {found[0].kind}, which is not a checkpoint"
            if found
            else f"the log of the run has no event {seq}"
        )
        raise ResumeRefused(row.run_id, f"{what}; `holdfast checkpoints {row.run_id}` lists the checkpoints")
    return seq


def _rewound_to(
    services: Services, flow: Flow[Any], row: RunRow, head: RunState, to: int, request: inbox.Resume
) -> RunState:
    """Return the state of the run at the event to rewind to. Raises `ResumeRefused` if the rewind would run nodes again that are
    not idempotent, and the caller has not confirmed all of them.
    """
    state = history.load(services.store, row.run_id, to, row=row, check=True)
    again = {
        known.name: node
        for name, node in head.nodes.items()
        if (known := flow.nodes.get(request.rename.get(name, name))) is not None
        and begins_again(node, state, state.name_of_key(head.key_name(name)))
    }
    _refuse_needless(flow, row.run_id, request, again, f"if the run goes back to event {to}")
    once = [name for name in again if not flow.nodes[name].options.idempotent]
    if not request.force and not set(once) <= set(request.confirm):
        named = ", ".join(f'"{name}"' for name in once)
        raise Unconfirmed(
            row.run_id,
            f"going back to event {to} would repeat {'a node' if len(once) == 1 else f'{len(once)} nodes'} that "
            f"{'is' if len(once) == 1 else 'are'} not idempotent:\n"
            + _indented([f"{name} {_last_run(again[name])}" for name in once])
            + f"\nTo run {'it' if len(once) == 1 else 'them'} again, add confirm=[{named}] "
            f"({' '.join(f'--confirm {name}' for name in once)}); otherwise resume from a later checkpoint.",
            once,
        )
    return state


def _refuse_needless(
    flow: Flow[Any], run_id: str, request: inbox.Resume, again: Collection[str], when: str
) -> None:
    """Refuse a `confirm` of a node that would not run again: it is probably a mistake. Raises `ResumeRefused`."""
    for name in request.confirm if not mending.is_from_caller(request) else ():
        if name in mending.of_family((name,)):
            continue
        if name not in flow.nodes:
            near = name_known(name, flow.nodes)
            raise ResumeRefused(
                run_id, f"confirm names {name!r}, but flow {flow.name!r} has no such node{near}"
            )
        if name not in again:
            raise ResumeRefused(
                run_id, f"confirm names {name!r}, which would not run again {when}. Leave it out of confirm."
            )


def _last_run(node: NodeState) -> str:
    """Say how far the latest visit of a node got, and when."""
    if node.status in VISIT_DONE:
        return f"({node.status} at {text.when(node.ended_at)})"
    if node.status == "failed":
        return f"(failed at {text.when(node.ended_at)})"
    return f"(began at {text.when(node.started_at)} and has not completed)"


def _signals_since(
    services: Services, row: RunRow, head: RunState, state: RunState, to: int
) -> dict[str, list[Any]]:
    """Return the payloads of the signals that no node has received after a rewind, by name. A rewind never loses a signal:
    these are the signals that a repeated visit had received, those that were stored at that event, and those that came later.
    """
    told: dict[str, list[Any]] = {}
    for name in state.open:
        for signal, payload in _taken(services, row, state, name, to):
            told.setdefault(signal, []).append(payload)
    for name, waiting in state.signals.items():
        told.setdefault(name, []).extend(waiting)
    for found in services.store.events(row.run_id, to, kinds=("SignalReceived",)):
        if any(first <= found.seq <= last for first, last in head.stretches()):
            signal = open_row(found, services.store.blobs).event
            told.setdefault(signal.name, []).append(signal.payload)
    return told


def _taken(services: Services, row: RunRow, state: RunState, name: str, to: int) -> Iterator[tuple[str, Any]]:
    """Yield name and payload of the signals that an open visit has received, also under an earlier name of its node."""
    names = forks.names_along(services.store, row) if state.key_names else None
    node_then = name if names is None else None
    rows = services.store.events(row.run_id, 0, to, kinds=("SignalAwaited",), node=node_then)
    log = history.opened(services.store, row.run_id, rows)
    for signal, payload, _ in forks.taken_signals(state, name, log, names):
        yield signal, payload


def _rewind(
    head: RunState,
    state: RunState,
    to: int,
    request: inbox.Resume,
    signals: dict[str, list[Any]],
    limits: _Limits = _Limits(),  # noqa: B008 - frozen
) -> events.RunRewound:
    """Return the event for a rewind, with everything that a rewind does not undo: executions, crashes, costs and signals.

    Nodes have the names that they have at the event `to`. The number of an execution is never used again: attempts, receipts and
    folders are named by it. If an earlier rewind has left the event `to` behind, the state there does not say what was executed
    since then, so every visit counts as undone.
    """
    there = {
        name: state.name_of_key(head.key_name(name)) for name in {*head.nodes, *head.executions, *head.fresh}
    }
    executions: dict[str, dict[int, int]] = {
        there[name]: dict(visits) for name, visits in head.executions.items()
    }
    has_led_here = any(first <= to <= last for first, last in head.stretches())
    for name, node in head.nodes.items():
        before = state.nodes.get(there[name]) if has_led_here else None
        first = 1 if before is None else before.iteration + (there[name] not in state.open)
        done = head.executions.get(name, {})
        for iteration in range(max(1, first), node.iteration + 1):
            used = done.get(iteration, 0)
            last = max(used, node.execution) if iteration == node.iteration else used + 1
            executions.setdefault(there[name], {})[iteration] = last
        if node.asked and not (
            name in head.open and node.attempt
        ):  # the visit has asked but not begun: its next question needs another key
            visit = node.iteration + (name not in head.open)
            executions.setdefault(there[name], {})[visit] = head.next_execution(name, visit)
    cut = {name: head.nodes[name].crashes + (head.nodes[name].status == "running") for name in head.open}
    crashes = {there[name]: times for name, times in cut.items() if times}
    active_s = head.active_s if head.budget is None else head.spent().active_s
    # A rewind does not undo a new budget or a wider scope.
    budget = limits.budget or (head.budget if head.budget != state.budget else None)
    scope = limits.scope
    if scope is None and head.scope != state.scope:
        scope = list(head.scope) if head.scope is not None else [EVERY]
    return events.RunRewound(
        to=to,
        executions=executions,
        crashes=crashes,
        active_s=active_s,
        usd=head.usd,
        tokens=head.tokens,
        fresh={there[name]: visits for name, visits in head.renewals().items()},
        signals=signals,
        confirmed=list(request.confirm),
        called=head.called,
        children_usd=head.children_usd,
        children_tokens=head.children_tokens,
        reported=head.reported,
        by=request.by,
        reason=request.reason,
        budget=budget,
        scope=scope,
    )


# --- with which flow and state -----------------------------------------------------------------------


def _accepting(services: Services, flow: Flow[Any], state: RunState, request: inbox.Resume) -> inbox.Resume:
    """Return the request with the changes that this engine accepts, if the flow has changed and the request accepts none itself.
    Of the nodes that this engine renames, those count that the run had and its flow now has: the others are in other flows.
    """
    accepts = services.accepts
    if state.fingerprint == flow.fingerprint or request.rename or request.on_change != "refuse":
        return request
    had = _old_definition(services, state).nodes if accepts.rename else {}
    renamed = {
        old: new
        for old, new in accepts.rename.items()
        if old in had and new in flow.nodes and old not in flow.nodes
    }
    return msgspec.structs.replace(request, on_change=accepts.on_change, rename=renamed)


def _old_definition(services: Services, state: RunState) -> Definition:
    """Return the definition with which the run was executed. Raises `ResumeRefused` if the store has lost it."""
    stored = services.store.definition(state.fingerprint)
    if stored is None:
        raise ResumeRefused(
            state.run_id,
            f"the definition of its flow ({state.fingerprint[:12]}) is not in the store. Restore the store from a backup.",
        )
    return history.defined(stored, state.run_id)


def worker_flow_events(services: Services, flow: Flow[Any], state: RunState) -> list[events.Event]:
    """Return what `flow_events` returns for a run that a worker continues without a request."""
    return flow_events(services, flow, state, _accepting(services, flow, state, inbox.Resume()))


def flow_events(
    services: Services, flow: Flow[Any], state: RunState, request: inbox.Resume
) -> list[events.Event]:
    """Return the events for a flow that differs from the flow of the run. Raises `OtherCode` if the run cannot continue with
    it.
    """
    if state.fingerprint == flow.fingerprint:
        return []
    old = _old_definition(services, state)
    found = difference(old, flow.definition, rename=request.rename)
    renamed_only = bool(request.rename) and msgspec.structs.replace(found, renamed=[]).only_options
    if not found.only_options and not renamed_only:
        if request.on_change != "compatible":
            wrong = "; ".join(rename_refusals(old, flow.definition, request.rename))
            raise OtherCode(
                state.run_id,
                wrong
                or f"the flow has changed in shape: {'; '.join(found.words())}. "
                'Use on_change="compatible" (--on-change compatible) if the run may continue with the new flow, '
                'rename={"old": "new"} (--rename old=new) if a node has a new name, a fork, or the old code.',
            )
        completed = {name for name, node in state.nodes.items() if node.completed_seq}
        reasons = compatible(
            old,
            flow.definition,
            completed=completed,
            pending={*state.open, *state.arrivals, *state.held},
            rename=request.rename,
        )
        if reasons:
            raise OtherCode(
                state.run_id,
                "the flow has changed in a way that this run cannot follow:\n"
                + _indented(reasons)
                + "\nThe difference:\n"
                + _indented(found.lines()),
            )
    rename = dict(request.rename)
    return [
        events.FlowChanged(
            fingerprint=flow.fingerprint, rename=rename, keeps_keys=bool(rename), by=request.by
        )
    ]


def _indented(lines: list[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


def _upgrade(journal: Journal, flow: Flow[Any]) -> None:
    """Upgrade the state, and the inputs of visits that have not ended, to the version of the flow's state type."""
    state, version = journal.state, flow.definition.state_version
    if state.state_version == version:
        return
    if state.state_version > version:
        raise OtherCode(
            state.run_id,
            f"the state of the run has version {state.state_version}, but the flow has version {version}: use the newer code",
        )

    kept = [
        *state.held,
        *(name for name in state.open if (items := state.nodes[name].items) is not None and items.done),
    ]
    if kept:
        raise OtherCode(
            state.run_id,
            f"the run's state has version {state.state_version}, and results of that version wait to be merged in {kept[0]!r}. "
            "Let the old code finish that layer or fan-out, then resume with the new code.",
        )

    def lift(values: Values) -> Values:
        return upgrade(flow, values, state.state_version)

    try:
        inputs = {name: lift(given) for name in state.open if (given := state.nodes[name].input) is not None}
        upgraded = events.StateUpgraded(state_version=version, values=lift(state.values), inputs=inputs)
    except Exception as fault:
        raise OtherCode(
            state.run_id,
            f"the state of the run could not be upgraded from version {state.state_version} to {version}: "
            f"{type(fault).__name__}: {fault}",
        ) from fault
    journal.record(upgraded)


_UNMOVED = frozenset({"RunClaimed", "RequestRefused", "NodeStreamed", "NodeWaiting"})
"""Events after which the state has the same values as before, so that an edit that was computed before them still fits."""


def refuse_moved(journal: Journal, seen: int | None, asked: str = "resumed") -> None:
    """Refuse an edit that was computed from an older state of the run: from the state at event `seen`. Raises `ResumeRefused`."""
    moved = sorted(journal.kinds_since(seen) - _UNMOVED) if seen is not None else []
    if moved:
        raise ResumeRefused(
            journal.state.run_id,
            f"the edit was computed from the state at event {seen}, and the run has moved since ({', '.join(moved)}). "
            "Look at the run as it is now, and repeat the edit.",
            asked=asked,
        )


def edited(
    flow: Flow[Any],
    state: RunState,
    edit: Edit,
    *,
    run_id: str | None = None,
) -> events.Changes:
    """Return the changes that an edit makes to the state. The edit is a mapping of fields, a function that returns fields or a
    state, or changes its argument; or it is what such a function has changed. Raises `StateError`, which names the run (for a
    fork, the run `run_id` that it is forked from), if the edit does not fit the state type; `SettingError` if it is no edit.
    """
    refuse_no_edit(edit, run_id or state.run_id)
    with naming_misfit(run_id or state.run_id, flow):
        if isinstance(edit, events.Changes):
            after = dict(state.values)
            apply(after, edit, always)
            flow.state.load(after)
            return edit
        if isinstance(edit, Mapping):
            result: Any = dict(edit)
        else:
            given = flow.state.load(state.values)
            result = edit(given)
            if result is None:
                return diff(state.values, flow.state.dump(given))
        if isinstance(result, dict):
            after = {**state.values, **flow.state.accept_fields(result)}
            return diff(state.values, flow.state.dump(flow.state.load(after)))
        return diff(state.values, flow.state.dump(result))


def refuse_no_edit(edit: Any, run_id: str) -> None:
    """Refuse what is neither fields nor a function. Raises `SettingError`."""
    if not callable(edit) and not isinstance(edit, (Mapping, events.Changes)):
        raise SettingError(
            f"edit={edit!r} of run {run_id!r} is not valid: give a dict of fields and values, or a function of the state"
        )


def refuse_other_version(flow: Flow[Any], state: RunState, run_id: str, *, asked: str, older: str) -> None:
    """Refuse an edit of a state that has another version than the flow: its fields may mean something else. `older` says what to
    do if the flow upgrades the state. Raises `ResumeRefused`.
    """
    known, version = state.state_version, flow.definition.state_version
    if known == version:
        return
    newer = "Newer code has upgraded the run: use the newer code."
    told = f"its state has version {known}, and the flow has version {version}. {newer if known > version else older}"
    raise ResumeRefused(run_id, told, asked=asked)


@contextmanager
def naming_misfit(run_id: str, flow: Flow[Any]) -> Iterator[None]:
    """Say in a `StateError` which run an edit does not fit."""
    try:
        yield
    except StateError as misfit:
        why = end_sentence(str(misfit))
        misfit.args = (
            f"the edit of run {run_id!r} does not fit {flow.state.name}: {why} Give fields and values of that type.",
        )
        raise


def _refuse_misfit(flow: Flow[Any], state: RunState) -> None:
    """Refuse a state that no longer fits the flow's state type, before a node gets it. Raises `OtherCode`."""
    try:
        flow.state.load(state.values)
    except StateError as misfit:
        raise OtherCode(
            state.run_id,
            f"{MISFIT} {flow.state.name} any more: {misfit}. Give the type a new version with an upgrade "
            f"(Graph(…, version={state.state_version + 1}, upgrades={{{state.state_version}: …}})), or change it with edit=… "
            "(--edit JSON)",
        ) from misfit


def _validate(flow: Flow[Any], state: RunState, functions: Functions) -> None:
    """Call every validation with the state that the run would continue with. Raises `Invalid` if one refuses it."""
    for check in (flow.validate_resume, functions.validate):
        if check is None:
            continue
        try:
            told = check(flow.state.load(state.values))
        except HoldfastError as refused:
            raise Invalid(state.run_id, str(refused)) from refused
        except Exception as refused:
            raise Invalid(state.run_id, str(refused) or type(refused).__name__) from refused
        if told is not None and told is not True:
            raise Invalid(state.run_id, str(told) if told is not False else "the validation returned False")


# --- what attempts had streamed ----------------------------------------------------------------------------


def recover_streams(journal: Journal) -> Journal:
    """Record the streams of attempts whose process died. Their spills are deleted when the record is saved. Also note how much
    the attempts that wait have streamed. The spills have the old names of nodes that are renamed with the resume.
    """
    state = journal.state
    spilled = journal.services.store.blobs.spilled(state.run_id)
    for key, written, first, spill in read_spills(spilled) if spilled else ():
        journal.spills.append(key)
        streamer = written._replace(node=journal.renamed.get(written.node, written.node))
        visit = state.nodes.get(streamer.node)
        if visit is None or visit.status != "interrupted":
            continue
        item = streamer.item
        known = visit.attempt if item is None or visit.items is None else visit.items.attempts.get(item, 1)
        is_open = (visit.iteration, visit.execution, known) == streamer[1:4]
        # The process may have died after the append and before it deleted the spill: then the log has its chunks already.
        if is_open and first > _count_streamed(journal, written.node)[written]:
            spill.release()
            journal.record(
                events.NodeStreamed(
                    **streamer._asdict(), chunks=spill.values, spans=make_spans(spill.steps, spill.size)
                )
            )
    return recall_streams(journal)


def recall_streams(journal: Journal) -> Journal:
    """Note how many chunks the attempts that wait have streamed: when they are woken, they continue to count from that number."""
    state = journal.state
    for name in state.open:
        if state.nodes[name].parked and state.nodes[name].streamed:
            journal.streamed.update(_count_streamed(journal, name))
    return journal


def _count_streamed(journal: Journal, node: str) -> Counter[Streamer]:
    """Return how many chunks of each attempt of a node the log holds."""
    store, counts = journal.services.store, Counter[Streamer]()
    for row in store.events(journal.state.run_id, kinds=("NodeStreamed",), node=node):
        event = open_row(row, store.blobs, chunks=False).event
        streamer = Streamer(event.node, event.iteration, event.execution, event.attempt, event.item)
        counts[streamer] += event.count
    return counts
