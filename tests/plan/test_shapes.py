"""Inputs and outputs of every kind of type that a capability may declare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import plan_shop as shop
import pydantic
import pytest

from holdfast import plan


@dataclass
class Inner:
    n: int


@dataclass
class Data:
    order: str
    inner: Inner | None = None
    many: dict[str, list[Inner]] | None = None


class Struct(msgspec.Struct, rename="camel"):
    order: str
    inner: Annotated[Inner | None, msgspec.Meta(description="x")] = None
    many: dict[str, list[Inner]] | None = None


class Typed(TypedDict, total=False):
    order: str
    inner: Inner
    many: dict[str, list[Inner]]


class PydanticInner(pydantic.BaseModel):
    n: int


class Model(pydantic.BaseModel):
    order: str
    inner: PydanticInner | None = None
    many: dict[str, list[PydanticInner]] | None = None


KINDS = [Data, Struct, Typed, Model]


def source(kind: Any) -> plan.Capabilities:
    made = plan.Capabilities("kinds")

    def same(given: Any) -> Any:
        return given

    same.__annotations__ = {"given": kind, "return": kind}
    made.capability("same@1")(same)
    return made


def paths(kind: Any, input: Any, **more: Any) -> set[str]:
    given = shop.tasks(
        {"id": "a", "capability": "same@1", "input": input}, context={"n": 1, "order": "1"}, **more
    )
    return {problem.path for problem in source(kind).check(given)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_literal_is_checked_field_by_field(kind: Any) -> None:
    assert paths(kind, {"order": "1", "inner": {"n": 1}, "many": {"k": [{"n": 1}]}}) == set()
    assert paths(kind, {"order": 1}) == {"tasks[0].input.order"}
    assert paths(kind, {"order": "1", "inner": {"n": "x"}}) == {"tasks[0].input.inner.n"}
    assert paths(kind, {"order": "1", "inner": {"n": {"$ref": "context.n"}}}) == set()
    assert paths(kind, {"order": {"$ref": "context.order"}, "inner": {"m": 1, "n": 1}}) == {
        "tasks[0].input.inner.m"
    }
    assert paths(kind, {"order": "1", "many": {"k": [{"n": {"$ref": "context.n"}}, {"n": "x"}]}}) == {
        "tasks[0].input.many.k[1].n"
    }
    assert paths(kind, {"order": "1", "ordr": "2"}) == {"tasks[0].input.ordr"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_fields_of_an_output_are_known(kind: Any) -> None:
    def problems(place: str) -> int:
        given = shop.tasks(
            {"id": "a", "capability": "same@1", "input": {"order": "1"}},
            {"id": "b", "capability": "same@1", "input": {"order": {"$ref": f"outputs.a.{place}"}}},
            edges=[("a", "b")],
        )
        return len(source(kind).check(given))

    for good in ("order", "inner.n", "many.k.0.n"):
        assert problems(good) == 0, good
    for bad in ("oder", "order.x", "inner.m", "many.k.x", "many.k.0.m"):
        assert problems(bad) == 1, bad


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_type_has_a_schema_and_goes_through_a_task(kind: Any) -> None:
    made = source(kind)
    assert "order" in made.schema()["$defs"]["Task:same@1"]["properties"]["input"]["anyOf"][0]["properties"]
    wiring = (
        made.plan(shop.tasks({"id": "a", "capability": "same@1", "input": {"order": "1"}})).nodes["a"].wiring
    )
    plain = wiring.encode(wiring.decode({"order": "1", "inner": {"n": 2}}))
    assert (plain["order"], plain["inner"]) == ("1", {"n": 2})
