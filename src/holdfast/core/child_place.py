"""The identity of a child run: it follows from its place in its caller, so that a repeated attempt finds the same child."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from holdfast.core.budget import Budget
from holdfast.core.events import Caller, NodeName
from holdfast.core.run_state import RunState

DEPTH_MAX = 50
"""How many callers a run may have, one calling the next."""
_CALLER_CHARS_MAX = 60
_DIGEST_CHARS = 16


class ChildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a child run is started: the options of `Context.start`."""

    key: str | None = None
    queue: str | None = None
    priority: int = 0
    labels: Mapping[str, str] | None = None
    run_timeout: float | None = None
    cancel_with_caller: bool = False
    budget: Budget | Mapping[str, Any] | None = None
    """What the child may cost; None: what is left of its caller's budget."""


class ChildPlace(msgspec.Struct, frozen=True):
    """Where in its caller a child is started, and what follows from that."""

    run_id: str
    """The id of the child."""
    caller: Caller


def place_of(
    state: RunState, node: NodeName, iteration: int, item: int | None, key: str, fresh: int
) -> ChildPlace:
    """Return the place of a child. Its id is the shortened id of the caller and a digest of the place. The execution is not part
    of it: a visit that is repeated finds the child again, unless it is repeated with new idempotency keys (`fresh`). A renamed
    node finds it too: the place has the name from which the keys of the node are made.
    """
    inside = (state.key_name(node), iteration, item, key, fresh)
    caller, root = state.run_id, state.key_root(node, iteration, item)
    return ChildPlace(
        f"{caller[:_CALLER_CHARS_MAX]}.{_digest(caller, *inside)}",
        Caller(caller, _digest(root, *inside), state.depth + 1),
    )


def _digest(*parts: Any) -> str:
    return sha256("\n".join(map(repr, parts)).encode()).hexdigest()[:_DIGEST_CHARS]
