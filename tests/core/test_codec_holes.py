"""Values that look alike and are not the same, and what the settings of a pydantic model ask of its fields. Mutants that nobody
had looked at got past the tests here (docs/mutants.md).
"""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from holdfast.core.codec import Codec
from holdfast.core.state import StateType
from holdfast.errors import CodecError


class Part(pydantic.BaseModel):
    n: int = 0


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(str_max_length=3, str_to_lower=True)
    name: str = ""
    part: Part = Part()


@pytest.mark.parametrize(("value", "plain"), [(1.0, 1), (1, 1.0), (True, 1), (0, False)])
@pytest.mark.parametrize("declared", [Any, int, float, bool])
def test_a_number_of_another_kind_is_no_longer_what_was_kept(declared, value, plain):
    assert Codec.of(declared).matches(plain, plain)
    assert not Codec.of(declared).matches(value, plain)


@pytest.mark.parametrize("short", [({1},), ({1}, 2, 3)])
def test_a_tuple_of_another_length_is_refused_where_it_holds_a_set(short):
    with pytest.raises(CodecError, match="length 2"):
        Codec.of(tuple[set[int], int]).encode(short)


def test_the_settings_of_a_pydantic_model_hold_for_its_simplest_fields():
    strict = StateType.of(Strict)
    with pytest.raises(CodecError, match="at most 3 characters"):
        strict.changes({"name": "abcd"}, {}, node="a")


def test_a_model_inside_a_pydantic_model_with_settings_is_kept():
    assert StateType.of(Strict).changes({"part": Part(n=3)}, {}, node="a").set == {"part": {"n": 3}}


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (set[int | float], {10, 2.5, 1}),
        (frozenset[int | float], frozenset({10, 2.5, 1})),
        (set[int], {10, 2, 1}),
        (set[float], {10.0, 2.5, 1.0}),
    ],
)
def test_the_numbers_of_a_set_are_kept_in_their_order_whole_or_not(declared, value):
    assert Codec.of(declared).encode(value) == sorted(value)


def test_a_type_that_pydantic_knows_no_form_of_is_refused_as_ours() -> None:
    class Odd: ...

    with pytest.raises(CodecError, match="cannot be kept as JSON"):
        Codec.of_pydantic_field(Odd, {})
