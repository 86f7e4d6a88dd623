"""Receipts and handoffs: what they say, that they are a function of the log alone, and that writing them neither slows nor
fails a run.

The engine is inline where the test looks at every write, and has its threads where it looks at the end only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry, append
from holdfast.core import events
from holdfast.core.definition import Definition
from holdfast.documents import receipts, run_folder, scribe
from holdfast.reading import inbox
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import open_row
from holdfast.testing.clock import STARTS_AT, ManualClock

PATIENCE_S = 60


@dataclass
class Work:
    turns: int = 0
    want: int = 2
    fail: str = ""
    pages: list[int] = field(default_factory=list)
    log: Annotated[list[str], append] = field(default_factory=list)


class Trouble(hf.Recoverable):
    pass


def busy_flow(broken: set[str] | None = None) -> Flow[Any]:
    """fetch -> turn (a loop) -> {pages (a fan-out), side} -> publish; what is in `broken` raises."""
    broken = set() if broken is None else broken
    graph = Graph("busy", Work)

    def raises(name: str) -> None:
        if name in broken:
            raise ValueError(f"{name} is broken")

    @graph.node(agent="reader", retry=Retry(attempts=2, backoff=1.0, jitter=0.0))
    def fetch(state: Work, ctx: hf.Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            raise Trouble("not yet")
        return {"pages": [1, 2, 3]}

    @graph.node
    def turn(state: Work) -> dict[str, Any]:
        return {"turns": state.turns + 1}

    @graph.node(each=lambda state: state.pages)
    def pages(page: int) -> dict[str, Any]:
        raises(f"page {page}")
        return {"log": [f"page {page}"]}

    @graph.node
    def side(state: Work) -> dict[str, Any]:
        raises("side")
        return {"log": ["side"]}

    @graph.node(agent="writer")
    def publish(state: Work) -> None:
        raises("publish")

    graph.chain(START, "fetch", "turn").edge("pages", "publish").edge("side", "publish").edge("publish", END)
    graph.branch(
        "turn",
        lambda state: "turn" if state.turns < state.want else ["pages", "side"],
        to=["turn", "pages", "side"],
    )
    return graph.compile()


class Scene:
    """A store and a RUN_BASE, and engines on both."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "base"
        self.clock = ManualClock(auto=True)
        self.store = MemoryStore(clock=self.clock.now)

    def use(self, use: Callable[[hf.Engine], Awaitable[Any]], **options: Any) -> Any:
        options = {
            "clock": self.clock,
            "inline": True,
            "luck": random.Random(7),
            "run_base": self.base,
            **options,
        }

        async def main() -> Any:
            async with hf.Engine(self.store, **options) as engine:
                return await asyncio.wait_for(use(engine), PATIENCE_S)

        return asyncio.run(main())

    def run(self, flow: Flow[Any], given: Any = None, **options: Any) -> Any:
        return self.use(lambda engine: engine.run(flow, given, run_id="r"), **options)

    def fail(self, flow: Flow[Any], given: Any = None, **options: Any) -> None:
        with pytest.raises(hf.RunFailed):
            self.run(flow, given, **options)

    def open(self, **options: Any) -> None:
        """Open an engine, and close it again."""

        async def nothing(engine: hf.Engine) -> None:
            pass

        self.use(nothing, **options)

    def folder(self, flow: str = "busy", run_id: str = "r") -> Path:
        return run_folder.run_folder(self.base, run_id, flow)

    def read(self, name: str, flow: str = "busy", run_id: str = "r") -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.folder(flow, run_id) / name).read_bytes())
        return read

    def documents(self, run_id: str = "r") -> dict[str, bytes]:
        return documents_of(self.store, run_id)

    def assert_as_the_log_says(self, flow: str = "busy", run_id: str = "r") -> None:
        assert stands(self.folder(flow, run_id)) == self.documents(run_id)


def documents_of(store: Any, run_id: str) -> dict[str, bytes]:
    def lookup(fingerprint: str) -> Definition | None:
        found = store.definition(fingerprint)
        return None if found is None else msgspec.json.decode(found, type=Definition)

    row = store.run(run_id)
    log = [open_row(found, store.blobs) for found in store.events(run_id)]
    return receipts.documents(row, log, lookup, scribe._began_with(store, row))


def stands(folder: Path) -> dict[str, bytes]:
    """Every file of a run but artifacts and the lock."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.name.startswith(".") and "artifacts" not in file.parts
    }


def counted_writes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file is written from now on."""
    written: Counter[str] = Counter()
    put_all = scribe.put_all

    def counted(folder: Path, contents: dict[str, bytes]) -> None:
        written.update(list(contents))
        put_all(folder, contents)

    monkeypatch.setattr(scribe, "put_all", counted)
    return written


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def eventful(scene: Scene, *, inline: bool = True) -> None:
    """The run `r` with a retry, a loop, a branch, a failed item, a failure, a crash, a rewind, a skip and a resume."""
    broken = {"page 2", "publish"}
    flow = busy_flow(broken)
    options: dict[str, Any] = {"flows": [flow], "inline": inline}
    scene.fail(flow, **options)
    broken.remove("page 2")
    with pytest.raises(hf.RunFailed):
        scene.use(lambda engine: engine.retry("r", "pages", by="ann", reason="page 2 is back"), **options)
    cut(scene, flow)
    with pytest.raises(hf.RunFailed):
        scene.use(lambda engine: engine.resume("r", restart_at="side", by="bob"), **options)
    scene.use(lambda engine: engine.skip("r", "publish", by="ann", reason="by hand"), **options)


def cut(scene: Scene, flow: Flow[Any]) -> None:
    """Take the run up in an engine that dies in `publish` without a word."""

    async def main() -> None:
        async with hf.Engine(scene.store, flows=[flow], clock=scene.clock, inline=True) as engine:
            journal = await engine.door.unheld._prepare(engine.door.unheld.claim("r"), inbox.Resume(by="eve"))
            journal.record(events.NodeStarted(node="publish", iteration=1, execution=1, attempt=2, took=0))
            await journal.save_and_wait()

    asyncio.run(main())


# --- what they say ------------------------------------------------------------------------------------


def test_every_attempt_has_a_receipt_and_the_plain_name_is_the_latest(scene: Scene) -> None:
    scene.run(busy_flow())
    names = {file.name for file in (scene.folder() / "receipts").iterdir()}
    assert names == {
        "fetch-reader.1.1.1.json",
        "fetch-reader.1.1.2.json",
        "fetch-reader.json",
        "turn-engine.1.1.1.json",
        "turn-engine.2.1.1.json",
        "turn-engine.json",
        "pages-engine.1.1.1.json",
        "pages-engine.json",
        "side-engine.1.1.1.json",
        "side-engine.json",
        "publish-writer.1.1.1.json",
        "publish-writer.json",
    }
    for folder in ("receipts", "handoffs"):
        latest = (scene.folder() / folder / "turn-engine.json").read_bytes()
        assert latest == (scene.folder() / folder / "turn-engine.2.1.1.json").read_bytes()


def test_a_receipt_says_who_what_when_and_how_it_ended(scene: Scene) -> None:
    scene.run(busy_flow())
    first, second = (scene.read(f"receipts/fetch-reader.1.1.{attempt}.json") for attempt in (1, 2))
    assert (first["status"], second["status"]) == ("failed", "succeeded")
    assert first["failure"]["type"] == "Trouble"
    assert first["failure"]["message"] == "not yet"
    assert first["retry_at"] == receipts.instant(STARTS_AT + 1)
    assert second["started_at"] == receipts.instant(STARTS_AT + 1)
    assert first["checkpoint"] is None
    assert second["checkpoint"] == f"r@{second['seq']['last']}"
    assert second["changes"]["set"]["pages"]["bytes"] == len(b"[1,2,3]")
    identity = ("run_id", "flow", "node", "agent", "iteration", "execution", "attempt", "kind")
    assert [second[name] for name in identity] == ["r", "busy", "fetch", "reader", 1, 1, 2, "receipt"]
    row = scene.store.run("r")
    assert second["fingerprint"] == row.fingerprint


def test_a_handoff_says_where_the_run_went_and_why(scene: Scene) -> None:
    scene.run(busy_flow())
    assert scene.read("handoffs/fetch-reader.json")["to"] == [{"node": "turn", "why": "edge"}]
    assert scene.read("handoffs/turn-engine.1.1.1.json")["to"] == [{"node": "turn", "why": "branch"}]
    both = scene.read("handoffs/turn-engine.json")
    assert both["to"] == [{"node": "pages", "why": "branch"}, {"node": "side", "why": "branch"}]
    assert both["handed"]["set"]["turns"]["value"] == 2
    assert both["decided"] == "completion"
    assert scene.read("handoffs/publish-writer.json")["to"] == [{"node": "END", "why": "edge"}]


def test_the_items_of_a_fan_out_are_in_the_receipt_of_their_node(scene: Scene) -> None:
    broken = {"page 2"}
    flow = busy_flow(broken)
    scene.fail(flow)
    failed = scene.read("receipts/pages-engine.1.1.1.json")
    assert failed["status"] == "failed"
    assert [item["status"] for item in failed["items"]] == ["succeeded", "failed", "succeeded"]
    assert failed["items"][1]["failure"]["message"] == "page 2 is broken"
    broken.clear()
    scene.use(lambda engine: engine.retry("r", "pages", by="ann", reason="repaired"), flows=[flow])
    again = scene.read("receipts/pages-engine.json")
    assert [(item["status"], item["attempt"]) for item in again["items"]] == [
        ("succeeded", 1),
        ("succeeded", 2),
        ("succeeded", 1),
    ]
    assert again["asked"] == {"by": "ann", "reason": "repaired"}
    assert scene.read("handoffs/pages-engine.json")["handed"]["append"]["log"]["values"] == 3
    assert scene.read("receipts/pages-engine.1.1.1.json") == failed


def test_a_skip_keeps_what_the_failed_attempt_said(scene: Scene) -> None:
    flow = busy_flow({"publish"})
    scene.fail(flow)
    scene.use(lambda engine: engine.skip("r", "publish", by="ann", reason="by hand"), flows=[flow])
    skipped = scene.read("receipts/publish-writer.json")
    assert (skipped["status"], skipped["by"], skipped["reason"]) == ("skipped", "ann", "by hand")
    assert skipped["failure"]["message"] == "publish is broken"
    handoff = scene.read("handoffs/publish-writer.json")
    assert (handoff["decided"], handoff["by"]) == ("skip", "ann")


def test_a_node_that_was_stopped_has_an_interrupted_receipt_and_no_handoff(scene: Scene) -> None:
    graph = Graph("stuck", Work)
    begun = asyncio.Event()

    @graph.node
    async def stuck(state: Work) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    async def use(engine: hf.Engine) -> None:
        run = asyncio.create_task(engine.run(graph.chain(START, "stuck", END).compile(), run_id="r"))
        await begun.wait()
        engine.stop("SIGTERM")
        await run

    scene.use(use, grace=0.0)
    receipt = scene.read("receipts/stuck-engine.json", "stuck")
    assert (receipt["status"], receipt["reason"], receipt["lost"]) == ("interrupted", "SIGTERM", False)
    assert not (scene.folder("stuck") / "handoffs").exists()
    assert scene.read("run.json", "stuck")["status"] == "interrupted"


def test_a_node_that_died_with_its_process_says_that_nobody_knows_when(scene: Scene) -> None:
    broken = {"publish"}
    flow = busy_flow(broken)
    scene.fail(flow)
    cut(scene, flow)
    scene.clock.advance(50)
    broken.clear()
    scene.use(lambda engine: engine.resume("r"), flows=[flow])
    lost = scene.read("receipts/publish-writer.1.1.2.json")
    assert (lost["status"], lost["lost"], lost["ended_at"], lost["seconds"]) == ("interrupted", True, None, 0)
    assert lost["asked"]["by"] == "eve"
    assert scene.read("receipts/publish-writer.json")["attempt"] == 3


def test_a_replay_adds_receipts_of_another_execution(scene: Scene) -> None:
    broken = {"publish"}
    flow = busy_flow(broken)
    scene.fail(flow)
    before = stands(scene.folder())
    broken.clear()
    scene.use(lambda engine: engine.resume("r", restart_at="side", by="bob"), flows=[flow])
    after = stands(scene.folder())
    full_names = [name for name in before if name.count(".") > 1]
    assert {name: after[name] for name in full_names} == {name: before[name] for name in full_names}
    again = scene.read("receipts/side-engine.1.2.1.json")
    assert (again["execution"], again["asked"]["by"]) == (2, "bob")


def test_a_layer_decides_the_routes_of_its_nodes_together(scene: Scene) -> None:
    graph = Graph("layers", Work)
    for name in "abc":
        graph.node(name=name)(lambda state: {"log": ["x"]})
    flow = (
        graph.edge(START, "a")
        .edge(START, "b")
        .edge("a", "c")
        .edge("b", "c")
        .edge("c", END)
        .compile(schedule="layered")
    )
    scene.run(flow)
    handoff = scene.read("handoffs/a-engine.json", "layers")
    assert (handoff["decided"], handoff["layer"]) == ("layer", 1)
    assert handoff["to"] == [{"node": "c", "why": "edge"}]
    scene.assert_as_the_log_says("layers")


def test_a_route_that_is_decided_once_more_does_not_overwrite_the_first(scene: Scene) -> None:
    graph = Graph("layers", Work)
    broken = ["c"]

    def body(state: Work, ctx: hf.Context) -> dict[str, Any]:
        if ctx.node in broken:
            raise ValueError("broken")
        return {"log": [ctx.node]}

    for name in "abc":
        graph.node(name=name)(body)
    graph.edge(START, "a").edge(START, "b").edge("a", "c").edge("b", "c").edge("c", END)
    flow = graph.compile(schedule="layered")
    scene.fail(flow)
    before = scene.store.events("r", kinds=("NodeCompleted",))[-1].seq
    first = stands(scene.folder("layers"))["handoffs/a-engine.1.1.1.json"]
    broken.clear()
    scene.use(lambda engine: engine.resume("r", checkpoint=before), flows=[flow])
    after = stands(scene.folder("layers"))
    assert after["handoffs/a-engine.1.1.1.json"] == first
    assert after["handoffs/a-engine.1.1.1~2.json"] == after["handoffs/a-engine.json"] != first
    scene.assert_as_the_log_says("layers")


def test_a_router_that_raised_leaves_a_handoff_without_a_route_until_it_is_asked_again(scene: Scene) -> None:
    broken = [True]
    graph = Graph("routed", Work)
    graph.node(name="a")(lambda state: None)

    def router(state: Work) -> str:
        if broken:
            raise ValueError("no idea")
        return END

    flow = graph.edge(START, "a").branch("a", router, to=["a", END]).compile()
    scene.fail(flow)
    handoff = scene.read("handoffs/a-engine.json", "routed")
    assert (handoff["to"], handoff["failure"]["message"]) == (None, "no idea")
    broken.clear()
    scene.use(lambda engine: engine.resume("r"), flows=[flow])
    assert scene.read("handoffs/a-engine.1.1.1.json", "routed")["to"] == [{"node": END, "why": "branch"}]
    assert len(list((scene.folder("routed") / "receipts").iterdir())) == 2


def test_a_fork_has_receipts_of_what_it_did_itself(scene: Scene) -> None:
    flow = busy_flow({"publish"})
    scene.fail(flow)
    whole = busy_flow()

    async def use(engine: hf.Engine) -> None:
        await engine.resume(await engine.fork("r", run_id="f"))

    scene.use(use, flows=[whole])
    assert {file.name for file in (scene.folder(run_id="f") / "receipts").iterdir()} == {
        "publish-writer.1.1.1.json",
        "publish-writer.json",
    }
    assert scene.read("run.json", run_id="f")["parent"] == "r"
    scene.assert_as_the_log_says(run_id="f")


# --- the same bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("inline", [True, False])
def test_what_was_written_step_by_step_is_what_the_whole_log_makes(scene: Scene, inline: bool) -> None:
    eventful(scene, inline=inline)
    kinds = {row.kind for row in scene.store.events("r")}
    assert {"NodeFailed", "ItemFailed", "RunRewound", "NodeSkipped", "RunResumed"} <= kinds
    statuses = {json.loads(content).get("status") for content in stands(scene.folder()).values()}
    assert {"succeeded", "failed", "interrupted", "skipped", "completed"} <= statuses
    scene.assert_as_the_log_says()


def test_a_folder_that_was_removed_is_made_again_byte_for_byte(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventful(scene)
    before = stands(scene.folder())
    for file in scene.folder().rglob("*.json"):
        file.unlink()
    written = counted_writes(monkeypatch)
    monkeypatch.setattr(scribe, "_TOGETHER", 1)
    found = scribe.rebuild(scene.base, scene.store, "r")
    assert set(written.values()) == {1}
    assert sorted(found.missing) == sorted(before)
    assert stands(scene.folder()) == before


def test_a_rebuild_names_what_was_missing_torn_or_different(scene: Scene) -> None:
    scene.run(busy_flow())
    receipts_of = scene.folder() / "receipts"
    before = stands(scene.folder())
    (receipts_of / "side-engine.json").unlink()
    torn = receipts_of / "turn-engine.1.1.1.json"
    torn.write_bytes(torn.read_bytes()[:100])
    other = receipts_of / "turn-engine.json"
    other.write_bytes(other.read_bytes().replace(b"succeeded", b"forgotten"))
    found = scribe.rebuild(scene.base, scene.store, "r")
    assert (found.missing, found.torn, found.different) == (
        ["receipts/side-engine.json"],
        ["receipts/turn-engine.1.1.1.json"],
        ["receipts/turn-engine.json"],
    )
    assert stands(scene.folder()) == before
    assert scribe.rebuild(scene.base, scene.store, "r").missing == []


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("harm", ["missing", "torn", "no list", "torn list", "old list", "other list"])
def test_the_next_engine_repairs_a_damaged_folder(scene: Scene, harm: str, inline: bool) -> None:
    scene.run(busy_flow())
    before = stands(scene.folder())
    file = scene.folder() / ("run.json" if "list" in harm else "handoffs/turn-engine.1.1.1.json")
    if harm == "old list":
        file.write_bytes(before["run.json"].replace(b'"seq": ', b'"seq": 1'))
    elif harm == "other list":
        other = before["receipts/side-engine.json"].replace(b"succeeded", b"forgotten")
        (scene.folder() / "receipts/side-engine.json").write_bytes(other)
        listed = scene.read("run.json")
        listed["seq"] -= 1
        listed["files"]["receipts/side-engine.json"] = msgspec.to_builtins(receipts.Listed.of(other))
        file.write_bytes(receipts.encode(listed))
    elif harm.startswith("torn"):
        file.write_bytes(file.read_bytes()[:50])
    else:
        file.unlink()
    scene.open(inline=inline)
    assert stands(scene.folder()) == before


def test_a_run_whose_folder_is_gone_gets_it_back_and_one_that_never_had_one_does_not(scene: Scene) -> None:
    flow = busy_flow()
    scene.use(lambda engine: engine.run(flow, run_id="plain"), run_base="")
    scene.run(flow)
    before = stands(scene.folder())
    os.rename(scene.base, scene.base.with_name("gone"))
    scene.open()
    assert stands(scene.folder()) == before
    assert [folder.name for folder in scene.base.iterdir()] == ["r"]


def test_a_folder_that_is_well_is_left_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.run(busy_flow())
    monkeypatch.setattr(scribe, "put_all", None)
    scene.open()


def test_the_folder_of_a_run_of_another_store_is_moved_aside(scene: Scene) -> None:
    flow = busy_flow()
    scene.run(flow)
    before = stands(scene.folder())
    scene.clock.advance(5)
    for run_base in ("", scene.base):
        scene.store = MemoryStore(clock=scene.clock.now)
        scene.open()
        scene.run(flow, run_base=run_base)
        if not run_base:
            scene.open()
            assert stands(scene.folder()) == before
    assert stands(scene.folder().with_name("busy@1")) == before
    scene.assert_as_the_log_says()


# --- never in the way ---------------------------------------------------------------------------------


def test_a_run_of_a_thousand_steps_writes_every_receipt_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = counted_writes(monkeypatch)
    monkeypatch.setattr("holdfast.documents.files.sync_file", lambda handle: None)
    monkeypatch.setattr("holdfast.documents.files.sync_folder", lambda folder: None)
    graph = Graph("long", Work)
    graph.node(name="turn")(lambda state: {"turns": state.turns + 1})
    graph.edge(START, "turn").branch("turn", lambda s: "turn" if s.turns < 1000 else END, to=["turn", END])
    scene.run(graph.compile())
    full_names = [name for name in written if name.count(".") > 1]
    assert len(full_names) == 2000
    assert {written[name] for name in full_names} == {1}
    assert written["run.json"] < 100
    scene.assert_as_the_log_says("long")


def test_a_place_that_cannot_be_written_fails_no_run_and_is_warned_of_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.base.write_text("a file stands in place of the folder")
    for inline in (True, False):
        scene.store = MemoryStore(clock=scene.clock.now)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "holdfast"):
            assert scene.run(busy_flow(), inline=inline).status == "completed"
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "The run continues" in caplog.text
    scene.base.unlink()
    scene.open()
    scene.assert_as_the_log_says()


def test_what_is_owed_is_written_with_the_next_write(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    put_all, refused = scribe.put_all, []

    def full(folder: Path, contents: dict[str, bytes]) -> None:
        if any("turn-engine.1.1.1" in name for name in contents) and len(refused) < 3:
            refused.append(contents)
            raise OSError(28, "No space left on device")
        put_all(folder, contents)

    monkeypatch.setattr(scribe, "put_all", full)
    scene.run(busy_flow())
    assert len(refused) == 3
    scene.assert_as_the_log_says()


@pytest.mark.parametrize("inline", [True, False])
def test_what_is_owed_at_the_end_is_written_when_the_engine_is_closed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, inline: bool
) -> None:
    put_all, is_full = scribe.put_all, [True]
    kept: list[int] = []

    def full(folder: Path, contents: dict[str, bytes]) -> None:
        if is_full:
            kept.append(len(contents))
            raise OSError(28, "No space left on device")
        put_all(folder, contents)

    async def use(engine: hf.Engine) -> None:
        monkeypatch.setattr(scribe, "put_all", full)
        await engine.run(busy_flow(), run_id="r")
        is_full.clear()

    scene.use(use, inline=inline)
    scene.assert_as_the_log_says()
    if inline:  # on its own thread the scribe may come late, and find the whole log at once
        assert max(kept) < 10


def test_one_run_that_cannot_be_written_is_warned_of_once_and_keeps_no_other_from_it(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.base.mkdir()
    (scene.base / "r").write_text("a file stands in place of the folder")
    flow = busy_flow()

    async def use(engine: hf.Engine) -> None:
        for run_id in ("r", "well", "better"):
            await engine.run(flow, run_id=run_id)

    with caplog.at_level(logging.WARNING, "holdfast"):
        scene.use(use)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    scene.assert_as_the_log_says(run_id="well")
    scene.assert_as_the_log_says(run_id="better")


def test_a_slow_disk_holds_no_run_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    put_all, go_on = scribe.put_all, threading.Event()

    def slow(folder: Path, contents: dict[str, bytes]) -> None:
        assert go_on.wait(PATIENCE_S)
        put_all(folder, contents)

    monkeypatch.setattr(scribe, "put_all", slow)

    async def use(engine: hf.Engine) -> None:
        run = await engine.run(busy_flow(), run_id="r")
        assert run.status == "completed"
        assert stands(scene.folder()) == {}
        go_on.set()

    scene.use(use, inline=False)
    scene.assert_as_the_log_says()


# --- names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("write", "write"),
        ("step-3", "step-3"),
        ("../etc", "%2E.%2Fetc"),
        ("..", "%2E%2E"),
        ("-rf", "%2Drf"),
        ("a b%", "a%20b%25"),
        ("Ä", "%C3%84"),
        ("con", "%63on"),
        ("COM1.txt", "%43OM1.txt"),
        ("a.", "a%2E"),
    ],
)
def test_a_name_becomes_a_safe_part_of_a_path(name: str, part: str) -> None:
    assert run_folder.part(name) == part


def test_long_names_stay_apart_and_short_enough() -> None:
    long, longer = "n" * 128, "n" * 127 + "m"
    assert len(run_folder.part(long)) <= 100
    assert run_folder.part(long) != run_folder.part(longer)
    assert len({run_folder.part(name) for name in ("", "~", "%", "%7E", ".", "..", "-")}) == 7


def test_two_pairs_that_look_alike_have_receipts_of_their_own(scene: Scene) -> None:
    graph = Graph("twins", Work)
    graph.node(name="a-b", agent="c")(lambda state: None)
    graph.node(name="a", agent="b-c")(lambda state: None)
    graph.node(name="A", agent="b-c")(lambda state: None)
    graph.node(name="p", agent="q-r")(lambda state: None)
    graph.node(name="p-q", agent="r.1.1.1")(lambda state: None)
    scene.run(graph.chain(START, "a-b", "a", "A", "p-q", "p", END).compile())
    found = [json.loads(file.read_bytes()) for file in (scene.folder("twins") / "receipts").iterdir()]
    assert Counter(receipt["node"] for receipt in found) == dict.fromkeys(["a-b", "a", "A", "p", "p-q"], 2)
    assert len({file.name.casefold() for file in (scene.folder("twins") / "receipts").iterdir()}) == 10
    scene.assert_as_the_log_says("twins")


# --- steps, waits and questions -----------------------------------------------------------------------


def test_a_receipt_names_kept_steps_and_counts_what_was_spent(scene: Scene) -> None:
    graph = Graph("inside", Work)

    @graph.node
    async def call(state: Work, ctx: hf.Context) -> None:
        await ctx.step("charge", lambda: 3)
        ctx.cost(usd=0.5, tokens=100)

    scene.run(graph.chain(START, "call", END).compile())
    receipt = scene.read("receipts/call-engine.json", "inside")
    assert receipt["steps"] == ["charge"]
    assert receipt["cost"] == {"usd": 0.5, "tokens": 100}
    scene.assert_as_the_log_says("inside")


def test_an_attempt_that_waits_has_one_receipt_and_only_its_active_time(scene: Scene) -> None:
    graph = Graph("patient", Work)

    @graph.node
    async def nap(state: Work, ctx: hf.Context) -> None:
        await ctx.sleep(100)

    scene.run(graph.chain(START, "nap", END).compile(), park_after=0)
    assert {"NodeWaiting", "TimerFired"} <= {row.kind for row in scene.store.events("r")}
    receipt = scene.read("receipts/nap-engine.json", "patient")
    assert receipt["ended_at"] == receipts.instant(STARTS_AT + 100)
    assert (receipt["attempt"], receipt["seconds"]) == (1, 0)
    scene.assert_as_the_log_says("patient")


def test_a_visit_that_was_not_approved_has_failed_before_it_began(scene: Scene) -> None:
    graph = Graph("gated", Work)
    graph.node(name="publish", approve="Publish?")(lambda state: None)
    flow = graph.chain(START, "publish", END).compile()

    async def use(engine: hf.Engine) -> None:
        run = await engine.run(flow, run_id="r")
        await engine.answer("r", run.questions[0].key, "reject", by="ann", reason="too early")
        with pytest.raises(hf.RunFailed):
            await engine.resume("r")

    scene.use(use)
    refused = scene.read("receipts/publish-engine.1.1.0.json", "gated")
    assert (refused["status"], refused["by"], refused["reason"]) == ("failed", "ann", "too early")
    assert (refused["failure"]["type"], refused["started_at"]) == ("QuestionRefused", None)
    scene.assert_as_the_log_says("gated")


def test_the_receipt_of_a_fork_says_which_items_have_the_result_of_its_parent(tmp_path: Path) -> None:
    graph: Graph[dict[str, Any]] = Graph("parcels")
    graph.node(name="pack")(lambda state: {"n": 1})
    graph.node(name="send", each=lambda state: [1, 2], idempotent=False)(
        lambda item, ctx: {f"sent{item}": ctx.run_id}
    )
    flow = graph.chain(START, "pack", "send", END).compile()

    async def main() -> None:
        async with hf.Engine(MemoryStore(), flows=[flow], run_base=tmp_path) as engine:
            await engine.run(flow, {}, run_id="r")
            packed = (await engine.checkpoints("r"))[1]
            await engine.fork(packed.id, run_id="f", repeat="skip")
            await engine.resume("f")

    asyncio.run(main())
    files = [json.loads(path.read_text()) for path in tmp_path.rglob("receipts/send-engine.json")]
    found = {
        made["run_id"]: [(item["status"], [*item["changes"]["set"]]) for item in made["items"]]
        for made in files
    }
    assert found["r"] == [("succeeded", ["sent1"]), ("succeeded", ["sent2"])]
    assert found["f"] == [("inherited", ["sent1"]), ("inherited", ["sent2"])]


def test_the_document_of_a_run_lists_the_requests_that_were_refused(tmp_path: Path) -> None:
    graph: Graph[dict[str, Any]] = Graph("parcels")
    graph.node(name="send")(lambda state, ctx: {"sent": True} if ctx.attempt > 1 else 1 / 0)
    flow = graph.chain(START, "send", END).compile()
    store = MemoryStore()

    async def main() -> None:
        async with hf.Engine(store, flows=[flow], run_base=tmp_path) as engine:
            with pytest.raises(hf.RunFailed):
                await engine.run(flow, {}, run_id="r")
            await engine.skip("r", "sned", execute=False, by="ann", id="1")
            await engine.work(until="idle")
            await engine.resume("r")

    asyncio.run(main())
    made = json.loads(next(tmp_path.rglob("run.json")).read_text())
    (refused,) = made["refused"]
    assert (refused["verb"], refused["by"], refused["request"]) == ("skip", "ann", "request:1")
    assert "did you mean 'send'?" in refused["reason"]
    assert made["status"] == "completed"
    (row,) = store.events("r", kinds=("RequestRefused",))
    assert refused["at"] == receipts.instant(row.at)
