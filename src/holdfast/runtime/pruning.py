"""Pruning a run on request of a caller: a compaction needs the lease of the run, which this engine may hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from holdfast.runtime.runner import Runner
from holdfast.runtime.services import Services
from holdfast.upkeep import retention
from holdfast.upkeep.retention import Pruned


def prepare_prune(
    services: Services,
    run_id: str,
    keep_last: int,
    *,
    compact: bool,
    archive: str | os.PathLike[str] | None,
) -> Callable[[], Pruned]:
    """Return the function that prunes a run, which may be called in any thread: see `Engine.prune`."""
    if not compact:
        return partial(retention.prune, services.store, run_id, keep_last)
    holdings, held = services.holdings, services.holdings.get(run_id)
    holdings.hold()
    return partial(
        retention.compact,
        services.store,
        run_id,
        keep_last,
        holder=holdings.holder,
        fence=held.fence if held is not None else None,
        rewinds=held.journal.rewinds if isinstance(held, Runner) else (),
        archive_to=os.fspath(archive) if archive is not None else None,
        blob_over=services.blob_over,
        doubt=holdings.doubt,
    )
