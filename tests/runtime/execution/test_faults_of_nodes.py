"""What goes wrong inside and around nodes: each is the fault of the right one, is recorded, and has a way out."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

import holdfast as hf
from holdfast import END, START, Graph, Retry, add, append
from holdfast.errors import StoreBusy, StoreFull
from holdfast.reading import verification
from holdfast.storage.contract import Append, Request
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.builders import History
from holdfast.testing.clock import ManualClock


@dataclass
class Work:
    log: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[float, add] = 0.0


def one(body: Any, state: type = Work, **options: Any) -> hf.Flow[Any]:
    graph: Graph[Any] = Graph("one", state)
    graph.node(name="only", **options)(body)
    return graph.chain(START, "only", END).compile()


def run_failing(flow: hf.Flow[Any], **options: Any) -> hf.Run[Any]:
    with pytest.raises(hf.RunFailed) as caught:
        hf.run(flow, run_id="r", **options)
    return caught.value.run


def test_a_thread_that_never_ends_fails_its_node_for_good_in_bounded_time() -> None:
    leave = threading.Event()
    clock = ManualClock(auto=True)
    flow = one(lambda state: leave.wait(30) and None, timeout=0.5, retry=Retry(attempts=3, backoff=0.1))
    store = MemoryStore(clock=clock.now)
    try:
        run = run_failing(flow, store=store, clock=clock, luck=random.Random(1))
    finally:
        leave.set()
    assert run.error is not None
    assert run.error.type == "StillRunning"
    assert run.error.message == (
        "node 'only' took longer than its timeout of 0.5 s, and the thread of that attempt still runs"
    )
    assert run.error.advice == (
        "A thread cannot be killed: stop this process, then resume the run. Raise timeout=0.5 if the node needs longer. "
        "An async node, or a node that checks ctx.cancelled, can be stopped."
    )
    assert verification.verify(store, "r").problems == []


class Gate(MemoryStore):
    """A store whose next append is held up."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []
        self.arrived, self.go_on = threading.Event(), threading.Event()

    def append(self, batch: Any) -> Any:
        appends: list[Append] = list(batch)
        kinds = [row.kind for append_ in appends for row in append_.rows]
        if "NodeCompleted" in kinds and not self.arrived.is_set():
            self.arrived.set()
            self.go_on.wait(10)
        return super().append(batch)


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_a_node_that_was_not_called_when_a_halt_comes_is_not_called(how: str) -> None:
    ran: list[str] = []
    graph: Graph[Work] = Graph("two", Work)
    for name in ("a", "b"):

        async def body(state: Work, name: str = name) -> None:
            ran.append(name)

        graph.node(name=name)(body)
    flow = graph.chain(START, "a", "b", END).compile()
    store = Gate()

    async def use() -> hf.Run[Any]:
        async with hf.Engine(store, flows=[flow], grace=30) as engine:
            engine._open().commits._writer._commit_s = (
                1.0  # as on a slow disk: appends go through the writer's thread
            )
            run = asyncio.create_task(engine.run(flow, run_id="r"))
            await asyncio.to_thread(store.arrived.wait)
            if how == "stop":
                engine.stop("deploy")
            else:
                await engine.cancel("r")
            store.go_on.set()
            return await run

    if how == "stop":
        assert asyncio.run(use()).status == "interrupted"
    else:
        with pytest.raises(hf.RunCancelled):
            asyncio.run(use())
    assert ran == ["a"]
    assert verification.verify(store, "r").problems == []


def test_a_sum_that_overflows_is_the_fault_of_its_node() -> None:
    store = MemoryStore()
    run = run_failing(one(lambda state: {"total": 1.7e308}), store=store, input={"total": 1.7e308})
    assert (run.failed_node, run.state.total) == ("only", 1.7e308)


class Model(pydantic.BaseModel):
    small: Annotated[int, pydantic.Field(le=3), add] = 0
    word: str = ""

    @pydantic.field_validator("word")
    @classmethod
    def quiet(cls, word: str) -> str:
        if "!" in word:
            raise ValueError("no shouting")
        return word


@pytest.mark.parametrize("update", [{"small": 9}, {"word": "hey!"}])
def test_a_result_that_the_state_type_refuses_is_the_fault_of_the_node_that_returned_it(
    update: dict[str, Any],
) -> None:
    calls: list[int] = []
    graph: Graph[Model] = Graph("model", Model)

    @graph.node
    def first(state: Model) -> dict[str, Any]:
        calls.append(1)
        return update if len(calls) == 1 else {}

    @graph.node
    def second(state: Model) -> None: ...

    flow = graph.chain(START, "first", "second", END).compile()
    store = MemoryStore()
    run = run_failing(flow, store=store)
    assert run.failed_node == "first"
    assert hf.resume("r", store=store, flows=flow).status == "completed"


def test_a_timeout_of_what_is_not_idempotent_asks_and_never_runs_it_again_by_itself() -> None:
    calls: list[int] = []

    async def pay(state: Work, ctx: hf.Context) -> None:
        calls.append(ctx.attempt)
        if ctx.attempt == 1:
            await asyncio.Event().wait()

    clock = ManualClock(auto=True)
    store = MemoryStore(clock=clock.now)
    flow = one(pay, idempotent=False, timeout=5)
    options: dict[str, Any] = {"store": store, "flows": flow, "clock": clock}
    assert hf.run(flow, run_id="r", **options).status == "waiting"
    assert hf.resume("r", **options).status == "waiting"
    assert calls == [1]
    assert hf.retry("r", **options).status == "completed"


def test_what_a_node_returns_after_its_timeout_is_too_late() -> None:
    async def stubborn(state: Work) -> dict[str, Any]:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return {"log": ["late"]}

    clock = ManualClock(auto=True)
    run = run_failing(one(stubborn, timeout=1, retry=1), store=MemoryStore(clock=clock.now), clock=clock)
    assert run.state.log == []


class Odd(Exception):
    @property
    def status_code(self) -> int:
        raise RuntimeError("no")


@pytest.mark.parametrize("error", [Odd("odd"), SystemExit(503)])
def test_an_exception_that_tells_lies_about_its_status_is_a_plain_failure(error: BaseException) -> None:
    def body(state: Work) -> None:
        raise error

    run = run_failing(one(body), store=MemoryStore())
    assert run.error is not None
    assert (run.error.kind, run.nodes["only"].tries) == ("partial", 1)


def test_a_damaged_log_is_not_carried_on() -> None:
    def body(state: Work, ctx: hf.Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("first")

    store, flow = MemoryStore(), one(body)
    run_failing(flow, store=store)
    store._data.runs["r"].rows[1] = altered(store._data.runs["r"].rows[1])
    with pytest.raises(hf.StoreError, match=r"cannot continue, because its log is damaged.*event 2"):
        hf.resume("r", store=store, flows=flow)
    assert not store.run("r").held


def altered(row: Any) -> Any:
    return msgspec.structs.replace(row, at=row.at + 1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"idempotent": "no"}, "use True or False"),
        ({"each": [1, 2]}, "lists the items"),
        ({"retry": "often"}, "number of tries"),
    ],
)
def test_options_of_a_node_that_make_no_sense_are_told_when_it_is_compiled(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(hf.GraphError, match=told):
        one(lambda state: None, **options)


@pytest.mark.parametrize("body", [lambda: None, lambda a, b, c: None])
def test_a_function_that_cannot_be_called_as_a_node_is_told_when_it_is_compiled(body: Any) -> None:
    with pytest.raises(hf.GraphError, match=r"fn\(state\) or fn\(state, ctx\)"):
        one(body)


def test_two_places_at_once_are_refused() -> None:
    store, flow = MemoryStore(), one(lambda state: None)
    hf.run(flow, run_id="r", store=store)
    with pytest.raises(hf.ResumeRefused, match="two different checkpoints"):
        hf.resume("r@1", checkpoint=3, store=store, flows=flow)


def test_a_fatal_failure_needs_force_wherever_the_run_goes_on() -> None:
    def body(state: Work, ctx: hf.Context) -> None:
        if ctx.execution == 1:
            raise hf.Fatal("closed")

    store, flow = MemoryStore(), one(body)
    run_failing(flow, store=store)
    for where in ({}, {"checkpoint": 1}, {"restart_at": "only"}):
        with pytest.raises(hf.ResumeRefused, match="force"):
            hf.resume("r", store=store, flows=flow, **where)
    assert hf.resume("r", store=store, flows=flow, restart_at="only", force=True).status == "completed"


def test_the_layer_of_a_checkpoint_is_told() -> None:
    graph: Graph[Work] = Graph("layers", Work)
    for name in ("a", "b"):
        graph.node(name=name)(lambda state: None)
    flow = graph.chain(START, "a", "b", END).compile(schedule="layered")
    store = MemoryStore()
    hf.run(flow, run_id="r", store=store)
    told = [(point.kind, point.layer) for point in hf.checkpoints("r", store=store)]
    assert told == [
        ("RunCreated", None),
        ("NodeCompleted", 1),
        ("LayerCompleted", 1),
        ("NodeCompleted", 2),
        ("LayerCompleted", 2),
    ]


def crashed(store: MemoryStore) -> hf.Flow[Any]:
    """A run whose process died inside its only node."""
    flow = one(lambda state: None)
    History("r", flow).created().crashed_in("only").write(store)
    return flow


def test_pausing_a_run_whose_process_died_pauses_it() -> None:
    store = MemoryStore()
    flow = crashed(store)
    assert hf.pause("r", store=store).status == "paused"
    cut = hf.get("r", store=store).nodes["only"]
    assert (cut.status, cut.seconds) == ("interrupted", 0.0), "the time since it died is not its own"
    assert hf.resume("r", store=store, flows=flow).status == "completed"


def test_following_a_run_whose_process_died_ends_with_what_there_is() -> None:
    store = MemoryStore()
    crashed(store)

    async def use() -> list[str]:
        async with hf.Engine(store) as engine:
            return [event.kind async for event in engine.follow("r")]

    assert asyncio.run(asyncio.wait_for(use(), 5)) == ["RunCreated", "NodeStarted"]


def test_a_cancel_that_a_dying_holder_never_saw_is_not_lost() -> None:
    store = MemoryStore()
    flow = crashed(store)
    store.post("r", Request(id="x", verb="cancel", by="ann"))
    with pytest.raises(hf.RunCancelled):
        hf.resume("r", store=store, flows=flow)
    assert hf.events("r", kind="NodeStarted", store=store)[-1].attempt == 1, "nothing ran"


class Full(MemoryStore):
    """A store without room for what comes after the first append, until there is."""

    room = False

    def append(self, batch: Any) -> Any:
        if not self.room and any(one.create is None for one in batch):
            raise StoreFull("no space left")
        return super().append(batch)

    def release(self, run_id: str, holder: str, fence: int) -> None:
        if not self.room:
            raise StoreFull("no space left")
        super().release(run_id, holder, fence)


def test_what_a_run_was_told_not_to_be_recorded_is_not_recorded_later() -> None:
    clock = ManualClock()
    store = Full(clock=clock.now)

    async def done(state: Work) -> dict[str, Any]:
        return {"log": ["done"]}

    flow = one(done)

    async def main() -> None:
        async with hf.Engine(store, flows=[flow], clock=clock, inline=True) as engine:
            run = asyncio.ensure_future(engine.run(flow, run_id="r"))
            for _ in range(50):
                await asyncio.sleep(0)
            engine._holdings.get("r").lose(StoreBusy("the lease could not be renewed"))
            with pytest.raises(StoreBusy, match="could not be renewed"):
                await run
            store.room = True
            clock.advance(5)
            for _ in range(50):
                await asyncio.sleep(0)

    asyncio.run(main())
    assert [row.kind for row in store.events("r")] == ["RunCreated", "NodeStarted"]
