"""What no command may print, in text or JSON, on stdout or stderr: the password of a store, however it was typed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.cli import flow_files
from holdfast.cli.app import app
from holdfast.cli.exits import Exit
from holdfast.errors import SettingError
from holdfast.storage.postgres.address import SECRET_OPTIONS, SHOWN_OPTIONS, Address
from holdfast.storage.urls import open_store, shown, sqlite_path
from postgres_server import PostgresServer

SECRET = "geheim"

FLOW = """
from holdfast import END, START, Graph

graph = Graph("asks", dict)

@graph.node
async def only(state, ctx):
    await ctx.ask("go on?", options=["yes", "no"])
    return {}

flow = graph.chain(START, "only", END).compile()
"""

Cli = Callable[..., tuple[int, str]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "asks.py").write_text(FLOW, "utf-8")
    (tmp_path / "pyproject.toml").write_text("", "utf-8")
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOLDFAST_PARK_AFTER", "0")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    flow_files._loaded.clear()


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            app(list(words), prog_name="holdfast")
        seen = capsys.readouterr()
        return int(left.value.code or 0), seen.out + seen.err

    return call


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """A store that cannot be opened without its password."""
    server = PostgresServer()
    try:
        server.execute(f"create role guarded superuser login password '{SECRET}'")
        yield server.url(user=f"guarded:{SECRET}", schema="mine")
    finally:
        server.remove()


def test_no_command_prints_the_password_of_its_store(cli: Cli, guarded: str) -> None:
    calls = [
        ("start", "asks.py", "--run-id", "started"),
        ("start", "asks.py", "--run-id", "started", "--json"),
        ("run", "asks.py", "--run-id", "asked"),
        ("run", "asks.py", "--run-id", "asked", "--json"),
        ("resume", "asked", "asks.py"),
        ("runs",),
        ("show", "asked"),
        ("show", "asked", "--json"),
        ("show", "missing"),
        ("questions",),
        ("questions", "--json"),
        ("doctor", "asks.py"),
        ("doctor", "asks.py", "--json"),
        ("recover",),
        ("queue",),
        ("verify",),
        ("checkpoints", "asked"),
        ("archive", "asked", "--to", "asked.zst"),
        ("unarchive", "asked.zst"),
        ("cancel", "asked"),
        ("resume", "asked", "asks.py", "--debug"),
    ]
    named = 0
    for words in calls:
        code, told = cli(*words, "--store", guarded)
        assert SECRET not in told, words
        assert code != Exit.DEFECT, told
        named += "--store postgresql://guarded@" in told or "--store 'postgresql://guarded@" in told
    assert named >= 8  # the way on is still told, without the password


@pytest.mark.parametrize(
    "dsn",
    [
        f"host=db password={SECRET}",
        f"password = '{SECRET}'",
        f"passwort={SECRET} host=db",
        f"PASSWORD={SECRET}",
        f"postgres:{SECRET}@host/x",
        f"postgresql:{SECRET}",
        f"me:{SECRET}@host",
        f"me:{SECRET[:3]}/{SECRET}@host/x",
    ],
)
def test_what_looks_like_a_database_makes_no_file_of_that_name(cli: Cli, place: Path, dsn: str) -> None:
    before = sorted(place.iterdir())
    for words in (("start", "asks.py"), ("runs",), ("doctor",), ("restore", "asks.py")):
        code, told = cli(*words, "--store", dsn)
        assert code == Exit.USAGE, (words, told)
        assert "postgresql://user:password@host" in told
        assert SECRET not in told
    assert [path for path in sorted(place.iterdir()) if path.name != "__pycache__"] == before


@pytest.mark.parametrize(
    "path", ["./host=db", "year=2026/runs.db", "~me/a:b@c", "runs at 12:30.db", "a@b.db"]
)
def test_a_path_that_only_resembles_one_stays_a_path(path: str) -> None:
    assert sqlite_path(path) == path
    assert shown(path) == path


def test_a_path_object_is_never_taken_for_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store(Path("host=db")).close()
    assert (tmp_path / "host=db").exists()


@pytest.mark.parametrize("option", ["passwort", "pasword", "pw", *sorted(SECRET_OPTIONS)])
def test_only_options_that_are_known_and_harmless_are_shown(option: str) -> None:
    url = f"postgresql://me@host/db?sslmode=require&{option}={SECRET}"
    assert Address(url).url == shown(url) == "postgresql://me@host/db?sslmode=require"
    assert f"{option}={SECRET}" in Address(url).conninfo


def test_an_option_that_nobody_knows_is_refused_without_its_value() -> None:
    with pytest.raises(SettingError) as refused:
        open_store(f"postgresql://me@host/db?passwort={SECRET}")
    assert SECRET not in str(refused.value)


def test_a_url_that_cannot_be_read_is_not_shown_at_all() -> None:
    for url in (
        f"postgresql://me:{SECRET}#@host",
        f"mysql://me:{SECRET}@host/db",
        f"host=db password={SECRET}",
    ):
        assert SECRET not in shown(url)


def test_every_option_of_the_driver_is_either_shown_or_secret() -> None:
    from psycopg import pq

    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    assert known <= SHOWN_OPTIONS | SECRET_OPTIONS
    assert not SHOWN_OPTIONS & SECRET_OPTIONS


def test_the_place_of_an_archive_is_told_without_its_key(cli: Cli, place: Path) -> None:
    cli("run", "asks.py", "--run-id", "asked")
    where = f"memory://key:{SECRET}@{place.name}/asked.zst"
    for words in (("archive", "asked", "--to", where), ("unarchive", where)):
        code, told = cli(
            *words, "--json", "--store", "other.db" if words[0] == "unarchive" else ".holdfast/runs.db"
        )
        assert code == Exit.OK, told
        assert SECRET not in told
        assert place.name in json.loads(told)["place"]
