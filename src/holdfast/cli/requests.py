"""Commands that only record what somebody wants of a run: cancel, pause, fork. Nothing is executed by them.

A run that another process executes gets the wish left in its inbox, where that process finds it within a fifth of a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from holdfast.cli import flow_files, options, screen, stores
from holdfast.cli.app import OPERATE, command
from holdfast.cli.execution import name_the_file
from holdfast.cli.standing import line, look
from holdfast.errors import FlowNotFound, SettingError
from holdfast.reading.views import Run
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
    """Call a run off, for good. Running nodes are stopped."""
    _ask(
        "cancel",
        run_id,
        file,
        store,
        as_json,
        "cancelled",
        lambda engine: engine.cancel(run_id, reason, by=options.who(by)),
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
    """Start nothing new in a run until it is resumed.

    Running nodes end.
    """
    _ask(
        "pause",
        run_id,
        file,
        store,
        as_json,
        "paused",
        lambda engine: engine.pause(run_id, reason, by=options.who(by)),
    )


def _ask(
    verb: str,
    run_id: str,
    file: str | None,
    store: str | None,
    as_json: bool,
    wanted: str,
    ask: Callable[[Engine], Awaitable[Run[Any]]],
) -> None:
    async def use(engine: Engine) -> tuple[Run[Any], str | None, list[str]]:
        before = engine.store.run(run_id)
        was_cut = look(engine, before).cut
        run = await ask(engine)
        row = engine.store.run(run_id)
        holder = row.holder.describe() if row.held and row.holder is not None else None
        return run, holder, list(before.active) if was_cut else []

    run, holder, was_cut_in = _recorded(verb, run_id, file, store, use)
    if as_json:
        screen.say_json({"id": run.id, "status": run.status, "requested": wanted, "held_by": holder})
    elif run.status == wanted:
        screen.say((wanted, screen.STYLES[wanted]), f"  {run_id}")
        if was_cut_in:
            screen.say(f"  its process had died in {' and '.join(was_cut_in)}; that is recorded with it")
        if wanted == "paused":
            screen.say(f"  carry it on with: {line('resume', run_id, file=file, store=store, executes=True)}")
    elif holder is not None:
        screen.say("asked  ", f"{holder}, which executes {run_id}: it will be {wanted} within a second")
        screen.say(f"  see: {line('show', run_id, store=store)}")
    else:
        screen.say(run.status, f"  {run_id}: it will be {wanted} when it is carried on")


@command(OPERATE)
def fork(
    target: options.RunAt,
    file: options.File = None,
    edit: options.Edit = None,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--run-id", metavar="ID", help="The new run's id. Default: the flow's name and a number."
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="Instead of the parent's labels; repeatable."),
    ] = None,
    by: options.By = None,
    reason: options.Reason = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Make a new run from a checkpoint of another.

    It shares the history up to there (default: the latest checkpoint) and is independent from then on. Prints its id;
    `resume` carries it on. Only --edit needs the flow.
    """
    fields, labels = options.read_fields(edit, "--edit"), options.read_pairs(label or [], "--label")

    async def use(engine: Engine) -> str:
        return await engine.fork(
            target, edit=fields, run_id=run_id, labels=labels or None, by=options.who(by), reason=reason
        )

    made = _recorded("fork", target.partition("@")[0], file, store, use, needs_flow=fields is not None)
    carries_on = line("resume", made, file=file, store=store, executes=True)
    if as_json:
        screen.say_json({"id": made, "parent": target, "carry_on": carries_on})
        return
    screen.say(("forked  ", "bold green"), made, (f"  from {target}", "dim"))
    screen.say("  carry it on with: ", (carries_on, "bold"))


def _recorded(
    verb: str,
    run_id: str,
    file: str | None,
    store: str | None,
    use: stores.Use[Any],
    *,
    needs_flow: bool = True,
) -> Any:
    wanted = needs_flow or file is not None
    flows = flow_files.flows_for(file, stores.flow_of(store, run_id)) if wanted else []
    try:
        return stores.execute(store, use, {"flows": flows}, known=wanted)
    except FlowNotFound as missing:
        raise SettingError(name_the_file(missing, verb)) from missing
