"""The checker as somebody calls it: on runs that came from an archive, and on what is no store at all."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import SettingError, StoreUnusable
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing import check, checker
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


# --- a run that was archived and put back ----------------------------------------------------------------


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
        store.upkeep.delete("r", store.run("r").seq)
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


# --- what is no store ------------------------------------------------------------------------------------


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
    a_folder: " is a folder, and no store",
    an_empty_file: ": the file is empty",
    a_text: " is no SQLite database",
    a_database_of_others: "is a SQLite database, but no store of Holdfast",
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
        store.upkeep.delete("r", store.run("r").seq)
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
