"""Commands for what a run asks and waits for: questions, answer, signal. They need no flow, and nothing is executed by them.

Only the answer `skip` to a node that was cut needs the flow, where nobody executes the run: what comes behind the node is in
its definition. An answer is checked before it is recorded; one that does not fit leaves everything as it was.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import flow_files, known, options, program, screen, stores
from holdfast.cli.app import LOOK, OPERATE, command
from holdfast.cli.known import Known
from holdfast.cli.screen import Part
from holdfast.cli.standing import Look, Standing, Way, answers, choices, line, look, say_ways, standing
from holdfast.core.answers import misfit
from holdfast.core.run_state import Question
from holdfast.errors import SettingError
from holdfast.reading.views import AskedQuestion, Run
from holdfast.runtime.engine import Engine

_ABOUT = {"interrupt": "was cut", "gate": "has not begun", "ask": "asks"}
_ANSWERED_MAX = 3


@command(OPERATE)
def answer(
    run_id: options.RunId,
    question: Annotated[
        str,
        typer.Argument(
            metavar="QUESTION", help="Its key, or the name of the node that asks; `questions` lists them."
        ),
    ],
    value: Annotated[
        str,
        typer.Argument(
            metavar="VALUE", help="One of the options, or JSON, or a text; behind -- if it begins with -."
        ),
    ],
    file: options.File = None,
    update: Annotated[
        str | None,
        typer.Option(
            "--update",
            metavar="JSON|@FILE",
            help="With skip: what the node would have returned, as a JSON object.",
        ),
    ] = None,
    confidence: Annotated[
        float | None, typer.Option("--confidence", metavar="N", help="How sure you are, from 0 to 1.")
    ] = None,
    by: options.By = None,
    reason: options.Reason = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Answer a question of a run.

    Whoever executes the run goes on with the answer; where nobody does, `resume` carries it on. Only skip needs the flow.
    """
    fields = options.read_fields(update, "--update")
    asked, held = _asked(run_id, question, store)
    chosen = _read(value, asked.question if asked is not None else None)
    needed = not held and _needs_flow(asked, chosen)
    wanted = asked.flow if asked is not None else None
    flows = flow_files.flows_for(file, wanted) if asked is not None and (file is not None or needed) else []
    if needed and asked is not None:
        _require_flow(asked, [flow.name for flow in flows])
    key = asked.question.key if asked is not None else question

    async def use(engine: Engine) -> tuple[Run[Any], Standing]:
        run = await engine.answer(
            run_id, key, chosen, update=fields, confidence=confidence, by=options.who(by), reason=reason
        )
        return run, await standing(engine, run, file=file, store=store)

    run, stands = stores.execute(store, use, {"flows": flows}, known=True)
    if as_json:
        _say_json(run, stands, {"question": key, "answer": chosen})
        return
    open_still = any(other.key == key for other in run.questions)
    screen.say(("answered  ", "bold green"), f"{run_id} {key}: {screen.json_text(chosen, indent=None)}")
    _say_rest(run, stands, "has not taken it up yet" if open_still else "goes on with it")


def _asked(run_id: str, named: str, store: str | None) -> tuple[AskedQuestion | None, bool]:
    """The open question of that name, if there is exactly one, and whether somebody executes its run."""

    async def use(engine: Engine) -> tuple[list[AskedQuestion], bool]:
        return await engine.questions(run_id), engine.store.run(run_id).held

    found, held = stores.read(store, use)
    by_key = [one for one in found if one.question.key == named]
    fitting = by_key or [one for one in found if one.question.node == named]
    return (fitting[0] if len(fitting) == 1 else None), held


def _read(given: str, question: Question | None) -> Any:
    """An answer as it was typed: an option as it stands, otherwise JSON where it is JSON and fits, otherwise a text."""
    if question is None or question.options:
        return given
    try:
        value = json.loads(given, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return given
    schema = question.answer_schema or None
    only_as_text = misfit(value, (), schema) is not None and misfit(given, (), schema) is None
    return given if only_as_text else value


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _needs_flow(asked: AskedQuestion | None, value: Any) -> bool:
    """Whether something must be put in place of a node's result, which needs what comes behind the node."""
    return asked is not None and asked.question.about == "interrupt" and value == "skip"


def _require_flow(asked: AskedQuestion, known_flows: list[str]) -> None:
    if asked.flow in known_flows:
        return
    given = f" Known here: {', '.join(map(repr, known_flows))}." if known_flows else ""
    raise SettingError(
        f"to skip {asked.question.node!r} its flow {asked.flow!r} is needed, which says what comes behind it.{given} Name the "
        f"file behind the answer: {program.name()} answer {asked.run_id} {asked.question.node} skip FILE.py; or list it in "
        f'pyproject.toml: [tool.holdfast] flows = ["FILE.py:{asked.flow}"].'
    )


@command(OPERATE)
def signal(
    run_id: options.RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What `ctx.wait_for` waits for.")],
    payload: Annotated[
        str | None,
        typer.Argument(metavar="JSON|@FILE", help="What comes with it, as JSON. Default: null."),
    ] = None,
    signal_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="The same id a second time changes nothing."),
    ] = None,
    by: options.By = None,
    reason: options.Reason = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Tell a run something that it waits for.

    A node that waits for it (`ctx.wait_for`) goes on; where none does, it is kept for the next that does.
    """
    given = options.read_json(payload, "PAYLOAD")

    async def use(engine: Engine) -> tuple[Run[Any], Standing, Look]:
        run = await engine.signal(run_id, name, given, id=signal_id, by=options.who(by), reason=reason)
        return run, await standing(engine, run, store=store), look(engine, engine.store.run(run_id))

    run, stands, seen = stores.execute(store, use, {})
    is_kept = run.held_by is None and name in seen.kept
    if as_json:
        recorded = {"signal": name, "payload": given, "kept": is_kept, "repeated": run.repeated}
        _say_json(run, stands, recorded)
        return
    if run.repeated:
        screen.say(f"{run_id}: already told with id {screen.one_line(signal_id or '')}; nothing changed")
        return
    screen.say(
        ("told  ", "bold green"), f"{run_id} {screen.one_line(name)}: {screen.json_text(given, indent=None)}"
    )
    if is_kept:
        screen.say("  nobody waits for it yet: it is kept for the next that does")
    _say_rest(run, stands, "takes it up within a second")


def _say_json(run: Run[Any], stands: Standing, recorded: dict[str, Any]) -> None:
    stood = {"status": run.status, "held_by": run.held_by, "why": stands.why, "ways": stands.ways}
    screen.say_json({"id": run.id} | recorded | stood)


def _say_rest(run: Run[Any], stands: Standing, holder_does: str) -> None:
    """What becomes of it: who goes on with it, or the command that does."""
    if run.held_by is not None:
        screen.say(f"  {run.held_by} executes the run, and {holder_does}")
        return
    taken = "nobody executes the run now. A worker that knows its flow takes it up; without one:"
    screen.say(f"  {taken if stands.told else stands.why}")
    say_ways(stands.ways)


# --- what is asked -----------------------------------------------------------------------------------


class _Open(msgspec.Struct, frozen=True):
    """An open question, the commands that answer it, and what is known of the node it is about."""

    asked: AskedQuestion
    ways: list[Way]
    partial: Known | None = None


@command(LOOK)
def questions(
    run_id: Annotated[
        str | None,
        typer.Argument(metavar="RUN", callback=options.a_run, help="Only this run. Default: all runs."),
    ] = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """List what is asked, and how to answer.

    Of a node that was cut it shows what is known: what it kept, streamed and wrote, and where git stood.
    """

    async def use(engine: Engine) -> tuple[list[_Open], float]:
        found = await engine.questions(run_id)
        return [await _looked_at(engine, one, found, store) for one in found], engine.store.now()

    found, now = stores.read(store, use)
    if as_json:
        screen.say_json([_as_json(one) for one in found])
        return
    if not found:
        whose = f"Run {run_id} asks" if run_id is not None else "No run asks"
        screen.say(f"{whose} nothing." if run_id is not None else f"{whose} anything.")
        return
    columns = ["RUN", "QUESTION", "ABOUT", "ASKS", "OPTIONS", "SINCE", "UNTIL"]
    screen.say_table(columns, [_cells(one.asked, now) for one in found], flexible=3)
    for one in found:
        if one.partial is not None:
            known.say(one.partial, f"{one.partial.node} of {one.asked.run_id} was cut. What is known of it:")
    screen.say("")
    screen.say("Answer with:")
    say_ways([way for one in found[:_ANSWERED_MAX] for way in one.ways])
    if len(found) > _ANSWERED_MAX:
        screen.say(
            (
                f"The others are answered alike: {line('answer', 'RUN', 'QUESTION', 'VALUE', store=store)}",
                "dim",
            )
        )


async def _looked_at(
    engine: Engine, one: AskedQuestion, among: list[AskedQuestion], store: str | None
) -> _Open:
    of_run = tuple(other.question for other in among if other.run_id == one.run_id)
    ways = answers(one.run_id, one.question, of_run, None, store)
    if one.question.about != "interrupt":
        return _Open(one, ways)
    visits = await known.known(engine, await engine.get(one.run_id))
    return _Open(one, ways, next((visit for visit in visits if visit.node == one.question.node), None))


def _cells(asked: AskedQuestion, now: float) -> list[Part]:
    question = asked.question
    node = question.node if question.item is None else f"{question.node} (item {question.item})"
    over = question.until is not None and question.until <= now
    until = screen.when(question.until) if question.until is not None else ""
    return [
        asked.run_id,
        (question.key, "bold"),
        f"{node} {_ABOUT.get(question.about, '')}",
        question.text,
        " / ".join(typed for typed, _ in choices(question)),
        (screen.ago(now - question.asked_at), "dim"),
        (f"{until}, over" if over else until, "yellow" if over else "dim"),
    ]


def _as_json(one: _Open) -> dict[str, Any]:
    told = {"run_id": one.asked.run_id, "flow": one.asked.flow}
    fields = msgspec.structs.asdict(one.asked.question)
    return told | fields | {"known": one.partial, "ways": one.ways}
