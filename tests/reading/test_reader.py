"""A reader needs no engine and no event loop; an engine awaits it on a thread of its own, so that no read stops a node."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.reading import history, reader
from holdfast.reading.reader import Reader
from holdfast.storage.contract import Store
from holdfast.storage.urls import open_store
from holdfast.testing.builders import History, outline

ASKS = outline("START a END", nodes={"a": {"approve": "Go on?"}})


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    kind = request.param
    store = open_store(f"memory://{tmp_path.name}" if kind == "memory" else str(tmp_path / "runs.db"))
    yield store
    store.close()


def write_asking_runs(store: Store, count: int) -> None:
    for number in range(count):
        History(f"r{number}", ASKS, starts_at=1000.0 + number).created().settled().write(store)


def test_a_reader_answers_without_an_event_loop(store: Store) -> None:
    write_asking_runs(store, 2)
    reads = Reader(store)
    assert reads.get("r0").status == "waiting"
    assert [run.id for run in reads.runs()] == ["r1", "r0"]
    assert [asked.run_id for asked in reads.questions()] == ["r0", "r1"]
    assert [asked.run_id for asked in reads.questions("r1")] == ["r1"]
    assert reads.events("r0")[0].kind == "RunCreated"
    assert reads.checkpoints("r0")[0].id == "r0@1"
    assert reads.state("r0") == {}
    assert list(reads.definition(store.run("r0")).nodes) == ["a"]
    assert reads.verify("r0").problems == []


def test_a_summary_has_the_fields_of_a_run_and_nothing_of_the_store(store: Store) -> None:
    write_asking_runs(store, 1)
    (summary,) = Reader(store).runs()
    run = Reader(store).get("r0")
    assert set(hf.RunSummary.__struct_fields__) < set(hf.Run.__struct_fields__)
    for name in hf.RunSummary.__struct_fields__:
        assert getattr(summary, name) == getattr(run, name), name


def test_the_former_name_of_the_id_of_a_listed_run_works_with_a_warning(store: Store) -> None:
    write_asking_runs(store, 1)
    (summary,) = Reader(store).runs()
    with pytest.warns(DeprecationWarning, match=r"is now RunSummary\.id") as warned:
        assert summary.run_id == summary.id
    assert warned[0].filename == __file__


def test_questions_are_read_in_small_pages_however_many_runs_ask(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_asking_runs(store, 40)
    folded = 0
    load = history.load

    def counts(*args: Any, **options: Any) -> Any:
        nonlocal folded
        folded += 1
        return load(*args, **options)

    monkeypatch.setattr(reader.history, "load", counts)
    sizes = []
    for page in Reader(store).question_pages():
        assert folded <= reader._LOGS_PER_PAGE
        sizes.append(len(page))
        folded = 0
    assert sum(sizes) == 40
    assert len(sizes) == 40 / reader._LOGS_PER_PAGE


class Slow:
    """A store that answers one of its verbs only when a node has taken a step since it was asked."""

    def __init__(self, store: Store, verb: str) -> None:
        self._store, self._verb = store, verb
        self.asked = threading.Event()
        self.stepped = threading.Event()
        self.armed = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name != self._verb or not self.armed:
            return found

        def waits(*args: Any, **options: Any) -> Any:
            self.asked.set()
            assert self.stepped.wait(30), "the node was held up"
            return found(*args, **options)

        return waits


READS: dict[str, tuple[str, Callable[[hf.Engine], Any]]] = {
    "get": ("run", lambda engine: engine.get("r0")),
    "runs": ("runs", lambda engine: engine.runs()),
    "state": ("events", lambda engine: engine.state("r0")),
    "events": ("events", lambda engine: engine.events("r0")),
    "checkpoints": ("events", lambda engine: engine.checkpoints("r0")),
    "questions": ("runs", lambda engine: engine.questions()),
    "wait": ("run", lambda engine: engine.wait("r0")),
    "follow": ("events", lambda engine: anext(engine.follow("r0"))),
}


@pytest.mark.parametrize("verb", READS)
def test_no_reading_verb_stops_a_running_node(store: Store, verb: str) -> None:
    write_asking_runs(store, 1)
    slow = Slow(store, READS[verb][0])

    async def main() -> None:
        done = asyncio.Event()

        async def node(state: dict[str, Any]) -> None:
            while not done.is_set():
                await asyncio.sleep(0.001)
                if slow.asked.is_set():
                    slow.stepped.set()

        graph = Graph("steps", dict)
        graph.node(name="steps")(node)
        async with hf.Engine(slow) as engine:  # type: ignore[arg-type]
            running = asyncio.ensure_future(engine.run(graph.chain(START, "steps", END).compile(), {}))
            await asyncio.sleep(0)
            slow.armed = True
            assert await READS[verb][1](engine) is not None
            slow.armed = False
            done.set()
            await running

    asyncio.run(main())
    assert slow.stepped.is_set()


def test_a_run_is_shown_as_one_short_line(store: Store) -> None:
    write_asking_runs(store, 1)
    assert repr(Reader(store).get("r0")) == "<Run 'r0' of 'outline': waiting in 'a', 2 events>"
    flow = outline("START b END")
    History("done", flow).created().completed("b", {"text": "x" * 10_000}).settled().write(store)
    shown = repr(Reader(store).get("done"))
    assert shown.startswith("<Run 'done' of 'outline': completed, ")
    assert len(shown) < 80
