"""Answers held against schemas, at the edges. Each of these was once got past by a small mistake that was made on purpose
(docs/mutants.md).
"""

from __future__ import annotations

import pytest

from holdfast.core.answers import _refuse_unknown_keywords, misfit
from holdfast.errors import CodecError

UNKNOWN = {"type": "integer", "astonishing": True}
WHOLE, TEXT = {"type": "integer"}, {"type": "string"}


def told(value, schema) -> str | None:
    return misfit(value, [], schema)


@pytest.mark.parametrize(
    "schema",
    [
        UNKNOWN,
        {"items": UNKNOWN},
        {"additionalProperties": UNKNOWN},
        {"propertyNames": UNKNOWN},
        {"anyOf": [WHOLE, UNKNOWN]},
        {"oneOf": [WHOLE, UNKNOWN]},
        {"prefixItems": [WHOLE, UNKNOWN]},
        {"properties": {"a": WHOLE, "b": UNKNOWN}},
        {"$defs": {"a": UNKNOWN}},
        {"properties": {"a": {"items": {"anyOf": [UNKNOWN]}}}},
    ],
)
def test_a_keyword_that_nobody_checks_is_found_wherever_it_stands(schema):
    with pytest.raises(CodecError, match="'astonishing', which an answer is not checked for"):
        _refuse_unknown_keywords(schema, "Form")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"const": "a"}, "answer: 'b' is not 'a'"),
        ({"enum": ["a"]}, "answer: 'b' is not 'a'"),
        ({"enum": ["a", 3]}, "answer: 'b' is not one of 'a', 3"),
    ],
)
def test_one_choice_is_told_as_what_it_is_and_several_as_a_list(schema, words):
    assert told("b", schema) == words


def test_one_of_several_forms_must_fit_and_any_of_them_may():
    both = [WHOLE, {"minimum": 0}]
    assert told(1, {"oneOf": [WHOLE, TEXT]}) is None
    assert told(1, {"anyOf": [WHOLE, TEXT]}) is None
    assert told(1, {"anyOf": both}) is None
    assert told(1, {"oneOf": both}) == "answer: 1 fits 2 of the forms it may have, and must fit one"


def test_the_form_that_was_meant_is_the_one_that_the_answer_went_wrong_deepest_in():
    forms = {"anyOf": [{"type": "object", "properties": {"a": WHOLE}}, TEXT]}
    answer = {"a": "x", "note": "so much text that the other problem is told in more words"}
    assert told(answer, forms) == "answer.a: 'x' is not a whole number"
    forms["anyOf"].append({"type": "object", "required": ["one", "another", "yet another", "the last"]})
    assert told(answer, forms) == "answer.a: 'x' is not a whole number"


@pytest.mark.parametrize("answer", [[], [1], [1, "a"], [1, "a", None]])
def test_places_that_are_not_filled_and_items_behind_them_are_not_looked_at(answer):
    assert told(answer, {"prefixItems": [WHOLE, TEXT]}) is None
    assert told(["a"], {"prefixItems": [WHOLE, TEXT]}) == "answer[0]: 'a' is not a whole number"


def test_items_behind_the_places_are_counted_from_the_first():
    schema = {"prefixItems": [TEXT], "items": WHOLE}
    assert told(["a", 1], schema) is None
    assert told(["a", 1, "b"], schema) == "answer[2]: 'b' is not a whole number"


@pytest.mark.parametrize(
    ("answer", "unit", "fits"),
    [
        (10**17 + 1, 2, False),
        (10**17 + 2, 2, True),
        (4, 2, True),
        (5, 2, False),
        (1.5, 0.5, True),
        (1.25, 0.5, False),
    ],
)
def test_multiples_of_whole_numbers_are_exact_whatever_their_size(answer, unit, fits):
    assert (told(answer, {"multipleOf": unit}) is None) is fits


def test_items_may_stand_there_twice_unless_the_schema_says_no():
    assert told([1, 1], {"uniqueItems": False}) is None
    assert told("aa", {"uniqueItems": True}) is None
    assert told([1, 1.0, True], {"uniqueItems": True}) is None
    assert told([1, 2, 1], {"uniqueItems": True}) == "answer[2]: 1 stands there twice"


def test_a_field_too_many_is_found_behind_those_that_are_known():
    schema = {"properties": {"a": WHOLE}, "additionalProperties": False}
    assert told({"a": 1}, schema) is None
    assert told({"a": 1, "zz": 2}, schema) == "answer: it takes 'a', and not 'zz'"


def test_what_would_fit_is_told_in_all_its_forms():
    forms = {"anyOf": [{"enum": ["a", "b"]}, {"const": 3}, TEXT | {"title": "Name"}, {"minimum": 1}]}
    forms["anyOf"][-1] |= {"type": "integer"}
    assert told(None, forms) == "answer: null is not 'a' or 'b' or 3 or a text (Name) or a whole number"


@pytest.mark.parametrize(
    ("keyword", "fits"),
    [
        ("minimum", {2: False, 3: True, 4: True}),
        ("maximum", {2: True, 3: True, 4: False}),
        ("exclusiveMinimum", {2: False, 3: False, 4: True}),
        ("exclusiveMaximum", {2: True, 3: False, 4: False}),
    ],
)
def test_a_limit_is_within_or_without_as_its_name_says(keyword, fits):
    assert {answer: told(answer, {keyword: 3}) is None for answer in fits} == fits


@pytest.mark.parametrize(
    ("keyword", "value", "fits"),
    [
        ("minLength", "ab", {1: True, 2: True, 3: False}),
        ("maxLength", "ab", {1: False, 2: True, 3: True}),
        ("minItems", [1, 2], {1: True, 2: True, 3: False}),
        ("maxItems", [1, 2], {1: False, 2: True, 3: True}),
        ("minProperties", {"a": 1, "b": 2}, {1: True, 2: True, 3: False}),
        ("maxProperties", {"a": 1, "b": 2}, {1: False, 2: True, 3: True}),
    ],
)
def test_a_size_is_at_least_or_at_most_as_its_name_says(keyword, value, fits):
    assert {limit: told(value, {keyword: limit}) is None for limit in fits} == fits


@pytest.mark.parametrize(("form", "moment"), [("date-time", "2024-02-29T12:00:00"), ("time", "12:00:00")])
def test_a_moment_says_its_zone(form, moment):
    assert told(f"{moment}Z", {"format": form}) is None
    assert f"is not a {form} like" in told(moment, {"format": form})
