"""The JSON Schema of a flow's input, and its description: what an agent needs to call a flow as a tool."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from holdfast import END, START, Flow, Graph, GraphError, StateError, add, append
from holdfast.core import answers


class Stop(msgspec.Struct):
    place: str
    nights: int = 1


@dataclass
class Trip:
    """A trip."""

    city: str
    stops: Annotated[list[Stop], append] = field(default_factory=list)
    days: Annotated[int, add] = 0
    cost: Decimal = Decimal(0)
    leaves_at: datetime | None = None


class Letter(pydantic.BaseModel):
    text: str = pydantic.Field(min_length=1)
    sender: str = pydantic.Field(default="", alias="from")


class Page(pydantic.BaseModel):
    title_text: str = pydantic.Field(alias="titleText")
    next_page: Page | None = pydantic.Field(default=None, alias="nextPage")


class Archive(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    first_page: Page = pydantic.Field(alias="firstPage")


class Note(TypedDict):
    text: str
    tags: NotRequired[list[str]]


class Renamed(msgspec.Struct, rename="camel", tag="renamed"):
    first_name: str
    last_name: str = ""


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


def flow_of(state: Any, **options: Any) -> Flow[Any]:
    graph: Graph[Any] = Graph("tool", state, **options)
    graph.node(name="a")(lambda state: None)
    return graph.chain(START, "a", END).compile()


@pytest.mark.parametrize(
    ("state", "required", "properties"),
    [
        (Trip, ["city"], ["city", "stops", "days", "cost", "leaves_at"]),
        (Letter, ["text"], ["text", "sender"]),
        (Note, ["text"], ["text", "tags"]),
        (Renamed, ["first_name"], ["first_name", "last_name"]),
        (Tree, ["name"], ["name", "children"]),
        (dict, [], []),
    ],
)
def test_the_schema_of_an_input_has_the_fields_of_the_state(
    state: Any, required: list[str], properties: list[str]
) -> None:
    schema = flow_of(state).input_schema()
    assert schema["type"] == "object"
    assert (schema.get("required", []), sorted(schema.get("properties", {}))) == (
        required,
        sorted(properties),
    )


@pytest.mark.parametrize(
    ("state", "given"),
    [
        (Trip, {"city": "Oslo", "stops": [{"place": "Bergen"}], "days": 2}),
        (Letter, {"text": "hello", "sender": "ada"}),
        (Page, {"title_text": "x", "next_page": {"titleText": "y", "nextPage": {"titleText": "z"}}}),
        (Archive, {"first_page": {"titleText": "x"}}),
        (Note, {"text": "x", "tags": ["a"]}),
        (Renamed, {"first_name": "Ada"}),
        (Tree, {"name": "a", "children": [{"name": "b"}]}),
        (dict, {"anything": [1]}),
    ],
)
def test_what_fits_the_schema_is_accepted_as_an_input(state: Any, given: dict[str, Any]) -> None:
    flow = flow_of(state)
    assert answers.misfit(given, (), flow.input_schema()) is None
    flow.state.load(flow.state.dump(given))


@pytest.mark.parametrize(
    ("state", "given"),
    [
        (Trip, {}),
        (Trip, {"city": 3}),
        (Trip, {"city": "Oslo", "town": "x"}),
        (Letter, {"text": "", "sender": ""}),
        (Page, {"title_text": "x", "next_page": {"title_text": "y"}}),
    ],
)
def test_what_does_not_fit_the_schema_is_refused_as_an_input(state: Any, given: dict[str, Any]) -> None:
    flow = flow_of(state)
    assert answers.misfit(given, (), flow.input_schema()) is not None
    with pytest.raises(StateError):
        flow.state.load(flow.state.dump(given))


def test_a_model_without_fields_is_not_a_state() -> None:
    class Numbers(pydantic.RootModel[list[int]]): ...

    with pytest.raises(StateError, match="a RootModel has no fields"):
        flow_of(Numbers)


def test_a_type_that_a_state_refers_to_is_defined_in_the_schema() -> None:
    schema = flow_of(Trip).input_schema()
    assert list(schema["$defs"]) == ["Stop"]
    assert schema["description"] == "A trip."
    assert "$defs" not in flow_of(Letter).input_schema()


def test_a_description_is_part_of_the_flow_and_not_of_its_definition() -> None:
    plain, told = flow_of(Trip), flow_of(Trip, description="Plans a trip.")
    assert (plain.description, told.description) == ("", "Plans a trip.")
    assert told.fingerprint == plain.fingerprint
    assert told.definition_json == plain.definition_json


def test_a_description_is_text() -> None:
    with pytest.raises(GraphError, match="description=3 is not text"):
        flow_of(dict, description=3)
