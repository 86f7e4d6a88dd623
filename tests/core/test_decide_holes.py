"""What is decided for one node says nothing about the others. Mutants that nobody had looked at got past the tests here
(docs/mutants.md).
"""

from __future__ import annotations

from holdfast.core.commands import AskFirst, StartNode
from holdfast.testing.builders import History, outline


def beside(*nodes: str, **options) -> History:
    """A run of nodes that go beside each other."""
    return History("r", outline(*(f"START {node} END" for node in nodes), **options)).created()


def wanted(history: History) -> list[tuple[type, str]]:
    return [(type(command), command.node) for command in history.commands()]


def test_a_node_that_is_asked_about_first_keeps_no_other_from_starting():
    run = beside("a", "b", nodes={"a": {"approve": "Go on?"}})
    assert wanted(run) == [(AskFirst, "a"), (StartNode, "b")]
