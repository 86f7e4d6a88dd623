"""Power loss: a few hundred of the states that `make prove` inspects, and a careless store whose losses must be found."""

from __future__ import annotations

import random
from collections.abc import Iterator

import power_loss
import pytest
import shim
from operations import OPERATIONS
from power_loss import Disk, Harness, Recording, Result
from processes import contents, digest, workshop
from shim import Call

STATES = 350


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    missing = shim.why_not()
    if missing is not None:
        pytest.skip(missing)
    with workshop() as folder:
        made = Harness(folder, 2)
        yield made
        made.close()


def looked(harness: Harness, recordings: list[Recording], most: int) -> Result:
    """So many states of these, spread over all their moments."""
    harness.result = Result()
    harness.look(power_loss.spread(recordings, most), most=most, carry_on_each=10)
    return harness.result


@pytest.fixture(scope="module")
def recordings(harness: Harness) -> dict[str, Recording]:
    return {name: power_loss.record(harness.pairs[0], name) for name in OPERATIONS}


def test_nothing_that_was_acknowledged_is_lost_when_the_power_goes(harness, recordings) -> None:
    result = looked(harness, list(recordings.values()), STATES)
    assert result.problems == []
    assert sum(result.states.values()) == STATES
    assert set(result.states) == set(OPERATIONS)
    assert set(result.ways) == set(power_loss.WAYS)
    assert result.acknowledged > STATES
    assert result.carried_on == STATES // 10


@pytest.mark.parametrize("operation", ["run", "blob", "checkpoint", "create"])
def test_the_record_of_an_operation_makes_the_very_disk_that_it_has_left(harness, operation) -> None:
    """So no call that changes files passes the shim unseen."""
    recording = power_loss.record(harness.pairs[0], operation)
    disk = Disk(recording.root, recording.base)
    for call in recording.calls:
        if call.kind != "mark":
            disk.do(call)
    assert digest(disk.after("everything", random.Random(1))) == digest(contents(harness.pairs[0].disk))


@pytest.mark.parametrize("synchronous", ["normal", "off"])
def test_a_store_that_does_not_sync_its_log_is_found_out(harness, synchronous) -> None:
    careless = power_loss.record(harness.pairs[0], "append", pragmas={"synchronous": synchronous})
    result = looked(harness, [careless], 120)
    assert any(
        "append was acknowledged, but not on the disk: ['row'" in problem for problem in result.problems
    )


def test_a_run_goes_only_when_its_archive_is_there_for_good_whoever_named_that(harness, recordings) -> None:
    """One that was found had been named by somebody who was killed right then: the run went, and the name with the power."""
    assert looked(harness, [recordings["archive"]], 250).problems == []


@pytest.mark.parametrize(
    ("operation", "lost"),
    [("blob", "put"), ("receipt", "files"), ("run", "append"), ("archive", "archive")],
)
def test_a_store_that_does_not_sync_its_folders_is_found_out(harness, operation, lost) -> None:
    careless = power_loss.record(harness.pairs[0], operation, no_folder_sync=True)
    result = looked(harness, [careless], 120)
    assert any(f"{lost} was acknowledged, but not" in problem for problem in result.problems)


# --- the disk that is computed ------------------------------------------------------------------------


def call(kind: str, path: str, *, other: str = "", offset: int = 0, data: bytes = b"") -> Call:
    return Call(kind, f"/disk/{path}", f"/disk/{other}" if other else "", 1, offset, data)


def after(*calls: Call) -> list[dict[str, bytes | None]]:
    """Everything that may be left, in the order in which it was drawn first."""
    disk = Disk("/disk", {"old": b"old"})
    for one in calls:
        disk.do(one)
    found: list[dict[str, bytes | None]] = []
    for seed in range(200):
        for way in power_loss.WAYS:
            left = disk.after(way, random.Random(seed))
            if left not in found:
                found.append(left)
    return found


def test_what_was_synced_is_left_as_it_was() -> None:
    assert after(call("write", "old", data=b"new"), call("sync", "old")) == [{"old": b"new"}]


def test_a_write_that_was_not_synced_is_left_whole_in_part_or_not_at_all() -> None:
    left = {state["old"] for state in after(call("write", "old", data=b"new"))}
    assert {b"old", b"new", b"nld"} <= left


def test_a_later_write_may_be_left_without_an_earlier_one() -> None:
    two = [call("write", "old", data=b"1"), call("write", "old", offset=5, data=b"2")]
    left = {state["old"] for state in after(*two)}
    assert {b"old", b"1ld", b"old\0\0002", b"1ld\0\0002"} <= left


def test_a_new_name_is_left_for_certain_only_when_its_folder_was_synced() -> None:
    make = [call("create", "new"), call("write", "new", data=b"x"), call("sync", "new")]
    assert {"old": b"old"} in after(*make)
    assert after(*make, call("sync", "")) == [{"old": b"old", "new": b"x"}]


def test_a_file_in_a_folder_whose_name_was_not_synced_may_be_gone() -> None:
    make = [call("mkdir", "deep"), call("create", "deep/new"), call("sync", "deep")]
    assert {"old": b"old"} in after(*make)
    assert after(*make, call("sync", "")) == [{"old": b"old", "deep": None, "deep/new": b""}]


def test_a_file_that_takes_the_place_of_another_leaves_one_of_both() -> None:
    make = [call("create", "new"), call("write", "new", data=b"x"), call("sync", "new"), call("sync", "")]
    left = after(*make, call("rename", "new", other="old"))
    assert sorted(left, key=len) == [{"old": b"x"}, {"old": b"old", "new": b"x"}]


def test_a_file_that_was_removed_may_come_back() -> None:
    assert after(call("unlink", "old")) == [{"old": b"old"}, {}]
    assert after(call("unlink", "old"), call("sync", "")) == [{}]


def test_without_a_compiler_nothing_is_proved_and_that_is_said_loudly(monkeypatch, capsys) -> None:
    monkeypatch.setenv("PATH", "")
    figures = power_loss.main(1.0)
    assert "NOT tested" in figures["skipped"]
    assert "SKIPPED" in capsys.readouterr().out
