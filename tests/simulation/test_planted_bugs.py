"""The standard simulation finds every planted bug. A bug that it does not find is a gap in the harness."""

import planted
import pytest
from figures import SHARP, seeds_to_find

LEAST = 25


def test_there_are_enough_bugs() -> None:
    assert len(planted.BUGS) >= LEAST


def test_every_bug_can_be_planted_into_the_source_of_today() -> None:
    for plant in planted.BUGS.values():
        with plant():
            pass


@pytest.mark.rotating
@pytest.mark.parametrize("name", planted.BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    found = planted.found(name, seeds_to_find())
    assert found is not None, f"{name} survives: close the hole"


def test_without_a_bug_the_same_seeds_find_nothing() -> None:
    planted.BUGS["nothing"] = planted.patched
    try:
        assert planted.found("nothing", SHARP) is None
    finally:
        del planted.BUGS["nothing"]
