"""What nodes get as `ctx.resources`: a mapping, or what a function of the user opens when the engine is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from engines import Work, in_engine, one_node

import holdfast as hf
from holdfast.errors import SettingError
from holdfast.storage.memory.store import MemoryStore

life: list[str] = []


def made() -> dict[str, Any]:
    life.append("opened")
    return {"name": "client"}


async def made_later() -> dict[str, Any]:
    return made()


@contextmanager
def opened() -> Iterator[dict[str, Any]]:
    yield made()
    life.append("closed")


@asynccontextmanager
async def opened_later() -> AsyncIterator[dict[str, Any]]:
    yield made()
    life.append("closed")


def use(state: Work, ctx: hf.BlockingContext) -> dict[str, Any]:
    life.append(ctx.resources["name"])
    return {}


@pytest.mark.parametrize(
    ("given", "lived"),
    [
        ({"name": "client"}, ["client"]),
        (made, ["opened", "client"]),
        (made_later, ["opened", "client"]),
        (opened, ["opened", "client", "closed"]),
        (opened_later, ["opened", "client", "closed"]),
    ],
)
def test_resources_are_opened_with_the_engine_and_closed_after_the_last_node(
    given: Any, lived: list[str]
) -> None:
    life.clear()
    run = in_engine(lambda engine: engine.run(one_node(use)), resources=given)
    assert (run.status, life) == ("completed", lived)


def test_resources_are_closed_if_the_engine_cannot_be_opened() -> None:
    life.clear()
    with pytest.raises(hf.StoreError):
        in_engine(
            lambda engine: engine.run(one_node(use)), "postgresql://127.0.0.1:1/none", resources=opened_later
        )
    assert life == ["opened", "closed"]


def test_what_is_no_mapping_is_refused_before_the_store_is_opened() -> None:
    with pytest.raises(SettingError, match="is not a mapping: give a dict of names and objects"):
        in_engine(lambda engine: engine.run(one_node(use)), MemoryStore(), resources=lambda: ["client"])
