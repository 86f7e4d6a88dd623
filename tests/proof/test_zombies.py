"""Zombie rounds with real processes: a few of those that `make prove` runs."""

from __future__ import annotations

import pytest
import zombies
from zombies import Pair, Round

WAYS = [
    Round("append.before", 3, "overtaken"),
    Round("append.before", 4, "claimed"),
    Round("append.written", 3, "locked"),
    Round("append.committed", 2, "overtaken"),
    Round("node.exit", 2, "claimed"),
    Round("claim.before", 1, "overtaken"),
]


@pytest.mark.parametrize(("sqlite", "postgres"), [(1, 0), (0, 1)], ids=["sqlite", "postgres"])
def test_a_process_that_comes_back_beyond_its_lease_changes_nothing(sqlite: int, postgres: int) -> None:
    with zombies.grounds(sqlite, postgres) as ((url, folder),):
        pair = Pair(url, folder)
        try:
            for wanted in WAYS:
                pair.play(wanted)
            pair.look()
        finally:
            pair.close()
    result = pair.result
    assert result.problems == []
    assert result.missed == 0
    assert result.rounds.total() == len(WAYS)
    assert result.refused["FenceLost"] >= 2
    assert result.requests >= len(WAYS)
    assert result.ended["completed"] >= 1  # it resumed a run that was over when it came to claim it


def test_a_store_that_judges_no_fences_is_found_out() -> None:
    found = zombies.control(2).problems
    assert sum("a stale write was accepted" in problem for problem in found) == 2


def test_every_point_is_played_in_every_way_that_it_has() -> None:
    points = [("append.before", 1), ("append.written", 1), ("node.exit", 2)]
    played = [
        rounds
        for part in (0, 1)
        for rounds, _ in zip(zombies.rounds_of(points, part, 2), range(3), strict=False)
    ]
    assert {str(wanted) for wanted in played} == {
        "overtaken at append.before 1",
        "claimed at append.before 1",
        "locked at append.written 1",
        "overtaken at node.exit 2",
        "claimed at node.exit 2",
    }
