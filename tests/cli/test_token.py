"""`holdfast token`: create, list, revoke."""

from __future__ import annotations

import pytest

from command_line import caller, furnish
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.tokens import split

STORE = "memory://token-test"


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    furnish(tmp_path, monkeypatch)
    return caller(capsys)


@pytest.fixture
def kept():
    store = MemoryStore("token-test")
    store._data.tokens.clear()
    return store.tokens


def test_a_token_is_printed_once_and_stored_as_its_digest(cli, kept):
    ended = cli(
        "token", "create", "scout", "--role", "operate", "--agent", "--expires", "30d", "--store", STORE
    )
    assert ended.code == 0
    token_id, secret = split(ended.out.strip())
    assert "agent:scout (operate, until" in ended.err
    found = kept.get(token_id)
    assert found.fits(secret)
    assert (found.name, found.role, found.kind) == ("scout", "operate", "agent")
    assert found.expires_at == pytest.approx(found.created_at + 30 * 86400)
    listed = cli("token", "list", "--store", STORE)
    assert "scout" in listed.out
    assert secret not in listed.out
    assert "digest" not in cli("token", "list", "--json", "--store", STORE).out


def test_a_token_is_revoked_by_its_id_or_its_name(cli, kept):
    first = cli("token", "create", "ada", "--store", STORE, "--json").json
    assert cli("token", "revoke", first["id"], "--store", STORE).code == 0
    assert kept.get(first["id"]).revoked_at is not None
    second, third = (cli("token", "create", "ada", "--store", STORE, "--json").json for _ in range(2))
    both = cli("token", "revoke", "ada", "--store", STORE)
    assert both.code == 2
    assert second["id"] in both.err
    assert cli("token", "revoke", third["id"], "--store", STORE).code == 0
    assert cli("token", "revoke", "ada", "--store", STORE).code == 0
    assert cli("token", "revoke", "ada", "--store", STORE).code == 2
    assert [one.revoked_at is None for one in kept.all()] == [False] * 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["crate", "ada"], "did you mean 'create'"),
        (["create"], "token create ada"),
        (["create", "a/b"], "token create ada"),
        (["create", "agent:x"], "token create ada"),
        (["create", "ada", "--role", "opperate"], "did you mean 'operate'"),
        (["create", "ada", "--expires", "soon"], "--expires"),
        (["revoke"], "token list"),
    ],
)
def test_a_wrong_request_says_what_is_right(cli, kept, words, told):
    ended = cli("token", *words, "--store", STORE)
    assert ended.code == 2
    assert told in ended.err
    assert kept.all() == []
