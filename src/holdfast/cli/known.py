"""What is known of visits that have not ended: what they kept, how far they came, what they streamed and wrote.

It is gathered from the log, from what was spilled beside it, and from the question about a node that was cut. What is not
known is not shown.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.cli import screen, told
from holdfast.core.run_state import VISIT_OPEN, Question
from holdfast.reading.chunks import spilled_chunks
from holdfast.reading.views import NodeView, Run
from holdfast.runtime.engine import Engine

_NAMES_MAX = 8
_LINES_MAX = 5


class Known(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one visit."""

    node: str
    status: str
    steps: list[str] = []
    items: tuple[int, int] | None = None
    """(done, all)"""
    checkpoint: Any = None
    chunks: int = 0
    last_lines: list[str] = []
    """The end of what was streamed."""
    artifacts: list[str] = []
    checkout: dict[str, Any] = {}
    """Where git stood when the node was found cut."""


async def known(engine: Engine, run: Run[Any]) -> list[Known]:
    """What is known of every visit that has not ended, where there is anything."""
    found = [
        await _of_node(engine, run, name, node)
        for name, node in run.nodes.items()
        if node.status in VISIT_OPEN
    ]
    return [one for one in found if len(msgspec.to_builtins(one)) > 2]  # more than its name and status


async def _of_node(engine: Engine, run: Run[Any], name: str, node: NodeView) -> Known:
    partial = partial_of(run.questions, name)
    chunks = await _streamed(engine, run.id, name, node)
    of_items = [
        f"{step} (item {item})" for item, steps in partial.get("steps_of_items", {}).items() for step in steps
    ]
    return Known(
        node=name,
        status=node.status,
        steps=[*node.steps, *of_items],
        items=node.items,
        checkpoint=node.checkpoint,
        chunks=len(chunks),
        last_lines=told.lines(chunks, _LINES_MAX),
        artifacts=partial.get("artifacts", []),
        checkout=partial.get("checkout") or {},
    )


def partial_of(questions: tuple[Question, ...], node: str) -> dict[str, Any]:
    """What was known of a node when it was found cut."""
    return next((one.partial for one in questions if one.node == node and one.about == "interrupt"), {})


async def _streamed(engine: Engine, run_id: str, name: str, node: NodeView) -> list[Any]:
    """What the visit streamed: as recorded, and what was only spilled so far."""
    chunks: list[Any] = []
    recorded = set()
    for event in await engine.events(run_id, node=name, kind="NodeStreamed"):
        if (event.iteration, event.execution) == (node.iteration, node.execution):
            recorded.add((event.attempt, event.body.get("item")))
            chunks += event.body.get("chunks", [])
    visit = (name, node.iteration, node.execution)
    chunks += [
        chunk.value
        for chunk in spilled_chunks(engine.store, run_id)
        if (chunk.node, chunk.iteration, chunk.execution) == visit
        and (chunk.attempt, chunk.item) not in recorded
    ]
    return chunks


def say(one: Known, head: str) -> None:
    """Print what is known of a visit under a head."""
    screen.say("")
    screen.say(head)
    for name, words in _facts(one):
        screen.say((f"  {name.ljust(10)}  ", "dim"), words)
    for line in one.last_lines:
        screen.say(("  | ", "dim"), screen.last_of_line(line, screen.picture_width() - 4))


def _facts(one: Known) -> list[tuple[str, str]]:
    facts = [("steps kept", _named(one.steps))] if one.steps else []
    if one.items is not None:
        facts.append(("items done", f"{one.items[0]} of {one.items[1]}"))
    if one.checkpoint is not None:
        facts.append(("checkpoint", told.value(one.checkpoint)))
    if one.artifacts:
        facts.append(("artifacts", _named(one.artifacts)))
    if one.checkout:
        facts.append(("git", _stood(one.checkout)))
    if one.chunks:
        ends = ", the last lines:" if one.last_lines else ""
        facts.append(("streamed", f"{screen.count(one.chunks, 'chunk')}{ends}"))
    return facts


def _named(names: list[str], unnamed: int = 0) -> str:
    shown = ", ".join(map(screen.one_line, names[:_NAMES_MAX]))
    more = max(0, len(names) - _NAMES_MAX) + unnamed
    return f"{shown} and {more} more" if more else shown


def _stood(checkout: dict[str, Any]) -> str:
    head = checkout.get("head")
    where = f"HEAD {head[:12]}" if head else "no commit yet"
    branch = f" on {checkout['branch']}" if checkout.get("branch") else ", detached"
    changed = list(map(str, checkout.get("changed", [])))
    if not changed:
        return screen.one_line(f"{where}{branch}, nothing changed")
    more = int(checkout.get("more", 0))
    count = screen.count(len(changed) + more, "file")
    return screen.one_line(f"{where}{branch}, {count} changed: {_named(changed, more)}")
