"""`holdfast plan`: check, run, draw and show plans; and what the other commands do with capabilities and with runs of plans."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from command_line import Cli, caller, furnish
from holdfast.cli.exits import Exit
from holdfast.storage.rows import pack, unpack

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


def test_a_plan_with_two_equal_keys_is_refused_with_both_lines(cli: Cli) -> None:
    Path("twice.yaml").write_text(
        "holdfast: plan/1\npolicies: [{id: limit, rule: 'false'}]\ntasks:\n- {id: a, capability: ship@1}\npolicies: []\n"
    )
    for command in (("check",), ("run",)):
        refused = cli("plan", *command, "twice.yaml", "shop.py")
        assert refused.code == Exit.USAGE
        told = "policies: the object has this key twice, on lines 2 and 5; remove one of the two"
        assert told in refused.out + refused.err


def test_a_plan_that_is_nested_too_deeply_is_refused(cli: Cli) -> None:
    Path("deep.yaml").write_text("a: " + "[" * 50_000)
    refused = cli("plan", "check", "deep.yaml", "shop.py")
    assert refused.code == Exit.USAGE
    assert "nested deeper than 100 levels" in refused.out + refused.err


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


def test_the_picture_and_the_log_of_a_run_have_its_guards_and_skips(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    cli("plan", "run", "order.json", "shop.py", "--run-id", "r1")
    shown = cli("show", "r1").out
    assert "◇ if context.facts.country in policy.countries: taken" in shown
    assert "◇ if !(context.facts.country in policy.countries): not taken" in shown
    assert "↯ on VerificationFailed: not taken" in shown
    assert "holdfast plan show r1" in shown
    drawn = cli("plan", "draw", "order.json", "shop.py")
    assert drawn.out.startswith("Deliver order 4711\n")
    assert "↯ on VerificationFailed\n" in drawn.out
    assert "✓ context.facts.country" in cli("graph", "r1", "--svg").out
    assert "on VerificationFailed" in cli("plan", "draw", "order.json", "shop.py", "--mermaid").out
    events = cli("events", "r1").out
    assert "GuardEvaluated" in events
    assert "NodesSkipped" in events


# --- operating a run of a plan -----------------------------------------------------------------------


def fail(cli: Cli, run_id: str = "r1") -> None:
    """Leave a run whose charge has returned an output that does not pass its verification."""
    tasks = [task for task in ORDER["tasks"] if task["id"] != "call"]
    edges = [edge for edge in ORDER["edges"] if edge["to"] != "call"]
    write("wrong.json", facts={"cents": 666}, tasks=tasks, edges=edges)
    assert cli("plan", "run", "wrong.json", "shop.py", "--run-id", run_id).code == Exit.FAILED


def test_an_output_that_was_not_verified_is_judged_again_and_the_task_is_not_called(cli: Cli) -> None:
    fail(cli)
    shown = cli("show", "r1").out
    assert "it judges what charge returned, and does not call it" in shown
    assert "AGAIN" not in shown
    assert "its result is kept and not used" in cli("plan", "show", "r1").out
    assert cli("retry", "r1", "charge", "shop.py").code == Exit.FAILED
    assert Path("charged.txt").read_text() == "4711\n"
    assert cli("retry", "r1", "charge", "shop.py", "--fresh").code == Exit.FAILED
    assert Path("charged.txt").read_text() == "4711\n4711\n"


def test_the_update_of_a_skipped_task_is_its_output(cli: Cli) -> None:
    fail(cli)
    for wrong in ('{"id": 5, "cents": 1}', '{"cents": 1}', '"c9"'):
        refused = cli("skip", "r1", "charge", "shop.py", "--update", wrong)
        assert refused.code == Exit.USAGE
        assert "--update does not fit: node 'charge': output" in refused.err
        assert (
            "Give the whole output of the task, as its capability returns it; nothing was changed"
            in refused.err
        )
    output = '{"id": "c9", "cents": 1}'
    assert cli("skip", "r1", "charge", "shop.py", "--update", output).code == Exit.OK
    assert cli("state", "r1").json["outputs"]["charge"] == {"id": "c9", "cents": 1}
    assert "skipped by" in cli("plan", "show", "r1").out


def test_a_worker_skips_a_task_with_the_output_in_a_request(cli: Cli) -> None:
    fail(cli)
    left = cli("skip", "r1", "charge", "--update", '{"id": "c9", "cents": 1}', "--no-execute")
    assert left.code == Exit.OK, left.err
    assert "completed  r1" in cli("worker", "shop.py", "--until-idle").out
    assert cli("state", "r1").json["outputs"]["charge"] == {"id": "c9", "cents": 1}


def test_a_policy_that_asks_is_answered(cli: Cli) -> None:
    write(facts={"cents": 20_000})
    asks = cli("plan", "run", "order.json", "shop.py", "--run-id", "r1")
    assert asks.code == Exit.WAITS
    assert "charge asks: Charge 20000 cents?" in asks.err
    assert cli("answer", "r1", "charge", "approve").code == Exit.OK
    assert cli("resume", "r1", "shop.py").code == Exit.OK
    assert "policy large asks about it: Charge 20000 cents?" in cli("plan", "show", "r1").out


def test_a_denial_is_explained_and_an_edit_lets_the_policies_allow_it(cli: Cli) -> None:
    write(facts={"hour": 22})
    denied = cli("plan", "run", "order.json", "shop.py", "--run-id", "r1")
    assert denied.code == Exit.FAILED
    assert "policy 'nights' denied it: no shipping at night" in denied.err
    assert "ask the policies again about ship" in denied.err
    assert (
        "policy nights denies it: no shipping at night; context.facts.hour = 22"
        in cli("plan", "show", "r1").out
    )
    edited = {"context": {"facts": {**ORDER["context"]["facts"], "hour": 9}}}
    assert cli("edit", "r1", json.dumps(edited), "shop.py").code == Exit.OK
    assert cli("resume", "r1", "shop.py", "--force").code == Exit.OK


def test_a_guard_that_fails_is_evaluated_again_and_its_task_is_not_called(cli: Cli) -> None:
    edges = [{"from": "charge", "to": "ship", "guard": "1 / context.facts.hour > 0"}]
    write(facts={"hour": 0, "secret": "S3CRET"}, edges=edges, tasks=ORDER["tasks"][1:3], policies=[])
    failed = cli("plan", "run", "order.json", "shop.py", "--run-id", "r1")
    assert failed.code == Exit.FAILED
    assert (
        "the guard of the edge from 'charge' to 'ship' cannot be evaluated: it divides by zero" in failed.err
    )
    assert "only the guard is evaluated again" in failed.err
    assert "AGAIN" not in failed.err
    assert "S3CRET" not in failed.err
    edited = {"context": {"facts": {**ORDER["context"]["facts"], "hour": 1}}}
    assert cli("edit", "r1", json.dumps(edited), "shop.py").code == Exit.OK
    assert cli("resume", "r1", "shop.py").code == Exit.OK
    assert Path("charged.txt").read_text() == "4711\n"


def test_a_fork_and_a_rewind_use_the_stored_plan(cli: Cli) -> None:
    cli("plan", "run", "order.json", "shop.py", "--run-id", "r1")
    Path("order.json").unlink()
    places = [one["seq"] for one in cli("checkpoints", "r1", "--json").json]
    assert cli("fork", f"r1@{places[-2]}", "--run-id", "r2").code == Exit.OK
    assert cli("resume", "r2", "shop.py").code == Exit.OK
    assert cli("state", "r2").json["outputs"].keys() == {"reserve", "charge", "ship"}


def test_a_run_outside_of_its_scope_is_paused_and_widened(cli: Cli) -> None:
    paused = cli("plan", "run", "order.json", "shop.py", "--run-id", "r1", "--scope", "reserve")
    assert paused.code == Exit.WAITS
    assert "everything in its scope is done, and charge is not in scope" in paused.err
    assert "waits for charge" in cli("plan", "show", "r1").out
    assert cli("doctor", "shop.py").code == Exit.WAITS
    assert cli("resume", "r1", "shop.py", "--scope", "*").code == Exit.OK
    unknown = cli("plan", "run", "order.json", "shop.py", "--run-id", "r2", "--scope", "reserv")
    assert unknown.code == Exit.USAGE
    assert "'reserv'" in unknown.err
    assert cli("show", "r2").code == Exit.NOT_FOUND


# --- capabilities that are missing, and a store that was altered -------------------------------------


def test_a_missing_capability_is_named_wherever_it_stops_a_run(cli: Cli) -> None:
    cli("plan", "run", "order.json", "shop.py", "--run-id", "r1", "--no-execute")
    Path("old.py").write_text(SHOP.replace('"ship@1"', '"ship@0"'))
    refused = cli("resume", "r1", "old.py")
    assert refused.code == Exit.USAGE
    assert "run 'r1' needs 'ship@1', which 'shop' does not have in this process" in refused.err
    worked = cli("worker", "old.py", "--until-idle")
    assert "trouble: run 'r1' needs 'ship@1'" in worked.err
    found = cli("doctor", "old.py")
    assert found.code == Exit.STUCK
    assert "capability missing  r1: " in found.out
    assert "its plan needs 'ship@1', which 'shop' does not have here" in found.out
    assert not Path("charged.txt").exists()
    assert cli("resume", "r1", "shop.py").code == Exit.OK


def test_a_plan_that_was_altered_in_the_store_is_not_executed(cli: Cli) -> None:
    write(facts={"hour": 22})
    cli("plan", "run", "order.json", "shop.py", "--run-id", "r1", "--no-execute")
    alter_plan(lambda plan: plan["policies"].clear())
    refused = cli("resume", "r1", "shop.py")
    assert refused.code == Exit.STORE
    assert "definition in the store was altered. Restore the store from a backup." in refused.err
    assert "in the store was altered" in cli("worker", "shop.py", "--until-idle").err
    assert "in the store was altered" in cli("doctor", "shop.py").out
    assert cli("verify", "r1").code == Exit.DAMAGED
    assert not Path("charged.txt").exists()


def alter_plan(change: Callable[[dict[str, Any]], None]) -> None:
    """Change the stored plan of the only run, as an intruder would."""
    with closing(apsw.Connection(".holdfast/runs.db")) as db:
        ((body,),) = db.execute("select body from definitions").fetchall()
        definition = json.loads(unpack(body))
        change(definition["plan"])
        db.execute("update definitions set body = ?", (pack(json.dumps(definition).encode()),))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ('@shop.capability("call@1")\ndef again(given: dict) -> None: ...', "'call@1' is registered twice"),
        ('@shop.capability("x@1")\ndef x(given): ...', "does not declare the type of its input"),
        ('@shop.capability("x")\ndef x(given: dict) -> None: ...', "must be named as name@version"),
        ('@shop.policy("x")\nasync def x(asked): ...', "policy 'x' is an async def"),
    ],
)
def test_a_mistake_in_the_capabilities_is_reported_with_its_line(cli: Cli, code: str, told: str) -> None:
    Path("shop.py").write_text(f"{SHOP}\n{code}\n")
    ended = cli("plan", "check", "order.json", "shop.py")
    assert ended.code == Exit.USAGE
    assert "error: shop.py:" in ended.err
    assert told in ended.err


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("raise ValueError('S3CRET')", "policy 'rule' raised ValueError"),
        ("return None", "policy 'rule' returned NoneType"),
    ],
)
def test_a_policy_that_cannot_decide_denies(cli: Cli, rule: str, told: str) -> None:
    Path("shop.py").write_text(
        f'{SHOP}\n@shop.policy("rule", capability="reserve@1")\ndef rule(asked): {rule}\n'
    )
    ended = cli("plan", "run", "order.json", "shop.py", "--run-id", "r1")
    assert ended.code == Exit.FAILED
    assert told in ended.err
    assert "S3CRET" not in ended.err
    assert "NodeStarted" not in cli("events", "r1").out


def test_a_document_that_must_not_be_read_is_refused_at_once(cli: Cli) -> None:
    Path("large.json").write_text(json.dumps({**ORDER, "goal": "S3CRET " * 800_000}))
    Path("deep.json").write_text('{"holdfast": "plan/1", "goal": ' + "[" * 1000 + "]" * 1000 + "}")
    Path("alias.yaml").write_text("holdfast: plan/1\ngoal: {a: &a [S3CRET], b: *a}\ntasks: []\n")
    Path("broken.json").write_text('{"holdfast": "plan/1", "goal": S3CRET}')
    for name, told in {
        "large.json": "it is larger than 4,000,000 bytes",
        "deep.json": "it is nested deeper than 100 levels",
        "alias.yaml": "goal.b: it is a YAML alias",
        "broken.json": "it is not valid JSON",
    }.items():
        ended = cli("plan", "run", name, "shop.py")
        assert ended.code == Exit.USAGE
        assert told in ended.err
        assert "S3CRET" not in ended.err
    assert not Path(".holdfast").exists()
