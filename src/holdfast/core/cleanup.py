"""Which visits of a run cannot clean up when the run is cancelled.

A node cleans up in its own code, which runs only while its attempt is in memory (docs/concepts.md, "Stopping"). The others are
named by the event that cancels the run: what they have kept, and that their cleanup was not done. The log alone would tell it
too, but an exported ledger has only the bodies of decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from holdfast.core.events import NodeName, Uncleaned
from holdfast.core.run_state import NODE_LEVEL, NodeState, RunState
from holdfast.core.slots import labels

Unfinished: TypeAlias = Literal["abandoned", "killed"]
"""How a call was stopped before its code had ended."""


def find_uncleaned(
    state: RunState,
    *,
    lost: bool,
    unfinished: Mapping[tuple[NodeName, int | None], Unfinished] = MappingProxyType({}),
) -> list[Uncleaned]:
    """Return the visits that have begun and do not clean up if the run is cancelled now. `lost` is True if no process executes
    the run any more; otherwise its running nodes were stopped, and have cleaned up by themselves, except those that were
    stopped `unfinished`: each is a node and an item.
    """
    found = []
    for name in state.open:
        node = state.nodes[name]
        left = {
            NODE_LEVEL if item is None else item: why
            for (other, item), why in unfinished.items()
            if other == name
        }
        for level, why in _levels(state, node, left, lost=lost):
            steps = labels("step", node.kept.get(level, ()))
            item = None if level == NODE_LEVEL else level
            found.append(Uncleaned(name, node.iteration, why, steps, item))
    return found


def _levels(
    state: RunState, node: NodeState, left: Mapping[int, Unfinished], *, lost: bool
) -> Iterator[tuple[int, Literal["died", "unwound", "interrupted", "abandoned", "killed"]]]:
    """Yield the parts of a visit that do not clean up, each with the reason: its items, or the visit itself."""
    for level in node.parked:
        yield level, "unwound"
    question = state.questions.get(node.question or "")
    if node.status == "running":
        for level in (NODE_LEVEL,) if node.items is None else node.items.running:
            if level not in node.parked and (lost or level in left):
                yield level, "died" if lost else left[level]
    elif node.status == "interrupted" or (question is not None and question.about == "interrupt"):
        yield NODE_LEVEL, "interrupted"
