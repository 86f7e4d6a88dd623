"""When a flow is drawn with rails and when as a list. Each of these was once got past by a small mistake that was made on purpose
(docs/mutants.md).
"""

from __future__ import annotations

import pytest

from holdfast.core.drawing import terminal
from holdfast.testing.builders import outline


def has_rails(*paths: str, width: int = 80) -> bool:
    """A list names START first and has no END."""
    return terminal(outline(*paths).definition, width=width).splitlines()[-1].startswith("◎")


@pytest.mark.parametrize(
    ("paths", "least"),
    [(("START a b END",), 4), (("START aa b END", "START cc b"), 7), (("START abcdef END",), 9)],
)
def test_rails_are_drawn_as_soon_as_they_and_the_longest_name_fit(paths, least):
    assert has_rails(*paths, width=least)
    assert not has_rails(*paths, width=least - 1)


def test_rails_are_drawn_up_to_sixty_nodes():
    chain = [f"n{number}" for number in range(61)]
    assert has_rails(" ".join(["START", *chain[:60], "END"]))
    assert not has_rails(" ".join(["START", *chain, "END"]))


def test_rails_are_drawn_up_to_fourteen_beside_each_other():
    beside = [f"START n{number} END" for number in range(15)]
    assert has_rails(*beside[:14])
    assert not has_rails(*beside)
