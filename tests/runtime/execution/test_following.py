"""Following, reading and finding runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engines import gated, in_engine, looping, quickly, running

import holdfast as hf
from holdfast.reading import verification
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock

# --- following and reading ---------------------------------------------------------------------------


def test_follow_tells_every_event_once_and_ends_with_the_run() -> None:
    flow = looping([])

    async def use(engine: hf.Engine) -> tuple[list[int], list[int]]:
        await engine.start(flow, run_id="r")

        async def listen(after: int) -> list[int]:
            return [event.seq async for event in engine.follow("r", after)]

        early = asyncio.create_task(listen(0))
        await asyncio.sleep(0)
        await engine.resume("r")
        return await early, await listen(5)

    early, late = in_engine(use)
    assert early == list(range(1, len(early) + 1))
    assert len(early) > 20
    assert late == early[5:]


def test_follow_from_another_engine_sees_the_same(tmp_path: Path) -> None:
    flow, gate = gated()

    async def use(engine: hf.Engine) -> list[str]:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run, hf.Engine(tmp_path / "runs.db") as other:
            await gate["in"].wait()
            seen = []
            async for event in other.follow("r"):
                seen.append(event.kind)
                gate["open"].set()
            await run
            return seen

    seen = in_engine(use, tmp_path / "runs.db")
    assert seen[0] == "RunCreated"
    assert seen[-1] == "RunCompleted"
    assert seen.count("NodeCompleted") == 2


def test_events_can_be_chosen_by_place_node_and_kind() -> None:
    async def use(engine: hf.Engine) -> None:
        await engine.run(looping([]), run_id="r")
        everything = await engine.events("r")
        assert [event.seq for event in everything] == list(range(1, len(everything) + 1))
        assert await engine.events("r", after=3) == everything[3:]
        ends = await engine.events("r", node="turn", kind="NodeCompleted")
        assert [event.iteration for event in ends] == list(range(1, 11))
        assert ends[-1].body["routes"] == ["END"]

    in_engine(use)


@pytest.mark.parametrize(
    "verb", ["get", "state", "events", "checkpoints", "wait", "resume", "retry", "cancel", "pause", "fork"]
)
def test_an_unknown_run_is_said_to_be_unknown(verb: str) -> None:
    with pytest.raises(hf.RunNotFound, match="no run 'nobody'"):
        in_engine(lambda engine: getattr(engine, verb)("nobody"))


def test_following_or_skipping_in_an_unknown_run_says_so_too() -> None:
    async def use(engine: hf.Engine) -> None:
        with pytest.raises(hf.RunNotFound):
            await engine.skip("nobody", "a")
        with pytest.raises(hf.RunNotFound):
            async for _ in engine.follow("nobody"):
                pass

    in_engine(use)


def test_wait_waits_for_the_end_and_no_longer_than_asked() -> None:
    flow, gate = gated()

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow):
            await gate["in"].wait()
            with pytest.raises(TimeoutError, match=r"still running after 0\.01 s"):
                await engine.wait("r", timeout=0.01)
            gate["open"].set()
            assert (await engine.wait("r")).state.log == ["first", "second"]

    in_engine(use)


def test_get_works_without_the_flow_and_gives_plain_data() -> None:
    store = MemoryStore()
    quickly(looping([]), store=store)
    run = in_engine(lambda engine: engine.get("r"), store)
    assert run.state["total"] == 10
    assert (run.flow, run.nodes["turn"].tries, run.held_by) == ("loop", 10, None)


def test_runs_are_found_by_status_flow_and_label() -> None:
    async def use(engine: hf.Engine) -> None:
        flow = looping([])
        await engine.run(flow, run_id="one", labels={"team": "red"})
        await engine.start(flow, run_id="two", labels={"team": "blue"})
        assert [row.id for row in await engine.runs(status="completed")] == ["one"]
        assert [row.id for row in await engine.runs(labels={"team": "blue"})] == ["two"]
        assert {row.id for row in await engine.runs(flow="loop")} == {"one", "two"}
        assert await engine.runs(flow="other") == []

    in_engine(use)


def test_many_runs_move_at_once(tmp_path: Path) -> None:
    async def use(engine: hf.Engine) -> list[str]:
        flow = looping([])
        ended = await asyncio.gather(*(engine.run(flow, run_id=f"r{number}") for number in range(30)))
        return [run.status for run in ended]

    assert set(in_engine(use, tmp_path / "runs.db")) == {"completed"}
    store = SqliteStore(tmp_path / "runs.db")
    assert all(verification.verify(store, f"r{number}").problems == [] for number in range(30))
    store.close()


def test_a_run_whose_lease_was_taken_over_may_not_write() -> None:
    flow, gate = gated()
    clock = ManualClock()
    store = MemoryStore(clock=clock.now, alive=lambda holder: None)

    async def use(engine: hf.Engine) -> None:
        gate.update({"in": asyncio.Event(), "open": asyncio.Event()})
        async with running(engine, flow) as run:
            await gate["in"].wait()
            clock.advance(31.0)
            gate["open"].set()
            async with hf.Engine(store, flows=[flow], clock=clock, inline=True) as other:
                assert (await other.resume("r")).status == "completed"
            with pytest.raises(hf.StoreError, match="holds it with fence 2"):
                await run

    in_engine(use, store, clock=clock, inline=True)
    assert verification.verify(store, "r").problems == []
