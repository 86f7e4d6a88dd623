"""How a run stands: why it stopped, what it asks and waits for, and the exact commands that carry it on.

Used by everything that shows a run, so that a run is never described in two ways. A run is *cut* when it should be going and
nobody executes it: its process died. It is *told* when somebody has answered it or told it something, and nobody executes it.
Both are seen from the lease and the log, not from the status.
"""

from __future__ import annotations

import shlex
from typing import Any, assert_never

import msgspec

from holdfast.cli import flow_files, program, screen
from holdfast.core.definition import Definition
from holdfast.core.kinds import FROM_OUTSIDE
from holdfast.core.run_state import ENDED, GOING, NodeState, Question, RunState, Wait, awaited_signals
from holdfast.documents.scribe import WANTED
from holdfast.errors import StoreCorrupt, named
from holdfast.reading import history
from holdfast.reading.views import EventView, Run
from holdfast.runtime import settings
from holdfast.runtime.engine import Engine
from holdfast.storage import urls
from holdfast.storage.contract import RunRow, RunStatus

_ENDINGS = {"cancelled": "RunCancelled", "paused": "RunPaused", "interrupted": "RunInterrupted"}
_ASKED_MAX = 3


class Way(msgspec.Struct, frozen=True):
    """A command, and what it does."""

    command: str
    does: str


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What the row of a run does not say."""

    cut: bool = False
    told: bool = False
    """Somebody has spoken, something is due, and nobody executes it."""
    questions: tuple[Question, ...] = ()
    waits: tuple[Wait, ...] = ()
    retries: dict[str, float] = {}
    """Node -> when it is tried again."""
    kept: tuple[str, ...] = ()
    """Signals that nobody has taken yet."""
    refused: tuple[str, ...] = ()
    """Nodes that somebody has refused; the run fails when it is carried on."""
    asked_about: dict[str, bool] = {}
    """Nodes that were cut and are asked about instead of run -> whether they are idempotent."""
    once: tuple[str, ...] = ()
    """Nodes that failed and are not idempotent."""
    wants_base: bool = False
    """It was made where there was a RUN_BASE."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run stands as it does, and what somebody can do about it."""

    status: RunStatus
    cut: bool
    told: bool
    why: str
    ways: list[Way]
    waits: tuple[Wait, ...] = ()
    """The timers and signals it waits for."""


# --- looking -----------------------------------------------------------------------------------------


def look(engine: Engine, row: RunRow, *, failed_too: bool = False) -> Look:
    """Look closer at a run that is not over."""
    if row.status in ENDED and not (failed_too and row.status == "failed"):
        return Look()
    state = history.load(engine.store, row.run_id, row=row)
    told = not row.held and not state.running and _is_told(engine, row, state)
    return Look(
        cut=not row.held and not told and _is_cut(row.status, state),
        told=told,
        questions=tuple(state.questions.values()),
        waits=tuple(state.waits.values()),
        retries=_retries(state),
        kept=tuple(state.signals),
        refused=tuple(name for name in state.failed if _is_refused(state.nodes[name])),
        asked_about=_asked_about(engine, row, state),
        once=_once(engine, row, state),
        wants_base=bool(state.options.get(WANTED)),
    )


def definition_of(engine: Engine, row: RunRow) -> Definition:
    """The definition of a run's flow, as the store has it."""
    stored = engine.store.definition(row.fingerprint)
    if stored is None:
        raise StoreCorrupt(
            f"run {row.run_id!r}: the definition of its flow is not in the store. `holdfast verify` says more."
        )
    return history.defined(stored, row.run_id)


def _asked_about(engine: Engine, row: RunRow, state: RunState) -> dict[str, bool]:
    cut = [name for name in state.open if state.nodes[name].status in ("running", "interrupted")]
    if row.held or not cut:
        return {}
    nodes = definition_of(engine, row).nodes
    return {
        name: nodes[name].idempotent
        for name in cut
        if name in nodes and nodes[name].on_interrupt == "ask" and not state.nodes[name].question
    }


def _once(engine: Engine, row: RunRow, state: RunState) -> tuple[str, ...]:
    begun = [name for name in state.failed if name in state.open and state.nodes[name].attempt]
    nodes = definition_of(engine, row).nodes if begun else {}
    return tuple(name for name in begun if name in nodes and not nodes[name].idempotent)


def _is_refused(node: NodeState) -> bool:
    return node.failure is not None and node.failure.type == "QuestionRefused"


def _is_cut(status: RunStatus, state: RunState) -> bool:
    """Whether a run that nobody executes should be going: something runs, or goes on by itself when its time comes."""
    timers = any(wait.kind == "timer" for wait in state.waits.values())
    return status == "running" or (status == "waiting" and (timers or bool(_retries(state))))


def _is_told(engine: Engine, row: RunRow, state: RunState) -> bool:
    last = engine.store.events(row.run_id, row.seq - 1)
    if not last or last[-1].kind not in FROM_OUTSIDE:
        return False
    if row.status != "waiting":
        return row.status in GOING
    return any(
        node.status == "pending" or (node.items is not None and 0.0 in node.items.again.values())
        for node in state.nodes.values()
    )


def _retries(state: RunState) -> dict[str, float]:
    found = {name: node.retry_at for name, node in state.nodes.items() if node.retry_at is not None}
    for name, node in state.nodes.items():
        again = [at for at in node.items.again.values() if at] if node.items is not None else []
        if again and node.status == "waiting":
            found.setdefault(name, min(again))
    return found


async def standing(
    engine: Engine,
    run: Run[object],
    *,
    file: str | None = None,
    store: str | None = None,
    run_base: str | None = None,
    takes: tuple[str, ...] = (),
) -> Standing:
    """How a run stands. What a command was called with stands in the commands that it suggests, too. `takes`: what every
    `resume` of it has to be told.
    """
    row = engine.store.run(run.id)
    seen = look(engine, row, failed_too=True)
    kind = _ENDINGS.get(run.status)
    ended = await engine.events(run.id, kind=kind) if kind else []
    if seen.told:
        ended = await engine.events(run.id, run.seq - 1)
    why = _why(run, seen, ended=ended[-1] if ended else None, now=engine.store.now())
    ways = _ways(run, seen, file=file, store=store, run_base=base_for(seen, run_base), takes=takes)
    return Standing(status=run.status, cut=seen.cut, told=seen.told, why=why, ways=ways, waits=seen.waits)


# --- why ---------------------------------------------------------------------------------------------


def _why(run: Run[object], seen: Look, *, ended: EventView | None, now: float) -> str:
    by = f" by {ended.by}" if ended is not None and ended.by else ""
    reason = f": {ended.body['reason']}" if ended is not None and ended.body.get("reason") else ""
    going = [name for name, node in run.nodes.items() if node.status == "running"]
    awaited = awaits(seen, now)
    behind = f"; {'; '.join(awaited)}" if awaited else ""
    if run.held_by is not None and run.status not in ENDED:
        return f"{run.held_by} executes it" + (f", now in {', '.join(going)}" if going else "") + behind
    if seen.cut:
        inside = f" in {' and '.join(going)}" if going else ""
        return f"cut: the process that executed it ended{inside} without a word, and nobody carries it on{behind}"
    if seen.told:
        refuses = f", which refuses {' and '.join(seen.refused)}" if seen.refused else ""
        return f"{_said(ended)}{refuses}, and nobody executes it{behind}"
    match run.status:
        case "pending":
            return "recorded, and not begun: nobody executes it"
        case "running":
            return "under way"
        case "waiting":
            return "; ".join(awaited) or "waits, and nobody executes it"
        case "completed":
            return "every branch reached its end"
        case "failed":
            return _failure(run)
        case "cancelled":
            return f"cancelled{by}{reason}"
        case "paused":
            return f"paused{by}{reason}{behind}"
        case "interrupted":
            return f"its process was asked to stop{reason}; everything was left in order{behind}"
        case _:
            assert_never(run.status)


def _said(last: EventView | None) -> str:
    by = f" by {last.by}" if last is not None and last.by else ""
    if last is not None and last.kind == "SignalReceived":
        return f"told {last.body.get('name')!r}{by}"
    return f"answered{by}"


def awaits(seen: Look, now: float) -> list[str]:
    """What the run asks and waits for, each in a few words."""
    found = [f"{asks(question)}{_until(question.until, now)}" for question in seen.questions[:_ASKED_MAX]]
    if len(seen.questions) > _ASKED_MAX:
        found.append(f"{screen.count(len(seen.questions) - _ASKED_MAX, 'more question')}")
    for wait in seen.waits:
        who = _who(wait.node, wait.item)
        match wait.kind:
            case "signal":
                found.append(f"{who} waits for the signal {wait.signal!r}{_until(wait.until, now)}")
            case "timer":
                found += [f"{who} sleeps until {screen.when(wait.until)}"] if wait.until is not None else []
            case unknown:
                assert_never(unknown)
    found += [f"{name} is tried again at {screen.when(at)}" for name, at in seen.retries.items()]
    return found


def asks(question: Question) -> str:
    """A question and who asks it, in one line. One about a cut node names it."""
    text = screen.one_line(question.text, 300)
    return text if question.about == "interrupt" else f"{_who(question.node, question.item)} asks: {text}"


def _who(node: str, item: int | None) -> str:
    return node if item is None else f"{node} (item {item})"


def _until(until: float | None, now: float) -> str:
    if until is None:
        return ""
    if until <= now:
        return f" (until {screen.when(until)}, which is over: whoever carries it on records that)"
    return f" (until {screen.when(until)})"


def _failure(run: Run[object]) -> str:
    error = run.error
    told = named(error.type, error.message) if error is not None else "unknown"
    where = f"node {run.failed_node} failed" if run.failed_node else "the run failed"
    fatal = (
        " (fatal: trying again is pointless unless the cause is gone)"
        if error is not None and error.kind == "fatal" and error.type != "QuestionRefused"
        else ""
    )
    return f"{where}: {told}{fatal}"


# --- ways --------------------------------------------------------------------------------------------


def line(
    verb: str,
    run: str,
    *rest: str,
    file: str | None = None,
    store: str | None = None,
    run_base: str | None = None,
    executes: bool = False,
) -> str:
    """A command as it would be typed, without any password. `executes`: it needs the flow's file, unless the project lists it."""
    words = [verb, run, *(_file(file) if executes else ()), *rest]
    if run_base is not None:
        words += ["--run-base", run_base]
    if store is not None:
        words += ["--store", urls.shown(store)]
    return f"{program.name()} {shlex.join(words)}"


def _file(file: str | None) -> tuple[str, ...]:
    """The flow's file as it would be typed; nothing where the project lists it."""
    if file is not None:
        return (file,)
    return () if flow_files.has_project_flows() else ("FILE.py",)


def base_for(seen: Look, given: str | None) -> str | None:
    """The RUN_BASE that a command which carries the run on must be told: as it was given here; `DIR` where the run was made
    with one and none is set.
    """
    if given is not None:
        return given
    return "DIR" if seen.wants_base and not settings.resolve({}).run_base else None


def _ways(
    run: Run[object],
    seen: Look,
    *,
    file: str | None,
    store: str | None,
    run_base: str | None,
    takes: tuple[str, ...],
) -> list[Way]:
    def resume(does: str, *rest: str) -> Way:
        typed = line(
            "resume", run.id, *rest, *takes, file=file, store=store, run_base=run_base, executes=True
        )
        return Way(typed, does)

    if run.status == "completed":
        return []
    if run.status == "cancelled":
        places = line("checkpoints", run.id, store=store)
        return [Way(line("fork", f"{run.id}@SEQ", store=store), f"go on from a checkpoint (see: {places})")]
    if run.status == "failed":
        does, *rest = _once_more(run, seen)
        made_with = "FILE.py" if takes else file  # skip takes no flow of another shape
        return [resume(does, *rest), *_skip(run, seen, file=made_with, store=store, run_base=run_base)]
    speak = [*_answers(run.id, seen.questions, file, store), *_signals(run.id, seen.waits, store)]
    if run.held_by is not None:
        return [*speak, Way(line("events", run.id, "--follow", store=store), "watch it")]
    if seen.refused:
        return [resume(f"let it end: it fails, {' and '.join(seen.refused)} never ran"), *speak]
    if seen.cut or seen.told or seen.asked_about or not speak:
        return [resume(carries_on(seen)), *speak]
    return [*speak, resume(f"then {carries_on(seen)}")]


def carries_on(seen: Look) -> str:
    """What resuming a run does that has not failed."""
    names = " and ".join(seen.asked_about)
    if not names:
        return "carry it on; what completed does not run again"
    asks_what = f"resume asks what to do, it does not run {'it' if len(seen.asked_about) == 1 else 'them'}"
    if any(seen.asked_about.values()):
        return f"carry it on; {names} may have done something: {asks_what}"
    return f"{names} {'is' if len(seen.asked_about) == 1 else 'are'} not idempotent: {asks_what}"


def _once_more(run: Run[object], seen: Look) -> tuple[str, ...]:
    """What resuming a failed run does, and the options it takes."""
    again = f"; it runs {' and '.join(seen.once)} AGAIN, which is not idempotent" if seen.once else ""
    if run.error is None or run.error.kind != "fatal":
        return (f"fix the cause, then carry it on{again}",)
    if run.error.type == "QuestionRefused":
        return (f"ask again; {run.failed_node} begins only if it is then approved", "--force")
    return (f"try again all the same{again}", "--force")


def _skip(
    run: Run[object], seen: Look, *, file: str | None, store: str | None, run_base: str | None
) -> list[Way]:
    node = run.failed_node
    if node is None:
        return []
    happened = "; skip stands for: its effect did happen" if node in seen.once else ""
    typed = line("skip", run.id, node, *_file(file), store=store, run_base=run_base)
    return [Way(typed, f"go on without {node}{happened}")]


def _signals(run_id: str, waits: tuple[Wait, ...], store: str | None) -> list[Way]:
    names = dict.fromkeys(awaited_signals(waits))
    return [
        Way(
            line("signal", run_id, name, store=store), "tell it that; a payload, as JSON, may follow the name"
        )
        for name in list(names)[:_ASKED_MAX]
    ]


def _answers(run_id: str, questions: tuple[Question, ...], file: str | None, store: str | None) -> list[Way]:
    """Every answer to the first few questions, and where the others are listed."""
    found = [
        way
        for question in questions[:_ASKED_MAX]
        for way in answers(run_id, question, questions, file, store)
    ]
    if len(questions) > _ASKED_MAX:
        found.append(Way(line("questions", run_id, store=store), f"all {len(questions)} questions"))
    return found


def answers(
    run_id: str, question: Question, among: tuple[Question, ...], file: str | None, store: str | None
) -> list[Way]:
    """The commands that answer a question, each with what it leads to."""
    of_node = sum(other.node == question.node for other in among) == 1
    called = question.node if of_node else question.key
    found = []
    for value, does in choices(question):
        update = (*_file(file), "--update", '{"FIELD": "VALUE"}')
        rest = update if question.about == "interrupt" and value == "skip" else ()
        found.append(Way(line("answer", run_id, called, value, *rest, store=store), does))
    return found


def choices(question: Question) -> list[tuple[str, str]]:
    """What may be answered, as it is typed, and what follows from it."""
    node = question.node
    if question.about == "interrupt":
        return [
            ("retry", f"its effect did not happen: run {node} again"),
            (
                "skip",
                f"its effect did happen (a payment went through): the fields stand for what {node} would have returned",
            ),
            ("abort", "call the run off"),
        ]
    if question.options and question.approving:
        refuses = f"refuse: the run fails, {node} never runs"
        return [
            (option, f"go on with {node}" if option in question.approving else refuses)
            for option in question.options
        ]
    if question.options:
        return [(option, f"answer {node}") for option in question.options]
    typed, words = form(question.answer_schema)
    return [(typed, f"answer {node} with {words}")]


_FORMS = {
    "integer": ("NUMBER", "a whole number"),
    "number": ("NUMBER", "a number"),
    "string": ("TEXT", "a text"),
    "boolean": ("true", "true or false"),
    "array": ("[…]", "a list, as JSON"),
}


def form(schema: dict[str, Any]) -> tuple[str, str]:
    """What a question without options wants: as it is typed, and in words."""
    reference = schema.get("$ref", "").rpartition("/")[2]
    schema = schema.get("$defs", {}).get(reference, schema)
    if schema.get("enum"):
        return screen.json_text(
            schema["enum"][0], indent=None
        ), f"one of {', '.join(map(str, schema['enum']))}"
    if schema.get("type") == "object":
        fields = schema.get("properties", {})
        return "{" + ", ".join(f'"{name}": …' for name in fields) + "}", "an object, as JSON"
    return _FORMS.get(str(schema.get("type")), ("VALUE", "JSON or a text"))


def say_ways(ways: list[Way], *, err: bool = False) -> None:
    """Print commands, each with what it does."""
    width = screen.picture_width()
    for way in ways:
        if len(way.command) + len(way.does) + 9 <= width:
            screen.say(("  $ ", "dim"), (way.command, "bold"), (f"   # {way.does}", "dim"), err=err)
        else:
            screen.say((f"  # {way.does}", "dim"), err=err)
            screen.say(("  $ ", "dim"), (way.command, "bold"), err=err)
