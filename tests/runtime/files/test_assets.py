"""Things that live elsewhere: kept by their address, and warned about where they will not stay."""

import dataclasses
import os
import pathlib
import tempfile
import warnings
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

import holdfast as hf
from holdfast.core.codec import Codec
from holdfast.documents import assets
from holdfast.documents.assets import Asset, NotDurable
from holdfast.errors import CodecError

REPORT = Asset("s3://reports/2024.csv", "text/csv")


@dataclasses.dataclass
class AsData:
    main: Asset
    all: list[Asset]
    named: dict[str, Asset]
    maybe: Asset | None = None


class AsStruct(msgspec.Struct):
    main: Asset
    all: list[Asset]
    named: dict[str, Asset]
    maybe: Asset | None = None


class AsModel(pydantic.BaseModel):
    main: Asset
    all: list[Asset]
    named: dict[str, Asset]
    maybe: Asset | None = None


class AsTypedDict(TypedDict):
    main: Asset
    all: list[Asset]
    named: dict[str, Asset]
    maybe: Asset | None


def made(kind: Any, asset: Asset) -> Any:
    return kind(main=asset, all=[asset, REPORT], named={"it": asset}, maybe=None)


@pytest.mark.parametrize("kind", [AsData, AsStruct, AsModel, AsTypedDict])
def test_an_asset_may_stand_in_every_kind_of_state(kind) -> None:
    codec = Codec.of(kind)
    value = made(kind, REPORT)
    plain = codec.encode(value)
    assert codec.decode(plain) == value
    assert (plain["main"] if isinstance(plain, dict) else None) == {
        "uri": "s3://reports/2024.csv",
        "media_type": "text/csv",
    }


@pytest.mark.parametrize("kind", [AsData, AsStruct, AsModel, AsTypedDict])
def test_an_asset_that_may_vanish_is_warned_about_once(kind) -> None:
    with pytest.warns(NotDurable):
        gone = Asset("memory://bucket/x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codec = Codec.of(kind)
        value = made(kind, gone)
        assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("kind", [AsData, AsStruct, AsModel, AsTypedDict])
def test_an_asset_without_address_does_not_come_in_by_the_back_door(kind) -> None:
    plain = {"main": {"uri": ""}, "all": [], "named": {}, "maybe": None}
    with pytest.raises(CodecError):
        Codec.of(kind).decode(plain)


def test_a_node_returns_assets_and_the_next_one_reads_them() -> None:
    @dataclasses.dataclass
    class Files:
        found: list[Asset] = dataclasses.field(default_factory=list)
        names: list[str] = dataclasses.field(default_factory=list)

    graph = hf.Graph("files", Files)

    @graph.node
    def find(state: Files) -> dict[str, Any]:
        return {"found": [REPORT]}

    @graph.node
    def name(state: Files) -> dict[str, Any]:
        return {"names": [asset.uri for asset in state.found]}

    graph.edge(hf.START, "find").edge("find", "name").edge("name", hf.END)
    run = hf.run(graph.compile(), Files(), store="memory://assets")
    assert run.state == Files([REPORT], ["s3://reports/2024.csv"])


def test_assets_are_compared_by_what_they_name() -> None:
    same = Asset("s3://reports/2024.csv", "text/csv")
    assert same == REPORT
    assert len({same, REPORT}) == 1
    assert Asset("s3://a") < Asset("s3://b")
    assert Asset("s3://a").media_type == "application/octet-stream"
    assert repr(same) == "Asset(uri='s3://reports/2024.csv', media_type='text/csv')"
    with pytest.raises(dataclasses.FrozenInstanceError):
        same.uri = "elsewhere"


@pytest.mark.parametrize(
    "uri",
    [
        "memory://bucket/x",
        "memory:x",
        "/tmp/x.csv",
        "/tmp",
        "/var/tmp/x.csv",
        "/dev/shm/x.csv",
        "file:///tmp/x.csv",
        "file://localhost/tmp/x.csv",
        "file:/tmp/with%20space",
        "FILE:///tmp/x",
        "local:///tmp/x.csv",
        "/home/../tmp/x.csv",
        os.path.join(tempfile.gettempdir(), "x.csv"),
    ],
)
def test_what_lives_in_memory_or_a_temporary_folder_is_warned_about(uri) -> None:
    with pytest.warns(NotDurable) as warned:
        Asset(uri)
    assert repr(uri) in str(warned[0].message)
    assert "Store it in a permanent place" in str(warned[0].message)
    assert warned[0].filename == __file__


def test_a_relative_path_and_a_link_into_a_temporary_folder_are_warned_about(tmp_path, monkeypatch) -> None:
    inside, outside, link = tmp_path / "temporary", tmp_path / "kept", tmp_path / "link"
    inside.mkdir()
    outside.mkdir()
    link.symlink_to(inside)
    monkeypatch.setattr(assets, "_TEMPORARY", ())
    monkeypatch.setattr(tempfile, "tempdir", str(inside))
    monkeypatch.chdir(outside)
    assert Asset("x.csv").uri == "x.csv"
    with pytest.warns(NotDurable):
        Asset(f"{link}/x.csv")
    monkeypatch.chdir(inside)
    with pytest.warns(NotDurable):
        Asset("x.csv")


@pytest.mark.parametrize(
    "uri",
    [
        "https://example.org/tmp/x",
        "s3://tmp/x",
        "gs://bucket/tmp/x",
        "/srv/data/tmp/x.csv",
        "/tmpfiles/x.csv",
        "/tmp/../srv/x.csv",
        "file:///srv/data/x.csv",
        "http://[not-an-address/tmp",
        "data:text/plain,hello",
    ],
)
def test_what_stays_is_not_warned_about(uri) -> None:
    assert Asset(uri).uri == uri


@pytest.mark.parametrize(
    ("uri", "media_type", "fault"),
    [
        ("", "text/csv", ValueError),
        ("  ", "text/csv", ValueError),
        (None, "text/csv", TypeError),
        (pathlib.Path("/srv/x"), "text/csv", TypeError),
        ("s3://a", None, TypeError),
    ],
)
def test_an_asset_needs_an_address(uri, media_type, fault) -> None:
    with pytest.raises(fault, match="give"):
        Asset(uri, media_type)
