"""What the codec promises: exact, or refused at write with the path to the value."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.codec import DEPTH_MAX, Codec, difference, plain_problem, value_problem
from holdfast.core.state import StateType
from holdfast.errors import CodecError, StateError

ANY = Codec.of(Any)
UTC = dt.UTC


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict, total=False):
    depth: int
    tags: set[str]


class Leaf(msgspec.Struct):
    name: str
    when: dt.datetime | None = None


class Model(pydantic.BaseModel):
    title: str
    price: decimal.Decimal = decimal.Decimal(0)
    seen: set[int] = set()
    blob: bytes = b""
    extra: Any = None


@dataclasses.dataclass
class Everything:
    text: str
    count: int
    share: float
    day: dt.date
    at: dt.datetime
    clock: dt.time
    took: dt.timedelta
    id: uuid.UUID
    price: decimal.Decimal
    colour: Colour
    level: Level
    raw: bytes
    numbers: set[int]
    words: frozenset[str]
    pair: tuple[int, str]
    many: tuple[float, ...]
    by_id: dict[int, str]
    by_uuid: dict[uuid.UUID, dt.date]
    point: Point
    options: Options
    leaf: Leaf
    model: Model | None
    either: int | float | str | None
    choice: Literal["a", "b", 1]
    leaves: list[Leaf]
    anything: Any = None


@dataclasses.dataclass
class Tree:
    value: Any = None
    kids: list["Tree"] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Unequal:
    value: Any


@dataclasses.dataclass
class Overlooked:
    value: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass
class Plain:
    x: int


class Foreign:
    pass


@dataclasses.dataclass
class HoldsForeign:
    inner: list[Foreign]


class Part(pydantic.BaseModel):
    n: int = 0


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(str_max_length=3, str_to_lower=True)
    name: str = ""
    part: Part = Part()


def nested(levels: int) -> Any:
    """Lists and dicts in turn."""
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


@dataclass
class Quarrelsome:
    n: int = 0

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("never asked")

    __hash__ = None


# --- strategies --------------------------------------------------------------------------------------


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)
minutes = st.integers(-1439, 1439).map(lambda m: dt.timezone(dt.timedelta(minutes=m)))
datetimes = st.datetimes(timezones=st.none() | minutes, allow_imaginary=False).map(
    lambda at: at.replace(fold=0)
)
decimals = st.decimals(allow_nan=False)
leaves = st.builds(Leaf, text, st.none() | datetimes)
models = st.builds(Model, title=text, price=st.decimals(allow_nan=False, allow_infinity=False), seen=st.sets(st.integers()),
                   blob=text.map(str.encode), extra=json_values)  # fmt: skip
everything = st.builds(
    Everything,
    text=text,
    count=st.integers(),
    share=finite,
    day=st.dates(),
    at=datetimes,
    clock=st.times().map(lambda at: at.replace(fold=0)),
    took=st.timedeltas(),
    id=st.uuids(),
    price=decimals,
    colour=st.sampled_from(Colour),
    level=st.sampled_from(Level),
    raw=st.binary(max_size=20),
    numbers=st.sets(st.integers()),
    words=st.frozensets(text),
    pair=st.tuples(st.integers(), text),
    many=st.lists(finite).map(tuple),
    by_id=st.dictionaries(st.integers(), text),
    by_uuid=st.dictionaries(st.uuids(), st.dates(), max_size=3),
    point=st.builds(Point, st.integers(), finite),
    options=st.fixed_dictionaries({}, optional={"depth": st.integers(), "tags": st.sets(text)}),
    leaf=leaves,
    model=st.none() | models,
    either=st.none() | st.integers() | finite | text,
    choice=st.sampled_from(["a", "b", 1]),
    leaves=st.lists(leaves, max_size=3),
    anything=json_values,
)
hostile = st.sampled_from([
    float("nan"), float("inf"), -float("inf"), "\ud800", "a\0b", {1: 2}, {None: 1}, {True: 1}, {(1, 2): 3}, {"\0": 1},
    (1, 2), {1}, frozenset(), b"x", dt.datetime(2020, 1, 1, tzinfo=UTC), dt.date(2020, 1, 1), decimal.Decimal("1.0"),
    uuid.UUID(int=1), Colour.RED, Plain(1), Leaf("x"), Model(title="t"), Foreign(), Foreign, len, 1j, object(), 10**5000,
    Point(1, 2.0), range(3), bytearray(b"x"),
    type("Str", (str,), {})("x"), type("Int", (int,), {})(1), type("Float", (float,), {})(1.5),
])  # fmt: skip


def exactly(one: Any, other: Any) -> bool:
    """Equal, and of equal types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(exactly(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(exactly, one, other))
    if dataclasses.is_dataclass(one):
        return all(exactly(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    return (
        one == other and repr(one) == repr(other)
        if isinstance(one, (float, decimal.Decimal))
        else one == other
    )


def refusal(codec: Codec[Any], value: Any, path: str = "state.x") -> CodecError:
    with pytest.raises(CodecError) as caught:
        codec.encode(value, path=path, node="write")
    assert caught.value.node == "write"
    assert str(caught.value).startswith("node 'write': ")
    return caught.value


# --- exact -------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(json_values)
def test_what_json_holds_comes_back_exactly_and_is_not_shared(value):
    plain = ANY.encode(value, path="state.x")
    assert exactly(plain, value)
    assert exactly(ANY.decode(plain), value)
    if isinstance(value, (list, dict)):
        assert plain is not value
        assert ANY.decode(plain) is not plain
    assert exactly(msgspec.json.decode(msgspec.json.encode(plain)), value)


@settings(
    max_examples=settings.default.max_examples * 3 // 2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(everything)
def test_declared_fields_of_every_kind_come_back_exactly(value):
    codec = Codec.of(Everything)
    plain = codec.encode(value, path="state.x")
    assert plain_problem(plain, "") is None
    assert exactly(codec.decode(plain), value)
    stored = msgspec.json.decode(msgspec.json.encode(plain))
    assert exactly(codec.decode(stored), value)
    again = codec.encode(codec.decode(plain), path="state.x")
    assert {**again, "model": None} == {**plain, "model": None}  # pydantic does not sort its sets
    assert codec.matches(value, plain)


@settings(deadline=None)
@given(models)
def test_a_pydantic_model_comes_back_exactly(value):
    codec = Codec.of(Model)
    assert codec.decode(codec.encode(value, path="state.x")) == value


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["list", "dict"]), json_values), max_size=6), hostile)
def test_a_hostile_value_is_refused_wherever_it_is_buried(layers, bad):
    value, path = bad, "state.x"
    for kind, beside in layers:
        value = [beside, value] if kind == "list" else {"k": beside, "bad": value}
    for kind, _ in reversed(layers):
        path += "[1]" if kind == "list" else ".bad"
    fault = refusal(ANY, value)
    assert fault.path.startswith(path)
    assert plain_problem(value, "state.x") is not None
    # The same inside a declared type, where only this position is undeclared.
    nested = refusal(Codec.of(Tree), Tree(kids=[Tree(value)]))
    assert nested.path.startswith("state.x.kids[0].value")


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (float, 1),
        (set[int], frozenset({1})),
        (Level, 1),
        (Any, Word.YES),
        (Any, Level.HIGH),
        (Any, {Word.YES: [Level.LOW]}),
        (Any, collections.OrderedDict(b=1, a=2)),
        (dict, collections.defaultdict(list, a=[1])),
        (decimal.Decimal, 1.5),
    ],
)
def test_a_declared_type_makes_near_values_its_own(declared, value):
    codec = Codec.of(declared)
    plain = codec.encode(value)
    assert plain_problem(plain, "") is None
    assert codec.decode(plain) == value
    assert codec.encode(codec.decode(plain)) == plain


def test_an_int_in_a_float_field_is_kept_as_that_float():
    assert repr(Codec.of(float).encode(1)) == "1.0"
    assert repr(Codec.of(Point).encode(Point(1, 2))) == "[1, 2.0]"
    assert "would come back" in str(refusal(Codec.of(float), 2**53 + 1))


@pytest.mark.parametrize("value", [True, 1, 1.0, [True, 1, 1.0], {"a": False, "b": 0, "c": 0.0}, -0.0])
@pytest.mark.parametrize("declared", [Any, int | float | bool | list | dict])
def test_true_and_one_and_one_point_zero_stay_what_they_are(declared, value):
    assert exactly(Codec.of(declared).encode(value), value)


@pytest.mark.parametrize(
    ("declared", "value"),
    [(int, True), (int, 1.0), (bool, 1), (float, True), (Literal[1], True), (str, 1), (list[int], [True])],
)
def test_a_bool_is_no_int_and_an_int_is_no_bool(declared, value):
    refusal(Codec.of(declared), value)


def test_a_bool_is_no_int_for_pydantic_either():
    class Counted(pydantic.BaseModel):
        count: int

    assert refusal(Codec.of(Counted), Counted.model_construct(count=True)).path == "state.x.count"


def test_equal_sets_are_equal_data():
    codec = Codec.of(set[str])
    words = [f"word{n}" for n in range(50)]
    assert codec.encode(set(words)) == codec.encode({*words[25:], *words[:25]}) == sorted(words)


class Cat(msgspec.Struct, tag=True):
    seen: set[str]


class Cow(msgspec.Struct, tag=True, array_like=False):
    by_day: dict[int, tuple[frozenset[str], int]]


def test_equal_sets_are_equal_data_however_deep_and_dicts_keep_their_order():
    codec = Codec.of(list[Cat | Cow] | None)
    words = [f"word{n}" for n in range(20)]
    plain = codec.encode([Cat(set(words)), Cow({2: (frozenset(words), 1), 1: (frozenset(), 2)})])
    assert plain == [
        {"type": "Cat", "seen": sorted(words)},
        {"type": "Cow", "by_day": {"2": [sorted(words), 1], "1": [[], 2]}},
    ]
    assert list(plain[1]["by_day"]) == ["2", "1"]


def test_a_set_whose_members_have_no_order_is_kept():
    codec = Codec.of(set[int | str])
    assert codec.decode(codec.encode({1, "a", 2, "b"})) == {1, "a", 2, "b"}


def test_ints_of_any_length_that_python_writes_are_kept():
    assert ANY.encode(2**63) == 2**63
    assert ANY.encode([-(10**4000)]) == [-(10**4000)]
    assert refusal(ANY, [10**5000]).path == "state.x[0]"


def test_a_class_without_equality_is_compared_field_by_field():
    codec = Codec.of(Unequal)
    assert codec.decode(codec.encode(Unequal([1, "a"]))).value == [1, "a"]
    assert refusal(codec, Unequal((1, 2))).path == "state.x.value"


def test_a_field_that_equality_overlooks_is_not_overlooked():
    assert refusal(Codec.of(Overlooked), Overlooked({1, 2})).path == "state.x.value"


def test_what_is_encoded_shares_nothing_with_what_was_given():
    inner = [1]
    tree = Tree({"a": inner}, [Tree(inner)])
    plain = Codec.of(Tree).encode(tree)
    inner.append(2)
    assert plain == {"value": {"a": [1]}, "kids": [{"value": [1], "kids": []}]}
    loaded = Codec.of(Tree).decode(plain)
    loaded.value["a"].append(3)
    loaded.kids.clear()
    assert plain == {"value": {"a": [1]}, "kids": [{"value": [1], "kids": []}]}


@pytest.mark.parametrize(("value", "plain"), [(1.0, 1), (1, 1.0), (True, 1), (0, False)])
@pytest.mark.parametrize("declared", [Any, int, float, bool])
def test_a_number_of_another_kind_is_no_longer_what_was_kept(declared, value, plain):
    assert Codec.of(declared).matches(plain, plain)
    assert not Codec.of(declared).matches(value, plain)


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


# --- refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "JSON has no nan"),
        (float("inf"), "JSON has no inf"),
        ("a\0", "NUL"),
        ("\udc00", "surrogate"),
        ({1, 2}, "a set cannot be kept as JSON here; declare the field as set[…] or use a list"),
        ((1, 2), "declare the field as tuple[…] or use a list"),
        (b"x", "declare the field as bytes"),
        (dt.datetime(2020, 1, 1, tzinfo=UTC), "declare the field as datetime"),
        (Plain(1), "declare the field as Plain or use a dict"),
        (Model(title="x"), "declare the field as Model or use a dict"),
        (Foreign(), "a Foreign cannot be kept as JSON; keep its data"),
        (PurePosixPath("/a"), "a PurePosixPath cannot be kept as JSON; keep it as str"),
        (ValueError("x"), "a ValueError cannot be kept as JSON; keep it as str"),
        (type("float64", (float,), {})(1.5), "use float(…)"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_the_way_out(value, words):
    fault = refusal(ANY, {"pages": [0, 1, 2, {"when": value}]}, path="state")
    assert fault.path == "state.pages[3].when"
    assert words in str(fault)
    assert isinstance(fault, StateError)


@pytest.mark.parametrize("key", [1, 1.5, None, True, (1, 2), "a\0", "\ud800"])
def test_a_key_that_json_cannot_hold_is_refused(key):
    fault = refusal(ANY, [{"ok": 1, key: 2}])
    assert fault.path == "state.x[0]"
    assert "key" in str(fault)


def test_a_key_that_is_no_name_is_quoted_in_the_path():
    assert refusal(ANY, {"two words": [float("nan")]}).path == "state.x['two words'][0]"


def test_text_that_only_looks_like_a_nul_is_kept():
    assert ANY.encode(["\\u0000", "\\\\u0000"]) == ["\\u0000", "\\\\u0000"]


@pytest.mark.parametrize("declared", [Any, Tree, list[Any]])
def test_a_value_that_contains_itself_is_refused(declared):
    loop: list[Any] = [1]
    loop.append({"again": loop})
    value = Tree(loop) if declared is Tree else loop
    fault = refusal(Codec.of(declared), value)
    assert "contains itself" in str(fault)
    assert fault.path.endswith("[1].again")


def test_a_tree_that_contains_itself_is_refused():
    tree = Tree()
    tree.kids.append(tree)
    assert refusal(Codec.of(Tree), tree).path == "state.x.kids[0]"


@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 5_000, 100_000])
def test_nesting_that_is_too_deep_is_refused_and_never_a_recursion_error(levels):
    deep: Any = []
    for _ in range(levels - 1):
        deep = [deep]
    assert f"deeper than {DEPTH_MAX} levels" in str(refusal(ANY, deep))


def test_nesting_up_to_the_limit_is_kept_also_in_wide_values():
    deep: Any = {}
    for _ in range(DEPTH_MAX - 2):
        deep = [deep]
    wide = [[n] for n in range(500)]
    wide.append(deep)
    assert ANY.encode(wide) == wide
    assert ANY.encode("[" * 500) == "[" * 500
    assert refusal(ANY, [wide])


def test_a_typed_tree_that_is_too_deep_is_refused():
    tree = Tree()
    for _ in range(3_000):
        tree = Tree(kids=[tree])
    assert "deeper" in str(refusal(Codec.of(Tree), tree))


@pytest.mark.parametrize(
    ("declared", "value", "path"),
    [
        (Everything, None, "state.x"),
        (list[Leaf], [Leaf("a"), Leaf(3)], "state.x[1].name"),
        (list[Leaf], [Leaf("a", "2020-01-01")], "state.x[0].when"),
        (list[Plain], [{"x": 1}], "state.x[0]"),
        (set[int], [1], "state.x"),
        (list[int], (1, 2), "state.x"),
        (uuid.UUID, "00000000-0000-0000-0000-000000000001", "state.x"),
        (bytes, "eA==", "state.x"),
        (Options, {"depth": 1, "undeclared": 2}, "state.x"),
        (dt.datetime, dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=30))), "state.x"),
        (dt.datetime, dt.datetime(2020, 10, 25, 2, 30, fold=1), "state.x"),  # noqa: DTZ001 - no zone, no telling
        (list[float], [1.0, float("nan")], "state.x[1]"),
        (float | None, float("nan"), "state.x"),
        (dict[float, int], {float("nan"): 1}, "state.x"),
        (decimal.Decimal, decimal.Decimal("NaN"), "state.x"),
        (decimal.Decimal, decimal.Decimal("sNaN"), "state.x"),
        (Model, Model(title="x", extra={1}), "state.x.extra"),
        (Model, Model(title="x", extra=[float("nan")]), "state.x.extra[0]"),
        (Model, Model(title="x", blob=b"\xff"), "state.x"),
        (list[Model], [Model(title="x", extra=(1,))], "state.x[0].extra"),
        (Model, Model.model_construct(title=3), "state.x"),
    ],
)
def test_a_declared_value_that_would_not_come_back_equal_is_refused(declared, value, path):
    assert refusal(Codec.of(declared), value).path == path


class Dog(Plain):
    pass


def test_an_object_of_a_subclass_would_lose_its_class_and_is_refused():
    assert "a Dog would come back as a Plain" in str(refusal(Codec.of(Plain), Dog(1)))


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (HoldsForeign, "Foreign"),
        (complex, "complex"),
        (str | dt.datetime, "str-like"),
        (dict[tuple[int, int], int], "keys are strings"),
        (dict[bool, int], "keys are strings"),
        (enum.Enum("Odd", {"A": (1, 2)}), "Odd"),
        (msgspec.Raw, "Raw"),
    ],
)
def test_a_type_that_json_cannot_keep_is_refused_when_it_is_declared(declared, words):
    with pytest.raises(CodecError, match=words):
        Codec.of(declared)


def test_an_annotation_that_cannot_be_resolved_is_named():
    broken = dataclasses.make_dataclass("Broken", [("x", "NoSuchType")])
    with pytest.raises(CodecError, match="NoSuchType"):
        Codec.of(broken)


def test_as_many_levels_of_lists_and_dicts_are_kept_as_are_promised_and_no_more():
    codec = Codec.of(Any)
    assert codec.encode(nested(DEPTH_MAX)) == nested(DEPTH_MAX)
    with pytest.raises(CodecError, match="nested deeper"):
        codec.encode(nested(DEPTH_MAX + 1))


def test_a_value_that_cannot_be_compared_is_no_longer_what_it_was():
    assert not Codec.of(Quarrelsome).matches(Quarrelsome(1), {"n": 1})


@pytest.mark.parametrize("short", [({1},), ({1}, 2, 3)])
def test_a_tuple_of_another_length_is_refused_where_it_holds_a_set(short):
    with pytest.raises(CodecError, match="length 2"):
        Codec.of(tuple[set[int], int]).encode(short)


def test_a_type_that_pydantic_knows_no_form_of_is_refused_as_ours() -> None:
    class Odd: ...

    with pytest.raises(CodecError, match="cannot be kept as JSON"):
        Codec.of_pydantic_field(Odd, {})


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


def test_the_settings_of_a_pydantic_model_hold_for_its_simplest_fields():
    strict = StateType.of(Strict)
    with pytest.raises(CodecError, match="at most 3 characters"):
        strict.changes({"name": "abcd"}, {}, node="a")


def test_a_model_inside_a_pydantic_model_with_settings_is_kept():
    assert StateType.of(Strict).changes({"part": Part(n=3)}, {}, node="a").set == {"part": {"n": 3}}


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
    assert "JSON keys are strings" in value_problem({key: 1}, "value")[1]


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
        ({1: "a"}, {"1": "a"}, "the key 1 is an int, and JSON keys are strings"),
        ({"a": 1, "b": 2}, {"a": 1}, "the keys of the dict would come back as ['a']"),
        ({"a": 1}, {"a": 1, "b": 2}, "the keys of the dict would come back as ['a', 'b']"),
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


# --- decode and accept -------------------------------------------------------------------------------


def test_plain_data_that_does_not_fit_is_refused_with_its_path():
    with pytest.raises(CodecError) as caught:
        Codec.of(list[Leaf]).decode([{"name": "a"}, {"name": 1}], path="result")
    assert caught.value.path == "result[1].name"
    with pytest.raises(CodecError) as caught:
        Codec.of(Model).decode({"title": "a", "seen": ["x"]}, path="result")
    assert caught.value.path == "result.seen[0]"


def test_input_from_a_command_line_may_be_in_its_plain_form():
    assert Codec.of(dt.date).accept("2020-01-02") == "2020-01-02"
    assert Codec.of(set[int]).accept([2, 1, 2]) == [1, 2]
    assert Codec.of(Plain).accept({"x": 1}) == Codec.of(Plain).accept(Plain(1)) == {"x": 1}
    with pytest.raises(CodecError, match="Expected `int`"):
        Codec.of(Plain).accept({"x": "one"})


def test_matching_tells_a_changed_value_from_the_same():
    codec = Codec.of(Tree)
    plain = codec.encode(Tree([1], [Tree()]))
    assert codec.matches(Tree([1], [Tree()]), plain)
    assert not codec.matches(Tree([2], [Tree()]), plain)
    assert not codec.matches(Tree((1,), [Tree()]), plain)
    assert not codec.matches(None, plain)


def test_a_codec_is_made_once_a_type():
    assert Codec.of(list[int]) is Codec.of(list[int])


def test_pydantic_is_not_imported_for_those_who_do_not_use_it():
    code = "import sys, holdfast.core.codec as c; c.Codec.of(list[int]).encode([1]); sys.exit('pydantic' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=False, env={"PYTHONPATH": ":".join(sys.path)}
        ).returncode
        == 0
    )
