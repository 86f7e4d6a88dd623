"""A store is checked while its runs go on, are compacted and are deleted: none of that is damage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.cli.app import app
from holdfast.reading.verification import verify
from holdfast.storage.contract import Row, RunRow
from holdfast.storage.sqlite.store import SqliteStore


def counting(rounds: int) -> hf.Flow[Any]:
    graph = Graph("count")

    @graph.node
    async def count(state: dict[str, Any]) -> dict[str, Any]:
        return {"n": state.get("n", 0) + 1}

    graph.edge(START, "count")
    graph.branch("count", lambda state: "count" if state["n"] < rounds else END, to=["count", END])
    return graph.compile()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    async def run() -> None:
        async with hf.Engine(store=str(tmp_path / "runs.db")) as engine:
            flow = counting(6)
            for run_id in ("one", "two"):
                await engine.run(flow, run_id=run_id)

    asyncio.run(run())
    return tmp_path / "runs.db"


class _Meanwhile(SqliteStore):
    """A store that something is done to whenever a log was read."""

    then: Callable[[], None] = staticmethod(lambda: None)
    rows_read = 0

    def events(self, *args: Any, **options: Any) -> list[Row]:
        found = super().events(*args, **options)
        self.rows_read += len(found)
        self.then()
        return found


def test_a_run_that_has_gone_on_since_it_was_listed_is_not_damaged(path: Path) -> None:
    store = SqliteStore(path)
    now = store.run("one")
    before = store.events("one", upto=5)[-1]
    listed = RunRow(**{
        **{name: getattr(now, name) for name in RunRow.__struct_fields__},
        "seq": before.seq,
        "digest": before.digest,
        "status": "running",
        "updated_at": before.at,
    })  # fmt: skip
    assert verify(store, "one", row=listed).problems == []
    assert verify(store, "one", row=now).events == now.seq
    store.close()


def test_a_run_that_is_compacted_while_it_is_looked_at_is_not_damaged(path: Path) -> None:
    store = _Meanwhile(path)

    def compact() -> None:
        store.then = lambda: None
        hf.prune("one", 2, compact=True, store=str(path))

    store.then = compact
    assert verify(store, "one").problems == []
    found = verify(store, "one")
    assert found.problems == []
    assert "were compacted" in found.rest
    store.close()


def test_what_is_damaged_is_told_though_the_run_goes_on(path: Path) -> None:
    store = SqliteStore(path)
    with store._database._writer:
        store._database._writer.execute("update events set kind = 'NodeFailed' where run = 1 and seq = 3")
    (problem,) = verify(store, "one", row=store.run("one")).problems
    assert "event 3" in problem
    store.close()


def test_a_log_is_read_once_to_be_checked(path: Path) -> None:
    store = _Meanwhile(path)
    seq = store.run("one").seq
    store.rows_read = 0
    assert verify(store, "one").events == seq
    assert store.rows_read == seq
    store.close()


def test_a_definition_is_read_once_for_all_its_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    definition = SqliteStore.definition

    def counted(self: SqliteStore, fingerprint: str) -> bytes | None:
        read.append(fingerprint)
        return definition(self, fingerprint)

    monkeypatch.setattr(SqliteStore, "definition", counted)
    with pytest.raises(SystemExit):
        app(["verify", "--store", str(path)], prog_name="holdfast")
    assert len(read) == 1


def test_a_run_that_is_deleted_meanwhile_does_not_keep_the_others_from_being_checked(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = SqliteStore.events

    def events(self: SqliteStore, run_id: str, *args: Any, **options: Any) -> list[Row]:
        if run_id == "two":  # the newer one: its row was listed already
            monkeypatch.setattr(SqliteStore, "events", read)
            assert not self.upkeep.delete({"two": self.run("two").seq})
        return read(self, run_id, *args, **options)

    monkeypatch.setattr(SqliteStore, "events", events)
    with pytest.raises(SystemExit) as left:
        app(["verify", "--store", str(path)], prog_name="holdfast")
    assert left.value.code in (0, None)
    assert "✓ 1 run, " in capsys.readouterr().out
