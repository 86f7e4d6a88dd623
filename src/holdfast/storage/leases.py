"""Who may append to a run: leases, their holders, and whether the process of a holder still lives.

A holder is an engine in a process. On one host, in one pid namespace, a process is identified by its pid and its start time
(pids are used again), so a dead holder is recognised at once and its lease can be claimed without waiting. Whether a process of
another host or container lives cannot be seen from here, nor where there is no /proc; then the lease's time to live decides.

Only death is certain: a process that lives may be stopped, or its engine may be gone. So a holder that is not known to be dead
holds its runs until its lease expires, and the fence makes a takeover harmless if the holder comes back after that. What a
store does about leases is in `contract`.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import msgspec

KEPT_S = 86_400.0
"""How long a store keeps the row of a holder that has expired and holds no run."""
FORGETS_S = 3600.0
"""How often an open store looks for such holders."""

_NAMES_OF_MANY_HOSTS = frozenset({"", "localhost", "localhost.localdomain"})
_STATES_OF_THE_DEAD = frozenset("ZXx")  # a zombie has a pid, and will never run again


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
    """The right to append to a run, until another holder claims it. `seq` is where the log ends."""

    run_id: str
    fence: int
    seq: int


Alive: TypeAlias = Callable[[Holder], bool | None]
"""Whether the process of a holder lives; None: that cannot be seen from here."""


def this_process(ttl_s: float = 30.0, engine_id: str | None = None) -> Holder:
    """A holder for an engine in this process. Each engine needs an id of its own."""
    boot, pid_namespace, pid, process_started = _own(os.getpid())
    return Holder(
        id=engine_id or uuid.uuid4().hex,
        host=socket.gethostname(),
        boot=boot,
        pid_namespace=pid_namespace,
        pid=pid,
        process_started=process_started,
        ttl_s=ttl_s,
    )


def alive(holder: Holder) -> bool | None:
    """Whether the holder's process lives; None where that cannot be seen from here."""
    boot, namespace, pid, started = _own(os.getpid())
    if not (
        holder.boot and holder.pid_namespace and holder.pid and holder.process_started and boot and namespace
    ):
        return None
    if holder.host in _NAMES_OF_MANY_HOSTS and holder.boot != boot:
        return None
    if holder.host != socket.gethostname():
        return None
    if holder.boot != boot:
        return False  # this host has been restarted since
    if holder.pid_namespace != namespace:
        return None
    if (holder.pid, holder.process_started) == (pid, started):
        return True  # it is this very process
    return _runs(holder.pid, holder.process_started)


def alive_elsewhere(holder: Holder) -> bool | None:
    """The same for a database that other machines use: one that was started at another time may be another one of this name."""
    return alive(holder) if holder.boot == _own(os.getpid())[0] else None


def is_held(holder: Holder | None, expires_at: float, now: float, alive: Alive = alive) -> bool:
    """Whether a lease of this holder keeps others out: its time has not run out, and it is not known to be dead."""
    return holder is not None and expires_at > now and alive(holder) is not False


@lru_cache(maxsize=1)
def _own(pid: int) -> tuple[str, str, int, str]:
    """Boot, pid namespace, pid and start of this process: they stay as long as it does. A forked child has another pid."""
    found = _state_and_start(pid)
    return _boot(), _pid_namespace(), pid, found[1] if found else ""


def _runs(pid: int, started: str) -> bool | None:
    found = _state_and_start(pid)
    if found is not None:
        state, start = found
        return start == started and state not in _STATES_OF_THE_DEAD
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return None  # there is one, but /proc hides it (hidepid): it may be another with the same pid
    return None


def _state_and_start(pid: int) -> tuple[str, str] | None:
    """State and start time (ticks since boot) of a process. The name before them may hold spaces and parentheses."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), fields[19].decode()
    except (OSError, IndexError):
        return None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
