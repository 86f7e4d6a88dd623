"""The words of problems, to the letter where a number or a name in them could be wrong. Each of these was once got past by a
small mistake that was made on purpose (docs/mutants.md).
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from holdfast.core.definition import END, START, Definition, Edge, NodeOptions
from holdfast.core.validate import node_problems, problems, upgrade_problems


def flow(nodes, *chains, branches=None):
    edges = [Edge(*pair) for chain in map(str.split, chains) for pair in pairwise(chain)]
    options = {name: NodeOptions() for name in nodes.split()}
    return Definition(name="flow", nodes=options, edges=edges, branches=branches or {})


def lift(values):
    return values


# --- upgrades ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "given", "span"),
    [(3, [1], "2"), (4, [1], "2 to 3"), (5, [1, 4], "2 to 3"), (4, [1, 3], "2"), (9, [2, 3], "4 to 8")],
)
def test_the_upgrades_that_are_missing_are_named(version, given, span):
    assert upgrade_problems(version, dict.fromkeys(given, lift)) == [
        f"a state of version {span.split()[0]} cannot be lifted to version {version}; add upgrades for {span}"
    ]


def test_an_upgrade_beyond_the_version_is_one_problem():
    assert upgrade_problems(2, {1: lift, 5: lift}) == [
        "upgrades[5] starts at version 5, but the state is at version 2; raise version= to 6 or remove the upgrade"
    ]


def test_an_upgrade_that_starts_at_no_version_is_one_problem():
    (problem,) = upgrade_problems(2, {1: lift, "x": lift})
    assert "starts at no version" in problem


@pytest.mark.parametrize(("version", "given"), [(1, []), (2, [1]), (3, [1, 2]), (3, [2]), (3, [])])
def test_upgrades_without_a_gap_are_sound(version, given):
    assert upgrade_problems(version, dict.fromkeys(given, lift)) == []


# --- memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "1"])
def test_a_limit_of_memory_is_a_number_of_bytes(limit):
    (problem,) = node_problems("a", NodeOptions(executor="process", memory_limit=limit), taken=False)
    assert "is no amount of memory" in problem


def test_a_limit_of_memory_needs_a_process():
    assert node_problems("a", NodeOptions(executor="process", memory_limit=1), taken=False) == []
    (problem,) = node_problems("a", NodeOptions(memory_limit=1), taken=False)
    assert "needs a process of its own" in problem


# --- branches and reach ------------------------------------------------------------------------------


def test_a_branch_from_an_end_hides_no_other_fault():
    found = problems(flow("a", "START a END", branches={START: ["a"], "a": []}))
    assert len(found) == 2
    assert "cannot leave from START" in found[0]
    assert "has no targets" in found[1]


@pytest.mark.parametrize(
    ("lost", "who", "them"),
    [
        ("b", "node 'b' cannot", "it"),
        ("b c", "node 'b' (and with it 'c') cannot", "them"),
        ("b c d e f g h i", "node 'b' (and with it 'c', 'd', 'e', 'f', 'g', 'h', 'i') cannot", "them"),
        ("b c d e f g h i j", "node 'b' (and with it 'c', 'd', 'e', 'f', 'g', 2 more, 'j') cannot", "them"),
        ("b c d e f g h i j k", "node 'b' (and with it 'c', 'd', 'e', 'f', 'g', 3 more, 'k') cannot", "them"),
    ],
)
def test_nodes_that_cannot_be_reached_are_told_together_and_shortly(lost, who, them):
    assert problems(flow(f"a {lost}", "START a END", f"{lost} END")) == [
        f"{who} be reached from START; add an edge or a branch that leads to 'b', or remove {them}"
    ]


def test_nodes_that_lead_nowhere_are_told_together_with_the_first_to_be_mended():
    assert problems(flow("a b c", "START a", "b c", branches={"a": ["b", END], "c": ["b"]})) == [
        "no way from node 'b' (and with it 'c') leads to END; add .edge('b', END), or a branch with END among its targets"
    ]
