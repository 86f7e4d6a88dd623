"""Archives that were made to harm the store or the process that puts them back: nothing of them is written."""

from __future__ import annotations

import asyncio
import base64
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.core.event_encoding import Encoded
from holdfast.errors import StoreCorrupt
from holdfast.reading import verification
from holdfast.storage import oversize
from holdfast.storage.contract import Query, Store
from holdfast.storage.files import archives
from holdfast.storage.rows import seal_row
from holdfast.storage.urls import open_store
from holdfast.upkeep import archive
from postgres_server import drop_schema, schema_for, shared_url

LIMITED = """
import resource, sys
most = 1200 * 1024 * 1024
resource.setrlimit(resource.RLIMIT_AS, (most, most))
from holdfast.errors import StoreCorrupt
from holdfast.storage.urls import open_store
from holdfast.upkeep import archive
try:
    archive.put_back(open_store(sys.argv[1]), sys.argv[2])
except StoreCorrupt as refused:
    print(refused)
"""

graph = Graph("work", dict)


@graph.node
async def only(state: dict[str, Any]) -> dict[str, Any]:
    return {"paid": 5, "note": "x" * 5_000}


flow = graph.chain(START, only, END).compile()


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The lines of an archive that is well."""
    folder = tmp_path_factory.mktemp("made")

    async def main() -> None:
        async with hf.Engine(folder / "one.db", flows=[flow], run_base="") as engine:
            await engine.run(flow, {}, run_id="r", labels={"team": "a"})

    asyncio.run(main())
    store = open_store(str(folder / "one.db"))
    made = archive.archive(store, "r", folder / "r.zst")
    store.close()
    return list(archives.read_lines(made.place))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    schema = schema_for(tmp_path)
    urls = {"memory": f"memory://{tmp_path.name}", "sqlite": str(tmp_path / "other.db")}
    store = open_store(urls.get(request.param) or f"{shared_url()}&schema={schema}")
    yield store
    store.close()
    if request.param == "postgres":
        drop_schema(shared_url(), schema)


def forge(file: Path, lines: list[bytes], change: Callable[[dict[str, Any]], None]) -> Path:
    """Write an archive in which each line was changed, with the digest that fits."""
    parts = [msgspec.json.decode(line) for line in lines[:-1]]
    for part in parts:
        change(part)
    encoded = [msgspec.json.encode(part) for part in parts]
    end = msgspec.json.decode(lines[-1]) | {
        "digest": sha256(b"".join(line + b"\n" for line in encoded)).hexdigest()
    }
    file.touch()
    archives.write_lines(str(file), [*encoded, msgspec.json.encode(end)])
    return file


def test_an_archive_that_is_well_is_put_back(other: Store, lines: list[bytes], tmp_path: Path) -> None:
    assert archive.put_back(other, forge(tmp_path / "r.zst", lines, lambda part: None)) == "r"
    assert verification.verify(other, "r").problems == []


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        ("view.status", "failed", "status 'failed', but the log says 'completed'"),
        ("view.error", "nothing was paid", "error 'nothing was paid', but the log says None"),
        ("view.active", ["only"], "active ('only',), but the log says ()"),
        ("view.asks", 3, "asks 3, but the log says 0"),
        ("new.flow", "other", "flow 'other', but the log says 'work'"),
        ("new.labels", {"team": "b"}, "labels {'team': 'b'}, but the log says {'team': 'a'}"),
        ("new.created_at", 1.0, "created_at 1.0, but the log says "),
        ("new.parent", "another", "parent 'another', but the log says None"),
        ("trimmed.base", 3, "its log does not begin after event 3"),
    ],
)
def test_an_archive_whose_row_contradicts_its_log_is_refused(
    other: Store, lines: list[bytes], tmp_path: Path, place: str, value: Any, told: str
) -> None:
    def change(part: dict[str, Any]) -> None:
        if part["part"] == "run":
            outer, inner = place.split(".")
            assert part[outer].get(inner) != value
            part[outer][inner] = value

    file = forge(tmp_path / "r.zst", lines, change)
    with pytest.raises(StoreCorrupt, match="run 'r' is not what was written") as refused:
        archive.put_back(other, file)
    assert told in str(refused.value)
    assert other.runs(Query()) == []


@pytest.mark.parametrize(
    ("kind", "told"), [("definition", "the definition of its flow"), ("blob", "has another content")]
)
def test_an_archive_with_another_definition_or_blob_than_it_names_is_refused(
    other: Store, lines: list[bytes], tmp_path: Path, kind: str, told: str
) -> None:
    blob = msgspec.json.encode({"part": "blob", "digest": sha256(b"paid").hexdigest(), "body": b"paid"})

    def change(part: dict[str, Any]) -> None:
        if part["part"] == kind:
            part["body"] = base64.b64decode(part["body"]).replace(b"o", b"0").replace(b"p", b"q")

    file = forge(tmp_path / "r.zst", [*lines[:2], blob, *lines[2:]], change)
    with pytest.raises(StoreCorrupt, match=told):
        archive.put_back(other, file)
    assert (other.runs(Query()), [*other.blobs.digests()]) == ([], [])


@pytest.mark.parametrize("in_a_file", [False, True])
def test_a_large_archive_is_compared_in_a_file(
    other: Store, lines: list[bytes], tmp_path: Path, in_a_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_TRIAL_BYTES", 0 if in_a_file else 1 << 30)

    def change(part: dict[str, Any]) -> None:
        if part["part"] == "run":
            part["view"]["status"] = "failed"

    with pytest.raises(StoreCorrupt, match="the log says 'completed'"):
        archive.put_back(other, forge(tmp_path / "a.zst", lines, change))
    assert archive.put_back(other, forge(tmp_path / "b.zst", lines, lambda part: None)) == "r"


def put_back_with_little_memory(tmp_path: Path, file: Path) -> str:
    words = [sys.executable, "-c", LIMITED, str(tmp_path / "limited.db"), str(file)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    store = open_store(str(tmp_path / "limited.db"))
    assert store.runs(Query()) == []
    store.close()
    return ended.stdout


@pytest.mark.parametrize(
    "begin", [b'{"part":"blob","digest":"00","body":"', b"", b'{"part":"archive","run_id":"']
)
def test_a_line_without_end_does_not_fill_the_memory(
    tmp_path: Path, lines: list[bytes], begin: bytes
) -> None:
    file = tmp_path / "bomb.zst"
    piece = b"A" * (8 << 20)
    with file.open("wb") as raw, zstandard.ZstdCompressor().stream_writer(raw) as stream:
        if begin.startswith(b'{"part":"blob"'):
            stream.write(lines[0] + b"\n" + lines[1] + b"\n")
        stream.write(begin)
        for _ in range(200):  # 1.6 GB; a longer line would not need more
            stream.write(piece)
    assert file.stat().st_size < 200_000
    told = put_back_with_little_memory(tmp_path, file)
    assert "has a line of more than 268 MB, which no archive of Holdfast has" in told


def test_an_event_that_is_huge_when_decompressed_does_not_fill_the_memory(
    tmp_path: Path, lines: list[bytes]
) -> None:
    size = 4 << 30
    packer = zstandard.ZstdCompressor().compressobj(size=size)
    bomb = b"".join([*(packer.compress(bytes(64 << 20)) for _ in range(size >> 26)), packer.flush()])

    def change(part: dict[str, Any]) -> None:
        if part["part"] == "event":
            part.pop("body", None)
            part["packed"] = base64.b64encode(bomb).decode()

    file = forge(tmp_path / "bomb.zst", lines, change)
    assert "too large when decompressed" in put_back_with_little_memory(tmp_path, file)


@pytest.mark.parametrize("with_blob", [False, True])
def test_a_small_file_with_a_value_of_gigabytes_is_refused_in_a_process_of_its_own(
    tmp_path: Path, lines: list[bytes], monkeypatch: pytest.MonkeyPatch, with_blob: bool
) -> None:
    """`[[],[],…]` takes 24 times as much memory as Python objects as it has bytes."""
    monkeypatch.setattr(archive, "_free_memory", lambda: 0)
    monkeypatch.setattr(archive, "_TRIAL_MEMORY_MIN", 150_000_000)
    value = b"[" + b",".join([b"[]"] * 2_500_000) + b"]"
    file = bomb(tmp_path / "bomb.zst", lines, value, with_blob=with_blob)
    assert file.stat().st_size < 50_000
    store, before = open_store(str(tmp_path / "other.db")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(hf.errors.StoreError, match="needs more than 150 MB of memory, half of what is free"):
        archive.put_back(store, file)
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000
    )  # KB: the text, and no object
    assert (store.runs(Query()), [*store.blobs.digests()]) == ([], [])
    store.close()


def bomb(file: Path, lines: list[bytes], value: bytes, *, with_blob: bool) -> Path:
    """Write an archive whose second and last event sets a field to this value, with digests that fit."""
    head, run, *rest = [msgspec.json.decode(line) for line in lines[:-1]]
    created = next(part for part in rest if part["part"] == "event")
    body, blobs = b'{"changes":{"set":{"n":%s}}}' % value, ()
    if with_blob:
        body, blobs = oversize.take_out(body)
    edited = Encoded("StateEdited", None, 0, 0, 0, body)
    at = created["at"]
    row = seal_row(base64.b64decode(created["digest"]), "r", 2, at, repr(at), edited, bytes(16))
    last = archive.EventPart(**msgspec.structs.asdict(row) | {"body": "", "packed": row.body})
    run |= {"seq": 2, "digest": base64.b64encode(row.digest).decode()}
    definitions = [part for part in rest if part["part"] == "definition"]
    kept = [archive.BlobPart(digest=blob.digest, body=blob.body) for blob in blobs]
    encoded = [msgspec.json.encode(part) for part in (head, run, *definitions, *kept, created, last)]
    digest = sha256(b"".join(line + b"\n" for line in encoded)).hexdigest()
    file.touch()
    archives.write_lines(str(file), [*encoded, msgspec.json.encode(archive.End(events=2, digest=digest))])
    return file


def test_a_large_archive_is_checked_in_a_process_of_its_own(
    other: Store, lines: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_TRIAL_HERE_BYTES", 0)

    def change(part: dict[str, Any]) -> None:
        if part["part"] == "run":
            part["view"]["status"] = "failed"

    with pytest.raises(StoreCorrupt, match="the log says 'completed'"):
        archive.put_back(other, forge(tmp_path / "a.zst", lines, change))
    assert archive.put_back(other, forge(tmp_path / "b.zst", lines, lambda part: None)) == "r"
    assert archive.archive(other, "r", tmp_path / "c.zst").events


def test_definitions_that_fill_the_memory_are_refused(
    tmp_path: Path, lines: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LINE_BYTES_MAX", 20_000)
    part = {"part": "definition", "fingerprint": "x", "body": base64.b64encode(bytes(9_000)).decode()}
    more = [msgspec.json.encode(part | {"fingerprint": f"x{number}"}) for number in range(5)]
    file = forge(tmp_path / "r.zst", [*lines[:2], *more, *lines[2:]], lambda part: None)
    store = open_store(str(tmp_path / "other.db"))
    with pytest.raises(StoreCorrupt, match="its flow definitions are too large"):
        archive.put_back(store, file)
    assert store.runs(Query()) == []
    store.close()


def test_a_run_with_a_value_that_no_archive_takes_is_not_archived(
    tmp_path: Path, lines: list[bytes], other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.put_back(other, forge(tmp_path / "r.zst", lines, lambda part: None))
    monkeypatch.setattr(archives, "LINE_BYTES_MAX", 500)
    with pytest.raises(hf.HoldfastError, match="`holdfast backup FILE` keeps the whole store"):
        archive.archive(other, "r", tmp_path / "again.zst")
    assert not (tmp_path / "again.zst").exists()
