"""`holdfast token`: create, list, revoke."""

from __future__ import annotations

from contextlib import closing

import pytest

from command_line import caller, furnish
from holdfast.storage.tokens import split
from holdfast.storage.urls import open_store
from postgres_server import drop_schema, schema_for, shared_url


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    furnish(tmp_path, monkeypatch)
    return caller(capsys)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    """The URL of a store that exists, of each kind."""
    schema = schema_for(tmp_path)
    url = {
        "memory": f"memory://{schema}",
        "sqlite": f"sqlite:///{tmp_path}/runs.db",
        "postgres": f"{shared_url()}&schema={schema}" if request.param == "postgres" else "",
    }[request.param]
    with closing(open_store(url)):
        yield url
    if request.param == "postgres":
        drop_schema(shared_url(), schema)


@pytest.fixture
def kept(store):
    with closing(open_store(store)) as opened:
        yield opened.tokens


def test_a_token_is_printed_once_and_stored_as_its_digest(cli, store, kept):
    ended = cli(
        "token", "create", "scout", "--role", "operate", "--agent", "--expires", "30d", "--store", store
    )
    assert ended.code == 0
    token_id, secret = split(ended.out.strip())
    assert "agent:scout (operate, until" in ended.err
    found = kept.get(token_id)
    assert found.fits(secret)
    assert (found.name, found.role, found.kind) == ("scout", "operate", "agent")
    assert found.expires_at == pytest.approx(found.created_at + 30 * 86400)
    listed = cli("token", "list", "--store", store)
    assert "scout" in listed.out
    assert secret not in listed.out
    assert "digest" not in cli("token", "list", "--json", "--store", store).out


def test_a_token_is_revoked_by_its_id_or_its_name(cli, store, kept):
    first = cli("token", "create", "ada", "--store", store, "--json").json
    assert cli("token", "revoke", first["id"], "--store", store).code == 0
    assert kept.get(first["id"]).revoked_at is not None
    second, third = (cli("token", "create", "ada", "--store", store, "--json").json for _ in range(2))
    both = cli("token", "revoke", "ada", "--store", store)
    assert both.code == 2
    assert second["id"] in both.err
    assert cli("token", "revoke", third["id"], "--store", store).code == 0
    assert cli("token", "revoke", "ada", "--store", store).code == 0
    assert cli("token", "revoke", "ada", "--store", store).code == 2
    assert [one.revoked_at is None for one in kept.all()] == [False] * 3


@pytest.mark.parametrize("store", ["memory"], indirect=True)
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
def test_a_wrong_request_says_what_is_right(cli, store, kept, words, told):
    ended = cli("token", *words, "--store", store)
    assert ended.code == 2
    assert told in ended.err
    assert kept.all() == []


def test_a_store_that_does_not_exist_is_not_created(cli, tmp_path):
    assert cli("token", "create", "ada", "--store", str(tmp_path / "none.db")).code == 6
    assert not (tmp_path / "none.db").exists()
