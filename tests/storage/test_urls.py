"""From a URL to a store, and failpoints by name."""

import pytest

from holdfast.errors import SettingError
from holdfast.storage import failpoints
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.postgres import store as postgres
from holdfast.storage.postgres.address import Address
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.urls import open_store
from holdfast.testing.appends import Log, hooked
from postgres_server import drop_schema, shared_url


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
def test_a_path_means_sqlite(tmp_path, form):
    store = open_store(form.format(tmp_path / "a b?#%20.db"))
    assert isinstance(store, SqliteStore)
    assert store.path == str(tmp_path / "a b?#%20.db")
    store.close()
    again = open_store(store.url)
    assert again.path == store.path
    again.close()


def test_a_relative_path_is_below_the_folder_of_the_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("runs.db", "sqlite:///runs.db", tmp_path / "runs.db"):
        store = open_store(url)
        assert store.url == f"sqlite:///{tmp_path}/runs.db"
        store.close()


@pytest.mark.parametrize("url", ["memory://", "memory://test_urls"])
def test_a_memory_store_is_one_per_name(url):
    first = open_store(url)
    assert isinstance(first, MemoryStore)
    assert first.url == url
    assert first.append([Log("r1").create()]) == [None]
    first.close()
    assert open_store(url).run("r1").seq == 1
    assert open_store("memory://test_urls_another").appended("r1", 1, b"") is False


def test_the_clock_is_the_callers():
    assert open_store("memory://clocked", clock=lambda: 17).now() == 17.0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://me:ge/heim@host/db", "this PostgreSQL URL cannot be read"),
        ("postgres://me:geheim@host:x/db", "this PostgreSQL URL cannot be read"),
        ("sqlit:///runs.db", "no store has the scheme 'sqlit'; did you mean 'sqlite'"),
        ("redis://:geheim@host", "no store has the scheme 'redis'"),
        ("sqlite://runs.db", "three slashes"),
        ("sqlite:///", "three slashes"),
        ("memory:/x", "memory://name"),
        ("memory://a/b", "memory://name"),
        ("", "empty"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_without_telling_its_password(url, message):
    with pytest.raises(SettingError) as refusal:
        open_store(url)
    assert message in str(refusal.value)
    assert "geheim" not in str(refusal.value)


def test_an_armed_failpoint_that_is_not_listed_is_a_defect():
    failpoints.reach("nowhere")
    reached = []
    with hooked(reached.append), pytest.raises(KeyError, match="nowhere"):
        failpoints.reach("nowhere")
    assert reached == []


# --- looking, and slips ------------------------------------------------------------------------------


def test_a_schema_that_is_only_looked_at_is_left_as_it_is():
    url = f"{shared_url()}"
    name = "rest_looked_at"
    drop_schema(url, name)
    there = f"{url}{'&' if '?' in url else '?'}schema={name}"
    assert not postgres.is_there(there)
    assert not postgres.is_there(there)  # the first look has made nothing
    PostgresStore(url, schema=name).close()
    try:
        assert postgres.is_there(there)
    finally:
        drop_schema(url, name)
    assert not postgres.is_there(there)


def test_an_option_of_a_url_with_a_slip_in_it_is_told_with_the_one_that_was_meant():
    assert "connect_timeout" in Address("postgresql://me@host/db?conect_timeout=3").slip
    assert Address("postgresql://me@host/db?connect_timeout=3").slip == ""
    assert Address("postgresql://me@host/db?zzz=3").slip == ""
