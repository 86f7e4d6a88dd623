"""`holdfast plan`: check, run, draw and show plans; and what the other commands do with capabilities and with runs of plans."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli, caller, furnish
from holdfast.cli.exits import Exit

SHOP = """
from dataclasses import dataclass

from holdfast import plan

shop = plan.Capabilities("shop")


@dataclass
class Charge:
    order: str
    cents: int


@dataclass
class Charged:
    id: str
    cents: int


@shop.capability("reserve@1")
def reserve(given: dict) -> dict:
    return {"id": "res-" + given["order"]}


@shop.capability("charge@2", idempotent=False)
def charge(given: Charge) -> Charged:
    with open("charged.txt", "a") as file:
        print(given.order, file=file)
    if given.cents == 13:
        raise ValueError("the bank is closed")
    return Charged("c1", 1 if given.cents == 666 else given.cents)


@shop.capability("ship@1")
def ship(given: dict) -> dict:
    return {"tracking": "T" + given["order"]}


@shop.capability("call@1")
def call(given: dict) -> None:
    return None


@shop.policy("large", capability="charge@*")
def large(asked: plan.Asked) -> plan.Verdict:
    return plan.allow() if asked.input["cents"] < 10_000 else plan.ask(f"Charge {asked.input['cents']} cents?")
"""

ORDER: dict[str, Any] = {
    "holdfast": "plan/1",
    "title": "Deliver order 4711",
    "rationale": "cheapest carrier first",
    "goal": {"text": "the customer has the goods", "acceptance": ["shipped or refunded"]},
    "context": {"facts": {"order": "4711", "cents": 4200, "country": "DE", "hour": 19}},
    "policy": {"countries": ["DE", "FR"]},
    "tasks": [
        {"id": "reserve", "capability": "reserve@1", "input": {"order": {"$ref": "context.facts.order"}}},
        {
            "id": "charge",
            "capability": "charge@2",
            "input": {"order": {"$ref": "context.facts.order"}, "cents": {"$ref": "context.facts.cents"}},
            "verification": [{"id": "amount", "rule": "output.cents == input.cents"}],
        },
        {"id": "ship", "capability": "ship@1", "input": {"order": {"$ref": "context.facts.order"}}},
        {"id": "pickup", "capability": "call@1", "input": {"order": {"$ref": "context.facts.order"}}},
        {"id": "call", "capability": "call@1", "input": {"why": {"$ref": "error.message"}}},
    ],
    "edges": [
        {"from": "reserve", "to": "charge"},
        {"from": "charge", "to": "ship", "guard": "context.facts.country in policy.countries"},
        {"from": "charge", "to": "pickup", "guard": "!(context.facts.country in policy.countries)"},
        {"from": "charge", "to": "call", "on_error": ["VerificationFailed"]},
    ],
    "policies": [
        {
            "id": "nights",
            "capability": "ship@1",
            "rule": "context.facts.hour < 20",
            "otherwise": "deny",
            "reason": "no shipping at night",
        }
    ],
}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    furnish(tmp_path, monkeypatch, shop=SHOP)
    write()
    return caller(capsys)


def write(name: str = "order.json", *, facts: dict[str, Any] | None = None, **fields: Any) -> None:
    """Write the plan with these facts and fields."""
    context = {"facts": {**ORDER["context"]["facts"], **(facts or {})}}
    Path(name).write_text(json.dumps({**ORDER, "context": context, **fields}))


# --- check -------------------------------------------------------------------------------------------


def test_a_plan_without_problems_is_told_so(cli: Cli) -> None:
    ended = cli("plan", "check", "order.json", "shop.py")
    assert (ended.code, ended.out) == (Exit.OK, "✓ order.json: 5 tasks, 4 edges, no problems\n")


def test_every_problem_of_a_plan_is_printed_with_its_path(cli: Cli) -> None:
    tasks = [*ORDER["tasks"], {"id": "pack", "capability": "pack@1"}]
    write(tasks=tasks, edges=[*ORDER["edges"], {"from": "ship", "to": "nowhere", "guard": "1 + 1"}])
    ended = cli("plan", "check", "order.json", "shop.py")
    assert ended.code == Exit.USAGE
    first, *problems = ended.out.splitlines()
    assert first.startswith("✗ order.json: ")
    assert any(line.startswith("  tasks[5].capability: ") and "pack@1" in line for line in problems)
    assert any(line.startswith("  edges[4].to: ") for line in problems)
    found = cli("plan", "check", "order.json", "shop.py", "--json")
    assert found.code == Exit.USAGE
    assert found.json["ok"] is False
    assert {"tasks[5].capability", "edges[4].to"} <= {one["path"] for one in found.json["problems"]}


def test_a_plan_is_read_from_stdin_and_from_yaml(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(ORDER).encode())))
    assert "✓ the plan from stdin: 5 tasks" in cli("plan", "check", "-", "shop.py").out
    Path("short.yaml").write_text(
        "holdfast: plan/1\ntasks:\n  - {id: call, capability: call@1, input: {why: bored}}\n"
    )
    assert "✓ short.yaml: 1 task, 0 edges" in cli("plan", "check", "short.yaml", "shop.py").out


def test_the_plan_and_the_file_may_be_given_in_either_order(cli: Cli) -> None:
    assert cli("plan", "check", "shop.py", "order.json").code == Exit.OK


def test_capabilities_come_from_the_project_if_no_file_is_named(cli: Cli) -> None:
    refused = cli("plan", "check", "order.json")
    assert refused.code == Exit.USAGE
    assert "Name it: `holdfast plan check order.json FILE.py`" in refused.err
    Path("pyproject.toml").write_text('[tool.holdfast]\nflows = ["shop.py"]\n')
    assert cli("plan", "check", "order.json").code == Exit.OK
    assert cli("plan", "run", "order.json", "--run-id", "r1").code == Exit.OK
    assert cli("resume", "r1").code == Exit.OK


def test_one_of_several_capabilities_is_chosen_by_name(cli: Cli) -> None:
    Path("shop.py").write_text(SHOP + '\nbank = plan.Capabilities("bank")\n')
    ended = cli("plan", "check", "order.json", "shop.py")
    assert "shop.py defines several capabilities: 'shop', 'bank'. Choose one, as in shop.py:shop" in ended.err
    assert cli("plan", "check", "order.json", "shop.py:shop").code == Exit.OK
    ended = cli("plan", "check", "order.json", "shop.py:shp")
    assert "shop.py has no capabilities 'shp'; it has 'shop', 'bank'; did you mean 'shop'?" in ended.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("order.json", "order.json"), "its name must end in .py"),
        (("nowhere.json", "shop.py"), "the file nowhere.json cannot be read (No such file or directory)"),
        (("shop.py",), "shop.py is a Python file, and not a plan"),
        (("order.json", "empty.py"), "empty.py defines no capabilities"),
    ],
)
def test_a_wrong_file_is_named(cli: Cli, words: tuple[str, ...], told: str) -> None:
    Path("empty.py").write_text("")
    ended = cli("plan", "check", *words)
    assert ended.code == Exit.USAGE
    assert told in ended.out + ended.err


# --- run ---------------------------------------------------------------------------------------------


def test_a_plan_is_run_and_its_outputs_are_printed(cli: Cli) -> None:
    ended = cli("plan", "run", "order.json", "shop.py", "--run-id", "r1", "--label", "shop=west")
    assert ended.code == Exit.OK, ended.err
    first, *rest = ended.out.splitlines()
    assert first.startswith("completed  r1  3 attempts at 3 nodes, 2 skipped")
    assert json.loads("\n".join(rest))["ship"] == {"tracking": "T4711"}
    again = cli("plan", "run", "order.json", "shop.py", "--run-id", "r1")
    assert "the run was completed already, so nothing was executed" in again.out
    assert Path("charged.txt").read_text() == "4711\n"


def test_nothing_of_a_plan_with_a_problem_is_recorded(cli: Cli) -> None:
    write(edges=[{"from": "reserve", "to": "nowhere"}])
    ended = cli("plan", "run", "order.json", "shop.py", "--run-id", "r1")
    assert ended.code == Exit.USAGE
    assert "error: order.json has " in ended.err
    assert "edges[0].to: " in ended.err
    as_json = cli("plan", "run", "order.json", "shop.py", "--run-id", "r1", "--json")
    assert "edges[0].to" in {one["path"] for one in json.loads(as_json.err)["error"]["problems"]}
    assert not Path(".holdfast").exists()


def test_the_same_id_with_another_plan_is_refused(cli: Cli) -> None:
    assert cli("plan", "run", "order.json", "shop.py", "--run-id", "r1").code == Exit.OK
    write(facts={"cents": 5})
    ended = cli("plan", "run", "order.json", "shop.py", "--run-id", "r1")
    assert ended.code == Exit.REFUSED
    assert "r1" in ended.err


def test_a_plan_is_recorded_for_a_worker(cli: Cli) -> None:
    ended = cli("plan", "run", "order.json", "shop.py", "--run-id", "r1", "--no-execute")
    assert ended.code == Exit.OK
    assert "execute it with a worker: holdfast worker shop.py" in ended.out
    assert not Path("charged.txt").exists()
    worked = cli("worker", "shop.py", "--until-idle")
    assert "completed  r1  shop" in worked.out
    refused = cli("plan", "run", "order.json", "shop.py", "--no-execute", "--grace", "3")
    assert "--grace cannot be combined with --no-execute" in refused.err


# --- a file with capabilities, where a flow is expected ----------------------------------------------


def test_commands_that_need_a_flow_say_how_to_use_capabilities(cli: Cli) -> None:
    for words, told in {
        ("run", "shop.py"): "`holdfast plan run PLAN shop.py`",
        ("start", "shop.py"): "`holdfast plan run PLAN shop.py --no-execute`",
        ("graph", "shop.py:shop"): "`holdfast plan draw PLAN shop.py`",
    }.items():
        ended = cli(*words)
        assert ended.code == Exit.USAGE
        assert "shop.py defines no flow, but capabilities, which plans call" in ended.err
        assert told in ended.err


def test_a_plan_that_a_file_compiles_is_a_flow_of_that_file(cli: Cli) -> None:
    Path("shop.py").write_text(SHOP + '\norder = shop.plan(plan.read("order.json"))\n')
    assert cli("run", "shop.py", "--run-id", "r1").code == Exit.OK
    assert cli("run", "shop.py:order", "--run-id", "r1").code == Exit.OK
    assert "reserve" in cli("graph", "shop.py").out
    assert cli("worker", "shop.py", "--until-idle").out.startswith("worker  shop  ")
    assert cli("resume", "r1", "shop.py").code == Exit.OK


def test_a_group_of_commands_lists_its_commands(cli: Cli) -> None:
    listed = cli("plan", "--help")
    assert listed.code == Exit.OK
    assert "holdfast plan schema" in listed.out
    assert "'plan chek' is not a command; did you mean 'check'?" in cli("plan", "chek").err
    assert "'plan' needs a second word" in cli("plan").err


def test_the_schema_names_the_capabilities(cli: Cli) -> None:
    ended = cli("plan", "schema", "shop.py")
    assert ended.code == Exit.OK
    assert "Task:charge@2" in ended.json["$defs"]


# --- show --------------------------------------------------------------------------------------------


def test_the_plan_of_a_run_says_why_each_task_ran_or_not(cli: Cli) -> None:
    cli("plan", "run", "order.json", "shop.py", "--run-id", "r1")
    ended = cli("plan", "show", "r1")
    assert ended.code == Exit.OK
    reads = '(context.facts.country = "DE", policy.countries = ["DE", "FR"])'
    for told in [
        "Deliver order 4711  (r1, shop)",
        "goal: the customer has the goods (accepted if: shipped or refunded)",
        "rationale: cheapest carrier first",
        "    after reserve",
        "    policy large allows it",
        "    check amount passed; output.cents = 4200, input.cents = 4200",
        f"    after charge: guard `context.facts.country in policy.countries` is true {reads}",
        "    policy nights allows it; context.facts.hour = 19",
        "» pickup  call@1  skipped",
        f"    not after charge: guard `!(context.facts.country in policy.countries)` is false {reads}",
        "    not after charge, which did not fail",
    ]:
        assert told in ended.out
    facts = {one["node"]: one for one in cli("plan", "show", "r1", "--json").json["nodes"]}
    assert facts["pickup"]["edges"][0]["passage"] == "not taken"
    assert facts["pickup"]["edges"][0]["verdict"] is False
    assert facts["ship"]["policies"][0]["decisions"][0]["policy"] == "nights"


def test_a_failure_that_an_error_edge_takes_is_not_called_ignored(cli: Cli) -> None:
    write(facts={"cents": 666})
    ended = cli("plan", "run", "order.json", "shop.py", "--run-id", "r1")
    assert ended.code == Exit.OK
    assert "warning: node charge failed, and an error edge takes the failure: VerificationFailed" in ended.err
    assert "node charge failed, and an error edge takes the failure" in cli("show", "r1").out
    assert "    not after charge, which failed" in cli("plan", "show", "r1").out


def test_a_task_that_a_person_skipped_is_not_said_to_have_failed(cli: Cli) -> None:
    write(facts={"cents": 13})
    assert cli("plan", "run", "order.json", "shop.py", "--run-id", "r1").code == Exit.FAILED
    assert cli("skip", "r1", "charge", "shop.py", "--update", '{"id": "c1", "cents": 13}').code == Exit.OK
    assert "    not after charge, which was skipped" in cli("plan", "show", "r1").out


def test_a_refusal_that_an_error_edge_takes_does_not_end_the_run(cli: Cli) -> None:
    edges = [*ORDER["edges"][:3], {"from": "charge", "to": "call", "on_error": ["QuestionRefused"]}]
    write(facts={"cents": 20_000}, edges=edges)
    cli("plan", "run", "order.json", "shop.py", "--run-id", "r1")
    cli("answer", "r1", "charge", "reject")
    assert "resume it: an error edge takes the refusal of charge, which never ran" in cli("show", "r1").out
    assert cli("resume", "r1", "shop.py").code == Exit.OK


def test_only_the_run_of_a_plan_has_a_plan(cli: Cli) -> None:
    flow = "import holdfast as hf\ngraph = hf.Graph('plain')\n"
    flow += "@graph.node\ndef one(state): ...\nflow = graph.chain(hf.START, one, hf.END).compile()\n"
    Path("plain.py").write_text(flow)
    cli("run", "plain.py", "--run-id", "r1")
    ended = cli("plan", "show", "r1")
    assert ended.code == Exit.USAGE
    assert (
        "follows the flow 'plain', a graph in code, and not a plan. Show it with `holdfast show r1`"
        in ended.err
    )
