"""The words for who may append to a run. Whether a holder lives is told by `holder`, what a store does for one by `contract`."""

from __future__ import annotations

import msgspec


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that holds runs. On one host a dead one is recognised by its process, elsewhere by its lease."""

    id: str
    host: str = ""
    boot: str = ""
    pid_namespace: str = ""
    pid: int = 0
    process_started: str = ""
    ttl_s: float = 30.0

    def describe(self) -> str:
        return f"process {self.pid} on {self.host}" if self.pid else f"engine {self.id}"


class Lease(msgspec.Struct, frozen=True):
    """The right to append to a run, until somebody takes it over. `seq` is where the log ends."""

    run_id: str
    fence: int
    seq: int
