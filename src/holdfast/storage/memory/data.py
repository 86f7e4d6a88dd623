"""The data that all memory stores with the same name share. Hold its lock to read or change it."""

from __future__ import annotations

import threading
import uuid
from typing import Self

import msgspec

from holdfast.core.run_state import FINAL
from holdfast.storage.contract import Holder, NewRun, Request, Row, Snapshot, View
from holdfast.storage.memory.blobs import MemoryBlobs
from holdfast.storage.queues import Refusal
from holdfast.storage.tokens import Token
from holdfast.storage.upkeep import WHOLE


class RunHead(msgspec.Struct, frozen=True):
    """The facts about a run that decide whether an append to it is accepted."""

    seq: int
    fence: int
    holder: str | None


class PostedRequest(msgspec.Struct, frozen=True):
    """A request to a run, and the digest of what it asked for when it was posted."""

    request: Request
    digest: bytes


class StoredRun:
    """A run in a memory store: its run row, its log, its snapshots and the requests that it got."""

    def __init__(self, new: NewRun, view: View) -> None:
        self.new = msgspec.structs.replace(new, labels=dict(new.labels))
        self.view = view
        self.rows: list[Row] = []
        self.snapshots: dict[int, Snapshot] = {}
        self.head = RunHead(0, 0, None)
        self.trimmed = WHOLE
        self.ended_at: float | None = None
        """When the run was completed, failed or cancelled; None if it has not ended."""
        self.requests: dict[str, PostedRequest] = {}
        """All requests by their ids, oldest first, also those that were handled."""


class Data:
    """The runs of a memory store, their holders and their inbox. `with data:` holds its lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # reentrant: a failpoint's hook may act as a second writer
        self.heard = threading.Condition(self.lock)
        self.runs: dict[str, StoredRun] = {}
        self.unended: dict[str, StoredRun] = {}
        """The runs that are neither completed nor cancelled."""
        self.definitions: dict[str, bytes] = {}
        self.holders: dict[str, tuple[Holder, float]] = {}
        """Engine id -> the holder, and the time at which its leases expire."""
        self.registered: dict[str, float] = {}
        """Engine id -> when it was first seen."""
        self.refusals: dict[tuple[str, str], Refusal] = {}
        """Engine id and run id -> why the worker refuses the run."""
        self.waiting: dict[tuple[str, str], Request] = {}
        """Requests that are not handled yet, by run id and request id, oldest first."""
        self.blobs = MemoryBlobs()
        self.limits: dict[str, int] = {}
        self.tokens: dict[str, Token] = {}
        self.news = 0
        """Counts how often a run may have come on offer, or a request into an inbox. Workers wait for it to change."""
        self.generation = uuid.uuid4().hex

    def __enter__(self) -> Self:
        self.lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def tell(self) -> None:
        """Wake the workers that wait for a run to come on offer."""
        self.news += 1
        self.heard.notify_all()

    def post(self, run_id: str, request: Request, digest: bytes) -> None:
        """Put a request into the inbox of a run, and wake the workers."""
        self.runs[run_id].requests[request.id] = PostedRequest(request, digest)
        self.waiting[run_id, request.id] = request
        self.tell()

    def handle(self, run_id: str, request_id: str, seq: int, *, unmet: bool = False) -> None:
        """Mark a request as handled by the event at `seq`, if it waits."""
        waiting = self.waiting.pop((run_id, request_id), None)
        if waiting is not None:
            requests = self.runs[run_id].requests
            handled = msgspec.structs.replace(waiting, body={}, taken=seq, unmet=unmet)
            requests[request_id] = PostedRequest(handled, requests[request_id].digest)

    def drop_holder(self, engine: str) -> None:
        """Delete a holder, and what it has refused."""
        self.holders.pop(engine, None)
        self.registered.pop(engine, None)
        self.refusals = {key: one for key, one in self.refusals.items() if key[0] != engine}

    def turned(self, run_id: str) -> None:
        """Update `unended` after an append to a run, and wake the workers if no engine holds the run now."""
        run = self.runs[run_id]
        if run.view.status in FINAL:
            self.unended.pop(run_id, None)
        else:
            self.unended[run_id] = run
        if run.head.holder is None:
            self.tell()


def may_ask(view: View) -> bool:
    """Return whether a question of a run is open, or may be open: its row does not tell."""
    return view.asks > 0 if view.asks is not None else view.status not in FINAL
