"""What the simulator found, each once more without it: small, and in the open."""

import asyncio
import random
from dataclasses import dataclass

import pytest

import holdfast as hf
from holdfast import END, START, Engine, Graph
from holdfast.errors import StoreBusy
from holdfast.storage.memory import MemoryStore
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
        del store._data.waiting[key]
        store._data.taken.add(key)

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
        engine._renewal.renew()
        assert store.run("r").held  # it might only just have been got
        engine._renewal.renew()
        assert not store.run("r").held

    use(store, tell)


def test_a_run_in_hand_is_not_given_back_for_a_doubt() -> None:
    store = Unlucky()

    async def carry(engine) -> None:
        going = asyncio.ensure_future(engine.resume("r"))
        for _ in range(20):  # passes of the loop, until the node waits
            await asyncio.sleep(0)
        assert store.run("r").status == "running"
        engine._doubt()
        engine._renewal.renew()
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
