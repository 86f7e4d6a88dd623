"""What somebody who meets a fleet for the first time is told: looking makes nothing, and what is suggested is not refused."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from command_line import Cli, caller, furnish
from holdfast.cli.exits import Exit
from holdfast.cli.worker import say_recorded
from holdfast.errors import SettingError
from holdfast.reading import diagnosis
from holdfast.storage import urls
from holdfast.storage.contract import Holder
from holdfast.storage.files.restoring import back_up, restore
from holdfast.storage.postgres.address import Address
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.urls import open_store
from newer_version import write_as_newer
from postgres_server import PostgresServer, _binaries, drop_schema, execute, schema_for, shared_url

ROOT = Path(__file__).resolve().parents[2]

FLOW = """
from holdfast import END, START, Graph

graph = Graph("work", dict)

@graph.node
def first(state, ctx):
    if state.get("ask"):
        ctx.ask("go on?", options=["yes", "no"])
    if state.get("fail"):
        raise ValueError("no luck")
    return {"done": True}

@graph.node
def last(state):
    if state.get("late"):
        raise ValueError("no luck")
    return {}

flow = graph.chain(START, first, last, END).compile()
"""
OTHER = FLOW.replace('Graph("work"', 'Graph("other"')
LONGER = FLOW.replace("first, last, END", "first, last, 'more', END").replace(
    "flow =", "graph.node(name='more')(lambda s: {})\nflow ="
)
RENAMED = FLOW.replace("def first(", "def begin(").replace("START, first", "START, begin")
RENAMED_AND_LONGER = LONGER.replace("def first(", "def begin(").replace("START, first", "START, begin")
MIDDLE = FLOW.replace("first, last, END", "first, 'middle', last, END").replace(
    "flow =", "graph.node(name='middle')(lambda s: {})\nflow ="
)
EARLIER = FLOW.replace("START, first", "START, 'early', first").replace(
    "flow =", "graph.node(name='early')(lambda s: {})\nflow ="
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return furnish(tmp_path, monkeypatch, work=FLOW)


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return caller(capsys)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A place in PostgreSQL where there is no store."""
    server, schema = shared_url(), schema_for(tmp_path)
    yield f"{server}{'&' if '?' in server else '?'}schema={schema}"
    drop_schema(server, schema)


def schemas() -> set[str]:
    return {name for (name,) in execute(shared_url(), "select nspname from pg_namespace")}


# --- nothing is made by looking ----------------------------------------------------------------------

LOOKING = [
    ("runs",),
    ("show", "r"),
    ("events", "r"),
    ("questions",),
    ("verify",),
    ("doctor",),
    ("recover",),
    ("queue",),
    ("queue", "mail", "--limit", "5"),
    ("resume", "r", "work.py"),
    ("answer", "r", "first", "yes"),
    ("cancel", "r"),
    ("prune", "--keep", "1"),
    ("backup", "copy"),
]


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_command_that_looks_makes_no_schema(cli: Cli, url: str, words: tuple[str, ...]) -> None:
    before = schemas()
    ended = cli(*words, "--store", url)
    assert ended.code == Exit.STORE
    assert f"there is no store at {urls.shown(url)}. " in ended.err
    assert "`holdfast run FILE.py --store " in ended.err
    assert schemas() == before


def test_a_schema_that_is_empty_is_no_store_and_stays_empty(cli: Cli, url: str, tmp_path: Path) -> None:
    schema = schema_for(tmp_path)
    execute(shared_url(), f'create schema "{schema}"')
    assert cli("runs", "--store", url).code == Exit.STORE
    assert (
        execute(shared_url(), f"select 1 from pg_class where relnamespace = '{schema}'::regnamespace") == []
    )


@pytest.mark.parametrize(
    "words", [("run", "work.py"), ("start", "work.py"), ("worker", "work.py", "--until-idle")], ids=" ".join
)
def test_a_command_that_puts_something_into_a_store_makes_it(
    cli: Cli, url: str, words: tuple[str, ...]
) -> None:
    assert cli(*words, "--store", url).code == 0
    assert cli("runs", "--store", url).code == 0


def test_a_server_that_does_not_answer_is_told_as_such(cli: Cli, place: Path) -> None:
    ended = cli("runs", "--store", f"postgresql://me@/db?host={place}")
    assert ended.code == Exit.STORE
    assert "there is no store" not in ended.err


# --- what is not shared ------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["start", "worker"])
def test_a_store_in_memory_is_refused_where_work_is_divided(
    cli: Cli, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "memory://x")
    ended = cli(verb, "work.py")
    assert ended.code == Exit.USAGE
    assert f"{verb} cannot use a memory:// store" in ended.err
    assert "--store runs.db" in ended.err
    assert cli("run", "work.py").code == 0


# --- every command that doctor suggests is taken -----------------------------------------------------


def suggested(cli: Cli, *words: str) -> tuple[str, list[str]]:
    """What doctor finds, and the words of the command that resumes."""
    told = cli("doctor", *words, "--json")
    assert told.code == Exit.STUCK
    (finding,) = told.json["findings"]
    commands = [way["command"] for way in finding["remedies"] if " resume " in way["command"]]
    return finding["kind"], shlex.split(commands[0])[1:]


def test_of_a_flow_that_a_file_has_not_doctor_does_not_name_the_file(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "PATIENCE_S", 0.0)
    (place / "other.py").write_text(OTHER, "utf-8")
    cli("start", "work.py", "--run-id", "r")
    assert suggested(cli, "other.py") == ("flow unknown", ["resume", "r", "work.py"])
    (place / "pyproject.toml").write_text('[tool.holdfast]\nflows = ["other.py"]\n', "utf-8")
    assert suggested(cli) == ("flow unknown", ["resume", "r", "work.py"])
    assert suggested(cli, "work.py") == ("no worker", ["resume", "r", "work.py"])


def test_of_a_failed_run_doctor_does_not_name_a_file_without_its_flow(cli: Cli, place: Path) -> None:
    (place / "other.py").write_text(OTHER, "utf-8")
    cli("run", "work.py", "--run-id", "r", "--input", '{"fail": true}')
    assert suggested(cli, "other.py") == ("failed", ["resume", "r", "work.py"])


@pytest.mark.parametrize(
    ("changed", "takes"),
    [
        (LONGER, ["--on-change", "compatible"]),
        (RENAMED, ["--rename", "first=begin"]),
        (RENAMED_AND_LONGER, ["--rename", "first=NEW", "--on-change", "compatible"]),
    ],
    ids=["longer", "renamed", "both"],
)
def test_a_run_whose_flow_changed_is_carried_on_by_the_command_that_doctor_gives(
    cli: Cli, place: Path, changed: str, takes: list[str]
) -> None:
    cli("start", "work.py", "--run-id", "r")
    (place / "work.py").write_text(changed, "utf-8")
    kind, words = suggested(cli, "work.py")
    assert (kind, words) == ("flow changed", ["resume", "r", "work.py", *takes])
    assert cli("resume", "r", "work.py").code == Exit.REFUSED
    assert cli(*[word.replace("NEW", "begin") for word in words]).code == 0


def test_a_failed_run_whose_flow_changed_is_carried_on_by_the_command_that_doctor_gives(
    cli: Cli, place: Path
) -> None:
    cli("run", "work.py", "--run-id", "r", "--input", '{"fail": true}')
    (place / "work.py").write_text(LONGER.replace('raise ValueError("no luck")', "pass"), "utf-8")
    kind, words = suggested(cli, "work.py")
    assert (kind, words) == ("failed", ["resume", "r", "work.py", "--on-change", "compatible"])
    assert cli(*words).code == 0


def test_a_run_that_can_be_continued_from_no_checkpoint_is_told_of_the_old_code_and_of_a_cancellation(
    cli: Cli, place: Path
) -> None:
    cli("run", "work.py", "--run-id", "r", "--input", '{"ask": true}')
    cli("answer", "r", "first", "yes")
    (place / "work.py").write_text(EARLIER, "utf-8")
    told = cli("doctor", "work.py")
    assert "flow changed  r: its flow has changed in shape" in told.out
    assert "this run cannot continue with the changed flow" in told.out
    assert "resume r FILE.py" in told.out
    assert "with the code that the run was created with" in told.out
    assert "or cancel it: the changed flow can continue from none of its checkpoints" in told.out
    assert cli("resume", "r", "work.py", "--on-change", "compatible").code == Exit.REFUSED
    assert cli("cancel", "r").code == Exit.OK


def test_a_failed_run_that_cannot_go_on_with_its_changed_flow_is_told_so(cli: Cli, place: Path) -> None:
    cli("run", "work.py", "--run-id", "r", "--input", '{"late": true}')
    (place / "work.py").write_text(EARLIER, "utf-8")
    assert suggested(cli, "work.py") == ("failed", ["resume", "r", "FILE.py"])
    told = cli("doctor", "work.py").out
    assert (
        "no luck; its flow has since changed in shape: node early is new, and this run cannot continue with the changed flow"
        in told
    )
    assert "(with the code that the run was created with)" in told


def test_a_run_that_completed_a_node_of_the_old_flow_is_forked_by_the_command_that_doctor_gives(
    cli: Cli, place: Path
) -> None:
    (place / "work.py").write_text(MIDDLE, "utf-8")
    cli("run", "work.py", "--run-id", "r", "--input", '{"late": true}')
    (place / "work.py").write_text(FLOW.replace('raise ValueError("no luck")', "pass"), "utf-8")
    told = cli("doctor", "work.py", "--json").json["findings"][0]
    words = shlex.split(told["remedies"][0]["command"])[1:]
    assert words == ["fork", "r@1", "work.py"]
    assert told["remedies"][1]["verb"] == "cancel"
    assert cli("resume", "r", "work.py", "--on-change", "compatible").code == Exit.REFUSED
    forked = cli(*words, "--run-id", "s", "--json").json
    assert cli(*shlex.split(forked["resumes"])[1:]).code == 0


def test_the_fork_of_a_run_that_asks_comes_with_the_cancellation_and_before_the_answers(
    cli: Cli, place: Path
) -> None:
    asking = MIDDLE.replace(
        "graph.node(name='middle')(lambda s: {})", "graph.ask('middle', 'go on?', options=['yes', 'no'])"
    )
    (place / "work.py").write_text(asking, "utf-8")
    assert cli("run", "work.py", "--run-id", "r").code == Exit.WAITS
    (place / "work.py").write_text(FLOW, "utf-8")
    told = cli("doctor", "work.py", "--json").json["findings"][0]
    assert [one["verb"] for one in told["remedies"]] == ["fork", "cancel", "answer", "answer", "resume"]


def test_doctor_says_how_long_something_may_wait(cli: Cli) -> None:
    told = " ".join(cli("doctor", "--help").out.split())
    operations = (ROOT / "docs" / "operations.md").read_text("utf-8")
    assert f"after {diagnosis.PATIENCE_S:.0f} seconds" in told
    assert f"waits {diagnosis.PATIENCE_S:.0f} seconds before it reports" in operations


# --- in a fleet --------------------------------------------------------------------------------------


def test_an_answer_and_a_list_say_that_a_worker_takes_the_run_up(cli: Cli) -> None:
    cli("run", "work.py", "--run-id", "r", "--input", '{"ask": true}')
    answered = cli("answer", "r", "first", "yes").out
    assert "answered by" in answered
    assert "no live worker takes flow 'work'" in answered
    assert "no live worker takes flow 'work'" in cli("doctor").out
    cli("start", "work.py", "--run-id", "s")
    listed = cli("runs").out
    assert "No live worker is about to claim them; `show` says why. Without a worker:" in listed
    assert cli("worker", "work.py", "--until-idle").code == 0
    assert {row["status"] for row in cli("runs", "--json").json} == {"completed"}
    assert "worker" not in cli("runs").out


def test_an_answer_and_a_list_name_the_live_worker_that_claims_the_run(cli: Cli) -> None:
    cli("run", "work.py", "--run-id", "r", "--input", '{"ask": true}')
    store = open_store(".holdfast/runs.db")
    store.renew(Holder(id="w", host="mill", pid=4711, ttl_s=600.0, flows=("work",)))
    answered = cli("answer", "r", "first", "yes").out
    assert "  process 4711 on mill takes flow 'work', and claims the run\n" in answered
    listed = cli("runs").out
    assert "It is claimed by a live worker: process 4711 on mill." in listed
    assert "Without a worker" not in answered + listed
    assert "no live worker" not in answered + listed + cli("doctor").out
    store.close()


def test_a_new_run_is_said_to_be_claimed_or_to_be_in_a_stopped_queue(cli: Cli) -> None:
    assert "  execute it with a worker: holdfast worker work.py\n" in cli("start", "work.py").out
    store = open_store(".holdfast/runs.db")
    store.queues.limit("default", 0)
    stopped = cli("start", "work.py").out
    assert "queue 'default' is stopped: its limit is 0\n  $ holdfast queue default --no-limit" in stopped
    store.queues.limit("default", None)
    store.renew(Holder(id="w", host="mill", pid=4711, ttl_s=600.0, flows=("work",)))
    claimed = cli("start", "work.py").out
    assert claimed.endswith("  process 4711 on mill takes flow 'work', and claims the run\n")
    store.close()


def test_a_run_that_a_newer_worker_claims_at_once_was_started(
    cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    cli("start", "work.py", "--run-id", "r")
    store = open_store(".holdfast/runs.db")
    started = store.run("r")
    write_as_newer(store, "r")
    store.close()
    say_recorded(started, "work.py", None, as_json=False)
    assert capsys.readouterr().out == "pending  r\n"


def test_a_unit_of_systemd_has_no_comment_behind_a_value() -> None:
    (unit,) = re.findall(
        r"^```ini\n(.*?)^```", (ROOT / "docs" / "operations.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert [line for line in unit.splitlines() if "#" in line and not line.startswith("#")] == []


# --- backups and archives ----------------------------------------------------------------------------


def test_a_restore_beside_the_store_in_use_is_told_to_take_another_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{_binaries()}{os.pathsep}{os.environ['PATH']}")
    server = PostgresServer()
    try:
        server.execute("create database rehearsal")
        url, copy = server.url(schema="mine"), str(tmp_path / "copy")
        store = PostgresStore(url)
        back_up(store, copy)
        store.close()
        for taken in (url, url.replace("schema=mine", "schema=yours")):
            with pytest.raises(SettingError, match="another database"):
                restore(copy, taken)
        restore(copy, url.replace("/postgres?", "/rehearsal?"))
    finally:
        server.remove()


def test_a_backup_of_a_newer_version_is_named_as_it_was_given(cli: Cli, place: Path) -> None:
    cli("run", "work.py")
    cli("backup", "copy")
    with sqlite3.connect("copy") as copy:
        copy.execute("pragma user_version = 999")
    copy.close()
    ended = cli("restore", "copy", "--store", "new.db")
    assert ended.code == Exit.STORE
    assert f"{place / 'copy'} has schema version 999" in ended.err
    assert ".new.db-" not in ended.err


def test_a_second_unarchive_says_that_nothing_changed(cli: Cli) -> None:
    cli("run", "work.py", "--run-id", "r")
    cli("archive", "r", "--to", "r.zst")
    assert "the store has this run already" in cli("unarchive", "r.zst").out
    assert cli("unarchive", "r.zst", "--store", "new.db").out.startswith("back  r\n")
    assert cli("unarchive", "r.zst", "--store", "new.db").out.startswith(
        "known  r: the store has this run already"
    )
    assert cli("unarchive", "r.zst", "--store", "new.db", "--json").json["repeated"] is True


def test_prune_says_nothing_of_runs_that_have_not_ended(cli: Cli) -> None:
    cli("run", "work.py", "--run-id", "done")
    cli("start", "work.py", "--run-id", "pending")
    told = cli("prune", "--keep", "1", "--json").json
    assert ([one["run_id"] for one in told["kept"]], told["deleted"]) == (["done"], [])


# --- small slips -------------------------------------------------------------------------------------


def test_an_option_with_a_slip_in_a_url_is_named_with_the_one_that_was_meant(cli: Cli) -> None:
    server = shared_url()
    ended = cli("runs", "--store", f"{server}{'&' if '?' in server else '?'}shema=x")
    assert ended.code == Exit.USAGE
    assert "'shema'; did you mean 'schema'?" in ended.err


@pytest.mark.parametrize(
    "options", ["password=ab&shema=cd", "sslpassword=ab&shema=cd", "zzzz=x", "sslmode=require"]
)
def test_what_may_be_a_part_of_a_secret_is_not_named(options: str) -> None:
    assert Address(f"postgresql://me@host/db?{options}").slip == ""


def test_a_limit_that_makes_no_sense_is_told_with_its_value(cli: Cli) -> None:
    cli("run", "work.py")
    for words, told in [
        (("queue", "mail", "--limit", "-3"), "--limit -3: "),
        (("queue", "mail", "--limit", "x"), "'x'"),
        (("runs", "--limit", "x"), "'x'"),
        (("runs", "--limit", "0"), "0"),
        (("queue", "mail", "--limit", "3", "--no-limit"), "--limit 3 and --no-limit cannot be combined"),
    ]:
        ended = cli(*words)
        assert ended.code == Exit.USAGE
        assert told in ended.err


def test_a_slip_in_a_policy_is_told_with_its_file_and_the_option_that_was_meant(
    cli: Cli, place: Path
) -> None:
    cli("run", "work.py")
    (place / "pyproject.toml").write_text(
        '[[tool.holdfast.retention.policies]]\nolder_then = "30d"\n', "utf-8"
    )
    ended = cli("prune")
    assert ended.code == Exit.USAGE
    assert str(place / "pyproject.toml") in ended.err
    assert "policy 1 has no option 'older_then'; did you mean 'older_than'?" in ended.err


def test_show_and_doctor_say_that_a_queue_is_stopped_and_their_command_lets_it_continue(
    cli: Cli, place: Path
) -> None:
    cli("start", "work.py", "--run-id", "r", "--queue", "slow")
    with closing(open_store(str(place / ".holdfast" / "runs.db"))) as store:
        store.renew(Holder(id="w", host="box", pid=7, ttl_s=600.0, flows=("work",)))
    cli("queue", "slow", "--limit", "0")
    assert "queue 'slow' is stopped" in cli("show", "r").out
    assert "queue 'slow' is stopped" in cli("runs", "--json").out
    told = cli("doctor", "work.py")
    assert (told.code, "holdfast queue slow --no-limit" in told.out) == (Exit.WAITS, True)
    way = cli("show", "r", "--json").json["remedies"][0]["command"]
    assert cli(*shlex.split(way)[1:]).code == 0
    assert "stopped" not in cli("show", "r").out
