"""Routes about questions: what runs ask, what they see when they ask it, and what follows from each answer."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.reading.views import AskedQuestion
from holdfast.server.calls import HttpCall
from holdfast.server.runs import RunId

QUESTIONS_MAX = 1000


class QuestionList(msgspec.Struct, frozen=True):
    """Open questions, oldest first. `more` says whether there are more than are listed."""

    questions: list[AskedQuestion]
    more: bool


class QuestionsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose questions to list."""

    run: RunId | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=QUESTIONS_MAX)] = 100


def list_questions(call: HttpCall[QuestionsQuery, None]) -> QuestionList:
    """List open questions, oldest first, of one run or of all runs."""
    query = call.query
    found = call.backend.reader.questions(query.run or None)
    return QuestionList(found[: query.limit], len(found) > query.limit)
