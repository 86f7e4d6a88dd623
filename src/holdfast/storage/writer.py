"""Group commit: queued appends are committed together, on one thread, and each append gets its own verdict.

Invariants: no caller is notified before the commit has returned; appends are committed in the order in which they were
submitted; one commit is under way at a time, on the writer's thread or, for a lone append, on the caller's.

Switching to another thread and back costs about as much as a commit on a good disk, so a caller may commit a lone append
itself (`try_commit`) as long as recent commits were quick. If they were slow, the commit would hold up the caller's event loop.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from holdfast.errors import StoreUnusable
from holdfast.storage import process
from holdfast.storage.contract import Append, Store

T = TypeVar("T")
Done: TypeAlias = Callable[[BaseException | None], None]
Wake: TypeAlias = Callable[[Callable[[], None]], None]

QUICK_S = 0.002
BATCH_APPENDS_MAX = 512
BATCH_BYTES_MAX = 8 * 1024 * 1024
_NEWEST_SHARE = 0.2
_FURTHER_S = 0.00006


class Writer:
    """Commits the appends of many callers on a daemon thread of its own, which starts with the first `submit`.

    After each batch, the writer calls `wake(fn)` once; `wake` must run `fn` on the thread that the callbacks expect (an engine
    passes `loop.call_soon_threadsafe`). Without `wake`, the callbacks run on the writer's thread.
    """

    def __init__(
        self,
        store: Store,
        wake: Wake | None = None,
        *,
        batch_appends_max: int = BATCH_APPENDS_MAX,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._store = store
        self._wake = wake
        self._batch_appends_max = batch_appends_max
        self._batch_bytes_max = batch_bytes_max
        self._timer = timer
        self._forks = process.count
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[tuple[Append, Done]] = deque()
        self._in_flight = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._commit_s = 0.0  # a moving average

    @property
    def quick(self) -> bool:
        """True if recent commits were quick enough for an event loop to wait for one."""
        return self._commit_s < QUICK_S

    def submit(self, append: Append, done: Done) -> None:
        """Queue an append. The writer calls `done(None)` once the append is durable, and `done(error)` if it was refused or its
        outcome is unknown.
        """
        self.submit_all([(append, done)])

    def submit_all(self, appends: Sequence[tuple[Append, Done]]) -> None:
        """Queue several appends at once, so that they share a commit."""
        self._require_own()
        with self._changed:
            self._require_open()
            self._queue.extend(appends)
            if self._thread is None:
                self._thread = threading.Thread(target=self._commit_all, name="holdfast-writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def try_commit(self, appends: Sequence[Append]) -> list[BaseException | None] | None:
        """Commit a few appends on the caller's thread, and return the outcome of each (None if it is durable). Returns None in
        place of the list if nothing was written because commits are slow, blobs must be written, or the writer is busy.
        """
        self._require_own()
        if not self.quick or _carry_blobs(appends):
            return None
        with self._lock:
            self._require_open()
            if self._queue or self._in_flight:
                return None
            self._in_flight = True
        try:
            began = self._timer()
            outcomes = _commit(self._store, appends)
            self._took(self._timer() - began, len(appends))
            return outcomes
        finally:
            with self._lock:
                self._in_flight = False
                # Notify only if needed; otherwise an idle writer thread would be woken at every step.
                if self._queue or self._closing:
                    self._changed.notify_all()

    def close(self) -> None:
        """Commit the queued appends, notify every caller, and end the thread. May be called more than once."""
        if self._forks != process.count:
            return  # after a fork, the thread and the queue belong to the parent process
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _commit_all(self) -> None:
        while (batch := self._next_batch()) is not None:
            began = self._timer()
            appends = [append for append, _ in batch]
            outcomes = _commit(self._store, appends)
            if not _carry_blobs(appends):
                self._took(self._timer() - began, len(batch))
            with self._changed:
                self._in_flight = False  # before callers are notified: they may go on to commit a lone append
            _tell(batch, outcomes, self._wake)

    def _next_batch(self) -> list[tuple[Append, Done]] | None:
        """Return all queued appends, up to the limits of a batch, or None when the writer is closed and its queue is empty."""
        with self._changed:
            while self._in_flight or not self._queue:
                if self._closing and not self._in_flight and not self._queue:
                    return None
                self._changed.wait()
            batch, size = [self._queue.popleft()], 0
            size += _weight(batch[0][0])
            while self._queue and len(batch) < self._batch_appends_max:
                size += _weight(self._queue[0][0])
                if size > self._batch_bytes_max:
                    break
                batch.append(self._queue.popleft())
            self._in_flight = True
            return batch

    def _took(self, seconds: float, count: int) -> None:
        """Update the moving average of how long a lone append takes. All appends of a batch share one sync, so for each append
        after the first only the time to write its rows is subtracted.
        """
        seconds = max(seconds - (count - 1) * _FURTHER_S, seconds / count)
        self._commit_s += _NEWEST_SHARE * (seconds - self._commit_s)

    def _require_own(self) -> None:
        if self._forks != process.count:
            raise StoreUnusable(
                "the store was opened before this process was forked. Open it again in this process."
            )

    def _require_open(self) -> None:
        if self._closing:
            raise StoreUnusable(
                "the store is closed for writing; nothing was written. Open the engine or the store again."
            )


class InlineWriter:
    """A writer that commits on the caller's thread, so that a test can drive everything from one thread in a fixed order."""

    quick = True

    def __init__(self, store: Store, wake: Wake | None = None) -> None:
        self._store = store
        self._wake = wake
        self._closing = False

    def submit(self, append: Append, done: Done) -> None:
        self.submit_all([(append, done)])

    def submit_all(self, appends: Sequence[tuple[Append, Done]]) -> None:
        self._require_open()
        _tell(list(appends), _commit(self._store, [append for append, _ in appends]), self._wake)

    def try_commit(self, appends: Sequence[Append]) -> list[BaseException | None]:
        self._require_open()
        return _commit(self._store, appends)

    def close(self) -> None:
        self._closing = True

    def _require_open(self) -> None:
        if self._closing:
            raise StoreUnusable(
                "the store is closed for writing; nothing was written. Open the engine or the store again."
            )


def _commit(store: Store, appends: Sequence[Append]) -> list[BaseException | None]:
    """Commit appends and return the outcome of each. Any exception is passed to the waiting callers: if it ended the writer's
    thread, they would wait for ever.
    """
    try:
        return list(store.append(appends))
    except BaseException as fault:  # noqa: BLE001
        return [fault] * len(appends)


def _tell(
    batch: Sequence[tuple[Append, Done]], outcomes: Sequence[BaseException | None], wake: Wake | None
) -> None:
    def tell_all() -> None:
        for (_, done), outcome in zip(batch, outcomes, strict=True):
            _call(done, outcome)

    if wake is None:
        tell_all()
    else:
        _call(wake, tell_all)


def _call(callback: Callable[[T], None], what: T) -> None:
    """Call a callback. If it raises, the error goes to `threading.excepthook`, and the writer and its other callers continue."""
    try:
        callback(what)
    except Exception as fault:  # noqa: BLE001
        hook = threading.excepthook
        hook(threading.ExceptHookArgs((type(fault), fault, fault.__traceback__, threading.current_thread())))


def _carry_blobs(appends: Sequence[Append]) -> bool:
    """Return whether any of the appends has blobs. Writing megabytes would hold up an event loop, and says nothing about how long
    other commits take.
    """
    for append in appends:  # noqa: SIM110 - every step runs this loop, and a generator would cost more than the rest
        if append.blobs or (append.along is not None and append.all_blobs):
            return True
    return False


def _weight(append: Append) -> int:
    weight = 0
    for row in append.rows:
        weight += len(row.body)
    for part in append.snapshots:
        weight += len(part.body)
    for blob in append.blobs:
        weight += len(blob.body)
    if append.along is not None:
        weight += sum(map(_weight, append.along.starts))
        weight += sum(len(str(request.body)) for _, request in append.along.posts)
    return weight
