"""Previews: what a verb would do to a run, found out by recording it in a journal that is never saved.

An engine that carries out a request which was made for a preview rehearses it once more, under its lease (`refuse_stale`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.core import events, run_state
from holdfast.core.cleanup import find_uncleaned
from holdfast.core.consequences import Consequences, PreviewNode, foresee, survey
from holdfast.core.graph import Flow
from holdfast.core.run_state import FINAL, RunState
from holdfast.core.verb_options import said_options
from holdfast.errors import HoldfastError, PreviewStale, RunHeld, RunNotFound, SchemaTooNew, StoreCorrupt
from holdfast.reading import history, inbox, previews
from holdfast.reading.previews import Mended, PreviewCancelled, Rehearsed, VerbCall
from holdfast.reading.relatives import FAMILY_MAX
from holdfast.runtime import mending
from holdfast.runtime.journal import Journal
from holdfast.runtime.mending import Unconfirmed
from holdfast.runtime.preparation import (
    NO_FUNCTIONS,
    Executing,
    Functions,
    OtherCode,
    StaleForCode,
    changes_nothing,
    edits_of,
    prepare,
)
from holdfast.runtime.recorders import RECORDERS, REFUSALS, cancel
from holdfast.runtime.services import Services
from holdfast.storage.contract import RunRow, Store
from holdfast.storage.verdicts import refuse_final


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
    options = said_options(asked)
    is_function = functions.edit is not None or getattr(asked, "changes", None) is not None
    if is_function:  # what it changes depends on the state; `seen` says which state that was
        options["edit"] = True
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
