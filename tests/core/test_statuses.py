"""The sets of statuses: each has one name, in `core/run_state`, and what it says of a run or a visit is true."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import holdfast
from holdfast.core import run_state
from holdfast.core.run_state import NodeStatus, Status
from holdfast.storage import contract

SOURCE = Path(holdfast.__file__).parent
WORDS = {*get_args(Status), *get_args(NodeStatus)}
NAMED = {
    name: found for name, found in vars(run_state).items() if name.isupper() and isinstance(found, frozenset)
}
HOMES = {"core/run_state.py", "core/kinds.py"}
"""Where a set of statuses may be spelled out. `testing` has readings of its own, which share nothing with the core."""


def spelled(tree: ast.AST) -> Iterator[tuple[int, frozenset[str]]]:
    """Every set, tuple or list of two statuses or more; the members of a `Literal` are a type."""
    types = {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Set | ast.Tuple | ast.List) and id(node) not in types:
            words = [
                part.value for part in node.elts if isinstance(part, ast.Constant) and part.value in WORDS
            ]
            if len(words) == len(node.elts) > 1:
                yield node.lineno, frozenset(words)


def breaches(tree: ast.AST) -> list[tuple[int, str]]:
    names = {members: name for name, members in NAMED.items()}
    return [
        (line, names.get(found, "a name of its own"))
        for line, found in spelled(tree)
        if found in names or len(found) > 2
    ]


def test_no_set_of_statuses_is_spelled_out_a_second_time() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{line}": f"use run_state: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != "testing" and str(path.relative_to(SOURCE)) not in HOMES
        for line, name in breaches(ast.parse(path.read_text("utf-8")))
    }
    all_of_them = [place for place in found if place.startswith("storage/contract.py")]
    assert len(all_of_them) == 1, "STATUSES, in the order in which they are listed"
    assert found.keys() - set(all_of_them) == set(), found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("x = s in ('failed', 'interrupted')", "HALTED"),
        ("_GOING = frozenset({'waiting', 'running', 'pending'})", "GOING"),
        ("x = s in ['paused', 'failed', 'cancelled']", "a name of its own"),
    ],
)
def test_a_set_that_is_spelled_out_is_found(text: str, name: str) -> None:
    assert breaches(ast.parse(text)) == [(1, name)]


def test_two_statuses_in_a_condition_and_the_members_of_a_type_need_no_name() -> None:
    assert (
        breaches(ast.parse("x = s in ('waiting', 'failed')\nL = Literal['pending', 'running', 'waiting']"))
        == []
    )


def test_no_two_names_mean_the_same_set() -> None:
    assert len({*NAMED.values()}) == len(NAMED)
    assert all(members <= WORDS for members in NAMED.values())


def test_every_status_of_a_stored_run_is_open_or_final() -> None:
    stored = set(get_args(Status)) - {"new"}
    assert set(contract.STATUSES) == set(get_args(contract.RunStatus)) == stored
    assert stored == run_state.OPEN | run_state.FINAL
    assert not run_state.OPEN & run_state.FINAL
    assert stored == run_state.ACTIVE | run_state.STOPPED
    assert not run_state.ACTIVE & run_state.STOPPED


def test_each_set_is_part_of_the_one_that_allows_more() -> None:
    assert run_state.OFFERED < run_state.TAKEABLE < run_state.CLAIMABLE < run_state.OPEN
    assert run_state.UNDER_WAY < run_state.LIVE < run_state.ACTIVE < run_state.OPEN
    assert run_state.FINAL < run_state.ENDED < run_state.STOPPED
    assert run_state.HALTED == run_state.STOPPED - run_state.FINAL


def test_statuses_are_queried_in_the_order_in_which_they_are_listed() -> None:
    assert contract.in_order(run_state.FINAL) == ("completed", "cancelled")
    assert contract.in_order(frozenset(contract.STATUSES)) == contract.STATUSES
