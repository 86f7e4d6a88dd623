"""A problem hides no other. Mutants that nobody had looked at got past the tests here (docs/mutants.md)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from holdfast.core.definition import END, START, Definition, Edge, NodeOptions
from holdfast.core.validate import problems, upgrade_problems


def flow(nodes, *chains, branches=None):
    edges = [Edge(*pair) for chain in map(str.split, chains) for pair in pairwise(chain)]
    options = {name: NodeOptions() for name in nodes.split()}
    return Definition(name="flow", nodes=options, edges=edges, branches=branches or {})


NO_TARGETS = "the branch from 'a' has no targets"
LETTERS = "the branch from 'b' takes the letters of 'publish' for its targets"
TWICE = "the branch from 'c' lists 'publish' more than once"


@pytest.mark.parametrize(
    ("faulty", "words"),
    [
        ({START: ["a"], "a": []}, ["a branch cannot leave from START", NO_TARGETS]),
        ({END: ["a"], "a": []}, ["a branch cannot leave from END", NO_TARGETS]),
        ({"a": [], "b": list("publish")}, [NO_TARGETS, LETTERS]),
        ({"b": list("publish"), "a": []}, [LETTERS, NO_TARGETS]),
        ({"b": list("publish"), "c": ["publish", "publish"]}, [LETTERS, TWICE]),
        ({"a": [], "c": ["publish", "publish"]}, [NO_TARGETS, TWICE]),
    ],
)
def test_two_faulty_branches_are_two_problems(faulty, words):
    chains = ["START a", "a b c publish END"]
    found = [one for one in problems(flow("a b c publish", *chains, branches=faulty)) if "branch" in one]
    assert all(any(one.startswith(word) for one in found) for word in words), found


def test_an_upgrade_from_version_zero_is_one_problem():
    assert upgrade_problems(2, {0: lambda values: values}) == [
        "upgrades[0] starts at no version; versions are whole numbers from 1 up"
    ]
