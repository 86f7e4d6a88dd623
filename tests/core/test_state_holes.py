"""Updates in their rarer forms: given by hand, returned as a whole, of fields that were not there before. Mutants that nobody
had looked at got past the tests here (docs/mutants.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, TypedDict

import pytest

from holdfast import add
from holdfast.core.state import StateType
from holdfast.errors import CodecError, StateError


@dataclass
class Dated:
    day: date = date(2026, 1, 1)


class Sums(TypedDict, total=False):
    exact: Annotated[Decimal, add]
    n: int


def test_a_value_that_is_given_by_hand_may_be_in_its_json_form():
    assert StateType.of(Dated).by_hand({"day": "2026-02-03"}, node="a").set == {"day": "2026-02-03"}


def test_a_value_that_a_node_returns_may_not_be_in_its_json_form():
    with pytest.raises(CodecError, match="would come back as a date"):
        StateType.of(Dated).changes({"day": "2026-02-03"}, {}, node="a")


def test_a_decimal_sum_that_was_not_there_before_begins_at_zero():
    sums = StateType.of(Sums)
    given = sums.load({"n": 1})
    given["exact"] = Decimal("1.5")
    assert sums.changes(given, {"n": 1}, node="a", given=given).add == {"exact": "1.5"}


def test_an_open_state_takes_no_list_for_an_update():
    with pytest.raises(StateError, match="it returned a list; expected a partial update"):
        StateType.of(dict).changes([1], {"n": 1}, node="a")


def test_an_open_state_that_comes_back_itself_tells_what_was_added_and_removed():
    given = {"n": 1, "new": [2]}
    changes = StateType.of(dict).changes(given, {"n": 1, "gone": 3}, node="a", given=given)
    assert (changes.set, changes.unset) == ({"new": [2]}, ["gone"])


@dataclass
class Demanding:
    first: int
    second: int


def test_a_state_that_lacks_two_fields_is_refused_with_both_and_at_the_first():
    with pytest.raises(StateError, match="lacks 'first', 'second'") as refused:
        StateType.of(Demanding).dump({})
    assert refused.value.field == "first"


def latest(old: date | None, new: date) -> date:
    return new if old is None else max(old, new)


@dataclass
class Reduced:
    day: Annotated[date, latest] = date(2026, 1, 1)


def test_what_an_update_gave_comes_to_a_reducer_as_its_type():
    assert StateType.of(Reduced).decode_operand("day", "2026-02-03") == date(2026, 2, 3)


def test_what_an_update_of_an_open_state_gave_comes_back_as_it_is():
    assert StateType.of(dict).decode_operand("days", ["2026-02-03"]) == ["2026-02-03"]
