"""Commands for the questions and signals of a run: questions, answer, signal. They execute no node and need no flow file.

Only the answer `skip` for a crashed node needs the flow, if no process executes the run: the flow says which node comes next. An
answer is checked before it is recorded; an answer that does not fit changes nothing.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import flow_files, options, screen, stores
from holdfast.cli.app import LOOK, OPERATE, command
from holdfast.cli.screen import Part
from holdfast.cli.suggestions import (
    command_line,
    line,
    say_commands,
    say_remedies,
    say_visit,
    typed_with_file,
)
from holdfast.core import requests
from holdfast.core.answers import misfit
from holdfast.core.run_state import FINAL, Question
from holdfast.core.situation import FLOW_FILE
from holdfast.errors import SettingError
from holdfast.reading import history
from holdfast.reading.cases import Case, case_of
from holdfast.reading.diagnosis import REFUSED, Diagnosis
from holdfast.reading.open_visits import OpenVisit, open_visits
from holdfast.reading.reader import Reader
from holdfast.reading.remedies import CommandLine, Remedy, answers, choices
from holdfast.reading.views import AskedQuestion, Run

_ABOUT = {"interrupt": "crashed", "gate": "has not started", "ask": "asks", "repeat": "ran in the parent"}
_ANSWERED_MAX = 3


@command(OPERATE)
@options.of(requests.Answer)
def answer(
    run_id: options.RunId,
    question: Annotated[
        str, options.argument(requests.Answer, "question", "`holdfast questions` lists both.")
    ],
    value: Annotated[
        str,
        options.argument(
            requests.Answer,
            "value",
            "JSON or plain text; put -- before an answer that begins with a dash.",
        ),
    ],
    file: options.File = None,
    update: Annotated[str | None, options.option(requests.Answer, "update")] = None,
    *,
    said: options.Said,
    by: options.By = None,
    reason: options.Reason = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Answer a question that a run asks.

    The process that executes the run continues with the answer; if there is none, `holdfast resume` continues the run. Only the
    answer skip needs the flow.
    """
    fields = stores.read_update(update, run_id, store)
    with stores.opened(store) as opened:
        before = case_of(opened, opened.run(run_id))
        asked = _asked(before, question)
        chosen = _read(value, asked)
        flows = _flows(before, asked, chosen, file)
        key = asked.key if asked is not None else question
        run = stores.execute(
            opened,
            lambda engine: engine.answer(
                run_id,
                key,
                chosen,
                update=fields,
                **said,
                by=options.resolve_actor(by),
                reason=reason,
            ),
            {"flows": flows},
        )
        reader = Reader(opened)
        found = reader.diagnose(run_id, command_line(file=file, store=store), before=before)
        is_only_claimed = reader.is_only_claimed(run_id)
    if as_json:
        _say_json(run, found, {"question": key, "answer": chosen})
        return
    open_still = any(other.key == key for other in run.questions)
    screen.say(("answered  ", "bold green"), f"{run_id} {key}: {screen.json_text(chosen, indent=None)}")
    does = "records the answer within a second" if open_still else "continues with the answer"
    _say_rest(run, found, does, store, is_only_claimed=is_only_claimed)


def _asked(case: Case, named: str) -> Question | None:
    """Return the open question with that key, or the only open question of that node; None if there is none or several."""
    assert case.state is not None
    found = [] if case.row.status in FINAL else list(case.state.questions.values())
    by_key = [one for one in found if one.key == named]
    fitting = by_key or [one for one in found if one.node == named]
    return fitting[0] if len(fitting) == 1 else None


def _flows(case: Case, asked: Question | None, chosen: Any, file: str | None) -> list[Any]:
    """Return the flows that the answer needs: only `skip` for a crashed node, in a run that no process executes, needs one."""
    if asked is None:
        return []
    needed = not case.row.held and asked.about == "interrupt" and chosen == "skip"
    flows = flow_files.flows_for(file, case.row.flow) if file is not None or needed else []
    if needed:
        _require_flow(case, asked, [flow.name for flow in flows], file)
    return flows


def _read(given: str, question: Question | None) -> Any:
    """Return the typed answer: unchanged if the question has options, else as JSON if it is JSON that fits, else as text."""
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


def _require_flow(case: Case, asked: Question, known_flows: list[str], file: str | None) -> None:
    flow = case.row.flow
    if flow in known_flows:
        return
    given = f" Known flows: {', '.join(map(repr, known_flows))}." if known_flows else ""
    recorded = case.state.options.get(FLOW_FILE) if case.state is not None else None
    raise SettingError(
        f"skipping node {asked.node!r} needs its flow {flow!r}, which says which node comes next.{given} "
        + typed_with_file(recorded, in_place_of=file)
    )


@command(OPERATE)
@options.of(requests.Signal)
def signal(
    run_id: options.RunId,
    name: Annotated[str, options.argument(requests.Signal, "name")],
    payload: Annotated[str | None, options.argument(requests.Signal, "payload", "Default: null.")] = None,
    *,
    said: options.Said,
    signal_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="An id for this signal: sending a signal with the same id again has no effect.",
        ),
    ] = None,
    by: options.By = None,
    reason: options.Reason = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Send a signal to a run.

    A node that waits for the signal (`ctx.wait_for`) continues. If no node waits for it, the signal is kept for the next one that
    does.
    """
    given = options.read_json(payload, "PAYLOAD")
    with stores.reading(store) as reader:
        run = stores.execute(
            reader.store,
            lambda engine: engine.signal(
                run_id, name, given, **said, id=signal_id, by=options.resolve_actor(by), reason=reason
            ),
            {},
        )
        found = reader.diagnose(run_id, command_line(store=store))
        is_only_claimed = reader.is_only_claimed(run_id)
    is_kept = run.held_by is None and name in found.unreceived
    if as_json:
        recorded = {"signal": name, "payload": given, "kept": is_kept, "repeated": run.repeated}
        _say_json(run, found, recorded)
        return
    if run.repeated:
        screen.say(
            f"{run_id}: a signal with id {screen.one_line(signal_id or '')} was sent before; nothing changed"
        )
        return
    screen.say(
        ("sent  ", "bold green"), f"{run_id} {screen.one_line(name)}: {screen.json_text(given, indent=None)}"
    )
    if is_kept:
        screen.say("  no node waits for this signal yet; it is kept for the next node that does")
    _say_rest(run, found, "receives the signal within a second", store, is_only_claimed=is_only_claimed)


def _say_json(run: Run[Any], found: Diagnosis, recorded: dict[str, Any]) -> None:
    why = {"reason": found.reason, "remedies": found.remedies}
    screen.say_json({"id": run.id} | recorded | {"status": run.status, "held_by": run.held_by} | why)


def _say_rest(
    run: Run[Any], found: Diagnosis, holder_does: str, store: str | None, *, is_only_claimed: bool
) -> None:
    """Print which process continues the run, or else the command that resumes it. A process that has only claimed the run may be
    about to refuse it, because the flow has changed.
    """
    if run.held_by is not None and is_only_claimed and found.kind not in REFUSED:
        screen.say(
            f"  {run.held_by} has just claimed the run, and continues it if it has the code of the run"
        )
        say_commands([(line("show", run.id, store=store), "see whether it does")])
        return
    if run.held_by is not None and found.kind not in REFUSED:
        screen.say(f"  {run.held_by} executes the run, and {holder_does}")
        return
    if found.taker is not None and found.kind not in REFUSED:
        screen.say(f"  {found.taker} takes flow {found.flow!r}, and claims the run")
        return
    screen.say(f"  {found.reason}")
    say_remedies(found.remedies)


# --- open questions ----------------------------------------------------------------------------------


class _Open(msgspec.Struct, frozen=True):
    """An open question, the commands that answer it, and what is known about the node that it is about."""

    asked: AskedQuestion
    remedies: list[Remedy]
    partial: OpenVisit | None = None


class _ToCome(msgspec.Struct, frozen=True):
    """A question that will be asked when a run is resumed: whether a crashed node had its effect."""

    node: str
    found: Diagnosis
    partial: OpenVisit | None = None


@command(LOOK)
def questions(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            callback=options.check_run_id,
            help="List only questions of this run. Default: all runs.",
        ),
    ] = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """List open questions, and those that a resume will ask.

    For a crashed node it also shows what is known: the steps it kept, its streamed output and files, and the git checkout.
    """
    commands = command_line(store=store)

    def use(reader: Reader) -> tuple[list[_Open], list[_ToCome], float]:
        found = reader.questions(run_id)
        to_come = [
            one for found in reader.questions_to_come(run_id, commands) for one in _to_come(reader, found)
        ]
        return [_open(reader, one, found, commands) for one in found], to_come, reader.store.now()

    found, to_come, now = stores.read(store, use)
    if as_json:
        screen.say_json([*map(_as_json, found), *map(_to_come_as_json, to_come)])
        return
    if found:
        _say_open(found, now, store)
    else:
        whose = f"Run {run_id} has no open question" if run_id is not None else "No run has an open question"
        screen.say(f"{whose}{' yet' if to_come else ''}.")
    _say_to_come(to_come)


def _say_open(found: list[_Open], now: float, store: str | None) -> None:
    columns = ["RUN", "QUESTION", "ABOUT", "ASKS", "OPTIONS", "SINCE", "UNTIL"]
    screen.say_table(columns, [_cells(one.asked, now) for one in found], flexible=3)
    for one in found:
        if one.partial is not None:
            head = f"{one.partial.node} of {one.asked.run_id} crashed. What is known about it:"
            say_visit(one.partial, head)
    screen.say("")
    screen.say("Answer with:")
    say_remedies(remedy for one in found[:_ANSWERED_MAX] for remedy in one.remedies)
    if len(found) > _ANSWERED_MAX:
        screen.say(
            (
                f"Answer the others in the same way: {line('answer', 'RUN', 'QUESTION', 'VALUE', store=store)}",
                "dim",
            )
        )


def _say_to_come(to_come: list[_ToCome]) -> None:
    for one in to_come:
        screen.say("")
        screen.say(
            f"A resume will ask what to do about node {one.node} of {one.found.run_id}, which crashed and may have had its "
            "effect."
        )
        say_remedies(remedy for remedy in one.found.remedies if remedy.verb == "resume")
        if one.partial is not None:
            say_visit(one.partial, f"What is known about {one.node}:")


def _to_come(reader: Reader, found: Diagnosis) -> list[_ToCome]:
    assert found.run_id is not None
    visits = {visit.node: visit for visit in open_visits(reader, reader.get(found.run_id))}
    return [_ToCome(node, found, visits.get(node)) for node in found.asks_before]


def _to_come_as_json(one: _ToCome) -> dict[str, Any]:
    whose = {"run_id": one.found.run_id, "flow": one.found.flow, "node": one.node, "about": "interrupt"}
    resumes = [remedy for remedy in one.found.remedies if remedy.verb == "resume"]
    return whose | {"to_come": True, "known": one.partial, "remedies": resumes}


def _open(reader: Reader, one: AskedQuestion, among: list[AskedQuestion], commands: CommandLine) -> _Open:
    of_run = tuple(other.question for other in among if other.run_id == one.run_id)
    if one.question.about != "interrupt":
        return _Open(one, answers(commands, one.run_id, one.question, of_run))
    commands = commands.for_flow_of(history.flow_file(reader.store, one.run_id))
    found = answers(commands, one.run_id, one.question, of_run)
    visits = open_visits(reader, reader.get(one.run_id))
    return _Open(one, found, next((visit for visit in visits if visit.node == one.question.node), None))


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
        (f"{until}, past" if over else until, "yellow" if over else "dim"),
    ]


def _as_json(one: _Open) -> dict[str, Any]:
    whose = {"run_id": one.asked.run_id, "flow": one.asked.flow}
    fields = msgspec.structs.asdict(one.asked.question)
    return whose | fields | {"known": one.partial, "remedies": one.remedies}
