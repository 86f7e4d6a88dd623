"""Building blocks for tests of stores: a clock, appends to a run's log, kills at failpoints, holders that are dead."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.core.event_encoding import Encoded
from holdfast.storage import failpoints, rows
from holdfast.storage.contract import Append, Holder, NewRun, Store, View

_count = itertools.count()


class Time:
    """A clock that does not move until a test calls `pass_s`."""

    def __init__(self, at: float = 1_700_000_000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at

    def pass_s(self, seconds: float) -> None:
        self.at += seconds


class Log:
    """Builds appends to the log of one run. It tracks the seq and the digest of the last event that was written."""

    def __init__(
        self, run_id: str, *, holder: str | None = None, fence: int = 0, seq: int = 0, digest: bytes = b""
    ) -> None:
        self.run_id = run_id
        self.holder = holder
        self.fence = fence
        self.seq = seq
        self.digest = digest
        self.at = 1_700_000_000.25

    def create(self, *bodies: bytes, **changes: Any) -> Append:
        """Make the first append of the run. Fields of `NewRun`, `View` and `Append` may be given by name."""
        given = {name: changes.pop(name) for name in NewRun.__struct_fields__ if name in changes}
        new = NewRun(**{"flow": "flow", "input_digest": b"input", "created_at": self.at, **given})
        return self.next(*(bodies or (b"{}",)), create=new, **changes)

    def next(
        self, *bodies: bytes, kind: str = "NodeCompleted", node: str | None = "node", **changes: Any
    ) -> Append:
        """Make an append that continues the log. Call `wrote` after the store accepted it: the next append continues there."""
        given = {name: changes.pop(name) for name in View.__struct_fields__ if name in changes}
        view = View(**{"status": "running", "fingerprint": "print", "state_version": 1, **given})
        encoded = [Encoded(kind, node, 1, 1, 1, body) for body in bodies or (b'{"n":1}', b"")]
        return Append(
            run_id=self.run_id,
            expected_seq=self.seq,
            rows=rows.seal(
                self.digest, self.run_id, self.seq, self.at, encoded, self._fresh_salts(len(encoded))
            ),
            view=view,
            holder=changes.pop("holder", self.holder),
            fence=changes.pop("fence", self.fence),
            **changes,
        )

    def wrote(self, append: Append) -> None:
        """Note that the store accepted this append; the next append continues after it."""
        self.seq = append.rows[-1].seq
        self.digest = append.rows[-1].digest
        self.at += 1.0

    def _fresh_salts(self, count: int) -> bytes:
        seed = f"{self.run_id} {next(_count)} {os.getpid()}".encode()
        return hashlib.shake_256(seed).digest(count * rows.SALT_BYTES)


@contextmanager
def raises(kind: type[BaseException], *parts: str) -> Iterator[None]:
    """Require that the block raises this exception, with a message that contains these parts."""
    said = None
    try:
        yield
    except kind as error:
        said = str(error)
    assert said is not None, f"{kind.__name__} was not raised"
    missing = [part for part in parts if part not in said]
    assert not missing, f"{missing} not in {said!r}"


@contextmanager
def hooked(hook: Callable[[str], None]) -> Iterator[None]:
    """Call the hook at every failpoint within the block."""
    failpoints.install(hook)
    try:
        yield
    finally:
        failpoints.install(None)


def delete_run(store: Store, run_id: str, seq: int) -> None:
    """Delete one run, and raise what refuses it."""
    for refusal in store.upkeep.delete({run_id: seq}).values():
        raise refusal


class KilledAtFailpoint(BaseException):
    """Raised at a failpoint to simulate the death of the process there."""


def kill_at(place: str) -> Callable[[str], None]:
    """Make a hook for `hooked` that raises `KilledAtFailpoint` at one failpoint."""

    def kill(reached: str) -> None:
        if reached == place:
            raise KilledAtFailpoint(place)

    return kill


def dead_process() -> Holder:
    """Return the holder of a process that has ended: the process is really started, and has exited."""
    ask = "import holdfast.storage.leases as h, msgspec; print(msgspec.json.encode(h.this_process(30.0, 'dead')).decode())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    said = subprocess.run(
        [sys.executable, "-c", ask], stdout=subprocess.PIPE, check=True, env=environment
    ).stdout
    return msgspec.json.decode(said, type=Holder)


def in_threads(count: int, *calls: Callable[[], None]) -> None:
    """Run each call in `count` threads at once, and raise the first error of any of them."""
    errors: list[BaseException] = []

    def guard(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
            errors.append(error)

    threads = [
        threading.Thread(target=guard, args=(call,), daemon=True) for call in calls for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread did not end within a minute"
    if errors:
        raise errors[0]
