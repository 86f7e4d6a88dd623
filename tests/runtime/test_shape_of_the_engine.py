"""The engine is one class over objects: no stub, no chain of base classes, and few callbacks."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from bench import house

import holdfast
from holdfast.runtime import runner
from holdfast.runtime.engine import Engine
from holdfast.runtime.holdings import Asleep, HeldRun, Holdings
from holdfast.runtime.runner import Phase, Runner
from holdfast.runtime.services import Commits
from holdfast.runtime.worker import Worker
from holdfast.upkeep.retention import Keeper

RUNTIME = Path(holdfast.__file__).parent / "runtime"
OF_THE_CALLER = {"on_end", "on_report", "on_drain", "until"}


def test_the_engine_has_no_chain_of_base_classes() -> None:
    bases = [base.__name__ for base in Engine.__mro__[1:-1]]
    assert bases == []


def test_no_method_of_the_runtime_is_left_to_a_subclass() -> None:
    stubs = [
        f"{path.name}:{node.lineno}"
        for path in RUNTIME.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise)
        and node.exc is not None
        and "NotImplementedError" in ast.unparse(node.exc)
    ]
    assert stubs == []


def test_the_parts_of_the_engine_are_given_objects_and_not_functions() -> None:
    given = {
        f"{kind.__name__}.{name}": parameter.annotation
        for kind in (Worker, Commits, Keeper, Holdings)
        for name, parameter in inspect.signature(kind.__init__).parameters.items()
        if "Callable" in str(parameter.annotation) and name not in OF_THE_CALLER
    }
    assert set(given) == {"Holdings.now"}  # a clock


def test_a_runner_and_a_sleeping_run_are_held_alike() -> None:
    methods = {name for name in vars(HeldRun) if not name.startswith("_")}
    assert methods >= {"fence", "halt", "lose", "request", "wake"}
    for kind in (Runner, Asleep):
        assert all(hasattr(kind, name) for name in methods - {"fence"})


def test_the_tables_of_phases_are_the_picture() -> None:
    assert len(runner._AFTER_LOOK) == len(runner._AFTER_SAVE) == len(Phase)
    after_look = {phase: runner._AFTER_LOOK[phase] for phase in (Phase.DECIDING, Phase.HANDING_OVER)}
    assert after_look == {Phase.DECIDING: Phase.RESTING, Phase.HANDING_OVER: Phase.SAVING}
    after_save = {phase: runner._AFTER_SAVE[phase] for phase in (Phase.HANDING_OVER, Phase.SAVING)}
    assert after_save == {Phase.HANDING_OVER: Phase.DECIDING, Phase.SAVING: Phase.RESTING}
    assert runner.__doc__ is not None
    assert all(phase.name in runner.__doc__ for phase in Phase)


def test_an_answer_passes_through_nothing_that_executes_nodes() -> None:
    answer = house.measure(Path(house.__file__).parents[1], "answer")
    executing = {
        "core/decide", "core/readiness", "core/writers", "runtime/calls/executors", "runtime/calls/process/executor",
        "runtime/perform", "runtime/preparation", "runtime/runner", "storage/sqlite/upkeep",
    }  # fmt: skip
    assert executing & set(answer["named"]) == set()
