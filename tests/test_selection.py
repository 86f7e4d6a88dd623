"""`make test` runs a test of the engine on one store, and a quarter of the cases that rotate; both are always the same ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import selection


@dataclass(frozen=True)
class Item:
    """What the selection knows of a test."""

    nodeid: str
    marks: frozenset[str] = field(default_factory=frozenset)

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks


def chosen(items: list[Item], *, stores: str = "one", seed: str = "all") -> list[str]:
    left_out = selection.left_out(items, stores=stores, seed=seed)
    return [item.nodeid for item in items if item not in left_out]


def on_stores(file: str, count: int, stores: tuple[str, ...] = selection.STORES) -> list[Item]:
    return [Item(f"{file}::test_{number}[{store}-async]") for number in range(count) for store in stores]


def test_a_test_of_the_engine_runs_on_one_store_and_a_third_of_them_on_each() -> None:
    ran = chosen(on_stores("tests/runtime/requests/test_some.py", 300))
    assert len({name.partition("[")[0] for name in ran}) == len(ran) == 300
    for store in selection.STORES:
        assert 70 < sum(f"[{store}-" in name for name in ran) < 130
    assert ran == chosen(on_stores("tests/runtime/requests/test_some.py", 300))


def test_a_test_without_the_store_that_is_chosen_runs_on_sqlite() -> None:
    ran = chosen(on_stores("tests/acceptance/test_some.py", 300, ("postgres", "sqlite")))
    assert len(ran) == 300
    assert sum("[sqlite-" in name for name in ran) > sum("[postgres-" in name for name in ran) > 70
    only = [Item("tests/runtime/test_one.py::test_it[postgres]")]
    assert len(chosen(only)) == 1


def test_tests_of_stores_run_on_all_of_them_and_all_tests_do_if_that_is_asked_for() -> None:
    for file in (
        "tests/storage/test_some.py",
        "tests/runtime/fleet/test_some.py",
        "tests/chaos/test_chaos.py",
    ):
        assert len(chosen(on_stores(file, 10))) == 30
    assert len(chosen(on_stores("tests/runtime/requests/test_some.py", 10), stores="all")) == 30


def test_other_dimensions_than_the_store_stay_whole() -> None:
    items = [
        Item(f"tests/runtime/waiting/test_some.py::test_it[{store}-{colour}]")
        for store in ("memory", "sqlite")
        for colour in ("async", "def")
    ]
    assert sorted(name.partition("-")[2] for name in chosen(items)) == ["async]", "def]"]


def test_a_quarter_of_rotating_cases_runs_and_in_time_each_of_them() -> None:
    items = [
        Item(f"tests/simulation/test_bugs.py::test_found[{n}]", frozenset({"rotating"})) for n in range(10)
    ]
    assert len(chosen(items, seed="2026-11-18")) == 3
    assert chosen(items, seed="2026-11-18") == chosen(items, seed="2026-11-18")
    seen = {name for day in range(60) for name in chosen(items, seed=str(day))}
    assert seen == {item.nodeid for item in items}
    assert len(chosen(items)) == 10


def test_a_single_rotating_case_always_runs() -> None:
    assert len(chosen([Item("tests/a.py::test_b", frozenset({"rotating"}))], seed="x")) == 1


@dataclass
class Config:
    """What the selection knows of a run of tests."""

    option: SimpleNamespace
    hook: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(pytest_deselected=lambda items: None)
    )


def test_what_is_left_out_can_be_run_by_itself() -> None:
    every = on_stores("tests/runtime/requests/test_some.py", 10)
    by_day, otherwise = list(every), list(every)
    for items, left_out in ((by_day, False), (otherwise, True)):
        selection.select(Config(SimpleNamespace(stores="one", rotation="x", left_out=left_out)), items)
    assert (len(by_day), len(otherwise)) == (10, 20)
    assert {*by_day, *otherwise} == set(every)
