"""`holdfast watch` without a terminal: what it prints, when it looks again, and with which exit code it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from command_line import Cli, caller, furnish
from holdfast.cli.exits import Exit
from holdfast.cli.looks import BROKEN
from holdfast.cli.watch import WatchedList, WatchedRun
from holdfast.cli.watch_frames import Viewport
from holdfast.cli.watch_session import Pace
from holdfast.errors import StoreUnusable
from holdfast.reading.reader import Reader
from holdfast.reading.remedies import CommandLine
from holdfast.reading.watched import AGAIN_S, RunWatch
from holdfast.storage.contract import Query, Store
from holdfast.storage.leases import this_process
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.urls import open_store
from holdfast.testing.builders import History, outline

WORK = """
from holdfast import END, START, Graph

graph = Graph("work", dict)

@graph.node
def only(state):
    if state["fails"]:
        raise ValueError("no")
    return {"done": True}

flow = graph.chain(START, "only", END).compile()
"""
FLOW = outline("START a b END")
NO_SCREEN = (0, 0)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    furnish(tmp_path, monkeypatch, work=WORK)
    return caller(capsys)


def run(cli: Cli, run_id: str, *, fails: bool = False) -> None:
    cli("run", "work.py", "--run-id", run_id, "--input", json.dumps({"fails": fails}))


# --- a run that is over, or is not there -------------------------------------------------------------


def test_a_run_that_is_over_is_shown_and_gives_the_exit_code_of_its_status(cli: Cli) -> None:
    run(cli, "r1")
    ended = cli("watch", "r1")
    assert (ended.code, ended.err) == (Exit.OK, "")
    first, last = ended.out.splitlines()
    assert first.endswith("✓ completed  r1  work  every branch of the flow reached its end")
    assert last == "The run is over: it was completed."
    run(cli, "r2", fails=True)
    ended = cli("watch", "r2")
    assert ended.code == Exit.FAILED
    assert "✗ failed  r2  work  node only failed: ValueError: no" in ended.out
    assert "at work.py:9, in only" in ended.out
    assert "resume r2" in ended.out
    assert ended.out.splitlines()[-1] == "The run is over: it failed."


def test_json_is_a_document_on_a_line_for_each_change(cli: Cli) -> None:
    run(cli, "r1", fails=True)
    ended = cli("watch", "r1", "--json")
    assert ended.code == Exit.FAILED
    (document,) = map(json.loads, ended.out.splitlines())
    assert (document["id"], document["status"]) == ("r1", "failed")
    assert document["reason"] == "node only failed: ValueError: no"
    assert document["nodes"]["only"]["status"] == "failed"
    assert cli("show", "r1", "--json").json["reason"] == document["reason"]


def test_a_run_that_does_not_exist_is_reported_with_one_that_is_similar(cli: Cli) -> None:
    run(cli, "order-1")
    ended = cli("watch", "order-2")
    assert ended.code == Exit.NOT_FOUND
    assert "Did you mean 'order-1'?" in ended.err
    assert "holdfast runs" in ended.err


def test_a_damaged_run_is_reported_and_listed(cli: Cli, tmp_path: Path) -> None:
    run(cli, "r1")
    file = apsw.Connection(str(tmp_path / ".holdfast" / "runs.db"))
    file.execute("update events set body = x'7b' where seq = 2")
    file.execute("update runs set asks = null")  # so that the list reads the log
    file.close()
    ended = cli("watch", "r1")
    assert ended.code == Exit.STORE
    assert "holdfast verify r1" in ended.err
    store = open_store(tmp_path / ".holdfast" / "runs.db")
    watched = lists(store)
    watched.look(0.0, (80, 24))
    frame = watched.frame(Viewport(width=80, height=24, now=0.0))
    assert frame[3][:3] == [("!", BROKEN), " ", ("unreadable", BROKEN)]
    store.close()


def test_options_that_choose_runs_are_refused_for_one_run(cli: Cli) -> None:
    run(cli, "r1")
    for words in (["--attention"], ["--flow", "work"], ["--limit", "3"]):
        ended = cli("watch", "r1", *words)
        assert ended.code == Exit.USAGE
        assert "Watch run 'r1' without them" in ended.err


# --- changes -----------------------------------------------------------------------------------------


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=lambda: 1000.0)


def told(watched: WatchedRun | WatchedList, now: float = 0.0) -> list[str]:
    """Look, and return the lines that are printed, without their times."""
    watched.look(now, NO_SCREEN)
    parts = [[part if isinstance(part, str) else part[0] for part in line] for line in watched.news()]
    return ["".join(line)[10:] for line in parts]


def test_a_line_is_printed_only_if_something_has_changed(store: MemoryStore) -> None:
    history = History("r1", FLOW).created()
    history.write(store)
    watched = WatchedRun(Reader(store), "r1", CommandLine(), streams=False, debug=False)
    assert told(watched)[-1].startswith("◌ pending  r1  outline  recorded, but not started")
    assert told(watched, AGAIN_S) == []
    assert watched.code is None


def lists(store: Store, **conditions: Any) -> WatchedList:
    query = Query(**conditions)
    return WatchedList(Reader(store), query, CommandLine(), attention=False, is_limited=True)


def test_a_list_prints_runs_that_are_new_and_that_do_not_match_any_more(store: MemoryStore) -> None:
    History("r1", FLOW).created().write(store)
    watched = lists(store, status=("pending",))
    assert [line.split()[:3] for line in told(watched)] == [["◌", "pending", "r1"]]
    assert told(watched) == []
    History("r2", FLOW).created().write(store)
    assert [line.split()[2] for line in told(watched)] == ["r2"]
    hf.cancel("r1", store=store)
    assert [line.split()[:3] for line in told(watched)] == [["⊘", "cancelled", "r1"]]
    assert told(watched) == []


# --- looks -------------------------------------------------------------------------------------------


class Counted:
    """A store that counts the calls of its methods."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in ("url", "generation"):
            return found
        self.calls.append(name)
        return found


def test_a_look_at_a_run_that_does_not_change_reads_the_end_of_its_log_and_its_spills(
    store: MemoryStore,
) -> None:
    History("r1", FLOW).created().settled().write(store, holder=this_process())
    counted: Any = Counted(store)
    watch = RunWatch(Reader(counted), "r1", CommandLine())
    watch.look(100.0)
    counted.calls.clear()
    assert not watch.look(100.2)
    assert sorted(counted.calls) == ["blobs", "blobs", "feed"]


def test_the_pace_follows_change() -> None:
    pace = Pace(0.25)
    changed = {"has_changed": True, "is_behind": False}
    still = {"has_changed": False, "is_behind": False}
    assert pace.after_look(0.0, **changed) == 0.25
    assert [pace.after_look(0.0, **still) for _ in range(4)] == [0.5, 1.0, 1.0, 1.0]
    assert pace.after_look(0.0, **changed) == 0.25
    assert pace.after_look(0.0, has_changed=True, is_behind=True) == 0.0


def test_looks_that_take_long_are_rare() -> None:
    assert Pace(1.0).after_look(2.0, has_changed=True, is_behind=False) == 18.0


def test_a_store_that_does_not_answer_is_tried_less_and_less_often() -> None:
    pace = Pace(0.25)
    assert [pace.after_fault() for _ in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    pace.after_look(0.0, has_changed=False, is_behind=False)
    assert pace.after_fault() == 1.0


class Failing(MemoryStore):
    """A store that fails once where it is told to."""

    fails = False

    def now(self) -> float:
        if self.fails:
            self.fails = False
            raise StoreUnusable("no answer")
        return super().now()


def test_a_look_that_failed_loses_no_line() -> None:
    store = Failing(clock=lambda: 1000.0)
    History("r1", FLOW).created().write(store)
    watched = WatchedRun(Reader(store), "r1", CommandLine(), streams=False, debug=False)
    told(watched)
    hf.cancel("r1", store=store, by="ada")
    store.fails = True
    with pytest.raises(StoreUnusable):
        watched.look(AGAIN_S, NO_SCREEN)
    lines = told(watched, 1.1 * AGAIN_S)
    assert lines[0] == "⊘ run  cancelled by ada"
    assert lines[1].startswith("⊘ cancelled  r1")
    assert watched.code == Exit.CANCELLED
