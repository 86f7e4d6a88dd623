"""Budgets, scopes and schedules over HTTP, and a run as it was at an event."""

from __future__ import annotations

import pytest
from verb_calls import operate, reach

import holdfast as hf


def test_a_run_is_started_and_resumed_within_limits():
    async def test(engine, operator):
        body = {
            "flow": "order",
            "run_id": "r1",
            "budget": {"usd": 5, "tokens": 100},
            "scope": [next(iter(engine.flows["order"].nodes))],
            "schedule": "layered",
        }
        made = await operator.post("runs", body)
        assert made.status == 201, made.body
        assert made.json["budget"] == {"usd": 5.0, "tokens": 100}
        assert (made.json["schedule"], made.json["scope"]) == ("layered", body["scope"])
        await reach(engine, "r1", "paused")
        shown = (await operator.get("/api/v1/runs/r1")).json
        assert "everything in its scope is done" in shown["reason"]
        assert shown["remedies"][0]["arguments"]["scope"]
        asked = await operator.post("runs/r1/resume", {"scope": ["*"], "budget": {"usd": 9}})
        assert asked.status == 202, asked.body
        await reach(engine, "r1", "completed")
        assert (await operator.get("/api/v1/runs/r1")).json["budget_left"]["usd"] == 9.0

    operate(test, works=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget": {}},
        {"budget": {"usd": 0}},
        {"budget": {"euro": 5}},
        {"budget": {"tokens": 1.5}},
        {"budget": 5},
        {"scope": []},
        {"scope": ["nowhere"]},
        {"scope": "a"},
        {"schedule": "layers"},
    ],
    ids=str,
)
def test_wrong_limits_are_refused_and_nothing_is_recorded(wrong):
    async def test(engine, operator):
        made = await operator.post("runs", {"flow": "order", "run_id": "r1", **wrong})
        assert made.status in (400, 422), made.body
        with pytest.raises(hf.RunNotFound):
            engine.store.run("r1")

    operate(test)


def test_a_run_is_answered_as_it_was_at_an_event():
    async def test(engine, operator):
        await operator.post("runs", {"flow": "order", "run_id": "r1"})
        await reach(engine, "r1", "completed")
        then = await operator.get("/api/v1/runs/r1?at=1")
        assert (then.status, then.json["seq"], then.json["status"], then.json["nodes"]) == (
            200,
            1,
            "pending",
            {},
        )
        assert then.json["reason"].startswith("the run as it was at event 1 of")
        assert (await operator.get("/api/v1/runs/r1?at=999")).status == 404

    operate(test, works=True)
