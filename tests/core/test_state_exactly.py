"""The edges of what a state may hold, and the rarer turns of its declarations. Each of these was once got past by a small
mistake that was made on purpose (docs/mutants.md).
"""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from decimal import Decimal
from typing import Annotated

import msgspec
import pydantic
import pytest

from holdfast import add
from holdfast.core.events import Changes
from holdfast.core.state import StateType, apply
from holdfast.errors import CodecError, StateError


@dataclass
class Sums:
    exact: Annotated[Decimal, add] = Decimal(0)
    count: Annotated[int, add] = 0


SUMS = StateType.of(Sums)


@pytest.mark.parametrize(
    ("field", "most", "too_much"),
    [
        ("exact", Decimal("1e1000"), Decimal("1e1001")),
        ("exact", Decimal("1e-1000"), Decimal("1e-1001")),
        ("exact", Decimal("1" * 1000), Decimal("1" * 1001)),
        ("count", 2**3299, 2**3300),
        ("count", -(2**3299), -(2**3300)),
    ],
)
def test_what_takes_part_in_a_sum_has_a_thousand_digits_at_most(field, most, too_much):
    SUMS.changes({field: most}, {}, node="a")
    with pytest.raises(CodecError, match="1000 digits at most"):
        SUMS.changes({field: too_much}, {}, node="a")


def test_an_integer_that_no_float_holds_is_not_added_to_a_float():
    with pytest.raises(StateError, match="beyond what a float holds"):
        apply({"n": 10**400}, Changes(add={"n": 0.5}))


def test_a_field_of_a_model_is_encoded_as_its_model_is_configured():
    class Picture(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

        data: bytes = b""

    changes = StateType.of(Picture).changes({"data": b"\xff"}, {"data": ""}, node="a")
    assert changes.set == {"data": "_w=="}


def test_a_whole_state_whose_numbers_have_no_difference_is_refused():
    @dataclass
    class Mixed:
        n: Annotated[int | float, add] = 0

    with pytest.raises(StateError, match="no float added to"):
        StateType.of(Mixed).changes(Mixed(0.5), {"n": 10**400}, node="a")


@pytest.mark.parametrize("declared", [int | str, int | None, str, list[int]])
def test_only_numbers_can_be_added_to(declared):
    odd = make_dataclass("Odd", [("n", Annotated[declared, add])])
    with pytest.raises(StateError, match="needs an int, float or Decimal"):
        StateType.of(odd)


@pytest.mark.parametrize("config", [{"populate_by_name": True}, {"validate_by_name": True}, {}])
def test_a_field_with_several_aliases_goes_by_its_name_where_its_model_allows_that(config):
    class Named(pydantic.BaseModel):
        model_config = config

        n: int = pydantic.Field(default=0, validation_alias=pydantic.AliasChoices("en", "number"))

    if config:
        assert StateType.of(Named).load({"n": 3}).n == 3
    else:
        with pytest.raises(StateError, match="set populate_by_name=True"):
            StateType.of(Named)


@pytest.mark.parametrize(
    ("returned", "words"), [(3, "an int (3)"), ("abc", "a str ('abc')"), ([1], "a list;")]
)
def test_what_a_node_should_not_have_returned_is_named_and_shown_where_it_is_short(returned, words):
    with pytest.raises(StateError) as refused:
        SUMS.changes(returned, {"exact": "0", "count": 0}, node="a")
    assert f"it returned {words}" in str(refused.value)


class Renamed(msgspec.Struct, rename="camel"):
    all_of_it: int = 0


def test_a_state_all_of_whose_fields_are_renamed_is_loaded_by_its_names():
    assert StateType.of(Renamed).load({"all_of_it": 3}) == Renamed(3)


def test_a_state_has_a_say_of_its_own_where_its_type_looks_at_the_whole():
    @dataclass
    class Strict:
        n: int = 0

        def __post_init__(self) -> None:
            assert self.n >= 0

    class Model(pydantic.BaseModel):
        n: int = 0

    assert StateType.of(Strict).validates
    assert StateType.of(Model).validates
    assert not SUMS.validates


def test_a_field_that_a_stored_state_does_not_know_starts_from_what_its_model_makes():
    class Later(pydantic.BaseModel):
        n: int = 0
        lines: list[str] = pydantic.Field(default_factory=lambda: ["first"])

    later = StateType.of(Later)
    assert later.changes(Later(n=0, lines=["first"]), {"n": 0}, node="a") == Changes()
    assert later.changes(Later(n=0, lines=["second"]), {"n": 0}, node="a").set == {"lines": ["second"]}
