"""Loops and joins, exactly: which nodes belong to them and which do not. Each of these was once got past by a small mistake that
was made on purpose (docs/mutants.md).
"""

from __future__ import annotations

import pytest

from holdfast.core.topology import Topology
from holdfast.testing.builders import outline


def shape(*paths: str, first: str = "", **options) -> Topology:
    """The shape of a graph; nodes are numbered as they are met, those in `first` before all others."""
    return Topology.of(outline(*(f"{name} END" for name in first.split()), *paths, **options).definition)


def loops(topology: Topology) -> dict[str, str]:
    """Head -> its body."""
    return {
        topology.names[loop.head]: " ".join(sorted(topology.members(loop.body))) for loop in topology.loops
    }


def waits(topology: Topology, join: str) -> str:
    """Whom a join waits for."""
    return " ".join(sorted(topology.members(topology.joins[join])))


def test_what_comes_behind_a_loop_is_not_part_of_it_though_it_was_declared_first():
    topology = shape("START a", first="z", branches={"a": "a z"})
    assert topology.names[0] == "z"
    assert loops(topology) == {"a": "a"}


def test_a_loop_behind_a_loop_is_not_part_of_it():
    topology = shape("START a b", "c d", branches={"b": "a c", "d": "c END"})
    assert loops(topology) == {"a": "a b", "c": "c d"}


def test_a_loop_within_a_loop_brings_its_own_nodes_and_nothing_behind_it():
    topology = shape("START a b c", "e END", branches={"b": "c a e", "c": "b"})
    assert loops(topology) == {"a": "a b c", "b": "b c"}


@pytest.mark.parametrize("between", ["START s END", "e END"])
def test_a_loop_within_a_loop_is_found_whatever_is_declared_behind_its_head(between):
    others = {"START s END", "e END"} - {between}
    topology = shape("START a b", between, *others, branches={"b": "c a", "c": "b e"})
    assert topology.names[2] == between.split()[-2]
    assert loops(topology) == {"a": "a b c", "b": "b c"}


def test_a_join_waits_for_what_comes_before_it_and_not_for_a_loop_behind_it():
    topology = shape("START a j", "START b j", "j x", branches={"x": "x END"})
    assert waits(topology, "j") == "a b"


def test_a_join_waits_for_a_loop_before_it_and_not_for_what_was_declared_first():
    topology = shape("START a", "START b j", "j z", first="z", branches={"a": "a j"})
    assert topology.names[0] == "z"
    assert waits(topology, "j") == "a b"


def test_a_join_waits_for_all_of_a_loop_that_one_of_its_branches_may_still_go_round():
    topology = shape("START a b", "START c j END", "d a", branches={"b": "d j"})
    assert loops(topology) == {"a": "a b d"}
    assert waits(topology, "j") == "a b c d"
