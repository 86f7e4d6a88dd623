"""What somebody who runs a fleet meets: nothing is left behind, nobody is alarmed without a reason, and what is told is true."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from command_line import Cli, caller, furnish
from holdfast import END, START, Graph
from holdfast.cli.exits import Exit
from holdfast.runtime.worker import Trouble
from holdfast.storage.queues import Taken, Wanted
from holdfast.testing.clock import ManualClock
from postgres_server import drop_schema, schema_for, shared_url

PATIENCE_S = 60


async def nothing(state: dict[str, Any]) -> dict[str, Any]:
    return {"done": True}


def flow_of(body: Callable[..., Any] = nothing) -> hf.Flow[Any]:
    graph = Graph("one", dict)
    graph.node(name="only")(body)
    return graph.chain(START, "only", END).compile()


def use(store: Path, does: Callable[[hf.Engine], Awaitable[Any]], **options: Any) -> Any:
    """What one process does with a store."""

    async def main() -> Any:
        async with hf.Engine(str(store), **options) as engine:
            return await asyncio.wait_for(does(engine), PATIENCE_S)

    return asyncio.run(main())


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    furnish(tmp_path, monkeypatch, one=FLOW)
    return caller(capsys)


FLOW = """
from holdfast import END, START, Graph

graph = Graph("one", dict)

@graph.node
def only(state):
    return {"done": True}

flow = graph.chain(START, only, END).compile()
"""


# --- a worker that is to leave when nothing is left ----------------------------------------------------


def test_a_worker_until_idle_does_all_of_a_queue_that_is_limited(tmp_path: Path) -> None:
    full = asyncio.Event()

    async def waits(state: dict[str, Any]) -> None:
        """Until its worker has looked for more, and found that there is no room."""
        await full.wait()
        full.clear()

    flow, ended = flow_of(waits), list[tuple[str, str]]()

    async def works(engine: hf.Engine) -> None:
        for run_id in ("a", "b", "c"):
            await engine.start(flow, {}, run_id=run_id, queue="narrow")
        queues = engine.store.queues
        queues.limit("narrow", 1)
        take = queues.take

        def watched(holder: Any, wanted: Wanted) -> list[Taken]:
            taken: list[Taken] = take(holder, wanted)
            if not taken:
                full.set()
            return taken

        queues.take = watched
        await engine.work(until="idle", on_end=lambda run: ended.append((run.id, run.status)))

    use(tmp_path / "runs.db", works, flows=[flow], clock=ManualClock(auto=True), inline=True)
    assert ended == [("a", "completed"), ("b", "completed"), ("c", "completed")]


# --- a worker that stood still -------------------------------------------------------------------------


def test_a_run_that_others_did_meanwhile_is_not_told_as_one_that_cannot_go_on(tmp_path: Path) -> None:
    flow, clock, told = flow_of(), ManualClock(auto=True), list[Trouble]()

    def stands_still(engine: hf.Engine) -> None:
        """Right after its next take that got something, for longer than its lease; another worker carries the run on."""
        queues = engine.store.queues
        take = queues.take

        def late(holder: Any, wanted: Wanted) -> list[Taken]:
            taken: list[Taken] = take(holder, wanted)
            if taken:
                queues.take = take
                clock.advance(engine.settings.lease_ttl + 1)
                another = threading.Thread(
                    target=use,
                    args=(tmp_path / "runs.db", lambda other: other.work(until="idle")),
                    kwargs={"flows": [flow], "clock": clock, "inline": True},
                )
                another.start()
                another.join()
                assert engine.store.run("r").status == "completed"
            return taken

        queues.take = late

    async def works(engine: hf.Engine) -> None:
        await engine.start(flow, {}, run_id="r")
        stands_still(engine)
        await engine.work(until="idle", on_report=told.append)

    use(tmp_path / "runs.db", works, flows=[flow], clock=clock, inline=True)
    (trouble,) = told
    assert trouble.message == (
        "run 'r' was claimed by another engine, because the lease of this engine had ended: it was not renewed for more than "
        "30 s, as in a process that is suspended or whose event loop is blocked. This engine starts no more of its nodes"
    )


# --- damage --------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(cli: Cli, tmp_path: Path) -> Path:
    """A store with the run `r`, in whose third event a byte is not what it was."""
    store = tmp_path / "runs.db"
    assert cli("run", "one.py", "--run-id", "r", "--store", str(store)).code == Exit.OK
    with sqlite3.connect(store) as database:
        (body,) = database.execute("select body from events where seq = 3").fetchone()
        database.execute("update events set body = ? where seq = 3", (body[:-1] + b"]",))
    database.close()
    return store


@pytest.mark.parametrize(
    "words", [("show", "r"), ("events", "r"), ("state", "r"), ("resume", "r", "one.py")], ids=" ".join
)
def test_an_event_that_cannot_be_read_is_named_with_its_run_and_the_way_out(
    cli: Cli, damaged: Path, words: tuple[str, ...]
) -> None:
    ended = cli(*words, "--store", str(damaged))
    assert ended.code == Exit.STORE
    assert "run 'r', event 3: an event of kind 'NodeCompleted' cannot be read" in ended.err
    assert f"`holdfast verify r --store {damaged}` says more" in ended.err


DAMAGES = {
    "labels": (
        "update runs set labels = 'nope' where run_id = 'r'",
        "run 'r': the row of this run is damaged",
    ),
    "active": (
        "update runs set active = '{}' where run_id = 'r'",
        "run 'r': the row of this run is damaged",
    ),
    "rewinds": (
        "update runs set rewinds = '[[1]]' where run_id = 'r'",
        "run 'r': the row of this run is damaged",
    ),
    "version": (
        """update events set body = cast('{"v": "x"}' as blob) where seq = 3""",
        "run 'r', event 3: an event of kind 'NodeCompleted' cannot be read",
    ),
    "definition": (
        "update definitions set body = x'00'",
        "run 'r': the definition of its flow cannot be read",
    ),
    "generation": ("delete from meta where name = 'generation'", "(its generation) is missing"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_told_as_damage_with_its_run_and_not_as_a_defect(
    cli: Cli, tmp_path: Path, what: str
) -> None:
    store = tmp_path / "runs.db"
    assert cli("run", "one.py", "--run-id", "r", "--store", str(store)).code == Exit.OK
    statement, told = DAMAGES[what]
    with sqlite3.connect(store) as database:
        database.execute(statement)
    database.close()
    ended = cli("show", "r", "--store", str(store))
    assert (ended.code, "defect" in ended.err) == (Exit.STORE, False)
    assert told in ended.err
    for words in ("verify",), ("doctor",), ("runs",), ("fork", "r"), ("checkpoints", "r"), ("recover",):
        assert cli(*words, "--store", str(store)).code != Exit.DEFECT, words


@pytest.mark.parametrize(
    "statement",
    [
        "update events set at = 1e300 where seq = 3",
        "update events set at = 9e999 where seq = 3",
        "update runs set updated_at = -1e300, created_at = -1e300, status = 'pending'",
        "update runs set status = 'dancing'",
        "delete from events",
    ],
)
def test_no_value_in_a_row_keeps_a_store_from_being_looked_at(
    cli: Cli, tmp_path: Path, statement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store, cli = (
        tmp_path / "runs.db",
        caller(capsys, tries_suggestions=False),
    )  # what is damaged cannot be resumed
    assert cli("run", "one.py", "--run-id", "r", "--store", str(store)).code == Exit.OK
    with sqlite3.connect(store) as database:
        database.execute(statement)
    database.close()
    for words in ("runs",), ("show", "r"), ("events", "r"), ("checkpoints", "r"), ("doctor",), ("fork", "r"):
        assert cli(*words, "--store", str(store)).code != Exit.DEFECT, words
    assert cli("verify", "--store", str(store)).code == Exit.DAMAGED


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("update definitions set body = x'00'", "is not what was written"),
        (
            "update definitions set body = cast(replace(cast(body as text), 'only', 'lone') as blob)",
            "is not what was written",
        ),
        ("delete from definitions", "is not in the store"),
    ],
    ids=["unreadable", "another", "gone"],
)
def test_verify_looks_at_the_definition_of_a_flow_too(
    cli: Cli, tmp_path: Path, statement: str, told: str
) -> None:
    store = tmp_path / "runs.db"
    assert cli("run", "one.py", "--run-id", "r", "--store", str(store)).code == Exit.OK
    assert cli("verify", "--store", str(store)).code == Exit.OK
    with sqlite3.connect(store) as database:
        database.execute(statement)
    database.close()
    ended = cli("verify", "--store", str(store))
    assert ended.code == Exit.DAMAGED
    assert f"{told}\n" in ended.out + ended.err
    assert "the definition of its flow (" in ended.out + ended.err


def test_a_damaged_run_is_not_archived_and_no_file_is_named_that_nobody_knows(
    cli: Cli, damaged: Path, tmp_path: Path
) -> None:
    ended = cli("archive", "r", "--to", str(tmp_path / "kept"), "--store", str(damaged))
    assert ended.code == Exit.STORE
    assert (
        "run 'r' was not archived, because its log is damaged: event 3 (NodeCompleted) was altered after it was written"
        in ended.err
    )
    assert f"`holdfast verify r --store {damaged}` says more" in ended.err
    assert ".holdfast-" not in ended.err
    assert not (tmp_path / "kept").exists()


# --- a server that takes no writes -----------------------------------------------------------------------


@pytest.fixture
def read_only(cli: Cli, tmp_path: Path) -> Iterator[str]:
    """The URL of a store in PostgreSQL, as it is after somebody made the server read-only."""
    server, schema = shared_url(), schema_for(tmp_path)
    url = f"{server}{'&' if '?' in server else '?'}schema={schema}"
    assert cli("run", "one.py", "--run-id", "r", "--store", url).code == Exit.OK
    yield f"{url}&options=-cdefault_transaction_read_only%3Don"
    drop_schema(server, schema)


def test_doctor_tells_that_the_store_takes_no_writes(cli: Cli, read_only: str) -> None:
    ended = cli("doctor", "--store", read_only)
    assert ended.code == Exit.STUCK
    assert "store: the database accepts no writes, because default_transaction_read_only is on" in ended.out


def test_a_run_that_could_not_be_recorded_is_to_be_started_again_and_not_resumed(
    cli: Cli, read_only: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LEASE_TTL", "1")
    ended = cli("start", "one.py", "--run-id", "s", "--store", read_only)
    assert ended.code == Exit.STORE
    assert "run 's' could not be recorded for" in ended.err
    assert "the server accepts no writes" in ended.err
    assert "Start it again when the store works, with the same id: it is then the same run" in ended.err
    assert "resume" not in ended.err


# --- what is told ----------------------------------------------------------------------------------------

ASKS = """
from holdfast import END, START, Graph

graph = Graph("asks", dict)
graph.ask("sure", lambda state: state["text"])
flow = graph.chain(START, "sure", END).compile()
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "sure asks: (since"),
        ("\n\nReally?\nThink.", "sure asks: Really? (since"),
        ("why " * 500, "sure asks: " + "why " * 99 + "why… (since"),
    ],
    ids=["no text", "first line is empty", "long"],
)
def test_doctor_tells_of_a_question_whatever_its_words(
    cli: Cli, tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "asks.py").write_text(ASKS, "utf-8")
    given = json.dumps({"text": text})
    assert cli("run", "asks.py", "--input", given, "--store", "runs.db").code == Exit.WAITS
    ended = cli("doctor", "--store", "runs.db")
    assert ended.code == Exit.WAITS
    assert told in " ".join(ended.out.split())


def test_a_flow_that_the_project_does_not_list_is_not_blamed_on_a_file_that_nobody_gave(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "asks.py").write_text(ASKS, "utf-8")
    assert (
        cli("run", "asks.py", "--input", '{"text": "?"}', "--run-id", "a", "--store", "runs.db").code
        == Exit.WAITS
    )
    (tmp_path / "pyproject.toml").write_text('[tool.holdfast]\nflows = ["one.py"]\n', "utf-8")
    ended = cli("resume", "a", "--store", "runs.db")
    assert ended.code == Exit.USAGE
    assert (
        "run 'a' belongs to flow 'asks', which is not known here. Known flows: 'one'. Name the file that defines it"
        in ended.err
    )
    assert "file given" not in ended.err
