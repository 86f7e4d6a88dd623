"""What verification and policies do to the tasks of a plan: what is called, what is kept, and what reaches the outputs."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
import shop_capabilities

import holdfast as hf
from holdfast import plan


@dataclass
class Charge:
    cents: int


@dataclass
class Charged:
    cents: int


class Bank:
    """A capability that charges what a test says, with the rules of a test."""

    def __init__(self, folder: Path, *, idempotent: bool = True) -> None:
        self.store = str(folder / "runs.db")
        self.charges: list[int] = []
        self.keys: list[str] = []
        self.returns: Callable[[int], Any] = Charged
        self.shop = plan.Capabilities("bank")

        @self.shop.capability("charge@1", idempotent=idempotent)
        async def charge(given: Charge, ctx: hf.Context) -> Charged:
            self.charges.append(given.cents)
            self.keys.append(ctx.idempotency_key())
            charged: Charged = self.returns(given.cents)
            return charged

        @self.shop.capability("note@1")
        async def note(given: dict[str, Any]) -> dict[str, Any]:
            return given

    def plan(
        self, *, edges: tuple[dict[str, Any], ...] = (), more: tuple[str, ...] = (), **task: Any
    ) -> hf.Flow[Any]:
        policies = task.pop("policies", [])
        tasks = [{"id": "charge", "capability": "charge@1", "input": {"cents": 5}, **task}]
        tasks += [{"id": name, "capability": "note@1", "input": {}} for name in more]
        document = {"holdfast": "plan/1", "tasks": tasks, "edges": list(edges), "policies": policies}
        return self.shop.plan(plan.read(document))

    def run(self, flow: hf.Flow[Any], **options: Any) -> Any:
        return hf.run(flow, run_id="r", store=self.store, **options)

    def resume(self, **options: Any) -> Any:
        return hf.resume("r", store=self.store, flows=[self.shop], **options)

    def kinds(self) -> list[str]:
        return [event.kind for event in hf.events("r", store=self.store)]


AMOUNT = [{"id": "amount", "rule": "output.cents == input.cents"}]


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path)


def test_output_verdict_and_completion_are_one_append(bank: Bank) -> None:
    run = bank.run(bank.plan(verification=AMOUNT))
    assert run.status == "completed"
    assert bank.kinds() == ["RunCreated", "NodeStarted", "OutputVerified", "NodeCompleted", "RunCompleted"]


def test_an_output_that_fails_verification_is_kept_and_reaches_nothing(bank: Bank) -> None:
    bank.returns = lambda cents: Charged(cents + 1)
    with pytest.raises(
        hf.RunFailed, match=r"VerificationFailed: the output of 'charge' did not pass 'amount'"
    ):
        bank.run(bank.plan(verification=AMOUNT))
    assert hf.get("r", store=bank.store).state["outputs"] == {}
    assert bank.kinds()[2:] == ["OutputVerified", "NodeReturned", "NodeFailed", "RunFailed"]
    with pytest.raises(hf.RunFailed):
        bank.resume()
    assert bank.charges == [5], "a resume judges what was returned, and does not charge again"


def test_a_fresh_retry_calls_a_capability_whose_output_failed_verification(bank: Bank) -> None:
    bank.returns = lambda cents: Charged(cents + 1)
    with pytest.raises(hf.RunFailed):
        bank.run(bank.plan(verification=AMOUNT))
    bank.returns = Charged
    run = hf.retry("r", "charge", fresh=True, store=bank.store, flows=[bank.shop])
    assert (run.status, bank.charges) == ("completed", [5, 5])


@pytest.mark.parametrize("idempotent", [True, False])
def test_only_an_idempotent_task_whose_retry_names_it_is_called_again(
    tmp_path: Path, idempotent: bool
) -> None:
    bank = Bank(tmp_path, idempotent=idempotent)
    bank.returns = lambda cents: Charged(cents if len(bank.charges) > 2 else 0)
    flow = bank.plan(verification=AMOUNT, retry={"attempts": 5, "backoff": 0, "on": ["VerificationFailed"]})
    if idempotent:
        assert bank.run(flow).status == "completed"
        assert len(bank.charges) == 3
    else:
        with pytest.raises(hf.RunFailed, match="VerificationFailed"):
            bank.run(flow)
        assert len(bank.charges) == 1


def test_a_policy_error_after_the_effect_is_never_retried_by_a_call(bank: Bank) -> None:
    @bank.shop.policy("odd", stage="post", capability="charge@*")
    def odd(asked: plan.Asked) -> plan.Verdict:
        raise RuntimeError("secret")

    flow = bank.plan(retry={"attempts": 5, "backoff": 0, "on": ["partial", "PolicyError"]})
    with pytest.raises(hf.RunFailed, match="policy 'odd' raised RuntimeError") as failed:
        bank.run(flow)
    assert "secret" not in str(failed.value)
    with pytest.raises(hf.RunFailed):
        bank.resume()
    assert bank.charges == [5]


@pytest.mark.parametrize("stage", ["pre", "post"])
@pytest.mark.parametrize(("on_error", "taken"), [(True, False), (["fatal"], False), (["PolicyDenied"], True)])
def test_only_an_error_edge_that_names_a_denial_takes_it(
    bank: Bank, on_error: Any, taken: bool, stage: str
) -> None:
    flow = bank.plan(
        more=("call",),
        edges=({"from": "charge", "to": "call", "on_error": on_error},),
        policies=[
            {
                "id": "none",
                "stage": stage,
                "capability": "charge@1",
                "rule": "input.cents > 100",
                "otherwise": "deny",
            }
        ],
    )
    if taken:
        assert bank.run(flow).status == "completed"
        assert hf.get("r", store=bank.store).nodes["call"].status == "completed"
    else:
        with pytest.raises(hf.RunFailed, match="PolicyDenied: policy 'none' denied it"):
            bank.run(flow)
    assert bank.charges == ([] if stage == "pre" else [5])


def test_an_edge_that_takes_fatal_failures_does_not_take_a_denial_that_another_edge_names(bank: Bank) -> None:
    flow = bank.plan(
        more=("repair", "call"),
        edges=(
            {"from": "charge", "to": "repair", "on_error": ["fatal"]},
            {"from": "charge", "to": "call", "on_error": ["PolicyDenied"]},
        ),
        policies=[{"id": "none", "capability": "charge@1", "rule": "input.cents > 100"}],
    )
    assert bank.run(flow).status == "completed"
    nodes = hf.get("r", store=bank.store).nodes
    assert (nodes["repair"].status, nodes["call"].status) == ("skipped", "completed")


def test_policies_in_python_apply_to_every_plan_and_a_plan_only_adds_to_them(bank: Bank) -> None:
    @bank.shop.policy("always", stage="pre", capability="*")
    def always(asked: plan.Asked) -> plan.Verdict:
        return plan.deny("not today")

    allows = [{"id": "yes", "stage": "pre", "capability": "charge@1", "rule": "true", "otherwise": "deny"}]
    with pytest.raises(hf.RunFailed, match="not today"):
        bank.run(bank.plan(policies=allows))
    assert bank.charges == []


@pytest.mark.parametrize("stage", ["pre", "post"])
@pytest.mark.parametrize(
    "verdict",
    [
        plan.Verdict("denied"),  # type: ignore[arg-type]
        plan.deny(5),  # type: ignore[arg-type]
        plan.ask(None),  # type: ignore[arg-type]
        plan.ask("half a character: \ud800"),
        plan.allow(reads={"it": object()}),
        plan.allow(reads={"it": {1, 2}}),
        plan.allow(reads={1: 2}),  # type: ignore[dict-item]
        plan.Verdict("allow", "", [1]),  # type: ignore[arg-type]
    ],
)
def test_a_verdict_that_cannot_be_recorded_counts_as_a_denial(
    bank: Bank, stage: Any, verdict: plan.Verdict
) -> None:
    @bank.shop.policy("odd", stage=stage, capability="charge@*")
    def odd(asked: plan.Asked) -> plan.Verdict:
        return verdict

    with pytest.raises(
        hf.RunFailed, match="PolicyError: policy 'odd' returned a verdict about 'charge' that"
    ):
        bank.run(bank.plan())
    with pytest.raises(hf.RunFailed, match="PolicyError"):
        bank.resume()
    assert bank.charges == ([] if stage == "pre" else [5]), "what was returned is kept, and judged again"


def test_a_reason_of_a_verifier_that_cannot_be_recorded_keeps_the_output(bank: Bank) -> None:
    @bank.shop.verifier("odd")
    def odd(asked: plan.Asked) -> bool | str:
        return "half a character: \ud800"

    with pytest.raises(hf.RunFailed, match="PolicyError: verifier 'odd' cannot judge 'charge'"):
        bank.run(bank.plan())
    with pytest.raises(hf.RunFailed, match="PolicyError"):
        bank.resume()
    assert bank.charges == [5]


@pytest.mark.parametrize("stage", ["pre", "post"])
def test_a_rule_that_changes_what_it_is_asked_about_changes_nothing_in_the_run(
    bank: Bank, stage: Any
) -> None:
    @bank.shop.policy("odd", stage=stage)
    def odd(asked: plan.Asked) -> plan.Verdict:
        asked.context["facts"]["cents"] = 9
        asked.input.clear()
        return plan.allow()

    @bank.shop.verifier("even", capability="charge@*")
    def even(asked: plan.Asked) -> bool:
        asked.output["cents"] = asked.context["facts"]["cents"] = 8
        return True

    document = {
        "holdfast": "plan/1",
        "context": {"facts": {"cents": 5}},
        "tasks": [
            {"id": "charge", "capability": "charge@1", "input": {"cents": {"$ref": "context.facts.cents"}}},
            {"id": "note", "capability": "note@1", "input": {"$ref": "context.facts"}},
        ],
        "edges": [{"from": "charge", "to": "note", "guard": "context.facts.cents == outputs.charge.cents"}],
    }
    run = bank.run(bank.shop.plan(document))
    assert run.state.context == {"facts": {"cents": 5}}
    assert run.state.outputs == {"charge": {"cents": 5}, "note": {"cents": 5}}


def test_a_question_after_the_effect_waits_without_a_body_and_continues_in_another_process(
    bank: Bank, tmp_path: Path
) -> None:
    asks = [
        {
            "id": "big",
            "stage": "post",
            "capability": "charge@1",
            "rule": "output.cents < 5",
            "otherwise": "ask",
            "reason": "Keep it?",
        }
    ]
    run = bank.run(bank.plan(policies=asks))
    assert (run.status, run.questions[0].text) == ("waiting", "Keep it?")
    hf.answer("r", "charge", "approve", store=bank.store, by="agent:clerk")
    other = Bank(tmp_path)
    run = other.resume()
    assert (run.status, run.state.outputs) == ("completed", {"charge": {"cents": 5}})
    assert (bank.charges, other.charges) == ([5], [])


def test_files_of_a_task_are_recorded_with_its_completion_after_a_question(
    bank: Bank, tmp_path: Path
) -> None:
    @bank.shop.capability("print@1")
    async def print_label(given: dict[str, Any], ctx: hf.Context) -> None:
        ctx.artifacts.write("label.txt", "4711")

    @bank.shop.policy("look", stage="post", capability="print@1")
    def look(asked: plan.Asked) -> plan.Verdict:
        return plan.ask("Is it readable?")

    document = {"holdfast": "plan/1", "tasks": [{"id": "print", "capability": "print@1"}]}
    folder = str(tmp_path / "runs")
    assert bank.run(bank.shop.plan(document), run_base=folder).status == "waiting"
    hf.answer("r", "print", "approve", store=bank.store)
    assert bank.resume(run_base=folder).status == "completed"
    (completed,) = (event for event in hf.events("r", store=bank.store) if event.kind == "NodeCompleted")
    assert completed.body["artifacts"]["label.txt"]["bytes"] == 4


def test_an_output_that_does_not_fit_its_annotation_fails_the_task(bank: Bank) -> None:
    bank.returns = lambda cents: {"cents": "many"}
    with pytest.raises(hf.RunFailed, match=r"node 'charge': output"):
        bank.run(bank.plan())
    assert hf.get("r", store=bank.store).state["outputs"] == {}


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Cat:
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    age: int


@pytest.mark.parametrize("given", [Colour, Literal["red"], Cat, Dog])
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_value_that_does_not_fit_a_declared_type_is_not_quoted(bank: Bank, given: Any, side: str) -> None:
    def paint(given: Any) -> Any:
        return given

    paint.__annotations__ = {"given": Any, "return": Any} | {
        {"input": "given", "output": "return"}[side]: given
    }
    bank.shop.capability("paint@1")(paint)
    secret = "s-4711"
    document = {
        "holdfast": "plan/1",
        "context": {"plain": secret, "deep": {"kind": secret, "age": secret}},
        "tasks": [{"id": "a", "capability": "paint@1",
                   "input": {"$ref": "context.deep" if given in (Cat, Dog) else "context.plain"}}],
    }  # fmt: skip
    with pytest.raises(hf.RunFailed, match=f"node 'a': {side}") as failed:
        bank.run(bank.shop.plan(document))
    assert secret not in str(failed.value)
    recorded = [
        event.body["failure"] for event in hf.events("r", store=bank.store) if "failure" in event.body
    ]
    assert recorded
    assert secret not in str(recorded)


def test_the_key_of_a_task_is_the_one_that_its_plan_chooses(bank: Bank) -> None:
    flow = bank.plan(idempotency_key="'charge-' + string(input.cents)")
    bank.run(flow)
    assert bank.keys == ["charge-5"]


def test_a_capability_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    far, store = shop_capabilities.far, str(tmp_path / "runs.db")
    document = {
        "holdfast": "plan/1",
        "context": {"facts": {"n": 7}},
        "tasks": [
            {"id": "square", "capability": "square@1", "input": {"value": {"$ref": "context.facts.n"}},
             "verification": [{"id": "right", "rule": "output.value == input.value * input.value"}]},
            {"id": "key", "capability": "key@1", "input": {}, "idempotency_key": "'k-' + string(context.facts.n)"},
        ],
    }  # fmt: skip
    run = hf.run(far.plan(plan.read(document)), run_id="r", store=store)
    assert run.state.outputs["square"]["value"] == 49
    assert run.state.outputs["square"]["process"] != os.getpid()
    assert run.state.outputs["key"] == "k-7"


def test_an_output_from_another_process_is_checked_against_its_annotation(tmp_path: Path) -> None:
    document = {"holdfast": "plan/1", "tasks": [{"id": "w", "capability": "wrong@1", "input": {"value": 1}}]}
    flow = shop_capabilities.far.plan(plan.read(document))
    with pytest.raises(hf.RunFailed, match=r"node 'w': output"):
        hf.run(flow, run_id="r", store=str(tmp_path / "runs.db"))


def test_a_result_that_is_asked_about_again_has_a_question_of_its_own(bank: Bank) -> None:
    asks = [{"id": "big", "stage": "post", "capability": "charge@1", "rule": "false", "otherwise": "ask"}]
    keys = [bank.run(bank.plan(policies=asks)).questions[0].key]
    for _ in range(2):
        hf.answer("r", keys[-1], "reject", store=bank.store)
        with pytest.raises(hf.RunFailed):
            bank.resume()
        keys.append(bank.resume(force=True).questions[0].key)
        with pytest.raises(hf.AnswerRefused):
            hf.answer("r", keys[-2], "approve", store=bank.store)
    assert len(set(keys)) == 3
    assert bank.charges == [5]


def test_a_graph_that_calls_a_plan_as_a_flow_says_what_to_do_instead(bank: Bank) -> None:
    graph = hf.Graph("caller")
    graph.call("sub", bank.plan(), input=lambda state: state)
    with pytest.raises(
        hf.GraphError, match=r"calls a plan, which brings its own input; .* await ctx\.call\(plan\)"
    ):
        graph.chain(hf.START, "sub", hf.END).compile()
