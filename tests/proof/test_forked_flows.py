"""A small form of what `make prove` does with 500 flows: see `forked_flows`."""

from __future__ import annotations

import forked_flows
import pytest

from holdfast.core import run_state
from holdfast.reading import forks


def test_no_fork_of_12_random_flows_repeats_an_effect_unasked_wherever_it_dies() -> None:
    told = forked_flows.main(12)
    assert told["told"] == []
    assert (
        min(told[what] for what in ("asked", "decided", "skipped", "forks_of_forks", "compacted", "rewound"))
        > 0
    ), told
    assert told["deaths"] > 200


def test_a_fork_that_forgets_what_had_begun_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "begun_visits", lambda *args: [])
    assert forked_flows.main(5)["violations"]


def test_a_fork_with_keys_of_its_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state.RunState, "key_root", lambda self, *visit: self.run_id)
    assert forked_flows.main(5)["violations"]
