"""Creating runs: new runs and forks. Each begins as a journal whose first events are recorded but not saved yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from random import Random
from typing import Any, cast, get_args

import msgspec
from msgspec import structs

from holdfast.core import events, run_state
from holdfast.core import requests as records
from holdfast.core.budget import check_budget, plain
from holdfast.core.child_place import ChildOptions, ChildPlace
from holdfast.core.consequences import Consequences, foresee, survey
from holdfast.core.definition import Definition
from holdfast.core.events import Caller, Changes, Choice, Values
from holdfast.core.graph import START, Flow, without_functions
from holdfast.core.requests import OnExists, Repeat, Schedule
from holdfast.core.run_state import RunState
from holdfast.core.scope import check_scope
from holdfast.core.validate import PRIORITY_MAX, RUN_ID, TRACE_PARENT
from holdfast.core.verb_options import read_options, said_options
from holdfast.errors import (
    FlowNotFound,
    ResumeRefused,
    RouterError,
    RunExists,
    RunNotFound,
    SettingError,
    StateError,
    did_you_mean,
    end_sentence,
    name_known,
)
from holdfast.reading import history
from holdfast.reading.forks import ForkPlan, fork_place, list_missed, names_since, plan_fork
from holdfast.reading.previews import Rehearsed, VerbCall, make, refuse_stale
from holdfast.runtime.journal import Journal
from holdfast.runtime.outcomes import route
from holdfast.runtime.preparation import edited, refuse_other_version
from holdfast.runtime.services import Services
from holdfast.storage import definitions
from holdfast.storage.contract import Append, NewRun, RunRow, Snapshot, Store
from holdfast.storage.oversize import take_out
from holdfast.storage.queues import DEFAULT_QUEUE
from holdfast.storage.rows import pack

BEGIN_MAX_S = 10 * 366 * 86_400.0
"""How far in the future a run may begin, at most: a time further away is probably a mistake."""
UNKNOWN: Flow[Any] = without_functions(Definition(name="unknown", nodes={}))
"""Stands for a flow that the engine does not have, in a journal that only records events and calls no node."""


class Starting(records.Start, frozen=True, kw_only=True):
    """What the caller of `run` or `start` asks for, or a node that starts a child run."""

    place: dict[str, Any]
    """The options that say in which queue the run waits, with which priority, and when it begins; defaults are left out."""
    caller: Caller | None = None


def read_start(services: Services, options: Mapping[str, Any]) -> Starting:
    """Return what is asked for, from the options of `Engine.run` or `Engine.start`. Raises `SettingError`."""
    given = records.Start(**read_options(records.Start, options))
    _check_on_exists(given.on_exists, given.run_id)
    place = _make_queue_options(given.queue, given.priority)
    place |= _make_begin_option(services, given.begin_at, given.run_id)
    _check_trace_parent(given.trace_parent)
    _check_schedule(given.schedule)
    return Starting(**structs.asdict(given), place=place)


def start_journal(
    services: Services, flow: Flow[Any], given: Any, asked: Starting, options: dict[str, Any], *, held: bool
) -> Journal | None:
    """Create the journal of a new run with this input, with `RunCreated` recorded; None if it is known already that the same run
    exists. If `held` is true, the first append of the run also claims its lease.
    """
    flow = flow.source.current(flow) if flow.source is not None else flow
    values, run_id = _input_of(flow, given), asked.run_id
    if asked.timeout is not None:
        options["timeout_s"] = _check_seconds(asked.timeout, "timeout")
    options |= _make_limit_options(flow, asked)
    if run_id is not None and _is_known(services, flow, run_id, values, asked.on_exists):
        return None
    run_id = check_id(run_id) if run_id is not None else new_id(services.luck, flow.name)
    zero = _checkpoint_zero(flow, values, asked, options)
    if held:
        services.holdings.hold()
    return _create_journal(services, flow, run_id, zero, held=held)


def child_append(
    services: Services, flow: Flow[Any], given: Any, place: ChildPlace, wanted: ChildOptions
) -> Append:
    """Return the first append of a child run, which is written with an append of its caller. Raises `StateError`,
    `SettingError` and `RouterError`.
    """
    asked = Starting(
        run_id=place.run_id,
        place=_make_queue_options(wanted.queue, wanted.priority),
        labels=check_labels(wanted.labels),
        caller=place.caller,
        budget=check_budget(wanted.budget),
    )
    options = services.run_options(flow, asked.place) | _make_limit_options(flow, asked)
    if wanted.run_timeout is not None:
        options["timeout_s"] = _check_seconds(wanted.run_timeout, "run_timeout")
    flow = flow.source.current(flow) if flow.source is not None else flow
    values = _input_of(flow, given)
    zero = _checkpoint_zero(flow, values, asked, options)
    return _create_journal(services, flow, place.run_id, zero, held=False).first_append()


def _create_journal(
    services: Services, flow: Flow[Any], run_id: str, created_as: events.RunCreated, *, held: bool
) -> Journal:
    journal = Journal(services, flow, RunState(run_id), row=None, fence=1 if held else 0)
    at = journal.tick()
    digest = input_digest(flow, created_as.input)
    journal.create = NewRun(
        flow=flow.name,
        input_digest=digest,
        created_at=at,
        labels=created_as.labels,
        origin=created_as.caller.run if created_as.caller is not None else None,
        queue=created_as.options.get("queue", DEFAULT_QUEUE),
        priority=created_as.options.get("priority", 0),
    )
    journal.definition = definitions.encode(flow.definition, flow.definition_json)
    journal.due_at = created_as.options.get("begin_at")
    journal.record(created_as)
    return journal


def _checkpoint_zero(
    flow: Flow[Any], values: Values, asked: Starting, options: dict[str, Any]
) -> events.RunCreated:
    """Return the first event of a run, before any node runs. Raises `RouterError` if START has a router that cannot choose a
    node.
    """
    try:
        starts = route(flow, START, values).to
    except RouterError as fault:
        told = end_sentence(f"flow {flow.name!r}: {fault}")
        message = f"{told} No run was recorded; correct the router or the input."
        raise RouterError(message) from fault.__cause__
    return events.RunCreated(
        flow=flow.name,
        fingerprint=flow.fingerprint,
        state_version=flow.definition.state_version,
        input=values,
        starts=starts,
        schedule=asked.schedule or flow.definition.schedule,
        options=options,
        labels=check_labels(asked.labels),
        by=asked.by,
        trace_parent=asked.trace_parent,
        caller=asked.caller,
        plan=bool(flow.definition.plan),
    )


def _input_of(flow: Flow[Any], given: Any) -> Values:
    """Return the input of a new run as plain data: what the caller gives, or what the plan brings. Raises `SettingError` and
    `StateError`.
    """
    if not flow.definition.plan:
        return flow.state.dump({} if given is None else given)
    if given is not None:
        raise SettingError(
            f"a plan over {flow.name!r} brings its own input, so none can be given with it; put the data into the plan's context"
        )
    if flow.input is None:
        raise SettingError(
            f"this flow was made from the plan of another run, and has no goal and context; start a run of {flow.name!r} with "
            f"what {flow.name}.plan(…) returns"
        )
    return flow.state.dump(flow.input)


def refuse_another(
    run_id: str, known: RunRow | NewRun, flow: str, digest: bytes, on_exists: OnExists
) -> None:
    """Refuse a new run whose id is taken, unless it is the same run: the flow is the same, and the input is too or does not
    matter (`on_exists="use"`). Raises `RunExists`, without the exception of the store that led here: it says less.
    """
    if known.flow != flow:
        raise RunExists(run_id, f"flow ({known.flow!r})") from None
    if on_exists == "refuse" and known.input_digest != digest:
        raise RunExists(
            run_id, "input" if known.parent is None else "origin (place, edit, repeat or fresh of the fork)"
        ) from None


def require_same(
    store: Store,
    run_id: str,
    create: NewRun | None,
    on_exists: OnExists = "refuse",
    known: NewRun | None = None,
) -> None:
    """Raise `RunExists` if the run that has this id (by default: in the store) was started with another flow or input."""
    assert create is not None
    refuse_another(run_id, known or store.run(run_id), create.flow, create.input_digest, on_exists)


def _is_known(services: Services, flow: Flow[Any], run_id: str, values: Values, on_exists: OnExists) -> bool:
    """Return whether the same run exists already. This is looked up only if it must be known before the run is created: if the
    input does not matter, or a router of START would be called. Otherwise the first append finds it out. Raises `RunExists`.
    """
    if on_exists == "use" or START in flow.branches:
        with suppress(RunNotFound):
            known = services.store.run(check_id(run_id))
            refuse_another(run_id, known, flow.name, input_digest(flow, values), on_exists)
            return True
    return False


class Forking(records.Fork, frozen=True, kw_only=True):
    """What the caller of `fork` asks for, with what cannot be stored."""

    edit_by: Callable[[Any], Any] | None = None
    """A function that edits the state, in place of `edit`."""

    @property
    def edits(self) -> Callable[[Any], Any] | Mapping[str, Any] | None:
        """How to edit the state, if at all."""
        return self.edit_by or self.edit


def read_fork(run: str, options: Mapping[str, Any]) -> tuple[str, Forking]:
    """Return the run to fork, and how, from the options of `Engine.fork`. Raises `SettingError`."""
    given = read_options(records.Fork, options)
    parent, given["checkpoint"] = history.split(run, given.get("checkpoint"))
    if callable(given.get("edit")):
        given["edit_by"] = given.pop("edit")
    return parent, Forking(**given)


def preview_fork(
    services: Services, flow: Flow[Any] | None, row: RunRow, head: RunState, asked: Forking
) -> Rehearsed:
    """Return what a fork would be: nothing is saved. `head` is the state of the run to fork."""
    options = said_options(asked, records.Fork)
    if asked.edit_by is not None:
        options["edit"] = True
    typable = asked.edit_by is None
    wanted = VerbCall(run_id=row.run_id, verb="fork", options=options, is_typable=typable)
    fork_id = asked.run_id
    try:
        asked = msgspec.structs.replace(asked, run_id=check_id(fork_id) if fork_id else row.run_id)
        journal = fork_journal(services.unsaving(), flow, row, asked)
        with suppress(RunNotFound):
            if fork_id:
                require_same(services.store, fork_id, journal.create)
    except (ResumeRefused, SettingError, StateError, FlowNotFound, RunExists) as refused:
        return Rehearsed(wanted=wanted, preview=make(wanted, Consequences(), path=head.path, refused=refused))
    seq, shape = journal.bases[0].seq, history.stand_in(services.store, journal.state)
    before = survey(head, names_since(services.store, row, seq, head.nodes))
    found = foresee(before, journal.state, shape, journal.at)
    found = msgspec.structs.replace(found, closes=())  # the questions of the parent stay open
    risky = [one for one in found.risky if one.node in journal.state.begun]
    preview = make(
        wanted, found, confirm=risky, at=seq, path=head.path, missed=list_missed(services.store, row, seq)
    )
    return Rehearsed(wanted=wanted, preview=preview)


def fork_journal(services: Services, flow: Flow[Any] | None, row: RunRow, asked: Forking) -> Journal:
    """Create the journal of a fork. Its base is the state of the parent at the checkpoint (default: the latest), and
    its first event has the next number. Raises `ResumeRefused`, `PreviewStale`, `SettingError`, and `FlowNotFound` for an edit
    without the flow.
    """
    if asked.expects is not None:
        head = history.load(services.store, row.run_id, row=row)
        wanted = msgspec.structs.replace(asked, expects=None)
        found = preview_fork(services, flow, row, head, wanted)
        refuse_stale(found.preview, asked.expects, "forked")
    if asked.edits is not None and flow is None:
        raise FlowNotFound(row.flow, (), run_id=row.run_id)
    plan = plan_fork(services.store, row, fork_place(services.store, row, asked.checkpoint), flow)
    choices = _choices(row, plan, asked.repeat)
    state = plan.state
    body, blobs = take_out(run_state.dump(state), services.blob_over)
    base = pack(body)
    digest = history.digest_at(services.store, row, plan.seq)
    assert asked.run_id is not None
    state.run_id = asked.run_id
    journal = Journal(services, flow or UNKNOWN, state, row=None, fence=0)
    at = journal.tick()
    journal.digest = digest
    journal.bases = (Snapshot(plan.seq, base, base=True, digest=digest),)
    journal.base_blobs = blobs
    # Stored again: if the parent is deleted at this moment, its definition is deleted too, because no run refers to it.
    journal.definition = services.store.definition(state.fingerprint)
    labels = check_labels(asked.labels) if asked.labels is not None else None
    journal.record(
        events.RunForked(
            parent=row.run_id,
            to=plan.seq,
            base_digest=sha256(base).hexdigest(),
            lineage=None if asked.fresh else plan.lineage,
            fresh=asked.fresh,
            visits=list(plan.begun),
            repeat={name: choice for name, choice in choices.items() if name in plan.asks_about},
            renewed={} if asked.fresh else plan.renewed,
            labels=labels,
            by=asked.by,
            reason=asked.reason,
        )
    )
    changes = None
    if asked.edits is not None and flow is not None:
        older = "Fork it without edit=…, and resume the fork with edit=…, which upgrades the state first."
        refuse_other_version(flow, state, row.run_id, asked="forked", older=older)
        changes = edited(flow, state, asked.edits, run_id=row.run_id)
    journal.create = NewRun(
        flow=row.flow,
        input_digest=_fork_digest(digest + base, changes, choices, fresh=asked.fresh),
        created_at=at,
        labels=row.labels if labels is None else labels,
        parent=row.run_id,
        queue=row.queue,
        priority=row.priority,
    )
    if changes is not None:
        journal.record(events.StateEdited(changes=changes, by=asked.by, reason=asked.reason))
    return journal


def _choices(row: RunRow, plan: ForkPlan, repeat: Any) -> dict[str, Choice]:
    """Return what the fork does with the visits of each node that its parent has begun. Raises `SettingError`."""
    allowed = get_args(Repeat)
    by_node = dict(repeat) if isinstance(repeat, Mapping) else {}
    refused = f"run {row.run_id!r} was not forked: repeat={by_node or repeat!r}"
    if isinstance(repeat, str) and repeat in allowed:
        risky = [name for name, is_idempotent in plan.idempotent.items() if not is_idempotent]
        return {} if repeat == "ask" else dict.fromkeys(risky, cast("Choice", repeat))
    if not isinstance(repeat, Mapping):
        raise SettingError(f"{refused} is not valid: give 'ask', 'run', 'skip', or a dict of nodes")
    for name, choice in by_node.items():
        if name not in plan.idempotent:
            near = name_known(str(name), plan.idempotent)
            raise SettingError(f"{refused}: flow {row.flow!r} has no node {name!r}{near}")
        if choice not in allowed:
            raise SettingError(f"{refused}: {choice!r} is not valid: give 'ask', 'run' or 'skip'")
        if plan.idempotent[name]:
            raise SettingError(
                f"{refused}: node {name!r} is idempotent, so a fork repeats it without asking. Leave it out, or mark it with "
                "idempotent=False."
            )
    return {name: choice for name, choice in by_node.items() if choice != "ask"}


def _fork_digest(
    place: bytes, changes: Changes | None, choices: Mapping[str, Choice], *, fresh: bool
) -> bytes:
    """Return a digest of what a caller asked for: two forks with the same id are the same run if their digests are equal."""
    if changes is None and not choices and not fresh:
        return sha256(place).digest()
    return sha256(place + msgspec.json.encode([changes, choices, fresh], order="sorted")).digest()


def new_id(luck: Random, flow: str) -> str:
    """Return a random id for a new run of a flow."""
    return f"{flow[:40]}-{luck.getrandbits(48):012x}"


def check_id(run_id: str) -> str:
    """Return the run id if it is safe in file names, URLs and shells. Raises `SettingError` otherwise."""
    if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        raise SettingError(
            f"{run_id!r} is not a valid run id: use up to 128 letters, digits, '.', '_' and '-', starting with a letter or digit"
        )
    return run_id


def _check_trace_parent(given: str | None) -> str | None:
    """Return the header `traceparent` if it is one (W3C Trace Context). Raises `SettingError` otherwise."""
    if given is not None and not (isinstance(given, str) and TRACE_PARENT.fullmatch(given)):
        raise SettingError(
            f"trace_parent={given!r} is not a traceparent: give a text such as "
            "'00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', or leave it out"
        )
    return given


def _check_on_exists(on_exists: Any, run_id: str | None) -> None:
    """Raise `SettingError` for an unknown value of `on_exists`, or for `use` without a run id."""
    if on_exists not in get_args(OnExists):
        raise SettingError(f"on_exists={on_exists!r} is not valid: give 'refuse' or 'use'")
    if on_exists == "use" and run_id is None:
        raise SettingError(
            "on_exists='use' needs a run_id: without one, every start records a new run. Give run_id=…, such as the id of "
            "the order or message that the run is for."
        )


def _check_seconds(seconds: float, name: str) -> float:
    """Return the seconds as a float if they are a positive, finite number. Raises `SettingError` otherwise."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 1e10:
        raise SettingError(f"{name}={seconds!r} is not a valid time: give a positive number of seconds")
    return float(seconds)


def check_queue(name: Any) -> str:
    """Return the name if a queue can have it: the rules are those of a run id. Raises `SettingError` otherwise."""
    if not isinstance(name, str) or not RUN_ID.fullmatch(name):
        raise SettingError(
            f"queue={name!r} is not a valid queue name: use up to 128 letters, digits, '.', '_' and '-', starting with a "
            "letter or digit"
        )
    return name


def _make_queue_options(queue: Any, priority: Any) -> dict[str, Any]:
    """Return the options of a run that name its queue and its priority there; defaults are left out."""
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > PRIORITY_MAX:
        raise SettingError(
            f"priority={priority!r} is not a valid priority: give a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}. Workers "
            "claim the runs with the highest priority first."
        )
    place: dict[str, Any] = {"queue": check_queue(queue)} if queue is not None else {}
    return place | ({"priority": priority} if priority else {})


def _make_begin_option(services: Services, begin_at: Any, run_id: str | None) -> dict[str, Any]:
    """Return the option of a run that says when it begins; nothing if it begins at once. Raises `SettingError` for a time without
    a time zone, for one in the past (unless the run exists already, because it was started before), and for one that is more
    than ten years away.
    """
    if begin_at is None:
        return {}
    if not isinstance(begin_at, datetime) or begin_at.utcoffset() is None:
        raise SettingError(
            f"begin_at={begin_at!r} is not a time with a time zone: give a datetime such as "
            "datetime.now(timezone.utc) + timedelta(hours=2)"
        )
    try:
        at, now = begin_at.timestamp(), services.store.now()
    except OverflowError:
        raise SettingError(f"begin_at={begin_at!r} is not a possible time") from None
    if at > now + BEGIN_MAX_S:
        raise SettingError(
            f"begin_at={begin_at.isoformat()} is more than ten years away. Give an earlier time."
        )
    if at < now:
        with suppress(RunNotFound):
            if run_id is not None:
                services.store.run(check_id(run_id))
                return {"begin_at": at}
        raise SettingError(
            f"begin_at={begin_at.isoformat()} has passed. Leave begin_at out to let the run begin at once, or give a later time."
        )
    return {"begin_at": at}


def _check_schedule(schedule: Any) -> Schedule | None:
    """Return the schedule that a caller has chosen. Raises `SettingError`."""
    if schedule is not None and schedule not in get_args(Schedule):
        near = did_you_mean(str(schedule), get_args(Schedule)) or ""
        raise SettingError(f"schedule={schedule!r} does not exist: give 'eager' or 'layered'{near}")
    return cast("Schedule | None", schedule)


def _make_limit_options(flow: Flow[Any], asked: Starting) -> dict[str, Any]:
    """Return the options of a run that say what it may cost, and which nodes may run: those that its plan brings, unless the
    caller gives others. Raises `SettingError`.
    """
    options = dict(flow.options)
    if asked.budget is not None:
        options["budget"] = plain(asked.budget)
    if asked.scope is not None:
        options["scope"] = check_scope(flow.definition, asked.scope)
    return options


def check_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    """Return a copy of the labels if they are pairs of short strings. Raises `SettingError` otherwise."""
    if labels is not None and not isinstance(labels, Mapping):
        raise SettingError(f"labels={labels!r} are not valid: give a dict of short strings")
    for key, value in (labels or {}).items():
        strings = isinstance(key, str) and isinstance(value, str)
        if not strings or not 0 < len(key) <= 128 or len(value) > 1024:
            raise SettingError(
                f"label {key!r}={value!r} is not valid: give a key of 1 to 128 characters and a value of up to 1024, both strings"
            )
    return dict(labels or {})


def input_digest(flow: Flow[Any], values: Mapping[str, Any]) -> bytes:
    """Return a digest of flow and input: two starts with the same run id are the same run if their digests are equal. The plan of
    a run is part of its input.
    """
    given: list[Any] = [flow.name, values]
    if flow.definition.plan:
        given.append(flow.definition.plan)
    return sha256(msgspec.json.encode(given, order="sorted")).digest()
