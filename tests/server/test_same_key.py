"""The same `Idempotency-Key` sent 16 times at once acts once, for every verb. `make prove` does this with many runs."""

from __future__ import annotations

import asyncio

import storms
from storms import VERBS, same_keys

from holdfast.server import table


def test_a_verb_that_is_sent_sixteen_times_at_once_with_one_key_acts_once(tmp_path):
    told = asyncio.run(same_keys(1, tmp_path))
    assert told["violations"] == []
    assert told["requests"] == 17 * len(VERBS)


def test_every_verb_of_a_run_is_sent():
    offered = {
        route.path.rpartition("/")[2]
        for route in table.ROUTES
        if route.method == "POST" and "{id}" in route.path
    }
    assert offered - {"skip", "prune"} == set(VERBS) - {
        "start"
    }  # a skip names a node, and a prune has no key


def test_a_verb_that_acts_twice_is_found(tmp_path, monkeypatch):
    """The storm itself is tested: without the key, each of the sixteen requests counts."""
    post = storms.Operator.post

    async def without_key(self, path, body=None, *, key=None, **options):
        return await post(self, path, body, **options)

    monkeypatch.setattr(storms.Operator, "post", without_key)
    told = asyncio.run(same_keys(1, tmp_path))
    assert {line.partition(" ")[0] for line in told["violations"]} == set(VERBS)
