"""How a run stands: why it stopped, and the exact commands that carry it on.

Used by everything that shows a run, so that a run is never described in two ways. A run is *cut* when it should be going and
nobody executes it: its process died. That is seen from the lease, not from the status.
"""

from __future__ import annotations

import shlex

import msgspec

from holdfast.cli import flow_files, program, screen
from holdfast.runtime.engine import Engine
from holdfast.runtime.views import EventView, Run
from holdfast.storage.contract import RunRow, RunStatus

_ENDINGS = {"cancelled": "RunCancelled", "paused": "RunPaused", "interrupted": "RunInterrupted"}


class Way(msgspec.Struct, frozen=True):
    """A command, and what it does."""

    command: str
    does: str


class Standing(msgspec.Struct, frozen=True):
    """Why a run stands as it does, and what somebody can do about it."""

    status: RunStatus
    cut: bool
    why: str
    ways: list[Way]


def is_cut(status: RunStatus, *, held: bool, due: bool) -> bool:
    """Whether the run should be going, and nobody executes it."""
    return not held and (status == "running" or (status == "waiting" and due))


def is_row_cut(row: RunRow) -> bool:
    """Whether a run as it is listed was cut."""
    return is_cut(row.status, held=row.held, due=row.due_at is not None)


def line(
    verb: str, run: str, *rest: str, file: str | None = None, store: str | None = None, executes: bool = False
) -> str:
    """A command as it would be typed. `executes`: it needs the flow's file, unless the project lists it."""
    words = [verb, run]
    if executes and file is not None:
        words.append(file)
    elif executes and not flow_files.has_project_flows():
        words.append("FILE.py")
    words.extend(rest)
    if store is not None:
        words += ["--store", store]
    return f"{program.name()} {shlex.join(words)}"


async def standing(
    engine: Engine, run: Run[object], *, file: str | None = None, store: str | None = None
) -> Standing:
    """How a run stands."""
    kind = _ENDINGS.get(run.status)
    ended = await engine.events(run.id, kind=kind) if kind else []
    due = any(node.retry_at is not None for node in run.nodes.values())
    cut = is_cut(run.status, held=run.held_by is not None, due=due)
    why = _why(run, cut=cut, ended=ended[-1] if ended else None)
    return Standing(run.status, cut, why, _ways(run, cut=cut, file=file, store=store))


def _why(run: Run[object], *, cut: bool, ended: EventView | None) -> str:
    by = f" by {ended.by}" if ended is not None and ended.by else ""
    reason = f": {ended.body['reason']}" if ended is not None and ended.body.get("reason") else ""
    going = [name for name, node in run.nodes.items() if node.status == "running"]
    if cut:
        inside = f" in {' and '.join(going)}" if going else ""
        return f"cut: the process that executed it ended{inside} without a word, and nobody carries it on"
    if run.held_by is not None:
        return f"{run.held_by} executes it" + (f", now in {', '.join(going)}" if going else "")
    match run.status:
        case "pending":
            return "recorded, and not begun: nobody executes it"
        case "running":
            return "under way"
        case "waiting":
            return "; ".join(question.text for question in run.questions) or "waits for a retry"
        case "completed":
            return "every branch reached its end"
        case "failed":
            return _failure(run)
        case "cancelled":
            return f"cancelled{by}{reason}"
        case "paused":
            return f"paused{by}{reason}"
        case "interrupted":
            return f"its process was asked to stop{reason}; everything was left in order"


def _failure(run: Run[object]) -> str:
    error = run.error
    told = f"{error.type}: {error.message}" if error is not None else "unknown"
    where = f"node {run.failed_node} failed" if run.failed_node else "the run failed"
    fatal = (
        " (fatal: trying again is pointless unless the cause is gone)"
        if error is not None and error.kind == "fatal"
        else ""
    )
    return f"{where}: {told}{fatal}"


def _ways(run: Run[object], *, cut: bool, file: str | None, store: str | None) -> list[Way]:
    def way(does: str, verb: str, *rest: str, executes: bool = True) -> Way:
        return Way(line(verb, run.id, *rest, file=file, store=store, executes=executes), does)

    carry_on = way("carry it on; what completed does not run again", "resume")
    if run.status in ("completed", "cancelled"):
        again = Way(
            line("fork", f"{run.id}@SEQ", store=store),
            f"go on from a checkpoint (see: {line('checkpoints', run.id, store=store)})",
        )
        return [again] if run.status == "cancelled" else []
    if run.held_by is not None:
        return [way("watch it", "events", "--follow", executes=False)]
    if run.status == "failed":
        fatal = run.error is not None and run.error.kind == "fatal"
        first = (
            way("try again all the same", "resume", "--force")
            if fatal
            else way("fix the cause, then carry it on", "resume")
        )
        if run.failed_node is None:
            return [first]
        return [first, _skip(run.id, run.failed_node, file, store)]
    if run.questions and not cut:
        return [
            *(found for question in run.questions for found in _answers(run.id, question.node, file, store)),
            way("abort: call the run off", "cancel", executes=False),
        ]
    return [carry_on]


def _skip(run_id: str, node: str, file: str | None, store: str | None) -> Way:
    return Way(_on_node("skip", run_id, node, file, store), f"go on without {node}")


def _answers(run_id: str, node: str, file: str | None, store: str | None) -> list[Way]:
    """What somebody can do who found out whether the effect of a cut node happened."""
    update = ("--update", '{"FIELD": "VALUE"}')
    return [
        Way(
            _on_node("retry", run_id, node, file, store),
            f"retry: its effect did not happen; run {node} again",
        ),
        Way(
            _on_node("skip", run_id, node, file, store, *update),
            f"skip: its effect did happen (a payment went through); the fields stand for what {node} would have returned",
        ),
    ]


def _on_node(verb: str, run_id: str, node: str, file: str | None, store: str | None, *rest: str) -> str:
    where = () if file is None and flow_files.has_project_flows() else (file or "FILE.py",)
    return line(verb, run_id, node, *where, *rest, store=store)


def say_ways(ways: list[Way], *, err: bool = False) -> None:
    """Print commands, each with what it does."""
    width = screen.picture_width()
    for way in ways:
        if len(way.command) + len(way.does) + 9 <= width:
            screen.say(("  $ ", "dim"), (way.command, "bold"), (f"   # {way.does}", "dim"), err=err)
        else:
            screen.say((f"  # {way.does}", "dim"), err=err)
            screen.say(("  $ ", "dim"), (way.command, "bold"), err=err)
