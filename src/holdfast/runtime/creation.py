"""Making runs: new ones, and forks. Both are a journal whose first events are recorded and not saved yet."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from holdfast.core import events, run_state
from holdfast.core.definition import Definition
from holdfast.core.graph import START, Flow
from holdfast.core.run_state import RunState
from holdfast.core.state import StateType
from holdfast.core.validate import RUN_ID
from holdfast.errors import ResumeRefused, RunExists, SettingError, StoreCorrupt
from holdfast.reading import history
from holdfast.runtime.journal import Journal
from holdfast.runtime.services import Services
from holdfast.storage.contract import NewRun, RunRow, Snapshot
from holdfast.storage.oversize import take_out
from holdfast.storage.queues import DEFAULT_QUEUE
from holdfast.storage.rows import pack

PRIORITY_MAX = 1_000_000
UNKNOWN: Flow[Any] = Flow(
    definition=Definition(name="unknown", nodes={}),
    nodes={},
    branches={},
    state=StateType.of(dict),
    upgrades={},
    validate_resume=None,
)
"""In place of a flow that an engine was not given, for what only records."""


def created(
    services: Services, flow: Flow[Any], run_id: str, created_as: events.RunCreated, *, held: bool
) -> Journal:
    """The journal of a new run. With `held` its first append takes the lease."""
    journal = Journal(services, flow, RunState(run_id), row=None, fence=1 if held else 0)
    at = journal.tick()
    digest = input_digest(flow, created_as.input)
    journal.create = NewRun(
        flow=flow.name,
        input_digest=digest,
        created_at=at,
        labels=created_as.labels,
        queue=created_as.options.get("queue", DEFAULT_QUEUE),
        priority=created_as.options.get("priority", 0),
    )
    journal.definition = flow.definition_json
    journal.record(created_as)
    return journal


def checkpoint_zero(
    flow: Flow[Any],
    given: Any,
    *,
    options: Mapping[str, Any],
    labels: Mapping[str, str] | None,
    by: str | None,
) -> events.RunCreated:
    """What is known of a run before anything runs. Raises `StateError` for an input that does not fit."""
    return events.RunCreated(
        flow=flow.name,
        fingerprint=flow.fingerprint,
        state_version=flow.definition.state_version,
        input=flow.state.dump({} if given is None else given),
        starts=list(flow.plain_routes[START]),
        schedule=flow.definition.schedule,
        options=dict(options),
        labels=checked_labels(labels),
        by=by,
    )


def refuse_another(run_id: str, known: RunRow | NewRun, create: NewRun) -> None:
    """A run id that is taken is the same run only with the same flow and input."""
    if known.flow != create.flow:
        raise RunExists(run_id, f"flow ({known.flow!r})")
    if known.input_digest != create.input_digest:
        raise RunExists(run_id, "input")


def fork_place(services: Services, run_id: str, seq: int | None) -> int:
    """The checkpoint to fork at; by default the latest that the run came through."""
    listed = history.checkpoints(services.store, run_id)
    if seq is None:
        latest = max((point.seq for point in listed if point.current), default=None)
        if latest is None:
            raise StoreCorrupt(
                f"run {run_id!r} has no checkpoint, which every run has: its log is damaged. "
                f"`holdfast verify {run_id}` says more."
            )
        return latest
    if all(point.seq != seq for point in listed):
        trimmed = services.store.upkeep.trimmed(run_id)
        gone = history.retirement(trimmed) if seq < trimmed.retired else ""
        if seq <= trimmed.base:
            gone = history.beginning(services.store, services.store.run(run_id))
        told = f"event {seq} is no checkpoint{f' any more. {gone}' if gone else ';'} `holdfast checkpoints {run_id}` lists them"
        raise ResumeRefused(run_id, told, asked="forked")
    return seq


def forked(
    services: Services,
    flow: Flow[Any] | None,
    row: RunRow,
    seq: int,
    *,
    fork_id: str,
    labels: Mapping[str, str] | None,
    by: str | None,
    reason: str | None,
) -> Journal:
    """The journal of a fork: its base is the parent's fold at that place, its first event has the next seq."""
    state = history.load(services.store, row.run_id, seq, row=row, check=True)
    body, blobs = take_out(run_state.dump(state), services.blob_over)
    base = pack(body)
    digest = history.digest_at(services.store, row, seq)
    state.run_id = fork_id
    journal = Journal(services, flow or UNKNOWN, state, row=None, fence=0)
    at = journal.tick()
    journal.digest = digest
    journal.bases = (Snapshot(seq, base, base=True, digest=digest),)
    journal.base_blobs = blobs
    # Again: its parent may be deleted just now, and what no run names is swept.
    journal.definition = services.store.definition(state.fingerprint)
    checked = checked_labels(labels) if labels is not None else None
    journal.create = NewRun(
        flow=row.flow,
        input_digest=sha256(digest + base).digest(),
        created_at=at,
        labels=row.labels if checked is None else checked,
        parent=row.run_id,
        queue=row.queue,
        priority=row.priority,
    )
    base_digest = sha256(base).hexdigest()
    journal.record(
        events.RunForked(
            parent=row.run_id, to=seq, base_digest=base_digest, labels=checked, by=by, reason=reason
        )
    )
    return journal


def checked_id(run_id: str) -> str:
    """A run id that is safe in files, URLs and shells."""
    if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        raise SettingError(
            f"{run_id!r} is not a run id: use up to 128 letters, digits, '.', '_' and '-', starting with a letter "
            "or digit"
        )
    return run_id


def checked_said(by: Any, reason: Any) -> None:
    """Who does something, and why, are words."""
    for name, said in (("by", by), ("reason", reason)):
        if said is not None and not isinstance(said, str):
            raise SettingError(f"{name}={said!r}: give text, or leave it out")


def checked_seconds(seconds: float, name: str) -> float:
    """A time that can pass."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 1e10:
        raise SettingError(f"{name}={seconds!r}: give a positive number of seconds")
    return float(seconds)


def checked_queue(name: Any) -> str:
    """A name that a queue can have: what a run id can be, too."""
    if not isinstance(name, str) or not RUN_ID.fullmatch(name):
        raise SettingError(
            f"queue={name!r}: a queue has a name of up to 128 letters, digits, '.', '_' and '-', starting with a letter or digit"
        )
    return name


def placed(queue: Any, priority: Any) -> dict[str, Any]:
    """Where a run is to wait for a worker, as options of the run; nothing where that is the usual place."""
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > PRIORITY_MAX:
        raise SettingError(
            f"priority={priority!r}: give a whole number, at most {PRIORITY_MAX}; higher comes first"
        )
    place: dict[str, Any] = {"queue": checked_queue(queue)} if queue is not None else {}
    return place | ({"priority": priority} if priority else {})


def checked_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    """Labels are pairs of short strings."""
    if labels is not None and not isinstance(labels, Mapping):
        raise SettingError(f"labels={labels!r}: give a dict of short strings")
    for key, value in (labels or {}).items():
        strings = isinstance(key, str) and isinstance(value, str)
        if not strings or not 0 < len(key) <= 128 or len(value) > 1024:
            raise SettingError(f"label {key!r}: labels are pairs of short strings, not {value!r}")
    return dict(labels or {})


def input_digest(flow: Flow[Any], values: Mapping[str, Any]) -> bytes:
    """What makes two starts of a run id the same: flow and input."""
    return sha256(msgspec.json.encode([flow.name, values], order="sorted")).digest()
