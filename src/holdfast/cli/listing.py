"""Commands that show runs as they stand: runs, show, graph; and version. They need no flow: its definition is in the store."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
import typer

import holdfast
from holdfast.cli import flow_files, options, program, screen, stores
from holdfast.cli.app import CHECK, LOOK, command
from holdfast.cli.screen import Part
from holdfast.cli.standing import Standing, Way, is_row_cut, line, say_ways, standing
from holdfast.core import drawing
from holdfast.core.definition import Definition
from holdfast.errors import SettingError, StoreCorrupt, did_you_mean
from holdfast.runtime.engine import Engine
from holdfast.runtime.views import NodeView, Run
from holdfast.storage.contract import STATUSES, RunRow, RunStatus

_GOING = frozenset({"running", "waiting", "paused", "interrupted"})
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

    async def use(engine: Engine) -> tuple[list[RunRow], float]:
        return await engine.runs(status=wanted, flow=flow, labels=labels, limit=limit + 1), engine.store.now()

    found, now = stores.read(store, use)
    listed, more = found[:limit], len(found) > limit
    if as_json:
        screen.say_json([_row_as_json(row) for row in listed])
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
        ["RUN", "FLOW", "STATUS", "UPDATED", "SEQ", "ABOUT"], [_cells(row, now) for row in listed], flexible=5
    )
    if more:
        screen.say((f"… and more: --limit {limit * 4} shows them", "dim"))
    _say_stopped(listed, store)


def _known_status(name: str) -> RunStatus:
    for known in STATUSES:
        if name == known:
            return known
    raise SettingError(
        f"no run has the status {name!r}; there are {', '.join(STATUSES)}{did_you_mean(name, STATUSES)}"
    )


def _cells(row: RunRow, now: float) -> list[Part]:
    cut = is_row_cut(row)
    about = (
        [row.error]
        if row.error
        else [f"in {', '.join(row.active)}"]
        if row.active and row.status in _GOING
        else []
    )
    about += [f"{name}={value}" for name, value in row.labels.items()]
    about += [f"forked from {row.parent}"] if row.parent else []
    return [
        row.run_id,
        row.flow,
        (f"{row.status}, cut" if cut else row.status, "bold yellow" if cut else screen.STYLES[row.status]),
        screen.ago(now - row.updated_at),
        str(row.seq),
        ("; ".join(filter(None, about)), "dim"),
    ]


def _say_stopped(rows: list[RunRow], store: str | None) -> None:
    """Which runs go on only when somebody carries them on."""
    cut = [row.run_id for row in rows if is_row_cut(row)]
    interrupted = [row.run_id for row in rows if row.status == "interrupted" and not row.held]
    begun_by_nobody = [row.run_id for row in rows if row.status == "pending" and not row.held]
    if cut:
        verb = "was cut: its process ended" if len(cut) == 1 else "were cut: their processes ended"
        screen.say(
            f"\n{screen.count(len(cut), 'run')} {verb} without a word. Nothing that completed is lost."
        )
    if interrupted:
        screen.say(f"\n{screen.count(len(interrupted), 'run')} stopped in order, with its process.")
    if begun_by_nobody:
        screen.say(f"\n{screen.count(len(begun_by_nobody), 'run')} recorded, and executed by nobody.")
    say_ways([
        Way(line("resume", run_id, store=store, executes=True), "carry it on")
        for run_id in [*cut, *interrupted, *begun_by_nobody][:_WAYS_MAX]
    ])  # fmt: skip
    if any(row.status in ("failed", "waiting", "paused") and not is_row_cut(row) for row in rows):
        show_it = line("show", "RUN", store=store)
        screen.say((f"\n`{show_it}` says why a run failed or waits, and what carries it on.", "dim"))


def _row_as_json(row: RunRow) -> dict[str, Any]:
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
        | {"held_by": holder, "cut": is_row_cut(row)}
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

    async def use(engine: Engine) -> tuple[Run[Any], Standing, Definition, float]:
        run = await engine.get(run_id)
        stands = await standing(engine, run, store=store)
        return run, stands, definition_of(engine, run_id), engine.store.now()

    run, stands, definition, now = stores.read(store, use)
    if as_json:
        told = {"cut": stands.cut, "why": stands.why, "ways": stands.ways}
        screen.say_json(msgspec.to_builtins(run, str_keys=True, enc_hook=str) | told)
        return
    status = f"{run.status}, cut" if stands.cut else run.status
    screen.say((run.id, "bold"), f"  flow {run.flow}  ", (status, f"bold {screen.STYLES[run.status]}"))
    facts = [
        f"started {screen.when(run.created_at)}",
        f"last event {run.seq}, {screen.ago(now - run.updated_at)}",
    ]
    facts += [f"forked from {run.parent}"] if run.parent else []
    facts += [f"{name}={value}" for name, value in run.labels.items()]
    screen.say(("; ".join(facts), "dim"))
    screen.say("")
    _say_graph(run, definition, cut=stands.cut)
    screen.say("")
    screen.say("Why:  ", stands.why)
    say_ways(stands.ways)
    _say_more(run, store)


def _say_graph(run: Run[Any], definition: Definition, *, cut: bool) -> None:
    statuses = {
        name: "interrupted" if cut and node.status == "running" else node.status
        for name, node in run.nodes.items()
    }
    notes = {name: _note(node, cut=cut) for name, node in run.nodes.items()}
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


def _note(node: NodeView, *, cut: bool) -> str:
    is_cut = (
        cut and node.status == "running"
    )  # when it was cut nobody wrote down, so nobody knows how long it took
    words = [] if node.status == "pending" else ["—" if is_cut else screen.duration(node.seconds)]
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


def definition_of(engine: Engine, run_id: str) -> Definition:
    """The definition of a run's flow, as the store has it."""
    row = engine.store.run(run_id)
    stored = engine.store.definition(row.fingerprint)
    if stored is None:
        raise StoreCorrupt(
            f"run {run_id!r}: the definition of its flow is not in the store. `holdfast verify` says more."
        )
    return msgspec.json.decode(stored, type=Definition)


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
            return definition_of(engine, target), await engine.get(target)

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
