"""Bugs that the simulator found, each as a small test without the simulator."""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass

import pytest

import holdfast as hf
from holdfast import END, START, Engine, Graph
from holdfast.errors import StoreBusy
from holdfast.reading.verification import verify
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.clock import ManualClock


@dataclass
class Parcel:
    note: str = ""


def waiting_flow() -> hf.Flow:
    graph = Graph("parcel", Parcel)

    @graph.node
    async def wait(state: Parcel, ctx: hf.Context) -> dict:
        return {"note": await ctx.wait_for("parcel")}

    return graph.chain(START, "wait", END).compile()


class Unlucky(MemoryStore):
    """Something happens once, at a claim."""

    before_claim = after_claim = None

    def claim(self, run_id, holder):
        before, self.before_claim = self.before_claim, None
        if before is not None:
            before()
        lease = super().claim(run_id, holder)
        after, self.after_claim = self.after_claim, None
        if after is not None:
            after()
        return lease


def use(store, do):
    async def main():
        clock = ManualClock(auto=True)
        flows = [waiting_flow()]
        async with Engine(store, flows=flows, clock=clock, luck=random.Random(1), inline=True) as engine:
            await engine.start(flows[0], run_id="r")
            return await do(engine)

    return asyncio.run(main())


def test_a_signal_that_somebody_found_in_the_inbox_is_not_recorded_again() -> None:
    store = Unlucky()

    def another_holder_takes_it() -> None:
        (key,) = store._data.waiting
        store._data.handle(*key, store.run("r").seq)

    store.before_claim = another_holder_takes_it
    use(store, lambda engine: engine.signal("r", "parcel", "came", id="1"))
    assert store.events("r", kinds=("SignalReceived",)) == []
    assert not store.run("r").held


def test_a_lease_that_was_got_without_a_reply_is_given_back_by_the_second_renewal() -> None:
    store = Unlucky()

    def lose_the_reply() -> None:
        raise StoreBusy("the reply was lost")

    async def tell(engine) -> None:
        store.after_claim = lose_the_reply
        with pytest.raises(StoreBusy):
            await engine.signal("r", "parcel", "came")
        assert store.run("r").held
        engine._holdings.renewal.renew()
        assert store.run("r").held  # it might only just have been got
        engine._holdings.renewal.renew()
        assert not store.run("r").held

    use(store, tell)


def test_a_run_in_hand_is_not_given_back_for_a_doubt() -> None:
    store = Unlucky()

    async def carry(engine) -> None:
        going = asyncio.ensure_future(engine.resume("r"))
        for _ in range(20):  # passes of the loop, until the node waits
            await asyncio.sleep(0)
        assert store.run("r").status == "running"
        engine._holdings.doubt()
        engine._holdings.renewal.renew()
        assert store.run("r").held
        await engine.signal("r", "parcel", "came")
        await going

    use(store, carry)
    assert store.run("r").status == "completed"


def test_a_rewind_does_not_go_back_in_time() -> None:
    clock = ManualClock()
    behind = []
    store = MemoryStore(clock=lambda: clock.now() - (100 if behind else 0))

    async def rewind(engine) -> None:
        await engine.pause("r")
        clock.advance(10)
        await engine.signal("r", "parcel", "came")
        behind.append(True)
        await engine.resume("r@1")

    use(store, rewind)
    times = [row.at for row in store.events("r")]
    assert times == sorted(times)
    assert "RunRewound" in [row.kind for row in store.events("r")]


def long_flow() -> hf.Flow:
    graph = Graph("parcel", Parcel)
    for name in ("weigh", "wrap", "seal"):
        graph.node(name=name)(lambda state: {"note": state.note + "."})

    @graph.node
    async def wait(state: Parcel, ctx: hf.Context) -> dict:
        return {"note": state.note + await ctx.wait_for("parcel")}

    return graph.chain(START, "weigh", "wrap", "seal", "wait", END).compile()


class Tidied(MemoryStore):
    """Somebody tidies up right before a rewind is written."""

    tidy = None

    def append(self, batch):
        rewinds = any(row.kind == "RunRewound" for append in batch for row in append.rows)
        if rewinds and self.tidy is not None:
            tidy, self.tidy = self.tidy, None
            tidy()
        return super().append(batch)


def test_a_rewind_that_is_on_its_way_to_the_log_is_not_compacted_away() -> None:
    store, flow = Tidied(), long_flow()
    pruned = []

    async def main() -> hf.Run:
        clock = ManualClock(auto=True)
        async with Engine(store, flows=[flow], clock=clock, luck=random.Random(1), inline=True) as engine:

            def tidy() -> None:
                with pytest.raises(StopIteration) as done:
                    engine.prune("r", 1, compact=True).send(None)
                pruned.append(done.value.value)

            await engine.start(flow, run_id="r")
            await engine.resume("r")
            store.tidy = tidy
            await engine.resume("r", restart_at="wrap")
            await engine.signal("r", "parcel", "came", id="1")
            return await engine.resume("r")

    run = asyncio.run(main())
    assert len(pruned) == 1
    assert (run.status, run.state.note) == ("completed", "...came")
    assert verify(store, "r").problems == []


@pytest.mark.parametrize("lost", ["claim", "release"])
def test_a_lease_that_a_compaction_does_not_know_of_is_given_back(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, flow = MemoryStore(), long_flow()
    real, replies = getattr(store, lost), []

    def without_a_reply(*args):
        done = real(*args) if lost == "claim" or replies else None
        if not replies:
            replies.append(done)
            raise StoreBusy("the reply was lost")
        return done

    async def main() -> None:
        clock = ManualClock(auto=True)
        async with Engine(store, flows=[flow], clock=clock, luck=random.Random(1), inline=True) as engine:
            await engine.start(flow, run_id="r")
            await engine.resume("r")
            monkeypatch.setattr(store, lost, without_a_reply)
            with suppress(StoreBusy):
                await engine.prune("r", 1, compact=True)
            assert replies
            assert store.run("r").held
            for _ in range(2):
                engine._holdings.renewal.renew()
            assert not store.run("r").held

    asyncio.run(main())
