"""Commands that only record a request: cancel, pause, fork. They execute no node.

If another process executes the run, the request is put into the inbox of the run, which that process reads within a fifth of a
second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from holdfast.cli import flow_files, options, screen, stores
from holdfast.cli.app import OPERATE, command
from holdfast.cli.execution import name_the_file
from holdfast.cli.suggestions import command_line, line, resume_line_of
from holdfast.core.run_state import ENDED
from holdfast.errors import FlowNotFound, HoldfastError, SettingError
from holdfast.reading.reader import Reader
from holdfast.reading.views import Run, held_by
from holdfast.runtime.engine import Engine


@command(OPERATE)
def cancel(
    run_id: options.RunId,
    file: options.File = None,
    reason: options.Reason = None,
    by: options.By = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Cancel a run for good, and stop its running nodes."""
    _ask(
        run_id,
        file,
        store,
        as_json,
        "cancelled",
        lambda engine: engine.cancel(run_id, reason, by=options.resolve_actor(by)),
    )


@command(OPERATE)
def pause(
    run_id: options.RunId,
    file: options.File = None,
    reason: options.Reason = None,
    by: options.By = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Pause a run: no node of it starts until it is resumed.

    Nodes that are running may finish.
    """
    _ask(
        run_id,
        file,
        store,
        as_json,
        "paused",
        lambda engine: engine.pause(run_id, reason, by=options.resolve_actor(by)),
    )


def _ask(
    run_id: str,
    file: str | None,
    store: str | None,
    as_json: bool,
    wanted: str,
    ask: Callable[[Engine], Awaitable[Run[Any]]],
) -> None:
    crashed_in: list[str] = []

    def look(reader: Reader) -> None:
        before = reader.store.run(run_id)
        if before.status not in ENDED and not before.held and reader.diagnose(run_id).crashed:
            crashed_in.extend(before.active)

    commands = command_line(file=file, store=store)

    def after(reader: Reader, asked: Run[Any]) -> tuple[str | None, str]:
        row = reader.store.run(run_id)
        resumes = resume_line_of(reader, run_id, commands) if row.status == "paused" else ""
        return held_by(row), resumes

    run, (holder, resumes) = _recorded(run_id, file, store, ask, look=look, after=after)
    if as_json:
        screen.say_json({"id": run.id, "status": run.status, "requested": wanted, "held_by": holder})
    elif run.status == wanted:
        screen.say((wanted, screen.STYLES[wanted]), f"  {run_id}")
        if crashed_in:
            screen.say(
                f"  the process of the run had crashed in node {' and '.join(crashed_in)}; this is now in the log"
            )
        if wanted == "paused":
            screen.say(f"  resume it with: {resumes}")
    elif holder is not None:
        screen.say("asked  ", f"{holder}, which executes {run_id}: the run will be {wanted} within a second")
        screen.say(f"  check with: {line('show', run_id, store=store)}")
    else:
        screen.say(
            run.status, f"  {run_id}: the request is stored; the run will be {wanted} when it is resumed"
        )


@command(OPERATE)
def fork(
    target: options.RunAt,
    file: options.File = None,
    edit: options.Edit = None,
    run_id: options.NewRunId = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="NAME=VALUE",
            help="A label of the new run; repeatable. Default: the labels of the run that it is forked from.",
        ),
    ] = None,
    by: options.By = None,
    reason: options.Reason = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Make a new run from a checkpoint of another run.

    The new run has the history of the other run up to that checkpoint (default: the latest) and is independent from then on.
    Prints the id of the new run, which `holdfast resume` executes. Only --edit needs the flow.
    """
    fields, labels = options.read_fields(edit, "--edit"), options.read_pairs(label or [], "--label")

    commands = command_line(file=file, store=store)
    made, resumes = _recorded(
        target.partition("@")[0],
        file,
        store,
        lambda engine: engine.fork(
            target,
            edit=fields,
            run_id=run_id,
            labels=labels or None,
            by=options.resolve_actor(by),
            reason=reason,
        ),
        needs_flow=fields is not None,
        after=lambda reader, forked: resume_line_of(reader, forked, commands),
    )
    if as_json:
        screen.say_json({"id": made, "parent": target, "resumes": resumes})
        return
    screen.say(("forked  ", "bold green"), made, (f"  from {target}", "dim"))
    screen.say("  resume it with: ", (resumes, "bold"))


def _recorded(
    run_id: str,
    file: str | None,
    store: str | None,
    use: stores.Use[Any],
    *,
    needs_flow: bool = True,
    look: Callable[[Reader], None] | None = None,
    after: Callable[[Reader, Any], Any],
) -> tuple[Any, Any]:
    """Record a request with an engine. `look` is called with a reader before the request, `after` with a reader and the result
    of the request. Returns the result of the request and that of `after`.
    """
    with stores.reading(store) as reader:
        flow_name = reader.store.run(run_id).flow
        try:
            flows = flow_files.flows_for(file, flow_name)
        except HoldfastError:
            if needs_flow or file is not None:
                raise
            flows = []  # only the suggested commands would be better with the flow
        if look is not None:
            look(reader)
        try:
            recorded = stores.execute(reader.store, use, {"flows": flows})
        except FlowNotFound as missing:
            raise SettingError(name_the_file(missing, file, store)) from missing
        reader.flows = {flow.name: flow for flow in flows}
        return recorded, after(reader, recorded)
