"""Named places where a process may die, so that tests can make it die there, and list that they tried them all.

A failpoint stands at every boundary of a write, and round a node's body. Nothing happens at one until a hook is installed:
a hook may kill the process, raise, or count. `reach` with a name that is not listed here is a defect and raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Hook: TypeAlias = Callable[[str], None]

FAILPOINTS: dict[str, str] = {
    "append.before": "a batch of appends is about to begin its transaction",
    "append.written": "the rows of a batch are written and not yet committed",
    "append.committed": "a batch is durable and nobody has been told",
    "claim.before": "a lease is about to be taken",
    "claim.committed": "a lease is taken and its new holder has not been told",
    "post.before": "a request is about to be left in the inbox",
    "post.committed": "a request is durable and its sender has not been told",
    "release.before": "a lease is about to be given back",
    "release.committed": "a lease is given back and its old holder has not been told",
    "renew.before": "a holder is about to say that it lives",
    "renew.committed": "a holder's new time is durable and it has not been told",
    "prune.before": "checkpoints of a run are about to be retired",
    "prune.committed": "checkpoints are retired, and their snapshots are gone",
    "compact.before": "a base is about to take the place of events",
    "compact.committed": "a base stands for events, which are not swept yet",
    "delete.before": "a run is about to be deleted",
    "delete.committed": "a run is gone, and its events are not swept yet",
    "sweep.before": "a piece of what is left of logs is about to go",
    "sweep.committed": "a piece of what was left of logs is gone",
    "backup.copied": "a backup is written and has not got its name yet",
    "backup.named": "a backup has its name and nobody has been told",
    "node.enter": "a node's body is about to be called",
    "node.exit": "a node's body has returned and nothing of it is recorded",
}

OF_UPKEEP = ("prune.", "compact.", "delete.", "sweep.", "backup.")
"""How the names of those begin that no run comes by."""

_hook: Hook | None = None


def install(hook: Hook | None) -> None:
    """Call `hook(name)` at every failpoint of this process from now on; None disarms them all."""
    global _hook
    _hook = hook


def reach(name: str) -> None:
    """Stand at a failpoint. Costs one look at a global while none is armed."""
    hook = _hook
    if hook is None:
        return
    if name not in FAILPOINTS:
        raise KeyError(f"no failpoint {name!r}; list it in holdfast.storage.failpoints.FAILPOINTS")
    hook(name)
