"""What may be answered: the form of an answer is what its type says, neither more nor less."""

import dataclasses
import datetime as dt
import decimal
import enum
import itertools
import math
import uuid
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Optional,
    TypedDict,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.answers import _refuse_unknown_keywords, misfit, schema_of
from holdfast.core.codec import plain_problem
from holdfast.errors import CodecError, GraphError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Person(msgspec.Struct):
    name: str
    boss: Optional["Person"] = None


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    count: int


class Row(msgspec.Struct, array_like=True):
    key: str
    size: int = 0


class Cat(msgspec.Struct, tag="cat"):
    lives: int = 9


class Dog(msgspec.Struct, tag="dog"):
    tricks: list[str]


class One(msgspec.Struct, tag=1):
    pass


class Two(msgspec.Struct, tag=2):
    size: int = 0


class Place(NamedTuple):
    x: int
    y: float = 0.0


class Options(TypedDict):
    depth: int
    tags: NotRequired[list[str]]


@dataclasses.dataclass
class Verdict:
    approved: bool
    score: Annotated[int, msgspec.Meta(ge=1, le=5)] = 3
    notes: list[str] = dataclasses.field(default_factory=list)


class Form(pydantic.BaseModel):
    title: str
    stars: int = pydantic.Field(default=3, ge=1, le=5)
    kind: Literal["a", "b"] = "a"


def told(value: Any, declared: Any) -> str | None:
    return misfit(value, (), schema_of(declared))


UNKNOWN = {"type": "integer", "astonishing": True}
WHOLE, TEXT = {"type": "integer"}, {"type": "string"}


def misfit_of(value, schema) -> str | None:
    return misfit(value, [], schema)


# --- the same verdict as msgspec's -------------------------------------------------------------------


FIXED = [
    Person,
    Strict,
    Row,
    Place,
    Options,
    Verdict,
    Colour,
    Level,
    Cat | Dog,
    One | Two,
    list,
    dict,
    tuple,
    Any,
]
numbers = itertools.count()
leaves = st.sampled_from([int, float, str, bool, None, *FIXED]) | st.builds(
    lambda choices: Literal[tuple(choices)],
    st.lists(st.sampled_from(["red", "blue", "", 0, 1, None]), min_size=1, max_size=3, unique=True),
)
limited = st.one_of(
    st.builds(lambda low: Annotated[int, msgspec.Meta(ge=low, lt=low + 5)], st.integers(-3, 3)),
    st.builds(lambda unit: Annotated[int, msgspec.Meta(multiple_of=unit)], st.integers(1, 4)),
    st.builds(lambda low: Annotated[float, msgspec.Meta(gt=low)], st.integers(-2, 2).map(float)),
    st.builds(lambda size: Annotated[str, msgspec.Meta(min_length=1, max_length=size)], st.integers(1, 4)),
    st.builds(lambda size: Annotated[list[int], msgspec.Meta(max_length=size)], st.integers(0, 2)),
    st.just(Annotated[float, msgspec.Meta(multiple_of=0.5, le=9.5)]),
    st.just(Annotated[str, msgspec.Meta(pattern="^[a-e]*$")]),
    st.just(Annotated[dict[str, int], msgspec.Meta(min_length=1, max_length=2)]),
    st.just(dict[Annotated[str, msgspec.Meta(max_length=1)], int]),
)


def fields(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[str, Any]]]:
    return st.lists(st.tuples(st.sampled_from("abc"), inner), max_size=3, unique_by=lambda field: field[0])


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(lambda item: list[item], inner),
        st.builds(lambda item: dict[str, item], inner),
        st.builds(lambda items: tuple[tuple(items)], st.lists(inner, max_size=3)),
        st.builds(lambda item: tuple[item, ...], inner),
        st.builds(lambda item: Optional[item], inner),  # noqa: UP045 - None | None raises
        st.builds(lambda made: dataclasses.make_dataclass(f"Data{next(numbers)}", made), fields(inner)),
        st.builds(
            lambda made, strict: msgspec.defstruct(
                f"Struct{next(numbers)}", made, forbid_unknown_fields=strict
            ),
            fields(inner),
            st.booleans(),
        ),
    )


types = st.recursive(leaves | limited, grown, max_leaves=5) | st.sampled_from(
    [int | str, str | bool | None, int | float, list[int] | dict[str, int] | None, Verdict | str]
)
words = st.sampled_from(
    ["a", "b", "c", "red", "blue", "", "name", "approved", "count", "type", "cat", "depth", "é"]
)
atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-6, 6),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1.0, 2.0, -0.0, 2**63, 2**70]),
    words,
    st.text(max_size=4).filter(lambda text: "\0" not in text),
)
values = st.recursive(
    atoms,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


def near(declared: Any, depth: int = 4) -> st.SearchStrategy[Any]:
    """Values that often fit: random ones seldom get past the first field."""
    made, arguments = get_origin(declared) or declared, get_args(declared)
    inner = [near(argument, depth - 1) for argument in arguments] if depth and made is not Literal else []
    if dataclasses.is_dataclass(made) or hasattr(made, "__struct_fields__"):
        hints = get_type_hints(made, include_extras=True) if depth else {}
        known = {name: near(hint, depth - 1) for name, hint in hints.items()}
        some = {name: fitting | values for name, fitting in known.items()}
        return st.fixed_dictionaries(known) | st.fixed_dictionaries({}, optional=some)
    if made is Literal:
        return st.sampled_from(arguments)
    if made is list and inner:
        return st.lists(inner[0], max_size=3)
    if made is dict and inner:
        return st.dictionaries(words, inner[1], max_size=3)
    if made is tuple and inner and Ellipsis not in arguments:
        return st.tuples(*inner).map(list)
    simple = {
        int: st.integers(-6, 6),
        float: st.integers() | st.floats(-9, 9),
        str: words,
        bool: st.booleans(),
    }
    return simple.get(made, inner[0] | values if inner else values)


def converts(value: Any, declared: Any) -> bool:
    try:
        msgspec.convert(value, declared, strict=True)
    except msgspec.ValidationError:
        return False
    return True


@settings(
    max_examples=settings.default.max_examples * 6,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_an_answer_fits_exactly_when_its_type_can_be_made_of_it(data) -> None:
    declared = data.draw(types)
    value = data.draw(near(declared) | values)
    wrong = told(value, declared)
    assert (wrong is None) == converts(value, declared), wrong


@pytest.mark.parametrize(
    ("declared", "fitting", "misfitting"),
    [
        (dt.date, "2024-02-29", "2023-02-29"),
        (Annotated[dt.datetime, msgspec.Meta(tz=True)], "2024-02-29T12:00:00+01:00", "2024-02-29T12:00:00"),
        (Annotated[dt.time, msgspec.Meta(tz=True)], "12:00:00Z", "25:00:00Z"),
        (dt.timedelta, "PT90S", "90 s"),
        (uuid.UUID, "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "6ba7b810"),
        (decimal.Decimal, "1.50", "one"),
        (bytes, "aGVsbG8=", "hello"),
        (set[int], [1, 2], [1, 1]),
        (Annotated[float, msgspec.Meta(multiple_of=0.5)], 2.5, 2.25),
    ],
)
def test_what_stands_for_something_must_be_readable_as_that(declared, fitting, misfitting) -> None:
    assert told(fitting, declared) is None
    assert converts(fitting, declared)
    assert told(misfitting, declared)


def test_a_pydantic_model_is_answered_as_json() -> None:
    assert told({"title": "x", "stars": 5}, Form) is None
    assert told({"title": "x", "stars": 6}, Form) == "answer.stars: 6 is not at most 5"
    assert told({"title": "x", "kind": "c"}, Form) == "answer.kind: 'c' is not one of 'a', 'b'"


# --- what is said ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "declared", "sentence"),
    [
        ({"approved": "yes"}, Verdict, "answer.approved: 'yes' is not true or false"),
        (
            {"aproved": True},
            Verdict,
            "answer: 'approved' is missing, and the object has 'aproved'; did you mean 'approved'?",
        ),
        ({"approved": True, "notes": ["a", 1]}, Verdict, "answer.notes[1]: 1 is not a text"),
        ({"approved": True, "score": 9}, Verdict, "answer.score: 9 is not at most 5"),
        (
            {"cuont": 1, "count": 1},
            Strict,
            "answer: the object may have 'count', and not 'cuont'; did you mean 'count'?",
        ),
        ({"name": "a", "boss": {"name": 1}}, Person, "answer.boss.name: 1 is not a text"),
        ({"name": "a", "boss": 3}, Person, "answer.boss: 3 is not an object (Person) or null"),
        ("reed", Colour, "answer: 'reed' is not one of 'blue', 'red'; did you mean 'red'?"),
        (3, Level, "answer: 3 is not one of 1, 2"),
        (None, int, "answer: null is not a whole number"),
        (True, int, "answer: true is not a whole number"),
        ([1] * 99, int, "answer: [1, 1, 1, 1, 1, 1, ...] is not a whole number"),
        (1.5, int | None, "answer: 1.5 is not a whole number or null"),
        ([1], tuple[int, str], "answer: [1] has too few items: 1 instead of at least 2"),
        ({"two words": "x"}, dict[str, int], "answer['two words']: 'x' is not a whole number"),
        ({"approved": 1}, Verdict | str, "answer.approved: 1 is not true or false"),
        ({}, Verdict | None, "answer: 'approved' is missing"),
        ({"type": "cow"}, Cat | Dog, "answer.type: 'cow' is not one of cat, dog"),
        ({"type": "dgo"}, Cat | Dog, "answer.type: 'dgo' is not one of cat, dog; did you mean 'dog'?"),
        ({"type": "dog"}, Cat | Dog, "answer: 'tricks' is missing"),
        ({"lives": 8}, Cat | Dog, "answer: 'type' is missing; it says which of cat, dog this is"),
        ("cat", Cat | Dog, "answer: 'cat' is not an object (Cat) or an object (Dog)"),
        (10**99, float | None, None),
        (10**400, float, "answer: a number of more than 40 digits is not a number"),
        ("a" * 99, int, f"answer: '{'a' * 27}...{'a' * 28}' is not a whole number"),
        (
            (1, 2),
            list[int],
            "answer: a tuple cannot be kept as JSON here; declare the field as tuple[…] or use a list",
        ),
        (math.nan, float, "answer: JSON has no nan; use None, or a str"),
    ],
)
def test_a_misfit_names_its_place_and_what_would_fit(value, declared, sentence) -> None:
    assert told(value, declared) == sentence


def test_an_option_must_be_one_of_those_offered() -> None:
    assert misfit("approve", ["approve", "reject"], None) is None
    assert misfit("aprove", ["approve", "reject"], None) == (
        "'aprove' is not one of the options 'approve', 'reject'; did you mean 'approve'?"
    )
    for silent in (None, "", True, 0, ["approve"], {}):
        assert "is not one of the options" in misfit(silent, ["approve", "reject"], None)


def test_a_number_that_cannot_be_printed_is_refused_all_the_same() -> None:
    assert "more digits than Python converts" in told(10**9999, int)
    assert "is not one of the options" in misfit(10**9999, ["yes"], None)


def test_a_schema_is_plain_data() -> None:
    @dataclasses.dataclass
    class Mixed:
        pet: One | Two
        day: dt.date = dt.date(2024, 2, 29)
        colour: Colour = Colour.RED

    assert plain_problem(schema_of(Mixed), "schema") is None


def test_without_options_or_schema_anything_is_an_answer() -> None:
    assert misfit({"any": ["thing"]}, (), None) is None
    assert misfit({"any": ["thing"]}, (), {}) is None


def test_options_and_schema_must_both_be_met() -> None:
    schema = schema_of(Annotated[str, msgspec.Meta(max_length=2)])
    assert misfit("no", ["no", "yes"], schema) is None
    assert "at most 2" in misfit("yes", ["no", "yes"], schema)


@pytest.mark.parametrize(
    ("schema", "unknown"),
    [
        ({"type": "object", "dependentRequired": {}}, "dependentRequired"),
        ({"type": "string", "format": "email"}, "email"),
        ({"type": "decimal"}, "decimal"),
        ({"$ref": "#/$defs/Missing"}, "Missing"),
        ({"anyOf": [{"type": "integer"}, {"not": {}}]}, "not"),
    ],
)
def test_what_a_newer_version_asks_for_is_never_passed_over(schema, unknown) -> None:
    for value in ({}, "text"):
        wrong = misfit(value, (), schema)
        assert wrong
        assert unknown in wrong or "is not an object" in wrong or "is not a text" in wrong


def people(levels: int) -> dict[str, Any]:
    person: dict[str, Any] = {"name": "a"}
    for _ in range(levels - 1):
        person = {"name": "a", "boss": person}
    return person


def test_an_answer_that_is_very_deep_is_refused_and_not_an_error() -> None:
    assert told(people(30), Person) is None
    assert "nested" in told(people(150), Person)
    assert "nested" in told(people(5000), Person)


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
        (
            [1, 2],
            {"prefixItems": [{"type": "integer"}], "items": False},
            "answer[1]: no value is allowed here",
        ),
        ([1, "x"], {"items": True}, None),
        ({"a": 1}, {"additionalProperties": True}, None),
    ],
)
def test_nothing_may_stand_where_a_schema_says_so_and_anything_where_it_says_that(answer, schema, problem):
    assert misfit(answer, [], schema) == problem


# --- at the edges ------------------------------------------------------------------------------------


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
    with pytest.raises(CodecError, match="'astonishing', which Holdfast does not check"):
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
    assert misfit_of("b", schema) == words


def test_one_of_several_forms_must_fit_and_any_of_them_may():
    both = [WHOLE, {"minimum": 0}]
    assert misfit_of(1, {"oneOf": [WHOLE, TEXT]}) is None
    assert misfit_of(1, {"anyOf": [WHOLE, TEXT]}) is None
    assert misfit_of(1, {"anyOf": both}) is None
    assert misfit_of(1, {"oneOf": both}) == "answer: 1 fits 2 of the alternatives, and must fit exactly one"


def test_the_form_that_was_meant_is_the_one_that_the_answer_went_wrong_deepest_in():
    forms = {"anyOf": [{"type": "object", "properties": {"a": WHOLE}}, TEXT]}
    answer = {"a": "x", "note": "so much text that the other problem is told in more words"}
    assert misfit_of(answer, forms) == "answer.a: 'x' is not a whole number"
    forms["anyOf"].append({"type": "object", "required": ["one", "another", "yet another", "the last"]})
    assert misfit_of(answer, forms) == "answer.a: 'x' is not a whole number"


@pytest.mark.parametrize("answer", [[], [1], [1, "a"], [1, "a", None]])
def test_places_that_are_not_filled_and_items_behind_them_are_not_looked_at(answer):
    assert misfit_of(answer, {"prefixItems": [WHOLE, TEXT]}) is None
    assert misfit_of(["a"], {"prefixItems": [WHOLE, TEXT]}) == "answer[0]: 'a' is not a whole number"


def test_items_behind_the_places_are_counted_from_the_first():
    schema = {"prefixItems": [TEXT], "items": WHOLE}
    assert misfit_of(["a", 1], schema) is None
    assert misfit_of(["a", 1, "b"], schema) == "answer[2]: 'b' is not a whole number"


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
    assert (misfit_of(answer, {"multipleOf": unit}) is None) is fits


def test_items_may_stand_there_twice_unless_the_schema_says_no():
    assert misfit_of([1, 1], {"uniqueItems": False}) is None
    assert misfit_of("aa", {"uniqueItems": True}) is None
    assert misfit_of([1, 1.0, True], {"uniqueItems": True}) is None
    assert misfit_of([1, 2, 1], {"uniqueItems": True}) == "answer[2]: 1 is in the list twice"


def test_a_field_too_many_is_found_behind_those_that_are_known():
    schema = {"properties": {"a": WHOLE}, "additionalProperties": False}
    assert misfit_of({"a": 1}, schema) is None
    assert misfit_of({"a": 1, "zz": 2}, schema) == "answer: the object may have 'a', and not 'zz'"


def test_what_would_fit_is_told_in_all_its_forms():
    forms = {"anyOf": [{"enum": ["a", "b"]}, {"const": 3}, TEXT | {"title": "Name"}, {"minimum": 1}]}
    forms["anyOf"][-1] |= {"type": "integer"}
    assert misfit_of(None, forms) == "answer: null is not 'a' or 'b' or 3 or a text (Name) or a whole number"


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
    assert {answer: misfit_of(answer, {keyword: 3}) is None for answer in fits} == fits


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
    assert {limit: misfit_of(value, {keyword: limit}) is None for limit in fits} == fits


@pytest.mark.parametrize(("form", "moment"), [("date-time", "2024-02-29T12:00:00"), ("time", "12:00:00")])
def test_a_moment_says_its_zone(form, moment):
    assert misfit_of(f"{moment}Z", {"format": form}) is None
    assert f"is not a {form} like" in misfit_of(moment, {"format": form})


# --- types that a schema cannot express --------------------------------------------------------------


class Anything:
    pass


class Mailed(pydantic.BaseModel):
    size: Annotated[int, pydantic.Field(json_schema_extra={"dividedBy": 3})]


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (Anything, "Anything cannot be kept as JSON"),
        (complex, "cannot be kept as JSON"),
        (list[Form], "declare a dataclass"),
        (dt.datetime, "Annotated[datetime, msgspec.Meta(tz=True)]"),
        (list[dt.time | None], "Annotated[time, msgspec.Meta(tz=True)]"),
        (dict[int, str], "str keys"),
        (Annotated[bytes, msgspec.Meta(max_length=2)], "cannot count bytes"),
        (Annotated[str, msgspec.Meta(extra_json_schema={"secret": True})], "'secret'"),
        (Annotated[str, msgspec.Meta(extra_json_schema={"format": "email"})], "'email'"),
        (Mailed, "'dividedBy'"),
        ({"type": "string"}, "an answer cannot be"),
        ("Review", "an answer cannot be"),
    ],
)
def test_a_type_that_a_schema_cannot_express_is_refused_with_the_way_out(declared, words) -> None:
    with pytest.raises(GraphError) as refused:
        schema_of(declared, graph="review")
    assert refused.value.graph == "review"
    assert words in refused.value.problems[0]
