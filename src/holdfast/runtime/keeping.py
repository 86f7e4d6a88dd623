"""The verb that keeps a run small, and what does so by itself as runs go on (the setting `keep_checkpoints`)."""

from __future__ import annotations

import asyncio
import os
from functools import partial

from holdfast.runtime.reading import Reading
from holdfast.runtime.runner import Runner
from holdfast.runtime.services import Services
from holdfast.upkeep import retention
from holdfast.upkeep.retention import KEEP_LAST, Keeper, Pruned


class Keeping(Reading):
    """What an engine does so that logs do not grow for ever."""

    _keeper: Keeper | None = None

    def _hold(self) -> None:
        raise NotImplementedError

    def _doubt(self) -> None:
        raise NotImplementedError

    async def prune(
        self,
        run_id: str,
        keep_last: int = KEEP_LAST,
        *,
        compact: bool = False,
        archive: str | os.PathLike[str] | None = None,
    ) -> Pruned:
        """Retire every checkpoint of a run but the last few, with the snapshots that only they needed. With `compact` a base then
        stands for the events before them; `archive` is where the whole log goes first, a file or a URL. A run that another
        process holds is not compacted: `RunHeld`. What is going on never waits for this.
        """
        services = self._open()
        if not compact:
            call = partial(retention.prune, services.store, run_id, keep_last)
        else:
            self._hold()
            runner = self._runners.get(run_id)
            call = partial(
                retention.compact,
                services.store,
                run_id,
                keep_last,
                holder=services.holder,
                fence=runner.fence if runner is not None else None,
                rewinds=runner.journal.rewinds if isinstance(runner, Runner) else (),
                archive_to=os.fspath(archive) if archive is not None else None,
                blob_over=services.blob_over,
                doubt=self._doubt,
            )
        if services.threads is None:
            return call()
        return await asyncio.to_thread(call)

    def _keep(self, services: Services, keep_last: int) -> None:
        """Prune what is saved from now on, if so many checkpoints are to be kept; 0: all."""
        is_here = self._runners.__contains__
        self._keeper = Keeper(services.store, keep_last, services.aside, is_here) if keep_last else None
