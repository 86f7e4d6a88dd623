"""Commands that show runs: runs, show, graph; and version. They need no flow file: the store has the definition of each flow."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

import holdfast
from holdfast.cli import flow_files, options, screen, stores
from holdfast.cli.app import CHECK, LOOK, command
from holdfast.cli.exits import Exit
from holdfast.cli.faults import say_where
from holdfast.cli.screen import Part
from holdfast.cli.suggestions import (
    command_line,
    line,
    say_commands,
    say_remedies,
    say_request,
    say_visit,
    status_words,
)
from holdfast.core import drawing
from holdfast.core.definition import Definition
from holdfast.core.run_state import BEGUN, STUCK
from holdfast.core.svg import draw
from holdfast.errors import RunNotFound, SchemaTooNew, StoreCorrupt
from holdfast.reading import text, words
from holdfast.reading.cases import case_of, unreadable_case
from holdfast.reading.changes import compare
from holdfast.reading.diagnosis import REFUSED, Diagnosis, diagnose, diagnosis_as_json
from holdfast.reading.inbox import ChildEnd
from holdfast.reading.ledger_entries import LedgerEntry
from holdfast.reading.open_visits import OpenVisit, open_visits, partial_of
from holdfast.reading.pages import ListedRun
from holdfast.reading.reader import Reader
from holdfast.reading.relatives import FamilyTree
from holdfast.reading.views import NodeView, RequestView, Run, draw_run, held_by, name_status, routes_of
from holdfast.storage.contract import Query, RunRow

_REMEDIES_MAX = 3
_REFUSALS_MAX = 3
_FAMILY_MAX = 50
_DECIDED_MAX = 30
_RULED = frozenset({"guard", "policy", "verification", "skip"})
"""Types of decisions that `show` prints: what rules decided."""
_REQUESTED = {ChildEnd.verb: "a child run has ended"}
"""Verb of a request that no person made -> what a list says about it."""


@command(LOOK)
def runs(
    status: options.OnlyStatus = None,
    flow: options.OnlyFlow = None,
    label: options.OnlyLabel = None,
    parent: options.OnlyParent = None,
    origin: options.OnlyOrigin = None,
    queue: options.OnlyQueue = None,
    attention: options.Attention = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="How many runs to list at most, newest first.")
    ] = 50,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """List runs, and show which of them crashed.

    A run has crashed if it is under way but no live process executes it. The list ends with the commands that resume such runs.
    """
    query = options.read_query(status, flow, label, parent, origin, queue, limit=limit)

    def use(reader: Reader) -> tuple[list[RunInList], bool, float]:
        found, more = reader.list_runs(query, command_line(store=store), attention=attention)
        return [_listed(reader, one) for one in found], more, reader.store.now()

    listed, more, now = stores.read(store, use)
    if as_json:
        screen.say_json([row_as_json(one) for one in listed])
    elif not listed:
        _say_none(store, filtered=attention or query != Query(limit=limit))
    else:
        headings = ["RUN", "FLOW", "STATUS", "UPDATED", "SEQ", "ABOUT"]
        screen.say_table(headings, [_cells(one, now) for one in listed], flexible=5)
        if more:
            screen.say((f"… and more: --limit {limit * 4} shows them", "dim"))
        _say_stopped(listed, now, store)


def _say_none(store: str | None, *, filtered: bool) -> None:
    verb = "start" if stores.is_server(store) else "run"
    screen.say(
        "No run matches these options. Leave one out to see more runs."
        if filtered
        else f"No runs yet. `{line(verb, 'FILE.py', store=store)}` starts one."
    )


class RunInList(NamedTuple):
    """A run in the list, with its diagnosis, the keys of its open questions, and the verbs of the requests that wait."""

    row: RunRow
    found: Diagnosis
    asks: list[str]
    requested: list[str]


def _listed(reader: Reader, one: ListedRun) -> RunInList:
    row, asks = one.row, [question.key for question in one.found.questions]
    with suppress(RunNotFound, StoreCorrupt, SchemaTooNew):  # deleted meanwhile, or damaged
        if len(asks) < one.asks:  # a row has only a few of them
            asks = [asked.question.key for asked in reader.questions(row.run_id)]
    return RunInList(row, one.found, asks, list(one.requested))


def _cells(one: RunInList, now: float) -> list[Part]:
    row, found, _, requested = one
    about = [_REQUESTED.get(verb, f"{verb} requested") for verb in dict.fromkeys(requested)]
    about += [found.reason] if found.kind == "unreadable" or found.kind in REFUSED else []
    about += [row.error.removesuffix(".")] if row.error else []
    if row.status == "pending" and row.due_at is not None and row.due_at > now:
        about.append(f"begins at {screen.when(row.due_at)}")
    if row.status in BEGUN and found.kind not in REFUSED:  # their reason says what they wait for
        about += found.expects or ([f"in {', '.join(row.active)}"] if row.active else [])
    about += [f"{name}={value}" for name, value in row.labels.items()]
    about += [f"forked from {row.parent}"] if row.parent else []
    about += [f"called by {row.origin}"] if row.origin else []
    return [
        row.run_id,
        row.flow,
        (
            status_words(row.status, found),
            "bold yellow"
            if found.crashed
            else screen.STYLES.get("pausing" if found.pausing else row.status, ""),
        ),
        screen.ago(now - row.updated_at),
        str(row.seq),
        ("; ".join(about), "dim"),
    ]


def _say_stopped(listed: list[RunInList], now: float, store: str | None) -> None:
    """Print which of the listed runs continue only if a worker claims them or a user resumes them."""
    refused = [one for one in listed if one.found.kind in REFUSED]
    left = [one for one in listed if one.found.kind not in REFUSED]
    crashed = [one for one in left if one.found.crashed]
    answered = [one for one in left if one.found.answered]
    free = [one for one in left if not one.row.held and not one.found.answered]
    interrupted = [one for one in free if one.row.status == "interrupted"]
    recorded = [one for one in free if one.row.status == "pending" and (one.row.due_at or 0.0) <= now]
    if crashed:
        verb = "crashed with its process" if len(crashed) == 1 else "crashed with their processes"
        screen.say(f"\n{screen.count(len(crashed), 'run')} {verb}. Completed work is kept.")
    if interrupted:
        screen.say(
            f"\n{screen.count(len(interrupted), 'run')} interrupted, because the process was asked to stop."
        )
    if answered:
        screen.say(
            f"\n{screen.count(len(answered), 'run')} with a new answer or signal, but not executed by any process."
        )
    if recorded:
        screen.say(f"\n{screen.count(len(recorded), 'run')} recorded, but not executed by any process.")
    offered = [*crashed, *interrupted, *answered, *recorded]
    stopped = [one for one in offered if one.found.taker is None]
    if takers := list(dict.fromkeys(one.found.taker for one in offered if one.found.taker is not None)):
        count = len(offered) - len(stopped)
        which = (
            "It is"
            if len(offered) == 1
            else f"{count} of them {'is' if count == 1 else 'are'}"
            if stopped
            else "They are"
        )
        screen.say(f"{which} claimed by a live worker: {', '.join(takers)}.")
    if stopped:
        which = "it" if len(stopped) == 1 else "them"
        screen.say(f"No live worker is about to claim {which}; `show` says why. Without a worker:")
    say_commands(
        (remedy.command, remedy.words if one.found.asks_before else "resume it")
        for one in stopped[:_REMEDIES_MAX]
        for remedy in one.found.remedies
        if remedy.verb == "resume"
    )
    if refused:
        screen.say(
            f"\n{screen.count(len(refused), 'run')} that cannot continue as the flow is now. `show` says more about each."
        )
        say_commands(
            (way.command, way.words)
            for one in refused[:_REMEDIES_MAX]
            for way in sorted(one.found.remedies, key=lambda way: way.verb in ("answer", "signal"))[:1]
        )
    _say_where_to_look(listed, store)


def _say_where_to_look(listed: list[RunInList], store: str | None) -> None:
    if any(one.found.questions for one in listed):
        asked = line("questions", store=store)
        screen.say((f"\n`{asked}` lists the open questions, with the commands that answer them.", "dim"))
    if any(one.row.status in STUCK and not one.found.crashed for one in listed):
        show_it = line("show", "RUN", store=store)
        screen.say((f"\n`{show_it}` says why a run failed or waits, and what can be done about it.", "dim"))


def row_as_json(one: RunInList) -> dict[str, Any]:
    """Return the fields of a run in a list, for JSON."""
    row, found, asks, requested = one
    names = (
        "flow",
        "status",
        "seq",
        "created_at",
        "updated_at",
        "labels",
        "parent",
        "origin",
        "active",
        "error",
        "due_at",
        "held",
    )
    facts = {"crashed": found.crashed, "answered": found.answered, "pausing": found.pausing}
    asked = {"asks": asks, "requested": requested, "reason": found.reason}
    told = {"id": row.run_id} | {name: getattr(row, name) for name in names}
    return told | {"held_by": held_by(row)} | facts | asked


@command(LOOK)
def show(
    run_id: options.RunAt,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Show one run: its graph, its timings and why it stopped.

    Also prints the exact commands that resume or answer it. RUN@SEQ shows the run as it was at that event.
    """
    commands = command_line(store=store)

    def use(reader: Reader) -> _Shown | RunInList:
        if "@" in run_id:
            return _as_it_was(reader, run_id)
        row, now, holders = reader.store.run(run_id), reader.store.now(), reader.store.queues.holders()
        try:
            case = compare(reader.store, case_of(reader.store, row, holders=holders), None)
        except SchemaTooNew as fault:
            found = diagnose(unreadable_case(reader.store, row, fault, holders), now, commands)
            return RunInList(row, found, [], [])
        assert case.state is not None
        run = reader.view(row, case.state)
        found = diagnose(case, now, commands)
        requests = reader.requests(run_id)
        family = reader.family(run_id, commands, _FAMILY_MAX) if run.children or run.caller else None
        definition = reader.definition(row)
        decided = _decided(reader, run_id, definition)
        return _Shown(run, found, definition, open_visits(reader, run), requests, now, family, decided)

    shown = stores.read(store, use)
    if isinstance(shown, RunInList):
        _say_unreadable(shown, as_json=as_json)
        return Exit.STORE
    if as_json:
        more = diagnosis_as_json(shown.found)
        more |= {"awaited": shown.found.awaited, "partial": shown.partial, "requests": shown.requests}
        more |= {"family": shown.family, "decided": shown.decided}
        screen.say_json(msgspec.to_builtins(shown.run, str_keys=True, enc_hook=str) | more)
    else:
        _say_run(shown, store, debug=debug)
    return Exit.OK


def _say_unreadable(listed: RunInList, *, as_json: bool) -> None:
    """Print what the row says of a run that a newer version of Holdfast has written."""
    row, found = listed.row, listed.found
    if as_json:
        screen.say_json(row_as_json(listed) | diagnosis_as_json(found))
        return
    status = status_words(row.status, found)
    screen.say((row.run_id, "bold"), f"  flow {row.flow}  ", (status, f"bold {screen.STYLES[row.status]}"))
    screen.say("Why:  ", found.reason)
    say_remedies(found.remedies)


def _as_it_was(reader: Reader, place: str) -> _Shown:
    """Return a run as it was at an event, with no remedies: it has moved since."""
    run = reader.get(place)
    row = reader.store.run(run.id)
    reason = f"this is the run as it was at event {run.seq} of {row.seq}"
    found = Diagnosis(kind="executing", reason=reason, run_id=run.id, flow=run.flow, status=run.status)
    definition = reader.definition(row)
    decided = [entry for entry in _decided(reader, run.id, definition) if entry.seq <= run.seq]
    return _Shown(run, found, definition, [], [], run.updated_at, None, decided)


class _Shown(NamedTuple):
    """A run with everything that `show` prints about it."""

    run: Run[Any]
    found: Diagnosis
    definition: Definition
    partial: list[OpenVisit]
    requests: list[RequestView]
    now: float
    family: FamilyTree | None
    decided: list[LedgerEntry]
    """What guards, policies and verifications decided, and what was skipped; empty if the flow has no such rules."""


def _decided(reader: Reader, run_id: str, definition: Definition) -> list[LedgerEntry]:
    """Return why nodes ran, or why not, as far as rules decided that."""
    if not (definition.plan or any(node.judged for node in definition.nodes.values())):
        return []
    return [entry for entry in reader.ledger(run_id).entries if entry.type in _RULED]


def _say_run(shown: _Shown, store: str | None, *, debug: bool) -> None:
    run, found = shown.run, shown.found
    status = status_words(run.status, found)
    screen.say((run.id, "bold"), f"  flow {run.flow}  ", (status, f"bold {screen.STYLES[name_status(run)]}"))
    screen.say(("; ".join(facts_of(run, shown.now)), "dim"))
    screen.say("")
    _say_graph(run, shown.definition, shown.now, crashed=found.crashed)
    screen.say("")
    screen.say("Why:  ", found.reason)
    if run.status == "failed":
        say_where(run.error, debug=debug)
    say_remedies(found.remedies)
    _say_decided(shown, store)
    if shown.family is not None:
        _say_family(shown.family, store)
    _say_requests(shown, store)
    if run.signals:
        screen.say("Signals that no node has received yet:  ", ", ".join(map(_kept, run.signals.items())))
    for left in run.uncleaned:
        screen.say(("Not cleaned up:  ", "yellow"), text.not_cleaned_up(left))
    for aside in run.set_aside:
        payload = screen.one_line(screen.json_text(aside.payload, indent=None), 120)
        told = f"the signal {aside.name!r} = {payload} did not fit {aside.node}: {screen.one_line(aside.reason, 300)}"
        screen.say(("Set aside:  ", "yellow"), told)
    for warned in run.warnings:
        fault = screen.one_line(warned.failure.describe(), 300)
        node = shown.definition.nodes.get(warned.node)
        how = words.handled(is_caught=node is not None and bool(node.on_error))
        screen.say(("Warning:  ", "yellow"), f"node {warned.node} failed, {how}: {fault}")
    for one in shown.partial:
        say_visit(one, _head(one, run, crashed=found.crashed))
    _say_more(run, store, has_plan=bool(shown.definition.plan))


def _say_decided(shown: _Shown, store: str | None) -> None:
    """Print what rules decided: why a node ran, or why not."""
    if not shown.decided:
        return
    screen.say("")
    screen.say("Decided:")
    for entry in shown.decided[-_DECIDED_MAX:]:
        reads = ", ".join(
            f"{path} = {words.value(read)}" for path, read in entry.about.get("reads", {}).items()
        )
        why = "; ".join(part for part in (entry.reason or "", reads) if part)
        screen.say(
            (f"  {entry.type.ljust(12)}  ", "dim"), entry.text, (f"  {screen.one_line(why, 300)}", "dim")
        )
    if (more := len(shown.decided) - _DECIDED_MAX) > 0:
        every = line("ledger", shown.run.id, store=store)
        screen.say((f"  … and {more} before them: {every}", "dim"))


def _say_family(family: FamilyTree, store: str | None) -> None:
    """Draw the children of a run with theirs, below the runs that called it: the status of each, and why it is there."""
    screen.say("")
    screen.say("Family:")
    above = len(family.callers)
    for depth, caller in enumerate(reversed(family.callers)):
        screen.say(("  " * (depth + 1) + caller.id, "dim"))
    for one in family.members:
        indent = "  " * (above + one.depth + 1)
        mark = drawing.MARKS.get(one.status, " ") if not screen.ascii_only() else "-"
        status = name_status(one)
        style = screen.STYLES.get(status, "")
        key = f" as {one.key}" if one.key not in (None, one.flow) else ""
        item = f"[{one.item}]" if one.item is not None else ""
        by = f", by {one.node}{item}{key}" if one.node is not None and one.depth else ""
        why = f": {screen.one_line(one.reason, 200)}" if one.depth and one.status != "completed" else ""
        name = (one.id, "bold") if one.depth == 0 else one.id
        screen.say(indent, (mark, style), " ", name, f"  {one.flow}{by}  ", (status, style), (why, "dim"))
        if one.more:
            more = line("runs", "--origin", one.id, store=store)
            screen.say((f"{indent}  … and more: {more}", "dim"))


def _say_requests(shown: _Shown, store: str | None) -> None:
    """Print the requests that wait, and the last ones that were refused."""
    waiting = [one for one in shown.requests if one.status == "waiting"]
    refused = [one for one in shown.requests if one.status == "refused"]
    if shown.requests:
        screen.say("")
        screen.say("Requests:")
    for one in [*refused[-_REFUSALS_MAX:], *waiting]:
        say_request(one, shown.now)
    if len(refused) > _REFUSALS_MAX:
        screen.say(
            (f"  all requests that were refused: {line('requests', shown.run.id, store=store)}", "dim")
        )


def _kept(signal: tuple[str, int]) -> str:
    name, times = signal
    return screen.one_line(f"{name!r}" + (f" ({times} times)" if times > 1 else ""))


def facts_of(run: Run[Any], now: float) -> list[str]:
    """Return the times, the cost and the relations of a run, a few words each."""
    facts = [
        f"started {screen.when(run.created_at)}",
        f"last event {run.seq}, {screen.ago(now - run.updated_at)}",
        f"active {screen.duration(run.active_s)}",
    ]
    facts += [spent] if (spent := words.cost(run.cost)) else []
    facts += [f"children {spent}"] if (spent := words.cost(run.children_cost)) else []
    facts += [f"budget {run.budget} (left: {run.budget_left})"] if run.budget is not None else []
    facts += [f"scope {', '.join(run.scope)}"] if run.scope is not None else []
    facts += ["layered"] if run.schedule == "layered" else []
    facts += [f"called by {run.caller}"] if run.caller else []
    facts += [f"forked from {run.parent}"] if run.parent else []
    return facts + [f"{name}={value}" for name, value in run.labels.items()]


def _head(one: OpenVisit, run: Run[Any], *, crashed: bool) -> str:
    """Return the heading under which the facts about an open visit are printed."""
    if run.status == "cancelled":
        return f"{one.node} had not ended when the run was cancelled. What is known about it:"
    has_crashed = one.status == "interrupted" or (crashed and one.status == "running")
    if has_crashed or partial_of(run.questions, one.node):
        return f"{one.node} crashed. What is known about it:"
    return {
        "running": f"{one.node} so far:",
        "waiting": f"{one.node} waits. So far:",
    }.get(one.status, f"{one.node} failed. What is known about it:")


def _say_graph(run: Run[Any], definition: Definition, now: float, *, crashed: bool) -> None:
    statuses = {
        name: "interrupted" if crashed and node.status == "running" else node.status
        for name, node in run.nodes.items()
    }
    notes = {name: _note(node, now, crashed=crashed) for name, node in run.nodes.items()}
    picture = drawing.terminal(
        definition,
        statuses,
        width=screen.picture_width(),
        notes=notes,
        routes=routes_of(run),
        ascii=screen.ascii_only(),
    )
    styles = {
        mark: screen.STYLES[status] for status, mark in drawing.MARKS.items() if status in screen.STYLES
    }
    for drawn in picture.splitlines():
        mark = next((char for char in drawn[:40] if char in styles), None)
        before, _, after = drawn.partition(mark) if mark else (drawn, "", "")
        screen.say(before, (mark or "", styles.get(mark or "", "")), after)


def _note(node: NodeView, now: float, *, crashed: bool) -> str:
    has_crashed = (
        crashed and node.status == "running"
    )  # the time of a crash is not recorded, so the duration is unknown
    begun = node.status != "pending" and node.attempt > 0
    going_s = max(0.0, now - node.started_at) if node.status == "running" else 0.0
    notes = ["—" if has_crashed else screen.duration(node.seconds + going_s)] if begun else []
    if node.items is not None:
        notes.append(f"{node.items[0]} of {node.items[1]} items")
    if node.iteration > 1:
        notes.append(screen.count(node.iteration, "iteration"))
    if node.tries > node.iteration:
        notes.append(screen.count(node.tries, "attempt"))
    if node.status not in ("completed", "pending"):
        notes.append("crashed" if has_crashed else node.status)
    notes += [spent] if (spent := words.cost(node.cost)) else []
    return ", ".join(notes)


def _say_more(run: Run[Any], store: str | None, *, has_plan: bool) -> None:
    screen.say("")
    screen.say("More:")
    of_plan = [(line("plan", "show", run.id, store=store), "show why each task ran, or why not")]
    say_commands([
        *(of_plan if has_plan else []),
        (line("events", run.id, store=store), "print its log"),
        (line("state", run.id, store=store), "print its state"),
        (line("checkpoints", run.id, store=store), "list the places it can go back to"),
    ])  # fmt: skip


@command(LOOK)
def graph(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:FLOW]|RUN", help="The Python file that defines a flow, or the id of a run."
        ),
    ],
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print the graph as a Mermaid flowchart instead of text.")
    ] = False,
    svg: Annotated[
        bool, typer.Option("--svg", help="Print the graph as an SVG document instead of text.")
    ] = False,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Draw the graph of a flow or of a run.

    For a run, it draws the flow as it was when the run was created, with the status of every node.
    """
    statuses: dict[str, str] = {}
    of_file: dict[str, Any] = {}
    run: Run[Any] | None = None
    if ".py" in target or os.path.exists(target):
        flow = flow_files.load_flow(target, with_plan="plan draw PLAN")
        definition = flow.definition
        of_file = {"description": flow.description, "input_schema": flow.input_schema()}
    else:
        options.check_run_id(target)

        def use(reader: Reader) -> tuple[Definition, Run[Any]]:
            return reader.definition(reader.store.run(target)), reader.get(target)

        definition, run = stores.read(store, use)
        statuses = {name: node.status for name, node in run.nodes.items()}
    if as_json:
        screen.say_json({"definition": definition, "statuses": statuses, **of_file})
        return
    if of_file.get("description") and not (mermaid or svg):
        screen.say(f"{of_file['description']}\n")
    print_graph(definition, run, mermaid=mermaid, svg=svg)


def print_graph(
    definition: Definition, run: Run[Any] | None = None, *, mermaid: bool = False, svg: bool = False
) -> None:
    """Print a flow, or a run of it: as text, as a Mermaid flowchart or as an SVG document."""
    statuses = {name: node.status for name, node in run.nodes.items()} if run is not None else {}
    if mermaid:
        print(drawing.mermaid(definition, statuses))
    elif svg:
        print(draw_run(run, definition) if run is not None else draw(definition))
    else:
        width = screen.picture_width()
        routes = routes_of(run) if run is not None else {}
        print(drawing.terminal(definition, statuses, width=width, routes=routes, ascii=screen.ascii_only()))


@command(CHECK)
def version(as_json: options.AsJson = False, debug: options.Debug = False) -> None:
    """Print the versions of Holdfast and Python."""
    import platform

    known = {"holdfast": holdfast.__version__, "python": platform.python_version()}
    if as_json:
        screen.say_json(known)
    else:
        print("  ".join(f"{name} {number}" for name, number in known.items()))
