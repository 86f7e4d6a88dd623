"""Commands whose store is a server: those that read or ask work as on the store itself; the others say where to run them."""

from __future__ import annotations

import json

import pytest
from app_client import SECRET
from hosted import ADMIN, hosting
from served_flows import flow

import holdfast as hf
from command_line import caller, furnish
from holdfast.storage.urls import open_store

READING = [
    ("runs",),
    ("show", "asks"),
    ("show", "failed"),
    ("events", "asks"),
    ("state", "asks"),
    ("state", "asks@4"),
    ("checkpoints", "asks"),
    ("ledger", "asks"),
    ("ledger", "asks", "--verify"),
    ("questions",),
    ("requests", "asks"),
    ("queue",),
    ("verify", "asks"),
]
ELSEWHERE = [
    ("prune", "asks"),
    ("backup", "copy.db"),
    ("token", "create", "bob"),
    ("queue", "default", "--limit", "3"),
    ("archive", "asks", "--to", "a.holdfast"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The URL of a server, and the path of its store: it has a run that asks, and one that failed."""
    path = tmp_path_factory.mktemp("served") / "runs.db"
    hf.run(flow, {"asks": True}, run_id="asks", store=path)
    with pytest.raises(hf.RunFailed):
        hf.run(flow, {"fails": True}, run_id="failed", store=path)
    store = open_store(path)
    with hosting() as host, host.serving(store, flows=[flow]) as url:
        yield url, str(path)
    store.close()


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    furnish(tmp_path, monkeypatch)
    monkeypatch.setenv("HOLDFAST_TOKEN", ADMIN)
    return caller(capsys, tries_suggestions=False)


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_command_that_reads_prints_what_it_prints_on_the_store_itself(served, call, words):
    url, path = served
    there, here = (call(*words, "--store", store, "--json") for store in (path, url))
    assert (here.code, here.err) == (there.code, there.err)
    told = json.loads(here.out.replace(url, path).replace(" --no-execute", "").replace(" FILE.py", ""))
    assert told == json.loads(there.out.replace(" FILE.py", ""))


@pytest.mark.parametrize("words", ELSEWHERE, ids=" ".join)
def test_a_command_that_does_more_says_where_it_is_possible(served, call, words):
    url, path = served
    ended = call(*words, "--store", url)
    assert ended.code == 2, ended
    assert f"--store sqlite:///{path}" in ended.err


@pytest.mark.parametrize(
    "words", [("resume", "failed"), ("retry", "failed"), ("skip", "failed", "charge")], ids=" ".join
)
def test_a_command_that_would_execute_names_the_one_that_asks_a_worker(served, call, words):
    url, _ = served
    ended = call(*words, "--store", url)
    assert ended.code == 2, ended
    assert "--no-execute" in ended.err


@pytest.mark.parametrize(
    "words", [("run", "flow.py"), ("worker", "flow.py"), ("serve", "flow.py")], ids=" ".join
)
def test_a_command_that_executes_runs_is_refused(served, call, words, tmp_path):
    (tmp_path / "flow.py").write_text("from served_flows import flow\n")
    ended = call(*words, "--store", served[0])
    assert ended.code == 2, ended
    assert "is a server" in ended.err


def test_who_asks_is_the_token_and_by_says_for_whom(served, call):
    url, path = served
    assert call("signal", "asks", "go", "--store", url).code == 0
    assert call("signal", "asks", "go", "--by", "eve", "--store", url).code == 0
    sent = [event.by for event in hf.events("asks", kind="SignalReceived", store=path)]
    assert sent == ["admin-ada", "admin-ada/eve"]


def test_requests_to_many_runs_are_left_once(served, call):
    url, _ = served
    words = ("resume", "--where", "status=failed", "--store", url, "--json")
    first, second = call(*words), call(*words)
    assert (first.json["asked"], second.json["repeated"]) == (1, 1), (first, second)
    (asked,) = call("requests", "failed", "--store", url, "--json").json
    assert (asked["verb"], asked["by"]) == ("resume", "admin-ada")


def test_a_run_is_deleted_on_the_server(served, call, monkeypatch):
    url, path = served
    hf.run(flow, {}, run_id="over", store=path)
    refused = call("delete", "over", "--store", url)
    assert (refused.code, f"holdfast delete over --yes --store {url}" in refused.err) == (2, True), refused
    assert call("delete", "asks", "--yes", "--store", url).code == 4
    assert call("delete", "over", "--yes", "--store", url).code == 0
    monkeypatch.setenv("HOLDFAST_TOKEN", f"operate.{SECRET}")
    assert "needs the role 'admin'" in call("delete", "asks", "--yes", "--store", url).err


def test_a_dry_run_suggests_the_command_for_this_place(served, call):
    ended = call("retry", "failed", "--dry-run", "--store", served[0])
    assert ended.code == 0, ended
    assert f"--no-execute --store {served[0]}" in ended.out


def test_an_unknown_run_is_reported_with_the_most_similar_one(served, call):
    ended = call("show", "fialed", "--store", served[0])
    assert ended.code == 3
    assert "Did you mean 'failed'?" in ended.err


def test_a_token_without_the_role_is_refused(served, call, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TOKEN", f"read.{SECRET}")
    ended = call("cancel", "asks", "--store", served[0])
    assert ended.code == 2
    assert "needs the role 'operate'" in ended.err


def test_the_store_in_the_environment_may_be_a_server(served, call, monkeypatch):
    monkeypatch.setenv("HOLDFAST_STORE", served[0])
    assert {run["id"] for run in call("runs", "--json").json} == {"asks", "failed"}
    shown = call("show", "failed")
    assert "--no-execute" in shown.out, shown
