"""The ends of streams: each chunk once, whether it was spilled or is in the log, and never more than the end in memory."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest

from holdfast.reading.chunks import Streamer, spill_key
from holdfast.reading.stream_tails import TAILS_MAX, TEXT_MAX, StreamingVisit, StreamTails
from holdfast.reading.views import EventView
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.builders import History, outline

FLOW = outline("START write END")
FIRST = Streamer("write", 1, 1, 1, None)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    History("r1", FLOW).created().settled().write(store)
    return store


def spill(store: MemoryStore, *chunks: object, streamer: Streamer = FIRST, first: int = 1) -> None:
    data = b"".join(msgspec.json.encode(chunk) + b"\n" for chunk in chunks)
    store.blobs.spill("r1", spill_key(streamer, first), data)


def recorded(*chunks: object, streamer: Streamer = FIRST) -> EventView:
    node, iteration, execution, attempt, item = streamer
    body = {"chunks": list(chunks)} | ({} if item is None else {"item": item})
    return EventView(
        seq=9, at=0.0, kind="NodeStreamed", node=node, iteration=iteration, execution=execution,
        attempt=attempt, by=None, body=body,
    )  # fmt: skip


def lines(tails: StreamTails, most: int = 10) -> list[str]:
    return tails.latest[-1].lines(most)


def test_what_is_spilled_is_read_on_from_the_last_look(store: MemoryStore) -> None:
    tails = StreamTails(store, "r1")
    assert not tails.look()
    spill(store, "one\n", "tw")
    assert tails.look()
    spill(store, "o\n", {"three": 3}, "four")
    assert tails.look()
    assert not tails.look()
    assert lines(tails) == ["one", "two", '{"three": 3}', "four"]
    assert lines(tails, 1) == ["four"]
    assert tails.latest[-1].chunks == 5


def test_a_chunk_that_was_spilled_and_then_recorded_counts_once(store: MemoryStore) -> None:
    tails = StreamTails(store, "r1")
    spill(store, "one\n", "two\n")
    tails.look()
    tails.record(recorded("one\n", "two\n", "three\n"))
    store.blobs.unspill("r1", [spill_key(FIRST, 1)])
    spill(store, "four\n", first=4)
    tails.look()
    tails.record(recorded("four\n", "five\n"))
    assert lines(tails) == ["one", "two", "three", "four", "five"]
    assert tails.latest[-1].chunks == 5


def test_what_an_open_visit_has_streamed_before_is_recalled_from_the_log() -> None:
    store = MemoryStore()
    history = History("r1", FLOW).created().settled()
    for number in range(50):
        history.streamed("write", f"line {number}\n")
    history.write(store)
    tails = StreamTails(store, "r1")
    tails.recall([StreamingVisit("write", 1, 1)], history.state.seq)
    assert lines(tails, 2) == ["line 48", "line 49"]
    assert tails.latest[-1].chunks == 50


def test_streams_of_visits_that_are_over_are_forgotten(store: MemoryStore) -> None:
    tails = StreamTails(store, "r1")
    tails.record(recorded("old"))
    tails.record(recorded("new", streamer=Streamer("write", 2, 1, 1, None)))
    tails.keep({StreamingVisit("write", 2, 1)})
    assert [tail.text for tail in tails.latest] == ["new"]


def test_of_many_streams_the_latest_are_kept(store: MemoryStore) -> None:
    tails = StreamTails(store, "r1")
    for item in range(1000):
        tails.record(recorded(f"item {item}", streamer=Streamer("write", 1, 1, 1, item)))
    assert len(tails.latest) == TAILS_MAX
    assert tails.latest[-1].text == "item 999"


def test_a_stream_of_ten_megabytes_takes_the_memory_of_its_end(store: MemoryStore) -> None:
    tails = StreamTails(store, "r1")
    line = "x" * 999 + "\n"
    tracemalloc.start()
    for number in range(100):
        first = 100 * number + 1
        tails.record(recorded(*[line] * 100))
        assert tails.latest[-1].chunks == first + 99
    tails.record(recorded("y" * 1_000_000))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(tails.latest[-1].text) == TEXT_MAX
    assert taken < 200_000
