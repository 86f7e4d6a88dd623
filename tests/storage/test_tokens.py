"""Tokens as stores keep them, and their text."""

import os
from contextlib import closing

import apsw
import msgspec
import pytest

from holdfast.errors import CodecError, StoreCorrupt
from holdfast.storage import schema, tokens
from holdfast.storage.files.restoring import back_up, restore
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.database import APPLICATION_ID
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.urls import open_store
from holdfast.testing.appends import raises
from holdfast.testing.tokens import TokensConformance, make_token
from postgres_server import (
    _binaries,
    drop_schema,
    execute,
    lend_schema,
    return_schema,
    schema_for,
    shared_url,
)


class TestMemoryTokens(TokensConformance):
    def open(self, folder, clock):
        return MemoryStore(folder.name, clock=clock)


class TestSqliteTokens(TokensConformance):
    def open(self, folder, clock):
        return SqliteStore(folder / "runs.db", clock=clock)

    def test_a_store_of_an_older_version_gets_tokens(self):
        connection = apsw.Connection(str(self.folder / "older.db"))
        for migration in schema.migrations("sqlite")[:5]:
            connection.execute(migration)
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", 5)
        connection.close()
        with closing(SqliteStore(self.folder / "older.db")) as store:
            assert store.tokens.all() == []
            store.tokens.add(make_token())
            assert store.tokens.get("t1") == make_token()
            assert store.check() == []

    def test_a_damaged_token_is_reported(self):
        self.tokens.add(make_token())
        with closing(apsw.Connection(str(self.folder / "runs.db"))) as connection:
            connection.execute("update tokens set role = 'king'")
        with raises(StoreCorrupt, "'t1'", "backup"):
            self.tokens.get("t1")


class TestPostgresTokens(TokensConformance):
    def open(self, folder, clock):
        return PostgresStore(shared_url(), schema=lend_schema(shared_url(), folder), clock=clock)

    def teardown_method(self):
        super().teardown_method()
        return_schema(shared_url(), self.folder)

    def test_a_store_of_an_older_version_gets_tokens(self):
        name = lend_schema(shared_url(), self.folder)
        self.store.close()
        drop_schema(shared_url(), name)
        execute(
            shared_url(),
            f'create schema "{name}"',
            *schema.migrations("postgres", name)[:8],
            f"insert into \"{name}\".meta (name, value) values ('schema_version', '8')",
        )
        store = self.open_again()
        assert store.tokens.all() == []
        store.tokens.add(make_token())
        assert store.tokens.get("t1") == make_token()

    def test_text_that_postgresql_cannot_store_is_refused(self):
        with raises(CodecError):
            self.tokens.add(make_token(name="a\0b"))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_restored_store_has_the_tokens_of_its_backup(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{_binaries()}{os.pathsep}{os.environ['PATH']}")
    name = schema_for(tmp_path)
    if kind == "sqlite":
        url, other = f"sqlite:///{tmp_path}/runs.db", f"sqlite:///{tmp_path}/other.db"
    else:
        url = other = f"{shared_url()}&schema={name}"
    token = make_token(kind="agent", role="operate", expires_at=99.25)
    with closing(open_store(url)) as store:
        store.tokens.add(token)
        store.tokens.revoke("t1", 7.0)
        back_up(store, str(tmp_path / "copy"))
    drop_schema(shared_url(), name)
    with closing(open_store(restore(str(tmp_path / "copy"), other))) as store:
        assert store.tokens.all() == [msgspec.structs.replace(token, revoked_at=7.0)]
        assert store.check() == []
    drop_schema(shared_url(), name)


def test_a_new_token_has_an_id_and_a_secret_of_256_bits():
    token_id, secret = tokens.split(tokens.new_text())
    assert len(secret) == 43
    assert len(token_id) == 12
    assert tokens.new_text() != tokens.new_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a.",
        ".b",
        "abc",
        "a.short",
        "a b.0123456789abcdef",
        "a.0123456789abcdef.x",
        "é.0123456789abcdef",
        "a.0123456789abcdef\n",
    ],
)
def test_another_text_is_not_a_token(text):
    assert tokens.split(text) is None


def test_only_the_secret_of_a_token_fits_it():
    token = make_token(digest=tokens.digest_of("right"))
    assert token.fits("right")
    assert not token.fits("wrong")
    assert not token.fits("")
    assert not token.fits("\ud800")


def test_a_token_is_valid_until_it_expires_or_is_revoked():
    assert make_token().is_valid(1e12)
    assert make_token(expires_at=10.0).is_valid(9.9)
    assert not make_token(expires_at=10.0).is_valid(10.0)
    assert not make_token(revoked_at=3.0).is_valid(1.0)


def test_a_role_may_do_what_the_roles_before_it_may_do():
    for place, role in enumerate(tokens.ROLES):
        assert [tokens.allows(role, other) for other in tokens.ROLES] == [True] * (place + 1) + [False] * (
            len(tokens.ROLES) - place - 1
        )


def test_what_an_agent_does_is_recorded_as_its_own():
    assert make_token(name="ada").actor == "ada"
    assert make_token(name="scout", kind="agent").actor == "agent:scout"
