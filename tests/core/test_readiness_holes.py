"""A node that is due, and no longer when it is passed over before it began. Mutants that nobody had looked at got past the tests
here (docs/mutants.md).
"""

from __future__ import annotations

from holdfast.core import events
from holdfast.testing.builders import History, outline


def test_a_node_that_is_skipped_before_it_began_is_not_due_any_more():
    run = History("r", outline("START a b END", max_parallel=1)).created().paused().settled()
    assert list(run.ready.due) == ["a"]
    run.record(events.NodeSkipped(node="a", iteration=1, took=1, routes=["b"]))
    assert list(run.ready.due) == ["b"]
