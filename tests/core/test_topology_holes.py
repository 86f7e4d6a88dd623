"""Who has nobody beside it, and what becomes of names that a flow does not know yet. Mutants that nobody had looked at got past
the tests here (docs/mutants.md).
"""

from __future__ import annotations

import pytest

from holdfast.core.run_state import RunState
from holdfast.core.writers import Writers
from holdfast.testing.builders import outline


@pytest.mark.parametrize(
    ("paths", "alone"),
    [
        (["START a END"], "a"),
        (["START a b c END"], "a b c"),
        (["START a b d END", "a c d"], "a d"),
        (["START a END", "START b END"], ""),
        (["START a b c d END", "b d"], "a b c d"),
    ],
)
def test_a_node_is_alone_where_every_other_comes_before_or_after_it(paths, alone):
    assert outline(*paths).topology.alone == set(alone.split())


def test_what_a_node_wrote_that_the_flow_does_not_know_yet_is_no_conflict():
    """A run that is taken up with a changed flow: the renaming is recorded later."""
    flow = outline("START a END", "START b END")
    state = RunState("r", status="running", writers={"n": {"old name": 3}})
    assert Writers(flow.topology, state).conflict(state, "a", ["n"]) is None
