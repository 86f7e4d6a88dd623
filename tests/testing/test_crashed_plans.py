"""No crash changes what a plan decides: which edges it takes, what it skips, what policies and verification say, what it costs.

Each plan is crashed right before and right after each of its durable writes. `crash_everywhere` compares the decisions in the
ledger of every resumed run with those of the undisturbed one.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace
from proved_plans import PLANS, Proved, document, flow, works

import holdfast as hf
from holdfast import plan
from holdfast.reading.ledger import decisions, read_ledger
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing import Receiver, crash_everywhere, rehearse, simulate
from holdfast.testing.clock import ManualClock
from holdfast.testing.plan_sketches import draw_plan


@pytest.mark.rotating
@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("name", PLANS)
def test_no_crash_changes_what_a_plan_decides(name: str, store: str) -> None:
    proved = PLANS[name]
    report = crash_everywhere(
        flow(proved.document()), answers=proved.answers, ends=proved.ends, store=store, **proved.limits
    )
    assert report.ok, report
    assert report.crashes == 2 * len(report.writes) >= 8


@pytest.mark.rotating
@pytest.mark.parametrize("schedule", ["eager", "layered"])
@pytest.mark.parametrize("durability", ["async", "exit"])
@pytest.mark.parametrize("name", PLANS)
def test_no_crash_changes_what_a_plan_decides_whatever_its_durability(
    name: str, durability: str, schedule: str
) -> None:
    proved = PLANS[name]
    limits = {**proved.limits, "schedule": schedule}
    made = flow(proved.document())
    report = crash_everywhere(made, answers=proved.answers, ends=proved.ends, durability=durability, **limits)
    assert report.ok, report


def test_a_payment_that_a_policy_asked_about_happens_once_wherever_the_process_dies() -> None:
    bank, proved = Receiver("bank"), PLANS["asked"]
    report = crash_everywhere(flow(proved.document()), answers=proved.answers, resources={"bank": bank})
    assert report.ok, report
    assert (
        len(report.parked) == 2
    )  # the process died in the payment, which is not idempotent: the operator decides


@pytest.mark.rotating
@pytest.mark.parametrize("seed", range(8))
def test_no_crash_changes_what_a_random_plan_comes_to(seed: int) -> None:
    luck = random.Random(seed)
    drawn = draw_plan(luck, least=5, most=10, handled=True)
    # What passes its verification by the number of its attempt may pass at once after a crash.
    nodes = (replace(node, ends="returns") if node.ends == "later" else node for node in drawn.nodes)
    sketch = replace(drawn, nodes=tuple(nodes))
    answers = {node.name: "approve" for node in sketch.nodes if "ask" in (node.pre, node.post)}
    answers |= {node.name: ["approve", "approve"] for node in sketch.nodes if node.pre == node.post == "ask"}
    report = crash_everywhere(
        sketch.flow(),
        answers=answers,
        schedule=luck.choice(("eager", "layered")),
        limit=40,
    )
    assert report.ok, report


def test_a_decision_that_another_process_would_make_differently_is_found_and_none_is_made_twice() -> None:
    fickle, process = plan.Capabilities("fickle"), [1]

    @fickle.capability("go@1")
    async def go(given: dict[str, Any]) -> dict[str, Any]:
        return {}

    @fickle.policy("by process")
    def by_process(asked: plan.Asked) -> plan.Verdict:
        return plan.allow(reads={"process": process[0]})

    made = fickle.plan(document({"a": "go@1", "b": "go@1"}, [("a", "b")]))
    report = crash_everywhere(
        made, reset=lambda: process.__setitem__(0, 1), forget=lambda: process.__setitem__(0, 2)
    )
    assert {finding.kind for finding in report.findings} == {"decision"}, report
    decided = max(write.number for write in report.writes if "PolicyDecided b" in write.added)
    late = [
        crash
        for finding in report.findings
        for crash in finding.crashes
        if crash.write.number > decided or (crash.write.number, crash.moment) == (decided, "after")
    ]
    assert not late, report


# --- rehearsals and simulations ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_rehearsed_with_the_input_that_it_brings(name: str) -> None:
    proved, clock = PLANS[name], ManualClock(auto=True)
    store = MemoryStore(clock=clock.now)
    run = rehearse(flow(proved.document()), answers=proved.answers, store=store, clock=clock, **proved.limits)
    assert run.status == proved.ends
    assert decisions(read_ledger(store, run.id))


def test_an_input_for_a_plan_is_refused() -> None:
    with pytest.raises(hf.SettingError, match="brings its own input"):
        rehearse(flow(PLANS["guarded"].document()), {"n": 1})


SIMULATED = [name for name in PLANS if PLANS[name].ends == "completed" and name != "verified"]


@pytest.mark.parametrize("name", SIMULATED)
def test_a_plan_is_simulated_on_workers_that_crash(name: str) -> None:
    proved: Proved = PLANS[name]
    report = simulate(flow(proved.document()), seeds=range(12), answers=proved.answers, **proved.limits)
    assert not report.violations, report


def test_an_engine_needs_only_the_capabilities_of_a_plan_that_it_has_never_seen() -> None:
    proved, clock = PLANS["asked"], ManualClock(auto=True)
    store = MemoryStore(clock=clock.now)
    waiting = rehearse(flow(proved.document()), store=store, clock=clock)
    assert waiting.status == "waiting"
    works._made.clear()
    ended = rehearse(flow(proved.document()), answers=proved.answers, store=store, clock=clock)
    assert ended.status == "completed"
