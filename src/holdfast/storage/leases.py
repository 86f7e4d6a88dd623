"""Leases: which engine may append to a run, and whether the process of that engine is still alive.

A holder is an engine in a process. On one host, in one pid namespace, a process is identified by its pid and its start time
(pids are reused), so a dead holder is recognised at once and its lease can be claimed without waiting. Whether a process on
another host or in another container is alive cannot be seen from here, nor on a system without /proc; then the lease's time to
live decides.

Only the death of a process is certain: a process that is alive may be suspended, or its engine may have ended. So a holder that
is not known to be dead keeps its runs until its lease expires; if it continues after that, the fence refuses its writes. The
operations of a store on leases are in `contract`.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from holdfast.core import VERSION

KEPT_S = 86_400.0
"""How long, in seconds, a store keeps the row of a holder whose leases have expired and that holds no run."""
FORGETS_S = 3600.0
"""How often, in seconds, an open store deletes expired holders, requests that no run can take, and refusals that no longer
count.
"""

_NAMES_OF_MANY_HOSTS = frozenset({"", "localhost", "localhost.localdomain"})
_STATES_OF_THE_DEAD = frozenset("ZXx")  # a zombie process still has its pid, but will never run again


class CallsAtOnce(msgspec.Struct, frozen=True, kw_only=True):
    """How many calls an engine makes at the same time by one executor, at most, and how many more wait in order."""

    executor: str
    limit: int
    waiting: int


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of an engine that holds runs. Engines on the same host recognise a dead holder by its process; engines on
    other hosts wait until its lease has expired.
    """

    id: str
    host: str = ""
    boot: str = ""
    pid_namespace: str = ""
    pid: int = 0
    process_started: str = ""
    ttl_s: float = 30.0
    flows: tuple[str, ...] = ()
    """Names of the flows whose runs this engine claims as a worker; empty if it is not a worker, or claims no more runs."""
    queues: tuple[str, ...] = ()
    """Names of the queues from which it claims runs; if empty, from all queues."""
    version: str = ""
    """The version of Holdfast that the engine uses."""
    calls: tuple[CallsAtOnce, ...] = ()
    """The calls that waited for a place in the engine when it last renewed its leases, by executor; those without are left out.
    Only the list of holders has it.
    """

    def describe(self) -> str:
        return f"process {self.pid} on {self.host}" if self.pid else f"engine {self.id}"

    def describe_calls(self) -> str:
        """Return how many of its calls wait for a place; an empty text if none does."""
        return " and ".join(
            f"{at.waiting:,} {'call waits' if at.waiting == 1 else 'calls wait'} for one of {at.limit:,} places "
            f"(executor {at.executor!r})"
            for at in self.calls
        )

    def takes(self, flow: str, queue: str) -> bool:
        """Return whether this engine is a worker that claims runs of a flow in a queue."""
        return flow in self.flows and (not self.queues or queue in self.queues)


class Lease(msgspec.Struct, frozen=True):
    """The right to append to a run, until another holder claims it. `seq` is the number of the last event in the log."""

    run_id: str
    fence: int
    seq: int


Alive: TypeAlias = Callable[[Holder], bool | None]
"""A function that returns whether the process of a holder is alive, or None if this process cannot tell."""


def this_process(ttl_s: float = 30.0, engine_id: str | None = None) -> Holder:
    """Create a holder for an engine in this process. Each engine needs an id of its own."""
    boot, pid_namespace, pid, process_started = _own(os.getpid())
    return Holder(
        id=engine_id or uuid.uuid4().hex,
        host=socket.gethostname(),
        boot=boot,
        pid_namespace=pid_namespace,
        pid=pid,
        process_started=process_started,
        ttl_s=ttl_s,
        version=VERSION,
    )


def alive(holder: Holder) -> bool | None:
    """Return whether the holder's process is alive, or None if this process cannot tell."""
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
        return True  # the holder is in this process
    return _runs(holder.pid, holder.process_started)


def alive_elsewhere(holder: Holder) -> bool | None:
    """Return whether the holder's process is alive, or None if this process cannot tell. For a database that several machines
    use: a holder with another boot id may be on another machine with the same host name, so it is not taken for a process of this
    machine before a restart, as `alive` would.
    """
    return alive(holder) if holder.boot == _own(os.getpid())[0] else None


def is_held(holder: Holder | None, expires_at: float, now: float, alive: Alive = alive) -> bool:
    """Return whether a lease keeps other engines out: it has not expired, and its holder is not known to be dead."""
    return holder is not None and expires_at > now and alive(holder) is not False


@lru_cache(maxsize=1)
def _own(pid: int) -> tuple[str, str, int, str]:
    """Return the boot id, pid namespace, pid and start time of this process. They never change, so they are cached by pid; a
    forked child has another pid.
    """
    return boot_id(), _pid_namespace(), pid, read_start(pid) or ""


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
        return None  # a process with this pid exists, but /proc hides it (hidepid): it may be a different process
    return None


def read_start(pid: int | Literal["thread-self"]) -> str | None:
    """Return the start time of a process or of the calling thread, in ticks since boot; None if /proc does not show it."""
    found = _state_and_start(pid)
    return found[1] if found else None


def _state_and_start(pid: int | str) -> tuple[str, str] | None:
    """Return the state and the start time (in ticks since boot) of a process or thread, or None if /proc does not show it. In the
    file, the name before them may contain spaces and parentheses.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), fields[19].decode()
    except (OSError, IndexError):
        return None


def boot_id() -> str:
    """Return the id that the kernel of this machine has until the next restart; empty if it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
