"""A backup or a restore that cannot be written says where and why, in our own words, and leaves nothing half-made."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
from holdfast.errors import SettingError, StoreFull, StoreUnusable
from holdfast.storage.contract import Store
from holdfast.storage.files import copies
from holdfast.storage.files.restoring import back_up, restore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.urls import open_store
from holdfast.testing.appends import Log
from postgres_server import _binaries, drop_schema, schema_for, shared_url


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "runs.db")
    assert store.append([Log("r").create(b'{"noise":"%s"}' % os.urandom(100_000).hex().encode())]) == [None]
    yield store
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own that is nearly full."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = forked.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this machine gives us no disk of our own")
    yield place
    forked.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("PATH", f"{_binaries()}{os.pathsep}{os.environ['PATH']}")
    server, name = shared_url(), schema_for(tmp_path)
    store = open_store(f"{server}{'&' if '?' in server else '?'}schema={name}")
    yield store
    store.close()
    drop_schema(server, name)


def test_a_backup_of_postgresql_to_a_place_that_cannot_be_blames_the_place(
    postgres: Store, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StoreUnusable,
        match=r"was not copied to .*/file/copy: (File exists|Not a directory).*The store itself is intact",
    ):
        back_up(postgres, str(tmp_path / "file" / "copy"))


def test_a_restore_to_a_place_that_cannot_be_blames_the_place(store: SqliteStore, tmp_path: Path) -> None:
    back_up(store, str(tmp_path / "copy"))
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StoreUnusable,
        match=r"copy was not restored to .*/file/new\.db: (File exists|Not a directory).*is unchanged",
    ):
        restore(str(tmp_path / "copy"), str(tmp_path / "file" / "new.db"))


def test_a_backup_to_a_full_disk_names_that_disk_and_not_the_store(
    store: SqliteStore, small_disk: Path
) -> None:
    with pytest.raises(
        StoreFull, match=r"runs\.db was not copied to .*/small/copy: No space left.*itself is intact"
    ):
        back_up(store, str(small_disk / "copy"))
    assert list(small_disk.iterdir()) == []


def test_a_restore_to_a_full_disk_says_so_and_leaves_nothing(
    store: SqliteStore, tmp_path: Path, small_disk: Path
) -> None:
    back_up(store, str(tmp_path / "copy"))
    with pytest.raises(StoreFull, match=r"copy was not restored to .*/small/new\.db: No space left"):
        restore(str(tmp_path / "copy"), str(small_disk / "new.db"))
    assert list(small_disk.iterdir()) == []


def test_a_place_without_hard_links_takes_a_backup_and_still_nothing_is_overwritten(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    back_up(store, str(tmp_path / "copy"))
    copy = SqliteStore(tmp_path / "copy")
    assert copy.run("r").seq == 1
    copy.close()
    (tmp_path / "other").write_text("other")
    with pytest.raises(SettingError, match=r"another process created .* in the meantime"):
        copies.name_file(str(tmp_path / "other"), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes().startswith(b"SQLite format 3")
