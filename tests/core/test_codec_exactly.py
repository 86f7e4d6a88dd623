"""The rarer turns of the codec. Each of these was once got past by a small mistake that was made on purpose (docs/mutants.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from holdfast.core.codec import DEPTH_MAX, Codec, difference, plain_problem, value_problem
from holdfast.errors import CodecError


def nested(levels: int) -> Any:
    """Lists and dicts in turn."""
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


def test_as_many_levels_of_lists_and_dicts_are_kept_as_are_promised_and_no_more():
    codec = Codec.of(Any)
    assert codec.encode(nested(DEPTH_MAX)) == nested(DEPTH_MAX)
    with pytest.raises(CodecError, match="nested deeper"):
        codec.encode(nested(DEPTH_MAX + 1))


@dataclass
class Quarrelsome:
    n: int = 0

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("never asked")

    __hash__ = None


def test_a_value_that_cannot_be_compared_is_no_longer_what_it_was():
    assert not Codec.of(Quarrelsome).matches(Quarrelsome(1), {"n": 1})


# --- models inside other types -----------------------------------------------------------------------


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    price: int = pydantic.Field(alias="thePrice")

    @pydantic.computed_field
    def twice(self) -> int:
        return 2 * self.price


@dataclass
class Order:
    items: list[Aliased] = field(default_factory=list)


@pytest.mark.parametrize(
    ("declared", "around"), [(Order, lambda one: Order([one])), (Aliased, lambda one: one)]
)
def test_a_model_is_kept_under_its_aliases_and_without_what_it_computes(declared, around):
    value = around(Aliased(thePrice=3))
    plain = Codec.of(declared).encode(value)
    assert plain == ({"items": [{"thePrice": 3}]} if declared is Order else {"thePrice": 3})
    assert Codec.of(declared).decode(plain) == value


def test_the_first_fault_that_a_model_found_is_told_with_its_own_path():
    class Two(pydantic.BaseModel):
        first: int
        second: int

    with pytest.raises(CodecError) as refused:
        Codec.of(Two).decode({"first": "x", "second": []}, path="state")
    assert refused.value.path == "state.first"
    assert "unable to parse string" in str(refused.value)


# --- sets --------------------------------------------------------------------------------------------


class Row(msgspec.Struct, array_like=True):
    name: str
    tags: set[str]


class TaggedRow(msgspec.Struct, array_like=True, tag=True):
    name: str
    tags: set[str]


LETTERS = {chr(97 + number) for number in range(20)}


@pytest.mark.parametrize("row", [Row, TaggedRow])
def test_sets_within_rows_without_names_are_sorted(row):
    assert Codec.of(row).encode(row("a", LETTERS))[-1] == sorted(LETTERS)


# --- keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [True, (1, 2), None])
def test_no_declaration_makes_such_a_key_a_string(key):
    assert "JSON's keys are strings" in value_problem({key: 1}, "value")[1]


def test_a_number_is_a_key_where_it_is_declared_and_nowhere_else():
    assert value_problem({1: 2}, "value") is None
    assert plain_problem({1: 2}, "value") is not None


def test_declared_keys_come_back_as_what_they_were():
    codec = Codec.of(dict[int, str])
    assert codec.encode({1: "one"}) == {"1": "one"}
    assert codec.decode({"1": "one"}) == {1: "one"}


# --- what came back as something else ----------------------------------------------------------------


class Texts(list):
    pass


@pytest.mark.parametrize(
    ("value", "decoded", "words"),
    [
        ({1: "a"}, {"1": "a"}, "the key 1 is an int, and JSON's keys are strings"),
        ({"a": 1, "b": 2}, {"a": 1}, "its keys would come back as ['a']"),
        ({"a": 1}, {"a": 1, "b": 2}, "its keys would come back as ['a', 'b']"),
        ((1, 2), [1, 2], "declare the field as tuple[…] or use a list"),
        ({1, 2}, [1, 2], "declare the field as set[…] or use a list"),
        (3, "3", "an int would come back as a str"),
        ([1], {"0": 1}, "a list would come back as a dict"),
        (Texts("ab"), ["a"], "a Texts would come back as a list"),
    ],
)
def test_what_would_come_back_otherwise_is_told_with_what_it_would_be(value, decoded, words):
    assert words in difference(value, decoded, "value")[1]


def test_a_decoded_value_shares_nothing_with_its_plain_data_where_nothing_is_declared():
    @dataclass
    class Loose:
        inner: Any = None

    plain = {"inner": {"deep": [[1]]}}
    decoded = Codec.of(Loose).decode(plain)
    decoded.inner["deep"][0].append(2)
    decoded.inner["deep"].append(3)
    assert plain == {"inner": {"deep": [[1]]}}


@pytest.mark.parametrize(
    ("declared", "fits", "too_much"),
    [
        (Annotated[str, msgspec.Meta(max_length=3)], "abc", "abcd"),
        (Annotated[int, msgspec.Meta(le=3)], 3, 4),
        (Annotated[float, msgspec.Meta(lt=3)], 2.5, 3.0),
    ],
)
def test_a_constraint_holds_for_what_is_written_and_for_what_is_read(declared, fits, too_much):
    codec = Codec.of(declared)
    assert codec.decode(codec.encode(fits)) == fits
    with pytest.raises(CodecError):
        codec.encode(too_much)
    with pytest.raises(CodecError):
        codec.decode(too_much)


@pytest.mark.parametrize(
    ("declared", "ordered"),
    [(int, True), (set[str], True), (Row, True), (Aliased, False), (list[Aliased], False)],
)
def test_equal_values_have_the_same_plain_data_unless_pydantic_writes_them(declared, ordered):
    assert Codec.of(declared).is_ordered is ordered
