"""Policies of a graph in code: what they let begin, what they keep, and what is never called twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.rules import Asked, Policy, Verdict, allow, ask, deny
from holdfast.errors import GraphError


class Shop:
    """A graph of two nodes, the policies of which answer what a test says, and a store."""

    def __init__(self, folder: Path) -> None:
        self.store = str(folder / "runs.db")
        self.calls: list[str] = []
        self.asked: list[Asked] = []
        self.says: Callable[[Asked], Any] = lambda asked: allow()

    def judge(self, asked: Asked) -> Verdict:
        self.asked.append(asked)
        verdict: Verdict = self.says(asked)
        return verdict

    def flow(self, *policies: Policy, **options: Any) -> hf.Flow[Any]:
        graph = hf.Graph("shop")

        @graph.node(**options)
        async def charge(state: dict[str, Any]) -> dict[str, Any]:
            self.calls.append("charge")
            return {"paid": state.get("cents", 0)}

        @graph.node
        async def ship(state: dict[str, Any]) -> dict[str, Any]:
            self.calls.append("ship")
            return {"shipped": True}

        graph.chain(hf.START, charge, ship, hf.END)
        return graph.compile(policies=policies)

    def run(self, flow: hf.Flow[Any], **options: Any) -> Any:
        return hf.run(flow, {"cents": 5}, run_id="r", store=self.store, **options)

    def resume(self, flow: hf.Flow[Any], **options: Any) -> Any:
        return hf.resume("r", store=self.store, flows=[flow], **options)

    def kinds(self) -> list[str]:
        return [event.kind for event in hf.events("r", store=self.store)]

    def bodies(self, kind: str) -> list[Any]:
        return [event.body for event in hf.events("r", store=self.store) if event.kind == kind]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_an_allowance_is_recorded_before_the_visit_that_it_lets_begin(shop: Shop) -> None:
    shop.says = lambda asked: allow("small", reads={"cents": asked.input["cents"]})
    run = shop.run(shop.flow(Policy("limit", shop.judge, node="charge")))
    assert run.status == "completed"
    assert shop.kinds()[:3] == ["RunCreated", "PolicyDecided", "NodeStarted"]
    (decided,) = shop.bodies("PolicyDecided")
    assert decided["decisions"] == [
        {"policy": "limit", "verdict": "allow", "reason": "small", "reads": {"cents": 5}}
    ]


def test_a_denied_visit_never_begins_and_only_force_asks_again(shop: Shop) -> None:
    shop.says = lambda asked: deny("no money")
    flow = shop.flow(Policy("limit", shop.judge, node="charge"))
    with pytest.raises(hf.RunFailed, match=r"PolicyDenied: policy 'limit' denied it: no money\."):
        shop.run(flow)
    with pytest.raises(hf.ResumeRefused, match="force"):
        shop.resume(flow)
    assert shop.calls == []
    assert "NodeStarted" not in shop.kinds()
    shop.says = lambda asked: allow()
    assert shop.resume(flow, force=True).status == "completed"
    assert shop.calls == ["charge", "ship"]


def test_a_denial_is_not_skipped_although_the_node_is_safe_to_fail(shop: Shop) -> None:
    shop.says = lambda asked: deny()
    with pytest.raises(hf.RunFailed, match="PolicyDenied"):
        shop.run(shop.flow(Policy("limit", shop.judge, node="charge"), safe_to_fail=True))
    assert shop.calls == []


@pytest.mark.parametrize("stage", ["pre", "post"])
def test_a_question_of_a_policy_waits_and_an_approval_continues(shop: Shop, stage: Any) -> None:
    shop.says = lambda asked: ask("Charge 5 cents?")
    flow = shop.flow(Policy("limit", shop.judge, stage, "charge"))
    run = shop.run(flow)
    assert (run.status, run.questions[0].text) == ("waiting", "Charge 5 cents?")
    assert shop.calls == ([] if stage == "pre" else ["charge"])
    hf.answer("r", "charge", "approve", store=shop.store, by="ann")
    run = shop.resume(flow)
    assert (run.status, run.state) == ("completed", {"cents": 5, "paid": 5, "shipped": True})
    assert shop.calls == ["charge", "ship"]
    assert len(shop.asked) == 1, "an answered policy is not asked again"


@pytest.mark.parametrize("stage", ["pre", "post"])
def test_a_rejected_question_of_a_policy_fails_the_visit(shop: Shop, stage: Any) -> None:
    shop.says = lambda asked: ask("Charge?")
    flow = shop.flow(Policy("limit", shop.judge, stage, "charge"))
    shop.run(flow)
    hf.answer("r", "charge", "reject", store=shop.store)
    with pytest.raises(hf.RunFailed, match="QuestionRefused"):
        shop.resume(flow)
    assert shop.calls == ([] if stage == "pre" else ["charge"])


def test_a_result_that_a_policy_denies_is_kept_and_judged_again_without_a_call(shop: Shop) -> None:
    shop.says = lambda asked: deny(f"paid {asked.output['paid']}")
    flow = shop.flow(Policy("audit", shop.judge, "post", "charge"))
    with pytest.raises(hf.RunFailed, match="denied it: paid 5"):
        shop.run(flow)
    (returned,) = shop.bodies("NodeReturned")
    assert returned["value"] == {"set": {"paid": 5}}
    assert "paid" not in hf.get("r", store=shop.store).state
    shop.says = lambda asked: allow()
    run = shop.resume(flow, force=True)
    assert (run.status, run.state["paid"]) == ("completed", 5)
    assert shop.calls == ["charge", "ship"]


def test_only_a_fresh_retry_calls_a_node_again_whose_result_was_denied(shop: Shop) -> None:
    shop.says = lambda asked: deny()
    flow = shop.flow(Policy("audit", shop.judge, "post", "charge"))
    with pytest.raises(hf.RunFailed):
        shop.run(flow)
    shop.says = lambda asked: allow()
    hf.retry("r", "charge", fresh=True, store=shop.store, flows=[flow])
    assert shop.calls == ["charge", "charge", "ship"]


def test_all_policies_are_asked_and_the_strictest_verdict_counts(shop: Shop) -> None:
    verdicts = {"a": allow(), "b": deny("b says no"), "c": ask("really?")}
    asked: list[str] = []

    def policy(name: str) -> Policy:
        def judge(_: Asked) -> Verdict:
            asked.append(name)
            return verdicts[name]

        return Policy(name, judge, node="ch*")

    flow = shop.flow(policy("a"), policy("b"), policy("c"))
    with pytest.raises(hf.RunFailed, match="b says no"):
        shop.run(flow)
    assert asked == ["a", "b", "c"]
    assert [one["verdict"] for one in shop.bodies("PolicyDecided")[0]["decisions"]] == [
        "allow",
        "deny",
        "ask",
    ]


@pytest.mark.parametrize("wrong", [None, True, "allow"])
@pytest.mark.parametrize("stage", ["pre", "post"])
def test_a_policy_that_returns_no_verdict_denies(shop: Shop, stage: Any, wrong: Any) -> None:
    shop.says = lambda asked: wrong
    flow = shop.flow(Policy("odd", shop.judge, stage, "charge"))
    with pytest.raises(hf.RunFailed, match=r"PolicyError: policy 'odd' returned \w+ .* counts as a denial"):
        shop.run(flow)
    shop.says = lambda asked: allow()
    assert shop.resume(flow).status == "completed"
    assert shop.calls == ["charge", "ship"]


def test_a_policy_that_raises_denies_and_its_message_has_no_data(shop: Shop) -> None:
    def broken(asked: Asked) -> Verdict:
        raise ValueError(f"secret {asked.input['cents']}")

    flow = shop.flow(Policy("odd", broken, node="charge"))
    with pytest.raises(hf.RunFailed, match="policy 'odd' raised ValueError") as failed:
        shop.run(flow)
    assert "secret" not in str(failed.value)
    assert shop.calls == []


def test_the_approval_of_a_node_counts_as_a_policy_that_asks(shop: Shop) -> None:
    flow = shop.flow(Policy("limit", shop.judge, node="charge"), approve="Really charge?")
    run = shop.run(flow)
    assert (run.status, run.questions[0].text) == ("waiting", "Really charge?")
    hf.answer("r", "charge", "approve", store=shop.store)
    assert shop.resume(flow).status == "completed"


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_an_allowance_is_durable_before_the_body_whatever_the_durability(shop: Shop, durability: Any) -> None:
    seen: list[list[str]] = []
    graph = hf.Graph("shop")

    @graph.node
    async def charge(state: dict[str, Any]) -> None:
        seen.append(shop.kinds())

    flow = graph.chain(hf.START, charge, hf.END).compile(policies=[Policy("limit", shop.judge)])
    shop.run(flow, durability=durability)
    assert seen == [["RunCreated", "PolicyDecided", "NodeStarted"]]


def test_a_policy_decides_when_there_is_room_to_begin_and_not_before(shop: Shop) -> None:
    running: list[int] = []
    graph = hf.Graph("shop")
    for name in "abc":

        @graph.node(name=name)
        async def work(state: dict[str, Any]) -> None:
            running.append(len(shop.asked))

        graph.chain(hf.START, name, hf.END)
    shop.run(graph.compile(max_parallel=1, policies=[Policy("limit", shop.judge)]))
    assert running == [1, 2, 3]


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (Policy("p", lambda asked: allow(), node="chargee"), "no such node; did you mean 'charge'"),
        (Policy("p", lambda one, two: allow()), "function of one argument"),  # type: ignore[misc, arg-type]
        (Policy("p", lambda asked: allow(), "later"), "use 'pre' or 'post'"),  # type: ignore[arg-type]
        ("p", "which is not a policy"),
    ],
)
def test_a_wrong_policy_is_a_problem_of_the_graph(shop: Shop, policy: Any, problem: str) -> None:
    with pytest.raises(GraphError, match=problem):
        shop.flow(policy)


def test_an_async_policy_is_a_problem_of_the_graph(shop: Shop) -> None:
    async def judge(asked: Asked) -> Verdict:
        return allow()

    with pytest.raises(GraphError, match="async def"):
        shop.flow(Policy("p", judge))  # type: ignore[arg-type]
