"""The flow of a child that another process has started is found in the modules that are imported here."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from families import Order, Till, caller, children
from harness import Stage

import holdfast as hf
from holdfast.reading.known_flows import find_loaded

CHILD = "a_child_of_loaded_modules"
"""No other module that tests import has a flow of this name."""


@pytest.fixture
def modules() -> Iterator[dict[str, ModuleType]]:
    """Modules by name, which count as imported during the test."""
    made = {name: ModuleType(name) for name in ("shop_one", "shop_two")}
    sys.modules.update(made)
    yield made
    for name in made:
        del sys.modules[name]


def wait_for_an_answer(stage: Stage) -> tuple[hf.Flow[Any], hf.Flow[Any]]:
    """Leave a caller behind that waits for a child whose question is answered, as a process that was killed does."""
    pay = Till().pay(CHILD)
    flow = caller(pay)
    stage.run(flow, Order(total=7, how="ask"))
    stage.do(lambda engine: engine.answer(children(stage.store)[0], "charge", "yes"))
    return flow, pay


def test_a_caller_that_is_run_again_finds_the_flow_of_its_child_in_a_module(
    stage: Stage, modules: dict[str, ModuleType]
) -> None:
    flow, pay = wait_for_an_answer(stage)
    modules["shop_one"].pay = pay  # type: ignore[attr-defined]
    modules["shop_two"].imported_from_one = pay  # type: ignore[attr-defined]
    run = stage.run(flow, Order(total=7, how="ask"))
    assert (run.status, run.state.log) == ("completed", [True, 7])


def test_two_flows_of_the_same_name_are_not_guessed_at(stage: Stage, modules: dict[str, ModuleType]) -> None:
    flow, pay = wait_for_an_answer(stage)
    modules["shop_one"].pay = pay  # type: ignore[attr-defined]
    modules["shop_two"].pay = Till().pay(CHILD)  # type: ignore[attr-defined]
    with pytest.raises(
        hf.FlowNotFound, match=r"shop_one and shop_two have different flows of that name.*flows=\["
    ):
        stage.run(flow, Order(total=7, how="ask"))
    run = stage.do(lambda engine: engine.run(flow, Order(total=7, how="ask"), run_id="r"), pay)
    assert run.status == "completed"


def test_nothing_is_imported_and_no_lazy_object_is_touched(modules: dict[str, ModuleType]) -> None:
    class Lazy:
        @property
        def __class__(self) -> Any:
            raise AssertionError("touched")

        def __getattr__(self, name: str) -> Any:
            raise AssertionError("touched")

    modules["shop_one"].lazy = Lazy()  # type: ignore[attr-defined]
    modules["shop_one"].__getattr__ = lambda name: pytest.fail("touched")  # type: ignore[method-assign]
    spec = importlib.util.find_spec("this")  # importing it would print a poem
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["shop_lazy"] = module
    try:
        spec.loader.exec_module(module)
        assert find_loaded(CHILD) == {}
        assert "d" not in object.__getattribute__(module, "__dict__")
    finally:
        del sys.modules["shop_lazy"]
