"""Artifacts: where the files of a node are, whose they are, and which names are refused."""

from __future__ import annotations

import asyncio
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import END, START, Graph
from holdfast.documents.artifacts import Artifacts, left
from holdfast.storage.memory.store import MemoryStore
from holdfast.testing.clock import ManualClock


def of(base: Path, visit: str = "1.1.1", node: str = "write") -> Artifacts:
    return Artifacts(base, "r", "flow", node, visit)


def folder(base: Path, node: str = "write") -> Path:
    return base / "r" / "flow" / "artifacts" / node


def test_nothing_is_made_before_it_is_used(tmp_path: Path) -> None:
    files = of(tmp_path)
    assert (files.list(), files.collect()) == ([], {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_and_listed_by_its_name_with_size_and_digest(tmp_path: Path) -> None:
    files = of(tmp_path)
    assert files.write("report.txt", "Grüße") == folder(tmp_path) / "report.txt"
    files.path("pages/1.html").write_bytes(b"one")
    assert files.list() == ["pages/1.html", "report.txt"]
    assert files.collect() == {
        "pages/1.html": {"bytes": 3, "sha256": sha256(b"one").hexdigest()},
        "report.txt": {"bytes": 7, "sha256": sha256("Grüße".encode()).hexdigest()},
    }
    assert os.listdir(files) == sorted(os.listdir(files), key=os.listdir(folder(tmp_path)).index)
    files.write("report.txt", b"")
    assert files.collect()["report.txt"]["bytes"] == 0


@pytest.mark.parametrize(
    "name",
    [
        "", "/etc/passwd", "../other", "a/../../b", "a//b", "./a", "a/.", "C:/x", "a\\..\\b", "a\0b", ".visit", "x/.visit",
        ".tmp-1", 3, None,
    ],
)  # fmt: skip
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: Any) -> None:
    files = of(tmp_path)
    for use in (files.path, lambda given: files.write(given, b"")):
        with pytest.raises(hf.errors.ContextError, match="cannot be the name of an artifact"):
            use(name)
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_leads_out_of_the_folder_is_refused_and_one_that_stays_is_not(tmp_path: Path) -> None:
    files = of(tmp_path)
    files.write("inside/a", b"a")
    (tmp_path / "secret").write_text("secret")
    (folder(tmp_path) / "out").symlink_to(tmp_path)
    with pytest.raises(hf.errors.ContextError, match="symbolic link"):
        files.path("out/secret")
    (folder(tmp_path) / "back").symlink_to("inside")
    assert files.path("back/b").parent.name == "back"
    (folder(tmp_path) / "leak").symlink_to(tmp_path / "secret")
    with pytest.raises(hf.errors.ContextError, match="'leak' is a symbolic link"):
        files.collect()


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    folder(tmp_path).parent.mkdir(parents=True)
    folder(tmp_path).symlink_to(tmp_path)
    with pytest.raises(hf.errors.ContextError, match="is a symbolic link"):
        of(tmp_path).write("a", b"")


def test_a_file_in_place_of_a_folder_is_told(tmp_path: Path) -> None:
    files = of(tmp_path)
    files.write("a", b"")
    with pytest.raises(hf.errors.ContextError, match="one of its parent folders is a file"):
        files.write("a/b", b"")
    files.write("c/d", b"")
    with pytest.raises(hf.errors.ContextError, match="a folder has that name"):
        files.write("c", b"")


def test_another_attempt_finds_the_folder_empty_and_the_earlier_files_aside(tmp_path: Path) -> None:
    of(tmp_path, "1.1.1").write("a", b"first")
    second = of(tmp_path, "1.1.2")
    assert second.list() == []
    second.write("a", b"second")
    of(tmp_path, "2.1.1").write("b", b"third")
    assert {place.name for place in folder(tmp_path).parent.iterdir()} == {
        "write",
        "write@1.1.1",
        "write@1.1.2",
    }
    assert (folder(tmp_path, "write@1.1.1") / "a").read_bytes() == b"first"
    assert left(tmp_path, "r", "flow", "write") == ["b"]


def test_the_same_attempt_finds_its_files_again(tmp_path: Path) -> None:
    of(tmp_path).write("a", b"before the wait")
    woken = of(tmp_path)
    assert woken.list() == ["a"]
    woken.write("b", b"")
    assert list(woken.collect()) == ["a", "b"]


def test_an_attempt_that_was_given_up_cannot_touch_the_files_of_the_next(tmp_path: Path) -> None:
    late, next_one = of(tmp_path, "1.1.1"), of(tmp_path, "1.1.2")
    late.write("a", b"")
    next_one.write("a", b"mine")
    with pytest.raises(hf.errors.ContextError, match="abandoned"):
        late.write("a", b"late")
    assert late.collect() == {}
    assert next_one.path("a").read_bytes() == b"mine"


def test_items_have_folders_of_their_own_which_their_execution_keeps(tmp_path: Path) -> None:
    for item in (0, 1):
        of(tmp_path, f"1.1.1.{item}").write("a", str(item))
    again = of(tmp_path, "1.1.2.1")
    again.write("a", b"again")
    assert (folder(tmp_path) / "0" / "a").read_text() == "0"
    assert (folder(tmp_path) / "1@1.1.1" / "a").read_text() == "1"
    assert list(again.collect()) == ["a"]
    of(tmp_path, "1.2.1.0").write("a", b"")
    assert (folder(tmp_path, "write@1.1") / "0" / "a").read_text() == "0"


def test_a_node_whose_folder_belongs_to_another_gets_one_of_its_own(tmp_path: Path) -> None:
    """As where a file system does not tell `Write` from `write`."""
    of(tmp_path, node="Write").write("a", b"")
    os.rename(folder(tmp_path, "Write"), folder(tmp_path))
    files = of(tmp_path)
    files.write("a", b"")
    assert files.list() == ["a"]
    assert sorted(place.name.partition("~")[0] for place in folder(tmp_path).parent.iterdir()) == [
        "write",
        "write",
    ]


def test_a_folder_that_nobody_owns_is_moved_aside(tmp_path: Path) -> None:
    folder(tmp_path).mkdir(parents=True)
    (folder(tmp_path) / "a").write_text("whose?")
    of(tmp_path).write("a", b"")
    assert (folder(tmp_path, "write@unknown") / "a").read_text() == "whose?"


def run_once(body: Any, base: Path | None, *, inline: bool = True) -> tuple[Any, MemoryStore]:
    graph = Graph("flow", dict)
    graph.node(name="write")(body)
    flow = graph.chain(START, "write", END).compile()
    clock = ManualClock(auto=True)
    store = MemoryStore(clock=clock.now)

    async def main() -> Any:
        async with hf.Engine(store, clock=clock, inline=inline, run_base=base) as engine:
            return await engine.run(flow, {}, run_id="r")

    return asyncio.run(main()), store


@pytest.mark.parametrize("colour", ["inline", "thread", "async"])
def test_what_a_node_wrote_is_recorded_with_its_completion(tmp_path: Path, colour: str) -> None:
    def body(state: Any, ctx: hf.Context) -> None:
        ctx.artifacts.write("a", b"a")

    async def on_loop(state: Any, ctx: hf.Context) -> None:
        body(state, ctx)

    _, store = run_once(on_loop if colour == "async" else body, tmp_path, inline=colour == "inline")
    (row,) = store.events("r", kinds=("NodeCompleted",))
    assert sha256(b"a").hexdigest() in row.body.decode()


def test_without_a_run_base_the_node_is_told_to_set_one() -> None:
    def body(state: Any, ctx: hf.Context) -> None:
        ctx.artifacts.write("a", b"a")

    with pytest.raises(hf.RunFailed, match="run_base"):
        run_once(body, None)


def write_and_wait(state: dict[str, Any], ctx: hf.BlockingContext) -> dict[str, Any]:
    files = ctx.artifacts
    files.write("kept.txt", "kept")
    try:
        return {"paid": ctx.wait_for("paid")}
    except BaseException:
        files.write("released.txt", "released")
        raise


async def write_and_wait_in_memory(state: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
    files = ctx.artifacts
    files.write("kept.txt", "kept")
    try:
        return {"paid": await ctx.wait_for("paid")}
    except asyncio.CancelledError:
        files.path("released.txt").write_text("released")
        raise


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("body", [write_and_wait, write_and_wait_in_memory])
def test_a_node_that_unwinds_writes_no_file_in_the_folder_that_it_has_got_before(
    tmp_path: Path, body: Any, executor: Any
) -> None:
    graph = Graph("flow", dict)
    graph.node(name="write", executor=executor)(body)
    flow = graph.chain(START, "write", END).compile()
    store, base = str(tmp_path / "runs.db"), tmp_path / "base"
    assert hf.run(flow, {}, run_id="r", store=store, run_base=base).status == "waiting"
    hf.signal("r", "paid", 7, store=store)
    assert hf.resume("r", flows=flow, store=store, run_base=base).state == {"paid": 7}
    (completed,) = hf.events("r", kind="NodeCompleted", store=store)
    assert list(completed.body["artifacts"]) == left(base, "r", "flow", "write") == ["kept.txt"]
