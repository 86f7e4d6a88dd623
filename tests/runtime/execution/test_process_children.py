"""Nodes in processes of their own start child runs, and wait for them, as other nodes do. The processes are real, and killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import calling_nodes as nodes
import pytest
from calling_nodes import Order, pay

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry
from holdfast.reading import verification
from holdfast.storage.contract import Query
from holdfast.storage.rows import open_row
from holdfast.storage.urls import open_store
from postgres_server import shared_url

PATIENCE_S = 60


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: Any, tmp_path: Path) -> str:
    if request.param == "postgres":
        return f"{shared_url()}&schema=s{uuid.uuid4().hex}"
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else str(tmp_path / "runs.db")


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return tmp_path / "book"


def flow_of(fn: Callable[..., Any]) -> Flow[Order]:
    graph = Graph("order", Order)
    graph.node(name="pay", executor="process", retry=Retry(attempts=3, backoff=0.0))(fn)
    return graph.chain(START, "pay", END).compile()


class Shop:
    """A store, and engines that use it one after the other."""

    def __init__(self, url: str, book: Path) -> None:
        self.url = url
        self.book = book
        self.store = open_store(url)

    def do(self, use: Callable[[hf.Engine], Any], *flows: Flow[Any]) -> Any:
        async def main() -> Any:
            async with hf.Engine(self.url, flows=flows) as engine:
                return await asyncio.wait_for(use(engine), PATIENCE_S)

        return asyncio.run(main())

    def run(self, fn: Callable[..., Any], *, amount: int = 12, flows: tuple[Flow[Any], ...] = (pay,)) -> Any:
        given = Order(str(self.book), amount)
        return self.do(lambda engine: engine.run(flow_of(fn), given, run_id="r"), *flows)

    def fails(self, fn: Callable[..., Any], **options: Any) -> Any:
        """Execute the run, which must fail, and return why its node failed."""
        with pytest.raises(hf.RunFailed):
            self.run(fn, **options)
        return self.told("NodeFailed")[-1].failure

    def resume(self, fn: Callable[..., Any]) -> Any:
        return self.do(lambda engine: engine.resume("r"), flow_of(fn), pay)

    def children(self) -> list[str]:
        return [row.run_id for row in self.store.runs(Query(origin="r"))]

    def paid(self) -> list[str]:
        return self.book.read_text().splitlines() if self.book.exists() else []

    def told(self, kind: str) -> list[Any]:
        return [open_row(row, self.store.blobs).event for row in self.store.events("r", kinds=(kind,))]


@pytest.fixture
def shop(url: str, book: Path) -> Any:
    shop = Shop(url, book)
    with closing(shop.store):
        yield shop
        for run_id in ["r", *shop.children()]:
            assert verification.verify(shop.store, run_id).problems == []


@pytest.mark.parametrize("fn", [nodes.calls, nodes.calls_blocking])
def test_a_node_in_a_process_calls_a_flow(shop: Shop, fn: Any) -> None:
    state = shop.run(fn).state
    assert (state.paid, state.trace) == (12, "Payment")
    assert len(shop.children()) == len(shop.paid()) == 1


def test_a_node_in_a_process_starts_a_child_and_waits_for_it(shop: Shop) -> None:
    state = shop.run(nodes.starts_and_waits).state
    assert (state.paid, state.trace) == (12, "dict")


@pytest.mark.parametrize("fn", [nodes.leaves_it_to_workers, nodes.leaves_it_to_workers_blocking])
def test_a_wait_for_a_worker_unwinds_the_process(shop: Shop, fn: Any) -> None:
    assert shop.run(fn).status == "waiting"
    assert [event.on for event in shop.told("NodeWaiting")] == [["child:payment:1"]]

    async def work(engine: hf.Engine) -> None:
        await engine.work(queues=["till", "default"], until="idle")

    shop.do(work, flow_of(fn), pay)
    assert shop.do(lambda engine: engine.get("r")).state["paid"] == 12
    assert len(shop.told("ChildStarted")) == len(shop.told("ChildEnded")) == len(shop.paid()) == 1


def test_a_process_that_is_killed_after_the_start_finds_the_child_again(shop: Shop) -> None:
    assert shop.run(nodes.dies_after_start).state.paid == 12
    assert len(shop.children()) == len(shop.paid()) == 1
    assert len(shop.told("ChildStarted")) == len(shop.told("ChildEnded")) == 1
    assert shop.told("NodeFailed")[0].failure.type == "ProcessEnded"


def test_an_engine_that_is_killed_after_the_start_leaves_one_child(shop: Shop, tmp_path: Path) -> None:
    if shop.url.startswith("memory"):
        shop.run(nodes.calls)
        pytest.skip("a store in memory dies with its engine")
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, sys\n"
        "import holdfast as hf\n"
        "import calling_nodes as nodes\n"
        "from test_process_children import flow_of\n"
        "async def main():\n"
        "    async with hf.Engine(sys.argv[2], flows=[nodes.pay], lease_ttl=1) as engine:\n"
        "        await engine.run(flow_of(nodes.kills_its_engine), nodes.Order(sys.argv[1]), run_id='r')\n"
        "asyncio.run(main())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(program), str(shop.book), shop.url]
    assert (
        subprocess.run(command, check=False, env=environment, timeout=PATIENCE_S).returncode
        == -signal.SIGKILL
    )
    assert shop.resume(nodes.kills_its_engine).state.paid == 12
    assert len(shop.children()) == len(set(shop.paid())) == 1
    assert len(shop.told("ChildStarted")) == len(shop.told("ChildEnded")) == 1


# --- errors -------------------------------------------------------------------------------------------


def test_the_failure_of_a_child_arrives_with_its_id_and_remedy(shop: Shop) -> None:
    trace = shop.run(nodes.catches, amount=-1).state.trace
    (child,) = shop.children()
    assert trace.startswith(f"{child} ValueError ")
    assert f"`holdfast show {child}`" in trace


def test_a_failed_child_fails_the_node_without_a_retry_and_a_mended_one_is_used(shop: Shop) -> None:
    failure = shop.fails(nodes.calls_blocking, amount=-1)
    (child,) = shop.children()
    assert (failure.type, failure.kind, failure.child) == ("ChildFailed", "partial", child)
    assert f"`holdfast show {child}`" in failure.message
    assert [event.retry_at for event in shop.told("NodeFailed")] == [None]

    async def mend(engine: hf.Engine) -> None:
        await engine.edit(child, {"amount": 5})
        await engine.resume(child)

    shop.do(mend, pay)
    assert shop.resume(nodes.calls_blocking).state.paid == 5
    assert len(shop.children()) == len(shop.paid()) == 1


@pytest.mark.parametrize(
    ("fn", "kind", "told"),
    [
        (nodes.misfit, "StateError", "the input of the child 'payment' does not fit flow 'payment'"),
        (nodes.bad_queue, "SettingError", "queue='no queue' is not a valid queue name"),
        (nodes.same_key, "ContextError", "uses the child 'payment' twice"),
        (nodes.awaits_twice, "ContextError", "waits for the child 'payment' twice"),
        (nodes.no_flow, "ContextError", "'payment' is not a flow; give what graph.compile() returns"),
        (nodes.calls_impostor, "ContextError", "is not the one that its engine has"),
    ],
)
def test_a_mistake_is_refused_as_in_the_engine(shop: Shop, fn: Any, kind: str, told: str) -> None:
    failure = shop.fails(fn)
    assert (failure.type, failure.kind) == (kind, "partial")
    assert told in failure.message


def test_a_flow_that_the_engine_does_not_know_is_refused_and_the_run_stays_resumable(shop: Shop) -> None:
    failure = shop.fails(nodes.calls, flows=())
    assert failure.type == "ContextError"
    assert "starts a child run of flow 'payment', which its engine does not know" in failure.message
    assert "flows=[…]" in failure.message
    assert shop.children() == []
    assert shop.resume(nodes.calls).state.paid == 12


def test_a_timeout_ends_the_wait_of_a_process(shop: Shop) -> None:
    ended = shop.run(nodes.impatient)
    while ended.status == "waiting":  # run() returns, because only the timeout moves the run
        ended = shop.resume(nodes.impatient)
    assert "did not end within 0.05 s" in ended.state.trace
    (child,) = shop.children()
    assert shop.store.run(child).status == "cancelled"


def test_a_process_is_refused_the_result_of_a_child_that_newer_code_has_upgraded(shop: Shop) -> None:
    assert shop.run(nodes.leaves_it_to_workers).status == "waiting"
    graph = Graph(
        "payment", nodes.Payment, version=2, upgrades={1: lambda old: {**old, "amount": old["amount"] * 100}}
    )
    graph.node(nodes.charge)
    newer = graph.chain(START, "charge", END).compile()
    shop.do(lambda engine: engine.work(queues=["till"], until="idle"), newer)
    assert shop.paid() != []
    with pytest.raises(hf.RunFailed, match="has a state of version 2, and flow 'payment' has version 1 here"):
        shop.resume(nodes.leaves_it_to_workers)
    assert shop.told("NodeFailed")[-1].failure.type == "StateError"
