"""Named places where a process may die, so that tests can make it die there, and list that they tried them all.

There is a failpoint at every boundary of a write, and around a node's body. Nothing happens at one until a hook is installed:
a hook may kill the process, raise, or count. `reach` with a name that is not listed here is a defect and raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Hook: TypeAlias = Callable[[str], None]

FAILPOINTS: dict[str, str] = {
    "append.before": "a batch of appends is about to begin its transaction",
    "append.written": "the rows of a batch are written and not yet committed",
    "append.committed": "a batch is durable and its writer has not been notified",
    "claim.before": "a lease is about to be claimed",
    "claim.committed": "a lease is claimed and its new holder has not been notified",
    "post.before": "a request is about to be left in the inbox",
    "post.committed": "a request is durable and its sender has not been notified",
    "release.before": "a lease is about to be released",
    "release.committed": "a lease is released and its old holder has not been notified",
    "renew.before": "a holder is about to renew its leases",
    "renew.committed": "a renewal is durable and its holder has not been notified",
    "prune.before": "checkpoints of a run are about to be retired",
    "prune.committed": "checkpoints are retired, and their snapshots are deleted",
    "compact.before": "a base is about to replace events",
    "compact.committed": "a base has replaced events, which are not swept yet",
    "delete.before": "a run is about to be deleted",
    "delete.committed": "a run is deleted, and its events are not swept yet",
    "sweep.before": "a batch of leftover events is about to be deleted",
    "sweep.committed": "a batch of leftover events is deleted",
    "backup.copied": "a backup is written and does not have its name yet",
    "backup.named": "a backup has its name and the caller has not been notified",
    "node.enter": "a node's body is about to be called",
    "node.exit": "a node's body has returned and nothing of it is recorded",
}

OF_UPKEEP = ("prune.", "compact.", "delete.", "sweep.", "backup.")
"""How the names of those begin that no run comes by."""

hook: Hook | None = None
"""Look at it before `reach` where every step comes by: then a process without a hook makes no call."""


def install(given: Hook | None) -> None:
    """Call `given(name)` at every failpoint of this process from now on; None disarms them all."""
    global hook
    hook = given


def reach(name: str) -> None:
    """Mark that a failpoint is reached. Does nothing while no hook is installed."""
    if hook is None:
        return
    if name not in FAILPOINTS:
        raise KeyError(f"no failpoint {name!r}; list it in holdfast.storage.failpoints.FAILPOINTS")
    hook(name)
