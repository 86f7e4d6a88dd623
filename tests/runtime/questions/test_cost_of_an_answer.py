"""What recording a request costs on a run that no engine executes: one claim, one append that gives the lease back, one fold."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.errors import StoreBusy
from holdfast.reading import history
from holdfast.storage.contract import Append, Holder, Lease, Request
from holdfast.storage.memory.store import MemoryStore


class Counting(MemoryStore):
    """Notes every write transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.loses_replies_to_claims = False
        self.refuses_to_release = False

    def append(self, batch: Any) -> Any:
        self.writes.append("append" + (" and release" if batch[0].release else ""))
        return super().append(batch)

    def claim(self, run_id: str, holder: Holder) -> Lease:
        self.writes.append("claim")
        lease = super().claim(run_id, holder)
        if self.loses_replies_to_claims:
            raise StoreBusy("the reply was lost")
        return lease

    def renew(self, holder: Holder) -> None:
        self.writes.append("renew" if holder.ttl_s else "leave")
        super().renew(holder)

    def release(self, run_id: str, holder: str, fence: int) -> None:
        self.writes.append("release")
        if self.refuses_to_release:
            raise StoreBusy("not now")
        super().release(run_id, holder, fence)

    def post(self, run_id: str, request: Request) -> bool:
        self.writes.append("post")
        return super().post(run_id, request)


graph: Graph[Any] = Graph("gate", dict)
graph.node(name="post", approve="Publish?")(lambda state: {"posted": True})
FLOW = graph.chain(START, "post", END).compile()


@pytest.fixture
def store() -> Counting:
    made = Counting()
    assert hf.run(FLOW, {}, run_id="r", store=made).status == "waiting"
    made.writes.clear()
    return made


@pytest.fixture
def folds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    loaded: list[str] = []
    real = history.load

    def load(store: Any, run_id: str, *args: Any, **named: Any) -> Any:
        loaded.append(run_id)
        return real(store, run_id, *args, **named)

    monkeypatch.setattr(history, "load", load)
    return loaded


def use(store: Counting, call: Callable[[hf.Engine], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with hf.Engine(store) as engine:
            return await call(engine)

    return asyncio.run(main())


def test_an_answer_costs_a_claim_an_append_and_one_fold(store: Counting, folds: list[str]) -> None:
    run = use(store, lambda engine: engine.answer("r", "post", "approve", by="eve"))
    assert (run.status, run.questions) == ("pending", ())
    assert store.writes == ["claim", "append and release", "leave"]
    assert folds == ["r"]
    assert not store.run("r").held


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.signal("r", "paid"),
        lambda engine: engine.pause("r"),
        lambda engine: engine.cancel("r"),
    ],
)
def test_other_requests_that_are_only_recorded_cost_the_same(
    call: Callable[[hf.Engine], Awaitable[Any]], store: Counting, folds: list[str]
) -> None:
    use(store, call)
    assert store.writes == ["claim", "append and release", "leave"]
    assert folds == ["r"]


def test_no_thread_renews_a_lease_for_an_answer(store: Counting) -> None:
    # The thread of an engine that was closed a moment ago may still be ending.
    before = set(threading.enumerate())

    async def answer(engine: hf.Engine) -> None:
        await engine.answer("r", "post", "approve")
        started = set(threading.enumerate()) - before
        assert "holdfast-lease" not in [thread.name for thread in started]

    use(store, answer)


def test_an_answer_that_does_not_fit_claims_nothing(store: Counting) -> None:
    with pytest.raises(hf.AnswerRefused):
        use(store, lambda engine: engine.answer("r", "post", "perhaps"))
    assert store.writes == []


def test_a_log_that_grew_since_the_answer_was_checked_is_read_again(
    store: Counting, folds: list[str]
) -> None:
    real = store.claim

    def meanwhile(run_id: str, holder: Holder) -> Lease:
        store.claim = real  # type: ignore[method-assign]
        other = threading.Thread(
            target=use, args=(store, lambda engine: engine.answer("r", "post", "reject", by="adam"))
        )
        other.start()
        other.join()
        return real(run_id, holder)

    store.claim = meanwhile  # type: ignore[method-assign]
    with pytest.raises(hf.AnswerRefused, match="answered 'reject' by adam already"):
        use(store, lambda engine: engine.answer("r", "post", "approve", by="eve"))
    assert folds == ["r"] * 3
    assert not store.run("r").held


def test_a_brief_lease_that_was_refused_an_append_is_given_back(store: Counting) -> None:
    def full(batch: list[Append]) -> Any:
        raise hf.StoreError("no")

    store.append = full  # type: ignore[method-assign]
    with pytest.raises(hf.StoreError):
        use(store, lambda engine: engine.signal("r", "paid"))
    assert not store.run("r").held


def test_a_brief_claim_without_a_reply_is_looked_for_by_renewals(store: Counting) -> None:
    async def send(engine: hf.Engine) -> None:
        store.loses_replies_to_claims = True
        with pytest.raises(StoreBusy):
            await engine.signal("r", "paid")
        assert store.run("r").held
        renewal: Any = engine._holdings.renewal
        renewal.renew()
        renewal.renew()
        assert not store.run("r").held

    use(store, send)


def test_a_brief_lease_that_could_not_be_given_back_is_not_kept_by_a_later_renewal(store: Counting) -> None:
    async def send(engine: hf.Engine) -> None:
        store.refuses_to_release = True
        with pytest.raises(hf.ResumeRefused):  # nothing is recorded, so no append gives the lease back
            await engine.pause("failed")
        assert store.run("failed").held
        store.refuses_to_release = False
        engine._holdings.hold()
        renewal: Any = engine._holdings.renewal
        renewal.renew()
        assert not store.run("failed").held

    def fails(state: Any) -> None:
        raise hf.Fatal("no")

    other: Graph[Any] = Graph("other", dict)
    other.node(name="fails")(fails)
    with pytest.raises(hf.RunFailed):
        hf.run(other.chain(START, "fails", END).compile(), {}, run_id="failed", store=store)
    use(store, send)
