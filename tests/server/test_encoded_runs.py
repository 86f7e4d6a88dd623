"""A run that has not moved is answered without reading its log again, and what the answer says is never older than the run."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from app_client import Caller
from served_flows import opened, run_order

from holdfast.server.backend import EncodedAnswers
from holdfast.storage.memory.store import MemoryStore

READS = ("run", "events", "snapshot", "definition", "inbox")


class Counting(MemoryStore):
    """A store that counts its reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def __getattribute__(self, name):
        if name in READS:
            super().__getattribute__("reads")[name] += 1
        return super().__getattribute__(name)


def in_app(main, **input):
    """Call `main` with an engine, its store and a caller, in a store with one run."""

    async def whole() -> None:
        store = Counting()
        async with opened(store) as (engine, caller):
            await run_order(engine, "r1", **input)
            await main(engine, store, caller)

    asyncio.run(whole())


async def reads_of(store: Counting, caller: Caller, path: str, **options) -> tuple[int, dict[str, int]]:
    store.reads.clear()
    answer = await caller.get(path, **options)
    return answer.status, dict(store.reads)


def test_an_unchanged_run_is_304_by_its_row_alone():
    async def main(engine, store, caller):
        tag = (await caller.get("/api/v1/runs/r1")).headers["etag"]
        known = {"if-none-match": tag}
        assert await reads_of(store, caller, "/api/v1/runs/r1", headers=known) == (304, {"run": 1})

    in_app(main)


def test_the_log_of_a_run_that_has_not_moved_is_read_once():
    async def main(engine, store, caller):
        status, reads = await reads_of(store, caller, "/api/v1/runs/r1")
        assert (status, reads["run"]) == (200, 1)
        assert reads["events"] > 0
        assert await reads_of(store, caller, "/api/v1/runs/r1") == (200, {"run": 1})

    in_app(main)


def test_a_run_that_has_moved_is_read_again():
    async def main(engine, store, caller):
        first = (await caller.get("/api/v1/runs/r1")).json
        await engine.answer("r1", "ship", "approve")
        await engine.resume("r1")
        second = (await caller.get("/api/v1/runs/r1")).json
        assert (first["status"], second["status"]) == ("waiting", "completed")

    in_app(main, asks=True)


def test_a_request_that_waits_is_shown_although_the_run_has_not_moved():
    async def main(engine, store, caller):
        before = (await caller.get("/api/v1/runs/r1")).json
        await engine.resume("r1", execute=False)
        after = (await caller.get("/api/v1/runs/r1")).json
        assert after["seq"] == before["seq"]
        assert "the request 'resume'" not in before["reason"]
        assert "the request 'resume'" in after["reason"]

    in_app(main, fails=True)


def test_kept_answers_are_bounded_in_bytes_and_only_the_latest_of_a_run_is_kept():
    kept = EncodedAnswers(1000)
    for number in range(50):
        kept.put("r1", number, b"x" * 100)
        assert kept.size == 100
    for number in range(50):
        kept.put(f"other{number}", 1, b"x" * 100)
        assert kept.size <= 1000
    assert kept.get("other49", 1) == b"x" * 100
    assert kept.get("other49", 2) is None
    assert kept.get("r1", 49) is None


def test_an_answer_that_would_displace_many_others_is_not_kept():
    kept = EncodedAnswers(1000)
    kept.put("large", 1, b"x" * 500)
    assert kept.get("large", 1) is None


def test_the_answer_that_was_used_last_goes_last():
    kept = EncodedAnswers(1000)
    for name in "abcdefgh":
        kept.put(name, 1, b"x" * 120)
    assert kept.get("a", 1) is not None
    kept.put("i", 1, b"x" * 120)
    assert kept.get("a", 1) is not None
    assert kept.get("b", 1) is None


def test_threads_may_share_what_is_kept():
    kept = EncodedAnswers(10_000)

    def use(seed: int) -> None:
        for number in range(3000):
            name = str((number * seed) % 97)
            if kept.get(name, 1) is None:
                kept.put(name, 1, b"x" * (number % 300))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(1, 9)))
    assert 0 <= kept.size <= 10_000
    assert kept.size == sum(len(body) for _, body in kept._bodies.values())


def test_a_wait_for_a_run_that_has_moved_already_reads_its_row_once():
    async def main(engine, store, caller):
        await caller.get("/api/v1/runs/r1")
        assert await reads_of(store, caller, "/api/v1/runs/r1?wait=1&after=1") == (200, {"run": 1})

    in_app(main)


def test_a_long_read_of_a_file_delays_no_other_request(tmp_path):
    """A page of all runs is held up in SQLite; a run is answered meanwhile."""

    async def main() -> None:
        async with opened(str(tmp_path / "runs.db")) as (engine, caller):
            await run_order(engine, "r1")
            begun, go = threading.Event(), threading.Event()

            def look() -> bool:
                begun.set()
                return not go.wait(20)

            readers = engine.store._database._readers
            reader = readers.borrow()
            reader.set_progress_handler(look, 10)
            readers.give_back(reader)
            slow = asyncio.ensure_future(caller.get("/api/v1/runs"))
            await asyncio.to_thread(begun.wait, 20)
            fast = await asyncio.wait_for(caller.get("/api/v1/runs/r1"), 20)
            assert (fast.status, slow.done()) == (200, False)
            go.set()
            assert (await slow).status == 200

    asyncio.run(main())
