"""An exported ledger verifies without the store, and no line of it can be removed or altered unnoticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from holdfast.core import events
from holdfast.core.events import Changes
from holdfast.documents.ledger_file import LedgerFile, compare, export
from holdfast.errors import SettingError, StoreCorrupt, StoreUnusable
from holdfast.reading.ledger import read_ledger
from holdfast.storage.contract import Store
from holdfast.storage.leases import this_process
from holdfast.storage.urls import open_store
from holdfast.testing.builders import History, outline
from holdfast.upkeep import retention

FLOW = outline("START write check", "publish END", branches={"check": "write publish"},
               nodes={"publish": {"approve": "Publish it?"}})  # fmt: skip


def reviewed(run_id: str = "r1") -> History:
    history = History(run_id, FLOW).created({"secret": "of the input"})
    history.completed("write", {"draft": "d" * 2000}).completed("check", routes=["write"])
    history.failed("write", ValueError("busy"), retry_in=1.0).passed(2.0)
    history.completed("write", {"draft": "hidden"}).completed("check").settled()
    history.record(events.StateEdited(changes=Changes(set={"notes": ["n" * 2000]}), by="ada"))
    return (
        history.answered("publish", "approve", by="agent:clerk", reason="well written")
        .completed("publish")
        .settled()
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(str(tmp_path / "runs.db"))) as store:
        reviewed().write(store)
        yield store


@pytest.fixture
def file(store: Store, tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    export(store, "r1", path)
    return path


def test_an_export_has_the_entries_of_the_ledger_and_verifies_without_the_store(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.jsonl"
    done = export(store, "r1", path)
    store.close()
    found = LedgerFile(path).ledger
    with closing(open_store(str(tmp_path / "runs.db"))) as again:
        ledger = read_ledger(again, "r1", check=True)
    assert found == ledger
    assert (found.verified, found.digest, done.digest) == (True, ledger.digest, ledger.digest)
    assert (done.entries, done.events) == (len(ledger.entries), ledger.seq)


def test_an_export_is_for_its_owner_only_and_overwrites_nothing(store: Store, file: Path) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_bytes()
    with pytest.raises(SettingError, match="exists already, and an export overwrites nothing"):
        export(store, "r1", file)
    with pytest.raises(SettingError, match=r"is a folder. Name a file in it, e.g. .*/ledger.jsonl"):
        export(store, "r1", file.parent)
    assert [one.name for one in file.parent.glob(".holdfast-*")] == []
    assert file.read_bytes() == before
    export(store, "r1", file.with_name("again.jsonl"))
    assert file.with_name("again.jsonl").read_bytes() == before, "the same log gives the same bytes"


def test_only_decisions_have_their_bodies(file: Path) -> None:
    lines = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    rows = {line["seq"]: line for line in lines if line["part"] == "event"}
    with_body = {line["kind"] for line in rows.values() if "body" in line or "packed" in line}
    without = {line["kind"] for line in rows.values() if "sha256" in line}
    assert with_body == {
        "RunCreated",
        "NodeCompleted",
        "NodeFailed",
        "QuestionAsked",
        "QuestionAnswered",
        "StateEdited",
    }
    assert without == {"NodeStarted", "NodeCompleted", "RunCompleted"}
    assert b"hidden" not in file.read_bytes(), "write is not a node with a router"
    assert rows[1]["entry"]["type"] == "plan"


def altered(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the line with each of its values changed."""
    for name, value in line.items():
        if name in {"part", "version"}:
            continue
        match value:
            case str():
                yield line | {name: ("0" if value[:1] != "0" else "1") + value[1:]}
            case int() | float():
                yield line | {name: value + 1}
            case dict():
                yield line | {name: value | {"text": "something else"}}
            case None:
                yield line | {name: "x"}


def test_any_value_of_any_line_that_is_altered_is_found_and_its_event_is_named(
    file: Path, tmp_path: Path
) -> None:
    lines = file.read_bytes().splitlines()
    copy, tried = tmp_path / "copy.jsonl", 0
    for number, line in enumerate(lines):
        given = msgspec.json.decode(line)
        for changed in altered(given):
            copy.write_bytes(
                b"\n".join([*lines[:number], msgspec.json.encode(changed), *lines[number + 1 :], b""])
            )
            found = LedgerFile(copy).ledger
            assert found.verified is False, changed
            if given["part"] == "event" and changed["seq"] == given["seq"]:
                assert [one for one in found.damage if one.is_about(given["seq"])], (changed, found.problems)
            tried += 1
    assert tried > 150


def test_any_line_that_is_removed_repeated_or_moved_is_found(file: Path, tmp_path: Path) -> None:
    lines, copy = file.read_bytes().splitlines(keepends=True), tmp_path / "copy.jsonl"
    ways: dict[str, Callable[[int], list[bytes]]] = {
        "removed": lambda n: [*lines[:n], *lines[n + 1 :]],
        "repeated": lambda n: [*lines[: n + 1], *lines[n:]],
        "moved": lambda n: [*lines[: n - 1], lines[n], lines[n - 1], *lines[n + 1 :]],
        "cut": lambda n: [*lines[:n], lines[n][:-10]],
    }
    for way, change in ways.items():
        for number in range(2, len(lines)):
            copy.write_bytes(b"".join(change(number)))
            found = LedgerFile(copy).ledger
            assert found.verified is False, (way, number)
            event = msgspec.json.decode(lines[number])
            if way == "removed" and event["part"] == "event":
                assert [(one.what, one.seq) for one in found.damage] == [("missing", event["seq"])]


def test_a_truncated_file_is_never_verified(file: Path, tmp_path: Path) -> None:
    whole, copy = file.read_bytes(), tmp_path / "copy.jsonl"
    for size in range(len(whole.splitlines()[0]) + 1, len(whole) - 1, 97):
        copy.write_bytes(whole[:size])
        assert LedgerFile(copy).ledger.verified is False
    copy.write_bytes(whole[:-1])
    assert LedgerFile(copy).ledger.verified, "only the last line break is missing"


def test_the_body_of_a_decision_cannot_be_left_out(file: Path, tmp_path: Path) -> None:
    lines = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    answer = next(line for line in lines if line.get("kind") == "QuestionAnswered")
    inside = sha256(bytes.fromhex(answer.pop("salt")) + answer.pop("body").encode()).hexdigest()
    answer["sha256"] = inside
    answer.pop("entry")
    encoded = [msgspec.json.encode(line) for line in lines[:-1]]
    lines[-1]["sha256"] = sha256(b"".join(line + b"\n" for line in encoded)).hexdigest()
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(b"\n".join([*encoded, msgspec.json.encode(lines[-1])]))
    found = LedgerFile(copy).ledger
    assert found.problems == [
        f"event {answer['seq']} (QuestionAnswered) is a decision, but its body was removed from the file"
    ]


def test_large_values_of_decisions_are_in_the_file(tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "large.db"))) as store:
        history = History("r1", FLOW).created()
        history.record(events.StateEdited(changes=Changes(set={"book": "b" * 1_500_000}), by="ada"))
        history.write(store)
        assert store.events("r1")[1].body.startswith(b'{"$blobs"')
        export(store, "r1", tmp_path / "large.jsonl")
        expected = read_ledger(store, "r1", check=True)
    assert LedgerFile(tmp_path / "large.jsonl").ledger == expected


def test_a_compacted_log_can_be_exported(store: Store, tmp_path: Path) -> None:
    retention.compact(store, "r1", 2, holder=this_process())
    export(store, "r1", tmp_path / "base.jsonl")
    found = LedgerFile(tmp_path / "base.jsonl").ledger
    assert found == read_ledger(store, "r1", check=True)
    assert "were compacted on" in found.beginning


def test_a_damaged_log_is_not_exported(store: Store, tmp_path: Path) -> None:
    with closing(apsw.Connection(str(tmp_path / "runs.db"))) as db:
        db.execute("update events set at = at + 1 where key & 4294967295 = 3")
    with pytest.raises(StoreCorrupt, match=r"its log is damaged: event 3 \(NodeCompleted\) was altered"):
        export(store, "r1", tmp_path / "other.jsonl")
    assert not (tmp_path / "other.jsonl").exists()


def test_a_file_that_is_not_a_ledger_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"{}", b"\x00\xff", b'{"part":"event","seq":1}', b'{"part":"ledger","version":99}'):
        (tmp_path / "other.jsonl").write_bytes(content)
        with pytest.raises(SettingError, match="is not a ledger that this version of Holdfast has exported"):
            LedgerFile(tmp_path / "other.jsonl")
    with pytest.raises(StoreUnusable, match="cannot be read"):
        LedgerFile(tmp_path / "nowhere.jsonl")


def test_an_export_shows_that_the_store_was_rewritten_since(store: Store, file: Path, tmp_path: Path) -> None:
    exported = LedgerFile(file)
    assert compare(store, exported) is None
    with closing(open_store(str(tmp_path / "other.db"))) as other:
        History("r1", FLOW).created({"secret": "another"}).completed("write").write(other)
        assert read_ledger(other, "r1", check=True).verified, "a log of its own"
        found = compare(other, exported)
    assert found is not None
    assert (found.seq, found.text) == (
        1,
        "event 1 (RunCreated) of the store is not the one that was exported",
    )
    retention.compact(store, "r1", 2, holder=this_process())
    assert compare(store, exported) is None
