"""The blocking door: the engine's verbs as plain functions, on whatever thread and inside whatever loop they are called."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.runtime import blocking
from holdfast.storage.memory.store import MemoryStore

VERBS = [
    "run",
    "start",
    "wait",
    "resume",
    "retry",
    "skip",
    "cancel",
    "pause",
    "fork",
    "get",
    "runs",
    "state",
    "events",
    "checkpoints",
]


def adding(broken: list[bool] | None = None) -> Flow[dict[str, Any]]:
    graph = Graph("adding")

    @graph.node
    def one(state: dict[str, Any]) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    @graph.node
    async def two(state: dict[str, Any]) -> dict[str, Any]:
        if broken:
            raise ValueError("broken")
        return {"n": state["n"] + 10}

    return graph.chain(START, "one", "two", END).compile()


def test_a_run_from_beginning_to_end_without_a_word_about_async(tmp_path: Path) -> None:
    store, broken, flow = tmp_path / "runs.db", [True], None
    flow = adding(broken)
    with pytest.raises(hf.RunFailed, match="broken") as failed:
        hf.run(flow, {"n": 1}, run_id="r", store=store, labels={"team": "red"})
    assert (failed.value.run.status, failed.value.run.state) == ("failed", {"n": 2})
    broken.clear()
    given = {"store": store, "flows": [flow]}
    assert hf.resume("r", **given).state == {"n": 12}
    assert hf.get("r", store=store).labels == {"team": "red"}
    assert [row.id for row in hf.runs(store=store)] == ["r"]
    assert hf.state("r@1", store=store) == {"n": 1}
    assert hf.events("r", store=store)[0].kind == "RunCreated"
    assert [point.node for point in hf.checkpoints("r", store=store)] == [None, "one", "two"]
    fork = hf.fork("r", checkpoint=1, edit={"n": 100}, **given)
    assert hf.resume(fork, **given).state == {"n": 111}
    assert hf.start(flow, {"n": 5}, run_id="s", store=store) == "s"
    assert hf.pause("s", **given).status == "paused"
    assert hf.wait("s", store=store).status == "paused"
    assert hf.cancel("s", "enough", **given).status == "cancelled"


def test_retry_and_skip_carry_on(tmp_path: Path) -> None:
    broken = [True]
    flow = adding(broken)
    for run_id in ("a", "b"):
        with pytest.raises(hf.RunFailed):
            hf.run(flow, {"n": 1}, run_id=run_id, store=tmp_path / "runs.db")
    broken.clear()
    assert hf.retry("a", store=tmp_path / "runs.db", flows=[flow]).state == {"n": 12}
    assert hf.skip("b", "two", {"n": 7}, store=tmp_path / "runs.db", flows=[flow]).state == {"n": 7}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_takes_what_the_engines_verb_takes(verb: str) -> None:
    ours = inspect.signature(getattr(hf, verb)).parameters
    theirs = {
        name: found
        for name, found in inspect.signature(getattr(hf.Engine, verb)).parameters.items()
        if name != "self"
    }
    assert [name for name in ours if name != "options"] == list(theirs)
    for name, found in theirs.items():
        assert (ours[name].kind, ours[name].default) == (found.kind, found.default), name


def test_every_option_of_the_engine_can_be_given() -> None:
    options = set(inspect.signature(hf.Engine).parameters) - {"self"}
    assert set(blocking.Options.__annotations__) == options


def test_the_store_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "from-environment.db"))
    hf.run(adding(), {"n": 1}, run_id="r")
    assert (tmp_path / "from-environment.db").exists()


def test_the_store_is_beside_the_caller_where_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    hf.run(adding(), {"n": 1}, run_id="r")
    assert (tmp_path / ".holdfast" / "runs.db").exists()


def test_inside_a_running_loop_it_works_all_the_same() -> None:
    """As in a notebook."""
    store = MemoryStore()

    async def cell() -> dict[str, Any]:
        return hf.run(adding(), {"n": 1}, run_id="r", store=store).state

    assert asyncio.run(cell()) == {"n": 12}
    assert hf.get("r", store=store).status == "completed"


def test_what_goes_wrong_inside_a_running_loop_is_raised_there() -> None:
    async def cell() -> None:
        hf.run(adding([True]), {"n": 1}, store=MemoryStore())

    with pytest.raises(hf.RunFailed, match="broken"):
        asyncio.run(cell())


def test_in_a_thread_of_the_users_own_it_leaves_the_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []
    graph = Graph("look")
    graph.node(name="look")(lambda state: seen.append(signal.getsignal(signal.SIGTERM)))
    flow = graph.chain(START, "look", END).compile()
    thread = threading.Thread(target=lambda: hf.run(flow, {}, store=MemoryStore()))
    thread.start()
    thread.join()
    assert seen == [before]


def test_afterwards_the_signals_are_as_they_were() -> None:
    def mine(number: int, frame: Any) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        hf.run(adding(), {"n": 1}, store=MemoryStore())
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_is_passed_on_when_the_run_is_in_order(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    graph = Graph("signalled")

    @graph.node
    async def one(state: dict[str, Any]) -> dict[str, Any]:
        os.kill(os.getpid(), number)
        await asyncio.sleep(0)
        return {"one": True}

    graph.node(name="two")(lambda state: {"two": True})
    flow, store = graph.chain(START, "one", "two", END).compile(), MemoryStore()
    with pytest.raises(raised):
        hf.run(flow, {}, run_id="r", store=store)
    run = hf.get("r", store=store)
    assert (run.status, run.state) == ("interrupted", {"one": True})
    assert hf.resume("r", store=store, flows=[flow]).state == {"one": True, "two": True}


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(hf.SettingError, match="lease_ttl"):
        hf.run(adding(), {"n": 1}, store=MemoryStore(), lease_ttl=0.1)
    with pytest.raises(hf.SettingError, match="durability"):
        hf.run(adding(), {"n": 1}, store=MemoryStore(), durability="never")  # type: ignore[arg-type]
    with pytest.raises(hf.SettingError, match="compile"):
        hf.resume("r", store=MemoryStore(), flows=[Graph("g")])  # type: ignore[list-item]


@pytest.mark.parametrize("given", [{"n": float("nan")}, {"n": {1, 2}}, {1: 1}, 7, "text"])
def test_an_input_that_does_not_fit_is_refused_and_leaves_no_run(given: Any) -> None:
    store = MemoryStore()
    with pytest.raises(hf.StateError):
        hf.run(adding(), given, run_id="r", store=store)
    assert hf.runs(store=store) == []


@pytest.mark.parametrize(
    "verb", ["get", "state", "events", "checkpoints", "wait", "resume", "retry", "cancel", "pause", "fork"]
)
def test_an_unknown_run_is_said_to_be_unknown(verb: str) -> None:
    with pytest.raises(hf.RunNotFound, match="no run 'nobody'"):
        getattr(hf, verb)("nobody", store=MemoryStore())


def test_a_handler_that_is_installed_while_an_engine_is_open_stays() -> None:
    """As that of a web server, which installs its own when it starts."""

    def mine(number: int, frame: Any) -> None: ...

    async def main() -> None:
        async with hf.Engine(MemoryStore()):
            signal.signal(signal.SIGTERM, mine)
        assert signal.getsignal(signal.SIGTERM) is mine

    before = signal.getsignal(signal.SIGTERM)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGTERM, before)


def test_engines_that_are_closed_in_any_order_leave_the_handlers_as_they_were() -> None:
    async def main() -> None:
        engines = [hf.Engine(MemoryStore()) for _ in range(3)]
        for engine in engines:
            await engine.__aenter__()
        for number in (1, 0, 2):
            await engines[number].__aexit__(None, None, None)

    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(main())
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("verb", ["wait", "run"])
def test_an_interrupt_of_a_cell_ends_a_call_that_only_waits(verb: str) -> None:
    """As the stop button of a notebook does: the call waits for a run of another engine, and leaves it alone."""
    looked = threading.Semaphore(0)

    class Watched(MemoryStore):
        def run(self, run_id: str) -> Any:
            looked.release()
            return super().run(run_id)

    graph, store = Graph("waits"), Watched()

    @graph.node
    async def only(state: dict[str, Any]) -> dict[str, Any]:
        entered.set()
        await leave.wait()
        return {"done": True}

    flow = graph.chain(START, only, END).compile()
    entered, leave, interrupted = threading.Event(), asyncio.Event(), []

    async def holder() -> None:
        async with hf.Engine(store) as engine:
            ended.append((await engine.run(flow, {}, run_id="r")).status)

    ended: list[str] = []
    loop = asyncio.new_event_loop()
    holding = threading.Thread(target=loop.run_until_complete, args=(holder(),))
    holding.start()
    entered.wait()

    def interrupt() -> None:
        for _ in range(5):
            looked.acquire()
        os.kill(os.getpid(), signal.SIGINT)

    async def cell() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        while looked.acquire(blocking=False):
            pass
        threading.Thread(target=interrupt).start()
        try:
            hf.wait("r", store=store) if verb == "wait" else hf.run(flow, {}, run_id="r", store=store)
        except KeyboardInterrupt:
            interrupted.append(1)

    before = signal.getsignal(signal.SIGINT)
    try:
        asyncio.run(cell())
    finally:
        signal.signal(signal.SIGINT, before)
        loop.call_soon_threadsafe(leave.set)
        holding.join()
        loop.close()
    assert (interrupted, ended) == ([1], ["completed"])
