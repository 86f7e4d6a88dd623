"""What counts as a difference. Each of these was once got past by a small mistake that was made on purpose (docs/mutants.md)."""

from __future__ import annotations

from holdfast.core.difference import compatible, difference
from holdfast.testing.builders import outline


def test_only_nodes_that_there_were_and_that_have_another_name_now_are_renamed():
    old, new = outline("START a b END").definition, outline("START a c END").definition
    told = difference(old, new, rename={"a": "a", "nobody": "somebody", "b": "c"})
    assert told.renamed == [("b", "c")]
    assert (told.nodes_added, told.nodes_removed) == ([], [])


def test_a_node_that_is_gone_and_was_reached_again_has_yet_to_finish():
    old, new = outline("START a b", branches={"b": "b END"}).definition, outline("START a END").definition
    (refusal,) = compatible(old, new, completed=["a", "b"], pending=["b"])
    assert "'b', which the run has yet to finish, is gone" in refusal
    (refusal,) = compatible(old, new, completed=["a", "b"], pending=[])
    assert "'b', which the run completed, is gone" in refusal


def test_a_difference_is_told_in_the_letters_in_which_it_was_written():
    asked = [
        outline("START a END", asks={"a": {"options": options}}).definition
        for options in (["ä", "b"], ["ö", "b"])
    ]
    (line,) = difference(*asked).lines()
    assert '"ä"' in line
    assert '"ö"' in line
