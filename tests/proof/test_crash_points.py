"""Crash points on the real SQLite file: a sample of those that `make prove` tries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import crash_points
import pytest
import shim
from crash_points import Case, Harness, State
from operations import OPERATIONS
from processes import contents, digest, lay, workshop

SHARE, PARTS = 0.05, 4
RECOVERIES = 60 // PARTS


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    missing = shim.why_not()
    if missing is not None:
        pytest.skip(missing)
    with workshop() as folder:
        made = Harness(folder)
        yield made
        made.close()


@pytest.fixture
def problems(harness: Harness) -> Callable[[], list[str]]:
    """What was found wrong since the test began."""
    before = len(harness.result.problems)
    return lambda: harness.result.problems[before:]


@pytest.mark.rotating
@pytest.mark.parametrize("part", range(PARTS))
def test_what_was_acknowledged_survives_a_crash_or_a_failing_disk_at_any_point(
    harness, problems, part
) -> None:
    before, harness.result = harness.result, crash_points.Result(problems=harness.result.problems)
    share = (SHARE * part / PARTS, SHARE * (part + 1) / PARTS)
    result = crash_points.prove(harness, share=share, recoveries=RECOVERIES, whole=0)
    harness.result = before
    assert problems() == []
    assert set(result.points) == set(OPERATIONS)
    assert min(result.points.values()) > 20
    assert set(result.cases) == set(shim.MODES)
    assert result.recoveries == RECOVERIES
    assert {"StoreFull", "StorePoisoned", "StoreUnusable"} <= set(result.refusals)


@pytest.mark.parametrize("mode", shim.KILLS)
def test_a_point_kills_the_process_before_after_or_half_way_through_a_write(harness, mode) -> None:
    """The file is created, the shared memory is not: a write to the WAL of an append is the third part of it."""
    with harness.pair() as pair:
        base, _ = pair.base("append")
        lay(base, pair.disk)
        record = pair.folder / "points"
        pair.fail("perform", "append", day=1, record=record)
        call = next(
            call
            for call in shim.calls(record.read_bytes())
            if call.kind == "write" and call.path.endswith("-wal") and len(call.data) == 4096
        )
        name = "store/runs.db-wal"
        lay(base, pair.disk)
        assert pair.fail("perform", "append", day=1, point=call.point, mode=mode)["status"] == -9
        written = contents(pair.disk)[name][call.offset :]
    expected = {"kill before": 0, "kill after": 4096, "tear": 2048}[mode]
    assert written == call.data[:expected]


@pytest.mark.parametrize("mode", shim.KILLS)
@pytest.mark.parametrize("operation", ["append", "run", "blob"])
def test_a_death_that_is_played_leaves_the_disk_and_the_words_of_a_real_one(harness, operation, mode) -> None:
    points = harness.points(operation)
    with harness.pair() as pair:
        base, _ = pair.base(operation)
        for point in range(2, points + 1, points // 6):
            left = []
            for played in (False, True):
                lay(base, pair.disk)
                done = pair.fail("perform", operation, day=1, point=point, mode=mode, played=played)
                left.append((done["status"], done["said"], digest(contents(pair.disk))))
            assert left[0] == left[1]
            assert left[0][0] == crash_points.KILLED


def test_recoveries_fail_everywhere_for_one_state_of_each_operation_and_once_for_every_other(harness) -> None:
    before, harness.states, harness.result = harness.states, [], crash_points.Result()
    for operation in ("append", "lease"):
        with harness.pair() as pair:
            base, told = pair.base(operation)
        harness.states += [State(Case(operation, point, "tear"), base, [told]) for point in range(3)]
    planned = list(crash_points.plan(harness, whole=1, rounds=1, seed=5))
    states, harness.states = harness.states, before
    times = Counter(state for state, _, _ in planned)
    everywhere = [state for state in states if times[state] > 1]
    assert [state.case.operation for state in everywhere] == ["append", "lease"]
    for state in everywhere:
        assert times[state] == harness.recovery_points(state) * len(shim.MODES)
    assert [times[state] for state in states if state not in everywhere] == [1] * 4
    assert len(set(planned)) == len(planned)
    assert harness.result.is_complete


def test_a_store_that_cannot_be_opened_for_a_failing_disk_says_so_and_blames_nobody_else(
    harness, problems
) -> None:
    """SQLite ends a transaction by itself when the disk fails; rolling it back once more hid why."""
    for point in range(1, 12):
        for mode in shim.FAILURES:
            harness.perform(Case("append", point, mode))
    assert problems() == []


def test_a_full_disk_never_makes_the_event_loop_complain(harness, problems) -> None:
    """An append was tried again after its engine had been closed, and raised where nobody could hear it."""
    points = harness.points("run")
    for point in range(points // 3, points // 3 + 12):
        harness.perform(Case("run", point, "ENOSPC for ever"))
    assert problems() == []


@pytest.mark.parametrize("mode", shim.FAILURES)
def test_a_backup_onto_a_failing_disk_is_refused_in_our_own_words(harness, problems, mode) -> None:
    for point in range(10, harness.points("backup"), 12):
        harness.perform(Case("backup", point, mode))
    assert problems() == []


@pytest.mark.parametrize("operation", ["append", "post", "lease"])
def test_a_store_that_acknowledged_before_it_had_committed_would_be_found(
    harness, problems, operation
) -> None:
    for point in range(10, harness.points(operation) // 2, 3):
        harness.perform(Case(operation, point, "kill before"), early=True)
    found = problems()
    assert any("was acknowledged, but not" in problem for problem in found)
    del harness.result.problems[-len(found) :]


@pytest.mark.parametrize("operation", ["start runs", "start many", "report an end"])
def test_a_store_that_posted_the_requests_of_an_append_after_its_commit_would_be_found(
    harness, problems, operation
) -> None:
    for point in range(10, harness.points(operation), 2):
        harness.perform(Case(operation, point, "kill before"), apart=True)
    found = problems()
    assert any("only a part of append is on the disk" in problem for problem in found)
    del harness.result.problems[-len(found) :]


def test_a_recovery_that_acknowledged_before_it_had_committed_would_be_found(harness, problems) -> None:
    with harness.pair() as pair:
        base, told = pair.base("append")
    state = State(Case("append", 1, "kill before"), base, [told])
    for point in range(10, harness.recovery_points(state), 5):
        harness.recover(state, point, "kill before", early=True)
    found = problems()
    assert any("was acknowledged, but not" in problem for problem in found)
    assert all(problem.startswith("recovery from (append: kill before at point 1)") for problem in found)
    del harness.result.problems[-len(found) :]


def test_without_a_compiler_nothing_is_proved_and_that_is_said_loudly(monkeypatch, capsys) -> None:
    monkeypatch.setenv("PATH", "")
    figures = crash_points.main(1.0)
    assert "NOT tested" in figures["skipped"]
    assert "SKIPPED" in capsys.readouterr().out
