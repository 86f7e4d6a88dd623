"""A listing says about each run what its log says, and reads only the rows of the runs."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.core import events, situation
from holdfast.core.kinds import OURS
from holdfast.core.situation import SAYS, Situation
from holdfast.errors import SettingError
from holdfast.reading import history as reading_history
from holdfast.reading.cases import case_of, case_of_row
from holdfast.reading.diagnosis import diagnose
from holdfast.reading.pages import make_cursor, read_cursor
from holdfast.reading.reader import Reader
from holdfast.reading.verification import verify
from holdfast.storage.contract import Holder, Position, Query, Store
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.builders import History, outline
from holdfast.testing.flows import arbitrary, attended, nested
from holdfast.testing.random_histories import play
from holdfast.testing.simulator_oracle import compare_diagnoses

ME = Holder(id="me", ttl_s=600.0, host="here", pid=os.getpid())


@pytest.fixture
def store() -> Iterator[Store]:
    store = MemoryStore()
    yield store
    store.close()


def in_page(store: Store, **conditions: object) -> list[str]:
    return [one.row.run_id for one in Reader(store).page(Query(**conditions)).runs]


# --- what a row says ---------------------------------------------------------------------------------


def test_a_row_says_what_the_log_says_after_every_event() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=60)
    @given(st.integers(0, 2**32 - 1))
    def holds(seed: int) -> None:
        luck = random.Random(seed)
        while True:
            sketch = nested(luck, depth=2) if luck.random() < 0.6 else arbitrary(luck, most=5)
            if sketch.visits is None or sum(sketch.visits.values()) <= 15:
                break
        sketch = replace(attended(sketch, luck), crash_limit=luck.choice((1, 3, 100)))
        history = History("r", sketch.flow(max_parallel=luck.choice((1, 2, 64)))).created()
        for _ in play(history, sketch, luck, trouble=0.1, inside=0.5):
            store = MemoryStore(clock=lambda: history.at)
            history.write(store, holder=luck.choice((None, ME)))
            assert compare_diagnoses(store, "r") == []
            assert verify(store, "r").problems == []
            seen[diagnose(case_of(store, store.run("r")), history.at).kind] += 1
            if luck.random() < 0.3:
                other = MemoryStore(clock=lambda: history.at)
                history.write(other, holder=ME, one_by_one=True)
                assert other.run("r").situation == store.run("r").situation

    holds()
    assert {"executing", "question", "signal", "waiting", "no worker", "failed", "completed"} <= set(seen)


def test_a_run_that_only_executes_nodes_keeps_nothing_but_its_options(store: Store) -> None:
    History("r", outline("START a b END")).created().completed("a").started("b").write(store)
    row = store.run("r")
    assert (row.asks, row.situation, row.active) == (0, None, ("b",))
    case = case_of_row(store, row)
    assert case is not None
    assert diagnose(case, store.now()).reason == "its process crashed in b, and no worker has claimed the run"


def wide_history(count: int, **options: object) -> History:
    names = [f"n{number}" for number in range(count)]
    nodes = dict.fromkeys(names, options)
    history = History(
        "r", outline(*(f"START {name} END" for name in names), nodes=nodes, max_parallel=300)
    ).created()
    for name in names:
        history.started(name)
    return history


def test_a_row_names_five_of_many_nodes_and_counts_the_others(store: Store) -> None:
    wide_history(200).write(store)
    case = case_of_row(store, store.run("r"))
    assert case is not None
    reason = diagnose(case, store.now()).reason
    assert "crashed in n0 and n1 and n2 and n3 and n4 and 195 more" in reason
    assert compare_diagnoses(store, "r") == []


def test_a_run_with_more_nodes_than_its_row_names_is_read_from_its_log_if_a_resume_may_ask(
    store: Store,
) -> None:
    wide_history(200, idempotent=False).write(store)
    row = store.run("r")
    assert case_of_row(store, row) is None
    (listed,) = Reader(store).page(Query()).runs
    assert len(listed.found.asks_before) == 200
    assert listed.found == diagnose(case_of(store, row, holders=()), store.now())


def test_a_run_with_more_interrupted_nodes_than_its_row_names_is_read_from_its_log(store: Store) -> None:
    history = wide_history(7, idempotent=False).record(events.RunClaimed(holder="h")).write(store)
    assert sum(node.status == "interrupted" for node in history.state.nodes.values()) == 7
    assert case_of_row(store, store.run("r")) is None
    (listed,) = Reader(store).page(Query()).runs
    assert len(listed.found.asks_before) == 7


def test_a_situation_that_is_too_long_for_a_row_is_left_to_the_log() -> None:
    long = Situation(asks=2, refused=("x" * 5000,))
    stored = situation.dump(long)
    assert stored is not None
    assert situation.load(stored, ()) == Situation(asks=2, cut=True)


def test_every_event_that_says_something_is_looked_at_when_it_is_recorded() -> None:
    assert not SAYS & OURS  # the journal looks at all events but those


# --- pages -------------------------------------------------------------------------------------------


def test_a_page_reads_no_log(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = outline("START a END", nodes={"a": {"approve": "Go on?"}})
    History("asks", flow).created().settled().write(store)
    History("runs", outline("START a b END")).created().started("a").write(store, holder=ME)
    History("fails", outline("START a END")).created().started("a").failed(
        "a", ValueError("no luck")
    ).settled().write(store)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a log was read")

    expected = {
        run_id: diagnose(case_of(store, store.run(run_id), holders=store.queues.holders()), store.now())
        for run_id in ("asks", "runs", "fails")
    }
    monkeypatch.setattr(store, "events", refuse)
    monkeypatch.setattr(reading_history, "load", refuse)
    page = Reader(store).page(Query())
    assert {one.row.run_id: one.found.reason for one in page.runs} == {
        run_id: found.reason for run_id, found in expected.items()
    }
    assert {one.row.run_id: one.found.remedies for one in page.runs} == {
        run_id: found.remedies for run_id, found in expected.items()
    }
    assert {one.row.run_id: one.asks for one in page.runs} == {"asks": 1, "runs": 0, "fails": 0}


def test_pages_follow_each_other_although_runs_are_deleted(store: Store) -> None:
    for number in range(5):
        History(f"r{number}", outline("START a END"), starts_at=float(number)).created().completed(
            "a"
        ).settled().write(store)
    reader = Reader(store)
    first = reader.page(Query(limit=2))
    assert [one.row.run_id for one in first.runs] == ["r4", "r3"]
    assert not store.upkeep.delete({"r3": store.run("r3").seq})
    second = reader.page(Query(limit=2), first.next)
    assert [one.row.run_id for one in second.runs] == ["r2", "r1"]
    third = reader.page(Query(limit=7), second.next)
    assert ([one.row.run_id for one in third.runs], third.next) == (["r0"], None)


def test_a_cursor_of_another_listing_is_refused() -> None:
    query = Query(status=("failed",), labels={"a": "1", "b": "2"})
    cursor = make_cursor(query, Position(1.5, "r-é"))
    assert read_cursor(msgspec.structs.replace(query, limit=7), cursor) == Position(1.5, "r-é")
    assert read_cursor(msgspec.structs.replace(query, labels={"b": "2", "a": "1"}), cursor) == Position(
        1.5, "r-é"
    )
    for other in (Query(), msgspec.structs.replace(query, prefix="x")):
        with pytest.raises(SettingError, match="other conditions"):
            read_cursor(other, cursor)
    for wrong in ("", "x", "é", "AAAA", cursor[:-3], "=" * 9):
        with pytest.raises(SettingError, match="not a cursor"):
            read_cursor(query, wrong)


# --- rows of older versions --------------------------------------------------------------------------


def forget(store: Store, run_id: str) -> None:
    """Make a row as a version wrote it that did not compute what a listing shows."""
    run = store._data.runs[run_id]
    run.view = msgspec.structs.replace(run.view, asks=None, active_s=None, situation=None)


def test_a_row_of_an_older_version_is_listed_from_the_log_and_filled_by_the_next_append(store: Store) -> None:
    flow = outline("START a END", nodes={"a": {"approve": "Go on?"}})
    History("asks", flow).created().settled().write(store)
    History("quiet", outline("START a END")).created().started("a").write(store)
    for run_id in ("asks", "quiet"):
        forget(store, run_id)
    assert verify(store, "asks").problems == []
    reader = Reader(store)
    page = reader.page(Query())
    assert {one.row.run_id: (one.asks, one.found.kind) for one in page.runs} == {
        "asks": (1, "question"),
        "quiet": (0, "no worker"),
    }
    assert [one.row.run_id for one in reader.page(Query(asks=True)).runs] == ["asks"]
    assert [one.run_id for one in reader.questions()] == ["asks"]

    async def main() -> None:
        async with hf.Engine(store) as engine:
            await engine.signal("asks", "anything")

    asyncio.run(main())
    row = store.run("asks")
    assert row.asks == 1
    assert compare_diagnoses(store, "asks") == []


def test_a_paused_run_of_an_older_version_still_says_who_paused_it(store: Store) -> None:
    flow = outline("START a END", nodes={"a": {"approve": "Go on?"}})
    History("r", flow).created().settled().write(store)

    async def main() -> None:
        async with hf.Engine(store) as engine:
            await engine.pause("r", by="ada", reason="lunch")
            forget(store, "r")
            await engine.signal("r", "anything")

    asyncio.run(main())
    (listed,) = Reader(store).page(Query()).runs
    assert listed.row.asks == 1
    assert listed.found.reason.startswith("paused by ada until it is resumed: lunch")


def test_a_refusal_and_an_edit_do_not_hide_an_answer_from_a_row(store: Store) -> None:
    flow = outline("START a b END", nodes={"a": {"approve": "Go on?"}})
    History("r", flow).created().settled().write(store)
    reason = "answered by ada, and no worker has claimed the run"

    async def main() -> None:
        async with hf.Engine(store, flows=[flow]) as engine:
            await engine.answer("r", "a", "approve", by="ada")
            assert case_reason(store) == reason
        async with hf.Engine(store, flows=[flow]) as engine:
            await engine.edit("r", {"x": 1}, by="bob")
            with pytest.raises(hf.AnswerRefused):
                await engine.answer("r", "a", "approve", by="eve")

    asyncio.run(main())
    kinds = [row.kind for row in store.events("r")]
    assert kinds[-1] in ("StateEdited", "RequestRefused")
    assert case_reason(store) == reason
    assert compare_diagnoses(store, "r") == []
    forget(store, "r")

    async def edit_again() -> None:
        async with hf.Engine(store, flows=[flow]) as engine:
            await engine.edit("r", {"x": 2}, by="bob")

    asyncio.run(edit_again())
    assert case_of_row(store, store.run("r")) is None  # the row leaves it to the log
    assert compare_diagnoses(store, "r") == []


def case_reason(store: Store) -> str:
    case = case_of_row(store, store.run("r"))
    assert case is not None
    return diagnose(case, store.now()).reason


# --- verification ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{"asks": 3}, {"active_s": 77.0}, {"situation": '{"running":["z"]}'}, {"situation": "{"}]
)
def test_verify_finds_a_row_that_says_something_else_than_its_log(
    store: Store, change: dict[str, object]
) -> None:
    flow = outline("START a END", nodes={"a": {"approve": "Go on?"}})
    History("r", flow).created().settled().write(store)
    assert verify(store, "r").problems == []
    run = store._data.runs["r"]
    run.view = msgspec.structs.replace(run.view, **change)
    (problem,) = verify(store, "r").problems
    assert f"the run row has {next(iter(change))}" in problem


def test_a_situation_that_cannot_be_read_is_left_to_the_log(store: Store) -> None:
    flow = outline("START a END", nodes={"a": {"approve": "Go on?"}})
    History("r", flow).created().settled().write(store)
    (before,) = Reader(store).page(Query()).runs
    run = store._data.runs["r"]
    run.view = msgspec.structs.replace(run.view, situation="[")
    (listed,) = Reader(store).page(Query()).runs
    assert listed.found == before.found
