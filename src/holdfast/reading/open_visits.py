"""Collects what is known about open visits of nodes: steps and checkpoints, items done, streamed output, files.

The facts come from the log, from the streamed output that is spilled beside it, and from the question about a crashed node.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from holdfast.core.events import NodeStreamed
from holdfast.core.run_state import VISIT_OPEN, Question
from holdfast.reading import words
from holdfast.reading.chunks import Streamer, spilled_chunks
from holdfast.reading.history import opened
from holdfast.reading.reader import Reader
from holdfast.reading.views import NodeView, Run

_LINES_MAX = 5


class OpenVisit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known about one visit of a node that has not ended."""

    node: str
    status: str
    steps: list[str] = []
    items: tuple[int, int] | None = None
    """For a fan-out: how many of its items are done, and how many it has. Otherwise None."""
    checkpoint: Any = None
    chunks: int = 0
    last_lines: list[str] = []
    """The last lines of the streamed output."""
    artifacts: list[str] = []
    checkout: dict[str, Any] = {}
    """The git checkout as it was when the node was found crashed."""


def open_visits(reader: Reader, run: Run[Any]) -> list[OpenVisit]:
    """Return the open visits of a run, except those of which only the node and its status are known."""
    found = [
        _of_node(reader, run, name, node) for name, node in run.nodes.items() if node.status in VISIT_OPEN
    ]
    return [one for one in found if len(msgspec.to_builtins(one)) > 2]  # more than its name and status


def _of_node(reader: Reader, run: Run[Any], name: str, node: NodeView) -> OpenVisit:
    partial = partial_of(run.questions, name)
    count, chunks = _streamed(reader, run.id, name, node)
    of_items = [
        f"{step} (item {item})" for item, steps in partial.get("steps_of_items", {}).items() for step in steps
    ]
    return OpenVisit(
        node=name,
        status=node.status,
        steps=[*node.steps, *of_items],
        items=node.items,
        checkpoint=node.checkpoint,
        chunks=count,
        last_lines=words.lines(chunks, _LINES_MAX),
        artifacts=partial.get("artifacts", []),
        checkout=partial.get("checkout") or {},
    )


def partial_of(questions: tuple[Question, ...], node: str) -> dict[str, Any]:
    """Return what was recorded about a node when its crash was noticed; empty if the node has not crashed."""
    return next((one.partial for one in questions if one.node == node and one.about == "interrupt"), {})


def _streamed(reader: Reader, run_id: str, name: str, node: NodeView) -> tuple[int, list[Any]]:
    """Return how many chunks the visit streamed, and the last of them: those in the log, then those that are only spilled so far.
    Chunks that are so large that they are in blobs are counted and not read, nor are those before them.
    """
    chunks: list[Any] = []
    recorded: Counter[Streamer] = Counter()
    visit = (name, node.iteration, node.execution)
    rows = reader.store.events(run_id, kinds=("NodeStreamed",), node=name)
    for stored in opened(reader.store, run_id, rows, chunks=False):
        event = stored.event
        assert isinstance(event, NodeStreamed)
        if (event.node, event.iteration, event.execution) == visit:
            chunks = chunks + event.chunks if len(event.chunks) == event.count else []
            recorded[Streamer(*visit, event.attempt, event.item)] += event.count
    spilled = [
        chunk.value
        for chunk in spilled_chunks(reader.store, run_id)
        if chunk.streamer[:3] == visit and chunk.number > recorded[chunk.streamer]
    ]
    return recorded.total() + len(spilled), chunks + spilled
