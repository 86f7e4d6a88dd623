"""Commands that show runs as they stand: runs, show, graph; and version. They need no flow: its definition is in the store."""

from __future__ import annotations

import os
import shlex
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

import holdfast
from holdfast.cli import flow_files, known, options, program, screen, stores, told
from holdfast.cli.app import CHECK, LOOK, command
from holdfast.cli.known import Known
from holdfast.cli.screen import Part
from holdfast.cli.standing import (
    Look,
    Standing,
    Way,
    awaits,
    base_for,
    carries_on,
    definition_of,
    line,
    look,
    say_ways,
    standing,
)
from holdfast.core import drawing
from holdfast.core.definition import Definition
from holdfast.core.run_state import BEGUN, STUCK
from holdfast.errors import SchemaTooNew, SettingError, StoreCorrupt, did_you_mean, named
from holdfast.reading.views import NodeView, Run
from holdfast.runtime.engine import Engine
from holdfast.storage import urls
from holdfast.storage.contract import STATUSES, Query, RunRow, RunStatus

_WAYS_MAX = 3


@command(LOOK)
def runs(
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help=f"Only these: {', '.join(STATUSES)}; repeatable."),
    ] = None,
    flow: Annotated[
        str | None, typer.Option("--flow", metavar="NAME", help="Only runs of this flow.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="Only runs with this label; repeatable."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many, the newest first.")] = 50,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """List runs, and which of them were cut.

    A run was cut when it should be going and nobody executes it: its process died. The list says how to carry it on.
    """
    wanted = [_known_status(name) for name in status or []]
    labels = options.read_pairs(label or [], "--label")

    async def use(engine: Engine) -> tuple[list[_Listed], bool, float]:
        query = Query(status=tuple(wanted), flow=flow, labels=labels, limit=limit + 1)
        found = engine.store.runs(query)
        listed = [_Listed(row, _looked_at(engine, row)) for row in found[:limit]]
        return listed, len(found) > limit, engine.store.now()

    listed, more, now = stores.read(store, use)
    if as_json:
        screen.say_json([_row_as_json(one) for one in listed])
        return
    if not listed:
        chosen = bool(wanted or flow or labels)
        screen.say(
            "No run fits. Leave a filter out to see more."
            if chosen
            else f"No runs yet. `{program.name()} run FILE.py` starts one."
        )
        return
    screen.say_table(
        ["RUN", "FLOW", "STATUS", "UPDATED", "SEQ", "ABOUT"], [_cells(one, now) for one in listed], flexible=5
    )
    if more:
        screen.say((f"… and more: --limit {limit * 4} shows them", "dim"))
    _say_stopped(listed, store)


def _known_status(name: str) -> RunStatus:
    for status in STATUSES:
        if name == status:
            return status
    raise SettingError(
        f"no run has the status {name!r}; there are {', '.join(STATUSES)}{did_you_mean(name, STATUSES)}"
    )


class _Listed(NamedTuple):
    """A run in a list."""

    row: RunRow
    seen: Look


def _looked_at(engine: Engine, row: RunRow) -> Look:
    """A closer look where the row leaves it open how the run stands. One that cannot be read does not hide the others."""
    if row.status == "running" and row.held:
        return Look()
    try:
        return look(engine, row)
    except (StoreCorrupt, SchemaTooNew):
        return Look(cut=row.status == "running")


def _cells(one: _Listed, now: float) -> list[Part]:
    row, cut = one.row, one.seen.cut
    about = [row.error] if row.error else []
    if row.status in BEGUN:
        awaited = awaits(one.seen, now)
        about += awaited or ([f"in {', '.join(row.active)}"] if row.active else [])
    about += [f"{name}={value}" for name, value in row.labels.items()]
    about += [f"forked from {row.parent}"] if row.parent else []
    status = f"{row.status}, {'cut' if cut else 'answered'}" if cut or one.seen.told else row.status
    return [
        row.run_id,
        row.flow,
        (status, "bold yellow" if cut else screen.STYLES.get(row.status, "")),
        screen.ago(now - row.updated_at),
        str(row.seq),
        ("; ".join(about), "dim"),
    ]


def _say_stopped(listed: list[_Listed], store: str | None) -> None:
    """Which runs go on only when somebody carries them on."""
    cut = [one for one in listed if one.seen.cut]
    told_runs = [one for one in listed if one.seen.told]
    free = [one for one in listed if not one.row.held and not one.seen.told]
    interrupted = [one for one in free if one.row.status == "interrupted"]
    begun_by_nobody = [one for one in free if one.row.status == "pending"]
    if cut:
        verb = "was cut: its process ended" if len(cut) == 1 else "were cut: their processes ended"
        screen.say(
            f"\n{screen.count(len(cut), 'run')} {verb} without a word. Nothing that completed is lost."
        )
    if interrupted:
        screen.say(f"\n{screen.count(len(interrupted), 'run')} stopped in order, with its process.")
    if told_runs:
        screen.say(
            f"\n{screen.count(len(told_runs), 'run')} answered or told something, and executed by nobody."
        )
    if begun_by_nobody:
        screen.say(f"\n{screen.count(len(begun_by_nobody), 'run')} recorded, and executed by nobody.")
    if cut or interrupted or told_runs or begun_by_nobody:
        screen.say("A worker that knows the flow takes such a run up by itself; without one:")
    say_ways([
        _carries_on(one, store) for one in [*cut, *interrupted, *told_runs, *begun_by_nobody][:_WAYS_MAX]
    ])  # fmt: skip
    _say_where_to_look(listed, store)


def _carries_on(one: _Listed, store: str | None) -> Way:
    run_base = base_for(one.seen, None)
    typed = line("resume", one.row.run_id, store=store, run_base=run_base, executes=True)
    return Way(typed, carries_on(one.seen) if one.seen.asked_about else "carry it on")


def _say_where_to_look(listed: list[_Listed], store: str | None) -> None:
    if any(seen.questions for _, seen in listed):
        asked = f"{program.name()} questions" + (
            f" --store {shlex.quote(urls.shown(store))}" if store else ""
        )
        screen.say((f"\n`{asked}` lists what is asked, and the commands that answer.", "dim"))
    if any(row.status in STUCK and not seen.cut for row, seen in listed):
        show_it = line("show", "RUN", store=store)
        screen.say((f"\n`{show_it}` says why a run failed or waits, and what carries it on.", "dim"))


def _row_as_json(one: _Listed) -> dict[str, Any]:
    row, seen = one
    names = (
        "flow",
        "status",
        "seq",
        "created_at",
        "updated_at",
        "labels",
        "parent",
        "active",
        "error",
        "due_at",
        "held",
    )
    holder = row.holder.describe() if row.held and row.holder is not None else None
    return (
        {"id": row.run_id}
        | {name: getattr(row, name) for name in names}
        | {"held_by": holder, "cut": seen.cut, "told": seen.told, "asks": [q.key for q in seen.questions]}
    )


@command(LOOK)
def show(
    run_id: options.RunId,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Show one run: graph, timings, why it stopped.

    And the exact command that carries it on.
    """

    async def use(engine: Engine) -> _Shown:
        run = await engine.get(run_id)
        stands = await standing(engine, run, store=store)
        definition = definition_of(engine, engine.store.run(run_id))
        return _Shown(run, stands, definition, await known.known(engine, run), engine.store.now())

    shown = stores.read(store, use)
    if as_json:
        run, stands = shown.run, shown.stands
        more = {"cut": stands.cut, "told": stands.told, "why": stands.why, "ways": stands.ways}
        more |= {"awaited": stands.waits, "partial": shown.partial}
        screen.say_json(msgspec.to_builtins(run, str_keys=True, enc_hook=str) | more)
        return
    _say_run(shown, store)


class _Shown(NamedTuple):
    """One run, and all that is told about it."""

    run: Run[Any]
    stands: Standing
    definition: Definition
    partial: list[Known]
    now: float


def _say_run(shown: _Shown, store: str | None) -> None:
    run, stands = shown.run, shown.stands
    status = (
        f"{run.status}, {'cut' if stands.cut else 'answered'}" if stands.cut or stands.told else run.status
    )
    screen.say((run.id, "bold"), f"  flow {run.flow}  ", (status, f"bold {screen.STYLES[run.status]}"))
    screen.say(("; ".join(_facts(run, shown.now)), "dim"))
    screen.say("")
    _say_graph(run, shown.definition, shown.now, cut=stands.cut)
    screen.say("")
    screen.say("Why:  ", stands.why)
    say_ways(stands.ways)
    if run.signals:
        screen.say("Told, and taken by nobody yet:  ", ", ".join(map(_kept, run.signals.items())))
    for warned in run.warnings:
        fault = screen.one_line(named(warned.failure.type, warned.failure.message), 300)
        screen.say(("Warning:  ", "yellow"), f"{warned.node} failed, and is safe to: {fault}")
    for one in shown.partial:
        known.say(one, _head(one, run, cut=stands.cut))
    _say_more(run, store)


def _kept(told: tuple[str, int]) -> str:
    name, times = told
    return screen.one_line(f"{name!r}" + (f" ({times} times)" if times > 1 else ""))


def _facts(run: Run[Any], now: float) -> list[str]:
    facts = [
        f"started {screen.when(run.created_at)}",
        f"last event {run.seq}, {screen.ago(now - run.updated_at)}",
        f"active {screen.duration(run.active_s)}",
    ]
    facts += [spent] if (spent := told.cost(run.cost)) else []
    facts += [f"forked from {run.parent}"] if run.parent else []
    return facts + [f"{name}={value}" for name, value in run.labels.items()]


def _head(one: Known, run: Run[Any], *, cut: bool) -> str:
    """What the visit is whose doings follow."""
    if (
        known.partial_of(run.questions, one.node)
        or one.status == "interrupted"
        or (cut and one.status == "running")
    ):
        return f"{one.node} was cut. What is known of it:"
    return {
        "running": f"{one.node} so far:",
        "waiting": f"{one.node} waits. So far:",
    }.get(one.status, f"{one.node} failed. Until then:")


def _say_graph(run: Run[Any], definition: Definition, now: float, *, cut: bool) -> None:
    statuses = {
        name: "interrupted" if cut and node.status == "running" else node.status
        for name, node in run.nodes.items()
    }
    notes = {name: _note(node, now, cut=cut) for name, node in run.nodes.items()}
    picture = drawing.terminal(
        definition, statuses, width=screen.picture_width(), notes=notes, ascii=screen.ascii_only()
    )
    styles = {
        mark: screen.STYLES[status] for status, mark in drawing.MARKS.items() if status in screen.STYLES
    }
    for drawn in picture.splitlines():
        mark = next((char for char in drawn[:40] if char in styles), None)
        before, _, behind = drawn.partition(mark) if mark else (drawn, "", "")
        screen.say(before, (mark or "", styles.get(mark or "", "")), behind)


def _note(node: NodeView, now: float, *, cut: bool) -> str:
    is_cut = (
        cut and node.status == "running"
    )  # when it was cut nobody wrote down, so nobody knows how long it took
    begun = node.status != "pending" and node.attempt > 0
    going_s = max(0.0, now - node.started_at) if node.status == "running" else 0.0
    words = ["—" if is_cut else screen.duration(node.seconds + going_s)] if begun else []
    if node.items is not None:
        words.append(f"{node.items[0]} of {node.items[1]} items")
    if node.iteration > 1:
        words.append(screen.count(node.iteration, "iteration"))
    if node.tries > node.iteration:
        words.append(screen.count(node.tries, "attempt"))
    if node.status not in ("completed", "pending"):
        words.append("cut" if is_cut else node.status)
    return ", ".join(words)


def _say_more(run: Run[Any], store: str | None) -> None:
    if run.error is not None and run.error.traceback:
        code = next(
            (
                found
                for found in reversed(run.error.traceback.splitlines())
                if found.lstrip().startswith("File ")
            ),
            "",
        )
        if code:
            screen.say((f"Where: {code.strip()}", "dim"))
    screen.say("")
    screen.say("More:")
    say_ways([
        Way(line("events", run.id, store=store), "its log"),
        Way(line("state", run.id, store=store), "its state"),
        Way(line("checkpoints", run.id, store=store), "where it can be gone back to"),
    ])  # fmt: skip


@command(LOOK)
def graph(
    target: Annotated[str, typer.Argument(metavar="FILE.py[:FLOW]|RUN", help="A flow's file, or a run.")],
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="As a Mermaid flowchart, for pages that draw them.")
    ] = False,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Draw a flow from its file, or a run.

    A run is drawn as its flow was when it was made, with the status of every node.
    """
    statuses: dict[str, str] = {}
    if ".py" in target or os.path.exists(target):
        definition = flow_files.load_flow(target).definition
    else:
        options.a_run(target)

        async def use(engine: Engine) -> tuple[Definition, Run[Any]]:
            return definition_of(engine, engine.store.run(target)), await engine.get(target)

        definition, run = stores.read(store, use)
        statuses = {name: node.status for name, node in run.nodes.items()}
    if as_json:
        screen.say_json({"definition": definition, "statuses": statuses})
    elif mermaid:
        print(drawing.mermaid(definition, statuses))
    else:
        width = screen.picture_width()
        print(drawing.terminal(definition, statuses, width=width, ascii=screen.ascii_only()))


@command(CHECK)
def version(as_json: options.AsJson = False, debug: options.Debug = False) -> None:
    """Print the version of Holdfast and Python."""
    import platform

    known = {"holdfast": holdfast.__version__, "python": platform.python_version()}
    if as_json:
        screen.say_json(known)
    else:
        print("  ".join(f"{name} {number}" for name, number in known.items()))
