"""Commands that execute a run: run, resume, retry, skip. They show progress, and at the end the status of the run and its reason.

Ctrl-C and SIGTERM stop the run in order; the last line then says how to resume it. The result is on stdout, progress on stderr.
With `--no-execute`, resume, retry and skip only leave a request, which a worker carries out; with `--where`, one for every run
that matches (`bulk`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import bulk, flow_files, options, screen, stores
from holdfast.cli.app import EXECUTE, command, tell
from holdfast.cli.dry_run import look_ahead
from holdfast.cli.exits import OF_STATUSES, Exit
from holdfast.cli.faults import say_where
from holdfast.cli.progress import Display, shown
from holdfast.cli.suggestions import (
    command_line,
    line,
    resume_line,
    say_commands,
    say_missing_workers,
    say_remedies,
    typed_again,
    typed_with_file,
    worker_line,
)
from holdfast.core import requests
from holdfast.core.graph import Flow
from holdfast.core.run_state import FINAL
from holdfast.core.situation import RUN_BASE_WANTED
from holdfast.core.verb_options import read_options
from holdfast.errors import (
    CapabilityMissing,
    FlowNotFound,
    GraphError,
    RunCancelled,
    RunFailed,
    RunNotFound,
    SettingError,
    StateError,
)
from holdfast.reading import history, words
from holdfast.reading.diagnosis import REFUSED, Diagnosis
from holdfast.reading.known_flows import find_flow
from holdfast.reading.reader import Reader
from holdfast.reading.views import Run, held_by, name_status, without_misfit
from holdfast.runtime import blocking
from holdfast.runtime.engine import Engine
from holdfast.runtime.preparation import OtherCode
from holdfast.runtime.settings import Durability
from holdfast.storage.contract import RunRow, RunStatus

_STATE_LINES_MAX = 30
_STATE_WIDTH_MAX = 200


class Errand(msgspec.Struct, kw_only=True):
    """What a call of run, resume, retry or skip asks for: the verb, the run and the options."""

    verb: str
    run_id: str
    flows: list[flow_files.AnyFlow]
    file: str | None
    store: str | None
    as_json: bool
    debug: bool = False
    grace: float | None = None
    run_base: str | None = None
    resources: str | None = None
    durability: Durability | None = None
    create: bool = False
    has_plan: bool = False
    """True if the command was given a plan, besides the file."""


WhenDurable = Annotated[
    Durability | None,
    typer.Option(
        "--durability",
        help="When the result of a node is durable: before the next node starts (sync), while the next "
        "node runs (async), or when the run stops (exit). Default: sync.",
    ),
]


@command(EXECUTE)
@options.of(requests.Start, without=options.NOT_TYPED)
def run(
    file: options.FlowFile,
    given: options.Input = None,
    run_id: options.NewRunId = None,
    label: options.Label = None,
    *,
    said: options.Said,
    durability: WhenDurable = None,
    grace: options.Grace = None,
    run_base: options.RunBase = None,
    resources: options.Resources = None,
    by: options.By = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Start a run of a flow and execute it.

    Returns when the run has ended or needs an answer, a signal or a resume. If a run with this id, flow and input exists already,
    that run is resumed, or its result printed if it is completed.
    """
    flow = flow_files.load_flow(file)
    chosen = run_id if run_id is not None else f"{flow.name[:40]}-{secrets.token_hex(4)}"
    value, labels = options.read_fields(given, "--input"), options.read_pairs(label or [], "--label")
    require_fit(flow, value)
    options.check_timeout(said["timeout"])
    errand = Errand(
        verb="run",
        run_id=chosen,
        flows=[flow],
        file=file,
        store=store,
        as_json=as_json,
        debug=debug,
        grace=grace,
        run_base=run_base,
        resources=resources,
        durability=durability,
        create=True,
    )
    return execute(
        errand,
        lambda engine: engine.run(
            flow, value, run_id=chosen, labels=labels, **said, by=options.resolve_actor(by)
        ),
    )


Validate = Annotated[
    str | None,
    typer.Option(
        "--validate",
        metavar="FILE.py:FUNCTION",
        help="Call this function with the state first; if it returns a message, the resume is refused with that message.",
    ),
]


@command(EXECUTE)
@options.of(requests.Resume)
def resume(
    target: options.RunAtOrWhere = None,
    file: options.File = None,
    where: options.Where = None,
    dry_run: options.DryRun = False,
    *,
    said: options.Said,
    validate: Validate = None,
    expects: options.Expects = None,
    no_execute: options.NoExecute = False,
    grace: options.Grace = None,
    run_base: options.RunBase = None,
    resources: options.Resources = None,
    by: options.By = None,
    reason: options.Reason = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Resume a run where it stopped, or from an earlier checkpoint.

    Nodes that completed before that place do not run again. Without options, a run that failed, crashed or was stopped continues
    where it stopped.
    """
    actor = options.resolve_actor(by)
    elsewhere = {"--validate": validate, "--grace": grace, "--run-base": run_base, "--resources": resources}
    matching = bulk.Matching(where=where or [], dry_run=dry_run, store=store, as_json=as_json)
    of_one = options.of_one_run(requests.Resume, said)
    if bulk.chooses(target, matching, {**of_one, "--expects": expects, **elsewhere}):
        request = requests.Resume(**said, by=actor, reason=reason)
        _require_one_place(request)
        return bulk.ask_all(request, matching)
    assert target is not None
    check = flow_files.load_function(validate, "--validate") if validate is not None else None
    given = {**said, "validate": check, "reason": reason}
    if dry_run:
        return look_ahead("resume", target, given, file=file, store=store, as_json=as_json, run_base=run_base)
    errand = _errand(
        "resume", target.partition("@")[0], file, store, as_json, debug, grace, run_base, resources
    )

    async def ask(engine: Engine) -> Run[Any]:
        return await engine.resume(target, **given, by=actor, execute=not no_execute, expects=expects)

    return leave(errand, ask, elsewhere) if no_execute else execute(errand, ask)


def _require_one_place(request: requests.Resume) -> None:
    """Refuse several places to resume from at once, rather than by the refusals of all runs."""
    if len(request.places) > 1:
        chosen = " and ".join(f"--{name.replace('_', '-')}" for name in request.places)
        raise SettingError(f"choose one of {chosen}: each names a different place to resume from")


@command(EXECUTE)
@options.of(requests.Retry)
def retry(
    run_id: options.RunIdOrWhere = None,
    node: Annotated[str | None, options.argument(requests.Retry, "node")] = None,
    file: options.File = None,
    *,
    said: options.Said,
    where: options.Where = None,
    dry_run: options.DryRun = False,
    expects: options.Expects = None,
    no_execute: options.NoExecute = False,
    grace: options.Grace = None,
    run_base: options.RunBase = None,
    resources: options.Resources = None,
    by: options.By = None,
    reason: options.Reason = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Run failed, crashed or waiting nodes again, and continue the run.

    Child runs because of which such a node failed are resumed with it.
    """
    if node is not None and file is None and (".py" in node or "/" in node):
        node, file = None, node  # `holdfast retry r1 flow.py`
    actor, elsewhere = (
        options.resolve_actor(by),
        {"--grace": grace, "--run-base": run_base, "--resources": resources},
    )
    matching = bulk.Matching(where=where or [], dry_run=dry_run, store=store, as_json=as_json)
    of_one = options.of_one_run(requests.Retry, said)
    if bulk.chooses(run_id, matching, {"--expects": expects, **of_one, **elsewhere}):
        request = requests.Retry(**read_options(requests.Retry, said), by=actor, reason=reason)
        return bulk.ask_all(request, matching)
    assert run_id is not None
    given = {"node": node, **said, "reason": reason}
    if dry_run:
        return look_ahead("retry", run_id, given, file=file, store=store, as_json=as_json, run_base=run_base)
    errand = _errand("retry", run_id, file, store, as_json, debug, grace, run_base, resources)

    async def ask(engine: Engine) -> Run[Any]:
        return await engine.retry(run_id, **given, by=actor, execute=not no_execute, expects=expects)

    return leave(errand, ask, elsewhere) if no_execute else execute(errand, ask)


@command(EXECUTE)
@options.of(requests.Skip)
def skip(
    run_id: options.RunId,
    node: Annotated[str, options.argument(requests.Skip, "node")],
    file: options.File = None,
    update: Annotated[str | None, options.option(requests.Skip, "update")] = None,
    *,
    said: options.Said,
    dry_run: options.DryRunOfOne = False,
    expects: options.Expects = None,
    no_execute: options.NoExecute = False,
    grace: options.Grace = None,
    run_base: options.RunBase = None,
    resources: options.Resources = None,
    by: options.By = None,
    reason: options.Reason = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Continue a run without a failed, crashed or waiting node.

    `--update` gives the result that the node would have returned.
    """
    given: dict[str, Any] = {
        "node": node,
        "update": stores.read_update(update, run_id, store),
        **said,
        "reason": reason,
    }
    if dry_run:
        return look_ahead("skip", run_id, given, file=file, store=store, as_json=as_json, run_base=run_base)
    errand = _errand("skip", run_id, file, store, as_json, debug, grace, run_base, resources)
    actor = options.resolve_actor(by)

    async def ask(engine: Engine) -> Run[Any]:
        try:
            return await engine.skip(run_id, **given, by=actor, execute=not no_execute, expects=expects)
        except StateError as misfit:
            if all(isinstance(flow, Flow) for flow in errand.flows):
                raise
            raise SettingError(
                f"--update does not fit: {misfit}. Give the whole output of the task, as its capability returns it; nothing was "
                "changed"
            ) from misfit

    return (
        leave(errand, ask, {"--grace": grace, "--run-base": run_base, "--resources": resources})
        if no_execute
        else execute(errand, ask)
    )


def _errand(
    verb: str,
    run_id: str,
    file: str | None,
    store: str | None,
    as_json: bool,
    debug: bool,
    grace: float | None,
    run_base: str | None,
    resources: str | None,
) -> Errand:
    flows = flow_files.flows_for(file, stores.flow_of(store, run_id))
    return Errand(
        verb=verb,
        run_id=run_id,
        flows=flows,
        file=file,
        store=store,
        as_json=as_json,
        debug=debug,
        grace=grace,
        run_base=run_base,
        resources=resources,
    )


def require_fit(flow: Flow[Any], given: dict[str, Any] | None) -> None:
    """Raise `SettingError` for an input that does not fit the state of the flow."""
    try:
        flow.state.dump(given or {})
    except StateError as misfit:
        told = str(misfit) if str(misfit).endswith("?") else f"{misfit}."
        fields = ", ".join(flow.definition.state) or "any fields"
        raise SettingError(
            f"the input does not fit flow {flow.name!r}: {told} The state of the flow has {fields}; give the input as one JSON "
            "object: --input JSON, or --input @FILE."
        ) from misfit


# --- leaving a request -------------------------------------------------------------------------------


def leave(errand: Errand, ask: Callable[[Engine], Awaitable[Run[Any]]], elsewhere: Mapping[str, Any]) -> int:
    """Leave a request for a worker, and print how to see what became of it. `elsewhere` are options, with their values, that only
    a process which executes the run could use.
    """
    given = [name for name, value in elsewhere.items() if value is not None]
    if given:
        raise SettingError(
            f"{' and '.join(given)} cannot be combined with --no-execute, because a worker executes the run; leave it out"
        )
    with stores.reading(errand.store) as reader:
        was_over = reader.store.run(errand.run_id).status in FINAL
        try:
            run = stores.execute(reader.store, ask, {"flows": errand.flows})
        except FlowNotFound as missing:
            raise SettingError(name_the_file(missing, errand.file, errand.store)) from missing
        row = reader.store.run(errand.run_id)
        _say_left(reader, row, errand, repeated=run.repeated, was_over=was_over)
    return Exit.OK


def _say_left(reader: Reader, row: RunRow, errand: Errand, *, repeated: bool, was_over: bool) -> None:
    is_over, holder = row.status in FINAL, held_by(row)
    if errand.as_json:
        executes = None if is_over else worker_line(reader, row.run_id, errand.store)
        facts = {"id": row.run_id, "status": row.status, "requested": None if was_over else errand.verb}
        screen.say_json(facts | {"repeated": repeated, "held_by": holder, "executes": executes})
        return
    if is_over:
        told = (
            f"nothing is left to {errand.verb}"
            if was_over
            else f"asked to {errand.verb}, and has ended since"
        )
        screen.say((row.status, screen.STYLES[row.status]), f"  {row.run_id}: {told}")
        return
    does = "has claimed" if reader.is_only_claimed(row.run_id) else "executes"
    who = f"{holder}, which {does} the run," if holder is not None else "a worker"
    before = " (it was asked before)" if repeated else ""
    screen.say(
        ("asked  ", "bold green"), f"{row.run_id}{before}: {errand.verb}; {who} carries the request out"
    )
    screen.say(f"  see what became of it: {line('requests', row.run_id, store=errand.store)}")
    if holder is None:
        say_missing_workers(reader, [(row.run_id, row.flow, row.queue)], errand.store)


# --- executing ---------------------------------------------------------------------------------------


class _Outcome(msgspec.Struct):
    """The run and its diagnosis, as they were read before the engine was closed."""

    run: Run[Any] | None = None
    found: Diagnosis | None = None
    raised: BaseException | None = None
    """The exception for which the run failed while this command executed it."""
    status_before: RunStatus | None = None
    """The status of the run before this command began; None if there was no such run."""
    joined_at: int | None = None
    """The last event when this command began, if another process executes the run and this command only waits for it."""
    left_with: str | None = None
    """The process that continues to execute the run after this command exits; None if there is none."""
    has_plan: bool = False
    """True if it is the run of a plan."""
    caught: frozenset[str] = frozenset()
    """The nodes whose failures edges of the plan take."""
    refused: OtherCode | None = None
    """Why the run was not executed, if its flow has changed."""
    signalled: Exit | None = None
    """The exit code if SIGINT or SIGTERM ended this command; otherwise None."""


def execute(errand: Errand, verb: Callable[[Engine], Awaitable[Run[Any]]]) -> int:
    """Execute a run as a command was asked to, show progress, and print how the run ended or why it stopped. Returns the exit
    code.
    """
    stores.require_here(errand.store, errand.verb, _ways_there(errand))
    outcome = _Outcome()
    display = Display(errand.run_id, quiet=errand.as_json)
    engine_options: blocking.Options = {
        "flows": errand.flows,
        "grace": errand.grace,
        "durability": errand.durability,
        "run_base": errand.run_base,
        "resources": flow_files.load_resources(errand.resources),
    }

    async def use(engine: Engine) -> None:
        _add_neighbours(engine, errand)
        _begin(engine, errand, outcome)
        try:
            await shown(engine, errand.run_id, display, lambda: perform(engine), joined_at=outcome.joined_at)
        except asyncio.CancelledError:
            if outcome.joined_at is not None and outcome.run is None:
                outcome.left_with = held_by(engine.store.run(errand.run_id))
            raise

    commands = command_line(file=errand.file, store=errand.store, run_base=errand.run_base)

    async def perform(engine: Engine) -> None:
        try:
            run = await verb(engine)
        except (RunFailed, RunCancelled) as ended:
            run, outcome.raised = ended.run, ended.__cause__
        except OtherCode as refused:
            outcome.refused = refused
            outcome.found = engine.reader.diagnose(errand.run_id, commands)
            return
        outcome.run = _as_plain(engine, run)
        outcome.has_plan = not isinstance(engine.flows.get(run.flow), Flow | None)
        if run.warnings and (flow := find_flow(engine.store, engine.flows, engine.store.run(run.id))):
            outcome.caught = frozenset(name for name, node in flow.definition.nodes.items() if node.on_error)
        outcome.found = engine.reader.diagnose(errand.run_id, commands)

    with screen.shielded(json_only=errand.as_json):
        try:
            # A command that may not create the store has already read the run's flow from it.
            stores.execute(errand.store, use, engine_options, create=errand.create, known=not errand.create)
        except FlowNotFound as missing:
            raise SettingError(name_the_file(missing, errand.file, errand.store)) from missing
        except KeyboardInterrupt:
            outcome.signalled = Exit.INTERRUPTED
        except SystemExit:
            outcome.signalled = Exit.TERMINATED
        finally:
            display.close()
    if outcome.refused is not None and outcome.found is not None:
        return _say_refused(errand, outcome.refused, outcome.found)
    with screen.unread():
        conclude(errand, outcome)
    return int(outcome.signalled or (OF_STATUSES[outcome.run.status] if outcome.run is not None else Exit.OK))


def _say_refused(errand: Errand, refused: OtherCode, found: Diagnosis) -> int:
    """Print why a run was not executed whose flow has changed, and the commands with which it continues."""
    tell(refused, Exit.REFUSED, debug=errand.debug, as_json=errand.as_json, remedies=found.remedies)
    if not errand.as_json:
        with screen.unread(err=True):
            if found.kind not in REFUSED:  # it may name a worker that continues the run
                screen.say(f"  {found.reason}", err=True)
            say_remedies(found.remedies, err=True)
    return Exit.REFUSED


def _ways_there(errand: Errand) -> str:
    """Return what to do instead if the store is on a server."""
    if errand.verb != "run":
        return f"Leave the request for a worker of the server: {typed_again()} --no-execute"
    if errand.has_plan:
        return f"Record the run for a worker of the server: {typed_again()} --no-execute"
    begin = line("start", errand.file or "FILE.py", store=errand.store)
    return f"Record the run for a worker of the server: {begin}"


def _add_neighbours(engine: Engine, errand: Errand) -> None:
    """Let the engine know all flows of the file, or of the project, because the nodes of the run may call them; and which file
    each flow is from.
    """
    for other in flow_files.neighbours(errand.file):
        if other.name not in engine.flows:
            with suppress(SettingError, GraphError):  # the engine has no executor for one of its nodes
                engine.add(other)
    if errand.file is not None:
        whole = flow_files.absolute(flow_files.split(errand.file)[0])
        engine.flow_files.update(dict.fromkeys(engine.flows, whole))
        named = flow_files.absolute(errand.file)
        engine.flow_files.update({flow.name: named for flow in errand.flows})


def _begin(engine: Engine, errand: Errand, outcome: _Outcome) -> None:
    """Remember the status that the run has now, and print notes that the user needs before it is executed."""
    try:
        row = engine.store.run(errand.run_id)
    except RunNotFound:
        return
    outcome.status_before = row.status
    outcome.joined_at = row.seq if errand.verb == "run" and row.held else None
    if outcome.joined_at is not None and not errand.as_json:
        held = f"{held_by(row)} executes this run; this command waits for the run, and Ctrl-C ends only this command"
        screen.say(("note: ", "yellow"), held, err=True)
        return
    bare = errand.run_base is None and not errand.as_json and row.status not in FINAL
    if bare and not engine.settings.run_base and _wants_base(engine, row):
        screen.say(
            ("note: ", "yellow"),
            "the run was created with a run base (a folder for receipts and artifacts), but none is set now, so no such files "
            "are written; name the folder with --run-base DIR",
            err=True,
        )


def _wants_base(engine: Engine, row: RunRow) -> bool:
    return bool(history.load(engine.store, row.run_id, row=row).options.get(RUN_BASE_WANTED))


def _as_plain(engine: Engine, run: Run[Any]) -> Run[Any]:
    """Return the run with its state as plain data, and with the process that holds it now."""
    run = without_misfit(run)
    flow = find_flow(engine.store, engine.flows, engine.store.run(run.id))
    state = run.state
    if flow is not None and not isinstance(state, dict):
        state = flow.state.dump(state)
    return msgspec.structs.replace(run, state=state, held_by=held_by(engine.store.run(run.id)))


def name_the_file(missing: FlowNotFound, file: str | None, store: str | None) -> str:
    """Return the message for a run whose flow is neither in `file` nor in the files of the project."""
    if isinstance(missing, CapabilityMissing):
        return str(missing)
    known = f" Known flows: {', '.join(map(repr, missing.known))}." if missing.known else ""
    run_id = missing.run_id or ""
    recorded = stores.read(store, lambda reader: history.flow_file(reader.store, run_id))
    way_out = typed_with_file(recorded, in_place_of=file)
    return f"run {run_id!r} belongs to flow {missing.flow!r}, which is not known here.{known} {way_out}"


def conclude(errand: Errand, outcome: _Outcome) -> None:
    """Print how the run ended or why it stopped: the result on stdout, remedies on stderr."""
    run, found = outcome.run, outcome.found
    if outcome.left_with is not None:
        screen.say(
            ("stopped waiting. ", "yellow"),
            f"{outcome.left_with} still executes the run. See its progress with:",
            err=True,
        )
        screen.say(f"  {line('show', errand.run_id, store=errand.store)}", err=True)
        return
    if run is None or found is None:  # a second signal ended the command before the run could be read
        screen.say(("stopped at once. ", "yellow"), "Resume the run with:", err=True)
        typed = resume_line(errand.run_id, file=errand.file, store=errand.store, run_base=errand.run_base)
        screen.say(f"  {typed}", err=True)
        return
    if errand.as_json:
        screen.say_json(
            msgspec.to_builtins(run, str_keys=True, enc_hook=str)
            | {"reason": found.reason, "remedies": found.remedies}
        )
        return
    status = "crashed" if found.crashed else name_status(run)
    tries = sum(node.tries for node in run.nodes.values())
    passed = [node for node in run.nodes.values() if node.status == "skipped" and not node.tries]
    work = f"{screen.count(tries, 'attempt')} at {screen.count(len(run.nodes) - len(passed), 'node')}"
    work += f", {len(passed)} skipped" if passed else ""
    spent = f", {words.cost(run.cost)}" if words.cost(run.cost) else ""
    if words.cost(run.children_cost):
        spent += f", its child runs {words.cost(run.children_cost)}"
    facts = f"{run.id}  {work}, {screen.duration(run.active_s)}{spent}"
    well = run.status == "completed"
    facts += _of_earlier(errand, outcome, run)
    screen.say((status, f"bold {screen.STYLES.get(run.status, '')}".strip()), f"  {facts}", err=not well)
    for warned in run.warnings:
        fault = screen.one_line(warned.failure.describe(), 300)
        how = words.handled(is_caught=warned.node in outcome.caught)
        screen.say(("  warning: ", "yellow"), f"node {warned.node} failed, {how}: {fault}", err=True)
    if well:
        _say_state(run, errand.store, outcome)
        return
    screen.say(f"  {found.reason}", err=True)
    if run.status == "failed":
        say_where(run.error, debug=errand.debug, raised=outcome.raised, err=True)
    if run.held_by is not None:
        screen.say(
            "  The request is in the inbox of the run; the process that executes the run reads it within a second.",
            err=True,
        )
    say_remedies(found.remedies, err=True)
    if errand.verb == "run" and outcome.status_before == "failed":
        say_commands(_after_an_earlier_failure(errand, run), err=True)


def _of_earlier(errand: Errand, outcome: _Outcome, run: Run[Any]) -> str:
    """Return the words to add if the run had ended before this command began, or if it completed after the command was told to
    stop; otherwise an empty text.
    """
    if run.status == "completed" and outcome.status_before == "completed":
        return "; the run was completed already, so nothing was executed"
    if errand.verb == "run" and outcome.status_before == "failed":
        return f"; the run failed before, at {screen.when(run.updated_at)}, so nothing was executed"
    if run.status != "completed" or outcome.signalled is None:
        return ""
    by = "Ctrl-C" if outcome.signalled is Exit.INTERRUPTED else "SIGTERM"
    return f"; the run completed within the grace period after {by}, and the exit code is {int(outcome.signalled)}"


def _after_an_earlier_failure(errand: Errand, run: Run[Any]) -> list[tuple[str, str]]:
    """Return more commands to suggest to a user who called `run` for a run that had failed before."""
    commands = command_line(file=errand.file, store=errand.store, run_base=errand.run_base)
    node = (run.failed_node,) if run.failed_node is not None else ()
    is_kept = run.error is not None and run.error.step
    fresh = ("--fresh",) if is_kept else ()
    retry = commands.line("retry", run.id, *node, *commands.file_words(), *fresh, run_base=errand.run_base)
    words = "call its steps again" if is_kept else "try the failed node again"
    again = typed_again(without="--run-id")
    return [(retry, f"fix the cause, then {words}"), (again, "start a new run")]


def _say_state(run: Run[Any], store: str | None, outcome: _Outcome) -> None:
    """Print the state of a run; of the run of a plan, the outputs, because the rest was in the document."""
    whole = screen.json_text(run.state["outputs"] if outcome.has_plan else run.state)
    lines = whole.splitlines()
    shown_lines = [screen.one_line(found, _STATE_WIDTH_MAX) for found in lines[:_STATE_LINES_MAX]]
    for shown_line in shown_lines:
        screen.say(shown_line)
    if shown_lines != lines:
        how_long = f"{screen.count(len(lines), 'line')}, {screen.size(len(whole.encode()))}"
        whole_state = line("state", run.id, store=store)
        what = "all outputs are in the state" if outcome.has_plan else "the whole state"
        screen.say((f"… shortened; {what} ({how_long}): {whole_state}", "dim"))
