"""What the state promises: what a node returned is what the fold makes of it, and nobody shares anything."""

import copy
import dataclasses
import datetime as dt
import decimal
import operator
from dataclasses import dataclass, make_dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from holdfast.core.codec import same
from holdfast.core.events import Changes
from holdfast.core.state import StateType, add, append, apply, diff, item_conflict, merge
from holdfast.errors import CodecError, StateError

D = decimal.Decimal
ZERO = D("0.00")


def longest(old: str, new: str) -> str:
    return max(old, new, key=len)


@dataclasses.dataclass
class Review:
    ticket: str
    draft: str = ""
    notes: Annotated[list[str], append] = dataclasses.field(default_factory=list)
    scores: Annotated[dict[str, float], merge] = dataclasses.field(default_factory=dict)
    rounds: Annotated[int, add] = 0
    cost: Annotated[D, add] = ZERO
    hours: Annotated[float, add] = 0.0
    title: Annotated[str, longest] = ""
    seen: set[int] = dataclasses.field(default_factory=set)
    due: dt.date | None = None
    anything: Any = None


class ReviewStruct(msgspec.Struct, rename="camel", tag=True):
    ticket: str
    draft: str = ""
    notes: Annotated[list[str], append] = []
    scores: Annotated[dict[str, float], merge] = {}
    rounds: Annotated[int, add] = 0
    cost: Annotated[D, add] = ZERO
    hours: Annotated[float, add] = 0.0
    title: Annotated[str, longest] = ""
    seen: set[int] = set()
    due: dt.date | None = None
    anything: Any = None


class ReviewModel(pydantic.BaseModel):
    ticket: str = pydantic.Field(alias="ticketId")
    draft: str = ""
    notes: Annotated[list[str], append] = []
    scores: Annotated[dict[str, float], merge] = {}
    rounds: Annotated[int, add, pydantic.Field(ge=-(10**9))] = 0
    cost: Annotated[D, add] = ZERO
    hours: Annotated[float, add] = 0.0
    title: Annotated[str, longest] = ""
    seen: set[int] = set()
    due: dt.date | None = None
    anything: Any = None


class ReviewDict(TypedDict):
    ticket: str
    notes: Annotated[list[str], append]
    draft: NotRequired[str]
    rounds: NotRequired[Annotated[int, add]]


KINDS = [Review, ReviewStruct, ReviewModel]
every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind: Any, **fields: Any) -> Any:
    fields = {"ticket": "T-1", **fields}
    return kind(ticketId=fields.pop("ticket"), **fields) if kind is ReviewModel else kind(**fields)


def applied(values: dict[str, Any], changes: Changes) -> dict[str, Any]:
    after = copy.deepcopy(values)
    apply(after, changes)
    return after


@dataclass
class Dated:
    day: date = date(2026, 1, 1)


class OpenSums(TypedDict, total=False):
    exact: Annotated[Decimal, add]
    n: int


@dataclass
class Demanding:
    first: int
    second: int


def latest(old: date | None, new: date) -> date:
    return new if old is None else max(old, new)


@dataclass
class Reduced:
    day: Annotated[date, latest] = date(2026, 1, 1)


@dataclass
class Sums:
    exact: Annotated[Decimal, add] = Decimal(0)
    count: Annotated[int, add] = 0


SUMS = StateType.of(Sums)


class Renamed(msgspec.Struct, rename="camel"):
    all_of_it: int = 0


# --- the invariant -----------------------------------------------------------------------------------


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
finite = st.floats(-1e9, 1e9)
amounts = st.decimals(-(10**12), 10**12, places=3)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
before_and_after = st.fixed_dictionaries({
    "draft": st.tuples(words, words),
    "notes": st.tuples(st.lists(words, max_size=3), st.lists(words, max_size=3)),
    "scores": st.tuples(st.dictionaries(words, finite, max_size=3), st.dictionaries(words, finite, max_size=3)),
    "rounds": st.tuples(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6)),
    "cost": st.tuples(amounts, amounts),
    "hours": st.tuples(finite, finite),
    "seen": st.tuples(st.sets(st.integers()), st.sets(st.integers())),
    "due": st.tuples(st.none() | st.dates(), st.none() | st.dates()),
    "anything": st.tuples(json_values, json_values),
})  # fmt: skip


@every_kind
@settings(deadline=None)
@given(given=before_and_after, touched=st.sets(st.sampled_from(list(Review.__dataclass_fields__))))
def test_a_whole_state_that_a_node_returned_is_what_the_fold_makes_of_it(kind, given, touched):
    state = StateType.of(kind)
    values = state.dump(make(kind, **{name: pair[0] for name, pair in given.items()}))
    returned = state.load(values)
    before = copy.deepcopy(values)
    for name in touched & given.keys():
        new = given[name][1]
        match name:
            case "notes":
                returned.notes.extend(new)
            case "scores":
                returned.scores.update(new)
            case "hours":
                returned.hours += new
            case _:
                setattr(returned, name, new)
    changes = state.changes(returned, values, node="write")
    assert {*changes.set, *changes.append, *changes.merge, *changes.add} <= touched
    assert values == before

    stored = msgspec.json.decode(msgspec.json.encode(changes), type=Changes)
    after = applied(values, stored)
    assert state.load(after) == returned
    assert same({**after, "cost": 0, "seen": 0}, {**state.dump(returned), "cost": 0, "seen": 0})
    assert D(after["cost"]) == returned.cost  # 2.20 and 2.2 are one amount
    assert state.untouched(returned, after) == []

    # What happens to the returned object later changes nothing.
    kept = copy.deepcopy(after)
    returned.notes.append("later")
    returned.scores["later"] = 1.0
    if isinstance(returned.anything, (list, dict)):
        returned.anything.clear()
    assert after == kept


@every_kind
@settings(deadline=None)
@given(given=before_and_after)
def test_a_loaded_state_equals_the_dumped_one_and_shares_nothing(kind, given):
    state = StateType.of(kind)
    value = make(kind, **{name: pair[0] for name, pair in given.items()})
    values = state.dump(value)
    before = copy.deepcopy(values)
    loaded = state.load(values)
    assert loaded == value
    assert state.untouched(loaded, values) == []
    loaded.notes.append("mine")
    loaded.scores["mine"] = 2.0
    loaded.seen.add(-1)
    value.notes.append("mine too")
    assert values == before
    assert {"notes", "scores"} <= set(state.untouched(loaded, values)) <= {"notes", "scores", "seen"}


@settings(deadline=None)
@given(st.dictionaries(words, json_values), st.dictionaries(words, json_values), st.sets(words))
def test_an_open_dict_that_comes_back_itself_is_a_whole_state(values, update, removed):
    state = StateType.of(dict)
    values = state.dump(values)
    given = state.load(values)
    given.update(update)
    for key in removed & given.keys():
        del given[key]
    changes = state.changes(given, values, node="write", given=given)
    assert same(applied(values, changes), given)
    assert set(changes.unset) == values.keys() - given.keys()


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
@example(-0.03124999999999999, 0.06249999999999999)  # the difference is rounded the wrong way
def test_a_float_that_a_node_added_to_is_found_again_exactly(old, amount):
    total = old + amount
    assume(total not in (float("inf"), -float("inf")))
    state = StateType.of(Review)
    values = state.dump(Review("T", hours=old))
    changes = state.changes(Review("T", hours=total), values, node="n")
    assert applied(values, changes)["hours"] == total


def test_a_float_difference_that_no_float_can_express_is_refused():
    state = StateType.of(Review)
    values = state.dump(Review("T", hours=1e16))
    with pytest.raises(
        StateError, match=r"no float added to 1e\+16 gives 0.1; return a partial update"
    ) as caught:
        state.changes(Review("T", hours=0.1), values, node="n")
    assert (caught.value.node, caught.value.field) == ("n", "hours")
    with pytest.raises(StateError, match="hours"):
        state.changes(Review("T", hours=-1.7e308), state.dump(Review("T", hours=1.7e308)), node="n")


@settings(deadline=None)
@given(
    st.lists(
        st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**40), max_value=10**40), min_size=1
    )
)
def test_decimals_add_up_exactly_whatever_their_length(parts):
    assume(all(part.as_tuple().exponent >= -900 and len(part.as_tuple().digits) < 900 for part in parts))
    state = StateType.of(Review)
    values = state.dump(Review("T", cost=D(0)))
    for part in parts:
        apply(values, state.changes({"cost": part}, values, node="n"))
    with decimal.localcontext(prec=4000):
        assert state.load(values).cost == sum(parts, D(0))


# --- partial updates ---------------------------------------------------------------------------------


@every_kind
def test_a_partial_update_becomes_changes_by_reducer(kind):
    state = StateType.of(kind)
    values = state.dump(make(kind))
    changes = state.changes(
        {
            "draft": "",
            "notes": ["a"],
            "scores": {"x": 1},
            "rounds": 2,
            "cost": D("1.10"),
            "title": "long",
            "seen": {2, 1},
        },
        values,
        node="write",
    )
    assert changes == Changes(
        set={"draft": "", "seen": [1, 2]}, append={"notes": ["a"]}, merge={"scores": {"x": 1.0}},
        add={"rounds": 2, "cost": "1.10"}, reduce={"title": "long"},
    )  # fmt: skip
    after = applied(values, changes)
    assert (after["notes"], after["scores"], after["rounds"], after["cost"], after["title"]) == (
        ["a"],
        {"x": 1.0},
        2,
        "1.10",
        "",
    )


def test_a_custom_reducer_is_left_to_the_runtime():
    state = StateType.of(Review)
    assert state.reducer("title") is longest
    assert state.decode_operand("title", "x") == "x"
    assert state.decode_field("seen", [1]) == {1}
    assert state.decode_field("seen", None) is None
    assert state.encode_field("seen", {2, 1}, "n") == [1, 2]
    assert state.describe() == {
        "ticket": "set", "draft": "set", "notes": "append", "scores": "merge", "rounds": "add", "cost": "add", "hours": "add",
        "title": "longest", "seen": "set", "due": "set", "anything": "set",
    }  # fmt: skip


@every_kind
def test_an_unknown_field_is_refused_with_the_name_that_was_meant(kind):
    state = StateType.of(kind)
    with pytest.raises(StateError, match="has no field 'draf'; did you mean 'draft'") as caught:
        state.changes({"draf": "x"}, state.dump(make(kind)), node="write")
    assert (caught.value.node, caught.value.field) == ("write", "draf")
    with pytest.raises(StateError, match="its fields are ticket, draft"):
        state.changes({"zzz": "x"}, state.dump(make(kind)), node="write")


@pytest.mark.parametrize(
    ("update", "path"),
    [
        ({"draft": 1}, "state.draft"),
        ({"notes": "abc"}, "state.notes"),
        ({"notes": ["a", 1]}, "state.notes[1]"),
        ({"scores": {"x": float("nan")}}, "state.scores.x"),
        ({"rounds": 1.5}, "state.rounds"),
        ({"rounds": True}, "state.rounds"),
        ({"rounds": 10**1200}, "state.rounds"),
        ({"cost": D("Infinity")}, "state.cost"),
        ({"cost": D("1E+5000")}, "state.cost"),
        ({"cost": 0.1}, "state.cost"),
        ({"hours": float("inf")}, "state.hours"),
        ({"seen": [1]}, "state.seen"),
        ({"due": "2020-01-01"}, "state.due"),
        ({"anything": [(1, 2)]}, "state.anything[0]"),
        ({"anything": {"a b": {1}}}, "state.anything['a b']"),
    ],
)
@every_kind
def test_an_update_of_the_wrong_type_is_refused_with_its_path(kind, update, path):
    state = StateType.of(kind)
    with pytest.raises(CodecError) as caught:
        state.changes(update, state.dump(make(kind)), node="write")
    assert caught.value.node == "write"
    # pydantic's own report may stop at the field
    assert caught.value.path == path or (kind is ReviewModel and path.startswith(caught.value.path))


@pytest.mark.parametrize("returned", ["abc", 3, ["draft"], ReviewStruct("T"), Review, object()])
def test_a_node_that_returns_something_else_is_told_what_is_expected(returned):
    state = StateType.of(Review)
    with pytest.raises(
        StateError,
        match=r"node 'write': the node returned an? .*; expected a partial update \(dict\), a whole Review",
    ):
        state.changes(returned, state.dump(Review("T")), node="write")


def test_none_changes_nothing():
    assert StateType.of(Review).changes(None, {}, node="write") == Changes()


def test_a_value_that_is_given_by_hand_may_be_in_its_json_form():
    assert StateType.of(Dated).by_hand({"day": "2026-02-03"}, node="a").set == {"day": "2026-02-03"}


def test_a_value_that_a_node_returns_may_not_be_in_its_json_form():
    with pytest.raises(CodecError, match="would come back as a date"):
        StateType.of(Dated).changes({"day": "2026-02-03"}, {}, node="a")


def test_an_open_state_takes_no_list_for_an_update():
    with pytest.raises(StateError, match="the node returned a list; expected a partial update"):
        StateType.of(dict).changes([1], {"n": 1}, node="a")


@pytest.mark.parametrize(
    ("returned", "words"), [(3, "an int (3)"), ("abc", "a str ('abc')"), ([1], "a list;")]
)
def test_what_a_node_should_not_have_returned_is_named_and_shown_where_it_is_short(returned, words):
    with pytest.raises(StateError) as refused:
        SUMS.changes(returned, {"exact": "0", "count": 0}, node="a")
    assert f"the node returned {words}" in str(refused.value)


def test_a_field_of_a_model_is_encoded_as_its_model_is_configured():
    class Picture(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

        data: bytes = b""

    changes = StateType.of(Picture).changes({"data": b"\xff"}, {"data": ""}, node="a")
    assert changes.set == {"data": "_w=="}


# --- whole states ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (lambda s: s.notes.pop(), "notes", "were moved or removed"),
        (lambda s: s.notes.insert(0, "new"), "notes", "were moved or removed"),
        (lambda s: s.scores.clear(), "scores", "the key 'a' of this `merge` field was removed"),
        (lambda s: setattr(s, "title", "other"), "title", "cannot be reversed"),
    ],
)
@every_kind
def test_a_whole_state_that_is_no_update_is_refused_with_the_way_out(kind, change, field, words):
    state = StateType.of(kind)
    values = state.dump(make(kind, notes=["one"], scores={"a": 1.0}, title="t"))
    returned = state.load(values)
    change(returned)
    with pytest.raises(StateError, match=words) as caught:
        state.changes(returned, values, node="write")
    assert (caught.value.node, caught.value.field) == ("write", field)
    assert f"return a partial update instead: {{{field!r}: …}}" in str(caught.value)


@every_kind
def test_a_change_from_one_to_true_is_a_change(kind):
    state = StateType.of(kind)
    values = state.dump(make(kind, anything=[1]))
    assert state.changes(make(kind, anything=[True]), values, node="n").set == {"anything": [True]}
    assert state.changes(make(kind, anything=[1]), values, node="n") == Changes()
    assert state.changes(make(kind, anything=[1.0]), values, node="n").set == {"anything": [1.0]}


@every_kind
def test_a_set_that_was_only_built_in_another_order_is_no_change(kind):
    assert list({8, 0}) != list({0, 8}), "the two are to iterate differently"
    state = StateType.of(kind)
    values = state.dump(make(kind, seen={8, 0}))
    assert state.changes(make(kind, seen={0, 8}), values, node="n") == Changes()


def test_an_item_of_a_fan_out_does_not_return_a_whole_state():
    with pytest.raises(StateError, match="an item of a fan-out returns a partial update"):
        StateType.of(Review).changes(Review("T"), {}, node="n")


def test_a_field_that_the_stored_state_does_not_know_starts_from_its_default():
    state = StateType.of(Review)
    values = {"ticket": "T"}
    assert state.load(values) == Review("T")
    assert state.untouched(Review("T"), values) == []
    assert state.changes(Review("T", draft="x"), values, node="n") == Changes(set={"draft": "x"})


def test_a_typed_dict_is_updated_in_part_unless_it_comes_back_itself():
    state = StateType.of(ReviewDict)
    values = state.dump({"ticket": "T", "notes": ["a"], "draft": "d"})
    given = state.load(values)
    given["notes"].append("b")
    given["rounds"] = 2
    del given["draft"]
    assert state.untouched(given, values) == ["notes", "draft", "rounds"]
    assert state.changes(dict(given), values, node="n").append == {"notes": ["a", "b"]}
    changes = state.changes(given, values, node="n", given=given)
    assert changes == Changes(append={"notes": ["b"]}, add={"rounds": 2}, unset=["draft"])
    assert applied(values, changes) == {"ticket": "T", "notes": ["a", "b"], "rounds": 2}
    del given["ticket"]
    with pytest.raises(StateError, match="the node removed 'ticket'"):
        state.changes(given, values, node="n", given=given)


def test_a_node_that_touched_its_input_is_found_out():
    state = StateType.of(Review)
    values = state.dump(Review("T", anything={"deep": [1]}))
    given = state.load(values)
    assert state.untouched(given, values) == []
    given.anything["deep"].append(2)
    given.seen.add(1)
    given.due = dt.date(2020, 1, 1)
    assert state.untouched(given, values) == ["seen", "due", "anything"]
    opened = StateType.of(dict)
    mine = opened.load({"a": [1], "b": 1, "c": 2})
    assert opened.untouched(mine, {"a": [1], "b": 1, "c": 2}) == []
    mine["a"].append(float("nan"))
    mine["d"] = 1
    del mine["c"]
    assert opened.untouched(mine, {"a": [1], "b": 1, "c": 2}) == ["a", "c", "d"]


def test_a_whole_state_whose_numbers_have_no_difference_is_refused():
    @dataclass
    class Mixed:
        n: Annotated[int | float, add] = 0

    with pytest.raises(StateError, match="no float added to"):
        StateType.of(Mixed).changes(Mixed(0.5), {"n": 10**400}, node="a")


def test_an_open_state_that_comes_back_itself_tells_what_was_added_and_removed():
    given = {"n": 1, "new": [2]}
    changes = StateType.of(dict).changes(given, {"n": 1, "gone": 3}, node="a", given=given)
    assert (changes.set, changes.unset) == ({"new": [2]}, ["gone"])


# --- dump and load -----------------------------------------------------------------------------------


@every_kind
def test_an_input_may_be_a_dict_of_fields_also_as_json(kind):
    state = StateType.of(kind)
    assert state.dump({"ticket": "T-1", "due": "2020-01-02", "seen": [2, 1], "cost": 1}) == state.dump(
        make(kind, due=dt.date(2020, 1, 2), seen={1, 2}, cost=D(1))
    )
    assert state.dump({"ticket": "T-1"}) == state.dump(make(kind))


@every_kind
def test_an_input_that_does_not_fit_is_refused_by_field(kind):
    state = StateType.of(kind)
    with pytest.raises(StateError, match="the state lacks 'ticket'") as caught:
        state.dump({})
    assert caught.value.field == "ticket"
    with pytest.raises(StateError, match="did you mean 'ticket'"):
        state.dump({"tickt": "T"})
    with pytest.raises(CodecError) as refused:
        state.dump({"ticket": 5})
    assert refused.value.path == "state.ticket"
    with pytest.raises(StateError, match=r"expected a .* or a dict of its fields, not a str"):
        state.dump("T-1")


@every_kind
def test_stored_values_that_do_not_fit_are_refused_by_field(kind):
    state = StateType.of(kind)
    values = state.dump(make(kind))
    with pytest.raises(StateError, match="notes") as caught:
        state.load({**values, "notes": ["a", 3]})
    assert caught.value.field == "notes"
    with pytest.raises(StateError, match=r"has a field 'gone' that .* does not declare") as caught:
        state.load({**values, "gone": 1})
    assert caught.value.field == "gone"


def test_an_open_state_takes_any_key_that_is_text():
    state = StateType.of(dict[str, Any])
    assert state.open
    assert state.fields == {}
    assert state.describe() == {}
    assert state.dump(None) == {}
    assert state.changes({"any key": [1]}, {}, node="n") == Changes(set={"any key": [1]})
    for key in (1, "a\0", "\ud800"):
        with pytest.raises(StateError):
            state.changes({key: 1}, {}, node="n")
    with pytest.raises(CodecError) as caught:
        state.changes({"pages": [{"when": dt.date(2020, 1, 1)}]}, {}, node="n")
    assert caught.value.path == "state.pages[0].when"


def test_extra_attributes_of_a_model_are_refused_not_lost():
    class Loose(pydantic.BaseModel, extra="allow"):
        ticket: str

    with pytest.raises(StateError, match="has no field 'tickte'; did you mean 'ticket'"):
        StateType.of(Loose).dump(Loose(ticket="T", tickte="U"))


def test_a_validator_of_the_type_has_its_say_about_an_input():
    class Trimmed(pydantic.BaseModel):
        name: str

        @pydantic.field_validator("name")
        @classmethod
        def trim(cls, value: str) -> str:
            if not value:
                raise ValueError("empty")
            return value.strip()

    state = StateType.of(Trimmed)
    assert state.dump({"name": " a "}) == {"name": "a"}
    with pytest.raises(StateError, match="empty") as caught:
        state.dump({"name": ""})
    assert caught.value.field == "name"


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


def test_a_state_all_of_whose_fields_are_renamed_is_loaded_by_its_names():
    assert StateType.of(Renamed).load({"all_of_it": 3}) == Renamed(3)


def test_a_field_that_a_stored_state_does_not_know_starts_from_what_its_model_makes():
    class Later(pydantic.BaseModel):
        n: int = 0
        lines: list[str] = pydantic.Field(default_factory=lambda: ["first"])

    later = StateType.of(Later)
    assert later.changes(Later(n=0, lines=["first"]), {"n": 0}, node="a") == Changes()
    assert later.changes(Later(n=0, lines=["second"]), {"n": 0}, node="a").set == {"lines": ["second"]}


def test_a_state_that_lacks_two_fields_is_refused_with_both_and_at_the_first():
    with pytest.raises(StateError, match="lacks 'first', 'second'") as refused:
        StateType.of(Demanding).dump({})
    assert refused.value.field == "first"


# --- declarations ------------------------------------------------------------------------------------


def declare(hint: Any) -> Any:
    return dataclasses.make_dataclass("Odd", [("x", hint)])


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (
            declare(Annotated[int, append]),
            "field 'x' is declared as int, and its reducer 'append' needs a list",
        ),
        (declare(Annotated[tuple[int, ...], append]), "needs a list"),
        (declare(Annotated[list[int] | None, append]), "needs a list"),
        (declare(Annotated[list[int], merge]), "needs a dict"),
        (declare(Annotated[str, add]), "needs an int, float or Decimal"),
        (declare(Annotated[bool, add]), "needs an int, float or Decimal"),
        (declare(Annotated[list[int], append, operator.add]), "field 'x' has two reducers"),
        (declare(Annotated[list[int], append] | None), "put it outermost"),
        (declare(complex), "field 'x': complex cannot be kept as JSON"),
        (declare(Path), "field 'x': Path cannot be kept as JSON; declare str in its place"),
        (declare(list[Path] | None), "field 'x': Path cannot be kept as JSON; declare str in its place"),
        (declare(object.__class__), "field 'x': type cannot be kept as JSON; declare a dataclass"),
        (int, "the state must be a dataclass"),
        (list[int], "the state must be a dataclass"),
    ],
)
def test_a_state_type_with_a_fault_is_refused_with_the_field(declared, words):
    with pytest.raises(StateError, match=words):
        StateType.of(declared)


def test_a_struct_without_names_is_no_state():
    class Row(msgspec.Struct, array_like=True):
        x: int

    with pytest.raises(StateError, match="array_like"):
        StateType.of(Row)


def test_constraints_hold_for_the_whole_not_for_an_update():
    class Bounded(msgspec.Struct):
        last: Annotated[list[int], msgspec.Meta(min_length=2), append]
        rounds: Annotated[int, add, msgspec.Meta(ge=0)] = 5

    state = StateType.of(Bounded)
    values = state.dump(Bounded([1, 2]))
    assert state.changes({"last": [3], "rounds": -1}, values, node="n") == Changes(
        append={"last": [3]}, add={"rounds": -1}
    )
    with pytest.raises(CodecError):
        state.dump({"last": [1]})


@pytest.mark.parametrize("declared", [int | str, int | None, str, list[int]])
def test_only_numbers_can_be_added_to(declared):
    odd = make_dataclass("Odd", [("n", Annotated[declared, add])])
    with pytest.raises(StateError, match="needs an int, float or Decimal"):
        StateType.of(odd)


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


# --- the fold's half ---------------------------------------------------------------------------------


def test_a_shared_container_is_copied_before_it_is_changed():
    notes, scores = ["a"], {"a": 1}
    values = {"notes": notes, "scores": scores}
    changes = Changes(append={"notes": ["b"]}, merge={"scores": {"b": 2}})
    apply(values, changes, lambda field, value: value is notes or value is scores)
    assert (notes, scores) == (["a"], {"a": 1})
    assert values == {"notes": ["a", "b"], "scores": {"a": 1, "b": 2}}
    mine = values["notes"]
    apply(values, changes, lambda field, value: False)
    assert values["notes"] is mine
    assert mine == ["a", "b", "b"]


def test_a_field_that_is_not_there_yet_starts_from_nothing_and_leaves_the_event_alone():
    changes = Changes(
        append={"a": [1]}, merge={"m": {"k": 1}}, add={"n": 2, "d": "0.10"}, reduce={"r": 1}, unset=["u"]
    )
    values: dict[str, Any] = {}
    apply(values, changes)
    apply(values, changes)
    assert values == {"a": [1, 1], "m": {"k": 1}, "n": 4, "d": "0.20"}
    assert changes.append == {"a": [1]}


def test_a_sum_beyond_a_float_is_refused_and_never_becomes_null():
    values = {"hours": 1.7e308}
    with pytest.raises(StateError, match="'hours'"):
        apply(values, Changes(add={"hours": 1.7e308}))
    assert values == {"hours": 1.7e308}


def test_two_items_that_set_one_plain_field_are_found():
    parts = [
        Changes(set={"a": 1}),
        Changes(append={"l": [1]}),
        Changes(append={"l": [2]}),
        Changes(set={"b": 1, "a": 1}),
    ]
    assert item_conflict(parts) == ("a", 0, 3)
    assert item_conflict(parts[:3]) is None
    assert item_conflict([]) is None


@settings(deadline=None)
@given(st.dictionaries(words, json_values), st.dictionaries(words, json_values))
def test_a_difference_applied_gives_what_it_was_taken_from(before, after):
    changes = diff(before, after)
    assert same(applied(before, changes), after)
    assert diff(after, after) == Changes()
    assert set(changes.set).isdisjoint(
        name for name in before if name in after and same(before[name], after[name])
    )


def test_a_difference_sees_true_and_one_as_two_things():
    assert diff({"a": 1, "b": [0], "c": 1}, {"a": True, "b": [False], "c": 1}) == Changes(
        set={"a": True, "b": [False]}
    )


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
    with pytest.raises(StateError, match="too large for a float"):
        apply({"n": 10**400}, Changes(add={"n": 0.5}))


def test_a_decimal_sum_that_was_not_there_before_begins_at_zero():
    sums = StateType.of(OpenSums)
    given = sums.load({"n": 1})
    given["exact"] = Decimal("1.5")
    assert sums.changes(given, {"n": 1}, node="a", given=given).add == {"exact": "1.5"}


def test_what_an_update_gave_comes_to_a_reducer_as_its_type():
    assert StateType.of(Reduced).decode_operand("day", "2026-02-03") == date(2026, 2, 3)


def test_what_an_update_of_an_open_state_gave_comes_back_as_it_is():
    assert StateType.of(dict).decode_operand("days", ["2026-02-03"]) == ["2026-02-03"]
