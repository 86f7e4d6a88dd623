"""Failpoints: named places in the code where tests can kill the process, and a list of them that tests can check off.

There is a failpoint before and after every write, and before and after each call of a node's function. A failpoint does nothing
until a hook is installed; the hook may kill the process, raise, or count. Calling `reach` with a name that is not listed here is
a defect and raises.
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
    "post.before": "a request is about to be put into a run's inbox",
    "post.committed": "a request is durable and its sender has not been notified",
    "release.before": "a lease is about to be released",
    "release.committed": "a lease is released and its old holder has not been notified",
    "renew.before": "a holder is about to renew its leases",
    "renew.committed": "a renewal is durable and its holder has not been notified",
    "prune.before": "checkpoints of a run are about to be retired",
    "prune.committed": "checkpoints are retired, and their snapshots are deleted",
    "compact.before": "a compaction base is about to replace events",
    "compact.committed": "a compaction base has replaced events, which are not swept yet",
    "delete.before": "a run is about to be deleted",
    "delete.committed": "a run is deleted, and its events are not swept yet",
    "sweep.before": "a batch of leftover events is about to be deleted",
    "sweep.committed": "a batch of leftover events is deleted",
    "backup.copied": "a backup is written to a temporary file, which is not renamed yet",
    "backup.named": "a backup file has its final name and the caller has not been notified",
    "token.before": "a token is about to be stored or revoked",
    "token.committed": "a token is stored or revoked, and the caller has not been notified",
    "node.enter": "a node's function is about to be called",
    "node.exit": "a node's function has returned and its result is not recorded",
}

OF_UPKEEP = ("prune.", "compact.", "delete.", "sweep.", "backup.")
"""Prefixes of the failpoints that only upkeep reaches."""
OF_TOKENS = "token."
"""Prefix of the failpoints that only a change of the server's tokens reaches. Executing a run reaches all the others."""

hook: Hook | None = None
"""The installed hook, or None. Code that runs at every step checks `hook` before it calls `reach`, so that a process without a
hook makes no call."""


def install(given: Hook | None) -> None:
    """Call `given(name)` at every failpoint of this process from now on; None disarms them all."""
    global hook
    hook = given


def reach(name: str) -> None:
    """Report to the installed hook that a failpoint is reached. Does nothing while no hook is installed."""
    if hook is None:
        return
    if name not in FAILPOINTS:
        raise KeyError(f"no failpoint {name!r}; list it in holdfast.storage.failpoints.FAILPOINTS")
    hook(name)
