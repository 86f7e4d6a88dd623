"""The checker and the simulator in the hands of a new user: called with a path that is not a store, with a run from an archive,
and with answers, inputs and flows that cannot be simulated.
"""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import AnswerRefused, SettingError, StateError, StoreUnusable
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing import Receiver, check, checker, simulate
from holdfast.upkeep import archive

HERE = Path(__file__).parent


def asks_twice() -> hf.Flow[Any]:
    graph = Graph("asks", dict)
    graph.ask("first", "Good?", options=["yes", "no"])
    graph.ask("second", "Sure?", options=["yes", "no"])
    return graph.chain(START, "first", "second", END).compile()


async def answered(store: Any, question: str) -> None:
    flow = asks_twice()
    async with hf.Engine(store, flows=[flow]) as engine:
        if question == "first":
            await engine.run(flow, {}, run_id="r")
        await engine.answer("r", question, "yes")
        await engine.resume("r")


@dataclass
class Letter:
    to: str
    tone: str = ""
    note: str = ""


def asks(send: Any = lambda ctx: None, **options: Any) -> hf.Flow[Letter]:
    graph = Graph("letters", Letter)
    graph.ask("tone", "How?", into="tone", **options)

    @graph.node(name="send")
    async def send_it(state: Letter, ctx: hf.Context) -> dict[str, Any]:
        send(ctx)
        return {"note": f"{state.tone} to {state.to}"}

    return graph.chain(START, "tone", "send", END).compile()


def notes(flow: hf.Flow[Letter], answers: Any) -> set[str]:
    seen: set[str] = set()
    report = simulate(
        flow, Letter("eve"), seeds=range(6), answers=answers, compare=lambda values: seen.add(values["note"])
    )
    assert report.ok, report
    assert report
    return seen


# --- a run that was archived and put back ------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["into another store", "into the same store"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_run_that_was_put_back_from_an_archive_has_no_violation(
    kind: str, again: bool, tmp_path: Path
) -> None:
    def opened(name: str) -> Any:
        return MemoryStore() if kind == "memory" else SqliteStore(tmp_path / name)

    store = opened("one.db")
    asyncio.run(answered(store, "first"))
    assert check(store) == []
    fence = store.run("r").fence
    place = archive.archive(store, "r", tmp_path / "r.zst").place
    if again:
        assert not store.upkeep.delete({"r": store.run("r").seq})
    else:
        store.close()
        store = opened("two.db")
    archive.put_back(store, place)
    assert check(store) == []
    assert 0 < store.run("r").fence <= fence
    asyncio.run(answered(store, "second"))
    assert store.run("r").status == "completed"
    assert check(store, at_end=True) == []
    store.close()


# --- what is no store --------------------------------------------------------------------------------


def missing(place: Path) -> None:
    assert not place.exists()


def a_folder(place: Path) -> None:
    place.mkdir()


def an_empty_file(place: Path) -> None:
    place.touch()


def a_text(place: Path) -> None:
    place.write_text("this is no database at all, and long enough to have a header\n" * 20)


def a_database_of_others(place: Path) -> None:
    database = sqlite3.connect(place)
    database.execute("create table mine (a)")
    database.close()


TOLD = {
    missing: "there is no store at ",
    a_folder: " is a folder, not a store",
    an_empty_file: ": the file is empty",
    a_text: " is not a SQLite database",
    a_database_of_others: "is a SQLite database, but not a Holdfast store",
}


@pytest.mark.parametrize("make", TOLD, ids=lambda make: make.__name__)
def test_what_is_no_store_is_told_in_one_line(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "runs.db"
    make(place)
    before = sorted(tmp_path.rglob("*"))
    assert checker.main([str(place)]) == 6
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert TOLD[make] in said.err
    assert str(place) in said.err
    with pytest.raises(StoreUnusable):
        check(place)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_wrong_call_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checker.main(["postgress://host/db"]) == 2
    assert "did you mean 'postgresql'" in capsys.readouterr().err
    with pytest.raises(SettingError, match="scheme"):
        check("nosuch://host/db")
    store = SqliteStore(tmp_path / "runs.db")
    store.close()
    with pytest.raises(SystemExit) as left:
        checker.main([str(tmp_path / "runs.db"), "--witness", str(tmp_path / "none.jsonl")])
    assert left.value.code == 2
    assert "there is no witness file" in capsys.readouterr().err


def test_a_url_of_a_file_is_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    asyncio.run(answered(store, "first"))
    store.close()
    url = f"sqlite:///{tmp_path}/runs.db"
    assert check(url) == []
    assert checker.main([url]) == 0
    assert capsys.readouterr().out == f"{url}: no violations\n"


def test_a_store_in_memory_is_found_by_its_name() -> None:
    store = MemoryStore("checked-newcomer")
    asyncio.run(answered(store, "first"))
    assert check("memory://checked-newcomer") == []
    assert store.run("r").status == "waiting"  # whoever checks closes nothing of others
    store.close()


def test_a_store_in_postgresql_is_checked_by_its_url(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres = pytest.importorskip("holdfast.storage.postgres.store")
    sys.path.insert(0, str(HERE.parent))
    from postgres_server import drop_schema, schema_for, shared_url

    schema = schema_for(tmp_path)
    url = f"{shared_url()}{'&' if '?' in shared_url() else '?'}schema={schema}"
    assert checker.main([url]) == 6  # it is not made
    assert "there is no store at postgresql://" in capsys.readouterr().err
    store = postgres.PostgresStore(url)
    try:
        asyncio.run(answered(store, "first"))
        assert checker.main([url]) == 0
        assert "no violations" in capsys.readouterr().out
        place = archive.archive(store, "r", tmp_path / "r.zst").place
        assert not store.upkeep.delete({"r": store.run("r").seq})
        archive.put_back(store, place)
        assert check(url) == []
    finally:
        store.close()
        drop_schema(shared_url(), schema)


def test_the_command_has_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.testing.checker", "runs.db"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 6
    assert "Traceback" not in done.stderr


# --- a simulation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answers",
    [
        {"tone": "dry"},
        {"tone": ["dry"]},
        {"tone": lambda question: "dry"},
        lambda node, iteration, options: "dry",
    ],
    ids=["value", "list", "function of the question", "function"],
)
def test_answers_are_given_as_elsewhere(answers: Any) -> None:
    assert notes(asks(), answers) == {"dry to eve"}


def test_what_nobody_answers_is_answered_by_default_where_there_are_options() -> None:
    assert notes(asks(options=["warm", "dry"]), None) == {"warm to eve"}
    with pytest.raises(SettingError, match=r"but has no answer: give answers=\{'tone': …\}"):
        simulate(asks(), Letter("eve"), seeds=range(2))


def test_a_wrong_answer_is_refused_at_once() -> None:
    with pytest.raises(AnswerRefused, match="did you mean 'dry'"):
        simulate(asks(options=["dry", "warm"]), Letter("eve"), seeds=range(2), answers={"tone": "dyr"})
    with pytest.raises(AnswerRefused, match="tone"):
        simulate(asks(), Letter("eve"), seeds=range(2), answers={"tone": 3})
    with pytest.raises(SettingError, match="did you mean 'tone'"):
        simulate(asks(), Letter("eve"), seeds=range(2), answers={"ton": "dry"})


def test_a_wrong_input_is_refused_at_once() -> None:
    with pytest.raises(StateError, match="the state lacks 'to'"):
        simulate(asks(), {}, seeds=range(2), answers={"tone": "dry"})


def test_signals_are_names_and_payloads() -> None:
    with pytest.raises(SettingError, match="give a dict of names and payloads"):
        simulate(asks(), Letter("eve"), seeds=range(2), answers={"tone": "dry"}, signals=["go"])


def test_a_plain_node_that_waits_by_its_context_is_refused_once() -> None:
    graph = Graph("waits", dict)

    @graph.node
    def nap(state: dict[str, Any], ctx: hf.BlockingContext) -> None:
        ctx.sleep(1)

    with pytest.raises(SettingError, match="node 'nap' is a plain function that waits through its context"):
        simulate(graph.chain(START, "nap", END).compile(), {}, seeds=range(3))


def test_a_plain_node_that_only_looks_at_its_context_is_simulated() -> None:
    graph = Graph("looks", dict)

    @graph.node
    def look(state: dict[str, Any], ctx: hf.BlockingContext) -> dict[str, Any]:
        return {"node": ctx.node}

    assert simulate(graph.chain(START, "look", END).compile(), {}, seeds=range(3)).ok


def test_a_flow_that_does_not_complete_without_faults_is_told_once() -> None:
    def fails(ctx: hf.Context) -> None:
        raise ValueError("no stamps")

    report = simulate(asks(fails), Letter("eve"), seeds=range(5), answers={"tone": "dry"})
    assert not report.ok
    assert len(report.violations) == 1
    assert "without any fault: r failed at send: ValueError: no stamps" in report.violations[0].text
    assert "answers=, signals= and resources=" in report.violations[0].text


def test_an_effect_that_happens_twice_is_a_violation() -> None:
    post = Receiver("post")
    report = simulate(
        asks(lambda ctx: ctx.resources["post"].send("letter")),
        Letter("eve"),
        seeds=range(120, 180),
        answers={"tone": "dry"},
        resources={"post": post},
    )
    assert not report.ok
    told = {violation.text for violation in report.violations}
    assert "r: 'letter' happened 2 times at 'post' (without faults: 1)" in told
    assert all("at 'post' (without faults: 1)" in one for one in told)


def test_an_effect_with_its_key_happens_once_in_every_schedule() -> None:
    report = simulate(
        asks(lambda ctx: ctx.resources["post"].send("letter", key=ctx.idempotency_key())),
        Letter("eve"),
        seeds=range(40),
        answers={"tone": "dry"},
        resources={"post": Receiver("post")},
    )
    assert report.ok, report
