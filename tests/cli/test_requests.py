"""Requests on the command line: left for a worker, in one run or in all that match, listed, refused, and carried out once."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from command_line import Cli, caller, furnish
from holdfast.cli.execution import Errand, leave
from holdfast.storage import failpoints
from holdfast.upkeep import mass_requests

FLOW = """
import os
from dataclasses import dataclass
import holdfast as hf
from holdfast import END, START, Graph

@dataclass
class Order:
    number: int = 0
    charged: int = 0
    receipt: str = ""

graph = Graph("order", Order)

@graph.node(idempotent=False)
async def charge(state):
    return {"charged": state.charged + 1}

@graph.node(retry=hf.Retry(backoff=0.0))
async def ship(state):
    if not os.path.exists("repaired"):
        raise ConnectionError("the warehouse is down") if state.number else hf.Fatal("no such order")
    with open("shipped", "a") as file:
        file.write(f"{state.number}\\n")
    return {"receipt": "shipped"}

graph.chain(START, charge, ship, END)
flow = graph.compile()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return furnish(tmp_path, monkeypatch, order=FLOW)


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return caller(capsys)


def fail(*numbers: int) -> None:
    """Leave failed runs behind: r1 for 1, and so on. The failure of run 0 is fatal."""
    flow = runpy.run_path("order.py")["flow"]
    with hf.connect(".holdfast/runs.db", flows=[flow]) as engine:
        for number in numbers:
            with pytest.raises(hf.RunFailed):
                engine.run(flow, {"number": number}, run_id=f"r{number}", labels={"n": str(number)})


def repair(place: Path) -> None:
    place.joinpath("repaired").touch()


def work(cli: Cli) -> str:
    ended = cli("worker", "order.py", "--until-idle")
    assert ended.code == 0, ended.err
    return ended.out


def shipped(place: Path) -> list[str]:
    return sorted(place.joinpath("shipped").read_text().split()) if place.joinpath("shipped").exists() else []


def refused(cli: Cli, run_id: str) -> list[str]:
    return [one["refused"] for one in cli("requests", run_id, "--json").json if one["status"] == "refused"]


# --- one run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [("resume", "r1"), ("retry", "r1"), ("skip", "r1", "ship")], ids=lambda w: w[0]
)
def test_a_request_that_executes_nothing_is_left_for_a_worker(
    cli: Cli, place: Path, words: tuple[str, ...]
) -> None:
    fail(1)
    repair(place)
    ended = cli(*words, "--no-execute", "--by", "ada", "--reason", "repaired")
    assert ended.code == 0
    assert f"asked  r1: {words[0]}; a worker carries the request out" in ended.out
    assert "no live worker takes flow 'order'. Start one: holdfast worker FILE.py" in ended.out
    assert "see what became of it: holdfast requests r1" in ended.out
    shown = cli("show", "r1", "--json").json
    assert (shown["status"], [one["verb"] for one in shown["requests"]]) == ("failed", [words[0]])
    asked = f"skip {words[2]}" if words[0] == "skip" else words[0]
    assert f"waiting  {asked}, asked by ada" in cli("show", "r1").out
    assert f"{words[0]} requested; " in cli("runs").out
    assert [one["requested"] for one in cli("runs", "--json").json] == [[words[0]]]
    assert shipped(place) == []
    listed = cli("requests", "r1")
    assert f"waiting  {asked}, asked by ada" in listed.out
    assert "repaired" in listed.out
    assert "completed  r1" in work(cli)
    assert shipped(place) == ([] if words[0] == "skip" else ["1"])
    assert (
        cli("requests", "r1").out
        == "no request to r1 waits or was refused; its log has those that were carried out: holdfast events r1\n"
    )


def test_a_request_that_is_refused_says_who_asked_when_and_why_not(cli: Cli) -> None:
    fail(0)
    assert cli("resume", "r0", "--no-execute", "--by", "ada", "--json").json["requested"] == "resume"
    work(cli)
    told = cli("requests", "r0")
    assert "refused  resume, asked by ada" in told.out
    assert "the failure of the run is fatal" in told.out
    assert "refused  resume, asked by ada" in cli("show", "r0").out
    [one] = cli("requests", "r0", "--json").json
    assert (one["verb"], one["status"], one["by"]) == ("resume", "refused", "ada")


def test_a_completed_run_has_nothing_left_to_resume(cli: Cli, place: Path) -> None:
    repair(place)
    assert cli("run", "order.py", "--run-id", "r1").code == 0
    ended = cli("resume", "r1", "--no-execute")
    assert (ended.code, ended.out) == (0, "completed  r1: nothing is left to resume\n")
    assert cli("retry", "r1", "--no-execute").code == 4


def test_a_run_that_a_worker_has_ended_meanwhile_was_asked(
    cli: Cli, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(1)
    repair(place)
    flow = runpy.run_path("order.py")["flow"]
    errand = Errand(verb="resume", run_id="r1", flows=[flow], file=None, store=None, as_json=False)
    leave(errand, lambda engine: engine.resume("r1"), {})
    assert capsys.readouterr().out == "completed  r1: asked to resume, and has ended since\n"


def test_an_option_for_a_process_that_executes_is_refused_without_one(cli: Cli) -> None:
    fail(1)
    for words in (("--grace", "3"), ("--run-base", "base"), ("--validate", "order.py:ship")):
        ended = cli("resume", "r1", "--no-execute", *words)
        assert ended.code == 2
        assert f"{words[0]} cannot be combined with --no-execute" in ended.err


def test_a_node_that_is_not_idempotent_runs_again_only_if_it_is_confirmed(cli: Cli, place: Path) -> None:
    fail(1)
    repair(place)
    ended = cli("resume", "r1", "order.py", "--restart-at", "charge")
    assert ended.code == 4
    assert "--confirm charge" in ended.err
    assert cli("resume", "r1", "--restart-at", "charge", "--no-execute").code == 0
    work(cli)
    assert "\n    charge (completed at " in cli("requests", "r1").out
    assert "\nRequests:\nrefused  resume" in cli("show", "r1").out
    assert cli("resume", "r1", "order.py", "--restart-at", "charge", "--confirm", "chrge").code == 4
    ended = cli("resume", "r1", "order.py", "--restart-at", "charge", "--confirm", "charge")
    assert ended.code == 0, ended.err


def test_a_state_is_edited_and_the_edit_is_recorded(cli: Cli, place: Path) -> None:
    fail(1)
    ended = cli("edit", "r1", '{"number": 7}', "order.py", "--by", "ada", "--reason", "renumbered")
    assert (ended.code, ended.out) == (0, "edited  r1  number\n"), ended.err
    assert cli("state", "r1").json["number"] == 7
    assert "StateEdited" in [one["kind"] for one in cli("events", "r1", "--json").json]
    assert cli("edit", "r1", '{"nmber": 7}', "order.py").code == 2
    assert cli("edit", "r1", "{}", "order.py").code == 2
    assert cli("edit", "r1", "[1]", "order.py").code == 2
    assert cli("edit", "none", '{"number": 7}').code == 3
    told = cli("edit", "r1", "number=7", "order.py").err
    assert (
        """in single quotes: '{"topic": "tides"}'; or name a file that contains the JSON: @input.json."""
        in told
    )


def test_an_edit_without_the_flow_is_left_for_a_worker(cli: Cli, place: Path) -> None:
    fail(1)
    ended = cli("edit", "r1", '{"number": 7}')
    assert ended.code == 0
    assert "asked  r1: edit; a worker carries the request out" in ended.out
    assert cli("edit", "r1", '{"number": 8}', "--json").json["waits"]
    work(cli)
    assert cli("state", "r1").json["number"] == 8


# --- many runs ---------------------------------------------------------------------------------------


def test_one_command_resumes_every_run_that_matches_and_no_other(cli: Cli, place: Path) -> None:
    fail(1, 2, 3)
    repair(place)
    ended = cli("resume", "--where", "status=failed", "--where", "label=n=1")
    assert ended.code == 0
    assert "1 run matches" in ended.err
    assert "asked  1 run to be resumed" in ended.out
    assert "no live worker takes flow 'order'. Start one: holdfast worker FILE.py" in ended.out
    ended = cli("resume", "--where", "flow=order", "--by", "ada")
    assert "asked  2 runs to be resumed\n  1 run asked before, and not again\n" in ended.out
    work(cli)
    assert shipped(place) == ["1", "2", "3"]
    ended = cli("resume", "--where", "flow=order")
    assert ended.code == 3
    assert (
        "no run matches --where flow=order and is paused or interrupted or failed. `holdfast runs`"
        in ended.err
    )
    assert "did you mean" not in ended.err


@pytest.mark.parametrize("verb", ["resume", "retry", "cancel"])
def test_the_same_command_twice_asks_no_run_twice(cli: Cli, place: Path, verb: str) -> None:
    fail(1, 2)
    repair(place)
    first = cli(verb, "--where", "status=failed", "--json").json
    assert (first["matched"], first["asked"], first["repeated"]) == (2, 2, 0)
    if verb == "cancel":  # which needs no worker
        assert [cli("show", run, "--json").json["status"] for run in ("r1", "r2")] == ["cancelled"] * 2
        return
    again = cli(verb, "--where", "status=failed", "--reason", "impatient", "--json").json
    assert (again["matched"], again["asked"], again["repeated"]) == (2, 0, 2)
    work(cli)
    assert shipped(place) == ["1", "2"]
    kinds = [one["kind"] for one in cli("events", "r1", "--json").json]
    assert kinds.count("RunResumed") == 1
    assert refused(cli, "r1") == []


def test_a_run_that_failed_again_is_asked_again(cli: Cli) -> None:
    fail(1)
    for _ in range(2):
        assert cli("resume", "--where", "status=failed", "--json").json["asked"] == 1
        assert "failed  r1" in work(cli)


def test_another_option_is_another_request(cli: Cli, place: Path) -> None:
    fail(0)
    assert cli("resume", "--where", "status=failed", "--json").json["asked"] == 1
    work(cli)
    assert len(refused(cli, "r0")) == 1
    repair(place)
    assert cli("resume", "--where", "status=failed", "--force", "--json").json["asked"] == 1
    assert "completed  r0" in work(cli)


def test_a_dry_run_counts_and_lists_and_changes_nothing(cli: Cli) -> None:
    fail(*range(1, 13))
    ended = cli("cancel", "--where", "flow=order", "--dry-run")
    assert ended.code == 0
    assert ended.out.startswith("12 runs would be cancelled\n  r12  order failed\n")
    assert "… and 2 more" in ended.out
    told = cli("cancel", "--where", "flow=order", "--dry-run", "--json").json
    assert (told["matched"], told["asked"], len(told["runs"])) == (12, 0, 12)
    assert cli("requests", "r1", "--json").json == []
    assert len(cli("runs", "--status", "failed", "--json").json) == 12


def test_the_other_filters_of_runs_choose_too(cli: Cli, place: Path) -> None:
    fail(1, 2)
    fork = cli("fork", "r1", "--json").json["id"]
    assert cli("start", "order.py", "--run-id", "slow", "--queue", "slow").code == 0
    for condition, runs in (
        ("parent=r1", [fork]),
        ("queue=slow", ["slow"]),
        ("label=n=2", ["r2"]),
        ("status=pending", ["slow", fork]),
    ):
        found = cli("cancel", "--where", condition, "--dry-run", "--json").json["runs"]
        assert sorted(found) == sorted(runs), condition
    assert [one["id"] for one in cli("runs", "--parent", "r1", "--json").json] == [fork]
    assert [one["id"] for one in cli("runs", "--queue", "slow", "--json").json] == ["slow"]


BAD_CONDITIONS: list[tuple[list[str], int, str]] = [
    (["--where", "failed"], 2, "--where 'failed': give a field and its value, as in --where status=failed"),
    (["--where", "flow="], 2, "give a field and its value"),
    (
        ["--where", "state=failed"],
        2,
        "runs have no field 'state'; the fields are status, flow, label, parent, origin, queue",
    ),
    (["--where", "flw=order"], 2, "did you mean 'flow'?"),
    (["--where", "status=fialed"], 2, "did you mean 'failed'?"),
    (["--where", "status=completed"], 2, "a run that is completed cannot be resumed"),
    (
        ["--where", "label=n"],
        2,
        "--where 'label=n': a label has a name and a value; write it as --where label=NAME=VALUE",
    ),
    (["--where", "label==1"], 2, "write it as --where label=NAME=VALUE"),
    (["--where", "flow=a", "--where", "flow=b"], 2, "no run has both a and b"),
    (["--where", "label=a=1", "--where", "label=a=2"], 2, "no run has both a=1 and a=2"),
    (["--where", "flow=ordr"], 3, "did you mean 'order'?"),
    (["--where", "queue=slow"], 3, "no run matches --where queue=slow"),
    (["r1", "--where", "status=failed"], 2, "'r1' and --where cannot be combined"),
    (["--where", "status=failed", "--checkpoint", "3"], 2, "--checkpoint cannot be combined with --where"),
    (["--where", "status=failed", "--grace", "3", "--run-base", "b"], 2, "--grace and --run-base cannot"),
    (["--where", "status=failed", "--replay", "--after", "charge"], 2, "choose one of --after and --replay"),
    ([], 2, "name a run, or choose runs with --where"),
    (["--where", "status=failed", "--expects", "abc"], 2, "--expects cannot be combined with --where"),
]


def test_bad_conditions_are_told_and_ask_no_run(cli: Cli) -> None:
    fail(1)
    for words, code, told in BAD_CONDITIONS:
        ended = cli("resume", *words)
        assert (ended.code, ended.out) == (code, ""), words
        assert told in ended.err
    assert cli("requests", "r1", "--json").json == []


def test_runs_that_are_executed_over_or_gone_are_counted(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happens between the listing and the requests is played by what the listing says."""
    fail(1, 2, 3)
    assert cli("cancel", "r2").code == 0
    found = mass_requests.rows_of

    def listing(store: Any, query: Any) -> list[Any]:
        replace = msgspec.structs.replace
        rows = list(found(store, replace(query, status=())))
        return [*rows, replace(rows[0], run_id="gone"), replace(rows[0], run_id="busy", held=True)]

    monkeypatch.setattr(mass_requests, "rows_of", listing)
    ended = cli("resume", "--where", "status=failed")
    assert ended.code == 0
    assert "asked  2 runs to be resumed" in ended.out
    assert "1 run not asked: ended meanwhile" in ended.out
    assert "1 run not asked: deleted meanwhile" in ended.out
    assert "1 run not asked: executed by a process" in ended.out


def test_a_command_that_was_stopped_says_how_far_it_came(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(1, 2, 3)
    monkeypatch.setattr(mass_requests, "AT_ONCE", 1)
    points = []

    def press_ctrl_c(point: str) -> None:
        points.append(point)
        if points.count("post.before") == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(failpoints, "hook", press_ctrl_c)
    ended = cli("resume", "--where", "status=failed")
    assert (ended.code, ended.out) == (130, "")
    assert (
        "stopped  2 of 3 runs asked to be resumed. To ask the others, and none twice: holdfast resume"
        in ended.err
    )
    monkeypatch.setattr(failpoints, "hook", None)
    ended = cli("resume", "--where", "status=failed")
    assert "asked  1 run to be resumed\n  2 runs asked before, and not again\n" in ended.out


# --- later -------------------------------------------------------------------------------------------


def test_a_run_begins_at_its_time_and_not_before(cli: Cli, place: Path) -> None:
    repair(place)
    ended = cli("start", "order.py", "--run-id", "late", "--in", "2h")
    assert ended.code == 0
    assert "it begins at " in ended.out
    assert (
        cli("start", "order.py", "--run-id", "later", "--at", "2036-01-01T00:00Z", "--json").json["due_at"]
        > 2e9
    )
    work(cli)
    assert shipped(place) == []
    listed = cli("runs").out
    assert "begins at " in listed
    assert "not executed by any process" not in listed
    assert "holdfast resume late order.py   # begin it now" in cli("show", "late").out
    assert cli("start", "order.py", "--run-id", "late", "--in", "2h").code == 0
    assert cli("resume", "late", "order.py").code == 0
    assert shipped(place) == ["0"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--at", "tomorrow"], "--at 'tomorrow' is not a time"),
        (
            ["--at", "2036-01-01T00:00"],
            "has no time zone: add it at the end, as in 2036-01-01T00:00:00+01:00",
        ),
        (["--at", "2020-01-01T00:00Z"], "--at 2020-01-01T00:00Z has passed. Leave --at out"),
        (["--at", "2126-01-01T00:00Z"], "--at 2126-01-01T00:00Z is more than ten years away"),
        (["--in", "2 hours"], "--in must be a length of time such as 90s"),
        (["--in", "0s"], "--in 0s: give a time of more than 0 seconds"),
        (["--in", "9999999w"], "--in 9999999w: give a time"),
        (["--in", "2h", "--at", "2036-01-01T00:00Z"], "--at and --in cannot be combined"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else None,
)
def test_a_time_at_which_no_run_can_begin_is_refused(cli: Cli, words: list[str], told: str) -> None:
    ended = cli("start", "order.py", *words)
    assert ended.code == 2
    assert told in ended.err


# --- forks -------------------------------------------------------------------------------------------


def test_a_fork_says_what_comes_next_and_what_it_will_ask(cli: Cli, place: Path) -> None:
    fail(1)
    ended = cli("fork", "r1@1", "order.py", "--run-id", "f1")
    assert ended.code == 0, ended.err
    assert "next: charge (not idempotent)" in ended.out
    assert "note: r1 has completed charge (" in ended.out
    assert "): the new run asks before it runs it again" in ended.out
    assert "keys" not in ended.out
    told = cli("fork", "r1@1", "order.py", "--run-id", "f1", "--json").json
    assert (told["id"], told["next"], told["lineage"], told["fresh"]) == ("f1", ["charge"], "r1", False)
    assert [(one["node"], one["completed"], one["repeat"]) for one in told["begun"]] == [
        ("charge", True, "ask")
    ]
    repair(place)
    assert cli("resume", "f1", "order.py").code == 7
    assert "'charge' was completed" in cli("questions", "f1").out


@pytest.mark.parametrize(
    ("choice", "told", "charged"),
    [
        ("run", "the new run runs it again, with new idempotency keys", 1),
        ("charge=skip", "the new run skips it, with the result that it had", 1),
    ],
)
def test_a_fork_that_was_told_what_to_repeat_does_not_ask(
    cli: Cli, place: Path, choice: str, told: str, charged: int
) -> None:
    fail(1)
    repair(place)
    ended = cli("fork", "r1@1", "order.py", "--run-id", "f1", "--repeat", choice)
    assert told in ended.out
    assert cli("resume", "f1", "order.py", "--json").json["state"]["charged"] == charged


TALK = """
from holdfast import END, START, Graph

graph = Graph("talk")


@graph.node
async def talk(state, ctx):
    return {"said": await ctx.wait_for("go")}


flow = graph.chain(START, "talk", END).compile()
"""


def test_a_fork_names_the_signals_that_it_does_not_have_with_commands_that_send_them(
    cli: Cli, place: Path
) -> None:
    (place / "talk.py").write_text(TALK)
    cli("run", "talk.py", "--run-id", "t1")
    cli("signal", "t1", "go", '{"a": "it is"}')
    assert 'the signal go {"a": "it is"}, which t1 has received' in cli("fork", "t1@1", "--dry-run").out
    told = cli("fork", "t1@1", "--run-id", "t2").out
    assert "t1 has received the signal go, which the new run does not have; send it with:" in told
    (one,) = cli("fork", "t1@1", "--run-id", "t2", "--json").json["missed"]
    assert one["command"] in told
    cli(*shlex.split(one["command"])[1:])
    assert cli("resume", "t2", "talk.py", "--json").json["state"]["said"] == {"a": "it is"}


def test_an_edited_fork_says_whose_keys_it_uses(cli: Cli) -> None:
    fail(1)
    edit = ("--edit", '{"number": 2}')
    assert (
        "its idempotency keys are those of r1, although its state was edited"
        in cli("fork", "r1", "order.py", *edit).out
    )
    fresh = cli("fork", "r1", "order.py", "--fresh", *edit).out
    assert "its idempotency keys are its own: receivers treat all its effects as new" in fresh


def test_a_repeat_that_cannot_be_is_refused(cli: Cli) -> None:
    fail(1)
    for words, told in (
        (["--repeat", "rnu"], "did you mean 'run'?"),
        (["--repeat", "charge=never"], "'never' is not a choice; give ask, run or skip"),
        (["--repeat", "run", "--repeat", "skip"], "cannot be combined"),
        (["--repeat", "run", "--repeat", "charge=skip"], "cannot be combined"),
        (["--repeat", "chrge=run"], "has no node 'chrge'"),
        (["--repeat", "ship=run"], "node 'ship' is idempotent"),
    ):
        ended = cli("fork", "r1@1", *words)
        assert (ended.code, ended.out) == (2, ""), words
        assert told in ended.err
    made = cli("fork", "r1@1", "--run-id", "f1", "--repeat", "skip")
    assert made.code == 0
    assert cli("fork", "r1@1", "--run-id", "f1", "--repeat", "run").code == 4
    assert [run["id"] for run in cli("runs", "--parent", "r1", "--json").json] == ["f1"]


# --- what a command would do -------------------------------------------------------------------------


def test_a_dry_run_prints_what_would_happen_and_changes_nothing(cli: Cli) -> None:
    fail(1)
    before = cli("events", "r1", "--json").out
    ended = cli("resume", "r1", "order.py", "--dry-run")
    assert ended.code == 0
    assert ended.out.splitlines()[0] == "dry run  resume r1  nothing was changed"
    assert rows(ended.out) == {"runs again": "ship", "keeps": "charge"}
    assert "to do this: holdfast resume r1 order.py" in ended.out
    for words in (["retry", "r1"], ["skip", "r1", "ship"], ["cancel", "r1"], ["fork", "r1@1"]):
        assert cli(*words, "--dry-run").code == 0
    assert (cli("events", "r1", "--json").out, cli("requests", "r1", "--json").json) == (before, [])
    assert [run["id"] for run in cli("runs", "--json").json] == ["r1"]


def rows(out: str) -> dict[str, str]:
    """The facts that a dry run prints, by their heading."""
    facts = [
        line[2:].partition("  ")
        for line in out.splitlines()[1:]
        if line.startswith("  ") and line[2] not in "$#t "
    ]
    return {head: fact.strip() for head, _, fact in facts}


def test_a_dry_run_of_a_rewind_names_what_must_be_confirmed(cli: Cli, place: Path) -> None:
    fail(1)
    repair(place)
    ended = cli("resume", "r1", "order.py", "--restart-at", "charge", "--dry-run")
    assert ended.code == 4
    told = rows(ended.out)
    assert told["NOT IDEMPOTENT"].startswith("charge completed at 20")
    assert told["NOT IDEMPOTENT"].endswith("; its effect would happen again")
    assert told["refused"].startswith("going back to event ")
    (again,) = [line for line in ended.out.splitlines() if "--confirm charge" in line and "$" in line]
    words = again.split("$ holdfast ")[1].split("   #")[0].split()
    assert cli(*words).code == 0
    assert cli("state", "r1", "--json").json["charged"] == 1  # it ran again from the state that it had


def test_a_dry_run_without_the_flow_says_what_it_did_not_check(cli: Cli) -> None:
    fail(1)
    told = rows(cli("resume", "r1", "--dry-run").out)
    assert told["not known"].startswith("flow 'order' is not known here, so it was not checked whether")


def test_a_dry_run_of_a_fork_says_about_what_it_asks(cli: Cli) -> None:
    fail(1)
    told = rows(cli("fork", "r1@1", "--dry-run").out)
    assert (told["asks first"], told["runs again"]) == ("charge", "ship")
    assert told["NOT IDEMPOTENT"].endswith("; a question is asked before it runs again")
    told = rows(cli("fork", "r1@1", "--repeat", "charge=skip", "--dry-run").out)
    assert (told["skips"], told["runs again"]) == ("charge", "ship")


def test_a_request_that_a_pause_has_superseded_is_listed_with_the_reason(cli: Cli) -> None:
    assert cli("start", "order.py", "--run-id", "r1").code == 0
    assert cli("pause", "r1").code == 0
    assert cli("resume", "r1", "--no-execute").code == 0
    assert cli("pause", "r1", "--by", "ann").code == 0
    told = cli("requests", "r1").out
    assert "a later pause by ann superseded this request before an engine carried it out." in told
    (again,) = re.findall("`holdfast (resume r1 [^`]*)`", told)
    assert cli("worker", "order.py", "--until-idle").code == 0
    assert cli("show", "r1", "--json").json["status"] == "paused"
    assert cli(*again.split()).code == 1  # the run continues: it charges, and cannot ship


def test_a_dry_run_of_a_fork_of_a_fork_names_the_run_that_had_the_effect(cli: Cli) -> None:
    assert cli("start", "order.py", "--run-id", "r1").code == 0
    assert cli("fork", "r1", "--run-id", "f1").code == 0
    assert cli("resume", "r1", "order.py").code == 1  # it has charged, and cannot ship
    told = rows(cli("fork", "f1", "--dry-run").out)
    assert told["NOT IDEMPOTENT"].startswith("charge completed at 20")
    assert told["NOT IDEMPOTENT"].endswith(" in run r1; a question is asked before it runs again")
    assert "note: r1 has completed charge (" in cli("fork", "f1", "--run-id", "f2").out
    assert cli("resume", "f2", "order.py").code == 7
    assert "'charge' was completed" in cli("questions", "f2").out


def test_what_is_expected_is_done_and_nothing_else(cli: Cli, place: Path) -> None:
    fail(1)
    repair(place)
    seen = cli("resume", "r1", "order.py", "--dry-run", "--json").json
    assert ([one["node"] for one in seen["rerun"]], seen["refused"]) == (["ship"], None)
    stale = cli("retry", "r1", "order.py", "--expects", seen["digest"])
    assert stale.code == 4
    assert "was not tried again: it would not do what the preview" in stale.err
    assert shipped(place) == []
    assert cli("resume", "r1", "order.py", "--expects", seen["digest"]).code == 0
    assert shipped(place) == ["1"]


def test_a_worker_refuses_a_request_whose_preview_is_stale(cli: Cli, place: Path) -> None:
    fail(1)
    repair(place)
    assert cli("resume", "r1", "--no-execute", "--expects", "0123").code == 0
    work(cli)
    (request,) = cli("requests", "r1", "--json").json
    assert (request["status"], "it would run ship again" in request["refused"]) == ("refused", True)
    assert shipped(place) == []


def test_old_code_on_the_command_line_shows_a_state_that_newer_code_has_upgraded_as_plain_data(
    cli: Cli, place: Path
) -> None:
    repair(place)
    newer = FLOW.replace(
        'Graph("order", Order)', 'Graph("order", Order, version=2, upgrades={1: lambda old: old})'
    )
    place.joinpath("order.py").write_text(newer)
    given = ("run", "order.py", "--input", '{"number": 1}', "--run-id", "r1")
    assert cli(*given).code == 0
    place.joinpath("order.py").write_text(FLOW)
    again = cli(*given)
    assert (again.code, '"receipt": "shipped"' in again.out) == (0, True), again.err
    for words in (given, ("show", "r1"), ("resume", "r1")):
        shown = cli(*words, "--json").json
        assert (shown["state"]["receipt"], shown["state_version"]) == ("shipped", 2), words


def test_pausing_is_no_status_to_list_by_and_the_error_names_the_status(cli: Cli) -> None:
    refused = cli("runs", "--status", "pausing")
    assert refused.code == 2
    assert "a run that is pausing is running until its nodes have ended. Use status running." in refused.err


# --- a run that another process executes -------------------------------------------------------------

GATED = """
import threading
from dataclasses import dataclass
import holdfast as hf
from holdfast import END, START, Graph

begun, leave = threading.Semaphore(0), threading.Event()

@dataclass
class Order:
    number: int = 0

def hold(state):
    begun.release()
    leave.wait()

async def block(state):
    hold(state)

def flow_of(**nodes):
    graph = Graph("order", Order)
    for name, function in nodes.items():
        graph.node(name=name)(function)
        graph.edge(START, name)
        graph.edge(name, END)
    return graph.compile()

two = flow_of(left=hold, right=hold)
blocked = flow_of(block=block)
"""


@contextmanager
def executing(place: Path, flow: str, begun: int) -> Iterator[None]:
    """Execute the run `r1` of this flow in another thread, as another process would, until `begun` nodes have begun. They end
    after the block.
    """
    place.joinpath("gated.py").write_text(GATED)
    made = runpy.run_path("gated.py")

    def run() -> None:
        with suppress(hf.RunCancelled), hf.connect(".holdfast/runs.db", flows=[made[flow]]) as engine:
            engine.run(made[flow], run_id="r1")

    with ThreadPoolExecutor() as threads:
        ended = threads.submit(run)
        try:
            for _ in range(begun):
                assert made["begun"].acquire(timeout=60)
            yield
        finally:
            made["leave"].set()
            ended.result(timeout=60)


def test_a_pause_names_the_nodes_that_still_run(cli: Cli, place: Path) -> None:
    with executing(place, "two", begun=2):
        told = " ".join(cli("pause", "r1").out.split())
    assert "pausing r1: the pause is recorded, and the run is paused when left and right have ended" in told


@pytest.mark.parametrize(
    ("verb", "status", "ended"),
    [("pause", "paused", "ended"), ("cancel", "cancelled", "stopped")],
)
def test_a_request_that_is_not_recorded_in_time_promises_no_time(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch, verb: str, status: str, ended: str
) -> None:
    monkeypatch.setattr("holdfast.runtime.door._LOOKS", 2)
    with executing(place, "blocked", begun=1):
        told = " ".join(cli(verb, "r1").out.split())
    assert "has not recorded the request yet, perhaps because of a node that still runs" in told
    assert f"the run will be {status} when that is recorded and its running nodes have {ended}" in told
    assert "within a second" not in told
