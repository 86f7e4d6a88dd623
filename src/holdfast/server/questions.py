"""Routes about questions: what runs ask, what they see when they ask it, and what follows from each answer."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core.definition import Definition
from holdfast.core.run_state import RunState
from holdfast.errors import SettingError, did_you_mean, end_sentence
from holdfast.reading import history, pages
from holdfast.reading.pages import QuestionPage
from holdfast.reading.questions import (
    KINDS,
    AnswerOutcome,
    AskedOnce,
    Closing,
    asked_in,
    outcomes,
    state_seen,
    without_answer,
)
from holdfast.reading.relatives import open_family
from holdfast.reading.state_changes import Value, describe
from holdfast.reading.views import AskedQuestion
from holdfast.server.calls import HttpCall
from holdfast.server.plan_inputs import input_of
from holdfast.server.problems import refuse
from holdfast.server.runs import PAGE_MAX, Limit, Name, RunId, Seq
from holdfast.storage.contract import Query, RunRow, Store

_FAMILY_LOOKS_MAX = 10_000
"""At how many runs of a family is looked, to find those that ask."""
Key = Annotated[str, Meta(min_length=1, max_length=1000)]


class QuestionDetails(AskedQuestion, frozen=True, kw_only=True):
    """A question of a run, with what follows from each answer."""

    seq: int
    """The event with which it was asked; 0 if that event was compacted."""
    iteration: int
    execution: int
    outcomes: list[AnswerOutcome]
    """What follows from each answer. Which targets a branch will choose is not known before."""
    then: str | None
    """What happens if no answer comes until `question.until`; None if there is no deadline."""
    closing: Closing | None
    """How the question was closed, and by whom; None if it is open."""
    state: dict[str, Value] | None = None
    """The state that the asking node sees, or in a plan its input; only if one question is asked for with `key`."""


class QuestionsOfRun(msgspec.Struct, frozen=True, kw_only=True):
    """The questions of a run, open and closed, newest first. Pass `older` as `before` to read on."""

    questions: list[QuestionDetails]
    older: int | None


class QuestionsOfRunQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which questions to list."""

    key: Key | UnsetType = UNSET
    """Only the question with this key, with the state that it sees."""
    open: bool = False
    """Only open questions."""
    before: Seq | UnsetType = UNSET
    """Only questions that were asked before this event."""
    limit: Limit = 50


class QuestionsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose questions to list."""

    run: RunId | UnsetType = UNSET
    """Only the questions of this run and of its child runs (at most 200 runs), whole."""
    flow: Name | UnsetType = UNSET
    cursor: Annotated[str, Meta(max_length=1000)] | UnsetType = UNSET
    limit: Limit = 50
    """The maximum number of runs per page."""


def list_questions(call: HttpCall[QuestionsQuery, None]) -> QuestionPage:
    """List open questions of all runs, newest run first, or of one run and its child runs."""
    query, store = call.query, call.backend.store
    cursor = None if query.cursor is UNSET else query.cursor
    wanted = Query(flow=query.flow or None, limit=query.limit)
    if query.run is not UNSET:
        store.run(query.run)  # or there is no such run
        children = (row.run_id for row in open_family(store, query.run, _FAMILY_LOOKS_MAX) if row.asks != 0)
        wanted = msgspec.structs.replace(wanted, ids=(query.run, *islice(children, PAGE_MAX - 1)))
    try:
        return pages.list_questions(store, wanted, cursor=cursor, whole=query.run is not UNSET)
    except SettingError as fault:
        raise refuse("bad-cursor", str(fault)) from None


def list_questions_of_run(call: HttpCall[QuestionsOfRunQuery, None]) -> QuestionsOfRun:
    """List the questions of a run, open and closed, newest first: what follows from each answer, and who answered."""
    backend, query, run_id = call.backend, call.query, call.values["id"]
    store = backend.store
    row = store.run(run_id)
    state = history.load(store, run_id, row=row)
    definition = backend.reader.definition(row)
    log = history.opened(store, run_id, store.events(run_id, upto=row.seq, kinds=KINDS))
    every = list(asked_in(log, state))
    found = [one for one in reversed(every) if _fits(one, query)]
    if query.key is not UNSET and not found:
        known = did_you_mean(query.key, [one.question.key for one in every])
        raise refuse(
            "not-found",
            end_sentence(f"Run {run_id!r} has asked no such question{known}"),
            remedy=f"GET /api/v1/runs/{run_id}/questions lists its questions.",
        )
    shown = found[: query.limit]
    seen = query.key is not UNSET
    return QuestionsOfRun(
        questions=[_details(store, row, definition, state, one, seen=seen) for one in shown],
        older=shown[-1].seq if len(found) > len(shown) else None,
    )


def _fits(one: AskedOnce, query: QuestionsOfRunQuery) -> bool:
    return (
        (query.key is UNSET or one.question.key == query.key)
        and (not query.open or one.closing is None)
        and (query.before is UNSET or one.seq < query.before)
    )


def _details(
    store: Store, row: RunRow, definition: Definition, state: RunState, one: AskedOnce, *, seen: bool
) -> QuestionDetails:
    question = one.question
    visible = None
    if seen:
        then = state if one.closing is None else history.load(store, row.run_id, one.seq, row=row)
        visible = (
            input_of(definition, then, question.node)
            if definition.plan
            else {name: describe(value) for name, value in state_seen(then, question.node).items()}
        )
    return QuestionDetails(
        run_id=row.run_id,
        flow=row.flow,
        question=question,
        seq=one.seq,
        iteration=one.iteration,
        execution=one.execution,
        outcomes=outcomes(definition, question),
        then=without_answer(definition, question),
        closing=one.closing,
        state=visible,
    )
