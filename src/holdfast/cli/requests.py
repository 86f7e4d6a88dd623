"""Commands that only record a request: cancel, pause, edit, fork; and requests, which lists what became of them. They execute no
node.

If another process executes the run, the request is put into the inbox of the run, which that process reads within a fifth of a
second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import bulk, flow_files, options, screen, stores
from holdfast.cli.app import LOOK, OPERATE, command
from holdfast.cli.dry_run import look_ahead
from holdfast.cli.execution import name_the_file
from holdfast.cli.exits import Exit
from holdfast.cli.suggestions import command_line, line, resume_line_of, say_missing_workers, say_request
from holdfast.core import events
from holdfast.core.requests import Cancel, Edit, Fork, Pause
from holdfast.core.run_state import ENDED
from holdfast.errors import FlowNotFound, HoldfastError, SettingError, did_you_mean
from holdfast.reading import history
from holdfast.reading.forks import ForkPlan, Missed, list_missed
from holdfast.reading.reader import Reader
from holdfast.reading.remedies import CommandLine
from holdfast.reading.views import Run, held_by
from holdfast.runtime.engine import Engine


@command(OPERATE)
@options.of(Cancel)
def cancel(
    run_id: options.RunIdOrWhere = None,
    file: options.File = None,
    *,
    said: options.Said,
    where: options.Where = None,
    dry_run: options.DryRun = False,
    expects: options.Expects = None,
    reason: options.Reason = None,
    by: options.By = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Cancel a run for good, and stop its running nodes."""
    actor = options.resolve_actor(by)
    matching = bulk.Matching(where=where or [], dry_run=dry_run, store=store, as_json=as_json)
    if bulk.chooses(run_id, matching, {**options.of_one_run(Cancel, said), "--expects": expects}):
        return bulk.ask_all(Cancel(**said, by=actor, reason=reason), matching)
    assert run_id is not None
    if dry_run:
        given = {**said, "reason": reason}
        return look_ahead("cancel", run_id, given, file=file, store=store, as_json=as_json)
    _ask(
        run_id,
        file,
        store,
        as_json,
        "cancelled",
        lambda engine: engine.cancel(run_id, reason, **said, by=actor, expects=expects),
    )
    return Exit.OK


@command(OPERATE)
@options.of(Pause)
def pause(
    run_id: options.RunId,
    file: options.File = None,
    *,
    said: options.Said,
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
        lambda engine: engine.pause(run_id, reason, **said, by=options.resolve_actor(by)),
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
        facts = {"id": run.id, "status": run.status, "pausing": run.pausing, "requested": wanted}
        screen.say_json(facts | {"held_by": holder})
    elif run.status == wanted:
        screen.say((wanted, screen.STYLES[wanted]), f"  {run_id}")
        if crashed_in:
            screen.say(
                f"  the process of the run had crashed in node {' and '.join(crashed_in)}; this is now in the log"
            )
        if wanted == "paused":
            screen.say(f"  resume it with: {resumes}")
    elif run.pausing and wanted == "paused":
        going = [name for name, node in run.nodes.items() if node.status == "running"]
        ended = f"{' and '.join(going) or 'its nodes'} {'has' if len(going) == 1 else 'have'} ended"
        screen.say(
            ("pausing", screen.STYLES["pausing"]),
            f"  {run_id}: the pause is recorded, and the run is paused when {ended}",
        )
        screen.say(f"  check with: {line('show', run_id, store=store)}")
    elif holder is not None:
        screen.say(
            "asked  ",
            f"{holder}, which executes {run_id}; it has not recorded the request yet, perhaps because of a node that still runs",
        )
        stopped = "ended" if wanted == "paused" else "stopped"
        screen.say(f"  the run will be {wanted} when that is recorded and its running nodes have {stopped}")
        screen.say(f"  check with: {line('show', run_id, store=store)}")
    else:
        screen.say(
            run.status, f"  {run_id}: the request is stored; the run will be {wanted} when it is resumed"
        )


@command(OPERATE)
@options.of(Edit, without=("edit",))
def edit(
    run_id: options.RunId,
    fields: Annotated[str, options.argument(Edit, "edit", "A JSON object.")],
    file: options.File = None,
    *,
    said: options.Said,
    by: options.By = None,
    reason: options.Reason = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Change fields of the state of a run that is not running.

    The run may wait, be paused, interrupted or failed, or not have begun; the change is recorded in its log. If the flow is not
    known here, a worker that has the flow makes the change.
    """
    given = options.read_fields(fields, "the argument JSON")
    if not given:
        raise SettingError("""name at least one field to change, as in '{"topic": "tides"}'""")

    def after(reader: Reader, edited: Run[Any]) -> bool:
        row = reader.store.run(run_id)
        waits = any(one.verb == "edit" and one.status == "waiting" for one in reader.requests(run_id))
        if as_json:
            facts = {"id": run_id, "status": row.status, "requested": "edit", "fields": sorted(given)}
            screen.say_json(facts | {"waits": waits, "held_by": held_by(row)})
            return waits
        if not waits:
            screen.say(("edited  ", "bold green"), f"{run_id}  {', '.join(given)}")
            return waits
        who = held_by(row) or "a worker"
        screen.say(("asked  ", "bold green"), f"{run_id}: edit; {who} carries the request out")
        screen.say(f"  see what became of it: {line('requests', run_id, store=store)}")
        if not row.held:
            say_missing_workers(reader, [(run_id, row.flow, row.queue)], store)
        return waits

    _recorded(
        run_id,
        file,
        store,
        lambda engine: engine.edit(run_id, given, **said, by=options.resolve_actor(by), reason=reason),
        after=after,
    )


# --- forks -------------------------------------------------------------------------------------------

_CHOICES = ("ask", "run", "skip")


@command(OPERATE)
@options.of(Fork, without=("checkpoint",))
def fork(
    target: options.RunAt,
    file: options.File = None,
    run_id: options.NewRunId = None,
    repeat: Annotated[
        list[str] | None,
        typer.Option(
            "--repeat",
            metavar="CHOICE|NODE=CHOICE",
            help="What to do with nodes that are not idempotent and that RUN has begun: ask (the default), run or skip; for "
            "all such nodes, or for one (repeatable).",
        ),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="NAME=VALUE",
            help="A label of the new run; repeatable. Default: the labels of the run that it is forked from.",
        ),
    ] = None,
    *,
    said: options.Said,
    dry_run: options.DryRunOfOne = False,
    expects: options.Expects = None,
    by: options.By = None,
    reason: options.Reason = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Make a new run from a checkpoint of another run.

    The new run has the history of the other run up to that checkpoint (default: the latest) and is independent from then on. It
    repeats no effect of the other run without asking (--repeat). Prints the id of the new run, which `holdfast resume` executes,
    and which nodes come next. Only --edit needs the flow.
    """
    given: dict[str, Any] = {
        **said, "run_id": run_id, "repeat": _read_repeat(repeat or []), "reason": reason,
        "labels": options.read_pairs(labels or [], "--label") or None,
    }  # fmt: skip
    if dry_run:
        return look_ahead("fork", target, given, file=file, store=store, as_json=as_json)
    commands = command_line(file=file, store=store)

    def after(reader: Reader, made: str) -> tuple[str, _Forked]:
        return resume_line_of(reader, made, commands), _forked(reader, made, commands)

    async def ask(engine: Engine) -> str:
        return await engine.fork(target, **given, by=options.resolve_actor(by), expects=expects)

    parent = target.partition("@")[0]
    made, (resumes, told) = _recorded(
        parent, file, store, ask, needs_flow=said["edit"] is not None, after=after
    )
    if as_json:
        screen.say_json({"id": made, "parent": target, "resumes": resumes} | told.as_json())
        return Exit.OK
    screen.say(("forked  ", "bold green"), made, (f"  from {target}", "dim"))
    _say_fork(told, edited=said["edit"] is not None)
    screen.say("  resume it with: ", (resumes, "bold"))
    return Exit.OK


def _read_repeat(given: list[str]) -> Any:
    """Return the value of `--repeat`: one choice for all nodes, or a choice by node."""
    for one in given:
        choice = one.rpartition("=")[2]
        if choice not in _CHOICES:
            raise SettingError(
                f"--repeat {one}: {choice!r} is not a choice; give ask, run or skip, or NODE=ask, NODE=run or NODE=skip"
                f"{did_you_mean(choice, _CHOICES)}"
            )
    if all("=" in one for one in given):
        return options.read_pairs(given, "--repeat") or "ask"
    if len(set(given)) > 1:
        raise SettingError(
            f"--repeat {given[0]} and --repeat {given[1]} cannot be combined; give one choice for all nodes, or one for each node"
        )
    return given[0]


class _Forked(msgspec.Struct, frozen=True):
    """What is known about a new fork: its first event, and the plan by which it was made."""

    event: events.RunForked
    plan: ForkPlan
    missed: list[tuple[Missed, str]]
    """The signals and answers that the parent has received and the fork does not have, each with the command that gives it to the
    fork."""

    def choice(self, node: str) -> str:
        """Return what the fork does with the visits of a node that its parent has begun."""
        return self.event.repeat.get(node, "ask")

    def as_json(self) -> dict[str, Any]:
        asked = [one for one in self.event.visits if not one.kept]
        return {
            "next": list(self.plan.next),
            "not_idempotent": [name for name, safe in self.plan.idempotent.items() if not safe],
            "begun": [
                {
                    "node": one.node,
                    "iteration": one.iteration,
                    "item": one.item,
                    "completed": one.result is not None,
                    "at": one.at,
                    "run": one.run or self.event.parent,
                    "repeat": self.choice(one.node),
                }
                for one in asked
            ],
            "missed": [
                msgspec.to_builtins(one, enc_hook=str) | {"command": line} for one, line in self.missed
            ],
            "lineage": self.event.lineage,
            "fresh": self.event.fresh,
        }


def _forked(reader: Reader, run_id: str, commands: CommandLine) -> _Forked:
    """Read what a fork begins with from its log, because its parent may have moved on since."""
    rows = reader.store.events(run_id, kinds=("RunForked",), limit=1)
    event = next(history.opened(reader.store, run_id, rows)).event
    missed = list_missed(reader.store, reader.store.run(event.parent), event.to)
    lines = [commands.line(verb, run_id, *rest) for verb, *rest in (one.words() for one in missed)]
    return _Forked(event, reader.plan_fork(event.parent, event.to), list(zip(missed, lines, strict=True)))


_REPEATS = {
    "ask": "the new run asks before it runs it again",
    "run": "the new run runs it again, with new idempotency keys",
    "skip": "the new run skips it, with the result that it had",
}


def _say_fork(told: _Forked, *, edited: bool) -> None:
    plan, event = told.plan, told.event
    marked = [name if plan.idempotent.get(name, True) else f"{name} (not idempotent)" for name in plan.next]
    screen.say(f"  next: {', '.join(marked) or 'nothing, the run only ends'}")
    asked = [one for one in event.visits if not one.kept]
    for name in dict.fromkeys(one.node for one in asked):
        visits = [one for one in asked if one.node == name]
        latest = max(visits, key=lambda one: one.at)
        done = sum(one.result is not None for one in visits)
        began = "completed" if done == len(visits) else "begun and not completed" if not done else "begun"
        many = f" ({screen.count(len(visits), 'time')})" if len(visits) > 1 else ""
        when = f" ({screen.when(latest.at)})" if latest.at else ""
        screen.say(
            ("  note: ", "yellow"),
            f"{latest.run or event.parent} has {began} {name}{many}{when}: {_REPEATS[told.choice(name)]}",
        )
    for one, typed in told.missed:
        got = f"the signal {one.name}" if one.what == "signal" else f"an answer to {one.name}"
        then = "send it with" if one.what == "signal" else "when the new run asks, give it with"
        screen.say(
            ("  note: ", "yellow"),
            f"{event.parent} has received {got}, which the new run does not have; {then}:",
        )
        screen.say("    $ ", (typed, "bold"))
    if event.fresh:
        screen.say("  its idempotency keys are its own: receivers treat all its effects as new")
    elif edited:
        screen.say(
            f"  its idempotency keys are those of {event.lineage}, although its state was edited: a receiver that has seen a key "
            "ignores the repeat; --fresh gives a fork keys of its own"
        )


# --- recording ---------------------------------------------------------------------------------------


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
        reader.flows = {flow.name: flow for flow in flows}
        if look is not None:
            look(reader)
        try:
            recorded = stores.execute(reader.store, use, {"flows": flows})
        except FlowNotFound as missing:
            raise SettingError(name_the_file(missing, file, store)) from missing
        return recorded, after(reader, recorded)


@command(LOOK)
def requests(
    run_id: options.RunId,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """List the requests to a run that wait or were refused.

    A request waits for the process that executes the run, or for a worker that claims it. Requests that were carried out are in
    the log: `holdfast events`.
    """
    with stores.reading(store) as reader:
        row, now, found = reader.store.run(run_id), reader.store.now(), reader.requests(run_id)
        if as_json:
            screen.say_json(found)
            return
        if not found:
            screen.say(
                f"no request to {run_id} waits or was refused; its log has those that were carried out: "
                + line("events", run_id, store=store)
            )
        for one in found:
            say_request(one, now)
        if any(one.status == "waiting" for one in found) and not row.held:
            say_missing_workers(reader, [(run_id, row.flow, row.queue)], store)
