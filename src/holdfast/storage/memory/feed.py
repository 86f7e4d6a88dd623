"""The feed of the memory store: the reference implementation of `contract.Feed`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from holdfast.storage import leases
from holdfast.storage.contract import Tail
from holdfast.storage.memory.data import Data


class MemoryFeed:
    """The feed of a memory store. `use` gives access to its data."""

    def __init__(
        self,
        use: Callable[[], AbstractContextManager[Data]],
        now: Callable[[], float],
        alive: leases.Alive,
    ) -> None:
        self._use = use
        self._now = now
        self._alive = alive

    def look(self, after: Mapping[str, int], limit: int) -> dict[str, Tail]:
        found: dict[str, Tail] = {}
        with self._use() as data:
            now = self._now()
            for run_id, seq in after.items():
                run = data.runs.get(run_id)
                if run is not None:
                    holder, expires_at = data.holders.get(run.head.holder or "", (None, 0.0))
                    held = leases.is_held(holder, expires_at, now, self._alive)
                    first = max(seq + 1 - run.rows[0].seq, 0)  # seqs have no gaps
                    rows = run.rows[first : first + max(limit, 0)]
                    found[run_id] = Tail(run.head.seq, run.view.status, held, rows)
        return found
