"""What an answer may be is told in words that fit its schema. Mutants that nobody had looked at got past the tests here
(docs/mutants.md).
"""

from __future__ import annotations

import pytest

from holdfast.core.answers import misfit


@pytest.mark.parametrize(
    ("one", "words"),
    [
        ({"enum": ["a", "c"]}, "'a' or 'c'"),
        ({"const": "a"}, "'a'"),
        ({"const": "a", "type": "string"}, "'a'"),
        ({"type": "string", "maxLength": 0}, "a text"),
        ({"minLength": 3}, "something else"),
    ],
)
def test_an_answer_that_fits_no_form_is_told_what_each_of_them_is(one, words):
    assert misfit("b", [], {"anyOf": [one, {"type": "integer"}]}) == (
        f"answer: 'b' is not {words} or a whole number"
    )


@pytest.mark.parametrize(
    ("answer", "schema", "problem"),
    [
        ([1], {"prefixItems": [{"type": "integer"}], "items": False}, None),
        ([1, 2], {"prefixItems": [{"type": "integer"}], "items": False}, "answer[1]: nothing may stand here"),
        ([1, "x"], {"items": True}, None),
        ({"a": 1}, {"additionalProperties": True}, None),
    ],
)
def test_nothing_may_stand_where_a_schema_says_so_and_anything_where_it_says_that(answer, schema, problem):
    assert misfit(answer, [], schema) == problem
