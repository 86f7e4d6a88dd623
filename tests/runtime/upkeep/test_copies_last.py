"""A backup or an archive has its name only when all of it is on the disk: synced before it is named, and its folder afterwards.
What is called is watched, and done.
"""

from __future__ import annotations

import asyncio
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.storage.contract import Store
from holdfast.storage.files import restoring
from holdfast.storage.urls import open_store
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import archive
from postgres_server import _binaries, drop_schema, schema_for, shared_url

graph = Graph("one", dict)


@graph.node
async def only(state: dict[str, Any]) -> dict[str, Any]:
    return {"big": "x" * 40_000}


flow = graph.chain(START, only, END).compile()


class Disk:
    """What was done that outlives a power failure, in order: syncs with what was there to sync, and new names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, Any, int]] = []
        """What, of which file or folder (by number), and how many bytes it had."""
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._syncing(getattr(os, name)))
        for name in ("link", "replace"):
            monkeypatch.setattr(os, name, self._naming(getattr(os, name)))

    def _syncing(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(handle: int) -> None:
            real(handle)
            found = os.fstat(handle)
            self.done.append(
                ("folder" if stat.S_ISDIR(found.st_mode) else "file", found.st_ino, found.st_size)
            )

        return sync

    def _naming(self, real: Callable[..., None]) -> Callable[..., None]:
        def name(source: Any, target: Any) -> None:
            found = os.stat(source)
            real(source, target)
            self.done.append(("name", found.st_ino, found.st_size))

        return name

    def require_last(self, file: str | Path) -> None:
        """A file got its name when all of its bytes were synced, and its folder was synced afterwards."""
        found = os.stat(file)
        folder = os.stat(Path(file).parent).st_ino
        named = self.done.index(("name", found.st_ino, found.st_size))
        assert ("file", found.st_ino, found.st_size) in self.done[:named], "it has its name before its bytes"
        later = [inode for what, inode, _ in self.done[named:] if what == "folder"]
        assert folder in later, "its name may be lost"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    schema = schema_for(tmp_path)
    urls = {"memory": f"memory://{tmp_path.name}", "sqlite": str(tmp_path / "runs.db")}
    url = urls.get(request.param) or f"{shared_url()}&schema={schema}"
    if request.param == "postgres":
        monkeypatch.setenv("PATH", f"{_binaries()}{os.pathsep}{os.environ['PATH']}")
    clock = ManualClock(auto=True)

    async def main() -> None:
        async with hf.Engine(
            url, flows=[flow], clock=clock, luck=random.Random(1), inline=True, blob_over=10_000
        ) as engine:
            await engine.run(flow, {}, run_id="r")

    opened = open_store(url, clock=clock.now)
    asyncio.run(main())
    yield opened
    opened.close()
    if request.param == "postgres":
        drop_schema(shared_url(), schema)


def test_an_archive_gets_its_name_when_it_is_on_the_disk(store: Store, tmp_path: Path, disk: Disk) -> None:
    in_a_folder = archive.archive(store, "r", f"{tmp_path}/archive/").place
    by_name = archive.archive(store, "r", str(tmp_path / "r.zst")).place
    for place in (in_a_folder, by_name):
        disk.require_last(place)


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
def test_a_backup_gets_its_name_when_it_is_on_the_disk(store: Store, tmp_path: Path, disk: Disk) -> None:
    restoring.back_up(store, str(tmp_path / "copy"))
    disk.require_last(tmp_path / "copy")
    for blob in tmp_path.glob("copy.blobs/*/*/*"):
        disk.require_last(blob)


def test_a_restored_store_gets_its_name_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "runs.db"))
    restoring.back_up(store, str(tmp_path / "copy"))
    store.close()
    disk = Disk(monkeypatch)
    restoring.restore(str(tmp_path / "copy"), str(tmp_path / "again.db"))
    disk.require_last(tmp_path / "again.db")
